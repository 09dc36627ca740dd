//! `hold`: a lock that is held as long as stdin is open.

use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use assert_cmd::prelude::OutputAssertExt;
use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use serde_json::{Value, json};

use crate::harness::hold::Hold;
use crate::harness::{CONTENDERS, Running, Signal, TestEnv, output, program, stderr, wait_until};

/// `onehold hold ARGS`.
fn start(env: &TestEnv, args: &[&str]) -> Hold {
    Hold::start(env.onehold([&["hold"], args].concat()))
}

#[test]
fn lock_is_held_until_stdin_ends_and_what_arrives_there_is_ignored() {
    let env = TestEnv::new();
    let mut hold = start(&env, &["-m", "nightly", "x"]);
    let number = hold.line();
    let lock = env.lock("x");
    assert_eq!(lock["hold"].to_string(), number);
    assert_eq!(lock["kind"], "hold");
    assert_eq!(lock["pid"], hold.running.pid());
    assert_eq!(lock["message"], "nightly");
    let words = &lock["command"].as_array().unwrap()[1..];
    assert_eq!(words, ["hold", "-m", "nightly", "x"]);
    assert_eq!(lock["wrapper_pid"], Value::Null);
    assert_eq!(env.code(["run", "x", "--", "true"]), 6);
    // More than a pipe takes that nobody reads.
    let stdin = hold.stdin.as_mut().unwrap();
    stdin.write_all("x".repeat(200_000).as_bytes()).unwrap();
    assert_eq!(env.check("x"), 6);
    assert_eq!(hold.end(), 0);
    assert_eq!(env.check("x"), 0);
    assert_eq!((hold.line(), hold.told()), (String::new(), String::new()));
    assert!(env.left_in_store().is_empty());
}

#[test]
fn program_that_started_it_is_named_before_it() {
    let env = TestEnv::new();
    let mut hold = start(&env, &["x"]);
    hold.line();
    let (own, server) = (std::process::id(), hold.running.pid());
    let lock = env.lock("x");
    assert_eq!(
        (&lock["program"]["pid"], &lock["pid"]),
        (&json!(own), &json!(server))
    );
    let words: Vec<String> = std::env::args().collect();
    assert_eq!(lock["program"]["command"], json!(words));
    let named = contains(format!("is held by process {own} ("))
        .and(contains(format!(", through onehold {server}, since ")));
    for verb in [&["check", "x"][..], &["run", "x", "--", "true"]] {
        let told = output(&mut env.onehold(verb));
        let texts = [told.stdout, told.stderr].concat();
        let texts = String::from_utf8(texts).unwrap();
        assert!(predicates::Predicate::eval(&named, &texts), "{texts}");
    }
    let listed = env.done(["list"]);
    assert!(listed.contains(&format!(" {own} (")), "{listed}");
    let mut waiter = start(&env, &["--json", "-w", "1h", "x"]);
    waiter.event("waiting");
    wait_until("it waits", || env.number_of_waiters("x") == 1);
    assert_eq!(env.lock("x")["waiters"][0]["program"]["pid"], own);
    hold.running.kill();
    waiter.event("held");
    waiter.running.kill();
    let zombie = env.onehold(["check", "x"]).output().unwrap();
    let zombie = String::from_utf8(zombie.stdout).unwrap();
    assert!(zombie.contains("which has exited"), "{zombie}");
}

#[test]
fn lock_is_free_soon_after_its_program_was_killed() {
    let env = TestEnv::new();
    // The shell becomes a process that has the only end of the pipe.
    let script = format!(
        "mkfifo pipe; {} hold x < pipe > number & exec 3> pipe; exec sleep 1000",
        program().display()
    );
    let mut times: Vec<Duration> = (0..CONTENDERS)
        .map(|_| {
            let _ = std::fs::remove_file(env.path("pipe"));
            let _ = std::fs::remove_file(env.path("number"));
            let mut program = Running::start(env.shell(&script));
            wait_until("the lock is held", || env.lines("number") == 1);
            program.kill();
            let killed = Instant::now();
            wait_until("the lock is free", || env.check("x") == 0);
            killed.elapsed()
        })
        .collect();
    times.sort_unstable();
    assert!(
        times[times.len() / 2] < Duration::from_millis(300),
        "{times:?}"
    );
}

