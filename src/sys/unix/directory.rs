//! An open directory, and the file operations of the protocol, all relative to it.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{
    Access, AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat,
    StatVfsMountFlags, Uid, accessat, fchmod, flock, fstat, fstatvfs, linkat, mkdirat, openat,
    renameat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

pub(crate) use super::file::*;
use super::process::user_name;
use super::sharing::{Made, RECORD_MODE, STICKY, Sharing, UNCLEANED};
use crate::identity::Pid;
use crate::sys::system::filesystem;
pub(crate) use crate::sys::system::filesystem::{
    clock_at_boot, is_seen_by_few, local_filesystems, lockers, sync_file, type_of,
};
use crate::sys::temporary::random_temporary_name;
pub(crate) use crate::sys::{FileFacts, FileId, Found, Kind, Space};
use crate::sys::{KernelLockCall, SYMLINK, created, existing};

#[derive(Debug)]
pub(crate) struct Directory {
    fd: OwnedFd,
    /// Of the store that it is or is in. `None`: it is a directory of other programs, or only read.
    sharing: Option<Sharing>,
}

/// An open file and its size. Refuses anything but a regular file with one name: in a copy of a store by `cp -al`, what
/// is written into a file would be written elsewhere, too. Proves nothing of a file that somebody else could have put
/// there.
fn own_file(opened: OwnedFd) -> io::Result<(File, u64)> {
    let facts = fstat(&opened)?;
    match not_a_regular_file(&facts) {
        Some(kind) => Err(io::Error::new(io::ErrorKind::InvalidInput, kind)),
        None if facts.st_nlink > 1 => Err(io::ErrorKind::TooManyLinks.into()),
        None => Ok((File::from(opened), facts_of(&facts).size)),
    }
}

