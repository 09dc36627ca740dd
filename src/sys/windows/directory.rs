//! An open directory, and the file operations of the protocol.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::windows::ffi::OsStrExt;
use std::os::windows::fs::OpenOptionsExt;
use std::os::windows::io::AsRawHandle;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use windows_sys::Win32::Foundation::{
    ERROR_ACCESS_DENIED, ERROR_DELETE_PENDING, ERROR_DIR_NOT_EMPTY, ERROR_FILE_NOT_FOUND,
    ERROR_LOCK_VIOLATION, ERROR_NOT_LOCKED, ERROR_SHARING_VIOLATION, HANDLE,
};
use windows_sys::Win32::Storage::FileSystem::{
    BY_HANDLE_FILE_INFORMATION, FILE_FLAG_BACKUP_SEMANTICS, FILE_FLAG_OPEN_REPARSE_POINT,
    FILE_ID_INFO, FILE_READ_ATTRIBUTES, FILE_SHARE_DELETE, FILE_SHARE_READ, FILE_SHARE_WRITE,
    FileIdInfo, GetDriveTypeW, GetFileInformationByHandle, GetFileInformationByHandleEx,
    GetVolumeInformationW, GetVolumePathNameW, LOCKFILE_EXCLUSIVE_LOCK, LOCKFILE_FAIL_IMMEDIATELY,
    LockFileEx, MoveFileExW, UnlockFileEx,
};
use windows_sys::Win32::System::IO::OVERLAPPED;
use windows_sys::Win32::System::WindowsProgramming::{DRIVE_FIXED, DRIVE_RAMDISK, DRIVE_REMOVABLE};

use super::random::random_u64;
use crate::identity::Pid;
use crate::sys::Lockers;
use crate::sys::work::Author;
pub(crate) use crate::sys::{FileFacts, FileId, Filesystem, Found, Kind};

/// The guard of a directory: a file that, while it is open, cannot be removed or renamed. So there
/// are never two of them.
const GUARD: &str = ".onehold-guard";

const SHARED: u32 = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;

/// How long to retry while another process has a file open: virus scanners, indexers and readers
/// keep files open for milliseconds.
const IN_USE_TIMEOUT: Duration = Duration::from_millis(500);

/// The byte of a record that its holder locks: far behind the content, so that reading is not
/// blocked.
const LOCKED_BYTE: u64 = 1 << 62;

#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    /// Keeps the directory from being replaced by another one of the same name.
    handle: File,
    guard: Mutex<Option<File>>,
}

