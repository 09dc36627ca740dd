//! The public interface of the library.

use std::fmt::Debug;
#[cfg(unix)]
use std::os::unix::process::CommandExt;
#[cfg(unix)]
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use onehold::repair::Break;
use onehold::status::Kind;
use onehold::status::Reason;

#[cfg(target_os = "linux")]
use crate::harness::CONTENDERS;
#[cfg(target_os = "linux")]
use crate::harness::wait_until;
use crate::harness::{Running, TestEnv, command};
use onehold::{
    Attempt, Blocked, Caller, Error, Format, Hold, Holder, Lock, LockName, Mode, Options, Release,
    ReleaseOutcome, Renewal, RunOptions, State, Store, Wait, WaitDecision,
};

struct Fixture {
    env: TestEnv,
    store: Store,
}

impl Fixture {
    fn new() -> Self {
        let env = TestEnv::new();
        let store = Store::at(env.store());
        Self { env, store }
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
    attempt.unwrap().into_result().unwrap()
}

#[track_caller]
fn refused<T: Debug>(attempt: onehold::Result<Attempt<T>>) -> Blocked {
    attempt.unwrap().into_result().unwrap_err()
}

#[track_caller]
fn is_blocked<T>(attempt: onehold::Result<Attempt<T>>) -> bool {
    attempt.unwrap().into_result().is_err()
}

fn take(lock: &Lock) -> Hold {
    held(lock.hold(&Options::new(), Wait::no()))
}

#[test]
fn dropping_a_hold_releases_the_lock() {
    let fixture = Fixture::new();
    let hold = take(&fixture.lock("x"));
    assert_eq!(fixture.state("x"), State::Held);
    assert!(is_blocked(
        fixture.lock("x").hold(&Options::new(), Wait::no())
    ));
    drop(hold);
    assert_eq!(fixture.state("x"), State::Free);
}

#[test]
fn early_return_releases_the_lock() {
    let fixture = Fixture::new();
    let fails = || -> Result<(), Box<dyn std::error::Error>> {
        let _hold = take(&fixture.lock("x"));
        let _number: u32 = "not a number".parse()?;
        Ok(())
    };
    assert!(fails().is_err());
    assert_eq!(fixture.state("x"), State::Free);
}

#[test]
fn panic_of_a_thread_releases_the_lock() {
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
fn holds_and_stores_can_be_used_by_any_thread() {
    fn is_sync_and_send<T: Send + Sync>() {}
    is_sync_and_send::<Store>();
    is_sync_and_send::<Lock>();
    is_sync_and_send::<Hold>();
    let fixture = Fixture::new();
    let hold = take(&fixture.lock("x"));
    std::thread::scope(|scope| {
        let blocked =
            scope.spawn(|| is_blocked(fixture.lock("x").hold(&Options::new(), Wait::no())));
        assert!(blocked.join().unwrap());
        scope.spawn(move || assert_eq!(hold.release().unwrap(), ReleaseOutcome::Released));
    });
    assert_eq!(fixture.state("x"), State::Free);
}

#[cfg(unix)]
#[test]
fn dropping_a_copy_in_a_forked_child_does_nothing() {
    let fixture = Fixture::new();
    let hold = take(&fixture.lock("x"));
    let mut copy = Some(hold);
    let mut command = Command::new("true");
    // SAFETY: the child uses only memory of this thread, which waits for it.
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
    assert_eq!(hold.release().unwrap(), ReleaseOutcome::Released);
}

#[test]
fn blocked_attempt_returns_the_holder() {
    let fixture = Fixture::new();
    let claim = Options::new().message("nightly").owner("ops");
    let _hold = held(fixture.lock("x").hold(&claim, Wait::no()));
    let blocked = refused(fixture.lock("x").hold(&Options::new(), Wait::no()));
    let record = blocked.status.info().unwrap();
    assert_eq!(record.message(), Some("nightly"));
    assert_eq!(record.owner(), Some("ops"));
    assert_eq!(record.kind(), Kind::Process);
    assert_eq!(record.taken_by().unwrap().get(), std::process::id());
    assert_eq!(blocked.status.verdict.reason, Reason::Alive);
    assert!(blocked.waited.is_none());
}

#[test]
fn blocked_attempt_is_an_error_for_a_program_that_cannot_go_on() {
    let fixture = Fixture::new();
    let _hold = take(&fixture.lock("x"));
    let hold = |name: &str| -> Result<String, Box<dyn std::error::Error>> {
        let name: LockName = name.parse()?;
        let lock = fixture.store.lock(name.clone())?;
        let _hold = lock.hold(&Options::new(), Wait::no())?.into_result()?;
        Ok(name.as_ref().to_owned())
    };
    assert_eq!(hold("y").unwrap(), "y");
    let blocked = hold("x").unwrap_err();
    assert!(blocked.to_string().starts_with("`x` is held by process "));
    assert!(blocked.is::<Blocked>());
    assert!(hold("x//y").unwrap_err().is::<Error>());
}

#[test]
fn short_forms_hold_the_lock_or_fail_with_the_holder() {
    let fixture = Fixture::new();
    let lock = fixture.lock("x");
    let hold = lock.try_hold().unwrap();
    assert_eq!(fixture.state("x"), State::Held);
    let error = lock.try_hold().unwrap_err();
    let blocked = error.blocked().expect("the holder");
    assert_eq!(blocked.status.hold(), Some(hold.number()));
    assert!(blocked.waited.is_none());
    assert_eq!(error.to_string(), blocked.to_string());
    assert!(error.to_string().starts_with("`x` is held by process "));
    assert_eq!(
        format!("{error:?}"),
        format!("Blocked({:?})", error.to_string())
    );
    let limit = Duration::from_millis(50);
    let error = lock.hold_within(limit).unwrap_err();
    assert!(matches!(error, Error::Blocked(_)), "{error}");
    assert!(error.blocked().unwrap().waited.unwrap() >= limit);
    assert!(Error::Canceled.blocked().is_none());
    drop(hold);
    let hold = lock.hold_within(limit).unwrap();
    assert_eq!(hold.release().unwrap(), ReleaseOutcome::Released);
    assert_eq!(fixture.state("x"), State::Free);
}

#[test]
fn wait_ends_at_its_limit_or_when_it_is_canceled() {
    let fixture = Fixture::new();
    let _hold = take(&fixture.lock("x"));
    let lock = fixture.lock("x");
    let limit = Duration::from_millis(150);
    let blocked = refused(lock.hold(&Options::new(), Wait::at_most(limit)));
    assert!(blocked.waited.unwrap() >= limit);
    onehold::signal::use_sigalrm();
    let blocked = refused(lock.hold(&Options::new(), Wait::at_most(limit)));
    assert!(blocked.waited.unwrap() >= limit);
    let canceled = AtomicBool::new(false);
    let wait = Wait::forever()
        .until_canceled(&canceled)
        .on_wait(Duration::ZERO, |_| canceled.store(true, Ordering::Relaxed));
    assert!(is_blocked(lock.hold(&Options::new(), wait)));
}

#[test]
fn attempt_that_its_caller_does_not_let_go_on_takes_nothing() {
    let fixture = Fixture::new();
    let lock = fixture.lock("x");
    let mut decisions = Vec::new();
    let wait = Wait::no().on_decision(|decision| {
        decisions.push(decision);
        false
    });
    assert!(matches!(
        lock.hold(&Options::new(), wait),
        Err(Error::Canceled)
    ));
    assert_eq!(decisions, [WaitDecision::Take]);
    assert_eq!(fixture.state("x"), State::Free);
    // A waiter, once it could take it.
    let mut first = Some(take(&lock));
    let decided = AtomicUsize::new(0);
    let wait = Wait::forever()
        .on_wait(Duration::ZERO, |_| drop(first.take()))
        .on_decision(|_| {
            decided.fetch_add(1, Ordering::Relaxed);
            false
        });
    assert!(matches!(
        fixture.lock("x").hold(&Options::new(), wait),
        Err(Error::Canceled)
    ));
    assert_eq!(decided.into_inner(), 1);
    assert_eq!(fixture.env.number_of_waiters("x"), 0);
    // A hold that would be extended.
    let owned = Options::new().owner("me").ttl(Duration::from_mins(1));
    let pending = |wait| fixture.lock("x").acquire(&owned, Holder::Lease, wait);
    held(pending(Wait::no())).confirm().unwrap();
    let longer = owned.clone().ttl(Duration::from_hours(1));
    let before = fixture.lock("x").check(None).unwrap();
    let wait = Wait::no().on_decision(|_| false);
    let attempt = fixture.lock("x").acquire(&longer, Holder::Lease, wait);
    assert!(matches!(attempt, Err(Error::Canceled)));
    let after = fixture.lock("x").check(None).unwrap();
    assert_eq!(after.verdict.expires_at, before.verdict.expires_at);
}

#[test]
fn wait_ends_when_the_hold_is_released() {
    let fixture = Fixture::new();
    let hold = take(&fixture.lock("x"));
    let mut first = Some(hold);
    let lock = fixture.lock("x");
    let wait = Wait::forever().on_wait(Duration::ZERO, |_| drop(first.take()));
    let _second = held(lock.hold(&Options::new(), wait));
}

#[test]
fn lost_hold_is_detected_and_does_not_release_the_next_one() {
    let fixture = Fixture::new();
    let hold = take(&fixture.lock("x"));
    let status = fixture.lock("x").check(None).unwrap();
    let Break::Done { was, warnings } = fixture
        .lock("x")
        .break_hold(&status.revision().unwrap(), &mut |_| true)
        .unwrap()
    else {
        panic!("the hold has not changed");
    };
    assert_eq!(was.hold(), Some(hold.number()));
    assert!(warnings.is_empty());
    assert!(hold.is_lost().unwrap());
    let next = take(&fixture.lock("x"));
    assert_eq!(hold.release().unwrap(), ReleaseOutcome::Lost);
    assert!(!next.is_lost().unwrap());
    assert_eq!(fixture.state("x"), State::Held);
}

#[test]
fn replacement_is_limited_to_the_given_revision() {
    let fixture = Fixture::new();
    let first = take(&fixture.lock("x"));
    let shown = fixture.lock("x").check(None).unwrap().revision().unwrap();
    assert_eq!(first.release().unwrap(), ReleaseOutcome::Released);
    let _second = take(&fixture.lock("x"));
    let claim = Options::new().replace_hold(shown.clone());
    assert!(is_blocked(fixture.lock("x").hold(&claim, Wait::no())));
    assert!(matches!(
        fixture.lock("x").break_hold(&shown, &mut |_| true).unwrap(),
        Break::Changed(_)
    ));
}

#[test]
fn lease_is_held_only_after_confirmation() {
    let fixture = Fixture::new();
    let claim = Options::new().ttl(Duration::from_mins(1)).owner("me");
    let lock = fixture.lock("x");
    let unconfirmed = held(lock.acquire(&claim, Holder::Lease, Wait::no()));
    drop(unconfirmed);
    assert_eq!(fixture.state("x"), State::Free);
    let lease = held(lock.acquire(&claim, Holder::Lease, Wait::no()));
    let number = lease.confirm().unwrap();
    let again = || lock.acquire(&claim, Holder::Lease, Wait::no());
    let Attempt::Mine(status) = again().unwrap() else {
        panic!("the same owner holds it");
    };
    assert_eq!(status.hold(), Some(number));
    assert_eq!(refused(again()).status.hold(), Some(number));
    let other = Caller::default();
    let owner = Caller {
        owner: Some("me".to_owned()),
        ..Caller::default()
    };
    assert!(matches!(
        lock.renew(&other, None).unwrap(),
        Renewal::NotYours(_)
    ));
    assert!(matches!(
        lock.renew(&owner, None).unwrap(),
        Renewal::Done(_)
    ));
    assert!(matches!(
        lock.release(&other).unwrap(),
        Release::NotYours(_)
    ));
    assert!(matches!(lock.release(&owner).unwrap(), Release::Done(_)));
    assert!(matches!(lock.release(&owner).unwrap(), Release::Free));
}

#[test]
fn command_of_a_hold_is_recorded_as_its_holder() {
    let fixture = Fixture::new();
    let lock = fixture.lock("x");
    let claim = Options::new().command(vec!["cat".to_owned()]);
    let mut hold = held(lock.hold_for_command(&claim, RunOptions::new(), Wait::no()));
    let mut command = command("cat");
    command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null());
    let mut child = hold.spawn(&mut command).unwrap();
    let status = lock.check(None).unwrap();
    assert_eq!(
        status.verdict.pid.map(onehold::status::Pid::get),
        Some(child.id())
    );
    assert_eq!(status.info().unwrap().kind(), Kind::Run);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert_eq!(hold.release().unwrap(), ReleaseOutcome::Released);
    assert_eq!(fixture.state("x"), State::Free);
}

#[cfg(unix)]
#[test]
fn break_ends_the_command_of_a_program_and_neither_the_program_nor_its_other_children() {
    let fixture = Fixture::new();
    let lock = fixture.lock("x");
    let mut other = Running::sleeper();
    let mut hold = held(lock.hold_for_command(&Options::new(), RunOptions::new(), Wait::no()));
    let environment = hold.environment(None);
    let mut command = Command::new("sh");
    let set = environment
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));
    command.args(["-c", "sleep 1000 & sleep 1000; :"]).envs(set);
    let mut child = hold.spawn(&mut command).unwrap();
    // This test ends if it is signaled.
    assert_eq!(fixture.env.code(["break", "x", "--yes"]), 0);
    assert!(!child.wait().unwrap().success());
    assert!(!other.has_ended());
    assert!(hold.is_lost().unwrap());
    assert_eq!(hold.release().unwrap(), ReleaseOutcome::Lost);
}

