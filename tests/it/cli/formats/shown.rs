//! How a record of another program is shown.

use std::fs;

use assert_cmd::prelude::OutputAssertExt;
use chrono::{TimeDelta, Utc};
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::{Value, json};

#[cfg(target_os = "linux")]
use super::ALL;
use super::{System, gone, this_host};
use crate::cli::env::edited;
use crate::harness::{Running, TestEnv};

#[test]
fn foreign_record_is_recognized_without_format_option() {
    let env = TestEnv::new();
    let living = Running::sleeper();
    for (system, name) in [
        (System::Prodigy, "a"),
        (System::Sprint, "b"),
        (System::Memory2, "c"),
        (System::PidFile, "d.pid"),
    ] {
        let text = system.text(living.pid(), &this_host(), Utc::now());
        env.write(&format!("store/{name}.lock"), text);
    }
    env.onehold(["list"]).assert().success().stdout(
        contains(format!(" {} ", living.pid()))
            .count(4)
            .and(contains(" held ").count(4)),
    );
    let lock = env.lock("a");
    assert_eq!(lock["format"], "prodigy");
    assert_eq!(
        lock["hold"],
        Value::Null,
        "its program does not number them"
    );
    env.onehold(["run", "c", "--", "true"])
        .assert()
        .code(6)
        .stderr(contains(": \"write:tasks.json\""));
    env.onehold(["break", "a", "--yes"]).assert().success();
    env.onehold(["break", "b", "--hold", "0", "--yes"])
        .assert()
        .code(4);
    assert_eq!(env.check("a"), 0);
    assert_eq!(env.check("b"), 6);
}

