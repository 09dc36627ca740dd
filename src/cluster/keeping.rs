//! Keeps a hold: its lease is kept alive by a thread, which also learns whether the hold is lost or was broken.
//!
//! T is the time to live of the lease as it was granted, and t0 the time at which the last request was sent whose answer
//! shows the life key: the take, or a look at the hold, which a majority confirms. While the user signs in again,
//! it is a keepalive that a lease confirms which was granted after it. No process of the hold may run
//! after t0 + 0.9 T. Another one takes the lock over only once it has itself known for T that the life key is gone, so
//! not before t0 + T.
//!
//! Keepalives only let the lease last. Where they are requests of their own, every second look has one before it.
//!
//! A life key is known by its lease, which no other one has. Its revisions would do only in one history: after a
//! restore from a backup the life key of another hold can have the same ones.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::commit::{Committed, TAKE, Taken, Taking, request_to_resume};
use super::engine::{Engine, Failure, Kind as FailureKind, TIMEOUT};
use super::lease::Granted;
use super::snapshot::ViewSnapshot;
use super::store::Cluster;
use super::txn::{Compare, Epoch, Lease, Txn, TxnAnswer, Watch, WatchAnswer, only};
use super::view::{View, content};
use crate::backend::Patience;
use crate::decision::{Decision, Key, decide};
use crate::error::{Result, cause_text};
use crate::identity::ProcessId;
use crate::journal_line::PastHold;
use crate::record::{Content, Kind, Live, Record};
use crate::sys::process::boottime_milliseconds;
use crate::sys::wait::pause;
use crate::sys::{locked, random_u64};

/// By how much the wall clock must have been set for a hold to be looked at.
const CLOCK_JUMP_MS: u64 = 1000;

/// How long before a hold is lost it is looked at: a change of the leader takes about 2 s.
const BEFORE_LOST_MS: u64 = 2_700;

/// For how long a watch is read before another one takes over, and how long after it began the next one does at least.
const WATCHED_MS: u64 = 280_000;
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
    pub(super) cluster: Cluster,
    pub(super) taken: Taken,
    state: Mutex<State>,
    wake: Condvar,
    /// Locked while something is sent for the hold: it is not resumed while it is given back.
    pub(super) sending: Mutex<()>,
}

/// Never locked while something is sent.
#[derive(Debug, Default)]
pub(super) struct State {
    /// What others may have changed of the record.
    pub(super) live: Live,
    /// The process that runs under the hold, until it is on record.
    unwritten: Option<ProcessId>,
    pub(super) lease: Granted,
    /// t0.
    pub(super) shown_ms: u64,
    /// When the hold itself was seen last.
    checked_ms: u64,
    /// When the records were last written.
    pub(super) modified: i64,
    /// In which they were seen last.
    epoch: Epoch,
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
    /// How it ends, as its store is to note.
    pub(super) end: Option<PastHold>,
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

impl State {
    /// When the hold is lost, and when its work must be over.
    fn deadlines_ms(&self) -> (u64, u64) {
        let ttl = self.lease.ttl_ms();
        (self.shown_ms + ttl / 10 * 6, self.shown_ms + ttl / 10 * 9)
    }
}

impl Keeping {
    pub(super) fn begin(cluster: &Cluster, taken: Taken) -> Arc<Self> {
        let (lease, epoch) = (taken.lease, taken.epoch);
        let keeping = Arc::new(Self {
            cluster: cluster.clone(),
            state: Mutex::new(State {
                live: taken.record.live.clone(),
                lease,
                shown_ms: taken.sent_ms,
                checked_ms: boottime_milliseconds(),
                modified: taken.written,
                epoch,
                ..State::default()
            }),
            taken,
            wake: Condvar::new(),
            sending: Mutex::new(()),
        });
        // The lease may have been granted long before or by another leader, and end soon; or the take has waited for its
        // answer.
        let (now, ttl) = (boottime_milliseconds(), keeping.ttl_ms());
        let is_old = !lease.epoch.is_of_term(epoch)
            || now > lease.since_ms + ttl / 10 * 6
            || now > keeping.taken.sent_ms + ttl / 3;
        if keeping.taken.record.kind != Kind::Lease && is_old {
            keeping.beat();
        }
        keeping.tell_guard();
        keeping
    }

