//! The cost of contention: how long a lock is idle between two holders, and how long many short
//! critical sections take together.

use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::harness::{is_blocked_in_flock, wait_until};
use super::{Bench, Group, Ratio, Row, cpu, median, output, quantile, time, words};

const GAPS: usize = 150;
const WORKERS: usize = 8;
const EACH: usize = 200;
/// As many runs of unrelated names at once, and how many each makes.
const UNRELATED: usize = 64;
const UNRELATED_EACH: usize = 15;
/// What the ratios must not exceed.
const HAND_OVER_AT_MOST: f64 = 0.95;
const CROWD_AT_MOST: f64 = 1.00;

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
    fn prefix(self, bench: &Bench, root: &Path) -> String {
        match self {
            Self::Flock => format!("flock {}", root.join("file").display()),
            Self::Onehold => format!("{} run -w forever x --", bench.onehold),
        }
    }

    /// What the ratio of a row must not exceed, as its table shows it.
    fn at_most(self, ratio: f64) -> String {
        match self {
            Self::Flock => String::new(),
            Self::Onehold => format!("{ratio:.2}"),
        }
    }

    /// Number of waiters in the queue.
    fn waiting(self, bench: &Bench, root: &Path, waiters: &[Group]) -> usize {
        match self {
            Self::Flock => {
                let in_flock = waiters
                    .iter()
                    .filter(|waiter| is_blocked_in_flock(waiter.pid()));
                in_flock.count()
            }
            Self::Onehold => {
                let stdout = output(&words(&format!("{} check --json x", bench.onehold)), root);
                let object: serde_json::Value = serde_json::from_slice(&stdout).unwrap();
                object["lock"]["waiters"].as_array().unwrap().len()
            }
        }
    }
}

/// Nanoseconds on a clock that all processes read alike.
fn now() -> i64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Beginnings and ends in turn, in nanoseconds.
fn stamps(file: &Path) -> Vec<i64> {
    let stamped = std::fs::read_to_string(file).unwrap();
    let both = stamped.lines().zip(["b ", "e "].into_iter().cycle());
    both.map(|(line, event)| line.strip_prefix(event).unwrap().parse().unwrap())
        .collect()
}

/// The time from the start of STAMP to its first stamp, in µs.
fn stamp_alone(bench: &Bench, root: &Path) -> f64 {
    let file = root.join("alone");
    let command = words(&format!("{} {}", bench.stamp, file.display()));
    let times: Vec<f64> = (0..100)
        .map(|_| {
            let started = now();
            time(&command, root, 0);
            let began = stamps(&file)[0];
            std::fs::remove_file(&file).unwrap();
            (began - started) as f64 / 1e3
        })
        .collect();
    median(&times)
}

/// Number of waiters, and how long they wait before the first release.
#[derive(Clone, Copy)]
struct Queue {
    waiters: usize,
    delay: Duration,
}

/// The gaps between one holder and the next in a queue, in µs.
fn gaps(tool: Tool, queue: Queue, bench: &Bench, root: &Path) -> Vec<f64> {
    let file = root.join("stamps");
    let stamp = format!("{} {}", bench.stamp, file.display());
    let command = words(&format!("{} {stamp}", tool.prefix(bench, root)));
    let holder = Group::start(&command, root);
    wait_until("the holder has begun", || file.exists());
    let mut waiters = Vec::new();
    for _ in 0..queue.waiters {
        let mut waiter = Group::start(&command, root);
        waiter.0.stdin.take();
        waiters.push(waiter);
    }
    wait_until("all waiters are in the queue", || {
        tool.waiting(bench, root, &waiters) == queue.waiters
    });
    std::thread::sleep(queue.delay);
    holder.end();
    waiters.into_iter().for_each(Group::end);
    let stamps = stamps(&file);
    assert_eq!(stamps.len(), 2 * (queue.waiters + 1));
    std::fs::remove_file(file).unwrap();
    let gaps = stamps[1..].chunks_exact(2);
    gaps.map(|gap| (gap[1] - gap[0]) as f64 / 1e3).collect()
}

