//! The group and the modes of what is made in a store that several users share.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{FileType, Gid, Mode, RawMode, Stat, fchmod, fchown, fstat};

/// Whom a store belongs to that others may write to: what is made in it gets its group and its modes,
/// whatever the umask of its maker, or the first user would shut out the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sharing {
    group: Gid,
    /// The permissions of the store, with those bits that directories below it get as well.
    pub(super) mode: RawMode,
}

/// Permissions of the group and of others to write.
pub(super) const WRITABLE_BY_OTHERS: RawMode = 0o022;

pub(super) const STICKY: RawMode = 0o1000;

/// systemd-tmpfiles(8) does not remove a file with this bit, however old it is. On Linux it means nothing else.
pub(super) const UNCLEANED: Mode = if cfg!(target_os = "linux") {
    Mode::from_bits_retain(STICKY)
} else {
    Mode::empty()
};

const WRITABLE_BY_ALL: RawMode = 0o002;

impl Sharing {
    /// `None`: the store is its owner's.
    pub(super) fn of(store: &Stat) -> Option<Self> {
        let mode = store.st_mode & 0o7777;
        (mode & WRITABLE_BY_OTHERS != 0).then(|| Self {
            group: Gid::from_raw(store.st_gid),
            mode,
        })
    }

    /// The mode of a record or a ticket of one user. Others may replace it if the directory lets them: what
    /// they cannot write cannot make a third user send a signal.
    pub(super) fn mode_of_record(self) -> Mode {
        Mode::from_raw_mode(self.mode & 0o666 & !WRITABLE_BY_OTHERS) | UNCLEANED
    }

    /// The mode of a file that is written by each user in turn.
    pub(super) fn mode_of_common(self) -> Mode {
        Mode::from_raw_mode(self.mode & 0o666) | UNCLEANED
    }

    /// Gives a new file or directory the group and the mode.
    pub(super) fn apply(self, new: impl AsFd, mode: Mode) -> io::Result<()> {
        let is_of_group = |facts: &Stat| Gid::from_raw(facts.st_gid) == self.group;
        if !is_of_group(&fstat(&new)?) {
            // One who may not do that does not belong to the group.
            let _ = fchown(&new, None, Some(self.group));
        }
        fchmod(&new, mode)?;
        // For such a one the kernel also takes away the bit that passes the group on (chmod(2)).
        let applied = fstat(&new)?;
        let is_for_all = self.mode & WRITABLE_BY_ALL != 0;
        let is_directory = FileType::from_raw_mode(applied.st_mode) == FileType::Directory;
        let optional = if is_directory {
            Mode::empty()
        } else {
            UNCLEANED
        };
        let has_mode = Mode::from_raw_mode(applied.st_mode) | optional == mode | optional;
        if is_for_all || (is_of_group(&applied) && has_mode) {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "you do not belong to the group of the store",
        ))
    }
}
