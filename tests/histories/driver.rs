//! Five clients of one store, the signals and faults beside them, and what must be so afterwards.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::agreement;
use crate::client::Told;
use crate::harness::seen::{now, processes_with};
use crate::harness::{Rng, TestEnv, json_object, output, program};
use crate::history::{Call, History, Id, Outcome, SECOND, Store, Verb};
use crate::plan::{self, NAMES, Pace, Plan};
use crate::signals::Signals;
use crate::steps::{is_named, judge};

const CLIENTS: usize = 5;

/// When a server was out of order, or a client was cut off from it.
pub type Outages = Mutex<Vec<(u64, u64)>>;

pub struct Driver {
    pub env: TestEnv,
    /// Where the store is, if not in the environment.
    pub dir: Option<String>,
    pub store: Store,
    pub pace: Pace,
    /// What each run gets beyond what is planned.
    pub run_options: &'static [&'static str],
    /// Between two signals, in milliseconds: at least, and how much more at most.
    pub between_signals: (u64, usize),
    pub signals: Signals,
    pub outages: Outages,
    /// The hold numbers of calls, and their first names.
    pub numbers: Mutex<HashMap<Id, u64>>,
    pub names: Mutex<HashMap<Id, String>>,
    pub token: String,
    /// Address space that the program needs to say its version, in bytes.
    pub least_memory: u64,
    /// After which it is over, too.
    pub most_calls: Id,
    told: Mutex<Vec<Told>>,
    next: AtomicUsize,
    has_ended: AtomicBool,
}

/// How long it lasts.
pub fn seconds() -> u64 {
    let seconds = std::env::var("ONEHOLD_HISTORY_SECONDS").ok();
    seconds.map_or(30, |seconds| seconds.parse().unwrap())
}

/// The choices, other ones each time.
pub fn seed() -> u64 {
    let seed = std::env::var("ONEHOLD_HISTORY_SEED").ok();
    let seed = seed.map_or_else(|| now() % 1_000_000, |seed| seed.parse().unwrap());
    println!("ONEHOLD_HISTORY_SEED={seed}");
    seed
}

