//! The identity of a process, and whether it is alive.
//!
//! Starts are creation times as the system recorded them, in 100 ns since 1601, and mean the same
//! whatever happens to the clock later. sysinfo returns whole seconds and reads all processes.

use std::io;
use std::os::windows::io::{AsRawHandle, BorrowedHandle, FromRawHandle, OwnedHandle};
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use windows_sys::Wdk::System::SystemInformation::{
    NtQuerySystemInformation, SystemProcessInformation,
};
use windows_sys::Win32::Foundation::{
    ERROR_ACCESS_DENIED, ERROR_INVALID_PARAMETER, ERROR_SUCCESS, FILETIME,
    STATUS_INFO_LENGTH_MISMATCH, WAIT_OBJECT_0,
};
use windows_sys::Win32::System::Registry::{
    HKEY_LOCAL_MACHINE, RRF_RT_REG_SZ, RRF_SUBKEY_WOW6464KEY, RegGetValueW,
};
use windows_sys::Win32::System::Threading::{
    GetProcessId, GetProcessTimes, OpenProcess, PROCESS_QUERY_LIMITED_INFORMATION,
    PROCESS_SYNCHRONIZE, QueryFullProcessImageNameW, TerminateProcess, WaitForSingleObject,
};
use windows_sys::Win32::System::WindowsProgramming::SYSTEM_PROCESS_INFORMATION;
use windows_sys::w;

use super::checked;
use crate::identity::{BootId, Pid, ProcessId};
pub(crate) use crate::sys::not_linux::{
    is_container, least_start_after, pid_namespace, presence_of, shows_all, state_of_pid_namespace,
    umask, user_of, waits_only_for, working_directory,
};
use crate::sys::work::Listed;
pub(crate) use crate::sys::{ProcessParent, ProcessState};
use crate::sys::{digest_of_machine, hostname};

always! {
    /// There is no such limit.
    pub(crate) descriptor_limit() -> Option<u64> = None;
    /// Users have no numbers.
    pub(crate) own_uid() -> Option<u32> = None;
    /// Whether a process is known to be stopped. Windows has no such state, only threads that are suspended.
    pub(crate) is_stopped(_pid: Pid) -> bool = false;
    /// Whether a process that was only forked is a part of its parent, as all are that are shown as forked.
    pub(crate) is_subshell(_pid: Pid, _parent: Pid) -> bool = true;
    /// Whether the caller may end a process: found out when it does.
    pub(crate) may_signal(_pid: Pid) -> bool = true;
}

/// Whether a process with this pid is running.
pub(crate) fn presence(pid: Pid) -> ProcessState {
    match open(pid) {
        Ok(process) if has_ended(&process) => ProcessState::Gone,
        Ok(process) => ProcessState::Alive {
            start: created(&process),
        },
        Err(error) => match error.raw_os_error().map(i32::cast_unsigned) {
            Some(ERROR_INVALID_PARAMETER) => ProcessState::Gone,
            // Alive and not accessible, or ended with an open handle: the list of all processes
            // shows which.
            Some(ERROR_ACCESS_DENIED) => match listed(pid) {
                Ok(Some(found)) => ProcessState::Alive {
                    start: found.process.start,
                },
                Ok(None) => ProcessState::Gone,
                Err(_) => ProcessState::Unknown,
            },
            _ => ProcessState::Unknown,
        },
    }
}

/// The creation time of a process. `None` if it cannot be read, which proves nothing.
pub(crate) fn start_ticks(pid: Pid) -> Option<u64> {
    match open(pid) {
        Ok(process) => created(&process),
        Err(_) => listed(pid).ok()?.and_then(|found| found.process.start),
    }
}

/// When a process of that start began, in milliseconds of [`boottime_milliseconds`].
pub(crate) fn milliseconds_of_start(start: u64) -> Option<i64> {
    i64::try_from(start / 10_000).ok()
}

/// The parent of a process.
pub(crate) fn kinship(pid: Pid) -> Option<ProcessParent> {
    let found = listed(pid).ok()??;
    let start = found.process.start;
    // The PID of a parent that has exited may be in use again. A true parent is older than its
    // child.
    let is_parent = |parent: &Pid| {
        let created = start_ticks(*parent);
        created.is_none() || created <= start
    };
    let parent = Pid::new(found.parent).filter(is_parent);
    Some(ProcessParent {
        parent,
        only_forked: parent.is_some_and(|parent| is_stub_of_cygwin(pid, parent)),
        start,
    })
}

