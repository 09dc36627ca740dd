//! Many processes on few locks while some are killed, stopped and continued at random. Each critical
//! section logs when it began and when it ended. A checker looks for overlaps, hold numbers that do
//! not grow, stuck locks and files that are left; an observer for waiters that could have taken their
//! locks and did not. Takes ten seconds, or `STRESS_SECONDS`:
//! `STRESS_SECONDS=3600 cargo test --test it stress::`.

mod innocents;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::harness::innocents::Innocents;
use crate::harness::intervals::{Interval, Slot, violations, violations_by_clock};
use crate::harness::seen::{append_line, identity, now, state};
use crate::harness::waits::{Stretch, Waits};
use crate::harness::{Rng, Signal, TestEnv, example, exit_code, wait_until};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

/// Parents with children, and locks without.
const NAMES: [&str; 8] = ["a", "a/1", "a/2", "a/2/x", "b", "b/1", "c", "d"];
const WORKERS: usize = 10;

/// How long a call waits that is neither stopped nor killed.
const SPARED: &str = "50s";

struct Workload {
    env: TestEnv,
    is_over: AtomicBool,
    wrappers: Mutex<Vec<Wrapper>>,
    invocations: AtomicUsize,
    /// How many waiters are stopped for long at one time.
    stopped_for_long: AtomicUsize,
}

/// A wrapper that has not been waited for, so that its PID is not reused.
struct Wrapper {
    pid: u32,
    call: usize,
    /// It is neither stopped nor killed.
    is_spared: bool,
    is_stopped: bool,
}

impl Workload {
    fn new() -> Self {
        let workload = Self {
            env: TestEnv::on_disk(),
            is_over: AtomicBool::new(false),
            wrappers: Mutex::default(),
            invocations: AtomicUsize::new(0),
            stopped_for_long: AtomicUsize::new(0),
        };
        fs::write(workload.log(), "").unwrap();
        workload
    }

    fn log(&self) -> PathBuf {
        self.env.path("log")
    }

    fn work(&self, seed: usize) {
        let mut rng = Rng(0x9E37_79B9_7F4A_7C15 ^ (seed as u64 + 1) << 32);
        while !self.is_over.load(Ordering::Relaxed) {
            let name = NAMES[rng.below(NAMES.len())];
            match rng.below(8) {
                0 => self.lease(name, &mut rng),
                1 => drop(self.env.output(["cleanup"])),
                choice => self.run(name, choice, &mut rng),
            }
        }
    }

    fn run(&self, name: &str, choice: usize, rng: &mut Rng) {
        let wait = ["0", "20ms", "1s"][choice % 3];
        let options: &[&str] = match choice {
            6 => &["--close"],
            7 => &["--ttl", "1h"],
            _ => &[],
        };
        self.run_as(name, wait, options, rng.below(4_000));
    }

