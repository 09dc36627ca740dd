//! Changes of a store. Each is one transaction that says what it was decided on, and is refused if that has
//! changed since.
//!
//! Whatever puts a life key puts its record in the same transaction. So a record that is unchanged, and whose
//! life key was gone, is still dead, and relatives are compared by their records alone.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use chrono::{DateTime, SubsecRound, TimeDelta, Utc};

use super::engine::{Engine, TIMEOUT};
use super::history::{self, KnownLines};
use super::keys::{GROUPS, Keys, Part, group_of_tree};
use super::lease::Granted;
use super::snapshot::is_number;
use super::store::{CHANGE, Cluster, DEFAULT_TTL, Session, has_fault};
use super::txn::{Compare, Epoch, Operation, Txn};
use super::view::{Source, View, reads, shows_hold};
use crate::backend::Put;
use crate::decision::{Key, Request, Revision, Want};
use crate::error::{Fault, Result};
use crate::format;
use crate::journal_line::Line;
use crate::name::LockName;
use crate::open_file::Judged;
use crate::record::{Kind, Live, MAX_HOLD, Mode, Record};
use crate::sys::process::boottime_milliseconds;

/// How many dead records one take removes, each with its lines; more are left to a cleanup.
const MAX_REMOVALS: usize = 24;

/// What is to be put.
pub(super) struct Taking<'a> {
    pub(super) view: &'a View,
    pub(super) put: &'a [Put],
    pub(super) remove: &'a [Judged],
    pub(super) record: Record,
    /// Takes the lock again under the same number, because the life key of the hold is gone.
    pub(super) resumes: bool,
    /// The keys of the caller's ticket, and when they were created.
    pub(super) ticket: Option<(&'a [String], i64)>,
}

impl<'a> Taking<'a> {
    /// The lines about the holds that go, with the number of the hold that replaces them.
    fn lines_of_replaced(&self, lines: &[Line]) -> Vec<Line> {
        let put = self.put.iter().filter_map(|(_, old)| old.as_ref());
        let gone = put.chain(self.remove.iter().take(MAX_REMOVALS));
        let gone: Vec<Option<u64>> = gone.map(Judged::hold).collect();
        let lines = lines.iter().filter(|line| gone.contains(&line.hold()));
        let lines = lines.map(|line| line.clone().replaced_by(self.record.hold));
        lines.collect()
    }

    /// What goes when they are taken.
    pub(super) fn replaced(&self) -> impl Iterator<Item = &'a Judged> + use<'a> {
        let put = self.put.iter();
        let in_place = put.filter_map(|(_, replaced)| replaced.as_ref());
        in_place.chain(self.remove)
    }
}

/// Result of a take.
pub(super) enum Committed {
    Done(Box<Taken>),
    /// The state differed from the one that was decided on.
    Changed(View),
    /// The lease has ended.
    NoLease,
    /// The server may have lost holds, and nothing is taken for so long.
    Paused(Duration),
}

/// What was taken.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) record: Record,
    /// With which it was taken: another one may follow.
    pub(super) lease: Granted,
    /// When the request was sent that took it, by the boot-time clock; the first one, if an answer was lost.
    pub(super) sent_ms: u64,
    pub(super) keys: Vec<Key>,
    /// The revision of the transaction: when its keys were written.
    pub(super) written: i64,
    /// That of the answer.
    pub(super) epoch: Epoch,
    /// The tickets that end with it.
    pub(super) tickets: Vec<String>,
    /// Of the journal, if its end is to be noted there.
    pub(super) lines: KnownLines,
}

const CENTURY_US: u64 = 36_525 * 24 * 60 * 60 * 1_000_000;

pub(super) const TAKE: &str = "take a lock in";

