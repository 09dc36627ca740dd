//! The tables of the decision, row by row, over locks in memory.

mod compatibility;
mod decide;
mod ownership;
mod properties;

use std::convert::Infallible;
use std::num::NonZeroU32;
use std::ops::ControlFlow;

use chrono::{DateTime, TimeDelta, Utc};

use super::liveness::DEFAULT_MAX_AGE;
use super::*;
use crate::identity::{BootId, Origin, Pid, ProcessId};
use crate::name::LockName;
use crate::record::{Content, Format, Kind, Mode, Record};
use crate::sys::ProcessState;

const BOOTTIME: u64 = 360_000_000;

fn now() -> DateTime<Utc> {
    "2026-11-20T12:00:00Z".parse().expect("a time")
}

fn name(text: &str) -> LockName {
    LockName::new(text).expect(text)
}

fn process(number: u32) -> ProcessId {
    ProcessId {
        pid: Pid::new(number).expect("a PID"),
        start: Some(u64::from(number) * 10),
    }
}

const EXCLUSIVE: Mode = Mode::Exclusive;
const SHARED: Mode = Mode::Shared;

fn slots(limit: u32) -> Mode {
    Mode::Slots(NonZeroU32::new(limit).unwrap())
}

fn want(text: &str, mode: Mode) -> Want {
    Want {
        name: name(text),
        mode,
    }
}

fn observer() -> Observer {
    Observer {
        boot: Some(BootId {
            id: "this".to_owned(),
            masked: false,
        }),
        machine: None,
        pid_namespace: Some(1),
        is_in_container: false,
        hostname: Some("db1".to_owned()),
        over: Vec::new(),
    }
}

/// A request for one lock by a caller that holds nothing.
fn request(text: &str) -> Request {
    request_for(vec![want(text, EXCLUSIVE)])
}

fn request_for(wants: Vec<Want>) -> Request {
    Request {
        wants,
        owner: None,
        inside: Vec::new(),
        asker: Asker::Caller,
        max_age_ms: u64::try_from(DEFAULT_MAX_AGE.as_millis()).expect("a day"),
        take_zombies: true,
        replace: Vec::new(),
        skip_queue: false,
        ticket: None,
        observer: Some(observer()),
        over: Vec::new(),
    }
}

impl Request {
    fn owned_by(mut self, owner: &str) -> Self {
        self.owner = Some(owner.to_owned());
        self
    }

    fn inside(mut self, hold: u64) -> Self {
        self.inside.push(hold);
        self
    }

    fn by(mut self, asker: Asker) -> Self {
        self.asker = asker;
        self
    }

    fn leaving_zombies(mut self) -> Self {
        self.take_zombies = false;
        self
    }

    fn skipping_the_queue(mut self) -> Self {
        self.skip_queue = true;
        self
    }

    fn replacing(mut self, hold: &Found<u64>) -> Self {
        self.replace = vec![hold.revision.clone()];
        self
    }
}

/// A `run` that is alive. Its number is also its handle.
fn run(number: u64, text: &str) -> Found<u64> {
    let wrapper = process(u32::try_from(number).expect("few holds") * 10);
    let command = process(wrapper.pid.get() + 1);
    let mut record = Record::new(
        Format::Native,
        Some(wrapper.pid),
        now() - TimeDelta::hours(1),
    );
    record.name = text.to_owned();
    record.hold = number;
    record.kind = Kind::Run;
    record.hostname = Some("db1".to_owned());
    record.kernel_lock = true;
    record.live.set_process(Some(command));
    record.origin = Some(Origin {
        start: wrapper.start,
        boot: observer().boot,
        machine: None,
        pid_namespace: Some(1),
        acquired_boottime_ms: BOOTTIME - 3_600_000,
        store_device: 7,
        store_inode: 8,
    });
    Found {
        key: Key {
            name: name(text),
            index: None,
        },
        content: Content::Record(Box::new(record)),
        facts: Facts {
            modified: now() - TimeDelta::hours(1),
            kernel_lock: Some(true),
            lockers: Vec::new(),
            processes: vec![alive(wrapper), alive(command)],
            same_store: true,
            shares_kernel_locks: true,
        },
        revision: Revision {
            file: number,
            hold: number,
            digest: 0,
        },
        handle: number,
    }
}

