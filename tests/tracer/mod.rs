//! Processes that run under ptrace(2): how they start and go on, what happens to them, and their memory. What is done
//! at a stop is up to the test.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each binary compiles the whole module and uses a part of it"
)]
#![allow(clippy::cast_possible_truncation, clippy::unwrap_used)]

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// How far processes go on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// The next system call, at which they stop before and after it.
    Call,
    /// The next call that their filter (seccomp(2)) names.
    Filter,
    /// The next instruction.
    Step,
}

/// What has happened to a process. It has stopped, unless it has ended or goes on.
#[derive(Clone, Copy)]
pub enum Event {
    /// With an exit code, or by a signal.
    Ended(Result<i32, Signal>),
    Call,
    Filtered,
    Stepped,
    Executed,
    /// It has made this one, which is traced, too, and goes on.
    Created(Pid, Kind),
    /// It has begun, or a signal has reached it.
    GoesOn,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Process,
    Thread,
}

/// Processes that are traced by the thread that made them, with all that they make. Those that are stepped through
/// have no threads.
pub struct Tracees {
    until: Until,
    known: HashSet<Pid>,
    /// What has stopped for the first time before it is known that it was made. It goes on only then: what ended
    /// meanwhile would be waited for without end.
    early: HashSet<Pid>,
}

impl Tracees {
    pub fn new(until: Until) -> Self {
        Self {
            until,
            known: HashSet::new(),
            early: HashSet::new(),
        }
    }

    /// Starts a command, which has stopped before its first instruction.
    pub fn spawn(&mut self, command: &mut Command) -> Child {
        // SAFETY: one system call.
        unsafe { command.pre_exec(|| ptrace::traceme().map_err(Into::into)) };
        let child = command.spawn().unwrap();
        self.add(Pid::from_raw(child.id().cast_signed()));
        child
    }

    /// A child that has asked to be traced, and stops once it has executed its program.
    pub fn add(&mut self, pid: Pid) {
        waitpid(pid, Some(WaitPidFlag::__WALL)).unwrap();
        let mut options = Options::PTRACE_O_TRACESYSGOOD
            | Options::PTRACE_O_TRACESECCOMP
            | Options::PTRACE_O_TRACEVFORK
            | Options::PTRACE_O_TRACEEXEC
            | Options::PTRACE_O_EXITKILL;
        if self.until != Until::Step {
            options |= Options::PTRACE_O_TRACEFORK | Options::PTRACE_O_TRACECLONE;
        }
        ptrace::setoptions(pid, options).unwrap();
        self.known.insert(pid);
    }

    pub fn go_on(&self, pid: Pid, signal: Option<Signal>) {
        // It may have ended.
        let _ = match self.until {
            Until::Call => ptrace::syscall(pid, signal),
            Until::Filter => ptrace::cont(pid, signal),
            Until::Step => ptrace::step(pid, signal),
        };
    }

    /// It goes on without being traced.
    pub fn detach(&mut self, pid: Pid) {
        self.known.remove(&pid);
        let _ = ptrace::detach(pid, None);
    }

    pub fn kill_all(&self) {
        for pid in self.known.union(&self.early) {
            let _ = kill(*pid, Signal::SIGKILL);
        }
    }

    /// What happens next, also to other children of this thread; `None`: nothing has happened, and it is not to
    /// `wait`.
    pub fn next(&mut self, wait: bool) -> nix::Result<Option<(Pid, Event)>> {
        // Of all kinds, since they are traced; but not for other children that clone(2) has made.
        let mut flags = WaitPidFlag::__WNOTHREAD;
        flags.set(WaitPidFlag::WNOHANG, !wait);
        Ok(Some(match waitpid(None, Some(flags))? {
            WaitStatus::Exited(pid, code) => self.ended(pid, Ok(code)),
            WaitStatus::Signaled(pid, signal, _) => self.ended(pid, Err(signal)),
            WaitStatus::PtraceSyscall(pid) => (pid, Event::Call),
            WaitStatus::PtraceEvent(pid, _, event) => (pid, self.event(pid, event)),
            WaitStatus::Stopped(pid, _) if !self.known.contains(&pid) => {
                self.early.insert(pid);
                (pid, Event::GoesOn)
            }
            WaitStatus::Stopped(pid, Signal::SIGTRAP) if self.until == Until::Step => {
                (pid, Event::Stepped)
            }
            WaitStatus::Stopped(pid, signal) => {
                let own = [Signal::SIGSTOP, Signal::SIGTRAP].contains(&signal);
                self.go_on(pid, (!own).then_some(signal));
                (pid, Event::GoesOn)
            }
            _ => return Ok(None),
        }))
    }

    fn ended(&mut self, pid: Pid, end: Result<i32, Signal>) -> (Pid, Event) {
        self.known.remove(&pid);
        (pid, Event::Ended(end))
    }

    fn event(&mut self, pid: Pid, event: i32) -> Event {
        let kind = match event {
            libc::PTRACE_EVENT_SECCOMP => return Event::Filtered,
            libc::PTRACE_EVENT_EXEC => return Event::Executed,
            libc::PTRACE_EVENT_CLONE => Kind::Thread,
            _ => Kind::Process,
        };
        let Ok(new) = ptrace::getevent(pid) else {
            // It was killed.
            return Event::GoesOn;
        };
        let new = Pid::from_raw(new as i32);
        self.known.insert(new);
        if self.early.remove(&new) {
            self.go_on(new, None);
        }
        Event::Created(new, kind)
    }
}

/// Whether there is so much memory at that address.
pub fn memory(pid: Pid, address: u64, into: &mut [u8]) -> Option<()> {
    let local = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    let remote = libc::iovec {
        iov_base: address as *mut _,
        iov_len: into.len(),
    };
    // SAFETY: the first range is a live buffer; the second one is of another process.
    let read = unsafe {
        libc::process_vm_readv(pid.as_raw(), &raw const local, 1, &raw const remote, 1, 0)
    };
    (read == into.len().cast_signed()).then_some(())
}

/// The first number of a structure.
pub fn number_at(pid: Pid, address: u64) -> u64 {
    let mut bytes = [0; 8];
    memory(pid, address, &mut bytes).map_or(0, |()| u64::from_ne_bytes(bytes))
}

pub fn write_memory(pid: Pid, address: u64, bytes: &[u8]) {
    // Also what the process itself may not write: its code.
    let file = File::options()
        .write(true)
        .custom_flags(libc::O_CLOEXEC)
        .open(format!("/proc/{pid}/mem"))
        .unwrap();
    file.write_all_at(bytes, address).unwrap();
}

/// Where a call that asks for a file, such as stat(2), has written the number of the file.
pub fn file_number_of(call: &libc::user_regs_struct) -> Option<u64> {
    // `st_ino` of struct stat, `stx_ino` of struct statx.
    match call.orig_rax.cast_signed() {
        _ if call.rax != 0 => None,
        libc::SYS_stat => Some(call.rsi + 8),
        libc::SYS_newfstatat => Some(call.rdx + 8),
        libc::SYS_statx => Some(call.r8 + 32),
        _ => None,
    }
}
