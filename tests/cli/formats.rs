//! The files of the systems that onehold replaces: judged, taken over, written.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::{Value, json};

use crate::env::{Env, Running, eventually, sleeper};

/// One of the systems: how its file is written, where, and how onehold is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
    Prodigy,
    Sprint,
    Memory1,
    Memory2,
    PidFile,
}

const ALL: [System; 5] = [
    System::Prodigy,
    System::Sprint,
    System::Memory1,
    System::Memory2,
    System::PidFile,
];

impl System {
    /// Global options, and the lock.
    fn words(self) -> (&'static [&'static str], &'static str) {
        match self {
            Self::Prodigy => (&["--profile", "prodigy"], "job-1"),
            Self::Sprint => (&["--profile", "sprint"], "./.sprint-running"),
            Self::Memory1 | Self::Memory2 => (&["--profile", "memory"], "./memory/.lock"),
            Self::PidFile => (&["--format", "pid"], "./daemon.pid"),
        }
    }

    fn file(self, env: &Env) -> PathBuf {
        env.path(match self {
            Self::Prodigy => ".prodigy/resume_locks/job-1.lock",
            Self::Sprint => ".sprint-running",
            Self::Memory1 | Self::Memory2 => "memory/.lock",
            Self::PidFile => "daemon.pid",
        })
    }

    /// A file as its own program writes it.
    fn text(self, pid: u32, host: &str, at: DateTime<Utc>) -> String {
        let python = at.format("%Y-%m-%dT%H:%M:%S%.6f+00:00");
        match self {
            Self::Prodigy => format!(
                "{{\n  \"job_id\": \"job-1\",\n  \"process_id\": {pid},\n  \"hostname\": \"{host}\",\n  \"acquired_at\": \"{}\"\n}}",
                at.to_rfc3339_opts(SecondsFormat::Nanos, true)
            ),
            Self::Sprint => format!(
                "pid: {pid}\nsession_id: \"sprint-1\"\nstarted_at: \"{}\"\nepic_spec: \"epic5\"\nlock_version: 1\n",
                at.to_rfc3339_opts(SecondsFormat::Secs, true)
            ),
            Self::Memory1 => format!(
                "{{\n  \"pid\": {pid},\n  \"session_id\": \"main\",\n  \"acquired_at\": \"{python}\",\n  \"hostname\": \"{host}\",\n  \"operation\": \"write:tasks.json\"\n}}"
            ),
            Self::Memory2 => format!(
                "{{\n  \"pid\": {pid},\n  \"session_id\": \"main\",\n  \"token\": \"0123456789abcdef\",\n  \"acquired_at\": \"{python}\",\n  \"heartbeat_at\": \"{python}\",\n  \"hostname\": \"{host}\",\n  \"operation\": \"write:tasks.json\"\n}}"
            ),
            Self::PidFile => format!("{pid}\n"),
        }
    }

    /// The file with the time that such a one would have.
    fn leave(self, env: &Env, text: &str, modified: DateTime<Utc>) {
        let path = self.file(env);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::from(modified)).unwrap();
    }

    fn onehold(self, env: &Env, verb: &str, more: &[&str]) -> assert_cmd::Command {
        let (global, lock) = self.words();
        let mut command = env.onehold(global);
        command.arg(verb);
        if !matches!(verb, "list" | "cleanup") {
            command.arg(lock);
        }
        command.args(more);
        command
    }

    fn lock(self, env: &Env) -> Value {
        let output = self.onehold(env, "check", &["--json"]).output().unwrap();
        crate::env::only_object(&output.stdout)["lock"].take()
    }

    /// Takes the lock for a moment; the exit code.
    fn take(self, env: &Env) -> Option<i32> {
        let mut options = vec!["-n", "--owner", "me", "-m", "why", "--on-zombie", "take"];
        options.extend(["--", "true"]);
        let output = self.onehold(env, "run", &options).output().unwrap();
        output.status.code()
    }
}

