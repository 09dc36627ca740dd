//! Answers what a decision asks, and gathers the evidence for it: what a lock file says, whether its
//! kernel lock is held, and what the system says about the recorded processes.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use super::directory::Files;
use super::foreign;
use super::guard::{Guard, Root};
use super::layout::{self, Entry, SHARED_DIR};
use super::lock_file::{LockFile, LockPath, OnDisk, wall_clock};
use super::queue::{self, Place, Queue};
use crate::backend::{Backend as _, LockSnapshot};
use crate::decision::liveness::{DEFAULT_MAX_AGE, precedes_boot};
use crate::decision::verdict::{Reason, Verdict};
use crate::decision::{
    Facts, Found, Index, Key, Moment, Needed, Observer, ProcessFact, Request, Revision, Snapshot,
    Ticket, Want, judge, needed,
};
use crate::error::{Context, Error, Operation, Result};
use crate::identity::{Pid, ProcessId};
use crate::name::LockName;
use crate::observer;
use crate::open_file::{Handle, OpenFile};
use crate::record::{Content, Format, Record, digest};
use crate::status::Waiter;
use crate::sys::directory::{
    Directory, Kind, clock_at_boot, facts_of_file, lockers, record_is_locked,
};
use crate::sys::{ProcessState, existing, is_not_a_directory, process, work};

/// A store at one moment: under the guard, or while other processes may change it.
pub(crate) struct FilesSnapshot<'a> {
    pub(super) files: &'a Files,
    pub(super) root: &'a Root,
    /// `None`: nothing is changed, not even what a killed process left.
    pub(super) guard: Option<&'a Guard>,
    now: OnceCell<Moment>,
    processes: RefCell<BTreeMap<Pid, ProcessFact>>,
    pid_namespaces: RefCell<BTreeMap<u64, Option<ProcessState>>>,
    /// The answers so far, each of which reads /proc.
    descends_from: RefCell<BTreeMap<ProcessId, bool>>,
    queue: OnceCell<Queue<'a>>,
    /// Of a caller that waits.
    pub(super) place: Option<&'a Place>,
    /// The directories below the store that were looked for, whether found or not.
    directories: RefCell<Vec<KnownDirectory>>,
    /// Those of the names that were asked about: a decision asks several times.
    shared: RefCell<Vec<(LockName, Option<Rc<SharedDirectory>>)>>,
    has_told_depth: Cell<bool>,
    /// The records of a sticky store, once it was listed.
    flat: OnceCell<FlatListing>,
}

/// The parts of a path below the store, and what is there.
type KnownDirectory = (Vec<OsString>, Option<Arc<Directory>>);

/// The directory of the shared records of a name.
struct SharedDirectory {
    directory: Arc<Directory>,
    entries: Vec<SharedEntry>,
    only_removable: Option<u32>,
    /// All of the records, once they were read.
    found: OnceCell<Vec<Found<Handle>>>,
}

