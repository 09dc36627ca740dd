//! Who waits for a lock, in order of arrival.
//!
//! Each waiter has a ticket: a numbered file that it keeps locked, next to those of the others, in
//! `.onehold/waiting/` of the store. It sleeps in flock(2) on the ticket before its own (a CLH
//! queue), so that it is woken when that waiter leaves, whatever made it leave, and by nothing
//! else. The first one waits for the hold itself. While one is first, a free lock is promised to
//! it; if it does not take it for 5 s, its turn goes to the next.
//!
//! A ticket whose lock is free is a dead waiter's; whoever comes by under the guard removes it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};

use crate::error::{Context, Error, Result};
use crate::events::OWN_DIRECTORY;
use crate::format::Format;
use crate::guard::Guard;
use crate::identity::Pid;
use crate::lockfile::{Making, OwnedPlace, Place, Standing, is_temporary};
use crate::name::{Entry, LockName, entry};
use crate::record::Record;
use crate::sys::directory::{Directory, FileExt as _, Found, record_is_locked, unlock_record};
use crate::sys::process;

const WAITING: &str = "waiting";

/// Since when a free lock has been promised to whom, in the directory of the tickets.
const PROMISES: &str = "promises";

/// How many bytes of promises are read; who has more has thousands of waiters that are stopped.
const MOST_PROMISES: usize = 64 * 1024;

/// How often the directory of a queue is made anew when it is gone at once.
const MOST_TRIES: usize = 100;

/// How long a promise holds.
const PATIENCE_MS: u64 = 5_000;

/// Somebody who waits for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// Its place in the queue; the first is 1.
    pub place: usize,
    /// Its process, in its own pid namespace.
    pub pid: Pid,
    /// Its host's name.
    pub hostname: Option<String>,
    /// What it wants to run, or is.
    pub command: Vec<String>,
    /// Since when it waits.
    pub since: DateTime<Utc>,
}

/// The tickets of one lock.
pub(crate) struct Queue {
    directory: Directory,
    path: PathBuf,
}

/// One living waiter's ticket.
pub(crate) struct Standby {
    record: Box<Record>,
}

/// One's own place in a queue, given up when it is dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    number: u64,
    place: OwnedPlace,
    file: File,
    /// The directories that lead to the tickets, from the store on.
    trail: Vec<OsString>,
    root: Directory,
    pid: Pid,
}

fn has_run_out(since: u64, now: u64) -> bool {
    // A clock that went back is that of another boot.
    now.checked_sub(since)
        .is_none_or(|passed| passed >= PATIENCE_MS)
}

/// The directories that lead to the tickets of a lock, below the store.
fn trail(name: &LockName) -> Vec<OsString> {
    let mut trail = vec![OsString::from(OWN_DIRECTORY), OsString::from(WAITING)];
    trail.extend(name.sections());
    trail.push(name.file());
    trail
}

impl Queue {
    /// The queue of a lock; `None` if nobody waits. A path lock has none: nothing is left beside it.
    pub(crate) fn open(root: &Directory, store: &Path, name: &LockName) -> Result<Option<Self>> {
        if name.is_path() {
            return Ok(None);
        }
        let below: PathBuf = trail(name).iter().collect();
        let path = store.join(&below);
        match root.open_below(below.as_os_str()) {
            Ok(directory) => Ok(Some(Self { directory, path })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).context("open the queue", &path),
        }
    }

    /// The waiter of a ticket, if it lives. `forget`: a dead one's ticket is removed, which is for
    /// those who have the guard.
    fn standby(&self, file: &OsStr, forget: bool) -> Result<Option<Standby>> {
        if self.living(file, forget)?.is_none() {
            return Ok(None);
        }
        let place = Place {
            directory: &self.directory,
            file,
            path: &self.path.join(file),
            format: Format::Native,
        };
        let Standing::File(found) = place.read()? else {
            return Ok(None);
        };
        Ok(found.record().cloned().map(|record| Standby {
            record: Box::new(record),
        }))
    }

    /// A ticket whose owner lives, to sleep on.
    fn living(&self, file: &OsStr, forget: bool) -> Result<Option<File>> {
        let path = || self.path.join(file);
        let found = self.directory.find_regular(file).context("open", &path())?;
        let Found::File(ticket, _) = found else {
            return Ok(None);
        };
        if record_is_locked(&ticket).context("inspect", &path())? {
            return Ok(Some(ticket));
        }
        if forget {
            // Another user's, perhaps: then it stays, and does no harm.
            let _ = self.directory.unlink(file);
        }
        Ok(None)
    }

    /// Those who wait, in order of arrival.
    fn standbys(&self, forget: bool) -> Result<Vec<Standby>> {
        let mut standbys = Vec::new();
        for file in self.numbers()?.values() {
            standbys.extend(self.standby(file, forget)?);
        }
        Ok(standbys)
    }

