//! The processes that /proc lists, and the children of the calling process.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::{Errno, retry_on_intr};
use rustix::process::{WaitId, WaitIdOptions, WaitOptions, waitid, waitpid};

use super::filesystem::names_in;
use super::process::{ensure_proc_is_ours, listed, shown_pids};
use crate::identity::{Pid, ProcessId};
use crate::sys::unix::process::raw;
use crate::sys::work::Listed;

/// Whether this process has a child that has not ended. One that has ended and was not waited for does not
/// count, because it cannot stop any more (linux/kernel/exit.c, `wait_consider_task`).
///
/// # Errors
/// The kernel does not say it.
pub(super) fn has_live_children() -> io::Result<bool> {
    has_child(WaitId::All, WaitIdOptions::STOPPED)
}

/// Whether a process is known to be a child of this one that has not ended.
pub(super) fn is_live_child(pid: Pid) -> bool {
    raw(pid).is_some_and(|pid| has_child(WaitId::Pid(pid), WaitIdOptions::STOPPED).unwrap_or(false))
}

/// Whether there is a child that can still change its state in that way. It is left as it is.
fn has_child(which: WaitId<'_>, change: WaitIdOptions) -> io::Result<bool> {
    match waitid(
        which,
        change | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT,
    ) {
        Ok(_) => Ok(true),
        Err(Errno::CHILD) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Waits until a child ends, and reaps it.
///
/// # Errors
/// Those of waitpid(2).
pub(super) fn wait_for_child(pid: libc::pid_t) -> io::Result<ExitStatus> {
    let child = rustix::process::Pid::from_raw(pid);
    let waited = retry_on_intr(|| waitpid(child, WaitOptions::empty()))?;
    let status = waited.map_or(0, |(_, status)| status.as_raw());
    Ok(ExitStatus::from_raw(status))
}

/// The children of this process, if it has any.
pub(crate) fn own_children() -> Vec<ProcessId> {
    // What the kernel does not say is looked for.
    if !has_child(WaitId::All, WaitIdOptions::EXITED).unwrap_or(true) {
        return Vec::new();
    }
    let own = Pid::of_self();
    let children = if has_children_files() {
        children_of(own)
    } else {
        list().map(|(list, _)| {
            let children = list.iter().filter(|listed| listed.parent == own.get());
            children.map(|listed| listed.process.pid).collect()
        })
    };
    let children: Vec<Pid> = children.unwrap_or_else(|_| {
        let numbers = (1..PID_LIMIT).filter_map(Pid::new);
        numbers.filter(|pid| is_live_child(*pid)).collect()
    });
    children.into_iter().map(ProcessId::of).collect()
}

/// The children of all threads of a process (proc_tid_children(5)).
///
/// # Errors
/// There is no such process, or it cannot be looked at.
pub(super) fn children_of(parent: Pid) -> io::Result<Vec<Pid>> {
    ensure_proc_is_ours()?;
    let mut children = Vec::new();
    let threads = PathBuf::from(format!("/proc/{parent}/task"));
    // All before the first is read: if one ends between two calls for their names, the kernel leaves others out.
    let all: Vec<_> = names_in(&threads)?.collect::<io::Result<_>>()?;
    for thread in all {
        // `None`: the thread has ended.
        let text = shown(std::fs::read_to_string(
            threads.join(thread).join("children"),
        ))?;
        let numbers = text.iter().flat_map(|text| text.split_ascii_whitespace());
        children.extend(numbers.filter_map(|number| Pid::new(number.parse().ok()?)));
    }
    Ok(children)
}

/// Not every kernel has them (`CONFIG_PROC_CHILDREN`).
pub(super) fn has_children_files() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| {
        let own = Pid::of_self();
        std::fs::exists(format!("/proc/{own}/task/{own}/children")).unwrap_or(false)
    })
}

/// One more than the largest PID (`PID_MAX_LIMIT` in include/linux/threads.h).
const PID_LIMIT: u32 = 1 << 22;

/// Some of all PIDs, the others at the next calls. First those that come after the caller's own, and the
/// smallest ones, which follow upon the largest.
pub(super) fn next_numbers() -> impl Iterator<Item = Pid> {
    const PART: u32 = 1 << 15;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let from = NEXT.fetch_add(PART, Ordering::Relaxed) % PID_LIMIT;
    let own = Pid::of_self().get();
    (from..from + PART)
        .flat_map(move |number| [(own + number) % PID_LIMIT, number])
        .filter_map(Pid::new)
}

/// All processes, and whether one has vanished meanwhile.
///
/// # Errors
/// Some could not be listed.
pub(super) fn list() -> io::Result<(Vec<Listed>, bool)> {
    ensure_proc_is_ours()?;
    let mut has_vanished = false;
    let mut list = Vec::new();
    for pid in shown_pids()? {
        match listed(pid?) {
            Ok(listed) => list.push(listed),
            Err(error) if is_shortage(&error) => return Err(error),
            Err(error) => has_vanished |= error.kind() != io::ErrorKind::PermissionDenied,
        }
    }
    if !list
        .iter()
        .any(|listed| listed.process.pid == Pid::of_self())
    {
        return Err(io::Error::other("/proc does not show all"));
    }
    Ok((list, has_vanished))
}

/// What /proc shows; `None`: nothing, which is an answer.
///
/// # Errors
/// A [shortage](is_shortage).
pub(super) fn shown<T>(asked: io::Result<T>) -> io::Result<Option<T>> {
    match asked {
        Err(error) if is_shortage(&error) => Err(error),
        asked => Ok(asked.ok()),
    }
}

/// Whether a call failed for want of what it needs, so that it says nothing about what it was asked for.
pub(super) fn is_shortage(error: &io::Error) -> bool {
    let shortages = [libc::EMFILE, libc::ENFILE, libc::ENOMEM];
    let code = error.raw_os_error();
    code.is_some_and(|code| shortages.contains(&code))
}
