//! The questions of a decision about the locks, and their answers. All answers of one snapshot are
//! true of one moment.

use std::ops::ControlFlow;

use chrono::{DateTime, Utc};

use super::request::{Key, Moment, Observer, Request, Revision, Want};
use crate::identity::{Pid, ProcessId};
use crate::name::LockName;
use crate::record::Content;
use crate::sys::ProcessState;

/// What was observed about one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// When the file was changed last.
    pub(crate) modified: DateTime<Utc>,
    /// Whether another process holds a kernel lock on the file. `None`: not asked, or not known.
    pub(crate) kernel_lock: Option<bool>,
    /// Which processes have the locks of flock(2) on a file without a record, as far as the system
    /// tells.
    pub(crate) lockers: Vec<Pid>,
    /// The processes that were asked about.
    pub(crate) processes: Vec<ProcessFact>,
    /// The record was written in this very directory.
    pub(crate) same_store: bool,
    /// Kernel locks on this filesystem are seen by everyone who can open its files.
    pub(crate) shares_kernel_locks: bool,
}

/// What the system says about a recorded process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessFact {
    pub(crate) pid: Pid,
    pub(crate) state: ProcessState,
    /// When it began, by the boot-time clock in milliseconds.
    pub(crate) began_ms: Option<i64>,
}

/// A record, as it was found. `H`: how the backend refers to it.
#[derive(Clone, Debug)]
pub(crate) struct Found<H> {
    pub(crate) key: Key,
    pub(crate) content: Content,
    pub(crate) facts: Facts,
    pub(crate) revision: Revision,
    pub(crate) handle: H,
}

/// The place of a live waiter in the queue.
#[derive(Clone, Debug)]
pub(crate) struct Ticket<H> {
    pub(crate) number: u64,
    pub(crate) request: Request,
    /// Since when a free lock has been reserved for it, by the boot-time clock.
    pub(crate) reserved_since_ms: Option<u64>,
    pub(crate) handle: H,
}

/// The locks at one moment.
pub(crate) trait Snapshot {
    /// A record or ticket, for the backend to change or to wait for.
    type Handle: Clone;
    /// Why an answer cannot be given.
    type Error;

    fn now(&self) -> Moment;

    /// From where it is seen.
    fn observer(&self) -> Observer;

    /// Whether a takeover has one winner here. Not on NFS, FUSE and the like.
    fn takeover_is_safe(&self) -> bool;

    /// Whether the caller is, or descends from, this process of its own PID namespace.
    fn descends_from(&self, process: ProcessId) -> bool;

    /// The exclusive record of a name.
    fn exclusive(&self, name: &LockName) -> Result<Option<Found<Self::Handle>>, Self::Error>;

    /// The shared records of a name.
    fn shared(&self, name: &LockName) -> Result<Vec<Found<Self::Handle>>, Self::Error>;

    /// Every record of the descendants of a name, until `visit` has seen enough.
    fn below(
        &self,
        name: &LockName,
        visit: &mut dyn FnMut(Found<Self::Handle>) -> ControlFlow<()>,
    ) -> Result<(), Self::Error>;

    /// The numbers and names of all tickets that may matter to `wants`, in order of arrival. Opens
    /// none of them. A ticket for several names is there once for each.
    fn tickets(&self, wants: &[Want]) -> Result<Vec<(u64, LockName)>, Self::Error>;

    /// A ticket; `None` if its waiter is dead.
    fn ticket(&self, number: u64) -> Result<Option<Ticket<Self::Handle>>, Self::Error>;
}
