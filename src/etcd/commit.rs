//! Changes of a store. Each is one transaction that says what it was decided on, and is refused if that has
//! changed since.
//!
//! Whatever puts a life key puts its record in the same transaction. So a record that is unchanged, and whose
//! life key was gone, is still dead, and relatives are compared by their records alone.

use std::collections::BTreeSet;

use chrono::{DateTime, SubsecRound, TimeDelta, Utc};

use super::client::{Answer, Answered, TIMEOUT};
use super::keys::Part;
use super::messages::{Compare, KeyValue, Operation, Txn, TxnAnswer};
use super::snapshot::{go_on, is_ended, is_number};
use super::store::Etcd;
use super::view::{View, content, read_one, reads, shows_hold};
use crate::backend::Patience;
use crate::decision::{Judged, Key};
use crate::error::{Error, Result};
use crate::format;
use crate::name::LockName;
use crate::open_file::Handle;
use crate::record::{Kind, MAX_HOLD, Mode, Record};
use crate::sys::process::boottime_milliseconds;

/// How many dead records one take removes; more are left to a cleanup.
const MAX_REMOVALS: usize = 64;

/// A lease that was granted, and what it is worth.
#[derive(Clone, Copy, Debug)]
pub(super) struct Granted {
    pub(super) id: i64,
    /// As the server has granted it, in seconds.
    pub(super) ttl: i64,
    /// When the request was sent by which it is known to be kept, by the boot-time clock.
    pub(super) since_ms: u64,
    /// The term of the leader then.
    pub(super) term: i64,
}

/// What is to be put.
pub(super) struct Taking<'a> {
    pub(super) view: &'a View,
    pub(super) put: &'a [(Key, Option<Judged<Handle>>)],
    pub(super) remove: &'a [Judged<Handle>],
    pub(super) record: Record,
    /// The same number again: of a hold whose own life key is gone.
    pub(super) resumes: bool,
    /// The keys of the caller's ticket, and when they were created.
    pub(super) ticket: Option<(&'a [String], i64)>,
    pub(super) lease: Granted,
}

/// What became of a change.
pub(super) enum Committed<T> {
    Done(T),
    /// Something was otherwise than it was decided on.
    Changed(View),
    /// The lease has ended.
    NoLease,
}

/// What was taken.
pub(super) struct Taken {
    pub(super) record: Record,
    pub(super) keys: Vec<Key>,
    /// The revision of the transaction: when its life keys were created.
    pub(super) created: i64,
    /// The term of the leader then.
    pub(super) term: i64,
    /// The tickets that end with it.
    pub(super) tickets: Vec<String>,
}

const TAKE: &str = "take a lock in";
pub(super) const CHANGE: &str = "change a lock in";

impl Etcd {
    /// Grants a lease.
    pub(super) fn grant(&self, seconds: i64, patience: Patience<'_>) -> Result<Granted> {
        let client = &self.shared.client;
        let mut since_ms = 0;
        let (answer, _) = self.known(TAKE, patience, || {
            since_ms = boottime_milliseconds();
            client.grant_once(seconds, TIMEOUT)
        })?;
        Ok(Granted {
            id: answer.id,
            ttl: answer.ttl,
            since_ms,
            term: answer.header.raft_term,
        })
    }

