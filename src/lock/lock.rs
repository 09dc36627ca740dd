//! One lock: what can be asked about it, and what can be done to it.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use chrono::{SubsecRound, TimeDelta, Utc};

use super::cleanup::{CleanedUp, Cleanup};
use super::hold::{Hold, PendingHold, TakenHold, renewed};
use super::holder::{Holder, command_line_of, has_ended};
use super::options::{Options, RunOptions, milliseconds};
use super::take::{Callbacks, Held, Outcome, take};
use super::unfinished::{Unfinished, finish, is_over};
use super::wait::Wait;
use crate::backend::{
    AsWaiter, BackOff, Backend as _, Change, Draft, Entry, HeldRecord as _, Patience, SleepLimit,
};
use crate::decision::liveness::{DEFAULT_MAX_AGE, is_unchanged};
use crate::decision::ownership::{
    Caller, MayRelease, MayRenew, is_lost, may_clean_up, may_release, may_renew,
};
use crate::decision::verdict::{Evidence, Reason, State, Verdict};
use crate::decision::{
    Asker, Decision, Judged, Key, Observer, Obstacle, Request, Revision, Snapshot, Ticket, Until,
    Want, decide, judge, judge_found,
};
use crate::error::{Context, Error, Operation, Result};
use crate::files::journal::{self, Action};
use crate::files::{Files, layout};
use crate::format::{MEMORY_TTL, MEMORY_TTL_LIMIT};
use crate::identity::Pid;
use crate::name::LockName;
use crate::observer::{self, HostFacts};
use crate::record::{Content, Format, Kind, Live, Mode, Record, cut_command};
use crate::status::{Locker, Status, Waiter};
use crate::stores::{AnySleeper, AnyStore, Handle};
use crate::sys::directory::HAS_FLOCK;
use crate::sys::process;
use crate::sys::spawn::COMMANDS_INHERIT_LOCKS;

/// A lock: a name in a store, or the path of one lock file.
///
/// It is advisory: it excludes only processes that ask for it.
#[derive(Clone, Debug)]
pub struct Lock {
    name: LockName,
    /// To be held with it.
    others: Vec<LockName>,
    pub(super) store: AnyStore,
    journal: PathBuf,
}

/// The result of a request. A lock held by another holder is a result, not an error.
#[derive(Debug)]
#[must_use]
pub enum Attempt<T> {
    /// The caller has the lock.
    Held(T),
    /// Another has it.
    Blocked(Blocked),
}

/// Why a lock could not be taken.
#[derive(Debug)]
#[non_exhaustive]
pub struct Blocked {
    /// What is in the way.
    pub status: Box<Status>,
    /// How long it was waited for; `None`: not at all.
    pub waited: Option<Duration>,
}

impl Blocked {
    /// For a program that refuses for a reason of its own.
    #[must_use]
    pub fn new(status: Status, waited: Option<Duration>) -> Self {
        let status = Box::new(status);
        Self { status, waited }
    }
}

/// A lock acquired for another process, or until a time.
#[derive(Debug)]
pub enum Acquired {
    /// Not in force until it is confirmed.
    New(Box<PendingHold>),
    /// The same holder has it already. A longer time to live is in force.
    AlreadyHeld(Box<Status>),
}

/// What became of a release.
#[derive(Debug)]
#[must_use]
pub enum Release {
    /// Released; what it was.
    Done(Box<Status>),
    /// It had lost one of its locks before, whose record was removed or replaced. The others are released.
    Lost(Box<Status>),
    /// It was free.
    Free,
    /// Another holds it.
    NotYours(Box<Status>),
    /// A live `run` holds it until its command exits.
    HeldByRun(Box<Status>),
}

/// What became of a renewal.
#[derive(Debug)]
#[must_use]
pub enum Renewal {
    /// Renewed; as it is now.
    Done(Box<Status>),
    /// There is nothing to renew.
    Nothing(Box<Status>),
    /// It has lost one of its locks, whose record was removed or replaced. The others are left.
    Lost(Box<Status>),
    /// Another holds it.
    NotYours(Box<Status>),
    /// A live `run` renews it.
    HeldByRun(Box<Status>),
}

/// A file that was no lock file, and was moved out of the way.
#[derive(Debug)]
#[non_exhaustive]
pub struct MovedAside {
    /// Where it is now.
    pub to: PathBuf,
    /// What else did not work.
    pub warnings: Vec<Error>,
}

/// Where nothing wakes, a confirmation is looked for after this, doubling up to the second.
const CONFIRMATION_PACE: BackOff = BackOff {
    first: Duration::from_millis(1),
    most: Duration::from_millis(50),
};

/// What a new hold is kept alive by.
#[derive(Clone, Copy)]
enum NewHolder {
    ThisProcess,
    Run(RunOptions),
    Detached(Holder),
}

