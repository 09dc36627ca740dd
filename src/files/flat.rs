//! What a sticky store has beside its records.
//!
//! In a sticky directory nobody but root and its owner can remove what is another user's. The owner of a directory
//! below it could, whatever its mode. So no directory is used that belongs to anybody else: records lie flat in the
//! store, and so do numbers, tickets and the journal, as one file for each user. Root or the owner of the store may
//! make `.onehold` for the latter.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::layout::META_DIR;
use crate::error::{Context as _, Result};
use crate::sys::directory::Directory;
use crate::sys::process::own_uid;
use crate::sys::{is_not_a_directory, random_u64};

/// What the names of all these files begin with.
pub(super) const PREFIX: &str = ".onehold-";

/// A file that has not got its name yet.
const NEW: &str = "new";

#[derive(Debug)]
pub(super) struct Flat {
    store: Arc<Directory>,
    /// The directory that root or the owner of the store has made.
    prepared: Option<Arc<Directory>>,
    /// Its place is taken by a file, which makes builds fail that would put a directory there.
    is_marked: bool,
}

impl Flat {
    /// Fails if somebody else has made the directory.
    pub(super) fn of(store: &Arc<Directory>, path: &Path) -> Result<Self> {
        let opened = store.open_below(OsStr::new(META_DIR));
        let (prepared, is_marked) = match opened {
            Ok(own) => {
                store
                    .ensure_trusted(&own)
                    .context("use directory", &path.join(META_DIR))?;
                (Some(Arc::new(own)), true)
            }
            Err(error) if is_not_a_directory(&error) => {
                (None, error.kind() == io::ErrorKind::NotADirectory)
            }
            Err(error) => {
                return Err(error).context("use directory", &path.join(META_DIR));
            }
        };
        Ok(Self {
            store: Arc::clone(store),
            prepared,
            is_marked,
        })
    }

    /// Makes the directory. Under the guard.
    pub(super) fn prepare(&self) -> io::Result<()> {
        let name = OsStr::new(META_DIR);
        if self.prepared.is_none() {
            self.store.unlink(name)?;
            self.store.make_below(name)?;
        }
        Ok(())
    }

    /// The directory that root or the owner of the store has made.
    pub(super) fn prepared(&self) -> Option<&Directory> {
        self.prepared.as_deref()
    }

    /// Where new files are made.
    pub(super) fn directory(&self) -> &Arc<Directory> {
        self.prepared.as_ref().unwrap_or(&self.store)
    }

    /// Where there may be files: some may be older than the directory.
    pub(super) fn directories(&self) -> impl Iterator<Item = &Arc<Directory>> {
        std::iter::once(&self.store).chain(&self.prepared)
    }

    /// The file of this kind that is the caller's.
    pub(super) fn own_file(kind: &str) -> OsString {
        format!("{PREFIX}{kind}-{}", own_uid().unwrap_or_default()).into()
    }

    /// The files whose names begin with this kind, each with the rest of its name.
    pub(super) fn files(&self, kind: &str) -> Vec<(&Arc<Directory>, OsString, String)> {
        let mut found = Vec::new();
        for directory in self.directories() {
            for file in directory.names().unwrap_or_default() {
                if let Some(rest) = rest_of(&file, kind).map(ToOwned::to_owned) {
                    found.push((directory, file, rest));
                }
            }
        }
        found
    }

    /// The open files of this kind, of all users.
    pub(super) fn open_files(&self, kind: &str) -> impl Iterator<Item = File> {
        let files = self.files(kind).into_iter();
        files.filter_map(|(directory, file, _)| directory.find(&file).ok()?.file())
    }

    /// Puts a new file of this kind in place of the caller's. Fails where somebody else has made a file of that name.
    pub(super) fn replace(&self, kind: &str, bytes: &[u8]) -> io::Result<()> {
        if !self.is_marked {
            match self.store.create_named(OsStr::new(META_DIR)) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        let new = Self::new_name();
        self.directory().replace(&new, &Self::own_file(kind), bytes)
    }

    pub(super) fn new_name() -> OsString {
        format!("{PREFIX}{NEW}-{:016x}", random_u64()).into()
    }
}

/// Whether a file has not got its name yet.
pub(super) fn is_new(file: &OsStr) -> bool {
    rest_of(file, NEW).is_some()
}

/// What follows in the name of a file of this kind.
fn rest_of<'f>(file: &'f OsStr, kind: &str) -> Option<&'f str> {
    let rest = file.to_str()?.strip_prefix(PREFIX)?;
    rest.strip_prefix(kind)?.strip_prefix('-')
}

/// The name of a ticket's file in a sticky store.
pub(super) fn ticket_file(ticket: &OsStr, of: &OsStr) -> OsString {
    let mut file = OsString::from(format!("{PREFIX}{TICKET}-"));
    file.push(ticket);
    file.push("+");
    file.push(of);
    file
}

/// What the name of a ticket's file says: the ticket, and the file of its lock.
pub(super) fn ticket_in(file: &OsStr) -> Option<(&str, &str)> {
    rest_of(file, TICKET)?.split_once('+')
}

/// The kind of tickets.
pub(super) const TICKET: &str = "ticket";
