//! Moves a file that is not a lock file aside, on a person's order.

use std::path::PathBuf;

use super::directory::Files;
use super::snapshot::FilesSnapshot;
use crate::backend::Entry;
use crate::decision::Snapshot as _;
use crate::decision::liveness::is_unchanged;
use crate::error::Result;
use crate::name::LockName;
use crate::record::Content;
use crate::sys::random_u64;

impl Files {
    /// Gives the file of a lock another name in its directory, and returns its new path. `None`: it
    /// is not a regular file, it has become a lock file, or it changed less than 10 s ago.
    pub(super) fn rename_aside(&self, name: &LockName) -> Result<Option<PathBuf>> {
        let Some(guard) = self.enter(Entry::EXISTING)? else {
            return Ok(None);
        };
        let snapshot = FilesSnapshot::new(self, &guard.root, Some(&guard));
        let Some(found) = snapshot.exclusive(name)? else {
            return Ok(None);
        };
        let is_meant = matches!(found.content, Content::NotALock(_))
            && is_unchanged(found.facts.modified, snapshot.now().wall);
        let place = snapshot.at(&found.key)?;
        let (Some(place), Some(judged)) = (place, found.handle.filter(|_| is_meant)) else {
            return Ok(None);
        };
        // Neither a lock file of a store nor a temporary file, which `cleanup` would remove.
        let mut aside = place.file.clone();
        aside.push(format!(".aside-{:016x}", random_u64()));
        // Meanwhile another program may have put its file there, or written to this one.
        let is_judged = |aside: &_| {
            let moved = place.directory.facts(aside)?;
            Ok(moved.is_none_or(|moved| moved == judged.facts))
        };
        let is_moved = place.take_out("move aside", &aside, is_judged)?;
        Ok(is_moved.then(|| place.path.with_file_name(aside)))
    }
}
