//! What the processes of a setting may do, one atomic action at a time.

use stateright::{Model, Property};

use super::facts::revision;
use super::flaws::Flaw;
use super::properties::properties;
use super::world::{
    Child, File, Holder, Outcome, Own, Process, Put, Reserved, Setting, Shown, Sleep, Slot, Step,
    Visitor, World, followed_pid, observer, wrapper_pid,
};
use crate::decision::ownership::{may_break, may_clean_up};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Step(usize),
    /// The process that takes the lock is killed.
    Kill(usize),
    /// The same in the middle of a write, on a system where a part of it may then be on disk.
    KillInWrite(usize),
    Child(usize),
    KillChild(usize),
    /// The command closes its descriptor, and the wrapper begins to note that.
    LetGo(usize),
    /// The process that a detached hold follows ends.
    EndFollowed(usize),
    Expire(usize),
    /// The work of a run whose caller has exited is ended: by its wrapper or by whoever wants the lock.
    EndWork(usize),
    Release(usize),
    Renew(usize),
    Stop(usize),
    /// Its wait ends without the lock.
    CutOff(usize),
    /// 5 s pass.
    Pass,
    /// A person is shown the hold in this slot.
    Show(Slot),
    Break,
    /// `cleanup` looks at this slot.
    Cleanup(Slot),
    /// Whoever is in the guard to remove something removes it and leaves.
    Remove,
}

impl Setting {
    fn enter(&self, world: &mut World, by: Visitor) -> Option<()> {
        if self.is_flawed(Flaw::NoGuard) {
            return Some(());
        }
        if world.guard.is_some() {
            return None;
        }
        world.guard = Some(by);
        Some(())
    }

    pub(super) fn enter_process(&self, world: &mut World, by: usize) -> Option<()> {
        self.enter(world, Visitor::Process(u8::try_from(by).unwrap()))
    }

    fn step(&self, world: &mut World, by: usize) -> Option<()> {
        let process = &world.processes[by];
        match process.step.clone() {
            Step::Idle => {
                let parent = self.plans[by].inside;
                let may_begin =
                    parent.is_none_or(|parent| world.processes[parent].child == Child::Running);
                if process.attempts == 0 || !may_begin {
                    return None;
                }
                self.enter_process(world, by)?;
                world.processes[by].attempts -= 1;
                world.processes[by].step = Step::Deciding;
            }
            Step::Queued(sleep) => {
                if !self.wakes(world, by, sleep) || !self.would_change(world, by, sleep) {
                    return None;
                }
                self.enter_process(world, by)?;
                world.processes[by].step = Step::Deciding;
            }
            Step::Resumed => {
                self.enter_process(world, by)?;
                world.processes[by].step = Step::Deciding;
            }
            Step::Deciding => self.decide(world, by),
            Step::Committing {
                puts,
                removes,
                done,
            } => self.commit(world, by, &puts, &removes, done),
            Step::Leaving(next) => {
                if world.guard == Some(Visitor::Process(u8::try_from(by).unwrap())) {
                    world.guard = None;
                }
                world.processes[by].step = *next;
            }
            // `Hold::ensure_in_place`.
            Step::Confirming => {
                if process.own.iter().all(|own| world.is_in_place(*own)) {
                    world.processes[by].step = Step::InPlace;
                } else {
                    Self::end(world, by);
                }
            }
            Step::InPlace => self.confirm(world, by),
            Step::Holding => self.work(world, by)?,
            Step::Releasing(_) | Step::Unlinking(_) | Step::Unlocking => self.release(world, by),
            Step::Renewing(_) | Step::WritingRenewal(..) => self.renew(world, by),
            Step::Done => return None,
        }
        Some(())
    }

