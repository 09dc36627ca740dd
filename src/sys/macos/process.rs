//! The identity of a process, and whether it is alive.
//!
//! Start times are microseconds since 1970, as the kernel noted them when the process began, by
//! proc_pidinfo of <libproc.h>. They do not move when the clock is stepped.
//! sysinfo would return whole seconds, and read the table of all processes for one of them.

use std::ffi::{OsString, c_int};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::identity::{BootId, Pid, ProcessId};
use crate::sys::digest_of_machine;
pub(crate) use crate::sys::not_linux::{
    is_container, least_start_after, pid_namespace, presence_of, shows_all, state_of_pid_namespace,
    umask, user_of, waits_only_for, working_directory,
};
use crate::sys::unix::checked;
use crate::sys::unix::file::id_of_path;
pub(crate) use crate::sys::unix::process::*;
use crate::sys::work::Listed;
pub(crate) use crate::sys::{FileId, ProcessParent, ProcessState};

/// Whether a process with this pid is running. Sends no signal.
pub(crate) fn presence(pid: Pid) -> ProcessState {
    match info(pid) {
        // Ended, though not yet waited for. The kernel hides such processes unless asked (XNU,
        // `proc_pidinfo`).
        Ok(info) if info.pbi_status == libc::SZOMB => ProcessState::Gone,
        Ok(info) => ProcessState::Alive {
            start: start_of(&info),
        },
        Err(Errno::SRCH) => ProcessState::Gone,
        // Alive, and another user's; or we are in a sandbox, which is no evidence about the PID.
        Err(Errno::PERM) => presence_by_kill(pid),
        Err(_) => ProcessState::Unknown,
    }
}

/// Whether a process is known to be stopped, by a signal or a tracer, so that it does nothing before it is
/// continued.
pub(crate) fn is_stopped(pid: Pid) -> bool {
    info(pid).is_ok_and(|info| info.pbi_status == libc::SSTOP)
}

/// The start of a process in microseconds since 1970, by the clock of that moment. `None` where the
/// kernel does not show it, which proves nothing (other users' processes).
pub(crate) fn start_ticks(pid: Pid) -> Option<u64> {
    start_of(&info(pid).ok()?)
}

/// When a process of that start began, in milliseconds of [`boottime_milliseconds`]. Only good to
/// the second: the wall clock may have been stepped since.
pub(crate) fn milliseconds_of_start(start: u64) -> Option<i64> {
    let wall = chrono::Utc::now().timestamp_millis();
    let since_boot = i64::try_from(boottime_milliseconds()).ok()?;
    let booted = wall.checked_sub(since_boot)?;
    i64::try_from(start / 1000).ok()?.checked_sub(booted)
}

/// <sys/proc_info.h>: the process has executed a program since it was forked (XNU, `P_EXEC`, which
/// `forkproc` clears in a child).
const PROC_FLAG_EXEC: u32 = 0x4000;

/// The parent of a process, and how the process was started. `None` if the kernel does not show it.
pub(crate) fn kinship(pid: Pid) -> Option<ProcessParent> {
    // The kernel shows the short form of other users' processes too: the `login` of a terminal is
    // root's.
    // SAFETY: it is the structure of this flavour.
    let info: libc::proc_bsdshortinfo = unsafe { ask(pid, libc::PROC_PIDT_SHORTBSDINFO) }.ok()?;
    Some(ProcessParent {
        // 0: the kernel, or there is none.
        parent: Pid::new(info.pbsi_ppid),
        only_forked: info.pbsi_flags & PROC_FLAG_EXEC == 0,
        start: start_ticks(pid),
    })
}

/// A process as the list of all processes shows it; `None`: it has ended, or is another user's.
pub(in crate::sys) fn listed(pid: Pid) -> Option<Listed> {
    let info = info(pid).ok()?;
    Some(Listed {
        process: ProcessId {
            pid,
            start: start_of(&info),
        },
        parent: info.pbi_ppid,
        group: info.pbi_pgid,
        is_zombie: info.pbi_status == libc::SZOMB,
    })
}

/// The real and the saved user of a process; `None`: it has ended, or the kernel does not say.
pub(in crate::sys) fn users_of(pid: Pid) -> Option<[u32; 2]> {
    let info = info(pid).ok()?;
    Some([info.pbi_ruid, info.pbi_svuid])
}