impl Directory {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let handle = look_at(path, 0)?;
        if !handle.metadata()?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(Self {
            path: std::path::absolute(path)?,
            handle,
            guard: Mutex::new(None),
        })
    }

    /// A directory below this one; a link in its place is refused.
    pub(crate) fn open_below(&self, name: &OsStr) -> io::Result<Self> {
        let path = self.path.join(name);
        if !retry_while_in_use(|| std::fs::symlink_metadata(&path))?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Self::open(&path)
    }

    /// Creates a directory; that it exists already is fine. There are no modes.
    pub(crate) fn make_below(&self, name: &OsStr, _temporary: fn() -> OsString) -> io::Result<()> {
        match retry_while_in_use(|| std::fs::create_dir(self.path.join(name))) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made,
        }
    }

    /// Removes a directory if it is empty; `true` if it is gone.
    pub(crate) fn remove_below_if_empty(&self, name: &OsStr) -> io::Result<bool> {
        match std::fs::remove_dir(self.path.join(name)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error) if is_code(&error, ERROR_DIR_NOT_EMPTY) || is_in_use(&error) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Does nothing: NTFS keeps a journal of names.
    #[allow(
        clippy::unnecessary_wraps,
        clippy::unused_self,
        reason = "other systems need it"
    )]
    pub(crate) fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    /// Its identity. Who may use what is made in it follows from its access control list, which is
    /// inherited.
    #[allow(clippy::needless_pass_by_ref_mut, reason = "other systems need it")]
    pub(crate) fn share(&mut self) -> io::Result<FileId> {
        self.id()
    }

    /// Who may remove a file does not follow from its directory.
    #[allow(
        clippy::unnecessary_wraps,
        clippy::unused_self,
        reason = "other systems need it"
    )]
    pub(crate) fn only_removable(&self) -> io::Result<Option<u32>> {
        Ok(None)
    }

    pub(crate) fn id(&self) -> io::Result<FileId> {
        Ok(facts_of_file(&self.handle)?.id)
    }

    /// NTFS or ReFS on a drive of this machine shares kernel locks. A network share may be changed
    /// by other machines, and on FAT the identity of a file changes when it is renamed.
    #[allow(clippy::unnecessary_wraps, reason = "other systems need it")]
    pub(crate) fn filesystem(&self) -> io::Result<Filesystem> {
        let (mut volume, mut name) = ([0_u16; 512], [0_u16; 32]);
        let path = wide(self.path.as_os_str());
        // SAFETY: all texts live, the first ends with a null, and the lengths are those of the
        // others; pointers for unneeded answers are null.
        let (is_here, known) = unsafe {
            let found = GetVolumePathNameW(path.as_ptr(), volume.as_mut_ptr(), 512) != 0;
            let drive = GetDriveTypeW(volume.as_ptr());
            let named = GetVolumeInformationW(
                volume.as_ptr(),
                std::ptr::null_mut(),
                0,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                name.as_mut_ptr(),
                32,
            ) != 0;
            let here = [DRIVE_FIXED, DRIVE_RAMDISK, DRIVE_REMOVABLE].contains(&drive);
            (found && here, named)
        };
        let name: Vec<u16> = name.into_iter().take_while(|unit| *unit != 0).collect();
        let name = String::from_utf16_lossy(&name);
        Ok(Filesystem {
            shares_kernel_locks: is_here && known && ["NTFS", "ReFS"].contains(&name.as_str()),
        })
    }

    /// Tries to take the guard of the directory; `false` if another process holds it.
    pub(crate) fn try_lock(&self) -> io::Result<bool> {
        let path = self.path.join(GUARD);
        // For reading, which suffices for a lock: in a shared store it may be another user's.
        let open = |options: &mut OpenOptions| {
            let mut options = options.clone();
            options.share_mode(FILE_SHARE_READ | FILE_SHARE_WRITE);
            options.open(&path)
        };
        let opened = match open(OpenOptions::new().read(true)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => retry_while_in_use(|| {
                open(OpenOptions::new().read(true).write(true).create_new(true))
            }),
            opened => opened,
        };
        let file = match opened {
            Ok(file) => file,
            Err(error)
                if is_code(&error, ERROR_SHARING_VIOLATION)
                    || error.kind() == io::ErrorKind::AlreadyExists =>
            {
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        match file.try_lock() {
            Ok(()) => {
                *self.guard.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
                Ok(true)
            }
            Err(std::fs::TryLockError::WouldBlock) => Ok(false),
            Err(std::fs::TryLockError::Error(error)) => Err(error),
        }
    }

    /// Does not block: without an alarm the caller polls.
    pub(crate) fn lock(&self) -> io::Result<()> {
        if self.try_lock()? {
            return Ok(());
        }
        Err(io::ErrorKind::Interrupted.into())
    }

    /// The process that has the lock on the directory itself: the system does not tell.
    #[allow(clippy::unused_self, reason = "other systems need it")]
    pub(crate) fn locked_by(&self) -> Option<Pid> {
        None
    }

    /// What flock(1) could lock: it does not exist here.
    #[allow(clippy::unused_self, reason = "other systems need it")]
    pub(crate) fn find_lockable(
        &self,
        _name: &OsStr,
        _create: bool,
        _writable: bool,
    ) -> io::Result<Found> {
        Err(io::ErrorKind::Unsupported.into())
    }

    #[allow(clippy::unnecessary_wraps, reason = "other systems need it")]
    pub(crate) fn unlock(&self) -> io::Result<()> {
        let mut guard = self.guard.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = guard.take() {
            // At once; a lock that goes with its handle may take a while (LockFileEx).
            let _ = file.unlock();
        }
        Ok(())
    }

    /// Opens the file `name` for reading, without following a link.
    pub(crate) fn find(&self, name: &OsStr) -> io::Result<Found> {
        let path = self.path.join(name);
        match retry_while_in_use(|| std::fs::symlink_metadata(&path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Found::Missing),
            Err(error) => Err(error),
            Ok(seen) => match not_a_regular_file(&seen) {
                Some(kind) => Ok(Found::Other(kind)),
                None => self.find_regular(name),
            },
        }
    }

    /// The same, for a name that was a regular file a moment ago.
    pub(crate) fn find_regular(&self, name: &OsStr) -> io::Result<Found> {
        let path = self.path.join(name);
        let opened = retry_while_in_use(|| {
            OpenOptions::new()
                .read(true)
                .share_mode(SHARED)
                .custom_flags(FILE_FLAG_OPEN_REPARSE_POINT)
                .open(&path)
        });
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Missing),
            Err(error) => return Err(error),
        };
        if let Some(kind) = not_a_regular_file(&file.metadata()?) {
            return Ok(Found::Other(kind));
        }
        let facts = facts_of_file(&file)?;
        Ok(Found::File(file, facts))
    }

    /// Opens the file `name` for writing in place. The caller checks that it is the expected file.
    pub(crate) fn open_for_update(&self, name: &OsStr) -> io::Result<File> {
        retry_while_in_use(|| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .share_mode(SHARED)
                .custom_flags(FILE_FLAG_OPEN_REPARSE_POINT)
                .open(self.path.join(name))
        })
    }

    /// Metadata of the file `name`. `None` if there is none.
    pub(crate) fn facts(&self, name: &OsStr) -> io::Result<Option<FileFacts>> {
        match look_at(&self.path.join(name), FILE_FLAG_OPEN_REPARSE_POINT) {
            Ok(file) => facts_of_file(&file).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Not supported.
    #[allow(
        clippy::unnecessary_wraps,
        clippy::unused_self,
        reason = "other systems need it"
    )]
    pub(crate) fn create_unnamed(&self) -> io::Result<Option<File>> {
        Ok(None)
    }

    /// Nothing to do: files inherit the access list of their directory.
    #[allow(
        clippy::unnecessary_wraps,
        clippy::unused_self,
        reason = "other systems need it"
    )]
    pub(crate) fn let_others_write(&self, _record: &File) -> io::Result<()> {
        Ok(())
    }

    #[allow(clippy::unused_self, reason = "other systems need it")]
    pub(crate) fn link_unnamed(&self, _file: &File, _name: &OsStr) -> io::Result<bool> {
        Err(not_found())
    }

    /// Creates a file; fails if the name exists.
    pub(crate) fn create_named(&self, name: &OsStr) -> io::Result<File> {
        retry_while_in_use(|| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .share_mode(SHARED)
                .open(self.path.join(name))
        })
    }

    /// Renames the file `from`; `false` if the new name exists. Nothing is replaced. The file loses
    /// its old name, because some filesystems (FAT) know only one name for a file.
    pub(crate) fn link(&self, from: &OsStr, to: &OsStr) -> io::Result<bool> {
        let (from, to) = (self.path.join(from), self.path.join(to));
        match retry_while_in_use(|| move_file(&from, &to)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Creates a second name for the file `from` in another directory, where the filesystem knows
    /// more than one (not FAT); `false` if that name exists.
    pub(crate) fn link_into(&self, from: &OsStr, other: &Self, to: &OsStr) -> io::Result<bool> {
        let (from, to) = (self.path.join(from), other.path.join(to));
        match retry_while_in_use(|| std::fs::hard_link(&from, &to)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The same: a file has one name.
    pub(crate) fn move_if_free(&self, from: &OsStr, to: &OsStr) -> io::Result<bool> {
        self.link(from, to)
    }

    /// Not supported: ReplaceFileW takes several steps, and a process that is killed between them
    /// leaves no file with that name.
    #[allow(clippy::unused_self, reason = "other systems need it")]
    pub(crate) fn exchange(&self, _one: &OsStr, other: &OsStr) -> io::Result<()> {
        match self.facts(other)? {
            None => Err(not_found()),
            Some(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Removes a name; `false` if it did not exist. The file gets a temporary name first: without
    /// POSIX semantics (FAT, NTFS before Windows 10 1709), a removed file keeps its name until the
    /// last reader has closed it.
    pub(crate) fn unlink(&self, name: &OsStr) -> io::Result<bool> {
        let path = self.path.join(name);
        let aside = self.path_aside();
        let doomed = match retry_while_in_use(|| move_file(&path, &aside)) {
            Ok(()) => &aside,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(_) => &path,
        };
        match retry_while_in_use(|| std::fs::remove_file(doomed)) {
            Ok(()) => Ok(true),
            // The moved file is no longer a record, so another process may remove it too.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(doomed == &aside),
            Err(error) => Err(error),
        }
    }

    /// A temporary name, as `cleanup` knows them.
    fn path_aside(&self) -> PathBuf {
        self.path.join(format!(".onehold.{:016x}", random_u64()))
    }

    /// Opens or creates a small file of our own for writing; refuses anything but a regular file.
    pub(crate) fn open_own(
        &self,
        name: &OsStr,
        append: bool,
        _temporary: fn() -> OsString,
    ) -> io::Result<File> {
        let file = retry_while_in_use(|| {
            let mut options = OpenOptions::new();
            options.read(true).create(true).truncate(false);
            if append {
                options.append(true);
            } else {
                options.write(true);
            }
            options
                .share_mode(SHARED)
                .custom_flags(FILE_FLAG_OPEN_REPARSE_POINT)
                .open(self.path.join(name))
        })?;
        match not_a_regular_file(&file.metadata()?) {
            None => Ok(file),
            Some(kind) => Err(io::Error::new(io::ErrorKind::InvalidInput, kind)),
        }
    }

    /// Renames a file, and replaces what has the new name. One step on NTFS. Without POSIX semantics
    /// (FAT, NTFS before Windows 10 1607, Wine) an open file cannot be replaced, but
    /// can be renamed, so that it takes two: a process that is killed between them leaves no file
    /// with the new name. Then nothing is replaced that came in between.
    pub(crate) fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        let (from, to) = (self.path.join(from), self.path.join(to));
        match std::fs::rename(&from, &to) {
            Err(error) if is_in_use(&error) => {}
            renamed => return renamed,
        }
        let aside = self.path_aside();
        match retry_while_in_use(|| move_file(&to, &aside)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        retry_while_in_use(|| move_file(&from, &to))?;
        // `cleanup` removes what stays.
        let _ = std::fs::remove_file(&aside);
        Ok(())
    }

    /// All names in the directory, in no order, without its guard.
    pub(crate) fn names(&self) -> io::Result<Vec<OsString>> {
        let entries = self.entries()?;
        Ok(entries.into_iter().map(|(name, _)| name).collect())
    }

    /// The same, with the type of each.
    pub(crate) fn entries(&self) -> io::Result<Vec<(OsString, Kind)>> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            let kind = match entry.file_type() {
                Ok(kind) if kind.is_file() => Kind::RegularFile,
                _ => Kind::OtherOrUnknown,
            };
            if entry.file_name() != GUARD {
                entries.push((entry.file_name(), kind));
            }
        }
        Ok(entries)
    }
}

/// Whether `path` names an open file. Does not follow a link in its last component.
pub(crate) fn path_names_file(path: &Path, file: &File) -> io::Result<bool> {
    match look_at(path, FILE_FLAG_OPEN_REPARSE_POINT) {
        Ok(named) => Ok(facts_of_file(&named)?.id == facts_of_file(file)?.id),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// The identity of the directory at `path`, following links.
pub(crate) fn id_of_path(path: &Path) -> io::Result<FileId> {
    Ok(facts_of_file(&look_at(path, 0)?)?.id)
}

/// Who can have written a file that is a record: its owner. What its access list lets others do is not
/// looked at.
pub(crate) fn author_of(file: &File) -> io::Result<Author> {
    let is_ours = super::owner::is_own_or_of_an_administrator(file)?;
    Ok(if is_ours {
        Author::Trusted
    } else {
        Author::Unknown
    })
}

pub(crate) fn facts_of_file(file: &File) -> io::Result<FileFacts> {
    let mut information = MaybeUninit::<BY_HANDLE_FILE_INFORMATION>::zeroed();
    // SAFETY: the handle is open, and the place is ours; zeroes are a valid value of it.
    let information = unsafe {
        if GetFileInformationByHandle(handle_of(file), information.as_mut_ptr()) == 0 {
            return Err(io::Error::last_os_error());
        }
        information.assume_init()
    };
    let both = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
    let short = FileId {
        device: u64::from(information.dwVolumeSerialNumber),
        inode: both(information.nFileIndexHigh, information.nFileIndexLow),
    };
    let seen = file.metadata();
    Ok(FileFacts {
        id: long_id(file).unwrap_or(short),
        is_regular: seen
            .as_ref()
            .is_ok_and(|seen| not_a_regular_file(seen).is_none()),
        size: both(information.nFileSizeHigh, information.nFileSizeLow),
        modified: seen
            .and_then(|seen| seen.modified())
            .unwrap_or(SystemTime::UNIX_EPOCH),
        owner: 0,
    })
}

/// The identity of 128 bits, of which NTFS uses half, and ReFS all.
fn long_id(file: &File) -> Option<FileId> {
    let mut information = MaybeUninit::<FILE_ID_INFO>::zeroed();
    let size = u32::try_from(size_of::<FILE_ID_INFO>()).ok()?;
    // SAFETY: the handle is open, and the place is ours, of that size; zeroes are a valid value of
    // it.
    let information = unsafe {
        let place = information.as_mut_ptr().cast();
        if GetFileInformationByHandleEx(handle_of(file), FileIdInfo, place, size) == 0 {
            return None;
        }
        information.assume_init()
    };
    let id = u128::from_le_bytes(information.FileId.Identifier);
    let (high, low) = (id >> 64, id & u128::from(u64::MAX));
    Some(FileId {
        device: information.VolumeSerialNumber,
        inode: u64::try_from(low).ok()? ^ u64::try_from(high).ok()?.rotate_left(32),
    })
}

/// Tries to take the exclusive lock on a record; `false` if another process holds it. It ends with
/// this process, even if others have the file open.
pub(crate) fn try_lock_record(file: &File) -> io::Result<bool> {
    lock_byte(file, LOCKFILE_EXCLUSIVE_LOCK | LOCKFILE_FAIL_IMMEDIATELY)
}

/// The same with a shared lock.
pub(crate) fn try_lock_shared(file: &File) -> io::Result<bool> {
    lock_byte(file, LOCKFILE_FAIL_IMMEDIATELY)
}

pub(crate) fn unlock_record(file: &File) -> io::Result<()> {
    let mut overlapped = locked_byte();
    // SAFETY: the handle is open and the place is ours.
    if unsafe { UnlockFileEx(handle_of(file), 0, 1, 0, &raw mut overlapped) } != 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        error if is_code(&error, ERROR_NOT_LOCKED) => Ok(()),
        error => Err(error),
    }
}

/// Whether another process holds the exclusive lock on a record. Probes with a shared lock: two
/// probers that both tried an exclusive one would take each other for holders.
pub(crate) fn record_is_locked(file: &File) -> io::Result<bool> {
    if lock_byte(file, LOCKFILE_FAIL_IMMEDIATELY)? {
        unlock_record(file)?;
        return Ok(false);
    }
    Ok(true)
}

/// Waits for a shared lock, and releases it at once.
pub(super) fn wait_for_record(file: &File) -> io::Result<()> {
    lock_byte(file, 0)?;
    unlock_record(file)
}

/// Does nothing: there is no table to grow.
#[allow(clippy::unnecessary_wraps, reason = "other systems need it")]
pub(crate) fn grow_fd_table() -> io::Result<()> {
    Ok(())
}

/// Scripts do not number their handles.
#[allow(clippy::unnecessary_wraps, reason = "other systems need it")]
pub(crate) fn move_to_high_fd(file: File) -> io::Result<File> {
    Ok(file)
}

/// `aux.lock` is a device.
pub(crate) const HAS_DEVICES: bool = true;

/// Whether names that differ in case only lead to one file.
pub(crate) const FILES_IGNORE_CASE: bool = true;

/// Whether a lock name is the path of a file: it begins with either slash, or a drive.
pub(crate) fn is_path(name: &OsStr) -> bool {
    let name = name.to_string_lossy().replace('\\', "/");
    let drive = matches!(name.as_bytes(), [letter, b':', b'/', ..] if letter.is_ascii_alphabetic());
    drive || name.starts_with('/') || name.starts_with("./") || name.starts_with("../")
}

/// Creates a directory. Below a user's own directories only that user may enter it.
pub(crate) fn make_private(path: &Path) -> io::Result<()> {
    std::fs::create_dir(path)
}

/// Not known: a file has a list of rights.
#[cfg(all(feature = "cli", feature = "etcd"))]
#[must_use]
pub fn is_exposed(_file: &Path) -> bool {
    false
}

/// The system's error for a missing name.
pub(crate) fn not_found() -> io::Error {
    io::Error::from_raw_os_error(ERROR_FILE_NOT_FOUND.cast_signed())
}

/// The processes that hold a lock on an open file: the system does not tell.
pub(crate) fn lockers(_file: &File) -> Option<Lockers> {
    None
}

/// No lock needs that.
pub(crate) fn needs_write_access(_error: &io::Error) -> bool {
    false
}

/// Blocks until the lock is taken. Nothing interrupts it.
pub(crate) fn lock_record(file: &File) -> io::Result<()> {
    lock_byte(file, LOCKFILE_EXCLUSIVE_LOCK).map(drop)
}

/// The same with a shared lock.
pub(crate) fn lock_shared(file: &File) -> io::Result<()> {
    lock_byte(file, 0).map(drop)
}

/// The question of flock(1), which does not exist here.
pub(crate) fn has_exclusive_lock(file: &File) -> io::Result<bool> {
    record_is_locked(file)
}

/// Makes the content of a file survive power loss.
pub(crate) fn sync_file(file: &File) -> io::Result<()> {
    file.sync_data()
}

/// The owner of what is at a path, if that is another user: not asked for.
pub(crate) fn other_owner(_path: &Path) -> Option<String> {
    None
}

/// Whether the caller may remove a file: found out when it does.
pub(crate) fn may_remove(_directory: &Path, _owner: u32) -> bool {
    true
}

/// Whether there are locks of flock(2), which flock(1) takes.
pub(crate) const HAS_FLOCK: bool = false;

/// Reading and writing at an offset, as on other systems.
pub(crate) trait FileExt {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    fn write_all_at(&self, buffer: &[u8], offset: u64) -> io::Result<()>;
}

impl FileExt for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::windows::fs::FileExt::seek_read(self, buffer, offset)
    }

    fn read_exact_at(&self, buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
        let mut rest = buffer;
        while !rest.is_empty() {
            let read = self.read_at(rest, offset)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            rest = rest.get_mut(read..).unwrap_or_default();
            offset += read as u64;
        }
        Ok(())
    }

    fn write_all_at(&self, buffer: &[u8], mut offset: u64) -> io::Result<()> {
        let mut rest = buffer;
        while !rest.is_empty() {
            let written = std::os::windows::fs::FileExt::seek_write(self, rest, offset)?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            rest = rest.get(written..).unwrap_or_default();
            offset += written as u64;
        }
        Ok(())
    }
}

/// Opens a file or directory to read its metadata.
fn look_at(path: &Path, flags: u32) -> io::Result<File> {
    retry_while_in_use(|| {
        OpenOptions::new()
            .access_mode(FILE_READ_ATTRIBUTES)
            .share_mode(SHARED)
            .custom_flags(FILE_FLAG_BACKUP_SEMANTICS | flags)
            .open(path)
    })
}

/// Retries while another process has the file open, or while it is being removed.
fn retry_while_in_use<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let deadline = Instant::now() + IN_USE_TIMEOUT;
    let mut pause = Duration::from_millis(1);
    loop {
        match attempt() {
            Err(error) if is_in_use(&error) && Instant::now() < deadline => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(20));
            }
            tried => return tried,
        }
    }
}

