//! Locks as keys in a store of many machines.
//!
//! A hold is a record without a lease, and a life key on a lease that its keeper keeps alive. Everything is
//! decided on a view of the store as of one revision, and done by one transaction that is refused if
//! what it was decided on has changed. A take begins with the guess that there is nothing, so that a free lock
//! takes three requests: a lease, the take, and the release.
//!
//! [`snapshot`] answers decisions from a [`view`]. [`change`] makes the change that was decided on, by [`commit`] or
//! [`breaking`]. [`held`] is a hold, and [`keeping`] keeps it. [`waiting`] is the queue, and [`asking`] asks for a
//! waiter. [`listing`] reads all of a [`store`]. [`keys`] names the keys, and [`lease`] is what keeps some of them.
//! [`epoch`] says whether the server may have lost what it had confirmed.
//!
//! All of that speaks [`txn`] with an [`engine`]. The engines are `postgres` and `etcd`; `address` and `certificates`
//! are what both need.

#[cfg(any(feature = "etcd", feature = "postgres"))]
mod address;
mod asking;
mod breaking;
#[cfg(any(feature = "etcd", feature = "postgres"))]
mod certificates;
mod change;
mod commit;
mod engine;
mod epoch;
#[cfg(feature = "etcd")]
mod etcd;
mod held;
mod history;
mod keeping;
mod kept_places;
mod keys;
mod lease;
mod listing;
#[cfg(feature = "postgres")]
mod postgres;
mod snapshot;
mod store;
mod txn;
mod view;
mod waiting;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use change::ClusterContender;
#[cfg(feature = "etcd")]
pub use etcd::{EtcdAccess, is_etcd_url};
use keys::Part;
#[cfg(feature = "postgres")]
pub use postgres::{PostgresAccess, is_postgres_url};
use snapshot::{ViewSnapshot, is_of_waiter, until_not_compacted};
pub(crate) use store::Cluster;
use store::{CHANGE, DEFAULT_TTL, LEAST_TTL, LEAST_TTL_OF_RUN, MAX_SEGMENTS};
use txn::Txn;
use view::View;

use crate::backend::{
    Ask, Asked, BackOff, Backend, ChangeWatch, Contender, Entry, JudgeOver, LockSnapshot as _,
    Patience, Plan, Ttl, Updated, WhyNot,
};
use crate::decision::{Key, Life, Moment};
use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::journal_line::Line;
use crate::name::LockName;
use crate::observer::HostFacts;
use crate::open_file::{Found, Judged, Ticket};
use crate::record::{Format, Mode};
use crate::status::{KeptPlace, StoreFacts, Waiter};
use crate::sys::locked;

/// How many records `remove_many` removes with one transaction: each needs two of its 128 comparisons.
const AT_ONCE: usize = 40;

/// The same if they leave lines: of 128 operations, each has its own, two for lines, and two that delete older ones.
const AT_ONCE_WITH_LINES: usize = 25;

impl Cluster {
    /// A store on PostgreSQL, by its URL. Nothing is sent.
    #[cfg(feature = "postgres")]
    pub(crate) fn on_postgres(url: &str, access: &PostgresAccess) -> Result<Self> {
        Ok(Self::by(postgres::at(url, access)?))
    }

    /// A store on etcd, by its URL. Nothing is sent.
    #[cfg(feature = "etcd")]
    pub(crate) fn on_etcd(url: &str, access: &EtcdAccess) -> Result<Self> {
        Ok(Self::by(etcd::at(url, access)?))
    }

    fn snapshot(&self, view: View) -> ViewSnapshot<'_> {
        ViewSnapshot::new(self.session(Patience::SHORT), view)
    }
}

impl Backend for Cluster {
    fn create(&self) -> Vec<Finding> {
        self.engine.create()
    }

    fn on_silence(&self, tell: fn(&str, Duration)) {
        *locked(&self.tell_silence) = Some(tell);
    }

