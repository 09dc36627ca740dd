//! Runs a program under ptrace(2) and lets something happen to it just before one of its system
//! calls.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Whose calls are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The program, from its `main` on.
    Program,
    /// What it forks, until that has become its command.
    Child,
    /// The command, by itself: not what that forks.
    Command,
}

/// What happens before the call of that number.
#[derive(Clone, Copy, Debug)]
pub enum Deed {
    Nothing,
    /// Nothing happens, and the command's calls are counted too.
    Follow,
    Kill(Role, usize),
    /// The program is killed before that call of its child, and something happens before the child
    /// goes on.
    Orphan(usize),
    /// Something happens before each of these calls of the program.
    Beside([usize; 3]),
    /// The call is not made, and fails so.
    Fail(Role, usize, Errno),
}

/// How it ended.
#[derive(Debug, Default)]
pub struct Ended {
    pub code: Option<i32>,
    pub signal: Option<Signal>,
    /// Whether a command was executed.
    pub executed: bool,
    /// The numbers of the calls that were counted.
    pub calls: HashMap<Role, Vec<u64>>,
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
    /// Between the entry of a call and its return.
    inside: bool,
    fails: Option<Errno>,
}

const NEW: Task = Task {
    role: Role::Child,
    counts: true,
    inside: false,
    fails: None,
};

/// The first thing that `main` does is to ask for this signal.
const SIGALRM: u64 = 14;
const RT_SIGACTION: u64 = 13;
const CLOSE: u64 = 3;

/// Longer than any wait of the program's own.
const PATIENCE: Duration = Duration::from_secs(30);

/// How it goes on after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    GoesOn,
    IsKilled,
}

/// Runs it to its end. What it leaves running is let go.
pub fn trace(command: Command, deed: Deed) -> Ended {
    trace_and(command, deed, || Then::GoesOn)
}

