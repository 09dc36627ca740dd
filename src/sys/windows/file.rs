//! An open file: what it is, its locks, and how it is opened beside other programs.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::windows::fs::OpenOptionsExt;
use std::os::windows::io::AsRawHandle;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use windows_sys::Win32::Foundation::{
    ERROR_ACCESS_DENIED, ERROR_DELETE_PENDING, ERROR_LOCK_VIOLATION, ERROR_NOT_LOCKED,
    ERROR_SHARING_VIOLATION,
};
use windows_sys::Win32::Storage::FileSystem::{
    BY_HANDLE_FILE_INFORMATION, FILE_FLAG_BACKUP_SEMANTICS, FILE_FLAG_OPEN_REPARSE_POINT,
    FILE_ID_INFO, FILE_READ_ATTRIBUTES, FILE_SHARE_DELETE, FILE_SHARE_READ, FILE_SHARE_WRITE,
    FileIdInfo, GetFileInformationByHandle, GetFileInformationByHandleEx, LOCKFILE_EXCLUSIVE_LOCK,
    LOCKFILE_FAIL_IMMEDIATELY, LockFileEx, UnlockFileEx,
};
use windows_sys::Win32::System::IO::OVERLAPPED;

use super::checked;
use crate::sys::work::Author;
use crate::sys::{FileFacts, FileId, KernelLockCall, existing};

const SHARED: u32 = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;

/// How long to retry while another process has a file open: virus scanners, indexers and readers
/// keep files open for milliseconds.
const IN_USE_TIMEOUT: Duration = Duration::from_millis(500);

/// The upper half of the place of the byte of a record that its holder locks: far behind the content, so that
/// reading is not blocked. The lower half is 0.
const LOCKED_BYTE: u32 = 1 << 30;

/// Whether `path` names an open file. Does not follow a link in its last component.
pub(crate) fn path_names_file(path: &Path, file: &File) -> io::Result<bool> {
    match look_at(path, FILE_FLAG_OPEN_REPARSE_POINT) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(false),
        named => match existing(named)? {
            Some(named) => Ok(facts_of_file(&named)?.id == facts_of_file(file)?.id),
            None => Ok(false),
        },
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
    let mut information = BY_HANDLE_FILE_INFORMATION::default();
    // SAFETY: the handle is open, and the place is ours.
    checked(unsafe { GetFileInformationByHandle(file.as_raw_handle(), &raw mut information) })?;
    let short = FileId {
        device: u64::from(information.dwVolumeSerialNumber),
        inode: u64::from(information.nFileIndexHigh) << 32 | u64::from(information.nFileIndexLow),
    };
    let seen = file.metadata()?;
    Ok(FileFacts {
        id: long_id(file).unwrap_or(short),
        is_regular: not_a_regular_file(&seen).is_none(),
        size: seen.len(),
        modified: seen.modified().unwrap_or(SystemTime::UNIX_EPOCH),
        owner: 0,
        links: u64::from(information.nNumberOfLinks),
    })
}

