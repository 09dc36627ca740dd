//! Files that flock(1) locks, or other programs by fcntl(2): the kernel lock is the lock. Such a file has no record. It is never written,
//! replaced or removed, so there is no guard either: the kernel decides who takes it, and keeps the queue.

mod attempt;
mod hold;

use std::cell::{OnceCell, RefCell};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use attempt::{Attempt, KernelLock, ask};
use chrono::SubsecRound as _;
use hold::FlockHold;

use crate::backend::{
    Ask, Asked, BackOff, Backend, Change, Contender, Entry, IsUnchanged, LockSnapshot, Patience,
    Plan, Ttl, Updated, WhyNot,
};
use crate::decision::{Facts, Key, Moment, Observer, Snapshot, Visit};
use crate::error::{Context, Error, Result};
use crate::files::layout::{self, Layout};
use crate::files::{LockPath, Root, Sleeper, found, not_a_lock, number_by_clock, wall_clock};
use crate::identity::ProcessId;
use crate::name::LockName;
use crate::observer::{self, HostFacts};
use crate::open_file::{Found, Handle, Judged, Until, file_of};
use crate::record::{Content, Format, Mode, Record};
use crate::sys::directory::move_to_high_fd;
use crate::sys::{HAS_FLOCK, KernelLockCall, not_found};

/// The files of a directory.
#[derive(Debug)]
pub(crate) struct Flock {
    directory: PathBuf,
    host: Arc<HostFacts>,
    /// By which call its files are locked.
    format: Format,
}

impl Flock {
    pub(crate) fn new(directory: PathBuf, host: Arc<HostFacts>, format: Format) -> Self {
        Self {
            directory,
            host,
            format,
        }
    }

    fn kernel_lock(&self) -> KernelLockCall {
        match self.format {
            Format::Fcntl => KernelLockCall::Fcntl,
            _ => KernelLockCall::Flock,
        }
    }

    fn snapshot(&self, attempt: Option<Attempt>) -> Result<Option<FlockSnapshot<'_>>> {
        let root = Root::open(&self.directory, false)?;
        Ok(root.map(|root| FlockSnapshot {
            store: self,
            root,
            attempt,
            now: OnceCell::new(),
        }))
    }
}

impl Backend for Flock {
    fn host(&self) -> &Arc<HostFacts> {
        &self.host
    }

    fn path(&self) -> PathBuf {
        self.directory.clone()
    }

    fn path_of_record(&self, key: &Key) -> PathBuf {
        Layout::Tree.path_below(&self.directory, key)
    }

    fn format(&self) -> Format {
        self.format
    }

    fn why_not(&self, _name: &LockName, asked: Asked) -> WhyNot {
        Some(match asked {
            Asked::Slots => "a kernel lock does not count holders: use a NAME",
            Asked::Lease | Asked::Follow => "a kernel lock needs a process that stays: use `run`",
            Asked::Owner => "the file is never written, so --owner is not supported",
            Asked::Message => "the file is never written, so --message is not supported",
            Asked::Keep => "the file is never written, so --hold-at-least is not supported",
            Asked::Change => "a kernel lock ends with its process",
            _ => return None,
        })
    }

    fn ttl(&self, asked: Option<Duration>, _is_detached: bool) -> Ttl {
        match asked {
            Some(_) => Err("the file is never written, so --ttl is not supported"),
            None => Ok(None),
        }
    }

    fn locate(self: Arc<Self>, name: LockName) -> Result<(Arc<dyn Backend>, LockName)> {
        let Some(directory) = layout::directory_of(&name)? else {
            return Err(self.unsupported("a path is needed, such as ./x.lock"));
        };
        if !HAS_FLOCK {
            return Err(self.unsupported("this system has no such lock"));
        }
        let located = Self::new(directory, Arc::clone(&self.host), self.format);
        Ok((Arc::new(located), name))
    }

    fn ask(&self, ask: &mut Ask<'_>) -> Result<()> {
        match self.snapshot(None)? {
            Some(snapshot) => ask(&snapshot),
            None => Ok(()),
        }
    }

    /// Changes nothing: there is no record, and no queue but the kernel's.
    fn apply(&self, _entry: Entry<'_>, plan: &mut Plan<'_, '_>) -> Result<Option<Updated>> {
        let Some(snapshot) = self.snapshot(None)? else {
            return Ok(None);
        };
        let _ = plan(&snapshot)?;
        Ok(Some(Updated::default()))
    }

    fn contender(&self, back_off: BackOff, mode: Mode) -> Box<dyn Contender + '_> {
        Box::new(FlockContender {
            store: self,
            is_shared: mode.is_shared(),
            takes: true,
            sleeper: Sleeper::new(back_off),
            granted: None,
        })
    }

    fn bystander(&self, back_off: BackOff) -> Box<dyn Contender + '_> {
        Box::new(FlockContender {
            store: self,
            is_shared: false,
            takes: false,
            sleeper: Sleeper::new(back_off),
            granted: None,
        })
    }

    fn list(&self, _each: &mut dyn FnMut(Moment, Found)) -> Result<Vec<Error>> {
        Err(self.unsupported("its files cannot be listed: use `onehold check FILE`"))
    }
}

/// The files at one moment.
struct FlockSnapshot<'a> {
    store: &'a Flock,
    root: Root,
    /// Tries to take the lock. `None`: only looks.
    attempt: Option<Attempt>,
    now: OnceCell<Moment>,
}

