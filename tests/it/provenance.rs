//! Evidence is about a thing, not about a name of it: a record speaks only for the key and the store that it names,
//! and the number of a file means that file only while it is open.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::harness::{
    CONTENDERS, Running, Signal, TestEnv, exit_code, foreign, output, send, stderr, wait_until,
};

/// A run of a lock in the store of the test whose command notes TERM, and ends once the file `end` is there.
fn noting_run(env: &TestEnv, name: &str, options: &[&str]) -> Running {
    let script = "trap 'echo TERM >> told' TERM; echo $$ > began; \
                  while test -e began && ! test -e end; do sleep 0.005; done";
    let command = ["--", "sh", "-c", script];
    let run = env.start([&["run", "--on-lost", "warn"], options, &[name], &command].concat());
    wait_until("the command has begun", || env.lines("began") == 1);
    run
}

/// What `break -y` of a lock says, which is refused.
#[track_caller]
fn refused_break(env: &TestEnv, store: &Path, name: &str) -> String {
    let mut command = env.onehold(["break", "-y", name]);
    let refused = output(command.arg("--dir").arg(store));
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    String::from_utf8(refused.stderr).unwrap()
}

fn provenance(env: &TestEnv, store: &Path, name: &str) -> Value {
    let store = store.to_str().unwrap();
    env.json(["--dir", store, "check", name])["lock"]["provenance"].take()
}

#[test]
fn renamed_record_ends_nobody() {
    let env = TestEnv::new();
    let mut run = noting_run(&env, "job-a", &[]);
    assert_eq!(provenance(&env, &env.store(), "job-a"), "here");
    fs::rename(
        env.store().join("job-a.lock"),
        env.store().join("job-b.lock"),
    )
    .unwrap();

    let said = refused_break(&env, &env.store(), "job-b");
    let why = "they get no signal: its lock file was written for `job-a`, and renamed";
    assert!(said.contains(why), "{said}");
    assert_eq!(provenance(&env, &env.store(), "job-b"), "other-name");
    let verbose = output(&mut env.onehold(["check", "-v", "job-b"]));
    let verbose = String::from_utf8(verbose.stdout).unwrap();
    assert!(verbose.contains("written for `job-a`"), "{verbose}");
    assert!(!verbose.contains("`break` ends"), "{verbose}");
    let doctor = String::from_utf8(output(&mut env.onehold(["doctor", "--quick"])).stdout).unwrap();
    assert!(
        doctor.contains("see check -v, and remove them with break --force"),
        "{doctor}"
    );
    // It excludes others nevertheless.
    assert_eq!(env.check("job-b"), 6);
    env.end();
    run.finish();
    assert_eq!(env.lines("told"), 0);
}

#[test]
fn record_of_a_shared_hold_in_place_of_an_exclusive_one_ends_nobody() {
    let env = TestEnv::new();
    let mut run = noting_run(&env, "a", &["-s"]);
    let shared = env.store().join("a.d/.shared");
    let file = fs::read_dir(shared).unwrap().next().unwrap().unwrap();
    fs::rename(file.path(), env.store().join("a.lock")).unwrap();
    refused_break(&env, &env.store(), "a");
    assert_eq!(provenance(&env, &env.store(), "a"), "other-name");
    env.end();
    run.finish();
    assert_eq!(env.lines("told"), 0);
}

/// A copy of the store, made in this way.
fn copy(env: &TestEnv, arguments: &[&str]) -> PathBuf {
    let copy = env.path("copy");
    let mut cp = env.command("cp");
    let copied = output(cp.args(arguments).arg(env.store()).arg(&copy));
    assert!(copied.status.success(), "{copied:?}");
    copy
}

#[test]
fn break_in_a_copied_or_hard_linked_store_ends_nobody_in_the_original() {
    for arguments in [["-r"], ["-al"]] {
        let env = TestEnv::new();
        let mut run = noting_run(&env, "b", &[]);
        let copy = copy(&env, &arguments);
        let said = refused_break(&env, &copy, "b");
        let why = "they get no signal: its lock file was written in another store, and copied";
        assert!(said.contains(why), "{said}");
        assert_eq!(provenance(&env, &copy, "b"), "other-store");
        assert_eq!(env.check("b"), 6);
        env.end();
        assert_eq!(run.finish(), 0);
        assert_eq!(env.lines("told"), 0, "{arguments:?}");
    }
}

#[test]
fn record_that_was_moved_into_another_store_ends_nobody() {
    let env = TestEnv::new();
    let mut run = noting_run(&env, "b", &[]);
    let other = env.path("other");
    fs::create_dir(&other).unwrap();
    fs::rename(env.store().join("b.lock"), other.join("b.lock")).unwrap();
    refused_break(&env, &other, "b");
    env.end();
    run.finish();
    assert_eq!(env.lines("told"), 0);
}

