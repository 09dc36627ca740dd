//! Writes what was decided: a new record in its place, or the removal of an old one. Under the guard.

use std::fs::File;
use std::io;
use std::sync::Arc;

use chrono::SubsecRound;

use super::directory::Files;
use super::flock::Attempt;
use super::foreign::{self, SwapFallback, SwapResult};
use super::guard::Guard;
use super::held::HeldFile;
use super::layout::{self, META_DIR};
use super::lock_file::{
    Handle, LockPath, NewLockFile, OwnedLockPath, WriteOptions, random_temporary_name,
    renew_foreign_times,
};
use super::number;
use super::snapshot::FilesSnapshot;
use crate::backend::Draft;
use crate::decision::liveness::State;
use crate::decision::{Judged, Key};
use crate::error::{Context, Error, Result};
use crate::format::{self, live};
use crate::record::{Format, Kind, Live, Record};
use crate::sys::directory::{FileExt as _, facts_of_file, move_to_high_fd};
use crate::sys::process;

/// What was asked for with a new record.
pub(super) struct Taking<'a> {
    pub(super) key: &'a Key,
    pub(super) replaced: Option<&'a Judged<Handle>>,
    pub(super) draft: &'a Draft,
    /// An unnamed file made beforehand.
    pub(super) prepared: Option<File>,
}

/// Writes a new record; `None`: what was found there has changed since.
pub(super) fn take(
    guard: &Guard,
    snapshot: &FilesSnapshot<'_>,
    taking: Taking<'_>,
) -> Result<Option<HeldFile>> {
    let Taking {
        key,
        replaced,
        draft,
        prepared,
    } = taking;
    let files = snapshot.files;
    let (name, path) = (&key.name, files.path_of(&key.name));
    let parents = layout::parents(name);
    let mut record = complete(guard, snapshot, key, replaced, draft)?;
    let directory = guard
        .descend_or_create(&parents)
        .inspect_err(|_| guard.prune(&parents))?;
    let file_name = layout::file_name(name);
    let place = LockPath {
        directory: &directory,
        file: &file_name,
        path: &path,
        format: files.format,
    };
    let options = WriteOptions {
        kernel_lock: record.kernel_lock,
    };
    let written = match replaced {
        None => {
            if name.is_path() {
                // `cleanup` does not come here, so what a killed process left goes now.
                place.claim_temporary_name()?;
            }
            place.link(&record, options, prepared)
        }
        Some(judged) => replace(snapshot, &place, judged, &mut record, options),
    };
    match written {
        Ok(Some(NewLockFile { file, written })) => Ok(Some(HeldFile {
            files: files.clone(),
            name: name.clone(),
            root: Arc::clone(guard.root()),
            place: OwnedLockPath {
                directory,
                file: file_name,
                path,
                format: record.format,
            },
            file,
            slot_at: written.slot_at,
            visible_at: written.visible_at,
            record: Box::new(record),
        })),
        not_written => {
            // Directories that lead to nothing.
            guard.prune(&parents);
            not_written.map(|_| None)
        }
    }
}

/// The new hold of a file that flock(1) locks, if its lock was taken.
pub(super) fn take_kernel_lock(
    mut snapshot: FilesSnapshot<'_>,
    key: &Key,
    draft: &Draft,
) -> Result<Option<HeldFile>> {
    let attempt = snapshot.attempt.take();
    let Some(file) = attempt.and_then(Attempt::into_taken) else {
        return Ok(None);
    };
    let files = snapshot.files;
    let path = files.path_of(&key.name);
    let mut record = draft.record.clone();
    record.acquired_at = chrono::Utc::now().trunc_subsecs(6);
    record.hold = number::by_clock(record.acquired_at, 0);
    record.origin = Some(files.host.origin(snapshot.facts.id));
    Ok(Some(HeldFile {
        files: files.clone(),
        name: key.name.clone(),
        file: move_to_high_fd(file).context("open", &path)?,
        place: OwnedLockPath {
            directory: Arc::clone(&snapshot.root),
            file: layout::file_name(&key.name),
            format: record.format,
            path,
        },
        root: snapshot.root,
        slot_at: None,
        visible_at: None,
        record: Box::new(record),
    }))
}

fn replace(
    snapshot: &FilesSnapshot<'_>,
    place: &LockPath<'_>,
    judged: &Judged<Handle>,
    record: &mut Record,
    options: WriteOptions,
) -> Result<Option<NewLockFile>> {
    let Some(open) = &judged.found.handle else {
        return Ok(None);
    };
    if record.format == Format::Native && !foreign::is_foreign(&judged.found.content) {
        // `cleanup` does not come to a path lock, so what a killed process left there goes now, and
        // the next one finds what this one may leave.
        let temporary = if judged.found.key.name.is_path() {
            place.claim_temporary_name()?
        } else {
            random_temporary_name()
        };
        return place.replace_native(record, options, &temporary).map(Some);
    }
    let fallback = swap_fallback(snapshot, judged);
    match place.take_over(open, record, options, fallback)? {
        SwapResult::Done(new) => Ok(Some(new)),
        SwapResult::Changed => Ok(None),
    }
}

