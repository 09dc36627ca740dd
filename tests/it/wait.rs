//! `onehold wait`: until locks are free, without taking them.

use std::fs;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use assert_cmd::prelude::OutputAssertExt;
use predicates::str::contains;

use crate::harness::seen::state;
use crate::harness::{
    CONTENDERS, INCREMENT, Running, Signal, TestEnv, is_blocked_in_flock, program, send,
    wait_until, watches_a_file,
};

#[test]
fn wait_for_free_locks_ends_at_once_and_leaves_nothing() {
    let env = TestEnv::new();
    env.done(["wait", "a", "b/c", "./d"]);
    assert!(!env.store().exists() && !env.path("d").exists());
    env.create_zombie("a");
    env.done(["wait", "a", "-w", "0"]);
    let free = env.json(["wait", "b"]);
    assert_eq!(free["status"], "clean");
    assert_eq!(free["lock"]["state"], "free");
    assert_eq!(
        env.json(["wait", "b", "c"])["locks"]
            .as_array()
            .map(Vec::len),
        Some(2)
    );
    env.onehold(["wait"]).assert().code(2);
}

#[test]
fn wait_is_over_at_its_limit() {
    let env = TestEnv::new();
    let mut holder = env.hold(&["x/y"]);
    for name in ["x/y", "x", "x/y/z"] {
        env.onehold(["wait", "free", name, "-w", "100ms"])
            .assert()
            .code(7)
            .stderr(contains("timed out after 0.1s: `x/y`"));
    }
    env.onehold(["wait", "x/y", "-w", "0"]).assert().code(6);
    // The limit is for all of them, and so is the time that is said.
    env.done(["acquire", "a", "--ttl", "700ms", "--owner", "me"]);
    env.onehold(["wait", "a", "x", "-w", "1s"])
        .assert()
        .code(7)
        .stderr(contains("timed out after 1s: `x/y`"));
    env.onehold(["wait", "x", "-w", "1ms", "-E", "9"])
        .assert()
        .code(9);
    let json = env.json(["wait", "x/y", "-w", "1ms"]);
    assert_eq!(
        (&json["status"], &json["error"]["code"]),
        (&"timeout".into(), &"TIMEOUT".into())
    );
    env.configure("[defaults]\nwait-limit = \"1ms\"\n");
    env.onehold(["wait", "x"]).assert().code(7);
    env.end();
    holder.finish();
}

/// It would wait for itself.
#[test]
fn wait_under_the_hold_itself_is_refused_at_once() {
    let env = TestEnv::new();
    let line = "onehold wait x; echo $? >> codes; onehold wait x/y; echo $? >> codes";
    env.done(["run", "x", "--", "sh", "-c", line]);
    assert_eq!(fs::read_to_string(env.path("codes")).unwrap(), "6\n6\n");
}

#[test]
fn wait_sleeps_in_the_kernel_and_takes_no_place_in_the_queue() {
    let env = TestEnv::new();
    let mut run = env.hold(&["x"]);
    let mut waits = env.start(["wait", "x"]);
    wait_until("it sleeps", || is_blocked_in_flock(waits.pid()));
    assert_eq!(env.number_of_waiters("x"), 0);
    let holder = Running::sleeper();
    env.done(["acquire", "y", "--pid", &holder.pid().to_string()]);
    let mut waits_for_process = env.start(["wait", "y"]);
    wait_until("it sleeps", || watches_a_file(waits_for_process.pid()));
    env.end();
    assert_eq!((run.finish(), waits.finish()), (0, 0));
    drop(holder);
    assert_eq!(waits_for_process.finish(), 0);
    // A signal ends it as any other wait.
    fs::remove_file(env.path("end")).unwrap();
    let _run = env.hold(&["x"]);
    let mut waits = env.start(["wait", "x"]);
    wait_until("it sleeps", || is_blocked_in_flock(waits.pid()));
    waits.signal(Signal::TERM);
    assert_eq!(waits.finish(), -15);
}

