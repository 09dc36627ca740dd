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

use super::client::Granted;
use super::commit::seconds_of;
use super::kept_places::Kept;
use super::keys::{Keys, Part, Turn, only};
use super::messages::{Compare, Event, KeyValue, Operation, Txn, Watch, WatchAnswer};
use super::snapshot::is_number;
use super::store::{Session, Shared};
use super::view::{View, reads};
use crate::backend::{Deadline, Patience, QueuePlace};
use crate::decision::{Judged, Request, Until};
use crate::error::Result;
use crate::name::LockName;
use crate::open_file::Handle;
use crate::record::Record;
use crate::sys::process::boottime_milliseconds;
use crate::sys::random_u64;
use crate::sys::wait::pause;
use crate::ticket::TicketContent;

/// The time to live of a ticket, in seconds: so long a stopped waiter delays the others.
const TICKET_TTL: i64 = 5;

/// How often a waiter looks that nothing wakes: etcd has lost events near compactions (before 3.4.31 and
/// 3.4.36). One with an owner, or behind one that asks for something else, may become the first without being
/// woken.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_secs(30);
const LOOK_OFTEN: Duration = Duration::from_secs(5);

/// Tickets that were put into the queue, one for each name, on one lease. Dropping them gives them up.
#[derive(Debug)]
pub(super) struct Tickets {
    shared: Arc<Shared>,
    keys: Vec<String>,
    /// When they were created; 0: they had ended before they were seen.
    created: i64,
    /// The turn of those that follow them.
    again: Turn,
    lease: Granted,
    /// Their lease has ended, or they have become those of a hold.
    pub(super) are_over: bool,
}

impl Tickets {
    pub(super) fn number(&self) -> u64 {
        let first = self.keys.first().map_or("", String::as_str);
        Keys::number_of_ticket(first, self.created)
    }

    /// Keeps them alive, if that is due. `false`: the next member is to be asked.
    pub(super) fn keep(&mut self) -> bool {
        let kept = self.lease.keep_in_time(&self.shared.client);
        self.are_over |= kept == Some(false);
        kept.is_some()
    }
}

impl Tickets {
    fn end(&mut self) {
        if !std::mem::replace(&mut self.are_over, true) {
            self.shared.client.revoke(self.lease.id);
        }
    }
}

impl Drop for Tickets {
    fn drop(&mut self) {
        self.end();
        // A refusal lists the other waiters only.
        if let Some(seen) = self.shared.seen().as_mut() {
            self.keys.iter().for_each(|ticket| seen.remove(ticket));
        }
    }
}

/// The place of the calling process in the queue.
#[derive(Debug)]
pub(crate) struct Place {
    /// What stands in its tickets.
    content: TicketContent,
    pub(super) tickets: Tickets,
    /// It is kept for its owner.
    pub(super) kept: Option<Kept>,
    /// The lease that the hold will have.
    pub(super) lease: Option<Granted>,
    lease_seconds: i64,
    /// What was seen last.
    pub(super) view: Option<View>,
    look_at: u64,
    /// The revision that was looked at last.
    looked: i64,
    /// Nothing that it waited for was there, the last time.
    has_nothing_to_watch: bool,
    watch: Option<Watching>,
}

/// A watch that a thread reads.
#[derive(Debug)]
struct Watching {
    ranges: Vec<Range<String>>,
    news: Mutex<Receiver<WatchAnswer>>,
}

