//! Makes the change that was decided on, and decides again if the store has changed meanwhile.

use std::time::Duration;

use chrono::{SubsecRound as _, Utc};

use super::commit::{Committed, TAKE, Taken, Taking, expiry, request_of, seconds_of};
use super::held::HeldKeys;
use super::lease::Granted;
use super::listing::PrefixWatch;
use super::snapshot::ViewSnapshot;
use super::store::{Cluster, Session, has_fault};
use super::view::View;
use super::waiting::{Place, Tickets};
use crate::backend::{
    Change, Contender, Deadline, Entry, IsUnchanged, Patience, Plan, QueueChange, QueuePlace,
    Updated, sleep_for,
};
use crate::error::{Error, Fault, Result};
use crate::identity::Origin;
use crate::journal_line::Line;
use crate::name::LockName;
use crate::open_file::{Judged, Until};
use crate::record::Kind;
use crate::sys::process::{boottime, start_ticks};
use crate::sys::wait::{Watch, pause};
use crate::sys::{FileId, random_u64};

/// How often a bystander looks that nothing wakes: a watch may miss events.
const LOOK: Duration = Duration::from_secs(30);

/// How often a place in the queue is kept alive during a pause.
const KEEP_PLACE: Duration = Duration::from_secs(1);

/// How many attempts follow each other without a pause.
const AT_ONCE: u32 = 8;

/// A caller that did not wait leaves a lease to its end, unless that lasts longer than this: to give it back costs a
/// request.
const SHORT_TTL_MS: u64 = 60_000;

/// The attempts at one change, and what they have brought so far. Others may keep changing what it was decided on.
struct Attempts<'a> {
    cluster: &'a Cluster,
    count: u32,
    began: Duration,
    patience: Patience<'a>,
    deadline: Deadline<'a>,
    /// A lease that was granted for a take which was refused, or that a waiter has kept ready.
    spare: Option<Granted>,
    /// The caller waits.
    waits: bool,
    /// What was removed by force.
    displaced: Vec<Judged>,
    /// What reserves the lock for a caller that takes by force.
    ahead: Option<Tickets>,
}

impl<'a> Attempts<'a> {
    fn new(cluster: &'a Cluster, patience: Patience<'a>, place: Option<&mut Place>) -> Self {
        Self {
            cluster,
            waits: place.is_some(),
            spare: place.and_then(|place| place.lease.take()),
            count: 0,
            began: boottime(),
            patience,
            deadline: Deadline::of(patience),
            displaced: Vec::new(),
            ahead: None,
        }
    }

    /// Pauses if there have been many. Fails if there is no time for another one.
    fn begin(&mut self) -> Result<()> {
        self.count += 1;
        if self.count <= AT_ONCE {
            return Ok(());
        }
        let most = u64::from(self.count).min(100);
        let interval = Duration::from_millis(1 + random_u64() % most);
        let left = self.deadline.next_sleep(interval);
        let left = left.ok_or_else(|| Error::StoreBusy {
            path: self.cluster.url().into(),
            pid: None,
            waited: boottime().saturating_sub(self.began),
        })?;
        let _ = pause(left);
        Ok(())
    }

    /// Waits until locks are taken again, with its place in the queue; nothing was done. Fails if the caller does not
    /// wait for locks, or not for so long.
    fn begin_after(&self, left: Duration, place: &mut Option<Place>) -> Result<bool> {
        let until = boottime() + left;
        loop {
            let left = until.saturating_sub(boottime());
            if left.is_zero() {
                return Ok(false);
            }
            let slice = self.deadline.next_sleep(left.min(KEEP_PLACE));
            let slice = slice.filter(|_| self.patience.is_of_waiter);
            let _ = pause(slice.ok_or_else(|| self.cluster.paused(left))?);
            if let Some(place) = place {
                place.tickets.keep();
            }
        }
    }
}

impl Attempts<'_> {
    fn updated(&mut self, taken: Taken, mut removed: Vec<Judged>) -> Updated {
        removed.append(&mut self.displaced);
        Updated {
            hold: Some(Box::new(HeldKeys::new(self.cluster, taken))),
            removed,
            ..Updated::default()
        }
    }
}

impl Drop for Attempts<'_> {
    fn drop(&mut self) {
        let is_long = |lease: &Granted| self.waits || lease.ttl_ms() > SHORT_TTL_MS;
        if let Some(lease) = self.spare.take_if(|lease| is_long(lease)) {
            self.cluster.engine.give_up(lease.id);
        }
    }
}

/// A caller that changes a store, and its place in the queue; or one that only waits.
pub(super) struct ClusterContender<'a> {
    cluster: &'a Cluster,
    place: Option<Place>,
    /// What wakes it without a place.
    pub(super) news: Option<PrefixWatch>,
}

