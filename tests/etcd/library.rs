use std::time::Duration;

use onehold::{
    Acquired, Attempt, EtcdAccess, Holder, LockName, Options, ReleaseOutcome, RunOptions, State,
    Store, Wait,
};

use crate::cluster::{On, shared};
use crate::harness::wait_until;

fn lock(on: &On, name: &str) -> onehold::Lock {
    let store = Store::on_etcd(&on.dir, &EtcdAccess::default()).unwrap();
    store.lock(LockName::new(name).unwrap()).unwrap()
}

#[test]
fn hold_of_a_program_is_kept_by_a_thread_until_it_is_dropped() {
    let on = On::new(shared());
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

#[test]
fn hold_of_a_program_learns_that_it_was_broken() {
    let on = On::new(shared());
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

#[test]
fn lease_of_a_program_lasts_without_it_and_a_command_needs_a_keeper() {
    let on = On::new(shared());
    let lock = lock(&on, "x");
    let options = Options::new().ttl(Duration::from_secs(30)).owner("me");
    let Attempt::Held(Acquired::New(pending)) =
        lock.acquire(&options, Holder::Lease, Wait::no()).unwrap()
    else {
        panic!("it is free");
    };
    let number = pending.confirm().unwrap();
    assert_eq!(lock.check(None).unwrap().hold(), Some(number));
    assert_eq!(on.code(&["release", "x", "--owner", "me"]), 0);
    let attempt = lock.hold_for_command(&Options::new(), RunOptions::default(), Wait::no());
    let Attempt::Held(mut hold) = attempt.unwrap() else {
        panic!("it is free");
    };
    let error = hold
        .spawn(&mut std::process::Command::new("true"))
        .unwrap_err();
    assert!(error.to_string().contains("onehold run"), "{error}");
}
