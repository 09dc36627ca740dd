//! Writes what was decided: a new record in its place, or the removal of an old one. Under the guard.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;

use chrono::SubsecRound;

use super::foreign::{self, SwapFallback};
use super::guard::Guard;
use super::held::{HeldFile, RecordName};
use super::layout::{Layout, META_DIR, flat_key};
use super::lock_file::{LockPath, NewLockFile, encode, renew_foreign_times};
use super::snapshot::FilesSnapshot;
use super::{number, provenance};
use crate::backend::{Backend as _, Put};
use crate::decision::verdict::State;
use crate::decision::{Index, Key};
use crate::error::{Context, Error, Result};
use crate::format::{self, live};
use crate::identity::Pid;
use crate::name::LockName;
use crate::open_file::{Judged, OpenFile, read_all};
use crate::record::{Format, Kind, Live, Record};
use crate::status::Provenance;
use crate::sys::directory::{FileExt as _, facts_of_file};
use crate::sys::temporary::random_temporary_name;

/// Writes a new record; `None`: what was found there has changed since. A hold of several locks has one
/// file with as many names, so that what is written into it counts for all of them at once. `prepared`: an unnamed
/// file made beforehand.
pub(super) fn take(
    guard: &Guard,
    snapshot: &FilesSnapshot<'_>,
    put: &[Put],
    draft: &Record,
    prepared: Option<File>,
) -> Result<Option<HeldFile>> {
    let Some(((key, replaced), others)) = put.split_first() else {
        return Ok(None);
    };
    let mut record = complete(snapshot, put, draft)?;
    let mut replaced = replaced.as_ref();
    let layout = guard.root.layout();
    let stays_in_place = |judged: &Judged| {
        let has_one_name = judged.record().is_none_or(|record| record.names.is_empty());
        has_one_name && layout.place_of(&judged.found.key) == layout.place_of(key)
    };
    if !others.is_empty() || !replaced.is_none_or(stays_in_place) {
        // One hold may have had several of the names.
        let mut gone = Vec::new();
        for judged in put.iter().filter_map(|(_, replaced)| replaced.as_ref()) {
            let is_gone = gone.contains(&&judged.found.revision);
            if !is_gone && !remove(snapshot, judged)? {
                return Ok(None);
            }
            gone.push(&judged.found.revision);
        }
        replaced = None;
    }
    let place = RecordName::of(guard, snapshot.files, key)?;
    let path = &place.at;
    let written = match replaced {
        None => {
            if key.name.is_path() {
                // `cleanup` does not come here, so what a killed process left goes now.
                path.claim_temporary_name()?;
            }
            path.link(&record, prepared)
        }
        Some(judged) => replace(snapshot, path, judged, &mut record),
    };
    let NewLockFile { file, written } = match written {
        Ok(Some(new)) => new,
        not_written => {
            // Directories that lead to nothing.
            guard.prune(&place.parents);
            return not_written.map(|_| None);
        }
    };
    let mut held = HeldFile {
        root: guard.root.clone(),
        place,
        others: Vec::new(),
        file,
        slot_at: written.slot_at,
        visible_at: written.visible_at,
        record: Box::new(record),
    };
    for (key, _) in others {
        let added =
            RecordName::of(guard, snapshot.files, key).and_then(|place| held.add(guard, place));
        if !matches!(added, Ok(true)) {
            // All of the names, or none.
            held.withdraw(guard);
            return added.map(|_| None);
        }
    }
    Ok(Some(held))
}

fn replace(
    snapshot: &FilesSnapshot<'_>,
    place: &LockPath,
    judged: &Judged,
    record: &mut Record,
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
        return place.replace_native(record, &temporary).map(Some);
    }
    let fallback = swap_fallback(snapshot, judged);
    place.take_over(open, record, fallback)
}

/// Where two files cannot be swapped, a takeover is safe beside no other program; a person may
/// decide.
fn swap_fallback(snapshot: &FilesSnapshot<'_>, judged: &Judged) -> SwapFallback {
    let files = snapshot.files;
    let own_store = snapshot.root.shares_kernel_locks
        && !judged.found.key.name.is_path()
        && files.format == Format::Native;
    let decided = !matches!(judged.verdict.state, State::Zombie | State::Free)
        || !snapshot.root.shares_kernel_locks;
    if own_store || decided {
        SwapFallback::Rename
    } else {
        SwapFallback::Refuse
    }
}

