//! What a waiter decides, and what wakes it.

use super::facts::{Memory, is_dead};
use super::flaws::Flaw;
use super::world::{Outcome, Put, Reserved, Setting, Sleep, World, observer};
use crate::decision::{
    Cycle, Decision, Obstacle, Request, Snapshot as _, Ticket, Until, cycle, decide, excludes,
    until,
};
use crate::record::Mode;

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
            Decision::Wait(_) if self.completes_cycle(memory, process) => Outcome::Blocked,
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
                    Until::AnyReleased(holders, _) => Sleep::Released(holders[0].found.handle),
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

    pub(super) fn would_wait_for_hold(&self, memory: &Memory<'_>, process: usize) -> bool {
        let decision = decide(&self.request(memory.world, process), memory).unwrap();
        self.plans[process].waits && matches!(decision, Decision::Wait(Obstacle::Hold(_)))
    }

    /// As `lock::attempt::plan_wait`.
    pub(super) fn completes_cycle(&self, memory: &Memory<'_>, process: usize) -> bool {
        if self.plans[process].inside.is_none()
            || self.is_flawed(Flaw::CycleIgnored)
            || !self.would_wait_for_hold(memory, process)
        {
            return false;
        }
        let cycle = cycle(&self.request(memory.world, process), memory).unwrap();
        matches!(cycle, Cycle::Found(_))
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
        let earlier = Self::earlier(memory, request).into_iter().rev();
        let mut ahead = earlier.filter_map(|number| {
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
        Self::earlier(memory, request)
            .into_iter()
            .find_map(|number| {
                let ticket = memory.ticket(number).unwrap();
                ticket.filter(|ticket| Self::is_before(ticket, request))
            })
    }

    /// All tickets that came before a request.
    fn earlier(memory: &Memory<'_>, request: &Request) -> Vec<u64> {
        let mut numbers: Vec<u64> = Vec::new();
        let each = memory.each_ticket(&request.wants, &mut |number, _| {
            if request.ticket.is_none_or(|own| number < own) && numbers.last() != Some(&number) {
                numbers.push(number);
            }
        });
        each.unwrap();
        numbers
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

    /// Whether a look of a waiter would have any effect.
    pub(super) fn would_change(&self, world: &World, by: usize, sleep: Sleep) -> bool {
        let outcome = self.outcome(&self.memory(world, by), by);
        let Outcome::Wait { sleep: next, .. } = outcome else {
            return true;
        };
        let mut noted = world.clone();
        Self::note_turns(&mut noted, by, &outcome);
        next != sleep || noted != *world
    }
}
