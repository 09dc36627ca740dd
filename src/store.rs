//! A directory of locks: what is in it, and what may be removed from it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Context, Error, Result};
use crate::format::Format;
use crate::guard::Guard;
use crate::lock::{CleanedUp, Lock};
use crate::lockfile::{Place, Standing, is_temporary, own_temporary_name};
use crate::name::{Entry, LockName, entry};
use crate::queue;
use crate::record::Content;
use crate::status::{About, Observatory, Presences, Status, Surroundings};
use crate::sys::directory::{Directory, Kind};
use crate::verdict::{DEFAULT_MAX_AGE, Proof, Reason, State};

/// A directory of locks.
///
/// ```no_run
/// use onehold::Store;
///
/// # fn main() -> onehold::Result<()> {
/// for status in Store::at("/var/lib/app/locks").list(None)?.locks {
///     println!("{}: {:?}", status.name, status.verdict.state);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Store {
    directory: PathBuf,
    journal: PathBuf,
    format: Format,
    surroundings: Arc<Surroundings>,
}

/// The locks of a store.
#[derive(Debug, Default)]
pub struct Listing {
    /// Sorted by name.
    pub locks: Vec<Status>,
    /// What could not be read.
    pub errors: Vec<Error>,
}

/// What a cleanup did.
#[derive(Debug, Default)]
pub struct Cleanup {
    /// Removed, or with `dry_run` what would have been.
    pub removed: Vec<Status>,
    /// Zombies that stay, because this filesystem cannot settle who takes them.
    pub left: Vec<Status>,
    /// What did not work.
    pub errors: Vec<Error>,
    /// What did not work besides: removed, and the journal does not tell.
    pub warnings: Vec<Error>,
}

impl Store {
    /// A store; nothing is touched. The directory is made, with mode 0700, when the first lock is
    /// taken.
    #[must_use]
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        // Absolute, so that it stays the same place when the caller changes directory.
        let directory = directory.into();
        let directory = std::path::absolute(&directory).unwrap_or(directory);
        Self {
            journal: directory.clone(),
            directory,
            format: Format::Native,
            surroundings: Arc::default(),
        }
    }

    /// The format that new lock files are written in, for the programs that look at them; those of
    /// every other format are read as well, but bare numbers, which only [`Format::Pid`] expects.
    #[must_use]
    pub fn format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// The store whose journal tells of takeovers here, instead of this one's own: for directories
    /// that are another program's.
    #[must_use]
    pub fn journal_in(mut self, store: &Self) -> Self {
        self.journal.clone_from(&store.journal);
        self
    }

    /// Its directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.directory
    }

    /// A lock of this store, or the one at a path, of whose takeovers this store's journal tells.
    ///
    /// # Errors
    /// The current directory, which a relative path starts from, cannot be found.
    pub fn lock(&self, name: LockName) -> Result<Lock> {
        Lock::new(
            name,
            &self.directory,
            &self.journal,
            self.format,
            Arc::clone(&self.surroundings),
        )
    }

    /// All locks of the store, judged like [`Lock::check`] does. A lock that is taken or released
    /// meanwhile may be missing or not. `max_age`: for holds that do not name their own; `None`:
    /// 24 h.
    ///
    /// # Errors
    /// The store cannot be read. What cannot be read in it is in the result.
    pub fn list(&self, max_age: Option<Duration>) -> Result<Listing> {
        let mut listing = Listing::default();
        let root = match Directory::open(&self.directory) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(listing),
            opened => opened.context("open store", &self.directory)?,
        };
        let observatory = self.surroundings.observe(&root, &self.directory)?;
        let mut walk = Walk {
            store: &self.directory,
            format: self.format,
            observatory: &observatory,
            max_age: max_age.unwrap_or(DEFAULT_MAX_AGE),
            presences: Presences::default(),
            listing: &mut listing,
        };
        walk.directory(&root, &self.directory, None)?;
        sort(&mut listing);
        self.add_waiters(&root, &mut listing)?;
        Ok(listing)
    }

    /// Adds who waits; a lock that is free shows up only if somebody waits for it.
    fn add_waiters(&self, root: &Directory, listing: &mut Listing) -> Result<()> {
        let mut promised = Vec::new();
        for (name, waiters) in queue::all_waiters(root, &self.directory)? {
            let place = listing
                .locks
                .binary_search_by(|status| status.name.as_str().cmp(&name));
            let known = place.ok().and_then(|place| listing.locks.get_mut(place));
            match known {
                Some(status) if !status.is_takeable() => status.waiters = waiters,
                Some(status) => *status = self.lock(LockName::new(&name)?)?.check(None)?,
                None => promised.push(self.lock(LockName::new(&name)?)?.check(None)?),
            }
        }
        if !promised.is_empty() {
            listing.locks.append(&mut promised);
            sort(listing);
        }
        Ok(())
    }

    /// Removes every zombie and what finished commands left, and nothing else. Each is judged
    /// again under the guard before it goes.
    ///
    /// # Errors
    /// The store cannot be read. What could not be removed is in the result.
    pub fn cleanup(&self, dry_run: bool, max_age: Option<Duration>) -> Result<Cleanup> {
        let listing = self.list(max_age)?;
        let mut cleanup = Cleanup {
            errors: listing.errors,
            ..Cleanup::default()
        };
        for status in listing.locks {
            let name = status.name.clone();
            cleanup.add(status, dry_run, || {
                LockName::new(name)
                    .and_then(|name| self.lock(name))
                    .and_then(|lock| lock.remove_zombie(max_age))
            });
        }
        if !dry_run {
            self.sweep(&mut cleanup.errors)?;
        }
        Ok(cleanup)
    }

    /// Removes what takers who died left without a place. Under the guard nobody is about to give
    /// it one.
    fn sweep(&self, errors: &mut Vec<Error>) -> Result<()> {
        let Some(guard) = Guard::enter(&self.directory)? else {
            return Ok(());
        };
        let observatory = self.surroundings.observe(guard.root(), &self.directory)?;
        if !observatory.settles() {
            return Ok(());
        }
        if let Err(error) = queue::sweep(&guard, errors) {
            errors.push(error);
        }
        sweep_directory(guard.root(), &self.directory, None, &observatory, errors)
    }
}

