//! Commands that wait for each other's locks.

use std::fs;
use std::time::Duration;

use serde_json::json;

use crate::harness::innocents::Innocents;
use crate::harness::ring::{FOREVER, Ring, assert_refused_within_50_ms, waits_of};
use crate::harness::{Running, Signal, TestEnv, send, wait_until};

fn start<'a>(
    env: &'a TestEnv,
    waiters: &'a dyn Fn(&str) -> usize,
    names: &[&'a str],
    waits: &[&str],
) -> Ring<'a> {
    Ring::start(env, names, waits, &|_, words| env.onehold(words), waiters)
}

#[track_caller]
fn assert_last_of_ring_is_refused(names: &[&str]) {
    let env = TestEnv::new();
    let mut innocents = Innocents::all(&env);
    let took = refused_after(&env, names);
    // Not only with a later look.
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert_eq!(innocents.end(&env), [""; 0]);
    assert_eq!(env.left_in_queues(), [""; 0]);
}

#[track_caller]
fn refused_after(env: &TestEnv, names: &[&str]) -> Duration {
    let waiters = |name: &str| env.number_of_waiters(name);
    let mut ring = start(env, &waiters, names, &waits_of(names));
    ring.assert_last_is_refused();
    ring.took(names.len() - 1)
}

#[test]
#[ignore = "is timed, on a machine that does nothing else"]
fn last_comer_of_a_cycle_is_refused_within_50_ms() {
    for names in [&["a", "b"][..], &["a", "b", "c"]] {
        assert_refused_within_50_ms(&|| refused_after(&TestEnv::new(), names));
    }
}

#[test]
fn last_comer_of_a_cycle_of_two_is_refused_and_the_other_takes_its_lock() {
    assert_last_of_ring_is_refused(&["a", "b"]);
}

#[test]
fn last_comer_of_a_cycle_of_three_is_refused_and_the_others_take_their_locks() {
    assert_last_of_ring_is_refused(&["a", "b", "c"]);
}

#[test]
fn of_8_commands_that_begin_to_wait_in_pairs_at_once_one_of_each_pair_is_refused() {
    let env = TestEnv::new();
    let mut innocents = Innocents::all(&env);
    let pairs = [["a", "b"], ["c", "d"], ["e", "f"], ["g", "h"]];
    let waiters = |name: &str| env.number_of_waiters(name);
    let mut rings: Vec<_> = pairs
        .iter()
        .map(|names| start(&env, &waiters, names, &[FOREVER; 2]))
        .collect();
    for ring in &rings {
        ring.go(0);
        ring.go(1);
    }
    for ring in &mut rings {
        let mut codes = ring.codes();
        codes.sort_unstable();
        assert_eq!(codes, [0, 6]);
    }
    assert_eq!(innocents.end(&env), [""; 0]);
}

#[test]
fn wait_without_limit_behind_one_that_ends_before_is_not_refused() {
    let env = TestEnv::new();
    let mut innocents = Innocents::all(&env);
    let limited = "onehold run -w 2s NEXT -- true";
    let waiters = |name: &str| env.number_of_waiters(name);
    let mut ring = start(&env, &waiters, &["a", "b"], &[limited, FOREVER]);
    ring.go_and_wait(0);
    ring.go(1);
    assert_eq!(ring.codes(), [7, 0]);
    assert_eq!(innocents.end(&env), [""; 0]);
}

