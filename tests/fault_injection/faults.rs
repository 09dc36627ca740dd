//! Runs a program under ptrace(2) with a fault just before one of its system calls.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, sigaction};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, gettid};

use crate::tracer::{Event, Kind, Tracees, Until, file_number_of, number_at, write_memory};

/// The process whose calls are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The program itself, from its `main` on.
    Program,
    /// A child that it forks, until the child executes the command.
    Child,
    /// The command, without the processes that it forks.
    Command,
}

/// What happens before a call, which is identified by its number.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    Nothing,
    /// Nothing, but the calls of the command are counted too.
    Follow,
    Kill(Role, usize),
    /// The program is killed before that call of its child; the child continues after the callback.
    Orphan(usize),
    /// The callback is called before each call of the program.
    Watch,
    /// The callback is called before each of these calls of the program.
    Interleave([usize; 3]),
    /// The callback is called before this call.
    Before(Role, usize),
    /// The call is not made, and returns an error.
    Fail(Role, usize, Errno),
    /// Each directory is closed with an error.
    FailDirectories(Errno),
    /// The callback is called before that call of the main thread, and the program gets these signals. Its stdin is
    /// a pipe.
    Cancel(usize, First, &'static [Signal]),
}

/// Which thread goes on first once a signal has come. The other one waits until nothing happens any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    Main,
    /// That of the handler, once the handler has returned.
    Others,
}

/// The result of a trace.
#[derive(Debug, Default)]
pub struct Ended {
    pub code: Option<i32>,
    pub signal: Option<Signal>,
    /// Whether a command was executed.
    pub executed: bool,
    /// The system call numbers, in order.
    pub calls: HashMap<Role, Vec<u64>>,
    /// Those of the main thread.
    pub main_calls: usize,
    pub main_calls_before_command: Option<usize>,
    /// Whether it came to the call of a [`Fault::Cancel`], and had a second thread then.
    pub is_canceled: bool,
    pub had_threads: bool,
    /// See [`Then::Renumber`].
    renumbered: Option<(u64, u64)>,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    pub fn count(&self, role: Role) -> usize {
        self.calls.get(&role).map_or(0, Vec::len)
    }
}

struct Task {
    role: Role,
    counts: bool,
    /// Whether it is between the entry of a call and its return.
    in_call: bool,
    /// The error that the present call returns.
    error: Option<Errno>,
}

impl Task {
    fn new(role: Role, counts: bool) -> Self {
        Self {
            role,
            counts,
            in_call: false,
            error: None,
        }
    }
}

/// The program ignores this signal before all else. What comes before is of the C library.
const SIGPIPE: u64 = 13;
const RT_SIGACTION: u64 = 13;
const CLOSE: u64 = 3;

/// Calls that do not fail here: calls that allocate memory, as a failed allocation ends a Rust
/// program, and calls that according to their man pages always succeed, or cannot fail as they are
/// called.
#[rustfmt::skip]
pub const NEVER_FAILING: [u64; 21] = [
    9, 10, 11, 12, 25, 28,        // mmap mprotect munmap brk mremap madvise
    60, 231,                      // exit exit_group
    202,                          // futex
    39, 186, 110,                 // getpid gettid getppid
    102, 104, 107, 108, 95,       // getuid getgid geteuid getegid umask
    13,                           // rt_sigaction
    228,                          // clock_gettime
    318,                          // getrandom
    334,                          // rseq, of a new thread
];

/// Calls that change nothing: to be killed before one of them is to be killed before the next that does.
#[rustfmt::skip]
pub const LOOKS: [u64; 41] = [
    0, 3, 4, 5, 6, 8, 17,    // read close stat fstat lstat lseek pread64
    7, 271, 2, 257, 262, 332, // poll ppoll open openat newfstatat statx
    437,                      // openat2
    217, 89, 267, 228, 434,  // getdents64 readlink readlinkat clock_gettime pidfd_open
    9, 10, 11, 12, 25, 28,   // mmap mprotect munmap brk mremap madvise
    13, 14, 72, 202,         // rt_sigaction rt_sigprocmask fcntl futex
    39, 186, 110, 111,       // getpid gettid getppid getpgrp
    102, 104, 107, 108,      // getuid getgid geteuid getegid
    63, 131, 138, 302,       // uname sigaltstack fstatfs prlimit64
];

/// Longer than any wait of the program itself: if it cannot give a kernel lock back, it waits for itself, twice for 10 s.
const TIMEOUT: Duration = Duration::from_mins(1);

/// What happens to the traced process after the callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Continue,
    Kill,
    /// From now on the kernel says of a file with the first number that it has the second one.
    Renumber(u64, u64),
}

/// Runs a program to its end. Processes that it leaves running are detached.
pub fn trace(command: Command, fault: Fault) -> Ended {
    trace_and(command, fault, || Then::Continue)
}