#[test]
fn killed_hold_is_taken_over_and_its_program_sees_the_end_of_its_output() {
    let env = TestEnv::new();
    let mut hold = start(&env, &["x"]);
    hold.line();
    hold.running.kill();
    assert_eq!(hold.line(), "");
    assert_eq!(env.check("x"), 5);
    assert_eq!(env.code(["run", "x", "--", "true"]), 0);
}

#[test]
fn increments_under_holds_of_eight_programs_add_up() {
    const EACH: usize = 25;
    let env = TestEnv::new();
    std::fs::write(env.path("number"), "0").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..CONTENDERS {
            scope.spawn(|| {
                for _ in 0..EACH {
                    let mut hold = start(&env, &["-w", "1h", "x"]);
                    assert!(!hold.line().is_empty());
                    let number = env.count_in("number");
                    std::thread::sleep(Duration::from_millis(1));
                    std::fs::write(env.path("number"), (number + 1).to_string()).unwrap();
                    assert_eq!(hold.end(), 0);
                }
            });
        }
    });
    assert_eq!(env.count_in("number"), CONTENDERS * EACH);
    assert!(env.left_in_store().is_empty() && env.left_in_queues().is_empty());
}

#[test]
fn json_tells_each_event_on_a_line() {
    let env = TestEnv::new();
    let mut holder = env.hold(&["x"]);
    let mut first = start(&env, &["--json", "-w", "1h", "x"]);
    let waiting = first.event("waiting");
    assert_eq!(waiting["position"], 1);
    assert_eq!(waiting["holder"]["hold"], env.lock("x")["hold"]);
    let mut second = start(&env, &["--json", "-w", "1h", "--slots", "3", "x", "y"]);
    assert_eq!(second.event("waiting")["position"], 2);
    env.end();
    holder.finish();
    let held = first.event("held");
    assert_eq!(held["file"], env.path("store/x.lock").to_str().unwrap());
    assert_eq!((&held["slot"], &held["slots"]), (&Value::Null, &json!([])));
    assert_eq!(first.end(), 0);
    let released = first.event("released");
    assert_eq!(
        (&released["hold"], &released["reason"]),
        (&held["hold"], &json!("stdin"))
    );
    assert_eq!(first.line(), "");
    let slots = second.event("held");
    assert_eq!(
        (&slots["slot"], &slots["slots"]),
        (&json!(0), &json!([0, 0]))
    );
    second.running.signal(Signal::TERM);
    assert_eq!(second.event("released")["reason"], "signal");
    assert_eq!(second.running.finish(), 0);
}

#[test]
fn whatever_did_not_hold_ends_with_an_event_that_has_the_exit_code() {
    let env = TestEnv::new();
    env.create_zombie("dead");
    let mut held = start(&env, &["held"]);
    held.line();
    std::fs::write(env.path("file"), "").unwrap();
    let cases: [(&[&str], i32, &str); 7] = [
        (&["held"], 6, "LOCKED"),
        (&["-E", "9", "held"], 9, "LOCKED"),
        (&["-w", "0.1", "held"], 7, "TIMEOUT"),
        (&["--on-zombie", "fail", "dead"], 5, "ZOMBIE"),
        (&["--dir", "file", "x"], 125, "IO"),
        (&["--die-with", "999999999", "x"], 125, "NO_SUCH_PROCESS"),
        (&["--exec", "x"], 2, "USAGE"),
    ];
    std::fs::write(env.path("config"), "wait").unwrap();
    let mut without_config = env.onehold(["hold", "--json", "x"]);
    without_config.env("ONEHOLD_CONFIG", env.path("config"));
    let mut refused = Hold::start(without_config);
    assert_eq!(refused.event("failed")["exit_code"], 125);
    assert_eq!(refused.running.finish(), 125);
    for (args, code, error) in cases {
        let mut refused = start(&env, &[&["--json"], args].concat());
        assert_eq!(refused.running.finish(), code, "{args:?}");
        if code == 7 {
            refused.event("waiting");
        }
        let failed = refused.event("failed");
        assert_eq!(failed["exit_code"], code, "{failed}");
        assert_eq!(failed["error"]["code"], error, "{failed}");
        assert_eq!(failed["success"], false);
        let rest = (refused.line(), refused.told());
        assert_eq!(rest, (String::new(), String::new()));
    }
}

