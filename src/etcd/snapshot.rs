//! The answers that a decision gets from a view, read as they are asked for.

use std::cell::{OnceCell, RefCell};
use std::ops::{ControlFlow, Range};
use std::sync::PoisonError;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::client::{Answered, Refused, for_at_most};
use super::keys::{Keys, Part, only};
use super::messages::{KeyValue, Operation, Read, Txn, TxnAnswer};
use super::store::Etcd;
use super::view::{PAGE, View, area, content};
use crate::backend::{Draft, LockSnapshot, Patience};
use crate::decision::{
    Facts, Found, Key, Life, Moment, Observer, Request, Revision, Snapshot, Ticket, Want,
};
use crate::error::{Error, Result};
use crate::identity::{Pid, ProcessId};
use crate::name::LockName;
use crate::observer;
use crate::open_file::Handle;
use crate::record::Content;
use crate::status::Waiter;

/// The content of a ticket.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Written {
    onehold: u64,
    pid: Pid,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hostname: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    command: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    since: DateTime<Utc>,
    request: Request,
}

impl Written {
    pub(super) fn new(request: &Request, draft: &Draft) -> Self {
        let record = &draft.record;
        Self {
            onehold: 1,
            pid: record.taken_by.unwrap_or_else(Pid::of_self),
            hostname: record.hostname.clone(),
            command: record.command.clone(),
            message: record.message.clone(),
            since: record.acquired_at,
            request: Request {
                // It says nothing on another machine.
                observer: None,
                ..request.clone()
            },
        }
    }

    fn into_waiter(self, position: usize) -> Waiter {
        Waiter {
            position,
            pid: self.pid,
            hostname: self.hostname,
            owner: self.request.owner,
            command: self.command,
            message: self.message,
            since: self.since,
        }
    }
}

/// The answers to the questions of a decision.
pub(crate) struct EtcdSnapshot<'a> {
    etcd: &'a Etcd,
    patience: Patience<'a>,
    view: RefCell<View>,
    now: OnceCell<Moment>,
    /// Only tickets before this one count.
    place: Option<u64>,
}

impl<'a> EtcdSnapshot<'a> {
    pub(super) fn new(etcd: &'a Etcd, view: View, patience: Patience<'a>) -> Self {
        Self {
            etcd,
            patience,
            view: RefCell::new(view),
            now: OnceCell::new(),
            place: None,
        }
    }

    /// For a caller with this ticket.
    pub(super) fn with_place(self, place: Option<u64>) -> Self {
        Self { place, ..self }
    }

    /// At another time than now.
    #[cfg(test)]
    pub(super) fn at(etcd: &'a Etcd, view: View, now: Moment) -> Self {
        let snapshot = Self::new(etcd, view, Patience::SHORT);
        let _ = snapshot.now.set(now);
        snapshot
    }

    pub(super) fn into_view(self) -> View {
        self.view.into_inner()
    }

    fn keys(&self) -> &Keys {
        &self.etcd.shared.keys
    }

    /// Makes sure that a range is known, or what is near its beginning. `name`: for whom it is asked.
    fn ensure(&self, range: &Range<String>, name: &LockName) -> Result<()> {
        while let Some(gap) = self.gap(range) {
            self.fill(gap, name)?;
        }
        Ok(())
    }

    fn gap(&self, range: &Range<String>) -> Option<Range<String>> {
        self.view.borrow().gap(range)
    }

    fn fill(&self, gap: Range<String>, name: &LockName) -> Result<()> {
        let mut view = self.view.borrow_mut();
        if view.is_guess() {
            view.guess_area(self.keys(), name, gap);
            return Ok(());
        }
        if !view.asked().contains(name) {
            let revision = view.revision;
            let reads = area(self.keys(), name, revision);
            let txn = Txn {
                success: reads.into_iter().map(Operation::Read).collect(),
                ..Txn::default()
            };
            let answer = self.etcd.read_txn(&txn, self.patience)?;
            view.begin_at(answer.header.revision);
            let found = answer.responses.into_iter().map(|answer| {
                let range = answer.response_range?;
                Some((range.kvs, range.more))
            });
            view.add_area(self.keys(), name, found.collect());
            return Ok(());
        }
        let life = self.keys().all(Part::Life);
        let mut read = Read {
            keys_only: life.contains(&gap.start),
            key: gap.start,
            range_end: gap.end,
            limit: PAGE,
            revision: view.revision,
        };
        loop {
            let answer = self.etcd.read_range(&read, self.patience)?;
            if view.add(&read, answer.kvs, answer.more).is_some() {
                return Ok(());
            }
            read.limit = read.limit.saturating_mul(2);
        }
    }

