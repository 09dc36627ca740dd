//! Contention: counts and winners, never a sleep. The long forms are ignored by default.

use std::fs;
#[cfg(target_os = "linux")]
use std::io::{Read as _, Write as _};
use std::path::Path;
#[cfg(target_os = "linux")]
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use crate::harness::intervals::{Interval, overlapping, violations};
use crate::harness::seen::now;
use crate::harness::{
    CONTENDERS, INCREMENT, Rng, Running, TestEnv, run_together, sorted_codes, wait_until,
};
use onehold::{Attempt, Holder, LockName, Options, ReleaseOutcome, State, Store, Wait};
use serde_json::Value;

/// How often contenders begin at once.
const ROUNDS: usize = 15;

/// Each of 8 workers increments a number under the lock so many times.
fn count_under_lock(increments: usize, options: &[&str]) {
    let env = TestEnv::new();
    let run = [
        &["run", "counter", "-w", "forever"],
        options,
        &["--", "sh", "-c", INCREMENT],
    ]
    .concat();
    std::thread::scope(|scope| {
        for _ in 0..CONTENDERS {
            scope.spawn(|| {
                for _ in 0..increments {
                    env.done(&run);
                }
            });
        }
    });
    assert_eq!(env.count_in("number"), CONTENDERS * increments);
}

#[test]
fn counter_under_lock_is_exact() {
    count_under_lock(50, &[]);
}

#[test]
fn counter_is_exact_when_the_kernel_lock_is_not_inherited() {
    count_under_lock(20, &["--close"]);
}

#[test]
fn counter_is_exact_with_exec() {
    count_under_lock(20, &["--exec"]);
}

#[test]
#[ignore = "takes a minute: counts to 2,000"]
fn counter_under_lock_is_exact_up_to_2000() {
    count_under_lock(250, &[]);
}

/// 16 contenders acquire `x` at once, after `prepare`: one gets it and the others are refused.
fn assert_one_winner(rounds: usize, prepare: impl Fn(&TestEnv)) {
    let env = TestEnv::new();
    // The same process would get the hold that it has already.
    let holders: Vec<Running> = (0..16).map(|_| Running::sleeper()).collect();
    let mut expected = [6; 16];
    expected[0] = 0;
    for round in 0..rounds {
        prepare(&env);
        let contenders = holders
            .iter()
            .map(|holder| env.onehold(["acquire", "x", "--pid", &holder.pid().to_string()]));
        let outputs = run_together(contenders.collect());
        assert_eq!(sorted_codes(&outputs), expected, "round {round}");
        env.done(["break", "x", "--yes"]);
        assert_eq!(env.left_in_store(), [""; 0], "round {round}");
    }
}

#[test]
fn one_of_16_contenders_takes_over_zombie() {
    assert_one_winner(20, |env| env.create_zombie("x"));
}

#[test]
#[ignore = "takes a minute: 300 rounds"]
fn one_of_16_contenders_takes_over_zombie_in_each_of_300_rounds() {
    assert_one_winner(300, |env| env.create_zombie("x"));
}

#[test]
fn one_of_16_contenders_takes_over_expired_lease() {
    assert_one_winner(10, |env| {
        env.done(["acquire", "x", "--ttl", "1ms"]);
        crate::harness::wait_until("the lease has expired", || env.code(["check", "x"]) == 5);
    });
}

#[test]
fn one_of_16_contenders_takes_free_lock() {
    assert_one_winner(10, |_| {});
}

#[test]
fn repeated_acquires_at_once_all_get_the_same_number() {
    let env = TestEnv::new();
    let holder = Running::sleeper();
    let pid = holder.pid().to_string();
    for options in [
        ["--ttl", "1h", "--owner", "me"],
        ["--pid", &pid, "--owner", "me"],
        ["--shared", "--ttl", "1h", "--owner=me"],
    ] {
        for round in 0..ROUNDS {
            let acquire = [&["acquire", "x"][..], &options].concat();
            let contenders = (0..CONTENDERS).map(|_| env.onehold(&acquire));
            let outputs = run_together(contenders.collect());
            assert_eq!(
                sorted_codes(&outputs),
                [0; CONTENDERS],
                "{options:?}, round {round}: {outputs:?}"
            );
            let number = &outputs[0].stdout;
            assert!(
                !number.is_empty() && outputs.iter().all(|output| output.stdout == *number),
                "{options:?}, round {round}: {outputs:?}"
            );
            env.done(["release", "x", "--owner", "me"]);
            assert_eq!(env.left_in_store(), [""; 0], "round {round}");
        }
    }
}

