//! Who a process is, and whether it is still there.
//!
//! Start times are raw ticks since boot from /proc/PID/stat (proc(5), field 22). A library's start
//! times are boot time plus ticks, and move when the clock is stepped: a living process would look
//! like another one.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, fstatfs, statat};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, pidfd_open, test_kill_process};
use rustix::time::{ClockId, clock_gettime};

use crate::identity::{BootId, Pid};
pub(crate) use crate::sys::{Kinship, Presence};

/// The calling process.
pub(crate) fn own_pid() -> Pid {
    Pid::of_self()
}

/// The user on whose behalf the calling process acts.
#[allow(clippy::unnecessary_wraps, reason = "not every system has them")]
pub(crate) fn own_uid() -> Option<u32> {
    Some(rustix::process::geteuid().as_raw())
}

/// Whether a process with this pid is running, in the caller's pid namespace. Sends no signal.
pub(crate) fn presence(pid: Pid) -> Presence {
    let Some(raw) = rustix::process::Pid::from_raw(pid.get().cast_signed()) else {
        return Presence::Unknown;
    };
    match pidfd_open(raw, PidfdFlags::empty()) {
        Ok(pidfd) => {
            let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
            let now = rustix::time::Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            match poll(&mut fds, Some(&now)) {
                // Readable: ended, though perhaps not yet waited for (pidfd_open(2)). The state
                // letter Z is no such proof: it is also shown when only the main thread has ended.
                Ok(1) => Presence::Gone,
                Ok(_) => Presence::Alive {
                    start: start_ticks(pid),
                },
                Err(_) => Presence::Unknown,
            }
        }
        // ENOENT (since 6.9-ish) and EINVAL: a thread id of some process; no process has it.
        Err(Errno::SRCH | Errno::NOENT | Errno::INVAL) => Presence::Gone,
        // No such call (kernel below 5.3), or refused by seccomp: that says nothing of the pid.
        Err(Errno::NOSYS | Errno::PERM) => match test_kill_process(raw) {
            // EPERM: there, and another user's.
            Ok(()) | Err(Errno::PERM) => Presence::Alive {
                start: start_ticks(pid),
            },
            Err(Errno::SRCH) => Presence::Gone,
            Err(_) => Presence::Unknown,
        },
        Err(_) => Presence::Unknown,
    }
}

/// The start of a process in ticks since boot, as a process outside any time namespace would read
/// it. `None` where /proc cannot tell; that proves nothing (hidepid).
pub(crate) fn start_ticks(pid: Pid) -> Option<u64> {
    if !proc_is_ours() {
        return None;
    }
    let (_, ticks) = stat_of(pid).ok()?;
    let offset = boottime_offset_nanoseconds()? / nanoseconds_per_tick()?;
    u64::try_from(i128::from(ticks) - offset).ok()
}

/// When a process of that start began, in milliseconds of [`boottime_milliseconds`]. Linux shows 100
/// ticks a second to user space on all machines in use (`USER_HZ`, time(7)).
pub(crate) fn milliseconds_of_start(start: u64) -> Option<i64> {
    i64::try_from(start.saturating_mul(10)).ok()
}

/// Parent, process group and session of a process; `None` where /proc cannot tell.
pub(crate) fn kinship(pid: Pid) -> Option<Kinship> {
    if !proc_is_ours() {
        return None;
    }
    stat_of(pid).ok().map(|(kinship, _)| kinship)
}

/// The command line of a process, empty where /proc cannot tell.
pub(crate) fn command_line(pid: Pid) -> Vec<String> {
    if !proc_is_ours() {
        return Vec::new();
    }
    let Ok(bytes) = std::fs::read(format!("/proc/{pid}/cmdline")) else {
        return Vec::new();
    };
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    bytes
        .split(|byte| *byte == 0)
        .map(|argument| String::from_utf8_lossy(argument).into_owned())
        .collect()
}

/// Which boot of the machine this is.
pub(crate) fn boot_id() -> Option<BootId> {
    let file = open_to_read(c"/proc/sys/kernel/random/boot_id").ok()?;
    let text = read_at_once(&file).ok()?;
    // Containers mount a file of their own here, new for each start: then it is not on procfs.
    let masked = fstatfs(&file).map_or(true, |fs| fs.f_type != PROC_SUPER_MAGIC);
    Some(BootId {
        id: std::str::from_utf8(&text).ok()?.trim().to_owned(),
        masked,
    })
}

/// The pid namespace of the caller.
pub(crate) fn pid_namespace() -> Option<u64> {
    if !proc_is_ours() {
        return None;
    }
    Some(
        statat(CWD, c"/proc/self/ns/pid", AtFlags::empty())
            .ok()?
            .st_ino,
    )
}

