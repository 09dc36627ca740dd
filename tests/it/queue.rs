//! Waiters: served in order of arrival, whatever happens to some of them, and shown to others.

use std::fs;
#[cfg(target_os = "linux")]
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[cfg(target_os = "linux")]
use crate::harness::CONTENDERS;
use crate::harness::{
    Running, Signal, TestEnv, exit_code, json_object, program, stderr, wait_until,
};
use assert_cmd::prelude::OutputAssertExt;
use predicates::str::{contains, starts_with};
use serde_json::Value;

/// Starts one waiter for `x` after the other; the command of each writes its number.
fn start_waiters(env: &TestEnv, count: usize) -> Vec<Running> {
    let before = env.number_of_waiters("x");
    (0..count)
        .map(|number| {
            let script = format!("echo {number} >> served");
            let waiter = env.start(["run", "-w", "forever", "x", "--", "sh", "-c", &script]);
            wait_until("the waiter is in the queue", || {
                env.number_of_waiters("x") == before + number + 1
            });
            waiter
        })
        .collect()
}

/// A queue of `count` waiters whose first is stopped when the lock is released, so that the lock is
/// reserved for it.
fn start_with_stopped_first(env: &TestEnv, count: usize) -> Vec<Running> {
    let mut holder = env.hold(&["x"]);
    let waiters = start_waiters(env, count);
    waiters[0].signal(Signal::STOP);
    env.end();
    holder.finish();
    waiters
}

/// Numbers of the waiters whose commands have run, in order.
fn served(env: &TestEnv) -> Vec<usize> {
    fs::read_to_string(env.path("served"))
        .unwrap_or_default()
        .lines()
        .map(|line| line.parse().unwrap())
        .collect()
}

/// Since when the lock has been reserved for which ticket.
fn reservations(env: &TestEnv) -> serde_json::Map<String, Value> {
    fs::read(env.path("store/.onehold/waiting/reserved"))
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok())
        .unwrap_or_default()
}

/// Locks the directory of a store, as any process can that may read it.
#[cfg(target_os = "linux")]
fn lock_store_directory(env: &TestEnv) -> fs::File {
    env.done(["run", "x", "--", "true"]);
    let directory = fs::File::open(env.store()).unwrap();
    rustix::fs::flock(&directory, rustix::fs::FlockOperation::LockExclusive).unwrap();
    directory
}

fn try_run(env: &TestEnv) -> i32 {
    env.code(["run", "x", "--", "true"])
}

#[track_caller]
fn assert_no_queue_is_left(env: &TestEnv) {
    assert_eq!(env.left_in_queues(), [""; 0]);
}

/// How often a process has been given a CPU or has given it up.
#[cfg(target_os = "linux")]
fn context_switches(pid: u32) -> u64 {
    fs::read_to_string(format!("/proc/{pid}/status"))
        .unwrap()
        .lines()
        .filter(|line| line.contains("ctxt_switches"))
        .map(|line| line.rsplit('\t').next().unwrap().parse::<u64>().unwrap())
        .sum()
}

/// Whether a waiter is in flock(2) and has reported that it waits, for which it starts a thread.
#[cfg(target_os = "linux")]
fn is_settled(waiter: &Running) -> bool {
    fs::read_to_string(format!("/proc/{}/status", waiter.pid()))
        .is_ok_and(|status| status.contains("\nThreads:\t2\n"))
        && crate::harness::is_blocked_in_flock(waiter.pid())
}

#[test]
fn sixty_four_waiters_are_served_in_order_of_arrival() {
    let env = TestEnv::new();
    let mut holder = env.hold(&["x"]);
    let mut waiters = start_waiters(&env, 64);
    env.end();
    holder.finish();
    for waiter in &mut waiters {
        assert_eq!(waiter.finish(), 0);
    }
    assert_eq!(served(&env), (0..64).collect::<Vec<_>>());
    assert_no_queue_is_left(&env);
}

