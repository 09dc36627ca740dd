//! The queue of waiters on disk.
//!
//! Each waiter has a ticket, a numbered file in `.onehold/waiting/` that it keeps locked; a waiter for
//! several locks has one with a name in the queue of each. It holds the waiter's request, so that others
//! decide for the waiter by the same rules as for themselves. A waiter sleeps in flock(2) on the ticket ahead
//! of it, and so wakes when that waiter leaves, however it leaves. A ticket whose kernel lock is free belongs
//! to a dead waiter, and is removed under the guard.
//!
//! Nothing in the queue can make a hold fail: what cannot be read there counts as no waiter.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use super::flat::{self, Flat};
use super::guard::{Guard, Root};
use super::kept_places::{self, keep_or_remove};
use super::layout::{self, Entry};
use super::place::{Place, prune_waiting, queue_parts, waiting_parts};
use super::reservations::{self, FlatReservations, Reservations};
use super::tickets::{TicketName, Tickets};
use crate::decision::Request;
use crate::error::Result;
use crate::identity::Pid;
use crate::name::LockName;
use crate::open_file::{OpenFile, Ticket, read_all};
use crate::record::MAX_RECORD_BYTES;
use crate::status::{KeptPlace, Waiter};
use crate::sys::directory::{Directory, Found, record_is_locked};
use crate::sys::process;
use crate::ticket::{self, TicketContent};

/// The process of the waiter of a ticket, unless it is in another PID namespace, where its PID means another
/// one.
pub(super) fn visible_pid(ticket: &Ticket) -> Option<Pid> {
    let own = process::pid_namespace();
    let observer = ticket.request.observer.as_ref();
    let is_visible = observer.is_none_or(|observer| observer.pid_namespace == own);
    Some(ticket::waiter(ticket).filter(|_| is_visible)?.pid)
}

/// So many reservations are not looked through for those of waiters that have left: that takes a list of all queues.
const MAX_UNCHECKED: usize = 8;

/// The tickets of a store, as far as they were asked for.
#[derive(Default)]
pub(super) struct Queue<'a> {
    /// `None`: there are no waiters, or what is there is not a queue.
    waiting: Option<Arc<Directory>>,
    /// Of a sticky store.
    flat: Option<Arc<Flat>>,
    /// That of a waiter, which asks for earlier tickets only. Where it has been woken, it opens nothing anew.
    own: Option<&'a Place>,
    /// The tickets for names with this first segment: each queue is listed once. Without one: all.
    trees: RefCell<BTreeMap<Option<String>, Rc<Vec<Listed>>>>,
    /// Read once.
    reservations: RefCell<Option<FoundReservations>>,
}

/// `None`: none can be written.
type FoundReservations = Option<Reservations>;

/// A ticket in a queue. One for several names is in several.
#[derive(Clone)]
pub(super) struct Listed {
    ticket: TicketName,
    queue: Rc<ListedQueue>,
}

struct ListedQueue {
    name: LockName,
    tickets: Tickets,
}

impl Listed {
    pub(super) fn number(&self) -> u64 {
        self.ticket.number
    }

    pub(super) fn name(&self) -> &LockName {
        &self.queue.name
    }
}

/// Those with this number among tickets in order.
fn of_number(listed: &[Listed], number: u64) -> &[Listed] {
    let from = listed.partition_point(|ticket| ticket.number() < number);
    let rest = listed.get(from..).unwrap_or_default();
    let end = rest.partition_point(|ticket| ticket.number() == number);
    rest.get(..end).unwrap_or_default()
}

/// The tickets of a sticky store, each with the queue that it is in and the lock that it is for.
#[cold]
fn tickets_in_flat(flat: &Flat) -> impl Iterator<Item = (Tickets, TicketName, LockName)> {
    let files = flat.files(flat::TICKET).into_iter();
    files.filter_map(|(directory, file, _)| {
        let (ticket, of) = flat::ticket_in(&file)?;
        let key = layout::flat_key(OsStr::new(of)).filter(|key| key.index.is_none())?;
        let tickets = Tickets {
            directory: Arc::clone(directory),
            of: Some(of.into()),
        };
        Some((tickets, TicketName::read(OsStr::new(ticket))?, key.name))
    })
}

