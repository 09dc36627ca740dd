//! A foreign program, which knows only the name of a lock file, acts while a verb is stopped before
//! one of its calls.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::faults::{Ended, Fault, Role, Then, trace, trace_and};
use crate::harness::{dead_pid, for_all, foreign};
use crate::sandbox::Sandbox;

const RENAMEAT2: u64 = 316;

/// An action of the foreign program. It may be based on what the program read much earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Nothing,
    /// Renames a file of its own over the lock file.
    Replace,
    /// Removes the lock file.
    Remove,
    /// Creates the lock file exclusively.
    Create,
    /// Removes the lock file and creates it again.
    Recreate,
    /// Nothing, but the verb is killed and then invoked again.
    Kill,
    /// The same, and another foreign program removes the record of the killed verb.
    KillAndRemove,
}

use Action::{Create, Kill, KillAndRemove, Nothing, Recreate, Remove, Replace};

/// The actions of a trial, each with the number of the call before which it happens.
type Plan = [(usize, Action); 3];

/// Pairs of actions around an exchange of files.
const PAIRS: [[Action; 2]; 7] = [
    [Replace, Kill],
    [Replace, KillAndRemove],
    [Replace, Remove],
    [Replace, Replace],
    [Remove, Create],
    [Remove, Replace],
    [Replace, Nothing],
];

const NEVER: (usize, Action) = (usize::MAX, Nothing);

fn as_words(text: &str) -> Vec<&str> {
    text.split(' ').collect()
}

struct Scenario {
    name: &'static str,
    file: &'static str,
    /// The record of the foreign program for a pid.
    text: fn(u32) -> String,
    /// How the lock is taken before the trial; empty: it is a zombie of the foreign program.
    prepare: &'static str,
    verb: &'static str,
    /// An invocation that takes the lock.
    takes: &'static str,
}

const RUN_PRODIGY: &str = "--profile prodigy run x -- true";

const PRODIGY: Scenario = Scenario {
    name: "run with the prodigy profile",
    file: ".prodigy/resume_locks/x.lock",
    text: |pid| foreign::prodigy("x", pid),
    prepare: "",
    verb: RUN_PRODIGY,
    takes: RUN_PRODIGY,
};

const RUN_SPRINT: &str = "--profile sprint run --owner s -m e --on-zombie take -- true";

const SPRINT: Scenario = Scenario {
    name: "run with the sprint profile",
    file: ".sprint-running",
    text: foreign::sprint,
    prepare: "",
    verb: RUN_SPRINT,
    takes: RUN_SPRINT,
};

const RUN_MEMORY: &str = "--profile memory run -n --owner s -- true";

const MEMORY: Scenario = Scenario {
    name: "run with the memory profile",
    file: "memory/.lock",
    text: foreign::memory,
    prepare: "",
    verb: RUN_MEMORY,
    takes: RUN_MEMORY,
};

const SCENARIOS: [Scenario; 9] = [
    PRODIGY,
    SPRINT,
    MEMORY,
    Scenario {
        name: "acquire with the memory profile",
        verb: "--profile memory acquire -n --owner s",
        ..MEMORY
    },
    Scenario {
        name: "release with the memory profile",
        prepare: "--profile memory acquire -n --owner s",
        verb: "--profile memory release --owner s",
        ..MEMORY
    },
    Scenario {
        name: "renew with the memory profile",
        prepare: "--profile memory acquire -n --owner s",
        verb: "--profile memory renew --owner s",
        ..MEMORY
    },
    Scenario {
        name: "break with the memory profile",
        prepare: "--profile memory acquire -n --owner s",
        verb: "--profile memory break --yes",
        ..MEMORY
    },
    Scenario {
        name: "cleanup with the prodigy profile",
        verb: "--profile prodigy cleanup",
        ..PRODIGY
    },
    Scenario {
        name: "check with the sprint profile",
        verb: "--profile sprint check",
        ..SPRINT
    },
];

/// The foreign program in a trial.
struct Foreign<'a> {
    file: PathBuf,
    text: &'a str,
    holds: bool,
    /// Number of its actions.
    actions: u32,
}

