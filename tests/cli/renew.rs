use predicates::str::contains;

use crate::env::{Env, Running, eventually, number_in, sleeper};

#[test]
fn a_lease_is_extended_by_its_owner() {
    let env = Env::new();
    env.onehold(["acquire", "x", "--ttl", "1h", "--owner", "me"])
        .assert()
        .success();
    let before = env.lock("x");
    env.onehold(["renew", "x"])
        .assert()
        .code(4)
        .stderr(contains("not yours"));
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
    assert_eq!(env.lock("x")["ttl_seconds"], 7200.0, "the last word stays");
}

#[test]
fn a_lease_that_ran_out_can_be_renewed_until_somebody_takes_it() {
    let env = Env::new();
    env.onehold(["acquire", "x", "--ttl", "100ms", "--owner", "me"])
        .assert()
        .success();
    eventually("its time", || env.check("x") == 5);
    env.onehold(["renew", "x", "--owner", "me", "--ttl", "1h"])
        .assert()
        .success();
    assert_eq!(env.check("x"), 6);
    env.onehold(["renew", "x", "--owner", "me", "--ttl", "50ms"])
        .assert()
        .success();
    eventually("its time", || env.check("x") == 5);
    env.onehold(["acquire", "x", "--ttl", "1h", "--owner", "you"])
        .assert()
        .success();
    env.onehold(["renew", "x", "--owner", "me"])
        .assert()
        .code(4);
}

#[test]
fn there_is_nothing_to_renew_where_nothing_is_or_its_holder_is_dead() {
    let env = Env::new();
    env.onehold(["renew", "x"])
        .assert()
        .code(3)
        .stderr(contains("onehold: `x` is free: nothing to renew\n"));
    env.leave_dead("x");
    env.onehold(["renew", "x"])
        .assert()
        .code(3)
        .stderr(contains("nothing to renew: `x` was held by"));
}

#[test]
fn a_detached_holds_age_starts_anew_and_a_runs_does_not() {
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
        .stderr(contains("its wrapper renews it"));
}