impl Directory {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            fd: filesystem::open_directory(path)?,
            sharing: None,
        })
    }

    /// Makes the directory of a store, with those above it as far as they are missing; `false` if it exists. With
    /// mode 0700 if it `is_private`, else with what the umask leaves, as those above.
    pub(crate) fn make(path: &Path, is_private: bool) -> io::Result<bool> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok(false);
        };
        let parent = Self::open_or_make(parent)?;
        let mode = if is_private { 0o700 } else { 0o777 };
        let is_made = parent.make_by_owner(name, Mode::from_raw_mode(mode))?;
        if is_made {
            // Once in the life of a store: a lease must not be lost with its directory.
            parent.sync()?;
        }
        Ok(is_made)
    }

    fn open_or_make(path: &Path) -> io::Result<Self> {
        // The last part of a relative path.
        let is_here = path.as_os_str().is_empty();
        match Self::open(if is_here { Path::new(".") } else { path }) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !is_here => {}
            opened => return opened,
        }
        if let Some(parent) = path.parent() {
            let parent = Self::open_or_make(parent)?;
            if let Some(name) = path.file_name() {
                parent.make_by_owner(name, Mode::from_raw_mode(0o777))?;
                return parent.open_below(name);
            }
        }
        // `..` below what has just been made.
        Self::open(path)
    }

    /// Makes a directory; `false` if it exists. What root makes in another user's directory belongs to that user.
    fn make_by_owner(&self, name: &OsStr, mode: Mode) -> io::Result<bool> {
        let above = Sharing::of(&fstat(&self.fd)?);
        if !above.is_guest() {
            return created(mkdirat(&self.fd, name, mode));
        }
        self.make_changed(name, mode, |made| above.give_to_owner(made))
    }

    /// Takes owner, group and modes of what is made in this directory, and below it, from the directory itself.
    /// Returns its identity.
    pub(crate) fn share(&mut self) -> io::Result<FileId> {
        let facts = fstat(&self.fd)?;
        self.sharing = Some(Sharing::of(&facts));
        Ok(id_of(&facts))
    }

    /// Whether a path still leads to it, and who may use it is what it was when it was opened.
    pub(crate) fn is_as_opened(&self, path: &Path, id: FileId) -> io::Result<bool> {
        let named = statat(CWD, path, AtFlags::empty())?;
        let is_shared_alike = |sharing| sharing == Sharing::of(&named);
        Ok(id_of(&named) == id && self.sharing.is_none_or(is_shared_alike))
    }

    /// Whether it is a store that others may read but not write.
    pub(crate) fn is_exposed(&self) -> bool {
        self.sharing.is_some_and(Sharing::is_exposed)
    }

    /// Whether it is a store that others may write to, but in which they cannot remove what is another user's.
    pub(crate) fn is_sticky_store(&self) -> bool {
        self.sharing.is_some_and(Sharing::is_sticky)
    }

    /// Fails unless a directory below this store belongs to its owner or to root, and lets others remove nothing of
    /// another user's.
    pub(crate) fn ensure_trusted(&self, below: &Self) -> io::Result<()> {
        let found = fstat(&below.fd)?;
        let owner = Uid::from_raw(found.st_uid);
        let of_directory = Sharing::of(&found);
        let is_trusted = self.sharing.is_none_or(|store| store.trusts(owner));
        if is_trusted && (!of_directory.is_shared() || of_directory.is_sticky()) {
            return Ok(());
        }
        let who = if is_trusted {
            "others".to_owned()
        } else {
            format!("it belongs to user {}, who", user_name(owner.as_raw()))
        };
        Err(io::Error::other(format!(
            "{who} could remove what is kept in it"
        )))
    }

    /// Whether others may write to the store.
    pub(crate) fn is_shared(&self) -> bool {
        self.sharing.is_some_and(Sharing::is_shared)
    }

    /// Whether only the caller and root can write to the store.
    pub(crate) fn is_own(&self) -> bool {
        self.sharing.is_some_and(Sharing::is_own)
    }

    /// A directory below this one; a symlink in its place is refused.
    pub(crate) fn open_below(&self, name: &OsStr) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => Ok(Self {
                fd,
                sharing: self.sharing,
            }),
            Err(Errno::LOOP) => Err(Errno::NOTDIR.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates a directory; that it exists already is fine.
    pub(crate) fn make_below(&self, name: &OsStr) -> io::Result<()> {
        if !self.sharing.is_some_and(Sharing::changes_directories) {
            return created(mkdirat(&self.fd, name, Mode::from_raw_mode(0o777))).map(drop);
        }
        let change = |made: &OwnedFd| self.share_new(made, Made::Directory);
        let mode = Mode::from_raw_mode(0o700);
        self.make_changed(name, mode, change).map(drop)
    }

    /// Creates a directory that only the owner of the store may enter; that it exists already is fine.
    pub(crate) fn make_private_below(&self, name: &OsStr) -> io::Result<()> {
        let mode = Mode::from_raw_mode(0o700);
        let change = |made: &OwnedFd| {
            self.share_new(made, Made::Directory)?;
            Ok(fchmod(made, mode)?)
        };
        self.make_changed(name, mode, change).map(drop)
    }

    /// Creates a directory that is changed before it has its name: otherwise a kill in between would shut others out
    /// for good. `false`: the name exists.
    fn make_changed(
        &self,
        name: &OsStr,
        mode: Mode,
        change: impl FnOnce(&OwnedFd) -> io::Result<()>,
    ) -> io::Result<bool> {
        if self.look(name)?.is_some() {
            return Ok(false);
        }
        let temporary = &random_temporary_name();
        mkdirat(&self.fd, temporary, mode)?;
        let change_and_name = || {
            let new = self.open_below(temporary)?;
            // Who may write here may have put another one in its place.
            let is_as_made = fstat(&new.fd)?.st_uid == geteuid().as_raw();
            if !is_as_made || !new.entries()?.is_empty() {
                return Err(io::ErrorKind::NotFound.into());
            }
            change(&new.fd)?;
            let renamed =
                match renameat_with(&self.fd, temporary, &self.fd, name, RenameFlags::NOREPLACE) {
                    Err(error) if rename_flags_are_unsupported(error) => {
                        renameat(&self.fd, temporary, &self.fd, name)
                    }
                    renamed => renamed,
                };
            match renamed {
                Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => Ok(false),
                renamed => Ok(renamed.map(|()| true)?),
            }
        };
        let is_named = change_and_name();
        if !matches!(is_named, Ok(true)) {
            let _ = self.remove_below_if_empty(temporary);
        }
        is_named
    }

    /// Removes a directory if it is empty; `true` if it is gone.
    pub(crate) fn remove_below_if_empty(&self, name: &OsStr) -> io::Result<bool> {
        match unlinkat(&self.fd, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR | Errno::BUSY) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The user whose files alone this process can remove or replace in the directory: in a sticky one,
    /// that of the process itself. `None`: those of all users.
    pub(crate) fn only_removable(&self) -> io::Result<Option<u32>> {
        let facts = fstat(&self.fd)?;
        if facts.st_mode & STICKY == 0 {
            return Ok(None);
        }
        let user = geteuid();
        Ok((!user.is_root() && user.as_raw() != facts.st_uid).then_some(user.as_raw()))
    }

    /// Whether a file in it can only be removed by its own user, by that of the directory and by root.
    pub(crate) fn is_sticky(&self) -> bool {
        fstat(&self.fd).is_ok_and(|facts| facts.st_mode & STICKY != 0)
    }

    /// Makes created and removed names survive power loss.
    pub(crate) fn sync(&self) -> io::Result<()> {
        filesystem::sync(&self.fd)
    }

    pub(crate) fn id(&self) -> io::Result<FileId> {
        Ok(id_of(&fstat(&self.fd)?))
    }

    /// Whether every process that can open its files sees the kernel locks on them.
    pub(crate) fn shares_kernel_locks(&self) -> io::Result<bool> {
        filesystem::shares_kernel_locks(&self.fd)
    }

    /// Tries to take the exclusive lock on the directory itself; `false` if another process holds
    /// it.
    pub(crate) fn try_lock(&self) -> io::Result<bool> {
        try_lock_file(&self.fd, false)
    }

    /// Takes the exclusive lock on the directory itself. Blocks; `Interrupted` when a signal came.
    pub(crate) fn lock(&self) -> io::Result<()> {
        lock_file(&self.fd, false)
    }

    /// The process that has the lock on the directory itself, if the system tells.
    pub(crate) fn locked_by(&self) -> Option<Pid> {
        lockers(&self.fd, KernelLockCall::Flock)?
            .pids
            .first()
            .copied()
    }

    /// Releases the lock explicitly: a child that another thread forked meanwhile shares the
    /// descriptor, so closing ours would leave the directory locked.
    pub(crate) fn unlock(&self) -> io::Result<()> {
        Ok(flock(&self.fd, FlockOperation::Unlock)?)
    }

    /// Opens the file `name` for reading, without following a symlink and without opening anything
    /// but a regular file (opening a device can have effects).
    pub(crate) fn find(&self, name: &OsStr) -> io::Result<Found> {
        match self.look(name)?.map(|seen| not_a_regular_file(&seen)) {
            None => Ok(Found::Missing),
            Some(Some(kind)) => Ok(Found::Other(kind)),
            Some(None) => self.find_regular(name),
        }
    }

    /// Finds a name that was a regular file a moment ago, with one system call less.
    pub(crate) fn find_regular(&self, name: &OsStr) -> io::Result<Found> {
        match openat(&self.fd, name, OFlags::RDONLY | CAREFUL, Mode::empty()) {
            // open(2): a socket cannot be opened.
            Err(Errno::NXIO) => Ok(Found::Other("a socket")),
            opened => found(opened, not_a_regular_file),
        }
    }

    /// Metadata of what has this name, without opening it.
    fn look(&self, name: &OsStr) -> io::Result<Option<Stat>> {
        existing(statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW))
    }

    /// Opens what flock(1) can lock: a regular file, which is made if `create` says so, a directory, or
    /// a block device. `writable`: some network filesystems lock only what is open for writing.
    pub(crate) fn find_lockable(
        &self,
        name: &OsStr,
        create: bool,
        writable: bool,
    ) -> io::Result<Found> {
        let mut flags = CAREFUL;
        flags.set(OFlags::RDWR, writable);
        let not_lockable = |seen: &Stat| match FileType::from_raw_mode(seen.st_mode) {
            FileType::Directory | FileType::BlockDevice => None,
            _ => not_a_regular_file(seen),
        };
        let seen = self.look(name)?;
        if let Some(kind) = seen.as_ref().and_then(not_lockable) {
            return Ok(Found::Other(kind));
        }
        let opened = match seen {
            // Not with CREATE: the kernel refuses that for files of others in a sticky directory
            // (`fs.protected_regular`, proc_sys_fs(5)).
            Some(_) => openat(&self.fd, name, flags, Mode::empty()),
            None if create => openat(
                &self.fd,
                name,
                flags | OFlags::CREATE | OFlags::EXCL,
                Mode::from_raw_mode(0o666) | UNCLEANED,
            ),
            None => return Ok(Found::Missing),
        };
        found(opened, not_lockable)
    }

    /// A file that may not be opened: its descriptor serves to identify it.
    pub(crate) fn find_unread(&self, name: &OsStr) -> io::Result<Found> {
        // Other systems list no locks.
        #[cfg(target_os = "linux")]
        let flags = OFlags::PATH | CAREFUL;
        #[cfg(not(target_os = "linux"))]
        let flags = CAREFUL;
        found(
            openat(&self.fd, name, flags, Mode::empty()),
            not_a_regular_file,
        )
    }

    /// Opens the file `name` for writing in place. The caller checks that it is the expected file.
    pub(crate) fn open_for_update(&self, name: &OsStr) -> io::Result<File> {
        Ok(openat(&self.fd, name, OFlags::RDWR | CAREFUL, Mode::empty())?.into())
    }

    /// Fails if the caller may not write to the file `name`, which is not opened.
    pub(crate) fn ensure_writable(&self, name: &OsStr) -> io::Result<()> {
        unless_refused(accessat(&self.fd, name, Access::WRITE_OK, AtFlags::EACCESS))
    }

    /// A file of our own for writing at its end, and its size.
    pub(crate) fn open_to_append(&self, name: &OsStr) -> io::Result<(File, u64)> {
        let flags = OFlags::WRONLY | OFlags::APPEND | CAREFUL;
        own_file(openat(&self.fd, name, flags, Mode::empty())?)
    }

    /// Metadata of the file `name`, without opening it. `None` if there is none.
    pub(crate) fn facts(&self, name: &OsStr) -> io::Result<Option<FileFacts>> {
        Ok(self.look(name)?.as_ref().map(facts_of))
    }

    /// Creates a file without a name, of which nothing remains if we die. `None` if that is not
    /// supported here.
    pub(crate) fn create_unnamed(&self) -> io::Result<Option<File>> {
        let created = filesystem::create_unnamed(&self.fd, RECORD_MODE)?;
        if let Some(file) = &created {
            self.share_new(file, Made::Record)?;
        }
        Ok(created)
    }

    fn share_new(&self, new: impl AsFd, made: Made) -> io::Result<()> {
        self.sharing
            .map_or(Ok(()), |sharing| sharing.apply(new, made))
    }

    /// Creates a file; fails if the name exists.
    pub(crate) fn create_named(&self, name: &OsStr) -> io::Result<File> {
        self.make_named(name, Made::Record)
    }

    fn make_named(&self, name: &OsStr, made: Made) -> io::Result<File> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = match openat(&self.fd, name, flags, RECORD_MODE) {
            // The server of a network filesystem may know the bit for directories only.
            Err(Errno::PERM | Errno::INVAL | Errno::IO | Errno::OPNOTSUPP) => {
                openat(&self.fd, name, flags, RECORD_MODE.difference(UNCLEANED))
            }
            opened => opened,
        };
        let file = File::from(opened?);
        let applied = self.share_new(&file, made);
        if applied.is_err() {
            let _ = self.unlink(name);
        }
        applied.map(|()| file)
    }

    /// As [`Self::create_named`], for what each user of the store may replace in turn.
    pub(in crate::sys) fn create_common(&self, name: &OsStr) -> io::Result<File> {
        self.make_named(name, Made::Common)
    }

    /// Lets those write to a record who may replace it: in a sticky directory nobody but its user.
    pub(crate) fn let_others_write(&self, record: &File) -> io::Result<()> {
        let store = self.sharing;
        match store.filter(|store| store.is_shared() && !store.is_sticky()) {
            Some(store) => Ok(fchmod(record, store.mode_of_common())?),
            None => Ok(()),
        }
    }

    /// Names a file of [`create_unnamed`](Self::create_unnamed). `false` if the name exists,
    /// `NotFound` if that is not supported here.
    pub(crate) fn link_unnamed(&self, file: &File, name: &OsStr) -> io::Result<bool> {
        created(filesystem::link_unnamed(file, &self.fd, name))
    }

    /// Creates a second name for the file `from`; `false` if the name exists.
    pub(crate) fn link(&self, from: &OsStr, to: &OsStr) -> io::Result<bool> {
        created(linkat(&self.fd, from, &self.fd, to, AtFlags::empty()))
    }

    /// Creates a second name for the file `from` in another directory; `false` if that name exists.
    pub(crate) fn link_into(&self, from: &OsStr, other: &Self, to: &OsStr) -> io::Result<bool> {
        created(linkat(&self.fd, from, &other.fd, to, AtFlags::empty()))
    }

    /// Renames, unless the new name exists; `true` if it was renamed. Where that cannot be done at
    /// once (renameat2(2), `RENAME_NOREPLACE`), the file has both names for a moment.
    pub(crate) fn move_if_free(&self, from: &OsStr, to: &OsStr) -> io::Result<bool> {
        match renameat_with(&self.fd, from, &self.fd, to, RenameFlags::NOREPLACE) {
            Err(error) if rename_flags_are_unsupported(error) => {
                let linked = self.link(from, to)?;
                if linked {
                    self.unlink(from)?;
                }
                Ok(linked)
            }
            renamed => created(renamed),
        }
    }

    /// Exchanges the files of two names, atomically (renameat2(2), `RENAME_EXCHANGE`; on macOS
    /// renameatx_np(2), `RENAME_SWAP`). `Unsupported` where the filesystem cannot; `NotFound` if
    /// either name is gone.
    pub(crate) fn exchange(&self, one: &OsStr, other: &OsStr) -> io::Result<()> {
        match renameat_with(&self.fd, one, &self.fd, other, RenameFlags::EXCHANGE) {
            Err(error) if rename_flags_are_unsupported(error) => {
                Err(io::ErrorKind::Unsupported.into())
            }
            exchanged => Ok(exchanged?),
        }
    }

    /// What its filesystem has room for.
    pub(crate) fn space(&self) -> io::Result<Space> {
        let found = fstatvfs(&self.fd)?;
        Ok(Space {
            is_read_only: found.f_flag.contains(StatVfsMountFlags::RDONLY),
            free_bytes: Some(found.f_bavail.saturating_mul(found.f_frsize)),
            bytes: Some(found.f_blocks.saturating_mul(found.f_frsize)),
            // Some have no limit of files (btrfs).
            free_files: (found.f_files > 0).then_some(found.f_favail),
        })
    }

    /// Its permissions, its owner, and whether the caller may make names in it.
    pub(crate) fn modes(&self) -> Option<(u32, u32, bool)> {
        let found = fstat(&self.fd).ok()?;
        let mode = u32::from(found.st_mode) & 0o7777;
        let both = Access::WRITE_OK | Access::EXEC_OK;
        let may_write = unless_refused(accessat(&self.fd, ".", both, AtFlags::EACCESS)).is_ok();
        Some((mode, found.st_uid, may_write))
    }

    /// Removes a name; `false` if it did not exist.
    pub(crate) fn unlink(&self, name: &OsStr) -> io::Result<bool> {
        Ok(existing(unlinkat(&self.fd, name, AtFlags::empty()))?.is_some())
    }

    /// Opens or creates a small file for writing in place, where only we and root [can write](Self::is_own); refuses
    /// anything but a regular file.
    pub(crate) fn open_own(&self, name: &OsStr, append: bool) -> io::Result<File> {
        let mut flags = OFlags::RDWR | OFlags::CREATE | CAREFUL;
        flags.set(OFlags::APPEND, append);
        own_file(openat(&self.fd, name, flags, RECORD_MODE)?).map(|(file, _)| file)
    }

    /// As [`Self::open_own`], in a directory below this one, which must exist.
    pub(crate) fn open_own_in(&self, directory: &OsStr, name: &OsStr) -> io::Result<File> {
        let path = Path::new(directory).join(name);
        match filesystem::open_without_links(&self.fd, &path, OFlags::RDWR | CAREFUL) {
            Ok(opened) => own_file(opened).map(|(file, _)| file),
            // It is missing, or this system has no such call.
            Err(_) => self.open_below(directory)?.open_own(name, false),
        }
    }

    /// Renames, replacing what has the new name.
    pub(crate) fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(renameat(&self.fd, from, &self.fd, to)?)
    }

    /// What `read` makes of each name in the directory but `.` and `..`, in no order, and of its type, if the
    /// filesystem reports it.
    pub(crate) fn read<T>(
        &self,
        mut read: impl FnMut(&OsStr, Kind) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        let mut entries = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                let kind = match entry.file_type() {
                    FileType::RegularFile => Kind::RegularFile,
                    _ => Kind::OtherOrUnknown,
                };
                entries.extend(read(OsStr::from_bytes(name), kind));
            }
        }
        Ok(entries)
    }
}