    /// The record with this key, if it is there.
    fn found(&self, key: Key) -> Option<Found<Handle>> {
        let view = self.view.borrow();
        self.etcd.found(&view, key, self.now())
    }

    /// The keys of those tickets, in order of arrival.
    fn tickets_in(&self, tree: &Range<String>) -> Vec<(u64, LockName)> {
        let view = self.view.borrow();
        let mut tickets: Vec<(u64, LockName)> = view
            .range(tree)
            .filter(|(_, found)| is_of_waiter(found))
            .filter_map(|(key, found)| {
                let name = self.keys().name_of_ticket(key)?;
                Some((Keys::number_of_ticket(key, found.create_revision), name))
            })
            .collect();
        tickets.sort_by_key(|(number, _)| *number);
        tickets
    }

    fn written(&self, number: u64) -> Option<Written> {
        let tickets = self.keys().all_tickets();
        let view = self.view.borrow();
        let (_, found) = view
            .range(&tickets)
            .find(|(key, found)| Keys::number_of_ticket(key, found.create_revision) == number)?;
        serde_json::from_slice(&found.value).ok()
    }
}

impl LockSnapshot for EtcdSnapshot<'_> {
    fn waiters(&self, name: &LockName) -> Vec<Waiter> {
        let tree = self.keys().tree(name);
        if self.ensure(&tree, name).is_err() {
            return Vec::new();
        }
        self.tickets_in(&tree)
            .into_iter()
            .filter(|(_, other)| other == name)
            .filter_map(|(number, _)| self.written(number))
            .enumerate()
            .map(|(index, written)| written.into_waiter(index + 1))
            .collect()
    }

    fn waiter(&self, ticket: &Ticket<Handle>) -> Option<Waiter> {
        Some(self.written(ticket.number)?.into_waiter(1))
    }
}

impl Snapshot for EtcdSnapshot<'_> {
    type Handle = Handle;
    type Error = Error;

    fn now(&self) -> Moment {
        *self.now.get_or_init(observer::now)
    }

    fn observer(&self) -> Observer {
        self.etcd.host.observer().clone()
    }

    fn takeover_is_safe(&self) -> bool {
        true
    }

    /// Not asked: processes are never evidence here.
    fn descends_from(&self, _process: ProcessId) -> bool {
        false
    }

    fn exclusive(&self, name: &LockName) -> Result<Option<Found<Handle>>> {
        for part in [Part::Hold, Part::Life] {
            self.ensure(&only(&self.keys().exclusive(part, name)), name)?;
        }
        Ok(self.found(Key::exclusive(name)))
    }

    fn shared(&self, name: &LockName) -> Result<Vec<Found<Handle>>> {
        let mut keys = Vec::new();
        for part in [Part::Hold, Part::Life] {
            let range = self.keys().shared(part, name);
            self.ensure(&range, name)?;
            let view = self.view.borrow();
            let found = view.range(&range);
            keys.extend(found.filter_map(|(key, _)| self.keys().hold_of(part, key)));
        }
        keys.sort_by_key(|key| key.index);
        keys.dedup();
        Ok(keys.into_iter().filter_map(|key| self.found(key)).collect())
    }

    fn below(
        &self,
        name: &LockName,
        visit: &mut dyn FnMut(Found<Handle>) -> ControlFlow<()>,
    ) -> Result<()> {
        let part_of = |part| self.keys().below(part, name);
        let (holds, lives) = (part_of(Part::Hold), part_of(Part::Life));
        // Up to where both are known; then on to the next page.
        let mut seen = holds.start.clone();
        loop {
            let known = |range: &Range<String>| self.gap(range).map(|gap| gap.start);
            let unknown = (known(&holds), known(&lives).map(|life| self.as_hold(&life)));
            let until = [unknown.0, unknown.1].into_iter().flatten().min();
            let until = until.unwrap_or_else(|| holds.end.clone());
            if until > seen {
                for key in self.held_between(&(seen..until.clone())) {
                    // Its own shared ones are no descendants.
                    if key.name == *name {
                        continue;
                    }
                    if let Some(found) = self.found(key)
                        && visit(found).is_break()
                    {
                        return Ok(());
                    }
                }
            }
            if until >= holds.end {
                return Ok(());
            }
            seen = until;
            for range in [&holds, &lives] {
                if let Some(gap) = self.gap(range) {
                    self.fill(gap, name)?;
                }
            }
        }
    }

    fn tickets(&self, wants: &[Want]) -> Result<Vec<(u64, LockName)>> {
        let mut trees: Vec<Range<String>> = Vec::new();
        for want in wants {
            let tree = self.keys().tree(&want.name);
            if !trees.contains(&tree) {
                self.ensure(&tree, &want.name)?;
                trees.push(tree);
            }
        }
        let tickets = trees.iter().flat_map(|tree| self.tickets_in(tree));
        let counts = |number: u64| self.place.is_none_or(|place| number < place);
        let mut tickets: Vec<_> = tickets.filter(|(number, _)| counts(*number)).collect();
        tickets.sort_by_key(|(number, _)| *number);
        Ok(tickets)
    }

    fn ticket(&self, number: u64) -> Result<Option<Ticket<Handle>>> {
        Ok(self.written(number).map(|written| Ticket {
            number,
            request: written.request,
            reserved_since_ms: None,
            handle: None,
        }))
    }

    /// The ticket of a stopped waiter ends by itself.
    fn is_stopped(&self, _ticket: &Ticket<Handle>) -> bool {
        false
    }
}

