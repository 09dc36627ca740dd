//! JSON objects, closed pipes and exit codes.

use assert_cmd::prelude::OutputAssertExt;
use predicates::str::{contains, starts_with};
use serde_json::Value;

#[cfg(unix)]
use crate::harness::Signal;
use crate::harness::{TestEnv, json_object, last_json_object, wait_until};

#[test]
fn every_command_with_json_prints_one_object() {
    let env = TestEnv::new();
    env.create_zombie("dead");
    let lines: &[(&[&str], i32)] = &[
        (&["acquire", "x", "--ttl", "1h", "--owner", "me"], 0),
        (&["acquire", "x", "--ttl", "1h", "--owner", "me"], 0),
        (&["acquire", "x", "--ttl", "1h"], 6),
        (&["acquire", "x", "--ttl", "1h", "-w", "10ms"], 7),
        (
            &["acquire", "dead", "--ttl", "1h", "--on-zombie", "fail"],
            5,
        ),
        (&["acquire", "x", "--pid", "2147483647"], 1),
        (&["renew", "x", "--owner", "me"], 0),
        (&["renew", "x"], 4),
        (&["renew", "free"], 3),
        (&["check", "x"], 6),
        (&["list"], 0),
        (&["config"], 0),
        (&["release", "x"], 4),
        (&["release", "x", "--owner", "me"], 0),
        (&["break", "dead"], 0),
        (&["break", "dead"], 3),
        (&["cleanup"], 0),
    ];
    for (line, code) in lines {
        let output = env.onehold(*line).arg("--json").output().unwrap();
        assert_eq!(output.status.code(), Some(*code), "{line:?}");
        let object = json_object(&output.stdout);
        assert_eq!(object["command"], line[0]);
        assert_eq!(object["success"], object["error"].is_null(), "{object}");
        assert_eq!(
            object["success"].as_bool().unwrap(),
            *code == 0 || line[0] == "check"
        );
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "{line:?}");
    }
}

#[cfg(unix)]
#[test]
fn closed_pipe_is_no_failure() {
    let env = TestEnv::new();
    env.onehold(["acquire", "x", "--ttl", "1h"])
        .assert()
        .success();
    env.session("{ sleep 0.1; onehold list; echo $? > code; } | true; until test -s code; do sleep 0.01; done")
        .assert()
        .success();
    assert_eq!(std::fs::read_to_string(env.path("code")).unwrap(), "0\n");
    env.session("onehold check x > /dev/full")
        .assert()
        .code(6)
        .stderr(contains("cannot write to stdout"));
    env.session("onehold list > /dev/full")
        .assert()
        .code(1)
        .stderr("onehold: cannot write to stdout: no space left on device\n");
}

#[test]
fn object_has_displaced_hold_and_new_hold_is_mine() {
    let env = TestEnv::new();
    env.create_zombie("x");
    let taken = env.json(["acquire", "x", "--ttl", "1h"]);
    assert_eq!(taken["displaced"]["reason"], "dead");
    assert_eq!(taken["lock"]["mine"], true);
    assert!(env.json(["acquire", "y", "--ttl", "1h"])["displaced"].is_null());
    let out = env
        .onehold(["run", "--json", "--force", "--yes", "x", "--", "true"])
        .output()
        .unwrap();
    let object = last_json_object(&out.stderr);
    assert_eq!(object["displaced"]["hold"], taken["hold"]);
    assert_eq!(object["displaced"]["reason"], "lease");
}

#[test]
fn object_names_every_displaced_hold() {
    let env = TestEnv::new();
    let acquire = |words: &[&str]| env.json([&["acquire", "--ttl", "1h"], words].concat());
    let hold = |object: &Value| object["hold"].as_u64().unwrap();
    let displaced = |object: &Value| -> Vec<u64> {
        let first = &object["displaced"];
        let others = first["others"].as_array().unwrap();
        std::iter::once(first).chain(others).map(hold).collect()
    };
    let readers: Vec<u64> = (0..3).map(|_| hold(&acquire(&["-s", "x"]))).collect();
    let taken = acquire(&["--force", "--yes", "x"]);
    let mut named = displaced(&taken);
    named.sort_unstable();
    assert_eq!(named, readers);
    // Of several locks.
    let other = hold(&acquire(&["y"]));
    let out = env
        .onehold(["run", "--json", "--force", "--yes", "x", "y", "--", "true"])
        .output()
        .unwrap();
    let object = last_json_object(&out.stderr);
    assert_eq!(displaced(&object), [hold(&taken), other]);
}

#[cfg(unix)]
#[test]
fn interrupted_wait_prints_object_with_status_interrupted() {
    let env = TestEnv::new();
    env.onehold(["acquire", "x", "--ttl", "1h"])
        .assert()
        .success();
    let mut waiting = env.start_with_output(["acquire", "--json", "-w", "1h", "x", "--ttl", "1h"]);
    let status = format!("/proc/{}/status", waiting.pid());
    wait_until("Ctrl-C is caught", || {
        let text = std::fs::read_to_string(&status).unwrap();
        let caught = text.lines().find(|line| line.starts_with("SigCgt:"));
        let caught = caught.unwrap().trim_start_matches("SigCgt:").trim();
        u64::from_str_radix(caught, 16).unwrap() & 0b10 != 0
    });
    waiting.signal(Signal::INT);
    let (code, out, _) = waiting.finish_with_output();
    assert_eq!(code, -Signal::INT.as_raw(), "it ends the process");
    let object = json_object(out.as_bytes());
    assert_eq!(object["status"], "interrupted");
    assert_eq!(object["error"]["code"], "INTERRUPTED");
    assert_eq!(object["success"], false);
}

#[test]
fn acquire_does_not_succeed_without_the_lock() {
    let env = TestEnv::new();
    env.onehold(["acquire", "x", "--ttl", "1h", "-E", "0"])
        .assert()
        .code(2)
        .stderr(starts_with(
            "onehold: acquire -E 0: the script would go on without the lock\n",
        ));
    env.onehold(["run", "x", "-E", "0", "--", "true"])
        .assert()
        .success();
}
