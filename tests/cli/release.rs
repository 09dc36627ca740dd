use predicates::str::{contains, is_empty};

use crate::env::{Env, Running, number_in, sleeper};

#[test]
fn what_is_free_already_is_released_with_success_and_nothing_is_made() {
    let env = Env::new();
    env.onehold(["release", "x"])
        .assert()
        .success()
        .stdout(is_empty())
        .stderr(is_empty());
    assert!(!env.store().exists());
}

#[test]
fn a_hold_is_given_back_by_its_number_its_owner_or_from_within() {
    let env = Env::new();
    let acquire = |options: &[&str]| {
        let mut command = env.onehold(["acquire", "x", "--ttl", "1h"]);
        let output = command.args(options).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let number = acquire(&[]);
    env.onehold(["release", "x"])
        .assert()
        .code(4)
        .stderr(contains("not yours: `x` is held by a lease"));
    env.onehold(["release", "x", "--hold", "1"])
        .assert()
        .code(4);
    env.onehold(["release", "x", "--hold", &number])
        .assert()
        .success();
    let number = acquire(&["--owner", "me"]);
    env.onehold(["release", "x", "--owner", "you"])
        .assert()
        .code(4);
    env.onehold(["release", "x", "--owner", "me", "--hold", "1"])
        .assert()
        .code(4);
    env.onehold(["release", "x", "--owner", "me"])
        .assert()
        .success();
    assert!(!number.is_empty());
    let number = acquire(&[]);
    env.onehold(["release", "x"])
        .env("ONEHOLD_HOLDS", format!("1:other {number}:x"))
        .assert()
        .success();
    assert_eq!(env.left_in_store(), [""; 0]);
}

#[test]
fn a_script_releases_what_it_acquired_and_a_stranger_does_not() {
    let env = Env::new();
    env.shell("onehold acquire x; onehold release x -v; onehold check x")
        .assert()
        .success()
        .stderr(contains("onehold: released `x`\n"));
    let holder = Running::start(sleeper());
    env.onehold(["acquire", "x", "--pid", &holder.pid().to_string()])
        .assert()
        .success();
    env.onehold(["release", "x"])
        .assert()
        .code(4)
        .stderr(contains(
            "give its --hold or --owner, or take it with `onehold --dir ",
        ));
    assert_eq!(env.check("x"), 6);
    env.onehold(["release", "x", "--force", "--yes"])
        .assert()
        .success();
    assert_eq!(env.check("x"), 0);
}

#[test]
fn a_living_run_ends_with_its_command_whoever_asks() {
    let env = Env::new();
    let ready = env.path("ready");
    let script = format!("echo $$ > {}; sleep 1000", ready.display());
    let _running = env.start(["run", "--owner", "me", "x", "--", "sh", "-c", &script]);
    number_in(&ready);
    let hold = env.lock("x")["hold"].to_string();
    env.onehold(["release", "x", "--owner", "me", "--hold", &hold])
        .assert()
        .code(4)
        .stderr(contains("it ends with its command"));
    env.onehold(["run", "y", "--", "onehold", "release", "x"])
        .assert()
        .code(4);
    assert_eq!(env.check("x"), 6);
}

#[test]
fn directories_of_names_go_when_they_are_empty() {
    let env = Env::new();
    for name in ["a/b/c", "a/b/d"] {
        env.onehold(["acquire", name, "--ttl", "1h", "--owner", "me"])
            .assert()
            .success();
    }
    env.onehold(["release", "a/b/c", "--owner", "me"])
        .assert()
        .success();
    assert!(env.store().join("a.d/b.d/d.lock").exists());
    env.onehold(["release", "a/b/d", "--owner", "me"])
        .assert()
        .success();
    assert_eq!(env.left_in_store(), [""; 0]);
}

#[test]
fn a_successors_record_is_never_removed() {
    let env = Env::new();
    let acquire = || {
        let mut command = env.onehold(["acquire", "x", "--ttl", "1h"]);
        String::from_utf8(command.output().unwrap().stdout)
            .unwrap()
            .trim()
            .to_owned()
    };
    let first = acquire();
    env.onehold(["break", "x", "--yes"]).assert().success();
    let second = acquire();
    env.onehold(["release", "x", "--hold", &first])
        .assert()
        .code(4);
    assert_eq!(env.lock("x")["hold"].to_string(), second);
}
