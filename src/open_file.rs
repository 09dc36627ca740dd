//! A file that was found, and how it is referred to while a decision is made and carried out.

use std::cell::OnceCell;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use crate::decision;
use crate::format;
use crate::record::MAX_RECORD_BYTES;
use crate::sys::FileFacts;
use crate::sys::directory::{
    Directory, FileExt as _, Found as FoundFile, author_of, record_is_locked,
};
use crate::sys::work::Author;

/// What a found record or ticket is referred to by. `None`: it is not a regular file.
pub(crate) type Handle = Option<Rc<OpenFile>>;

/// What is decided about, as backends find it.
pub(crate) type Found = decision::Found<Handle>;
pub(crate) type Judged = decision::Judged<Handle>;
pub(crate) type Ticket = decision::Ticket<Handle>;
pub(crate) type Obstacle = decision::Obstacle<Handle>;
pub(crate) type Until = decision::Until<Handle>;

/// The file of a handle, to sleep on it.
pub(crate) fn file_of(handle: &Handle) -> io::Result<&OpenFile> {
    handle.as_deref().ok_or(io::ErrorKind::Unsupported.into())
}

/// A file that was found, kept open or opened again when it is needed.
#[derive(Debug)]
pub(crate) struct OpenFile {
    file: Kept,
    pub(crate) facts: FileFacts,
    pub(crate) bytes: Vec<u8>,
    author: OnceCell<Author>,
}

#[derive(Debug)]
enum Kept {
    Open(File),
    /// One of many, of which a process could not keep all open.
    Closed(Arc<Directory>, OsString),
}

impl OpenFile {
    pub(crate) fn new(file: File, facts: FileFacts, bytes: Vec<u8>) -> Self {
        Self {
            file: Kept::Open(file),
            facts,
            bytes,
            author: OnceCell::new(),
        }
    }

    /// Closes a native record, which has this name in a directory.
    pub(crate) fn close(self, directory: &Arc<Directory>, name: &OsStr) -> Self {
        Self {
            file: Kept::Closed(Arc::clone(directory), name.to_owned()),
            ..self
        }
    }

    /// Calls `with` with the file; `None`: it was closed, and its name is gone or names another one.
    pub(crate) fn with_file<T>(
        &self,
        with: impl FnOnce(&File) -> io::Result<T>,
    ) -> io::Result<Option<T>> {
        let (directory, name) = match &self.file {
            Kept::Open(file) => return with(file).map(Some),
            Kept::Closed(directory, name) => (directory, name),
        };
        let FoundFile::File(file, facts) = directory.find(name)? else {
            return Ok(None);
        };
        // ext4 gives the number of a removed file to the next one. What a record makes others do depends
        // on its owner.
        let is_same = facts.id == self.facts.id
            && facts.owner == self.facts.owner
            && format::is_same_native_record(&self.bytes, &read_all(&file)?);
        is_same.then(|| with(&file)).transpose()
    }

    /// The number of its user, where users have numbers.
    pub(crate) fn owner(&self) -> Option<u32> {
        cfg!(unix).then_some(self.facts.owner)
    }

    /// Who can have written the file. Looked up once and kept: a file that was closed is opened again by its name,
    /// which may be gone later.
    pub(crate) fn author(&self) -> Author {
        *self.author.get_or_init(|| {
            let author = self.with_file(author_of);
            author.ok().flatten().unwrap_or_default()
        })
    }

    /// Whether a kernel lock on it is taken.
    pub(crate) fn is_locked(&self) -> io::Result<bool> {
        let is_locked = self.with_file(record_is_locked)?;
        Ok(is_locked.unwrap_or(false))
    }
}

pub(crate) fn read_all(file: &File) -> io::Result<Vec<u8>> {
    let limit = usize::try_from(MAX_RECORD_BYTES).unwrap_or(usize::MAX);
    let mut bytes = Vec::new();
    // Nearly all records fit: one read, and no more memory than is kept.
    let mut piece = [0; 2048];
    loop {
        match file.read_at(&mut piece, bytes.len() as u64) {
            Ok(read) => {
                bytes.extend_from_slice(piece.get(..read).unwrap_or_default());
                // A regular file returns less than was asked for only at its end (read(2)).
                if read < piece.len() || bytes.len() > limit {
                    return Ok(bytes);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
