//! One attempt to take a lock, and its result: decide, make the change, or wait and decide again.

use std::time::Duration;

use chrono::Utc;

use super::hold::Hold;
use super::journal::action_on;
use super::lock::Lock;
use super::unfinished::{author, is_orphaned_ending, tell_server};
use super::wait::{MaxWaiting, Wait, WaitDecision};
use crate::backend::{Backend, Change, Entry, HeldRecord, LockSnapshot, QueueChange, QueuePlace};
use crate::decision::{
    Asker, Cycle, Decision, Request, awaits_confirmation, cycle, decide, next_in_turn, until,
    waiting_for,
};
use crate::error::{Error, Result};
use crate::identity::Pid;
use crate::journal_line::Action;
use crate::open_file::{Judged, Obstacle, Until};
use crate::record::{Content, Kind, Record};
use crate::status::Status;
use crate::sys::process::boottime;
use crate::sys::wait::Watch;

/// Number of new holds that an attempt may lose to programs that do not enter the guard.
const MAX_LOSSES: usize = 100;

/// Interval at which a waiter goes on to end what is left of the hold that it waits for, or looks for its end.
pub(super) const FINISH_INTERVAL: Duration = Duration::from_millis(100);

/// When to look again for a cycle that a waiter completes: a process that has just started it may not wait yet, and a
/// waiter on another machine counts once it has outlived the ticket of a dead one.
const NEXT_LOOKS: [Duration; 3] = [
    Duration::from_millis(20),
    Duration::from_millis(200),
    Duration::from_millis(6_200),
];

/// The result of a request, for a caller that looks at what is in the way. For any other,
/// [`into_result`](Self::into_result) makes it an error that another holder has the lock.
#[derive(Debug)]
#[must_use]
pub enum Attempt<T> {
    /// The caller has the lock.
    Held(T),
    /// The holder that [`acquire`](Lock::acquire) was called for has the lock already, by this hold. Its time to live
    /// was extended if a longer one was asked for. Other calls never return it.
    Mine(Box<Status>),
    /// Another has it.
    Blocked(Blocked),
}

impl<T> Attempt<T> {
    /// For `?`: a lock that is held already is an error, which becomes an [`Error`] where that is returned.
    ///
    /// # Errors
    /// [`Blocked`]: another has it, or the same holder by an earlier hold.
    pub fn into_result(self) -> Result<T, Blocked> {
        match self {
            Self::Held(held) => Ok(held),
            Self::Mine(status) => Err(Blocked::new(*status, None)),
            Self::Blocked(blocked) => Err(blocked),
        }
    }
}

/// Why a lock could not be taken. As an error it says who holds the lock, since when and why.
#[non_exhaustive]
pub struct Blocked {
    /// The hold or waiter in the way.
    pub status: Box<Status>,
    /// How long it was waited for; `None`: not at all.
    pub waited: Option<Duration>,
    /// So many were waiting already that it was not waited for, see [`Wait::max_waiting`].
    pub waiting: Option<usize>,
    /// That it was not waited for, because the wait would never have ended: the hold in the way, and from there each
    /// hold that the command of the one before waits for; the last one is the caller's. Otherwise empty.
    pub deadlock: Vec<Status>,
    /// The position in the queue that is kept, the first of which is 1, see [`Wait::keep_place`].
    pub kept_position: Option<usize>,
}

impl From<Blocked> for Error {
    fn from(blocked: Blocked) -> Self {
        Self::Blocked(Box::new(blocked))
    }
}

impl Error {
    /// Who holds the lock or is before the caller, if it is [`Error::Blocked`].
    pub fn blocked(&self) -> Option<&Blocked> {
        match self {
            Self::Blocked(blocked) => blocked.downcast_ref(),
            _ => None,
        }
    }
}

impl Blocked {
    /// For a program that refuses for a reason of its own.
    #[must_use]
    pub fn new(status: Status, waited: Option<Duration>) -> Self {
        let status = Box::new(status);
        Self {
            status,
            waited,
            waiting: None,
            deadlock: Vec::new(),
            kept_position: None,
        }
    }
}

