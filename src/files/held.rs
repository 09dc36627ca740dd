//! The lock file of a hold of this process.

use std::any::Any;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::directory::Files;
use super::guard::{Guard, Root};
use super::lock_file::{LockFile, LockPath, renew_foreign_times};
use super::{queue, shared_names};
use crate::backend::{Backend as _, GoesOn, HeldRecord, Patience, ReleaseOutcome, sleep_for};
use crate::decision::{Index, Key};
use crate::error::{Context, Result};
use crate::format::{self, VISIBLE_BYTES, live};
use crate::open_file::read_all;
use crate::record::{Format, Live, Record};
use crate::sys::Note;
use crate::sys::directory::{
    FileExt as _, facts_of_file, path_names_file, sync_file, unlock_record,
};

/// A lock file of our own, and all that is needed to write and remove it.
#[derive(Debug)]
pub(crate) struct HeldFile {
    pub(super) root: Root,
    pub(super) place: RecordName,
    /// The other names of the file, of a hold of several locks.
    pub(super) others: Vec<RecordName>,
    pub(super) file: File,
    pub(super) slot_at: Option<usize>,
    pub(super) visible_at: Option<usize>,
    /// Boxed, since a hold passes through many hands, and each page of stack costs a page fault.
    pub(super) record: Box<Record>,
}

/// A name of a lock file.
#[derive(Debug)]
pub(super) struct RecordName {
    pub(super) at: LockPath,
    /// The directories below the store that lead to it.
    pub(super) parents: Vec<OsString>,
    /// Which one of the shared records.
    index: Option<Index>,
    /// Its directories are left for the next one.
    stays: bool,
}

impl RecordName {
    /// Where a record is to be; its directories are made.
    pub(super) fn of(guard: &Guard, files: &Files, key: &Key) -> Result<Self> {
        let (parents, file) = guard.root.layout().place_of(key);
        let directory = guard
            .descend_or_create(&parents)
            .inspect_err(|_| guard.prune(&parents))?;
        // If it cannot be noted, the directories are removed.
        let note = || shared_names::note(&guard.root.directory, &key.name);
        let stays = key.index.is_some() && !parents.is_empty() && matches!(note(), Ok(true));
        Ok(Self {
            at: files.at(directory, file, files.path_of_record(key)),
            parents,
            index: key.index,
            stays,
        })
    }

    fn unlink(&self, guard: &Guard) -> Result<()> {
        self.at.unlink()?;
        self.prune(guard);
        Ok(())
    }

    fn prune(&self, guard: &Guard) {
        if !self.stays {
            guard.prune(&self.parents);
        }
    }
}

impl HeldFile {
    fn places(&self) -> impl Iterator<Item = &RecordName> {
        std::iter::once(&self.place).chain(&self.others)
    }

    /// Gives the file another name; `false`: it is taken.
    pub(super) fn add(&mut self, guard: &Guard, place: RecordName) -> Result<bool> {
        let (from, to) = (&self.place.at, &place.at);
        let linked = from
            .directory
            .link_into(&from.file, &to.directory, &to.file);
        let linked = linked.context("create lock file", &to.path)?;
        let is_ours = linked && place.at.is_named(&self.file)?;
        if is_ours {
            self.others.push(place);
        } else if linked {
            // The first name was replaced by a program that does not enter the guard.
            place.unlink(guard)?;
        } else {
            guard.prune(&place.parents);
        }
        Ok(is_ours)
    }

    /// Takes back the names that it has.
    pub(super) fn withdraw(self, guard: &Guard) {
        for place in self.places() {
            if matches!(place.at.is_named(&self.file), Ok(true)) {
                let _ = place.unlink(guard);
            }
        }
    }

    fn remove(&self) -> Result<ReleaseOutcome> {
        let guard = Guard::reenter(&self.root, Patience::SHORT)?;
        let is_in_place = self.place.at.is_named(&self.file)? && self.is_as_written()?;
        // The store may have been moved, and another one be in use in its place.
        let is_lost = if is_in_place {
            self.is_lost()
        } else {
            Ok(true)
        };
        for place in &self.others {
            if place.at.is_named(&self.file)? {
                place.unlink(&guard)?;
            }
        }
        if is_in_place {
            if self.record.format == Format::Native {
                self.place.at.unlink()?;
            } else if !self.place.at.remove_own(&self.file)? {
                return Ok(ReleaseOutcome::Lost);
            }
            self.place.prune(&guard);
        }
        is_lost.map(ReleaseOutcome::of_removed)
    }

    /// Whether the file still has our record: programs of other formats rewrite theirs in place.
    fn is_as_written(&self) -> Result<bool> {
        if self.record.format == Format::Native {
            return Ok(true);
        }
        let path = self.path();
        let read = || -> io::Result<LockFile> {
            let file = self.file.try_clone()?;
            let facts = facts_of_file(&file)?;
            LockFile::read(file, facts, self.place.at.is_pid_file())
        };
        let found = read().context("read", path)?;
        Ok(found.content.record().is_some_and(|found| {
            if self.record.format == Format::Pid {
                let shown = found.taken_by;
                shown == self.record.visible_pid() || shown == self.record.taken_by
            } else {
                found.hold == self.record.hold
            }
        }))
    }
}

