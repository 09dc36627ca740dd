//! The cost of everyday commands without contention: whole processes, in each round all commands in a
//! random order, on tmpfs and in `TMPDIR`.

use std::path::Path;

use super::{
    Bench, Group, Ratio, Row,
    harness::{Rng, wait_until},
    median, micros, quantile, run, time, words,
};

/// Commands that are measured together.
struct Case {
    name: &'static str,
    /// The case it is compared with, and the ratio that it must not exceed; `None`: it is such a case
    /// itself.
    beside: Option<(&'static str, f64)>,
    commands: Vec<Vec<String>>,
    code: i32,
}

fn cases(bench: &Bench, root: &Path) -> Vec<Case> {
    let Bench { onehold, plain, .. } = bench;
    let own = std::process::id();
    let file = |name: &str| root.join(name).display().to_string();
    let case = |name, beside, commands: &[String], code| Case {
        name,
        beside,
        commands: commands.iter().map(|command| words(command)).collect(),
        code,
    };
    let (free, freed, held) = (file("a"), file("b"), file("held-by-flock"));
    let dot = file("dot");
    vec![
        case("true", None, &["true".to_owned()], 0),
        case("flock FILE true", None, &[format!("flock {free} true")], 0),
        case(
            "run x -- true",
            Some(("flock FILE true", 0.70)),
            &[format!("{onehold} run x -- true")],
            0,
        ),
        case(
            "run x -- true, built by cargo",
            Some(("flock FILE true", 1.25)),
            &[format!("{plain} run x -- true")],
            0,
        ),
        case(
            "flock -F FILE true",
            None,
            &[format!("flock -F {freed} true")],
            0,
        ),
        case(
            "run --exec y -- true",
            Some(("flock -F FILE true", 0.75)),
            &[format!("{onehold} run --exec y -- true")],
            0,
        ),
        case(
            "flock -n FILE true, refused",
            None,
            &[format!("flock -n {held} true")],
            1,
        ),
        case(
            "run -q held -- true, refused",
            Some(("flock -n FILE true, refused", 0.62)),
            &[format!("{onehold} run -q held -- true")],
            6,
        ),
        case(
            "check -q free",
            Some(("flock -n FILE true, refused", 0.35)),
            &[format!("{onehold} check -q free")],
            0,
        ),
        case(
            "check -q held",
            Some(("flock -n FILE true, refused", 0.45)),
            &[format!("{onehold} check -q held")],
            6,
        ),
        case(
            "dotlockfile -l, -u",
            None,
            &[
                format!("dotlockfile -l -p {dot}"),
                format!("dotlockfile -u {dot}"),
            ],
            0,
        ),
        case(
            "acquire z, release z",
            Some(("dotlockfile -l, -u", 0.62)),
            &[
                format!("{onehold} acquire z --pid {own}"),
                format!("{onehold} release z"),
            ],
            0,
        ),
    ]
}

/// The times of all cases on one filesystem, in µs.
fn times(bench: &Bench, root: &Path) -> (Vec<Case>, Vec<Vec<f64>>) {
    let store = root.join("store");
    let onehold = &bench.onehold;
    let _held = Group::start(&words(&format!("{onehold} run held -- cat")), &store);
    let flocked = root.join("held-by-flock");
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
    let cases = cases(bench, root);
    let mut times = vec![Vec::with_capacity(bench.rounds); cases.len()];
    let mut order: Vec<usize> = (0..cases.len()).collect();
    let mut rng = Rng(0x9E37_79B9_7F4A_7C15);
    for round in 0..bench.rounds + 5 {
        for at in (1..order.len()).rev() {
            order.swap(at, rng.below(at + 1));
        }
        for index in &order {
            let case = &cases[*index];
            let costs = case.commands.iter();
            let sum: f64 = costs
                .map(|command| micros(time(command, &store, case.code)))
                .sum();
            // The first rounds warm up.
            if round >= 5 {
                times[*index].push(sum);
            }
        }
    }
    (cases, times)
}

pub(crate) fn measure(bench: &Bench) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for directory in [Path::new("/dev/shm"), &std::env::temp_dir()] {
        let root = tempfile::tempdir_in(directory).unwrap();
        let (cases, times) = times(bench, root.path());
        println!("In {}:\n", directory.display());
        println!("| case | median µs | quartiles | × | quartiles | at most |");
        println!("|---|---|---|---|---|---|");
        for (case, own) in cases.iter().zip(&times) {
            print!(
                "| {} | {:.0} | {:.0}–{:.0} |",
                case.name,
                median(own),
                quantile(own, 0.25),
                quantile(own, 0.75),
            );
            let Some((name, at_most)) = case.beside else {
                println!(" | | |");
                continue;
            };
            let other = cases.iter().position(|other| other.name == name).unwrap();
            let ratio = Ratio::of(own, &times[other]);
            let [low, high] = ratio.quartiles.unwrap();
            println!(" {:.2} | {low:.2}–{high:.2} | {at_most:.2} |", ratio.median);
            match rows.iter_mut().find(|row| row.what == case.name) {
                Some(row) => row.ratios.push(ratio),
                None => rows.push(Row::new(case.name, name, vec![ratio])),
            }
        }
        println!();
    }
    rows
}
