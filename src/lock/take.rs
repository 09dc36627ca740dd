//! Takes a lock: decide, commit or wait, again. Generic over where the locks are.

use std::time::Duration;

use super::unfinished::is_orphaned_ending;
use crate::backend::{
    AsWaiter, Backend, Change, Draft, Entry, HeldRecord, QueueChange, QueuePlace, SleepLimit,
};
use crate::decision::{
    Decision, Judged, Key, Obstacle, Request, Until, awaits_confirmation, decide, until,
};
use crate::error::{Error, Operation, Result};
use crate::lock::wait::Wait;
use crate::record::{Live, Mode, Record};
use crate::status::Status;

/// How often a new hold may be lost to a program that does not enter the guard.
const MAX_LOSSES: usize = 100;

/// How often a waiter goes on to end what is left of the hold that it waits for.
const FINISH_INTERVAL: Duration = Duration::from_millis(100);

/// What became of an attempt to take a lock.
pub(super) enum Outcome<B: Backend> {
    Held(Box<Held<B>>),
    /// The same holder has it already; as it is now.
    AlreadyHeld(Judged<B::Handle>),
    Blocked(Obstacle<B::Handle>),
    /// The file of this one is not a lock file.
    NotALock(Key, &'static str),
}

/// A hold that was taken.
pub(super) struct Held<B: Backend> {
    pub(super) hold: B::Hold,
    /// The holds that it replaced.
    pub(super) displaced: Vec<Judged<B::Handle>>,
    /// Dead relatives that were removed.
    pub(super) removed: Vec<Judged<B::Handle>>,
    /// Its place in the queue. Leaving it wakes the next waiter, which needs the processor that a
    /// command is about to start on.
    pub(super) place: Option<B::Place>,
    pub(super) sleeper: Option<B::Sleeper>,
}

/// What the engine asks its caller.
pub(super) struct Callbacks<'a, H> {
    /// What a repeated request of the same holder writes, if anything.
    pub(super) extend: &'a dyn Fn(&Record) -> Option<Live>,
    /// Fails if the process that the hold is for has ended.
    pub(super) ensure_alive: &'a dyn Fn() -> Result<()>,
    pub(super) status: &'a dyn Fn(&Obstacle<H>) -> Status,
    /// Ends what is left of a hold whose work is being ended by a process that is gone. Whether
    /// nothing is left.
    pub(super) finish: &'a dyn Fn(&Judged<H>) -> bool,
}

