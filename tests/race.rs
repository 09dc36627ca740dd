//! Many at once: counts and winners, never a sleep. The long forms are ignored by default.
#![cfg(unix)]
#![allow(missing_docs)]
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use onehold::{Acquired, Attempt, Claim, Ended, Holder, LockName, Store, Wait};

fn program() -> PathBuf {
    assert_cmd::cargo::cargo_bin!("onehold").to_path_buf()
}

fn onehold(store: &Path) -> Command {
    let mut command = Command::new(program());
    command
        .env("ONEHOLD_DIR", store)
        .env_remove("ONEHOLD_HOLDS")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

/// Leaves `x` with a holder that was killed.
fn leave_dead(store: &Path) {
    let mut holder = Command::new("sleep").arg("1000").spawn().unwrap();
    let acquired = onehold(store)
        .args(["acquire", "x", "--pid", &holder.id().to_string()])
        .status()
        .unwrap();
    assert!(acquired.success());
    holder.kill().unwrap();
    holder.wait().unwrap();
}

/// Each of 8 workers increments a number in a file so many times; the shell's read and write are
/// far enough apart that two at once lose one.
fn count_to(each: usize, options: &[&str]) {
    let root = tempfile::tempdir().unwrap();
    let number = root.path().join("number");
    fs::write(&number, "0\n").unwrap();
    let script = format!("n=$(cat {0}); echo $((n + 1)) > {0}", number.display());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..each {
                    let status = onehold(&root.path().join("store"))
                        .args(["run", "counter", "-w", "forever"])
                        .args(options)
                        .args(["--", "sh", "-c", &script])
                        .status()
                        .unwrap();
                    assert!(status.success());
                }
            });
        }
    });
    let counted: usize = fs::read_to_string(&number).unwrap().trim().parse().unwrap();
    assert_eq!(counted, 8 * each);
}

#[test]
fn eight_processes_that_count_under_a_lock_lose_nothing() {
    count_to(50, &[]);
}

#[test]
fn eight_processes_that_count_without_an_inherited_lock_lose_nothing() {
    count_to(20, &["--close"]);
}

#[test]
fn eight_executed_commands_that_count_lose_nothing() {
    count_to(20, &["--exec"]);
}

#[test]
#[ignore = "long: the same with 8 × 250"]
fn eight_processes_that_count_to_2000_lose_nothing() {
    count_to(250, &[]);
}

/// Starts so many contenders, lets them go at once, and returns the exit codes.
fn released_at_once(store: &Path, gate: &Path, contenders: usize, args: &[&str]) -> Vec<i32> {
    let _ = fs::remove_file(gate);
    let made = Command::new("mkfifo").arg(gate).status().unwrap();
    assert!(made.success());
    let children: Vec<Child> = (0..contenders)
        .map(|_| {
            let mut command = Command::new("sh");
            command
                .args(["-c", "read go < \"$0\"; exec \"$@\""])
                .arg(gate)
                .arg(program())
                .args(args)
                .env("ONEHOLD_DIR", store)
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            command.spawn().unwrap()
        })
        .collect();
    // Opening waits for the first reader, closing releases them all.
    drop(fs::File::options().write(true).open(gate).unwrap());
    let mut codes: Vec<i32> = children
        .into_iter()
        .map(|mut child| {
            // One that opened the gate after it was closed would wait for ever.
            loop {
                if let Some(status) = child.try_wait().unwrap() {
                    return status.code().unwrap();
                }
                let nonblocking = 0o4000;
                let _ = fs::File::options()
                    .write(true)
                    .custom_flags(nonblocking)
                    .open(gate);
                std::thread::yield_now();
            }
        })
        .collect();
    codes.sort_unstable();
    codes
}