fn alive(process: ProcessId) -> ProcessFact {
    ProcessFact {
        pid: process.pid,
        state: ProcessState::Alive {
            start: process.start,
        },
        began_ms: None,
    }
}

fn gone(process: ProcessId) -> ProcessFact {
    ProcessFact {
        state: ProcessState::Gone,
        ..alive(process)
    }
}

/// A detached hold of a process that is alive.
fn detached(number: u64, text: &str, holder: ProcessId) -> Found<u64> {
    let mut found = run(number, text).with(|record| {
        record.kind = Kind::Process;
        record.kernel_lock = false;
        record.live.set_process(Some(holder));
    });
    found.facts.kernel_lock = None;
    found.facts.processes = vec![alive(holder)];
    found
}

/// A lease that has not expired.
fn lease(number: u64, text: &str) -> Found<u64> {
    run(number, text).with(|record| {
        record.kind = Kind::Lease;
        record.kernel_lock = false;
        record.ttl_ms = Some(7_200_000);
        record.live.set_process(None);
        record.live.expires_at = Some(now());
    })
}

fn not_a_lock(number: u64, text: &str) -> Found<u64> {
    let mut found = run(number, text);
    found.content = Content::NotALock("something else");
    found
}

impl Found<u64> {
    fn with(mut self, change: impl FnOnce(&mut Record)) -> Self {
        if let Content::Record(record) = &mut self.content {
            change(record);
        }
        self
    }

    fn shared(mut self, index: u32) -> Self {
        self.key.index = Some(index);
        self
    }

    fn owned_by(self, owner: &str) -> Self {
        self.with(|record| record.owner = Some(owner.to_owned()))
    }

    fn dead(mut self) -> Self {
        self.facts.kernel_lock = Some(false);
        for fact in &mut self.facts.processes {
            fact.state = ProcessState::Gone;
        }
        self
    }

    fn expired(self) -> Self {
        self.with(|record| record.ttl_ms = Some(1))
    }

    /// Its processes are in another PID namespace, and it may be alive.
    fn unverified(mut self) -> Self {
        self.facts.kernel_lock = None;
        self.facts.processes.clear();
        self.with(|record| {
            if let Some(origin) = &mut record.origin {
                origin.pid_namespace = Some(2);
            }
        })
    }

    fn too_old(self) -> Self {
        self.unverified().with(|record| {
            if let Some(origin) = &mut record.origin {
                origin.acquired_boottime_ms -= 100 * 3_600_000 - 3_600_000;
            }
        })
    }

    fn finished(self) -> Self {
        self.dead().with(|record| {
            record.exec = true;
            record.live.set_process(None);
        })
    }

    fn corrupt(mut self) -> Self {
        self = self.dead();
        self.content = Content::Corrupt;
        self.revision.hold = 0;
        self
    }
}

/// Locks in memory.
#[derive(Clone, Debug)]
struct Memory {
    holds: Vec<Found<u64>>,
    tickets: Vec<Ticket<u64>>,
    is_safe: bool,
    ancestors: Vec<ProcessId>,
}

fn memory(holds: impl IntoIterator<Item = Found<u64>>) -> Memory {
    Memory {
        holds: holds.into_iter().collect(),
        tickets: Vec::new(),
        is_safe: true,
        ancestors: Vec::new(),
    }
}

impl Memory {
    /// With waiters, in this order; the first one has number 1.
    fn awaited_by(mut self, waiters: impl IntoIterator<Item = Request>) -> Self {
        for request in waiters {
            let number = self.tickets.len() as u64 + 1;
            self.tickets.push(Ticket {
                number,
                request,
                reserved_since_ms: None,
                handle: number,
            });
        }
        self
    }

    fn reserved(mut self, number: u64, ago_ms: u64) -> Self {
        for ticket in &mut self.tickets {
            if ticket.number == number {
                ticket.reserved_since_ms = Some(BOOTTIME - ago_ms);
            }
        }
        self
    }

    /// A filesystem where a takeover may have two winners.
    fn over_a_network(mut self) -> Self {
        self.is_safe = false;
        self
    }

    fn below(mut self, ancestors: impl IntoIterator<Item = ProcessId>) -> Self {
        self.ancestors.extend(ancestors);
        self
    }

