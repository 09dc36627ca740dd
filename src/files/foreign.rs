//! Takeover and removal beside programs that know a lock file by its name only.
//!
//! Such a program does not enter the guard: it may remove, replace or create the file at any moment.
//! So a takeover swaps the new record with the old one, verifies that what came out is what was
//! judged, and reverts the swap if it is not. The new record names the file that is set aside, so that
//! the next process finishes or reverts a takeover whose process was killed.

use std::ffi::{OsStr, OsString};
use std::io;
use std::time::SystemTime;

use super::lock_file::{LockFile, LockPath, NewLockFile, OnDisk, is_named, own_temporary_name};
use crate::decision::verdict::State;
use crate::error::{Context, Error, Result};
use crate::name::LockName;
use crate::open_file::OpenFile;
use crate::record::{Content, Format, Record, TakeoverInfo, digest};
use crate::sys::FileId;
use crate::sys::directory::facts_of_file;
use crate::sys::temporary::{is_temporary, random_temporary_name};

/// Number of retries while another program keeps changing a file.
pub(crate) const MAX_RETRIES: usize = 100;

/// How to take over where the filesystem cannot swap two files.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SwapFallback {
    /// Replace by rename: no other program creates files there, or a person has decided.
    Rename,
    /// Leave it: another program's file could be lost.
    Refuse,
}

/// Whether a record may be changed by programs that do not enter the guard.
pub(super) fn is_foreign(content: &Content) -> bool {
    content
        .record()
        .is_none_or(|record| record.format != Format::Native)
}

/// Whether a takeover that was killed may have left something at this place.
pub(super) fn may_have_leftovers(place: &LockPath, name: &LockName, on_disk: &OnDisk) -> bool {
    let has_info = matches!(on_disk, OnDisk::File(file)
        if file.content.record().is_some_and(|record| record.takeover.is_some()));
    has_info || place.format != Format::Native || name.is_path()
}

/// Reads a place again after a takeover that was killed has been finished or reverted. Under the
/// guard.
pub(super) fn recover(
    judge: &dyn Fn(&LockFile) -> State,
    place: &LockPath,
    name: &LockName,
    mut on_disk: OnDisk,
) -> Result<OnDisk> {
    for _ in 0..MAX_RETRIES {
        let changed = match &on_disk {
            OnDisk::Nothing => restore_foreign_file(judge, place, name, None)?,
            OnDisk::NotRegular(_) => false,
            OnDisk::File(file) => {
                matches!(judge(file), State::Zombie | State::Free)
                    && (place.recover_takeover(file)?
                        || restore_foreign_file(judge, place, name, Some(file.facts.id))?)
            }
        };
        if !changed {
            return Ok(on_disk);
        }
        on_disk = place.read()?;
    }
    Err(io::Error::other("it keeps changing")).context("read", &place.path)
}

/// Restores the lock file of a live foreign program that a killed takeover left under a temporary
/// name. A foreign program has removed the record of that takeover since, so the lock now has no
/// file or a `dead` record.
fn restore_foreign_file(
    judge: &dyn Fn(&LockFile) -> State,
    place: &LockPath,
    name: &LockName,
    dead: Option<FileId>,
) -> Result<bool> {
    if place.format == Format::Native && !name.is_path() {
        return Ok(false);
    }
    let temporary = own_temporary_name(&place.file);
    let aside = place.sibling(&temporary);
    let taken_out = match aside.read() {
        Err(error) if is_denied(&error) => return Ok(false),
        on_disk => on_disk?,
    };
    let OnDisk::File(taken_out) = taken_out else {
        return Ok(false);
    };
    // A bare number does not show whether it is our own, which was never in place.
    let is_foreign = taken_out
        .content
        .record()
        .is_some_and(|record| !record.is_ours() && record.format != Format::Pid);
    if !is_foreign {
        return Ok(false);
    }
    match judge(&taken_out) {
        State::Held | State::Overdue => place.put_back(&temporary, dead),
        State::Zombie => {
            // If it stays, the next takeover uses another name.
            let _ = place.directory.unlink(&temporary);
            Ok(false)
        }
        State::Free | State::NotALock => Ok(false),
    }
}

