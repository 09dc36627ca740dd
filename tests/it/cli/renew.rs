use assert_cmd::prelude::OutputAssertExt;
use predicates::prelude::*;
use predicates::str::{contains, is_match};

use super::env::edited;
use crate::harness::hold::Hold;
use crate::harness::{Running, TestEnv, number_in, wait_until};

#[test]
fn renew_by_owner_extends_lease() {
    let env = TestEnv::new();
    env.onehold(["acquire", "x", "--ttl", "1h", "--owner", "me"])
        .assert()
        .success();
    let before = env.lock("x");
    env.onehold(["renew", "x"])
        .assert()
        .code(4)
        .stderr(contains("not renewed: `x` is held by"));
    env.onehold(["renew", "x", "--owner", "me"])
        .assert()
        .success();
    let renewed = env.lock("x");
    assert_ne!(renewed["renewed_at"], before["renewed_at"]);
    assert_eq!(renewed["hold"], before["hold"]);
    env.onehold(["renew", "x", "--owner", "me", "--ttl", "2h"])
        .assert()
        .success();
    assert_eq!(env.lock("x")["ttl_seconds"], 7200.0);
    env.onehold(["renew", "x", "--owner", "me"])
        .assert()
        .success();
    assert_eq!(env.lock("x")["ttl_seconds"], 7200.0, "the last --ttl stays");
}

#[test]
fn expired_lease_can_be_renewed_until_taken() {
    let env = TestEnv::new();
    env.onehold(["acquire", "x", "--ttl", "100ms", "--owner", "me"])
        .assert()
        .success();
    wait_until("the lease expires", || env.check("x") == 5);
    env.onehold(["renew", "x", "--owner", "me", "--ttl", "1h"])
        .assert()
        .success();
    assert_eq!(env.check("x"), 6);
    env.onehold(["renew", "x", "--owner", "me", "--ttl", "50ms"])
        .assert()
        .success();
    wait_until("the lease expires", || env.check("x") == 5);
    env.onehold(["acquire", "x", "--ttl", "1h", "--owner", "you"])
        .assert()
        .success();
    env.onehold(["renew", "x", "--owner", "me"])
        .assert()
        .code(4);
}

#[test]
fn renew_of_free_or_dead_lock_is_3() {
    let env = TestEnv::new();
    env.onehold(["renew", "x"])
        .assert()
        .code(3)
        .stderr(contains("onehold: `x` is free: nothing to renew\n"));
    env.create_zombie("x");
    env.onehold(["renew", "x"])
        .assert()
        .code(3)
        .stderr(contains("nothing to renew: `x` is a zombie"));
}

/// A lease of `x y`, whose record of `x` was removed by hand.
fn lost_lease(env: &TestEnv) {
    env.onehold(["acquire", "x", "y", "--ttl", "1h", "--owner", "me"])
        .assert()
        .success();
    std::fs::remove_file(env.store().join("x.lock")).unwrap();
}

#[test]
fn lease_of_two_locks_that_has_lost_one_is_not_renewed() {
    let env = TestEnv::new();
    lost_lease(&env);
    let acquire = ["acquire", "x", "y", "--ttl", "1h", "--owner", "me"];
    let lost = " of `x` and `y` is lost";
    for is_taken in [false, true] {
        if is_taken {
            env.onehold(["acquire", "x", "--ttl", "1h", "--owner", "you"])
                .assert()
                .success();
        }
        let before = env.lock("y")["renewed_at"].clone();
        env.onehold(["renew", "y", "--owner", "me"])
            .assert()
            .code(3)
            .stderr(contains("not renewed: ").and(contains(lost)))
            .stderr(is_match(" release --hold \\d+ y`").unwrap());
        let object = env.json(["renew", "y", "--owner", "me"]);
        assert_eq!(object["error"]["code"], "NOT_HELD", "{object}");
        assert_eq!(env.lock("y")["renewed_at"], before);
        // A repeated request does not have both either.
        env.onehold(acquire).assert().code(6);
    }
    env.onehold(["renew", "x", "--owner", "me"])
        .assert()
        .code(4);
}

#[test]
fn expired_lease_of_two_locks_that_has_lost_one_is_not_renewed() {
    let env = TestEnv::new();
    env.onehold(["acquire", "x", "y", "--ttl", "100ms", "--owner", "me"])
        .assert()
        .success();
    wait_until("the lease expires", || env.check("y") == 5);
    std::fs::remove_file(env.store().join("x.lock")).unwrap();
    env.onehold(["renew", "y", "--owner", "me"])
        .assert()
        .code(3);
}

