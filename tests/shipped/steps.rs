//! Runs a command to its end, one instruction at a time.

use std::ops::Range;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use super::harness::stay_on_one_processor;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

/// One instruction that is about to be executed.
pub(crate) struct Step {
    pub(crate) address: u64,
    pub(crate) is_system_call: bool,
    /// In a virtual machine one takes longer than a thousand others.
    pub(crate) is_cpuid: bool,
    /// By the child that executes the command, and borrows the memory of the wrapper until it does.
    pub(crate) is_in_child: bool,
}

/// Steps through a command until it exits or executes another; its exit code, and 0 for one that
/// was executed and succeeded. What the kernel's vDSO executes is left out: it reads the clock again if the
/// kernel updates it meanwhile, which is likely in the time that this takes.
pub(crate) fn step_through(mut command: Command, mut each: impl FnMut(&Step)) -> i32 {
    stay_on_one_processor();
    // SAFETY: one system call.
    unsafe { command.pre_exec(|| ptrace::traceme().map_err(Into::into)) };
    #[allow(clippy::zombie_processes, reason = "waited for as a tracee")]
    let child = command.spawn().unwrap();
    let pid = Pid::from_raw(child.id().cast_signed());
    waitpid(pid, None).unwrap();
    let options =
        Options::PTRACE_O_EXITKILL | Options::PTRACE_O_TRACEEXEC | Options::PTRACE_O_TRACEVFORK;
    ptrace::setoptions(pid, options).unwrap();
    let vdso = vdso_of(pid);
    let mut signal = None;
    loop {
        step(pid, &vdso, false, signal, &mut each);
        signal = None;
        match waitpid(pid, None).unwrap() {
            WaitStatus::Exited(_, code) => return code,
            WaitStatus::PtraceEvent(_, _, event)
                if event == ptrace::Event::PTRACE_EVENT_VFORK as i32 =>
            {
                let child = Pid::from_raw(i32::try_from(ptrace::getevent(pid).unwrap()).unwrap());
                // It sleeps until the child has executed.
                ptrace::step(pid, None).unwrap();
                step_to_execution(child, &vdso, &mut each);
                waitpid(pid, None).unwrap();
            }
            // From here on the process is its command.
            WaitStatus::PtraceEvent(..) => {
                ptrace::detach(pid, None).unwrap();
                let ended = waitpid(pid, None).unwrap();
                assert_eq!(ended, WaitStatus::Exited(pid, 0));
                return 0;
            }
            WaitStatus::Stopped(_, Signal::SIGTRAP) => {}
            WaitStatus::Stopped(_, other) => signal = Some(other),
            other => panic!("{other:?}"),
        }
    }
}

/// Steps through a child until it executes its command.
fn step_to_execution(child: Pid, vdso: &Range<u64>, each: &mut impl FnMut(&Step)) {
    waitpid(child, None).unwrap();
    loop {
        step(child, vdso, true, None, each);
        match waitpid(child, None).unwrap() {
            WaitStatus::PtraceEvent(..) => return ptrace::detach(child, None).unwrap(),
            WaitStatus::Stopped(..) => {}
            other => panic!("{other:?}"),
        }
    }
}

fn step(
    pid: Pid,
    vdso: &Range<u64>,
    is_in_child: bool,
    signal: Option<Signal>,
    each: &mut impl FnMut(&Step),
) {
    let address = ptrace::getregs(pid).unwrap().rip;
    if !vdso.contains(&address) {
        let word = ptrace::read(pid, address as ptrace::AddressType).unwrap_or(0);
        let bytes = &word.to_le_bytes()[..2];
        each(&Step {
            address,
            is_system_call: bytes == [0x0F, 0x05],
            is_cpuid: bytes == [0x0F, 0xA2],
            is_in_child,
        });
    }
    ptrace::step(pid, signal).unwrap();
}

/// The addresses of the kernel's code in a process (vdso(7)).
fn vdso_of(pid: Pid) -> Range<u64> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let line = maps.lines().find(|line| line.ends_with("[vdso]")).unwrap();
    let (start, rest) = line.split_once('-').unwrap();
    let (end, _) = rest.split_once(' ').unwrap();
    let address = |digits| u64::from_str_radix(digits, 16).unwrap();
    address(start)..address(end)
}
