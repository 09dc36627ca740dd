//! The processes of the work of a hold, by libproc and process groups.
//!
//! There is no subreaper: an orphan becomes a child of launchd(8). It is still found by its process
//! group, or by its environment.

use std::io;

use super::process::{environment_of, listed, presence};
use crate::identity::{Pid, ProcessId};
use crate::sys::ProcessState;
pub use crate::sys::not_linux::adopt_orphans;
pub(crate) use crate::sys::not_linux::{
    command_holds, has_open, own_children, visit_list, wait_for_any,
};
use crate::sys::unix::process::kill;
pub use crate::sys::unix::work::{let_work_go, work_is_contained};
use crate::sys::work::{Each, Listed, Look, Marks, environment_names_hold};

/// A live process of the work.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) process: ProcessId,
}

impl Target {
    /// Sends a signal, if the process is still the same one. There is nothing like a pidfd: between the
    /// look and the signal the PID could be reused.
    pub(in crate::sys) fn send(&self, signal: i32) -> io::Result<()> {
        if !self.is_alive() {
            return Ok(());
        }
        kill(self.process.pid.get().cast_signed(), signal)
    }

    /// The same process, if it is still there.
    pub(in crate::sys) fn find(process: ProcessId) -> Option<Self> {
        Some(Self { process }).filter(Self::is_alive)
    }

    /// Sends TERM to a wrapper. A stopped wrapper is continued, or it would not hear of it. A signal
    /// carries no number here.
    pub(in crate::sys) fn tell_that_broken(&self, _hold: u64) -> io::Result<()> {
        self.ask_to_end()
    }

    /// Lets a process that holds locks for a program look at them.
    pub(in crate::sys) fn tell_to_look(&self) -> io::Result<()> {
        self.send(libc::SIGURG)
    }

    pub(in crate::sys) fn is_alive(&self) -> bool {
        matches!(
            presence(self.process.pid),
            ProcessState::Alive { start } if start == self.process.start
        )
    }
}

/// Calls `each` for every live process of the work that can be seen. A process that has left its
/// parent, its process group and its environment is out of reach.
pub(crate) fn visit(marks: &mut Marks, _command: Option<Pid>, each: &mut Each<'_>) -> Look {
    let hold = marks.hold.clone();
    let is_marked = |pid| {
        environment_of(pid).is_some_and(|environment| environment_names_hold(&environment, &hold))
    };
    visit_list(list(), marks, is_marked, each)
}

fn list() -> io::Result<Vec<Listed>> {
    // SAFETY: without a buffer it returns a number.
    let count = unsafe { libc::proc_listallpids(std::ptr::null_mut(), 0) };
    // Room for those that are started meanwhile.
    let mut pids = vec![0_i32; usize::try_from(count).unwrap_or(0) + 64];
    let bytes = i32::try_from(size_of_val(pids.as_slice())).unwrap_or(i32::MAX);
    // SAFETY: the buffer lives, and has that size.
    let count = unsafe { libc::proc_listallpids(pids.as_mut_ptr().cast(), bytes) };
    if count <= 0 {
        return Err(io::Error::last_os_error());
    }
    pids.truncate(usize::try_from(count).unwrap_or(0));
    let listed = pids
        .into_iter()
        .filter_map(|pid| listed(Pid::new(pid.try_into().ok()?)?));
    Ok(listed.collect())
}
