//! One spelling for each file on disks where upper and lower case are the same, such as those of Windows and macOS.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};

/// Spells the parts of a path, one after the other.
pub(super) struct Spelling {
    directory: PathBuf,
    ignores_case: bool,
}

impl Spelling {
    pub(super) fn below(root: &Path) -> Self {
        Self {
            directory: root.to_owned(),
            ignores_case: false,
        }
    }

    /// The next part as it is typed; in a directory that ignores case, as that has it, in small letters. A file that is
    /// made later has them before and after.
    pub(super) fn of(&mut self, typed: &OsStr) -> OsString {
        let ignores_case = ignores_case(&self.directory, typed);
        self.ignores_case = ignores_case.unwrap_or(self.ignores_case);
        let spelled = if self.ignores_case {
            let listed = listed(&self.directory, typed);
            let listed = listed.as_deref().unwrap_or(typed);
            let in_unicode = listed.to_str().map(|name| in_small_letters(name).into());
            in_unicode.unwrap_or_else(|| listed.to_ascii_lowercase())
        } else {
            typed.to_owned()
        };
        self.directory.push(typed);
        spelled
    }
}

/// Each letter on its own: `str::to_lowercase` goes by what is around a sigma, which has two small forms.
fn in_small_letters(name: &str) -> String {
    let small = name.chars().flat_map(char::to_lowercase);
    small
        .map(|letter| if letter == 'ς' { 'σ' } else { letter })
        .collect()
}

/// A whole path, in the same way.
pub(super) fn spelled(path: &Path) -> PathBuf {
    let mut spelling = Spelling::below(Path::new(""));
    path.iter().map(|part| spelling.of(part)).collect()
}

/// `None`: nothing in the directory tells, and what it is in does.
fn ignores_case(directory: &Path, typed: &OsStr) -> Option<bool> {
    told_by(directory, typed)
        .or_else(|| entries(directory).find_map(|entry| told_by(directory, &entry.file_name())))
        .or_else(|| has_flag(directory).then_some(true))
}

/// Whether another spelling of this name leads to a file, and there is none that is called so.
fn told_by(directory: &Path, name: &OsStr) -> Option<bool> {
    let mut other = name.to_ascii_uppercase();
    if other == name {
        other.make_ascii_lowercase();
    }
    let is_there = |name: &OsStr| directory.join(name).symlink_metadata().is_ok();
    if other == name || !is_there(name) {
        return None;
    }
    let names = [name, &other];
    let has_other = is_there(&other);
    let is_both = if has_other {
        // Who may not list it cannot tell two files from one.
        let listed = fs::read_dir(directory).ok()?.flatten();
        let both = listed.filter(|entry| names.contains(&&*entry.file_name()));
        both.count() == 2
    } else {
        false
    };
    // One of them may have been made or removed meanwhile.
    let is_as_before = is_there(name) && is_there(&other) == has_other;
    is_as_before.then_some(has_other && !is_both)
}

/// A directory that has been empty since it was given the flag: see chattr(1).
#[cfg(target_os = "linux")]
fn has_flag(directory: &Path) -> bool {
    use rustix::fs::{IFlags, ioctl_getflags};

    // FS_CASEFOLD_FL of <linux/fs.h>.
    let flag = IFlags::from_bits_retain(0x4000_0000);
    let flags = fs::File::open(directory).map(ioctl_getflags);
    matches!(flags, Ok(Ok(flags)) if flags.contains(flag))
}

#[cfg(not(target_os = "linux"))]
fn has_flag(_directory: &Path) -> bool {
    false
}

/// The name of the file that is typed so, if the system says which it is: it may differ in more than its case.
#[cfg(unix)]
fn listed(directory: &Path, typed: &OsStr) -> Option<OsString> {
    use std::os::unix::fs::{DirEntryExt as _, MetadataExt as _};

    let found = directory.join(typed).symlink_metadata().ok()?;
    // The entry of a mount point has the number of what is beneath it.
    if fs::metadata(directory).ok()?.dev() != found.dev() {
        return None;
    }
    let mut same = entries(directory).filter(|entry| entry.ino() == found.ino());
    same.next()
        .map(|entry| entry.file_name())
        .filter(|_| same.next().is_none())
}

#[cfg(not(unix))]
fn listed(_directory: &Path, _typed: &OsStr) -> Option<OsString> {
    None
}

fn entries(directory: &Path) -> impl Iterator<Item = DirEntry> {
    fs::read_dir(directory).into_iter().flatten().flatten()
}
