//! `run --hold-at-least`: a lock that stays taken when its command has ended.

use crate::harness::{
    CONTENDERS, Signal, TestEnv, exit_code, last_json_object, run_together, sorted_codes, time,
    wait_until,
};

/// A run of `true` that keeps the lock, and its hold number.
fn keep(env: &TestEnv, words: &[&str]) -> String {
    let mut run = vec!["run", "--hold-at-least", "1h"];
    run.extend(words);
    run.extend(["--", "sh", "-c", "echo $ONEHOLD_HOLD"]);
    env.done(run).trim().to_owned()
}

fn assert_kept(env: &TestEnv, name: &str) {
    let lock = env.lock(name);
    assert_eq!(
        (&lock["state"], &lock["reason"]),
        (&"held".into(), &"kept".into()),
        "{lock}"
    );
}

#[test]
fn lock_stays_taken_and_says_how_its_command_ended() {
    let env = TestEnv::new();
    let script = "echo $ONEHOLD_HOLD > number; exit 3";
    let run = [
        "run",
        "--hold-at-least",
        "1h",
        "-m",
        "nightly",
        "x",
        "--",
        "sh",
        "-c",
        script,
    ];
    assert_eq!(env.code(run), 3);
    let number = std::fs::read_to_string(env.path("number")).unwrap();
    let number = number.trim();
    assert_eq!(env.check("x"), 6);
    assert_kept(&env, "x");
    let lock = env.lock("x");
    assert_eq!(lock["hold"].to_string(), number);
    assert_eq!(lock["kind"], "lease");
    assert_eq!(
        (&lock["exit_code"], &lock["signal"]),
        (&3.into(), &().into())
    );
    assert_eq!(lock["ttl_seconds"], 3600.0);
    let times = ["acquired_at", "ended_at", "expires_at"].map(|key| time(&lock[key]));
    assert!(times.is_sorted(), "{times:?}");
    let refused = env.output(["run", "x", "--", "touch", "started"]);
    assert_eq!(exit_code(refused.status), 6);
    let told = String::from_utf8(refused.stderr).unwrap();
    let first = told.lines().next().unwrap();
    assert!(first.starts_with("onehold: `x` ran on "), "{told}");
    assert!(
        first.contains(" for 0s (exit 3) and stays locked until "),
        "{told}"
    );
    assert!(
        first.ends_with(" (--hold-at-least 1h): \"nightly\""),
        "{told}"
    );
    assert_eq!(
        env.code(["run", "-n", "-E", "0", "x", "--", "touch", "started"]),
        0
    );
    assert!(!env.path("started").exists());
    let listed = env.done(["list", "--state", "kept"]);
    assert!(listed.contains("finished run (sh)"), "{listed}");
    assert_eq!(env.code(["release", "x"]), 4);
    assert_eq!(env.code(["renew", "x", "--hold", number]), 3);
    assert_eq!(env.code(["release", "x", "--hold", number]), 0);
    assert_eq!(env.check("x"), 0);
    assert!(env.left_in_store().is_empty());
}

#[test]
fn its_owner_release_break_and_force_end_it() {
    let env = TestEnv::new();
    keep(&env, &["--owner", "me", "x"]);
    // It is not a lease that its owner may ask for again.
    let again = ["acquire", "x", "--owner", "me", "--ttl", "1h"];
    assert_eq!(env.code(again), 6);
    assert_eq!(env.code(["release", "x", "--owner", "me"]), 0);
    assert_eq!(env.code(again), 0);
    env.done(["release", "x", "--owner", "me"]);
    keep(&env, &["x"]);
    env.done(["break", "x", "--yes"]);
    assert_eq!(env.check("x"), 0);
    let before = keep(&env, &["x"]);
    let after = keep(&env, &["--force", "--yes", "x"]);
    assert!(after.parse::<u64>().unwrap() > before.parse::<u64>().unwrap());
    assert_kept(&env, "x");
}

