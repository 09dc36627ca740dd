//! A directory kept open, and the file operations the protocol is made of, all relative to it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat, flock, fstat, fstatfs,
    linkat, mkdirat, openat, renameat_with, statat, unlinkat,
};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

/// Device and inode: names a file for as long as it is kept open, and no longer (ext4 gives the
/// number of a removed file to the next one).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

/// What a file looks like from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileFacts {
    pub(crate) id: FileId,
    pub(crate) size: u64,
    pub(crate) modified: SystemTime,
}

/// What stands under a name.
pub(crate) enum Found {
    Missing,
    /// Something that is no regular file, and what it is.
    Other(&'static str),
    File(File, FileFacts),
}

/// What a directory says of an entry (readdir(3), `d_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    RegularFile,
    OtherOrUnknown,
}

/// What a filesystem can be trusted with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Filesystem {
    /// Kernel locks on it are seen by everyone who can open its files.
    pub(crate) shares_kernel_locks: bool,
}

/// Filesystems whose flock(2) is kept by this kernel for everyone who reaches them, by the magic
/// numbers of statfs(2). Any other (NFS, FUSE, 9p, virtiofs, …) may be changed from elsewhere.
const LOCAL_FILESYSTEMS: [u64; 12] = [
    0xEF53,      // ext2, ext3, ext4
    0x5846_5342, // xfs
    0x9123_683E, // btrfs
    0x0102_1994, // tmpfs
    0x8584_58F6, // ramfs
    0x2FC1_2FC1, // zfs
    0xF2F5_2010, // f2fs
    0x794C_7630, // overlay
    0xCA45_1A4E, // bcachefs
    0x3153_464A, // jfs
    0x5265_4973, // reiserfs
    0x3434,      // nilfs2
];

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
    pub(crate) fn make_below(&self, name: &OsStr, mode: u32) -> io::Result<()> {
        match mkdirat(&self.fd, name, Mode::from_raw_mode(mode)) {
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
        Ok(rustix::fs::fsync(&self.fd)?)
    }

    pub(crate) fn id(&self) -> io::Result<FileId> {
        Ok(id_of(&fstat(&self.fd)?))
    }

    pub(crate) fn filesystem(&self) -> io::Result<Filesystem> {
        // The type is signed on some architectures; the magic numbers are 32 bits wide.
        #[allow(clippy::cast_sign_loss, clippy::unnecessary_cast)]
        let magic = fstatfs(&self.fd)?.f_type as u64 & 0xFFFF_FFFF;
        Ok(Filesystem {
            shares_kernel_locks: LOCAL_FILESYSTEMS.contains(&magic),
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

    /// A file without a name (open(2), `O_TMPFILE`): nothing is left of it if we die.
    /// `None` where the filesystem has no such thing.
    pub(crate) fn create_unnamed(&self) -> io::Result<Option<File>> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        match openat(&self.fd, c".", flags, RECORD_MODE) {
            Ok(file) => Ok(Some(File::from(file))),
            // EISDIR and ENOENT: kernels and filesystems that do not know the flag (open(2)).
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A new file under a name nobody has.
    pub(crate) fn create_named(&self, name: &OsStr) -> io::Result<File> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(File::from(openat(&self.fd, name, flags, RECORD_MODE)?))
    }

    /// Gives a file of [`create_unnamed`](Self::create_unnamed) its name; `false` if the name is
    /// taken. Needs /proc (open(2)): without it the error is ENOENT.
    pub(crate) fn link_unnamed(&self, file: &File, name: &OsStr) -> io::Result<bool> {
        let path = descriptor_path(file);
        created(linkat(
            CWD,
            path.as_str(),
            &self.fd,
            name,
            AtFlags::SYMLINK_FOLLOW,
        ))
    }

    /// A second name for the file under `from`; `false` if the name is taken.
    pub(crate) fn link(&self, from: &OsStr, to: &OsStr) -> io::Result<bool> {
        created(linkat(&self.fd, from, &self.fd, to, AtFlags::empty()))
    }

    /// Exchanges what two names stand for, atomically (renameat2(2), `RENAME_EXCHANGE`).
    /// `Unsupported` where the filesystem cannot; `NotFound` if either name is gone.
    pub(crate) fn exchange(&self, one: &OsStr, other: &OsStr) -> io::Result<()> {
        match renameat_with(&self.fd, one, &self.fd, other, RenameFlags::EXCHANGE) {
            Ok(()) => Ok(()),
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
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

/// What the system says of a name that is not there.
pub(crate) fn not_found() -> io::Error {
    Errno::NOENT.into()
}

/// Which process keeps the lock on a directory, from `/proc/locks` (proc(5)).
pub(crate) fn who_locks(id: FileId) -> Option<u32> {
    let wanted = format!(
        "{:02x}:{:02x}:{}",
        rustix::fs::major(id.device),
        rustix::fs::minor(id.device),
        id.inode
    );
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // A line with `->` is a waiter.
        match fields.as_slice() {
            [_, "FLOCK", _, _, pid, file, ..] if *file == wanted => pid.parse().ok(),
            _ => None,
        }
    })
}

/// A path that leads to an open file whatever happens to its name.
pub(super) fn descriptor_path(file: &impl AsFd) -> String {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
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

fn id_of(stat: &Stat) -> FileId {
    FileId {
        device: stat.st_dev,
        inode: stat.st_ino,
    }
}

fn facts_of(stat: &Stat) -> FileFacts {
    let nanoseconds = Duration::from_nanos(stat.st_mtime_nsec);
    let modified = match u64::try_from(stat.st_mtime) {
        Ok(seconds) => SystemTime::UNIX_EPOCH
            .checked_add(Duration::from_secs(seconds).saturating_add(nanoseconds)),
        Err(_) => None,
    };
    FileFacts {
        id: id_of(stat),
        size: u64::try_from(stat.st_size).unwrap_or(0),
        // A time before 1970 is as old as can be.
        modified: modified.unwrap_or(SystemTime::UNIX_EPOCH),
    }
}

impl AsRawFd for Directory {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.fd.as_raw_fd()
    }
}
