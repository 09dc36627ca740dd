//! A waiter's own place in the queue: a ticket for each of its locks.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::sync::Arc;

use chrono::Utc;

use super::guard::{Guard, Root, prune};
use super::kept_places::{self, keep_or_remove};
use super::layout::{self, META_DIR};
use super::number;
use super::reservations::RESERVATIONS;
use super::tickets::{TicketName, Tickets};
use crate::backend::QueuePlace;
use crate::decision::Request;
use crate::error::{Context, Error, Result};
use crate::identity::Pid;
use crate::name::LockName;
use crate::record::{MAX_RECORD_BYTES, Record};
use crate::sys::directory::{
    Directory, FileExt as _, move_to_high_fd, try_lock_record, unlock_record,
};
use crate::ticket::TicketContent;

pub(super) const WAITING: &str = "waiting";

/// Number of attempts to make the directory of a queue that another process removes.
const MAX_RETRIES: usize = 100;

/// The directories below the store that lead to all queues, unless they lie flat.
pub(super) fn waiting_parts() -> [OsString; 2] {
    [META_DIR.into(), WAITING.into()]
}

/// Those that lead from there to the queue of a lock.
pub(super) fn queue_parts(name: &LockName) -> Vec<OsString> {
    let mut parts = layout::parents(name);
    parts.push(layout::file_name(name));
    parts
}

/// Removes the directory of all queues, if none is left in it.
pub(super) fn prune_waiting(root: &Root) {
    let parts = waiting_parts();
    if let Ok(Some(waiting)) = root.descend(&parts)
        && waiting.names().is_ok_and(|names| names == [RESERVATIONS])
    {
        let _ = waiting.unlink(OsStr::new(RESERVATIONS));
    }
    root.prune(&parts, 1);
}

/// One's own place in the queue. Dropping it leaves the queue.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) number: u64,
    pub(super) root: Root,
    /// One for each lock.
    queues: Vec<OwnQueue>,
    name: TicketName,
    ticket: File,
    has_left: bool,
    /// It is kept if the waiter leaves without the lock.
    pub(super) is_kept: bool,
    /// It was kept for this waiter.
    pub(super) is_resumed: bool,
    /// The directory of all queues, or of all tickets of a sticky store.
    pub(super) waiting: Arc<Directory>,
    /// The last hold number of the store, if it is written in place.
    pub(super) last: Option<Arc<File>>,
    pid: Pid,
    /// For the record of the waiter, made while it has time: that takes a fifth of the time between
    /// waking and starting a command.
    pub(super) prepared: Option<File>,
}

/// The queue of one lock.
#[derive(Debug)]
struct OwnQueue {
    name: LockName,
    tickets: Tickets,
}

impl QueuePlace for Place {
    fn leave_quietly(&mut self) -> bool {
        self.remove_ticket();
        true
    }
}

impl Place {
    fn remove_ticket(&mut self) {
        if std::mem::replace(&mut self.has_left, true) {
            return;
        }
        if self.is_kept {
            // The first queue last: once the place is kept there, its owner may already use it again.
            let queues = self.queues.iter().rev().map(|queue| &queue.tickets);
            keep_or_remove(queues, self.name);
            return;
        }
        // If it cannot be removed, it is a dead waiter's ticket, which the next one removes.
        for queue in &self.queues {
            queue.tickets.unlink(self.name);
        }
    }

    /// Makes a file for the record, before it sleeps.
    pub(super) fn prepare(&mut self) {
        if self.prepared.is_none() {
            let file = self.root.directory.create_unnamed().ok().flatten();
            self.prepared = file.and_then(|file| move_to_high_fd(file).ok());
        }
    }

    /// Takes the last place, under the guard. `None`: it cannot be taken, and the caller waits for the hold without
    /// a place. `waiting`: the directory of all queues, if it is open.
    pub(super) fn join(
        guard: &Guard,
        mut waiting: Option<Arc<Directory>>,
        request: &Request,
        draft: &Record,
    ) -> Option<Self> {
        // Nothing is left beside a path lock.
        if request.wants.iter().any(|want| want.name.is_path()) {
            return None;
        }
        let last = number::open(&guard.root.directory).ok()?.map(Arc::new);
        let number = number::next(&guard.root, last.as_deref(), Utc::now(), 0).ok()?;
        let written = TicketContent::new(draft, request.clone());
        for _ in 0..=MAX_RETRIES {
            match Self::write(guard, waiting.take(), (number, &last), &written) {
                // The last waiter to leave removes the directory, without the guard; or a process that lists
                // the waiters has probed the ticket at the moment at which it was to be locked.
                Err(Error::Io { source, .. })
                    if matches!(
                        source.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::WouldBlock
                    ) => {}
                written => return written.ok(),
            }
        }
        None
    }

