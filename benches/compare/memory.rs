//! The memory of a process that holds a lock for a command, and of one that waits.

use std::time::Duration;

use super::{Bench, Group, Ratio, Row, words};

/// What the ratios of resident memory must not exceed.
const AT_MOST: f64 = 1.00;

/// Resident, proportional and private memory of a process, in KiB.
fn memory(pid: u32) -> [f64; 3] {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let field = |name: &str| -> f64 {
        let line = rollup.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let private = field("Private_Clean:") + field("Private_Dirty:");
    [field("Rss:"), field("Pss:"), private]
}

pub(crate) fn measure(bench: &Bench) -> Vec<Row> {
    let mut rows = Vec::new();
    let root = tempfile::tempdir().unwrap();
    let flock = format!("flock {}", root.path().join("file").display());
    let run = format!("{} run -w forever x --", bench.onehold);
    let started = ["cat", "true"].map(|command| {
        let both = [&flock, &run]
            .map(|tool| Group::start(&words(&format!("{tool} {command}")), root.path()));
        // The holder has to be the first, and the waiter has to come to rest.
        std::thread::sleep(Duration::from_secs(2));
        both
    });
    println!("| process | Rss KiB | × | at most | Pss KiB | private KiB |");
    println!("|---|---|---|---|---|---|");
    for (both, state) in started.iter().zip(["with its command", "waiting"]) {
        let [other, own] = [&both[0], &both[1]].map(|group| memory(group.pid()));
        let ratio = Ratio {
            median: own[0] / other[0],
            quartiles: None,
        };
        let what = format!("memory of a run, {state}");
        rows.push(Row::new(&what, "flock FILE", vec![ratio]).at_most(AT_MOST));
        let at_most = format!("{AT_MOST:.2}");
        for (name, [rss, pss, private], at_most) in
            [("flock FILE", other, ""), ("run x", own, &at_most)]
        {
            println!(
                "| {name}, {state} | {rss} | {:.2} | {at_most} | {pss} | {private} |",
                rss / other[0],
            );
        }
    }
    rows
}
