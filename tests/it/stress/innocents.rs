//! Holds are shared, broken, killed and stopped; beside them unrelated runs, waiters and leases come and go in the same
//! store, on a filesystem that uses the number of a removed file again. To those nothing happens.

use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::{first_child, seconds, send};
use crate::harness::innocents::Innocents;
use crate::harness::{Rng, Signal, TestEnv, exit_code};

/// How the locks are asked for that are tried, each with a command that ends by TERM, and with one that ends by KILL.
const TRIED: [&str; 7] = ["-s a", "--slots 2 a", "a", "a", "-s b", "b", "a b"];
const COMMANDS: [&str; 3] = [
    "exec sleep 0.2",
    "trap '' TERM; exec sleep 1",
    "trap '' TERM; exec sleep 1",
];

/// How innocents ask. Those with the same name wait for each other.
const INNOCENT: [&str; 7] = [
    "run innocent-0",
    "run innocent-0",
    "run -s innocent-1",
    "run --slots 1 innocent-2",
    "run innocents/3",
    "run innocent-4 innocent-5",
    "acquire innocent-6 --ttl 1d",
];

const CALLERS: usize = 10;
const INNOCENTS: usize = 5;

struct Trials {
    env: TestEnv,
    is_over: AtomicBool,
    /// Not yet waited for, so that the PID is not another process's.
    wrappers: Mutex<Vec<u32>>,
    tried: AtomicUsize,
    signals: AtomicUsize,
    breaks: AtomicUsize,
    innocents: AtomicUsize,
    faults: Mutex<Vec<String>>,
}

