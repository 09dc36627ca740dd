//! Many processes on few locks while others are killed, stopped and continued at random; every
//! critical section writes down from when to when it was in, and a checker looks for overlaps,
//! numbers that do not grow, stuck locks and files that are left. Ten seconds, or as many as
//! `STRESS_SECONDS` says: `STRESS_SECONDS=3600 cargo test --test stress`.
#![cfg(target_os = "linux")]
#![allow(missing_docs)]
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used
)]

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use rustix::time::{ClockId, clock_gettime};

/// Sections with their tasks, and locks by themselves.
const NAMES: [&str; 8] = ["a", "a/1", "a/2", "a/2/x", "b", "b/1", "c", "d"];
const WORKERS: usize = 10;

fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
}

/// A generator that needs no seed worth the name: what happens is up to the scheduler.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }
}

/// A process for the log: pids come round within a minute.
fn identity(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    Some(format!("{pid}.{}", fields.split_whitespace().nth(19)?))
}

fn append(log: &Path, line: &str) {
    let mut file = fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(log)
        .unwrap();
    // One write: nobody's line is torn by another's.
    file.write_all(line.as_bytes()).unwrap();
}

/// The command of a `run`: this very program, called again.
#[test]
fn critical_section() {
    let Ok(log) = std::env::var("STRESS_LOG") else {
        return;
    };
    let log = Path::new(&log);
    let (name, hold) = (
        std::env::var("ONEHOLD_NAME").unwrap(),
        std::env::var("ONEHOLD_HOLD").unwrap(),
    );
    let pid = std::process::id();
    let own = identity(pid).unwrap();
    append(log, &format!("in {own} {} {name} {hold}\n", now()));
    std::thread::sleep(Duration::from_micros(u64::from(pid % 4000)));
    append(log, &format!("out {own} {}\n", now()));
}

struct Arena {
    root: tempfile::TempDir,
    over: AtomicBool,
    wrappers: Mutex<Vec<u32>>,
    calls: AtomicUsize,
}

impl Arena {
    fn log(&self) -> PathBuf {
        self.root.path().join("log")
    }

    fn onehold(&self) -> Command {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("onehold"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ONEHOLD_") {
                command.env_remove(name);
            }
        }
        command
            .env("ONEHOLD_DIR", self.root.path().join("store"))
            .env("HOME", self.root.path())
            .env_remove("XDG_CONFIG_HOME")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        command
    }

    fn work(&self, seed: usize) {
        let mut dice = Dice(0x9E37_79B9_7F4A_7C15 ^ (seed as u64 + 1) << 32);
        while !self.over.load(Ordering::Relaxed) {
            let name = NAMES[dice.below(NAMES.len())];
            self.calls.fetch_add(1, Ordering::Relaxed);
            match dice.below(8) {
                0 => self.lease(name, &mut dice),
                1 => {
                    let _ = self.onehold().arg("cleanup").status();
                }
                options => self.run(name, options),
            }
        }
    }

    fn run(&self, name: &str, options: usize) {
        let mut command = self.onehold();
        command.args(["run", name, "-w", ["0", "20ms", "1s"][options % 3]]);
        match options {
            6 => command.arg("--close"),
            7 => command.args(["--ttl", "1h"]),
            _ => &mut command,
        };
        command
            .arg("--")
            .arg(std::env::current_exe().unwrap())
            .args(["critical_section", "--exact"])
            .env("STRESS_LOG", self.log())
            .stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        self.wrappers.lock().unwrap().push(child.id());
        child.wait().unwrap();
        let mut wrappers = self.wrappers.lock().unwrap();
        wrappers.retain(|pid| *pid != child.id());
    }

    /// Held by time alone, and given up before that is over.
    fn lease(&self, name: &str, dice: &mut Dice) {
        let output = self
            .onehold()
            .args(["acquire", name, "--ttl", "400ms"])
            .output()
            .unwrap();
        // It may have been long ago that the number came out.
        let from = now();
        let Ok(hold) = String::from_utf8(output.stdout)
            .unwrap()
            .trim()
            .parse::<u64>()
        else {
            return;
        };
        let check = self
            .onehold()
            .args(["check", "--json", name])
            .output()
            .unwrap();
        let said = String::from_utf8(check.stdout).unwrap();
        if !said.contains(&format!("\"hold\":{hold},")) || !said.contains("\"state\":\"held\"") {
            return;
        }
        std::thread::sleep(Duration::from_millis(dice.below(4) as u64));
        let to = now();
        if to - from < 100_000_000 {
            let id = format!("lease-{hold}");
            append(
                &self.log(),
                &format!("in {id} {from} {name} {hold}\nout {id} {to}\n"),
            );
        }
        if dice.below(3) > 0 {
            let hold = hold.to_string();
            let _ = self
                .onehold()
                .args(["release", name, "--hold", &hold])
                .status();
        }
    }

    /// Kills and stops whom it finds: wrappers and their commands.
    fn rage(&self) -> usize {
        let mut dice = Dice(0x2545_F491_4F6C_DD1D);
        let mut signals = 0;
        while !self.over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(3));
            let victim = {
                // What is in the list has not been waited for, so that its pid is its own.
                let wrappers = self.wrappers.lock().unwrap();
                if wrappers.is_empty() {
                    continue;
                }
                let wrapper = wrappers[dice.below(wrappers.len())];
                let victim = match dice.below(2) {
                    0 => Some(wrapper),
                    _ => only_child(wrapper),
                };
                let Some(victim) = victim else { continue };
                let signal = match dice.below(4) {
                    0 | 1 => Signal::KILL,
                    _ => Signal::STOP,
                };
                if signal == Signal::KILL
                    && let Some(id) = identity(victim)
                {
                    append(&self.log(), &format!("kill {id} {}\n", now()));
                }
                send(victim, signal);
                (signal == Signal::STOP).then_some(victim)
            };
            signals += 1;
            if let Some(stopped) = victim {
                std::thread::sleep(Duration::from_millis(dice.below(20) as u64));
                send(stopped, Signal::CONT);
            }
        }
        signals
    }
}

