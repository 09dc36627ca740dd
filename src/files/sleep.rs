//! Sleeping until a decision may be another one: in flock(2) where there is a kernel lock, on inotify
//! and a pidfd where there is a process or a file to watch, and by polling elsewhere.

use std::fs::File;
use std::io;
use std::time::Duration;

use super::guard::Blocking;
use super::queue::visible_pid;
use crate::backend::{BackOff, IsUnchanged};
use crate::decision::verdict::{Evidence, Reason, State};
use crate::identity::Pid;
use crate::open_file::{Judged, OpenFile, Ticket, Until, file_of};
use crate::record::{Kind, Record};
use crate::sys::directory::record_is_locked;
use crate::sys::process::{boottime, is_stopped, presence};
use crate::sys::wait::{Watch, pause, until_gone, until_unlocked};
use crate::sys::{ProcessState, random_u64};

/// Where a kernel lock can be asked for, but not waited for, it is asked for after this, doubling up
/// to the second.
const LOCK_POLL: BackOff = BackOff {
    first: Duration::from_millis(1),
    most: Duration::from_millis(50),
};

/// Interval at which a waiter looks again although events wake it, because they may not report everything.
const EVENT_RECHECK: Duration = Duration::from_secs(2);

/// That interval behind the wrapper of a `run`, which unlocks its record unless it is killed.
const WRAPPER_RECHECK: Duration = Duration::from_secs(10);

/// Interval at which a waiter looks whether the one that it sleeps on was stopped.
const STOP_CHECK: Duration = Duration::from_secs(5);

/// Most holds that are watched at once. Each needs a descriptor, of which a process usually has 1024.
const MAX_WATCHED: usize = 256;

/// The state of a waiter between two sleeps.
#[derive(Debug)]
pub(crate) struct Sleeper {
    pub(crate) blocking: Blocking,
    /// Closing an inotify descriptor takes 5 to 24 ms, so it is kept until there is nothing to hurry
    /// for.
    pub(super) watch: Option<Watch>,
    back_off: Duration,
    back_offs: BackOff,
}

impl Sleeper {
    pub(crate) fn new(back_offs: BackOff) -> Self {
        Self {
            blocking: Blocking::new(LOCK_POLL),
            watch: None,
            back_off: back_offs.first,
            back_offs,
        }
    }

    /// Whether something happened that may change the decision.
    pub(super) fn sleep(
        &mut self,
        until: &Until,
        at_most: Duration,
        is_unchanged: &mut IsUnchanged<'_>,
    ) -> bool {
        let slept = match until {
            Until::LeftQueue(ticket, interval) => {
                self.sleep_on_waiter(ticket, at_most.min(*interval), is_unchanged)
            }
            Until::Released(judged) => {
                // A writer notes its turn again before it is taken for missed, and readers pass.
                let at_most = if judged.found.key.index.is_some() {
                    at_most.min(EVENT_RECHECK)
                } else {
                    at_most
                };
                self.sleep_on_hold(judged, at_most, is_unchanged)
            }
            // Files prove death at once.
            Until::Ripe(..) => Err(io::ErrorKind::Unsupported.into()),
            Until::AnyReleased(holders, _) => self.sleep_on_events(holders, at_most, is_unchanged),
        };
        self.woken_by(slept, at_most).is_some()
    }

    /// Sleeps until another waiter leaves the queue, or is stopped.
    fn sleep_on_waiter(
        &mut self,
        ticket: &Ticket,
        at_most: Duration,
        is_unchanged: &mut IsUnchanged<'_>,
    ) -> io::Result<()> {
        let open = file_of(&ticket.handle)?;
        let waiter = visible_pid(ticket);
        if self.blocking.polls()
            && self.sleep_on_process(open, waiter, at_most.min(STOP_CHECK), is_unchanged)?
        {
            return Ok(());
        }
        let deadline = boottime().saturating_add(at_most);
        // If the ticket is gone, something has happened.
        open.with_file(|file| {
            loop {
                let now = boottime();
                let check_at = now.saturating_add(STOP_CHECK).min(deadline);
                let slept = self.sleep_on_lock(file, check_at.saturating_sub(now));
                let is_interrupted = matches!(&slept, Err(error)
                    if error.kind() == io::ErrorKind::Interrupted);
                let now = boottime();
                // Otherwise a signal has come.
                let is_due = now >= check_at && now < deadline;
                if !is_interrupted || !is_due || waiter.is_some_and(is_stopped) {
                    return slept;
                }
            }
        })?;
        Ok(())
    }

    fn sleep_on_hold(
        &mut self,
        judged: &Judged,
        at_most: Duration,
        is_unchanged: &mut IsUnchanged<'_>,
    ) -> io::Result<()> {
        let open = file_of(&judged.found.handle)?;
        if judged.verdict.evidence == Evidence::KernelLock {
            // A shared lock is granted beside a reader of flock(1), so it cannot be waited for.
            if judged.record().is_none() && !open.is_locked()? {
                return Err(io::ErrorKind::Unsupported.into());
            }
            let at_most = at_most.min(lock_recheck(judged));
            let taker = judged.record().and_then(|record| record.taken_by);
            if self.blocking.polls() && self.sleep_on_process(open, taker, at_most, is_unchanged)? {
                return Ok(());
            }
            // If the file is gone, something has happened.
            open.with_file(|file| self.sleep_on_lock(file, at_most))?;
            return Ok(());
        }
        self.sleep_on_events(std::slice::from_ref(judged), at_most, is_unchanged)
    }