/// Between fork(2) and execve(2) a child has the open files of the program, the lock file among them.
#[cfg(target_os = "linux")]
#[test]
fn break_signals_no_child_that_the_program_starts_for_something_else() {
    let fixture = Fixture::new();
    let lock = fixture.lock("x");
    let mut hold = held(lock.hold_for_command(&Options::new(), RunOptions::new(), Wait::no()));
    let environment = hold.environment(None);
    let mut command = Command::new("sh");
    let set = environment
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));
    // Its work is looked for until it has ended.
    let ready = fixture.env.path("ready");
    let script = format!(
        "trap 'sleep 2; exit' TERM; echo > {}; sleep 1000 & wait",
        ready.display()
    );
    command.args(["-c", &script]).envs(set);
    let mut child = hold.spawn(&mut command).unwrap();
    wait_until("it handles TERM", || ready.exists());
    let (is_broken, started) = (AtomicBool::new(false), AtomicUsize::new(0));
    let signaled = std::thread::scope(|scope| {
        let spawner = || {
            let mut signaled = 0;
            while !is_broken.load(Ordering::SeqCst) {
                let mut other = Command::new("true");
                // SAFETY: nanosleep(2) does nothing that a child of a program with threads may not do.
                unsafe {
                    other.pre_exec(|| {
                        std::thread::sleep(Duration::from_millis(10));
                        Ok(())
                    });
                }
                let status = other.status().unwrap();
                started.fetch_add(1, Ordering::SeqCst);
                signaled += usize::from(!status.success());
            }
            signaled
        };
        let spawners: Vec<_> = (0..8).map(|_| scope.spawn(spawner)).collect();
        assert_eq!(fixture.env.code(["break", "x", "--yes"]), 0);
        is_broken.store(true, Ordering::SeqCst);
        spawners
            .into_iter()
            .map(|spawner| spawner.join().unwrap())
            .sum::<usize>()
    });
    let _ = child.wait().unwrap();
    assert!(started.into_inner() > 100);
    assert_eq!(signaled, 0);
}

