//! The guard: every change of state happens under flock(2) on the store directory's own descriptor.
//!
//! There is no guard file: if it were deleted, there could be two. Nothing
//! that can block belongs under the guard: no output, prompt, fork, name lookup, sleep or fsync, and
//! nothing that waits for another process.
//!
//! Whoever may read a directory can lock it, for good. In a store that others may read but not write, the guard is
//! `.onehold/guard`, a directory that they may not open. It is made only by who has locked the store, and is never
//! removed. So whoever has locked the store and finds no such directory is alone.

use std::cell::OnceCell;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::flat::Flat;
use super::layout::{Layout, META_DIR};
use crate::backend::{BackOff, Deadline, IDLE, Patience};
use crate::error::{Context, Error, Result};
use crate::sys::directory::Directory;
use crate::sys::process::boottime;
use crate::sys::signal::{Alarm, SignalBlock};
use crate::sys::wait::pause;
use crate::sys::{FileId, existing, not_found};

/// The guard of a store that others may read, below [`META_DIR`].
const GUARD_DIR: &str = "guard";

/// Number of attempts to make and open a store that another process removes.
const MAX_ATTEMPTS: usize = 10;

/// A store directory, kept open and locked. `drop` unlocks it explicitly: closing the descriptor
/// would not unlock it while a child forked by another thread still has it.
pub(super) struct Guard {
    pub(super) root: Root,
    _signals: SignalBlock,
}

/// A store directory, kept open, and what does not change meanwhile.
#[derive(Clone, Debug)]
pub(crate) struct Root {
    pub(crate) directory: Arc<Directory>,
    pub(super) path: PathBuf,
    pub(crate) id: FileId,
    /// Kernel locks in it are seen by everyone who can open its files.
    pub(crate) shares_kernel_locks: bool,
    /// The directory that is locked instead of the store.
    guard: Option<Arc<Directory>>,
    /// What a sticky store has beside its records.
    pub(super) flat: Option<Arc<Flat>>,
}

/// Whose a directory is that is to be locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// That of a path, in which nothing is made but locks.
    OtherPrograms,
    /// A store.
    Store,
    /// A store in which a lock is to be taken.
    StoreToFill,
}

impl Root {
    /// `None` if there is none.
    pub(crate) fn open(path: &Path, is_store: bool) -> Result<Option<Self>> {
        let mut root = Self::open_to_enter(path, is_store)?;
        if let Some(root) = &mut root {
            root.find_flat()?;
        }
        Ok(root)
    }

    /// As it is before its guard is entered: without what a sticky store has beside its records, which others may
    /// still change.
    fn open_to_enter(path: &Path, is_store: bool) -> Result<Option<Self>> {
        let Some(mut directory) = open_directory(path)? else {
            return Ok(None);
        };
        let id = if is_store {
            directory.share()
        } else {
            directory.id()
        };
        let shares_kernel_locks = directory.shares_kernel_locks();
        Ok(Some(Self {
            id: id.context("inspect store", path)?,
            shares_kernel_locks: shares_kernel_locks.context("inspect the filesystem of", path)?,
            directory: Arc::new(directory),
            path: path.to_owned(),
            guard: None,
            flat: None,
        }))
    }

    fn find_flat(&mut self) -> Result<()> {
        if self.directory.is_sticky_store() {
            self.flat = Some(Arc::new(Flat::of(&self.directory, &self.path)?));
        }
        Ok(())
    }

    pub(super) fn layout(&self) -> Layout {
        if self.flat.is_some() {
            Layout::Flat
        } else {
            Layout::Tree
        }
    }

    fn is_as_opened(&self) -> io::Result<bool> {
        self.directory.is_as_opened(&self.path, self.id)
    }

    /// The directory whose lock is the guard.
    fn locked(&self) -> &Directory {
        self.guard.as_ref().unwrap_or(&self.directory)
    }

    /// A directory below the store; `None` if it does not exist.
    pub(super) fn descend(&self, parts: &[OsString]) -> Result<Option<Arc<Directory>>> {
        let mut path = self.path.clone();
        let mut directory = Arc::clone(&self.directory);
        for part in parts {
            path.push(part);
            directory = match directory.open_below(part) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                opened => Arc::new(opened.context("open directory", &path)?),
            };
        }
        Ok(Some(directory))
    }

    /// Removes the directories behind the first `depth` of these parts, as [`prune`] does.
    pub(super) fn prune(&self, parts: &[OsString], depth: usize) -> bool {
        prune(&self.directory, parts, depth)
    }
}

/// Removes the directories behind the first `depth` of these parts, innermost first, as far as they are empty;
/// `true` if none is left. One that cannot be removed stays, such as another user's in a sticky directory: it
/// does no harm.
pub(super) fn prune(root: &Directory, parts: &[OsString], depth: usize) -> bool {
    let mut paths = (depth..parts.len()).rev();
    paths.all(
        |last| match remove_if_empty(root, parts.get(..=last).unwrap_or_default()) {
            Ok(is_gone) => is_gone,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        },
    )
}

