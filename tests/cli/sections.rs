use predicates::prelude::*;
use predicates::str::contains;

use crate::env::{Env, eventually, number_in};

fn acquire(env: &Env, name: &str, owner: &str) -> Option<i32> {
    env.onehold(["acquire", name, "--ttl", "1h", "--owner", owner])
        .output()
        .unwrap()
        .status
        .code()
}

#[test]
fn a_section_excludes_its_tasks_and_a_task_its_sections_but_not_its_siblings() {
    let env = Env::new();
    assert_eq!(acquire(&env, "backend", "a"), Some(0));
    env.onehold(["acquire", "backend/task-1", "--ttl", "1h", "--owner", "b"])
        .assert()
        .code(6)
        .stderr(
            contains("onehold: `backend` is held by a lease of a")
                .and(contains("  `backend` covers `backend/task-1`\n"))
                .and(contains(" break backend`\n")),
        );
    assert_eq!(acquire(&env, "backend/a/b/c", "b"), Some(6));
    assert_eq!(acquire(&env, "back", "b"), Some(0));
    assert_eq!(acquire(&env, "frontend/task-1", "b"), Some(0));
    assert_eq!(acquire(&env, "frontend/task-2", "c"), Some(0));
    // What is free is what could be taken.
    for (name, holder) in [("backend/task-1", "backend"), ("backend/a/b", "backend")] {
        env.onehold(["check", name])
            .assert()
            .code(6)
            .stdout(contains(format!("  `{holder}` covers `{name}`\n")));
        assert_eq!(env.lock(name)["name"], holder);
        env.onehold(["check", name, "--owner", "a"])
            .assert()
            .success();
    }
    env.onehold(["check", "frontend"])
        .assert()
        .code(6)
        .stdout(contains("  `frontend` covers `frontend/task-"));
    assert_eq!(env.check("frontend/task-3"), 0);
    env.onehold(["run", "frontend", "--", "true"])
        .assert()
        .code(6)
        .stderr(contains("  `frontend` covers `frontend/task-"));
    env.onehold(["release", "backend", "--owner", "a"])
        .assert()
        .success();
    assert_eq!(acquire(&env, "backend/task-1", "b"), Some(0));
}

#[test]
fn the_same_owner_passes_his_own_sections_and_tasks() {
    let env = Env::new();
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
        "above his own tasks"
    );
    env.onehold(["release", "backend", "--owner", "a"])
        .assert()
        .success();
    assert_eq!(acquire(&env, "backend", "b"), Some(6), "above another's");
    // No owner is nobody's, not even the same one's.
    env.onehold(["acquire", "free", "--ttl", "1h"])
        .assert()
        .success();
    env.onehold(["acquire", "free/task", "--ttl", "1h"])
        .assert()
        .code(6);
}

#[test]
fn dead_relatives_do_not_block_and_are_left_to_whoever_wants_their_name() {
    let env = Env::new();
    env.leave_dead("backend");
    env.leave_dead("frontend/task");
    assert_eq!(acquire(&env, "backend/task", "a"), Some(0));
    assert_eq!(acquire(&env, "frontend", "a"), Some(0));
    assert_eq!(env.lock("backend")["state"], "zombie");
    assert_eq!(env.lock("frontend/task")["state"], "zombie");
    env.write("store/other.lock", "no lock of ours");
    assert_eq!(acquire(&env, "other/task", "a"), Some(0));
}

#[test]
fn force_displaces_the_holder_of_the_name_and_no_relative() {
    let env = Env::new();
    assert_eq!(acquire(&env, "backend", "a"), Some(0));
    env.onehold(["acquire", "backend/task", "--ttl", "1h", "--force", "--yes"])
        .assert()
        .code(6);
    assert_eq!(env.check("backend"), 6);
}

#[test]
fn who_waits_for_a_task_gets_it_when_its_section_is_released() {
    let env = Env::new();
    let (ready, go) = (env.path("ready"), env.path("go"));
    let script = format!(
        "echo $$ > {}; until test -e {}; do sleep 0.01; done",
        ready.display(),
        go.display()
    );
    let section = env.start(["run", "backend", "--", "sh", "-c", &script]);
    number_in(&ready);
    let mut task = env.start(["run", "-w", "1h", "backend/task", "--", "echo", "mine"]);
    eventually("it waits in the kernel", || {
        std::fs::read_to_string(format!("/proc/{}/syscall", task.pid()))
            .is_ok_and(|call| call.starts_with("73 "))
    });
    assert!(!task.has_ended());
    std::fs::write(&go, "").unwrap();
    assert_eq!(section.exit_code(), Some(0));
    assert_eq!(task.finish().1, "mine\n");
}
