//! An old program, which knows a lock by its name alone, acts while a verb stands before its calls.

use std::fs;
use std::path::{Path, PathBuf};

use crate::for_all;
use crate::room::Room;
use crate::tracer::{Deed, Ended, Role, Then, trace, trace_and};

const RENAMEAT2: u64 = 316;

/// What an old program does at a moment of its own; what it looked at before is another matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Nothing,
    /// Renames a file of its own over what is there.
    Replace,
    /// Removes what is there.
    Remove,
    /// Creates exclusively.
    Create,
    /// Gives back, and takes again.
    Again,
    /// Nothing, but the verb is killed, and called again.
    Kill,
    /// The same, and another old program removes the dead record.
    KillAndClear,
}

use Act::{Again, Create, Kill, KillAndClear, Nothing, Remove, Replace};

/// What happens in a trial, and before which of the verb's calls.
type Plan = [(usize, Act); 3];

/// Pairs around an exchange.
const PAIRS: [[Act; 2]; 7] = [
    [Replace, Kill],
    [Replace, KillAndClear],
    [Replace, Remove],
    [Replace, Replace],
    [Remove, Create],
    [Remove, Replace],
    [Replace, Nothing],
];

const NEVER: (usize, Act) = (usize::MAX, Nothing);

fn as_words(text: &str) -> Vec<&str> {
    text.split(' ').collect()
}

struct Scene {
    name: &'static str,
    file: &'static str,
    /// The old program's text for this process.
    text: fn(&str) -> String,
    /// What stands there beforehand, if not a dead one of the old program's.
    prepare: &'static str,
    verb: &'static str,
    /// How the lock is taken.
    takes: &'static str,
}

fn prodigy(pid: &str) -> String {
    let host = hostname::get().unwrap().into_string().unwrap();
    let now = chrono::Utc::now().to_rfc3339();
    format!(
        "{{\"job_id\": \"x\", \"process_id\": {pid}, \"hostname\": \"{host}\", \"acquired_at\": \"{now}\"}}"
    )
}

fn sprint(pid: &str) -> String {
    let now = chrono::Utc::now().to_rfc3339();
    format!(
        "pid: {pid}\nsession_id: \"old\"\nstarted_at: \"{now}\"\nepic_spec: \"e\"\nlock_version: 1\n"
    )
}

fn memory(pid: &str) -> String {
    let host = hostname::get().unwrap().into_string().unwrap();
    let now = chrono::Utc::now().format("%Y-%m-%dT%H:%M:%S%.6f+00:00");
    format!(
        "{{\"pid\": {pid}, \"session_id\": \"old\", \"acquired_at\": \"{now}\", \"hostname\": \"{host}\", \"operation\": \"write\"}}"
    )
}

const RUN_PRODIGY: &str = "--profile prodigy run x -- true";

const PRODIGY: Scene = Scene {
    name: "run in prodigy's place",
    file: ".prodigy/resume_locks/x.lock",
    text: prodigy,
    prepare: "",
    verb: RUN_PRODIGY,
    takes: RUN_PRODIGY,
};

const RUN_SPRINT: &str = "--profile sprint run --owner s -m e --on-zombie take -- true";

const SPRINT: Scene = Scene {
    name: "run in the sprint mutex's place",
    file: ".sprint-running",
    text: sprint,
    prepare: "",
    verb: RUN_SPRINT,
    takes: RUN_SPRINT,
};

const RUN_MEMORY: &str = "--profile memory run -n --owner s -- true";

const MEMORY: Scene = Scene {
    name: "run in the memory lock's place",
    file: "memory/.lock",
    text: memory,
    prepare: "",
    verb: RUN_MEMORY,
    takes: RUN_MEMORY,
};