    /// Takes locks, all of them or none.
    pub(super) fn commit_take(
        &self,
        taking: &Taking<'_>,
        patience: Patience<'_>,
    ) -> Result<Committed<Taken>> {
        let (keys, view, lease) = (&self.shared.keys, taking.view, taking.lease);
        let mut record = taking.record.clone();
        if !taking.resumes {
            let replaced = taking
                .put
                .iter()
                .filter_map(|(_, old)| old.as_ref()?.record());
            let replaced = replaced.map(|record| record.hold).max();
            record.hold = number(view, &keys.last(), replaced.unwrap_or(0), now_us());
        }
        let ttl = u64::try_from(lease.ttl).ok();
        record.ttl_ms = ttl.map(|ttl| ttl.saturating_mul(1000));
        let txn = self.take_txn(taking, &record)?;
        let client = &self.shared.client;
        let once = || -> Answer<TxnAnswer> { client.txn_once(&txn, TIMEOUT) };
        let (answer, tried_before) = match client.until_known(TAKE, go_on(patience), once) {
            Ok((Answered::Done(answer), again)) => (answer, again),
            Ok((Answered::Refused(refused), _)) if is_ended(&refused) => {
                return Ok(Committed::NoLease);
            }
            Ok((Answered::Refused(refused), _)) => {
                client.revoke(lease.id);
                return Err(client.refused(TAKE, &refused));
            }
            Err(error) => {
                // If it is applied later, it is refused as a whole: its lease is its nonce.
                client.revoke(lease.id);
                return Err(error);
            }
        };
        let of_hold: Vec<Key> = taking.put.iter().map(|(key, _)| key.clone()).collect();
        let created = if answer.succeeded {
            answer.header.revision
        } else {
            let is_waiter = taking.ticket.is_some();
            let found =
                (!is_waiter).then(|| View::of_answer(keys, &names_of(taking.put), &answer, 0));
            let own = of_hold.first().map(|key| keys.of(Part::Life, key));
            let own = match &found {
                Some(view) => own.and_then(|life| view.get(&life)),
                None => answer.first_found(),
            };
            // An earlier try was applied.
            match own.filter(|own| tried_before && own.lease == lease.id) {
                Some(own) => own.create_revision,
                None => return Ok(Committed::Changed(found.unwrap_or_else(View::unread))),
            }
        };
        let tickets = match taking.ticket {
            Some((tickets, _)) if keeps_ticket(&record) => tickets.to_vec(),
            _ => Vec::new(),
        };
        Ok(Committed::Done(Taken {
            record,
            keys: of_hold,
            created,
            term: answer.header.raft_term,
            tickets,
        }))
    }

    /// The transaction that takes locks. Its reads, if it fails, are the next view; those of a waiter only say
    /// whether an earlier try was applied.
    pub(super) fn take_txn(&self, taking: &Taking<'_>, record: &Record) -> Result<Txn> {
        let (keys, view, lease) = (&self.shared.keys, taking.view, taking.lease);
        let mut compare = Comparisons::default();
        let mut success = Vec::new();
        for (key, _) in taking.put {
            self.compare_for(&mut compare, view, key, record.mode);
            // What is alive is removed before: a key that is put again keeps its create revision.
            compare.add(Compare::is_missing(&keys.of(Part::Life, key)));
        }
        for gone in view.supposed_gone() {
            compare.add(Compare::is_missing(gone));
        }
        for judged in taking.remove.iter().take(MAX_REMOVALS) {
            let found = &judged.found.key;
            success.push(Operation::delete(&keys.of(Part::Hold, found)));
        }
        let value = format::write_compact(record).map_err(|error| self.cannot_write(&error))?;
        for (key, _) in taking.put {
            success.push(Operation::put(&keys.of(Part::Hold, key), value.clone(), 0));
            let life = life_value(record).into_bytes();
            success.push(Operation::put(&keys.of(Part::Life, key), life, lease.id));
        }
        if !taking.resumes {
            let digits = format!("{:016}", record.hold);
            compare.add(last_comparison(view, &keys.last(), &digits));
            success.push(Operation::put(&keys.last(), digits.clone().into_bytes(), 0));
            if let Some((tickets, created)) = taking.ticket {
                for ticket in tickets {
                    compare.add(Compare::was_created_at(ticket, created));
                    success.push(if keeps_ticket(record) {
                        Operation::put(ticket, digits.clone().into_bytes(), lease.id)
                    } else {
                        Operation::delete(ticket)
                    });
                }
            }
            for (key, _) in taking.put {
                self.compare_queue(&mut compare, taking, &key.name);
            }
        }
        // The take of a waiter mostly succeeds, and decoding these reads costs etcd as much as the rest of the
        // request, so a waiter reads again after a failure. Only the names that are taken are read: a decision
        // may have asked about those of many waiters.
        let own = taking.put.first().filter(|_| taking.ticket.is_some());
        let failure = match own {
            Some((key, _)) => vec![read_one(&keys.of(Part::Life, key))],
            None => reads(keys, &names_of(taking.put)),
        };
        let txn = Txn {
            compare: compare.list,
            success,
            failure,
        };
        txn.ensure_possible()?;
        if own.is_none() {
            // Joining the queue puts one ticket per name beside these reads. So what can be taken can be waited for.
            let tickets = taking.put.len();
            ensure_possible(txn.failure.len() + tickets)?;
        }
        Ok(txn)
    }

