//! The processes of the work of a hold, by /proc and pidfds.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, CWD, statat};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::process::{listed, own_pid, proc_is_ours, users_of};
use super::times::timespec;
use crate::identity::{Pid, ProcessId};
use crate::sys::FileId;
use crate::sys::signal::{has_children, reap};
use crate::sys::work::{Author, Listed, Marks, environment_names_hold, number_to_tell, select};

/// Lets this process adopt the orphans among its descendants (`PR_SET_CHILD_SUBREAPER`, prctl(2)), so that
/// all of them stay its descendants. It has to reap them; a child does not inherit this.
///
/// # Errors
/// Those of prctl(2).
pub fn adopt_orphans() -> io::Result<()> {
    // SAFETY: an option with a number; no memory is involved.
    if unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// A live process of the work, which keeps its identity as long as this exists.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) process: ProcessId,
    /// `None`: the kernel has none (before 5.3), or a filter forbids them.
    pidfd: Option<OwnedFd>,
}

impl Target {
    /// The process with this PID, and what /proc says of it, if it says anything. `None`: it has ended.
    fn open(pid: Pid) -> Option<(Self, Option<Listed>)> {
        let raw = rustix::process::Pid::from_raw(pid.get().cast_signed())?;
        let pidfd = match pidfd_open(raw, PidfdFlags::empty()) {
            Ok(pidfd) => Some(pidfd),
            Err(Errno::NOSYS | Errno::PERM | Errno::MFILE | Errno::NFILE) => None,
            Err(_) => return None,
        };
        // Read after the pidfd was opened: if that process is still there, this is about it.
        let found = listed(pid).ok();
        let process = found.map_or(ProcessId { pid, start: None }, |found| found.process);
        let target = Self { process, pidfd };
        target.is_alive().then_some((target, found))
    }

    /// The state letter Z does not say it: it is also shown if only the main thread has ended.
    fn is_alive(&self) -> bool {
        match &self.pidfd {
            Some(pidfd) => {
                let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
                !matches!(
                    poll(&mut fds, timespec(Some(Duration::ZERO)).as_ref()),
                    Ok(1)
                )
            }
            None => matches!(
                super::process::presence(self.process.pid),
                crate::sys::ProcessState::Alive { start } if start == self.process.start
            ),
        }
    }

    /// Fails if it may not be signaled on the word of that author. Descendants are judged one by one, too.
    pub(crate) fn ensure_may_be_signaled(&self, author: Author) -> io::Result<()> {
        author.ensure_may_signal(|| {
            let users = users_of(self.process.pid);
            // Read about this process, and not about the next one with its PID.
            users.filter(|_| self.is_alive())
        })
    }

    /// Sends TERM. A stopped process acts upon it once it is continued.
    pub(crate) fn ask_to_end(&self) -> io::Result<()> {
        self.send(libc::SIGTERM)?;
        let _ = self.send(libc::SIGCONT);
        Ok(())
    }

    pub(crate) fn kill(&self) -> io::Result<()> {
        self.send(libc::SIGKILL)
    }

