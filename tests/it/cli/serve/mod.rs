//! `hold --serve`: one process that holds many locks for a program.

mod clients;
mod ending;
mod leases;
mod repeated;
mod requests;

use std::collections::BTreeSet;
use std::io::Write;
use std::time::{Duration, Instant};

use assert_cmd::prelude::OutputAssertExt;
use predicates::str::contains;
use serde_json::{Value, json};

use crate::harness::hold::Hold;
use crate::harness::{
    CONTENDERS, Running, Signal, TestEnv, json_object, program, send, wait_until,
};

/// A server, and this test as its program.
fn serve(env: &TestEnv) -> Hold {
    Hold::start(env.onehold(["hold", "--serve"]))
}

fn ask(server: &mut Hold, request: &Value) {
    let stdin = server.stdin.as_mut().unwrap();
    writeln!(stdin, "{request}").unwrap();
}

/// The next line, which has to be about this request.
#[track_caller]
fn next(server: &mut Hold, id: u64) -> Value {
    let line = json_object(server.line().as_bytes());
    assert_eq!(line["id"], id, "{line}");
    line
}

/// The next line, which has to be this event of this request.
#[track_caller]
fn told(server: &mut Hold, id: u64, event: &str) -> Value {
    let line = next(server, id);
    assert_eq!(line["event"], event, "{line}");
    line
}

#[track_caller]
fn hold(server: &mut Hold, id: u64, name: &str) -> Value {
    ask(
        server,
        &json!({ "id": id, "command": "hold", "names": [name] }),
    );
    told(server, id, "held")
}

/// Begins to wait.
fn wait(server: &mut Hold, id: u64, name: &str) {
    ask(
        server,
        &json!({ "id": id, "command": "hold", "names": [name], "wait": "1h" }),
    );
    told(server, id, "waiting");
}

fn release(server: &mut Hold, id: u64) -> Value {
    ask(server, &json!({ "id": id, "command": "release" }));
    told(server, id, "released")
}

#[test]
fn one_process_holds_many_locks_and_releases_each_when_it_is_asked_to() {
    let env = TestEnv::new();
    let mut server = serve(&env);
    let first = hold(&mut server, 1, "a");
    let second = hold(&mut server, 2, "b");
    assert!(first["hold"].as_u64() < second["hold"].as_u64());
    assert_eq!(first["file"], env.path("store/a.lock").to_str().unwrap());
    let lock = env.lock("a");
    assert_eq!(
        (&lock["kind"], &lock["pid"]),
        (&json!("hold"), &json!(server.running.pid()))
    );
    assert_eq!(lock["program"]["pid"], std::process::id());
    assert_eq!(lock["hold"], first["hold"]);
    ask(
        &mut server,
        &json!({ "id": 3, "command": "hold", "names": ["a"] }),
    );
    let failed = told(&mut server, 3, "failed");
    assert_eq!(
        (&failed["error"]["code"], &failed["exit_code"]),
        (&json!("LOCKED"), &json!(6))
    );
    let released = release(&mut server, 1);
    assert_eq!(
        (&released["reason"], &released["hold"]),
        (&json!("request"), &first["hold"])
    );
    assert_eq!((env.check("a"), env.check("b")), (0, 6));
    // An id is free again after the last answer.
    hold(&mut server, 1, "a");
    assert_eq!(server.end(), 0);
    let ended: BTreeSet<u64> = [server.event("released"), server.event("released")]
        .iter()
        .map(|event| event["id"].as_u64().unwrap())
        .collect();
    assert_eq!(ended, BTreeSet::from([1, 2]));
    assert_eq!(
        (server.line(), server.told()),
        (String::new(), String::new())
    );
    assert!(env.left_in_store().is_empty());
}

#[test]
fn waits_delay_neither_a_free_lock_nor_a_release_and_are_served_in_order() {
    let env = TestEnv::new();
    let mut holder = env.hold(&["x"]);
    let mut server = serve(&env);
    let ids = 0..CONTENDERS as u64;
    for id in ids.clone() {
        wait(&mut server, id, "x");
    }
    assert_eq!(env.number_of_waiters("x"), CONTENDERS);
    hold(&mut server, 100, "free");
    release(&mut server, 100);
    env.end();
    holder.finish();
    for id in ids {
        told(&mut server, id, "held");
        hold(&mut server, 100, "free");
        release(&mut server, 100);
        release(&mut server, id);
    }
    assert_eq!(server.end(), 0);
    assert!(env.left_in_store().is_empty() && env.left_in_queues().is_empty());
}

#[test]
fn increments_under_holds_of_eight_servers_add_up() {
    const EACH: usize = 50;
    let env = TestEnv::new();
    std::fs::write(env.path("number"), "0").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..CONTENDERS {
            scope.spawn(|| {
                let mut server = serve(&env);
                for id in 0..EACH as u64 {
                    let request =
                        json!({ "id": id, "command": "hold", "names": ["x"], "wait": "1h" });
                    ask(&mut server, &request);
                    while json_object(server.line().as_bytes())["event"] != "held" {}
                    let number = env.count_in("number");
                    std::fs::write(env.path("number"), (number + 1).to_string()).unwrap();
                    release(&mut server, id);
                }
                assert_eq!(server.end(), 0);
            });
        }
    });
    assert_eq!(env.count_in("number"), CONTENDERS * EACH);
    assert!(env.left_in_store().is_empty() && env.left_in_queues().is_empty());
}