impl Session<'_> {
    /// Takes locks, all of them or none. `lines`: about the holds that go.
    pub(super) fn commit_take(
        self,
        mut taking: Taking<'_>,
        lease: Granted,
        lines: &[Line],
    ) -> Result<Committed> {
        let keys = &self.cluster.keys;
        if !taking.resumes {
            taking.record.hold = number(taking.view, keys, taking.put, now_us());
        }
        taking.record.ttl_ms = Some(lease.ttl_ms());
        if !taking.resumes && self.cluster.has_lost.swap(false, Ordering::Relaxed) {
            self.ensure_pause()?;
        }
        let lines = taking.lines_of_replaced(lines);
        let mut known = self.known_lines(&lines);
        let of_journal = if taking.record.asked.is_some() && !taking.resumes {
            history::reads(keys, taking.record.all_names())
        } else {
            Vec::new()
        };
        let reads = of_journal.len();
        let mut compared = lease.epoch;
        let sent_ms = boottime_milliseconds();
        let sent = self.take_txn(&taking, lease.id).and_then(|mut txn| {
            compared = self.compare_epoch(&mut txn, &taking, lease.epoch);
            self.add_lines(&mut txn, &mut known, &lines, reads);
            txn.success
                .extend(of_journal.into_iter().map(Operation::Read));
            self.txn(TAKE, &txn)
        });
        let (mut answer, tried_before) = match sent {
            Ok(answer) => answer,
            Err(error) if has_fault(&error, Fault::NoLease) => return Ok(Committed::NoLease),
            Err(error) => {
                self.undo_take(&taking, lease.id);
                return Err(error);
            }
        };
        let of_hold: Vec<Key> = taking.put.iter().map(|(key, _)| key.clone()).collect();
        let epoch = answer.epoch;
        let written = if answer.succeeded {
            if !taking.resumes && !self.engine().is_continued(compared, epoch) {
                // The server has changed since it granted the lease.
                self.undo_take(&taking, lease.id);
                return Ok(Committed::NoLease);
            }
            let unread = answer.answers.len().saturating_sub(reads);
            known = KnownLines::of_answers(answer.answers.iter().skip(unread));
            answer.revision
        } else {
            known = KnownLines::default();
            let on_record = (!taking.resumes).then(|| answer.answers.pop()).flatten();
            let life = of_hold.first().map(|key| keys.of(Part::Life, key));
            let (own, view) = if taking.ticket.is_some() {
                (answer.found().next().flatten().cloned(), View::unread())
            } else {
                let view = View::of_answer(keys, &names_of(taking.put), answer);
                (life.and_then(|life| view.get(&life).cloned()), view)
            };
            // An earlier try was applied.
            if let Some(own) = own.filter(|own| tried_before && own.lease == lease.id) {
                own.create_revision
            } else {
                let waits = on_record.map(|found| self.examine_epoch(&found, epoch));
                let waits = waits.transpose()?.flatten();
                return Ok(waits.map_or(Committed::Changed(view), Committed::Paused));
            }
        };
        let tickets = match taking.ticket {
            Some((tickets, _)) if keeps_ticket(&taking.record) => tickets.to_vec(),
            _ => Vec::new(),
        };
        Ok(Committed::Done(Box::new(Taken {
            record: taking.record,
            lease,
            sent_ms,
            keys: of_hold,
            written,
            epoch,
            tickets,
            lines: known,
        })))
    }

    /// Takes back what may have been taken. If it is taken later, that is refused as a whole: its lease is its nonce.
    fn undo_take(self, taking: &Taking<'_>, lease: i64) {
        // First: a record whose lease has ended is waited for as long as that would have lasted. A hold that is resumed
        // keeps its own.
        let mut txn = Txn::default();
        for (key, _) in taking.put {
            let [hold, life] = self.cluster.keys.of_hold(key);
            txn.only_if(Compare::has_lease(&life, lease));
            txn.delete(&life);
            txn.delete(&hold);
        }
        let is_silent = |error| has_fault(&error, Fault::Final);
        let undo = || self.cluster.to_take_back().txn(CHANGE, &txn);
        if !taking.resumes && undo().is_err_and(is_silent) {
            self.engine().give_up(lease);
        } else {
            let _ = self.cluster.end_lease(lease);
        }
    }

    /// The transaction that takes locks. Its reads, if it fails, are the next view; those of a waiter only say
    /// whether an earlier try was applied.
    pub(super) fn take_txn(self, taking: &Taking<'_>, lease: i64) -> Result<Txn> {
        let (keys, view, record) = (&self.cluster.keys, taking.view, &taking.record);
        let mut txn = Txn::default();
        for (key, _) in taking.put {
            compare_for(&mut txn, keys, view, key, record.mode);
            // What is alive is removed before: a key that is put again keeps its create revision.
            txn.only_if(Compare::is_missing(&keys.of(Part::Life, key)));
        }
        for gone in &view.supposed_gone {
            txn.only_if(Compare::is_missing(gone));
        }
        for judged in taking.remove.iter().take(MAX_REMOVALS) {
            txn.delete(&keys.of(Part::Hold, &judged.found.key));
        }
        let value = self.cluster.written(record)?;
        let life_value = life_value(record.kind, record.hold);
        for (key, _) in taking.put {
            txn.put(&keys.of(Part::Hold, key), &value, 0);
            txn.put(&keys.of(Part::Life, key), life_value.as_bytes(), lease);
        }
        if !taking.resumes {
            let digits = format!("{:016}", record.hold);
            let names = taking.put.iter().map(|(key, _)| keys.last(&key.name));
            for last in names.collect::<BTreeSet<_>>() {
                txn.only_if(last_comparison(view, &last, &digits));
                txn.put(&last, digits.as_bytes(), 0);
            }
            let (tickets, created) = taking.ticket.unwrap_or_default();
            for ticket in tickets {
                txn.only_if(Compare::was_created_at(ticket, created));
                if keeps_ticket(record) {
                    txn.put(ticket, digits.as_bytes(), lease);
                } else {
                    txn.delete(ticket);
                }
            }
            for (key, _) in taking.put {
                compare_queue(&mut txn, keys, taking, &key.name);
            }
            // The owner has had its turn.
            let put = taking.put.iter().map(|(key, _)| key);
            let first = put.min_by_key(|key| key.name.as_str());
            if let Some((owner, first)) = record.owner.as_deref().zip(first) {
                let kept = keys.kept_for(&first.name, owner);
                txn.success.push(Operation::Delete(kept));
            }
        }
        // The take of a waiter mostly succeeds, and decoding these reads costs a server as much as the rest of the
        // request, so a waiter reads again after a failure. Only the names that are taken are read: a decision
        // may have asked about those of many waiters.
        let own = taking.put.first().filter(|_| taking.ticket.is_some());
        if let Some((key, _)) = own {
            txn.else_read(&keys.of(Part::Life, key));
        } else {
            let names = names_of(taking.put);
            let reads = reads(keys, &names).map(Operation::Read);
            txn.failure.extend(reads);
        }
        // Joining the queue puts one ticket per name beside these reads. So what can be taken can be waited for.
        let beside = own.map_or(taking.put.len(), |_| 0);
        self.ensure_possible(&txn, beside)?;
        Ok(txn)
    }

    /// An engine has a limit of comparisons and of operations. `beside`: how many more a later transaction has.
    pub(super) fn ensure_possible(self, txn: &Txn, beside: usize) -> Result<()> {
        let parts = [
            txn.compare.len(),
            txn.success.len(),
            txn.failure.len() + beside,
        ];
        if parts.into_iter().max() <= Some(self.engine().limits().operations) {
            return Ok(());
        }
        let what = "more than 18 names of one part, or a name of more than 31 parts";
        Err(self.engine().unsupported(what))
    }

    /// Removes a hold that is dead, or one that no keeper would give back. `false`: it has changed.
    pub(super) fn commit_remove(self, judged: &Judged, view: View, lines: &[Line]) -> Result<bool> {
        let (of_hold, view) = self.keys_of_hold(judged, view)?;
        let mut txn = Txn::default();
        let mut lease = 0;
        for key in &of_hold {
            let [hold, life] = self.cluster.keys.of_hold(key);
            txn.only_if(Compare::was_modified_at(&hold, view.modified(&hold)));
            txn.only_if(Compare::was_modified_at(&life, view.modified(&life)));
            txn.delete(&hold);
            if let Some(found) = view.get(&life) {
                lease = found.lease;
                txn.only_if(Compare::has_lease(&life, lease));
                txn.delete(&life);
            }
            txn.else_read(&hold);
        }
        self.add_lines(&mut txn, &mut self.known_lines(lines), lines, 0);
        let (answer, tried_before) = self.txn(CHANGE, &txn)?;
        // An answer was lost, and none of it is there any more: as if another had removed it.
        let number = judged.record().map(|record| record.hold);
        let is_done = answer.succeeded || (tried_before && !shows_hold(&answer, number));
        if is_done && lease != 0 {
            self.engine().give_up(lease);
        }
        Ok(is_done)
    }

    /// Writes what changes of a record, and lines about a hold that ends by that. `false`: it has changed.
    pub(super) fn commit_renew(
        self,
        judged: &Judged,
        changed: &Live,
        view: View,
        lines: &[Line],
    ) -> Result<bool> {
        let Some(record) = judged.record() else {
            return Ok(false);
        };
        let keys = &self.cluster.keys;
        let (of_hold, view) = self.keys_of_hold(judged, view)?;
        let mut renewed = record.clone();
        renewed.live = changed.clone();
        let value = self.cluster.written(&renewed)?;
        let life = view.get(&keys.of(Part::Life, &judged.found.key));
        let before = life.map(|life| life.lease).filter(|lease| *lease != 0);
        // The keeper of a `run` renews that. What can be written is that it is broken.
        let lease = match record.kind {
            Kind::Lease => Some(self.lease_to_renew(record, &renewed, before)?),
            Kind::Run | Kind::Process => None,
        };
        let life_value = life_value(renewed.kind, renewed.hold);
        let mut txn = Txn::default();
        for key in &of_hold {
            let [hold, life] = keys.of_hold(key);
            txn.only_if(Compare::was_modified_at(&hold, view.modified(&hold)));
            if let Some(found) = view.get(&life) {
                txn.only_if(Compare::has_lease(&life, found.lease));
            }
            txn.put(&hold, &value, 0);
            txn.else_read(&hold);
            let Some(lease) = lease else {
                continue;
            };
            if let Some(before) = before {
                txn.only_if(Compare::has_lease(&life, before));
            } else {
                // It ran out, and was not taken: as if it were taken now.
                txn.only_if(Compare::is_missing(&life));
                compare_for(&mut txn, keys, &view, key, record.mode);
            }
            if Some(lease) != before {
                txn.put(&life, life_value.as_bytes(), lease);
            }
        }
        self.add_lines(&mut txn, &mut self.known_lines(lines), lines, 0);
        let (answer, tried_before) = self.txn(CHANGE, &txn)?;
        // It is the one that was sent.
        let is_done = answer.succeeded || (tried_before && answer.shows_value(&value));
        // Of two leases one is left over.
        let unused = if is_done { before } else { lease };
        if let Some(unused) = unused.filter(|_| lease.is_some() && lease != before) {
            self.engine().give_up(unused);
        }
        Ok(is_done)
    }

    /// The lease that a renewed hold has: its own, if that can be kept alive for as long as it is to last.
    fn lease_to_renew(self, record: &Record, renewed: &Record, before: Option<i64>) -> Result<i64> {
        if let Some(lease) = before.filter(|_| renewed.ttl() == record.ttl()) {
            let once = |engine: &dyn Engine| engine.keep(lease, TIMEOUT);
            if self.until_known(CHANGE, once)?.0.ttl > 0 {
                return Ok(lease);
            }
        }
        Ok(self.grant(TAKE, seconds_of(renewed))?.id)
    }
}

