//! A store, what this process knows of it, and how requests are sent until their fate is known.

use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::engine::{Answer, Engine, Failure, Kind, NO_ANSWER, TIMEOUT};
use super::keys::Keys;
use super::lease::Granted;
use super::txn::{Epoch, KeyValue, Read, ReadAnswer, Txn, TxnAnswer};
use super::view::View;
use crate::backend::{Deadline, Patience, sleep_for};
use crate::error::{Error, Fault, Result};
use crate::observer::HostFacts;
use crate::record::digest;
use crate::sys::wait::pause;
use crate::sys::{locked, random_u64};

/// The time to live of a `run`.
pub(super) const DEFAULT_TTL: Duration = Duration::from_secs(20);

/// The least time to live of a `run`: on etcd, with 5 s, 4 of 30 changes of the leader cost a hold, with 8 s and
/// more none of 90.
pub(super) const LEAST_TTL_OF_RUN: Duration = Duration::from_secs(10);

/// The least one of a lease.
pub(super) const LEAST_TTL: Duration = Duration::from_secs(5);

/// The most parts of a name: each is compared when it is taken.
pub(super) const MAX_SEGMENTS: usize = 31;

/// How long to wait after all members were tried.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// From when on silence looks as if the program hung.
const LONG: Duration = Duration::from_secs(1);

/// How often a waiter looks whether its store has space again.
const SPACE_INTERVAL: Duration = Duration::from_secs(1);

pub(super) const READ: &str = "read locks in";
pub(super) const CHANGE: &str = "change a lock in";

/// Told what each member says, and for how long they are tried.
type TellSilence = fn(&str, Duration);

/// A store of many machines.
#[derive(Clone, Debug)]
pub(crate) struct Cluster(Arc<Shared>);

#[derive(Debug)]
pub(crate) struct Shared {
    pub(super) engine: Box<dyn Engine>,
    pub(super) keys: Keys,
    pub(super) host: Arc<HostFacts>,
    /// The records that this process knows to be dead, by their keys.
    pub(super) gone: Mutex<HashMap<String, Gone>>,
    /// Since when this process knows of tickets from other machines, by their keys and the boot-time clock.
    pub(super) elsewhere: Mutex<HashMap<String, u64>>,
    pub(super) epoch: Mutex<Option<KnownEpoch>>,
    /// The latest revision that a transaction has seen.
    revision: AtomicI64,
    /// A later transaction has seen an earlier one: the server has lost some.
    pub(super) has_lost: AtomicBool,
    /// What was seen last, for a description of what was decided on it.
    seen: Mutex<Option<View>>,
    /// Until it was told.
    pub(super) tell_silence: Mutex<Option<TellSilence>>,
}

impl Deref for Cluster {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

/// The epoch that this process has seen last.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownEpoch {
    pub(super) now: Epoch,
    /// The one on record is to be replaced that was written at this revision; 0: there is none.
    pub(super) replaces: Option<i64>,
}

/// A record without a life key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gone {
    pub(super) record: Written,
    /// Since when this process has known it to be dead, by the boot-time clock.
    pub(super) since_ms: u64,
}

/// What was written to a key at one time. The revision alone can be that of another record, if the store was restored
/// from a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Written {
    revision: i64,
    digest: u64,
}

impl Written {
    pub(super) fn of(found: &KeyValue) -> Self {
        Self {
            revision: found.mod_revision,
            digest: digest(&found.value),
        }
    }
}

impl Cluster {
    /// A store that is kept by an engine.
    pub(super) fn by(engine: Box<dyn Engine>) -> Self {
        Self(Arc::new(Shared {
            keys: Keys::new(engine.prefix()),
            engine,
            host: Arc::default(),
            gone: Mutex::default(),
            elsewhere: Mutex::default(),
            epoch: Mutex::default(),
            revision: AtomicI64::default(),
            has_lost: AtomicBool::default(),
            seen: Mutex::default(),
            tell_silence: Mutex::default(),
        }))
    }

    /// For a request that takes back what others would otherwise see until a lease expires. It is tried for a few
    /// seconds, without a message.
    pub(super) fn to_take_back(&self) -> Session<'_> {
        const AT_MOST: Duration = Duration::from_secs(3);
        self.session(Patience {
            is_of_waiter: true,
            ..Patience::of(AT_MOST)
        })
    }

    /// Ends a lease and deletes its keys. Tries again if the server cannot do it at once. Returns whether a member has
    /// answered.
    pub(super) fn end_lease(&self, lease: i64) -> bool {
        let ended = self
            .to_take_back()
            .until_known(CHANGE, |engine| engine.revoke(lease));
        !ended.is_err_and(|error| has_fault(&error, Fault::Final))
    }

    pub(super) fn session<'a>(&'a self, patience: Patience<'a>) -> Session<'a> {
        Session {
            cluster: self,
            patience,
        }
    }
}

impl Shared {
    pub(crate) fn url(&self) -> &str {
        self.engine.url()
    }

    /// What was seen last.
    pub(super) fn seen(&self) -> MutexGuard<'_, Option<View>> {
        locked(&self.seen)
    }

    pub(super) fn error(&self, operation: &'static str, reason: String) -> Error {
        self.engine.error(operation, reason, None, Fault::Final)
    }

    pub(super) fn cannot_write(&self, error: &serde_json::Error) -> Error {
        self.error(CHANGE, error.to_string())
    }
}

/// The use of a store by a caller, and how patient that is with members that do not answer.
#[derive(Clone, Copy)]
pub(super) struct Session<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) patience: Patience<'a>,
}

