//! Starting a command that inherits the lock and is on record before it runs.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
#[cfg(feature = "cli")]
use std::process::ExitStatus;

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

/// Why a child did not run its command. Only an errno passes from the child to its parent, so
/// failures of our own travel as errnos that execve(2) does not know.
pub(crate) const NOT_RECORDED: i32 = libc::ENOTRECOVERABLE;
pub(crate) const HOLD_LOST: i32 = libc::ESTALE;

/// Makes `command`'s child write its pid into `slot` of the record, if that has one, make sure that
/// the record is still the one that `path`, which is absolute, leads to, and keep the descriptor if
/// `inherit`. The caller keeps `record` open until the child has been started.
pub(crate) fn record_before_exec(
    command: &mut Command,
    record: &File,
    path: &Path,
    slot: Option<CommandSlot>,
    inherit: bool,
) -> io::Result<()> {
    let mut before = BeforeExec::new(record, path, slot, inherit)?;
    // SAFETY: the closure allocates nothing and makes only system calls.
    unsafe { command.pre_exec(move || before.run()) };
    Ok(())
}

/// Replaces the calling process by `command`. Returns only on failure.
///
/// # Errors
/// Those of execvp(3).
#[cfg(feature = "cli")]
pub fn replace_process(command: &mut Command) -> io::Result<ExitStatus> {
    Err(command.exec())
}

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
            if read < self.stands.len() || !is_slot(slot, &self.stands) {
                return Err(io::Error::from_raw_os_error(HOLD_LOST));
            }
            fill(slot, std::process::id());
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

/// Whether this is the slot, blank or filled by an earlier command.
fn is_slot(slot: &CommandSlot, stands: &[u8]) -> bool {
    let blank = stands.iter().all(u8::is_ascii_whitespace);
    let begins = slot.slot.bytes.get(..slot.digits_at);
    blank || begins.is_some_and(|begins| stands.starts_with(begins))
}

/// Puts the pid of a command into its slot, without allocating.
fn fill(command: &mut CommandSlot, pid: u32) {
    let mut digits = [0_u8; 10];
    let mut count = 0;
    let mut rest = pid;
    for digit in &mut digits {
        *digit = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
        count += 1;
        if rest == 0 {
            break;
        }
    }
    let number = digits.iter().take(count).rev();
    let text = number.chain(command.after);
    let places = command.slot.bytes.iter_mut().skip(command.digits_at);
    for (place, byte) in places.zip(text) {
        *place = *byte;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::native_command_slot;

    #[test]
    fn the_line_written_without_allocating_is_the_one_a_reader_expects() {
        for pid in [1, 10, 4_194_304, i32::MAX.unsigned_abs()] {
            let mut line = native_command_slot(1000);
            fill(&mut line, pid);
            let text = std::str::from_utf8(&line.slot.bytes).expect("ASCII");
            let value: serde_json::Value = serde_json::from_str(text).expect("JSON");
            assert_eq!(value, serde_json::json!({ "command_pid": pid }));
            assert!(text.ends_with(" \n"));
        }
    }
}
