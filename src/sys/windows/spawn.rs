//! Starting a command that is on record before it runs.

use std::fs::File;
use std::io;
use std::os::windows::io::AsRawHandle;
use std::os::windows::process::CommandExt;
use std::process::{Child, Command, ExitStatus};

use windows_sys::Win32::Foundation::{HANDLE, NTSTATUS};
use windows_sys::Win32::System::Threading::CREATE_SUSPENDED;
#[cfg(feature = "cli")]
use windows_sys::Win32::System::Threading::ExitProcess;

use super::file::path_names_file;
use super::process::start_ticks;
use super::work::Job;
use crate::identity::Pid;
use crate::sys::recording::{Recording, ensure_named, not_recorded};

/// Why a command was not run. No error of the system's has these numbers.
pub(crate) const HOLD_LOST: i32 = 0x2001_0002;

#[link(name = "ntdll")]
unsafe extern "system" {
    // The only way to a process that was created suspended through std, which keeps the handle of
    // its thread to itself; as old as Windows NT, and in no header.
    fn NtResumeProcess(process: HANDLE) -> NTSTATUS;
}

/// Starts `command` so that its PID and start are on record before it runs. The lock cannot be passed on: should this
/// process be killed, the command keeps the hold by being on record.
pub(crate) fn spawn(command: &mut Command, recording: Recording<'_>) -> io::Result<Child> {
    // What a command starts is its own.
    let (child, job) = spawn_in_job(command, recording, false)?;
    if let Some(job) = job {
        job.let_go();
    }
    Ok(child)
}

/// As [`spawn`], and returns the job of the command: if this process is killed before the command runs, the command
/// must not stay suspended for good, with its PID on record. No job: the command is in another one that does not
/// allow that.
pub(super) fn spawn_in_job(
    command: &mut Command,
    recording: Recording<'_>,
    with_descendants: bool,
) -> io::Result<(Child, Option<Job>)> {
    command.creation_flags(CREATE_SUSPENDED);
    let mut child = command.spawn()?;
    let job = Job::that_ends_with_us(with_descendants);
    let job = job.filter(|job| job.take(&child).is_some());
    if let Err(error) = put_on_record(&child, recording) {
        let _ = child.kill();
        let _ = child.wait();
        return Err(error);
    }
    Ok((child, job))
}

fn put_on_record(child: &Child, recording: Recording<'_>) -> io::Result<()> {
    let record = recording.record;
    let start = Pid::new(child.id()).and_then(start_ticks);
    for mut note in recording.notes {
        let mut room = vec![0; note.expected.len()];
        note.write(record, &mut room, child.id(), start)?;
    }
    // The lock may have been broken before the PID was on record.
    for path in recording.paths {
        ensure_named(path_names_file(path, record))?;
    }
    // SAFETY: the handle of our own child is open.
    if unsafe { NtResumeProcess(child.as_raw_handle()) } < 0 {
        return Err(not_recorded(&io::Error::other("not resumed")));
    }
    Ok(())
}

/// A process cannot be replaced here: runs `command` to its end.
///
/// # Errors
/// It cannot be started.
#[cfg(feature = "cli")]
pub fn replace_process(command: &mut Command) -> io::Result<ExitStatus> {
    command.status()
}

/// Ends the calling process with the code of a command, if that is more than a byte, which is all that
/// Rust's runtime passes on.
#[cfg(feature = "cli")]
pub fn pass_on_wide_code(status: ExitStatus) {
    if let Some(code) = status.code()
        && u8::try_from(code).is_err()
    {
        // SAFETY: ends the process; nothing of ours has to be done before.
        unsafe { ExitProcess(code.cast_unsigned()) }
    }
}

/// A process cannot be replaced here, and so cannot keep a lock as another program.
pub(crate) fn exec_keeping(_command: &mut Command, _record: &File) -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        "a process cannot become another program on Windows",
    )
}
