//! The library, as a program that embeds it sees it.
#![cfg(unix)]
#![allow(missing_docs)]
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use onehold::{
    Acquired, Attempt, Break, Claim, Claimant, Ended, Error, Format, Hold, Holder, Keeping, Kind,
    Lock, LockName, Reason, Release, Renewal, State, Store, Wait,
};
use tempfile::TempDir;

struct Fixture {
    root: TempDir,
    store: Store,
}

impl Fixture {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let store = Store::at(root.path().join("store"));
        Self { root, store }
    }

    fn lock(&self, name: &str) -> Lock {
        self.store.lock(LockName::new(name).unwrap()).unwrap()
    }

    fn state(&self, name: &str) -> State {
        self.lock(name).check(None).unwrap().verdict.state
    }
}

#[track_caller]
fn held<T>(attempt: onehold::Result<Attempt<T>>) -> T {
    match attempt.unwrap() {
        Attempt::Held(value) => value,
        Attempt::Blocked(blocked) => panic!("{:?}", blocked.status),
    }
}

#[track_caller]
fn is_blocked<T>(attempt: onehold::Result<Attempt<T>>) -> bool {
    matches!(attempt.unwrap(), Attempt::Blocked(_))
}

fn take(lock: &Lock) -> Hold {
    held(lock.hold(&Claim::new(), Wait::no()))
}

#[test]
fn a_hold_is_given_back_when_it_is_dropped() {
    let fixture = Fixture::new();
    let hold = take(&fixture.lock("x"));
    assert_eq!(fixture.state("x"), State::Held);
    assert!(is_blocked(
        fixture.lock("x").hold(&Claim::new(), Wait::no())
    ));
    drop(hold);
    assert_eq!(fixture.state("x"), State::Free);
}

#[test]
fn a_hold_is_given_back_when_a_function_returns_early() {
    let fixture = Fixture::new();
    let fails = || -> Result<(), Box<dyn std::error::Error>> {
        let _hold = take(&fixture.lock("x"));
        let _number: u32 = "no number".parse()?;
        Ok(())
    };
    assert!(fails().is_err());
    assert_eq!(fixture.state("x"), State::Free);
}

#[test]
fn a_hold_is_given_back_when_a_thread_panics() {
    let fixture = Fixture::new();
    let lock = fixture.lock("x");
    let panicked = std::thread::spawn(move || {
        let _hold = take(&lock);
        std::panic::panic_any("on purpose");
    })
    .join();
    assert!(panicked.is_err());
    assert_eq!(fixture.state("x"), State::Free);
}

#[test]
fn holds_and_stores_can_be_used_from_any_thread() {
    fn is_sync_and_send<T: Send + Sync>() {}
    is_sync_and_send::<Store>();
    is_sync_and_send::<Lock>();
    is_sync_and_send::<Hold>();
    let fixture = Fixture::new();
    let hold = take(&fixture.lock("x"));
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| is_blocked(fixture.lock("x").hold(&Claim::new(), Wait::no())));
        assert!(blocked.join().unwrap());
        scope.spawn(move || assert_eq!(hold.release().unwrap(), Ended::Released));
    });
    assert_eq!(fixture.state("x"), State::Free);
}

#[test]
fn dropping_a_copy_in_a_forked_child_does_nothing() {
    let fixture = Fixture::new();
    let hold = take(&fixture.lock("x"));
    let mut copy = Some(hold);
    let mut command = Command::new("true");
    // SAFETY: for the test; only this thread's memory is used in the child.
    unsafe {
        let copied: *mut Option<Hold> = &raw mut copy;
        let copied = copied as usize;
        command.pre_exec(move || {
            drop((*(copied as *mut Option<Hold>)).take());
            Ok(())
        });
    }
    assert!(command.status().unwrap().success());
    assert_eq!(fixture.state("x"), State::Held);
    let hold = copy.unwrap();
    assert!(!hold.is_lost().unwrap());
    assert_eq!(hold.release().unwrap(), Ended::Released);
}

#[test]
fn who_blocks_is_told_as_a_value() {
    let fixture = Fixture::new();
    let claim = Claim::new().message("nightly").owner("ops");
    let _hold = held(fixture.lock("x").hold(&claim, Wait::no()));
    let Attempt::Blocked(blocked) = fixture.lock("x").hold(&Claim::new(), Wait::no()).unwrap()
    else {
        panic!("it is held");
    };
    let record = blocked.status.record.as_ref().unwrap();
    assert_eq!(record.message.as_deref(), Some("nightly"));
    assert_eq!(record.owner.as_deref(), Some("ops"));
    assert_eq!(record.kind, Kind::Job);
    assert_eq!(record.pid.get(), std::process::id());
    assert_eq!(blocked.status.verdict.reason, Reason::Alive);
    assert!(blocked.waited.is_none());
}

