//! Takeovers beside a foreign program as a model, all of whose states are visited: `run`s and leases in
//! a foreign format, a program that creates exclusively and removes by name, and a kill at every
//! moment. Beside each step is the function that it mirrors, with a hash of its text, so that a test notices when
//! that function changes. Variants that leave something out show that the model would notice. What native records
//! do is in `src/decision/model/`.
//!
//! It is a binary of its own since it fills memory: a process that starts others meanwhile, by fork(2), would
//! copy the tables of all its pages each time.
#![allow(missing_docs)]
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::too_many_lines,
    clippy::unwrap_used
)]

use stateright::{Checker, HasDiscoveries, Model, Property};

/// What a broken variant leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// Takeover by unlink and link instead of a swap.
    UnlinkAndLink,
    /// A swap whose process was killed is neither finished nor reverted.
    NoRecovery,
    /// What was swapped out is known by its file alone, not by what it says.
    NoDigest,
    /// Nobody enters the guard.
    NoGuard,
    /// The child executes its command without looking at the path.
    NoPathCheck,
    /// What was swapped out is not verified.
    NoVerification,
    /// A release removes whatever has the name.
    BlindRelease,
    /// A foreign file that was set aside is found by the record of the dead taker only.
    NoReturn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Run,
    Lease,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Owner {
    Process(usize),
    Foreign,
    /// A process that was killed before all this began.
    Dead,
}

