//! Starting a command for the command-line tool, which wants to know when it ends.

use std::io;
use std::os::windows::io::AsRawHandle;
use std::process::{Child, Command};

use windows_sys::Win32::System::Threading::{INFINITE, WaitForSingleObject};

use super::process::open;
use super::signal::{SIGCHLD, SignalMask, add};
use super::spawn::spawn_in_job;
use crate::identity::Pid;
use crate::sys::Recording;

pub use crate::sys::program::{Program, Started};

/// [`spawn`](super::spawn::spawn), in a job with all that the command starts, and the end of the command
/// is queued as a signal. There are no signals to block.
pub(in crate::sys) fn start(
    command: &mut Command,
    recording: Recording<'_>,
    _mask: SignalMask,
) -> io::Result<Child> {
    let (child, job) = spawn_in_job(command, recording, true)?;
    if let Some(job) = job {
        job.keep();
    }
    queue_exit_of(child.id());
    Ok(child)
}

/// Puts the end of a process into the queue of signals. If that fails, the supervisor still checks
/// each second.
fn queue_exit_of(pid: u32) {
    let Some(process) = Pid::new(pid).and_then(|pid| open(pid).ok()) else {
        return;
    };
    let _ = std::thread::Builder::new().spawn(move || {
        // SAFETY: the handle is open, and may be waited on.
        unsafe { WaitForSingleObject(process.as_raw_handle(), INFINITE) };
        add(SIGCHLD);
    });
}
