//! The contract between the engine in [`lock`](crate::lock) and a place where locks are stored.

use std::any::Any;
use std::fmt::Debug;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::decision::{Key, Moment, Request, Snapshot};
use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::identity::Pid;
use crate::journal_line::{Line, PastHold};
use crate::name::LockName;
use crate::observer::HostFacts;
use crate::open_file::{Found, Handle, Judged, Ticket, Until};
use crate::record::{Format, Live, Mode, Record};
use crate::status::{KeptPlace, StoreFacts, Waiter};
use crate::sys::Note;
use crate::sys::process::boottime;
use crate::sys::wait::{Watch, pause};
use crate::ticket;

/// A change of the locks, as the engine decided on it.
#[derive(Debug)]
pub(crate) enum Change<'d> {
    Nothing,
    /// Writes new records, each in place of what was found there, and removes others: all or none of
    /// the new ones. `draft`: the record without what the backend adds: number, time, store. `lines`: of the holds that
    /// end, where they are written with the change: see [`Backend::keeps_journal`].
    Take {
        put: Vec<Put>,
        remove: Vec<Judged>,
        draft: &'d Record,
        lines: Vec<Line>,
    },
    /// Removes records, if they are still what was found. With the lines of that.
    Remove(Judged, Vec<Line>),
    /// Writes what changes of a record, if it is still what was found.
    Renew(Judged, Box<Live>),
    /// Changes the queue.
    Queue(QueueChange<'d>),
}

/// A change of the queue.
#[derive(Debug, Default)]
pub(crate) struct QueueChange<'d> {
    /// Adds the caller at its end, with such a draft.
    pub(crate) join: Option<(Box<Request>, &'d Record)>,
    /// Reserves the lock for this waiter from now on, unless it is already.
    pub(crate) reserve: Option<u64>,
    /// This waiter has a turn again.
    pub(crate) restore_turn: Option<u64>,
    /// What is in the way is dead, and may be taken over after this time.
    pub(crate) free_in: Option<Duration>,
}

/// Result of an update.
#[derive(Debug, Default)]
pub(crate) struct Updated {
    /// The new hold.
    pub(crate) hold: Option<Box<dyn HeldRecord>>,
    /// The caller has joined the queue, perhaps at another position than was decided on: decide again.
    pub(crate) may_be_behind_others: bool,
    /// The dead relatives that were removed.
    pub(crate) removed: Vec<Judged>,
}

/// How an update is begun.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    /// Makes the store if there is none.
    pub(crate) create: bool,
    pub(crate) patience: Patience<'a>,
}

impl Entry<'_> {
    /// For a change of what is there.
    pub(crate) const EXISTING: Self = Self {
        create: false,
        patience: Patience::SHORT,
    };
}

/// Why something cannot be done; `None`: it can.
pub(crate) type WhyNot = Option<&'static str>;

/// The time to live that a hold has, or why it cannot have what was asked for.
pub(crate) type Ttl = std::result::Result<Option<Duration>, &'static str>;

/// What may be asked of a lock, and cannot be had everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Any hold.
    Hold,
    /// Several holders: as many as ask for it, and at most so many.
    Shared,
    Slots,
    /// A hold that ends with time, and one that ends with another process.
    Lease,
    Follow,
    /// A command that does not inherit the kernel lock, and one that replaces the process.
    Close,
    Exec,
    /// A lock that stays taken once its command has ended.
    Keep,
    Owner,
    Message,
    /// A hold without them.
    NoOwner,
    NoMessage,
    /// What others do to a hold: release, renew, break.
    Change,
}

/// How long a sleep may last that nothing ends when a wait is canceled.
pub(crate) const CANCEL_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Longest sleep of a wait without a limit.
pub(crate) const IDLE: Duration = Duration::from_mins(1);

/// How long to wait: for another process that keeps the store busy, or in one sleep of a waiter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience<'a> {
    /// [`Duration::MAX`]: as long as it takes.
    pub(crate) at_most: Duration,
    /// Ends the wait within [`CANCEL_CHECK_INTERVAL`] once it is set.
    pub(crate) canceled: Option<&'a AtomicBool>,
    /// The caller waits for locks, and so for what a person may have to do first.
    pub(crate) is_of_waiter: bool,
}

impl Patience<'_> {
    /// For a caller that does not wait for locks. Others keep the store busy for a fraction of a
    /// millisecond.
    pub(crate) const SHORT: Self = Self {
        at_most: Duration::from_secs(10),
        canceled: None,
        is_of_waiter: false,
    };

    /// For so long, and not to be canceled.
    pub(crate) fn of(at_most: Duration) -> Self {
        Self::SHORT.for_at_most(at_most)
    }

    /// The same, but for so long.
    pub(crate) fn for_at_most(self, at_most: Duration) -> Self {
        Self { at_most, ..self }
    }

    /// How long to sleep until the next look whether it is canceled.
    pub(crate) fn slice(&self) -> Duration {
        match self.canceled {
            Some(_) => self.at_most.min(CANCEL_CHECK_INTERVAL),
            None => self.at_most,
        }
    }
}

