//! Moves a file that is not a lock file aside, on a person's order.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};

use super::directory::Files;
use super::layout;
use super::snapshot::FilesSnapshot;
use crate::backend::Entry;
use crate::decision::Snapshot as _;
use crate::decision::liveness::{Evidence, Reason, State, Verdict};
use crate::error::{Context, Result};
use crate::name::LockName;
use crate::record::Content;
use crate::sys::wait::random_u64;

/// For this long the program of the lock may still be writing the file.
const UNCHANGED_FOR: TimeDelta = TimeDelta::seconds(10);

/// The verdict on a file that is no lock file where only a lock file belongs; `what` it is instead. `None`: it is
/// a directory or a device, which is nobody's lock file.
pub(crate) fn judge_at_own_place(path: &Path, what: &'static str) -> Option<Verdict> {
    let found = std::fs::symlink_metadata(path).ok()?;
    if !found.is_file() {
        return None;
    }
    let modified = DateTime::<Utc>::from(found.modified().ok()?);
    let unchanged = Utc::now().signed_duration_since(modified);
    let (state, reason) = if unchanged < UNCHANGED_FOR {
        (State::Held, Reason::Incomplete)
    } else {
        (State::Zombie, Reason::Malformed(what))
    };
    Some(Verdict {
        age: unchanged.to_std().ok(),
        ..Verdict::new(state, reason, Evidence::Clock)
    })
}

impl Files {
    /// Gives the file of a lock another name in its directory, and returns its new path. `None`: it
    /// is not a regular file, it has become a lock file, or it changed less than 10 s ago.
    pub(crate) fn move_aside(&self, name: &LockName, entry: Entry) -> Result<Option<PathBuf>> {
        let Some((guard, facts)) = self.enter(entry)? else {
            return Ok(None);
        };
        let Some(directory) = guard.descend(&layout::parents(name))? else {
            return Ok(None);
        };
        let snapshot = FilesSnapshot::new(self, Arc::clone(guard.root()), facts, Some(&guard));
        let Some(found) = snapshot.exclusive(name)? else {
            return Ok(None);
        };
        let is_file = found.handle.is_some() && matches!(found.content, Content::NotALock(_));
        let unchanged = snapshot
            .now()
            .wall
            .signed_duration_since(found.facts.modified);
        if !is_file || unchanged < UNCHANGED_FOR {
            return Ok(None);
        }
        let (file, path) = (layout::file_name(name), self.path_of(name));
        // Neither a lock file of a store nor a temporary file, which `cleanup` would remove.
        let mut aside: OsString = file.clone();
        aside.push(format!(".aside-{:016x}", random_u64()));
        let moved = directory.move_if_free(&file, &aside);
        Ok(moved
            .context("move aside", &path)?
            .then(|| path.with_file_name(aside)))
    }
}