type SharedEntry = (Index, OsString, Kind);

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
            now: OnceCell::new(),
            processes: RefCell::default(),
            pid_namespaces: RefCell::default(),
            descends_from: RefCell::default(),
            queue: OnceCell::new(),
            place: None,
            directories: RefCell::default(),
            shared: RefCell::default(),
            has_told_depth: Cell::default(),
            flat: OnceCell::new(),
        }
    }

    fn found(&self, key: Key, on_disk: OnDisk) -> Result<Option<Found<Handle>>> {
        Ok(match on_disk {
            OnDisk::Nothing => None,
            OnDisk::NotRegular(kind) => Some(Found {
                key,
                content: Content::NotALock(kind),
                facts: Facts::of_file(self.now().wall, self.root.shares_kernel_locks),
                revision: Revision::NONE,
                handle: None,
            }),
            OnDisk::File(file) => {
                let path = self.files.path_of_record(&key);
                self.found_file(key, file).context(Operation::Read, &path)?
            }
        })
    }

    fn found_file(&self, key: Key, mut file: LockFile) -> io::Result<Option<Found<Handle>>> {
        let mut facts = self.facts(&file);
        // Its holder writes into it without the guard: the process that a hold is handed over to, the
        // PID of a command. If the writer has ended since the file was read, what it wrote last is
        // there only now. A process that has ended writes nothing more, so that a record which still
        // says the same is judged by its last content.
        let has_exited = |fact: &ProcessFact| fact.state == ProcessState::Gone;
        let mut reads = 1;
        while may_be_dead(&self.judge_by(&file, &facts)) || facts.processes.iter().any(has_exited) {
            if !file.read_again()? {
                // Without the guard, its holder may have released it before it exited.
                if self.guard.is_none() && facts_of_file(&file.file)?.links == 0 {
                    return Ok(None);
                }
                break;
            }
            facts = self.facts(&file);
            reads += 1;
            if reads > MAX_READS {
                return Err(io::Error::other("it keeps changing"));
            }
        }
        let content = file.content;
        let open = OpenFile::new(file.file, file.facts, file.bytes);
        Ok(Some(Found {
            key,
            facts,
            revision: revision(&content, &open),
            content,
            handle: Some(Rc::new(open)),
        }))
    }

    /// Judges a file that no caller asked about.
    pub(super) fn judge(&self, file: &LockFile) -> Verdict {
        self.judge_by(file, &self.facts(file))
    }

    fn judge_by(&self, file: &LockFile, facts: &Facts) -> Verdict {
        judge(
            &file.content,
            facts,
            self.files.host.observer(),
            DEFAULT_MAX_AGE,
            &self.now(),
        )
    }

    /// Gathers the facts that a verdict needs, and no others.
    pub(super) fn facts(&self, file: &LockFile) -> Facts {
        let Needed {
            kernel_lock,
            lockers: needs_lockers,
            processes,
            pid_namespace,
            clock_at_boot: needs_clock,
        } = needed(&file.content, self.files.host.observer());
        let origin = file
            .content
            .record()
            .and_then(|record| record.origin.as_ref());
        let same_store = origin.is_some_and(|origin| {
            (origin.store_device, origin.store_inode) == (self.root.id.device, self.root.id.inode)
                || self.is_in_use_here(file)
        });
        let modified = wall_clock(file.facts.modified);
        let kernel_lock = kernel_lock.then(|| record_is_locked(&file.file).ok());
        let kernel_lock = kernel_lock.flatten();
        // A probe does not find the readers of flock(1), and the list does. Beside a record readers do not
        // count.
        let is_listed = file.content.record().is_none() || kernel_lock == Some(true);
        let lockers = (needs_lockers && is_listed).then(|| lockers(&file.file));
        let lockers = lockers.flatten();
        let lockers = lockers.unwrap_or_default();
        Facts {
            kernel_lock: kernel_lock.map(|is_locked| is_locked || lockers.is_locked),
            lockers: lockers.pids,
            processes: processes.into_iter().map(|pid| self.process(pid)).collect(),
            pid_namespace: pid_namespace
                .filter(|_| kernel_lock != Some(true))
                .and_then(|number| self.pid_namespace(number)),
            clock_at_boot: (needs_clock && precedes_boot(modified, &self.now()))
                .then(clock_at_boot)
                .flatten(),
            same_store,
            ..Facts::of_file(modified, self.root.shares_kernel_locks)
        }
    }

    /// Whether the process that wrote a record for a store of another number has this very file and this very
    /// directory open: the number has changed, as on some FUSE filesystems.
    #[cold]
    #[inline(never)]
    fn is_in_use_here(&self, file: &LockFile) -> bool {
        let writer = file.content.record().and_then(Record::writer);
        let ids = [file.facts.id, self.root.id];
        writer.is_some_and(|writer| work::has_open(writer, &ids))
    }

    /// A listing asks for the same namespace many times.
    #[cold]
    fn pid_namespace(&self, number: u64) -> Option<ProcessState> {
        let mut known = self.pid_namespaces.borrow_mut();
        *known
            .entry(number)
            .or_insert_with(|| process::state_of_pid_namespace(number))
    }

    /// A listing asks for the same process many times.
    fn process(&self, pid: Pid) -> ProcessFact {
        let mut known = self.processes.borrow_mut();
        *known.entry(pid).or_insert_with(|| {
            let state = process::presence(pid);
            let began_ms = match state {
                ProcessState::Alive { start } => start.and_then(process::milliseconds_of_start),
                _ => None,
            };
            ProcessFact {
                pid,
                state,
                began_ms,
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
        if let Some((_, directory)) = self.directories.borrow().iter().find(is_known) {
            return Ok(directory.clone());
        }
        let directory = match self.directory(above)? {
            Some(parent) => existing(parent.open_below(last))
                .context(Operation::OpenDirectory, &self.files.below(parts))?
                .map(Arc::new),
            None => None,
        };
        let known = (parts.to_vec(), directory.clone());
        self.directories.borrow_mut().push(known);
        Ok(directory)
    }

    /// The directory of the shared records of a name; `None` if there is none. `directory`: that of the locks
    /// below the name.
    fn shared_directory(
        &self,
        directory: &Directory,
        name: &LockName,
    ) -> Result<Option<SharedDirectory>> {
        let path = || self.files.below(&layout::shared(name));
        let directory = match directory.open_below(OsStr::new(SHARED_DIR)) {
            Err(error) if is_not_a_directory(&error) => return Ok(None),
            opened => Arc::new(opened.context(Operation::OpenDirectory, &path())?),
        };
        let entries = directory
            .entries()
            .context(Operation::ReadDirectory, &path())?;
        let mut entries: Vec<_> = entries
            .into_iter()
            .filter_map(|(file, kind)| Some((layout::shared_index(&file)?, file, kind)))
            .collect();
        entries.sort_unstable_by_key(|(index, ..)| index.number);
        let only_removable = if entries.is_empty() {
            None
        } else {
            let asked = directory.only_removable();
            asked.context(Operation::Inspect, &path())?
        };
        Ok(Some(SharedDirectory {
            directory,
            entries,
            only_removable,
            found: OnceCell::new(),
        }))
    }

    /// The directory of the shared holds of a name, opened and listed once.
    fn shared_of(&self, name: &LockName) -> Result<Option<Rc<SharedDirectory>>> {
        let children = layout::children(name);
        let is_asked = |(asked, _): &&(LockName, _)| asked == name;
        if let Some((_, known)) = self.shared.borrow().iter().find(is_asked) {
            return Ok(known.clone());
        }
        let shared = if self.root.flat.is_some() {
            self.flat_shared(name)?
        } else {
            match self.directory(&children)? {
                // A path has none.
                Some(directory) if !children.is_empty() => {
                    self.shared_directory(&directory, name)?.map(Rc::new)
                }
                _ => None,
            }
        };
        self.shared
            .borrow_mut()
            .push((name.clone(), shared.clone()));
        Ok(shared)
    }

    /// The shared holds of a name in a sticky store.
    #[cold]
    fn flat_shared(&self, name: &LockName) -> Result<Option<Rc<SharedDirectory>>> {
        if name.is_path() {
            return Ok(None);
        }
        let listing = self.flat_listing()?;
        let own = listing.iter().filter(|(key, ..)| key.name == *name);
        let own = own.filter_map(|(key, file, kind)| Some((key.index?, file.clone(), *kind)));
        self.flat_directory(own.collect()).map(Some)
    }

    fn flat_directory(&self, mut entries: Vec<SharedEntry>) -> Result<Rc<SharedDirectory>> {
        entries.sort_unstable_by_key(|(index, ..)| index.number);
        let directory = Arc::clone(&self.root.directory);
        let only_removable = directory.only_removable();
        let only_removable = only_removable.context(Operation::Inspect, &self.root.path)?;
        Ok(Rc::new(SharedDirectory {
            directory,
            entries,
            only_removable,
            found: OnceCell::new(),
        }))
    }

    fn flat_listing(&self) -> Result<&FlatListing> {
        if let Some(listing) = self.flat.get() {
            return Ok(listing);
        }
        let entries = self.root.directory.entries();
        let mut entries = entries.context(Operation::ReadDirectory, &self.root.path)?;
        entries.sort_unstable();
        // A directory in it is not looked into: its owner could remove what is there.
        let record = |(file, kind): (OsString, Kind)| Some((layout::flat_key(&file)?, file, kind));
        let records = entries.into_iter().filter_map(record).collect();
        Ok(self.flat.get_or_init(|| records))
    }

    /// Visits every record of a sticky store that is `wanted`, and what is wrong with it.
    #[cold]
    fn walk_flat(
        &self,
        wanted: &dyn Fn(&Key) -> bool,
        visit: &mut dyn FnMut(Result<Found<Handle>>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let listing = self.flat_listing()?;
        let mut shared: Vec<&LockName> = Vec::new();
        for (key, file, kind) in listing {
            if !wanted(key) {
                continue;
            }
            let flow = if key.index.is_none() {
                let path = self.root.path.join(file);
                let place = self.files.at(&self.root.directory, file, &path);
                let found = place.read_listed(*kind);
                let found = found.and_then(|on_disk| self.found(key.clone(), on_disk));
                found.map(|found| found.into_iter().map(Ok).try_for_each(&mut *visit))
            } else if shared.contains(&&key.name) {
                continue;
            } else {
                shared.push(&key.name);
                let holds = Snapshot::shared(self, &key.name);
                holds.map(|holds| holds.into_iter().map(Ok).try_for_each(&mut *visit))
            };
            let flow = flow.unwrap_or_else(|error| visit(Err(error)));
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Visits every record of the store, and every error in it. Fails if the store itself cannot be read.
    pub(super) fn walk_all(
        &self,
        visit: &mut dyn FnMut(Result<Found<Handle>>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        if self.root.flat.is_none() {
            return self.walk(&self.root.directory, &self.root.path, None, None, visit);
        }
        self.walk_flat(&|_| true, visit)
    }

    /// These records, by number.
    fn shared_records<'e>(
        &self,
        shared: &SharedDirectory,
        name: &LockName,
        entries: impl IntoIterator<Item = &'e SharedEntry>,
    ) -> Result<Vec<Found<Handle>>> {
        let records = entries.into_iter();
        let records = records.map(|entry| self.shared_record(shared, name, entry));
        records.filter_map(Result::transpose).collect()
    }

    fn shared_record(
        &self,
        shared: &SharedDirectory,
        name: &LockName,
        (index, file, kind): &SharedEntry,
    ) -> Result<Option<Found<Handle>>> {
        let key = Key {
            name: name.clone(),
            index: Some(*index),
        };
        let place = LockPath {
            directory: &shared.directory,
            file,
            path: &self.files.path_of_record(&key),
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

    /// Visits every record in the directory of the locks below `parent`, and every error in it, of which
    /// [`Error::TooDeep`] comes once. `without`: the shared records of this name are left out. Fails if the
    /// directory itself cannot be read.
    fn walk(
        &self,
        directory: &Directory,
        path: &Path,
        parent: Option<&str>,
        without: Option<&LockName>,
        visit: &mut dyn FnMut(Result<Found<Handle>>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let mut entries = directory
            .entries()
            .context(Operation::ReadDirectory, path)?;
        // Names are small, and sorted faster than what is said of the locks.
        entries.sort_unstable();
        for (file, kind) in entries {
            let below = path.join(&file);
            let flow = match layout::entry(parent, &file) {
                Some(Entry::Lock(name)) => self
                    .files
                    .at(directory, &file, &below)
                    .read_listed(kind)
                    .and_then(|on_disk| self.found(Key::exclusive(&name), on_disk))
                    .map(|found| found.into_iter().map(Ok).try_for_each(&mut *visit)),
                Some(Entry::Shared(name)) if without != Some(&name) => self
                    .shared_directory(directory, &name)
                    .and_then(|shared| match shared {
                        Some(shared) => self.shared_records(&shared, &name, &shared.entries),
                        None => Ok(Vec::new()),
                    })
                    .map(|holds| holds.into_iter().map(Ok).try_for_each(&mut *visit)),
                Some(Entry::Children(name)) => match directory.open_below(&file) {
                    Ok(directory) => self.walk(&directory, &below, Some(&name), without, visit),
                    // It only has the name of such a directory.
                    Err(error) if is_not_a_directory(&error) => Ok(ControlFlow::Continue(())),
                    Err(error) => Err(error).context(Operation::OpenDirectory, &below),
                },
                Some(Entry::TooDeep) if !self.has_told_depth.replace(true) => {
                    Err(self.too_deep(&below))
                }
                Some(Entry::Shared(_) | Entry::TooDeep) | None => Ok(ControlFlow::Continue(())),
            };
            let flow = flow.unwrap_or_else(|error| visit(Err(error)));
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
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
        self.queue.get_or_init(|| match self.place {
            Some(place) => Queue::before(place),
            None => Queue::open(self.root),
        })
    }
}

/// Number of reads of a record that changes while it is judged.
const MAX_READS: usize = 100;

/// Whether no process was seen that keeps a hold alive now. Its kernel lock was probed before.
fn may_be_dead(verdict: &Verdict) -> bool {
    !matches!(
        verdict.reason,
        Reason::Alive
            | Reason::Lease
            | Reason::Ending
            | Reason::UnknownVersion(_)
            | Reason::Malformed(_)
            | Reason::NotALock(_)
    )
}

/// Identifies a hold as it was shown to a person, so that permission to break it covers no other.
pub(crate) fn revision(content: &Content, open: &OpenFile) -> Revision {
    let hold = content.record().map_or(0, |record| record.hold);
    Revision {
        file: open.facts.id.inode,
        hold,
        digest: if hold == 0 { digest(&open.bytes) } else { 0 },
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

    fn waiter(&self, ticket: &Ticket<Handle>) -> Option<Waiter> {
        queue::waiter(ticket)
    }
}

impl Snapshot<Handle> for FilesSnapshot<'_> {
    fn now(&self) -> Moment {
        *self.now.get_or_init(observer::now)
    }

    fn observer(&self) -> Observer {
        self.files.host.observer().clone()
    }

    fn takeover_is_safe(&self) -> bool {
        self.root.shares_kernel_locks
    }

    fn descends_from(&self, process: ProcessId) -> bool {
        let mut answers = self.descends_from.borrow_mut();
        *answers
            .entry(process)
            .or_insert_with(|| observer::descends_from(process))
    }

    /// Under the guard, a takeover that was killed is finished or reverted first.
    fn exclusive(&self, name: &LockName) -> Result<Option<Found<Handle>>> {
        let (parents, file) = self.root.layout().place_of(&Key::exclusive(name));
        let Some(directory) = self.directory(&parents)? else {
            return Ok(None);
        };
        let path = self.files.path_of(name);
        let place = self.files.at(&directory, &file, &path);
        let mut on_disk = place.read()?;
        if self.guard.is_some()
            && self.root.shares_kernel_locks
            && foreign::may_have_leftovers(&place, name, &on_disk)
        {
            on_disk = foreign::recover(&|file| self.judge(file).state, &place, name, on_disk)?;
        }
        self.found(Key::exclusive(name), on_disk)
    }

    fn shared(&self, name: &LockName) -> Result<Vec<Found<Handle>>> {
        let Some(shared) = self.shared_of(name)? else {
            return Ok(Vec::new());
        };
        if let Some(found) = shared.found.get() {
            return Ok(found.clone());
        }
        let found = self.shared_records(&shared, name, &shared.entries)?;
        Ok(shared.found.get_or_init(|| found).clone())
    }

    fn shared_beside(&self, request: &Request, name: &LockName) -> Result<Vec<Found<Handle>>> {
        let shared = self.shared_of(name)?;
        let is_many = |shared: &&Rc<SharedDirectory>| {
            shared.entries.len() > SHARED_READ && self.takeover_is_safe()
        };
        let Some(shared) = shared.as_ref().filter(is_many) else {
            return self.shared(name);
        };
        let (asker, count) = (request.asker_digest(), shared.entries.len());
        let since = self.now().boottime_ms % u64::try_from(count).unwrap_or(u64::MAX);
        let since = usize::try_from(since).unwrap_or(0);
        let is_read = |(at, (index, ..)): &(usize, &SharedEntry)| {
            let is_own = asker != 0 && index.asker == asker;
            is_own || !request.replace.is_empty() || (at + count - since) % count < SHARED_READ
        };
        let entries = shared.entries.iter().enumerate().filter(is_read);
        self.shared_records(shared, name, entries.map(|(_, entry)| entry))
    }

    fn shared_numbers(&self, name: &LockName) -> Result<Vec<u32>> {
        let shared = self.shared_of(name)?;
        let entries = shared.iter().flat_map(|shared| &shared.entries);
        Ok(entries.map(|(index, ..)| index.number).collect())
    }

    fn shared_shown(&self, name: &LockName, shown: &Revision) -> Result<Option<Found<Handle>>> {
        let Some(shared) = self.shared_of(name)? else {
            return Ok(None);
        };
        for entry in &shared.entries {
            let facts = shared.directory.facts(&entry.1);
            let facts = facts.context(Operation::Inspect, &self.root.path)?;
            if facts.is_some_and(|facts| facts.id.inode == shown.file)
                && let Some(found) = self.shared_record(&shared, name, entry)?
                && found.revision == *shown
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn below(
        &self,
        name: &LockName,
        visit: &mut dyn FnMut(Found<Handle>) -> ControlFlow<()>,
    ) -> Result<()> {
        let children = layout::children(name);
        if children.is_empty() {
            return Ok(());
        }
        let mut failed = Ok(());
        let mut visit = |found| match found {
            Ok(found) => visit(found),
            // No lock is there.
            Err(Error::TooDeep { .. }) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Err(error);
                ControlFlow::Break(())
            }
        };
        if self.root.flat.is_some() {
            let is_below = |key: &Key| name.is_ancestor_of(&key.name);
            let _ = self.walk_flat(&is_below, &mut visit)?;
            return failed;
        }
        let path = self.files.below(&children);
        let Some(directory) = self.directory(&children)? else {
            return Ok(());
        };
        // Those of the name itself are asked for on their own.
        let parent = Some(name.as_str());
        let _ = self.walk(&directory, &path, parent, Some(name), &mut visit)?;
        failed
    }

    fn tickets(&self, wants: &[Want]) -> Result<Vec<(u64, LockName)>> {
        let mut tickets: Vec<_> = wants
            .iter()
            .flat_map(|want| self.queue().tickets(&want.name))
            .collect();
        if wants.len() > 1 {
            // Wants with the same first segment have the same tickets.
            tickets.sort_by(|(one, name), (other, other_name)| {
                (one, name.as_str()).cmp(&(other, other_name.as_str()))
            });
            tickets.dedup();
        }
        Ok(tickets)
    }

    fn ticket(&self, number: u64) -> Result<Option<Ticket<Handle>>> {
        Ok(self.queue().ticket(number, self.guard.is_some()))
    }

    fn is_stopped(&self, ticket: &Ticket<Handle>) -> bool {
        queue::visible_pid(ticket).is_some_and(crate::sys::process::is_stopped)
    }
}
