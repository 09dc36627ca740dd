//! The platform layer: all that the library needs from an operating system, and the only code that
//! differs between systems.
//!
//! | part | contract |
//! |---|---|
//! | `directory` | an open directory: an exclusive advisory lock on it, files that appear complete, exchange of two names, and whether the filesystem supports that reliably |
//! | `process` | the identity of a process (PID, start, boot, PID namespace) and whether it is alive; uncertainty is never reported as death |
//! | `signal` | stop and termination signals: blocked for a moment, queued, or used to end a wait |
//! | `directory::lockers` | who holds the locks of flock(2) or fcntl(2) on a file, where the system tells |
//! | `spawn`, `start` | a command that is on record before it runs, and that inherits the lock; `program`: by std, for all but Linux |
//! | `wait` | sleep until a kernel lock is released, a process exits or a file changes |
//! | `work` | the processes of a hold: all that its command has started, to be signaled and waited for |
//! | `memory`, `stdio`, `keys`, `startup` | for the command-line tool: memory it can release, the stdio it was started with, keys of a terminal, and its fast start |
//!
//! Code for all Unixes is in `unix`. Each system has a module of its own for the rest, with the
//! same names; what only Linux has is answered for the others by `not_linux`. All `unsafe` code of the
//! project is below this module, but for the C function `main` of the static program.

#![allow(
    clippy::cast_lossless,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::needless_pass_by_ref_mut,
    clippy::trivially_copy_pass_by_ref,
    clippy::unnecessary_cast,
    clippy::unnecessary_wraps,
    clippy::unused_self,
    clippy::useless_conversion,
    reason = "types and signatures are those that some system needs"
)]

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::PathBuf;
use std::time::SystemTime;

use self::directory::FileExt as _;
use crate::identity::{Pid, ProcessId};

#[cfg(not(all(feature = "cluster", target_os = "linux")))]
#[path = "no_keeper.rs"]
pub(crate) mod keeper;
#[cfg(not(target_os = "linux"))]
pub(crate) mod not_linux;
#[cfg(not(target_os = "linux"))]
mod program;
mod recording;
#[cfg(target_os = "linux")]
#[path = "linux/mod.rs"]
mod system;
#[cfg(target_os = "macos")]
#[path = "macos/mod.rs"]
mod system;
#[cfg(windows)]
#[path = "windows/mod.rs"]
mod system;
pub(crate) mod temporary;
#[cfg(unix)]
mod unix;
pub(crate) mod work;

#[cfg(all(feature = "cli", not(target_os = "linux")))]
pub(crate) use not_linux as memory;
pub(crate) use recording::{Note, Recording, why_not_recorded};
#[cfg(all(feature = "cluster", target_os = "linux"))]
pub(crate) use system::keeper;
#[cfg(all(feature = "cli", windows))]
pub(crate) use system::stdio;
#[cfg(windows)]
pub(crate) use system::{directory, signal, spawn};
#[cfg(all(feature = "cli", target_os = "linux"))]
pub(crate) use system::{memory, startup};
pub(crate) use system::{process, start, wait};
#[cfg(unix)]
pub(crate) use unix::{directory, signal, spawn};
#[cfg(all(feature = "cli", unix))]
pub(crate) use unix::{keys, stdio};

#[cfg(not(any(target_os = "linux", target_os = "macos", windows)))]
compile_error!(
    "onehold runs on Linux, macOS and Windows: another system needs its own module beside `sys/linux`"
);

/// How a command has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HowEnded {
    /// By itself.
    Exited,
    /// By a signal.
    Killed,
}

/// By which call programs lock a file whose kernel lock is the lock. `impl` is that of each system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KernelLockCall {
    /// flock(2), as flock(1) does.
    Flock,
    /// fcntl(2), the whole file.
    Fcntl,
}

/// Whether there are locks of flock(2), which flock(1) takes.
pub(crate) const HAS_FLOCK: bool = cfg!(unix);

/// Whether a command inherits the lock of its wrapper. On Windows a lock is of the process that took it
/// (LockFileEx).
pub(crate) const COMMANDS_INHERIT_LOCKS: bool = cfg!(unix);

/// Whether a file name can refer to a device, as `aux.lock` does.
pub(crate) const HAS_DEVICES: bool = cfg!(windows);

/// Whether names that differ in case only lead to one file: on APFS and HFS+, unless they were made to
/// be case-sensitive. There such names are two locks, and wait for each other's waiters.
pub(crate) const FILES_IGNORE_CASE: bool = cfg!(any(target_os = "macos", windows));