pub fn generator(seed: u64, of: u64) -> Rng {
    Rng((seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (of + 1) << 32)
}

impl Driver {
    pub fn new(env: TestEnv, store: Store, pace: Pace) -> Self {
        let mut driver = Self {
            env,
            dir: None,
            store,
            pace,
            run_options: &[],
            between_signals: (10, 80),
            signals: Signals::default(),
            outages: Mutex::default(),
            numbers: Mutex::default(),
            names: Mutex::default(),
            token: format!("{}.{}", std::process::id(), now()),
            least_memory: 0,
            most_calls: Id::MAX,
            told: Mutex::default(),
            // No hold has the number 0.
            next: AtomicUsize::new(1),
            has_ended: AtomicBool::new(false),
        };
        if pace.has_wants {
            driver.least_memory = driver.least_memory();
        }
        fs::create_dir(driver.work()).unwrap();
        let config = driver.env.path(".config/onehold/config.toml");
        fs::create_dir_all(config.parent().unwrap()).unwrap();
        let text = "[defaults]\nhistory = true\njournal-size = \"1G\"\n";
        fs::write(config, text).unwrap();
        driver
    }

    pub fn onehold(&self, words: &[&str]) -> Command {
        let mut command = self.env.onehold(words);
        if let Some(dir) = &self.dir {
            command.env("ONEHOLD_DIR", dir);
        }
        command
    }

    fn least_memory(&self) -> u64 {
        const PAGE: u64 = 4096;
        let is_enough = |pages: u64| {
            let mut command = self.env.command("prlimit");
            command.arg(format!("--as={}", pages * PAGE)).arg(program());
            output(command.arg("--version")).status.success()
        };
        let (mut little, mut enough) = (0, 1 << 20);
        assert!(is_enough(enough));
        while enough - little > 1 {
            let middle = u64::midpoint(little, enough);
            if is_enough(middle) {
                enough = middle;
            } else {
                little = middle;
            }
        }
        enough * PAGE
    }

    /// What `history` says: of a server, too, whatever way it is reached by.
    fn past(&self) -> Vec<Value> {
        let said = output(&mut self.onehold(&["history", "--json"]));
        let object = json_object(&said.stdout);
        object["holds"].as_array().unwrap().clone()
    }

    /// Where sections write.
    pub fn work(&self) -> PathBuf {
        self.env.path("work")
    }

    pub fn is_over(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
            || self.next.load(Ordering::Relaxed) > self.most_calls
    }

    /// Lets the clients call, each the store by one of these names, and something go wrong with them.
    pub fn run(&self, seed: u64, dirs: &[String], goes_wrong: impl FnOnce(&Self)) {
        std::thread::scope(|scope| {
            let senders =
                [100, 101].map(|of| scope.spawn(move || self.send_signals(generator(seed, of).0)));
            for client in 0..CLIENTS {
                let dir = dirs.get(client).or(self.dir.as_ref()).map(String::as_str);
                scope.spawn(move || self.be_client(generator(seed, client as u64), dir));
            }
            scope.spawn(|| {
                let begun = Instant::now();
                while begun.elapsed() < Duration::from_secs(seconds()) && !self.is_over() {
                    std::thread::sleep(Duration::from_millis(20));
                }
                self.has_ended.store(true, Ordering::Relaxed);
            });
            // In this thread, since servers that are started end with their thread.
            goes_wrong(self);
            let sent: usize = senders
                .into_iter()
                .map(|sender| sender.join().unwrap())
                .sum();
            println!("{sent} signals");
        });
    }

    fn be_client(&self, mut rng: Rng, dir: Option<&str>) {
        // A client that fails ends the others.
        let ends = EndsAll(&self.has_ended);
        let mut own: Vec<Call> = Vec::new();
        while !self.is_over() {
            let id = self.next_id();
            let plan = plan::next(id, &mut rng, &self.pace, &own);
            if let Some(take) = plan.take() {
                self.names.lock().unwrap().insert(id, take.names[0].clone());
            }
            let told = self.call(id, plan, dir);
            if let Outcome::Took(number) = told.call.outcome {
                self.numbers.lock().unwrap().insert(id, number);
                if matches!(told.call.verb, Verb::Lease(..)) {
                    own.push(told.call.clone());
                }
            }
            if matches!(told.call.verb, Verb::Release(_)) && rng.below(2) == 0 {
                own.clear();
            }
            if own.len() > 3 {
                own.remove(0);
            }
            self.note(told);
        }
        std::mem::forget(ends);
    }

    fn next_id(&self) -> Id {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn note(&self, told: Told) {
        self.told.lock().unwrap().push(told);
    }

    /// Breaks all that is there, as a person does where nothing is taken over.
    pub fn break_all(&self) {
        for name in NAMES {
            let verb = Verb::Break {
                name: name.to_owned(),
                by_force: false,
            };
            let told = self.call(self.next_id(), Plan::of(verb), self.dir.as_deref());
            self.note(told);
        }
    }

    /// Whether all that is known agrees. The names of what is left, as `left` finds it once all has ended.
    #[track_caller]
    pub fn conclude(&self, left: impl Fn() -> Vec<String>) {
        let mark = format!("HISTORY_CALL={}-", self.token);
        let running = processes_with(|variables| {
            variables.iter().any(|one| one.starts_with(mark.as_bytes()))
        });
        let mut faults: Vec<String> = Vec::new();
        if !running.is_empty() {
            faults.push(format!("processes are left: {running:?}"));
        }
        // What has expired or died is taken over: none is stuck.
        if self.store == Store::NO_TAKEOVER {
            self.break_all();
        }
        let begun = Instant::now();
        for name in NAMES {
            let words = ["run", "-w", "60", name, "--", "true"];
            let output = output(&mut self.onehold(&words));
            if !output.status.success() {
                faults.push(format!("{name} is stuck: {output:?}"));
            }
        }
        println!("nothing is stuck after {:?}", begun.elapsed());
        let cleanup = output(&mut self.onehold(&["cleanup"]));
        assert!(cleanup.status.success(), "{cleanup:?}");
        let left = left();
        if !left.is_empty() {
            faults.push(format!("left in the store: {left:?}"));
        }
        let mut told = self.told.lock().unwrap();
        told.sort_by_key(|told| told.call.called);
        let past = self.past();
        let outages = self.outages.lock().unwrap();
        faults.extend(agreement::faults(&told, &past, self.store, &outages));
        let history = History {
            store: self.store,
            calls: told.iter().map(|told| told.call.clone()).collect(),
        };
        // Before the verdict, which may take long.
        let file =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("history-{}", self.token));
        fs::write(&file, history.to_text()).unwrap();
        let begun = Instant::now();
        let verdict = judge(&history);
        println!("{}", summary(&told));
        match &verdict {
            Ok(effort) => println!("linearizable: {effort:?}, in {:?}", begun.elapsed()),
            Err(fault) => {
                // With exit codes and signals, which the history does not have.
                let named = told.iter().filter(|told| is_named(told.call.id, fault));
                faults.splice(0..0, named.map(|told| format!("{told:?}")));
                faults.insert(0, format!("not the history of a lock, {fault}"));
            }
        }
        if !faults.is_empty() {
            let count = faults.len();
            faults.truncate(20);
            panic!(
                "{count} faults; ONEHOLD_HISTORY_FILE={}\n{}",
                file.display(),
                faults.join("\n")
            );
        }
        fs::remove_file(file).unwrap();
        let sections = history
            .calls
            .iter()
            .filter(|call| call.section.is_some())
            .count();
        // Fewer than an idle machine makes in a tenth of the time.
        let least = usize::try_from(seconds() / 5).unwrap();
        assert!(sections > least, "{sections} sections are too few");
    }
}

/// How often what happened.
fn summary(told: &[Told]) -> String {
    let mut counts: std::collections::BTreeMap<String, usize> = std::collections::BTreeMap::new();
    for Told { call, code, .. } in told {
        let verb = format!("{:?}", call.verb);
        let verb = verb.split(['(', ' ']).next().unwrap().to_lowercase();
        *counts.entry(format!("{verb} {code}")).or_default() += 1;
    }
    let sections = told
        .iter()
        .filter(|told| told.call.section.is_some())
        .count();
    let last = told.last().map_or(0, |told| told.call.returned);
    let lasted = last.saturating_sub(told.first().map_or(0, |told| told.call.called)) / SECOND;
    format!(
        "{} calls, {sections} sections, in {lasted} s: {counts:?}",
        told.len()
    )
}

struct EndsAll<'a>(&'a AtomicBool);

