//! Ends the work of a hold by force: TERM to all of it, KILL to what is left, until all of it has ended.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use crate::identity::{Pid, ProcessId};
use crate::observer::least_start_of_work;
use crate::record::Record;
use crate::sys::process::boottime_milliseconds;
use crate::sys::work::{self, Author, Look, Marks, Target};

/// The clock by which records tell since when their work is being ended.
pub(super) fn clock() -> Duration {
    Duration::from_millis(boottime_milliseconds())
}

/// When KILL is due for a hold whose work is being ended since then; `None`: never.
pub(super) fn kill_at(record: &Record, began: Duration) -> Option<Duration> {
    Some(began.saturating_add(record.kill_after()?))
}

/// How long one step sends signals to processes that are started meanwhile. What is started later gets
/// KILL.
const STEP: Duration = Duration::from_secs(1);

/// Looks in a row that find nothing and are not sure of it, after which nothing is left.
const EMPTY_LOOKS: u32 = 5;

/// The work of a hold while it is being ended.
///
/// TERM goes once to every process of it, at the first [`step`](Self::step). Processes that are started
/// after that, such as those of a handler for TERM, are left to the processes that started them; they get
/// TERM once these have ended. KILL goes to all that is left when its time has come.
#[derive(Debug, Default)]
pub struct Ending {
    pub(super) marks: Marks,
    /// Reaped by its supervisor.
    command: Option<Pid>,
    /// By [`clock`]; `None`: never.
    kill_at: Option<Duration>,
    has_begun: bool,
    /// Sends no TERM: another process does, or has done so.
    pub(super) only_kills: bool,
    /// Looks in a row that have found nothing, see [`EMPTY_LOOKS`].
    empty_looks: u32,
    told: BTreeSet<ProcessId>,
    killed: BTreeSet<ProcessId>,
    refused: BTreeSet<ProcessId>,
}

/// The processes of the work after a step.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Remaining {
    /// The processes that still run.
    pub processes: Vec<ProcessId>,
    /// Those that this process may not signal. Each is reported once.
    pub refused: Vec<ProcessId>,
    /// Those that got KILL in this step.
    pub killed: Vec<ProcessId>,
    /// TERM was sent in this step.
    pub is_told: bool,
    /// All of the work has ended.
    pub is_over: bool,
    /// Why not all of the work could be looked at.
    pub look_failed: Option<io::Error>,
}

impl Ending {
    pub(super) fn new(marks: Marks, command: Option<Pid>, kill_at: Option<Duration>) -> Self {
        Self {
            marks,
            command,
            kill_at,
            ..Self::default()
        }
    }

    /// Whether KILL is due.
    pub(super) fn kills(&self) -> bool {
        self.kill_at.is_some_and(|at| clock() >= at)
    }

    /// Sends what is due, and returns what still runs. Blocks for milliseconds, at most about a second
    /// if processes are started all the time.
    pub fn step(&mut self) -> Remaining {
        let began = clock();
        let mut remaining = Remaining::default();
        loop {
            let sent = if self.kills() {
                self.look(&mut remaining, true)
            } else {
                self.tell(&mut remaining)
            };
            remaining.is_over = self.empty_looks >= EMPTY_LOOKS;
            if remaining.is_over {
                remaining.processes.clear();
                return remaining;
            }
            let is_looking = remaining.processes.is_empty() && remaining.look_failed.is_none();
            // Looks that have found nothing are few, and this process may have been stopped between two of them.
            let is_late = clock().saturating_sub(began) > STEP && self.empty_looks == 0;
            if is_late || !(sent || is_looking) {
                return remaining;
            }
        }
    }

    /// Lists what is left. `kills`: sends KILL to every process that has not got it. Returns whether there was one.
    fn look(&mut self, remaining: &mut Remaining, kills: bool) -> bool {
        let (killed, refused) = (&mut self.killed, &mut self.refused);
        let author = self.marks.author;
        let mut sent = false;
        remaining.processes.clear();
        let look = work::visit(&mut self.marks, self.command, &mut |target: &Target| {
            remaining.processes.push(target.process);
            if kills && killed.insert(target.process) {
                sent = true;
                if signal(target, author, Target::kill, refused, remaining) {
                    remaining.killed.push(target.process);
                }
            }
        });
        remaining.look_failed = None;
        self.empty_looks = match look {
            Look::Left => 0,
            Look::Unsure => self.empty_looks + 1,
            Look::Nothing => EMPTY_LOOKS,
            Look::Failed(error) => {
                remaining.look_failed = Some(error);
                0
            }
        };
        sent
    }

    /// Sends TERM to the processes that are due. Returns whether there was one.
    ///
    /// They are listed before the first signal: what a handler for TERM starts is not among them.
    fn tell(&mut self, remaining: &mut Remaining) -> bool {
        self.look(remaining, false);
        let mut due: BTreeSet<ProcessId> = remaining.processes.iter().copied().collect();
        if self.only_kills {
            return false;
        }
        if self.has_begun {
            if !self.is_left_alone(&remaining.processes) {
                return false;
            }
            due.retain(|process| !self.told.contains(process));
        } else {
            // One list may miss a process that has just lost its parent.
            self.look(remaining, false);
            due.extend(&remaining.processes);
        }
        self.has_begun = true;
        let (told, refused) = (&mut self.told, &mut self.refused);
        let author = self.marks.author;
        remaining.is_told = true;
        let _ = work::visit(&mut self.marks, self.command, &mut |target: &Target| {
            if due.contains(&target.process) && told.insert(target.process) {
                signal(target, author, Target::ask_to_end, refused, remaining);
            }
        });
        !due.is_empty()
    }

    /// Sends TERM to all of it once more, at the next step.
    pub fn tell_again(&mut self) {
        self.told.clear();
        self.has_begun = false;
    }

    /// Whether what runs was started after TERM, and by nothing that runs.
    fn is_left_alone(&self, processes: &[ProcessId]) -> bool {
        let is_ending = |process| self.told.contains(process) && !self.refused.contains(process);
        processes.iter().any(|process| !self.told.contains(process))
            && !processes.iter().any(is_ending)
    }
}

/// Sends a signal, if that may be done on the word of that author. Returns whether the signal was allowed.
fn signal(
    target: &Target,
    author: Author,
    send: fn(&Target) -> io::Result<()>,
    refused: &mut BTreeSet<ProcessId>,
    remaining: &mut Remaining,
) -> bool {
    let allowed = target.ensure_may_be_signaled(author);
    let result = allowed.and_then(|()| send(target));
    if !result.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
        return true;
    }
    if refused.insert(target.process) {
        remaining.refused.push(target.process);
    }
    false
}

/// How the work of a hold is recognized. Without an author: nothing of it may be signaled.
pub(super) fn marks(record: &Record) -> Marks {
    Marks {
        hold: entry_of_hold(record.hold, &record.name),
        since: least_start_of_work(record),
        ..Marks::default()
    }
}

/// A hold in `ONEHOLD_HOLDS`.
pub(super) fn entry_of_hold(hold: u64, name: &str) -> String {
    let name = percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC);
    format!("{hold}:{name}")
}
