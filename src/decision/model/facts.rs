//! The records, facts and verdicts that a state stands for, and the locks as one process finds them.

use super::flaws::Flaw;
use super::world::{
    BOOT, Child, File, Holder, LONG_MS, NAMES, NOW_MS, Process, Reserved, Setting, TTL_MS, World,
    boot_id, child_pid, followed_pid, observer, process_id, wrapper_pid,
};
use crate::decision::liveness::DEFAULT_MAX_AGE;
use crate::decision::verdict::{State, Verdict};
use crate::decision::{
    Facts, Found, Judged, Key, Moment, Observer, ProcessFact, Revision, Snapshot, Ticket, Visit,
    Want, judge, needed,
};
use crate::error::Result;
use crate::identity::{Origin, Pid, ProcessId};
use crate::name::LockName;
use crate::record::{Content, Format, Kind, Live, Record};
use crate::sys::ProcessState;

impl Setting {
    /// The record that a file of the model stands for.
    fn record(&self, file: &File) -> Record {
        let at = usize::from(file.by);
        let plan = &self.plans[at];
        let taken_by = process_id(wrapper_pid(at));
        let mut record = Record::new(Format::Native, Some(taken_by.pid), self.now);
        NAMES[usize::from(file.slot.name)].clone_into(&mut record.name);
        if plan.wants.len() > 1 {
            let names = plan.wants.iter().map(|(name, _)| NAMES[usize::from(*name)]);
            record.names = names.map(str::to_owned).collect();
        }
        record.mode = plan
            .wants
            .iter()
            .find(|(name, _)| *name == file.slot.name)
            .unwrap()
            .1;
        record.hold = u64::from(file.number);
        record.kind = match plan.holder {
            Holder::Run | Holder::Exec => Kind::Run,
            Holder::Library | Holder::Process => Kind::Process,
            Holder::Lease => Kind::Lease,
        };
        record.hostname = Some("host".to_owned());
        record.owner = plan.owner.map(str::to_owned);
        record.ttl_ms = (plan.holder == Holder::Lease).then_some(TTL_MS);
        record.close = plan.close && !self.is_flawed(Flaw::CloseIgnored);
        record.exec = plan.holder == Holder::Exec;
        record.die_with = (plan.dies_with && !self.is_flawed(Flaw::CallerIgnored))
            .then(|| process_id(followed_pid(at)));
        record.kernel_lock = !matches!(plan.holder, Holder::Process | Holder::Lease);
        record.origin = Some(Origin {
            start: taken_by.start,
            boot: Some(boot_id()),
            machine: Some("machine".to_owned()),
            pid_namespace: Some(plan.pid_namespace),
            incarnation: None,
            acquired_boottime_ms: NOW_MS,
            store_device: 1,
            store_inode: 1,
        });
        if file.torn {
            record.live.is_torn = !self.is_flawed(Flaw::TornSlotTrusted);
            return record;
        }
        record
            .live
            .set_process((file.pid != 0).then(|| process_id(file.pid)));
        record.live.let_go = file.let_go && !self.is_flawed(Flaw::NoteIgnored);
        record.live.released = file.released;
        if file.confirmed && plan.holder == Holder::Lease {
            let passed = if file.expired { TTL_MS } else { 0 };
            record.live = Live {
                renewed_at: Some(self.now),
                renewed_boottime_ms: Some(NOW_MS - passed),
                renewed_boot_id: Some(BOOT.to_owned()),
                ..record.live
            };
        }
        record
    }

    /// What is found out about a file, from where `by` looks.
    fn facts(&self, world: &World, file: &File, content: &Content, by: &Observer) -> Facts {
        let needed = needed(content, by);
        let processes: Vec<ProcessFact> = needed
            .processes
            .into_iter()
            .map(|pid| ProcessFact {
                pid,
                state: process_state(world, pid),
                began_ms: None,
            })
            .collect();
        let all_gone = !processes.is_empty()
            && processes
                .iter()
                .all(|fact| fact.state == ProcessState::Gone);
        let mut kernel_lock = self.is_locked(world, file);
        if self.is_flawed(Flaw::DeadWrapperIsDead) && all_gone {
            kernel_lock = false;
        }
        Facts {
            modified: self.now,
            kernel_lock: needed.kernel_lock.then_some(kernel_lock),
            lockers: Vec::new(),
            processes,
            pid_namespace: None,
            clock_at_boot: None,
            same_store: true,
            shares_kernel_locks: true,
            is_over: world.is_over(file.number),
            stays: false,
            life: None,
        }
    }

