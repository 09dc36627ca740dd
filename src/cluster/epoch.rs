//! Whether the server may have lost what it had confirmed.
//!
//! A server can come back with less: from a backup, or after a failover to a replica that lagged. A store has the epoch
//! of its server in a key, and each take compares it. After a change there is a pause: another key, on a lease as long as
//! the longest TTL of a run, and nothing is taken until that has ended. By then a holder whose record was lost has written
//! it again, or has ended its work.

use std::time::Duration;

use super::commit::{TAKE, Taking};
use super::keys::Part;
use super::store::{CHANGE, Cluster, DEFAULT_TTL, KnownEpoch, READ, Session};
use super::txn::{Compare, Epoch, KeyValue, Operation, Read, ReadAnswer, Txn};
use super::view::content;
use crate::error::{Error, Result};
use crate::record::Kind;
use crate::sys::locked;

/// The longest pause. A hold with a longer TTL counts as a lease here.
const LONGEST: Duration = Duration::from_mins(1);

/// How long to wait at least before the store is looked at again.
const LEAST_WAIT: Duration = Duration::from_millis(200);

/// What a store says of epochs.
struct OnRecord {
    epoch: Option<Epoch>,
    modified: i64,
    /// The lease of the pause.
    pause: Option<i64>,
}

impl Cluster {
    fn on_record(&self, kvs: &[KeyValue]) -> OnRecord {
        let find = |key: String| kvs.iter().find(|found| found.key == key.as_bytes());
        let epoch = find(self.keys.epoch());
        OnRecord {
            epoch: epoch.and_then(|found| Epoch::read(&found.value)),
            modified: epoch.map_or(0, |found| found.mod_revision),
            pause: find(self.keys.pause()).map(|found| found.lease),
        }
    }

    fn know(&self, now: Epoch, replaces: Option<i64>) {
        *locked(&self.epoch) = Some(KnownEpoch { now, replaces });
    }

    /// Nothing is taken, for so long.
    pub(super) fn paused(&self, left: Duration) -> Error {
        Error::StoreChanged {
            store: self.url().to_owned(),
            left,
        }
    }
}

impl Session<'_> {
    /// Lets a take fail if the epoch of the server is not the one on record, or there is a pause. What is on record
    /// is then read last. Returns the epoch that is compared. A holder that writes its record again takes nothing.
    pub(super) fn compare_epoch(self, txn: &mut Txn, taking: &Taking<'_>, granted: Epoch) -> Epoch {
        let keys = &self.cluster.keys;
        let known = *locked(&self.cluster.epoch);
        let known = known.unwrap_or(KnownEpoch {
            now: granted,
            replaces: None,
        });
        if taking.resumes {
            return granted;
        }
        if let Some(modified) = known.replaces {
            txn.only_if(Compare::was_modified_at(&keys.epoch(), modified));
            txn.put(&keys.epoch(), known.now.text().as_bytes(), 0);
        } else {
            txn.only_if(Compare::has_value(&keys.epoch(), known.now.text()));
        }
        txn.only_if(Compare::is_missing(&keys.pause()));
        txn.failure.push(Operation::Read(Read::all(keys.epochs())));
        known.now
    }

    /// For how long a refused take has to wait. A pause begins if the server may have lost something; if there is
    /// none, the next take compares what was found.
    pub(super) fn examine_epoch(self, found: &ReadAnswer, now: Epoch) -> Result<Option<Duration>> {
        let record = self.cluster.on_record(&found.kvs);
        if let Some(lease) = record.pause {
            let left = self.time_left(lease).unwrap_or_default();
            return Ok(Some(left.max(LEAST_WAIT)));
        }
        let is_continued = |before: Epoch| self.engine().is_continued(before, now);
        let seen = locked(&self.cluster.epoch).map(|known| known.now);
        if !record.epoch.into_iter().chain(seen).all(is_continued) {
            return self.begin_pause(&record, now);
        }
        let is_on_record = record.epoch.map(Epoch::text) == Some(now.text());
        self.cluster
            .know(now, (!is_on_record).then_some(record.modified));
        Ok(None)
    }

    /// `None`: others have changed what is on record.
    fn begin_pause(self, record: &OnRecord, now: Epoch) -> Result<Option<Duration>> {
        let keys = &self.cluster.keys;
        let longest = self.longest_ttl()?;
        let seconds = i64::try_from(longest.as_secs()).unwrap_or(i64::MAX);
        let lease = self.grant(TAKE, seconds)?;
        let mut txn = Txn::default();
        txn.only_if(Compare::was_modified_at(&keys.epoch(), record.modified));
        txn.only_if(Compare::is_missing(&keys.pause()));
        txn.put(&keys.epoch(), now.text().as_bytes(), 0);
        txn.put(&keys.pause(), b"", lease.id);
        let (answer, tried_before) = self.txn(CHANGE, &txn)?;
        self.cluster.know(now, None);
        if !answer.succeeded && !tried_before {
            self.engine().give_up(lease.id);
        }
        Ok(answer.succeeded.then_some(longest))
    }

    /// The longest TTL of the runs on record, and of one that is not on record and has the usual one.
    fn longest_ttl(self) -> Result<Duration> {
        let view = self.cluster.read_all()?;
        let all = view.range(&self.cluster.keys.all(Part::Hold));
        let ttls = all.filter_map(|(_, found)| {
            let content = content(&found.value, true);
            let record = content.record().filter(|found| found.kind != Kind::Lease)?;
            record.ttl().filter(|ttl| *ttl <= LONGEST)
        });
        Ok(ttls.fold(DEFAULT_TTL, Duration::max))
    }

    fn read_epoch(self) -> Result<(OnRecord, Epoch)> {
        let read = Txn::of_reads([Read::all(self.cluster.keys.epochs())]);
        let (answer, _) = self.txn(READ, &read)?;
        let kvs = answer.answers.first().map(|found| &*found.kvs);
        let record = self.cluster.on_record(kvs.unwrap_or_default());
        Ok((record, answer.epoch))
    }

    /// Begins a pause for a process that has found something lost, unless there is one.
    pub(super) fn ensure_pause(self) -> Result<()> {
        let (record, now) = self.read_epoch()?;
        if record.pause.is_none() {
            self.begin_pause(&record, now)?;
        }
        Ok(())
    }

    /// For how long nothing is taken. `None`: it is.
    pub(super) fn pause_left(self) -> Result<Option<Duration>> {
        let (record, _) = self.read_epoch()?;
        let left = |lease| self.time_left(lease).unwrap_or_default();
        Ok(record.pause.map(left))
    }

    /// Ends the pause, as a person has asked. Whether there was one, or would have been.
    pub(super) fn accept_epoch(self) -> Result<bool> {
        loop {
            let (record, now) = self.read_epoch()?;
            let keys = &self.cluster.keys;
            let mut txn = Txn::default();
            txn.only_if(Compare::was_modified_at(&keys.epoch(), record.modified));
            txn.put(&keys.epoch(), now.text().as_bytes(), 0);
            txn.delete(&keys.pause());
            if self.txn(CHANGE, &txn)?.0.succeeded {
                let is_continued = |before| self.engine().is_continued(before, now);
                return Ok(record.pause.is_some() || !record.epoch.is_none_or(is_continued));
            }
        }
    }
}