    fn accept_epoch(&self) -> Finding {
        match self.session(Patience::SHORT).accept_epoch() {
            Ok(true) => Finding::ok("epoch", "accepted: locks are taken again"),
            Ok(false) => Finding::ok("epoch", "it has not changed"),
            Err(error) => Finding::failed("epoch", error.to_string()),
        }
    }

    fn examine(&self) -> Vec<Finding> {
        let (mut found, is_there) = self.engine.examine();
        let pause_left = || self.session(Patience::SHORT).pause_left();
        if is_there && let Ok(Some(left)) = pause_left() {
            found.push(Finding::warning("epoch", self.paused(left).to_string()));
        }
        if is_there {
            found.push(match self.read_all() {
                Ok(_) => Finding::ok("prefix", self.url()),
                Err(error) => {
                    let page = format!("onehold-{}(7)", self.engine.name());
                    let advice = format!("give the user the rights that {page} names");
                    Finding::failed("prefix", format!("cannot be read: {error}")).advice(&advice)
                }
            });
        }
        found
    }

    fn host(&self) -> &Arc<HostFacts> {
        &self.host
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(self.url())
    }

    fn path_of_record(&self, key: &Key) -> PathBuf {
        let key = self.keys.of(Part::Hold, key);
        let below = key.strip_prefix(self.engine.prefix());
        PathBuf::from(format!("{}{}", self.url(), below.unwrap_or_default()))
    }

    fn format(&self) -> Format {
        Format::Native
    }

    fn why_not(&self, _name: &LockName, asked: Asked) -> WhyNot {
        match asked {
            Asked::Exec => Some("--exec leaves no process that could keep the lease: leave it out"),
            Asked::Follow => Some(
                "nothing would keep a hold for a process alive: pass --ttl for a lease, or use `run`",
            ),
            _ => None,
        }
    }

    fn ttl(&self, asked: Option<Duration>, is_detached: bool) -> Ttl {
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
    }

    fn unsupported(&self, what: &'static str) -> Error {
        self.engine.unsupported(what)
    }

    fn locate(self: Arc<Self>, name: LockName) -> Result<(Arc<dyn Backend>, LockName)> {
        let what = if name.is_path() {
            "a path is a file of this machine: use a name"
        } else if name.as_str().split('/').count() > MAX_SEGMENTS {
            "a name has at most 31 parts"
        } else {
            return Ok((self, name));
        };
        Err(self.engine.unsupported(what))
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
        *self.seen() = Some(view);
        Ok(())
    }

    fn apply(&self, entry: Entry<'_>, plan: &mut Plan<'_, '_>) -> Result<Option<Updated>> {
        ClusterContender::new(self).apply(entry, plan)
    }