    fn write(
        guard: &Guard,
        waiting: Option<Arc<Directory>>,
        (number, last): (u64, &Option<Arc<File>>),
        written: &TicketContent,
    ) -> Result<Self> {
        let root = &guard.root;
        let failed =
            |kind: io::ErrorKind| Err(kind.into()).context("create queue ticket", &root.path);
        let mut names = written.request.wants.iter().map(|want| &want.name);
        let Some(first) = names.next() else {
            return failed(io::ErrorKind::InvalidInput);
        };
        let waiting = match (&root.flat, waiting) {
            (Some(flat), _) => Arc::clone(flat.directory()),
            (None, Some(waiting)) => waiting,
            (None, None) => guard.descend_or_create(&waiting_parts())?,
        };
        let queue = OwnQueue::make(guard, &waiting, first)?;
        let resumed = kept_places::find(&queue.tickets, &written.request);
        let number = resumed.map_or(number, |kept| kept.number);
        let name = TicketName::new(number, &written.request);
        let ticket = make_ticket(&queue.tickets.directory, &queue.tickets.file(name), written)
            .inspect_err(|_| queue.prune(root, &waiting))
            .context("create queue ticket", &root.path)?;
        // The ticket stands for the place from now on.
        if let Some(kept) = resumed {
            queue.tickets.unlink(kept);
        }
        let of_ticket = queue.tickets.clone();
        let mut place = Self {
            number,
            root: root.clone(),
            queues: vec![queue],
            name,
            ticket,
            has_left: false,
            is_kept: written.request.keep_ms.is_some(),
            is_resumed: resumed.is_some(),
            waiting,
            last: last.clone(),
            pid: Pid::of_self(),
            prepared: None,
        };
        for name in names {
            let queue = OwnQueue::make(guard, &place.waiting, name)?;
            if place.is_resumed {
                kept_places::clear(&queue.tickets, number);
            }
            let linked = of_ticket.link_into(&queue.tickets, place.name);
            if !linked.context("create queue ticket", &root.path)? {
                return failed(io::ErrorKind::AlreadyExists);
            }
            place.queues.push(queue);
        }
        Ok(place)
    }

    /// Its tickets in the queue of a lock.
    pub(super) fn tickets_of(&self, name: &LockName) -> Option<&Tickets> {
        let own = self.queues.iter().find(|queue| queue.name == *name);
        own.map(|queue| &queue.tickets)
    }
}

fn make_ticket(directory: &Directory, file: &OsStr, written: &TicketContent) -> io::Result<File> {
    let bytes = serde_json::to_vec(written)?;
    if bytes.len() as u64 > MAX_RECORD_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    // Under the guard, and its number is new: no process reads it before it is complete.
    let ticket = directory.create_named(file)?;
    let complete = ticket
        .write_all_at(&bytes, 0)
        .and_then(|()| try_lock_record(&ticket));
    if matches!(complete, Ok(true)) {
        return Ok(ticket);
    }
    let _ = directory.unlink(file);
    complete?;
    Err(io::ErrorKind::WouldBlock.into())
}

impl OwnQueue {
    /// `waiting`: the directory of all queues.
    fn make(guard: &Guard, waiting: &Arc<Directory>, name: &LockName) -> Result<Self> {
        let tickets = if let Some(flat) = &guard.root.flat {
            Tickets::in_flat(flat, name)
        } else {
            let parts = [&waiting_parts()[..], &queue_parts(name)].concat();
            Tickets::alone_in(guard.descend_or_create_from(waiting, &parts, 2)?)
        };
        Ok(Self {
            name: name.clone(),
            tickets,
        })
    }

    /// Removes its directories as far as they are empty. A process that makes them again has the guard, which
    /// the caller need not have, and retries if this removal was faster.
    fn prune(&self, root: &Root, waiting: &Directory) {
        if root.flat.is_none() && prune(waiting, &queue_parts(&self.name), 0) {
            prune_waiting(root);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.pid != Pid::of_self() {
            return;
        }
        self.remove_ticket();
        let _ = unlock_record(&self.ticket);
        for queue in &self.queues {
            queue.prune(&self.root, &self.waiting);
        }
    }
}
