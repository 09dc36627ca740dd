//! Whoever could take a free lock takes it, whatever others wait for ahead of it: at once if they run, and
//! 10 s later at most for each that is stopped.

use std::time::{Duration, Instant};

use crate::harness::{CONTENDERS, Running, Signal, TestEnv, wait_until};

/// A waiter sleeps for half a second first, to report that it waits, and looks again then.
const FIRST_SLEEP: Duration = Duration::from_millis(1200);

/// Starts a waiter, and returns when it is in the queue.
fn start_waiter(env: &TestEnv, name: &str, args: &[&str], script: &str) -> Running {
    let before = env.number_of_waiters(name);
    // What it reports meanwhile would make it look again.
    let mut words = vec!["run", "-q", "-w", "forever"];
    words.extend(args);
    words.extend(["--", "sh", "-c", script]);
    let waiter = env.start(words);
    wait_until("it is in the queue", || {
        env.number_of_waiters(name) == before + 1
    });
    waiter
}

/// Lets `CONTENDERS` waiters of one kind wait behind two others that cannot go on, ends the hold in their
/// way, and returns how long it takes until all of them are served.
fn time_behind(env: &TestEnv, other: &[&str], contender: &[&str], ended: &str) -> Duration {
    let name = contender.last().unwrap();
    let _others = [(); 2].map(|()| start_waiter(env, other.last().unwrap(), other, "true"));
    let mut contenders: Vec<Running> = (0..CONTENDERS)
        .map(|_| start_waiter(env, name, contender, "echo >> served"))
        .collect();
    std::thread::sleep(FIRST_SLEEP);
    let released = Instant::now();
    std::fs::remove_file(env.path(ended)).unwrap();
    for contender in &mut contenders {
        assert_eq!(contender.finish(), 0);
    }
    assert_eq!(env.lines("served"), CONTENDERS);
    released.elapsed()
}

/// Holds locks as long as a file exists.
fn hold_while(env: &TestEnv, args: &[&str], file: &str) -> Running {
    let script = format!("echo > {file}; while test -e {file}; do sleep 0.01; done");
    let mut words = vec!["run"];
    words.extend(args);
    words.extend(["--", "sh", "-c", &script]);
    let holder = env.start(words);
    wait_until("the command has begun", || env.path(file).exists());
    holder
}

