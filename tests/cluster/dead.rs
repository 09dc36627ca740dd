//! Holders that are dead: how long they hold up others.

use std::process::Stdio;
use std::thread::scope;
use std::time::{Duration, Instant};

use crate::cluster::On;
use crate::harness::{Running, Signal, wait_until};
use crate::keeper::{children_of, send};
use crate::scene::{engine, scenes};

scenes! {
    many_that_are_dead_hold_up_a_run_for_one_time_to_live,
    cleanup_of_many_that_are_dead_waits_for_one_time_to_live,
    cleanup_of_some_names_waits_for_one_time_to_live,
    who_does_not_wait_is_refused_if_a_waiter_will_have_what_is_dead,
    slot_of_a_dead_hold_beside_a_live_one_is_waited_for,
    waiter_that_is_dead_too_is_asked_for_once_what_is_dead_can_be_taken,
    record_that_is_dead_again_after_it_was_alive_is_waited_for_again,
    waiter_behind_a_dead_one_takes_over_a_dead_hold_a_little_after_its_time,
}

/// The time to live of what is dead here. Nobody takes it over before having known it to be dead for so long.
const TTL: Duration = Duration::from_secs(10);

/// Puts records of dead runs: each with its key, its name and what else it says.
fn put_dead(on: &On, records: &[(String, String, String)]) {
    let record = |(number, (key, name, more)): (usize, &(String, String, String))| {
        let number = number + 7;
        let record = format!(
            r#"{{"onehold":1,"live":{{}},"name":"{name}","hold":{number},"kind":"run","taken_by":7,"acquired_at":"2026-11-23T04:29:33Z","ttl_ms":{}{more}}}"#,
            TTL.as_millis()
        );
        (key.clone(), record)
    };
    let records: Vec<_> = records.iter().enumerate().map(record).collect();
    on.put_records(&records);
}

/// What is dead, and the locks of which one wants all.
struct Scene {
    dead: Vec<(String, String, String)>,
    wants: &'static [&'static str],
}

fn each(names: impl IntoIterator<Item = String>) -> Vec<(String, String, String)> {
    let record = |name: String| (name.clone(), name, String::new());
    names.into_iter().map(record).collect()
}

fn below(parent: &str, count: usize) -> Vec<(String, String, String)> {
    each((0..count).map(|at| format!("{parent}/{at:04}")))
}

fn sharing(name: &str, count: usize, mode: &str) -> Vec<(String, String, String)> {
    let record = |at| (format!("{name}//{at}"), name.to_owned(), mode.to_owned());
    (0..count).map(record).collect()
}

fn scenes() -> Vec<Scene> {
    let scene = |dead, wants| Scene { dead, wants };
    let readers = r#","mode":"shared""#;
    let slots = r#","mode":{"slots":3}"#;
    vec![
        scene(
            each(["a", "b", "c", "d", "e"].map(str::to_owned)),
            &["a", "b", "c", "d", "e"],
        ),
        scene(below("p", 20), &["p"]),
        scene(below("p", 2_000), &["p"]),
        scene(
            each(["a".to_owned()])
                .into_iter()
                .chain(below("p", 250))
                .collect(),
            &["a", "p"],
        ),
        scene(each(["p", "p/q", "p/q/r"].map(str::to_owned)), &["p/q/r/s"]),
        scene(sharing("x", 120, readers), &["x"]),
        scene(
            sharing("x", 2, readers)
                .into_iter()
                .chain(sharing("y", 2, readers))
                .chain(sharing("p", 3, readers))
                .collect(),
            &["x", "y", "p/q"],
        ),
        scene(sharing("x", 3, slots), &["--slots", "3", "x"]),
        scene(
            sharing("x", 3, slots)
                .into_iter()
                .chain(sharing("y", 3, slots))
                .collect(),
            &["--slots", "3", "x", "y"],
        ),
    ]
}

#[track_caller]
fn assert_waited_once(what: &str, took: Duration) {
    assert!(took >= TTL, "{what}: {took:?}");
    assert!(took < 2 * TTL, "{what}: {took:?}");
}