impl Lock {
    pub(crate) fn new(
        name: LockName,
        default_store: &Path,
        journal: &Path,
        format: Format,
        host: Arc<HostFacts>,
    ) -> Result<Self> {
        let is_flock = format == Format::Flock;
        if is_flock && !name.is_path() {
            return Err(Error::Unsupported {
                format,
                what: "a path is needed, such as ./x.lock",
            });
        }
        if is_flock && !HAS_FLOCK {
            return Err(Error::Unsupported {
                format,
                what: "this system has no flock(1)",
            });
        }
        if name.directory().is_some_and(layout::is_shared_dir) {
            return Err(Error::InvalidName {
                name: name.as_str().to_owned(),
                reason: "a slot of a shared lock has no path of its own: use the name of the lock",
            });
        }
        // Absolute, so that it stays the same when the caller changes its directory.
        let (store, name) = match name.directory() {
            None => (default_store.to_owned(), name),
            Some(directory) => {
                let directory =
                    std::path::absolute(directory).context(Operation::FindDirectory, directory)?;
                let file = layout::file_name(&name);
                // A symlink may lead into a store, too.
                let resolved = || {
                    layout::has_lock_suffix(&file).then_some(())?;
                    let directory = std::fs::canonicalize(&directory).ok()?;
                    layout::lock_in_store(&directory, &file)
                };
                let in_store = || layout::lock_in_store(&directory, &file).or_else(resolved);
                // A file that flock(1) locks is what its path says, wherever it is.
                match (!is_flock).then(in_store).flatten() {
                    Some((store, name)) => (store, name),
                    None => (directory, name),
                }
            }
        };
        let files = Files {
            is_foreign_directory: name.is_path(),
            store,
            format,
            host,
        };
        Ok(Self {
            name,
            others: Vec::new(),
            store: AnyStore::Files(files),
            journal: journal.to_owned(),
        })
    }

    /// A name on etcd.
    #[cfg(feature = "etcd")]
    #[cold]
    #[inline(never)]
    pub(crate) fn on_etcd(name: LockName, store: AnyStore, journal: &Path) -> Result<Self> {
        let not_there = |what| Err(Error::NotOnEtcd { what });
        if name.is_path() {
            return not_there("a path is a file of this machine: use a name");
        }
        if name.as_str().split('/').count() > crate::etcd::MAX_SEGMENTS {
            return not_there("a name has at most 31 parts");
        }
        Ok(Self {
            name,
            others: Vec::new(),
            store,
            journal: journal.to_owned(),
        })
    }

    /// Together with another lock of the same store: all of them are taken at once or none is, as one
    /// hold with one number, which is released as a whole. What else is asked of this lock concerns its
    /// own name. A name that is there already changes nothing.
    ///
    /// ```no_run
    /// # fn main() -> onehold::Result<()> {
    /// use onehold::{LockName, Options, Wait};
    ///
    /// let both = onehold::lock("db")?.and(LockName::new("cache")?)?;
    /// let attempt = both.hold(&Options::new(), Wait::forever())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::NotTogether`]: one name includes the other, or a path is among them, which has no store.
    /// [`Error::Unsupported`]: other formats have no room for several names.
    pub fn and(mut self, name: LockName) -> Result<Self> {
        let other = self.sibling(name)?;
        let (Format::Native, Format::Native) = (self.format(), other.format()) else {
            return Err(Error::Unsupported {
                format: self.format(),
                what: "one lock at a time",
            });
        };
        let is_same_store = self.store.is_same_store(&other.store);
        if is_same_store && self.names().any(|name| *name == other.name) {
            return Ok(self);
        }
        for name in self.names() {
            let why = if name.is_path() || other.name.is_path() {
                "a path has no store"
            } else if !is_same_store {
                "they are in two stores"
            } else if name.is_ancestor_of(&other.name) {
                "the first includes the second"
            } else if other.name.is_ancestor_of(name) {
                "the second includes the first"
            } else {
                continue;
            };
            return Err(Error::NotTogether {
                one: name.as_str().to_owned(),
                other: other.name.as_str().to_owned(),
                why,
            });
        }
        self.others.push(other.name);
        Ok(self)
    }

    /// Another lock of its store.
    fn sibling(&self, name: LockName) -> Result<Self> {
        match &self.store {
            AnyStore::Files(files) => {
                let host = Arc::clone(&files.host);
                Self::new(name, &files.store, &self.journal, files.format, host)
            }
            #[cfg(feature = "etcd")]
            store @ AnyStore::Etcd(_) => Self::on_etcd(name, store.clone(), &self.journal),
        }
    }

    /// All names that it holds together.
    pub fn names(&self) -> impl Iterator<Item = &LockName> {
        std::iter::once(&self.name).chain(&self.others)
    }

    /// Its name. A path into a store is the name in that store.
    #[must_use]
    pub fn name(&self) -> &LockName {
        &self.name
    }

    pub(super) fn journal(&self) -> &Path {
        &self.journal
    }

    /// The format that a new hold of it has.
    #[must_use]
    pub fn format(&self) -> Format {
        self.store.format()
    }

