//! The contract between the engine in [`lock`](crate::lock) and a place where locks are stored.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::decision::{Judged, Key, Request, Snapshot, Ticket, Until};
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::record::{Live, Mode, Record};
use crate::status::Waiter;
use crate::sys::Note;

/// A change of the locks, as the engine decided on it.
#[derive(Debug)]
pub(crate) enum Change<'d, H> {
    Nothing,
    /// Writes new records, each in place of what was found there, and removes others: all or none of
    /// the new ones.
    Take {
        put: Vec<(Key, Option<Judged<H>>)>,
        remove: Vec<Judged<H>>,
        draft: &'d Draft,
    },
    /// Removes records, if they are still what was found.
    Remove(Judged<H>),
    /// Writes what changes of a record, if it is still what was found.
    Renew(Judged<H>, Box<Live>),
    /// Changes the queue.
    Queue(QueueChange<'d>),
}

/// A change of the queue.
#[derive(Debug, Default)]
pub(crate) struct QueueChange<'d> {
    /// Adds the caller at its end.
    pub(crate) join: Option<(Box<Request>, &'d Draft)>,
    /// Reserves the lock for this waiter from now on, unless it is already.
    pub(crate) reserve: Option<u64>,
    /// This waiter has a turn again.
    pub(crate) restore_turn: Option<u64>,
}

/// A record without what the backend adds when it writes it: number, time, store.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub(crate) record: Record,
}

/// What became of an update.
pub(crate) struct Updated<B: Backend, T> {
    /// What `plan` returned beside its change.
    pub(crate) answer: T,
    /// The new hold.
    pub(crate) hold: Option<B::Hold>,
    /// The caller's new place in the queue.
    pub(crate) place: Option<B::Place>,
    /// The dead relatives that were removed.
    pub(crate) removed: Vec<Judged<B::Handle>>,
}

/// What a caller has that waits: nothing at first.
pub(crate) struct AsWaiter<'a, B: Backend> {
    pub(crate) place: Option<&'a mut B::Place>,
    /// What its last sleep brought.
    pub(crate) sleeper: Option<&'a mut B::Sleeper>,
}

impl<B: Backend> AsWaiter<'_, B> {
    pub(crate) const NONE: Self = Self {
        place: None,
        sleeper: None,
    };
}

/// How an update is begun.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    /// Makes the store if there is none.
    pub(crate) create: bool,
    pub(crate) patience: Patience<'a>,
    /// How a lock is taken that the kernel keeps.
    pub(crate) mode: Mode,
}

/// How long a sleep may last that nothing ends when a wait is canceled.
pub(crate) const CANCEL_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// How long another process may keep the store busy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience<'a> {
    /// `None`: as long as it takes.
    pub(crate) at_most: Option<Duration>,
    /// Ends the wait once it is set.
    pub(crate) canceled: Option<&'a AtomicBool>,
}

impl Patience<'_> {
    /// For a caller that does not wait for locks. Others keep the store busy for a fraction of a
    /// millisecond.
    pub(crate) const SHORT: Self = Self {
        at_most: Some(Duration::from_secs(10)),
        canceled: None,
    };
}

/// How long a waiter may sleep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SleepLimit<'a> {
    pub(crate) at_most: Duration,
    /// Ends the sleep within [`CANCEL_CHECK_INTERVAL`] once it is set.
    pub(crate) canceled: Option<&'a AtomicBool>,
}

impl SleepLimit<'_> {
    #[cfg(feature = "etcd")]
    pub(crate) fn is_canceled(&self) -> bool {
        self.canceled
            .is_some_and(|flag| flag.load(std::sync::atomic::Ordering::Relaxed))
    }

    /// How long to sleep until the next look whether it is canceled.
    pub(crate) fn slice(&self) -> Duration {
        match self.canceled {
            Some(_) => self.at_most.min(CANCEL_CHECK_INTERVAL),
            None => self.at_most,
        }
    }
}

/// How often a waiter looks that nothing wakes: at first, and in the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackOff {
    pub(crate) first: Duration,
    pub(crate) most: Duration,
}

/// A place where locks are stored.
pub(crate) trait Backend: Sized {
    /// How a found record or ticket is referred to.
    type Handle: Clone;
    type Snapshot<'a>: Snapshot<Handle = Self::Handle, Error = Error>
    where
        Self: 'a;
    type Hold: HeldRecord;
    /// A place in the queue. Dropping it leaves the queue.
    type Place: QueuePlace;
    /// What a waiter keeps between two sleeps.
    type Sleeper;

    /// Reads. What it answers is true for the moment of asking. May call `ask` again, like `update`. `None`: there
    /// is no store.
    fn look<T>(&self, ask: impl Fn(&Self::Snapshot<'_>) -> Result<T>) -> Result<Option<T>>;

    /// Makes the change that `plan` returns, if nothing that `plan` was told has changed since. May
    /// call `plan` again, like `AtomicU64::fetch_update`, so it has no effects and does not block.
    /// `None`: there is no store, and none was to be made.
    fn update<'d, T>(
        &self,
        entry: Entry<'_>,
        waiter: AsWaiter<'_, Self>,
        plan: impl FnMut(&Self::Snapshot<'_>) -> Result<(Change<'d, Self::Handle>, T)>,
    ) -> Result<Option<Updated<Self, T>>>;

    /// `mode`: as in [`Entry`].
    fn sleeper(&self, back_off: BackOff, mode: Mode) -> Self::Sleeper;

    /// Sleeps until a decision may be another one, for at most so long. May return early.
    fn sleep(
        &self,
        sleeper: &mut Self::Sleeper,
        place: Option<&mut Self::Place>,
        until: &Until<Self::Handle>,
        limit: SleepLimit<'_>,
        is_unchanged: impl FnOnce() -> bool,
    );

    /// The live waiters of a lock, the first one first.
    fn waiters(&self, of: &LockName) -> Result<Vec<Waiter>>;

    /// Who has a ticket.
    fn waiter(&self, ticket: &Ticket<Self::Handle>) -> Option<Waiter>;
}

/// A record of the caller's own that is in force.
pub(crate) trait HeldRecord {
    fn record(&self) -> &Record;

    /// Whether it was broken, replaced or deleted.
    fn is_lost(&self) -> Result<bool>;

    /// Writes what changes of it.
    fn write_live(&mut self, live: Live) -> Result<()>;

    /// What a child writes into it before it executes its command.
    fn notes(&self) -> Result<Vec<Note>>;

    /// Whether it is still in place after other programs have had time to act on what they read
    /// before. May block for some milliseconds.
    fn survives_settling_time(&self) -> Result<bool>;

    /// Removes it, if it is still there.
    fn release(&mut self) -> Result<ReleaseOutcome>;
}

/// A place in a queue.
pub(crate) trait QueuePlace {
    fn number(&self) -> u64;

    /// Prepares what can be prepared before sleeping.
    fn prepare(&mut self);

    /// Whether others may have joined the queue between the decision to join it and this place in it.
    fn may_be_behind_others(&self) -> bool;

    /// Makes the next decision look at the store again: the caller is about to show what is in the way.
    fn look_again(&mut self);
}

/// What became of a hold when it was released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum ReleaseOutcome {
    /// It was removed.
    Released,
    /// It was lost before. What is there now was not touched.
    Lost,
}
