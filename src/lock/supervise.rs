//! What the command-line tool does with a hold whose command it supervises.

use std::time::Duration;

use super::ending::{Ending, Remaining, clock, kill_at, marks};
use super::hold::{Hold, NEEDS_KEEPER, recording, spawn_error};
use super::options::milliseconds;
use crate::error::Result;
use crate::identity::{Pid, ProcessId};
use crate::record::Format;
use crate::sys::QueuedSignal;
use crate::sys::signal::{self, SignalMask};
use crate::sys::start::{Program, Started};
use crate::sys::work::{self, Author};

#[doc(hidden)]
impl Hold {
    /// Starts a command like [`Hold::spawn`] does, without a copy of this process, and with the signals of
    /// `mask` blocked.
    ///
    /// # Errors
    /// As for [`Hold::spawn`].
    pub fn start(&mut self, program: &mut Program, mask: &SignalMask) -> Result<Started> {
        self.older = work::own_children();
        self.clear_command()?;
        let Some(recording) = recording(&*self.held)? else {
            #[cfg(all(feature = "cluster", target_os = "linux"))]
            if crate::sys::keeper::is_keeper() {
                return self.start_kept(program, mask);
            }
            return Err(NEEDS_KEEPER);
        };
        let mut started = program
            .start(recording, mask)
            .map_err(|source| spawn_error(source, self.held.path(), &program.name()))?;
        // The start of a command that has ended tells nothing, and noting it delays the release. But a PID file is
        // known to be ours by the PID that the command has written.
        if self.held.record().format != Format::Native || !has_ended(&mut started) {
            self.started(started.id());
        }
        Ok(started)
    }

    /// Notes once that the command has closed its descriptor of the lock file, as sudo and daemons do.
    /// From then on a free kernel lock proves nothing about this hold.
    ///
    /// # Errors
    /// The lock file cannot be written.
    pub fn note_closed_descriptor(&mut self) -> Result<()> {
        let held = &self.held;
        let record = held.record();
        let may_have = record.has_command() && !record.close && !record.live.let_go;
        let pid = record.live.pid.filter(|_| may_have);
        match (pid, held.file()) {
            (Some(pid), Some(file)) if !work::command_holds(pid.get(), file) => {
                self.write(|live| live.let_go = true)
            }
            _ => Ok(()),
        }
    }

    /// Time until [`Hold::is_lost`] returns `true` unless the lease is renewed meanwhile. `None`: no clock
    /// decides.
    pub fn lost_in(&self) -> Option<Duration> {
        let (at, _) = self.held.deadlines_ms()?;
        Some(Duration::from_millis(at).saturating_sub(clock()))
    }

    /// Begins to end the work of this hold by force: its command, and what that has started. From now
    /// on its record says so, so that the next process ends the rest if this one is killed. KILL follows
    /// after [`RunOptions::kill_after`](crate::RunOptions).
    ///
    /// All children of this process that it did not have before [`start`](Self::start) are taken for the
    /// work, the orphans that it [adopts](work::adopt_orphans) too.
    pub fn end_work(&mut self, command: &Started) -> Ending {
        let began = clock();
        if !matches!(self.is_lost(), Ok(true)) {
            let written = self.write(|live| live.ending = Some(milliseconds(began)));
            self.warnings.extend(written.err());
        }
        let record = self.held.record();
        let mut marks = marks(record);
        // The processes that this one has started are its own, whatever happened to the file.
        marks.author = Author::Trusted;
        marks.wrapper = if self.held.file().is_some() {
            record.writer()
        } else {
            // The keeper, and not its wrapper, which is on record.
            Some(ProcessId::of(Pid::of_self()))
        };
        // This process may have had children before.
        marks.since = record.live.start.unwrap_or(marks.since);
        marks.others.clone_from(&self.older);
        Ending::new(marks, Pid::new(command.id()), kill_at(record, began))
    }

    /// Goes on to end the work. See [`Ending::step`].
    pub fn step(&mut self, ending: &mut Ending) -> Remaining {
        let remaining = ending.step();
        if remaining.is_told && !self.held.record().live.told {
            // If this fails and this process is killed, the next one sends TERM again.
            let _ = self.write(|live| live.told = true);
        }
        remaining
    }

    /// Starts a command under a hold that a lease keeps, in the keeper, which ends with its command.
    #[cfg(all(feature = "cluster", target_os = "linux"))]
    #[cold]
    #[inline(never)]
    fn start_kept(&mut self, program: &mut Program, mask: &SignalMask) -> Result<Started> {
        self.ensure_in_place()?;
        let started = program
            .start_kept(mask)
            .map_err(|source| spawn_error(source, self.held.path(), &program.name()))?;
        self.started(started.id());
        Ok(started)
    }
}

impl QueuedSignal {
    /// Whether one has told it, which came when there was no queue yet.
    pub fn has_told_to_break(hold: u64) -> bool {
        signal::last_number() == Some(work::number_to_tell(hold))
    }

    /// Whether it tells this process that its hold with this number is to be broken: its work is to be
    /// ended and the hold released. Nothing else sends TERM with a number.
    pub fn tells_to_break(self, hold: u64) -> bool {
        self.value == Some(work::number_to_tell(hold)) || (self.has_lost_value && self.is_term())
    }
}

/// On Windows, looking whether a process has ended also records that it has.
fn has_ended(started: &mut Started) -> bool {
    matches!(started.how_ended(), Ok(Some(_)))
}
