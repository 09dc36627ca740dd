//! The answers that a decision gets from a view, read as they are asked for.

use std::cell::{Cell, OnceCell, RefCell};
use std::ops::Range;

use super::keys::{Keys, Part};
use super::store::{Cluster, Gone, READ, Session, Written, has_fault};
use super::txn::{KeyValue, Read, Txn, only};
use super::view::{View, area, content, holds_beside};
use crate::backend::LockSnapshot;
use crate::decision::{Facts, Key, Life, Moment, Observer, Revision, Snapshot, Visit, Want};
use crate::error::{Fault, Result};
use crate::identity::{Pid, ProcessId};
use crate::name::LockName;
use crate::observer;
use crate::open_file::{Found, Handle, Judged, Ticket};
use crate::record::{Content, Record};
use crate::status::Waiter;
use crate::sys::keeper::wrapper;
use crate::sys::locked;
use crate::ticket::{RunsAt, TicketContent};

/// From when on a ticket that is still there shows that its waiter was alive when it was first seen: that of a dead one
/// that may be in a cycle lasts 5 s.
const OUTLIVED_MS: u64 = 6_000;

/// The answers to the questions of a decision.
pub(crate) struct ViewSnapshot<'a> {
    session: Session<'a>,
    view: RefCell<View>,
    /// The records of the view whose life has not been looked at.
    unnoted: RefCell<Vec<Range<String>>>,
    /// A dead hold was asked for.
    has_dead: Cell<bool>,
    pub(super) now: OnceCell<Moment>,
    /// Only tickets before this one count.
    pub(super) place: Option<u64>,
}

impl<'a> ViewSnapshot<'a> {
    pub(super) fn new(session: Session<'a>, view: View) -> Self {
        Self {
            unnoted: RefCell::new(vec![session.cluster.keys.all(Part::Hold)]),
            has_dead: Cell::new(false),
            session,
            view: RefCell::new(view),
            now: OnceCell::new(),
            place: None,
        }
    }

    pub(super) fn into_view(self) -> View {
        self.view.into_inner()
    }

    fn keys(&self) -> &Keys {
        &self.session.cluster.keys
    }

    /// Makes sure that a range is known, or what is near its beginning. `name`: for whom it is asked.
    fn ensure(&self, range: &Range<String>, name: &LockName) -> Result<()> {
        while let Some(gap) = self.gap(range) {
            self.fill(gap, name)?;
        }
        Ok(())
    }

    fn gap(&self, range: &Range<String>) -> Option<Range<String>> {
        self.view.borrow().gap(range)
    }

    fn fill(&self, gap: Range<String>, name: &LockName) -> Result<()> {
        let (keys, mut view) = (self.keys(), self.view.borrow_mut());
        if view.asked.contains(name) {
            let holds = [&gap.start, &gap.end].map(|end| Keys::in_part(Part::Hold, end));
            self.session.read_page(&mut view, gap)?;
            let [start, end] = holds;
            self.unnoted.borrow_mut().push(start..end);
        } else {
            let txn = Txn::of_reads(area(keys, name, view.revision));
            let (answer, _) = self.session.txn(READ, &txn)?;
            view.add_answer(keys, std::slice::from_ref(name), answer);
            self.unnoted.replace(vec![keys.all(Part::Hold)]);
        }
        Ok(())
    }

    /// The record with this key, if it is there.
    fn found(&self, key: Key) -> Option<Found> {
        self.note_dead();
        let view = self.view.borrow();
        let found = self.session.cluster.found(&view, key, self.now())?;
        let is_dead = matches!(found.facts.life, Some(Life::Gone { .. }));
        self.has_dead.set(self.has_dead.get() || is_dead);
        Some(found)
    }

    /// All holds of a name.
    pub(super) fn holds_of(&self, name: &LockName) -> Result<Vec<Found>> {
        let exclusive = self.exclusive(name)?.into_iter();
        Ok(exclusive.chain(self.shared(name)?).collect())
    }

    /// Notes all that are dead, so that the time until each may be taken over begins now, also for those that a
    /// decision does not get to before others have been taken over.
    fn note_dead(&self) {
        for range in self.unnoted.take() {
            self.session
                .cluster
                .note_dead(&self.view.borrow(), &range, self.now());
        }
    }

