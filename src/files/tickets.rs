//! The names of tickets, and the directories that they are in.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::flat::{self, Flat};
use super::layout;
use crate::decision::{Key, MAX_KEEP_MS, Request};
use crate::name::LockName;
use crate::record::digest;
use crate::sys::ProcessState;
use crate::sys::directory::{Directory, Found, record_is_locked};
use crate::sys::process::{boottime_milliseconds, pid_namespace, presence};
use crate::ticket::TicketContent;

/// What the name of a ticket says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TicketName {
    pub(super) number: u64,
    kept: Option<Kept>,
}

/// For whom a place is to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kept {
    /// A digest of the owner.
    owner: u32,
    /// At most [`MAX_KEEP_MS`]; a queue of a thousand is a thousand of these.
    keep_ms: u32,
    /// By the boot-time clock. `None`: it has a waiter, or no process has noticed yet that the waiter is dead.
    until_ms: Option<u64>,
}

impl TicketName {
    pub(super) fn new(number: u64, request: &Request) -> Self {
        let owner = request.owner.as_deref();
        let kept = owner.zip(request.keep_ms).map(|(owner, keep_ms)| Kept {
            owner: digest_of(owner),
            keep_ms: u32::try_from(keep_ms).unwrap_or(u32::MAX),
            until_ms: None,
        });
        Self { number, kept }
    }

    /// `None`: it is not the name of a ticket.
    pub(super) fn read(file: &OsStr) -> Option<Self> {
        let mut parts = file.to_str()?.split('-');
        let number = parts.next()?.parse().ok()?;
        let kept = match parts.next() {
            Some(owner) => Some(Kept {
                owner: u32::from_str_radix(owner, 16).ok()?,
                keep_ms: parts
                    .next()?
                    .parse()
                    .ok()
                    .filter(|ms| u64::from(*ms) <= MAX_KEEP_MS)?,
                until_ms: parts.next().map(str::parse).transpose().ok()?,
            }),
            None => None,
        };
        parts.next().is_none().then_some(Self { number, kept })
    }

    pub(super) fn file(self) -> OsString {
        let mut file = format!("{:020}", self.number);
        if let Some(kept) = self.kept {
            let _ = write!(file, "-{:08x}-{}", kept.owner, kept.keep_ms);
            file.extend(kept.until_ms.map(|until_ms| format!("-{until_ms}")));
        }
        file.into()
    }

    /// Whether it is, or is to be, kept for this owner.
    pub(super) fn is_for_owner(self, owner: &str) -> bool {
        self.kept.is_some_and(|kept| kept.owner == digest_of(owner))
    }

    /// Whether it is a kept place without a waiter, and so no longer a ticket.
    pub(super) fn has_no_waiter(self) -> bool {
        self.kept.is_some_and(|kept| kept.until_ms.is_some())
    }

    /// The kept place of this ticket, whose time starts now. `None`: it is not to be kept.
    pub(super) fn without_waiter(self) -> Option<Self> {
        let mut kept = self.kept?;
        kept.until_ms = Some(boottime_milliseconds().saturating_add(kept.keep_ms.into()));
        let kept = Some(kept);
        Some(Self { kept, ..self })
    }

    /// The place, if it is kept and has no live waiter: one may have been killed unnoticed.
    pub(super) fn if_kept(self, file: &File, content: &TicketContent) -> Option<Self> {
        if self.has_no_waiter() {
            return self.left().map(|_| self);
        }
        let observer = content.request.observer.as_ref();
        let is_visible = observer.is_some_and(|observer| observer.pid_namespace == pid_namespace());
        // The one behind it may have the kernel lock for a moment, because it slept on that lock.
        let is_dead = matches!(record_is_locked(file), Ok(false))
            || (is_visible && presence(content.pid) == ProcessState::Gone);
        self.without_waiter().filter(|_| is_dead)
    }

    /// How much longer it is kept. `None`: its time has passed, or it is of an earlier boot.
    pub(super) fn left(self) -> Option<Duration> {
        let kept = self.kept?;
        let until = kept.until_ms?;
        let left = until.checked_sub(boottime_milliseconds())?;
        Some(Duration::from_millis(left)).filter(|_| left > 0 && left <= kept.keep_ms.into())
    }
}

fn digest_of(owner: &str) -> u32 {
    let [.., a, b, c, d] = digest(owner.as_bytes()).to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

/// The tickets of one lock.
#[derive(Clone, Debug)]
pub(super) struct Tickets {
    pub(super) directory: Arc<Directory>,
    /// In a sticky store, where they lie beside those of other locks: the name of the lock's file.
    pub(super) of: Option<OsString>,
}

impl Tickets {
    /// Those of a lock whose queue has a directory.
    pub(super) fn alone_in(directory: Arc<Directory>) -> Self {
        let of = None;
        Self { directory, of }
    }

    /// Those of a lock in a sticky store, where new ones are made.
    pub(super) fn in_flat(flat: &Flat, name: &LockName) -> Self {
        Self {
            directory: Arc::clone(flat.directory()),
            of: Some(layout::flat_file_name(&Key::exclusive(name))),
        }
    }

    pub(super) fn file(&self, ticket: TicketName) -> OsString {
        match &self.of {
            Some(of) => flat::ticket_file(&ticket.file(), of),
            None => ticket.file(),
        }
    }

    /// All of them, in no order.
    pub(super) fn names(&self) -> impl Iterator<Item = TicketName> {
        let mut names = Vec::new();
        self.each(|name| names.push(name));
        names.into_iter()
    }

    /// Visits all of them, in no order, as far as they can be read.
    pub(super) fn each(&self, mut visit: impl FnMut(TicketName)) {
        let read = |file: &OsStr| match &self.of {
            Some(of) => {
                let (ticket, its_lock) = flat::ticket_in(file)?;
                (*of == its_lock).then(|| TicketName::read(ticket.as_ref()))?
            }
            None => TicketName::read(file),
        };
        let _ = self.directory.read(|file, _| {
            visit(read(file)?);
            None::<()>
        });
    }

    pub(super) fn find(&self, ticket: TicketName) -> io::Result<Found> {
        self.directory.find(&self.file(ticket))
    }

    pub(super) fn unlink(&self, ticket: TicketName) {
        let _ = self.directory.unlink(&self.file(ticket));
    }

    /// Adds a ticket to another queue, too; `false`: it has one of this name.
    pub(super) fn link_into(&self, other: &Self, ticket: TicketName) -> io::Result<bool> {
        let (from, to) = (self.file(ticket), other.file(ticket));
        self.directory.link_into(&from, &other.directory, &to)
    }

    pub(super) fn rename(&self, from: TicketName, to: TicketName) -> io::Result<()> {
        self.directory.rename(&self.file(from), &self.file(to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_tickets_are_read_as_they_are_written() {
        for text in [
            "00001795658436359231",
            "00001795658436359231-0000beef-600000",
            "00001795658436359231-0000beef-600000-36617265",
        ] {
            let name = TicketName::read(OsStr::new(text)).unwrap();
            assert_eq!(name.file(), text);
            assert_eq!(name.has_no_waiter(), text.ends_with("265"));
        }
        for text in [
            "",
            "x",
            "1-",
            "1-g-1",
            "1-1",
            "1-1-x",
            "1-1-1-x",
            "1-1-1-1-1",
            "reserved",
        ] {
            assert_eq!(TicketName::read(OsStr::new(text)), None, "{text}");
        }
    }
}
