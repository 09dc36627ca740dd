//! Keeps a hold: its lease is kept alive by a thread, which also learns whether the hold is lost or was broken.
//!
//! T is the time to live of the lease as it was granted, and t0 the time at which the last confirmed
//! keepalive was sent. A keepalive is confirmed by a read that was sent after its answer, and still sees the
//! life key; while the user signs in again, by a lease that was granted after it. No process of the hold may run
//! after t0 + 0.9 T. Another one takes the lock over only once it has
//! itself known for T that the life key is gone.
//!
//! A life key is known by its lease, which no other one has. Its revisions would do only in one history: after a
//! restore from a backup the life key of another hold can have the same ones.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::client::{Client, Granted, TIMEOUT};
use super::commit::{Committed, Taken, Taking, life_value, request_to_resume};
use super::failure::{Failure, cause_of};
use super::keys::only;
use super::messages::{Compare, LeaseAnswer, Txn, TxnAnswer, Watch};
use super::snapshot::EtcdSnapshot;
use super::store::Etcd;
use super::view::{View, content};
use crate::backend::Patience;
use crate::decision::{Decision, Key, decide};
use crate::error::Result;
use crate::record::{Content, Kind, Record};
use crate::sys::process::boottime_milliseconds;
use crate::sys::wait::pause;
use crate::sys::{locked, random_u64};

/// By how much the wall clock must have been set for a hold to be looked at.
const CLOCK_JUMP_MS: u64 = 1000;

/// For how long a watch is read before another one takes over, and how long after it began the next one does at least.
const WATCHED_MS: u64 = 40_000;
const WATCHED_AT_LEAST_MS: u64 = 5_000;

/// How soon to look after a watch has ended. Not at once: the other watches of that member have ended as well.
const LOOK_SOON_MS: u64 = 2_000;

/// For how long a hold is kept without a look at it, while its user signs in.
const UNCHECKED_MS: u64 = 60_000;

/// A time below a limit.
fn random_below(limit: u64) -> u64 {
    random_u64() % limit.max(1)
}

/// By how much the wall clock is ahead of the boot-time clock, in milliseconds.
fn wall_clock_ahead() -> i64 {
    let now = i64::try_from(boottime_milliseconds()).unwrap_or(i64::MAX);
    chrono::Utc::now().timestamp_millis().saturating_sub(now)
}

/// What the thread and its hold share.
#[derive(Debug)]
pub(super) struct Keeping {
    pub(super) etcd: Etcd,
    pub(super) keys: Vec<Key>,
    /// Tickets that end with the hold.
    tickets: Vec<String>,
    state: Mutex<State>,
    wake: Condvar,
    /// Locked while something is sent for the hold: it is not resumed while it is given back.
    pub(super) sending: Mutex<()>,
}

/// Never locked while something is sent.
#[derive(Debug)]
pub(super) struct State {
    pub(super) record: Record,
    /// Its `since_ms` is t0.
    pub(super) lease: Granted,
    /// When the hold itself was seen last.
    checked_ms: u64,
    /// When the records were last written.
    pub(super) modified: i64,
    pub(super) is_broken: bool,
    pub(super) is_lost: bool,
    is_released: bool,
    has_guard: bool,
    has_thread: bool,
    /// Nothing has to be ended in time any more.
    is_work_over: bool,
    /// A thread signs in.
    signs_in: bool,
    /// The user was refused.
    is_refused: bool,
    /// What has kept the lease from being renewed since it was last: of each member, and of this process.
    troubles: BTreeMap<String, String>,
    /// What has become of the lock.
    pub(super) loss: Option<String>,
    /// A watch has seen something, or the user has signed in.
    is_told: bool,
    /// The number of the watch that is read. 0: it has ended.
    watch: u64,
}