#[test]
fn canceled_wait_leaves_the_queue_and_the_one_behind_it_is_served() {
    let env = TestEnv::new();
    let mut server = serve(&env);
    hold(&mut server, 1, "x");
    for id in 2..10 {
        wait(&mut server, id, "x");
    }
    for id in [2, 4, 6, 8] {
        ask(&mut server, &json!({ "id": id, "command": "cancel" }));
        let failed = told(&mut server, id, "failed");
        assert_eq!(failed["error"]["code"], "INTERRUPTED");
    }
    assert_eq!(env.number_of_waiters("x"), 4);
    release(&mut server, 1);
    for id in [3, 5, 7, 9] {
        told(&mut server, id, "held");
        // It is over, so that nothing follows.
        ask(&mut server, &json!({ "id": id, "command": "cancel" }));
        release(&mut server, id);
    }
    assert_eq!(server.end(), 0);
    assert_eq!(server.line(), "");
}

#[test]
fn each_of_several_holds_that_are_broken_at_once_is_lost_and_no_other_one() {
    let env = TestEnv::new();
    let mut server = serve(&env);
    for id in 0..2 * CONTENDERS as u64 {
        hold(&mut server, id, &format!("x{id}"));
    }
    let broken: BTreeSet<u64> = (0..CONTENDERS as u64).collect();
    std::thread::scope(|scope| {
        for id in &broken {
            let name = format!("x{id}");
            let env = &env;
            scope.spawn(move || assert_eq!(env.code(["break", "--yes", &name]), 0));
        }
    });
    let began = Instant::now();
    let lost: BTreeSet<u64> = (0..CONTENDERS)
        .map(|_| {
            let lost = server.event("lost");
            assert_eq!(lost["reason"], "broken");
            lost["id"].as_u64().unwrap()
        })
        .collect();
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(lost, broken);
    for id in CONTENDERS as u64..2 * CONTENDERS as u64 {
        assert_eq!(env.check(&format!("x{id}")), 6);
        release(&mut server, id);
    }
    // Its last answer was that it is lost.
    ask(&mut server, &json!({ "id": 0, "command": "release" }));
    assert_eq!(told(&mut server, 0, "failed")["error"]["code"], "NOT_HELD");
    assert_eq!(server.end(), 0);
}

#[test]
fn hold_whose_file_is_removed_or_that_is_taken_by_force_is_lost() {
    let env = TestEnv::new();
    let mut server = serve(&env);
    hold(&mut server, 1, "x");
    hold(&mut server, 2, "y");
    hold(&mut server, 3, "z");
    std::fs::remove_file(env.path("store/x.lock")).unwrap();
    assert_eq!(told(&mut server, 1, "lost")["reason"], "lost");
    assert_eq!(env.code(["run", "y", "--force", "--yes", "--", "true"]), 0);
    assert_eq!(told(&mut server, 2, "lost")["reason"], "broken");
    assert_eq!(env.check("z"), 6);
    assert_eq!(server.end(), 0);
}

#[test]
fn break_names_the_program_and_signals_nothing() {
    let env = TestEnv::new();
    let mut server = serve(&env);
    hold(&mut server, 1, "x");
    let broke = env.onehold(["break", "--yes", "x"]).output().unwrap();
    let broke = String::from_utf8(broke.stderr).unwrap();
    let own = format!("process {} (", std::process::id());
    assert!(
        broke.contains(&format!("broke the hold on `x` of {own}")),
        "{broke}"
    );
    let warning = broke.lines().last().unwrap();
    assert!(
        warning.contains(&own) && warning.ends_with(" was not signaled and keeps running"),
        "{broke}"
    );
    told(&mut server, 1, "lost");
    hold(&mut server, 1, "x");
    assert_eq!(server.end(), 0);
}

#[test]
fn each_of_eight_waits_of_one_server_is_told_its_own_position() {
    let env = TestEnv::new();
    let _holder = env.hold(&["x"]);
    let mut other = serve(&env);
    let mut server = serve(&env);
    let waiting = |server: &mut Hold, id: u64| {
        let request = json!({ "id": id, "command": "hold", "names": ["x"], "wait": "1h" });
        ask(server, &request);
        told(server, id, "waiting")["position"].clone()
    };
    for round in 0..CONTENDERS as u64 {
        assert_eq!(waiting(&mut server, round), 2 * round + 1);
        assert_eq!(waiting(&mut other, round), 2 * round + 2);
    }
    // Whoever leaves the queue moves those behind it up.
    for id in 0..3 {
        ask(&mut server, &json!({ "id": id, "command": "cancel" }));
        told(&mut server, id, "failed");
    }
    let all = 2 * CONTENDERS as u64;
    assert_eq!(waiting(&mut server, 100), all - 3 + 1);
}