/// What follows a decision, once its change is made.
#[allow(
    clippy::large_enum_variant,
    reason = "there is one, which is moved once"
)]
enum Next {
    /// The new hold replaces these.
    Take(Vec<Judged>),
    /// The same holder already has the lock, by this hold.
    Mine(Judged),
    /// By a hold or a waiter.
    Blocked(Obstacle, Why),
    Sleep(Box<Sleep>),
}

/// Why what is in the way is not waited for.
enum Why {
    /// No wait is wanted, or it has ended.
    Held,
    /// So many wait already.
    QueueFull(usize),
    /// A wait would complete the cycle of these holds.
    Deadlock(Vec<Judged>),
}

impl Why {
    fn add_to(self, blocked: &mut Blocked, lock: &Lock) {
        match self {
            Self::Held => {}
            Self::QueueFull(waiting) => blocked.waiting = Some(waiting),
            Self::Deadlock(holds) => {
                blocked.deadlock = holds.iter().map(|hold| lock.status(hold)).collect();
            }
        }
    }
}

/// What a waiter sleeps on.
struct Sleep {
    obstacle: Obstacle,
    until: Until,
    /// The process that acquires the hold has not confirmed it yet.
    is_unconfirmed: bool,
    /// When the state of the lock is certain, if it is not: a hold is confirmed or not, or a dead one can be
    /// taken over.
    certain_in: Option<Duration>,
    /// How many wait already, of a new waiter that is asked for that.
    waiting: usize,
    /// A cycle may show a little later.
    may_be_cycle: bool,
}

/// Takes a lock: decides, makes the change, and sleeps or returns; again, as often as it takes.
pub(super) fn attempt(
    lock: &Lock,
    mut request: Request,
    draft: &mut Record,
    wait: &mut Wait<'_>,
) -> Result<Attempt<Hold>> {
    wait.start();
    let mut contender = lock.store.contender(wait.back_off, draft.mode);
    let mut unfinished_work = None;
    let mut losses = 0;
    let mut last_obstacle = None;
    let mut queue = Queueing::new(wait.max_waiting);
    let (obstacle, why) = loop {
        ensure_alive(request.asker)?;
        let entry = Entry {
            create: true,
            patience: wait.patience(),
        };
        // A place that was lost is drawn again, with another number.
        request.ticket = contender.place();
        let mut next = None;
        let updated = contender.apply(entry, &mut |snapshot| {
            let planned = plan(lock, &request, snapshot, draft, queue)?;
            let takes = matches!(planned.0, Change::Take { .. } | Change::Renew(..));
            if takes && !wait.may(WaitDecision::Take) {
                return Err(Error::Canceled);
            }
            next = Some(planned.1);
            Ok(planned.0)
        });
        let (updated, next) = match (updated, last_obstacle.take()) {
            // The limit of the wait has passed, or it was canceled, while the store was busy.
            (Err(Error::StoreBusy { .. }), Some(obstacle)) => break (obstacle, Why::Held),
            (updated, _) => updated?.zip(next).ok_or_else(store_vanished)?,
        };
        queue.has_joined = updated.may_be_behind_others;
        if let Next::Sleep(sleep) = &next {
            note_wait(sleep, &mut request, draft);
        }
        if queue.has_joined {
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
            Next::Take(displaced) => {
                let Some(mut hold) = updated.hold else {
                    return Err(store_vanished());
                };
                if survives(&mut *hold)? {
                    let removed = updated.removed;
                    let hold = lock.taken(hold, contender.served(), displaced, removed);
                    return Ok(Attempt::Held(hold));
                }
                losses += 1;
                if losses > MAX_LOSSES {
                    return Err(store_vanished());
                }
                continue;
            }
            Next::Mine(judged) => {
                // Its owner has had its turn.
                drop(contender.served());
                drop(contender);
                let mut status = lock.status(&judged);
                status.waiters = lock.store.waiters(lock.name())?;
                return Ok(Attempt::Mine(Box::new(status)));
            }
            Next::Blocked(obstacle, why) => break (obstacle, why),
            Next::Sleep(sleep) => *sleep,
        };
        if !wait.may(WaitDecision::WaitAgain) {
            return Err(Error::Canceled);
        }
        let shows = wait.shows_position;
        let status = || Status {
            position: shows.then(|| contender.position(lock.name())).flatten(),
            ..lock.obstacle_status(&sleep.obstacle)
        };
        // Also who does not wait wants to know whether a hold is confirmed.
        let may_stop = wait.is_wanted() || !sleep.is_unconfirmed;
        if may_stop && wait.should_stop(sleep.certain_in.is_some(), status) {
            break (sleep.obstacle, Why::Held);
        }
        let mut limit = wait.sleep_limit(sleep.certain_in);
        if is_unfinished {
            limit.at_most = limit.at_most.min(FINISH_INTERVAL);
        }
        limit.at_most = limit.at_most.min(queue.until_next_look(&sleep));
        contender.sleep(&sleep.until, limit, &mut || {
            is_unchanged(&*lock.store, &request, &sleep.obstacle)
        });
        if (wait.is_due() && !sleep.is_unconfirmed) || queue.is_due(boottime()) {
            contender.look_again();
        }
        last_obstacle = Some(sleep.obstacle);
    };
    let kept_position = contender.position_kept(lock.name());
    // It is not among the waiters any more.
    drop(contender);
    let status = lock.status_in_the_way(&obstacle, &request, wait.without_waiters)?;
    let mut blocked = Blocked::new(status, wait.waited());
    blocked.kept_position = kept_position;
    why.add_to(&mut blocked, lock);
    Ok(Attempt::Blocked(blocked))
}

