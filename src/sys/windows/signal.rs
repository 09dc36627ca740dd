//! What there is of signals: the console's Ctrl-C and Ctrl-Break, and the end of a child.
//!
//! Every process of a console is told of them; whoever supervises a command has to live on, and not
//! to pass them on.

use std::collections::VecDeque;
use std::io;
use std::process::{Command, ExitStatus};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use windows_sys::Win32::System::Console::{
    CTRL_BREAK_EVENT, CTRL_C_EVENT, CTRL_CLOSE_EVENT, CTRL_SHUTDOWN_EVENT, SetConsoleCtrlHandler,
};
use windows_sys::Win32::System::Threading::{ExitProcess, TerminateProcess};
use windows_sys::core::BOOL;

use super::process::raw_of_child;
use super::start::Started;
use crate::sys::Received;

// The numbers that other systems have for these.
const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGQUIT: i32 = 3;
pub(in crate::sys) const SIGCHLD: i32 = 17;

/// What a program that Ctrl-C ended returns (STATUS_CONTROL_C_EXIT).
const CONTROL_C_EXIT: u32 = 0xC000_013A;

static QUEUE: Mutex<VecDeque<Received>> = Mutex::new(VecDeque::new());
static QUEUED: Condvar = Condvar::new();

/// Nothing can be held back: what ends a process here ends it at once.
pub(crate) struct HeldBack;

impl HeldBack {
    #[allow(clippy::unnecessary_wraps, reason = "other systems need it")]
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self)
    }
}

/// A set of blocked signals; here there are none.
#[derive(Clone, Copy, Debug)]
pub struct SignalMask;

impl SignalMask {
    /// None.
    ///
    /// # Errors
    /// None.
    pub fn current() -> io::Result<Self> {
        Ok(Self)
    }
}

/// Ctrl-C and Ctrl-Break, queued instead of acted upon, and the end of a command.
#[derive(Debug)]
pub struct SignalQueue {
    _private: (),
}

impl SignalQueue {
    /// Begins to queue, for good.
    ///
    /// # Errors
    /// Those of SetConsoleCtrlHandler.
    pub fn open() -> io::Result<Self> {
        // SAFETY: the handler is a function of that kind, and stays.
        if unsafe { SetConsoleCtrlHandler(Some(on_control), 1) } == 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { _private: () })
    }

    /// Nothing to do: a handler is not inherited.
    pub fn spare(&self, _command: &mut Command) {}

    /// None.
    #[must_use]
    pub fn mask_before(&self) -> SignalMask {
        SignalMask
    }

    /// Whether Ctrl-C or Ctrl-Break is waiting in the queue. Takes none.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        queue().iter().any(|received| received.signal != SIGCHLD)
    }

    /// Takes the first of them out of the queue: for a supervisor that has not started its command
    /// yet, and so is meant itself.
    #[must_use]
    pub fn take_ending(&self) -> Option<i32> {
        let mut queue = queue();
        let at = queue
            .iter()
            .position(|received| received.signal != SIGCHLD)?;
        queue.remove(at).map(|received| received.signal)
    }

    /// The next one, or `None` when `timeout` has passed without one (`None`: no limit).
    ///
    /// # Errors
    /// None.
    pub fn next(&self, timeout: Option<Duration>) -> io::Result<Option<Received>> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut queue = queue();
        loop {
            if let Some(received) = queue.pop_front() {
                return Ok(Some(received));
            }
            let left = deadline.map_or(Duration::from_hours(1), |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                return Ok(None);
            }
            queue = QUEUED
                .wait_timeout(queue, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

/// Adds to the queue.
pub(super) fn add(signal: i32) {
    queue().push_back(Received {
        signal,
        from_process: false,
    });
    QUEUED.notify_all();
}

fn queue() -> std::sync::MutexGuard<'static, VecDeque<Received>> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Called by a thread of the system's.
unsafe extern "system" fn on_control(event: u32) -> BOOL {
    match event {
        CTRL_C_EVENT => add(SIGINT),
        CTRL_BREAK_EVENT => add(SIGQUIT),
        // To return would end the process at once, while its command is being told; what it has left
        // is some 5 s.
        CTRL_CLOSE_EVENT | CTRL_SHUTDOWN_EVENT => {
            add(SIGHUP);
            std::thread::sleep(Duration::from_mins(1));
        }
        _ => return 0,
    }
    1
}

/// Nothing to use.
///
/// # Errors
/// None.
pub fn use_sigalrm() -> io::Result<()> {
    Ok(())
}

/// Nothing cuts a call short.
#[derive(Debug)]
pub(crate) struct Alarm(std::convert::Infallible);

impl Alarm {
    #[allow(clippy::unnecessary_wraps, reason = "other systems need it")]
    pub(crate) fn new() -> io::Result<Option<Self>> {
        Ok(None)
    }

    pub(crate) fn set(&self, _after: Duration) -> io::Result<()> {
        match self.0 {}
    }

    pub(crate) fn clear(&self) -> io::Result<()> {
        match self.0 {}
    }
}

/// Ends a child that has not been waited for yet, whatever the signal: there is no way to ask it to.
///
/// # Errors
/// Those of TerminateProcess.
pub fn send(child: &Started, signal: i32) -> io::Result<()> {
    let code = 128_u32.saturating_add_signed(signal);
    // SAFETY: the handle of our own child is open.
    if unsafe { TerminateProcess(raw_of_child(child.child()), code) } == 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Ends the calling process as if `signal` had ended it.
pub fn end_by(signal: i32) {
    let code = if signal == SIGINT {
        CONTROL_C_EXIT
    } else {
        128_u32.saturating_add_signed(signal)
    };
    // SAFETY: ends the process; nothing of ours has to be done before.
    unsafe { ExitProcess(code) }
}

/// The signal that ended a process, if one did.
#[must_use]
pub fn that_ended(status: ExitStatus) -> Option<i32> {
    (status.code().map(i32::cast_unsigned) == Some(CONTROL_C_EXIT)).then_some(SIGINT)
}

/// Runs `start`; threads take no signals here.
///
/// # Errors
/// None.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> io::Result<T> {
    Ok(start())
}
