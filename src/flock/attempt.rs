//! Asks the kernel for the lock of a file, or looks who has it.

use std::cell::RefCell;
use std::fs::File;
use std::io;

use crate::error::{Context, Result};
use crate::files::{LockPath, MAX_RETRIES};
use crate::format;
use crate::identity::Pid;
use crate::open_file::{OpenFile, read_all};
use crate::record::MAX_RECORD_BYTES;
use crate::sys::directory::{Found as FoundFile, lockers, needs_write_access};
use crate::sys::{FileFacts, KernelLockCall, SYMLINK};

/// An attempt to take the lock, which is the only exact question whether it is free.
pub(super) struct Attempt {
    /// The file, with its lock taken: before, in a sleep, or by this attempt.
    pub(super) taken: RefCell<Option<File>>,
    /// As `flock -s`.
    pub(super) is_shared: bool,
}

/// What is known of a file that flock(1) locks.
pub(super) enum KernelLock {
    /// Free, and taken by now if that was attempted.
    Free,
    NotALock(&'static str),
    /// Locked, or, without `kernel_lock`, perhaps locked by a reader.
    Locked {
        open: OpenFile,
        kernel_lock: Option<bool>,
        lockers: Vec<Pid>,
        /// By readers alone, as far as that was asked: another one can join them.
        is_shared: bool,
    },
}

impl Attempt {
    fn take(&self, place: &LockPath, by: KernelLockCall, file: File) -> io::Result<(File, bool)> {
        match by.try_lock(&file, self.is_shared) {
            Err(error) if needs_write_access(&error) => {
                match place.directory.find_lockable(&place.file, false, true)? {
                    FoundFile::File(file, _) => by
                        .try_lock(&file, self.is_shared)
                        .map(|taken| (file, taken)),
                    FoundFile::Missing | FoundFile::Other(_) => Err(error),
                }
            }
            taken => taken.map(|taken| (file, taken)),
        }
    }

    fn has_taken(&self, place: &LockPath) -> Result<bool> {
        let mut taken = self.taken.borrow_mut();
        let Some(file) = taken.as_ref() else {
            return Ok(false);
        };
        // It may have been removed or replaced while it was waited for.
        let is_named = place.is_named(file)?;
        if !is_named {
            *taken = None;
        }
        Ok(is_named)
    }
}

/// Asks whether a file is locked. An attempt makes the file if there is none, and takes its lock if it can;
/// `None`: only looks.
pub(super) fn ask(
    place: &LockPath,
    by: KernelLockCall,
    attempt: Option<&Attempt>,
) -> Result<KernelLock> {
    if let Some(attempt) = attempt
        && attempt.has_taken(place)?
    {
        return Ok(KernelLock::Free);
    }
    let create = attempt.is_some();
    for _ in 0..MAX_RETRIES {
        let mut found = place.directory.find_lockable(&place.file, create, false);
        let is_refused = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        if by == KernelLockCall::Fcntl && !create && found.as_ref().is_err_and(is_refused) {
            // The system's list tells of files that may not be opened.
            found = place.directory.find_unread(&place.file);
        }
        let (file, facts) = match found.context("open", &place.path)? {
            FoundFile::Missing if create => continue,
            FoundFile::Missing => return Ok(KernelLock::Free),
            FoundFile::Other(SYMLINK) => return Ok(KernelLock::NotALock(LINK)),
            FoundFile::Other(kind) => return Ok(KernelLock::NotALock(kind)),
            FoundFile::File(file, facts) => (file, facts),
        };
        if is_native(&file, &facts) {
            return Ok(KernelLock::NotALock(NATIVE));
        }
        let Some(attempt) = attempt else {
            return look_at(file, by, facts).context("inspect", &place.path);
        };
        let (file, is_taken) = attempt.take(place, by, file).context("lock", &place.path)?;
        if !is_taken {
            let lockers = lockers(&file, by).unwrap_or_default().pids;
            return Ok(KernelLock::Locked {
                open: OpenFile::new(file, facts, Vec::new()),
                kernel_lock: Some(true),
                lockers,
                is_shared: false,
            });
        }
        if place.is_named(&file)? {
            *attempt.taken.borrow_mut() = Some(file);
            return Ok(KernelLock::Free);
        }
    }
    let source = io::Error::other("another program keeps replacing it");
    Err(source).context("lock", &place.path)
}

/// Whether a file is locked, and by which processes.
///
/// Where the list of locks says enough, the file itself is not touched: a probe would make a `flock -n`
/// fail that comes at the same moment.
fn look_at(file: File, by: KernelLockCall, facts: FileFacts) -> io::Result<KernelLock> {
    let listed = lockers(&file, by);
    let is_listed = listed.is_some();
    let seen = listed.unwrap_or_default();
    let (kernel_lock, is_exclusive) = if seen.is_locked || seen.is_complete {
        (Some(seen.is_locked), seen.is_exclusive)
    } else if by.is_locked_exclusively(&file)? {
        (Some(true), true)
    } else {
        (is_listed.then_some(false), false)
    };
    Ok(if kernel_lock == Some(false) {
        KernelLock::Free
    } else {
        KernelLock::Locked {
            open: OpenFile::new(file, facts, Vec::new()),
            kernel_lock,
            lockers: seen.pids,
            is_shared: !is_exclusive,
        }
    })
}

const LINK: &str = "a symbolic link: give the path that it leads to";

const NATIVE: &str = "it has a record of onehold: use it without --format flock";

/// Whether a file is a record of ours. Whoever locked it would pass for its holder.
fn is_native(file: &File, facts: &FileFacts) -> bool {
    facts.is_regular
        && (1..=MAX_RECORD_BYTES).contains(&facts.size)
        && read_all(file).is_ok_and(|bytes| format::is_native(&bytes))
}
