//! onehold next to the programs that it replaces. Their protocols are rebuilt here from their
//! descriptions, races included; whoever holds makes a directory that must not be there yet.
#![cfg(unix)]
#![allow(missing_docs)]
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};
use tempfile::TempDir;

const CONTENDERS: usize = 8;

/// An old program's way to a lock file.
trait OldProgram: Sync {
    /// How onehold is told of it.
    fn words(&self) -> &'static [&'static str];
    fn path(&self) -> &'static str;
    /// What it writes for a holder.
    fn text(&self, pid: u32) -> String;
    /// One attempt; whether it holds now, as far as it knows.
    fn acquire(&self, path: &Path) -> bool;
    fn release(&self, path: &Path) {
        let _ = fs::remove_file(path);
    }
}

/// Whether signal 0 reaches it; what may not be signalled counts as dead.
fn answers(pid: u64) -> bool {
    let Ok(pid) = i32::try_from(pid) else {
        return false;
    };
    rustix::process::Pid::from_raw(pid)
        .is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok())
}

fn this_host() -> String {
    hostname::get().unwrap().into_string().unwrap()
}

/// Between a look at a file and what is done to its name, a program may lose the processor. For how
/// long is not promised to matter: a new hold is believed in after 50 ms. `false` beyond that.
fn dawdle(looked: Instant) -> bool {
    std::thread::sleep(Duration::from_millis(2));
    looked.elapsed() < Duration::from_millis(40)
}

/// Creates exclusively, then writes; removes a dead holder's file by name, and tries again.
struct Prodigy;

impl OldProgram for Prodigy {
    fn words(&self) -> &'static [&'static str] {
        &["--profile", "prodigy", "run", "job-1"]
    }

    fn path(&self) -> &'static str {
        ".prodigy/resume_locks/job-1.lock"
    }

    fn text(&self, pid: u32) -> String {
        let record = json!({
            "job_id": "job-1", "process_id": pid, "hostname": this_host(), "acquired_at": Utc::now(),
        });
        serde_json::to_string_pretty(&record).unwrap()
    }

    fn acquire(&self, path: &Path) -> bool {
        for _ in 0..2 {
            if let Ok(mut file) = fs::File::create_new(path) {
                let text = self.text(std::process::id());
                file.write_all(text.as_bytes()).unwrap();
                return true;
            }
            let looked = Instant::now();
            let Ok(text) = fs::read(path) else { continue };
            let Ok(record) = serde_json::from_slice::<Value>(&text) else {
                return false;
            };
            if record["process_id"].as_u64().is_none_or(answers) {
                return false;
            }
            if dawdle(looked) {
                let _ = fs::remove_file(path);
            }
        }
        false
    }
}

/// Renames a file of its own over whatever is there, and believes that it did.
fn replace(path: &Path, temporary: &str, text: &str, looked: Instant) -> bool {
    let temporary = path.with_file_name(temporary);
    fs::write(&temporary, text).unwrap();
    let in_time = dawdle(looked);
    if in_time {
        let _ = fs::rename(&temporary, path);
    }
    in_time
}

/// The sprint mutex, under force.
struct Sprint;

impl OldProgram for Sprint {
    fn words(&self) -> &'static [&'static str] {
        &[
            "--profile",
            "sprint",
            "run",
            "--owner",
            "s",
            "-m",
            "e",
            "--on-zombie",
            "take",
        ]
    }

    fn path(&self) -> &'static str {
        ".sprint-running"
    }

    fn text(&self, pid: u32) -> String {
        let now = Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
        format!(
            "pid: {pid}\nsession_id: \"old\"\nstarted_at: \"{now}\"\nepic_spec: \"e\"\nlock_version: 1\n"
        )
    }

    fn acquire(&self, path: &Path) -> bool {
        let looked = Instant::now();
        let held = fs::read_to_string(path).is_ok_and(|text| {
            let pid = text.lines().find_map(|line| line.strip_prefix("pid: "));
            pid.and_then(|pid| pid.parse().ok()).is_some_and(answers)
        });
        if held {
            return false;
        }
        let text = self.text(std::process::id());
        replace(path, ".sprint-running.tmp", &text, looked)
    }
}

