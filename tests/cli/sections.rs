use predicates::prelude::*;
use predicates::str::contains;

use crate::env::{Env, Running, eventually, number_in};

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
fn dead_relatives_do_not_block_and_are_cleaned_up() {
    let env = Env::new();
    env.leave_dead("backend");
    for task in ["1", "2", "2/a"] {
        env.leave_dead(&format!("frontend/{task}"));
    }
    assert_eq!(acquire(&env, "backend/task", "a"), Some(0));
    assert_eq!(acquire(&env, "frontend", "a"), Some(0));
    // Else what died while it started a command might start it beside ours.
    assert!(!env.path("store/backend.lock").exists());
    assert!(!env.path("store/frontend.d").exists());
    let journal = std::fs::read_to_string(env.path("store/.onehold/events.jsonl")).unwrap();
    let cleaned: Vec<&str> = journal.matches("\"event\":\"cleanup\"").collect();
    assert_eq!(cleaned.len(), 4, "{journal}");
    env.write("store/other.lock", "no lock of ours");
    assert_eq!(acquire(&env, "other/task", "a"), Some(0));
}

#[test]
fn more_dead_tasks_than_a_restless_file_gets_attempts_are_cleaned_up() {
    let env = Env::new();
    for task in 0..120 {
        env.onehold(["acquire", &format!("many/{task}"), "--ttl", "1ms"])
            .assert()
            .success();
    }
    assert_eq!(acquire(&env, "many", "a"), Some(0));
    assert!(!env.path("store/many.d").exists());
}

#[test]
fn a_dead_relative_blocks_who_does_not_take_zombies() {
    let env = Env::new();
    env.leave_dead("backend");
    env.onehold(["run", "backend/task", "--on-zombie", "fail", "--", "true"])
        .assert()
        .code(5)
        .stderr(contains("  `backend` covers `backend/task`\n"));
    assert_eq!(env.lock("backend")["state"], "zombie");
}

#[test]
fn a_lease_that_ran_out_is_not_renewed_beside_a_relative() {
    let env = Env::new();
    let acquired = env.onehold(["acquire", "backend", "--ttl", "1ms"]).output();
    let number = String::from_utf8(acquired.unwrap().stdout).unwrap();
    assert_eq!(acquire(&env, "backend/task", "a"), Some(0));
    env.onehold(["renew", "backend", "--hold", number.trim(), "--ttl", "1h"])
        .assert()
        .code(3);
    assert_eq!(env.check("backend/task"), 6);
}

/// A lock that is held by a living `run`, and whose record stands under another name.
fn misplaced(env: &Env, name: &str) -> (Running, std::path::PathBuf, std::fs::Metadata) {
    use std::os::unix::fs::MetadataExt as _;
    let script = "until test -e end; do sleep 0.01; done";
    let running = env.start(["run", name, "--", "sh", "-c", script]);
    eventually("its command is on record", || {
        env.lock(name)["state"] == "held" && env.lock(name)["pid"] != running.pid()
    });
    let path = env.path("store/s.d/t.lock");
    let seen = std::fs::metadata(&path).unwrap();
    assert!(seen.nlink() == 1);
    (running, path, seen)
}

#[test]
fn what_a_dead_taker_took_out_of_a_task_keeps_its_section_from_others() {
    use std::os::unix::fs::MetadataExt as _;
    let env = Env::new();
    // What a taker by `run --exec` leaves who was killed between exchange and second look.
    env.onehold(["run", "--exec", "s/t", "--", "true"])
        .assert()
        .success();
    let finished = std::fs::read_to_string(env.path("store/s.d/t.lock")).unwrap();
    std::fs::remove_file(env.path("store/s.d/t.lock")).unwrap();
    let (running, path, seen) = misplaced(&env, "s/t");
    let aside = "0123456789abcdef";
    std::fs::rename(&path, env.path(&format!("store/s.d/.onehold.{aside}"))).unwrap();
    let swap = format!(
        "\"swap\": {{\"name\": \".onehold.{aside}\", \"inode\": {}, \"size\": {}, \"modified_ns\": {}, \"digest\": 1}},\n  \"origin\"",
        seen.ino(),
        seen.size(),
        seen.mtime() * 1_000_000_000 + seen.mtime_nsec()
    );
    std::fs::write(&path, finished.replacen("\"origin\"", &swap, 1)).unwrap();
    for name in ["s", "s/t/x", "s/t"] {
        env.onehold(["run", name, "--", "true"]).assert().code(6);
    }
    assert_eq!(env.lock("s/t")["state"], "held");
    env.write("end", "");
    assert_eq!(running.exit_code(), Some(0));
}

#[test]
fn what_was_set_aside_by_somebody_who_was_killed_comes_back() {
    for asked in [
        &["run", "s", "--", "true"][..],
        &["run", "s/t", "--", "true"],
        &["cleanup"],
    ] {
        let env = Env::new();
        let (running, path, _) = misplaced(&env, "s/t");
        // FNV-1a.
        let hash = b"aside/t.lock"
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            });
        let aside = format!("store/s.d/.onehold.{hash:016x}");
        std::fs::rename(&path, env.path(&aside)).unwrap();
        let code = if asked == ["cleanup"] { 0 } else { 6 };
        env.onehold(asked).assert().code(code);
        assert_eq!(env.lock("s/t")["state"], "held", "{asked:?}");
        assert!(!env.path(&aside).exists());
        env.write("end", "");
        assert_eq!(running.exit_code(), Some(0));
    }
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
