//! Locks as keys in an etcd cluster, for many machines.
//!
//! A hold is a record without a lease, and a life key on a lease that its keeper keeps alive. Everything is
//! decided on a [`View`] of the store as of one revision, and done by one transaction that is refused if
//! what it was decided on has changed. A take begins with the guess that there is nothing, so that a free lock
//! takes three requests: a lease, the take, and the release.
//!
//! [`view`] answers decisions, [`commit`] changes, [`held`] keeps a hold, [`waiting`] is the queue, [`client`]
//! sends requests, of which [`messages`] says what they look like, and [`keys`] what the keys are.

mod address;
mod client;
mod commit;
mod held;
mod keys;
mod messages;
mod view;
mod waiting;

use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use address::Address;
pub use address::{EtcdAccess, is_etcd_url};
use client::Client;
use commit::{Committed, Granted, Taken, Taking, expiry};
pub(crate) use held::HeldKeys;
use keys::{Keys, Part};
use messages::Read;
pub(crate) use view::EtcdSnapshot;
use view::{View, is_compacted, is_too_large};
pub(crate) use waiting::{Place, Sleeper};

use crate::backend::{AsWaiter, BackOff, Backend, Change, Draft, Entry, Patience, Updated};
use crate::decision::{Found, Judged, Key, Moment, Snapshot as _, Ticket, Until};
use crate::error::{Error, Result};
use crate::identity::Pid;
use crate::name::LockName;
use crate::observer::HostFacts;
use crate::record::{KILL_AFTER, Kind, Mode, Record};
use crate::status::Waiter;
use crate::sys::wait::pause;

/// The time to live of a `run`.
pub(crate) const DEFAULT_TTL: Duration = Duration::from_secs(20);

/// The least time to live of a `run`: with 5 s, 4 of 30 changes of the leader cost a hold, with 8 s and more
/// none of 90.
pub(crate) const LEAST_TTL_OF_RUN: Duration = Duration::from_secs(10);

/// The least one of a lease.
pub(crate) const LEAST_TTL: Duration = Duration::from_secs(5);

/// The most parts of a name: each is compared when it is taken.
pub(crate) const MAX_SEGMENTS: usize = 32;

/// How long a keeper may take beyond the time between TERM and KILL.
const KEEPER_ENDS: Duration = Duration::from_secs(2);

/// A store on etcd. `H`: how other backends refer to what was found; here nothing is kept open.
pub(crate) struct Etcd<H> {
    shared: Arc<Shared>,
    pub(crate) host: Arc<HostFacts>,
    _handle: PhantomData<fn() -> H>,
}

#[derive(Debug)]
struct Shared {
    client: Arc<Client>,
    keys: Keys,
    /// Since when this process has known a record, as it stands, to be dead, by the boot-time clock.
    gone: Mutex<HashMap<(String, i64), u64>>,
    /// What was seen last, for a description of what was decided on it.
    seen: Mutex<Option<View>>,
}

impl<H> Clone for Etcd<H> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            host: Arc::clone(&self.host),
            _handle: PhantomData,
        }
    }
}

impl<H> std::fmt::Debug for Etcd<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Etcd")
            .field("shared", &self.shared)
            .finish_non_exhaustive()
    }
}

impl<H> Etcd<H> {
    /// A store by its URL. Nothing is sent.
    pub(crate) fn new(url: &str, access: &EtcdAccess) -> Result<Self> {
        let address = Address::parse(url, access)?;
        let keys = Keys::new(&address.prefix);
        Ok(Self {
            shared: Arc::new(Shared {
                client: Arc::new(Client::new(address, access)?),
                keys,
                gone: Mutex::default(),
                seen: Mutex::default(),
            }),
            host: Arc::default(),
            _handle: PhantomData,
        })
    }

