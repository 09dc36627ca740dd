//! Lock files of other programs: reading, takeover and writing.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime};

use assert_cmd::prelude::OutputAssertExt;
use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use predicates::prelude::*;
use predicates::str::contains;
#[cfg(unix)]
use rustix::fs::{FlockOperation, fcntl_lock};
use serde_json::{Value, json};

use super::env::edited;
#[cfg(unix)]
use super::env::make_older;
use crate::harness::{Running, TestEnv, wait_until};
#[cfg(unix)]
use crate::harness::{Signal, dead_pid, foreign};

/// Another program: its file, and the options that make onehold use it.
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
    /// Global options and the lock name.
    fn words(self) -> (&'static [&'static str], &'static str) {
        match self {
            Self::Prodigy => (&["--profile", "prodigy"], "job-1"),
            Self::Sprint => (&["--profile", "sprint"], "./.sprint-running"),
            Self::Memory1 | Self::Memory2 => (&["--profile", "memory"], "./memory/.lock"),
            Self::PidFile => (&["--format", "pid"], "./daemon.pid"),
        }
    }

    fn file(self, env: &TestEnv) -> PathBuf {
        env.path(match self {
            Self::Prodigy => ".prodigy/resume_locks/job-1.lock",
            Self::Sprint => ".sprint-running",
            Self::Memory1 | Self::Memory2 => "memory/.lock",
            Self::PidFile => "daemon.pid",
        })
    }

    /// The file as that program writes it.
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

    /// Writes the file and sets its time.
    fn leave(self, env: &TestEnv, text: &str, modified: DateTime<Utc>) {
        let path = self.file(env);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::from(modified)).unwrap();
    }

    fn onehold(self, env: &TestEnv, verb: &str, more: &[&str]) -> Command {
        let (global, lock) = self.words();
        let mut command = env.onehold(global);
        command.arg(verb);
        if !matches!(verb, "list" | "cleanup") {
            command.arg(lock);
        }
        command.args(more);
        command
    }

    fn lock(self, env: &TestEnv) -> Value {
        let output = self.onehold(env, "check", &["--json"]).output().unwrap();
        crate::harness::json_object(&output.stdout)["lock"].take()
    }

    /// Runs `true` under the lock and returns the exit code.
    fn take(self, env: &TestEnv) -> Option<i32> {
        let mut options = vec!["-n", "--owner", "me", "-m", "why", "--on-zombie", "take"];
        options.extend(["--", "true"]);
        let output = self.onehold(env, "run", &options).output().unwrap();
        output.status.code()
    }
}

fn this_host() -> String {
    hostname::get().unwrap().into_string().unwrap()
}

/// A PID without a process.
fn gone() -> u32 {
    let mut process = Running::sleeper();
    process.kill();
    process.pid()
}

/// A file of another program and its expected state.
struct Row {
    what: &'static str,
    /// The content for a time of writing.
    text: Box<dyn Fn(DateTime<Utc>) -> String>,
    age: TimeDelta,
    state: &'static str,
    reason: &'static str,
}

/// The age of process 1.
#[cfg(unix)]
fn age_of_init() -> TimeDelta {
    // Ticks of 10 ms since boot, see proc_pid_stat(5).
    const TICK_MS: i64 = 10;
    let stat = fs::read_to_string("/proc/1/stat").unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let ticks: i64 = fields.split_whitespace().nth(19).unwrap().parse().unwrap();
    let uptime = fs::read_to_string("/proc/uptime").unwrap();
    let seconds: i64 = uptime.split('.').next().unwrap().parse().unwrap();
    TimeDelta::seconds(seconds) - TimeDelta::milliseconds(ticks * TICK_MS)
}

