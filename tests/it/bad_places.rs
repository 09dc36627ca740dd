//! What surrounds a lock is against it: trees that are too deep, journals and clocks of others, full disks, and
//! programs that clean up.

use std::ffi::CString;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};

use crate::harness::{Running, Signal, TestEnv, exit_code, output, stderr, wait_until};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, flock, mkdirat, open, openat};

/// More than the stack, the descriptors and a name are enough for.
const DEPTH: usize = 6_000;

/// Directories in each other, as another user of a store may make them.
struct DeepTree<'a> {
    top: &'a Path,
}

impl<'a> DeepTree<'a> {
    fn new(top: &'a Path, depth: usize) -> Self {
        let (flags, all) = (OFlags::RDONLY | OFlags::DIRECTORY, Mode::from(0o777));
        fs::create_dir_all(top).unwrap();
        let mut directory: OwnedFd = open(top, flags, Mode::empty()).unwrap();
        let name = CString::new(top.file_name().unwrap().as_encoded_bytes()).unwrap();
        for _ in 1..depth {
            mkdirat(&directory, &name, all).unwrap();
            directory = openat(&directory, &name, flags, Mode::empty()).unwrap();
        }
        Self { top }
    }
}

impl Drop for DeepTree<'_> {
    fn drop(&mut self) {
        // The standard library would open all of it at once.
        let _ = Command::new("rm").arg("-rf").arg(self.top).status();
    }
}

#[test]
fn tree_that_is_deeper_than_names_is_left_out() {
    let env = TestEnv::new();
    let lock = |name: &str| env.store().join(name);
    let waiting = lock(".onehold/waiting");
    let tops = [
        lock("a.d"),
        waiting.join("a.d"),
        waiting.join("a.lock"),
        waiting.join("b.d"),
    ];
    let _trees: Vec<DeepTree<'_>> = tops.iter().map(|top| DeepTree::new(top, DEPTH)).collect();
    // Neither the stack nor the number of descriptors is enough for it.
    let does = |words: &str| {
        output(&mut env.shell(&format!("ulimit -n $(ulimit -Hn); exec onehold {words}")))
    };
    for words in [
        "run a -- true",
        "run -w 1m a -- true",
        "run --shared a -- true",
        "acquire a --ttl 1m --owner me",
        "renew a --owner me",
        "release a --owner me",
        "break a -y",
        "list -v",
        "cleanup",
    ] {
        let ended = does(words);
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        let expected = if words.starts_with("break") { 3 } else { 0 };
        assert_eq!(exit_code(ended.status), expected, "{words}: {said}");
        let is_whole_store = words.starts_with("list") || words.starts_with("cleanup");
        let told = format!("directories below `{}` are deeper", tops[0].display());
        let count = said.matches(&told).count();
        assert_eq!(count, usize::from(is_whole_store), "{words}: {said}");
    }
    assert_eq!(exit_code(does("check a").status), 0);
    let listed = env.json(["list"]);
    assert_eq!(
        listed["errors"].as_array().map(Vec::len),
        Some(1),
        "{listed}"
    );
    let found = String::from_utf8(does("doctor --quick").stdout).unwrap();
    assert_eq!(found.matches("deeper than").count(), 1, "{found}");
}

#[test]
fn name_as_long_as_names_can_be_is_a_lock_with_shared_holds() {
    let env = TestEnv::new();
    // 512 segments; and 1,024 bytes.
    for name in [["a"; 512].join("/"), ["a"; 511].join("/") + "/bc"] {
        for mode in ["--slots=2", "--shared"] {
            let ended = env.output(["run", mode, &name, "--", "onehold", "list"]);
            let listed = String::from_utf8_lossy(&ended.stdout).into_owned();
            assert_eq!(exit_code(ended.status), 0, "{ended:?}");
            assert!(listed.contains(&name), "{mode}: {listed}");
        }
        env.done(["run", &name, "--", "true"]);
    }
    assert_eq!(env.code(["cleanup"]), 0);
    let left: Vec<_> = fs::read_dir(env.store()).unwrap().collect();
    assert_eq!(left.len(), 1, "only .onehold: {left:?}");
}

