//! Findings about the first build, each as a test of its own, seen from outside.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant, SystemTime};

use crate::harness::intervals::{Interval, violations};
use crate::harness::seen::now;
use crate::harness::{
    CONTENDERS, Running, TestEnv, dead_pid, exit_code, foreign, json_object, output, run_together,
    sorted_codes, wait_until,
};
use chrono::{DateTime, TimeDelta, Utc};
use onehold::{Attempt, Holder, LockName, Options, State, Store, Wait};
use rustix::fs::{FlockOperation, fcntl_lock, flock};
use serde_json::Value;

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Makes a file look as if it had not changed for a minute.
fn make_older(path: &Path) {
    let file = fs::File::options().write(true).open(path).unwrap();
    let minute_ago = SystemTime::now() - Duration::from_mins(1);
    file.set_modified(minute_ago).unwrap();
}

// Taking a lock.

/// The owner R1 acquires `wanted` while R2 waits for it, in the directory `queue`, because R1's `held`
/// excludes R2.
fn assert_owner_is_not_blocked_by_waiter(held: &str, wanted: &str, queue: &str) {
    let env = TestEnv::new();
    env.done(["acquire", held, "--owner", "R1", "--ttl", "1h"]);
    let wait = ["run", "-w", "forever", wanted, "--owner", "R2"];
    let _waiter = env.start([&wait[..], &["--", "true"]].concat());
    // `check` and `list` show the hold that R2 waits for, and not R2, which waits for another name.
    let queue = env.path(&format!("store/.onehold/waiting/{queue}"));
    wait_until("R2 waits", || {
        fs::read_dir(&queue).is_ok_and(|tickets| tickets.count() == 1)
    });
    let output = env.output(["acquire", wanted, "--owner", "R1", "--ttl", "1h"]);
    assert_eq!(exit_code(output.status), 0, "{}", stderr(&output));
    assert_eq!(env.lock(wanted)["owner"], "R1");
}

#[test]
fn owner_of_parent_gets_child_that_another_waits_for() {
    assert_owner_is_not_blocked_by_waiter("sec", "sec/t", "sec.d/t.lock");
}

#[test]
fn owner_of_child_gets_parent_that_another_waits_for() {
    assert_owner_is_not_blocked_by_waiter("sec/a", "sec", "sec.lock");
}

#[test]
#[ignore = "needs root for a pid namespace"]
fn waiter_that_cannot_see_that_the_holder_is_dead_does_not_block_others() {
    let env = TestEnv::new();
    let mut holder = Running::sleeper();
    env.done(["acquire", "x", "--pid", &holder.pid().to_string()]);
    let mut elsewhere = env.command("unshare");
    elsewhere
        .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["onehold", "run", "-w", "forever", "x", "--", "true"]);
    let _waiter = Running::start(elsewhere);
    wait_until("the other waits", || env.number_of_waiters("x") == 1);
    holder.kill();
    let output = env.output(["run", "x", "--", "true"]);
    assert_eq!(exit_code(output.status), 0, "{}", stderr(&output));
}

