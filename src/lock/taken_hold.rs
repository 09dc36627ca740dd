//! A hold taken by this process, for itself or for another.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, SubsecRound as _, TimeDelta, Utc};

use super::options::milliseconds;
use crate::backend::{Backend, HeldRecord, QueuePlace, ReleaseOutcome};
use crate::error::{Error, Result};
use crate::files::history::{HoldResult, PastHold};
use crate::files::journal::Journal;
use crate::identity::{Pid, ProcessId};
use crate::name::LockName;
use crate::record::{CommandEnd, Live, Record, has_four_digits};
use crate::status::Status;
use crate::sys::process;
use crate::sys::wait::Watch;

/// A hold that was taken, and how that came about. Dropping it releases it.
#[derive(Debug)]
pub(super) struct TakenHold {
    pub(super) store: Arc<dyn Backend>,
    pub(super) name: LockName,
    pub(super) held: Box<dyn HeldRecord>,
    pub(super) displaced: Vec<Status>,
    /// Its place in the queue. Dropping it wakes the next waiter, which needs the processor that a
    /// command is about to start on.
    pub(super) place: Option<Box<dyn QueuePlace>>,
    /// Closed only when the hold ends, because closing it takes milliseconds.
    pub(super) _watch: Option<Watch>,
    pub(super) warnings: Vec<Error>,
    /// Where its end is noted, if that is wanted, and when it was: before anybody else could have the lock.
    pub(super) history: Option<(Journal, DateTime<Utc>)>,
    /// Who took it.
    pub(super) pid: Pid,
    /// It was released, or handed over to its holder.
    pub(super) is_over: bool,
}

/// The changing part of a record after a heartbeat now.
pub(super) fn renewed(store: &dyn Backend, record: &Record, ttl: Option<Duration>) -> Live {
    let now = Utc::now().trunc_subsecs(6);
    let boot = &store.host().observer().boot;
    let mut live = Live {
        renewed_at: Some(now),
        renewed_boottime_ms: Some(process::boottime_milliseconds()),
        renewed_boot_id: boot.as_ref().map(|boot| boot.id.clone()),
        ttl_ms: ttl.map(milliseconds).or(record.live.ttl_ms),
        ..record.live.clone()
    };
    let ttl = live.ttl_ms.or(record.ttl_ms).map(Duration::from_millis);
    live.expires_at = ttl
        .and_then(|ttl| now.checked_add_signed(TimeDelta::from_std(ttl).ok()?))
        .filter(|at| has_four_digits(*at));
    live
}

impl TakenHold {
    pub(super) fn release(&mut self) -> Result<ReleaseOutcome> {
        let released = self.give_back(None);
        let _ = self.note_end(&released, false, None);
        released
    }

    /// Gives it back, or keeps it until the time of its record if its command has ended before.
    pub(super) fn give_back(&mut self, end: Option<CommandEnd>) -> Result<ReleaseOutcome> {
        self.is_over = true;
        if let Some((_, ended_at)) = &mut self.history {
            *ended_at = Utc::now();
        }
        // Leave the queue first, so that a releasing holder gets no reservation.
        self.place.take_if(|place| !place.leave_quietly());
        let released = match end {
            None => self.held.release(),
            Some(end) => self.keep_or_release(end),
        };
        self.place = None;
        released
    }

    #[cold]
    #[inline(never)]
    fn keep_or_release(&mut self, end: CommandEnd) -> Result<ReleaseOutcome> {
        let record = self.held.record();
        let acquired = record
            .origin
            .as_ref()
            .map(|origin| origin.acquired_boottime_ms);
        let until = acquired.zip(record.hold_at_least_ms);
        let until = until.map_or(0, |(acquired, least)| acquired.saturating_add(least));
        let left = until.saturating_sub(process::boottime_milliseconds());
        if left == 0 {
            return self.held.release();
        }
        let live = Live {
            ended: Some(end),
            expires_at: record.held_until(),
            ..Live::default()
        };
        self.held.keep(live, Duration::from_millis(left))
    }

