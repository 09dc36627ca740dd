//! Many processes on few locks while some are killed, stopped and continued at random. Each critical
//! section logs when it began and when it ended. A checker looks for overlaps, hold numbers that do
//! not grow, stuck locks and files that are left. Takes ten seconds, or `STRESS_SECONDS`:
//! `STRESS_SECONDS=3600 cargo test --test it stress::`.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::harness::intervals::{Interval, Slot, violations};
use crate::harness::seen::{append_line, identity, now};
use crate::harness::{Rng, Signal, TestEnv, example};
use rustix::process::Pid;

/// Parents with children, and locks without.
const NAMES: [&str; 8] = ["a", "a/1", "a/2", "a/2/x", "b", "b/1", "c", "d"];
const WORKERS: usize = 10;

struct Workload {
    env: TestEnv,
    is_over: AtomicBool,
    /// Pids of wrappers that have not been waited for, so that they are not reused.
    wrappers: Mutex<Vec<u32>>,
    invocations: AtomicUsize,
}

impl Workload {
    fn log(&self) -> PathBuf {
        self.env.path("log")
    }

    fn work(&self, seed: usize) {
        let mut rng = Rng(0x9E37_79B9_7F4A_7C15 ^ (seed as u64 + 1) << 32);
        while !self.is_over.load(Ordering::Relaxed) {
            let name = NAMES[rng.below(NAMES.len())];
            self.invocations.fetch_add(1, Ordering::Relaxed);
            match rng.below(8) {
                0 => self.lease(name, &mut rng),
                1 => drop(self.env.output(["cleanup"])),
                choice => self.run(name, choice),
            }
        }
    }

    fn run(&self, name: &str, choice: usize) {
        let wait = ["0", "20ms", "1s"][choice % 3];
        let options: &[&str] = match choice {
            6 => &["--close"],
            7 => &["--ttl", "1h"],
            _ => &[],
        };
        self.run_as(name, wait, options, 1);
    }

    /// `times`: how much longer its critical section takes.
    fn run_as(&self, asked: &str, wait: &str, options: &[&str], times: u32) {
        let words = asked.split(' ');
        let mut command = self
            .env
            .onehold(["run", "-w", wait].into_iter().chain(words));
        command
            .args(options)
            .arg("--")
            .arg(example("programs"))
            .arg("critical-section")
            .arg(self.log())
            .arg(times.to_string());
        if asked.contains("--slots 3") {
            command.arg("3");
        }
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        self.wrappers.lock().unwrap().push(child.id());
        child.wait().unwrap();
        let mut wrappers = self.wrappers.lock().unwrap();
        wrappers.retain(|pid| *pid != child.id());
    }

    /// Acquires a lease of 400 ms and releases it, or leaves it to expire. Logs the first 100 ms.
    fn lease(&self, name: &str, rng: &mut Rng) {
        let output = self.env.output(["acquire", name, "--ttl", "400ms"]);
        let from = now();
        let stdout = String::from_utf8(output.stdout).unwrap();
        let Ok(hold) = stdout.trim().parse::<u64>() else {
            return;
        };
        // This process may have been without a CPU since the lease was taken.
        let lock = self.env.lock(name);
        if lock["hold"] != hold || lock["state"] != "held" {
            return;
        }
        std::thread::sleep(Duration::from_millis(rng.below(4) as u64));
        let to = now();
        if to - from < 100_000_000 {
            let id = format!("lease-{hold}");
            append_line(
                &self.log(),
                &format!("in {id} {from} {name} {hold}\nout {id} {to}"),
            );
        }
        if rng.below(3) > 0 {
            self.env
                .output(["release", name, "--hold", &hold.to_string()]);
        }
    }

