//! Keeps a hold: its lease is kept alive by a thread, which also learns whether the hold is lost or was broken.
//!
//! T is the time to live of the lease as it was granted, and t0 the time at which the last confirmed
//! keepalive was sent. A keepalive is confirmed by a read that was sent after its answer, and still sees the
//! life key. No process of the hold may run after t0 + 0.9 T. Another one takes the lock over only once it has
//! itself known for T that the life key is gone.
//!
//! A life key is known by its lease, which no other one has. Its revisions would do only in one history: after a
//! restore from a backup the life key of another hold can have the same ones.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::client::{Client, Granted, TIMEOUT};
use super::commit::{Committed, Taken, Taking, life_value};
use super::failure::cause_of;
use super::keys::{Part, only};
use super::messages::{Compare, Txn, TxnAnswer, Watch};
use super::snapshot::EtcdSnapshot;
use super::store::{Etcd, Session};
use super::view::{View, content, hold_number, shows_hold};
use crate::backend::{GoesOn, Patience, ReleaseOutcome};
use crate::decision::{Asker, Decision, Key, Request, Revision, Want, decide};
use crate::error::Result;
use crate::record::{Content, Kind, Record};
use crate::sys::process::{boottime, boottime_milliseconds};
use crate::sys::wait::pause;

const KEPT: u8 = 0;
const BROKEN: u8 = 1;
const LOST: u8 = 2;

const RELEASE: &str = "release a lock in";
const KEEP: &str = "make a lease of a lock in";

/// In seconds, 285 years: etcd grants no longer one.
const LONGEST_LEASE: i64 = 9_000_000_000;

/// How long after it could not be kept by a lease that is tried again.
const KEEP_AGAIN: Duration = Duration::from_millis(500);

/// By how much the wall clock must have been set for a hold to be looked at.
const CLOCK_JUMP_MS: u64 = 1000;

/// By how much the wall clock is ahead of the boot-time clock, in milliseconds.
fn wall_clock_ahead() -> i64 {
    let now = i64::try_from(boottime_milliseconds()).unwrap_or(i64::MAX);
    chrono::Utc::now().timestamp_millis().saturating_sub(now)
}

/// What the thread and its hold share.
#[derive(Debug)]
pub(super) struct Keeping {
    etcd: Etcd,
    pub(super) keys: Vec<Key>,
    /// Tickets that end with the hold.
    tickets: Vec<String>,
    state: Mutex<State>,
    outcome: AtomicU8,
    wake: Condvar,
    /// Held while something is sent for the hold: it is not resumed while it is given back.
    sending: Mutex<()>,
    has_guard: AtomicBool,
    has_thread: AtomicBool,
    /// Nothing has to be ended in time any more.
    is_work_over: AtomicBool,
}

#[derive(Debug)]
pub(super) struct State {
    record: Record,
    /// Its `since_ms` is t0.
    lease: Granted,
    /// When the records were last written.
    modified: i64,
    is_released: bool,
    /// What has kept the lease from being renewed since it was last: of each member, and of this process.
    troubles: Vec<(String, String)>,
    /// What has become of the lock.
    loss: Option<String>,
    /// A watch has seen something.
    is_told: bool,
}

/// What a beat has brought.
enum Beat {
    Confirmed,
    /// The network, or a member without a leader: another one is asked from now on.
    Unanswered,
    /// It says nothing.
    Unknown,
    Over,
}

impl Keeping {
    pub(super) fn begin(etcd: &Etcd, taken: Taken) -> Arc<Self> {
        let (kind, lease) = (taken.record.kind, taken.lease);
        let keeping = Arc::new(Self {
            etcd: etcd.clone(),
            keys: taken.keys,
            tickets: taken.tickets,
            state: Mutex::new(State {
                record: taken.record,
                lease,
                modified: taken.written,
                is_released: false,
                troubles: Vec::new(),
                loss: None,
                is_told: false,
            }),
            outcome: AtomicU8::new(KEPT),
            wake: Condvar::new(),
            sending: Mutex::new(()),
            has_guard: AtomicBool::new(false),
            has_thread: AtomicBool::new(false),
            is_work_over: AtomicBool::new(false),
        });
        // The lease may have been granted long before, by another leader.
        let age = boottime_milliseconds().saturating_sub(lease.since_ms);
        let is_old = lease.term != taken.term || age > keeping.ttl_ms() / 3;
        if kind != Kind::Lease && is_old {
            keeping.beat();
        }
        keeping.tell_guard();
        keeping
    }

