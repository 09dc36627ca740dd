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
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use chrono::Utc;
use serde::{Deserialize, Serialize};

use super::flat::{self, Flat};
use super::guard::{Guard, Root};
use super::kept_places::{self, TicketName, Tickets, keep_or_remove};
use super::layout::{self, Entry, META_DIR};
use super::lock_file::open_or_replace;
use super::number;
use crate::backend::QueuePlace;
use crate::decision::{Key, Request, Ticket};
use crate::error::{Context, Error, Operation, Result};
use crate::identity::Pid;
use crate::name::LockName;
use crate::open_file::{Handle, OpenFile, read_all};
use crate::record::{MAX_RECORD_BYTES, Record};
use crate::status::{KeptPlace, Waiter};
use crate::sys::directory::{
    Directory, FileExt as _, Found, move_to_high_fd, record_is_locked, try_lock_record,
    unlock_record,
};
use crate::sys::temporary::{is_temporary, random_temporary_name};
use crate::sys::{not_found, process};
use crate::ticket::TicketContent;

pub(super) const WAITING: &str = "waiting";

/// Since when a free lock has been reserved for which ticket.
/// Read as far as a record is: that is enough for thousands of stopped waiters.
const RESERVATIONS: &str = "reserved";

/// Number of attempts to make the directory of a queue that another process removes.
const MAX_RETRIES: usize = 100;

/// The waiter that has a ticket.
pub(super) fn waiter(ticket: &Ticket<Handle>) -> Option<Waiter> {
    let open = ticket.handle.as_ref()?;
    Some(TicketContent::read(&open.bytes)?.into_waiter(1))
}

/// The process of the waiter of a ticket, unless it is in another PID namespace, where its PID means another
/// one.
pub(super) fn visible_pid(ticket: &Ticket<Handle>) -> Option<Pid> {
    let own = process::pid_namespace();
    let observer = ticket.request.observer.as_ref();
    let is_visible = observer.is_none_or(|observer| observer.pid_namespace == own);
    Some(waiter(ticket).filter(|_| is_visible)?.pid)
}

/// The tickets of a store, as far as they were asked for.
#[derive(Default)]
pub(super) struct Queue<'a> {
    /// `None`: there are no waiters, or what is there is not a queue.
    waiting: Option<Arc<Directory>>,
    /// Of a sticky store.
    flat: Option<Arc<Flat>>,
    /// That of a waiter, which asks for earlier tickets only. Where it has been woken, it opens nothing anew.
    own: Option<&'a Place>,
    /// The tickets that were listed, and where each is.
    listed: RefCell<BTreeMap<u64, Listed>>,
    /// The tickets for names with this first segment: each queue is listed once.
    trees: RefCell<BTreeMap<String, Vec<(u64, LockName)>>>,
    reservations: RefCell<Option<Reservations>>,
}

/// Where a ticket was listed: in one queue, or in several.
#[derive(Clone)]
struct Listed {
    queues: Vec<Tickets>,
    ticket: TicketName,
}

/// Since when a free lock has been reserved for which ticket. `None`: something else is in the place
/// of the file, so that no reservation can be written, and none may last.
type Reservations = Option<BTreeMap<u64, u64>>;

/// Whether the store may have waiters: one system call, so it does not say for which lock.
pub(super) fn may_have_waiters(root: &Root) -> bool {
    root.flat.is_some() || has_queues(&root.directory)
}

