//! What the library tells its callers about a lock. Data only.

use std::path::PathBuf;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Serialize, Serializer};

pub use crate::decision::Revision;
pub use crate::decision::liveness::DEFAULT_MAX_AGE;
pub use crate::decision::verdict::{Evidence, Reason, State, Uncertainty, Verdict};
use crate::hold_info::HoldInfo;
pub use crate::identity::{Pid, ProcessId};
pub use crate::record::{CommandEnd, KILL_AFTER, Kind, Program};
use crate::record::{Format, Record};
use crate::sys::directory::{local_filesystems, may_remove, type_of};
use crate::sys::process::{own_uid, user_name};
use crate::sys::work::Author;

/// A lock as read at one moment: its record and the verdict on it.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Status {
    /// The name of the lock.
    pub name: String,
    /// Its file.
    pub path: PathBuf,
    /// The store directory; for a path lock, the directory of the file.
    pub store: PathBuf,
    /// The format that was expected there.
    pub format: Format,
    /// What the file says, if that is a record.
    pub(crate) record: Option<Record>,
    /// What can be said of it.
    pub verdict: Verdict,
    /// The processes that have locked the file, as far as the system tells: of one without a record, such as
    /// one that flock(1) locks, and of one with a record by hand or by another program.
    pub lockers: Vec<Locker>,
    /// The number of a shared hold: its slot.
    pub slot: Option<u32>,
    /// The other holds of the same lock, if several share it.
    pub others: Vec<Self>,
    /// The waiters, the first one first.
    pub waiters: Vec<Waiter>,
    /// Where its record was written, if it says so.
    pub provenance: Option<Provenance>,
    /// The number of the user who holds it: the owner of its file. `None`: the system or the store does not
    /// tell.
    pub uid: Option<u32>,
    /// Whether a takeover has one winner here: not on NFS, FUSE and the like, where the guard
    /// reaches this host only.
    pub can_take_over: bool,
    pub(crate) is_remote: bool,
    /// Of what a waiter is shown: its position in the queue.
    pub(crate) position: Option<usize>,
    pub(crate) revision: Option<Revision>,
    /// Of a displaced hold in a directory: who can have written its record.
    pub(crate) author: Option<Author>,
    /// When a regular file was changed last that is not a lock file.
    pub(crate) modified: Option<DateTime<Utc>>,
    /// Whether acquire moves such a file aside unasked.
    pub(crate) is_moved_aside: bool,
}

/// Where a record was written, as it says itself. One from elsewhere keeps the lock taken as any other does, but no
/// process gets a signal because of it, and it is not renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Provenance {
    /// Where it is.
    Here,
    /// In this store, for a lock of another name: its file was renamed, linked or copied.
    OtherName,
    /// In another store: its file, or the whole store, was copied or linked from there.
    OtherStore,
}

/// The names of the filesystems whose kernel locks are seen by every process that can open their files.
/// On any other there is no takeover and no queue.
pub fn trusted_filesystems() -> impl Iterator<Item = &'static str> {
    local_filesystems()
}

/// A process that holds a kernel lock, according to the system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Locker {
    /// Its process.
    pub pid: Pid,
    /// Its command line.
    pub command: Vec<String>,
    /// The number of its user.
    #[serde(skip)]
    pub uid: Option<u32>,
    /// The name of its user, or the number of one without a name.
    pub user: Option<String>,
    /// When the process began. It may have taken the lock later.
    #[serde(rename = "started_at")]
    pub started: Option<DateTime<Utc>>,
}

/// A place in the queue that is kept for a waiter that has left. It delays no other waiter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KeptPlace {
    /// The owner that gets it back by waiting again.
    pub owner: String,
    /// Since when its waiter had waited.
    pub since: DateTime<Utc>,
    /// How long it is still kept.
    #[serde(rename = "left_seconds", serialize_with = "seconds")]
    pub left: Duration,
}

fn seconds<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(span.as_secs_f64())
}

/// A process that waits for a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Waiter {
    /// Its position in the queue; the first is 1.
    pub position: usize,
    /// Its process, in its own PID namespace.
    pub pid: Pid,
    /// Its host.
    pub hostname: Option<String>,
    /// The owner that it asks for.
    pub owner: Option<String>,
    /// The command that it wants to run, or its own command line.
    pub command: Vec<String>,
    /// The program that it waits for, if that is another process.
    pub program: Option<Box<Program>>,
    /// Why it wants the lock, in the user's words.
    pub message: Option<String>,
    /// Since when it waits.
    pub since: DateTime<Utc>,
}

