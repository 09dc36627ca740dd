//! Named locks for processes of one machine. At most one holder has a lock at a time, everybody can
//! see who that is, and a lock whose holder has died is taken over by the next caller.
//!
//! A program needs the library alone, without what is for the command line:
//!
//! ```toml
//! [dependencies]
//! onehold = { version = "0.1", default-features = false }
//! ```
//!
//! A [`Store`] is a directory of locks. A [`Lock`] is a name in it, or the path of one lock file.
//! [`lock`] is the one that `onehold run NAME` uses.
//!
//! ```
//! use onehold::{State, Store};
//!
//! # fn main() -> onehold::Result<()> {
//! # let directory = tempfile::tempdir().expect("a directory");
//! # let directory = directory.path();
//! let lock = Store::at(directory).lock("import".parse()?)?;
//! // An error, if another process holds it: its text says who, since when and why.
//! let hold = lock.try_hold()?;
//! // Every process can now see who holds it.
//! let status = lock.check(None)?;
//! assert_eq!(status.verdict.state, State::Held);
//! assert_eq!(status.verdict.pid.map(|pid| pid.get()), Some(std::process::id()));
//! // Released here, as on `?` and on a panic.
//! drop(hold);
//! assert_eq!(lock.check(None)?.verdict.state, State::Free);
//! # Ok(())
//! # }
//! ```
//!
//! | to | call | result |
//! |---|---|---|
//! | hold a lock for the calling process | [`Lock::try_hold`] | [`Hold`] |
//! | wait for it | [`Lock::hold_within`] | [`Hold`] |
//! | hold it with [`Options`], or a [`Wait`] that tells what it waits for | [`Lock::hold`] | [`Attempt`] |
//! | hold it for a command | [`Lock::hold_for_command`] | [`Attempt`] |
//! | hold it for another process, or for a limited time | [`Lock::acquire`] | [`Attempt`] |
//! | see who holds it | [`Lock::check`], [`Store::list`] | [`Status`] |
//!
//! An [`Attempt`] is [`Blocked`](Attempt::Blocked) if another holder has the lock. So a caller can look at the
//! status of that hold; [`Attempt::into_result`] makes an error of it. [`Options::mode`] lets several share a
//! lock, and [`Lock::and`] takes several locks as one hold. Waiters for a name are served in order of arrival, as
//! far as they can take the lock.
//!
//! [`examples`] has a program for each of these. All calls block: an async program makes them on a thread where it may
//! block, as one of the examples does. A hold can be moved between threads, and is released wherever it is dropped.
//!
//! [`guarantees`] lists what is guaranteed, and what is **not**: locks are advisory, waiters for a path
//! have no order, and on filesystems that other machines can change (NFS, FUSE) no lock is taken over.
//! [`evidence`] says how this is tested, [`architecture`] how the code is built.
//!
//! The library never prints or exits and parses no arguments. It installs no signal handler unless
//! asked for [one](signal::use_sigalrm). It reads the environment only to start a command, which
//! inherits it and is found by `PATH`, and to find the [store of the user](Store::of_user).
#![cfg_attr(
    not(feature = "cluster"),
    allow(dead_code, reason = "some is for servers alone")
)]
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

