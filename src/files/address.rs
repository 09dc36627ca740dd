//! Which store a name is in, and what it is called there.

use std::sync::Arc;

use super::Files;
use super::layout;
use crate::error::{Context, Error, Operation, Result};
use crate::name::LockName;
use crate::record::Format;
use crate::sys::HAS_FLOCK;

/// The directory of a lock file and its name there. A path that leads into a store is a name of that store.
pub(super) fn locate(files: Arc<Files>, name: LockName) -> Result<(Arc<Files>, LockName)> {
    let format = files.format;
    let is_flock = format == Format::Flock;
    if is_flock && !name.is_path() {
        return Err(Error::Unsupported {
            format,
            what: "a path is needed, such as ./x.lock",
        });
    }
    if is_flock && !HAS_FLOCK {
        return Err(Error::Unsupported {
            format,
            what: "this system has no flock(1)",
        });
    }
    if name.directory().is_some_and(layout::is_shared_dir) {
        return Err(Error::InvalidName {
            name: name.as_str().to_owned(),
            reason: "a slot of a shared lock has no path of its own: use the name of the lock",
        });
    }
    // Absolute, so that it stays the same when the caller changes its directory.
    let (store, name) = match name.directory() {
        None if !files.is_foreign_directory => return Ok((files, name)),
        None => (files.store.clone(), name),
        Some(directory) => {
            let directory =
                std::path::absolute(directory).context(Operation::FindDirectory, directory)?;
            let file = layout::file_name(&name);
            // A symlink may lead into a store, too.
            let resolved = || {
                layout::has_lock_suffix(&file).then_some(())?;
                let directory = std::fs::canonicalize(&directory).ok()?;
                layout::lock_in_store(&directory, &file)
            };
            let in_store = || layout::lock_in_store(&directory, &file).or_else(resolved);
            // A file that flock(1) locks is what its path says, wherever it is.
            match (!is_flock).then(in_store).flatten() {
                Some((store, name)) => (store, name),
                None => (directory, name),
            }
        }
    };
    let located = Files {
        is_foreign_directory: name.is_path(),
        store,
        format,
        host: Arc::clone(&files.host),
    };
    Ok((Arc::new(located), name))
}
