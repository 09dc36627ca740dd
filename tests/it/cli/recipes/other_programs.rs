//! Locks of the programs that onehold replaces.

use std::fs;

use assert_cmd::prelude::OutputAssertExt;
use predicates::str::contains;

use super::{RECIPES, example, executable};
use crate::harness::{Running, TestEnv, wait_until};

#[test]
#[ignore = "needs python3: apt install python3"]
fn memory_lock_in_python_is_a_context_manager_and_a_decorator() {
    let env = TestEnv::new();
    fs::create_dir(env.path("memory")).unwrap();
    let program = example("class LockError")
        + "\n@with_lock('write:tasks.json')\n\
           def write():\n    print(status()['holder']['operation'], status()['we_hold_it'])\n\
           write()\n\
           print(status()['locked'])\n\
           try:\n    with acquire('fails'):\n        raise ValueError\n\
           except ValueError:\n    print(status()['locked'])\n";
    let mut python = env.command("python3");
    python
        .args(["-c", &program])
        .assert()
        .success()
        .stdout("write:tasks.json True\nFalse\nFalse\n");
    let holder = Running::sleeper();
    env.onehold(["--profile", "memory", "acquire", "-m", "busy", "--pid"])
        .arg(holder.pid().to_string())
        .assert()
        .success();
    let refused = example("class LockError") + "\nwith acquire('x', 0.1): pass\n";
    let mut python = env.command("python3");
    python.args(["-c", &refused]).assert().code(1).stderr(contains(
        "LockError: Could not acquire lock within 0.1s. Held by session 'unknown' for operation 'busy'",
    ));
}

#[test]
#[ignore = "needs jq: apt install jq"]
fn sprint_functions_acquire_check_and_release() {
    let env = TestEnv::new();
    let script = example("sprint_acquire()")
        + "sprint_acquire . s-1 epic5 || exit 9\n\
           sprint_check . | jq -c '[.exists, .session_id, .epic_spec, .is_zombie]'\n\
           onehold --profile sprint acquire --pid 1 --owner s-2 -m epic6; echo $?\n\
           sprint_release . s-1; echo $?\n\
           sprint_check . | jq .exists\n";
    env.session(&script)
        .assert()
        .success()
        .stdout("[true,\"s-1\",\"epic5\",false]\n6\n0\nfalse\n")
        .stderr(contains("Sprint already running (PID: "));
}

#[test]
fn runner_keeps_its_section_between_two_tasks() {
    let env = TestEnv::new();
    executable(&env, "work", &example("# work RUNNER SECTION TASK..."));
    executable(
        &env,
        "do-task",
        "#!/bin/sh\necho $1 $3 >> log\nuntil test -e \"$1-$3\"; do sleep 0.01; done\n",
    );
    let has_line = |line: &str| {
        let log = fs::read_to_string(env.path("log")).unwrap_or_default();
        log.lines().any(|logged| logged == line)
    };
    let mut a = Running::start(env.session("./work A backend task-1 task-2"));
    wait_until("A works", || has_line("A task-1"));
    let mut b = Running::start(env.session("./work B backend task-2"));
    env.wait_for_waiter("backend");
    env.write("A-task-1", "");
    wait_until("A goes on", || has_line("A task-2"));
    assert!(!has_line("B task-2"));
    env.write("B-task-2", "");
    env.write("A-task-2", "");
    assert_eq!(a.finish(), 0);
    assert_eq!(b.finish(), 0);
    let log = fs::read_to_string(env.path("log")).unwrap();
    assert_eq!(log, "A task-1\nA task-2\nB task-2\n");
}

/// What takes the place of handling memory/.lock as a file, in a shell that has no ConvertFrom-Json.
#[test]
fn memory_lock_without_a_program_of_its_own_is_checked_acquired_renewed_released_and_broken() {
    let env = TestEnv::new();
    let (_, table) = RECIPES.split_once("as a file, in the workspace").unwrap();
    let (table, _) = table.split_once(".SH").unwrap();
    let lines: Vec<String> = table
        .replace("\\-", "-")
        .lines()
        .filter_map(|line| Some(line.split_once("onehold --profile memory ")?.1.to_owned()))
        .map(|words| words.split(" | ").next().unwrap().replace("$PID", "$$"))
        .collect();
    assert_eq!(lines.len(), 7, "{lines:?}");
    let script: Vec<String> = lines
        .iter()
        .map(|words| {
            format!("onehold --profile memory {words} >>out && test -e memory/.lock; echo $?\n")
        })
        .collect();
    // Free, free, acquired, renewed, released, cleaned up, nothing to break.
    env.shell(&script.concat())
        .assert()
        .success()
        .stdout("1\n1\n0\n0\n1\n1\n3\n");
}

/// The recipes of other programs: each line with a program that does nothing.
#[test]
fn commands_under_the_locks_of_other_programs_run() {
    let env = TestEnv::new();
    fs::create_dir(env.path("memory")).unwrap();
    for program in ["resume-it-myself", "sprint.sh", "write-tasks", "import"] {
        executable(&env, program, "#!/bin/sh\necho \"$ONEHOLD_NAME\" >> ran\n");
    }
    for marker in [
        "--profile prodigy list",
        "--profile sprint run",
        "--profile memory run",
        "--format pid",
    ] {
        env.session(&format!("set -e\nSESSION=s-1\n{}", example(marker)))
            .assert()
            .success();
    }
    let ran = fs::read_to_string(env.path("ran")).unwrap();
    assert_eq!(
        ran,
        "mapreduce-1234567890\n./.sprint-running\n./memory/.lock\n./import.pid\n"
    );
}
