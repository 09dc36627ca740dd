//! What a decision can be, and what a waiter can sleep on. Data only.

use std::time::Duration;

use super::request::Key;
use super::snapshot::{Found, Ticket};
use super::verdict::Verdict;
use crate::record::Record;

/// For how long others wait for the process that has acquired a lock for another one, or as a lease, to
/// confirm that. It may be stopped, or nobody may read what it prints.
const CONFIRMATION_LIMIT: Duration = Duration::from_secs(5);

/// A record and the verdict on it.
#[derive(Clone, Debug)]
pub(crate) struct Judged<H> {
    pub(crate) found: Found<H>,
    pub(crate) verdict: Verdict,
}

impl<H> Judged<H> {
    pub(crate) fn record(&self) -> Option<&Record> {
        self.found.content.record()
    }

    /// The number of the hold, if it has one.
    pub(crate) fn hold(&self) -> Option<u64> {
        self.record().map(|record| record.hold)
    }

    /// How much longer to wait until the process that acquires a detached hold confirms it. Until then it is
    /// not known whether the lock was acquired.
    pub(crate) fn confirmed_within(&self) -> Option<Duration> {
        let record = self.record()?;
        let is_pending = record.origin.is_some() && record.is_detached() && !record.is_confirmed();
        let left = CONFIRMATION_LIMIT.saturating_sub(self.verdict.age?);
        let may_be_confirmed = is_pending && self.verdict.pid_alive == Some(true);
        (may_be_confirmed && !left.is_zero()).then_some(left)
    }
}

/// The decision about a request.
#[derive(Clone, Debug)]
pub(crate) enum Decision<H> {
    /// Take the locks: write these records, each in place of what is there, and remove the others.
    Take {
        put: Vec<(Key, Option<Judged<H>>)>,
        remove: Vec<Judged<H>>,
    },
    /// The same holder already has the locks.
    AlreadyHeld(Judged<H>),
    /// It may become free.
    Wait(Obstacle<H>),
    /// Waiting cannot change it.
    Blocked(Judged<H>),
    /// The file is not a lock file; what it is.
    Refuse(Judged<H>, &'static str),
}

/// The hold or waiter that keeps a request from being granted.
#[derive(Clone, Debug)]
pub(crate) enum Obstacle<H> {
    Hold(Judged<H>),
    /// The lock is free and reserved for this waiter.
    Waiter(Ticket<H>),
}

/// The event that a waiter sleeps on.
#[derive(Clone, Debug)]
pub(crate) enum Until<H> {
    /// The end of a hold.
    Released(Judged<H>),
    /// The end of any of these holds; or this time has passed, after which a dead one beside them can be taken over.
    AnyReleased(Vec<Judged<H>>, Option<Duration>),
    /// An earlier waiter leaves the queue, or this time has passed.
    LeftQueue(Ticket<H>, Duration),
    /// A dead hold can be taken over, after this time.
    Ripe(Judged<H>, Duration),
}

impl<H> Until<H> {
    /// When a dead hold can be taken over, if one is waited for.
    pub(crate) fn ripe_in(&self) -> Option<Duration> {
        match self {
            Self::Ripe(_, after) => Some(*after),
            Self::AnyReleased(_, after) => *after,
            Self::Released(_) | Self::LeftQueue(..) => None,
        }
    }
}
