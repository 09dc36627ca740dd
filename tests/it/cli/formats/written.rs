//! What onehold writes into files of other programs, and into its own.

use std::fs;
use std::time::Duration;

use assert_cmd::prelude::OutputAssertExt;
use chrono::{DateTime, TimeDelta, Utc};
use predicates::str::contains;
use serde_json::{Value, json};

use super::{ALL, System, this_host};
#[cfg(unix)]
use crate::harness::Signal;
use crate::harness::{Running, TestEnv, wait_until};

#[cfg(unix)]
#[test]
fn written_foreign_record_matches_its_program() {
    let env = TestEnv::new();
    let host = this_host();
    for system in ALL {
        let file = system.file(&env);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let copy = env.path("copy");
        let script = format!("cp {} {}; echo $$", file.display(), copy.display());
        let out = system
            .onehold(
                &env,
                "run",
                &["--owner", "s-1", "-m", "why", "--", "sh", "-c", &script],
            )
            .output()
            .unwrap();
        let pid: u32 = String::from_utf8(out.stdout)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        let text = fs::read_to_string(&copy).unwrap();
        match system {
            System::Prodigy | System::Memory1 | System::Memory2 => {
                let read: Value = serde_json::from_str(&text).unwrap();
                let at = DateTime::parse_from_rfc3339(read["acquired_at"].as_str().unwrap());
                assert!((Utc::now() - at.unwrap().to_utc()).abs() < TimeDelta::minutes(1));
                assert_eq!(read["hostname"], host.as_str());
                if system == System::Prodigy {
                    assert_eq!(read["process_id"], pid);
                    assert_eq!(read["job_id"], "job-1");
                } else {
                    assert_eq!(read["pid"], pid);
                    assert_eq!(read["session_id"], "s-1");
                    assert_eq!(read["operation"], "why");
                    assert_eq!(read["token"].as_str().unwrap().len(), 16);
                    assert_eq!(read["acquired_at"], read["heartbeat_at"]);
                    assert_eq!(read["acquired_at"].as_str().unwrap().len(), 32);
                    assert!(read["acquired_at"].as_str().unwrap().ends_with("+00:00"));
                }
                assert!(text.starts_with("{\n  \"") && text.ends_with('}'));
            }
            System::Sprint => {
                let lines: Vec<_> = text.lines().collect();
                assert_eq!(lines[0], format!("pid:    {pid:<8}"));
                assert_eq!(lines[1], "session_id: \"s-1\"");
                assert!(lines[2].starts_with("started_at: \"20") && lines[2].ends_with("Z\""));
                assert_eq!(lines[2].len(), "started_at: \"2026-02-07T22:30:00Z\"".len());
                assert_eq!(lines[3], "epic_spec: \"why\"");
                assert_eq!(lines[4], "lock_version: 1");
                assert!(lines[5].starts_with("# onehold: ") && lines.len() == 6);
            }
            System::PidFile => assert_eq!(text, format!("{pid:<7}\n")),
        }
        assert!(!file.exists(), "{system:?}");
    }
}