#[test]
fn command_does_not_start_if_the_lock_file_was_removed() {
    let fixture = Fixture::new();
    let lock = fixture.lock("x");
    let mut hold = held(lock.hold_for_command(&Options::new(), RunOptions::new(), Wait::no()));
    // Wine keeps a removed file until it is closed.
    if cfg!(windows) {
        std::fs::rename(lock.path(), fixture.env.path("moved")).unwrap();
    } else {
        std::fs::remove_file(lock.path()).unwrap();
    }
    let ran = fixture.env.path("ran");
    let mut command = command("touch");
    command.arg(&ran);
    assert!(matches!(
        hold.spawn(&mut command),
        Err(Error::LostWhileAcquiring { .. })
    ));
    assert!(!ran.exists());
}

#[test]
fn unrecognized_file_is_an_error_and_is_not_changed() {
    let fixture = Fixture::new();
    let path = fixture.env.path("data.db");
    std::fs::write(&path, "precious").unwrap();
    let lock = fixture.lock(path.to_str().unwrap());
    assert!(matches!(
        lock.hold(&Options::new(), Wait::no()),
        Err(Error::NotALock { .. })
    ));
    assert_eq!(lock.check(None).unwrap().verdict.state, State::NotALock);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn error_has_operation_path_and_source() {
    let fixture = Fixture::new();
    std::fs::write(fixture.store.path(), "").unwrap();
    let error = fixture.lock("x").check(None).unwrap_err();
    let expected = format!("cannot open store `{}`", fixture.store.path().display());
    assert_eq!(error.to_string(), expected);
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.to_lowercase().contains("not a directory"), "{cause}");
}