#[test]
fn one_of_8_threads_takes_over_zombie() {
    let env = TestEnv::new();
    let store = Store::at(env.store());
    for round in 0..50 {
        env.create_zombie("x");
        let start = Barrier::new(CONTENDERS);
        let numbers: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..CONTENDERS)
                .map(|_| {
                    scope.spawn(|| {
                        let lock = store.lock(LockName::new("x").unwrap()).unwrap();
                        start.wait();
                        match lock.acquire(&Options::new(), Holder::process(1).unwrap(), Wait::no())
                        {
                            Ok(Attempt::Held(detached)) => Some(detached.confirm().unwrap()),
                            Ok(_) => None,
                            Err(error) => panic!("{error}"),
                        }
                    })
                })
                .collect();
            threads
                .into_iter()
                .filter_map(|thread| thread.join().unwrap())
                .collect()
        });
        assert_eq!(numbers.len(), 1, "round {round}: {numbers:?}");
        fs::remove_file(env.path("store/x.lock")).unwrap();
    }
}

#[test]
fn counter_of_threads_is_exact_and_hold_numbers_grow() {
    let env = TestEnv::new();
    let store = Store::at(env.store());
    let number = env.path("number");
    fs::write(&number, "0 0").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..CONTENDERS {
            scope.spawn(|| {
                let lock = store.lock(LockName::new("x").unwrap()).unwrap();
                for _ in 0..25 {
                    let Attempt::Held(hold) = lock.hold(&Options::new(), Wait::forever()).unwrap()
                    else {
                        panic!("it waits forever");
                    };
                    let text = fs::read_to_string(&number).unwrap();
                    let (count, last) = text.split_once(' ').unwrap();
                    let (count, last): (u32, u64) = (count.parse().unwrap(), last.parse().unwrap());
                    assert!(hold.number() > last);
                    fs::write(&number, format!("{} {}", count + 1, hold.number())).unwrap();
                    assert_eq!(hold.release().unwrap(), ReleaseOutcome::Released);
                }
            });
        }
    });
    let text = fs::read_to_string(&number).unwrap();
    assert_eq!(text.split_once(' ').unwrap().0, "200");
}

