//! Signals on Windows: the console's Ctrl-C and Ctrl-Break, and the end of a child.
//!
//! Every process of a console gets them. A supervisor has to survive them, and must not forward
//! them.

use std::collections::VecDeque;
use std::io;
use std::os::windows::io::AsHandle;
use std::process::ExitStatus;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use windows_sys::Win32::System::Console::{
    CTRL_BREAK_EVENT, CTRL_C_EVENT, CTRL_CLOSE_EVENT, CTRL_SHUTDOWN_EVENT, SetConsoleCtrlHandler,
};
use windows_sys::Win32::System::Threading::ExitProcess;
use windows_sys::core::BOOL;

use super::checked;
use super::process::terminate;
use crate::sys::program::Started;
use crate::sys::{QueuedSignal, locked};

// The numbers that other systems have for these.
const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGQUIT: i32 = 3;
pub(in crate::sys) const SIGCHLD: i32 = 17;
pub(in crate::sys) const SIGTSTP: Option<i32> = None;

/// The exit code of a program that Ctrl-C ended (STATUS_CONTROL_C_EXIT).
const CONTROL_C_EXIT: u32 = 0xC000_013A;

static QUEUE: Mutex<VecDeque<QueuedSignal>> = Mutex::new(VecDeque::new());
static QUEUED: Condvar = Condvar::new();

/// Does nothing: termination cannot be delayed here.
pub(crate) struct SignalBlock;

impl SignalBlock {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self)
    }
}

/// A set of blocked signals; here there are none.
#[derive(Clone, Copy, Debug)]
pub struct SignalMask;

/// Queued Ctrl-C and Ctrl-Break, and the end of a command.
#[derive(Debug)]
pub struct SignalQueue(());

impl SignalQueue {
    /// Begins to queue, for good.
    ///
    /// # Errors
    /// Those of SetConsoleCtrlHandler.
    pub fn open() -> io::Result<Self> {
        // SAFETY: the handler is a function of that kind, and stays.
        checked(unsafe { SetConsoleCtrlHandler(Some(on_control), 1) })?;
        Ok(Self(()))
    }

    /// Returns whether this process ignores a signal: none of those in the queue.
    pub fn is_ignored(&self, _signal: i32) -> bool {
        false
    }

    /// None.
    pub fn mask_before(&self) -> SignalMask {
        SignalMask
    }

    /// Whether Ctrl-C or Ctrl-Break is waiting in the queue. Takes none.
    pub fn is_ending(&self) -> bool {
        locked(&QUEUE)
            .iter()
            .any(|received| received.signal != SIGCHLD)
    }

    /// Takes the first of them out of the queue: for a supervisor that has not started its command
    /// yet, and so is meant itself.
    #[must_use]
    pub fn take_ending(&self) -> Option<QueuedSignal> {
        let mut queue = locked(&QUEUE);
        let at = queue
            .iter()
            .position(|received| received.signal != SIGCHLD)?;
        queue.remove(at)
    }

    /// The next one, or `None` when `timeout` has passed without one (`None`: no limit).
    ///
    /// # Errors
    /// None.
    pub fn next(&self, timeout: Option<Duration>) -> io::Result<Option<QueuedSignal>> {
        let (mut queue, _) = QUEUED
            .wait_timeout_while(locked(&QUEUE), timeout.unwrap_or(Duration::MAX), |queue| {
                queue.is_empty()
            })
            .unwrap_or_else(PoisonError::into_inner);
        Ok(queue.pop_front())
    }
}

/// Adds to the queue.
pub(super) fn add(signal: i32) {
    locked(&QUEUE).push_back(QueuedSignal {
        signal,
        ..QueuedSignal::default()
    });
    QUEUED.notify_all();
}

/// Called by a thread of the system.
unsafe extern "system" fn on_control(event: u32) -> BOOL {
    match event {
        CTRL_C_EVENT => add(SIGINT),
        CTRL_BREAK_EVENT => add(SIGQUIT),
        // To return would end the process at once, while its command is still handling the event.
        // The system ends the process about 5 s later.
        CTRL_CLOSE_EVENT | CTRL_SHUTDOWN_EVENT => {
            add(SIGHUP);
            std::thread::sleep(Duration::from_mins(1));
        }
        _ => return 0,
    }
    1
}

/// Nothing to use.
pub fn use_sigalrm() {}

always! {
    /// Files have no such limit: returns `true`, as if it had been ignored before.
    ///
    /// # Errors
    /// None.
    pub ignore_file_size_signal() -> io::Result<bool> = Ok(true);
    /// Nothing to do: the console sends its events to every process.
    ///
    /// # Errors
    /// None.
    pub send_from_terminal(_child: &Started, _signal: i32, _session_only: bool) -> io::Result<()>
        = Ok(());
    /// Nothing to do: a console stops no process.
    ///
    /// # Errors
    /// None.
    pub stop(_with: Option<&Started>) -> io::Result<()> = Ok(());
    /// `None`: not known.
    #[must_use]
    pub last_signal() -> Option<i32> = None;
    /// `None`: none is sent.
    #[must_use]
    pub last_number() -> Option<i32> = None;
}

/// There is none: blocking calls cannot be interrupted.
#[derive(Debug)]
pub(crate) struct Alarm(std::convert::Infallible);

impl Alarm {
    always! {
        pub(crate) new() -> io::Result<Option<Self>> = Ok(None);
        pub(crate) set(&self, _after: Duration) -> io::Result<()> = match self.0 {};
        pub(crate) clear(&self) -> io::Result<()> = match self.0 {};
    }
}

/// Ends a child that has not been waited for yet, whatever the signal: there is no way to ask it
/// to.
///
/// # Errors
/// Those of TerminateProcess.
pub fn send(child: &Started, signal: i32) -> io::Result<()> {
    let code = 128_u32.saturating_add_signed(signal);
    terminate(child.child().as_handle(), code)
}

/// Runs `install`; there is one handler for Ctrl-C, and nothing is ignored.
pub fn tell_signals_apart(install: impl FnOnce()) {
    install();
}

/// Nothing to do: [`last_signal`] knows of none.
pub fn note_signals() {}

/// Nothing to do: no program takes the place of this one.
pub fn stop_telling_signals_apart() {}

/// Ends the calling process as if `signal` had ended it.
pub fn exit_by_signal(signal: i32) {
    let code = if signal == SIGINT {
        CONTROL_C_EXIT
    } else {
        128_u32.saturating_add_signed(signal)
    };
    // SAFETY: ends the process; no cleanup of ours is needed before.
    unsafe { ExitProcess(code) }
}

/// The signal that ended a process, if one did.
pub fn terminating_signal(status: ExitStatus) -> Option<i32> {
    (status.code().map(i32::cast_unsigned) == Some(CONTROL_C_EXIT)).then_some(SIGINT)
}

/// Runs `start`; threads take no signals here.
///
/// # Errors
/// None.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> io::Result<T> {
    Ok(start())
}
