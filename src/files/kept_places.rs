//! Places in the queue that are kept for waiters that are gone.
//!
//! The name of such a waiter's ticket has a digest of the owner, and how long to keep the place. Once the waiter has
//! left, whoever finds the ticket renames it. It is then no longer a ticket and delays no waiter. If the same owner
//! asks for the same names within that time, it gets the same number.

use std::fs::File;

use super::tickets::{TicketName, Tickets};
use crate::decision::Request;
use crate::open_file::read_all;
use crate::status::KeptPlace;
use crate::ticket::{MAX_KEPT, TicketContent};

/// Keeps the place of a ticket without a waiter in these queues, or removes the ticket. Called under the guard, or by
/// the waiter itself. What cannot be changed is left without an error: another user's ticket does no harm.
pub(super) fn keep_or_remove<'a>(queues: impl Iterator<Item = &'a Tickets>, ticket: TicketName) {
    let kept = ticket.without_waiter();
    for queue in queues {
        let is_kept = kept.is_some_and(|kept| {
            all(queue).count() < MAX_KEPT && queue.rename(ticket, kept).is_ok()
        });
        if !is_kept {
            queue.unlink(ticket);
        }
    }
}

/// Removes the files of a place in a further queue of its request, even a ticket whose waiter is dead unnoticed.
/// Called under the guard.
pub(super) fn clear(queue: &Tickets, number: u64) {
    for name in queue.names().filter(|name| name.number == number) {
        queue.unlink(name);
    }
}

/// The places in a queue that are kept. Removes those whose time has passed.
fn all(queue: &Tickets) -> impl Iterator<Item = TicketName> {
    let kept = queue.names().filter(|name| name.has_no_waiter());
    kept.filter(|kept| !unlink_if_over(queue, *kept))
}

/// Removes a kept place if its time has passed; whether that is so.
pub(super) fn unlink_if_over(queue: &Tickets, kept: TicketName) -> bool {
    let is_over = kept.left().is_none();
    if is_over {
        queue.unlink(kept);
    }
    is_over
}

/// The first place that is kept for a request and has no waiter. Called under the guard.
pub(super) fn find(queue: &Tickets, request: &Request) -> Option<TicketName> {
    let owner = request.owner.as_deref()?;
    let is_own = |name: &TicketName| name.is_for_owner(owner);
    tickets(queue).filter(is_own).find_map(|name| {
        let (file, content) = open(queue, name)?;
        if !content.is_for(request) {
            return None;
        }
        // Kept anew from now on: nothing is lost if this process is killed before it has a ticket. A file that
        // cannot be renamed is another user's; it would stay and be found again by the next call.
        let kept = name.if_kept(&file, &content)?.without_waiter()?;
        queue.rename(name, kept).ok()?;
        Some(kept)
    })
}

/// The tickets of a queue, with a waiter and without, in order.
fn tickets(queue: &Tickets) -> impl Iterator<Item = TicketName> {
    let mut names: Vec<TicketName> = queue.names().collect();
    names.sort_by_key(|name| name.number);
    names.into_iter()
}

fn open(queue: &Tickets, name: TicketName) -> Option<(File, TicketContent)> {
    let file = queue.find(name).ok()?.file()?;
    let content = TicketContent::read(&read_all(&file).ok()?)?;
    Some((file, content))
}

/// Removes the places that are kept for this owner, which has had its turn.
pub(super) fn forget(queue: &Tickets, owner: &str) {
    for name in all(queue).filter(|name| name.is_for_owner(owner)) {
        queue.unlink(name);
    }
}

/// The places that are kept in a queue, in order, with their numbers.
pub(super) fn listed(queue: &Tickets) -> Vec<(u64, KeptPlace)> {
    let kept = tickets(queue).filter_map(|name| {
        let (file, content) = open(queue, name)?;
        let left = name.if_kept(&file, &content)?.left()?;
        Some((name.number, content.into_kept_place(left)))
    });
    kept.collect()
}