/// The same, with a callback that is called while a process is stopped before its call.
pub fn trace_and(command: Command, fault: Fault, callback: impl FnMut() -> Then) -> Ended {
    let tracer = gettid();
    let (ended, has_ended) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if has_ended.recv_timeout(TIMEOUT) == Err(RecvTimeoutError::Timeout) {
                interrupt(tracer);
            }
        });
        let result = trace_here(command, fault, callback);
        drop(ended);
        result
    })
}

/// Ends a wait of that thread: without that it would last for ever.
fn interrupt(tracer: Pid) {
    extern "C" fn nothing(_: libc::c_int) {}
    let action = SigAction::new(
        SigHandler::Handler(nothing),
        SaFlags::empty(),
        SigSet::empty(),
    );
    // SAFETY: the handler does nothing.
    unsafe { sigaction(Signal::SIGUSR1, &action) }.unwrap();
    // SAFETY: the thread has not ended: it waits for the one that calls this.
    unsafe {
        libc::syscall(
            libc::SYS_tgkill,
            std::process::id(),
            tracer.as_raw(),
            libc::SIGUSR1,
        )
    };
}

/// How far a [`Fault::Cancel`] is.
#[derive(PartialEq, Eq)]
enum Canceling {
    NotYet,
    Sent,
    /// The handler returns next.
    Handled,
    Over,
}

/// How long nothing happens until the thread that waits goes on.
const IDLE: Duration = Duration::from_millis(10);

fn trace_here(mut command: Command, fault: Fault, mut callback: impl FnMut() -> Then) -> Ended {
    let (mut out, mut err) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    command
        .stdin(Stdio::null())
        .stdout(out.try_clone().unwrap())
        .stderr(err.try_clone().unwrap());
    if matches!(fault, Fault::Cancel(..)) {
        command.stdin(Stdio::piped());
    }
    let mut tracees = Tracees::new(Until::Call);
    #[allow(clippy::zombie_processes, reason = "waited for with the tracees")]
    let mut child = tracees.spawn(&mut command);
    let root = Pid::from_raw(child.id().cast_signed());
    let mut ended = Ended::default();
    let mut tasks = HashMap::from([(root, Task::new(Role::Program, false))]);
    let mut canceling = Canceling::NotYet;
    let mut held_up = Vec::new();
    let mut idle_since = Instant::now();
    tracees.go_on(root, None);
    while !tasks.is_empty() {
        let (pid, event) = match tracees.next(held_up.is_empty()) {
            Ok(None) => {
                if idle_since.elapsed() > IDLE {
                    canceling = Canceling::Over;
                    held_up.drain(..).for_each(|pid| tracees.go_on(pid, None));
                }
                std::thread::sleep(Duration::from_micros(100));
                continue;
            }
            Ok(Some(next)) => {
                idle_since = Instant::now();
                next
            }
            Err(Errno::ECHILD) => break,
            // The tracees are killed with this thread.
            Err(Errno::EINTR) => panic!(
                "hangs: {command:?}, {fault:?}, with {}",
                states(tasks.keys())
            ),
            Err(error) => panic!("{error}"),
        };
        match event {
            Event::Ended(end) => {
                tasks.remove(&pid);
                if pid == root {
                    (ended.code, ended.signal) = (end.ok(), end.err());
                }
            }
            Event::Call => {
                if let Fault::Cancel(at, first, signals) = fault
                    && let Some(task) = tasks.get(&pid)
                {
                    let is_entry = pid == root && task.counts && !task.in_call;
                    if is_entry && canceling == Canceling::NotYet && ended.main_calls == at {
                        canceling = Canceling::Sent;
                        ended.is_canceled = true;
                        ended.had_threads = tasks.len() > 1;
                        callback();
                        for signal in signals {
                            kill(root, *signal).unwrap();
                        }
                    } else if is_entry && canceling == Canceling::Sent && is_return(pid) {
                        canceling = Canceling::Handled;
                    } else if match first {
                        First::Main => {
                            matches!(canceling, Canceling::Sent | Canceling::Handled) && pid != root
                        }
                        First::Others => is_entry && canceling == Canceling::Handled,
                    } {
                        at_call(pid, tasks.get_mut(&pid).unwrap(), fault, &mut ended);
                        ended.main_calls += usize::from(is_entry);
                        held_up.push(pid);
                        continue;
                    }
                    ended.main_calls += usize::from(is_entry);
                }
                if let Some(task) = tasks.get_mut(&pid)
                    && at_call(pid, task, fault, &mut ended)
                {
                    if matches!(fault, Fault::Orphan(_)) {
                        kill(root, Signal::SIGKILL).unwrap();
                        let killed = waitpid(root, Some(WaitPidFlag::__WALL)).unwrap();
                        assert!(matches!(killed, WaitStatus::Signaled(..)), "{killed:?}");
                        tasks.remove(&root);
                        ended.signal = Some(Signal::SIGKILL);
                    }
                    match callback() {
                        Then::Continue => {}
                        Then::Kill => kill(pid, Signal::SIGKILL).unwrap(),
                        Then::Renumber(from, to) => ended.renumbered = Some((from, to)),
                    }
                }
                tracees.go_on(pid, None);
            }
            Event::Executed => {
                ended.executed = true;
                ended
                    .main_calls_before_command
                    .get_or_insert(ended.main_calls);
                let follows = matches!(fault, Fault::Follow | Fault::Kill(Role::Command, _));
                match tasks.get_mut(&pid) {
                    Some(task) if follows && task.role != Role::Command => {
                        task.role = Role::Command;
                        tracees.go_on(pid, None);
                    }
                    // The command runs untraced.
                    _ => {
                        tasks.remove(&pid);
                        tracees.detach(pid);
                    }
                }
            }
            Event::Created(new, kind) => {
                let creator = tasks.get(&pid).map(|task| task.role);
                let role = match kind {
                    _ if creator == Some(Role::Command) => Role::Command,
                    Kind::Thread => Role::Program,
                    Kind::Process => Role::Child,
                };
                tasks.insert(new, Task::new(role, role != Role::Command));
                tracees.go_on(pid, None);
            }
            Event::Filtered | Event::Stepped | Event::GoesOn => {}
        }
    }
    // The program executed the command, which may go on if the program was to be killed.
    if ended.code.is_none()
        && ended.signal.is_none()
        && !matches!(fault, Fault::Kill(..) | Fault::Orphan(_))
    {
        ended.code = child.wait().unwrap().code();
    }
    for (file, text) in [(&mut out, &mut ended.stdout), (&mut err, &mut ended.stderr)] {
        read_all(file, text);
    }
    ended
}