    /// Whether its store is one of several machines, and not a directory.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.store.is_remote()
    }

    /// What only etcd tells of the hold that a status is about; `None`: it is a file.
    ///
    /// # Errors
    /// The store cannot be read.
    #[cfg(feature = "etcd")]
    pub fn store_facts(&self, status: &Status) -> Result<Option<crate::StoreFacts>> {
        let AnyStore::Etcd(etcd) = &self.store else {
            return Ok(None);
        };
        let key = Key {
            name: LockName::new(&status.name)?,
            index: status.slot,
        };
        etcd.facts(&key).map(Some)
    }

    /// Gives back the hold of a keeper that was killed, by the request that it has left. Whether it was still
    /// there.
    ///
    /// # Errors
    /// The store cannot be reached, or refuses.
    #[cfg(feature = "etcd")]
    #[doc(hidden)]
    pub fn give_back(&self, request: &[u8]) -> Result<bool> {
        match &self.store {
            AnyStore::Files(_) => Ok(false),
            AnyStore::Etcd(etcd) => etcd.give_back(request),
        }
    }

    /// Its file.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.store.path_of(&self.name)
    }

    /// What would keep a caller without an owner from taking the lock now: its holder, a parent's, a
    /// child's, or a waiter for which it is reserved. Changes nothing and does not block; the result
    /// may be outdated when it is returned. `max_age`: for holds that do not set their own; `None`:
    /// 24 h.
    ///
    /// # Errors
    /// The store or a lock file cannot be read.
    pub fn check(&self, max_age: Option<Duration>) -> Result<Status> {
        let mut options = Options::new();
        options.max_age = max_age;
        self.check_for(&options)
    }

    /// The same for a caller with these options. It asks the same decision as an attempt to take
    /// the lock.
    ///
    /// # Errors
    /// As for [`check`](Self::check).
    pub fn check_for(&self, options: &Options) -> Result<Status> {
        // Where nothing is, it does not matter from where it is seen: finding that out is most of a check.
        let mut request = self.request_of(options, Asker::Caller, None);
        loop {
            let looked = self.store.look(|snapshot| {
                let (mut status, judged) = match decide(&request, snapshot)? {
                    Decision::Take { mut put, remove } => {
                        let is_own = |judged: &Judged<_>| judged.found.key.name == self.name;
                        let replaced = put.pop().and_then(|(_, replaced)| replaced);
                        match replaced.or_else(|| remove.into_iter().find(is_own)) {
                            Some(replaced) => (self.status(&replaced), None),
                            None => (self.free(), None),
                        }
                    }
                    Decision::AlreadyHeld(judged)
                    | Decision::Blocked(judged)
                    | Decision::Refuse(judged, _)
                    | Decision::Wait(Obstacle::Hold(judged)) => {
                        (self.status(&judged), Some(judged))
                    }
                    Decision::Wait(Obstacle::Waiter(ticket)) => {
                        (self.reserved(&ticket, snapshot.waiter(&ticket)), None)
                    }
                };
                let mut others = self.others_than(&status, &request, snapshot)?;
                // Where a dead hold cannot be taken over it is in the way for good, and a live one beside
                // it still holds the lock.
                let live = others.iter_mut().find(|other| other.verdict.is_live());
                if let Some(live) = live.filter(|_| judged.is_some() && !status.verdict.is_live()) {
                    std::mem::swap(&mut status, live);
                }
                let waiters = snapshot.waiters(&self.name);
                let status = Status {
                    others,
                    waiters,
                    ..status
                };
                Ok((status, judged))
            })?;
            let Some((status, judged)) = looked else {
                return Ok(self.free());
            };
            match judged.filter(is_over) {
                Some(judged) => request.over.extend(hold_number(&judged)),
                None => return Ok(status),
            }
        }
    }

    /// The other holds of the lock that a status is about.
    fn others_than<S: Snapshot<Handle = Handle, Error = Error>>(
        &self,
        status: &Status,
        request: &Request,
        snapshot: &S,
    ) -> Result<Vec<Status>> {
        // Beside a live hold that is not shared there is no other.
        let is_reserved = status.verdict.reason == Reason::Reserved;
        if status.slot.is_none() && status.verdict.is_live() && !is_reserved {
            return Ok(Vec::new());
        }
        let name = LockName::new(&status.name)?;
        let found = snapshot.shared(&name)?;
        let others = found
            .into_iter()
            .filter(|found| self.store.path_of_record(&found.key) != status.path);
        let judged = others.map(|found| judge_found(request, snapshot, found));
        Ok(judged.map(|judged| self.status(&judged)).collect())
    }

    /// What the lock's own file says, whatever else may be in the way. Like
    /// [`check`](Self::check) otherwise.
    ///
    /// # Errors
    /// As for [`check`](Self::check).
    pub fn inspect(&self, max_age: Option<Duration>) -> Result<Status> {
        let mut options = Options::new();
        options.max_age = max_age;
        let mut request = self.request(&options, Asker::Caller);
        loop {
            let looked = self.store.look(|snapshot| {
                let holds = self.holds(&request, snapshot)?;
                Ok((holds, snapshot.waiters(&self.name)))
            })?;
            let Some((holds, waiters)) = looked else {
                return Ok(self.free());
            };
            if let Some(over) = holds.iter().find(|own| is_over(own)) {
                request.over.extend(hold_number(over));
                continue;
            }
            let mut holds = holds.iter().map(|own| self.status(own));
            let first = holds.next().unwrap_or_else(|| self.free());
            return Ok(Status {
                others: holds.collect(),
                waiters,
                ..first
            });
        }
    }

    /// Holds the lock for as long as the returned value lives, by this process. Threads exclude each
    /// other like processes do.
    ///
    /// # Errors
    /// The store cannot be used, or the file is not a lock file.
    pub fn hold(&self, options: &Options, wait: Wait<'_>) -> Result<Attempt<Hold>> {
        self.hold_by(options, NewHolder::ThisProcess, wait)
    }

    /// Holds it for a command, to be started by [`Hold::spawn`] or [`Hold::exec`].
    ///
    /// # Errors
    /// As for [`hold`](Self::hold).
    pub fn hold_for_command(
        &self,
        options: &Options,
        run: RunOptions,
        wait: Wait<'_>,
    ) -> Result<Attempt<Hold>> {
        self.hold_by(options, NewHolder::Run(run), wait)
    }

    fn hold_by(
        &self,
        options: &Options,
        holder: NewHolder,
        wait: Wait<'_>,
    ) -> Result<Attempt<Hold>> {
        Ok(match self.take(options, holder, wait)? {
            Taken::Held(taken) => Attempt::Held(Hold::new(taken)),
            Taken::Blocked(blocked) => Attempt::Blocked(blocked),
            // Only detached holds are repeated.
            Taken::AlreadyHeld(status) => Attempt::Blocked(Blocked {
                status,
                waited: None,
            }),
        })
    }

    /// Acquires it for another process, or as a lease. Nothing is held until the result is
    /// [confirmed](PendingHold::confirm).
    ///
    /// # Errors
    /// As for [`hold`](Self::hold).
    pub fn acquire(
        &self,
        options: &Options,
        holder: Holder,
        wait: Wait<'_>,
    ) -> Result<Attempt<Acquired>> {
        Ok(
            match self.take(options, NewHolder::Detached(holder), wait)? {
                Taken::Held(taken) => {
                    Attempt::Held(Acquired::New(Box::new(PendingHold::new(taken, holder))))
                }
                Taken::AlreadyHeld(status) => Attempt::Held(Acquired::AlreadyHeld(status)),
                Taken::Blocked(blocked) => Attempt::Blocked(blocked),
            },
        )
    }

    fn take(&self, options: &Options, holder: NewHolder, mut wait: Wait<'_>) -> Result<Taken> {
        options.check_lengths()?;
        let options = options.clone().check_format(
            self.format(),
            &self.name,
            holder.detached(),
            holder.run(),
        )?;
        #[cfg(feature = "etcd")]
        let options = if self.store.is_remote() {
            options.check_remote(holder.detached(), holder.run())?
        } else {
            options
        };
        // Gathered before the guard: reading another process's memory can block.
        let draft = self.draft(&options, holder);
        let request = self.request(&options, holder.asker());
        let unfinished = Unfinished::default();
        let callbacks = Callbacks {
            finish: &|judged| self.finish(judged, &unfinished),
            extend: &|record| self.extended(record, options.ttl),
            ensure_alive: &|| holder.ensure_alive(),
            status: &|obstacle| self.obstacle_status(obstacle),
        };
        match take(&self.store, request, &draft, &mut wait, &callbacks)? {
            Outcome::Held(held) => Ok(Taken::Held(Box::new(self.held(*held, &wait)))),
            Outcome::AlreadyHeld(judged) => {
                let mut status = self.rejudged(judged);
                status.waiters = self.store.waiters(&self.name)?;
                Ok(Taken::AlreadyHeld(Box::new(status)))
            }
            Outcome::NotALock(key, what) => Err(self.not_a_lock(&key, what)),
            Outcome::Blocked(obstacle) => {
                let mut status = self.obstacle_status(&obstacle);
                if status.slot.is_some() {
                    let request = self.request(&options, holder.asker());
                    let looked = self
                        .store
                        .look(|snapshot| self.others_than(&status, &request, snapshot))?;
                    status.others = looked.unwrap_or_default();
                }
                status.waiters = self.store.waiters(&self.name).unwrap_or_default();
                Ok(Taken::Blocked(Blocked {
                    status: Box::new(status),
                    waited: wait.waited(),
                }))
            }
        }
    }

    /// Writes the displaced and removed holds to the journal, and returns the new hold.
    fn held(&self, held: Held<AnyStore>, wait: &Wait<'_>) -> TakenHold {
        let mut warnings = Vec::new();
        let mut displaced = held.displaced;
        for judged in held.removed {
            // Of those that shared it, each was to be replaced.
            if judged.verdict.is_live() {
                displaced.push(judged);
                continue;
            }
            let was = self.status(&judged);
            let written = journal::write(&self.journal, Action::Cleanup, &was, None);
            journal::warn(&mut warnings, written);
        }
        let displaced: Vec<Status> = displaced.iter().map(|judged| self.status(judged)).collect();
        for was in &displaced {
            let action = match was.verdict.state {
                State::Zombie => Some(Action::Takeover),
                State::Held | State::Overdue => Some(Action::Break),
                State::Free | State::NotALock => None,
            };
            if let Some(action) = action {
                let number = Some(held.hold.record().hold);
                let written = journal::write(&self.journal, action, was, number);
                journal::warn(&mut warnings, written);
            }
        }
        TakenHold {
            store: self.store.clone(),
            name: self.name.clone(),
            held: held.hold,
            displaced,
            waited: wait.waited(),
            place: held.place,
            _watch: held.sleeper.and_then(AnySleeper::into_watch),
            warnings,
        }
    }

    /// Releases a hold of `caller`.
    ///
    /// # Errors
    /// The store cannot be used, or the file is not a lock file.
    pub fn release(&self, caller: &Caller) -> Result<Release> {
        self.ensure_record()?;
        let mut request = self.request(&Options::new(), Asker::Caller);
        loop {
            let Tried { may, own, was_lost } = self.try_release(caller, &request)?;
            let Some(own) = own else {
                return Ok(Release::Free);
            };
            if may != MayRelease::Remove && Self::notes_end(&own, &mut request) {
                continue;
            }
            let status = Box::new(self.status(&own));
            return Ok(match may {
                MayRelease::Remove if status.verdict.state == State::Free => Release::Free,
                MayRelease::Remove if was_lost => Release::Lost(status),
                MayRelease::Remove => Release::Done(status),
                MayRelease::Free => Release::Free,
                MayRelease::NotYours => Release::NotYours(status),
                MayRelease::HeldByRun => Release::HeldByRun(status),
                MayRelease::Unconfirmed => {
                    self.wait_until_confirmed(&own);
                    continue;
                }
            });
        }
    }

    fn try_release(&self, caller: &Caller, request: &Request) -> Result<Tried> {
        let updated = self.store.update(EXISTING, AsWaiter::NONE, |snapshot| {
            let holds = self.holds(request, snapshot)?;
            let holds = holds
                .into_iter()
                .map(|own| (may_release(caller, &own, snapshot), own));
            let Some((may, own)) = first_by(holds, |may, own| match (may, own.verdict.state) {
                (MayRelease::Remove, State::Held | State::Overdue) => 0,
                (MayRelease::Unconfirmed, _) => 1,
                (MayRelease::HeldByRun, _) => 2,
                (MayRelease::NotYours, _) => 3,
                (MayRelease::Remove, _) => 4,
                (MayRelease::Free, _) => 5,
            }) else {
                return Ok((Change::Nothing, Tried::FREE));
            };
            self.ensure_lock(&own)?;
            let (change, was_lost) = match may {
                MayRelease::Remove => (Change::Remove(own.clone()), is_lost(&own, snapshot)?),
                _ => (Change::Nothing, false),
            };
            let own = Some(own);
            Ok((change, Tried { may, own, was_lost }))
        })?;
        Ok(updated.map_or(Tried::FREE, |updated| updated.answer))
    }

    /// Extends a lease, or restarts the age of another detached hold; `ttl` changes its time to live.
    /// An expired lease can be renewed as long as it could be acquired.
    ///
    /// # Errors
    /// The store cannot be used, or the file is not a lock file.
    pub fn renew(&self, caller: &Caller, ttl: Option<Duration>) -> Result<Renewal> {
        self.ensure_record()?;
        #[cfg(feature = "etcd")]
        if let Some(ttl) = ttl.filter(|_| self.store.is_remote()) {
            let _ = Options::new()
                .ttl(ttl)
                .check_remote(Some(Holder::Lease), RunOptions::default())?;
        }
        loop {
            let (may, Some(own)) = self.try_renew(caller, ttl)? else {
                return Ok(Renewal::Nothing(Box::new(self.free())));
            };
            let status = Box::new(self.status(&own));
            return Ok(match may {
                MayRenew::Renew => {
                    let now = self.inspect(None)?;
                    let renewed = status.hold().and_then(|hold| now.clone().of_hold(hold));
                    Renewal::Done(Box::new(renewed.unwrap_or(now)))
                }
                MayRenew::Nothing => Renewal::Nothing(status),
                MayRenew::Lost => Renewal::Lost(status),
                MayRenew::NotYours => Renewal::NotYours(status),
                MayRenew::HeldByRun => Renewal::HeldByRun(status),
                MayRenew::Unconfirmed => {
                    self.wait_until_confirmed(&own);
                    continue;
                }
            });
        }
    }

    /// What was decided about a renewal and done, and the record it was about.
    fn try_renew(
        &self,
        caller: &Caller,
        ttl: Option<Duration>,
    ) -> Result<(MayRenew, Option<Judged<Handle>>)> {
        let request = self.request(&Options::new(), Asker::Caller);
        let updated = self.store.update(EXISTING, AsWaiter::NONE, |snapshot| {
            let mut holds = Vec::new();
            for own in self.holds(&request, snapshot)? {
                self.ensure_lock(&own)?;
                let may = may_renew(caller, &own, &request, snapshot)?;
                holds.push((may, own));
            }
            let Some((may, own)) = first_by(holds, |may, _| match may {
                MayRenew::Renew => 0,
                MayRenew::Unconfirmed => 1,
                MayRenew::HeldByRun | MayRenew::Lost => 2,
                MayRenew::NotYours => 3,
                MayRenew::Nothing => 4,
            }) else {
                return Ok((Change::Nothing, (MayRenew::Nothing, None)));
            };
            let change = match (may, own.record()) {
                (MayRenew::Renew, Some(record)) => {
                    check_memory_ttl(record, ttl)?;
                    Change::Renew(own.clone(), Box::new(renewed(&self.store, record, ttl)))
                }
                _ => Change::Nothing,
            };
            Ok((change, (may, Some(own))))
        })?;
        Ok(updated.map_or((MayRenew::Nothing, None), |updated| updated.answer))
    }

    /// Waits until the process that acquires a hold confirms it, or ends, or has had its time for that.
    pub(super) fn wait_until_confirmed(&self, judged: &Judged<Handle>) {
        let Some(left) = judged.confirmed_within() else {
            return;
        };
        let limit = SleepLimit {
            at_most: left,
            canceled: None,
        };
        let shown = &judged.found.revision;
        let is_unchanged = || {
            let now = self.look_shown(shown);
            matches!(now, Ok(Some(now)) if now.confirmed_within().is_some())
        };
        let mut sleeper = self.store.sleeper(CONFIRMATION_PACE, Mode::Exclusive);
        let until = Until::Released(judged.clone());
        self.store
            .sleep(&mut sleeper, None, &until, limit, is_unchanged);
    }

    /// The same status, for a path that is meant for this lock alone: a file that is not a lock file
    /// counts as a damaged one, and as incomplete while its program may still be writing it.
    /// `moves_aside`: whether the caller moves a damaged one aside unasked when it acquires the lock.
    #[must_use]
    pub fn at_own_place(mut status: Status, moves_aside: bool) -> Status {
        let Reason::NotALock(what) = status.verdict.reason else {
            return status;
        };
        // No program writes its lock into a directory or a device.
        let Some(modified) = status.modified else {
            return status;
        };
        let (state, reason) = if is_unchanged(modified, Utc::now()) {
            (State::Zombie, Reason::Malformed(what))
        } else {
            (State::Held, Reason::Incomplete)
        };
        status.verdict = Verdict::new(state, reason, Evidence::Clock);
        status.is_moved_aside = moves_aside;
        status
    }

    /// Moves a file that is not a lock file aside, in its directory, so that the lock can be taken. It
    /// is never removed. `None`: it is not a regular file, or has become a lock file, or it changed
    /// less than 10 s ago, so that its program may still be writing it.
    ///
    /// # Errors
    /// The store cannot be used, or the file cannot be renamed.
    pub fn move_aside(&self) -> Result<Option<MovedAside>> {
        self.ensure_record()?;
        let was = self.inspect(None)?;
        let Some(to) = self.store.move_aside(&self.name, EXISTING)? else {
            return Ok(None);
        };
        let mut warnings = Vec::new();
        let written = journal::write(&self.journal, Action::Break, &was, None);
        journal::warn(&mut warnings, written);
        Ok(Some(MovedAside { to, warnings }))
    }

    /// Removes what is left of a finished or dead hold; `None`: there is nothing to remove.
    pub(super) fn remove_zombie(
        &self,
        shown: Option<&Revision>,
        max_age: Option<Duration>,
    ) -> Result<Option<CleanedUp>> {
        let Some(shown) = shown else {
            return Ok(None);
        };
        let mut options = Options::new();
        options.max_age = max_age;
        let mut request = self.request(&options, Asker::Caller);
        let own = loop {
            let updated = self.store.update(EXISTING, AsWaiter::NONE, |snapshot| {
                let own = self.shown(&request, snapshot, shown)?;
                let takeover_is_safe = snapshot.takeover_is_safe();
                let may_remove =
                    |own: &Judged<Handle>| may_clean_up(&own.verdict, takeover_is_safe);
                Ok(match own {
                    Some(own) if may_remove(&own) => {
                        (Change::Remove(own.clone()), Some((true, own)))
                    }
                    own => (Change::Nothing, own.map(|own| (false, own))),
                })
            })?;
            match updated.and_then(|updated| updated.answer) {
                Some((true, own)) => break own,
                Some((false, own)) if Self::notes_end(&own, &mut request) => {}
                _ => return Ok(None),
            }
        };
        let was = Box::new(self.status(&own));
        let mut warnings = Vec::new();
        if was.verdict.state == State::Zombie {
            let written = journal::write(&self.journal, Action::Cleanup, &was, None);
            journal::warn(&mut warnings, written);
        }
        Ok(Some(CleanedUp { was, warnings }))
    }

    /// What [`Store::cleanup`](crate::Store::cleanup) does, for this lock alone.
    ///
    /// # Errors
    /// The lock file cannot be read. What could not be removed is in the result.
    pub fn cleanup(&self, dry_run: bool, max_age: Option<Duration>) -> Result<Cleanup> {
        let mut cleanup = Cleanup::default();
        let status = self.inspect(max_age)?;
        let holds = status.all_holds();
        for hold in holds.filter(|hold| hold.verdict.reason != Reason::NoFile) {
            let remove = || self.remove_zombie(hold.revision.as_ref(), max_age);
            cleanup.add(hold.clone(), dry_run, remove);
        }
        Ok(cleanup)
    }

    /// Notes in `request` if nothing is left of a hold whose work was being ended by a process that is
    /// gone. Returns whether it did, so that the decision is another one now.
    fn notes_end(own: &Judged<Handle>, request: &mut Request) -> bool {
        let is_over = is_over(own);
        if is_over {
            request.over.extend(hold_number(own));
        }
        is_over
    }

    fn finish(&self, judged: &Judged<Handle>, unfinished: &Unfinished) -> bool {
        let finished = finish(judged, unfinished);
        if finished.is_told && !finished.is_over {
            self.note_told(judged);
        }
        finished.is_over
    }

    /// The lock's own records, judged: the exclusive one first.
    pub(super) fn holds<S: Snapshot<Handle = Handle, Error = Error>>(
        &self,
        request: &Request,
        snapshot: &S,
    ) -> Result<Vec<Judged<Handle>>> {
        let judge = |found| judge_found(request, snapshot, found);
        let mut holds: Vec<_> = snapshot
            .exclusive(&self.name)?
            .into_iter()
            .map(judge)
            .collect();
        // Beside a live one there is no other.
        if !holds.iter().any(|own| own.verdict.is_live()) {
            holds.extend(snapshot.shared(&self.name)?.into_iter().map(judge));
        }
        Ok(holds)
    }

    /// A kernel lock without a record belongs to its process alone.
    pub(super) fn ensure_record(&self) -> Result<()> {
        match self.format() {
            format @ Format::Flock => Err(Error::Unsupported {
                format,
                what: "a kernel lock ends with its process",
            }),
            _ => Ok(()),
        }
    }

    fn ensure_lock(&self, own: &Judged<Handle>) -> Result<()> {
        match own.verdict.reason {
            Reason::NotALock(what) => Err(self.not_a_lock(&own.found.key, what)),
            _ => Ok(()),
        }
    }

    pub(super) fn request(&self, options: &Options, asker: Asker) -> Request {
        self.request_of(options, asker, Some(self.store.host().observer().clone()))
    }

    fn request_of(&self, options: &Options, asker: Asker, observer: Option<Observer>) -> Request {
        Request {
            wants: self
                .names()
                .map(|name| Want {
                    name: name.clone(),
                    mode: options.mode,
                })
                .collect(),
            owner: options.owner.clone(),
            inside: options.inside.clone(),
            asker,
            max_age_ms: milliseconds(options.max_age.unwrap_or(DEFAULT_MAX_AGE)),
            take_zombies: !options.refuse_zombies,
            replace: options.replace.clone(),
            skip_queue: options.skip_queue,
            ticket: None,
            over: Vec::new(),
            observer,
        }
    }

    fn draft(&self, options: &Options, holder: NewHolder) -> Draft {
        let now = Utc::now().trunc_subsecs(6);
        let own = own_pid_or_wrapper();
        let mut record = Record::new(self.format(), Some(own), now);
        let run = holder.run();
        self.name.as_str().clone_into(&mut record.name);
        if !self.others.is_empty() {
            record.names = self.names().map(|name| name.as_str().to_owned()).collect();
        }
        record.mode = options.mode;
        record.kind = match holder {
            NewHolder::Run(_) => Kind::Run,
            NewHolder::Detached(Holder::Lease) => Kind::Lease,
            NewHolder::ThisProcess | NewHolder::Detached(_) => Kind::Process,
        };
        record
            .hostname
            .clone_from(&self.store.host().observer().hostname);
        record.owner.clone_from(&options.owner);
        record.message.clone_from(&options.message);
        record.command = cut_command(holder.command_line(&options.command));
        record.ttl_ms = options.ttl.map(milliseconds);
        record.max_age_ms = options.max_age.map(milliseconds);
        record.close = run.close || (record.kind == Kind::Run && !COMMANDS_INHERIT_LOCKS);
        record.exec = run.exec;
        record.supervised = run.supervised;
        record.kill_after_ms = run.kill_after.map(milliseconds);
        record.kernel_lock =
            holder.detached().is_none() && !(self.store.is_remote() && record.kind == Kind::Run);
        if let NewHolder::Detached(Holder::Caller { parent, .. }) = holder {
            record.caller = Some(parent);
        }
        let follows = holder.detached().and_then(Holder::process_id);
        if self.format() != Format::Native {
            record.visible = Some(follows.map_or(own, |process| process.pid));
        }
        if run.exec || matches!(holder, NewHolder::ThisProcess) {
            // The process that keeps it is known from the beginning.
            record.live.pid = Some(own);
            record.live.start = self.store.host().own_start();
        }
        Draft { record }
    }

    /// What a repeated request of the same holder writes: the time to live that it asks for, unless
    /// the hold lasts longer already.
    fn extended(&self, record: &Record, ttl: Option<Duration>) -> Option<Live> {
        let ttl = ttl?;
        let asked = Utc::now().checked_add_signed(TimeDelta::from_std(ttl).ok()?)?;
        let lasts_longer = match (record.ttl(), record.live.expires_at) {
            (None, _) => true,
            (Some(_), Some(expires)) => expires >= asked,
            (Some(_), None) => false,
        };
        (!lasts_longer).then(|| renewed(&self.store, record, Some(ttl)))
    }

    /// The status after a change of the record that was made by ourselves.
    fn rejudged(&self, judged: Judged<Handle>) -> Status {
        let verdict = judge(
            &judged.found.content,
            &judged.found.facts,
            self.store.host().observer(),
            DEFAULT_MAX_AGE,
            &observer::now(),
        );
        self.status(&Judged { verdict, ..judged })
    }

    /// The public description of a record.
    pub(super) fn status(&self, judged: &Judged<Handle>) -> Status {
        status(&self.store, judged)
    }

    fn obstacle_status(&self, obstacle: &Obstacle<Handle>) -> Status {
        match obstacle {
            Obstacle::Hold(judged) => self.status(judged),
            Obstacle::Waiter(ticket) => self.reserved(ticket, self.store.waiter(ticket)),
        }
    }

    /// A lock that is reserved for the waiter with this ticket.
    fn reserved(&self, ticket: &Ticket<Handle>, waiter: Option<Waiter>) -> Status {
        let name = ticket.request.wants.first().map(|want| &want.name);
        let free = free(&self.store, name.unwrap_or(&self.name));
        match waiter {
            Some(waiter) => free.reserved_for(&waiter),
            None => free,
        }
    }

    fn free(&self) -> Status {
        free(&self.store, &self.name)
    }

    fn not_a_lock(&self, key: &Key, what: &'static str) -> Error {
        Error::NotALock {
            path: self.store.path_of_record(key),
            what,
        }
    }
}

