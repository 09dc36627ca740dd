//! One lock: what can be asked of it and done to it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use chrono::{SubsecRound, Utc};

use crate::claim::{Claim, Claimant};
use crate::error::{Context, Error, Result};
use crate::events::{self, Deed};
use crate::format::{Format, MEMORY_TTL, MEMORY_TTL_ONLY};
use crate::guard::{Guard, descend};
use crate::hold::{Detached, Hold};
use crate::holder::Holder;
use crate::lockfile::{LockFile, Place, Standing};
use crate::name::LockName;
use crate::queue::{Queue, Waiter};
use crate::record::SignOfLife;
use crate::status::{About, Observatory, Presences, Shown, Status, Surroundings};
use crate::store::Cleanup;
use crate::sys::directory::Directory;
use crate::sys::process;
use crate::verdict::{DEFAULT_MAX_AGE, Reason, State};
use crate::wait::Wait;

use attempt::{Keeper, Line, MOST_CHANGES, Try, milliseconds};

mod attempt;
mod relatives;

/// A lock: a name in a store, or the path of one lock file.
///
/// It is advisory: it keeps apart those who ask for it, and nobody else.
#[derive(Clone, Debug)]
pub struct Lock {
    name: LockName,
    store: PathBuf,
    journal: PathBuf,
    format: Format,
    surroundings: Arc<Surroundings>,
}

/// What became of a claim. That somebody else holds the lock is an answer, not an error.
#[derive(Debug)]
#[must_use]
pub enum Attempt<T> {
    /// The lock is the caller's.
    Held(T),
    /// Somebody else has it.
    Blocked(Blocked),
}

/// Why a lock was not to be had.
#[derive(Debug)]
pub struct Blocked {
    /// Who has it.
    pub status: Box<Status>,
    /// How long it was waited for; `None`: not at all.
    pub waited: Option<Duration>,
}

/// A lock acquired for another process, or until a time.
#[derive(Debug)]
pub enum Acquired {
    /// Not in force until it is confirmed.
    New(Box<Detached>),
    /// The same owner has it already.
    Again(Box<Status>),
}

/// How a hold for a command is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keeping {
    /// The command does not inherit the kernel lock.
    pub close: bool,
    /// The calling process becomes the command.
    pub exec: bool,
}

/// What became of a release.
#[derive(Debug)]
#[must_use]
pub enum Release {
    /// Given back; what it was.
    Done(Box<Status>),
    /// Nobody had it.
    Free,
    /// It is somebody else's.
    NotYours(Box<Status>),
    /// It ends with its command.
    EndsWithCommand(Box<Status>),
}

/// What became of a renewal.
#[derive(Debug)]
#[must_use]
pub enum Renewal {
    /// Renewed; as it is now.
    Done(Box<Status>),
    /// Nobody has it, or its holder is dead.
    Nothing(Box<Status>),
    /// It is somebody else's.
    NotYours(Box<Status>),
    /// Its wrapper renews it.
    EndsWithCommand(Box<Status>),
}

/// What became of a break.
#[derive(Debug)]
#[must_use]
pub enum Break {
    /// Taken away; what it was.
    Done {
        /// The hold that is no more.
        was: Box<Status>,
        /// What did not work besides.
        warnings: Vec<Error>,
    },
    /// Nobody has it.
    Nothing,
    /// It is not the hold that was shown any more.
    Changed(Box<Status>),
}

impl Lock {
    pub(crate) fn new(
        name: LockName,
        default_store: &Path,
        journal: &Path,
        format: Format,
        surroundings: Arc<Surroundings>,
    ) -> Result<Self> {
        let store = match name.directory() {
            // Absolute, so that it stays the same place when the caller changes directory.
            Some(directory) => {
                std::path::absolute(directory).context("find the directory", directory)?
            }
            None => default_store.to_owned(),
        };
        Ok(Self {
            name,
            store,
            journal: journal.to_owned(),
            format,
            surroundings,
        })
    }