    /// To whom a lock that is free now is promised, if that is somebody before `own`. Under the
    /// guard the promise is remembered, and runs out: from then on its ticket is passed over, until
    /// its owner comes by.
    pub(crate) fn promised(&self, own: Option<u64>, guarded: bool) -> Result<Option<Waiter>> {
        let now = process::boottime_milliseconds();
        let mut promises = self.promises();
        let mut place = 0;
        for (number, file) in self.numbers()? {
            if Some(number) == own {
                break;
            }
            let Some(standby) = self.standby(&file, guarded)? else {
                continue;
            };
            let since = *promises.entry(number).or_insert(now);
            if !has_run_out(since, now) {
                if guarded {
                    self.remember(&promises);
                }
                return Ok(Some(standby.waiter(place)));
            }
            place += 1;
        }
        Ok(None)
    }

    /// The owner of a ticket has come by: whatever he has missed, he is not passed over any more.
    pub(crate) fn comes_by(&self, own: u64) {
        let mut promises = self.promises();
        if promises.remove(&own).is_some() {
            self.remember(&promises);
        }
    }

    /// The lock has been taken: promises are kept, or run out for good.
    pub(crate) fn keep_promises(&self) -> Result<()> {
        let before = self.promises();
        if before.is_empty() {
            return Ok(());
        }
        let now = process::boottime_milliseconds();
        let living = self.numbers()?;
        let mut after = before.clone();
        after.retain(|number, since| living.contains_key(number) && has_run_out(*since, now));
        if after != before {
            self.remember(&after);
        }
        Ok(())
    }

    /// Everybody who waits.
    pub(crate) fn waiters(&self) -> Result<Vec<Waiter>> {
        Ok(self
            .standbys(false)?
            .iter()
            .enumerate()
            .map(|(index, standby)| standby.waiter(index))
            .collect())
    }

    fn numbers(&self) -> Result<BTreeMap<u64, OsString>> {
        let names = self
            .directory
            .names()
            .context("read directory", &self.path)?;
        Ok(names
            .into_iter()
            .filter_map(|name| Some((name.to_str()?.parse().ok()?, name)))
            .collect())
    }

    fn promises(&self) -> BTreeMap<u64, u64> {
        // To parse nothing would be an error, and to say where it is asks the processor what it can
        // do, which takes 50 µs in a virtual machine.
        let Ok(Found::File(file, _)) = self.directory.find(OsStr::new(PROMISES)) else {
            return BTreeMap::new();
        };
        let mut bytes = vec![0; MOST_PROMISES];
        file.read_at(&mut bytes, 0)
            .ok()
            .and_then(|read| serde_json::from_slice(bytes.get(..read)?).ok())
            .unwrap_or_default()
    }

    /// Failing that, a promise holds for longer than it should; nobody holds what he should not.
    fn remember(&self, promises: &BTreeMap<u64, u64>) {
        let write = || -> io::Result<()> {
            if promises.is_empty() {
                return self.forget_promises();
            }
            let file = self.directory.open_own(OsStr::new(PROMISES), false)?;
            file.set_len(0)?;
            file.write_all_at(&serde_json::to_vec(promises)?, 0)
        };
        let _ = write();
    }

    fn forget_promises(&self) -> io::Result<()> {
        self.directory.unlink(OsStr::new(PROMISES)).map(drop)
    }
}

impl Standby {
    fn waiter(&self, index: usize) -> Waiter {
        Waiter {
            place: index + 1,
            pid: self.record.pid,
            hostname: self.record.hostname.clone(),
            command: self.record.command.clone(),
            since: self.record.acquired_at,
        }
    }
}

impl Ticket {
    /// Takes the last place. `record` says who waits; its number does not matter.
    pub(crate) fn draw(guard: &Guard, name: &LockName, record: &Record) -> Result<Self> {
        let mut tries = MOST_TRIES;
        loop {
            match Self::try_draw(guard, name, record) {
                // The last one to leave removes the directory, for which he needs no guard.
                Err(Error::Io { source, .. })
                    if source.kind() == io::ErrorKind::NotFound && tries > 0 =>
                {
                    tries -= 1;
                }
                drawn => return drawn,
            }
        }
    }