impl Cluster {
    /// The value of the key of a record.
    pub(super) fn written(&self, record: &Record) -> Result<Vec<u8>> {
        format::write_compact(record).map_err(|error| self.cannot_write(&error))
    }
}

/// Compares the state on which the decision about `key` was based.
fn compare_for(txn: &mut Txn, keys: &Keys, view: &View, key: &Key, mode: Mode) {
    let mut is_as_seen = |key: &str| {
        txn.only_if(Compare::was_modified_at(key, view.modified(key)));
    };
    is_as_seen(&keys.of(Part::Hold, key));
    is_as_seen(&keys.exclusive(Part::Hold, &key.name));
    for ancestor in key.name.ancestors() {
        is_as_seen(&keys.exclusive(Part::Hold, &ancestor));
    }
    let mut is_unwritten = |range| {
        txn.only_if(Compare::is_unwritten_since(range, view.revision));
    };
    if mode.is_shared() {
        keys.descendants(Part::Hold, &key.name)
            .into_iter()
            .for_each(&mut is_unwritten);
        if mode.slots().is_some() {
            is_unwritten(keys.several(Part::Hold, &key.name));
        }
    } else {
        is_unwritten(keys.below(Part::Hold, &key.name));
        for ancestor in key.name.ancestors() {
            is_unwritten(keys.several(Part::Hold, &ancestor));
        }
    }
}