    /// Runs a critical section of so many microseconds. Returns the exit code.
    fn run_as(&self, asked: &str, wait: &str, options: &[&str], microseconds: usize) -> i32 {
        let words = asked.split(' ');
        let call = self.invocations.fetch_add(1, Ordering::Relaxed);
        let at_most = asked
            .split_once("--slots ")
            .map_or("-", |(_, rest)| rest.split(' ').next().unwrap());
        let mut command = self
            .env
            .onehold(["run", "-q", "-w", wait].into_iter().chain(words));
        command
            .args(options)
            .arg("--")
            .arg(example("programs"))
            .arg("critical-section")
            .arg(self.log())
            .args([&microseconds.to_string(), at_most, &call.to_string()]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        self.note(&format!("call {call} {} {asked}", now()));
        let mut child = command.spawn().unwrap();
        self.wrappers.lock().unwrap().push(Wrapper {
            pid: child.id(),
            call,
            is_spared: wait == SPARED,
            is_stopped: false,
        });
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&child)), ended).unwrap();
        self.note(&format!("gone {call} {}", now()));
        let mut wrappers = self.wrappers.lock().unwrap();
        wrappers.retain(|wrapper| wrapper.call != call);
        exit_code(child.wait().unwrap())
    }

    fn note(&self, line: &str) {
        append_line(&self.log(), line);
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
    fn kill_randomly(&self, seed: u64) -> usize {
        let mut rng = Rng(0x2545_F491_4F6C_DD1D ^ seed);
        let mut signals = 0;
        while !self.is_over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(3));
            let stopped = {
                // While the list is locked, no wrapper in it is waited for.
                let mut wrappers = self.wrappers.lock().unwrap();
                if wrappers.is_empty() {
                    continue;
                }
                let at = rng.below(wrappers.len());
                if wrappers[at].is_spared {
                    continue;
                }
                if rng.below(10) == 0 {
                    self.stop_or_continue(&mut wrappers, at);
                    continue;
                }
                let wrapper = &wrappers[at];
                let target = match rng.below(2) {
                    0 => Some(wrapper.pid),
                    _ => first_child(wrapper.pid),
                };
                let Some(target) = target else { continue };
                let signal = match rng.below(4) {
                    0 | 1 => Signal::KILL,
                    _ if wrapper.is_stopped => continue,
                    _ => Signal::STOP,
                };
                if signal == Signal::KILL {
                    if target == wrapper.pid {
                        self.note(&format!("gone {} {}", wrapper.call, now()));
                    }
                    if let Some(id) = identity(target) {
                        self.note(&format!("kill {id} {}", now()));
                    }
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

    /// Stops a waiter for long, or continues one that is.
    fn stop_or_continue(&self, wrappers: &mut [Wrapper], at: usize) {
        let stopped = wrappers.iter().filter(|other| other.is_stopped).count();
        let wrapper = &mut wrappers[at];
        if wrapper.is_stopped {
            self.note(&format!("cont {} {}", wrapper.call, now()));
            send(wrapper.pid, Signal::CONT);
            wrapper.is_stopped = false;
        } else if stopped < self.stopped_for_long.load(Ordering::Relaxed) {
            send(wrapper.pid, Signal::STOP);
            let mut found = None;
            wait_until("it is stopped, or has ended", || {
                found = state(wrapper.pid);
                found.as_deref().is_none_or(|state| "TZX".contains(state))
            });
            // What has a lock or the guard of the store is no waiter.
            wrapper.is_stopped = found.as_deref() == Some("T")
                && first_child(wrapper.pid).is_none()
                && !self.has_locked_the_store(wrapper.pid);
            if wrapper.is_stopped {
                self.note(&format!("stop {} {}", wrapper.call, now()));
            } else {
                send(wrapper.pid, Signal::CONT);
            }
        }
    }

    /// Whether a process has the kernel lock of the store or of a lock file in it.
    fn has_locked_the_store(&self, pid: u32) -> bool {
        let store = self.env.store();
        let mut inodes: HashSet<u64> = files_below(&store)
            .into_iter()
            .filter(|(path, _)| !path.starts_with(store.join(".onehold")))
            .map(|(_, inode)| inode)
            .collect();
        inodes.extend(fs::metadata(&store).map(|facts| facts.ino()));
        let locks = fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            // Of a waiter that wakes up the line has READ; of one that is blocked it has an arrow.
            words[1] == "FLOCK"
                && words[3] == "WRITE"
                && words[4] == pid.to_string()
                && words[5]
                    .rsplit(':')
                    .next()
                    .is_some_and(|inode| inodes.contains(&inode.parse().unwrap()))
        })
    }

    /// Reads the log as it grows, until the end of the test. What it saw when somebody waited for too long.
    fn observe(&self, has_ended: &AtomicBool) -> BTreeMap<u64, String> {
        let mut log = BufReader::new(fs::File::open(self.log()).unwrap());
        let (mut waits, mut line) = (Waits::default(), String::new());
        let mut seen = BTreeMap::new();
        while !has_ended.load(Ordering::Relaxed) {
            let due = now() + 300_000_000;
            std::thread::sleep(Duration::from_millis(300));
            // As much work as a call that starts its command.
            let control = self.env.shell("sh -c 'echo > control'").status();
            assert!(control.unwrap().success());
            self.note(&format!("lost {due} {}", now()));
            while log.read_line(&mut line).unwrap() > 0 && line.ends_with('\n') {
                waits.read(line.trim_end());
                line.clear();
            }
            let at = now();
            if !waits.late(at).is_empty() {
                let seen_now = format!("{}{}", waits.describe(at), self.queue());
                seen.insert(at, seen_now);
            }
        }
        seen
    }

    /// The files of the store, and the processes of the calls.
    fn queue(&self) -> String {
        let mut text = String::new();
        for (path, inode) in files_below(&self.env.store()) {
            let path = path.strip_prefix(self.env.store()).unwrap().display();
            writeln!(text, "inode {inode}: {path}").unwrap();
        }
        let reserved = fs::read_to_string(self.env.path("store/.onehold/waiting/reserved"));
        writeln!(text, "reserved: {reserved:?}").unwrap();
        let locks = fs::read_to_string("/proc/locks").unwrap();
        for Wrapper { pid, call, .. } in &*self.wrappers.lock().unwrap() {
            let (state, own) = (state(*pid).unwrap_or_default(), format!(" {pid} "));
            let system_call = fs::read_to_string(format!("/proc/{pid}/syscall"));
            let system_call = system_call.unwrap_or_default();
            write!(
                text,
                "call {call} is {pid}, {state}, in system call {system_call}"
            )
            .unwrap();
            let mut locks: Vec<&str> = locks.lines().filter(|line| line.contains(&own)).collect();
            locks.push("");
            text += &locks.join("\n");
        }
        text
    }
}

