//! Chooses the event that a waiter sleeps on.

use std::time::Duration;

use super::answer::{Judged, Obstacle, Until};
use super::request::{Key, Request, Want};
use super::snapshot::{Snapshot, Ticket};
use super::turn::{earlier_tickets, has_missed_its_turn};
use crate::error::Result;
use crate::record::Mode;

/// Interval at which a waiter that sleeps on another one decides again: the other one may be delayed where
/// nobody sees it, such as by a terminal that takes no output. The one behind it does so half as often, and
/// so on, so that many waiters make few looks. That the other one is stopped is noticed in any case.
pub(crate) const RECHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Interval for a waiter that sleeps on the one for which the free lock is reserved. That one takes it at once, unless
/// an earlier waiter has taken another lock that it also needs: then it stays in the queue, and wakes nobody.
const RESERVED_INTERVAL: Duration = Duration::from_secs(1);

/// The twelfth looks once a minute, and so do all behind it.
const MAX_RANK: u32 = 12;

/// Number of tickets that are read to find one to sleep on.
const MAX_READ: usize = 64;

/// What to sleep on until a decision may be another one.
///
/// | is there | sleep on |
/// |---|---|
/// | an earlier waiter that could take its locks whenever we could, and is not stopped | the latest such waiter |
/// | an earlier waiter for which the free lock is reserved | that waiter |
/// | a hold in the way | the hold; of a lock with slots: all of its holds |
///
/// So the end of a hold wakes one waiter for each kind of request, and nobody sleeps on a waiter that
/// has to wait for longer than itself.
pub(crate) fn until<H>(
    request: &Request,
    obstacle: Obstacle<H>,
    snapshot: &dyn Snapshot<H>,
) -> Result<Until<H>> {
    let ahead = waiter_ahead(request, &obstacle, snapshot)?;
    Ok(match (ahead, obstacle) {
        (Some((ticket, rank)), Obstacle::Hold(_)) => {
            Until::LeftQueue(ticket, RECHECK_INTERVAL * rank)
        }
        // A waiter that finds the lock free notices when the reservation expires.
        (Some((ticket, _)), Obstacle::Waiter(_)) => Until::LeftQueue(ticket, RECHECK_INTERVAL),
        (None, Obstacle::Waiter(ticket)) => {
            let interval = if may_wait_for_more(&ticket.request, request) {
                RESERVED_INTERVAL
            } else {
                RECHECK_INTERVAL
            };
            Until::LeftQueue(ticket, interval)
        }
        (None, Obstacle::Hold(judged)) => until_released(request, judged, snapshot)?,
    })
}

/// The latest earlier waiter that could take its locks whenever we could, and would then be in our way; and its
/// place among the waiters for the first lock. Whether those before it are such waiters is not read.
type Ahead<H> = (Ticket<H>, u32);

fn waiter_ahead<H>(
    request: &Request,
    obstacle: &Obstacle<H>,
    snapshot: &dyn Snapshot<H>,
) -> Result<Option<Ahead<H>>> {
    let Some(ticket) = find_ahead(request, obstacle, snapshot, <[u64]>::reverse)? else {
        return Ok(None);
    };
    let first = request.wants.first().map(|want| &want.name);
    let mut rank = 1;
    snapshot.each_ticket(&request.wants, &mut |earlier, name| {
        if rank < MAX_RANK && earlier < ticket.number && Some(name) == first {
            rank += 1;
        }
    })?;
    Ok(Some((ticket, rank)))
}

/// The first such waiter: it gets the lock before us.
#[cold]
#[inline(never)]
pub(crate) fn next_in_turn<H>(
    request: &Request,
    obstacle: &Obstacle<H>,
    snapshot: &dyn Snapshot<H>,
) -> Result<Option<Ticket<H>>> {
    find_ahead(request, obstacle, snapshot, |_| ())
}