    /// Whether somebody holds the kernel lock of a file by a descriptor.
    fn is_locked(&self, world: &World, file: &File) -> bool {
        let at = usize::from(file.by);
        let (process, plan) = (&world.processes[at], &self.plans[at]);
        let is_own = process.own.iter().any(|own| own.id == file.id);
        let command_has_it = matches!(process.child, Child::Running | Child::Daemon)
            && !plan.close
            && !process.let_go;
        is_own
            && process.locked
            && (process.exists() || process.child.is_starting() || command_has_it)
    }

    pub(super) fn found(&self, world: &World, file: &File, by: &Observer) -> Found<u8> {
        let content = Content::Record(Box::new(self.record(file)));
        Found {
            key: Key {
                name: self.names[usize::from(file.slot.name)].clone(),
                index: file.slot.index.map(|index| u32::from(index).into()),
            },
            facts: self.facts(world, file, &content, by),
            content,
            revision: revision(file.inode, file.number),
            handle: file.id,
        }
    }

    pub(super) fn judged(&self, world: &World, file: &File, by: &Observer) -> Judged<u8> {
        let found = self.found(world, file, by);
        let moment = self.moment();
        let verdict = judge(&found.content, &found.facts, by, DEFAULT_MAX_AGE, &moment);
        Judged { found, verdict }
    }

    fn moment(&self) -> Moment {
        Moment {
            wall: self.now,
            boottime_ms: NOW_MS,
        }
    }
}

pub(super) fn revision(inode: u8, number: u8) -> Revision {
    Revision {
        file: u64::from(inode),
        hold: u64::from(number),
        digest: 0,
    }
}

pub(super) fn is_dead(verdict: &Verdict) -> bool {
    matches!(verdict.state, State::Zombie | State::Free)
}

fn process_state(world: &World, pid: Pid) -> ProcessState {
    let pid = u8::try_from(pid.get()).unwrap();
    let exists = world.processes.iter().enumerate().any(|(at, process)| {
        (pid == wrapper_pid(at) && process.exists())
            || (pid == followed_pid(at) && process.followed)
            || (process.children > 0
                && pid == child_pid(at, process.children)
                && process.child.exists())
    });
    if exists {
        ProcessState::Alive {
            start: process_id(pid).start,
        }
    } else {
        ProcessState::Gone
    }
}

/// The locks of a world, as one of its processes finds them.
pub(super) struct Memory<'a> {
    pub(super) setting: &'a Setting,
    pub(super) world: &'a World,
    /// Who asks; `None`: somebody who takes no part.
    pub(super) caller: Option<usize>,
    /// Records are listed the other way round.
    pub(super) is_reversed: bool,
}

impl Memory<'_> {
    fn all(&self, mut choose: impl FnMut(&File) -> bool) -> Vec<Found<u8>> {
        let observer = self.observer();
        let mut found: Vec<_> = self
            .world
            .files
            .iter()
            .filter(|file| choose(file))
            .map(|file| self.setting.found(self.world, file, &observer))
            .collect();
        if self.is_reversed {
            found.reverse();
        }
        found
    }

    fn name_of(&self, file: &File) -> &LockName {
        &self.setting.names[usize::from(file.slot.name)]
    }

    fn listed_ticket(&self, process: &Process) -> Option<u8> {
        let kept_place_waits = self.setting.is_flawed(Flaw::KeptPlaceWaits);
        process.ticket.or(process.kept.filter(|_| kept_place_waits))
    }

    /// Whether a name is above one that the caller wants, and not wanted itself.
    fn is_above_caller(&self, name: &LockName) -> bool {
        self.caller.is_some_and(|caller| {
            let wants = self.setting.wants(caller);
            wants.iter().all(|want| want.name != *name)
                && wants.iter().any(|want| name.is_ancestor_of(&want.name))
        })
    }
}

