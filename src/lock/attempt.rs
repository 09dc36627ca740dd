//! One attempt to take a lock: judged and published under the guard, repeated while waiting.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, SubsecRound, TimeDelta, Utc};

use super::relatives::{Relations, Settling};
use super::{Attempt, Blocked, Keeping, Lock};
use crate::claim::{Claim, is_same_owner};
use crate::error::{Context, Error, Result};
use crate::events::{self, Deed, OWN_DIRECTORY};
use crate::format::Format;
use crate::guard::{Guard, descend};
use crate::hold::Possession;
use crate::holder::{Holder, command_line_of, has_ended};
use crate::identity::{Pid, ProcessId};
use crate::lockfile::{
    Exchanged, LockFile, Making, OwnedPlace, Place, Published, Standing, WithoutExchange,
    is_in_place, own_temporary_name,
};
use crate::number;
use crate::queue::{Queue, Ticket};
use crate::record::{Kind, NewRecord, Record, cut_command, has_four_digits};
use crate::status::{About, Observatory, Presences, Status};
use crate::sys::directory::{Directory, Found, not_found, record_is_locked};
use crate::sys::process;
use crate::sys::spawn::COMMANDS_INHERIT_LOCKS;
use crate::verdict::{Reason, State};
use crate::wait::Wait;

/// Most rounds in which what stands in the place of a lock changes under the guard, which only
/// programs that do not know the guard can do.
pub(super) const MOST_CHANGES: usize = 100;

/// What a new hold is kept by.
pub(super) enum Keeper {
    /// Nobody: what stands there is only removed.
    Nobody,
    ThisProcess,
    Run(Keeping),
    Detached(Holder),
}

/// The caller's place among those who wait.
#[derive(Default)]
pub(super) struct Line {
    ticket: Option<Ticket>,
    /// Take one, if the lock is not to be had.
    stand: bool,
    /// To put the record in, once it is our turn: to make a file takes a fifth of the time between
    /// waking and starting a command.
    unnamed: Option<File>,
}

pub(super) enum Try {
    Taken(Box<Possession>),
    Removed(Box<Status>),
    /// Only for [`Keeper::Nobody`].
    Nothing,
    Blocked(Box<Status>, Option<LockFile>),
    /// Others are to have the guard for a moment.
    Again,
}

impl Lock {
    pub(super) fn take(
        &self,
        claim: &Claim,
        keeper: &Keeper,
        mut wait: Wait<'_>,
    ) -> Result<Attempt<Box<Possession>>> {
        claim.ensure_fits()?;
        // Gathered before the guard: reading another process's memory can block.
        let holder = match keeper {
            Keeper::Detached(holder) => Some(*holder),
            Keeper::Nobody | Keeper::ThisProcess | Keeper::Run(_) => None,
        };
        let keeping = match keeper {
            Keeper::Run(keeping) => *keeping,
            Keeper::Nobody | Keeper::ThisProcess | Keeper::Detached(_) => Keeping::default(),
        };
        let claim =
            &keeper
                .with_command(claim)
                .fitted_to(self.format, &self.name, holder, keeping)?;
        let mut line = Line {
            ticket: None,
            stand: wait.is_wanted() && !self.name.is_path(),
            unnamed: None,
        };
        let mut turns = 0;
        loop {
            keeper.ensure_alive()?;
            let (mut status, found) = match self.try_once(claim, keeper, &mut line)? {
                Try::Taken(possession) if !possession.outlasts_late_comers()? => {
                    turns += 1;
                    if turns > MOST_CHANGES {
                        return Err(self.restless());
                    }
                    continue;
                }
                Try::Taken(mut possession) => {
                    possession.waited = wait.waited();
                    possession.ticket = line.ticket;
                    possession.watch = wait.leftovers();
                    self.journalise(&mut possession);
                    return Ok(Attempt::Held(possession));
                }
                Try::Blocked(status, found) => (status, found),
                Try::Again => continue,
                Try::Removed(_) | Try::Nothing => return Err(self.restless()),
            };
            let repeated =
                matches!(keeper, Keeper::Detached(_)) && self.is_the_same_owners(claim, &status);
            // A zombie that may not be taken does not go away by waiting.
            if repeated || status.is_takeable() || wait.is_over(&status) {
                drop(line);
                if let Ok(waiters) = self.relative(&status).waiters() {
                    status.waiters = waiters;
                }
                return Ok(Attempt::Blocked(Blocked {
                    status,
                    waited: wait.waited(),
                }));
            }
            if let Some(ticket) = line.ticket.as_ref().filter(|_| line.unnamed.is_none()) {
                line.unnamed = ticket.unnamed_file();
            }
            match line.ticket.as_ref().map(Ticket::before) {
                Some(Ok(Some((before, is_first)))) => {
                    wait.sleep_behind(&before, is_first);
                    self.wait_for_the_one_before(&mut wait);
                }
                // Whoever it was promised to has left while we looked: it is our turn.
                Some(Ok(None)) if found.is_none() && turns < MOST_CHANGES => turns += 1,
                _ => wait.sleep(&status, found.as_ref(), || {
                    self.relative(&status)
                        .check(claim.max_age)
                        .is_ok_and(|now| now.shown() == status.shown() && !now.is_takeable())
                }),
            }
        }
    }

