//! Starting a command that inherits the lock and is on record before it runs.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
#[cfg(feature = "cli")]
use std::process::ExitStatus;
use std::process::{Child, Command};

use rustix::fs::fstat;
use rustix::io::{FdFlags, fcntl_setfd};

use super::file::{id_at, id_of};
use crate::sys::recording::{Note, Recording, ensure_named, not_recorded};
use crate::sys::signal::{restore_callers_dispositions, restore_callers_dispositions_before_exec};

/// What the child does between fork and exec. Everything is laid out before, because only
/// async-signal-safe calls are allowed there (signal-safety(7)).
pub(in crate::sys) struct BeforeExec {
    pub(in crate::sys) record: RawFd,
    paths: Vec<CString>,
    notes: Vec<Note>,
    /// For what is there before.
    room: Vec<u8>,
    inherit: bool,
}

/// Only an errno passes from a child to its parent, so this travels as one that execve(2) does not know.
pub(crate) const HOLD_LOST: i32 = libc::ESTALE;

/// Starts `command`, whose child puts itself on record.
pub(crate) fn spawn(command: &mut Command, recording: Recording<'_>) -> io::Result<Child> {
    let mut before = BeforeExec::new(recording)?;
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
    let error = with_callers_dispositions(command).exec();
    Err(error)
}

/// Nothing to do: a code is a byte (wait(2)).
#[cfg(feature = "cli")]
pub fn pass_on_wide_code(_status: ExitStatus) {}

/// Replaces the calling process by `command`, which keeps `record` open. Returns only on failure.
pub(crate) fn exec_keeping(command: &mut Command, record: &File) -> io::Error {
    if let Err(error) = fcntl_setfd(record, FdFlags::empty()) {
        return error.into();
    }
    let error = with_callers_dispositions(command).exec();
    let _ = fcntl_setfd(record, FdFlags::CLOEXEC);
    error
}

/// After std has set SIGPIPE to its default.
fn with_callers_dispositions(command: &mut Command) -> &mut Command {
    let restore = || {
        restore_callers_dispositions_before_exec();
        Ok(())
    };
    // SAFETY: async-signal-safe calls only.
    unsafe { command.pre_exec(restore) }
}

impl BeforeExec {
    pub(in crate::sys) fn new(recording: Recording<'_>) -> io::Result<Self> {
        let paths = recording.paths.iter();
        let longest = recording.notes.iter().map(|note| note.expected.len()).max();
        Ok(Self {
            record: recording.record.as_raw_fd(),
            paths: paths
                .map(|path| CString::new(path.as_os_str().as_bytes()))
                .collect::<Result<_, _>>()?,
            room: vec![0; longest.unwrap_or(0)],
            notes: recording.notes,
            inherit: recording.inherit,
        })
    }

    pub(in crate::sys) fn run(&mut self) -> io::Result<()> {
        // SAFETY: the parent keeps it open until exec has happened or failed, and we are a fork of
        // it. It is not closed here.
        let record = &*ManuallyDrop::new(unsafe { File::from_raw_fd(self.record) });
        for note in &mut self.notes {
            note.write(record, &mut self.room, std::process::id(), None)?;
        }
        // The lock may have been broken before the PID was on record: `break` removes the name
        // first. Until here a dead wrapper is not taken for a dead hold, because this child
        // holds the kernel lock.
        let own = fstat(record).map_err(|errno| not_recorded(&errno.into()))?;
        for path in &self.paths {
            let named = id_at(&**path);
            ensure_named(named.map(|named| named == Some(id_of(&own))))?;
        }
        if self.inherit {
            fcntl_setfd(record, FdFlags::empty())?;
        }
        restore_callers_dispositions();
        Ok(())
    }
}