/// Until when something is tried.
pub(crate) struct Deadline<'a> {
    /// On the boot-time clock.
    at: Duration,
    canceled: Option<&'a AtomicBool>,
}

impl<'a> Deadline<'a> {
    pub(crate) fn of(patience: Patience<'a>) -> Self {
        Self {
            at: boottime().saturating_add(patience.at_most),
            canceled: patience.canceled,
        }
    }

    /// How long to sleep next, at most so long; `None`: the time is over.
    pub(crate) fn next_sleep(&self, longest: Duration) -> Option<Duration> {
        let longest = match self.canceled {
            Some(canceled) if canceled.load(Ordering::Relaxed) => return None,
            Some(_) => longest.min(CANCEL_CHECK_INTERVAL),
            None => longest,
        };
        let left = self.at.saturating_sub(boottime()).min(longest);
        Some(left).filter(|left| !left.is_zero())
    }
}

/// Sleeps for so long, also while the machine is suspended, whatever signals come. std would end the program if the
/// system call failed.
pub(crate) fn sleep_for(patience: Patience<'_>) {
    let deadline = Deadline::of(patience);
    while let Some(left) = deadline.next_sleep(patience.at_most) {
        let _ = pause(left);
    }
}

/// How often a waiter looks that nothing wakes: at first, and in the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackOff {
    pub(crate) first: Duration,
    pub(crate) most: Duration,
}

/// What is asked about the locks, and may be asked again.
pub(crate) type Ask<'a> = dyn FnMut(&dyn LockSnapshot) -> Result<()> + 'a;

/// Is told why something could not be done yet. Whether it is to be tried again.
pub(crate) type GoesOn<'a> = &'a mut dyn FnMut(&Error) -> bool;

/// Whether what a sleep waits for is still as it was found.
pub(crate) type IsUnchanged<'a> = dyn FnMut() -> bool + 'a;

/// The key of a new record, and the hold in its place that a take replaces.
pub(crate) type Put = (Key, Option<Judged>);

/// Judges a record. `None`: it is not over, and stays. With the lines of its removal.
pub(crate) type JudgeOver<'a> = dyn FnMut(Moment, Found) -> Option<(Judged, Vec<Line>)> + 'a;

/// Decides on a change.
pub(crate) type Plan<'a, 'd> = dyn FnMut(&dyn LockSnapshot) -> Result<Change<'d>> + 'a;

/// The locks of a store at one moment.
pub(crate) trait LockSnapshot: Snapshot<Handle> {
    /// The live waiters of a lock, the first one first.
    fn waiters(&self, _of: &LockName) -> Vec<Waiter> {
        Vec::new()
    }

    /// Who has a ticket.
    fn waiter(&self, ticket: &Ticket) -> Option<Waiter> {
        ticket::waiter(ticket)
    }
}

/// A place where locks are stored.
pub(crate) trait Backend: Debug + Send + Sync {
    fn host(&self) -> &Arc<HostFacts>;

    /// Its directory, or its URL.
    fn path(&self) -> PathBuf;

    fn path_of_record(&self, key: &Key) -> PathBuf;

    /// That of the exclusive record of a name.
    fn path_of(&self, name: &LockName) -> PathBuf {
        self.path_of_record(&Key::exclusive(name))
    }

    /// The format of new records.
    fn format(&self) -> Format;

    /// Why a lock of this name cannot have that.
    fn why_not(&self, name: &LockName, asked: Asked) -> WhyNot;

    /// The time to live of a hold for which this was asked. `is_detached`: of one without a process of its own.
    fn ttl(&self, asked: Option<Duration>, _is_detached: bool) -> Ttl {
        Ok(asked)
    }

    /// The error that it cannot have this.
    fn unsupported(&self, what: &'static str) -> Error {
        Error::Unsupported {
            format: self.format(),
            what,
        }
    }

    /// Which store a name or a path means that is given to this one, and what it is called there.
    fn locate(self: Arc<Self>, name: LockName) -> Result<(Arc<dyn Backend>, LockName)>;