impl FlockSnapshot<'_> {
    /// `None`: it is free. One of readers has an index.
    fn look(&self, name: &LockName) -> Result<Option<Found>> {
        let place = LockPath {
            directory: Arc::clone(&self.root.directory),
            file: layout::file_name(name),
            path: self.store.path_of(name),
            format: self.store.format,
        };
        let shares_kernel_locks = self.root.shares_kernel_locks;
        Ok(Some(
            match ask(&place, self.store.kernel_lock(), self.attempt.as_ref())? {
                KernelLock::Free => return Ok(None),
                KernelLock::NotALock(what) => {
                    not_a_lock(Key::exclusive(name), what, self.now(), shares_kernel_locks)
                }
                KernelLock::Locked {
                    open,
                    kernel_lock,
                    lockers,
                    is_shared,
                } => {
                    let key = Key::of(name, is_shared.then(|| 0.into()));
                    let facts = Facts {
                        kernel_lock,
                        lockers,
                        ..Facts::of_file(wall_clock(open.facts.modified), shares_kernel_locks)
                    };
                    found(key, Content::KernelLock, facts, open)
                }
            },
        ))
    }

    /// The new hold, if the lock was taken.
    fn into_hold(self, key: &Key, draft: &Record) -> Result<Option<FlockHold>> {
        let taken = self.attempt.and_then(|attempt| attempt.taken.into_inner());
        let Some(file) = taken else {
            return Ok(None);
        };
        // Readers share one file.
        let path = self.store.path_of(&key.name);
        let mut record = draft.clone();
        record.acquired_at = chrono::Utc::now().trunc_subsecs(6);
        record.hold = number_by_clock(record.acquired_at, 0);
        record.origin = Some(self.store.host.origin(self.root.id));
        let file = move_to_high_fd(file).context("open", &path)?;
        Ok(Some(FlockHold {
            file,
            path,
            by: self.store.kernel_lock(),
            record: Box::new(record),
        }))
    }
}

impl LockSnapshot for FlockSnapshot<'_> {}

impl Snapshot<Handle> for FlockSnapshot<'_> {
    fn now(&self) -> Moment {
        *self.now.get_or_init(observer::now)
    }

    fn observer(&self) -> Observer {
        self.store.host.observer().clone()
    }

    fn takeover_is_safe(&self) -> bool {
        self.root.shares_kernel_locks
    }

    fn descends_from(&self, process: ProcessId) -> bool {
        observer::descends_from(process)
    }

    fn exclusive(&self, name: &LockName) -> Result<Option<Found>> {
        let found = self.look(name)?;
        Ok(found.filter(|found| found.key.index.is_none()))
    }

    fn shared(&self, name: &LockName) -> Result<Vec<Found>> {
        // Who tries to take the lock has been told by the kernel whether it shares it.
        if self.attempt.is_some() {
            return Ok(Vec::new());
        }
        let readers = self.look(name)?.filter(|found| found.key.index.is_some());
        Ok(readers.into_iter().collect())
    }

    fn below(&self, _name: &LockName, _visit: &mut Visit<'_, Handle>) -> Result<()> {
        Ok(())
    }
}

/// A caller that wants a lock. The kernel keeps its place.
#[derive(Debug)]
struct FlockContender<'a> {
    store: &'a Flock,
    /// As `flock -s`.
    is_shared: bool,
    /// Whether it sleeps in flock(2), and has the lock then.
    takes: bool,
    sleeper: Sleeper,
    /// The file whose lock was taken in the last sleep: to give it back and to take it again would let others
    /// in between.
    granted: Option<File>,
}

impl FlockContender<'_> {
    /// Blocks until the lock that was found is taken.
    fn lock(&self, judged: &Judged, at_most: Duration) -> io::Result<Option<File>> {
        let open = file_of(&judged.found.handle)?;
        let is_shared = self.is_shared;
        open.with_file(|file| {
            let blocking = &self.sleeper.blocking;
            let by = self.store.kernel_lock();
            let lock = || by.lock(file, is_shared);
            blocking.until(at_most, lock, || by.try_lock(file, is_shared))?;
            file.try_clone()
        })
    }
}

impl Contender for FlockContender<'_> {
    fn apply(&mut self, _entry: Entry<'_>, plan: &mut Plan<'_, '_>) -> Result<Option<Updated>> {
        let attempt = Attempt {
            taken: RefCell::new(self.granted.take()),
            is_shared: self.is_shared,
        };
        let Some(snapshot) = self.store.snapshot(Some(attempt))? else {
            return Err(not_found()).context("open directory", &self.store.directory);
        };
        let mut updated = Updated::default();
        if let Change::Take { put, draft, .. } = plan(&snapshot)?
            && let Some((key, _)) = put.first()
        {
            let hold = snapshot.into_hold(key, draft)?;
            updated.hold = hold.map(|hold| Box::new(hold) as _);
        }
        Ok(Some(updated))
    }

    fn sleep(&mut self, until: &Until, limit: Patience<'_>, _is_unchanged: &mut IsUnchanged<'_>) {
        let at_most = limit.slice();
        if !self.takes {
            self.sleeper.sleep_on_locker(until, at_most);
            return;
        }
        let slept = match until {
            Until::Released(judged) => self.lock(judged, at_most),
            _ => Err(io::ErrorKind::Unsupported.into()),
        };
        // Otherwise the caller decides again.
        if let Some(granted) = self.sleeper.woken_by(slept, at_most) {
            self.granted = granted;
        }
    }
}
