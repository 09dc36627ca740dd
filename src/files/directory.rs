//! The directory of the locks: its settings for this process, and how it is opened.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::guard::{Guard, Root, Whose};
use super::layout::Layout;
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
    pub(crate) layout: KnownLayout,
}

/// The layout of a store, as it was found the last time.
#[derive(Debug, Default)]
pub(crate) struct KnownLayout(AtomicU8);

impl KnownLayout {
    const TREE: u8 = 1;
    const FLAT: u8 = 2;

    fn note(&self, layout: Layout) {
        let known = match layout {
            Layout::Tree => Self::TREE,
            Layout::Flat => Self::FLAT,
        };
        self.0.store(known, Ordering::Relaxed);
    }

    fn get(&self) -> Option<Layout> {
        match self.0.load(Ordering::Relaxed) {
            Self::TREE => Some(Layout::Tree),
            Self::FLAT => Some(Layout::Flat),
            _ => None,
        }
    }
}

impl Clone for KnownLayout {
    fn clone(&self) -> Self {
        Self(AtomicU8::new(self.0.load(Ordering::Relaxed)))
    }
}

impl Files {
    /// Its directory, to be read; `None` if there is none.
    pub(super) fn open(&self) -> Result<Option<Root>> {
        let root = Root::open(&self.store, !self.is_foreign_directory)?;
        if let Some(root) = &root {
            self.layout.note(root.layout());
        }
        Ok(root)
    }

    pub(super) fn layout(&self) -> Layout {
        match self.layout.get() {
            Some(layout) => layout,
            None if self.is_foreign_directory => Layout::Tree,
            None => Layout::of(&self.store),
        }
    }

    /// Whether it was found to have no flat layout.
    pub(super) fn is_known_tree(&self) -> bool {
        self.layout.get() == Some(Layout::Tree)
    }

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
        let entered = self.enter_guard(entry)?;
        if let Some(guard) = &entered {
            self.layout.note(guard.root.layout());
        }
        Ok(entered)
    }

    fn enter_guard(&self, entry: Entry<'_>) -> Result<Option<Guard>> {
        if entry.create && !self.is_foreign_directory {
            // A directory of other programs is made as they make it.
            let is_private = self.format == Format::Native;
            return Guard::enter_or_create(&self.store, entry.patience, is_private).map(Some);
        }
        let whose = if self.is_foreign_directory {
            Whose::OtherPrograms
        } else {
            Whose::Store
        };
        match Guard::enter(&self.store, entry.patience, whose)? {
            None if entry.create => Err(not_found()).context(Operation::OpenDirectory, &self.store),
            entered => Ok(entered),
        }
    }
}