/// The slot of a record, as onehold-formats(5) describes it, without its blanks.
#[track_caller]
fn documented_slot(text: &str, at: usize) -> Value {
    let slot = &text[at..at + 384];
    assert_eq!(text.as_bytes()[at + 384], b',', "{text}");
    let sum = slot
        .bytes()
        .skip(24)
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum: u64, byte| {
            (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    assert!(
        slot.starts_with(&format!("{{\"sum\":\"{sum:016x}\"")),
        "{slot}"
    );
    serde_json::from_str(slot).unwrap()
}

#[cfg(unix)]
#[test]
fn slot_of_record_is_where_the_manual_says() {
    let env = TestEnv::new();
    let script = "until test -e end; do sleep 0.01; done; cat \"$ONEHOLD_FILE\"";
    for format in ["native", "prodigy", "memory", "sprint"] {
        let mut run = env.start_with_output([
            "run", "--format", format, "--owner", "o", "-m", "m", "x", "--", "sh", "-c", script,
        ]);
        wait_until("the command runs", || {
            env.lock("x")["pid_alive"] == true && env.lock("x")["pid"] != run.pid()
        });
        run.wait_until_recorded();
        let lock = env.lock("x");
        env.write("end", "");
        let text = run.finish_with_output().1;
        fs::remove_file(env.path("end")).unwrap();
        let (head, shown) = match format {
            "native" => ("{\n  \"onehold\": 1,\n  \"live\": ", None),
            "sprint" => ("# onehold: {\"onehold\":1,\"live\":", Some("pid: ")),
            "prodigy" => (
                "\"onehold\": {\"onehold\":1,\"live\":",
                Some("\"process_id\": "),
            ),
            _ => ("\"onehold\": {\"onehold\":1,\"live\":", Some("\"pid\": ")),
        };
        let at = text.find(head).unwrap() + head.len();
        assert!(format != "native" || at == 28, "{text}");
        let slot = documented_slot(&text, at);
        assert_eq!(slot["pid"], lock["pid"], "{format}");
        assert!(slot["start"].is_u64(), "{format}");
        if let Some(key) = shown {
            let at = (text.find(key).unwrap() + key.len()).next_multiple_of(8);
            let pid = lock["pid"].to_string();
            assert_eq!(text[at..at + 8], format!("{pid:<8}"), "{format}: {text}");
        }
    }
    for options in [&["--ttl", "1h"][..], &["--pid", "1"]] {
        env.onehold(["acquire", "y"])
            .args(options)
            .assert()
            .success();
        let number = env.lock("y")["hold"].to_string();
        env.onehold(["renew", "y", "--hold", &number])
            .assert()
            .success();
        let text = fs::read_to_string(env.store().join("y.lock")).unwrap();
        assert!(documented_slot(&text, 28)["renewed_at"].is_string());
        env.onehold(["release", "y", "--hold", &number])
            .assert()
            .success();
    }
}

#[cfg(unix)]
#[test]
fn queue_tickets_are_as_the_manual_says() {
    let env = TestEnv::new();
    let acquired = env.onehold(["acquire", "a/b", "--ttl", "1h"]).output();
    let hold = String::from_utf8(acquired.unwrap().stdout).unwrap();
    let wait = ["run", "-w", "1h", "--owner", "me", "a/b", "--", "true"];
    let mut waiter = env.start(wait);
    let queue = env.store().join(".onehold/waiting/a.d/b.lock");
    let mut ticket = None;
    wait_until("it waits", || {
        let found = fs::read_dir(&queue).into_iter().flatten().flatten().next();
        ticket = found.map(|entry| entry.path());
        ticket.is_some() && env.lock("a/b")["waiters"][0].is_object()
    });
    let path = ticket.unwrap();
    let number: u64 = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
    assert!(number > hold.trim().parse().unwrap(), "one order of both");
    let last = fs::read(env.store().join(".onehold/last")).unwrap();
    assert_eq!(u64::from_le_bytes(last.try_into().unwrap()), number);
    let ticket: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(ticket["onehold"], 1);
    assert_eq!(ticket["pid"], waiter.pid());
    assert_eq!(ticket["hostname"], this_host().as_str());
    assert_eq!(ticket["command"], json!(["true"]));
    assert!(DateTime::parse_from_rfc3339(ticket["since"].as_str().unwrap()).is_ok());
    assert_eq!(ticket["request"]["wants"][0]["name"], "a/b");
    assert_eq!(ticket["request"]["owner"], "me");
    // The lock is reserved once another process finds it free.
    waiter.signal(Signal::STOP);
    env.onehold(["release", "a/b", "--hold", hold.trim()])
        .assert()
        .success();
    env.onehold(["run", "a/b", "--", "true"]).assert().code(6);
    let reserved = fs::read(env.store().join(".onehold/waiting/reserved")).unwrap();
    let reserved: Value = serde_json::from_slice(&reserved).unwrap();
    let keys: Vec<&String> = reserved.as_object().unwrap().keys().collect();
    assert_eq!(keys, [&number.to_string()]);
    assert!(reserved[number.to_string()].is_u64());
    waiter.signal(Signal::CONT);
    assert_eq!(waiter.finish(), 0);
    assert!(!env.store().join(".onehold/waiting").exists());
}

#[test]
fn renew_of_memory_lock_updates_both_times() {
    let env = TestEnv::new();
    let system = System::Memory2;
    fs::create_dir_all(env.path("memory")).unwrap();
    let job = Running::sleeper();
    let pid = job.pid().to_string();
    let acquire = ["--pid", &pid, "--owner", "o"];
    let acquired = system.onehold(&env, "acquire", &acquire).output().unwrap();
    let hold = String::from_utf8(acquired.stdout).unwrap();
    let read = || -> Value {
        serde_json::from_str(&fs::read_to_string(system.file(&env)).unwrap()).unwrap()
    };
    let (before, lock) = (read(), system.lock(&env));
    assert_eq!(lock["ttl_seconds"], 30.0);
    system
        .onehold(&env, "renew", &["--hold", hold.trim()])
        .assert()
        .success();
    let after = read();
    assert!(after["heartbeat_at"].as_str() > before["heartbeat_at"].as_str());
    assert_eq!(after["acquired_at"], after["heartbeat_at"]);
    assert_eq!(system.lock(&env)["acquired_at"], lock["acquired_at"]);
    assert_ne!(system.lock(&env)["renewed_at"], lock["renewed_at"]);
    system
        .onehold(&env, "acquire", &["--pid", &pid, "--ttl", "5m", "-f", "-y"])
        .assert()
        .code(2)
        .stderr(contains("memory format: --ttl is limited to 30s"));
}

#[cfg(unix)]
#[test]
#[ignore = "takes half a minute"]
fn run_keeps_times_of_memory_lock_younger_than_10s() {
    let env = TestEnv::new();
    fs::create_dir_all(env.path("memory")).unwrap();
    let mut run = env.start(["--profile", "memory", "run", "--", "sleep", "26"]);
    let path = env.path("memory/.lock");
    wait_until("the lock is held", || path.exists());
    let inode = || std::os::unix::fs::MetadataExt::ino(&fs::metadata(&path).unwrap());
    let first = inode();
    while !run.has_ended() {
        let Ok(text) = fs::read_to_string(&path) else {
            break;
        };
        let read: Value = serde_json::from_str(&text).expect("whole at every moment");
        for key in ["acquired_at", "heartbeat_at"] {
            let at = DateTime::parse_from_rfc3339(read[key].as_str().unwrap()).unwrap();
            let age = Utc::now() - at.to_utc();
            assert!(age < TimeDelta::seconds(10), "{key}: {age}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_ne!(first, 0);
    assert_eq!(run.finish(), 0);
}

#[test]
fn prodigy_format_rejects_invalid_job_ids() {
    let env = TestEnv::new();
    for name in ["a/b", "a:b", ".hidden"] {
        env.onehold(["--profile", "prodigy", "run", name, "--", "true"])
            .assert()
            .code(2)
            .stderr(contains("prodigy format: not a valid job ID"));
    }
    let own = std::process::id().to_string();
    let unfit = env.json([
        "--format", "prodigy", "acquire", "x", "--ttl", "1h", "--pid", &own,
    ]);
    assert_eq!(unfit["success"], json!(true), "{unfit}");
}

#[test]
fn options_without_room_in_format_are_rejected() {
    let env = TestEnv::new();
    let job = Running::sleeper();
    let pid = job.pid().to_string();
    let refused = |words: &[&str], why: &str| {
        env.onehold(words).assert().code(2).stderr(contains(why));
    };
    refused(
        &["--format", "pid", "run", "--close", "x", "--", "true"],
        "pid format: --close is not supported",
    );
    refused(
        &[
            "--format", "pid", "acquire", "x", "--ttl", "5s", "--pid", &pid,
        ],
        "pid format: --ttl is not supported",
    );
    refused(
        &["--format", "memory", "run", "--exec", "x", "--", "true"],
        "memory format: --exec is not possible, nothing would renew the lock",
    );
    let number = env
        .onehold(["--format", "memory", "acquire", "x", "--pid", &pid])
        .output()
        .unwrap()
        .stdout;
    let number = String::from_utf8(number).unwrap();
    refused(
        &["renew", "x", "--hold", number.trim(), "--ttl", "1h"],
        "memory format: --ttl is limited to 30s",
    );
}

/// Kills the wrapper of a run and compares the pid in its lock file with that of the command.
#[cfg(unix)]
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

#[cfg(unix)]
#[test]
fn pid_file_of_killed_wrapper_has_pid_of_command() {
    assert_pid_in_file_is_that_of_command(&["--format", "pid", "./x.pid"], "x.pid", |text| {
        text.trim().parse().ok()
    });
}

#[cfg(unix)]
#[test]
fn prodigy_record_of_killed_wrapper_has_pid_of_command() {
    let args = ["--format", "prodigy", "x"];
    assert_pid_in_file_is_that_of_command(&args, "store/x.lock", |text| {
        serde_json::from_str::<Value>(text).unwrap()["process_id"].as_u64()
    });
}

#[cfg(unix)]
#[test]
fn memory_record_of_killed_wrapper_has_pid_of_command() {
    let args = ["--format", "memory", "--owner", "s", "x"];
    assert_pid_in_file_is_that_of_command(&args, "store/x.lock", |text| {
        serde_json::from_str::<Value>(text).unwrap()["pid"].as_u64()
    });
}

#[cfg(unix)]
#[test]
fn sprint_record_of_killed_wrapper_has_pid_of_command() {
    let args = ["--format", "sprint", "--owner", "s", "-m", "e", "x"];
    assert_pid_in_file_is_that_of_command(&args, "store/x.lock", |text| {
        let pid = text.lines().find_map(|line| line.strip_prefix("pid: "))?;
        pid.trim().parse().ok()
    });
}

#[cfg(unix)]
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
