//! onehold beside the tools that one would use instead: whole processes, all commands in random
//! order in each round, ratios of medians. `cargo bench` measures the plain build;
//! `ONEHOLD_BINARY=path cargo bench` another one. `ONEHOLD_ROUNDS` (500) says how many rounds.
//! An absolute time says nothing: compare within one run.
#![allow(missing_docs)]
#![allow(
    clippy::cast_precision_loss,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used
)]

use std::fmt::Write as _;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What one run of one case cost.
#[derive(Clone, Copy, Default)]
struct Cost {
    wall: Duration,
    cpu: Duration,
    /// Peak memory, in KiB.
    memory: i64,
}

/// Commands that are measured as one.
struct Case {
    name: &'static str,
    /// What it is compared with, and how much of that it may cost; `None`: it is the measure.
    beside: Option<(&'static str, f64)>,
    commands: Vec<Vec<String>>,
    code: i32,
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// Starts by posix_spawn(3), which `Command` uses where it can, and waits by wait4(2).
fn run(command: &[String], store: &Path) -> (Cost, i32) {
    let mut prepared = Command::new(&command[0]);
    prepared
        .args(&command[1..])
        .env_clear()
        .env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .env("HOME", store)
        .env("ONEHOLD_DIR", store)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let started = Instant::now();
    #[allow(clippy::zombie_processes, reason = "wait4 waits for it")]
    let child = prepared.spawn().unwrap();
    let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: both places are ours, and the pid is that of our own child.
    let usage = unsafe {
        let pid = libc::wait4(
            child.id().cast_signed(),
            &raw mut status,
            0,
            usage.as_mut_ptr(),
        );
        assert!(pid > 0);
        usage.assume_init()
    };
    let wall = started.elapsed();
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.unsigned_abs())
            + Duration::from_micros(time.tv_usec.unsigned_abs())
    };
    let cost = Cost {
        wall,
        cpu: time(usage.ru_utime) + time(usage.ru_stime),
        memory: usage.ru_maxrss,
    };
    (cost, libc::WEXITSTATUS(status))
}

fn is_there(tool: &str) -> bool {
    let found = Command::new("which")
        .arg(tool)
        .stdout(Stdio::null())
        .status();
    found.is_ok_and(|status| status.success())
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

fn median<T: Copy + PartialOrd>(values: &mut [T], part: f64) -> T {
    values.sort_by(|one, other| one.partial_cmp(other).unwrap());
    let at = (values.len() - 1) as f64 * part;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    values[at as usize]
}

/// The system calls of a command, children left out, as strace counts them.
fn system_calls(command: &[String], store: &Path) -> Option<usize> {
    if !is_there("strace") {
        return None;
    }
    let out = store.join("strace");
    let mut traced = words("strace -c -U calls,name -o");
    traced.push(out.to_str().unwrap().to_owned());
    traced.extend_from_slice(command);
    run(&traced, store);
    let table = std::fs::read_to_string(out).ok()?;
    let total = table.lines().rfind(|line| line.ends_with("total"))?;
    total.split_whitespace().next()?.parse().ok()
}

fn main() {
    // cargo passes words of its own.
    let rounds = std::env::var("ONEHOLD_ROUNDS")
        .ok()
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(500);
    let onehold = std::env::var("ONEHOLD_BINARY")
        .map_or_else(
            |_| PathBuf::from(env!("CARGO_BIN_EXE_onehold")),
            PathBuf::from,
        )
        .canonicalize()
        .unwrap();
    let onehold = onehold.to_str().unwrap();
    let root = tempfile::tempdir().unwrap();
    let store = root.path().join("store");
    let mut held = Command::new(onehold)
        .process_group(0)
        .args(["run", "held", "--", "sleep", "1000"])
        .env("ONEHOLD_DIR", &store)
        // Nobody is to wait for the end of what it leaves behind.
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut flocked = Command::new("flock")
        .process_group(0)
        .arg(root.path().join("held-by-flock"))
        .args(["sleep", "1000"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let cases = cases(onehold, root.path());
    let mut costs = vec![Vec::with_capacity(rounds); cases.len()];
    let mut order: Vec<usize> = (0..cases.len()).collect();
    let mut dice = 0x9E37_79B9_7F4A_7C15_u64;
    for round in 0..rounds + 5 {
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
                let (cost, code) = run(command, &store);
                assert_eq!(code, case.code, "{command:?}");
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
    for holder in [&mut held, &mut flocked] {
        // With its command, which a KILL would leave behind.
        let group = format!("-{}", holder.id());
        let _ = Command::new("kill").args(["-TERM", "--", &group]).status();
        let _ = holder.wait();
    }
    report(&cases, &costs, &store, rounds, onehold);
}

fn report(cases: &[Case], costs: &[Vec<Cost>], store: &Path, rounds: usize, onehold: &str) {
    println!("{onehold}, {rounds} rounds, interleaved\n");
    println!("| case | median µs | p90 | × | at most | CPU µs | peak KiB | system calls |");
    println!("|---|---|---|---|---|---|---|---|");
    let walls = |which: usize| -> Vec<f64> {
        let micros = |cost: &Cost| cost.wall.as_secs_f64() * 1e6;
        costs[which].iter().map(micros).collect()
    };
    for (which, case) in cases.iter().enumerate() {
        let mut own = walls(which);
        let (half, most) = (median(&mut own, 0.5), median(&mut own, 0.9));
        let mut cpu: Vec<f64> = costs[which]
            .iter()
            .map(|cost| cost.cpu.as_secs_f64() * 1e6)
            .collect();
        let mut memory: Vec<i64> = costs[which].iter().map(|cost| cost.memory).collect();
        let calls: Option<usize> = case
            .commands
            .iter()
            .map(|command| system_calls(command, store))
            .sum();
        let mut ratio = String::from("| |");
        if let Some((beside, at_most)) = case.beside
            && let Some(other) = cases.iter().position(|other| other.name == beside)
        {
            ratio.clear();
            let times = half / median(&mut walls(other), 0.5);
            let _ = write!(ratio, "| {times:.2} | {at_most:.2}");
        }
        println!(
            "| {} | {half:.0} | {most:.0} {ratio} | {:.0} | {} | {} |",
            case.name,
            median(&mut cpu, 0.5),
            median(&mut memory, 0.5),
            calls.map_or_else(String::new, |calls| calls.to_string()),
        );
    }
}
