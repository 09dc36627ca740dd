//! Signals, killed processes and daemons under `run`.

mod ended_by_force;
mod killed;
mod lost;
mod signals;

use std::fs;

use crate::harness::{Running, TestEnv, number_in, wait_until};

/// Starts a `run` of `x` whose command reports its PID and then executes `then`. Returns once the
/// wrapper has recorded the start time of the command, which it does after the command was started.
fn running(env: &TestEnv, options: &[&str], then: &str) -> (Running, u32) {
    running_with_trap(env, options, ":", then)
}

/// The trap is set before the command says that it runs: a signal that follows is caught.
fn running_with_trap(env: &TestEnv, options: &[&str], trap: &str, then: &str) -> (Running, u32) {
    let ready = env.path("ready");
    let _ = fs::remove_file(&ready);
    let script = format!("{trap}; echo $$ > {}; {then}", ready.display());
    let mut args = vec!["run"];
    args.extend(options);
    args.extend(["x", "--", "sh", "-c", &script]);
    let running = env.start_with_output(args);
    let pid = number_in(&ready);
    running.wait_until_recorded();
    (running, pid)
}

fn wrapper_is_gone(env: &TestEnv) {
    wait_until("the wrapper counts as dead", || {
        env.lock("x")["wrapper_alive"] == false
    });
}

/// A shell prints the states of its siblings and of itself. ps(1) may be missing.
const STATES_OF_SIBLINGS: &str =
    "grep -h ^State: $(grep -ls \"^PPid:.$PPID\\$\" /proc/[0-9]*/status)";
