//! Hold numbers: each greater than any before it in its store, so that a number names a hold and
//! serves as a fencing token.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::Path;

use chrono::{DateTime, Utc};

use super::guard::Root;
use super::layout::META_DIR;
use super::lock_file::is_named;
use crate::record::MAX_HOLD;
use crate::sys::directory::{Directory, FileExt as _};
use crate::sys::temporary::random_temporary_name;

const LAST: &str = "last";

/// Numbers are microseconds. One that is a century ahead of the clock is damaged, and following it
/// would soon leave none.
const CENTURY: u64 = 100 * 366 * 24 * 3600 * 1_000_000;

/// The number of a hold that replaces `replaced` (0: none), by the clock alone: a path lock has
/// nothing else.
pub(crate) fn by_clock(now: DateTime<Utc>, replaced: u64) -> u64 {
    let clock = u64::try_from(now.timestamp_micros())
        .unwrap_or(0)
        .clamp(1, MAX_HOLD - 1);
    after(clock, replaced)
}

/// The file of the last number, open to be written in place; `None`: others can write to the store, so that it must
/// be replaced. Under the guard.
pub(super) fn open(root: &Directory) -> io::Result<Option<File>> {
    if !root.is_own() {
        return Ok(None);
    }
    let name = OsStr::new(META_DIR);
    let opened = match root.open_own_in(name, OsStr::new(LAST)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            meta(root)?.open_own(OsStr::new(LAST), false)
        }
        Err(error) if error.kind() == io::ErrorKind::TooManyLinks => {
            replace(&root.open_below(name)?)
        }
        opened => opened,
    };
    opened.map(Some)
}

/// Replaces a file that has another name, for example in a copy of the store by `cp -al`: what is written into
/// it would be written there, too. Under the guard.
#[cold]
fn replace(own: &Directory) -> io::Result<File> {
    // Not its bytes, which may be those of any file, but a number that follows them if they are one.
    replace_in(own, by_clock(Utc::now(), last_in(own)?))?;
    own.open_own(OsStr::new(LAST), false)
}

fn meta(root: &Directory) -> io::Result<Directory> {
    root.make_below(OsStr::new(META_DIR))?;
    root.open_below(OsStr::new(META_DIR))
}

/// The last number, by the name of its file; 0: there is none.
fn last_in(own: &Directory) -> io::Result<u64> {
    let last = own.find(OsStr::new(LAST))?.file();
    last.map_or(Ok(0), |last| read(&last))
}

fn replace_in(own: &Directory, number: u64) -> io::Result<()> {
    let (temporary, name) = (random_temporary_name(), OsStr::new(LAST));
    own.replace(&temporary, name, &number.to_le_bytes())
}

/// Whether an open file is still that of the last number.
pub(super) fn is_last(root: &Directory, file: &File) -> io::Result<bool> {
    is_named(root, Path::new(META_DIR).join(LAST).as_os_str(), file)
}

/// The number of a hold that replaces `replaced`, which is the last one from now on. `open`: the file of the last one,
/// where it can be written in place. Under the guard.
pub(super) fn next(
    root: &Root,
    open: Option<&File>,
    now: DateTime<Utc>,
    replaced: u64,
) -> io::Result<u64> {
    let clock = by_clock(now, replaced);
    match open {
        Some(file) => {
            let number = after(clock, read(file)?);
            write(file, number)?;
            Ok(number)
        }
        None => next_by_replacing(root, clock),
    }
}

/// Others may have put any file in the place of the last number. It is read, and not written to.
#[cold]
fn next_by_replacing(root: &Root, clock: u64) -> io::Result<u64> {
    if let Some(flat) = &root.flat {
        let behind = |number, file: File| Ok::<_, io::Error>(after(number, read(&file)?));
        let number = flat.open_files(LAST).try_fold(clock, behind)?;
        flat.replace(LAST, &number.to_le_bytes())?;
        return Ok(number);
    }
    let own = meta(&root.directory)?;
    let number = after(clock, last_in(&own)?);
    replace_in(&own, number)?;
    Ok(number)
}

fn read(file: &File) -> io::Result<u64> {
    let mut bytes = [0; 8];
    Ok(match file.read_at(&mut bytes, 0)? {
        8 => u64::from_le_bytes(bytes),
        // New, or truncated by power loss: the clock is ahead of it.
        _ => 0,
    })
}

fn write(file: &File, number: u64) -> io::Result<()> {
    file.write_all_at(&number.to_le_bytes(), 0)
}

fn after(number: u64, other: u64) -> u64 {
    if other >= number && other - number < CENTURY && other < MAX_HOLD {
        other + 1
    } else {
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_is_greater_than_its_predecessor_and_not_below_the_clock() {
        let now: DateTime<Utc> = "2026-11-20T12:00:00Z".parse().expect("a time");
        let clock = u64::try_from(now.timestamp_micros()).expect("after 1970");
        assert_eq!(by_clock(now, 0), clock);
        assert_eq!(by_clock(now, clock - 1), clock);
        assert_eq!(by_clock(now, clock), clock + 1);
        assert_eq!(by_clock(now, clock + 7), clock + 8);
    }

    #[test]
    fn number_far_ahead_of_the_clock_is_ignored() {
        let now: DateTime<Utc> = "2026-11-20T12:00:00Z".parse().expect("a time");
        let clock = by_clock(now, 0);
        for garbage in [u64::MAX, MAX_HOLD, MAX_HOLD - 1] {
            assert_eq!(by_clock(now, garbage), clock, "{garbage}");
        }
        let long_ago: DateTime<Utc> = "-0042-01-01T00:00:00Z".parse().expect("a time");
        assert_eq!(by_clock(long_ago, 0), 1);
    }
}