#[test]
fn wait_for_child_inside_run_of_parent_is_refused_immediately() {
    let env = TestEnv::new();
    let mut command = env.onehold(["run", "sec", "--"]);
    command
        .args(["onehold", "run", "-w", "1h", "sec/t", "--", "true"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    // Fails if it takes longer than the timeout of the harness.
    let mut run = Running::spawn(command);
    assert_eq!(run.finish(), 6);
    let (_, stderr) = run.finish_with_stderr();
    assert!(stderr.contains("`sec`"), "{stderr}");
}

#[test]
fn lease_acquired_again_with_longer_ttl_lasts_as_long_as_asked() {
    let env = TestEnv::new();
    let number = env.done(["acquire", "x", "--owner", "me", "--ttl", "10m"]);
    let asked = Utc::now() + TimeDelta::hours(2);
    let repeated = env.done(["acquire", "x", "--owner", "me", "--ttl", "2h"]);
    assert_eq!(repeated, number);
    let lock = env.lock("x");
    let expires = DateTime::parse_from_rfc3339(lock["expires_at"].as_str().unwrap()).unwrap();
    assert!(expires >= asked, "{expires} is before {asked}");
}

/// Eight subshells of one script each acquire a lock, increment a number and release the lock.
fn assert_subshells_exclude_each_other(options: &str) {
    let env = TestEnv::new();
    let script = format!(
        "for i in 1 2 3 4 5 6 7 8; do
            (
                onehold acquire n -w 50 {options} >/dev/null || exit
                n=$(cat number 2>/dev/null || echo 0)
                sleep 0.02
                echo $((n + 1)) > number
                onehold release n || echo >> not-released
            ) &
        done
        wait"
    );
    fs::write(env.path("script"), script).unwrap();
    let mut bash = env.command("bash");
    let output = output(bash.arg(env.path("script")));
    assert_eq!(env.count_in("number"), CONTENDERS, "{}", stderr(&output));
    assert_eq!(env.lines("not-released"), 0, "{}", stderr(&output));
    assert_eq!(env.left_in_store(), [""; 0]);
}

#[test]
fn subshells_of_one_script_hold_one_after_the_other() {
    assert_subshells_exclude_each_other("");
}

#[test]
fn subshells_of_one_script_with_an_owner_hold_one_after_the_other() {
    assert_subshells_exclude_each_other("--owner session-1");
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

#[test]
fn hold_number_of_path_into_store_grows_when_the_clock_goes_back() {
    let env = TestEnv::new();
    env.done(["run", "x", "--", "true"]);
    // As if the clock had been an hour ahead.
    let ahead = Utc::now() + TimeDelta::hours(1);
    let last = ahead.timestamp_micros().cast_unsigned();
    fs::write(env.path("store/.onehold/last"), last.to_le_bytes()).unwrap();
    let number = |name: &str| -> u64 {
        let number = env.done(["acquire", name, "--ttl", "1h"]);
        env.done(["release", name, "--hold", &number]);
        number.parse().unwrap()
    };
    let first = number("x");
    assert!(first > last, "by name: {first} after {last}");
    let second = number("./store/x.lock");
    assert!(second > first, "by path: {second} after {first}");
}

#[test]
fn store_with_unknown_scheme_is_a_usage_error() {
    let env = TestEnv::new();
    let output = env.output(["run", "--dir", "unknown://h:1/x", "x", "--", "true"]);
    assert_eq!(exit_code(output.status), 2, "{}", stderr(&output));
    assert!(!env.path("unknown:").exists());
}

// Liveness of holders.

/// Kills the wrapper of a run and compares the pid in its lock file with that of the command.
fn assert_pid_in_file_is_that_of_command(args: &[&str], file: &str, pid: fn(&str) -> Option<u64>) {
    let env = TestEnv::new();
    let mut wrapper = env.hold(args);
    let command = env.pid_in("began");
    wrapper.kill();
    let text = fs::read_to_string(env.path(file)).unwrap();
    let pid = pid(&text).unwrap_or_else(|| panic!("no pid in {text}"));
    assert_eq!(pid, u64::from(command), "{text}");
    let probed = env.shell(&format!("kill -0 {pid}")).status().unwrap();
    assert!(probed.success(), "{text}");
    env.end();
}

#[test]
fn pid_file_of_killed_wrapper_has_pid_of_command() {
    assert_pid_in_file_is_that_of_command(&["--format", "pid", "./x.pid"], "x.pid", |text| {
        text.trim().parse().ok()
    });
}

#[test]
fn prodigy_record_of_killed_wrapper_has_pid_of_command() {
    let args = ["--format", "prodigy", "x"];
    assert_pid_in_file_is_that_of_command(&args, "store/x.lock", |text| {
        serde_json::from_str::<Value>(text).unwrap()["process_id"].as_u64()
    });
}

#[test]
fn memory_record_of_killed_wrapper_has_pid_of_command() {
    let args = ["--format", "memory", "--owner", "s", "x"];
    assert_pid_in_file_is_that_of_command(&args, "store/x.lock", |text| {
        serde_json::from_str::<Value>(text).unwrap()["pid"].as_u64()
    });
}

#[test]
fn sprint_record_of_killed_wrapper_has_pid_of_command() {
    let args = ["--format", "sprint", "--owner", "s", "-m", "e", "x"];
    assert_pid_in_file_is_that_of_command(&args, "store/x.lock", |text| {
        let pid = text.lines().find_map(|line| line.strip_prefix("pid: "))?;
        pid.trim().parse().ok()
    });
}

#[test]
fn record_has_pid_of_command_first() {
    let first_pid = |text: &str| {
        let record: Value = serde_json::from_str(text).unwrap();
        let (_, rest) = text.split_once("\"pid\":")?;
        let digits: String = rest
            .trim_start()
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        assert_eq!(record["live"]["pid"].to_string(), digits, "{text}");
        digits.parse().ok()
    };
    assert_pid_in_file_is_that_of_command(&["x"], "store/x.lock", first_pid);
}

#[test]
fn zombie_is_released_by_any_caller() {
    let env = TestEnv::new();
    env.create_zombie("x");
    let output = env.output(["release", "x"]);
    assert_eq!(exit_code(output.status), 0, "{}", stderr(&output));
    assert_eq!(env.left_in_store(), [""; 0]);
}

#[test]
fn pid_file_with_0_is_not_a_zombie() {
    let env = TestEnv::new();
    fs::write(env.path("x.pid"), "0\n").unwrap();
    make_older(&env.path("x.pid"));
    let acquire = ["acquire", "--format", "pid", "./x.pid", "--pid", "1"];
    assert_eq!(env.code(acquire), 6);
    assert_eq!(fs::read_to_string(env.path("x.pid")).unwrap(), "0\n");
}

#[test]
fn file_under_fcntl_lock_is_held_although_its_process_is_dead() {
    let env = TestEnv::new();
    let record = foreign::prodigy("x", dead_pid());
    fs::write(env.path("x.lock"), record).unwrap();
    let path = env.path("x.lock");
    let locked = fs::File::options().write(true).open(path).unwrap();
    fcntl_lock(&locked, FlockOperation::LockExclusive).unwrap();
    let run = ["run", "--format", "prodigy", "./x.lock", "--", "true"];
    assert_eq!(env.code(run), 6);
    drop(locked);
    assert_eq!(env.code(run), 0);
}

#[test]
fn record_of_another_boot_is_held_while_its_kernel_lock_is() {
    let env = TestEnv::new();
    let _holder = env.hold(&["x"]);
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let path = env.path("store/x.lock");
    let record = fs::read_to_string(&path).unwrap();
    let other = record.replace(boot.trim(), "00000000-1111-2222-3333-444444444444");
    assert_ne!(record, other);
    // In place, so that the kernel lock stays on this file.
    let file = fs::File::options().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, other.as_bytes(), 0).unwrap();
    assert_eq!(env.code(["run", "x", "--", "true"]), 6);
}

#[test]
fn record_of_another_machine_is_unverified_whatever_its_boot_id() {
    let env = TestEnv::new();
    env.create_zombie("x");
    let path = env.path("store/x.lock");
    let record = fs::read_to_string(&path).unwrap();
    let host = foreign::this_host();
    let (before, origin) = record.split_once("\"origin\"").unwrap();
    let before = before.replace(
        &format!("\"hostname\": \"{host}\""),
        "\"hostname\": \"another-machine\"",
    );
    // The boot id, and whatever else identifies the machine.
    let origin: Vec<String> = origin.split('"').map(other_identifier).collect();
    fs::write(&path, [before, origin.join("\"")].join("\"origin\"")).unwrap();
    assert_eq!(env.code(["run", "x", "--", "true"]), 6);
}

/// Changes a text of at least 16 hexadecimal digits to another one; other texts stay as they are.
fn other_identifier(text: &str) -> String {
    let is_identifier = text.len() >= 16 && text.chars().all(|c| c == '-' || c.is_ascii_hexdigit());
    if !is_identifier {
        return text.to_owned();
    }
    text.replace(|c: char| c != '-' && c != '1', "1")
}

#[test]
#[ignore = "needs root for a pid namespace"]
fn command_that_closed_its_descriptors_is_held_in_another_pid_namespace() {
    let env = TestEnv::new();
    let script = "import os, time
os.closerange(3, 1024)
with open('began', 'w') as began:
    print(os.getpid(), file=began)
while os.path.exists('began') and not os.path.exists('end'):
    time.sleep(0.005)";
    let mut wrapper = env.start(["run", "x", "--", "python3", "-c", script]);
    env.pid_in("began");
    // The wrapper checks the descriptors of its command once a second.
    let record = || fs::read_to_string(env.path("store/x.lock")).unwrap();
    let started = Instant::now();
    wait_until("the wrapper has noticed, or should have", || {
        record().contains("let_go") || started.elapsed() > Duration::from_secs(5)
    });
    wrapper.kill();
    let mut elsewhere = env.command("unshare");
    elsewhere
        .args(["--pid", "--fork", "--mount-proc"])
        .args(["onehold", "run", "x", "--", "true"]);
    let output = output(&mut elsewhere);
    assert_eq!(exit_code(output.status), 6, "{}", stderr(&output));
    env.end();
}

// Faults that must not fail a hold.

/// Puts files that do not belong to onehold into its own directories.
fn add_stray_files(env: &TestEnv) {
    env.done(["acquire", "x", "--ttl", "1h"]);
    for directory in ["store/.onehold", "store/.onehold/waiting"] {
        let directory = env.path(directory);
        fs::create_dir_all(directory.join("folder.lock/folder")).unwrap();
        fs::create_dir(directory.join("folder")).unwrap();
        for file in ["file", "file.lock", "folder/0", "folder.lock/folder/0"] {
            fs::write(directory.join(file), "stray\n").unwrap();
        }
        for fifo in ["fifo", "fifo.lock"] {
            let made = Command::new("mkfifo").arg(directory.join(fifo)).status();
            assert!(made.unwrap().success());
        }
        std::os::unix::fs::symlink("/nowhere", directory.join("link")).unwrap();
    }
}

#[test]
fn list_succeeds_with_stray_files_in_the_stores_own_directory() {
    let env = TestEnv::new();
    add_stray_files(&env);
    let output = env.output(["list"]);
    assert_eq!(exit_code(output.status), 0, "{}", stderr(&output));
    assert_eq!(env.json(["list"])["locks"][0]["name"], "x");
}

#[test]
fn cleanup_succeeds_with_stray_files_in_the_stores_own_directory() {
    let env = TestEnv::new();
    add_stray_files(&env);
    env.create_zombie("y");
    let output = env.output(["cleanup"]);
    assert_eq!(exit_code(output.status), 0, "{}", stderr(&output));
    assert_eq!(env.left_in_store(), ["x.lock"]);
}

#[test]
fn free_lock_is_taken_when_the_queue_directory_is_a_file() {
    let env = TestEnv::new();
    env.done(["run", "x", "--", "true"]);
    let waiting = env.path("store/.onehold/waiting");
    let _ = fs::remove_dir_all(&waiting);
    fs::write(&waiting, "stray\n").unwrap();
    for run in [&["run", "x"][..], &["run", "-w", "10", "x"]] {
        let output = env.output([run, &["--", "true"]].concat());
        assert_eq!(exit_code(output.status), 0, "{}", stderr(&output));
    }
}

#[test]
fn file_size_limit_is_an_error_that_names_it_and_leaves_no_lock() {
    let env = TestEnv::new();
    env.done(["run", "x", "--", "true"]);
    for (words, code) in [("acquire x --ttl 1h", 1), ("run x -- touch ran", 125)] {
        let script = format!("ulimit -f 0; exec onehold {words}");
        let output = output(&mut env.shell(&script));
        let stderr = stderr(&output);
        assert_eq!(exit_code(output.status), code, "{words}: {stderr}");
        let message = stderr.to_lowercase();
        assert!(
            message.contains("file size") || message.contains("file too large"),
            "{words}: {stderr}"
        );
        assert_eq!(env.left_in_store(), [""; 0], "{words}");
    }
    assert!(!env.path("ran").exists());
}

#[test]
fn journal_over_the_file_size_limit_does_not_fail_a_takeover() {
    let env = TestEnv::new();
    env.create_zombie("x");
    let journal = format!("{{\"padding\": \"{}\"}}\n", "x".repeat(200_000));
    fs::write(env.path("store/.onehold/events.jsonl"), journal).unwrap();
    // The limit is 64 KiB at most, whatever the unit of this shell is.
    let script = "ulimit -f 64; exec onehold acquire x --ttl 1h";
    let output = output(&mut env.shell(script));
    assert_eq!(exit_code(output.status), 0, "{}", stderr(&output));
    assert_eq!(env.lock("x")["state"], "held");
}

#[test]
#[ignore = "needs strace: apt install strace"]
fn rotation_of_the_journal_keeps_the_lines_of_8_takeovers() {
    for round in 0..3 {
        let env = TestEnv::new();
        let names: Vec<String> = (0..CONTENDERS).map(|number| format!("x{number}")).collect();
        for name in &names {
            env.create_zombie(name);
        }
        let journal = env.path("store/.onehold/events.jsonl");
        // The first of them finds it full.
        let padding = format!("{{\"padding\": \"{}\"}}\n", "x".repeat(1024 * 1024));
        fs::write(&journal, padding).unwrap();
        // Each is slow to rename the journal, so that all of them find it full.
        let takeovers = names.iter().map(|name| {
            let mut command = env.command("strace");
            command
                .args(["-f", "-qq", "-o", "/dev/null", "-P", "events.jsonl"])
                .args(["-e", "trace=rename,renameat,renameat2"])
                .args(["-e", "inject=rename,renameat,renameat2:delay_enter=500000"])
                .arg(crate::harness::program())
                .args(["acquire", name, "--ttl", "1h"]);
            command
        });
        let outputs = run_together(takeovers.collect());
        assert_eq!(sorted_codes(&outputs), [0; CONTENDERS], "round {round}");
        let mut logged = HashSet::new();
        for file in ["events.jsonl", "events.jsonl.1"] {
            let text = fs::read_to_string(journal.with_file_name(file)).unwrap_or_default();
            for line in text.lines() {
                let event: Value = serde_json::from_str(line).unwrap();
                logged.insert(event["name"].as_str().unwrap_or("padding").to_owned());
            }
        }
        assert_eq!(logged.len(), CONTENDERS + 1, "round {round}: {logged:?}");
    }
}

/// Locks the directory of a store, as any process can that may read it.
fn lock_store_directory(env: &TestEnv) -> fs::File {
    env.done(["run", "x", "--", "true"]);
    let directory = fs::File::open(env.store()).unwrap();
    flock(&directory, FlockOperation::LockExclusive).unwrap();
    directory
}

#[test]
fn wait_continues_while_the_store_directory_is_locked() {
    let env = TestEnv::new();
    let locked = lock_store_directory(&env);
    let started = Instant::now();
    let mut run = env.start(["run", "-w", "5m", "x", "--", "touch", "ran"]);
    wait_until("12 seconds have passed, or the run has ended", || {
        run.has_ended() || started.elapsed() > Duration::from_secs(12)
    });
    assert!(!run.has_ended(), "ended after {:?}", started.elapsed());
    drop(locked);
    assert_eq!(run.finish(), 0);
    assert!(env.path("ran").exists());
}

#[test]
fn run_without_wait_fails_when_the_store_directory_is_locked_for_10s() {
    let env = TestEnv::new();
    let _locked = lock_store_directory(&env);
    let started = Instant::now();
    let output = env.output(["acquire", "x", "--ttl", "1h"]);
    assert_eq!(exit_code(output.status), 1, "{}", stderr(&output));
    assert!(started.elapsed() >= Duration::from_secs(10));
    let pid = std::process::id().to_string();
    assert!(stderr(&output).contains(&pid), "{}", stderr(&output));
}

#[test]
fn break_moves_unrecognized_file_at_fixed_path_of_profile_aside() {
    let env = TestEnv::new();
    let lock = env.path(".sprint-running");
    fs::write(&lock, "not a lock\n").unwrap();
    make_older(&lock);
    let output = env.output(["--profile", "sprint", "break", "--yes"]);
    assert_eq!(exit_code(output.status), 0, "{}", stderr(&output));
    assert!(!lock.exists());
    let moved = fs::read_dir(env.path(""))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| fs::read(path).is_ok_and(|content| content == b"not a lock\n"))
        .expect("the file is still there, under another name");
    let name = moved.file_name().unwrap().to_str().unwrap();
    let text = stderr(&output) + &String::from_utf8_lossy(&output.stdout);
    assert!(text.contains(name), "{name} is not in {text}");
}

// Records.

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

#[test]
#[ignore = "needs jq and python3: apt install jq python3"]
fn record_is_readable_by_jq_and_python() {
    let env = TestEnv::new();
    let read = |when: &str| {
        let load = "import json; json.load(open('store/x.lock'))";
        for command in [
            env.command("jq").args([".", "store/x.lock"]),
            env.command("python3").args(["-c", load]),
        ] {
            let output = command.output().unwrap();
            assert!(output.status.success(), "{when}: {}", stderr(&output));
        }
    };
    let number = env.done(["acquire", "x", "--ttl", "1h"]);
    read("a lease");
    env.done(["renew", "x", "--hold", &number, "--ttl", "2h"]);
    read("a renewed lease");
    env.done(["release", "x", "--hold", &number]);
    let holder = Running::sleeper();
    env.done(["acquire", "x", "--pid", &holder.pid().to_string()]);
    read("a detached hold");
    env.done(["break", "x", "--yes"]);
    let _run = env.hold(&["x"]);
    read("a run");
    let check = env.output(["check", "--json", "x"]);
    assert_eq!(json_object(&check.stdout)["lock"]["kind"], "run");
}

#[test]
fn waiters_of_another_store_behind_a_symlink_are_left_alone() {
    let env = TestEnv::new();
    let _holder = env.hold(&["x"]);
    let mut waiter = env.start(["run", "-w", "forever", "x", "--", "true"]);
    wait_until("it waits", || env.number_of_waiters("x") == 1);
    waiter.kill();
    let tickets = || {
        let queue = fs::read_dir(env.path("store/.onehold/waiting/x.lock"));
        let tickets = queue.into_iter().flatten();
        let names = tickets.map(|ticket| ticket.unwrap().file_name());
        names.collect::<Vec<_>>()
    };
    let before = tickets();
    assert_eq!(before.len(), 1);
    let other = env.path("other");
    fs::create_dir(&other).unwrap();
    std::os::unix::fs::symlink(env.path("store/.onehold"), other.join(".onehold")).unwrap();
    let mut run = env.onehold(["run", "-n", "x", "--", "true"]);
    let refused = output(run.env("ONEHOLD_DIR", &other));
    assert_eq!(exit_code(refused.status), 125, "{}", stderr(&refused));
    assert_eq!(tickets(), before);
}

#[test]
fn run_of_another_store_whose_record_is_linked_here_goes_on_when_it_is_broken_here() {
    let env = TestEnv::new();
    let _run = env.hold(&["x"]);
    let record = || fs::read_to_string(env.path("store/x.lock")).unwrap_or_default();
    // Its wrapper writes it once the command has begun.
    wait_until("the start of the command is on record", || {
        record().contains(",\"start\":")
    });
    let before = record();
    let other = env.path("other");
    fs::create_dir(&other).unwrap();
    fs::hard_link(env.path("store/x.lock"), other.join("x.lock")).unwrap();
    let mut broken = env.onehold(["break", "x", "--yes"]);
    let broken = output(broken.env("ONEHOLD_DIR", &other));
    assert_eq!(record(), before, "{}", stderr(&broken));
    assert_eq!(env.check("x"), 6, "{}", stderr(&broken));
}

// Waiting in vain.

/// `onehold run OPTIONS -- env -i … onehold CALL`, and what `CALL` has said.
fn through_a_cleared_environment(env: &TestEnv, options: &str, call: &str) -> Output {
    let script = format!(
        "timeout -s KILL 30 onehold run {options} -- env -i PATH=\"$PATH\" TZ=UTC \\\n\
         onehold --dir \"$ONEHOLD_DIR\" {call}"
    );
    env.session(&script).output().unwrap()
}

#[test]
fn call_below_a_run_that_is_in_its_way_is_refused_at_once_whatever_its_environment_says() {
    let refused = [
        ("b", "run -w 1h b -- true"),
        ("b", "acquire -w 1h b --ttl 1h"),
        ("b", "run -w 1h b/task -- true"),
        ("b/task", "run -w 1h b -- true"),
        ("a b", "run -w 1h b c -- true"),
        ("b --slots 1", "run -w 1h b --slots 1 -- true"),
        ("b -s", "run -w 1h b -- true"),
        ("--exec b", "run -w 1h b -- true"),
        ("--close b", "run -w 1h b -- true"),
    ];
    for (options, call) in refused {
        let env = TestEnv::new();
        let output = through_a_cleared_environment(&env, options, call);
        let said = stderr(&output);
        assert_eq!(exit_code(output.status), 6, "{options}: {call}: {said}");
        assert!(
            said.contains("this command already runs under `b"),
            "{options}: {call}: {said}"
        );
        assert!(
            !said.contains("timed out") && !said.contains("break"),
            "{options}: {call}: {said}"
        );
    }
    // Without a wait it is refused anyway, and must not be told to wait.
    let env = TestEnv::new();
    let said = stderr(&through_a_cleared_environment(&env, "b", "run b -- true"));
    assert!(said.contains("use `onehold --dir "), "{said}");
    assert!(said.contains(" run --reentrant b -- …`"), "{said}");
    let output = through_a_cleared_environment(&env, "b", "run --reentrant b -- echo in");
    assert_eq!(
        (exit_code(output.status), &*output.stdout),
        (0, &b"in\n"[..])
    );
    // An orphan that the wrapper has adopted is below it, too.
    let orphan = "run b -- sh -c 'sh -c \"env -i PATH=$PATH onehold --dir $ONEHOLD_DIR run -w 1h b -- true; \\\n\
                  echo \\$? > part; mv part code\" & exec sh -c \"until test -e code; do sleep 0.01; done\"'";
    env.session(&format!("onehold {orphan}")).status().unwrap();
    assert_eq!(env.count_in("code"), 6);
}

#[test]
fn call_below_one_of_two_holders_waits_for_the_other() {
    let env = TestEnv::new();
    let holder = env.hold(&["b", "--slots", "2"]);
    let script = "onehold run b --slots 2 -- env -i PATH=\"$PATH\" onehold --dir \"$ONEHOLD_DIR\" \\\n\
                  run -w 1h b --slots 2 -- echo in";
    let mut waiter = Running::start_with_output(env.session(script));
    env.wait_for_waiter("b");
    env.end();
    let (code, out, said) = waiter.finish_with_output();
    assert_eq!((code, out.as_str()), (0, "in\n"), "{said}");
    drop(holder);
}

// The harness.

#[test]
fn child_of_a_test_has_all_signals_at_their_defaults() {
    // As under nohup(1), which the test process then hands on.
    // SAFETY: no test sends this signal to the test process.
    unsafe {
        libc::signal(libc::SIGHUP, libc::SIG_IGN);
    }
    let env = TestEnv::new();
    let output = output(env.command("cat").arg("/proc/self/status"));
    let text = String::from_utf8(output.stdout).unwrap();
    for field in ["SigBlk:\t", "SigIgn:\t"] {
        let signals = text.lines().find_map(|line| line.strip_prefix(field));
        let signals = u64::from_str_radix(signals.unwrap(), 16).unwrap();
        // 32 and 33 are reserved by libc, which refuses to change them.
        assert_eq!(signals & !(0b11 << 31), 0, "{text}");
    }
}
