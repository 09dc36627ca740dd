//! What can go wrong, by what a caller can do about it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::record::Format;
use crate::sys::directory::other_owner;

/// An operation on locks failed.
///
/// The text is operation, noun and cause. What the operating system says is the
/// [`source`](std::error::Error::source), and is not repeated in the text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another holder has the lock: [`blocked`](Self::blocked) is the [`Blocked`](crate::Blocked) that it is made
    /// of, whose text this is.
    #[error(transparent)]
    Blocked(Box<dyn std::error::Error + Send + Sync>),
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
    /// Two locks cannot be held together.
    #[error("cannot hold `{one}` and `{other}` together: {why}")]
    NotTogether {
        /// As given.
        one: String,
        /// As given.
        other: String,
        /// What is in the way.
        why: &'static str,
    },
    /// A lock in this format does not support what was asked for.
    #[error("{format} format: {what}")]
    Unsupported {
        /// The format that was to be written.
        format: Format,
        /// What is missing or not supported.
        what: &'static str,
    },
    /// A record cannot be renewed as it is. It was not changed.
    #[error("cannot renew `{}`: {why}", path.display())]
    NotRenewable {
        /// The lock file.
        path: PathBuf,
        /// What is in the way.
        why: &'static str,
    },
    /// A text is too long to be kept in a record.
    #[error("{what} is longer than {limit} bytes")]
    TooLong {
        /// Which text.
        what: &'static str,
        /// The most it can have.
        limit: usize,
    },
    /// The file of the lock is not a lock file. It was not touched.
    #[error("`{}` is not a lock: {what}", path.display())]
    NotALock {
        /// Where.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// A store has directories that lead to no lock, because its name would be too long. They were not read.
    #[error("directories below `{}` are deeper than the name of a lock is long: not read", path.display())]
    TooDeep {
        /// The outermost of them.
        path: PathBuf,
    },
    /// Another process has kept the store locked for longer than the caller waits.
    #[error("store `{}` is busy: {}", path.display(), guard_holder_text(*.pid, *.waited))]
    StoreBusy {
        /// The store directory.
        path: PathBuf,
        /// Which process, by /proc/locks.
        pid: Option<u32>,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The caller did not let the wait go on, see [`Wait::on_decision`](crate::Wait::on_decision). Nothing was taken.
    #[error("canceled")]
    Canceled,
    /// There is no process with the PID that should hold the lock.
    #[error("no process with PID {pid}")]
    NoSuchProcess {
        /// The pid.
        pid: u32,
    },
    /// The process that started this one has exited, so that nothing can end with it.
    #[error("the process that started onehold has exited")]
    ParentExited,
    /// The process that started this one is not visible from here, so that its end cannot be noticed.
    #[error("cannot watch the process that started onehold: it is outside of this container")]
    ParentOutside,
    /// Every process that could hold the lock has exited, or ends with the command that asks for it.
    #[error("no process to hold the lock for: the caller has exited, or ends with this command")]
    NoHolder,
    /// Neither the environment nor the user database has a home directory.
    #[error("cannot find the home directory")]
    NoHome,
    /// The filesystem can neither swap two files nor do without.
    #[error("cannot take over `{}`: its filesystem cannot swap two files atomically", path.display())]
    NoAtomicExchange {
        /// The lock file.
        path: PathBuf,
    },
    /// The lock file was changed or removed while the lock was being acquired.
    #[error("lost the lock while acquiring it: `{}` was changed or removed", path.display())]
    LostWhileAcquiring {
        /// The lock file.
        path: PathBuf,
    },
    /// A store of several machines could not be reached, or refused.
    #[error("cannot {operation} `{store}`: {reason}")]
    Remote {
        /// What was attempted, as in "cannot … `store`".
        operation: &'static str,
        /// The URL of the store.
        store: String,
        /// What its members said.
        reason: String,
        /// What may help, for a person.
        remedy: Option<String>,
        /// What it means to the store itself.
        #[doc(hidden)]
        fault: Fault,
    },
    /// The server of a store may have lost what it had confirmed, and nothing is taken meanwhile.
    #[error("the server of `{store}` may have lost holds: nothing is taken for {} s", left.as_secs_f64().ceil())]
    StoreChanged {
        /// The URL of the store.
        store: String,
        /// For how long.
        left: Duration,
    },
    /// The URL cannot be that of a store.
    #[error("invalid store `{url}`: {reason}")]
    InvalidStore {
        /// As given, without a password.
        url: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Locks of several machines do not support what was asked for.
    #[error("{engine} store: {what}")]
    NotOnServer {
        /// What keeps the store, for a person.
        engine: &'static str,
        /// What is missing or not supported.
        what: &'static str,
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

/// What an [`Error::Remote`] means to the store itself.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing that it could mend.
    Final,
    /// What was to be read has been removed meanwhile.
    Compacted,
    /// The answer was larger than any that is read.
    TooLarge,
    /// There is no such lease, any more.
    NoLease,
    /// The token has ended.
    Token,
    /// Nothing can be written until a person has freed space.
    NoSpace,
}

impl Error {
    /// The user that a file belongs to, if permission to change it was missing and it is another user's.
    pub fn file_owner(&self) -> Option<String> {
        match self {
            Self::Io { path, source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                other_owner(path)
            }
            _ => None,
        }
    }
}

/// The result of an operation on locks.
pub type Result<T, E = Error> = std::result::Result<T, E>;

fn guard_holder_text(pid: Option<u32>, waited: Duration) -> String {
    let seconds = waited.as_secs();
    match pid {
        Some(pid) => format!("process {pid} has locked it for more than {seconds} s"),
        None => format!("others have kept it busy for more than {seconds} s"),
    }
}

/// The text of a cause without Rust's "(os error 13)" and the full stop of Windows, with a small first
/// letter, except in "I/O error" and the like.
pub fn cause_text(cause: &(dyn std::error::Error + 'static)) -> String {
    let text = cause.to_string();
    match text.rfind(" (os error ") {
        Some(end) => begun_small(text.get(..end).unwrap_or(&text).trim_end_matches('.')),
        None => text,
    }
}

/// The text with a small first letter, unless its first word is an abbreviation.
pub(crate) fn begun_small(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next();
    let rest = chars.as_str();
    let word = rest.split(' ').next().unwrap_or_default();
    match first {
        Some(first) if !word.contains(char::is_uppercase) => {
            first.to_lowercase().chain(rest.chars()).collect()
        }
        _ => text.to_owned(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cause_begins_with_a_small_letter_unless_it_is_an_abbreviation() {
        for (cause, expected) in [
            (
                "No such file or directory (os error 2)",
                "no such file or directory",
            ),
            // EIO, as musl has it.
            ("I/O error (os error 5)", "I/O error"),
            ("RPC struct is bad (os error 72)", "RPC struct is bad"),
            ("A device is missing. (os error 9)", "a device is missing"),
            ("Is a directory", "Is a directory"),
            (" (os error 1)", ""),
        ] {
            assert_eq!(cause_text(&std::io::Error::other(cause)), expected);
        }
    }
}