    fn without_handle(&self) -> Etcd<()> {
        Etcd {
            shared: Arc::clone(&self.shared),
            host: Arc::clone(&self.host),
            _handle: PhantomData,
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.shared.client.address().url
    }

    /// The key of a record, as it is shown.
    pub(crate) fn path_of_record(&self, key: &Key) -> PathBuf {
        let address = self.shared.client.address();
        let store = address
            .url
            .strip_suffix(&address.prefix)
            .unwrap_or(&address.url);
        PathBuf::from(format!("{store}{}", self.shared.keys.of(Part::Hold, key)))
    }

    pub(crate) fn is_same_store(&self, other: &Self) -> bool {
        self.url() == other.url()
    }
}

/// What only etcd tells about a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreFacts {
    /// The member that has answered.
    pub member: String,
    /// Its version of etcd.
    pub version: Option<String>,
    /// The revision of the store.
    pub revision: i64,
    /// When the record was last written.
    pub modified: i64,
    /// How long the lease lasts without another keepalive. `None`: there is none.
    pub lease_left: Option<Duration>,
}

impl<H: Clone + Default> Etcd<H> {
    /// Facts about a hold.
    pub(crate) fn facts(&self, key: &Key) -> Result<StoreFacts> {
        let client = &self.shared.client;
        let snapshot = EtcdSnapshot::new(self, View::unread(), Patience::SHORT);
        let _ = snapshot.exclusive(&key.name)?;
        let _ = snapshot.shared(&key.name)?;
        let view = snapshot.into_view();
        let lease = view
            .get(&self.shared.keys.of(Part::Life, key))
            .map(|life| life.lease)
            .filter(|lease| *lease != 0);
        let left = lease.and_then(|lease| client.time_to_live(lease).ok());
        Ok(StoreFacts {
            member: client.endpoint().to_owned(),
            version: client.status().ok().map(|status| status.version),
            revision: view.revision,
            modified: view.modified(&self.shared.keys.of(Part::Hold, key)),
            lease_left: left
                .and_then(|left| u64::try_from(left.ttl).ok())
                .map(Duration::from_secs),
        })
    }

