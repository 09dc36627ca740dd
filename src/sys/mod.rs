//! What the library asks of an operating system, and the only place that differs between systems.
//!
//! | part | contract |
//! |---|---|
//! | `directory` | a directory kept open: exclusive advisory lock on it, files that appear whole, exchange of two names, whether the filesystem can be trusted with all that |
//! | `process` | who a process is (pid, start, boot, pid namespace) and whether it is still there; doubt is never reported as death |
//! | `signal` | stop and termination signals held back for a moment, queued, or used to cut a wait short |
//! | `spawn`, `start` | a command that is on record before it runs, and that keeps the lock; `program`: by std, for all but Linux |
//! | `wait` | sleep until a kernel lock is given up, a process ends or a file changes |
//! | `memory`, `stdio` | for the command-line tool: what it can do without, what it was started with |
//!
//! What is the same on all Unixes is in `unix`, what is not in a module for each system, under the
//! same names. All `unsafe` code of the project is below this module.

use std::fs::File;
use std::time::SystemTime;

use crate::identity::Pid;

#[cfg(feature = "cli")]
pub(crate) mod arena;
#[cfg(not(target_os = "linux"))]
mod program;
#[cfg(target_os = "linux")]
#[path = "linux/mod.rs"]
mod system;
#[cfg(target_os = "macos")]
#[path = "macos/mod.rs"]
mod system;
#[cfg(windows)]
#[path = "windows/mod.rs"]
mod system;
#[cfg(unix)]
mod unix;

#[cfg(windows)]
pub(crate) use system::{directory, signal, spawn};
#[cfg(feature = "cli")]
pub(crate) use system::{memory, stdio};
pub(crate) use system::{process, start, wait};
#[cfg(unix)]
pub(crate) use unix::{directory, signal, spawn};

#[cfg(not(any(target_os = "linux", target_os = "macos", windows)))]
compile_error!(
    "onehold runs on Linux, macOS and Windows: another system needs its own module beside `sys/linux`"
);

/// Device and inode: names a file for as long as it is kept open, and no longer (ext4 gives the
/// number of a removed file to the next one).
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileId {
    /// 0: not known, which is no difference.
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl PartialEq for FileId {
    fn eq(&self, other: &Self) -> bool {
        let one_device = self.device == other.device || self.device == 0 || other.device == 0;
        one_device && self.inode == other.inode
    }
}

/// What a file looks like from outside.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FileFacts {
    pub(crate) id: FileId,
    pub(crate) is_regular: bool,
    pub(crate) size: u64,
    pub(crate) modified: SystemTime,
}

/// What stands under a name.
pub(crate) enum Found {
    Missing,
    /// Something that is no regular file, and what it is.
    Other(&'static str),
    File(File, FileFacts),
}

/// What a directory says of an entry (readdir(3), `d_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    RegularFile,
    OtherOrUnknown,
}

/// What a filesystem can be trusted with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Filesystem {
    /// Kernel locks on it are seen by everyone who can open its files.
    pub(crate) shares_kernel_locks: bool,
}

/// A signal taken from a [`SignalQueue`](crate::signal::SignalQueue).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its number (signal(7)).
    pub signal: i32,
    /// A process sent it with kill(2) or the like. Otherwise the kernel did: a terminal's Ctrl-C
    /// goes to every process of the foreground group already.
    pub from_process: bool,
}

impl Received {
    /// Whether it tells of a child that has ended or stopped, and of nothing else.
    #[must_use]
    pub fn is_of_a_child(self) -> bool {
        self.signal == signal::SIGCHLD
    }
}

/// What the kernel says about a pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    Gone,
    /// There, with its start where that can be told, in a unit of the system's own.
    Alive {
        start: Option<u64>,
    },
    /// The question could not be asked.
    Unknown,
}

/// Where a process stands among others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kinship {
    pub(crate) parent: Option<Pid>,
    pub(crate) group: u32,
    pub(crate) session: u32,
}
