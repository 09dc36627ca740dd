//! Shared holds.

use assert_cmd::prelude::OutputAssertExt;
use predicates::prelude::*;
use predicates::str::contains;

#[cfg(unix)]
use super::hold;
use super::{code, lease, left};
use crate::harness::TestEnv;
#[cfg(unix)]
use crate::harness::{Running, Signal, wait_until};

#[cfg(unix)]
#[test]
fn directory_stays_of_a_name_that_is_shared_again_until_the_next_cleanup() {
    let env = TestEnv::new();
    assert_eq!(code(&env, "run -s once -- true"), Some(0));
    assert_eq!(env.left_in_store(), [""; 0]);
    assert_eq!(code(&env, "run -s again -- true"), Some(0));
    assert_eq!(code(&env, "run --slots 2 again -- true"), Some(0));
    assert_eq!(env.left_in_store(), ["again.d"]);
    assert_eq!(code(&env, "run again -- true"), Some(0));
    assert_eq!(left(&env), [""; 0]);
}

#[test]
fn readers_share_a_lock_and_exclude_writers() {
    let env = TestEnv::new();
    let one = lease(&env, "x -s --owner one").unwrap();
    let two = lease(&env, "x --shared --owner two").unwrap();
    assert!(two > one);
    env.onehold(["run", "x", "--", "true"])
        .assert()
        .code(6)
        .stderr(
            contains("onehold: `x` is shared by a lease of one on ")
                .and(contains("; 1 more holder\n"))
                .and(contains("; to remove their holds, run `onehold "))
                .and(contains(" break --all x`\n")),
        );
    assert_eq!(code(&env, "run -s x -- true"), Some(0));
    assert_eq!(code(&env, "check x"), Some(6));
    assert_eq!(code(&env, "check -s x"), Some(0));
    assert_eq!(code(&env, "release x --owner one"), Some(0));
    assert_eq!(code(&env, "run x -- true"), Some(6));
    assert_eq!(code(&env, "release x --owner two"), Some(0));
    assert_eq!(code(&env, "run x -- true"), Some(0));
    let writer = lease(&env, "x --owner writer").unwrap();
    assert!(writer > two);
    assert_eq!(code(&env, "run -s x -- true"), Some(6));
    assert_eq!(code(&env, "check -s x"), Some(6));
    assert_eq!(code(&env, "release x --owner writer"), Some(0));
    assert_eq!(left(&env), [""; 0]);
}

#[test]
fn shared_parent_excludes_exclusive_children_only() {
    let env = TestEnv::new();
    lease(&env, "backend -s").unwrap();
    env.onehold(["acquire", "backend/task-1", "--ttl", "1h"])
        .assert()
        .code(6)
        .stderr(contains(
            "`backend`, the parent of `backend/task-1`, is shared by ",
        ));
    lease(&env, "backend/task-1 -s --owner child").unwrap();
    assert_eq!(lease(&env, "backend/task-1/deep"), Err(Some(6)));
    assert_eq!(code(&env, "break backend --yes"), Some(0));
    // The other way round, and through a name in between.
    env.onehold(["acquire", "backend", "--ttl", "1h"])
        .assert()
        .code(6)
        .stderr(contains(
            "`backend/task-1`, a child of `backend`, is shared by ",
        ));
    lease(&env, "backend -s").unwrap();
}

#[cfg(unix)]
#[test]
fn waiting_writer_is_served_before_readers_that_come_later() {
    let env = TestEnv::new();
    let mut reader = hold(&env, "-s x");
    let mut writer = env.start(["run", "-w", "20", "x", "--", "sleep", "1000"]);
    env.wait_for_waiter("x");
    assert_eq!(code(&env, "run -s x -- true"), Some(6), "a new reader");
    env.onehold(["run", "-s", "x", "--", "true"])
        .assert()
        .code(6)
        .stderr(contains("`x` is reserved for process "));
    let mut late = env.start(["run", "-s", "-w", "20", "x", "--", "true"]);
    wait_until("both wait", || {
        env.lock("x")["waiters"].as_array().unwrap().len() == 2
    });
    reader.signal(Signal::TERM);
    assert_eq!(reader.finish(), 143);
    wait_until("the writer has it", || env.lock("x")["mode"] == "exclusive");
    // Before it supervises its command, a signal has its usual effect.
    writer.wait_until_recorded();
    writer.signal(Signal::TERM);
    assert_eq!(writer.finish(), 143);
    assert_eq!(late.finish(), 0);
}

