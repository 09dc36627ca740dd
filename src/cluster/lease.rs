//! A lease of this process, and how long it is worth something.

use super::engine::{Answer, Engine, TIMEOUT};
use super::txn::Epoch;
use crate::backend::Patience;
use crate::sys::process::boottime_milliseconds;

/// How long after a lease could not be kept alive that is tried again.
const RETRY_MS: u64 = 300;

/// A lease that was granted, and what it is worth.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Granted {
    pub(super) id: i64,
    /// As the server has granted it, in seconds.
    pub(super) ttl: i64,
    /// When the request was sent by which it is known to be kept, by the boot-time clock.
    pub(super) since_ms: u64,
    /// That of the answer to that request.
    pub(super) epoch: Epoch,
    /// When to keep it alive again.
    pub(super) due_ms: u64,
}

impl Granted {
    /// Asks for one, once.
    pub(super) fn new(engine: &dyn Engine, seconds: i64) -> Answer<Self> {
        let since_ms = boottime_milliseconds();
        let lease = engine.grant(seconds)?;
        let mut granted = Self {
            id: lease.id,
            ttl: lease.ttl,
            since_ms,
            epoch: lease.epoch,
            due_ms: 0,
        };
        granted.due_ms = since_ms + granted.ttl_ms() / 2;
        Ok(granted)
    }

    pub(super) fn ttl_ms(&self) -> u64 {
        let seconds = u64::try_from(self.ttl).unwrap_or(0);
        seconds.saturating_mul(1000)
    }

    /// Keeps it alive if that is due, as [`Self::keep`].
    pub(super) fn keep_in_time(&mut self, engine: &dyn Engine) -> Option<bool> {
        if !self.is_due() {
            return Some(true);
        }
        self.keep(engine)
    }

    pub(super) fn is_due(&self) -> bool {
        boottime_milliseconds() >= self.due_ms
    }

    /// Keeps it alive. `None`: it is not known whether it is, and the next member is asked from now on.
    pub(super) fn keep(&mut self, engine: &dyn Engine) -> Option<bool> {
        let mut sent = 0;
        let kept = engine.signed_in(Patience::SHORT, || {
            sent = boottime_milliseconds();
            engine.keep(self.id, TIMEOUT)
        });
        let Ok(kept) = kept else {
            engine.go_on();
            self.due_ms = boottime_milliseconds() + RETRY_MS;
            return None;
        };
        self.due_ms = sent + self.ttl_ms() / 2;
        let is_kept = kept.ttl > 0;
        if is_kept {
            self.since_ms = sent;
            self.epoch = kept.epoch;
        }
        Some(is_kept)
    }
}
