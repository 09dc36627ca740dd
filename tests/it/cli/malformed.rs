//! Files that are not lock files, at the path where a profile has its only lock.

use std::fs;
use std::path::Path;

use assert_cmd::prelude::OutputAssertExt;
use predicates::prelude::*;
use predicates::str::{contains, is_empty};

#[cfg(unix)]
use super::env::make_older;
use crate::harness::{Running, TestEnv, json_object};
#[cfg(unix)]
use crate::harness::{exit_code, stderr};

#[cfg(unix)]
#[test]
fn break_moves_aside_only_unchanged_file_at_path_of_profile() {
    let env = TestEnv::new();
    let path = env.write(".sprint-running", "not a lock\n");
    let sprint = |words: &[&str]| {
        let mut command = env.onehold(["--profile", "sprint"]);
        command.args(words);
        command
    };
    let acquire = ["acquire", "--owner", "o", "-m", "m", "--pid", "1"];
    // Its program may still be writing it.
    sprint(&acquire)
        .assert()
        .code(6)
        .stderr(contains("may be held: its lock file is incomplete"));
    sprint(&["break", "--yes"])
        .assert()
        .code(1)
        .stderr(contains("changed less than 10 s ago"));
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(11);
    let make_older = || {
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(long_ago).unwrap();
    };
    make_older();
    let break_it = format!(
        "onehold --profile sprint --dir {} break",
        env.root.path().display()
    );
    sprint(&acquire)
        .assert()
        .code(5)
        .stderr(contains(
            "onehold: Lock file exists but has invalid format\n",
        ))
        .stderr(contains(format!(
            "  file left unchanged; to move it aside, add --yes or run `{break_it}`\n"
        )));
    let refused = sprint(&acquire).arg("--json").output().unwrap();
    let object = json_object(&refused.stdout);
    assert_eq!(
        (&object["status"], &object["error"]["code"]),
        (&"blocked".into(), &"MALFORMED".into())
    );
    sprint(&["check"]).assert().code(5).stdout(contains(
        "Lock file exists but has invalid format\n`./.sprint-running` is damaged: ",
    ));
    sprint(&["check", "--available"]).assert().code(6);
    // A path that was typed may be a mistake.
    env.onehold(["break", "--yes", "./.sprint-running"])
        .assert()
        .code(1)
        .stderr(contains("left unchanged; onehold only removes locks"));
    let mut unanswered = env.command("setsid");
    unanswered.arg(crate::harness::program());
    unanswered
        .args(["--profile", "sprint", "break"])
        .assert()
        .code(1)
        .stderr(contains("not confirmed: `./.sprint-running` is not a lock"));
    assert_eq!(fs::read_to_string(&path).unwrap(), "not a lock\n");
    sprint(&["break", "--yes"]).assert().success();
    assert!(!path.exists());
    let event = &env.journal()[0];
    assert_eq!(event["event"], "break");
    assert_eq!(
        event["reason"],
        "it was not a lock file, and was moved aside"
    );
    sprint(&acquire).assert().success();
    // A directory stays.
    sprint(&["break", "--yes"]).assert().success();
    fs::create_dir(&path).unwrap();
    sprint(&["break", "--yes"]).assert().code(1);
    assert!(path.is_dir());
}

#[test]
fn malformed_file_is_moved_aside_with_yes_and_never_removed() {
    let env = TestEnv::new();
    for (profile, file, more) in [
        (
            "sprint",
            ".sprint-running",
            &["--owner", "s", "-m", "e"][..],
        ),
        ("memory", "memory/.lock", &[]),
    ] {
        let path = env.write(file, "pid: [x\n");
        let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(11);
        let opened = fs::File::options().write(true).open(&path).unwrap();
        opened.set_modified(long_ago).unwrap();
        drop(opened);
        let run = [
            &["--profile", profile, "run", "--yes"],
            more,
            &["--", "true"],
        ]
        .concat();
        env.onehold(run)
            .assert()
            .success()
            .stderr(contains("which was not a lock, to "));
        assert!(!path.exists());
        let names = fs::read_dir(path.parent().unwrap()).unwrap();
        let aside = names
            .map(|entry| entry.unwrap().path())
            .find(|path| path.to_string_lossy().contains(".aside-"))
            .unwrap();
        assert_eq!(fs::read_to_string(aside).unwrap(), "pid: [x\n");
    }
}

