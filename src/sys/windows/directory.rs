//! A directory kept open, and the file operations the protocol is made of.

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

use super::wait::random_u64;
pub(crate) use crate::sys::{FileFacts, FileId, Filesystem, Found, Kind};

/// The guard of a directory. It is opened so that it cannot be removed or renamed by anybody until
/// it is closed, which is what keeps it from being split in two.
const GUARD: &str = ".onehold-guard";

const SHARED: u32 = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;

/// For how long what somebody else has open is tried again: virus scanners, indexers and readers
/// keep files for milliseconds.
const PATIENCE: Duration = Duration::from_millis(500);

/// The byte of a record that its holder locks: far behind what anybody reads.
const LOCKED_BYTE: u64 = 1 << 62;

#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    /// Keeps the directory from being another one of the same name.
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
        if !patiently(|| std::fs::symlink_metadata(&path))?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Self::open(&path)
    }

    pub(crate) fn duplicate(&self) -> io::Result<Self> {
        Ok(Self {
            path: self.path.clone(),
            handle: self.handle.try_clone()?,
            guard: Mutex::new(None),
        })
    }

    /// Creates a directory; that it exists already is fine. There are no modes.
    pub(crate) fn make_below(&self, name: &OsStr, _mode: u32) -> io::Result<()> {
        match patiently(|| std::fs::create_dir(self.path.join(name))) {
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

    /// NTFS keeps a journal of names; there is nothing to ask for.
    #[allow(
        clippy::unnecessary_wraps,
        clippy::unused_self,
        reason = "other systems need it"
    )]
    pub(crate) fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    pub(crate) fn id(&self) -> io::Result<FileId> {
        Ok(facts_of_file(&self.handle)?.id)
    }

    /// NTFS or ReFS on a drive of this machine. What is shared may be changed from elsewhere, and on
    /// FAT a file is called another one when it is renamed.
    #[allow(clippy::unnecessary_wraps, reason = "other systems need it")]
    pub(crate) fn filesystem(&self) -> io::Result<Filesystem> {
        let (mut volume, mut name) = ([0_u16; 512], [0_u16; 32]);
        let path = wide(self.path.as_os_str());
        // SAFETY: all texts live, the first ends with a null, and the lengths are those of the
        // others; what is not asked for is null.
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

    /// Takes the guard of the directory, or says `false`.
    pub(crate) fn try_lock(&self) -> io::Result<bool> {
        let path = self.path.join(GUARD);
        // For reading, which suffices for a lock: in a shared store it may be another user's.
        let open = |options: &mut OpenOptions| {
            let mut options = options.clone();
            options.share_mode(FILE_SHARE_READ | FILE_SHARE_WRITE);
            options.open(&path)
        };
        let opened = match open(OpenOptions::new().read(true)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                patiently(|| open(OpenOptions::new().read(true).write(true).create_new(true)))
            }
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

    /// Without an alarm nobody waits for it in the kernel.
    pub(crate) fn lock(&self) -> io::Result<()> {
        if self.try_lock()? {
            return Ok(());
        }
        Err(io::ErrorKind::Interrupted.into())
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

    /// Opens what stands under `name` for reading, without following a link.
    pub(crate) fn find(&self, name: &OsStr) -> io::Result<Found> {
        let path = self.path.join(name);
        match patiently(|| std::fs::symlink_metadata(&path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Found::Missing),
            Err(error) => Err(error),
            Ok(seen) => match not_a_regular_file(&seen) {
                Some(kind) => Ok(Found::Other(kind)),
                None => self.find_regular(name),
            },
        }
    }

    /// Opens what was just seen to be a regular file.
    pub(crate) fn find_regular(&self, name: &OsStr) -> io::Result<Found> {
        let path = self.path.join(name);
        let opened = patiently(|| {
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

    /// Opens the file under `name` for writing in place; the caller compares identities.
    pub(crate) fn open_for_update(&self, name: &OsStr) -> io::Result<File> {
        patiently(|| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .share_mode(SHARED)
                .custom_flags(FILE_FLAG_OPEN_REPARSE_POINT)
                .open(self.path.join(name))
        })
    }

    /// The file under `name`. `None`: nothing is there.
    pub(crate) fn facts(&self, name: &OsStr) -> io::Result<Option<FileFacts>> {
        match look_at(&self.path.join(name), FILE_FLAG_OPEN_REPARSE_POINT) {
            Ok(file) => facts_of_file(&file).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// There is no such thing.
    #[allow(
        clippy::unnecessary_wraps,
        clippy::unused_self,
        reason = "other systems need it"
    )]
    pub(crate) fn create_unnamed(&self) -> io::Result<Option<File>> {
        Ok(None)
    }

    #[allow(clippy::unused_self, reason = "other systems need it")]
    pub(crate) fn link_unnamed(&self, _file: &File, _name: &OsStr) -> io::Result<bool> {
        Err(not_found())
    }

    /// A new file under a name nobody has.
    pub(crate) fn create_named(&self, name: &OsStr) -> io::Result<File> {
        patiently(|| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .share_mode(SHARED)
                .open(self.path.join(name))
        })
    }

    /// Gives the file under `from` another name; `false` if that is taken. Nothing is replaced, and a
    /// file that has only one name is all that some filesystems know (FAT): here it loses the old one.
    pub(crate) fn link(&self, from: &OsStr, to: &OsStr) -> io::Result<bool> {
        let (from, to) = (self.path.join(from), self.path.join(to));
        match patiently(|| move_file(&from, &to)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The same: a file has one name.
    pub(crate) fn move_if_free(&self, from: &OsStr, to: &OsStr) -> io::Result<bool> {
        self.link(from, to)
    }

    /// Windows cannot: ReplaceFileW takes several steps, and what is killed between them leaves the
    /// name to nobody.
    #[allow(clippy::unused_self, reason = "other systems need it")]
    pub(crate) fn exchange(&self, _one: &OsStr, other: &OsStr) -> io::Result<()> {
        match self.facts(other)? {
            None => Err(not_found()),
            Some(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Removes a name; `false` if there was none. The file gets a temporary name first: where files
    /// are not removed as by POSIX (FAT, NTFS before Windows 10 1709), it would keep the old one until
    /// the last reader has closed it.
    pub(crate) fn unlink(&self, name: &OsStr) -> io::Result<bool> {
        let path = self.path.join(name);
        let aside = self.path.join(format!(".onehold.{:016x}", random_u64()));
        let doomed = match patiently(|| move_file(&path, &aside)) {
            Ok(()) => &aside,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(_) => &path,
        };
        match patiently(|| std::fs::remove_file(doomed)) {
            Ok(()) => Ok(true),
            // What is aside is a record without a place, whoever else may remove it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(doomed == &aside),
            Err(error) => Err(error),
        }
    }

    /// Opens or creates a small file of our own for writing; refuses anything but a regular file.
    pub(crate) fn open_own(&self, name: &OsStr, append: bool) -> io::Result<File> {
        let file = patiently(|| {
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

    pub(crate) fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        patiently(|| std::fs::rename(self.path.join(from), self.path.join(to)))
    }

    /// All names in the directory, in no order, but that of its guard.
    pub(crate) fn names(&self) -> io::Result<Vec<OsString>> {
        let entries = self.entries()?;
        Ok(entries.into_iter().map(|(name, _)| name).collect())
    }

    /// The same, with what each is.
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

/// Whether `path` leads to an open file, not following a link in its last place.
pub(crate) fn leads_to(path: &Path, file: &File) -> io::Result<bool> {
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
    })
}

/// The identity of 128 bits, of which NTFS uses half, and ReFS all.
fn long_id(file: &File) -> Option<FileId> {
    let mut information = MaybeUninit::<FILE_ID_INFO>::zeroed();
    let size = u32::try_from(size_of::<FILE_ID_INFO>()).ok()?;
    // SAFETY: the handle is open, and the place is ours, of that size; zeroes are a valid value of it.
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

/// Takes the exclusive lock on a record, or says `false`. It ends with the process, whoever else
/// has the file open.
pub(crate) fn try_lock_record(file: &File) -> io::Result<bool> {
    lock_byte(file, LOCKFILE_EXCLUSIVE_LOCK | LOCKFILE_FAIL_IMMEDIATELY)
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

/// Whether somebody keeps the exclusive lock on a record. Probes with a shared lock: two probers
/// who both tried an exclusive one would take each other for holders.
pub(crate) fn record_is_locked(file: &File) -> io::Result<bool> {
    if lock_byte(file, LOCKFILE_FAIL_IMMEDIATELY)? {
        unlock_record(file)?;
        return Ok(false);
    }
    Ok(true)
}

/// Waits, with a shared lock that is given back at once.
pub(super) fn wait_for_record(file: &File) -> io::Result<()> {
    lock_byte(file, 0)?;
    unlock_record(file)
}

/// Nothing has to be made room for.
#[allow(clippy::unnecessary_wraps, reason = "other systems need it")]
pub(crate) fn make_room() -> io::Result<()> {
    Ok(())
}

/// Scripts do not number their handles.
#[allow(clippy::unnecessary_wraps, reason = "other systems need it")]
pub(crate) fn move_out_of_the_way(file: File) -> io::Result<File> {
    Ok(file)
}

/// `aux.lock` is a device.
pub(crate) const HAS_DEVICES: bool = true;

/// Whether a name is said to be the path of a file: by either slash, or a drive.
pub(crate) fn is_path(name: &OsStr) -> bool {
    let name = name.to_string_lossy().replace('\\', "/");
    let drive = matches!(name.as_bytes(), [letter, b':', b'/', ..] if letter.is_ascii_alphabetic());
    drive || name.starts_with('/') || name.starts_with("./") || name.starts_with("../")
}

/// Makes a directory; below a user's own ones it is his alone.
pub(crate) fn make_private(path: &Path) -> io::Result<()> {
    std::fs::create_dir(path)
}

/// What the system says of a name that is not there.
pub(crate) fn not_found() -> io::Error {
    io::Error::from_raw_os_error(ERROR_FILE_NOT_FOUND.cast_signed())
}

/// Nobody tells.
pub(crate) fn who_locks(_id: FileId) -> Option<u32> {
    None
}

/// Reading and writing at a place, as on other systems.
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

/// Opens a file or directory to ask for what it is.
fn look_at(path: &Path, flags: u32) -> io::Result<File> {
    patiently(|| {
        OpenOptions::new()
            .access_mode(FILE_READ_ATTRIBUTES)
            .share_mode(SHARED)
            .custom_flags(FILE_FLAG_BACKUP_SEMANTICS | flags)
            .open(path)
    })
}

/// Tries again while somebody else has it open, or while it is about to be gone.
fn patiently<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let deadline = Instant::now() + PATIENCE;
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

/// Access is denied also to what is marked for deletion and still open (CreateFileW).
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
    // SAFETY: both texts live and end with a null. No flags: what is there is not replaced.
    if unsafe { MoveFileExW(from.as_ptr(), to.as_ptr(), 0) } == 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn lock_byte(file: &File, flags: u32) -> io::Result<bool> {
    let mut overlapped = locked_byte();
    // SAFETY: the handle is open and was not opened for overlapped use, so that the call has ended
    // when it returns; the place is ours.
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