    /// Every lock of the store, not judged yet, by pages of one revision. Returns what is not a lock.
    pub(crate) fn list(&self, each: &mut dyn FnMut(Moment, Found<H>)) -> Result<Vec<Error>> {
        let mut view = View::unread();
        let mut limit = 500;
        let keys = &self.shared.keys;
        for (range, keys_only) in [
            (keys.all(Part::Hold), false),
            (keys.all(Part::Life), true),
            (keys.all_tickets(), false),
        ] {
            let mut from = range.start.clone();
            loop {
                let read = Read {
                    key: from.clone(),
                    range_end: range.end.clone(),
                    limit,
                    revision: view.revision,
                    keys_only,
                };
                let page = match self.read_range(&read, Patience::SHORT) {
                    // Some values are large.
                    Err(error) if is_too_large(&error) && limit > 1 => {
                        limit = (limit / 20).max(1);
                        continue;
                    }
                    page => page?,
                };
                if view.revision == 0 {
                    view.revision = page.header.revision;
                }
                let more = page.more;
                let last = view.add_page(&read, page.kvs, more);
                match last {
                    Some(last) if more => from = format!("{last}\0"),
                    _ => break,
                }
            }
        }
        let now = crate::observer::now();
        let mut errors = Vec::new();
        let mut known = BTreeMap::new();
        for part in [Part::Hold, Part::Life] {
            for (text, _) in view.range(&keys.all(part)) {
                match keys.hold_of(part, text) {
                    Some(key) => {
                        known.insert((key.name.as_str().to_owned(), key.index), key);
                    }
                    None => errors.push(Error::Remote {
                        operation: "read a key of",
                        store: self.url().to_owned(),
                        reason: format!("`{text}` is not the name of a lock"),
                        remedy: None,
                    }),
                }
            }
        }
        for key in known.into_values() {
            if let Some(found) = self.found(&view, key, now) {
                each(now, found);
            }
        }
        *self.seen() = Some(view);
        Ok(errors)
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Option<View>> {
        self.shared
            .seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The names that have live waiters, as they were listed.
    pub(crate) fn names_with_waiters(&self) -> Vec<LockName> {
        let keys = &self.shared.keys;
        let tickets = keys.all_tickets();
        let seen = self.seen();
        let mut names: Vec<LockName> = seen
            .iter()
            .flat_map(|view| view.range(&tickets))
            .filter(|(_, found)| found.lease != 0)
            .filter_map(|(key, _)| keys.name_of_ticket(key))
            .collect();
        names.sort_by(|one, other| one.as_str().cmp(other.as_str()));
        names.dedup();
        names
    }

    /// Removes a hold: at once, or by its keeper if its work has to be ended first. `false`: it has changed.
    fn remove(&self, judged: &Judged<H>, view: &View, patience: Patience<'_>) -> Result<bool> {
        if !is_live_run(judged) {
            return self.commit_remove(judged, view, patience);
        }
        if !self.break_run(judged, view, patience)? {
            return Err(self.keeper_does_not_answer());
        }
        Ok(true)
    }

    /// The view, with all locks of a hold that has several.
    fn with_all_names(
        &self,
        judged: &Judged<H>,
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
    fn break_run(&self, judged: &Judged<H>, view: &View, patience: Patience<'_>) -> Result<bool> {
        if let Some(record) = judged.record()
            && record.live.broken_by.is_none()
        {
            let mut live = record.live.clone();
            live.broken_by = Some(self.who());
            if !self.commit_renew(judged, &live, view, patience)? {
                return Ok(true);
            }
        }
        let kill_after = judged.record().and_then(Record::kill_after);
        let limit = kill_after.unwrap_or(KILL_AFTER).saturating_add(KEEPER_ENDS);
        let mut go_on = client::for_at_most(limit);
        loop {
            let life = keys::only(&self.shared.keys.of(Part::Life, &judged.found.key));
            let read = Read {
                key: life.start,
                range_end: life.end,
                limit: 1,
                revision: 0,
                keys_only: true,
            };
            if self.read_range(&read, patience)?.kvs.is_empty() {
                return Ok(true);
            }
            if !go_on() {
                return Ok(false);
            }
            let _ = pause(Duration::from_millis(100));
        }
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
        wanted: &Wanted<'_, H>,
        place: Option<&Place>,
        spare: &mut Option<Granted>,
        patience: Patience<'_>,
    ) -> Result<Committed<(Taken, Granted)>> {
        let Wanted {
            view,
            put,
            remove,
            draft,
        } = *wanted;
        let seconds = waiting::seconds_of(draft);
        let mut record = draft.record.clone();
        if record.kind == Kind::Lease {
            record.live.expires_at = expiry(seconds);
            record.live.renewed_at = Some(record.acquired_at);
        } else {
            record.live.pid = record.taken_by;
        }
        let lease = match spare.take() {
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
                *spare = Some(lease);
                Committed::Changed(view)
            }
            Committed::NoLease => Committed::NoLease,
        })
    }
}

/// What is to be taken, and what that was decided on.
struct Wanted<'a, H> {
    view: &'a View,
    put: &'a [(Key, Option<Judged<H>>)],
    remove: &'a [Judged<H>],
    draft: &'a Draft,
}

impl<H: Clone + Default> Backend for Etcd<H> {
    type Handle = H;
    type Snapshot<'a>
        = EtcdSnapshot<'a, H>
    where
        H: 'a;
    type Hold = HeldKeys;
    type Place = Place;
    type Sleeper = Sleeper<H>;

