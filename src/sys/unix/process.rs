//! Processes and their users, and the children of the calling process.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Resource, geteuid, getrlimit, test_kill_process};

use super::checked;
use crate::identity::Pid;
use crate::sys::system::process::{BOOT_CLOCK, program_of, start_ticks};
use crate::sys::{HowEnded, ProcessState};

/// The number as rustix takes it.
pub(in crate::sys) fn raw(pid: Pid) -> Option<rustix::process::Pid> {
    rustix::process::Pid::from_raw(pid.get().cast_signed())
}

/// How many descriptors a process may have; `None`: any number.
pub(crate) fn descriptor_limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// The effective user of the calling process.
pub(crate) fn own_uid() -> Option<u32> {
    Some(geteuid().as_raw())
}

/// Time since boot, suspended time included, for measuring how long something takes.
///
/// By libc: to find the vDSO, rustix reads the auxiliary vector, which costs a system call and
/// crashes under valgrind.
pub(crate) fn boottime() -> Duration {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel fills a place of ours. It cannot fail: the clock is there.
    unsafe { libc::clock_gettime(BOOT_CLOCK, &raw mut now) };
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or(0),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}

/// The shells that fork to run a part of a script.
const SHELLS: [&str; 10] = [
    "sh", "bash", "dash", "ash", "busybox", "zsh", "ksh", "mksh", "yash", "fish",
];

/// Whether a process that was only forked is a subshell of its parent: both execute the same file, which has the
/// name of a shell. A parent that has adopted it executes another one.
#[cold]
pub(crate) fn is_subshell(pid: Pid, parent: Pid) -> bool {
    program_of(pid).is_some_and(|(own, path)| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // The rest may be a version, or say that the file was replaced: "ksh93", "dash (deleted)".
        let name = name.split(|letter: char| !letter.is_ascii_alphabetic());
        let is_shell = name.take(1).any(|name| SHELLS.contains(&name));
        is_shell && program_of(parent).is_some_and(|(parent, _)| parent == own)
    })
}

/// Whether a process is running, by a signal that is not sent: where nothing better answers.
pub(in crate::sys) fn presence_by_kill(pid: Pid) -> ProcessState {
    match raw(pid).map(test_kill_process) {
        // EPERM: alive, and another user's.
        Some(Ok(()) | Err(Errno::PERM)) => ProcessState::Alive {
            start: start_ticks(pid),
        },
        Some(Err(Errno::SRCH)) => ProcessState::Gone,
        _ => ProcessState::Unknown,
    }
}

/// Whether the caller may signal a process. Sends no signal.
pub(crate) fn may_signal(pid: Pid) -> bool {
    raw(pid).is_some_and(|pid| test_kill_process(pid) != Err(Errno::PERM))
}

/// Sends a signal to a process, or with a negative number to a group.
///
/// # Errors
/// Those of kill(2).
pub(in crate::sys) fn kill(pid: libc::pid_t, signal: i32) -> io::Result<()> {
    // SAFETY: no memory is involved.
    checked(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// The name of a user, or the number of one that has none.
pub(crate) fn user_name(uid: u32) -> String {
    /// Room for an entry of the user database. Those of large directories are longer (getpwuid_r(3)).
    const ROOM: usize = 16 * 1024;
    let mut entry = MaybeUninit::<libc::passwd>::uninit();
    let mut text = vec![0_u8; ROOM];
    let mut found = ptr::null_mut();
    // SAFETY: the places are ours, and as long as the length says. What is found points into them.
    let name = unsafe {
        let failed = libc::getpwuid_r(
            uid,
            entry.as_mut_ptr(),
            text.as_mut_ptr().cast(),
            text.len(),
            &raw mut found,
        );
        let entry = found.as_ref().filter(|_| failed == 0);
        entry.map(|entry| CStr::from_ptr(entry.pw_name).to_string_lossy().into_owned())
    };
    name.unwrap_or_else(|| uid.to_string())
}

/// Whether a child has ended; it is not reaped, so that its PID stays its own. The other children that
/// have ended are: they are orphans that this process has adopted.
pub(in crate::sys) fn how_child_ended(pid: u32) -> io::Result<Option<HowEnded>> {
    loop {
        let mut information = MaybeUninit::<libc::siginfo_t>::zeroed();
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: the place is ours, and zeroes are a valid value of it.
        let information = unsafe {
            let place = information.as_mut_ptr();
            checked(libc::waitid(libc::P_ALL, 0, place, options))?;
            information.assume_init()
        };
        // SAFETY: the call filled it for a child, or left it zero.
        let ended = unsafe { information.si_pid() };
        if ended == 0 {
            return Ok(None);
        }
        if ended.unsigned_abs() == pid {
            return Ok(Some(match information.si_code {
                libc::CLD_EXITED => HowEnded::Exited,
                _ => HowEnded::Killed,
            }));
        }
        reap(ended);
    }
}

/// Reaps a child that has ended.
pub(in crate::sys) fn reap(pid: libc::pid_t) {
    // SAFETY: the kernel may leave out the status; no memory is involved.
    unsafe { libc::waitpid(pid, ptr::null_mut(), libc::WNOHANG) };
}