#[test]
fn waiters_keep_their_order_when_every_third_is_killed() {
    let env = TestEnv::new();
    let mut holder = env.hold(&["x"]);
    let mut waiters = start_waiters(&env, 64);
    for waiter in waiters.iter_mut().step_by(3) {
        waiter.kill();
    }
    env.end();
    holder.finish();
    for (number, waiter) in waiters.iter_mut().enumerate() {
        if number % 3 != 0 {
            assert_eq!(waiter.finish(), 0);
        }
    }
    let alive: Vec<usize> = (0..64).filter(|number| number % 3 != 0).collect();
    assert_eq!(served(&env), alive);
    env.done(["cleanup"]);
    assert_no_queue_is_left(&env);
}

#[test]
fn stopped_first_waiter_is_served_after_the_others() {
    let env = TestEnv::new();
    let mut waiters = start_with_stopped_first(&env, 8);
    for waiter in &mut waiters[1..] {
        assert_eq!(waiter.finish(), 0);
    }
    assert_eq!(served(&env), (1..8).collect::<Vec<_>>());
    waiters[0].signal(Signal::CONT);
    assert_eq!(waiters[0].finish(), 0);
    assert_eq!(served(&env), [1, 2, 3, 4, 5, 6, 7, 0]);
}

#[test]
fn free_lock_is_reserved_for_first_waiter_for_5s() {
    let env = TestEnv::new();
    let waiters = start_with_stopped_first(&env, 1);
    let lock = env.lock("x");
    assert_eq!(
        (&lock["state"], &lock["reason"]),
        (&"held".into(), &"reserved".into())
    );
    assert_eq!(lock["pid"], waiters[0].pid());
    let reserved = Instant::now();
    assert_eq!(try_run(&env), 6);
    wait_until("the reservation has ended", || try_run(&env) == 0);
    assert!(reserved.elapsed() >= Duration::from_secs(5));
}

#[test]
fn stopped_waiter_that_continues_regains_its_turn() {
    let env = TestEnv::new();
    let waiters = start_with_stopped_first(&env, 1);
    // Another takes the lock after five seconds and holds it while the waiter continues.
    fs::remove_file(env.path("end")).unwrap();
    let script = "echo > again; while test -e again && ! test -e end; do sleep 0.005; done";
    let mut second = None;
    assert_eq!(try_run(&env), 6);
    assert_eq!(reservations(&env).len(), 1);
    wait_until("another process holds the lock", || {
        let mut attempt = env.start(["run", "x", "--", "sh", "-c", script]);
        wait_until("the attempt is refused or its command runs", || {
            env.path("again").exists() || attempt.has_ended()
        });
        second = Some(attempt);
        env.path("again").exists()
    });
    waiters[0].signal(Signal::CONT);
    wait_until("the waiter has its turn again", || {
        reservations(&env).is_empty()
    });
    drop(second);
}

#[test]
fn force_skips_the_queue() {
    let env = TestEnv::new();
    let _waiters = start_with_stopped_first(&env, 1);
    let forced = env.code(["run", "--force", "--yes", "x", "--", "true"]);
    assert_eq!(forced, 0);
}

#[test]
fn expired_lease_that_is_reserved_for_a_waiter_cannot_be_acquired_again() {
    let env = TestEnv::new();
    let acquire = ["acquire", "x", "--ttl", "1s", "--owner", "me"];
    env.done(acquire);
    let waiters = start_waiters(&env, 1);
    waiters[0].signal(Signal::STOP);
    wait_until("the lock is reserved", || {
        env.lock("x")["reason"] == "reserved"
    });
    assert_eq!(env.code(acquire), 6);
    assert_eq!(env.lock("x")["hold"], Value::Null);
}

#[test]
fn files_that_are_not_tickets_do_not_block_the_queue() {
    let env = TestEnv::new();
    let holder = env.hold(&["x"]);
    let waiters = start_waiters(&env, 1);
    let tickets = env.path("store/.onehold/waiting/x.lock");
    let ticket = |number: u64| tickets.join(format!("{number:020}"));
    let _socket = std::os::unix::net::UnixListener::bind(ticket(0)).unwrap();
    let made = Command::new("mkfifo").arg(ticket(10)).status().unwrap();
    assert!(made.success());
    fs::create_dir(ticket(11)).unwrap();
    std::os::unix::fs::symlink("/dev/zero", ticket(12)).unwrap();
    fs::write(ticket(13), "not a ticket\n").unwrap();
    fs::write(ticket(u64::MAX), "").unwrap();
    assert_eq!(env.number_of_waiters("x"), 1);
    let mut late = env.start(["run", "-w", "30s", "x", "--", "true"]);
    drop(holder);
    drop(waiters);
    assert_eq!(late.finish(), 0);
    assert_eq!(try_run(&env), 0);
}