    fn decide(&self, world: &mut World, by: usize) {
        let outcome = self.outcome(&self.memory(world, by), by);
        Self::note_turns(world, by, &outcome);
        let process = &mut world.processes[by];
        let again = if process.attempts == 0 {
            Step::Done
        } else {
            Step::Idle
        };
        process.step = match outcome {
            Outcome::Take { puts, removes } => {
                process.kept = None;
                Step::Committing {
                    puts,
                    removes,
                    done: 0,
                }
            }
            Outcome::Wait { sleep, .. } if process.kept.is_some() => {
                process.ticket = process.kept.take();
                Step::Leaving(Box::new(if self.is_flawed(Flaw::SleepsAsTheLast) {
                    Step::Queued(sleep)
                } else {
                    Step::Resumed
                }))
            }
            Outcome::Wait { sleep, .. } if self.plans[by].waits => {
                if process.ticket.is_none() {
                    world.last_ticket += 1;
                    process.ticket = Some(world.last_ticket);
                }
                Step::Leaving(Box::new(Step::Queued(sleep)))
            }
            Outcome::Wait { .. } | Outcome::Blocked | Outcome::AlreadyHeld(_) => {
                Self::leave_queue(process);
                Step::Leaving(Box::new(again))
            }
        };
    }

    pub(super) fn leave_queue(process: &mut Process) {
        process.ticket = None;
        process.reserved = Reserved::No;
    }

    /// As `files::commit`: link(2) where nothing was, rename(2) over what is dead, unlink(2).
    fn commit(&self, world: &mut World, by: usize, puts: &[Put], removes: &[u8], done: u8) {
        let at = usize::from(done);
        let (plan, is_first) = (&self.plans[by], at == 0);
        if is_first {
            world.last += 1;
            world.processes[by].number = world.last;
        } else if let Some(put) = puts.get(at - 1) {
            if put.replaced.is_none() && world.file_at(put.slot).is_some() {
                // Somebody else was faster, without the guard.
                Self::take_back(world, by);
                world.processes[by].step = Step::Deciding;
                return;
            }
            // `commit::take` removes all names of what it replaces.
            if let Some(replaced) = put.replaced.and_then(|id| world.file(id).cloned()) {
                world.remove_hold(&replaced);
            }
            self.put(world, by, put.slot);
        } else if let Some(id) = removes.get(at - 1 - puts.len()) {
            if let Some(dead) = world.file(*id).cloned() {
                world.remove_hold(&dead);
            }
        } else {
            let is_detached = matches!(plan.holder, Holder::Lease | Holder::Process);
            let process = &mut world.processes[by];
            if !matches!(plan.holder, Holder::Run | Holder::Exec) {
                Self::leave_queue(process);
            }
            process.in_force = plan.holder == Holder::Library;
            process.step = Step::Leaving(Box::new(if is_detached {
                Step::Confirming
            } else {
                Step::Holding
            }));
            return;
        }
        world.processes[by].step = Step::Committing {
            puts: puts.to_vec(),
            removes: removes.to_vec(),
            done: done + 1,
        };
    }

    fn put(&self, world: &mut World, by: usize, slot: Slot) {
        let plan = &self.plans[by];
        let number = world.processes[by].number;
        let is_first = world.processes[by].own.is_empty();
        world.numbers_shrank |= is_first && number <= world.greatest;
        world.greatest = world.greatest.max(number);
        world.last_id += 1;
        let keeps_it_itself = matches!(plan.holder, Holder::Exec | Holder::Library);
        let file = File {
            slot,
            id: world.last_id,
            inode: world.free_inode(),
            by: u8::try_from(by).unwrap(),
            number,
            pid: if keeps_it_itself { wrapper_pid(by) } else { 0 },
            confirmed: false,
            expired: false,
            let_go: false,
            torn: false,
            released: false,
        };
        let process = &mut world.processes[by];
        process.own.push(Own {
            slot,
            id: file.id,
            inode: file.inode,
        });
        process.locked = !matches!(plan.holder, Holder::Lease | Holder::Process);
        world.put(file);
    }

    fn take_back(world: &mut World, by: usize) {
        for own in std::mem::take(&mut world.processes[by].own) {
            world.files.retain(|file| file.id != own.id);
        }
    }

    fn confirm(&self, world: &mut World, by: usize) {
        for own in world.processes[by].own.clone() {
            if let Some(file) = world.file_mut(own.id) {
                file.confirmed = true;
                if self.plans[by].holder == Holder::Process {
                    file.pid = followed_pid(by);
                }
            }
        }
        world.processes[by].in_force = true;
        world.processes[by].step = Step::Holding;
    }

