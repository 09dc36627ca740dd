//! All locks of a store, and what tells that they have changed.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError, TrySendError};
use std::time::Duration;

use super::keys::Part;
use super::snapshot::until_not_compacted;
use super::store::Cluster;
use super::txn::{Watch, WatchAnswer};
use super::view::View;
use crate::backend::{ChangeWatch, Patience};
use crate::decision::Moment;
use crate::error::Result;
use crate::identity::Pid;
use crate::open_file::Found;

/// Changes of all locks of a store.
#[derive(Debug)]
pub(super) struct PrefixWatch {
    cluster: Cluster,
    /// Says that something has changed, once for all that has. Its sender is gone when the watch has ended.
    news: Receiver<()>,
}

impl PrefixWatch {
    /// Begins a watch, which ends after a while.
    pub(super) fn new(cluster: Cluster) -> Self {
        let ranges = cluster.keys.everything().map(Watch::Changes);
        let (sender, news) = mpsc::sync_channel(1);
        let told = move |answer: Option<WatchAnswer>| {
            // The first answer says that it has begun; what happened before it has not been seen.
            let tells = answer.is_some_and(|said| said.has_begun || !said.events.is_empty());
            !tells || sender.try_send(()) != Err(TrySendError::Disconnected(()))
        };
        cluster.engine.watch(&ranges, Box::new(told));
        Self { cluster, news }
    }
}

impl PrefixWatch {
    /// Waits until something may have changed, for at most so long. Whether it may.
    pub(super) fn has_news(&mut self, at_most: Duration) -> bool {
        match self.news.try_recv() {
            Ok(()) => return true,
            Err(TryRecvError::Empty) => {}
            // The new one tells when it has begun, or that it cannot.
            Err(TryRecvError::Disconnected) => *self = Self::new(self.cluster.clone()),
        }
        let told = self.news.recv_timeout(at_most);
        if told == Err(RecvTimeoutError::Disconnected) {
            // A member that is gone must not be asked all the time.
            let _ = crate::sys::wait::pause(at_most.min(Duration::from_secs(1)));
        }
        told != Err(RecvTimeoutError::Timeout)
    }
}

impl ChangeWatch for PrefixWatch {
    fn wait(&mut self, _processes: &[Pid], at_most: Duration) {
        self.has_news(at_most);
    }
}

impl Cluster {
    /// Everything of the store, by pages of one revision.
    pub(super) fn read_all(&self) -> Result<View> {
        let (keys, session) = (&self.keys, self.session(Patience::SHORT));
        let mut view = View::unread();
        for range in keys.everything() {
            while let Some(gap) = view.gap(&range) {
                session.read_page(&mut view, gap)?;
            }
        }
        Ok(view)
    }

    /// Every hold of the store. Returns the view that shows them.
    pub(super) fn read_holds(&self, each: &mut dyn FnMut(Moment, Found)) -> Result<View> {
        let view = until_not_compacted(|| self.read_all())?;
        let (keys, now) = (&self.keys, crate::observer::now());
        self.note_dead(&view, &keys.all(Part::Hold), now);
        for key in view.holds(keys, Part::BOTH.map(|part| keys.all(part))) {
            if let Some(found) = self.found(&view, key, now) {
                each(now, found);
            }
        }
        Ok(view)
    }
}