#[test]
fn list_and_cleanup_return_what_they_found() {
    let fixture = Fixture::new();
    let _hold = take(&fixture.lock("a/b"));
    let mut sleeper = Running::sleeper();
    let holder = Holder::process(sleeper.pid()).unwrap();
    let detached = held(
        fixture
            .lock("z")
            .acquire(&Options::new(), holder, Wait::no()),
    );
    detached.confirm().unwrap();
    sleeper.kill();
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
    let planned = fixture.store.cleanup(true, None).unwrap();
    assert_eq!(planned.removed.len(), 1);
    assert_eq!(names(), ["a/b", "z"]);
    let cleaned = fixture.store.cleanup(false, None).unwrap();
    assert_eq!(cleaned.removed[0].name, "z");
    assert_eq!(names(), ["a/b"]);
}

#[test]
fn command_does_not_start_if_another_program_took_the_lock() {
    let env = TestEnv::new();
    let store = Store::at(env.store()).format(Format::Sprint);
    let lock = store.lock(LockName::new("x").unwrap()).unwrap();
    let claim = Options::new().owner("o").message("m");
    let take = |keeping| held(lock.hold_for_command(&claim, keeping, Wait::no()));
    #[cfg(unix)]
    {
        let mut hold = take(RunOptions::new().exec(true));
        std::fs::remove_file(hold.path()).unwrap();
        // If it were executed, this test process would become `true`.
        let error = hold.exec(&mut command("true"));
        assert!(matches!(error, Error::LostWhileAcquiring { .. }), "{error}");
    }
    // Another program rewrites the file in place.
    let mut hold = take(RunOptions::new());
    let foreign = "pid: 1\nsession_id: \"other\"\nlock_version: 1\n";
    std::fs::write(hold.path(), foreign).unwrap();
    let started = env.path("started");
    let error = hold.spawn(command("touch").arg(&started)).unwrap_err();
    assert!(matches!(error, Error::LostWhileAcquiring { .. }), "{error}");
    assert!(!started.exists());
    assert_eq!(hold.release().unwrap(), ReleaseOutcome::Lost);
    assert_eq!(std::fs::read_to_string(lock.path()).unwrap(), foreign);
}

