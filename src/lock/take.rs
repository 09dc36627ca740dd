//! Takes a lock: decide, commit or wait, again.

use std::time::Duration;

use super::unfinished::is_orphaned_ending;
use crate::backend::{
    Backend, Change, Contender, Draft, Entry, HeldRecord, LockSnapshot, QueueChange, QueuePlace,
    SleepLimit,
};
use crate::decision::{
    Decision, Judged, Key, Obstacle, Request, Until, awaits_confirmation, decide, judge_found,
    until,
};
use crate::error::{Error, Operation, Result};
use crate::lock::wait::Wait;
use crate::open_file::Handle;
use crate::record::{Live, Mode, Record};
use crate::status::Status;
use crate::sys::wait::Watch;

/// Number of new holds that an attempt may lose to programs that do not enter the guard.
const MAX_LOSSES: usize = 100;

/// Interval at which a waiter goes on to end what is left of the hold that it waits for.
const FINISH_INTERVAL: Duration = Duration::from_millis(100);

/// Result of an attempt to take a lock.
pub(super) enum Outcome {
    Held(Box<Held>),
    /// The same holder already has the lock, by this hold.
    AlreadyHeld(Judged<Handle>),
    Blocked(Obstacle<Handle>),
    /// The file of this one is not a lock file.
    NotALock(Key, &'static str),
}

/// A hold that was taken.
pub(super) struct Held {
    pub(super) hold: Box<dyn HeldRecord>,
    /// The holds that it replaced.
    pub(super) displaced: Vec<Judged<Handle>>,
    /// Dead relatives that were removed.
    pub(super) removed: Vec<Judged<Handle>>,
    /// Its place in the queue. Leaving it wakes the next waiter, which needs the processor that a
    /// command is about to start on.
    pub(super) place: Option<Box<dyn QueuePlace>>,
    /// The watch that it slept with. Closing it takes milliseconds.
    pub(super) watch: Option<Watch>,
}

/// Questions of [`take`] to its caller.
pub(super) struct Callbacks<'a> {
    /// The part of the record that a repeated request of the same holder writes, if any.
    pub(super) extend: &'a dyn Fn(&Record) -> Option<Live>,
    /// Fails if the process that the hold is for has ended.
    pub(super) ensure_alive: &'a dyn Fn() -> Result<()>,
    pub(super) status: &'a dyn Fn(&Obstacle<Handle>) -> Status,
    /// Ends what is left of a hold whose work is being ended by a process that is gone. Whether
    /// nothing is left.
    pub(super) finish: &'a dyn Fn(&Judged<Handle>) -> bool,
}