/// The process that others see as the holder: of a keeper its wrapper.
fn own_pid_or_wrapper() -> Pid {
    #[cfg(feature = "etcd")]
    if let Some(wrapper) = crate::sys::keeper::wrapper() {
        return wrapper;
    }
    process::own_pid()
}

pub(super) const EXISTING: Entry<'static> = Entry {
    create: false,
    patience: Patience::SHORT,
    mode: Mode::Exclusive,
};

/// The hold with the lowest rank; of several the latest.
fn first_by<M>(
    holds: impl IntoIterator<Item = (M, Judged<Handle>)>,
    rank: impl Fn(&M, &Judged<Handle>) -> u8,
) -> Option<(M, Judged<Handle>)> {
    holds
        .into_iter()
        .min_by_key(|(may, own)| (rank(may, own), Reverse(hold_number(own))))
}

/// What was decided about a release and done.
struct Tried {
    may: MayRelease,
    /// The record that it was about.
    own: Option<Judged<Handle>>,
    /// Its hold had lost one of its locks.
    was_lost: bool,
}

impl Tried {
    const FREE: Self = Self {
        may: MayRelease::Free,
        own: None,
        was_lost: false,
    };
}

/// What became of an attempt.
enum Taken {
    Held(Box<TakenHold>),
    AlreadyHeld(Box<Status>),
    Blocked(Blocked),
}

