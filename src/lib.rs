//! Locks that tell the truth: at most one holder at a time, always known who, and taken over from
//! a dead holder only by proof.
// A test that cannot go on says so by panicking.
#![cfg_attr(
    test,
    allow(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

mod claim;
mod error;
mod events;
mod guard;
mod hold;
mod holder;
mod identity;
mod lock;
mod lockfile;
mod name;
mod number;
mod record;
mod status;
mod store;
mod sys;
mod verdict;
mod wait;

pub use claim::{Claim, Claimant};
pub use error::{Error, Result};
pub use events::journal_of;
pub use hold::{Detached, Ended, Hold};
pub use holder::{Holder, command_line_of};
pub use identity::{BootId, Origin, Pid, ProcessId};
pub use lock::{Acquired, Attempt, Blocked, Break, Keeping, Lock, Release, Renewal};
pub use name::LockName;
pub use record::{Content, Job, Kind, Record, SignOfLife};
pub use status::{Shown, Status};
pub use store::{Cleanup, Listing, Store};
pub use verdict::{DEFAULT_MAX_AGE, Doubt, Proof, Reason, State, Verdict};
pub use wait::Wait;

/// Standard streams, for the command-line tool.
#[cfg(feature = "cli")]
pub mod stdio {
    pub use crate::sys::stdio::stdout_was_closed;
}

/// Signals, for a program that supervises a command under a hold or waits with a limit. The
/// library itself installs no handler and takes no signal.
pub mod signal {
    pub use crate::sys::signal::{Alarm, Received, SignalQueue, end_by, send, without_signals};
}