    /// Mostly it is the one before us who has the lock now. As long as a kernel lock is kept on it
    /// there is nothing to judge, and no need of the guard, which others need to hand it on.
    fn wait_for_the_one_before(&self, wait: &mut Wait<'_>) {
        let locked = || -> Option<File> {
            let root = Directory::open(&self.store).ok()?;
            let directory = descend(&root, &self.store, &self.name.sections()).ok()??;
            let Found::File(file, _) = directory.find(&self.name.file()).ok()? else {
                return None;
            };
            record_is_locked(&file).ok()?.then_some(file)
        };
        if !wait.is_cancelled()
            && let Some(file) = locked()
        {
            wait.sleep_on_holder(&file);
        }
    }

    /// One attempt under the guard; in the same guard a place in the line, if it is in vain.
    pub(super) fn try_once(&self, claim: &Claim, keeper: &Keeper, line: &mut Line) -> Result<Try> {
        let Some(guard) = self.enter(keeper)? else {
            return Ok(Try::Nothing);
        };
        let observatory = self.surroundings.observe(guard.root(), &self.store)?;
        let mut removed = Vec::new();
        let tried = self.try_under(&guard, &observatory, claim, keeper, line, &mut removed);
        // Where kernel locks of others are not seen there can be no line.
        if matches!(tried, Ok(Try::Blocked(..)))
            && line.stand
            && line.ticket.is_none()
            && observatory.settles()
        {
            let now = Utc::now().trunc_subsecs(6);
            let record = self.record_of(1, now, &observatory, claim, &Keeper::ThisProcess);
            // Without a ticket there is still the hold to wait for.
            line.ticket = Ticket::draw(&guard, &self.name, &record).ok();
        }
        drop(guard);
        let mut warnings = Vec::new();
        for was in removed {
            let written = events::write(self.journal_store(), Deed::Cleanup, &was, None);
            events::warn(&mut warnings, written);
        }
        let mut tried = tried?;
        if let Try::Taken(possession) = &mut tried {
            possession.warnings.extend(warnings);
        }
        Ok(tried)
    }

    fn enter(&self, keeper: &Keeper) -> Result<Option<Guard>> {
        match keeper {
            Keeper::Nobody => Guard::enter(&self.store),
            // A path's directory is not ours to make.
            _ if self.name.is_path() => match Guard::enter(&self.store)? {
                Some(guard) => Ok(Some(guard)),
                None => Err(not_found()).context("open directory", &self.store),
            },
            _ => Guard::enter_or_create(&self.store).map(Some),
        }
    }

