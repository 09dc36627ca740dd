//! What one run costs alone: whole processes, all commands in random order in each round.

use std::fmt::Write as _;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::Duration;

use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::{
    Bench, Cost, Group, cost, is_there, median, micros, prepared, quantile, system_calls, words,
};

/// Commands that are measured as one.
struct Case {
    name: &'static str,
    /// What it is compared with, and how much of that it may cost; `None`: it is the measure.
    beside: Option<(&'static str, f64)>,
    commands: Vec<Vec<String>>,
    code: i32,
}

fn cases(onehold: &str, root: &Path) -> Vec<Case> {
    let file = |name: &str| root.join(name).to_str().unwrap().to_owned();
    let held = file("held-by-flock");
    let mut cases = vec![
        Case {
            name: "flock FILE true",
            beside: None,
            commands: vec![words(&format!("flock {} true", file("a")))],
            code: 0,
        },
        Case {
            name: "run x -- true",
            beside: Some(("flock FILE true", 1.0)),
            commands: vec![words(&format!("{onehold} run x -- true"))],
            code: 0,
        },
        Case {
            name: "flock -F FILE true",
            beside: None,
            commands: vec![words(&format!("flock -F {} true", file("b")))],
            code: 0,
        },
        Case {
            name: "run --exec y -- true",
            beside: Some(("flock -F FILE true", 1.0)),
            commands: vec![words(&format!("{onehold} run --exec y -- true"))],
            code: 0,
        },
        Case {
            name: "flock -n FILE true, refused",
            beside: None,
            commands: vec![words(&format!("flock -n {held} true"))],
            code: 1,
        },
        Case {
            name: "run held -- true, refused",
            beside: Some(("flock -n FILE true, refused", 0.8)),
            commands: vec![words(&format!("{onehold} run held -- true"))],
            code: 6,
        },
        Case {
            name: "acquire z + release z",
            beside: Some(("dotlockfile -l + -u", 0.8)),
            commands: vec![
                words(&format!("{onehold} acquire z --pid {}", std::process::id())),
                words(&format!("{onehold} release z")),
            ],
            code: 0,
        },
        Case {
            name: "check free",
            beside: Some(("flock FILE true", 0.6)),
            commands: vec![words(&format!("{onehold} check -q free"))],
            code: 0,
        },
        Case {
            name: "check held",
            beside: Some(("flock FILE true", 0.6)),
            commands: vec![words(&format!("{onehold} check -q held"))],
            code: 6,
        },
        Case {
            name: "true",
            beside: None,
            commands: vec![words("true")],
            code: 0,
        },
    ];
    if is_there("dotlockfile") {
        cases.push(Case {
            name: "dotlockfile -l + -u",
            beside: None,
            commands: vec![
                words(&format!("dotlockfile -l -p {}", file("dot"))),
                words(&format!("dotlockfile -u {}", file("dot"))),
            ],
            code: 0,
        });
    }
    cases
}

/// Steps go thrice as fast where the one who counts them has the CPU of the one who takes them.
fn stay_on_this_cpu() {
    // SAFETY: the set is ours, and one of no CPUs is all zeros.
    unsafe {
        let mut here: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(usize::try_from(libc::sched_getcpu()).unwrap(), &mut here);
        libc::sched_setaffinity(0, size_of_val(&here), &raw const here);
    }
}

/// The instructions that a command itself takes outside the kernel, from its start to its end or
/// until it becomes another program. Its threads and children run untraced. What a `rep` prefix
/// repeats counts once.
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
                let place = ptrace::getregs(pid).unwrap().rip;
                count += u64::from(place != last);
                last = place;
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
    std::thread::sleep(Duration::from_millis(200));
    let cases = cases(onehold, root.path());
    let mut costs = vec![Vec::with_capacity(bench.rounds); cases.len()];
    let mut order: Vec<usize> = (0..cases.len()).collect();
    let mut dice = 0x9E37_79B9_7F4A_7C15_u64;
    for round in 0..bench.rounds + 5 {
        for at in (1..order.len()).rev() {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            order.swap(at, usize::try_from(dice % (at as u64 + 1)).unwrap());
        }
        for which in &order {
            let case = &cases[*which];
            let mut sum = Cost::default();
            for command in &case.commands {
                let cost = cost(command, &store, case.code);
                sum.wall += cost.wall;
                sum.cpu += cost.cpu;
                sum.memory = sum.memory.max(cost.memory);
            }
            // The first rounds warm up.
            if round >= 5 {
                costs[*which].push(sum);
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
    let each = |which: usize, part: fn(&Cost) -> f64| -> Vec<f64> {
        costs[which].iter().map(part).collect()
    };
    let wall = |cost: &Cost| micros(cost.wall);
    for (which, case) in cases.iter().enumerate() {
        let own = each(which, wall);
        // The fewest: a command that is over at once is sometimes found so, sometimes waited for.
        let calls = (0..5).map(|_| -> Option<usize> {
            let commands = case.commands.iter();
            commands
                .map(|command| system_calls(command, store, false))
                .sum()
        });
        let calls = calls.min().flatten();
        // In a thread of its own, which stays where it is put.
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
        if let Some((beside, at_most)) = case.beside
            && let Some(other) = cases.iter().position(|other| other.name == beside)
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
            median(&each(which, |cost| micros(cost.cpu))),
            median(&each(which, |cost| cost.memory as f64)),
            calls.map_or_else(String::new, |calls| calls.to_string()),
            instructions.map_or_else(String::new, |count| count.to_string()),
        );
    }
}
