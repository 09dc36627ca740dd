//! A wrapper that is killed, its command, and what the command leaves behind.

use std::fs;
use std::process::Command;

use assert_cmd::prelude::OutputAssertExt;
use predicates::str::{contains, is_match};

use super::{STATES_OF_SIBLINGS, running, wrapper_is_gone};
use crate::harness::{Signal, TestEnv, number_in, send, wait_until};

#[test]
fn command_keeps_lock_of_killed_wrapper() {
    let env = TestEnv::new();
    let (mut wrapper, command) = running(&env, &[], "exec sleep 1000");
    wrapper.kill();
    wrapper_is_gone(&env);
    env.onehold(["run", "x", "--", "true"])
        .assert()
        .code(6)
        .stderr(
            is_match(format!(
                "`x` is held by process {command} \\(sh\\) .*\n  alive: holds the kernel lock; \
             its wrapper \\(process {}\\) has exited; runs in [^ ]+\n",
                wrapper.pid()
            ))
            .unwrap(),
        );
    let mut waiting = env.start_with_output(["run", "-w", "1h", "x", "--", "echo", "mine"]);
    send(command, Signal::KILL);
    let (code, out, _) = waiting.finish_with_output();
    assert_eq!((code, out.as_str()), (0, "mine\n"));
}

#[test]
fn zombie_of_killed_wrapper_and_command_is_taken_over() {
    let env = TestEnv::new();
    let (mut wrapper, command) = running(&env, &[], "exec sleep 1000");
    wrapper.kill();
    send(command, Signal::KILL);
    wait_until("the command has exited", || env.check("x") == 5);
    env.onehold(["run", "x", "--", "true"])
        .assert()
        .success()
        .stderr(contains("took over zombie `x`"));
    assert_eq!(env.left_in_store(), [""; 0]);
}

#[test]
fn command_without_descriptors_keeps_lock_of_killed_wrapper() {
    let env = TestEnv::new();
    let (mut wrapper, command) = running(
        &env,
        &[],
        // As sudo does. dash cannot close descriptors above 9, so bash is used.
        "exec bash -c 'exec 100>&-; echo > closed; while :; do sleep 1; done'",
    );
    let closed = env.path("closed");
    wait_until("the command has closed the descriptor", || closed.exists());
    wrapper.kill();
    wrapper_is_gone(&env);
    assert_eq!(env.check("x"), 6);
    assert_eq!(env.lock("x")["proof"], "same-process");
    env.onehold(["run", "x", "--", "true"]).assert().code(6);
    send(command, Signal::KILL);
    wait_until("the command has exited", || env.check("x") == 5);
}

#[test]
fn daemon_holds_nothing_after_command_exits() {
    let env = TestEnv::new();
    let daemon = env.path("daemon");
    let script = format!(
        "setsid sleep 1000 >/dev/null 2>&1 & echo $! > {}",
        daemon.display()
    );
    env.onehold(["run", "x", "--", "sh", "-c", &script])
        .assert()
        .success();
    let daemon = number_in(&daemon);
    assert_eq!(env.check("x"), 0);
    env.onehold(["run", "x", "--", "true"]).assert().success();
    send(daemon, Signal::KILL);
}

#[test]
fn daemon_holds_nothing_after_wrapper_was_killed() {
    let env = TestEnv::new();
    let daemon = env.path("daemon");
    let go = env.path("go");
    let then = format!(
        "setsid sleep 1000 >/dev/null 2>&1 & echo $! > {}; until test -e {}; do sleep 0.01; done",
        daemon.display(),
        go.display()
    );
    let (mut wrapper, _) = running(&env, &[], &then);
    let daemon = number_in(&daemon);
    wrapper.kill();
    wrapper_is_gone(&env);
    assert_eq!(env.check("x"), 6, "the command still runs");
    fs::write(&go, "").unwrap();
    wait_until("the command has exited", || env.check("x") == 5);
    assert_eq!(env.lock("x")["reason"], "dead");
    env.onehold(["run", "x", "--", "true"]).assert().success();
    send(daemon, Signal::KILL);
}

#[test]
#[cfg(target_os = "linux")]
fn orphans_of_the_command_are_reaped_while_it_runs() {
    let env = TestEnv::new();
    let script = format!("for i in 1 2 3 4 5; do (true & ); done; sleep 0.3; {STATES_OF_SIBLINGS}");
    let out = env
        .onehold(["run", "x", "--", "sh", "-c", &script])
        .output()
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(text.contains("State:\t"), "{text}");
    assert!(!text.contains("State:\tZ"), "{text}");
}

#[test]
fn command_inherits_only_lock_descriptor() {
    let env = TestEnv::new();
    let script = "cd /proc/self/fd && for fd in *; do test -e $fd && echo $fd; done";
    let descriptors = |command: &mut Command| -> Vec<u32> {
        let out = command.output().unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        text.lines().map(|fd| fd.parse().unwrap()).collect()
    };
    let with_onehold = |options: &[&str]| {
        let mut words = vec!["run"];
        words.extend(options);
        words.extend(["x", "--", "sh", "-c", script]);
        descriptors(&mut env.onehold(words))
    };
    let mut plain = env.command("sh");
    let before = descriptors(plain.args(["-c", script]));
    for options in [&[][..], &["--exec"], &["-w", "1s"], &["--on-lost", "warn"]] {
        let mut found = with_onehold(options);
        found.retain(|fd| !before.contains(fd));
        assert!(
            matches!(found.as_slice(), [lock] if *lock >= 100),
            "{options:?}: {found:?} beside {before:?}"
        );
    }
    let mut closed = with_onehold(&["--close"]);
    closed.sort_unstable();
    let mut before = before;
    before.sort_unstable();
    assert_eq!(closed, before);
}

#[test]
fn wrapper_reaps_children_and_has_one_thread() {
    let env = TestEnv::new();
    let script = format!("grep ^Threads /proc/$PPID/status; {STATES_OF_SIBLINGS}");
    let out = env
        .onehold(["run", "x", "--", "sh", "-c", &script])
        .output()
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(text.starts_with("Threads:\t1\n"), "{text}");
    assert!(text.contains("State:\t"), "{text}");
    assert!(!text.contains("State:\tZ"), "{text}");
}