    fn send(&self, signal: i32) -> io::Result<()> {
        if let Some(pidfd) = &self.pidfd {
            // SAFETY: any number may be passed: the kernel refuses one that is no signal.
            let signal = unsafe { Signal::from_raw_unchecked(signal) };
            match pidfd_send_signal(pidfd, signal) {
                // A seccomp filter may refuse the call, and the PID is still that of the process.
                Err(Errno::NOSYS | Errno::PERM) if self.is_alive() => {}
                sent => return Ok(sent?),
            }
        }
        // SAFETY: no memory is involved, and the PID is positive.
        if unsafe { libc::kill(self.process.pid.get().cast_signed(), signal) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

/// Calls `each` for every live process of the work, as soon as it is found. One call may miss a
/// process that is started, or loses its parent, meanwhile. Returns whether nothing of the work was even
/// listed, and nothing vanished that may have started another process: then nothing is left. For the
/// wrapper that is certain: a live descendant has a live ancestor among the children of the wrapper, since
/// orphans become its children.
///
/// The wrapper reaps the orphans that have ended. `command` is left to its supervisor.
pub(crate) fn visit(
    marks: &mut Marks,
    command: Option<Pid>,
    each: &mut dyn FnMut(&Target),
) -> bool {
    if !proc_is_ours() {
        let known = marks.known.iter().map(|known| known.pid).chain(command);
        let mut is_quiet = true;
        for (target, _) in known.filter_map(Target::open) {
            is_quiet = false;
            each(&target);
        }
        is_quiet
    } else if marks.are_of_own_command() && has_children_files() {
        visit_children(marks, command, each)
    } else {
        visit_list(marks, command, each)
    }
}

/// A child that has ended is a zombie until it is reaped. The command is reaped by its supervisor.
fn reap_if_child(pid: Pid, parent: u32, command: Option<Pid>) {
    if parent == own_pid().get() && Some(pid) != command {
        reap(pid.get().cast_signed());
    }
}

fn visit_children(marks: &Marks, command: Option<Pid>, each: &mut dyn FnMut(&Target)) -> bool {
    let own = own_pid();
    let mut is_quiet = true;
    let mut seen = HashSet::new();
    let mut parents = vec![(own, None)];
    while let Some((parent, start)) = parents.pop() {
        for child in children_of(parent) {
            if seen.contains(&child) {
                continue;
            }
            let Some((target, found)) = Target::open(child) else {
                reap_if_child(child, parent.get(), command);
                is_quiet &= Some(child) == command;
                continue;
            };
            if marks.others.contains(&target.process) {
                continue;
            }
            is_quiet = false;
            // The list may be older than the process with that PID, and the parent another process by
            // now. If it only has a new parent, it is found there, or by the next call.
            let is_child = found.is_none_or(|found| found.parent == parent.get())
                && (parent == own
                    || listed(parent).is_ok_and(|parent| parent.process.start == start));
            if is_child {
                seen.insert(child);
                each(&target);
                parents.push((child, target.process.start));
            }
        }
    }
    is_quiet
}

/// Kills everything below a process. Returns whether nothing of it is left: what may not be signaled stays,
/// and so may what is in an uninterruptible call.
#[cfg(feature = "etcd")]
pub(in crate::sys) fn kill_descendants(of: Pid) -> bool {
    /// Processes that are started meanwhile are found by the next look.
    const LOOKS: usize = 1_000;
    let mut ended = HashSet::new();
    for _ in 0..LOOKS {
        let (mut is_left, mut is_refused) = (false, false);
        let mut parents = vec![of];
        while let Some(parent) = parents.pop() {
            for child in children_of(parent) {
                parents.push(child);
                let is_ended = listed(child).is_ok_and(|child| child.is_zombie);
                match Target::open(child).filter(|_| !is_ended) {
                    // What it has left behind may have come here since the children were read: look once more.
                    None => is_left |= ended.insert(child),
                    Some((target, _)) => match target.kill() {
                        Err(_) if target.is_alive() => is_refused = true,
                        _ => is_left = true,
                    },
                }
            }
        }
        if !is_left {
            return !is_refused;
        }
        let _ = super::wait::pause(Duration::from_millis(1));
    }
    false
}

/// The children of this process, if it has any.
pub(crate) fn own_children() -> Vec<ProcessId> {
    if !has_children() {
        return Vec::new();
    }
    let children = children_of(own_pid()).into_iter();
    children
        .filter_map(|child| Some(listed(child).ok()?.process))
        .collect()
}

/// The children of all threads of a process (proc_tid_children(5)).
fn children_of(parent: Pid) -> Vec<Pid> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{parent}/task")) else {
        return Vec::new();
    };
    let mut children = Vec::new();
    for thread in threads.flatten() {
        if let Ok(text) = std::fs::read_to_string(thread.path().join("children")) {
            let numbers = text.split_ascii_whitespace();
            children.extend(numbers.filter_map(|number| Pid::new(number.parse().ok()?)));
        }
    }
    children
}

/// Not every kernel has them (`CONFIG_PROC_CHILDREN`).
fn has_children_files() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| {
        let own = own_pid();
        std::fs::exists(format!("/proc/{own}/task/{own}/children")).unwrap_or(false)
    })
}

fn visit_list(marks: &mut Marks, command: Option<Pid>, each: &mut dyn FnMut(&Target)) -> bool {
    let list = list();
    let mut has_vanished = false;
    let found = select(&list, marks, |pid| {
        match std::fs::read(format!("/proc/{pid}/environ")) {
            Ok(environment) if environment_names_hold(&environment, &marks.hold) => return true,
            // A zombie has none, and has started all that it will.
            Ok(_) => {}
            Err(error) => has_vanished |= error.kind() != io::ErrorKind::PermissionDenied,
        }
        marks.file.is_some_and(|file| has_lock(pid, file))
    });
    let mut is_quiet = !has_vanished;
    for process in found {
        let was = list.iter().find(|listed| listed.process == process);
        match Target::open(process.pid) {
            Some((target, _)) if target.process == process => {
                is_quiet = false;
                marks.known.insert(process);
                each(&target);
            }
            Some(_) => is_quiet = false,
            None => {
                is_quiet &= was.is_some_and(|was| was.is_zombie);
                reap_if_child(process.pid, was.map_or(0, |was| was.parent), command);
            }
        }
    }
    is_quiet
}

fn list() -> Vec<Listed> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| Pid::new(entry.file_name().to_str()?.parse().ok()?))
        .filter_map(|pid| listed(pid).ok())
        .collect()
}

