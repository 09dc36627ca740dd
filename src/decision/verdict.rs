//! The verdict on a lock: its state, the reason, the evidence. Data only.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;

use crate::identity::Pid;

/// The state of a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It has no holder.
    #[default]
    Free,
    /// It has a holder, or may have one.
    Held,
    /// Its holder is alive, and older than its maximum age.
    Overdue,
    /// Its holder is dead or its lease has expired: the next one takes it over unasked.
    Zombie,
    /// Its file is not a lock file, and is left alone.
    NotALock,
}

/// Why a lock is in its state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// Free: no file.
    #[default]
    NoFile,
    /// Free: left by a `run --exec` whose command has exited, or by a hold that was kept for long enough.
    Finished,
    /// Held or overdue: the holder is alive.
    Alive,
    /// Held: the process that a record without identity names has ended, and others have locked the file.
    Locked,
    /// Held: its wrapper is dead, and a command of it may be about to start.
    Starting,
    /// Held: all of its work is being ended by force, and may not have ended yet.
    Ending,
    /// Held: free, but reserved for the first waiter that could take it.
    Reserved,
    /// Held: a lease that has not expired.
    Lease,
    /// Held: its command has ended, and the lock stays taken for as long as was asked for.
    Kept,
    /// Held: written by another version of onehold, with this version of the record; held until broken.
    UnknownVersion(u64),
    /// Held: incomplete, and changed less than 10 s ago.
    Incomplete,
    /// Held: the holder can be shown neither alive nor dead.
    Unverified(Uncertainty),
    /// Zombie: the holder has exited.
    Dead,
    /// Zombie: the holder has exited, and its PID belongs to another process.
    Reused,
    /// Zombie: the holder ran before the last reboot.
    Rebooted,
    /// Zombie: it was taken by an earlier incarnation of the caller's instance.
    InstanceRestarted,
    /// Zombie: its holder ran in a PID namespace in which no process is left.
    NamespaceGone,
    /// Zombie: its TTL has expired.
    Expired,
    /// Zombie: unverified, and older than its maximum age.
    TooOld(Uncertainty),
    /// Zombie: damaged, and unchanged for 10 s.
    Corrupt,
    /// Zombie: not a lock file, unchanged for 10 s, and at a place that is meant for one. It is moved
    /// aside only by [`Lock::move_aside`](crate::Lock::move_aside).
    Malformed(&'static str),
    /// Not a lock file; what it is instead.
    NotALock(&'static str),
}

/// Why a holder cannot be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Uncertainty {
    /// The holder is or may be on another host.
    OtherHost,
    /// The holder is in another PID namespace, where its PID means another process.
    OtherPidNamespace,
    /// The record is of another boot, and nothing shows that this machine was rebooted.
    UnknownBoot,
    /// A process has the PID, and the record does not say enough to tell whether it is the holder.
    PidOnly,
    /// The record names no process.
    NoProcess,
    /// The system does not say whether the process exists.
    ProcessUnreadable,
    /// The recorded processes have exited, and nothing shows whether there is another: a command
    /// that is about to start, or one whose PID was being written.
    CommandUnknown,
    /// The system does not list kernel locks, and those of readers cannot be found in another way.
    LocksNotListed,
}

/// The observation behind a verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Evidence {
    /// None was needed, or there was none.
    #[default]
    None,
    /// A process holds a kernel lock on the file.
    KernelLock,
    /// The recorded process exists, with the recorded start.
    SameProcess,
    /// A process with the recorded PID exists; its start could not be compared.
    SamePid,
    /// No process has the recorded PID.
    PidGone,
    /// The process with the recorded PID has another start.
    StartMismatch,
    /// The machine has been rebooted.
    BootMismatch,
    /// The instance of the caller has been restarted.
    OtherIncarnation,
    /// No process is left in the PID namespace of the holder, or its number was reused.
    NamespaceGone,
    /// The kernel lock of the holder is free.
    KernelLockGone,
    /// A clock.
    Clock,
    /// The lease of the hold is kept: its key is there.
    LeaseKept,
    /// The key of the hold is gone: its lease has ended.
    LeaseEnded,
}

