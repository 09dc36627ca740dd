//! Locks as keys in an etcd cluster, for many machines.
//!
//! A hold is a record without a lease, and a life key on a lease that its keeper keeps alive. Everything is
//! decided on a view of the store as of one revision, and done by one transaction that is refused if
//! what it was decided on has changed. A take begins with the guess that there is nothing, so that a free lock
//! takes three requests: a lease, the take, and the release.
//!
//! [`snapshot`] answers decisions from a [`view`]. [`change`] makes the change that was decided on, by [`commit`] or
//! [`breaking`]. [`held`] is a hold, and [`keeping`] keeps it. [`waiting`] is the queue. [`listing`] reads all of a
//! [`store`], and [`examining`] checks that it is suitable. [`client`] sends requests for a [`user`], in the form of
//! [`messages`]. [`failure`] says why a request failed, and [`keys`] names the keys.

mod address;
mod breaking;
mod change;
mod client;
mod commit;
mod examining;
mod failure;
mod held;
mod keeping;
mod kept_places;
mod keys;
mod listing;
mod messages;
mod snapshot;
mod store;
mod transport;
mod user;
mod view;
mod waiting;

use std::path::PathBuf;
use std::sync::Arc;

pub use address::{EtcdAccess, is_etcd_url};
use change::EtcdContender;
use keys::Part;
use messages::Txn;
use snapshot::{EtcdSnapshot, is_of_waiter, until_not_compacted};
pub(crate) use store::Etcd;
use store::{CHANGE, DEFAULT_TTL, LEAST_TTL, LEAST_TTL_OF_RUN, MAX_SEGMENTS};
use view::View;

use crate::backend::{
    Ask, BackOff, Backend, ChangeWatch, Contender, Entry, JudgeOver, Limits, LockSnapshot as _,
    Patience, Plan, Updated,
};
use crate::decision::{Found, Judged, Key, Life, Moment, Snapshot as _, Ticket};
use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::name::LockName;
use crate::observer::HostFacts;
use crate::open_file::Handle;
use crate::record::{Format, Mode};
use crate::status::{KeptPlace, StoreFacts, Waiter};

/// How many records `remove_many` removes with one transaction: each needs two of its 128 comparisons.
const AT_ONCE: usize = 40;

impl Etcd {
    fn snapshot(&self, view: View) -> EtcdSnapshot<'_> {
        EtcdSnapshot::new(self.session(Patience::SHORT), view)
    }
}

impl Backend for Etcd {
    fn examine(&self) -> Vec<Finding> {
        self.examine_members()
    }

    fn host(&self) -> &Arc<HostFacts> {
        &self.host
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(self.url())
    }

    fn path_of_record(&self, key: &Key) -> PathBuf {
        let key = self.shared.keys.of(Part::Hold, key);
        let below = key.strip_prefix(&self.shared.client.address.prefix);
        PathBuf::from(format!("{}{}", self.url(), below.unwrap_or_default()))
    }

    fn format(&self) -> Format {
        Format::Native
    }

