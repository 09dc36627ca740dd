//! Locks as keys in an etcd cluster, for many machines.
//!
//! A hold is a record without a lease, and a life key on a lease that its keeper keeps alive. Everything is
//! decided on a view of the store as of one revision, and done by one transaction that is refused if
//! what it was decided on has changed. A take begins with the guess that there is nothing, so that a free lock
//! takes three requests: a lease, the take, and the release.
//!
//! [`snapshot`] answers decisions from a [`view`], [`commit`] changes, [`held`] keeps a hold, [`waiting`] is the
//! queue, [`listing`] reads all of a [`store`], [`client`] sends requests, of which [`messages`] says what they
//! look like, and [`keys`] what the keys are.

mod address;
mod client;
mod commit;
mod held;
mod keys;
mod listing;
mod messages;
mod snapshot;
mod store;
mod view;
mod waiting;

/// The model checker: it needs what is private here.
#[cfg(test)]
#[path = "../../tests/model/etcd.rs"]
mod model;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use address::{EtcdAccess, is_etcd_url};
use commit::{Committed, Granted, Taken, Taking, expiry};
use held::HeldKeys;
use held::request_of;
use keys::Part;
use messages::Read;
use snapshot::{EtcdSnapshot, go_on, is_compacted, until_not_compacted};
pub(crate) use store::Etcd;
use store::{DEFAULT_TTL, LEAST_TTL, LEAST_TTL_OF_RUN, MAX_SEGMENTS};
use view::View;
use waiting::{Ahead, Place};

use crate::backend::{
    Ask, BackOff, Backend, Change, Contender, Draft, Entry, Limits, LockSnapshot as _, Patience,
    Plan, QueuePlace, SleepLimit, Ttl, Updated,
};
use crate::decision::{Found, Judged, Key, Life, Moment, Request, Snapshot as _, Ticket, Until};
use crate::error::{Error, Result};
use crate::identity::Pid;
use crate::name::LockName;
use crate::observer::HostFacts;
use crate::open_file::Handle;
use crate::record::{Format, KILL_AFTER, Kind, Mode, Record};
use crate::status::{StoreFacts, Waiter};
use crate::sys::process::boottime;
use crate::sys::wait::{Watch, pause};

/// How long a keeper may take beyond the time between TERM and KILL.
const KEEPER_ENDS: Duration = Duration::from_secs(2);

/// How often to look whether a hold that was broken has been given back, at first and at last.
const FIRST_INTERVAL: Duration = Duration::from_millis(20);
const LONGEST_INTERVAL: Duration = Duration::from_millis(500);

impl Etcd {
    /// Removes a hold: at once, or by its keeper if its work has to be ended first. `false`: it has changed.
    fn remove(
        &self,
        judged: &Judged<Handle>,
        view: &View,
        ahead: Option<&mut Ahead>,
        patience: Patience<'_>,
    ) -> Result<bool> {
        if !is_live_run(judged) {
            return self.commit_remove(judged, view, patience);
        }
        if !self.break_run(judged, view, ahead, patience)? {
            return Err(self.keeper_does_not_answer());
        }
        Ok(true)
    }

    /// The view, with all locks of a hold that has several.
    fn with_all_names(
        &self,
        judged: &Judged<Handle>,
        view: View,
        patience: Patience<'_>,
    ) -> Result<View> {
        let names = judged.record().map_or(&[][..], |record| &record.names);
        if names.len() < 2 {
            return Ok(view);
        }
        let snapshot = EtcdSnapshot::new(self, view, patience);
        for name in names.iter().filter_map(|name| LockName::new(name).ok()) {
            let _ = snapshot.exclusive(&name)?;
            let _ = snapshot.shared(&name)?;
        }
        Ok(snapshot.into_view())
    }