impl Session<'_> {
    /// Adds the caller at the end of the queue.
    pub(super) fn draw(self, request: Request, record: &Record) -> Result<Place> {
        let turn = self.turn_of(&request)?;
        let asked = request.keep_ms.is_some().then(|| request.clone());
        let content = content(record, request);
        let (tickets, view) = self.put_tickets(&content, turn)?;
        let kept = match (asked, tickets.again) {
            (Some(request), Turn::Again(turn)) => self.keep_place(&request, record, turn)?,
            _ => None,
        };
        Ok(Place {
            content,
            kept,
            tickets,
            lease: None,
            lease_seconds: seconds_of(record),
            view: Some(view),
            look_at: 0,
            looked: -1,
            has_nothing_to_watch: false,
            watch: None,
        })
    }

    /// Draws another ticket with the same number, for a waiter whose own has ended.
    pub(super) fn draw_again(self, place: &mut Place) -> Result<()> {
        place.tickets.are_over = true;
        let (tickets, view) = self.put_tickets(&place.content, place.tickets.again)?;
        place.tickets = tickets;
        place.view = Some(view);
        place.watch = None;
        Ok(())
    }

    /// Gets ahead of all waiters, for a caller that takes by force. Otherwise the first waiter would take the lock
    /// first.
    pub(super) fn get_ahead(self, request: Request, record: &Record) -> Result<Tickets> {
        let (tickets, _) = self.put_tickets(&content(record, request), Turn::BeforeAll)?;
        Ok(tickets)
    }

    fn put_tickets(self, content: &TicketContent, turn: Turn) -> Result<(Tickets, View)> {
        let keys = self.keys();
        let wants = &content.request.wants;
        let names: Vec<LockName> = wants.iter().map(|want| want.name.clone()).collect();
        let written =
            serde_json::to_vec(content).map_err(|error| self.etcd.cannot_write(&error))?;
        let lease = self.grant(TICKET_TTL)?;
        let tickets = names.iter().map(|name| keys.ticket(name, lease.id, turn));
        let mut tickets = Tickets {
            shared: Arc::clone(&self.etcd.shared),
            keys: tickets.collect(),
            created: 0,
            again: turn,
            lease,
            are_over: false,
        };
        let mut txn = Txn::default();
        for ticket in &tickets.keys {
            txn.only_if(Compare::is_missing(ticket));
            txn.put(ticket, &written, lease.id);
        }
        txn.success.extend(reads(keys, &names).map(Operation::Read));
        txn.ensure_possible()?;
        let (answer, _) = self.txn(DRAW, &txn)?;
        let view = if answer.succeeded {
            tickets.created = answer.header.revision;
            View::of_answer(keys, &names, answer)
        } else {
            // An earlier try was applied.
            let first = tickets.keys.first().map_or("", String::as_str);
            let found = self.read_key(first)?;
            tickets.created = found.map_or(0, |found| found.create_revision);
            View::unread()
        };
        if turn == Turn::Last && tickets.created != 0 {
            tickets.again = Turn::Again(tickets.created);
        }
        Ok((tickets, view))
    }
}

fn content(record: &Record, request: Request) -> TicketContent {
    let request = Request {
        // It says nothing on another machine.
        observer: None,
        ..request
    };
    TicketContent::new(record, request)
}

const DRAW: &str = "join the queue in";

impl QueuePlace for Place {}

impl Place {
    fn shared(&self) -> &Arc<Shared> {
        &self.tickets.shared
    }

    /// The keys of its tickets, and when they were created.
    pub(super) fn keys(&self) -> (&[String], i64) {
        (&self.tickets.keys, self.tickets.created)
    }

    /// Whether its ticket is gone, as a view shows it: its lease has ended.
    pub(super) fn is_missing_in(&mut self, view: &View) -> bool {
        if view.is_unread() || view.is_assumed() {
            return false;
        }
        let (tickets, created) = self.keys();
        let is_known = |ticket: &String| view.gap(&only(ticket)).is_none();
        if tickets.iter().all(is_known) {
            let is_there = |found: &KeyValue| found.create_revision == created;
            return !tickets
                .iter()
                .all(|ticket| view.get(ticket).is_some_and(is_there));
        }
        // Behind more than a page of others.
        let tickets = &mut self.tickets;
        tickets.lease.keep(&tickets.shared.client) == Some(false)
    }