impl Reason {
    /// The state of a lock for this reason. One whose holder is alive may also be overdue.
    fn state(self) -> State {
        match self {
            Self::NoFile | Self::Finished => State::Free,
            Self::Dead
            | Self::Reused
            | Self::Rebooted
            | Self::InstanceRestarted
            | Self::NamespaceGone
            | Self::Expired
            | Self::TooOld(_)
            | Self::Corrupt
            | Self::Malformed(_) => State::Zombie,
            Self::NotALock(_) => State::NotALock,
            _ => State::Held,
        }
    }

    /// Its name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NoFile => "no-file",
            Self::Finished => "finished",
            Self::Alive => "alive",
            Self::Locked => "locked",
            Self::Starting => "starting",
            Self::Ending => "ending",
            Self::Reserved => "reserved",
            Self::Lease => "lease",
            Self::Kept => "kept",
            Self::UnknownVersion(_) => "unknown-version",
            Self::Incomplete => "incomplete",
            Self::Unverified(_) => "unverified",
            Self::Dead => "dead",
            Self::Reused => "reused",
            Self::Rebooted => "rebooted",
            Self::InstanceRestarted => "instance-restarted",
            Self::NamespaceGone => "namespace-gone",
            Self::Expired => "expired",
            Self::TooOld(_) => "too-old",
            Self::Corrupt => "corrupt",
            Self::Malformed(_) => "malformed",
            Self::NotALock(_) => "not-a-lock",
        }
    }
}

impl Evidence {
    /// Its name in JSON. `None`: it has none.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::KernelLock => Some("kernel-lock"),
            Self::SameProcess => Some("same-process"),
            Self::SamePid => Some("same-pid"),
            Self::PidGone => Some("pid-gone"),
            Self::StartMismatch => Some("other-start"),
            Self::BootMismatch => Some("other-boot"),
            Self::OtherIncarnation => Some("other-incarnation"),
            Self::NamespaceGone => Some("namespace-gone"),
            Self::KernelLockGone => Some("kernel-lock-gone"),
            Self::Clock => Some("clock"),
            Self::LeaseKept => Some("lease-kept"),
            Self::LeaseEnded => Some("lease-ended"),
        }
    }
}

/// The state of a lock, and why it is in it. By default it is free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdict {
    /// Whether the lock is free, held, or stale.
    pub state: State,
    /// The rule that decided it.
    pub reason: Reason,
    /// The observation behind it.
    pub evidence: Evidence,
    /// The process that keeps the hold alive, or that did.
    pub pid: Option<Pid>,
    /// Whether that process exists; `None` if that is not known or there is no process.
    pub pid_alive: Option<bool>,
    /// Whether the wrapper of a `run` exists; `None` if that is not known or there is no wrapper.
    pub wrapper_alive: Option<bool>,
    /// Time since the last heartbeat, never negative.
    pub age: Option<Duration>,
    /// The age that counts, and beyond which it is overdue, or a zombie if its holder cannot be checked.
    pub age_and_limit: Option<(Duration, Duration)>,
    /// When the time to live ends, by the wall clock.
    pub expires_at: Option<DateTime<Utc>>,
    /// How much longer a dead hold on etcd must be known to be dead before the caller may take it over.
    /// `None`: it need not wait.
    pub takeable_in: Option<Duration>,
}

impl Verdict {
    /// A zombie or overdue: an operator should look at it.
    #[must_use]
    pub fn is_zombie(&self) -> bool {
        matches!(self.state, State::Zombie | State::Overdue)
    }

    /// Whether it is overdue or a zombie for its age alone.
    #[must_use]
    pub fn is_too_old(&self) -> bool {
        self.state == State::Overdue || matches!(self.reason, Reason::TooOld(_))
    }

    /// When its age reaches the limit. `now`: when it was judged.
    #[must_use]
    pub fn overdue_at(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let (age, limit) = self.age_and_limit?;
        let [age, limit] = [age, limit].map(TimeDelta::from_std);
        now.checked_add_signed(limit.ok()? - age.ok()?)
    }

    pub(crate) fn new(reason: Reason, evidence: Evidence) -> Self {
        Self {
            state: reason.state(),
            reason,
            evidence,
            ..Self::default()
        }
    }

    /// Whether a live holder was seen, rather than one that cannot be checked.
    pub(crate) fn is_certainly_held(&self) -> bool {
        self.is_live() && !matches!(self.reason, Reason::Unverified(_) | Reason::Incomplete)
    }

    /// Whether it keeps others out.
    pub(crate) fn is_live(&self) -> bool {
        matches!(self.state, State::Held | State::Overdue)
    }
}
