//! Locks as files in a directory.
//!
//! [`Files::change`] is how every change is made: enter the guard, answer the decision, commit what it
//! says, leave. [`snapshot`] answers, by [`evidence`], [`commit`] writes, [`foreign`] keeps peace with programs
//! that do not enter the guard, [`queue`] and [`sleep`] let callers wait.

mod aside;
mod commit;
mod directory;
mod evidence;
pub(crate) mod examine;
mod flat;
mod foreign;
mod guard;
mod held;
pub(crate) mod journal;
mod kept_places;
pub(crate) mod layout;
mod leftovers;
mod limits;
mod lock_file;
mod number;
mod place;
pub(crate) mod provenance;
mod queue;
mod reservations;
mod shared_names;
mod sleep;
mod snapshot;
mod tickets;
mod tree_watch;

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use directory::Files;
pub(crate) use evidence::found;
pub(crate) use foreign::MAX_RETRIES;
pub(crate) use guard::Root;
use guard::{Guard, open_directory};
use layout::Layout;
pub(crate) use lock_file::{LockPath, not_a_lock, wall_clock};
pub(crate) use number::by_clock as number_by_clock;
use place::Place;
use queue::Queue;
pub(crate) use sleep::Sleeper;
use snapshot::FilesSnapshot;

use self::tree_watch::TreeWatch;
use crate::backend::{
    Ask, Asked, BackOff, Backend, Change, ChangeWatch, Contender, Entry, IsUnchanged, Patience,
    Plan, QueueChange, QueuePlace, Ttl, Updated, WhyNot,
};
use crate::decision::{Key, Moment, RECHECK_INTERVAL, Snapshot as _};
use crate::error::{Context, Error, Result};
use crate::name::LockName;
use crate::observer::HostFacts;
use crate::open_file::{Found as FoundRecord, Until};
use crate::record::{Format, Kind, Mode};
use crate::status::{KeptPlace, Waiter};
use crate::sys::directory::{record_is_locked, sync_file};
use crate::sys::process::boottime;
use crate::sys::wait::Watch;
use crate::ticket::MAX_KEPT;

impl Files {
    /// Makes the change that `plan` returns. `place`: that of the caller in the queue.
    fn change(
        &self,
        entry: Entry<'_>,
        place: &mut Option<Place>,
        plan: &mut Plan<'_, '_>,
    ) -> Result<Option<Updated>> {
        let mut entered = match place {
            Some(place) => Guard::enter_again(&place.root, entry.patience)?,
            None => None,
        };
        if entered.is_none() {
            entered = self.enter(entry)?;
        }
        let Some(guard) = entered else {
            return Ok(None);
        };
        let mut prepared = place.as_mut().and_then(|place| place.prepared.take());
        // After `enter_again`; the queue of another directory is another one.
        let is_in_queue =
            |place: &&Place| Arc::ptr_eq(&place.root.directory, &guard.root.directory);
        let own_place = place.as_ref().filter(is_in_queue);
        let mut displaced = Vec::new();
        'attempts: for _ in 0..MAX_RETRIES {
            let mut snapshot = FilesSnapshot::new(self, &guard.root, Some(&guard));
            snapshot.place = own_place;
            let change = plan(&snapshot)?;
            let mut updated = Updated::default();
            let done = match change {
                Change::Nothing => true,
                Change::Queue(change) => {
                    if let Some((_, draft)) = &change.join {
                        commit::ensure_fits(&snapshot, draft)?;
                    }
                    if let Some(joined) = change_queue(&guard, &snapshot, change) {
                        // Ahead of waiters that the decision counted before it.
                        updated.may_be_behind_others = joined.is_resumed;
                        *place = Some(joined);
                        return Ok(Some(updated));
                    }
                    true
                }
                Change::Remove(judged, _) => commit::remove(&snapshot, &judged)?,
                Change::Renew(judged, live) => {
                    let file = commit::renew(&snapshot, &judged, &live)?;
                    let is_lease = judged
                        .record()
                        .is_some_and(|record| record.kind == Kind::Lease);
                    if let Some(file) = file.as_ref().filter(|_| is_lease) {
                        // A lease must survive a crash of the machine, and so must its renewal. Nothing
                        // that waits for the disk is done under the guard.
                        drop(snapshot);
                        drop(guard);
                        let path = self.path_of_record(&judged.found.key);
                        sync_file(file).context("renew", &path)?;
                        return Ok(Some(updated));
                    }
                    file.is_some()
                }
                Change::Take {
                    put, remove, draft, ..
                } => {
                    let (live, mut dead): (Vec<_>, Vec<_>) = remove
                        .into_iter()
                        .partition(|judged| judged.verdict.is_live());
                    // Not beside the new hold: those who shared it, and were to be replaced.
                    for judged in live {
                        if !commit::remove(&snapshot, &judged)? {
                            continue 'attempts;
                        }
                        displaced.push(judged);
                    }
                    let held = commit::take(&guard, &snapshot, &put, draft, prepared.take())?;
                    let Some(held) = held else { continue };
                    if let Some(owner) = &draft.owner {
                        let names: Vec<_> = put.iter().map(|(key, _)| &key.name).collect();
                        snapshot.queue().forget_kept(owner, &names);
                    }
                    updated.hold = Some(Box::new(held));
                    // What cannot be removed stays, such as another user's: it does no harm, and the hold
                    // is in force already.
                    let remove = |judged: &_| commit::remove(&snapshot, judged);
                    dead.retain(|judged| matches!(remove(judged), Ok(true)));
                    dead.append(&mut displaced);
                    updated.removed = dead;
                    true
                }
            };
            if done {
                return Ok(Some(updated));
            }
        }
        let source = io::Error::other("another program keeps changing them");
        Err(source).context("change locks in", &self.store)
    }
}