    /// What a hold of `key` was decided on.
    fn compare_for(&self, compare: &mut Comparisons, view: &View, key: &Key, mode: Mode) {
        let (keys, revision) = (&self.shared.keys, view.revision);
        let mut is_as_seen = |key: &str| {
            compare.add(Compare::was_modified_at(key, view.modified(key)));
        };
        is_as_seen(&keys.of(Part::Hold, key));
        is_as_seen(&keys.exclusive(Part::Hold, &key.name));
        for ancestor in key.name.ancestors() {
            is_as_seen(&keys.exclusive(Part::Hold, &ancestor));
        }
        let unwritten = |range| Compare::is_unwritten_since(range, revision);
        if mode.is_shared() {
            for range in keys.descendants(Part::Hold, &key.name) {
                compare.add(unwritten(range));
            }
            if mode.slots().is_some() {
                compare.add(unwritten(keys.shared(Part::Hold, &key.name)));
            }
        } else {
            compare.add(unwritten(keys.below(Part::Hold, &key.name)));
            for ancestor in key.name.ancestors() {
                compare.add(unwritten(keys.shared(Part::Hold, &ancestor)));
            }
        }
    }

    /// Compares the part of the queue that the decision has not seen: nobody there may come before the caller.
    fn compare_queue(&self, compare: &mut Comparisons, taking: &Taking<'_>, name: &LockName) {
        let (keys, view) = (&self.shared.keys, taking.view);
        let mut has_nothing_newer = |tickets| {
            compare.add(Compare::has_nothing_newer(tickets, view.revision));
        };
        match taking.ticket {
            None if view.is_guess() => has_nothing_newer(keys.tickets_below(name)),
            None => has_nothing_newer(keys.tree(name)),
            Some(_) => has_nothing_newer(keys.tickets_out_of_turn(name)),
        }
        for ancestor in name.ancestors() {
            if view.is_guess() {
                has_nothing_newer(keys.tickets_of(&ancestor));
            } else if taking.ticket.is_some() {
                has_nothing_newer(keys.tickets_out_of_turn(&ancestor));
            }
        }
        if let Some((_, created)) = taking.ticket.filter(|_| view.is_guess()) {
            compare.add(Compare::has_nothing_older(
                keys.tickets_below(name),
                created,
            ));
        }
    }

    /// Removes a hold that is dead, or one that no keeper would give back. `false`: it has changed.
    pub(super) fn commit_remove(
        &self,
        judged: &Judged<Handle>,
        view: &View,
        patience: Patience<'_>,
    ) -> Result<bool> {
        let keys = &self.shared.keys;
        let mut txn = Txn::default();
        let mut lease = 0;
        for key in self.keys_of_hold(judged, view) {
            let (hold, life) = (keys.of(Part::Hold, &key), keys.of(Part::Life, &key));
            txn.compare
                .push(Compare::was_modified_at(&hold, view.modified(&hold)));
            txn.success.push(Operation::delete(&hold));
            match view.get(&life) {
                Some(found) => {
                    lease = found.lease;
                    txn.compare
                        .push(Compare::was_modified_at(&life, found.mod_revision));
                    txn.success.push(Operation::delete(&life));
                }
                None => txn.compare.push(Compare::is_missing(&life)),
            }
            txn.failure.push(read_one(&hold));
        }
        let client = &self.shared.client;
        let (answer, tried_before) =
            self.known(CHANGE, patience, || client.txn_once(&txn, TIMEOUT))?;
        // An answer was lost, and none of it is there any more: as if another had removed it.
        let number = judged.record().map(|record| record.hold);
        let is_done = answer.succeeded || (tried_before && !shows_hold(&answer, number));
        if is_done && lease != 0 {
            client.revoke(lease);
        }
        Ok(is_done)
    }

