//! Breaking a hold, with all of its work or at once.

use std::time::Duration;

use super::ending::{Ending, Remaining, clock, kill_at, marks};
use super::holder::WITHOUT_SIGNAL;
use super::journal::result_of;
use super::lock::Lock;
use super::options::{Options, milliseconds};
use super::unfinished::{
    author, is_locked, live_wrapper, look, marks_of, pause, tell_server, unsupervising_wrapper,
};
use crate::backend::{Change, Entry};
use crate::decision::ownership::may_break;
use crate::decision::verdict::{Evidence, Reason};
use crate::decision::{Asker, Revision};
use crate::error::{Context, Error, Result};
use crate::identity::ProcessId;
use crate::journal_line::Action;
use crate::open_file::Judged;
use crate::record::{KILL_AFTER, Kind};
use crate::status::{KeptPlace, Status};
use crate::sys::process::start_ticks;
use crate::sys::work::{may_be_signaled, tell_wrapper};

/// How long a process may take to exit after KILL. One in an uninterruptible sleep takes longer.
const AFTER_KILL: Duration = Duration::from_secs(2);

/// How long a wrapper may take to write that it ends its work. It is continued if it was stopped.
const WRAPPER_ANSWERS: Duration = Duration::from_secs(3);

/// Result of a break.
#[derive(Debug)]
#[must_use]
pub enum Break {
    /// Broken. All of the work of a `run` has ended, unless it was to be broken at once.
    Done {
        /// The hold that was removed.
        was: Box<Status>,
        /// Errors that did not prevent the break.
        warnings: Vec<Error>,
    },
    /// Some of its work could not be ended, or other processes than the one on record have locked the file.
    /// The hold is still there.
    StillRunning {
        /// The hold.
        was: Box<Status>,
        /// The processes that still run. Empty: a process that cannot be seen from here keeps the lock file
        /// open.
        processes: Vec<ProcessId>,
        /// Why not all of its processes could be looked at.
        look_failed: Option<std::io::Error>,
        /// Another caller has removed the hold by force meanwhile.
        is_removed: bool,
    },
    /// There is nothing to break.
    Nothing,
    /// It is no longer the hold that was shown.
    Changed(Box<Status>),
}

/// Called while the work of a hold is being ended, with the longest time that this may still take.
/// `false`: do not wait for it.
pub type OnBreak<'a> = dyn FnMut(Duration) -> bool + 'a;

/// Result of the removal of a hold.
enum Removal {
    Done(Judged),
    Nothing,
    Changed(Judged),
    /// It is still there, because it was not to be removed as it is.
    Spared(Judged),
    /// It is still there, because the process that acquires it has not confirmed it yet.
    Unconfirmed(Judged),
}

/// Result of ending the work of a hold.
enum Work {
    Ended,
    /// Its wrapper is gone, or does not answer.
    Orphaned,
    /// The processes that are left, and why not all of the work could be looked at.
    Left(Vec<ProcessId>, Option<std::io::Error>),
}

impl Lock {
    /// Removes the hold that was shown, dead or alive. If it is a live `run`, all of its work is ended
    /// first: TERM, KILL after 10 s or what the `run` asked for, and the hold is removed once nothing
    /// runs any more. The process of a detached hold is not signaled.
    ///
    /// # Errors
    /// The store cannot be used.
    pub fn break_hold(&self, shown: &Revision, on_break: &mut OnBreak<'_>) -> Result<Break> {
        self.ensure_changeable()?;
        // What runs on another machine is ended there, by the keeper, when the hold is removed.
        let is_here = !self.store.is_remote();
        let is_spared =
            |own: &Judged| is_here && (is_run_at_work(own) || is_locked_by_unknown(own));
        let own = match self.remove_shown(shown, is_spared)? {
            Removal::Spared(own) => own,
            removal => return Ok(self.broken(removal)),
        };
        let was = Box::new(self.status(&own));
        let work = if is_locked_by_unknown(&own) {
            let lockers = own.found.facts.lockers.iter().copied();
            Work::Left(lockers.map(ProcessId::of).collect(), None)
        } else {
            self.end_work(&own, on_break)?
        };
        if let Work::Left(processes, look_failed) = work {
            // The hold may have ended by itself meanwhile. If its file was gone before its author was asked for,
            // its wrapper got no signal.
            let removal = self.remove_shown(shown, |_| true)?;
            let is_removed = !matches!(removal, Removal::Spared(_));
            if is_removed && left_behind(&own).is_over {
                return Ok(self.broken(removal));
            }
            return Ok(Break::StillRunning {
                was,
                processes,
                look_failed,
                is_removed,
            });
        }
        let removal = self.remove_shown(shown, |_| false)?;
        // Else its wrapper has removed it, and noted its end.
        let removed = match removal {
            Removal::Done(own) => Some(self.status(&own)),
            _ => None,
        };
        Ok(self.done(was, removed))
    }