impl EtcdSnapshot<'_> {
    /// The key of the record that a life key belongs to.
    fn as_hold(&self, life: &str) -> String {
        let (from, to) = (self.keys().all(Part::Life), self.keys().all(Part::Hold));
        match life.strip_prefix(&from.start) {
            Some(rest) => to.start + rest,
            // The end of the range of all.
            None => to.end,
        }
    }

    /// The holds of a part of the range of records, by their records or by their life keys.
    fn held_between(&self, holds: &Range<String>) -> Vec<Key> {
        let keys = self.keys();
        let view = self.view.borrow();
        let as_life = |hold: &String| {
            let (from, to) = (keys.all(Part::Hold), keys.all(Part::Life));
            hold.strip_prefix(&from.start)
                .map_or(to.end, |rest| to.start + rest)
        };
        let lives = as_life(&holds.start)..as_life(&holds.end);
        let records = view.range(holds);
        let mut found: Vec<(String, Key)> = records
            .filter_map(|(key, _)| Some((key.clone(), keys.hold_of(Part::Hold, key)?)))
            .collect();
        let lives = view.range(&lives);
        found.extend(
            lives.filter_map(|(key, _)| Some((self.as_hold(key), keys.hold_of(Part::Life, key)?))),
        );
        found.sort_by(|one, other| one.0.cmp(&other.0));
        found.dedup_by(|one, other| one.0 == other.0);
        found.into_iter().map(|(_, key)| key).collect()
    }
}

impl Etcd {
    /// The record with this key, as a view shows it.
    pub(super) fn found(&self, view: &View, key: Key, now: Moment) -> Option<Found<Handle>> {
        let keys = &self.shared.keys;
        let hold = view.get(&keys.of(Part::Hold, &key));
        let life = view.get(&keys.of(Part::Life, &key));
        let content = match hold {
            None if life.is_none() => return None,
            None => Content::Corrupt,
            Some(hold) => content(&hold.value, life.is_some()),
        };
        let known_as = match life {
            Some(_) => Life::Kept,
            None => Life::Gone {
                known_for_ms: self.known_gone_for(&keys.of(Part::Hold, &key), hold, now),
            },
        };
        let number = content.record().map_or(0, |record| record.hold);
        let written = hold.or(life).map_or(0, |found| found.mod_revision);
        Some(Found {
            revision: Revision {
                file: 0,
                hold: number,
                digest: if number == 0 {
                    written.cast_unsigned()
                } else {
                    0
                },
            },
            facts: Facts {
                modified: now.wall,
                kernel_lock: None,
                lockers: Vec::new(),
                processes: Vec::new(),
                same_store: true,
                shares_kernel_locks: true,
                stays: false,
                life: Some(known_as),
            },
            key,
            content,
            handle: None,
        })
    }