#[test]
fn options_that_need_a_command_are_usage_errors() {
    let env = TestEnv::new();
    for option in [
        "--exec",
        "--close",
        "--on-lost=warn",
        "--kill-after=1",
        "--time-limit=1",
    ] {
        let output = env.output(["hold", option, "x"]);
        output
            .assert()
            .code(2)
            .stderr(contains("unexpected argument"));
    }
    let output = env.output(["hold", "-E", "0", "x"]);
    output
        .assert()
        .code(2)
        .stderr(contains("would go on without the lock"));
    assert_eq!(env.check("x"), 0);
}

#[test]
fn nothing_is_held_without_stdin_or_without_a_reader_of_the_number() {
    let env = TestEnv::new();
    for (script, code, told) in [
        ("onehold hold x <&-", 2, "stdin is closed"),
        (
            "onehold hold x >&-",
            1,
            "cannot print the hold number: stdout is closed",
        ),
        (
            "onehold hold x > /dev/full",
            1,
            "cannot print the hold number: No space left",
        ),
        (
            "onehold hold --json x > /dev/full",
            1,
            "cannot print the hold number",
        ),
    ] {
        let output = output(&mut env.shell(script));
        let is_told = contains(told).or(contains(told.to_lowercase()));
        output.assert().code(code).stderr(is_told);
        assert!(env.left_in_store().is_empty(), "{script}");
    }
}

#[test]
fn waiters_leave_the_queue_at_the_end_of_stdin_and_the_others_are_served_in_order() {
    let env = TestEnv::new();
    let mut holder = env.hold(&["x"]);
    let mut waiters: Vec<Hold> = (0..CONTENDERS)
        .map(|number| {
            let waiter = start(&env, &["-w", "1h", "x"]);
            wait_until("it waits", || env.number_of_waiters("x") == number + 1);
            waiter
        })
        .collect();
    for number in [0, 3, 4, 7] {
        let waiter = &mut waiters[number];
        assert_eq!(waiter.end(), 130);
        assert_eq!(waiter.line(), "");
        assert!(waiter.told().contains("canceled: stdin has ended"));
    }
    // By the signal, for which a shell says 143.
    waiters[6].running.signal(Signal::TERM);
    assert_eq!(waiters[6].running.finish(), -15);
    assert_eq!(env.number_of_waiters("x"), 3);
    env.end();
    holder.finish();
    let mut last = 0;
    for number in [1, 2, 5] {
        let hold: u64 = waiters[number].line().parse().unwrap();
        assert!(hold > last);
        last = hold;
        assert_eq!(waiters[number].end(), 0);
    }
    assert_eq!(env.check("x"), 0);
}

#[test]
fn break_tells_the_program_at_once_and_names_who_started_the_hold() {
    let env = TestEnv::new();
    for args in [&["--json", "x"][..], &["--json", "--slots", "2", "x"]] {
        let mut hold = start(&env, args);
        hold.event("held");
        // A stopped one is continued.
        hold.running.signal(Signal::STOP);
        let asked = Instant::now();
        let broken = env.output(["break", "x", "--yes"]);
        assert!(asked.elapsed() < Duration::from_secs(1));
        let name = format!("process {} (", std::process::id());
        let named = contains(name).and(contains(") started it and keeps running"));
        broken.assert().success().stderr(named);
        let lost = hold.event("lost");
        assert_eq!(lost["reason"], "broken");
        assert_eq!(lost["message"], "lock `x` was broken while it was held");
        assert_eq!(hold.running.finish(), 8);
        assert_eq!(env.check("x"), 0);
    }
}

