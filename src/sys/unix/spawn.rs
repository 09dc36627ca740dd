//! Starting a command that inherits the lock and is on record before it runs.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
#[cfg(feature = "cli")]
use std::process::ExitStatus;
use std::process::{Child, Command};

use rustix::fs::{AtFlags, CWD, fstat, statat};
use rustix::io::{Errno, FdFlags, fcntl_setfd, pread, pwrite};

use crate::record::CommandSlot;

/// What the child does between fork and exec. Everything is laid out before, because only
/// async-signal-safe calls are allowed there (signal-safety(7)).
pub(in crate::sys) struct BeforeExec {
    record: RawFd,
    path: std::ffi::CString,
    slot: Option<CommandSlot>,
    /// Room for what stands in the slot.
    stands: Vec<u8>,
    inherit: bool,
}

/// A command inherits the lock of its wrapper.
pub(crate) const COMMANDS_INHERIT_LOCKS: bool = true;

/// Why a child did not run its command. Only an errno passes from the child to its parent, so
/// failures of our own travel as errnos that execve(2) does not know.
pub(crate) const NOT_RECORDED: i32 = libc::ENOTRECOVERABLE;
pub(crate) const HOLD_LOST: i32 = libc::ESTALE;

/// Starts `command`, whose child writes its pid into `slot` of the record, if that has one, makes sure
/// that the record is still the one that `path`, which is absolute, leads to, and keeps the descriptor
/// if `inherit`.
pub(crate) fn spawn(
    command: &mut Command,
    record: &File,
    path: &Path,
    slot: Option<CommandSlot>,
    inherit: bool,
) -> io::Result<Child> {
    let mut before = BeforeExec::new(record, path, slot, inherit)?;
    // SAFETY: the closure allocates nothing and makes only system calls.
    unsafe { command.pre_exec(move || before.run()) };
    command.spawn()
}

/// Replaces the calling process by `command`. Returns only on failure.
///
/// # Errors
/// Those of execvp(3).
#[cfg(feature = "cli")]
pub fn replace_process(command: &mut Command) -> io::Result<ExitStatus> {
    Err(command.exec())
}

/// Nothing to do: a code is a byte (wait(2)).
#[cfg(feature = "cli")]
pub fn pass_on_wide_code(_status: ExitStatus) {}

/// Replaces the calling process by `command`, which keeps `record` open. Returns only on failure.
pub(crate) fn exec_keeping(command: &mut Command, record: &File) -> io::Error {
    let before = FdFlags::CLOEXEC;
    if let Err(error) = fcntl_setfd(record, FdFlags::empty()) {
        return error.into();
    }
    let error = command.exec();
    let _ = fcntl_setfd(record, before);
    error
}

impl BeforeExec {
    pub(in crate::sys) fn new(
        record: &File,
        path: &Path,
        slot: Option<CommandSlot>,
        inherit: bool,
    ) -> io::Result<Self> {
        Ok(Self {
            record: record.as_raw_fd(),
            path: std::ffi::CString::new(path.as_os_str().as_bytes())?,
            stands: slot
                .as_ref()
                .map_or_else(Vec::new, |slot| vec![0; slot.slot.bytes.len()]),
            slot,
            inherit,
        })
    }

    pub(in crate::sys) fn run(&mut self) -> io::Result<()> {
        // SAFETY: the parent keeps it open until exec has happened or failed, and we are a fork of
        // it.
        let record = unsafe { BorrowedFd::borrow_raw(self.record) };
        if let Some(slot) = &mut self.slot {
            // Another program may have rewritten the file in place, which keeps its inode.
            let read = pread(record, self.stands.as_mut_slice(), slot.slot.at)?;
            if read < self.stands.len() || !slot.may_replace(&self.stands) {
                return Err(io::Error::from_raw_os_error(HOLD_LOST));
            }
            slot.fill(std::process::id(), None);
            let bytes = slot.slot.bytes.as_slice();
            match pwrite(record, bytes, slot.slot.at) {
                Ok(written) if written == bytes.len() => {}
                _ => return Err(io::Error::from_raw_os_error(NOT_RECORDED)),
            }
        }
        // If our wrapper was killed meanwhile, somebody may have judged the hold dead before this
        // line was there. Whoever takes a record over reads it again after exchanging it: either
        // he saw the line and gave the name back, or we see here that the name is gone.
        let lost = match (
            fstat(record),
            statat(CWD, &*self.path, AtFlags::SYMLINK_NOFOLLOW),
        ) {
            (Ok(ours), Ok(named)) => ours.st_ino != named.st_ino || ours.st_dev != named.st_dev,
            (Ok(_), Err(Errno::NOENT | Errno::NOTDIR)) => true,
            _ => return Err(io::Error::from_raw_os_error(NOT_RECORDED)),
        };
        if lost {
            return Err(io::Error::from_raw_os_error(HOLD_LOST));
        }
        if self.inherit {
            fcntl_setfd(record, FdFlags::empty())?;
        }
        Ok(())
    }
}