/// A file at the path of a profile that is not a lock file, and was changed `ago` seconds ago.
fn leave_malformed(env: &TestEnv, file: &str, ago: i64) -> std::path::PathBuf {
    let path = env.write(file, "garbage\n");
    let changed = chrono::Utc::now() - chrono::TimeDelta::seconds(ago);
    let opened = fs::File::options().write(true).open(&path).unwrap();
    opened.set_modified(changed.into()).unwrap();
    path
}

#[test]
fn each_of_8_that_move_one_malformed_file_aside_gets_its_turn() {
    for _ in 0..3 {
        let env = TestEnv::new();
        leave_malformed(&env, "memory/.lock", 11);
        let script = [
            "--profile",
            "memory",
            "run",
            "--yes",
            "-w",
            "60",
            "--",
            "true",
        ];
        let mut all: Vec<Running> = (0..8).map(|_| env.start_with_output(script)).collect();
        for mut run in all.drain(..) {
            let (code, _, err) = run.finish_with_output();
            assert_eq!(code, 0, "{err}");
        }
        let files = fs::read_dir(env.path("memory")).unwrap();
        let aside = files
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.contains(".aside-"));
        assert_eq!(aside.count(), 1);
    }
}

#[test]
fn wait_lasts_until_a_young_file_is_damaged_or_its_limit() {
    let env = TestEnv::new();
    // Damaged in 2 s.
    leave_malformed(&env, "memory/.lock", 8);
    env.onehold([
        "--profile",
        "memory",
        "run",
        "--yes",
        "-w",
        "60",
        "--",
        "true",
    ])
    .assert()
    .success();
    leave_malformed(&env, "memory/.lock", 0);
    env.onehold([
        "--profile",
        "memory",
        "run",
        "--yes",
        "-w",
        "0.3",
        "--",
        "true",
    ])
    .assert()
    .code(7)
    .stderr(contains("timed out after "));
    env.onehold(["--profile", "memory", "run", "--yes", "-n", "--", "true"])
        .assert()
        .code(6)
        .stderr(contains("to wait for that, add --wait"));
    // The clock was put back since.
    leave_malformed(&env, "memory/.lock", -86_400);
    env.onehold(["--profile", "memory", "check"])
        .assert()
        .code(5);
    env.onehold(["--profile", "memory", "run", "--yes", "-n", "--", "true"])
        .assert()
        .success();
    leave_malformed(&env, "memory/.lock", 11);
    env.onehold([
        "--profile",
        "memory",
        "run",
        "--yes",
        "--on-zombie",
        "fail",
        "--",
        "true",
    ])
    .assert()
    .code(5);
    assert_eq!(
        fs::read_to_string(env.path("memory/.lock")).unwrap(),
        "garbage\n"
    );
}

/// Whether the garbage of [`leave_malformed`] is in a file beside the lock of the memory profile.
fn garbage_is_aside(env: &TestEnv) -> bool {
    let files = fs::read_dir(env.path("memory")).unwrap();
    files
        .map(|file| file.unwrap().path())
        .filter(|path| path.to_string_lossy().contains(".aside-"))
        .any(|path| fs::read_to_string(path).unwrap() == "garbage\n")
}

#[test]
fn profile_that_takes_zombies_moves_a_damaged_file_aside_unasked() {
    for verb in ["run", "acquire"] {
        let env = TestEnv::new();
        let own = std::process::id().to_string();
        let command: &[&str] = match verb {
            "run" => &["--", "true"],
            _ => &["--pid", &own],
        };
        let path = leave_malformed(&env, "memory/.lock", 11);
        env.onehold(["--profile", "memory", "check", "--available"])
            .assert()
            .success();
        let lock = env.json(["--profile", "memory", "check"])["lock"].take();
        assert_eq!(
            (&lock["state"], &lock["takeable"]),
            (&"zombie".into(), &true.into())
        );
        let before = fs::read_to_string(&path).unwrap();
        assert_eq!(before, "garbage\n", "check changes nothing");
        let words = [&["--profile", "memory", verb], command].concat();
        let shown = Path::new(".").join("memory/.lock");
        let moved = format!(
            "moved the file of `{}`, which was not a lock, to ",
            shown.display()
        );
        env.onehold(words)
            .assert()
            .success()
            .stderr(contains(moved).or(is_empty()));
        assert!(garbage_is_aside(&env), "{verb}");
    }
    // Its program may still be writing it.
    let env = TestEnv::new();
    let path = leave_malformed(&env, "memory/.lock", 0);
    env.onehold(["--profile", "memory", "run", "-n", "--", "true"])
        .assert()
        .code(6);
    assert_eq!(fs::read_to_string(&path).unwrap(), "garbage\n");
}