    /// The decision about a waiter of this queue.
    fn of_waiter(&self, number: u64) -> Short {
        let ticket = self.tickets.iter().find(|ticket| ticket.number == number);
        let request = Request {
            ticket: Some(number),
            ..ticket.expect("a ticket").request.clone()
        };
        decided(&request, self)
    }
}

impl Snapshot for Memory {
    type Handle = u64;
    type Error = Infallible;

    fn now(&self) -> Moment {
        Moment {
            wall: now(),
            boottime_ms: BOOTTIME,
        }
    }

    fn observer(&self) -> Observer {
        observer()
    }

    fn takeover_is_safe(&self) -> bool {
        self.is_safe
    }

    fn descends_from(&self, process: ProcessId) -> bool {
        self.ancestors.contains(&process)
    }

    fn exclusive(&self, name: &LockName) -> Result<Option<Found<u64>>, Infallible> {
        let is_it = |found: &&Found<u64>| found.key.name == *name && found.key.index.is_none();
        Ok(self.holds.iter().find(is_it).cloned())
    }

    fn shared(&self, name: &LockName) -> Result<Vec<Found<u64>>, Infallible> {
        let is_it = |found: &&Found<u64>| found.key.name == *name && found.key.index.is_some();
        Ok(self.holds.iter().filter(is_it).cloned().collect())
    }

    fn below(
        &self,
        name: &LockName,
        visit: &mut dyn FnMut(Found<u64>) -> ControlFlow<()>,
    ) -> Result<(), Infallible> {
        for found in &self.holds {
            if name.is_ancestor_of(&found.key.name) && visit(found.clone()).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn tickets(&self, wants: &[Want]) -> Result<Vec<(u64, LockName)>, Infallible> {
        let first = |name: &LockName| name.segments().first().cloned();
        let mut tickets = Vec::new();
        for ticket in &self.tickets {
            for theirs in &ticket.request.wants {
                if wants
                    .iter()
                    .any(|own| first(&own.name) == first(&theirs.name))
                {
                    tickets.push((ticket.number, theirs.name.clone()));
                }
            }
        }
        Ok(tickets)
    }

    fn ticket(&self, number: u64) -> Result<Option<Ticket<u64>>, Infallible> {
        let is_it = |ticket: &&Ticket<u64>| ticket.number == number;
        Ok(self.tickets.iter().find(is_it).cloned())
    }
}

/// A decision, holds by their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Short {
    /// What is written where, in place of which hold; and what is removed.
    Take(Vec<(String, Option<u32>, Option<u64>)>, Vec<u64>),
    AlreadyHeld(u64),
    Wait(u64),
    WaitForAny(Vec<u64>),
    WaitBehind(u64),
    Blocked(u64),
    Refuse(u64),
}

fn decided(request: &Request, memory: &Memory) -> Short {
    let number = |judged: &Judged<u64>| judged.found.handle;
    match decide_in(request, memory) {
        Decision::Take { put, remove } => Short::Take(
            put.iter()
                .map(|(key, replaced)| {
                    let name = key.name.as_str().to_owned();
                    (name, key.index, replaced.as_ref().map(number))
                })
                .collect(),
            remove.iter().map(number).collect(),
        ),
        Decision::AlreadyHeld(judged) => Short::AlreadyHeld(number(&judged)),
        Decision::Wait(Obstacle::Hold(judged)) => Short::Wait(number(&judged)),
        Decision::Wait(Obstacle::Waiter(ticket)) => Short::WaitBehind(ticket.number),
        Decision::Blocked(judged) => Short::Blocked(number(&judged)),
        Decision::Refuse(judged, _) => Short::Refuse(number(&judged)),
    }
}

fn decide_in(request: &Request, memory: &Memory) -> Decision<u64> {
    let Ok(decision) = super::decide(request, memory);
    decision
}

/// The lock is taken; nothing was there.
fn taken(text: &str) -> Short {
    Short::Take(vec![(text.to_owned(), None, None)], vec![])
}

fn judged(found: &Found<u64>) -> Judged<u64> {
    let verdict = judge(
        &found.content,
        &found.facts,
        &observer(),
        DEFAULT_MAX_AGE,
        &Moment {
            wall: now(),
            boottime_ms: BOOTTIME,
        },
    );
    Judged {
        found: found.clone(),
        verdict,
    }
}