#[test]
fn wait_is_refused_only_if_the_other_command_waits_for_nothing_but_its_waiter() {
    let limited = "onehold run -w 300ms NEXT -- true";
    for (row, wait, code) in [
        ("in the foreground", FOREVER.to_owned(), 6),
        ("below another shell", format!("sh -c '{FOREVER}; true'"), 6),
        ("in place of the shell", format!("exec {FOREVER}"), 6),
        (
            "in the background, beside a command",
            format!("{FOREVER} & until test -e code-b; do sleep 0.01; done; wait"),
            7,
        ),
        (
            "left over, so that its hold has ended",
            format!("({FOREVER} &)"),
            0,
        ),
        ("for a limited time", format!("timeout 60 {FOREVER}"), 7),
        ("in a pipe", format!("x=$({FOREVER})"), 7),
        ("of no run", "env -u ONEHOLD_HOLDS ".to_owned() + FOREVER, 7),
    ] {
        let env = TestEnv::new();
        let waiters = |name: &str| env.number_of_waiters(name);
        let mut ring = start(&env, &waiters, &["a", "b"], &[&wait, limited]);
        ring.go_and_wait(0);
        ring.go(1);
        ring.finish();
        assert_eq!(env.pid_in("code-b"), code, "{row}: {}", ring.told(1));
    }
}

#[test]
fn hold_is_waited_for_that_has_a_time_limit_or_another_slot() {
    let first = |options: &str| {
        let wait = FOREVER.replace("NEXT", "a");
        format!(
            "onehold run {options} b -- sh -c 'touch first; until test -e go; do sleep 0.005; done; {wait}; true'"
        )
    };
    let last = |options: &str| format!("onehold run -w 300ms {options} b -- true; echo $? > code");
    for (options, has_other, wait, code) in [
        ("", false, "", 6),
        ("--time-limit 60s", false, "", 7),
        ("--slots 2", false, "", 6),
        ("--slots 2", true, "--slots 2", 7),
    ] {
        let env = TestEnv::new();
        let mut first = Running::start(env.shell(&first(options)));
        let other = has_other.then(|| env.hold(&["--slots", "2", "b"]));
        let script = format!(
            "touch last; until test -e go-last; do sleep 0.005; done; {}",
            last(wait)
        );
        let mut last = env.start(["run", "a", "--", "sh", "-c", &script]);
        wait_until("both have their locks", || {
            env.path("first").exists() && env.path("last").exists()
        });
        fs::write(env.path("go"), "").unwrap();
        wait_until("the first is in the queue", || {
            env.number_of_waiters("a") == 1
        });
        fs::write(env.path("go-last"), "").unwrap();
        assert_eq!(last.finish(), 0);
        assert_eq!(env.pid_in("code"), code, "{options} {has_other}");
        env.end();
        assert_eq!(first.finish(), 0);
        drop(other);
    }
}

/// It may end, so nobody is refused, and who looks is shown both.
#[test]
fn check_shows_what_a_hold_waits_for_while_both_wait() {
    let env = TestEnv::new();
    let waiters = |name: &str| env.number_of_waiters(name);
    let under_timeout = format!("timeout 60 {FOREVER}");
    let mut ring = start(&env, &waiters, &["a", "b"], &[&under_timeout, FOREVER]);
    ring.go_and_wait(0);
    ring.go_and_wait(1);
    for (name, others) in [("a", ["b", "a"]), ("b", ["a", "b"])] {
        let [first, second] = others;
        let shown = env.output(["check", "-v", name]);
        let shown = String::from_utf8(shown.stdout).unwrap();
        let mut lines = shown.lines().filter(|line| line.contains("waits for "));
        let line = lines.next().unwrap_or_else(|| panic!("{shown}"));
        let (one, other) = line.split_once(", which waits for ").unwrap();
        assert!(
            one.starts_with(&format!("  waits for `{first}`, held by process ")),
            "{line}"
        );
        assert!(
            other.starts_with(&format!("`{second}`, held by process ")),
            "{line}"
        );
        let object = env.json(["check", "-v", name]);
        let holds = object["waits_for"].as_array().unwrap();
        let holds: Vec<_> = holds.iter().map(|hold| &hold["name"]).collect();
        assert_eq!(holds, others);
    }
    let pid = env.lock("b")["waiters"][0]["pid"].as_u64().unwrap();
    send(pid.try_into().unwrap(), Signal::TERM);
    assert_eq!(ring.codes(), [143, 0]);
    assert_eq!(env.json(["check", "-v", "a"])["waits_for"], json!([]));
}
