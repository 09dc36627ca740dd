//! Starting a command by std's `Command`. That copies the calling process (fork(2)): there is no
//! clone(2) here whose child could borrow its memory and do something before it executes. std gives
//! the command the default of SIGPIPE back, which Rust's runtime ignores.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};

use crate::record::CommandSlot;
use crate::sys::signal::SignalMask;
use crate::sys::spawn::spawn;

pub use crate::sys::program::{Program, Started};

/// [`spawn`], with the signals of `mask` blocked in the child.
pub(in crate::sys) fn start(
    command: &mut Command,
    record: &File,
    path: &Path,
    slot: Option<CommandSlot>,
    inherit: bool,
    mask: SignalMask,
) -> io::Result<Child> {
    // What is waiting comes then, and is for the command: the handler of a queue sees that it runs
    // in a child, and exec gives what is caught its default back.
    // SAFETY: pthread_sigmask(2) is async-signal-safe (sigaction(2)), and nothing else is called.
    unsafe { command.pre_exec(move || mask.set()) };
    let before = SignalMask::block_all()?;
    let child = spawn(command, record, path, slot, inherit);
    // The command has been started, whatever becomes of this: to fail now would give its lock away.
    let _ = before.restore();
    child
}
