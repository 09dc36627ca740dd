//! What can go wrong, by what a caller can do about it. That a lock is held is no error.

use std::io;
use std::path::{Path, PathBuf};

use crate::format::Format;

/// An operation on locks failed.
///
/// The text is operation, noun and cause; the operating system's own word is its
/// [`source`](std::error::Error::source) and not repeated in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {operation} `{}`", path.display())]
    Io {
        /// What was attempted, as in "cannot … `path`".
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// Its reason.
        source: io::Error,
    },
    /// The name cannot be the name of a lock.
    #[error("invalid lock name `{name}`: {reason}")]
    InvalidName {
        /// As given.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A lock in this format cannot be held so.
    #[error("cannot write a {format} lock: {what}")]
    Unfit {
        /// The format that was to be written.
        format: Format,
        /// What is missing or does not go with it.
        what: &'static str,
    },
    /// A text is too long to be kept in a record.
    #[error("{what} is longer than {limit} bytes")]
    TooLong {
        /// Which text.
        what: &'static str,
        /// The most it can have.
        limit: usize,
    },
    /// Something that is no lock file stands under the lock's name. It was not touched.
    #[error("`{}` is {what}", path.display())]
    NotALock {
        /// Where.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// Somebody keeps the store's guard for longer than 10 s.
    #[error("cannot lock directory `{}`: {}", path.display(), obstacle(*.pid))]
    GuardBusy {
        /// The store directory.
        path: PathBuf,
        /// Who keeps it, as /proc/locks says.
        pid: Option<u32>,
    },
    /// No process has the pid that should hold the lock.
    #[error("no process has the pid {pid}")]
    NoSuchProcess {
        /// The pid.
        pid: u32,
    },
    /// Every process that could hold the lock ends with the command that asks for it.
    #[error("nothing would be left to hold the lock")]
    NothingToHold,
    /// The filesystem can neither exchange files nor be trusted without.
    #[error("cannot take over `{}`: its filesystem cannot exchange two files atomically", path.display())]
    CannotExchange {
        /// The lock file.
        path: PathBuf,
    },
    /// The lock file of a hold that is being set up was taken away or changed by somebody.
    #[error("lost the hold of `{}` while it was being set up", path.display())]
    LostEarly {
        /// The lock file.
        path: PathBuf,
    },
    /// The command could not be started.
    #[error("cannot run `{program}`")]
    Spawn {
        /// As given.
        program: String,
        /// Its reason.
        source: io::Error,
    },
}

/// The result of an operation on locks.
pub type Result<T, E = Error> = std::result::Result<T, E>;

fn obstacle(pid: Option<u32>) -> String {
    match pid {
        Some(pid) => format!("process {pid} has kept it locked for more than 10 s"),
        None => "it has been locked for more than 10 s".to_owned(),
    }
}

/// Adds operation and path to an operating system's error.
pub(crate) trait Context<T> {
    fn context(self, operation: &'static str, path: &Path) -> Result<T>;
}

impl<T> Context<T> for io::Result<T> {
    fn context(self, operation: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::Io {
            operation,
            path: path.to_owned(),
            source,
        })
    }
}