#[test]
fn removed_or_replaced_file_is_told_within_two_seconds() {
    let env = TestEnv::new();
    let mut hold = start(&env, &["x"]);
    hold.line();
    let removed = Instant::now();
    std::fs::remove_file(env.path("store/x.lock")).unwrap();
    assert_eq!(hold.running.finish(), 8);
    assert!(removed.elapsed() < Duration::from_secs(2));
    assert_eq!(hold.told(), "onehold: lost lock `x` while it was held\n");
    let mut hold = start(&env, &["--json", "x"]);
    hold.event("held");
    let next = ["run", "x", "--force", "--yes", "--", "true"];
    assert_eq!(env.code(next), 0);
    assert_eq!(hold.event("lost")["reason"], "broken");
    assert_eq!(hold.running.finish(), 8);
}

#[test]
fn interrupt_from_a_process_releases_the_lock_and_ends_it_by_that_signal() {
    let env = TestEnv::new();
    for (signal, code) in [(Signal::INT, -2), (Signal::HUP, -1), (Signal::TERM, 0)] {
        let mut hold = start(&env, &["x"]);
        hold.line();
        hold.running.signal(signal);
        assert_eq!(hold.running.finish(), code);
        assert!(env.left_in_store().is_empty());
    }
}

#[test]
fn interrupt_of_the_terminal_is_left_to_the_program() {
    let env = TestEnv::new();
    // The program ignores it, and goes on for as long as the pipe is open.
    let script = "trap '' INT; mkfifo pipe; \
                  (trap - INT; exec onehold hold x < pipe > number) & \
                  exec 3> pipe; while ! test -e end; do sleep 0.05; done";
    let line = format!("script -qefc \"{script}\" /dev/null");
    let mut shell = env.shell(&line);
    shell.stdin(Stdio::piped());
    let mut terminal = Running::start(shell);
    wait_until("the lock is held", || env.lines("number") == 1);
    // Ctrl-C.
    let mut keys = terminal.child.stdin.take().unwrap();
    keys.write_all(b"\x03").unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(env.check("x"), 6);
    env.end();
    drop(keys);
    terminal.finish();
    wait_until("the lock is free", || env.check("x") == 0);
}

#[test]
fn hold_inside_of_a_run_of_the_lock_is_refused_unless_it_is_reentrant() {
    let env = TestEnv::new();
    let inner = |options: &str| {
        let script = format!("onehold hold {options} x; echo $?; echo $ONEHOLD_HOLD");
        env.done(["run", "x", "--", "sh", "-c", &script])
    };
    let lines = inner("--reentrant");
    let [printed, code, enclosing] = lines.lines().collect::<Vec<_>>()[..] else {
        panic!("{lines}");
    };
    assert_eq!((printed, code), (enclosing, "0"));
    assert!(inner("").starts_with("6\n"));
}

#[test]
fn hold_ends_with_the_process_that_it_is_to_die_with() {
    let env = TestEnv::new();
    let with = |caller: &Running, args: &[&str]| {
        let pid = caller.pid().to_string();
        start(&env, &[&["--json", "--die-with", &pid], args].concat())
    };
    let why =
        |caller: &Running| format!("its caller, process {} (sleep), has exited", caller.pid());
    let (mut caller, mut other) = (Running::sleeper(), Running::sleeper());
    let mut hold = with(&caller, &["x"]);
    hold.event("held");
    let mut waiter = with(&other, &["-w", "1h", "x"]);
    waiter.event("waiting");
    other.kill();
    assert_eq!(waiter.running.finish(), 143);
    let failed = waiter.event("failed");
    assert_eq!(failed["error"]["code"], "CALLER_EXITED");
    assert_eq!(failed["message"], why(&other));
    caller.kill();
    let released = hold.event("released");
    assert_eq!(released["reason"], "caller-exited");
    assert_eq!(released["message"], why(&caller));
    assert_eq!(hold.running.finish(), 0);
    assert_eq!(env.check("x"), 0);
}

