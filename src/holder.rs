//! Whose hold a detached acquire is: the command that asks for it ends at once, and its parent is
//! often as short-lived (`$(…)`, a pipe, a line of a makefile).

use std::time::Duration;

use crate::error::{Error, Result};
use crate::identity::{Pid, ProcessId};
use crate::sys::{Kinship, Presence, process};

/// What a detached hold is kept by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A process: the hold ends with it.
    Process(ProcessId),
    /// Time only; needs [`Claim::ttl`](crate::Claim::ttl).
    Lease,
}

/// More generations than any real process has; /proc could name a circle while it changes.
const MOST_ANCESTORS: usize = 256;

impl Holder {
    /// A process chosen by its pid.
    ///
    /// # Errors
    /// [`Error::NoSuchProcess`] if no process has it; a thread's id is none.
    pub fn process(pid: u32) -> Result<Self> {
        let known = Pid::new(pid).ok_or(Error::NoSuchProcess { pid })?;
        match process::presence(known) {
            Presence::Gone => Err(Error::NoSuchProcess { pid }),
            Presence::Alive { start } => Ok(Self::Process(ProcessId { pid: known, start })),
            Presence::Unknown => Ok(Self::Process(ProcessId {
                pid: known,
                start: None,
            })),
        }
    }

    /// The process that a detached hold of the caller should follow: the oldest ancestor in its
    /// own process group (the script, whatever subshells and pipes lie between), else the session
    /// leader if that is an ancestor.
    ///
    /// # Errors
    /// [`Error::NothingToHold`]: there is neither.
    pub fn of_caller() -> Result<Self> {
        let own = process::kinship(process::own_pid()).ok_or(Error::NothingToHold)?;
        let ancestors = ancestors();
        let in_group = ancestors
            .iter()
            .rev()
            .find(|(_, kinship)| kinship.group == own.group);
        let leader = || ancestors.iter().find(|(pid, _)| pid.get() == own.session);
        let (pid, _) = in_group.or_else(leader).ok_or(Error::NothingToHold)?;
        Self::process(pid.get())
    }
}

/// The ancestors of the calling process, its parent first, as far as /proc shows them.
fn ancestors() -> Vec<(Pid, Kinship)> {
    let mut ancestors = Vec::new();
    let mut next = process::kinship(process::own_pid()).and_then(|own| own.parent);
    while let Some(pid) = next {
        let Some(kinship) = process::kinship(pid).filter(|_| ancestors.len() < MOST_ANCESTORS)
        else {
            break;
        };
        ancestors.push((pid, kinship));
        next = kinship.parent;
    }
    ancestors
}

/// Whether a recorded process, known to be alive, is an ancestor of the caller.
pub(crate) fn is_ancestor(recorded: ProcessId) -> bool {
    ancestors().iter().any(|(pid, _)| *pid == recorded.pid)
}

/// Whether a process is known to have ended.
pub(crate) fn has_ended(recorded: ProcessId) -> bool {
    match process::presence(recorded.pid) {
        Presence::Gone => true,
        Presence::Alive { start } => is_another(recorded, start),
        Presence::Unknown => false,
    }
}

/// Whether a start is that of another process than the recorded one. A time namespace shifts
/// starts by fractions of a tick.
fn is_another(recorded: ProcessId, start: Option<u64>) -> bool {
    matches!((start, recorded.start), (Some(now), Some(then)) if now.abs_diff(then) > 1)
}

/// The command line of a running process; empty if it cannot be read.
#[must_use]
pub fn command_line_of(pid: Pid) -> Vec<String> {
    process::command_line(pid)
}

/// Waits until a process has ended, for at most `limit`; whether it has.
#[must_use]
pub(crate) fn wait_until_gone(recorded: ProcessId, limit: Duration) -> bool {
    let deadline = process::boottime() + limit;
    loop {
        let left = deadline.saturating_sub(process::boottime());
        if has_ended(recorded) {
            return true;
        }
        if left.is_zero() {
            return false;
        }
        // `None`: no pidfd to be had; a signal ends the sleep early. Either way, look again.
        if crate::sys::wait::until_gone(recorded.pid, left).is_none() {
            let _ = crate::sys::wait::pause(left.min(Duration::from_millis(50)));
        }
    }
}