fn this_host() -> String {
    hostname::get().unwrap().into_string().unwrap()
}

/// A pid that no process has.
fn gone() -> u32 {
    let mut process = Running::start(sleeper());
    process.kill();
    process.pid()
}

#[test]
fn each_state_of_each_systems_file_is_judged_taken_and_cleaned_up_as_it_should() {
    let (host, living, gone) = (this_host(), Running::start(sleeper()), gone());
    let now = Utc::now();
    let day = now - TimeDelta::hours(25);
    let hour = now - TimeDelta::hours(1);
    let seconds = now - TimeDelta::seconds(11);
    for system in ALL {
        let live = system.text(living.pid(), &host, now);
        let half = &live[..live.len() / 2];
        // Since when init has run is known: before the record or after it.
        let init_is_older = |at: DateTime<Utc>| {
            let uptime = fs::read_to_string("/proc/uptime").unwrap();
            let uptime: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
            (now - at).as_seconds_f64() < uptime
        };
        let short_lived = matches!(system, System::Memory1 | System::Memory2);
        let has_host = !matches!(system, System::Sprint | System::PidFile);
        let torn = system != System::PidFile;
        // What stands there, its time, and what it is.
        #[rustfmt::skip]
        let mut rows = vec![
            ("live", live.clone(), now, ("held", "alive")),
            ("dead", system.text(gone, &host, now), now, ("zombie", "dead")),
            ("empty", String::new(), now, ("held", "in-the-making")),
            ("empty, 11 s old", String::new(), seconds, ("zombie", "corrupt")),
            ("garbage", "{{ nobody knows".to_owned(), now, ("not-a-lock", "not-a-lock")),
            ("another's data", "[[package]]\n".to_owned(), day, ("not-a-lock", "not-a-lock")),
            // It was started after the record was written, so that it may be another one.
            ("25 h old", system.text(living.pid(), &host, day), day, ("zombie", "aged")),
            ("25 h old, dead", system.text(gone, &host, day), day, ("zombie", "dead")),
        ];
        if init_is_older(hour) {
            let state = if short_lived { "overdue" } else { "held" };
            rows.push((
                "an hour old",
                system.text(1, &host, hour),
                hour,
                (state, "alive"),
            ));
        }
        if torn {
            rows.push(("half", half.to_owned(), now, ("held", "in-the-making")));
            rows.push((
                "half, 11 s old",
                half.to_owned(),
                seconds,
                ("zombie", "corrupt"),
            ));
        }
        if has_host {
            let elsewhere = |pid, at| system.text(pid, "elsewhere", at);
            rows.push((
                "other host",
                elsewhere(living.pid(), now),
                now,
                ("held", "unproven"),
            ));
            rows.push((
                "other host, dead pid",
                elsewhere(gone, now),
                now,
                ("held", "unproven"),
            ));
            rows.push((
                "other host, 25 h old",
                elsewhere(gone, day),
                day,
                ("zombie", "aged"),
            ));
        }
        for (what, text, modified, (state, reason)) in rows {
            let what = format!("{system:?}: {what}");
            let env = Env::new();
            let leave = || system.leave(&env, &text, modified);
            leave();
            let lock = system.lock(&env);
            assert_eq!(lock["state"], state, "{what}: {lock}");
            assert_eq!(lock["reason"], reason, "{what}: {lock}");
            let (check, take, removed) = match state {
                "held" => (6, 6, false),
                "overdue" => (5, 6, false),
                "zombie" => (5, 0, true),
                _ => (1, 125, false),
            };
            let checked = system.onehold(&env, "check", &["-q"]).output().unwrap();
            assert_eq!(checked.status.code(), Some(check), "{what}");
            assert_eq!(system.take(&env), Some(take), "{what}");
            assert_eq!(system.file(&env).exists(), take != 0, "{what}");
            leave();
            if system == System::PidFile {
                // It has no profile whose path a cleanup would look at.
                continue;
            }
            let cleaned = system.onehold(&env, "cleanup", &[]).output().unwrap();
            assert_eq!(cleaned.status.code(), Some(0), "{what}");
            assert_eq!(system.file(&env).exists(), !removed, "{what}");
            if !removed {
                assert_eq!(fs::read_to_string(system.file(&env)).unwrap(), text);
            }
        }
    }
}

