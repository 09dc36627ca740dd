//! One lock file: where it is, how it is read, how a new one gets its name.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use chrono::{DateTime, Utc};

use crate::decision::{Facts, Key, Moment, Revision};
use crate::error::{Context, Error, Result};
use crate::format::{self, Written};
use crate::open_file::{Found as FoundRecord, OpenFile, read_all};
use crate::record::{Content, Format, MAX_RECORD_BYTES, Record, digest, has_four_digits};
use crate::sys::directory::{
    Directory, FileExt as _, FileFacts, Found, Kind as FileKind, facts_of_file, move_to_high_fd,
    try_lock_record,
};
use crate::sys::temporary::{random_temporary_name, temporary_name};

/// Number of reads while a record is being written.
const MAX_READS: usize = 8;

/// The file at the path of a lock.
pub(super) enum OnDisk {
    Nothing,
    /// Something that is not a regular file.
    NotRegular(&'static str),
    File(LockFile),
}

/// A lock file as it was read. It is open, because an inode number means nothing once the file is
/// closed.
#[derive(Debug)]
pub(super) struct LockFile {
    pub(super) file: File,
    pub(super) facts: FileFacts,
    pub(super) content: Content,
    pub(super) bytes: Vec<u8>,
    /// A bare number may be a lock there.
    pid_file: bool,
}

/// A new lock file of our own.
pub(super) struct NewLockFile {
    pub(super) file: File,
    pub(super) written: Written,
}

/// The path of a lock file: its directory, kept open, and its name there.
#[derive(Clone, Debug)]
pub(crate) struct LockPath {
    pub(crate) directory: Arc<Directory>,
    pub(crate) file: OsString,
    /// For messages.
    pub(crate) path: PathBuf,
    /// The format that is expected there.
    pub(crate) format: Format,
}

impl LockPath {
    /// Reads what is there, without changing anything.
    pub(super) fn read(&self) -> Result<OnDisk> {
        self.read_found(self.directory.find(&self.file))
    }

    /// [Reads](Self::read) a file that was listed with this kind, with one system call less.
    pub(super) fn read_listed(&self, kind: FileKind) -> Result<OnDisk> {
        self.read_found(match kind {
            FileKind::RegularFile => self.directory.find_regular(&self.file),
            FileKind::OtherOrUnknown => self.directory.find(&self.file),
        })
    }

    fn read_found(&self, found: io::Result<Found>) -> Result<OnDisk> {
        match found.context("open", &self.path)? {
            Found::Missing => Ok(OnDisk::Nothing),
            Found::Other(kind) => Ok(OnDisk::NotRegular(kind)),
            Found::File(file, facts) => {
                let read = LockFile::read(file, facts, self.is_pid_file());
                read.context("read", &self.path).map(OnDisk::File)
            }
        }
    }

    /// Whether a bare number may be a lock there.
    pub(super) fn is_pid_file(&self) -> bool {
        let name = self.file.as_encoded_bytes();
        let name = name.strip_suffix(b".lock").unwrap_or(name);
        self.format == Format::Pid || name.ends_with(b".pid")
    }

    /// Links a record to its name; `None` if the name is taken by now. The record appears complete
    /// or not at all, and link(2) never overwrites, so that programs which create
    /// their lock files with `O_EXCL` are excluded too. `prepared`: an unnamed file made beforehand,
    /// on the same filesystem.
    pub(super) fn link(
        &self,
        record: &Record,
        prepared: Option<File>,
    ) -> Result<Option<NewLockFile>> {
        let was_prepared = prepared.is_some();
        let unnamed = match prepared {
            Some(file) => Some(file),
            None => self
                .directory
                .create_unnamed()
                .context("create lock file in the directory of", &self.path)?,
        };
        if let Some(file) = unnamed {
            let new = self.fill(file, record, encode(record, &self.path)?)?;
            match self.directory.link_unnamed(&new.file, &self.file) {
                Ok(linked) => return Ok(linked.then_some(new)),
                // A directory of the store may be on another filesystem.
                Err(error) if error.kind() == io::ErrorKind::CrossesDevices && was_prepared => {
                    return self.link(record, None);
                }
                // Without /proc an unnamed file cannot get a name; see below.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error).context("create lock file", &self.path),
            }
        }
        let temporary = random_temporary_name();
        let new = self.create_temporary(&temporary, record)?;
        let linked = match self.directory.link(&temporary, &self.file) {
            // A network filesystem may have linked it and lost its answer.
            Ok(false) => is_named(&self.directory, &self.file, &new.file),
            linked => linked,
        };
        self.discard(&temporary, &new);
        Ok(linked
            .context("create lock file", &self.path)?
            .then_some(new))
    }