/// The same; `meanwhile`: what happens while it stands before the call.
pub fn trace_and(mut command: Command, deed: Deed, mut meanwhile: impl FnMut() -> Then) -> Ended {
    let (mut out, mut err) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    command
        .stdin(Stdio::null())
        .stdout(out.try_clone().unwrap())
        .stderr(err.try_clone().unwrap());
    // SAFETY: one system call.
    unsafe { command.pre_exec(|| ptrace::traceme().map_err(Into::into)) };
    #[allow(clippy::zombie_processes, reason = "waited for with the tracees")]
    let mut child = command.spawn().unwrap();
    let root = Pid::from_raw(child.id().cast_signed());
    let mut ended = Ended::default();
    let mut tasks = HashMap::from([(
        root,
        Task {
            role: Role::Program,
            counts: false,
            inside: false,
            fails: None,
        },
    )]);
    let started = Instant::now();
    waitpid(root, None).unwrap();
    let options = Options::PTRACE_O_TRACESYSGOOD
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEEXEC
        | Options::PTRACE_O_EXITKILL;
    ptrace::setoptions(root, options).unwrap();
    go_on(root, None);
    while !tasks.is_empty() {
        assert!(
            started.elapsed() < PATIENCE,
            "it hangs: {command:?}, {deed:?}"
        );
        let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD | WaitPidFlag::WNOHANG;
        let status = match waitpid(None, Some(flags)) {
            Ok(WaitStatus::StillAlive) => {
                std::thread::sleep(Duration::from_micros(20));
                continue;
            }
            Ok(status) => status,
            Err(Errno::ECHILD) => break,
            Err(error) => panic!("{error}"),
        };
        match status {
            WaitStatus::Exited(pid, code) => {
                tasks.remove(&pid);
                if pid == root {
                    ended.code = Some(code);
                }
            }
            WaitStatus::Signaled(pid, signal, _) => {
                tasks.remove(&pid);
                if pid == root {
                    ended.signal = Some(signal);
                }
            }
            WaitStatus::PtraceSyscall(pid) => {
                if let Some(task) = tasks.get_mut(&pid)
                    && at_call(pid, task, deed, &mut ended)
                {
                    if matches!(deed, Deed::Orphan(_)) {
                        kill(root, Signal::SIGKILL).unwrap();
                        let killed = waitpid(root, Some(WaitPidFlag::__WALL)).unwrap();
                        assert!(matches!(killed, WaitStatus::Signaled(..)), "{killed:?}");
                        tasks.remove(&root);
                        ended.signal = Some(Signal::SIGKILL);
                    }
                    if meanwhile() == Then::IsKilled {
                        kill(pid, Signal::SIGKILL).unwrap();
                    }
                }
                go_on(pid, None);
            }
            WaitStatus::PtraceEvent(pid, _, event) => {
                let event = event.cast_unsigned();
                if event == libc_event::EXEC {
                    ended.executed = true;
                    let role = tasks.get(&pid).map(|task| task.role);
                    let follows = matches!(deed, Deed::Follow | Deed::Kill(Role::Command, _));
                    match tasks.get_mut(&pid) {
                        Some(task) if follows && role != Some(Role::Command) => {
                            task.role = Role::Command;
                        }
                        // Now it is its own master.
                        _ => {
                            tasks.remove(&pid);
                            let _ = ptrace::detach(pid, None);
                            continue;
                        }
                    }
                }
                if matches!(
                    event,
                    libc_event::FORK | libc_event::VFORK | libc_event::CLONE
                ) && let Ok(new) = ptrace::getevent(pid)
                {
                    let of_command = tasks
                        .get(&pid)
                        .is_some_and(|task| task.role == Role::Command);
                    let role = match event {
                        _ if of_command => Role::Command,
                        libc_event::CLONE => Role::Program,
                        _ => Role::Child,
                    };
                    let new = tasks
                        .entry(Pid::from_raw(i32::try_from(new).unwrap()))
                        .or_insert(NEW);
                    new.role = role;
                    new.counts = !of_command;
                }
                go_on(pid, None);
            }
            WaitStatus::Stopped(pid, Signal::SIGSTOP) => {
                // How a new one begins.
                tasks.entry(pid).or_insert(NEW);
                go_on(pid, None);
            }
            WaitStatus::Stopped(pid, Signal::SIGTRAP) => go_on(pid, None),
            WaitStatus::Stopped(pid, signal) => go_on(pid, Some(signal)),
            _ => {}
        }
    }
    // It became its command, which goes on if the program was to be killed.
    if ended.code.is_none()
        && ended.signal.is_none()
        && !matches!(deed, Deed::Kill(..) | Deed::Orphan(_))
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

fn go_on(pid: Pid, signal: Option<Signal>) {
    // It may be gone by now.
    let _ = ptrace::syscall(pid, signal);
}

/// Whether something is to happen while this task stands before its call.
fn at_call(pid: Pid, task: &mut Task, deed: Deed, ended: &mut Ended) -> bool {
    let Ok(mut registers) = ptrace::getregs(pid) else {
        return false;
    };
    if task.inside {
        task.inside = false;
        if let Some(errno) = task.fails.take() {
            registers.rax = i64::from(-(errno as i32)).cast_unsigned();
            ptrace::setregs(pid, registers).unwrap();
        }
        return false;
    }
    task.inside = true;
    if registers.orig_rax == RT_SIGACTION && registers.rdi == SIGALRM {
        task.counts = true;
    }
    if !task.counts {
        return false;
    }
    let calls = ended.calls.entry(task.role).or_default();
    calls.push(registers.orig_rax);
    let number = calls.len() - 1;
    match deed {
        Deed::Orphan(at) => return task.role == Role::Child && at == number,
        Deed::Beside(moments) => {
            return task.role == Role::Program && moments.contains(&number);
        }
        Deed::Kill(role, at) if role == task.role && at == number => {
            kill(pid, Signal::SIGKILL).unwrap();
        }
        Deed::Fail(role, at, errno) if role == task.role && at == number => {
            task.fails = Some(errno);
            // close(2) closes, whatever it returns.
            if registers.orig_rax != CLOSE {
                // No call has this number.
                registers.orig_rax = u64::MAX;
                ptrace::setregs(pid, registers).unwrap();
            }
        }
        _ => {}
    }
    false
}

/// ptrace(2): the events that `wait` reports.
mod libc_event {
    pub const FORK: u32 = 1;
    pub const VFORK: u32 = 2;
    pub const CLONE: u32 = 3;
    pub const EXEC: u32 = 4;
}
