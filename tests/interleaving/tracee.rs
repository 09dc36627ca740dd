//! What is read and written of a process that is traced.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::sys::ptrace;
use nix::unistd::Pid;

use crate::calls::Call;
use crate::tracer::{memory, write_memory};

/// Reads a string of a process.
pub fn text_at(pid: Pid, address: u64) -> String {
    let mut bytes = Vec::new();
    while bytes.len() < 4096 {
        // No further than the page, the next one may not be there.
        let at = address + bytes.len() as u64;
        let mut part = vec![0; (4096 - (at & 4095) as usize).min(256)];
        if memory(pid, at, &mut part).is_none() {
            break;
        }
        if let Some(end) = part.iter().position(|byte| *byte == 0) {
            bytes.extend(&part[..end]);
            break;
        }
        bytes.extend(part);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// So many bytes of a process.
pub fn bytes_at(pid: Pid, address: u64, length: u64) -> Vec<u8> {
    let mut bytes = vec![0; length.min(1 << 20) as usize];
    memory(pid, address, &mut bytes).map_or_else(Vec::new, |()| bytes)
}

/// Returns once a socket of a process has something to be read, or nothing has come for long.
pub fn wait_for_answer(pid: Pid, descriptor: u64) {
    let process = thread_group(pid).and_then(rustix::process::Pid::from_raw);
    let none = rustix::process::PidfdFlags::empty();
    let Some(Ok(process)) = process.map(|pid| rustix::process::pidfd_open(pid, none)) else {
        return;
    };
    let none = rustix::process::PidfdGetfdFlags::empty();
    let descriptor = (descriptor as u32).cast_signed();
    let Ok(socket) = rustix::process::pidfd_getfd(process, descriptor, none) else {
        return;
    };
    let mut polled = libc::pollfd {
        fd: socket.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one structure, which lives.
    unsafe { libc::poll(&raw mut polled, 1, 5_000) };
}

/// Whether a timeout is zero.
pub fn polls_now(pid: Pid, timeout: u64) -> bool {
    let mut bytes = [1; 16];
    timeout != 0 && memory(pid, timeout, &mut bytes).is_some() && bytes == [0; 16]
}

pub fn open_file(pid: Pid, descriptor: u64) -> PathBuf {
    let descriptor = (descriptor as u32).cast_signed();
    PathBuf::from(format!("/proc/{pid}/fd/{descriptor}"))
}

/// What a process has open: a path, or a text that is none.
pub fn open_path(pid: Pid, descriptor: u64) -> PathBuf {
    fs::read_link(open_file(pid, descriptor)).unwrap_or_default()
}

/// What the kernel calls a file: no later one is called so, although it may have the same number.
pub type Identity = Vec<u8>;

pub fn identity(path: &Path, follows: bool) -> Option<Identity> {
    const MOST: usize = 128;
    let of_path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // struct file_handle: how long, which kind, and the handle.
    let mut handle = [0_u32; 2 + MOST / 4];
    handle[0] = MOST as u32;
    let mut mount = 0_i32;
    let flags = if follows { libc::AT_SYMLINK_FOLLOW } else { 0 };
    // SAFETY: a string that ends with NUL, and buffers of the lengths that the call expects.
    let named = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            of_path.as_ptr(),
            handle.as_mut_ptr(),
            &raw mut mount,
            flags,
        )
    };
    if named == 0 {
        return Some(handle.iter().flat_map(|word| word.to_ne_bytes()).collect());
    }
    // Not every filesystem has handles.
    let found = if follows {
        path.metadata()
    } else {
        path.symlink_metadata()
    };
    Some(found.ok()?.ino().to_ne_bytes().to_vec())
}

pub fn send(task: Pid, signal: i32) {
    // SAFETY: a thread that is traced by this one, and so not reaped yet.
    unsafe { libc::syscall(libc::SYS_tkill, task.as_raw(), signal) };
}

/// Without it, the process asks the kernel for the time, where it can be answered.
pub fn hide_vdso(pid: Pid) {
    const AT_IGNORE: u64 = 1;
    let registers = ptrace::getregs(pid).unwrap();
    let mut stack = vec![0_u8; 16 << 10];
    while memory(pid, registers.rsp, &mut stack).is_none() {
        stack.truncate(stack.len() - 256);
    }
    let word = |at: usize| u64::from_ne_bytes(stack[at * 8..at * 8 + 8].try_into().unwrap());
    let arguments = word(0) as usize;
    let mut at = arguments + 2;
    while word(at) != 0 {
        at += 1;
    }
    at += 1;
    while word(at) != 0 {
        if word(at) == libc::AT_SYSINFO_EHDR {
            write_memory(pid, registers.rsp + at as u64 * 8, &AT_IGNORE.to_ne_bytes());
        }
        at += 2;
    }
}

/// Replaces the first instructions of a program: `exit_group(0)`.
pub fn end_at_once(pid: Pid) {
    // xor edi, edi; mov eax, 231; syscall
    start_with(pid, &[0x31, 0xff, 0xb8, 0xe7, 0, 0, 0, 0x0f, 0x05]);
}

/// Replaces the first instructions of a program: `pause()`, again and again.
pub fn end_by_signal(pid: Pid) {
    // mov eax, 34; syscall; jmp -9
    start_with(pid, &[0xb8, 0x22, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7]);
}

fn start_with(pid: Pid, instructions: &[u8]) {
    let registers = ptrace::getregs(pid).unwrap();
    write_memory(pid, registers.rip, instructions);
}

/// A process that is stopped by the tracer goes on as far as others can see.
pub fn show_as_running(pid: Pid, text: u64, length: u64) {
    let mut bytes = vec![0; length.cast_signed().clamp(0, 4096) as usize];
    if memory(pid, text, &mut bytes).is_none() {
        return;
    }
    if let Some(end) = bytes.iter().rposition(|byte| *byte == b')')
        && bytes.get(end + 2) == Some(&b't')
    {
        write_memory(pid, text + end as u64 + 2, b"S");
    }
}

/// Whether a lock that a process waits for could be had now.
pub fn is_free(pid: Pid, call: &Call) -> bool {
    let path = PathBuf::from(format!("/proc/{pid}/fd/{}", call.registers.rdi as i32));
    let Ok(file) = File::open(path) else {
        return true;
    };
    let wanted = match call.registers.rsi as i32 & libc::LOCK_SH {
        0 => rustix::fs::FlockOperation::NonBlockingLockExclusive,
        _ => rustix::fs::FlockOperation::NonBlockingLockShared,
    };
    let is_free = rustix::fs::flock(&file, wanted).is_ok();
    // A child of another thread may have it open for a moment, too: to close it would not be enough.
    let _ = rustix::fs::flock(&file, rustix::fs::FlockOperation::Unlock);
    is_free
}

/// The process that a call sends a signal to.
pub fn signaled(pid: Pid, call: &Call) -> Option<i32> {
    let (first, signal) = (call.registers.rdi as i32, call.registers.rsi);
    match call.number() {
        _ if signal == 0 => None,
        libc::SYS_kill | libc::SYS_tgkill => Some(first.abs()),
        libc::SYS_pidfd_send_signal => {
            let facts = fs::read_to_string(format!("/proc/{pid}/fdinfo/{first}")).ok()?;
            let line = facts.lines().find_map(|line| line.strip_prefix("Pid:"))?;
            line.trim().parse().ok()
        }
        _ => None,
    }
}

/// The process of a thread.
pub fn thread_group(task: Pid) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{task}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

/// Whether a process has a signal that it neither blocks nor ignores.
pub fn has_signal(pid: Pid) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name));
        u64::from_str_radix(value.unwrap_or("0").trim(), 16).unwrap()
    };
    let pending = mask("SigPnd:") | mask("ShdPnd:");
    pending & !mask("SigBlk:") & !mask("SigIgn:") != 0
}