/// Those that want the lock are served in order, as if nobody waited beside them.
#[test]
fn eight_that_wait_delay_none_of_eight_that_take_the_lock() {
    let env = TestEnv::new();
    let mut holder = env.hold(&["x"]);
    let mut takers = Vec::new();
    let mut waits = Vec::new();
    for number in 0..CONTENDERS {
        let script = format!("{INCREMENT}; echo {number} >> order");
        takers.push(env.start(["run", "-w", "60", "x", "--", "sh", "-c", &script]));
        wait_until("it is in the queue", || {
            env.number_of_waiters("x") == number + 1
        });
        // It says how many have had the lock by then.
        let script = "onehold wait x && wc -l < order >> seen";
        waits.push(Running::start(env.shell(script)));
    }
    let innocents = ["free", "x2"].map(|name| env.code(["run", name, "--", "true"]));
    assert_eq!(innocents, [0, 0]);
    env.end();
    holder.finish();
    for each in takers.iter_mut().chain(&mut waits) {
        assert_eq!(each.finish(), 0);
    }
    assert_eq!(env.count_in("number"), CONTENDERS);
    let order: Vec<String> = (0..CONTENDERS).map(|number| number.to_string()).collect();
    assert_eq!(
        fs::read_to_string(env.path("order"))
            .unwrap()
            .lines()
            .collect::<Vec<_>>(),
        order
    );
    // The lock is never free while somebody waits for it.
    let seen = fs::read_to_string(env.path("seen")).unwrap();
    assert!(
        seen.lines().all(|line| line == CONTENDERS.to_string()),
        "{seen}"
    );
    assert_eq!(env.left_in_store(), [""; 0]);
}

#[test]
fn wait_works_with_each_format() {
    for (format, options) in [
        ("native", &[][..]),
        ("prodigy", &[]),
        ("sprint", &["--owner", "s", "-m", "e"]),
        ("memory", &[]),
        ("pid", &[]),
        ("flock", &[]),
    ] {
        let env = TestEnv::new();
        let path = if format == "pid" {
            "./x.pid"
        } else {
            "./x.lock"
        };
        let mut holder = env.hold(&[&["--format", format, path], options].concat());
        let wait = ["wait", "--format", format, path];
        env.onehold(wait).args(["-w", "20ms"]).assert().code(7);
        let mut waits = env.start(wait);
        // flock(1) finds the lock free as soon as it is: nothing was taken by the wait.
        env.end();
        assert_eq!((holder.finish(), waits.finish()), (0, 0), "{format}");
    }
}

#[test]
fn wait_for_several_locks_ends_when_all_are_free() {
    let env = TestEnv::new();
    for name in ["a", "b"] {
        env.done(["acquire", name, "--ttl", "1h", "--owner", "o"]);
    }
    let mut waits = env.start(["wait", "a", "b"]);
    wait_until("it sleeps", || watches_a_file(waits.pid()));
    env.done(["release", "a", "--owner", "o"]);
    // While it waits for the second, the first is taken again.
    env.done(["acquire", "a", "--ttl", "1h", "--owner", "o"]);
    env.done(["release", "b", "--owner", "o"]);
    assert!(!waits.has_ended());
    env.done(["release", "a", "--owner", "o"]);
    assert_eq!(waits.finish(), 0);
}

/// How many calls a command makes in some time, once it sleeps and nothing happens. Strace writes them into a file.
fn calls_at_rest(env: &TestEnv, words: &[&str]) -> (Running, usize) {
    let mut command = env.command("strace");
    command
        .args(["-f", "-qq", "-s", "4096", "-o", "calls"])
        .arg(program())
        .args(words)
        .stdout(Stdio::null());
    let running = Running::start(command);
    let calls = || {
        let calls = fs::read_to_string(env.path("calls")).unwrap_or_default();
        calls.lines().count()
    };
    let mut before = 0;
    wait_until("it sleeps", || {
        sleep(Duration::from_millis(500));
        let seen = std::mem::replace(&mut before, calls());
        before > 0 && before == seen
    });
    // Nothing happens in this time, which is what is tested.
    sleep(Duration::from_secs(3));
    (running, calls() - before)
}

