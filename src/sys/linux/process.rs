//! The identity of a process, and whether it is alive.
//!
//! Start times are raw ticks since boot from /proc/PID/stat (proc(5), field 22). A library's start
//! times are boot time plus ticks, and move when the clock is stepped: a living process would look
//! like another one.

use std::ffi::{CStr, OsStr};
use std::fmt::Display;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, readlinkat_raw, statat};
use rustix::io::Errno;
use rustix::path::Arg;
use rustix::process::{PidfdFlags, pidfd_open};

use super::filesystem::{magic, names_in};
use super::mount::value_in;
use crate::identity::{BootId, Pid, ProcessId};
use crate::sys::unix::file::id_of_path;
pub(crate) use crate::sys::unix::process::*;
use crate::sys::unix::wait::timespec;
use crate::sys::work::Listed;
pub(crate) use crate::sys::{FileId, ProcessParent, ProcessState};
use crate::sys::{digest_of_machine, locked};

/// A descriptor of a process.
pub(super) fn open_pidfd(pid: Pid) -> rustix::io::Result<OwnedFd> {
    pidfd_open(raw(pid).ok_or(Errno::RANGE)?, PidfdFlags::empty())
}

/// Whether a process ends within a time: its descriptor is readable then, though perhaps the process was
/// not waited for (pidfd_open(2)). The state letter Z does not prove that: it is also shown when only the
/// main thread has ended.
pub(super) fn has_ended(process: &OwnedFd, within: Duration) -> io::Result<bool> {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    Ok(poll(&mut fds, timespec(Some(within)).as_ref())? > 0)
}

/// Whether a process with this pid is running, in the caller's pid namespace. Sends no signal.
pub(crate) fn presence(pid: Pid) -> ProcessState {
    match open_pidfd(pid) {
        Ok(process) => match has_ended(&process, Duration::ZERO) {
            Ok(true) => ProcessState::Gone,
            Ok(false) => ProcessState::Alive {
                start: start_ticks(pid),
            },
            Err(_) => ProcessState::Unknown,
        },
        // ENOENT (since about 6.9) and EINVAL: the ID of a thread, and not of a process.
        Err(Errno::SRCH | Errno::NOENT | Errno::INVAL) => ProcessState::Gone,
        // No such call (kernel below 5.3), or refused by seccomp: no evidence about the PID.
        Err(Errno::NOSYS | Errno::PERM) => match presence_by_kill(pid) {
            ProcessState::Alive { .. } if is_defunct(pid) => ProcessState::Gone,
            state => state,
        },
        Err(_) => ProcessState::Unknown,
    }
}

/// Whether a process is running that was started at a known time. If /proc shows it with that start, and not as
/// ended, nothing else needs to be asked: a descriptor of it takes three calls more.
pub(crate) fn presence_of(process: ProcessId) -> ProcessState {
    let shown = process.start.and_then(|_| stat_of(process.pid));
    let shown = shown.filter(|stat| !stat.is_zombie);
    let start = shown.and_then(|stat| outside_time_namespace(stat.start));
    if start.is_some() && start == process.start {
        return ProcessState::Alive { start };
    }
    presence(process.pid)
}

/// Whether a process is known to be stopped, by a signal or a tracer, so that it does nothing before it is
/// continued.
pub(crate) fn is_stopped(pid: Pid) -> bool {
    proc_is_ours() && read_stat(pid).is_ok_and(|stat| stat.is_stopped)
}

