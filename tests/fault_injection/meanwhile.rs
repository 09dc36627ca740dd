//! What another process does while a verb is stopped before one of its calls.

use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::spawn;

use crate::faults::{Ended, Fault, Role, Then, trace, trace_and};
use crate::harness::innocents::Innocents;
use crate::harness::{
    Running, TestEnv, exit_code, for_all, is_blocked_in_flock, wait_until, watches_a_file,
};

// System calls on x86-64.
const CLONE: u64 = 56;
const EXECVE: u64 = 59;

/// What takes a lock away at once.
const BY_FORCE: [&[&str]; 3] = [
    &["break", "x", "--yes", "--force"],
    &["acquire", "x", "--force", "--yes", "--ttl", "1h"],
    &["run", "--force", "--yes", "x", "--", "true"],
];

/// With the same innocents each time, or other calls would be made.
fn store() -> (TestEnv, Innocents) {
    let env = TestEnv::on_disk();
    let innocents = Innocents::some(&env, 0);
    (env, innocents)
}

/// A `run` whose lock is taken away before a call of it.
fn run_and_lose(run: &[&str], force: &[&str], role: Role, at: usize) -> Result<Ended, String> {
    let (env, mut innocents) = store();
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
    let harmed = innocents.end(&env);
    if !harmed.is_empty() {
        return Err(format!("{what}: {harmed:?}"));
    }
    Ok(ended)
}

#[test]
fn run_that_loses_its_lock_before_its_command_starts_starts_nothing_and_exits_with_8() {
    let run = ["run", "x", "--", "touch", "started"];
    let (env, _innocents) = store();
    let calls = trace(env.onehold(run), Fault::Nothing).calls;
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
    let (env, _innocents) = store();
    let calls = trace(env.onehold(run), Fault::Nothing).calls;
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

/// What another process does while a lease is acquired, and the codes that it may exit with.
const MEANWHILE: [(&[&str], &[i32]); 5] = [
    (
        &["acquire", "-v", "x", "--ttl", "1h", "--owner", "me"],
        &[0],
    ),
    (&["release", "x", "--owner", "me"], &[0]),
    (&["renew", "x", "--owner", "me"], &[0, 3]),
    (&["break", "x", "--yes"], &[0, 3]),
    (&["break", "x", "--yes", "--force"], &[0, 3]),
];

/// Starts another verb before a call of an `acquire`, which goes on once the other one has ended or waits.
fn acquire_and_let(other: &[&str], codes: &[i32], at: usize) -> Result<(), String> {
    let (env, mut innocents) = store();
    env.done(["run", "x", "--", "true"]);
    let mut started = None;
    let ended = trace_and(
        env.onehold(MEANWHILE[0].0),
        Fault::Before(Role::Program, at),
        || {
            let mut command = env.onehold(other);
            let printed = std::fs::File::create(env.path("printed")).unwrap();
            command.stdout(printed).stderr(Stdio::null());
            let (waits, is_waiting) = channel();
            // The tracer waits for the children of its own thread.
            started = Some(spawn(move || {
                let mut running = Running::spawn(command);
                wait_until("it waits, or has ended", || {
                    let pid = running.pid();
                    running.has_ended() || is_blocked_in_flock(pid) || watches_a_file(pid)
                });
                waits.send(()).unwrap();
                running.finish()
            }));
            is_waiting.recv().unwrap();
            Then::Continue
        },
    );
    let what = format!("{other:?} before call {at}");
    let Some(code) = started.map(|other| other.join().unwrap()) else {
        // How many calls it makes varies by one or two.
        return Ok(());
    };
    let says_so = ended.stderr.contains("acquired") && !ended.stderr.contains("lost");
    if ended.code != Some(0) || !says_so || !codes.contains(&code) {
        return Err(format!("{what}: {code}; {:?} {}", ended.code, ended.stderr));
    }
    let printed = std::fs::read_to_string(env.path("printed")).unwrap();
    if other[0] == "acquire" && printed != ended.stdout {
        return Err(format!("{what}: {printed} and {}", ended.stdout));
    }
    let harmed = innocents.end(&env);
    if !harmed.is_empty() {
        return Err(format!("{what}: {harmed:?}"));
    }
    Ok(())
}

#[test]
fn acquire_succeeds_whatever_is_done_to_its_hold_before_any_of_its_calls() {
    let (env, _innocents) = store();
    env.done(["run", "x", "--", "true"]);
    let calls = trace(env.onehold(MEANWHILE[0].0), Fault::Nothing).count(Role::Program);
    let points: Vec<_> = (0..calls)
        .flat_map(|at| MEANWHILE.map(|other| (other, at)))
        .collect();
    let failures = for_all(&points, |((other, codes), at)| {
        acquire_and_let(other, codes, *at)
    });
    println!("{} points, {} failed", points.len(), failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
