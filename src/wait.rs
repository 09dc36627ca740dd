//! How long to wait for a lock, and woken by what.

use std::fmt;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::lockfile::LockFile;
use crate::status::Status;
use crate::sys::directory::{make_room, record_is_locked};
use crate::sys::process::boottime;
use crate::sys::signal::Alarm;
use crate::sys::wait::{Watch, pause, random_below, until_unlocked};
use crate::verdict::{Proof, Reason, State};

/// A waiter looks again this often whatever wakes it: a daemon may keep the kernel lock of a
/// holder that is gone, and what inotify does not see may have changed.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// How often those look who are neither first nor second in a queue.
const LOOK_SELDOM: Duration = Duration::from_mins(1);

/// How long a sleep may be that nothing can cut short.
const UNINTERRUPTED: Duration = Duration::from_millis(100);

/// Where a kernel lock can be asked for, but not waited for, it is asked for after this, doubling up
/// to the second.
const LOOK_EVERY: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Where nothing wakes a waiter, it looks again after this, doubling up to the second.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

type Told<'a> = Box<dyn FnMut(&Status) + 'a>;

/// How long to wait for a lock that somebody else has.
///
/// The wait is for the kernel's word where there is one: it ends at once when a holder gives its
/// kernel lock back or dies, or when its process ends. Waiters for a name in a store are
/// served in order of arrival, across processes; for a path lock no order is promised. A program
/// that has not called [`use_sigalrm`](crate::signal::use_sigalrm) looks again every 100 ms instead.
///
/// ```
/// use std::time::Duration;
/// use onehold::Wait;
///
/// let wait = Wait::at_most(Duration::from_secs(30));
/// ```
pub struct Wait<'a> {
    limit: Limit,
    alarm: Option<Alarm>,
    cancelled: Option<&'a AtomicBool>,
    on_wait: Option<(Duration, Told<'a>)>,
    started: Option<Duration>,
    back_off: Duration,
    /// From where to where it grows.
    back_offs: (Duration, Duration),
    watch: Option<Watch>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    No,
    AtMost(Duration),
    Forever,
}

impl<'a> Wait<'a> {
    /// Not at all.
    #[must_use]
    pub fn no() -> Self {
        Self::new(Limit::No)
    }

    /// For so long; time in which the machine is suspended counts. Zero is not at all.
    #[must_use]
    pub fn at_most(limit: Duration) -> Self {
        Self::new(if limit.is_zero() {
            Limit::No
        } else {
            Limit::AtMost(limit)
        })
    }

    /// As long as it takes.
    #[must_use]
    pub fn forever() -> Self {
        Self::new(Limit::Forever)
    }

    fn new(limit: Limit) -> Self {
        Self {
            limit,
            alarm: None,
            cancelled: None,
            on_wait: None,
            started: None,
            back_off: BACK_OFF.0,
            back_offs: BACK_OFF,
            watch: None,
        }
    }

    /// Gives up soon (within 100 ms) after the flag has been set.
    #[must_use]
    pub fn until_cancelled(mut self, cancelled: &'a AtomicBool) -> Self {
        self.cancelled = Some(cancelled);
        self
    }

    /// Where nothing wakes it, the lock is looked at again after `first`, doubling up to `most`,
    /// each time shortened by up to a half at random. Without this: 100 ms and 2 s.
    #[must_use]
    pub fn back_off(mut self, first: Duration, most: Duration) -> Self {
        let first = first.max(Duration::from_millis(1));
        self.back_off = first;
        self.back_offs = (first, most.max(first));
        self
    }

    /// Told once, with what is waited for, when that has taken as long as `after`.
    #[must_use]
    pub fn on_wait(mut self, after: Duration, told: impl FnMut(&Status) + 'a) -> Self {
        self.on_wait = Some((after, Box::new(told)));
        self
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.limit != Limit::No
    }

    /// How long it has been waited, if at all.
    pub(crate) fn waited(&self) -> Option<Duration> {
        Some(boottime().saturating_sub(self.started?))
    }

    /// Whether there is nothing to wait for any more. The first call starts the clock.
    pub(crate) fn is_over(&mut self, status: &Status) -> bool {
        if self.limit == Limit::No {
            return true;
        }
        if self.started.is_none() {
            self.started = Some(boottime());
            // Before the caller, who may start threads when he is told.
            let _ = make_room();
            // Without one it is looked again from time to time.
            self.alarm = Alarm::new().ok().flatten();
        }
        if self.until_told().is_some_and(|left| left.is_zero())
            && let Some((_, mut told)) = self.on_wait.take()
        {
            told(status);
        }
        self.is_cancelled() || self.left().is_some_and(|left| left.is_zero())
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled
            .is_some_and(|cancelled| cancelled.load(Ordering::Relaxed))
    }

    /// `None`: nobody is to be told.
    fn until_told(&self) -> Option<Duration> {
        let (after, _) = self.on_wait.as_ref()?;
        Some(after.saturating_sub(self.waited().unwrap_or_default()))
    }

    /// `None`: no limit.
    fn left(&self) -> Option<Duration> {
        match self.limit {
            Limit::No => Some(Duration::ZERO),
            Limit::Forever => None,
            Limit::AtMost(limit) => Some(limit.saturating_sub(self.waited().unwrap_or_default())),
        }
    }