    /// Removes the hold that was shown, dead or alive, at once. Signals no process: the work of the hold
    /// may run on beside the next holder. The wrapper of a `run` notices within about a second and ends
    /// it, unless it was started with `--on-lost warn`.
    ///
    /// # Errors
    /// The store cannot be used.
    pub fn break_at_once(&self, shown: &Revision) -> Result<Break> {
        self.ensure_changeable()?;
        let removal = self.remove_shown(shown, |_| false)?;
        Ok(self.broken(removal))
    }

    /// The live processes of the work of the hold that was shown, as far as they can be seen from here. Of a
    /// `run`: what [`break_hold`](Self::break_hold) would end. Of a detached hold: the process that it
    /// follows, and what that has started, which a break leaves running. Reads the list of all processes;
    /// what starts or ends meanwhile may be missed. Signals nothing.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn work(&self, shown: &Revision) -> Result<Vec<ProcessId>> {
        let own = self.look_shown(shown)?;
        let Some((own, record)) = own.as_ref().and_then(|own| Some((own, own.record()?))) else {
            return Ok(Vec::new());
        };
        if record.is_without_command() || record.is_served() {
            let is_there = own.verdict.pid_alive == Some(true);
            let process = record.live.process().filter(|_| is_there);
            return Ok(process.into_iter().collect());
        }
        let mut marks = marks_of(own);
        if record.kind != Kind::Run {
            // It was running when it acquired the lock.
            marks.since = 0;
        }
        let author = marks.author;
        let mut processes = look(marks).processes;
        // A wrapper that may be told ends all of it.
        let is_told = live_wrapper(own)
            .is_some_and(|(_, wrapper)| may_be_signaled(wrapper, author) == Some(true));
        if record.kind == Kind::Run && !is_told {
            processes.retain(|process| may_be_signaled(*process, author) == Some(true));
        }
        Ok(processes)
    }

    /// The live processes of the work of the hold that was shown that nothing of this library signals,
    /// because users who may not signal them can have written its record. Usually none. Signals nothing.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn spared_work(&self, shown: &Revision) -> Result<Vec<ProcessId>> {
        let Some(own) = self.look_shown(shown)? else {
            return Ok(Vec::new());
        };
        let marks = marks_of(&own);
        let (author, wrapper) = (marks.author, marks.wrapper);
        let mut processes = look(marks).processes;
        processes.extend(wrapper);
        processes.retain(|process| may_be_signaled(*process, author) == Some(false));
        Ok(processes)
    }

    /// The places in the queue that are kept for waiters that are gone, in order; see
    /// [`Wait::keep_place`](crate::Wait::keep_place).
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn kept_places(&self) -> Result<Vec<KeptPlace>> {
        self.store.kept_places(self.name())
    }

    /// Removes a hold, unless it is to be spared.
    fn remove_shown(
        &self,
        shown: &Revision,
        is_spared: impl Fn(&Judged) -> bool,
    ) -> Result<Removal> {
        let request = self.request(&Options::new(), Asker::Caller);
        loop {
            let updated = self.store.update(Entry::EXISTING, |snapshot| {
                let mut own = self.shown(&request, snapshot, shown)?;
                if own.is_none() {
                    let holds = self.holds(&request, snapshot)?;
                    // One of several has ended; the others were not shown.
                    let is_exclusive = holds.iter().all(|own| own.found.key.index.is_none());
                    own = holds.into_iter().next().filter(|_| is_exclusive);
                }
                Ok(match own {
                    None => (Change::Nothing, Removal::Nothing),
                    Some(own) if !may_break(shown, &own) => {
                        (Change::Nothing, Removal::Changed(own))
                    }
                    Some(own) if own.confirmed_within().is_some() => {
                        (Change::Nothing, Removal::Unconfirmed(own))
                    }
                    Some(own) if is_spared(&own) => (Change::Nothing, Removal::Spared(own)),
                    Some(own) => {
                        // It cannot be found out once the file is removed.
                        let _ = author(&own);
                        let lines = self.lines(&own, Some(Action::Break), result_of);
                        (Change::Remove(own.clone(), lines), Removal::Done(own))
                    }
                })
            })?;
            match updated.unwrap_or(Removal::Nothing) {
                Removal::Unconfirmed(own) => self.wait_until_confirmed(&own),
                removal => return Ok(removal),
            }
        }
    }

    fn broken(&self, removal: Removal) -> Break {
        match removal {
            Removal::Nothing => Break::Nothing,
            Removal::Changed(own) | Removal::Spared(own) | Removal::Unconfirmed(own) => {
                Break::Changed(Box::new(self.status(&own)))
            }
            Removal::Done(own) => {
                let was = self.status(&own);
                let done = self.done(Box::new(was.clone()), Some(was));
                // It looks into the journal.
                tell_server(&own);
                done
            }
        }
    }

    /// Writes a break to the journal. `removed`: by this process, when its work had ended.
    fn done(&self, was: Box<Status>, removed: Option<Status>) -> Break {
        let mut warnings: Vec<Error> = self.note(Action::Break, &was, None).into_iter().collect();
        let note_end = |removed| self.note_end(&removed, result_of(&was));
        warnings.extend(removed.and_then(note_end));
        Break::Done { was, warnings }
    }

    fn end_work(&self, own: &Judged, on_break: &mut OnBreak<'_>) -> Result<Work> {
        if let Some((record, wrapper)) = live_wrapper(own) {
            match tell_wrapper(wrapper, record.hold, author(own)) {
                Ok(()) => match self.wait_for_wrapper(own, on_break)? {
                    Work::Orphaned => {}
                    work => return Ok(work),
                },
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                    let command = record.live.process();
                    let processes = command.into_iter().chain([wrapper]).collect();
                    return Ok(Work::Left(processes, None));
                }
                Err(error) => return Err(error).context("signal the wrapper of", &self.path()),
            }
        }
        self.end_orphaned_work(own, on_break)
    }

    /// Waits while the wrapper ends its work. It removes its record then; but a caller that takes the lock by force
    /// removes it at once.
    fn wait_for_wrapper(&self, own: &Judged, on_break: &mut OnBreak<'_>) -> Result<Work> {
        let told_at = clock();
        let mut last_seen = own.clone();
        loop {
            let found = self.look_shown(&own.found.revision)?;
            let is_removed = found.is_none();
            last_seen = found.unwrap_or(last_seen);
            let Some((record, wrapper)) = live_wrapper(&last_seen) else {
                return Ok(Work::Orphaned);
            };
            if is_removed && left_behind(&last_seen).is_over {
                return Ok(Work::Ended);
            }
            let has_answered = record.live.ending.is_some() || is_removed;
            let until = match record.live.ending {
                None if !has_answered => told_at + WRAPPER_ANSWERS,
                ending => kill_at(record, ending.map_or(told_at, Duration::from_millis))
                    .unwrap_or(told_at + KILL_AFTER)
                    .saturating_add(AFTER_KILL),
            };
            let left = until.saturating_sub(clock());
            if left.is_zero() && !has_answered {
                return Ok(Work::Orphaned);
            }
            if left.is_zero() || !on_break(left) {
                let mut marks = marks(record);
                marks.wrapper = Some(wrapper);
                let mut processes = look(marks).processes;
                if processes.is_empty() {
                    processes.push(wrapper);
                }
                return Ok(Work::Left(processes, None));
            }
            pause(&[wrapper], left);
        }
    }

    /// Ends the work of a hold without a wrapper that would.
    fn end_orphaned_work(&self, last_seen: &Judged, on_break: &mut OnBreak<'_>) -> Result<Work> {
        let request = self.request(&Options::new(), Asker::Caller);
        let note_begin = |note: bool| {
            self.store.update(Entry::EXISTING, |snapshot| {
                let own = self.shown(&request, snapshot, &last_seen.found.revision)?;
                let change = match own.as_ref().and_then(|own| Some((own, own.record()?))) {
                    Some((own, record)) if note && record.live.ending.is_none() => {
                        let mut live = record.live.clone();
                        live.ending = Some(milliseconds(clock()));
                        Change::Renew(own.clone(), Box::new(live))
                    }
                    _ => Change::Nothing,
                };
                Ok((change, own))
            })
        };
        // Some records have no room for it, and another user's cannot be written. Its work can be ended
        // nevertheless, but only by this process.
        let own = note_begin(true).or_else(|_| note_begin(false))?.flatten();
        let Some((own, record)) = own.as_ref().and_then(|own| Some((own, own.record()?))) else {
            let left = left_behind(last_seen);
            return Ok(if left.is_over {
                Work::Ended
            } else {
                Work::Left(left.processes, left.look_failed)
            });
        };
        // An earlier process may have begun it.
        let began = record.live.ending.map_or_else(clock, Duration::from_millis);
        let kill_at = kill_at(record, began);
        let give_up_at = kill_at.unwrap_or(clock() + KILL_AFTER);
        let wrapper = live_wrapper(own)
            .map(|(_, wrapper)| wrapper)
            .or_else(|| unsupervising_wrapper(own));
        let mut ending = Ending::new(marks_of(own), None, kill_at);
        let (mut empty_since, mut spared_since) = (None, None);
        loop {
            let remaining = ending.step();
            if remaining.is_told {
                self.note_told(own);
            }
            let now = clock();
            let mut left = remaining.processes.iter();
            // If a look found no process, it may only have been unsure.
            let is_spared = !remaining.processes.is_empty()
                && left.all(|process| may_be_signaled(*process, ending.marks.author) != Some(true));
            let until = if remaining.is_over {
                match wrapper {
                    // It does not answer, and keeps its own lock. Its children were looked at.
                    Some(wrapper) if start_ticks(wrapper.pid).is_some() => return Ok(Work::Ended),
                    Some(wrapper) => return Ok(Work::Left(vec![wrapper], None)),
                    None if !is_locked(own) => return Ok(Work::Ended),
                    None => *empty_since.get_or_insert(now) + AFTER_KILL,
                }
            } else if is_spared && remaining.look_failed.is_none() {
                // Whoever wrote the record may ask for any time before KILL, which these do not get.
                *spared_since.get_or_insert(now) + WITHOUT_SIGNAL
            } else {
                (empty_since, spared_since) = (None, None);
                give_up_at.saturating_add(AFTER_KILL)
            };
            let left = until.saturating_sub(now);
            if left.is_zero() || !on_break(left) {
                return Ok(Work::Left(remaining.processes, remaining.look_failed));
            }
            pause(&remaining.processes, left);
        }
    }

    /// Notes that TERM was sent to the work of a hold without a wrapper, so that no process sends it again.
    pub(super) fn note_told(&self, judged: &Judged) {
        let Some(record) = judged.record() else {
            return;
        };
        let mut live = record.live.clone();
        live.told = true;
        live.ending = live.ending.or_else(|| Some(milliseconds(clock())));
        let _ = self.store.update(Entry::EXISTING, |_| {
            Ok((Change::Renew(judged.clone(), Box::new(live.clone())), ()))
        });
    }
}

/// What is left of the work of a hold whose record is gone. If it has ended by itself, its wrapper is gone, too, and what
/// its command has left behind keeps running.
fn left_behind(last_seen: &Judged) -> Remaining {
    let is_given_back = live_wrapper(last_seen)
        .is_some_and(|(record, wrapper)| record.live.ending.is_none() && wrapper.has_ended());
    let mut left = look(marks_of(last_seen));
    left.is_over |= is_given_back;
    left
}

/// A hold whose kernel lock is taken, and of which no record says by which work: another version of onehold wrote it,
/// it was overwritten, or its process has ended and others have locked the file.
fn is_locked_by_unknown(own: &Judged) -> bool {
    let is_unknown = own.record().is_none() || own.verdict.reason == Reason::Locked;
    is_unknown && own.verdict.evidence == Evidence::KernelLock
}

/// A live `run` of this library, whose work can be ended.
fn is_run_at_work(own: &Judged) -> bool {
    own.record()
        .is_some_and(|record| record.kind == Kind::Run && record.origin.is_some())
        && own.verdict.is_certainly_held()
}