/// What is said of a symbolic link in the place of a file.
pub(crate) const SYMLINK: &str = "a symbolic link";

/// Starts a thread that signals are not for.
#[cfg(feature = "cluster")]
pub(crate) fn start_thread(
    name: &str,
    stack_size: usize,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    let thread = thread.stack_size(stack_size);
    signal::without_signals(|| thread.spawn(run))?.map(drop)
}

/// Locks a mutex whose content is valid at any time, also if a thread has panicked that had it locked.
pub(crate) fn locked<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The system's error for a missing name: ENOENT and ERROR_FILE_NOT_FOUND are one number.
pub(crate) fn not_found() -> io::Error {
    io::Error::from_raw_os_error(2)
}

/// Device and inode: identify a file only while it is open (ext4 reuses the number of a removed
/// file for the next one).
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileId {
    /// 0: unknown, which matches every device.
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl PartialEq for FileId {
    fn eq(&self, other: &Self) -> bool {
        let one_device = self.device == other.device || self.device == 0 || other.device == 0;
        one_device && self.inode == other.inode
    }
}

/// Metadata of a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FileFacts {
    pub(crate) id: FileId,
    pub(crate) is_regular: bool,
    pub(crate) size: u64,
    pub(crate) modified: SystemTime,
    /// The number of its user, where users have numbers.
    pub(crate) owner: u32,
    /// How many names it has.
    pub(crate) links: u64,
}

/// The file with a name, opened.
pub(crate) enum Found {
    Missing,
    /// Not a regular file, with a description like "a directory".
    Other(&'static str),
    File(File, FileFacts),
}

impl Found {
    pub(crate) fn file(self) -> Option<File> {
        match self {
            Self::File(file, _) => Some(file),
            Self::Missing | Self::Other(_) => None,
        }
    }
}

/// Who holds the locks of flock(2) on a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lockers {
    /// There is such a lock.
    pub(crate) is_locked: bool,
    /// It is one of a writer (`LOCK_EX`). Readers share theirs.
    pub(crate) is_exclusive: bool,
    /// Without the calling process, and without those that cannot be seen from here.
    pub(crate) pids: Vec<Pid>,
    /// The system lists the locks of all processes, and the list was read at one moment.
    pub(crate) is_complete: bool,
}

/// The type of a directory entry (readdir(3), `d_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    RegularFile,
    OtherOrUnknown,
}

impl directory::Directory {
    /// All names in the directory, in no order, with the type of each.
    pub(crate) fn entries(&self) -> io::Result<Vec<(OsString, Kind)>> {
        self.read(|name, kind| Some((name.to_owned(), kind)))
    }

    /// All names in the directory, in no order.
    pub(crate) fn names(&self) -> io::Result<Vec<OsString>> {
        self.read(|name, _| Some(name.to_owned()))
    }

    /// Puts a new file with these bytes in place of what has the name, whatever that is. For what each user of the
    /// store may replace in turn: nothing that others have put there is written to.
    pub(crate) fn replace(&self, temporary: &OsStr, name: &OsStr, bytes: &[u8]) -> io::Result<()> {
        let file = self.create_common(temporary)?;
        let written = file.write_all_at(bytes, 0);
        let replaced = written.and_then(|()| self.rename(temporary, name));
        if replaced.is_err() {
            let _ = self.unlink(temporary);
        }
        replaced
    }
}

/// A signal taken from a [`SignalQueue`](signal::SignalQueue).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuedSignal {
    /// Its number (signal(7)).
    pub signal: i32,
    /// A process sent it with kill(2) or the like. Otherwise the kernel did: a terminal's Ctrl-C
    /// goes to every process of the foreground group already.
    pub from_process: bool,
    /// The number that was sent with it by sigqueue(3).
    pub value: Option<i32>,
    /// A number was sent with it, and its sender was known, but the kernel had no room for either: `ulimit -i`.
    pub has_lost_value: bool,
}

impl QueuedSignal {
    /// Whether it is SIGCHLD: a child has ended or stopped.
    pub fn is_of_a_child(self) -> bool {
        self.signal == signal::SIGCHLD
    }

    /// Whether it is SIGTERM, whose number POSIX fixes.
    pub(crate) fn is_term(self) -> bool {
        self.signal == 15
    }

    /// Whether it is SIGTSTP: [`stop`](signal::stop) does what was asked for.
    pub fn is_stop(self) -> bool {
        Some(self.signal) == signal::SIGTSTP
    }
}

