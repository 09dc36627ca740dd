//! onehold together with the programs that it replaces. Their protocols are rebuilt here from their
//! descriptions, races included. Each holder creates a directory that must not exist yet.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::harness::{CONTENDERS, Running, TestEnv, dead_pid, foreign, wait_until};
use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;

/// How a foreign program uses its lock file.
trait ForeignProgram: Sync {
    /// The words of a `run` that uses the same lock file.
    fn words(&self) -> &'static [&'static str];
    fn path(&self) -> &'static str;
    /// Its record of a holder.
    fn text(&self, pid: u32) -> String;
    /// Tries once to acquire the lock. Whether it succeeded, as far as the program knows.
    fn acquire(&self, path: &Path) -> bool;
    fn release(&self, path: &Path) {
        let _ = fs::remove_file(path);
    }
}

/// Whether signal 0 can be sent; a process that may not be signaled counts as dead.
fn is_alive(pid: u64) -> bool {
    let Ok(pid) = i32::try_from(pid) else {
        return false;
    };
    rustix::process::Pid::from_raw(pid)
        .is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok())
}

/// How long onehold waits for foreign programs that have read a file and then act on its name.
const SETTLING_TIME: Duration = Duration::from_millis(50);

/// Actions of a foreign program that came later than that: the round in which one did proves nothing.
static LATE_ACTIONS: AtomicUsize = AtomicUsize::new(0);

/// Acts on the name of a file some time after the file was read, as if the program lost the CPU
/// between the two. `false` if that took so long that nothing is guaranteed.
fn act_after_read(read: Instant, act: impl FnOnce()) -> bool {
    std::thread::sleep(Duration::from_millis(2));
    let is_in_time = read.elapsed() < SETTLING_TIME * 4 / 5;
    if is_in_time {
        act();
        // The program may have lost the CPU once more.
        if read.elapsed() >= SETTLING_TIME {
            LATE_ACTIONS.fetch_add(1, Ordering::Relaxed);
        }
    }
    is_in_time
}

/// prodigy: creates the file exclusively, then writes it. Removes the file of a dead holder by name
/// and tries again.
struct Prodigy;

impl ForeignProgram for Prodigy {
    fn words(&self) -> &'static [&'static str] {
        &["--profile", "prodigy", "run", "job-1"]
    }

    fn path(&self) -> &'static str {
        ".prodigy/resume_locks/job-1.lock"
    }

    fn text(&self, pid: u32) -> String {
        foreign::prodigy("job-1", pid)
    }

    fn acquire(&self, path: &Path) -> bool {
        for _ in 0..2 {
            if let Ok(mut file) = fs::File::create_new(path) {
                let text = self.text(std::process::id());
                file.write_all(text.as_bytes()).unwrap();
                return true;
            }
            let read = Instant::now();
            let Ok(text) = fs::read(path) else { continue };
            let Ok(record) = serde_json::from_slice::<Value>(&text) else {
                return false;
            };
            if record["process_id"].as_u64().is_none_or(is_alive) {
                return false;
            }
            act_after_read(read, || {
                let _ = fs::remove_file(path);
            });
        }
        false
    }
}

/// Renames a file of its own over the lock file, whatever that is by now.
fn replace(path: &Path, temporary: &str, text: &str, read: Instant) -> bool {
    let temporary = path.with_file_name(temporary);
    fs::write(&temporary, text).unwrap();
    act_after_read(read, || {
        let _ = fs::rename(&temporary, path);
    })
}

/// The sprint mutex with its option to force.
struct Sprint;

impl ForeignProgram for Sprint {
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
        foreign::sprint(pid)
    }

    fn acquire(&self, path: &Path) -> bool {
        let read = Instant::now();
        let held = fs::read_to_string(path).is_ok_and(|text| {
            let pid = text.lines().find_map(|line| line.strip_prefix("pid: "));
            pid.and_then(|pid| pid.trim().parse().ok())
                .is_some_and(is_alive)
        });
        if held {
            return false;
        }
        let text = self.text(std::process::id());
        replace(path, ".sprint-running.tmp", &text, read)
    }
}

/// The memory lock. Ignores records of dead processes, those older than 30 s, and unreadable ones.
struct Memory;

