//! Moves a file that is not a lock file aside, on a person's order.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use super::directory::Files;
use super::lock_file::LockPath;
use super::snapshot::FilesSnapshot;
use crate::backend::Entry;
use crate::decision::Snapshot as _;
use crate::decision::liveness::is_unchanged;
use crate::error::{Context, Operation, Result};
use crate::name::LockName;
use crate::record::Content;
use crate::sys::wait::random_u64;

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
        let Some(LockPath {
            directory,
            file,
            path,
            ..
        }) = snapshot.at(&found.key)?
        else {
            return Ok(None);
        };
        let is_meant = matches!(found.content, Content::NotALock(_))
            && is_unchanged(found.facts.modified, snapshot.now().wall);
        let Some(judged) = found.handle.filter(|_| is_meant) else {
            return Ok(None);
        };
        // Neither a lock file of a store nor a temporary file, which `cleanup` would remove.
        let mut aside: OsString = file.clone();
        aside.push(format!(".aside-{:016x}", random_u64()));
        match directory.rename(&file, &aside) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            renamed => renamed.context(Operation::MoveAside, &path)?,
        }
        let moved = directory.facts(&aside).context(Operation::Inspect, &path)?;
        if moved.is_some_and(|moved| moved != judged.facts) {
            // Meanwhile another program has put its file there, or written to this one.
            directory
                .move_if_free(&aside, &file)
                .context(Operation::PutBack, &path)?;
            return Ok(None);
        }
        Ok(Some(path.with_file_name(aside)))
    }
}