    /// `removed`: relatives that were dead.
    pub(super) fn try_under(
        &self,
        guard: &Guard,
        observatory: &Observatory,
        claim: &Claim,
        keeper: &Keeper,
        line: &mut Line,
        removed: &mut Vec<Status>,
    ) -> Result<Try> {
        let ticket = line.ticket.as_ref();
        let (sections, file, path) = (self.name.sections(), self.name.file(), self.path());
        let about = self.about(&path, claim.observed_max_age());
        let queue = match keeper {
            Keeper::Nobody => None,
            _ => Queue::open(guard.root(), &self.store, &self.name)?,
        };
        if let (Some(queue), Some(ticket)) = (&queue, ticket) {
            queue.comes_by(ticket.number());
        }
        for _ in 0..MOST_CHANGES {
            let directory = guard.descend(&sections)?;
            let (status, found) = match &directory {
                None => (about.free(), None),
                Some(directory) => {
                    let place = self.place(directory, &file, &path);
                    match self.settled(&place, observatory, about.max_age)? {
                        (status, Standing::Nothing) => (status, None),
                        (status, Standing::File(found)) => (status, Some(found)),
                        (_, Standing::NoFile(what)) => return Err(self.not_a_lock(what)),
                    }
                }
            };
            if let Reason::NotALock(what) = status.verdict.reason {
                return Err(self.not_a_lock(what));
            }
            if !claim.permits(&status) {
                return Ok(Try::Blocked(Box::new(status), found));
            }
            if matches!(keeper, Keeper::Nobody) {
                let (Some(directory), Some(found)) = (directory, found) else {
                    return Ok(Try::Nothing);
                };
                let place = self.place(&directory, &file, &path);
                if self.remove_dead(&place, observatory, &found, claim)? {
                    guard.prune(&sections)?;
                    return Ok(Try::Removed(Box::new(status)));
                }
                continue;
            }
            let relatives = self.relatives(guard.root(), observatory, claim)?;
            if let Some((relative, found)) = relatives.blocking {
                return Ok(Try::Blocked(Box::new(relative), Some(found)));
            }
            let by_force = claim.barge || claim.displaces(&status);
            if let Some(queue) = queue.as_ref().filter(|_| !by_force)
                && let Some(waiter) = queue.promised(ticket.map(Ticket::number), true)?
            {
                return Ok(Try::Blocked(Box::new(status.promised_to(&waiter)), None));
            }
            let settling = Settling {
                guard,
                observatory,
                claim,
            };
            match self.settle_relatives(&settling, relatives.unsettled, about.max_age, removed)? {
                Relations::Settled => {}
                // One of them may live, or what leads to our place have become empty.
                Relations::Changed => continue,
                Relations::Unfinished => return Ok(Try::Again),
                Relations::Blocked(status, found) => {
                    return Ok(Try::Blocked(status, Some(found)));
                }
            }
            let replaced = status.hold().unwrap_or(0);
            let mut record = self.new_record(guard, observatory, claim, keeper, replaced)?;
            let directory = match directory {
                Some(directory) => directory,
                None => guard.descend_or_create(&sections)?,
            };
            let place = self.place(&directory, &file, &path);
            let published = match &found {
                None => self.publish(&place, &record, keeper, line.unnamed.take()),
                Some(found) => {
                    let without_exchange = self.without_exchange(observatory, claim);
                    let making = making(keeper);
                    match place.take_over(found, &mut record, making, without_exchange) {
                        Ok(Exchanged::Done(published)) => Ok(Some(published)),
                        Ok(Exchanged::Changed) => Ok(None),
                        Err(error) => Err(error),
                    }
                }
            };
            match published {
                Ok(Some(published)) => {
                    if let Some(queue) = &queue {
                        // An old promise does no harm to a hold that has been taken.
                        let _ = queue.keep_promises();
                    }
                    let displaced = found.map(|_| Box::new(status));
                    return Ok(self.taken(guard, directory, record, published, displaced));
                }
                Ok(None) => {}
                Err(error) => {
                    // What led to a place that could not be filled.
                    let _ = guard.prune(&sections);
                    return Err(error);
                }
            }
        }
        Err(self.restless())
    }

    fn publish(
        &self,
        place: &Place<'_>,
        record: &Record,
        keeper: &Keeper,
        unnamed: Option<File>,
    ) -> Result<Option<Published>> {
        if self.name.is_path() {
            // Nobody cleans up there; a store's own is left to `cleanup`.
            place.free_temporary_name()?;
        }
        place.publish(record, making(keeper), unnamed)
    }