    fn look<T>(&self, ask: impl FnOnce(&EtcdSnapshot<'_, H>) -> Result<T>) -> Result<Option<T>> {
        let snapshot = EtcdSnapshot::new(self, View::unread(), Patience::SHORT);
        let answer = ask(&snapshot)?;
        *self.seen() = Some(snapshot.into_view());
        Ok(Some(answer))
    }

    fn update<'d, T>(
        &self,
        entry: Entry<'_>,
        waiter: AsWaiter<'_, Self>,
        mut plan: impl FnMut(&EtcdSnapshot<'_, H>) -> Result<(Change<'d, H>, T)>,
    ) -> Result<Option<Updated<Self, T>>> {
        let patience = entry.patience;
        let mut place = waiter.place;
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
        let mut displaced = Vec::new();
        // A lease that was granted for a take which was refused, for the next attempt.
        let mut spare = place.as_mut().and_then(|place| place.lease.take());
        loop {
            let snapshot = EtcdSnapshot::new(self, view, patience);
            let planned = plan(&snapshot);
            view = snapshot.into_view();
            let (change, answer) = match planned {
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
            let mut updated = Updated {
                answer,
                hold: None,
                place: None,
                removed: Vec::new(),
            };
            match change {
                Change::Nothing => {
                    keep(place, &view, spare);
                    *self.seen() = Some(view);
                    return Ok(Some(updated));
                }
                Change::Queue(change) => {
                    if let Some((request, draft)) = change.join {
                        let lease = spare.take();
                        updated.place = Some(self.draw(&request, draft, lease, patience)?);
                    } else {
                        keep(place, &view, spare);
                    }
                    *self.seen() = Some(view);
                    return Ok(Some(updated));
                }
                Change::Remove(judged) => {
                    view = self.with_all_names(&judged, view, patience)?;
                    if self.remove(&judged, &view, patience)? {
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
                    // By force: what is alive goes first, and then the lock is like any other.
                    let replaced = put.iter().filter_map(|(_, replaced)| replaced.as_ref());
                    let mut replaced = replaced.chain(&remove);
                    if let Some(live) = replaced.find(|judged| judged.verdict.is_live()) {
                        view = self.with_all_names(live, view, patience)?;
                        if self.remove(live, &view, patience)? {
                            displaced.push(live.clone());
                        }
                        view = View::unread();
                        continue;
                    }
                    let wanted = Wanted {
                        view: &view,
                        put: &put,
                        remove: &remove,
                        draft,
                    };
                    match self.take(&wanted, place.as_deref(), &mut spare, patience)? {
                        Committed::Done((taken, lease)) => {
                            if let Some(place) = place {
                                place.is_used = true;
                            }
                            updated.hold = Some(HeldKeys::new(self, taken, lease));
                            updated.removed = remove;
                            updated.removed.append(&mut displaced);
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

    fn sleeper(&self, _back_off: BackOff, _mode: Mode) -> Sleeper<H> {
        Sleeper::default()
    }

    fn sleep(
        &self,
        _sleeper: &mut Sleeper<H>,
        place: Option<&mut Place>,
        until: &Until<H>,
        at_most: Duration,
        _is_unchanged: impl FnOnce() -> bool,
    ) {
        match (place, until) {
            (Some(place), _) => place.sleep(until, at_most),
            (None, Until::Ripe(_, after)) => {
                let _ = pause((*after).min(at_most) + Duration::from_millis(1));
            }
            (None, _) => {
                let _ = pause(at_most.min(Duration::from_millis(100)));
            }
        }
    }

    fn waiters(&self, of: &LockName) -> Result<Vec<Waiter>> {
        let seen = self.seen().clone().unwrap_or_else(View::unread);
        Ok(EtcdSnapshot::new(self, seen, Patience::SHORT).waiters(of))
    }

    fn waiter(&self, ticket: &Ticket<H>) -> Option<Waiter> {
        let seen = self.seen().clone()?;
        EtcdSnapshot::new(self, seen, Patience::SHORT).waiter(ticket.number)
    }
}

impl<H> Etcd<H> {
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

/// A hold that only its keeper gives back, since its work has to be ended first.
fn is_live_run<H>(judged: &Judged<H>) -> bool {
    let is_run = judged
        .record()
        .is_some_and(|record| record.kind != Kind::Lease);
    is_run && judged.verdict.is_live()
}
