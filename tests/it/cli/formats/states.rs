//! What a file of another program is judged as.

use std::fs;

use chrono::{DateTime, TimeDelta, Utc};
#[cfg(unix)]
use rustix::fs::{FlockOperation, fcntl_lock};
#[cfg(target_os = "linux")]
use serde_json::json;

use super::{ALL, System, gone, this_host};
#[cfg(unix)]
use crate::cli::env::make_older;
use crate::harness::{Running, TestEnv};
#[cfg(unix)]
use crate::harness::{dead_pid, foreign};

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