/// Removes a record if it is still what was judged; `false`: it is not. If its hold has several locks, all
/// of them. Under the guard of its snapshot.
pub(super) fn remove(snapshot: &FilesSnapshot<'_>, judged: &Judged) -> Result<bool> {
    let key = &judged.found.key;
    let (parents, file) = snapshot.root.layout().place_of(key);
    // Opened anew: the snapshot would keep the directories of all that are removed open.
    let directory = snapshot.root.descend(&parents)?;
    let (Some(open), Some(directory)) = (&judged.found.handle, directory) else {
        return Ok(false);
    };
    let files = snapshot.files;
    let place = files.at(directory, file, files.path_of_record(key));
    let is_dead = matches!(judged.verdict.state, State::Zombie | State::Free);
    let removed = if !foreign::is_foreign(&judged.found.content) {
        let is_same = place
            .is_as_judged(&place.file, open)
            .context("inspect", &place.path)?;
        if is_same {
            remove_other_names(snapshot, judged, open, &place, is_dead)?;
        }
        is_same && place.unlink()?
    } else if is_dead {
        let mut placeholder = placeholder(snapshot, judged);
        let fallback = swap_fallback(snapshot, judged);
        place.remove_dead(open, &mut placeholder, fallback)?
    } else {
        place.remove_if_judged(open)?
    };
    if removed {
        snapshot.root.prune(&parents, 0);
    }
    Ok(removed)
}

/// Removes the other names of a hold of several locks, if the file still has them.
fn remove_other_names(
    snapshot: &FilesSnapshot<'_>,
    judged: &Judged,
    open: &OpenFile,
    place: &LockPath,
    is_dead: bool,
) -> Result<()> {
    let Some(record) = judged.record().filter(|record| !record.names.is_empty()) else {
        return Ok(());
    };
    if !is_dead && record.is_detached() {
        // If this process is killed between two of the names, none of them is held.
        let live = Live {
            released: true,
            ..record.live.clone()
        };
        // Another user's file may not be written, but removed.
        let _ = write_slot(place, judged, &live);
    }
    let is_shared = judged.found.key.index.is_some();
    // They may be anything, if another program wrote them, and as many as a record has room for.
    let others: BTreeSet<&String> = record.names.iter().collect();
    let others = others
        .into_iter()
        .filter_map(|name| LockName::new(name).ok());
    for name in others.filter(|name| *name != judged.found.key.name) {
        let key = Key::of(&name, is_shared.then_some(Index::default()));
        let layout = snapshot.root.layout();
        let (parents, file) = layout.place_of(&key);
        let Ok(Some(directory)) = snapshot.root.descend(&parents) else {
            continue;
        };
        let path = snapshot.files.below(&parents);
        let mut files = vec![file];
        if is_shared {
            // Its number is another one there.
            files = directory.names().unwrap_or_default();
            files.retain(|file| layout == Layout::Tree || is_shared_in_flat(file, &key.name));
        }
        for file in files {
            let facts = directory.facts(&file).context("inspect", &path)?;
            if facts.is_some_and(|facts| facts.id == open.facts.id) {
                directory
                    .unlink(&file)
                    .context("remove", &path.join(&file))?;
            }
        }
        snapshot.root.prune(&parents, 0);
    }
    Ok(())
}

fn is_shared_in_flat(file: &OsStr, name: &LockName) -> bool {
    flat_key(file).is_some_and(|found| found.index.is_some() && found.name == *name)
}

/// A record that is in place while a dead foreign one is removed.
fn placeholder(snapshot: &FilesSnapshot<'_>, judged: &Judged) -> Record {
    let files = snapshot.files;
    let now = chrono::Utc::now().trunc_subsecs(6);
    let own = Pid::of_self();
    let replaced = judged.record();
    // Programs that know the old format look at it in between.
    let format = replaced.map_or(files.format, |record| record.format);
    let mut record = Record::new(format, Some(own), now);
    record.hold = number::by_clock(now, replaced.map_or(0, |record| record.hold));
    judged.found.key.name.as_str().clone_into(&mut record.name);
    record.kernel_lock = true;
    record.hostname.clone_from(&files.host.observer().hostname);
    record.origin = Some(files.host.origin(snapshot.root.id));
    record
}