#[test]
fn time_that_is_over_leaves_a_free_lock() {
    let env = TestEnv::new();
    let run = ["run", "--hold-at-least", "0.3", "x", "--", "true"];
    env.done(run);
    wait_until("it is free", || env.check("x") == 0);
    assert_eq!(env.lock("x")["reason"], "finished");
    // Nothing was taken from anybody.
    let next = env.output(["run", "-v", "x", "--", "true"]);
    let told = String::from_utf8(next.stderr).unwrap();
    assert!(!told.contains("took"), "{told}");
    assert!(env.left_in_store().is_empty());
    env.done(run);
    wait_until("it is free", || env.check("x") == 0);
    env.done(["cleanup"]);
    assert!(env.left_in_store().is_empty());
    // A command that takes longer than that leaves nothing.
    let long = ["run", "--hold-at-least", "0.1", "x", "--", "sleep", "0.3"];
    env.done(long);
    assert!(env.left_in_store().is_empty());
}

#[test]
fn lock_stays_taken_after_term_and_time_limit_but_not_after_break_and_failed_start() {
    let env = TestEnv::new();
    let limited = [
        "run",
        "--hold-at-least",
        "1h",
        "--time-limit",
        "0.3",
        "limited",
    ];
    assert_eq!(
        env.code(limited.into_iter().chain(["--", "sleep", "60"])),
        124
    );
    assert_kept(&env, "limited");
    assert_eq!(env.lock("limited")["signal"], 15);
    let start = |name| {
        let run = env.start(["run", "--hold-at-least", "1h", name, "--", "sleep", "60"]);
        wait_until("it runs", || env.lock(name)["pid_alive"] == true);
        run
    };
    let mut terminated = start("terminated");
    terminated.signal(Signal::TERM);
    assert_eq!(terminated.finish(), 143);
    assert_kept(&env, "terminated");
    let mut broken = start("broken");
    env.done(["break", "broken", "--yes"]);
    assert_eq!(broken.finish(), 8);
    assert_eq!(env.check("broken"), 0);
    // As if there were no such option.
    let mut killed = start("killed");
    killed.kill();
    env.done(["break", "killed", "--yes"]);
    assert_eq!(env.check("killed"), 0);
    std::fs::write(env.path("no_program"), "").unwrap();
    for (program, code) in [("./no_program", 126), ("./nothing", 127)] {
        let run = ["run", "--hold-at-least", "1h", "failed", "--", program];
        assert_eq!(env.code(run), code);
        assert_eq!(env.check("failed"), 0);
    }
}

#[test]
fn contenders_run_one_after_another_and_not_sooner_than_that() {
    let env = TestEnv::new();
    let script = "date +%s%N >> began";
    let run = [
        "run",
        "-w",
        "60",
        "--hold-at-least",
        "0.4",
        "x",
        "--",
        "sh",
        "-c",
        script,
    ];
    let calls = (0..CONTENDERS).map(|_| env.onehold(run)).collect();
    let outputs = run_together(calls);
    assert_eq!(sorted_codes(&outputs), [0; CONTENDERS]);
    let began = std::fs::read_to_string(env.path("began")).unwrap();
    let began: Vec<u64> = began.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(began.len(), CONTENDERS);
    // Between taking the lock and the first word of the command some time passes, at most this.
    let least = 400_000_000 - 150_000_000;
    assert!(
        began.is_sorted_by(|one, next| next - one >= least),
        "{began:?}"
    );
}

#[test]
fn what_a_command_leaves_behind_can_wait_for_the_end() {
    let env = TestEnv::new();
    // Before that it would be refused: its own run would never end.
    let left = "(until ! kill -0 $PPID; do sleep 0.01; done; \
        onehold run -w 60 x -- touch served) >/dev/null 2>&1 &";
    let run = ["run", "--hold-at-least", "1s", "x", "--", "sh", "-c", left];
    env.done(run);
    assert_kept(&env, "x");
    wait_until("it has had its turn", || {
        env.path("served").exists() && env.check("x") == 0
    });
    // Nor is it still inside.
    let left = "(until ! kill -0 $PPID; do sleep 0.01; done; \
        onehold run --reentrant x -- touch reentered; echo $? > code) >/dev/null 2>&1 &";
    env.done(["run", "--hold-at-least", "1h", "x", "--", "sh", "-c", left]);
    wait_until("it is refused", || env.path("code").exists());
    assert!(!env.path("reentered").exists());
}

