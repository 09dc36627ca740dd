//! Locks that several hold, and holds of several locks.

mod force;
mod readers;
mod several_names;
mod slots;

use assert_cmd::prelude::OutputAssertExt;

#[cfg(unix)]
use crate::harness::Running;
use crate::harness::TestEnv;

/// Acquires a lease; its number, or the exit code.
fn lease(env: &TestEnv, words: &str) -> Result<u64, Option<i32>> {
    let words = words.split(' ').chain(["--ttl", "1h"]);
    let output = env
        .onehold(["acquire"].into_iter().chain(words))
        .output()
        .unwrap();
    let number = String::from_utf8(output.stdout).unwrap();
    number.trim().parse().map_err(|_| output.status.code())
}

/// What is left after a cleanup, which removes the directories of names that are shared again and again.
fn left(env: &TestEnv) -> Vec<String> {
    env.onehold(["cleanup"]).assert().success();
    env.left_in_store()
}

fn code(env: &TestEnv, words: &str) -> Option<i32> {
    env.onehold(words.split(' '))
        .output()
        .unwrap()
        .status
        .code()
}

/// Holds a lock until it is released by ending its stdin.
#[cfg(unix)]
fn hold(env: &TestEnv, words: &str) -> Running {
    let words: Vec<&str> = words.split(' ').collect();
    let mut command = env.command(crate::harness::program());
    command.arg("run").args(words).args(["--", "sleep", "1000"]);
    let run = Running::start(command);
    run.wait_until_recorded();
    run
}

/// `run` inside other holds: of each the words before its command, from outside in.
#[cfg(unix)]
fn nested(env: &TestEnv, holds: &[&str]) -> std::process::Output {
    let runs: Vec<String> = holds.iter().map(|hold| format!("run {hold} --")).collect();
    let line = format!("{} echo inside", runs.join(" onehold "));
    env.onehold(line.split(' ')).output().unwrap()
}

/// What `run` says that is refused inside other holds.
#[cfg(unix)]
fn refusal_inside(env: &TestEnv, outer: &[&str], run: &str) -> String {
    let refused = nested(env, &[outer, &[run]].concat());
    let text = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(6), "{text}");
    text
}