/// With `--max-waiting`, in a store of its own.
fn behind_at_most(env: &TestEnv, most: &str, words: &[&str]) -> Command {
    let wait = ["run", "-w", "1m", "--max-waiting", most];
    env.onehold(wait.iter().chain(words).copied())
}

#[test]
fn one_of_8_contenders_waits_if_each_allows_one_waiter_and_its_command_begins_after_the_hold() {
    let env = TestEnv::new();
    let mut holder = env.hold(&["x"]);
    let script = ["x", "--", "sh", "-c", "echo >> served"];
    let contenders: Vec<_> = (0..8)
        .map(|_| {
            let mut command = behind_at_most(&env, "1", &script);
            command.stderr(Stdio::piped());
            std::thread::spawn(move || command.output().unwrap())
        })
        .collect();
    wait_until("all but one have given up", || {
        contenders.iter().filter(|each| each.is_finished()).count() == 7
    });
    assert_eq!(env.number_of_waiters("x"), 1);
    assert_eq!(env.lines("served"), 0);
    env.end();
    holder.finish();
    let mut codes: Vec<_> = contenders
        .into_iter()
        .map(|each| each.join().unwrap().status.code())
        .collect();
    codes.sort_unstable();
    assert_eq!(codes[0], Some(0));
    assert_eq!(codes[1..], [Some(6); 7]);
    assert_eq!(env.lines("served"), 1);
}

#[test]
fn full_queue_refuses_at_once_says_how_many_wait_and_dead_waiters_do_not_count() {
    let env = TestEnv::new();
    let mut holder = env.hold(&["x"]);
    let mut waiters = start_waiters(&env, 3);
    behind_at_most(&env, "3", &["x", "--", "true"])
        .assert()
        .code(6)
        .stderr(starts_with(
            "onehold: 3 are waiting already: `x` is held by process ",
        ))
        .stderr(contains("  to wait, raise --max-waiting; "));
    behind_at_most(&env, "3", &["-E", "0", "x", "--", "false"])
        .assert()
        .code(0);
    let refused = behind_at_most(&env, "3", &["--json", "x", "--", "true"])
        .output()
        .unwrap();
    let object = json_object(&refused.stderr);
    assert_eq!(object["error"]["code"], "QUEUE_FULL");
    assert_eq!(object["lock"]["waiters"].as_array().unwrap().len(), 3);
    // It has no effect on a free lock.
    behind_at_most(&env, "0", &["free", "--", "true"])
        .assert()
        .code(0);
    behind_at_most(&env, "0", &["x", "--", "true"])
        .assert()
        .code(6)
        .stderr(starts_with("onehold: 3 are waiting already: "));
    waiters[1].kill();
    let script = ["x", "--", "sh", "-c", "echo 3 >> served"];
    let last = behind_at_most(&env, "3", &script).spawn().unwrap();
    wait_until("another one is in the queue", || {
        env.number_of_waiters("x") == 3
    });
    env.end();
    holder.finish();
    assert!(last.wait_with_output().unwrap().status.success());
    assert_eq!(served(&env), [0, 2, 3]);
}

#[test]
fn waiters_for_a_path_cannot_be_counted_so_max_waiting_is_refused() {
    let env = TestEnv::new();
    behind_at_most(&env, "1", &["./x.lock", "--", "true"])
        .assert()
        .code(2)
        .stderr(contains("waiters for a path have no queue: use a NAME"));
}

#[test]
fn waiter_that_times_out_leaves_the_queue_immediately() {
    let env = TestEnv::new();
    let _holder = env.hold(&["x"]);
    let mut impatient = env.start(["run", "-w", "2s", "x", "--", "true"]);
    wait_until("the first waiter is in the queue", || {
        env.number_of_waiters("x") == 1
    });
    let waiter = env.start(["run", "-w", "forever", "x", "--", "true"]);
    wait_until("the second waiter is in the queue", || {
        let waiters = env.lock("x")["waiters"].take();
        let mut waiters = waiters.as_array().unwrap().iter();
        waiters.any(|shown| shown["pid"] == waiter.pid())
    });
    assert_eq!(impatient.finish(), 7);
    assert_eq!(env.number_of_waiters("x"), 1);
    let shown = env.lock("x")["waiters"][0].take();
    assert_eq!(
        (&shown["pid"], &shown["position"]),
        (&waiter.pid().into(), &1.into())
    );
}

