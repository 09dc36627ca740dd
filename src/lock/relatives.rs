//! Sections and tasks: a name covers all names below it. `backend` excludes `backend/task-1` and
//! the other way round, unless both are the same owner's; siblings do not exclude each other.

use std::ffi::OsStr;
use std::path::Path;

use super::Lock;
use crate::claim::{Claim, is_same_owner};
use crate::error::{Context, Error, Result};
use crate::guard::descend;
use crate::lockfile::{LockFile, Standing, is_temporary};
use crate::name::{Entry, LockName, entry};
use crate::record::Record;
use crate::status::{About, Observatory, Presences, Status};
use crate::sys::directory::Directory;
use crate::verdict::State;

/// A relative that blocks: what can be said of it, and its file to wait on.
type Relative = (Status, LockFile);

/// What others have above and below a lock.
pub(super) struct Relatives {
    /// The first one that is held by somebody else.
    pub(super) blocking: Option<Relative>,
    /// Those that are dead, or whose takers died before they were done, as far as one looked.
    pub(super) unsettled: Vec<LockName>,
}

impl Lock {
    /// Looks for relatives that are held, and for dead ones. Whoever is to rely on it asks under
    /// the guard, and settles the dead ones first: as long as its file is in place, what died while
    /// it started a command may still start it, a lease that ran out may be renewed, and what a dead
    /// taker took out may live.
    pub(super) fn relatives(
        &self,
        root: &Directory,
        observatory: &Observatory,
        claim: &Claim,
    ) -> Result<Relatives> {
        let mut family = Family {
            lock: self,
            observatory,
            claim,
            presences: Presences::default(),
            unsettled: Vec::new(),
        };
        let blocking = family.blocking(root)?;
        Ok(Relatives {
            blocking,
            unsettled: family.unsettled,
        })
    }

    /// The section or task that keeps `claim` from this lock, whatever may be said of the lock
    /// itself. Like [`check`](Self::check) true for the moment of asking.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn check_relatives(&self, claim: &Claim) -> Result<Option<Status>> {
        let root = match Directory::open(&self.store) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            opened => opened.context("open store", &self.store)?,
        };
        let observatory = self.surroundings.observe(&root, &self.store)?;
        let relatives = self.relatives(&root, &observatory, claim)?;
        Ok(relatives.blocking.map(|(status, _)| status))
    }

    /// The lock that a status is of: this one or a relative.
    pub(super) fn relative(&self, status: &Status) -> Self {
        match LockName::new(&status.name) {
            Ok(name) if status.name != self.name.as_str() => self.renamed(name),
            _ => self.clone(),
        }
    }

    /// Another lock of the same store.
    pub(super) fn renamed(&self, name: LockName) -> Self {
        let mut other = self.clone();
        other.name = name;
        other
    }
}

struct Family<'a> {
    lock: &'a Lock,
    observatory: &'a Observatory,
    claim: &'a Claim,
    presences: Presences,
    unsettled: Vec<LockName>,
}

impl Family<'_> {
    fn blocking(&mut self, root: &Directory) -> Result<Option<Relative>> {
        let Lock { name, store, .. } = self.lock;
        for ancestor in name.ancestors() {
            let Some(directory) = descend(root, store, &ancestor.sections())? else {
                continue;
            };
            let path = ancestor.path_below(store);
            if let Some(found) = self.look_at(&directory, &ancestor.file(), &path, &ancestor)? {
                return Ok(Some(found));
            }
        }
        let Some(sections) = name.covers() else {
            return Ok(None);
        };
        let Some(directory) = descend(root, store, &sections)? else {
            return Ok(None);
        };
        let path = sections
            .iter()
            .fold(store.clone(), |path, section| path.join(section));
        self.walk(&directory, &path, name.as_str())
    }

    fn walk(
        &mut self,
        directory: &Directory,
        path: &Path,
        section: &str,
    ) -> Result<Option<Relative>> {
        for file in directory.names().context("read directory", path)? {
            let below = path.join(&file);
            let found = match entry(Some(section), &file) {
                Some(Entry::Lock(name)) => self.look_at(directory, &file, &below, &name)?,
                Some(Entry::Section(name)) => match directory.open_below(&file) {
                    Ok(directory) => self.walk(&directory, &below, &name)?,
                    Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => None,
                    Err(error) => return Err(error).context("open directory", &below),
                },
                None => {
                    self.look_at_aside(directory, &file, &below, section)?;
                    None
                }
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn look_at(
        &mut self,
        directory: &Directory,
        file: &OsStr,
        path: &Path,
        name: &LockName,
    ) -> Result<Option<Relative>> {
        let standing = self.lock.place(directory, file, path).read()?;
        let about = About {
            name: name.as_str(),
            path,
            store: &self.lock.store,
            max_age: self.claim.observed_max_age(),
        };
        let status = self
            .observatory
            .status(&about, &standing, &mut self.presences);
        let held = match status.verdict.state {
            State::Held | State::Overdue => true,
            // Where nobody can settle who takes it, it still stands.
            State::Zombie => !status.settles || self.claim.refuse_zombies,
            State::Free | State::NotALock => false,
        };
        let same_owner = status
            .record
            .as_ref()
            .is_some_and(|record| is_same_owner(self.claim.owner.as_ref(), record));
        match standing {
            Standing::File(found) if held && !same_owner => return Ok(Some((status, found))),
            Standing::Nothing => {
                if self.lock.place(directory, file, path).is_aside()? {
                    self.unsettled.push(name.clone());
                }
                return Ok(None);
            }
            Standing::File(_) | Standing::NoFile(_) => {}
        }
        let unfinished = |record: &Record| {
            let swap = record.swap.as_ref()?;
            directory.facts(OsStr::new(&swap.name)).ok()?
        };
        let to_settle = match status.verdict.state {
            State::Zombie if !same_owner => true,
            State::Zombie | State::Free => status.record.as_ref().and_then(unfinished).is_some(),
            State::Held | State::Overdue | State::NotALock => false,
        };
        if to_settle {
            self.unsettled.push(name.clone());
        }
        Ok(None)
    }

    /// A record that somebody set aside and did not live to look at again.
    fn look_at_aside(
        &mut self,
        directory: &Directory,
        file: &OsStr,
        path: &Path,
        section: &str,
    ) -> Result<()> {
        if !file.to_str().is_some_and(is_temporary) {
            return Ok(());
        }
        let found = match self.lock.place(directory, file, path).read() {
            Ok(Standing::File(found)) => found,
            // Of a user who lets nobody read what he has not published yet.
            Ok(_) | Err(Error::Io { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        if let Some(name) = found.set_aside_from(Some(section), file) {
            let (place, path) = (name.file(), path.with_file_name(name.file()));
            let place = self.lock.place(directory, &place, &path);
            if matches!(place.read()?, Standing::Nothing) {
                self.unsettled.push(name);
            }
        }
        Ok(())
    }
}
