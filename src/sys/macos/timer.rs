//! The interval timer of the process (macOS has no POSIX timers).

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::sys::unix::checked;
use crate::sys::unix::wait::LONGEST;

/// A process has one such timer.
static IN_USE: AtomicBool = AtomicBool::new(false);

/// Sends SIGALRM to the main thread. Time in which the machine sleeps may not count, so that a limit may
/// be noticed late.
///
/// The signal goes to the process, and so to a thread that does not block it. The kernel takes the
/// first such thread, which is the main one (XNU, `get_signalthread`); threads begun by
/// [`without_signals`](crate::sys::signal::without_signals) block it anyway.
#[derive(Debug)]
pub(in crate::sys) struct Timer(());

impl Timer {
    /// `None` if it is already in use, and in other threads than the main one.
    pub(in crate::sys) fn of_thread() -> io::Result<Option<Self>> {
        // SAFETY: pthread_main_np(3) only tells which thread calls it.
        let is_main = unsafe { libc::pthread_main_np() } == 1;
        let is_free = is_main && !IN_USE.swap(true, Ordering::SeqCst);
        Ok(is_free.then_some(Self(())))
    }

    pub(in crate::sys) fn arm(&self, first: Duration, then: Duration) -> io::Result<()> {
        let times = libc::itimerval {
            it_interval: timeval(then),
            it_value: timeval(first),
        };
        // SAFETY: `times` outlives the call; the previous setting is not requested.
        checked(unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const times, ptr::null_mut()) })
            .map(drop)
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        let _ = self.arm(Duration::ZERO, Duration::ZERO);
        IN_USE.store(false, Ordering::SeqCst);
    }
}

/// setitimer(2) refuses what is "too large to be handled".
fn timeval(duration: Duration) -> libc::timeval {
    let duration = duration.min(LONGEST);
    libc::timeval {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_usec: i32::try_from(duration.subsec_micros()).unwrap_or(0),
    }
}