fn one_winner(rounds: usize, contenders: usize, prepare: impl Fn(&Path)) {
    let root = tempfile::tempdir().unwrap();
    let (store, gate) = (root.path().join("store"), root.path().join("gate"));
    let pid = std::process::id().to_string();
    let mut expected = vec![6; contenders];
    expected[0] = 0;
    for round in 0..rounds {
        prepare(&store);
        let args = ["acquire", "x", "--pid", &pid];
        assert_eq!(
            released_at_once(&store, &gate, contenders, &args),
            expected,
            "round {round}"
        );
        let broken = onehold(&store)
            .args(["break", "x", "--yes"])
            .status()
            .unwrap();
        assert!(broken.success());
        let left: Vec<_> = fs::read_dir(&store)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(left, [".onehold"], "round {round}");
    }
}

#[test]
fn of_sixteen_who_find_a_dead_holder_one_wins() {
    one_winner(20, 16, leave_dead);
}

#[test]
#[ignore = "long: the same in 300 rounds"]
fn of_sixteen_who_find_a_dead_holder_one_wins_300_times() {
    one_winner(300, 16, leave_dead);
}

#[test]
fn of_sixteen_who_find_a_lease_that_ran_out_one_wins() {
    one_winner(10, 16, |store| {
        let leased = onehold(store)
            .args(["acquire", "x", "--ttl", "1ms"])
            .status()
            .unwrap();
        assert!(leased.success());
        while onehold(store).args(["check", "x"]).status().unwrap().code() != Some(5) {}
    });
}

#[test]
fn of_sixteen_who_find_nothing_one_wins() {
    one_winner(10, 16, |_| {});
}

#[test]
fn of_threads_that_find_a_dead_holder_one_wins() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("store");
    let store = Store::at(&path);
    for round in 0..50 {
        leave_dead(&path);
        let start = Barrier::new(8);
        let numbers: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        let lock = store.lock(LockName::new("x").unwrap()).unwrap();
                        start.wait();
                        match lock.acquire(&Claim::new(), Holder::process(1).unwrap(), Wait::no()) {
                            Ok(Attempt::Held(Acquired::New(detached))) => {
                                Some(detached.confirm().unwrap())
                            }
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
        fs::remove_file(path.join("x.lock")).unwrap();
    }
}

#[test]
fn threads_that_count_under_a_lock_lose_nothing_and_their_numbers_grow() {
    let root = tempfile::tempdir().unwrap();
    let store = Store::at(root.path().join("store"));
    let number = root.path().join("number");
    fs::write(&number, "0 0").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let lock = store.lock(LockName::new("x").unwrap()).unwrap();
                for _ in 0..25 {
                    let Attempt::Held(hold) = lock.hold(&Claim::new(), Wait::forever()).unwrap()
                    else {
                        panic!("forever");
                    };
                    let text = fs::read_to_string(&number).unwrap();
                    let (count, last) = text.split_once(' ').unwrap();
                    let (count, last): (u32, u64) = (count.parse().unwrap(), last.parse().unwrap());
                    assert!(hold.number() > last);
                    fs::write(&number, format!("{} {}", count + 1, hold.number())).unwrap();
                    assert_eq!(hold.release().unwrap(), Ended::Released);
                }
            });
        }
    });
    let text = fs::read_to_string(&number).unwrap();
    assert_eq!(text.split_once(' ').unwrap().0, "200");
}

