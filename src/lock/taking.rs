//! Takes a lock: for this process, for a command, for another process or until a time.

use std::time::Duration;

use chrono::{SubsecRound as _, TimeDelta, Utc};

use super::hold::{Hold, renewed};
use super::holder::Holder;
use super::lock::Lock;
use super::options::{Options, RunOptions, milliseconds};
use super::pending_hold::PendingHold;
use super::take::{Outcome, take};
use super::wait::Wait;
use crate::backend::{HeldRecord, QueuePlace};
use crate::decision::verdict::State;
use crate::decision::{Asker, Judged, MAX_KEEP_MS};
use crate::error::{Error, Result};
use crate::files::journal::Action;
use crate::identity::Pid;
use crate::name::LockName;
use crate::open_file::Handle;
use crate::record::{Asked, Format, Kind, Live, Record, cut_command};
use crate::status::Status;
use crate::sys::wait::Watch;
use crate::sys::{COMMANDS_INHERIT_LOCKS, keeper, process};

/// The result of a request, for a caller that looks at what is in the way. For any other,
/// [`into_result`](Self::into_result) makes it an error that another holder has the lock.
#[derive(Debug)]
#[must_use]
pub enum Attempt<T> {
    /// The caller has the lock.
    Held(T),
    /// Another has it.
    Blocked(Blocked),
}

impl<T> Attempt<T> {
    /// For `?`: a lock that another holds is an error, which becomes an [`Error`] where that is returned.
    ///
    /// # Errors
    /// [`Blocked`]: another has it.
    pub fn into_result(self) -> Result<T, Blocked> {
        match self {
            Self::Held(held) => Ok(held),
            Self::Blocked(blocked) => Err(blocked),
        }
    }
}

/// Why a lock could not be taken. As an error it says who holds the lock, since when and why.
#[non_exhaustive]
pub struct Blocked {
    /// The hold or waiter in the way.
    pub status: Box<Status>,
    /// How long it was waited for; `None`: not at all.
    pub waited: Option<Duration>,
    /// So many were waiting already that it was not waited for, see [`Wait::max_waiting`].
    pub waiting: Option<usize>,
    /// The position in the queue that is kept, the first of which is 1, see [`Wait::keep_place`].
    pub kept_position: Option<usize>,
}

impl From<Blocked> for Error {
    fn from(blocked: Blocked) -> Self {
        Self::Blocked(Box::new(blocked))
    }
}

impl Error {
    /// Who holds the lock or is before the caller, if it is [`Error::Blocked`].
    #[must_use]
    pub fn blocked(&self) -> Option<&Blocked> {
        match self {
            Self::Blocked(blocked) => blocked.downcast_ref(),
            _ => None,
        }
    }
}

impl Blocked {
    /// For a program that refuses for a reason of its own.
    #[must_use]
    pub fn new(status: Status, waited: Option<Duration>) -> Self {
        let status = Box::new(status);
        Self {
            status,
            waited,
            waiting: None,
            kept_position: None,
        }
    }
}

/// A lock acquired for another process, or until a time.
#[derive(Debug)]
pub enum Acquired {
    /// Not in force until it is confirmed.
    New(Box<PendingHold>),
    /// The same holder already has the lock. Its time to live was extended if a longer one was asked for.
    AlreadyHeld(Box<Status>),
}

/// What keeps a new hold alive.
#[derive(Clone, Copy)]
enum NewHolder {
    ThisProcess,
    Run(RunOptions),
    Detached(Holder),
}

/// Result of an attempt.
enum Taken {
    Held(Box<Hold>),
    AlreadyHeld(Box<Status>),
    Blocked(Blocked),
}

