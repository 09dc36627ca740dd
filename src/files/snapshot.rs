//! Answers what a decision asks: which records and tickets there are.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use super::directory::Files;
use super::foreign;
use super::guard::{Guard, Root};
use super::layout::{self, Entry, SHARED_DIR};
use super::lock_file::{LockPath, OnDisk, not_a_lock};
use super::place::Place;
use super::queue::{self, Listed, Queue};
use crate::backend::{Backend as _, LockSnapshot};
use crate::decision::{
    Index, Key, Moment, Observer, ProcessFact, Request, Revision, Snapshot, Visit, Want, counts,
};
use crate::error::{Context, Error, Result};
use crate::identity::{Pid, ProcessId};
use crate::name::LockName;
use crate::observer;
use crate::open_file::{Found, Handle, OpenFile, Ticket};
use crate::record::{Format, Record};
use crate::status::Waiter;
use crate::sys::directory::{Directory, Kind};
use crate::sys::{ProcessState, existing, is_not_a_directory, process};

/// A store at one moment: under the guard, or while other processes may change it.
pub(crate) struct FilesSnapshot<'a> {
    pub(super) files: &'a Files,
    pub(super) root: &'a Root,
    /// `None`: nothing is changed, not even what a killed process left.
    pub(super) guard: Option<&'a Guard>,
    /// Of a caller that waits.
    pub(super) place: Option<&'a Place>,
    pub(super) known: Known<'a>,
}

/// The answers so far.
#[derive(Default)]
pub(super) struct Known<'a> {
    now: OnceCell<Moment>,
    pub(super) processes: RefCell<BTreeMap<Pid, ProcessFact>>,
    pub(super) pid_namespaces: RefCell<BTreeMap<u64, Option<ProcessState>>>,
    /// Each answer reads /proc.
    descends_from: RefCell<BTreeMap<ProcessId, bool>>,
    queue: OnceCell<Queue<'a>>,
    /// The directories below the store that were looked for, whether found or not.
    directories: RefCell<Vec<KnownDirectory>>,
    /// Those of the names that were asked about: a decision asks several times.
    shared: RefCell<Vec<(LockName, Rc<SharedDirectory>)>>,
    has_told_depth: Cell<bool>,
    /// The records of a sticky store, once it was listed.
    flat: OnceCell<FlatListing>,
}

/// The parts of a path below the store, and what is there.
type KnownDirectory = (Vec<OsString>, Option<Arc<Directory>>);

/// Records that are read one after the other, and errors.
type Records<'s> = Box<dyn Iterator<Item = Result<Found>> + 's>;

/// These records, or why they cannot be read.
fn records<'s>(found: Result<Vec<Found>>) -> Records<'s> {
    match found {
        Ok(found) => Box::new(found.into_iter().map(Ok)),
        Err(error) => Box::new(std::iter::once(Err(error))),
    }
}

/// The directory of the shared records of a name; that of the store, if there are none.
struct SharedDirectory {
    directory: Arc<Directory>,
    entries: Vec<SharedEntry>,
    only_removable: Option<u32>,
    /// All of the records, once they were read.
    found: OnceCell<Vec<Found>>,
}

type SharedEntry = (Index, OsString, Kind);

impl SharedDirectory {
    fn new(
        directory: Arc<Directory>,
        path: &Path,
        records: impl Iterator<Item = SharedEntry>,
    ) -> Result<Self> {
        let mut entries: Vec<_> = records.collect();
        entries.sort_unstable_by_key(|(index, ..)| index.number);
        let only_removable = if entries.is_empty() {
            Ok(None)
        } else {
            directory.only_removable()
        };
        Ok(Self {
            only_removable: only_removable.context("inspect", path)?,
            directory,
            entries,
            found: OnceCell::new(),
        })
    }
}

/// The records of a sticky store, in the order of their files.
type FlatListing = Vec<(Key, OsString, Kind)>;

/// So many shared records are read by each request to share a name. Of more, it reads as many, from a place that
/// changes with time, so that dead ones are found; or n requests would read n² / 2.
const SHARED_READ: usize = 64;