#[cfg(target_os = "linux")]
#[test]
fn waiter_dies_of_a_signal_and_leaves_the_queue() {
    let env = TestEnv::new();
    let _holder = env.hold(&["x"]);
    for (signal, code, expected) in [
        (
            Signal::INT,
            -2,
            "onehold: canceled; the command was not started\n",
        ),
        (
            Signal::TERM,
            -15,
            "onehold: canceled; the command was not started\n",
        ),
    ] {
        let mut command = env.onehold(["run", "-v", "-w", "forever", "x", "--", "touch", "ran"]);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut waiter = Running::spawn(command);
        wait_until("the waiter is in the queue", || {
            env.number_of_waiters("x") == 1
        });
        let mut stderr = BufReader::new(waiter.child.stderr.take().unwrap());
        let mut text = String::new();
        stderr.read_line(&mut text).unwrap();
        assert!(text.starts_with("onehold: waiting: "), "{text}");
        wait_until("the waiter sleeps", || {
            crate::harness::is_blocked_in_flock(waiter.pid())
        });
        waiter.signal(signal);
        assert_eq!(waiter.finish(), code);
        assert_eq!(env.number_of_waiters("x"), 0, "{signal:?}");
        text.clear();
        stderr.read_to_string(&mut text).unwrap();
        assert_eq!(text, expected);
    }
    assert!(!env.path("ran").exists());
}

#[test]
fn wait_on_a_terminal_is_a_line_that_changes_below_the_holder() {
    let env = TestEnv::new();
    let _holder = env.hold(&["x"]);
    let run = format!("{} run -w 2500ms x -- true", program().display());
    let mut script = env.command("script");
    script
        .args(["-qec", &run, "/dev/null"])
        .env("TERM", "xterm");
    let output = script.output().unwrap();
    let seen = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(7), "{seen}");
    let (before, _) = seen.split_once("timed out").unwrap();
    assert!(
        before.contains("onehold: waiting: `x` is")
            && before.contains("onehold: waiting 0s of 2s, position 1 of 1 (Ctrl-C cancels)"),
        "{seen}"
    );
    assert!(before.contains("onehold: waiting 1s of 2s"), "{seen}");
}

#[test]
fn waiters_are_shown_in_order_with_their_commands() {
    let env = TestEnv::new();
    let _holder = env.hold(&["x"]);
    let waiters = start_waiters(&env, 3);
    let lock = env.lock("x");
    for (index, waiter) in waiters.iter().enumerate() {
        let shown = &lock["waiters"][index];
        assert_eq!(shown["pid"], waiter.pid());
        assert_eq!(shown["position"], index + 1);
        assert_eq!(shown["command"][2], format!("echo {index} >> served"));
        assert!(shown["since"].is_string() && shown["hostname"].is_string());
    }
    let stdout = |args: &[&str]| String::from_utf8(env.output(args).stdout).unwrap();
    assert!(stdout(&["check", "x"]).ends_with("; 3 waiting\n"));
    let verbose = stdout(&["check", "-v", "x"]);
    let first = format!(
        "  waiting, in order:\n    1. process {} (sh) on ",
        waiters[0].pid()
    );
    assert!(
        verbose.contains(&first) && verbose.contains(", waiting since "),
        "{verbose}"
    );
    let listed = stdout(&["list"]);
    assert!(listed.contains("held +3"), "{listed}");
}

#[test]
fn reserved_lock_is_listed() {
    let env = TestEnv::new();
    let _waiters = start_with_stopped_first(&env, 1);
    let object = env.json(["list"]);
    assert_eq!(object["locks"][0]["name"], "x");
    assert_eq!(object["locks"][0]["reason"], "reserved");
}

