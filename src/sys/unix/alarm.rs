//! Interrupting a blocking call by a timer.

use std::io;
use std::marker::PhantomData;
use std::time::Duration;

use super::signal::{catch_sigalrm, change_mask, set_of};
use crate::sys::system::timer::Timer;

/// Interrupts blocking calls of the thread that created it.
#[derive(Debug)]
pub(crate) struct Alarm {
    timer: Timer,
    // The timer signals the thread that created it.
    _not_send: PhantomData<*const ()>,
}

impl Alarm {
    /// `None` unless the program has allowed the use of SIGALRM, and where this thread cannot have a
    /// timer.
    pub(crate) fn new() -> io::Result<Option<Self>> {
        if !catch_sigalrm() {
            return Ok(None);
        }
        let Some(timer) = Timer::of_thread()? else {
            return Ok(None);
        };
        change_mask(libc::SIG_UNBLOCK, &set_of(&[libc::SIGALRM]))?;
        Ok(Some(Self {
            timer,
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
    /// Signals once `after` has passed, and then each time that `every` has.
    pub(in crate::sys) fn set(&self, after: Duration, every: Duration) -> io::Result<()> {
        // All-zero would disarm.
        self.arm(after.max(Duration::from_micros(1)), every)
    }
}
