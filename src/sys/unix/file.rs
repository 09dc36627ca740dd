//! An open file: what it is, who can have written it, and its kernel locks.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
pub(crate) use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Stat, flock, fstat, statat};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::path::Arg;
use rustix::process::geteuid;

use super::checked;
use super::process::user_name;
use super::sharing::WRITABLE_BY_OTHERS;
use crate::sys::system::filesystem;
use crate::sys::work::Author;
use crate::sys::{FileFacts, FileId, KernelLockCall, SYMLINK};

/// Whether `path` leads to an open file, not following a symlink in its last place.
pub(crate) fn path_names_file(path: &Path, file: &File) -> io::Result<bool> {
    // The path first: on a server the open file may be gone with it, so that nothing can be asked of it (ESTALE).
    match id_at(path)? {
        Some(named) => Ok(named == id_of(&fstat(file)?)),
        None => Ok(false),
    }
}

/// What a path leads to, not following a symlink in its last place. Does not allocate for a C string.
pub(super) fn id_at(path: impl Arg) -> io::Result<Option<FileId>> {
    match statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(named) => Ok(Some(id_of(&named))),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether a lock name is the path of a file.
pub(crate) fn is_path(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    bytes.starts_with(b"/") || bytes.starts_with(b"./") || bytes.starts_with(b"../")
}

/// The owner of what is at a path, if that is another user than the caller.
pub(crate) fn other_owner(path: &Path) -> Option<String> {
    let owner = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).ok()?.st_uid;
    (owner != geteuid().as_raw()).then(|| user_name(owner))
}

/// The identity of the directory at `path`, following symlinks.
pub(crate) fn id_of_path(path: &Path) -> io::Result<FileId> {
    Ok(id_of(&statat(CWD, path, AtFlags::empty())?))
}

pub(crate) fn facts_of_file(file: &File) -> io::Result<FileFacts> {
    Ok(facts_of(&fstat(file)?))
}

/// Who can have written a file that is a record.
pub(crate) fn author_of(file: &File) -> io::Result<Author> {
    let facts = fstat(file)?;
    let mode = facts.st_mode;
    let owner = facts.st_uid;
    // An access list shows in the bits of the group (acl(5)).
    let is_of_one_user =
        mode & WRITABLE_BY_OTHERS == 0 && filesystem::owner_is_certain(file, owner);
    Ok(match owner {
        _ if !is_of_one_user => Author::Unknown,
        owner if owner == 0 || owner == geteuid().as_raw() => Author::Trusted,
        owner => Author::User(owner),
    })
}

/// Tries to take the exclusive kernel lock on a record; `false` if another process holds it.
pub(crate) fn try_lock_record(file: &File) -> io::Result<bool> {
    try_lock_file(file, false)
}

