//! The command of the tests on etcd.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;
use std::{env, fs};

use crate::seen::now;

/// `at-work DIRECTORY MILLISECONDS [deaf]`: writes all the time that it runs, so that one that is killed counts
/// to its last breath. A deaf one ignores TERM.
pub fn section(words: &[String]) {
    let (name, hold) = (
        env::var("ONEHOLD_NAME").unwrap(),
        env::var("ONEHOLD_HOLD").unwrap(),
    );
    let slot = env::var("ONEHOLD_SLOT").unwrap_or_default();
    let lasts: u64 = words[1].parse().unwrap();
    let from = now();
    let file = format!("{}.{from}", std::process::id());
    let file = fs::File::create(Path::new(&words[0]).join(file)).unwrap();
    let write = |to: u64| {
        let line = format!("{name} {hold} {from:020} {to:020} {slot}\n");
        file.write_all_at(line.as_bytes(), 0).unwrap();
    };
    if words.get(2).is_some_and(|word| word == "deaf") {
        // SAFETY: no handler.
        unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
    }
    loop {
        let at = now();
        write(at);
        if at >= from + lasts * 1_000_000 {
            break;
        }
        std::thread::sleep(Duration::from_micros(300));
    }
}