/// Compares the part of the queue that the decision has not seen: nobody there may come before the caller.
fn compare_queue(txn: &mut Txn, keys: &Keys, taking: &Taking<'_>, name: &LockName) {
    let view = taking.view;
    let is_guess = view.source == Source::Guess;
    let mut has_nothing_newer = |tickets| {
        txn.only_if(Compare::has_nothing_newer(tickets, view.revision));
    };
    match taking.ticket {
        None if is_guess => has_nothing_newer(keys.below(Part::Wait, name)),
        None => has_nothing_newer(keys.tree(name)),
        Some(_) => has_nothing_newer(keys.tickets_out_of_turn(name)),
    }
    for ancestor in name.ancestors() {
        if is_guess {
            has_nothing_newer(keys.several(Part::Wait, &ancestor));
        } else if taking.ticket.is_some() {
            has_nothing_newer(keys.tickets_out_of_turn(&ancestor));
        }
    }
    if let Some((_, created)) = taking.ticket.filter(|_| is_guess) {
        let tickets = keys.below(Part::Wait, name);
        txn.only_if(Compare::has_nothing_older(tickets, created));
    }
}

/// The names that are taken.
pub(super) fn names_of(put: &[Put]) -> Vec<LockName> {
    put.iter().map(|(key, _)| key.name.clone()).collect()
}