#[cfg(target_os = "linux")]
#[test]
fn idle_waiters_sleep_and_look_every_5s_whether_the_one_ahead_was_stopped() {
    let env = TestEnv::new();
    let _holder = env.hold(&["x"]);
    let waiters = start_waiters(&env, CONTENDERS);
    wait_until("all waiters sleep", || waiters.iter().all(is_settled));
    let before: Vec<u64> = waiters
        .iter()
        .map(|waiter| context_switches(waiter.pid()))
        .collect();
    // Nothing happens in this time, which is what is tested.
    std::thread::sleep(Duration::from_secs(6));
    for (index, waiter) in waiters.iter().enumerate() {
        let woken = context_switches(waiter.pid()) - before[index];
        // One or two alarms, and the CPU once or twice for each.
        assert!(woken <= 12, "waiter {index}: {woken}");
    }
}

#[test]
fn waiter_for_a_parent_does_not_block_its_children() {
    let env = TestEnv::new();
    let mut child = env.hold(&["section/task"]);
    let mut parent = env.start(["run", "-w", "forever", "section", "--", "true"]);
    wait_until("the parent is waited for", || {
        env.number_of_waiters("section") == 1
    });
    assert_eq!(env.code(["run", "section/other", "--", "true"]), 0);
    env.end();
    assert_eq!(child.finish(), 0);
    assert_eq!(parent.finish(), 0);
    assert_no_queue_is_left(&env);
}

