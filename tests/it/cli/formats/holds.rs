//! Holds in the formats of other programs, beside these programs.

use std::fs;
use std::time::Duration;

use assert_cmd::prelude::OutputAssertExt;
use chrono::{DateTime, TimeDelta, Utc};
use predicates::str::contains;
use serde_json::Value;

use super::{ALL, System, gone, this_host};
#[cfg(unix)]
use crate::harness::Signal;
use crate::harness::{Running, TestEnv, wait_until};

/// The state of a hold of onehold in a foreign format after its processes were killed.
#[cfg(unix)]
#[test]
fn hold_in_foreign_format_survives_killed_wrapper() {
    for system in [System::Prodigy, System::Sprint, System::Memory2] {
        let env = TestEnv::new();
        fs::create_dir_all(system.file(&env).parent().unwrap()).unwrap();
        let (global, name) = system.words();
        // The command closes the descriptor of the lock, and the wrapper is killed.
        let script = "exec 100>&- 101>&- 102>&-; echo $$ > ready; exec sleep 1000";
        let mut words = global.to_vec();
        words.extend([
            "run", name, "--owner", "o", "-m", "m", "--", "bash", "-c", script,
        ]);
        let mut wrapper = env.start(words);
        let command = crate::harness::number_in(&env.path("ready"));
        wrapper.kill();
        let lock = system.lock(&env);
        assert_eq!(lock["state"], "held", "{system:?}: {lock}");
        assert_eq!(lock["pid"], command);
        assert_eq!(lock["wrapper_alive"], false);
        assert_eq!(lock["owner"], "o");
        assert_eq!(lock["message"], "m");
        assert_eq!(system.take(&env), Some(6), "{system:?}");
        crate::harness::send(command, Signal::KILL);
        wait_until("the command has exited", || {
            system.lock(&env)["state"] == "zombie"
        });
        assert_eq!(system.take(&env), Some(0), "{system:?}");
    }
}

#[cfg(unix)]
#[test]
fn acquire_with_failing_stdout_leaves_nothing_in_any_format() {
    for system in ALL {
        let env = TestEnv::new();
        fs::create_dir_all(system.file(&env).parent().unwrap()).unwrap();
        let (global, name) = system.words();
        let script = format!(
            "onehold {} acquire {name} --owner o -m m >&-",
            global.join(" ")
        );
        env.session(&script).assert().code(1);
        assert!(!system.file(&env).exists(), "{system:?}");
    }
}

#[cfg(unix)]
#[test]
fn command_of_a_pid_file_that_ends_at_once_does_not_lose_its_lock() {
    let env = TestEnv::new();
    let script = "for i in $(seq 100); do onehold --format pid run ./p -- true || exit; done";
    env.shell(script).assert().success();
}

#[test]
fn detached_hold_in_foreign_format_ends_with_its_process() {
    for system in ALL {
        let env = TestEnv::new();
        fs::create_dir_all(system.file(&env).parent().unwrap()).unwrap();
        let mut job = Running::sleeper();
        let pid = job.pid().to_string();
        let options = ["--pid", &pid, "--owner", "o", "-m", "m"];
        let out = system.onehold(&env, "acquire", &options).output().unwrap();
        assert!(out.status.success(), "{system:?}: {out:?}");
        let text = fs::read_to_string(system.file(&env)).unwrap();
        assert!(text.contains(&pid), "{text}");
        let lock = system.lock(&env);
        assert_eq!(lock["pid"], job.pid());
        assert_eq!(lock["state"], "held", "{system:?}: {lock}");
        if system != System::PidFile {
            let number = String::from_utf8(out.stdout).unwrap();
            assert_eq!(lock["hold"].to_string(), number.trim());
            assert_eq!(lock["proof"], "same-process");
        }
        job.kill();
        assert_eq!(system.lock(&env)["state"], "zombie", "{system:?}");
        // Windows cannot exchange two files, without which a takeover may displace a new holder.
        let code = if cfg!(windows) { 125 } else { 0 };
        assert_eq!(system.take(&env), Some(code), "{system:?}");
    }
}