#[test]
fn release_and_renew_by_others_are_refused_as_those_of_a_run() {
    let env = TestEnv::new();
    let mut hold = start(&env, &["--owner", "o", "x"]);
    let number = hold.line();
    assert_eq!(env.code(["release", "x", "--owner", "o"]), 4);
    assert_eq!(env.code(["release", "x", "--hold", &number]), 4);
    assert_eq!(env.code(["renew", "x", "--owner", "o"]), 4);
    assert_eq!(env.code(["cleanup", "x"]), 0);
    assert_eq!(env.check("x"), 6);
    assert_eq!(hold.end(), 0);
}

#[test]
fn refused_release_says_that_a_hold_ends_with_its_stdin() {
    let env = TestEnv::new();
    let mut hold = start(&env, &["--owner", "o", "x"]);
    hold.line();
    let told = stderr(&env.output(["release", "x", "--owner", "o"]));
    let why = "a running `onehold hold` holds it until its stdin ends";
    assert!(told.contains(why), "{told}");
    assert_eq!(hold.end(), 0);
}

#[test]
fn hold_works_in_each_format_and_at_a_path() {
    let env = TestEnv::new();
    for format in ["native", "prodigy", "pid", "memory", "flock"] {
        let owner: &[&str] = if format == "memory" {
            &["--owner", "o"]
        } else {
            &[]
        };
        let format = ["--format", format];
        std::fs::write(env.path("f"), "").unwrap();
        let path = if format[1] == "flock" { "./f" } else { "./p" };
        let mut hold = start(&env, &[&format[..], owner, &[path]].concat());
        assert!(!hold.line().is_empty(), "{format:?}: {}", hold.told());
        let contender = [&["run"], &format[..], owner, &[path, "--", "true"]].concat();
        assert_eq!(env.code(contender.clone()), 6, "{format:?}");
        assert_eq!(hold.end(), 0, "{format:?}");
        assert_eq!(env.code(contender), 0, "{format:?}");
    }
}

/// The memory that a process alone uses, in KiB. The rest is shared code: how much of it is mapped depends on what
/// the kernel has in its cache.
fn memory(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix("Private_Dirty:"));
    let size = line.unwrap().split_whitespace().next().unwrap();
    size.parse().unwrap()
}

/// How often the threads of a process have gone to sleep.
fn sleeps(pid: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    threads
        .map(|thread| {
            let status = std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
            let line = status.lines().find(|line| line.starts_with("voluntary_"));
            line.unwrap()
                .split_whitespace()
                .last()
                .unwrap()
                .parse::<u64>()
                .unwrap()
        })
        .sum()
}

#[test]
fn hold_needs_no_more_memory_than_a_waiter_and_wakes_no_more_often_than_a_wrapper() {
    let env = TestEnv::new();
    let mut hold = start(&env, &["x"]);
    hold.line();
    let waiter = env.start(["run", "-w", "1h", "x", "--", "true"]);
    let wrapper = env.start(["run", "y", "--", "sleep", "1000"]);
    wrapper.wait_until_recorded();
    wait_until("it waits", || env.number_of_waiters("x") == 1);
    // A waiter drops what it does not need once it is known to wait, a holder after its first check.
    std::thread::sleep(Duration::from_millis(1_500));
    let pids = [hold.running.pid(), wrapper.pid()];
    let before = pids.map(sleeps);
    std::thread::sleep(Duration::from_secs(5));
    let after = pids.map(sleeps);
    let [own, others] = [0, 1].map(|at| after[at] - before[at]);
    assert!(
        own <= others + 1,
        "{own} wake-ups, and {others} of a wrapper"
    );
    let [own, others] = [hold.running.pid(), waiter.pid()].map(memory);
    // The C library of a test build gives each thread an arena of its own, which the shipped program does not.
    let more = if std::env::var_os("ONEHOLD_TESTED").is_some() {
        0
    } else {
        1024
    };
    assert!(own <= others + more, "{own} KiB, and {others} of a waiter");
}

#[test]
fn hold_that_is_broken_at_once_is_told_that_it_was_broken() {
    let env = TestEnv::new();
    let mut hold = start(&env, &["--json", "x"]);
    hold.event("held");
    env.done(["break", "x", "--yes", "--force"]);
    assert_eq!(hold.event("lost")["reason"], "broken");
    assert_eq!(hold.running.finish(), 8);
}
