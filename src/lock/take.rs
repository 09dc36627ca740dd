//! Takes a lock: decide, commit or wait, again.

use std::time::Duration;

use super::lock::Lock;
use super::taken_hold::TakenHold;
use super::unfinished::{Unfinished, is_orphaned_ending};
use super::wait::Wait;
use crate::backend::{
    Backend, Change, Contender, Draft, Entry, HeldRecord, LockSnapshot, QueueChange, SleepLimit,
};
use crate::decision::{
    Decision, Judged, Obstacle, Request, Until, awaits_confirmation, decide, judge_found, until,
    waiting_for,
};
use crate::error::{Error, Operation, Result};
use crate::identity::ProcessId;
use crate::open_file::Handle;
use crate::record::Content;

/// Number of new holds that an attempt may lose to programs that do not enter the guard.
const MAX_LOSSES: usize = 100;

/// Interval at which a waiter goes on to end what is left of the hold that it waits for.
const FINISH_INTERVAL: Duration = Duration::from_millis(100);

/// Result of an attempt to take a lock.
pub(super) enum Outcome {
    Held(Box<TakenHold>),
    /// The same holder already has the lock, by this hold.
    AlreadyHeld(Judged<Handle>),
    /// By a hold or a waiter, or because so many wait already.
    Blocked(Obstacle<Handle>, Option<usize>),
}

/// The step after a decision.
enum Next {
    /// The hold is taken, in place of these.
    Taken(Vec<Judged<Handle>>),
    End(Outcome),
    /// It is not confirmed yet.
    Unconfirmed(Judged<Handle>),
    Sleep(Box<Sleep>),
}

/// What a waiter sleeps on.
struct Sleep {
    obstacle: Obstacle<Handle>,
    until: Until<Handle>,
    /// How many wait already, of a new waiter that is asked for that.
    waiting: u32,
}

/// Takes a lock, and waits for it if that is wanted. `process`: the one that the hold is for, if it is not this
/// one. `kept`: gets the position that is kept in the queue.
pub(super) fn take(
    lock: &Lock,
    request: Request,
    draft: &mut Draft,
    process: Option<ProcessId>,
    wait: &mut Wait<'_>,
    kept: &mut Option<usize>,
) -> Result<Outcome> {
    let mut contender = lock.store.contender(wait.back_off, draft.record.mode);
    let outcome = take_as(&mut *contender, lock, request, draft, process, wait);
    match &outcome {
        Ok(Outcome::Blocked(..)) => *kept = contender.position_kept(lock.name()),
        // Its owner has had its turn.
        Ok(Outcome::AlreadyHeld(_)) => drop(contender.served()),
        _ => {}
    }
    outcome
}