fn many_that_are_dead_hold_up_a_run_for_one_time_to_live() {
    let engine = engine();
    scope(|scope| {
        for Scene { dead, wants } in scenes() {
            for wait in [&[][..], &["-w", "10m"]] {
                let dead = dead.clone();
                scope.spawn(move || {
                    let on = On::of(engine);
                    put_dead(&on, &dead);
                    let args = [&["run", "-q"][..], wait, wants, &["--", "true"]].concat();
                    let began = Instant::now();
                    let mut run = Running::spawn(on.onehold(&args));
                    while !run.has_ended() && began.elapsed() < 2 * TTL {
                        std::thread::sleep(Duration::from_millis(50));
                    }
                    assert_waited_once(&format!("{args:?}"), began.elapsed());
                    assert_eq!(run.finish(), 0);
                });
            }
        }
    });
}

fn cleanup_of_many_that_are_dead_waits_for_one_time_to_live() {
    let engine = engine();
    scope(|scope| {
        for Scene { dead, wants } in scenes() {
            // Each is removed by itself.
            let dead: Vec<_> = dead.into_iter().take(120).collect();
            scope.spawn(move || {
                let on = On::of(engine);
                put_dead(&on, &dead);
                let began = Instant::now();
                on.done(&["cleanup"]);
                assert_waited_once(&format!("cleanup: {wants:?}"), began.elapsed());
                assert_eq!(on.left(), Vec::<String>::new());
            });
        }
    });
}

fn cleanup_of_some_names_waits_for_one_time_to_live() {
    let on = On::of_scene();
    put_dead(&on, &each(["x", "y", "z"].map(str::to_owned)));
    let began = Instant::now();
    let said = on.done(&["cleanup", "x", "y"]);
    assert_waited_once("cleanup", began.elapsed());
    assert_eq!(said.lines().count(), 2, "{said}");
    assert_eq!(on.state("x"), "free");
    assert_eq!(on.state("y"), "free");
    assert_eq!(on.state("z"), "zombie");
}

fn who_does_not_wait_is_refused_if_a_waiter_will_have_what_is_dead() {
    let on = On::of_scene();
    put_dead(&on, &each(["x".to_owned()]));
    let waiters: Vec<Running> = (0..2)
        .map(|before| {
            let mut waiter = on.onehold(&["run", "-w", "10m", "x", "--", "true"]);
            waiter.stderr(Stdio::null());
            let waiter = Running::spawn(waiter);
            wait_until("it waits", || on.waiters("x") == before + 1);
            waiter
        })
        .collect();
    let began = Instant::now();
    let refused = |more: &[&str]| {
        let args = [&["run"], more, &["x", "--", "touch", "ran"]].concat();
        on.output(&args)
    };
    let (code, _, told) = refused(&[]);
    assert_eq!(code, 6, "{told}");
    // The wrapper of the first one.
    let first = format!("reserved for process {}", waiters[0].pid());
    assert!(told.contains(&first), "{told}");
    assert!(told.contains("add --wait"), "{told}");
    assert!(!told.contains("--on-zombie"), "{told}");
    assert_eq!(refused(&["-E", "0"]).0, 0);
    let (code, _, told) = refused(&["--json"]);
    assert_eq!(code, 6);
    let object = crate::harness::last_json_object(told.as_bytes());
    assert_eq!(object["error"]["code"], "RESERVED", "{object}");
    assert_eq!(on.code(&["acquire", "--ttl", "60", "x"]), 6);
    assert!(began.elapsed() < TTL);
    for mut waiter in waiters {
        assert_eq!(waiter.finish(), 0);
    }
    assert!(!on.env.path("ran").exists());
}

