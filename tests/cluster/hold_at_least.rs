use std::fs;
use std::process::Stdio;
use std::thread::scope;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::clocks::WallClock;
use crate::cluster::{Cluster, On};
use crate::harness::{
    CONTENDERS, Running, exit_code, json_object, run_together, sorted_codes, wait_until,
};
use crate::keeper::{children_of, send};
use crate::proxy::Proxy;
use crate::scene::scenes;

scenes! {
    lock_stays_taken_and_says_how_its_command_ended,
    contenders_run_one_after_another_and_not_sooner_than_that,
    broken_and_killed_runs_keep_nothing,
    lock_is_kept_although_its_lease_has_ended_while_the_run_was_cut_off,
    lock_that_another_has_taken_over_or_that_a_signal_gives_up_is_lost,
    one_of_three_machines_whose_clocks_differ_by_up_to_20_s_runs_in_each_of_20_rounds,
    history_tells_how_each_hold_has_ended,
    time_is_counted_from_when_the_lock_was_taken_and_not_asked_for,
}

/// A `run` of `x` that is kept for so long.
fn run(on: &On, least: &str, command: &[&str]) -> std::process::Command {
    let mut run = on.onehold(&["run", "--hold-at-least", least, "x", "--"]);
    run.args(command);
    run
}

fn code(mut command: std::process::Command) -> i32 {
    exit_code(command.output().unwrap().status)
}

fn lock_stays_taken_and_says_how_its_command_ended() {
    let on = On::of_scene();
    let began = Instant::now();
    assert_eq!(code(run(&on, "1h", &["sh", "-c", "exit 3"])), 3);
    assert!(began.elapsed() < Duration::from_secs(10));
    let lock = on.lock("x");
    assert_eq!(
        (&lock["state"], &lock["reason"]),
        (&"held".into(), &"kept".into()),
        "{lock}"
    );
    assert_eq!(
        (&lock["kind"], &lock["exit_code"]),
        (&"lease".into(), &3.into()),
        "{lock}"
    );
    let (refused, _, told) = on.output(&["run", "-n", "x", "--", "true"]);
    assert_eq!(refused, 6);
    assert!(told.contains(" (exit 3) and stays locked until "), "{told}");
    let number = lock["hold"].to_string();
    assert_eq!(on.output(&["renew", "x", "--hold", &number]).0, 3);
    assert_eq!(on.output(&["release", "x"]).0, 4);
    assert_eq!(on.output(&["release", "x", "--hold", &number]).0, 0);
    assert_eq!(on.state("x"), "free");
    assert_eq!(code(run(&on, "1h", &["true"])), 0);
    assert_eq!(on.output(&["break", "x", "--yes"]).0, 0);
    assert_eq!(on.state("x"), "free");
    for program in ["./nothing", "sh -c 'exit 1'"] {
        assert_eq!(code(run(&on, "1h", &[program])), 127);
        assert_eq!(on.state("x"), "free");
    }
}

fn contenders_run_one_after_another_and_not_sooner_than_that() {
    let on = On::of_scene();
    let calls = (0..CONTENDERS).map(|_| {
        let words = ["run", "-w", "120", "--hold-at-least", "2s", "x", "--"];
        let mut run = on.onehold(&words);
        run.args(["sh", "-c", "date +%s%N >> began"]);
        run
    });
    let outputs = run_together(calls.collect());
    assert_eq!(sorted_codes(&outputs), [0; CONTENDERS]);
    let began = fs::read_to_string(on.env.path("began")).unwrap();
    let began: Vec<u64> = began.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(began.len(), CONTENDERS);
    // Between taking the lock and the first word of the command some time passes.
    let least = 2_000_000_000 - 500_000_000;
    assert!(
        began.is_sorted_by(|one, next| next - one >= least),
        "{began:?}"
    );
    wait_until("the last one is over", || on.state("x") == "free");
    // Nobody has to wait for its work: it has ended.
    assert_eq!(on.output(&["run", "-n", "x", "--", "true"]).0, 0);
}

fn broken_and_killed_runs_keep_nothing() {
    let on = On::of_scene();
    let start = || {
        let mut command = run(&on, "1h", &["sleep", "60"]);
        let running = Running::spawn({
            command.stderr(Stdio::null());
            command
        });
        wait_until("it runs", || {
            on.state("x") == "held" && on.lock("x")["reason"] == "alive"
        });
        running
    };
    let mut broken = start();
    assert_eq!(on.output(&["break", "x", "--yes"]).0, 0);
    assert_eq!(broken.finish(), 8);
    wait_until("it is free", || on.state("x") == "free");
    let mut killed = start();
    for keeper in children_of(killed.pid()) {
        send(keeper, Signal::KILL);
    }
    killed.finish();
    wait_until("it was given back", || on.state("x") == "free");
    let mut terminated = start();
    terminated.signal(crate::harness::Signal::TERM);
    assert_eq!(terminated.finish(), 143);
    assert_eq!(on.lock("x")["reason"], "kept");
}