impl<'a> ClusterContender<'a> {
    pub(super) fn new(cluster: &'a Cluster) -> Self {
        Self {
            cluster,
            place: None,
            news: None,
        }
    }
}

impl Contender for ClusterContender<'_> {
    fn apply(&mut self, entry: Entry<'_>, plan: &mut Plan<'_, '_>) -> Result<Option<Updated>> {
        let (cluster, place) = (self.cluster, &mut self.place);
        let session = cluster.session(entry.patience);
        let known = session.known(place.as_mut())?;
        let is_known = known.is_some();
        let is_guess = entry.create && place.is_none();
        let first = if is_guess { View::guess } else { View::unread };
        let mut view = known.unwrap_or_else(first);
        let mut attempts = Attempts::new(cluster, entry.patience, place.as_mut());
        loop {
            attempts.begin()?;
            let own = place.as_ref().map(|place| &place.tickets);
            let own = attempts.ahead.as_ref().or(own).map(Tickets::number);
            let mut snapshot = ViewSnapshot::new(session, view);
            snapshot.place = own;
            let planned = plan(&snapshot);
            // Perhaps for what is dead: all that is dead is noted.
            if let Ok(Change::Nothing | Change::Queue(_)) = planned {
                // What cannot be read now is read with the next decision.
                let _ = snapshot.find_dead();
            }
            view = snapshot.into_view();
            if let Some(place) = place
                && place.is_missing_in(&view)
            {
                session.draw_again(place)?;
                view = place.view.take().unwrap_or_else(View::unread);
                continue;
            }
            let reads_again = match &planned {
                Err(error) => has_fault(error, Fault::Compacted),
                // Without a take nothing would show that it is otherwise.
                Ok(change) => view.is_assumed() && !matches!(change, Change::Take { .. }),
            };
            if reads_again {
                view = View::unread();
                continue;
            }
            let planned = planned?;
            if !is_known || attempts.count > 1 {
                session.reserve(&planned, place.as_mut(), &view)?;
            }
            let is_done = match planned {
                Change::Nothing | Change::Queue(QueueChange { join: None, .. }) => {
                    // For the next decision of a waiter, until it hears of a change.
                    if let Some(place) = place {
                        place.view = Some(view.clone());
                        place.lease = attempts.spare.take();
                    }
                    *cluster.seen() = Some(view);
                    return Ok(Some(Updated::default()));
                }
                Change::Queue(QueueChange {
                    join: Some((request, draft)),
                    ..
                }) => {
                    attempts.waits = true;
                    let mut drawn = session.draw(*request, draft)?;
                    drawn.lease = attempts.spare.take();
                    *place = Some(drawn);
                    *cluster.seen() = Some(view);
                    return Ok(Some(Updated {
                        // Its ticket was written after the decision.
                        may_be_behind_others: true,
                        ..Updated::default()
                    }));
                }
                Change::Remove(judged, lines) => session.remove(&judged, view, None, &lines)?,
                Change::Renew(judged, live) => session.commit_renew(&judged, &live, view, &[])?,
                Change::Take {
                    put,
                    remove,
                    draft,
                    lines,
                } => {
                    let taking = Taking {
                        view: &view,
                        put: &put,
                        remove: &remove,
                        record: draft.clone(),
                        resumes: false,
                        ticket: place.as_ref().map(Place::keys),
                    };
                    match session.take(taking, &mut attempts, &lines)? {
                        Committed::Done(taken) => {
                            if let Some(place) = place {
                                place.tickets.are_over = true;
                            }
                            return Ok(Some(attempts.updated(*taken, remove)));
                        }
                        Committed::Changed(now) => {
                            view = now;
                            continue;
                        }
                        Committed::NoLease => false,
                        Committed::Paused(left) => attempts.begin_after(left, place)?,
                    }
                }
            };
            if is_done {
                return Ok(Some(Updated::default()));
            }
            view = View::unread();
        }
    }

    fn place(&self) -> Option<u64> {
        // A ticket that has ended is drawn again while a decision is being made. The snapshot knows it, and leaves
        // out what comes later.
        self.place.as_ref().map(|_| u64::MAX)
    }

    fn sleep(&mut self, until: &Until, limit: Patience<'_>, _is_unchanged: &mut IsUnchanged<'_>) {
        if let Some(news) = &mut self.news {
            let at_most = until.ripe_in().unwrap_or(LOOK).min(LOOK);
            let deadline = Deadline::of(limit.for_at_most(limit.at_most.min(at_most)));
            while let Some(left) = deadline.next_sleep(LOOK)
                && !news.has_news(left)
            {}
            return;
        }
        let Some(place) = &mut self.place else {
            // Only for a dead hold: nothing but time is waited for.
            let at_most = limit.at_most.saturating_add(Duration::from_millis(1));
            return sleep_for(limit.for_at_most(at_most));
        };
        place.sleep(until, limit);
    }

    fn position(&self, name: &LockName) -> Option<usize> {
        let own = self.place.as_ref()?.tickets.number();
        let session = self.cluster.session(Patience::SHORT);
        let tickets = session.tickets_of(name).ok()?.into_iter();
        Some(tickets.filter(|(number, _)| *number < own).count() + 1)
    }

    fn position_kept(&self, name: &LockName) -> Option<usize> {
        let place = self.place.as_ref()?;
        let session = self.cluster.session(Patience::SHORT);
        let kept = place.kept.as_ref()?;
        session
            .position_of(kept, name, place.tickets.number())
            .ok()?
    }

    fn look_again(&mut self) {
        if let Some(place) = &mut self.place {
            place.view = None;
        }
    }

    fn served(&mut self) -> (Option<Box<dyn QueuePlace>>, Option<Watch>) {
        let Some(mut place) = self.place.take() else {
            return (None, None);
        };
        if let Some(kept) = &mut place.kept {
            kept.has_been_served = true;
        }
        (Some(Box::new(place)), None)
    }
}

