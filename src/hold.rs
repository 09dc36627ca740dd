//! A hold in one's own hands: kept while it lives, given back when it ends.

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Context, Error, Result};
use crate::format::{self, Format};
use crate::guard::{Guard, descend};
use crate::holder::Holder;
use crate::identity::{Pid, ProcessId};
use crate::lock::Lock;
use crate::lockfile::{LockFile, OwnedPlace, renew_times};
use crate::queue::Ticket;
use crate::record::{Job, Kind, Line, Record};
use crate::status::Status;
use crate::sys::directory::{Directory, FileExt as _, facts_of_file, leads_to, unlock_record};
use crate::sys::process;
use crate::sys::signal::SignalMask;
use crate::sys::spawn::{HOLD_LOST, NOT_RECORDED, exec_keeping, spawn};
use crate::sys::start::{Program, Started};
use crate::sys::wait::{Watch, pause};

/// A wrapper tells this often that it lives, so that a hold of days is not called overdue.
const SIGN_OF_LIFE_EVERY: Duration = Duration::from_hours(1);

/// A lock file of ours that is in place, and all that is needed to give it back.
#[derive(Debug)]
pub(crate) struct Possession {
    pub(crate) lock: Lock,
    pub(crate) root: Arc<Directory>,
    pub(crate) place: OwnedPlace,
    pub(crate) file: File,
    pub(crate) size: u64,
    pub(crate) record: Record,
    pub(crate) displaced: Option<Box<Status>>,
    pub(crate) waited: Option<Duration>,
    /// The place in the line that has been served. Giving it up wakes the next one, who needs the
    /// processor that a command is about to start on.
    pub(crate) ticket: Option<Ticket>,
    pub(crate) warnings: Vec<Error>,
    /// What the wait was woken by; closing it takes its time.
    pub(crate) watch: Option<Watch>,
}

/// What a hold was when it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Ended {
    /// Given back.
    Released,
    /// It had been taken away before; what stands there now was not touched.
    Lost,
}

impl Possession {
    /// Compares and deletes, then unlocks: while our name exists it is locked, and what a command
    /// left behind with its descriptor holds nothing.
    pub(crate) fn release(&mut self) -> Result<Ended> {
        // Nothing is promised to who is leaving.
        self.ticket = None;
        let ended = self.remove();
        let unlocked = unlock_record(&self.file).context("unlock", &self.place.path);
        let ended = ended?;
        unlocked?;
        Ok(ended)
    }

    fn remove(&self) -> Result<Ended> {
        let guard = Guard::reenter(&self.root, self.lock.store())?;
        let place = self.place.borrow();
        let named = place
            .directory
            .facts(place.file)
            .context("inspect", place.path)?;
        let ours = facts_of_file(&self.file).context("inspect", place.path)?;
        if named.is_none_or(|named| named.id != ours.id) || !self.is_as_written()? {
            return Ok(Ended::Lost);
        }
        // The store may have been moved, and another be in use in its place.
        let in_force = self.is_in_place();
        if self.record.format == Format::Native {
            place.remove()?;
        } else if !place.remove_ours(&self.file)? {
            return Ok(Ended::Lost);
        }
        let sections = self.lock.sections();
        if !sections.is_empty() {
            guard.prune(&sections)?;
        }
        Ok(if in_force? {
            Ended::Released
        } else {
            Ended::Lost
        })
    }

    fn write_line(&self, line: Line) -> Result<()> {
        if !self.is_as_written()? {
            return Err(self.lost());
        }
        let slot = format::slot(&self.record, line, self.size).map_err(io::Error::from);
        slot.and_then(|slot| match slot {
            Some(slot) => self.file.write_all_at(&slot.bytes, slot.at),
            None => Ok(()),
        })
        .context("write to", &self.place.path)
    }

    /// A sign of life from now.
    fn renew(&mut self) -> Result<()> {
        // What others believe in by the times in it must not be kept up once it is theirs.
        if self.record.format.heartbeat().is_some() {
            self.ensure_in_place()?;
        }
        let life = self.lock.sign_of_life(&self.root)?;
        renew_times(&self.file, &self.record, &life).context("write to", &self.place.path)?;
        self.record.sign_of_life = Some(life);
        self.write_line(Line::SignOfLife)
    }

    /// A command runs under it.
    fn started(&mut self, pid: u32) {
        self.ticket = None;
        if let Some(pid) = Pid::new(pid) {
            self.record.command_process = Some(ProcessId {
                pid,
                start: process::start_ticks(pid),
            });
            // The pid alone is there already; its start makes it certain.
            let written = self.write_line(Line::Command);
            crate::events::warn(&mut self.warnings, written);
        }
    }