    /// Tells the keeper of a live `run` to end its work, and waits until it has given the hold back. Whether
    /// it has.
    fn break_run(
        &self,
        judged: &Judged<Handle>,
        view: &View,
        mut ahead: Option<&mut Ahead>,
        patience: Patience<'_>,
    ) -> Result<bool> {
        let kill_after = judged.record().and_then(Record::kill_after);
        let limit = kill_after.unwrap_or(KILL_AFTER).saturating_add(KEEPER_ENDS);
        let mut go_on = client::for_at_most(limit);
        let mut judged = judged.clone();
        let mut view = view.clone();
        // Until it says so: another one may write it meanwhile.
        while let Some(record) = judged.record()
            && record.live.broken_by.is_none()
        {
            let mut live = record.live.clone();
            live.broken_by = Some(self.who());
            if self.commit_renew(&judged, &live, &view, patience)? {
                break;
            }
            let Some((found, now)) = self.look_again(&judged, patience)? else {
                return Ok(true);
            };
            judged.found = found;
            view = now;
            if !go_on() {
                return Ok(false);
            }
        }
        let life = self.shared.keys.of(Part::Life, &judged.found.key);
        let created = view.get(&life).map(|life| life.create_revision);
        let life = keys::only(&life);
        let mut interval = FIRST_INTERVAL;
        loop {
            let read = Read {
                key: life.start.clone(),
                range_end: life.end.clone(),
                limit: 1,
                revision: 0,
                keys_only: true,
            };
            let found = self.read_range(&read, patience)?.kvs;
            // A waiter may have it by now.
            if found.first().map(|life| life.create_revision) != created {
                return self.remove_rest(&judged, patience);
            }
            if !go_on() {
                return Ok(false);
            }
            if let Some(ahead) = &mut ahead {
                ahead.keep();
            }
            let _ = pause(interval);
            interval = (interval * 2).min(LONGEST_INTERVAL);
        }
    }

    /// A hold as it is now, if it is still there.
    fn look_again(
        &self,
        judged: &Judged<Handle>,
        patience: Patience<'_>,
    ) -> Result<Option<(Found<Handle>, View)>> {
        let snapshot = EtcdSnapshot::new(self, View::unread(), patience);
        let name = &judged.found.key.name;
        let exclusive = snapshot.exclusive(name)?;
        let all = exclusive.into_iter().chain(snapshot.shared(name)?);
        let mut same = all.filter(|found| found.revision == judged.found.revision);
        let Some(found) = same.next() else {
            return Ok(None);
        };
        drop(same);
        let view = self.with_all_names(judged, snapshot.into_view(), patience)?;
        Ok(Some((found, view)))
    }

    /// Removes the record of a hold that was broken, if its lease has ended before its keeper gave it back.
    fn remove_rest(&self, judged: &Judged<Handle>, patience: Patience<'_>) -> Result<bool> {
        let Some((found, view)) = self.look_again(judged, patience)? else {
            return Ok(true);
        };
        // It was resumed.
        if found.facts.life == Some(Life::Kept) {
            return Ok(false);
        }
        let rest = Judged {
            found,
            verdict: judged.verdict.clone(),
        };
        self.commit_remove(&rest, &view, patience)
    }

    /// The calling process, for whoever finds that a hold was broken.
    pub(crate) fn who(&self) -> String {
        let pid = Pid::of_self();
        match &self.host.observer().hostname {
            Some(host) => format!("process {pid} on {host}"),
            None => format!("process {pid}"),
        }
    }

    fn take(
        &self,
        wanted: &Wanted<'_>,
        place: Option<&Place>,
        attempt: &mut Attempt,
        patience: Patience<'_>,
    ) -> Result<Committed<(Taken, Granted)>> {
        let Wanted {
            view,
            put,
            remove,
            draft,
        } = *wanted;
        // By force: what is alive goes first, and the lock is reserved for the caller meanwhile.
        let replaced = put.iter().filter_map(|(_, replaced)| replaced.as_ref());
        let mut replaced = replaced.chain(remove);
        if let Some(live) = replaced.find(|judged| judged.verdict.is_live()) {
            if attempt.ahead.is_none() {
                let request = request_by_force(&draft.record, put, remove);
                attempt.ahead = Some(self.get_ahead(&request, draft, patience)?);
            }
            let ahead = attempt.ahead.as_mut();
            let view = self.with_all_names(live, view.clone(), patience)?;
            if self.remove(live, &view, ahead, patience)? {
                attempt.displaced.push(live.clone());
            }
            return Ok(Committed::Changed(View::unread()));
        }
        let seconds = waiting::seconds_of(draft);
        let mut record = draft.record.clone();
        if record.kind == Kind::Lease {
            record.live.expires_at = expiry(seconds);
            record.live.renewed_at = Some(record.acquired_at);
        } else {
            record.live.pid = record.taken_by;
        }
        let lease = match attempt.spare.take() {
            Some(lease) => lease,
            None => self.grant(seconds, patience)?,
        };
        record.origin = Some(self.host.origin(crate::sys::FileId {
            device: 0,
            inode: 0,
        }));
        let ticket = place.map(|place| (place.tickets.as_slice(), place.created));
        let taking = Taking {
            view,
            put,
            remove,
            record,
            resumes: false,
            ticket,
            lease,
        };
        Ok(match self.commit_take(&taking, patience)? {
            Committed::Done(taken) => Committed::Done((taken, lease)),
            Committed::Changed(view) => {
                // For the next attempt.
                attempt.spare = Some(lease);
                Committed::Changed(view)
            }
            Committed::NoLease => Committed::NoLease,
        })
    }
}