impl Trials {
    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    fn call(&self, rng: &mut Rng) {
        while self.goes_on() {
            let words = format!(
                "run -q --wait 3s --kill-after 300ms {} -- sh -c",
                TRIED[rng.below(TRIED.len())]
            );
            let mut command = self.env.onehold(words.split(' '));
            command.arg(COMMANDS[rng.below(COMMANDS.len())]);
            command.stdout(Stdio::null()).stderr(Stdio::null());
            // Under the lock: in the list is what has not been waited for.
            let mut wrappers = self.wrappers.lock().unwrap();
            let mut child = command.spawn().unwrap();
            wrappers.push(child.id());
            drop(wrappers);
            loop {
                let mut wrappers = self.wrappers.lock().unwrap();
                if child.try_wait().unwrap().is_some() {
                    wrappers.retain(|wrapper| *wrapper != child.id());
                    break;
                }
                drop(wrappers);
                std::thread::sleep(Duration::from_millis(3));
            }
            self.tried.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// TERM, and KILL a moment later, as a manager of services does; or KILL alone; or STOP, for a moment.
    fn signal(&self, rng: &mut Rng) {
        while self.goes_on() {
            let pause = |rng: &mut Rng, below| {
                std::thread::sleep(Duration::from_millis(rng.below(below) as u64));
            };
            pause(rng, 30);
            let victim = {
                let wrappers = self.wrappers.lock().unwrap();
                if wrappers.is_empty() {
                    continue;
                }
                wrappers[rng.below(wrappers.len())]
            };
            let is_holder = first_child(victim).is_some();
            let (first, second) = match rng.below(6) {
                0 => (Signal::STOP, Signal::CONT),
                1 => (Signal::KILL, Signal::KILL),
                _ if is_holder => (Signal::TERM, Signal::KILL),
                _ => continue,
            };
            for signal in [first, second] {
                let wrappers = self.wrappers.lock().unwrap();
                if wrappers.contains(&victim) {
                    send(victim, signal);
                    self.signals.fetch_add(1, Ordering::Relaxed);
                }
                drop(wrappers);
                pause(rng, 250);
            }
        }
    }

    /// Whether as much has happened as on an idle machine happens at once.
    fn are_many(&self) -> bool {
        self.innocents.load(Ordering::Relaxed) > 50 && self.signals.load(Ordering::Relaxed) > 20
    }

    fn break_some(&self, rng: &mut Rng) {
        while self.goes_on() {
            std::thread::sleep(Duration::from_millis(rng.below(400) as u64));
            let words = ["break -y a --all", "break -y b --all", "cleanup"][rng.below(3)];
            self.env.output(words.split(' '));
            self.breaks.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// One innocent after the other.
    fn live(&self, rng: &mut Rng) {
        while self.goes_on() {
            let words = INNOCENT[rng.below(INNOCENT.len())];
            let mut all: Vec<&str> = words.split(' ').collect();
            all.splice(1..1, ["--wait", "1m"]);
            let seconds = ["0.002", "0.02", "0.1"][rng.below(3)];
            if all[0] == "run" {
                all.extend(["--", "sleep", seconds]);
            }
            let output = self.env.output(&all);
            self.expect_success(words, &output);
            if all[0] == "acquire" {
                let hold = String::from_utf8(output.stdout).unwrap();
                let release = ["release", all[3], "--hold", hold.trim(), "--json"];
                let mut released = self.env.output(release);
                // On a busy machine the one that has the store may get no processor for 10 s.
                for _ in 0..5 {
                    if !String::from_utf8_lossy(&released.stdout).contains("STORE_BUSY") {
                        break;
                    }
                    released = self.env.output(release);
                }
                self.expect_success(&release.join(" "), &released);
            }
            self.innocents.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn expect_success(&self, words: &str, output: &std::process::Output) {
        let code = exit_code(output.status);
        if code != 0 {
            let said = String::from_utf8_lossy(&output.stderr);
            let fault = format!("`{words}` ends with {code}: {said}");
            self.faults.lock().unwrap().push(fault);
        }
    }
}

fn try_beside_innocents(seconds: u64) {
    let trials = Trials {
        env: TestEnv::on_disk(),
        is_over: AtomicBool::new(false),
        wrappers: Mutex::default(),
        tried: AtomicUsize::new(0),
        signals: AtomicUsize::new(0),
        breaks: AtomicUsize::new(0),
        innocents: AtomicUsize::new(0),
        faults: Mutex::default(),
    };
    let trials = &trials;
    // Those that stay all the time.
    let mut innocents = Innocents::all(&trials.env);
    let stay = innocents.count();
    std::thread::scope(|scope| {
        let start = |act: fn(&Trials, &mut Rng), count: usize, seed: u64| {
            for number in 0..count as u64 {
                let mut rng = Rng(0x9E37_79B9_7F4A_7C15 ^ (seed + number + 1) << 32);
                scope.spawn(move || act(trials, &mut rng));
            }
        };
        start(Trials::call, CALLERS, 0);
        start(Trials::live, INNOCENTS, 100);
        start(Trials::signal, 2, 200);
        start(Trials::break_some, 1, 300);
        let begun = Instant::now();
        let enough = Duration::from_secs(seconds);
        // A busy machine needs longer for as many.
        while begun.elapsed() < enough || !trials.are_many() && begun.elapsed() < 10 * enough {
            std::thread::sleep(Duration::from_millis(20));
        }
        trials.is_over.store(true, Ordering::Relaxed);
    });
    let env = &trials.env;
    let mut faults = trials.faults.lock().unwrap();
    faults.extend(innocents.end(env));
    let count = |number: &AtomicUsize| number.load(Ordering::Relaxed);
    println!(
        "{} innocents beside {} runs, {} signals, {} breaks and cleanups: {} harmed",
        count(&trials.innocents) + stay,
        count(&trials.tried),
        count(&trials.signals),
        count(&trials.breaks),
        faults.len(),
    );
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(trials.are_many());
    let code = env.code(["run", "a", "b", "-w", "20s", "--", "true"]);
    assert_eq!(code, 0, "a lock is stuck");
    env.done(["cleanup"]);
    assert_eq!(env.left_in_store(), [""; 0]);
}

#[test]
fn nothing_happens_to_innocents_beside_holds_that_are_shared_broken_and_killed() {
    try_beside_innocents(seconds());
}