    /// Sleeps until the file changes or the process ends, if both can be watched. Without a signal that ends a call,
    /// nothing else wakes a waiter for a kernel lock: who gives it back removes the file.
    fn sleep_on_process(
        &mut self,
        open: &OpenFile,
        process: Option<Pid>,
        at_most: Duration,
        is_unchanged: &mut IsUnchanged<'_>,
    ) -> io::Result<bool> {
        // One that has ended and left the lock to another would wake it at once, again and again.
        let Some(process) = process.filter(|pid| is_running(*pid)) else {
            return Ok(false);
        };
        let Ok(watch) = self.watch() else {
            return Ok(false);
        };
        let is_watched = match open.with_file(|file| Ok(watch.add(file, Some(process)).ok()))? {
            // It is gone.
            None => return Ok(true),
            Some(is_watched) => is_watched == Some(true),
        };
        if is_watched && is_unchanged() {
            watch.sleep(Some(at_most))?;
        }
        Ok(is_watched)
    }

    /// What has no processes of an earlier sleep.
    fn watch(&mut self) -> io::Result<&mut Watch> {
        let watch = match &mut self.watch {
            Some(watch) => watch,
            none => none.insert(Watch::new()?),
        };
        watch.begin();
        Ok(watch)
    }

    /// Blocks on a kernel lock.
    pub(super) fn sleep_on_lock(&self, file: &File, at_most: Duration) -> io::Result<()> {
        let is_unlocked = || record_is_locked(file).map(|is_locked| !is_locked);
        self.blocking
            .until(at_most, || until_unlocked(file), is_unlocked)
    }

    /// Sleeps until something happens to one of these holds.
    fn sleep_on_events(
        &mut self,
        holders: &[Judged],
        mut at_most: Duration,
        is_unchanged: &mut IsUnchanged<'_>,
    ) -> io::Result<()> {
        if holders.is_empty() || !holders.iter().all(is_woken_by_events) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let watch = self.watch()?;
        if holders.len() > MAX_WATCHED {
            at_most = at_most.min(EVENT_RECHECK);
        }
        for judged in holders.iter().take(MAX_WATCHED) {
            let open = file_of(&judged.found.handle)?;
            let (verdict, record) = (&judged.verdict, judged.record());
            // A wrapper outlives its command, and removes the record.
            let process = match verdict.wrapper_alive {
                Some(true) => record.and_then(|record| record.taken_by),
                _ => verdict.pid.filter(|_| verdict.pid_alive == Some(true)),
            };
            let added = open.with_file(|file| watch.add(file, process));
            // The watches that were made are closed if no descriptor is left.
            let Some(is_watched) = added.inspect_err(|_| watch.begin())? else {
                return Ok(());
            };
            if !is_watched && !record.is_some_and(Record::is_lease) {
                at_most = at_most.min(EVENT_RECHECK);
            }
            // A live `run` keeps its lock beyond its TTL, so only the expiry of a detached hold can end
            // this wait.
            let is_detached = record.is_some_and(Record::is_detached);
            if let Some(expires) = verdict.expires_at.filter(|_| is_detached) {
                let left = expires.signed_duration_since(chrono::Utc::now());
                // A little late rather than a little early, which would only be another round.
                let left = left.to_std().unwrap_or_default() + Duration::from_millis(2);
                at_most = at_most.min(left);
            }
        }
        if !is_unchanged() {
            return Ok(());
        }
        watch.sleep(Some(at_most))
    }

    /// Sleeps for a while, or until the process ends that has locked a file. Nothing tells of another end of such a lock.
    pub(crate) fn sleep_on_locker(&mut self, until: &Until, at_most: Duration) {
        let at_most = at_most.min(self.next_back_off());
        let locker = match until {
            Until::Released(judged) => judged.found.facts.lockers.first(),
            _ => None,
        };
        match locker.and_then(|locker| until_gone(*locker, at_most)) {
            Some(false) => {}
            // A descriptor that it has passed on may have the lock now.
            Some(true) => drop(pause(Duration::from_millis(1))),
            None => drop(pause(at_most)),
        }
    }

    /// What has ended a sleep, if it was not a signal. Where nothing can, it sleeps for a while.
    pub(crate) fn woken_by<T>(&mut self, slept: io::Result<T>, at_most: Duration) -> Option<T> {
        match &slept {
            // The next look comes soon again.
            Ok(_) => self.back_off = self.back_offs.first,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => self.sleep_backoff(at_most),
        }
        slept.ok()
    }

    fn sleep_backoff(&mut self, at_most: Duration) {
        let jittered = self.next_back_off();
        // Interrupted or not, the caller decides again.
        let _ = pause(at_most.min(jittered));
    }

    fn next_back_off(&mut self) -> Duration {
        // Half to all of it, so that waiters that began together do not stay together.
        let whole = u64::try_from(self.back_off.as_millis()).unwrap_or(u64::MAX);
        self.back_off = self.back_off.saturating_mul(2).min(self.back_offs.most);
        Duration::from_millis(whole / 2 + random_u64() % (whole / 2 + 1))
    }
}

/// A hold can end before its kernel lock does: a process that its command left behind may keep the
/// descriptor. Only a wrapper unlocks it then.
fn lock_recheck(judged: &Judged) -> Duration {
    let has_wrapper = judged
        .record()
        .is_some_and(|record| record.kind == Kind::Run && !record.exec);
    if has_wrapper {
        WRAPPER_RECHECK
    } else {
        EVENT_RECHECK
    }
}

fn is_woken_by_events(judged: &Judged) -> bool {
    judged.found.facts.shares_kernel_locks
        && match judged.verdict.reason {
            Reason::Unverified(_) => false,
            _ => matches!(judged.verdict.state, State::Held | State::Overdue),
        }
}

fn is_running(pid: Pid) -> bool {
    matches!(presence(pid), ProcessState::Alive { .. })
}