/// Counts the attempts at one change: others may keep changing what it was decided on.
struct Rounds<'a> {
    count: u32,
    began: Duration,
    go_on: Box<dyn FnMut() -> bool + 'a>,
}

impl<'a> Rounds<'a> {
    /// How many attempts follow each other without a pause.
    const AT_ONCE: u32 = 8;

    fn new(patience: Patience<'a>) -> Self {
        Self {
            count: 0,
            began: boottime(),
            go_on: Box::new(go_on(patience)),
        }
    }

    /// Pauses if there have been many attempts. Fails if there is no time for another one.
    fn begin(&mut self, store: &str) -> Result<()> {
        self.count += 1;
        if self.count <= Self::AT_ONCE {
            return Ok(());
        }
        let most = u64::from(self.count).min(100);
        let milliseconds = 1 + crate::sys::wait::random_u64() % most;
        let _ = pause(Duration::from_millis(milliseconds));
        if (self.go_on)() {
            return Ok(());
        }
        Err(Error::StoreBusy {
            path: store.into(),
            pid: None,
            waited: boottime().saturating_sub(self.began),
        })
    }
}

/// What one attempt to take has brought so far.
struct Attempt {
    /// A lease that was granted for a take which was refused.
    spare: Option<Granted>,
    /// What was removed by force.
    displaced: Vec<Judged<Handle>>,
    ahead: Option<Ahead>,
}

impl Attempt {
    fn with(spare: Option<Granted>) -> Self {
        Self {
            spare,
            displaced: Vec::new(),
            ahead: None,
        }
    }
}

/// What is to be taken, and what that was decided on.
struct Wanted<'a> {
    view: &'a View,
    put: &'a [(Key, Option<Judged<Handle>>)],
    remove: &'a [Judged<Handle>],
    draft: &'a Draft,
}

impl Etcd {
    /// Makes the change that `plan` returns, for a caller with this place or without one.
    fn change(
        &self,
        entry: Entry<'_>,
        place: &mut Option<Place>,
        plan: &mut Plan<'_, '_>,
    ) -> Result<Option<Updated>> {
        let patience = entry.patience;
        if let Some(place) = place.as_mut().filter(|place| place.is_lost) {
            // The process was stopped, or cut off.
            self.draw_again(place, patience)?;
        }
        let known = place.as_mut().and_then(|place| place.view.take());
        let mut view = match known {
            Some(view) => view,
            None if entry.create && place.is_none() => View::guess(),
            None => View::unread(),
        };
        let mut attempt = Attempt::with(place.as_mut().and_then(|place| place.lease.take()));
        let mut rounds = Rounds::new(patience);
        loop {
            rounds.begin(self.url())?;
            let ahead = attempt.ahead.as_ref().map(|ahead| ahead.number);
            let own = ahead.or_else(|| Some(place.as_ref()?.number_of_ticket()));
            let snapshot = EtcdSnapshot::new(self, view, patience).with_place(own);
            let planned = plan(&snapshot);
            view = snapshot.into_view();
            if let Some(place) = place.as_mut().filter(|place| place.is_missing_in(&view)) {
                self.draw_again(place, patience)?;
                view = place.view.take().unwrap_or_else(View::unread);
                continue;
            }
            let change = match planned {
                Err(error) if is_compacted(&error) => {
                    view = View::unread();
                    continue;
                }
                planned => planned?,
            };
            // Without a take nothing would show that it is otherwise.
            if view.is_assumed() && !matches!(change, Change::Take { .. }) {
                view = View::unread();
                continue;
            }
            let mut updated = Updated::default();
            match change {
                Change::Nothing => {
                    keep(place.as_mut(), &view, attempt.spare);
                    *self.seen() = Some(view);
                    return Ok(Some(updated));
                }
                Change::Queue(change) => {
                    if let Some((request, draft)) = change.join {
                        let lease = attempt.spare.take();
                        *place = Some(self.draw(&request, draft, lease, patience)?);
                        // Its ticket was written after the decision.
                        updated.may_be_behind_others = true;
                    } else {
                        keep(place.as_mut(), &view, attempt.spare);
                    }
                    *self.seen() = Some(view);
                    return Ok(Some(updated));
                }
                Change::Remove(judged) => {
                    view = self.with_all_names(&judged, view, patience)?;
                    if self.remove(&judged, &view, None, patience)? {
                        return Ok(Some(updated));
                    }
                }
                Change::Renew(judged, live) => {
                    view = self.with_all_names(&judged, view, patience)?;
                    if self.commit_renew(&judged, &live, &view, patience)? {
                        return Ok(Some(updated));
                    }
                }
                Change::Take { put, remove, draft } => {
                    let wanted = Wanted {
                        view: &view,
                        put: &put,
                        remove: &remove,
                        draft,
                    };
                    let own = place.as_ref();
                    match self.take(&wanted, own, &mut attempt, patience)? {
                        Committed::Done((taken, lease)) => {
                            if let Some(place) = place {
                                place.is_used = true;
                            }
                            updated.hold = Some(Box::new(HeldKeys::new(self, taken, lease)));
                            updated.removed = remove;
                            updated.removed.append(&mut attempt.displaced);
                            return Ok(Some(updated));
                        }
                        Committed::Changed(now) => {
                            view = now;
                            continue;
                        }
                        Committed::NoLease => {}
                    }
                }
            }
            view = View::unread();
        }
    }
}