#[cfg(unix)]
#[test]
fn each_state_of_each_foreign_format_is_judged_taken_and_cleaned_up() {
    let (living, gone) = (Running::sleeper(), gone());
    let living = living.pid();
    let (none, seconds) = (TimeDelta::zero(), TimeDelta::seconds(11));
    let (hour, day) = (TimeDelta::hours(1), TimeDelta::hours(25));
    for system in ALL {
        let short_lived = matches!(system, System::Memory1 | System::Memory2);
        let has_host = !matches!(system, System::Sprint | System::PidFile);
        let can_be_incomplete = system != System::PidFile;
        let here = move |pid| -> Box<dyn Fn(DateTime<Utc>) -> String> {
            Box::new(move |at| system.text(pid, &this_host(), at))
        };
        let elsewhere = move |pid| -> Box<dyn Fn(DateTime<Utc>) -> String> {
            Box::new(move |at| system.text(pid, "elsewhere", at))
        };
        let fixed = |text: &'static str| -> Box<dyn Fn(DateTime<Utc>) -> String> {
            Box::new(move |_| text.to_owned())
        };
        let half = move || -> Box<dyn Fn(DateTime<Utc>) -> String> {
            Box::new(move |at| {
                let text = system.text(living, &this_host(), at);
                text[..text.len() / 2].to_owned()
            })
        };
        let mut rows = Vec::new();
        let mut row = |what, text, age, (state, reason)| {
            rows.push(Row {
                what,
                text,
                age,
                state,
                reason,
            });
        };
        row("alive", here(living), none, ("held", "alive"));
        row("dead", here(gone), none, ("zombie", "dead"));
        row("empty", fixed(""), none, ("held", "incomplete"));
        row("empty, 11 s old", fixed(""), seconds, ("zombie", "corrupt"));
        // At the place of a profile's only lock it is damaged; elsewhere it may be anything.
        let is_own_place = matches!(system, System::Sprint | System::Memory1 | System::Memory2);
        let (young, old) = if is_own_place {
            (("held", "incomplete"), ("zombie", "malformed"))
        } else {
            (("not-a-lock", "not-a-lock"), ("not-a-lock", "not-a-lock"))
        };
        row("garbage", fixed("{{ nobody knows"), none, young);
        row("other data", fixed("[[package]]\n"), day, old);
        // The process started after the record was written, so it may be another one.
        row("25 h old", here(living), day, ("zombie", "too-old"));
        row("25 h old, dead", here(gone), day, ("zombie", "dead"));
        // The record must be younger than process 1, with some room for a slow test.
        if age_of_init() > hour + TimeDelta::minutes(5) {
            let state = if short_lived { "overdue" } else { "held" };
            row("an hour old", here(1), hour, (state, "alive"));
        }
        if can_be_incomplete {
            row("half", half(), none, ("held", "incomplete"));
            row("half, 11 s old", half(), seconds, ("zombie", "corrupt"));
        }
        if has_host {
            row(
                "other host",
                elsewhere(living),
                none,
                ("held", "unverified"),
            );
            row(
                "other host, dead PID",
                elsewhere(gone),
                none,
                ("held", "unverified"),
            );
            row(
                "other host, 25 h old",
                elsewhere(gone),
                day,
                ("zombie", "too-old"),
            );
        }
        for row in rows {
            check_row(system, &row);
        }
    }
}

fn check_row(system: System, row: &Row) {
    let what = format!("{system:?}: {}", row.what);
    let env = TestEnv::new();
    // Written again before each step, because the result depends on the age of the file in seconds.
    let leave = || {
        let at = Utc::now() - row.age;
        let text = (row.text)(at);
        system.leave(&env, &text, at);
        text
    };
    let (check, take, removed) = match row.state {
        "held" => (6, 6, false),
        "overdue" => (5, 6, false),
        // Sprint asks. Memory takes zombies, and moves the file aside.
        "zombie" if row.reason == "malformed" && system == System::Sprint => (5, 5, false),
        "zombie" if row.reason == "malformed" => (5, 0, false),
        "zombie" => (5, 0, true),
        _ => (1, 125, false),
    };
    leave();
    let lock = system.lock(&env);
    assert_eq!(lock["state"], row.state, "{what}: {lock}");
    // So old a record may be from before the boot, which shows more.
    let is_of_earlier_boot = row.reason == "too-old" && lock["reason"] == "rebooted";
    assert!(
        lock["reason"] == row.reason || is_of_earlier_boot,
        "{what}: {lock}"
    );
    leave();
    let checked = system.onehold(&env, "check", &["-q"]).output().unwrap();
    assert_eq!(checked.status.code(), Some(check), "{what}");
    leave();
    assert_eq!(system.take(&env), Some(take), "{what}");
    assert_eq!(system.file(&env).exists(), take != 0, "{what}");
    if system == System::PidFile {
        // It has no profile, so `cleanup` does not know its path.
        return;
    }
    let text = leave();
    let cleaned = system.onehold(&env, "cleanup", &[]).output().unwrap();
    assert_eq!(cleaned.status.code(), Some(0), "{what}");
    assert_eq!(system.file(&env).exists(), !removed, "{what}");
    if !removed {
        assert_eq!(fs::read_to_string(system.file(&env)).unwrap(), text);
    }
}