/// A lock file, by its place in the order of creation.
type FileId = usize;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct File {
    owner: Owner,
    kind: Kind,
    number: u8,
    /// The command of a run is on record; a lease is confirmed.
    command: bool,
    /// Under whose temporary name it was made, what it was to replace, and what that said: its two
    /// flags.
    swap: Option<(usize, FileId, (bool, bool))>,
    expired: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Step {
    Idle,
    /// In the guard, about to look at the name.
    Looking,
    Publishing,
    /// A dead record whose taker left a file aside.
    Recovering(FileId),
    RecoveringAside(FileId),
    /// With whose temporary name, in place of what was judged dead.
    Returning(usize, Option<FileId>),
    /// Judged dead, as it was read.
    Making(FileId, File),
    Unlinking(FileId),
    Exchanging(FileId, FileId, File),
    Verifying(FileId, FileId, File),
    /// With whose temporary name, and what is to come out again.
    PuttingBack(usize, FileId),
    Discarding(usize, FileId),
    /// Published; still in the guard.
    Taken,
    /// The number of a lease has been printed.
    Confirming,
    /// It was found in its place, and is about to be confirmed.
    InPlace,
    Holding,
    Renewing,
    Releasing,
    /// What has the name was compared, and is its own.
    Removing,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Child {
    None,
    Forked,
    Recorded,
    Running,
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Process {
    kind: Kind,
    alive: bool,
    step: Step,
    /// Attempts it still makes.
    attempts: u8,
    file: Option<FileId>,
    child: Child,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Foreign {
    Idle,
    Holding,
    Crashed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    name: Option<FileId>,
    /// The file under the temporary name of each process.
    aside: Vec<Option<FileId>>,
    files: Vec<File>,
    guard: Option<usize>,
    processes: Vec<Process>,
    foreign: Foreign,
    foreign_attempts: u8,
    /// `last` of the store.
    last: u8,
    numbers_shrank: bool,
    /// What has happened on the way here.
    taken_over: bool,
    put_back: bool,
    recovered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Step(usize),
    /// The wrapper, or the process that acquires a lease, is killed.
    Crash(usize),
    ChildStep(usize),
    ChildCrash(usize),
    Expire(usize),
    Renew(usize),
    /// Enters the guard to release.
    Release(usize),
    ForeignStep,
    ForeignCrash,
}

struct Protocol {
    kinds: Vec<Kind>,
    attempts: u8,
    foreign: u8,
    flaw: Flaw,
}

impl State {
    // Mirrors judge_record, src/decision/liveness.rs: e01cdcbf478b5c28
    /// No process of its record is alive, or the lease has expired.
    fn is_dead(&self, id: FileId) -> bool {
        let file = &self.files[id];
        match (file.owner, file.kind) {
            (Owner::Dead, _) => true,
            (Owner::Foreign, _) => {
                self.foreign != Foreign::Holding || self.foreigns_file() != Some(id)
            }
            (Owner::Process(_), Kind::Lease) if file.command => file.expired,
            (Owner::Process(by), _) => {
                let process = &self.processes[by];
                // A live process keeps every record that names it.
                let wrapper = process.alive && process.step != Step::Done;
                let command = file.command && process.file == Some(id) && process.has_child();
                !wrapper && !command
            }
        }
    }

    fn foreigns_file(&self) -> Option<FileId> {
        self.files
            .iter()
            .rposition(|file| file.owner == Owner::Foreign)
    }

    /// Under whose temporary name a live foreign holder's file was left.
    fn foreigns_aside(&self) -> Option<usize> {
        let lives = |id: FileId| self.files[id].owner == Owner::Foreign && !self.is_dead(id);
        self.aside.iter().position(|aside| aside.is_some_and(lives))
    }

    /// How many are in their critical sections.
    fn holders(&self) -> usize {
        let ours = self.processes.iter().filter(|process| match process.kind {
            Kind::Run => process.child == Child::Running,
            Kind::Lease => {
                let published = matches!(
                    process.step,
                    Step::Holding | Step::Renewing | Step::Releasing | Step::Removing
                );
                let valid = process.file.is_some_and(|id| !self.files[id].expired);
                process.alive && published && valid
            }
        });
        ours.count() + usize::from(self.foreign == Foreign::Holding)
    }

    // Mirrors next, src/files/number.rs: 1429dd32de4c9385
    // Mirrors after, src/files/number.rs: 3a235357c3f2061c
    /// A new file by a process; no hold had its number before.
    fn create(&mut self, by: usize, kind: Kind, judged: Option<(FileId, &File)>) -> FileId {
        let swap = judged.map(|(judged, read)| (by, judged, (read.command, read.expired)));
        let replaced = judged.map_or(0, |(_, read)| read.number);
        let number = self.last.max(replaced) + 1;
        self.last = number;
        let greatest = self.files.iter().map(|file| file.number).max();
        self.numbers_shrank |= greatest.is_some_and(|greatest| number <= greatest);
        self.files.push(File {
            owner: Owner::Process(by),
            kind,
            number,
            command: false,
            swap,
            expired: false,
        });
        self.files.len() - 1
    }

    /// Leaves the guard at the end of an attempt.
    fn leave(&mut self, by: usize, next: Step) {
        if self.guard == Some(by) {
            self.guard = None;
        }
        let process = &mut self.processes[by];
        process.step = next;
        if process.step == Step::Idle && process.attempts == 0 {
            process.step = Step::Done;
        }
    }

    /// Whether a newcomer can take the lock when nothing else happens.
    fn can_be_taken(&self) -> bool {
        let mut state = self.clone();
        for _ in 0..4 {
            let Some(found) = state.name else {
                return true;
            };
            if !state.is_dead(found) {
                // A live holder that does nothing any more never releases: there must be none.
                return false;
            }
            match state.files[found].swap {
                Some((slot, judged, _)) if state.aside[slot].is_some() => {
                    let aside = state.aside[slot].take();
                    if aside != Some(judged) && aside != Some(found) {
                        state.name = aside;
                    }
                }
                _ => return true,
            }
        }
        false
    }
}

impl Process {
    fn has_child(&self) -> bool {
        matches!(self.child, Child::Forked | Child::Recorded | Child::Running)
    }
}

impl Protocol {
    /// One system call each.
    fn step(&self, state: &mut State, by: usize) -> Option<()> {
        let process = state.processes[by].clone();
        let go = |state: &mut State, step| state.processes[by].step = step;
        match process.step {
            Step::Idle => {
                if self.flaw != Flaw::NoGuard {
                    if state.guard.is_some() {
                        return None;
                    }
                    state.guard = Some(by);
                }
                state.processes[by].attempts -= 1;
                go(state, Step::Looking);
            }
            // Mirrors recover, src/files/foreign.rs: b3d9e9382c112874
            // Mirrors restore_foreign_file, src/files/foreign.rs: f42d1b58c2690c52
            Step::Looking => match state.name {
                Some(found) if !state.is_dead(found) => state.leave(by, Step::Idle),
                None if self.flaw != Flaw::NoReturn && state.foreigns_aside().is_some() => {
                    go(state, Step::Returning(state.foreigns_aside()?, None));
                }
                None => go(state, Step::Publishing),
                Some(found) => {
                    let left_aside = state.files[found]
                        .swap
                        .is_some_and(|(slot, ..)| state.aside[slot].is_some());
                    let next = if left_aside && self.flaw != Flaw::NoRecovery {
                        Step::Recovering(found)
                    } else if let Some(slot) = state.foreigns_aside()
                        && self.flaw != Flaw::NoReturn
                    {
                        Step::Returning(slot, Some(found))
                    } else if self.flaw == Flaw::UnlinkAndLink {
                        Step::Unlinking(found)
                    } else {
                        Step::Making(found, state.files[found].clone())
                    };
                    go(state, next);
                }
            },
            // Mirrors put_back, src/files/foreign.rs: 29cb5033882bbd3d
            Step::Returning(slot, None) => {
                if state.name.is_none() {
                    state.name = state.aside[slot].take();
                }
                go(state, Step::Looking);
            }
            Step::Returning(_, Some(_)) if state.name.is_none() => go(state, Step::Looking),
            Step::Returning(slot, Some(dead)) => {
                std::mem::swap(&mut state.name, &mut state.aside[slot]);
                go(state, Step::Discarding(slot, dead));
            }
            // Mirrors link, src/files/lock_file.rs: ef3d8156b5853190
            Step::Publishing if state.name.is_some() => go(state, Step::Looking),
            Step::Publishing => {
                let id = state.create(by, process.kind, None);
                state.name = Some(id);
                state.processes[by].file = Some(id);
                state.processes[by].child = Child::None;
                go(state, Step::Taken);
            }
            Step::Unlinking(_) => {
                state.name = None;
                go(state, Step::Publishing);
            }
            // Mirrors recover_takeover, src/files/foreign.rs: 0efa2db26031ec5f
            Step::Recovering(dead) => {
                let (slot, judged, said) = state.files[dead].swap?;
                // What the dead taker had judged, as it was.
                let file = &state.files[judged];
                let as_judged = (file.command, file.expired) == said;
                let finished =
                    state.aside[slot] == Some(judged) && (self.flaw == Flaw::NoDigest || as_judged);
                if finished || state.aside[slot] == Some(dead) {
                    go(state, Step::RecoveringAside(dead));
                } else {
                    state.recovered = true;
                    go(state, Step::PuttingBack(slot, dead));
                }
            }
            Step::RecoveringAside(dead) => {
                let (slot, ..) = state.files[dead].swap?;
                state.aside[slot] = None;
                go(state, Step::Looking);
            }
            // Mirrors take_over, src/files/foreign.rs: 94ddf6a167f975d8
            // Mirrors claim_temporary_name, src/files/foreign.rs: ada4e8552e9ef149
            Step::Making(judged, read) => {
                let id = state.create(by, process.kind, Some((judged, &read)));
                state.aside[by] = Some(id);
                go(state, Step::Exchanging(id, judged, read));
            }
            Step::Exchanging(id, ..) if state.name.is_none() => {
                go(state, Step::Discarding(by, id));
            }
            Step::Exchanging(id, judged, read) => {
                std::mem::swap(&mut state.name, &mut state.aside[by]);
                go(state, Step::Verifying(id, judged, read));
            }
            // Mirrors is_as_judged, src/files/lock_file.rs: c28e32c639c89994
            Step::Verifying(id, judged, read) => {
                let as_judged = state.aside[by] == Some(judged) && state.files[judged] == read;
                if as_judged || self.flaw == Flaw::NoVerification {
                    state.aside[by] = None;
                    state.taken_over = true;
                    state.processes[by].file = Some(id);
                    state.processes[by].child = Child::None;
                    go(state, Step::Taken);
                } else {
                    go(state, Step::PuttingBack(by, id));
                }
            }
            // Mirrors revert_swap, src/files/foreign.rs: 31516714ddf60e1b
            // Removed meanwhile: if by its holder, while our record had the name, it meant what came out.
            Step::PuttingBack(slot, _) if state.name.is_none() => {
                let came_out = state.aside[slot].take();
                if slot != by {
                    state.name = came_out;
                }
                go(state, Step::Looking);
            }
            Step::PuttingBack(slot, placed) => {
                let going_back = state.aside[slot]?;
                std::mem::swap(&mut state.name, &mut state.aside[slot]);
                state.put_back |= slot == by;
                let came_out = state.aside[slot];
                if came_out.is_none_or(|file| file == placed) {
                    go(state, Step::Discarding(slot, placed));
                } else {
                    go(state, Step::PuttingBack(slot, going_back));
                }
            }
            // Mirrors discard, src/files/lock_file.rs: 7d3eead5245a6e23
            Step::Discarding(slot, id) => {
                if state.aside[slot] == Some(id) {
                    state.aside[slot] = None;
                }
                go(state, Step::Looking);
            }
            Step::Taken if process.kind == Kind::Lease => state.leave(by, Step::Confirming),
            Step::Taken => state.leave(by, Step::Holding),
            // Mirrors confirm, src/lock/pending_hold.rs: 31130bdb2832e674
            Step::Confirming if state.name == process.file => go(state, Step::InPlace),
            Step::InPlace => {
                state.files[process.file?].command = true;
                go(state, Step::Holding);
            }
            Step::Confirming => {
                state.processes[by].file = None;
                state.leave(by, Step::Idle);
            }
            Step::Holding if process.kind == Kind::Run && process.child == Child::None => {
                state.processes[by].child = Child::Forked;
            }
            // Mirrors write_slot, src/files/commit.rs: d6b5f60f856499ba
            Step::Renewing => {
                let id = process.file?;
                if state.name == Some(id) {
                    state.files[id].expired = false;
                }
                state.leave(by, Step::Holding);
            }
            // Mirrors remove, src/files/held.rs: fd1f112248a73bde
            Step::Releasing => {
                let id = process.file?;
                if state.name == Some(id) || self.flaw == Flaw::BlindRelease {
                    go(state, Step::Removing);
                } else {
                    state.processes[by].file = None;
                    state.leave(by, Step::Idle);
                }
            }
            Step::Removing => {
                state.name = None;
                state.processes[by].file = None;
                state.leave(by, Step::Idle);
            }
            Step::Holding | Step::Done => return None,
        }
        Some(())
    }

    // Mirrors run, src/sys/unix/spawn.rs: d8d7e94f2f956d41
    fn child_step(&self, state: &mut State, of: usize) -> Option<()> {
        let id = state.processes[of].file?;
        let next = match state.processes[of].child {
            Child::Forked => {
                state.files[id].command = true;
                Child::Recorded
            }
            Child::Recorded if state.name == Some(id) || self.flaw == Flaw::NoPathCheck => {
                Child::Running
            }
            Child::Recorded | Child::Running => Child::Gone,
            Child::None | Child::Gone => return None,
        };
        state.processes[of].child = next;
        Some(())
    }

    fn foreign_step(state: &mut State) -> Option<()> {
        match state.foreign {
            Foreign::Idle => match state.name {
                None if state.foreign_attempts > 0 => {
                    state.foreign_attempts -= 1;
                    state.files.push(File {
                        owner: Owner::Foreign,
                        kind: Kind::Run,
                        number: 0,
                        command: false,
                        swap: None,
                        expired: false,
                    });
                    state.name = Some(state.files.len() - 1);
                    state.foreign = Foreign::Holding;
                }
                // It looks and removes in one step, so that its own races are left out. It cannot read
                // other formats.
                Some(found)
                    if state.foreign_attempts > 0
                        && !matches!(state.files[found].owner, Owner::Process(_))
                        && state.is_dead(found) =>
                {
                    state.name = None;
                }
                _ => return None,
            },
            Foreign::Holding => {
                state.name = None;
                state.foreign = Foreign::Idle;
            }
            Foreign::Crashed => return None,
        }
        Some(())
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let dead = File {
            owner: Owner::Dead,
            kind: Kind::Run,
            number: 1,
            command: false,
            swap: None,
            expired: false,
        };
        let state = |files: Vec<File>| State {
            name: (!files.is_empty()).then_some(0),
            aside: vec![None; self.kinds.len()],
            last: u8::from(!files.is_empty()),
            files,
            guard: None,
            processes: self
                .kinds
                .iter()
                .map(|kind| Process {
                    kind: *kind,
                    alive: true,
                    step: Step::Idle,
                    attempts: self.attempts,
                    file: None,
                    child: Child::None,
                })
                .collect(),
            foreign: Foreign::Idle,
            foreign_attempts: self.foreign,
            numbers_shrank: false,
            taken_over: false,
            put_back: false,
            recovered: false,
        };
        vec![state(Vec::new()), state(vec![dead])]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (by, process) in state.processes.iter().enumerate() {
            if process.has_child() {
                actions.extend([Action::ChildStep(by), Action::ChildCrash(by)]);
            }
            if process.kind == Kind::Lease
                && process.file.is_some_and(|id| !state.files[id].expired)
            {
                actions.push(Action::Expire(by));
            }
            if !process.alive || process.step == Step::Done {
                continue;
            }
            actions.extend([Action::Step(by), Action::Crash(by)]);
            if process.step == Step::Holding {
                let over = process.kind == Kind::Lease || process.child == Child::Gone;
                if over {
                    actions.push(Action::Release(by));
                }
                if process.kind == Kind::Lease {
                    actions.push(Action::Renew(by));
                }
            }
        }
        actions.extend([Action::ForeignStep, Action::ForeignCrash]);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Step(by) => self.step(&mut state, by)?,
            Action::ChildStep(of) => self.child_step(&mut state, of)?,
            Action::ChildCrash(of) => state.processes[of].child = Child::Gone,
            Action::Crash(by) => {
                // The kernel releases the guard.
                if state.guard == Some(by) {
                    state.guard = None;
                }
                state.processes[by].alive = false;
            }
            Action::Expire(of) => {
                let id = state.processes[of].file?;
                state.files[id].expired = true;
            }
            Action::Renew(by) | Action::Release(by) => {
                if self.flaw != Flaw::NoGuard {
                    if state.guard.is_some() {
                        return None;
                    }
                    state.guard = Some(by);
                }
                state.processes[by].step = match action {
                    Action::Renew(_) => Step::Renewing,
                    _ => Step::Releasing,
                };
            }
            Action::ForeignStep => Self::foreign_step(&mut state)?,
            Action::ForeignCrash if state.foreign == Foreign::Holding => {
                state.foreign = Foreign::Crashed;
            }
            Action::ForeignCrash => return None,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one holder", |_: &Self, state: &State| state.holders() <= 1),
            Property::always("numbers grow", |_: &Self, state: &State| {
                !state.numbers_shrank
            }),
            Property::always("no dead end", |model: &Self, state: &State| {
                let mut actions = Vec::new();
                model.actions(state, &mut actions);
                let quiet = actions
                    .into_iter()
                    .all(|action| model.next_state(state, action).is_none());
                !quiet || state.can_be_taken()
            }),
            Property::sometimes("a takeover", |_: &Self, state: &State| state.taken_over),
            Property::sometimes("a takeover reverted", |_: &Self, state: &State| {
                state.put_back
            }),
            Property::sometimes("a killed takeover recovered", |_: &Self, state: &State| {
                state.recovered
            }),
        ]
    }
}

const BROKEN: [&str; 3] = ["one holder", "numbers grow", "no dead end"];

/// Visits all states and counts them.
fn holds(kinds: &[Kind], attempts: u8, foreign: u8) -> usize {
    let model = Protocol {
        kinds: kinds.to_vec(),
        attempts,
        foreign,
        flaw: Flaw::None,
    };
    let checker = model.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    println!("{kinds:?}: {} states", checker.unique_state_count());
    checker.unique_state_count()
}

/// Whether a variant violates a property, within its first states.
fn breaks(flaw: Flaw, kinds: &[Kind], foreign: u8) -> bool {
    let model = Protocol {
        kinds: kinds.to_vec(),
        attempts: 1,
        foreign,
        flaw,
    };
    let checker = model
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_dfs()
        .join();
    let found = checker.discoveries();
    BROKEN.iter().any(|property| found.contains_key(property))
}

use Kind::{Lease, Run};

#[test]
fn two_processes_beside_a_foreign_program_hold_one_at_a_time() {
    let states = [
        holds(&[Run, Run], 1, 1),
        holds(&[Run, Lease], 1, 1),
        holds(&[Lease, Lease], 1, 1),
    ];
    assert!(states.iter().sum::<usize>() > 10_000, "{states:?}");
}

#[test]
#[ignore = "takes minutes"]
fn three_processes_beside_a_foreign_program_hold_one_at_a_time() {
    holds(&[Run, Run], 2, 2);
    holds(&[Run, Lease], 2, 2);
    holds(&[Run, Run, Lease], 1, 1);
    holds(&[Run, Run, Run], 1, 1);
}

#[test]
fn model_notices_what_is_left_out() {
    let cases: [(Flaw, &[Kind], u8); 8] = [
        (Flaw::UnlinkAndLink, &[Run, Run], 1),
        (Flaw::NoRecovery, &[Run, Run, Run], 0),
        (Flaw::NoDigest, &[Run, Run, Run], 0),
        (Flaw::NoGuard, &[Run, Lease], 1),
        (Flaw::NoPathCheck, &[Run, Run], 0),
        (Flaw::NoVerification, &[Run, Run], 0),
        (Flaw::BlindRelease, &[Run, Lease], 1),
        (Flaw::NoReturn, &[Run, Run, Run], 2),
    ];
    for (flaw, kinds, foreign) in cases {
        assert!(breaks(flaw, kinds, foreign), "{flaw:?} is not noticed");
    }
}

/// The text of the only function with this name, without comments and white space. In strings there are round brackets
/// instead of braces, so that those that are left match.
fn text_of(function: &str, source: &str) -> Option<String> {
    let (mut text, mut chars) = (String::new(), source.chars().peekable());
    while let Some(char) = chars.next() {
        match char {
            '/' if chars.peek() == Some(&'/') => drop(chars.by_ref().find(|char| *char == '\n')),
            '"' => {
                text.push(char);
                while let Some(inner) = chars.next() {
                    text.push(match inner {
                        '{' => '(',
                        '}' => ')',
                        _ => inner,
                    });
                    match inner {
                        '\\' => text.extend(chars.next()),
                        '"' => break,
                        _ => {}
                    }
                }
            }
            '\'' if chars.peek() == Some(&'"') => text.extend(chars.next()),
            _ if char.is_whitespace() => {}
            _ => text.push(char),
        }
    }
    let begins = ['(', '<'].map(|behind| format!("fn{function}{behind}"));
    let mut found = begins.iter().flat_map(|begin| text.match_indices(begin));
    let (start, _) = found.next()?;
    let mut depth = 0;
    let end = text[start..].find(|char| {
        depth += i32::from(char == '{') - i32::from(char == '}');
        char == '}' && depth == 0
    })?;
    found
        .next()
        .is_none()
        .then(|| text[start..=start + end].to_owned())
}

/// FNV-1a.
fn hash(text: &str) -> String {
    let add = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", text.bytes().fold(0xcbf2_9ce4_8422_2325, add))
}

#[test]
fn functions_that_the_model_mirrors_are_as_they_were() {
    let notes = include_str!("foreign_model.rs").lines().filter_map(|line| {
        let note = line.trim_start().strip_prefix("// Mirrors ")?;
        let (function, rest) = note.split_once(", ").unwrap();
        let (file, noted) = rest.split_once(": ").unwrap();
        Some((function, file, noted))
    });
    let notes: Vec<_> = notes.collect();
    assert_eq!(notes.len(), 17);
    let mut changed = Vec::new();
    for (function, file, noted) in notes {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        let source = std::fs::read_to_string(path).unwrap();
        let text = text_of(function, &source);
        let text = text.unwrap_or_else(|| panic!("{file} has not exactly one function {function}"));
        let hash = hash(&text);
        if hash != noted {
            changed.push(format!(
                "{function} of {file} has changed: look whether the model still does the same, then note {hash}"
            ));
        }
    }
    assert!(changed.is_empty(), "{}", changed.join("\n"));
}

#[test]
fn change_of_a_function_is_noticed_and_that_of_a_comment_is_not() {
    let source = "fn other() {}\nfn one<T>(a: T) -> T { let b = \"} // {\"; if c { d } else { e } }\nfn last() {}";
    let text = text_of("one", source).unwrap();
    assert!(
        text.starts_with("fnone<T>") && text.ends_with("else{e}}"),
        "{text}"
    );
    let same = source.replace("if c", "// What it is: }\n    if c");
    assert_eq!(text_of("one", &same).as_ref(), Some(&text));
    for (part, changed) in [("{ e }", "{ f }"), ("// {", "// x"), ("a: T", "b: T")] {
        let other = text_of("one", &source.replace(part, changed)).unwrap();
        assert_ne!(hash(&other), hash(&text), "{part}");
    }
    assert_eq!(text_of("two", source), None);
    assert_eq!(text_of("one", &source.replace("last", "one")), None);
}
