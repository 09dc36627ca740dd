//! Systems without a signal that comes with the death of a parent, and builds without stores that need a keeper:
//! there is none, and no command under a hold that a lease keeps.

use std::io;

use crate::identity::Pid;

always! {
    /// Whether the calling process is the keeper of a command.
    pub(crate) is_keeper() -> bool = false;
    /// The wrapper that the calling process keeps a hold for.
    pub(crate) wrapper() -> Option<Pid> = None;
    /// There is no command to guard.
    pub(crate) guard() -> io::Result<()> = Ok(());
}

/// Nobody is to be told.
pub(crate) fn tell_wrapper(_kill_at_ms: u64, _request: &[u8]) {}

/// There is none.
pub(crate) fn wake_supervisor() {}

/// There is none.
pub(crate) fn work_is_over() {}