    /// Reads all holds that matter to what was asked for, and of which there was more than a page, if one was dead:
    /// those behind it may be dead as well.
    pub(super) fn find_dead(&self) -> Result<()> {
        if !self.has_dead.get() || self.view.borrow().is_assumed() {
            return Ok(());
        }
        let asked = self.view.borrow().asked.clone();
        for name in asked {
            for read in holds_beside(self.keys(), &name) {
                self.ensure(&read, &name)?;
            }
        }
        self.note_dead();
        Ok(())
    }

    /// The tickets of those names, in order of arrival.
    fn tickets_in(&self, trees: &[Range<String>]) -> Vec<(u64, LockName)> {
        let view = self.view.borrow();
        let tickets = trees.iter().flat_map(|tree| view.tickets(tree));
        let tickets = tickets.filter(|(_, _, found)| is_of_waiter(found));
        let mut tickets: Vec<(u64, LockName)> = tickets
            .filter_map(|(number, key, _)| Some((number, self.keys().name_of_ticket(key)?)))
            .collect();
        tickets.sort_by_key(|(number, _)| *number);
        tickets
    }

    fn written(&self, number: u64) -> Option<TicketContent> {
        let view = self.view.borrow();
        let all = self.keys().all(Part::Wait);
        let (_, _, found) = view.tickets(&all).find(|(other, _, _)| *other == number)?;
        TicketContent::read(&found.value)
    }
}

impl LockSnapshot for ViewSnapshot<'_> {
    fn waiters(&self, name: &LockName) -> Vec<Waiter> {
        let tree = self.keys().tree(name);
        if self.ensure(&tree, name).is_err() {
            return Vec::new();
        }
        self.tickets_in(&[tree])
            .into_iter()
            .filter(|(_, other)| other == name)
            .filter_map(|(number, _)| self.written(number))
            .enumerate()
            .map(|(index, written)| written.into_waiter(index + 1))
            .collect()
    }

    fn waiter(&self, ticket: &Ticket) -> Option<Waiter> {
        Some(self.written(ticket.number)?.into_waiter(1))
    }
}

