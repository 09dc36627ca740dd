//! What is known of a store as of one revision, and the answers that a decision gets from it.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::sync::PoisonError;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::Etcd;
use super::client::{Answered, Refused, for_at_most};
use super::keys::{Keys, Part, only};
use super::messages::{KeyValue, Operation, Read, Txn, TxnAnswer};
use crate::backend::{Draft, Patience};
use crate::decision::{
    Facts, Found, Key, Life, Moment, Observer, Request, Revision, Snapshot, Ticket, Want,
};
use crate::error::{Error, Result};
use crate::format;
use crate::identity::{Pid, ProcessId};
use crate::name::LockName;
use crate::observer;
use crate::record::{Content, MAX_RECORD_BYTES};
use crate::status::Waiter;

/// How many keys of a range are read with the first request, and with each later one.
const FIRST_PAGE: i64 = 100;
const PAGE: i64 = 500;

/// Where the content of a view comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// Nothing was read yet.
    Unread,
    /// Nothing was read: it is guessed that there is nothing. Good for nothing but a take, which fails if the
    /// guess is wrong.
    Guess,
    /// It was read, and some of it has been deleted since, as far as is known. Good for a take alone.
    News,
    /// It was read.
    Read,
}

/// Keys of a store as of one revision.
#[derive(Clone, Debug)]
pub(super) struct View {
    source: Source,
    /// 0: none.
    pub(super) revision: i64,
    keys: BTreeMap<String, KeyValue>,
    /// The ranges of which everything is in `keys`.
    covered: Vec<Range<String>>,
    /// The names whose surroundings were asked for.
    asked: Vec<LockName>,
}

impl View {
    pub(super) fn unread() -> Self {
        Self {
            source: Source::Unread,
            revision: 0,
            keys: BTreeMap::new(),
            covered: Vec::new(),
            asked: Vec::new(),
        }
    }

    /// That there is nothing.
    pub(super) fn guess() -> Self {
        Self {
            source: Source::Guess,
            ..Self::unread()
        }
    }

    /// Whether it may be relied on only for what fails otherwise.
    pub(super) fn is_assumed(&self) -> bool {
        matches!(self.source, Source::Guess | Source::News)
    }

    pub(super) fn get(&self, key: &str) -> Option<&KeyValue> {
        self.keys.get(key)
    }

    /// When a key was last written; 0: there is none.
    pub(super) fn modified(&self, key: &str) -> i64 {
        self.get(key).map_or(0, |found| found.mod_revision)
    }

    pub(super) fn range(
        &self,
        range: &Range<String>,
    ) -> impl Iterator<Item = (&String, &KeyValue)> {
        self.keys.range(range.clone())
    }

    /// Notes that a key has been deleted since.
    pub(super) fn remove(&mut self, key: &str) {
        if self.keys.remove(key).is_some() && self.source == Source::Read {
            self.source = Source::News;
        }
    }

    /// The same, which was read at its revision.
    pub(super) fn asked(&self) -> &[LockName] {
        &self.asked
    }

    /// The first part of a range that is not known.
    fn gap(&self, range: &Range<String>) -> Option<Range<String>> {
        let mut from = range.start.clone();
        while from < range.end {
            let covering = self.covered.iter().filter(|known| known.contains(&from));
            let Some(end) = covering.map(|known| &known.end).max() else {
                let next = self.covered.iter().map(|known| &known.start);
                let end = next.filter(|start| **start > from).min();
                let end = end.map_or(&range.end, |end| end.min(&range.end));
                return Some(from..end.clone());
            };
            from.clone_from(end);
        }
        None
    }

    /// Takes in a page; the last key of it.
    pub(super) fn add_page(
        &mut self,
        read: &Read,
        found: Vec<KeyValue>,
        more: bool,
    ) -> Option<String> {
        self.source = Source::Read;
        let last = found
            .last()
            .map(|last| String::from_utf8_lossy(&last.key).into_owned());
        self.add(read, found, more);
        last
    }