/// Visits the queues of the locks below `parent`, each with the directory that it is in. `prunes`: removes the other
/// directories there, if they are empty then.
fn each_queue(
    directory: &Directory,
    parent: Option<&str>,
    prunes: bool,
    visit: &mut dyn FnMut(&Directory, &LockName),
) {
    for file in directory.names().unwrap_or_default() {
        match layout::entry(parent, &file) {
            Some(Entry::Lock(name)) => visit(directory, &name),
            Some(Entry::Children(name)) => {
                if let Ok(below) = directory.open_below(&file) {
                    each_queue(&below, Some(&name), prunes, visit);
                }
                if prunes {
                    let _ = directory.remove_below_if_empty(&file);
                }
            }
            Some(Entry::Shared(_) | Entry::TooDeep) | None => {}
        }
    }
}

/// The name of the first segment of a name.
fn first_of(name: &LockName) -> Result<LockName> {
    LockName::new(name.as_str().split('/').next().unwrap_or_default())
}

/// Whether the store may have waiters: one system call, so it does not say for which lock.
pub(super) fn may_have_waiters(root: &Root) -> bool {
    root.flat.is_some() || has_queues(&root.directory)
}

fn has_queues(root: &Directory) -> bool {
    let waiting: PathBuf = waiting_parts().iter().collect();
    matches!(root.facts(waiting.as_os_str()), Ok(Some(_)))
}

/// Follows directories, each on its own: a symlink in place of any of them would lead to another store.
fn open_each(root: &Directory, parts: &[OsString]) -> io::Result<Directory> {
    let (first, rest) = parts.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut directories = rest.iter();
    directories.try_fold(root.open_below(first)?, |above, part| {
        above.open_below(part)
    })
}

impl<'a> Queue<'a> {
    pub(super) fn open(root: &Root) -> Self {
        match &root.flat {
            Some(flat) => Self {
                flat: Some(Arc::clone(flat)),
                ..Self::default()
            },
            None => Self::of_tree(&root.directory),
        }
    }

    /// That of a store which is not a sticky one.
    pub(super) fn of_tree(root: &Directory) -> Self {
        // Usually there are no waiters.
        let waiting = has_queues(root).then(|| open_each(root, &waiting_parts()));
        Self {
            waiting: waiting.and_then(Result::ok).map(Arc::new),
            ..Self::default()
        }
    }

    /// The queue before a waiter.
    pub(super) fn before(place: &'a Place) -> Self {
        Self {
            waiting: Some(Arc::clone(&place.waiting)),
            flat: place.root.flat.clone(),
            own: Some(place),
            ..Self::default()
        }
    }

    /// The directory of all queues, if there is one.
    pub(super) fn directory(&self) -> Option<Arc<Directory>> {
        self.waiting.clone()
    }

    /// The tickets for names with the same first segment, in order.
    pub(super) fn tickets(&self, name: &LockName) -> Rc<Vec<Listed>> {
        let Some(first) = name.segments().first() else {
            return Rc::default();
        };
        let first = Some(first.clone());
        if let Some(found) = self.trees.borrow().get(&first) {
            return Rc::clone(found);
        }
        self.note(first, self.list(Some(name)))
    }

    /// All tickets of the store.
    pub(super) fn all(&self) -> Rc<Vec<Listed>> {
        self.note(None, self.list(None))
    }

    fn note(&self, tree: Option<String>, found: Vec<Listed>) -> Rc<Vec<Listed>> {
        let found = Rc::new(found);
        self.trees.borrow_mut().insert(tree, Rc::clone(&found));
        found
    }

    /// Those for names with the same first segment as this one, or all, in order.
    fn list(&self, beside: Option<&LockName>) -> Vec<Listed> {
        let mut found = Vec::new();
        if let Some(flat) = &self.flat {
            for (tickets, ticket, name) in tickets_in_flat(flat) {
                let first = name.segments().first();
                if beside.is_none_or(|beside| beside.segments().first() == first) {
                    let queue = Rc::new(ListedQueue { name, tickets });
                    self.add(&queue, ticket, &mut found);
                }
            }
        } else if let Some(waiting) = &self.waiting {
            let mut list = |directory: &_, name: &_| self.list_lock(directory, name, &mut found);
            match beside.map(first_of) {
                None => each_queue(waiting, None, false, &mut list),
                Some(Ok(first)) => {
                    list(waiting, &first);
                    if let [children] = layout::children(&first).as_slice()
                        && let Ok(directory) = waiting.open_below(children)
                    {
                        each_queue(&directory, Some(first.as_str()), false, &mut list);
                    }
                }
                Some(Err(_)) => {}
            }
        }
        found.sort_unstable_by_key(Listed::number);
        // What grew while it was filled is given back: a program that ends soon reuses nothing else.
        found.shrink_to_fit();
        found
    }

