//! An open directory, and the file operations of the protocol.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::windows::ffi::OsStrExt;
use std::os::windows::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use windows_sys::Win32::Foundation::{ERROR_DIR_NOT_EMPTY, ERROR_SHARING_VIOLATION};
use windows_sys::Win32::Storage::FileSystem::{
    FILE_FLAG_OPEN_REPARSE_POINT, FILE_SHARE_READ, FILE_SHARE_WRITE, GetDriveTypeW,
    GetVolumeInformationW, GetVolumePathNameW, MoveFileExW,
};
use windows_sys::Win32::System::WindowsProgramming::{DRIVE_FIXED, DRIVE_RAMDISK, DRIVE_REMOVABLE};

use super::checked;
pub(crate) use super::file::*;
use crate::identity::Pid;
pub(crate) use crate::sys::not_linux::{clock_at_boot, is_seen_by_few, lockers, type_of};
use crate::sys::temporary::random_temporary_name;
pub(crate) use crate::sys::{FileFacts, FileId, Found, Kind, Space};
use crate::sys::{created, existing, locked, not_found};

/// The guard of a directory: a file that, while it is open, cannot be removed or renamed. So there
/// are never two of them.
const GUARD: &str = ".onehold-guard";

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

    /// Makes the directory of a store, with those above it as far as they are missing; `false` if it exists. Below a
    /// user's own directories only that user may enter it.
    pub(crate) fn make(path: &Path, _is_private: bool) -> io::Result<bool> {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        created(std::fs::create_dir(path))
    }

    always! {
        /// Whether others may read it but not write to it: not asked. Its guard is a file that nobody can lock for good
        /// without having it open.
        pub(crate) is_exposed(&self) -> bool = false;
        /// Whether others may write to it: not asked.
        pub(crate) is_shared(&self) -> bool = false;
        /// There are no sticky bits.
        pub(crate) is_sticky_store(&self) -> bool = false;
        /// Whether what is in it is written in place: always.
        pub(crate) is_own(&self) -> bool = true;
        /// Does nothing: there are no sticky stores.
        pub(crate) ensure_trusted(&self, _below: &Self) -> io::Result<()> = Ok(());
        /// What its filesystem has room for: not asked.
        pub(crate) space(&self) -> io::Result<Space> = Ok(Space::default());
        /// There are no such permissions.
        pub(crate) modes(&self) -> Option<(u32, u32, bool)> = None;
        /// Does nothing: NTFS keeps a journal of names.
        pub(crate) sync(&self) -> io::Result<()> = Ok(());
        /// Who may remove a file does not follow from its directory.
        pub(crate) only_removable(&self) -> io::Result<Option<u32>> = Ok(None);
        pub(crate) is_sticky(&self) -> bool = false;
        /// The process that has the lock on the directory itself: the system does not tell.
        pub(crate) locked_by(&self) -> Option<Pid> = None;
        /// What flock(1) could lock: it does not exist here.
        pub(crate) find_lockable(&self, _name: &OsStr, _create: bool, _writable: bool) -> io::Result<Found>
            = Err(io::ErrorKind::Unsupported.into());
        /// The same.
        pub(crate) find_unread(&self, _name: &OsStr) -> io::Result<Found>
            = Err(io::ErrorKind::Unsupported.into());
        /// Not supported.
        pub(crate) create_unnamed(&self) -> io::Result<Option<File>> = Ok(None);
        /// Nothing to do: files inherit the access list of their directory.
        pub(crate) let_others_write(&self, _record: &File) -> io::Result<()> = Ok(());
        pub(crate) link_unnamed(&self, _file: &File, _name: &OsStr) -> io::Result<bool>
            = Err(not_found());
    }

    /// Creates a directory as any other.
    pub(crate) fn make_private_below(&self, name: &OsStr) -> io::Result<()> {
        self.make_below(name)
    }

    /// Creates a directory; that it exists already is fine. There are no modes.
    pub(crate) fn make_below(&self, name: &OsStr) -> io::Result<()> {
        let made = retry_while_in_use(|| std::fs::create_dir(self.path.join(name)));
        created(made).map(drop)
    }

    /// Removes a directory if it is empty; `true` if it is gone.
    pub(crate) fn remove_below_if_empty(&self, name: &OsStr) -> io::Result<bool> {
        match existing(std::fs::remove_dir(self.path.join(name))) {
            Err(error) if is_code(&error, ERROR_DIR_NOT_EMPTY) || is_in_use(&error) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(false),
            removed => removed.map(|_| true),
        }
    }

    /// Its identity. Who may use what is made in it follows from its access control list, which is
    /// inherited.
    pub(crate) fn share(&mut self) -> io::Result<FileId> {
        self.id()
    }

    pub(crate) fn is_as_opened(&self, path: &Path, id: FileId) -> io::Result<bool> {
        Ok(id_of_path(path)? == id)
    }

    pub(crate) fn id(&self) -> io::Result<FileId> {
        Ok(facts_of_file(&self.handle)?.id)
    }

    /// NTFS or ReFS on a drive of this machine shares kernel locks. A network share may be changed
    /// by other machines, and on FAT the identity of a file changes when it is renamed.
    pub(crate) fn shares_kernel_locks(&self) -> io::Result<bool> {
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
        Ok(is_here && known && ["NTFS", "ReFS"].contains(&name.as_str()))
    }

    /// Tries to take the guard of the directory; `false` if another process holds it.
    pub(crate) fn try_lock(&self) -> io::Result<bool> {
        let path = self.path.join(GUARD);
        // For reading, which suffices for a lock: in a shared store it may be another user's.
        let open = |options: &mut OpenOptions| {
            let options = options.share_mode(FILE_SHARE_READ | FILE_SHARE_WRITE);
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
                *locked(&self.guard) = Some(file);
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

    pub(crate) fn unlock(&self) -> io::Result<()> {
        let mut guard = locked(&self.guard);
        if let Some(file) = guard.take() {
            // At once; a lock that goes with its handle may take a while (LockFileEx).
            let _ = file.unlock();
        }
        Ok(())
    }

    /// Opens the file `name` for reading, without following a link.
    pub(crate) fn find(&self, name: &OsStr) -> io::Result<Found> {
        let path = self.path.join(name);
        let seen = retry_while_in_use(|| std::fs::symlink_metadata(&path));
        match existing(seen)?.as_ref().map(not_a_regular_file) {
            None => Ok(Found::Missing),
            Some(Some(kind)) => Ok(Found::Other(kind)),
            Some(None) => self.find_regular(name),
        }
    }

    /// Finds a name that was a regular file a moment ago.
    pub(crate) fn find_regular(&self, name: &OsStr) -> io::Result<Found> {
        let opened = open_shared(OpenOptions::new().read(true), &self.path.join(name));
        let Some(file) = existing(opened)? else {
            return Ok(Found::Missing);
        };
        if let Some(kind) = not_a_regular_file(&file.metadata()?) {
            return Ok(Found::Other(kind));
        }
        let facts = facts_of_file(&file)?;
        Ok(Found::File(file, facts))
    }

    /// Opens the file `name` for writing in place. The caller checks that it is the expected file.
    pub(crate) fn open_for_update(&self, name: &OsStr) -> io::Result<File> {
        open_shared(
            OpenOptions::new().read(true).write(true),
            &self.path.join(name),
        )
    }

    /// Fails if the caller may not write to the file `name`.
    pub(crate) fn ensure_writable(&self, name: &OsStr) -> io::Result<()> {
        self.open_for_update(name).map(drop)
    }

    /// Opens a file for writing at its end, and returns its size.
    pub(crate) fn open_to_append(&self, name: &OsStr) -> io::Result<(File, u64)> {
        let file = open_shared(OpenOptions::new().append(true), &self.path.join(name))?;
        let size = file.metadata()?.len();
        Ok((file, size))
    }

    /// Metadata of the file `name`. `None` if there is none.
    pub(crate) fn facts(&self, name: &OsStr) -> io::Result<Option<FileFacts>> {
        let seen = look_at(&self.path.join(name), FILE_FLAG_OPEN_REPARSE_POINT);
        existing(seen)?.as_ref().map(facts_of_file).transpose()
    }

    /// Creates a file; fails if the name exists.
    pub(crate) fn create_named(&self, name: &OsStr) -> io::Result<File> {
        open_shared(
            OpenOptions::new().read(true).write(true).create_new(true),
            &self.path.join(name),
        )
    }

    /// Nobody replaces files of others in another way.
    pub(in crate::sys) fn create_common(&self, name: &OsStr) -> io::Result<File> {
        self.create_named(name)
    }

    /// Renames the file `from`; `false` if the new name exists. Nothing is replaced. The file loses
    /// its old name, because some filesystems (FAT) know only one name for a file.
    pub(crate) fn link(&self, from: &OsStr, to: &OsStr) -> io::Result<bool> {
        let (from, to) = (self.path.join(from), self.path.join(to));
        created(retry_while_in_use(|| move_file(&from, &to)))
    }

    /// Creates a second name for the file `from` in another directory, where the filesystem knows
    /// more than one (not FAT); `false` if that name exists.
    pub(crate) fn link_into(&self, from: &OsStr, other: &Self, to: &OsStr) -> io::Result<bool> {
        let (from, to) = (self.path.join(from), other.path.join(to));
        created(retry_while_in_use(|| std::fs::hard_link(&from, &to)))
    }

    /// Renames it: a file has one name here.
    pub(crate) fn move_if_free(&self, from: &OsStr, to: &OsStr) -> io::Result<bool> {
        self.link(from, to)
    }

    /// Not supported: ReplaceFileW takes several steps, and a process that is killed between them
    /// leaves no file with that name.
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
        let aside = self.path.join(random_temporary_name());
        let doomed = match existing(retry_while_in_use(|| move_file(&path, &aside))) {
            Ok(Some(())) => &aside,
            Ok(None) => return Ok(false),
            Err(_) => &path,
        };
        let removed = existing(retry_while_in_use(|| std::fs::remove_file(doomed)))?;
        // The moved file is no longer a record, so another process may remove it too.
        Ok(removed.is_some() || doomed == &aside)
    }

    /// Opens or creates a small file of our own for writing; refuses anything but a regular file.
    pub(crate) fn open_own(&self, name: &OsStr, append: bool) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).create(true).truncate(false);
        let file = open_shared(options.append(append).write(!append), &self.path.join(name))?;
        match not_a_regular_file(&file.metadata()?) {
            None => Ok(file),
            Some(kind) => Err(io::Error::new(io::ErrorKind::InvalidInput, kind)),
        }
    }

    /// As [`Self::open_own`], in a directory below this one, which must exist.
    pub(crate) fn open_own_in(&self, directory: &OsStr, name: &OsStr) -> io::Result<File> {
        self.open_below(directory)?.open_own(name, false)
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
        let aside = self.path.join(random_temporary_name());
        existing(retry_while_in_use(|| move_file(&to, &aside)))?;
        retry_while_in_use(|| move_file(&from, &to))?;
        // `cleanup` removes what stays.
        let _ = std::fs::remove_file(&aside);
        Ok(())
    }

    /// What `read` makes of each name in the directory but its guard, in no order, and of its type.
    pub(crate) fn read<T>(
        &self,
        mut read: impl FnMut(&OsStr, Kind) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            let kind = match entry.file_type() {
                Ok(kind) if kind.is_file() => Kind::RegularFile,
                _ => Kind::OtherOrUnknown,
            };
            if entry.file_name() != GUARD {
                entries.extend(read(&entry.file_name(), kind));
            }
        }
        Ok(entries)
    }
}

