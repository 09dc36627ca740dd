//! The processes of the work of a hold, by /proc and pidfds.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{geteuid, set_child_subreaper};

pub(crate) use super::children::own_children;
use super::children::{
    children_of, has_children_files, has_live_children, is_live_child, is_shortage, list,
    next_numbers, shown,
};
use super::filesystem::names_in;
use super::mount::value_in;
use super::process::{has_ended, listed, open_pidfd};
use crate::identity::{Pid, ProcessId};
use crate::sys::FileId;
use crate::sys::unix::checked;
use crate::sys::unix::file::{facts_of_file, id_of_path};
use crate::sys::unix::process::{kill, reap};
use crate::sys::unix::wait::timespec;
pub use crate::sys::unix::work::{let_work_go, work_is_contained};
use crate::sys::work::{Each, Listed, Look, Marks, environment_names_hold, number_to_tell, select};

/// Lets this process adopt the orphans among its descendants (`PR_SET_CHILD_SUBREAPER`, prctl(2)), so that
/// all of them stay its descendants. It has to reap them; a child does not inherit this.
///
/// # Errors
/// Those of prctl(2).
pub fn adopt_orphans() -> io::Result<()> {
    // Any PID says yes.
    Ok(set_child_subreaper(Some(rustix::process::Pid::INIT))?)
}

/// A live process of the work, which keeps its identity as long as this exists.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) process: ProcessId,
    /// `None`: the kernel has none (before 5.3), a filter forbids them, or no descriptor is left.
    pidfd: Option<OwnedFd>,
}

impl Target {
    /// The process with this PID, and what /proc says of it, if it says anything. `None`: it has ended.
    fn open(pid: Pid) -> Option<(Self, Option<Listed>)> {
        let pidfd = match open_pidfd(pid) {
            Ok(pidfd) => Some(pidfd),
            // The last two: the ID of a thread, and not of a process.
            Err(Errno::SRCH | Errno::NOENT | Errno::INVAL) => return None,
            Err(_) => None,
        };
        // Read after the pidfd was opened: if that process is still there, this is about it.
        let found = listed(pid).ok();
        let process = found.map_or(ProcessId { pid, start: None }, |found| found.process);
        let target = Self { process, pidfd };
        target.is_alive().then_some((target, found))
    }

    /// The same process, if it is still there.
    pub(in crate::sys) fn find(process: ProcessId) -> Option<Self> {
        let (target, _) = Self::open(process.pid)?;
        process.is_same(target.process).then_some(target)
    }

    /// The state letter Z does not say it: it is also shown if only the main thread has ended.
    pub(in crate::sys) fn is_alive(&self) -> bool {
        match &self.pidfd {
            Some(pidfd) => !matches!(has_ended(pidfd, Duration::ZERO), Ok(true)),
            None => !self.process.has_ended(),
        }
    }

    pub(in crate::sys) fn send(&self, signal: i32) -> io::Result<()> {
        self.send_with(signal, None)
    }

    /// Sends TERM to a wrapper, with a number of its hold ([`number_to_tell`]). A stopped wrapper is
    /// continued, or it would not hear of it.
    pub(in crate::sys) fn tell_that_broken(&self, hold: u64) -> io::Result<()> {
        match self.send_with(libc::SIGTERM, Some(number_to_tell(hold))) {
            // It may have ended by now, which is what was to be told.
            Err(error) if error.raw_os_error() != Some(libc::ESRCH) => return Err(error),
            _ => {}
        }
        let _ = self.send(libc::SIGCONT);
        Ok(())
    }

    /// Lets a process that holds locks for a program look at them. URG does nothing to a process that does not ask for
    /// it.
    pub(in crate::sys) fn tell_to_look(&self) -> io::Result<()> {
        self.send(libc::SIGURG)
    }