#[test]
fn waiter_does_not_finish_in_a_copy_what_was_begun_in_the_original() {
    let env = TestEnv::new();
    let script = "trap 'echo TERM >> told' TERM; echo $$ > began; \
                  while test -e began && ! test -e end; do sleep 0.005; done";
    let mut run = env.start(["run", "--kill-after", "3s", "b", "--", "sh", "-c", script]);
    wait_until("the command has begun", || env.lines("began") == 1);
    let command = env.pid_in("began");
    let record = env.store().join("b.lock");
    // The wrapper has noted that it ends the work, and is killed before KILL is due.
    run.signal(Signal::TERM);
    wait_until("the work is being ended", || {
        fs::read_to_string(&record).is_ok_and(|text| text.contains("\"ending\""))
    });
    wait_until("the command was told", || env.lines("told") == 1);
    run.kill();
    let copy = copy(&env, &["-r"]);
    let copy = copy.to_str().unwrap();
    let waiter = env.code(["--dir", copy, "run", "-w", "5s", "b", "--", "true"]);
    assert_eq!(waiter, 7, "the hold in the copy counts");
    assert!(
        crate::harness::seen::runs(command),
        "the original was not ended"
    );
    assert_eq!(env.lines("told"), 1);
    // In its own store it is.
    assert_eq!(env.code(["run", "-w", "10s", "b", "--", "true"]), 0);
    assert!(!crate::harness::seen::runs(command));
}

#[test]
fn store_whose_number_has_changed_is_known_by_the_descriptors_of_the_wrapper() {
    let env = TestEnv::new();
    let mut run = env.hold(&["b"]);
    let record = env.store().join("b.lock");
    let text = fs::read_to_string(&record).unwrap();
    let inode = fs::metadata(env.store()).unwrap().ino().to_string();
    let at = text.find("\"store_inode\": ").unwrap() + "\"store_inode\": ".len();
    assert!(text[at..].starts_with(&inode), "{text}");
    let other = format!(
        "{}{}",
        if inode.starts_with('1') { 2 } else { 1 },
        &inode[1..]
    );
    let file = fs::OpenOptions::new().write(true).open(&record).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, other.as_bytes(), at as u64).unwrap();
    assert_eq!(provenance(&env, &env.store(), "b"), "here");
    assert_eq!(env.code(["break", "-y", "b"]), 0);
    assert_eq!(run.finish(), 8);
}

#[test]
fn lease_is_not_renewed_by_way_of_a_hard_link_in_another_store() {
    let env = TestEnv::new();
    env.done(["acquire", "l", "--ttl", "1h", "--owner", "o"]);
    let copy = copy(&env, &["-al"]);
    let before = fs::read(env.store().join("l.lock")).unwrap();
    let mut renew = env.onehold(["renew", "l", "--owner", "o"]);
    let refused = output(renew.arg("--dir").arg(&copy));
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(
        said.contains("its record was written in another store"),
        "{said}"
    );
    assert_eq!(fs::read(env.store().join("l.lock")).unwrap(), before);
    // A second name of its file alone takes nothing from the right one.
    assert_eq!(env.code(["renew", "l", "--owner", "o"]), 0);
}

/// The number of the removed file goes to one of the next, as on ext4: on a filesystem that does not use numbers
/// again nothing is shown.
#[test]
fn break_spares_a_run_whose_lock_file_got_the_number_of_the_one_that_was_being_broken() {
    let env = TestEnv::new();
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let store = disk.path().join("store");
    let dir = store.to_str().unwrap();
    let onehold = |words: &[&str]| env.onehold([&["--dir", dir], words].concat());
    // The journal is there, or it would get the number.
    for words in [&["acquire", "z", "--ttl", "1h"][..], &["break", "-y", "z"]] {
        assert!(output(&mut onehold(words)).status.success());
    }
    let script = "trap '' TERM; echo $$ > began; while test -e began; do sleep 0.005; done";
    let command = ["--", "sh", "-c", script];
    let run = [&["run", "-s", "a", "--kill-after", "5s"][..], &command].concat();
    let mut wrapper = Running::start(onehold(&run));
    wait_until("the command has begun", || env.lines("began") == 1);
    let command = env.pid_in("began");
    let shared = fs::read_dir(store.join("a.d/.shared")).unwrap();
    let number = shared.last().unwrap().unwrap().metadata().unwrap().ino();
    wrapper.kill();

    let mut breaker = Running::start(onehold(&["break", "-y", "a"]));
    // It has told the command, which ignores that, and is stopped while it waits.
    wait_until("the work is being ended", || {
        let entries = fs::read_dir(store.join("a.d/.shared"))
            .into_iter()
            .flatten();
        let texts =
            entries.map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap_or_default());
        texts.into_iter().any(|text| text.contains("\"told\""))
    });
    // Not under the guard.
    let guard = fs::File::open(&store).unwrap();
    guard.lock().unwrap();
    breaker.signal(Signal::STOP);
    guard.unlock().unwrap();
    send(command, Signal::KILL);
    assert_eq!(
        output(&mut onehold(&["run", "-w", "5", "a", "--", "true"]))
            .status
            .code(),
        Some(0)
    );
    let names: Vec<String> = (0..2 * CONTENDERS)
        .map(|number| format!("innocent-{number}"))
        .collect();
    let script = "touch $ONEHOLD_NAME; while ! test -e over; do sleep 0.005; done";
    let mut innocents: Vec<Running> = names
        .iter()
        .map(|name| Running::start(onehold(&["run", name, "--", "sh", "-c", script])))
        .collect();
    wait_until("the innocents have begun", || {
        names.iter().all(|name| env.path(name).exists())
    });
    let has_number = |name: &&String| {
        fs::metadata(store.join(format!("{name}.lock"))).is_ok_and(|file| file.ino() == number)
    };
    println!(
        "number {number} was used again by: {:?}",
        names.iter().find(has_number)
    );
    breaker.signal(Signal::CONT);
    breaker.finish();
    fs::write(env.path("over"), "").unwrap();
    let codes: Vec<i32> = innocents.iter_mut().map(Running::finish).collect();
    assert!(codes.iter().all(|code| *code == 0), "{codes:?}");
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