#[cfg(unix)]
#[test]
fn run_notices_takeover_by_other_program_and_leaves_its_file() {
    let env = TestEnv::new();
    fs::create_dir_all(env.path("memory")).unwrap();
    let mut run = env.start_with_output(["--profile", "memory", "run", "--", "sleep", "1000"]);
    let path = env.path("memory/.lock");
    wait_until("the lock is held", || path.exists());
    let theirs = System::Memory1.text(std::process::id(), &this_host(), Utc::now());
    fs::write(env.path("theirs"), &theirs).unwrap();
    // Not within the first 50 ms, in which onehold expects late changes by other programs.
    wait_until("the command runs", || {
        System::Memory1.lock(&env)["pid"] != run.pid()
    });
    run.wait_until_recorded();
    fs::rename(env.path("theirs"), &path).unwrap();
    let (code, _, said) = run.finish_with_output();
    assert_eq!(code, 8, "{said}");
    assert_eq!(fs::read_to_string(&path).unwrap(), theirs);
}

/// Takes a dead prodigy lock over while the other program, which found the holder dead as well, removes
/// the file by name. Returns how long after the takeover it did so, and whether the lock was held then.
#[cfg(unix)]
fn take_over_beside_late_removal(late: Duration) -> (TimeDelta, bool) {
    let env = TestEnv::new();
    let system = System::Prodigy;
    let dead = system.text(gone(), &this_host(), Utc::now());
    system.leave(&env, &dead, Utc::now());
    let path = system.file(&env);
    std::thread::scope(|scope| {
        let removal = scope.spawn(|| {
            let mut ours = String::new();
            wait_until("taken over", || {
                ours = fs::read_to_string(&path).unwrap_or_default();
                !ours.is_empty() && ours != dead
            });
            std::thread::sleep(late);
            if fs::remove_file(&path).is_err() {
                // It has been released in the meantime.
                return TimeDelta::MAX;
            }
            let ours: Value = serde_json::from_str(&ours).unwrap();
            let taken = DateTime::parse_from_rfc3339(ours["acquired_at"].as_str().unwrap());
            Utc::now() - taken.unwrap().to_utc()
        });
        let script = "test -e \"$ONEHOLD_FILE\" && echo held";
        let run = ["--", "sh", "-c", script];
        let out = system.onehold(&env, "run", &run).output().unwrap();
        (removal.join().unwrap(), out.stdout == b"held\n")
    })
}

#[cfg(unix)]
#[test]
fn takeover_of_prodigy_lock_survives_late_removal() {
    for late in [0, 5, 20] {
        // On a busy machine it can come later than that: a race that remains.
        let (_, held) = (0..100)
            .map(|_| take_over_beside_late_removal(Duration::from_millis(late)))
            .find(|(after, _)| *after < TimeDelta::milliseconds(50))
            .expect("a removal within 50 ms");
        assert!(held, "{late} ms late");
    }
}

#[cfg(unix)]
#[test]
fn file_rewritten_in_place_is_lost_and_left_unchanged() {
    for system in ALL {
        let env = TestEnv::new();
        let file = system.file(&env);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let (global, name) = system.words();
        let mut words = global.to_vec();
        words.extend([
            "run",
            name,
            "--owner",
            "o",
            "-m",
            "m",
            "--",
            "sh",
            "-c",
            "echo > begun; exec sleep 1000",
        ]);
        let mut run = env.start_with_output(words);
        wait_until("the command runs", || env.path("begun").exists());
        run.wait_until_recorded();
        let theirs = system.text(std::process::id(), &this_host(), Utc::now());
        fs::write(&file, &theirs).unwrap();
        let (code, _, said) = run.finish_with_output();
        assert_eq!(code, 8, "{system:?}: {said}");
        assert_eq!(fs::read_to_string(&file).unwrap(), theirs, "{system:?}");
    }
}

#[test]
fn pid_file_of_live_run_is_not_released() {
    let env = TestEnv::new();
    env.onehold([
        "run", "--format", "pid", "./y.pid", "--", "onehold", "release", "./y.pid",
    ])
    .assert()
    .code(4)
    .stderr(contains(
        "a running `onehold run` holds it until its command exits",
    ));
    let job = Running::sleeper();
    let pid = job.pid().to_string();
    env.onehold(["--format", "pid", "acquire", "./lock", "--pid", &pid])
        .assert()
        .success();
    let other = std::process::id().to_string();
    env.onehold(["--format", "pid", "acquire", "./lock", "--pid", &other])
        .assert()
        .code(6)
        .stderr(contains("`onehold --format pid break "));
}

#[test]
fn cleanup_removes_moved_file_of_dead_holder_only() {
    let env = TestEnv::new();
    env.write("store/.onehold.00000000000000aa", format!("{}\n", gone()));
    let living = format!("{}\n", std::process::id());
    env.write("store/.onehold.00000000000000bb", &living);
    env.onehold(["cleanup"]).assert().success();
    assert_eq!(env.left_in_store(), [".onehold.00000000000000bb"]);
}