impl<'a> FilesSnapshot<'a> {
    pub(super) fn new(files: &'a Files, root: &'a Root, guard: Option<&'a Guard>) -> Self {
        Self {
            files,
            root,
            guard,
            place: None,
            known: Known::default(),
        }
    }

    /// The place of a record; `None`: the directory in which it would be does not exist.
    pub(super) fn at(&self, key: &Key) -> Result<Option<LockPath>> {
        let (parents, file) = self.root.layout().place_of(key);
        let directory = self.directory(&parents)?;
        Ok(directory.map(|directory| {
            let path = self.files.path_of_record(key);
            self.files.at(directory, file, path)
        }))
    }

    fn found(&self, key: Key, on_disk: OnDisk) -> Result<Option<Found>> {
        Ok(match on_disk {
            OnDisk::Nothing => None,
            OnDisk::NotRegular(kind) => {
                let shares_kernel_locks = self.root.shares_kernel_locks;
                Some(not_a_lock(key, kind, self.now(), shares_kernel_locks))
            }
            OnDisk::File(file) => {
                let path = self.files.path_of_record(&key);
                let found = self.found_file(key, file);
                found.context("read", &path)?
            }
        })
    }

    /// A directory below the store, opened once: the records of a name, what is below it and its shared
    /// holds are asked for one after the other.
    fn directory(&self, parts: &[OsString]) -> Result<Option<Arc<Directory>>> {
        let Some((last, above)) = parts.split_last() else {
            return Ok(Some(Arc::clone(&self.root.directory)));
        };
        let is_known = |(known, _): &&(Vec<OsString>, _)| known == parts;
        if let Some((_, directory)) = self.known.directories.borrow().iter().find(is_known) {
            return Ok(directory.clone());
        }
        let directory = match self.directory(above)? {
            Some(parent) => existing(parent.open_below(last))
                .context("open directory", &self.files.below(parts))?
                .map(Arc::new),
            None => None,
        };
        let known = (parts.to_vec(), directory.clone());
        self.known.directories.borrow_mut().push(known);
        Ok(directory)
    }

    /// The shared records of a name. `directory`: that of the locks below the name.
    fn shared_below(&self, directory: &Directory, name: &LockName) -> Result<SharedDirectory> {
        let path = self.files.below(&layout::shared(name));
        let directory = match directory.open_below(OsStr::new(SHARED_DIR)) {
            Err(error) if is_not_a_directory(&error) => return self.without_shared(),
            opened => opened.context("open directory", &path)?,
        };
        let entries = directory.entries();
        let entries = entries.context("read directory", &path)?;
        let entries = entries.into_iter();
        let records =
            entries.filter_map(|(file, kind)| Some((layout::shared_index(&file)?, file, kind)));
        SharedDirectory::new(Arc::new(directory), &path, records)
    }

    fn without_shared(&self) -> Result<SharedDirectory> {
        let directory = Arc::clone(&self.root.directory);
        SharedDirectory::new(directory, &self.root.path, std::iter::empty())
    }

    /// Those of a name in a sticky store.
    #[cold]
    fn shared_in_flat(&self, name: &LockName) -> Result<SharedDirectory> {
        let own = self.flat_listing()?.iter();
        let own = own.filter(|(key, ..)| key.name == *name);
        let records = own.filter_map(|(key, file, kind)| Some((key.index?, file.clone(), *kind)));
        SharedDirectory::new(Arc::clone(&self.root.directory), &self.root.path, records)
    }

    /// The directory of the shared holds of a name, opened and listed once.
    fn shared_of(&self, name: &LockName) -> Result<Rc<SharedDirectory>> {
        let is_asked = |(asked, _): &&(LockName, _)| asked == name;
        if let Some((_, known)) = self.known.shared.borrow().iter().find(is_asked) {
            return Ok(Rc::clone(known));
        }
        let shared = if name.is_path() {
            self.without_shared()?
        } else if self.root.flat.is_some() {
            self.shared_in_flat(name)?
        } else {
            match self.directory(&layout::children(name))? {
                Some(directory) => self.shared_below(&directory, name)?,
                None => self.without_shared()?,
            }
        };
        let shared = Rc::new(shared);
        let known = (name.clone(), Rc::clone(&shared));
        self.known.shared.borrow_mut().push(known);
        Ok(shared)
    }