#[test]
fn junk_beside_shared_holds_is_named_by_its_own_path() {
    let env = TestEnv::new();
    env.write("store/x.d/.shared/0.lock", "junk\n");
    let parts = ["x.d", ".shared", "0.lock"];
    let junk = parts.iter().fold(env.store(), |path, part| path.join(part));
    for options in [&["-s"][..], &[], &["-w", "9"]] {
        let words = [&["run"], options, &["x", "--", "true"]].concat();
        env.onehold(words)
            .assert()
            .code(125)
            .stderr(contains(format!("`{}` is not a lock: ", junk.display())));
    }
    env.onehold(["release", "x"])
        .assert()
        .code(1)
        .stderr(contains(format!("`{}` is not a lock: ", junk.display())));
}

#[cfg(unix)]
#[test]
fn reader_inside_a_shared_hold_passes_a_writer_that_waits() {
    let env = TestEnv::new();
    let script = "until test -e go; do sleep 0.01; done
        onehold run -s x -- echo inner; onehold run --reentrant -s x -- echo again
        onehold run --reentrant -w 20 x -- true; echo $?";
    let mut reader = env.start_with_output(["run", "-s", "x", "--", "sh", "-c", script]);
    wait_until("the reader has it", || env.check("x") == 6);
    let mut writer = env.start(["run", "-w", "20", "x", "--", "true"]);
    env.wait_for_waiter("x");
    env.write("go", "");
    let (code, out, _) = reader.finish_with_output();
    assert_eq!(code, 0);
    // What the reader holds itself can never become exclusive for it.
    assert_eq!(out, "inner\nagain\n6\n");
    assert_eq!(writer.finish(), 0);
}

#[cfg(unix)]
#[test]
fn script_releases_its_own_shared_holds_the_latest_one_first() {
    let env = TestEnv::new();
    lease(&env, "x -s --owner other").unwrap();
    let script = "one=$(onehold acquire -s x) two=$(onehold acquire -s x); onehold release x
        onehold check x --json >after; onehold release x; onehold release x; echo $? $one $two";
    let output = env.session(script).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(words[0], "4", "{text}");
    let after = std::fs::read_to_string(env.path("after")).unwrap();
    assert!(
        after.contains(words[1]) && !after.contains(words[2]),
        "{after}"
    );
    assert_eq!(env.lock("x")["owner"], "other");
}