impl Files {
    fn look_at_queue<T: Default>(&self, look: impl FnOnce(&Queue<'_>) -> T) -> Result<T> {
        let queue = if self.is_known_tree() {
            open_directory(&self.store)?.map(|root| Queue::of_tree(&root))
        } else {
            self.open()?.map(|root| Queue::open(&root))
        };
        Ok(queue.as_ref().map(look).unwrap_or_default())
    }
}

impl Backend for Files {
    fn host(&self) -> &Arc<HostFacts> {
        &self.host
    }

    fn path(&self) -> PathBuf {
        self.store.clone()
    }

    fn path_of_record(&self, key: &Key) -> PathBuf {
        // Most records lie where they do in every layout.
        let is_same = key.index.is_none() && key.name.segments().len() < 2;
        let layout = if is_same { Layout::Tree } else { self.layout() };
        layout.path_below(&self.store, key)
    }

    fn format(&self) -> Format {
        self.format
    }

    fn why_not(&self, name: &LockName, asked: Asked) -> WhyNot {
        let why_not = limits::why_not(self.format, name, asked);
        if why_not.is_some() || asked != Asked::Keep {
            return why_not;
        }
        // In a sticky directory others could not replace what is left then.
        let root = open_directory(&self.store).ok().flatten()?;
        root.is_sticky().then_some(
            "--hold-at-least is not possible: in a sticky directory nobody else could take the lock afterwards",
        )
    }

    fn ttl(&self, asked: Option<Duration>, is_detached: bool) -> Ttl {
        limits::ttl(self.format, asked, is_detached)
    }

    fn locate(self: Arc<Self>, name: LockName) -> Result<(Arc<dyn Backend>, LockName)> {
        directory::locate(self, name)
    }

    fn ask(&self, ask: &mut Ask<'_>) -> Result<()> {
        match self.open()? {
            Some(root) => ask(&FilesSnapshot::new(self, &root, None)),
            None => Ok(()),
        }
    }

    fn apply(&self, entry: Entry<'_>, plan: &mut Plan<'_, '_>) -> Result<Option<Updated>> {
        self.change(entry, &mut None, plan)
    }

    fn contender(&self, back_off: BackOff, _mode: Mode) -> Box<dyn Contender + '_> {
        Box::new(FilesContender {
            files: self,
            place: None,
            sleeper: Sleeper::new(back_off),
        })
    }

    fn waiters(&self, of: &LockName) -> Result<Vec<Waiter>> {
        self.look_at_queue(|queue| queue.waiters(of))
    }

    fn kept_places(&self, of: &LockName) -> Result<Vec<KeptPlace>> {
        let places = self.look_at_queue(|queue| queue.kept(of))?;
        Ok(places.into_iter().map(|(_, place)| place).collect())
    }

    /// Takes no guard: a lock that is taken or released meanwhile may be missing or not.
    fn list(&self, each: &mut dyn FnMut(Moment, FoundRecord)) -> Result<Vec<Error>> {
        let Some(root) = self.open()? else {
            return Ok(Vec::new());
        };
        let snapshot = FilesSnapshot::new(self, &root, None);
        let mut errors = Vec::new();
        for found in snapshot.all_records()? {
            match found {
                Ok(found) => each(snapshot.now(), found),
                Err(error) => errors.push(error),
            }
        }
        Ok(errors)
    }

