//! Places in the queue that are kept for waiters that are gone.
//!
//! The name of such a waiter's ticket has a digest of the owner, and how long to keep the place. Once the waiter has
//! left, whoever finds the ticket renames it. It is then no longer a ticket and delays no waiter. If the same owner
//! asks for the same names within that time, it gets the same number.

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
use crate::open_file::read_all;
use crate::record::digest;
use crate::status::KeptPlace;
use crate::sys::ProcessState;
use crate::sys::directory::{Directory, Found, record_is_locked};
use crate::sys::process::{boottime_milliseconds, pid_namespace, presence};
use crate::ticket::{MAX_KEPT, TicketContent};

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
    keep_ms: u64,
    /// By the boot-time clock. `None`: it has a waiter, or no process has noticed yet that the waiter is dead.
    until_ms: Option<u64>,
}

impl TicketName {
    pub(super) fn new(number: u64, request: &Request) -> Self {
        let owner = request.owner.as_deref();
        let kept = owner.zip(request.keep_ms).map(|(owner, keep_ms)| Kept {
            owner: digest_of(owner),
            keep_ms,
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
                keep_ms: parts.next()?.parse().ok().filter(|ms| *ms <= MAX_KEEP_MS)?,
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

    /// Whether it is a kept place without a waiter, and so no longer a ticket.
    pub(super) fn has_no_waiter(self) -> bool {
        self.kept.is_some_and(|kept| kept.until_ms.is_some())
    }

    /// The kept place of this ticket, whose time starts now. `None`: it is not to be kept.
    fn without_waiter(self) -> Option<Self> {
        let mut kept = self.kept?;
        kept.until_ms = Some(boottime_milliseconds().saturating_add(kept.keep_ms));
        let kept = Some(kept);
        Some(Self { kept, ..self })
    }

    /// The place, if it is kept and has no live waiter: one may have been killed unnoticed.
    fn if_kept(self, file: &File, content: &TicketContent) -> Option<Self> {
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
    fn left(self) -> Option<Duration> {
        let kept = self.kept?;
        let until = kept.until_ms?;
        let left = until.checked_sub(boottime_milliseconds())?;
        Some(Duration::from_millis(left)).filter(|_| left > 0 && left <= kept.keep_ms)
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
        let files = self.directory.names().unwrap_or_default().into_iter();
        files.filter_map(|file| match &self.of {
            Some(of) => {
                let (ticket, its_lock) = flat::ticket_in(&file)?;
                (*of == its_lock).then(|| TicketName::read(ticket.as_ref()))?
            }
            None => TicketName::read(&file),
        })
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

    fn rename(&self, from: TicketName, to: TicketName) -> io::Result<()> {
        self.directory.rename(&self.file(from), &self.file(to))
    }
}

/// Keeps the place of a ticket without a waiter in these queues, or removes the ticket. Called under the guard, or by
/// the waiter itself. What cannot be changed is left without an error: another user's ticket does no harm.
pub(super) fn keep_or_remove<'a>(queues: impl Iterator<Item = &'a Tickets>, ticket: TicketName) {
    let kept = ticket.without_waiter();
    for queue in queues {
        let is_kept = kept.is_some_and(|kept| {
            all(queue).count() < MAX_KEPT && queue.rename(ticket, kept).is_ok()
        });
        if !is_kept {
            queue.unlink(ticket);
        }
    }
}

/// Removes the files of a place in a further queue of its request, even a ticket whose waiter is dead unnoticed.
/// Called under the guard.
pub(super) fn clear(queue: &Tickets, number: u64) {
    for name in queue.names().filter(|name| name.number == number) {
        queue.unlink(name);
    }
}

/// The places in a queue that are kept. Removes those whose time has passed.
fn all(queue: &Tickets) -> impl Iterator<Item = TicketName> {
    let kept = queue.names().filter(|name| name.has_no_waiter());
    kept.filter(|kept| !unlink_if_over(queue, *kept))
}

/// Removes a kept place if its time has passed; whether that is so.
pub(super) fn unlink_if_over(queue: &Tickets, kept: TicketName) -> bool {
    let is_over = kept.left().is_none();
    if is_over {
        queue.unlink(kept);
    }
    is_over
}

/// The first place that is kept for a request and has no waiter. Called under the guard.
pub(super) fn find(queue: &Tickets, request: &Request) -> Option<TicketName> {
    let owner = digest_of(request.owner.as_deref()?);
    let is_own = |name: &TicketName| name.kept.is_some_and(|kept| kept.owner == owner);
    tickets(queue).filter(is_own).find_map(|name| {
        let (file, content) = open(queue, name)?;
        if !content.is_for(request) {
            return None;
        }
        // Kept anew from now on: nothing is lost if this process is killed before it has a ticket. A file that
        // cannot be renamed is another user's; it would stay and be found again by the next call.
        let kept = name.if_kept(&file, &content)?.without_waiter()?;
        queue.rename(name, kept).ok()?;
        Some(kept)
    })
}

/// The tickets of a queue, with a waiter and without, in order.
fn tickets(queue: &Tickets) -> impl Iterator<Item = TicketName> {
    let mut names: Vec<TicketName> = queue.names().collect();
    names.sort_by_key(|name| name.number);
    names.into_iter()
}

fn open(queue: &Tickets, name: TicketName) -> Option<(File, TicketContent)> {
    let file = queue.find(name).ok()?.file()?;
    let content = TicketContent::read(&read_all(&file).ok()?)?;
    Some((file, content))
}

/// Removes the places that are kept for this owner, which has had its turn.
pub(super) fn forget(queue: &Tickets, owner: &str) {
    let owner = digest_of(owner);
    for name in all(queue) {
        if name.kept.is_some_and(|kept| kept.owner == owner) {
            queue.unlink(name);
        }
    }
}

/// The places that are kept in a queue, in order, with their numbers.
pub(super) fn listed(queue: &Tickets) -> Vec<(u64, KeptPlace)> {
    let kept = tickets(queue).filter_map(|name| {
        let (file, content) = open(queue, name)?;
        let left = name.if_kept(&file, &content)?.left()?;
        Some((name.number, content.into_kept_place(left)))
    });
    kept.collect()
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