pub(super) fn status(store: &AnyStore, judged: &Judged<Handle>) -> Status {
    let is_kernel_lock = judged.found.content == Content::KernelLock;
    // Neither can be replaced.
    let is_record = judged.verdict.state != State::NotALock && !is_kernel_lock;
    let Key { name, index } = &judged.found.key;
    // The readers of flock(1) share one file and have no slots.
    let slot = index.filter(|_| !is_kernel_lock);
    let key = Key {
        name: name.clone(),
        index: slot,
    };
    let lockers = &judged.found.facts.lockers;
    let lockers: Vec<Locker> = lockers.iter().copied().filter_map(locker).collect();
    // Who made a file need not be who has locked it.
    let uid = if is_kernel_lock || judged.verdict.reason == Reason::Locked {
        lockers.first().and_then(|locker| locker.uid)
    } else {
        let open = judged.found.handle.as_ref().filter(|_| is_record);
        open.and_then(|open| open.owner())
    };
    Status {
        name: name.as_str().to_owned(),
        path: store.path_of_record(&key),
        store: store.path(),
        is_remote: store.is_remote(),
        format: store.format(),
        record: judged.record().cloned(),
        verdict: judged.verdict.clone(),
        slot: key.slot(),
        others: Vec::new(),
        lockers,
        uid,
        waiters: Vec::new(),
        can_take_over: judged.found.facts.shares_kernel_locks,
        revision: is_record.then(|| judged.found.revision.clone()),
        modified: (judged.verdict.state == State::NotALock && judged.found.handle.is_some())
            .then_some(judged.found.facts.modified),
        is_moved_aside: false,
    }
}

