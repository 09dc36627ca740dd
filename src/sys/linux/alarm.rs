//! Interrupting a blocking call, by a POSIX timer.

use std::io;
use std::marker::PhantomData;
use std::ptr;
use std::time::Duration;

use super::times::libc_timespec;
use crate::sys::signal::{catch_sigalrm, change_mask, set_of};

/// Interrupts blocking calls of the thread that created it.
#[derive(Debug)]
pub(crate) struct Alarm {
    timer: libc::timer_t,
    // The timer signals the thread that created it.
    _not_send: PhantomData<*const ()>,
}

impl Alarm {
    /// `None` unless the program has allowed the use of SIGALRM.
    pub(crate) fn new() -> io::Result<Option<Self>> {
        if !catch_sigalrm()? {
            return Ok(None);
        }
        change_mask(libc::SIG_UNBLOCK, &set_of(&[libc::SIGALRM]))?;
        let mut timer: libc::timer_t = ptr::null_mut();
        // SAFETY: all-zero is a valid sigevent; both pointers are to live locals. BOOTTIME, so
        // that a suspended machine does not stretch the limit.
        unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = libc::SIGALRM;
            event.sigev_notify_thread_id = libc::gettid();
            if libc::timer_create(libc::CLOCK_BOOTTIME, &raw mut event, &raw mut timer) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Some(Self {
            timer,
            _not_send: PhantomData,
        }))
    }

    /// Interrupts once `after` has passed, and again every 20 ms until cleared: one signal could
    /// arrive just before the call that it should interrupt.
    pub(crate) fn set(&self, after: Duration) -> io::Result<()> {
        // All-zero would disarm.
        self.arm(
            after.max(Duration::from_micros(1)),
            Duration::from_millis(20),
        )
    }

    pub(crate) fn clear(&self) -> io::Result<()> {
        self.arm(Duration::ZERO, Duration::ZERO)
    }

    fn arm(&self, first: Duration, then: Duration) -> io::Result<()> {
        let times = libc::itimerspec {
            it_value: libc_timespec(first),
            it_interval: libc_timespec(then),
        };
        // SAFETY: the timer is ours until drop; `times` outlives the call.
        if unsafe { libc::timer_settime(self.timer, 0, &raw const times, ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // SAFETY: created by us, deleted once.
        unsafe { libc::timer_delete(self.timer) };
    }
}