    /// Kills or stops wrappers and their commands, until the workload is over. The number of signals.
    fn kill_randomly(&self) -> usize {
        let mut rng = Rng(0x2545_F491_4F6C_DD1D);
        let mut signals = 0;
        while !self.is_over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(3));
            let stopped = {
                // While the list is locked, no wrapper in it is waited for.
                let wrappers = self.wrappers.lock().unwrap();
                if wrappers.is_empty() {
                    continue;
                }
                let wrapper = wrappers[rng.below(wrappers.len())];
                let target = match rng.below(2) {
                    0 => Some(wrapper),
                    _ => first_child(wrapper),
                };
                let Some(target) = target else { continue };
                let signal = match rng.below(4) {
                    0 | 1 => Signal::KILL,
                    _ => Signal::STOP,
                };
                if signal == Signal::KILL
                    && let Some(id) = identity(target)
                {
                    append_line(&self.log(), &format!("kill {id} {}", now()));
                }
                send(target, signal);
                (signal == Signal::STOP).then_some(target)
            };
            signals += 1;
            if let Some(stopped) = stopped {
                std::thread::sleep(Duration::from_millis(rng.below(20) as u64));
                send(stopped, Signal::CONT);
            }
        }
        signals
    }
}

fn send(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    let _ = rustix::process::kill_process(pid, signal);
}

fn first_child(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// The critical sections of a log. One that was killed ends when the signal was sent; one that ended
/// in an unknown way has no length.
fn intervals(log: &str) -> Vec<Interval> {
    let mut open: HashMap<&str, Vec<Interval>> = HashMap::new();
    let mut done = Vec::new();
    for line in log.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let at: u64 = words[2].parse().unwrap();
        match words[0] {
            "in" => {
                let slot = words.get(5).and_then(|slot| slot.parse().ok());
                let at_most = words.get(6).and_then(|at_most| at_most.parse().ok());
                let interval = Interval {
                    name: words[3].to_owned(),
                    owner: None,
                    shared: slot.map(|number| Slot { number, at_most }),
                    hold: words[4].parse().unwrap(),
                    from: at,
                    to: at,
                };
                let of_process = open.entry(words[1]).or_default();
                if of_process.iter().any(|before| before.hold != interval.hold) {
                    done.append(of_process);
                }
                of_process.push(interval);
            }
            _ => {
                for mut interval in open.remove(words[1]).unwrap_or_default() {
                    interval.to = at.max(interval.from);
                    done.push(interval);
                }
            }
        }
    }
    done.extend(open.into_values().flatten());
    done
}

/// What the history says otherwise than what was seen: it has no two holds at once, and each was held for as long
/// as its critical section took.
fn history_violations(env: &TestEnv, seen: &[Interval], signals: usize) -> Vec<String> {
    // By the clock of the sections.
    let ahead = chrono::Utc::now().timestamp_nanos_opt().unwrap() - i64::try_from(now()).unwrap();
    let at = |time: &serde_json::Value| {
        let time: chrono::DateTime<chrono::Utc> = time.as_str().unwrap().parse().unwrap();
        u64::try_from(time.timestamp_nanos_opt().unwrap() - ahead).unwrap()
    };
    let object = env.json(["history"]);
    let holds = object["holds"].as_array().unwrap();
    let mut told: Vec<Interval> = holds
        .iter()
        .map(|hold| Interval {
            name: hold["name"].as_str().unwrap().to_owned(),
            owner: None,
            shared: None,
            hold: hold["hold"].as_u64().unwrap(),
            from: at(&hold["acquired_at"]),
            to: at(&hold["ended_at"]),
        })
        .collect();
    let mut found = violations(&mut told);
    let of_hold: HashMap<u64, &Interval> = told.iter().map(|hold| (hold.hold, hold)).collect();
    // The clocks may be set apart by a little while this runs.
    let tolerance = 5_000_000;
    let mut missing = 0;
    for section in seen {
        match of_hold.get(&section.hold) {
            // Its wrapper was killed between the end of the hold and the line.
            None => missing += 1,
            Some(told)
                if told.from > section.from + tolerance || told.to + tolerance < section.to =>
            {
                found.push(format!(
                    "the history has {told:?}, and seen was {section:?}"
                ));
            }
            Some(_) => {}
        }
    }
    println!("{} past holds, {missing} without a line", told.len());
    // A quarter of the signals kill a wrapper, and most of those do so before the end of the hold.
    if missing * 10 > signals {
        found.push(format!("{missing} of {} sections have no line", seen.len()));
    }
    found
}

