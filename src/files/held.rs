//! A lock file of our own that is in force.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::directory::Files;
use super::guard::{Guard, descend};
use super::layout;
use super::lock_file::{LockFile, OwnedLockPath, read_all, renew_foreign_times};
use crate::backend::{HeldRecord, ReleaseOutcome};
use crate::error::{Context, Result};
use crate::format::{self, VISIBLE_BYTES, live};
use crate::name::LockName;
use crate::record::{Format, Live, Record};
use crate::sys::directory::{
    Directory, FileExt as _, facts_of_file, path_names_file, sync_file, unlock_record,
};
use crate::sys::wait::pause;
use crate::sys::{Note, process};

/// A lock file of our own, and all that is needed to write and remove it.
#[derive(Debug)]
pub(crate) struct HeldFile {
    pub(super) files: Files,
    pub(super) name: LockName,
    pub(super) root: Arc<Directory>,
    pub(super) place: OwnedLockPath,
    pub(super) file: File,
    pub(super) slot_at: Option<usize>,
    pub(super) visible_at: Option<usize>,
    /// Boxed, since a hold passes through many hands, and each page of stack costs a page fault.
    pub(super) record: Box<Record>,
}

impl HeldFile {
    pub(crate) fn path(&self) -> &Path {
        &self.place.path
    }

    /// The file, for a command that inherits it.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Makes a lease survive a crash of the machine: its file, its name, and the directories that
    /// lead to it. Blocks on the disk.
    pub(crate) fn make_durable(&self) -> Result<()> {
        let path = &self.place.path;
        sync_file(&self.file).context("write to", path)?;
        self.place
            .directory
            .sync()
            .context("write to the directory of", path)?;
        let parents = layout::parents(&self.name);
        for depth in 0..parents.len() {
            let (above, _) = parents.split_at(depth);
            if let Some(directory) = descend(&self.root, &self.files.store, above)? {
                directory
                    .sync()
                    .context("write to the directories of", path)?;
            }
        }
        Ok(())
    }

    fn remove(&self) -> Result<ReleaseOutcome> {
        let guard = Guard::reenter(&self.root, &self.files.store)?;
        let place = self.place.borrow();
        let named = place
            .directory
            .facts(place.file)
            .context("inspect", place.path)?;
        let ours = facts_of_file(&self.file).context("inspect", place.path)?;
        if named.is_none_or(|named| named.id != ours.id) || !self.is_as_written()? {
            return Ok(ReleaseOutcome::Lost);
        }
        // The store may have been moved, and another one be in use in its place.
        let is_lost = self.is_lost();
        if self.record.format == Format::Native {
            place.unlink()?;
        } else if !place.remove_own(&self.file)? {
            return Ok(ReleaseOutcome::Lost);
        }
        let parents = layout::parents(&self.name);
        if !parents.is_empty() {
            guard.prune(&parents);
        }
        Ok(if is_lost? {
            ReleaseOutcome::Lost
        } else {
            ReleaseOutcome::Released
        })
    }

    /// Whether the file still has our record: programs of other formats rewrite theirs in place.
    fn is_as_written(&self) -> Result<bool> {
        if matches!(self.record.format, Format::Native | Format::Flock) {
            return Ok(true);
        }
        let path = &self.place.path;
        let read = || -> io::Result<LockFile> {
            let file = self.file.try_clone()?;
            let facts = facts_of_file(&file)?;
            LockFile::read(file, facts, self.place.borrow().is_pid_file())
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

    fn write_visible(&self) -> io::Result<()> {
        let Some(at) = self.visible_at else {
            return Ok(());
        };
        let word = visible_word(&self.record);
        self.file.write_all_at(&word, at as u64)
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
    fn record(&self) -> &Record {
        &self.record
    }

    fn is_lost(&self) -> Result<bool> {
        let path = &self.place.path;
        let is_named = path_names_file(path, &self.file).context("inspect", path)?;
        Ok(!is_named || !self.is_as_written()?)
    }

    fn write_live(&mut self, live: Live) -> Result<()> {
        let renews = live.renewed_at != self.record.live.renewed_at;
        let shown = self.record.visible_pid();
        self.record.live = live;
        if !self.is_as_written()? {
            return Err(crate::error::Error::LostWhileAcquiring {
                path: self.place.path.clone(),
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
            if self.record.visible_pid() != shown {
                self.write_visible()?;
            }
            Ok(())
        };
        write().context("write to", &self.place.path)
    }

    fn notes(&self) -> Result<Vec<Note>> {
        let is_native = self.record.format == Format::Native;
        let mut notes = Vec::new();
        if let Some(at) = self.slot_at {
            let slots = || -> io::Result<(Vec<u8>, Vec<u8>)> {
                let live = &self.record.live;
                // No other program writes into a native record.
                let expected = if is_native {
                    Vec::new()
                } else {
                    live::write(live)?
                };
                Ok((live::draft(live)?, expected))
            };
            let (bytes, expected) = slots().context("write to", &self.place.path)?;
            notes.push(Note {
                offset: at as u64,
                bytes,
                fill: live::fill,
                expected,
            });
        }
        if let Some(at) = self.visible_at {
            let word = visible_word(&self.record);
            notes.push(Note {
                offset: at as u64,
                bytes: word.clone(),
                fill: live::fill_visible,
                expected: word,
            });
        }
        Ok(notes)
    }

    fn survives_settling_time(&self) -> Result<bool> {
        let Some(time) = self.record.format.settling_time() else {
            return Ok(true);
        };
        let until = process::boottime() + time;
        loop {
            let left = until.saturating_sub(process::boottime());
            if left.is_zero() {
                break;
            }
            // A signal may end it early.
            let _ = pause(left);
        }
        let path = &self.place.path;
        let expected = format::write(&self.record)
            .map_err(io::Error::from)
            .context("write lock file", path)?;
        let found = read_all(&self.file).context("read", path)?;
        Ok(!self.is_lost()? && found == expected.bytes)
    }

    fn release(&mut self) -> Result<ReleaseOutcome> {
        // The name goes first. While it exists the file is locked, and a process that the command left
        // behind with its descriptor holds nothing.
        let ended = if self.record.format == Format::Flock {
            self.is_lost().map(|is_lost| {
                if is_lost {
                    ReleaseOutcome::Lost
                } else {
                    ReleaseOutcome::Released
                }
            })
        } else {
            self.remove()
        };
        let unlocked = unlock_record(&self.file).context("unlock", &self.place.path);
        let ended = ended?;
        unlocked?;
        Ok(ended)
    }
}
