//! Takes a lock: decide, commit or wait, again.

use std::time::Duration;

use super::hold::Hold;
use super::lock::Lock;
use super::unfinished::{author, is_orphaned_ending};
use super::wait::Wait;
use crate::backend::{
    Backend, Change, Contender, Entry, HeldRecord, LockSnapshot, QueueChange, with_answer,
};
use crate::decision::{
    Asker, Decision, Judged, Obstacle, Request, Until, awaits_confirmation, decide, judge_found,
    next_in_turn, until, waiting_for,
};
use crate::error::{Error, Operation, Result};
use crate::open_file::Handle;
use crate::record::{Content, Record};

/// Number of new holds that an attempt may lose to programs that do not enter the guard.
const MAX_LOSSES: usize = 100;

/// Interval at which a waiter goes on to end what is left of the hold that it waits for.
const FINISH_INTERVAL: Duration = Duration::from_millis(100);

/// Result of an attempt to take a lock.
pub(super) enum Outcome {
    Held(Box<Hold>),
    /// The same holder already has the lock, by this hold.
    AlreadyHeld(Judged<Handle>),
    /// By a hold or a waiter, or because so many wait already.
    Blocked(Obstacle<Handle>, Option<usize>),
}

/// The step after a decision.
#[allow(
    clippy::large_enum_variant,
    reason = "there is one, which is moved once"
)]
enum Next {
    /// The hold is taken, in place of these.
    Taken(Vec<Judged<Handle>>),
    End(Outcome),
    Sleep(Box<Sleep>),
}

/// What a waiter sleeps on.
struct Sleep {
    obstacle: Obstacle<Handle>,
    until: Until<Handle>,
    /// The process that acquires the hold has not confirmed it yet.
    is_unconfirmed: bool,
    /// When the state of the lock is certain, if it is not: a hold is confirmed or not, or a dead one can be
    /// taken over.
    certain_in: Option<Duration>,
    /// How many wait already, of a new waiter that is asked for that.
    waiting: u32,
}

/// Takes a lock, and waits for it if that is wanted. Also returns the position that is kept in the queue.
pub(super) fn take(
    lock: &Lock,
    request: Request,
    draft: &mut Record,
    wait: &mut Wait<'_>,
) -> Result<(Outcome, Option<usize>)> {
    let mut contender = lock.store.contender(wait.back_off, draft.mode);
    let outcome = take_as(&mut *contender, lock, request, draft, wait)?;
    let kept = match &outcome {
        Outcome::Blocked(..) => contender.position_kept(lock.name()),
        // Its owner has had its turn.
        Outcome::AlreadyHeld(_) => {
            drop(contender.served());
            None
        }
        Outcome::Held(_) => None,
    };
    Ok((outcome, kept))
}

