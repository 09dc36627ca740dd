//! All locks of a store, and what only etcd tells about one.

use std::time::Duration;

use super::keys::Part;
use super::snapshot::{EtcdSnapshot, is_of_waiter, until_not_compacted};
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
        let snapshot = EtcdSnapshot::new(self.session(Patience::SHORT), View::unread());
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
        let (keys, session) = (&self.shared.keys, self.session(Patience::SHORT));
        let mut view = View::unread();
        for range in [
            keys.all(Part::Hold),
            keys.all(Part::Life),
            keys.all_tickets(),
        ] {
            while let Some(gap) = view.gap(&range) {
                session.read_page(&mut view, gap)?;
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
        let is_no_hold = |part: Part| {
            let all = view.range(&keys.all(part)).map(|(key, _)| key);
            all.filter(move |key| keys.hold_of(part, key).is_none())
        };
        let no_locks = Part::BOTH.into_iter().flat_map(is_no_hold);
        let no_locks = view.no_text().chain(no_locks);
        let errors = no_locks.map(|key| self.is_no_name(key)).collect();
        for key in view.holds(keys, Part::BOTH.map(|part| keys.all(part))) {
            if let Some(found) = self.found(&view, key, now) {
                each(now, found);
            }
        }
        *self.seen() = Some(view);
        Ok(errors)
    }

    fn is_no_name(&self, key: &str) -> Error {
        let reason = format!("`{key}` is not the name of a lock");
        self.error("read a key of", reason)
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