impl ForeignProgram for Memory {
    fn words(&self) -> &'static [&'static str] {
        &["--profile", "memory", "run", "-n"]
    }

    fn path(&self) -> &'static str {
        "memory/.lock"
    }

    fn text(&self, pid: u32) -> String {
        foreign::memory(pid)
    }

    fn acquire(&self, path: &Path) -> bool {
        let read = Instant::now();
        let record = fs::read(path)
            .ok()
            .and_then(|text| serde_json::from_slice::<Value>(&text).ok());
        let held = record.is_some_and(|record| {
            let at = record["acquired_at"].as_str().unwrap_or_default();
            let is_recent = DateTime::parse_from_rfc3339(at)
                .is_ok_and(|at| Utc::now() - at.to_utc() < TimeDelta::seconds(30));
            is_recent && record["pid"].as_u64().is_some_and(is_alive)
        });
        if held {
            return false;
        }
        let text = self.text(std::process::id());
        replace(path, ".lock.lock.tmp", &text, read)
    }
}

/// shlock: links a file of its own to the name. Removes the file of a dead holder by name.
struct PidFile;

impl ForeignProgram for PidFile {
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
            let read = Instant::now();
            let text = fs::read_to_string(path).unwrap_or_default();
            if text.trim().parse().is_ok_and(is_alive) {
                break;
            }
            act_after_read(read, || {
                let _ = fs::remove_file(path);
            });
        }
        fs::remove_file(&own).unwrap();
        held
    }
}

/// Rounds of contention for the lock of one foreign program.
struct Workload<'a> {
    env: TestEnv,
    foreign: &'a dyn ForeignProgram,
    overlaps: AtomicUsize,
    foreign_holds: AtomicUsize,
    dead_pid: u32,
}

impl<'a> Workload<'a> {
    fn new(foreign: &'a dyn ForeignProgram) -> Self {
        let workload = Self {
            env: TestEnv::new(),
            foreign,
            overlaps: AtomicUsize::new(0),
            foreign_holds: AtomicUsize::new(0),
            dead_pid: dead_pid(),
        };
        fs::create_dir_all(workload.lock().parent().unwrap()).unwrap();
        workload
    }

    fn lock(&self) -> PathBuf {
        self.env.path(self.foreign.path())
    }

    fn create_zombie(&self) {
        let text = self.foreign.text(self.dead_pid);
        fs::write(self.lock(), text).unwrap();
    }

    /// The critical section of the foreign program.
    fn foreign_section(&self) {
        let inside = self.env.path("inside");
        self.foreign_holds.fetch_add(1, Ordering::Relaxed);
        if fs::create_dir(&inside).is_err() {
            self.overlaps.fetch_add(1, Ordering::Relaxed);
            return;
        }
        std::thread::sleep(Duration::from_millis(3));
        fs::remove_dir(&inside).unwrap();
    }

    fn foreign_contends(&self) {
        if self.foreign.acquire(&self.lock()) {
            self.foreign_section();
            self.foreign.release(&self.lock());
        }
    }

    /// The same critical section as a `run`.
    fn run(&self) -> Command {
        let script = "echo >> holds; if mkdir inside; then sleep 0.003; rmdir inside; else echo >> overlaps; fi";
        let mut command = self.env.onehold(self.foreign.words());
        command.args(["--", "sh", "-c", script]);
        command
    }

    fn forget_overlaps(&self) {
        self.overlaps.store(0, Ordering::Relaxed);
        let _ = fs::remove_file(self.env.path("overlaps"));
    }

    fn all_overlaps(&self) -> usize {
        self.overlaps.load(Ordering::Relaxed) + self.env.lines("overlaps")
    }
}

/// Rounds that begin with a zombie; `foreign` of the contenders are foreign programs.
fn contend(program: &dyn ForeignProgram, rounds: usize, foreign: usize) {
    let workload = Workload::new(program);
    let mut late_rounds = 0;
    for round in 0..rounds {
        let late_actions = LATE_ACTIONS.load(Ordering::Relaxed);
        workload.create_zombie();
        let start = Barrier::new(CONTENDERS);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let runs: Vec<_> = (foreign..CONTENDERS)
                .map(|_| {
                    scope.spawn(|| {
                        let mut run = workload.run();
                        start.wait();
                        run.output().unwrap()
                    })
                })
                .collect();
            for _ in 0..foreign {
                scope.spawn(|| {
                    start.wait();
                    // It tries again and again, at a different moment of each run.
                    while !over.load(Ordering::Relaxed) {
                        workload.foreign_contends();
                        std::thread::sleep(Duration::from_micros(700));
                    }
                });
            }
            let ended: Vec<_> = runs.into_iter().map(|run| run.join().unwrap()).collect();
            over.store(true, Ordering::Relaxed);
            if LATE_ACTIONS.load(Ordering::Relaxed) != late_actions {
                return;
            }
            for run in ended {
                // Success or refused; a lost hold would be 8.
                let fine = matches!(run.status.code(), Some(0 | 6));
                let stderr = String::from_utf8_lossy(&run.stderr);
                // A foreign program lost the CPU between its look at the clock and its removal. The command
                // was not executed.
                if foreign > 0 && !fine && stderr.contains("lost the lock while acquiring it") {
                    LATE_ACTIONS.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                assert!(fine, "in round {round}, {}: {stderr}", run.status);
            }
        });
        if LATE_ACTIONS.load(Ordering::Relaxed) == late_actions {
            assert_eq!(workload.all_overlaps(), 0, "in round {round}");
        } else {
            late_rounds += 1;
            workload.forget_overlaps();
        }
        let _ = fs::remove_file(workload.lock());
    }
    println!("{late_rounds} of {rounds} rounds prove nothing");
    assert!(
        late_rounds * 4 <= rounds,
        "{late_rounds} of {rounds} rounds"
    );
    let holds = workload.env.lines("holds");
    let foreign_holds = workload.foreign_holds.load(Ordering::Relaxed);
    if foreign == 0 {
        assert!(holds >= rounds, "{holds} holds in {rounds} rounds");
    } else {
        assert!(
            holds + foreign_holds >= rounds && foreign_holds > 0,
            "{holds}, {foreign_holds}"
        );
    }
}