impl Backend for Etcd {
    fn host(&self) -> &Arc<HostFacts> {
        &self.host
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(self.url())
    }

    fn path_of_record(&self, key: &Key) -> PathBuf {
        let address = self.shared.client.address();
        let store = address
            .url
            .strip_suffix(&address.prefix)
            .unwrap_or(&address.url);
        PathBuf::from(format!("{store}{}", self.shared.keys.of(Part::Hold, key)))
    }

    fn format(&self) -> Format {
        Format::Native
    }

    fn limits(&self, _name: &LockName) -> Limits {
        Limits {
            exec: Some("--exec leaves no process that could keep the lease: leave it out"),
            follow: Some(
                "nothing would keep a hold for a process alive: pass --ttl for a lease, or use `run`",
            ),
            ttl: |Ttl { asked, is_detached }| {
                let (least, too_short) = if is_detached {
                    (LEAST_TTL, "the minimum --ttl of a lease is 5s")
                } else {
                    (LEAST_TTL_OF_RUN, "the minimum --ttl of a run is 10s")
                };
                let ttl = asked.or((!is_detached).then_some(DEFAULT_TTL));
                match ttl.unwrap_or_default() {
                    ttl if ttl.subsec_nanos() != 0 => Err("--ttl is in whole seconds"),
                    ttl if ttl < least => Err(too_short),
                    ttl => Ok(Some(ttl)),
                }
            },
            ..Limits::default()
        }
    }

    fn unsupported(&self, what: &'static str) -> Error {
        Error::NotOnEtcd { what }
    }

    fn locate(self: Arc<Self>, name: LockName) -> Result<(Arc<dyn Backend>, LockName)> {
        let what = if name.is_path() {
            "a path is a file of this machine: use a name"
        } else if name.as_str().split('/').count() > MAX_SEGMENTS {
            "a name has at most 31 parts"
        } else {
            return Ok((self, name));
        };
        Err(Error::NotOnEtcd { what })
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn ask(&self, ask: &mut Ask<'_>) -> Result<()> {
        let view = until_not_compacted(|| {
            let snapshot = EtcdSnapshot::new(self, View::unread(), Patience::SHORT);
            ask(&snapshot)?;
            Ok(snapshot.into_view())
        })?;
        *self.seen() = Some(view);
        Ok(())
    }

    fn apply(&self, entry: Entry<'_>, plan: &mut Plan<'_, '_>) -> Result<Option<Updated>> {
        self.change(entry, &mut None, plan)
    }

    fn contender(&self, _back_off: BackOff, _mode: Mode) -> Box<dyn Contender + '_> {
        Box::new(EtcdContender {
            etcd: self,
            place: None,
        })
    }