impl Snapshot<Handle> for ViewSnapshot<'_> {
    fn now(&self) -> Moment {
        *self.now.get_or_init(observer::now)
    }

    fn observer(&self) -> Observer {
        self.session.cluster.host.observer().clone()
    }

    fn takeover_is_safe(&self) -> bool {
        true
    }

    /// Asked only about a process of this machine: processes are no evidence of life here.
    fn descends_from(&self, process: ProcessId) -> bool {
        observer::descends_from(process)
    }

    fn exclusive(&self, name: &LockName) -> Result<Option<Found>> {
        for part in Part::BOTH {
            self.ensure(&only(&self.keys().exclusive(part, name)), name)?;
        }
        Ok(self.found(Key::exclusive(name)))
    }

    fn shared(&self, name: &LockName) -> Result<Vec<Found>> {
        let ranges = Part::BOTH.map(|part| self.keys().several(part, name));
        for range in &ranges {
            self.ensure(range, name)?;
        }
        let holds = self.view.borrow().holds(self.keys(), ranges);
        Ok(holds
            .into_iter()
            .filter_map(|key| self.found(key))
            .collect())
    }

    fn below(&self, name: &LockName, visit: &mut Visit<'_, Handle>) -> Result<()> {
        let ranges = Part::BOTH.map(|part| self.keys().below(part, name));
        let [holds, _] = &ranges;
        let mut from = holds.start.clone();
        while from < holds.end {
            // Up to where both are known; then on to the next page.
            let gaps = ranges.iter().filter_map(|range| self.gap(range));
            let until = gaps.map(|gap| Keys::in_part(Part::Hold, &gap.start)).min();
            let until = until.unwrap_or_else(|| holds.end.clone());
            let known =
                Part::BOTH.map(|part| Keys::in_part(part, &from)..Keys::in_part(part, &until));
            let known = self.view.borrow().holds(self.keys(), known);
            // Its own shared ones are no descendants.
            for key in known.into_iter().filter(|key| key.name != *name) {
                if let Some(found) = self.found(key)
                    && visit(found).is_break()
                {
                    return Ok(());
                }
            }
            from = until;
            for range in &ranges {
                if let Some(gap) = self.gap(range) {
                    self.fill(gap, name)?;
                }
            }
        }
        Ok(())
    }

    fn each_ticket(&self, wants: &[Want], visit: &mut dyn FnMut(u64, &LockName)) -> Result<()> {
        let mut trees: Vec<Range<String>> = Vec::new();
        for want in wants {
            let tree = self.keys().tree(&want.name);
            if !trees.contains(&tree) {
                self.ensure(&tree, &want.name)?;
                trees.push(tree);
            }
        }
        for (number, name) in self.tickets_in(&trees) {
            if self.place.is_none_or(|place| number < place) {
                visit(number, &name);
            }
        }
        Ok(())
    }

    fn ticket(&self, number: u64) -> Result<Option<Ticket>> {
        Ok(self.written(number).map(|written| Ticket {
            number,
            request: written.request,
            reserved_since_ms: None,
            handle: None,
        }))
    }

    #[cold]
    fn waiters_inside(&self) -> Result<Vec<Ticket>> {
        let all = self.keys().all(Part::Wait);
        while let Some(gap) = self.gap(&all) {
            self.session.read_page(&mut self.view.borrow_mut(), gap)?;
        }
        let view = self.view.borrow();
        let mut elsewhere = locked(&self.session.cluster.elsewhere);
        elsewhere.retain(|ticket, _| view.get(ticket).is_some());
        let mut waiters = Vec::new();
        for (number, key, found) in view.tickets(&all) {
            let is_before = is_of_waiter(found) && self.place.is_none_or(|place| number < place);
            let content = TicketContent::read(&found.value).filter(|_| is_before);
            let Some((runs, mut request)) = content.and_then(|it| Some((it.runs?, it.request)))
            else {
                continue;
            };
            if !runs.is_seen_by(self.session.cluster.host.observer()) {
                let now = self.now().boottime_ms;
                elsewhere.entry(key.clone()).or_insert(now);
                // It is by the clock of that machine.
                request.waits_until_ms = request.waits_until_ms.filter(|until| *until == u64::MAX);
            }
            waiters.push(Ticket {
                number,
                request,
                reserved_since_ms: None,
                handle: None,
            });
        }
        waiters.sort_by_key(|ticket| ticket.number);
        waiters.dedup_by_key(|ticket| ticket.number);
        Ok(waiters)
    }

    #[cold]
    fn is_awaited(&self, waiter: Option<&Ticket>, hold: &Found) -> bool {
        let observer = self.session.cluster.host.observer();
        let runs = match waiter {
            None => {
                let own = wrapper().unwrap_or_else(Pid::of_self);
                Some(RunsAt::now(own, observer))
            }
            Some(ticket) => self.runs_at(ticket.number, observer),
        };
        let both = runs.zip(hold.content.record());
        both.is_some_and(|(runs, record)| runs.is_awaited_by(record))
    }
}

impl ViewSnapshot<'_> {
    /// Where a waiter runs that is known to be alive.
    fn runs_at(&self, number: u64, observer: &Observer) -> Option<RunsAt> {
        let view = self.view.borrow();
        let all = self.keys().all(Part::Wait);
        let (_, key, found) = view.tickets(&all).find(|(other, _, _)| *other == number)?;
        let content = TicketContent::read(&found.value)?;
        let runs = content.runs?;
        if runs.is_seen_by(observer) {
            return Some(RunsAt::now(content.pid, observer));
        }
        let since = *locked(&self.session.cluster.elsewhere).get(key)?;
        let known_for = self.now().boottime_ms.saturating_sub(since);
        (known_for >= OUTLIVED_MS).then_some(runs)
    }
}