    /// Takes in what was read of a range.
    fn add(&mut self, read: &Read, found: Vec<KeyValue>, more: bool) {
        let mut last = None;
        for found in found {
            let key = String::from_utf8_lossy(&found.key).into_owned();
            last = Some(key.clone());
            // What was read with its value stays so.
            if !(read.keys_only && self.keys.contains_key(&key)) {
                self.keys.insert(key, found);
            }
        }
        let end = match last {
            Some(last) if more => format!("{last}\0"),
            _ => read.range_end.clone(),
        };
        self.covered.push(read.key.clone()..end);
    }

    /// Takes in the answer to the reads for a name.
    fn add_area(
        &mut self,
        keys: &Keys,
        name: &LockName,
        answer: Vec<Option<(Vec<KeyValue>, bool)>>,
    ) {
        for (read, found) in area(keys, name, 0).into_iter().zip(answer) {
            let (found, more) = found.unwrap_or_default();
            self.add(&read, found, more);
        }
        self.asked.push(name.clone());
    }

    /// The view that a transaction brought whose reads are those for `asked`, from its answer `from` on.
    pub(super) fn of_answer(
        keys: &Keys,
        asked: &[LockName],
        answer: &TxnAnswer,
        from: usize,
    ) -> Self {
        let mut view = Self {
            source: Source::Read,
            revision: answer.header.revision,
            ..Self::unread()
        };
        let mut found = answer.responses.iter().skip(from).map(|answer| {
            let range = answer.response_range.clone()?;
            Some((range.kvs, range.more))
        });
        for name in asked {
            let length = area(keys, name, 0).len();
            let of_name: Vec<_> = found.by_ref().take(length).collect();
            view.add_area(keys, name, of_name);
        }
        view
    }
}

/// What matters to a request for a name: its own keys and tickets, and those of its relatives.
pub(super) fn area(keys: &Keys, name: &LockName, revision: i64) -> Vec<Read> {
    let read = |range: Range<String>, limit, keys_only| Read {
        key: range.start,
        range_end: range.end,
        limit,
        revision,
        keys_only,
    };
    let mut reads = vec![
        read(only(&keys.exclusive(Part::Hold, name)), 0, false),
        read(only(&keys.exclusive(Part::Life, name)), 0, true),
        read(only(&keys.last()), 0, false),
        read(keys.tree(name), FIRST_PAGE, false),
        read(keys.below(Part::Hold, name), FIRST_PAGE, false),
        read(keys.below(Part::Life, name), FIRST_PAGE, true),
    ];
    for ancestor in name.ancestors() {
        reads.push(read(only(&keys.exclusive(Part::Hold, &ancestor)), 0, false));
        reads.push(read(only(&keys.exclusive(Part::Life, &ancestor)), 0, true));
        reads.push(read(keys.shared(Part::Hold, &ancestor), FIRST_PAGE, false));
        reads.push(read(keys.shared(Part::Life, &ancestor), FIRST_PAGE, true));
    }
    reads
}

/// The reads for some names, as operations.
pub(super) fn reads(keys: &Keys, names: &[LockName]) -> Vec<Operation> {
    let reads = names.iter().flat_map(|name| area(keys, name, 0));
    reads.map(Operation::Read).collect()
}

/// The content of a ticket.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Written {
    onehold: u64,
    pid: Pid,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hostname: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    command: Vec<String>,
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
            since: self.since,
        }
    }
}

/// The answers to the questions of a decision.
pub(crate) struct EtcdSnapshot<'a, H> {
    etcd: &'a Etcd<H>,
    patience: Patience<'a>,
    view: RefCell<View>,
    now: OnceCell<Moment>,
}

