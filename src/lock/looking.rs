//! Who holds a lock. Nothing is changed.

use std::time::Duration;

use super::lock::Lock;
use super::options::Options;
use super::status;
use super::unfinished::{author, settle};
use crate::backend::LockSnapshot;
use crate::decision::ownership::Caller;
use crate::decision::verdict::{Evidence, Reason, Verdict};
use crate::decision::{Asker, Decision, Request, decide, waits_from};
use crate::error::Result;
use crate::files::provenance;
use crate::name::LockName;
use crate::open_file::{Judged, Obstacle, Ticket};
use crate::record::Record;
use crate::status::{Provenance, Status, Waiter};

impl Lock {
    /// What would keep a caller without an owner from taking the lock now: its holder, a parent's, a
    /// child's, or a waiter for which it is reserved. Changes nothing and does not block; the result
    /// may be outdated when it is returned. `max_age`: for holds that do not set their own; `None`:
    /// 24 h.
    ///
    /// # Errors
    /// The store or a lock file cannot be read.
    pub fn check(&self, max_age: Option<Duration>) -> Result<Status> {
        self.check_for(&Options::judging(max_age))
    }

    /// [Checks](Self::check) the lock for a caller with these options, by the decision that an attempt to
    /// take it makes.
    ///
    /// # Errors
    /// As for [`check`](Self::check).
    pub fn check_for(&self, options: &Options) -> Result<Status> {
        // Where nothing is, it does not matter from where it is seen: finding that out is most of a check.
        let mut request = self.unobserved_request(options, Asker::Caller);
        let look = |request: &Request| {
            self.store.look(|snapshot| {
                let (mut status, judged) = match decide(request, snapshot)? {
                    Decision::Take { mut put, remove } => {
                        let is_own = |judged: &Judged| judged.found.key.name == *self.name();
                        let replaced = put.pop().and_then(|(_, replaced)| replaced);
                        match replaced.or_else(|| remove.into_iter().find(is_own)) {
                            Some(replaced) => (self.status(&replaced), None),
                            None => (self.free(), None),
                        }
                    }
                    Decision::AlreadyHeld(judged)
                    | Decision::Blocked(judged)
                    | Decision::Refuse(judged, _)
                    | Decision::Wait(Obstacle::Hold(judged)) => {
                        (self.status(&judged), Some(judged))
                    }
                    Decision::Wait(Obstacle::Waiter(ticket)) => {
                        (self.reserved(&ticket, snapshot.waiter(&ticket)), None)
                    }
                };
                let mut others = self.others_than(&status, request, snapshot)?;
                // Where a dead hold cannot be taken over it is in the way for good, and a live one beside
                // it still holds the lock.
                let live = others.iter_mut().find(|other| other.verdict.is_live());
                if let Some(live) = live.filter(|_| judged.is_some() && !status.verdict.is_live()) {
                    std::mem::swap(&mut status, live);
                }
                status.others = others;
                if !options.without_waiters {
                    status.waiters = snapshot.waiters(self.name());
                }
                // On the heap: it is large, and several calls pass it on.
                Ok(Box::new((status, judged)))
            })
        };
        let looked = settle(&mut request, look, |looked| {
            Some(looked.as_ref()?.1.as_slice())
        })?;
        Ok(looked.map_or_else(|| self.free(), |found| found.0))
    }

    /// The other holds of the lock that a status is about.
    pub(super) fn others_than(
        &self,
        status: &Status,
        request: &Request,
        snapshot: &dyn LockSnapshot,
    ) -> Result<Vec<Status>> {
        // Beside a live hold that is not shared there is no other.
        let is_reserved = status.verdict.reason == Reason::Reserved;
        if status.slot.is_none() && status.verdict.is_live() && !is_reserved {
            return Ok(Vec::new());
        }
        let name = LockName::new(&status.name)?;
        let found = snapshot.shared(&name)?;
        let others = found
            .into_iter()
            .filter(|found| self.store.path_of_record(&found.key) != status.path);
        let judged = others.map(|found| request.judge(snapshot, found));
        Ok(judged.map(|judged| self.status(&judged)).collect())
    }