    /// Sends a signal, as kill(2) does, or with a number as sigqueue(3).
    fn send_with(&self, signal: i32, number: Option<i32>) -> io::Result<()> {
        if let Some(pidfd) = &self.pidfd {
            let information = number.map(|number| Queued {
                signal,
                errno: 0,
                code: libc::SI_QUEUE,
                sender: SenderAndValue {
                    pid: Pid::of_self().get().cast_signed(),
                    uid: geteuid().as_raw(),
                    value: sigval(number),
                },
                rest: [0; 13],
            });
            let information = information.as_ref().map_or(ptr::null(), ptr::from_ref);
            // SAFETY: the information is null, or lives, and is as long as the kernel's (sigaction(2)).
            let sent = checked(unsafe {
                libc::syscall(
                    libc::SYS_pidfd_send_signal,
                    pidfd.as_raw_fd(),
                    signal,
                    information,
                    0,
                )
            });
            match sent.as_ref().map_err(io::Error::raw_os_error) {
                // A seccomp filter may refuse the call, and the PID is still that of the process.
                Err(Some(libc::ENOSYS | libc::EPERM)) if self.is_alive() => {}
                _ => return sent.map(drop),
            }
        }
        let pid = self.process.pid.get().cast_signed();
        match number {
            None => kill(pid, signal),
            Some(number) => {
                // SAFETY: no memory is involved, and the PID is positive.
                checked(unsafe { libc::sigqueue(pid, signal, sigval(number)) }).map(drop)
            }
        }
    }
}

/// Calls `each` for every live process of the work, as soon as it is found. One call may miss a
/// process that is started, or loses its parent, meanwhile.
///
/// For the wrapper it is certain when nothing is left: a live descendant has a live ancestor among the
/// children of the wrapper, since orphans become its children, and the kernel says whether there is one. If
/// /proc cannot be read, the wrapper finds its children by their numbers, and so what each of them has
/// started once that has lost its parent.
///
/// The wrapper reaps the orphans that have ended. `command` is left to its supervisor.
pub(crate) fn visit(marks: &mut Marks, command: Option<Pid>, each: &mut Each<'_>) -> Look {
    if !marks.are_of_own_command() {
        return visit_list(marks, command, each);
    }
    let look = if has_children_files() {
        visit_children(marks, command, each)
    } else {
        visit_list(marks, command, each)
    };
    match (has_live_children(), look) {
        (Ok(false), _) => Look::Nothing,
        (_, Look::Failed(error)) => {
            walk_numbers(marks, command, each);
            Look::Failed(error)
        }
        (Ok(true), Look::Nothing | Look::Unsure) if marks.others.is_empty() => Look::Left,
        (_, look) => look,
    }
}

/// A child that has ended is a zombie until it is reaped. The command is reaped by its supervisor.
fn reap_if_child(pid: Pid, parent: u32, command: Option<Pid>) {
    if parent == Pid::of_self().get() && Some(pid) != command {
        reap(pid.get().cast_signed());
    }
}

fn visit_children(marks: &mut Marks, command: Option<Pid>, each: &mut Each<'_>) -> Look {
    let mut look = Look::Nothing;
    let walked = walk(Pid::of_self(), marks, &mut |parent, child| match child {
        Ok(target) => {
            look = Look::Left;
            each(target);
        }
        Err(ended) => {
            reap_if_child(ended, parent.get(), command);
            if Some(ended) != command {
                look = Look::Left;
            }
        }
    });
    walked.map_or_else(Look::Failed, |()| look)
}

/// Calls `each` for every descendant of a process that does not belong to something else, with its parent:
/// live ones, and the number of one that has ended.
///
/// # Errors
/// Some could not be listed.
fn walk(
    root: Pid,
    marks: &mut Marks,
    each: &mut dyn FnMut(Pid, Result<&Target, Pid>),
) -> io::Result<()> {
    let mut walked = Ok(());
    let mut seen = HashSet::new();
    let mut parents = vec![(root, None)];
    while let Some((parent, start)) = parents.pop() {
        let children = match children_of(parent) {
            Ok(children) => children,
            Err(error) => {
                // It has ended, or is hidden. Of the first one the list is there.
                if parent == root || is_shortage(&error) {
                    walked = Err(error);
                }
                continue;
            }
        };
        for child in children {
            if seen.contains(&child) {
                continue;
            }
            let Some((mut target, found)) = Target::open(child) else {
                each(parent, Err(child));
                continue;
            };
            target.process = marks.recognize(target.process);
            if marks.belongs_to_another(target.process) {
                continue;
            }
            // The list may be older than the process with that PID, and the parent another process by
            // now. If it only has a new parent, it is found there, or by the next call.
            let is_child = found.is_none_or(|found| found.parent == parent.get())
                && (parent == root
                    || listed(parent).is_ok_and(|parent| parent.process.start == start));
            if is_child {
                seen.insert(child);
                marks.known.insert(target.process);
                each(parent, Ok(&target));
                parents.push((child, target.process.start));
            }
        }
    }
    walked
}