    /// The files of the shared records of a name.
    fn flat_listing(&self) -> Result<&FlatListing> {
        if let Some(listing) = self.known.flat.get() {
            return Ok(listing);
        }
        let entries = self.root.directory.entries();
        let mut entries = entries.context("read directory", &self.root.path)?;
        entries.sort_unstable();
        // A directory in it is not looked into: its owner could remove what is there.
        let record = |(file, kind): (OsString, Kind)| Some((layout::flat_key(&file)?, file, kind));
        let records = entries.into_iter().filter_map(record).collect();
        Ok(self.known.flat.get_or_init(|| records))
    }

    /// The records of a sticky store that are `wanted`.
    #[cold]
    fn records_in_flat<'s>(&'s self, wanted: impl Fn(&Key) -> bool + 's) -> Result<Records<'s>> {
        let wanted = self
            .flat_listing()?
            .iter()
            .filter(move |(key, ..)| wanted(key));
        let mut shared: Vec<&LockName> = Vec::new();
        Ok(Box::new(wanted.flat_map(move |(key, file, kind)| {
            records(if key.index.is_none() {
                let directory = Arc::clone(&self.root.directory);
                let place = self
                    .files
                    .at(directory, file.clone(), self.root.path.join(file));
                self.listed(key.clone(), &place, *kind)
            } else if shared.contains(&&key.name) {
                Ok(Vec::new())
            } else {
                shared.push(&key.name);
                Snapshot::shared(self, &key.name)
            })
        })))
    }

    /// All records of the store. Fails if the store itself cannot be read.
    pub(super) fn all_records(&self) -> Result<Records<'_>> {
        if self.root.flat.is_some() {
            return self.records_in_flat(|_| true);
        }
        self.records_below(
            Arc::clone(&self.root.directory),
            self.root.path.clone(),
            None,
            None,
        )
    }

    /// These records, by number.
    fn shared_records<'e>(
        &self,
        shared: &SharedDirectory,
        name: &LockName,
        entries: impl IntoIterator<Item = &'e SharedEntry>,
    ) -> Result<Vec<Found>> {
        let records = entries.into_iter();
        let records = records.map(|entry| self.shared_record(shared, name, entry));
        records.filter_map(Result::transpose).collect()
    }

    /// The record of a file that was listed.
    fn listed(&self, key: Key, place: &LockPath, kind: Kind) -> Result<Vec<Found>> {
        let found = self.found(key, place.read_listed(kind)?)?;
        Ok(found.into_iter().collect())
    }

    fn shared_record(
        &self,
        shared: &SharedDirectory,
        name: &LockName,
        (index, file, kind): &SharedEntry,
    ) -> Result<Option<Found>> {
        let key = Key::of(name, Some(*index));
        let place = LockPath {
            directory: Arc::clone(&shared.directory),
            file: file.clone(),
            path: self.files.path_of_record(&key),
            format: Format::Native,
        };
        let on_disk = place.read_listed(*kind)?;
        let Some(mut found) = self.found(key, on_disk)? else {
            return Ok(None);
        };
        // There may be more of them than a process may have files open.
        let handle = found.handle.and_then(Rc::into_inner);
        let handle = handle.map(|open| Rc::new(open.close(&shared.directory, file)));
        let owner = handle.as_ref().map(|open| open.facts.owner);
        found.facts.stays = shared.only_removable.is_some() && owner != shared.only_removable;
        found.handle = handle;
        Ok(Some(found))
    }

    /// The records in the directory of the locks below `parent`, and the errors there, of which
    /// [`Error::TooDeep`] comes once. `without`: the shared records of this name are left out. Fails if the
    /// directory itself cannot be read.
    fn records_below<'s>(
        &'s self,
        directory: Arc<Directory>,
        path: PathBuf,
        parent: Option<String>,
        without: Option<&'s LockName>,
    ) -> Result<Records<'s>> {
        let mut entries = directory.entries().context("read directory", &path)?;
        // Names are small, and sorted faster than what is said of the locks.
        entries.sort_unstable();
        Ok(Box::new(entries.into_iter().flat_map(
            move |(file, kind)| {
                let below = path.join(&file);
                records(match layout::entry(parent.as_deref(), &file) {
                    Some(Entry::Lock(name)) => {
                        let place = self.files.at(Arc::clone(&directory), file, below);
                        self.listed(Key::exclusive(&name), &place, kind)
                    }
                    Some(Entry::Shared(name)) if without != Some(&name) => self
                        .shared_below(&directory, &name)
                        .and_then(|shared| self.shared_records(&shared, &name, &shared.entries)),
                    Some(Entry::Children(name)) => match directory.open_below(&file) {
                        Ok(children) => {
                            let children = Arc::new(children);
                            match self.records_below(children, below, Some(name), without) {
                                Ok(records) => return records,
                                Err(error) => Err(error),
                            }
                        }
                        // It only has the name of such a directory.
                        Err(error) if is_not_a_directory(&error) => Ok(Vec::new()),
                        Err(error) => Err(error).context("open directory", &below),
                    },
                    Some(Entry::TooDeep) if !self.known.has_told_depth.replace(true) => {
                        Err(self.too_deep(&below))
                    }
                    Some(Entry::Shared(_) | Entry::TooDeep) | None => Ok(Vec::new()),
                })
            },
        )))
    }

    #[cold]
    fn too_deep(&self, directory: &Path) -> Error {
        let below = directory.strip_prefix(&self.files.store);
        let first = below.ok().and_then(|below| below.iter().next());
        Error::TooDeep {
            path: self.files.store.join(first.unwrap_or_default()),
        }
    }

    pub(super) fn queue(&self) -> &Queue<'a> {
        self.known.queue.get_or_init(|| match self.place {
            Some(place) => Queue::before(place),
            None => Queue::open(self.root),
        })
    }
}

