//! The directory of the locks: its settings for this process, how it is opened, and which one a name is in.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::guard::{Guard, Root, Whose};
use super::layout::{self, Layout};
use super::lock_file::LockPath;
use crate::backend::{Backend, Entry};
use crate::error::{Context, Result};
use crate::name::LockName;
use crate::observer::HostFacts;
use crate::record::Format;
use crate::sys::directory::Directory;
use crate::sys::{locked, not_found};

/// A directory of locks, or the directory of path locks.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) store: PathBuf,
    /// The format of new lock files.
    pub(crate) format: Format,
    pub(crate) host: Arc<HostFacts>,
    /// The directory belongs to others, and is not made.
    pub(crate) is_foreign_directory: bool,
    /// As it was found the last time.
    pub(crate) layout: Mutex<Option<Layout>>,
}

impl Files {
    /// Its directory, to be read; `None` if there is none.
    pub(super) fn open(&self) -> Result<Option<Root>> {
        let root = Root::open(&self.store, !self.is_foreign_directory)?;
        if let Some(root) = &root {
            *locked(&self.layout) = Some(root.layout());
        }
        Ok(root)
    }

    pub(super) fn layout(&self) -> Layout {
        let known = *locked(&self.layout);
        match known {
            Some(layout) => layout,
            None if self.is_foreign_directory => Layout::Tree,
            None => Layout::of(&self.store),
        }
    }

    /// Whether it was found to have no flat layout.
    pub(super) fn is_known_tree(&self) -> bool {
        *locked(&self.layout) == Some(Layout::Tree)
    }

    /// The path of a directory below the store.
    pub(super) fn below(&self, parts: &[OsString]) -> PathBuf {
        let mut path = self.store.clone();
        path.extend(parts);
        path
    }

    /// The place of a lock file. `path`: for messages.
    pub(super) fn at(&self, directory: Arc<Directory>, file: OsString, path: PathBuf) -> LockPath {
        LockPath {
            directory,
            file,
            path,
            format: self.format,
        }
    }

    pub(super) fn enter(&self, entry: Entry<'_>) -> Result<Option<Guard>> {
        let (store, patience) = (&self.store, entry.patience);
        let entered = if self.is_foreign_directory {
            Guard::enter(store, patience, Whose::OtherPrograms)?
        } else if entry.create {
            // A directory of other programs is made as they make it.
            let is_private = self.format == Format::Native;
            Some(Guard::enter_or_create(store, patience, is_private)?)
        } else {
            Guard::enter(store, patience, Whose::Store)?
        };
        match &entered {
            Some(guard) => *locked(&self.layout) = Some(guard.root.layout()),
            None if entry.create => {
                return Err(not_found()).context("open directory", store);
            }
            None => {}
        }
        Ok(entered)
    }
}

/// Whether a directory is a store: not if anybody could have made it look like one, to be in the way of path locks.
fn is_usable(store: &Path) -> bool {
    Layout::of(store) == Layout::Tree || matches!(Root::open(store, true), Ok(Some(_)))
}

/// The directory of a lock file and its name there. A path that leads into a store is a name of that store.
pub(super) fn locate(files: Arc<Files>, name: LockName) -> Result<(Arc<dyn Backend>, LockName)> {
    let format = files.format;
    let (store, name) = match layout::directory_of(&name)? {
        None if !files.is_foreign_directory => return Ok((files, name)),
        None => (files.store.clone(), name),
        Some(directory) => {
            let file = layout::file_name(&name);
            // A symlink may lead into a store, too.
            let resolved = || {
                layout::has_lock_suffix(&file).then_some(())?;
                let directory = std::fs::canonicalize(&directory).ok()?;
                layout::lock_in_store(&directory, &file)
            };
            layout::lock_in_store(&directory, &file)
                .or_else(resolved)
                .filter(|(store, _)| is_usable(store))
                .unwrap_or((directory, name))
        }
    };
    let located = Files {
        is_foreign_directory: name.is_path(),
        store,
        format,
        host: Arc::clone(&files.host),
        layout: Mutex::default(),
    };
    Ok((Arc::new(located), name))
}
