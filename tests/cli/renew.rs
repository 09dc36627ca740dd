use predicates::str::contains;

use crate::env::{Env, Running, edited, eventually, number_in, sleeper};

#[test]
fn renew_by_owner_extends_lease() {
    let env = Env::new();
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
    let env = Env::new();
    env.onehold(["acquire", "x", "--ttl", "100ms", "--owner", "me"])
        .assert()
        .success();
    eventually("the lease expires", || env.check("x") == 5);
    env.onehold(["renew", "x", "--owner", "me", "--ttl", "1h"])
        .assert()
        .success();
    assert_eq!(env.check("x"), 6);
    env.onehold(["renew", "x", "--owner", "me", "--ttl", "50ms"])
        .assert()
        .success();
    eventually("the lease expires", || env.check("x") == 5);
    env.onehold(["acquire", "x", "--ttl", "1h", "--owner", "you"])
        .assert()
        .success();
    env.onehold(["renew", "x", "--owner", "me"])
        .assert()
        .code(4);
}

#[test]
fn renew_of_free_or_dead_lock_is_3() {
    let env = Env::new();
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

#[test]
fn renew_restarts_age_of_detached_hold_only() {
    let env = Env::new();
    let holder = Running::start(sleeper());
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
    eventually("it is overdue", || env.lock("x")["state"] == "overdue");
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
}

#[test]
fn record_edited_by_hand_is_not_renewed() {
    let env = Env::new();
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
        .stderr(contains("its record cannot be changed in place"));
    env.onehold(["release", "x", "--hold", &hold])
        .assert()
        .success();
}
