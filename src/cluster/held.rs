//! A hold of the calling process, and how it ends: it is given back, or made a lease.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::commit::{Taken, life_value};
use super::engine::TIMEOUT;
use super::keeping::{Beat, Keeping, State};
use super::store::Cluster;
use super::txn::{Compare, Txn};
use super::view::{hold_number, shows_hold};
use crate::backend::{Backend as _, GoesOn, HeldRecord, Patience, ReleaseOutcome};
use crate::decision::Key;
use crate::error::Result;
use crate::journal_line::{HoldResult, Line, PastHold};
use crate::record::{Kind, Live, Record};
use crate::sys::locked;
use crate::sys::process::{boottime, boottime_milliseconds};
use crate::sys::wait::pause;

const RELEASE: &str = "release a lock in";
const KEEP: &str = "make a lease of a lock in";

/// From when on a hold has a thread that keeps it.
const LONG_MS: u64 = 500;

/// In seconds, 285 years: no engine has to grant a longer one.
const LONGEST_LEASE: i64 = 9_000_000_000;

/// How long after it could not be kept by a lease that is tried again.
const KEEP_AGAIN: Duration = Duration::from_millis(500);

/// A hold, and how it is kept.
#[derive(Debug)]
pub(crate) struct HeldKeys {
    keeping: Arc<Keeping>,
    record: Box<Record>,
    paths: Vec<PathBuf>,
    taken_ms: u64,
}

impl HeldKeys {
    pub(super) fn new(cluster: &Cluster, taken: Taken) -> Self {
        let record = Box::new(taken.record.clone());
        let paths = taken.keys.iter().map(|key| cluster.path_of_record(key));
        let held = Self {
            paths: paths.collect(),
            keeping: Keeping::begin(cluster, taken),
            record,
            taken_ms: boottime_milliseconds(),
        };
        if held.record.kind == Kind::Process {
            held.keeping.start();
        }
        held
    }

    fn is_in_time(&self) -> bool {
        let (lost_at, _) = self.keeping.deadlines_ms();
        boottime_milliseconds() < lost_at
    }

    fn is_over(&self) -> bool {
        let state = self.keeping.state();
        state.is_lost || state.is_broken
    }

    /// Removes what is left of it once its life key is gone.
    fn clean(&self, modified: i64) {
        let mut txn = self.keeping.clean_txn(modified);
        self.add_end(&mut txn);
        let _ = self.keeping.cluster.to_take_back().txn(RELEASE, &txn);
    }

    /// Notes the end of a hold whose record is gone. Who removed it has noted that in the same transaction, unless it
    /// was removed by other means.
    fn note_loss(&self) {
        let Taken { keys, record, .. } = &self.keeping.taken;
        let session = self.keeping.cluster.session(Patience::SHORT);
        let has_history = self.keeping.state().end.is_some();
        let mut names = keys.iter().map(|key| &key.name);
        if !has_history || names.any(|name| session.has_end(name, record.hold)) {
            return;
        }
        let mut txn = Txn::default();
        self.add_end(&mut txn);
        let _ = self.keeping.engine().txn(&txn, TIMEOUT);
    }

    /// Adds how it ends to a transaction that ends it.
    fn add_end(&self, txn: &mut Txn) {
        let keeping = &self.keeping;
        let end = keeping.state().end.clone();
        if let Some(end) = end {
            let mut known = keeping.taken.lines.clone();
            let session = keeping.cluster.session(Patience::SHORT);
            session.add_lines(txn, &mut known, &[Line::End(Box::new(end))], 0);
        }
    }

    /// `false`: something was otherwise. `may_be_kept`: an earlier try may have been applied, or may yet be.
    fn try_to_keep(&self, value: &[u8], left: Duration, may_be_kept: &mut bool) -> Result<bool> {
        let keeping = &self.keeping;
        let _sending = locked(&keeping.sending);
        let session = keeping.cluster.session(Patience::of(Duration::ZERO));
        let seconds = i64::try_from(left.as_millis().div_ceil(1000)).unwrap_or(i64::MAX);
        let seconds = seconds.min(LONGEST_LEASE);
        let lease = session.grant(KEEP, seconds)?;
        let mut txn = keeping.keep_txn(&keeping.state(), value, lease.id);
        self.add_end(&mut txn);
        let was_tried = std::mem::replace(may_be_kept, true);
        let (answer, tried_before) = session.txn(KEEP, &txn)?;
        let may_be_done = was_tried || tried_before;
        let is_kept = answer.succeeded || (may_be_done && answer.shows_value(value));
        if is_kept {
            keeping.stop();
        } else {
            keeping.engine().give_up(lease.id);
        }
        Ok(is_kept)
    }
}

impl HeldRecord for HeldKeys {
    fn paths(&self) -> Vec<&Path> {
        self.paths.iter().map(PathBuf::as_path).collect()
    }

    fn slots(&self) -> Vec<u32> {
        self.keeping
            .taken
            .keys
            .iter()
            .filter_map(Key::slot)
            .collect()
    }

    fn is_broken(&self) -> bool {
        let state = self.keeping.state();
        state.is_broken && !state.is_lost
    }

    fn deadlines_ms(&self) -> Option<(u64, u64)> {
        Some(self.keeping.deadlines_ms())
    }

    fn record(&self) -> &Record {
        &self.record
    }