impl Foreign<'_> {
    fn perform(&mut self, action: Action) -> Then {
        self.actions += 1;
        // Each of its files differs from the others.
        let text = format!("{}{}", self.text, "\n".repeat(self.actions as usize));
        match action {
            Nothing => {}
            Kill => return Then::Kill,
            KillAndRemove => {
                let is_foreign = fs::read_to_string(&self.file)
                    .is_ok_and(|text| text.starts_with(self.text) || !text.contains("onehold"));
                if !is_foreign {
                    let _ = fs::remove_file(&self.file);
                }
                return Then::Kill;
            }
            Remove => {
                let _ = fs::remove_file(&self.file);
                self.holds = false;
            }
            Recreate => {
                self.perform(Remove);
                self.perform(Create);
            }
            Replace => {
                let own = self.file.with_file_name("foreign.tmp");
                fs::write(&own, text).unwrap();
                fs::rename(own, &self.file).unwrap();
                self.holds = true;
            }
            Create => {
                if let Ok(mut file) = fs::File::create_new(&self.file) {
                    std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
                    self.holds = true;
                }
            }
        }
        Then::Continue
    }

    /// Checks the result of a verb. `exclusive`: the verb takes the lock, and the foreign program did
    /// nothing afterwards. `preserves`: the verb must not remove the lock of a live holder.
    fn check(&self, ended: &Ended, exclusive: bool, preserves: bool) -> Result<(), String> {
        let result = format!("{:?}: {}", ended.code, ended.stderr.trim());
        // Done, not held, not the owner, zombie, refused, lost; or lost before the command began.
        let lost_early = matches!(ended.code, Some(1 | 125))
            && !ended.executed
            && ended.stderr.contains("lost the lock while acquiring it");
        if !matches!(ended.code, Some(0 | 3..=6 | 8)) && !lost_early {
            return Err(result);
        }
        let content = fs::read_to_string(&self.file).ok();
        let is_its_file = content
            .as_ref()
            .is_some_and(|text| text.starts_with(self.text));
        if preserves && self.holds && !is_its_file {
            return Err(format!(
                "the foreign program holds, the file is {content:?}: {result}"
            ));
        }
        if exclusive && self.holds && ended.code == Some(0) {
            return Err("both hold the lock".to_owned());
        }
        if ended.code == Some(6) && is_its_file != self.holds {
            return Err(format!(
                "the foreign program holds: {}, the file is {content:?}: {result}",
                self.holds
            ));
        }
        Ok(())
    }
}

impl Scenario {
    fn sandbox(&self) -> Sandbox {
        let mut sandbox = Sandbox::new(self.name.len());
        let file = sandbox.path(self.file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        if self.prepare.is_empty() {
            fs::write(file, (self.text)(dead_pid())).unwrap();
        } else {
            sandbox.prepare(&as_words(self.prepare));
        }
        sandbox
    }

    fn verb(&self, sandbox: &Sandbox) -> std::process::Command {
        sandbox.command(&as_words(self.verb))
    }

    fn takes_it(&self) -> bool {
        self.verb == self.takes || self.verb.contains(" acquire ")
    }

    fn calls(&self) -> Vec<u64> {
        let sandbox = self.sandbox();
        let mut ended = trace(self.verb(&sandbox), Fault::Nothing);
        assert!(
            matches!(ended.code, Some(0 | 5)),
            "{}: {ended:?}",
            self.name
        );
        ended.calls.remove(&Role::Program).unwrap()
    }

    fn trial(&self, plan: &Plan) -> Result<(), String> {
        let mut sandbox = self.sandbox();
        let text = (self.text)(sandbox.holder.pid());
        let mut program = Foreign {
            file: sandbox.path(self.file),
            text: &text,
            holds: false,
            actions: 0,
        };
        let mut actions = plan.iter().peekable();
        let calls = plan.map(|(at, _)| at);
        let mut ended = trace_and(self.verb(&sandbox), Fault::Interleave(calls), || {
            let mut then = Then::Continue;
            while let Some((at, action)) = actions.next() {
                then = program.perform(*action);
                if actions.peek().is_none_or(|(next, _)| next != at) {
                    break;
                }
            }
            then
        });
        let killed = ended.signal.is_some();
        if killed {
            // The next one that takes the lock recovers from the kill, unless the verb itself does.
            let next = [self.takes, self.verb][usize::from(self.takes_it())];
            ended = trace(sandbox.command(&as_words(next)), Fault::Nothing);
        }
        let [_, (_, second), _] = plan;
        let exclusive = *second != Nothing && (self.takes_it() || killed);
        let preserves = !self.takes_it() && !self.verb.contains(" break ");
        let checked = program.check(&ended, exclusive, preserves).and_then(|()| {
            let directory = program.file.with_file_name("");
            if killed || !left_in(&directory).is_empty() {
                // Files that are left must not block the lock once the foreign program has ended, and
                // `cleanup` removes them. Until then they all name a live process.
                program.perform(Remove);
                sandbox.holder.kill();
                let taken = sandbox.invoke(&as_words(self.takes)).0;
                let in_it = directory.to_string_lossy();
                let cleaned = sandbox.invoke(&["--dir", &in_it, "cleanup"]).0;
                if taken != 0 || cleaned != 0 {
                    return Err(format!(
                        "afterwards: run exits with {taken}, cleanup with {cleaned}"
                    ));
                }
            }
            match left_in(&directory) {
                left if left.is_empty() => Ok(()),
                left => Err(format!("left: {left:?}: {}", ended.stderr)),
            }
        });
        checked.map_err(|why| {
            let root = sandbox.path("").display().to_string();
            let why = why.replace(&root, "");
            format!("{}: {plan:?}: {why}", self.name)
        })
    }
}

/// Temporary files and files that were moved aside.
fn left_in(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap();
    entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.file_name()
                .unwrap()
                .to_string_lossy()
                .starts_with(".onehold.")
        })
        .collect()
}