#[test]
fn a_foreign_record_is_read_under_any_verb_without_a_word_about_its_format() {
    let env = Env::new();
    let living = Running::start(sleeper());
    for (system, name) in [
        (System::Prodigy, "a"),
        (System::Sprint, "b"),
        (System::Memory2, "c"),
        (System::PidFile, "d.pid"),
    ] {
        let text = system.text(living.pid(), &this_host(), Utc::now());
        env.write(&format!("store/{name}.lock"), text);
    }
    env.onehold(["list"]).assert().success().stdout(
        contains(format!("process {}", living.pid()))
            .count(4)
            .and(contains(" held ").count(4)),
    );
    let lock = env.lock("a");
    assert_eq!(lock["format"], "prodigy");
    assert_eq!(
        lock["hold"],
        Value::Null,
        "its program does not number them"
    );
    env.onehold(["run", "c", "--", "true"])
        .assert()
        .code(6)
        .stderr(contains(": \"write:tasks.json\""));
    env.onehold(["break", "a", "--yes"]).assert().success();
    env.onehold(["break", "b", "--hold", "0", "--yes"])
        .assert()
        .code(4);
    assert_eq!(env.check("a"), 0);
    assert_eq!(env.check("b"), 6);
}

#[test]
fn while_onehold_holds_the_file_reads_as_its_program_would_have_written_it() {
    let env = Env::new();
    let host = this_host();
    for system in ALL {
        let file = system.file(&env);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let copy = env.path("copy");
        let script = format!("cp {} {}; echo $PPID", file.display(), copy.display());
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
                assert_eq!(lines[0], format!("pid: {pid}"));
                assert_eq!(lines[1], "session_id: \"s-1\"");
                assert!(lines[2].starts_with("started_at: \"20") && lines[2].ends_with("Z\""));
                assert_eq!(lines[2].len(), "started_at: \"2026-02-07T22:30:00Z\"".len());
                assert_eq!(lines[3], "epic_spec: \"why\"");
                assert_eq!(lines[4], "lock_version: 1");
                assert!(lines[5].starts_with("# onehold: ") && lines.len() == 6);
            }
            System::PidFile => assert_eq!(text, format!("{pid}\n")),
        }
        assert!(!file.exists(), "{system:?}");
    }
}

/// What a hold of onehold's in a foreign format is worth when its processes are killed.
#[test]
fn a_hold_in_a_foreign_format_is_judged_as_exactly_as_a_native_one() {
    for system in [System::Prodigy, System::Sprint, System::Memory2] {
        let env = Env::new();
        fs::create_dir_all(system.file(&env).parent().unwrap()).unwrap();
        let (global, name) = system.words();
        // A command that drops the lock's descriptor, and a wrapper that is killed.
        let script = "exec 100>&- 101>&- 102>&-; echo $$ > ready; exec sleep 1000";
        let mut words = global.to_vec();
        words.extend([
            "run", name, "--owner", "o", "-m", "m", "--", "bash", "-c", script,
        ]);
        let mut wrapper = env.start(words);
        let command = crate::env::number_in(&env.path("ready"));
        wrapper.kill();
        let lock = system.lock(&env);
        assert_eq!(lock["state"], "held", "{system:?}: {lock}");
        assert_eq!(lock["pid"], command);
        assert_eq!(lock["wrapper_alive"], false);
        assert_eq!(lock["owner"], "o");
        assert_eq!(lock["message"], "m");
        assert_eq!(system.take(&env), Some(6), "{system:?}");
        crate::env::send(command, "KILL");
        eventually("the command is gone", || {
            system.lock(&env)["state"] == "zombie"
        });
        assert_eq!(system.take(&env), Some(0), "{system:?}");
    }
}

