//! Makes the change that was decided on, and decides again if the store has changed meanwhile.

use std::time::Duration;

use chrono::{SubsecRound as _, Utc};

use super::client::Granted;
use super::commit::{Committed, Taking, expiry, request_of, seconds_of};
use super::failure::has_fault;
use super::held::HeldKeys;
use super::snapshot::EtcdSnapshot;
use super::store::{Etcd, Session, Shared};
use super::view::View;
use super::waiting::{Place, Tickets};
use crate::backend::{
    Change, Contender, Deadline, Entry, Patience, Plan, QueueChange, QueuePlace, Updated, sleep_for,
};
use crate::decision::{Judged, Request, Until};
use crate::error::{Error, Fault, Result};
use crate::identity::Origin;
use crate::name::LockName;
use crate::open_file::Handle;
use crate::record::Kind;
use crate::sys::FileId;
use crate::sys::process::{boottime, start_ticks};
use crate::sys::random_u64;
use crate::sys::wait::{Watch, pause};

/// How many attempts follow each other without a pause.
const AT_ONCE: u32 = 8;

/// A caller that did not wait leaves a lease to its end, unless that lasts longer than this: to give it back costs a
/// request.
const SHORT_TTL_MS: u64 = 60_000;

/// The attempts at one change, and what they have brought so far. Others may keep changing what it was decided on.
struct Attempts<'a> {
    shared: &'a Shared,
    count: u32,
    began: Duration,
    deadline: Deadline<'a>,
    /// A lease that was granted for a take which was refused, or that a waiter has kept ready.
    spare: Option<Granted>,
    /// The caller waits.
    waits: bool,
    /// What was removed by force.
    displaced: Vec<Judged<Handle>>,
    /// What reserves the lock for a caller that takes by force.
    ahead: Option<Tickets>,
}

impl<'a> Attempts<'a> {
    fn new(shared: &'a Shared, patience: Patience<'a>, spare: Option<Granted>) -> Self {
        Self {
            shared,
            waits: spare.is_some(),
            count: 0,
            began: boottime(),
            deadline: Deadline::of(patience),
            spare,
            displaced: Vec::new(),
            ahead: None,
        }
    }

    /// Pauses if there have been many. Fails if there is no time for another one.
    fn begin(&mut self, store: &str) -> Result<()> {
        self.count += 1;
        if self.count <= AT_ONCE {
            return Ok(());
        }
        let most = u64::from(self.count).min(100);
        let interval = Duration::from_millis(1 + random_u64() % most);
        let left = self.deadline.next_sleep(interval);
        let left = left.ok_or_else(|| Error::StoreBusy {
            path: store.into(),
            pid: None,
            waited: boottime().saturating_sub(self.began),
        })?;
        let _ = pause(left);
        Ok(())
    }
}

impl Drop for Attempts<'_> {
    fn drop(&mut self) {
        let is_long = |lease: &Granted| self.waits || lease.ttl_ms() > SHORT_TTL_MS;
        if let Some(lease) = self.spare.take_if(|lease| is_long(lease)) {
            self.shared.client.revoke(lease.id);
        }
    }
}

/// A caller that changes a store, and its place in the queue.
pub(super) struct EtcdContender<'a> {
    etcd: &'a Etcd,
    place: Option<Place>,
}

impl<'a> EtcdContender<'a> {
    pub(super) fn new(etcd: &'a Etcd) -> Self {
        Self { etcd, place: None }
    }
}

