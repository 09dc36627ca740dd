//! A directory of locks: what is in it, and what may be removed from it.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::cleanup::{Cleanup, sleep_until_ripe};
use super::lock::Lock;
use super::unfinished::is_over;
use super::{journal, status};
use crate::backend::{Backend, ChangeWatch, Patience, sleep_for};
use crate::decision::Judged;
use crate::decision::liveness::DEFAULT_MAX_AGE;
use crate::decision::ownership::may_clean_up;
use crate::error::{Error, Result};
use crate::files::Files;
use crate::files::journal::{Journal, ROTATE_AT};
use crate::flock::Flock;
use crate::identity::Pid;
use crate::journal_line::PastHold;
use crate::name::LockName;
use crate::observer::HostFacts;
use crate::record::{Content, Format};
use crate::status::Status;

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
#[must_use]
pub struct Store {
    pub(super) journal: Journal,
    pub(super) store: Arc<dyn Backend>,
    /// Its directory, or its URL.
    path: PathBuf,
}

/// Waits for changes of a store, see [`Store::watch`].
#[derive(Debug)]
pub struct StoreWatch {
    store: Arc<dyn Backend>,
    watch: Option<Box<dyn ChangeWatch>>,
}

/// How often to look where nothing wakes.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

impl StoreWatch {
    /// Sleeps until something about the locks may have changed since the last call, or until one of these processes
    /// has ended, for at most so long. It may wake without a change. The first call returns at once, since it only
    /// begins to watch. Where nothing reports changes, such as those of other hosts on NFS, it wakes once a second.
    pub fn wait(&mut self, processes: &[Pid], at_most: Duration) {
        if self.watch.is_none() {
            self.watch = self.store.watch();
            if self.watch.is_some() {
                return;
            }
        }
        match &mut self.watch {
            Some(watch) => watch.wait(processes, at_most),
            None => sleep_for(Patience::of(at_most.min(LOOK_INTERVAL))),
        }
    }
}

/// The locks of a store.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Listing {
    /// Sorted by name.
    pub locks: Vec<Status>,
    /// Errors: what could not be read.
    pub errors: Vec<Error>,
    /// Errors for which no lock is missing.
    pub warnings: Vec<Error>,
}