/// Whether a process with a PID is alive, according to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessState {
    Gone,
    /// The start is in a unit of each system's own, and absent if it cannot be read.
    Alive {
        start: Option<u64>,
    },
    /// The kernel did not answer the question.
    Unknown,
}

impl Pid {
    /// The command line of its process, empty if the system does not show it. Can block: Linux reads it from the
    /// memory of that process.
    pub fn command_line(self) -> Vec<String> {
        process::command_line(self)
    }

    /// The working directory of its process. `None`: it may not be seen, as that of another user.
    pub fn working_directory(self) -> Option<PathBuf> {
        process::working_directory(self)
    }

    /// The name of the user of its process, or the number of one without a name. `None`: it cannot be seen, or
    /// the system does not tell.
    pub fn user(self) -> Option<String> {
        process::user_of(self).map(process::user_name)
    }

    /// Whether the caller may signal its process. On Windows that is found out when it does.
    pub fn may_be_signaled(self) -> bool {
        process::may_signal(self)
    }
}

impl ProcessId {
    /// The process that has a PID now.
    pub(crate) fn of(pid: Pid) -> Self {
        let start = process::start_ticks(pid);
        Self { pid, start }
    }

    /// Whether it is known to have ended.
    pub(crate) fn has_ended(self) -> bool {
        match process::presence_of(self) {
            ProcessState::Gone => true,
            ProcessState::Alive { start } => self.started_at_another_time(start),
            ProcessState::Unknown => false,
        }
    }
}

/// What a filesystem has room for; `None`: that is not known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Space {
    pub(crate) is_read_only: bool,
    pub(crate) free_bytes: Option<u64>,
    pub(crate) bytes: Option<u64>,
    pub(crate) free_files: Option<u64>,
}

/// Nothing, if there is nothing with that name.
pub(crate) fn existing<T>(result: Result<T, impl Into<io::Error>>) -> io::Result<Option<T>> {
    match result.map_err(Into::into) {
        Ok(existing) => Ok(Some(existing)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether there is no directory at a place.
pub(crate) fn is_not_a_directory(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Whether something was created; not if the name exists.
pub(crate) fn created(result: Result<(), impl Into<io::Error>>) -> io::Result<bool> {
    match result.map_err(Into::into) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// 64 random bits, from the source that std uses for its hash tables. A forked process has the keys of its parent,
/// but not its time.
pub(crate) fn random_u64() -> u64 {
    RandomState::new().hash_one(process::boottime())
}

/// FNV-1a with 64 bits. Unlike std's hasher it is the same in every version of this program.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |digest, byte| {
        (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// A digest of an identity that names a machine and should not be published (machine-id(5)): 16 hex
/// digits of FNV-1a with 64 bits, over a prefix of our own and the identity. `None` for what does
/// not name a machine.
fn digest_of_machine(id: &str) -> Option<String> {
    // machine-id(5): the file may be empty or say so while a system is set up.
    let id = id.trim();
    if id.is_empty() || id == "uninitialized" {
        return None;
    }
    Some(format!(
        "{:016x}",
        digest(format!("onehold{id}").as_bytes())
    ))
}

/// The name of this host; `None` if it is not known.
pub(crate) fn hostname() -> Option<String> {
    hostname::get()
        .ok()
        .map(|name| name.to_string_lossy().into_owned())
        .filter(|name| !name.is_empty())
}

/// The parent of a process, and how the process was started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessParent {
    pub(crate) parent: Option<Pid>,
    /// It was forked and has not executed a program since, like a [subshell](process::is_subshell), or a worker.
    pub(crate) only_forked: bool,
    /// Its start, in the same unit as [`ProcessState::Alive`].
    pub(crate) start: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_of_machine_is_16_digits_and_never_changes() {
        let digest = digest_of_machine("0123456789abcdef0123456789abcdef\n");
        assert_eq!(digest.as_deref(), Some("b5679772845eff46"));
        assert_eq!(digest_of_machine("\n"), None);
        assert_eq!(digest_of_machine("uninitialized\n"), None);
    }

    #[test]
    fn random_bits_differ() {
        let mut made: Vec<u64> = (0..10_000).map(|_| random_u64()).collect();
        made.sort_unstable();
        made.dedup();
        assert_eq!(made.len(), 10_000);
    }

    #[test]
    fn machine_id_is_stable() {
        let id = process::machine_id();
        assert_eq!(id, process::machine_id());
        let is_digest =
            |id: &String| id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert!(id.is_none_or(|id| is_digest(&id)));
    }
}