#[test]
fn a_wait_ends_at_its_limit_or_when_it_is_cancelled() {
    let fixture = Fixture::new();
    let _hold = take(&fixture.lock("x"));
    let lock = fixture.lock("x");
    let limit = Duration::from_millis(150);
    let Attempt::Blocked(blocked) = lock.hold(&Claim::new(), Wait::at_most(limit)).unwrap() else {
        panic!("it is held");
    };
    assert!(blocked.waited.unwrap() >= limit);
    onehold::signal::use_sigalrm().unwrap();
    let Attempt::Blocked(blocked) = lock.hold(&Claim::new(), Wait::at_most(limit)).unwrap() else {
        panic!("it is held");
    };
    assert!(blocked.waited.unwrap() >= limit);
    let cancelled = AtomicBool::new(false);
    let wait = Wait::forever()
        .until_cancelled(&cancelled)
        .on_wait(Duration::ZERO, |_| cancelled.store(true, Ordering::Relaxed));
    assert!(is_blocked(lock.hold(&Claim::new(), wait)));
}

#[test]
fn a_wait_for_a_hold_ends_with_it() {
    let fixture = Fixture::new();
    let hold = take(&fixture.lock("x"));
    let mut first = Some(hold);
    let lock = fixture.lock("x");
    let wait = Wait::forever().on_wait(Duration::ZERO, |_| drop(first.take()));
    let second = held(lock.hold(&Claim::new(), wait));
    assert!(second.waited().is_some());
}

#[test]
fn a_lost_hold_is_noticed_and_the_successors_is_left_alone() {
    let fixture = Fixture::new();
    let hold = take(&fixture.lock("x"));
    let status = fixture.lock("x").check(None).unwrap();
    let Break::Done { was, warnings } = fixture
        .lock("x")
        .break_hold(&status.shown().unwrap())
        .unwrap()
    else {
        panic!("it is that hold");
    };
    assert_eq!(was.hold(), Some(hold.number()));
    assert!(warnings.is_empty());
    assert!(hold.is_lost().unwrap());
    let successor = take(&fixture.lock("x"));
    assert_eq!(hold.release().unwrap(), Ended::Lost);
    assert!(!successor.is_lost().unwrap());
    assert_eq!(fixture.state("x"), State::Held);
}

#[test]
fn permission_to_displace_is_for_the_hold_that_was_shown() {
    let fixture = Fixture::new();
    let first = take(&fixture.lock("x"));
    let shown = fixture.lock("x").check(None).unwrap().shown().unwrap();
    assert_eq!(first.release().unwrap(), Ended::Released);
    let _second = take(&fixture.lock("x"));
    let claim = Claim::new().displace(shown.clone());
    assert!(is_blocked(fixture.lock("x").hold(&claim, Wait::no())));
    assert!(matches!(
        fixture.lock("x").break_hold(&shown).unwrap(),
        Break::Changed(_)
    ));
}

#[test]
fn a_lease_is_in_force_only_once_it_is_confirmed() {
    let fixture = Fixture::new();
    let claim = Claim::new().ttl(Duration::from_mins(1)).owner("me");
    let lock = fixture.lock("x");
    let Acquired::New(unconfirmed) = held(lock.acquire(&claim, Holder::Lease, Wait::no())) else {
        panic!("new");
    };
    drop(unconfirmed);
    assert_eq!(fixture.state("x"), State::Free);
    let Acquired::New(lease) = held(lock.acquire(&claim, Holder::Lease, Wait::no())) else {
        panic!("new");
    };
    let number = lease.confirm().unwrap();
    let Acquired::Again(status) = held(lock.acquire(&claim, Holder::Lease, Wait::no())) else {
        panic!("the same owner's");
    };
    assert_eq!(status.hold(), Some(number));
    let stranger = Claimant::default();
    let owner = Claimant {
        owner: Some("me".to_owned()),
        ..Claimant::default()
    };
    assert!(matches!(
        lock.renew(&stranger, None).unwrap(),
        Renewal::NotYours(_)
    ));
    assert!(matches!(
        lock.renew(&owner, None).unwrap(),
        Renewal::Done(_)
    ));
    assert!(matches!(
        lock.release(&stranger).unwrap(),
        Release::NotYours(_)
    ));
    assert!(matches!(lock.release(&owner).unwrap(), Release::Done(_)));
    assert!(matches!(lock.release(&owner).unwrap(), Release::Free));
}