/// Access is also denied to a file that is marked for deletion and still open (CreateFileW).
fn is_in_use(error: &io::Error) -> bool {
    [
        ERROR_ACCESS_DENIED,
        ERROR_SHARING_VIOLATION,
        ERROR_LOCK_VIOLATION,
        ERROR_DELETE_PENDING,
    ]
    .into_iter()
    .any(|code| is_code(error, code))
}

fn is_code(error: &io::Error, code: u32) -> bool {
    error.raw_os_error() == Some(code.cast_signed())
}

fn move_file(from: &Path, to: &Path) -> io::Result<()> {
    let (from, to) = (verbatim(from), verbatim(to));
    // SAFETY: both texts live and end with a null. No flags: nothing is replaced.
    if unsafe { MoveFileExW(from.as_ptr(), to.as_ptr(), 0) } == 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn lock_byte(file: &File, flags: u32) -> io::Result<bool> {
    let mut overlapped = locked_byte();
    // SAFETY: the handle is open and was not opened for overlapped use, so that the call has ended
    // when it returns; the structure is ours.
    if unsafe { LockFileEx(handle_of(file), flags, 0, 1, 0, &raw mut overlapped) } != 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if is_code(&error, ERROR_LOCK_VIOLATION) => Ok(false),
        error => Err(error),
    }
}