#[test]
fn waiters_in_a_deadlock_time_out_and_say_what_they_hold() {
    let env = TestEnv::new();
    let start = |own: &str, other: &str| {
        let script = format!(
            "echo > {own}; until test -e {other}; do sleep 0.005; done; exec onehold run -v -w 1s {other} -- true"
        );
        let mut command = env.onehold(["run", own, "--", "sh", "-c", &script]);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        Running::spawn(command)
    };
    let (one, other) = (start("a", "b"), start("b", "a"));
    for (own, wanted, mut holder) in [("a", "b", one), ("b", "a", other)] {
        let (code, stderr) = holder.finish_with_stderr();
        // The first that times out lets the other in, if that is still waiting.
        assert!([0, 7].contains(&code), "{code}: {stderr}");
        assert!(
            stderr.contains(&format!("onehold: waiting: `{wanted}` is held by")),
            "{stderr}"
        );
        assert!(
            stderr.contains(&format!("; still holding `{own}`\n")),
            "{stderr}"
        );
    }
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "needs strace: apt install strace"]
fn wait_continues_without_inotify_and_pidfds() {
    for injected in [
        "inotify_init1:error=EMFILE",
        "inotify_add_watch:error=ENOSPC",
        "pidfd_open:error=EPERM",
    ] {
        let env = TestEnv::new();
        env.done(["acquire", "x", "--ttl", "1h", "--owner", "me"]);
        let mut command = env.command("strace");
        command
            .args(["-f", "-qq", "-o", "/dev/null", "-e"])
            .arg(format!("inject={injected}"))
            .arg(program())
            .args(["run", "-w", "1h", "x", "--", "sh", "-c", "echo 1 >> served"]);
        let mut waiter = Running::start(command);
        wait_until("the waiter is in the queue", || {
            env.number_of_waiters("x") == 1
        });
        env.done(["release", "x", "--owner", "me"]);
        assert_eq!(waiter.finish(), 0, "{injected}");
        assert_eq!(served(&env), [1], "{injected}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn path_lock_has_waiters_and_leaves_no_other_files() {
    let env = TestEnv::new();
    fs::create_dir(env.path("project")).unwrap();
    let entries = || fs::read_dir(env.path("project")).unwrap().count();
    let mut holder = env.hold(&["./project/lock"]);
    let script = ["sh", "-c", "echo 1 >> served"];
    let run = [
        &["run", "-w", "forever", "./project/lock", "--"],
        &script[..],
    ]
    .concat();
    let mut waiters: Vec<Running> = (0..CONTENDERS).map(|_| env.start(&run)).collect();
    wait_until("all wait", || {
        waiters
            .iter()
            .all(|waiter| crate::harness::is_blocked_in_flock(waiter.pid()))
    });
    assert_eq!(entries(), 1);
    env.end();
    holder.finish();
    for waiter in &mut waiters {
        assert_eq!(waiter.finish(), 0);
    }
    assert_eq!(served(&env).len(), CONTENDERS);
    assert_eq!(entries(), 0);
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "needs strace: apt install strace"]
fn quiet_calls_cost_as_much_behind_9_waiters_as_behind_one() {
    /// A longer list of tickets.
    const SLACK: usize = 2;
    let env = TestEnv::new();
    let _holder = env.hold(&["x"]);
    let calls = |words: &str| {
        let mut command = env.command("strace");
        command.args(["-qq", "-o"]).arg(env.path("trace"));
        command.arg(program()).args(words.split(' '));
        assert_eq!(exit_code(command.status().unwrap()), 6);
        env.lines("trace")
    };
    let all = ["check -q x", "run -q x -- true", "acquire -q x --ttl 1h"];
    let _first = start_waiters(&env, 1);
    let before = all.map(calls);
    let _others = start_waiters(&env, CONTENDERS);
    let after = all.map(calls);
    for (words, (before, after)) in all.iter().zip(before.iter().zip(after)) {
        assert!(after <= before + SLACK, "{words}: {before}, {after}");
    }
}

/// A waiter for another lock keeps the directory of all queues.
#[cfg(unix)]
#[test]
fn reservations_of_waiters_that_have_left_are_forgotten_once_there_are_many() {
    let env = TestEnv::new();
    let other = ["run", "-w", "forever", "other", "--", "sleep", "100"];
    let _other = [env.start(other), env.start(other)];
    wait_until("one waits", || env.number_of_waiters("other") == 1);
    let mut most = 0;
    for _ in 0..12 {
        let _ = fs::remove_file(env.path("end"));
        let mut waiters = start_with_stopped_first(&env, 1);
        assert_eq!(try_run(&env), 6);
        most = most.max(reservations(&env).len());
        waiters[0].kill();
    }
    assert_eq!(most, 8);
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "takes a minute: starts a thousand waiters"]
fn thousand_waiters_wake_every_five_seconds_and_a_release_wakes_at_most_two() {
    /// In 10 s a waiter looks twice whether the one ahead was stopped. A busy machine makes the 10 s longer.
    const MOST_WAKES: u64 = 1000 * 3;
    let env = TestEnv::new();
    let mut holder = env.hold(&["x"]);
    let waiters: Vec<Running> = (0..1000)
        .map(|_| env.start(["run", "-w", "forever", "x", "--", "sh", "-c", "sleep 1000"]))
        .collect();
    wait_until("all are in the queue", || {
        env.number_of_waiters("x") == 1000
    });
    // Counted, since the time of a processor looks longer beside other work.
    let wakes = || -> u64 {
        let of = |waiter: &Running| {
            let status = fs::read_to_string(format!("/proc/{}/status", waiter.pid())).unwrap();
            let mut lines = status.lines();
            let switches = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            switches.unwrap().trim().parse::<u64>().unwrap()
        };
        waiters.iter().map(of).sum()
    };
    wait_until("all sleep", || waiters.iter().all(is_settled));
    // Nothing happens in this time, which is what is tested.
    let before = wakes();
    std::thread::sleep(Duration::from_secs(10));
    let woke = wakes() - before;
    println!("1000 waiters woke {woke} times in 10 s");
    assert!(woke <= MOST_WAKES, "{woke} times");
    let bytes_read = || -> Vec<u64> {
        let read = |waiter: &Running| {
            let text = fs::read_to_string(format!("/proc/{}/io", waiter.pid())).unwrap();
            let bytes = text.lines().find_map(|line| line.strip_prefix("rchar: "));
            bytes.unwrap().parse::<u64>().unwrap()
        };
        waiters.iter().map(read).collect()
    };
    let before = bytes_read();
    let began = Instant::now();
    env.end();
    holder.finish();
    wait_until("the first is served", || env.number_of_waiters("x") == 999);
    // A decision reads a record and a ticket, more than a look at the process ahead.
    let now = bytes_read();
    let woken = now
        .iter()
        .zip(&before)
        .filter(|(now, before)| *now - *before > 1_500)
        .count();
    // Without being woken, the one of rank r decides anew after 5 s × r: of a thousand, three in two seconds.
    let by_themselves = 4 + 3 * began.elapsed().as_secs();
    println!("{woken} woke");
    assert!(woken as u64 <= 2 + by_themselves, "{woken}");
}

#[cfg(target_os = "linux")]
#[test]
fn wait_ends_at_its_limit_while_the_store_is_locked() {
    let env = TestEnv::new();
    let _locked = lock_store_directory(&env);
    let started = Instant::now();
    let code = env.code(["acquire", "-w", "2", "x", "--ttl", "1h"]);
    assert_eq!(code, 1);
    let elapsed = started.elapsed();
    assert!(elapsed >= Duration::from_secs(2), "{elapsed:?}");
    assert!(elapsed < Duration::from_secs(8), "{elapsed:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn wait_for_a_holder_ends_at_its_limit_while_the_store_is_locked() {
    let env = TestEnv::new();
    env.done(["acquire", "x", "--ttl", "1h"]);
    let waiter = ["acquire", "-w", "3", "x", "--ttl", "1h"];
    let started = Instant::now();
    let mut waiter = env.start(waiter);
    wait_until("it waits", || env.number_of_waiters("x") == 1);
    let directory = fs::File::open(env.store()).unwrap();
    rustix::fs::flock(&directory, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert_eq!(waiter.finish(), 7);
    let elapsed = started.elapsed();
    assert!(elapsed < Duration::from_secs(9), "{elapsed:?}");
}

/// What the command left behind keeps the descriptor, and so the kernel lock. It does not keep the hold.
#[cfg(target_os = "linux")]
#[test]
fn waiter_takes_a_lock_that_only_a_background_process_keeps_open() {
    for exec in [true, false] {
        let env = TestEnv::new();
        let script = "sleep 40 & echo $! > background; until test -e go; do sleep 0.01; done";
        let options = if exec { "--exec" } else { "--" };
        let mut run = vec!["run", options, "x", "--", "sh", "-c", script];
        if !exec {
            run.remove(1);
        }
        let mut holder = env.start(&run);
        let background = env.pid_in("background");
        if !exec {
            holder.kill();
        }
        let mut waiter = env.start(["run", "-w", "1m", "x", "--", "true"]);
        let started = Instant::now();
        // At first it looks more often.
        wait_until("it sleeps for longer", || {
            env.number_of_waiters("x") == 1 && started.elapsed() > Duration::from_secs(2)
        });
        fs::write(env.path("go"), "").unwrap();
        assert_eq!(waiter.finish(), 0);
        let background = rustix::process::Pid::from_raw(background.cast_signed()).unwrap();
        rustix::process::kill_process(background, rustix::process::Signal::KILL)
            .expect("the background process is still running");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn canceled_wait_ends_while_the_store_is_locked() {
    let env = TestEnv::new();
    let locked = lock_store_directory(&env);
    let lock = onehold::Store::at(env.store())
        .lock(onehold::LockName::new("x").unwrap())
        .unwrap();
    let canceled = std::sync::atomic::AtomicBool::new(false);
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let wait = onehold::Wait::forever().until_canceled(&canceled);
            let held = lock.hold(&onehold::Options::new(), wait);
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(!matches!(held, Ok(onehold::Attempt::Held(_))));
        });
        canceled.store(true, std::sync::atomic::Ordering::Relaxed);
        let started = Instant::now();
        let has_ended = || ended.load(std::sync::atomic::Ordering::Relaxed);
        while !has_ended() && started.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(2));
        }
        let ended_by_itself = has_ended();
        drop(locked);
        assert!(ended_by_itself);
    });
}

