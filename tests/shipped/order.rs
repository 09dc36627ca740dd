//! The functions that the hot paths execute lie side by side in the shipped binary: each 64 KiB of text
//! that are touched cost a page fault, and scattered over all of the text they are three times as many.
//!
//! `src/hot-functions.ld` has their order, for the linker. To write it anew after `.ci/package`:
//!
//! `BLESS=1 ONEHOLD_SHIPPED=… cargo test --test shipped hot_functions -- --ignored`

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::map::{self, Placed};
use super::steps::step_through;
use super::{Held, harness, onehold, shipped, used_store};

/// The hot paths, with their exit codes. The most important ones are the first.
const PATHS: [(&str, i32); 14] = [
    ("check -q free", 0),
    ("run -q busy -- true", 6),
    ("check -q busy", 6),
    ("run x -- true", 0),
    ("run --exec left -- true", 0),
    (SUPERVISION, 0),
    ("acquire z", 0),
    ("release own", 0),
    (WAIT, 0),
    ("acquire y --ttl 1h", 0),
    ("run -s shared -- true", 0),
    ("run busy -- true", 6),
    ("--version", 0),
    (WITH_HISTORY, 0),
];

const WITH_HISTORY: &str = "run noted -- true";

/// What counts of it is what follows the start of the command. It needs little, so that it is first, and a
/// wrapper of a long command keeps little in memory.
const SUPERVISION: &str = "run x -- sleep 1.2";

const WAIT: &str = "run -w 1m soon -- true";

/// Where the linker puts them.
const HOT: &str = ".text.hot";

/// So much of what is executed lies there at least. A release of Rust renames some of its functions.
const LEAST_SHARE: f64 = 0.95;

fn order_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/hot-functions.ld")
}

/// The directory of a target below `target/shipped`.
pub(crate) fn directory_of(target: &str) -> PathBuf {
    let shipped = shipped();
    let all = shipped.ancestors().nth(4).unwrap();
    all.join(target)
}

/// The pattern for the linker that finds a function again in another build, for another processor: hashes of its source
/// and its compiler are left out.
fn pattern(input: &str) -> String {
    let (file, section) = input.rsplit_once(":(").unwrap();
    let section = section.trim_end_matches(')');
    if section == ".text" {
        // The C library, an object file for each function.
        let object = file.rsplit(['/', '(']).next().unwrap();
        return format!("*{}(.text)", object.trim_end_matches(')'));
    }
    // A generic function has one hash for each of its types.
    if let Some((name, _hash)) = section.rsplit_once("17h") {
        return format!("*({name}17h*)");
    }
    // Of functions with one name all but the first one have a number.
    let numbered = section.rsplit_once('.');
    let name = numbered.filter(|(_, number)| number.bytes().all(|byte| byte.is_ascii_digit()));
    let name = without_hashes(name.map_or(section, |(name, _)| name));
    format!("*({name} {name}.*)")
}

/// The compiled standard library has names of a newer kind (rust-lang/rfcs 2603): hashes of crates, and references back
/// into the name, whose numbers depend on their lengths.
fn without_hashes(name: &str) -> String {
    let mut text = String::new();
    let mut rest = name;
    while let Some(char) = rest.chars().next() {
        let (begins, lengths) = match char {
            _ if rest.starts_with("Cs") => ("Cs", 9..=12),
            'B' => ("B", 1..=2),
            _ => ("", 0..=0),
        };
        let digits = &rest[begins.len()..];
        let length = digits
            .find(|char: char| !char.is_ascii_alphanumeric())
            .filter(|_| !begins.is_empty());
        match length {
            Some(length) if lengths.contains(&length) && digits[length..].starts_with('_') => {
                text.push_str(begins);
                text.push_str("*_");
                rest = &digits[length + 1..];
            }
            _ => {
                text.push(char);
                rest = &rest[char.len_utf8()..];
            }
        }
    }
    text
}

/// A function of a hot path.
struct Hot {
    /// Bit `n`: path `n` executes it.
    paths: u32,
    /// When it was executed first.
    first: usize,
}