    fn ensure_in_place(&self) -> Result<()> {
        if self.is_in_place()? {
            return Ok(());
        }
        Err(self.lost())
    }

    fn lost(&self) -> Error {
        Error::LostEarly {
            path: self.place.path.clone(),
        }
    }

    /// Whether the hold outlasts whoever looked at what stood there before it came, and does by
    /// name what he then decided. Slept outside the guard.
    pub(crate) fn outlasts_late_comers(&self) -> Result<bool> {
        let Some(time) = self.record.format.settling_time() else {
            return Ok(true);
        };
        let until = process::boottime() + time;
        loop {
            let left = until.saturating_sub(process::boottime());
            if left.is_zero() {
                break;
            }
            // A signal may end it early.
            let _ = pause(left);
        }
        let path = &self.place.path;
        let expected = format::write(&self.record)
            .map_err(io::Error::from)
            .context("write lock file", path)?;
        let mut found = vec![0; expected.len()];
        let read = self.file.read_exact_at(&mut found, 0);
        Ok(self.is_in_place()? && read.is_ok() && found == expected)
    }

    /// A lease outlives a crash of the machine; so must its name, and those of the directories
    /// that lead to it.
    fn make_durable(&self) -> Result<()> {
        let path = &self.place.path;
        self.file.sync_data().context("write to", path)?;
        self.place
            .directory
            .sync()
            .context("write to the directory of", path)?;
        let sections = self.lock.sections();
        for depth in 0..sections.len() {
            let (parents, _) = sections.split_at(depth);
            if let Some(directory) = descend(&self.root, self.lock.store(), parents)? {
                directory
                    .sync()
                    .context("write to the directories of", path)?;
            }
        }
        Ok(())
    }

    fn is_in_place(&self) -> Result<bool> {
        let path = &self.place.path;
        Ok(leads_to(path, &self.file).context("inspect", path)? && self.is_as_written()?)
    }

    /// Whether it is still our record that stands in our file: programs of other formats rewrite
    /// theirs in place. Nobody writes over native ones.
    fn is_as_written(&self) -> Result<bool> {
        if self.record.format == Format::Native {
            return Ok(true);
        }
        let path = &self.place.path;
        let found = LockFile::of_ours(&self.file, &self.place.borrow()).context("read", path)?;
        let shown = |record: &Record| record.shown_pid.unwrap_or(record.pid);
        Ok(found.record().is_some_and(|found| {
            let numbered = self.record.format == Format::Pid || found.hold == self.record.hold;
            numbered && shown(found) == shown(&self.record)
        }))
    }
}

macro_rules! describe_possession {
    () => {
        /// Its number: greater than that of any hold before it in its store, so that a storage
        /// system can refuse whoever comes with a smaller one (a fencing token).
        #[must_use]
        pub fn number(&self) -> u64 {
            self.possession.record.hold
        }

        /// Its lock file.
        #[must_use]
        pub fn path(&self) -> &Path {
            &self.possession.place.path
        }

        /// What its lock file says.
        #[must_use]
        pub fn record(&self) -> &Record {
            &self.possession.record
        }

        /// The hold that was taken over, if there was one.
        #[must_use]
        pub fn displaced(&self) -> Option<&Status> {
            self.possession.displaced.as_deref()
        }

        /// How long it was waited for, if at all.
        #[must_use]
        pub fn waited(&self) -> Option<Duration> {
            self.possession.waited
        }

        /// What did not work besides; it does not weaken the hold.
        #[must_use]
        pub fn warnings(&self) -> &[Error] {
            &self.possession.warnings
        }
    };
}

/// A hold of the calling process. Dropping it gives the lock back, also on `?` and on a panic; in
/// a process forked from this one, dropping its copy does nothing.
///
/// If the process is killed, the next one who asks finds it dead at once.
///
/// ```no_run
/// use onehold::{Attempt, Claim, LockName, Store, Wait};
///
/// # fn main() -> onehold::Result<()> {
/// let lock = Store::at("/var/lib/app/locks").lock(LockName::new("import")?)?;
/// match lock.hold(&Claim::new().message("nightly"), Wait::no())? {
///     Attempt::Held(hold) => println!("hold {}", hold.number()),
///     Attempt::Blocked(blocked) => println!("{:?}", blocked.status.verdict),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping it gives the lock back"]
pub struct Hold {
    possession: Possession,
    pid: Pid,
    over: bool,
}

