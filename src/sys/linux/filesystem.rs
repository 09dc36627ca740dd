//! Features of Linux's filesystems, and which of them share kernel locks.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use chrono::{DateTime, Utc};
use rustix::fs::{
    AtFlags, CWD, Dir, Mode, OFlags, RenameFlags, StatxFlags, fstatfs, linkat, openat,
    renameat_with, statx,
};
use rustix::io::Errno;

pub(crate) use super::kernel_locks::lockers;
use super::mount::Mount;
pub(in crate::sys) use super::walk::{open_directory, open_without_links};
use crate::sys::directory::{FcntlLock, id_of_path};

/// Filesystems on which this kernel manages flock(2) for all users of their files, by the magic
/// numbers of statfs(2). Any other (NFS, FUSE, 9p, virtiofs, …) may be changed by other machines.
const LOCAL_FILESYSTEMS: [(u64, &str); 16] = [
    (0xEF53, "ext2, ext3, ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683E, "btrfs"),
    (0x0102_1994, "tmpfs"),
    (0x8584_58F6, "ramfs"),
    (0x2FC1_2FC1, "zfs"),
    (0xF2F5_2010, "f2fs"),
    (0x794C_7630, "overlay"),
    (0xCA45_1A4E, "bcachefs"),
    (0x3153_464A, "jfs"),
    (0x5265_4973, "reiserfs"),
    (0x3434, "nilfs2"),
    (0x2405_1905, "ubifs"),
    (0x72B6, "jffs2"),
    (0x7366_746E, "ntfs3"),
    (0xF15F, "ecryptfs"),
];

/// Whether every process that can open its files sees the kernel locks on them.
pub(in crate::sys) fn shares_kernel_locks(directory: impl AsFd) -> io::Result<bool> {
    let magic = magic(directory)?;
    Ok(LOCAL_FILESYSTEMS.iter().any(|(local, _)| *local == magic))
}

/// The magic number of the type of a filesystem, 32 bits wide.
pub(super) fn magic(file: impl AsFd) -> io::Result<u64> {
    Ok(fstatfs(file)?.f_type as u64 & 0xFFFF_FFFF)
}

/// Whether a file belongs to the user that its metadata names.
pub(in crate::sys) fn owner_is_certain(file: &File, owner: u32) -> bool {
    /// The user that stands for all that this user namespace does not know (user_namespaces(7)).
    const OVERFLOW: u32 = 65534;
    const FUSE: u64 = 0x6573_5546;
    let knows_all_users = || {
        std::fs::read_to_string("/proc/self/uid_map")
            .is_ok_and(|map| map.split_ascii_whitespace().eq(["0", "0", "4294967295"]))
    };
    if owner == OVERFLOW && !knows_all_users() {
        return false;
    }
    match magic(file) {
        // The program that answers for the files belongs to who has mounted it.
        Ok(FUSE) => Mount::of(file).is_some_and(|mount| {
            let user = mount.mounted_by();
            user.is_none_or(|user| user == 0 || user == owner)
        }),
        Ok(_) => true,
        Err(_) => false,
    }
}

/// The names of the filesystems whose kernel locks are trusted.
pub(crate) fn local_filesystems() -> impl Iterator<Item = &'static str> {
    LOCAL_FILESYSTEMS.iter().map(|(_, name)| *name)
}

/// The type of the filesystem that a directory is on, such as `ext4` or `fuse.sshfs`.
pub(crate) fn type_of(path: &Path) -> Option<String> {
    let directory = File::open(path).ok()?;
    if let Some(mount) = Mount::of(&directory) {
        return mount.filesystem().map(ToOwned::to_owned);
    }
    // Without /proc, as in a chroot.
    let magic = magic(&directory).ok()?;
    let known = LOCAL_FILESYSTEMS.iter().find(|(local, _)| *local == magic);
    known.map(|(_, name)| (*name).to_owned())
}

/// What the wall clock read when this system was booted: devtmpfs is made then, and keeps that time, whatever the
/// clock is set to later. `None`: /dev is none, or the system does not tell (before Linux 5.18).
#[cold]
pub(crate) fn clock_at_boot() -> Option<DateTime<Utc>> {
    let directory = File::open("/dev").ok()?;
    if Mount::of(&directory)?.filesystem() != Some("devtmpfs") {
        return None;
    }
    let asked = StatxFlags::BTIME;
    let found = statx(&directory, c"", AtFlags::EMPTY_PATH, asked).ok()?;
    let is_known = found.stx_mask & asked.bits() != 0;
    let made = DateTime::from_timestamp(found.stx_btime.tv_sec, found.stx_btime.tv_nsec);
    made.filter(|_| is_known)
}

