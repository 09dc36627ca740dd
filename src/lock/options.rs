//! What a caller asks for when it takes a lock.

use std::time::Duration;

use super::holder::Holder;
use crate::backend::{Asked, Backend};
use crate::decision::Revision;
use crate::error::{Error, Result};
use crate::identity::ProcessId;
use crate::name::LockName;
use crate::record::{MAX_TEXT_BYTES, Mode, Program};

pub(super) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// How a lock is to be taken.
///
/// ```
/// use std::time::Duration;
/// use onehold::Options;
///
/// let options = Options::new()
///     .message("nightly full")
///     .max_age(Duration::from_secs(8 * 3600));
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Options {
    pub(crate) owner: Option<String>,
    pub(crate) message: Option<String>,
    pub(crate) command: Vec<String>,
    pub(crate) program: Option<Box<Program>>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) max_age: Option<Duration>,
    pub(crate) refuse_zombies: bool,
    pub(crate) replace: Vec<Revision>,
    pub(crate) skip_queue: bool,
    pub(crate) inside: Vec<u64>,
    pub(crate) mode: Mode,
    pub(crate) history: bool,
    pub(super) without_waiters: bool,
}

/// How a hold for a command is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct RunOptions {
    pub(super) close: bool,
    pub(super) exec: bool,
    pub(super) supervised: bool,
    pub(super) kill_after: Option<Duration>,
    pub(super) time_limited: bool,
    pub(super) die_with: Option<ProcessId>,
    pub(super) hold_at_least: Option<Duration>,
    pub(super) without_command: bool,
}

impl RunOptions {
    /// A command that inherits the kernel lock, started by [`Hold::spawn`](crate::Hold::spawn).
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// The command does not inherit the kernel lock.
        close(close: bool) => close = close;
        /// The calling process becomes the command, by [`Hold::exec`](crate::Hold::exec).
        exec(exec: bool) => exec = exec;
        /// The calling process supervises the command: a break of the hold sends it TERM
        /// (with a value on Linux, see sigqueue(3)), and it ends the work. Otherwise the
        /// process that breaks the hold ends it.
        supervised(supervised: bool) => supervised = supervised;
        /// Time between TERM and KILL when the work is ended by force; by default 10 s. Zero: no KILL.
        kill_after(after: impl Into<Option<Duration>>) => kill_after = after.into();
        /// The calling process ends the work at some time limit. On record: who waits for the lock does not wait in vain.
        time_limited(limited: bool) => time_limited = limited;
        /// The calling process ends the work once this process has exited. On record, so that the next contender
        /// ends it if the calling process has been killed.
        die_with(process: impl Into<Option<ProcessId>>) => die_with = process.into();
        /// The lock stays taken for so long after it was acquired, also when the command has ended before.
        hold_at_least(least: impl Into<Option<Duration>>) => hold_at_least = least.into();
        /// There is no command: the calling process keeps the hold, and releases it itself.
        without_command() => without_command = true;
    }
}

impl Options {
    /// Takes zombies over, and says nothing about the holder.
    pub fn new() -> Self {
        Self::default()
    }

    /// For a caller that only looks. `max_age`: of holds that do not set their own.
    pub(super) fn judging(max_age: Option<Duration>) -> Self {
        Self {
            max_age,
            ..Self::default()
        }
    }

