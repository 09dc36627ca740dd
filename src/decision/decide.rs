//! The decision: may a request take its locks now, and if not, what is in its way.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::Duration;

use super::compatibility::excludes;
use super::liveness::{Reason, State, Verdict, belongs_to_acquirer, has_ended, judge};
use super::request::{Asker, Key, Request, Want, first_free, slot_of};
use super::snapshot::{Found, Snapshot, Ticket};
use crate::identity::ProcessId;
use crate::name::LockName;
use crate::record::{Kind, Mode, Record, is_same_owner};

/// For how long a free lock is reserved for the first waiter that could take it.
const RESERVATION_MS: u64 = 5_000;

/// Limit of zombie parents and children that one decision removes. Each removal takes about 100 µs,
/// and the store is locked meanwhile.
const MAX_REMOVALS: usize = 256;

/// For how long others wait for the process that has acquired a lock for another one, or as a lease, to
/// confirm that. It may be stopped, or nobody may read what it prints.
const CONFIRMATION_LIMIT: Duration = Duration::from_secs(5);

/// How often a waiter looks again that sleeps on another one: the other one may have been stopped.
const RECHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The same where a third one looks every 5 s already.
const IDLE_RECHECK_INTERVAL: Duration = Duration::from_mins(1);

/// A record and what can be said of it.
#[derive(Clone, Debug)]
pub(crate) struct Judged<H> {
    pub(crate) found: Found<H>,
    pub(crate) verdict: Verdict,
}

