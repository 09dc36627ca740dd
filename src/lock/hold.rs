//! A hold of the calling process.

use std::io;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, SubsecRound as _, TimeDelta, Utc};

use super::ending::{clock, entry_of_hold};
use super::lock::Lock;
use super::options::{Options, milliseconds};
use super::status::with_verdict;
use crate::backend::{Backend, GoesOn, HeldRecord, QueuePlace, ReleaseOutcome};
use crate::decision::verdict::{Evidence, Reason, Verdict};
use crate::decision::{Want, excludes};
use crate::error::{Error, Result};
use crate::files::journal::Journal;
use crate::hold_info::HoldInfo;
use crate::identity::{Pid, ProcessId};
use crate::journal_line::{HoldResult, PastHold};
use crate::name::LockName;
use crate::record::{CommandEnd, Live, Record, has_four_digits};
use crate::status::Status;
use crate::sys::spawn::{HOLD_LOST, exec_keeping, spawn};
use crate::sys::wait::Watch;
use crate::sys::{Recording, process, why_not_recorded};

/// How often a wrapper renews its heartbeat, so that a hold of days does not become overdue.
const HEARTBEAT_INTERVAL: Duration = Duration::from_hours(1);

/// A hold of the calling process. Dropping it releases the lock, also on `?` and on a panic; in
/// a process forked from this one, dropping its copy does nothing.
///
/// If the process is killed, the next one takes the lock over at once.
///
/// ```no_run
/// use onehold::Store;
///
/// # fn main() -> onehold::Result<()> {
/// let hold = Store::at("/var/lib/app/locks").lock("import".parse()?)?.try_hold()?;
/// println!("hold {}", hold.number());
/// // Bound to a name, it lives until here. Bound to `_`, it would be dropped at once.
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping it releases the lock"]
pub struct Hold {
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
    /// The store writes it with the release.
    pub(super) is_noted: bool,
    /// Who took it.
    pub(super) pid: Pid,
    /// It was released, or handed over to its holder.
    pub(super) is_over: bool,
    /// The children that this process had before it started the command.
    pub(super) older: Vec<ProcessId>,
}

impl Hold {
    /// Its number: greater than that of any earlier hold in its store, so that a storage system
    /// can refuse a smaller one (a fencing token).
    pub fn number(&self) -> u64 {
        self.held.record().hold
    }

    /// Its lock file; of a hold of several locks that of the first one.
    pub fn path(&self) -> &Path {
        self.held.path()
    }