/// Whether the first process of this PID namespace sees another directory under that path, which has no symlinks: a
/// mount namespace, such as that of a unit of systemd with `PrivateTmp`.
pub(crate) fn is_seen_by_few(directory: &Path) -> bool {
    let root = Path::new("/proc/1/root");
    let own = id_of_path(directory).ok();
    // Only root, and the user of that process, may look.
    if id_of_path(&root.join(".")).is_ok() {
        let below = directory.strip_prefix("/").unwrap_or(directory);
        return own.is_some() && id_of_path(&root.join(below)).ok() != own;
    }
    let mount = File::open(directory).ok().and_then(|file| Mount::of(&file));
    let mounted = mount.as_ref().and_then(Mount::root);
    mounted.is_some_and(|mounted| mounted.contains("/systemd-private-"))
}

/// Makes created and removed names survive power loss (fsync(2)).
pub(in crate::sys) fn sync(directory: impl AsFd) -> io::Result<()> {
    Ok(rustix::fs::fsync(directory)?)
}

/// Makes the content of a file survive power loss (fdatasync(2)).
pub(crate) fn sync_file(file: &File) -> io::Result<()> {
    file.sync_data()
}

/// Creates a file without a name (open(2), `O_TMPFILE`). `None` if that is not supported here.
pub(in crate::sys) fn create_unnamed(directory: impl AsFd, mode: Mode) -> io::Result<Option<File>> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    match openat(directory, c".", flags, mode) {
        Ok(file) => Ok(Some(File::from(file))),
        // EISDIR and ENOENT: kernels and filesystems that do not know the flag (open(2)). ENOSYS
        // and EPERM: a seccomp filter refuses it.
        Err(
            Errno::OPNOTSUPP
            | Errno::ISDIR
            | Errno::INVAL
            | Errno::NOENT
            | Errno::NOSYS
            | Errno::PERM,
        ) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Names such a file. Needs Linux 6.10, the capability `CAP_DAC_READ_SEARCH`, or /proc (open(2)):
/// otherwise the error is ENOENT.
pub(in crate::sys) fn link_unnamed(
    file: &File,
    directory: impl AsFd,
    name: &OsStr,
) -> rustix::io::Result<()> {
    // Half of what the way through /proc takes.
    match linkat(file, c"", &directory, name, AtFlags::EMPTY_PATH) {
        Err(Errno::NOENT) => {
            let path = descriptor_path(file);
            linkat(CWD, path.as_str(), directory, name, AtFlags::SYMLINK_FOLLOW)
        }
        linked => linked,
    }
}

/// Whether a seccomp filter refuses renameat2(2): the kernel itself answers EINVAL to flags that
/// exclude each other, before it looks at anything else (renameat2(2)).
pub(in crate::sys) fn rename_is_filtered() -> bool {
    let flags = RenameFlags::NOREPLACE | RenameFlags::EXCHANGE;
    renameat_with(CWD, c".", CWD, c".", flags) != Err(Errno::INVAL)
}

/// Whether the answer of fcntl(2) is a lock of another program.
pub(in crate::sys) fn is_fcntl_lock(found: &FcntlLock) -> bool {
    i32::from(found.l_type) != libc::F_UNLCK
}

/// A path to an open file that stays valid when the file is renamed or removed.
pub(super) fn descriptor_path(file: &impl AsFd) -> String {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
}

/// The names in a directory of /proc. Not by the iterator of the standard library, which panics if the directory is
/// closed with an error.
pub(super) fn names_in(
    directory: &Path,
) -> io::Result<impl Iterator<Item = io::Result<OsString>> + use<>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let entries = Dir::new(openat(CWD, directory, flags, Mode::empty())?)?;
    Ok(entries.filter_map(|entry| match entry {
        Ok(entry) => {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            (name != "." && name != "..").then(|| Ok(name.to_owned()))
        }
        Err(error) => Some(Err(error.into())),
    }))
}