    fn names_with_waiters(&self) -> Result<Vec<LockName>> {
        self.look_at_queue(|queue| {
            let mut names = HashSet::new();
            for ticket in &*queue.all() {
                // One live waiter is enough.
                let name = ticket.name();
                if !names.contains(name) && queue.ticket(ticket.number(), false).is_some() {
                    names.insert(name.clone());
                }
            }
            names.into_iter().collect()
        })
    }

    fn watch(&self) -> Option<Box<dyn ChangeWatch>> {
        Some(Box::new(TreeWatch::new(self.store.clone())?))
    }

    fn sweep(&self, errors: &mut Vec<Error>) -> Result<()> {
        leftovers::sweep(self, errors)
    }

    fn move_aside(&self, name: &LockName) -> Result<Option<PathBuf>> {
        self.rename_aside(name)
    }
}

/// A caller that wants a lock.
#[derive(Debug)]
struct FilesContender<'a> {
    files: &'a Files,
    place: Option<Place>,
    sleeper: Sleeper,
}

impl Contender for FilesContender<'_> {
    fn apply(&mut self, entry: Entry<'_>, plan: &mut Plan<'_, '_>) -> Result<Option<Updated>> {
        self.files.change(entry, &mut self.place, plan)
    }

    fn place(&self) -> Option<u64> {
        self.place.as_ref().map(|place| place.number)
    }

    fn sleep(&mut self, until: &Until, limit: Patience<'_>, is_unchanged: &mut IsUnchanged<'_>) {
        if let Some(place) = &mut self.place {
            place.prepare();
        }
        // Nothing else ends a sleep in the kernel.
        let at_most = limit.slice();
        let started = boottime();
        let woken = self.sleeper.sleep(until, at_most, is_unchanged);
        let Until::LeftQueue(ticket, _) = until else {
            return;
        };
        // Mostly the waiter that left the queue has the lock now. As long as its kernel lock is held
        // there is nothing to decide, and the guard is left to those that pass the lock on.
        if let (true, [want]) = (woken, ticket.request.wants.as_slice())
            && let Some(file) = locked_file(self.place.as_ref(), &want.name)
        {
            let slept = boottime().saturating_sub(started);
            // Its hold may not be in the way: it may have the same owner.
            let left = at_most.min(RECHECK_INTERVAL).saturating_sub(slept);
            // Interrupted or not, the caller decides again.
            let _ = self.sleeper.sleep_on_lock(&file, left);
        }
    }

    fn position(&self, name: &LockName) -> Option<usize> {
        let place = self.place.as_ref()?;
        Some(Queue::open(&place.root).waiters_before(place.number, name) + 1)
    }

    fn position_kept(&self, name: &LockName) -> Option<usize> {
        let place = self.place.as_ref().filter(|place| place.is_kept)?;
        let queue = Queue::open(&place.root);
        let kept = queue.kept(name);
        (kept.len() < MAX_KEPT).then_some(())?;
        let kept = kept.iter().filter(|(number, _)| *number < place.number);
        Some(queue.waiters_before(place.number, name) + kept.count() + 1)
    }

    /// Closing the watch takes milliseconds, so it is closed when the hold ends.
    fn served(&mut self) -> (Option<Box<dyn QueuePlace>>, Option<Watch>) {
        let place = self.place.take().map(|mut place| {
            place.is_kept = false;
            Box::new(place) as Box<dyn QueuePlace>
        });
        (place, self.sleeper.watch.take())
    }
}

/// The lock file of a name, if its kernel lock is held.
fn locked_file(place: Option<&Place>, name: &LockName) -> Option<File> {
    let root = &place?.root;
    let (parents, file) = root.layout().place_of(&Key::exclusive(name));
    let directory = root.descend(&parents).ok()??;
    let file = directory.find(&file).ok()?.file()?;
    record_is_locked(&file).ok()?.then_some(file)
}

fn change_queue(
    guard: &Guard,
    snapshot: &FilesSnapshot<'_>,
    change: QueueChange<'_>,
) -> Option<Place> {
    if change.reserve.is_some() || change.restore_turn.is_some() {
        snapshot
            .queue()
            .reserve(change.reserve, change.restore_turn);
    }
    // Where kernel locks of others are not seen there cannot be a queue.
    let (request, draft) = change.join.filter(|_| snapshot.root.shares_kernel_locks)?;
    let waiting = snapshot.queue().directory();
    let place = Place::join(guard, waiting, &request, draft)?;
    if place.is_resumed {
        // A turn that it missed while nobody waited there does not count.
        Queue::open(&guard.root).reserve(None, Some(place.number));
    }
    Some(place)
}