impl Store {
    /// A store; nothing is touched. The directory is made, with mode 0700, when the first lock is
    /// taken.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        // Absolute, so that it stays the same when the caller changes its directory.
        let directory = directory.into();
        let directory = std::path::absolute(&directory).unwrap_or(directory);
        Self {
            journal: journal_in(directory.clone()),
            path: directory.clone(),
            store: in_directory(directory, Format::Native, Arc::default()),
        }
    }

    /// A store on etcd: `etcd://HOST:PORT,HOST:PORT/PREFIX`, or `etcds://` for TLS. Nothing is sent. Without
    /// a prefix it is `/onehold`; without hosts they are those of `access`.
    ///
    /// A hold of this process is kept by a thread of it. What it is worth is until
    /// [`Hold::valid_until`](crate::Hold::valid_until): a process that has been stopped, or cut off from the
    /// cluster, must stop its own work by then.
    ///
    /// # Errors
    /// [`Error::InvalidStore`], and certificates that cannot be read.
    #[cfg(feature = "etcd")]
    #[cold]
    #[inline(never)]
    pub fn on_etcd(url: &str, access: &crate::cluster::EtcdAccess) -> Result<Self> {
        Ok(Self::on_server(crate::cluster::Cluster::on_etcd(
            url, access,
        )?))
    }

    /// A store on PostgreSQL: `postgres://USER@HOST:PORT,HOST:PORT/DATABASE/PREFIX`. Nothing is sent. Without a prefix it
    /// is `/onehold`; other parts that are missing are those of `access`. The database needs a schema, which
    /// `onehold doctor --create` makes.
    ///
    /// A hold of this process is kept as one [on etcd](Self::on_etcd).
    ///
    /// # Errors
    /// [`Error::InvalidStore`].
    #[cfg(feature = "postgres")]
    #[cold]
    #[inline(never)]
    pub fn on_postgres(url: &str, access: &crate::cluster::PostgresAccess) -> Result<Self> {
        Ok(Self::on_server(crate::cluster::Cluster::on_postgres(
            url, access,
        )?))
    }

    #[cfg(feature = "cluster")]
    fn on_server(cluster: crate::cluster::Cluster) -> Self {
        let path = PathBuf::from(cluster.url());
        // Without a home directory nothing is noted: a warning says so when there is something.
        let journal = Self::of_user();
        let journal = journal.map_or_else(|_| journal_in(PathBuf::new()), |store| store.journal);
        Self {
            journal,
            path,
            store: Arc::new(cluster),
        }
    }

    /// The store that the command line uses by default: `~/.local/state/onehold`, on Windows
    /// `%LOCALAPPDATA%\\onehold`. Without the variable HOME, the home directory is that of the user database.
    /// The configuration file and the variables of the command line are not read.
    ///
    /// # Errors
    /// [`Error::NoHome`].
    pub fn of_user() -> Result<Self> {
        #[cfg(windows)]
        if let Some(data) = std::env::var_os("LOCALAPPDATA").filter(|data| !data.is_empty()) {
            return Ok(Self::at(PathBuf::from(data).join("onehold")));
        }
        let home = std::env::home_dir().filter(|home| home.is_absolute());
        let home = home.ok_or(Error::NoHome)?;
        Ok(Self::at(home.join(".local/state/onehold")))
    }

    /// The format of new lock files. Files of every other format are read as well, except bare
    /// numbers, which only [`Format::Pid`] expects.
    pub fn format(mut self, format: Format) -> Self {
        if !self.is_remote() {
            let host = Arc::clone(self.store.host());
            self.store = in_directory(self.path.clone(), format, host);
        }
        self
    }

    /// The name of the instance that this process belongs to: a pod of a StatefulSet, a service of compose. The
    /// caller says by it that there is **at most one instance of this name at a time**. A hold that was taken under
    /// the same name before the instance was restarted is then dead. Has no effect on etcd, where leases decide.
    pub fn instance(mut self, name: impl Into<String>) -> Self {
        if !self.is_remote() {
            let host = Arc::new(HostFacts::of_instance(name.into()));
            self.store = in_directory(self.path.clone(), self.store.format(), host);
        }
        self
    }

    /// The store whose journal gets the lines of this one: for directories of other programs.
    pub fn journal_in(mut self, store: &Self) -> Self {
        self.journal.clone_from(&store.journal);
        self
    }

    /// The size in bytes from which its journal is moved to `events.jsonl.1`, and a new one begun: 1 MiB by
    /// default. 0: nothing is noted. Does not bound what a store of several machines keeps itself.
    pub fn journal_size(mut self, bytes: u64) -> Self {
        self.journal.rotate_at = bytes;
        self
    }

    /// The holds of this store that have ended, of those that were asked for with
    /// [`Options::history`](crate::Options::history), the oldest first, as far as the journal reaches back. A store of
    /// several machines keeps those of all of them, bounded in number for each lock and in all.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn history(&self) -> Result<Vec<PastHold>> {
        journal::of_store(&*self.store, &self.journal, false)
    }

    /// The holds that have ended since the journal was last moved: counts of them only grow until they restart. In a
    /// store of several machines, where a new one may replace the oldest, they are those of [`history`](Self::history).
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn recent_history(&self) -> Result<Vec<PastHold>> {
        journal::of_store(&*self.store, &self.journal, true)
    }

    /// Waits for changes of the store.
    pub fn watch(&self) -> StoreWatch {
        StoreWatch {
            store: Arc::clone(&self.store),
            watch: None,
        }
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is a store of several machines, and not a directory.
    pub fn is_remote(&self) -> bool {
        self.store.is_remote()
    }

    /// Calls this, at most once, if no server of a store of several machines has answered for about a second: with
    /// what each of them says, and for how long they are tried in all. Not for a caller that waits for locks.
    #[cfg(feature = "cluster")]
    pub fn on_silence(&self, tell: fn(&str, Duration)) {
        self.store.on_silence(tell);
    }

    /// A lock of this store, or the one at a path. A path that leads into a store is the lock of that
    /// store.
    ///
    /// # Errors
    /// The current directory, where a relative path starts, cannot be found.
    pub fn lock(&self, name: LockName) -> Result<Lock> {
        Lock::new(name, &self.store, &self.journal)
    }

    /// All locks of the store, judged like [`Lock::inspect`] does, and the free ones that have
    /// waiters. A lock that is taken or released meanwhile may be missing or not. `max_age`: for holds
    /// that do not set their own; `None`: 24 h.
    ///
    /// # Errors
    /// The store cannot be read. What cannot be read in it is in the result.
    pub fn list(&self, max_age: Option<Duration>) -> Result<Listing> {
        let mut locks = Vec::new();
        let max_age = max_age.unwrap_or(DEFAULT_MAX_AGE);
        let observer = self.store.host().observer();
        let errors = self.store.list(&mut |now, found| {
            let mut judged = Judged::by(observer, found, max_age, &now);
            if is_over(&judged) {
                judged.found.facts.is_over = true;
                judged = Judged::by(observer, judged.found, max_age, &now);
            }
            let mut status = status::without_record(&*self.store, &judged);
            if let Content::Record(record) = judged.found.content {
                status.record = Some(*record);
            }
            locks.push(status);
        })?;
        let is_harmless = |error: &Error| matches!(error, Error::TooDeep { .. });
        let (warnings, errors) = errors.into_iter().partition(is_harmless);
        let mut listing = Listing {
            locks,
            errors,
            warnings,
        };
        sort(&mut listing);
        self.add_waiters(&mut listing)?;
        Ok(listing)
    }

    /// Adds the waiters. A lock without a holder is listed if it has waiters.
    fn add_waiters(&self, listing: &mut Listing) -> Result<()> {
        let mut reserved = Vec::new();
        let mut names = self.store.names_with_waiters()?;
        names.sort_by(|one, other| one.as_str().cmp(other.as_str()));
        names.dedup();
        for name in names {
            let at = listing
                .locks
                .partition_point(|status| status.name.as_str() < name.as_str());
            let known = listing.locks.get_mut(at);
            let known = known.filter(|status| status.name == name.as_str());
            let added = match known {
                Some(status) if !status.is_available() => self
                    .store
                    .waiters(&name)
                    .map(|waiters| status.waiters = waiters),
                Some(status) => self.check(name).map(|checked| *status = checked),
                None => self.check(name).map(|checked| reserved.push(checked)),
            };
            if let Err(error) = added {
                add_once(&mut listing.errors, error);
            }
        }
        // Its obstacle may be a relative, which is listed anyway.
        reserved.retain_mut(|status| {
            let mut locks = listing.locks.iter_mut();
            let known = locks.find(|known| known.name == status.name);
            let is_new = known.is_none();
            if let Some(known) = known {
                known.waiters.append(&mut status.waiters);
            }
            is_new
        });
        if !reserved.is_empty() {
            listing.locks.append(&mut reserved);
            sort(listing);
        }
        Ok(())
    }

    fn check(&self, name: LockName) -> Result<Status> {
        self.lock(name)?.check(None)
    }

    /// Removes all zombies and what finished commands left. Each is judged again under the guard
    /// before it is removed.
    ///
    /// # Errors
    /// The store cannot be read. What could not be removed is in the result.
    pub fn cleanup(&self, dry_run: bool, max_age: Option<Duration>) -> Result<Cleanup> {
        let mut listing = self.list(max_age)?;
        let mut cleanup = Cleanup {
            errors: std::mem::take(&mut listing.errors),
            warnings: std::mem::take(&mut listing.warnings),
            ..Cleanup::default()
        };
        if !dry_run {
            sleep_until_ripe(listing.locks.iter());
            self.remove_many(&listing.locks, max_age, &mut cleanup)?;
            let removed = cleanup.removed.iter().map(|was| (&was.name, was.slot));
            let removed: HashSet<_> = removed.collect();
            let is_left = |status: &Status| !removed.contains(&(&status.name, status.slot));
            listing.locks.retain(is_left);
        }
        for status in listing.locks {
            let (name, shown) = (status.name.clone(), status.revision.clone());
            cleanup.add(status, dry_run, |cleanup| {
                let lock = self.lock(LockName::new(name)?)?;
                lock.remove_zombie(shown.as_ref(), max_age, cleanup)
            });
        }
        if !dry_run {
            let mut errors = Vec::new();
            self.store.sweep(&mut errors)?;
            for error in errors {
                add_once(&mut cleanup.errors, error);
            }
        }
        Ok(cleanup)
    }
}

