//! Places in the queue that are kept for waiters that have left.
//!
//! Beside its tickets, such a waiter has a key on a lease of its own, which it keeps alive. The key names the owner
//! and what is wanted; its value has the number of the place. So the key outlives its waiter by the time that was
//! asked for. A later waiter with the same owner and request draws its tickets with that number. When the owner takes
//! the lock, its keys are deleted.

use serde::{Deserialize, Serialize};

use super::commit::TAKE;
use super::keys::{Keys, Part, Turn};
use super::lease::Granted;
use super::snapshot::is_of_waiter;
use super::store::Session;
use super::txn::{KeyValue, Read, Txn};
use crate::decision::{Observer, Request, Want};
use crate::error::Result;
use crate::name::LockName;
use crate::record::{Record, digest};
use crate::status::KeptPlace;
use crate::sys::ProcessState;
use crate::sys::process::presence;
use crate::ticket::{MAX_KEPT, TicketContent};

/// The shortest time to live that is surely ended on time.
const LEAST_SECONDS: i64 = 5;

/// What is in the key of a place.
#[derive(Debug, Serialize, Deserialize)]
struct Content {
    onehold: u64,
    /// The revision by which the place is numbered.
    turn: i64,
    /// Where the waiter is, so that another process there sees whether it is gone.
    observer: Option<Observer>,
    waiter: TicketContent,
}

impl Content {
    /// The ticket of its waiter. Another waiter can have its number, if the store was restored from a backup.
    fn ticket_among<'a>(&self, tickets: &'a [(u64, KeyValue)]) -> Option<&'a KeyValue> {
        let asked = Keys::number_of_ticket("", self.turn);
        let mut with_number = tickets.iter().filter(|(number, _)| *number == asked);
        let is_its = |waiter: TicketContent| waiter.is_for(&self.waiter.request);
        let its =
            with_number.find(|(_, ticket)| TicketContent::read(&ticket.value).is_some_and(is_its));
        its.map(|(_, ticket)| ticket)
    }
}

/// A place that is kept while its waiter exists and for some time after.
#[derive(Debug)]
pub(super) struct Kept {
    key: String,
    pub(super) lease: Granted,
    /// Its waiter has the lock.
    pub(super) has_been_served: bool,
}

/// The lock in whose queue a place is kept for a request, and its key, in whatever order its locks were named.
/// `None`: it has no owner.
fn kept_for<'a>(keys: &Keys, request: &'a Request) -> Option<(&'a LockName, String)> {
    let mut wants: Vec<&Want> = request.wants.iter().collect();
    wants.sort_by_key(|want| want.name.as_str());
    let first = &wants.first()?.name;
    let of_owner = keys.kept_for(first, request.owner.as_deref()?);
    let wants = serde_json::to_vec(&wants).ok()?;
    let key = format!("{}{:016x}", of_owner.start, digest(&wants));
    Some((first, key))
}

