//! What only Linux has, as other systems answer for it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::system::process::presence;
use super::system::wait::{pause, until_gone};
use super::system::work::Target;
use super::work::{Each, Listed, Look, Marks, select};
use super::{FileId, KernelLockCall, Lockers, ProcessState};
use crate::identity::{Pid, ProcessId};

/// The processes that hold a lock on an open file: the system does not tell.
pub(crate) fn lockers<T>(_file: &T, _by: KernelLockCall) -> Option<Lockers> {
    None
}

always! {
    /// The type of the filesystem that a directory is on: not asked for.
    pub(crate) type_of(_path: &Path) -> Option<String> = None;
    /// What the clock read at boot: not asked for.
    pub(crate) clock_at_boot() -> Option<DateTime<Utc>> = None;
    /// There are no mount namespaces.
    pub(crate) is_seen_by_few(_directory: &Path) -> bool = false;
    /// The PID namespace of the caller: there is one.
    pub(crate) pid_namespace() -> Option<u64> = Some(0);
    /// Whether a process is running that was started at a known time.
    pub(crate) presence_of(process: ProcessId) -> ProcessState = presence(process.pid);
    /// There are no PID namespaces.
    pub(crate) is_container(_pid_namespace: u64) -> bool = false;
    /// Not asked: to ask would change it.
    pub(crate) umask() -> Option<String> = None;
    /// The processes of other users are visible.
    pub(crate) shows_all() -> bool = true;
    /// There are no others.
    pub(crate) state_of_pid_namespace(_number: u64) -> Option<ProcessState> = None;
    /// The user of a process: not asked for.
    pub(crate) user_of(_pid: Pid) -> Option<u32> = None;
    /// Whether a process does nothing but wait for its only child: not known.
    pub(crate) waits_only_for(_parent: Pid, _child: Pid) -> bool = false;
    /// The working directory of a process: not asked for.
    pub(crate) working_directory(_pid: Pid) -> Option<PathBuf> = None;
    /// The least start of a process that was started at some time. Not known: the wall clock, which starts are
    /// counted by, may have been stepped since.
    pub(crate) least_start_after(_milliseconds: u64) -> Option<u64> = None;
    /// Nothing to do: macOS has no such option, and on Windows a job keeps the descendants together.
    ///
    /// # Errors
    /// None.
    pub adopt_orphans() -> io::Result<()> = Ok(());
    /// Not needed: the start shows which processes are older than the command, and those are not in a job.
    pub(crate) own_children() -> Vec<ProcessId> = Vec::new();
    /// Whether a process has these files open: the system is not asked, and numbers of files are stable.
    pub(crate) has_open(_process: ProcessId, _files: &[FileId]) -> bool = false;
    /// Whether a command still has the descriptor of the lock file that it inherited: those of another process
    /// are not listed.
    pub(crate) command_holds(_pid: u32, _record: &File) -> bool = true;
}

/// Calls `each` for every live process of the work that is found in the list of all. `is_marked` looks at one
/// process.
pub(crate) fn visit_list(
    list: io::Result<Vec<Listed>>,
    marks: &mut Marks,
    is_marked: impl FnMut(Pid) -> bool,
    each: &mut Each<'_>,
) -> Look {
    let list = match list {
        Ok(list) => list,
        Err(error) => return Look::Failed(error),
    };
    let mut look = Look::Nothing;
    for Listed { process, .. } in select(&list, marks, is_marked) {
        marks.known.insert(process);
        if let Some(target) = Target::find(process) {
            look = Look::Left;
            each(&target);
        }
    }
    look
}

/// Waits until one of these processes has ended, for at most `timeout`.
pub(crate) fn wait_for_any(processes: &[ProcessId], timeout: Duration) {
    match processes {
        [process] if Target::find(*process).is_some() => {
            let _ = until_gone(process.pid, timeout);
        }
        _ => {
            let _ = pause(timeout.min(Duration::from_millis(20)));
        }
    }
}

/// Does nothing. On macOS, madvise(2) does not guarantee that dropped pages of a program are read from its
/// file again, and the kernel drops such pages itself when memory is short. Windows trims the working set of
/// a sleeping process by itself.
#[cfg(feature = "cli")]
pub fn drop_code_pages() {}