/// Whether a process is known to do nothing but wait for its only child: its one thread sleeps in wait4(2) or
/// waitid(2), and no alarm is to end that, as in timeout(1).
#[cold]
pub(crate) fn waits_only_for(parent: Pid, child: Pid) -> bool {
    const ALARM: u64 = 1 << (libc::SIGALRM - 1);
    let shown = |file: &str| String::from_utf8(read_of(parent, file).ok()?).ok();
    let is = |file: &str, text: &str| shown(file).is_some_and(|shown| shown.trim() == text);
    let has_alarm = |status: &str| {
        let caught = value_in(status, "SigCgt:");
        caught.and_then(|caught| Some(u64::from_str_radix(&caught, 16).ok()? & ALARM != 0))
    };
    let status = proc_is_ours().then(|| shown("status")).flatten();
    status.is_some_and(|status| {
        value_in(&status, "Threads:").as_deref() == Some("1") && has_alarm(&status) == Some(false)
    }) && is("wchan", "do_wait")
        && is(&format!("task/{parent}/children"), &child.to_string())
}

/// Whether a process has ended and has not been waited for yet, according to /proc. A process whose main
/// thread has ended is shown as such a one, too, but has other threads.
fn is_defunct(pid: Pid) -> bool {
    listed(pid).is_ok_and(|listed| listed.is_zombie)
        && names_in(Path::new(&format!("/proc/{pid}/task"))).is_ok_and(|tasks| tasks.count() <= 1)
}

/// The start of a process in ticks since boot, as a process outside any time namespace would read
/// it. `None` if /proc does not show the process, which proves nothing (hidepid).
pub(crate) fn start_ticks(pid: Pid) -> Option<u64> {
    outside_time_namespace(stat_of(pid)?.start)
}

/// Start ticks as a process outside any time namespace reads them.
fn outside_time_namespace(ticks: u64) -> Option<u64> {
    ticks.checked_sub_signed(boottime_offset_nanoseconds()? / NANOSECONDS_PER_TICK)
}

/// The time of a start, in milliseconds of [`boottime_milliseconds`].
pub(crate) fn milliseconds_of_start(start: u64) -> Option<i64> {
    i64::try_from(start.saturating_mul(MILLISECONDS_PER_TICK)).ok()
}

/// The least start of a process that was started at that time of [`boottime_milliseconds`] or later.
pub(crate) fn least_start_after(milliseconds: u64) -> Option<u64> {
    // A time namespace shifts starts by fractions of a tick.
    Some((milliseconds / MILLISECONDS_PER_TICK).saturating_sub(1))
}

/// The parent of a process, and how the process was started. `None` if /proc does not show it.
pub(crate) fn kinship(pid: Pid) -> Option<ProcessParent> {
    let stat = stat_of(pid)?;
    let parent = if pid == Pid::of_self() {
        std::os::unix::process::parent_id()
    } else {
        stat.parent
    };
    Some(ProcessParent {
        // 0: the parent is outside our namespace, or there is none.
        parent: Pid::new(parent),
        only_forked: stat.flags & PF_FORKNOEXEC != 0,
        start: outside_time_namespace(stat.start),
    })
}

/// A process as the list of all processes shows it.
///
/// # Errors
/// There is none, or /proc does not show it.
pub(in crate::sys) fn listed(pid: Pid) -> io::Result<Listed> {
    ensure_proc_is_ours()?;
    let stat = read_stat(pid)?;
    Ok(Listed {
        process: ProcessId {
            pid,
            start: outside_time_namespace(stat.start),
        },
        parent: stat.parent,
        group: stat.group,
        is_zombie: stat.is_zombie,
    })
}

/// The real and the saved user of a process (proc_pid_status(5)); `None`: /proc does not show them.
pub(in crate::sys) fn users_of(pid: Pid) -> Option<[u32; 2]> {
    ensure_proc_is_ours().ok()?;
    let users = status_of(pid, "Uid:")?;
    let mut numbers = users.split_ascii_whitespace();
    let (real, _effective, saved) = (numbers.next()?, numbers.next()?, numbers.next()?);
    Some([real.parse().ok()?, saved.parse().ok()?])
}

/// The command line of a process, empty if /proc does not show it. Can block: the kernel reads it
/// from the memory of that process.
pub(crate) fn command_line(pid: Pid) -> Vec<String> {
    let Ok(bytes) = ensure_proc_is_ours().and_then(|()| read_of(pid, "cmdline")) else {
        return Vec::new();
    };
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    bytes
        .split(|byte| *byte == 0)
        .map(|argument| String::from_utf8_lossy(argument).into_owned())
        .collect()
}