    /// Notes its end in the history, if that is wanted; an error that did not prevent anything else.
    pub(super) fn note_end(
        &self,
        released: &Result<ReleaseOutcome>,
        is_broken: bool,
        end: Option<CommandEnd>,
    ) -> Option<Error> {
        self.history.as_ref()?;
        let is_lost = matches!(released, Ok(ReleaseOutcome::Lost));
        self.write_end(is_lost, is_broken, end)
    }

    #[cold]
    #[inline(never)]
    fn write_end(&self, is_lost: bool, is_broken: bool, end: Option<CommandEnd>) -> Option<Error> {
        let (journal, ended_at) = self.history.as_ref()?;
        let signal = end.and_then(|end| end.signal);
        let result = match end {
            _ if is_broken => HoldResult::Broken,
            _ if is_lost => HoldResult::Lost,
            None => HoldResult::Released,
            Some(_) if signal.is_some() => HoldResult::Signal,
            Some(_) => HoldResult::Exited,
        };
        let hold = PastHold {
            uid: process::own_uid(),
            exit_code: end.and_then(|end| end.exit_code),
            signal,
            ..PastHold::of(
                self.held.record(),
                &self.store.path(),
                self.held.path(),
                result,
                *ended_at,
            )?
        };
        journal.write(&hold).err()
    }

    pub(super) fn renew(&mut self) -> Result<()> {
        // Other programs trust the times in such a record, so they are not renewed once it is theirs.
        if self.held.record().format.heartbeat_interval().is_some() {
            self.ensure_in_place()?;
        }
        let live = renewed(&*self.store, self.held.record(), None);
        self.held.write_live(live)
    }

    /// Writes what changes of its record.
    pub(super) fn write(&mut self, change: impl FnOnce(&mut Live)) -> Result<()> {
        let mut live = self.held.record().live.clone();
        change(&mut live);
        self.held.write_live(live)
    }

    /// A command runs under it. Its PID is on record already; its start makes it certain.
    pub(super) fn started(&mut self, pid: u32) {
        self.place = None;
        let Some(pid) = Pid::new(pid) else { return };
        let written = self.write(|live| live.set_process(Some(ProcessId::of(pid))));
        self.warnings.extend(written.err());
    }

    /// Before a second command no command is on record, so that a child that is about to become it
    /// is not taken for a dead one.
    pub(super) fn clear_command(&mut self) -> Result<()> {
        if !self.held.record().has_command() {
            return Ok(());
        }
        self.write(|live| {
            live.set_process(None);
            live.let_go = false;
        })
    }

    pub(super) fn ensure_in_place(&self) -> Result<()> {
        if self.held.is_lost()? {
            return Err(Error::LostWhileAcquiring {
                path: self.held.path().to_owned(),
            });
        }
        Ok(())
    }
}

impl Drop for TakenHold {
    fn drop(&mut self) {
        // A forked copy is not the holder.
        if !self.is_over && self.pid == Pid::of_self() {
            let _ = self.release();
        }
    }
}

macro_rules! hold_accessors {
    () => {
        /// Its number: greater than that of any earlier hold in its store, so that a storage system
        /// can refuse a smaller one (a fencing token).
        #[must_use]
        pub fn number(&self) -> u64 {
            self.taken.held.record().hold
        }

        /// Its lock file; of a hold of several locks that of the first one.
        #[must_use]
        pub fn path(&self) -> &Path {
            self.taken.held.path()
        }

        /// The content of its lock file.
        #[must_use]
        pub fn record(&self) -> &Record {
            self.taken.held.record()
        }

        /// The numbers of a shared hold, one for each of its locks: 0 and up, each held by one at a time.
        #[must_use]
        pub fn slots(&self) -> Vec<u32> {
            self.taken.held.slots()
        }

        /// The holds that were replaced.
        #[must_use]
        pub fn displaced(&self) -> &[Status] {
            &self.taken.displaced
        }

        /// Errors that did not prevent the hold.
        #[must_use]
        pub fn warnings(&self) -> &[Error] {
            &self.taken.warnings
        }
    };
}

pub(super) use hold_accessors;