impl Session<'_> {
    /// What a waiter has seen, if it has heard of no change since.
    fn known(self, place: Option<&mut Place>) -> Result<Option<View>> {
        let Some(place) = place else {
            return Ok(None);
        };
        if place.tickets.are_over {
            // The process was stopped, or cut off.
            self.draw_again(place)?;
        }
        Ok(place.view.take())
    }

    /// Asks for the waiter that the lock is reserved for, which may be gone, and says that the caller is there.
    fn reserve(self, plan: &Change<'_>, place: Option<&mut Place>, view: &View) -> Result<()> {
        let (waiter, free_in) = match plan {
            Change::Queue(QueueChange {
                join: None,
                reserve,
                free_in,
                ..
            }) => (*reserve, *free_in),
            Change::Nothing => (None, None),
            _ => return Ok(()),
        };
        let Some(place) = place else {
            waiter.map(|waiter| self.ask_for(waiter, view));
            return Ok(());
        };
        if place.is_asked_for_in(view) {
            self.answer(place)?;
        }
        place.ask_for(waiter, free_in, self, view);
        Ok(())
    }

    fn take(
        self,
        mut taking: Taking<'_>,
        attempts: &mut Attempts<'_>,
        lines: &[Line],
    ) -> Result<Committed> {
        // By force: what is alive goes first, and the lock is reserved for the caller meanwhile.
        if let Some(live) = taking.replaced().find(|judged| judged.verdict.is_live()) {
            if attempts.ahead.is_none() {
                // Waiters treat the holds that are to be replaced as gone, so none of them takes one of several locks
                // while the next hold is being broken.
                let replaced = taking.replaced();
                let replaced = replaced.map(|judged| judged.found.revision.clone());
                let keys = taking.put.iter().map(|(key, _)| key);
                let request = request_of(&taking.record, keys, replaced.collect());
                attempts.ahead = Some(self.get_ahead(request, &taking.record)?);
            }
            let of_live = lines.iter().filter(|line| line.hold() == live.hold());
            let of_live: Vec<Line> = of_live.cloned().collect();
            let ahead = attempts.ahead.as_mut();
            if self.remove(live, taking.view.clone(), ahead, &of_live)? {
                attempts.displaced.push(live.clone());
            }
            return Ok(Committed::Changed(View::unread()));
        }
        let seconds = seconds_of(&taking.record);
        let record = &mut taking.record;
        // It may have been waited for.
        record.acquired_at = Utc::now().trunc_subsecs(6);
        if record.kind == Kind::Lease {
            record.live.expires_at = expiry(seconds);
            record.live.renewed_at = Some(record.acquired_at);
        }
        let (device, inode) = (0, 0);
        // The process on record is the wrapper, and the calling one may be its keeper, which began later.
        record.origin = Some(Origin {
            start: record.taken_by.and_then(start_ticks),
            ..self.cluster.host.origin(FileId { device, inode })
        });
        let lease = match attempts.spare.take() {
            Some(lease) => lease,
            None => self.grant(TAKE, seconds)?,
        };
        let committed = self.commit_take(taking, lease, lines)?;
        if let Committed::Changed(_) | Committed::Paused(_) = committed {
            // For the next attempt.
            attempts.spare = Some(lease);
        }
        Ok(committed)
    }
}
