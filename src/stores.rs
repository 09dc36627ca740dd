//! The backend of a store: a directory, or etcd. Chosen once, by what the store is called.
#![cfg_attr(
    not(feature = "etcd"),
    allow(
        clippy::unnecessary_wraps,
        reason = "this build has one of the backends, which has everything"
    )
)]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::backend::{
    AsWaiter, BackOff, Backend, Change, Entry, HeldRecord, QueuePlace, ReleaseOutcome, SleepLimit,
    Updated,
};
use crate::decision::{Found, Key, Moment, Observer, Revision, Snapshot, Ticket, Until, Want};
use crate::error::{Error, Result};
#[cfg(feature = "etcd")]
use crate::etcd::{self, Etcd};
pub(crate) use crate::files::Handle;
use crate::files::held::HeldFile;
use crate::files::{self, Files, leftovers};
use crate::identity::ProcessId;
use crate::name::LockName;
use crate::observer::HostFacts;
use crate::record::{Format, Live, Mode, Record};
use crate::status::Waiter;
use crate::sys::Note;
use crate::sys::wait::Watch;

/// Does the same with whatever it is.
macro_rules! each {
    ($of:expr, $it:ident => $what:expr) => {
        match $of {
            Self::Files($it) => $what,
            #[cfg(feature = "etcd")]
            Self::Etcd($it) => $what,
        }
    };
}

/// A store.
#[derive(Clone, Debug)]
pub(crate) enum AnyStore {
    Files(Files),
    #[cfg(feature = "etcd")]
    Etcd(Etcd<Handle>),
}

/// Its locks at one moment.
pub(crate) enum AnySnapshot<'a> {
    Files(&'a files::FilesSnapshot<'a>),
    #[cfg(feature = "etcd")]
    Etcd(&'a etcd::EtcdSnapshot<'a, Handle>),
}

/// A hold of the calling process.
#[derive(Debug)]
#[cfg_attr(
    feature = "etcd",
    allow(clippy::large_enum_variant, reason = "the large one is the hot one")
)]
pub(crate) enum AnyHold {
    Files(HeldFile),
    #[cfg(feature = "etcd")]
    Etcd(Box<etcd::HeldKeys>),
}

/// A place in a queue.
#[derive(Debug)]
pub(crate) enum AnyPlace {
    Files(files::queue::Place),
    #[cfg(feature = "etcd")]
    Etcd(Box<etcd::Place>),
}

/// What a waiter keeps between two sleeps.
pub(crate) enum AnySleeper {
    Files(files::Sleeper),
    #[cfg(feature = "etcd")]
    Etcd(etcd::Sleeper<Handle>),
}

impl AnyStore {
    pub(crate) fn host(&self) -> &Arc<HostFacts> {
        each!(self, it => &it.host)
    }

    /// Its directory, or its URL.
    pub(crate) fn path(&self) -> PathBuf {
        match self {
            Self::Files(files) => files.store.clone(),
            #[cfg(feature = "etcd")]
            Self::Etcd(etcd) => PathBuf::from(etcd.url()),
        }
    }

    /// The format of new records.
    pub(crate) fn format(&self) -> Format {
        match self {
            Self::Files(files) => files.format,
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => Format::Native,
        }
    }

    pub(crate) fn path_of(&self, name: &LockName) -> PathBuf {
        self.path_of_record(&Key::exclusive(name))
    }

    pub(crate) fn path_of_record(&self, key: &Key) -> PathBuf {
        each!(self, it => it.path_of_record(key))
    }

    pub(crate) fn is_same_store(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Files(one), Self::Files(other)) => one.store == other.store,
            #[cfg(feature = "etcd")]
            (Self::Etcd(one), Self::Etcd(other)) => one.is_same_store(other),
            #[cfg(feature = "etcd")]
            _ => false,
        }
    }

    /// Whether its holders may be on other machines, where they cannot be signaled.
    pub(crate) fn is_remote(&self) -> bool {
        match self {
            Self::Files(_) => false,
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => true,
        }
    }

    /// Every lock, not judged yet. Returns what could not be read.
    pub(crate) fn list(&self, each: &mut dyn FnMut(Moment, Found<Handle>)) -> Result<Vec<Error>> {
        match self {
            Self::Files(files) => files.list(&mut |snapshot, found| each(snapshot.now(), found)),
            #[cfg(feature = "etcd")]
            Self::Etcd(etcd) => etcd.list(each),
        }
    }

    /// The names that have live waiters.
    pub(crate) fn names_with_waiters(&self) -> Result<Vec<LockName>> {
        match self {
            Self::Files(files) => files.names_with_waiters(),
            #[cfg(feature = "etcd")]
            Self::Etcd(etcd) => Ok(etcd.names_with_waiters()),
        }
    }

    /// Removes what killed processes left beside the locks.
    pub(crate) fn sweep(&self, errors: &mut Vec<Error>) -> Result<()> {
        match self {
            Self::Files(files) => leftovers::sweep(files, errors),
            // Leases end.
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => Ok(()),
        }
    }

    pub(crate) fn move_aside(&self, name: &LockName, entry: Entry<'_>) -> Result<Option<PathBuf>> {
        match self {
            Self::Files(files) => files.move_aside(name, entry),
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => Ok(None),
        }
    }
}

