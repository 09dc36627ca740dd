use predicates::str::{contains, is_empty, is_match};

use crate::env::{Env, Running, sleeper};

#[test]
fn a_free_lock_is_0_and_asking_makes_nothing() {
    let env = Env::new();
    env.onehold(["check", "x"])
        .assert()
        .code(0)
        .stdout("`x` is free\n")
        .stderr(is_empty());
    env.onehold(["check", "a/b/c"]).assert().code(0);
    assert!(!env.store().exists());
}

#[test]
fn a_held_lock_is_6_and_a_zombie_5_with_who_and_how_sure() {
    let env = Env::new();
    let holder = Running::start(sleeper());
    let pid = holder.pid().to_string();
    env.onehold([
        "acquire", "x", "--pid", &pid, "--owner", "ops", "-m", "by hand",
    ])
    .assert()
    .success();
    env.onehold(["check", "x"]).assert().code(6).stderr(is_empty()).stdout(
        is_match(format!(
            "^`x` is held by process {pid} \\(sleep\\) of ops on [^ ]+, since \\d\\d:\\d\\d:\\d\\d \\(\\d+s ago\\): \"by hand\"\n  \
             alive: same process, checked just now\n$"
        ))
        .unwrap(),
    );
    env.onehold(["check", "-v", "x"])
        .assert()
        .code(6)
        .stdout(contains("  command: sleep 1000\n"));
    env.onehold(["check", "-q", "x"])
        .assert()
        .code(6)
        .stdout(is_empty())
        .stderr(is_empty());
    env.leave_dead("z");
    env.onehold(["check", "z"]).assert().code(5).stdout(
        is_match("^`z` was held by process \\d+ \\(sleep\\) on [^ ]+, since .*, which is gone\n  zombie: no process has its pid any more\n$").unwrap(),
    );
}

#[test]
fn the_object_has_every_key_whatever_the_state() {
    let env = Env::new();
    let keys = |name: &str| -> Vec<String> {
        env.lock(name)
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect()
    };
    let free = keys("free");
    let holder = Running::start(sleeper());
    env.onehold([
        "acquire",
        "x",
        "--pid",
        &holder.pid().to_string(),
        "--owner",
        "me",
    ])
    .assert()
    .success();
    assert_eq!(keys("x"), free);
    env.write("store/broken.lock", "");
    assert_eq!(keys("broken"), free);
    for key in [
        "name",
        "path",
        "exists",
        "state",
        "reason",
        "proof",
        "is_zombie",
        "takeable",
        "pid",
        "pid_alive",
        "hostname",
        "owner",
        "session_id",
        "message",
        "acquired_at",
        "renewed_at",
        "age_hours",
        "expires_at",
        "hold",
        "mine",
    ] {
        assert!(free.iter().any(|known| known == key), "{key}");
    }
    let lock = env.json(["check", "x", "--owner", "me"])["lock"].take();
    assert_eq!(lock["mine"], true);
    assert_eq!(env.lock("x")["mine"], false);
}

#[test]
fn the_status_words_are_those_of_the_exit_code() {
    let env = Env::new();
    env.leave_dead("dead");
    env.write("store/other.lock", "4711\n");
    env.onehold(["acquire", "held", "--ttl", "1h"])
        .assert()
        .success();
    for (name, status, success) in [
        ("free", "clean", true),
        ("held", "blocked", true),
        ("dead", "zombie-detected", true),
        ("other", "failure", false),
    ] {
        let object = env.json(["check", name]);
        assert_eq!(
            (&object["status"], &object["success"]),
            (&status.into(), &success.into()),
            "{name}"
        );
    }
}

#[test]
fn an_age_is_judged_by_the_observer_unless_the_holder_says_otherwise() {
    let env = Env::new();
    let holder = Running::start(sleeper());
    let pid = holder.pid().to_string();
    env.onehold(["acquire", "x", "--pid", &pid])
        .assert()
        .success();
    env.onehold(["acquire", "y", "--pid", &pid, "--max-age", "1h"])
        .assert()
        .success();
    env.onehold(["check", "x", "--max-age", "0"])
        .assert()
        .code(5);
    env.onehold(["check", "x", "--max-age", "1d"])
        .assert()
        .code(6);
    env.onehold(["check", "y", "--max-age", "0"])
        .assert()
        .code(6);
}
