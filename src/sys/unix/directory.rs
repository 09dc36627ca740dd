//! A directory kept open, and the file operations the protocol is made of, all relative to it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, RawMode, RenameFlags, Stat, flock, fstat,
    linkat, mkdirat, openat, renameat_with, statat, unlinkat,
};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use crate::sys::system::filesystem;
pub(crate) use crate::sys::system::filesystem::who_locks;
pub(crate) use crate::sys::{FileFacts, FileId, Filesystem, Found, Kind};
pub(crate) use std::os::unix::fs::FileExt;

#[derive(Debug)]
pub(crate) struct Directory {
    fd: OwnedFd,
}

impl Directory {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            fd: openat(CWD, path, flags, Mode::empty())?,
        })
    }

    /// A directory below this one; a symlink in its place is refused.
    pub(crate) fn open_below(&self, name: &OsStr) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => Ok(Self { fd }),
            Err(Errno::LOOP) => Err(Errno::NOTDIR.into()),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn duplicate(&self) -> io::Result<Self> {
        Ok(Self {
            fd: fcntl_dupfd_cloexec(&self.fd, 0)?,
        })
    }

    /// Creates a directory; that it exists already is fine.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "16 bits on macOS, enough for a mode"
    )]
    pub(crate) fn make_below(&self, name: &OsStr, mode: u32) -> io::Result<()> {
        match mkdirat(&self.fd, name, Mode::from_raw_mode(mode as RawMode)) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes a directory if it is empty; `true` if it is gone.
    pub(crate) fn remove_below_if_empty(&self, name: &OsStr) -> io::Result<bool> {
        match unlinkat(&self.fd, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR | Errno::BUSY) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes names that were given or taken away survive power loss.
    pub(crate) fn sync(&self) -> io::Result<()> {
        filesystem::sync(&self.fd)
    }

    pub(crate) fn id(&self) -> io::Result<FileId> {
        Ok(id_of(&fstat(&self.fd)?))
    }

    pub(crate) fn filesystem(&self) -> io::Result<Filesystem> {
        Ok(Filesystem {
            shares_kernel_locks: filesystem::shares_kernel_locks(&self.fd)?,
        })
    }

    /// Takes the exclusive lock on the directory itself, or says `false`.
    pub(crate) fn try_lock(&self) -> io::Result<bool> {
        try_flock(&self.fd, FlockOperation::NonBlockingLockExclusive)
    }

    /// Takes the exclusive lock on the directory itself, however long that takes. `Interrupted`
    /// when a signal came.
    pub(crate) fn lock(&self) -> io::Result<()> {
        Ok(flock(&self.fd, FlockOperation::LockExclusive)?)
    }

    /// Explicit, because a child forked meanwhile by another thread shares the descriptor and
    /// closing ours would leave the directory locked.
    pub(crate) fn unlock(&self) -> io::Result<()> {
        Ok(flock(&self.fd, FlockOperation::Unlock)?)
    }

    /// Opens what stands under `name` for reading, without following a symlink and without
    /// opening anything but a regular file (opening a device can have effects).
    pub(crate) fn find(&self, name: &OsStr) -> io::Result<Found> {
        let seen = match statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(seen) => seen,
            Err(Errno::NOENT) => return Ok(Found::Missing),
            Err(error) => return Err(error.into()),
        };
        match not_a_regular_file(&seen) {
            Some(kind) => Ok(Found::Other(kind)),
            None => self.find_regular(name),
        }
    }

    /// Opens what was just seen to be a regular file.
    pub(crate) fn find_regular(&self, name: &OsStr) -> io::Result<Found> {
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match openat(&self.fd, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(Found::Missing),
            Err(Errno::LOOP) => return Ok(Found::Other("a symbolic link")),
            // open(2): a socket cannot be opened.
            Err(Errno::NXIO) => return Ok(Found::Other("a socket")),
            Err(error) => return Err(error.into()),
        };
        let opened = fstat(&file)?;
        if let Some(kind) = not_a_regular_file(&opened) {
            return Ok(Found::Other(kind));
        }
        Ok(Found::File(file, facts_of(&opened)))
    }

    /// Opens the file under `name` for writing in place; the caller compares identities.
    pub(crate) fn open_for_update(&self, name: &OsStr) -> io::Result<File> {
        let flags =
            OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        Ok(File::from(openat(&self.fd, name, flags, Mode::empty())?))
    }

    /// The file under `name`, without opening it. `None`: nothing is there.
    pub(crate) fn facts(&self, name: &OsStr) -> io::Result<Option<FileFacts>> {
        match statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(seen) => Ok(Some(facts_of(&seen))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A file without a name: nothing is left of it if we die. `None` where there is no such thing.
    pub(crate) fn create_unnamed(&self) -> io::Result<Option<File>> {
        filesystem::create_unnamed(&self.fd, RECORD_MODE)
    }

    /// A new file under a name nobody has.
    pub(crate) fn create_named(&self, name: &OsStr) -> io::Result<File> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(File::from(openat(&self.fd, name, flags, RECORD_MODE)?))
    }

    /// Gives a file of [`create_unnamed`](Self::create_unnamed) its name; `false` if the name is
    /// taken, `NotFound` if it cannot be done here.
    pub(crate) fn link_unnamed(&self, file: &File, name: &OsStr) -> io::Result<bool> {
        created(filesystem::link_unnamed(file, &self.fd, name))
    }

    /// A second name for the file under `from`; `false` if the name is taken.
    pub(crate) fn link(&self, from: &OsStr, to: &OsStr) -> io::Result<bool> {
        created(linkat(&self.fd, from, &self.fd, to, AtFlags::empty()))
    }

    /// Renames, unless the new name is taken; whether it was free. Where that cannot be done at once
    /// (renameat2(2), `RENAME_NOREPLACE`), both names stand for the file for a moment.
    pub(crate) fn move_if_free(&self, from: &OsStr, to: &OsStr) -> io::Result<bool> {
        match renameat_with(&self.fd, from, &self.fd, to, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                let linked = self.link(from, to)?;
                if linked {
                    self.unlink(from)?;
                }
                Ok(linked)
            }
            renamed => created(renamed),
        }
    }

    /// Exchanges what two names stand for, atomically (renameat2(2), `RENAME_EXCHANGE`; on macOS
    /// renameatx_np(2), `RENAME_SWAP`). `Unsupported` where the filesystem cannot; `NotFound` if
    /// either name is gone.
    pub(crate) fn exchange(&self, one: &OsStr, other: &OsStr) -> io::Result<()> {
        match renameat_with(&self.fd, one, &self.fd, other, RenameFlags::EXCHANGE) {
            Ok(()) => Ok(()),
            // The last two are one on Linux.
            Err(error)
                if [Errno::INVAL, Errno::NOSYS, Errno::NOTSUP, Errno::OPNOTSUPP]
                    .contains(&error) =>
            {
                Err(io::ErrorKind::Unsupported.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Removes a name; `false` if there was none.
    pub(crate) fn unlink(&self, name: &OsStr) -> io::Result<bool> {
        match unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens or creates a small file of our own for writing; refuses anything but a regular file.
    pub(crate) fn open_own(&self, name: &OsStr, append: bool) -> io::Result<File> {
        let mut flags = OFlags::RDWR
            | OFlags::CREATE
            | OFlags::NOFOLLOW
            | OFlags::NONBLOCK
            | OFlags::NOCTTY
            | OFlags::CLOEXEC;
        flags.set(OFlags::APPEND, append);
        let file = File::from(openat(&self.fd, name, flags, RECORD_MODE)?);
        match not_a_regular_file(&fstat(&file)?) {
            None => Ok(file),
            Some(kind) => Err(io::Error::new(io::ErrorKind::InvalidInput, kind)),
        }
    }

    pub(crate) fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(renameat_with(
            &self.fd,
            from,
            &self.fd,
            to,
            RenameFlags::empty(),
        )?)
    }

    /// All names in the directory, in no order, without `.` and `..`.
    pub(crate) fn names(&self) -> io::Result<Vec<OsString>> {
        let entries = self.entries()?;
        Ok(entries.into_iter().map(|(name, _)| name).collect())
    }

    /// The same, with what each is, as far as the filesystem says so.
    pub(crate) fn entries(&self) -> io::Result<Vec<(OsString, Kind)>> {
        let mut entries = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                let kind = match entry.file_type() {
                    FileType::RegularFile => Kind::RegularFile,
                    _ => Kind::OtherOrUnknown,
                };
                entries.push((OsStr::from_bytes(name).to_owned(), kind));
            }
        }
        Ok(entries)
    }
}

/// Readable by all, so that anyone may see who holds what; writable by its owner.
const RECORD_MODE: Mode = Mode::RUSR
    .union(Mode::WUSR)
    .union(Mode::RGRP)
    .union(Mode::ROTH);

/// Whether `path` leads to an open file, not following a symlink in its last place.
pub(crate) fn leads_to(path: &Path, file: &File) -> io::Result<bool> {
    match statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(named) => Ok(id_of(&named) == id_of(&fstat(file)?)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The identity of the directory at `path`, following symlinks.
pub(crate) fn id_of_path(path: &Path) -> io::Result<FileId> {
    Ok(id_of(&statat(CWD, path, AtFlags::empty())?))
}

pub(crate) fn facts_of_file(file: &File) -> io::Result<FileFacts> {
    Ok(facts_of(&fstat(file)?))
}

/// Takes the exclusive kernel lock on a record, or says `false`.
pub(crate) fn try_lock_record(file: &File) -> io::Result<bool> {
    try_flock(file, FlockOperation::NonBlockingLockExclusive)
}

pub(crate) fn unlock_record(file: &File) -> io::Result<()> {
    Ok(flock(file, FlockOperation::Unlock)?)
}

/// Whether somebody else keeps the exclusive kernel lock on a record. Probes with a shared lock:
/// two probers who both tried an exclusive one would take each other for holders.
pub(crate) fn record_is_locked(file: &File) -> io::Result<bool> {
    if try_flock(file, FlockOperation::NonBlockingLockShared)? {
        flock(file, FlockOperation::Unlock)?;
        return Ok(false);
    }
    Ok(true)
}

/// Makes the table of descriptors as large as [`move_out_of_the_way`] needs it, while there is
/// perhaps only one thread: with two, the kernel waits for a grace period when it grows
/// (8 to 17 ms measured on Linux 6.18), which would be between a release and the next hold.
pub(crate) fn make_room() -> io::Result<()> {
    // Any open descriptor will do, and Rust's runtime has opened this one.
    fcntl_dupfd_cloexec(io::stderr(), 100).map(drop)?;
    Ok(())
}

/// The same open file under a descriptor of at least 100, out of the way of scripts, which use
/// 3 to 9.
pub(crate) fn move_out_of_the_way(file: File) -> io::Result<File> {
    match fcntl_dupfd_cloexec(&file, 100) {
        Ok(moved) => Ok(File::from(moved)),
        // The process may not have so many.
        Err(Errno::INVAL) => Ok(file),
        Err(error) => Err(error.into()),
    }
}

/// No name of a file means anything else.
pub(crate) const HAS_DEVICES: bool = false;

/// Whether a name is said to be the path of a file.
pub(crate) fn is_path(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    bytes.starts_with(b"/") || bytes.starts_with(b"./") || bytes.starts_with(b"../")
}

/// Makes a directory that only its owner may enter.
pub(crate) fn make_private(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().mode(0o700).create(path)
}

/// What the system says of a name that is not there.
pub(crate) fn not_found() -> io::Error {
    Errno::NOENT.into()
}

fn try_flock(file: impl AsFd, operation: FlockOperation) -> io::Result<bool> {
    loop {
        match flock(&file, operation) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn created(result: rustix::io::Result<()>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn not_a_regular_file(stat: &Stat) -> Option<&'static str> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => None,
        FileType::Directory => Some("a directory"),
        FileType::Symlink => Some("a symbolic link"),
        FileType::Fifo => Some("a FIFO"),
        FileType::Socket => Some("a socket"),
        _ => Some("a device"),
    }
}

// The types of these fields differ between systems.
#[allow(
    clippy::cast_sign_loss,
    clippy::unnecessary_cast,
    reason = "the types of these fields differ between systems"
)]
fn id_of(stat: &Stat) -> FileId {
    FileId {
        device: stat.st_dev as u64,
        inode: stat.st_ino as u64,
    }
}

fn facts_of(stat: &Stat) -> FileFacts {
    #[allow(
        clippy::cast_sign_loss,
        clippy::unnecessary_cast,
        reason = "the types of these fields differ between systems"
    )]
    let nanoseconds = Duration::from_nanos(stat.st_mtime_nsec as u64);
    let modified = match u64::try_from(stat.st_mtime) {
        Ok(seconds) => SystemTime::UNIX_EPOCH
            .checked_add(Duration::from_secs(seconds).saturating_add(nanoseconds)),
        Err(_) => None,
    };
    FileFacts {
        id: id_of(stat),
        is_regular: not_a_regular_file(stat).is_none(),
        size: u64::try_from(stat.st_size).unwrap_or(0),
        // A time before 1970 is as old as can be.
        modified: modified.unwrap_or(SystemTime::UNIX_EPOCH),
    }
}