impl LockPath {
    /// Puts a record in place of `judged`; `None`: the file is no longer the one that was judged.
    pub(super) fn take_over(
        &self,
        judged: &OpenFile,
        record: &mut Record,
        fallback: SwapFallback,
    ) -> Result<Option<NewLockFile>> {
        let temporary = self.claim_temporary_name()?;
        record.takeover = Some(takeover_info(judged, &temporary));
        let new = self.create_temporary(&temporary, record)?;
        let ours = facts_of_file(&new.file)
            .inspect_err(|_| self.discard(&temporary, &new))
            .context("inspect", &self.path)?;
        if let Err(error) = self.directory.exchange(&temporary, &self.file) {
            let result = match error.kind() {
                io::ErrorKind::NotFound => Ok(false),
                io::ErrorKind::Unsupported => match fallback {
                    SwapFallback::Rename => self.rename_if_judged(judged, &temporary),
                    SwapFallback::Refuse => Err(Error::NoAtomicExchange {
                        path: self.path.clone(),
                    }),
                },
                _ => Err(error).context("take over", &self.path),
            };
            if !matches!(result, Ok(true)) {
                self.discard(&temporary, &new);
            }
            return Ok(result?.then_some(new));
        }
        match self.is_as_judged(&temporary, judged) {
            Ok(true) => {
                // If it stays, it is a dead record that is not in place, and `cleanup` removes it.
                let _ = self.directory.unlink(&temporary);
                Ok(Some(new))
            }
            came_out => {
                let reverted = self.revert_swap(&temporary, ours.id);
                came_out.context("inspect", &self.path)?;
                if !reverted.context("put back", &self.path)? {
                    // The program that removed the name would have removed that file without us.
                    self.directory
                        .unlink(&temporary)
                        .context("remove", &self.path)?;
                }
                Ok(None)
            }
        }
    }