fn cpu_of_children() -> Duration {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to memory of ours.
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
    let command = words(&format!("{} true", tool.prefix(bench, root)));
    let (started, used) = (Instant::now(), cpu_of_children().as_secs_f64());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                for _ in 0..EACH {
                    time(&command, root, 0);
                }
            });
        }
    });
    let used = cpu_of_children().as_secs_f64() - used;
    (started.elapsed().as_secs_f64(), used)
}

/// How many locks of unrelated names are taken and released in a second, in these stores in turn.
fn takes_a_second(bench: &Bench, stores: &[PathBuf]) -> f64 {
    let started = Instant::now();
    std::thread::scope(|scope| {
        for (at, store) in stores.iter().cycle().take(UNRELATED).enumerate() {
            let command = words(&format!("{} run n{at} -- true", bench.onehold));
            scope.spawn(move || {
                for _ in 0..UNRELATED_EACH {
                    time(&command, store, 0);
                }
            });
        }
    });
    #[allow(clippy::cast_precision_loss)]
    let takes = (UNRELATED * UNRELATED_EACH) as f64;
    takes / started.elapsed().as_secs_f64()
}

/// Whether the guard, which is one for a store, holds up who wants unrelated locks: a store for each name has a guard
/// for each, and nothing finer could be faster.
fn unrelated(bench: &Bench, root: &Path) {
    let stores: Vec<PathBuf> = (0..UNRELATED)
        .map(|at| root.join(format!("store{at}")))
        .collect();
    for store in &stores {
        std::fs::create_dir(store).unwrap();
    }
    let (mut one, mut many) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        one.push(takes_a_second(bench, &stores[..1]));
        many.push(takes_a_second(bench, &stores));
    }
    println!(
        "\n{UNRELATED} at once, of unrelated names: {:.0} takes a second in one store, {:.0} in {UNRELATED} stores",
        median(&one),
        median(&many),
    );
}

pub(crate) fn measure(bench: &Bench) -> Vec<Row> {
    let mut rows = Vec::new();
    // How long ext4 takes for a new file depends on where it has put the directory, by up to a millisecond.
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    let root = root.path();
    println!("| hand-over | waiting | for | gaps | median µs | p90 | × | at most |");
    println!("|---|---|---|---|---|---|---|---|");
    for (waiters, seconds) in [(1, 0), (10, 0), (50, 0), (50, 1)] {
        let queue = Queue {
            waiters,
            delay: Duration::from_secs(seconds),
        };
        let mut measured = TOOLS.map(|_| Vec::new());
        while measured[0].len() < GAPS {
            for ((tool, _), measured) in TOOLS.iter().zip(&mut measured) {
                measured.extend(gaps(*tool, queue, bench, root));
            }
        }
        if seconds == 0 {
            let what = format!("hand-over, {waiters} waiting");
            let ratio = Ratio::of(&measured[1], &measured[0]);
            rows.push(Row::new(&what, "flock FILE", vec![ratio]).at_most(HAND_OVER_AT_MOST));
        }
        for ((tool, name), own) in TOOLS.iter().zip(&measured) {
            println!(
                "| {name} STAMP | {waiters} | {seconds} s | {} | {:.0} | {:.0} | {:.2} | {} |",
                own.len(),
                median(own),
                quantile(own, 0.9),
                median(own) / median(&measured[0]),
                tool.at_most(HAND_OVER_AT_MOST),
            );
        }
    }
    println!(
        "| STAMP alone, in all of these | | | 100 | {:.0} | | | |",
        stamp_alone(bench, root)
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
        println!(
            "| {name} true | {wall:.2} | {:.2} | {} | {cpu:.2} | {:.2} |",
            wall / first_wall,
            tool.at_most(CROWD_AT_MOST),
            cpu / first_cpu,
        );
    }
    unrelated(bench, root);
    let ratio = Ratio::of(&measured[1].0, &measured[0].0);
    let what = format!("{WORKERS} at once, {EACH} runs each");
    rows.push(Row::new(&what, "flock FILE true", vec![ratio]).at_most(CROWD_AT_MOST));
    rows
}
