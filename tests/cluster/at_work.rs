use std::fs;
use std::process::Command;

use crate::cluster::On;
use crate::harness::example;
use crate::harness::intervals::{Interval, Slot, violations};

/// `onehold run ARGS -- SECTION`, for so long.
pub fn run(on: &On, args: &[&str], milliseconds: u64) -> Command {
    run_by(on, args, &[], milliseconds)
}

/// `onehold run ARGS -- sh -c SECTION`: the section is a child of the command.
pub fn run_below(on: &On, args: &[&str], milliseconds: u64) -> Command {
    run_by(
        on,
        args,
        &["sh", "-c", "\"$@\"; exit $?", "sh"],
        milliseconds,
    )
}

fn run_by(on: &On, args: &[&str], shell: &[&str], milliseconds: u64) -> Command {
    let directory = on.env.path("work");
    fs::create_dir_all(&directory).unwrap();
    let words = [&["run"], args, &["--"]].concat();
    let mut command = on.onehold(&words);
    command
        .args(shell)
        .arg(example("programs"))
        .arg("at-work")
        .arg(directory)
        .arg(milliseconds.to_string())
        .stdout(std::process::Stdio::null());
    command
}

/// All sections that have run so far.
pub fn sections(on: &On) -> Vec<Interval> {
    let Ok(files) = fs::read_dir(on.env.path("work")) else {
        return Vec::new();
    };
    let mut found: Vec<Interval> = files
        .filter_map(|file| {
            let text = fs::read_to_string(file.unwrap().path()).unwrap();
            let mut words = text.split_whitespace();
            Some(Interval {
                name: words.next()?.to_owned(),
                owner: None,
                hold: words.next()?.parse().unwrap(),
                from: words.next()?.parse().unwrap(),
                to: words.next()?.parse().unwrap(),
                shared: words.next().map(|number| Slot {
                    number: number.parse().unwrap(),
                    at_most: None,
                }),
            })
        })
        .collect();
    found.sort_by_key(|section| section.from);
    found
}

/// Fails if two ran at once, or numbers did not grow.
#[track_caller]
pub fn assert_exclusive(on: &On) -> Vec<Interval> {
    let mut all = sections(on);
    let found = violations(&mut all);
    assert!(found.is_empty(), "{found:#?}");
    all
}

/// How long after a moment a section wrote last; negative: before it.
pub fn seconds_after(section: &Interval, moment: u64) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "of seconds")]
    let seconds = |at: u64| at as f64 / 1e9;
    seconds(section.to) - seconds(moment)
}