/// What may be done about a request.
#[derive(Clone, Debug)]
pub(crate) enum Decision<H> {
    /// Take the locks: write these records, each in place of what is there, and remove the others.
    Take {
        put: Vec<(Key, Option<Judged<H>>)>,
        remove: Vec<Judged<H>>,
    },
    /// The same holder has it already.
    AlreadyHeld(Judged<H>),
    /// It may become free.
    Wait(Obstacle<H>),
    /// Waiting cannot change it.
    Blocked(Judged<H>),
    /// The file is not a lock file; what it is.
    Refuse(Judged<H>, &'static str),
}

/// What keeps a request from being granted.
#[derive(Clone, Debug)]
pub(crate) enum Obstacle<H> {
    Hold(Judged<H>),
    /// The lock is free and reserved for this waiter.
    Waiter(Ticket<H>),
}

/// What a waiter sleeps on.
#[derive(Clone, Debug)]
pub(crate) enum Until<H> {
    /// The end of a hold.
    Released(Judged<H>),
    /// The end of any of these holds.
    AnyReleased(Vec<Judged<H>>),
    /// An earlier waiter leaves the queue, or this time has passed.
    LeftQueue(Ticket<H>, Duration),
    /// A dead hold can be taken over, after this time.
    Ripe(Judged<H>, Duration),
}

/// Decides about a request. The first row that applies:
///
/// | question | decision |
/// |---|---|
/// | Is the file of a wanted name not a lock file? | refuse |
/// | Is it about to be the same holder's, or to be replaced, and not confirmed yet? | wait |
/// | Does the same holder have it, by an earlier detached hold? | already held, or blocked if that hold is lost |
/// | Is a hold in the way that the caller runs inside of, or a zombie that it may not take? | blocked |
/// | Is any other hold in the way? | wait |
/// | Is an earlier waiter in the way that could take its own locks now? | wait, reserved for it |
/// | – | take |
///
/// A waiter that could not take its locks now is not in the way. The same rules apply to the caller
/// and to each waiter, with the request and the observer of each.
pub(crate) fn decide<S: Snapshot>(
    request: &Request,
    snapshot: &S,
) -> Result<Decision<S::Handle>, S::Error> {
    let mut scan = Scan::new(request, snapshot);
    let is_final = |judged: &Judged<S::Handle>| {
        let decision = decide_about_hold(request, snapshot, judged.clone());
        !matches!(decision, Decision::Wait(_))
    };
    if let Some(judged) = scan.run(Ignore::Nothing, &is_final)? {
        return Ok(match decide_about_hold(request, snapshot, judged) {
            Decision::AlreadyHeld(judged) if !is_whole(&judged, snapshot)? => {
                Decision::Blocked(judged)
            }
            decision => decision,
        });
    }
    if !request.skip_queue
        && let Some(ticket) = reserved_for(&scan)?
    {
        return Ok(Decision::Wait(Obstacle::Waiter(ticket)));
    }
    scan.take()
}

fn decide_about_hold<S: Snapshot>(
    request: &Request,
    snapshot: &S,
    judged: Judged<S::Handle>,
) -> Decision<S::Handle> {
    if let Reason::NotALock(what) = judged.verdict.reason {
        return Decision::Refuse(judged, what);
    }
    if is_same_hold(request, &judged) {
        return Decision::AlreadyHeld(judged);
    }
    if judged.verdict.takeable_in.is_some() && request.take_zombies {
        return Decision::Wait(Obstacle::Hold(judged));
    }
    let is_takeable = matches!(judged.verdict.state, State::Zombie | State::Free);
    if is_takeable || runs_inside(request, snapshot, &judged) {
        return Decision::Blocked(judged);
    }
    Decision::Wait(Obstacle::Hold(judged))
}

/// Whether a request asks for the locks of a hold, all of them and no others.
fn asks_for_same_locks(request: &Request, held: &Key, record: &Record) -> bool {
    let has = |want: &Want| {
        want.name == held.name || record.names.iter().any(|name| name == want.name.as_str())
    };
    let is_wanted = |want: &Want| held.index.is_some() == want.mode.is_shared() && has(want);
    request.wants.len() == record.all_names().count() && request.wants.iter().all(is_wanted)
}

/// Whether the same holder asks again for its detached hold.
fn is_same_hold<H>(request: &Request, judged: &Judged<H>) -> bool {
    let Some(record) = judged.record() else {
        return false;
    };
    let is_held = matches!(judged.verdict.state, State::Held | State::Overdue);
    is_held
        && record.is_confirmed()
        && asks_for_same_locks(request, &judged.found.key, record)
        && match request.asker {
            Asker::Caller | Asker::Derived => false,
            // With the start, or a reused PID would pass for the holder; and seen from here, or one of
            // another PID namespace would.
            Asker::Process(process) => {
                record.kind == Kind::Process
                    && record.live.process() == Some(process)
                    && judged.verdict.pid_alive == Some(true)
                    && !is_for_another_owner(request, record)
            }
            Asker::Lease => {
                record.kind == Kind::Lease
                    && is_same_owner(request.owner.as_deref(), record.owner.as_deref())
            }
        }
}

/// Whether a hold of several locks still has all of them: one whose record was removed or replaced is
/// lost.
pub(super) fn is_whole<S: Snapshot>(
    judged: &Judged<S::Handle>,
    snapshot: &S,
) -> Result<bool, S::Error> {
    let names = judged.record().map_or(&[][..], |record| &record.names);
    // They may be anything, if another program wrote them.
    let names = names.iter().filter_map(|name| LockName::new(name).ok());
    for name in names.filter(|name| !name.is_path()) {
        let found = match judged.found.key.index {
            None => snapshot.exclusive(&name)?.into_iter().collect(),
            Some(_) => snapshot.shared(&name)?,
        };
        let own = &judged.found.revision;
        if !found.iter().any(|found| found.revision == *own) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether it has to be known first what becomes of a hold that is not confirmed yet: it may be the same
/// holder's, or is to be replaced.
pub(crate) fn awaits_confirmation<H>(request: &Request, judged: &Judged<H>) -> bool {
    let Some(record) = judged.record() else {
        return false;
    };
    let may_be_same = || {
        asks_for_same_locks(request, &judged.found.key, record)
            && match request.asker {
                Asker::Caller | Asker::Derived => false,
                // Which process it will follow is not on record yet.
                Asker::Process(_) => {
                    record.kind == Kind::Process && !is_for_another_owner(request, record)
                }
                Asker::Lease => {
                    record.kind == Kind::Lease
                        && is_same_owner(request.owner.as_deref(), record.owner.as_deref())
                }
            }
    };
    judged.confirmed_within().is_some() && (request.replaces(judged) || may_be_same())
}

/// Whether the request names an owner that is not the one on record. Two sessions may name one process.
fn is_for_another_owner(request: &Request, record: &Record) -> bool {
    let asked = request.owner.as_deref().filter(|owner| !owner.is_empty());
    asked.is_some() && record.format.has_owners() && !is_same_owner(asked, record.owner.as_deref())
}

/// Whether a hold ends only after the request has: the caller runs under it, or the process that it
/// follows is the one that asks, or an ancestor of the caller.
fn runs_inside<S: Snapshot>(request: &Request, snapshot: &S, judged: &Judged<S::Handle>) -> bool {
    let is_locked_by_others = judged.verdict.reason == Reason::Locked;
    let Some(record) = judged.record().filter(|_| !is_locked_by_others) else {
        let lockers = judged.found.facts.lockers.iter();
        return lockers.copied().any(|pid| {
            let start = None;
            snapshot.descends_from(ProcessId { pid, start })
        });
    };
    if record.hold != 0 && request.inside.contains(&record.hold) {
        return true;
    }
    let is_alive = judged.verdict.pid_alive == Some(true);
    let Some(process) = record
        .live
        .process()
        .filter(|_| is_alive && record.is_confirmed())
    else {
        return false;
    };
    // Under another owner label another session may release it meanwhile.
    let asks_for_itself = |process| {
        request.asker == Asker::Process(process) && !is_for_another_owner(request, record)
    };
    let belongs_to =
        |process: ProcessId| asks_for_itself(process) || snapshot.descends_from(process);
    // Another part of the same script, which is still running, can release it.
    belongs_to_acquirer(record, belongs_to, |process| {
        has_ended(process, &judged.found.facts)
    }) && belongs_to(process)
}

/// The earlier waiter for which a lock that no hold excludes is reserved.
fn reserved_for<S: Snapshot>(scan: &Scan<'_, S>) -> Result<Option<Ticket<S::Handle>>, S::Error> {
    let Scan {
        request, snapshot, ..
    } = *scan;
    let mut wants = request.wants.clone();
    'tickets: loop {
        let mut granted: Vec<Request> = Vec::new();
        for number in earlier_tickets(request, &wants, snapshot)? {
            let Some(ticket) = snapshot.ticket(number)? else {
                continue;
            };
            // Whether it could take all of its locks depends on the waiters for each of them.
            let more = unlisted(&ticket.request.wants, &wants);
            if !more.is_empty() {
                wants.extend(more);
                continue 'tickets;
            }
            if has_missed_its_turn(&ticket, snapshot)
                || !could_take(request, &ticket.request, snapshot, &granted)?
            {
                continue;
            }
            granted.push(ticket.request.clone());
            if scan.is_excluded_by(&granted) {
                return Ok(Some(ticket));
            }
        }
        return Ok(None);
    }
}

/// Those wants whose tickets are not among those for `listed`.
fn unlisted(wants: &[Want], listed: &[Want]) -> Vec<Want> {
    let tree = |want: &Want| want.name.segments().first().cloned();
    let is_listed = |want: &&Want| listed.iter().any(|known| tree(known) == tree(want));
    let unlisted = wants.iter().filter(|want| !is_listed(want));
    unlisted.cloned().collect()
}

/// Whether a waiter could take its locks now, as far as it concerns `request`.
fn could_take<S: Snapshot>(
    request: &Request,
    waiter: &Request,
    snapshot: &S,
    granted: &[Request],
) -> Result<bool, S::Error> {
    let mut scan = Scan::new(waiter, snapshot);
    match scan.run(Ignore::Nothing, &|_| true)? {
        None => return Ok(!scan.is_excluded_by(granted)),
        // New readers do not overtake a writer that waits only for readers, or it would never be
        // served; except those that run inside such a shared hold, which would wait for themselves.
        Some(judged) if judged.found.key.index.is_some() => {}
        Some(_) => return Ok(false),
    }
    if waiter.wants.iter().any(|want| want.mode.is_shared()) {
        return Ok(false);
    }
    for want in &waiter.wants {
        let is_inside = snapshot.shared(&want.name)?.iter().any(|found| {
            let hold = found.content.record().map(|record| record.hold);
            hold.is_some_and(|hold| request.inside.contains(&hold))
        });
        if is_inside {
            return Ok(false);
        }
    }
    let mut scan = Scan::new(waiter, snapshot);
    let obstacle = scan.run(Ignore::OwnReaders, &|_| true)?;
    Ok(obstacle.is_none() && !scan.is_excluded_by(granted))
}

/// What to sleep on until a decision may be another one.
pub(crate) fn until<S: Snapshot>(
    request: &Request,
    obstacle: Obstacle<S::Handle>,
    snapshot: &S,
) -> Result<Until<S::Handle>, S::Error> {
    let judged = match obstacle {
        Obstacle::Waiter(ticket) => {
            let last = latest_with_same_request(request, snapshot)?;
            return Ok(Until::LeftQueue(last.unwrap_or(ticket), RECHECK_INTERVAL));
        }
        Obstacle::Hold(judged) => judged,
    };
    let held = want_of(&judged.found.key);
    let holder = judged.record().and_then(|record| record.owner.clone());
    // Any of the holders of a full lock may make room. The next slot goes to the first waiter that can
    // have one whenever we can.
    let is_own = |want: &&Want| want.name == held.name && held.mode.is_shared();
    let slots = request.wants.iter().find(is_own);
    let slots = slots.and_then(|want| want.mode.slots());
    let takes_slot = |want: &Want| {
        let has_as_many = |slots| want.mode.slots().is_some_and(|theirs| theirs >= slots);
        want.name == held.name && slots.is_some_and(has_as_many)
    };
    // The latest earlier waiter that waits for the same hold and would then be in our way. So one
    // waiter wakes when the hold ends.
    let mut predecessor: Option<Ticket<S::Handle>> = None;
    for number in earlier_tickets(request, &request.wants, snapshot)?
        .into_iter()
        .rev()
    {
        let Some(ticket) = snapshot.ticket(number)? else {
            continue;
        };
        let theirs = &ticket.request;
        let waits_too = theirs
            .wants
            .iter()
            .any(|want| excludes(&held, holder.as_deref(), want, theirs.owner.as_deref()));
        let is_ahead = theirs.wants.iter().any(takes_slot)
            || (waits_too
                && Scan::new(request, snapshot).is_excluded_by(std::slice::from_ref(theirs)));
        if !is_ahead || has_missed_its_turn(&ticket, snapshot) {
            continue;
        }
        match predecessor {
            None => predecessor = Some(ticket),
            // That one looks every 5 s, should ours be stopped.
            Some(predecessor) => {
                let interval = if predecessor.request.wants == request.wants {
                    IDLE_RECHECK_INTERVAL
                } else {
                    RECHECK_INTERVAL
                };
                return Ok(Until::LeftQueue(predecessor, interval));
            }
        }
    }
    Ok(match predecessor {
        Some(ticket) => Until::LeftQueue(ticket, RECHECK_INTERVAL),
        None if slots.is_some() => {
            let mut holders = Vec::new();
            let mut ripening: Option<(Judged<_>, Duration)> = None;
            for found in snapshot.shared(&held.name)? {
                let judged = judge_found(request, snapshot, found);
                if matches!(judged.verdict.state, State::Held | State::Overdue) {
                    holders.push(judged);
                } else if let Some(after) = judged.verdict.takeable_in
                    && ripening.as_ref().is_none_or(|(_, first)| after < *first)
                {
                    ripening = Some((judged, after));
                }
            }
            match ripening {
                Some((judged, after)) if holders.is_empty() => Until::Ripe(judged, after),
                _ => Until::AnyReleased(holders),
            }
        }
        None => match judged.verdict.takeable_in {
            Some(after) => Until::Ripe(judged, after),
            None => Until::Released(judged),
        },
    })
}

/// The latest earlier waiter that asks for the same as we do and would exclude us. Whenever we could take our
/// locks, so could it, so it is served first. Sleeping on it wakes one waiter at a time; sleeping on the
/// waiter that the lock is reserved for would wake all that arrived meanwhile.
fn latest_with_same_request<S: Snapshot>(
    request: &Request,
    snapshot: &S,
) -> Result<Option<Ticket<S::Handle>>, S::Error> {
    let scan = Scan::new(request, snapshot);
    for number in earlier_tickets(request, &request.wants, snapshot)?
        .into_iter()
        .rev()
    {
        let Some(ticket) = snapshot.ticket(number)? else {
            continue;
        };
        let theirs = &ticket.request;
        let is_alike = theirs.wants == request.wants
            && theirs.owner == request.owner
            && theirs.inside == request.inside
            && theirs.take_zombies == request.take_zombies
            && theirs.max_age_ms == request.max_age_ms;
        if is_alike
            && !has_missed_its_turn(&ticket, snapshot)
            && scan.is_excluded_by(std::slice::from_ref(theirs))
        {
            return Ok(Some(ticket));
        }
    }
    Ok(None)
}

/// The tickets that came before ours and may matter to `wants`, in order. Waiters for unrelated names
/// only matter to those for related ones that come after them.
fn earlier_tickets<S: Snapshot>(
    request: &Request,
    wants: &[Want],
    snapshot: &S,
) -> Result<Vec<u64>, S::Error> {
    let mut tickets = snapshot.tickets(wants)?;
    tickets.retain(|(number, _)| request.ticket.is_none_or(|own| *number < own));
    let concerns = |name: &LockName| wants.iter().any(|want| is_related(&want.name, name));
    let last = tickets.iter().rposition(|(_, name)| concerns(name));
    tickets.truncate(last.map_or(0, |last| last + 1));
    let mut numbers: Vec<u64> = tickets.into_iter().map(|(number, _)| number).collect();
    // One for several names is there once for each.
    numbers.dedup();
    Ok(numbers)
}

fn has_missed_its_turn<S: Snapshot>(ticket: &Ticket<S::Handle>, snapshot: &S) -> bool {
    let now = snapshot.now().boottime_ms;
    ticket.reserved_since_ms.is_some_and(|since| {
        // A clock that went back is that of another boot.
        now.checked_sub(since)
            .is_none_or(|passed| passed >= RESERVATION_MS)
    })
}

fn is_related(one: &LockName, other: &LockName) -> bool {
    one == other || one.is_ancestor_of(other) || other.is_ancestor_of(one)
}

fn want_of(key: &Key) -> Want {
    Want {
        name: key.name.clone(),
        mode: match key.index {
            None => Mode::Exclusive,
            Some(_) => Mode::Shared,
        },
    }
}

/// Judges a record by the request's observer and maximum age.
pub(crate) fn judge_found<S: Snapshot>(
    request: &Request,
    snapshot: &S,
    found: Found<S::Handle>,
) -> Judged<S::Handle> {
    let mut observer = match &request.observer {
        Some(observer) => Cow::Borrowed(observer),
        None => Cow::Owned(snapshot.observer()),
    };
    if !request.over.is_empty() {
        observer.to_mut().over.extend(&request.over);
    }
    let verdict = judge(
        &found.content,
        &found.facts,
        &observer,
        Duration::from_millis(request.max_age_ms),
        &snapshot.now(),
    );
    Judged { found, verdict }
}

/// The number of a new shared record: of the lowest slot that is free. Those `given_back` are dead, but the
/// file of one may have to stay.
fn free_index<H>(found: &[Found<H>], given_back: &[&Judged<H>]) -> u32 {
    let given_back: BTreeSet<_> = given_back
        .iter()
        .filter_map(|judged| judged.found.key.index)
        .collect();
    let (mut slots, mut records) = (BTreeSet::new(), BTreeSet::new());
    for found in found {
        let Some(index) = found.key.index else {
            continue;
        };
        let is_given_back = given_back.contains(&index);
        if !is_given_back {
            slots.insert(slot_of(index));
        }
        if !is_given_back || found.facts.stays {
            records.insert(index);
        }
    }
    first_free(
        |slot| slots.contains(&slot),
        |index| !records.contains(&index),
    )
}

/// What does not count as an obstacle.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ignore {
    Nothing,
    /// The live shared holds of the wanted names themselves.
    OwnReaders,
}

/// What a record is to a request.
enum Look<H> {
    Nothing,
    Obstacle(Judged<H>),
    /// A shared hold of the wanted name, which takes up room if there is a limit.
    Reader(Judged<H>),
}

/// Looks for what excludes a request.
struct Scan<'a, S: Snapshot> {
    request: &'a Request,
    snapshot: &'a S,
    /// Records of the wanted names that may be replaced: dead, or named by the request.
    own: Vec<Judged<S::Handle>>,
    /// Dead relatives.
    remove: Vec<Judged<S::Handle>>,
    /// Shared holds of each wanted name, as far as they were looked at.
    readers: Vec<u32>,
}

