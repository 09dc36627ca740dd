//! The cost of `list` for very many locks, compared with lslocks(8), and with jq(1) and `kill -0`,
//! for the same live processes.

use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read as _};
use std::path::Path;
use std::process::{Child, Stdio};

use rustix::fs::{FlockOperation, flock};

use super::{
    Bench, Ratio, Row, assert_held, copy_record, is_installed, median, micros, prepared,
    system_calls, time, words,
};

const HOLDERS: usize = 1_000;
const EACH: usize = 10;
const ROUNDS: usize = 5;
/// What the time of `list` must not exceed, as a part of that of lslocks(8).
const AT_MOST: f64 = 0.33;

/// Locks ten files, writes a byte, and stays until its stdin ends.
pub(crate) fn flock_ten(directory: &Path, number: &str) {
    let lock = |at| {
        let file = File::create(directory.join(format!("{number}-{at}"))).unwrap();
        flock(&file, FlockOperation::LockExclusive).unwrap();
        file
    };
    let _files: Vec<File> = (0..EACH).map(lock).collect();
    println!();
    let _ = std::io::stdin().read(&mut [0]);
}

/// Processes that lock ten files each; they end when this is dropped, or with the bench.
struct Holders {
    children: Vec<Child>,
    _until: PipeWriter,
}

impl Holders {
    fn start(directory: &Path) -> Self {
        let (end, until): (PipeReader, PipeWriter) = std::io::pipe().unwrap();
        let own = std::env::current_exe().unwrap();
        let mut holders = Self {
            children: Vec::new(),
            _until: until,
        };
        for number in 0..HOLDERS {
            let command = format!(
                "{} --flock-ten {} {number}",
                own.display(),
                directory.display()
            );
            let child = prepared(&words(&command), directory)
                .stdin(end.try_clone().unwrap())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            holders.children.push(child);
            let ready = &mut holders.children[number].stdout.take().unwrap();
            ready.read_exact(&mut [0]).unwrap();
        }
        holders
    }
}

impl Drop for Holders {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Adds `copies` locks for each of the first holders.
fn fill(bench: &Bench, store: &Path, holders: &Holders, first: usize, copies: usize) {
    for (number, holder) in holders.children.iter().enumerate().take(first) {
        let name = |copy: usize| format!("l{number}-{copy:02}");
        if !store.join(format!("{}.lock", name(0))).exists() {
            let acquire = format!(
                "{} acquire {} --pid {}",
                bench.onehold,
                name(0),
                holder.id()
            );
            time(&words(&acquire), store, 0);
        }
        copy_record(store, &name(0), (1..copies).map(name));
    }
    assert_held(bench, store, first * copies);
}

/// Median times of commands that are measured in turn, in µs.
fn medians(commands: &[&Vec<String>], store: &Path) -> Vec<f64> {
    let mut times = vec![Vec::new(); commands.len()];
    for _ in 0..ROUNDS {
        for (command, times) in commands.iter().zip(&mut times) {
            times.push(micros(time(command, store, 0)));
        }
    }
    times.iter().map(|times| median(times)).collect()
}

pub(crate) fn measure(bench: &Bench) -> Vec<Row> {
    let root = tempfile::tempdir().unwrap();
    let store = &root.path().join("store");
    let files = &root.path().join("files");
    std::fs::create_dir(files).unwrap();
    let holders = &Holders::start(files);
    let list = &words(&format!("{} list", bench.onehold));
    let calls = || system_calls(list, store, true);
    let mut rows = Vec::new();

    fill(bench, store, holders, 10, 10);
    rows.push(("list, 100 locks", medians(&[list], store)[0], None, ""));
    let few_calls = calls();

    fill(bench, store, holders, HOLDERS, EACH);
    let mut others = vec![(
        "lslocks, 10,000 locks",
        format!("{AT_MOST:.2}"),
        words("lslocks"),
    )];
    if is_installed("jq") {
        let script = "find \"$ONEHOLD_DIR\" -maxdepth 1 -name '*.lock' -print0 |
            xargs -0 jq '.job_pid // empty' |
            while read -r pid; do kill -0 \"$pid\" || exit 1; done";
        let command = ["sh", "-c", script].map(str::to_owned).into();
        others.push(("jq + kill -0, 10,000 locks", String::new(), command));
    }
    let mut commands = vec![list];
    commands.extend(others.iter().map(|(_, _, command)| command));
    let times = medians(&commands, store);
    let ratio = Ratio {
        median: times[0] / times[1],
        quartiles: None,
    };
    let row = Row::new("list, 10,000 locks", "lslocks", vec![ratio]).at_most(AT_MOST);
    for ((name, at_most, _), time) in others.iter().zip(&times[1..]) {
        rows.push((name, *time, None, ""));
        rows.push((
            "list, 10,000 locks",
            times[0],
            Some(times[0] / time),
            at_most,
        ));
    }
    let many_calls = calls();

    fill(bench, store, holders, HOLDERS, 100);
    rows.push((
        "list, 100,000 locks",
        medians(&[list], store)[0],
        None,
        "0.6 s",
    ));

    println!("| case | median ms | × the line above | at most |");
    println!("|---|---|---|---|");
    for (name, time, ratio, at_most) in rows {
        let ratio = ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
        println!("| {name} | {:.1} | {ratio} | {at_most} |", time / 1e3);
    }
    if let (Some(few), Some(many)) = (few_calls, many_calls) {
        println!(
            "\nSystem calls of list: {few} for 100 locks, {many} for 10,000: {:.2} for each more.",
            (many - few) as f64 / 9_900.0,
        );
    }
    vec![row]
}
