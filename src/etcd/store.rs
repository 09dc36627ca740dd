//! A store on etcd: how it is reached, and what this process knows of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::address::{Address, EtcdAccess};
use super::client::Client;
use super::keys::Keys;
use super::view::View;
use crate::error::Result;
use crate::observer::HostFacts;

/// The time to live of a `run`.
pub(crate) const DEFAULT_TTL: Duration = Duration::from_secs(20);

/// The least time to live of a `run`: with 5 s, 4 of 30 changes of the leader cost a hold, with 8 s and more
/// none of 90.
pub(crate) const LEAST_TTL_OF_RUN: Duration = Duration::from_secs(10);

/// The least one of a lease.
pub(crate) const LEAST_TTL: Duration = Duration::from_secs(5);

/// The most parts of a name: each is compared when it is taken.
pub(crate) const MAX_SEGMENTS: usize = 31;

/// A store on etcd.
#[derive(Clone, Debug)]
pub(crate) struct Etcd {
    pub(super) shared: Arc<Shared>,
    pub(crate) host: Arc<HostFacts>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) client: Arc<Client>,
    pub(super) keys: Keys,
    /// Since when this process has known a record, as it stands, to be dead, by the boot-time clock.
    pub(super) gone: Mutex<HashMap<(String, i64), u64>>,
    /// What was seen last, for a description of what was decided on it.
    seen: Mutex<Option<View>>,
}

impl Etcd {
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
        })
    }

    pub(crate) fn url(&self) -> &str {
        &self.shared.client.address().url
    }

    /// What was seen last.
    pub(super) fn seen(&self) -> MutexGuard<'_, Option<View>> {
        self.shared.seen()
    }
}

impl Shared {
    pub(super) fn seen(&self) -> MutexGuard<'_, Option<View>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