/// The first lines that the command line prints for the same refusal.
fn refusal_of_command_line(env: &TestEnv, words: &[&str], lines: usize) -> String {
    let said = env.output(words).stderr;
    let said = String::from_utf8(said).unwrap();
    let said: Vec<&str> = said
        .lines()
        .filter(|line| !line.starts_with("onehold: waiting"))
        .take(lines)
        .map(|line| line.trim_start_matches("onehold: ").trim_start())
        .collect();
    said.join("\n")
}

#[test]
fn refusal_is_displayed_in_the_words_of_its_program() {
    let fixture = Fixture::new();
    let env = &fixture.env;
    let store = |directory: &str, format| Store::at(env.path(directory)).format(format);
    let absolute = |file: &str| LockName::new(env.path(file)).unwrap();
    std::fs::create_dir(env.path("memory")).unwrap();
    let claim = Options::new().owner("s-1").message("work");
    let asks = Options::new().owner("s-2").message("other");
    for (lock, words, lines, begin) in [
        (
            store(".prodigy/resume_locks", Format::Prodigy).lock(LockName::new("job-1").unwrap()),
            &["--profile", "prodigy", "acquire", "job-1", "--ttl", "1h"][..],
            3,
            "Resume already in progress for job job-1\nLock held by: PID ",
        ),
        (
            store(".", Format::Sprint).lock(absolute(".sprint-running")),
            &[
                "--profile",
                "sprint",
                "acquire",
                "--owner",
                "s-2",
                "-m",
                "e",
            ],
            1,
            "Sprint already running (PID: ",
        ),
        (
            store(".", Format::Memory).lock(absolute("memory/.lock")),
            &[
                "--profile",
                "memory",
                "acquire",
                "-w",
                "1",
                "--owner",
                "s-2",
            ],
            1,
            "Could not acquire lock within 1s. Held by session 's-1' for operation 'work'",
        ),
    ] {
        let lock = lock.unwrap();
        let hold = held(lock.hold(&claim, Wait::no()));
        let blocked = refused(lock.hold(&asks, Wait::at_most(Duration::from_secs(1))));
        let text = blocked.to_string();
        assert!(text.starts_with(begin), "{text}");
        assert_eq!(text, refusal_of_command_line(env, words, lines));
        drop(hold);
    }
}

