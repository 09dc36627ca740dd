//! A store on etcd: how it is reached, and what this process knows of it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde::Serialize;

use super::address::{Address, EtcdAccess};
use super::client::{Answer, Client, SIGN_IN, TIMEOUT};
use super::failure::{Failure, NO_ANSWER, unreachable};
use super::keys::Keys;
use super::messages::{KeyValue, Read, ReadAnswer, TxnAnswer};
use super::view::View;
use crate::backend::{Deadline, Patience, sleep_for};
use crate::error::{Error, Fault, Result};
use crate::observer::HostFacts;
use crate::record::digest;
use crate::sys::wait::pause;
use crate::sys::{locked, random_u64};

/// The time to live of a `run`.
pub(super) const DEFAULT_TTL: Duration = Duration::from_secs(20);

/// The least time to live of a `run`: with 5 s, 4 of 30 changes of the leader cost a hold, with 8 s and more
/// none of 90.
pub(super) const LEAST_TTL_OF_RUN: Duration = Duration::from_secs(10);

/// The least one of a lease.
pub(super) const LEAST_TTL: Duration = Duration::from_secs(5);

/// The most parts of a name: each is compared when it is taken.
pub(super) const MAX_SEGMENTS: usize = 31;

/// How long to wait after all members were tried.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// How often a waiter looks whether its cluster has space again.
const SPACE_INTERVAL: Duration = Duration::from_secs(1);

pub(super) const READ: &str = "read locks in";
pub(super) const CHANGE: &str = "change a lock in";

/// A store on etcd.
#[derive(Clone, Debug)]
pub(crate) struct Etcd {
    pub(super) shared: Arc<Shared>,
    pub(crate) host: Arc<HostFacts>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) client: Client,
    pub(super) keys: Keys,
    /// The records that this process knows to be dead, by their keys.
    pub(super) gone: Mutex<HashMap<String, Gone>>,
    /// What was seen last, for a description of what was decided on it.
    seen: Mutex<Option<View>>,
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

impl Etcd {
    /// A store by its URL. Nothing is sent.
    pub(crate) fn new(url: &str, access: &EtcdAccess) -> Result<Self> {
        let address = Address::parse(url, access)?;
        let keys = Keys::new(&address.prefix);
        Ok(Self {
            shared: Arc::new(Shared {
                client: Client::new(address, access)?,
                keys,
                gone: Mutex::default(),
                seen: Mutex::default(),
            }),
            host: Arc::default(),
        })
    }

    pub(crate) fn url(&self) -> &str {
        &self.shared.client.address.url
    }

    pub(super) fn session<'a>(&'a self, patience: Patience<'a>) -> Session<'a> {
        Session {
            etcd: self,
            patience,
        }
    }

    pub(super) fn error(&self, operation: &'static str, reason: String) -> Error {
        let address = &self.shared.client.address;
        address.error(operation, reason, None)
    }

    pub(super) fn cannot_write(&self, error: &serde_json::Error) -> Error {
        self.error(CHANGE, error.to_string())
    }
}

/// The use of a store by a caller, and how patient that is with members that do not answer.
#[derive(Clone, Copy)]
pub(super) struct Session<'a> {
    pub(super) etcd: &'a Etcd,
    pub(super) patience: Patience<'a>,
}

impl<'a> Session<'a> {
    pub(super) fn keys(self) -> &'a Keys {
        &self.etcd.shared.keys
    }

    pub(super) fn client(self) -> &'a Client {
        &self.etcd.shared.client
    }

    /// Sends a request, to one member after the other, until its fate is known. A refusal is an error. The second
    /// value: an earlier try may have been applied.
    pub(super) fn until_known<T>(
        self,
        operation: &'static str,
        mut once: impl FnMut(&Client) -> Answer<T>,
    ) -> Result<(T, bool)> {
        let client = self.client();
        let patience = self.patience;
        let deadline = Deadline::of(patience);
        // Members that are there, but cannot do it, are asked for longer: sign-ins of others may keep them so busy that
        // they lose their leader.
        let is_patient = client.user.is_some() && patience.at_most >= Patience::SHORT.at_most;
        let longer = patience.for_at_most(patience.at_most.max(SIGN_IN));
        let while_busy = is_patient.then(|| Deadline::of(longer));
        let mut said: BTreeMap<String, Failure> = BTreeMap::new();
        let mut may_be_done = false;
        let mut tries = 0;
        loop {
            let first = client.endpoint().to_owned();
            let failure = match client.signed_in(patience, &mut once) {
                Ok(answer) => return Ok((answer, may_be_done)),
                Err(Failure::Refused(refused)) => {
                    let waits = refused.fault == Fault::NoSpace && patience.is_of_waiter;
                    if !waits || deadline.next_sleep(SPACE_INTERVAL).is_none() {
                        let has_user = client.user.is_some();
                        return Err(refused.error(operation, &client.address, has_user));
                    }
                    sleep_for(patience.for_at_most(SPACE_INTERVAL));
                    continue;
                }
                Err(failure) => failure,
            };
            may_be_done |= failure.is_busy() || failure.is_unanswered();
            // If it is not the one that has failed, it took no connection, and that one was asked in its place.
            said.insert(first, Failure::Unanswered(NO_ANSWER.to_owned()));
            said.insert(client.endpoint().to_owned(), failure);
            client.go_on();
            tries += 1;
            if tries % client.address.endpoints.len() != 0 {
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
                return Err(unreachable(operation, &client.address, &said));
            };
            let _ = pause(left);
        }
    }

    /// Its answer, and whether an earlier try may have been applied.
    pub(super) fn txn(
        self,
        operation: &'static str,
        txn: &impl Serialize,
    ) -> Result<(TxnAnswer, bool)> {
        self.until_known(operation, |client| client.txn_once(txn, TIMEOUT))
    }

    pub(super) fn read(self, read: &Read) -> Result<ReadAnswer> {
        let (answer, _) = self.until_known(READ, |client| client.read_once(read))?;
        Ok(answer)
    }

    pub(super) fn read_key(self, key: &str) -> Result<Option<KeyValue>> {
        Ok(self.read(&Read::one(key))?.kvs.into_iter().next())
    }
}

impl Shared {
    /// What was seen last.
    pub(super) fn seen(&self) -> MutexGuard<'_, Option<View>> {
        locked(&self.seen)
    }
}
