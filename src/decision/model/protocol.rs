//! What the processes of a setting may do, one atomic action at a time.

use stateright::{Model, Property};

use super::flaws::Flaw;
use super::properties::properties;
use super::world::{
    Child, File, Holder, Memory, Outcome, Own, Process, Put, Reserved, Setting, Shown, Sleep, Slot,
    Step, Visitor, World, child_pid, followed_pid, is_dead, max_age_ms, observer, revision,
    wrapper_pid,
};
use crate::Caller;
use crate::decision::ownership::{May, may_break, may_clean_up, may_release, may_renew};
use crate::decision::{
    Asker, Decision, Judged, Obstacle, Request, Snapshot as _, Ticket, Until, decide, excludes,
    until,
};
use crate::record::Mode;

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
    pub(super) fn memory<'a>(&'a self, world: &'a World, caller: usize) -> Memory<'a> {
        Memory {
            setting: self,
            world,
            caller: Some(caller),
            is_reversed: false,
        }
    }

    /// As `lock::attempt::plan`.
    pub(super) fn outcome(&self, memory: &Memory<'_>, process: usize) -> Outcome {
        let request = self.request(memory.world, process);
        let mut decision = decide(&request, memory).unwrap();
        if self.is_flawed(Flaw::FirstComeFirst)
            && matches!(decision, Decision::Take { .. })
            && let Some(ticket) = Self::first_come(memory, &request)
        {
            decision = Decision::Wait(Obstacle::Waiter(ticket));
        }
        match decision {
            Decision::Take { put, remove } => {
                let mut puts: Vec<Put> = put
                    .into_iter()
                    .map(|(key, replaced)| Put {
                        slot: self.slot_of(&key),
                        replaced: replaced.map(|judged| judged.found.handle),
                    })
                    .collect();
                if self.is_flawed(Flaw::IndexTakenTwice) {
                    for put in &mut puts {
                        put.slot.index = put.slot.index.map(|_| 0);
                        put.replaced = memory.world.file_at(put.slot).map(|file| file.id);
                    }
                }
                let most = if self.too_many_dead { 0 } else { remove.len() };
                let removes = remove.into_iter().map(|judged| judged.found.handle);
                Outcome::Take {
                    puts,
                    removes: removes.take(most).collect(),
                }
            }
            Decision::AlreadyHeld(judged) => Outcome::AlreadyHeld(judged.found.handle),
            Decision::Blocked(_) | Decision::Refuse(..) => Outcome::Blocked,
            Decision::Wait(obstacle) => {
                let behind = match &obstacle {
                    Obstacle::Waiter(ticket) => Some(u8::try_from(ticket.number).unwrap()),
                    Obstacle::Hold(_) => None,
                };
                let restores_turn = matches!(
                    &obstacle,
                    Obstacle::Hold(judged) if judged.verdict.is_live()
                );
                let chained = self.chained_to_whoever_waits(memory, &request, &obstacle);
                let until = until(&request, obstacle, memory).unwrap();
                let sleep = match until {
                    Until::Released(judged) | Until::Ripe(judged, _) => {
                        Sleep::Released(judged.found.handle)
                    }
                    Until::AnyReleased(holders) => Sleep::Released(holders[0].found.handle),
                    Until::LeftQueue(ticket, interval) => {
                        let looks = match u8::try_from(interval.as_secs() / 5).unwrap() {
                            0 if self.is_flawed(Flaw::RareLooksAtReservations) => 1,
                            looks @ (0 | 1) => looks,
                            _ if self.is_flawed(Flaw::RareLooks) => 12,
                            looks => looks,
                        };
                        Sleep::LeftQueue(u8::try_from(ticket.number).unwrap(), looks)
                    }
                };
                let sleep = chained.unwrap_or(sleep);
                Outcome::Wait {
                    behind,
                    restores_turn,
                    sleep,
                }
            }
        }
    }

    /// See [`Flaw::ChainedToWhoeverWaits`].
    fn chained_to_whoever_waits(
        &self,
        memory: &Memory<'_>,
        request: &Request,
        obstacle: &Obstacle<u8>,
    ) -> Option<Sleep> {
        let Obstacle::Hold(judged) = obstacle else {
            return None;
        };
        if !self.is_flawed(Flaw::ChainedToWhoeverWaits) {
            return None;
        }
        let held = crate::decision::Want {
            name: judged.found.key.name.clone(),
            mode: match judged.found.key.index {
                None => Mode::Exclusive,
                Some(_) => Mode::Shared,
            },
        };
        let holder = judged.record().and_then(|record| record.owner.as_deref());
        let mut tickets = memory.tickets(&request.wants).unwrap();
        tickets.retain(|(number, _)| request.ticket.is_none_or(|own| *number < own));
        tickets.dedup_by_key(|(number, _)| *number);
        let mut ahead = tickets.into_iter().rev().filter_map(|(number, _)| {
            let ticket = memory.ticket(number).unwrap();
            ticket.filter(|ticket| {
                let theirs = &ticket.request;
                let waits_too = theirs
                    .wants
                    .iter()
                    .any(|want| excludes(&held, holder, want, theirs.owner.as_deref()));
                let is_missed = ticket
                    .reserved_since_ms
                    .is_some_and(|since| since < 995_000);
                waits_too && Self::is_before(ticket, request) && !is_missed
            })
        });
        let last = ahead.next()?;
        let is_third = ahead.next().is_some() && last.request.wants == request.wants;
        let looks = if is_third { 12 } else { 1 };
        Some(Sleep::LeftQueue(u8::try_from(last.number).unwrap(), looks))
    }

    /// Whether a waiter wants something that excludes a request.
    fn is_before(ticket: &Ticket<u8>, request: &Request) -> bool {
        let theirs = &ticket.request;
        let (holder, asker) = (theirs.owner.as_deref(), request.owner.as_deref());
        theirs.wants.iter().any(|held| {
            let mut wants = request.wants.iter();
            wants.any(|want| excludes(held, holder, want, asker))
        })
    }

    /// The first living waiter that wants something that excludes a request.
    fn first_come(memory: &Memory<'_>, request: &Request) -> Option<Ticket<u8>> {
        let tickets = memory.tickets(&request.wants).unwrap();
        tickets
            .into_iter()
            .filter(|(number, _)| request.ticket.is_none_or(|own| *number < own))
            .find_map(|(number, _)| {
                let ticket = memory.ticket(number).unwrap();
                ticket.filter(|ticket| Self::is_before(ticket, request))
            })
    }

    /// Notes in the queue what follows from a decision to wait.
    pub(super) fn note_turns(world: &mut World, by: usize, outcome: &Outcome) {
        let Outcome::Wait {
            behind,
            restores_turn,
            ..
        } = outcome
        else {
            return;
        };
        if *restores_turn {
            world.processes[by].reserved = Reserved::No;
        }
        for process in &mut world.processes {
            if behind.is_some() && process.ticket == *behind && process.reserved == Reserved::No {
                process.reserved = Reserved::Yes;
            }
        }
    }

    /// Whether a waiter wakes up, if only to look again after some seconds.
    pub(super) fn wakes(&self, world: &World, by: usize, sleep: Sleep) -> bool {
        match sleep {
            Sleep::LeftQueue(..) => true,
            // One of them is named; the backend has to watch all.
            Sleep::Released(_)
                if !self.is_flawed(Flaw::OneHolderWatched) && self.is_behind_full_lock(by) =>
            {
                true
            }
            Sleep::Released(_) => self.is_woken(world, by, sleep),
        }
    }

    /// Whether others see that the waiter with this ticket is stopped.
    pub(super) fn notices_stop(&self, world: &World, ticket: u8) -> bool {
        let unnoticed = [
            Flaw::StopUnnoticed,
            Flaw::RareLooks,
            Flaw::ChainedToWhoeverWaits,
        ];
        let is_unnoticed = unnoticed.into_iter().any(|flaw| self.is_flawed(flaw));
        let mut processes = world.processes.iter();
        let waiter = processes.find(|process| process.ticket == Some(ticket));
        !is_unnoticed && waiter.is_some_and(|process| process.stopped)
    }

    /// Whether what a waiter sleeps on has ended, which wakes it at once.
    pub(super) fn is_woken(&self, world: &World, by: usize, sleep: Sleep) -> bool {
        if self.is_flawed(Flaw::NoEvents) {
            return false;
        }
        match sleep {
            Sleep::LeftQueue(ticket, _) => {
                let mut processes = world.processes.iter();
                processes.all(|process| process.ticket != Some(ticket))
            }
            Sleep::Released(_)
                if !self.is_flawed(Flaw::OneHolderWatched) && self.is_behind_full_lock(by) =>
            {
                // It watches all that filled the lock.
                self.has_room(world, by)
            }
            Sleep::Released(id) => world.file(id).is_none_or(|file| {
                let by = observer(self.plans[by].pid_namespace);
                is_dead(&self.judged(world, file, &by).verdict)
            }),
        }
    }

    fn has_room(&self, world: &World, by: usize) -> bool {
        let from = observer(self.plans[by].pid_namespace);
        self.wants(by).iter().all(|want| {
            let mut alive = world.files.iter().filter(|file| {
                self.held(file).0.name == want.name
                    && !is_dead(&self.judged(world, file, &from).verdict)
            });
            match want.mode.slots() {
                Some(most) => alive.count() < usize::try_from(most.get()).unwrap(),
                None => alive.next().is_none(),
            }
        })
    }

    /// Any of several holders may make room.
    fn is_behind_full_lock(&self, by: usize) -> bool {
        self.plans[by]
            .wants
            .iter()
            .any(|(_, mode)| mode.slots().is_some())
    }

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

    fn enter_process(&self, world: &mut World, by: usize) -> Option<()> {
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

    /// Whether a look of a waiter would have any effect.
    fn would_change(&self, world: &World, by: usize, sleep: Sleep) -> bool {
        let outcome = self.outcome(&self.memory(world, by), by);
        let Outcome::Wait { sleep: next, .. } = outcome else {
            return true;
        };
        let mut noted = world.clone();
        Self::note_turns(&mut noted, by, &outcome);
        next != sleep || noted != *world
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

    fn leave_queue(process: &mut Process) {
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

    /// A wrapper that holds its lock: it starts commands, and writes what it knows of them.
    fn work(&self, world: &mut World, by: usize) -> Option<()> {
        let plan = &self.plans[by];
        let process = &world.processes[by];
        let torn = process
            .own
            .iter()
            .find(|own| world.file(own.id).is_some_and(|file| file.torn));
        if let Some(own) = torn {
            Self::finish_note(world, own.id);
            return Some(());
        }
        if plan.holder == Holder::Exec {
            Self::work_as_exec(world, by);
            return Some(());
        }
        if process.child == Child::Running && process.ticket.is_some() {
            // `Hold::started`.
            Self::leave_queue(&mut world.processes[by]);
            return Some(());
        }
        let is_between = matches!(process.child, Child::None | Child::Gone | Child::Daemon);
        if !is_between || process.commands == 0 {
            return None;
        }
        if !process.own.iter().all(|own| world.is_in_place(*own)) {
            // `Hold::spawn` fails; the caller drops the hold.
            self.begin_release(world, by)?;
            return Some(());
        }
        let commanded: Vec<u8> = process
            .own
            .iter()
            .filter_map(|own| world.file(own.id))
            .filter(|file| file.pid != 0 && file.pid != wrapper_pid(by))
            .map(|file| file.id)
            .collect();
        if !commanded.is_empty() && !self.is_flawed(Flaw::NotCleared) {
            for id in commanded {
                if let Some(file) = world.file_mut(id) {
                    file.pid = 0;
                    file.let_go = false;
                }
            }
            return Some(());
        }
        let process = &mut world.processes[by];
        process.commands -= 1;
        process.children += 1;
        process.child = Child::Forked(0);
        process.let_go = false;
        if plan.holder == Holder::Run {
            process.broken = false;
        }
        Some(())
    }

    /// `Hold::exec`: a look at the path, then it is the command, which ends.
    fn work_as_exec(world: &mut World, by: usize) {
        let process = &world.processes[by];
        if process.in_force {
            let process = &mut world.processes[by];
            process.in_force = false;
            process.alive = false;
            process.locked = false;
            process.step = Step::Done;
        } else if process.own.iter().all(|own| world.is_in_place(*own)) {
            let process = &mut world.processes[by];
            Self::leave_queue(process);
            process.in_force = true;
        } else {
            Self::end(world, by);
        }
    }

    fn finish_note(world: &mut World, id: u8) {
        if let Some(file) = world.file_mut(id) {
            file.torn = false;
            file.let_go = true;
        }
    }

    fn begin_release(&self, world: &mut World, by: usize) -> Option<()> {
        self.enter_process(world, by)?;
        let process = &mut world.processes[by];
        Self::leave_queue(process);
        process.in_force = false;
        process.step = Step::Releasing(0);
        let own = process.own.clone();
        let is_detached = matches!(self.plans[by].holder, Holder::Lease | Holder::Process);
        if is_detached && own.len() > 1 && !self.is_flawed(Flaw::NotMarked) {
            // One write into the file that has all the names.
            for own in own {
                if let Some(file) = world.file_mut(own.id) {
                    file.released = true;
                }
            }
        }
        Some(())
    }

    fn release(&self, world: &mut World, by: usize) {
        let process = &world.processes[by];
        let own_at = |at: u8| process.own.get(usize::from(at)).copied();
        let next = match process.step {
            Step::Releasing(at) => match own_at(at) {
                None => Step::Leaving(Box::new(Step::Unlocking)),
                Some(own) if self.may_unlink(world, by, own) => Step::Unlinking(at),
                Some(_) => Step::Releasing(at + 1),
            },
            Step::Unlinking(at) => {
                let slot = own_at(at).map(|own| own.slot);
                world.files.retain(|file| Some(file.slot) != slot);
                Step::Releasing(at + 1)
            }
            _ => {
                Self::end(world, by);
                return;
            }
        };
        world.processes[by].step = next;
    }

    /// A `run` compares the file; `onehold release` asks for permission.
    fn may_unlink(&self, world: &World, by: usize, own: Own) -> bool {
        if self.is_flawed(Flaw::BlindRelease) {
            return true;
        }
        if !matches!(self.plans[by].holder, Holder::Lease | Holder::Process) {
            return world.is_in_place(own);
        }
        let memory = self.memory(world, by);
        world.file_at(own.slot).is_some_and(|file| {
            let judged = self.judged_by(world, by, file);
            may_release(&Self::caller(world, by), &judged, &memory) == May::Go
        })
    }

    /// By the number that `acquire` printed.
    fn caller(world: &World, by: usize) -> Caller {
        Caller {
            hold: Some(u64::from(world.processes[by].number)),
            ..Caller::default()
        }
    }

    fn judged_by(&self, world: &World, by: usize, file: &File) -> Judged<u8> {
        self.judged(world, file, &observer(self.plans[by].pid_namespace))
    }

    /// Its hold is over, and everything closed.
    fn end(world: &mut World, by: usize) {
        let process = &mut world.processes[by];
        Self::leave_queue(process);
        process.own.clear();
        process.child = Child::None;
        process.locked = false;
        process.let_go = false;
        process.in_force = false;
        process.expired = false;
        process.broken = false;
        process.step = if process.attempts == 0 {
            Step::Done
        } else {
            Step::Idle
        };
    }

    fn renew(&self, world: &mut World, by: usize) {
        let process = &world.processes[by];
        let next = match process.step {
            Step::Renewing(at) => match process.own.get(usize::from(at)) {
                None => Step::Leaving(Box::new(Step::Holding)),
                Some(own) => match world.file_at(own.slot) {
                    Some(file) if self.may_renew(world, by, file) => {
                        Step::WritingRenewal(at, file.id)
                    }
                    _ => Step::Renewing(at + 1),
                },
            },
            Step::WritingRenewal(at, id) => {
                // One write, whatever the number of its names.
                if let Some(renewed) = world.file(id).cloned() {
                    for file in &mut world.files {
                        if (file.by, file.number) == (renewed.by, renewed.number) {
                            file.expired = false;
                        }
                    }
                    world.processes[usize::from(renewed.by)].expired = false;
                }
                Step::Renewing(at + 1)
            }
            _ => return,
        };
        world.processes[by].step = next;
    }

    fn may_renew(&self, world: &World, by: usize, file: &File) -> bool {
        let judged = self.judged_by(world, by, file);
        let caller = Self::caller(world, by);
        if self.is_flawed(Flaw::BlindRenewal) {
            return caller.hold == judged.record().map(|record| record.hold);
        }
        // As `Lock::renew` makes it.
        let request = Request {
            wants: Vec::new(),
            owner: None,
            inside: Vec::new(),
            asker: Asker::Caller,
            max_age_ms: max_age_ms(),
            take_zombies: true,
            replace: Vec::new(),
            skip_queue: false,
            keep_ms: None,
            waits_beside: Some(0),
            ticket: None,
            observer: Some(observer(self.plans[by].pid_namespace)),
            over: Vec::new(),
        };
        let memory = self.memory(world, by);
        let may = may_renew(&caller, &judged, &request, &memory).unwrap();
        may == May::Go
    }

    /// As `BeforeExec::run`.
    fn child_step(&self, world: &mut World, of: usize) -> Option<()> {
        let plan = &self.plans[of];
        let process = &world.processes[of];
        let pid = child_pid(of, process.children);
        let next = match process.child {
            Child::Forked(at) => match process.own.get(usize::from(at)).copied() {
                Some(own) => {
                    if let Some(file) = world.file_mut(own.id) {
                        file.pid = pid;
                    }
                    Child::Forked(at + 1)
                }
                None => Child::Recorded,
            },
            Child::Recorded => {
                let is_own = process.own.iter().all(|own| world.is_in_place(*own));
                if is_own || self.is_flawed(Flaw::PathNotChecked) {
                    Child::Checked
                } else {
                    Child::Gone
                }
            }
            Child::Checked => Child::Running,
            Child::Running if self.has_unfinished_inside(world, of) => return None,
            Child::Running if plan.daemon => Child::Daemon,
            Child::Running => Child::Gone,
            Child::None | Child::Gone | Child::Daemon => return None,
        };
        world.processes[of].child = next;
        self.drop_descriptors(world, of);
        Some(())
    }

    /// A command waits for what it has started.
    pub(super) fn has_unfinished_inside(&self, world: &World, of: usize) -> bool {
        self.plans
            .iter()
            .zip(&world.processes)
            .any(|(plan, process)| plan.inside == Some(of) && process.exists())
    }

    /// The kernel unlocks a file with the last descriptor of it.
    fn drop_descriptors(&self, world: &mut World, of: usize) {
        let process = &mut world.processes[of];
        let command_has_it = matches!(process.child, Child::Running | Child::Daemon)
            && !self.plans[of].close
            && !process.let_go;
        if !process.exists() && !process.child.is_starting() && !command_has_it {
            process.locked = false;
        }
    }

    fn kill(&self, world: &mut World, by: usize) {
        if world.guard == Some(Visitor::Process(u8::try_from(by).unwrap())) {
            world.guard = None;
        }
        let is_detached = matches!(self.plans[by].holder, Holder::Lease | Holder::Process);
        let process = &mut world.processes[by];
        Self::leave_queue(process);
        process.alive = false;
        process.stopped = false;
        process.in_force &= is_detached;
        process.step = Step::Done;
        self.drop_descriptors(world, by);
    }

    fn let_go(&self, world: &mut World, of: usize) -> Option<()> {
        let process = &world.processes[of];
        let can = self.plans[of].lets_go
            && process.child == Child::Running
            && process.step == Step::Holding
            && !process.let_go;
        if !can {
            return None;
        }
        // It takes up to a second until the wrapper notices, which is left out.
        for own in process.own.clone() {
            if let Some(file) = world.file_mut(own.id) {
                file.torn = true;
            }
        }
        world.processes[of].let_go = true;
        Some(())
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