/// Functions and methods whose answer is always the same, because there is no such thing on a system or in a store.
macro_rules! always {
    ($($(#[$doc:meta])* $vis:vis $name:ident($($args:tt)*) -> $returned:ty = $answer:expr;)*) => {
        $($(#[$doc])* $vis fn $name($($args)*) -> $returned { $answer })*
    };
}

mod backend;
#[cfg(feature = "cluster")]
mod cluster;
mod decision;
#[doc(hidden)]
pub mod describe;
pub mod error;
mod files;
mod finding;
mod flock;
mod format;
mod hold_info;
mod identity;
mod journal_line;
mod lock;
mod name;
mod observer;
mod open_file;
mod record;
pub mod status;
mod sys;
pub mod terminal;
mod ticket;

pub use backend::ReleaseOutcome;
#[cfg(feature = "etcd")]
pub use cluster::EtcdAccess;
#[cfg(feature = "postgres")]
pub use cluster::PostgresAccess;
pub use decision::ownership::Caller;
pub use error::{Error, Result};
pub use hold_info::HoldInfo;
pub use lock::{
    Attempt, Blocked, Hold, Holder, Listing, Lock, Options, PendingHold, Release, Renewal,
    RunOptions, Store, StoreWatch, Wait, WaitDecision,
};
pub use name::LockName;
pub use record::{Format, Mode};
pub use status::{State, Status};

/// The lock with this name in the [store of the user](Store::of_user), or the one at a path.
///
/// ```no_run
/// # fn main() -> onehold::Result<()> {
/// // Held until it is dropped; an error, if another process holds it.
/// let _hold = onehold::lock("import")?.try_hold()?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::InvalidName`], and what [`Store::of_user`] and [`Store::lock`] return.
pub fn lock(name: impl AsRef<std::ffi::OsStr>) -> Result<Lock> {
    Store::of_user()?.lock(LockName::new(name)?)
}

/// Programs that can be copied. `cargo run --example NAME` runs one of them, in a clone of the source.
///
/// # `hold`
/// ```no_run
#[doc = include_str!("../tests/examples/hold.rs")]
/// ```
/// # `wait`
/// ```no_run
#[doc = include_str!("../tests/examples/wait.rs")]
/// ```
/// # `command`
/// ```no_run
#[doc = include_str!("../tests/examples/command.rs")]
/// ```
/// # `list`
/// ```no_run
#[doc = include_str!("../tests/examples/list.rs")]
/// ```
/// # `async`
/// ```no_run
#[doc = include_str!("../tests/examples/async.rs")]
/// ```
pub mod examples {}

#[doc = include_str!("guarantees.md")]
pub mod guarantees {}

#[doc = include_str!("evidence.md")]
pub mod evidence {}

#[doc = include_str!("architecture.md")]
pub mod architecture {}

/// What a person does about holds and files that are in the way: [`Lock::break_hold`], [`Lock::cleanup`],
/// [`Lock::move_aside`], [`Store::examine`].
pub mod repair {
    pub use crate::finding::{Finding, Grade};
    pub use crate::lock::{Break, Cleanup, MovedAside, OnBreak, examine_host};
}

/// The journal of a store: [`Lock::events`] reads it, and [`Lock::fate`] looks up one hold.
pub mod journal {
    pub use crate::journal_line::{Action, Actor, Event, HoldResult, PastHold, PreviousHold};
    pub use crate::lock::Fate;
}

/// Signals. The library itself installs no handler and takes no signal.
pub mod signal {
    pub use crate::sys::signal::use_sigalrm;
}

/// The two processes of a `run` whose lock a lease keeps.
#[cfg(all(feature = "cluster", target_os = "linux"))]
#[doc(hidden)]
pub mod keeper {
    pub use crate::sys::keeper::{Keeper, fork, let_run_on, wrapper};
}

/// What only the command-line tool needs. It changes without notice.
#[doc(hidden)]
pub mod command_line {
    #[cfg(feature = "etcd")]
    pub use crate::cluster::is_etcd_url;
    #[cfg(feature = "postgres")]
    pub use crate::cluster::is_postgres_url;
    pub use crate::format::escape_json;
    pub use crate::lock::{Ending, Remaining};
    pub use crate::sys::HowEnded;
    #[cfg(all(feature = "cli", feature = "cluster"))]
    pub use crate::sys::directory::is_exposed;
    pub use crate::sys::start::{Program, Started};
    #[cfg(all(feature = "cli", target_os = "linux"))]
    pub use crate::sys::startup::{Arena, begin};
    pub use crate::sys::work::{adopt_orphans, let_work_go, work_is_contained};
    #[cfg(feature = "cli")]
    pub use crate::sys::{
        memory::drop_code_pages,
        spawn::{pass_on_wide_code, replace_process},
        stdio::{stdin_was_closed, stdout_was_closed, wait_for_end_of_stdin},
    };

    /// Signals, for a program that supervises a command under a hold.
    pub mod signal {
        pub use crate::sys::QueuedSignal;
        #[cfg(all(unix, feature = "cli"))]
        pub use crate::sys::keys::Keys;
        #[cfg(all(unix, feature = "cli"))]
        pub use crate::sys::signal::interrupt;
        #[cfg(unix)]
        pub use crate::sys::signal::terminate_self;
        pub use crate::sys::signal::{
            SignalMask, SignalQueue, exit_by_signal, ignore_file_size_signal, last_number,
            last_signal, note_signals, send, send_from_terminal, stop, stop_telling_signals_apart,
            tell_signals_apart, terminating_signal, without_signals,
        };
    }
}

/// The examples of the README are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