/// What follows a decision.
enum Next<H> {
    Taken(Vec<Judged<H>>),
    AlreadyHeld(Judged<H>),
    Blocked(Obstacle<H>),
    NotALock(Key, &'static str),
    /// It is not confirmed yet.
    Unconfirmed(Judged<H>),
    Sleep(Box<(Obstacle<H>, Until<H>)>),
}

pub(super) fn take<B: Backend>(
    backend: &B,
    mut request: Request,
    draft: &Draft,
    wait: &mut Wait<'_>,
    callbacks: &Callbacks<'_, B::Handle>,
) -> Result<Outcome<B>> {
    let mut place: Option<B::Place> = None;
    let mut sleeper: Option<B::Sleeper> = None;
    let mut losses = 0;
    let mut last_obstacle = None;
    let mode = mode_of(&request);
    loop {
        (callbacks.ensure_alive)()?;
        let entry = entry(wait, mode);
        let (waits, is_queued) = (wait.is_wanted(), place.is_some());
        // A place that was lost is drawn again, with another number.
        request.ticket = place.as_ref().map(QueuePlace::number);
        let waiter = AsWaiter {
            place: place.as_mut(),
            sleeper: sleeper.as_mut(),
        };
        let updated = backend.update(entry, waiter, |snapshot| {
            plan(
                &request,
                snapshot,
                draft,
                waits,
                is_queued,
                callbacks.extend,
            )
        });
        let updated = match (updated, last_obstacle.take()) {
            // The limit of the wait has passed, or it was canceled, while the store was busy.
            (Err(Error::StoreBusy { .. }), Some(obstacle)) => {
                return Ok(Outcome::Blocked(obstacle));
            }
            (updated, _) => updated?,
        };
        let Some(updated) = updated else {
            return Err(store_vanished());
        };
        if let Some(joined) = updated.place {
            let is_decided = !joined.may_be_behind_others();
            place = Some(joined);
            if !is_decided {
                continue;
            }
        }
        let unfinished = unfinished(&updated.answer);
        if let Some(judged) = unfinished.filter(|judged| (callbacks.finish)(judged)) {
            request.over.extend(judged.hold());
            continue;
        }
        let is_unfinished = unfinished.is_some();
        let (obstacle, until) = match updated.answer {
            Next::Taken(displaced) => {
                let Some(mut hold) = updated.hold else {
                    return Err(store_vanished());
                };
                if !survives(&mut hold)? {
                    losses += 1;
                    if losses > MAX_LOSSES {
                        return Err(store_vanished());
                    }
                    continue;
                }
                return Ok(Outcome::Held(Box::new(Held {
                    hold,
                    displaced,
                    removed: updated.removed,
                    place,
                    sleeper,
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
                let sleeper = sleeper.get_or_insert_with(|| backend.sleeper(wait.pace(), mode));
                sleep_until_confirmed(backend, &request, judged, wait, sleeper);
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
        if let Some(place) = &mut place {
            place.prepare();
        }
        let sleeper = sleeper.get_or_insert_with(|| backend.sleeper(wait.pace(), mode));
        backend.sleep(sleeper, place.as_mut(), &until, limit, || {
            is_unchanged(backend, &request, &obstacle)
        });
        if let Some(place) = place.as_mut().filter(|_| wait.is_due()) {
            place.look_again();
        }
        last_obstacle = Some(obstacle);
    }
}

/// Whether a new hold is still there once it counts. If not, it is given up.
fn survives<H: HeldRecord>(hold: &mut H) -> Result<bool> {
    let survives = hold.survives_settling_time();
    if !matches!(survives, Ok(true)) {
        let _ = hold.release();
    }
    survives
}

/// Sleeps until the process that acquires a hold has confirmed it, or has ended, or has had its time.
fn sleep_until_confirmed<B: Backend>(
    backend: &B,
    request: &Request,
    judged: Judged<B::Handle>,
    wait: &Wait<'_>,
    sleeper: &mut B::Sleeper,
) {
    let left = judged.confirmed_within().unwrap_or_default();
    let limit = wait.sleep_limit(wait.until_certain(left));
    let obstacle = Obstacle::Hold(judged.clone());
    let until = Until::Released(judged);
    backend.sleep(sleeper, None, &until, limit, || {
        is_unchanged(backend, request, &obstacle)
    });
}

fn entry<'a>(wait: &mut Wait<'a>, mode: Mode) -> Entry<'a> {
    Entry {
        create: true,
        patience: wait.patience(),
        mode,
    }
}

fn mode_of(request: &Request) -> Mode {
    let first = request.wants.first();
    first.map_or_else(Mode::default, |want| want.mode)
}

fn sleep_limit<'a, H>(wait: &Wait<'a>, until: &Until<H>, is_unfinished: bool) -> SleepLimit<'a> {
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
fn unfinished<H>(next: &Next<H>) -> Option<&Judged<H>> {
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
type Planned<'d, H> = (Change<'d, H>, Next<H>);

/// The change that follows from a decision. Pure, but for what the snapshot reads.
fn plan<'d, S: crate::decision::Snapshot<Error = Error>>(
    request: &Request,
    snapshot: &S,
    draft: &'d Draft,
    waits: bool,
    is_queued: bool,
    extend: &dyn Fn(&Record) -> Option<Live>,
) -> Result<Planned<'d, S::Handle>> {
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
            if waits && !is_queued {
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
fn is_unchanged<B: Backend>(
    backend: &B,
    request: &Request,
    obstacle: &Obstacle<B::Handle>,
) -> bool {
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