#[cfg(unix)]
#[test]
fn damaged_file_stays_if_the_profile_or_an_option_asks() {
    let env = TestEnv::new();
    for (profile, file, option, status) in [
        ("memory", "memory/.lock", "--on-zombie=ask", "blocked"),
        (
            "memory",
            "memory/.lock",
            "--on-zombie=fail",
            "zombie-detected",
        ),
        ("sprint", ".sprint-running", "-v", "blocked"),
        ("sprint", ".sprint-running", "--on-zombie=take", "blocked"),
        (
            "sprint",
            ".sprint-running",
            "--on-zombie=fail",
            "zombie-detected",
        ),
    ] {
        let path = leave_malformed(&env, file, 11);
        // Without a terminal to ask on.
        let script =
            format!("onehold --profile {profile} acquire --json {option} --owner o -m m --pid 1");
        let output = env.session(&script).output().unwrap();
        assert_eq!(output.status.code(), Some(5), "{profile} {option}");
        let object = json_object(&output.stdout);
        assert_eq!(
            (&object["status"], &object["error"]["code"]),
            (&status.into(), &"MALFORMED".into()),
            "{profile} {option}"
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "garbage\n");
    }
}

#[test]
fn empty_or_cut_off_sprint_file_has_an_invalid_format() {
    let env = TestEnv::new();
    let says = |words: &[&str], code: i32| {
        let mut command = env.onehold(["--profile", "sprint"]);
        let output = command.args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{words:?}");
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.contains("Lock file exists but has invalid format\n"),
            "{text}"
        );
    };
    let run = ["run", "--owner", "s", "-m", "e", "--", "true"];
    for content in ["", "pid: 77\nsession_", "garbage\n"] {
        let path = env.write(".sprint-running", content);
        says(&run, 6);
        says(&["check"], 6);
        let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(11);
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(long_ago).unwrap();
        drop(file);
        says(&run, 5);
        says(&["check"], 5);
    }
}

#[test]
fn advice_after_a_wait_for_a_damaged_file_is_to_wait_longer() {
    let env = TestEnv::new();
    leave_malformed(&env, "memory/.lock", 0);
    let run = |option: &[&str]| {
        let words = [&["--profile", "memory", "run"], option, &["--", "true"]].concat();
        let output = env.onehold(words).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    let damaged = "  it is damaged if it stays unchanged for 10 s; ";
    let text = run(&["-n"]);
    assert!(
        text.contains(&format!("{damaged}to wait for that, add --wait\n")),
        "{text}"
    );
    leave_malformed(&env, "memory/.lock", 0);
    let text = run(&["-w", "0.2"]);
    assert!(
        text.contains(&format!("{damaged}to wait longer, raise --wait\n")),
        "{text}"
    );
}

#[test]
fn file_in_the_place_of_a_session_is_refused_with_what_removes_it() {
    let env = TestEnv::new();
    let path = env.write(".prodigy/resume_locks/s.lock", "not json\n");
    let resumed = |verb: &str, more: &[&str], code: i32| {
        let words = [&["--profile", "prodigy", verb, "s"], more].concat();
        let output = env.onehold(words).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(
            text.contains("  left unchanged; onehold only removes locks: if no program needs it, ")
        );
        text
    };
    resumed("run", &["--", "true"], 125);
    resumed("break", &["--yes"], 1);
    let text = resumed("acquire", &["--pid", &std::process::id().to_string()], 1);
    assert!(!text.contains("another lock name"), "{text}");
    assert!(path.exists());
    #[cfg(unix)]
    {
        let (_, command) = text.rsplit_once("run `").unwrap();
        let (command, _) = command.split_once('`').unwrap();
        env.session(command).assert().success();
        env.onehold(["--profile", "prodigy", "run", "s", "--", "true"])
            .assert()
            .success();
    }
}

#[cfg(unix)]
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
