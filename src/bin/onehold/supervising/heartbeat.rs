//! When a hold is renewed and checked.

use std::time::{Duration, Instant};

use onehold::Hold;

pub(crate) struct Heartbeat {
    interval: Duration,
    next_check: Instant,
    /// The last renewal failed. The next check tries again; until then the hold only looks older than it is.
    has_failed: bool,
}

impl Heartbeat {
    /// `interval`: between two checks.
    pub(crate) fn new(interval: Duration) -> Self {
        Self {
            interval,
            next_check: Instant::now() + interval,
            has_failed: false,
        }
    }

    pub(crate) fn until_check(&self) -> Duration {
        self.next_check.saturating_duration_since(Instant::now())
    }

    /// How long to sleep until a renewal or a check is due.
    pub(crate) fn pause(&self, hold: &Hold) -> Duration {
        let renewal = (!self.has_failed).then(|| hold.renewal_due_in());
        let loss = hold
            .lost_in()
            .map(|left| left.max(Duration::from_millis(10)));
        let first = renewal.into_iter().chain(loss);
        first.fold(self.until_check(), Duration::min)
    }

    /// Whether the hold is to be checked now. `is_told`: for another reason than the time.
    pub(crate) fn is_check_due(&mut self, is_told: bool) -> bool {
        let is_due = is_told || self.until_check().is_zero();
        if is_due {
            self.has_failed = false;
            self.next_check = Instant::now() + self.interval;
        }
        is_due
    }

    pub(crate) fn renew_if_due(&mut self, hold: &mut Hold) {
        if !self.has_failed && hold.renewal_due_in().is_zero() {
            self.has_failed = hold.renew().is_err();
        }
    }
}