/// The memory lock: who is dead, or 30 s old, has none; nor has what cannot be read.
struct Memory;

impl OldProgram for Memory {
    fn words(&self) -> &'static [&'static str] {
        &["--profile", "memory", "run", "-n"]
    }

    fn path(&self) -> &'static str {
        "memory/.lock"
    }

    fn text(&self, pid: u32) -> String {
        let now = Utc::now().format("%Y-%m-%dT%H:%M:%S%.6f+00:00").to_string();
        let record = json!({
            "pid": pid, "session_id": "old", "acquired_at": now, "hostname": this_host(),
            "operation": "write",
        });
        serde_json::to_string_pretty(&record).unwrap()
    }

    fn acquire(&self, path: &Path) -> bool {
        let looked = Instant::now();
        let record = fs::read(path)
            .ok()
            .and_then(|text| serde_json::from_slice::<Value>(&text).ok());
        let held = record.is_some_and(|record| {
            let at = record["acquired_at"].as_str().unwrap_or_default();
            let young = DateTime::parse_from_rfc3339(at)
                .is_ok_and(|at| Utc::now() - at.to_utc() < TimeDelta::seconds(30));
            young && record["pid"].as_u64().is_some_and(answers)
        });
        if held {
            return false;
        }
        let text = self.text(std::process::id());
        replace(path, ".lock.lock.tmp", &text, looked)
    }
}

/// As shlock: links a file of its own to the name; removes a dead holder's file by name.
struct PidFile;

impl OldProgram for PidFile {
    fn words(&self) -> &'static [&'static str] {
        &["--format", "pid", "run", "./daemon.pid"]
    }

    fn path(&self) -> &'static str {
        "daemon.pid"
    }

    fn text(&self, pid: u32) -> String {
        format!("{pid}\n")
    }

    fn acquire(&self, path: &Path) -> bool {
        let own = path.with_file_name(format!("shlock{:?}", std::thread::current().id()));
        fs::write(&own, self.text(std::process::id())).unwrap();
        let mut held = false;
        for _ in 0..2 {
            held = fs::hard_link(&own, path).is_ok();
            if held {
                break;
            }
            let looked = Instant::now();
            let text = fs::read_to_string(path).unwrap_or_default();
            if text.trim().parse().is_ok_and(answers) {
                break;
            }
            if dawdle(looked) {
                let _ = fs::remove_file(path);
            }
        }
        fs::remove_file(&own).unwrap();
        held
    }
}

/// A place for one old program's lock, with the marks of those who hold it.
struct Arena<'a> {
    root: TempDir,
    old: &'a dyn OldProgram,
    overlaps: AtomicUsize,
    old_holds: AtomicUsize,
    gone: u32,
}

impl<'a> Arena<'a> {
    fn new(old: &'a dyn OldProgram) -> Self {
        let mut process = Command::new("true").spawn().unwrap();
        process.wait().unwrap();
        let arena = Self {
            root: tempfile::tempdir().unwrap(),
            old,
            overlaps: AtomicUsize::new(0),
            old_holds: AtomicUsize::new(0),
            gone: process.id(),
        };
        fs::create_dir_all(arena.lock().parent().unwrap()).unwrap();
        arena
    }

    fn lock(&self) -> PathBuf {
        self.root.path().join(self.old.path())
    }

    fn leave_dead(&self) {
        let text = self.old.text(self.gone);
        fs::write(self.lock(), text).unwrap();
    }

    fn lines(&self, file: &str) -> usize {
        fs::read_to_string(self.root.path().join(file))
            .unwrap_or_default()
            .lines()
            .count()
    }

    /// What is done under the old program's hold.
    fn old_holds(&self) {
        let inside = self.root.path().join("inside");
        self.old_holds.fetch_add(1, Ordering::Relaxed);
        if fs::create_dir(&inside).is_err() {
            self.overlaps.fetch_add(1, Ordering::Relaxed);
            return;
        }
        std::thread::sleep(Duration::from_millis(3));
        fs::remove_dir(&inside).unwrap();
    }

    fn old_contends(&self) {
        if self.old.acquire(&self.lock()) {
            self.old_holds();
            self.old.release(&self.lock());
        }
    }