#[cfg(target_os = "linux")]
#[test]
fn store_is_waited_for_without_a_timer() {
    let env = TestEnv::new();
    let locked = lock_store_directory(&env);
    let mut command = env.command("prlimit");
    command
        .args(["--sigpending=0", "onehold"])
        .args(["run", "-w", "1m", "x", "--", "true"]);
    let mut run = Running::start(command);
    let started = Instant::now();
    wait_until("it has waited, or has ended", || {
        run.has_ended() || started.elapsed() > Duration::from_secs(1)
    });
    drop(locked);
    assert_eq!(run.finish(), 0);
}

#[test]
fn reservation_of_one_lock_does_not_end_that_of_another() {
    let env = TestEnv::new();
    let _waiters = start_with_stopped_first(&env, 1);
    assert_eq!(try_run(&env), 6);
    assert_eq!(reservations(&env).len(), 1);
    fs::remove_file(env.path("end")).unwrap();
    let mut holder = env.hold(&["y"]);
    let other = env.start(["run", "-w", "forever", "y", "--", "true"]);
    wait_until("it waits", || env.number_of_waiters("y") == 1);
    other.signal(Signal::STOP);
    env.end();
    holder.finish();
    assert_eq!(env.code(["run", "y", "--", "true"]), 6);
    assert_eq!(reservations(&env).len(), 2);
}