    /// Sleeps until the lock may have changed; `unchanged` says whether it still is as it was.
    pub(crate) fn sleep(
        &mut self,
        status: &Status,
        found: Option<&LockFile>,
        unchanged: impl FnOnce() -> bool,
    ) {
        let longest = self.left().map_or(LOOK_AGAIN, |left| left.min(LOOK_AGAIN));
        let Some(found) = found else {
            return self.sleep_blindly(longest);
        };
        let verdict = &status.verdict;
        let slept = if verdict.proof == Proof::KernelLock {
            self.sleep_on(&found.file, longest)
        } else if is_woken_by_events(status) {
            self.sleep_on_events(status, found, self.interruptible(longest), unchanged)
        } else {
            Err(io::ErrorKind::Unsupported.into())
        };
        match slept {
            Ok(()) => self.back_off = self.back_offs.0,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => self.sleep_blindly(longest),
        }
    }

    /// Sleeps until the waiter before us has left the queue. Whoever is second looks up from time
    /// to time: the first one may leave a free lock untaken. The others do so seldom, only for the
    /// case that who is second now is stopped, and so will not look when it is the first.
    pub(crate) fn sleep_behind(&mut self, before: &File, second: bool) {
        let look_again = if second { LOOK_AGAIN } else { LOOK_SELDOM };
        let longest = self.left().map_or(look_again, |left| left.min(look_again));
        match self.sleep_on(before, longest) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => self.sleep_blindly(longest),
        }
    }

    /// Sleeps until whoever keeps the kernel lock on the lock file gives it up.
    pub(crate) fn sleep_on_holder(&mut self, file: &File) {
        let longest = self.left().map_or(LOOK_AGAIN, |left| left.min(LOOK_AGAIN));
        // Interrupted or not, the caller looks.
        let _ = self.sleep_on(file, longest);
    }

    /// Blocks on a kernel lock.
    fn sleep_on(&self, file: &File, longest: Duration) -> io::Result<()> {
        let Some(alarm) = &self.alarm else {
            return look_until_unlocked(file, self.interruptible(longest));
        };
        alarm.set(self.interruptible(longest))?;
        let woken = until_unlocked(file);
        alarm.clear()?;
        woken
    }

    fn sleep_on_events(
        &mut self,
        status: &Status,
        found: &LockFile,
        longest: Duration,
        unchanged: impl FnOnce() -> bool,
    ) -> io::Result<()> {
        let process = status
            .verdict
            .pid
            .filter(|_| status.verdict.reason == Reason::Alive);
        let watch = match &mut self.watch {
            Some(watch) => watch,
            none => none.insert(Watch::new()?),
        };
        watch.watch(&found.file, process)?;
        if !unchanged() {
            return Ok(());
        }
        let mut longest = longest;
        if process.is_some() && !watch.sees_the_process() {
            longest = longest.min(BACK_OFF.1);
        }
        // A living `run` is not displaced by its time, so that ends no wait.
        if let Some(expires) = status.verdict.expires_at.filter(|_| ends_by_time(status)) {
            let left = expires.signed_duration_since(chrono::Utc::now());
            // A little late rather than a little early, which would only be another round.
            let left = left.to_std().unwrap_or_default() + Duration::from_millis(2);
            longest = longest.min(left);
        }
        if status.verdict.reason == Reason::InTheMaking {
            longest = longest.min(BACK_OFF.1);
        }
        watch.sleep(Some(longest))
    }

    /// What is better closed when there is nothing left to hurry for.
    pub(crate) fn leftovers(self) -> Option<Watch> {
        self.watch
    }

    fn sleep_blindly(&mut self, longest: Duration) {
        // Half to all of it, so that waiters who began together do not stay together.
        let whole = u64::try_from(self.back_off.as_millis()).unwrap_or(u64::MAX);
        let jittered = Duration::from_millis(whole / 2 + random_below(whole / 2 + 1));
        self.back_off = (self.back_off * 2).min(self.back_offs.1);
        // Interrupted or not, the caller judges again.
        let _ = pause(self.interruptible(longest.min(jittered)));
    }

    fn interruptible(&self, longest: Duration) -> Duration {
        let longest = self.until_told().map_or(longest, |left| longest.min(left));
        if self.cancelled.is_some() {
            return longest.min(UNINTERRUPTED);
        }
        longest
    }
}

/// Without an alarm nothing would end a wait in the kernel at its limit.
fn look_until_unlocked(file: &File, longest: Duration) -> io::Result<()> {
    let deadline = boottime() + longest;
    let mut every = LOOK_EVERY.0;
    while record_is_locked(file)? {
        let left = deadline.saturating_sub(boottime());
        if left.is_zero() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        pause(left.min(every))?;
        every = (every * 2).min(LOOK_EVERY.1);
    }
    Ok(())
}

fn is_woken_by_events(status: &Status) -> bool {
    let here = status.settles;
    here && match status.verdict.reason {
        Reason::Alive | Reason::Lease | Reason::UnknownVersion | Reason::InTheMaking => true,
        Reason::Unproven(_) => false,
        _ => status.verdict.state == State::Held,
    }
}

fn ends_by_time(status: &Status) -> bool {
    status
        .record
        .as_ref()
        .is_some_and(|record| record.job.is_some())
}

impl fmt::Debug for Wait<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait")
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}
