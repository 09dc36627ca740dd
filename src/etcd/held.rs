//! A hold of the calling process, and how it ends: it is given back, or made a lease.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::client::TIMEOUT;
use super::commit::Taken;
use super::keeping::{Beat, Keeping};
use super::messages::Txn;
use super::store::Etcd;
use super::view::{hold_number, shows_hold};
use crate::backend::{Backend as _, GoesOn, HeldRecord, Patience, ReleaseOutcome};
use crate::decision::Key;
use crate::error::Result;
use crate::record::{Kind, Live, Record};
use crate::sys::locked;
use crate::sys::process::{boottime, boottime_milliseconds};
use crate::sys::wait::pause;

const RELEASE: &str = "release a lock in";
const KEEP: &str = "make a lease of a lock in";

/// From when on a hold has a thread that keeps it.
const LONG_MS: u64 = 500;

/// In seconds, 285 years: etcd grants no longer one.
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
    pub(super) fn new(etcd: &Etcd, taken: Taken) -> Self {
        let record = Box::new(taken.record.clone());
        let paths = taken.keys.iter().map(|key| etcd.path_of_record(key));
        let held = Self {
            paths: paths.collect(),
            keeping: Keeping::begin(etcd, taken),
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

    /// Removes what is left of it once its life key is gone.
    fn clean(&self, modified: i64) {
        let mut txn = Txn::default();
        for [hold, life] in self.keeping.hold_and_life() {
            txn.delete_dead(&hold, &life, modified);
        }
        let _ = self.keeping.client().txn_once(&txn, TIMEOUT);
    }

    /// `false`: something was otherwise. `may_be_kept`: an earlier try may have been applied, or may yet be.
    fn try_to_keep(&self, value: &[u8], left: Duration, may_be_kept: &mut bool) -> Result<bool> {
        let keeping = &self.keeping;
        let _sending = locked(&keeping.sending);
        let session = keeping.etcd.session(Patience::of(Duration::ZERO));
        let seconds = i64::try_from(left.as_millis().div_ceil(1000)).unwrap_or(i64::MAX);
        let seconds = seconds.min(LONGEST_LEASE);
        let (lease, _) = session.until_known(KEEP, |client| client.grant_once(seconds))?;
        let txn = keeping.keep_txn(&keeping.state(), value, lease.id);
        let was_tried = std::mem::replace(may_be_kept, true);
        let (answer, tried_before) = session.txn(KEEP, &txn)?;
        let may_be_done = was_tried || tried_before;
        let is_kept = answer.succeeded || (may_be_done && answer.shows_value(value));
        if is_kept {
            keeping.stop();
        } else {
            keeping.client().revoke(lease.id);
        }
        Ok(is_kept)
    }
}

impl HeldRecord for HeldKeys {
    fn paths(&self) -> Vec<&Path> {
        self.paths.iter().map(PathBuf::as_path).collect()
    }

    fn slots(&self) -> Vec<u32> {
        self.keeping.keys.iter().filter_map(Key::slot).collect()
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

    /// Nothing: of what changes nobody else is told.
    fn write_live(&mut self, live: Live) -> Result<()> {
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
        let (txn, lease, modified, number) = {
            let state = keeping.state();
            let txn = keeping.release_txn(&state);
            (txn, state.lease, state.modified, state.record.hold)
        };
        let until = lease.since_ms.saturating_add(lease.ttl_ms());
        let left = until.saturating_sub(boottime_milliseconds());
        let patience = Patience::of(Duration::from_millis(left));
        let (answer, tried_before) = keeping.etcd.session(patience).txn(RELEASE, &txn)?;
        let is_ours = shows_hold(&answer, Some(number));
        if is_ours {
            self.clean(modified);
        }
        // Or it was applied, and the answer was lost.
        if answer.succeeded || (tried_before && !is_ours) {
            return Ok(ReleaseOutcome::Released);
        }
        let found = answer.found().flatten().next().and_then(hold_number);
        keeping.state().loss.get_or_insert_with(|| match found {
            _ if is_ours => "its lease has ended".to_owned(),
            Some(other) => format!("hold {other} has it"),
            None => "its record is gone".to_owned(),
        });
        Ok(ReleaseOutcome::Lost)
    }

    /// Until it is a lease, it is kept alive as before; a cluster that does not answer, or has no space, is asked again.
    fn keep(
        &mut self,
        live: Live,
        left: Duration,
        goes_on: &mut GoesOn<'_>,
    ) -> Result<ReleaseOutcome> {
        self.record.live = live;
        self.keeping.work_is_over();
        let kept = Record {
            kind: Kind::Lease,
            kernel_lock: false,
            ..(*self.record).clone()
        };
        let value = self.keeping.etcd.written(&kept)?;
        let until = boottime().saturating_add(left);
        let mut may_be_kept = false;
        loop {
            let left = until.saturating_sub(boottime());
            let is_over = {
                let state = self.keeping.state();
                state.is_lost || state.is_broken
            };
            if left.is_zero() || is_over {
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