    /// Reverts a swap that put `placed` there: what came out goes back. Other programs may remove or
    /// replace meanwhile what they find under the name. `false` if the name was removed; then
    /// `temporary` still names what came out.
    fn revert_swap(&self, temporary: &OsStr, placed: FileId) -> io::Result<bool> {
        // An inode number means nothing once the file is closed. It may not be ours to read.
        let mut placed = (placed, None);
        loop {
            let going_back = self.directory.facts(temporary)?;
            let kept_open = self.directory.find(temporary).ok();
            match self.directory.exchange(temporary, &self.file) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
                exchanged => exchanged?,
            }
            let came_out = self.directory.facts(temporary)?;
            if came_out.is_none_or(|facts| facts.id == placed.0) {
                self.directory.unlink(temporary)?;
                return Ok(true);
            }
            // Ours had been replaced, and so was what has just been put back.
            match going_back {
                Some(going_back) => placed = (going_back.id, kept_open),
                None => return Ok(true),
            }
        }
    }

    fn rename_if_judged(&self, judged: &OpenFile, temporary: &OsStr) -> Result<bool> {
        let is_judged = self.is_as_judged(&self.file, judged);
        let is_judged = is_judged.context("inspect", &self.path)?;
        if is_judged {
            let renamed = self.directory.rename(temporary, &self.file);
            renamed.context("take over", &self.path)?;
        }
        Ok(is_judged)
    }

    /// Removes a live record, and nothing that another program has put there since it was judged.
    pub(super) fn remove_if_judged(&self, judged: &OpenFile) -> Result<bool> {
        self.remove_if(|temporary| self.is_as_judged(temporary, judged))
    }

    /// Removes a file of our own, whatever its content, and nothing else that is at its place.
    pub(super) fn remove_own(&self, own: &std::fs::File) -> Result<bool> {
        self.remove_if(|temporary| is_named(&self.directory, temporary, own))
    }

    /// Removes a dead record by taking it over first: programs that do not enter the guard see a live
    /// holder until the name is gone, and have no reason to put a file of theirs there.
    pub(super) fn remove_dead(
        &self,
        judged: &OpenFile,
        placeholder: &mut Record,
        fallback: SwapFallback,
    ) -> Result<bool> {
        match self.take_over(judged, placeholder, fallback) {
            // A late program may have removed ours by its name, and another one have come.
            Ok(Some(new)) => self.remove_own(&new.file),
            Ok(None) => Ok(false),
            // Without room for a placeholder it is removed at once.
            Err(Error::Io { source, .. }) if is_full(&source) => self.remove_if_judged(judged),
            Err(Error::Io { path, source, .. }) => Err(Error::Io {
                operation: "remove",
                path,
                source,
            }),
            Err(error) => Err(error),
        }
    }

    /// Removes what is there if, once it has a temporary name, it is what was meant.
    fn remove_if(&self, is_meant: impl FnOnce(&OsStr) -> io::Result<bool>) -> Result<bool> {
        let temporary = &*self.claim_temporary_name()?;
        let is_taken_out = self.take_out("remove", temporary, is_meant)?;
        if is_taken_out {
            let removed = self.directory.unlink(temporary);
            removed.context("remove", &self.path)?;
        }
        Ok(is_taken_out)
    }

    /// Gives what is there another name if it is what was meant, as is seen only then.
    pub(super) fn take_out(
        &self,
        operation: &'static str,
        name: &OsStr,
        is_meant: impl FnOnce(&OsStr) -> io::Result<bool>,
    ) -> Result<bool> {
        match self.directory.rename(&self.file, name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            renamed => renamed.context(operation, &self.path)?,
        }
        let is_meant = is_meant(name);
        if !matches!(is_meant, Ok(true)) {
            // If another file has come meanwhile, this one cannot go back, and is not ours to remove.
            self.directory
                .move_if_free(name, &self.file)
                .context("put back", &self.path)?;
        }
        is_meant.context("inspect", &self.path)
    }

    /// Puts back what was taken out. Its place is empty, or has a dead record.
    fn put_back(&self, temporary: &OsStr, dead: Option<FileId>) -> Result<bool> {
        let reverted = match dead {
            Some(dead) => self.revert_swap(temporary, dead),
            None => Ok(false),
        };
        let put_back = match reverted {
            Ok(false) => self.directory.move_if_free(temporary, &self.file),
            reverted => reverted,
        };
        match put_back {
            // Where nothing can be swapped, nothing was taken out; and a process that may not move
            // another user's file in a sticky directory has not moved it before.
            Err(error)
                if [io::ErrorKind::Unsupported, io::ErrorKind::PermissionDenied]
                    .contains(&error.kind()) =>
            {
                Ok(false)
            }
            put_back => put_back.map(|_| true).context("put back", &self.path),
        }
    }

    /// Finishes or reverts the takeover of a process that was killed. `dead` is its record. `true` if
    /// anything was done: then everything must be judged again.
    fn recover_takeover(&self, dead: &LockFile) -> Result<bool> {
        let info = dead
            .content
            .record()
            .and_then(|record| record.takeover.as_ref());
        let Some(info) = info.filter(|info| is_temporary(OsStr::new(&info.name))) else {
            return Ok(false);
        };
        let temporary = OsStr::new(&info.name);
        let aside = self
            .directory
            .facts(temporary)
            .context("inspect", &self.path)?
            .filter(|facts| facts.is_regular);
        let Some(aside) = aside else {
            return Ok(false);
        };
        // The record itself: it was not in place yet, or the swap was reverted.
        let same = (aside.id.inode, aside.size, nanoseconds(aside.modified))
            == (info.inode, info.size, info.modified_ns);
        let as_judged = || {
            self.sibling(temporary).read().map(|on_disk| match on_disk {
                OnDisk::File(found) => digest(&found.bytes) == info.digest,
                OnDisk::Nothing | OnDisk::NotRegular(_) => false,
            })
        };
        let is_finished = aside.id == dead.facts.id || (same && as_judged()?);
        if is_finished {
            self.directory
                .unlink(temporary)
                .context("remove", &self.path)?;
            return Ok(true);
        }
        // What was taken out is not what was judged: it goes back, the dead record comes out.
        self.put_back(temporary, Some(dead.facts.id))
    }

    /// The temporary name of a takeover, free for use. What is not ours keeps the name, and another
    /// name is used.
    pub(super) fn claim_temporary_name(&self) -> Result<OsString> {
        let name = own_temporary_name(&self.file);
        let left = match self.sibling(&name).read() {
            Ok(OnDisk::Nothing) => return Ok(name),
            Ok(OnDisk::NotRegular(_)) => return Ok(random_temporary_name()),
            Ok(OnDisk::File(left)) => left,
            Err(error) if is_denied(&error) => return Ok(random_temporary_name()),
            Err(error) => return Err(error),
        };
        // Under the guard no other process is about to use it.
        let is_ours = match &left.content {
            Content::Record(record) => record.is_ours(),
            Content::Corrupt => true,
            Content::UnknownVersion(_) | Content::KernelLock | Content::NotALock(_) => false,
        };
        let is_removed = is_ours
            && match self.directory.unlink(&name) {
                // In a sticky directory others may give it that name.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => false,
                removed => removed.context("remove", &self.path)?,
            };
        Ok(if is_removed {
            name
        } else {
            random_temporary_name()
        })
    }

    /// Another file of the same directory.
    fn sibling(&self, file: &OsStr) -> Self {
        let mut sibling = self.clone();
        file.clone_into(&mut sibling.file);
        if self.is_pid_file() {
            sibling.format = Format::Pid;
        }
        sibling
    }
}

fn takeover_info(judged: &OpenFile, temporary: &OsStr) -> TakeoverInfo {
    TakeoverInfo {
        name: temporary.to_string_lossy().into_owned(),
        inode: judged.facts.id.inode,
        size: judged.facts.size,
        modified_ns: nanoseconds(judged.facts.modified),
        digest: digest(&judged.bytes),
    }
}

fn nanoseconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .ok()
        .and_then(|since| u64::try_from(since.as_nanos()).ok())
        .unwrap_or(0)
}

/// In a sticky directory others may give any name to their files.
fn is_denied(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
}

/// The disk or the user's quota is full, or the file size limit is reached.
fn is_full(error: &io::Error) -> bool {
    use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}
