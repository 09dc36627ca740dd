//! The queue of waiters, and how a waiter sleeps.
//!
//! A ticket is a key on a lease of 5 s, which its waiter keeps alive. It says what the waiter asks for, so that
//! others decide for it. A waiter watches the one thing that it waits for: the ticket of an earlier waiter that
//! could take the locks whenever it could itself, which stays until the hold of that one ends; else the hold in its
//! way. So one release wakes one waiter for each kind of request. What happens between a decision and the start of
//! the watch is read once that has started, so that nothing is missed.

use std::ops::Range;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::client::TIMEOUT;
use super::commit::Granted;
use super::keys::{Keys, Part, only};
use super::messages::{Compare, Event, Operation, Read, Txn, Watch, WatchAnswer};
use super::snapshot::{Written, is_number};
use super::store::{DEFAULT_TTL, Etcd, Shared};
use super::view::{View, reads};
use crate::backend::{Draft, Patience, QueuePlace, SleepLimit};
use crate::decision::{Judged, Request, Until, Want};
use crate::error::Result;
use crate::name::LockName;
use crate::open_file::Handle;
use crate::sys::process::boottime_milliseconds;

/// The time to live of a ticket, in seconds: so long a waiter that was stopped holds up the others.
const TICKET_TTL: i64 = 5;

/// How often the lease of a ticket is kept alive.
const TICKET_BEAT_MS: u64 = 1_600;

/// How often a waiter looks that nothing wakes: etcd has lost events near compactions (before 3.4.31 and
/// 3.4.36). One with an owner, or behind one that asks for something else, may become the first without being
/// woken.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
const LOOK_MS: u64 = 30_000;
const LOOK_OFTEN_MS: u64 = 5_000;

/// The place of the calling process in the queue.
#[derive(Debug)]
pub(crate) struct Place {
    shared: Arc<Shared>,
    asked: Asked,
    /// The keys of its tickets: one for each name.
    pub(super) tickets: Vec<String>,
    /// When they were created.
    pub(super) created: i64,
    /// When its first ones were created: its number.
    first_created: i64,
    ticket_lease: i64,
    ticket_due: u64,
    /// The lease that the hold will have.
    pub(super) lease: Option<Granted>,
    lease_due: u64,
    lease_seconds: i64,
    /// What was seen last.
    pub(super) view: Option<View>,
    has_owner: bool,
    /// It may become the first without being woken.
    looks_often: bool,
    look_at: u64,
    /// The revision that was looked at last.
    looked: i64,
    /// Nothing that it waited for was there, the last time.
    has_nothing_to_watch: bool,
    /// Its lease has ended: it has to draw another ticket.
    pub(super) is_lost: bool,
    pub(super) is_used: bool,
    watch: Option<Watching>,
}

/// A watch that a thread reads.
#[derive(Debug)]
struct Watching {
    ranges: Vec<Range<String>>,
    news: Mutex<Receiver<Option<WatchAnswer>>>,
}

const DRAW: &str = "join the queue in";

/// What a waiter asks for, as it stands in its tickets.
#[derive(Debug)]
struct Asked {
    wants: Vec<Want>,
    names: Vec<LockName>,
    written: Vec<u8>,
}

/// Tickets that were put into the queue.
struct Drawn {
    lease: i64,
    due: u64,
    tickets: Vec<String>,
    created: i64,
    view: View,
}

impl Etcd {
    /// Adds the caller at the end of the queue.
    pub(super) fn draw(
        &self,
        request: &Request,
        draft: &Draft,
        lease: Option<Granted>,
        patience: Patience<'_>,
    ) -> Result<Place> {
        let asked = Asked {
            wants: request.wants.clone(),
            names: request.wants.iter().map(|want| want.name.clone()).collect(),
            written: self.written(request, draft)?,
        };
        let drawn = self.put_tickets(&asked, None, patience)?;
        let mut place = Place {
            shared: Arc::clone(&self.shared),
            asked,
            tickets: drawn.tickets,
            created: drawn.created,
            first_created: drawn.created,
            ticket_lease: drawn.lease,
            ticket_due: drawn.due,
            lease: None,
            lease_due: 0,
            lease_seconds: seconds_of(draft),
            view: Some(drawn.view),
            has_owner: request.owner.is_some(),
            looks_often: false,
            look_at: 0,
            looked: -1,
            has_nothing_to_watch: false,
            is_lost: false,
            is_used: false,
            watch: None,
        };
        place.keep_lease(lease);
        Ok(place)
    }