    /// What the lock's own file says, whatever else may be in the way. Like
    /// [`check`](Self::check) otherwise.
    ///
    /// # Errors
    /// As for [`check`](Self::check).
    pub fn inspect(&self, max_age: Option<Duration>) -> Result<Status> {
        let mut request = self.request(&Options::judging(max_age), Asker::Caller);
        let look = |request: &Request| {
            self.store.look(|snapshot| {
                let holds = self.holds(request, snapshot)?;
                Ok((holds, snapshot.waiters(self.name())))
            })
        };
        let looked = settle(&mut request, look, |looked| {
            Some(looked.as_ref()?.0.as_slice())
        })?;
        let Some((holds, waiters)) = looked else {
            return Ok(self.free());
        };
        let mut holds = holds.iter().map(|own| self.status(own));
        let first = holds.next().unwrap_or_else(|| self.free());
        Ok(Status {
            others: holds.collect(),
            waiters,
            ..first
        })
    }

    /// The holds that keep the hold of this lock waiting: one in the way of a waiter that runs inside of it, then one in
    /// the way of a waiter inside of that one, and so on. If the last one is there twice, they wait for each other;
    /// whether that ends by itself is not said. Changes nothing. Empty: nothing is known to wait.
    ///
    /// # Errors
    /// As for [`check`](Self::check).
    #[cold]
    pub fn waits_for(&self) -> Result<Vec<Status>> {
        let request = self.request(&Options::new(), Asker::Caller);
        let chain = self.store.look(|snapshot| {
            for hold in self.holds(&request, snapshot)? {
                let chain = waits_from(&hold, snapshot)?;
                if !chain.is_empty() {
                    return Ok(chain);
                }
            }
            Ok(Vec::new())
        })?;
        let chain = chain.unwrap_or_default();
        Ok(chain.iter().map(|hold| self.status(hold)).collect())
    }

    /// Whether the calling process runs under a live hold of this lock: it descends from a process of the hold,
    /// whatever its environment says, or `caller` names it and it is a lease. Changes nothing.
    ///
    /// # Errors
    /// As for [`check`](Self::check).
    #[cold]
    pub fn is_run_under(&self, caller: &Caller) -> Result<bool> {
        let request = self.request(&Options::new(), Asker::Caller);
        // What it runs under is known by its processes, and not by what they have left in its environment.
        let caller = Caller {
            inside: Vec::new(),
            ..caller.clone()
        };
        let is_under = self.store.look(|snapshot| {
            let holds = self.holds(&request, snapshot)?;
            Ok(holds.iter().any(|judged| {
                let from = provenance::of(&judged.found);
                // A copy of a record is not the hold that it tells of.
                from.is_none_or(|from| from == Provenance::Here)
                    && caller.runs_under(judged, snapshot)
            }))
        })?;
        Ok(is_under.unwrap_or(false))
    }

    /// The public description of a record.
    pub(super) fn status(&self, judged: &Judged) -> Status {
        let mut record = judged.record().cloned();
        let is_bare = |record: &&mut Record| record.origin.is_none() && record.command.is_empty();
        if let Some(record) = record.as_mut().filter(is_bare) {
            status::name_program(record, &judged.verdict);
        }
        Status {
            record,
            ..status::without_record(&*self.store, judged)
        }
    }

    /// Of a hold that was displaced while it was alive.
    pub(super) fn displaced_status(&self, judged: &Judged) -> Status {
        Status {
            author: (!self.store.is_remote()).then(|| author(judged)),
            ..self.status(judged)
        }
    }

    pub(super) fn obstacle_status(&self, obstacle: &Obstacle) -> Status {
        match obstacle {
            Obstacle::Hold(judged) => self.status(judged),
            Obstacle::Waiter(ticket) => self.reserved(ticket, self.store.waiter(ticket)),
        }
    }

    /// A lock that is reserved for the waiter with this ticket.
    fn reserved(&self, ticket: &Ticket, waiter: Option<Waiter>) -> Status {
        let name = ticket.request.wants.first().map(|want| &want.name);
        let free = status::of_free(&*self.store, name.unwrap_or(self.name()));
        let Some(waiter) = waiter else {
            return free;
        };
        // A waiter of another machine is known by the lease of its ticket.
        let (pid_alive, evidence) = if self.is_remote() {
            (None, Evidence::LeaseKept)
        } else {
            (Some(true), Evidence::KernelLock)
        };
        let verdict = Verdict {
            pid: Some(waiter.pid),
            pid_alive,
            ..Verdict::new(Reason::Reserved, evidence)
        };
        Status { verdict, ..free }
    }

    pub(super) fn free(&self) -> Status {
        status::of_free(&*self.store, self.name())
    }
}