#[test]
fn a_command_started_under_a_hold_is_on_record_and_keeps_it() {
    let fixture = Fixture::new();
    let lock = fixture.lock("x");
    let claim = Claim::new().command(vec!["cat".to_owned()]);
    let mut hold = held(lock.hold_for_command(&claim, Keeping::default(), Wait::no()));
    let mut command = Command::new("cat");
    command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null());
    let mut child = hold.spawn(&mut command).unwrap();
    let status = lock.check(None).unwrap();
    assert_eq!(status.verdict.pid.map(onehold::Pid::get), Some(child.id()));
    assert_eq!(status.record.unwrap().kind, Kind::Run);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert_eq!(hold.release().unwrap(), Ended::Released);
    assert_eq!(fixture.state("x"), State::Free);
}

#[test]
fn a_command_is_not_started_when_its_hold_was_lost() {
    let fixture = Fixture::new();
    let lock = fixture.lock("x");
    let mut hold = held(lock.hold_for_command(&Claim::new(), Keeping::default(), Wait::no()));
    std::fs::remove_file(lock.path()).unwrap();
    let ran = fixture.root.path().join("ran");
    let mut command = Command::new("touch");
    command.arg(&ran);
    assert!(matches!(
        hold.spawn(&mut command),
        Err(Error::LostEarly { .. })
    ));
    assert!(!ran.exists());
}

#[test]
fn what_is_no_lock_is_an_error_and_stays() {
    let fixture = Fixture::new();
    let path = fixture.root.path().join("data.db");
    std::fs::write(&path, "precious").unwrap();
    let lock = fixture.lock(path.to_str().unwrap());
    assert!(matches!(
        lock.hold(&Claim::new(), Wait::no()),
        Err(Error::NotALock { .. })
    ));
    assert_eq!(lock.check(None).unwrap().verdict.state, State::NotALock);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn an_error_names_operation_and_path_and_keeps_its_cause_apart() {
    let fixture = Fixture::new();
    std::fs::write(fixture.store.path(), "").unwrap();
    let error = fixture.lock("x").check(None).unwrap_err();
    let expected = format!("cannot open store `{}`", fixture.store.path().display());
    assert_eq!(error.to_string(), expected);
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("Not a directory"), "{cause}");
}

#[test]
fn a_listing_and_a_cleanup_say_what_they_found_and_did() {
    let fixture = Fixture::new();
    let _hold = take(&fixture.lock("a/b"));
    let mut gone = Command::new("sleep").arg("1000").spawn().unwrap();
    let holder = Holder::process(gone.id()).unwrap();
    let Acquired::New(detached) =
        held(fixture.lock("z").acquire(&Claim::new(), holder, Wait::no()))
    else {
        panic!("new");
    };
    detached.confirm().unwrap();
    gone.kill().unwrap();
    gone.wait().unwrap();
    let names = || -> Vec<String> {
        let listing = fixture.store.list(None).unwrap();
        assert!(listing.errors.is_empty());
        listing
            .locks
            .into_iter()
            .map(|status| status.name)
            .collect()
    };
    assert_eq!(names(), ["a/b", "z"]);
    let dry = fixture.store.cleanup(true, None).unwrap();
    assert_eq!(dry.removed.len(), 1);
    assert_eq!(names(), ["a/b", "z"]);
    let wet = fixture.store.cleanup(false, None).unwrap();
    assert_eq!(wet.removed[0].name, "z");
    assert_eq!(names(), ["a/b"]);
}

#[test]
fn a_hold_that_was_lost_before_its_command_starts_does_not_start_it() {
    let root = tempfile::tempdir().unwrap();
    let store = Store::at(root.path()).format(Format::Sprint);
    let lock = store.lock(LockName::new("x").unwrap()).unwrap();
    let claim = Claim::new().owner("o").message("m");
    let take = |keeping| match lock.hold_for_command(&claim, keeping, Wait::no()).unwrap() {
        Attempt::Held(hold) => hold,
        Attempt::Blocked(blocked) => panic!("{blocked:?}"),
    };
    let exec = Keeping {
        exec: true,
        ..Keeping::default()
    };
    let mut hold = take(exec);
    std::fs::remove_file(hold.path()).unwrap();
    // If it were executed, this test would end here as something else.
    let error = hold.exec(&mut Command::new("true"));
    assert!(matches!(error, Error::LostEarly { .. }), "{error}");
    // Another program has rewritten the file in place.
    let mut hold = take(Keeping::default());
    let theirs = "pid: 1\nsession_id: \"theirs\"\nlock_version: 1\n";
    std::fs::write(hold.path(), theirs).unwrap();
    let started = root.path().join("started");
    let error = hold.spawn(Command::new("touch").arg(&started)).unwrap_err();
    assert!(matches!(error, Error::LostEarly { .. }), "{error}");
    assert!(!started.exists());
    assert_eq!(hold.release().unwrap(), Ended::Lost);
    assert_eq!(std::fs::read_to_string(lock.path()).unwrap(), theirs);
}