/// Walks the live children of the calling process alone, without /proc and without descriptors: the known ones, or
/// if none of these is left, those that are found by number.
fn walk_numbers(marks: &mut Marks, command: Option<Pid>, each: &mut Each<'_>) {
    let known = marks.known.iter().map(|known| known.pid).chain(command);
    let mut children: BTreeSet<Pid> = known.filter(|pid| is_live_child(*pid)).collect();
    if children.is_empty() {
        children = next_numbers().filter(|pid| is_live_child(*pid)).collect();
    }
    for child in children {
        let Some((mut target, _)) = Target::open(child) else {
            continue;
        };
        target.process = marks.recognize(target.process);
        if !marks.belongs_to_another(target.process) {
            marks.known.insert(target.process);
            each(&target);
        }
    }
}

/// Kills everything below a process but `others`. Returns whether nothing of it is left: what may not be
/// signaled stays, and so may what is in an uninterruptible call.
#[cfg(feature = "cluster")]
pub(in crate::sys) fn kill_descendants(of: Pid, others: &[ProcessId]) -> bool {
    /// Processes that are started meanwhile are found by the next look.
    const LOOKS: usize = 1_000;
    let mut marks = Marks {
        others: others.to_vec(),
        ..Marks::default()
    };
    let is_own = of == Pid::of_self();
    let mut ended = HashSet::new();
    for _ in 0..LOOKS {
        let (mut is_left, mut is_refused) = (false, false);
        let mut kill = |target: &Target| match target.kill() {
            Err(_) if target.is_alive() => is_refused = true,
            _ => is_left = true,
        };
        let mut has_ended = false;
        let walked = walk(of, &mut marks, &mut |_, child| match child {
            Ok(target) => kill(target),
            // What it has left behind may have come here since the children were read: look once more.
            Err(pid) => has_ended |= ended.insert(pid),
        });
        if walked.is_err() && is_own {
            walk_numbers(&mut marks, None, &mut kill);
        }
        let is_looking = is_left || has_ended || walked.is_err();
        let is_over = match has_live_children() {
            Ok(is_live) if is_own && others.is_empty() => !is_live,
            _ => !is_looking && !is_refused,
        };
        if is_over || (is_refused && !is_looking) {
            return is_over;
        }
        let _ = super::wait::pause(Duration::from_millis(1));
    }
    false
}

fn visit_list(marks: &mut Marks, command: Option<Pid>, each: &mut Each<'_>) -> Look {
    let (list, mut has_vanished) = match list() {
        Ok(listed) => listed,
        Err(error) => {
            // A wrapper finds more than that.
            if !marks.are_of_own_command() {
                let known = marks.known.iter().copied().filter_map(Target::find);
                known.for_each(|target| each(&target));
            }
            return Look::Failed(error);
        }
    };
    let mut failed = None;
    let file = marks.file.as_deref().and_then(|file| {
        let facts = facts_of_file(file);
        facts.map_err(|error| failed = Some(error)).ok()
    });
    let found = select(&list, marks, |pid| {
        let environ = std::fs::read(format!("/proc/{pid}/environ"));
        let has_lock = || file.map_or(Ok(false), |file| has_lock(pid, file.id));
        let marked = match environ {
            Ok(environment) if environment_names_hold(&environment, &marks.hold) => Ok(true),
            // A zombie has none, and has started all that it will.
            Ok(_) => has_lock(),
            Err(error) if is_shortage(&error) => Err(error),
            Err(error) => {
                has_vanished |= error.kind() != io::ErrorKind::PermissionDenied;
                has_lock()
            }
        };
        marked.unwrap_or_else(|error| {
            failed = Some(error);
            false
        })
    });
    let mut look = if has_vanished {
        Look::Unsure
    } else {
        Look::Nothing
    };
    for listed in found {
        let process = listed.process;
        match Target::open(process.pid) {
            Some((mut target, _)) if target.process.is_same(process) => {
                look = Look::Left;
                target.process = process;
                marks.known.insert(process);
                each(&target);
            }
            Some(_) => look = Look::Left,
            None => {
                if matches!(look, Look::Nothing) && !listed.is_zombie {
                    look = Look::Unsure;
                }
                reap_if_child(process.pid, listed.parent, command);
            }
        }
    }
    failed.map_or(look, Look::Failed)
}