/// A configuration file that a caller with more rights is led to.
#[test]
fn configuration_that_is_not_toml_is_not_repeated() {
    let env = TestEnv::new();
    for secret in [
        "root:$6$s3cret$s3cret:20000:0:99999:7:::",
        "s3cret",
        "key = s3cret",
        "key = \"s3cret",
        "[s3cret",
        "a = 1\na = 2 # s3cret",
        "s3cret = 99999999999999999999",
    ] {
        let file = env.write("secret", format!("{secret}\n"));
        for words in [&["list"][..], &["list", "--json"]] {
            let ended = output(env.onehold(words).env("ONEHOLD_CONFIG", &file));
            let said = [ended.stdout, ended.stderr].concat();
            let said = String::from_utf8_lossy(&said).into_owned();
            assert_eq!(exit_code(ended.status), 1, "{said}");
            assert!(
                said.contains("not TOML") && said.contains("line "),
                "{said}"
            );
            assert!(!said.contains("s3cret"), "{secret}: {said}");
        }
    }
}

#[test]
fn device_without_an_end_is_no_configuration_and_no_time_zone() {
    let env = TestEnv::new();
    let fifo = env.path("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::from(0o600), 0).unwrap();
    env.done(["acquire", "x", "--ttl", "1h"]);
    let fifo = fifo.to_str().unwrap();
    for zone in ["/dev/zero", ":/dev/zero", "../../../dev/zero", fifo] {
        let mut check = env.onehold(["check", "-v", "x"]);
        assert_eq!(exit_code(output(check.env("TZ", zone)).status), 6, "{zone}");
    }
    // Not every path that begins like one of a descriptor is one.
    let detours = ["/proc/self/root", "/dev/fd/../../.."].map(|to_root| format!("{to_root}{fifo}"));
    for file in ["/dev/zero", fifo, &detours[0], &detours[1]] {
        let ended = output(env.onehold(["list"]).env("ONEHOLD_CONFIG", file));
        assert_eq!(exit_code(ended.status), 1, "{file}");
    }
    // A FIFO that the caller has open already.
    let script = "{ sleep 0.1; echo '[defaults]'; echo 'wait = 1'; } | \
        ONEHOLD_CONFIG=/dev/fd/0 onehold config";
    let ended = output(&mut env.shell(script));
    let said = String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned();
    assert!(
        ended.status.success() && said.contains("/dev/fd/0"),
        "{said}"
    );
    // A zone is still one.
    let ended = output(env.onehold(["list", "-v"]).env("TZ", "<X>-5"));
    let local = String::from_utf8(ended.stdout).unwrap();
    assert_ne!(local, env.done(["list", "-v"]), "{local}");
}

#[test]
fn data_for_a_closed_stdout_is_an_error() {
    let env = TestEnv::new();
    env.done(["acquire", "x", "--ttl", "1h"]);
    for words in [
        "list",
        "list --json",
        "list --prometheus",
        "history --json",
        "doctor --quick",
        "config",
        "cleanup --json",
        "release free --json",
        "check free --json",
        "--help",
        "list --help",
        "--version",
    ] {
        let ended = output(&mut env.shell(&format!("onehold {words} >&-")));
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(exit_code(ended.status), 1, "{words}: {said}");
        assert!(said.contains("stdout is closed"), "{words}: {said}");
    }
    for words in ["run y -- true", "check -q free", "release free"] {
        let ended = output(&mut env.shell(&format!("onehold {words} >&-")));
        assert_eq!(exit_code(ended.status), 0, "{words}");
    }
    let ended = output(&mut env.shell("onehold check x >&-"));
    assert_eq!(exit_code(ended.status), 6);
}

/// A break tells the wrapper by a signal with a number, which the kernel leaves out then.
#[test]
fn broken_run_says_so_although_no_signal_may_be_queued() {
    let env = TestEnv::new();
    for verb in ["run x -- sleep 60", "run --die-with $$ x -- sleep 60"] {
        let script = format!("prlimit --sigpending=0 onehold {verb}; echo exit $? >&2");
        let mut run = Running::start_with_output(env.shell(&script));
        wait_until("it runs", || env.lock("x")["pid_alive"] == true);
        env.done(["break", "-y", "x"]);
        let (_, said) = run.finish_with_stderr();
        assert!(said.contains("lock `x` was broken"), "{verb}: {said}");
        assert!(said.ends_with("exit 8\n"), "{verb}: {said}");
    }
    // Not a break: the signal of its own thread, and one of kill(1).
    let mut caller = Running::sleeper();
    let script = format!(
        "exec prlimit --sigpending=0 onehold run --die-with {} x -- sleep 60",
        caller.pid()
    );
    let mut run = Running::start_with_output(env.shell(&script));
    wait_until("it runs", || env.lock("x")["pid_alive"] == true);
    caller.kill();
    let (_, said) = run.finish_with_stderr();
    assert!(said.contains("has exited"), "{said}");
    let mut run = Running::start_with_output(
        env.shell("exec prlimit --sigpending=0 onehold run x -- sleep 60"),
    );
    wait_until("it runs", || env.lock("x")["pid_alive"] == true);
    run.signal(Signal::TERM);
    let (_, said) = run.finish_with_stderr();
    assert!(!said.contains("broken"), "{said}");
}

/// Anybody may have written a line of the journal of a shared store.
/// Leaves a run whose wrapper and then command were killed: until both have ended it is in the way.
fn leave_zombie(env: &TestEnv, options: &str, name: &str) {
    let script = format!("onehold run {options} {name} -- sh -c 'kill -KILL $PPID $$'");
    let _ = output(&mut env.shell(&script));
    wait_until("it is a zombie", || env.lock(name)["state"] == "zombie");
}

#[test]
#[ignore = "needs strace"]
fn paths_in_the_journal_are_not_followed() {
    let env = TestEnv::new();
    let with_history = |words: &[&str]| {
        let mut command = env.onehold(words);
        command.env("ONEHOLD_HISTORY", "1");
        assert_eq!(exit_code(output(&mut command).status), 0);
    };
    with_history(&["run", "x", "--", "true"]);
    // A takeover, of which `check -v` tells.
    leave_zombie(&env, "", "x");
    with_history(&["run", "x", "--", "true"]);
    let journal = env.store().join(".onehold/events.jsonl");
    let written = fs::read_to_string(&journal).unwrap();
    let store = env.store().to_str().unwrap().to_owned();
    let forged = written.replace(&store, "/elsewhere/locks");
    fs::write(&journal, format!("{written}{forged}")).unwrap();
    for words in [&["history"][..], &["history", "x"], &["check", "-v", "x"]] {
        let mut traced = env.command("strace");
        traced
            .args(["-f", "-e", "trace=file", "onehold"])
            .args(words);
        let calls = String::from_utf8(output(&mut traced).stderr).unwrap();
        assert!(calls.contains("events.jsonl"), "{calls}");
        assert!(!calls.contains("elsewhere"), "{words:?}: {calls}");
    }
}

/// As many as a record has room for, and as many as a command line may have of a name.
#[test]
fn all_names_of_a_hold_are_released() {
    let env = TestEnv::new();
    let names: Vec<String> = (0..2_500).map(|number| format!("n{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for verb in ["release", "break", "cleanup"] {
        let mut holder = Running::sleeper();
        let pid = holder.pid().to_string();
        let number = env.done([&["acquire", "--pid", &pid], &names[..]].concat());
        match verb {
            "release" => env.done(["release", "n7", "--hold", &number]),
            "break" => env.done(["break", "-y", "n7"]),
            _ => {
                holder.kill();
                env.done(["cleanup"])
            }
        };
        let left = fs::read_dir(env.store()).unwrap().count();
        assert_eq!(left, 1, "only .onehold is left by {verb}");
    }
}

/// A small filesystem of its own.
struct Mounted<'a>(&'a Path);

impl<'a> Mounted<'a> {
    fn new(directory: &'a Path, options: &str) -> Self {
        fs::create_dir(directory).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "none"]);
        assert!(mount.arg(directory).status().unwrap().success());
        Self(directory)
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

/// The journal grows with each takeover, and the locks need space, too.
#[test]
#[ignore = "needs root to mount a filesystem"]
fn journal_of_a_small_store_leaves_room_for_locks() {
    let env = TestEnv::new();
    let store = env.store();
    let _mounted = Mounted::new(&store, "size=64k,mode=700");
    let mut longest = 0;
    let long = "-m ".to_owned() + &"x".repeat(1_000);
    for _ in 0..60 {
        leave_zombie(&env, &long, "x");
        let ended = env.output(["run", "x", "--", "true"]);
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(exit_code(ended.status), 0, "{said}");
        assert!(!said.contains("warning"), "it is moved instead: {said}");
        let journal = fs::metadata(store.join(".onehold/events.jsonl")).unwrap();
        longest = longest.max(journal.len());
    }
    assert!(longest > 4_096, "{longest}");
    // Locks may have the rest. Then nothing is noted.
    let mut holds = 0;
    while env.code(["acquire", &format!("h{holds}"), "--ttl", "1h"]) == 0 {
        holds += 1;
    }
    // A takeover needs space for both records.
    env.done(["break", "-y", "h0"]);
    env.done(["break", "-y", "h1"]);
    leave_zombie(&env, "", "x");
    for _ in 0..3 {
        let ended = env.output(["run", "x", "--", "true"]);
        assert_eq!(exit_code(ended.status), 0, "{ended:?}");
    }
    assert!(holds >= 8, "{holds}");
}

#[test]
#[ignore = "needs root to mount a filesystem"]
fn journal_of_a_small_store_leaves_room_beside_a_hold_that_is_being_ended() {
    let env = TestEnv::new();
    let store = env.store();
    let _mounted = Mounted::new(&store, "size=64k,mode=700");
    let script = "trap '' TERM; echo $$ > began; while test -e began; do sleep 0.005; done";
    let mut run = env.start(["run", "a", "--kill-after", "1h", "--", "sh", "-c", script]);
    wait_until("the command has begun", || env.lines("began") == 1);
    run.signal(Signal::TERM);
    wait_until("the work is being ended", || {
        env.lock("a")["reason"] == "ending"
    });
    run.kill();
    let long = "-m ".to_owned() + &"x".repeat(1_000);
    for _ in 0..60 {
        leave_zombie(&env, &long, "b");
        assert_eq!(env.code(["run", "-w", "1ms", "a", "--", "true"]), 7);
        let ended = env.output(["run", "b", "--", "true"]);
        assert_eq!(exit_code(ended.status), 0, "{ended:?}");
    }
    // What is left of it ends, and it is taken over, with a line in the journal.
    fs::remove_file(env.path("began")).unwrap();
    assert_eq!(env.code(["run", "-w", "1m", "a", "--", "true"]), 0);
}

/// As systemd does it for /tmp each day.
fn clean_up(directory: &Path) {
    let rules = directory.with_extension("rules");
    let aged = "1ms";
    fs::write(
        &rules,
        format!("q {} 1777 root root {aged}\n", directory.display()),
    )
    .unwrap();
    let mut clean = Command::new("systemd-tmpfiles");
    let ended = output(clean.arg("--clean").arg(&rules));
    assert!(ended.status.success(), "{ended:?}");
}

#[test]
#[ignore = "needs systemd-tmpfiles: apt install systemd"]
fn old_files_of_a_store_are_left_when_its_directory_is_cleaned() {
    let env = TestEnv::new();
    let directory = env.path("tmp");
    let store = directory.join("locks");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("other"), "").unwrap();
    let onehold = |words: &[&str]| {
        let mut command = env.onehold(words);
        command.env("ONEHOLD_DIR", &store);
        command
    };
    let mut process = Running::sleeper();
    let pid = process.pid().to_string();
    let succeeds = |words: &[&str]| {
        let ended = output(&mut onehold(words));
        assert!(ended.status.success(), "{words:?}: {ended:?}");
        String::from_utf8(ended.stdout).unwrap().trim().to_owned()
    };
    succeeds(&["acquire", "job", "--pid", &pid]);
    let lease = succeeds(&["acquire", "a/lease", "--ttl", "1h"]);
    succeeds(&["acquire", "shared", "--shared", "--pid", &pid]);
    let mut run = Running::start(onehold(&["run", "run", "--", "sleep", "60"]));
    let waiter = ["run", "-w", "1m", "job", "--", "true"];
    let mut waiter = Running::start(onehold(&waiter));
    let file = |name: &str| store.join(name);
    let waiting = file(".onehold/waiting/job.lock");
    wait_until("both run", || {
        file("run.lock").exists() && fs::read_dir(&waiting).is_ok_and(|all| all.count() == 1)
    });
    wait_until("it is old", || {
        clean_up(&directory);
        !directory.join("other").exists()
    });
    for name in ["job.lock", "a.d/lease.lock", "run.lock", ".onehold/last"] {
        assert!(file(name).exists(), "{name}");
    }
    assert_eq!(fs::read_dir(file("shared.d/.shared")).unwrap().count(), 1);
    assert_eq!(fs::read_dir(&waiting).unwrap().count(), 1);
    run.signal(Signal::TERM);
    assert_eq!(run.finish(), 143, "it was not lost");
    succeeds(&["renew", "a/lease", "--hold", &lease]);
    process.kill();
    assert_eq!(waiter.finish(), 0);
}

