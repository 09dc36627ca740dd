//! Cancels a wait before each call of its main thread, while the lock is handed over: whichever thread goes on first,
//! nothing is held after that, no command runs to its end, and one outcome is printed.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::faults::{Ended, Fault, First, Then, trace_and};
use crate::harness::innocents::Innocents;
use crate::harness::{self, Running, TestEnv, for_all};

struct Wait {
    words: &'static [&'static str],
    signals: &'static [Signal],
    /// Exit codes without a signal. If the signal comes too late, it ends within [`LAST_CALLS`].
    codes: &'static [i32],
}

/// It runs for longer than its end needs to be seen.
const COMMAND: &str = "sleep 0.5; touch ended";
const COMMAND_ENDS_WITHIN: Duration = Duration::from_millis(150);

#[rustfmt::skip]
const WAITS: [Wait; 8] = [
    // Too late, its number is printed.
    Wait { words: &["acquire", "--json", "--wait", "20s", "x", "--ttl", "1h"], signals: &[Signal::SIGINT], codes: &[0] },
    Wait { words: &["run", "--json", "--wait", "20s", "x", "--", "sh", "-c", COMMAND], signals: &[Signal::SIGTERM], codes: &[] },
    // Without a thread for signals.
    Wait { words: &["run", "--wait", "20s", "x", "--", "sh", "-c", COMMAND], signals: &[Signal::SIGINT], codes: &[] },
    Wait { words: &["run", "--json", "--wait", "20s", "--exec", "x", "--", "sh", "-c", COMMAND], signals: &[Signal::SIGTERM], codes: &[] },
    // It has ended by TERM already.
    Wait { words: &["hold", "--wait", "20s", "x"], signals: &[Signal::SIGINT], codes: &[0] },
    Wait { words: &["run", "--json", "--wait", "20s", "x", "--", "sh", "-c", COMMAND], signals: &[Signal::SIGTERM, Signal::SIGHUP], codes: &[] },
    // By the end of a process. It may be noticed while the command runs.
    Wait { words: &["run", "--json", "--wait", "20s", "--die-with", "CALLER", "x", "--", "sh", "-c", COMMAND], signals: &[], codes: &[CALLER_EXITED] },
    // It ends beside the limit.
    Wait { words: &["run", "--json", "--wait", "100ms", "x", "--", "sh", "-c", COMMAND], signals: &[Signal::SIGTERM], codes: &[TIMED_OUT] },
];

/// From where on a signal changes nothing: the outcome is printed, and the program exits.
const LAST_CALLS: usize = 45;

const CALLER_EXITED: i32 = 125;
const TIMED_OUT: i32 = 7;