    /// Draws another ticket with the same number, for a waiter whose own has ended.
    pub(super) fn draw_again(&self, place: &mut Place, patience: Patience<'_>) -> Result<()> {
        // 0: the first one had ended before it was seen.
        let number = Some(place.first_created).filter(|first| *first != 0);
        let drawn = self.put_tickets(&place.asked, number, patience)?;
        if number.is_none() {
            place.first_created = drawn.created;
        }
        place.tickets = drawn.tickets;
        place.created = drawn.created;
        place.ticket_lease = drawn.lease;
        place.ticket_due = drawn.due;
        place.view = Some(drawn.view);
        place.watch = None;
        place.is_lost = false;
        Ok(())
    }

    fn put_tickets(
        &self,
        asked: &Asked,
        number: Option<i64>,
        patience: Patience<'_>,
    ) -> Result<Drawn> {
        let (keys, client) = (&self.shared.keys, &self.shared.client);
        let due = boottime_milliseconds() + TICKET_BEAT_MS;
        let granted = self.grant(TICKET_TTL, patience)?;
        let ticket = |name: &LockName| keys.ticket(name, granted.id, number);
        let tickets: Vec<String> = asked.names.iter().map(ticket).collect();
        let mut txn = Txn::default();
        for ticket in &tickets {
            txn.compare.push(Compare::is_missing(ticket));
            let put = Operation::put(ticket, asked.written.clone(), granted.id);
            txn.success.push(put);
        }
        txn.success.extend(reads(keys, &asked.names));
        txn.ensure_possible()?;
        let (answer, _) = self.known(DRAW, patience, || client.txn_once(&txn, TIMEOUT))?;
        let (view, created) = if answer.succeeded {
            let view = View::of_answer(keys, &asked.names, &answer, tickets.len());
            (view, answer.header.revision)
        } else {
            // An earlier try was applied.
            let created = self.created_at(tickets.first(), patience)?;
            (View::unread(), created)
        };
        Ok(Drawn {
            lease: granted.id,
            due,
            created,
            tickets,
            view,
        })
    }

    /// When a key was created; 0: there is none.
    fn created_at(&self, key: Option<&String>, patience: Patience<'_>) -> Result<i64> {
        let Some(range) = key.map(|key| only(key)) else {
            return Ok(0);
        };
        let read = Read {
            key: range.start,
            range_end: range.end,
            limit: 1,
            revision: 0,
            keys_only: true,
        };
        let answer = self.read_range(&read, patience)?;
        Ok(answer.kvs.first().map_or(0, |found| found.create_revision))
    }
}

/// The place of a caller that takes by force, ahead of all waiters. Without it the first waiter would take the lock
/// first. Dropping it gives the place up.
pub(super) struct Ahead {
    shared: Arc<Shared>,
    lease: i64,
    due: u64,
    pub(super) number: u64,
}

impl Ahead {
    /// Keeps its ticket, if that is due.
    pub(super) fn keep(&mut self) {
        let now = boottime_milliseconds();
        if now >= self.due {
            let _ = self.shared.client.keep_alive_once(self.lease, TIMEOUT);
            self.due = now + TICKET_BEAT_MS;
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.shared.client.revoke(self.lease);
    }
}

impl Etcd {
    /// Gets ahead of all waiters.
    pub(super) fn get_ahead(
        &self,
        request: &Request,
        draft: &Draft,
        patience: Patience<'_>,
    ) -> Result<Ahead> {
        let mut ahead = Ahead {
            due: boottime_milliseconds() + TICKET_BEAT_MS,
            lease: self.grant(TICKET_TTL, patience)?.id,
            shared: Arc::clone(&self.shared),
            number: 0,
        };
        let written = self.written(request, draft)?;
        let ticket = |name| self.shared.keys.forced_ticket(name, ahead.lease);
        let names = request.wants.iter().map(|want| &want.name);
        let tickets: Vec<String> = names.map(ticket).collect();
        let put = |ticket: &String| Operation::put(ticket, written.clone(), ahead.lease);
        let txn = Txn {
            success: tickets.iter().map(put).collect(),
            ..Txn::default()
        };
        txn.ensure_possible()?;
        let client = &self.shared.client;
        self.known(DRAW, patience, || client.txn_once(&txn, TIMEOUT))?;
        let created = self.created_at(tickets.first(), patience)?;
        let first = tickets.first().map_or("", String::as_str);
        ahead.number = Keys::number_of_ticket(first, created);
        Ok(ahead)
    }

    fn written(&self, request: &Request, draft: &Draft) -> Result<Vec<u8>> {
        let written = Written::new(request, draft);
        serde_json::to_vec(&written).map_err(|error| self.cannot_write(&error))
    }
}

/// When a lease is to be kept alive again.
fn third(lease: &Granted) -> u64 {
    let ttl = u64::try_from(lease.ttl).unwrap_or(0);
    lease.since_ms + ttl * 1000 / 3
}

/// The time to live that a hold is to have.
pub(super) fn seconds_of(draft: &Draft) -> i64 {
    let ttl = draft.record.ttl().unwrap_or(DEFAULT_TTL);
    i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX)
}

