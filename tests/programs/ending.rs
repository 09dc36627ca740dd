//! The commands of the tests of how a hold ends.

use std::path::Path;
use std::time::{Duration, Instant};
use std::{env, fs};

use crate::seen::{append_line, identity, marked, now, processes_with, runs};

/// `next-holder SCENE WRAPPER`: says when it started, and what runs at that moment of the work of the hold
/// before. The wrapper of that work has given the lock back, and may need a moment more to end.
pub fn next_holder(words: &[String]) {
    let started = now();
    let mut running: Vec<String> = fs::read_to_string("work")
        .unwrap_or_default()
        .lines()
        .filter(|line| {
            let (pid, start) = line.split_once(' ').unwrap();
            let pid = pid.parse().unwrap();
            runs(pid) && identity(pid).is_some_and(|found| found == format!("{pid}.{start}"))
        })
        .map(str::to_owned)
        .collect();
    // It has no name any more if it ends while it is looked at.
    let wrapper = format!("{} ", words[1]);
    let marked = marked(&format!("WORK_OF={}", words[0]));
    running.extend(
        marked
            .into_iter()
            .filter(|process| !process.starts_with(&wrapper)),
    );
    fs::write("next.tmp", format!("{started} {}", running.join(", "))).unwrap();
    fs::rename("next.tmp", "next").unwrap();
}

/// Notes the processes of other holds of the same test, whose mark in the environment is its log.
pub fn contender() {
    let log = env::var("CONTENDER_LOG").unwrap();
    let own = env::var("ONEHOLD_HOLD").unwrap();
    let (of_test, of_own) = (
        format!("CONTENDER_LOG={log}"),
        format!("ONEHOLD_HOLD={own}"),
    );
    let others = processes_with(|variables| {
        let has_hold = variables
            .iter()
            .any(|entry| entry.starts_with(b"ONEHOLD_HOLD="));
        variables.contains(&of_test.as_bytes())
            && has_hold
            && !variables.contains(&of_own.as_bytes())
    });
    for other in others {
        append_line(Path::new(&log), &format!("{own} beside {other}"));
    }
    append_line(Path::new(&format!("{log}.turns")), &own);
}

/// `forks FILE`: forks without a pause; each process of the chain ends as soon as it has started the next
/// one. All of them have a lock on the same file.
pub fn forks(words: &[String]) {
    let file = fs::File::create(&words[0]).unwrap();
    file.lock().unwrap();
    fs::write(format!("{}.ready", words[0]), "").unwrap();
    let began = Instant::now();
    // SAFETY: the child makes only system calls that are async-signal-safe.
    unsafe {
        libc::signal(libc::SIGTERM, libc::SIG_IGN);
        while began.elapsed() < Duration::from_secs(20) {
            if libc::fork() > 0 {
                libc::_exit(0);
            }
        }
        libc::_exit(0);
    }
}