    /// Whoever worked under a record that a person removed is not counted any longer.
    fn note_break(world: &mut World, file: &File) {
        let process = &mut world.processes[usize::from(file.by)];
        let is_own = process.own.iter().any(|own| own.id == file.id);
        // `acquire` has looked at the path for the last time.
        let works = process.in_force
            || process.step == Step::InPlace
            || matches!(process.child, Child::Checked | Child::Running);
        process.broken |= is_own && works;
    }

    fn break_hold(&self, world: &mut World) -> Option<()> {
        let mut shown = world.shown?;
        if world.guard.is_some() {
            return None;
        }
        world.breaks -= 1;
        let Some(file) = world.file_at(shown.slot) else {
            world.shown = None;
            return Some(());
        };
        if self.is_flawed(Flaw::RevisionIgnored) {
            (shown.inode, shown.number) = (file.inode, file.number);
        }
        if self.is_flawed(Flaw::NumberIgnored) {
            shown.number = file.number;
        }
        let judged = self.judged(world, file, &observer(0));
        if may_break(&revision(shown.inode, shown.number), &judged) {
            self.enter(world, Visitor::Break(shown.slot))?;
        } else {
            world.shown = None;
        }
        Some(())
    }

    fn begin_cleanup(&self, world: &mut World, slot: Slot) -> Option<()> {
        let file = world.file_at(slot)?;
        let verdict = self.judged(world, file, &observer(0)).verdict;
        if !may_clean_up(&verdict, true) {
            return None;
        }
        if self.is_flawed(Flaw::CleanupByList) {
            if world.listed.is_some() {
                return None;
            }
            world.listed = Some(slot);
            return Some(());
        }
        self.enter(world, Visitor::Cleanup(slot))
    }

    fn remove(world: &mut World) -> Option<()> {
        let (slot, is_break) = match (world.guard, world.listed) {
            (Some(Visitor::Break(slot)), _) => (slot, true),
            (Some(Visitor::Cleanup(slot)), _) | (None, Some(slot)) => (slot, false),
            _ => return None,
        };
        world.listed = None;
        if let Some(file) = world.file_at(slot).cloned() {
            if is_break {
                world.broke_another |= world.shown.is_none_or(|shown| shown.id != file.id);
                Self::note_break(world, &file);
            }
            world.remove_hold(&file);
        }
        if is_break {
            world.shown = None;
        }
        world.guard = None;
        Some(())
    }
}

