//! The verbs that take a lock: for this process, for a command, for another process or until a time.

use std::time::Duration;

use chrono::{SubsecRound as _, TimeDelta, Utc};

use super::attempt::{Attempt, attempt};
use super::hold::{Hold, renewed};
use super::holder::Holder;
use super::lock::Lock;
use super::options::{Options, RunOptions, milliseconds};
use super::pending_hold::PendingHold;
use super::wait::{MaxWaiting, Wait};
use crate::decision::{Asker, MAX_KEEP_MS};
use crate::error::Result;
use crate::identity::Pid;
use crate::name::LockName;
use crate::record::{Asked, Format, Kind, Live, Record, cut_command};
use crate::sys::{COMMANDS_INHERIT_LOCKS, keeper, process};

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
    /// [`Error::Blocked`](crate::Error::Blocked): another holder has the lock; and those of [`hold`](Self::hold).
    pub fn try_hold(&self) -> Result<Hold> {
        Ok(self.hold(&Options::new(), Wait::no())?.into_result()?)
    }

    /// Holds the lock like [`try_hold`](Self::try_hold), and waits for it for at most this long.
    ///
    /// # Errors
    /// [`Error::Blocked`](crate::Error::Blocked): another holder had the lock all the time; and those of [`hold`](Self::hold).
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
        self.attempt(options, None, None, wait)
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
        self.attempt(options, Some(run), None, wait)
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
    ) -> Result<Attempt<PendingHold>> {
        let attempted = self.attempt(options, None, Some(holder), wait)?;
        Ok(match attempted {
            Attempt::Held(taken) => Attempt::Held(PendingHold { taken, holder }),
            Attempt::Mine(status) => Attempt::Mine(status),
            Attempt::Blocked(blocked) => Attempt::Blocked(blocked),
        })
    }

    fn attempt(
        &self,
        options: &Options,
        run: Option<RunOptions>,
        holder: Option<Holder>,
        mut wait: Wait<'_>,
    ) -> Result<Attempt<Hold>> {
        let options = options.clone();
        let run_options = run.unwrap_or_default();
        let options = options.check(&*self.store, self.name(), holder, run_options)?;
        // Gathered before the guard: reading another process's memory can block.
        let mut draft = self.draft(&options, run, holder);
        let mut request = self.request(&options, asker(holder));
        wait.without_waiters = options.without_waiters;
        if wait.is_wanted() && !request.inside.is_empty() {
            request.waits_until_ms = Some(wait.until_ms());
        }
        request.waits_beside = wait.is_wanted().then_some(0);
        if matches!(wait.max_waiting, MaxWaiting::AtMost(_)) || wait.keeps_place.is_some() {
            request.keep_ms = self.keep_ms(&options, &wait)?;
        }
        attempt(self, request, &mut draft, &mut wait)
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

    fn draft(&self, options: &Options, run: Option<RunOptions>, holder: Option<Holder>) -> Record {
        let now = Utc::now().trunc_subsecs(6);
        // The process that others see as the holder: of a keeper its wrapper.
        let own = keeper::wrapper().unwrap_or_else(Pid::of_self);
        let mut record = Record::new(self.format(), Some(own), now);
        self.name().as_str().clone_into(&mut record.name);
        if self.names().nth(1).is_some() {
            record.names = self.names().map(|name| name.as_str().to_owned()).collect();
        }
        record.mode = options.mode;
        record.kind = match holder {
            _ if run.is_some() => Kind::Run,
            Some(Holder::Lease) => Kind::Lease,
            _ => Kind::Process,
        };
        record
            .hostname
            .clone_from(&self.store.host().observer().hostname);
        record.owner.clone_from(&options.owner);
        record.message.clone_from(&options.message);
        let is_own = run.is_none() && holder.is_none();
        record.command = cut_command(command_line(&options.command, is_own, holder));
        let run = run.unwrap_or_default();
        record.program.clone_from(&options.program);
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
        record.time_limited = run.time_limited;
        record.die_with = run.die_with;
        record.hold_at_least_ms = run.hold_at_least.map(milliseconds);
        record.kernel_lock =
            holder.is_none() && !(self.store.is_remote() && record.kind == Kind::Run);
        if let Some(Holder::Caller { parent, .. }) = holder {
            record.caller = Some(parent);
        }
        let follows = holder.and_then(Holder::process_id);
        if self.format() != Format::Native {
            record.visible = Some(follows.map_or(own, |process| process.pid));
        }
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

fn asker(holder: Option<Holder>) -> Asker {
    match holder {
        None => Asker::Caller,
        Some(Holder::Process(process)) => Asker::Process(process),
        Some(Holder::Caller { process, .. }) => Asker::Derived(process),
        Some(Holder::Lease) => Asker::Lease,
    }
}

fn command_line(given: &[String], is_own: bool, holder: Option<Holder>) -> Vec<String> {
    if !given.is_empty() {
        return given.to_vec();
    }
    let followed = holder.and_then(Holder::process_id);
    let shown = followed.map(|process| process.pid);
    let shown = shown.or_else(|| is_own.then(Pid::of_self));
    shown.map(process::command_line).unwrap_or_default()
}