    /// Notes a ticket that has a waiter, as far as is known, and that is asked for.
    fn add(&self, queue: &Rc<ListedQueue>, ticket: TicketName, found: &mut Vec<Listed>) {
        let is_asked = self.own.is_none_or(|own| ticket.number < own.number);
        if is_asked && !ticket.has_no_waiter() {
            let queue = Rc::clone(queue);
            found.push(Listed { ticket, queue });
        }
    }

    /// Those of one lock, whose queue is in this directory.
    fn list_lock(&self, directory: &Directory, name: &LockName, found: &mut Vec<Listed>) {
        let tickets = match self.own.and_then(|own| own.tickets_of(name)) {
            Some(own) => own.clone(),
            None => match directory.open_below(&layout::file_name(name)) {
                Ok(queue) => Tickets::alone_in(Arc::new(queue)),
                Err(_) => return,
            },
        };
        let name = name.clone();
        let queue = Rc::new(ListedQueue { name, tickets });
        queue.tickets.each(|ticket| self.add(&queue, ticket, found));
    }

    /// A ticket that was listed; `None` if its waiter is dead. `remove`: then the ticket goes, too.
    pub(super) fn ticket(&self, number: u64, remove: bool) -> Option<Ticket> {
        let (written, file) = self.read(number, remove)?;
        Some(Ticket {
            number,
            request: Request {
                ticket: Some(number),
                ..written.request
            },
            reserved_since_ms: self.reserved_since(number),
            handle: Some(Rc::new(file)),
        })
    }

    fn read(&self, number: u64, remove: bool) -> Option<(TicketContent, OpenFile)> {
        let listed: Vec<Listed> = {
            let trees = self.trees.borrow();
            let trees = trees.values().map(|tree| of_number(tree, number));
            trees.flatten().cloned().collect()
        };
        let Listed {
            ticket: name,
            queue,
        } = listed.last()?;
        let name = *name;
        // A ticket is known to be a regular file once it is open, and a FIFO is not waited for.
        let Ok(Found::File(ticket, facts)) = queue.tickets.find(name) else {
            return None;
        };
        if !record_is_locked(&ticket).ok()? {
            if remove {
                keep_or_remove(listed.iter().map(|listed| &listed.queue.tickets), name);
            }
            return None;
        }
        if facts.size > MAX_RECORD_BYTES {
            return None;
        }
        let bytes = read_all(&ticket).ok()?;
        let written = TicketContent::read(&bytes)?;
        Some((written, OpenFile::new(ticket, facts, bytes)))
    }

    /// The tickets for a lock that have a live waiter, the first one first.
    fn live(&self, name: &LockName) -> impl Iterator<Item = (u64, TicketContent)> {
        let tickets = self.tickets(name);
        let own = tickets.iter().filter(|ticket| ticket.name() == name);
        let numbers: Vec<u64> = own.map(Listed::number).collect();
        let numbers = numbers.into_iter();
        numbers.filter_map(|number| Some((number, self.read(number, false)?.0)))
    }

    /// The live waiters for a lock, the first one first.
    pub(super) fn waiters(&self, name: &LockName) -> Vec<Waiter> {
        let waiters = self.live(name).enumerate();
        let waiters = waiters.map(|(index, (_, written))| written.into_waiter(index + 1));
        waiters.collect()
    }

    /// The places in the queue of a lock that are kept for waiters that are gone, with their numbers.
    pub(super) fn kept(&self, name: &LockName) -> Vec<(u64, KeptPlace)> {
        let queue = self.directory_of(name);
        queue.as_ref().map(kept_places::listed).unwrap_or_default()
    }

    fn directory_of(&self, name: &LockName) -> Option<Tickets> {
        if let Some(flat) = &self.flat {
            return Some(Tickets::in_flat(flat, name));
        }
        let directory = open_each(self.waiting.as_ref()?, &queue_parts(name)).ok()?;
        Some(Tickets::alone_in(Arc::new(directory)))
    }

