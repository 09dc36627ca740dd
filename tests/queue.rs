//! Those who wait: served in order of arrival, whatever happens to some of them, and seen.
#![cfg(unix)]
#![allow(missing_docs)]
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

struct Line {
    root: TempDir,
}

/// A started process, killed when the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // A wrapper passes it on to its command, which would outlive it otherwise.
        if matches!(self.0.try_wait(), Ok(None)) {
            for signal in ["-TERM", "-CONT"] {
                let _ = Command::new("kill")
                    .args([signal, &self.0.id().to_string()])
                    .stderr(Stdio::null())
                    .status();
            }
            for _ in 0..100 {
                if !matches!(self.0.try_wait(), Ok(None)) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill")
            .args([&format!("-{signal}"), &self.pid().to_string()])
            .status()
            .unwrap();
        assert!(sent.success());
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    fn finish(&mut self) -> Option<i32> {
        self.0.wait().unwrap().code()
    }
}

#[track_caller]
fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(40);
    while !done() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl Line {
    fn new() -> Self {
        Self {
            root: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn onehold(&self, args: &[&str]) -> Command {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("onehold"));
        command
            .args(args)
            .env("ONEHOLD_DIR", self.path("store"))
            .env_remove("ONEHOLD_HOLDS")
            .current_dir(self.root.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    fn start(&self, args: &[&str]) -> Running {
        Running(self.onehold(args).spawn().unwrap())
    }

    fn lock(&self, name: &str) -> Value {
        let output = self
            .onehold(&["check", "--json", name])
            .stdout(Stdio::piped())
            .output()
            .unwrap();
        let mut object: Value = serde_json::from_slice(&output.stdout).unwrap();
        object["lock"].take()
    }

    fn waiting(&self) -> usize {
        self.lock("x")["waiters"].as_array().unwrap().len()
    }

    /// Holds `x` until [`open`](Self::open).
    fn hold(&self) -> Running {
        let script = "echo > held; while test -e held && ! test -e open; do sleep 0.005; done";
        let holder = self.start(&["run", "x", "--", "sh", "-c", script]);
        eventually("it is held", || self.path("held").exists());
        holder
    }

    fn open(&self) {
        fs::write(self.path("open"), "").unwrap();
    }

    /// So many who wait, each after the one before; the command of each says its number.
    fn stand_in_line(&self, count: usize) -> Vec<Running> {
        let before = self.waiting();
        (0..count)
            .map(|number| {
                let script = format!("echo {number} >> served");
                let waiter = self.start(&["run", "-w", "forever", "x", "--", "sh", "-c", &script]);
                eventually("it stands in line", || {
                    self.waiting() == before + number + 1
                });
                waiter
            })
            .collect()
    }

    fn served(&self) -> Vec<usize> {
        fs::read_to_string(self.path("served"))
            .unwrap_or_default()
            .lines()
            .map(|line| line.parse().unwrap())
            .collect()
    }

    /// All that is left of the queues of the store.
    fn left(&self) -> Vec<PathBuf> {
        fs::read_dir(self.path("store/.onehold/waiting"))
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().path())
            .collect()
    }
}

#[test]
fn sixty_four_waiters_are_served_in_order_of_arrival() {
    let line = Line::new();
    let mut holder = line.hold();
    let mut waiters = line.stand_in_line(64);
    line.open();
    holder.finish();
    for waiter in &mut waiters {
        assert_eq!(waiter.finish(), Some(0));
    }
    assert_eq!(line.served(), (0..64).collect::<Vec<_>>());
    assert!(line.left().is_empty());
}

#[test]
fn the_order_stays_when_every_third_waiter_is_killed() {
    let line = Line::new();
    let mut holder = line.hold();
    let mut waiters = line.stand_in_line(64);
    for waiter in waiters.iter_mut().step_by(3) {
        waiter.kill();
    }
    line.open();
    holder.finish();
    for (number, waiter) in waiters.iter_mut().enumerate() {
        if number % 3 != 0 {
            assert_eq!(waiter.finish(), Some(0));
        }
    }
    let living: Vec<usize> = (0..64).filter(|number| number % 3 != 0).collect();
    assert_eq!(line.served(), living);
    let swept = line.onehold(&["cleanup"]).status().unwrap();
    assert!(swept.success());
    assert!(line.left().is_empty());
}

#[test]
fn a_stopped_first_waiter_loses_its_turn_to_the_next_and_is_served_later() {
    let line = Line::new();
    let mut holder = line.hold();
    let mut waiters = line.stand_in_line(8);
    waiters[0].signal("STOP");
    line.open();
    holder.finish();
    for waiter in &mut waiters[1..] {
        assert_eq!(waiter.finish(), Some(0));
    }
    assert_eq!(line.served(), (1..8).collect::<Vec<_>>());
    waiters[0].signal("CONT");
    assert_eq!(waiters[0].finish(), Some(0));
    assert_eq!(line.served(), [1, 2, 3, 4, 5, 6, 7, 0]);
}

#[test]
fn nobody_barges_in_past_a_waiter_and_a_promise_holds_for_5_seconds() {
    let line = Line::new();
    let mut holder = line.hold();
    let waiters = line.stand_in_line(1);
    waiters[0].signal("STOP");
    line.open();
    holder.finish();
    let lock = line.lock("x");
    assert_eq!(
        (&lock["state"], &lock["reason"]),
        (&"held".into(), &"promised".into())
    );
    assert_eq!(lock["pid"], waiters[0].pid());
    let barge = || {
        let status = line.onehold(&["run", "x", "--", "true"]).status().unwrap();
        status.code().unwrap()
    };
    let promised = Instant::now();
    assert_eq!(barge(), 6);
    eventually("the promise runs out", || barge() == 0);
    assert!(promised.elapsed() >= Duration::from_secs(5));
}

#[test]
fn a_stopped_waiter_that_goes_on_is_not_passed_over_any_more() {
    let line = Line::new();
    let mut holder = line.hold();
    let waiters = line.stand_in_line(1);
    waiters[0].signal("STOP");
    line.open();
    holder.finish();
    // Who barges in after five seconds holds it while the first one goes on.
    fs::remove_file(line.path("open")).unwrap();
    let script = "echo > again; while test -e again && ! test -e open; do sleep 0.005; done";
    let mut second = None;
    eventually("the promise runs out", || {
        let mut tried = line.start(&["run", "x", "--", "sh", "-c", script]);
        eventually("it is refused or runs", || {
            line.path("again").exists() || tried.0.try_wait().unwrap().is_some()
        });
        second = Some(tried);
        line.path("again").exists()
    });
    waiters[0].signal("CONT");
    let promises = line.path("store/.onehold/waiting/x.lock/promises");
    eventually("it comes by", || !promises.exists());
    drop(second);
}

#[test]
fn force_barges_in_on_a_persons_word() {
    let line = Line::new();
    let mut holder = line.hold();
    let waiters = line.stand_in_line(1);
    waiters[0].signal("STOP");
    line.open();
    holder.finish();
    let forced = line
        .onehold(&["run", "--force", "--yes", "x", "--", "true"])
        .status()
        .unwrap();
    assert_eq!(forced.code(), Some(0));
}

#[test]
fn a_lease_that_ran_out_and_is_promised_to_another_is_nobodys_any_more() {
    let line = Line::new();
    let acquire = ["acquire", "x", "--ttl", "1s", "--owner", "me"];
    assert!(line.onehold(&acquire).status().unwrap().success());
    let waiters = line.stand_in_line(1);
    waiters[0].signal("STOP");
    eventually("it is promised", || line.lock("x")["reason"] == "promised");
    assert_eq!(line.onehold(&acquire).status().unwrap().code(), Some(6));
    assert_eq!(line.lock("x")["hold"], Value::Null);
}

#[test]
fn what_is_no_ticket_stands_in_nobodys_way() {
    let line = Line::new();
    let holder = line.hold();
    let waiters = line.stand_in_line(1);
    let tickets = line.path("store/.onehold/waiting/x.lock");
    let ticket = |number: u64| tickets.join(format!("{number:020}"));
    let _socket = std::os::unix::net::UnixListener::bind(ticket(0)).unwrap();
    let made = Command::new("mkfifo").arg(ticket(10)).status().unwrap();
    assert!(made.success());
    fs::create_dir(ticket(11)).unwrap();
    std::os::unix::fs::symlink("/dev/zero", ticket(12)).unwrap();
    fs::write(ticket(13), "nobody's\n").unwrap();
    fs::write(ticket(u64::MAX), "").unwrap();
    assert_eq!(line.lock("x")["waiters"].as_array().unwrap().len(), 1);
    let mut late = line.start(&["run", "-w", "30s", "x", "--", "true"]);
    drop(holder);
    drop(waiters);
    assert_eq!(late.finish(), Some(0));
    let once_more = line.onehold(&["run", "x", "--", "true"]).status().unwrap();
    assert!(once_more.success());
}

#[test]
fn who_gives_up_leaves_the_line_at_once() {
    let line = Line::new();
    let _holder = line.hold();
    let mut impatient = line.start(&["run", "-w", "300ms", "x", "--", "true"]);
    let waiters = line.stand_in_line(1);
    assert_eq!(impatient.finish(), Some(7));
    assert_eq!(line.waiting(), 1);
    let places = line.lock("x")["waiters"][0].clone();
    assert_eq!(
        (&places["pid"], &places["place"]),
        (&waiters[0].pid().into(), &1.into())
    );
}

#[test]
fn a_signal_ends_a_wait_as_it_ends_any_program() {
    use std::os::unix::process::ExitStatusExt;
    let line = Line::new();
    let _holder = line.hold();
    for (signal, number, said) in [
        ("INT", 2, "onehold: cancelled: nothing was changed\n"),
        ("TERM", 15, ""),
    ] {
        let mut command = line.onehold(&["run", "-w", "forever", "x", "--", "touch", "ran"]);
        let waiter = Running(command.stderr(Stdio::piped()).spawn().unwrap());
        eventually("it stands in line", || line.waiting() == 1);
        let mut waiter = waiter;
        let mut stderr = BufReader::new(waiter.0.stderr.take().unwrap());
        let mut told = String::new();
        stderr.read_line(&mut told).unwrap();
        assert!(told.starts_with("onehold: waiting: "), "{told}");
        eventually("it sleeps", || {
            fs::read_to_string(format!("/proc/{}/syscall", waiter.pid()))
                .is_ok_and(|call| call.starts_with("73 "))
        });
        waiter.signal(signal);
        assert_eq!(waiter.0.wait().unwrap().signal(), Some(number), "{signal}");
        assert_eq!(line.waiting(), 0, "{signal}");
        told.clear();
        stderr.read_to_string(&mut told).unwrap();
        assert_eq!(told, said);
    }
    assert!(!line.path("ran").exists());
}

#[test]
fn on_a_terminal_a_wait_is_one_living_line() {
    let line = Line::new();
    let _holder = line.hold();
    let program = assert_cmd::cargo::cargo_bin!("onehold");
    let output = Command::new("script")
        .args([
            "-qec",
            &format!("{} run -w 2500ms x -- true", program.display()),
            "/dev/null",
        ])
        .env("ONEHOLD_DIR", line.path("store"))
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let seen = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(7), "{seen}");
    let (before, _) = seen.split_once("in vain").unwrap();
    assert!(
        before.contains("onehold: waiting 0s of 2s, place 1 of 1, Ctrl-C to cancel: `x` is"),
        "{seen}"
    );
    assert!(
        before.contains("onehold: waiting 1s of 2s"),
        "told anew: {seen}"
    );
}

#[test]
fn those_who_wait_are_seen_in_order_with_what_they_want() {
    let line = Line::new();
    let _holder = line.hold();
    let waiters = line.stand_in_line(3);
    let lock = line.lock("x");
    for (index, waiter) in waiters.iter().enumerate() {
        let seen = &lock["waiters"][index];
        assert_eq!(seen["pid"], waiter.pid());
        assert_eq!(seen["place"], index + 1);
        assert_eq!(seen["command"][2], format!("echo {index} >> served"));
        assert!(seen["since"].is_string() && seen["hostname"].is_string());
    }
    let said = |args: &[&str]| {
        let output = line.onehold(args).stdout(Stdio::piped()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(said(&["check", "x"]).ends_with("  3 wait for it\n"));
    let verbose = said(&["check", "-v", "x"]);
    let first = format!("  1. process {} (sh) on ", waiters[0].pid());
    assert!(
        verbose.contains(&first) && verbose.contains(", who waits since "),
        "{verbose}"
    );
    let listed = said(&["list"]);
    assert!(
        listed.contains("WAITING") && listed.contains("  3"),
        "{listed}"
    );
}

#[test]
fn a_lock_that_is_only_promised_is_listed() {
    let line = Line::new();
    let mut holder = line.hold();
    let waiters = line.stand_in_line(1);
    waiters[0].signal("STOP");
    line.open();
    holder.finish();
    let output = line
        .onehold(&["list", "--json"])
        .stdout(Stdio::piped())
        .output()
        .unwrap();
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(object["locks"][0]["name"], "x");
    assert_eq!(object["locks"][0]["reason"], "promised");
}

/// How often a process has been given the processor or has given it up.
fn context_switches(pid: u32) -> u64 {
    fs::read_to_string(format!("/proc/{pid}/status"))
        .unwrap()
        .lines()
        .filter(|line| line.contains("ctxt_switches"))
        .map(|line| line.rsplit('\t').next().unwrap().parse::<u64>().unwrap())
        .sum()
}

/// Whether it is in flock(2) and has told that it waits, for which it starts a thread.
fn sleeps_for_long(waiter: &Running) -> bool {
    let read = |file| fs::read_to_string(format!("/proc/{}/{file}", waiter.pid()));
    read("status").is_ok_and(|status| status.contains("\nThreads:\t2\n"))
        && read("syscall").is_ok_and(|call| call.starts_with("73 "))
}

#[test]
fn nobody_is_woken_while_nothing_happens_but_the_first_two_every_5_seconds() {
    let line = Line::new();
    let _holder = line.hold();
    let waiters = line.stand_in_line(8);
    eventually("all sleep", || waiters.iter().all(sleeps_for_long));
    let before: Vec<u64> = waiters
        .iter()
        .map(|waiter| context_switches(waiter.pid()))
        .collect();
    std::thread::sleep(Duration::from_secs(6));
    for (index, waiter) in waiters.iter().enumerate() {
        let woken = context_switches(waiter.pid()) - before[index];
        // One alarm, and a moment of the processor or two for the look.
        let most = if index < 2 { 12 } else { 0 };
        assert!(woken <= most, "waiter {index}: {woken}");
    }
}

#[test]
fn waiting_for_a_section_does_not_hold_back_its_tasks() {
    let line = Line::new();
    let script = "echo > held; while test -e held && ! test -e open; do sleep 0.005; done";
    let mut task = line.start(&["run", "section/task", "--", "sh", "-c", script]);
    eventually("it is held", || line.path("held").exists());
    let mut section = line.start(&["run", "-w", "forever", "section", "--", "true"]);
    eventually("it waits", || {
        line.lock("section")["waiters"].as_array().unwrap().len() == 1
    });
    let other = line
        .onehold(&["run", "section/other", "--", "true"])
        .status()
        .unwrap();
    assert_eq!(other.code(), Some(0));
    line.open();
    assert_eq!(task.finish(), Some(0));
    assert_eq!(section.finish(), Some(0));
    assert!(line.left().is_empty());
}

#[test]
fn two_who_wait_for_each_other_end_by_their_limits_and_are_told_what_they_hold() {
    let line = Line::new();
    let say = |own: &str, others: &str| {
        format!(
            "echo > {own}; until test -e {others}; do sleep 0.005; done; exec onehold run -w 1s {others} -- true"
        )
    };
    let start = |own: &str, others: &str| {
        let bin = assert_cmd::cargo::cargo_bin!("onehold")
            .parent()
            .unwrap()
            .to_owned();
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let mut command = line.onehold(&["run", own, "--", "sh", "-c", &say(own, others)]);
        command
            .env("PATH", path)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let (one, other) = (start("a", "b"), start("b", "a"));
    for (own, others, child) in [("a", "b", one), ("b", "a", other)] {
        let output = child.wait_with_output().unwrap();
        // The first to give up lets the other in, if that is still waiting.
        assert!(
            [Some(0), Some(7)].contains(&output.status.code()),
            "{output:?}"
        );
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            said.contains(&format!("onehold: waiting: `{others}` is held by")),
            "{said}"
        );
        assert!(
            said.contains(&format!("; meanwhile `{own}` stays held\n")),
            "{said}"
        );
    }
}

#[test]
fn a_wait_goes_on_where_inotify_and_pidfds_have_run_out() {
    for calls in [
        "inotify_init1:error=EMFILE",
        "inotify_add_watch:error=ENOSPC",
        "pidfd_open:error=EPERM",
    ] {
        let line = Line::new();
        let acquired = line
            .onehold(&["acquire", "x", "--ttl", "1h", "--owner", "me"])
            .status()
            .unwrap();
        assert!(acquired.success());
        let program = assert_cmd::cargo::cargo_bin!("onehold");
        let mut command = Command::new("strace");
        command
            .args(["-f", "-qq", "-o", "/dev/null", "-e"])
            .arg(format!("inject={calls}"))
            .arg(program)
            .args(["run", "-w", "1h", "x", "--", "sh", "-c", "echo 1 >> served"])
            .env("ONEHOLD_DIR", line.path("store"))
            .current_dir(line.root.path())
            .stderr(Stdio::null());
        let mut waiter = Running(command.spawn().unwrap());
        eventually("it stands in line", || line.waiting() == 1);
        let released = line
            .onehold(&["release", "x", "--owner", "me"])
            .status()
            .unwrap();
        assert!(released.success());
        assert_eq!(waiter.finish(), Some(0), "{calls}");
        assert_eq!(line.served(), [1], "{calls}");
    }
}

#[test]
fn a_path_lock_has_waiters_and_leaves_nothing_beside_it() {
    let line = Line::new();
    fs::create_dir(line.path("project")).unwrap();
    let script = "echo > held; while test -e held && ! test -e open; do sleep 0.005; done";
    let mut holder = line.start(&["run", "./project/lock", "--", "sh", "-c", script]);
    eventually("it is held", || line.path("held").exists());
    let mut waiters: Vec<Running> = (0..8)
        .map(|_| {
            line.start(&[
                "run",
                "-w",
                "forever",
                "./project/lock",
                "--",
                "sh",
                "-c",
                "echo 1 >> served",
            ])
        })
        .collect();
    eventually("all wait", || {
        waiters.iter().all(|waiter| {
            fs::read_to_string(format!("/proc/{}/syscall", waiter.pid()))
                .is_ok_and(|call| call.starts_with("73 "))
        })
    });
    assert_eq!(fs::read_dir(line.path("project")).unwrap().count(), 1);
    line.open();
    holder.finish();
    for waiter in &mut waiters {
        assert_eq!(waiter.finish(), Some(0));
    }
    assert_eq!(line.served().len(), 8);
    assert_eq!(fs::read_dir(line.path("project")).unwrap().count(), 0);
}

#[test]
#[ignore = "long: a waiter further back looks once a minute"]
fn a_second_waiter_that_is_stopped_before_it_is_the_first_holds_nobody_up_for_good() {
    let line = Line::new();
    let mut holder = line.hold();
    let mut waiters = line.stand_in_line(3);
    waiters[1].signal("STOP");
    line.open();
    holder.finish();
    assert_eq!(waiters[0].finish(), Some(0));
    let released = Instant::now();
    assert_eq!(waiters[2].finish(), Some(0));
    assert!(released.elapsed() < Duration::from_secs(90));
    assert_eq!(line.served(), [0, 2]);
}

#[test]
#[ignore = "long: a thousand waiters for 10 s"]
fn a_thousand_waiters_cost_nothing_and_one_release_wakes_two() {
    let line = Line::new();
    let mut holder = line.hold();
    let waiters: Vec<Running> = (0..1000)
        .map(|_| line.start(&["run", "-w", "forever", "x", "--", "sh", "-c", "sleep 1000"]))
        .collect();
    eventually("all stand in line", || line.waiting() == 1000);
    let ticks = || -> u64 {
        waiters
            .iter()
            .map(|waiter| {
                let stat = fs::read_to_string(format!("/proc/{}/stat", waiter.pid())).unwrap();
                let fields: Vec<&str> = stat
                    .rsplit_once(')')
                    .unwrap()
                    .1
                    .split_whitespace()
                    .collect();
                fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
            })
            .sum()
    };
    eventually("all sleep", || waiters.iter().all(sleeps_for_long));
    let before = ticks();
    std::thread::sleep(Duration::from_secs(10));
    // 10 ms each: all of them together within 0.1 s.
    assert!(ticks() - before <= 10, "{} ticks", ticks() - before);
    let switches = || -> Vec<u64> {
        waiters
            .iter()
            .map(|waiter| context_switches(waiter.pid()))
            .collect()
    };
    let before = switches();
    line.open();
    holder.finish();
    eventually("the first is served", || line.waiting() == 999);
    let woken = switches()
        .iter()
        .zip(&before)
        .filter(|(now, before)| now > before)
        .count();
    assert!(woken <= 2, "{woken}");
}