    /// The same under a hold of onehold's.
    fn onehold(&self) -> Command {
        let script = "echo >> holds; if mkdir inside; then sleep 0.003; rmdir inside; else echo >> overlaps; fi";
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("onehold"));
        command
            .args(self.old.words())
            .args(["--", "sh", "-c", script])
            .current_dir(self.root.path())
            .env("HOME", self.root.path())
            .env("ONEHOLD_DIR", self.root.path().join("store"))
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        for variable in [
            "ONEHOLD_HOLDS",
            "ONEHOLD_PROFILE",
            "ONEHOLD_CONFIG",
            "XDG_CONFIG_HOME",
            "PRODIGY_HOME",
        ] {
            command.env_remove(variable);
        }
        command
    }

    fn all_overlaps(&self) -> usize {
        self.overlaps.load(Ordering::Relaxed) + self.lines("overlaps")
    }
}

/// Rounds over a dead holder's file, `old` of the contenders old programs.
fn contend(program: &dyn OldProgram, rounds: usize, old: usize) {
    let arena = Arena::new(program);
    for round in 0..rounds {
        arena.leave_dead();
        let start = Barrier::new(CONTENDERS);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let runs: Vec<_> = (old..CONTENDERS)
                .map(|_| {
                    scope.spawn(|| {
                        let mut run = arena.onehold();
                        start.wait();
                        run.output().unwrap()
                    })
                })
                .collect();
            for _ in 0..old {
                scope.spawn(|| {
                    start.wait();
                    // It comes again and again, at other moments each time.
                    while !over.load(Ordering::Relaxed) {
                        arena.old_contends();
                        std::thread::sleep(Duration::from_micros(700));
                    }
                });
            }
            let ended: Vec<_> = runs.into_iter().map(|run| run.join().unwrap()).collect();
            over.store(true, Ordering::Relaxed);
            for run in ended {
                // Busy, or the command's own; a hold that is lost would be 8.
                let fine = matches!(run.status.code(), Some(0 | 6));
                let told = String::from_utf8_lossy(&run.stderr);
                assert!(fine, "in round {round}, {}: {told}", run.status);
            }
        });
        assert_eq!(arena.all_overlaps(), 0, "in round {round}");
        let _ = fs::remove_file(arena.lock());
    }
    let holds = arena.lines("holds");
    let old_holds = arena.old_holds.load(Ordering::Relaxed);
    if old == 0 {
        assert!(holds >= rounds, "{holds} holds in {rounds} rounds");
    } else {
        assert!(
            holds + old_holds >= rounds && old_holds > 0,
            "{holds}, {old_holds}"
        );
    }
}

/// That the marks show what they are to show: old programs alone do overlap.
#[test]
fn old_programs_by_themselves_hold_together() {
    for program in [&Prodigy as &dyn OldProgram, &Sprint, &Memory] {
        let arena = Arena::new(program);
        for _ in 0..2000 {
            arena.leave_dead();
            let start = Barrier::new(CONTENDERS);
            std::thread::scope(|scope| {
                for _ in 0..CONTENDERS {
                    scope.spawn(|| {
                        start.wait();
                        arena.old_contends();
                    });
                }
            });
            if arena.all_overlaps() > 0 {
                break;
            }
        }
        assert!(arena.all_overlaps() > 0);
    }
}

macro_rules! contention {
    ($($short:ident, $long:ident: $program:expr;)*) => {$(
        #[test]
        fn $short() {
            contend(&$program, 10, 0);
            contend(&$program, 10, 1);
        }

        #[test]
        #[ignore = "takes a minute"]
        fn $long() {
            contend(&$program, 200, 0);
            contend(&$program, 200, 1);
        }
    )*};
}

contention! {
    beside_prodigy_nobody_holds_together_with_onehold, beside_prodigy_200_rounds: Prodigy;
    beside_the_sprint_mutex_nobody_holds_together_with_onehold, beside_the_sprint_mutex_200_rounds: Sprint;
    beside_the_memory_lock_nobody_holds_together_with_onehold, beside_the_memory_lock_200_rounds: Memory;
    beside_shlock_nobody_holds_together_with_onehold, beside_shlock_200_rounds: PidFile;
}