    /// Its name, as it was given.
    #[must_use]
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// Its file.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.name.path_below(&self.store)
    }

    /// Who holds it, and what can be said of that. Changes nothing, and takes no guard: the answer
    /// is true for the moment of asking. `max_age`: for holds that do not name their own; `None`:
    /// 24 h.
    ///
    /// # Errors
    /// The store or the lock file cannot be read.
    pub fn check(&self, max_age: Option<Duration>) -> Result<Status> {
        let path = self.path();
        let about = self.about(&path, max_age.unwrap_or(DEFAULT_MAX_AGE));
        let root = match Directory::open(&self.store) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(about.free()),
            opened => opened.context("open store", &self.store)?,
        };
        let Some(directory) = descend(&root, &self.store, &self.name.sections())? else {
            return self.with_waiters(&root, about.free());
        };
        let observatory = self.surroundings.observe(&root, &self.store)?;
        let file = self.name.file();
        let standing = self.place(&directory, &file, &path).read()?;
        let status = observatory.status(&about, &standing, &mut Presences::default());
        self.with_waiters(&root, status)
    }

    /// Adds who waits, and to whom a lock that is free is promised.
    fn with_waiters(&self, root: &Directory, mut status: Status) -> Result<Status> {
        let Some(queue) = Queue::open(root, &self.store, &self.name)? else {
            return Ok(status);
        };
        status.waiters = queue.waiters()?;
        if status.is_takeable()
            && let Some(waiter) = queue.promised(None, false)?
        {
            status = status.promised_to(&waiter);
        }
        Ok(status)
    }

    /// Who waits for it.
    fn waiters(&self) -> Result<Vec<Waiter>> {
        let root = Directory::open(&self.store).context("open store", &self.store)?;
        match Queue::open(&root, &self.store, &self.name)? {
            Some(queue) => queue.waiters(),
            None => Ok(Vec::new()),
        }
    }

    /// Holds it for as long as the returned value lives, by this process. Threads exclude each
    /// other like processes do.
    ///
    /// # Errors
    /// The store cannot be used, or something that is no lock file stands there. Contention is
    /// [`Attempt::Blocked`].
    pub fn hold(&self, claim: &Claim, wait: Wait<'_>) -> Result<Attempt<Hold>> {
        self.take(claim, &Keeper::ThisProcess, wait)
            .map(|attempt| attempt.map(|possession| Hold::new(*possession)))
    }

    /// Holds it for a command, to be started by [`Hold::spawn`] or [`Hold::exec`].
    ///
    /// # Errors
    /// As for [`hold`](Self::hold).
    pub fn hold_for_command(
        &self,
        claim: &Claim,
        keeping: Keeping,
        wait: Wait<'_>,
    ) -> Result<Attempt<Hold>> {
        self.take(claim, &Keeper::Run(keeping), wait)
            .map(|attempt| attempt.map(|possession| Hold::new(*possession)))
    }

    /// Acquires it on behalf of another process, or as a lease. Nothing is held until the result
    /// is [confirmed](Detached::confirm).
    ///
    /// # Errors
    /// As for [`hold`](Self::hold).
    pub fn acquire(
        &self,
        claim: &Claim,
        holder: Holder,
        wait: Wait<'_>,
    ) -> Result<Attempt<Acquired>> {
        let attempt = self.take(claim, &Keeper::Detached(holder), wait)?;
        Ok(match attempt {
            Attempt::Held(possession) => {
                Attempt::Held(Acquired::New(Box::new(Detached::new(*possession, holder))))
            }
            Attempt::Blocked(blocked) if self.is_the_same_owners(claim, &blocked.status) => {
                Attempt::Held(Acquired::Again(blocked.status))
            }
            Attempt::Blocked(blocked) => Attempt::Blocked(blocked),
        })
    }

    /// Gives a hold back for `claimant`.
    ///
    /// # Errors
    /// The store cannot be used, or something that is no lock file stands there.
    pub fn release(&self, claimant: &Claimant) -> Result<Release> {
        let Some(guard) = Guard::enter(&self.store)? else {
            return Ok(Release::Free);
        };
        let Some(directory) = guard.descend(&self.name.sections())? else {
            return Ok(Release::Free);
        };
        let (path, file) = (self.path(), self.name.file());
        let place = self.place(&directory, &file, &path);
        let observatory = self.surroundings.observe(guard.root(), &self.store)?;
        for _ in 0..MOST_CHANGES {
            let (status, found) = match self.settled(&place, &observatory, DEFAULT_MAX_AGE)? {
                (status, Standing::File(found)) => (status, found),
                (_, Standing::Nothing) => return Ok(Release::Free),
                (_, Standing::NoFile(what)) => return Err(self.not_a_lock(what)),
            };
            if let Reason::NotALock(what) = status.verdict.reason {
                return Err(self.not_a_lock(what));
            }
            if !claimant.owns(&status) {
                return Ok(match status.verdict.state {
                    State::Free => Release::Free,
                    _ => Release::NotYours(Box::new(status)),
                });
            }
            if status.ends_with_its_command() {
                return Ok(Release::EndsWithCommand(Box::new(status)));
            }
            let removed = match status.verdict.state {
                State::Held | State::Overdue => place.remove_if_unchanged(&found)?,
                // The command of a dead `run` could come on record in this very moment.
                _ => self.remove_dead(&place, &observatory, &found, &Claim::new())?,
            };
            if removed {
                guard.prune(&self.name.sections())?;
                return Ok(Release::Done(Box::new(status)));
            }
        }
        Err(self.restless())
    }

    /// Extends a lease, or another detached hold, by a new sign of life; `ttl` changes its time
    /// to live from here on. A lease that has run out can be renewed as long as nobody has taken
    /// it.
    ///
    /// # Errors
    /// The store cannot be used, or something that is no lock file stands there.
    pub fn renew(&self, claimant: &Claimant, ttl: Option<Duration>) -> Result<Renewal> {
        let path = self.path();
        let free = || {
            let about = self.about(&path, DEFAULT_MAX_AGE);
            Ok(Renewal::Nothing(Box::new(about.free())))
        };
        let Some(guard) = Guard::enter(&self.store)? else {
            return free();
        };
        let Some(directory) = guard.descend(&self.name.sections())? else {
            return free();
        };
        let file = self.name.file();
        let place = self.place(&directory, &file, &path);
        let observatory = self.surroundings.observe(guard.root(), &self.store)?;
        for _ in 0..attempt::MOST_CHANGES {
            let (status, standing) = self.settled(&place, &observatory, DEFAULT_MAX_AGE)?;
            let found = match standing {
                Standing::File(found) => found,
                Standing::Nothing => return free(),
                Standing::NoFile(what) => return Err(self.not_a_lock(what)),
            };
            if let Reason::NotALock(what) = status.verdict.reason {
                return Err(self.not_a_lock(what));
            }
            let renewable = match status.verdict.state {
                State::Held | State::Overdue => true,
                State::Zombie => status.verdict.reason == Reason::Expired,
                State::Free | State::NotALock => false,
            };
            if !renewable {
                return Ok(Renewal::Nothing(Box::new(status)));
            }
            if !claimant.owns(&status) {
                return Ok(Renewal::NotYours(Box::new(status)));
            }
            if status.ends_with_its_command() {
                return Ok(Renewal::EndsWithCommand(Box::new(status)));
            }
            let format = status.record.as_ref().map(|record| record.format);
            if format == Some(Format::Memory) && ttl.is_some_and(|ttl| ttl > MEMORY_TTL) {
                return Err(Error::Unfit {
                    format: Format::Memory,
                    what: MEMORY_TTL_ONLY,
                });
            }
            let life = sign_of_life(&observatory, ttl);
            if found.renew(&place, life, status.record.as_ref())? {
                let (renewed, _) = self.settled(&place, &observatory, DEFAULT_MAX_AGE)?;
                return Ok(Renewal::Done(Box::new(renewed)));
            }
        }
        Err(self.restless())
    }

    /// Takes the lock away from the holder that was shown, dead or alive, on a person's word. No
    /// process is signalled: the wrapper of a `run` notices by itself.
    ///
    /// # Errors
    /// The store cannot be used, or something that is no lock file stands there.
    pub fn break_hold(&self, shown: &Shown) -> Result<Break> {
        let claim = Claim::new().displace(shown.clone());
        match self.try_once(&claim, &Keeper::Nobody, &mut Line::default())? {
            Try::Removed(was) => {
                let mut warnings = Vec::new();
                let written = events::write(self.journal_store(), Deed::Break, &was, None);
                events::warn(&mut warnings, written);
                Ok(Break::Done { was, warnings })
            }
            Try::Nothing | Try::Taken(_) | Try::Again => Ok(Break::Nothing),
            Try::Blocked(status, _) => Ok(Break::Changed(status)),
        }
    }

    /// Removes what is left of a finished or dead hold; `None` if it is none any more.
    pub(crate) fn remove_zombie(&self, max_age: Option<Duration>) -> Result<Option<CleanedUp>> {
        let mut claim = Claim::new();
        claim.max_age = max_age;
        let Try::Removed(was) = self.try_once(&claim, &Keeper::Nobody, &mut Line::default())?
        else {
            return Ok(None);
        };
        let mut warnings = Vec::new();
        if was.verdict.state == State::Zombie {
            let written = events::write(self.journal_store(), Deed::Cleanup, &was, None);
            events::warn(&mut warnings, written);
        }
        Ok(Some(CleanedUp { was, warnings }))
    }

    /// What [`Store::cleanup`](crate::Store::cleanup) does, for this lock alone.
    ///
    /// # Errors
    /// The lock file cannot be read. What could not be removed is in the result.
    pub fn cleanup(&self, dry_run: bool, max_age: Option<Duration>) -> Result<Cleanup> {
        let mut cleanup = Cleanup::default();
        let status = self.check(max_age)?;
        if status.verdict.reason != Reason::NoFile {
            cleanup.add(status, dry_run, || self.remove_zombie(max_age));
        }
        Ok(cleanup)
    }

    /// The store whose journal tells of this lock.
    fn journal_store(&self) -> &Path {
        &self.journal
    }

    pub(crate) fn sections(&self) -> Vec<OsString> {
        self.name.sections()
    }

    pub(crate) fn store(&self) -> &Path {
        &self.store
    }

    /// Judges a lock file of ours by what it is about to say.
    pub(crate) fn status_of(&self, root: &Directory, file: LockFile) -> Result<Status> {
        let path = self.path();
        let observatory = self.surroundings.observe(root, &self.store)?;
        let about = self.about(&path, DEFAULT_MAX_AGE);
        Ok(observatory.status(&about, &Standing::File(file), &mut Presences::default()))
    }

    pub(crate) fn sign_of_life(&self, root: &Directory) -> Result<SignOfLife> {
        let observatory = self.surroundings.observe(root, &self.store)?;
        Ok(sign_of_life(&observatory, None))
    }

    fn place<'a>(&self, directory: &'a Directory, file: &'a OsStr, path: &'a Path) -> Place<'a> {
        Place {
            directory,
            file,
            path,
            format: self.format,
        }
    }

    fn about<'a>(&'a self, path: &'a Path, max_age: Duration) -> About<'a> {
        About {
            name: self.name.as_str(),
            path,
            store: &self.store,
            max_age,
        }
    }

    fn not_a_lock(&self, what: &'static str) -> Error {
        Error::NotALock {
            path: self.path(),
            what,
        }
    }

    /// Another program changes the file all the time.
    fn restless(&self) -> Error {
        Error::Io {
            operation: "settle who holds",
            path: self.path(),
            source: std::io::Error::other("its lock file keeps changing"),
        }
    }
}

/// What a cleanup removed.
pub(crate) struct CleanedUp {
    pub(crate) was: Box<Status>,
    pub(crate) warnings: Vec<Error>,
}

impl<T> Attempt<T> {
    fn map<U>(self, change: impl FnOnce(T) -> U) -> Attempt<U> {
        match self {
            Self::Held(value) => Attempt::Held(change(value)),
            Self::Blocked(blocked) => Attempt::Blocked(blocked),
        }
    }
}

fn sign_of_life(observatory: &Observatory, ttl: Option<Duration>) -> SignOfLife {
    SignOfLife {
        renewed_at: Utc::now().trunc_subsecs(6),
        renewed_boottime_ms: process::boottime_milliseconds(),
        renewed_boot_id: observatory.boot_id(),
        ttl_ms: ttl.map(milliseconds),
    }
}