#[test]
fn refusal_of_a_native_lock_says_who_holds_it_since_when_and_why() {
    let fixture = Fixture::new();
    let lock = fixture.lock("x");
    let _hold = held(lock.hold(&Options::new().owner("o").message("a\u{1b}[2J"), Wait::no()));
    let blocked = refused(lock.hold(&Options::new(), Wait::no()));
    let text = blocked.to_string();
    let begin = format!("`x` is held by process {} (", std::process::id());
    assert!(
        text.starts_with(&begin) && text.contains(" of o on "),
        "{text}"
    );
    // The words of the command line, but for the time zone.
    let without_time = |text: &str| {
        let (before, after) = text.split_once(" since ").unwrap();
        let (_, after) = after.split_once(" ago)").unwrap();
        format!("{before} since…{after}")
    };
    let said = refusal_of_command_line(&fixture.env, &["run", "x", "--", "true"], 1);
    assert_eq!(without_time(&said), without_time(&text));
    assert!(text.contains("Z ("), "{text}");
    assert!(text.ends_with(" ago): \"a\\e[2J\""), "{text}");
    let dead = fixture.lock("dead");
    fixture.env.create_zombie("dead");
    let attempt = dead.hold(&Options::new().refuse_zombies(), Wait::no());
    let blocked = refused(attempt);
    assert!(
        blocked
            .to_string()
            .starts_with("`dead` is a zombie: process ")
    );
}