/// From how many zombies on to remove them in another way: for few it needs more requests.
const MANY: usize = 8;

impl Store {
    /// Removes many zombies with few requests, where a request is a way to a server.
    fn remove_many(
        &self,
        listed: &[Status],
        max_age: Option<Duration>,
        cleanup: &mut Cleanup,
    ) -> Result<()> {
        let zombies = listed.iter().filter(|status| status.verdict.is_zombie());
        if zombies.count() < MANY {
            return Ok(());
        }
        let max_age = max_age.unwrap_or(DEFAULT_MAX_AGE);
        let observer = self.store.host().observer();
        let removed = self.store.remove_many(&mut |now, found| {
            let judged = Judged::by(observer, found, max_age, &now);
            let judged = Some(judged).filter(|judged| may_clean_up(&judged.verdict, true))?;
            let lock = self.lock(judged.found.key.name.clone()).ok()?;
            let lines = lock.lines_of_removed(&judged);
            Some((judged, lines))
        })?;
        for judged in removed {
            let lock = self.lock(judged.found.key.name.clone())?;
            lock.note_removed(&judged, cleanup);
        }
        Ok(())
    }
}

fn journal_in(store: PathBuf) -> Journal {
    Journal {
        store,
        rotate_at: ROTATE_AT,
    }
}

/// The kind of store that has locks of a format in a directory.
fn in_directory(directory: PathBuf, format: Format, host: Arc<HostFacts>) -> Arc<dyn Backend> {
    match format {
        format if format.is_kernel_lock() => Arc::new(Flock::new(directory, host, format)),
        format => Arc::new(Files {
            store: directory,
            format,
            host,
            is_foreign_directory: false,
            layout: Mutex::default(),
        }),
    }
}

/// Adds an error that does not say what another one has said.
fn add_once(errors: &mut Vec<Error>, error: Error) {
    let text = error.to_string();
    if !errors.iter().any(|known| known.to_string() == text) {
        errors.push(error);
    }
}

fn sort(listing: &mut Listing) {
    let locks = &mut listing.locks;
    locks.sort_by(|one, other| (&one.name, one.slot).cmp(&(&other.name, other.slot)));
}