impl Session<'_> {
    /// The keys of all locks of a hold, and a view that shows them.
    pub(super) fn keys_of_hold(self, judged: &Judged, view: View) -> Result<(Vec<Key>, View)> {
        let own = &judged.found.key;
        let mut keys = vec![own.clone()];
        let snapshot = ViewSnapshot::new(self, view);
        if let Some(record) = judged.record() {
            let names = record.names.iter();
            let names = names.filter_map(|name| LockName::new(name).ok());
            for name in names.filter(|name| *name != own.name) {
                let is_its = |other: &Record| other.hold == record.hold;
                let mut all = snapshot.holds_of(&name)?.into_iter();
                let its = all.find(|found| found.content.record().is_some_and(is_its));
                keys.extend(its.map(|found| found.key));
            }
        }
        Ok((keys, snapshot.into_view()))
    }

    /// Reads a page of what is not known of a range, from its beginning on.
    pub(super) fn read_page(self, view: &mut View, gap: Range<String>) -> Result<()> {
        let mut read = Read {
            keys_only: self.cluster.keys.all(Part::Life).contains(&gap.start),
            ..Read::all(gap)
        };
        let mut is_too_large = false;
        loop {
            read.limit = view.page;
            read.revision = view.revision;
            let answer = match self.read(&read) {
                // Some values are large.
                Err(error) if has_fault(&error, Fault::TooLarge) && view.page > 1 => {
                    view.page = (view.page / 20).max(1);
                    is_too_large = true;
                    continue;
                }
                answer => answer?,
            };
            view.begin_at(answer.revision);
            if view.add(read.clone(), answer) {
                return Ok(());
            }
            // Beyond what is no text. It may be too much for any page.
            if is_too_large {
                view.page = view.page.saturating_add(1);
            } else {
                view.page = view.page.saturating_mul(2);
            }
        }
    }
}

impl Cluster {
    /// The record with this key, as a view shows it.
    pub(super) fn found(&self, view: &View, key: Key, now: Moment) -> Option<Found> {
        let [hold, life] = self.keys.of_hold(&key);
        let (hold, life) = (view.get(&hold), view.get(&life));
        let content = match hold {
            None if life.is_none() => return None,
            None => Content::Corrupt,
            Some(hold) => content(&hold.value, life.is_some()),
        };
        let known_as = match life {
            Some(_) => Life::Kept,
            None => Life::Gone {
                known_for_ms: hold.map_or(0, |hold| self.known_gone_for(hold, now)),
            },
        };
        let written = hold.or(life).map_or(0, |found| found.mod_revision);
        let (number, digest) = match content.record() {
            Some(record) if record.hold != 0 => (record.hold, 0),
            _ => (0, written.cast_unsigned()),
        };
        Some(Found {
            revision: Revision {
                hold: number,
                digest,
                ..Revision::NONE
            },
            facts: Facts {
                same_store: true,
                life: Some(known_as),
                ..Facts::of_file(now.wall, true)
            },
            key,
            content,
            handle: None,
        })
    }

    /// For how long this process has known that a record is dead, as it stands now.
    fn known_gone_for(&self, hold: &KeyValue, now: Moment) -> u64 {
        let new = Gone {
            record: Written::of(hold),
            since_ms: now.boottime_ms,
        };
        let key = String::from_utf8_lossy(&hold.key).into_owned();
        let mut gone = locked(&self.gone);
        let known = gone.entry(key).or_insert(new);
        if known.record != new.record {
            *known = new;
        }
        now.boottime_ms.saturating_sub(known.since_ms)
    }

    /// Notes which records of a part of a view are dead, and which are not.
    pub(super) fn note_dead(&self, view: &View, range: &Range<String>, now: Moment) {
        for (key, hold) in view.range(range) {
            let life = Keys::in_part(Part::Life, key);
            if view.get(&life).is_some() {
                // It was taken again, or a backup was restored that has its life key.
                locked(&self.gone).remove(key);
            } else if view.gap(&only(&life)).is_none() {
                self.known_gone_for(hold, now);
            }
        }
    }
}

/// Whether a ticket belongs to a waiter. A ticket without a lease would block the queue for ever. A ticket that is
/// only a number belongs to a holder.
pub(super) fn is_of_waiter(ticket: &KeyValue) -> bool {
    ticket.lease != 0 && !is_number(&ticket.value)
}

/// Whether this is the number of a hold, as it is written alone.
pub(super) fn is_number(value: &[u8]) -> bool {
    value.len() == 16 && value.iter().all(u8::is_ascii_digit)
}

/// Reads until nothing of it was compacted meanwhile.
pub(super) fn until_not_compacted<T>(mut read: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match read() {
            Err(error) if has_fault(&error, Fault::Compacted) => {}
            found => return found,
        }
    }
}