    setters! {
        /// A label, such as a session or a runner; at most 1 KiB. The same label may release and renew
        /// the hold, and may hold parents and children of the lock.
        owner(owner: impl Into<String>) => owner = Some(owner.into());
        /// Reason to show to others, at most 1 KiB.
        message(message: impl Into<String>) => message = Some(message.into());
        /// The command line to show for the holder, cut at 4 KiB; by default that of the calling process
        /// or of the process that a detached hold follows.
        command(command: Vec<String>) => command = command;
        /// The program that the calling process holds the lock for. Others see it as the holder, and this process beside it.
        for_program(program: impl Into<Option<Program>>) => program = program.into().map(Box::new);
        /// A detached hold expires this long after it was acquired or last renewed, by a clock that does
        /// not stop while the machine is suspended. A live `run` keeps its lock beyond it.
        ttl(ttl: impl Into<Option<Duration>>) => ttl = ttl.into();
        /// Age at which the hold becomes overdue, or a zombie if its holder cannot be checked. It is kept
        /// in the record; without it others judge by their own, 24 h by default.
        max_age(max_age: impl Into<Option<Duration>>) => max_age = max_age.into();
        /// Does not take zombies over: they block.
        refuse_zombies() => refuse_zombies = true;
        /// Takes a free lock although it is reserved for a waiter.
        skip_queue() => skip_queue = true;
        /// The numbers of the holds that the caller runs inside of (`ONEHOLD_HOLDS`). A wait for one of
        /// them would never end, and is refused at once.
        inside(holds: Vec<u64>) => inside = holds;
        /// Holds the lock together with others: by default it is exclusive.
        ///
        /// [`Mode::Shared`]: readers exclude writers only. A writer that waits is not overtaken by new readers,
        /// except those that run [inside](Self::inside) a shared hold of the same lock. [`Mode::Slots`]: at
        /// most so many at once, by the number that each of them asks for; [`Hold::slots`](crate::Hold::slots)
        /// tells which slot it is. Needs native lock files in a store, or for [`Mode::Shared`]
        /// [`Format::Flock`](crate::Format::Flock).
        mode(mode: Mode) => mode = mode;
        /// Leaves a line in the journal when the hold has ended, whoever ends it: see
        /// [`Store::history`](crate::Store::history). If the process is killed between the end and the line, there is
        /// none.
        history(is_wanted: bool) => history = is_wanted;
        /// Leaves out [`Status::waiters`](crate::Status::waiters) of what is in the way. In a store that is a directory,
        /// each waiter costs the caller some system calls.
        without_waiters() => without_waiters = true;
    }

    /// Takes the lock from this very hold, dead or alive; called again, from another one, too.
    pub fn replace_hold(mut self, shown: Revision) -> Self {
        self.replace.push(shown);
        self
    }

    /// The options as a lock of this store can have them, or why it cannot.
    pub(crate) fn check(
        mut self,
        store: &dyn Backend,
        name: &LockName,
        holder: Option<Holder>,
        run: RunOptions,
    ) -> Result<Self> {
        for (text, what) in [(&self.owner, "owner"), (&self.message, "message")] {
            let limit = MAX_TEXT_BYTES;
            if text.as_ref().is_some_and(|text| text.len() > limit) {
                return Err(Error::TooLong { what, limit });
            }
        }
        let is_given = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let is_lease = holder == Some(Holder::Lease);
        let asked = [
            (true, Asked::Hold),
            (is_lease, Asked::Lease),
            (holder.is_some() && !is_lease, Asked::Follow),
            (self.mode == Mode::Shared, Asked::Shared),
            (matches!(self.mode, Mode::Slots(_)), Asked::Slots),
            (run.close, Asked::Close),
            (run.exec, Asked::Exec),
            (run.hold_at_least.is_some(), Asked::Keep),
            (self.owner.is_some(), Asked::Owner),
            (self.message.is_some(), Asked::Message),
            (!is_given(&self.owner), Asked::NoOwner),
            (!is_given(&self.message), Asked::NoMessage),
        ];
        let mut asked = asked.into_iter().filter(|(is_asked, _)| *is_asked);
        if let Some(why_not) = asked.find_map(|(_, asked)| store.why_not(name, asked)) {
            return Err(store.unsupported(why_not));
        }
        let ttl = store.ttl(self.ttl, holder.is_some());
        self.ttl = ttl.map_err(|why_not| store.unsupported(why_not))?;
        Ok(self)
    }
}
