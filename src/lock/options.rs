//! What a caller asks for when it takes a lock.

use std::time::Duration;

use super::holder::Holder;
use crate::backend::Backend;
use crate::decision::Revision;
use crate::error::{Error, Result};
use crate::identity::ProcessId;
use crate::name::LockName;
use crate::record::{MAX_TEXT_BYTES, Mode};

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
    pub(crate) ttl: Option<Duration>,
    pub(crate) max_age: Option<Duration>,
    pub(crate) refuse_zombies: bool,
    pub(crate) replace: Vec<Revision>,
    pub(crate) skip_queue: bool,
    pub(crate) inside: Vec<u64>,
    pub(crate) mode: Mode,
    pub(crate) history: bool,
}

/// How a hold for a command is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct RunOptions {
    pub(super) close: bool,
    pub(super) exec: bool,
    pub(super) supervised: bool,
    pub(super) kill_after: Option<Duration>,
    pub(super) die_with: Option<ProcessId>,
    pub(super) hold_at_least: Option<Duration>,
    pub(super) without_command: bool,
}

impl RunOptions {
    /// A command that inherits the kernel lock, started by [`Hold::spawn`](crate::Hold::spawn).
    pub fn new() -> Self {
        Self::default()
    }

    /// The command does not inherit the kernel lock.
    pub fn close(mut self, close: bool) -> Self {
        self.close = close;
        self
    }

    /// The calling process becomes the command, by [`Hold::exec`](crate::Hold::exec).
    pub fn exec(mut self, exec: bool) -> Self {
        self.exec = exec;
        self
    }

    /// The calling process supervises the command: a break of the hold sends it TERM
    /// (with a value on Linux, see sigqueue(3)), and it ends the work. Otherwise the
    /// process that breaks the hold ends it.
    pub fn supervised(mut self, supervised: bool) -> Self {
        self.supervised = supervised;
        self
    }

    /// Time between TERM and KILL when the work is ended by force; by default 10 s. Zero: no KILL.
    pub fn kill_after(mut self, after: impl Into<Option<Duration>>) -> Self {
        self.kill_after = after.into();
        self
    }

    /// The calling process ends the work once this process has exited. On record, so that the next contender
    /// ends it if the calling process has been killed.
    pub fn die_with(mut self, process: impl Into<Option<ProcessId>>) -> Self {
        self.die_with = process.into();
        self
    }

    /// The lock stays taken for so long after it was acquired, also when the command has ended before.
    pub fn hold_at_least(mut self, least: impl Into<Option<Duration>>) -> Self {
        self.hold_at_least = least.into();
        self
    }

    /// There is no command: the calling process keeps the hold, and releases it itself.
    pub fn without_command(mut self) -> Self {
        self.without_command = true;
        self
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

    /// A label, such as a session or a runner; at most 1 KiB. The same label may release and renew
    /// the hold, and may hold parents and children of the lock.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Reason to show to others, at most 1 KiB.
    pub fn message(mut self, message: impl Into<String>) -> Self {
        self.message = Some(message.into());
        self
    }

    /// The command line to show for the holder, cut at 4 KiB; by default that of the calling process
    /// or of the process that a detached hold follows.
    pub fn command(mut self, command: Vec<String>) -> Self {
        self.command = command;
        self
    }

    /// A detached hold expires this long after it was acquired or last renewed, by a clock that does
    /// not stop while the machine is suspended. A live `run` keeps its lock beyond it.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Age at which the hold becomes overdue, or a zombie if its holder cannot be checked. It is kept
    /// in the record; without it others judge by their own, 24 h by default.
    pub fn max_age(mut self, max_age: Duration) -> Self {
        self.max_age = Some(max_age);
        self
    }

    /// Does not take zombies over: they block.
    pub fn refuse_zombies(mut self) -> Self {
        self.refuse_zombies = true;
        self
    }

    /// Takes the lock from this very hold, dead or alive; called again, from another one, too.
    pub fn replace_hold(mut self, shown: Revision) -> Self {
        self.replace.push(shown);
        self
    }

    /// Takes a free lock although it is reserved for a waiter.
    pub fn skip_queue(mut self) -> Self {
        self.skip_queue = true;
        self
    }

    /// The numbers of the holds that the caller runs inside of (`ONEHOLD_HOLDS`). A wait for one of
    /// them would never end, and is refused at once.
    pub fn inside(mut self, holds: Vec<u64>) -> Self {
        self.inside = holds;
        self
    }

    /// Holds the lock together with others: by default it is exclusive.
    ///
    /// [`Mode::Shared`]: readers exclude writers only. A writer that waits is not overtaken by new readers,
    /// except those that run [inside](Self::inside) a shared hold of the same lock. [`Mode::Slots`]: at
    /// most so many at once, by the number that each of them asks for; [`Hold::slots`](crate::Hold::slots)
    /// tells which slot it is. Needs native lock files in a store, or for [`Mode::Shared`]
    /// [`Format::Flock`](crate::Format::Flock).
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Leaves a line in the journal when the hold has ended, whoever ends it: see
    /// [`Store::history`](crate::Store::history). If the process is killed between the end and the line, there is
    /// none.
    pub fn history(mut self, is_wanted: bool) -> Self {
        self.history = is_wanted;
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
        let limits = store.limits(name);
        let is_given = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let is_lease = holder == Some(Holder::Lease);
        let asked = [
            (true, limits.name),
            (is_lease, limits.lease),
            (holder.is_some() && !is_lease, limits.follow),
            (self.mode == Mode::Shared, limits.shared),
            (matches!(self.mode, Mode::Slots(_)), limits.slots),
            (run.close, limits.close),
            (run.exec, limits.exec),
            (run.hold_at_least.is_some(), limits.keep),
            (self.owner.is_some(), limits.owner),
            (self.message.is_some(), limits.message),
            (!is_given(&self.owner), limits.no_owner),
            (!is_given(&self.message), limits.no_message),
        ];
        let why_not = asked
            .into_iter()
            .find_map(|(is_asked, why_not)| why_not.filter(|_| is_asked));
        let why_not_keep = || run.hold_at_least.and_then(|_| store.why_not_keep());
        if let Some(why_not) = why_not.or_else(why_not_keep) {
            return Err(store.unsupported(why_not));
        }
        let ttl = (limits.ttl)(self.ttl, holder.is_some());
        self.ttl = ttl.map_err(|why_not| store.unsupported(why_not))?;
        Ok(self)
    }
}