#[test]
fn hold_of_several_locks_and_a_slot_stay_taken_as_they_were() {
    let env = TestEnv::new();
    let number = keep(&env, &["x", "section/y"]);
    for name in ["x", "section/y"] {
        assert_kept(&env, name);
    }
    assert_eq!(env.code(["run", "section", "--", "true"]), 6);
    env.done(["release", "section/y", "--hold", &number]);
    assert_eq!((env.check("x"), env.check("section/y")), (0, 0));
    for _ in 0..2 {
        keep(&env, &["--slots", "2", "pool"]);
    }
    assert_eq!(env.code(["run", "--slots", "2", "pool", "--", "true"]), 6);
    assert_eq!(env.code(["run", "--slots", "3", "pool", "--", "true"]), 0);
}

#[test]
fn it_is_refused_where_nothing_would_keep_it() {
    let env = TestEnv::new();
    for (words, code) in [
        (&["run", "--hold-at-least", "forever", "x"][..], 2),
        (&["run", "--hold-at-least", "5s", "--exec", "x"], 2),
        (
            &["--format", "pid", "run", "--hold-at-least", "5s", "./x"],
            2,
        ),
        (
            &["--format", "flock", "run", "--hold-at-least", "5s", "./x"],
            2,
        ),
    ] {
        let words = words.iter().copied().chain(["--", "touch", "started"]);
        assert_eq!(
            env.code(words.clone()),
            code,
            "{:?}",
            words.collect::<Vec<_>>()
        );
    }
    assert_eq!(env.code(["acquire", "--hold-at-least", "5s", "x"]), 2);
    assert_eq!(env.code(["hold", "--hold-at-least", "5s", "x"]), 2);
    assert!(!env.path("started").exists());
}

#[test]
fn sticky_directory_has_no_lock_that_stays_taken() {
    let env = TestEnv::new();
    std::fs::create_dir(env.store()).unwrap();
    let sticky = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
    std::fs::set_permissions(env.store(), sticky).unwrap();
    let refused = env.output([
        "run",
        "--hold-at-least",
        "1s",
        "x",
        "--",
        "touch",
        "started",
    ]);
    assert_eq!(exit_code(refused.status), 2);
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(
        told.contains("in a sticky directory nobody else could take the lock afterwards"),
        "{told}"
    );
    assert!(!env.path("started").exists());
}

#[test]
fn hold_that_has_lost_one_of_its_locks_keeps_none() {
    let env = TestEnv::new();
    let script = "rm \"$ONEHOLD_DIR/x.lock\"";
    let run = [
        "run",
        "--hold-at-least",
        "1h",
        "x",
        "y",
        "--",
        "sh",
        "-c",
        script,
    ];
    assert_eq!(env.code(run), 8);
    assert!(env.left_in_store().is_empty());
}

#[test]
fn lock_that_could_not_be_released_is_not_said_to_be() {
    let env = TestEnv::new();
    let script = "mkdir \"$ONEHOLD_DIR/other\"; mv \"$ONEHOLD_DIR\" gone; ln -s /proc/self/nothing \"$ONEHOLD_DIR\"";
    let output = env.output([
        "run",
        "--json",
        "--hold-at-least",
        "1h",
        "x",
        "--",
        "sh",
        "-c",
        script,
    ]);
    let object = last_json_object(&output.stderr);
    assert_ne!(object["status"], "released", "{object}");
    assert_ne!(object["status"], "kept", "{object}");
}
