//! Which filesystems share kernel locks, and features that macOS does not have.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, fstatfs, openat};
use rustix::io::Errno;

use crate::sys::directory::FcntlLock;
pub(crate) use crate::sys::not_linux::{clock_at_boot, is_seen_by_few, lockers, type_of};

/// Filesystems on which this kernel manages flock(2) for all users of their files, by their names
/// in statfs(2). Any other (NFS, SMB, FUSE, virtiofs, …) may be changed by other machines.
const LOCAL_FILESYSTEMS: [&str; 2] = ["apfs", "hfs"];

/// Whether every process that can open its files sees the kernel locks on them.
pub(in crate::sys) fn shares_kernel_locks(directory: impl AsFd) -> io::Result<bool> {
    let found = fstatfs(directory)?;
    let is_local = found.f_flags & libc::MNT_LOCAL.cast_unsigned() != 0;
    let name = found
        .f_fstypename
        .iter()
        .take_while(|byte| **byte != 0)
        .map(|byte| byte.cast_unsigned());
    let is_known = LOCAL_FILESYSTEMS
        .iter()
        .any(|known| name.clone().eq(known.bytes()));
    Ok(is_local && is_known)
}

/// Opens a directory, by the rules of the kernel.
pub(in crate::sys) fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

always! {
    /// Would open a file below a directory without going through any symbolic link.
    pub(in crate::sys) open_without_links(_directory: impl AsFd, _path: &Path, _flags: OFlags) -> rustix::io::Result<OwnedFd>
        = Err(Errno::NOSYS);
    /// Would create a file without a name: not supported.
    pub(in crate::sys) create_unnamed(_directory: impl AsFd, _mode: Mode) -> io::Result<Option<File>>
        = Ok(None);
    /// Would name such a file.
    pub(in crate::sys) link_unnamed(_file: &File, _directory: impl AsFd, _name: &OsStr) -> rustix::io::Result<()>
        = Err(Errno::NOENT);
    /// Whether a seccomp filter refuses a rename: there are none.
    pub(in crate::sys) rename_is_filtered() -> bool = false;
}

/// Whether a file belongs to the user that its metadata names: not on a volume that ignores owners.
pub(in crate::sys) fn owner_is_certain(file: &File, _owner: u32) -> bool {
    let ignores = libc::MNT_IGNORE_OWNERSHIP.cast_unsigned();
    fstatfs(file).is_ok_and(|found| found.f_flags & ignores == 0)
}

/// Makes created and removed names survive power loss: fsync(2) leaves them in the drive's cache.
pub(in crate::sys) fn sync(directory: impl AsFd) -> io::Result<()> {
    match rustix::fs::fcntl_fullfsync(&directory) {
        // Disks and filesystems that do not know it (fcntl(2)), such as SMB.
        Err(Errno::NOTSUP | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOTTY | Errno::NOSYS) => {
            Ok(rustix::fs::fsync(directory)?)
        }
        synced => Ok(synced?),
    }
}

/// Makes the content of a file survive power loss.
pub(crate) fn sync_file(file: &File) -> io::Result<()> {
    sync(file)
}

/// Whether the answer of fcntl(2) is a lock of another program. Locks by flock(2) are in the same
/// list (XNU, `lf_getlock`), with a pid of -1: a shared one may be another probe of ours, and an
/// exclusive one is not.
pub(in crate::sys) fn is_fcntl_lock(found: &FcntlLock) -> bool {
    found.l_type == libc::F_WRLCK || (found.l_type == libc::F_RDLCK && found.l_pid > 0)
}

/// The names of the filesystems whose kernel locks are trusted.
pub(crate) fn local_filesystems() -> impl Iterator<Item = &'static str> {
    LOCAL_FILESYSTEMS.into_iter()
}