/// The holder is killed, so nothing but the kernel says that it has gone.
#[cfg(target_os = "linux")]
#[test]
fn waiters_of_a_program_without_sigalrm_sleep_until_they_are_woken() {
    /// Each looks once more after two seconds, and after five whether the one ahead was stopped.
    const MOST_WAKES: u64 = 4;
    let fixture = Fixture::new();
    let holder = fixture.env.hold(&["x"]);
    let (sender, threads) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..CONTENDERS)
            .map(|_| {
                let (sender, lock) = (sender.clone(), fixture.lock("x"));
                scope.spawn(move || {
                    sender.send(rustix::thread::gettid()).unwrap();
                    drop(lock.hold_within(Duration::from_mins(1)).unwrap());
                })
            })
            .collect();
        wait_until("all wait", || {
            fixture.env.number_of_waiters("x") == CONTENDERS
        });
        let wakes = |thread: &rustix::thread::Pid| {
            let path = format!("/proc/self/task/{thread}/status");
            let status = std::fs::read_to_string(path).unwrap();
            let mut lines = status.lines();
            let switches = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            switches.unwrap().trim().parse::<u64>().unwrap()
        };
        let threads: Vec<_> = threads.iter().take(CONTENDERS).collect();
        // The last one has its ticket, but may not sleep yet.
        std::thread::sleep(Duration::from_millis(200));
        let before: Vec<u64> = threads.iter().map(wakes).collect();
        std::thread::sleep(Duration::from_secs(3));
        let after: Vec<u64> = threads.iter().map(wakes).collect();
        for (after, before) in after.iter().zip(&before) {
            assert!(after - before <= MOST_WAKES, "{before:?}, {after:?}");
        }
        drop(holder);
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
    assert_eq!(fixture.state("x"), State::Free);
}

#[test]
fn readers_share_a_lock_by_slots_and_dropping_them_gives_the_slots_back() {
    const SLOTS: usize = 3;
    let fixture = Fixture::new();
    let lock = fixture.lock("pool");
    let slots = Options::new().mode(Mode::Slots(3.try_into().unwrap()));
    let mut holds: Vec<_> = (0..SLOTS)
        .map(|_| held(lock.hold(&slots, Wait::no())))
        .collect();
    let numbers: Vec<_> = holds.iter().flat_map(onehold::Hold::slots).collect();
    assert_eq!(numbers, [0, 1, 2]);
    let is_blocked = |options: &Options| is_blocked(lock.hold(options, Wait::no()));
    assert!(is_blocked(&slots) && is_blocked(&Options::new()));
    let status = lock.check(None).unwrap();
    assert_eq!(status.others.len(), SLOTS - 1);
    drop(holds.remove(1));
    let again = held(lock.hold(&slots, Wait::no()));
    assert_eq!(again.slots(), [1]);
    drop((holds, again));
    assert!(!is_blocked(&Options::new()));
    // Threads wait for a slot, and never are more than three at once.
    let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let _hold = held(lock.hold(&slots, Wait::forever()));
                    let beside = now.fetch_add(1, Ordering::SeqCst);
                    most.fetch_max(beside + 1, Ordering::SeqCst);
                    std::thread::yield_now();
                    now.fetch_sub(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert!(most.into_inner() <= SLOTS);
}

#[test]
fn several_locks_are_one_hold() {
    let fixture = Fixture::new();
    let name = |text: &str| LockName::new(text).unwrap();
    let both = fixture.lock("db").and(name("cache")).unwrap();
    let hold = held(both.hold(&Options::new(), Wait::no()));
    for other in ["db", "cache"] {
        let status = fixture.lock(other).check(None).unwrap();
        assert_eq!(status.hold(), Some(hold.number()));
        assert_eq!(status.names(), ["db", "cache"]);
    }
    drop(hold);
    for other in ["db", "cache"] {
        let status = fixture.lock(other).check(None).unwrap();
        assert_eq!(status.verdict.state, State::Free);
    }
    assert_eq!(both.clone().and(name("db")).unwrap().names().count(), 2);
    assert!(matches!(
        both.and(name("db/table")),
        Err(onehold::Error::NotTogether { .. })
    ));
}