fn sort(listing: &mut Listing) {
    let locks = &mut listing.locks;
    locks.sort_by(|one, other| one.name.cmp(&other.name));
}

impl Cleanup {
    /// Removes what is to be removed of one lock.
    pub(crate) fn add(
        &mut self,
        status: Status,
        dry_run: bool,
        remove: impl FnOnce() -> Result<Option<CleanedUp>>,
    ) {
        if !status.is_takeable() {
            if status.verdict.state == State::Zombie {
                self.left.push(status);
            }
            return;
        }
        if dry_run {
            self.removed.push(status);
            return;
        }
        match remove() {
            Ok(Some(cleaned)) => {
                self.removed.push(*cleaned.was);
                self.warnings.extend(cleaned.warnings);
            }
            Ok(None) => {}
            Err(error) => self.errors.push(error),
        }
    }
}

struct Walk<'a> {
    store: &'a Path,
    format: Format,
    observatory: &'a Observatory,
    max_age: Duration,
    presences: Presences,
    listing: &'a mut Listing,
}

impl Walk<'_> {
    fn directory(
        &mut self,
        directory: &Directory,
        path: &Path,
        section: Option<&str>,
    ) -> Result<()> {
        let mut entries = directory.entries().context("read directory", path)?;
        // Small as they are they are sorted faster than what is said of them.
        entries.sort_unstable();
        for (file, kind) in entries {
            let result = match entry(section, &file) {
                Some(Entry::Lock(name)) => {
                    self.lock(directory, &path.join(&file), (&file, kind), &name)
                }
                Some(Entry::Section(name)) => self.section(directory, path, &file, &name),
                None => Ok(()),
            };
            if let Err(error) = result {
                self.listing.errors.push(error);
            }
        }
        Ok(())
    }

    fn lock(
        &mut self,
        directory: &Directory,
        path: &Path,
        (file, kind): (&OsStr, Kind),
        name: &LockName,
    ) -> Result<()> {
        let place = Place {
            directory,
            file,
            path,
            format: self.format,
        };
        let standing = place.read_listed(kind)?;
        if matches!(standing, Standing::Nothing) {
            return Ok(());
        }
        let about = About {
            name: name.as_str(),
            path,
            store: self.store,
            max_age: self.max_age,
        };
        let status = self
            .observatory
            .final_status(&about, standing, &mut self.presences);
        self.listing.locks.push(status);
        Ok(())
    }

    fn section(
        &mut self,
        parent: &Directory,
        path: &Path,
        file: &OsString,
        name: &str,
    ) -> Result<()> {
        let path = path.join(file);
        match open_section(parent, file, &path)? {
            Some(directory) => self.directory(&directory, &path, Some(name)),
            None => Ok(()),
        }
    }
}