    /// How many live waiters are before a ticket in the queue of a lock.
    pub(super) fn waiters_before(&self, number: u64, name: &LockName) -> usize {
        let before = self.live(name).take_while(|(earlier, _)| *earlier < number);
        before.count()
    }

    /// Forgets the places that are kept for an owner: it has the lock.
    pub(super) fn forget_kept(&self, owner: &str, names: &[&LockName]) {
        for queue in names.iter().filter_map(|name| self.directory_of(name)) {
            kept_places::forget(&queue, owner);
        }
    }

    fn reserved_since(&self, number: u64) -> Option<u64> {
        let mut reservations = self.reservations.borrow_mut();
        match reservations.get_or_insert_with(|| self.read_reservations()) {
            Some(reservations) => reservations.get(&number).copied(),
            None => Some(0),
        }
    }

    /// Under the guard nobody else writes them.
    fn known_reservations(&self) -> FoundReservations {
        let mut known = self.reservations.borrow_mut();
        known
            .get_or_insert_with(|| self.read_reservations())
            .clone()
    }

    fn read_reservations(&self) -> FoundReservations {
        match &self.flat {
            Some(flat) => Some(FlatReservations::of_all(flat).merged()),
            None => reservations::read(self.waiting.as_ref()?),
        }
    }

    /// Reserves the lock for `reserve` from now on, and gives `restore_turn` its turn again. Under
    /// the guard. If it cannot be written, a reservation lasts longer than it should.
    pub(super) fn reserve(&self, reserve: Option<u64>, restore_turn: Option<u64>) {
        let Some(before) = self.known_reservations() else {
            return;
        };
        let reserve = reserve.filter(|number| !before.contains_key(number));
        let waiting = || -> BTreeSet<u64> { self.all().iter().map(Listed::number).collect() };
        // What is behind our own place was not read.
        let own = self.own.map_or(u64::MAX, |own| own.number);
        let after = if let Some(flat) = &self.flat {
            let waiting = waiting();
            let is_left = |number| waiting.contains(&number) || number >= own;
            let _ = FlatReservations::of_caller(flat).change(flat, reserve, restore_turn, is_left);
            None
        } else {
            let mut after = before.clone();
            if let Some(number) = restore_turn {
                after.remove(&number);
            }
            if let Some(number) = reserve {
                after.insert(number, process::boottime_milliseconds());
                if after.len() > MAX_UNCHECKED {
                    // Some belong to waiters that have left.
                    let waiting = waiting();
                    after.retain(|number, _| waiting.contains(number) || *number > own);
                }
            }
            if let Some(waiting) = self.waiting.as_ref().filter(|_| after != before) {
                let _ = reservations::write(waiting, &after);
            }
            Some(Some(after))
        };
        *self.reservations.borrow_mut() = after;
    }
}

/// Removes the tickets of dead waiters, and directories that are empty without them. What cannot be removed
/// is left without an error, as are files that are not ours: they do no harm.
pub(super) fn sweep(guard: &Guard) {
    if let Some(flat) = &guard.root.flat {
        for (tickets, ticket, _) in tickets_in_flat(flat) {
            sweep_ticket(&tickets, ticket);
        }
    } else if let Ok(Some(waiting)) = guard.root.descend(&waiting_parts()) {
        each_queue(&waiting, None, true, &mut |directory, name| {
            let file = layout::file_name(name);
            if let Ok(queue) = directory.open_below(&file) {
                let tickets = Tickets::alone_in(Arc::new(queue));
                for ticket in tickets.names() {
                    sweep_ticket(&tickets, ticket);
                }
            }
            let _ = directory.remove_below_if_empty(&file);
        });
        prune_waiting(&guard.root);
    }
}

/// Removes a ticket, or keeps its place, if it has no waiter any more. Only root can do that to another user's in a
/// sticky store.
fn sweep_ticket(tickets: &Tickets, ticket: TicketName) {
    if ticket.has_no_waiter() {
        kept_places::unlink_if_over(tickets, ticket);
    } else if let Ok(Found::File(open, _)) = tickets.find(ticket)
        && !record_is_locked(&open).unwrap_or(true)
    {
        keep_or_remove(std::iter::once(tickets), ticket);
    }
}
