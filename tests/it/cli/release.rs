use assert_cmd::prelude::OutputAssertExt;
use predicates::str::{contains, is_empty, is_match};

use crate::harness::{Running, TestEnv, number_in, wait_until};
#[cfg(unix)]
use crate::harness::{exit_code, stderr};

#[test]
fn release_of_free_lock_succeeds_and_creates_nothing() {
    let env = TestEnv::new();
    env.onehold(["release", "x"])
        .env_remove("ONEHOLD_DIR")
        .assert()
        .success()
        .stdout(is_empty())
        .stderr(is_empty());
    env.onehold(["release", "x"]).assert().success();
    assert!(!env.store().exists());
}

#[test]
fn release_accepts_number_owner_and_enclosing_hold() {
    let env = TestEnv::new();
    let acquire = |options: &[&str]| {
        let mut command = env.onehold(["acquire", "x", "--ttl", "1h"]);
        let output = command.args(options).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let number = acquire(&[]);
    env.onehold(["release", "x"])
        .assert()
        .code(4)
        .stderr(contains("not released: `x` is held by a lease"));
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

#[cfg(unix)]
#[test]
fn script_releases_own_hold_and_others_are_refused() {
    let env = TestEnv::new();
    env.session("onehold acquire x; onehold release x -v; onehold check x")
        .assert()
        .success()
        .stderr(contains("onehold: released `x`\n"));
    let holder = Running::sleeper();
    env.onehold(["acquire", "x", "--pid", &holder.pid().to_string()])
        .assert()
        .success();
    env.onehold(["release", "x"])
        .assert()
        .code(4)
        .stderr(contains(
            "  if it is yours, pass its number by --hold; to remove the hold, run `onehold --dir ",
        ));
    assert_eq!(env.check("x"), 6);
    env.onehold(["release", "x", "--force", "--yes"])
        .assert()
        .success();
    assert_eq!(env.check("x"), 0);
}

#[test]
fn zombie_is_released_by_any_caller_and_reported() {
    let env = TestEnv::new();
    env.create_zombie("x");
    let hold = env.lock("x")["hold"].as_u64().unwrap();
    // A number names one hold, dead or alive.
    env.onehold(["release", "x", "--hold", &(hold + 1).to_string()])
        .assert()
        .code(4);
    env.onehold(["release", "x"])
        .assert()
        .success()
        .stdout(is_empty())
        .stderr(
            is_match("^onehold: removed zombie `x`: process \\d+ \\(sleep(\\.exe)?\\) on [^ ]+, holder since .* \\(\\d+s ago\\), has exited\n$")
                .unwrap(),
        );
    env.onehold(["acquire", "x", "--ttl", "1ms"])
        .assert()
        .success();
    env.onehold(["release", "x", "--owner", "another"])
        .assert()
        .success()
        .stderr(is_match("^onehold: removed zombie `x`: a lease on .*, has expired\n$").unwrap());
    assert_eq!(env.left_in_store(), [""; 0]);
    // A damaged file shows no holder that is known to be dead.
    let path = env.write("store/y.lock", "");
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(11);
    std::fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_modified(long_ago)
        .unwrap();
    env.onehold(["release", "y"]).assert().code(4);
    assert!(path.exists());
}

#[cfg(unix)]
#[test]
fn release_of_live_run_is_refused() {
    let env = TestEnv::new();
    let ready = env.path("ready");
    let script = format!("echo $$ > {}; sleep 1000", ready.display());
    let _running = env.start(["run", "--owner", "me", "x", "--", "sh", "-c", &script]);
    number_in(&ready);
    let hold = env.lock("x")["hold"].to_string();
    env.onehold(["release", "x", "--owner", "me", "--hold", &hold])
        .assert()
        .code(4)
        .stderr(contains(
            "a running `onehold run` holds it until its command exits",
        ));
    env.onehold(["run", "y", "--", "onehold", "release", "x"])
        .assert()
        .code(4);
    assert_eq!(env.check("x"), 6);
}

#[cfg(unix)]
#[test]
fn empty_directories_of_names_are_removed() {
    let env = TestEnv::new();
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
fn release_leaves_hold_of_successor() {
    let env = TestEnv::new();
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

#[cfg(unix)]
#[test]
fn refusal_says_that_a_break_ends_the_command_and_which_option_helps() {
    let env = TestEnv::new();
    let run = env.start(["run", "run", "--", "sleep", "1000"]);
    run.wait_until_recorded();
    for verb in ["release", "renew"] {
        env.onehold([verb, "run"])
            .assert()
            .code(4)
            .stderr(contains("\n  to end its command, run `onehold "));
    }
    env.onehold(["acquire", "owned", "--ttl", "1h", "--owner", "ci"])
        .assert()
        .success();
    env.onehold(["acquire", "plain", "--ttl", "1h"])
        .assert()
        .success();
    for (name, pass) in [
        ("owned", "--owner or --hold"),
        ("plain", "number by --hold"),
    ] {
        env.onehold(["release", name])
            .assert()
            .code(4)
            .stderr(contains(format!(
                "  if it is yours, pass its {pass}; to remove the hold, run `"
            )));
    }
}

#[cfg(unix)]
#[test]
fn zombie_is_released_by_any_caller() {
    let env = TestEnv::new();
    env.create_zombie("x");
    let output = env.output(["release", "x"]);
    assert_eq!(exit_code(output.status), 0, "{}", stderr(&output));
    assert_eq!(env.left_in_store(), [""; 0]);
}

#[test]
fn release_of_a_lease_that_another_caller_has_removed_says_so_with_a_history_too() {
    for history in ["0", "1"] {
        let env = TestEnv::new();
        let acquired = env.output(["acquire", "x", "--ttl", "0.05"]);
        let number = String::from_utf8(acquired.stdout).unwrap();
        wait_until("it has expired", || env.check("x") == 5);
        let with_history = |words: &[&str]| {
            let mut command = env.onehold(words);
            command.env("ONEHOLD_HISTORY", history);
            command
        };
        with_history(&["release", "x"]).assert().success();
        with_history(&["release", "x", "--hold", number.trim()])
            .assert()
            .success()
            .stderr(contains(format!(
                "hold {} of `x` was not there",
                number.trim()
            )));
    }
}