/// A draft with number, time and origin.
fn complete(snapshot: &FilesSnapshot<'_>, put: &[Put], draft: &Record) -> Result<Record> {
    let root = snapshot.root;
    let now = chrono::Utc::now().trunc_subsecs(6);
    let replaced = put
        .iter()
        .filter_map(|(_, replaced)| replaced.as_ref()?.record())
        .map(|record| record.hold)
        .max()
        .unwrap_or(0);
    let mut record = draft.clone();
    record.hold = if put.iter().any(|(key, _)| key.name.is_path()) {
        number::by_clock(now, replaced)
    } else {
        let kept = snapshot.place.and_then(|place| place.last.as_deref());
        let kept = kept.filter(|last| number::is_last(&root.directory, last).unwrap_or(false));
        let number = match kept {
            Some(last) => number::next(root, Some(last), now, replaced),
            None => number::open(&root.directory)
                .and_then(|last| number::next(root, last.as_ref(), now, replaced)),
        };
        number.context("write the hold number in", &root.path.join(META_DIR))?
    };
    record.acquired_at = now;
    record.origin = Some(snapshot.files.host.origin(root.id));
    Ok(record)
}

/// Fails before a wait if the record would be too long to be written after it. Only several names can
/// make it that long.
pub(super) fn ensure_fits(snapshot: &FilesSnapshot<'_>, draft: &Record) -> Result<()> {
    if draft.names.is_empty() {
        return Ok(());
    }
    let mut record = draft.clone();
    record.hold = number::by_clock(record.acquired_at, 0);
    record.origin = Some(snapshot.files.host.origin(snapshot.root.id));
    encode(&record, &snapshot.files.store).map(|_| ())
}

/// Writes what changes of a record, and returns its file; `None`: it is no longer what was judged.
pub(super) fn renew(
    snapshot: &FilesSnapshot<'_>,
    judged: &Judged,
    live: &Live,
) -> Result<Option<File>> {
    let place = snapshot.at(&judged.found.key)?;
    place.map_or(Ok(None), |place| write_slot(&place, judged, live))
}

/// Writes into the file of a record, which was written for this key and store: no user can put any other file in
/// its place that is written into.
fn write_slot(place: &LockPath, judged: &Judged, live: &Live) -> Result<Option<File>> {
    let (Some(open), Some(record)) = (&judged.found.handle, judged.record()) else {
        return Ok(None);
    };
    // A record that is torn under the guard is damaged. Rewriting it would lose the process in it.
    let is_damaged = record.live.is_torn && record.kind != Kind::Lease;
    let at = match format::slot_at(record.format, &open.bytes) {
        _ if !record.is_ours() => Err("its record was written by another program"),
        _ if provenance::of(&judged.found) == Some(Provenance::OtherName) => {
            Err("its record was written for a lock of another name")
        }
        _ if provenance::of(&judged.found) != Some(Provenance::Here) => {
            Err("its record was written in another store")
        }
        _ if is_damaged => Err("the part of its record that a renewal changes is damaged"),
        None if record.format == Format::Pid => Err("a PID file has no room for it"),
        None => Err("its record was edited, and has no room for it"),
        Some(at) => Ok(at),
    };
    let at = at.map_err(|why| Error::NotRenewable {
        path: place.path.clone(),
        why,
    })?;
    let write = || -> io::Result<Option<File>> {
        let file = match place.directory.open_for_update(&place.file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        // A shared record was closed meanwhile, and its number may be that of another file by now.
        let is_same = facts_of_file(&file)?.id == open.facts.id
            && (record.format != Format::Native
                || format::is_same_native_record(&open.bytes, &read_all(&file)?));
        if !is_same {
            return Ok(None);
        }
        let mut renewed = record.clone();
        renewed.live = live.clone();
        renew_foreign_times(&file, &renewed)?;
        file.write_all_at(&live::write(live)?, at as u64)?;
        Ok(Some(file))
    };
    write().context("renew", &place.path)
}
