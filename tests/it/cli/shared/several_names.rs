//! Holds of several locks, and holds inside of others.

use assert_cmd::prelude::OutputAssertExt;
use predicates::str::contains;

use super::{code, lease, left};
#[cfg(unix)]
use super::{hold, nested, refusal_inside};
use crate::harness::TestEnv;

#[cfg(unix)]
#[test]
fn advice_inside_own_holds_is_something_that_works() {
    let env = TestEnv::new();
    let stays = "  this command already runs under `x`, which stays held until it exits\n";
    for run in ["x", "--reentrant x", "-w 9 x"] {
        // What is shared never becomes exclusive for those who share it.
        let text = refusal_inside(&env, &["-s x"], run);
        assert!(text.ends_with(stays), "{text}");
        let text = refusal_inside(&env, &["--slots 2 x", "--slots 2 x"], run);
        assert!(text.ends_with(stays), "{text}");
    }
    for run in ["x y", "--reentrant x y"] {
        let text = refusal_inside(&env, &["x"], run);
        let end = "  this command already runs under `x`: leave that name out\n";
        assert!(text.ends_with(end), "{text}");
    }
    for (outer, run, advised) in [
        (&["x"][..], "x", "--reentrant x"),
        (&["x y"], "x y", "--reentrant x"),
        (&["x"], "-s x", "--reentrant --shared x"),
        (
            &["--slots 2 x", "--slots 2 x"],
            "--slots 2 x",
            "--reentrant --slots 2 x",
        ),
    ] {
        let text = refusal_inside(&env, outer, run);
        assert!(text.ends_with(&format!(" run {advised} -- …`\n")), "{text}");
        let followed = nested(&env, &[outer, &[advised]].concat());
        assert_eq!(followed.stdout, b"inside\n", "{advised}");
    }
}

// The line is longer than Windows takes.
#[cfg(unix)]
#[test]
fn names_that_make_no_record_are_refused_before_a_wait() {
    let env = TestEnv::new();
    lease(&env, "a").unwrap();
    let long: Vec<String> = (0..200)
        .map(|at| format!("{at:0>200}/{at:0>200}"))
        .collect();
    let words = ["run", "-w", "9", "a"];
    let output = env
        .onehold(words)
        .args(&long)
        .args(["--", "true"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    let begin = "onehold: the record is longer than 65536 bytes\n";
    assert!(text.starts_with(begin), "{text}");
}

#[test]
fn several_names_are_taken_together_or_not_at_all() {
    let env = TestEnv::new();
    let cache = lease(&env, "cache --owner other").unwrap();
    env.onehold(["run", "db", "cache", "--", "true"])
        .assert()
        .code(6)
        .stderr(contains("onehold: `cache` is held by a lease of other"));
    assert_eq!(env.check("db"), 0);
    assert_eq!(code(&env, "release cache --owner other"), Some(0));
    let both = lease(&env, "db cache --owner me").unwrap();
    assert!(both > cache);
    for name in ["db", "cache"] {
        let lock = env.json(["check", name])["lock"].take();
        assert_eq!(lock["hold"], both);
        assert_eq!(lock["names"], serde_json::json!(["db", "cache"]));
        assert_eq!(lock["name"], name);
        assert_eq!(code(&env, &format!("run {name} -- true")), Some(6));
    }
    // The same holder asks again.
    assert_eq!(lease(&env, "cache db --owner me"), Ok(both));
    assert_eq!(lease(&env, "cache --owner me"), Err(Some(6)));
    assert_eq!(code(&env, "renew cache --owner me --ttl 2h"), Some(0));
    assert_eq!(env.json(["check", "db"])["lock"]["ttl_seconds"], 7200.0);
    assert_eq!(code(&env, "release cache --owner me"), Some(0));
    assert_eq!(left(&env), [""; 0]);
    // What one of them is broken for, the others are not held for either.
    lease(&env, "db cache a/b --owner me").unwrap();
    assert_eq!(code(&env, "break a/b --yes"), Some(0));
    assert_eq!(left(&env), [""; 0]);
}

#[test]
fn names_that_include_each_other_are_a_usage_error_and_repeated_ones_are_one() {
    let env = TestEnv::new();
    for (words, text) in [
        (
            "a a/b",
            "cannot hold `a` and `a/b` together: the first includes the second\n",
        ),
        (
            "c a/b/c a",
            "cannot hold `a/b/c` and `a` together: the second includes the first\n",
        ),
        (
            "a ./b",
            "cannot hold `a` and `./b` together: a path has no store\n",
        ),
    ] {
        env.onehold(["run"].into_iter().chain(words.split(' ')))
            .args(["--", "true"])
            .assert()
            .code(2)
            .stderr(contains(text));
    }
    lease(&env, "a b a").unwrap();
    assert_eq!(
        env.json(["check", "a"])["lock"]["names"],
        serde_json::json!(["a", "b"])
    );
}

#[cfg(unix)]
#[test]
fn command_under_several_names_ends_when_one_of_them_is_lost() {
    let env = TestEnv::new();
    let mut run = hold(&env, "db cache");
    std::fs::remove_file(env.store().join("cache.lock")).unwrap();
    assert_eq!(run.finish(), 8);
    assert_eq!(left(&env), [""; 0]);
}

#[cfg(unix)]
#[test]
fn names_and_files_of_a_hold_stand_in_as_many_lines() {
    let env = TestEnv::new();
    let script = "echo \"$ONEHOLD_NAME\"; basename -a $ONEHOLD_FILE
        echo $ONEHOLD_HOLDS; onehold run --reentrant cache -- echo inside; onehold run cache -- true";
    let output = env
        .onehold(["run", "db", "cache", "--", "sh", "-c", script])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(6));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..4], ["db", "cache", "db.lock", "cache.lock"]);
    assert!(
        lines[4].contains(":db ") && lines[4].ends_with(":cache"),
        "{text}"
    );
    assert_eq!(lines[5], "inside");
}

#[test]
fn takeover_of_one_name_leaves_none_of_a_dead_hold_behind() {
    let env = TestEnv::new();
    let output = env
        .onehold(["acquire", "db", "cache", "--ttl", "1ms"])
        .output()
        .unwrap();
    assert!(output.status.success());
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(env.check("cache"), 5);
    env.onehold(["run", "db", "--", "true"])
        .assert()
        .success()
        .stderr(contains("took over zombie `db`: "));
    assert_eq!(left(&env), [""; 0]);
}

#[test]
fn takeover_of_two_names_of_one_dead_hold_is_told_once() {
    let env = TestEnv::new();
    let both = ["acquire", "db", "cache", "--ttl", "1ms"];
    env.onehold(both).assert().success();
    std::thread::sleep(std::time::Duration::from_millis(20));
    let output = env
        .onehold(["run", "cache", "db", "--", "true"])
        .output()
        .unwrap();
    assert!(output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.matches("took over zombie").count(), 1, "{said}");
    assert_eq!(env.journal().len(), 1);
}
