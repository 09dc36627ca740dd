//! POSIX timers, and interrupting a blocking call by one.

use std::io;
use std::marker::PhantomData;
use std::ptr;
use std::time::Duration;

use super::times::libc_timespec;
use crate::sys::signal::{catch_sigalrm, change_mask, set_of};

/// Sends a signal by the clock that does not stop while the machine is suspended.
#[derive(Debug)]
pub(super) struct Timer(libc::timer_t);

// SAFETY: it is a number, by which all threads of the process use the timer.
unsafe impl Send for Timer {}
// SAFETY: as above.
unsafe impl Sync for Timer {}

/// Interrupts blocking calls of the thread that created it.
#[derive(Debug)]
pub(crate) struct Alarm {
    timer: Timer,
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
        // SAFETY: all-zero is a valid sigevent; the call returns a number.
        let event = unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = libc::SIGALRM;
            event.sigev_notify_thread_id = libc::gettid();
            event
        };
        Ok(Some(Self {
            timer: Timer::new(event)?,
            _not_send: PhantomData,
        }))
    }

    /// Interrupts once `after` has passed, and again every 20 ms until cleared: one signal could
    /// arrive just before the call that it should interrupt.
    pub(crate) fn set(&self, after: Duration) -> io::Result<()> {
        self.timer.set(after, Duration::from_millis(20))
    }

    pub(crate) fn clear(&self) -> io::Result<()> {
        self.timer.arm(Duration::ZERO, Duration::ZERO)
    }
}

impl Timer {
    /// Sends its signal to the whole process.
    #[cfg(feature = "etcd")]
    pub(super) fn of_process(signal: i32) -> io::Result<Self> {
        // SAFETY: all-zero is a valid sigevent.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_SIGNAL;
        event.sigev_signo = signal;
        Self::new(event)
    }

    fn new(mut event: libc::sigevent) -> io::Result<Self> {
        let mut timer: libc::timer_t = ptr::null_mut();
        // SAFETY: both pointers are to live locals. BOOTTIME, so that a suspended machine does not
        // stretch the limit.
        unsafe {
            if libc::timer_create(libc::CLOCK_BOOTTIME, &raw mut event, &raw mut timer) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Self(timer))
    }

    /// Signals once `after` has passed, and then each time that `every` has.
    pub(super) fn set(&self, after: Duration, every: Duration) -> io::Result<()> {
        // All-zero would disarm.
        self.arm(after.max(Duration::from_micros(1)), every)
    }

    fn arm(&self, first: Duration, then: Duration) -> io::Result<()> {
        let times = libc::itimerspec {
            it_value: libc_timespec(first),
            it_interval: libc_timespec(then),
        };
        // SAFETY: the timer is ours until drop; `times` outlives the call.
        if unsafe { libc::timer_settime(self.0, 0, &raw const times, ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: created by us, deleted once.
        unsafe { libc::timer_delete(self.0) };
    }
}