    fn waiters(&self, of: &LockName) -> Result<Vec<Waiter>> {
        let seen = self.seen().clone().unwrap_or_else(View::unread);
        Ok(EtcdSnapshot::new(self, seen, Patience::SHORT).waiters(of))
    }

    fn waiter(&self, ticket: &Ticket<Handle>) -> Option<Waiter> {
        let seen = self.seen().clone()?;
        EtcdSnapshot::new(self, seen, Patience::SHORT).waiter(ticket)
    }

    fn list(&self, each: &mut dyn FnMut(Moment, Found<Handle>)) -> Result<Vec<Error>> {
        self.read_locks(each)
    }

    fn names_with_waiters(&self) -> Result<Vec<LockName>> {
        Ok(self.names_that_are_waited_for())
    }

    fn facts(&self, key: &Key) -> Result<Option<StoreFacts>> {
        self.facts_of(key).map(Some)
    }

    fn give_back(&self, request: &[u8]) -> Result<bool> {
        self.send_release(request)
    }
}

/// A caller that wants a lock.
struct EtcdContender<'a> {
    etcd: &'a Etcd,
    place: Option<Place>,
}

impl Contender for EtcdContender<'_> {
    fn apply(&mut self, entry: Entry<'_>, plan: &mut Plan<'_, '_>) -> Result<Option<Updated>> {
        self.etcd.change(entry, &mut self.place, plan)
    }

    fn place(&self) -> Option<u64> {
        // A ticket that has ended is drawn again while a decision is being made. The snapshot knows it, and leaves
        // out what comes later.
        self.place.as_ref().map(|_| u64::MAX)
    }

    fn sleep(
        &mut self,
        until: &Until<Handle>,
        limit: SleepLimit<'_>,
        _is_unchanged: &mut dyn FnMut() -> bool,
    ) {
        let Some(place) = &mut self.place else {
            // Only for a dead hold: nothing but time is waited for.
            let until = boottime() + limit.at_most + Duration::from_millis(1);
            while !limit.is_canceled()
                && let left = until.saturating_sub(boottime())
                && !left.is_zero()
            {
                let _ = pause(limit.slice().min(left));
            }
            return;
        };
        place.sleep(until, limit);
    }

    fn look_again(&mut self) {
        if let Some(place) = &mut self.place {
            place.view = None;
        }
    }

    fn into_parts(self: Box<Self>) -> (Option<Box<dyn QueuePlace>>, Option<Watch>) {
        let place = self
            .place
            .map(|place| Box::new(place) as Box<dyn QueuePlace>);
        (place, None)
    }
}

impl Etcd {
    fn keeper_does_not_answer(&self) -> Error {
        Error::Remote {
            operation: "break a hold in",
            store: self.url().to_owned(),
            reason: "its keeper has not ended its work".to_owned(),
            remedy: Some(
                "wait until its lease ends, which nothing but its keeper keeps alive".to_owned(),
            ),
        }
    }
}

/// Keeps for the next decision of a waiter what was seen, until it hears of a change, and its lease.
fn keep(place: Option<&mut Place>, view: &View, lease: Option<Granted>) {
    if let Some(place) = place {
        place.view = Some(view.clone());
        place.keep_lease(lease);
    }
}

/// Asks for locks in place of live holds, ahead of all waiters. Waiters treat the holds that are to be replaced as
/// gone, so none of them takes one of several locks while the next hold is being broken.
fn request_by_force(
    record: &Record,
    put: &[(Key, Option<Judged<Handle>>)],
    remove: &[Judged<Handle>],
) -> Request {
    let keys: Vec<Key> = put.iter().map(|(key, _)| key.clone()).collect();
    let replaced = put.iter().filter_map(|(_, replaced)| replaced.as_ref());
    Request {
        replace: replaced
            .chain(remove)
            .map(|judged| judged.found.revision.clone())
            .collect(),
        ..request_of(record, &keys)
    }
}

/// A hold that only its keeper gives back, since its work has to be ended first.
fn is_live_run(judged: &Judged<Handle>) -> bool {
    let is_run = judged
        .record()
        .is_some_and(|record| record.kind != Kind::Lease);
    is_run && judged.verdict.is_live()
}