    /// Removes what was judged, by taking its place first: programs that know nothing of the guard
    /// see a living holder until the name is gone, and so have no reason to put a file of theirs
    /// there. On a full disk, where there is no room for that, it is set aside.
    pub(super) fn remove_dead(
        &self,
        place: &Place<'_>,
        observatory: &Observatory,
        judged: &LockFile,
        claim: &Claim,
    ) -> Result<bool> {
        let now = Utc::now().trunc_subsecs(6);
        let replaced = judged.record().map_or(0, |record| record.hold);
        let hold = number::by_clock(now, replaced);
        let keeper = Keeper::Nobody;
        let mut record = self.record_of(hold, now, observatory, claim, &keeper);
        // Those who look in between are the programs that know the old one.
        record.format = judged.record().map_or(self.format, |record| record.format);
        let without_exchange = self.without_exchange(observatory, claim);
        match place.take_over(judged, &mut record, making(&keeper), without_exchange) {
            Ok(Exchanged::Done(published)) => {
                // A late comer may have removed it by its name, and another have come.
                if record.format == Format::Native {
                    let file = &published.file;
                    let in_place = is_in_place(place.directory, place.file, file);
                    return Ok(in_place.context("inspect", place.path)? && place.remove()?);
                }
                place.remove_ours(&published.file)
            }
            Ok(Exchanged::Changed) => Ok(false),
            Err(Error::Io { source, .. }) if is_full(&source) => place.set_aside(judged),
            // What was wanted, and not how it is done.
            Err(Error::Io { path, source, .. }) => Err(Error::Io {
                operation: "remove",
                path,
                source,
            }),
            Err(error) => Err(error),
        }
    }

    /// A person's word settles what the filesystem cannot.
    fn without_exchange(&self, observatory: &Observatory, claim: &Claim) -> WithoutExchange {
        let ours_alone =
            observatory.settles() && !self.name.is_path() && self.format == Format::Native;
        if claim.displace.is_some() || ours_alone {
            WithoutExchange::SetAside
        } else {
            WithoutExchange::Refuse
        }
    }

    /// Reads and judges a place, after a takeover that its taker did not live to end has been
    /// settled.
    pub(super) fn settled(
        &self,
        place: &Place<'_>,
        observatory: &Observatory,
        max_age: Duration,
    ) -> Result<(Status, Standing)> {
        let (status, standing, _) = self.settle(place, observatory, max_age)?;
        Ok((status, standing))
    }

    /// The same, and whether there was anything to settle.
    pub(super) fn settle(
        &self,
        place: &Place<'_>,
        observatory: &Observatory,
        max_age: Duration,
    ) -> Result<(Status, Standing, bool)> {
        let about = self.about(place.path, max_age);
        for round in 0..MOST_CHANGES {
            let standing = place.read()?;
            let status = observatory.status(&about, &standing, &mut Presences::default());
            let dead = matches!(status.verdict.state, State::Zombie | State::Free);
            let changed = dead
                && observatory.settles()
                && (match &standing {
                    Standing::File(found) => place.recover(found)?,
                    Standing::Nothing => place.bring_back()?,
                    Standing::NoFile(_) => false,
                } || self.return_an_old_programs(place, observatory, &about, &standing)?);
            if !changed {
                return Ok((status, standing, round > 0));
            }
        }
        Err(self.restless())
    }

    /// What a takeover calls a file for the moment may be a living old program's, whose place is
    /// empty or dead: gives it back. The taker was killed, and his record, by which he would have
    /// been recovered from, removed by a program that knows nothing of that.
    fn return_an_old_programs(
        &self,
        place: &Place<'_>,
        observatory: &Observatory,
        about: &About<'_>,
        standing: &Standing,
    ) -> Result<bool> {
        if self.format == Format::Native && !self.name.is_path() {
            return Ok(false);
        }
        let name = own_temporary_name(place.file);
        let aside = place.beside(&name);
        let taken_out = aside.read_if_permitted()?;
        let status = observatory.status(about, &taken_out, &mut Presences::default());
        // A bare number does not say whether it is not a taker's own, which never had its place.
        let is_an_old_programs = status
            .record
            .as_ref()
            .is_some_and(|record| !record.is_ours() && record.format != Format::Pid);
        match (status.verdict.state, standing) {
            _ if !is_an_old_programs => Ok(false),
            (State::Held | State::Overdue, Standing::Nothing) => place.give_back(&name, None),
            (State::Held | State::Overdue, Standing::File(dead)) => {
                place.give_back(&name, Some(dead))
            }
            (State::Zombie, _) => {
                // If it stays, the next takeover uses another name.
                let _ = aside.remove();
                Ok(false)
            }
            _ => Ok(false),
        }
    }

    fn taken(
        &self,
        guard: &Guard,
        directory: Directory,
        record: Record,
        published: Published,
        displaced: Option<Box<Status>>,
    ) -> Try {
        Try::Taken(Box::new(Possession {
            lock: self.clone(),
            root: Arc::clone(guard.root()),
            place: OwnedPlace {
                directory,
                file: self.name.file(),
                path: self.path(),
                format: record.format,
            },
            file: published.file,
            size: published.size,
            record,
            displaced,
            waited: None,
            ticket: None,
            watch: None,
            warnings: Vec::new(),
        }))
    }