fn send(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    let _ = rustix::process::kill_process(pid, signal);
}

fn only_child(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

struct Interval {
    name: String,
    hold: u64,
    from: u64,
    /// For those who were killed, when they certainly still were in.
    to: u64,
}

/// What the log says, in order of beginning.
fn intervals(log: &str) -> Vec<Interval> {
    let mut open: HashMap<&str, Interval> = HashMap::new();
    let mut done = Vec::new();
    for line in log.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let at: u64 = words[2].parse().unwrap();
        match words[0] {
            "in" => {
                let interval = Interval {
                    name: words[3].to_owned(),
                    hold: words[4].parse().unwrap(),
                    from: at,
                    to: at,
                };
                done.extend(open.insert(words[1], interval));
            }
            _ => {
                if let Some(mut interval) = open.remove(words[1]) {
                    interval.to = at.max(interval.from);
                    done.push(interval);
                }
            }
        }
    }
    done.extend(open.into_values());
    done.sort_by_key(|interval| interval.from);
    done
}

/// Whether a name is another, or covers it.
fn excludes(one: &str, other: &str) -> bool {
    let covers = |above: &str, below: &str| {
        below
            .strip_prefix(above)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    covers(one, other) || covers(other, one)
}

/// Overlaps and numbers out of order.
fn violations(intervals: &[Interval]) -> Vec<String> {
    let mut found = Vec::new();
    let mut last: HashMap<&str, u64> = HashMap::new();
    for (at, one) in intervals.iter().enumerate() {
        for other in intervals[at + 1..]
            .iter()
            .take_while(|other| other.from < one.to)
        {
            if excludes(&one.name, &other.name) && one.hold != other.hold {
                found.push(format!(
                    "{} ({}) beside {} ({})",
                    one.name, one.hold, other.name, other.hold
                ));
            }
        }
        let before = last.insert(&one.name, one.hold).unwrap_or(0);
        if one.hold <= before {
            found.push(format!("{}: {} after {before}", one.name, one.hold));
        }
    }
    found
}

#[test]
fn nobody_is_in_beside_another_whoever_is_killed_or_stopped() {
    let seconds = std::env::var("STRESS_SECONDS")
        .ok()
        .and_then(|seconds| seconds.parse().ok())
        .unwrap_or(10);
    let arena = Arena {
        root: tempfile::tempdir().unwrap(),
        over: AtomicBool::new(false),
        wrappers: Mutex::default(),
        calls: AtomicUsize::new(0),
    };
    fs::write(arena.log(), "").unwrap();
    let signals = std::thread::scope(|scope| {
        let rage = scope.spawn(|| arena.rage());
        for seed in 0..WORKERS {
            let arena = &arena;
            scope.spawn(move || arena.work(seed));
        }
        std::thread::sleep(Duration::from_secs(seconds));
        arena.over.store(true, Ordering::Relaxed);
        rage.join().unwrap()
    });
    // Nothing is stuck, whatever was left behind.
    let begun = Instant::now();
    for name in NAMES {
        let status = arena
            .onehold()
            .args(["run", name, "-w", "20s", "--", "true"])
            .status();
        assert!(status.unwrap().success(), "{name} is stuck");
    }
    assert!(begun.elapsed() < Duration::from_secs(20));
    let cleaned = arena.onehold().arg("cleanup").status().unwrap();
    assert!(cleaned.success());
    let left: Vec<_> = fs::read_dir(arena.root.path().join("store"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .filter(|name| name != ".onehold")
        .collect();
    assert!(left.is_empty(), "{left:?}");
    let log = fs::read_to_string(arena.log()).unwrap();
    let intervals = intervals(&log);
    let found = violations(&intervals);
    println!(
        "{} calls, {} critical sections, {signals} signals, {} violations",
        arena.calls.load(Ordering::Relaxed),
        intervals.len(),
        found.len()
    );
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(intervals.len() > 100 && signals > 100);
}

#[test]
fn the_checker_finds_what_it_is_to_find() {
    let found = |log: &str| violations(&intervals(log)).len();
    assert_eq!(found("in 1 10 a 1\nout 1 20\nin 2 20 a 2\nout 2 30\n"), 0);
    assert_eq!(found("in 1 10 a 1\nin 2 15 a 2\nout 1 20\nout 2 30\n"), 1);
    assert_eq!(found("in 1 10 a 1\nin 2 15 a/1 2\nout 1 20\nout 2 30\n"), 1);
    assert_eq!(
        found("in 1 10 a/1 1\nin 2 15 a/2 2\nout 1 20\nout 2 30\n"),
        0
    );
    assert_eq!(found("in 1 10 a 1\nkill 1 20\nin 2 15 a 2\nout 2 30\n"), 1);
    assert_eq!(found("in 1 10 a 2\nout 1 20\nin 2 20 a 1\nout 2 30\n"), 1);
    assert_eq!(
        found("in 1 10 a 1\nin 2 15 a 2\nout 2 30\n"),
        0,
        "when it ended nobody knows"
    );
}