/// A run whose command ends when there is a file `end`, and a way to cut it off.
fn start_behind(on: &On, url: &str) -> Running {
    let mut command = on.onehold(&[
        "run",
        "--ttl",
        "10",
        "--hold-at-least",
        "1h",
        "x",
        "--",
        "sh",
    ]);
    command
        .args(["-c", "until [ -e end ]; do sleep 0.01; done"])
        .env("ONEHOLD_DIR", url);
    let run = Running::start_with_output(command);
    on.wait_until_held("x");
    run
}

#[test]
fn lock_is_kept_although_etcd_is_down_when_the_command_ends() {
    let cluster = Cluster::start(1);
    let on = On::new(&cluster);
    let proxy = Proxy::to(&cluster.endpoints()[0]);
    let url = on.url_at(&[&proxy.endpoint]);
    let mut run = start_behind(&on, &url);
    let number = on.lock("x")["hold"].clone();
    cluster.kill(0);
    fs::write(on.env.path("end"), "").unwrap();
    std::thread::sleep(Duration::from_secs(9));
    assert!(!run.has_ended());
    cluster.restart(0);
    let (code, _, told) = run.finish_with_output();
    assert_eq!(code, 0, "{told}");
    assert!(told.contains("cannot keep `x` locked yet: "), "{told}");
    let lock = on.lock("x");
    assert_eq!(
        (&lock["reason"], &lock["hold"]),
        (&"kept".into(), &number),
        "{lock}"
    );
}

fn lock_is_kept_although_its_lease_has_ended_while_the_run_was_cut_off() {
    let on = On::of_scene();
    let (proxy, url) = on.behind_one();
    let mut run = start_behind(&on, &url);
    let number = on.lock("x")["hold"].clone();
    proxy.cut();
    fs::write(on.env.path("end"), "").unwrap();
    // Nobody may take it before having known it to be dead for 10 s.
    wait_until("its lease has ended", || on.state("x") == "zombie");
    proxy.mend();
    let (code, _, told) = run.finish_with_output();
    assert_eq!(code, 0, "{told}");
    let lock = on.lock("x");
    assert_eq!(
        (&lock["reason"], &lock["hold"]),
        (&"kept".into(), &number),
        "{lock}"
    );
}

fn lock_that_another_has_taken_over_or_that_a_signal_gives_up_is_lost() {
    let on = On::of_scene();
    let (proxy, url) = on.behind_one();
    let mut run = start_behind(&on, &url);
    proxy.cut();
    fs::write(on.env.path("end"), "").unwrap();
    on.done(&["run", "-w", "10m", "x", "--", "true"]);
    proxy.mend();
    let (code, _, told) = run.finish_with_output();
    assert_eq!(code, 8, "{told}");
    assert!(told.contains("lost lock `x`"), "{told}");
    fs::remove_file(on.env.path("end")).unwrap();
    let mut run = start_behind(&on, &url);
    proxy.cut();
    fs::write(on.env.path("end"), "").unwrap();
    let said = run.next_line();
    assert!(said.contains("cannot keep `x` locked yet: "), "{said}");
    assert!(said.contains("; trying until "), "{said}");
    run.signal(crate::harness::Signal::TERM);
    let (code, _, told) = run.finish_with_output();
    assert_eq!(code, 8, "{told}");
    assert!(
        told.contains("lost lock `x` after the command had ended: "),
        "{told}"
    );
}