/// That one does not read the tickets behind its own.
#[test]
fn reservation_does_not_begin_again_because_an_earlier_waiter_reserves_another_lock() {
    let env = TestEnv::new();
    env.done(["acquire", "y", "--ttl", "5m", "--owner", "o"]);
    let mut holder = env.hold(&["x"]);
    let waiters = start_waiters(&env, 2);
    let last = env.start(["run", "-w", "forever", "y", "--", "true"]);
    wait_until("it waits", || env.number_of_waiters("y") == 1);
    waiters[0].signal(Signal::STOP);
    last.signal(Signal::STOP);
    env.done(["release", "y", "--owner", "o"]);
    assert_eq!(env.code(["run", "y", "--", "true"]), 6);
    let before = reservations(&env);
    assert_eq!(before.len(), 1);
    env.end();
    holder.finish();
    wait_until("the second one has looked", || {
        reservations(&env)
            .keys()
            .any(|number| !before.contains_key(number))
    });
    let after = reservations(&env);
    let mut all = before.iter();
    assert!(
        all.all(|(number, since)| after.get(number) == Some(since)),
        "{before:?} {after:?}"
    );
}

#[test]
fn directory_in_place_of_the_reservations_does_not_block_a_lock() {
    let env = TestEnv::new();
    let _waiters = start_with_stopped_first(&env, 1);
    fs::create_dir_all(env.path("store/.onehold/waiting/reserved/stray")).unwrap();
    assert_eq!(try_run(&env), 0);
}

#[cfg(target_os = "linux")]
#[test]
fn waiter_does_not_sleep_on_a_hold_of_its_own_owner() {
    let env = TestEnv::new();
    let hold = |name: &str, file: &str| {
        let script = format!("echo > {file}; while test -e {file}; do sleep 0.01; done");
        let run = ["run", name, "--owner", "R1", "--", "sh", "-c", &script];
        let holder = env.start(run);
        wait_until("the command has begun", || env.path(file).exists());
        holder
    };
    let _parent = hold("sec", "parent");
    let mut child = hold("sec/t", "child");
    let mut other = env.start(["run", "-w", "forever", "sec", "--owner", "R2", "--", "true"]);
    wait_until("another owner waits", || env.number_of_waiters("sec") == 1);
    let waiter = [
        "run", "-w", "forever", "sec/t", "--owner", "R1", "--", "true",
    ];
    let mut waiter = env.start(waiter);
    wait_until("the waiter sleeps", || is_settled(&waiter));
    other.kill();
    // It wakes, and sleeps again.
    std::thread::sleep(Duration::from_millis(500));
    let released = Instant::now();
    fs::remove_file(env.path("child")).unwrap();
    child.finish();
    assert_eq!(waiter.finish(), 0);
    assert!(released.elapsed() < Duration::from_secs(30));
    fs::remove_file(env.path("parent")).unwrap();
}

#[test]
#[ignore = "needs root for a pid namespace"]
fn waiter_that_cannot_see_that_the_holder_is_dead_does_not_block_others() {
    let env = TestEnv::new();
    let mut holder = Running::sleeper();
    env.done(["acquire", "x", "--pid", &holder.pid().to_string()]);
    let mut elsewhere = env.command("unshare");
    elsewhere
        .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["onehold", "run", "-w", "forever", "x", "--", "true"]);
    let _waiter = Running::start(elsewhere);
    wait_until("the other waits", || env.number_of_waiters("x") == 1);
    holder.kill();
    let output = env.output(["run", "x", "--", "true"]);
    assert_eq!(exit_code(output.status), 0, "{}", stderr(&output));
}