fn has_queues(root: &Directory) -> bool {
    let waiting: PathBuf = [META_DIR, WAITING].iter().collect();
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
        let waiting = has_queues(root).then(|| open_each(root, &[META_DIR.into(), WAITING.into()]));
        Self {
            waiting: waiting.and_then(Result::ok).map(Arc::new),
            ..Self::default()
        }
    }

    /// The queue before a waiter.
    pub(super) fn before(place: &'a Place) -> Self {
        Self {
            waiting: place.waiting.clone(),
            flat: place.root.flat.clone(),
            own: Some(place),
            ..Self::default()
        }
    }

    /// The tickets for names with the same first segment, in order.
    pub(super) fn tickets(&self, name: &LockName) -> Vec<(u64, LockName)> {
        if let Some(flat) = &self.flat {
            let tree = name.segments().first();
            return self.list_flat(flat, &|found| found.segments().first() == tree);
        }
        let (Some(waiting), Some(first)) = (&self.waiting, name.segments().first()) else {
            return Vec::new();
        };
        if let Some(found) = self.trees.borrow().get(first) {
            return found.clone();
        }
        let (tree, mut found) = (first.clone(), Vec::new());
        let text = name.as_str().split('/').next().unwrap_or(first);
        let Ok(first) = LockName::new(text) else {
            return found;
        };
        self.list_lock(waiting, &layout::file_name(&first), &first, &mut found);
        if let [children] = layout::children(&first).as_slice()
            && let Ok(directory) = waiting.open_below(children)
        {
            self.list(&directory, Some(first.as_str()), &mut found);
        }
        found.sort_by_key(|(number, _)| *number);
        self.trees.borrow_mut().insert(tree, found.clone());
        found
    }

    /// The tickets of a sticky store that are wanted, in order.
    #[cold]
    fn list_flat(
        &self,
        flat: &Flat,
        is_wanted: &dyn Fn(&LockName) -> bool,
    ) -> Vec<(u64, LockName)> {
        let mut found = Vec::new();
        for (directory, file, _) in flat.files(flat::TICKET) {
            let Some((ticket, of)) = flat::ticket_in(&file) else {
                continue;
            };
            let key = layout::flat_key(OsStr::new(of)).filter(|key| key.index.is_none());
            let ticket = TicketName::read(OsStr::new(ticket));
            if let (Some(ticket), Some(key)) = (ticket, key)
                && is_wanted(&key.name)
            {
                let tickets = Tickets {
                    directory: Arc::clone(directory),
                    of: Some(of.into()),
                };
                self.add(&tickets, ticket, &key.name, &mut found);
            }
        }
        found.sort_by_key(|(number, _)| *number);
        found
    }

    /// Notes a ticket that has a waiter, as far as is known, and that is asked for.
    fn add(
        &self,
        tickets: &Tickets,
        ticket: TicketName,
        name: &LockName,
        found: &mut Vec<(u64, LockName)>,
    ) {
        let is_asked = self.own.is_none_or(|own| ticket.number < own.number);
        if ticket.has_no_waiter() || !is_asked {
            return;
        }
        found.push((ticket.number, name.clone()));
        let mut listed = self.listed.borrow_mut();
        let queues = Vec::new();
        let listed = listed
            .entry(ticket.number)
            .or_insert(Listed { queues, ticket });
        listed.queues.push(tickets.clone());
    }

    /// All tickets of the store.
    pub(super) fn all(&self) -> Vec<(u64, LockName)> {
        if let Some(flat) = &self.flat {
            return self.list_flat(flat, &|_| true);
        }
        let mut found = Vec::new();
        if let Some(waiting) = &self.waiting {
            self.list(waiting, None, &mut found);
        }
        found.sort_by_key(|(number, _)| *number);
        found
    }

    fn list(&self, directory: &Directory, parent: Option<&str>, found: &mut Vec<(u64, LockName)>) {
        for file in directory.names().unwrap_or_default() {
            match layout::entry(parent, &file) {
                Some(Entry::Lock(name)) => self.list_lock(directory, &file, &name, found),
                Some(Entry::Children(name)) => {
                    if let Ok(below) = directory.open_below(&file) {
                        self.list(&below, Some(&name), found);
                    }
                }
                Some(Entry::Shared(_) | Entry::TooDeep) | None => {}
            }
        }
    }

    fn list_lock(
        &self,
        directory: &Directory,
        file: &OsStr,
        name: &LockName,
        found: &mut Vec<(u64, LockName)>,
    ) {
        let own = self.own.map_or(&[][..], |own| &own.queues);
        let tickets = match own.iter().find(|queue| queue.name == *name) {
            Some(queue) => queue.tickets.clone(),
            None => match directory.open_below(file) {
                Ok(tickets) => Tickets {
                    directory: Arc::new(tickets),
                    of: None,
                },
                Err(_) => return,
            },
        };
        for ticket in tickets.names() {
            self.add(&tickets, ticket, name, found);
        }
    }

    /// A ticket that was listed; `None` if its waiter is dead. `remove`: then the ticket goes, too.
    pub(super) fn ticket(&self, number: u64, remove: bool) -> Option<Ticket<Handle>> {
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
        let Listed {
            queues,
            ticket: name,
        } = self.listed.borrow().get(&number).cloned()?;
        // A ticket is known to be a regular file once it is open, and a FIFO is not waited for.
        let Ok(Found::File(ticket, facts)) = queues.last()?.find(name) else {
            return None;
        };
        if !record_is_locked(&ticket).ok()? {
            if remove {
                keep_or_remove(queues.iter(), name);
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
        let tickets = self.tickets(name).into_iter();
        let own = tickets.filter(move |(_, other)| other == name);
        own.filter_map(|(number, _)| Some((number, self.read(number, false)?.0)))
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
        let parts = path_parts(name);
        let directory = open_each(self.waiting.as_ref()?, parts.get(2..)?).ok()?;
        Some(Tickets {
            directory: Arc::new(directory),
            of: None,
        })
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

    fn read_reservations(&self) -> Reservations {
        if let Some(flat) = &self.flat {
            return Some(FlatReservations::of_all(flat).merged());
        }
        let waiting = self.waiting.as_ref()?;
        let file = match waiting.find(OsStr::new(RESERVATIONS)) {
            Ok(Found::File(file, _)) => file,
            Ok(Found::Other(_)) => return None,
            _ => return Some(BTreeMap::new()),
        };
        // An empty text is not parsed: to say where the error is, serde_json asks the processor for
        // its features, which takes 50 µs in a virtual machine.
        let text = read_all(&file).ok().filter(|text| !text.is_empty());
        let read = text.and_then(|text| serde_json::from_slice(&text).ok());
        Some(read.unwrap_or_default())
    }

    /// Reserves the lock for `reserve` from now on, and gives `restore_turn` its turn again. Under
    /// the guard. If it cannot be written, a reservation lasts longer than it should.
    pub(super) fn reserve(&self, reserve: Option<u64>, restore_turn: Option<u64>) {
        let Some(before) = self.read_reservations() else {
            return;
        };
        if let Some(flat) = &self.flat {
            let reserve = reserve.filter(|number| !before.contains_key(number));
            let _ = FlatReservations::of_caller(flat).change(flat, reserve, restore_turn, self);
            *self.reservations.borrow_mut() = None;
            return;
        }
        let mut after = before.clone();
        if let Some(number) = restore_turn {
            after.remove(&number);
        }
        if let Some(number) = reserve.filter(|number| !after.contains_key(number)) {
            after.insert(number, process::boottime_milliseconds());
            // The other ones belong to waiters that have left. What is behind our own place was not read.
            let waiting: BTreeSet<u64> = self.all().into_iter().map(|(number, _)| number).collect();
            let is_unread = |number: u64| self.own.is_some_and(|own| number > own.number);
            after.retain(|number, _| waiting.contains(number) || is_unread(*number));
        }
        if after != before {
            let _ = self.write_reservations(&after);
        }
        *self.reservations.borrow_mut() = Some(Some(after));
    }

    fn write_reservations(&self, reservations: &BTreeMap<u64, u64>) -> io::Result<()> {
        let Some(waiting) = &self.waiting else {
            return Ok(());
        };
        let name = OsStr::new(RESERVATIONS);
        // In a sticky directory another user's file cannot be removed, and is emptied.
        if reservations.is_empty() && waiting.unlink(name).is_ok() {
            return Ok(());
        }
        let text = serde_json::to_vec(reservations)?;
        if !waiting.is_own() {
            return waiting.replace(&random_temporary_name(), name, &text);
        }
        let file = open_or_replace(waiting, name)?;
        file.set_len(0)?;
        file.write_all_at(&text, 0)
    }
}

impl Tickets {
    /// The tickets of a lock in a sticky store, where new ones are made.
    fn in_flat(flat: &Flat, name: &LockName) -> Self {
        Self {
            directory: Arc::clone(flat.directory()),
            of: Some(layout::flat_file_name(&Key::exclusive(name))),
        }
    }
}

/// What the users of a sticky store have written about reservations, each in a file of its own: since when a free lock
/// has been reserved for which ticket, and when which waiter was given its turn again. The later one counts.
#[derive(Debug, Default, Serialize, Deserialize)]
struct FlatReservations {
    reserved: BTreeMap<u64, u64>,
    restored: BTreeMap<u64, u64>,
}

impl FlatReservations {
    fn read(file: &File) -> Option<Self> {
        serde_json::from_slice(&read_all(file).ok()?).ok()
    }

    fn of_all(flat: &Flat) -> Self {
        let mut all = Self::default();
        for one in flat.open_files(RESERVATIONS) {
            let one = Self::read(&one).unwrap_or_default();
            for (number, at) in one.reserved {
                let first = all.reserved.entry(number).or_insert(at);
                *first = at.min(*first);
            }
            for (number, at) in one.restored {
                let last = all.restored.entry(number).or_insert(at);
                *last = at.max(*last);
            }
        }
        all
    }

    fn of_caller(flat: &Flat) -> Self {
        let own = flat.directory().find(&Flat::own_file(RESERVATIONS));
        match own {
            Ok(Found::File(file, _)) => Self::read(&file).unwrap_or_default(),
            _ => Self::default(),
        }
    }

    fn merged(mut self) -> BTreeMap<u64, u64> {
        let restored = self.restored;
        self.reserved
            .retain(|number, at| restored.get(number).is_none_or(|restored| restored < at));
        self.reserved
    }

    /// Notes both, and forgets the tickets of waiters that have left. Under the guard.
    fn change(
        mut self,
        flat: &Flat,
        reserve: Option<u64>,
        restore: Option<u64>,
        queue: &Queue<'_>,
    ) -> io::Result<()> {
        let now = process::boottime_milliseconds();
        if let Some(number) = reserve {
            self.reserved.insert(number, now);
        }
        if let Some(number) = restore {
            self.restored.insert(number, now);
        }
        let waiting: BTreeSet<u64> = queue.all().into_iter().map(|(number, _)| number).collect();
        // What is behind our own place was not read.
        let is_left = |number: u64| {
            waiting.contains(&number) || queue.own.is_some_and(|own| number >= own.number)
        };
        self.reserved.retain(|number, _| is_left(*number));
        self.restored.retain(|number, _| is_left(*number));
        flat.replace(RESERVATIONS, &serde_json::to_vec(&self)?)
    }
}

/// One's own place in the queue. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct Place {
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
    /// The directory of all queues, unless they lie flat.
    waiting: Option<Arc<Directory>>,
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
    /// a place.
    pub(super) fn join(guard: &Guard, request: &Request, draft: &Record) -> Option<Self> {
        // Nothing is left beside a path lock.
        if request.wants.iter().any(|want| want.name.is_path()) {
            return None;
        }
        let last = number::open(&guard.root.directory).ok()?.map(Arc::new);
        let number = number::next(&guard.root, last.as_deref(), Utc::now(), 0).ok()?;
        let written = TicketContent::new(draft, request.clone());
        for _ in 0..=MAX_RETRIES {
            match Self::write(guard, (number, &last), &written) {
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
        (number, last): (u64, &Option<Arc<File>>),
        written: &TicketContent,
    ) -> Result<Self> {
        let last = last.clone();
        let mut names = written.request.wants.iter().map(|want| &want.name);
        let cannot = |kind: io::ErrorKind| {
            Err::<Self, _>(io::Error::from(kind)).context(Operation::CreateTicket, &guard.root.path)
        };
        let Some(first) = names.next() else {
            return cannot(io::ErrorKind::InvalidInput);
        };
        let waiting = if guard.root.flat.is_some() {
            None
        } else {
            let parts = [OsString::from(META_DIR), OsString::from(WAITING)];
            Some(guard.descend_or_create(&parts)?)
        };
        let queue = OwnQueue::make(guard, waiting.as_ref(), first)?;
        let resumed = kept_places::find(&queue.tickets, &written.request);
        let number = resumed.map_or(number, |kept| kept.number);
        let name = TicketName::new(number, &written.request);
        let ticket = make_ticket(&queue.tickets.directory, &queue.tickets.file(name), written)
            .inspect_err(|_| queue.prune(&guard.root))
            .context(Operation::CreateTicket, &guard.root.path)?;
        // The ticket stands for the place from now on.
        if let Some(kept) = resumed {
            queue.tickets.unlink(kept);
        }
        let of_ticket = queue.tickets.clone();
        let mut place = Self {
            number,
            root: guard.root.clone(),
            queues: vec![queue],
            name,
            ticket,
            has_left: false,
            is_kept: written.request.keep_ms.is_some(),
            is_resumed: resumed.is_some(),
            waiting,
            last,
            pid: Pid::of_self(),
            prepared: None,
        };
        for name in names {
            let queue = OwnQueue::make(guard, place.waiting.as_ref(), name)?;
            if place.is_resumed {
                kept_places::clear(&queue.tickets, number);
            }
            let linked = of_ticket.directory.link_into(
                &of_ticket.file(place.name),
                &queue.tickets.directory,
                &queue.tickets.file(place.name),
            );
            if !linked.context(Operation::CreateTicket, &guard.root.path)? {
                return cannot(io::ErrorKind::AlreadyExists);
            }
            place.queues.push(queue);
        }
        Ok(place)
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

/// The directories that lead to the queue of a lock, from the store on.
fn path_parts(name: &LockName) -> Vec<OsString> {
    let mut parts = vec![META_DIR.into(), WAITING.into()];
    parts.extend(layout::parents(name));
    parts.push(layout::file_name(name));
    parts
}

impl OwnQueue {
    /// `waiting`: the directory of all queues; `None` in a sticky store.
    fn make(guard: &Guard, waiting: Option<&Arc<Directory>>, name: &LockName) -> Result<Self> {
        let tickets = match (waiting, &guard.root.flat) {
            (Some(waiting), _) => Tickets {
                directory: guard.descend_or_create_from(waiting, &path_parts(name), 2)?,
                of: None,
            },
            (None, Some(flat)) => Tickets::in_flat(flat, name),
            (None, None) => {
                return Err(not_found()).context(Operation::CreateTicket, &guard.root.path);
            }
        };
        Ok(Self {
            name: name.clone(),
            tickets,
        })
    }

    /// Removes its directories as far as they are empty. A process that makes them again has the guard, which
    /// the caller need not have, and retries if this removal was faster.
    fn prune(&self, root: &Root) {
        if root.flat.is_some() {
            return;
        }
        let parts = path_parts(&self.name);
        let (waiting, _) = parts.split_at(2);
        if !root.prune(&parts, 2) {
            return;
        }
        if let Ok(Some(waiting)) = root.descend(waiting)
            && waiting.names().is_ok_and(|names| names == [RESERVATIONS])
        {
            let _ = waiting.unlink(OsStr::new(RESERVATIONS));
        }
        root.prune(waiting, 1);
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
            queue.prune(&self.root);
        }
    }
}

/// Removes the tickets of dead waiters, and directories that are empty without them. What cannot be removed
/// is left without an error, as are files that are not ours: they do no harm.
pub(super) fn sweep(guard: &Guard) {
    if let Some(flat) = &guard.root.flat {
        sweep_flat(flat);
        return;
    }
    let parts = [OsString::from(META_DIR), OsString::from(WAITING)];
    let Ok(Some(waiting)) = guard.root.descend(&parts) else {
        return;
    };
    if sweep_directory(&waiting, None) {
        let _ = waiting.unlink(OsStr::new(RESERVATIONS));
        guard.root.prune(&parts, 1);
    }
}

/// Sweeps the tickets of a sticky store. Only root can remove those of another user.
fn sweep_flat(flat: &Flat) {
    for (directory, file, _) in flat.files(flat::TICKET) {
        let Some((ticket, of)) = flat::ticket_in(&file) else {
            continue;
        };
        let tickets = Tickets {
            directory: Arc::clone(directory),
            of: Some(of.into()),
        };
        let Some(ticket) = TicketName::read(OsStr::new(ticket)) else {
            continue;
        };
        if ticket.has_no_waiter() {
            // Removes those whose time has passed.
            let _ = kept_places::all(&tickets).count();
        } else if let Ok(Found::File(open, _)) = tickets.find(ticket)
            && !record_is_locked(&open).unwrap_or(true)
        {
            keep_or_remove(std::iter::once(&tickets), ticket);
        }
    }
}

/// Sweeps the queues of the locks below `parent`. Returns whether no live waiter is left.
fn sweep_directory(directory: &Directory, parent: Option<&str>) -> bool {
    let mut is_empty = true;
    for file in directory.names().unwrap_or_default() {
        let sweep: &dyn Fn(Directory) -> bool = match layout::entry(parent, &file) {
            Some(Entry::Lock(_)) => &sweep_queue,
            Some(Entry::Children(name)) => &move |below| sweep_directory(&below, Some(&name)),
            Some(Entry::Shared(_) | Entry::TooDeep) | None => continue,
        };
        if let Ok(below) = directory.open_below(&file) {
            is_empty &= sweep(below);
            let _ = directory.remove_below_if_empty(&file);
        }
    }
    is_empty
}

/// Sweeps the queue of one lock. Returns whether no live waiter is left.
fn sweep_queue(queue: Directory) -> bool {
    let mut is_empty = true;
    let tickets = Tickets {
        directory: Arc::new(queue),
        of: None,
    };
    let queue = &tickets.directory;
    for file in queue.names().unwrap_or_default() {
        let name = TicketName::read(&file);
        if name.is_some_and(TicketName::has_no_waiter) || !(name.is_some() || is_temporary(&file)) {
            continue;
        }
        let is_live = match queue.find(&file) {
            Ok(Found::File(ticket, _)) => record_is_locked(&ticket).unwrap_or(true),
            _ => continue,
        };
        match name {
            _ if is_live => is_empty = false,
            Some(ticket) => keep_or_remove(std::iter::once(&tickets), ticket),
            None => {
                let _ = queue.unlink(&file);
            }
        }
    }
    is_empty && kept_places::all(&tickets).next().is_none()
}