    /// For how long this process has known that a record is dead, as it stands now.
    fn known_gone_for(&self, key: &str, hold: Option<&KeyValue>, now: Moment) -> u64 {
        let revision = hold.map_or(0, |hold| hold.mod_revision);
        let mut gone = self
            .shared
            .gone
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let since = gone
            .entry((key.to_owned(), revision))
            .or_insert(now.boottime_ms);
        now.boottime_ms.saturating_sub(*since)
    }

    /// Reads; what it answers is of one moment.
    pub(super) fn read_txn(&self, txn: &Txn, patience: Patience<'_>) -> Result<TxnAnswer> {
        let client = &self.shared.client;
        self.known(READ, patience, || {
            client.txn_once(txn, super::client::TIMEOUT)
        })
        .map(|(answer, _)| answer)
    }

    pub(super) fn read_range(
        &self,
        read: &Read,
        patience: Patience<'_>,
    ) -> Result<super::messages::ReadAnswer> {
        let client = &self.shared.client;
        self.known(READ, patience, || client.read_once(read))
            .map(|(answer, _)| answer)
    }

    /// The answer to a request whose fate is known in the end. A refusal is an error. The second value: an
    /// earlier try may have been applied.
    pub(super) fn known<T>(
        &self,
        operation: &'static str,
        patience: Patience<'_>,
        once: impl FnMut() -> super::client::Answer<T>,
    ) -> Result<(T, bool)> {
        let client = &self.shared.client;
        match client.until_known(operation, go_on(patience), once)? {
            (Answered::Done(answer), again) => Ok((answer, again)),
            (Answered::Refused(refused), _) if refused.is_compacted() => Err(compacted(client)),
            (Answered::Refused(refused), _) => Err(client.refused(operation, &refused)),
        }
    }
}

/// Whether a ticket belongs to a waiter. A ticket without a lease would block the queue for ever. A ticket that is
/// only a number belongs to a holder.
pub(super) fn is_of_waiter(ticket: &KeyValue) -> bool {
    ticket.lease != 0 && !is_number(&ticket.value)
}

/// Whether this is the number of a hold, as it is written alone.
pub(super) fn is_number(value: &[u8]) -> bool {
    value.len() == 16 && value.iter().all(u8::is_ascii_digit)
}

pub(super) const READ: &str = "read locks in";

/// What is read of an older revision may have been removed meanwhile.
const COMPACTED: &str = "what was being read has been compacted";

fn compacted(client: &super::client::Client) -> Error {
    Error::Remote {
        operation: READ,
        store: client.address().url.clone(),
        reason: COMPACTED.to_owned(),
        remedy: None,
    }
}

/// Whether a read is to be begun again.
pub(super) fn is_compacted(error: &Error) -> bool {
    matches!(error, Error::Remote { reason, .. } if reason == COMPACTED)
}

/// Reads until nothing of it was compacted meanwhile.
pub(super) fn until_not_compacted<T>(mut read: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match read() {
            Err(error) if is_compacted(&error) => {}
            found => return found,
        }
    }
}

/// Whether an answer was larger than any that is read.
pub(super) fn is_too_large(error: &Error) -> bool {
    matches!(error, Error::Remote { reason, .. } if reason == super::client::TOO_LARGE)
}

/// How long a caller is patient with a store that cannot be reached.
pub(super) fn go_on(patience: Patience<'_>) -> impl FnMut() -> bool {
    let mut is_in_time: Box<dyn FnMut() -> bool> = match patience.at_most {
        Some(limit) => Box::new(for_at_most(limit)),
        None => Box::new(|| true),
    };
    move || {
        let canceled = patience
            .canceled
            .is_some_and(|flag| flag.load(std::sync::atomic::Ordering::Relaxed));
        !canceled && is_in_time()
    }
}

/// Whether a refusal means that a lease has ended.
pub(super) fn is_ended(refused: &Refused) -> bool {
    refused.is_not_found()
}
