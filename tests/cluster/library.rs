use std::time::Duration;

use onehold::{
    Attempt, Error, EtcdAccess, Holder, LockName, Options, PostgresAccess, ReleaseOutcome,
    RunOptions, State, Store, Wait, WaitDecision,
};

use crate::cluster::{Cluster, On};
use crate::harness::wait_until;
use crate::scene::scenes;

scenes! {
    hold_of_a_program_is_kept_by_a_thread_until_it_is_dropped,
    hold_of_a_program_learns_that_it_was_broken,
    lease_of_a_program_lasts_without_it_and_a_command_needs_a_keeper,
}

fn lock(on: &On, name: &str) -> onehold::Lock {
    let store = if on.dir.starts_with("postgres://") {
        Store::on_postgres(&on.dir, &PostgresAccess::default())
    } else {
        Store::on_etcd(&on.dir, &EtcdAccess::default())
    };
    store.unwrap().lock(LockName::new(name).unwrap()).unwrap()
}

fn hold_of_a_program_is_kept_by_a_thread_until_it_is_dropped() {
    let on = On::of_scene();
    let lock = lock(&on, "x");
    let options = Options::new().ttl(Duration::from_secs(10)).message("why");
    let Attempt::Held(hold) = lock.hold(&options, Wait::no()).unwrap() else {
        panic!("it is free");
    };
    let first = hold.valid_until().unwrap();
    assert!(
        first > Duration::from_secs(8) && first <= Duration::from_secs(9),
        "{first:?}"
    );
    assert_eq!(on.state("x"), "held");
    assert!(matches!(
        lock.hold(&options, Wait::no()).unwrap(),
        Attempt::Blocked(_)
    ));
    // Longer than the time to live.
    std::thread::sleep(Duration::from_secs(12));
    assert!(!hold.is_lost().unwrap());
    assert!(hold.valid_until().unwrap() > Duration::from_secs(4));
    assert_eq!(hold.release().unwrap(), ReleaseOutcome::Released);
    assert_eq!(on.state("x"), "free");
    let Attempt::Held(hold) = lock.hold(&options, Wait::no()).unwrap() else {
        panic!("it is free");
    };
    drop(hold);
    assert_eq!(on.state("x"), "free");
}

/// Its lease would last for an hour.
#[test]
fn canceled_waiter_gives_back_the_lease_that_was_ready_for_its_hold() {
    let cluster = Cluster::start(1);
    let on = On::new(&cluster);
    let leases = || cluster.ctl(&["lease", "list"]);
    let number = on.done(&["acquire", "x", "--ttl", "10m"]);
    let before = leases();
    let options = Options::new().ttl(Duration::from_hours(1));
    // The first attempt supposes that the lock is free.
    let mut taken = 0;
    let wait = Wait::forever()
        .on_wait(Duration::ZERO, |_| {
            on.done(&["release", "x", "--hold", &number]);
        })
        .on_decision(|decision| {
            taken += usize::from(decision == WaitDecision::Take);
            decision == WaitDecision::WaitAgain || taken < 2
        });
    let attempt = lock(&on, "x").hold(&options, wait);
    assert!(matches!(attempt, Err(Error::Canceled)), "{attempt:?}");
    assert_eq!(taken, 2);
    assert_eq!(on.state("x"), "free");
    // That of the released one is gone, too.
    assert_eq!(before.lines().next(), Some("found 1 leases"), "{before}");
    wait_until("no lease is left", || {
        leases().lines().next() == Some("found 0 leases")
    });
}

fn hold_of_a_program_learns_that_it_was_broken() {
    let on = On::of_scene();
    let lock = lock(&on, "x");
    let Attempt::Held(hold) = lock.hold(&Options::new(), Wait::no()).unwrap() else {
        panic!("it is free");
    };
    let broken = std::thread::spawn({
        let mut command = on.onehold(&["break", "x", "--yes"]);
        move || command.output().unwrap()
    });
    wait_until("it learns of the break", || hold.is_broken());
    drop(hold);
    let output = broken.join().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(lock.check(None).unwrap().verdict.state, State::Free);
}

fn lease_of_a_program_lasts_without_it_and_a_command_needs_a_keeper() {
    let on = On::of_scene();
    let lock = lock(&on, "x");
    let options = Options::new().ttl(Duration::from_secs(30)).owner("me");
    let Attempt::Held(pending) = lock.acquire(&options, Holder::Lease, Wait::no()).unwrap() else {
        panic!("it is free");
    };
    let number = pending.confirm().unwrap();
    assert_eq!(lock.check(None).unwrap().hold(), Some(number));
    assert_eq!(on.code(&["release", "x", "--owner", "me"]), 0);
    let attempt = lock.hold_for_command(&Options::new(), RunOptions::new(), Wait::no());
    let Attempt::Held(mut hold) = attempt.unwrap() else {
        panic!("it is free");
    };
    let error = hold
        .spawn(&mut std::process::Command::new("true"))
        .unwrap_err();
    assert!(error.to_string().contains("onehold run"), "{error}");
}
