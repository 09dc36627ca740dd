//! Finishing what another process has begun: the work of a hold is being ended, and that process is gone.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use super::ending::{Ending, Remaining, clock, kill_at, marks};
use super::lock::Lock;
use crate::decision::Request;
use crate::decision::verdict::Reason;
use crate::error::Result;
use crate::files::provenance;
use crate::identity::ProcessId;
use crate::open_file::Judged;
use crate::record::Record;
use crate::status::Provenance;
use crate::sys::work::{Author, Marks, tell_to_look, wait_for_any};

/// Interval between two looks where no event wakes the caller.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Waits until one of these processes may have ended.
pub(super) fn pause(processes: &[ProcessId], at_most: Duration) {
    wait_for_any(processes, at_most.min(LOOK_INTERVAL));
    // A process that this one may not look at would be looked for without a pause.
    let _ = crate::sys::wait::pause(Duration::from_millis(2));
}

/// How long the process that began it may take to send TERM.
const BEGINS: Duration = Duration::from_secs(2);

impl Lock {
    /// Finishes what was begun by a process that is gone: the work of a hold is being ended, and may not
    /// have ended. Blocks for at most about a second. Returns whether all of it has ended. `unfinished`: the work
    /// that the caller is finishing.
    pub(super) fn finish(&self, judged: &Judged, unfinished: &mut Option<Ending>) -> bool {
        let Some(record) = judged.record().filter(|_| is_orphaned_ending(judged)) else {
            return false;
        };
        // Its caller has exited, and no process is ending the work yet.
        let began = record.live.ending.map_or_else(clock, Duration::from_millis);
        let fresh = Ending::new(marks_of(judged), None, kill_at(record, began));
        // The same `Ending` goes on, so that TERM is sent once.
        unfinished.take_if(|ending| ending.marks.hold != fresh.marks.hold);
        let ending = unfinished.get_or_insert(fresh);
        let started = clock();
        let may_be_told = record.live.ending.is_some() && started < began.saturating_add(BEGINS);
        ending.only_kills = record.live.told || may_be_told;
        let mut is_told = false;
        let is_over = loop {
            let remaining = ending.step();
            is_told |= remaining.is_told;
            if remaining.is_over {
                break !is_locked(judged);
            }
            // What dies of TERM does so at once.
            let patience = Duration::from_millis(if ending.kills() { 1_000 } else { 100 });
            let left = (started + patience).saturating_sub(clock());
            if left.is_zero() {
                break false;
            }
            pause(&remaining.processes, left);
        };
        if is_told && !is_over {
            self.note_told(judged);
        }
        is_over
    }
}

/// Whether all of the work of a hold has ended that is being ended by force. Sends no signal.
pub(super) fn is_over(judged: &Judged) -> bool {
    is_orphaned_ending(judged) && look(marks_of(judged)).is_over && !is_locked(judged)
}

/// Asks until no hold that the answer depends on has turned out to be over.
pub(super) fn settle<T>(
    request: &mut Request,
    mut ask: impl FnMut(&Request) -> Result<T>,
    depends_on: impl Fn(&T) -> Option<&[Judged]>,
) -> Result<T> {
    loop {
        let answer = ask(request)?;
        let mut holds = depends_on(&answer).into_iter().flatten();
        match holds.find(|judged| is_over(judged)) {
            Some(over) => request.over.push(over.found.revision.clone()),
            None => return Ok(answer),
        }
    }
}

/// The processes of the work that still run. Sends no signal.
pub(super) fn look(marks: Marks) -> Remaining {
    let mut ending = Ending::new(marks, None, None);
    ending.only_kills = true;
    ending.step()
}

/// The live wrapper that ends the work when a break sends it TERM.
pub(super) fn live_wrapper(own: &Judged) -> Option<(&Record, ProcessId)> {
    let record = own.record()?;
    let is_there = record.supervised && own.verdict.wrapper_alive == Some(true);
    Some((record, record.writer().filter(|_| is_there)?))
}

/// A process that holds the lock for a command and does not supervise it.
pub(super) fn unsupervising_wrapper(own: &Judged) -> Option<ProcessId> {
    let record = own.record()?;
    let is_there = own.verdict.wrapper_alive == Some(true);
    record
        .writer()
        .filter(|_| is_there && !record.supervised && !record.exec)
}

/// The work of a hold is being ended, and the wrapper that would do it is known to be gone, or there was
/// none. In another PID namespace that is not known.
pub(super) fn is_orphaned_ending(judged: &Judged) -> bool {
    let verdict = &judged.verdict;
    let is_supervised = judged.record().is_some_and(|record| record.supervised);
    verdict.reason == Reason::Ending
        && if is_supervised {
            verdict.wrapper_alive == Some(false)
        } else {
            verdict.pid_alive.is_some()
        }
}

pub(super) fn marks_of(judged: &Judged) -> Marks {
    let Some(record) = judged.record() else {
        return Marks::default();
    };
    let mut marks = marks(record);
    marks.author = author(judged);
    let is_locked = judged.found.facts.kernel_lock == Some(true);
    let open = judged.found.handle.as_ref().filter(|_| is_locked);
    // If no descriptor is left for it, its lock counts as taken in the end.
    let file = open.map(|open| open.with_file(File::try_clone));
    marks.file = file.and_then(|file| file.ok()?).map(Arc::new);
    marks.wrapper = live_wrapper(judged).map(|(_, wrapper)| wrapper);
    // A program that embeds this library.
    marks.others.extend(unsupervising_wrapper(judged));
    // Seen alive, so that its PID means this process here.
    let command = record.live.process().filter(|command| {
        Some(command.pid) == judged.verdict.pid && judged.verdict.pid_alive == Some(true)
    });
    marks.known.extend(command.and_then(|command| {
        let seen = ProcessId::of(command.pid);
        command.is_same(seen).then_some(seen)
    }));
    marks
}

/// The users who can have written a record. From elsewhere, it is its author's word about another lock.
pub(super) fn author(judged: &Judged) -> Author {
    let is_from_elsewhere = provenance::of(&judged.found) != Some(Provenance::Here);
    let open = judged.found.handle.as_ref();
    let open = open.filter(|_| judged.record().is_none() || !is_from_elsewhere);
    open.map_or(Author::Unknown, |open| open.author())
}

/// Lets the process that kept this hold for a program, beside others, notice at once that it is gone. Without that it
/// does within about a second.
pub(super) fn tell_server(judged: &Judged) {
    let served = judged.record().filter(|record| record.is_served());
    let is_alive = judged.verdict.pid_alive == Some(true);
    let process = served.and_then(|record| record.live.process());
    if let Some(process) = process.filter(|_| is_alive) {
        let _ = tell_to_look(process, author(judged));
    }
}

/// Whether the kernel lock of a record is taken; one that cannot be asked for counts as free where it
/// did not count before.
pub(super) fn is_locked(judged: &Judged) -> bool {
    judged.found.facts.shares_kernel_locks
        && judged
            .found
            .handle
            .as_ref()
            .is_some_and(|open| open.is_locked().unwrap_or(true))
}