/// `None` for what only has the name of a section.
fn open_section(parent: &Directory, file: &OsStr, path: &Path) -> Result<Option<Directory>> {
    match parent.open_below(file) {
        Ok(directory) => Ok(Some(directory)),
        Err(error) if is_no_directory(&error) => Ok(None),
        Err(error) => Err(error).context("open directory", path),
    }
}

fn is_no_directory(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
    )
}

fn sweep_directory(
    directory: &Directory,
    path: &Path,
    section: Option<&str>,
    observatory: &Observatory,
    errors: &mut Vec<Error>,
) -> Result<()> {
    let names = directory.names().context("read directory", path)?;
    let is_temporary = |file: &OsString| file.to_str().is_some_and(is_temporary);
    let awaited = if names.iter().any(is_temporary) {
        awaited(directory, path, &names, observatory)
    } else {
        Vec::new()
    };
    for file in names {
        let below = path.join(&file);
        let swept = if is_temporary(&file) {
            if awaited.iter().any(|awaited| file == **awaited) {
                continue;
            }
            sweep_temporary(directory, &file, &below, section, observatory)
        } else if let Some(Entry::Section(name)) = entry(section, &file) {
            open_section(directory, &file, &below).and_then(|opened| match opened {
                Some(opened) => sweep_directory(&opened, &below, Some(&name), observatory, errors),
                None => Ok(()),
            })
        } else {
            Ok(())
        };
        if let Err(error) = swept {
            errors.push(error);
        }
    }
    Ok(())
}

/// The temporary names that may have to go back: those of takers who died before they were done,
/// and whose records still stand where they took over.
fn awaited(
    directory: &Directory,
    path: &Path,
    names: &[OsString],
    observatory: &Observatory,
) -> Vec<String> {
    let swap_of = |file: &OsString| {
        let below = path.join(file);
        let place = Place {
            directory,
            file,
            path: &below,
            format: Format::Pid,
        };
        let Ok(standing @ Standing::File(_)) = place.read() else {
            return None;
        };
        let about = About {
            name: "",
            path: &below,
            store: path,
            max_age: DEFAULT_MAX_AGE,
        };
        let status = observatory.status(&about, &standing, &mut Presences::default());
        let is_done = matches!(status.verdict.state, State::Held | State::Overdue);
        let record = status.record.filter(|_| !is_done)?;
        match record.swap {
            Some(swap) => Some(swap.name),
            // A pid file cannot say what its taker took out.
            None if record.format == Format::Pid => own_temporary_name(file).into_string().ok(),
            None => None,
        }
    };
    // One that never had its place took nothing out.
    let in_place = |file: &&OsString| !file.to_str().is_some_and(is_temporary);
    names.iter().filter(in_place).filter_map(swap_of).collect()
}

/// Under the guard nobody is about to give it a place, and nobody died before he could: a record of
/// ours is none any more, whether its holder lives or not. What a takeover put aside for another
/// program, which lives, is that program's.
fn sweep_temporary(
    directory: &Directory,
    file: &OsStr,
    path: &Path,
    section: Option<&str>,
    observatory: &Observatory,
) -> Result<()> {
    let place = Place {
        directory,
        file,
        path,
        // Whatever it is, a bare number included.
        format: Format::Pid,
    };
    let standing = place.read()?;
    let Standing::File(found) = &standing else {
        return Ok(());
    };
    let about = About {
        name: "",
        path,
        store: path,
        max_age: DEFAULT_MAX_AGE,
    };
    let status = observatory.status(&about, &standing, &mut Presences::default());
    if let Some(name) = found.set_aside_from(section, file) {
        let (from, path) = (name.file(), path.with_file_name(name.file()));
        let place = Place {
            directory,
            file: &from,
            path: &path,
            format: Format::Native,
        };
        if matches!(place.read()?, Standing::Nothing) {
            // Whoever set it aside did not look at it again: it is judged where it belongs.
            return place.bring_back().map(drop);
        }
    }
    let is_left = match &found.content {
        Content::Record(record) if record.is_ours() => true,
        // What a dead taker took out, and nobody is there to whom it would have to go back.
        Content::Record(_) => status.verdict.reason == Reason::Dead,
        Content::Corrupt => status.verdict.proof != Proof::KernelLock,
        Content::UnknownVersion(_) | Content::NotALock(_) => false,
    };
    if is_left {
        place.remove_if_unchanged(found)?;
    }
    Ok(())
}