impl<'a> Session<'a> {
    pub(super) fn engine(self) -> &'a dyn Engine {
        &*self.cluster.engine
    }

    /// Sends a request, to one member after the other, until its fate is known. A refusal is an error. The second
    /// value: an earlier try may have been applied.
    pub(super) fn until_known<T>(
        self,
        operation: &'static str,
        mut once: impl FnMut(&dyn Engine) -> Answer<T>,
    ) -> Result<(T, bool)> {
        let (engine, patience) = (self.engine(), self.patience);
        let deadline = Deadline::of(patience);
        // Members that are there, but cannot do it, may be asked for longer.
        let longer = engine.limits().while_busy;
        let longer = longer.filter(|_| patience.at_most >= Patience::SHORT.at_most);
        let longer = longer.map(|longer| patience.for_at_most(patience.at_most.max(longer)));
        let while_busy = longer.map(Deadline::of);
        let mut said: BTreeMap<String, Failure> = BTreeMap::new();
        let mut may_be_done = false;
        let mut tries = 0;
        let began = Instant::now();
        loop {
            let first = engine.member().to_owned();
            let failure = match engine.signed_in(patience, || once(engine)) {
                Ok(answer) => return Ok((answer, may_be_done)),
                Err(failure) => failure,
            };
            if let Kind::Refused(fault) = failure.kind {
                let waits = fault == Fault::NoSpace && patience.is_of_waiter;
                if !waits || deadline.next_sleep(SPACE_INTERVAL).is_none() {
                    let remedy = engine.remedy(&[&failure]);
                    return Err(engine.error(operation, failure.message, remedy, fault));
                }
                sleep_for(patience.for_at_most(SPACE_INTERVAL));
                continue;
            }
            may_be_done |= failure.is_busy() || failure.is_unanswered();
            // If it is not the one that has failed, it took no connection, and that one was asked in its place.
            said.insert(first, Failure::new(Kind::Unanswered, NO_ANSWER));
            said.insert(engine.member().to_owned(), failure);
            engine.go_on();
            tries += 1;
            if tries % engine.members() != 0 {
                continue;
            }
            let is_hopeless = said.values().all(Failure::is_final);
            let is_busy = said.values().any(Failure::is_busy);
            let left = match &while_busy {
                // Not all of their callers at once.
                Some(deadline) if is_busy => {
                    let longer = Duration::from_millis(random_u64() % 500);
                    deadline.next_sleep(RETRY_INTERVAL + longer)
                }
                _ => deadline.next_sleep(RETRY_INTERVAL),
            };
            let Some(left) = left.filter(|_| !is_hopeless) else {
                let failures: Vec<&Failure> = said.values().collect();
                let remedy = engine.remedy(&failures);
                return Err(engine.error(operation, all_of(&said), remedy, Fault::Final));
            };
            if began.elapsed() >= LONG && !patience.is_of_waiter {
                let tell = locked(&self.cluster.tell_silence).take();
                let at_most = longer.filter(|_| is_busy).unwrap_or(patience).at_most;
                tell.inspect(|tell| tell(&all_of(&said), at_most));
            }
            let _ = pause(left);
        }
    }

    /// Its answer, and whether an earlier try may have been applied. If it is refused as it is, it is sent without
    /// lines for the journal, which may be what is refused.
    pub(super) fn txn(self, operation: &'static str, txn: &Txn) -> Result<(TxnAnswer, bool)> {
        let revision = &self.cluster.revision;
        let before = revision.load(Ordering::Relaxed);
        let once = |engine: &dyn Engine| match engine.txn(txn, TIMEOUT) {
            Err(failure) if failure.kind == Kind::Refused(Fault::Final) => {
                let without = self.without_lines(txn).ok_or(failure)?;
                engine.txn(&without, TIMEOUT)
            }
            answer => answer,
        };
        let (answer, tried_before) = self.until_known(operation, once)?;
        if answer.revision < before {
            self.cluster.has_lost.store(true, Ordering::Relaxed);
            revision.store(answer.revision, Ordering::Relaxed);
        } else {
            revision.fetch_max(answer.revision, Ordering::Relaxed);
        }
        Ok((answer, tried_before))
    }

    pub(super) fn read(self, read: &Read) -> Result<ReadAnswer> {
        let (answer, _) = self.until_known(READ, |engine| engine.read(read))?;
        Ok(answer)
    }

    pub(super) fn read_key(self, key: &str) -> Result<Option<KeyValue>> {
        Ok(self.read(&Read::one(key))?.kvs.into_iter().next())
    }

    pub(super) fn grant(self, operation: &'static str, seconds: i64) -> Result<Granted> {
        let once = |engine: &dyn Engine| Granted::new(engine, seconds);
        Ok(self.until_known(operation, once)?.0)
    }

    /// How much is left of a lease. `None`: nothing, or that is not known.
    pub(super) fn time_left(self, lease: i64) -> Option<Duration> {
        let engine = self.engine();
        let left = engine.signed_in(Patience::SHORT, || engine.time_left(lease));
        left.ok().flatten()
    }
}

/// What each member has said.
fn all_of(said: &BTreeMap<String, Failure>) -> String {
    let said = said
        .iter()
        .map(|(of, said)| format!("{of}: {}", said.message));
    said.collect::<Vec<_>>().join("; ")
}

/// Whether an error means this to the store.
pub(super) fn has_fault(error: &Error, asked: Fault) -> bool {
    matches!(error, Error::Remote { fault, .. } if *fault == asked)
}