fn locked_byte() -> OVERLAPPED {
    let mut overlapped = OVERLAPPED::default();
    overlapped.Anonymous.Anonymous.Offset = 0;
    overlapped.Anonymous.Anonymous.OffsetHigh =
        u32::try_from(LOCKED_BYTE >> 32).unwrap_or(u32::MAX);
    overlapped
}

fn handle_of(file: &File) -> HANDLE {
    file.as_raw_handle()
}

fn not_a_regular_file(seen: &Metadata) -> Option<&'static str> {
    if seen.is_file() {
        None
    } else if seen.is_dir() {
        Some("a directory")
    } else {
        Some("a link")
    }
}

/// A text for the system.
fn wide(text: &OsStr) -> Vec<u16> {
    text.encode_wide().chain([0]).collect()
}

/// An absolute path for the system, which takes longer ones than 260 characters only so.
fn verbatim(path: &Path) -> Vec<u16> {
    let mut whole = OsString::new();
    if let Some(share) = path.to_str().and_then(|path| path.strip_prefix(r"\\")) {
        if !share.starts_with(['?', '.']) {
            whole.push(r"\\?\UNC\");
            whole.push(share);
            return wide(&whole);
        }
    } else {
        whole.push(r"\\?\");
    }
    whole.push(path);
    wide(&whole)
}

/// The names of the filesystems whose kernel locks are trusted.
pub(crate) fn local_filesystems() -> impl Iterator<Item = &'static str> {
    ["ntfs", "refs"].into_iter()
}

/// The type of the filesystem that a directory is on: not asked for.
pub(crate) fn type_of(_path: &Path) -> Option<String> {
    None
}

/// What is said of a symbolic link in the place of a file.
pub(crate) const SYMLINK: &str = "a symbolic link";