#[track_caller]
fn assert_not_late(took: Duration) {
    // A waiter that sleeps on the wrong one looks again after 4 to 60 s.
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[test]
fn waiter_for_two_locks_does_not_delay_waiters_for_one() {
    let env = TestEnv::new();
    let _kept = hold_while(&env, &["y"], "kept");
    let _ended = hold_while(&env, &["x"], "ended");
    let took = time_behind(&env, &["y", "x"], &["x"], "ended");
    std::fs::remove_file(env.path("kept")).unwrap();
    assert_not_late(took);
}

#[test]
fn waiter_for_the_parent_does_not_delay_waiters_for_a_child() {
    let env = TestEnv::new();
    let _kept = hold_while(&env, &["a/x"], "kept");
    let _ended = hold_while(&env, &["a/b"], "ended");
    let took = time_behind(&env, &["a"], &["a/b"], "ended");
    std::fs::remove_file(env.path("kept")).unwrap();
    assert_not_late(took);
}

#[test]
fn waiter_of_another_owner_does_not_delay_the_owner_of_a_child() {
    let env = TestEnv::new();
    env.done(["acquire", "b/t", "--ttl", "5m", "--owner", "o"]);
    let _ended = hold_while(&env, &["--owner", "o", "b"], "ended");
    let took = time_behind(&env, &["b"], &["--owner", "o", "b"], "ended");
    env.done(["release", "b/t", "--owner", "o"]);
    assert_not_late(took);
}

#[test]
fn waiter_for_two_locks_does_not_delay_waiters_for_a_slot() {
    let env = TestEnv::new();
    let _kept = hold_while(&env, &["y"], "kept");
    let _slots = [
        hold_while(&env, &["--slots", "3", "x"], "first"),
        hold_while(&env, &["--slots", "3", "x"], "second"),
        hold_while(&env, &["--slots", "3", "x"], "ended"),
    ];
    let two = ["--slots", "3", "y", "x"];
    let took = time_behind(&env, &two, &["--slots", "3", "x"], "ended");
    for file in ["kept", "first", "second"] {
        std::fs::remove_file(env.path(file)).unwrap();
    }
    assert_not_late(took);
}

/// How long a waiter waits for a free lock behind `CONTENDERS` others, of which some are stopped.
fn time_behind_stopped(stopped: &[usize]) -> Duration {
    let env = TestEnv::new();
    let mut holder = env.hold(&["x"]);
    let mut waiters: Vec<Running> = (0..=CONTENDERS)
        .map(|at| start_waiter(&env, "x", &["x"], &format!("echo {at} >> served")))
        .collect();
    for at in stopped {
        waiters[*at].signal(Signal::STOP);
    }
    std::thread::sleep(FIRST_SLEEP);
    let released = Instant::now();
    env.end();
    holder.finish();
    assert_eq!(waiters[CONTENDERS].finish(), 0);
    let took = released.elapsed();
    assert_eq!(env.lines("served"), CONTENDERS + 1 - stopped.len());
    took
}

#[test]
fn each_stopped_waiter_ahead_costs_at_most_10s() {
    let last = CONTENDERS - 1;
    for stopped in [&[0][..], &[last], &[0, 1], &[3, last]] {
        let took = time_behind_stopped(stopped);
        println!("{stopped:?} stopped: {took:?}");
        let bound = Duration::from_secs(10) * u32::try_from(stopped.len()).unwrap();
        assert!(
            took < bound + Duration::from_secs(2),
            "{stopped:?}: {took:?}"
        );
    }
}

/// It sleeps on the hold itself, so it learns at once that the lock is free, and waits for the turn of the
/// stopped one alone. Behind the stopped one it would look 5 s later.
#[test]
fn waiters_that_come_behind_a_stopped_one_wait_for_its_turn_only() {
    let env = TestEnv::new();
    let mut holder = env.hold(&["x"]);
    let stopped = start_waiter(&env, "x", &["x"], "true");
    stopped.signal(Signal::STOP);
    let mut waiters: Vec<Running> = (0..CONTENDERS)
        .map(|_| start_waiter(&env, "x", &["x"], "echo >> served"))
        .collect();
    std::thread::sleep(FIRST_SLEEP);
    let released = Instant::now();
    env.end();
    holder.finish();
    for waiter in &mut waiters {
        assert_eq!(waiter.finish(), 0);
    }
    let took = released.elapsed();
    assert_eq!(env.lines("served"), CONTENDERS);
    assert!(took < Duration::from_secs(8), "{took:?}");
}

/// The writer looks less often behind what has no kernel lock, and its turn lasts for 5 s.
#[test]
fn waiting_writer_is_not_passed_by_readers_while_a_detached_reader_lasts() {
    let env = TestEnv::new();
    let mut reader = Running::sleeper();
    let pid = reader.pid().to_string();
    env.done(["acquire", "-s", "x", "--pid", &pid]);
    let mut writer = start_waiter(&env, "x", &["x"], "echo >> written");
    let began = Instant::now();
    let mut asked = 0;
    while began.elapsed() < Duration::from_secs(12) {
        let code = env.code(["run", "-n", "-s", "x", "--", "sh", "-c", "echo >> read"]);
        assert_eq!(code, 6, "after {:?}", began.elapsed());
        asked += 1;
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(asked >= 8, "{asked}");
    reader.kill();
    assert_eq!(writer.finish(), 0);
    assert_eq!((env.lines("written"), env.lines("read")), (1, 0));
}

#[test]
fn reader_below_a_shared_hold_is_not_kept_waiting_by_a_writer() {
    let detached = "onehold acquire -s x > number; echo > begun; until test -e go; do sleep 0.01; done; \
        onehold run -n -s x -- true; echo $? > code";
    let attached = "onehold run -s x -- sh -c 'echo > begun; until test -e go; do sleep 0.01; done; \
        env -u ONEHOLD_HOLDS onehold run -n -s x -- true; echo $? > code'";
    for script in [detached, attached] {
        let env = TestEnv::new();
        let mut reader = Running::start(env.shell(script));
        wait_until("it reads", || env.path("begun").exists());
        let mut writer = start_waiter(&env, "x", &["x"], "true");
        std::thread::sleep(FIRST_SLEEP);
        std::fs::write(env.path("go"), "").unwrap();
        assert_eq!(reader.finish(), 0);
        let code = std::fs::read_to_string(env.path("code")).unwrap();
        assert_eq!(code.trim(), "0", "{script}");
        assert_eq!(writer.finish(), 0);
    }
}

/// Each of three readers begins before the one before it ends, so there always is one.
#[test]
fn waiting_writer_is_not_passed_by_readers_that_come_in_turns() {
    let env = TestEnv::new();
    let mut first = Running::sleeper();
    let pid = first.pid().to_string();
    env.done(["acquire", "-s", "x", "--pid", &pid]);
    let mut writer = start_waiter(&env, "x", &["x"], "echo writer >> order");
    let mut readers: Vec<Running> = (0..CONTENDERS)
        .map(|_| start_waiter(&env, "x", &["-s", "x"], "echo reader >> order"))
        .collect();
    let began = Instant::now();
    wait_until("its turn has been noted twice", || {
        began.elapsed() > Duration::from_secs(7)
    });
    first.kill();
    assert_eq!(writer.finish(), 0);
    for reader in &mut readers {
        assert_eq!(reader.finish(), 0);
    }
    let order = std::fs::read_to_string(env.path("order")).unwrap();
    assert_eq!(order.lines().next(), Some("writer"), "{order}");
}
