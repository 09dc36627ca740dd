//! How long to wait for a lock, and what is called while waiting.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::options::milliseconds;
use crate::backend::{BackOff, IDLE, Patience};
use crate::status::Status;
use crate::sys::directory::grow_fd_table;
use crate::sys::process::{boottime, boottime_milliseconds};

/// Where nothing wakes a waiter, it looks again after this, doubling up to the second.
const BACK_OFF: BackOff = BackOff {
    first: Duration::from_millis(100),
    most: Duration::from_secs(2),
};

/// Others keep the store busy for a fraction of a millisecond. A wait that is nearly over does not
/// fail because of that.
const MIN_PATIENCE: Duration = Duration::from_secs(5);

/// By how much a sleep may end early, since it is measured in milliseconds.
const EARLY: Duration = Duration::from_millis(10);

type OnWait<'a> = Box<dyn FnMut(&Status) + 'a>;

type OnDecision<'a> = Box<dyn FnMut(WaitDecision) -> bool + 'a>;

/// What an attempt is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitDecision {
    /// It takes the lock, or extends a hold that the caller has.
    Take,
    /// It does not take the lock after all, because the lock has changed meanwhile.
    WaitAgain,
}

/// Behind how many others an attempt waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MaxWaiting {
    DoesNotWait,
    AtMost(usize),
    NoLimit,
}

/// How long to wait for a lock that another holds.
///
/// A wait ends as soon as the holder releases its kernel lock or its process ends; nothing is polled
/// where the kernel can tell. Waiters for a name in a store are served in order of arrival, across
/// processes, as far as they could take their locks. For a path lock no order is guaranteed.
///
/// ```
/// use std::time::Duration;
/// use onehold::Wait;
///
/// let wait = Wait::at_most(Duration::from_secs(30));
/// ```
#[must_use]
pub struct Wait<'a> {
    /// `None`: as long as it takes; zero: not at all.
    limit: Option<Duration>,
    canceled: Option<&'a AtomicBool>,
    /// A signal ends each sleep once it is canceled.
    is_interrupted: bool,
    on_wait: Vec<(Duration, OnWait<'a>)>,
    on_decision: Option<OnDecision<'a>>,
    /// The last decision was to take the lock.
    is_taking: bool,
    started: Option<Duration>,
    /// Another holder was in the way.
    has_waited: bool,
    pub(super) max_waiting: MaxWaiting,
    pub(super) keeps_place: Option<Duration>,
    /// What is in the way at the end is shown without its waiters.
    pub(super) without_waiters: bool,
    /// The callbacks are told the position in the queue.
    pub(super) shows_position: bool,
    pub(super) back_off: BackOff,
}

impl<'a> Wait<'a> {
    /// Does not wait.
    pub fn no() -> Self {
        Self::new(Some(Duration::ZERO))
    }

    /// Waits for at most this long, suspended time included. Zero: does not wait.
    pub fn at_most(limit: Duration) -> Self {
        Self::new(Some(limit))
    }

    /// Waits as long as it takes.
    pub fn forever() -> Self {
        Self::new(None)
    }

    fn new(limit: Option<Duration>) -> Self {
        Self {
            limit,
            canceled: None,
            is_interrupted: false,
            on_wait: Vec::new(),
            on_decision: None,
            is_taking: false,
            started: None,
            has_waited: false,
            max_waiting: if limit == Some(Duration::ZERO) {
                MaxWaiting::DoesNotWait
            } else {
                MaxWaiting::NoLimit
            },
            keeps_place: None,
            without_waiters: false,
            shows_position: false,
            back_off: BACK_OFF,
        }
    }

    /// Stops within 100 ms after the flag has been set.
    pub fn until_canceled(mut self, canceled: &'a AtomicBool) -> Self {
        self.canceled = Some(canceled);
        self
    }

    /// The same for a thread that whoever sets the flag interrupts by a signal, again and again until the attempt
    /// returns: it looks at the flag only then.
    #[doc(hidden)]
    pub fn until_interrupted(mut self, canceled: &'a AtomicBool) -> Self {
        self.is_interrupted = true;
        self.until_canceled(canceled)
    }

    /// Does not wait behind so many others: the attempt is [blocked](crate::Blocked::waiting) at once. With 1,
    /// who finds one waiting knows that its turn begins later than now, and can leave the work to it. Needs a
    /// store in which waiters have a queue; on NFS and other filesystems of several hosts they have none, and
    /// this has no effect.
    pub fn max_waiting(mut self, waiting: impl Into<Option<u32>>) -> Self {
        if self.max_waiting != MaxWaiting::DoesNotWait {
            self.max_waiting = match waiting.into() {
                Some(most) => MaxWaiting::AtMost(most.try_into().unwrap_or(usize::MAX)),
                None => MaxWaiting::NoLimit,
            };
        }
        self
    }

    /// Keeps the position in the queue for this time, at most 30 minutes, if the wait ends without the lock or the
    /// process is killed: if the same [owner](crate::Options::owner) waits for the same locks in the same mode again,
    /// it gets the position back. A kept place delays no other waiter. Up to 64 are kept for each lock. For a process
    /// that was killed, the time starts when another process notices. On etcd it is at least 5 s, and starts when the
    /// process last kept its lease alive, which it does three times in that time. Needs an owner.
    pub fn keep_place(mut self, keep: impl Into<Option<Duration>>) -> Self {
        self.keeps_place = keep.into();
        self
    }