impl QueuePlace for Place {}

impl Place {
    pub(super) fn number_of_ticket(&self) -> u64 {
        let ticket = self.tickets.first().map_or("", String::as_str);
        Keys::number_of_ticket(ticket, self.created)
    }

    /// Keeps a lease for the hold.
    pub(super) fn keep_lease(&mut self, lease: Option<Granted>) {
        self.lease_due = lease.as_ref().map_or(0, third);
        self.lease = lease;
    }

    /// Whether its ticket is gone, as a view shows it: its lease has ended.
    pub(super) fn is_missing_in(&self, view: &View) -> bool {
        let is_there = |ticket: &String| {
            view.get(ticket)
                .is_some_and(|found| found.create_revision == self.created)
        };
        if view.is_unread() || view.is_assumed() {
            return false;
        }
        if self.tickets.iter().all(|ticket| view.knows(&only(ticket))) {
            return !self.tickets.iter().all(is_there);
        }
        // Behind more than a page of others.
        let kept = self
            .shared
            .client
            .keep_alive_once(self.ticket_lease, TIMEOUT);
        kept.is_ok_and(|kept| kept.ttl <= 0)
    }

    /// Sleeps until something has happened that is waited for, for at most so long.
    pub(super) fn sleep(&mut self, until: &Until<Handle>, limit: SleepLimit<'_>) {
        let now = boottime_milliseconds();
        let at_most = u64::try_from(limit.at_most.as_millis()).unwrap_or(u64::MAX);
        let deadline = now.saturating_add(at_most);
        let Some(view) = &self.view else {
            return;
        };
        let revision = view.revision;
        let awaited = self.awaited(until, view);
        // It is gone already, as was seen when the ticket was drawn.
        let is_there = |range: &Range<String>| view.range(range).next().is_some();
        let is_ripening = matches!(until, Until::Ripe(..));
        if !is_ripening && !awaited.iter().any(is_there) {
            self.view = None;
            // Once at once; then it is something that has no life key, and whose end is not told.
            if std::mem::replace(&mut self.has_nothing_to_watch, true) {
                self.keep(now);
                let _ = crate::sys::wait::pause(limit.slice().min(LOOK_AGAIN));
            }
            return;
        }
        self.has_nothing_to_watch = false;
        let ripe_at = match until {
            Until::Ripe(_, after) => {
                let after = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
                now.saturating_add(after).saturating_add(1)
            }
            _ => u64::MAX,
        };
        if self
            .watch
            .as_ref()
            .is_none_or(|watch| watch.ranges != awaited)
        {
            self.watch = Some(self.watch(awaited));
        }
        let is_behind_another = matches!(until, Until::LeftQueue(ticket, _)
            if ticket.request.wants != self.asked.wants);
        self.looks_often = self.has_owner || is_behind_another;
        if self.looked != revision {
            self.looked = revision;
            self.look_at = now + self.look_interval();
        }
        loop {
            let now = boottime_milliseconds();
            self.keep(now);
            if self.is_lost || limit.is_canceled() || now >= ripe_at.min(deadline) {
                return;
            }
            if now >= self.look_at {
                // Set here as well: the revision may be the same after the look.
                self.look_at = now + self.look_interval();
                self.forget();
                return;
            }
            let wake = deadline.min(ripe_at).min(self.look_at);
            let wake = wake.min(self.ticket_due).min(self.lease_due);
            let left = Duration::from_millis(wake.saturating_sub(now).max(1)).min(limit.slice());
            let news = self.watch.as_mut().map(|watch| {
                let news = watch.news.get_mut();
                let news = news.unwrap_or_else(PoisonError::into_inner);
                news.recv_timeout(left)
            });
            match news {
                Some(Ok(Some(answer))) if self.has_ended(&answer) => return,
                Some(Ok(Some(_)) | Err(RecvTimeoutError::Timeout)) => {}
                // It has ended, or was never begun.
                Some(Ok(None) | Err(RecvTimeoutError::Disconnected)) | None => {
                    self.forget();
                    let pause = Duration::from_millis(100).min(left);
                    let _ = crate::sys::wait::pause(pause);
                    return;
                }
            }
        }
    }

    /// What is not known any more is read again.
    fn forget(&mut self) {
        self.view = None;
        self.watch = None;
    }

    fn look_interval(&self) -> u64 {
        let longest = if self.looks_often {
            LOOK_OFTEN_MS
        } else {
            LOOK_MS
        };
        // Not all at once.
        longest - crate::sys::wait::random_u64() % (longest / 4)
    }

