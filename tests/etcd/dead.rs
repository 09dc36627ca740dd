//! Holders that are dead: how long they hold up others.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::thread::scope;
use std::time::{Duration, Instant};

use crate::cluster::{Cluster, On, shared};
use crate::harness::{Running, wait_until};

/// The time to live of what is dead here. Nobody takes it over before having known it to be dead for so long.
const TTL: Duration = Duration::from_secs(10);

/// Puts records of dead runs: each with its key, its name and what else it says.
fn put_dead(cluster: &Cluster, on: &On, records: &[(String, String, String)]) {
    for (at, some) in records.chunks(100).enumerate() {
        let mut txn = String::from("\n");
        for (number, (key, name, more)) in some.iter().enumerate() {
            let number = 100 * at + number + 7;
            let record = format!(
                r#"{{"onehold":1,"live":{{}},"name":"{name}","hold":{number},"kind":"run","taken_by":7,"acquired_at":"2026-11-23T04:29:33Z","ttl_ms":{}{more}}}"#,
                TTL.as_millis()
            );
            let key = format!("{}//hold/{key}", on.prefix());
            writeln!(txn, "put {key} {record:?}").unwrap();
        }
        txn.push_str("\n\n");
        let mut child = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &cluster.endpoints()[0], "txn"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(txn.as_bytes()).unwrap();
        drop(input);
        assert!(child.wait().unwrap().success(), "{txn}");
    }
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

#[test]
fn many_that_are_dead_hold_up_a_run_for_one_time_to_live() {
    scope(|scope| {
        for Scene { dead, wants } in scenes() {
            for wait in [&[][..], &["-w", "10m"]] {
                let dead = dead.clone();
                scope.spawn(move || {
                    let on = On::new(shared());
                    put_dead(shared(), &on, &dead);
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

#[test]
fn cleanup_of_many_that_are_dead_waits_for_one_time_to_live() {
    scope(|scope| {
        for Scene { dead, wants } in scenes() {
            // Each is removed by itself.
            let dead: Vec<_> = dead.into_iter().take(120).collect();
            scope.spawn(move || {
                let on = On::new(shared());
                put_dead(shared(), &on, &dead);
                let began = Instant::now();
                on.done(&["cleanup"]);
                assert_waited_once(&format!("cleanup: {wants:?}"), began.elapsed());
                assert_eq!(shared().left_below(on.prefix()), Vec::<String>::new());
            });
        }
    });
}

#[test]
fn cleanup_of_some_names_waits_for_one_time_to_live() {
    let on = On::new(shared());
    put_dead(shared(), &on, &each(["x", "y", "z"].map(str::to_owned)));
    let began = Instant::now();
    let said = on.done(&["cleanup", "x", "y"]);
    assert_waited_once("cleanup", began.elapsed());
    assert_eq!(said.lines().count(), 2, "{said}");
    assert_eq!(on.state("x"), "free");
    assert_eq!(on.state("y"), "free");
    assert_eq!(on.state("z"), "zombie");
}

#[test]
fn who_does_not_wait_is_refused_if_a_waiter_will_have_what_is_dead() {
    let on = On::new(shared());
    put_dead(shared(), &on, &each(["x".to_owned()]));
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

/// It could be taken over at once by who has known it to be dead, if it were the same one.
#[test]
fn record_that_is_dead_again_after_it_was_alive_is_waited_for_again() {
    let on = On::new(shared());
    put_dead(shared(), &on, &each(["x".to_owned()]));
    let mut waiter = on.onehold(&["run", "-w", "10m", "x", "--", "true"]);
    waiter.stderr(Stdio::null());
    let mut waiter = Running::spawn(waiter);
    wait_until("it waits", || on.waiters("x") == 1);
    std::thread::sleep(TTL / 2);
    put_dead(shared(), &on, &each(["x".to_owned()]));
    let again = Instant::now();
    assert_eq!(waiter.finish(), 0);
    assert!(again.elapsed() >= TTL, "{:?}", again.elapsed());
}
