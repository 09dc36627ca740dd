//! What a caller asks for, and from where it looks.

use std::num::NonZeroU32;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::identity::{BootId, ProcessId};
use crate::name::LockName;

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// By one holder.
    Exclusive,
    /// By several at once, up to a limit if there is one. A counted slot is a shared hold with a
    /// limit.
    Shared { at_most: Option<NonZeroU32> },
}

/// One lock of a request, and how it is to be held.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Want {
    pub(crate) name: LockName,
    pub(crate) mode: Mode,
}

/// One record: the exclusive one of a name, or one of its shared ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) name: LockName,
    pub(crate) index: Option<u32>,
}

/// Names one hold as it was shown to a person, so that permission to break it does not cover a
/// later one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Revision {
    /// The inode of its file.
    pub(crate) file: u64,
    /// The number of the hold, 0 if it has none.
    pub(crate) hold: u64,
    /// A digest of the file, where there is no number.
    pub(crate) digest: u64,
}

/// The boot, machine and PID namespace from which a record is read: they say what its PIDs and
/// clocks mean.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Observer {
    pub(crate) boot: Option<BootId>,
    pub(crate) machine: Option<String>,
    pub(crate) pid_namespace: Option<u64>,
    /// That PID namespace is not the initial one, and has a first process of its own.
    #[serde(default)]
    pub(crate) is_in_container: bool,
    pub(crate) hostname: Option<String>,
    /// The numbers of the holds of which nothing runs any more, although their records say that their
    /// work is being ended. The caller has looked.
    #[serde(skip)]
    pub(crate) over: Vec<u64>,
}

/// The time of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) wall: DateTime<Utc>,
    pub(crate) boottime_ms: u64,
}

/// What will keep the hold alive, as far as it decides whether the same holder asks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Asker {
    /// The caller itself, or a command of it.
    Caller,
    /// A process that was named.
    Process(ProcessId),
    /// A process that was derived from the caller. It never matches itself: several calls of one
    /// script may mean several holders.
    Derived,
    /// Nothing but time.
    Lease,
}

/// A request for a hold. Also the content of a queue ticket, by which others decide for a waiter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Request {
    /// All of them, or none is granted.
    pub(crate) wants: Vec<Want>,
    pub(crate) owner: Option<String>,
    /// The numbers of the holds that the caller runs inside of.
    pub(crate) inside: Vec<u64>,
    pub(crate) asker: Asker,
    /// In milliseconds; for holds that do not set their own.
    pub(crate) max_age_ms: u64,
    /// Zombies are taken over.
    pub(crate) take_zombies: bool,
    /// This very hold does not count.
    pub(crate) replace: Option<Revision>,
    /// Earlier waiters do not count.
    pub(crate) skip_queue: bool,
    /// The caller's own place in the queue.
    #[serde(skip)]
    pub(crate) ticket: Option<u64>,
    /// From where the asker looks, for whom others may decide. `None`: from where they look themselves.
    pub(crate) observer: Option<Observer>,
    /// As [`Observer::over`].
    #[serde(skip)]
    pub(crate) over: Vec<u64>,
}