/// Shares `x` by more leases than a process may have files open.
#[cfg(unix)]
const MORE_READERS_THAN_DESCRIPTORS: &str = "ulimit -n 64
    for i in $(seq 80); do onehold acquire -q -s x --ttl 1h --owner o$i >numbers || exit 99; done
    try() { \"$@\" >>said 2>&1; echo $?; }
    ";

#[cfg(unix)]
#[test]
fn more_readers_than_descriptors_are_read_waited_for_and_broken() {
    let env = TestEnv::new();
    let script = "
        try onehold check x; try onehold check -s x; try onehold list
        try onehold run -s x -- true; try onehold run x -- true; try onehold run x/y -- true
        try onehold run --slots 80 x -- true; try onehold run --slots 81 x -- true
        try onehold run -w 0.2 x -- true; try onehold run -w 0.2 --slots 5 x -- true
        try onehold renew x --owner o70 --ttl 2h; try onehold release x --owner o80
        try onehold break --yes --all x; try onehold run x -- true";
    let script = format!("{MORE_READERS_THAN_DESCRIPTORS}{script}");
    let output = env.session(&script).output().unwrap();
    let codes = String::from_utf8(output.stdout).unwrap();
    let said = std::fs::read_to_string(env.path("said")).unwrap_or_default();
    let codes: Vec<&str> = codes.lines().collect();
    let expected = [
        "6", "0", "0", "0", "6", "6", "6", "0", "7", "7", "0", "0", "0", "0",
    ];
    assert_eq!(codes, expected, "{:?} {said}", output.status);
    assert_eq!(left(&env), [""; 0]);
}

#[cfg(unix)]
#[test]
fn more_dead_readers_than_descriptors_are_replaced_and_removed() {
    let env = TestEnv::new();
    let script = "
        for i in $(seq 80); do onehold renew -q x --owner o$i --ttl 1ms || exit 98; done
        sleep 0.02
        try onehold check x; try onehold run -s x -- true; try onehold run --slots 1 x -- true
        try onehold cleanup --dry-run; try onehold run x -- true; try onehold check x";
    let script = format!("{MORE_READERS_THAN_DESCRIPTORS}{script}");
    let output = env.session(&script).output().unwrap();
    let codes = String::from_utf8(output.stdout).unwrap();
    let said = std::fs::read_to_string(env.path("said")).unwrap_or_default();
    let codes: Vec<&str> = codes.lines().collect();
    let expected = ["5", "0", "0", "0", "0", "0"];
    assert_eq!(codes, expected, "{:?} {said}", output.status);
    assert_eq!(left(&env), [""; 0]);
}

/// Not all of so many are read.
#[cfg(unix)]
#[test]
fn who_shares_a_lock_already_is_recognized_among_many_readers() {
    let env = TestEnv::new();
    let script = "
        all() { for i in $(seq 80); do onehold acquire -q -s x --ttl 1h --owner o$i || exit 99; done; }
        all >first; all >again; cmp first again";
    env.session(script).assert().success();
    let shared = env.store().join("x.d/.shared");
    let count = || shared.read_dir().unwrap().count();
    assert_eq!(count(), 80);
    // Also if the process was derived before, and is named now.
    let script = "
        for i in $(seq 220); do onehold acquire -q -s x --ttl 1h >numbers || exit 99; done
        onehold acquire -q -s x >first; onehold acquire -q -s --pid $$ x >again; cmp first again";
    env.session(script).assert().success();
    assert_eq!(count(), 301);
}

#[cfg(unix)]
#[test]
fn records_of_dead_readers_are_used_again_by_others_however_many_there_are() {
    let env = TestEnv::new();
    let script = "
        for i in $(seq 80); do onehold acquire -q -s x --ttl 1h --owner o$i || exit 99; done
        for i in $(seq 80); do onehold renew -q x --owner o$i --ttl 1ms || exit 98; done
        sleep 0.02
        for i in $(seq 20); do onehold acquire -q -s x --ttl 1h --owner p$i || exit 97; done";
    env.session(script).assert().success();
    assert_eq!(
        env.store().join("x.d/.shared").read_dir().unwrap().count(),
        80
    );
}

/// A writer sleeps on the kernel lock of a reader, whose file it opens again for that.
#[cfg(unix)]
#[test]
fn writer_behind_two_readers_takes_the_lock_when_both_have_ended() {
    let env = TestEnv::new();
    let readers = [hold(&env, "-s x"), hold(&env, "-s x")];
    let mut writer = env.start(["run", "-w", "1m", "x", "--", "true"]);
    env.wait_for_waiter("x");
    for mut reader in readers {
        reader.signal(Signal::TERM);
        assert_eq!(reader.finish(), 143);
    }
    assert_eq!(writer.finish(), 0);
}

#[cfg(unix)]
#[test]
fn exclusive_hold_for_a_process_that_shares_the_lock_itself_is_refused_at_once() {
    let env = TestEnv::new();
    let holder = Running::sleeper();
    let pid = holder.pid().to_string();
    let shared = ["acquire", "-s", "x", "--owner", "r", "--pid", &pid];
    env.onehold(shared).assert().success();
    for words in [&["x"][..], &["x/y"], &["--owner", "r", "x"]] {
        env.onehold(["acquire", "-w", "20", "--pid", &pid])
            .args(words)
            .assert()
            .code(6)
            .stderr(contains(
                "\n  that process holds it itself: release that hold first, with its --owner or --hold\n",
            ));
    }
    // Another process may outlive that one.
    let other = Running::sleeper();
    let other = other.pid().to_string();
    env.onehold(["acquire", "-w", "0.1", "--pid", &other, "x"])
        .assert()
        .code(7);
}

#[test]
fn cleanup_removes_the_dead_among_those_that_share_a_lock() {
    let env = TestEnv::new();
    lease(&env, "x --slots 3 --owner a").unwrap();
    let middle = lease(&env, "x --slots 3 --owner dies").unwrap();
    lease(&env, "x --slots 3 --owner b").unwrap();
    let middle = ["renew", "x", "--ttl", "1ms", "--hold", &middle.to_string()];
    env.onehold(middle).assert().success();
    std::thread::sleep(std::time::Duration::from_millis(20));
    let object = env.json(["cleanup"]);
    assert_eq!(object["locks"].as_array().unwrap().len(), 1);
    assert_eq!(object["locks"][0]["slot"], 1);
    assert_eq!(env.json(["list"])["locks"].as_array().unwrap().len(), 2);
}

#[test]
fn other_formats_have_one_holder_and_one_name() {
    let env = TestEnv::new();
    env.onehold(["--format", "prodigy", "run", "-s", "x", "--", "true"])
        .assert()
        .code(2)
        .stderr(contains(
            "prodigy format: its programs know one holder only",
        ));
    env.onehold(["--format", "pid", "run", "x", "y", "--", "true"])
        .assert()
        .code(2)
        .stderr(contains("pid format: one lock at a time"));
    env.onehold(["run", "-s", "./x.lock", "--", "true"])
        .assert()
        .code(2)
        .stderr(contains("only a lock with a NAME can be shared"));
    env.onehold([
        "--format", "flock", "run", "--slots", "2", "./x", "--", "true",
    ])
    .assert()
    .failure();
}

#[cfg(target_os = "linux")]
#[test]
fn shared_lock_of_flock_excludes_its_writers_and_not_its_readers() {
    let env = TestEnv::new();
    let mut reader = hold(&env, "--format flock -s ./f");
    let flock = |words: &str| {
        let mut command = env.command("flock");
        let status = command.args(words.split(' ')).status();
        status.unwrap().code()
    };
    assert_eq!(flock("-n -s f true"), Some(0));
    assert_eq!(flock("-n f true"), Some(1));
    assert_eq!(code(&env, "--format flock run -s ./f -- true"), Some(0));
    assert_eq!(code(&env, "--format flock run ./f -- true"), Some(6));
    let mut writer = env.start([
        "--format", "flock", "run", "-w", "20", "./f", "--", "sleep", "1000",
    ]);
    // It sleeps in flock(2).
    wait_until("the writer waits", || {
        std::fs::read_to_string("/proc/locks")
            .unwrap()
            .lines()
            .any(|line| line.contains("->") && line.contains(&format!(" {} ", writer.pid())))
    });
    reader.signal(Signal::TERM);
    assert_eq!(reader.finish(), 143);
    wait_until("the writer has it", || flock("-n -s f true") == Some(1));
    let mut late = env.start([
        "--format", "flock", "run", "-s", "-w", "20", "./f", "--", "true",
    ]);
    writer.signal(Signal::TERM);
    assert_eq!(writer.finish(), 143);
    assert_eq!(late.finish(), 0);
}