impl Backend for AnyStore {
    type Handle = Handle;
    type Snapshot<'a> = AnySnapshot<'a>;
    type Hold = AnyHold;
    type Place = AnyPlace;
    type Sleeper = AnySleeper;

    fn look<T>(&self, ask: impl Fn(&AnySnapshot<'_>) -> Result<T>) -> Result<Option<T>> {
        match self {
            Self::Files(files) => files.look(|snapshot| ask(&AnySnapshot::Files(snapshot))),
            #[cfg(feature = "etcd")]
            Self::Etcd(etcd) => etcd.look(|snapshot| ask(&AnySnapshot::Etcd(snapshot))),
        }
    }

    fn update<'d, T>(
        &self,
        entry: Entry<'_>,
        waiter: AsWaiter<'_, Self>,
        mut plan: impl FnMut(&AnySnapshot<'_>) -> Result<(Change<'d, Handle>, T)>,
    ) -> Result<Option<Updated<Self, T>>> {
        match self {
            Self::Files(files) => {
                let waiter = AsWaiter {
                    place: waiter.place.and_then(AnyPlace::of_files),
                    sleeper: waiter.sleeper.and_then(AnySleeper::of_files),
                };
                let updated = files.update(entry, waiter, |snapshot| {
                    plan(&AnySnapshot::Files(snapshot))
                })?;
                Ok(updated.map(|updated| Updated {
                    answer: updated.answer,
                    hold: updated.hold.map(AnyHold::Files),
                    place: updated.place.map(AnyPlace::Files),
                    removed: updated.removed,
                }))
            }
            #[cfg(feature = "etcd")]
            Self::Etcd(etcd) => {
                let waiter = AsWaiter {
                    place: waiter.place.and_then(AnyPlace::of_etcd),
                    sleeper: None,
                };
                let updated =
                    etcd.update(entry, waiter, |snapshot| plan(&AnySnapshot::Etcd(snapshot)))?;
                Ok(updated.map(|updated| Updated {
                    answer: updated.answer,
                    hold: updated.hold.map(|hold| AnyHold::Etcd(Box::new(hold))),
                    place: updated.place.map(|place| AnyPlace::Etcd(Box::new(place))),
                    removed: updated.removed,
                }))
            }
        }
    }

    fn sleeper(&self, back_off: BackOff, mode: Mode) -> AnySleeper {
        match self {
            Self::Files(files) => AnySleeper::Files(files.sleeper(back_off, mode)),
            #[cfg(feature = "etcd")]
            Self::Etcd(etcd) => AnySleeper::Etcd(etcd.sleeper(back_off, mode)),
        }
    }

    fn sleep(
        &self,
        sleeper: &mut AnySleeper,
        place: Option<&mut AnyPlace>,
        until: &Until<Handle>,
        limit: SleepLimit<'_>,
        is_unchanged: impl FnOnce() -> bool,
    ) {
        match (self, sleeper) {
            (Self::Files(files), AnySleeper::Files(sleeper)) => {
                let place = place.and_then(AnyPlace::of_files);
                files.sleep(sleeper, place, until, limit, is_unchanged);
            }
            #[cfg(feature = "etcd")]
            (Self::Etcd(etcd), AnySleeper::Etcd(sleeper)) => {
                let place = place.and_then(AnyPlace::of_etcd);
                etcd.sleep(sleeper, place, until, limit, is_unchanged);
            }
            // A sleeper is the store's own.
            #[cfg(feature = "etcd")]
            _ => {}
        }
    }

    fn waiters(&self, of: &LockName) -> Result<Vec<Waiter>> {
        each!(self, it => it.waiters(of))
    }

    fn waiter(&self, ticket: &Ticket<Handle>) -> Option<Waiter> {
        each!(self, it => it.waiter(ticket))
    }
}

impl AnySnapshot<'_> {
    /// The live waiters of a lock, the first one first.
    pub(crate) fn waiters(&self, name: &LockName) -> Vec<Waiter> {
        each!(self, it => it.waiters(name))
    }

    /// Who has a ticket.
    pub(crate) fn waiter(&self, ticket: &Ticket<Handle>) -> Option<Waiter> {
        each!(self, it => it.waiter(ticket))
    }
}

