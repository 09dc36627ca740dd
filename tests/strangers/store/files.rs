//! Files and directories that are put and removed, whatever is there.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Component, Path};
use std::process::Command;

use super::STRANGER;

pub(super) fn give(path: &Path, owner: u32, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    lchown(path, Some(owner), Some(owner)).unwrap();
}

/// A directory that everybody may write to, like a shared store.
pub(super) fn make_directory(path: &Path, owner: u32) {
    let mut missing: Vec<_> = path.ancestors().take_while(|path| !path.exists()).collect();
    while let Some(directory) = missing.pop() {
        fs::create_dir(directory).unwrap();
        give(directory, owner, 0o777);
    }
}

/// Whether a place is not behind a symlink that was put there.
pub(super) fn is_reached(place: &Path) -> bool {
    let parent = place.parent().unwrap();
    let is_plain = place.components().all(|part| part != Component::ParentDir);
    is_plain && parent.is_dir() && parent.canonicalize().is_ok_and(|found| found == parent)
}

/// Anew: in a sticky directory root may not open it with `O_CREAT` (proc_sys_fs(5)).
pub(super) fn put(path: &Path, text: &[u8]) {
    let before = fs::symlink_metadata(path)
        .ok()
        .filter(fs::Metadata::is_file);
    // There are names that no file can have.
    if clear(path) && fs::write(path, text).is_ok() {
        give(
            path,
            STRANGER,
            before.map_or(0o644, |before| before.mode() & 0o7777),
        );
    }
}

/// Removes what is there, however deep it is: a recursion has one descriptor for each directory.
pub(super) fn remove(path: &Path) {
    let removed = Command::new("rm").arg("-rf").arg(path).status();
    assert!(removed.unwrap().success());
}

/// Removes what is there, but not a directory: `false`.
pub(super) fn clear(path: &Path) -> bool {
    match fs::symlink_metadata(path) {
        Ok(facts) if facts.is_dir() => false,
        Ok(_) => fs::remove_file(path).is_ok(),
        Err(_) => true,
    }
}

/// The content of a regular file. A FIFO would be waited for.
pub(super) fn read(path: &Path) -> Option<Vec<u8>> {
    let facts = fs::symlink_metadata(path).ok()?;
    facts.is_file().then(|| fs::read(path).ok())?
}

pub(super) fn make_fifo(path: &Path) {
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: a string that ends with NUL.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o666) }, 0);
}