    /// Puts a record in place of a native one that was judged dead: a native zombie stays one until
    /// it is changed under the guard, so what is replaced need not be verified.
    pub(super) fn replace_native(&self, record: &Record, temporary: &OsStr) -> Result<NewLockFile> {
        let new = self.create_temporary(temporary, record)?;
        // ext4 starts to write the data of a file that is renamed over another (`auto_da_alloc`,
        // ext4(5)), but not of one that is exchanged: 141 and 92 microseconds for the takeover.
        if self.directory.exchange(temporary, &self.file).is_ok() {
            // `cleanup` removes what stays.
            let _ = self.directory.unlink(temporary);
            return Ok(new);
        }
        let renamed = self.directory.rename(temporary, &self.file);
        let renamed = renamed.inspect_err(|_| self.discard(temporary, &new));
        renamed.context("take over", &self.path).map(|()| new)
    }

    /// Removes the name; `false` if it was gone.
    pub(super) fn unlink(&self) -> Result<bool> {
        self.directory
            .unlink(&self.file)
            .context("remove", &self.path)
    }

    fn fill(&self, mut file: File, record: &Record, written: Written) -> Result<NewLockFile> {
        file.write_all(&written.bytes)
            .context("write lock file", &self.path)?;
        if record.kernel_lock {
            // Before the file has its name.
            file = move_to_high_fd(file).context("open", &self.path)?;
            if !try_lock_record(&file).context("lock", &self.path)? {
                return Err(io::ErrorKind::WouldBlock.into()).context("lock", &self.path);
            }
        } else {
            // A lease is renewed by whoever has its owner label. No process is signaled for it.
            self.directory
                .let_others_write(&file)
                .context("share lock file", &self.path)?;
        }
        Ok(NewLockFile { file, written })
    }

    /// A file that is not in place yet. Nothing is left of it on failure.
    pub(super) fn create_temporary(&self, name: &OsStr, record: &Record) -> Result<NewLockFile> {
        let written = encode(record, &self.path)?;
        let file = self
            .directory
            .create_named(name)
            .context("create lock file in the directory of", &self.path)?;
        let filled = self.fill(file, record, written);
        if filled.is_err() {
            let _ = self.directory.unlink(name);
        }
        filled
    }

    /// Whether it names an open file.
    pub(crate) fn is_named(&self, file: &File) -> Result<bool> {
        is_named(&self.directory, &self.file, file).context("inspect", &self.path)
    }

    /// Removes a temporary name if it still names our file. What stays is removed by `cleanup`.
    pub(super) fn discard(&self, temporary: &OsStr, new: &NewLockFile) {
        if matches!(is_named(&self.directory, temporary, &new.file), Ok(true)) {
            let _ = self.directory.unlink(temporary);
        }
    }