/// The working directory of a process. `None`: it may not be seen, as that of another user.
pub(crate) fn working_directory(pid: Pid) -> Option<PathBuf> {
    ensure_proc_is_ours().ok()?;
    std::fs::read_link(format!("/proc/{pid}/cwd")).ok()
}

/// The file that a process executes, and its path. `None`: it may not be seen, as that of another user.
pub(in crate::sys) fn program_of(pid: Pid) -> Option<(FileId, PathBuf)> {
    let link = PathBuf::from(format!("/proc/{pid}/exe"));
    Some((id_of_path(&link).ok()?, std::fs::read_link(link).ok()?))
}

/// The current boot of the machine.
pub(crate) fn boot_id() -> Option<BootId> {
    let file = open_to_read(c"/proc/sys/kernel/random/boot_id").ok()?;
    let text = read_whole(&file).ok()?;
    // Containers mount a file of their own here, new for each start: then it is not on procfs.
    let masked = magic(&file).map_or(true, |magic| magic != PROC_SUPER_MAGIC);
    Some(BootId {
        id: std::str::from_utf8(&text).ok()?.trim().to_owned(),
        masked,
    })
}

/// Which machine this is, as 16 hex digits. A container may have an identity of its own or that of
/// its image, and copies of an installation can have the same: only together with the host name it
/// says that two records are of one machine. Reads one file.
pub(crate) fn machine_id() -> Option<String> {
    machine_id_in([c"/etc/machine-id", c"/var/lib/dbus/machine-id"])
}

/// The identity in the first of these files that can be opened.
fn machine_id_in<const N: usize>(paths: [&CStr; N]) -> Option<String> {
    let file = paths.into_iter().find_map(|path| open_to_read(path).ok())?;
    let text = read_whole(&file).ok()?;
    digest_of_machine(std::str::from_utf8(&text).ok()?)
}

/// The inode of the initial PID namespace (`PROC_PID_INIT_INO` in include/linux/proc_ns.h).
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Whether this is another PID namespace than the initial one.
pub(crate) fn is_container(pid_namespace: u64) -> bool {
    pid_namespace != INITIAL_PID_NAMESPACE
}

/// The number of the user of a process.
pub(crate) fn user_of(pid: Pid) -> Option<u32> {
    let facts = statat(CWD, format!("/proc/{pid}"), AtFlags::empty()).ok()?;
    Some(facts.st_uid)
}

/// The pid namespace of the caller.
pub(crate) fn pid_namespace() -> Option<u64> {
    proc_is_ours()
        .then(|| own_namespace(c"/proc/self/ns/pid"))
        .flatten()
}

/// The number of a namespace of the caller, from the text of its link ("pid:[4026531836]"): to follow it takes twice as
/// long.
fn own_namespace(link: &CStr) -> Option<u64> {
    let mut text = [0; 64];
    let length = readlinkat_raw(CWD, link, &mut text).ok()?;
    let text = std::str::from_utf8(text.get(..length)?).ok()?;
    let (_, digits) = text.split_once(":[")?;
    digits.strip_suffix(']')?.parse().ok()
}

/// The umask of the caller, as it is written: asking for it by umask(2) would change it.
pub(crate) fn umask() -> Option<String> {
    status_of("self", "Umask:")
}

/// Whether /proc shows the processes of other users.
pub(crate) fn shows_all() -> bool {
    statat(CWD, c"/proc/1", AtFlags::empty()).is_ok()
}

/// The processes that /proc shows.
pub(super) fn shown_pids() -> io::Result<impl Iterator<Item = io::Result<Pid>>> {
    let pid = |name: &OsStr| Pid::new(name.to_str()?.parse().ok()?);
    Ok(
        names_in(Path::new("/proc"))?.filter_map(move |name| match name {
            Ok(name) => pid(&name).map(Ok),
            Err(error) => Some(Err(error)),
        }),
    )
}