    /// Keeps the lease from now on, by a thread. One that cannot be started is started with the next call.
    pub(super) fn start(self: &Arc<Self>) {
        if self.state().record.kind == Kind::Lease {
            return;
        }
        let guard = start_once(&self.has_guard, crate::sys::keeper::guard);
        let thread = start_once(&self.has_thread, || {
            let keeping = Arc::clone(self);
            crate::sys::start_thread("keeper", 256 * 1024, move || keeping.go_on())
        });
        if let Err(error) = guard.and(thread) {
            self.note_trouble("cannot start a thread".to_owned(), cause_of(&error));
        }
    }

    /// Ends the thread.
    pub(super) fn stop(&self) {
        self.state().is_released = true;
        self.wake.notify_all();
    }

    fn client(&self) -> &Client {
        &self.etcd.shared.client
    }

    /// The keys of the record and of the life of each lock.
    fn hold_and_life(&self) -> impl Iterator<Item = (String, String)> {
        let keys = &self.etcd.shared.keys;
        self.keys
            .iter()
            .map(|key| (keys.of(Part::Hold, key), keys.of(Part::Life, key)))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ttl_ms(&self) -> u64 {
        self.state().lease.ttl_ms()
    }

    pub(super) fn deadlines_ms(&self) -> (u64, u64) {
        deadlines_ms(self.state().lease)
    }

    /// Tells the wrapper until when the command may run, and what gives the hold back if this process is
    /// killed.
    fn tell_guard(&self) {
        if !crate::sys::keeper::is_keeper() {
            return;
        }
        let (_, kill_at) = self.deadlines_ms();
        let state = self.state();
        let release = serde_json::to_vec(&self.release_txn(&state)).unwrap_or_default();
        crate::sys::keeper::tell_wrapper(kill_at, &release);
    }

    /// Runs in the thread.
    fn go_on(self: Arc<Self>) {
        let ttl = self.ttl_ms();
        let third = || self.state().lease.since_ms.saturating_add(ttl / 3);
        let mut due = third();
        let mut watch_until = 0;
        let mut ahead = wall_clock_ahead();
        let mut unanswered = 0;
        loop {
            let now = boottime_milliseconds();
            if now >= watch_until {
                self.watch();
                watch_until = now + 40_000;
            }
            // The boot-time clock of a virtual machine stands still while it is paused. Its wall clock is set
            // afterwards.
            let before = std::mem::replace(&mut ahead, wall_clock_ahead());
            if ahead.abs_diff(before) >= CLOCK_JUMP_MS {
                due = now;
            }
            let left = due.min(watch_until).saturating_sub(now).min(ttl / 20);
            let left = Duration::from_millis(left);
            let waits = |state: &mut State| !state.is_released && !state.is_told;
            let waited = self.wake.wait_timeout_while(self.state(), left, waits);
            let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if state.is_released {
                return;
            }
            let is_told = std::mem::take(&mut state.is_told);
            drop(state);
            if !is_told && boottime_milliseconds() < due {
                continue;
            }
            match self.beat() {
                Beat::Confirmed => {
                    self.tell_guard();
                    unanswered = 0;
                    due = third();
                }
                // A leader that is cut off costs the time of two: its own, and that of a member that still
                // passes on to it what it is asked.
                Beat::Unanswered if unanswered + 1 < self.client().address.endpoints.len() => {
                    unanswered += 1;
                }
                Beat::Unanswered | Beat::Unknown => {
                    unanswered = 0;
                    due = boottime_milliseconds() + ttl / 40;
                }
                Beat::Over => {
                    self.outcome.store(LOST, Ordering::SeqCst);
                    crate::sys::keeper::wake_supervisor();
                    return;
                }
            }
        }
    }

    /// Watches for a break, so that it is noticed at once and not at the next beat.
    fn watch(self: &Arc<Self>) {
        let since = self.state().modified;
        let (holds, lives): (Vec<_>, Vec<_>) = self.hold_and_life().unzip();
        let holds = holds.iter().map(|hold| Watch::changes(only(hold)));
        let lives = lives.iter().map(|life| Watch::deletions(only(life)));
        let ranges: Vec<Watch> = holds.chain(lives).collect();
        let keeping = Arc::downgrade(self);
        self.client().watch(&ranges, move |answer| {
            let Some(keeping) = keeping.upgrade() else {
                return false;
            };
            let mut state = keeping.state();
            // The watch does not report what happened before it began.
            let is_later = answer.created && answer.header.revision > since;
            if is_later || !answer.events.is_empty() {
                state.is_told = true;
                keeping.wake.notify_all();
            }
            !state.is_released
        });
    }

    /// Keeps the lease alive, and looks whether the hold still stands.
    fn beat(&self) -> Beat {
        let _sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let endpoint = self.client().endpoint().to_owned();
        let sent = boottime_milliseconds();
        let (lease, check) = {
            let state = self.state();
            if state.is_released {
                return Beat::Unknown;
            }
            (state.lease.id, self.check_txn(&state))
        };
        // A handshake with a member on another continent takes half a second.
        let timeout = Duration::from_millis(self.ttl_ms() / 20);
        let timeout = timeout.clamp(Duration::from_secs(1), TIMEOUT);
        let kept = self.client().keep_alive_once(lease, timeout);
        let answer = kept.and_then(|kept| {
            let answer = self.client().txn_once(&check, timeout)?;
            Ok((kept, answer))
        });
        let (kept, answer) = match answer {
            Ok(answers) => answers,
            Err(failure) => {
                self.client().go_on();
                self.note_trouble(endpoint, failure.message().to_owned());
                return Beat::Unanswered;
            }
        };
        if !answer.succeeded || kept.ttl <= 0 {
            return self.examine(&answer, kept.ttl > 0);
        }
        // Before 3.4.31 a member that was the leader answers a keepalive without asking the others.
        let is_one_term = kept.header.raft_term == answer.header.raft_term;
        if !is_one_term || endpoint != self.client().endpoint() {
            return Beat::Unknown;
        }
        let mut state = self.state();
        state.lease.since_ms = sent;
        state.troubles.clear();
        Beat::Confirmed
    }

    pub(super) fn check_txn(&self, state: &State) -> Txn {
        let mut txn = Txn::default();
        for (hold, life) in self.hold_and_life() {
            txn.only_if(Compare::has_lease(&life, state.lease.id));
            txn.only_if(Compare::was_modified_at(&hold, state.modified));
            txn.else_read(&hold);
            txn.else_read(&life);
        }
        txn
    }

    /// What has become of a hold that is not as it was.
    fn examine(&self, answer: &TxnAnswer, is_kept: bool) -> Beat {
        if answer.succeeded {
            // The life key was there, and its lease is not known any more.
            return Beat::Unknown;
        }
        let mut found = answer.found();
        let mut state = self.state();
        let mut is_alive = is_kept;
        for _ in &self.keys {
            let (hold, life) = (found.next().flatten(), found.next().flatten());
            let read = hold.map(|hold| (content(&hold.value, true), hold.mod_revision));
            let Some((Content::Record(record), modified)) = read else {
                state.loss = Some("its record is gone".to_owned());
                return Beat::Over;
            };
            if record.hold != state.record.hold {
                state.loss = Some(format!("hold {} has it", record.hold));
                return Beat::Over;
            }
            if record.live.broken_by.is_some() && !self.is_broken() {
                self.outcome.store(BROKEN, Ordering::SeqCst);
                crate::sys::keeper::wake_supervisor();
            }
            state.record.live = record.live;
            state.modified = modified;
            is_alive &= life.is_some_and(|life| life.lease == state.lease.id);
        }
        drop(state);
        if is_alive {
            // At once again: as it is now it is confirmed.
            return Beat::Unknown;
        }
        let is_in_time = self.is_work_over.load(Ordering::SeqCst)
            || boottime_milliseconds() < self.deadlines_ms().0;
        if self.is_broken() || !is_in_time {
            self.state().loss = Some("its lease has ended".to_owned());
            return Beat::Over;
        }
        self.resume().unwrap_or(Beat::Unknown)
    }

    pub(super) fn is_broken(&self) -> bool {
        self.outcome.load(Ordering::SeqCst) == BROKEN
    }

    pub(super) fn is_lost(&self) -> bool {
        self.outcome.load(Ordering::SeqCst) == LOST
    }

    fn note_trouble(&self, of: String, message: String) {
        let troubles = &mut self.state().troubles;
        troubles.retain(|(other, _)| *other != of);
        troubles.push((of, message));
    }

    /// Why it was lost, as far as is known.
    pub(super) fn why_lost(&self) -> Option<String> {
        let state = self.state();
        if let Some(loss) = &state.loss {
            return Some(loss.clone());
        }
        let is_in_time = boottime_milliseconds() < deadlines_ms(state.lease).0;
        let all = state.troubles.iter();
        let all: Vec<String> = all.map(|(of, said)| format!("{of}: {said}")).collect();
        match all.as_slice() {
            [] if is_in_time => None,
            [] => Some("its lease was not renewed in time".to_owned()),
            all => Some(format!("cannot renew its lease: {}", all.join("; "))),
        }
    }

    /// Takes the lock again: its life key is gone, and nobody has taken it.
    fn resume(&self) -> Result<Beat> {
        let session = self.etcd.session(Patience::of(Duration::ZERO));
        let (record, ttl) = {
            let state = self.state();
            (state.record.clone(), state.lease.ttl)
        };
        let request = request_to_resume(&record, &self.keys);
        let snapshot = EtcdSnapshot::new(session, View::unread());
        let is_ours = |key: &Key| self.keys.contains(key);
        let Some(put) = (match decide(&request, &snapshot)? {
            Decision::Take { put, remove } => Some(put).filter(|put| {
                remove.is_empty() && put.iter().all(|(key, old)| is_ours(key) && old.is_some())
            }),
            _ => None,
        }) else {
            let loss = "its lease has ended, and another hold excludes it";
            self.state().loss = Some(loss.to_owned());
            return Ok(Beat::Over);
        };
        let view = snapshot.into_view();
        let lease = session.grant(ttl)?;
        let taking = Taking {
            view: &view,
            put: &put,
            remove: &[],
            record,
            resumes: true,
            ticket: None,
        };
        match session.commit_take(taking, lease)? {
            Committed::Done(taken) => {
                let mut state = self.state();
                state.lease = lease;
                state.modified = taken.written;
                state.troubles.clear();
                Ok(Beat::Confirmed)
            }
            Committed::Changed(_) | Committed::NoLease => {
                self.client().revoke(lease.id);
                // A relative may have changed that does not exclude this hold. The next beat looks again.
                Ok(Beat::Unknown)
            }
        }
    }

    pub(super) fn release_txn(&self, state: &State) -> Txn {
        let mut txn = Txn::default();
        for (hold, life) in self.hold_and_life() {
            txn.only_if(Compare::has_lease(&life, state.lease.id));
            txn.delete(&life);
            txn.delete(&hold);
            txn.else_read(&hold);
        }
        self.tickets.iter().for_each(|ticket| txn.delete(ticket));
        txn
    }

    /// Removes what is left of a hold whose life key is gone.
    fn clean(&self, modified: i64) {
        let mut txn = Txn::default();
        for (hold, life) in self.hold_and_life() {
            txn.only_if(Compare::was_modified_at(&hold, modified));
            txn.only_if(Compare::is_missing(&life));
            txn.delete(&hold);
        }
        let _ = self.client().txn_once(&txn, TIMEOUT);
    }

    /// A session for the last request of this hold. It tries for as long as no other process can take the lock.
    fn last_session(&self) -> Session<'_> {
        let lease = self.state().lease;
        let until = lease.since_ms.saturating_add(lease.ttl_ms());
        let left = until.saturating_sub(boottime_milliseconds());
        self.etcd.session(Patience::of(Duration::from_millis(left)))
    }