/// The step after a decision.
enum Next {
    Taken(Vec<Judged<Handle>>),
    AlreadyHeld(Judged<Handle>),
    Blocked(Obstacle<Handle>),
    NotALock(Key, &'static str),
    /// It is not confirmed yet.
    Unconfirmed(Judged<Handle>),
    Sleep(Box<(Obstacle<Handle>, Until<Handle>)>),
}

pub(super) fn take(
    backend: &dyn Backend,
    mut request: Request,
    draft: &Draft,
    wait: &mut Wait<'_>,
    callbacks: &Callbacks<'_>,
) -> Result<Outcome> {
    let mut losses = 0;
    let mut last_obstacle = None;
    let mut contender = backend.contender(wait.back_off, mode_of(&request));
    loop {
        (callbacks.ensure_alive)()?;
        let entry = Entry {
            create: true,
            patience: wait.patience(),
        };
        // A place that was lost is drawn again, with another number.
        request.ticket = contender.place();
        let waits = wait.is_wanted();
        let updated = contender.update(entry, |snapshot| {
            plan(&request, snapshot, draft, waits, callbacks.extend)
        });
        let updated = match (updated, last_obstacle.take()) {
            // The limit of the wait has passed, or it was canceled, while the store was busy.
            (Err(Error::StoreBusy { .. }), Some(obstacle)) => {
                return Ok(Outcome::Blocked(obstacle));
            }
            (updated, _) => updated?,
        };
        let Some((updated, next)) = updated else {
            return Err(store_vanished());
        };
        if updated.may_be_behind_others {
            continue;
        }
        let unfinished = unfinished(&next);
        if let Some(judged) = unfinished.filter(|judged| (callbacks.finish)(judged)) {
            request.over.extend(judged.hold());
            continue;
        }
        let is_unfinished = unfinished.is_some();
        let (obstacle, until) = match next {
            Next::Taken(displaced) => {
                let Some(mut hold) = updated.hold else {
                    return Err(store_vanished());
                };
                if !survives(&mut *hold)? {
                    losses += 1;
                    if losses > MAX_LOSSES {
                        return Err(store_vanished());
                    }
                    continue;
                }
                let (place, watch) = contender.into_parts();
                return Ok(Outcome::Held(Box::new(Held {
                    hold,
                    displaced,
                    removed: updated.removed,
                    place,
                    watch,
                })));
            }
            Next::AlreadyHeld(judged) => return Ok(Outcome::AlreadyHeld(judged)),
            Next::Blocked(obstacle) => return Ok(Outcome::Blocked(obstacle)),
            Next::NotALock(key, what) => return Ok(Outcome::NotALock(key, what)),
            Next::Unconfirmed(judged) => {
                let obstacle = Obstacle::Hold(judged.clone());
                if waits && wait.should_stop(false, || (callbacks.status)(&obstacle)) {
                    return Ok(Outcome::Blocked(obstacle));
                }
                sleep_until_confirmed(backend, &mut *contender, &request, judged, wait);
                last_obstacle = Some(obstacle);
                continue;
            }
            Next::Sleep(sleep) => *sleep,
        };
        let is_ripening = matches!(until, Until::Ripe(..));
        if wait.should_stop(is_ripening, || (callbacks.status)(&obstacle)) {
            return Ok(Outcome::Blocked(obstacle));
        }
        let limit = sleep_limit(wait, &until, is_unfinished);
        contender.sleep(&until, limit, &mut || {
            is_unchanged(backend, &request, &obstacle)
        });
        if wait.is_due() {
            contender.look_again();
        }
        last_obstacle = Some(obstacle);
    }
}

/// Whether a new hold is still there once it counts. If not, it is given up.
fn survives(hold: &mut dyn HeldRecord) -> Result<bool> {
    let survives = hold.survives_settling_time();
    if !matches!(survives, Ok(true)) {
        let _ = hold.release();
    }
    survives
}

/// Sleeps until the process that acquires a hold has confirmed it, or has ended, or has had its time.
fn sleep_until_confirmed(
    backend: &dyn Backend,
    contender: &mut dyn Contender,
    request: &Request,
    judged: Judged<Handle>,
    wait: &Wait<'_>,
) {
    let left = judged.confirmed_within().unwrap_or_default();
    let limit = wait.sleep_limit(wait.until_certain(left));
    let obstacle = Obstacle::Hold(judged.clone());
    let until = Until::Released(judged);
    contender.sleep(&until, limit, &mut || {
        is_unchanged(backend, request, &obstacle)
    });
}

fn mode_of(request: &Request) -> Mode {
    let first = request.wants.first();
    first.map_or_else(Mode::default, |want| want.mode)
}

fn sleep_limit<'a>(wait: &Wait<'a>, until: &Until<Handle>, is_unfinished: bool) -> SleepLimit<'a> {
    let mut at_most = match until {
        Until::Ripe(_, after) => wait.until_certain(*after),
        _ => wait.next_sleep(),
    };
    if is_unfinished {
        at_most = at_most.min(FINISH_INTERVAL);
    }
    wait.sleep_limit(at_most)
}

/// The hold in the way, if its work is being ended by a process that is gone.
fn unfinished(next: &Next) -> Option<&Judged<Handle>> {
    let obstacle = match next {
        Next::Blocked(obstacle) => obstacle,
        Next::Sleep(sleep) => &sleep.0,
        Next::Taken(_) | Next::AlreadyHeld(_) | Next::NotALock(..) | Next::Unconfirmed(_) => {
            return None;
        }
    };
    match obstacle {
        Obstacle::Hold(judged) if is_orphaned_ending(judged) => Some(judged),
        _ => None,
    }
}