/// Git Bash, MSYS2 and Cygwin start a program of Windows from a copy of the shell, which stays as long
/// as the program does (winsup/cygwin/how-spawn-works.txt). Both show the same file, which has the
/// runtime beside it. There is no other fork.
fn is_stub_of_cygwin(pid: Pid, parent: Pid) -> bool {
    const RUNTIMES: [&str; 2] = ["msys-2.0.dll", "cygwin1.dll"];
    let shell = command_line(pid);
    match shell.first() {
        Some(program) if shell == command_line(parent) => RUNTIMES
            .iter()
            .any(|name| Path::new(program).with_file_name(name).exists()),
        _ => false,
    }
}

/// The program of a process. Only a debugger can read the arguments.
pub(crate) fn command_line(pid: Pid) -> Vec<String> {
    let mut path = [0_u16; 1024];
    let mut length = 1024;
    let Ok(process) = open(pid) else {
        return Vec::new();
    };
    // SAFETY: the handle is open, and the length is that of a buffer of ours.
    let named = unsafe {
        QueryFullProcessImageNameW(
            process.as_raw_handle(),
            0,
            path.as_mut_ptr(),
            &raw mut length,
        )
    };
    let length = usize::try_from(length).unwrap_or(0);
    match path.get(..length) {
        Some(path) if named != 0 => vec![String::from_utf16_lossy(path)],
        _ => Vec::new(),
    }
}

/// The machine, identified by its installation and its host name: PIDs with creation times identify
/// a process across boots, and [`boottime_milliseconds`] counts across them. A machine can be
/// renamed, so a different value proves nothing.
pub(crate) fn boot_id() -> Option<BootId> {
    machine_guid().map(|guid| BootId {
        id: format!("{guid} {}", hostname().unwrap_or_default()),
        masked: true,
    })
}

/// Which machine this is, as 16 hex digits. Copies of an installation may have the same.
pub(crate) fn machine_id() -> Option<String> {
    digest_of_machine(&machine_guid()?)
}

/// The name of this installation of Windows.
fn machine_guid() -> Option<String> {
    let mut text = [0_u16; 64];
    let mut size = u32::try_from(size_of_val(&text)).ok()?;
    // SAFETY: the texts end with a null, and the size is that of the place in bytes.
    let found = unsafe {
        RegGetValueW(
            HKEY_LOCAL_MACHINE,
            w!("SOFTWARE\\Microsoft\\Cryptography"),
            w!("MachineGuid"),
            RRF_RT_REG_SZ | RRF_SUBKEY_WOW6464KEY,
            std::ptr::null_mut(),
            text.as_mut_ptr().cast(),
            &raw mut size,
        )
    };
    let text: Vec<u16> = text.into_iter().take_while(|unit| *unit != 0).collect();
    (found == ERROR_SUCCESS && !text.is_empty()).then(|| String::from_utf16_lossy(&text))
}

/// Users have no numbers.
pub(crate) fn user_name(uid: u32) -> String {
    uid.to_string()
}

/// Milliseconds since 1601, which go on while the machine is suspended or off, and move when the
/// clock is set.
pub(crate) fn boottime_milliseconds() -> u64 {
    /// From 1601 to 1970.
    const BEFORE: Duration = Duration::from_hours(3_234_576);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from((BEFORE + now.unwrap_or_default()).as_millis()).unwrap_or(u64::MAX)
}

/// Time since the first call, suspended time included, for measuring how long something takes.
pub(crate) fn boottime() -> Duration {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    FIRST.get_or_init(Instant::now).elapsed()
}

/// Opens a process. Its PID is not reused while the handle is open.
pub(super) fn open(pid: Pid) -> io::Result<OwnedHandle> {
    open_to(0, pid)
}

