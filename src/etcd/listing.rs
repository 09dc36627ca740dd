//! All locks of a store, and what only etcd tells about one.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError, TrySendError};
use std::time::Duration;

use super::keys::Part;
use super::messages::Watch;
use super::snapshot::{EtcdSnapshot, until_not_compacted};
use super::store::Etcd;
use super::view::View;
use crate::backend::{ChangeWatch, Patience};
use crate::decision::{Found, Key, Moment, Snapshot as _};
use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::identity::Pid;
use crate::open_file::Handle;
use crate::status::StoreFacts;
use crate::sys::process::boottime_milliseconds;

/// Changes of all locks of a store.
#[derive(Debug)]
pub(super) struct PrefixWatch {
    etcd: Etcd,
    /// Says that something has changed, once for all that has. Its sender is gone when the watch has ended.
    news: Receiver<()>,
}

impl PrefixWatch {
    /// Begins a watch, which ends after a while.
    pub(super) fn new(etcd: Etcd) -> Self {
        let ranges = etcd.shared.keys.everything().map(Watch::changes);
        let (sender, news) = mpsc::sync_channel(1);
        etcd.shared.client.watch(&ranges, move |answer| {
            // The first answer says that it has begun; what happened before it has not been seen.
            let tells = answer.created || !answer.events.is_empty();
            !tells || sender.try_send(()) != Err(TrySendError::Disconnected(()))
        });
        Self { etcd, news }
    }
}

impl ChangeWatch for PrefixWatch {
    fn wait(&mut self, _processes: &[Pid], at_most: Duration) {
        match self.news.try_recv() {
            Ok(()) => return,
            Err(TryRecvError::Empty) => {}
            // The new one tells when it has begun, or that it cannot.
            Err(TryRecvError::Disconnected) => *self = Self::new(self.etcd.clone()),
        }
        if self.news.recv_timeout(at_most) == Err(RecvTimeoutError::Disconnected) {
            // A member that is gone must not be asked all the time.
            let _ = crate::sys::wait::pause(at_most.min(Duration::from_secs(1)));
        }
    }
}

impl Etcd {
    /// Facts about a hold.
    pub(super) fn facts_of(&self, key: &Key) -> Result<StoreFacts> {
        let client = &self.shared.client;
        let snapshot = EtcdSnapshot::new(self.session(Patience::SHORT), View::unread());
        let _ = snapshot.exclusive(&key.name)?;
        let _ = snapshot.shared(&key.name)?;
        let view = snapshot.into_view();
        let life = view.get(&self.shared.keys.of(Part::Life, key));
        let lease = life.map(|life| life.lease).filter(|lease| *lease != 0);
        let lease_left = lease.and_then(|lease| client.time_to_live(lease));
        Ok(StoreFacts {
            member: client.endpoint().to_owned(),
            version: client.status().ok().map(|status| status.version),
            revision: view.revision,
            modified: view.modified(&self.shared.keys.of(Part::Hold, key)),
            lease_left,
        })
    }

    /// What each member says, one after the other, and whether the prefix can be read.
    pub(super) fn examine_members(&self) -> Vec<Finding> {
        const OLDEST: (u64, u64) = (3, 4);
        let client = &self.shared.client;
        let members = &client.address.endpoints;
        let mut found = Vec::new();
        let mut answered = 0;
        for _ in members {
            let began = boottime_milliseconds();
            let endpoint = client.endpoint().to_owned();
            found.push(match client.status() {
                Ok(status) => {
                    answered += 1;
                    let took = boottime_milliseconds().saturating_sub(began);
                    let detail = format!("{endpoint}: etcd {}, {took} ms", status.version);
                    let mut parts = status.version.split('.').map(str::parse);
                    let version = (parts.next(), parts.next());
                    let is_old = matches!(version, (Some(Ok(major)), Some(Ok(minor)))
                        if (major, minor) < OLDEST);
                    if is_old {
                        Finding::failed("member", detail).advice("use etcd 3.4 or later")
                    } else if took > 500 {
                        let advice =
                            "leases are renewed by it: raise --ttl, or use a nearer member";
                        Finding::warning("member", detail).advice(advice)
                    } else {
                        Finding::ok("member", detail)
                    }
                }
                Err(failure) => {
                    let detail = format!("{endpoint}: {}", failure.message());
                    let advice = "a store needs more than half of its members";
                    Finding::warning("member", detail).advice(advice)
                }
            });
            client.go_on();
        }
        if answered == 0 {
            let advice = "check the URL, the certificates and the user: see onehold-etcd(7)";
            found.push(Finding::failed("cluster", "no member answers").advice(advice));
            return found;
        }
        found.push(match self.read_all() {
            Ok(_) => Finding::ok("prefix", self.url()),
            Err(error) => {
                let advice = "give the user the rights that onehold-etcd(7) names";
                Finding::failed("prefix", format!("cannot be read: {error}")).advice(advice)
            }
        });
        found
    }

    /// Everything of the store, by pages of one revision.
    fn read_all(&self) -> Result<View> {
        let (keys, session) = (&self.shared.keys, self.session(Patience::SHORT));
        let mut view = View::unread();
        for range in keys.everything() {
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
        let no_locks = view.no_text.iter().chain(no_locks);
        let error = |key: &String| {
            let reason = format!("`{key}` is not the name of a lock");
            self.error("read a key of", reason)
        };
        let errors = no_locks.map(error).collect();
        self.note_dead(&view, &keys.all(Part::Hold), now);
        for key in view.holds(keys, Part::BOTH.map(|part| keys.all(part))) {
            if let Some(found) = self.found(&view, key, now) {
                each(now, found);
            }
        }
        *self.shared.seen() = Some(view);
        Ok(errors)
    }
}