    fn try_draw(guard: &Guard, name: &LockName, record: &Record) -> Result<Self> {
        let trail = trail(name);
        let directory = guard.descend_or_create(&trail)?;
        let path = trail
            .iter()
            .fold(guard.path().to_owned(), |path, part| path.join(part));
        let queue = Queue { directory, path };
        let last = queue.numbers()?.keys().next_back().copied();
        let number = last.map_or(1, |last| last.saturating_add(1));
        // The number may have been another's, which was passed over and left.
        queue.comes_by(number);
        let file = OsString::from(format!("{number:020}"));
        let path = queue.path.join(&file);
        let place = Place {
            directory: &queue.directory,
            file: &file,
            path: &path,
            format: Format::Native,
        };
        let making = Making {
            kernel_lock: true,
            durable: false,
        };
        let published = place
            .publish(record, making, None)?
            .ok_or_else(|| io::ErrorKind::AlreadyExists.into())
            .context("create ticket", &path)?;
        Ok(Self {
            number,
            place: OwnedPlace {
                directory: queue.directory,
                file,
                path,
                format: Format::Native,
            },
            file: published.file,
            root: guard
                .root()
                .duplicate()
                .context("open store", guard.path())?,
            trail,
            pid: Pid::of_self(),
        })
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// A file for the record of its owner, made while he has nothing better to do.
    pub(crate) fn unnamed_file(&self) -> Option<File> {
        self.root.create_unnamed().ok()?
    }

    /// The ticket right before this one, and whether that is the first; `None`: this is the first.
    /// Those who have lost their turn are passed over: who comes after them waits for the hold.
    pub(crate) fn before(&self) -> Result<Option<(File, bool)>> {
        let queue = self.queue()?;
        let numbers = queue.numbers()?;
        let promises = queue.promises();
        let now = process::boottime_milliseconds();
        let mut before = None;
        for (number, file) in numbers.range(..self.number).rev() {
            if promises
                .get(number)
                .is_some_and(|since| has_run_out(*since, now))
            {
                continue;
            }
            let Some(ticket) = queue.living(file, false)? else {
                continue;
            };
            match before {
                None => before = Some(ticket),
                // Somebody is before that one.
                Some(before) => return Ok(Some((before, false))),
            }
        }
        Ok(before.map(|before| (before, true)))
    }

    fn queue(&self) -> Result<Queue> {
        let directory = self.place.directory.duplicate();
        Ok(Queue {
            directory: directory.context("open", &self.place.path)?,
            path: self.place.path.clone(),
        })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.pid != Pid::of_self() {
            return;
        }
        // Failing that, it is a dead waiter's ticket, which the next one removes.
        let _ = self.place.directory.unlink(&self.place.file);
        let _ = unlock_record(&self.file);
        if let Ok(queue) = self.queue()
            && matches!(
                self.place.directory.facts(OsStr::new(PROMISES)),
                Ok(Some(_))
            )
            && queue.numbers().is_ok_and(|numbers| numbers.is_empty())
        {
            let _ = queue.forget_promises();
        }
        // Directories go as far as they are empty. Whoever makes them anew has the guard, which we
        // need not have, and tries again if we were faster.
        for depth in (2..self.trail.len()).rev() {
            let (parents, rest) = self.trail.split_at(depth);
            let parents: PathBuf = parents.iter().collect();
            let removed = rest.first().map(|name| {
                self.root
                    .open_below(parents.as_os_str())?
                    .remove_below_if_empty(name)
            });
            if !matches!(removed, Some(Ok(true))) {
                break;
            }
        }
    }
}

/// Who waits for what in a store, by name.
pub(crate) fn all_waiters(root: &Directory, store: &Path) -> Result<BTreeMap<String, Vec<Waiter>>> {
    let below = Path::new(OWN_DIRECTORY).join(WAITING);
    let path = store.join(&below);
    let mut waiters = BTreeMap::new();
    match root.open_below(below.as_os_str()) {
        Ok(directory) => collect(&directory, &path, None, &mut waiters)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).context("open the queues", &path),
    }
    Ok(waiters)
}

fn collect(
    directory: &Directory,
    path: &Path,
    section: Option<&str>,
    waiters: &mut BTreeMap<String, Vec<Waiter>>,
) -> Result<()> {
    for file in directory.names().context("read directory", path)? {
        let path = path.join(&file);
        let below = match directory.open_below(&file) {
            Ok(below) => below,
            // Left meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).context("open the queue", &path),
        };
        match entry(section, &file) {
            Some(Entry::Section(name)) => collect(&below, &path, Some(&name), waiters)?,
            Some(Entry::Lock(name)) => {
                let queue = Queue {
                    directory: below,
                    path,
                };
                let found = queue.waiters()?;
                if !found.is_empty() {
                    waiters.insert(name.as_str().to_owned(), found);
                }
            }
            None => {}
        }
    }
    Ok(())
}

/// Removes what dead waiters left in a store: tickets, and directories that are empty without
/// them. What cannot be removed is in `errors`.
pub(crate) fn sweep(guard: &Guard, errors: &mut Vec<Error>) -> Result<()> {
    let parts = [OsString::from(OWN_DIRECTORY), OsString::from(WAITING)];
    if let Some(directory) = guard.descend(&parts)? {
        let path = guard.path().join(OWN_DIRECTORY).join(WAITING);
        sweep_directory(directory, path, errors)?;
    }
    Ok(())
}

fn sweep_directory(directory: Directory, path: PathBuf, errors: &mut Vec<Error>) -> Result<()> {
    let queue = Queue { directory, path };
    if queue.standbys(true)?.is_empty() {
        queue
            .forget_promises()
            .context("remove", &queue.path.join(PROMISES))?;
    }
    for file in queue
        .directory
        .names()
        .context("read directory", &queue.path)?
    {
        let path = queue.path.join(&file);
        // Under the guard nobody is about to give it a place.
        if file.to_str().is_some_and(is_temporary) {
            let removed = queue.directory.unlink(&file).context("remove", &path);
            errors.extend(removed.err());
        } else if let Ok(below) = queue.directory.open_below(&file) {
            let swept = sweep_directory(below, path.clone(), errors).and_then(|()| {
                queue
                    .directory
                    .remove_below_if_empty(&file)
                    .context("remove directory", &path)
            });
            errors.extend(swept.err());
        }
    }
    Ok(())
}
