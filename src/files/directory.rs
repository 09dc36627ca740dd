//! The directory of the locks: its settings for this process, and how it is opened.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::guard::Guard;
use super::lock_file::LockPath;
use crate::backend::Entry;
use crate::error::{Context, Operation, Result};
use crate::observer::HostFacts;
use crate::record::Format;
use crate::sys::directory::Directory;
use crate::sys::not_found;

/// A directory of locks, or the directory of path locks.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub(crate) store: PathBuf,
    /// The format of new lock files.
    pub(crate) format: Format,
    pub(crate) host: Arc<HostFacts>,
    /// The directory belongs to others, and is not made.
    pub(crate) is_foreign_directory: bool,
}

impl Files {
    /// The path of a directory below the store.
    pub(super) fn below(&self, parts: &[OsString]) -> PathBuf {
        let mut path = self.store.clone();
        path.extend(parts);
        path
    }

    /// The place of a lock file. `path`: for messages.
    pub(super) fn at<'a>(
        &self,
        directory: &'a Directory,
        file: &'a OsStr,
        path: &'a Path,
    ) -> LockPath<'a> {
        LockPath {
            directory,
            file,
            path,
            format: self.format,
        }
    }

    pub(super) fn enter(&self, entry: Entry<'_>) -> Result<Option<Guard>> {
        if entry.create && !self.is_foreign_directory {
            // A directory of other programs is made as they make it.
            let is_private = self.format == Format::Native;
            return Guard::enter_or_create(&self.store, entry.patience, is_private).map(Some);
        }
        match Guard::enter(&self.store, entry.patience, !self.is_foreign_directory)? {
            None if entry.create => Err(not_found()).context(Operation::OpenDirectory, &self.store),
            entered => Ok(entered),
        }
    }
}