impl<'a, H: Clone + Default> EtcdSnapshot<'a, H> {
    pub(super) fn new(etcd: &'a Etcd<H>, view: View, patience: Patience<'a>) -> Self {
        Self {
            etcd,
            patience,
            view: RefCell::new(view),
            now: OnceCell::new(),
        }
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
        let is_asked = view.asked.contains(name);
        if view.source == Source::Guess {
            for read in area(self.keys(), name, 0) {
                view.covered.push(read.key..read.range_end);
            }
            if !is_asked {
                view.asked.push(name.clone());
            }
            view.covered.push(gap);
            return Ok(());
        }
        if !is_asked {
            let revision = view.revision;
            let reads = area(self.keys(), name, revision);
            let txn = Txn {
                success: reads.into_iter().map(Operation::Read).collect(),
                ..Txn::default()
            };
            let answer = self.etcd.read_txn(&txn, self.patience)?;
            if view.source == Source::Unread {
                view.source = Source::Read;
                view.revision = answer.header.revision;
            }
            let found = answer.responses.into_iter().map(|answer| {
                let range = answer.response_range?;
                Some((range.kvs, range.more))
            });
            view.add_area(self.keys(), name, found.collect());
            return Ok(());
        }
        let life = self.keys().all(Part::Life);
        let read = Read {
            keys_only: life.contains(&gap.start),
            key: gap.start,
            range_end: gap.end,
            limit: PAGE,
            revision: view.revision,
        };
        let answer = self.etcd.read_range(&read, self.patience)?;
        view.add(&read, answer.kvs, answer.more);
        Ok(())
    }

    /// The record with this key, if it is there.
    fn found(&self, key: Key) -> Option<Found<H>> {
        let view = self.view.borrow();
        self.etcd.found(&view, key, self.now())
    }

    /// The keys of those tickets, in order of arrival.
    fn tickets_in(&self, tree: &Range<String>) -> Vec<(u64, LockName)> {
        let view = self.view.borrow();
        let mut tickets: Vec<(u64, LockName)> = view
            .range(tree)
            // Without a lease it would stand in the way for ever.
            .filter(|(_, found)| found.lease != 0)
            .filter_map(|(key, found)| {
                let name = self.keys().name_of_ticket(key)?;
                Some((found.create_revision.cast_unsigned(), name))
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
            .find(|(_, found)| found.create_revision.cast_unsigned() == number)?;
        serde_json::from_slice(&found.value).ok()
    }

    /// The live waiters of a lock, the first one first.
    pub(crate) fn waiters(&self, name: &LockName) -> Vec<Waiter> {
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

    pub(super) fn waiter(&self, number: u64) -> Option<Waiter> {
        Some(self.written(number)?.into_waiter(1))
    }
}

impl<H: Clone + Default> Snapshot for EtcdSnapshot<'_, H> {
    type Handle = H;
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

    fn exclusive(&self, name: &LockName) -> Result<Option<Found<H>>> {
        for part in [Part::Hold, Part::Life] {
            self.ensure(&only(&self.keys().exclusive(part, name)), name)?;
        }
        Ok(self.found(Key::exclusive(name)))
    }

    fn shared(&self, name: &LockName) -> Result<Vec<Found<H>>> {
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
        visit: &mut dyn FnMut(Found<H>) -> ControlFlow<()>,
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
        let mut tickets: Vec<_> = tickets.collect();
        tickets.sort_by_key(|(number, _)| *number);
        Ok(tickets)
    }

    fn ticket(&self, number: u64) -> Result<Option<Ticket<H>>> {
        Ok(self.written(number).map(|written| Ticket {
            number,
            request: written.request,
            reserved_since_ms: None,
            handle: H::default(),
        }))
    }
}

impl<H: Clone + Default> EtcdSnapshot<'_, H> {
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

impl<H: Clone + Default> Etcd<H> {
    /// The record with this key, as a view shows it.
    pub(super) fn found(&self, view: &View, key: Key, now: Moment) -> Option<Found<H>> {
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
                life: Some(known_as),
            },
            key,
            content,
            handle: H::default(),
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

/// What a value is.
pub(super) fn content(value: &[u8], is_alive: bool) -> Content {
    if value.len() as u64 > MAX_RECORD_BYTES {
        return Content::NotALock("its value is longer than any record");
    }
    match format::read_native(value) {
        Some(Content::Corrupt) | None if is_alive => Content::Corrupt,
        Some(Content::Corrupt) => Content::NotALock("its record cannot be read"),
        None => Content::NotALock("its value is no record of onehold"),
        Some(content) => content,
    }
}

/// Whether a refusal means that a lease has ended.
pub(super) fn is_ended(refused: &Refused) -> bool {
    refused.is_not_found()
}
