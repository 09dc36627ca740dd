//! Waits for locks without taking them.

use std::time::Duration;

use super::attempt::{Attempt, Blocked, FINISH_INTERVAL, is_unchanged};
use super::lock::Lock;
use super::options::Options;
use super::unfinished::{is_orphaned_ending, settle};
use super::wait::{Wait, WaitDecision};
use crate::backend::LockSnapshot;
use crate::decision::{Asker, Decision, Request, decide, until};
use crate::error::{Error, Result};
use crate::open_file::{Judged, Obstacle, Until};

/// What keeps the locks from being free, and what to sleep on. `None`: no wait of the caller could end it.
type InTheWay = (Obstacle, Option<Box<Until>>);

impl Lock {
    /// Waits until an attempt with these options would take the lock, and takes nothing: by the time it returns, another
    /// caller may have it. It has no place in the queue, so it delays nobody, and while there are waiters the lock is
    /// not free. It is woken as a waiter is. A file that flock(1) locks is looked at every 0.1 to 2 s, and when one of
    /// its holders exits.
    ///
    /// Returns how long it has waited, if at all.
    ///
    /// # Errors
    /// The store cannot be used, or the file is not a lock file; [`Error::Canceled`].
    pub fn wait_until_free(
        &self,
        options: &Options,
        mut wait: Wait<'_>,
    ) -> Result<Attempt<Option<Duration>>> {
        wait.start();
        let mut bystander = self.store.bystander(wait.back_off);
        let mut request = self.request(options, Asker::Caller);
        loop {
            let ask = |request: &Request| {
                let looked = self.store.look(|snapshot| look(self, request, snapshot))?;
                Ok(looked.flatten())
            };
            let looked = settle(&mut request, ask, |looked| {
                hold_in_the_way(looked.as_ref()?)
            })?;
            let Some((obstacle, sleeps_until)) = looked else {
                if !wait.may(WaitDecision::Take) {
                    return Err(Error::Canceled);
                }
                return Ok(Attempt::Held(wait.waited()));
            };
            let status = || self.obstacle_status(&obstacle);
            let Some(until) = sleeps_until.filter(|_| !wait.should_stop(false, status)) else {
                let status =
                    self.status_in_the_way(&obstacle, &request, options.without_waiters)?;
                return Ok(Attempt::Blocked(Blocked::new(status, wait.waited())));
            };
            // Nothing tells the end of what is left of it.
            let is_left = matches!(&obstacle, Obstacle::Hold(judged) if is_orphaned_ending(judged));
            let at_most = until.ripe_in().or(is_left.then_some(FINISH_INTERVAL));
            bystander.sleep(&until, wait.sleep_limit(at_most), &mut || {
                is_unchanged(&*self.store, &request, &obstacle)
            });
        }
    }
}

fn hold_in_the_way((obstacle, _): &InTheWay) -> Option<&[Judged]> {
    match obstacle {
        Obstacle::Hold(judged) => Some(std::slice::from_ref(judged)),
        Obstacle::Waiter(_) => None,
    }
}

fn look(lock: &Lock, request: &Request, snapshot: &dyn LockSnapshot) -> Result<Option<InTheWay>> {
    Ok(Some(match decide(request, snapshot)? {
        Decision::Take { .. } => return Ok(None),
        Decision::Refuse(judged, what) => return Err(lock.not_a_lock(&judged.found.key, what)),
        Decision::AlreadyHeld(judged) | Decision::Blocked(judged) => (Obstacle::Hold(judged), None),
        Decision::Wait(obstacle) => {
            let until = until(request, obstacle.clone(), snapshot)?;
            (obstacle, Some(Box::new(until)))
        }
    }))
}
