//! What must not grow: the system calls of a command in a store of many locks, below a name with many children, and
//! behind many waiters.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::unistd::Pid;

use super::harness::{TestEnv, wait_until};
use super::tracer::{Event, Tracees, Until};
use super::{onehold, used_store};

const LOCKS: usize = 100_000;
const NAMES: usize = 10_000;
const WAITERS: u64 = 1_000;

/// A difference of so many calls is not growth: who waits lists the tickets three times, a thousand of them in some
/// more calls than one. Each ticket alone would be a thousand.
const LISTINGS: usize = 24;

/// The calls of the process itself, until it ends with this code.
fn calls_of(mut command: Command, code: i32) -> usize {
    let mut tracees = Tracees::new(Until::Call);
    #[allow(clippy::zombie_processes, reason = "waited for as a tracee")]
    let child = tracees.spawn(&mut command);
    let root = Pid::from_raw(child.id().cast_signed());
    tracees.go_on(root, None);
    let mut stops = 0;
    loop {
        let Some((pid, event)) = tracees.next(true).unwrap() else {
            continue;
        };
        match event {
            Event::Ended(end) if pid == root => {
                assert_eq!(end, Ok(code), "{command:?}");
                // Each call is two stops.
                return stops / 2;
            }
            Event::Ended(_) | Event::GoesOn => continue,
            Event::Call if pid == root => stops += 1,
            _ => {}
        }
        tracees.go_on(pid, None);
    }
}

/// The calls of some commands in a store that has been used. How often the time zone or the last number is read moves
/// them by a few.
fn calls_in(env: &TestEnv) -> Vec<(&'static str, usize)> {
    const COMMANDS: [(&str, i32); 6] = [
        ("run x -- true", 0),
        ("run -q held -- true", 6),
        ("check -q held", 6),
        ("check -q free", 0),
        ("acquire n/new --ttl 1h --owner me", 0),
        ("release n/new --owner me", 0),
    ];
    let calls = |(words, code)| (words, calls_of(onehold(env, words), code));
    COMMANDS.map(calls).into()
}

fn copy_record(directory: &Path, names: impl Iterator<Item = usize>, record: &[u8]) {
    for name in names {
        std::fs::write(directory.join(format!("l{name}.lock")), record).unwrap();
    }
}

fn assert_alike(few: &[(&str, usize)], many: &[(&str, usize)]) {
    // A second that changes, or a look at a command that takes longer, is up to nine calls more. A listing of so many
    // locks would be hundreds, a look at each a hundred thousand.
    const SLACK: usize = 20;
    println!("{few:?}\n{many:?}");
    for ((words, few), (_, many)) in few.iter().zip(many) {
        assert!(many <= &(few + SLACK), "{words}: {few} and {many}");
    }
}

#[test]
#[ignore = "needs the shipped binary, which takes minutes to build: ONEHOLD_SHIPPED"]
fn commands_make_as_many_calls_in_a_store_of_many_locks_and_below_a_name_with_many_children() {
    let (env, _busy) = used_store();
    assert!(
        onehold(&env, "run n/first -- true")
            .status()
            .unwrap()
            .success()
    );
    let record = std::fs::read(env.store().join("held.lock")).unwrap();
    calls_in(&env);
    let few = calls_in(&env);
    copy_record(&env.store(), 0..LOCKS, &record);
    assert_alike(&few, &calls_in(&env));
    let below = env.store().join("n.d");
    std::fs::create_dir_all(&below).unwrap();
    copy_record(&below, 0..NAMES, &record);
    assert_alike(&few, &calls_in(&env));
}

/// Copies of the ticket of a waiter, kept locked as that waiter keeps its own.
fn more_tickets(queue: &Path, ticket: &Path, number: u64) -> Vec<File> {
    let content = std::fs::read(ticket).unwrap();
    let first: u64 = ticket
        .file_name()
        .unwrap()
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    let tickets = (first + 1..=first + number).map(|number| {
        let path = queue.join(format!("{number:020}"));
        std::fs::write(&path, &content).unwrap();
        let file = File::open(&path).unwrap();
        // SAFETY: a call without memory.
        let locked = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
        assert_eq!(locked, 0);
        file
    });
    tickets.collect()
}

fn tickets_in(queue: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(queue).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn allow_open_files(number: u64) {
    let limit = libc::rlimit {
        rlim_cur: number,
        rlim_max: number.max(4096),
    };
    // SAFETY: the structure is ours.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!(set, 0);
}

#[test]
#[ignore = "needs the shipped binary, which takes minutes to build: ONEHOLD_SHIPPED"]
fn waiter_behind_a_thousand_others_makes_as_many_calls_as_behind_one() {
    allow_open_files(4096);
    let (env, _busy) = used_store();
    let queue = env.store().join(".onehold/waiting/busy.lock");
    let waiter = onehold(&env, "run -q -w forever busy -- true")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let _waiter = Waiter(waiter);
    wait_until("it waits", || tickets_in(&queue).len() == 1);
    let commands = [
        ("run -q -w 0.2 busy -- true", 7),
        ("run -q busy -- true", 6),
        ("check -q busy", 6),
        ("run other -- true", 0),
    ];
    let calls = || commands.map(|(words, code)| calls_of(onehold(&env, words), code));
    let behind_one = calls();
    let ticket = tickets_in(&queue).pop().unwrap();
    let _tickets = more_tickets(&queue, &ticket, WAITERS - 1);
    let behind_many = calls();
    println!("{commands:?}\n{behind_one:?}\n{behind_many:?}");
    for ((words, _), (few, many)) in commands.iter().zip(behind_one.iter().zip(behind_many)) {
        let more = if words.contains("-w") { LISTINGS } else { 2 };
        assert!(many <= few + more, "{words}: {few} and {many}");
    }
}

/// Ended with the test.
struct Waiter(std::process::Child);

impl Drop for Waiter {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
