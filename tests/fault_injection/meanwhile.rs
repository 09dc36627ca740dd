//! What another process does while a verb is stopped before one of its calls.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::harness::{TestEnv, exit_code, for_all};
use crate::tracer::{Ended, Fault, Role, Then, trace, trace_and};

// System calls on x86-64.
const CLONE: u64 = 56;
const EXECVE: u64 = 59;

/// What takes a lock away at once.
const BY_FORCE: [&[&str]; 3] = [
    &["break", "x", "--yes", "--force"],
    &["acquire", "x", "--force", "--yes", "--ttl", "1h"],
    &["run", "--force", "--yes", "x", "--", "true"],
];

/// A `run` whose lock is taken away before a call of it.
fn run_and_lose(run: &[&str], force: &[&str], role: Role, at: usize) -> Result<Ended, String> {
    let env = TestEnv::new();
    let mut taken = None;
    let ended = trace_and(env.onehold(run), Fault::Before(role, at), || {
        taken = Some(env.output(force));
        Then::Continue
    });
    let what = format!("{run:?}, {force:?} before call {at} of {role:?}");
    let Some(taken) = taken else {
        return Err(format!("{what}: there is no such call"));
    };
    if exit_code(taken.status) != 0 {
        return Err(format!("{what}: {taken:?}"));
    }
    if env.path("started").exists() != ended.executed {
        return Err(format!("{what}: {ended:?}"));
    }
    Ok(ended)
}

#[test]
fn run_that_loses_its_lock_before_its_command_starts_starts_nothing_and_exits_with_8() {
    let run = ["run", "x", "--", "touch", "started"];
    let calls = trace(TestEnv::new().onehold(run), Fault::Nothing).calls;
    let clone = calls[&Role::Program]
        .iter()
        .rposition(|call| *call == CLONE)
        .expect("a clone(2)");
    let mut points: Vec<_> = BY_FORCE
        .into_iter()
        .map(|force| (force, Role::Program, clone))
        .collect();
    // The others wait for a command on record, which is stopped here.
    let of_child = 0..calls[&Role::Child].len();
    points.extend(of_child.map(|at| (BY_FORCE[0], Role::Child, at)));
    let not_started = AtomicUsize::new(0);
    let failures = for_all(&points, |(force, role, at)| {
        let ended = run_and_lose(&run, force, *role, *at)?;
        not_started.fetch_add(usize::from(!ended.executed), Ordering::Relaxed);
        let says_so = ended.executed || ended.stderr.contains("  the command was not started\n");
        if ended.code == Some(8) && says_so {
            return Ok(());
        }
        let (code, said) = (ended.code, ended.stderr);
        Err(format!(
            "{force:?} before call {at} of {role:?}: {code:?}, {said}"
        ))
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(not_started.into_inner() > BY_FORCE.len());
}

#[test]
fn run_exec_that_loses_its_lock_before_it_executes_exits_with_8() {
    let run = ["run", "--exec", "x", "--", "touch", "started"];
    let calls = trace(TestEnv::new().onehold(run), Fault::Nothing).calls;
    let calls = &calls[&Role::Program];
    let execve = calls
        .iter()
        .position(|call| *call == EXECVE)
        .expect("an execve(2)");
    let mut not_started = 0;
    for at in (0..=execve).rev().take(8) {
        let ended = run_and_lose(&run, BY_FORCE[0], Role::Program, at).unwrap();
        if !ended.executed {
            assert_eq!(ended.code, Some(8), "before call {at}: {ended:?}");
            not_started += 1;
        }
    }
    assert!(not_started > 0);
}