impl Hold {
    pub(crate) fn new(mut possession: Possession) -> Self {
        if possession.record.kind != Kind::Run {
            possession.ticket = None;
        }
        Self {
            possession,
            pid: Pid::of_self(),
            over: false,
        }
    }

    describe_possession!();

    /// Gives the lock back and says whether it still was ours. What [`Drop`] does, with a result.
    ///
    /// # Errors
    /// The lock file cannot be removed.
    pub fn release(mut self) -> Result<Ended> {
        self.over = true;
        self.possession.release()
    }

    /// Whether the lock has been taken away: by `break`, or by somebody who removed the file.
    ///
    /// # Errors
    /// The directory cannot be read; that says nothing either way.
    pub fn is_lost(&self) -> Result<bool> {
        self.possession.is_in_place().map(|in_place| !in_place)
    }

    /// Writes a sign of life, from which the age of the hold and its time to live count anew.
    ///
    /// # Errors
    /// The lock file cannot be written.
    pub fn renew(&mut self) -> Result<()> {
        self.possession.renew()
    }

    /// When [`renew`](Self::renew) is due: an hour after the last sign of life, a third of the time
    /// to live, or, in [`Format::Memory`](crate::Format::Memory), 8 s. Zero: now. Counted by a clock that does not stop while the machine is
    /// suspended.
    #[must_use]
    pub fn renewal_due_in(&self) -> Duration {
        let record = &self.possession.record;
        let every = record.ttl().map_or(SIGN_OF_LIFE_EVERY, |ttl| {
            (ttl / 3).clamp(Duration::from_millis(10), SIGN_OF_LIFE_EVERY)
        });
        let every = record
            .format
            .heartbeat()
            .map_or(every, |heartbeat| every.min(heartbeat));
        let acquired = record
            .origin
            .as_ref()
            .map_or(0, |origin| origin.acquired_boottime_ms);
        let last = record
            .sign_of_life
            .as_ref()
            .map_or(acquired, |life| life.renewed_boottime_ms);
        let passed = process::boottime_milliseconds().saturating_sub(last);
        every.saturating_sub(Duration::from_millis(passed))
    }

    /// Starts a command under this hold. Its pid is in the record before it is executed, and it
    /// inherits the kernel lock unless the hold was made with [`Keeping::close`](crate::Keeping):
    /// as long as it runs, the lock is held, even if the calling process is killed.
    ///
    /// # Errors
    /// [`Error::Spawn`]: it cannot be executed; [`Error::LostEarly`]: the lock was taken away before.
    pub fn spawn(&mut self, command: &mut Command) -> Result<Child> {
        let program = command.get_program().to_string_lossy().into_owned();
        let possession = &mut self.possession;
        possession.ensure_in_place()?;
        let path = &possession.place.path;
        let slot = format::command_slot(possession.record.format, possession.size);
        let inherit = !possession.record.close;
        let child = spawn(command, &possession.file, path, slot, inherit)
            .map_err(|source| spawn_error(source, path, &program))?;
        possession.started(child.id());
        Ok(child)
    }

    /// Starts a command like [`spawn`](Self::spawn) does, without a copy of this process, and with
    /// the signals of `mask` blocked.
    ///
    /// # Errors
    /// As for [`spawn`](Self::spawn).
    pub fn start(&mut self, program: &Program, mask: &SignalMask) -> Result<Started> {
        let possession = &mut self.possession;
        possession.ensure_in_place()?;
        let path = &possession.place.path;
        let slot = format::command_slot(possession.record.format, possession.size);
        let started = program
            .start(&possession.file, path, slot, !possession.record.close, mask)
            .map_err(|source| spawn_error(source, path, program.name()))?;
        possession.started(started.id());
        Ok(started)
    }

    /// Becomes a command, which keeps the kernel lock until it ends. Returns only on failure, and
    /// then the lock is still held. Nobody removes the record afterwards: it is recognised as
    /// finished, and the next one takes its place.
    pub fn exec(&mut self, command: &mut Command) -> Error {
        self.possession.ticket = None;
        let program = command.get_program().to_string_lossy().into_owned();
        // Nobody would notice later, and it may have been a while.
        if let Err(error) = self.possession.ensure_in_place() {
            return error;
        }
        let source = exec_keeping(command, &self.possession.file);
        Error::Spawn { program, source }
    }