#[test]
fn foreign_record_is_recognized_without_format_option() {
    let env = TestEnv::new();
    let living = Running::sleeper();
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
        contains(format!(" {} ", living.pid()))
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

#[cfg(unix)]
#[test]
fn foreign_record_is_named_by_its_lock_and_has_no_number() {
    let env = TestEnv::new();
    let now = Utc::now().to_rfc3339();
    let pid = std::process::id();
    for (file, text) in [
        (
            "sprint",
            format!("pid: {pid}\nsession_id: s\nstarted_at: {now}\nlock_version: 1\n"),
        ),
        (
            "memory",
            format!(r#"{{"pid":{pid},"session_id":"s","acquired_at":"{now}","operation":"o"}}"#),
        ),
        (
            "prodigy",
            format!(r#"{{"job_id":"j","process_id":{pid},"hostname":null,"acquired_at":"{now}"}}"#),
        ),
    ] {
        let name = format!("./{file}.lock");
        env.write(&format!("{file}.lock"), text);
        let lock = env.lock(&name);
        assert_eq!(lock["names"], json!([name]), "{lock}");
        assert_eq!(lock["hold"], Value::Null, "{lock}");
        env.onehold(["check", "-v", &name])
            .assert()
            .stdout(contains("\n  hold: ").not());
        // It says what will be free.
        #[cfg(unix)]
        {
            let (_, shown) = env.on_a_terminal(&format!("break {name}"), &["n\n"]);
            assert!(
                shown.contains(&format!("`{name}` will then be free")),
                "{shown}"
            );
        }
    }
}

#[test]
fn empty_host_and_session_count_as_absent() {
    let env = TestEnv::new();
    let now = Utc::now().to_rfc3339();
    let hosts = ["prodigy", "memory"];
    for (file, text) in [
        (
            hosts[0],
            format!(r#"{{"job_id":"j","process_id":PID,"hostname":"","acquired_at":"{now}"}}"#),
        ),
        (
            hosts[1],
            format!(
                r#"{{"pid":PID,"session_id":"","hostname":"","acquired_at":"{now}","operation":"o"}}"#
            ),
        ),
        (
            "sprint",
            format!("pid: PID\nsession_id: \"\"\nstarted_at: {now}\nlock_version: 1\n"),
        ),
    ] {
        let name = format!("./{file}.lock");
        env.write(
            &format!("{file}.lock"),
            text.replace("PID", &gone().to_string()),
        );
        let lock = env.lock(&name);
        assert_eq!(lock["reason"], "dead", "{lock}");
        assert_eq!(
            (&lock["hostname"], &lock["owner"]),
            (&Value::Null, &Value::Null)
        );
    }
    // A native record, of the boot before this one or by hand.
    for (name, has_origin) in [("rebooted", true), ("by-hand", false)] {
        let _holder = env.write_record_of_live_holder(name, |text| {
            edited(&text, |record| {
                record["hostname"] = "".into();
                if has_origin {
                    record["origin"]["boot"]["id"] = "another".into();
                } else {
                    record["origin"] = Value::Null;
                }
            })
        });
        let lock = env.lock(name);
        assert_eq!(lock["hostname"], Value::Null, "{lock}");
        assert_ne!(
            lock["evidence"], "unverified: its process is on another host",
            "{lock}"
        );
    }
}

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

/// Whether this system tells what its clock read at boot.
#[cfg(target_os = "linux")]
fn knows_clock_at_boot() -> bool {
    const INITIAL: &str = "pid:[4026531836]";
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    namespace.as_os_str() == INITIAL
        && mounts
            .lines()
            .any(|mount| mount.starts_with("devtmpfs /dev "))
        && fs::metadata("/dev").unwrap().created().is_ok()
}

#[cfg(target_os = "linux")]
#[test]
fn pid_file_from_before_the_boot_is_no_proof_of_life() {
    let env = TestEnv::new();
    let other = Running::sleeper();
    let system = System::PidFile;
    let text = format!("{}\n", other.pid());
    system.leave(&env, &text, "2001-09-09T01:46:40Z".parse().unwrap());
    let checked = system.onehold(&env, "check", &["--json", "--max-age", "9999d"]);
    let lock = crate::harness::json_object(&{ checked }.output().unwrap().stdout)["lock"].take();
    if knows_clock_at_boot() {
        assert_eq!(lock["reason"], "rebooted", "{lock}");
        assert_eq!(lock["proof"], "other-boot", "{lock}");
    } else {
        assert_eq!(lock["reason"], "unverified", "{lock}");
        assert_eq!(lock["command"], json!(["sleep", "1000"]), "{lock}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn program_that_has_the_pid_of_a_foreign_record_is_named() {
    let env = TestEnv::new();
    let living = Running::sleeper();
    let pid = living.pid();
    for system in ALL {
        let certain = format!("is held by process {pid} (sleep)");
        // It started later, so it may be another one.
        let uncertain = format!("may be held by process {pid} (sleep)");
        for (age, said) in [
            (TimeDelta::zero(), certain),
            (TimeDelta::seconds(10), uncertain),
        ] {
            let then = Utc::now() - age;
            system.leave(&env, &system.text(pid, &this_host(), then), then);
            let options = [
                "-n",
                "--owner",
                "o",
                "-m",
                "m",
                "--max-age",
                "2h",
                "--",
                "true",
            ];
            let run = system.onehold(&env, "run", &options);
            { run }.assert().code(6).stderr(contains(said));
            let check = system.onehold(&env, "check", &["--json", "--max-age", "2h"]);
            let checked = crate::harness::json_object(&{ check }.output().unwrap().stdout);
            assert_eq!(checked["lock"]["command"], json!(["sleep", "1000"]));
        }
    }
}

#[cfg(unix)]
#[test]
fn times_in_details_are_those_of_the_file() {
    let env = TestEnv::new();
    let job = Running::sleeper();
    let pid = job.pid().to_string();
    for (system, key, path) in [
        (System::Prodigy, "acquired_at", "/acquired_at"),
        (System::Sprint, "started_at", "/lock_info/started_at"),
        (System::Memory2, "acquired_at", "/holder/acquired_at"),
    ] {
        fs::create_dir_all(system.file(&env).parent().unwrap()).unwrap();
        let in_file = || {
            let text = fs::read_to_string(system.file(&env)).unwrap();
            let (_, rest) = text.split_once(key).unwrap();
            rest.trim_start_matches(['"', ':', ' '])
                .split('"')
                .next()
                .unwrap()
                .to_owned()
        };
        let shown = |lock: &Value| lock["details"].pointer(path).unwrap().clone();
        let options = ["--json", "--pid", &pid, "--owner", "o", "-m", "m"];
        let acquired = system.onehold(&env, "acquire", &options).output().unwrap();
        let acquired = crate::harness::json_object(&acquired.stdout);
        assert_eq!(shown(&system.lock(&env)), in_file(), "{system:?}");
        if system == System::Memory2 {
            let hold = acquired["hold"].to_string();
            let renew = system.onehold(&env, "renew", &["--hold", &hold]);
            { renew }.assert().success();
            assert_eq!(shown(&system.lock(&env)), in_file());
        } else {
            assert_eq!(shown(&acquired["lock"]), in_file(), "{system:?}");
        }
    }
    // As PowerShell writes it.
    let then = Utc::now().format("%Y-%m-%dT%H:%M:%S.1234567Z").to_string();
    let text = System::Memory1.text(job.pid(), &this_host(), Utc::now());
    let mut record: Value = serde_json::from_str(&text).unwrap();
    record["acquired_at"] = then.as_str().into();
    System::Memory1.leave(&env, &record.to_string(), Utc::now());
    let lock = System::Memory1.lock(&env);
    assert_eq!(lock["details"]["holder"]["acquired_at"], then);
}

#[cfg(unix)]
#[test]
fn flock_is_no_hint_where_another_format_is_expected() {
    let env = TestEnv::new();
    for (profile, has_hint) in [(&["--profile", "memory"][..], false), (&[], true)] {
        let words = |verb: &[&'static str]| [profile, verb, &["./memory/.lock"]].concat();
        let run = [&words(&["run", "-n", "-m", "m"])[..], &["--", "true"]].concat();
        let now = Utc::now();
        let mut said = String::new();
        for (modified, commands) in [
            (
                now,
                vec![words(&["check"]), words(&["check", "--json"]), run.clone()],
            ),
            (
                now - TimeDelta::minutes(1),
                vec![words(&["check"]), words(&["check", "--json"]), run],
            ),
        ] {
            for command in commands {
                System::Memory1.leave(&env, "", modified);
                let output = env.output(command);
                said += &String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            }
        }
        assert_eq!(said.contains("flock"), has_hint, "{said}");
    }
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

#[cfg(unix)]
#[test]
fn pid_file_with_0_is_not_a_zombie() {
    let env = TestEnv::new();
    fs::write(env.path("x.pid"), "0\n").unwrap();
    make_older(&env.path("x.pid"));
    let acquire = ["acquire", "--format", "pid", "./x.pid", "--pid", "1"];
    assert_eq!(env.code(acquire), 6);
    assert_eq!(fs::read_to_string(env.path("x.pid")).unwrap(), "0\n");
}

#[cfg(unix)]
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
