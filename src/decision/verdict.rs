//! The verdict on a lock: its state, the reason, the evidence. Data only.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;

use crate::identity::Pid;
use crate::record::named;

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

named! {
    /// Why a lock is in its state.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum Reason {
        /// Free: no file.
        #[default]
        NoFile = "no-file",
        /// Free: left by a `run --exec` whose command has exited, or by a hold that was kept for long enough.
        Finished = "finished",
        /// Held or overdue: the holder is alive.
        Alive = "alive",
        /// Held: the process that a record without identity names has ended, and others have locked the file.
        Locked = "locked",
        /// Held: its wrapper is dead, and a command of it may be about to start.
        Starting = "starting",
        /// Held: all of its work is being ended by force, and may not have ended yet.
        Ending = "ending",
        /// Held: free, but reserved for the first waiter that could take it.
        Reserved = "reserved",
        /// Held: a lease that has not expired.
        Lease = "lease",
        /// Held: its command has ended, and the lock stays taken for as long as was asked for.
        Kept = "kept",
        /// Held: written by another version of onehold, with this version of the record; held until broken.
        UnknownVersion(u64) = "unknown-version",
        /// Held: incomplete, and changed less than 10 s ago.
        Incomplete = "incomplete",
        /// Held: the holder can be shown neither alive nor dead.
        Unverified(Uncertainty) = "unverified",
        /// Zombie: the holder has exited.
        Dead = "dead",
        /// Zombie: the holder has exited, and its PID belongs to another process.
        Reused = "reused",
        /// Zombie: the holder ran before the last reboot.
        Rebooted = "rebooted",
        /// Zombie: it was taken by an earlier incarnation of the caller's instance.
        InstanceRestarted = "instance-restarted",
        /// Zombie: its holder ran in a PID namespace in which no process is left.
        NamespaceGone = "namespace-gone",
        /// Zombie: its TTL has expired.
        Expired = "expired",
        /// Zombie: unverified, and older than its maximum age.
        TooOld(Uncertainty) = "too-old",
        /// Zombie: damaged, and unchanged for 10 s.
        Corrupt = "corrupt",
        /// Zombie: not a lock file, unchanged for 10 s, and at a place that is meant for one. It is moved
        /// aside only by [`Lock::move_aside`](crate::Lock::move_aside).
        Malformed(&'static str) = "malformed",
        /// Not a lock file; what it is instead.
        NotALock(&'static str) = "not-a-lock",
    }
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

named! {
    /// The observation behind a verdict.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum Evidence {
        /// None was needed, or there was none.
        #[default]
        None = "",
        /// A process holds a kernel lock on the file.
        KernelLock = "kernel-lock",
        /// The recorded process exists, with the recorded start.
        SameProcess = "same-process",
        /// A process with the recorded PID exists; its start could not be compared.
        SamePid = "same-pid",
        /// No process has the recorded PID.
        PidGone = "pid-gone",
        /// The process with the recorded PID has another start.
        StartMismatch = "other-start",
        /// The machine has been rebooted.
        BootMismatch = "other-boot",
        /// The instance of the caller has been restarted.
        OtherIncarnation = "other-incarnation",
        /// No process is left in the PID namespace of the holder, or its number was reused.
        NamespaceGone = "namespace-gone",
        /// The kernel lock of the holder is free.
        KernelLockGone = "kernel-lock-gone",
        /// A clock.
        Clock = "clock",
        /// The lease of the hold is kept: its key is there.
        LeaseKept = "lease-kept",
        /// The key of the hold is gone: its lease has ended.
        LeaseEnded = "lease-ended",
    }
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
    pub fn is_zombie(&self) -> bool {
        matches!(self.state, State::Zombie | State::Overdue)
    }

    /// Whether it is overdue or a zombie for its age alone.
    pub fn is_too_old(&self) -> bool {
        self.state == State::Overdue || matches!(self.reason, Reason::TooOld(_))
    }

    /// When its age reaches the limit. `now`: when it was judged.
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