impl Snapshot<u8> for Memory<'_> {
    fn now(&self) -> Moment {
        self.setting.moment()
    }

    fn observer(&self) -> Observer {
        observer(
            self.caller
                .map_or(0, |caller| self.setting.plans[caller].pid_namespace),
        )
    }

    fn takeover_is_safe(&self) -> bool {
        true
    }

    fn descends_from(&self, process: ProcessId) -> bool {
        let mut of = self.caller;
        while let Some(caller) = of {
            if process == process_id(wrapper_pid(caller)) {
                return true;
            }
            of = self.setting.plans[caller].inside;
            if let Some(parent) = of
                && process == process_id(child_pid(parent, self.world.processes[parent].children))
            {
                return true;
            }
        }
        false
    }

    fn exclusive(&self, name: &LockName) -> Result<Option<Found<u8>>> {
        let mut found = self.all(|file| file.slot.index.is_none() && self.name_of(file) == name);
        Ok(found.pop())
    }

    fn shared(&self, name: &LockName) -> Result<Vec<Found<u8>>> {
        if self.setting.is_flawed(Flaw::SharedAsChild) && self.is_above_caller(name) {
            return Ok(Vec::new());
        }
        let mut found = self.all(|file| file.slot.index.is_some() && self.name_of(file) == name);
        if self.setting.is_flawed(Flaw::SlotCountedTwice) {
            found.extend(found.clone());
        }
        Ok(found)
    }

    fn below(&self, name: &LockName, visit: &mut Visit<'_, u8>) -> Result<()> {
        for found in self.all(|file| name.is_ancestor_of(self.name_of(file))) {
            if visit(found).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn each_ticket(&self, wants: &[Want], visit: &mut dyn FnMut(u64, &LockName)) -> Result<()> {
        let first = |name: &LockName| name.as_str().split('/').next().map(str::to_owned);
        let mut tickets = Vec::new();
        for (at, process) in self.world.processes.iter().enumerate() {
            let Some(number) = self.listed_ticket(process) else {
                continue;
            };
            for theirs in self.setting.wants(at) {
                if wants
                    .iter()
                    .any(|want| first(&want.name) == first(&theirs.name))
                {
                    tickets.push((u64::from(number), &theirs.name));
                }
            }
        }
        tickets.sort_by_key(|(number, _)| *number);
        for (number, name) in tickets {
            visit(number, name);
        }
        Ok(())
    }

    fn ticket(&self, number: u64) -> Result<Option<Ticket<u8>>> {
        let waiter = self
            .world
            .processes
            .iter()
            .position(|process| self.listed_ticket(process).map(u64::from) == Some(number));
        let Some(at) = waiter else {
            return Ok(None);
        };
        let mut request = self.setting.request(self.world, at);
        // It is not in the file.
        request.ticket = None;
        if self.setting.is_flawed(Flaw::WaiterJudgedByUs) {
            request.observer = None;
        }
        if self.setting.is_flawed(Flaw::HoldsNotOnTicket) {
            request.inside.clear();
        }
        if self.setting.is_flawed(Flaw::LimitNotOnTicket) {
            request.waits_until_ms = request.waits_until_ms.map(|_| u64::MAX);
        }
        let endless = self.setting.is_flawed(Flaw::EndlessReservation);
        Ok(Some(Ticket {
            number,
            request,
            reserved_since_ms: match self.world.processes[at].reserved {
                Reserved::No => None,
                Reserved::Missed if !endless => Some(NOW_MS - LONG_MS),
                Reserved::Yes | Reserved::Missed => Some(NOW_MS),
            },
            handle: u8::try_from(at).unwrap(),
        }))
    }

    fn waiters_inside(&self) -> Result<Vec<Ticket<u8>>> {
        let others = self.world.processes.iter().enumerate();
        let others = others.filter(|(at, _)| Some(*at) != self.caller);
        let numbers = others.filter_map(|(_, process)| process.ticket);
        let tickets = numbers.filter_map(|number| self.ticket(u64::from(number)).transpose());
        let mut tickets = tickets.collect::<Result<Vec<_>>>()?;
        tickets.retain(|ticket| !ticket.request.inside.is_empty());
        Ok(tickets)
    }

    fn is_awaited(&self, waiter: Option<&Ticket<u8>>, hold: &Found<u8>) -> bool {
        let waiter = waiter.map(|ticket| usize::from(ticket.handle));
        let both = waiter.or(self.caller).zip(self.world.file(hold.handle));
        both.is_some_and(|(waiter, file)| {
            let (plan, holder) = (&self.setting.plans[waiter], usize::from(file.by));
            plan.inside == Some(holder)
                && self.world.processes[holder].child == Child::Running
                && (!plan.background || self.setting.is_flawed(Flaw::BackgroundAwaited))
        })
    }

    fn is_stopped(&self, ticket: &Ticket<u8>) -> bool {
        let ticket = u8::try_from(ticket.number).unwrap();
        self.setting.notices_stop(self.world, ticket)
    }
}
