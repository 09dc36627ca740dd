//! The queue of waiters, and how a waiter sleeps.
//!
//! A ticket is a key on a lease that its waiter keeps alive. It says what the waiter asks for, so that
//! others decide for it. A waiter sleeps on the one thing that it waits for: the ticket of an earlier waiter that
//! could take the locks whenever it could itself, which stays until the hold of that one ends; else the hold in its
//! way. So one release wakes one waiter for each kind of request. What happens between a decision and the start of
//! the watch is read once that has started, so that nothing is missed.
//!
//! The lease of a ticket is long, so that waiting costs little, and says nothing of its waiter. What does is a free
//! lock: a waiter takes it at once. Whoever finds one that is reserved for a waiter asks for that one, by putting its
//! ticket on a lease of 3 s, from which only its waiter takes it. A waiter leaves the lock alone for 2 s before it does
//! so, and looks that long after the end of a hold, or of one of the [`AHEAD`] tickets before its own.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use super::commit::{TAKE, seconds_of};
use super::kept_places::Kept;
use super::keys::{Keys, Part, Turn};
use super::lease::Granted;
use super::snapshot::is_number;
use super::store::{CHANGE, Cluster, Session, has_fault};
use super::txn::{Compare, Event, KeyValue, Operation, Txn, Watch, WatchAnswer, only};
use super::view::{Source, View, reads};
use crate::backend::{Deadline, Patience, QueuePlace};
use crate::decision::Request;
use crate::error::{Fault, Result};
use crate::name::LockName;
use crate::open_file::{Judged, Until};
use crate::record::Record;
use crate::sys::process::boottime_milliseconds;
use crate::sys::wait::pause;
use crate::sys::{locked, random_u64};
use crate::ticket::{RunsAt, TicketContent};

/// The time to live, in seconds, of the ticket of a caller that takes by force, of one whose place is kept: it may come
/// back by another process, and of one that may be in a cycle: it counts on other machines once that has passed.
const SHORT_TTL: i64 = 5;

/// For how long a free lock is left to the waiter that it is reserved for.
const LEFT_ALONE_MS: u64 = 2_000;

/// How many of the tickets before its own a waiter watches.
const AHEAD: usize = 8;

/// How often a waiter looks that nothing wakes. One with an owner, or behind one that asks for something else, may
/// become the first without being woken.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
const LOOK_OFTEN: Duration = Duration::from_secs(5);

/// Tickets that were put into the queue, one for each name, on one lease. Dropping them gives them up.
#[derive(Debug)]
pub(super) struct Tickets {
    cluster: Cluster,
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
        let kept = self.lease.keep_in_time(&*self.cluster.engine);
        self.are_over |= kept == Some(false);
        kept.is_some()
    }

    /// Gives them up. Returns whether a member has answered, or none was asked.
    fn end(&mut self) -> bool {
        if std::mem::replace(&mut self.are_over, true) {
            return true;
        }
        if self.lease.ttl_ms() <= SHORT_TTL.unsigned_abs() * 1_000 {
            self.cluster.engine.give_up(self.lease.id);
            return true;
        }
        self.cluster.end_lease(self.lease.id)
    }
}

impl Drop for Tickets {
    fn drop(&mut self) {
        let _ = self.end();
        // A refusal lists the other waiters only.
        if let Some(seen) = self.cluster.seen().as_mut() {
            self.keys.iter().for_each(|ticket| seen.remove(ticket));
        }
    }
}

type News = Mutex<Receiver<WatchAnswer>>;

/// What a thread watches, and what it is told.
#[derive(Debug)]
struct Watched {
    ranges: Vec<Range<String>>,
    /// Those whose deletion is waited for. The others tell that a lock may be free.
    awaited: Vec<Range<String>>,
    news: News,
    /// When the next look begins another one, by the boot-time clock: it may have missed events.
    ends_ms: u64,
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
    /// When to ask for the waiter that a free lock is reserved for.
    ask_at: Option<u64>,
    watch: Option<Watched>,
}