fn take_as(
    contender: &mut (dyn Contender + '_),
    lock: &Lock,
    mut request: Request,
    draft: &mut Draft,
    process: Option<ProcessId>,
    wait: &mut Wait<'_>,
) -> Result<Outcome> {
    let backend = &*lock.store;
    let unfinished_work = Unfinished::default();
    let mut losses = 0;
    let mut last_obstacle = None;
    let mut has_just_joined = false;
    loop {
        ensure_alive(process)?;
        let entry = Entry {
            create: true,
            patience: wait.patience(),
        };
        // A place that was lost is drawn again, with another number.
        request.ticket = contender.place();
        let waits = wait.is_wanted();
        let longest_queue = wait.longest_queue();
        let updated = contender.update(entry, |snapshot| {
            let longest_queue = longest_queue.map(|most| (most, has_just_joined));
            plan(lock, &request, snapshot, draft, longest_queue)
        });
        let updated = match (updated, last_obstacle.take()) {
            // The limit of the wait has passed, or it was canceled, while the store was busy.
            (Err(Error::StoreBusy { .. }), Some(obstacle)) => {
                return Ok(Outcome::Blocked(obstacle, None));
            }
            (updated, _) => updated?,
        };
        let Some((updated, next)) = updated else {
            return Err(store_vanished());
        };
        has_just_joined = updated.may_be_behind_others;
        if let (Some(asked), Next::Sleep(sleep)) = (&mut draft.record.asked, &next) {
            asked.waiting = asked.waiting.max(sleep.waiting);
        }
        if has_just_joined {
            continue;
        }
        let unfinished = unfinished(&next);
        if let Some(judged) = unfinished.filter(|judged| lock.finish(judged, &unfinished_work)) {
            request.over.extend(judged.hold());
            continue;
        }
        let is_unfinished = unfinished.is_some();
        let Sleep {
            obstacle, until, ..
        } = match next {
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
                let removed = updated.removed;
                let taken = lock.taken(hold, contender.served(), displaced, removed);
                return Ok(Outcome::Held(Box::new(taken)));
            }
            Next::End(outcome) => return Ok(outcome),
            Next::Unconfirmed(judged) => {
                let obstacle = Obstacle::Hold(judged.clone());
                if waits && wait.should_stop(false, || lock.obstacle_status(&obstacle)) {
                    return Ok(Outcome::Blocked(obstacle, None));
                }
                sleep_until_confirmed(backend, contender, &request, judged, wait);
                last_obstacle = Some(obstacle);
                continue;
            }
            Next::Sleep(sleep) => *sleep,
        };
        let is_ripening = matches!(until, Until::Ripe(..));
        if wait.should_stop(is_ripening, || lock.obstacle_status(&obstacle)) {
            return Ok(Outcome::Blocked(obstacle, None));
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
        Next::End(Outcome::Blocked(obstacle, None)) => obstacle,
        Next::Sleep(sleep) => &sleep.obstacle,
        Next::Taken(_) | Next::End(_) | Next::Unconfirmed(_) => return None,
    };
    match obstacle {
        Obstacle::Hold(judged) if is_orphaned_ending(judged) => Some(judged),
        _ => None,
    }
}

fn blocked(by: Obstacle<Handle>) -> Next {
    Next::End(Outcome::Blocked(by, None))
}

/// A wait can last longer than the process that it is for.
fn ensure_alive(process: Option<ProcessId>) -> Result<()> {
    match process {
        Some(process) if process.has_ended() => Err(Error::NoSuchProcess {
            pid: process.pid.get(),
        }),
        _ => Ok(()),
    }
}

/// The change that follows from a decision, and what follows the change. Pure, but for what the snapshot reads.
fn plan<'d>(
    lock: &Lock,
    request: &Request,
    snapshot: &dyn LockSnapshot,
    draft: &'d Draft,
    longest_queue: Option<(u32, bool)>,
) -> Result<(Change<'d>, Next)> {
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
            let extended = |record| lock.extended(record, draft.record.ttl());
            let Some(live) = judged.record().and_then(extended) else {
                return Ok((Change::Nothing, Next::End(Outcome::AlreadyHeld(judged))));
            };
            let change = Change::Renew(judged.clone(), Box::new(live.clone()));
            if let Content::Record(record) = &mut judged.found.content {
                record.live = live;
            }
            // The change may have extended it.
            let judged = judge_found(request, snapshot, judged.found);
            (change, Next::End(Outcome::AlreadyHeld(judged)))
        }
        Decision::Blocked(judged) => (Change::Nothing, blocked(Obstacle::Hold(judged))),
        Decision::Refuse(judged, what) => return Err(lock.not_a_lock(&judged.found.key, what)),
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
            if longest_queue.is_none() && !is_ripening {
                return Ok((Change::Queue(change), blocked(obstacle)));
            }
            let mut waiting = 0;
            if let Some((most, has_just_joined)) = longest_queue {
                let is_new = request.ticket.is_none();
                if is_new && draft.record.asked.is_some() {
                    waiting = waiting_for(&request.wants, snapshot)?
                        .try_into()
                        .unwrap_or(u32::MAX);
                }
                // Who has no limit does not count. On etcd others may have joined at the same moment: once it
                // has a ticket, those before it count.
                if most < u32::MAX && (is_new || has_just_joined) {
                    let others = waiting_for(&request.wants, snapshot)?;
                    if others >= usize::try_from(most).unwrap_or(usize::MAX) {
                        let full = Outcome::Blocked(obstacle, Some(others));
                        return Ok((Change::Queue(change), Next::End(full)));
                    }
                }
                if is_new {
                    change.join = Some((Box::new(request.clone()), draft));
                }
            }
            let until = until(request, obstacle.clone(), snapshot)?;
            (
                Change::Queue(change),
                Next::Sleep(Box::new(Sleep {
                    obstacle,
                    until,
                    waiting,
                })),
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