/// A line of cron on three machines, each of which begins when its own clock says so. All rounds at once, each on
/// a lock of its own.
fn one_of_three_machines_whose_clocks_differ_by_up_to_20_s_runs_in_each_of_20_rounds() {
    const ROUNDS: usize = 20;
    const SHIFTS: [i64; 3] = [-20, 3, 20];
    let on = On::of_scene();
    scope(|scope| {
        for round in 0..ROUNDS {
            // Each is the first one in some of the rounds.
            let shifts = SHIFTS.map(|shift| if round % 2 == 0 { shift } else { -shift });
            for (caller, shift) in shifts.into_iter().enumerate() {
                let on = &on;
                scope.spawn(move || {
                    let clock = WallClock::new(on, &format!("clock{round}-{caller}"));
                    clock.set(shift);
                    // Whose clock is ahead begins earlier.
                    let late = u64::try_from(20 - shift).unwrap();
                    std::thread::sleep(Duration::from_secs(late));
                    let name = format!("backup{round}");
                    let words = [
                        "run",
                        "-n",
                        "-E",
                        "0",
                        "--hold-at-least",
                        "50s",
                        &name,
                        "--",
                    ];
                    let mut command = on.onehold(&words);
                    command.args(["sh", "-c", &format!("echo {caller} >> ran{round}")]);
                    clock.of(command.stderr(Stdio::null()));
                    assert!(command.status().unwrap().success());
                });
            }
        }
    });
    for round in 0..ROUNDS {
        let ran = fs::read_to_string(on.env.path(&format!("ran{round}"))).unwrap();
        assert_eq!(ran.lines().count(), 1, "{round}: {ran}");
    }
}

fn history_tells_how_each_hold_has_ended() {
    let on = On::of_scene();
    let mut run = on.onehold(&["run", "x", "--", "sh", "-c", "exit 3"]);
    assert_eq!(
        exit_code(run.env("ONEHOLD_HISTORY", "1").output().unwrap().status),
        3
    );
    let mut broken = on.onehold(&["run", "x", "--", "sleep", "60"]);
    broken.env("ONEHOLD_HISTORY", "1").stderr(Stdio::null());
    let mut broken = Running::spawn(broken);
    wait_until("it runs", || on.lock("x")["reason"] == "alive");
    assert_eq!(on.output(&["break", "x", "--yes"]).0, 0);
    assert_eq!(broken.finish(), 8);
    let handles_term = "trap 'exit 0' TERM; while :; do sleep 0.05; done";
    let start = |words: &[&str]| {
        let mut run = on.onehold(&[words, &["x", "--", "sh", "-c", handles_term]].concat());
        run.env("ONEHOLD_HISTORY", "1").stderr(Stdio::null());
        Running::spawn(run)
    };
    assert_eq!(start(&["run", "--time-limit", "0.3"]).finish(), 124);
    let mut caller = Running::sleeper();
    let mut run = start(&["run", "--die-with", &caller.pid().to_string()]);
    wait_until("it runs", || on.lock("x")["reason"] == "alive");
    caller.kill();
    assert_eq!(run.finish(), 143);
    let mut missing = on.onehold(&["run", "x", "--", "/no/such"]);
    let missing = missing.env("ONEHOLD_HISTORY", "1").output().unwrap();
    assert_eq!(exit_code(missing.status), 127);
    let mut run = start(&["run"]);
    wait_until("it runs", || on.lock("x")["reason"] == "alive");
    send(children_of(run.pid())[0], Signal::KILL);
    assert_eq!(run.finish(), 8);
    let (_, out, _) = on.output(&["history", "--json", "x"]);
    let object = json_object(out.as_bytes());
    let holds = object["holds"].as_array().unwrap();
    let results: Vec<_> = holds.iter().map(|hold| &hold["result"]).collect();
    let expected = [
        "exited",
        "broken",
        "time-limit",
        "caller-exited",
        "not-started",
        "lost",
    ];
    assert_eq!(results, expected, "{object}");
}

fn time_is_counted_from_when_the_lock_was_taken_and_not_asked_for() {
    let on = On::of_scene();
    let mut holder = on.onehold(&["run", "x", "--", "sleep", "3"]);
    holder.stderr(Stdio::null());
    let mut holder = Running::spawn(holder);
    wait_until("it is held", || on.state("x") == "held");
    let words = [
        "run",
        "-w",
        "60",
        "--hold-at-least",
        "1h",
        "x",
        "--",
        "true",
    ];
    let mut waiter = on.onehold(&words);
    waiter.env("ONEHOLD_HISTORY", "1").stderr(Stdio::null());
    assert!(waiter.status().unwrap().success());
    assert_eq!(holder.finish(), 0);
    let (_, _, told) = on.output(&["run", "-n", "x", "--", "true"]);
    assert!(
        told.contains(" for 0s (exit 0) and stays locked until "),
        "{told}"
    );
    let (_, out, _) = on.output(&["history", "--json", "x"]);
    let object = json_object(out.as_bytes());
    let hold = &object["holds"][0];
    assert!(hold["waited_seconds"].as_f64().unwrap() > 1.0, "{hold}");
    assert!(hold["held_seconds"].as_f64().unwrap() < 1.0, "{hold}");
}