    /// There is no work any more that would have to be ended.
    fn work_is_over(&self) {
        crate::sys::keeper::work_is_over();
        self.is_work_over.store(true, Ordering::SeqCst);
    }

    /// What makes the hold a lease, if it was not broken meanwhile.
    pub(super) fn keep_txn(&self, state: &State, value: &[u8], lease: i64) -> Txn {
        let mut txn = Txn::default();
        let life_value = life_value(Kind::Lease, state.record.hold);
        for (hold, life) in self.hold_and_life() {
            txn.only_if(Compare::has_lease(&life, state.lease.id));
            txn.only_if(Compare::was_modified_at(&hold, state.modified));
            txn.put(&hold, value, 0);
            txn.put(&life, life_value.as_bytes(), lease);
            txn.else_read(&hold);
        }
        self.tickets.iter().for_each(|ticket| txn.delete(ticket));
        txn
    }

    /// Makes the hold a lease that lasts for so long. Until that is done, it is kept alive as before; a cluster that
    /// does not answer, or has no space, is asked again.
    pub(super) fn keep(
        &self,
        record: &Record,
        left: Duration,
        goes_on: &mut GoesOn<'_>,
    ) -> Result<ReleaseOutcome> {
        self.work_is_over();
        let kept = Record {
            kind: Kind::Lease,
            kernel_lock: false,
            ..record.clone()
        };
        let value = self.etcd.written(&kept)?;
        let until = boottime().saturating_add(left);
        let mut may_be_kept = false;
        loop {
            let left = until.saturating_sub(boottime());
            if left.is_zero() || self.is_lost() || self.is_broken() {
                return self.release();
            }
            match self.try_to_keep(&value, left, &mut may_be_kept) {
                Ok(true) => return Ok(ReleaseOutcome::Kept),
                Ok(false) => {}
                Err(error) if goes_on(&error) => {}
                Err(error) => return Err(error),
            }
            // Its life key may be gone, but not its record.
            match self.beat() {
                Beat::Over => return self.release(),
                Beat::Confirmed => self.tell_guard(),
                Beat::Unanswered | Beat::Unknown => {}
            }
            let _ = pause(left.min(KEEP_AGAIN));
        }
    }