impl Status {
    /// What the record of its hold says. `None`: there is no record.
    pub fn info(&self) -> Option<HoldInfo<'_>> {
        self.record.as_ref().map(HoldInfo)
    }

    /// The position in the queue of the caller that waits for it, the first of which is 1: of what is shown to a wait
    /// [with its position](crate::Wait::with_position). `None`: of any other, or it has no place in a queue.
    pub fn position(&self) -> Option<usize> {
        self.position
    }

    /// Whether its store is one of several machines, and not a directory.
    pub fn is_remote(&self) -> bool {
        self.is_remote
    }

    /// The type of the filesystem that the store is on, such as `ext4` or `fuse.sshfs`, as far as the
    /// system tells.
    pub fn filesystem(&self) -> Option<String> {
        type_of(&self.store)
    }

    /// Whether acquire takes the lock unasked.
    pub fn is_available(&self) -> bool {
        match self.verdict.state {
            // The file may be data that is needed.
            State::Zombie if matches!(self.verdict.reason, Reason::Malformed(_)) => {
                self.is_moved_aside
            }
            State::Free if self.verdict.reason == Reason::NoFile => true,
            State::Free | State::Zombie => self.can_take_over,
            State::Held | State::Overdue | State::NotALock => false,
        }
    }

    /// Whether acquire takes the lock unasked, as far as the modes of its directory tell. Another user's dead
    /// hold may have to stay; only a shared one does not matter to the next.
    pub fn is_takeable(&self) -> bool {
        self.is_available() && (self.slot.is_some() || self.may_be_removed())
    }

    /// This lock without its hold.
    #[must_use]
    pub fn removed(&self) -> Self {
        Self {
            name: self.name.clone(),
            path: self.path.clone(),
            store: self.store.clone(),
            format: self.format,
            waiters: self.waiters.clone(),
            can_take_over: self.can_take_over,
            is_remote: self.is_remote,
            is_moved_aside: self.is_moved_aside,
            ..Self::default()
        }
    }

    /// The number of the hold; `None` for those of programs that do not number theirs.
    pub fn hold(&self) -> Option<u64> {
        let record = self.record.as_ref()?;
        Some(record.hold).filter(|hold| *hold != 0)
    }

    /// The name of the user who holds it, or the number of one without a name.
    pub fn user(&self) -> Option<String> {
        self.uid.map(user_name)
    }

    /// Whether the caller may remove the record, as far as the modes of its directory tell.
    pub fn may_be_removed(&self) -> bool {
        match (self.uid, self.path.parent()) {
            (Some(uid), _) if own_uid() == Some(uid) => true,
            (Some(uid), Some(directory)) => may_remove(directory, uid),
            _ => true,
        }
    }

    /// The names of all locks of the hold.
    pub fn names(&self) -> Vec<&str> {
        let names = self.record.iter().flat_map(|record| &record.names);
        let names: Vec<&str> = names.map(String::as_str).collect();
        // Other programs have other names for their locks.
        if names.is_empty() {
            vec![&self.name]
        } else {
            names
        }
    }

    /// All holds of the lock: this one, and the others if several share it.
    pub fn all_holds(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.others)
    }

    /// The hold with this number, if it is among those of the lock; the others are then beside it.
    #[must_use]
    pub fn of_hold(mut self, hold: u64) -> Option<Self> {
        if self.hold() == Some(hold) {
            return Some(self);
        }
        let is_it = |other: &Self| other.hold() == Some(hold);
        let at = self.others.iter().position(is_it)?;
        let mut found = self.others.swap_remove(at);
        found.waiters = std::mem::take(&mut self.waiters);
        found.others = std::mem::take(&mut self.others);
        found.others.push(self);
        Some(found)
    }

    /// What permission to break this very hold is bound to. `None`: there is nothing to break.
    pub fn revision(&self) -> Option<Revision> {
        self.revision.clone()
    }
}

/// What only etcd tells about a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreFacts {
    /// The member that has answered.
    pub member: String,
    /// The engine and its version, for a person.
    pub version: Option<String>,
    /// The revision of the store.
    pub revision: i64,
    /// When the record was last written.
    pub modified: i64,
    /// How long the lease lasts without another keepalive. `None`: there is none.
    pub lease_left: Option<Duration>,
}