/// What the kernel says of a task: it is asked before and after each step.
pub struct Sleep {
    stat: File,
    syscall: File,
}

impl Sleep {
    pub fn of(pid: Pid) -> Option<Self> {
        let open = |name| File::open(format!("/proc/{pid}/{name}")).ok();
        Some(Self {
            stat: open("stat")?,
            syscall: open("syscall")?,
        })
    }

    /// S and D are also seen for a moment in a call that will not sleep. The other file is only answered once the
    /// task is off its processor, and says "running" otherwise.
    pub fn is_sound(&self) -> bool {
        let first = self.state();
        matches!(first, Some(b'S' | b'D'))
            && self.call().is_some_and(|call| SLEEPING.contains(&call))
            && self.state() == first
    }

    fn state(&self) -> Option<u8> {
        let mut bytes = [0; 64];
        let read = self.stat.read_at(&mut bytes, 0).ok()?;
        let end = bytes[..read].iter().rposition(|byte| *byte == b')')?;
        bytes.get(end + 2).copied()
    }

    fn call(&self) -> Option<i64> {
        let mut bytes = [0; 256];
        let read = self.syscall.read_at(&mut bytes, 0).ok()?;
        let text = str::from_utf8(&bytes[..read]).ok()?;
        text.split(' ').next()?.parse().ok()
    }
}

/// Calls in which a process waits for something. In others, such as munmap(2), it may sleep for a moment and goes on
/// by itself.
const SLEEPING: [i64; 14] = [
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_read,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_futex,
    libc::SYS_pause,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_vfork,
    libc::SYS_restart_syscall,
    libc::SYS_recvfrom,
];
