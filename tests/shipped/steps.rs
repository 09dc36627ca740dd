//! Runs a command to its end, one instruction at a time.

use std::ops::Range;
use std::process::Command;

use nix::sys::ptrace;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::harness::stay_on_one_processor;
use super::tracer::{Event, Tracees, Until, memory};

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
    let mut tracees = Tracees::new(Until::Step);
    #[allow(clippy::zombie_processes, reason = "waited for as a tracee")]
    let child = tracees.spawn(&mut command);
    let root = Pid::from_raw(child.id().cast_signed());
    let vdso = vdso_of(root);
    let mut next = (root, Event::Stepped);
    loop {
        let (pid, event) = next;
        match event {
            Event::Ended(end) if pid == root => return end.unwrap(),
            Event::Executed => {
                tracees.detach(pid);
                // From here on the process is its command.
                if pid == root {
                    assert_eq!(waitpid(root, None), Ok(WaitStatus::Exited(root, 0)));
                    return 0;
                }
            }
            Event::Ended(_) | Event::GoesOn => {}
            event => {
                if matches!(event, Event::Stepped) {
                    tell(pid, &vdso, pid != root, &mut each);
                }
                tracees.go_on(pid, None);
            }
        }
        next = tracees.next(true).unwrap().unwrap();
    }
}

fn tell(pid: Pid, vdso: &Range<u64>, is_in_child: bool, each: &mut impl FnMut(&Step)) {
    let address = ptrace::getregs(pid).unwrap().rip;
    if vdso.contains(&address) {
        return;
    }
    let mut bytes = [0; 2];
    let _ = memory(pid, address, &mut bytes);
    each(&Step {
        address,
        is_system_call: bytes == [0x0F, 0x05],
        is_cpuid: bytes == [0x0F, 0xA2],
        is_in_child,
    });
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
