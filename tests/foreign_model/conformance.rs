//! Whether the model does what the program does. The program is stopped after each system call, and what others can see
//! then is noted. That must be a trace of the model, too, with the same process and the same foreign program at work.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{LazyLock, Mutex};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use stateright::Model;

use crate::harness::{Running, TestEnv, dead_pid, for_all, foreign};
use crate::model::{Action, Flaw, Protocol};
use crate::state::Kind::{Lease, Run};
use crate::state::{FileId, Kind, State, Step};
use crate::tracer::{Event, Tracees, Until};

/// What has the name of the lock, and what has temporary names: files in the order in which they appear, and whether
/// their command is on record.
type Seen = (Option<(FileId, bool)>, Vec<(FileId, bool)>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum What {
    /// Calls, the last of which has changed what is seen.
    Calls,
    /// Its attempt is over, and so is its command, if any.
    Ended,
    /// A hold that it has handed over may remain.
    HandedOver,
    Killed,
    /// Who has the hold that was handed over.
    HolderEnded,
    /// The foreign program takes the lock, removes its dead file, or releases.
    Foreign,
    ForeignCrashed,
}

use What::{Calls, Ended, Foreign, ForeignCrashed, HandedOver, HolderEnded, Killed};

/// What a process does, or what happens to it and beside it, and what is seen then.
type Trace = Vec<(usize, What, Seen)>;

fn seen(state: &State) -> Seen {
    let named = |id: &FileId| (*id, state.files[*id].command);
    let mut aside: Vec<_> = state.aside.iter().flatten().map(named).collect();
    aside.sort_unstable();
    (state.name.as_ref().map(named), aside)
}

/// The states that a call of a process leads to.
fn after_a_call(model: &Protocol, state: &State, by: usize) -> Vec<State> {
    let own = [Action::Step(by), Action::ChildStep(by), Action::Release(by)];
    let mut possible = Vec::new();
    model.actions(state, &mut possible);
    let possible = possible.into_iter().filter(|action| own.contains(action));
    possible
        .filter_map(|action| model.next_state(state, action))
        .collect()
}

/// With all that calls lead to which change nothing that is seen.
fn after_calls(model: &Protocol, mut states: Vec<State>, by: usize) -> HashSet<State> {
    let mut reached = HashSet::new();
    while let Some(state) = states.pop() {
        let next = after_a_call(model, &state, by).into_iter();
        states.extend(next.filter(|next| seen(next) == seen(&state) && !reached.contains(next)));
        reached.insert(state);
    }
    reached
}

/// The beginning of a trace that the model does not have.
fn difference(flaw: Flaw, (kinds, trace): &([Kind; 2], Trace)) -> Option<String> {
    let model = Protocol {
        kernel_locks: true,
        flaw,
        ..crate::model(kinds, 1, 3)
    };
    let mut states = model.init_states();
    states.retain(|state| seen(state) == trace[0].2);
    for (at, &(by, what, ref now)) in trace.iter().enumerate().skip(1) {
        let before = after_calls(&model, states, by).into_iter();
        let next = |state: State| {
            let process = &state.processes[by];
            let action = match what {
                Calls => return after_a_call(&model, &state, by),
                Ended | HandedOver => {
                    let is_over = process.step == Step::Done
                        || what == HandedOver && process.step == Step::Holding;
                    let is_over = (is_over || !process.alive) && !process.has_child();
                    return is_over.then_some(state).into_iter().collect();
                }
                Killed => Action::Crash(by),
                HolderEnded => Action::Expire(by),
                Foreign => Action::ForeignStep,
                ForeignCrashed => Action::ForeignCrash,
            };
            model.next_state(&state, action).into_iter().collect()
        };
        states = before
            .flat_map(next)
            .filter(|state| seen(state) == *now)
            .collect();
        if states.is_empty() {
            let steps = trace[..=at].iter().map(|step| format!("    {step:?}"));
            return Some(steps.collect::<Vec<_>>().join("\n"));
        }
    }
    None
}

/// A lock of prodigy.
struct Recorder {
    env: TestEnv,
    /// The files that have appeared. They are kept open, so that no other one gets the number of one of them.
    files: Vec<File>,
    /// Those of the foreign program, and its process while it holds the lock.
    of_foreign: Vec<FileId>,
    foreign: Option<Running>,
    trace: Trace,
}

impl Recorder {
    /// With the file of a dead foreign process, or without.
    fn new(dead: bool) -> Self {
        let mut recorder = Self {
            env: TestEnv::new(),
            files: Vec::new(),
            of_foreign: Vec::new(),
            foreign: None,
            trace: Vec::new(),
        };
        fs::create_dir_all(recorder.name().parent().unwrap()).unwrap();
        if dead {
            recorder.create(dead_pid());
        }
        recorder.note(0, Calls);
        recorder
    }

    fn name(&self) -> PathBuf {
        self.env.path(".prodigy/resume_locks/x.lock")
    }

    fn create(&mut self, pid: u32) {
        fs::write(self.name(), foreign::prodigy("x", pid)).unwrap();
        self.of_foreign.push(self.files.len());
    }

    fn look(&mut self) -> Seen {
        let (mut named, mut aside) = (None, Vec::new());
        for entry in fs::read_dir(self.name().parent().unwrap()).unwrap() {
            let path = entry.unwrap().path();
            if !path.is_file() {
                continue;
            }
            let number = |file: &File| file.metadata().unwrap().ino();
            let file = File::open(&path).unwrap();
            let known = self
                .files
                .iter()
                .position(|known| number(known) == number(&file));
            let id = known.unwrap_or(self.files.len());
            if known.is_none() {
                self.files.push(file);
            }
            // The part of our record that changes.
            let text = fs::read_to_string(&path).unwrap();
            let live = text
                .split_once("\"live\":{")
                .and_then(|(_, live)| live.split_once('}'));
            let file = (id, live.is_some_and(|(live, _)| live.contains("\"pid\"")));
            if path == self.name() {
                named = Some(file);
            } else {
                aside.push(file);
            }
        }
        aside.sort_unstable();
        (named, aside)
    }

    fn note(&mut self, by: usize, what: What) {
        let seen = self.look();
        if what != Calls || self.trace.last().is_none_or(|(.., last)| *last != seen) {
            self.trace.push((by, what, seen));
        }
    }

    /// The foreign program does the same as in the model.
    fn act(&mut self, by: usize, what: What) {
        if what == Ended {
            self.play(1, &RUN, |_| false);
            return;
        }
        match (what, self.foreign.take(), self.look().0) {
            (Foreign, Some(mut holder), _) => {
                let _ = fs::remove_file(self.name());
                holder.kill();
            }
            (Foreign, None, None) => {
                let holder = Running::sleeper();
                self.create(holder.pid());
                self.foreign = Some(holder);
            }
            (Foreign, None, Some((id, _))) if self.of_foreign.contains(&id) => {
                fs::remove_file(self.name()).unwrap();
            }
            (ForeignCrashed, Some(mut holder), _) => holder.kill(),
            (_, holder, _) => {
                self.foreign = holder;
                return;
            }
        }
        self.note(by, what);
    }

    /// Lets the program run to its end. After each of its calls and of its command's it is stopped, and it is killed if
    /// that is the answer, which is asked for once more then.
    fn play(&mut self, by: usize, words: &[&str], mut kills: impl FnMut(&mut Self) -> bool) {
        let mut tracees = Tracees::new(Until::Call);
        let mut command = self
            .env
            .onehold([&["--profile", "prodigy"], words].concat());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        #[allow(clippy::zombie_processes, reason = "waited for with the tracees")]
        let child = tracees.spawn(&mut command);
        let program = Pid::from_raw(child.id().cast_signed());
        tracees.go_on(program, None);
        let (mut number, mut in_call, mut is_killed) = (1, HashSet::new(), false);
        while number > 0 {
            let (pid, event) = tracees.next(true).unwrap().unwrap();
            match event {
                Event::Ended(_) => number -= 1,
                Event::Created(..) => number += 1,
                Event::Call if in_call.insert(pid) => {}
                Event::Call => {
                    in_call.remove(&pid);
                    self.note(by, Calls);
                    if !is_killed && kills(self) {
                        kill(program, Signal::SIGKILL).unwrap();
                        waitpid(program, Some(WaitPidFlag::__WALL)).unwrap();
                        (number, is_killed) = (number - 1, true);
                        self.note(by, Killed);
                        kills(self);
                    }
                }
                _ => {}
            }
            if !matches!(event, Event::Ended(_) | Event::GoesOn) {
                tracees.go_on(pid, None);
            }
        }
        self.note(
            by,
            if words[0] == "acquire" {
                HandedOver
            } else {
                Ended
            },
        );
    }
}

const RUN: [&str; 4] = ["run", "x", "--", "true"];

/// What happens after which calls of a first run; `Ended`: a second one runs to its end.
type Plan = Vec<(usize, What)>;

/// The trace, and after which calls of the first run it grew.
fn record(dead: bool, plan: &Plan) -> (Trace, Vec<usize>) {
    let (mut recorder, mut call, mut changes) = (Recorder::new(dead), 0, Vec::new());
    let mut plan = plan.iter().peekable();
    recorder.play(0, &RUN, |recorder| {
        call += 1;
        if recorder.trace.len() > changes.len() + 1 {
            changes.push(call);
        }
        while let Some((_, what)) = plan.next_if(|(at, _)| *at == call) {
            recorder.act(0, *what);
            if *what == Killed {
                return true;
            }
        }
        false
    });
    plan.for_each(|(_, what)| recorder.act(0, *what));
    (recorder.trace, changes)
}

/// A hold that is handed over. Another process is refused. The holder releases; or it has ended, another process takes
/// the lock, and the holder releases too late.
fn record_hand_over(is_late: bool) -> Trace {
    let mut recorder = Recorder::new(true);
    let mut holder = Running::sleeper();
    let pid = holder.pid().to_string();
    let release = ["release", "x", "--owner", "o"];
    recorder.play(0, &["acquire", "x", "--owner", "o", "--pid", &pid], |_| {
        false
    });
    if is_late {
        holder.kill();
        recorder.note(0, HolderEnded);
    }
    let mut is_over = !is_late;
    recorder.play(1, &RUN, |recorder| {
        // Its child is about to execute.
        let is_on_record = recorder
            .look()
            .0
            .is_some_and(|(id, command)| id > 1 && command);
        if is_on_record && !is_over {
            is_over = true;
            recorder.play(0, &release, |_| false);
        }
        false
    });
    if !is_late {
        recorder.play(0, &release, |_| false);
    }
    recorder.trace
}

/// All that is recorded, each trace once.
static RECORDED: LazyLock<HashSet<([Kind; 2], Trace)>> = LazyLock::new(|| {
    let end = (usize::MAX, Ended);
    let mut plans = vec![(false, vec![end]), (true, vec![end])];
    for dead in [false, true] {
        let (_, changes) = record(dead, &plans[0].1);
        let (first, last) = (changes[0], changes[changes.len() - 1]);
        // It looks at the lock some 40 calls before the first change.
        for at in first - 45..first + 20 {
            plans.push((dead, vec![(at, Foreign), end]));
            plans.push((dead, vec![(at, Foreign), (at, Foreign), end]));
        }
        for at in first..first + 20 {
            plans.push((dead, vec![(at, Killed), end]));
        }
        // Until it executes, its child is stopped while a second one tries.
        for at in first + 20..=changes[changes.len() - 3] {
            plans.push((dead, vec![(at, Killed), (at + 1, Ended)]));
        }
        for at in (first + 20..=last).step_by(5) {
            plans.push((dead, vec![(at, Killed), end]));
        }
        // Around the exchange of what the foreign program has put there.
        for at in (first..first + 25).filter(|_| dead) {
            for then in [Foreign, ForeignCrashed] {
                let replaced = [(first, Foreign), (first, Foreign)];
                plans.push((dead, [&replaced[..], &[(at, then), end]].concat()));
                let killed = [(at, Killed), (usize::MAX, then), end];
                plans.push((dead, [&replaced[..], &killed].concat()));
            }
        }
    }
    let late = [false, true].map(|late| ([Lease, Run], record_hand_over(late)));
    let recorded = Mutex::new(HashSet::from(late));
    for_all(&plans, |(dead, plan)| {
        let (trace, _) = record(*dead, plan);
        recorded.lock().unwrap().insert(([Run, Run], trace));
        Ok(())
    });
    println!("{} plans", plans.len());
    recorded.into_inner().unwrap()
});

#[test]
fn what_the_program_does_the_model_does() {
    println!("{} traces", RECORDED.len());
    assert!(RECORDED.len() > 30);
    let traces = RECORDED.iter();
    let differences: Vec<_> = traces
        .filter_map(|trace| difference(Flaw::None, trace))
        .collect();
    assert!(differences.is_empty(), "\n{}", differences.join("\n\n"));
}

/// Those that two processes, of which one is at work at a time, can show.
#[test]
fn flaw_of_the_model_and_a_change_that_is_left_out_of_a_trace_are_noticed() {
    use Flaw::{BlindRelease, NoRecovery, NoReturn, NoVerification, UnlinkAndLink};
    let flaws = [
        BlindRelease,
        NoRecovery,
        NoReturn,
        NoVerification,
        UnlinkAndLink,
    ];
    for flaw in flaws {
        let traces = RECORDED.iter();
        let notices = traces
            .filter(|trace| difference(flaw, trace).is_some())
            .count();
        println!("{flaw:?}: {notices} traces");
        assert!(notices > 0, "{flaw:?}");
    }
    let (whole, _) = record(true, &vec![(usize::MAX, Ended)]);
    for at in (1..whole.len()).filter(|at| whole[*at].1 == Calls) {
        let mut trace = whole.clone();
        let left_out = trace.remove(at);
        let noticed = difference(Flaw::None, &([Run, Run], trace));
        assert!(noticed.is_some(), "{left_out:?}");
    }
}
