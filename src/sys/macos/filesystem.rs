//! Which filesystems can be trusted, and what macOS's do not offer.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use rustix::fs::{Mode, fstatfs};
use rustix::io::Errno;

use crate::sys::FileId;

/// Filesystems whose flock(2) is kept by this kernel for everyone who reaches them, as statfs(2)
/// calls them. Any other (NFS, SMB, FUSE, virtiofs, …) may be changed from elsewhere.
const LOCAL_FILESYSTEMS: [&str; 2] = ["apfs", "hfs"];

/// Whether kernel locks on it are seen by everyone who can open its files.
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

/// A file without a name: there is no such thing.
#[allow(clippy::unnecessary_wraps, reason = "other systems can fail")]
pub(in crate::sys) fn create_unnamed(
    _directory: impl AsFd,
    _mode: Mode,
) -> io::Result<Option<File>> {
    Ok(None)
}

/// Makes names in a directory survive power loss: fsync(2) leaves them in the drive's cache.
pub(in crate::sys) fn sync(directory: impl AsFd) -> io::Result<()> {
    Ok(rustix::fs::fcntl_fullfsync(directory)?)
}

/// Gives such a file its name.
pub(in crate::sys) fn link_unnamed(
    _file: &File,
    _directory: impl AsFd,
    _name: &OsStr,
) -> rustix::io::Result<()> {
    Err(Errno::NOENT)
}

/// Which process keeps the lock on a directory: nobody tells that.
pub(crate) fn who_locks(_id: FileId) -> Option<u32> {
    None
}
