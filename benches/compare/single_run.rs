//! The cost of one run without contention: whole processes, in each round all commands in a random
//! order.

use std::fmt::Write as _;
use std::os::unix::process::CommandExt;
use std::path::Path;

use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::{
    Bench, Cost, Group, cost,
    harness::{Rng, wait_until},
    is_installed, median, micros, prepared, quantile, run, system_calls, words,
};

/// Commands that are measured together.
struct Case {
    name: &'static str,
    /// The case it is compared with, and the limit of the ratio; `None`: it is such a case itself.
    compared_with: Option<(&'static str, f64)>,
    commands: Vec<Vec<String>>,
    code: i32,
}

fn cases(onehold: &str, root: &Path) -> Vec<Case> {
    let file = |name: &str| root.join(name).to_str().unwrap().to_owned();
    let held = file("held-by-flock");
    let mut cases = vec![
        Case {
            name: "flock FILE true",
            compared_with: None,
            commands: vec![words(&format!("flock {} true", file("a")))],
            code: 0,
        },
        Case {
            name: "run x -- true",
            compared_with: Some(("flock FILE true", 1.0)),
            commands: vec![words(&format!("{onehold} run x -- true"))],
            code: 0,
        },
        Case {
            name: "flock -F FILE true",
            compared_with: None,
            commands: vec![words(&format!("flock -F {} true", file("b")))],
            code: 0,
        },
        Case {
            name: "run --exec y -- true",
            compared_with: Some(("flock -F FILE true", 1.0)),
            commands: vec![words(&format!("{onehold} run --exec y -- true"))],
            code: 0,
        },
        Case {
            name: "flock -n FILE true, refused",
            compared_with: None,
            commands: vec![words(&format!("flock -n {held} true"))],
            code: 1,
        },
        Case {
            name: "run held -- true, refused",
            compared_with: Some(("flock -n FILE true, refused", 0.8)),
            commands: vec![words(&format!("{onehold} run held -- true"))],
            code: 6,
        },
        Case {
            name: "acquire z + release z",
            compared_with: Some(("dotlockfile -l + -u", 0.8)),
            commands: vec![
                words(&format!("{onehold} acquire z --pid {}", std::process::id())),
                words(&format!("{onehold} release z")),
            ],
            code: 0,
        },
        Case {
            name: "check free",
            compared_with: Some(("flock FILE true", 0.6)),
            commands: vec![words(&format!("{onehold} check -q free"))],
            code: 0,
        },
        Case {
            name: "check held",
            compared_with: Some(("flock FILE true", 0.6)),
            commands: vec![words(&format!("{onehold} check -q held"))],
            code: 6,
        },
        Case {
            name: "true",
            compared_with: None,
            commands: vec![words("true")],
            code: 0,
        },
    ];
    if is_installed("dotlockfile") {
        cases.push(Case {
            name: "dotlockfile -l + -u",
            compared_with: None,
            commands: vec![
                words(&format!("dotlockfile -l -p {}", file("dot"))),
                words(&format!("dotlockfile -u {}", file("dot"))),
            ],
            code: 0,
        });
    }
    cases
}

/// Single-stepping is three times as fast if both processes run on the same CPU.
fn stay_on_this_cpu() {
    // SAFETY: the set is ours, and all zeros are a valid, empty one.
    unsafe {
        let mut here: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(usize::try_from(libc::sched_getcpu()).unwrap(), &mut here);
        libc::sched_setaffinity(0, size_of_val(&here), &raw const here);
    }
}

/// Number of instructions that a command executes in user mode, from its start to its end or until
/// it executes another program. Its threads and children are not counted, and an instruction with a
/// `rep` prefix counts once.
#[cfg(target_arch = "x86_64")]
fn instructions(command: &[String], store: &Path, code: i32) -> Option<u64> {
    let mut command = prepared(command, store);
    // SAFETY: ptrace(2) is async-signal-safe.
    unsafe { command.pre_exec(|| ptrace::traceme().map_err(Into::into)) };
    #[allow(clippy::zombie_processes, reason = "waitpid waits for it")]
    let child = command.spawn().ok()?;
    let pid = Pid::from_raw(child.id().cast_signed());
    let mut stopped = waitpid(pid, None).unwrap();
    assert_eq!(stopped, WaitStatus::Stopped(pid, Signal::SIGTRAP));
    ptrace::setoptions(
        pid,
        Options::PTRACE_O_TRACEEXEC | Options::PTRACE_O_EXITKILL,
    )
    .unwrap();
    let (mut count, mut last) = (0, 0);
    loop {
        let signal = match stopped {
            WaitStatus::Stopped(_, Signal::SIGTRAP) => {
                let address = ptrace::getregs(pid).unwrap().rip;
                count += u64::from(address != last);
                last = address;
                None
            }
            WaitStatus::Stopped(_, signal) => Some(signal),
            WaitStatus::PtraceEvent(..) => {
                ptrace::detach(pid, None).unwrap();
                stopped = waitpid(pid, None).unwrap();
                continue;
            }
            ended => {
                assert_eq!(ended, WaitStatus::Exited(pid, code));
                // The first stop was before the first instruction.
                return Some(count - 1);
            }
        };
        ptrace::step(pid, signal).unwrap();
        stopped = waitpid(pid, None).unwrap();
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn instructions(_: &[String], _: &Path, _: i32) -> Option<u64> {
    None
}

pub(crate) fn measure(bench: &Bench) {
    let root = tempfile::tempdir().unwrap();
    let store = root.path().join("store");
    let onehold = &bench.onehold;
    let _held = Group::start(&words(&format!("{onehold} run held -- cat")), &store);
    let flocked = root.path().join("held-by-flock");
    let _flocked = Group::start(&words(&format!("flock {} cat", flocked.display())), &store);
    wait_until("both locks are held", || {
        let tried = run(
            &words(&format!("flock -n {} true", flocked.display())),
            &store,
        )
        .1;
        let checked = run(&words(&format!("{onehold} check -q held")), &store).1;
        (tried, checked) == (1, 6)
    });
    let cases = cases(onehold, root.path());
    let mut costs = vec![Vec::with_capacity(bench.rounds); cases.len()];
    let mut order: Vec<usize> = (0..cases.len()).collect();
    let mut rng = Rng(0x9E37_79B9_7F4A_7C15);
    for round in 0..bench.rounds + 5 {
        for at in (1..order.len()).rev() {
            order.swap(at, rng.below(at + 1));
        }
        for index in &order {
            let case = &cases[*index];
            let mut sum = Cost::default();
            for command in &case.commands {
                let cost = cost(command, &store, case.code);
                sum.wall += cost.wall;
                sum.cpu += cost.cpu;
                sum.memory = sum.memory.max(cost.memory);
            }
            // The first rounds warm up.
            if round >= 5 {
                costs[*index].push(sum);
            }
        }
    }
    report(&cases, &costs, &store);
}

fn report(cases: &[Case], costs: &[Vec<Cost>], store: &Path) {
    println!(
        "| case | median µs | p90 | × | at most | CPU µs | peak KiB | system calls | instructions |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let each = |index: usize, part: fn(&Cost) -> f64| -> Vec<f64> {
        costs[index].iter().map(part).collect()
    };
    let wall = |cost: &Cost| micros(cost.wall);
    for (index, case) in cases.iter().enumerate() {
        let own = each(index, wall);
        // The minimum: a short command has sometimes ended before it is waited for, sometimes not.
        let calls = (0..5).map(|_| -> Option<usize> {
            let commands = case.commands.iter();
            commands
                .map(|command| system_calls(command, store, false))
                .sum()
        });
        let calls = calls.min().flatten();
        // In a thread of its own, because it is bound to one CPU.
        let instructions: Option<u64> = std::thread::scope(|scope| {
            let counting = scope.spawn(|| {
                stay_on_this_cpu();
                let commands = case.commands.iter();
                commands
                    .map(|command| instructions(command, store, case.code))
                    .sum()
            });
            counting.join().unwrap()
        });
        let mut ratio = String::from("| |");
        if let Some((name, at_most)) = case.compared_with
            && let Some(other) = cases.iter().position(|other| other.name == name)
        {
            ratio.clear();
            let times = median(&own) / median(&each(other, wall));
            let _ = write!(ratio, "| {times:.2} | {at_most:.2}");
        }
        println!(
            "| {} | {:.0} | {:.0} {ratio} | {:.0} | {:.0} | {} | {} |",
            case.name,
            median(&own),
            quantile(&own, 0.9),
            median(&each(index, |cost| micros(cost.cpu))),
            median(&each(index, |cost| cost.memory as f64)),
            calls.map_or_else(String::new, |calls| calls.to_string()),
            instructions.map_or_else(String::new, |count| count.to_string()),
        );
    }
}