fn read_all(file: &mut File, text: &mut String) {
    use std::io::Seek;
    file.rewind().unwrap();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    *text = String::from_utf8_lossy(&bytes).into_owned();
}

/// What the kernel says of processes: the states, and the calls in which they are.
fn states<'a>(pids: impl Iterator<Item = &'a Pid>) -> String {
    let state = |pid: &Pid| {
        ["stat", "syscall"]
            .map(|file| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default())
            .concat()
    };
    pids.map(state).collect()
}

/// Whether a signal handler returns by this call.
fn is_return(pid: Pid) -> bool {
    const RT_SIGRETURN: u64 = 15;
    ptrace::getregs(pid).is_ok_and(|registers| registers.orig_rax == RT_SIGRETURN)
}

/// Handles a stop at a system call. Whether the callback is to be called.
fn at_call(pid: Pid, task: &mut Task, fault: Fault, ended: &mut Ended) -> bool {
    let Ok(mut registers) = ptrace::getregs(pid) else {
        return false;
    };
    if task.in_call {
        task.in_call = false;
        if let Some((from, to)) = ended.renumbered
            && let Some(address) = file_number_of(&registers)
            && number_at(pid, address) == from
        {
            write_memory(pid, address, &to.to_ne_bytes());
        }
        if let Some(errno) = task.error.take() {
            registers.rax = i64::from(-(errno as i32)).cast_unsigned();
            ptrace::setregs(pid, registers).unwrap();
        }
        return false;
    }
    task.in_call = true;
    if !task.counts {
        let changes_action = registers.orig_rax == RT_SIGACTION && registers.rsi != 0;
        task.counts = changes_action && registers.rdi == SIGPIPE;
        return false;
    }
    let calls = ended.calls.entry(task.role).or_default();
    calls.push(registers.orig_rax);
    let number = calls.len() - 1;
    match fault {
        Fault::Orphan(at) => return task.role == Role::Child && at == number,
        Fault::Watch => return task.role == Role::Program,
        Fault::Interleave(moments) => {
            return task.role == Role::Program && moments.contains(&number);
        }
        Fault::Before(role, at) => return role == task.role && at == number,
        Fault::Kill(role, at) if role == task.role && at == number => {
            kill(pid, Signal::SIGKILL).unwrap();
        }
        // How often a program polls varies, and with it what is made at this number.
        Fault::Fail(role, at, errno)
            if role == task.role
                && at == number
                && !NEVER_FAILING.contains(&registers.orig_rax) =>
        {
            task.error = Some(errno);
            // close(2) closes the descriptor even if it fails.
            if registers.orig_rax != CLOSE {
                // There is no call with this number.
                registers.orig_rax = u64::MAX;
                ptrace::setregs(pid, registers).unwrap();
            }
        }
        Fault::FailDirectories(errno) if registers.orig_rax == CLOSE => {
            let closed = format!("/proc/{pid}/fd/{}", registers.rdi);
            task.error = std::fs::metadata(closed)
                .is_ok_and(|it| it.is_dir())
                .then_some(errno);
        }
        _ => {}
    }
    false
}