impl Drop for EndsAll<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn try_files(env: TestEnv, pace: Pace) {
    let driver = Driver::new(env, Store::FILES, pace);
    driver.run(seed(), &[], |_| ());
    driver.conclude(|| [driver.env.left_in_store(), driver.env.left_in_queues()].concat());
}

#[test]
#[ignore = "takes what ONEHOLD_HISTORY_SECONDS says"]
fn history_of_a_directory_on_disk_is_that_of_locks() {
    try_files(TestEnv::on_disk(), Pace::FILES);
}

#[test]
#[ignore = "takes what ONEHOLD_HISTORY_SECONDS says"]
fn history_of_a_directory_in_memory_is_that_of_locks() {
    // It may be missing, or of root alone.
    let place = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    try_files(TestEnv::at(place.unwrap()), Pace::FILES);
}

#[test]
#[ignore = "takes what ONEHOLD_HISTORY_SECONDS says"]
fn history_of_calls_with_few_descriptors_or_little_memory_is_that_of_locks() {
    let pace = Pace {
        has_wants: true,
        ..Pace::FILES
    };
    try_files(TestEnv::on_disk(), pace);
}

#[test]
#[ignore = "judges the file that ONEHOLD_HISTORY_FILE names"]
fn judge_a_file() {
    let file = std::env::var("ONEHOLD_HISTORY_FILE").expect("ONEHOLD_HISTORY_FILE names a history");
    let history = History::from_text(&fs::read_to_string(file).unwrap());
    let verdict = judge(&history);
    assert!(verdict.is_ok(), "{}", verdict.unwrap_err());
}