    /// Reads: see `look` of `dyn Backend`. Where there is no store, nothing is asked.
    fn ask(&self, ask: &mut Ask<'_>) -> Result<()>;

    /// Makes a change: see `update` of `dyn Backend`.
    fn apply(&self, entry: Entry<'_>, plan: &mut Plan<'_, '_>) -> Result<Option<Updated>>;

    /// A caller that tries to take a lock, and may wait for it.
    fn contender(&self, back_off: BackOff, mode: Mode) -> Box<dyn Contender + '_>;

    /// A caller that waits without taking anything: of what it returns only `sleep` is called.
    fn bystander(&self, back_off: BackOff) -> Box<dyn Contender + '_> {
        self.contender(back_off, Mode::Exclusive)
    }

    /// Sets what is called, once, if no server of a store of many machines has answered: with the reasons, and with the
    /// time for which they are tried.
    #[cfg(feature = "cluster")]
    fn on_silence(&self, _tell: fn(&str, Duration)) {}

    /// Who has a ticket.
    fn waiter(&self, ticket: &Ticket) -> Option<Waiter> {
        ticket::waiter(ticket)
    }

    /// Every lock, not judged yet. Returns what could not be read.
    fn list(&self, each: &mut dyn FnMut(Moment, Found)) -> Result<Vec<Error>>;

    always! {
        /// Whether its holders may be on other machines, where they cannot be signaled.
        is_remote(&self) -> bool = false;
        /// The live waiters of a lock, the first one first.
        waiters(&self, _of: &LockName) -> Result<Vec<Waiter>> = Ok(Vec::new());
        /// Makes what the server of a store of several machines lacks.
        create(&self) -> Vec<Finding> = Vec::new();
        /// Ends the time in which nothing is taken because the server may have lost holds.
        accept_epoch(&self) -> Finding = Finding::ok("epoch", "a store of files has none");
        /// What is known about a store of several machines. Changes nothing.
        examine(&self) -> Vec<Finding> = Vec::new();
        /// The places in its queue that are kept for waiters that are gone, in order.
        kept_places(&self, _of: &LockName) -> Result<Vec<KeptPlace>> = Ok(Vec::new());
        /// The names that have live waiters, each of them once or more.
        names_with_waiters(&self) -> Result<Vec<LockName>> = Ok(Vec::new());
        /// What wakes when something about the locks may have changed. `None`: nothing can, or not now.
        watch(&self) -> Option<Box<dyn ChangeWatch>> = None;
        /// Removes many records with few requests: those that `judge_over` returns. The ones that were removed are returned;
        /// the others are left to be removed one by one.
        remove_many(&self, _judge_over: &mut JudgeOver<'_>) -> Result<Vec<Judged>> = Ok(Vec::new());
        /// Removes what killed processes left beside the locks.
        sweep(&self, _errors: &mut Vec<Error>) -> Result<()> = Ok(());
        /// Moves a file that is no lock file out of the way; where it is now.
        move_aside(&self, _name: &LockName) -> Result<Option<PathBuf>> = Ok(None);
        /// What only etcd tells about a hold.
        facts(&self, _key: &Key) -> Result<Option<StoreFacts>> = Ok(None);
        /// Gives back the hold of a keeper that was killed, by the request that it has left. Whether it was still there.
        /// `lines`: of that.
        release_for_keeper(&self, _request: &[u8], _lines: &[Line]) -> Result<bool> = Ok(false);
        /// Whether it keeps its journal itself, and writes lines about a hold by the change that ends it.
        keeps_journal(&self) -> bool = false;
        /// The lines that it keeps, of each lock the oldest first. `of`: of this lock alone.
        journal(&self, _of: Option<&LockName>) -> Result<Vec<Vec<u8>>> = Ok(Vec::new());
    }
}

impl dyn Backend + '_ {
    /// Reads. What it answers is true for the moment of asking. May call `ask` again, like `update`. `None`: there
    /// is no store.
    pub(crate) fn look<T>(
        &self,
        mut ask: impl FnMut(&dyn LockSnapshot) -> Result<T>,
    ) -> Result<Option<T>> {
        let mut answer = None;
        self.ask(&mut |snapshot| {
            answer = Some(ask(snapshot)?);
            Ok(())
        })?;
        Ok(answer)
    }

    /// Makes the change that `plan` returns, if nothing that `plan` was told has changed since. May
    /// call `plan` again, like `AtomicU64::fetch_update`, so it has no effects and does not block.
    /// Returns what `plan` returned beside its change. `None`: there is no store, and none was to be made.
    pub(crate) fn update<'d, T>(
        &self,
        entry: Entry<'_>,
        mut plan: impl FnMut(&dyn LockSnapshot) -> Result<(Change<'d>, T)>,
    ) -> Result<Option<T>> {
        let mut answer = None;
        let updated = self.apply(entry, &mut |snapshot| {
            let (change, answered) = plan(snapshot)?;
            answer = Some(answered);
            Ok(change)
        })?;
        Ok(updated.and(answer))
    }
}

/// A caller that wants a lock: its place in the queue once it has one, and how it sleeps. Dropping it leaves the
/// queue.
pub(crate) trait Contender {
    /// As [`Backend::apply`], for this caller.
    fn apply(&mut self, entry: Entry<'_>, plan: &mut Plan<'_, '_>) -> Result<Option<Updated>>;

    /// Sleeps until a decision may be another one, for at most so long. May return early.
    fn sleep(&mut self, until: &Until, limit: Patience<'_>, is_unchanged: &mut IsUnchanged<'_>);

    /// Makes the next decision look at the store again: the caller is about to show what is in the way.
    fn look_again(&mut self) {}

    always! {
        /// The number of its place in the queue.
        place(&self) -> Option<u64> = None;
        /// Its place, and the watch that it slept with, once it has the lock.
        served(&mut self) -> (Option<Box<dyn QueuePlace>>, Option<Watch>) = (None, None);
        /// Its position in the queue of this lock, the first of which is 1. `None`: it has no place there.
        position(&self, _name: &LockName) -> Option<usize> = None;
        /// The same, if its place is kept once it leaves without the lock.
        position_kept(&self, _name: &LockName) -> Option<usize> = None;
    }
}

/// Wakes when something about the locks of a store may have changed.
pub(crate) trait ChangeWatch: Debug + Send {
    /// Sleeps until then, or until one of these processes has ended, for at most so long. What has changed since the
    /// call before counts as well.
    fn wait(&mut self, processes: &[Pid], at_most: Duration);
}

/// A place in a queue. Dropping it leaves the queue.
pub(crate) trait QueuePlace: Debug + Send + Sync {
    /// Leaves the queue, but wakes the next waiter only when it is dropped. `false`: it can only be dropped.
    fn leave_quietly(&mut self) -> bool {
        false
    }
}

/// A record of the caller's own that is in force.
pub(crate) trait HeldRecord: Any + Debug + Send + Sync {
    fn record(&self) -> &Record;

