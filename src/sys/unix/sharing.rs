//! Whom a store belongs to, and so the owner, the group and the modes of what is made in it.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{FileType, Gid, Mode, RawMode, Stat, Uid, fchmod, fchown, fstat};
use rustix::process::geteuid;

/// A store, by the metadata of its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sharing {
    owner: Uid,
    group: Gid,
    /// Its permissions, with those bits that directories below it get as well.
    mode: RawMode,
}

/// What is made in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Made {
    Directory,
    /// What each user may replace in turn.
    Common,
    /// A record or a ticket. It stays its maker's.
    Record,
}

/// Readable by all users, so that they can see who holds a lock; writable by its owner.
pub(super) const RECORD_MODE: Mode = Mode::RUSR
    .union(Mode::WUSR)
    .union(Mode::RGRP)
    .union(Mode::ROTH)
    .union(UNCLEANED);

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
const READABLE_BY_OTHERS: RawMode = 0o044;

impl Sharing {
    pub(super) fn of(store: &Stat) -> Self {
        Self {
            owner: Uid::from_raw(store.st_uid),
            group: Gid::from_raw(store.st_gid),
            mode: store.st_mode & 0o7777,
        }
    }

    /// Whether others may write to it: what is made in it gets its group and its modes, whatever the umask of
    /// its maker, or the first user would shut out the next.
    pub(super) fn is_shared(self) -> bool {
        self.mode & WRITABLE_BY_OTHERS != 0
    }

    /// Whether others may write to it, but not remove what is another user's.
    pub(super) fn is_sticky(self) -> bool {
        self.is_shared() && self.mode & STICKY != 0
    }

    /// Whether others may read its directory, and so lock it, but not write to it.
    pub(super) fn is_exposed(self) -> bool {
        !self.is_shared() && self.mode & READABLE_BY_OTHERS != 0
    }

    /// Whether only the caller and root can write to it.
    pub(super) fn is_own(self) -> bool {
        !self.is_shared() && self.owner == geteuid()
    }

    /// Whether the store, or what is in it, belongs to its owner or to root.
    pub(super) fn trusts(self, owner: Uid) -> bool {
        owner.is_root() || owner == self.owner
    }

    /// Whether it is another user's, and the caller root. What root made there would shut that user out.
    pub(super) fn is_guest(self) -> bool {
        !self.owner.is_root() && geteuid().is_root()
    }

    /// Whether a new directory is to get another owner, group or mode than those that the kernel gives it.
    pub(super) fn changes_directories(self) -> bool {
        self.is_shared() || self.is_guest()
    }

    /// The mode of a file that each user of a shared store may replace in turn.
    pub(super) fn mode_of_common(self) -> Mode {
        Mode::from_raw_mode(self.mode & 0o666) | UNCLEANED
    }

    /// `None`: what the umask leaves.
    fn mode_of(self, kind: Made) -> Option<Mode> {
        let mode = match kind {
            Made::Directory => return Some(Mode::from_raw_mode(self.mode)),
            Made::Common if !self.is_sticky() => return Some(self.mode_of_common()),
            // Its owner is to see by whom his store is used.
            Made::Record if !self.is_shared() => {
                return self.is_guest().then_some(RECORD_MODE);
            }
            // Others may replace it if the directory lets them: what they cannot write cannot make a third user send
            // a signal.
            Made::Common | Made::Record => self.mode & 0o666 & !WRITABLE_BY_OTHERS,
        };
        Some(Mode::from_raw_mode(mode) | UNCLEANED)
    }

    /// Gives a new file or directory the owner and the group.
    pub(super) fn give_to_owner(self, new: impl AsFd) -> io::Result<()> {
        Ok(fchown(new, Some(self.owner), Some(self.group))?)
    }

    /// Gives a new file or directory the owner, the group and the mode. Its name is none that is used yet.
    pub(super) fn apply(self, new: impl AsFd, kind: Made) -> io::Result<()> {
        let Some(mode) = self.mode_of(kind) else {
            return Ok(());
        };
        let belongs_to_owner = kind != Made::Record && !self.is_sticky() && self.is_guest();
        if belongs_to_owner {
            self.give_to_owner(&new)?;
        }
        if !self.is_shared() {
            return Ok(fchmod(&new, mode)?);
        }
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
