//! Locks with slots.

use assert_cmd::prelude::OutputAssertExt;
use predicates::prelude::*;
use predicates::str::contains;

use super::{code, lease, left};
#[cfg(unix)]
use super::{hold, refusal_inside};
use crate::harness::TestEnv;
#[cfg(unix)]
use crate::harness::{Signal, wait_until};

#[test]
fn slots_let_at_most_n_hold_and_each_has_its_number() {
    let env = TestEnv::new();
    for slot in 0..3_u64 {
        let number = lease(&env, "gpu --slots 3").unwrap();
        let lock = env.json(["check", "gpu"])["lock"].take();
        let holds = std::iter::once(&lock).chain(lock["others"].as_array().unwrap());
        let own = holds
            .filter(|hold| hold["hold"] == number)
            .collect::<Vec<_>>();
        assert_eq!(own.len(), 1);
        assert_eq!(own[0]["slot"], slot);
        assert_eq!(own[0]["mode"]["slots"], 3);
    }
    assert_eq!(lease(&env, "gpu --slots 3"), Err(Some(6)));
    // The number that the asker gives counts.
    assert_eq!(lease(&env, "gpu --slots 2"), Err(Some(6)));
    assert_eq!(code(&env, "check gpu --slots 4"), Some(0));
    assert_eq!(code(&env, "check gpu --slots 3"), Some(6));
    env.onehold(["check", "gpu"]).assert().code(6).stdout(
        contains("`gpu`, slot 0, is held by a lease")
            .and(contains("; 2 more holders\n"))
            .and(contains("\n  `gpu`, slot 1, is held by a lease"))
            .and(contains("\n  `gpu`, slot 2, is held by a lease")),
    );
    env.onehold(["list"]).assert().success().stdout(
        contains("held, slot 0 ")
            .and(contains("held, slot 1 "))
            .and(contains("held, slot 2 ")),
    );
    let middle = env.json(["check", "gpu"])["lock"]["others"][0]["hold"].clone();
    assert_eq!(code(&env, &format!("release gpu --hold {middle}")), Some(0));
    env.onehold(["run", "gpu", "--slots", "3", "--", "true"])
        .assert()
        .success();
    let lock = env.json(["check", "gpu"])["lock"].take();
    assert_eq!(
        (&lock["slot"], &lock["others"][0]["slot"]),
        (&0.into(), &2.into())
    );
    env.onehold(["run", "gpu", "--slots", "0", "--", "true"])
        .assert()
        .code(2)
        .stderr(contains("not a number from 1 to 4294967295"));
    env.onehold(["run", "gpu", "-s", "--slots", "1", "--", "true"])
        .assert()
        .code(2);
}

#[cfg(unix)]
#[test]
fn command_finds_its_slot_which_is_given_again_when_its_holder_is_dead() {
    let env = TestEnv::new();
    let slot = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        let output = env
            .onehold(["run"].iter().chain(&words))
            .args(["--", "sh", "-c", "echo $ONEHOLD_SLOT"])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(slot("--slots 3 x"), "0\n");
    let mut first = hold(&env, "--slots 3 x");
    let mut second = hold(&env, "--slots 3 x");
    assert_eq!(slot("--slots 3 x"), "2\n");
    assert_eq!(slot("--slots 3 x y"), "2 0\n");
    let child = env.lock("x")["pid"].as_u64().unwrap();
    first.kill();
    assert_eq!(slot("--slots 2 x"), "", "its command still runs");
    crate::harness::send(u32::try_from(child).unwrap(), Signal::KILL);
    wait_until("the slot is free", || {
        code(&env, "check x --slots 2 --available") == Some(0)
    });
    assert_eq!(slot("--slots 2 x"), "0\n");
    second.signal(Signal::TERM);
    assert_eq!(second.finish(), 143);
    assert_eq!(left(&env), [""; 0]);
}

#[cfg(unix)]
#[test]
fn waiter_for_a_slot_gets_whichever_is_given_back_first() {
    for given_back in 0..3 {
        let env = TestEnv::new();
        let holders: Vec<_> = (0..3).map(|_| hold(&env, "--slots 3 x")).collect();
        let mut waiter = env.start(["run", "--slots", "3", "-w", "20", "x", "--", "true"]);
        env.wait_for_waiter("x");
        holders[given_back].signal(Signal::TERM);
        assert_eq!(waiter.finish(), 0);
        for mut holder in holders {
            holder.signal(Signal::TERM);
            assert_eq!(holder.finish(), 143);
        }
    }
}

#[cfg(unix)]
#[test]
fn refusal_of_a_child_by_a_slot_of_its_parent_is_one_sentence() {
    let env = TestEnv::new();
    let text = refusal_inside(&env, &["--slots 2 a"], "a/b");
    assert!(
        text.starts_with("onehold: `a`, the parent of `a/b`, slot 0, is held by process "),
        "{text}"
    );
}

#[cfg(unix)]
#[test]
fn command_of_a_hold_without_a_slot_finds_no_slot() {
    let env = TestEnv::new();
    for inner in ["run x", "run --exec x", "run -w 9 x"] {
        let script = format!("onehold {inner} -- sh -c 'echo \"<${{ONEHOLD_SLOT-unset}}>\"'");
        env.onehold(["run", "--slots", "2", "workers", "--", "sh", "-c", &script])
            .assert()
            .success()
            .stdout("<unset>\n");
    }
}

#[test]
fn slot_of_a_shared_lock_is_no_lock_of_its_own() {
    let env = TestEnv::new();
    lease(&env, "x -s").unwrap();
    env.onehold(["acquire", "./store/x.d/.shared/7.lock", "--ttl", "1h"])
        .assert()
        .failure()
        .stderr(contains("use the name of the lock"));
}
