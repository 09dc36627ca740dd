//! Locks that tell the truth: at most one holder at a time, always known who, and taken over from
//! a dead holder only by proof.
//!
//! A [`Store`] is a directory of locks, a [`Lock`] a name in it (or the path of one lock file). Ask
//! a lock who has it with [`Lock::check`], have it yourself with [`Lock::hold`], for a command with
//! [`Lock::hold_for_command`], for another process or for a time with [`Lock::acquire`]. That
//! somebody else has it is an [`Attempt::Blocked`], not an error.
//!
//! ```
//! use onehold::{Attempt, Claim, LockName, State, Store, Wait};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let directory = directory.path();
//! let store = Store::at(directory);
//! let lock = store.lock(LockName::new("import")?)?;
//! let Attempt::Held(hold) = lock.hold(&Claim::new().message("nightly"), Wait::no())? else {
//!     return Err("somebody else imports".into());
//! };
//! // Whoever asks now is told who has it.
//! let status = lock.check(None)?;
//! assert_eq!(status.verdict.state, State::Held);
//! assert_eq!(status.record.and_then(|record| record.message).as_deref(), Some("nightly"));
//! // Given back here, as on `?` and on a panic.
//! drop(hold);
//! assert_eq!(lock.check(None)?.verdict.state, State::Free);
//! # Ok(())
//! # }
//! ```
//!
//! Those who wait for a name are served in order of arrival.
//!
//! What is promised, and how that is tested, is told in [`promises`]. What is **not** promised: order
//! among those who wait for a path; anything about programs that do not ask; that a verdict is still
//! true when it is read. On filesystems that other machines reach too (NFS, FUSE) no lock is taken
//! over; next to programs that use the same files in their own ways their own races remain. The
//! library never prints, exits, reads arguments or environment, or installs a signal handler unless
//! asked for [one](signal::use_sigalrm).
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
mod format;
mod guard;
mod hold;
mod holder;
mod identity;
mod lock;
mod lockfile;
mod name;
mod number;
mod queue;
mod record;
mod status;
mod store;
mod sys;
mod verdict;
mod wait;

pub use claim::{Claim, Claimant};
pub use error::{Error, Result};
pub use events::journal_of;
pub use format::Format;
pub use hold::{Detached, Ended, Hold};
pub use holder::{Holder, command_line_of};
pub use identity::{BootId, Origin, Pid, ProcessId};
pub use lock::{Acquired, Attempt, Blocked, Break, Keeping, Lock, Release, Renewal};
pub use name::LockName;
pub use queue::Waiter;
pub use record::{Content, Job, Kind, Record, SignOfLife};
pub use status::{Shown, Status};
pub use store::{Cleanup, Listing, Store};
pub use sys::start::{Program, Started};
pub use verdict::{DEFAULT_MAX_AGE, Doubt, Proof, Reason, State, Verdict};
pub use wait::Wait;

#[doc = include_str!("promises.md")]
pub mod promises {}

/// Memory, for the command-line tool.
#[cfg(feature = "cli")]
pub mod memory {
    pub use crate::sys::arena::Arena;
    pub use crate::sys::memory::give_back_program;
}

/// Standard streams, for the command-line tool.
#[cfg(feature = "cli")]
pub mod stdio {
    pub use crate::sys::stdio::stdout_was_closed;
}

/// Processes, for the command-line tool.
#[cfg(feature = "cli")]
pub mod process {
    pub use crate::sys::spawn::{pass_on_wide_code, replace_process};
}

/// Signals, for a program that supervises a command under a hold or waits with a limit. The
/// library itself installs no handler and takes no signal.
pub mod signal {
    pub use crate::sys::Received;
    pub use crate::sys::signal::{
        SignalMask, SignalQueue, end_by, send, that_ended, use_sigalrm, without_signals,
    };
}

/// The examples of the README are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
