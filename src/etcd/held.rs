//! A hold of the calling process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::commit::Taken;
use super::keeping::Keeping;
use super::store::Etcd;
use crate::backend::{Backend as _, GoesOn, HeldRecord, ReleaseOutcome};
use crate::decision::Key;
use crate::error::Result;
use crate::record::{Kind, Live, Record};
use crate::sys::process::boottime_milliseconds;

/// A hold, and how it is kept.
#[derive(Debug)]
pub(crate) struct HeldKeys {
    keeping: Arc<Keeping>,
    record: Box<Record>,
    paths: Vec<PathBuf>,
    taken_ms: u64,
}

/// From when on a hold has a thread that keeps it.
const LONG_MS: u64 = 500;

impl HeldKeys {
    pub(super) fn new(etcd: &Etcd, taken: Taken) -> Self {
        let record = Box::new(taken.record.clone());
        let paths = taken.keys.iter().map(|key| etcd.path_of_record(key));
        let held = Self {
            paths: paths.collect(),
            keeping: Keeping::begin(etcd, taken),
            record,
            taken_ms: boottime_milliseconds(),
        };
        if held.record.kind == Kind::Process {
            held.keeping.start();
        }
        held
    }
}

impl HeldRecord for HeldKeys {
    fn paths(&self) -> Vec<&Path> {
        self.paths.iter().map(PathBuf::as_path).collect()
    }

    fn slots(&self) -> Vec<u32> {
        self.keeping.keys.iter().filter_map(Key::slot).collect()
    }

    fn is_broken(&self) -> bool {
        self.keeping.is_broken()
    }

    fn deadlines_ms(&self) -> Option<(u64, u64)> {
        Some(self.keeping.deadlines_ms())
    }

    fn record(&self) -> &Record {
        &self.record
    }

    fn is_lost(&self) -> Result<bool> {
        // Most commands end before a beat is due.
        if boottime_milliseconds().saturating_sub(self.taken_ms) >= LONG_MS {
            self.keeping.start();
        }
        let (lost_at, _) = self.keeping.deadlines_ms();
        Ok(self.keeping.is_lost() || boottime_milliseconds() >= lost_at)
    }

    fn why_lost(&self) -> Option<String> {
        self.keeping.why_lost()
    }

    /// Nothing: of what changes nobody else is told.
    fn write_live(&mut self, live: Live) -> Result<()> {
        self.record.live = live;
        Ok(())
    }

    fn survives_settling_time(&self) -> Result<bool> {
        let (lost_at, _) = self.keeping.deadlines_ms();
        Ok(self.record.kind == Kind::Lease || boottime_milliseconds() < lost_at)
    }

    fn release(&mut self) -> Result<ReleaseOutcome> {
        self.keeping.release()
    }

    fn keep(
        &mut self,
        live: Live,
        left: Duration,
        goes_on: &mut GoesOn<'_>,
    ) -> Result<ReleaseOutcome> {
        self.record.live = live;
        self.keeping.keep(&self.record, left, goes_on)
    }
}

impl Drop for HeldKeys {
    fn drop(&mut self) {
        // A lease of `acquire` is kept by nothing but time; its thread was never started.
        self.keeping.stop();
    }
}
