//! A hold that this process is about to hand over.

use std::ops::Deref;
use std::time::Duration;

use super::hold::{Hold, renewed};
use super::holder::Holder;
use super::status;
use crate::decision::verdict::{Evidence, Reason, Verdict};
use crate::error::Result;
use crate::record::{Kind, Live};
use crate::status::Status;
use crate::sys::process;

/// A lock acquired for another process or as a lease, not in force yet: until
/// [`confirm`](Self::confirm) it is this process's, and dropping it releases it. Whoever would release,
/// renew, break, replace or repeat it waits until then, at most 5 s from when it was taken. Number, record and the
/// like are those of the [`Hold`] that it will be.
#[derive(Debug)]
#[must_use = "dropping it releases the lock"]
pub struct PendingHold {
    pub(super) taken: Hold,
    pub(super) holder: Holder,
}

impl Deref for PendingHold {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.taken
    }
}

impl PendingHold {
    /// What the hold follows.
    pub fn holder(&self) -> Holder {
        self.holder
    }

    /// The lock as it will be found once this is confirmed.
    pub fn status(&self) -> Status {
        let mut record = self.taken.held.record().clone();
        record.live = self.confirmed();
        let process = self.holder.process_id();
        let (reason, evidence) = match process {
            Some(_) => (Reason::Alive, Evidence::SameProcess),
            None => (Reason::Lease, Evidence::Clock),
        };
        let mut verdict = Verdict::new(reason, evidence);
        verdict.pid = process.map(|process| process.pid);
        verdict.pid_alive = process.map(|_| true);
        verdict.age = Some(Duration::ZERO);
        verdict.expires_at = record.live.expires_at;
        let Hold { store, name, .. } = &self.taken;
        Status {
            record: Some(record),
            uid: process::own_uid().filter(|_| !store.is_remote()),
            slot: self.taken.held.slots().first().copied(),
            waiters: store.waiters(name).unwrap_or_default(),
            ..status::with_verdict(&**store, name, self.path().to_owned(), verdict)
        }
    }

    /// The changing part of the record once the hold is in force. Its time begins now, however long
    /// the number took to get out.
    fn confirmed(&self) -> Live {
        let record = self.taken.held.record();
        let mut live = if self.holder == Holder::Lease || record.ttl_ms.is_some() {
            renewed(&*self.taken.store, record, None)
        } else {
            record.live.clone()
        };
        live.set_process(self.holder.process_id());
        live
    }

    /// Hands the hold over to its holder, by one write. To be called once its number is where it is
    /// needed: if this process dies before, nothing is held. A lease is on disk when this returns.
    ///
    /// # Errors
    /// The lock file cannot be written, or the lock was lost meanwhile; then nothing is held.
    pub fn confirm(mut self) -> Result<u64> {
        let live = self.confirmed();
        let taken = &mut self.taken;
        // Before the write: after it, whoever has read the number may release the hold at once.
        taken.ensure_in_place()?;
        taken.held.write_live(live)?;
        if taken.held.record().kind == Kind::Lease {
            taken.held.make_durable()?;
        }
        taken.is_over = true;
        Ok(taken.held.record().hold)
    }
}
