//! Kills the wrapper, or whoever breaks its hold, before each call that it makes while the work is being
//! ended. Whatever verb comes next gets it right: the lock stays held as long as anything of the work
//! runs, and no longer.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::faults::{Ended, Fault, LOOKS, Role, Then, trace, trace_and};
use crate::harness::{Running, for_all, wait_until};
use crate::sandbox::Sandbox;

/// A tree of processes that are all listed in `work`, some of which take their time.
const WORK: &str = "note() { echo $BASHPID >> work; }; export -f note; note; \
    trap 'sleep 0.05; exit 0' TERM; \
    (setsid bash -c 'note; exec sleep 1000' &); \
    bash -c 'trap \"\" TERM; note; exec sleep 1000' & while :; do sleep 0.01; done";
const LISTED: usize = 3;

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    /// The wrapper, after TERM.
    Wrapper,
    /// The wrapper, after a break.
    BrokenWrapper,
    /// The wrapper, after the end of the process that it ends with.
    LeftWrapper,
    /// The breaker of a hold with a wrapper.
    Breaker,
    /// The breaker of a hold whose wrapper is dead.
    BreakerOfOrphans,
    /// The breaker of a `run --exec`.
    BreakerOfExec,
}

const VICTIMS: [Victim; 6] = [
    Victim::Wrapper,
    Victim::BrokenWrapper,
    Victim::LeftWrapper,
    Victim::Breaker,
    Victim::BreakerOfOrphans,
    Victim::BreakerOfExec,
];

/// The verb that comes next.
const NEXT: [&[&str]; 6] = [
    &["run", "x", "--", "true"],
    &["check", "x"],
    &["cleanup"],
    &["list"],
    &["release", "x"],
    &["break", "x", "--yes"],
];

impl Victim {
    fn is_wrapper(self) -> bool {
        matches!(
            self,
            Self::Wrapper | Self::BrokenWrapper | Self::LeftWrapper
        )
    }

    fn options(self) -> &'static [&'static str] {
        match self {
            Self::BreakerOfExec => &["--exec"],
            _ => &[],
        }
    }

    /// Plays it, with a fault in the process that it is about.
    fn play(self, fault: Fault) -> (Sandbox, Ended) {
        let sandbox = Sandbox::new(self as usize);
        let mut run = vec!["run", "--kill-after", "300ms"];
        run.extend(self.options());
        let caller = sandbox.holder.pid().to_string();
        if self == Self::LeftWrapper {
            run.extend(["--die-with", &caller]);
        }
        run.extend(["x", "--", "bash", "-c", WORK]);
        let is_listed = || lines(&sandbox) >= LISTED;
        if self.is_wrapper() {
            let is_over = AtomicBool::new(false);
            let ended = std::thread::scope(|scope| {
                scope.spawn(|| {
                    // A kill can prevent it.
                    wait_until("the work is listed, or the wrapper has ended", || {
                        is_listed() || is_over.load(Ordering::Relaxed)
                    });
                    if !is_listed() {
                        return;
                    }
                    if self == Self::BrokenWrapper {
                        let _ = sandbox.invoke(&["break", "x", "--yes"]);
                    } else if self == Self::LeftWrapper {
                        let _ = kill(pid(&caller), Signal::SIGKILL);
                    } else if let Some(wrapper) =
                        sandbox.lock(&["check", "x"])["wrapper_pid"].as_i64()
                    {
                        let _ = kill(pid(&wrapper.to_string()), Signal::SIGTERM);
                    }
                });
                let ended = trace(sandbox.command(&run), fault);
                is_over.store(true, Ordering::Relaxed);
                ended
            });
            return (sandbox, ended);
        }
        let mut run = Running::start(sandbox.command(&run));
        wait_until("the work is listed", is_listed);
        if self == Self::BreakerOfOrphans {
            run.kill();
        }
        let ended = trace(sandbox.command(&["break", "x", "--yes"]), fault);
        // A wrapper that was told ends on its own.
        sandbox.keep(run);
        (sandbox, ended)
    }

    /// The calls before which it is killed: of those that only look, every `step`-th.
    fn points(self, step: usize) -> Vec<usize> {
        let (_sandbox, ended) = self.play(Fault::Nothing);
        println!(
            "{self:?}: {} calls, code {:?}",
            ended.count(Role::Program),
            ended.code
        );
        let calls = ended.calls.get(&Role::Program).cloned().unwrap_or_default();
        // What comes before is not about the ending: the command is started by vfork.
        let first = match calls.iter().rposition(|call| *call == CLONE) {
            Some(at) if self.is_wrapper() => at,
            _ => 0,
        };
        let is_due = |(at, call): &(usize, u64)| {
            *at >= first && (!LOOKS.contains(call) || at.is_multiple_of(step))
        };
        calls
            .into_iter()
            .enumerate()
            .filter(is_due)
            .map(|(at, _)| at)
            .collect()
    }
}

const CLONE: u64 = 56;