    /// Sleeps until something has happened that is waited for, for at most so long.
    pub(super) fn sleep(&mut self, until: &Until<Handle>, limit: Patience<'_>) {
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
                self.keep();
                let _ = pause(limit.slice().min(LOOK_AGAIN));
            }
            return;
        }
        self.has_nothing_to_watch = false;
        let at_most = match until {
            Until::Ripe(_, after) => limit
                .at_most
                .min(after.saturating_add(Duration::from_millis(1))),
            _ => limit.at_most,
        };
        let deadline = Deadline::of(limit.for_at_most(at_most));
        let watched = self.watch.as_ref().map(|watch| &watch.ranges);
        if watched != Some(&awaited) {
            self.watch = Some(self.watch(awaited));
        }
        let is_behind_another = matches!(until, Until::LeftQueue(ticket, _)
            if ticket.request.wants != self.content.request.wants);
        let looks_often = is_behind_another || self.content.request.owner.is_some();
        let next_look = || {
            let longest = match until {
                // The lock is reserved for a waiter that may be passed.
                Until::LeftQueue(_, soon) if *soon < LOOK_OFTEN => *soon,
                _ if looks_often => LOOK_OFTEN,
                _ => LOOK,
            };
            let longest = u64::try_from(longest.as_millis()).unwrap_or(0);
            // Not all at once.
            boottime_milliseconds() + longest - random_u64() % (longest / 4).max(1)
        };
        if self.looked != revision {
            self.looked = revision;
            self.look_at = next_look();
        }
        loop {
            self.keep();
            let now = boottime_milliseconds();
            let of_place = self.kept.as_ref().map(|kept| &kept.lease);
            let leases = [Some(&self.tickets.lease), self.lease.as_ref(), of_place];
            let due = leases.into_iter().flatten().map(|lease| lease.due_ms);
            let wake = due.fold(self.look_at, u64::min);
            let left = Duration::from_millis(wake.saturating_sub(now).max(1));
            let Some(left) = deadline.next_sleep(left).filter(|_| !self.tickets.are_over) else {
                return;
            };
            if now >= self.look_at {
                // Set here as well: the revision may be the same after the look.
                self.look_at = next_look();
                self.forget();
                return;
            }
            let news = self.watch.as_mut().map(|watch| {
                let news = watch.news.get_mut();
                let news = news.unwrap_or_else(PoisonError::into_inner);
                news.recv_timeout(left)
            });
            match news {
                Some(Ok(answer)) if self.has_ended(&answer) => return,
                Some(Ok(_) | Err(RecvTimeoutError::Timeout)) => {}
                // It has ended, or was never begun.
                Some(Err(RecvTimeoutError::Disconnected)) | None => {
                    self.forget();
                    let _ = pause(Duration::from_millis(100).min(left));
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

    /// The keys whose deletion is waited for.
    fn awaited(&self, until: &Until<Handle>, view: &View) -> Vec<Range<String>> {
        let keys = &self.shared().keys;
        let life = |judged: &Judged<Handle>| only(&keys.of(Part::Life, &judged.found.key));
        match until {
            Until::Released(judged) => vec![life(judged)],
            Until::AnyReleased(holds) => holds.iter().map(life).collect(),
            // Its holder may resume it.
            Until::Ripe(judged, _) => vec![only(&keys.of(Part::Hold, &judged.found.key))],
            Until::LeftQueue(ticket, _) => {
                let all = keys.all(Part::Wait);
                let tickets = view.tickets(&all);
                let same = tickets.filter(|(number, _, _)| *number == ticket.number);
                same.map(|(_, key, _)| only(key)).collect()
            }
        }
    }

    fn watch(&self, ranges: Vec<Range<String>>) -> Watching {
        let (sender, news) = mpsc::channel();
        let watches: Vec<Watch> = ranges.iter().cloned().map(Watch::deletions).collect();
        let client = &self.shared().client;
        client.watch(&watches, move |answer| {
            answer.is_some_and(|answer| sender.send(answer).is_ok())
        });
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
            self.view = Some(View::guess_after(&self.shared().keys, number.clone()));
            return true;
        }
        let keys = &self.tickets.shared.keys;
        let mut has_ended = false;
        // What the view shows already may have been put again since.
        let is_new = |event: &&Event| event.is_deletion() && event.kv.mod_revision > seen;
        for event in answer.events.iter().filter(is_new) {
            has_ended = true;
            let key = String::from_utf8_lossy(&event.kv.key).into_owned();
            if let Some(view) = &mut self.view {
                view.remove(&key);
                if let Some(of_hold) = keys.hold_of(Part::Life, &key) {
                    view.suppose_gone(keys.of(Part::Hold, &of_hold));
                }
            }
        }
        if has_ended {
            self.watch = None;
        }
        has_ended
    }

    /// Keeps the leases alive that are due.
    fn keep(&mut self) {
        if !self.tickets.keep() {
            // The watch is of the same member.
            self.forget();
        }
        let client = &self.tickets.shared.client;
        if let Some(kept) = &mut self.kept {
            let _ = kept.lease.keep_in_time(client);
        }
        let lease = self.lease.as_mut();
        if lease.is_none_or(|lease| lease.keep_in_time(client) == Some(false)) {
            self.lease = client.grant_once(self.lease_seconds).ok();
            if self.lease.is_none() {
                client.go_on();
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The next waiter does not wait for what follows.
        self.tickets.end();
        let client = &self.tickets.shared.client;
        match &mut self.kept {
            Some(kept) if kept.has_been_served => client.revoke(kept.lease.id),
            // Its time starts now.
            Some(kept) => _ = kept.lease.keep(client),
            None => {}
        }
        if let Some(lease) = self.lease {
            client.revoke(lease.id);
        }
    }
}