/// Removes the directory that these parts lead to, if it is empty; `true` if it is gone.
fn remove_if_empty(root: &Directory, parts: &[OsString]) -> io::Result<bool> {
    match parts {
        [] => Ok(false),
        [name] => root.remove_below_if_empty(name),
        [first, rest @ ..] => remove_if_empty(&root.open_below(first)?, rest),
    }
}

/// Opens a directory of locks; `None` if there is none.
pub(super) fn open_directory(path: &Path) -> Result<Option<Directory>> {
    existing(Directory::open(path)).context("open store", path)
}

impl Guard {
    /// Enters the guard of an existing directory; `None` if there is none. In a store, what is made belongs to
    /// those whom its mode lets in.
    pub(super) fn enter(path: &Path, patience: Patience<'_>, whose: Whose) -> Result<Option<Self>> {
        let limit = Deadline::of(patience);
        while let Some(root) = Root::open_to_enter(path, whose != Whose::OtherPrograms)? {
            let mut guard = Self::lock(root, &limit, whose)?;
            // The directory may have been removed or moved before it was locked, and another one put in its place; or
            // its mode says by now that another guard is locked.
            match existing(guard.root.is_as_opened()).context("inspect store", path)? {
                Some(true) => {
                    guard.root.find_flat()?;
                    return Ok(Some(guard));
                }
                Some(false) => {}
                None => break,
            }
        }
        Ok(None)
    }

    /// Enters the guard of a directory, which is made first if need be: with mode 0700 if it
    /// `is_private`, else as its parents, with what the umask leaves.
    pub(super) fn enter_or_create(
        path: &Path,
        patience: Patience<'_>,
        is_private: bool,
    ) -> Result<Self> {
        for _ in 0..MAX_ATTEMPTS {
            if let Some(entered) = Self::enter(path, patience, Whose::StoreToFill)? {
                return Ok(entered);
            }
            Directory::make(path, is_private).context("create store", path)?;
        }
        // A symlink to nowhere, or another process keeps removing it.
        Err(not_found()).context("open store", path)
    }

    /// Enters the guard of a directory that is open already, wherever it was moved: who reaches it
    /// by its new path locks the same inode.
    pub(super) fn reenter(root: &Root, patience: Patience<'_>) -> Result<Self> {
        Self::lock(root.clone(), &Deadline::of(patience), Whose::Store)
    }

    fn lock(mut root: Root, limit: &Deadline<'_>, whose: Whose) -> Result<Self> {
        let (directory, path) = (&root.directory, &root.path);
        let signals = if directory.is_exposed() {
            let (signals, guard) = lock_exposed(directory, path, limit, whose)?;
            root.guard = guard;
            signals
        } else {
            lock(directory, path, limit)?
        };
        Ok(Self {
            root,
            _signals: signals,
        })
    }

    /// Enters the guard of a directory that was entered before and kept open; `None`: its path leads elsewhere
    /// by now. A waiter that has been woken has no time to open it anew.
    pub(super) fn enter_again(root: &Root, patience: Patience<'_>) -> Result<Option<Self>> {
        let guard = Self::reenter(root, patience)?;
        let is_same = matches!(root.is_as_opened(), Ok(true));
        Ok(is_same.then_some(guard))
    }

    /// A directory below the store, made if need be.
    pub(super) fn descend_or_create(&self, parts: &[OsString]) -> Result<Arc<Directory>> {
        self.descend_or_create_from(&self.root.directory, parts, 0)
    }

    /// As [`Guard::descend_or_create`], from the directory of the first `depth` parts.
    pub(super) fn descend_or_create_from(
        &self,
        directory: &Arc<Directory>,
        parts: &[OsString],
        depth: usize,
    ) -> Result<Arc<Directory>> {
        let mut path = self.root.path.clone();
        path.extend(parts.iter().take(depth));
        let mut directory = Arc::clone(directory);
        for part in parts.iter().skip(depth) {
            path.push(part);
            // Mostly it is there.
            let opened = match directory.open_below(part) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    directory
                        .make_below(part)
                        .context("create directory", &path)?;
                    directory.open_below(part)
                }
                opened => opened,
            };
            directory = Arc::new(opened.context("open directory", &path)?);
        }
        Ok(directory)
    }

    /// Removes the directories that led to a lock file, as far as they are empty.
    pub(super) fn prune(&self, parts: &[OsString]) {
        self.root.prune(parts, 0);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.root.locked().unlock();
    }
}