#[cfg(unix)]
#[test]
fn foreign_record_is_named_by_its_lock_and_has_no_number() {
    let env = TestEnv::new();
    let now = Utc::now().to_rfc3339();
    let pid = std::process::id();
    for (file, text) in [
        (
            "sprint",
            format!("pid: {pid}\nsession_id: s\nstarted_at: {now}\nlock_version: 1\n"),
        ),
        (
            "memory",
            format!(r#"{{"pid":{pid},"session_id":"s","acquired_at":"{now}","operation":"o"}}"#),
        ),
        (
            "prodigy",
            format!(r#"{{"job_id":"j","process_id":{pid},"hostname":null,"acquired_at":"{now}"}}"#),
        ),
    ] {
        let name = format!("./{file}.lock");
        env.write(&format!("{file}.lock"), text);
        let lock = env.lock(&name);
        assert_eq!(lock["names"], json!([name]), "{lock}");
        assert_eq!(lock["hold"], Value::Null, "{lock}");
        env.onehold(["check", "-v", &name])
            .assert()
            .stdout(contains("\n  hold: ").not());
        // It says what will be free.
        #[cfg(unix)]
        {
            let (_, shown) = env.on_a_terminal(&format!("break {name}"), &["n\n"]);
            assert!(
                shown.contains(&format!("`{name}` will then be free")),
                "{shown}"
            );
        }
    }
}

#[test]
fn empty_host_and_session_count_as_absent() {
    let env = TestEnv::new();
    let now = Utc::now().to_rfc3339();
    let hosts = ["prodigy", "memory"];
    for (file, text) in [
        (
            hosts[0],
            format!(r#"{{"job_id":"j","process_id":PID,"hostname":"","acquired_at":"{now}"}}"#),
        ),
        (
            hosts[1],
            format!(
                r#"{{"pid":PID,"session_id":"","hostname":"","acquired_at":"{now}","operation":"o"}}"#
            ),
        ),
        (
            "sprint",
            format!("pid: PID\nsession_id: \"\"\nstarted_at: {now}\nlock_version: 1\n"),
        ),
    ] {
        let name = format!("./{file}.lock");
        env.write(
            &format!("{file}.lock"),
            text.replace("PID", &gone().to_string()),
        );
        let lock = env.lock(&name);
        assert_eq!(lock["reason"], "dead", "{lock}");
        assert_eq!(
            (&lock["hostname"], &lock["owner"]),
            (&Value::Null, &Value::Null)
        );
    }
    // A native record, of the boot before this one or by hand.
    for (name, has_origin) in [("rebooted", true), ("by-hand", false)] {
        let _holder = env.write_record_of_live_holder(name, |text| {
            edited(&text, |record| {
                record["hostname"] = "".into();
                if has_origin {
                    record["origin"]["boot"]["id"] = "another".into();
                } else {
                    record["origin"] = Value::Null;
                }
            })
        });
        let lock = env.lock(name);
        assert_eq!(lock["hostname"], Value::Null, "{lock}");
        assert_ne!(
            lock["evidence"], "unverified: its process is on another host",
            "{lock}"
        );
    }
}

#[cfg(target_os = "linux")]
#[test]
fn program_that_has_the_pid_of_a_foreign_record_is_named() {
    let env = TestEnv::new();
    let living = Running::sleeper();
    let pid = living.pid();
    for system in ALL {
        let certain = format!("is held by process {pid} (sleep)");
        // It started later, so it may be another one.
        let uncertain = format!("may be held by process {pid} (sleep)");
        for (age, said) in [
            (TimeDelta::zero(), certain),
            (TimeDelta::seconds(10), uncertain),
        ] {
            let then = Utc::now() - age;
            system.leave(&env, &system.text(pid, &this_host(), then), then);
            let options = [
                "-n",
                "--owner",
                "o",
                "-m",
                "m",
                "--max-age",
                "2h",
                "--",
                "true",
            ];
            let run = system.onehold(&env, "run", &options);
            { run }.assert().code(6).stderr(contains(said));
            let check = system.onehold(&env, "check", &["--json", "--max-age", "2h"]);
            let checked = crate::harness::json_object(&{ check }.output().unwrap().stdout);
            assert_eq!(checked["lock"]["command"], json!(["sleep", "1000"]));
        }
    }
}

#[cfg(unix)]
#[test]
fn times_in_details_are_those_of_the_file() {
    let env = TestEnv::new();
    let job = Running::sleeper();
    let pid = job.pid().to_string();
    for (system, key, path) in [
        (System::Prodigy, "acquired_at", "/acquired_at"),
        (System::Sprint, "started_at", "/lock_info/started_at"),
        (System::Memory2, "acquired_at", "/holder/acquired_at"),
    ] {
        fs::create_dir_all(system.file(&env).parent().unwrap()).unwrap();
        let in_file = || {
            let text = fs::read_to_string(system.file(&env)).unwrap();
            let (_, rest) = text.split_once(key).unwrap();
            rest.trim_start_matches(['"', ':', ' '])
                .split('"')
                .next()
                .unwrap()
                .to_owned()
        };
        let shown = |lock: &Value| lock["details"].pointer(path).unwrap().clone();
        let options = ["--json", "--pid", &pid, "--owner", "o", "-m", "m"];
        let acquired = system.onehold(&env, "acquire", &options).output().unwrap();
        let acquired = crate::harness::json_object(&acquired.stdout);
        assert_eq!(shown(&system.lock(&env)), in_file(), "{system:?}");
        if system == System::Memory2 {
            let hold = acquired["hold"].to_string();
            let renew = system.onehold(&env, "renew", &["--hold", &hold]);
            { renew }.assert().success();
            assert_eq!(shown(&system.lock(&env)), in_file());
        } else {
            assert_eq!(shown(&acquired["lock"]), in_file(), "{system:?}");
        }
    }
    // As PowerShell writes it.
    let then = Utc::now().format("%Y-%m-%dT%H:%M:%S.1234567Z").to_string();
    let text = System::Memory1.text(job.pid(), &this_host(), Utc::now());
    let mut record: Value = serde_json::from_str(&text).unwrap();
    record["acquired_at"] = then.as_str().into();
    System::Memory1.leave(&env, &record.to_string(), Utc::now());
    let lock = System::Memory1.lock(&env);
    assert_eq!(lock["details"]["holder"]["acquired_at"], then);
}

#[cfg(unix)]
#[test]
fn flock_is_no_hint_where_another_format_is_expected() {
    let env = TestEnv::new();
    for (profile, has_hint) in [(&["--profile", "memory"][..], false), (&[], true)] {
        let words = |verb: &[&'static str]| [profile, verb, &["./memory/.lock"]].concat();
        let run = [&words(&["run", "-n", "-m", "m"])[..], &["--", "true"]].concat();
        let now = Utc::now();
        let mut said = String::new();
        for (modified, commands) in [
            (
                now,
                vec![words(&["check"]), words(&["check", "--json"]), run.clone()],
            ),
            (
                now - TimeDelta::minutes(1),
                vec![words(&["check"]), words(&["check", "--json"]), run],
            ),
        ] {
            for command in commands {
                System::Memory1.leave(&env, "", modified);
                let output = env.output(command);
                said += &String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            }
        }
        assert_eq!(said.contains("flock"), has_hint, "{said}");
    }
}