#[test]
fn program_that_creates_its_lock_file_exclusively_is_excluded() {
    let env = TestEnv::new();
    let (path, number) = (env.path("lock"), env.path("number"));
    fs::write(&number, "0").unwrap();
    let increment = || {
        let count: u32 = fs::read_to_string(&number).unwrap().parse().unwrap();
        std::thread::yield_now();
        fs::write(&number, (count + 1).to_string()).unwrap();
    };
    std::thread::scope(|scope| {
        for worker in 0..CONTENDERS {
            let (path, increment) = (&path, &increment);
            scope.spawn(move || {
                let store = Store::at("unused");
                let lock = store.lock(LockName::new(path).unwrap()).unwrap();
                let mut done = 0;
                while done < 50 {
                    if worker % 2 == 0 {
                        // Another program: onehold does not recognize its content.
                        if fs::File::create_new(path).is_err() {
                            continue;
                        }
                        fs::write(path, "4711\n").unwrap();
                        increment();
                        fs::remove_file(path).unwrap();
                    } else {
                        match lock.hold(&Options::new(), Wait::no()) {
                            Ok(Attempt::Held(hold)) => {
                                increment();
                                assert_eq!(hold.release().unwrap(), ReleaseOutcome::Released);
                            }
                            // Held by another thread, incomplete, or not recognized.
                            Ok(_) | Err(onehold::Error::NotALock { .. }) => {
                                continue;
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                    done += 1;
                }
            });
        }
    });
    assert_eq!(fs::read_to_string(&number).unwrap(), "400");
}

/// 16 runners with an owner each hold parents and children, chosen by turns of their own.
fn hold_parents_and_children(duration: Duration) {
    const RUNNERS: usize = 16;
    const PARENTS: usize = 4;
    const CHILDREN: usize = 8;
    let env = TestEnv::new();
    let store = Store::at(env.store());
    let start = Instant::now();
    // A busy machine gets more time.
    let (of_children, of_parents) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let goes_on = || {
        let is_enough =
            of_children.load(Ordering::Relaxed) > 150 && of_parents.load(Ordering::Relaxed) > 15;
        start.elapsed() < duration || (!is_enough && start.elapsed() < 10 * duration)
    };
    let run = |runner: usize| {
        let mut rng = Rng(0x9E37_79B9_7F4A_7C15 ^ (runner as u64 + 1) << 32);
        let mut intervals = Vec::new();
        while goes_on() {
            let (parent, choice) = (rng.below(PARENTS), rng.below(CHILDREN + 3));
            let name = if choice < CHILDREN {
                format!("parent-{parent}/child-{choice}")
            } else {
                format!("parent-{parent}")
            };
            let owner = format!("runner-{runner}");
            let lock = store.lock(LockName::new(&name).unwrap()).unwrap();
            let options = Options::new().owner(&owner);
            let wait = if rng.below(2) == 0 {
                Wait::no()
            } else {
                Wait::at_most(Duration::from_millis(50))
            };
            let attempt = match lock.hold(&options, wait) {
                // On a busy machine its short wait may end before it is its turn to look.
                Err(onehold::Error::StoreBusy { .. }) => continue,
                attempt => attempt.unwrap(),
            };
            if let Attempt::Held(hold) = attempt {
                let from = now();
                // The critical section, long enough for others to overlap.
                std::thread::sleep(Duration::from_micros(500));
                let to = now();
                let of = if choice < CHILDREN {
                    &of_children
                } else {
                    &of_parents
                };
                of.fetch_add(1, Ordering::Relaxed);
                intervals.push(Interval {
                    name,
                    shared: None,
                    owner: Some(owner),
                    hold: hold.number(),
                    from,
                    to,
                });
            }
        }
        intervals
    };
    let mut log: Vec<Interval> = std::thread::scope(|scope| {
        let run = &run;
        let runners: Vec<_> = (0..RUNNERS)
            .map(|runner| scope.spawn(move || run(runner)))
            .collect();
        runners
            .into_iter()
            .flat_map(|runner| runner.join().unwrap())
            .collect()
    });
    let violations = violations(&mut log);
    assert!(violations.is_empty(), "{}", violations.join("\n"));
    // Enough of each kind has been seen for that to mean something.
    let is_child = |interval: &&Interval| interval.name.contains('/');
    let children = log.iter().filter(is_child).count();
    let parents = log.len() - children;
    let family = |interval: &Interval| interval.name[.."parent-0".len()].to_owned();
    let related = overlapping(&log, 0)
        .filter(|(one, other)| family(one) == family(other))
        .count();
    assert!(
        parents > 10 && children > 100 && related > 10,
        "{children} holds of children, {parents} of parents, {related} overlaps of relatives"
    );
}

#[test]
fn parent_is_not_held_beside_child_of_another_owner() {
    hold_parents_and_children(Duration::from_secs(2));
}

#[test]
#[ignore = "takes half a minute"]
fn parent_is_not_held_beside_child_of_another_owner_in_30s() {
    hold_parents_and_children(Duration::from_secs(30));
}

/// A pipe that nothing more can be written to.
#[cfg(target_os = "linux")]
fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    // pipe(7): the capacity on Linux.
    writer.write_all(&vec![b'.'; 65536]).unwrap();
    (reader, writer)
}

/// An `acquire` that has taken the lock and cannot print its number before its pipe is emptied.
#[cfg(target_os = "linux")]
struct Stuck {
    acquire: Running,
    stdout: std::io::PipeReader,
}

#[cfg(target_os = "linux")]
impl Stuck {
    fn new(env: &TestEnv, options: &[&str]) -> Self {
        let (stdout, writer) = full_pipe();
        let mut acquire = env.onehold(["acquire", "-v", "x"]);
        acquire.args(options).stdout(writer).stderr(Stdio::piped());
        let acquire = Running::spawn(acquire);
        wait_until("the record is there", || env.path("store/x.lock").exists());
        Self { acquire, stdout }
    }

    /// Lets it print its number: that, its exit code and what it says.
    fn finish(mut self) -> (String, i32, String) {
        let mut printed = String::new();
        self.stdout.read_to_string(&mut printed).unwrap();
        let (code, said) = self.acquire.finish_with_stderr();
        (printed.trim_matches(['.', '\n']).to_owned(), code, said)
    }
}

/// Starts a verb, and returns when it waits for another process, or has ended.
#[cfg(target_os = "linux")]
fn start_and_let_it_wait(env: &TestEnv, words: &[&str]) -> Running {
    let mut command = env.onehold(words);
    let printed = fs::File::create(env.path("printed")).unwrap();
    command.stdout(printed).stderr(Stdio::null());
    let mut verb = Running::spawn(command);
    wait_until("it waits, or has ended", || {
        verb.has_ended() || crate::harness::watches_a_file(verb.pid())
    });
    verb
}

#[cfg(target_os = "linux")]
#[test]
fn acquire_of_the_same_holder_waits_until_the_number_is_printed() {
    let holder = Running::sleeper();
    let pid = holder.pid().to_string();
    for options in [["--ttl", "1h"], ["--pid", &pid]] {
        let env = TestEnv::new();
        let options = [&["--owner", "me"], &options[..]].concat();
        let stuck = Stuck::new(&env, &options);
        let again = [&["acquire", "x"], &options[..]].concat();
        let mut again = start_and_let_it_wait(&env, &again);
        let (number, code, said) = stuck.finish();
        assert_eq!((again.finish(), code), (0, 0), "{options:?}: {said}");
        let printed = fs::read_to_string(env.path("printed")).unwrap();
        assert_eq!(printed.trim(), number, "{options:?}");
        assert_eq!(env.lock("x")["hold"].to_string(), number, "{options:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn acquire_gets_the_lock_if_the_first_of_the_same_holder_fails() {
    let env = TestEnv::new();
    let options = ["--ttl", "1h", "--owner", "me"];
    let mut stuck = Stuck::new(&env, &options);
    let again = [&["acquire", "x"], &options[..]].concat();
    let mut again = start_and_let_it_wait(&env, &again);
    stuck.acquire.kill();
    assert_eq!(again.finish(), 0);
    let printed = fs::read_to_string(env.path("printed")).unwrap();
    assert_eq!(env.lock("x")["hold"].to_string(), printed.trim());
}

#[cfg(target_os = "linux")]
#[test]
fn hold_is_given_back_renewed_and_taken_only_after_its_number_is_printed() {
    for (verb, is_held) in [
        (&["release", "x", "--owner", "me"][..], false),
        (&["renew", "x", "--owner", "me"], true),
        (&["break", "x", "--yes"], false),
        (&["break", "x", "--yes", "--force"], false),
        (&["run", "x", "--force", "--yes", "--", "true"], false),
    ] {
        let env = TestEnv::new();
        let stuck = Stuck::new(&env, &["--ttl", "1h", "--owner", "me"]);
        let mut verb_running = start_and_let_it_wait(&env, verb);
        let (number, code, said) = stuck.finish();
        assert_eq!((verb_running.finish(), code), (0, 0), "{verb:?}: {said}");
        assert!(said.contains("acquired `x`"), "{verb:?}: {said}");
        assert!(number.parse::<u64>().is_ok(), "{verb:?}: {number}");
        assert_eq!(env.lock("x")["state"] == "held", is_held, "{verb:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn acquire_that_cannot_print_its_number_is_not_waited_for_without_end() {
    for verb in [
        &["release", "x", "--owner", "me"][..],
        &["break", "x", "--yes"],
        &["run", "x", "--force", "--yes", "--", "true"],
    ] {
        let env = TestEnv::new();
        let options = ["--ttl", "1h", "--owner", "me"];
        let stuck = Stuck::new(&env, &options);
        let again = [&["acquire", "x"], &options[..]].concat();
        assert_eq!(env.code(&again), 6, "{verb:?}");
        assert_eq!(env.code(verb), 0, "{verb:?}");
        assert_eq!(env.lock("x")["state"], "free", "{verb:?}");
        let (_, code, said) = stuck.finish();
        assert_eq!(code, 1, "{verb:?}: {said}");
        let has_lost = said.contains("lost the lock while acquiring it");
        assert!(has_lost && !said.contains("acquired"), "{verb:?}: {said}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn hold_is_not_renewed_before_its_number_is_printed() {
    let env = TestEnv::new();
    let holder = Running::sleeper();
    let pid = holder.pid().to_string();
    let stuck = Stuck::new(&env, &["--pid", &pid, "--owner", "me"]);
    assert_eq!(env.code(["renew", "x", "--owner", "me"]), 3);
    let (_, code, said) = stuck.finish();
    assert_eq!(code, 0, "{said}");
    assert_eq!(env.lock("x")["pid"], holder.pid());
    assert_eq!(env.code(["renew", "x", "--owner", "me"]), 0);
    assert_eq!(env.lock("x")["pid"], holder.pid());
}

#[test]
fn name_and_path_of_one_lock_file_exclude_each_other() {
    let env = TestEnv::new();
    let store = Store::at(env.store());
    let by_name = || LockName::new("sec/x").unwrap();
    let by_path = || LockName::new(env.path("store/sec.d/x.lock")).unwrap();
    // Keeps the directory of the lock.
    env.done(["acquire", "sec/other", "--ttl", "1h"]);
    let (mut log, mut failed) = (Vec::new(), Vec::new());
    for round in 0..300 {
        let lease = store.lock(by_name()).unwrap();
        let options = Options::new().ttl(Duration::from_millis(1));
        match lease.acquire(&options, Holder::Lease, Wait::no()).unwrap() {
            Attempt::Held(pending) => drop(pending.confirm().unwrap()),
            other => panic!("round {round}: {other:?}"),
        }
        wait_until("the lease has expired", || {
            lease.check(None).unwrap().verdict.state == State::Zombie
        });
        let start = Barrier::new(2 * CONTENDERS);
        let (intervals, errors) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for contender in 0..2 * CONTENDERS {
                let (store, start) = (&store, &start);
                let (intervals, errors) = (&intervals, &errors);
                let name = if contender % 2 == 0 {
                    by_name()
                } else {
                    by_path()
                };
                scope.spawn(move || {
                    let lock = store.lock(name).unwrap();
                    start.wait();
                    match lock.hold(&Options::new(), Wait::no()) {
                        Ok(Attempt::Held(hold)) => {
                            let from = now();
                            std::thread::sleep(Duration::from_micros(300));
                            intervals.lock().unwrap().push(Interval {
                                name: "sec/x".to_owned(),
                                shared: None,
                                owner: None,
                                hold: hold.number(),
                                from,
                                to: now(),
                            });
                        }
                        Ok(_) => {}
                        Err(error) => errors.lock().unwrap().push(error.to_string()),
                    }
                });
            }
        });
        let intervals = intervals.into_inner().unwrap();
        assert!(!intervals.is_empty(), "round {round}");
        failed.extend(errors.into_inner().unwrap());
        log.extend(intervals);
        let violations = violations(&mut log);
        assert!(violations.is_empty(), "round {round}: {violations:?}");
    }
    assert_eq!(failed, [""; 0]);
}

/// Reads of a lock file while it changed.
#[derive(Debug, Default)]
struct Reads {
    whole: AtomicUsize,
    /// Not a document at first, but when it was read again at once.
    torn: AtomicUsize,
    /// Not a document, however often it was read.
    broken: Mutex<Vec<String>>,
}

impl Reads {
    /// Reads the file again and again until `is_over`.
    fn read(&self, path: &Path, is_over: &AtomicBool) {
        let is_document = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).is_ok();
        while !is_over.load(Ordering::Relaxed) {
            let Ok(bytes) = fs::read(path) else { continue };
            if is_document(&bytes) {
                self.whole.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            self.torn.fetch_add(1, Ordering::Relaxed);
            let again = (0..8).find_map(|_| match fs::read(path) {
                Ok(bytes) if !is_document(&bytes) => None,
                other => Some(other),
            });
            if again.is_none() {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                self.broken.lock().unwrap().push(text);
            }
        }
    }
}

#[test]
fn record_is_a_json_document_at_every_moment() {
    let env = TestEnv::new();
    let (reads, is_over) = (Reads::default(), AtomicBool::new(false));
    let path = env.path("store/x.lock");
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| reads.read(&path, &is_over));
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..50 {
                // Taken, started, renewed three times, and released.
                env.done(["run", "x", "--ttl", "100ms", "--", "sleep", "0.12"]);
                let number = env.done(["acquire", "x", "--ttl", "1h"]);
                for _ in 0..5 {
                    env.done(["renew", "x", "--hold", &number, "--ttl", "2h"]);
                }
                env.done(["release", "x", "--hold", &number]);
            }
        }));
        is_over.store(true, Ordering::Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
    let broken = reads.broken.into_inner().unwrap();
    let (whole, torn) = (reads.whole.into_inner(), reads.torn.into_inner());
    assert!(
        broken.is_empty(),
        "{} of {whole} reads: {}",
        broken.len(),
        broken[0]
    );
    assert!(whole > 1000, "only {whole} reads");
    // read(2) and write(2) of one page are not atomic for each other on each file system.
    assert!(torn * 1000 <= whole, "{torn} of {whole} reads were torn");
}
