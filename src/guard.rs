//! The guard: every change of state happens under flock on the store directory's own descriptor.
//!
//! There is no guard file, because one can be deleted and split in two. Nothing that can block
//! belongs inside: no output, prompt, fork, name lookup or sleep, and no fsync of anything but a
//! record.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Context, Error, Result};
use crate::sys::directory::{Directory, id_of_path, make_private, not_found, who_locks};
use crate::sys::signal::{Alarm, HeldBack};

/// How often a store is made that is gone when it is opened.
const MOST_ATTEMPTS: usize = 10;

/// How long others may keep the guard before that is an error.
const DEADLINE: Duration = Duration::from_secs(10);

/// A store directory, kept open and locked. Leaving is explicit in `drop`: closing the descriptor
/// would not unlock it while a child forked by another thread still has it.
pub(crate) struct Guard {
    root: Arc<Directory>,
    path: PathBuf,
    _held_back: HeldBack,
}

impl Guard {
    /// Enters the guard of an existing directory; `None` if there is none.
    pub(crate) fn enter(path: &Path) -> Result<Option<Self>> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let root = match Directory::open(path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
                opened => opened.context("open store", path)?,
            };
            let held_back = HeldBack::new().context("hold back signals for", path)?;
            lock(&root, path, deadline)?;
            let guard = Self {
                root: Arc::new(root),
                path: path.to_owned(),
                _held_back: held_back,
            };
            // The directory may have been removed or moved, and another put in its place, before
            // we had the lock.
            let ours = guard.root.id().context("inspect store", path)?;
            match id_of_path(path) {
                Ok(named) if named == ours => return Ok(Some(guard)),
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error).context("inspect store", path),
            }
        }
    }

    /// Enters the guard of a directory, which is made first if need be: mode 0700, its parents as
    /// usual.
    pub(crate) fn enter_or_create(path: &Path) -> Result<Self> {
        for _ in 0..MOST_ATTEMPTS {
            if let Some(guard) = Self::enter(path)? {
                return Ok(guard);
            }
            create_store(path)?;
        }
        // A symlink that leads nowhere, or somebody removes it again and again.
        Err(not_found()).context("open store", path)
    }

    /// Enters the guard of a directory that is open already, wherever it may have been moved:
    /// whoever reaches it by its new path locks the same inode.
    pub(crate) fn reenter(root: &Arc<Directory>, path: &Path) -> Result<Self> {
        let held_back = HeldBack::new().context("hold back signals for", path)?;
        lock(root, path, Instant::now() + DEADLINE)?;
        Ok(Self {
            root: Arc::clone(root),
            path: path.to_owned(),
            _held_back: held_back,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn root(&self) -> &Arc<Directory> {
        &self.root
    }

    /// The directory that a lock file is in; `None` if it does not exist.
    pub(crate) fn descend(&self, sections: &[OsString]) -> Result<Option<Directory>> {
        descend(&self.root, &self.path, sections)
    }

    /// The directory that a lock file is in, made if need be.
    pub(crate) fn descend_or_create(&self, sections: &[OsString]) -> Result<Directory> {
        let mut path = self.path.clone();
        let mut directory = self.root.duplicate().context("open store", &path)?;
        for section in sections {
            path.push(section);
            directory
                .make_below(section, 0o777)
                .context("create directory", &path)?;
            directory = directory
                .open_below(section)
                .context("open directory", &path)?;
        }
        Ok(directory)
    }

    /// Removes the directories that led to a lock file, innermost first, as far as they are empty.
    pub(crate) fn prune(&self, sections: &[OsString]) -> Result<()> {
        for depth in (1..=sections.len()).rev() {
            let (parents, section) = sections.split_at(depth - 1);
            let (Some(parent), Some(section)) = (self.descend(parents)?, section.first()) else {
                continue;
            };
            let path = self.path.join(section);
            if !parent
                .remove_below_if_empty(section)
                .context("remove directory", &path)?
            {
                break;
            }
        }
        Ok(())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.root.unlock();
    }
}

/// Follows the directories of a name; `None` if one does not exist.
pub(crate) fn descend(
    root: &Directory,
    path: &Path,
    sections: &[OsString],
) -> Result<Option<Directory>> {
    let mut path = path.to_owned();
    let mut directory = root.duplicate().context("open store", &path)?;
    for section in sections {
        path.push(section);
        directory = match directory.open_below(section) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            opened => opened.context("open directory", &path)?,
        };
    }
    Ok(Some(directory))
}

fn create_store(path: &Path) -> Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).context("create directory", parent)?;
    }
    match make_private(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        created => {
            created.context("create store", path)?;
            // Once in the life of a store: a lease must not be lost with the directory it is in.
            match path.parent() {
                Some(parent) => Directory::open(parent)
                    .and_then(|parent| parent.sync())
                    .context("write to", parent),
                None => Ok(()),
            }
        }
    }
}

fn lock(root: &Directory, path: &Path, deadline: Instant) -> Result<()> {
    if root.try_lock().context("lock store", path)? {
        return Ok(());
    }
    let alarm = Alarm::new().context("set an alarm for", path)?;
    let locked = match &alarm {
        Some(alarm) => lock_until(root, alarm, deadline),
        None => poll_until(root, deadline),
    };
    if locked.context("lock store", path)? {
        return Ok(());
    }
    Err(Error::GuardBusy {
        path: path.to_owned(),
        pid: root.id().ok().and_then(who_locks),
    })
}

/// Sleeps in flock(2), which wakes in order and at once; `false`: not before the deadline.
fn lock_until(root: &Directory, alarm: &Alarm, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        alarm.set(left)?;
        match root.lock() {
            Ok(()) => return alarm.clear().map(|()| true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The guard is kept for a fraction of a millisecond; without a signal to keep the deadline by,
/// looking again is all there is.
fn poll_until(root: &Directory, deadline: Instant) -> io::Result<bool> {
    let mut pause = Duration::from_micros(50);
    while Instant::now() < deadline {
        std::thread::sleep(pause);
        if root.try_lock()? {
            return Ok(true);
        }
        pause = (pause * 2).min(Duration::from_millis(1));
    }
    Ok(false)
}
