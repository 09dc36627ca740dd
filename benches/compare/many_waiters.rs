//! What a waiter costs beside many others, which should not depend on their number: the processor time until
//! it rests, its memory, how many of them a release wakes, beside the next holder, and the system calls of others.

use std::path::Path;
use std::time::{Duration, Instant};

use super::harness::wait_until;
use super::{Bench, Group, Row, assert_no_growth, median, system_calls, words};

const SIZES: [usize; 4] = [1, 10, 100, 1_000];
/// The last waiters are measured.
const MEASURED: usize = 10;
/// A difference of so many wake-ups is not growth, of 990 more waiters.
const SLACK: u64 = 10;
/// A difference of so many system calls is not growth: who waits lists the tickets three times, a thousand of them in
/// seven calls instead of two.
const CALLS: usize = 20;
/// What is called beside the waiters.
const BESIDE: [&str; 4] = [
    "run other -- sleep 0.1",
    "check -q x",
    "run -q x -- true",
    "run -q -w 0.2 x -- true",
];
/// In which all that a release wakes has gone to sleep again.
const WINDOW: Duration = Duration::from_millis(400);

/// Time on a processor, in µs (/proc/PID/schedstat, in nanoseconds).
fn processor_time(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
    let nanoseconds = text.split_whitespace().next().unwrap();
    nanoseconds.parse::<f64>().unwrap() / 1e3
}

/// A number from a file of /proc/PID; 0 once the process has ended.
fn field(pid: u32, file: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.map_or(0, |number| number.parse().unwrap())
}

/// How often a process has gone to sleep, and how often it has read from a file.
#[derive(Clone, Copy)]
struct Activity {
    sleeps: u64,
    reads: u64,
}

impl Activity {
    fn of(pid: u32) -> Self {
        Self {
            sleeps: field(pid, "status", "voluntary_ctxt_switches:"),
            reads: field(pid, "io", "syscr:"),
        }
    }

    /// How often it was woken since then, but by its own clock: each waiter looks every 5 s whether the process ahead
    /// was stopped, which is one read. A waiter that decides anew reads more than it sleeps.
    fn woken_since(self, before: Self) -> u64 {
        let sleeps = self.sleeps.saturating_sub(before.sleeps);
        let reads = self.reads.saturating_sub(before.reads);
        if reads > sleeps {
            sleeps
        } else {
            sleeps - reads
        }
    }
}

fn queued(store: &Path) -> usize {
    let tickets = store.join(".onehold/waiting/x.lock");
    std::fs::read_dir(tickets).map_or(0, Iterator::count)
}

pub(crate) fn measure(bench: &Bench) -> Vec<Row> {
    let root = tempfile::tempdir().unwrap();
    let store = root.path();
    let run = format!("{} run -q -w forever x -- cat", bench.onehold);
    let mut holder = Group::start(&words(&run), store);
    wait_until("the lock is held", || store.join("x.lock").exists());
    let mut waiters: Vec<Group> = Vec::new();
    let mut woken = Vec::new();
    let mut calls = BESIDE.map(|_| Vec::new());
    println!("| waiting | processor µs of the last | Pss KiB | others woken by a release |");
    println!("|---|---|---|---|");
    for size in SIZES {
        while waiters.len() < size {
            waiters.push(Group::start(&words(&run), store));
            let expected = waiters.len();
            wait_until("it waits", || queued(store) == expected);
        }
        // Their messages and their memory come to rest after half a second.
        std::thread::sleep(Duration::from_secs(1));
        let last = &waiters[size.saturating_sub(MEASURED)..];
        let each = |of: fn(u32) -> f64| -> Vec<f64> {
            last.iter().map(|waiter| of(waiter.pid())).collect()
        };
        let time = median(&each(processor_time));
        #[allow(clippy::cast_precision_loss)]
        let memory = median(&each(|pid| field(pid, "smaps_rollup", "Pss:") as f64));
        let next = waiters.remove(0);
        let activity = || waiters.iter().map(|waiter| Activity::of(waiter.pid()));
        let before: Vec<Activity> = activity().collect();
        let released = Instant::now();
        std::mem::replace(&mut holder, next).end();
        wait_until("the next one has it", || queued(store) == waiters.len());
        std::thread::sleep(WINDOW.saturating_sub(released.elapsed()));
        let both = activity().zip(before);
        let by_release: u64 = both.map(|(now, before)| now.woken_since(before)).sum();
        woken.push(by_release);
        println!("| {size} | {time:.0} | {memory:.0} | {by_release} |");
        waiters.push(Group::start(&words(&run), store));
        let expected = waiters.len();
        wait_until("it waits", || queued(store) == expected);
        for (line, calls) in BESIDE.iter().zip(&mut calls) {
            let command = words(&format!("{} {line}", bench.onehold));
            calls.push(system_calls(&command, store, false));
        }
    }
    println!("\n| case | system calls beside {SIZES:?} waiters |");
    println!("|---|---|");
    for (line, calls) in BESIDE.iter().zip(&calls) {
        println!("| {line} | {calls:?} |");
    }
    for (line, calls) in BESIDE.iter().zip(&calls) {
        assert_no_growth(line, calls, CALLS);
    }
    let (least, most) = (woken.iter().min().unwrap(), woken.iter().max().unwrap());
    assert!(most - least <= SLACK, "wake-ups grow: {woken:?}");
    Vec::new()
}
