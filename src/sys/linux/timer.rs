//! POSIX timers.

use std::io;
use std::ptr;
use std::time::Duration;

use crate::sys::unix::checked;

/// Sends a signal by the clock that does not stop while the machine is suspended.
#[derive(Debug)]
pub(in crate::sys) struct Timer(libc::timer_t);

// SAFETY: it is a number, by which all threads of the process use the timer.
unsafe impl Send for Timer {}
// SAFETY: as above.
unsafe impl Sync for Timer {}

impl Timer {
    /// Sends SIGALRM to the calling thread.
    pub(in crate::sys) fn of_thread() -> io::Result<Option<Self>> {
        // SAFETY: the call returns a number.
        let thread = unsafe { libc::gettid() };
        Self::new(libc::SIGALRM, libc::SIGEV_THREAD_ID, thread).map(Some)
    }

    /// Sends its signal to the whole process.
    #[cfg(feature = "cluster")]
    pub(super) fn of_process(signal: i32) -> io::Result<Self> {
        Self::new(signal, libc::SIGEV_SIGNAL, 0)
    }

    fn new(signal: i32, notify: i32, thread: libc::pid_t) -> io::Result<Self> {
        // SAFETY: all-zero is a valid sigevent.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_signo = signal;
        event.sigev_notify = notify;
        event.sigev_notify_thread_id = thread;
        let mut timer: libc::timer_t = ptr::null_mut();
        // SAFETY: both pointers are to live locals. BOOTTIME, so that a suspended machine does not
        // stretch the limit.
        checked(unsafe {
            libc::timer_create(libc::CLOCK_BOOTTIME, &raw mut event, &raw mut timer)
        })?;
        Ok(Self(timer))
    }

    pub(in crate::sys) fn arm(&self, first: Duration, then: Duration) -> io::Result<()> {
        let times = libc::itimerspec {
            it_value: timespec(first),
            it_interval: timespec(then),
        };
        // SAFETY: the timer is ours until drop; `times` outlives the call.
        checked(unsafe { libc::timer_settime(self.0, 0, &raw const times, ptr::null_mut()) })
            .map(drop)
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: created by us, deleted once.
        unsafe { libc::timer_delete(self.0) };
    }
}

fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        // 68 years, which fit into every width of the type.
        tv_sec: i32::try_from(duration.as_secs()).unwrap_or(i32::MAX).into(),
        tv_nsec: duration.subsec_nanos().cast_signed().into(),
    }
}
