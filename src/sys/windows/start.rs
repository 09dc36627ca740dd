//! Starting a command for the command-line tool, which wants to know when it ends.

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Child, Command};

use windows_sys::Win32::System::Threading::{INFINITE, WaitForSingleObject};

use super::process::{open, raw};
use super::signal::{SIGCHLD, SignalMask, add};
use super::spawn::spawn;
use crate::identity::Pid;
use crate::record::CommandSlot;

pub use crate::sys::program::{Program, Started};

/// [`spawn`], and the queue of signals is told of its end. There are no signals to block.
pub(in crate::sys) fn start(
    command: &mut Command,
    record: &File,
    path: &Path,
    slot: Option<CommandSlot>,
    inherit: bool,
    _mask: SignalMask,
) -> io::Result<Child> {
    let child = spawn(command, record, path, slot, inherit)?;
    tell_of_the_end(child.id());
    Ok(child)
}

/// Puts the end of a process into the queue of signals. Without it the supervisor looks each second.
fn tell_of_the_end(pid: u32) {
    let Some(process) = Pid::new(pid).and_then(|pid| open(pid).ok()) else {
        return;
    };
    let _ = std::thread::Builder::new().spawn(move || {
        // SAFETY: the handle is open, and may be waited on.
        unsafe { WaitForSingleObject(raw(&process), INFINITE) };
        add(SIGCHLD);
    });
}