impl Contender for EtcdContender<'_> {
    fn apply(&mut self, entry: Entry<'_>, plan: &mut Plan<'_, '_>) -> Result<Option<Updated>> {
        let (etcd, place) = (self.etcd, &mut self.place);
        let session = etcd.session(entry.patience);
        if let Some(place) = place.as_mut().filter(|place| place.tickets.are_over) {
            // The process was stopped, or cut off.
            session.draw_again(place)?;
        }
        let known = place.as_mut().and_then(|place| place.view.take());
        let mut view = match known {
            Some(view) => view,
            None if entry.create && place.is_none() => View::guess(),
            None => View::unread(),
        };
        let spare = place.as_mut().and_then(|place| place.lease.take());
        let mut attempts = Attempts::new(&etcd.shared, entry.patience, spare);
        loop {
            attempts.begin(etcd.url())?;
            let own = place.as_ref().map(|place| &place.tickets);
            let own = attempts.ahead.as_ref().or(own).map(Tickets::number);
            let mut snapshot = EtcdSnapshot::new(session, view);
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
            let is_done = match planned? {
                Change::Nothing | Change::Queue(QueueChange { join: None, .. }) => {
                    // For the next decision of a waiter, until it hears of a change.
                    if let Some(place) = place {
                        place.view = Some(view.clone());
                        place.lease = attempts.spare.take();
                    }
                    *etcd.shared.seen() = Some(view);
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
                    *etcd.shared.seen() = Some(view);
                    return Ok(Some(Updated {
                        // Its ticket was written after the decision.
                        may_be_behind_others: true,
                        ..Updated::default()
                    }));
                }
                Change::Remove(judged) => session.remove(&judged, view, None)?,
                Change::Renew(judged, live) => session.commit_renew(&judged, &live, view)?,
                Change::Take { put, remove, draft } => {
                    let taking = Taking {
                        view: &view,
                        put: &put,
                        remove: &remove,
                        record: draft.clone(),
                        resumes: false,
                        ticket: place.as_ref().map(Place::keys),
                    };
                    match session.take(taking, &mut attempts)? {
                        Committed::Done(taken) => {
                            if let Some(place) = place {
                                place.tickets.are_over = true;
                            }
                            let mut removed = remove;
                            removed.append(&mut attempts.displaced);
                            return Ok(Some(Updated {
                                hold: Some(Box::new(HeldKeys::new(etcd, *taken))),
                                removed,
                                ..Updated::default()
                            }));
                        }
                        Committed::Changed(now) => {
                            view = now;
                            continue;
                        }
                        Committed::NoLease => false,
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

    fn sleep(
        &mut self,
        until: &Until<Handle>,
        limit: Patience<'_>,
        _is_unchanged: &mut dyn FnMut() -> bool,
    ) {
        let Some(place) = &mut self.place else {
            // Only for a dead hold: nothing but time is waited for.
            let at_most = limit.at_most.saturating_add(Duration::from_millis(1));
            return sleep_for(limit.for_at_most(at_most));
        };
        place.sleep(until, limit);
    }

    fn position_kept(&self, name: &LockName) -> Option<usize> {
        let place = self.place.as_ref()?;
        let session = self.etcd.session(Patience::SHORT);
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
    fn take(self, mut taking: Taking<'_>, attempts: &mut Attempts<'_>) -> Result<Committed> {
        // By force: what is alive goes first, and the lock is reserved for the caller meanwhile.
        if let Some(live) = taking.replaced().find(|judged| judged.verdict.is_live()) {
            if attempts.ahead.is_none() {
                let request = request_by_force(&taking);
                attempts.ahead = Some(self.get_ahead(request, &taking.record)?);
            }
            if self.remove(live, taking.view.clone(), attempts.ahead.as_mut())? {
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
            ..self.etcd.host.origin(FileId { device, inode })
        });
        let lease = match attempts.spare.take() {
            Some(lease) => lease,
            None => self.grant(seconds)?,
        };
        let committed = self.commit_take(taking, lease)?;
        if let Committed::Changed(_) = committed {
            // For the next attempt.
            attempts.spare = Some(lease);
        }
        Ok(committed)
    }
}

/// Asks for locks in place of live holds, ahead of all waiters. Waiters treat the holds that are to be replaced as
/// gone, so none of them takes one of several locks while the next hold is being broken.
fn request_by_force(taking: &Taking<'_>) -> Request {
    let replaced = taking.replaced();
    let replaced = replaced.map(|judged| judged.found.revision.clone());
    let keys = taking.put.iter().map(|(key, _)| key);
    request_of(&taking.record, keys, replaced.collect())
}