#[test]
fn critical_sections_never_overlap_under_random_kills_and_stops() {
    let seconds = std::env::var("STRESS_SECONDS")
        .ok()
        .and_then(|seconds| seconds.parse().ok())
        .unwrap_or(10);
    let workload = Workload {
        env: TestEnv::new(),
        is_over: AtomicBool::new(false),
        wrappers: Mutex::default(),
        invocations: AtomicUsize::new(0),
    };
    fs::write(workload.log(), "").unwrap();
    let config = workload.env.path(".config/onehold/config.toml");
    fs::create_dir_all(config.parent().unwrap()).unwrap();
    fs::write(
        config,
        "[defaults]\nhistory = true\njournal-size = \"1G\"\n",
    )
    .unwrap();
    let signals = std::thread::scope(|scope| {
        let killer = scope.spawn(|| workload.kill_randomly());
        for seed in 0..WORKERS {
            let workload = &workload;
            scope.spawn(move || workload.work(seed));
        }
        std::thread::sleep(Duration::from_secs(seconds));
        workload.is_over.store(true, Ordering::Relaxed);
        killer.join().unwrap()
    });
    let env = &workload.env;
    let ended = Instant::now();
    for name in NAMES {
        let code = env.code(["run", name, "-w", "20s", "--", "true"]);
        assert_eq!(code, 0, "{name} is stuck");
    }
    assert!(ended.elapsed() < Duration::from_secs(20));
    env.done(["cleanup"]);
    assert_eq!(env.left_in_store(), [""; 0]);
    let mut intervals = intervals(&fs::read_to_string(workload.log()).unwrap());
    let mut violations = violations(&mut intervals);
    violations.extend(history_violations(env, &intervals, signals));
    println!(
        "{} invocations, {} critical sections, {signals} signals, {} violations",
        workload.invocations.load(Ordering::Relaxed),
        intervals.len(),
        violations.len()
    );
    assert!(violations.is_empty(), "{}", violations.join("\n"));
    assert!(intervals.len() > 100 && signals > 100);
}

/// How 16 workers ask for three locks and the child of one: exclusively, shared, by three slots, or two locks
/// at once in either order.
const SHARING: [&str; 10] = [
    "a",
    "-s a",
    "-s a",
    "-s a/1",
    "a/1",
    "--slots 3 b",
    "--slots 3 b",
    "b a",
    "a b",
    "--slots 3 b c",
];

