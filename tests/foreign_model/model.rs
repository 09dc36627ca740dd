//! What the processes and the foreign program of the model do. Beside a step is the name of the function that does the
//! same.

use stateright::{Model, Property};

use crate::state::{Child, File, Foreign, Kind, Owner, Process, State, Step};

/// What a broken variant leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
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

pub struct Protocol {
    pub kinds: Vec<Kind>,
    pub attempts: u8,
    pub foreign: u8,
    pub kernel_locks: bool,
    pub flaw: Flaw,
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
            // `recover`, `restore_foreign_file`.
            Step::Looking => go(state, Step::Judging(state.name)),
            Step::Judging(found) => {
                if found.is_some_and(|found| !state.is_dead(found)) {
                    state.leave(by, Step::Idle);
                    return Some(());
                }
                let swap = found.and_then(|found| state.files[found].swap);
                let left_aside = swap.is_some_and(|(slot, ..)| state.aside[slot].is_some());
                let foreigns = state.foreigns_aside();
                let next = match (found, foreigns) {
                    (Some(found), _) if left_aside && self.flaw != Flaw::NoRecovery => {
                        Step::Recovering(found)
                    }
                    (_, Some((slot, id))) if self.flaw != Flaw::NoReturn => {
                        if state.is_dead(id) {
                            state.aside[slot] = None;
                            Step::Looking
                        } else {
                            Step::Returning(slot, found)
                        }
                    }
                    (None, _) => Step::Publishing,
                    (Some(found), _) if self.flaw == Flaw::UnlinkAndLink => Step::Unlinking(found),
                    (Some(found), _) => Step::Making(found, state.files[found].clone()),
                };
                go(state, next);
            }
            // `put_back`.
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
            // `link`.
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
            // `recover_takeover`.
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
            // `take_over`.
            Step::Making(..) | Step::TakingOut if state.claim_temporary_name() => {}
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
            // `is_as_judged`.
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
            // `revert_swap`.
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
            // `discard`.
            Step::Discarding(slot, id) => {
                if state.aside[slot] == Some(id) {
                    state.aside[slot] = None;
                }
                go(state, Step::Looking);
            }
            Step::Taken if process.kind == Kind::Lease => state.leave(by, Step::Confirming),
            Step::Taken => state.leave(by, Step::Holding),
            // `confirm`.
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
            // `write_slot`.
            Step::Renewing => {
                let id = process.file?;
                if state.name == Some(id) {
                    state.files[id].expired = false;
                }
                state.leave(by, Step::Holding);
            }
            // `remove`, `remove_own`.
            Step::Releasing if state.name == process.file || self.flaw == Flaw::BlindRelease => {
                go(state, Step::TakingOut);
            }
            Step::TakingOut if state.name.is_some() => {
                state.aside[by] = state.name.take();
                go(state, Step::Removing);
            }
            Step::Releasing | Step::TakingOut | Step::Removing => {
                if state.aside[by] != process.file && self.flaw != Flaw::BlindRelease {
                    // Another program's: it goes back, unless a third file has come.
                    if state.name.is_none() {
                        state.name = state.aside[by].take();
                    }
                } else {
                    state.aside[by] = None;
                }
                state.processes[by].file = None;
                state.leave(by, Step::Idle);
            }
            Step::Holding | Step::Done => return None,
        }
        Some(())
    }

    // `run`.
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
        let process = |kind: &Kind| Process {
            kind: *kind,
            alive: true,
            step: Step::Idle,
            attempts: self.attempts,
            file: None,
            child: Child::None,
        };
        let state = |files: Vec<File>| State {
            name: (!files.is_empty()).then_some(0),
            aside: vec![None; self.kinds.len()],
            last: u8::from(!files.is_empty()),
            files,
            guard: None,
            kernel_locks: self.kernel_locks,
            processes: self.kinds.iter().map(process).collect(),
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
