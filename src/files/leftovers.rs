//! Removes what killed processes left in a store: files that never got their name, dead tickets, empty
//! directories, and foreign files that a takeover took out. Under the guard no process is about to use them.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::directory::Files;
use super::guard::{Guard, Whose};
use super::layout::{self, Entry, META_DIR};
use super::lock_file::{LockPath, OnDisk, own_temporary_name};
use super::place::WAITING;
use super::snapshot::FilesSnapshot;
use super::{flat, queue};
use crate::backend::Patience;
use crate::decision::verdict::{Evidence, Reason, State};
use crate::error::{Context, Error, Result};
use crate::record::{Content, Format};
use crate::sys::directory::Directory;
use crate::sys::is_not_a_directory;
use crate::sys::temporary::is_temporary;

/// Sweeps a store. What could not be removed is in `errors`.
pub(crate) fn sweep(files: &Files, errors: &mut Vec<Error>) -> Result<()> {
    let Some(guard) = Guard::enter(&files.store, Patience::SHORT, Whose::Store)? else {
        return Ok(());
    };
    if !guard.root.shares_kernel_locks {
        return Ok(());
    }
    // First, since it keeps a directory of queues from being removed.
    if let Ok(own) = guard.root.directory.open_below(OsStr::new(META_DIR)) {
        sweep_unnamed(&own);
        if let Ok(waiting) = own.open_below(OsStr::new(WAITING)) {
            sweep_unnamed(&waiting);
        }
    }
    queue::sweep(&guard);
    let root = &guard.root;
    let snapshot = FilesSnapshot::new(files, root, Some(&guard));
    sweep_directory(&snapshot, &root.directory, &root.path, None, errors)
}

/// Removes what had not got its name in a shared store when its process was killed.
fn sweep_unnamed(directory: &Directory) {
    let names = directory.names().unwrap_or_default();
    let is_left = |name: &&OsString| is_temporary(name) || flat::is_new(name);
    for name in names.iter().filter(is_left) {
        if !matches!(directory.remove_below_if_empty(name), Ok(true)) {
            let _ = directory.unlink(name);
        }
    }
}

fn sweep_directory(
    snapshot: &FilesSnapshot<'_>,
    directory: &Arc<Directory>,
    path: &Path,
    parent: Option<&str>,
    errors: &mut Vec<Error>,
) -> Result<()> {
    let names = directory.names().context("read directory", path)?;
    let awaited = if names.iter().any(|name| is_temporary(name)) {
        awaited(snapshot, directory, path, &names)
    } else {
        Vec::new()
    };
    for file in names {
        let below = path.join(&file);
        let swept = if is_temporary(&file) {
            if awaited.contains(&file) {
                continue;
            }
            sweep_temporary(snapshot, &any_file(directory, &file, below))
        } else if snapshot.root.flat.is_some() && flat::is_new(&file) {
            let _ = directory.unlink(&file);
            continue;
        } else if let Some(name) = directory_of(parent, &file) {
            if snapshot.root.flat.is_some() {
                // It is not of this store, and in the way of its locks.
                let _ = directory.remove_below_if_empty(&file);
                continue;
            }
            match directory.open_below(&file) {
                Ok(opened) => {
                    let opened = Arc::new(opened);
                    let swept = sweep_directory(snapshot, &opened, &below, Some(&name), errors);
                    // Made for a lock file that was then not put there.
                    let _ = directory.remove_below_if_empty(&file);
                    swept
                }
                Err(error) if is_not_a_directory(&error) => Ok(()),
                Err(error) => Err(error).context("open directory", &below),
            }
        } else {
            Ok(())
        };
        if let Err(error) = swept {
            errors.push(error);
        }
    }
    Ok(())
}

/// The name whose children or shared holds a directory has.
fn directory_of(parent: Option<&str>, file: &OsStr) -> Option<String> {
    match layout::entry(parent, file)? {
        Entry::Children(name) => Some(name),
        Entry::Shared(name) => Some(name.as_str().to_owned()),
        Entry::Lock(_) | Entry::TooDeep => None,
    }
}

/// The temporary names that may have to go back: those of takeovers whose process was killed, and
/// whose records are still in place.
fn awaited(
    snapshot: &FilesSnapshot<'_>,
    directory: &Arc<Directory>,
    path: &Path,
    names: &[OsString],
) -> Vec<OsString> {
    let taken_out_by = |file: &OsString| {
        let Ok(OnDisk::File(found)) = any_file(directory, file, path.join(file)).read() else {
            return None;
        };
        if matches!(snapshot.judge(&found).state, State::Held | State::Overdue) {
            return None;
        }
        let record = found.content.record()?;
        match &record.takeover {
            Some(info) => Some(OsString::from(&info.name)),
            // A PID file cannot say what a takeover took out.
            None if record.format == Format::Pid => Some(own_temporary_name(file)),
            None => None,
        }
    };
    // A file that was never in place took nothing out.
    let is_in_place = |file: &&OsString| !is_temporary(file);
    names
        .iter()
        .filter(is_in_place)
        .filter_map(taken_out_by)
        .collect()
}

fn sweep_temporary(snapshot: &FilesSnapshot<'_>, place: &LockPath) -> Result<()> {
    let found = match place.read()? {
        OnDisk::File(found) => found,
        // A directory that had not got its name yet.
        OnDisk::NotRegular(_) => {
            let _ = place.directory.remove_below_if_empty(&place.file);
            return Ok(());
        }
        OnDisk::Nothing => return Ok(()),
    };
    let verdict = snapshot.judge(&found);
    let is_left = match &found.content {
        Content::Record(record) if record.is_ours() => true,
        // Taken out from a dead holder, so there is no one to put it back for. A live foreign holder
        // keeps its file.
        Content::Record(_) => verdict.reason == Reason::Dead,
        Content::Corrupt => verdict.evidence != Evidence::KernelLock,
        Content::UnknownVersion(_) | Content::KernelLock | Content::NotALock(_) => false,
    };
    if is_left {
        place.unlink()?;
    }
    Ok(())
}

/// A file of any kind, a bare number included.
fn any_file(directory: &Arc<Directory>, file: &OsStr, path: PathBuf) -> LockPath {
    LockPath {
        directory: Arc::clone(directory),
        file: file.to_owned(),
        path,
        format: Format::Pid,
    }
}