/// Whichever of the two has the first slot.
fn slot_of_a_dead_hold_beside_a_live_one_is_waited_for() {
    let engine = engine();
    let dead = |at| {
        (
            format!("x//{at}"),
            "x".to_owned(),
            r#","mode":{"slots":2}"#.to_owned(),
        )
    };
    scope(|scope| {
        for (of_dead, wait) in [
            (0, &[][..]),
            (1, &[]),
            (0, &["-w", "10m"]),
            (1, &["-w", "10m"]),
        ] {
            scope.spawn(move || {
                let on = On::of(engine);
                let hold = || {
                    let args = ["run", "--slots", "2", "x", "--", "sleep", "600"];
                    let run = Running::spawn(on.onehold(&args));
                    wait_until("it has a slot", || on.state("x") == "held");
                    run
                };
                let first = (of_dead == 1).then(hold);
                put_dead(&on, &[dead(of_dead)]);
                let _live = first.unwrap_or_else(hold);
                let began = Instant::now();
                let args = [&["run", "-q", "--slots", "2"], wait, &["x", "--", "true"]].concat();
                let mut run = Running::spawn(on.onehold(&args));
                assert_eq!(run.finish(), 0, "{args:?}, slot {of_dead}");
                assert_waited_once(&format!("{args:?}, slot {of_dead}"), began.elapsed());
            });
        }
    });
}

/// The other waiter wants to share the lock, so that nobody sleeps on it until the hold can be taken over.
fn waiter_that_is_dead_too_is_asked_for_once_what_is_dead_can_be_taken() {
    let on = On::of_scene();
    put_dead(&on, &each(["x".to_owned()]));
    let args = ["run", "-s", "--ttl", "600", "-w", "10m", "x", "--", "true"];
    let mut other = Running::spawn(on.onehold(&args));
    wait_until("it waits", || on.waiters("x") == 1);
    let keeper = children_of(other.pid())[0];
    other.kill();
    send(keeper, Signal::KILL);
    let began = Instant::now();
    let mut run = Running::spawn(on.onehold(&["run", "-q", "-w", "10m", "x", "--", "true"]));
    assert_eq!(run.finish(), 0);
    let took = began.elapsed();
    assert!(
        took >= TTL && took < 2 * TTL + Duration::from_secs(2),
        "{took:?}"
    );
}

/// It could be taken over at once by who has known it to be dead, if it were the same one.
fn record_that_is_dead_again_after_it_was_alive_is_waited_for_again() {
    let on = On::of_scene();
    put_dead(&on, &each(["x".to_owned()]));
    let mut waiter = on.onehold(&["run", "-w", "10m", "x", "--", "true"]);
    waiter.stderr(Stdio::null());
    let mut waiter = Running::spawn(waiter);
    wait_until("it waits", || on.waiters("x") == 1);
    std::thread::sleep(TTL / 2);
    put_dead(&on, &each(["x".to_owned()]));
    let again = Instant::now();
    assert_eq!(waiter.finish(), 0);
    assert!(again.elapsed() >= TTL, "{:?}", again.elapsed());
}

/// As when the machine of both is gone: nobody gives up the ticket of the first waiter, which lasts for long.
fn waiter_behind_a_dead_one_takes_over_a_dead_hold_a_little_after_its_time() {
    for held in ["x", "p"] {
        let on = On::of_scene();
        let wanted = if held == "p" { "p/q" } else { "x" };
        let start = |args: &[&str], section: &[&str]| {
            let mut command = on.onehold(&[&["run"], args, &["--"], section].concat());
            command.stderr(Stdio::null());
            Running::spawn(command)
        };
        let mut gone = vec![start(&["--ttl", "10", held], &["sleep", "1000"])];
        on.wait_until_held(held);
        gone.push(start(&["-w", "10m", wanted], &["true"]));
        wait_until("it waits", || on.waiters(wanted) == 1);
        let mut waiter = start(&["-w", "10m", wanted], &["true"]);
        wait_until("it waits", || on.waiters(wanted) == 2);
        for run in &gone {
            let keepers = children_of(run.pid());
            for pid in [run.pid()].into_iter().chain(keepers) {
                send(pid, Signal::KILL);
            }
        }
        let began = Instant::now();
        assert_eq!(waiter.finish(), 0);
        let took = began.elapsed();
        println!("{held}: {took:?}");
        assert!(took < 4 * TTL, "{held}: {took:?}");
    }
}