impl<'a, S: Snapshot> Scan<'a, S> {
    fn new(request: &'a Request, snapshot: &'a S) -> Self {
        Self {
            request,
            snapshot,
            own: Vec::new(),
            remove: Vec::new(),
            readers: Vec::new(),
        }
    }

    /// A hold that excludes the request: the first one for which `is_final` is true, else the first one.
    /// What is read only for that is read if the caller runs inside of a hold.
    fn run(
        &mut self,
        ignore: Ignore,
        is_final: &dyn Fn(&Judged<S::Handle>) -> bool,
    ) -> Result<Option<Judged<S::Handle>>, S::Error> {
        let (request, snapshot) = (self.request, self.snapshot);
        let mut first = None;
        let is_enough = |first: &Option<_>| first.is_some() && request.inside.is_empty();
        for want in &request.wants {
            if let Some(own) = snapshot.exclusive(&want.name)?
                && let Look::Obstacle(judged) = self.look_at(want, own, ignore)
            {
                if is_final(&judged) {
                    return Ok(Some(judged));
                }
                first.get_or_insert(judged);
                // Nothing else is read for that; a final hold may be among the ancestors.
                if is_enough(&first) && want.name.ancestors().is_empty() {
                    return Ok(first);
                }
            }
            let mut found = snapshot.shared(&want.name)?;
            for ancestor in want.name.ancestors() {
                found.extend(snapshot.exclusive(&ancestor)?);
                if !want.mode.is_shared() {
                    found.extend(snapshot.shared(&ancestor)?);
                }
            }
            let mut readers = Vec::new();
            for found in found {
                match self.look_at(want, found, ignore) {
                    Look::Obstacle(judged) if is_final(&judged) => return Ok(Some(judged)),
                    Look::Obstacle(judged) => {
                        first.get_or_insert(judged);
                    }
                    Look::Reader(judged) => readers.push(judged),
                    Look::Nothing => {}
                }
            }
            self.readers
                .push(u32::try_from(readers.len()).unwrap_or(u32::MAX));
            if self.is_full(self.readers.len() - 1, 0) {
                // Any of them may make room.
                let is_ending = |judged: &Judged<_>| judged.verdict.reason == Reason::Ending;
                let waitable = readers.iter().position(|judged| !is_final(judged));
                // One whose work is being ended may have nobody who goes on with that.
                let waitable = waitable.map(|first| {
                    let ending = readers.iter().position(is_ending);
                    ending.unwrap_or(first)
                });
                let judged = readers.into_iter().nth(waitable.unwrap_or(0));
                match judged {
                    Some(judged) if waitable.is_none() => return Ok(Some(judged)),
                    judged => first = first.or(judged),
                }
            }
            if is_enough(&first) {
                return Ok(first);
            }
            let mut last = None;
            snapshot.below(&want.name, &mut |found| {
                if let Look::Obstacle(judged) = self.look_at(want, found, ignore) {
                    if is_final(&judged) {
                        last = Some(judged);
                        return ControlFlow::Break(());
                    }
                    first.get_or_insert(judged);
                }
                if is_enough(&first) {
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            })?;
            if last.is_some() || is_enough(&first) {
                return Ok(last.or(first));
            }
        }
        Ok(first)
    }

    /// Takes the locks, after nothing was found that excludes the request.
    fn take(self) -> Result<Decision<S::Handle>, S::Error> {
        let (request, mut own) = (self.request, self.own);
        let mut put = Vec::new();
        for want in &request.wants {
            let index = match want.mode {
                Mode::Exclusive => None,
                Mode::Shared | Mode::Slots(_) => {
                    let given_back: Vec<_> = own
                        .iter()
                        .filter(|judged| judged.found.key.name == want.name)
                        .collect();
                    // What is replaced keeps its slot: its holder may be the one that asks.
                    let is_replaced = |judged: &&&Judged<_>| request.replaces(judged);
                    let replaced = given_back.iter().find(is_replaced);
                    match replaced.and_then(|judged| judged.found.key.index) {
                        Some(index) => Some(index),
                        None => Some(free_index(&self.snapshot.shared(&want.name)?, &given_back)),
                    }
                }
            };
            let key = Key {
                name: want.name.clone(),
                index,
            };
            let replaced = own.iter().position(|judged| judged.found.key == key);
            put.push((key, replaced.map(|at| own.swap_remove(at))));
        }
        // Holds of the other mode are in the way, dead as they are; and what is to be replaced is alive.
        own.retain(|judged| {
            let is_excluded = |want| self.request.is_excluded_by(judged, want);
            self.request.replaces(judged) || request.wants.iter().any(is_excluded)
        });
        own.sort_by_key(|judged| !self.request.replaces(judged));
        own.extend(self.remove);
        own.truncate(MAX_REMOVALS);
        Ok(Decision::Take { put, remove: own })
    }

    /// Whether one of these requests, once granted, keeps ours from being granted.
    fn is_excluded_by(&self, granted: &[Request]) -> bool {
        let asker = self.request.owner.as_deref();
        self.request.wants.iter().enumerate().any(|(at, want)| {
            let held = || granted.iter().flat_map(|granted| &granted.wants);
            let readers = held()
                .filter(|held| held.name == want.name && held.mode.is_shared())
                .count();
            let is_excluded = granted.iter().any(|granted| {
                let holder = granted.owner.as_deref();
                granted
                    .wants
                    .iter()
                    .any(|held| excludes(held, holder, want, asker))
            });
            let readers = u32::try_from(readers).unwrap_or(u32::MAX);
            is_excluded || (readers > 0 && self.is_full(at, readers))
        })
    }

    /// Whether as many hold a counted lock as may, with so many more.
    fn is_full(&self, want: usize, more: u32) -> bool {
        let readers = self.readers.get(want).copied().unwrap_or(0);
        let slots = self.request.wants.get(want);
        let slots = slots.and_then(|want| want.mode.slots());
        slots.is_some_and(|slots| readers.saturating_add(more) >= slots.get())
    }

    fn look_at(&mut self, want: &Want, found: Found<S::Handle>, ignore: Ignore) -> Look<S::Handle> {
        let (request, snapshot) = (self.request, self.snapshot);
        let judged = judge_found(request, snapshot, found);
        let is_own = judged.found.key.name == want.name;
        if judged.verdict.state == State::NotALock {
            // It has no holder, so relatives ignore it; but it must not be overwritten either.
            return if is_own {
                Look::Obstacle(judged)
            } else {
                Look::Nothing
            };
        }
        if is_own && awaits_confirmation(request, &judged) {
            return Look::Obstacle(judged);
        }
        if is_own && request.replaces(&judged) {
            self.own.push(judged);
            return Look::Nothing;
        }
        if is_own && is_same_hold(request, &judged) {
            return Look::Obstacle(judged);
        }
        let is_excluded = request.is_excluded_by(&judged, want);
        let is_reader = is_own && judged.found.key.index.is_some();
        let may_take = match judged.verdict.state {
            State::Free => snapshot.takeover_is_safe(),
            State::Zombie => {
                snapshot.takeover_is_safe()
                    && request.take_zombies
                    && judged.verdict.takeable_in.is_none()
            }
            State::Held | State::Overdue | State::NotALock => false,
        };
        if may_take {
            if is_own {
                self.own.push(judged);
            } else if is_excluded && self.remove.len() < MAX_REMOVALS {
                self.remove.push(judged);
            }
            return Look::Nothing;
        }
        let is_dead = matches!(judged.verdict.state, State::Zombie | State::Free);
        if is_reader && ignore == Ignore::OwnReaders && !is_dead {
            return Look::Nothing;
        }
        if is_excluded {
            Look::Obstacle(judged)
        } else if is_reader {
            Look::Reader(judged)
        } else {
            Look::Nothing
        }
    }
}

impl Request {
    fn replaces<H>(&self, judged: &Judged<H>) -> bool {
        self.replace.contains(&judged.found.revision)
    }

    fn is_excluded_by<H>(&self, judged: &Judged<H>, want: &Want) -> bool {
        let held = want_of(&judged.found.key);
        let holder = judged.record().and_then(|record| record.owner.as_deref());
        excludes(&held, holder, want, self.owner.as_deref())
    }
}

impl<H> Judged<H> {
    pub(crate) fn record(&self) -> Option<&Record> {
        self.found.content.record()
    }

    /// Of a detached hold that the process which acquires it has not confirmed yet: how much longer to
    /// wait for that. Until then it is not known whether the lock was acquired.
    pub(crate) fn confirmed_within(&self) -> Option<Duration> {
        let record = self.record()?;
        let is_pending = record.origin.is_some() && record.is_detached() && !record.is_confirmed();
        let left = CONFIRMATION_LIMIT.saturating_sub(self.verdict.age?);
        let may_be_confirmed = is_pending && self.verdict.pid_alive == Some(true);
        (may_be_confirmed && !left.is_zero()).then_some(left)
    }
}