/// A change, and what follows it.
type Planned<'d> = (Change<'d>, Next);

/// The change that follows from a decision. Pure, but for what the snapshot reads.
fn plan<'d>(
    request: &Request,
    snapshot: &dyn LockSnapshot,
    draft: &'d Draft,
    waits: bool,
    extend: &dyn Fn(&Record) -> Option<Live>,
) -> Result<Planned<'d>> {
    Ok(match decide(request, snapshot)? {
        Decision::Take { put, remove } => {
            let mut displaced: Vec<Judged<_>> = Vec::new();
            for judged in put.iter().filter_map(|(_, replaced)| replaced.as_ref()) {
                // One hold may have had several of the names.
                let revision = &judged.found.revision;
                if !displaced
                    .iter()
                    .any(|known| known.found.revision == *revision)
                {
                    displaced.push(judged.clone());
                }
            }
            let change = Change::Take { put, remove, draft };
            (change, Next::Taken(displaced))
        }
        Decision::AlreadyHeld(mut judged) => {
            let Some(live) = judged.record().and_then(extend) else {
                return Ok((Change::Nothing, Next::AlreadyHeld(judged)));
            };
            let change = Change::Renew(judged.clone(), Box::new(live.clone()));
            if let crate::record::Content::Record(record) = &mut judged.found.content {
                record.live = live;
            }
            // The change may have extended it.
            let judged = judge_found(request, snapshot, judged.found);
            (change, Next::AlreadyHeld(judged))
        }
        Decision::Blocked(judged) => (Change::Nothing, Next::Blocked(Obstacle::Hold(judged))),
        Decision::Refuse(judged, what) => (Change::Nothing, Next::NotALock(judged.found.key, what)),
        Decision::Wait(Obstacle::Hold(judged)) if awaits_confirmation(request, &judged) => {
            (Change::Nothing, Next::Unconfirmed(judged))
        }
        Decision::Wait(obstacle) => {
            let mut change = QueueChange::default();
            match &obstacle {
                Obstacle::Waiter(ticket) => change.reserve = Some(ticket.number),
                // It has not missed its turn while the lock is not free.
                Obstacle::Hold(judged) if judged.verdict.is_live() => {
                    change.restore_turn = request.ticket;
                }
                Obstacle::Hold(_) => {}
            }
            let is_ripening = matches!(&obstacle, Obstacle::Hold(judged)
                if judged.verdict.takeable_in.is_some());
            if !waits && !is_ripening {
                return Ok((Change::Queue(change), Next::Blocked(obstacle)));
            }
            if waits && request.ticket.is_none() {
                change.join = Some((Box::new(request.clone()), draft));
            }
            let until = until(request, obstacle.clone(), snapshot)?;
            (
                Change::Queue(change),
                Next::Sleep(Box::new((obstacle, until))),
            )
        }
    })
}

/// Whether the same hold is still in the way. Asked once a watch is set, so that no change between
/// the decision and the watch is missed.
fn is_unchanged(backend: &dyn Backend, request: &Request, obstacle: &Obstacle<Handle>) -> bool {
    let Obstacle::Hold(before) = obstacle else {
        return true;
    };
    let looked = backend.look(|snapshot| {
        Ok(match decide(request, snapshot)? {
            Decision::Wait(Obstacle::Hold(now)) => {
                now.found.revision == before.found.revision
                    && now.verdict.state == before.verdict.state
                    && now.confirmed_within().is_some() == before.confirmed_within().is_some()
            }
            _ => false,
        })
    });
    matches!(looked, Ok(Some(true)))
}

fn store_vanished() -> Error {
    Error::Io {
        operation: Operation::TakeLock,
        path: std::path::PathBuf::new(),
        source: std::io::Error::other("its files keep changing"),
    }
}
