//! Breaking and taking by force what several hold.

use assert_cmd::prelude::OutputAssertExt;
use predicates::prelude::*;
use predicates::str::contains;

use super::{code, lease, left};
use crate::harness::TestEnv;
#[cfg(unix)]
use crate::harness::wait_until;

#[test]
fn several_holders_are_broken_by_number_or_all_at_once() {
    let env = TestEnv::new();
    let numbers: Vec<u64> = ["a", "b", "c"]
        .map(|owner| lease(&env, &format!("x -s --owner {owner}")).unwrap())
        .to_vec();
    env.onehold(["break", "x", "--yes"])
        .assert()
        .code(2)
        .stderr(
            contains("onehold: `x` has 3 holders\n")
                .and(contains("add --hold N; to break all, add --all\n")),
        );
    env.onehold(["break", "x", "--yes", "--hold", &numbers[1].to_string()])
        .assert()
        .success()
        .stderr(contains("broke the hold on `x` of a lease of b"));
    assert_eq!(env.json(["check", "x"])["lock"]["others"][0]["owner"], "c");
    let object = env.json(["break", "x", "--yes", "--all"]);
    assert_eq!(object["message"], "broke 2 of 2 holds on `x`");
    assert_eq!(object["locks"].as_array().unwrap().len(), 2);
    assert_eq!(left(&env), [""; 0]);
    assert_eq!(env.journal().len(), 3);
}

#[cfg(unix)]
#[test]
fn break_asks_for_each_of_several_holders() {
    let env = TestEnv::new();
    for owner in ["a", "b", "c"] {
        lease(&env, &format!("x -s --owner {owner}")).unwrap();
    }
    let (code, shown) = env.on_a_terminal("break x", &["y\n", "n\n", "y\n"]);
    assert_eq!(code, 6, "{shown}");
    assert!(
        shown.contains("broke the hold on `x` of a lease of a"),
        "{shown}"
    );
    assert_eq!(env.lock("x")["owner"], "b");
    assert_eq!(env.lock("x")["others"].as_array().unwrap().len(), 0);
}

#[test]
fn writer_takes_a_lock_by_force_from_all_readers() {
    let env = TestEnv::new();
    for owner in ["a", "b", "c", "d", "e", "f"] {
        lease(&env, &format!("x -s --owner {owner}")).unwrap();
    }
    env.onehold(["run", "x", "--force", "--yes", "--", "true"])
        .assert()
        .success()
        .stderr(
            contains("took `x` by force from a lease of a")
                .and(contains("took `x` by force from a lease of f")),
        );
    assert_eq!(left(&env), [""; 0]);
}

#[cfg(unix)]
#[test]
fn force_waits_for_the_commands_of_readers_and_of_slots() {
    // It takes 3 s from TERM on, which its wrapper sends within about a second.
    let slow = "trap 'sleep 3; touch ended-$0; exit' TERM; touch began-$0; while [ -e began-$0 ]; do sleep 0.05; done";
    for (kind, next) in [
        (&["-s"][..], "test -e ended-1 -a -e ended-2"),
        (&["--slots", "2"], "ls ended-*"),
    ] {
        let env = TestEnv::new();
        let holders = ["1", "2"].map(|number| {
            let command = ["x", "--", "sh", "-c", slow, number];
            let holder = env.start([&["run"], kind, &command].concat());
            wait_until("it holds", || env.path(&format!("began-{number}")).exists());
            holder
        });
        let slots = kind.iter().filter(|word| **word != "-s");
        let mut force = env.onehold(["run", "--force", "--yes"]);
        force.args(slots).args(["x", "--", "sh", "-c", next]);
        force.assert().success();
        drop(holders);
    }
}

#[cfg(unix)]
#[test]
#[ignore = "takes 12 s"]
fn force_waits_for_all_that_do_not_end_at_once_and_not_for_each() {
    let env = TestEnv::new();
    let stubborn = "trap '' TERM; touch began-$0; while [ -e began-$0 ]; do sleep 0.05; done";
    let _holders = ["1", "2"].map(|number| {
        let options = ["run", "-s", "--kill-after", "60", "x", "--"];
        let holder = env.start([&options[..], &["sh", "-c", stubborn, number]].concat());
        wait_until("it holds", || env.path(&format!("began-{number}")).exists());
        holder
    });
    let mut force = env.command("timeout");
    force.args("20 onehold run --force --yes x -- true".split(' '));
    let is_running = contains("is still running").count(2);
    force.assert().success().stderr(is_running);
}

#[test]
fn break_of_a_reader_that_has_ended_breaks_no_other() {
    let env = TestEnv::new();
    let gone = lease(&env, "x -s --owner a").unwrap();
    lease(&env, "x -s --owner b").unwrap();
    assert_eq!(code(&env, "release x --owner a"), Some(0));
    env.onehold(["break", "x", "--yes", "--hold", &gone.to_string()])
        .assert()
        .code(3)
        .stderr(contains(format!("onehold: `x`: hold {gone} has ended\n")));
    assert_eq!(code(&env, "check x"), Some(6));
}