/// The identity of 128 bits, of which NTFS uses half, and ReFS all.
fn long_id(file: &File) -> Option<FileId> {
    let mut information = FILE_ID_INFO::default();
    let size = u32::try_from(size_of::<FILE_ID_INFO>()).ok()?;
    let place = (&raw mut information).cast();
    let handle = file.as_raw_handle();
    // SAFETY: the handle is open, and the place is ours, of that size.
    checked(unsafe { GetFileInformationByHandleEx(handle, FileIdInfo, place, size) }).ok()?;
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

pub(crate) fn unlock_record(file: &File) -> io::Result<()> {
    let mut overlapped = locked_byte();
    // SAFETY: the handle is open and the place is ours.
    match checked(unsafe { UnlockFileEx(file.as_raw_handle(), 0, 1, 0, &raw mut overlapped) }) {
        Err(error) if is_code(&error, ERROR_NOT_LOCKED) => Ok(()),
        unlocked => unlocked,
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

always! {
    /// Does nothing: there is no table to grow.
    pub(crate) grow_fd_table() -> io::Result<()> = Ok(());
    /// No lock needs that.
    pub(crate) needs_write_access(_error: &io::Error) -> bool = false;
}

/// Scripts do not number their handles.
pub(crate) fn move_to_high_fd(file: File) -> io::Result<File> {
    Ok(file)
}

/// Takes a shared lock. Blocks, and nothing interrupts it.
pub(super) fn lock_shared(file: &File) -> io::Result<()> {
    lock_byte(file, 0).map(drop)
}

impl KernelLockCall {
    always! {
        /// No file has such a lock here: its format is refused before.
        pub(crate) try_lock(self, _file: &File, _is_shared: bool) -> io::Result<bool>
            = Err(io::ErrorKind::Unsupported.into());
        pub(crate) lock(self, _file: &File, _is_shared: bool) -> io::Result<()>
            = Err(io::ErrorKind::Unsupported.into());
        pub(crate) unlock(self, _file: &File) -> io::Result<()> = Ok(());
        pub(crate) is_locked_exclusively(self, _file: &File) -> io::Result<bool> = Ok(false);
    }
}

/// Makes the content of a file survive power loss.
pub(crate) fn sync_file(file: &File) -> io::Result<()> {
    file.sync_data()
}

/// Reading and writing at an offset, as on other systems.
pub(crate) trait FileExt {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    fn write_all_at(&self, buffer: &[u8], offset: u64) -> io::Result<()>;
}

impl FileExt for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::windows::fs::FileExt::seek_read(self, buffer, offset)
    }

    fn write_all_at(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        // To a file that was opened for plain use, WriteFile writes all or fails.
        match std::os::windows::fs::FileExt::seek_write(self, buffer, offset)? {
            written if written == buffer.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }
}

/// Opens a file or directory to read its metadata.
pub(super) fn look_at(path: &Path, flags: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.access_mode(FILE_READ_ATTRIBUTES);
    open_with(&mut options, FILE_FLAG_BACKUP_SEMANTICS | flags, path)
}

/// Opens a file that others may use meanwhile, without following a link.
pub(super) fn open_shared(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    open_with(options, FILE_FLAG_OPEN_REPARSE_POINT, path)
}

fn open_with(options: &mut OpenOptions, flags: u32, path: &Path) -> io::Result<File> {
    options.share_mode(SHARED).custom_flags(flags);
    retry_while_in_use(|| options.open(path))
}

/// Retries while another process has the file open, or while it is being removed.
pub(super) fn retry_while_in_use<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
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
pub(super) fn is_in_use(error: &io::Error) -> bool {
    [
        ERROR_ACCESS_DENIED,
        ERROR_SHARING_VIOLATION,
        ERROR_LOCK_VIOLATION,
        ERROR_DELETE_PENDING,
    ]
    .into_iter()
    .any(|code| is_code(error, code))
}

pub(super) fn is_code(error: &io::Error, code: u32) -> bool {
    error.raw_os_error() == Some(code.cast_signed())
}

fn lock_byte(file: &File, flags: u32) -> io::Result<bool> {
    let mut overlapped = locked_byte();
    let handle = file.as_raw_handle();
    // SAFETY: the handle is open and was not opened for overlapped use, so that the call has ended
    // when it returns; the structure is ours.
    match checked(unsafe { LockFileEx(handle, flags, 0, 1, 0, &raw mut overlapped) }) {
        Err(error) if is_code(&error, ERROR_LOCK_VIOLATION) => Ok(false),
        locked => locked.map(|()| true),
    }
}

fn locked_byte() -> OVERLAPPED {
    let mut overlapped = OVERLAPPED::default();
    overlapped.Anonymous.Anonymous.OffsetHigh = LOCKED_BYTE;
    overlapped
}

pub(super) fn not_a_regular_file(seen: &Metadata) -> Option<&'static str> {
    if seen.is_file() {
        None
    } else if seen.is_dir() {
        Some("a directory")
    } else {
        Some("a link")
    }
}