fn take_as(
    contender: &mut (dyn Contender + '_),
    lock: &Lock,
    mut request: Request,
    draft: &mut Record,
    wait: &mut Wait<'_>,
) -> Result<Outcome> {
    let mut unfinished_work = None;
    let mut losses = 0;
    let mut last_obstacle = None;
    let mut has_just_joined = false;
    loop {
        ensure_alive(request.asker)?;
        let entry = Entry {
            create: true,
            patience: wait.patience(),
        };
        // A place that was lost is drawn again, with another number.
        request.ticket = contender.place();
        let waits = wait.is_wanted();
        let longest_queue = wait.longest_queue();
        let planned = |snapshot: &dyn LockSnapshot| {
            let longest_queue = longest_queue.map(|most| (most, has_just_joined));
            let planned = plan(lock, &request, snapshot, draft, longest_queue)?;
            let takes = matches!(planned.0, Change::Take { .. } | Change::Renew(..));
            if takes && !wait.may_take() {
                return Err(Error::Canceled);
            }
            Ok(planned)
        };
        let updated = with_answer(planned, |plan| contender.apply(entry, plan));
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
        if let Next::Sleep(sleep) = &next {
            if let Some(asked) = &mut draft.asked {
                asked.waiting = asked.waiting.max(sleep.waiting);
            }
            if let (Some(beside), Obstacle::Hold(judged)) =
                (&mut request.waits_beside, &sleep.obstacle)
            {
                *beside = judged.hold().unwrap_or(0);
            }
        }
        if has_just_joined {
            continue;
        }
        let unfinished = unfinished(&next);
        if let Some(judged) = unfinished.filter(|judged| lock.finish(judged, &mut unfinished_work))
        {
            request.over.push(judged.found.revision.clone());
            continue;
        }
        let is_unfinished = unfinished.is_some();
        let sleep = match next {
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
            Next::Sleep(sleep) => *sleep,
        };
        if !wait.may_wait_again() {
            return Err(Error::Canceled);
        }
        let status = || lock.obstacle_status(&sleep.obstacle);
        // Also who does not wait wants to know whether a hold is confirmed.
        let may_stop = waits || !sleep.is_unconfirmed;
        if may_stop && wait.should_stop(sleep.certain_in.is_some(), status) {
            return Ok(Outcome::Blocked(sleep.obstacle, None));
        }
        let mut limit = wait.sleep_limit(sleep.certain_in);
        if is_unfinished {
            limit.at_most = limit.at_most.min(FINISH_INTERVAL);
        }
        contender.sleep(&sleep.until, limit, &mut || {
            is_unchanged(&*lock.store, &request, &sleep.obstacle)
        });
        if wait.is_due() && !sleep.is_unconfirmed {
            contender.look_again();
        }
        last_obstacle = Some(sleep.obstacle);
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

/// The hold in the way, if its work is being ended by a process that is gone.
fn unfinished(next: &Next) -> Option<&Judged<Handle>> {
    let obstacle = match next {
        Next::End(Outcome::Blocked(obstacle, None)) => obstacle,
        Next::Sleep(sleep) if !sleep.is_unconfirmed => &sleep.obstacle,
        _ => return None,
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
fn ensure_alive(asker: Asker) -> Result<()> {
    match asker {
        Asker::Process(process) | Asker::Derived(process) if process.has_ended() => {
            let pid = process.pid.get();
            Err(Error::NoSuchProcess { pid })
        }
        _ => Ok(()),
    }
}

/// The change that follows from a decision, and what follows the change. Pure, but for what the snapshot reads.
fn plan<'d>(
    lock: &Lock,
    request: &Request,
    snapshot: &dyn LockSnapshot,
    draft: &'d Record,
    longest_queue: Option<(u32, bool)>,
) -> Result<(Change<'d>, Next)> {
    Ok(match decide(request, snapshot)? {
        Decision::Take { put, remove } => {
            let mut displaced: Vec<Judged<_>> = Vec::new();
            for judged in put.iter().filter_map(|(_, replaced)| replaced.as_ref()) {
                // One hold may have had several of the names.
                let is_it = |known: &Judged<_>| known.found.revision == judged.found.revision;
                if !displaced.iter().any(is_it) {
                    displaced.push(judged.clone());
                }
            }
            let all = displaced.iter().chain(&remove);
            all.filter(|judged| judged.verdict.is_live())
                .for_each(ask_for_author);
            let change = Change::Take { put, remove, draft };
            (change, Next::Taken(displaced))
        }
        Decision::AlreadyHeld(mut judged) => {
            let extended = |record| lock.extended(record, draft.ttl());
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
            let sleep = Sleep {
                is_unconfirmed: true,
                certain_in: judged.confirmed_within(),
                until: Until::Released(judged.clone()),
                obstacle: Obstacle::Hold(judged),
                waiting: 0,
            };
            (Change::Nothing, Next::Sleep(Box::new(sleep)))
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
            // It will go to a waiter.
            if longest_queue.is_none()
                && let Some(ticket) = next_in_turn(request, &obstacle, snapshot)?
            {
                return Ok((Change::Queue(change), blocked(Obstacle::Waiter(ticket))));
            }
            let mut waiting = 0;
            if let Some((most, has_just_joined)) = longest_queue {
                let is_new = request.ticket.is_none();
                if is_new && draft.asked.is_some() {
                    waiting = waiting_for(&request.wants, snapshot)?
                        .try_into()
                        .unwrap_or(u32::MAX);
                }
                // Without --max-waiting nothing is counted. On etcd others may have joined at the same moment: once it
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
            let certain_in = match &until {
                Until::Ripe(_, after) => Some(*after),
                _ => None,
            };
            let sleep = Sleep {
                obstacle,
                until,
                is_unconfirmed: false,
                certain_in,
                waiting,
            };
            (Change::Queue(change), Next::Sleep(Box::new(sleep)))
        }
    })
}

/// Who has written a shared record cannot be found out once its file is removed.
#[cold]
#[inline(never)]
fn ask_for_author(judged: &Judged<Handle>) {
    let _ = author(judged);
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