/// Shows that overlaps are detected: foreign programs without onehold do overlap.
#[test]
fn foreign_programs_overlap_without_onehold() {
    for program in [&Prodigy as &dyn ForeignProgram, &Sprint, &Memory] {
        let workload = Workload::new(program);
        for _ in 0..2000 {
            workload.create_zombie();
            let start = Barrier::new(CONTENDERS);
            std::thread::scope(|scope| {
                for _ in 0..CONTENDERS {
                    scope.spawn(|| {
                        start.wait();
                        workload.foreign_contends();
                    });
                }
            });
            if workload.all_overlaps() > 0 {
                break;
            }
        }
        assert!(workload.all_overlaps() > 0);
    }
}

/// A `run` that holds the lock of a program until there is a file `end`.
fn hold(workload: &Workload<'_>) -> Running {
    let script = "echo $$ > began; until test -e end; do sleep 0.005; done";
    let mut run = workload.env.onehold(workload.foreign.words());
    run.args(["--", "sh", "-c", script]);
    let holder = Running::start(run);
    workload.env.pid_in("began");
    holder
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

#[test]
fn each_program_and_onehold_see_who_holds_and_who_is_dead() {
    for program in [&Prodigy as &dyn ForeignProgram, &Sprint, &Memory, &PidFile] {
        let name = program.path();
        let ask = |workload: &Workload<'_>| workload.run().output().unwrap().status.code();
        // They give up if they lose the CPU for long.
        let they_get_it = |workload: &Workload<'_>| {
            wait_until("they get it", || program.acquire(&workload.lock()));
        };
        // They hold, and we ask.
        let workload = Workload::new(program);
        they_get_it(&workload);
        let refused = ask(&workload);
        assert!(matches!(refused, Some(6 | 7)), "{name}: {refused:?}");
        program.release(&workload.lock());
        assert_eq!(ask(&workload), Some(0), "{name}");
        // They are dead, and we ask.
        workload.create_zombie();
        assert_eq!(ask(&workload), Some(0), "{name}");
        // We hold, and they ask.
        let mut holder = hold(&workload);
        assert!(!program.acquire(&workload.lock()), "{name}");
        workload.env.end();
        assert_eq!(holder.finish(), 0, "{name}");
        they_get_it(&workload);
        program.release(&workload.lock());
        // Our wrapper was killed, and its command runs.
        let workload = Workload::new(program);
        let mut holder = hold(&workload);
        let command = workload.env.pid_in("began");
        holder.kill();
        assert!(!program.acquire(&workload.lock()), "{name}");
        // We are dead, and they ask.
        kill(command);
        they_get_it(&workload);
        program.release(&workload.lock());
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
        #[ignore = "takes a minute: 600 rounds"]
        fn $long() {
            contend(&$program, 300, 0);
            contend(&$program, 300, 1);
        }
    )*};
}

contention! {
    prodigy_and_onehold_never_overlap, prodigy_and_onehold_never_overlap_in_300_rounds: Prodigy;
    sprint_mutex_and_onehold_never_overlap, sprint_mutex_and_onehold_never_overlap_in_300_rounds: Sprint;
    memory_lock_and_onehold_never_overlap, memory_lock_and_onehold_never_overlap_in_300_rounds: Memory;
    shlock_and_onehold_never_overlap, shlock_and_onehold_never_overlap_in_300_rounds: PidFile;
}