impl Lock {
    /// The hold or waiter in the way, with the others that share the lock, and those that wait for it unless it is
    /// shown `without_waiters`.
    pub(super) fn status_in_the_way(
        &self,
        obstacle: &Obstacle,
        request: &Request,
        without_waiters: bool,
    ) -> Result<Status> {
        let mut status = self.obstacle_status(obstacle);
        if status.slot.is_some() {
            let looked = self
                .store
                .look(|snapshot| self.others_than(&status, request, snapshot))?;
            status.others = looked.unwrap_or_default();
        }
        if !without_waiters {
            status.waiters = self.store.waiters(self.name()).unwrap_or_default();
        }
        Ok(status)
    }

    /// Writes the displaced and removed holds to the journal, and returns the new hold.
    pub(super) fn taken(
        &self,
        held: Box<dyn HeldRecord>,
        (place, watch): (Option<Box<dyn QueuePlace>>, Option<Watch>),
        mut displaced: Vec<Judged>,
        removed: Vec<Judged>,
    ) -> Hold {
        let mut warnings = Vec::new();
        for judged in removed {
            // A live holder is removed only if the caller asked for that: it is displaced, and not cleaned up.
            if judged.verdict.is_live() {
                displaced.push(judged);
                continue;
            }
            let was = self.status(&judged);
            warnings.extend(self.note(Action::Cleanup, &was, None));
            warnings.extend(self.note_found(&was));
        }
        let replaced = displaced;
        let displaced: Vec<Status> = replaced
            .iter()
            .map(|judged| self.displaced_status(judged))
            .collect();
        for was in &displaced {
            let action = action_on(was.verdict.state, Action::Takeover);
            let number = Some(held.record().hold);
            warnings.extend(action.and_then(|action| self.note(action, was, number)));
            warnings.extend(self.note_found(was));
        }
        // They look into the journal.
        replaced.iter().for_each(tell_server);
        let has_history = held.record().asked.is_some();
        // The next waiter is woken once the command has started, or now.
        let is_for_command = held.record().kind == Kind::Run && !held.record().is_without_command();
        Hold {
            history: has_history.then(|| (self.journal.clone(), Utc::now())),
            is_noted: false,
            pid: Pid::of_self(),
            is_over: false,
            older: Vec::new(),
            store: self.store.clone(),
            name: self.name().clone(),
            held,
            displaced,
            place: place.filter(|_| is_for_command),
            _watch: watch,
            warnings,
        }
    }
}