fn lines(sandbox: &Sandbox) -> usize {
    fs::read_to_string(sandbox.path("work")).map_or(0, |text| text.lines().count())
}

fn pid(text: &str) -> Pid {
    Pid::from_raw(text.parse().unwrap())
}

/// What runs of the work: the sleepers and their shells.
fn running(sandbox: &Sandbox) -> Vec<String> {
    let home = format!("HOME={}", sandbox.path("").display());
    let home = home.trim_end_matches('/');
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        let has = |text: &str| {
            environment
                .split(|byte| *byte == 0)
                .any(|entry| entry == text.as_bytes())
        };
        let is_inside = environment
            .split(|byte| *byte == 0)
            .any(|entry| entry == b"ONEHOLD_NAME=x");
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let is_dead = stat
            .rsplit_once(") ")
            .is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']));
        if has(home) && is_inside && !is_dead {
            found.push(stat.split(" S ").next().unwrap().to_owned());
        }
    }
    found
}

/// Lets other verbs come, until the lock can be taken: then nothing of the work runs.
fn next_ones_get_it_right(sandbox: &Sandbox, first: &[&str]) -> Result<(), String> {
    let started = Instant::now();
    let (code, _) = sandbox.invoke(first);
    if first[0] == "break" && code == 0 && !running(sandbox).is_empty() {
        return Err(format!("left after break: {:?}", running(sandbox)));
    }
    loop {
        let before = running(sandbox);
        let (code, _) = sandbox.invoke(&["acquire", "x", "--ttl", "1h"]);
        let after = running(sandbox);
        match code {
            0 if after.is_empty() => return Ok(()),
            0 => return Err(format!("taken beside {after:?}, before {before:?}")),
            6 => {
                let lock = sandbox.lock(&["check", "x"]);
                // It was killed before it had said that it ends the work.
                if lock["state"] == "held" && lock["reason"] != "ending" {
                    let (code, _) = sandbox.invoke(&["break", "x", "--yes"]);
                    if !matches!(code, 0 | 3 | 4) {
                        return Err(format!("break exits with {code}: {lock}"));
                    }
                }
            }
            _ => return Err(format!("acquire exits with {code}")),
        }
        if started.elapsed() > Duration::from_secs(20) {
            return Err(format!("stuck: {}", sandbox.lock(&["check", "x"])));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn sweep(step: usize, share: usize) {
    let mut points = Vec::new();
    for victim in VICTIMS {
        for at in victim.points(step) {
            if (at + points.len()).is_multiple_of(share) || share == 1 {
                points.push((victim, at, NEXT[points.len() % NEXT.len()]));
            }
        }
    }
    let failures = for_all(&points, |(victim, at, next)| {
        let (mut sandbox, ended) = victim.play(Fault::Kill(Role::Program, *at));
        let result =
            next_ones_get_it_right(&sandbox, next).and_then(|()| sandbox.check_innocents());
        for line in fs::read_to_string(sandbox.path("work"))
            .unwrap_or_default()
            .lines()
        {
            let is_ours = running(&sandbox)
                .iter()
                .any(|found| found.starts_with(&format!("{line} ")));
            if is_ours {
                let _ = kill(pid(line), Signal::SIGKILL);
            }
        }
        result.map_err(|why| {
            let calls = ended.calls.get(&Role::Program).cloned().unwrap_or_default();
            format!(
                "{victim:?} killed before call {at} ({:?}), then {next:?}: {why}",
                calls.last()
            )
        })
    });
    println!("{} kill points, {} failed", points.len(), failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(points.len() > 20, "{} kill points", points.len());
}

#[test]
fn ending_of_the_work_survives_kills_before_a_part_of_the_calls() {
    sweep(499, 9);
}

#[test]
#[ignore = "takes minutes"]
fn ending_of_the_work_survives_kills_before_each_call_that_changes_something() {
    sweep(199, 1);
}

/// Before the first signal the record says that the work is being ended.
#[test]
fn record_says_that_the_work_is_being_ended_before_the_first_signal() {
    let sandbox = Sandbox::alone();
    let mut run = Running::start(sandbox.command(&["run", "x", "--", "bash", "-c", WORK]));
    wait_until("the work is listed", || lines(&sandbox) >= LISTED);
    run.kill();
    let listed = fs::read_to_string(sandbox.path("work")).unwrap();
    let all_run = || {
        let found = running(&sandbox);
        listed
            .lines()
            .all(|pid| found.iter().any(|one| one.starts_with(&format!("{pid} "))))
    };
    let (mut before, mut too_late) = (0, 0);
    trace_and(
        sandbox.command(&["break", "x", "--yes"]),
        Fault::Watch,
        || {
            let record = fs::read_to_string(sandbox.path("store/x.lock")).unwrap_or_default();
            if !record.contains("\"ending\":") {
                before += 1;
                too_late += usize::from(!all_run() && !record.is_empty());
            }
            Then::Continue
        },
    );
    assert!(before > 20, "{before} calls before");
    assert_eq!(too_late, 0, "of {before} calls");
}