#[test]
fn release_of_a_lease_that_has_lost_a_lock_removes_what_is_left_and_says_so() {
    let env = TestEnv::new();
    lost_lease(&env);
    env.onehold(["acquire", "x", "--ttl", "1h", "--owner", "you"])
        .assert()
        .success();
    env.onehold(["release", "y", "--owner", "me"])
        .assert()
        .success()
        .stderr(contains("onehold: warning: ").and(contains(" of `x` and `y` was lost")));
    assert_eq!(env.check("y"), 0);
    assert_eq!(env.lock("x")["owner"], "you");
}

#[test]
fn shared_lease_of_two_locks_is_renewed_until_it_has_lost_one() {
    let env = TestEnv::new();
    // Another slot of each.
    env.onehold(["acquire", "-s", "x", "--ttl", "1h"])
        .assert()
        .success();
    env.onehold(["acquire", "-s", "x", "y", "--ttl", "1h", "--owner", "me"])
        .assert()
        .success();
    env.onehold(["renew", "y", "--owner", "me"])
        .assert()
        .success();
    let mut files = env.store().join("x.d/.shared").read_dir().unwrap();
    let second = files.find_map(|file| {
        let file = file.unwrap();
        let name = file.file_name().into_string().unwrap();
        name.starts_with("1-").then(|| file.path())
    });
    std::fs::remove_file(second.unwrap()).unwrap();
    env.onehold(["renew", "y", "--owner", "me"])
        .assert()
        .code(3);
}

#[cfg(unix)]
#[test]
fn renew_restarts_age_of_detached_hold_only() {
    let env = TestEnv::new();
    let holder = Running::sleeper();
    let pid = holder.pid().to_string();
    env.onehold([
        "acquire",
        "x",
        "--pid",
        &pid,
        "--owner",
        "me",
        "--max-age",
        "1s",
    ])
    .assert()
    .success();
    wait_until("it is overdue", || env.lock("x")["state"] == "overdue");
    env.onehold(["renew", "x", "--owner", "me"])
        .assert()
        .success();
    assert_eq!(env.lock("x")["state"], "held");
    let ready = env.path("ready");
    let script = format!("echo $$ > {}; sleep 1000", ready.display());
    let _running = env.start(["run", "--owner", "me", "y", "--", "sh", "-c", &script]);
    number_in(&ready);
    env.onehold(["renew", "y", "--owner", "me"])
        .assert()
        .code(4)
        .stderr(contains("a running `onehold run` renews its own hold"));
    let mut hold = Hold::start(env.onehold(["hold", "z", "--owner", "me", "--json"]));
    hold.event("held");
    env.onehold(["renew", "z", "--owner", "me"])
        .assert()
        .code(4)
        .stderr(contains(
            "`hold` keeps its own hold alive: nothing to renew",
        ));
}

#[test]
fn record_edited_by_hand_is_not_renewed() {
    let env = TestEnv::new();
    let _holder = env.write_record_of_live_holder("x", |text| {
        edited(&text, |record| record["message"] = "by hand".into())
    });
    let lock = env.lock("x");
    assert_eq!(lock["state"], "held");
    assert_eq!(lock["message"], "by hand");
    let hold = lock["hold"].to_string();
    env.onehold(["renew", "x", "--hold", &hold])
        .assert()
        .code(1)
        .stderr(contains("its record was edited, and has no room for it"))
        .stderr(contains("release the lock and acquire it again"));
    assert_eq!(
        env.json(["renew", "x", "--hold", &hold])["error"]["code"],
        "NOT_RENEWABLE"
    );
    env.onehold(["release", "x", "--hold", &hold])
        .assert()
        .success();
}

#[test]
fn renew_says_why_a_record_cannot_be_renewed() {
    let env = TestEnv::new();
    let holder = Running::sleeper();
    let pid = holder.pid();
    let sprint = format!("pid: {pid}\nsession_id: me\nstarted_at: 2999-01-01T00:00:00Z\n");
    env.write("store/theirs.lock", sprint);
    env.onehold(["renew", "theirs", "--owner", "me"])
        .assert()
        .code(1)
        .stderr(contains("its record was written by another program"));
    env.onehold([
        "acquire",
        "torn",
        "--owner",
        "me",
        "--pid",
        &pid.to_string(),
    ])
    .assert()
    .success();
    let torn = env
        .record("torn")
        .replacen("\"sum\":\"", "\"sum\":\"0000", 1);
    let torn = torn.replacen("    ", "", 1);
    env.write("store/torn.lock", torn);
    env.onehold(["renew", "torn", "--owner", "me"])
        .assert()
        .code(3)
        .stderr(contains("nothing to renew: `torn`").and(contains("\n  unverified: ")));
}
