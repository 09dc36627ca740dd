//! Which store a name is in, and what it is called there.

use std::path::Path;
use std::sync::Arc;

use super::Files;
use super::directory::KnownLayout;
use super::guard::Root;
use super::layout::{self, Layout};
use crate::backend::Backend;
use crate::error::Result;
use crate::name::LockName;

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
        layout: KnownLayout::default(),
    };
    Ok((Arc::new(located), name))
}