/// The environment that a process was executed with, if the kernel shows it, with a NUL behind each
/// entry.
pub(in crate::sys) fn environment_of(pid: Pid) -> Option<Vec<u8>> {
    let bytes = arguments(pid)?;
    let (_, environment) = parse_arguments(&bytes)?;
    Some(environment.to_vec())
}

/// The command line of a process, empty if the kernel does not show it.
pub(crate) fn command_line(pid: Pid) -> Vec<String> {
    let bytes = arguments(pid).unwrap_or_default();
    parse_arguments(&bytes).map_or_else(Vec::new, |(arguments, _)| arguments)
}

/// The file that a process executes, and its path. `None`: the kernel does not show it, or the file was removed.
pub(in crate::sys) fn program_of(pid: Pid) -> Option<(FileId, PathBuf)> {
    const LONGEST: u32 = libc::PROC_PIDPATHINFO_MAXSIZE.cast_unsigned();
    let mut path = vec![0_u8; usize::try_from(LONGEST).ok()?];
    // SAFETY: the kernel fills at most that many bytes of a live buffer.
    let length =
        unsafe { libc::proc_pidpath(pid.get().cast_signed(), path.as_mut_ptr().cast(), LONGEST) };
    path.truncate(usize::try_from(length).ok()?);
    let path = PathBuf::from(OsString::from_vec(path));
    Some((id_of_path(&path).ok()?, path))
}

/// The current boot of the machine.
pub(crate) fn boot_id() -> Option<BootId> {
    let mut bytes = [0_u8; 64];
    let mut size = bytes.len();
    // SAFETY: the kernel fills at most `size` bytes of a live buffer, and nothing is set.
    checked(unsafe {
        libc::sysctlbyname(
            c"kern.bootsessionuuid".as_ptr(),
            bytes.as_mut_ptr().cast(),
            &raw mut size,
            std::ptr::null_mut(),
            0,
        )
    })
    .ok()?;
    let id = bytes.get(..size)?.split(|byte| *byte == 0).next()?;
    Some(BootId {
        id: std::str::from_utf8(id)
            .ok()
            .filter(|id| !id.is_empty())?
            .to_owned(),
        masked: false,
    })
}

/// Which machine this is, as 16 hex digits.
pub(crate) fn machine_id() -> Option<String> {
    let mut id = [0_u8; 16];
    // Do not wait for the service that provides it while the machine starts.
    let timeout = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: gethostuuid(2) fills 16 bytes of ours, and reads the timeout.
    checked(unsafe { libc::gethostuuid(id.as_mut_ptr(), &raw const timeout) }).ok()?;
    digest_of_machine(&format!("{:032x}", u128::from_be_bytes(id)))
}

/// Milliseconds since boot, suspended time included.
pub(crate) fn boottime_milliseconds() -> u64 {
    u64::try_from(boottime().as_millis()).unwrap_or(u64::MAX)
}

/// It runs on while the machine sleeps (clock_gettime(3)).
pub(in crate::sys) const BOOT_CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC;

fn info(pid: Pid) -> rustix::io::Result<libc::proc_bsdinfo> {
    // SAFETY: it is the structure of this flavour.
    unsafe { ask(pid, libc::PROC_PIDTBSDINFO) }
}

fn start_of(info: &libc::proc_bsdinfo) -> Option<u64> {
    info.pbi_start_tvsec
        .checked_mul(1_000_000)?
        .checked_add(info.pbi_start_tvusec)
}

/// Asks the kernel about a process.
///
/// # Safety
/// `T` is the structure of `flavour` in <sys/proc_info.h>, and plain data.
unsafe fn ask<T>(pid: Pid, flavour: c_int) -> rustix::io::Result<T> {
    let mut answer = MaybeUninit::<T>::zeroed();
    let size = c_int::try_from(size_of::<T>()).map_err(|_| Errno::INVAL)?;
    // SAFETY: errno is this thread's own. The kernel fills at most `size` bytes of a live buffer.
    let filled = unsafe {
        // So that only an error of this call is read as one.
        *libc::__error() = 0;
        libc::proc_pidinfo(
            pid.get().cast_signed(),
            flavour,
            0,
            answer.as_mut_ptr().cast(),
            size,
        )
    };
    if filled == size {
        // SAFETY: plain data, zeroed above, then filled by the kernel.
        return Ok(unsafe { answer.assume_init() });
    }
    Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}