/// Milliseconds since boot, suspended time included, as outside any time namespace.
pub(crate) fn boottime_milliseconds() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let nanoseconds = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec);
    let normalised = nanoseconds - boottime_offset_nanoseconds().unwrap_or(0);
    u64::try_from(normalised / 1_000_000).unwrap_or(0)
}

/// Time since boot, suspended time included, for measuring how long something takes.
pub(crate) fn boottime() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or(0),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}

// linux/magic.h; the field's type differs between architectures.
#[allow(
    clippy::cast_possible_wrap,
    reason = "the type of the field differs between architectures"
)]
const PROC_SUPER_MAGIC: rustix::fs::FsWord = 0x9fa0;

/// Whether /proc speaks of our own pid namespace. After `unshare --pid` without a new /proc it
/// shows the outer one, where our numbers belong to other processes.
fn proc_is_ours() -> bool {
    // Asked for each process that is looked at; a forked child asks anew.
    static OURS: AtomicU32 = AtomicU32::new(0);
    let own = std::process::id();
    if OURS.load(Ordering::Relaxed) == own {
        return true;
    }
    let ours = std::fs::read_link("/proc/self")
        .ok()
        .and_then(|link| link.to_str()?.parse::<u32>().ok())
        == Some(own);
    if ours {
        OURS.store(own, Ordering::Relaxed);
    }
    ours
}

/// By how much the time namespace of the caller shifts the boot clock (time_namespaces(7)).
fn boottime_offset_nanoseconds() -> Option<i128> {
    // A process stays in the time namespace that it began in (time_namespaces(7)).
    static OFFSET: OnceLock<Option<i128>> = OnceLock::new();
    *OFFSET.get_or_init(read_boottime_offset)
}

fn read_boottime_offset() -> Option<i128> {
    let text = match open_to_read(c"/proc/self/timens_offsets") {
        Ok(file) => read_at_once(&file).ok()?,
        // A kernel without time namespaces.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Some(0),
        Err(_) => return None,
    };
    let mut fields = std::str::from_utf8(&text)
        .ok()?
        .lines()
        .find_map(|line| line.strip_prefix("boottime"))?
        .split_whitespace();
    let seconds: i128 = fields.next()?.parse().ok()?;
    let nanoseconds: i128 = fields.next()?.parse().ok()?;
    Some(seconds * 1_000_000_000 + nanoseconds)
}

fn open_to_read(path: &std::ffi::CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// The small files of /proc give all they have to one read that has room for it; std, which does not
/// know that, makes seven of them.
fn read_at_once(file: &OwnedFd) -> io::Result<Vec<u8>> {
    let mut bytes = [0; 4096];
    let read = rustix::io::retry_on_intr(|| rustix::io::read(file, bytes.as_mut_slice()))?;
    Ok(bytes.get(..read).unwrap_or_default().to_vec())
}

fn nanoseconds_per_tick() -> Option<i128> {
    let per_second = i128::from(rustix::param::clock_ticks_per_second());
    1_000_000_000_i128.checked_div(per_second)
}

/// Where a process stands, and its start in ticks since boot.
fn stat_of(pid: Pid) -> io::Result<(Kinship, u64)> {
    let path = std::ffi::CString::new(format!("/proc/{pid}/stat"))?;
    let text = read_at_once(&open_to_read(&path)?)?;
    parse_stat(&String::from_utf8_lossy(&text))
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Fields 4 to 6 and 22 of proc(5) stat. The name, field 2, may hold blanks and parentheses: the
/// fields are counted from its last one.
fn parse_stat(text: &str) -> Option<(Kinship, u64)> {
    let (_, after_name) = text.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace();
    let _state = fields.next()?;
    let parent: u32 = fields.next()?.parse().ok()?;
    let group: u32 = fields.next()?.parse().ok()?;
    let session: u32 = fields.next()?.parse().ok()?;
    let start: u64 = fields.nth(15)?.parse().ok()?;
    let kinship = Kinship {
        // 0: the parent is outside our namespace, or there is none.
        parent: Pid::new(parent),
        group,
        session,
    };
    Some((kinship, start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_with_blanks_and_parentheses_does_not_shift_the_fields() {
        let line = "812 (a) b) (c) S 800 700 600 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 110812 9 9";
        let (kinship, start) = parse_stat(line).expect("a stat line");
        assert_eq!(kinship.parent, Pid::new(800));
        assert_eq!((kinship.group, kinship.session), (700, 600));
        assert_eq!(start, 110_812);
    }

    #[test]
    fn a_torn_stat_line_is_no_answer() {
        assert!(parse_stat("812 (a) S 800 700").is_none());
        assert!(parse_stat("").is_none());
    }

    #[test]
    fn we_are_there_and_started_before_now() {
        let Presence::Alive { start: Some(start) } = presence(own_pid()) else {
            panic!("the test itself is running");
        };
        assert!(u128::from(start) * 10 <= u128::from(boottime_milliseconds()) + 20);
    }
}