/// The functions that the hot paths execute, and how many instructions of them each.
fn executed(placed: &[Placed]) -> (HashMap<String, Hot>, HashMap<String, u32>) {
    let (env, _busy) = used_store();
    let (mut hot, mut counts) = (HashMap::<String, Hot>::new(), HashMap::new());
    for (number, (words, code)) in PATHS.into_iter().enumerate() {
        // Held for so long that the waiter comes to rest.
        let soon = words == WAIT;
        let _soon = soon.then(|| Held(onehold(&env, "run soon -- sleep 5").spawn().unwrap()));
        harness::wait_until("the lock is held", || {
            !soon || onehold(&env, "check -q soon").status().unwrap().code() == Some(6)
        });
        let mut has_started = false;
        let mut command = onehold(&env, words);
        if words == WITH_HISTORY {
            command.env("ONEHOLD_HISTORY", "1");
        }
        let exit = step_through(command, |step| {
            has_started |= step.is_in_child;
            if words == SUPERVISION && !has_started {
                return;
            }
            let Some(found) = map::at(placed, step.address) else {
                return;
            };
            *counts.entry(found.input.clone()).or_insert(0) += 1;
            let first = hot.len();
            let function = hot
                .entry(found.input.clone())
                .or_insert(Hot { paths: 0, first });
            function.paths |= 1 << number;
        });
        assert_eq!(exit, code, "{words}");
    }
    (hot, counts)
}

/// First what all paths need, then the rest of the first path, then of the second one. Within each, what
/// most of them need comes first.
fn in_order(hot: HashMap<String, Hot>) -> Vec<String> {
    // The last path is not worth another place for what the others execute.
    let last = 1 << (PATHS.len() - 1);
    let paths = |hot: &Hot| match hot.paths & !last {
        0 => last,
        others => others,
    };
    let rank = |hot: &Hot| match paths(hot) {
        paths if paths == last - 1 => 0,
        paths => 1 + paths.trailing_zeros(),
    };
    let mut order: Vec<_> = hot.into_iter().collect();
    order.sort_by_key(|(_, hot)| {
        let shared = u32::MAX - paths(hot).count_ones();
        (rank(hot), shared, paths(hot), hot.first)
    });
    order.into_iter().map(|(input, _)| input).collect()
}

fn script(order: &[String]) -> String {
    let mut text = String::from(
        "/* The functions of the hot paths, side by side. Written by a test, see tests/shipped/order.rs. */\n\
         SECTIONS {\n  .text.hot ALIGN(0x10000) : {\n",
    );
    let mut written = BTreeSet::new();
    for input in order {
        let pattern = pattern(input);
        if written.insert(pattern.clone()) {
            writeln!(text, "    {pattern}").unwrap();
        }
    }
    text.push_str("  }\n}\nINSERT BEFORE .text;\n");
    text
}

#[test]
#[ignore = "needs the shipped binary, which takes minutes to build: ONEHOLD_SHIPPED"]
fn hot_functions_lie_side_by_side() {
    let placed = map::read(&directory_of("x86_64-unknown-linux-musl"));
    let (hot, counts) = executed(&placed);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(order_file(), script(&in_order(hot))).unwrap();
        return;
    }
    let output_of = |input: &str| {
        let found = placed.iter().find(|placed| placed.input == input);
        found.unwrap().output.as_str()
    };
    let (mut side_by_side, mut all) = (0_u32, 0_u32);
    for (input, count) in counts {
        all += count;
        if output_of(&input) == HOT {
            side_by_side += count;
        } else {
            println!("{count} instructions elsewhere: {input}");
        }
    }
    let share = f64::from(side_by_side) / f64::from(all);
    println!("{:.1} % of the instructions lie in {HOT}", share * 100.0);
    assert!(share >= LEAST_SHARE, "{share:.3}");
}

#[test]
#[ignore = "needs the shipped binaries, which take minutes to build: ONEHOLD_SHIPPED"]
fn order_is_that_of_both_processors() {
    let script = std::fs::read_to_string(order_file()).unwrap();
    let patterns = script.lines().filter(|line| line.contains("*(")).count();
    for target in ["x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl"] {
        let placed = map::read(&directory_of(target));
        let found = placed.iter().filter(|placed| placed.output == HOT);
        let mut found: Vec<String> = found.map(|placed| pattern(&placed.input)).collect();
        found.sort();
        found.dedup();
        println!("{target}: {} of {patterns} functions", found.len());
        assert!(
            found.len() * 10 >= patterns * 9,
            "{target}: {}",
            found.len()
        );
    }
}
