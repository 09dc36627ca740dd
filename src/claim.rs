//! What somebody who wants a lock says about himself, and what he may displace.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::format::{Format, MEMORY_TTL, MEMORY_TTL_ONLY};
use crate::holder::{Holder, is_ancestor};
use crate::lock::Keeping;
use crate::name::LockName;
use crate::record::{Kind, MAX_TEXT_BYTES, Record};
use crate::status::{Shown, Status};
use crate::verdict::{DEFAULT_MAX_AGE, Proof, Reason, State};

/// A request for a hold.
///
/// ```
/// use std::time::Duration;
/// use onehold::Claim;
///
/// let claim = Claim::new()
///     .message("nightly full")
///     .max_age(Duration::from_secs(8 * 3600));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Claim {
    pub(crate) owner: Option<String>,
    pub(crate) message: Option<String>,
    pub(crate) command: Vec<String>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) max_age: Option<Duration>,
    pub(crate) refuse_zombies: bool,
    pub(crate) displace: Option<Shown>,
    pub(crate) barge: bool,
}

impl Claim {
    /// A claim that says nothing, and takes zombies over.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A label of who holds: a session or a runner. At most 1 KiB. It is also a key: whoever
    /// gives the same one may release the hold.
    #[must_use]
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Why, for the people who find it held. At most 1 KiB.
    #[must_use]
    pub fn message(mut self, message: impl Into<String>) -> Self {
        self.message = Some(message.into());
        self
    }

    /// The command line shown for the holder; by default that of the calling process or of the
    /// process that a detached hold is kept by. Cut at 4 KiB.
    #[must_use]
    pub fn command(mut self, command: Vec<String>) -> Self {
        self.command = command;
        self
    }

    /// The hold ends this long after its last renewal, counted by a clock that does not stop
    /// while the machine is suspended.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// From this age on the hold is called overdue, or, where its holder cannot be proved alive or
    /// dead, a zombie. It is kept in the record; without it others judge by their own, 24 h unless
    /// told otherwise.
    #[must_use]
    pub fn max_age(mut self, max_age: Duration) -> Self {
        self.max_age = Some(max_age);
        self
    }

    /// Leaves a zombie in place and reports it as what blocks.
    #[must_use]
    pub fn refuse_zombies(mut self) -> Self {
        self.refuse_zombies = true;
        self
    }

    /// Takes the lock from the holder that was shown, dead or alive, if it still is that one.
    #[must_use]
    pub fn displace(mut self, shown: Shown) -> Self {
        self.displace = Some(shown);
        self
    }

    /// Takes a free lock though it is promised to somebody who waits for it.
    #[must_use]
    pub fn barge(mut self) -> Self {
        self.barge = true;
        self
    }

    pub(crate) fn observed_max_age(&self) -> Duration {
        self.max_age.unwrap_or(DEFAULT_MAX_AGE)
    }

    pub(crate) fn ensure_fits(&self) -> Result<()> {
        let fits = |text: &Option<String>, what| match text {
            Some(text) if text.len() > MAX_TEXT_BYTES => Err(Error::TooLong {
                what,
                limit: MAX_TEXT_BYTES,
            }),
            _ => Ok(()),
        };
        fits(&self.owner, "owner")?;
        fits(&self.message, "message")
    }

    /// The claim as a lock in this format can be held, or why it cannot.
    pub(crate) fn fitted_to(
        mut self,
        format: Format,
        name: &LockName,
        holder: Option<Holder>,
        keeping: Keeping,
    ) -> Result<Self> {
        let missing = |text: &Option<String>| text.as_ref().is_none_or(String::is_empty);
        let unfit = |what| Err(Error::Unfit { format, what });
        if format != Format::Native && holder == Some(Holder::Lease) {
            return unfit("it names a process, and a lease has none");
        }
        match format {
            // Its program looks for exactly this file.
            Format::Prodigy if !name.is_plain() => {
                return unfit("no job of prodigy has such an id");
            }
            Format::Sprint if missing(&self.owner) => {
                return unfit("session_id required for acquire mode");
            }
            Format::Sprint if missing(&self.message) => {
                return unfit("epic_spec required for acquire mode");
            }
            // Its number is the wrapper's, and nothing else tells of the command.
            Format::Pid if keeping.close => {
                return unfit("it has no room for the command of --close");
            }
            Format::Pid if holder.is_some() && self.ttl.is_some() => {
                return unfit("it has no room for a time to live");
            }
            Format::Memory if keeping.exec => return unfit("nobody would renew it"),
            // Nobody renews it for a process that does not know of it.
            Format::Memory if holder.is_some() => {
                if self.ttl.is_some_and(|ttl| ttl > MEMORY_TTL) {
                    return unfit(MEMORY_TTL_ONLY);
                }
                self.ttl = self.ttl.or(Some(MEMORY_TTL));
            }
            Format::Native | Format::Prodigy | Format::Sprint | Format::Memory | Format::Pid => {}
        }
        Ok(self)
    }

    pub(crate) fn displaces(&self, status: &Status) -> bool {
        self.displace.as_ref().is_some_and(|shown| shown.is(status))
    }

    pub(crate) fn permits(&self, status: &Status) -> bool {
        let permitted = self.displaces(status);
        match status.verdict.state {
            State::NotALock => false,
            State::Free => permitted || status.is_takeable(),
            State::Zombie => permitted || (status.is_takeable() && !self.refuse_zombies),
            State::Held | State::Overdue => permitted,
        }
    }
}

/// Who asks to release or renew a hold: it is his if any of what he says matches.
#[derive(Clone, Debug, Default)]
pub struct Claimant {
    /// The number of the hold. If given, only that hold is meant, whatever else matches.
    pub hold: Option<u64>,
    /// The label it was acquired with.
    pub owner: Option<String>,
    /// Numbers of holds that the caller runs inside of.
    pub enclosing: Vec<u64>,
}

impl Claimant {
    /// Whether the hold of `status` is this claimant's.
    #[must_use]
    pub fn owns(&self, status: &Status) -> bool {
        let Some(record) = &status.record else {
            return false;
        };
        if let Some(hold) = self.hold {
            return status.hold() == Some(hold);
        }
        let same_owner = is_same_owner(self.owner.as_ref(), record);
        let inside = status
            .hold()
            .is_some_and(|hold| self.enclosing.contains(&hold));
        same_owner || inside || status.is_kept_by_an_ancestor()
    }
}

/// An owner that was not given, or that came from an empty variable, is nobody's.
pub(crate) fn is_same_owner(owner: Option<&String>, record: &Record) -> bool {
    owner.is_some_and(|owner| !owner.is_empty() && record.owner.as_ref() == Some(owner))
}

impl Status {
    fn is_kept_by_an_ancestor(&self) -> bool {
        let alive = self.verdict.reason == Reason::Alive && self.verdict.pid_alive == Some(true);
        alive
            && self.record.as_ref().is_some_and(|record| {
                record
                    .processes()
                    .into_iter()
                    .any(|process| Some(process.pid) == self.verdict.pid && is_ancestor(process))
            })
    }

    /// A living `run` is given back by its wrapper only.
    pub(crate) fn ends_with_its_command(&self) -> bool {
        let is_run = self.record.as_ref().is_some_and(|record| {
            // A pid file does not say so, but nobody else keeps a kernel lock on one of ours.
            let locked = self.verdict.proof == Proof::KernelLock;
            record.kind == Kind::Run || (record.format == Format::Pid && locked)
        });
        is_run && matches!(self.verdict.state, State::Held | State::Overdue)
    }
}