#[test]
fn release_says_how_a_hold_was_lost() {
    let env = TestEnv::new();
    let mut process = Running::sleeper();
    let pid = process.pid().to_string();
    let acquire = || env.done(["acquire", "x", "--pid", &pid]);
    let release = |hold: &str| {
        let ended = env.output(["release", "x", "--hold", hold]);
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        (exit_code(ended.status), said)
    };
    let lost = |hold: &str| format!("onehold: warning: hold {hold} of `x` was lost: ");
    // The whole store.
    let hold = acquire();
    fs::remove_dir_all(env.store()).unwrap();
    let (code, said) = release(&hold);
    assert_eq!(code, 0);
    let gone = lost(&hold) + "its store does not exist any more, or is empty";
    assert!(said.contains(&gone), "{said}");
    let ended = env.output(["release", "x"]);
    let unnumbered = String::from_utf8(ended.stderr).unwrap();
    assert!(
        unnumbered.ends_with("does not exist: a hold in it is lost\n"),
        "{unnumbered}"
    );
    // And another one is made in its place, after the second that clocks may differ by.
    let taken_at = |hold: &str| DateTime::from_timestamp_micros(hold.parse().unwrap()).unwrap();
    wait_until("the store is younger", || {
        Utc::now() > taken_at(&hold) + TimeDelta::milliseconds(1_100)
    });
    env.done(["run", "y", "--", "true"]);
    for expected in [0, 4] {
        let (code, said) = release(&hold);
        let anew = lost(&hold) + "its store was removed, and made anew at ";
        assert_eq!(code, expected, "{said}");
        assert!(said.contains(&anew), "{said}");
        if expected == 0 {
            env.done(["acquire", "x", "--ttl", "1h"]);
        }
    }
    env.done(["break", "-y", "x"]);
    // The record alone: nothing tells that it was not released.
    let hold = acquire();
    fs::remove_file(env.store().join("x.lock")).unwrap();
    let (code, said) = release(&hold);
    assert_eq!(code, 0);
    let expected = "was not there: it was released before, or its record was removed\n";
    assert!(said.ends_with(expected), "{said}");
    // Broken, and taken over.
    let hold = acquire();
    env.done(["break", "-y", "x"]);
    let (_, said) = release(&hold);
    assert!(
        said.contains(&lost(&hold)) && said.contains(" broken, held by process"),
        "{said}"
    );
    let hold = acquire();
    process.kill();
    env.done(["run", "x", "--", "true"]);
    let (_, said) = release(&hold);
    assert!(
        said.contains(&lost(&hold)) && said.contains(" taken over, held by"),
        "{said}"
    );
    let quiet = env.output(["release", "x", "--hold", "7", "-q"]);
    assert_eq!(String::from_utf8(quiet.stderr).unwrap(), "");
}

#[test]
fn run_that_loses_its_lock_says_where_the_store_is() {
    let env = TestEnv::new();
    let mut run = env.start_with_output(["run", "x", "--", "sleep", "60"]);
    wait_until("it runs", || env.lock("x")["pid_alive"] == true);
    fs::rename(env.store(), env.path("elsewhere")).unwrap();
    let (_, said) = run.finish_with_stderr();
    assert!(
        said.contains("was lost: its store does not exist any more"),
        "{said}"
    );
}

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
