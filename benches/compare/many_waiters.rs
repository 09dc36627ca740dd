//! What a waiter costs beside many others, which should not depend on their number: the processor time until
//! it rests, its memory, and how many of them a release wakes.

use std::path::Path;
use std::time::{Duration, Instant};

use super::harness::wait_until;
use super::{Bench, Group, Row, median, words};

const SIZES: [usize; 4] = [1, 10, 100, 1_000];
/// The last waiters are measured.
const MEASURED: usize = 10;
/// A difference of so many wake-ups is not growth, of 990 more waiters.
const SLACK: u64 = 20;
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

/// How often waiters have gone to sleep.
fn sleeps(waiters: &[Group]) -> u64 {
    waiters
        .iter()
        .map(|waiter| field(waiter.pid(), "status", "voluntary_ctxt_switches:"))
        .sum()
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
    println!("| waiting | processor µs of the last | Pss KiB | put to sleep by a release |");
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
        // Some look each 5 s whether the one ahead was stopped.
        let at_rest = sleeps(&waiters);
        std::thread::sleep(WINDOW);
        let before = sleeps(&waiters);
        let next = waiters.remove(0);
        let released = Instant::now();
        std::mem::replace(&mut holder, next).end();
        wait_until("the next one has it", || queued(store) == waiters.len());
        std::thread::sleep(WINDOW.saturating_sub(released.elapsed()));
        let after = sleeps(&waiters) + field(holder.pid(), "status", "voluntary_ctxt_switches:");
        let by_release = (after - before).saturating_sub(before - at_rest);
        woken.push(by_release);
        println!("| {size} | {time:.0} | {memory:.0} | {by_release} |");
        waiters.push(Group::start(&words(&run), store));
        let expected = waiters.len();
        wait_until("it waits", || queued(store) == expected);
    }
    let (least, most) = (woken.iter().min().unwrap(), woken.iter().max().unwrap());
    assert!(most - least <= SLACK, "wake-ups grow: {woken:?}");
    Vec::new()
}