/// Opens a process with these rights beside those to ask about it and to wait for it.
pub(super) fn open_to(rights: u32, pid: Pid) -> io::Result<OwnedHandle> {
    let rights = rights | PROCESS_QUERY_LIMITED_INFORMATION | PROCESS_SYNCHRONIZE;
    // SAFETY: no memory is involved; a handle that is not null is ours.
    let process = unsafe {
        let raw = OpenProcess(rights, 0, pid.get());
        if raw.is_null() {
            return Err(io::Error::last_os_error());
        }
        OwnedHandle::from_raw_handle(raw)
    };
    // OpenProcess ignores the two lowest bits of a PID.
    // SAFETY: the handle is open.
    if unsafe { GetProcessId(process.as_raw_handle()) } == pid.get() {
        Ok(process)
    } else {
        Err(io::Error::from_raw_os_error(
            ERROR_INVALID_PARAMETER.cast_signed(),
        ))
    }
}

/// Whether it has ended: its PID stays in use while any process has a handle to it.
pub(super) fn has_ended(process: &OwnedHandle) -> bool {
    // SAFETY: the handle is open, and may be waited on.
    unsafe { WaitForSingleObject(process.as_raw_handle(), 0) == WAIT_OBJECT_0 }
}

/// Ends a process, which was opened to be ended.
pub(super) fn terminate(process: BorrowedHandle<'_>, code: u32) -> io::Result<()> {
    // SAFETY: the handle is open.
    checked(unsafe { TerminateProcess(process.as_raw_handle(), code) })
}

pub(super) fn created(process: &OwnedHandle) -> Option<u64> {
    let mut times = [FILETIME::default(); 4];
    let [created, exited, kernel, user] = &mut times;
    // SAFETY: the handle is open, and the four places are ours.
    let told = unsafe { GetProcessTimes(process.as_raw_handle(), created, exited, kernel, user) };
    (told != 0).then(|| u64::from(created.dwHighDateTime) << 32 | u64::from(created.dwLowDateTime))
}

/// `None`: there is no such process, or it no longer has threads.
fn listed(pid: Pid) -> io::Result<Option<Listed>> {
    Ok(all()?.into_iter().find(|found| found.process.pid == pid))
}

/// All processes that have threads. Every user may read this.
pub(super) fn all() -> io::Result<Vec<Listed>> {
    let list = list()?;
    let mut rest = list.as_slice();
    let mut found = Vec::new();
    loop {
        let Some(entry) = rest.get(..size_of::<SYSTEM_PROCESS_INFORMATION>()) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        // SAFETY: it has that many bytes, and all bits are valid in each of its fields.
        let entry = unsafe {
            entry
                .as_ptr()
                .cast::<SYSTEM_PROCESS_INFORMATION>()
                .read_unaligned()
        };
        let pid = u32::try_from(entry.UniqueProcessId.addr()).ok();
        if let Some(pid) = pid.and_then(Pid::new).filter(|_| entry.NumberOfThreads > 0) {
            // Behind a size and two counters.
            let created = entry.Reserved1.as_chunks().0.get(3);
            found.push(Listed {
                process: ProcessId {
                    pid,
                    start: created.copied().map(u64::from_le_bytes),
                },
                // The number of its parent, which has no name there.
                parent: u32::try_from(entry.Reserved2.addr()).unwrap_or(0),
                group: 0,
                is_zombie: false,
            });
        }
        match usize::try_from(entry.NextEntryOffset) {
            Ok(next) if next > 0 => rest = rest.get(next..).unwrap_or_default(),
            _ => return Ok(found),
        }
    }
}

// The list of processes in kernel32 has no creation times.
fn list() -> io::Result<Vec<u8>> {
    let mut buffer = vec![0_u8; 256 * 1024];
    for _ in 0..10 {
        let size = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
        let mut needed = 0;
        // SAFETY: the size is that of the buffer, which is ours.
        let status = unsafe {
            NtQuerySystemInformation(
                SystemProcessInformation,
                buffer.as_mut_ptr().cast(),
                size,
                &raw mut needed,
            )
        };
        match status {
            STATUS_INFO_LENGTH_MISMATCH => {
                let more = usize::try_from(needed).unwrap_or(0).max(buffer.len()) * 2;
                buffer.resize(more, 0);
            }
            0.. => return Ok(buffer),
            _ => return Err(io::Error::other("the system does not list its processes")),
        }
    }
    Err(io::ErrorKind::OutOfMemory.into())
}
