//! Durations in the types of system calls.

use std::time::Duration;

use rustix::event::Timespec;

/// poll(2) counts milliseconds in 32 bits, which are 24 days, and setitimer(2) refuses what is "too
/// large to be handled". A caller that wakes too early checks again.
const LONGEST: Duration = Duration::from_hours(24 * 20);

pub(super) fn timespec(timeout: Option<Duration>) -> Option<Timespec> {
    let timeout = timeout?.min(LONGEST);
    Some(Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    })
}

pub(super) fn timeval(duration: Duration) -> libc::timeval {
    let duration = duration.min(LONGEST);
    libc::timeval {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_usec: i32::try_from(duration.subsec_micros()).unwrap_or(0),
    }
}