/// The PID that other programs see, as it is on disk.
fn visible_word(record: &Record) -> Vec<u8> {
    let mut word = vec![b' '; VISIBLE_BYTES];
    if let Some(last) = word.last_mut().filter(|_| record.format == Format::Pid) {
        *last = b'\n';
    }
    if let Some(pid) = record.visible_pid() {
        live::fill_visible(&mut word, pid.get(), None);
    }
    word
}

impl HeldRecord for HeldFile {
    fn share_directory(&mut self, other: &dyn HeldRecord) -> bool {
        let other = (other as &dyn Any).downcast_ref::<Self>();
        let Some(other) = other.filter(|other| other.root.id == self.root.id) else {
            return false;
        };
        let own = std::mem::replace(&mut self.root, other.root.clone());
        for place in std::iter::once(&mut self.place).chain(&mut self.others) {
            if Arc::ptr_eq(&place.at.directory, &own.directory) {
                place.at.directory = Arc::clone(&other.root.directory);
            }
        }
        true
    }

    fn paths(&self) -> Vec<&Path> {
        self.places().map(|place| &*place.at.path).collect()
    }

    fn slots(&self) -> Vec<u32> {
        let records = self.places().filter_map(|place| place.index);
        records.map(Index::slot).collect()
    }

    fn file(&self) -> Option<&File> {
        Some(&self.file)
    }

    /// Its file, its names, and the directories that lead to them. Blocks on the disk.
    fn make_durable(&self) -> Result<()> {
        sync_file(&self.file).context("write to", self.path())?;
        for place in self.places() {
            let path = &place.at.path;
            let synced = place.at.directory.sync();
            synced.context("write to the directory of", path)?;
            for depth in 0..place.parents.len() {
                let (above, _) = place.parents.split_at(depth);
                if let Some(directory) = self.root.descend(above)? {
                    let synced = directory.sync();
                    synced.context("write to the directories of", path)?;
                }
            }
        }
        Ok(())
    }

    fn record(&self) -> &Record {
        &self.record
    }

    fn is_lost(&self) -> Result<bool> {
        for path in self.paths() {
            if !path_names_file(path, &self.file).context("inspect", path)? {
                return Ok(true);
            }
        }
        Ok(!self.is_as_written()?)
    }

    fn write_live(&mut self, live: Live) -> Result<()> {
        let renews = live.renewed_at != self.record.live.renewed_at;
        let shown = self.record.visible_pid();
        self.record.live = live;
        if !self.is_as_written()? {
            return Err(crate::error::Error::LostWhileAcquiring {
                path: self.path().to_owned(),
            });
        }
        let write = || -> io::Result<()> {
            if renews {
                renew_foreign_times(&self.file, &self.record)?;
            }
            if let Some(at) = self.slot_at {
                let slot = live::write(&self.record.live)?;
                self.file.write_all_at(&slot, at as u64)?;
            }
            let is_new = self.record.visible_pid() != shown;
            if let Some(at) = self.visible_at.filter(|_| is_new) {
                let word = visible_word(&self.record);
                self.file.write_all_at(&word, at as u64)?;
            }
            Ok(())
        };
        write().context("write to", self.path())
    }

    fn notes(&self) -> Result<Vec<Note>> {
        let record = &self.record;
        let slot = |at| -> io::Result<Note> {
            Ok(Note {
                offset: at as u64,
                bytes: live::draft(&record.live)?,
                fill: live::fill,
                // No other program writes into a native record.
                expected: match record.format {
                    Format::Native => Vec::new(),
                    _ => live::write(&record.live)?,
                },
            })
        };
        let word = |at| Note {
            offset: at as u64,
            bytes: visible_word(record),
            fill: live::fill_visible,
            expected: visible_word(record),
        };
        let slot = self.slot_at.map(slot).transpose();
        let slot = slot.context("write to", self.path())?;
        let notes = slot.into_iter().chain(self.visible_at.map(word));
        Ok(notes.collect())
    }

    fn survives_settling_time(&self) -> Result<bool> {
        let Some(time) = self.record.format.settling_time() else {
            return Ok(true);
        };
        sleep_for(Patience::of(time));
        let path = self.path();
        let expected = format::write(&self.record)
            .map_err(io::Error::from)
            .context("write lock file", path)?;
        let found = read_all(&self.file).context("read", path)?;
        Ok(!self.is_lost()? && found == expected.bytes)
    }

    fn keep(&mut self, live: Live, _left: Duration, _: GoesOn<'_>) -> Result<ReleaseOutcome> {
        if self.is_lost()? {
            // One of several names may be left.
            return self.release();
        }
        self.write_live(live)?;
        // As a lease it must survive a crash of the machine.
        self.make_durable()?;
        // Who waits for that lock sees from now on until when to wait.
        unlock_record(&self.file).context("unlock", self.path())?;
        Ok(ReleaseOutcome::Kept)
    }

    fn release(&mut self) -> Result<ReleaseOutcome> {
        // The name goes first. While it exists the file is locked, and a process that the command left
        // behind with its descriptor holds nothing.
        let ended = self.remove();
        let unlocked = unlock_record(&self.file).context("unlock", self.path());
        let ended = ended?;
        unlocked?;
        if queue::may_have_waiters(&self.root) {
            // The next holder was woken on this processor. What is left to do here, and be it the end of this
            // process, can wait.
            std::thread::yield_now();
        }
        Ok(ended)
    }
}