#[test]
fn a_program_that_creates_its_lock_file_exclusively_is_excluded_too() {
    let root = tempfile::tempdir().unwrap();
    let (path, number) = (root.path().join("lock"), root.path().join("number"));
    fs::write(&number, "0").unwrap();
    let increment = || {
        let count: u32 = fs::read_to_string(&number).unwrap().parse().unwrap();
        std::thread::yield_now();
        fs::write(&number, (count + 1).to_string()).unwrap();
    };
    std::thread::scope(|scope| {
        for worker in 0..8 {
            let (path, increment) = (&path, &increment);
            scope.spawn(move || {
                let store = Store::at("unused");
                let lock = store.lock(LockName::new(path).unwrap()).unwrap();
                let mut done = 0;
                while done < 50 {
                    if worker % 2 == 0 {
                        // Another program: it writes what onehold does not know.
                        if fs::File::create_new(path).is_err() {
                            continue;
                        }
                        fs::write(path, "4711\n").unwrap();
                        increment();
                        fs::remove_file(path).unwrap();
                    } else {
                        match lock.hold(&Claim::new(), Wait::no()) {
                            Ok(Attempt::Held(hold)) => {
                                increment();
                                assert_eq!(hold.release().unwrap(), Ended::Released);
                            }
                            // Held by another thread, in the making, or not a lock of ours.
                            Ok(Attempt::Blocked(_)) | Err(onehold::Error::NotALock { .. }) => {
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

/// One hold of the log: who had what, from when to when.
struct Interval {
    runner: usize,
    section: usize,
    /// `None`: the section itself.
    task: Option<usize>,
    from: Instant,
    to: Instant,
}

/// Runners on sections and their tasks, each the one or the other by turns of its own.
fn sections_and_tasks(duration: Duration) {
    const RUNNERS: usize = 16;
    const SECTIONS: usize = 4;
    const TASKS: usize = 8;
    let root = tempfile::tempdir().unwrap();
    let store = Store::at(root.path());
    let start = Instant::now();
    let mut log: Vec<Interval> = std::thread::scope(|scope| {
        let runners: Vec<_> = (0..RUNNERS)
            .map(|runner| {
                let store = &store;
                scope.spawn(move || {
                    let mut intervals = Vec::new();
                    let mut turn = runner;
                    while start.elapsed() < duration {
                        // A walk through all of them that is another one for each runner.
                        turn = (turn * 1_103_515_245 + 12_345) % (1 << 31);
                        let (section, choice) =
                            ((turn >> 8) % SECTIONS, (turn >> 16) % (TASKS + 3));
                        let task = (choice < TASKS).then_some(choice);
                        let name = match task {
                            Some(task) => format!("section-{section}/task-{task}"),
                            None => format!("section-{section}"),
                        };
                        let lock = store.lock(LockName::new(name).unwrap()).unwrap();
                        let claim = Claim::new().owner(format!("runner-{runner}"));
                        let wait = if turn & 64 == 0 {
                            Wait::no()
                        } else {
                            Wait::at_most(Duration::from_millis(50))
                        };
                        if let Attempt::Held(hold) = lock.hold(&claim, wait).unwrap() {
                            let from = Instant::now();
                            std::thread::sleep(Duration::from_micros(500));
                            let to = Instant::now();
                            drop(hold);
                            intervals.push(Interval {
                                runner,
                                section,
                                task,
                                from,
                                to,
                            });
                        }
                    }
                    intervals
                })
            })
            .collect();
        runners
            .into_iter()
            .flat_map(|runner| runner.join().unwrap())
            .collect()
    });
    log.sort_by_key(|interval| interval.from);
    let mut beside = 0;
    for (at, one) in log.iter().enumerate() {
        for other in log[at + 1..].iter().take_while(|other| other.from < one.to) {
            if other.section != one.section {
                continue;
            }
            let same = one.task == other.task;
            let covers = one.task.is_none() || other.task.is_none();
            assert!(!same, "{:?} of section {} twice", one.task, one.section);
            assert!(
                !covers || one.runner == other.runner,
                "section {} of runner {} beside {:?} of runner {}",
                one.section,
                one.runner,
                other.task,
                other.runner
            );
            beside += 1;
        }
    }
    let sections = log
        .iter()
        .filter(|interval| interval.task.is_none())
        .count();
    assert!(
        sections > 10 && log.len() - sections > 100 && beside > 10,
        "{} holds, {sections} of sections, {beside} beside another",
        log.len()
    );
}

#[test]
fn no_section_is_held_beside_a_task_of_another_runner() {
    sections_and_tasks(Duration::from_secs(2));
}

#[test]
#[ignore = "takes half a minute"]
fn no_section_is_held_beside_a_task_of_another_runner_in_30_seconds() {
    sections_and_tasks(Duration::from_secs(30));
}