    /// What its record says.
    pub fn info(&self) -> HoldInfo<'_> {
        HoldInfo(self.held.record())
    }

    /// The numbers of a shared hold, one for each of its locks: 0 and up, each held by one at a time.
    pub fn slots(&self) -> Vec<u32> {
        self.held.slots()
    }

    /// The holds that were replaced.
    pub fn displaced(&self) -> &[Status] {
        &self.displaced
    }

    /// Errors that did not prevent the hold.
    pub fn warnings(&self) -> &[Error] {
        &self.warnings
    }

    /// Whether that lock cannot be taken with these options while this hold lasts, as far as the two tell: nothing is
    /// read.
    #[doc(hidden)]
    #[cold]
    pub fn excludes(&self, lock: &Lock, options: &Options) -> bool {
        if self.store.path() != lock.store.path() {
            return false;
        }
        let record = self.held.record();
        let names = record.all_names().map(LockName::new);
        let names = names.filter_map(Result::ok);
        let mut held = names.map(|name| Want::of(&name, record.mode));
        let (holder, asker) = (record.owner.as_deref(), options.owner.as_deref());
        held.any(|held| {
            let mut wants = lock.wants(options.mode);
            wants.any(|wanted| excludes(&held, holder, &wanted, asker))
        })
    }

    /// The lock as this process knows it: nothing is read.
    #[doc(hidden)]
    #[cold]
    pub fn status(&self) -> Status {
        let record = self.held.record();
        let evidence = if self.store.is_remote() {
            Evidence::LeaseKept
        } else {
            Evidence::SameProcess
        };
        let mut verdict = Verdict::new(Reason::Alive, evidence);
        verdict.pid = record.live.pid.or(record.taken_by);
        verdict.pid_alive = Some(true);
        verdict.age = Some(clock().saturating_sub(acquired(record)));
        Status {
            record: Some(record.clone()),
            slot: self.held.slots().first().copied(),
            ..with_verdict(&*self.store, &self.name, self.path().to_owned(), verdict)
        }
    }

    /// Releases the lock and says whether it was still held. Dropping it does the same without a result.
    ///
    /// # Errors
    /// The lock file cannot be removed.
    pub fn release(mut self) -> Result<ReleaseOutcome> {
        self.end()
    }

    /// Whether the lock was lost: broken, or its file replaced or deleted.
    ///
    /// # Errors
    /// The directory cannot be read; that says nothing either way.
    pub fn is_lost(&self) -> Result<bool> {
        self.held.is_lost()
    }

    /// Why a hold on etcd was lost, in words: which members did not answer, what was refused, or who has the lock now.
    /// `None`: in a directory, and if it has not been lost.
    pub fn why_lost(&self) -> Option<String> {
        self.held.why_lost()
    }

    /// Renews the heartbeat: age and time to live count from now.
    ///
    /// # Errors
    /// The lock file cannot be written.
    pub fn renew(&mut self) -> Result<()> {
        // Other programs trust the times in such a record, so they are not renewed once it is theirs.
        if self.held.record().format.heartbeat_interval().is_some() {
            self.ensure_in_place()?;
        }
        let live = renewed(&*self.store, self.held.record(), None);
        self.held.write_live(live)
    }

    /// When [`renew`](Self::renew) is due: an hour after the last heartbeat, after a third of the time
    /// to live, or, in [`Format::Memory`](crate::Format::Memory), after 8 s. Zero: now. Counted by a
    /// clock that does not stop while the machine is suspended.
    pub fn renewal_due_in(&self) -> Duration {
        let record = self.held.record();
        let of_ttl = record
            .ttl()
            .map(|ttl| (ttl / 3).max(Duration::from_millis(10)));
        let of_format = record.format.heartbeat_interval();
        let every = [of_ttl, of_format].into_iter().flatten();
        let every = every.fold(HEARTBEAT_INTERVAL, Duration::min);
        let renewed = record.live.renewed_boottime_ms;
        let last = renewed.map_or_else(|| acquired(record), Duration::from_millis);
        every.saturating_sub(clock().saturating_sub(last))
    }

    /// Keeps the directory of its store open together with another hold of that store. Whether they do now. From then
    /// on one thread has to release both.
    #[doc(hidden)]
    pub fn share_directory(&mut self, other: &Self) -> bool {
        self.held.share_directory(&*other.held)
    }

    /// Starts a command under this hold. Its PID is in the record before it is executed, and it
    /// inherits the kernel lock unless the hold was made with [`RunOptions::close`](crate::RunOptions::close):
    /// as long as it runs the lock is held, even if the calling process is killed.
    ///
    /// # Errors
    /// [`Error::Spawn`]: it cannot be executed; [`Error::LostWhileAcquiring`]: the lock was lost before.
    pub fn spawn(&mut self, command: &mut Command) -> Result<Child> {
        let program = command.get_program().to_string_lossy().into_owned();
        self.ensure_in_place()?;
        self.clear_command()?;
        let Some(recording) = recording(&*self.held)? else {
            return Err(NEEDS_KEEPER);
        };
        let child = spawn(command, recording)
            .map_err(|source| spawn_error(source, self.held.path(), &program))?;
        self.started(child.id());
        Ok(child)
    }

    /// How much longer this hold is known to last, by a clock that does not stop while the machine is
    /// suspended; zero: no longer. `None`: no clock ends it. A hold on etcd lasts as long as its lease is
    /// kept: a thread of this process does that, and each confirmed renewal extends this time. After it,
    /// another process may have the lock.
    pub fn valid_until(&self) -> Option<Duration> {
        let (_, at) = self.held.deadlines_ms()?;
        Some(Duration::from_millis(at).saturating_sub(clock()))
    }

    /// Whether another process has asked this one to end the work of this hold, in a store on etcd: the
    /// record says who. In a directory it is always `false`, because a process is told by a signal there.
    pub fn is_broken(&self) -> bool {
        self.held.is_broken()
    }

    /// Becomes a command, which keeps the kernel lock until it ends. Returns only on failure, and
    /// then the lock is still held. No process removes the record afterwards: it is recognized as
    /// finished, and the next one replaces it.
    pub fn exec(&mut self, command: &mut Command) -> Error {
        self.place = None;
        let program = command.get_program().to_string_lossy().into_owned();
        // Nothing notices later, and the hold may be old.
        if let Err(error) = self.ensure_in_place() {
            return error;
        }
        let Some(file) = self.held.file() else {
            return NEEDS_KEEPER;
        };
        let source = exec_keeping(command, file);
        Error::Spawn { program, source }
    }

    /// The environment of a command under this hold: `ONEHOLD_NAME`, `ONEHOLD_HOLD`, `ONEHOLD_FILE`,
    /// `ONEHOLD_SLOT` if it is shared, and `ONEHOLD_HOLDS` with this one added to those in `enclosing`. For a
    /// hold of several locks, names and files have one line each. `None`: the variable must be unset, because
    /// it would be that of an enclosing hold.
    pub fn environment(&self, enclosing: Option<&str>) -> Vec<(&'static str, Option<String>)> {
        let held = &self.held;
        let record = held.record();
        let enclosing = enclosing.unwrap_or_default().trim().to_owned();
        let enclosing = Some(enclosing).filter(|holds| !holds.is_empty());
        let own = record
            .all_names()
            .map(|name| entry_of_hold(record.hold, name));
        let holds: Vec<String> = enclosing.into_iter().chain(own).collect();
        let names: Vec<&str> = record.all_names().collect();
        let paths = held.file().map(|_| held.paths()).unwrap_or_default();
        let files: Vec<_> = paths.iter().map(|path| path.to_string_lossy()).collect();
        let slots: Vec<String> = held.slots().iter().map(u32::to_string).collect();
        // One of an enclosing hold would be another lock's.
        let slots = (!slots.is_empty()).then(|| slots.join(" "));
        vec![
            ("ONEHOLD_NAME", Some(names.join("\n"))),
            ("ONEHOLD_HOLD", Some(record.hold.to_string())),
            ("ONEHOLD_FILE", Some(files.join("\n"))),
            ("ONEHOLD_HOLDS", Some(holds.join(" "))),
            ("ONEHOLD_SLOT", slots),
        ]
    }

    fn end(&mut self) -> Result<ReleaseOutcome> {
        if self.history.is_some() {
            let result = self.result_without_command(&Ok(ReleaseOutcome::Released));
            self.will_end(result, None);
        }
        let released = self.release_or_keep(None, &mut |_| false);
        if self.history.is_some() && !self.is_noted {
            let _ = self.write_end(self.result_without_command(&released), None);
        }
        released
    }

    /// Releases the lock. `end`: of its command, to keep the lock until the time of
    /// [`RunOptions::hold_at_least`](crate::RunOptions::hold_at_least). On etcd that is tried again for as long as `goes_on` returns
    /// true.
    ///
    /// # Errors
    /// The lock file cannot be removed or written.
    #[doc(hidden)]
    pub fn release_or_keep(
        &mut self,
        end: Option<CommandEnd>,
        goes_on: &mut dyn FnMut(&Error) -> bool,
    ) -> Result<ReleaseOutcome> {
        self.is_over = true;
        if let Some((_, ended_at)) = &mut self.history {
            *ended_at = Utc::now();
        }
        // Leave the queue first, so that a releasing holder gets no reservation.
        self.place.take_if(|place| !place.leave_quietly());
        let released = match end {
            None => self.held.release(),
            Some(end) => self.keep_or_release_record(end, goes_on),
        };
        self.place = None;
        released
    }

    #[cold]
    #[inline(never)]
    fn keep_or_release_record(
        &mut self,
        end: CommandEnd,
        goes_on: GoesOn<'_>,
    ) -> Result<ReleaseOutcome> {
        let record = self.held.record();
        let least = record.hold_at_least_ms.map(Duration::from_millis);
        let until = least.map(|least| acquired(record).saturating_add(least));
        let left = until.unwrap_or_default().saturating_sub(clock());
        if left.is_zero() {
            return self.held.release();
        }
        let live = Live {
            ended: Some(end),
            expires_at: record.held_until(),
            ..Live::default()
        };
        self.held.keep(live, left, goes_on)
    }

    /// How a hold has ended whose command did not.
    #[cold]
    #[inline(never)]
    fn result_without_command(&self, released: &Result<ReleaseOutcome>) -> HoldResult {
        let record = self.held.record();
        let is_for_command = record.exec || (record.supervised && !record.is_without_command());
        match released {
            Ok(ReleaseOutcome::Lost) => HoldResult::Lost,
            // The end of a command that has been started is noted by its supervisor.
            _ if is_for_command => HoldResult::NotStarted,
            _ => HoldResult::Released,
        }
    }

    /// Says how the hold ends, before it is released: a store of several machines notes that with the release. Does
    /// nothing for others, and without a history.
    #[doc(hidden)]
    #[cold]
    #[inline(never)]
    pub fn will_end(&mut self, result: HoldResult, end: Option<CommandEnd>) {
        if self.store.keeps_journal() {
            let end = self.past_hold(result, end, Utc::now());
            self.is_noted = end.is_some_and(|end| self.held.note_end(end));
        }
    }

    /// Who has broken it, of a store of several machines. `None`: nobody, or that is not known.
    pub fn broken_by(&self) -> Option<String> {
        self.held.broken_by()
    }

    /// Notes in the history how the hold has ended, if that is wanted, unless the store has done it with the release.
    /// Returns an error that prevented it.
    #[doc(hidden)]
    #[must_use]
    pub fn note_end(&self, result: HoldResult, end: Option<CommandEnd>) -> Option<Error> {
        self.history.as_ref().filter(|_| !self.is_noted)?;
        self.write_end(result, end)
    }

    #[cold]
    #[inline(never)]
    fn write_end(&self, result: HoldResult, end: Option<CommandEnd>) -> Option<Error> {
        let (journal, ended_at) = self.history.as_ref()?;
        journal
            .write(&self.past_hold(result, end, *ended_at)?)
            .err()
    }

    /// `None`: it was not asked for with a history.
    fn past_hold(
        &self,
        result: HoldResult,
        end: Option<CommandEnd>,
        ended_at: DateTime<Utc>,
    ) -> Option<PastHold> {
        let uid = process::own_uid();
        let is_for_others = self.store.keeps_journal();
        Some(PastHold {
            uid,
            user: uid.filter(|_| is_for_others).map(process::user_name),
            exit_code: end.and_then(|end| end.exit_code),
            signal: end.and_then(|end| end.signal),
            ..PastHold::of(
                self.held.record(),
                &self.store.path(),
                self.held.path(),
                result,
                ended_at,
            )?
        })
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

impl Drop for Hold {
    fn drop(&mut self) {
        // A forked copy is not the holder.
        if !self.is_over && self.pid == Pid::of_self() {
            let _ = self.end();
        }
    }
}

/// When a hold of this process was acquired, by [`clock`].
fn acquired(record: &Record) -> Duration {
    let origin = record.origin.as_ref();
    Duration::from_millis(origin.map_or(0, |origin| origin.acquired_boottime_ms))
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

/// A command could run on when its lease has ended.
pub(super) const NEEDS_KEEPER: Error = Error::NotOnServer {
    engine: "remote",
    what: if cfg!(target_os = "linux") {
        "a command needs a process beside it that ends it in time: use `onehold run`"
    } else {
        "a command can only be run on Linux, where it ends in time with the process beside it"
    },
};

/// How a command under a hold is put on record. `None`: the hold has no file.
pub(super) fn recording(held: &dyn HeldRecord) -> Result<Option<Recording<'_>>> {
    let notes = held.notes()?;
    Ok(held.file().map(|record| Recording {
        record,
        paths: held.paths(),
        notes,
        inherit: !held.record().close,
    }))
}

/// Why a command was not started. Only an errno comes out of a child.
pub(super) fn spawn_error(source: io::Error, path: &Path, program: &str) -> Error {
    let path = path.to_owned();
    if source.raw_os_error() == Some(HOLD_LOST) {
        return Error::LostWhileAcquiring { path };
    }
    match why_not_recorded(&source) {
        Some(source) => Error::Io {
            operation: "write the command's pid to",
            path,
            source,
        },
        None => Error::Spawn {
            program: program.to_owned(),
            source,
        },
    }
}
