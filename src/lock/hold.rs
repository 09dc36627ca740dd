//! A hold of the calling process.

use std::io;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use super::ending::entry_of_hold;
use super::taken_hold::{TakenHold, hold_accessors};
use crate::backend::{HeldRecord, ReleaseOutcome};
use crate::error::{Error, Operation, Result};
use crate::identity::ProcessId;
use crate::record::{Kind, Record};
use crate::status::Status;
use crate::sys::spawn::{HOLD_LOST, NOT_RECORDED, exec_keeping, spawn};
use crate::sys::{Recording, process};

/// How often a wrapper renews its heartbeat, so that a hold of days does not become overdue.
const HEARTBEAT_INTERVAL: Duration = Duration::from_hours(1);

/// A hold of the calling process. Dropping it releases the lock, also on `?` and on a panic; in
/// a process forked from this one, dropping its copy does nothing.
///
/// If the process is killed, the next one takes the lock over at once.
///
/// ```no_run
/// use onehold::{Attempt, Options, Store, Wait};
///
/// # fn main() -> onehold::Result<()> {
/// let lock = Store::at("/var/lib/app/locks").lock("import".parse()?)?;
/// match lock.hold(&Options::new().message("nightly"), Wait::no())? {
///     Attempt::Held(hold) => println!("hold {}", hold.number()),
///     Attempt::Blocked(blocked) => println!("{:?}", blocked.status.verdict),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping it releases the lock"]
pub struct Hold {
    pub(super) taken: Box<TakenHold>,
    /// The children that this process had before it started the command.
    pub(super) older: Vec<ProcessId>,
}

impl Hold {
    pub(super) fn new(mut taken: Box<TakenHold>) -> Self {
        let record = taken.held.record();
        if record.kind != Kind::Run || record.is_without_command() {
            taken.place = None;
        }
        Self {
            taken,
            older: Vec::new(),
        }
    }

    hold_accessors!();

    /// Releases the lock and says whether it was still held. Dropping it does the same without a result.
    ///
    /// # Errors
    /// The lock file cannot be removed.
    pub fn release(mut self) -> Result<ReleaseOutcome> {
        self.taken.release()
    }

    /// Whether the lock was lost: broken, or its file replaced or deleted.
    ///
    /// # Errors
    /// The directory cannot be read; that says nothing either way.
    pub fn is_lost(&self) -> Result<bool> {
        self.taken.held.is_lost()
    }

    /// Renews the heartbeat: age and time to live count from now.
    ///
    /// # Errors
    /// The lock file cannot be written.
    pub fn renew(&mut self) -> Result<()> {
        self.taken.renew()
    }

    /// When [`renew`](Self::renew) is due: an hour after the last heartbeat, after a third of the time
    /// to live, or, in [`Format::Memory`](crate::Format::Memory), after 8 s. Zero: now. Counted by a
    /// clock that does not stop while the machine is suspended.
    #[must_use]
    pub fn renewal_due_in(&self) -> Duration {
        let record = self.taken.held.record();
        let of_ttl = record
            .ttl()
            .map(|ttl| (ttl / 3).max(Duration::from_millis(10)));
        let of_format = record.format.heartbeat_interval();
        let every = [of_ttl, of_format].into_iter().flatten();
        let every = every.fold(HEARTBEAT_INTERVAL, Duration::min);
        let acquired = record
            .origin
            .as_ref()
            .map_or(0, |origin| origin.acquired_boottime_ms);
        let last = record.live.renewed_boottime_ms.unwrap_or(acquired);
        let passed = process::boottime_milliseconds().saturating_sub(last);
        every.saturating_sub(Duration::from_millis(passed))
    }

    /// Starts a command under this hold. Its PID is in the record before it is executed, and it
    /// inherits the kernel lock unless the hold was made with [`RunOptions::close`](crate::RunOptions):
    /// as long as it runs the lock is held, even if the calling process is killed.
    ///
    /// # Errors
    /// [`Error::Spawn`]: it cannot be executed; [`Error::LostWhileAcquiring`]: the lock was lost before.
    pub fn spawn(&mut self, command: &mut Command) -> Result<Child> {
        let program = command.get_program().to_string_lossy().into_owned();
        let taken = &mut self.taken;
        taken.ensure_in_place()?;
        taken.clear_command()?;
        let Some(recording) = recording(&*taken.held)? else {
            return Err(NEEDS_KEEPER);
        };
        let child = spawn(command, recording)
            .map_err(|source| spawn_error(source, taken.held.path(), &program))?;
        taken.started(child.id());
        Ok(child)
    }

    /// How much longer this hold is known to last, by a clock that does not stop while the machine is
    /// suspended; zero: no longer. `None`: no clock ends it. A hold on etcd lasts as long as its lease is
    /// kept: a thread of this process does that, and each confirmed renewal extends this time. After it,
    /// another process may have the lock.
    #[must_use]
    pub fn valid_until(&self) -> Option<Duration> {
        let (_, at) = self.taken.held.deadlines_ms()?;
        let left = at.saturating_sub(process::boottime_milliseconds());
        Some(Duration::from_millis(left))
    }

    /// Whether another process has asked this one to end the work of this hold, in a store on etcd: the
    /// record says who. In a directory it is always `false`, because a process is told by a signal there.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.taken.held.is_broken()
    }

    /// Becomes a command, which keeps the kernel lock until it ends. Returns only on failure, and
    /// then the lock is still held. No process removes the record afterwards: it is recognized as
    /// finished, and the next one replaces it.
    pub fn exec(&mut self, command: &mut Command) -> Error {
        self.taken.place = None;
        let program = command.get_program().to_string_lossy().into_owned();
        // Nothing notices later, and the hold may be old.
        if let Err(error) = self.taken.ensure_in_place() {
            return error;
        }
        let Some(file) = self.taken.held.file() else {
            return NEEDS_KEEPER;
        };
        let source = exec_keeping(command, file);
        Error::Spawn { program, source }
    }

    /// The environment of a command under this hold: `ONEHOLD_NAME`, `ONEHOLD_HOLD`, `ONEHOLD_FILE`,
    /// `ONEHOLD_SLOT` if it is shared, and `ONEHOLD_HOLDS` with this one added to those in `enclosing`. For a
    /// hold of several locks, names and files have one line each. `None`: the variable must be unset, because
    /// it would be that of an enclosing hold.
    #[must_use]
    pub fn environment(&self, enclosing: Option<&str>) -> Vec<(&'static str, Option<String>)> {
        let held = &self.taken.held;
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
}

/// A command could run on when its lease has ended.
pub(super) const NEEDS_KEEPER: Error = Error::NotOnEtcd {
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
    match source.raw_os_error() {
        Some(HOLD_LOST) => Error::LostWhileAcquiring {
            path: path.to_owned(),
        },
        Some(NOT_RECORDED) => Error::Io {
            operation: Operation::WriteCommandPid,
            path: path.to_owned(),
            source: io::Error::other("it was not executed"),
        },
        _ => Error::Spawn {
            program: program.to_owned(),
            source,
        },
    }
}