/// Whether a lock name is the path of a file: it begins with either slash, or a drive.
pub(crate) fn is_path(name: &OsStr) -> bool {
    let name = name.to_string_lossy().replace('\\', "/");
    let drive = matches!(name.as_bytes(), [letter, b':', b'/', ..] if letter.is_ascii_alphabetic());
    drive || name.starts_with('/') || name.starts_with("./") || name.starts_with("../")
}

always! {
    /// There are no sticky stores.
    pub(crate) is_sticky_store(_path: &Path) -> bool = false;
    /// Not known: a file has a list of rights.
    #[cfg(all(feature = "cli", feature = "cluster"))]
    pub is_exposed(_file: &Path) -> bool = false;
    /// The owner of what is at a path, if that is another user: not asked for.
    pub(crate) other_owner(_path: &Path) -> Option<String> = None;
    /// Whether the caller may remove a file: found out when it does.
    pub(crate) may_remove(_directory: &Path, _owner: u32) -> bool = true;
}

fn move_file(from: &Path, to: &Path) -> io::Result<()> {
    let (from, to) = (verbatim(from), verbatim(to));
    // SAFETY: both texts live and end with a null. No flags: nothing is replaced.
    checked(unsafe { MoveFileExW(from.as_ptr(), to.as_ptr(), 0) })
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
