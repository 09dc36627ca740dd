//! The cost of one lock in stores of different sizes and beside different numbers of siblings, which should be the
//! same in all of them, and the cost per lock of `list` and `cleanup`. A file system from which very many files were just
//! removed may take a millisecond for a new one: `create + unlink` shows it, and `TMPDIR` helps.

use std::path::Path;
use std::time::Instant;

use super::{
    Bench, Row, assert_held, assert_no_growth, copy_record, median, micros, system_calls, time,
    words,
};

const SIZES: [usize; 4] = [1, 100, 10_000, 100_000];
/// Numbers of names in one tree.
const TREE_SIZES: [usize; 3] = [1, 100, 10_000];
/// A difference of so many system calls is not growth.
const SLACK: usize = 2;

/// A command in stores of all sizes.
struct Case {
    name: String,
    command: Vec<String>,
    /// The command of which the system calls are counted.
    counted: Vec<String>,
    code: i32,
    calls: Vec<Option<usize>>,
    times: Vec<f64>,
}

impl Case {
    fn new(name: &str, command: &str, code: i32) -> Self {
        Self {
            name: name.to_owned(),
            command: words(command),
            counted: words(command),
            code,
            calls: Vec::new(),
            times: Vec::new(),
        }
    }
}

fn name(number: usize) -> String {
    format!("lease-{number:06}")
}

/// The time of the two changes of a directory that each lock file needs, in µs.
fn link_and_unlink(root: &Path, store: &Path) -> f64 {
    let (file, link) = (root.join("file"), store.join(".linked"));
    std::fs::write(&file, "").unwrap();
    let times: Vec<f64> = (0..200)
        .map(|_| {
            let started = Instant::now();
            std::fs::hard_link(&file, &link).unwrap();
            std::fs::remove_file(&link).unwrap();
            micros(started.elapsed())
        })
        .collect();
    median(&times)
}

/// The time for a new file, in µs. It depends on the file system and on its past.
fn create_and_unlink(store: &Path) -> f64 {
    let file = store.join(".created");
    let times: Vec<f64> = (0..200)
        .map(|_| {
            let started = Instant::now();
            std::fs::File::create_new(&file).unwrap();
            std::fs::remove_file(&file).unwrap();
            micros(started.elapsed())
        })
        .collect();
    median(&times)
}

/// Counts the calls of commands one after the other; `threads`: with those of their threads.
fn count_calls(cases: &mut [Case], store: &Path, threads: bool) {
    for case in cases {
        let calls = system_calls(&case.counted, store, threads);
        case.calls.push(calls);
    }
}

/// Measures commands in turn.
fn measure_times(cases: &mut [Case], store: &Path, rounds: usize) {
    let mut times = vec![Vec::new(); cases.len()];
    for _ in 0..rounds {
        for (case, times) in cases.iter().zip(&mut times) {
            times.push(micros(time(&case.command, store, case.code)));
        }
    }
    for (case, times) in cases.iter_mut().zip(times) {
        case.times.push(median(&times));
    }
}

/// Commands about one lock. `below`: what its name begins with.
fn cases(onehold: &str, below: &str) -> [Case; 5] {
    let own = std::process::id();
    let (x, z) = (format!("{below}x"), format!("{below}z"));
    let case = |name: &str, line: &str, code| Case::new(name, &format!("{onehold} {line}"), code);
    [
        case(
            &format!("acquire {z}"),
            &format!("acquire {z} --pid {own}"),
            0,
        ),
        case(&format!("check {z}, held"), &format!("check -q {z}"), 6),
        case(&format!("release {z}"), &format!("release {z}"), 0),
        case(&format!("check {z}, free"), &format!("check -q {z}"), 0),
        Case {
            // A short command has sometimes ended before it is waited for, sometimes not.
            counted: words(&format!("{onehold} run {x} -- sleep 0.1")),
            ..case(&format!("run {x} -- true"), &format!("run {x} -- true"), 0)
        },
    ]
}

