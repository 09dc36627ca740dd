//! Sections and tasks: a name covers all names below it. `backend` excludes `backend/task-1` and
//! the other way round, unless both are the same owner's; siblings do not exclude each other.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use super::Lock;
use super::attempt::{Keeper, Line, Try};
use crate::claim::{Claim, is_same_owner};
use crate::error::{Context, Error, Result};
use crate::guard::{Guard, descend};
use crate::lockfile::{LockFile, Standing, is_temporary};
use crate::name::{Entry, LockName, entry};
use crate::record::Record;
use crate::status::{About, Observatory, Presences, Status};
use crate::sys::directory::Directory;
use crate::verdict::{Reason, State};

/// Most dead relatives that are removed under one guard, some 100 µs each: others have to wait for it.
const MOST_REMOVALS: usize = 256;

/// A relative that blocks: what can be said of it, and its file to wait on.
type Relative = (Status, LockFile);

/// What others have above and below a lock.
pub(super) struct Relatives {
    /// The first one that is held by somebody else.
    pub(super) blocking: Option<Relative>,
    /// Those that are dead, or whose takers died before they were done, as far as one looked.
    pub(super) unsettled: Vec<LockName>,
}

/// By whom, and for whom, relatives are settled.
pub(super) struct Settling<'a> {
    pub(super) guard: &'a Guard,
    pub(super) observatory: &'a Observatory,
    pub(super) claim: &'a Claim,
}

/// What has become of relatives that were to be settled.
pub(super) enum Relations {
    /// Nothing: none that is left can come alive.
    Settled,
    /// Judge again.
    Changed,
    /// There are more than should be removed under one guard.
    Unfinished,
    Blocked(Box<Status>, LockFile),
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

    /// Takes dead relatives out, after what their own takers may have left has been settled.
    pub(super) fn settle_relatives(
        &self,
        settling: &Settling<'_>,
        names: Vec<LockName>,
        max_age: Duration,
        removed: &mut Vec<Status>,
    ) -> Result<Relations> {
        let Settling {
            guard,
            observatory,
            claim,
        } = *settling;
        let mut changed = false;
        let before = removed.len();
        for name in names {
            if removed.len() - before >= MOST_REMOVALS {
                return Ok(Relations::Unfinished);
            }
            let relative = self.renamed(name);
            let (file, path) = (relative.name.file(), relative.path());
            let Some(directory) = guard.descend(&relative.name.sections())? else {
                // It went with another one of them.
                continue;
            };
            let place = relative.place(&directory, &file, &path);
            let (status, standing, settled) = match relative.settle(&place, observatory, max_age) {
                Err(error) if is_refused(&error) => {
                    let about = relative.about(&path, max_age);
                    let standing = place.read()?;
                    let mut presences = Presences::default();
                    let status = observatory.status(&about, &standing, &mut presences);
                    match standing {
                        Standing::File(found) => {
                            return Ok(Relations::Blocked(Box::new(status), found));
                        }
                        Standing::Nothing | Standing::NoFile(_) => return Err(error),
                    }
                }
                settled => settled?,
            };
            let dead = status.verdict.state == State::Zombie;
            changed |= settled || matches!(status.verdict.state, State::Held | State::Overdue);
            let same_owner = |record| is_same_owner(claim.owner.as_ref(), record);
            if !dead || status.record.as_ref().is_some_and(same_owner) {
                continue;
            }
            let mut nothing_said = Claim::new();
            nothing_said.max_age = Some(max_age);
            let tried = relative.try_under(
                guard,
                observatory,
                &nothing_said,
                &Keeper::Nobody,
                &mut Line::default(),
                removed,
            );
            match (tried, standing) {
                (Ok(Try::Removed(was)), _) => {
                    removed.push(*was);
                    changed = true;
                }
                (Ok(_), _) => changed = true,
                // Another user's, which is no harm as long as it stays dead.
                (Err(error), _) if is_refused(&error) && stays_dead(&status) => {}
                (Err(error), Standing::File(found)) if is_refused(&error) => {
                    return Ok(Relations::Blocked(Box::new(status), found));
                }
                (Err(error), _) => return Err(error),
            }
        }
        Ok(if changed {
            Relations::Changed
        } else {
            Relations::Settled
        })
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

/// Whether what is to be removed is another user's.
fn is_refused(error: &Error) -> bool {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    matches!(error, Error::Io { source, .. } if matches!(source.kind(), PermissionDenied | ReadOnlyFilesystem))
}

/// Whether a dead hold cannot come alive: by a command that is about to start, by a process that was
/// to get it, or by being renewed.
fn stays_dead(status: &Status) -> bool {
    let Some(record) = &status.record else {
        return true;
    };
    // Who keeps no kernel lock starts no command.
    let started = record.exec || record.command_process.is_some() || !record.kernel_lock;
    match status.verdict.reason {
        Reason::Rebooted => true,
        Reason::Dead | Reason::Reused => started,
        _ => false,
    }
}
