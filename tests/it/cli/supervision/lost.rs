//! Holds that are lost, and that are renewed.

use std::fs;

use assert_cmd::prelude::OutputAssertExt;
use predicates::Predicate;
use predicates::str::{contains, is_match};

use super::running;
use crate::harness::{Signal, TestEnv, wait_until};

#[test]
fn broken_hold_ends_command_with_8() {
    let env = TestEnv::new();
    let (mut wrapper, _) = running(&env, &[], "exec sleep 1000");
    env.onehold(["break", "x", "--yes"])
        .assert()
        .success()
        .stderr(contains("onehold: broke the hold on `x` of process"));
    let (code, _, err) = wrapper.finish_with_output();
    assert_eq!(code, 8);
    assert!(
        is_match(
            "^onehold: lock `x` was broken while the command was running; sent TERM, KILL in 10s\n$"
        )
        .unwrap()
        .eval(&err),
        "{err}"
    );
}

#[test]
fn broken_hold_is_only_reported_with_on_lost_warn() {
    let env = TestEnv::new();
    let go = env.path("go");
    let then = format!(
        "until test -e {}; do sleep 0.01; done; exit 17",
        go.display()
    );
    let (mut wrapper, command) = running(&env, &["--on-lost", "warn"], &then);
    fs::remove_file(env.store().join("x.lock")).unwrap();
    let number = env
        .onehold(["acquire", "x", "--pid", &command.to_string()])
        .output()
        .unwrap();
    assert!(number.status.success());
    assert_eq!(
        wrapper.next_line(),
        "onehold: lost lock `x` while the command was running; the command keeps running\n"
    );
    let now = wrapper.next_line();
    assert!(
        now.starts_with(&format!("  now: `x` is held by process {command} ")),
        "{now}"
    );
    fs::write(&go, "").unwrap();
    assert_eq!(wrapper.finish(), 17);
    assert_eq!(
        env.left_in_store(),
        ["x.lock"],
        "the successor's record stays"
    );
}

#[test]
fn wrapper_that_lost_its_lock_sleeps_until_its_command_exits() {
    let env = TestEnv::new();
    // In ticks of 10 ms, in user mode and in the kernel.
    let then = "until test -e go; do sleep 0.01; done; sleep 1; cut -d' ' -f14,15 /proc/$PPID/stat > ticks";
    // A renewal is due every 10 ms.
    let options = ["--on-lost", "warn", "--ttl", "30ms"];
    let (mut wrapper, _) = running(&env, &options, then);
    fs::remove_file(env.store().join("x.lock")).unwrap();
    assert!(wrapper.next_line().contains("lost lock `x`"));
    env.write("go", "");
    wrapper.next_line();
    assert_eq!(wrapper.finish(), 0);
    let ticks = fs::read_to_string(env.path("ticks")).unwrap();
    let used: u64 = ticks
        .split_whitespace()
        .map(|n| n.parse::<u64>().unwrap())
        .sum();
    assert!(used < 20, "{used} ticks");
}

#[test]
fn loss_just_before_command_exit_is_reported() {
    let env = TestEnv::new();
    env.onehold(["run", "x", "--", "sh", "-c", "rm $ONEHOLD_FILE"])
        .assert()
        .code(8)
        .stderr("onehold: lost lock `x` while the command was running\n");
}

#[test]
fn hold_in_moved_store_is_lost_and_removed() {
    let env = TestEnv::new();
    let moved = env.path("moved");
    let (mut wrapper, _) = running(&env, &[], "exec sleep 1000");
    fs::rename(env.store(), &moved).unwrap();
    // Another holder in the new store.
    env.onehold(["run", "x", "--", "true"]).assert().success();
    assert_eq!(wrapper.finish(), 8);
    assert!(!moved.join("x.lock").exists());
    assert!(moved.join(".onehold").exists());
    let script = format!("mv {} {}.2", env.store().display(), moved.display());
    env.onehold(["run", "x", "--", "sh", "-c", &script])
        .assert()
        .code(8);
}

#[test]
fn hold_in_removed_store_is_lost() {
    let env = TestEnv::new();
    let script = format!("rm -r {}", env.store().display());
    env.onehold(["run", "x", "--", "sh", "-c", &script])
        .assert()
        .code(8);
    assert!(!env.store().exists(), "nothing is created again");
}

#[test]
fn run_with_ttl_renews_heartbeat() {
    let env = TestEnv::new();
    let (mut wrapper, _) = running(&env, &["--ttl", "300ms"], "exec sleep 1000");
    let first = env.lock("x")["renewed_at"].clone();
    wait_until("the heartbeat is renewed", || {
        env.lock("x")["renewed_at"] != first
    });
    assert_eq!(env.check("x"), 6);
    wrapper.signal(Signal::TERM);
    assert_eq!(wrapper.finish(), 143);
}
