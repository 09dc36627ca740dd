//! How a command is put on record before it runs.

use std::fs::File;
use std::io;
use std::path::Path;

use super::directory::FileExt as _;
use super::spawn::HOLD_LOST;

/// A place in a record that a child fills with its PID before it executes its command.
#[derive(Debug)]
pub(crate) struct Note {
    /// Where in the file.
    pub(crate) offset: u64,
    /// What is written there, once it is filled.
    pub(crate) bytes: Vec<u8>,
    /// Puts the PID into the bytes, and the start where that is known before the command runs. It
    /// does not allocate.
    pub(crate) fill: fn(&mut [u8], u32, Option<u64>),
    /// What must be there before, or another program has rewritten the file. Empty: not checked.
    pub(crate) expected: Vec<u8>,
}

/// How a command is put on record before it runs.
#[derive(Debug)]
pub(crate) struct Recording<'a> {
    pub(crate) record: &'a File,
    /// Absolute. Each must name the record once the notes have been written.
    pub(crate) paths: Vec<&'a Path>,
    pub(crate) notes: Vec<Note>,
    /// The command keeps the record open, and so its lock.
    #[cfg_attr(windows, allow(dead_code, reason = "commands inherit no locks there"))]
    pub(crate) inherit: bool,
}

impl Note {
    /// Fills it, and writes it into the record. `room`: as long as what is expected, or longer. Does not allocate.
    pub(super) fn write(
        &mut self,
        record: &File,
        room: &mut [u8],
        pid: u32,
        start: Option<u64>,
    ) -> io::Result<()> {
        let found = room.get_mut(..self.expected.len()).unwrap_or_default();
        if !found.is_empty() {
            // Another program may have rewritten the file in place, which keeps its inode.
            let read = record.read_at(found, self.offset)?;
            if read < found.len() || *found != *self.expected {
                return Err(io::Error::from_raw_os_error(HOLD_LOST));
            }
        }
        (self.fill)(&mut self.bytes, pid, start);
        let written = record.write_all_at(&self.bytes, self.offset);
        written.map_err(|error| not_recorded(&error))
    }
}

/// Added to the number of the error that kept a command from being put on record. Only a number passes from a child to its
/// parent, and no system has so high ones.
const NOT_RECORDED: i32 = 0x2002_0000;

pub(super) fn not_recorded(why: &io::Error) -> io::Error {
    io::Error::from_raw_os_error(NOT_RECORDED | why.raw_os_error().unwrap_or(0))
}

/// Why a command was not put on record, if that is what this error of its start means.
pub(crate) fn why_not_recorded(error: &io::Error) -> Option<io::Error> {
    let code = error.raw_os_error()?;
    (code & NOT_RECORDED == NOT_RECORDED).then(|| match code & 0xFFFF {
        0 => io::Error::other("it was not executed"),
        why => io::Error::from_raw_os_error(why),
    })
}

/// Fails unless a path is known to name the record.
pub(super) fn ensure_named(is_named: io::Result<bool>) -> io::Result<()> {
    if is_named.map_err(|error| not_recorded(&error))? {
        return Ok(());
    }
    Err(io::Error::from_raw_os_error(HOLD_LOST))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn cause_that_keeps_a_command_from_being_put_on_record_passes_through_one_number() {
        // It is open for reading alone.
        let record = File::open("/dev/null").unwrap();
        let mut note = Note {
            offset: 0,
            bytes: vec![b' '; 8],
            fill: |_, _, _| {},
            expected: Vec::new(),
        };
        let error = note.write(&record, &mut [], 7, None).unwrap_err();
        let number = error.raw_os_error().unwrap();
        let passed = io::Error::from_raw_os_error(number);
        let why = why_not_recorded(&passed).unwrap();
        assert_eq!(why.raw_os_error(), Some(libc::EBADF));
        for other in [libc::ENOENT, libc::ENOSPC, HOLD_LOST] {
            let error = io::Error::from_raw_os_error(other);
            assert!(why_not_recorded(&error).is_none());
        }
    }
}