#[test]
fn an_acquire_whose_number_cannot_be_written_leaves_nothing_in_any_format() {
    for system in ALL {
        let env = Env::new();
        fs::create_dir_all(system.file(&env).parent().unwrap()).unwrap();
        let (global, name) = system.words();
        let script = format!(
            "onehold {} acquire {name} --owner o -m m >&-",
            global.join(" ")
        );
        env.shell(&script).assert().code(1);
        assert!(!system.file(&env).exists(), "{system:?}");
    }
}

#[test]
fn a_detached_hold_in_a_foreign_format_names_its_process_and_ends_with_it() {
    for system in ALL {
        let env = Env::new();
        fs::create_dir_all(system.file(&env).parent().unwrap()).unwrap();
        let mut job = Running::start(sleeper());
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
        assert_eq!(system.take(&env), Some(0), "{system:?}");
    }
}

#[test]
fn a_memory_lock_is_a_lease_of_30_seconds_and_renewed_by_both_its_times() {
    let env = Env::new();
    let system = System::Memory2;
    fs::create_dir_all(env.path("memory")).unwrap();
    let job = Running::start(sleeper());
    let pid = job.pid().to_string();
    system
        .onehold(&env, "acquire", &["--pid", &pid, "--owner", "o"])
        .assert()
        .success();
    let read = || -> Value {
        serde_json::from_str(&fs::read_to_string(system.file(&env)).unwrap()).unwrap()
    };
    let (before, lock) = (read(), system.lock(&env));
    assert_eq!(lock["ttl_seconds"], 30.0);
    system
        .onehold(&env, "renew", &["--owner", "o"])
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
        .stderr(contains(
            "cannot write a memory lock: its programs believe in it for 30 s",
        ));
}

#[test]
#[ignore = "takes half a minute"]
fn the_times_of_a_memory_lock_are_never_older_than_10_seconds_while_its_command_runs() {
    let env = Env::new();
    fs::create_dir_all(env.path("memory")).unwrap();
    let mut run = env.start(["--profile", "memory", "run", "--", "sleep", "26"]);
    let path = env.path("memory/.lock");
    eventually("it holds", || path.exists());
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
    assert_eq!(run.exit_code(), Some(0));
}

#[test]
fn a_run_notices_when_another_program_takes_its_lock_away_and_leaves_that_alone() {
    let env = Env::new();
    fs::create_dir_all(env.path("memory")).unwrap();
    let run = env.start(["--profile", "memory", "run", "--", "sleep", "1000"]);
    let path = env.path("memory/.lock");
    eventually("it holds", || path.exists());
    let theirs = System::Memory1.text(std::process::id(), &this_host(), Utc::now());
    fs::write(env.path("theirs"), &theirs).unwrap();
    // Not within the 20 ms in which it would be taken for a late comer's.
    eventually("the command runs", || {
        fs::read_to_string(&path).is_ok_and(|text| text.contains(" c="))
    });
    fs::rename(env.path("theirs"), &path).unwrap();
    let (code, _, said) = run.finish();
    assert_eq!(code, Some(8), "{said}");
    assert_eq!(fs::read_to_string(&path).unwrap(), theirs);
}

#[test]
fn what_prodigy_would_look_for_elsewhere_is_refused() {
    let env = Env::new();
    for name in ["a/b", "a:b", ".hidden"] {
        env.onehold(["--profile", "prodigy", "run", name, "--", "true"])
            .assert()
            .code(2)
            .stderr(contains("no job of prodigy has such an id"));
    }
    let unfit = env.json([
        "--format", "prodigy", "acquire", "x", "--ttl", "1h", "--pid", "1",
    ]);
    assert_eq!(unfit["success"], json!(true), "{unfit}");
}