/// The inode of the initial user namespace (`PROC_USER_INIT_INO`).
const INITIAL_USER_NAMESPACE: u64 = 0xEFFF_FFFD;

/// The state of the first process of another PID namespace. `None`: unknown, because only root in the initial namespaces
/// sees all of them. The first process of a namespace outlives all others of it (pid_namespaces(7)), so a namespace in
/// use is not missed while processes come and go.
#[cold]
pub(crate) fn state_of_pid_namespace(number: u64) -> Option<ProcessState> {
    let user_namespace = statat(CWD, c"/proc/self/ns/user", AtFlags::empty()).ok()?;
    let is_root = own_uid() == Some(0) && user_namespace.st_ino == INITIAL_USER_NAMESPACE;
    if !is_root || pid_namespace().is_none_or(is_container) {
        return None;
    }
    let mut found = ProcessState::Gone;
    for pid in shown_pids().ok()? {
        let pid = pid.ok()?;
        // It is in the caller's own namespace, even if its namespace cannot be read.
        if pid.get() == 1 {
            continue;
        }
        match statat(CWD, format!("/proc/{pid}/ns/pid"), AtFlags::empty()) {
            Ok(facts) if facts.st_ino == number => {
                let first = Some(pid).filter(|pid| is_first(*pid));
                let start = first.and_then(start_ticks);
                found = ProcessState::Alive { start };
                if start.is_some() {
                    break;
                }
            }
            // It has ended meanwhile.
            Ok(_) | Err(Errno::NOENT | Errno::SRCH) => {}
            Err(_) => return None,
        }
    }
    Some(found)
}

/// Whether a process is the first one of its PID namespace.
fn is_first(pid: Pid) -> bool {
    let pids = status_of(pid, "NSpid:");
    pids.is_some_and(|pids| pids.split_whitespace().last() == Some("1"))
}

/// Milliseconds since boot, suspended time included, as outside any time namespace.
pub(crate) fn boottime_milliseconds() -> u64 {
    let now = u64::try_from(boottime().as_nanos()).unwrap_or(u64::MAX);
    now.saturating_sub_signed(boottime_offset_nanoseconds().unwrap_or(0)) / 1_000_000
}

/// All kernels since 2.6.39 have it (clock_gettime(2)).
pub(in crate::sys) const BOOT_CLOCK: libc::clockid_t = libc::CLOCK_BOOTTIME;

/// A tick is 10 ms: start times are in units of `1 / USER_HZ`, and Linux has `USER_HZ` = 100 on all
/// architectures in use (include/asm-generic/param.h, proc_pid_stat(5)), whatever `HZ` is. Not
/// asked for: sysconf(3) reads the auxiliary vector, and rustix crashes on the one that valgrind
/// shows.
const MILLISECONDS_PER_TICK: u64 = 10;
const NANOSECONDS_PER_TICK: i64 = 10_000_000;

/// include/linux/sched.h: forked, and not executed a program since.
const PF_FORKNOEXEC: u32 = 0x40;

// linux/magic.h
pub(super) const PROC_SUPER_MAGIC: u64 = 0x9fa0;

/// Fails unless /proc belongs to our own PID namespace. After `unshare --pid` without a new /proc it
/// shows the outer one, where our numbers belong to other processes.
pub(in crate::sys) fn ensure_proc_is_ours() -> io::Result<()> {
    let text = "/proc is missing or shows another PID namespace";
    proc_is_ours()
        .then_some(())
        .ok_or_else(|| io::Error::other(text))
}

/// Of which process it is known that /proc belongs to its PID namespace: a forked child asks again.
static PROC_IS_OF: AtomicU32 = AtomicU32::new(0);

/// Whether /proc is there and belongs to our own PID namespace: it names us by our own number.
fn proc_is_ours() -> bool {
    proc_is_of(Pid::of_self())
}