/// Whether a process has inherited the lock on a file. Others may have opened it: a waiter does.
fn has_lock(pid: Pid, file: FileId) -> bool {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    entries.flatten().any(|entry| {
        let is_file = statat(CWD, entry.path(), AtFlags::empty()).is_ok_and(|facts| {
            #[allow(clippy::unnecessary_cast, reason = "not the same type everywhere")]
            let (device, inode) = (facts.st_dev as u64, facts.st_ino as u64);
            FileId { device, inode } == file
        });
        let number = entry.file_name();
        let number = number.to_string_lossy();
        // proc_pid_fdinfo(5): the locks of this open file description.
        is_file
            && std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).is_ok_and(|text| {
                let mut lines = text.lines().filter(|line| line.starts_with("lock:"));
                lines.any(|line| line.contains("FLOCK") && line.contains("WRITE"))
            })
    })
}

/// Whether that author may have this process signaled.
pub(crate) fn may_be_signaled(process: ProcessId, author: Author) -> bool {
    Target::open(process.pid).is_some_and(|(target, _)| {
        process.is_same(target.process) && target.ensure_may_be_signaled(author).is_ok()
    })
}

/// Tells the wrapper of a hold that the hold is broken: TERM, with a number of the hold
/// ([`number_to_tell`]). A stopped wrapper is continued, or it would not hear of it.
pub(crate) fn tell_wrapper(wrapper: ProcessId, hold: u64, author: Author) -> io::Result<()> {
    let Some((target, _)) =
        Target::open(wrapper.pid).filter(|(target, _)| wrapper.is_same(target.process))
    else {
        return Ok(());
    };
    target.ensure_may_be_signaled(author)?;
    let value = libc::sigval {
        sival_ptr: std::ptr::without_provenance_mut(
            usize::try_from(number_to_tell(hold)).unwrap_or(0),
        ),
    };
    // SAFETY: no memory is involved, and the PID is positive.
    let by_pid =
        || unsafe { libc::sigqueue(wrapper.pid.get().cast_signed(), libc::SIGTERM, value) != 0 };
    let is_refused = || {
        let refusals = [Some(libc::ENOSYS), Some(libc::EPERM)];
        refusals.contains(&io::Error::last_os_error().raw_os_error())
    };
    let failed = match &target.pidfd {
        Some(pidfd) => {
            let information = Queued {
                signal: libc::SIGTERM,
                errno: 0,
                code: libc::SI_QUEUE,
                sender: SenderAndValue {
                    pid: own_pid().get().cast_signed(),
                    uid: rustix::process::geteuid().as_raw(),
                    value,
                },
                rest: [0; 13],
            };
            // SAFETY: the information lives, and is as long as the kernel's (sigaction(2)).
            let failed = unsafe {
                libc::syscall(
                    libc::SYS_pidfd_send_signal,
                    pidfd.as_raw_fd(),
                    libc::SIGTERM,
                    &raw const information,
                    0,
                ) != 0
            };
            // As for other signals.
            failed && !(is_refused() && target.is_alive() && !by_pid())
        }
        None => by_pid(),
    };
    let error = io::Error::last_os_error();
    // It may have ended by now, which is what was to be told.
    if failed && error.raw_os_error() != Some(libc::ESRCH) {
        return Err(error);
    }
    let _ = target.send(libc::SIGCONT);
    Ok(())
}

/// The kernel's siginfo_t of a queued signal (include/uapi/asm-generic/siginfo.h). libc keeps these
/// fields to itself.
#[repr(C)]
struct Queued {
    signal: libc::c_int,
    errno: libc::c_int,
    code: libc::c_int,
    sender: SenderAndValue,
    rest: [u64; 13],
}

#[repr(C)]
struct SenderAndValue {
    pid: libc::pid_t,
    uid: libc::uid_t,
    value: libc::sigval,
}

/// Nothing to do: what a command leaves behind gets another parent when this process ends.
pub(crate) fn let_work_go() {}

/// Returns whether the work of this process's command can be ended as a whole.
pub(crate) fn work_is_contained() -> bool {
    true
}

/// Waits until one of these processes has ended, for at most `timeout`.
pub(crate) fn wait_for_any(processes: &[ProcessId], timeout: Duration) {
    /// Enough to be woken: what is not watched is found at the next look.
    const WATCHED: usize = 32;
    let opened: Vec<Target> = processes
        .iter()
        .take(WATCHED)
        .filter_map(|process| {
            let (target, _) = Target::open(process.pid)?;
            process.is_same(target.process).then_some(target)
        })
        .collect();
    if opened.len() < processes.len().min(WATCHED) {
        // One has ended already.
        return;
    }
    let mut fds: Vec<PollFd<'_>> = opened
        .iter()
        .filter_map(|target| Some(PollFd::new(target.pidfd.as_ref()?, PollFlags::IN)))
        .collect();
    let timeout = if fds.len() < opened.len() {
        timeout.min(Duration::from_millis(10))
    } else {
        timeout
    };
    // Interrupted or not, the caller looks again.
    let _ = poll(&mut fds, timespec(Some(timeout)).as_ref());
}