/// The first one of those waiters, in this order.
fn find_ahead<H>(
    request: &Request,
    obstacle: &Obstacle<H>,
    snapshot: &dyn Snapshot<H>,
    sort: fn(&mut [u64]),
) -> Result<Option<Ticket<H>>> {
    // Readers are not in each other's way; and what is replaced is in the way of all others.
    let is_for_all = request.wants.iter().all(|want| want.mode == Mode::Shared);
    if is_for_all || request.skip_queue || !request.replace.is_empty() {
        return Ok(None);
    }
    let owner_matters = owner_matters(request, obstacle);
    let mut earlier = earlier_tickets(request, &request.wants, snapshot)?;
    sort(&mut earlier);
    for number in earlier.into_iter().take(MAX_READ) {
        let Some(ticket) = snapshot.ticket(number)? else {
            continue;
        };
        // One that is stopped would not go on, and so not wake us.
        if can_as_much(&ticket.request, request, owner_matters)
            && !has_missed_its_turn(&ticket, snapshot)
            && !snapshot.is_stopped(&ticket)
        {
            return Ok(Some(ticket));
        }
    }
    Ok(None)
}

/// Whether there may be holds in the way of another waiter that are not in ours.
fn may_wait_for_more(theirs: &Request, ours: &Request) -> bool {
    let is_ours = |theirs: &Want| ours.wants.iter().any(|ours| ours.name == theirs.name);
    theirs.owner != ours.owner || !theirs.wants.iter().all(is_ours)
}

/// Whether another waiter for the same locks could take them whenever we could.
fn can_as_much(theirs: &Request, ours: &Request, owner_matters: bool) -> bool {
    let is_exclusive = |want: &Want| want.mode == Mode::Exclusive;
    let pairs = || theirs.wants.iter().zip(&ours.wants);
    theirs.wants.len() == ours.wants.len()
        && pairs().all(|(theirs, ours)| is_granted_with(theirs, ours))
        && (theirs.owner == ours.owner || !owner_matters)
        // A caller that runs inside of a shared hold may share it.
        && (theirs.inside == ours.inside || ours.wants.iter().all(is_exclusive))
        && (theirs.take_zombies || !ours.take_zombies)
        && theirs.max_age_ms <= ours.max_age_ms
        // From where it looks, it sees as well as we do who is dead. On etcd that is the same everywhere.
        && (theirs.observer.is_none() || theirs.observer == ours.observer)
}

fn is_granted_with(theirs: &Want, ours: &Want) -> bool {
    let more_slots = match (theirs.mode, ours.mode) {
        (Mode::Slots(theirs), Mode::Slots(ours)) => theirs >= ours,
        (theirs, ours) => theirs == ours,
    };
    theirs.name == ours.name && more_slots
}

/// Whether a waiter of another owner may have to wait for holds that are not in our way: those of our
/// owner, of related names. There are none beside an exclusive hold of another owner, nor where the other
/// waiter could take the lock.
fn owner_matters<H>(request: &Request, obstacle: &Obstacle<H>) -> bool {
    let (Some(owner), [want]) = (&request.owner, request.wants.as_slice()) else {
        return request.owner.is_some();
    };
    match obstacle {
        Obstacle::Waiter(_) => false,
        Obstacle::Hold(judged) => {
            let holder = judged.record().and_then(|record| record.owner.as_ref());
            judged.found.key != Key::exclusive(&want.name) || holder == Some(owner)
        }
    }
}

/// The end of a hold in the way, or of any that could make room.
fn until_released<H>(
    request: &Request,
    judged: Judged<H>,
    snapshot: &dyn Snapshot<H>,
) -> Result<Until<H>> {
    let held = &judged.found.key;
    let is_slot = |want: &Want| want.name == held.name && want.mode.slots().is_some();
    if held.index.is_none() || !request.wants.iter().any(is_slot) {
        return Ok(match judged.verdict.takeable_in {
            Some(after) => Until::Ripe(judged, after),
            None => Until::Released(judged),
        });
    }
    let found = snapshot.shared(&held.name)?.into_iter();
    let judged = found.map(|found| request.judge(snapshot, found));
    let (holders, dead): (Vec<_>, Vec<_>) = judged.partition(|judged| judged.verdict.is_live());
    let ripening = dead
        .into_iter()
        .filter_map(|judged| Some((judged.verdict.takeable_in?, judged)));
    Ok(match ripening.min_by_key(|(after, _)| *after) {
        Some((after, judged)) if holders.is_empty() => Until::Ripe(judged, after),
        dead => Until::AnyReleased(holders, dead.map(|(after, _)| after)),
    })
}