/// Whether the ticket of a waiter stays until its hold ends. The next waiter that asks for the same watches it, and
/// so is woken once: when the lock is free. A waiter that may share the lock, or has the same owner, has to be woken
/// by the take; and a lease is not ended by the process that acquired it.
fn keeps_ticket(record: &Record) -> bool {
    !record.mode.is_shared() && record.owner.is_none() && record.kind != Kind::Lease
}

/// The value of a life key.
pub(super) fn life_value(kind: Kind, hold: u64) -> String {
    let kind = match kind {
        Kind::Lease => "lease",
        Kind::Run | Kind::Process => "run",
    };
    format!("{kind} {hold}")
}

/// The last number of a group. `None`: there is none, or it is not a valid one.
fn last_number(view: &View, key: &str) -> Option<u64> {
    let value = view.get(key).map(|found| &found.value)?;
    let text = std::str::from_utf8(value).ok()?;
    let number: u64 = text.parse().ok().filter(|_| is_number(value))?;
    // A number of a later century would leave none to give.
    (number < now_us().saturating_add(CENTURY_US)).then_some(number)
}

fn now_us() -> u64 {
    u64::try_from(Utc::now().timestamp_micros()).unwrap_or(0)
}

/// The number of a hold: above those of all earlier holds of its locks, and of those above and below them. Its remainder
/// tells the group of the first one, so that no other group gives it: one key for all would make each take a rival of
/// all others.
pub(super) fn number(view: &View, keys: &Keys, put: &[Put], now_us: u64) -> u64 {
    let replaced = put.iter().filter_map(|(_, old)| old.as_ref()?.record());
    let replaced = replaced.map(|record| record.hold);
    let last = put
        .iter()
        .filter_map(|(key, _)| last_number(view, &keys.last(&key.name)));
    let above = replaced.chain(last).max().unwrap_or(0);
    let lowest = now_us.max(above.saturating_add(1)).min(MAX_HOLD - GROUPS);
    let group = put.first().map_or(0, |(key, _)| group_of_tree(&key.name));
    lowest + (group + GROUPS - lowest % GROUPS) % GROUPS
}

fn last_comparison(view: &View, last: &str, digits: &str) -> Compare {
    let is_number = last_number(view, last).is_some();
    if is_number || view.revision == 0 {
        return Compare::is_below(last, digits.to_owned());
    }
    Compare::was_modified_at(last, view.modified(last))
}

/// The time to live that a hold is to have.
pub(super) fn seconds_of(record: &Record) -> i64 {
    let ttl = record.ttl().unwrap_or(DEFAULT_TTL);
    i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX)
}

/// The end of a lease by the wall clock, from before it was granted.
pub(super) fn expiry(ttl: i64) -> Option<DateTime<Utc>> {
    let now = Utc::now().trunc_subsecs(6);
    let at = now.checked_add_signed(TimeDelta::try_seconds(ttl)?)?;
    Some(at).filter(|at| crate::record::has_four_digits(*at))
}

/// Asks for a hold again that is as it was, but for its life keys.
pub(super) fn request_to_resume(record: &Record, keys: &[Key]) -> Request {
    let own = Revision {
        hold: record.hold,
        ..Revision::NONE
    };
    request_of(record, keys.iter(), vec![own])
}

/// Asks for what a record is of in place of some holds, without regard to waiters.
pub(super) fn request_of<'a>(
    record: &Record,
    keys: impl Iterator<Item = &'a Key>,
    replace: Vec<Revision>,
) -> Request {
    let want = |key: &Key| Want::of(&key.name, record.mode);
    Request {
        wants: keys.map(want).collect(),
        owner: record.owner.clone(),
        max_age_ms: u64::MAX,
        replace,
        skip_queue: true,
        ..Request::default()
    }
}