/// Locks what is the guard of a store that others may read but not write. What is locked instead of the store itself
/// is returned, too.
#[cold]
fn lock_exposed(
    root: &Directory,
    path: &Path,
    limit: &Deadline<'_>,
    whose: Whose,
) -> Result<(SignalBlock, Option<Arc<Directory>>)> {
    let parts: PathBuf = [META_DIR, GUARD_DIR].iter().collect();
    // The store itself is locked.
    let mut signals = None;
    loop {
        let opened = root
            .open_below(OsStr::new(META_DIR))
            .and_then(|own| own.open_below(OsStr::new(GUARD_DIR)));
        match (opened, signals.take()) {
            (Ok(guard), before) => {
                // From here on a signal ends a wait.
                if let Some(_signals) = before {
                    root.unlock().context("lock store", path)?;
                }
                let signals = lock(&guard, path, limit)?;
                let id = guard.id().context("inspect store", path)?;
                let named = root.facts(parts.as_os_str());
                let named = named.context("inspect store", path)?;
                if named.is_some_and(|named| named.id == id) {
                    return Ok((signals, Some(Arc::new(guard))));
                }
                let _ = guard.unlock();
            }
            // Somebody has opened a directory below it to others, who cannot agree with its owner on who is first.
            (Err(error), Some(_)) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(error).context("lock store", path);
            }
            (Err(error), Some(signals)) => {
                let is_missing = error.kind() == io::ErrorKind::NotFound;
                // Who cannot make it can change nothing here.
                if !is_missing || make_guard(root, whose).is_err() {
                    return Ok((signals, None));
                }
                // It is seen from now on, and somebody else may have locked it.
                root.unlock().context("lock store", path)?;
            }
            (Err(_), None) => signals = Some(lock(root, path, limit)?),
        }
    }
}

fn make_guard(root: &Directory, whose: Whose) -> io::Result<()> {
    let meta = OsStr::new(META_DIR);
    if whose == Whose::StoreToFill {
        root.make_below(meta)?;
    }
    root.open_below(meta)?
        .make_private_below(OsStr::new(GUARD_DIR))
}

/// Locks the directory as soon as it is free, and blocks stop and termination signals.
fn lock(root: &Directory, path: &Path, limit: &Deadline<'_>) -> Result<SignalBlock> {
    {
        let signals = SignalBlock::new().context("block signals for", path)?;
        if root.try_lock().context("lock store", path)? {
            return Ok(signals);
        }
    }
    wait_for(root, path, limit)
}

/// The signals are not blocked while another process has it: a wait can be canceled.
fn wait_for(root: &Directory, path: &Path, limit: &Deadline<'_>) -> Result<SignalBlock> {
    let started = boottime();
    let blocking = Blocking::new(POLL);
    while let Some(left) = limit.next_sleep(IDLE) {
        // flock(2) wakes in order and immediately.
        let locked = blocking.until(left, || root.lock(), || root.try_lock());
        if !matches!(&locked, Err(error) if error.kind() == io::ErrorKind::Interrupted) {
            locked.context("lock store", path)?;
            return SignalBlock::new().context("block signals for", path);
        }
    }
    Err(Error::StoreBusy {
        path: path.to_owned(),
        pid: root.locked_by().map(crate::identity::Pid::get),
        waited: boottime().saturating_sub(started),
    })
}

/// The guard is kept for a fraction of a millisecond.
const POLL: BackOff = BackOff {
    first: Duration::from_micros(50),
    most: Duration::from_millis(1),
};

/// How to block in a call of the kernel, which an alarm ends.
#[derive(Debug)]
pub(crate) struct Blocking {
    /// Made for the first call. `None`, as under a limit on timers: nothing would end the call, and it is polled.
    alarm: OnceCell<Option<Alarm>>,
    poll: BackOff,
}

impl Blocking {
    pub(super) fn new(poll: BackOff) -> Self {
        let alarm = OnceCell::new();
        Self { alarm, poll }
    }

    fn alarm(&self) -> Option<&Alarm> {
        let alarm = self.alarm.get_or_init(|| Alarm::new().ok().flatten());
        alarm.as_ref()
    }

    /// Whether it would poll.
    pub(super) fn polls(&self) -> bool {
        self.alarm().is_none()
    }

    /// Blocks for at most so long: then it is `Interrupted`. `is_done`: what to poll.
    pub(crate) fn until(
        &self,
        at_most: Duration,
        call: impl FnOnce() -> io::Result<()>,
        is_done: impl Fn() -> io::Result<bool>,
    ) -> io::Result<()> {
        if let Some(alarm) = self.alarm() {
            alarm.set(at_most)?;
            let woken = call();
            alarm.clear()?;
            return woken;
        }
        let deadline = boottime().saturating_add(at_most);
        let mut interval = self.poll.first;
        while !is_done()? {
            let left = deadline.saturating_sub(boottime());
            if left.is_zero() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            pause(left.min(interval))?;
            interval = (interval * 2).min(self.poll.most);
        }
        Ok(())
    }
}