fn proc_is_of(own: Pid) -> bool {
    if PROC_IS_OF.load(Ordering::Relaxed) == own.get() {
        return true;
    }
    let mut text = [0; 16];
    let length = readlinkat_raw(CWD, c"/proc/self", &mut text).unwrap_or(0);
    let is_ours = text.get(..length).and_then(number) == Some(own.get());
    if is_ours {
        PROC_IS_OF.store(own.get(), Ordering::Relaxed);
    }
    is_ours
}

/// The `stat` of the calling process as it was when it was first asked for: the start and the flags
/// stay the same, the parent may not. `None`: /proc shows another PID namespace, or is not there.
fn own_stat(own: Pid) -> Option<Stat> {
    // The PID and the answer, so that a forked child asks again.
    static OWN: Mutex<Option<(Pid, Stat)>> = Mutex::new(None);
    let mut known = locked(&OWN);
    if let Some((_, stat)) = known.filter(|(pid, _)| *pid == own) {
        return Some(stat);
    }
    let mut stat = read_stat("self").ok()?;
    if stat.is_made_up {
        stat = read_stat(format!("self/task/{own}")).ok()?;
    }
    // In the /proc of another namespace it is another number, or nothing.
    if stat.pid != own.get() {
        return None;
    }
    PROC_IS_OF.store(own.get(), Ordering::Relaxed);
    *known = Some((own, stat));
    Some(stat)
}

/// The `stat` of a process; `None`: /proc does not show it, or shows another PID namespace.
fn stat_of(pid: Pid) -> Option<Stat> {
    let own = Pid::of_self();
    if pid == own {
        return own_stat(own);
    }
    proc_is_of(own).then(|| read_stat(pid).ok()).flatten()
}

/// The offset of the boot clock in the caller's time namespace, of at most 146 years (time_namespaces(7)).
fn boottime_offset_nanoseconds() -> Option<i64> {
    // A process stays in the time namespace that it began in (time_namespaces(7)).
    static OFFSET: OnceLock<Option<i64>> = OnceLock::new();
    *OFFSET.get_or_init(read_boottime_offset)
}

/// The number of the time namespace that a system begins with, whose offsets are 0
/// (`PROC_TIME_INIT_INO` in include/linux/proc_ns.h).
const INITIAL_TIME_NAMESPACE: u64 = 0xEFFF_FFFA;

fn read_boottime_offset() -> Option<i64> {
    if own_namespace(c"/proc/self/ns/time") == Some(INITIAL_TIME_NAMESPACE) {
        return Some(0);
    }
    let text = match open_to_read(c"/proc/self/timens_offsets") {
        Ok(file) => read_whole(&file).ok()?,
        // A kernel without time namespaces.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Some(0),
        Err(_) => return None,
    };
    let offset = value_in(std::str::from_utf8(&text).ok()?, "boottime")?;
    let (seconds, nanoseconds) = offset.split_once(char::is_whitespace)?;
    let seconds: i64 = seconds.parse().ok()?;
    let nanoseconds: i64 = nanoseconds.trim_start().parse().ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
}