impl Lock {
    /// Holds the lock for as long as the returned value lives, by this process, or fails at once. Threads
    /// exclude each other like processes do.
    ///
    /// ```no_run
    /// # fn main() -> onehold::Result<()> {
    /// let _hold = onehold::lock("import")?.try_hold()?;
    /// // Only one process at a time gets here.
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Blocked`]: another holder has the lock; and those of [`hold`](Self::hold).
    pub fn try_hold(&self) -> Result<Hold> {
        Ok(self.hold(&Options::new(), Wait::no())?.into_result()?)
    }

    /// Holds the lock like [`try_hold`](Self::try_hold), and waits for it for at most this long.
    ///
    /// # Errors
    /// [`Error::Blocked`]: another holder had the lock all the time; and those of [`hold`](Self::hold).
    pub fn hold_within(&self, limit: Duration) -> Result<Hold> {
        let wait = Wait::at_most(limit);
        Ok(self.hold(&Options::new(), wait)?.into_result()?)
    }

    /// Holds the lock for as long as the returned value lives, by this process, with options, or returns what
    /// is in the way.
    ///
    /// # Errors
    /// The store cannot be used, or the file is not a lock file.
    pub fn hold(&self, options: &Options, wait: Wait<'_>) -> Result<Attempt<Hold>> {
        self.hold_by(options, NewHolder::ThisProcess, wait)
    }

    /// Holds it for a command, to be started by [`Hold::spawn`] or [`Hold::exec`].
    ///
    /// # Errors
    /// As for [`hold`](Self::hold).
    pub fn hold_for_command(
        &self,
        options: &Options,
        run: RunOptions,
        wait: Wait<'_>,
    ) -> Result<Attempt<Hold>> {
        self.hold_by(options, NewHolder::Run(run), wait)
    }

    fn hold_by(
        &self,
        options: &Options,
        holder: NewHolder,
        wait: Wait<'_>,
    ) -> Result<Attempt<Hold>> {
        Ok(match self.take(options, holder, wait)? {
            Taken::Held(taken) => Attempt::Held(*taken),
            Taken::Blocked(blocked) => Attempt::Blocked(blocked),
            // Only detached holds are repeated.
            Taken::AlreadyHeld(status) => Attempt::Blocked(Blocked::new(*status, None)),
        })
    }

    /// Acquires it for another process, or as a lease. Nothing is held until the result is
    /// [confirmed](PendingHold::confirm).
    ///
    /// # Errors
    /// As for [`hold`](Self::hold).
    pub fn acquire(
        &self,
        options: &Options,
        holder: Holder,
        wait: Wait<'_>,
    ) -> Result<Attempt<Acquired>> {
        let taken = self.take(options, NewHolder::Detached(holder), wait)?;
        Ok(match taken {
            Taken::Held(taken) => {
                Attempt::Held(Acquired::New(Box::new(PendingHold { taken, holder })))
            }
            Taken::AlreadyHeld(status) => Attempt::Held(Acquired::AlreadyHeld(status)),
            Taken::Blocked(blocked) => Attempt::Blocked(blocked),
        })
    }

    fn take(&self, options: &Options, holder: NewHolder, mut wait: Wait<'_>) -> Result<Taken> {
        let checked = options.clone();
        let options = checked.check(&*self.store, self.name(), holder.detached(), holder.run())?;
        // Gathered before the guard: reading another process's memory can block.
        let mut draft = self.draft(&options, holder);
        let mut request = self.request(&options, holder.asker());
        request.waits_beside = wait.is_wanted().then_some(0);
        if wait.longest_queue().is_some_and(|most| most < u32::MAX) || wait.keeps_place.is_some() {
            request.keep_ms = self.keep_ms(&options, &wait)?;
        }
        let (outcome, kept_position) = take(self, request, &mut draft, &mut wait)?;
        match outcome {
            Outcome::Held(mut taken) => {
                let record = taken.held.record();
                if record.kind != Kind::Run || record.is_without_command() {
                    taken.place = None;
                }
                Ok(Taken::Held(taken))
            }
            Outcome::AlreadyHeld(judged) => {
                let mut status = self.status(&judged);
                status.waiters = self.store.waiters(self.name())?;
                Ok(Taken::AlreadyHeld(Box::new(status)))
            }
            Outcome::Blocked(obstacle, waiting) => {
                let mut status = self.obstacle_status(&obstacle);
                if status.slot.is_some() {
                    let request = self.request(&options, holder.asker());
                    let looked = self
                        .store
                        .look(|snapshot| self.others_than(&status, &request, snapshot))?;
                    status.others = looked.unwrap_or_default();
                }
                status.waiters = self.store.waiters(self.name()).unwrap_or_default();
                Ok(Taken::Blocked(Blocked {
                    waiting,
                    kept_position,
                    ..Blocked::new(status, wait.waited())
                }))
            }
        }
    }

    /// For how long a place in the queue is kept, of a wait that needs one.
    #[cold]
    #[inline(never)]
    fn keep_ms(&self, options: &Options, wait: &Wait<'_>) -> Result<Option<u64>> {
        if self.names().any(LockName::is_path) {
            let why_not = "waiters for a path have no queue: use a NAME";
            return Err(self.store.unsupported(why_not));
        }
        let keep = wait.keeps_place.filter(|_| wait.is_wanted());
        let Some(keep) = keep.map(milliseconds) else {
            return Ok(None);
        };
        let why_not = if options.owner.as_ref().is_none_or(String::is_empty) {
            "a place in the queue is kept for an owner only: pass --owner"
        } else if keep > MAX_KEEP_MS {
            "a place in the queue is kept for 30m at most"
        } else {
            return Ok(Some(keep));
        };
        Err(self.store.unsupported(why_not))
    }

    /// Writes the displaced and removed holds to the journal, and returns the new hold.
    pub(super) fn taken(
        &self,
        held: Box<dyn HeldRecord>,
        (place, watch): (Option<Box<dyn QueuePlace>>, Option<Watch>),
        mut displaced: Vec<Judged<Handle>>,
        removed: Vec<Judged<Handle>>,
    ) -> Hold {
        let mut warnings = Vec::new();
        for judged in removed {
            // A live holder is removed only if the caller asked for that: it is displaced, and not cleaned up.
            if judged.verdict.is_live() {
                displaced.push(judged);
                continue;
            }
            let was = self.status(&judged);
            warnings.extend(self.note(Action::Cleanup, &was, None));
            warnings.extend(self.note_found(&was));
        }
        let displaced: Vec<Status> = displaced
            .iter()
            .map(|judged| self.displaced_status(judged))
            .collect();
        for was in &displaced {
            let action = match was.verdict.state {
                State::Zombie => Some(Action::Takeover),
                State::Held | State::Overdue => Some(Action::Break),
                State::Free | State::NotALock => None,
            };
            if let Some(action) = action {
                let number = Some(held.record().hold);
                warnings.extend(self.note(action, was, number));
            }
            warnings.extend(self.note_found(was));
        }
        let has_history = held.record().asked.is_some();
        Hold {
            history: has_history.then(|| (self.journal.clone(), Utc::now())),
            pid: Pid::of_self(),
            is_over: false,
            older: Vec::new(),
            store: self.store.clone(),
            name: self.name().clone(),
            held,
            displaced,
            place,
            _watch: watch,
            warnings,
        }
    }

    fn draft(&self, options: &Options, holder: NewHolder) -> Record {
        let now = Utc::now().trunc_subsecs(6);
        // The process that others see as the holder: of a keeper its wrapper.
        let own = keeper::wrapper().unwrap_or_else(Pid::of_self);
        let mut record = Record::new(self.format(), Some(own), now);
        let run = holder.run();
        self.name().as_str().clone_into(&mut record.name);
        if self.names().nth(1).is_some() {
            record.names = self.names().map(|name| name.as_str().to_owned()).collect();
        }
        record.mode = options.mode;
        record.kind = match holder {
            NewHolder::Run(_) => Kind::Run,
            NewHolder::Detached(Holder::Lease) => Kind::Lease,
            NewHolder::ThisProcess | NewHolder::Detached(_) => Kind::Process,
        };
        record
            .hostname
            .clone_from(&self.store.host().observer().hostname);
        record.owner.clone_from(&options.owner);
        record.message.clone_from(&options.message);
        record.command = cut_command(holder.command_line(&options.command));
        record.ttl_ms = options.ttl.map(milliseconds);
        record.max_age_ms = options.max_age.map(milliseconds);
        record.asked = options.history.then_some(Asked {
            at: now,
            waiting: 0,
        });
        record.close = run.close || (record.kind == Kind::Run && !COMMANDS_INHERIT_LOCKS);
        record.exec = run.exec;
        record.supervised = run.supervised;
        record.kill_after_ms = run.kill_after.map(milliseconds);
        record.die_with = run.die_with;
        record.hold_at_least_ms = run.hold_at_least.map(milliseconds);
        record.kernel_lock =
            holder.detached().is_none() && !(self.store.is_remote() && record.kind == Kind::Run);
        if let NewHolder::Detached(Holder::Caller { parent, .. }) = holder {
            record.caller = Some(parent);
        }
        let follows = holder.detached().and_then(Holder::process_id);
        if self.format() != Format::Native {
            record.visible = Some(follows.map_or(own, |process| process.pid));
        }
        let is_own = matches!(holder, NewHolder::ThisProcess);
        if run.exec || run.without_command || is_own {
            // The process that keeps it is known from the beginning.
            record.live.pid = Some(own);
            record.live.start = process::start_ticks(Pid::of_self());
        }
        record
    }

    /// The part of the record that a repeated request of the same holder writes: the time to live that it
    /// asks for, unless the hold lasts longer already.
    pub(super) fn extended(&self, record: &Record, ttl: Option<Duration>) -> Option<Live> {
        let ttl = ttl?;
        let asked = Utc::now().checked_add_signed(TimeDelta::from_std(ttl).ok()?)?;
        let is_at_least = |expires| expires >= asked;
        let lasts_longer =
            record.ttl().is_none() || record.live.expires_at.is_some_and(is_at_least);
        (!lasts_longer).then(|| renewed(&*self.store, record, Some(ttl)))
    }
}

impl NewHolder {
    fn detached(self) -> Option<Holder> {
        match self {
            Self::Detached(holder) => Some(holder),
            Self::ThisProcess | Self::Run(_) => None,
        }
    }

    fn run(self) -> RunOptions {
        match self {
            Self::Run(run) => run,
            Self::ThisProcess | Self::Detached(_) => RunOptions::default(),
        }
    }

    fn asker(self) -> Asker {
        match self {
            Self::ThisProcess | Self::Run(_) => Asker::Caller,
            Self::Detached(Holder::Process(process)) => Asker::Process(process),
            Self::Detached(Holder::Caller { process, .. }) => Asker::Derived(process),
            Self::Detached(Holder::Lease) => Asker::Lease,
        }
    }

    fn command_line(self, given: &[String]) -> Vec<String> {
        if !given.is_empty() {
            return given.to_vec();
        }
        match self {
            Self::Detached(holder) => holder
                .process_id()
                .map(|process| process::command_line(process.pid))
                .unwrap_or_default(),
            Self::ThisProcess => process::command_line(Pid::of_self()),
            Self::Run(_) => Vec::new(),
        }
    }
}