impl Wait {
    fn verb(&self) -> &'static str {
        self.words[0]
    }

    fn is_exec(&self) -> bool {
        self.words.contains(&"--exec")
    }

    /// Plays it: its lock is released once it waits.
    fn play(&self, at: usize, first: First) -> (TestEnv, Innocents, Ended) {
        let env = TestEnv::on_disk();
        let innocents = Innocents::some(&env, self.words.len());
        env.done(["acquire", "x", "--ttl", "1h", "--owner", "first"]);
        let mut caller = Running::sleeper();
        let pid = caller.pid().to_string();
        let words = self.words.iter();
        let words = words.map(|word| if *word == "CALLER" { &pid } else { *word });
        let command = env.onehold(words);
        let (is_over, is_released) = (AtomicBool::new(false), AtomicBool::new(false));
        let ended = std::thread::scope(|scope| {
            scope.spawn(|| self.hand_over(&env, &is_over, &is_released));
            let ended = trace_and(command, Fault::Cancel(at, first, self.signals), || {
                if self.signals.is_empty() {
                    caller.kill();
                }
                Then::Continue
            });
            is_over.store(true, Ordering::Relaxed);
            ended
        });
        // It may have been canceled before it waited.
        if !is_released.into_inner() {
            env.done(["release", "x", "--owner", "first"]);
        }
        (env, innocents, ended)
    }

    fn hand_over(&self, env: &TestEnv, is_over: &AtomicBool, is_released: &AtomicBool) {
        let until = |condition: &dyn Fn() -> bool| {
            let began = Instant::now();
            while !condition() && began.elapsed() < harness::TIMEOUT {
                if is_over.load(Ordering::Relaxed) {
                    return false;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            true
        };
        let waits = || env.path("store/.onehold/waiting/x.lock").exists();
        if self.codes.contains(&TIMED_OUT) || !until(&waits) {
            return;
        }
        env.done(["release", "x", "--owner", "first"]);
        is_released.store(true, Ordering::Relaxed);
        if self.verb() != "hold" {
            return;
        }
        // It ends if it was not canceled.
        let began = Instant::now();
        if until(&|| began.elapsed() > Duration::from_millis(500))
            && let Some(pid) = env.lock("x")["pid"].as_u64()
        {
            harness::send(u32::try_from(pid).unwrap(), harness::Signal::TERM);
        }
    }

    /// How many calls it makes until its command runs, or until it ends.
    fn calls(&self) -> usize {
        let (_, _, ended) = self.play(usize::MAX, First::Main);
        ended.main_calls_before_command.unwrap_or(ended.main_calls)
    }

    /// Whether it ended as the signal says.
    fn ends_rightly(&self, ended: &Ended, calls_after: usize) -> bool {
        let signals = match self.signals {
            [] => &[Signal::SIGTERM],
            signals => signals,
        };
        match (ended.code, ended.signal) {
            (_, Some(signal)) => signals.contains(&signal),
            (Some(code), None) => {
                // That of a command which the signal has ended.
                signals.iter().any(|signal| code == 128 + *signal as i32)
                    || (self.codes.contains(&code) && calls_after <= LAST_CALLS)
                    || code == CALLER_EXITED
            }
            // The command, in its place.
            (None, None) => self.is_exec(),
        }
    }

    fn check(&self, env: &TestEnv, ended: &Ended, calls_after: usize) -> Result<(), String> {
        if !self.ends_rightly(ended, calls_after) {
            return Err(format!("it ends otherwise, after {calls_after} calls"));
        }
        let lines = ended.stdout.lines().chain(ended.stderr.lines());
        let is_outcome =
            |line: &&str| line.starts_with('{') || line.starts_with("onehold: canceled");
        let outcomes = lines.filter(is_outcome).count();
        // The thread of the handler reports, if there is one.
        let is_reported = ended.had_threads && self.words.contains(&"--json");
        let fewest = usize::from(is_reported && !self.is_exec());
        if !(fewest..=1).contains(&outcomes) || ended.stderr.contains("panicked") {
            return Err(format!("{outcomes} outcomes"));
        }
        if ended.code == Some(0) && self.verb() == "acquire" {
            let hold = harness::json_object(ended.stdout.as_bytes())["hold"].to_string();
            env.done(["release", "x", "--hold", &hold]);
        }
        let mut left = env.left_in_store();
        left.retain(|name| name.ends_with(".lock"));
        // Once the signals have their default action, one ends the process that is to execute the command.
        let is_ended_before_exec = self.is_exec() && outcomes == 0;
        let is_free = left.is_empty() || (is_ended_before_exec && env.check("x") == 0);
        if !is_free {
            return Err(format!("left: {left:?}, {}", env.lock("x")));
        }
        let queues = env.left_in_queues();
        if env.code(["acquire", "x", "--ttl", "1h"]) != 0 {
            return Err(format!("it cannot be taken: {queues:?}, {}", env.lock("x")));
        }
        if ended.executed {
            std::thread::sleep(COMMAND_ENDS_WITHIN);
        }
        if env.path("ended").exists() {
            return Err("its command ran to its end".to_owned());
        }
        Ok(())
    }
}

fn sweep(step: usize) {
    let mut points = Vec::new();
    for (number, wait) in WAITS.iter().enumerate() {
        let calls = wait.calls();
        println!("{:?}: {calls} calls", wait.words);
        for at in (0..calls).filter(|at| (at + number).is_multiple_of(step)) {
            for first in [First::Main, First::Others] {
                points.push((wait, at, first));
            }
        }
    }
    let ends = Mutex::new(BTreeMap::<_, usize>::new());
    let canceled = AtomicUsize::new(0);
    let failures = for_all(&points, |(wait, at, first)| {
        let (env, mut innocents, ended) = wait.play(*at, *first);
        // How often it looks varies, and with it how many calls it makes: the signal may have come too late.
        let is_too_late = ended
            .main_calls_before_command
            .is_some_and(|calls| *at >= calls);
        if !ended.is_canceled || is_too_late {
            return Ok(());
        }
        canceled.fetch_add(1, Ordering::Relaxed);
        let end = (
            wait.words,
            ended.code,
            ended.signal.map(|signal| signal as i32),
        );
        *ends.lock().unwrap().entry(end).or_default() += 1;
        let harmed = innocents.end(&env);
        let checked = if harmed.is_empty() {
            wait.check(&env, &ended, ended.main_calls - at)
        } else {
            Err(harmed.join(", "))
        };
        checked.map_err(|why| {
            format!(
                "{:?} canceled before call {at}, {first:?} first: {why}; {:?} {:?} {} {}",
                wait.words, ended.code, ended.signal, ended.stdout, ended.stderr
            )
        })
    });
    for (end, count) in ends.into_inner().unwrap() {
        println!("{count:5} {end:?}");
    }
    let canceled = canceled.into_inner();
    println!("{canceled} points, {} failed", failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(canceled > 100 && canceled > points.len() * 3 / 4);
}

#[test]
fn wait_that_is_canceled_before_a_part_of_its_calls_leaves_nothing_and_starts_nothing() {
    sweep(17);
}

#[test]
#[ignore = "takes minutes"]
fn wait_that_is_canceled_before_any_of_its_calls_leaves_nothing_and_starts_nothing() {
    sweep(1);
}