/// Where two files cannot be swapped, a takeover is safe beside no other program; a person may
/// decide.
fn swap_fallback(snapshot: &FilesSnapshot<'_>, judged: &Judged<Handle>) -> SwapFallback {
    let files = snapshot.files;
    let own_store = snapshot.facts.shares_kernel_locks
        && !judged.found.key.name.is_path()
        && files.format == Format::Native;
    let decided = !matches!(judged.verdict.state, State::Zombie | State::Free)
        || !snapshot.facts.shares_kernel_locks;
    if own_store || decided {
        SwapFallback::Rename
    } else {
        SwapFallback::Refuse
    }
}

/// Removes a record if it is still what was judged; `false`: it is not.
pub(super) fn remove(
    guard: &Guard,
    snapshot: &FilesSnapshot<'_>,
    judged: &Judged<Handle>,
) -> Result<bool> {
    let files = snapshot.files;
    let name = &judged.found.key.name;
    let Some(open) = &judged.found.handle else {
        return Ok(false);
    };
    let parents = layout::parents(name);
    let Some(directory) = guard.descend(&parents)? else {
        return Ok(false);
    };
    let (file, path) = (layout::file_name(name), files.path_of(name));
    let place = LockPath {
        directory: &directory,
        file: &file,
        path: &path,
        format: files.format,
    };
    let is_dead = matches!(judged.verdict.state, State::Zombie | State::Free);
    let removed = if !foreign::is_foreign(&judged.found.content) {
        let is_same = place.is_as_judged(&file, open).context("inspect", &path)?;
        is_same && place.unlink()?
    } else if is_dead {
        let mut placeholder = placeholder(snapshot, judged);
        let fallback = swap_fallback(snapshot, judged);
        place.remove_dead(open, &mut placeholder, fallback)?
    } else {
        place.remove_if_judged(open)?
    };
    if removed {
        guard.prune(&parents);
    }
    Ok(removed)
}

/// A record that is in place while a dead foreign one is removed.
fn placeholder(snapshot: &FilesSnapshot<'_>, judged: &Judged<Handle>) -> Record {
    let files = snapshot.files;
    let now = chrono::Utc::now().trunc_subsecs(6);
    let own = process::own_pid();
    let replaced = judged.record();
    // Programs that know the old format look at it in between.
    let format = replaced.map_or(files.format, |record| record.format);
    let mut record = Record::new(format, Some(own), now);
    record.hold = number::by_clock(now, replaced.map_or(0, |record| record.hold));
    judged.found.key.name.as_str().clone_into(&mut record.name);
    record.kernel_lock = true;
    record.hostname.clone_from(&files.host.observer().hostname);
    record.origin = Some(files.host.origin(snapshot.facts.id));
    record
}

/// A draft with number, time and origin.
fn complete(
    guard: &Guard,
    snapshot: &FilesSnapshot<'_>,
    key: &Key,
    replaced: Option<&Judged<Handle>>,
    draft: &Draft,
) -> Result<Record> {
    let now = chrono::Utc::now().trunc_subsecs(6);
    let replaced = replaced
        .and_then(|judged| judged.record())
        .map_or(0, |record| record.hold);
    let mut record = draft.record.clone();
    record.hold = if key.name.is_path() {
        number::by_clock(now, replaced)
    } else {
        number::in_store(guard.root(), now, replaced)
            .context("write hold number in", &guard.path().join(META_DIR))?
    };
    record.acquired_at = now;
    record.origin = Some(snapshot.files.host.origin(snapshot.facts.id));
    Ok(record)
}

/// Writes what changes of a record, and returns its file; `None`: it is no longer what was judged.
pub(super) fn renew(
    guard: &Guard,
    files: &Files,
    judged: &Judged<Handle>,
    live: &Live,
) -> Result<Option<File>> {
    let name = &judged.found.key.name;
    let path = files.path_of(name);
    let (Some(open), Some(record)) = (&judged.found.handle, judged.record()) else {
        return Ok(None);
    };
    let Some(directory) = guard.descend(&layout::parents(name))? else {
        return Ok(None);
    };
    // What is torn under the guard is damaged. To write it anew would lose the process in it.
    let is_damaged = record.live.is_torn && record.kind != Kind::Lease;
    let at = match format::slot_at(record.format, &open.bytes) {
        _ if !record.is_ours() => Err("its record was written by another program"),
        _ if is_damaged => Err("the part of its record that a renewal changes is damaged"),
        None if record.format == Format::Pid => Err("a PID file has no room for it"),
        None => Err("its record was edited, and has no room for it"),
        Some(at) => Ok(at),
    };
    let at = at.map_err(|why| Error::NotRenewable {
        path: path.clone(),
        why,
    })?;
    let write = || -> io::Result<Option<File>> {
        let file = match directory.open_for_update(&layout::file_name(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        if facts_of_file(&file)?.id != open.facts.id {
            return Ok(None);
        }
        let mut renewed = record.clone();
        renewed.live = live.clone();
        renew_foreign_times(&file, &renewed)?;
        file.write_all_at(&live::write(live)?, at as u64)?;
        Ok(Some(file))
    };
    write().context("renew", &path)
}