    /// `false`: something was otherwise. `may_be_kept`: an earlier try may have been applied, or may yet be.
    fn try_to_keep(&self, value: &[u8], left: Duration, may_be_kept: &mut bool) -> Result<bool> {
        let _sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let session = self.etcd.session(Patience::of(Duration::ZERO));
        let seconds = i64::try_from(left.as_millis().div_ceil(1000)).unwrap_or(i64::MAX);
        let seconds = seconds.min(LONGEST_LEASE);
        let (lease, _) = session.until_known(KEEP, |client| client.grant_once(seconds))?;
        let lease = lease.id;
        let txn = self.keep_txn(&self.state(), value, lease);
        let was_tried = std::mem::replace(may_be_kept, true);
        let (answer, tried_before) = session.txn(KEEP, &txn)?;
        let found = answer.found().next().flatten();
        let is_written = found.is_some_and(|found| found.value == value);
        let is_kept = answer.succeeded || ((was_tried || tried_before) && is_written);
        if is_kept {
            self.stop();
        } else {
            self.client().revoke(lease);
        }
        Ok(is_kept)
    }

    pub(super) fn release(&self) -> Result<ReleaseOutcome> {
        // Before a request that still waits for its answer.
        self.work_is_over();
        let _sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        self.stop();
        let (txn, modified, number) = {
            let state = self.state();
            (self.release_txn(&state), state.modified, state.record.hold)
        };
        let session = self.last_session();
        let (answer, tried_before) = session.txn(RELEASE, &txn)?;
        let is_ours = shows_hold(&answer, Some(number));
        if is_ours {
            self.clean(modified);
        }
        // Or it was applied, and the answer was lost.
        if answer.succeeded || (tried_before && !is_ours) {
            return Ok(ReleaseOutcome::Released);
        }
        let mut state = self.state();
        if state.loss.is_none() {
            let found = answer.found().flatten().next().and_then(hold_number);
            state.loss = Some(match found {
                _ if is_ours => "its lease has ended".to_owned(),
                Some(other) => format!("hold {other} has it"),
                None => "its record is gone".to_owned(),
            });
        }
        Ok(ReleaseOutcome::Lost)
    }
}

