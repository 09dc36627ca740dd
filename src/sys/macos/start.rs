//! Starting a command by std's `Command`. That copies the calling process (fork(2)): there is no
//! clone(2) here whose child could borrow its memory and do something before it executes. std
//! resets SIGPIPE, which Rust's runtime ignores, to its default for the command.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use crate::sys::Recording;
use crate::sys::signal::{SignalMask, without_signals};
use crate::sys::spawn::spawn;

pub use crate::sys::program::{Program, Started};

/// [`spawn`], with the signals of `mask` blocked in the child.
pub(in crate::sys) fn start(
    command: &mut Command,
    recording: Recording<'_>,
    mask: SignalMask,
) -> io::Result<Child> {
    // Pending signals are delivered then, and are for the command: the handler of a queue sees that
    // it runs in a child, and exec resets caught signals to their defaults.
    // SAFETY: pthread_sigmask(2) is async-signal-safe (sigaction(2)), and nothing else is called.
    unsafe { command.pre_exec(move || mask.set()) };
    without_signals(|| spawn(command, recording))?
}