    fn is_lost(&self) -> Result<bool> {
        // Most commands end before a beat is due.
        if boottime_milliseconds().saturating_sub(self.taken_ms) >= LONG_MS {
            self.keeping.start();
        }
        Ok(self.keeping.state().is_lost || !self.is_in_time())
    }

    fn why_lost(&self) -> Option<String> {
        self.keeping.why_lost()
    }

    fn broken_by(&self) -> Option<String> {
        self.keeping.state().live.broken_by.clone()
    }

    fn note_end(&mut self, end: PastHold) -> bool {
        self.keeping.state().end = Some(end);
        true
    }

    /// Others are told of the command alone, once it runs for longer.
    fn write_live(&mut self, live: Live) -> Result<()> {
        self.keeping.runs(&live);
        self.record.live = live;
        Ok(())
    }

    fn survives_settling_time(&self) -> Result<bool> {
        Ok(self.record.kind == Kind::Lease || self.is_in_time())
    }

    /// It tries for as long as no other process can take the lock.
    fn release(&mut self) -> Result<ReleaseOutcome> {
        let keeping = &self.keeping;
        // Before a request that still waits for its answer.
        keeping.work_is_over();
        let _sending = locked(&keeping.sending);
        keeping.stop();
        let (mut txn, until, modified) = {
            let state = keeping.state();
            let until = state.shown_ms.saturating_add(state.lease.ttl_ms());
            (keeping.release_txn(&state), until, state.modified)
        };
        self.add_end(&mut txn);
        let left = until.saturating_sub(boottime_milliseconds());
        let patience = Patience::of(Duration::from_millis(left));
        let (answer, tried_before) = keeping.cluster.session(patience).txn(RELEASE, &txn)?;
        let is_ours = shows_hold(&answer, Some(keeping.taken.record.hold));
        // Or it was applied, and the answer was lost.
        if answer.succeeded || (tried_before && !is_ours) {
            return Ok(ReleaseOutcome::Released);
        }
        let found = answer.found().flatten().next().and_then(hold_number);
        keeping.will_be_noted_as_lost();
        if is_ours {
            self.clean(modified);
        } else if found.is_none() {
            self.note_loss();
        }
        keeping.state().loss.get_or_insert_with(|| match found {
            _ if is_ours => "its lease has ended".to_owned(),
            Some(other) => format!("hold {other} has it"),
            None => "its record is gone".to_owned(),
        });
        Ok(ReleaseOutcome::Lost)
    }

    /// Until it is a lease, it is kept alive as before; a cluster that does not answer, or has no space, is asked again.
    fn keep(&mut self, live: Live, left: Duration, goes_on: GoesOn<'_>) -> Result<ReleaseOutcome> {
        self.record.live = live;
        self.keeping.work_is_over();
        let kept = Record {
            kind: Kind::Lease,
            kernel_lock: false,
            ..(*self.record).clone()
        };
        let value = self.keeping.cluster.written(&kept)?;
        let until = boottime().saturating_add(left);
        let mut may_be_kept = false;
        loop {
            let left = until.saturating_sub(boottime());
            if left.is_zero() || self.is_over() {
                return self.release();
            }
            match self.try_to_keep(&value, left, &mut may_be_kept) {
                Ok(true) => return Ok(ReleaseOutcome::Kept),
                Err(error) if !goes_on(&error) => return Err(error),
                Ok(false) | Err(_) => {}
            }
            // Its life key may be gone, but not its record.
            match self.keeping.beat() {
                Beat::Over => return self.release(),
                Beat::Confirmed => self.keeping.tell_guard(),
                Beat::Unanswered | Beat::Unknown | Beat::SigningIn => {}
            }
            let _ = pause(left.min(KEEP_AGAIN));
        }
    }
}

impl Drop for HeldKeys {
    fn drop(&mut self) {
        // A lease of `acquire` is kept by nothing but time; its thread was never started.
        self.keeping.stop();
    }
}

impl Keeping {
    fn will_be_noted_as_lost(&self) {
        let mut state = self.state();
        let end = state.end.as_mut();
        if let Some(end) = end.filter(|end| end.result != HoldResult::Broken) {
            end.result = HoldResult::Lost;
        }
    }

    pub(super) fn release_txn(&self, state: &State) -> Txn {
        let mut txn = self.if_held(state, |txn, hold, life| {
            txn.delete(life);
            txn.delete(hold);
        });
        for ticket in &self.taken.tickets {
            txn.delete(ticket);
        }
        txn
    }

    /// What removes the rest of a hold whose life key is gone.
    pub(super) fn clean_txn(&self, modified: i64) -> Txn {
        let mut txn = Txn::default();
        for [hold, life] in self.hold_and_life() {
            txn.delete_dead(&hold, &life, modified);
        }
        txn
    }

    /// What makes the hold a lease, if it was not broken meanwhile.
    pub(super) fn keep_txn(&self, state: &State, value: &[u8], lease: i64) -> Txn {
        let life_value = life_value(Kind::Lease, self.taken.record.hold);
        let mut txn = self.if_held(state, |txn, hold, life| {
            txn.only_if(Compare::was_modified_at(hold, state.modified));
            txn.put(hold, value, 0);
            txn.put(life, life_value.as_bytes(), lease);
        });
        for ticket in &self.taken.tickets {
            txn.delete(ticket);
        }
        txn
    }
}
