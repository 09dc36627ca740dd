//! All locks of a store, and what only etcd tells about one.

use std::collections::BTreeMap;
use std::time::Duration;

use super::keys::Part;
use super::messages::Read;
use super::snapshot::{EtcdSnapshot, is_of_waiter, is_too_large, until_not_compacted};
use super::store::Etcd;
use super::view::View;
use crate::backend::Patience;
use crate::decision::{Found, Key, Moment, Snapshot as _};
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::open_file::Handle;
use crate::status::StoreFacts;

impl Etcd {
    /// Facts about a hold.
    pub(super) fn facts_of(&self, key: &Key) -> Result<StoreFacts> {
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

    /// Everything of the store, by pages of one revision.
    fn read_all(&self) -> Result<View> {
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
                match view.add(&read, page.kvs, more) {
                    Some(end) => from = end,
                    // Beyond what is no text.
                    None => limit = limit.saturating_mul(2),
                }
                if !more {
                    break;
                }
            }
        }
        Ok(view)
    }

    /// Every lock of the store, not judged yet. Returns what is not a lock.
    pub(super) fn read_locks(
        &self,
        each: &mut dyn FnMut(Moment, Found<Handle>),
    ) -> Result<Vec<Error>> {
        let view = until_not_compacted(|| self.read_all())?;
        let keys = &self.shared.keys;
        let now = crate::observer::now();
        let mut errors: Vec<Error> = view.no_text().map(|key| self.is_no_name(key)).collect();
        let mut known = BTreeMap::new();
        for part in [Part::Hold, Part::Life] {
            for (text, _) in view.range(&keys.all(part)) {
                match keys.hold_of(part, text) {
                    Some(key) => {
                        known.insert((key.name.as_str().to_owned(), key.index), key);
                    }
                    None => errors.push(self.is_no_name(text)),
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

    fn is_no_name(&self, key: &str) -> Error {
        Error::Remote {
            operation: "read a key of",
            store: self.url().to_owned(),
            reason: format!("`{key}` is not the name of a lock"),
            remedy: None,
        }
    }

    /// The names that have live waiters, as they were listed.
    pub(super) fn names_that_are_waited_for(&self) -> Vec<LockName> {
        let keys = &self.shared.keys;
        let tickets = keys.all_tickets();
        let seen = self.seen();
        let mut names: Vec<LockName> = seen
            .iter()
            .flat_map(|view| view.range(&tickets))
            .filter(|(_, found)| is_of_waiter(found))
            .filter_map(|(key, _)| keys.name_of_ticket(key))
            .collect();
        names.sort_by(|one, other| one.as_str().cmp(other.as_str()));
        names.dedup();
        names
    }
}