    fn contender(&self, _back_off: BackOff, _mode: Mode) -> Box<dyn Contender + '_> {
        Box::new(ClusterContender::new(self))
    }

    fn waiters(&self, of: &LockName) -> Result<Vec<Waiter>> {
        let seen = self.seen().clone().unwrap_or_else(View::unread);
        Ok(self.snapshot(seen).waiters(of))
    }

    fn kept_places(&self, of: &LockName) -> Result<Vec<KeptPlace>> {
        self.session(Patience::SHORT).kept_places(of)
    }

    fn waiter(&self, ticket: &Ticket) -> Option<Waiter> {
        self.snapshot(self.seen().clone()?).waiter(ticket)
    }

    fn list(&self, each: &mut dyn FnMut(Moment, Found)) -> Result<Vec<Error>> {
        let view = self.read_holds(each)?;
        let keys = &self.keys;
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
        *self.seen() = Some(view);
        Ok(errors)
    }

    /// Many records without a life key in one transaction. One that has changed keeps the others of it.
    fn remove_many(&self, judge_over: &mut JudgeOver<'_>) -> Result<Vec<Judged>> {
        let mut over: Vec<(Judged, Vec<Line>)> = Vec::new();
        let view = self.read_holds(&mut |now, found| {
            if matches!(found.facts.life, Some(Life::Gone { .. })) {
                over.extend(judge_over(now, found));
            }
        })?;
        let (keys, session) = (&self.keys, self.session(Patience::SHORT));
        let all: Vec<Line> = over.iter().flat_map(|(_, lines)| lines.clone()).collect();
        let mut known = session.known_lines(&all);
        let at_once = if all.is_empty() {
            AT_ONCE
        } else {
            AT_ONCE_WITH_LINES
        };
        let mut noted = HashSet::new();
        let mut removed = Vec::new();
        for some in over.chunks(at_once) {
            let mut txn = Txn::default();
            for (judged, _) in some {
                let [hold, life] = keys.of_hold(&judged.found.key);
                txn.delete_dead(&hold, &life, view.modified(&hold));
            }
            // A hold of several locks is here once for each.
            let mut is_new = |judged: &Judged| {
                let hold = judged.hold();
                hold.is_none_or(|hold| noted.insert(hold))
            };
            let new = some.iter().filter(|(judged, _)| is_new(judged));
            let lines: Vec<Line> = new.flat_map(|(_, lines)| lines.clone()).collect();
            session.add_lines(&mut txn, &mut known, &lines, 0);
            if session.txn(CHANGE, &txn)?.0.succeeded {
                removed.extend(some.iter().map(|(judged, _)| judged.clone()));
            }
        }
        Ok(removed)
    }

    fn names_with_waiters(&self) -> Result<Vec<LockName>> {
        let keys = &self.keys;
        let tickets = keys.all(Part::Wait);
        // As they were listed.
        let seen = self.seen();
        let tickets = seen.iter().flat_map(|view| view.range(&tickets));
        let of_waiters = tickets.filter(|(_, found)| is_of_waiter(found));
        let names = of_waiters.filter_map(|(key, _)| keys.name_of_ticket(key));
        Ok(names.collect())
    }

    fn bystander(&self, _back_off: BackOff) -> Box<dyn Contender + '_> {
        let mut bystander = ClusterContender::new(self);
        bystander.news = Some(listing::PrefixWatch::new(self.clone()));
        Box::new(bystander)
    }

    fn watch(&self) -> Option<Box<dyn ChangeWatch>> {
        Some(Box::new(listing::PrefixWatch::new(self.clone())))
    }

    fn facts(&self, key: &Key) -> Result<Option<StoreFacts>> {
        let engine = &*self.engine;
        let snapshot = self.snapshot(View::unread());
        let _ = snapshot.holds_of(&key.name)?;
        let view = snapshot.into_view();
        let life = view.get(&self.keys.of(Part::Life, key));
        let lease = life.map(|life| life.lease).filter(|lease| *lease != 0);
        let session = self.session(Patience::SHORT);
        let lease_left = lease.and_then(|lease| session.time_left(lease));
        let version = engine.signed_in(Patience::SHORT, || engine.version());
        Ok(Some(StoreFacts {
            member: engine.member().to_owned(),
            version: version
                .ok()
                .map(|version| format!("{} {version}", engine.title())),
            revision: view.revision,
            modified: view.modified(&self.keys.of(Part::Hold, key)),
            lease_left,
        }))
    }

    fn release_for_keeper(&self, request: &[u8], lines: &[Line]) -> Result<bool> {
        let (mut release, mut clean): (Txn, Txn) =
            serde_json::from_slice(request).map_err(|error| self.cannot_write(&error))?;
        let session = self.session(Patience::SHORT);
        session.add_lines(&mut release, &mut session.known_lines(lines), lines, 0);
        let (answer, tried_before) = session.txn(CHANGE, &release)?;
        if answer.succeeded || tried_before {
            return Ok(true);
        }
        // Its lease may have ended, and its record be there.
        session.add_lines(&mut clean, &mut session.known_lines(lines), lines, 0);
        Ok(session.txn(CHANGE, &clean)?.0.succeeded)
    }

    fn keeps_journal(&self) -> bool {
        true
    }

    fn journal(&self, of: Option<&LockName>) -> Result<Vec<Vec<u8>>> {
        until_not_compacted(|| self.session(Patience::SHORT).lines(of))
    }
}

#[cfg(all(test, target_os = "linux", feature = "etcd", feature = "postgres"))]
mod differential;
#[cfg(all(test, feature = "etcd"))]
mod model;
