#[cfg(unix)]
use std::fs;
#[cfg(unix)]
use std::process::Stdio;

use assert_cmd::prelude::OutputAssertExt;
use predicates::prelude::*;
use predicates::str::contains;

#[cfg(unix)]
use crate::harness::{Running, Signal, exit_code, stderr};
use crate::harness::{TestEnv, number_in, wait_until};

fn acquire(env: &TestEnv, name: &str, owner: &str) -> Option<i32> {
    env.onehold(["acquire", name, "--ttl", "1h", "--owner", owner])
        .output()
        .unwrap()
        .status
        .code()
}

#[test]
fn parent_and_children_exclude_each_other_but_siblings_do_not() {
    let env = TestEnv::new();
    assert_eq!(acquire(&env, "backend", "a"), Some(0));
    env.onehold(["acquire", "backend/task-1", "--ttl", "1h", "--owner", "b"])
        .assert()
        .code(6)
        .stderr(
            contains("onehold: `backend`, the parent of `backend/task-1`, is held by a lease of a")
                .and(contains(" break backend`\n")),
        );
    assert_eq!(acquire(&env, "backend/a/b/c", "b"), Some(6));
    assert_eq!(acquire(&env, "back", "b"), Some(0));
    assert_eq!(acquire(&env, "frontend/task-1", "b"), Some(0));
    assert_eq!(acquire(&env, "frontend/task-2", "c"), Some(0));
    // A lock is free only if it could be acquired.
    for (name, holder, relation) in [
        ("backend/task-1", "backend", "the parent"),
        ("backend/a/b", "backend", "an ancestor"),
    ] {
        env.onehold(["check", name])
            .assert()
            .code(6)
            .stdout(contains(format!(
                "`{holder}`, {relation} of `{name}`, is held by "
            )));
        assert_eq!(env.lock(name)["name"], holder);
        env.onehold(["check", name, "--owner", "a"])
            .assert()
            .success();
    }
    env.onehold(["check", "frontend"])
        .assert()
        .code(6)
        .stdout(contains(
            "`frontend/task-1`, a child of `frontend`, is held by ",
        ));
    assert_eq!(env.check("frontend/task-3"), 0);
    env.onehold(["run", "frontend", "--", "true"])
        .assert()
        .code(6)
        .stderr(contains(
            "`frontend/task-1`, a child of `frontend`, is held by ",
        ));
    env.onehold(["release", "backend", "--owner", "a"])
        .assert()
        .success();
    assert_eq!(acquire(&env, "backend/task-1", "b"), Some(0));
}

#[test]
fn same_owner_may_hold_parent_and_child() {
    let env = TestEnv::new();
    assert_eq!(acquire(&env, "backend", "a"), Some(0));
    assert_eq!(acquire(&env, "backend/task-1", "a"), Some(0));
    assert_eq!(acquire(&env, "backend/x/y", "a"), Some(0));
    env.onehold(["run", "--owner", "a", "backend/z", "--", "true"])
        .assert()
        .success();
    env.onehold(["release", "backend", "--owner", "a"])
        .assert()
        .success();
    assert_eq!(
        acquire(&env, "backend", "a"),
        Some(0),
        "as the parent of its own children"
    );
    env.onehold(["release", "backend", "--owner", "a"])
        .assert()
        .success();
    assert_eq!(
        acquire(&env, "backend", "b"),
        Some(6),
        "a child is held by another owner"
    );
    // Two callers without an owner are different owners.
    env.onehold(["acquire", "free", "--ttl", "1h"])
        .assert()
        .success();
    env.onehold(["acquire", "free/task", "--ttl", "1h"])
        .assert()
        .code(6);
}

#[test]
fn dead_parents_and_children_are_removed() {
    let env = TestEnv::new();
    env.create_zombie("backend");
    for task in ["1", "2", "2/a"] {
        env.create_zombie(&format!("frontend/{task}"));
    }
    assert_eq!(acquire(&env, "backend/task", "a"), Some(0));
    assert_eq!(acquire(&env, "frontend", "a"), Some(0));
    // A child that is about to start a command may outlive its wrapper.
    assert!(!env.path("store/backend.lock").exists());
    // Wine keeps a directory until the program that removes it has ended.
    assert!(cfg!(windows) || !env.path("store/frontend.d").exists());
    let journal = std::fs::read_to_string(env.path("store/.onehold/events.jsonl")).unwrap();
    let cleaned: Vec<&str> = journal.matches("\"event\":\"cleanup\"").collect();
    assert_eq!(cleaned.len(), 4, "{journal}");
    env.write("store/other.lock", "not a lock file");
    assert_eq!(acquire(&env, "other/task", "a"), Some(0));
}

#[test]
fn many_dead_children_are_removed() {
    let env = TestEnv::new();
    for task in 0..120 {
        env.onehold(["acquire", &format!("many/{task}"), "--ttl", "1ms"])
            .assert()
            .success();
    }
    assert_eq!(acquire(&env, "many", "a"), Some(0));
    assert!(cfg!(windows) || !env.path("store/many.d").exists());
}

#[test]
fn dead_parent_is_refused_with_on_zombie_fail() {
    let env = TestEnv::new();
    env.create_zombie("backend");
    env.onehold(["run", "backend/task", "--on-zombie", "fail", "--", "true"])
        .assert()
        .code(5)
        .stderr(contains(
            "onehold: `backend`, the parent of `backend/task`, is a zombie: ",
        ));
    assert_eq!(env.lock("backend")["state"], "zombie");
}

