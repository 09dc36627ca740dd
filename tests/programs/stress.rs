//! The command of the stress test.

use std::env;
use std::path::Path;
use std::time::Duration;

use crate::seen::{append_line, identity, now};

/// `critical-section LOG MICROSECONDS AT-MOST CALL`: notes when it began and when it ended.
pub fn critical_section(words: &[String]) {
    let (log, microseconds) = (Path::new(&words[0]), words[1].parse().unwrap());
    let (at_most, call) = (&words[2], &words[3]);
    let (name, hold) = (
        env::var("ONEHOLD_NAME").unwrap(),
        env::var("ONEHOLD_HOLD").unwrap(),
    );
    let pid = std::process::id();
    let own = identity(pid).unwrap();
    let slots = env::var("ONEHOLD_SLOT").unwrap_or_default();
    let mut slots = slots.split(' ');
    let from = now();
    // Of one hold: what is written at once is in one piece.
    let lines: Vec<String> = name
        .lines()
        .map(|name| {
            let slot = slots.next().unwrap_or_default();
            format!("in {own} {from} {name} {hold} {slot} {at_most} {call}")
        })
        .collect();
    append_line(log, &lines.join("\n"));
    std::thread::sleep(Duration::from_micros(microseconds));
    append_line(log, &format!("out {own} {}", now()));
}