/// What a beat has brought.
pub(super) enum Beat {
    Confirmed,
    /// The network, or a member without a leader: another one is asked from now on.
    Unanswered,
    /// It says nothing.
    Unknown,
    /// It says nothing until the user has signed in, which a thread does.
    SigningIn,
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
                checked_ms: boottime_milliseconds(),
                modified: taken.written,
                is_broken: false,
                is_lost: false,
                is_released: false,
                has_guard: false,
                has_thread: false,
                is_work_over: false,
                signs_in: false,
                is_refused: false,
                troubles: BTreeMap::new(),
                loss: None,
                is_told: false,
                watch: 0,
            }),
            wake: Condvar::new(),
            sending: Mutex::new(()),
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
        let mut state = self.state();
        if state.record.kind == Kind::Lease {
            return;
        }
        let guard = start_once(&mut state.has_guard, crate::sys::keeper::guard);
        let thread = start_once(&mut state.has_thread, || {
            let keeping = Arc::clone(self);
            crate::sys::start_thread("keeper", 256 * 1024, move || keeping.go_on())
        });
        if let Err(error) = guard.and(thread) {
            let cause = cause_of(&error);
            state
                .troubles
                .insert("cannot start a thread".to_owned(), cause);
        }
    }

    /// Ends the thread.
    pub(super) fn stop(&self) {
        self.state().is_released = true;
        self.wake.notify_all();
    }

    pub(super) fn client(&self) -> &Client {
        &self.etcd.shared.client
    }

    /// The keys of the record and of the life of each lock.
    pub(super) fn hold_and_life(&self) -> impl Iterator<Item = [String; 2]> {
        let keys = &self.etcd.shared.keys;
        self.keys.iter().map(|key| keys.of_hold(key))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    fn ttl_ms(&self) -> u64 {
        self.state().lease.ttl_ms()
    }

    pub(super) fn deadlines_ms(&self) -> (u64, u64) {
        self.state().lease.deadlines_ms()
    }

    /// Tells the wrapper until when the command may run, and what gives the hold back if this process is
    /// killed.
    pub(super) fn tell_guard(&self) {
        if !crate::sys::keeper::is_keeper() {
            return;
        }
        let state = self.state();
        let (_, kill_at) = state.lease.deadlines_ms();
        let release = serde_json::to_vec(&self.release_txn(&state)).unwrap_or_default();
        crate::sys::keeper::tell_wrapper(kill_at, &release);
    }

    /// Runs in the thread.
    fn go_on(self: Arc<Self>) {
        let ttl = self.ttl_ms();
        let third = || self.state().lease.since_ms.saturating_add(ttl / 3);
        let mut due = third();
        let mut watch = WatchFacts::default();
        let mut is_confirmed = true;
        let mut ahead = wall_clock_ahead();
        let mut unanswered = 0;
        loop {
            let now = boottime_milliseconds();
            // Another watch is needed beside requests that this member answers.
            let is_over = watch.has_ended || watch.endpoint != self.client().endpoint();
            if (is_confirmed && is_over) || now >= watch.until {
                self.watch(&mut watch);
            }
            // The boot-time clock of a virtual machine stands still while it is paused. Its wall clock is set
            // afterwards.
            let before = std::mem::replace(&mut ahead, wall_clock_ahead());
            if ahead.abs_diff(before) >= CLOCK_JUMP_MS {
                due = now;
            }
            let left = due.min(watch.until).saturating_sub(now).min(ttl / 20);
            let left = Duration::from_millis(left);
            let waits = |state: &mut State| {
                !state.is_released && !state.is_told && (state.watch != 0 || watch.has_ended)
            };
            let waited = self.wake.wait_timeout_while(self.state(), left, waits);
            let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if state.is_released {
                return;
            }
            let is_told = std::mem::take(&mut state.is_told);
            let has_ended = state.watch == 0;
            drop(state);
            let now = boottime_milliseconds();
            if has_ended && !std::mem::replace(&mut watch.has_ended, true) {
                // First it is to be known which member answers.
                is_confirmed = false;
                let soon = now + random_below(LOOK_SOON_MS);
                due = due.min(soon.max(watch.began + WATCHED_AT_LEAST_MS));
            }
            if !is_told && now < due {
                continue;
            }
            let beat = self.beat();
            is_confirmed = matches!(beat, Beat::Confirmed);
            let now = boottime_milliseconds();
            match beat {
                Beat::Confirmed | Beat::SigningIn => {
                    self.tell_guard();
                    // A thread that signs in wakes this one when it has.
                    let least = if is_confirmed { 0 } else { now + ttl / 20 };
                    due = third().max(least);
                }
                // A leader that is cut off costs the time of two: its own, and that of a member that still
                // passes on to it what it is asked.
                Beat::Unanswered if unanswered + 1 < self.client().address.endpoints.len() => {
                    unanswered += 1;
                    continue;
                }
                Beat::Unanswered | Beat::Unknown => due = now + ttl / 40,
                Beat::Over => {
                    self.state().is_lost = true;
                    crate::sys::keeper::wake_supervisor();
                    return;
                }
            }
            unanswered = 0;
        }
    }

    /// Watches for a break, so that it is noticed at once and not at the next beat.
    fn watch(self: &Arc<Self>, facts: &mut WatchFacts) {
        let began = boottime_milliseconds();
        *facts = WatchFacts {
            number: facts.number + 1,
            endpoint: self.client().endpoint().to_owned(),
            began,
            until: began + WATCHED_MS,
            has_ended: false,
        };
        let number = facts.number;
        let since = {
            let mut state = self.state();
            state.watch = number;
            state.modified
        };
        let watches = self.hold_and_life().flat_map(|[hold, life]| {
            let of_life = Watch::deletions(only(&life));
            [Watch::changes(only(&hold)), of_life]
        });
        let watches: Vec<Watch> = watches.collect();
        let keeping: Weak<Self> = Arc::downgrade(self);
        let is_read = self.client().watch(&watches, move |answer| {
            let Some(keeping) = keeping.upgrade() else {
                return false;
            };
            let mut state = keeping.state();
            match answer {
                // The watch does not report what happened before it began.
                Some(answer) => {
                    let is_later = answer.created && answer.header.revision > since;
                    state.is_told |= is_later || !answer.events.is_empty();
                }
                None if state.watch == number => state.watch = 0,
                None => {}
            }
            keeping.wake.notify_all();
            !state.is_released
        });
        if !is_read {
            self.state().watch = 0;
        }
    }

    /// Keeps the lease alive, and looks whether the hold still stands.
    pub(super) fn beat(self: &Arc<Self>) -> Beat {
        let _sending = locked(&self.sending);
        let client = self.client();
        let endpoint = client.endpoint().to_owned();
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
        let mut kept = None;
        let answer = client.keep_alive_once(lease, timeout).and_then(|answer| {
            kept = Some(answer);
            client.txn_once(&check, timeout)
        });
        let is_kept = kept.as_ref().is_some_and(|kept| kept.ttl > 0);
        let is_checked = answer.is_ok();
        let term = match answer {
            Ok(answer) if answer.succeeded && is_kept => answer.header.raft_term,
            Ok(answer) => return self.examine(&answer, is_kept),
            Err(Failure::SignedOut) => self.term_while_signed_out(kept.as_ref(), timeout),
            Err(failure) => {
                client.go_on();
                let said = failure.message().to_owned();
                self.state().troubles.insert(endpoint, said);
                return Beat::Unanswered;
            }
        };
        // Before 3.4.31 a member that was the leader answers a keepalive without asking the others.
        let is_one_term = kept.is_some_and(|kept| kept.header.raft_term == term);
        let is_confirmed = is_kept && is_one_term && endpoint == client.endpoint();
        if is_confirmed {
            let mut state = self.state();
            state.lease.since_ms = sent;
            state.troubles.clear();
            if is_checked {
                state.checked_ms = sent;
            }
        }
        match (is_checked, is_confirmed) {
            (true, true) => Beat::Confirmed,
            (true, false) => Beat::Unknown,
            (false, _) => {
                self.sign_in(is_confirmed);
                Beat::SigningIn
            }
        }
    }

    /// The term of the leader while the user has to sign in, which takes long if all members were restarted under many
    /// holds. In that term the lease was kept alive by the leader, so the hold stands as well: nobody removes it while
    /// its lease is there. 0: it is not known, or the hold has not been looked at for long.
    fn term_while_signed_out(&self, kept: Option<&LeaseAnswer>, timeout: Duration) -> i64 {
        let state = self.state();
        let unchecked = boottime_milliseconds().saturating_sub(state.checked_ms);
        if kept.is_none() || unchecked > UNCHECKED_MS || state.is_refused {
            return 0;
        }
        drop(state);
        self.client().term_without_token(timeout).unwrap_or(0)
    }

    /// Signs the user in, in a thread: that may take longer than the lease lasts. Not at once, since others do the same,
    /// and a member that is busy with them answers nothing else in time.
    fn sign_in(self: &Arc<Self>, is_kept_meanwhile: bool) {
        if std::mem::replace(&mut self.state().signs_in, true) {
            return;
        }
        let (lost_at, _) = self.deadlines_ms();
        let ttl = self.ttl_ms();
        let within = if is_kept_meanwhile {
            ttl.min(UNCHECKED_MS / 2)
        } else {
            lost_at.saturating_sub(boottime_milliseconds()) / 2
        };
        let later = random_below(within).max(ttl / 40);
        let keeping = Arc::clone(self);
        let sign_in = move || {
            let _ = pause(Duration::from_millis(later));
            let member = keeping.client().endpoint().to_owned();
            let signed_in = keeping.client().sign_in(Patience::SHORT);
            let is_refused = matches!(signed_in, Err(Failure::Refused(_)));
            if signed_in.is_err() && !is_refused {
                keeping.client().go_on();
            }
            let mut state = keeping.state();
            state.is_refused = is_refused;
            state.signs_in = false;
            state.is_told |= signed_in.is_ok();
            if let Err(failure) = signed_in {
                let said = failure.message().to_owned();
                state.troubles.insert(member, said);
            }
            keeping.wake.notify_all();
        };
        if crate::sys::start_thread("sign-in", 256 * 1024, sign_in).is_err() {
            self.state().signs_in = false;
        }
    }

    pub(super) fn check_txn(&self, state: &State) -> Txn {
        let mut txn = Txn::default();
        for [hold, life] in self.hold_and_life() {
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
            if record.live.broken_by.is_some() && !state.is_broken {
                state.is_broken = true;
                crate::sys::keeper::wake_supervisor();
            }
            state.record.live = record.live;
            state.modified = modified;
            is_alive &= life.is_some_and(|life| life.lease == state.lease.id);
        }
        if is_alive {
            // At once again: as it is now it is confirmed.
            return Beat::Unknown;
        }
        let (lost_at, _) = state.lease.deadlines_ms();
        let is_in_time = state.is_work_over || boottime_milliseconds() < lost_at;
        if state.is_broken || !is_in_time {
            state.loss = Some("its lease has ended".to_owned());
            return Beat::Over;
        }
        drop(state);
        self.resume().unwrap_or(Beat::Unknown)
    }

    /// Why it was lost, as far as is known.
    pub(super) fn why_lost(&self) -> Option<String> {
        let state = self.state();
        if let Some(loss) = &state.loss {
            return Some(loss.clone());
        }
        let is_in_time = boottime_milliseconds() < state.lease.deadlines_ms().0;
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
        let put = match decide(&request, &snapshot)? {
            Decision::Take { put, remove }
                if remove.is_empty()
                    && put.iter().all(|(key, old)| is_ours(key) && old.is_some()) =>
            {
                put
            }
            _ => {
                let loss = "its lease has ended, and another hold excludes it";
                self.state().loss = Some(loss.to_owned());
                return Ok(Beat::Over);
            }
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
        for [hold, life] in self.hold_and_life() {
            txn.only_if(Compare::has_lease(&life, state.lease.id));
            txn.delete(&life);
            txn.delete(&hold);
            txn.else_read(&hold);
        }
        self.tickets.iter().for_each(|ticket| txn.delete(ticket));
        txn
    }

    /// What makes the hold a lease, if it was not broken meanwhile.
    pub(super) fn keep_txn(&self, state: &State, value: &[u8], lease: i64) -> Txn {
        let mut txn = Txn::default();
        let life_value = life_value(Kind::Lease, state.record.hold);
        for [hold, life] in self.hold_and_life() {
            txn.only_if(Compare::has_lease(&life, state.lease.id));
            txn.only_if(Compare::was_modified_at(&hold, state.modified));
            txn.put(&hold, value, 0);
            txn.put(&life, life_value.as_bytes(), lease);
            txn.else_read(&hold);
        }
        self.tickets.iter().for_each(|ticket| txn.delete(ticket));
        txn
    }

    /// There is no work any more that would have to be ended.
    pub(super) fn work_is_over(&self) {
        crate::sys::keeper::work_is_over();
        self.state().is_work_over = true;
    }
}

/// What is known of the watch of a keeper.
#[derive(Default)]
struct WatchFacts {
    number: u64,
    endpoint: String,
    began: u64,
    until: u64,
    has_ended: bool,
}

fn start_once(has_started: &mut bool, start: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    if !*has_started {
        start()?;
        *has_started = true;
    }
    Ok(())
}