/// `None`: it has ended meanwhile.
fn locker(pid: Pid) -> Option<Locker> {
    let uid = process::user_of(pid)?;
    let command = command_line_of(pid);
    // Last: what has no start has ended by now, and the rest may be missing.
    let began = process::milliseconds_of_start(process::start_ticks(pid)?);
    let now = i64::try_from(process::boottime_milliseconds()).unwrap_or(i64::MAX);
    let ago = began.and_then(|began| TimeDelta::try_milliseconds(now.saturating_sub(began)));
    Some(Locker {
        pid,
        command,
        uid: Some(uid),
        user: Some(process::user_name(uid)),
        started: ago.and_then(|ago| Utc::now().checked_sub_signed(ago)),
    })
}

/// The number of a hold, if it has one.
pub(super) fn hold_number<H>(judged: &Judged<H>) -> Option<u64> {
    judged.record().map(|record| record.hold)
}

pub(super) fn free(store: &AnyStore, name: &LockName) -> Status {
    Status {
        name: name.as_str().to_owned(),
        path: store.path_of(name),
        store: store.path(),
        is_remote: store.is_remote(),
        format: store.format(),
        record: None,
        verdict: Verdict::new(State::Free, Reason::NoFile, Evidence::None),
        slot: None,
        others: Vec::new(),
        lockers: Vec::new(),
        uid: None,
        waiters: Vec::new(),
        can_take_over: true,
        revision: None,
        modified: None,
        is_moved_aside: false,
    }
}