#[test]
fn a_lock_file_next_to_a_dead_one_of_prodigys_is_not_lost_to_a_late_removal() {
    // The old program has found the holder dead and removes by name, a little too late.
    for late in [0, 5, 20] {
        let env = Env::new();
        let system = System::Prodigy;
        system.leave(
            &env,
            &system.text(gone(), &this_host(), Utc::now()),
            Utc::now(),
        );
        let path = system.file(&env);
        let before = fs::read_to_string(&path).unwrap();
        let held = std::thread::scope(|scope| {
            let removal = scope.spawn(|| {
                eventually("taken over", || {
                    fs::read_to_string(&path).is_ok_and(|now| now != before)
                });
                std::thread::sleep(Duration::from_millis(late));
                fs::remove_file(&path).unwrap();
            });
            let script = "test -e \"$ONEHOLD_FILE\" && echo held";
            let out = system
                .onehold(&env, "run", &["--", "sh", "-c", script])
                .output()
                .unwrap();
            removal.join().unwrap();
            out.stdout
        });
        assert_eq!(held, b"held\n", "{late} ms late");
    }
}

#[test]
fn a_file_that_its_program_rewrote_in_place_is_its_programs() {
    for system in ALL {
        let env = Env::new();
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
        let run = env.start(words);
        eventually("its command runs", || env.path("begun").exists());
        let theirs = system.text(std::process::id(), &this_host(), Utc::now());
        fs::write(&file, &theirs).unwrap();
        let (code, _, said) = run.finish();
        assert_eq!(code, Some(8), "{system:?}: {said}");
        assert_eq!(fs::read_to_string(&file).unwrap(), theirs, "{system:?}");
    }
}

#[test]
fn what_a_format_has_no_room_for_is_refused() {
    let env = Env::new();
    let job = Running::start(sleeper());
    let pid = job.pid().to_string();
    let refused = |words: &[&str], why: &str| {
        env.onehold(words).assert().code(2).stderr(contains(why));
    };
    refused(
        &["--format", "pid", "run", "--close", "x", "--", "true"],
        "cannot write a pid lock: it has no room for the command of --close",
    );
    refused(
        &[
            "--format", "pid", "acquire", "x", "--ttl", "5s", "--pid", &pid,
        ],
        "it has no room for a time to live",
    );
    refused(
        &["--format", "memory", "run", "--exec", "x", "--", "true"],
        "cannot write a memory lock: nobody would renew it",
    );
    let number = env
        .onehold(["--format", "memory", "acquire", "x", "--pid", &pid])
        .output()
        .unwrap()
        .stdout;
    let number = String::from_utf8(number).unwrap();
    refused(
        &["renew", "x", "--hold", number.trim(), "--ttl", "1h"],
        "its programs believe in it for 30 s",
    );
}

#[test]
fn a_pid_file_of_a_living_run_ends_with_its_command() {
    let env = Env::new();
    env.onehold([
        "run", "--format", "pid", "./y.pid", "--", "onehold", "release", "./y.pid",
    ])
    .assert()
    .code(4)
    .stderr(contains("it ends with its command"));
    let job = Running::start(sleeper());
    let pid = job.pid().to_string();
    env.onehold(["--format", "pid", "acquire", "./lock", "--pid", &pid])
        .assert()
        .success();
    env.onehold(["--format", "pid", "acquire", "./lock", "--pid", &pid])
        .assert()
        .code(6)
        .stderr(contains("`onehold --format pid break "));
}

#[test]
fn what_a_killed_taker_took_out_is_cleaned_up_if_its_holder_is_dead() {
    let env = Env::new();
    env.write("store/.onehold.00000000000000aa", format!("{}\n", gone()));
    let living = format!("{}\n", std::process::id());
    env.write("store/.onehold.00000000000000bb", &living);
    env.onehold(["cleanup"]).assert().success();
    assert_eq!(env.left_in_store(), [".onehold.00000000000000bb"]);
}