/// `rounds` of each worker, while wrappers and commands are killed and stopped at random.
fn share(rounds: usize) {
    const WORKERS: usize = 16;
    let workload = Workload {
        env: TestEnv::new(),
        is_over: AtomicBool::new(false),
        wrappers: Mutex::default(),
        invocations: AtomicUsize::new(0),
    };
    fs::write(workload.log(), "").unwrap();
    let signals = std::thread::scope(|scope| {
        let killer = scope.spawn(|| workload.kill_randomly());
        let workers: Vec<_> = (0..WORKERS)
            .map(|seed| {
                let workload = &workload;
                scope.spawn(move || {
                    let mut rng = Rng(0x9E37_79B9_7F4A_7C15 ^ (seed as u64 + 1) << 32);
                    for _ in 0..rounds {
                        let asked = SHARING[rng.below(SHARING.len())];
                        workload.run_as(asked, "20s", &[], 5);
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.join().unwrap();
        }
        workload.is_over.store(true, Ordering::Relaxed);
        killer.join().unwrap()
    });
    let env = &workload.env;
    let code = env.code(["run", "a", "b", "c", "-w", "20s", "--", "true"]);
    assert_eq!(code, 0, "a lock is stuck");
    env.done(["cleanup"]);
    assert_eq!(env.left_in_store(), [""; 0]);
    let mut intervals = intervals(&fs::read_to_string(workload.log()).unwrap());
    let violations = violations(&mut intervals);
    let side_by_side = crate::harness::intervals::overlapping(&intervals)
        .filter(|(one, other)| one.name == other.name)
        .count();
    println!(
        "{} critical sections, {side_by_side} side by side, {signals} signals, {} violations",
        intervals.len(),
        violations.len()
    );
    assert!(violations.is_empty(), "{}", violations.join("\n"));
    assert!(intervals.len() > WORKERS * rounds / 4 && side_by_side > rounds / 4);
}

#[test]
fn shared_limited_and_joint_holds_never_overlap_wrongly_under_random_kills() {
    share(20);
}

/// Eight callers, half of them with the names in the other order, each so many times.
fn join_in_opposite_orders(rounds: usize) {
    const CALLERS: usize = 8;
    let env = TestEnv::new();
    let add = "n=$(cat count 2>/dev/null); echo $((n + 1)) >count";
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (env, names) = (&env, [["a", "b"], ["b", "a"]][caller % 2]);
            scope.spawn(move || {
                for _ in 0..rounds {
                    let run = [
                        "run", "-w", "60s", names[0], names[1], "--", "sh", "-c", add,
                    ];
                    assert_eq!(env.code(run), 0);
                }
            });
        }
    });
    assert_eq!(env.count_in("count"), CALLERS * rounds);
    assert_eq!(env.left_in_store(), [""; 0]);
}

#[test]
fn callers_with_two_names_in_opposite_orders_never_wait_for_each_other() {
    join_in_opposite_orders(25);
}

#[test]
#[ignore = "takes a minute"]
fn callers_with_two_names_in_opposite_orders_never_wait_for_each_other_in_500_rounds() {
    join_in_opposite_orders(500);
}

#[test]
#[ignore = "takes minutes"]
fn shared_limited_and_joint_holds_never_overlap_wrongly_in_500_rounds() {
    share(500);
}

#[test]
fn checker_finds_overlaps_and_numbers_that_do_not_grow() {
    for (log, expected) in [
        ("in 1 10 a 1\nout 1 20\nin 2 20 a 2\nout 2 30\n", 0),
        ("in 1 10 a 1\nin 2 15 a 2\nout 1 20\nout 2 30\n", 1),
        ("in 1 10 a 1\nin 2 15 a/1 2\nout 1 20\nout 2 30\n", 1),
        ("in 1 10 a/1 1\nin 2 15 a/2 2\nout 1 20\nout 2 30\n", 0),
        ("in 1 10 a 1\nkill 1 20\nin 2 15 a 2\nout 2 30\n", 1),
        ("in 1 10 a 2\nout 1 20\nin 2 20 a 1\nout 2 30\n", 1),
        // Shared holds in two slots, in one, of parents and children, and beside an exclusive one.
        ("in 1 10 a 1 0\nin 2 15 a 2 1\nout 1 20\nout 2 30\n", 0),
        ("in 1 10 a 1 0\nin 2 15 a 2 0\nout 1 20\nout 2 30\n", 1),
        ("in 1 10 a 1 0\nin 2 15 a/1 2 0\nout 1 20\nout 2 30\n", 0),
        ("in 1 10 a 1 0\nin 2 15 a/1 2\nout 1 20\nout 2 30\n", 1),
        ("in 1 10 a 1 0\nin 2 15 a 2\nout 1 20\nout 2 30\n", 1),
        // The third of at most two; and one that allows three.
        (
            "in 1 10 a 1 0 2\nin 2 11 a 2 1 2\nin 3 12 a 3 2 2\nout 1 20\nout 2 20\nout 3 20\n",
            1,
        ),
        (
            "in 1 10 a 1 0 2\nin 2 11 a 2 1 2\nin 3 12 a 3 2 3\nout 1 20\nout 2 20\nout 3 20\n",
            0,
        ),
        // Two names of one hold.
        (
            "in 1 10 a 1\nin 1 10 b 1\nin 2 15 b 2\nout 1 20\nout 2 30\n",
            1,
        ),
        // When the first ended is unknown.
        ("in 1 10 a 1\nin 2 15 a 2\nout 2 30\n", 0),
    ] {
        let found = violations(&mut intervals(log));
        assert_eq!(found.len(), expected, "{log}{found:?}");
    }
}
