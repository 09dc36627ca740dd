//! Interrupting a blocking call, by the interval timer of the process (macOS has no POSIX timers).

use std::io;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::times::timeval;
use crate::sys::signal::{catch_sigalrm, change_mask, set_of};

/// A process has one such timer.
static IN_USE: AtomicBool = AtomicBool::new(false);

/// Interrupts blocking calls of the main thread.
///
/// The signal goes to the process, and so to a thread that does not block it. The kernel takes the
/// first such thread, which is the main one (XNU, `get_signalthread`); threads begun by
/// [`without_signals`](crate::signal::without_signals) block it anyway.
#[derive(Debug)]
pub(crate) struct Alarm {
    // It belongs to the thread that created it.
    _not_send: PhantomData<*const ()>,
}

impl Alarm {
    /// `None` unless the program has allowed the use of SIGALRM, if the timer is already in use,
    /// and in other threads than the main one.
    pub(crate) fn new() -> io::Result<Option<Self>> {
        // SAFETY: pthread_main_np(3) only tells which thread calls it.
        let is_main = unsafe { libc::pthread_main_np() } == 1;
        if !catch_sigalrm()? || !is_main || IN_USE.swap(true, Ordering::SeqCst) {
            return Ok(None);
        }
        let alarm = Self {
            _not_send: PhantomData,
        };
        change_mask(libc::SIG_UNBLOCK, &set_of(&[libc::SIGALRM]))?;
        Ok(Some(alarm))
    }

    /// Interrupts once `after` has passed, and again every 20 ms until cleared: one signal could
    /// arrive just before the call that it should interrupt. Time in which the machine sleeps may
    /// not count, so that a limit may be noticed late.
    #[allow(clippy::unused_self, reason = "there is one timer, and this is it")]
    pub(crate) fn set(&self, after: Duration) -> io::Result<()> {
        // All-zero would disarm.
        arm(
            after.max(Duration::from_micros(1)),
            Duration::from_millis(20),
        )
    }

    #[allow(clippy::unused_self, reason = "there is one timer, and this is it")]
    pub(crate) fn clear(&self) -> io::Result<()> {
        arm(Duration::ZERO, Duration::ZERO)
    }
}

fn arm(first: Duration, then: Duration) -> io::Result<()> {
    let times = libc::itimerval {
        it_interval: timeval(then),
        it_value: timeval(first),
    };
    // SAFETY: `times` outlives the call; the previous setting is not requested.
    if unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const times, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let _ = self.clear();
        IN_USE.store(false, Ordering::SeqCst);
    }
}