    /// Where nothing wakes it, a waiter looks again after `first`, doubling up to `most`, each time
    /// shortened by up to a half at random. Default: 100 ms and 2 s.
    pub fn back_off(mut self, first: Duration, most: Duration) -> Self {
        let first = first.max(Duration::from_millis(1));
        self.back_off = BackOff {
            first,
            most: most.max(first),
        };
        self
    }

    /// Calls `callback` once, with what is waited for, after this time. There can be several, each with its time.
    pub fn on_wait(mut self, after: Duration, callback: impl FnMut(&Status) + 'a) -> Self {
        self.on_wait.push((after, Box::new(callback)));
        self
    }

    /// Tells the callbacks of [`on_wait`](Self::on_wait) the [position](Status::position) of the caller in the queue.
    pub fn with_position(mut self) -> Self {
        self.shows_position = true;
        self
    }

    /// Calls `callback` before the lock is taken, also in an attempt that does not wait. If the lock could not be
    /// taken and the attempt waits again, calls it once more, and so on. If it returns `false`, nothing is taken, and
    /// the attempt fails with [`Canceled`](crate::Error::Canceled). So a program whose waits can be ended from outside
    /// at any moment knows from when on it may have a lock to give back. Other processes may wait for the callback: it
    /// must be short.
    pub fn on_decision(mut self, callback: impl FnMut(WaitDecision) -> bool + 'a) -> Self {
        self.on_decision = Some(Box::new(callback));
        self
    }

    /// Whether the caller lets it do that: take the lock, or wait after a decision to take it that came to nothing.
    /// Asks only once for several attempts in a row, because the first one may have displaced other holders already;
    /// again after a wait.
    pub(super) fn may(&mut self, decision: WaitDecision) -> bool {
        let is_taking = decision == WaitDecision::Take;
        let was_taking = std::mem::replace(&mut self.is_taking, is_taking);
        let callback = self.on_decision.as_mut();
        was_taking == is_taking || callback.is_none_or(|callback| callback(decision))
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.max_waiting != MaxWaiting::DoesNotWait
    }

    /// How long it has waited for a holder, if at all.
    pub(crate) fn waited(&self) -> Option<Duration> {
        self.has_waited.then(|| self.elapsed())
    }

    /// Starts its clock, unless it runs.
    pub(super) fn start(&mut self) {
        self.started.get_or_insert_with(boottime);
    }

    fn elapsed(&self) -> Duration {
        let now = boottime();
        now.saturating_sub(self.started.unwrap_or(now))
    }

    /// How long other processes may keep the store busy.
    pub(crate) fn patience(&self) -> Patience<'a> {
        if !self.is_wanted() {
            return self.for_at_most(Patience::SHORT.at_most);
        }
        let left = self.left().map(|left| left.max(MIN_PATIENCE));
        self.for_at_most(left.unwrap_or(Duration::MAX))
    }

    fn for_at_most(&self, at_most: Duration) -> Patience<'a> {
        Patience {
            at_most,
            canceled: self.canceled.filter(|_| !self.is_interrupted),
            is_of_waiter: self.is_wanted(),
        }
    }

    /// Whether the wait for a holder is over: by its limit, or because it was canceled. Calls the callback
    /// when that is due. `is_ripening`: there is no longer a holder, and the lock can be taken soon.
    pub(crate) fn should_stop(
        &mut self,
        is_ripening: bool,
        status: impl FnOnce() -> Status,
    ) -> bool {
        if !self.is_wanted() && !is_ripening {
            return true;
        }
        self.has_waited = true;
        let elapsed = self.elapsed();
        if self.on_wait.iter().any(|(after, _)| *after <= elapsed) {
            // Before the caller starts threads: with them, growing the table takes milliseconds.
            let _ = grow_fd_table();
            let status = status();
            self.on_wait.retain_mut(|(after, callback)| {
                let is_due = *after <= elapsed;
                if is_due {
                    callback(&status);
                }
                !is_due
            });
        }
        let is_over = self.is_wanted() && self.left().is_some_and(|left| left.is_zero());
        let is_set = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        is_over || self.canceled.is_some_and(is_set)
    }

    /// `None`: there is no callback.
    fn until_callback(&self) -> Option<Duration> {
        let after = self.on_wait.iter().map(|(after, _)| *after).min()?;
        Some(after.saturating_sub(self.elapsed()))
    }

    /// `None`: no limit.
    fn left(&self) -> Option<Duration> {
        Some(self.limit?.saturating_sub(self.elapsed()))
    }

    /// When it ends, by the boot-time clock in milliseconds; without a limit `u64::MAX`.
    pub(super) fn until_ms(&self) -> u64 {
        self.left().map_or(u64::MAX, |left| {
            boottime_milliseconds().saturating_add(milliseconds(left))
        })
    }

    /// Whether the callback is due, or the wait is over: what is in the way is about to be shown.
    pub(crate) fn is_due(&self) -> bool {
        [self.left(), self.until_callback()]
            .into_iter()
            .flatten()
            .any(|left| left <= EARLY)
    }

    /// How long to sleep at most. `certain_in`: when the state of the lock is certain, if it is not. A sleep until
    /// then is not a wait for a holder, because it always ends.
    pub(crate) fn sleep_limit(&self, certain_in: Option<Duration>) -> Patience<'a> {
        let longest = self.left().unwrap_or(IDLE);
        let longest = self.until_callback().unwrap_or(longest).min(longest);
        self.for_at_most(match certain_in {
            None => longest,
            Some(after) if self.is_wanted() => after.min(longest),
            Some(after) => after,
        })
    }
}

impl fmt::Debug for Wait<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait")
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}
