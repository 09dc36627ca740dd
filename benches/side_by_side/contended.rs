//! What many that want the same lock cost: how long the lock lies idle between one and the next,
//! and how long many short critical sections take together.

use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::mem::MaybeUninit;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::{Bench, Group, cost, cpu, median, output, quantile, until, words};

const GAPS: usize = 150;
const WORKERS: usize = 8;
const EACH: usize = 200;

#[derive(Clone, Copy)]
enum Tool {
    Flock,
    Onehold,
}

const TOOLS: [(Tool, &str); 2] = [
    (Tool::Flock, "flock FILE"),
    (Tool::Onehold, "run -w forever x"),
];

impl Tool {
    /// The words before the command that is to run under the lock.
    fn before(self, bench: &Bench, root: &Path) -> String {
        match self {
            Self::Flock => format!("flock {}", root.join("file").display()),
            Self::Onehold => format!("{} run -w forever x --", bench.onehold),
        }
    }

    /// How many of them stand in line.
    fn waiting(self, bench: &Bench, root: &Path, waiters: &[Group]) -> usize {
        match self {
            Self::Flock => {
                let call = format!("{} ", libc::SYS_flock);
                let in_flock = |waiter: &&Group| {
                    std::fs::read_to_string(format!("/proc/{}/syscall", waiter.pid()))
                        .is_ok_and(|now| now.starts_with(&call))
                };
                waiters.iter().filter(in_flock).count()
            }
            Self::Onehold => {
                let told = output(&words(&format!("{} check --json x", bench.onehold)), root);
                let told: serde_json::Value = serde_json::from_slice(&told).unwrap();
                told["lock"]["waiters"].as_array().unwrap().len()
            }
        }
    }
}

/// The critical section: tells when it begins and when it ends, which is when its stdin does.
pub(crate) fn stamp(file: &Path) {
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(file)
        .unwrap();
    let mut tell = |what| {
        let line = format!("{what} {}\n", now());
        file.write_all(line.as_bytes()).unwrap();
    };
    tell("b");
    let _ = std::io::stdin().read(&mut [0]);
    tell("e");
}

/// Nanoseconds on a clock that all processes read.
fn now() -> i64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Begins and ends in turn, in nanoseconds.
fn stamps(file: &Path) -> Vec<i64> {
    let stamped = std::fs::read_to_string(file).unwrap();
    let both = stamped.lines().zip(["b ", "e "].into_iter().cycle());
    both.map(|(line, which)| line.strip_prefix(which).unwrap().parse().unwrap())
        .collect()
}

fn stamping(file: &Path) -> String {
    let own = std::env::current_exe().unwrap();
    format!("{} --stamp {}", own.display(), file.display())
}

/// How long STAMP takes until its first stamp, in µs.
fn alone(root: &Path) -> f64 {
    let file = root.join("alone");
    let command = words(&stamping(&file));
    let times: Vec<f64> = (0..100)
        .map(|_| {
            let started = now();
            cost(&command, root, 0);
            let began = stamps(&file)[0];
            std::fs::remove_file(&file).unwrap();
            (began - started) as f64 / 1e3
        })
        .collect();
    median(&times)
}

/// How many wait, and for how long before it moves.
#[derive(Clone, Copy)]
struct Line {
    waiters: usize,
    patience: Duration,
}

/// The gaps between a holder and those who stand in line behind him, in µs.
fn gaps(tool: Tool, line: Line, bench: &Bench, root: &Path) -> Vec<f64> {
    let file = root.join("stamps");
    let command = words(&format!("{} {}", tool.before(bench, root), stamping(&file)));
    let holder = Group::start(&command, root);
    until("the holder", || file.exists());
    let mut waiters = Vec::new();
    for _ in 0..line.waiters {
        let mut waiter = Group::start(&command, root);
        waiter.0.stdin.take();
        waiters.push(waiter);
    }
    until("the line", || {
        tool.waiting(bench, root, &waiters) == line.waiters
    });
    std::thread::sleep(line.patience);
    holder.end();
    waiters.into_iter().for_each(Group::end);
    let stamps = stamps(&file);
    assert_eq!(stamps.len(), 2 * (line.waiters + 1));
    std::fs::remove_file(file).unwrap();
    let gaps = stamps[1..].chunks_exact(2);
    gaps.map(|gap| (gap[1] - gap[0]) as f64 / 1e3).collect()
}

fn cpu_of_children() -> Duration {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the place is ours.
    let usage = unsafe {
        assert_eq!(
            libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()),
            0
        );
        usage.assume_init()
    };
    cpu(&usage)
}

/// Wall and CPU seconds of all workers together.
fn crowd(tool: Tool, bench: &Bench, root: &Path) -> (f64, f64) {
    let command = words(&format!("{} true", tool.before(bench, root)));
    let (started, used) = (Instant::now(), cpu_of_children().as_secs_f64());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                for _ in 0..EACH {
                    cost(&command, root, 0);
                }
            });
        }
    });
    let used = cpu_of_children().as_secs_f64() - used;
    (started.elapsed().as_secs_f64(), used)
}

pub(crate) fn measure(bench: &Bench) {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    println!("| hand-over | waiting | for | gaps | median µs | p90 | × | at most |");
    println!("|---|---|---|---|---|---|---|---|");
    for (waiters, seconds) in [(1, 0), (10, 0), (50, 0), (50, 1)] {
        let line = Line {
            waiters,
            patience: Duration::from_secs(seconds),
        };
        let mut measured = TOOLS.map(|_| Vec::new());
        while measured[0].len() < GAPS {
            for ((tool, _), measured) in TOOLS.iter().zip(&mut measured) {
                measured.extend(gaps(*tool, line, bench, root));
            }
        }
        for ((_, name), own) in TOOLS.iter().zip(&measured) {
            println!(
                "| {name} STAMP | {waiters} | {seconds} s | {} | {:.0} | {:.0} | {:.2} | |",
                own.len(),
                median(own),
                quantile(own, 0.9),
                median(own) / median(&measured[0]),
            );
        }
    }
    println!(
        "| STAMP alone, in all of these | | | 100 | {:.0} | | | |",
        alone(root)
    );

    println!("\n| {WORKERS} workers × {EACH} | median s | × | at most | CPU s | × |");
    println!("|---|---|---|---|---|---|");
    let mut measured = TOOLS.map(|_| (Vec::new(), Vec::new()));
    for _ in 0..3 {
        for ((tool, _), (walls, cpus)) in TOOLS.iter().zip(&mut measured) {
            let (wall, cpu) = crowd(*tool, bench, root);
            walls.push(wall);
            cpus.push(cpu);
        }
    }
    let (first_wall, first_cpu) = (median(&measured[0].0), median(&measured[0].1));
    for ((tool, name), (walls, cpus)) in TOOLS.iter().zip(&measured) {
        let (wall, cpu) = (median(walls), median(cpus));
        let at_most = match tool {
            Tool::Flock => "",
            Tool::Onehold => "1.00",
        };
        println!(
            "| {name} true | {wall:.2} | {:.2} | {at_most} | {cpu:.2} | {:.2} |",
            wall / first_wall,
            cpu / first_cpu,
        );
    }
}