    /// Writes what changes of a record. `false`: it has changed.
    pub(super) fn commit_renew(
        &self,
        judged: &Judged<Handle>,
        changed: &crate::record::Live,
        view: &View,
        patience: Patience<'_>,
    ) -> Result<bool> {
        let Some(record) = judged.record() else {
            return Ok(false);
        };
        let keys = &self.shared.keys;
        let of_hold = self.keys_of_hold(judged, view);
        let mut renewed = record.clone();
        renewed.live = changed.clone();
        if record.kind != Kind::Lease {
            // Its keeper renews it. What can be written is that it is broken.
            return self.put_records(&renewed, &of_hold, view, patience);
        }
        let seconds = renewed.ttl().unwrap_or_default().as_secs();
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        let first = of_hold
            .first()
            .and_then(|key| view.get(&keys.of(Part::Life, key)));
        let before = first.map(|life| life.lease).filter(|lease| *lease != 0);
        let is_same = renewed.ttl() == record.ttl();
        let client = &self.shared.client;
        let kept = match before.filter(|_| is_same) {
            Some(lease) => {
                let kept =
                    self.known(CHANGE, patience, || client.keep_alive_once(lease, TIMEOUT))?;
                (kept.0.ttl > 0).then_some(lease)
            }
            None => None,
        };
        let lease = match kept {
            Some(lease) => lease,
            None => self.grant(seconds, patience)?.id,
        };
        let mut compare = Comparisons::default();
        let value = format::write_compact(&renewed).map_err(|error| self.cannot_write(&error))?;
        let mut success = Vec::new();
        for key in &of_hold {
            let (hold, life) = (keys.of(Part::Hold, key), keys.of(Part::Life, key));
            compare.add(Compare::was_modified_at(&hold, view.modified(&hold)));
            success.push(Operation::put(&hold, value.clone(), 0));
            if let Some(before) = before {
                compare.add(Compare::has_lease(&life, before));
            } else {
                // It ran out, and was not taken: as if it were taken now.
                compare.add(Compare::is_missing(&life));
                self.compare_for(&mut compare, view, key, record.mode);
            }
            if Some(lease) != before {
                let value = life_value(&renewed).into_bytes();
                success.push(Operation::put(&life, value, lease));
            }
        }
        let txn = Txn {
            compare: compare.list,
            success,
            failure: Vec::new(),
        };
        let (answer, tried_before) =
            self.known(CHANGE, patience, || client.txn_once(&txn, TIMEOUT))?;
        let is_done =
            answer.succeeded || (tried_before && self.has_record(&of_hold, &value, patience)?);
        if let Some(unused) = [before, Some(lease)]
            .into_iter()
            .flatten()
            .find(|id| (*id == lease) != is_done && Some(*id) != kept)
        {
            client.revoke(unused);
        }
        Ok(is_done)
    }

    fn put_records(
        &self,
        record: &Record,
        of_hold: &[Key],
        view: &View,
        patience: Patience<'_>,
    ) -> Result<bool> {
        let keys = &self.shared.keys;
        let value = format::write_compact(record).map_err(|error| self.cannot_write(&error))?;
        let mut txn = Txn::default();
        for key in of_hold {
            let hold = keys.of(Part::Hold, key);
            txn.compare
                .push(Compare::was_modified_at(&hold, view.modified(&hold)));
            txn.success.push(Operation::put(&hold, value.clone(), 0));
        }
        let client = &self.shared.client;
        let (answer, tried_before) =
            self.known(CHANGE, patience, || client.txn_once(&txn, TIMEOUT))?;
        Ok(answer.succeeded || (tried_before && self.has_record(of_hold, &value, patience)?))
    }

    /// Whether a record is the one that was sent.
    fn has_record(&self, of_hold: &[Key], value: &[u8], patience: Patience<'_>) -> Result<bool> {
        let Some(key) = of_hold.first() else {
            return Ok(false);
        };
        let read = super::messages::Read {
            limit: 0,
            revision: 0,
            keys_only: false,
            key: self.shared.keys.of(Part::Hold, key),
            range_end: format!("{}\0", self.shared.keys.of(Part::Hold, key)),
        };
        let answer = self.read_range(&read, patience)?;
        Ok(answer.kvs.first().is_some_and(|found| found.value == value))
    }

    /// The keys of all locks of a hold, as far as the view shows them.
    pub(super) fn keys_of_hold(&self, judged: &Judged<Handle>, view: &View) -> Vec<Key> {
        let own = judged.found.key.clone();
        let Some(record) = judged.record() else {
            return vec![own];
        };
        let others = record
            .names
            .iter()
            .filter_map(|name| LockName::new(name).ok());
        let others: Vec<LockName> = others.filter(|name| *name != own.name).collect();
        let is_of_hold = |found: &KeyValue| {
            let content = content(&found.value, true);
            content
                .record()
                .is_some_and(|other| other.hold == record.hold)
        };
        let keys = &self.shared.keys;
        let mut of_hold = vec![own];
        for name in others {
            let exclusive = Key::exclusive(&name);
            if own_is_exclusive(&of_hold) {
                let hold = keys.of(Part::Hold, &exclusive);
                if view.get(&hold).is_some_and(is_of_hold) {
                    of_hold.push(exclusive);
                }
                continue;
            }
            let shared = keys.shared(Part::Hold, &name);
            let found = view.range(&shared).find(|(_, found)| is_of_hold(found));
            of_hold.extend(found.and_then(|(key, _)| keys.hold_of(Part::Hold, key)));
        }
        of_hold
    }