impl Session<'_> {
    /// The turn of a request: that of the place that is kept for it and has no waiter, or the last one.
    pub(super) fn turn_of(self, request: &Request) -> Result<Turn> {
        let Some((name, key)) = kept_for(&self.cluster.keys, request) else {
            return Ok(Turn::Last);
        };
        let content = self.read_key(&key)?.as_ref().and_then(read);
        let Some(content) = content.filter(|content| content.waiter.is_for(request)) else {
            return Ok(Turn::Last);
        };
        if let Some(ticket) = content.ticket_among(&self.tickets_of(name)?) {
            // Its waiter exists, or was killed and the lease of its ticket has not ended yet.
            let own = self.cluster.host.observer();
            let is_here = content.observer.as_ref().is_some_and(|there| {
                there.boot == own.boot && there.pid_namespace == own.pid_namespace
            });
            if !is_here || presence(content.waiter.pid) != ProcessState::Gone {
                return Ok(Turn::Last);
            }
            let _ = self.cluster.end_lease(ticket.lease);
        }
        Ok(Turn::Again(content.turn))
    }

    /// The tickets of the waiters for a lock, each with its number.
    pub(super) fn tickets_of(self, name: &LockName) -> Result<Vec<(u64, KeyValue)>> {
        let found = self.read(&Read::all(self.cluster.keys.several(Part::Wait, name)))?;
        let of_waiters = found.kvs.into_iter().filter(is_of_waiter);
        let numbered = of_waiters.map(|ticket| {
            let key = String::from_utf8_lossy(&ticket.key);
            (Keys::number_of_ticket(&key, ticket.create_revision), ticket)
        });
        Ok(numbered.collect())
    }

    /// Keeps the place of a waiter that asks for that. `None`: it is not kept.
    pub(super) fn keep_place(
        self,
        request: &Request,
        record: &Record,
        turn: i64,
    ) -> Result<Option<Kept>> {
        let of_owner = kept_for(&self.cluster.keys, request);
        let Some((keep_ms, (name, key))) = request.keep_ms.zip(of_owner) else {
            return Ok(None);
        };
        let kept = self.read(&Read {
            keys_only: true,
            ..Read::all(self.cluster.keys.several(Part::Keep, name))
        })?;
        let is_own = |kept: &KeyValue| kept.key == key.as_bytes();
        if kept.kvs.iter().filter(|kept| !is_own(kept)).count() >= MAX_KEPT {
            return Ok(None);
        }
        // The key belongs to another living waiter of this owner: only one of the two has its place kept.
        let other = self.read_key(&key)?.as_ref().and_then(read);
        if let Some(other) = other
            && other.turn != turn
            && other.ticket_among(&self.tickets_of(name)?).is_some()
        {
            return Ok(None);
        }
        let seconds = i64::try_from(keep_ms.div_ceil(1000)).unwrap_or(i64::MAX);
        let content = Content {
            onehold: 1,
            turn,
            observer: Some(self.cluster.host.observer().clone()),
            waiter: TicketContent::new(record, request.clone()),
        };
        let written =
            serde_json::to_vec(&content).map_err(|error| self.cluster.cannot_write(&error))?;
        let lease = self.grant(TAKE, seconds.max(LEAST_SECONDS))?;
        let mut txn = Txn::default();
        txn.put(&key, &written, lease.id);
        self.txn("keep a place in", &txn)?;
        Ok(Some(Kept {
            key,
            lease,
            has_been_served: false,
        }))
    }

    /// The position that a place has in the queue of a lock: waiters and places that are kept may be before it. `None`:
    /// it is not kept any more, since a hold of its owner has ended it.
    pub(super) fn position_of(
        self,
        kept: &Kept,
        name: &LockName,
        place: u64,
    ) -> Result<Option<usize>> {
        let found = self.read_key(&kept.key)?;
        if found.is_none_or(|found| found.lease != kept.lease.id) {
            return Ok(None);
        }
        let waiters = self.tickets_of(name)?.into_iter();
        let waiters = waiters.map(|(number, _)| number);
        let kept = self.kept_of(name)?.into_iter();
        let kept = kept.map(|(_, content)| Keys::number_of_ticket("", content.turn));
        let before = waiters.chain(kept).filter(|number| *number < place);
        Ok(Some(before.count() + 1))
    }

    /// The places that are kept in the queue of a lock, and have no waiter, each with its key.
    fn kept_of(self, name: &LockName) -> Result<Vec<(KeyValue, Content)>> {
        let found = self.read(&Read::all(self.cluster.keys.several(Part::Keep, name)))?;
        let places = found.kvs.into_iter();
        let places = places.filter_map(|kept| read(&kept).map(|content| (kept, content)));
        let mut places: Vec<(KeyValue, Content)> = places.collect();
        if !places.is_empty() {
            let tickets = self.tickets_of(name)?;
            places.retain(|(_, content)| content.ticket_among(&tickets).is_none());
        }
        Ok(places)
    }

    /// The places that are kept in the queue of a lock, and have no waiter, in order.
    pub(super) fn kept_places(self, name: &LockName) -> Result<Vec<KeptPlace>> {
        let mut places = Vec::new();
        for (kept, content) in self.kept_of(name)? {
            let left = self.time_left(kept.lease);
            let place = content.waiter.into_kept_place(left.unwrap_or_default());
            places.push((content.turn, place));
        }
        places.sort_by_key(|(turn, _)| *turn);
        Ok(places.into_iter().map(|(_, place)| place).collect())
    }
}

fn read(kept: &KeyValue) -> Option<Content> {
    serde_json::from_slice(&kept.value).ok()
}