    /// Its file, or its key: of its first name.
    fn path(&self) -> &Path {
        self.paths().first().copied().unwrap_or(Path::new(""))
    }

    /// The paths of all its names.
    fn paths(&self) -> Vec<&Path>;

    /// Whether it was broken, replaced or deleted.
    fn is_lost(&self) -> Result<bool>;

    /// Writes what changes of it.
    fn write_live(&mut self, live: Live) -> Result<()>;

    /// Removes it, if it is still there.
    fn release(&mut self) -> Result<ReleaseOutcome>;

    /// Makes it a lease for so long from now on, if it is still there. Only where [`Asked::Keep`] allows it. What may
    /// be done a little later is tried again for as long as `goes_on` returns true.
    fn keep(&mut self, _live: Live, _left: Duration, _: GoesOn<'_>) -> Result<ReleaseOutcome> {
        self.release()
    }

    always! {
        /// The slot of a shared hold in each of its locks.
        slots(&self) -> Vec<u32> = Vec::new();
        /// Keeps the directory of its store open together with another hold of it, if it does not so already. Whether they
        /// do now. From then on both may be released by one thread only: the guard of one is that of the other.
        share_directory(&mut self, _other: &dyn HeldRecord) -> bool = false;
        /// Why, where that cannot be seen in the store.
        why_lost(&self) -> Option<String> = None;
        /// What a child writes into it before it executes its command.
        notes(&self) -> Result<Vec<Note>> = Ok(Vec::new());
        /// Whether it is still in place after other programs have had time to act on what they read
        /// before. May block for some milliseconds.
        survives_settling_time(&self) -> Result<bool> = Ok(true);
        /// Says how it ends, for a store that writes that by what gives the hold back. If that finds it lost, it is noted as
        /// lost. `false`: the caller notes it.
        note_end(&mut self, _end: PastHold) -> bool = false;
        /// Who has broken it, where it is not told by a signal.
        broken_by(&self) -> Option<String> = None;
        /// The file of the lock, where it has one.
        file(&self) -> Option<&File> = None;
        /// Makes a lease survive a crash of the machine.
        make_durable(&self) -> Result<()> = Ok(());
        /// Whether its holder was told to end its work, where it is not told by a signal.
        is_broken(&self) -> bool = false;
        /// When it counts as lost unless it is confirmed meanwhile, and when nothing of it may run any more, by
        /// the boot-time clock in milliseconds. `None`: no clock ends it.
        deadlines_ms(&self) -> Option<(u64, u64)> = None;
    }
}

/// Result of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum ReleaseOutcome {
    /// It was removed.
    Released,
    /// It stays taken for a while: see [`RunOptions::hold_at_least`](crate::RunOptions::hold_at_least).
    Kept,
    /// It was lost before. What is there now was not touched.
    Lost,
}

impl ReleaseOutcome {
    /// That of a hold which is gone from its store.
    pub(crate) fn of_removed(was_lost: bool) -> Self {
        if was_lost { Self::Lost } else { Self::Released }
    }
}
