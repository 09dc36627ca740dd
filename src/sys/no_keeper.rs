//! Systems without a signal that comes with the death of a parent, and builds without stores that need a keeper:
//! there is none, and no command under a hold that a lease keeps.
#![cfg_attr(
    not(feature = "etcd"),
    allow(dead_code, reason = "nothing has a lease to keep")
)]

use std::io;

use crate::identity::Pid;

/// Whether the calling process is the keeper of a command.
pub(crate) fn is_keeper() -> bool {
    false
}

/// The wrapper that the calling process keeps a hold for.
pub(crate) fn wrapper() -> Option<Pid> {
    None
}

/// Nobody is to be told.
pub(crate) fn tell_wrapper(_kill_at_ms: u64, _request: &[u8]) {}

/// There is none.
pub(crate) fn wake_supervisor() {}

/// There is no command to guard.
#[allow(clippy::unnecessary_wraps, reason = "a thread may not start elsewhere")]
pub(crate) fn guard() -> io::Result<()> {
    Ok(())
}

/// There is none.
pub(crate) fn work_is_over() {}