    /// Keeps the lease from now on, by a thread. One that cannot be started is started with the next call.
    pub(super) fn start(self: &Arc<Self>) {
        if self.taken.record.kind == Kind::Lease {
            return;
        }
        let mut state = self.state();
        let guard = start_once(&mut state.has_guard, crate::sys::keeper::guard);
        let thread = start_once(&mut state.has_thread, || {
            let keeping = Arc::clone(self);
            crate::sys::start_thread("keeper", 256 * 1024, move || keeping.go_on())
        });
        if let Err(error) = guard.and(thread) {
            let of = "cannot start a thread".to_owned();
            state.troubles.insert(of, cause_text(&error));
        }
    }

    /// Ends the thread.
    pub(super) fn stop(&self) {
        self.state().is_released = true;
        self.wake.notify_all();
    }

    pub(super) fn engine(&self) -> &dyn Engine {
        &*self.cluster.engine
    }

    /// The keys of the record and of the life of each lock.
    pub(super) fn hold_and_life(&self) -> impl Iterator<Item = [String; 2]> {
        let keys = &self.cluster.keys;
        self.taken.keys.iter().map(|key| keys.of_hold(key))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    fn ttl_ms(&self) -> u64 {
        self.state().lease.ttl_ms()
    }

    pub(super) fn deadlines_ms(&self) -> (u64, u64) {
        self.state().deadlines_ms()
    }

    /// How often the hold is looked at.
    fn interval_ms(&self) -> u64 {
        let (ttl, limits) = (self.ttl_ms(), self.engine().limits());
        match limits.looks_each {
            Some(each) => (ttl / 3).min(u64::try_from(each.as_millis()).unwrap_or(u64::MAX)),
            None => (ttl / 40 * 17).min((ttl / 10 * 6).saturating_sub(BEFORE_LOST_MS)),
        }
    }

    /// Tells the wrapper until when the command may run, and what gives the hold back if this process is
    /// killed.
    pub(super) fn tell_guard(&self) {
        if !crate::sys::keeper::is_keeper() {
            return;
        }
        let state = self.state();
        let (_, kill_at) = state.deadlines_ms();
        let both = (self.release_txn(&state), self.clean_txn(state.modified));
        let release = serde_json::to_vec(&both).unwrap_or_default();
        crate::sys::keeper::tell_wrapper(kill_at, &release);
    }

    /// Runs in the thread.
    fn go_on(self: Arc<Self>) {
        let ttl = self.ttl_ms();
        let next = || {
            let interval = self.interval_ms();
            self.state().shown_ms.saturating_add(interval)
        };
        let mut due = next().min(self.state().lease.since_ms + ttl / 4 * 3);
        let mut watch = WatchFacts::default();
        let mut is_confirmed = true;
        let mut ahead = wall_clock_ahead();
        let mut unanswered = 0;
        self.write_process();
        loop {
            let now = boottime_milliseconds();
            // Another watch is needed beside requests that this member answers.
            let is_over = watch.has_ended || watch.member != self.engine().member();
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
                due =
                    due.min(soon.max(watch.until.saturating_sub(WATCHED_MS - WATCHED_AT_LEAST_MS)));
            }
            if !is_told && now < due {
                continue;
            }
            let beat = self.beat();
            is_confirmed = matches!(beat, Beat::Confirmed);
            let now = boottime_milliseconds();
            match beat {
                Beat::Confirmed | Beat::SigningIn => {
                    self.write_process();
                    self.tell_guard();
                    // A thread that signs in wakes this one when it has.
                    let least = if is_confirmed { 0 } else { now + ttl / 20 };
                    due = next().max(least);
                }
                // A leader that is cut off costs the time of two: its own, and that of a member that still
                // passes on to it what it is asked.
                Beat::Unanswered if unanswered + 1 < self.engine().members() => {
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

    /// The command that runs under the hold.
    pub(super) fn runs(&self, live: &Live) {
        let mut state = self.state();
        let new = |process: &ProcessId| state.live.process() != Some(*process);
        if let Some(process) = live.process().filter(new) {
            state.unwritten = Some(process);
            state.is_told |= state.has_thread;
            self.wake.notify_all();
        }
    }

    /// Writes the process into the record, unless it is there. Most commands end before that.
    fn write_process(&self) {
        let _sending = locked(&self.sending);
        let (txn, live) = {
            let mut state = self.state();
            if state.live.process() == state.unwritten {
                // It was done, and the answer was lost.
                state.unwritten = None;
            }
            if state.unwritten.is_none() || state.is_released {
                return;
            }
            let mut live = state.live.clone();
            live.set_process(state.unwritten);
            let record = Record {
                live: live.clone(),
                ..self.taken.record.clone()
            };
            let Ok(value) = self.cluster.written(&record) else {
                return;
            };
            let txn = self.if_held(&state, |txn, hold, _| {
                txn.only_if(Compare::was_modified_at(hold, state.modified));
                txn.put(hold, &value, 0);
            });
            (txn, live)
        };
        // If it was done and the answer is lost, the next look finds it.
        let answer = self.engine().txn(&txn, TIMEOUT).ok();
        if let Some(answer) = answer.filter(|answer| answer.succeeded) {
            let mut state = self.state();
            state.modified = answer.revision;
            state.live = live;
            state.unwritten = None;
            drop(state);
            self.tell_guard();
        }
    }

    /// Watches for a break, so that it is noticed at once and not at the next beat.
    fn watch(self: &Arc<Self>, facts: &mut WatchFacts) {
        *facts = WatchFacts {
            number: facts.number + 1,
            member: self.engine().member().to_owned(),
            until: boottime_milliseconds() + WATCHED_MS,
            has_ended: false,
        };
        if self.engine().limits().looks_each.is_some() {
            facts.until = u64::MAX;
            self.state().watch = facts.number;
            return;
        }
        let number = facts.number;
        let since = {
            let mut state = self.state();
            state.watch = number;
            state.modified
        };
        let watches: Vec<Watch> = self
            .hold_and_life()
            .flat_map(|[hold, life]| [Watch::Changes(only(&hold)), Watch::Deletions(only(&life))])
            .collect();
        let keeping: Weak<Self> = Arc::downgrade(self);
        let told = move |answer: Option<WatchAnswer>| {
            let Some(keeping) = keeping.upgrade() else {
                return false;
            };
            let mut state = keeping.state();
            match answer {
                // The watch does not report what happened before it began.
                Some(answer) => {
                    let is_later = answer.has_begun && answer.revision > since;
                    state.is_told |= is_later || !answer.events.is_empty();
                }
                None if state.watch == number => state.watch = 0,
                None => {}
            }
            keeping.wake.notify_all();
            !state.is_released
        };
        if !self.engine().watch(&watches, Box::new(told)) {
            self.state().watch = 0;
        }
    }

    /// Keeps the lease alive, and looks whether the hold still stands.
    pub(super) fn beat(self: &Arc<Self>) -> Beat {
        let _sending = locked(&self.sending);
        let engine = self.engine();
        let member = engine.member().to_owned();
        let sent = boottime_milliseconds();
        let interval = self.interval_ms();
        let (lease, check) = {
            let state = self.state();
            if state.is_released {
                return Beat::Unknown;
            }
            (state.lease, self.check_txn(&state))
        };
        // With the next look it would be late.
        let last = lease.since_ms + lease.ttl_ms() / 10 * 9;
        let keeps = engine.limits().looks_each.is_some() || sent + interval > last;
        // A handshake with a member on another continent takes half a second.
        let timeout = Duration::from_millis(self.ttl_ms() / 20);
        let timeout = timeout.clamp(Duration::from_secs(1), TIMEOUT);
        let (mut kept, answer) = if keeps {
            engine.keep_and_check(lease.id, &check, timeout)
        } else {
            (None, engine.txn(&check, timeout))
        };
        let is_over = |kept: Option<Lease>| kept.is_some_and(|kept| kept.ttl <= 0);
        let is_checked = answer.is_ok();
        let epoch = match answer {
            Ok(answer) if answer.succeeded => Some(answer.epoch),
            Ok(answer) => return self.examine(&answer, !is_over(kept)),
            Err(failure) if failure.kind == FailureKind::SignedOut => {
                kept = kept.or_else(|| engine.keep(lease.id, timeout).ok());
                self.epoch_while_signed_out(kept, timeout)
            }
            Err(failure) => {
                engine.go_on();
                self.state().troubles.insert(member, failure.message);
                return Beat::Unanswered;
            }
        };
        // A member that was the leader may answer a keepalive without asking the others, as in etcd before 3.4.31.
        let is_kept = kept.is_some() && !is_over(kept) && kept.map(|kept| kept.epoch) == epoch;
        let is_shown = is_checked || is_kept;
        if is_shown {
            let mut state = self.state();
            state.shown_ms = sent;
            if is_kept {
                state.lease.since_ms = sent;
            }
            state.troubles.clear();
            state.epoch = epoch.unwrap_or(state.epoch);
            if is_checked {
                state.checked_ms = sent;
            }
        }
        // What was not kept for certain is kept again soon.
        let is_confirmed = is_shown && (is_kept || !keeps);
        match (is_checked, is_confirmed) {
            (true, true) => Beat::Confirmed,
            (true, false) => Beat::Unknown,
            (false, _) => {
                self.sign_in(is_confirmed);
                Beat::SigningIn
            }
        }
    }

    /// The epoch while the user has to sign in, which takes long if all members were restarted under many holds. If the
    /// lease was kept alive in it, the hold stands as well: nobody removes it while its lease is there. `None`: it is
    /// not known, or the hold has not been looked at for long.
    fn epoch_while_signed_out(&self, kept: Option<Lease>, timeout: Duration) -> Option<Epoch> {
        let state = self.state();
        let unchecked = boottime_milliseconds().saturating_sub(state.checked_ms);
        if kept.is_none() || unchecked > UNCHECKED_MS || state.is_refused {
            return None;
        }
        drop(state);
        self.engine().epoch(timeout).ok()
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
            let member = keeping.engine().member().to_owned();
            let signed_in = keeping.engine().sign_in(Patience::SHORT);
            let is_refused = signed_in.as_ref().is_err_and(Failure::is_refusal);
            if signed_in.is_err() && !is_refused {
                keeping.engine().go_on();
            }
            let mut state = keeping.state();
            state.is_refused = is_refused;
            state.signs_in = false;
            state.is_told |= signed_in.is_ok();
            if let Err(failure) = signed_in {
                state.troubles.insert(member, failure.message);
            }
            keeping.wake.notify_all();
        };
        if crate::sys::start_thread("sign-in", 256 * 1024, sign_in).is_err() {
            self.state().signs_in = false;
        }
    }

    /// What is done with each record and its life key if the hold still stands.
    pub(super) fn if_held(&self, state: &State, mut each: impl FnMut(&mut Txn, &str, &str)) -> Txn {
        let mut txn = Txn::default();
        for [hold, life] in self.hold_and_life() {
            txn.only_if(Compare::has_lease(&life, state.lease.id));
            txn.else_read(&hold);
            each(&mut txn, &hold, &life);
        }
        txn
    }

    pub(super) fn check_txn(&self, state: &State) -> Txn {
        self.if_held(state, |txn, hold, life| {
            txn.only_if(Compare::was_modified_at(hold, state.modified));
            txn.else_read(life);
        })
    }

    /// What has become of a hold that is not as it was.
    fn examine(&self, answer: &TxnAnswer, is_kept: bool) -> Beat {
        let mut found = answer.found();
        let mut state = self.state();
        let mut is_alive = is_kept;
        let is_continued = self.engine().is_continued(state.epoch, answer.epoch);
        let may_be_lost = !is_continued || answer.revision < state.modified;
        let mut is_lost = false;
        for _ in &self.taken.keys {
            let (hold, life) = (found.next().flatten(), found.next().flatten());
            if hold.is_none() && may_be_lost {
                (is_lost, is_alive) = (true, false);
                continue;
            }
            let read = hold.map(|hold| (content(&hold.value, true), hold.mod_revision));
            let Some((Content::Record(record), modified)) = read else {
                state.loss = Some("its record is gone".to_owned());
                return Beat::Over;
            };
            if record.hold != self.taken.record.hold {
                state.loss = Some(format!("hold {} has it", record.hold));
                return Beat::Over;
            }
            if record.live.broken_by.is_some() && !state.is_broken {
                state.is_broken = true;
                crate::sys::keeper::wake_supervisor();
            }
            state.live = record.live;
            state.modified = modified;
            is_alive &= life.is_some_and(|life| life.lease == state.lease.id);
        }
        if is_alive {
            // At once again: as it is now it is confirmed.
            return Beat::Unknown;
        }
        let (lost_at, _) = state.deadlines_ms();
        let is_in_time = state.is_work_over || boottime_milliseconds() < lost_at;
        if state.is_broken || !is_in_time {
            state.loss = Some("its lease has ended".to_owned());
            return Beat::Over;
        }
        drop(state);
        self.resume(is_lost).unwrap_or(Beat::Unknown)
    }

    /// Why it was lost, as far as is known.
    pub(super) fn why_lost(&self) -> Option<String> {
        let state = self.state();
        if let Some(loss) = &state.loss {
            return Some(loss.clone());
        }
        let is_in_time = boottime_milliseconds() < state.deadlines_ms().0;
        let all = state.troubles.iter();
        let all: Vec<String> = all.map(|(of, said)| format!("{of}: {said}")).collect();
        match all.as_slice() {
            [] if is_in_time => None,
            [] => Some("its lease was not renewed in time".to_owned()),
            all => Some(format!("cannot renew its lease: {}", all.join("; "))),
        }
    }

    /// Takes the lock again: its life key is gone, and no other caller has taken it. `is_lost`: the server has lost its
    /// record, and perhaps those of others.
    fn resume(&self, is_lost: bool) -> Result<Beat> {
        let session = self.cluster.session(Patience::of(Duration::ZERO));
        if is_lost {
            session.ensure_pause()?;
        }
        let (live, ttl) = {
            let state = self.state();
            (state.live.clone(), state.lease.ttl)
        };
        let record = Record {
            live,
            ..self.taken.record.clone()
        };
        let request = request_to_resume(&record, &self.taken.keys);
        let snapshot = ViewSnapshot::new(session, View::unread());
        let is_ours = |key: &Key| self.taken.keys.contains(key);
        let put = match decide(&request, &snapshot)? {
            Decision::Take { put, remove }
                if remove.is_empty()
                    && put
                        .iter()
                        .all(|(key, old)| is_ours(key) && (is_lost || old.is_some())) =>
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
        let lease = session.grant(TAKE, ttl)?;
        let taking = Taking {
            view: &view,
            put: &put,
            remove: &[],
            record,
            resumes: true,
            ticket: None,
        };
        match session.commit_take(taking, lease, &[])? {
            Committed::Done(taken) => {
                let mut state = self.state();
                state.lease = lease;
                state.shown_ms = taken.sent_ms;
                state.modified = taken.written;
                state.epoch = taken.epoch;
                state.troubles.clear();
                Ok(Beat::Confirmed)
            }
            Committed::Changed(_) | Committed::NoLease | Committed::Paused(_) => {
                self.engine().give_up(lease.id);
                // A relative may have changed that does not exclude this hold. The next beat looks again.
                Ok(Beat::Unknown)
            }
        }
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
    member: String,
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
