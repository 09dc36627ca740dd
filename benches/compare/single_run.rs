//! The cost of everyday commands without contention: whole processes, in each round all commands in a
//! random order, on tmpfs and in `TMPDIR`, in two locales.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{
    Bench, Group, Ratio, Row,
    harness::{Rng, wait_until},
    median, micros, prepared, quantile, run, words,
};

/// Commands that are measured together.
struct Case {
    name: &'static str,
    /// The case it is compared with, and the ratio that it must not exceed; `None`: it is such a case
    /// itself.
    beside: Option<(&'static str, f64)>,
    commands: Vec<Vec<String>>,
    code: i32,
    /// A file that is not there at the start.
    fresh: Option<PathBuf>,
}

/// The locales: flock(1) loads that of its caller.
pub(crate) const LOCALES: [(&str, &str); 2] = [("LC_ALL", "C"), ("LANG", "C.UTF-8")];

const FLOCK: &str = "flock FILE true";
const COPY: &str = "flock FILE true, a copy";
const REFUSED: &str = "flock -n FILE true, refused";

#[allow(clippy::too_many_lines, reason = "a table")]
fn cases(bench: &Bench, root: &Path) -> Vec<Case> {
    let Bench {
        onehold,
        plain,
        plain_static,
        flock,
        floor,
        ..
    } = bench;
    let own = std::process::id();
    let file = |name: &str| root.join(name).display().to_string();
    let case = |name, beside, commands: &[String], code| Case {
        name,
        beside,
        commands: commands.iter().map(|command| words(command)).collect(),
        code,
        fresh: None,
    };
    let (free, freed, held) = (file("a"), file("b"), file("held-by-flock"));
    let (copied, least, dot) = (file("c"), file("d"), file("dot"));
    let run = |line: &str| [format!("{onehold} {line}")];
    let mut fresh = case(
        "run --exec w -- true, the first one",
        Some(("flock -F FILE true", 0.86)),
        &run("run --exec w -- true"),
        0,
    );
    fresh.fresh = Some(root.join("store/w.lock"));
    let mut cases = vec![
        case("true", None, &["true".to_owned()], 0),
        case(FLOCK, None, &[format!("flock {free} true")], 0),
        case(
            COPY,
            Some((FLOCK, 1.03)),
            &[format!("{flock} {copied} true")],
            0,
        ),
        case(
            "the least, run",
            Some((FLOCK, 1.0)),
            &[format!("{floor} {least} {}", super::absolute("true"))],
            0,
        ),
        case(
            "run x -- true",
            Some((FLOCK, 0.82)),
            &run("run x -- true"),
            0,
        ),
        case(
            "run x -- true, built by cargo",
            Some((FLOCK, 1.15)),
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
            Some(("flock -F FILE true", 0.86)),
            &run("run --exec y -- true"),
            0,
        ),
        fresh,
        case(REFUSED, None, &[format!("flock -n {held} true")], 1),
        case(
            "the least, refused",
            Some((REFUSED, 1.0)),
            &[format!("{floor} {held} {}", super::absolute("true"))],
            6,
        ),
        case(
            "run -q held -- true, refused",
            Some((REFUSED, 0.64)),
            &run("run -q held -- true"),
            6,
        ),
        case(
            "run held -- true, refused with its message",
            Some((REFUSED, 0.76)),
            &run("run held -- true"),
            6,
        ),
        case(
            "run held -- true, refused with its message, built by cargo",
            Some((REFUSED, 1.6)),
            &[format!("{plain} run held -- true")],
            6,
        ),
        case(
            "check -q free",
            Some((REFUSED, 0.40)),
            &run("check -q free"),
            0,
        ),
        case(
            "check -q held",
            Some((REFUSED, 0.58)),
            &run("check -q held"),
            6,
        ),
        case(
            "check -q held, built by cargo",
            Some((REFUSED, 0.80)),
            &[format!("{plain} check -q held")],
            6,
        ),
        case("flock --version", None, &["flock --version".to_owned()], 0),
        case(
            "--version",
            Some(("flock --version", 0.40)),
            &run("--version"),
            0,
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
            Some(("dotlockfile -l, -u", 0.63)),
            &[
                format!("{onehold} acquire z --pid {own}"),
                format!("{onehold} release z"),
            ],
            0,
        ),
    ];
    if let Some(plain) = plain_static {
        let built = |name, beside, line: &str, code| {
            case(name, Some(beside), &[format!("{plain} {line}")], code)
        };
        cases.extend([
            built(
                "run x -- true, built by cargo for musl",
                (FLOCK, 0.86),
                "run x -- true",
                0,
            ),
            built(
                "run held -- true, refused with its message, built by cargo for musl",
                (REFUSED, 0.80),
                "run held -- true",
                6,
            ),
            built(
                "check -q held, built by cargo for musl",
                (REFUSED, 0.62),
                "check -q held",
                6,
            ),
        ]);
    }
    cases
}

/// The time of a command that has to exit with `code`, in a locale.
fn time(command: &[String], store: &Path, locale: (&str, &str), code: i32) -> Duration {
    let mut prepared = prepared(command, store);
    prepared.env_remove("LC_ALL").env(locale.0, locale.1);
    let started = Instant::now();
    let status = prepared.status().unwrap();
    let took = started.elapsed();
    assert_eq!(status.code(), Some(code), "{command:?}");
    took
}

/// The times of all cases on one filesystem, in µs.
fn times(bench: &Bench, root: &Path, locale: (&str, &str)) -> (Vec<Case>, Vec<Vec<f64>>) {
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
            if let Some(file) = &case.fresh {
                let _ = std::fs::remove_file(file);
            }
            let costs = case.commands.iter();
            let sum: f64 = costs
                .map(|command| micros(time(command, &store, locale, case.code)))
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
    let directories = [Path::new("/dev/shm"), &std::env::temp_dir()];
    let places = directories.map(|directory| LOCALES.map(|locale| (directory, locale)));
    for (directory, locale) in places.into_iter().flatten() {
        bench.evict();
        let root = tempfile::tempdir_in(directory).unwrap();
        let (cases, times) = times(bench, root.path(), locale);
        println!("In {}, {}={}:\n", directory.display(), locale.0, locale.1);
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
            let is_fair = (0.97..=1.03).contains(&ratio.median);
            assert!(
                case.name != COPY || bench.rounds < 500 || is_fair,
                "flock takes {:.3} times as long as a copy of it: nothing here is true",
                ratio.median
            );
            match rows.iter_mut().find(|row| row.what == case.name) {
                Some(row) => row.ratios.push(ratio),
                None => rows.push(Row::new(case.name, name, vec![ratio]).at_most(at_most)),
            }
        }
        println!();
    }
    rows
}
