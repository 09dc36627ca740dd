//! What the queues of signals of all systems have in common.

use std::io;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::signal::{SignalMask, was_ignored};
use super::wait::timespec;
use crate::sys::QueuedSignal;
pub use crate::sys::system::signal_queue::SignalQueue;
use crate::sys::system::signal_queue::pending;

/// The signals that end a process, in the order in which they are reported.
pub(in crate::sys) const ENDING: [i32; 4] =
    [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

impl SignalQueue {
    /// Whether a signal that ends a process is waiting in the queue. Takes none.
    pub fn is_ending(&self) -> bool {
        pending().is_some()
    }

    /// Takes the first signal that ends a process out of the queue: for a supervisor that has not
    /// started its command yet, and so is meant itself.
    #[must_use]
    pub fn take_ending(&self) -> Option<QueuedSignal> {
        let signal = pending()?;
        while let Ok(Some(received)) = self.take() {
            if received.signal == signal {
                return Some(received);
            }
        }
        Some(QueuedSignal {
            signal,
            ..QueuedSignal::default()
        })
    }

    /// Returns whether the caller of this process ignored a signal.
    pub fn is_ignored(&self, signal: i32) -> bool {
        was_ignored(signal)
    }

    /// The signals that were blocked before there was a queue: those that a command is started with.
    pub fn mask_before(&self) -> SignalMask {
        self.before
    }

    /// The next signal, or `None` when `timeout` has passed without one (`None`: no limit).
    ///
    /// # Errors
    /// Those of poll(2) and read(2).
    pub fn next(&self, timeout: Option<Duration>) -> io::Result<Option<QueuedSignal>> {
        if let Some(received) = self.take()? {
            return Ok(Some(received));
        }
        let mut fds = [PollFd::new(&self.queue, PollFlags::IN)];
        match poll(&mut fds, timespec(timeout).as_ref()) {
            Ok(_) | Err(Errno::INTR) => self.take(),
            Err(error) => Err(error.into()),
        }
    }
}