fn open_to_read(path: impl Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Reads a file of /proc. One call is enough for a short one: a call that leaves room has read to the
/// end. std makes seven calls.
fn read_whole(file: &OwnedFd) -> io::Result<Vec<u8>> {
    // Not filled: to zero it would cost as much as to parse what is read.
    let mut bytes = Vec::with_capacity(2048);
    loop {
        rustix::io::retry_on_intr(|| rustix::io::read(file, spare_capacity(&mut bytes)))?;
        if bytes.len() < bytes.capacity() {
            return Ok(bytes);
        }
        bytes.reserve(bytes.len());
    }
}

/// Reads a file of /proc about a process.
fn read_of(process: impl Display, file: &str) -> io::Result<Vec<u8>> {
    read_whole(&open_to_read(format!("/proc/{process}/{file}"))?)
}

fn read_stat(process: impl Display) -> io::Result<Stat> {
    let text = read_of(process, "stat")?;
    parse_stat(&text).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// A value in the `status` of a process, whose name may have any bytes.
pub(super) fn status_of(process: impl Display, key: &str) -> Option<String> {
    let text = read_of(process, "status").ok()?;
    value_in(&String::from_utf8_lossy(&text), key)
}

/// Fields of proc_pid_stat(5).
#[derive(Clone, Copy)]
struct Stat {
    pid: u32,
    is_zombie: bool,
    is_stopped: bool,
    parent: u32,
    group: u32,
    flags: u32,
    /// Ticks since boot, in the time namespace of the reader.
    start: u64,
    /// A running process without memory: qemu-user makes up `/proc/self/stat` when a process reads its
    /// own (linux-user, `open_self_stat`), with another start than everyone else sees. What it makes up
    /// is not that of the main thread.
    is_made_up: bool,
}

/// Parses fields 1, 3, 4, 5, 9, 22 and 23. The name, field 2, may contain anything, also blanks and parentheses, so
/// fields are counted from its closing parenthesis.
fn parse_stat(text: &[u8]) -> Option<Stat> {
    /// Longer than a PID and a name, which has at most 64 bytes (fs/proc/array.c, `proc_task_name`).
    const END_OF_NAME: usize = 96;
    let start = text.get(..END_OF_NAME).unwrap_or(text);
    let name_ends = start.iter().rposition(|byte| *byte == b')')?;
    let pid = start.split(|byte| *byte == b' ').next()?;
    let mut fields = text.get(name_ends + 2..)?.split(|byte| *byte == b' ');
    let state = fields.next()?;
    Some(Stat {
        pid: number(pid)?,
        is_zombie: matches!(state, b"Z" | b"X"),
        is_stopped: matches!(state, b"T" | b"t"),
        parent: number(fields.next()?)?,
        group: number(fields.next()?)?,
        flags: number(fields.nth(3)?)?,
        start: number(fields.nth(12)?)?,
        is_made_up: fields.next()? == b"0",
    })
}

fn number<T: FromStr>(digits: &[u8]) -> Option<T> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_stat_skips_a_name_with_blanks_and_parentheses() {
        let line = b"812 (a) b) (c) S 800 700 600 0 -1 4194368 1 2 3 4 5 6 7 8 20 0 1 0 110812 9 9";
        let stat = parse_stat(line).expect("a stat line");
        assert_eq!((stat.pid, stat.parent, stat.group), (812, 800, 700));
        assert!(!stat.is_zombie && !stat.is_stopped && !stat.is_made_up);
        assert_eq!((stat.flags, stat.start), (0x40_0040, 110_812));
        let fields = "S 800 700 600 0 -1 4194368 1 2 3 4 5 6 7 8 20 0 1 0 110812 9 9";
        let longest = format!("4194304 ({}) {fields}", ")".repeat(63));
        assert_eq!(parse_stat(longest.as_bytes()).expect("a line").parent, 800);
    }

    #[test]
    fn parse_stat_refuses_a_truncated_line() {
        assert!(parse_stat(b"812 (a) S 800 700").is_none());
        assert!(parse_stat(b"").is_none());
    }

    #[test]
    fn parse_stat_knows_what_has_ended_is_stopped_or_made_up() {
        let parsed = |state: &str, memory: &str| {
            let line =
                format!("812 (a) {state} 8 7 6 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 9 {memory} 9");
            let stat = parse_stat(line.as_bytes()).expect("a stat line");
            (stat.is_zombie, stat.is_stopped, stat.is_made_up)
        };
        for state in ["Z", "X"] {
            assert_eq!(parsed(state, "9"), (true, false, false), "{state}");
        }
        for state in ["T", "t"] {
            assert_eq!(parsed(state, "9"), (false, true, false), "{state}");
        }
        assert_eq!(parsed("R", "0"), (false, false, true));
    }

    #[test]
    fn process_is_gone_once_it_has_exited_though_nobody_has_waited_for_it() {
        use rustix::process::{Signal, WaitOptions, kill_process, waitpid};
        let own_start = start_ticks(Pid::of_self()).expect("/proc shows this process");
        // Until the child can only begin in a later tick.
        while boottime_milliseconds() < (own_start + 3) * MILLISECONDS_PER_TICK {
            std::thread::yield_now();
        }
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("cat");
        let pid = Pid::new(child.id()).expect("a PID");
        let descriptor = open_pidfd(pid).expect("a descriptor");
        let ended = |within| has_ended(&descriptor, within).expect("poll(2)");
        let start = start_ticks(pid);
        assert!(start > Some(own_start));
        let of = |start| presence_of(ProcessId { pid, start });
        for said in [start, start.map(|start| start + 1), None] {
            assert_eq!(of(said), ProcessState::Alive { start });
        }
        assert!(!ended(Duration::ZERO) && !is_defunct(pid) && !is_stopped(pid));

        kill_process(raw(pid).expect("a PID"), Signal::STOP).expect("kill(2)");
        waitpid(raw(pid), WaitOptions::UNTRACED).expect("it is stopped");
        assert!(is_stopped(pid) && !ended(Duration::ZERO));

        child.kill().expect("kill(2)");
        assert!(ended(Duration::from_mins(1)) && is_defunct(pid));
        assert_eq!(of(start), ProcessState::Gone);
        child.wait().expect("it has ended");
        assert_eq!(of(start), ProcessState::Gone);
        assert!(!is_defunct(pid));
    }

    #[test]
    fn start_is_a_time_since_boot_in_ticks_of_10_ms() {
        assert_eq!(milliseconds_of_start(7), Some(70));
        assert_eq!(milliseconds_of_start(u64::MAX), None);
        assert_eq!(least_start_after(75), Some(6));
        assert_eq!(least_start_after(0), Some(0));
    }

    #[test]
    fn machine_id_is_that_of_the_first_file_and_none_without_any() {
        let missing = c"/nonexistent/machine-id";
        // Long, stable, and there on every Linux.
        let other = c"/proc/sys/kernel/random/boot_id";
        assert_eq!(machine_id_in([missing, missing]), None);
        let id = machine_id_in([other, missing]).expect("a file");
        assert_eq!(machine_id_in([missing, other]), Some(id.clone()));
        assert!(id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_eq!(machine_id_in([c"/dev/null", other]), None);
    }

    #[test]
    fn we_are_there_and_started_before_now() {
        let ProcessState::Alive { start: Some(start) } = presence(Pid::of_self()) else {
            panic!("the test itself is running");
        };
        assert!(u128::from(start) * 10 <= u128::from(boottime_milliseconds()) + 20);
    }

    #[test]
    fn only_a_process_that_never_executed_is_only_forked() {
        let own = kinship(Pid::of_self()).expect("/proc shows this process");
        assert_eq!(
            own.parent.map(Pid::get),
            Some(std::os::unix::process::parent_id())
        );
        assert_eq!(own.start, start_ticks(Pid::of_self()));
        assert!(!own.only_forked);
        // A background job has no other input than that of descriptor 3.
        let script = "exec 3<&0; (read line <&3; exit $?) & echo $!; wait";
        let mut shell = std::process::Command::new("sh")
            .args(["-c", script])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("sh");
        let mut line = String::new();
        let stdout = shell.stdout.as_mut().expect("a pipe");
        std::io::BufRead::read_line(&mut io::BufReader::new(stdout), &mut line).expect("a pid");
        let subshell = line.trim().parse().ok().and_then(Pid::new).expect("a pid");
        let forked = kinship(subshell);
        drop(shell.stdin.take());
        shell.wait().expect("sh ends");
        let forked = forked.expect("/proc shows the subshell");
        assert!(forked.only_forked);
        assert_eq!(forked.parent.map(Pid::get), Some(shell.id()));
    }
}