impl Model for Setting {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![self.start()]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        for (at, process) in world.processes.iter().enumerate() {
            let plan = &self.plans[at];
            if process.child.exists() {
                actions.extend([Action::Child(at), Action::KillChild(at)]);
            }
            if process.followed && (!plan.dies_with || process.step == Step::Holding) {
                actions.push(Action::EndFollowed(at));
            }
            if process.left {
                actions.push(Action::EndWork(at));
            }
            if process.in_force && plan.holder == Holder::Lease && !process.expired {
                actions.push(Action::Expire(at));
            }
            if !process.exists() {
                continue;
            }
            actions.extend([Action::Kill(at), Action::KillInWrite(at)]);
            if process.stopped {
                continue;
            }
            actions.push(Action::Step(at));
            if plan.may_stop && matches!(process.step, Step::Queued(_)) {
                actions.push(Action::Stop(at));
            }
            if process.cuts > 0 && matches!(process.step, Step::Queued(_)) {
                actions.push(Action::CutOff(at));
            }
            if plan.lets_go {
                actions.push(Action::LetGo(at));
            }
            if process.step == Step::Holding {
                let may_release = match plan.holder {
                    Holder::Lease | Holder::Process => true,
                    Holder::Exec => false,
                    Holder::Library => !process.child.exists(),
                    Holder::Run => {
                        matches!(process.child, Child::Gone | Child::Daemon) && !process.left
                    }
                };
                if may_release {
                    actions.push(Action::Release(at));
                }
                if process.renewals > 0 && plan.holder == Holder::Lease {
                    actions.push(Action::Renew(at));
                }
            }
        }
        let slots = world.files.iter().map(|file| file.slot);
        if world.breaks > 0 && world.shown.is_none() {
            actions.extend(slots.clone().map(Action::Show));
        }
        if self.cleanup {
            actions.extend(slots.map(Action::Cleanup));
        }
        actions.extend([Action::Break, Action::Remove, Action::Pass]);
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        match action {
            Action::Step(by) => self.step(&mut world, by)?,
            Action::Kill(by) => {
                for own in world.processes[by].own.clone() {
                    if world.file(own.id).is_some_and(|file| file.torn) {
                        Self::finish_note(&mut world, own.id);
                    }
                }
                self.kill(&mut world, by);
            }
            Action::KillInWrite(by) => {
                if !world
                    .files
                    .iter()
                    .any(|file| file.torn && usize::from(file.by) == by)
                {
                    return None;
                }
                self.kill(&mut world, by);
            }
            Action::Child(of) => self.child_step(&mut world, of)?,
            Action::KillChild(of) => {
                world.processes[of].child = Child::Gone;
                self.drop_descriptors(&mut world, of);
            }
            Action::LetGo(of) => self.let_go(&mut world, of)?,
            Action::EndFollowed(of) => {
                let process = &mut world.processes[of];
                process.followed = false;
                process.left = self.plans[of].dies_with;
            }
            Action::EndWork(of) => {
                let process = &mut world.processes[of];
                (process.left, process.over) = (false, true);
                process.child = Child::Gone;
                process.commands = 0;
                self.drop_descriptors(&mut world, of);
            }
            Action::Expire(of) => {
                world.processes[of].expired = true;
                for own in world.processes[of].own.clone() {
                    if let Some(file) = world.file_mut(own.id) {
                        file.expired = true;
                    }
                }
            }
            Action::Release(by) => self.begin_release(&mut world, by)?,
            Action::Renew(by) => {
                self.enter_process(&mut world, by)?;
                world.processes[by].renewals -= 1;
                world.processes[by].step = Step::Renewing(0);
            }
            Action::Stop(by) => world.processes[by].stopped = true,
            Action::CutOff(by) => {
                let process = &mut world.processes[by];
                process.cuts -= 1;
                process.attempts += 1;
                process.kept = process.ticket;
                Self::leave_queue(process);
                process.step = Step::Idle;
            }
            Action::Pass => {
                if !self.pass(&mut world) {
                    return None;
                }
            }
            Action::Show(slot) => {
                let file = world.file_at(slot)?;
                world.shown = Some(Shown {
                    slot,
                    id: file.id,
                    inode: file.inode,
                    number: file.number,
                });
            }
            Action::Break => self.break_hold(&mut world)?,
            Action::Cleanup(slot) => self.begin_cleanup(&mut world, slot)?,
            Action::Remove => Self::remove(&mut world)?,
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties(self)
    }
}

impl Setting {
    /// 5 s pass; whether that changes anything.
    pub(super) fn pass(&self, world: &mut World) -> bool {
        let before = world.clone();
        for (at, process) in world.processes.iter_mut().enumerate() {
            if process.reserved == Reserved::Yes {
                process.reserved = if self.has_looked(&before, at) {
                    Reserved::No
                } else {
                    Reserved::Missed
                };
            }
        }
        *world != before
    }

    /// Whether a waiter has noted its turn again within 5 s: it sleeps, or is about to, until a reader
    /// is gone that is still there.
    fn has_looked(&self, world: &World, at: usize) -> bool {
        let process = &world.processes[at];
        let sleep = match &process.step {
            Step::Queued(sleep) => *sleep,
            Step::Leaving(next) => match **next {
                Step::Queued(sleep) => sleep,
                _ => return false,
            },
            _ => return false,
        };
        let Sleep::Released(id) = sleep else {
            return false;
        };
        let is_reader = |file: &File| file.slot.index.is_some();
        !process.stopped
            && !self.is_flawed(Flaw::WriterSleepsThrough)
            && world.file(id).is_some_and(is_reader)
            && !self.is_woken(world, at, sleep)
    }
}
