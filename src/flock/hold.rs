//! A kernel lock that this process has.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::backend::{HeldRecord, ReleaseOutcome};
use crate::error::{Context, Result};
use crate::record::{Live, Record};
use crate::sys::KernelLockCall;
use crate::sys::directory::path_names_file;

/// The file, with its lock. Its record is in memory only.
#[derive(Debug)]
pub(super) struct FlockHold {
    pub(super) file: File,
    pub(super) path: PathBuf,
    pub(super) by: KernelLockCall,
    /// Boxed, as that of a lock file.
    pub(super) record: Box<Record>,
}

impl HeldRecord for FlockHold {
    fn record(&self) -> &Record {
        &self.record
    }

    fn paths(&self) -> Vec<&Path> {
        vec![&self.path]
    }

    fn is_lost(&self) -> Result<bool> {
        let is_named = path_names_file(&self.path, &self.file);
        Ok(!is_named.context("inspect", &self.path)?)
    }

    fn write_live(&mut self, live: Live) -> Result<()> {
        self.record.live = live;
        Ok(())
    }

    fn release(&mut self) -> Result<ReleaseOutcome> {
        let is_lost = self.is_lost();
        // A process that the command left behind with its descriptor holds nothing.
        self.by.unlock(&self.file).context("unlock", &self.path)?;
        is_lost.map(ReleaseOutcome::of_removed)
    }

    fn file(&self) -> Option<&File> {
        Some(&self.file)
    }
}
