//! Files that are not lock files, at the path where a profile has its only lock.

use std::fs;

use predicates::str::contains;

use crate::env::{Env, Running, only_object};

#[cfg(unix)]
#[test]
fn break_moves_aside_only_unchanged_file_at_path_of_profile() {
    let env = Env::new();
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
    let object = only_object(&refused.stdout);
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
    unanswered.arg(crate::env::program());
    let mut unanswered = assert_cmd::Command::from_std(unanswered);
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
    let env = Env::new();
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
fn leave_malformed(env: &Env, file: &str, ago: i64) -> std::path::PathBuf {
    let path = env.write(file, "garbage\n");
    let changed = chrono::Utc::now() - chrono::TimeDelta::seconds(ago);
    let opened = fs::File::options().write(true).open(&path).unwrap();
    opened.set_modified(changed.into()).unwrap();
    path
}

#[test]
fn each_of_8_that_move_one_malformed_file_aside_gets_its_turn() {
    for _ in 0..3 {
        let env = Env::new();
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
        let mut all: Vec<Running> = (0..8).map(|_| env.start(script)).collect();
        for run in all.drain(..) {
            let (code, _, err) = run.finish();
            assert_eq!(code, Some(0), "{err}");
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
    let env = Env::new();
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