/// Tries to take the kernel lock on a file, a shared one as `flock -s` does.
pub(crate) fn try_lock_file(file: impl AsFd, is_shared: bool) -> io::Result<bool> {
    let operation = if is_shared {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    loop {
        match flock(&file, operation) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Takes such a lock. Blocks; `Interrupted` when a signal came.
pub(crate) fn lock_file(file: impl AsFd, is_shared: bool) -> io::Result<()> {
    let operation = if is_shared {
        FlockOperation::LockShared
    } else {
        FlockOperation::LockExclusive
    };
    Ok(flock(file, operation)?)
}

pub(crate) fn unlock_record(file: &File) -> io::Result<()> {
    Ok(flock(file, FlockOperation::Unlock)?)
}

/// Whether a lock was refused because the file is not open for writing: some network filesystems
/// lock no other (flock(2)).
pub(crate) fn needs_write_access(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::BADF)
}

impl KernelLockCall {
    /// Tries to take the lock of an open file description. An exclusive one of fcntl(2) needs a file that is open for
    /// writing: see [`needs_write_access`].
    pub(crate) fn try_lock(self, file: &File, is_shared: bool) -> io::Result<bool> {
        match self {
            Self::Flock => try_lock_file(file, is_shared),
            Self::Fcntl => {
                let taken = fcntl_call(file, libc::F_OFD_SETLK, fcntl_kind(is_shared));
                match taken.as_ref().map_err(io::Error::raw_os_error) {
                    Err(Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
                    _ => taken.map(|_| true),
                }
            }
        }
    }

    /// Takes such a lock. Blocks; `Interrupted` when a signal came.
    pub(crate) fn lock(self, file: &File, is_shared: bool) -> io::Result<()> {
        match self {
            Self::Flock => lock_file(file, is_shared),
            Self::Fcntl => fcntl_call(file, libc::F_OFD_SETLKW, fcntl_kind(is_shared)).map(drop),
        }
    }

    pub(crate) fn unlock(self, file: &File) -> io::Result<()> {
        match self {
            Self::Flock => unlock_record(file),
            Self::Fcntl => fcntl_call(file, libc::F_OFD_SETLK, libc::F_UNLCK).map(drop),
        }
    }

    /// Whether another one has the exclusive lock, or by fcntl(2) any.
    pub(crate) fn is_locked_exclusively(self, file: &File) -> io::Result<bool> {
        match self {
            Self::Flock => has_exclusive_lock(file),
            Self::Fcntl => fcntl_locked(file),
        }
    }
}

/// Whether another open file description has the exclusive lock of flock(2). Probes with a shared one,
/// for which a program that tries an exclusive one meanwhile may fail.
pub(crate) fn has_exclusive_lock(file: &File) -> io::Result<bool> {
    let is_free = try_lock_file(file, true)?;
    if is_free {
        flock(file, FlockOperation::Unlock)?;
    }
    Ok(!is_free)
}

/// Whether another open file description or process holds a kernel lock on a record: an exclusive
/// one by flock(2), or any by fcntl(2), which other programs take (with-lock-ex, lckdo).
///
/// Probes with a shared lock: two probers that both tried an exclusive one would take each other
/// for holders.
pub(crate) fn record_is_locked(file: &File) -> io::Result<bool> {
    Ok(has_exclusive_lock(file)? || fcntl_locked(file)?)
}

/// Whether another open file description or process holds a lock by fcntl(2) on any part of a file.
/// Only asks: a probe by fcntl(2) cannot get in the way of another one.
pub(in crate::sys) fn fcntl_locked(file: &File) -> io::Result<bool> {
    // A write lock conflicts with every lock, and to ask for one needs no right to write.
    match conflicting_lock(file, libc::F_OFD_GETLK) {
        // A kernel without locks of open file descriptions (Linux before 3.15, gVisor). This
        // question leaves out the locks of the calling process itself.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            conflicting_lock(file, libc::F_GETLK)
        }
        answer => answer,
    }
}

fn conflicting_lock(file: &File, question: libc::c_int) -> io::Result<bool> {
    match fcntl_call(file, question, libc::F_WRLCK) {
        Ok(found) => Ok(filesystem::is_fcntl_lock(&found)),
        Err(error) => match error.raw_os_error() {
            // A lock far behind the end that 32 bits reach.
            Some(libc::EOVERFLOW) => Ok(true),
            // A filesystem without such locks.
            Some(libc::ENOSYS | libc::EOPNOTSUPP) => Ok(false),
            _ => Err(error),
        },
    }
}

fn fcntl_kind(is_shared: bool) -> libc::c_int {
    if is_shared {
        libc::F_RDLCK.into()
    } else {
        libc::F_WRLCK.into()
    }
}

/// Makes such a call about a lock of this kind on a whole file. Returns the answer of the kernel.
fn fcntl_call(
    file: &File,
    call: libc::c_int,
    kind: impl Into<libc::c_int>,
) -> io::Result<FcntlLock> {
    // SAFETY: plain data, for which zeroes are valid; a length of 0 means up to the end of the
    // file.
    let mut lock: FcntlLock = unsafe { std::mem::zeroed() };
    // The types of these constants and fields differ between systems.
    lock.l_type = kind.into() as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: the descriptor is open, and the kernel reads and fills a lock of ours.
    checked(unsafe { libc::fcntl(file.as_raw_fd(), call, &raw mut lock) })?;
    Ok(lock)
}

// glibc has a narrower `flock` on 32 bits, and there F_OFD_GETLK takes the wide one (fcntl(2)).
#[cfg(not(all(target_os = "linux", target_env = "gnu", target_pointer_width = "32")))]
pub(in crate::sys) type FcntlLock = libc::flock;
#[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "32"))]
pub(in crate::sys) type FcntlLock = libc::flock64;

/// Grows the table of descriptors to the size that [`move_to_high_fd`] needs, while there is
/// still only one thread: with two, the kernel waits for a grace period when it grows (8 to 17 ms
/// measured on Linux 6.18), and that would delay the next hold.
pub(crate) fn grow_fd_table() -> io::Result<()> {
    // Any open descriptor will do, and Rust's runtime has opened this one.
    fcntl_dupfd_cloexec(io::stderr(), 100).map(drop)?;
    Ok(())
}

/// Moves an open file to a descriptor of at least 100, if one is free and it has none: scripts use 3 to 9.
pub(crate) fn move_to_high_fd(file: File) -> io::Result<File> {
    if file.as_raw_fd() >= 100 {
        return Ok(file);
    }
    match fcntl_dupfd_cloexec(&file, 100) {
        Ok(moved) => Ok(File::from(moved)),
        // The process may not have that many, or has them all: one that holds many locks runs no script.
        Err(Errno::INVAL | Errno::MFILE) => Ok(file),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn not_a_regular_file(stat: &Stat) -> Option<&'static str> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => None,
        FileType::Directory => Some("a directory"),
        FileType::Symlink => Some(SYMLINK),
        FileType::Fifo => Some("a FIFO"),
        FileType::Socket => Some("a socket"),
        _ => Some("a device"),
    }
}

// The types of these fields differ between systems.
pub(in crate::sys) fn id_of(stat: &Stat) -> FileId {
    FileId {
        device: stat.st_dev as u64,
        inode: stat.st_ino as u64,
    }
}

pub(super) fn facts_of(stat: &Stat) -> FileFacts {
    let (nanoseconds, links) = (
        Duration::from_nanos(stat.st_mtime_nsec as u64),
        stat.st_nlink as u64,
    );
    let modified = u64::try_from(stat.st_mtime).ok().and_then(|seconds| {
        let since_1970 = Duration::from_secs(seconds).saturating_add(nanoseconds);
        SystemTime::UNIX_EPOCH.checked_add(since_1970)
    });
    FileFacts {
        id: id_of(stat),
        is_regular: not_a_regular_file(stat).is_none(),
        size: u64::try_from(stat.st_size).unwrap_or(0),
        owner: stat.st_uid,
        links,
        // A time before 1970 is as old as can be.
        modified: modified.unwrap_or(SystemTime::UNIX_EPOCH),
    }
}