impl Snapshot for AnySnapshot<'_> {
    type Handle = Handle;
    type Error = Error;

    fn now(&self) -> Moment {
        each!(self, it => it.now())
    }

    fn observer(&self) -> Observer {
        each!(self, it => it.observer())
    }

    fn takeover_is_safe(&self) -> bool {
        each!(self, it => it.takeover_is_safe())
    }

    fn descends_from(&self, process: ProcessId) -> bool {
        each!(self, it => it.descends_from(process))
    }

    fn exclusive(&self, name: &LockName) -> Result<Option<Found<Handle>>> {
        each!(self, it => it.exclusive(name))
    }

    fn shared(&self, name: &LockName) -> Result<Vec<Found<Handle>>> {
        each!(self, it => it.shared(name))
    }

    fn shared_shown(&self, name: &LockName, shown: &Revision) -> Result<Option<Found<Handle>>> {
        each!(self, it => it.shared_shown(name, shown))
    }

    fn below(
        &self,
        name: &LockName,
        visit: &mut dyn FnMut(Found<Handle>) -> ControlFlow<()>,
    ) -> Result<()> {
        each!(self, it => it.below(name, visit))
    }

    fn tickets(&self, wants: &[Want]) -> Result<Vec<(u64, LockName)>> {
        each!(self, it => it.tickets(wants))
    }

    fn ticket(&self, number: u64) -> Result<Option<Ticket<Handle>>> {
        each!(self, it => it.ticket(number))
    }
}

impl AnyHold {
    /// Its file, or its key.
    pub(crate) fn path(&self) -> &Path {
        each!(self, it => it.path())
    }

    pub(crate) fn paths(&self) -> Vec<&Path> {
        each!(self, it => it.paths())
    }

    pub(crate) fn slots(&self) -> Vec<u32> {
        each!(self, it => it.slots())
    }

    /// The file of the lock, where it has one.
    pub(crate) fn file(&self) -> Option<&std::fs::File> {
        match self {
            Self::Files(held) => Some(held.file()),
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => None,
        }
    }

    /// Makes a lease survive a crash of the machine.
    pub(crate) fn make_durable(&self) -> Result<()> {
        match self {
            Self::Files(held) => held.make_durable(),
            // Most members have it on disk when they answer.
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => Ok(()),
        }
    }

    /// Whether its holder was told to end its work, where it is not told by a signal.
    pub(crate) fn is_broken(&self) -> bool {
        match self {
            Self::Files(_) => false,
            #[cfg(feature = "etcd")]
            Self::Etcd(held) => held.is_broken(),
        }
    }

    /// When it counts as lost unless it is confirmed meanwhile, and when nothing of it may run any more, by
    /// the boot-time clock in milliseconds. `None`: no clock ends it.
    pub(crate) fn deadlines_ms(&self) -> Option<(u64, u64)> {
        match self {
            Self::Files(_) => None,
            #[cfg(feature = "etcd")]
            Self::Etcd(held) => Some(held.deadlines_ms()),
        }
    }
}

impl HeldRecord for AnyHold {
    fn record(&self) -> &Record {
        each!(self, it => it.record())
    }

    fn is_lost(&self) -> Result<bool> {
        each!(self, it => it.is_lost())
    }

    fn write_live(&mut self, live: Live) -> Result<()> {
        each!(self, it => it.write_live(live))
    }

    fn notes(&self) -> Result<Vec<Note>> {
        each!(self, it => it.notes())
    }

    fn survives_settling_time(&self) -> Result<bool> {
        each!(self, it => it.survives_settling_time())
    }

    fn release(&mut self) -> Result<ReleaseOutcome> {
        each!(self, it => it.release())
    }
}

impl AnyPlace {
    fn of_files(&mut self) -> Option<&mut files::queue::Place> {
        match self {
            Self::Files(place) => Some(place),
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => None,
        }
    }

    #[cfg(feature = "etcd")]
    fn of_etcd(&mut self) -> Option<&mut etcd::Place> {
        match self {
            Self::Files(_) => None,
            Self::Etcd(place) => Some(place),
        }
    }
}

impl QueuePlace for AnyPlace {
    fn number(&self) -> u64 {
        each!(self, it => it.number())
    }

    fn prepare(&mut self) {
        each!(self, it => it.prepare());
    }

    fn may_be_behind_others(&self) -> bool {
        each!(self, it => it.may_be_behind_others())
    }

    fn look_again(&mut self) {
        each!(self, it => it.look_again());
    }
}

impl AnySleeper {
    fn of_files(&mut self) -> Option<&mut files::Sleeper> {
        match self {
            Self::Files(sleeper) => Some(sleeper),
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => None,
        }
    }

    /// The watch of a waiter. Closing it takes milliseconds, so it is closed when the hold ends.
    pub(crate) fn into_watch(self) -> Option<Watch> {
        match self {
            Self::Files(sleeper) => files::sleeper_watch(sleeper),
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => None,
        }
    }
}