/// The kernel's copy of a command line (sysctl(3), `KERN_PROCARGS2`).
fn arguments(pid: Pid) -> Option<Vec<u8>> {
    let mut most = [0_u8; size_of::<c_int>()];
    sysctl(&mut [libc::CTL_KERN, libc::KERN_ARGMAX], &mut most)?;
    let most = usize::try_from(c_int::from_ne_bytes(most)).ok()?;
    let mut bytes = vec![0_u8; most];
    let mut name = [
        libc::CTL_KERN,
        libc::KERN_PROCARGS2,
        pid.get().cast_signed(),
    ];
    let size = sysctl(&mut name, &mut bytes)?;
    bytes.truncate(size);
    Some(bytes)
}

/// How many arguments there are, the path of the program, NULs, and the arguments, each with a NUL.
/// The environment comes after them.
fn parse_arguments(bytes: &[u8]) -> Option<(Vec<String>, &[u8])> {
    let (count, rest) = bytes.split_first_chunk()?;
    let count = usize::try_from(c_int::from_ne_bytes(*count)).ok()?;
    let path_ends = rest.iter().position(|byte| *byte == 0)?;
    let rest = rest.get(path_ends..)?;
    let begin = rest.iter().position(|byte| *byte != 0)?;
    let mut rest = rest.get(begin..)?;
    let mut arguments = Vec::new();
    for _ in 0..count {
        let end = rest.iter().position(|byte| *byte == 0)?;
        arguments.push(String::from_utf8_lossy(rest.get(..end)?).into_owned());
        rest = rest.get(end + 1..)?;
    }
    Some((arguments, rest))
}

/// Reads a value. Returns its length.
fn sysctl(name: &mut [c_int], value: &mut [u8]) -> Option<usize> {
    let mut size = value.len();
    // SAFETY: name and value are live, their lengths are given, and nothing is set.
    let read = checked(unsafe {
        libc::sysctl(
            name.as_mut_ptr(),
            u32::try_from(name.len()).ok()?,
            value.as_mut_ptr().cast(),
            &raw mut size,
            std::ptr::null_mut(),
            0,
        )
    });
    read.ok().map(|_| size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(count: c_int, rest: &[u8]) -> Vec<u8> {
        [&count.to_ne_bytes(), rest].concat()
    }

    #[test]
    fn the_environment_is_no_argument() {
        let shown = bytes(2, b"/bin/sleep\0\0\0sleep\0 9\0PATH=/bin\0");
        let (arguments, environment) = parse_arguments(&shown).expect("two");
        assert_eq!(arguments, ["sleep", " 9"]);
        assert_eq!(environment, b"PATH=/bin\0");
        let shown = bytes(3, b"/bin/sh\0sh\0\0-\0HOME=/\0");
        assert_eq!(parse_arguments(&shown).expect("three").0, ["sh", "", "-"]);
    }

    #[test]
    fn a_torn_command_line_is_no_answer() {
        assert_eq!(parse_arguments(b"\x01\0"), None);
        assert_eq!(parse_arguments(&bytes(1, b"/bin/sleep")), None);
        assert_eq!(parse_arguments(&bytes(1, b"/bin/sleep\0\0")), None);
        assert_eq!(parse_arguments(&bytes(2, b"/bin/sleep\0sleep\0")), None);
        assert_eq!(parse_arguments(&bytes(2, b"/bin/sleep\0sleep\0 9")), None);
        assert_eq!(parse_arguments(&bytes(-1, b"/bin/sleep\0sleep\0")), None);
    }

    #[test]
    fn we_are_there_and_started_before_now() {
        let ProcessState::Alive { start: Some(start) } = presence(Pid::of_self()) else {
            panic!("the test itself is running");
        };
        let began = milliseconds_of_start(start).expect("the clocks can be read");
        assert!(i128::from(began) <= i128::from(boottime_milliseconds()) + 20);
        assert_eq!(start_ticks(Pid::of_self()), Some(start));
    }

    #[test]
    fn our_kin_and_command_line_are_told() {
        let kinship = kinship(Pid::of_self()).expect("the test itself is running");
        assert_eq!(
            kinship.parent.map(Pid::get),
            Some(std::os::unix::process::parent_id())
        );
        assert_eq!(
            command_line(Pid::of_self()),
            std::env::args().collect::<Vec<_>>()
        );
        assert!(boot_id().is_some_and(|boot| boot.id.len() == 36));
    }
}