const SCENES: [Scene; 9] = [
    PRODIGY,
    SPRINT,
    MEMORY,
    Scene {
        name: "acquire in the memory lock's place",
        verb: "--profile memory acquire -n --owner s",
        ..MEMORY
    },
    Scene {
        name: "release in the memory lock's place",
        prepare: "--profile memory acquire -n --owner s",
        verb: "--profile memory release --owner s",
        ..MEMORY
    },
    Scene {
        name: "renew in the memory lock's place",
        prepare: "--profile memory acquire -n --owner s",
        verb: "--profile memory renew --owner s",
        ..MEMORY
    },
    Scene {
        name: "break in the memory lock's place",
        prepare: "--profile memory acquire -n --owner s",
        verb: "--profile memory break --yes",
        ..MEMORY
    },
    Scene {
        name: "cleanup in prodigy's place",
        verb: "--profile prodigy cleanup",
        ..PRODIGY
    },
    Scene {
        name: "check in the sprint mutex's place",
        verb: "--profile sprint check",
        ..SPRINT
    },
];

/// The old program's side of a trial.
struct Old<'a> {
    file: PathBuf,
    text: &'a str,
    holds: bool,
    made: u32,
}

impl Old<'_> {
    fn act(&mut self, act: Act) -> Then {
        self.made += 1;
        // Each of its files reads as its own.
        let text = format!("{}{}", self.text, "\n".repeat(self.made as usize));
        match act {
            Nothing => {}
            Kill => return Then::IsKilled,
            KillAndClear => {
                let ours = fs::read_to_string(&self.file)
                    .is_ok_and(|text| text.starts_with(self.text) || !text.contains("onehold"));
                if !ours {
                    let _ = fs::remove_file(&self.file);
                }
                return Then::IsKilled;
            }
            Remove => {
                let _ = fs::remove_file(&self.file);
                self.holds = false;
            }
            Again => {
                self.act(Remove);
                self.act(Create);
            }
            Replace => {
                let own = self.file.with_file_name("old.tmp");
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
        Then::GoesOn
    }

    /// After the verb has ended.
    /// `alone`: whether it was to take the lock, and nothing happened after it had. `leaves`: whether
    /// it is not to take anything from anybody.
    fn judge(&self, ended: &Ended, alone: bool, leaves: bool) -> Result<(), String> {
        let told = format!("{:?}: {}", ended.code, ended.stderr.trim());
        // Done, nothing there, not the owner's, dead, refused, lost; or lost before it began.
        let lost_at_once = matches!(ended.code, Some(1 | 125))
            && !ended.executed
            && ended.stderr.contains("while it was being set up");
        if !matches!(ended.code, Some(0 | 3..=6 | 8)) && !lost_at_once {
            return Err(told);
        }
        let stands = fs::read_to_string(&self.file).ok();
        let olds = stands
            .as_ref()
            .is_some_and(|text| text.starts_with(self.text));
        if leaves && self.holds && !olds {
            return Err(format!("it holds, there is {stands:?}: {told}"));
        }
        if alone && self.holds && ended.code == Some(0) {
            return Err("two hold".to_owned());
        }
        if ended.code == Some(6) && olds != self.holds {
            return Err(format!(
                "it holds: {}, there is {stands:?}: {told}",
                self.holds
            ));
        }
        Ok(())
    }
}

impl Scene {
    fn room(&self) -> Room {
        let mut room = Room::new();
        let file = room.path(self.file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        if self.prepare.is_empty() {
            fs::write(file, (self.text)(&Room::dead_pid())).unwrap();
        } else {
            room.done(&as_words(self.prepare));
        }
        room
    }

    fn verb(&self, room: &Room) -> std::process::Command {
        room.command(&as_words(self.verb))
    }

    fn takes_it(&self) -> bool {
        self.verb == self.takes || self.verb.contains(" acquire ")
    }

    fn calls(&self) -> Vec<u64> {
        let room = self.room();
        let mut ended = trace(self.verb(&room), Deed::Nothing);
        assert!(
            matches!(ended.code, Some(0 | 5)),
            "{}: {ended:?}",
            self.name
        );
        ended.calls.remove(&Role::Program).unwrap()
    }

    fn trial(&self, plan: &Plan) -> Result<(), String> {
        let mut room = self.room();
        let text = (self.text)(&room.holder.pid());
        let mut old = Old {
            file: room.path(self.file),
            text: &text,
            holds: false,
            made: 0,
        };
        let mut acts = plan.iter().peekable();
        let moments = plan.map(|(at, _)| at);
        let mut ended = trace_and(self.verb(&room), Deed::Beside(moments), || {
            let mut then = Then::GoesOn;
            while let Some((at, act)) = acts.next() {
                then = old.act(*act);
                if acts.peek().is_none_or(|(next, _)| next != at) {
                    break;
                }
            }
            then
        });
        let killed = ended.signal.is_some();
        if killed {
            // Who takes it next finds what the killed one has left, if the verb itself does not.
            let next = [self.takes, self.verb][usize::from(self.takes_it())];
            ended = trace(room.command(&as_words(next)), Deed::Nothing);
        }
        let [_, (_, second), _] = plan;
        let alone = *second != Nothing && (self.takes_it() || killed);
        let leaves = !self.takes_it() && !self.verb.contains(" break ");
        let judged = old.judge(&ended, alone, leaves).and_then(|()| {
            let directory = old.file.with_file_name("");
            if killed || !left_in(&directory).is_empty() {
                // What is left keeps nobody out once the old program has ended, whose files all name
                // a living process until then; and `cleanup` removes it.
                old.act(Remove);
                room.holder.kill();
                let taken = room.onehold(&as_words(self.takes)).0;
                let in_it = directory.to_string_lossy();
                let cleaned = room.onehold(&["--dir", &in_it, "cleanup"]).0;
                if taken != 0 || cleaned != 0 {
                    return Err(format!("then: {taken}, {cleaned}"));
                }
            }
            match left_in(&directory) {
                left if left.is_empty() => Ok(()),
                left => Err(format!("left: {left:?}: {}", ended.stderr)),
            }
        });
        judged.map_err(|why| {
            let room = room.root.path().display().to_string();
            let why = why.replace(&room, "");
            format!("{}: {plan:?}: {why}", self.name)
        })
    }
}

/// Files without a place.
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

fn sweep(step: usize) {
    let mut points = Vec::new();
    for scene in &SCENES {
        let calls = scene.calls();
        for at in 0..calls.len() {
            points.extend([Replace, Remove].map(|act| (scene, [(at, act), NEVER, NEVER])));
        }
        // Of those who take it only the first: what is done to it later is done to a holder.
        let exchanges = calls
            .iter()
            .enumerate()
            .filter(|(_, call)| **call == RENAMEAT2)
            .take(if scene.takes_it() { 1 } else { usize::MAX });
        for (exchange, _) in exchanges {
            for first in exchange.saturating_sub(3)..=exchange + 1 {
                for second in first..exchange + 12 {
                    points.extend(
                        PAIRS.map(|[one, other]| (scene, [(first, one), (second, other), NEVER])),
                    );
                }
            }
            for second in exchange + 1..exchange + 12 {
                for third in second..second + 6 {
                    let plan = [(exchange, Replace), (second, Again), (third, Kill)];
                    points.push((scene, plan));
                }
            }
        }
    }
    let points: Vec<_> = points.into_iter().step_by(step).collect();
    let failures = for_all(&points, |(scene, plan)| scene.trial(plan));
    println!("{} moments, {} failed", points.len(), failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(points.len() * step > 2000, "{} moments", points.len());
}

#[test]
fn whatever_an_old_program_does_at_some_calls_it_keeps_what_it_holds() {
    sweep(13);
}

#[test]
#[ignore = "takes a minute"]
fn whatever_an_old_program_does_at_any_call_it_keeps_what_it_holds() {
    sweep(1);
}