impl Session<'_> {
    /// Adds the caller at the end of the queue.
    pub(super) fn draw(self, request: Request, record: &Record) -> Result<Place> {
        let turn = self.turn_of(&request)?;
        let asked = request.keep_ms.is_some().then(|| request.clone());
        let content = self.content(record, request);
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
            ask_at: None,
            watch: None,
        })
    }

    /// Puts the tickets of a waiter that was asked for back on its own lease: what was reserved for it is not free.
    pub(super) fn answer(self, place: &mut Place) -> Result<()> {
        let tickets = &mut place.tickets;
        let written = written(self.cluster, &place.content)?;
        let mut txn = Txn::default();
        for ticket in &tickets.keys {
            txn.only_if(Compare::was_created_at(ticket, tickets.created));
            txn.put(ticket, &written, tickets.lease.id);
        }
        // If they have ended, they are drawn again; and so if their lease has, as after a suspension.
        match self.txn(CHANGE, &txn) {
            Err(error) if has_fault(&error, Fault::NoLease) => tickets.are_over = true,
            answer => _ = answer?,
        }
        Ok(())
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
        let content = self.content(record, request);
        let (tickets, _) = self.put_tickets(&content, Turn::BeforeAll)?;
        Ok(tickets)
    }

    fn put_tickets(self, content: &TicketContent, turn: Turn) -> Result<(Tickets, View)> {
        let keys = &self.cluster.keys;
        let wants = &content.request.wants;
        let names: Vec<LockName> = wants.iter().map(|want| want.name.clone()).collect();
        let written = written(self.cluster, content)?;
        let request = &content.request;
        let is_short = turn == Turn::BeforeAll
            || request.keep_ms.is_some()
            || request.waits_until_ms == Some(u64::MAX);
        let seconds = if is_short {
            SHORT_TTL
        } else {
            self.engine().limits().ticket_seconds
        };
        let lease = self.grant(TAKE, seconds)?;
        let tickets = names.iter().map(|name| keys.ticket(name, lease.id, turn));
        let mut tickets = Tickets {
            cluster: self.cluster.clone(),
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
        self.ensure_possible(&txn, 0)?;
        let (answer, _) = self.txn(DRAW, &txn)?;
        let view = if answer.succeeded {
            tickets.created = answer.revision;
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

    fn content(self, record: &Record, request: Request) -> TicketContent {
        let may_be_in_cycle = request.waits_until_ms.is_some();
        let request = Request {
            // It says nothing on another machine.
            observer: None,
            ..request
        };
        let mut content = TicketContent::new(record, request);
        let observer = self.cluster.host.observer();
        content.runs = may_be_in_cycle.then(|| RunsAt::now(content.pid, observer));
        content
    }
}

fn written(cluster: &Cluster, content: &TicketContent) -> Result<Vec<u8>> {
    serde_json::to_vec(content).map_err(|error| cluster.cannot_write(&error))
}

const DRAW: &str = "join the queue in";

impl QueuePlace for Place {}

impl Place {
    fn cluster(&self) -> &Cluster {
        &self.tickets.cluster
    }

    /// The keys of its tickets, and when they were created.
    pub(super) fn keys(&self) -> (&[String], i64) {
        (&self.tickets.keys, self.tickets.created)
    }

    /// Whether its ticket is gone, as a view shows it: its lease has ended.
    pub(super) fn is_missing_in(&mut self, view: &View) -> bool {
        if view.source != Source::Read {
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
        tickets.lease.keep(&*tickets.cluster.engine) == Some(false)
    }

    /// Whether its waiter was asked for, as a view shows it.
    pub(super) fn is_asked_for_in(&self, view: &View) -> bool {
        let lease = self.tickets.lease.id;
        let mut found = self.tickets.keys.iter().filter_map(|key| view.get(key));
        found.any(|ticket| ticket.lease != lease)
    }

    /// Asks for the waiter that a free lock is reserved for, if that is due. `None`: there is no such lock; it is free
    /// after this time if what is in the way is dead.
    pub(super) fn ask_for(
        &mut self,
        waiter: Option<u64>,
        free_in: Option<Duration>,
        session: Session<'_>,
        view: &View,
    ) {
        let now = boottime_milliseconds();
        if let (None, Some(free_in)) = (waiter, free_in) {
            let free_in = u64::try_from(free_in.as_millis()).unwrap_or(0);
            self.ask_at = Some(now.saturating_add(free_in).saturating_add(LEFT_ALONE_MS));
            return;
        }
        self.ask_at = waiter.map(|waiter| match self.ask_at {
            Some(at) if at <= now => now + session.ask_for(waiter, view),
            Some(at) => at,
            None => now + LEFT_ALONE_MS,
        });
    }

    /// Sleeps until something has happened that is waited for, for at most so long.
    pub(super) fn sleep(&mut self, until: &Until, limit: Patience<'_>) {
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
        let at_most = match until.ripe_in() {
            Some(after) => limit
                .at_most
                .min(after.saturating_add(Duration::from_millis(1))),
            None => limit.at_most,
        };
        let deadline = Deadline::of(limit.for_at_most(at_most));
        let around = self.around(view);
        self.watch(awaited, around);
        let is_behind_another = matches!(until, Until::LeftQueue(ticket, _)
            if ticket.request.wants != self.content.request.wants);
        let looks_often = is_behind_another || self.content.request.owner.is_some();
        let look = self.cluster().engine.limits().look;
        let next_look = || {
            let longest = match until {
                // The lock is reserved for a waiter that may be passed.
                Until::LeftQueue(_, soon) if *soon < LOOK_OFTEN => *soon,
                _ if looks_often => LOOK_OFTEN,
                _ => look,
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
            let look_at = self.ask_at.map_or(self.look_at, |at| at.min(self.look_at));
            let wake = due.fold(look_at, u64::min);
            let left = Duration::from_millis(wake.saturating_sub(now).max(1));
            let Some(left) = deadline.next_sleep(left).filter(|_| !self.tickets.are_over) else {
                // What is dead may be taken, and be reserved for a waiter that is to be asked for.
                if until.ripe_in().is_some() {
                    self.forget();
                }
                return;
            };
            if now >= look_at {
                // Set here as well: the revision may be the same after the look.
                self.look_at = next_look();
                self.view = None;
                self.watch.take_if(|watch| watch.ends_ms <= now);
                return;
            }
            let watch = self.watch.as_ref();
            let news = watch.map(|watch| locked(&watch.news).recv_timeout(left));
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
    fn awaited(&self, until: &Until, view: &View) -> Vec<Range<String>> {
        let keys = &self.cluster().keys;
        let life = |judged: &Judged| only(&keys.of(Part::Life, &judged.found.key));
        match until {
            Until::Released(judged) => vec![life(judged)],
            Until::AnyReleased(holds, _) => holds.iter().map(life).collect(),
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

    /// The keys whose deletion tells that its place is gone, or that a lock may be free although the waiter ahead
    /// does nothing: its own tickets, some before them, and the holds, if it is one of the first.
    fn around(&self, view: &View) -> Vec<Range<String>> {
        let keys = &self.cluster().keys;
        let (number, wants) = (self.tickets.number(), &self.content.request.wants);
        let is_wanted = |name: LockName| wants.iter().any(|want| want.name == name);
        let tickets = keys.all(Part::Wait);
        let tickets = view.tickets(&tickets).filter(|(earlier, key, _)| {
            *earlier < number && keys.name_of_ticket(key).is_some_and(is_wanted)
        });
        let mut ahead: Vec<(u64, &String)> = tickets.map(|(at, key, _)| (at, key)).collect();
        ahead.sort_unstable();
        let holds = wants.iter().flat_map(|want| {
            let below = keys.below(Part::Life, &want.name);
            let below = view.range(&below).map(|(key, _)| only(key));
            let names = want.name.ancestors().into_iter().chain([want.name.clone()]);
            let own = names.map(|name| only(&keys.exclusive(Part::Life, &name)));
            below.chain(own.filter(|own| view.range(own).next().is_some()))
        });
        let holds = holds.take(AHEAD.saturating_sub(ahead.len()));
        let own = self.tickets.keys.iter().map(|key| only(key));
        let ahead = ahead.iter().rev().take(AHEAD).map(|(_, key)| only(key));
        own.chain(ahead).chain(holds).collect()
    }

    /// Watches for the end of all of these, unless that is done already.
    fn watch(&mut self, awaited: Vec<Range<String>>, around: Vec<Range<String>>) {
        let mut ranges = awaited.clone();
        for range in around {
            if !ranges.contains(&range) {
                ranges.push(range);
            }
        }
        if let Some(watch) = &mut self.watch
            && ranges.iter().all(|range| watch.ranges.contains(range))
        {
            watch.awaited = awaited;
            return;
        }
        let (sender, news) = mpsc::channel();
        let watches: Vec<Watch> = ranges.iter().cloned().map(Watch::Deletions).collect();
        let told = move |answer: Option<WatchAnswer>| {
            answer.is_some_and(|answer| sender.send(answer).is_ok())
        };
        let engine = &self.cluster().engine;
        engine.watch(&watches, Box::new(told));
        let half = u64::try_from(engine.limits().look.as_millis() / 2).unwrap_or(0);
        self.watch = Some(Watched {
            ranges,
            awaited,
            news: Mutex::new(news),
            ends_ms: boottime_milliseconds() + half,
        });
    }

    /// Takes in what a watch says; whether to decide again.
    fn has_ended(&mut self, answer: &WatchAnswer) -> bool {
        let seen = self.view.as_ref().map_or(0, |view| view.revision);
        if answer.has_begun && answer.revision > seen {
            // The watch does not report what happened between the read and its start, so read again. It stays open.
            self.view = None;
            return true;
        }
        let awaited = self.watch.as_ref().map(|watch| watch.awaited.clone());
        let is_awaited = |event: &&Event| {
            let mut awaited = awaited.iter().flatten();
            awaited.any(|range| range.contains(&event.key))
        };
        let given_back = answer.events.iter().filter(is_awaited).find_map(|event| {
            let before = event.before.as_ref()?;
            Some(before).filter(|value| event.is_deletion && is_number(value))
        });
        if let Some(number) = given_back {
            // The waiter ahead had the lock and has released it. So it is most likely our turn.
            let wants = self.content.request.wants.iter();
            let names = wants.map(|want| &want.name);
            self.view = Some(View::guess_after(&self.cluster().keys, names, number));
            return true;
        }
        let keys = &self.tickets.cluster.keys;
        let mut has_ended = false;
        // What the view shows already may have been put again since.
        let is_new = |event: &&Event| event.is_deletion && event.revision > seen;
        for event in answer.events.iter().filter(is_new) {
            if self.tickets.keys.contains(&event.key) {
                // It was asked for in vain.
                self.view = None;
                return true;
            }
            if !is_awaited(&event) {
                let not_all_at_once = random_u64() % (LEFT_ALONE_MS / 5);
                self.ask_at = Some(boottime_milliseconds() + LEFT_ALONE_MS + not_all_at_once);
                continue;
            }
            has_ended = true;
            if let Some(view) = &mut self.view {
                view.remove(&event.key);
                if let Some(of_hold) = keys.hold_of(Part::Life, &event.key) {
                    view.suppose_gone(keys.of(Part::Hold, &of_hold));
                }
            }
        }
        if has_ended {
            self.watch = None;
        }
        has_ended
    }

    /// Writes into its tickets below what it runs, if the process that has started it had not waited for it yet.
    fn write_anew(&mut self) {
        let observer = self.tickets.cluster.host.observer();
        let now = RunsAt::now(self.content.pid, observer);
        if self.content.runs.as_ref().is_none_or(|then| *then == now) {
            return;
        }
        self.content.runs = Some(now);
        let Ok(written) = serde_json::to_vec(&self.content) else {
            return;
        };
        let (keys, created) = self.keys();
        let mut txn = Txn::default();
        for ticket in keys {
            txn.only_if(Compare::was_created_at(ticket, created));
            txn.put(ticket, &written, self.tickets.lease.id);
        }
        // If it fails, a cycle is not found: both wait.
        let _ = self.cluster().session(Patience::SHORT).txn(DRAW, &txn);
    }

    /// Keeps the leases alive that are due.
    fn keep(&mut self) {
        if self.content.runs.is_some() && self.tickets.lease.is_due() {
            self.write_anew();
        }
        if !self.tickets.keep() {
            // The watch is of the same member.
            self.forget();
        }
        let engine = &*self.tickets.cluster.engine;
        if let Some(kept) = &mut self.kept {
            let _ = kept.lease.keep_in_time(engine);
        }
        if !engine.limits().has_lease_ready {
            let now = boottime_milliseconds();
            self.lease.take_if(|lease| lease.due_ms <= now);
            return;
        }
        let lease = self.lease.as_mut();
        if lease.is_none_or(|lease| lease.keep_in_time(engine) == Some(false)) {
            self.lease = Granted::new(engine, self.lease_seconds).ok();
            if self.lease.is_none() {
                engine.go_on();
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The next waiter does not wait for what follows.
        if !self.tickets.end() {
            // The other leases expire, and nobody waits for that.
            return;
        }
        let engine = &*self.tickets.cluster.engine;
        match &mut self.kept {
            // The take has deleted its key.
            Some(kept) if kept.has_been_served => engine.give_up(kept.lease.id),
            // Its time starts now.
            Some(kept) => _ = kept.lease.keep(engine),
            None => {}
        }
        if let Some(lease) = self.lease {
            engine.give_up(lease.id);
        }
    }
}