#[test]
#[ignore = "needs strace: apt install strace"]
fn wait_makes_no_call_until_the_lock_is_free() {
    let env = TestEnv::new();
    let mut run = env.hold(&["run"]);
    let mut sleeper = Running::sleeper();
    let pid = sleeper.pid().to_string();
    env.done(["acquire", "process", "--pid", &pid]);
    env.done(["acquire", "lease", "--ttl", "1h", "--owner", "o"]);
    let ends: [(&str, &mut dyn FnMut()); 3] = [
        ("run", &mut || env.end()),
        ("process", &mut || sleeper.kill()),
        ("lease", &mut || {
            env.done(["release", "lease", "--owner", "o"]);
        }),
    ];
    for (name, end) in ends {
        let (mut waits, calls) = calls_at_rest(&env, &["wait", name]);
        assert_eq!(calls, 0, "{name}");
        end();
        assert_eq!(waits.finish(), 0);
        fs::remove_file(env.path("calls")).unwrap();
    }
    assert_eq!(run.finish(), 0);
}

#[test]
#[ignore = "needs strace: apt install strace"]
fn stream_of_events_makes_no_call_until_something_happens() {
    let env = TestEnv::new();
    let mut run = env.hold(&["run"]);
    let sleeper = Running::sleeper();
    let pid = sleeper.pid().to_string();
    env.done(["acquire", "process", "--pid", &pid]);
    env.done(["acquire", "lease", "--ttl", "1h"]);
    let _waiter = env.start(["run", "-w", "forever", "process", "--", "true"]);
    wait_until("it waits", || env.number_of_waiters("process") == 1);
    // The waiter looks every 5 s whether the holder was stopped, and tells nobody.
    let (mut events, calls) = calls_at_rest(&env, &["list", "--watch", "--json"]);
    assert_eq!(calls, 0);
    env.end();
    assert_eq!(run.finish(), 0);
    wait_until("it has told of the end", || {
        let calls = fs::read_to_string(env.path("calls")).unwrap();
        calls.contains(r#"\"event\":\"released\""#)
    });
    events.kill();
}

#[test]
fn wait_ends_with_the_work_of_a_hold_whose_wrapper_and_caller_were_killed() {
    let env = TestEnv::new();
    let script = "echo $$ > caller; onehold run --die-with parent x -- sh -c \"$1\"; :";
    let work = "trap '' TERM; echo $$ > work; until test -e go; do sleep 0.02; done";
    for is_at_work in [false, true] {
        let mut shell = env.command("setsid");
        shell.args(["sh", "-c", script, "sh", work]);
        let _shell = Running::start(shell);
        wait_until("it works", || env.lines("work") == 1);
        let wrapper = env.lock("x")["wrapper_pid"].as_u64().unwrap();
        let killed = [u32::try_from(wrapper).unwrap(), env.pid_in("caller")];
        for pid in killed {
            send(pid, Signal::KILL);
        }
        if !is_at_work {
            send(env.pid_in("work"), Signal::KILL);
        }
        let wait = ["wait", "x", "-w", "20"];
        let mut waits = env.start(wait);
        if is_at_work {
            let waiter = waits.pid();
            wait_until("it sleeps", || state(waiter).as_deref() == Some("S"));
            assert_eq!(env.code(["wait", "x", "-w", "0.2"]), 7);
            fs::write(env.path("go"), "").unwrap();
        }
        assert_eq!(waits.finish(), 0, "at work: {is_at_work}");
        env.done(["run", "x", "--", "true"]);
        fs::remove_file(env.path("work")).unwrap();
    }
}

#[test]
fn wait_in_a_script_for_its_own_lock_says_how_to_release_it() {
    let env = TestEnv::new();
    let script = "onehold acquire x >/dev/null; onehold wait x";
    let told = env.shell(script).output().unwrap();
    assert_eq!(told.status.code(), Some(6));
    let told = String::from_utf8(told.stderr).unwrap();
    let hint = "  your own shell or script holds it: run `onehold --dir ";
    assert!(told.contains(hint), "{told}");
}