    pub(super) fn cannot_write(&self, error: &serde_json::Error) -> Error {
        Error::Remote {
            operation: CHANGE,
            store: self.shared.client.address().url.clone(),
            reason: error.to_string(),
            remedy: None,
        }
    }
}

/// The names that are taken.
pub(super) fn names_of(put: &[(Key, Option<Judged<Handle>>)]) -> Vec<LockName> {
    put.iter().map(|(key, _)| key.name.clone()).collect()
}

/// Whether the ticket of a waiter stays until its hold ends. The next waiter that asks for the same watches it, and
/// so is woken once: when the lock is free. A waiter that may share the lock, or has the same owner, has to be woken
/// by the take; and a lease is not ended by the process that acquired it.
fn keeps_ticket(record: &Record) -> bool {
    !record.mode.is_shared() && record.owner.is_none() && record.kind != Kind::Lease
}

fn own_is_exclusive(of_hold: &[Key]) -> bool {
    of_hold.first().is_some_and(|key| key.index.is_none())
}

/// The value of a life key.
pub(super) fn life_value(record: &Record) -> String {
    let kind = match record.kind {
        Kind::Lease => "lease",
        Kind::Run | Kind::Process => "run",
    };
    format!("{kind} {}", record.hold)
}

/// Comparisons, each once.
#[derive(Default)]
struct Comparisons {
    list: Vec<Compare>,
    known: BTreeSet<String>,
}

impl Comparisons {
    fn add(&mut self, compare: Compare) {
        if self.known.insert(format!("{compare:?}")) {
            self.list.push(compare);
        }
    }
}

/// The last number of a store. `None`: there is none, or it is none that could be.
fn last_number(view: &View, key: &str) -> Option<u64> {
    let value = view.get(key).map(|found| &found.value)?;
    let text = std::str::from_utf8(value).ok()?;
    let number: u64 = text.parse().ok().filter(|_| is_number(value))?;
    // A number of a later century would leave none to give.
    let century = u64::try_from(TimeDelta::days(36_525).num_microseconds().unwrap_or(0)).ok()?;
    (number < now_us().saturating_add(century)).then_some(number)
}

fn now_us() -> u64 {
    u64::try_from(Utc::now().timestamp_micros()).unwrap_or(0)
}

pub(super) fn number(view: &View, last: &str, replaced: u64, now_us: u64) -> u64 {
    let last = last_number(view, last).unwrap_or(0);
    let next = last.max(replaced).saturating_add(1);
    now_us.max(next).min(MAX_HOLD)
}

fn last_comparison(view: &View, last: &str, digits: &str) -> Compare {
    let is_number = last_number(view, last).is_some();
    if is_number || view.revision == 0 {
        return Compare::is_below(last, digits.to_owned());
    }
    Compare::was_modified_at(last, view.modified(last))
}

/// The end of a lease by the wall clock, from before it was granted.
pub(super) fn expiry(ttl: i64) -> Option<DateTime<Utc>> {
    let now = Utc::now().trunc_subsecs(6);
    let at = now.checked_add_signed(TimeDelta::try_seconds(ttl)?)?;
    Some(at).filter(|at| crate::record::has_four_digits(*at))
}

impl Txn {
    /// etcd refuses one with more comparisons, or more operations (`--max-txn-ops`).
    pub(super) fn ensure_possible(&self) -> Result<()> {
        let parts = [self.compare.len(), self.success.len(), self.failure.len()];
        parts.into_iter().try_for_each(ensure_possible)
    }
}

fn ensure_possible(count: usize) -> Result<()> {
    const MOST: usize = 128;
    if count > MOST {
        return Err(Error::NotOnEtcd {
            what: "more than 18 names of one part, or a name of more than 31 parts",
        });
    }
    Ok(())
}