    fn new_record(
        &self,
        guard: &Guard,
        observatory: &Observatory,
        claim: &Claim,
        keeper: &Keeper,
        replaced: u64,
    ) -> Result<Record> {
        let now = Utc::now().trunc_subsecs(6);
        let hold = if self.name.is_path() {
            number::by_clock(now, replaced)
        } else {
            number::in_store(guard.root(), now, replaced)
                .context("number a hold in", &self.store.join(OWN_DIRECTORY))?
        };
        Ok(self.record_of(hold, now, observatory, claim, keeper))
    }

    /// The same owner may repeat his own detached acquire.
    pub(super) fn is_the_same_owners(&self, claim: &Claim, status: &Status) -> bool {
        let held = matches!(status.verdict.state, State::Held | State::Overdue);
        let own = status.name == self.name.as_str();
        held && own
            && status.record.as_ref().is_some_and(|record| {
                record.job.is_some() && is_same_owner(claim.owner.as_ref(), record)
            })
    }

    fn record_of(
        &self,
        hold: u64,
        now: DateTime<Utc>,
        observatory: &Observatory,
        claim: &Claim,
        keeper: &Keeper,
    ) -> Record {
        let (kind, keeping) = match keeper {
            Keeper::Nobody | Keeper::ThisProcess | Keeper::Detached(Holder::Process(_)) => {
                (Kind::Job, Keeping::default())
            }
            Keeper::Run(keeping) => (Kind::Run, *keeping),
            Keeper::Detached(Holder::Lease) => (Kind::Lease, Keeping::default()),
        };
        let mut record = Record::new(
            hold,
            NewRecord {
                name: self.name.as_str().to_owned(),
                kind,
                pid: process::own_pid(),
                hostname: observatory.hostname(),
                acquired_at: now,
                origin: observatory.origin(),
            },
        );
        record.owner.clone_from(&claim.owner);
        record.message.clone_from(&claim.message);
        record.command.clone_from(&claim.command);
        record.ttl_ms = claim.ttl.map(milliseconds);
        record.expires_at = claim
            .ttl
            .and_then(|ttl| now.checked_add_signed(TimeDelta::from_std(ttl).ok()?))
            .filter(|at| has_four_digits(*at));
        record.max_age_ms = claim.max_age.map(milliseconds);
        record.close = keeping.close || (kind == Kind::Run && !COMMANDS_INHERIT_LOCKS);
        record.exec = keeping.exec;
        record.kernel_lock = making(keeper).kernel_lock;
        record.format = self.format;
        record.shown_pid = match keeper {
            Keeper::Detached(Holder::Process(process)) => Some(process.pid),
            _ => None,
        };
        record
    }

    fn journalise(&self, possession: &mut Possession) {
        let Some(from) = &possession.displaced else {
            return;
        };
        let deed = match from.verdict.state {
            State::Zombie => Deed::Takeover,
            State::Held | State::Overdue => Deed::Break,
            State::Free | State::NotALock => return,
        };
        let hold = Some(possession.record.hold);
        let written = events::write(self.journal_store(), deed, from, hold);
        events::warn(&mut possession.warnings, written);
    }
}

impl Keeper {
    fn with_command(&self, claim: &Claim) -> Claim {
        let mut claim = claim.clone();
        if claim.command.is_empty() {
            claim.command = match self {
                Self::Detached(Holder::Process(ProcessId { pid, .. })) => command_line_of(*pid),
                Self::ThisProcess => command_line_of(Pid::of_self()),
                Self::Nobody | Self::Run(_) | Self::Detached(Holder::Lease) => Vec::new(),
            };
        }
        claim.command = cut_command(claim.command);
        claim
    }

    /// Waiting can outlast whom it is for.
    fn ensure_alive(&self) -> Result<()> {
        match self {
            Self::Detached(Holder::Process(process)) if has_ended(*process) => {
                Err(Error::NoSuchProcess {
                    pid: process.pid.get(),
                })
            }
            _ => Ok(()),
        }
    }
}

fn making(keeper: &Keeper) -> Making {
    Making {
        kernel_lock: !matches!(keeper, Keeper::Detached(_)),
        durable: matches!(keeper, Keeper::Detached(Holder::Lease)),
    }
}

/// The disk or the user's share of it is full.
fn is_full(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

pub(super) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
