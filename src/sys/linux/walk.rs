//! The path of a store, followed part by part.
//!
//! A caller with root's rights does not go through a symbolic link that belongs to neither root nor the owner of
//! what it leads to: another user could lead it to a directory of root's, to make and remove files there.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2, readlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::filesystem::magic;
use super::process::{PROC_SUPER_MAGIC, user_name};

/// As many as the kernel follows (path_resolution(7)).
const MAX_LINKS: usize = 40;

/// Only a place, for which no permission to read is needed.
const STEP: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

/// Opens a directory.
pub(in crate::sys) fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    match open_without_links(CWD, path, DIRECTORY) {
        Ok(directory) => Ok(directory),
        // Too many links: any. The others come from kernels before 5.6 and from seccomp filters.
        Err(Errno::LOOP | Errno::NOSYS | Errno::PERM) => open_through_links(path),
        Err(error) => Err(error.into()),
    }
}

/// Opens a file below a directory without going through any symbolic link.
pub(in crate::sys) fn open_without_links(
    directory: impl AsFd,
    path: &Path,
    flags: OFlags,
) -> rustix::io::Result<OwnedFd> {
    let without_links = ResolveFlags::NO_SYMLINKS;
    openat2(directory, path, flags, Mode::empty(), without_links)
}

#[cold]
fn open_through_links(path: &Path) -> io::Result<OwnedFd> {
    if !geteuid().is_root() {
        return Ok(openat(CWD, path, DIRECTORY, Mode::empty())?);
    }
    let start = openat(CWD, c".", STEP, Mode::empty())?;
    let place = follow(start, path.as_os_str(), &mut 0)?;
    Ok(openat(place, c".", DIRECTORY, Mode::empty())?)
}

/// Where a path leads that begins at `from`.
fn follow(from: OwnedFd, path: &OsStr, links: &mut usize) -> io::Result<OwnedFd> {
    let bytes = path.as_bytes();
    let mut place = match bytes.first() {
        Some(b'/') => openat(CWD, c"/", STEP, Mode::empty())?,
        Some(_) => from,
        None => return Err(Errno::NOENT.into()),
    };
    let parts = bytes.split(|byte| *byte == b'/');
    for part in parts.filter(|part| !part.is_empty()) {
        let part = OsStr::from_bytes(part);
        let step = openat(&place, part, STEP, Mode::empty())?;
        let seen = fstat(&step)?;
        if FileType::from_raw_mode(seen.st_mode) != FileType::Symlink {
            place = step;
            continue;
        }
        *links += 1;
        if *links > MAX_LINKS {
            return Err(Errno::LOOP.into());
        }
        let end = if magic(&step)? == PROC_SUPER_MAGIC {
            // Its text is only what the place was once called.
            let flags = STEP.difference(OFlags::NOFOLLOW);
            openat(&place, part, flags, Mode::empty())?
        } else {
            let text = readlinkat(&step, c"", Vec::new())?;
            follow(place, OsStr::from_bytes(text.as_bytes()), links)?
        };
        let owner = fstat(&end)?.st_uid;
        if seen.st_uid != 0 && seen.st_uid != owner {
            return Err(io::Error::other(format!(
                "{} in it is a symbolic link of user {} to what belongs to user {}",
                part.to_string_lossy(),
                user_name(seen.st_uid),
                user_name(owner)
            )));
        }
        place = end;
    }
    Ok(place)
}