/// Notes behind what and how many the caller waits.
fn note_wait(sleep: &Sleep, request: &mut Request, draft: &mut Record) {
    if let Some(asked) = &mut draft.asked {
        let waiting = sleep.waiting.try_into().unwrap_or(u32::MAX);
        asked.waiting = asked.waiting.max(waiting);
    }
    if let (Some(beside), Obstacle::Hold(judged)) = (&mut request.waits_beside, &sleep.obstacle) {
        *beside = judged.hold().unwrap_or(0);
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
fn unfinished(next: &Next) -> Option<&Judged> {
    let obstacle = match next {
        Next::Blocked(obstacle, Why::Held) => obstacle,
        Next::Sleep(sleep) if !sleep.is_unconfirmed => &sleep.obstacle,
        _ => return None,
    };
    match obstacle {
        Obstacle::Hold(judged) if is_orphaned_ending(judged) => Some(judged),
        _ => None,
    }
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
    queue: Queueing,
) -> Result<(Change<'d>, Next)> {
    Ok(match decide(request, snapshot)? {
        Decision::Take { put, remove } => {
            let mut displaced: Vec<Judged> = Vec::new();
            for judged in put.iter().filter_map(|(_, replaced)| replaced.as_ref()) {
                // One hold may have had several of the names.
                let is_it = |known: &Judged| known.found.revision == judged.found.revision;
                if !displaced.iter().any(is_it) {
                    displaced.push(judged.clone());
                }
            }
            let all = displaced.iter().chain(&remove);
            all.filter(|judged| judged.verdict.is_live())
                .for_each(ask_for_author);
            let replaced = displaced.iter().map(|judged| (judged, Action::Takeover));
            let removed = remove.iter().map(|judged| (judged, Action::Cleanup));
            let lines = lock.lines_of_replaced(replaced.chain(removed));
            let change = Change::Take {
                put,
                remove,
                draft,
                lines,
            };
            (change, Next::Take(displaced))
        }
        Decision::AlreadyHeld(mut judged) => {
            let extended = |record| lock.extended(record, draft.ttl());
            let Some(live) = judged.record().and_then(extended) else {
                return Ok((Change::Nothing, Next::Mine(judged)));
            };
            let change = Change::Renew(judged.clone(), Box::new(live.clone()));
            if let Content::Record(record) = &mut judged.found.content {
                record.live = live;
            }
            // The change may have extended it.
            let judged = request.judge(snapshot, judged.found);
            (change, Next::Mine(judged))
        }
        Decision::Blocked(judged) => (
            Change::Nothing,
            Next::Blocked(Obstacle::Hold(judged), Why::Held),
        ),
        Decision::Refuse(judged, what) => return Err(lock.not_a_lock(&judged.found.key, what)),
        Decision::Wait(Obstacle::Hold(judged)) if awaits_confirmation(request, &judged) => {
            let sleep = Sleep {
                is_unconfirmed: true,
                certain_in: judged.confirmed_within(),
                until: Until::Released(judged.clone()),
                obstacle: Obstacle::Hold(judged),
                waiting: 0,
                may_be_cycle: false,
            };
            (Change::Nothing, Next::Sleep(Box::new(sleep)))
        }
        Decision::Wait(obstacle) => {
            let (change, next) = plan_wait(obstacle, request, snapshot, draft, queue)?;
            (Change::Queue(change), next)
        }
    })
}

/// Queues behind an obstacle and sleeps, or is blocked by it: who does not wait, or not behind so many.
fn plan_wait<'d>(
    obstacle: Obstacle,
    request: &Request,
    snapshot: &dyn LockSnapshot,
    draft: &'d Record,
    queue: Queueing,
) -> Result<(QueueChange<'d>, Next)> {
    let max_waiting = queue.max_waiting;
    let mut change = QueueChange::default();
    match &obstacle {
        Obstacle::Waiter(ticket) => change.reserve = Some(ticket.number),
        // It has not missed its turn while the lock is not free.
        Obstacle::Hold(judged) if judged.verdict.is_live() => change.restore_turn = request.ticket,
        Obstacle::Hold(judged) => change.free_in = judged.verdict.takeable_in,
    }
    let waits = max_waiting != MaxWaiting::DoesNotWait;
    if !waits && !is_ripening(&obstacle) {
        return Ok((change, Next::Blocked(obstacle, Why::Held)));
    }
    // It will go to a waiter.
    if !waits && let Some(ticket) = next_in_turn(request, &obstacle, snapshot)? {
        return Ok((change, Next::Blocked(Obstacle::Waiter(ticket), Why::Held)));
    }
    let is_new = request.ticket.is_none();
    let counts = match max_waiting {
        MaxWaiting::DoesNotWait => false,
        // On etcd others may have joined at the same moment: once it has a ticket, those before it count.
        MaxWaiting::AtMost(_) => is_new || queue.has_joined,
        MaxWaiting::NoLimit => is_new && draft.asked.is_some(),
    };
    let mut waiting = 0;
    if counts {
        waiting = waiting_for(&request.wants, snapshot)?;
    }
    if matches!(max_waiting, MaxWaiting::AtMost(most) if counts && waiting >= most) {
        return Ok((change, Next::Blocked(obstacle, Why::QueueFull(waiting))));
    }
    let mut may_be_cycle = false;
    if queue.looks.is_some() && waits && matches!(obstacle, Obstacle::Hold(_)) {
        match cycle(request, snapshot)? {
            Cycle::None => {}
            Cycle::NotFound => may_be_cycle = true,
            Cycle::Found(holds) => {
                return Ok((change, Next::Blocked(obstacle, Why::Deadlock(holds))));
            }
        }
    }
    if is_new && waits {
        change.join = Some((Box::new(request.clone()), draft));
    }
    let until = until(request, obstacle.clone(), snapshot)?;
    let sleep = Sleep {
        obstacle,
        is_unconfirmed: false,
        certain_in: until.ripe_in(),
        until,
        waiting,
        may_be_cycle,
    };
    Ok((change, Next::Sleep(Box::new(sleep))))
}

/// How a caller queues.
#[derive(Clone, Copy)]
struct Queueing {
    max_waiting: MaxWaiting,
    /// It has a place, and others may have one before it.
    has_joined: bool,
    /// How often it has looked for a cycle that it would complete; `None`: often enough.
    looks: Option<usize>,
    /// When to look again.
    next_look: Duration,
}

impl Queueing {
    fn new(max_waiting: MaxWaiting) -> Self {
        Self {
            max_waiting,
            has_joined: false,
            looks: Some(0),
            next_look: Duration::ZERO,
        }
    }

    /// How long it may sleep at most.
    fn until_next_look(&mut self, sleep: &Sleep) -> Duration {
        let now = boottime();
        let looks = self.looks.filter(|_| sleep.may_be_cycle);
        self.looks = looks;
        if let Some(looks) = looks.filter(|_| self.is_due(now)) {
            let next = NEXT_LOOKS.get(looks);
            self.looks = next.map(|_| looks + 1);
            self.next_look = next.map_or(Duration::MAX, |next| now + *next);
        }
        match self.looks {
            None => Duration::MAX,
            Some(_) => self.next_look.saturating_sub(now),
        }
    }

    fn is_due(&self, now: Duration) -> bool {
        self.looks.is_some() && now >= self.next_look
    }
}

/// Whether there is no longer a holder, and the lock can be taken soon.
fn is_ripening(obstacle: &Obstacle) -> bool {
    matches!(obstacle, Obstacle::Hold(judged) if judged.verdict.takeable_in.is_some())
}

/// Who has written a shared record cannot be found out once its file is removed.
#[cold]
#[inline(never)]
fn ask_for_author(judged: &Judged) {
    let _ = author(judged);
}

/// Whether the same hold is still in the way. Asked once a watch is set, so that no change between
/// the decision and the watch is missed.
pub(super) fn is_unchanged(backend: &dyn Backend, request: &Request, obstacle: &Obstacle) -> bool {
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
        operation: "take the lock in",
        path: std::path::PathBuf::new(),
        source: std::io::Error::other("its files keep changing"),
    }
}
