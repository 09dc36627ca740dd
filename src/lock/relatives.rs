//! Sections and tasks: a name covers all names below it. `backend` excludes `backend/task-1` and
//! the other way round, unless both are the same owner's; siblings do not exclude each other.

use std::ffi::OsStr;
use std::path::Path;

use super::Lock;
use crate::claim::{Claim, is_same_owner};
use crate::error::{Context, Result};
use crate::guard::descend;
use crate::lockfile::{LockFile, Standing};
use crate::name::{Entry, LockName, entry};
use crate::status::{About, Observatory, Presences, Status};
use crate::sys::directory::Directory;
use crate::verdict::State;

/// A relative that blocks: what can be said of it, and its file to wait on.
type Relative = (Status, LockFile);

impl Lock {
    /// The first relative that is held by somebody else. A dead one does not block, and is left to
    /// whoever wants its name. Whoever is to rely on it asks under the guard.
    pub(super) fn blocking_relative(
        &self,
        root: &Directory,
        observatory: &Observatory,
        claim: &Claim,
    ) -> Result<Option<Relative>> {
        let mut family = Family {
            lock: self,
            observatory,
            claim,
            presences: Presences::default(),
        };
        for ancestor in self.name.ancestors() {
            let Some(directory) = descend(root, &self.store, &ancestor.sections())? else {
                continue;
            };
            let path = ancestor.path_below(&self.store);
            if let Some(found) = family.look_at(&directory, &ancestor.file(), &path, &ancestor)? {
                return Ok(Some(found));
            }
        }
        let Some(sections) = self.name.covers() else {
            return Ok(None);
        };
        let Some(directory) = descend(root, &self.store, &sections)? else {
            return Ok(None);
        };
        let path = sections
            .iter()
            .fold(self.store.clone(), |path, section| path.join(section));
        family.walk(&directory, &path, self.name.as_str())
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
        let relative = self.blocking_relative(&root, &observatory, claim)?;
        Ok(relative.map(|(status, _)| status))
    }

    /// The lock that a status is of: this one or a relative.
    pub(super) fn relative(&self, status: &Status) -> Self {
        let mut relative = self.clone();
        if status.name != self.name.as_str()
            && let Ok(name) = LockName::new(&status.name)
        {
            relative.name = name;
        }
        relative
    }
}

struct Family<'a> {
    lock: &'a Lock,
    observatory: &'a Observatory,
    claim: &'a Claim,
    presences: Presences,
}

impl Family<'_> {
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
                None => None,
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
            State::Zombie => !status.settles,
            State::Free | State::NotALock => false,
        };
        let same_owner = status
            .record
            .as_ref()
            .is_some_and(|record| is_same_owner(self.claim.owner.as_ref(), record));
        match standing {
            Standing::File(found) if held && !same_owner => Ok(Some((status, found))),
            _ => Ok(None),
        }
    }
}