fn start_once(has_started: &AtomicBool, start: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    if has_started.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    start().inspect_err(|_| has_started.store(false, Ordering::Relaxed))
}

/// When a hold is lost, and when its work must be over.
fn deadlines_ms(lease: Granted) -> (u64, u64) {
    let (confirmed, ttl) = (lease.since_ms, lease.ttl_ms());
    (confirmed + ttl / 10 * 6, confirmed + ttl / 10 * 9)
}

/// Asks for a hold again that is as it was, but for its life keys.
pub(super) fn request_to_resume(record: &Record, keys: &[Key]) -> Request {
    let own = Revision {
        hold: record.hold,
        ..Revision::NONE
    };
    request_of(record, keys.iter(), vec![own])
}

/// Asks for what a record is of in place of some holds, without regard to waiters.
pub(super) fn request_of<'a>(
    record: &Record,
    keys: impl Iterator<Item = &'a Key>,
    replace: Vec<Revision>,
) -> Request {
    let want = |key: &Key| Want {
        name: key.name.clone(),
        mode: record.mode,
    };
    Request {
        wants: keys.map(want).collect(),
        owner: record.owner.clone(),
        inside: Vec::new(),
        asker: Asker::Caller,
        max_age_ms: u64::MAX,
        take_zombies: false,
        replace,
        skip_queue: true,
        keep_ms: None,
        waits_beside: None,
        ticket: None,
        observer: None,
        over: Vec::new(),
    }
}