/// The regular files below a directory, with their inodes.
fn files_below(directory: &Path) -> Vec<(PathBuf, u64)> {
    let mut files = Vec::new();
    // They come and go.
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.metadata() {
            Ok(facts) if facts.is_dir() => files.extend(files_below(&entry.path())),
            Ok(facts) => files.push((entry.path(), facts.ino())),
            Err(_) => {}
        }
    }
    files.sort();
    files
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
    let mut owners: HashMap<&str, String> = HashMap::new();
    let mut open: HashMap<&str, Vec<Interval>> = HashMap::new();
    let mut done = Vec::new();
    for line in log.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let at: u64 = words[2].parse().unwrap();
        match words[0] {
            "call" => {
                let mut options = words.windows(2);
                if let Some(owner) = options.find(|pair| pair[0] == "--owner") {
                    owners.insert(words[1], owner[1].to_owned());
                }
            }
            "in" => {
                let slot = words.get(5).and_then(|slot| slot.parse().ok());
                let at_most = words.get(6).and_then(|at_most| at_most.parse().ok());
                let interval = Interval {
                    name: words[3].to_owned(),
                    owner: words.get(7).and_then(|call| owners.get(call)).cloned(),
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
fn history_violations(
    env: &TestEnv,
    seen: &[Interval],
    signals: usize,
    clocks: &Clocks,
) -> Vec<String> {
    // By the clock of the sections.
    let ahead = clocks.most_ahead;
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
    // A dead holder's hold ends with the time that was read before its processes were looked at: on a busy machine
    // a section that ended in between ended milliseconds later: 23 at a load of 13. That no two sections overlap is
    // known by their own times.
    let tolerance = 100_000_000 + clocks.apart();
    let mut found = violations_by_clock(&mut told, clocks.apart());
    let of_hold: HashMap<u64, &Interval> = told.iter().map(|hold| (hold.hold, hold)).collect();
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

/// How far the clock of the history was ahead of the clock of the sections, in nanoseconds. It is set and slewed
/// while this runs: where CI runs, by 10 ms in ten seconds.
struct Clocks {
    least_ahead: i64,
    most_ahead: i64,
}

impl Clocks {
    fn new() -> Self {
        let ahead = Self::ahead();
        Self {
            least_ahead: ahead,
            most_ahead: ahead,
        }
    }

    /// By the best of some readings: between two of them a process may have to wait for its processor.
    fn ahead() -> i64 {
        let read = || {
            let before = i64::try_from(now()).unwrap();
            let wall = chrono::Utc::now().timestamp_nanos_opt().unwrap();
            let after = i64::try_from(now()).unwrap();
            (after - before, wall - before)
        };
        let (_, ahead) = (0..10).map(|_| read()).min().unwrap();
        ahead
    }

    fn read_again(&mut self) {
        let ahead = Self::ahead();
        self.least_ahead = self.least_ahead.min(ahead);
        self.most_ahead = self.most_ahead.max(ahead);
    }

    fn apart(&self) -> u64 {
        u64::try_from(self.most_ahead - self.least_ahead).unwrap()
    }
}

fn seconds() -> u64 {
    let seconds = std::env::var("STRESS_SECONDS").ok();
    seconds.map_or(10, |seconds| seconds.parse().unwrap())
}

#[test]
fn critical_sections_never_overlap_under_random_kills_and_stops() {
    let workload = Workload::new();
    let config = workload.env.path(".config/onehold/config.toml");
    fs::create_dir_all(config.parent().unwrap()).unwrap();
    fs::write(
        config,
        "[defaults]\nhistory = true\njournal-size = \"1G\"\n",
    )
    .unwrap();
    let mut innocents = Innocents::all(&workload.env);
    let mut clocks = Clocks::new();
    let signals = std::thread::scope(|scope| {
        let killer = scope.spawn(|| workload.kill_randomly(0));
        for seed in 0..WORKERS {
            let workload = &workload;
            scope.spawn(move || workload.work(seed));
        }
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(seconds()) {
            std::thread::sleep(Duration::from_millis(20));
            clocks.read_again();
        }
        workload.is_over.store(true, Ordering::Relaxed);
        killer.join().unwrap()
    });
    let env = &workload.env;
    assert_eq!(innocents.end(env), [""; 0]);
    for name in NAMES {
        let code = env.code(["run", name, "-w", "20s", "--", "true"]);
        assert_eq!(code, 0, "{name} is stuck");
    }
    env.done(["cleanup"]);
    assert_eq!(env.left_in_store(), [""; 0]);
    let mut intervals = intervals(&fs::read_to_string(workload.log()).unwrap());
    let mut violations = violations(&mut intervals);
    violations.extend(history_violations(env, &intervals, signals, &clocks));
    println!(
        "{} invocations, {} critical sections, {signals} signals, clocks {} µs apart, {} violations",
        workload.invocations.load(Ordering::Relaxed),
        intervals.len(),
        clocks.apart() / 1_000,
        violations.len()
    );
    assert!(violations.is_empty(), "{}", violations.join("\n"));
    // A tenth of what an idle machine makes of it.
    assert!(intervals.len() > 30 && signals > 30);
}

/// How 16 workers ask for three locks and the child of one: exclusively, shared, by slots, as an owner, two locks at
/// once in either order, and with a place that is kept.
const SHARING: [&str; 18] = [
    "a",
    "-s a",
    "-s a",
    "-s a/1",
    "a/1",
    "--owner o a",
    "--owner o a/1",
    "--owner o --keep-place 10m a",
    "--owner p --keep-place 10m -s a c",
    "--slots 3 b",
    "--slots 3 b",
    "--slots 2 b",
    "b",
    "b a",
    "a b",
    "--slots 3 b c",
    "c",
    "--owner p --keep-place 10m c b",
];

/// A hold that lasts, in microseconds, and a waiter for it and for another lock, which is in nobody's way meanwhile.
const LONG: [[(&str, usize); 2]; 3] = [
    [("b", 6_000_000), ("b a", 0)],
    [("c", 6_000_000), ("c b", 0)],
    [("a/1", 6_000_000), ("a c", 0)],
];

impl Workload {
    /// Some seconds in which processes are killed and stopped at random; then those that are left are served. Waiters
    /// that were stopped stay so until then. The number of signals.
    fn share(&self, round: usize) -> usize {
        const WORKERS: usize = 16;
        self.is_over.store(false, Ordering::Relaxed);
        self.stopped_for_long.store(round % 3, Ordering::Relaxed);
        std::thread::scope(|scope| {
            let killer = scope.spawn(move || self.kill_randomly(round as u64));
            for worker in 0..WORKERS {
                scope.spawn(move || {
                    let seed = (round * WORKERS + worker + 1) as u64;
                    let mut rng = Rng(0x9E37_79B9_7F4A_7C15 ^ seed << 32);
                    while !self.is_over.load(Ordering::Relaxed) {
                        let asked = SHARING[rng.below(SHARING.len())];
                        let is_cut = asked.contains("--keep-place") && rng.below(2) == 0;
                        let wait = if is_cut { "100ms" } else { "45s" };
                        let code = self.run_as(asked, wait, &[], rng.below(20_000));
                        // It timed out, or it or its command was killed.
                        assert!([0, 7, -9, 137].contains(&code), "{asked}: {code}");
                    }
                });
            }
            std::thread::sleep(Duration::from_secs(1));
            for (asked, microseconds) in LONG[(round + round / 3) % 3] {
                scope.spawn(move || self.run_as(asked, SPARED, &[], microseconds));
                std::thread::sleep(Duration::from_millis(500));
            }
            std::thread::sleep(Duration::from_secs(1));
            self.is_over.store(true, Ordering::Relaxed);
            let signals = killer.join().unwrap();
            {
                let mut wrappers = self.wrappers.lock().unwrap();
                for at in 0..wrappers.len() {
                    if !wrappers[at].is_stopped && !wrappers[at].is_spared {
                        self.stop_or_continue(&mut wrappers, at);
                    }
                }
            }
            wait_until("those that are not stopped have ended", || {
                self.wrappers
                    .lock()
                    .unwrap()
                    .iter()
                    .all(|wrapper| wrapper.is_stopped)
            });
            let mut wrappers = self.wrappers.lock().unwrap();
            for at in 0..wrappers.len() {
                self.stop_or_continue(&mut wrappers, at);
            }
            signals
        })
    }
}

/// The longest stretches of each kind, and those that are too long with what was seen meanwhile.
fn waits_in_vain(stretches: &[Stretch], seen: &BTreeMap<u64, String>) -> Vec<String> {
    let mut longest: BTreeMap<(usize, &str), u64> = BTreeMap::new();
    for stretch in stretches {
        let longest = longest
            .entry((stretch.stopped, &stretch.words))
            .or_default();
        *longest = stretch.length().max(*longest);
    }
    for ((stopped, words), longest) in longest {
        let milliseconds = longest / 1_000_000;
        println!("{milliseconds:6} ms at most while {stopped} were stopped: {words}");
    }
    let too_long = stretches.iter().filter(|stretch| stretch.is_too_long());
    too_long
        .map(|stretch| {
            let mut meanwhile = seen.range(stretch.from..=stretch.to);
            let seen = meanwhile.next().map_or("", |(_, seen)| seen);
            format!("in vain: {stretch:?}\n{seen}")
        })
        .collect()
}

/// Rounds of 16 workers, for so many seconds.
fn share(seconds: u64) {
    let workload = Workload::new();
    let mut innocents = Innocents::all(&workload.env);
    let (begun, has_ended) = (Instant::now(), AtomicBool::new(false));
    let (signals, rounds, seen) = std::thread::scope(|scope| {
        let observer = scope.spawn(|| workload.observe(&has_ended));
        let (mut signals, mut rounds) = (0, 0);
        while rounds < 2 || begun.elapsed() < Duration::from_secs(seconds) {
            signals += workload.share(rounds);
            rounds += 1;
        }
        has_ended.store(true, Ordering::Relaxed);
        (signals, rounds, observer.join().unwrap())
    });
    let env = &workload.env;
    assert_eq!(innocents.end(env), [""; 0]);
    let code = env.code(["run", "a", "b", "c", "-w", "20s", "--", "true"]);
    assert_eq!(code, 0, "a lock is stuck");
    env.done(["cleanup"]);
    assert_eq!(env.left_in_store(), [""; 0]);
    let log = fs::read_to_string(workload.log()).unwrap();
    let mut intervals = intervals(&log);
    let mut violations = violations(&mut intervals);
    violations.extend(waits_in_vain(&Waits::stretches(&log), &seen));
    let side_by_side = crate::harness::intervals::overlapping(&intervals, 0)
        .filter(|(one, other)| one.name == other.name)
        .count();
    println!(
        "{rounds} rounds, {} critical sections, {side_by_side} side by side, {signals} signals, {} violations",
        intervals.len(),
        violations.len()
    );
    assert!(violations.is_empty(), "{}", violations.join("\n"));
    assert!(intervals.len() > 8 * rounds && side_by_side > 0);
}

#[test]
fn nobody_waits_in_vain_and_holds_never_overlap_wrongly_under_random_kills_and_stops() {
    share(seconds());
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
fn nobody_waits_in_vain_for_three_minutes() {
    share(180);
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
    let log = "in 1 10 a 2\nout 1 20\nin 2 15 a 1\nout 2 30\n";
    for (error, expected) in [(0, 2), (4, 2), (5, 1), (6, 0)] {
        let found = violations_by_clock(&mut intervals(log), error);
        assert_eq!(found.len(), expected, "{found:?}");
    }
}

/// The calls that waited for too long. Times are in seconds.
fn found_in_vain(log: &str) -> Vec<usize> {
    let lines = log.split("; ").map(|line| {
        let mut words: Vec<&str> = line.split(' ').collect();
        let at = format!("{}000000000", words[2]);
        words[2] = &at;
        words.join(" ") + "\n"
    });
    let stretches = Waits::stretches(&lines.collect::<String>());
    let too_long = stretches.iter().filter(|stretch| stretch.is_too_long());
    too_long.map(|stretch| stretch.call).collect()
}

#[test]
fn observer_finds_waiters_that_could_have_taken_their_locks() {
    let held = "call 1 0 a; in p 1 a 1 - - 1; call 2 1 a; call 3 1 a";
    let shared = "call 1 0 -s a; in p 1 a 1 0 - 1; call 2 1";
    let slots =
        "call 1 0 --slots 2 a; in p 1 a 1 0 2 1; call 2 0 --slots 2 a; in q 1 a 2 1 2 2; call 3 1";
    for (log, expected) in [
        ("call 1 0 a; in p 2 a 1 - - 1".to_owned(), &[][..]),
        ("call 1 0 a; gone 1 3".to_owned(), &[1]),
        ("call 1 0 a; lost 2000000000 3; gone 1 3".to_owned(), &[]),
        ("call 1 0 a; lost 2000000000 4; gone 1 3".to_owned(), &[]),
        ("call 1 1 a; lost 0 1; gone 1 4".to_owned(), &[1]),
        (format!("{held}; gone 2 9; gone 3 9"), &[]),
        (format!("{held}; out p 9; gone 2 9; in q 11 a 3 - - 3"), &[]),
        (format!("{held}; kill p 9; gone 2 9; in q 12 a 3 - - 3"), &[3]),
        // Two that could: one of them takes it.
        (format!("{held}; out p 9; in q 9 a 2 - - 2; gone 3 20"), &[]),
        // One that is stopped, before or while the lock is free.
        (format!("{held}; stop 2 2; out p 9; in q 21 a 3 - - 3"), &[]),
        (format!("{held}; stop 2 2; out p 9; in q 22 a 3 - - 3"), &[3]),
        (format!("{held}; stop 2 2; gone 2 3; out p 9; in q 12 a 3 - - 3"), &[3]),
        (format!("{held}; out p 9; stop 2 10; in q 12 a 3 - - 3"), &[]),
        (format!("{held}; gone 3 2; stop 2 2; out p 3; cont 2 30; gone 2 32"), &[]),
        (format!("{held}; gone 3 2; stop 2 2; out p 3; cont 2 30; gone 2 33"), &[2]),
        // It waits for another lock.
        (format!("{held}; call 4 1 b; stop 4 2; out p 9; gone 2 9; gone 3 12"), &[3]),
        // Readers, a writer, and a reader behind it.
        (format!("{shared} -s a; gone 2 4"), &[2]),
        (format!("{shared} a; gone 2 4"), &[]),
        (format!("{shared} a; call 3 2 -s a; gone 3 6"), &[]),
        (format!("{shared} a; call 3 2 -s a; stop 2 3; gone 3 15"), &[]),
        (format!("{shared} a; call 3 2 -s a; stop 2 3; gone 3 16"), &[3]),
        // A later writer is in nobody's way.
        (format!("{shared} -s a; call 3 4 a; gone 2 9"), &[2]),
        // Slots.
        (format!("{slots} --slots 2 a; gone 3 9"), &[]),
        (format!("{slots} --slots 3 a; gone 3 9"), &[3]),
        (format!("{slots} --slots 2 a; out q 2; gone 3 9"), &[3]),
        // Two names, a parent, and a child of one owner.
        (format!("{held}; gone 2 1; gone 3 1; call 4 1 b a; gone 4 9"), &[]),
        (format!("{held}; gone 2 1; gone 3 1; call 4 1 a/1; gone 4 9"), &[]),
        (
            "call 1 0 --owner o a/1; in p 1 a/1 1 - - 1; call 2 1 --owner o a; call 3 1 a; gone 2 9".to_owned(),
            &[2],
        ),
    ] {
        assert_eq!(found_in_vain(&log), expected, "{log}");
    }
}
