//! `--keep-place`: waiters that are cut off, and come again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use assert_cmd::prelude::OutputAssertExt;
use predicates::str::contains;

use crate::harness::{Rng, Running, Signal, TestEnv, wait_until};

/// A call that waits for `x` with a place that is kept for this owner.
fn call(env: &TestEnv, owner: &str, wait: &str, more: &[&str]) -> Running {
    let script = format!("echo {owner} >> served");
    let mut words = vec!["run", "-w", wait, "--owner", owner, "--keep-place", "10m"];
    words.extend(more);
    if more.is_empty() {
        words.push("x");
    }
    words.extend(["--", "sh", "-c", &script]);
    env.start_with_output(words)
}

fn served(env: &TestEnv) -> Vec<String> {
    let text = std::fs::read_to_string(env.path("served")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// The owners that wait, in order.
fn waiting(env: &TestEnv) -> Vec<String> {
    let lock = env.lock("x");
    let waiters = lock["waiters"].as_array().unwrap();
    waiters
        .iter()
        .map(|waiter| waiter["owner"].as_str().unwrap().to_owned())
        .collect()
}

fn wait_until_waiting(env: &TestEnv, owners: &[&str]) {
    wait_until("they wait in this order", || waiting(env) == owners);
}

/// The owners that a place is kept for.
fn kept_for(env: &TestEnv) -> Vec<String> {
    let object = env.json(["check", "-v", "x"]);
    let places = object["kept_places"].as_array().unwrap();
    places
        .iter()
        .map(|place| place["owner"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn waiter_that_was_cut_off_stands_where_it_stood() {
    let env = TestEnv::new();
    let mut holder = env.hold(&["x"]);
    let _first = call(&env, "a", "1h", &[]);
    wait_until_waiting(&env, &["a"]);
    for end in [
        None,
        Some(Signal::TERM),
        Some(Signal::INT),
        Some(Signal::KILL),
    ] {
        let mut cut_off = call(&env, "b", if end.is_none() { "0.3" } else { "1h" }, &[]);
        wait_until_waiting(&env, &["a", "b"]);
        if let Some(signal) = end {
            cut_off.signal(signal);
        }
        let (code, _, told) = cut_off.finish_with_output();
        if end.is_none() {
            assert_eq!(code, 7);
            assert!(
                told.contains("; your place (2nd) is kept for 10m\n"),
                "{told}"
            );
        }
        // Before and after it.
        let mut last = call(&env, "c", "1h", &[]);
        wait_until_waiting(&env, &["a", "c"]);
        assert_eq!(kept_for(&env), ["b"], "{end:?}");
        let mut again = call(&env, "b", "1h", &[]);
        wait_until_waiting(&env, &["a", "b", "c"]);
        assert!(kept_for(&env).is_empty());
        again.signal(Signal::KILL);
        again.finish();
        last.signal(Signal::KILL);
        last.finish();
        // Its own place is kept, too.
        let mut last = call(&env, "c", "1h", &[]);
        wait_until_waiting(&env, &["a", "c"]);
        last.signal(Signal::KILL);
        last.finish();
    }
    env.end();
    holder.finish();
}

#[test]
fn place_that_is_kept_delays_nobody_and_counts_as_no_waiter() {
    let env = TestEnv::new();
    let mut holder = env.hold(&["x"]);
    let mut cut_off = call(&env, "a", "0.2", &[]);
    assert_eq!(cut_off.finish(), 7);
    let limited = ["run", "-w", "1h", "--max-waiting", "1", "x", "--", "true"];
    let mut next = env.start(limited);
    wait_until("it waits", || env.number_of_waiters("x") == 1);
    let freed = Instant::now();
    env.end();
    holder.finish();
    assert_eq!(next.finish(), 0);
    assert!(freed.elapsed() < Duration::from_secs(2));
    assert_eq!(kept_for(&env), ["a"]);
    assert_eq!(env.check("x"), 0);
    // Who does not wait has its turn, too.
    assert_eq!(env.code(["run", "--owner", "a", "x", "--", "true"]), 0);
    assert!(kept_for(&env).is_empty());
}

#[test]
fn place_is_kept_for_the_same_owner_names_and_mode() {
    let env = TestEnv::new();
    let mut holder = env.hold(&["x"]);
    let cut_off = |more: &[&str]| assert_eq!(call(&env, "a", "0.1", more).finish(), 7);
    cut_off(&[]);
    let _behind = call(&env, "b", "1h", &[]);
    wait_until_waiting(&env, &["b"]);
    // Each of these draws a place of its own.
    cut_off(&["-s", "x"]);
    cut_off(&["x", "y"]);
    assert_eq!(kept_for(&env), ["a", "a", "a"]);
    let _own = call(&env, "a", "1h", &[]);
    wait_until_waiting(&env, &["a", "b"]);
    // Beside a living waiter of the same owner, too.
    let _second = call(&env, "a", "1h", &[]);
    wait_until_waiting(&env, &["a", "b", "a"]);
    let _shared = call(&env, "a", "1h", &["-s", "x"]);
    wait_until_waiting(&env, &["a", "b", "a", "a"]);
    assert_eq!(kept_for(&env), ["a"]);
    env.end();
    holder.finish();
}

#[test]
fn place_of_several_locks_is_kept_in_the_queue_of_each() {
    let env = TestEnv::new();
    let mut holder = env.hold(&["x"]);
    assert_eq!(call(&env, "a", "0.1", &["x", "y"]).finish(), 7);
    let _behind = call(&env, "b", "1h", &[]);
    wait_until_waiting(&env, &["b"]);
    let mut again = call(&env, "a", "1h", &["x", "y"]);
    wait_until_waiting(&env, &["a", "b"]);
    env.end();
    holder.finish();
    assert_eq!(again.finish(), 0);
    assert_eq!(served(&env)[0], "a");
}

#[test]
fn shared_waiter_for_several_locks_that_was_killed_and_has_come_back_keeps_its_place() {
    let env = TestEnv::new();
    let mut holder = env.hold(&["x"]);
    // Nobody notices the killed one: readers do not look at each other.
    let mut killed = call(&env, "a", "1h", &["-s", "x", "y"]);
    wait_until("it waits", || env.number_of_waiters("y") == 1);
    killed.signal(Signal::KILL);
    killed.finish();
    let mut again = call(&env, "a", "1h", &["-s", "x", "y"]);
    wait_until("it waits", || env.number_of_waiters("y") == 1);
    // Who comes later looks into both queues.
    let mut last = call(&env, "b", "1h", &["x", "y"]);
    wait_until("both wait", || env.number_of_waiters("y") == 2);
    wait_until_waiting(&env, &["a", "b"]);
    assert!(kept_for(&env).is_empty());
    let places = env.json(["check", "-v", "y"])["kept_places"].clone();
    assert_eq!(places, serde_json::json!([]));
    env.end();
    holder.finish();
    assert_eq!((again.finish(), last.finish()), (0, 0));
    assert_eq!(served(&env), ["a", "b"]);
}

#[test]
fn call_that_finds_the_hold_of_its_owner_has_had_its_turn() {
    let env = TestEnv::new();
    let mut holder = env.hold(&["x"]);
    let acquire = "acquire -w 1h --ttl 1h --owner a --keep-place 10m x";
    let mut both = [0, 1].map(|_| env.start(acquire.split(' ')));
    wait_until_waiting(&env, &["a", "a"]);
    env.end();
    holder.finish();
    assert_eq!(both.each_mut().map(Running::finish), [0, 0]);
    assert!(kept_for(&env).is_empty());
}

#[test]
fn place_is_lost_after_its_time_and_beyond_64() {
    let env = TestEnv::new();
    let mut holder = env.hold(&["x"]);
    let cut_off = |owner: &str, keep: &str| {
        let words = ["run", "-w", "0.05", "--owner", owner, "--keep-place", keep];
        env.output(words.into_iter().chain(["x", "--", "true"]))
    };
    let told = cut_off("short", "2");
    told.assert().code(7).stderr(contains("is kept for 2s"));
    assert_eq!(kept_for(&env), ["short"]);
    wait_until("its time has passed", || kept_for(&env).is_empty());
    for number in 0..65 {
        let told = cut_off(&format!("o-{number}"), "10m");
        let told = String::from_utf8_lossy(&told.stderr).contains("is kept for");
        assert_eq!(told, number < 64, "{number}");
    }
    let kept = kept_for(&env);
    assert_eq!((kept.len(), &*kept[0], &*kept[63]), (64, "o-0", "o-63"));
    env.end();
    holder.finish();
    // `cleanup` keeps those whose time has not passed.
    env.done(["cleanup"]);
    assert_eq!(kept_for(&env).len(), 64);
}

#[test]
fn place_needs_an_owner_a_name_and_at_most_half_an_hour() {
    let env = TestEnv::new();
    let cases: [(&[&str], &str); 3] = [
        (&["--keep-place", "1m", "x"], "is kept for an owner"),
        (
            &["--keep-place", "31m", "--owner", "o", "x"],
            "for 30m at most",
        ),
        (
            &["--keep-place", "1m", "--owner", "o", "./x"],
            "have no queue",
        ),
    ];
    for (words, told) in cases {
        let words = [&["run", "-w", "1"], words, &["--", "true"]].concat();
        env.onehold(words).assert().code(2).stderr(contains(told));
    }
}

#[test]
fn place_without_an_owner_is_refused_also_where_the_lock_is_free() {
    let env = TestEnv::new();
    for verb in ["run", "acquire"] {
        let words = [verb, "--keep-place", "1m", "x"];
        let words = if verb == "run" {
            [&words[..], &["--", "touch", "ran"]].concat()
        } else {
            words.to_vec()
        };
        let told = contains("a place in the queue is kept for an owner only: pass --owner");
        env.onehold(words).assert().code(2).stderr(told);
    }
    assert!(!env.path("ran").exists());
    assert_eq!(env.check("x"), 0);
}

#[test]
fn wait_is_cut_by_the_limit_of_the_configuration() {
    let env = TestEnv::new();
    let config = env.write("own.toml", "[defaults]\nwait-limit = \"200ms\"\n");
    let mut holder = env.hold(&["x"]);
    for wait in ["1h", "forever"] {
        let mut command = env.onehold(["run", "-w", wait, "x", "--", "true"]);
        command.env("ONEHOLD_CONFIG", &config);
        let told = contains("timed out after 0.2s");
        command.assert().code(7).stderr(told);
    }
    env.end();
    holder.finish();
}

const WAITERS: usize = 48;

/// When a call of a waiter was there.
struct Call {
    owner: usize,
    from: u128,
    to: u128,
}

fn now() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_nanos()
}

#[test]
fn waiters_whose_waits_are_cut_every_two_seconds_are_served_in_order_of_arrival() {
    let env = TestEnv::new();
    let mut holder = env.hold(&["x"]);
    let calls = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for owner in 0..WAITERS {
            let (env, calls) = (&env, &calls);
            let begun = Arc::new(AtomicBool::new(false));
            let has_begun = Arc::clone(&begun);
            scope.spawn(move || {
                let script = format!(
                    "echo {owner} $(date +%s%N) >> begun; sleep 0.1; echo $(date +%s%N) >> ended"
                );
                let name = format!("o-{owner}");
                let mut rng = Rng(owner as u64 + 1);
                loop {
                    let from = now();
                    let words = [
                        "run",
                        "-w",
                        "2",
                        "--owner",
                        &name,
                        "--keep-place",
                        "10m",
                        "x",
                    ];
                    let mut run = env.start(words.into_iter().chain(["--", "sh", "-c", &script]));
                    has_begun.store(true, Ordering::SeqCst);
                    // A third of them is killed, some before they have joined.
                    let code = if rng.below(3) == 0 {
                        let until = Duration::from_millis(rng.below(1_900) as u64);
                        let started = Instant::now();
                        let mut is_killed = false;
                        while !run.has_ended() && !is_killed {
                            std::thread::sleep(Duration::from_millis(5));
                            let is_served = std::fs::read_to_string(env.path("begun"))
                                .unwrap_or_default()
                                .lines()
                                .any(|line| line.starts_with(&format!("{owner} ")));
                            is_killed = started.elapsed() > until && !is_served;
                        }
                        if is_killed && !run.has_ended() {
                            run.signal(Signal::KILL);
                        }
                        run.finish()
                    } else {
                        run.finish()
                    };
                    let call = Call {
                        owner,
                        from,
                        to: now(),
                    };
                    calls.lock().unwrap().push(call);
                    if code == 0 {
                        return;
                    }
                }
            });
            // The first calls arrive one after the other.
            wait_until("it has joined", || {
                begun.load(Ordering::SeqCst)
                    && (env.number_of_waiters("x") + kept_for(env).len()) > owner
            });
        }
        // Each is cut several times.
        std::thread::sleep(Duration::from_secs(5));
        env.end();
        holder.finish();
    });
    let calls = calls.into_inner().unwrap();
    println!("{} calls", calls.len());
    assert!(calls.len() >= WAITERS * 3 / 2, "{} calls", calls.len());
    assert_served_in_order_and_at_once(&env, &calls);
}

/// No waiter is passed by a later one while it waits, and the lock is not idle.
fn assert_served_in_order_and_at_once(env: &TestEnv, calls: &[Call]) {
    /// A call joins the queue within this time, on a busy machine, too.
    const STARTS: u128 = 1_000_000_000;
    let begun = std::fs::read_to_string(env.path("begun")).unwrap();
    let begun: Vec<(usize, u128)> = begun
        .lines()
        .map(|line| {
            let (owner, at) = line.split_once(' ').unwrap();
            (owner.parse().unwrap(), at.parse().unwrap())
        })
        .collect();
    // Killed after it was served: served again, which is none of our business.
    let mut order: Vec<usize> = begun.iter().map(|(owner, _)| *owner).collect();
    order.dedup();
    let mut is_served = [false; WAITERS];
    for (owner, at) in &begun {
        for call in calls {
            let is_earlier = call.owner < *owner && !is_served[call.owner];
            let waited = call.from + STARTS < *at && call.to > *at + STARTS / 4;
            assert!(
                !(is_earlier && waited),
                "{} was passed by {owner}: {order:?}",
                call.owner
            );
        }
        is_served[*owner] = true;
    }
    assert!(is_served.iter().all(|is_served| *is_served), "{order:?}");
    let ended = std::fs::read_to_string(env.path("ended")).unwrap();
    let ended: Vec<u128> = ended.lines().map(|line| line.parse().unwrap()).collect();
    let mut gaps: Vec<u128> = begun[1..]
        .iter()
        .zip(&ended)
        .map(|((_, begun), ended)| begun.saturating_sub(*ended) / 1_000_000)
        .collect();
    gaps.sort_unstable();
    println!("gaps of {} to {} ms", gaps[0], gaps[gaps.len() - 1]);
    // Somebody waited all the time.
    assert!(gaps[gaps.len() / 2] < 60, "{gaps:?}");
    assert!(gaps[gaps.len() - 1] < 1_000, "{gaps:?}");
}

#[test]
fn place_of_several_locks_is_kept_in_whatever_order_they_are_named() {
    let env = TestEnv::new();
    let mut holder = env.hold(&["x"]);
    assert_eq!(call(&env, "a", "0.1", &["x", "y"]).finish(), 7);
    let _behind = call(&env, "b", "1h", &[]);
    wait_until_waiting(&env, &["b"]);
    let mut again = call(&env, "a", "1h", &["y", "x"]);
    wait_until_waiting(&env, &["a", "b"]);
    assert!(kept_for(&env).is_empty());
    let places = env.json(["check", "-v", "y"])["kept_places"].clone();
    assert_eq!(places, serde_json::json!([]));
    env.end();
    holder.finish();
    assert_eq!(again.finish(), 0);
    assert_eq!(served(&env)[0], "a");
}

#[test]
fn each_kept_place_has_a_position_of_its_own() {
    let env = TestEnv::new();
    let mut holder = env.hold(&["x"]);
    for (owner, place) in [("a", "1st"), ("b", "2nd"), ("c", "3rd"), ("b", "2nd")] {
        let (_, _, told) = call(&env, owner, "0.1", &[]).finish_with_output();
        let told_place = format!("; your place ({place}) is kept for 10m\n");
        assert!(told.contains(&told_place), "{owner}: {told}");
    }
    env.end();
    holder.finish();
}

#[test]
fn place_that_is_not_kept_since_nobody_waits_is_said() {
    let env = TestEnv::new();
    let mut holder = env.hold(&["x"]);
    let run = [
        "run",
        "-q",
        "--keep-place",
        "5m",
        "--owner",
        "o",
        "x",
        "--",
        "true",
    ];
    let said = "onehold: warning: no place is kept: --keep-place has no effect without --wait\n";
    env.onehold(run).assert().code(6).stderr(said);
    env.end();
    holder.finish();
    env.onehold(run).assert().success().stderr("");
}