/// The system calls of commands about a name beside different numbers of others below the same one.
fn measure_trees(onehold: &str, store: &Path) {
    let name = |number| format!("tree/{}", name(number));
    let acquire = words(&format!("{onehold} acquire {} --ttl 10h", name(0)));
    time(&acquire, store, 0);
    let mut cases = cases(onehold, "tree/");
    let mut filled = 1;
    for size in TREE_SIZES {
        copy_record(store, &name(0), (filled..size).map(name));
        filled = size;
        count_calls(&mut cases, store, false);
    }
    println!("\n| case | system calls beside {TREE_SIZES:?} others |");
    println!("|---|---|");
    for case in &cases {
        println!("| {} | {:?} |", case.name, case.calls);
        assert_no_growth(&case.name, &case.calls, SLACK);
    }
}

pub(crate) fn measure(bench: &Bench) -> Vec<Row> {
    let root = tempfile::tempdir().unwrap();
    let store = &root.path().join("store");
    let onehold = &bench.onehold;
    let mut alone = cases(onehold, "");
    let mut whole = [
        Case::new("list", &format!("{onehold} list"), 0),
        Case::new("cleanup", &format!("{onehold} cleanup"), 0),
    ];
    let (mut pairs, mut files) = (Vec::new(), Vec::new());
    let mut filled = 1;
    let acquire = words(&format!("{onehold} acquire {} --ttl 10h", name(0)));
    time(&acquire, store, 0);
    for size in SIZES {
        copy_record(store, &name(0), (filled..size).map(name));
        filled = size;
        assert_held(bench, store, size);
        pairs.push(link_and_unlink(root.path(), store));
        files.push(create_and_unlink(store));
        count_calls(&mut alone, store, false);
        measure_times(&mut alone, store, bench.rounds);
        count_calls(&mut whole, store, true);
        measure_times(&mut whole, store, bench.rounds.min(5));
        assert_held(bench, store, size);
    }
    report(&alone, &whole, &pairs, &files);
    measure_trees(onehold, &root.path().join("trees"));
    for case in alone {
        assert_no_growth(&case.name, &case.calls, SLACK);
    }
    Vec::new()
}

fn report(alone: &[Case], whole: &[Case], pairs: &[f64], files: &[f64]) {
    println!("| case | other locks | median µs | × link + unlink | system calls | at most |");
    println!("|---|---|---|---|---|---|");
    for (name, times) in [("link + unlink", pairs), ("create + unlink", files)] {
        for (at, size) in SIZES.iter().enumerate() {
            let ratio = times[at] / pairs[at];
            println!("| {name} | {size} | {:.1} | {ratio:.1} | | |", times[at]);
        }
    }
    let text = |calls: Option<usize>| calls.map_or_else(String::new, |calls| calls.to_string());
    for case in alone {
        let at_most = text(case.calls[0].map(|calls| calls + SLACK));
        for (at, size) in SIZES.iter().enumerate() {
            println!(
                "| {} | {size} | {:.0} | {:.1} | {} | {at_most} |",
                case.name,
                case.times[at],
                case.times[at] / pairs[at],
                text(case.calls[at]),
            );
        }
    }
    println!("\n| case | locks | median ms | µs per lock | system calls per further lock |");
    println!("|---|---|---|---|---|");
    for case in whole {
        for (at, size) in SIZES.iter().enumerate() {
            let further = case.calls[at].zip(case.calls[0]).filter(|_| at > 0);
            let further = further.map(|(calls, first)| (calls - first) as f64 / (size - 1) as f64);
            println!(
                "| {} | {size} | {:.2} | {:.2} | {} |",
                case.name,
                case.times[at] / 1e3,
                case.times[at] / *size as f64,
                further.map_or_else(String::new, |calls| format!("{calls:.2}")),
            );
        }
    }
}