    /// The keys whose deletion is waited for.
    fn awaited(&self, until: &Until<Handle>, view: &View) -> Vec<Range<String>> {
        let keys = &self.shared.keys;
        let life = |judged: &Judged<Handle>| only(&keys.of(Part::Life, &judged.found.key));
        match until {
            Until::Released(judged) => vec![life(judged)],
            Until::AnyReleased(holds) => holds.iter().map(life).collect(),
            // Its holder may resume it.
            Until::Ripe(judged, _) => vec![only(&keys.of(Part::Hold, &judged.found.key))],
            Until::LeftQueue(ticket, _) => {
                let all = keys.all_tickets();
                let found = view.range(&all).filter(|(key, found)| {
                    Keys::number_of_ticket(key, found.create_revision) == ticket.number
                });
                found.map(|(key, _)| only(key)).collect()
            }
        }
    }

    fn watch(&self, ranges: Vec<Range<String>>) -> Watching {
        let (sender, news) = mpsc::channel();
        let watches: Vec<Watch> = ranges
            .iter()
            .map(|range| Watch::deletions(range.clone()).with_previous())
            .collect();
        self.shared
            .client
            .watch(&watches, move |answer| sender.send(answer).is_ok());
        Watching {
            ranges,
            news: Mutex::new(news),
        }
    }

    /// Takes in what a watch says; whether something has been deleted.
    fn has_ended(&mut self, answer: &WatchAnswer) -> bool {
        let seen = self.view.as_ref().map_or(0, |view| view.revision);
        if answer.created && answer.header.revision > seen {
            // The watch does not report what happened between the read and its start, so read again. It stays open.
            self.view = None;
            return true;
        }
        let given_back = answer.events.iter().find_map(|event| {
            let before = event.prev_kv.as_ref()?;
            Some(&before.value).filter(|value| event.is_deletion() && is_number(value))
        });
        if let Some(number) = given_back {
            // The waiter ahead had the lock and has released it. So it is most likely our turn.
            self.view = Some(View::guess_after(&self.shared.keys, number.clone()));
            return true;
        }
        let mut has_ended = false;
        // What the view shows already may have been put again since.
        let is_new = |event: &&Event| event.is_deletion() && event.kv.mod_revision > seen;
        for event in answer.events.iter().filter(is_new) {
            has_ended = true;
            let key = String::from_utf8_lossy(&event.kv.key).into_owned();
            if let Some(view) = &mut self.view {
                view.remove(&key);
                if let Some(of_hold) = self.shared.keys.hold_of(Part::Life, &key) {
                    view.suppose_gone(self.shared.keys.of(Part::Hold, &of_hold));
                }
            }
        }
        if has_ended {
            self.watch = None;
        }
        has_ended
    }

    /// Keeps the leases alive that are due.
    fn keep(&mut self, now: u64) {
        let client = Arc::clone(&self.shared.client);
        if now >= self.ticket_due {
            match client.keep_alive_once(self.ticket_lease, TIMEOUT) {
                Ok(kept) if kept.ttl > 0 => self.ticket_due = now + TICKET_BEAT_MS,
                Ok(_) => self.is_lost = true,
                Err(_) => {
                    client.go_on();
                    // The watch is of the same member.
                    self.forget();
                    self.ticket_due = boottime_milliseconds() + 300;
                }
            }
        }
        if now < self.lease_due {
            return;
        }
        let sent = boottime_milliseconds();
        if let Some(lease) = &mut self.lease {
            match client.keep_alive_once(lease.id, TIMEOUT) {
                Ok(kept) if kept.ttl > 0 => {
                    lease.since_ms = sent;
                    lease.term = kept.header.raft_term;
                    self.lease_due = third(lease);
                    return;
                }
                Ok(_) => self.lease = None,
                Err(_) => {
                    client.go_on();
                    self.lease_due = boottime_milliseconds() + 300;
                    return;
                }
            }
        }
        let Ok(granted) = client.grant_once(self.lease_seconds, TIMEOUT) else {
            client.go_on();
            self.lease_due = boottime_milliseconds() + 300;
            return;
        };
        self.keep_lease(Some(Granted {
            id: granted.id,
            ttl: granted.ttl,
            since_ms: sent,
            term: granted.header.raft_term,
        }));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.is_used {
            self.shared.client.revoke(self.ticket_lease);
            // A refusal lists the other waiters only.
            if let Some(seen) = self.shared.seen().as_mut() {
                self.tickets.iter().for_each(|ticket| seen.remove(ticket));
            }
        }
        if let Some(lease) = self.lease.take() {
            self.shared.client.revoke(lease.id);
        }
    }
}