/// What an attempt to open a file has found. `refused` says what is not wanted.
fn found(
    opened: rustix::io::Result<OwnedFd>,
    refused: impl Fn(&Stat) -> Option<&'static str>,
) -> io::Result<Found> {
    let file = match opened {
        Ok(file) => File::from(file),
        // It is not there, or another process has just removed or made it.
        Err(Errno::NOENT | Errno::EXIST) => return Ok(Found::Missing),
        Err(Errno::LOOP) => return Ok(Found::Other(SYMLINK)),
        Err(error) => return Err(error.into()),
    };
    let facts = fstat(&file)?;
    Ok(match refused(&facts) {
        Some(kind) => Found::Other(kind),
        None => Found::File(file, facts_of(&facts)),
    })
}

/// Without following a symlink, and without an effect on what is no regular file.
const CAREFUL: OFlags = OFlags::NOFOLLOW
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// Whether a path leads to a directory that is a [sticky store](Directory::is_sticky_store).
pub(crate) fn is_sticky_store(path: &Path) -> bool {
    statat(CWD, path, AtFlags::empty()).is_ok_and(|found| {
        FileType::from_raw_mode(found.st_mode) == FileType::Directory
            && Sharing::of(&found).is_sticky()
    })
}

/// Whether the caller may remove a file of that user from a directory.
pub(crate) fn may_remove(directory: &Path, owner: u32) -> bool {
    let may_write = accessat(CWD, directory, Access::WRITE_OK, AtFlags::EACCESS).is_ok();
    let only = Directory::open(directory).and_then(|directory| directory.only_removable());
    may_write && only.is_ok_and(|only| only.is_none_or(|user| user == owner))
}

/// Whether users other than its owner and root can use a file that is to be secret. The group may read one of root.
#[cfg(all(feature = "cli", feature = "cluster"))]
pub fn is_exposed(file: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(file).is_ok_and(|found| {
        let private = if found.uid() == 0 { 0o740 } else { 0o700 };
        found.mode() & 0o777 & !private != 0
    })
}

/// Another error comes from a seccomp filter, for example, and proves nothing.
fn unless_refused(asked: rustix::io::Result<()>) -> io::Result<()> {
    match asked {
        Err(error @ (Errno::ACCESS | Errno::ROFS)) => Err(error.into()),
        _ => Ok(()),
    }
}

/// Whether a rename failed because its flags are not available here, and not because of its names.
fn rename_flags_are_unsupported(error: Errno) -> bool {
    // The last two are one on Linux.
    [Errno::INVAL, Errno::NOSYS, Errno::NOTSUP, Errno::OPNOTSUPP].contains(&error)
        || (error == Errno::PERM && filesystem::rename_is_filtered())
}