impl LockSnapshot for FilesSnapshot<'_> {
    fn waiters(&self, name: &LockName) -> Vec<Waiter> {
        if name.is_path() {
            return Vec::new();
        }
        // Not the queue before the caller alone.
        Queue::open(self.root).waiters(name)
    }
}

impl Snapshot<Handle> for FilesSnapshot<'_> {
    fn now(&self) -> Moment {
        *self.known.now.get_or_init(observer::now)
    }

    fn observer(&self) -> Observer {
        self.files.host.observer().clone()
    }

    fn takeover_is_safe(&self) -> bool {
        self.root.shares_kernel_locks
    }

    fn descends_from(&self, process: ProcessId) -> bool {
        let mut answers = self.known.descends_from.borrow_mut();
        *answers
            .entry(process)
            .or_insert_with(|| observer::descends_from(process))
    }

    fn is_started_by(&self, process: ProcessId, record: &Record) -> bool {
        self.descends_from(process) && observer::is_started_by(process, record)
    }

    /// Under the guard, a takeover that was killed is finished or reverted first.
    fn exclusive(&self, name: &LockName) -> Result<Option<Found>> {
        let key = Key::exclusive(name);
        let Some(place) = self.at(&key)? else {
            return Ok(None);
        };
        let mut on_disk = place.read()?;
        if self.guard.is_some()
            && self.root.shares_kernel_locks
            && foreign::may_have_leftovers(&place, name, &on_disk)
        {
            on_disk = foreign::recover(&|file| self.judge(file).state, &place, name, on_disk)?;
        }
        self.found(key, on_disk)
    }

    fn shared(&self, name: &LockName) -> Result<Vec<Found>> {
        let shared = self.shared_of(name)?;
        if let Some(found) = shared.found.get() {
            return Ok(found.clone());
        }
        let found = self.shared_records(&shared, name, &shared.entries)?;
        Ok(shared.found.get_or_init(|| found).clone())
    }

    fn shared_beside(&self, request: &Request, name: &LockName) -> Result<Vec<Found>> {
        let shared = self.shared_of(name)?;
        let (asker, count) = (request.asker_digest(), shared.entries.len());
        if count <= SHARED_READ || !self.takeover_is_safe() {
            return self.shared(name);
        }
        let since = self.now().boottime_ms % u64::try_from(count).unwrap_or(u64::MAX);
        let since = usize::try_from(since).unwrap_or(0);
        let is_read = |(at, (index, ..)): &(usize, &SharedEntry)| {
            let is_own = asker != 0 && index.asker == asker;
            is_own || !request.replace.is_empty() || (at + count - since) % count < SHARED_READ
        };
        let entries = shared.entries.iter().enumerate().filter(is_read);
        self.shared_records(&shared, name, entries.map(|(_, entry)| entry))
    }

    fn shared_numbers(&self, name: &LockName) -> Result<Vec<u32>> {
        let shared = self.shared_of(name)?;
        let numbers = shared.entries.iter().map(|(index, ..)| index.number);
        Ok(numbers.collect())
    }

    fn shared_shown(&self, name: &LockName, shown: &Revision) -> Result<Option<Found>> {
        let shared = self.shared_of(name)?;
        for entry in &shared.entries {
            let facts = shared.directory.facts(&entry.1);
            let facts = facts.context("inspect", &self.root.path)?;
            if facts.is_some_and(|facts| facts.id.inode == shown.file)
                && let Some(found) = self.shared_record(&shared, name, entry)?
                && found.revision == *shown
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn below(&self, name: &LockName, visit: &mut Visit<'_, Handle>) -> Result<()> {
        if name.is_path() {
            return Ok(());
        }
        let children = layout::children(name);
        let found = if self.root.flat.is_some() {
            self.records_in_flat(|key| name.is_ancestor_of(&key.name))?
        } else if let Some(directory) = self.directory(&children)? {
            // The shared records of the name itself are asked for on their own.
            let (path, parent) = (self.files.below(&children), name.as_str().to_owned());
            self.records_below(directory, path, Some(parent), Some(name))?
        } else {
            return Ok(());
        };
        for found in found {
            match found {
                // No lock is there.
                Err(Error::TooDeep { .. }) => {}
                found => {
                    if visit(found?).is_break() {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn each_ticket(&self, wants: &[Want], visit: &mut dyn FnMut(u64, &LockName)) -> Result<()> {
        let trees = wants.iter().map(|want| self.queue().tickets(&want.name));
        let trees: Vec<_> = trees.collect();
        let visit = |ticket: &Listed| visit(ticket.number(), ticket.name());
        if let [tree] = trees.as_slice() {
            tree.iter().for_each(visit);
            return Ok(());
        }
        // Wants with the same first segment have the same tickets.
        let key = |ticket: &&Listed| (ticket.number(), ticket.name().as_str().to_owned());
        let mut tickets: Vec<&Listed> = trees.iter().flat_map(|tree| tree.iter()).collect();
        tickets.sort_by_cached_key(key);
        tickets.dedup_by_key(|ticket| key(ticket));
        tickets.into_iter().for_each(visit);
        Ok(())
    }

    fn ticket(&self, number: u64) -> Result<Option<Ticket>> {
        Ok(self.queue().ticket(number, self.guard.is_some()))
    }

    fn is_stopped(&self, ticket: &Ticket) -> bool {
        queue::visible_pid(ticket).is_some_and(process::is_stopped)
    }

    #[cold]
    fn waiters_inside(&self) -> Result<Vec<Ticket>> {
        // Not the queue before the caller alone.
        let queue = Queue::open(self.root);
        let mut numbers: Vec<u64> = queue.all().iter().map(Listed::number).collect();
        numbers.dedup();
        let own = self.place.map(|place| place.number);
        let others = numbers.into_iter().filter(|number| Some(*number) != own);
        let waiters = others.filter_map(|number| queue.ticket(number, false));
        let inside = waiters.filter(|ticket| !ticket.request.inside.is_empty());
        Ok(inside.collect())
    }

    #[cold]
    fn is_awaited(&self, waiter: Option<&Ticket>, hold: &Found) -> bool {
        let user = |handle: &Handle| handle.as_deref().and_then(OpenFile::owner);
        let process = match waiter {
            None => Some(Pid::of_self()),
            Some(ticket) => {
                let (waiter, holder) = (user(&ticket.handle), user(&hold.handle));
                queue::visible_pid(ticket).filter(|_| counts(waiter, holder, process::own_uid()))
            }
        };
        let command = hold
            .content
            .record()
            .and_then(|record| record.live.process());
        let both = process.zip(command);
        both.is_some_and(|(process, command)| observer::is_awaited_by(process, command))
    }
}