fn check_memory_ttl(record: &Record, ttl: Option<Duration>) -> Result<()> {
    if record.format == Format::Memory && ttl.is_some_and(|ttl| ttl > MEMORY_TTL) {
        return Err(Error::Unsupported {
            format: Format::Memory,
            what: MEMORY_TTL_LIMIT,
        });
    }
    Ok(())
}

impl NewHolder {
    fn detached(self) -> Option<Holder> {
        match self {
            Self::Detached(holder) => Some(holder),
            Self::ThisProcess | Self::Run(_) => None,
        }
    }

    fn run(self) -> RunOptions {
        match self {
            Self::Run(run) => run,
            Self::ThisProcess | Self::Detached(_) => RunOptions::default(),
        }
    }

    fn asker(self) -> Asker {
        match self {
            Self::ThisProcess | Self::Run(_) => Asker::Caller,
            Self::Detached(Holder::Process(process)) => Asker::Process(process),
            Self::Detached(Holder::Caller { .. }) => Asker::Derived,
            Self::Detached(Holder::Lease) => Asker::Lease,
        }
    }

    fn command_line(self, given: &[String]) -> Vec<String> {
        if !given.is_empty() {
            return given.to_vec();
        }
        match self {
            Self::Detached(holder) => holder
                .process_id()
                .map(|process| command_line_of(process.pid))
                .unwrap_or_default(),
            Self::ThisProcess => command_line_of(Pid::of_self()),
            Self::Run(_) => Vec::new(),
        }
    }

    /// A wait can last longer than the process that it is for.
    fn ensure_alive(self) -> Result<()> {
        match self.detached().and_then(Holder::process_id) {
            Some(process) if has_ended(process) => Err(Error::NoSuchProcess {
                pid: process.pid.get(),
            }),
            _ => Ok(()),
        }
    }
}