    /// What a command under this hold finds in its environment: `ONEHOLD_NAME`, `ONEHOLD_HOLD`,
    /// `ONEHOLD_FILE`, and `ONEHOLD_HOLDS` with this one added to those in `enclosing`.
    #[must_use]
    pub fn environment(&self, enclosing: Option<&str>) -> Vec<(&'static str, String)> {
        let record = &self.possession.record;
        let name =
            percent_encoding::utf8_percent_encode(&record.name, percent_encoding::NON_ALPHANUMERIC);
        let mut holds = enclosing.unwrap_or_default().trim().to_owned();
        if !holds.is_empty() {
            holds.push(' ');
        }
        let _ = write!(holds, "{}:{name}", record.hold);
        vec![
            ("ONEHOLD_NAME", record.name.clone()),
            ("ONEHOLD_HOLD", record.hold.to_string()),
            ("ONEHOLD_FILE", self.path().to_string_lossy().into_owned()),
            ("ONEHOLD_HOLDS", holds),
        ]
    }
}

/// Why a command was not started: only an errno comes out of a child.
fn spawn_error(source: io::Error, path: &Path, program: &str) -> Error {
    match source.raw_os_error() {
        Some(HOLD_LOST) => Error::LostEarly {
            path: path.to_owned(),
        },
        Some(NOT_RECORDED) => Error::Io {
            operation: "write the command's pid to",
            path: path.to_owned(),
            source: io::Error::other("it was not executed"),
        },
        _ => Error::Spawn {
            program: program.to_owned(),
            source,
        },
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // A forked copy is not the holder.
        if !self.over && self.pid == Pid::of_self() {
            let _ = self.possession.release();
        }
    }
}

/// A lock acquired for another process or as a lease, not in force yet: until
/// [`confirm`](Self::confirm) it is this process's, and dropping it gives it back.
#[derive(Debug)]
#[must_use = "dropping it gives the lock back"]
pub struct Detached {
    possession: Possession,
    holder: Holder,
    pid: Pid,
    over: bool,
}

impl Detached {
    pub(crate) fn new(mut possession: Possession, holder: Holder) -> Self {
        possession.ticket = None;
        Self {
            possession,
            holder,
            pid: Pid::of_self(),
            over: false,
        }
    }

    describe_possession!();

    /// Whom the hold is for.
    #[must_use]
    pub fn holder(&self) -> Holder {
        self.holder
    }

    /// The lock as it will be found once this is confirmed.
    ///
    /// # Errors
    /// The lock file cannot be inspected.
    pub fn status(&self) -> Result<Status> {
        let possession = &self.possession;
        let mut record = possession.record.clone();
        record.job = Some(self.job());
        let expected = possession
            .file
            .try_clone()
            .and_then(|file| LockFile::expected(file, record))
            .context("inspect", &possession.place.path)?;
        possession.lock.status_of(&possession.root, expected)
    }

    fn job(&self) -> Job {
        match self.holder {
            Holder::Process(process) => Job::Process(process),
            Holder::Lease => Job::Lease,
        }
    }

    /// Hands the hold over to its holder. To be called once its number is where it is needed:
    /// whoever dies before holds nothing.
    ///
    /// # Errors
    /// The lock file cannot be written, or was taken away meanwhile; then nothing is held.
    pub fn confirm(mut self) -> Result<u64> {
        let job = self.job();
        let possession = &mut self.possession;
        if possession.record.ttl_ms.is_some() {
            // Its time begins now, however long the number took to get out.
            possession.renew()?;
        }
        possession.record.job = Some(job);
        possession.write_line(Line::Job)?;
        if possession.record.kind == Kind::Lease {
            possession.make_durable()?;
        }
        possession.ensure_in_place()?;
        self.over = true;
        Ok(self.possession.record.hold)
    }
}

impl Drop for Detached {
    fn drop(&mut self) {
        if !self.over && self.pid == Pid::of_self() {
            let _ = self.possession.release();
        }
    }
}

impl Status {
    /// Waits until the command of a `run` has ended, for at most `limit`; whether it has. `true`
    /// for what has no command.
    #[must_use]
    pub fn wait_for_command(&self, limit: Duration) -> bool {
        let command = self.record.as_ref().and_then(|record| {
            let command = if record.exec {
                Some(record.writer())
            } else {
                record.command_process
            };
            command.filter(|_| self.verdict.pid_alive == Some(true))
        });
        command.is_none_or(|command| crate::holder::wait_until_gone(command, limit))
    }
}