/// The PID that a foreign program reads in a lock file.
fn pid_in(text: &str) -> Option<i32> {
    let (_, rest) = ["process_id", "pid"]
        .iter()
        .find_map(|key| text.split_once(key))?;
    let digits = rest.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit())?;
    digits.get(..end)?.parse().ok()
}

/// A foreign program removes a file whose PID does not exist, so that PID must exist for as long as the
/// file does: also between the end of the command and the removal.
#[test]
fn pid_on_record_exists_for_as_long_as_the_lock_file_of_a_run() {
    let native = Scenario {
        name: "run",
        file: "store/x.lock",
        verb: "run x -- true",
        ..PRODIGY
    };
    for scenario in [native, PRODIGY, SPRINT, MEMORY] {
        let sandbox = Sandbox::alone();
        let file = sandbox.path(scenario.file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let (mut seen, mut call, mut gone) = (0, 0, Vec::new());
        let ended = trace_and(scenario.verb(&sandbox), Fault::Watch, || {
            call += 1;
            let pid = fs::read_to_string(&file)
                .ok()
                .and_then(|text| pid_in(&text));
            if let Some(pid) = pid {
                seen += 1;
                if kill(Pid::from_raw(pid), None).is_err() {
                    gone.push((call, pid));
                }
            }
            Then::Continue
        });
        assert_eq!(ended.code, Some(0), "{}: {ended:?}", scenario.name);
        // From the commit on, past the start of the command.
        assert!(seen > 5, "{}: {seen} records", scenario.name);
        assert!(gone.is_empty(), "{}: {gone:?}", scenario.name);
    }
}

fn sweep(step: usize) {
    let mut points = Vec::new();
    for scenario in &SCENARIOS {
        let calls = scenario.calls();
        for at in 0..calls.len() {
            points.extend([Replace, Remove].map(|act| (scenario, [(at, act), NEVER, NEVER])));
        }
        // Of verbs that take the lock only the first: after it they are holders.
        let exchanges = calls
            .iter()
            .enumerate()
            .filter(|(_, call)| **call == RENAMEAT2)
            .take(if scenario.takes_it() { 1 } else { usize::MAX });
        for (exchange, _) in exchanges {
            for first in exchange.saturating_sub(3)..=exchange + 1 {
                for second in first..exchange + 12 {
                    points
                        .extend(PAIRS.map(|[one, other]| {
                            (scenario, [(first, one), (second, other), NEVER])
                        }));
                }
            }
            for second in exchange + 1..exchange + 12 {
                for third in second..second + 6 {
                    let plan = [(exchange, Replace), (second, Recreate), (third, Kill)];
                    points.push((scenario, plan));
                }
            }
        }
    }
    let points: Vec<_> = points.into_iter().step_by(step).collect();
    let failures = for_all(&points, |(scenario, plan)| scenario.trial(plan));
    println!("{} plans, {} failed", points.len(), failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(points.len() * step > 2000, "{} plans", points.len());
}

#[test]
fn foreign_program_keeps_its_lock_when_it_acts_at_a_part_of_the_calls() {
    sweep(13);
}

#[test]
#[ignore = "takes minutes"]
fn foreign_program_keeps_its_lock_when_it_acts_at_every_fourth_call() {
    sweep(4);
}