    pub(super) fn is_as_judged(&self, name: &OsStr, judged: &OpenFile) -> io::Result<bool> {
        let found = self.directory.facts(name)?;
        let is_same = judged.with_file(|file| {
            Ok(found.is_some_and(|facts| facts.id == judged.facts.id)
                && read_all(file)? == judged.bytes)
        })?;
        Ok(is_same.unwrap_or(false))
    }
}

/// The bytes of a record for the file at `path`.
pub(super) fn encode(record: &Record, path: &Path) -> Result<Written> {
    let written = format::write(record)
        .map_err(io::Error::from)
        .context("write lock file", path)?;
    if written.bytes.len() as u64 <= MAX_RECORD_BYTES {
        return Ok(written);
    }
    Err(Error::TooLong {
        what: "the record",
        limit: usize::try_from(MAX_RECORD_BYTES).unwrap_or(usize::MAX),
    })
}

impl LockFile {
    pub(super) fn read(file: File, facts: FileFacts, pid_file: bool) -> io::Result<Self> {
        let modified = wall_clock(facts.modified);
        let mut reads = 0;
        let (content, bytes) = loop {
            if facts.size > MAX_RECORD_BYTES {
                let too_large = Content::NotALock("too large for a lock file");
                break (too_large, Vec::new());
            }
            let bytes = read_all(&file)?;
            let content = format::read(&bytes, pid_file, modified);
            reads += 1;
            // Its holder may have been writing to it.
            let is_torn = content.record().is_some_and(|record| record.live.is_torn);
            if !is_torn || reads == MAX_READS {
                break (content, bytes);
            }
        };
        Ok(Self {
            file,
            facts,
            content,
            bytes,
            pid_file,
        })
    }

    /// Reads it again; whether it has changed.
    pub(super) fn read_again(&mut self) -> io::Result<bool> {
        let bytes = read_all(&self.file)?;
        if bytes == self.bytes {
            return Ok(false);
        }
        let facts = facts_of_file(&self.file)?;
        *self = Self::read(self.file.try_clone()?, facts, self.pid_file)?;
        Ok(true)
    }
}

/// What is in the place of a lock file and can be none.
pub(crate) fn not_a_lock(
    key: Key,
    what: &'static str,
    now: Moment,
    shares_kernel_locks: bool,
) -> FoundRecord {
    FoundRecord {
        key,
        content: Content::NotALock(what),
        facts: Facts::of_file(now.wall, shares_kernel_locks),
        revision: Revision::NONE,
        handle: None,
    }
}

/// Whether `name` names an open file.
pub(crate) fn is_named(directory: &Directory, name: &OsStr, file: &File) -> io::Result<bool> {
    let ours = facts_of_file(file)?;
    Ok(directory
        .facts(name)?
        .is_some_and(|named| named.id == ours.id))
}

/// Opens or makes a file of the store whose content may be lost. One that has another name, for example in a
/// copy of the store by `cp -al`, is replaced: what is written into it would be written there, too.
pub(super) fn open_or_replace(own: &Directory, name: &OsStr) -> io::Result<File> {
    match own.open_own(name, false) {
        Err(error) if error.kind() == io::ErrorKind::TooManyLinks => {
            own.unlink(name)?;
            own.open_own(name, false)
        }
        opened => opened,
    }
}

/// The temporary name that a takeover of `file` uses if it can: the same each time, so that the
/// next takeover finds what a killed one left, also without `cleanup`.
pub(super) fn own_temporary_name(file: &OsStr) -> OsString {
    temporary_name(digest(file.as_encoded_bytes()))
}

/// A file's time; one outside the calendar is as far away as can be.
pub(crate) fn wall_clock(time: SystemTime) -> DateTime<Utc> {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_secs())
        .ok()
        .and_then(|seconds| DateTime::from_timestamp(seconds, since.subsec_nanos()))
        .filter(|time| has_four_digits(*time))
        .unwrap_or(DateTime::<Utc>::MAX_UTC)
}

/// Programs of a format with times in it take a holder for stale unless the times are recent. Both are
/// rewritten in place, at the same length.
pub(super) fn renew_foreign_times(file: &File, record: &Record) -> io::Result<()> {
    let (Format::Memory, Some(renewed_at)) = (record.format, record.live.renewed_at) else {
        return Ok(());
    };
    match format::renewed_times(&read_all(file)?, renewed_at) {
        Some((at, times)) => file.write_all_at(&times, at),
        None => Err(io::Error::other("its times are not where they were")),
    }
}