    fn limits(&self, _name: &LockName) -> &'static Limits {
        static LIMITS: Limits = Limits {
            exec: Some("--exec leaves no process that could keep the lease: leave it out"),
            follow: Some(
                "nothing would keep a hold for a process alive: pass --ttl for a lease, or use `run`",
            ),
            ttl: |asked, is_detached| {
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
            ..Limits::NONE
        };
        &LIMITS
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
            let snapshot = self.snapshot(View::unread());
            ask(&snapshot)?;
            Ok(snapshot.into_view())
        })?;
        *self.shared.seen() = Some(view);
        Ok(())
    }

    fn apply(&self, entry: Entry<'_>, plan: &mut Plan<'_, '_>) -> Result<Option<Updated>> {
        EtcdContender::new(self).apply(entry, plan)
    }

    fn contender(&self, _back_off: BackOff, _mode: Mode) -> Box<dyn Contender + '_> {
        Box::new(EtcdContender::new(self))
    }

    fn waiters(&self, of: &LockName) -> Result<Vec<Waiter>> {
        let seen = self.shared.seen().clone().unwrap_or_else(View::unread);
        Ok(self.snapshot(seen).waiters(of))
    }

    fn kept_places(&self, of: &LockName) -> Result<Vec<KeptPlace>> {
        self.session(Patience::SHORT).kept_places(of)
    }

    fn waiter(&self, ticket: &Ticket<Handle>) -> Option<Waiter> {
        self.snapshot(self.shared.seen().clone()?).waiter(ticket)
    }

    fn list(&self, each: &mut dyn FnMut(Moment, Found<Handle>)) -> Result<Vec<Error>> {
        let view = self.read_holds(each)?;
        let keys = &self.shared.keys;
        let is_no_hold = |part: Part| {
            let all = view.range(&keys.all(part)).map(|(key, _)| key);
            all.filter(move |key| keys.hold_of(part, key).is_none())
        };
        let no_locks = Part::BOTH.into_iter().flat_map(is_no_hold);
        let no_locks = view.no_text.iter().chain(no_locks);
        let error = |key: &String| {
            let reason = format!("`{key}` is not the name of a lock");
            self.error("read a key of", reason)
        };
        let errors = no_locks.map(error).collect();
        *self.shared.seen() = Some(view);
        Ok(errors)
    }

    /// Many records without a life key in one transaction. One that has changed keeps the others of it.
    fn remove_many(&self, judge_over: &mut JudgeOver<'_>) -> Result<Vec<Judged<Handle>>> {
        let mut over: Vec<Judged<Handle>> = Vec::new();
        let view = self.read_holds(&mut |now, found| {
            if matches!(found.facts.life, Some(Life::Gone { .. })) {
                over.extend(judge_over(now, found));
            }
        })?;
        let (keys, session) = (&self.shared.keys, self.session(Patience::SHORT));
        let mut removed = Vec::new();
        for some in over.chunks(AT_ONCE) {
            let mut txn = Txn::default();
            for judged in some {
                let [hold, life] = keys.of_hold(&judged.found.key);
                txn.delete_dead(&hold, &life, view.modified(&hold));
            }
            if session.txn(CHANGE, &txn)?.0.succeeded {
                removed.extend_from_slice(some);
            }
        }
        Ok(removed)
    }

    fn names_with_waiters(&self) -> Result<Vec<LockName>> {
        let keys = &self.shared.keys;
        let tickets = keys.all(Part::Wait);
        // As they were listed.
        let seen = self.shared.seen();
        let tickets = seen.iter().flat_map(|view| view.range(&tickets));
        let of_waiters = tickets.filter(|(_, found)| is_of_waiter(found));
        let names = of_waiters.filter_map(|(key, _)| keys.name_of_ticket(key));
        Ok(names.collect())
    }

    fn watch(&self) -> Option<Box<dyn ChangeWatch>> {
        Some(Box::new(listing::PrefixWatch::new(self.clone())))
    }

    fn facts(&self, key: &Key) -> Result<Option<StoreFacts>> {
        let client = &self.shared.client;
        let snapshot = self.snapshot(View::unread());
        let _ = snapshot.exclusive(&key.name)?;
        let _ = snapshot.shared(&key.name)?;
        let view = snapshot.into_view();
        let life = view.get(&self.shared.keys.of(Part::Life, key));
        let lease = life.map(|life| life.lease).filter(|lease| *lease != 0);
        let lease_left = lease.and_then(|lease| client.time_to_live(lease));
        Ok(Some(StoreFacts {
            member: client.endpoint().to_owned(),
            version: client.status().ok().map(|status| status.version),
            revision: view.revision,
            modified: view.modified(&self.shared.keys.of(Part::Hold, key)),
            lease_left,
        }))
    }

    fn give_back(&self, request: &[u8]) -> Result<bool> {
        let txn: serde_json::Value =
            serde_json::from_slice(request).map_err(|error| self.cannot_write(&error))?;
        let (answer, tried_before) = self.session(Patience::SHORT).txn(CHANGE, &txn)?;
        Ok(answer.succeeded || tried_before)
    }
}

#[cfg(test)]
mod model;