/// The descriptors of a process, by number, that lead to a file which the caller keeps open.
///
/// # Errors
/// A [shortage](is_shortage).
fn descriptors_of(pid: Pid, file: FileId) -> io::Result<impl Iterator<Item = OsString>> {
    let directory = PathBuf::from(format!("/proc/{pid}/fd"));
    let names = shown(names_in(&directory))?.into_iter().flatten().flatten();
    Ok(names.filter(move |name| id_of_path(&directory.join(name)).is_ok_and(|id| id == file)))
}

/// Whether a live process has all of these open, which the caller keeps open, too.
pub(crate) fn has_open(process: ProcessId, files: &[FileId]) -> bool {
    let has = |file: &FileId| {
        descriptors_of(process.pid, *file).is_ok_and(|mut found| found.next().is_some())
    };
    // Asked while its pidfd is open.
    Target::find(process).is_some_and(|target| files.iter().all(has) && target.is_alive())
}

/// Whether a command still has the descriptor of the lock file that it inherited. What cannot be read
/// counts as closed.
pub(crate) fn command_holds(pid: u32, record: &File) -> bool {
    let path = format!("/proc/{pid}/fd/{}", record.as_raw_fd());
    let theirs = id_of_path(Path::new(&path));
    theirs.is_ok_and(|theirs| facts_of_file(record).is_ok_and(|own| own.id == theirs))
}

/// Whether a process has inherited the lock on a file. Others may have opened it: a waiter does.
///
/// # Errors
/// A [shortage](is_shortage).
fn has_lock(pid: Pid, file: FileId) -> io::Result<bool> {
    for number in descriptors_of(pid, file)? {
        let number = number.to_string_lossy();
        // proc_pid_fdinfo(5): the flags of the descriptor, and the locks of this open file description.
        let info = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}"));
        let info = shown(info)?.unwrap_or_default();
        let mut lines = info.lines().filter(|line| line.starts_with("lock:"));
        let has_lock = lines.any(|line| line.contains("FLOCK") && line.contains("WRITE"));
        if has_lock && survives_exec(&info) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether execve(2) leaves a descriptor open. The program that holds a lock has one that it closes: a child of that
/// program has it between fork(2) and execve(2), whatever it is about to execute.
fn survives_exec(fdinfo: &str) -> bool {
    let flags = value_in(fdinfo, "flags:");
    let flags = flags.and_then(|flags| i32::from_str_radix(&flags, 8).ok());
    flags.is_none_or(|flags| flags & libc::O_CLOEXEC == 0)
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

/// A number that comes with a signal (sigqueue(3)).
pub(super) fn sigval(number: i32) -> libc::sigval {
    libc::sigval {
        sival_ptr: std::ptr::without_provenance_mut(usize::try_from(number).unwrap_or(0)),
    }
}

/// Waits until one of these processes has ended, for at most `timeout`.
pub(crate) fn wait_for_any(processes: &[ProcessId], timeout: Duration) {
    /// Enough to be woken: what is not watched is found at the next look.
    const WATCHED: usize = 32;
    let opened: Vec<Target> = processes
        .iter()
        .take(WATCHED)
        .copied()
        .filter_map(Target::find)
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