#[test]
fn expired_lease_is_not_renewed_beside_held_child() {
    let env = TestEnv::new();
    let acquired = env.onehold(["acquire", "backend", "--ttl", "1ms"]).output();
    let number = String::from_utf8(acquired.unwrap().stdout).unwrap();
    assert_eq!(acquire(&env, "backend/task", "a"), Some(0));
    env.onehold(["renew", "backend", "--hold", number.trim(), "--ttl", "1h"])
        .assert()
        .code(3);
    assert_eq!(env.check("backend/task"), 6);
}

#[test]
fn force_takes_only_the_named_lock() {
    let env = TestEnv::new();
    assert_eq!(acquire(&env, "backend", "a"), Some(0));
    env.onehold(["acquire", "backend/task", "--ttl", "1h", "--force", "--yes"])
        .assert()
        .code(6);
    assert_eq!(env.check("backend"), 6);
}

#[cfg(unix)]
#[test]
fn waiter_for_child_acquires_after_parent_is_released() {
    let env = TestEnv::new();
    let (ready, go) = (env.path("ready"), env.path("go"));
    let script = format!(
        "echo $$ > {}; until test -e {}; do sleep 0.01; done",
        ready.display(),
        go.display()
    );
    let mut section = env.start(["run", "backend", "--", "sh", "-c", &script]);
    number_in(&ready);
    let mut task = env.start_with_output(["run", "-w", "1h", "backend/task", "--", "echo", "mine"]);
    wait_until("it waits in the kernel", || {
        std::fs::read_to_string(format!("/proc/{}/syscall", task.pid()))
            // flock(2), in a program of 64 or of 32 bits.
            .is_ok_and(|call| call.starts_with("73 ") || call.starts_with("143 "))
    });
    assert!(!task.has_ended());
    std::fs::write(&go, "").unwrap();
    assert_eq!(section.finish(), 0);
    assert_eq!(task.finish_with_output().1, "mine\n");
}

#[cfg(unix)]
#[test]
fn readers_of_a_child_wait_behind_a_writer_only_if_the_parent_is_shared() {
    let env = TestEnv::new();
    let run = |words: &str| {
        let words = ["run", "-n"].into_iter().chain(words.split(' '));
        let words = words.chain(["--", "true"]);
        env.onehold(words).output().unwrap().status.code()
    };
    let holds = |words: &str| {
        let words = words.split(' ').chain(["--", "sleep", "1000"]);
        let hold = env.start(["run"].into_iter().chain(words));
        hold.wait_until_recorded();
        hold
    };
    for (held, expected) in [("-s a", Some(6)), ("-s a/b", Some(0)), ("a/b", Some(0))] {
        let mut holder = holds(held);
        let mut writer = env.start(["run", "-w", "60", "a", "--", "true"]);
        env.wait_for_waiter("a");
        assert_eq!(run("-s a/c"), expected, "{held}");
        holder.signal(Signal::TERM);
        assert_eq!(holder.finish(), 143);
        assert_eq!(writer.finish(), 0);
    }
}

/// The owner R1 acquires `wanted` while R2 waits for it, in the directory `queue`, because R1's `held`
/// excludes R2.
#[cfg(unix)]
fn assert_owner_is_not_blocked_by_waiter(held: &str, wanted: &str, queue: &str) {
    let env = TestEnv::new();
    env.done(["acquire", held, "--owner", "R1", "--ttl", "1h"]);
    let wait = ["run", "-w", "forever", wanted, "--owner", "R2"];
    let _waiter = env.start([&wait[..], &["--", "true"]].concat());
    // `check` and `list` show the hold that R2 waits for, and not R2, which waits for another name.
    let queue = env.path(&format!("store/.onehold/waiting/{queue}"));
    wait_until("R2 waits", || {
        fs::read_dir(&queue).is_ok_and(|tickets| tickets.count() == 1)
    });
    let output = env.output(["acquire", wanted, "--owner", "R1", "--ttl", "1h"]);
    assert_eq!(exit_code(output.status), 0, "{}", stderr(&output));
    assert_eq!(env.lock(wanted)["owner"], "R1");
}

#[cfg(unix)]
#[test]
fn owner_of_parent_gets_child_that_another_waits_for() {
    assert_owner_is_not_blocked_by_waiter("sec", "sec/t", "sec.d/t.lock");
}

#[cfg(unix)]
#[test]
fn owner_of_child_gets_parent_that_another_waits_for() {
    assert_owner_is_not_blocked_by_waiter("sec/a", "sec", "sec.lock");
}

#[cfg(unix)]
#[test]
fn wait_for_child_inside_run_of_parent_is_refused_immediately() {
    let env = TestEnv::new();
    let mut command = env.onehold(["run", "sec", "--"]);
    command
        .args(["onehold", "run", "-w", "1h", "sec/t", "--", "true"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    // Fails if it takes longer than the timeout of the harness.
    let mut run = Running::spawn(command);
    assert_eq!(run.finish(), 6);
    let (_, stderr) = run.finish_with_stderr();
    assert!(stderr.contains("`sec`"), "{stderr}");
}
