//! Sleeping until a kernel lock is released, or for a while.

use std::fs::File;
use std::io;
use std::time::Duration;

use rustix::event::{Timespec, poll};
use rustix::fs::{FlockOperation, flock};

use super::file::fcntl_locked;

/// poll(2) counts milliseconds in 32 bits on some systems, which are 24 days. A caller that wakes too
/// early checks again.
pub(in crate::sys) const LONGEST: Duration = Duration::from_hours(24 * 20);

/// Blocks until no other process holds a kernel lock on `file`, for whatever reason that lock ends.
/// `Interrupted` when a signal came first. Takes a shared lock by flock(2), and releases it at
/// once.
pub(crate) fn until_unlocked(file: &File) -> io::Result<()> {
    /// How often to look at a lock by fcntl(2): to sleep on it would mean to take it, which makes
    /// programs that try it meanwhile fail.
    const FCNTL_INTERVAL: Duration = Duration::from_millis(20);
    flock(file, FlockOperation::LockShared)?;
    flock(file, FlockOperation::Unlock)?;
    while fcntl_locked(file)? {
        pause(FCNTL_INTERVAL)?;
    }
    Ok(())
}

/// Sleeps for `timeout`; `Interrupted` when a signal came.
pub(crate) fn pause(timeout: Duration) -> io::Result<()> {
    poll(&mut [], timespec(Some(timeout)).as_ref())?;
    Ok(())
}

pub(in crate::sys) fn timespec(timeout: Option<Duration>) -> Option<Timespec> {
    timeout?.min(LONGEST).try_into().ok()
}
