//! All locks of a store, and what only etcd tells about one.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError, TrySendError};
use std::time::Duration;

use super::keys::Part;
use super::messages::{Txn, Watch};
use super::snapshot::{EtcdSnapshot, until_not_compacted};
use super::store::{CHANGE, Etcd};
use super::view::View;
use crate::backend::{ChangeWatch, JudgeOver, Patience};
use crate::decision::{Found, Judged, Key, Life, Moment, Snapshot as _};
use crate::error::{Error, Result};
use crate::identity::Pid;
use crate::open_file::Handle;
use crate::status::StoreFacts;

/// How many records one transaction removes: each needs two of its 128 comparisons.
const AT_ONCE: usize = 40;

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
            let tells = answer.is_some_and(|said| said.created || !said.events.is_empty());
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

    /// Everything of the store, by pages of one revision.
    pub(super) fn read_all(&self) -> Result<View> {
        let (keys, session) = (&self.shared.keys, self.session(Patience::SHORT));
        let mut view = View::unread();
        for range in keys.everything() {
            while let Some(gap) = view.gap(&range) {
                session.read_page(&mut view, gap)?;
            }
        }
        Ok(view)
    }

    /// Every hold of the store. Returns the view that shows them.
    fn read_holds(&self, each: &mut dyn FnMut(Moment, Found<Handle>)) -> Result<View> {
        let view = until_not_compacted(|| self.read_all())?;
        let (keys, now) = (&self.shared.keys, crate::observer::now());
        self.note_dead(&view, &keys.all(Part::Hold), now);
        for key in view.holds(keys, Part::BOTH.map(|part| keys.all(part))) {
            if let Some(found) = self.found(&view, key, now) {
                each(now, found);
            }
        }
        Ok(view)
    }

    /// Every lock of the store, not judged yet. Returns what is not a lock.
    pub(super) fn read_locks(
        &self,
        each: &mut dyn FnMut(Moment, Found<Handle>),
    ) -> Result<Vec<Error>> {
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

    /// Removes the records without a life key that are over, many in one transaction. One that has changed keeps the
    /// others of its transaction.
    pub(super) fn remove_dead(
        &self,
        judge_over: &mut JudgeOver<'_>,
    ) -> Result<Vec<Judged<Handle>>> {
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
}
