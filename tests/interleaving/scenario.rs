//! Pairs of invocations on one store, and what must be true after each order of their calls.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::calls::{Access, Call};
use crate::cluster::On;
use crate::flaws::Flaw;
use crate::harness;
use crate::scene::Engine;
use crate::scheduler::{COMMAND, Scheduler, seccomp_filter};
use crate::start::Launcher;

/// See `scenarios.txt`.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub name: String,
    prepare: String,
    /// Before each trial: it leaves processes.
    before_each: String,
    after_each: String,
    pub processes: Vec<Vec<String>>,
    codes: Vec<Vec<i32>>,
    succeed: usize,
    left: Vec<String>,
    probe: Option<String>,
    check: String,
    never: Vec<Vec<i32>>,
    /// Whether the lock goes to the one that has waited longest.
    in_order: bool,
    /// How long all may sleep.
    time: Duration,
    /// The server that has the store.
    pub engine: Option<Engine>,
}

impl Scenario {
    /// Whether all processes of it are under the scheduler.
    pub fn is_closed(&self) -> bool {
        self.before_each.is_empty() && self.engine.is_none()
    }

    /// How long to wait for what is not.
    fn patience(&self) -> Duration {
        Duration::from_millis(if self.engine.is_some() { 2_000 } else { 0 })
    }

    /// `SCENARIO PROCESS VERB`.
    pub fn invocation(&self, process: usize) -> String {
        let words = &self.processes[process];
        // The value of an option is behind it.
        let verb = &words[if words[0].starts_with('-') { 2 } else { 0 }];
        let letter = char::from(b'A' + process as u8);
        format!("{} {letter} {verb}", self.name)
    }

    /// Its invocations with each exit code that they may have.
    pub fn ends(&self) -> Vec<(String, i32)> {
        let numbered = self.codes.iter().enumerate();
        let with = |(number, codes): (usize, &Vec<i32>)| {
            let codes = codes.clone().into_iter();
            codes
                .map(|code| (self.invocation(number), code))
                .collect::<Vec<_>>()
        };
        numbered.flat_map(with).collect()
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn numbers(text: &str) -> Vec<i32> {
    words(text)
        .iter()
        .map(|word| word.parse().unwrap())
        .collect()
}

fn engine_of(text: &str) -> Engine {
    let named = |engine: &Engine| format!("{engine:?}").eq_ignore_ascii_case(text);
    let engines = [Engine::Etcd, Engine::Postgres];
    engines.into_iter().find(named).unwrap()
}

pub fn scenarios() -> Vec<Scenario> {
    let mut scenarios: Vec<Scenario> = Vec::new();
    for line in include_str!("scenarios.txt").lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix('[') {
            scenarios.push(Scenario {
                name: name.trim_end_matches(']').to_owned(),
                prepare: String::new(),
                before_each: String::new(),
                after_each: String::new(),
                processes: Vec::new(),
                codes: Vec::new(),
                succeed: 0,
                left: Vec::new(),
                probe: Some("run a -- $X".to_owned()),
                check: String::new(),
                never: Vec::new(),
                in_order: false,
                time: Duration::ZERO,
                engine: None,
            });
            continue;
        }
        let scenario = scenarios.last_mut().unwrap();
        let (key, value) = line.split_once('=').unwrap();
        let (key, value) = (key.trim(), value.trim());
        match key {
            "prepare" => value.clone_into(&mut scenario.prepare),
            "before each" => value.clone_into(&mut scenario.before_each),
            "after each" => value.clone_into(&mut scenario.after_each),
            "codes" => scenario.codes = value.split('|').map(numbers).collect(),
            "succeed" => scenario.succeed = value.parse().unwrap(),
            "left" => scenario.left = words(value),
            "probe" => scenario.probe = (value != "none").then(|| value.to_owned()),
            "check" => value.clone_into(&mut scenario.check),
            "never" => {
                let outcome = |text: &str| text.split('|').flat_map(numbers).collect();
                scenario.never = value.split(';').map(outcome).collect();
            }
            "in order" => scenario.in_order = value == "yes",
            "store" => scenario.engine = Some(engine_of(value)),
            "time" => scenario.time = Duration::from_millis(value.parse().unwrap()),
            _ => {
                assert_eq!(key.len(), 1, "{line}");
                scenario.processes.push(words(value));
            }
        }
    }
    scenarios
}

#[test]
fn no_two_scenarios_are_the_same() {
    let scenarios = scenarios();
    let mut known = BTreeMap::new();
    for scenario in &scenarios {
        let mut processes = scenario.processes.clone();
        processes.sort();
        let same = known.insert(
            (
                &scenario.prepare,
                &scenario.before_each,
                processes,
                scenario.engine.map(|engine| engine as u8),
            ),
            &scenario.name,
        );
        assert_eq!(same, None, "{}", scenario.name);
    }
}

/// The store, and a directory beside it for locks by path.
const DIRECTORIES: [&str; 2] = ["s", "p"];

/// The directory of the trials of one scheduler.
pub struct Place {
    root: PathBuf,
    launcher: Launcher,
    /// The store of the trial, if a server has it.
    on: RefCell<Option<On>>,
}

/// A point at which a process was chosen.
#[derive(PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Step {
    pub ready: Vec<String>,
    pub chosen: String,
    /// Whether another choice than this one would have been a preemption.
    pub goes_on: bool,
    pub text: String,
    pub accesses: Vec<Access>,
}

#[derive(Default, Serialize, Deserialize)]
pub struct Trial {
    #[serde(skip)]
    pub steps: Vec<Step>,
    pub codes: Vec<Option<i32>>,
    pub faults: Vec<String>,
    /// For each process what it said, without what differs from trial to trial.
    pub said: Vec<String>,
    /// Whether the schedule named a process that could not go on.
    pub diverged: bool,
    pub planted: usize,
    /// With what each step did, if that was asked for.
    #[serde(skip)]
    pub log: Vec<String>,
}

/// At the step of that number, the process of that name goes on.
pub type Schedule = Vec<(usize, String)>;

impl Place {
    pub fn new(root: &Path) -> Self {
        let root = root.canonicalize().unwrap();
        fs::create_dir(root.join("home")).unwrap();
        let launcher = Launcher::new(seccomp_filter());
        let on = RefCell::new(None);
        Self { root, launcher, on }
    }

    fn shell(&self, script: &str) -> Command {
        let mut command = Command::new("bash");
        // In the middle of execve(2) a process has no command line.
        let start =
            "start() { sleep 99 & P=$!; until grep -q sleep /proc/$P/cmdline; do :; done; }";
        command.args(["-ec", &format!("{start}; {script}")]);
        self.set_environment(&mut command);
        command
    }

    fn set_environment(&self, command: &mut Command) {
        let store = match &*self.on.borrow() {
            Some(on) => on.dir.clone().into(),
            None => self.root.join("s"),
        };
        command
            .current_dir(&self.root)
            .env_clear()
            .env("HOME", self.root.join("home"))
            .env("ONEHOLD_DIR", store)
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("TZ", "UTC")
            .env("O", harness::program())
            .stdin(std::process::Stdio::null());
    }

    fn command(&self, text: &[String]) -> Command {
        let mut command = Command::new(harness::program());
        for word in text {
            let section = match word.as_str() {
                "$X" => ["w", "x"],
                "$Y" => ["w2", "x"],
                "$S" => ["w", "s"],
                "$F" => ["w", "f"],
                "$1" => ["w", "1"],
                "$2" => ["w", "2"],
                _ => {
                    command.arg(word);
                    continue;
                }
            };
            command.arg(COMMAND).args(section);
        }
        self.set_environment(&mut command);
        command
    }

    fn template(&self, directory: &str) -> PathBuf {
        self.root.join("templates").join(directory)
    }

    pub fn prepare(&self, scenario: &Scenario) {
        for directory in DIRECTORIES.iter().chain(&["templates"]) {
            let _ = fs::remove_dir_all(self.root.join(directory));
        }
        if !scenario.prepare.is_empty() {
            self.script(&scenario.prepare);
        }
        fs::create_dir(self.root.join("templates")).unwrap();
        for directory in DIRECTORIES {
            let made = self.root.join(directory);
            if made.exists() {
                copy(&made, &self.template(directory), &mut BTreeMap::new());
            }
        }
    }

    fn script(&self, script: &str) {
        // Its output goes to a file, which processes that it leaves may keep open.
        let output = fs::File::create(self.root.join("home/out")).unwrap();
        let mut shell = self.shell(script);
        shell.stdout(output.try_clone().unwrap()).stderr(output);
        let said = || fs::read_to_string(self.root.join("home/out")).unwrap();
        assert!(shell.status().unwrap().success(), "{script}: {}", said());
    }

    /// One trial: the schedule says where another process goes on than by the rule. By the rule the same one goes
    /// on, or else the first that can.
    pub fn trial(
        &self,
        scenario: &Scenario,
        schedule: &[(usize, String)],
        flaw: Option<Flaw>,
        logs: bool,
    ) -> Trial {
        for directory in DIRECTORIES {
            let (template, made) = (self.template(directory), self.root.join(directory));
            if template.exists() {
                // The directory itself stays: the records in it name its number.
                empty(&made);
                copy(&template, &made, &mut BTreeMap::new());
            } else {
                let _ = fs::remove_dir_all(&made);
            }
        }
        // Below a prefix of its own.
        *self.on.borrow_mut() = scenario.engine.map(On::of);
        if !scenario.before_each.is_empty() {
            self.script(&scenario.before_each);
        }
        let mut trial = Trial::default();
        let mut scheduler = Scheduler::new(&self.root, scenario.processes.clone(), flaw);
        for (number, text) in scenario.processes.iter().enumerate() {
            let output = fs::File::create(self.root.join(format!("out.{number}"))).unwrap();
            scheduler.start(&self.launcher, &self.command(text), &output);
        }
        let mut now: Option<String> = None;
        let mut next = schedule.iter().peekable();
        while !scheduler.has_ended() {
            if trial.steps.len() > 3000 || scheduler.hung {
                let states = scheduler.states();
                trial.faults.push(format!("no end: {states}"));
                break;
            }
            let ready = scheduler.ready();
            if ready.is_empty() {
                if logs {
                    trial
                        .log
                        .push(format!("      time passes: {}", scheduler.states()));
                }
                // What is not under the scheduler has its own time.
                if !scenario.is_closed() && scheduler.waits_for_others(scenario.patience()) {
                    continue;
                }
                let states = scheduler.states();
                if !scheduler.let_time_pass() || scheduler.passed > Duration::from_mins(2) {
                    trial
                        .faults
                        .push(format!("nothing ends the wait of {states}"));
                    break;
                }
                if scheduler.passed > scenario.time {
                    trial
                        .faults
                        .push(format!("nothing but time ends the wait of {states}"));
                    break;
                }
                continue;
            }
            let at = trial.steps.len();
            let names: Vec<String> = ready.iter().map(|(name, _)| name.clone()).collect();
            let same = ready.iter().find(|(name, _)| Some(name) == now.as_ref());
            // A command may last for any time: to leave one is no preemption.
            let goes_on = same.is_some_and(|(_, call)| !call.leaves_section());
            let mut chosen = same.map_or_else(|| names[0].clone(), |(name, _)| name.clone());
            if let Some((_, name)) = next.next_if(|(number, _)| *number == at) {
                if names.contains(name) {
                    chosen.clone_from(name);
                } else {
                    trial.diverged = true;
                }
            }
            let call: &Call = &ready.iter().find(|(name, _)| *name == chosen).unwrap().1;
            if logs {
                let preempts = goes_on && now.as_ref() != Some(&chosen);
                let mark = if preempts { '*' } else { ' ' };
                trial
                    .log
                    .push(format!("{at:4} {mark}{chosen} {}", call.text));
            }
            trial.steps.push(Step {
                ready: names,
                chosen: chosen.clone(),
                goes_on,
                text: call.text.clone(),
                accesses: call.accesses.clone(),
            });
            scheduler.step(&chosen);
            now = Some(chosen);
        }
        trial.codes.clone_from(&scheduler.exit_codes);
        trial.planted = scheduler.planted;
        for overlap in &scheduler.overlaps {
            trial.faults.push(format!("two inside at once: {overlap}"));
        }
        for harmed in &scheduler.harmed {
            trial
                .faults
                .push(format!("an innocent gets a signal: {harmed}"));
        }
        if scenario.in_order {
            for overtaken in &scheduler.overtaken {
                trial
                    .faults
                    .push(format!("overtaken while waiting: {overtaken}"));
            }
        }
        let distinct: BTreeSet<&String> = scheduler.numbers.iter().collect();
        if distinct.len() < scheduler.numbers.len() {
            trial.faults.push("one number for two holds".to_owned());
        }
        drop(scheduler);
        self.judge(scenario, &mut trial);
        if !scenario.after_each.is_empty() {
            self.script(&scenario.after_each);
        }
        trial
    }

    fn judge(&self, scenario: &Scenario, trial: &mut Trial) {
        for (number, code) in trial.codes.iter().enumerate() {
            let said = fs::read_to_string(self.root.join(format!("out.{number}")));
            let mut said = said.unwrap();
            if let Some(on) = &*self.on.borrow() {
                // In a command it is quoted, if it has to be.
                let store = format!("{}/s", self.root.display());
                said = said.replace(&format!("'{}'", on.dir), &store);
                said = said.replace(&on.dir, &store);
            }
            let said = without_details(&said, &self.root);
            let allowed = &scenario.codes[number];
            if !code.is_some_and(|code| allowed.contains(&code)) {
                let verb = scenario.processes[number].join(" ");
                trial
                    .faults
                    .push(format!("`{verb}` ends with {code:?}: {said}"));
            }
            trial.said.push(said);
        }
        let codes: Vec<i32> = trial.codes.iter().flatten().copied().collect();
        if scenario.never.contains(&codes) {
            trial
                .faults
                .push(format!("these exit codes together: {codes:?}"));
        }
        let succeeded = codes.iter().filter(|code| **code == 0).count();
        if succeeded < scenario.succeed {
            trial.faults.push(format!("only {succeeded} succeed"));
        }
        let mut left = Vec::new();
        list(&self.root.join("s"), "", &mut left);
        list(&self.root.join("p"), "../p/", &mut left);
        // Of etcd, behind the prefix.
        let behind = |key: String| key.rsplit("//").next().map(str::to_owned);
        let on_server = self
            .on
            .borrow()
            .iter()
            .flat_map(On::left)
            .collect::<Vec<_>>();
        left.extend(on_server.into_iter().filter_map(behind));
        let own = [
            ".onehold/",
            ".onehold/last",
            ".onehold/guard/",
            ".onehold/shared",
            ".onehold/events.jsonl",
        ];
        left.retain(|name| {
            !own.contains(&name.as_str())
                && !scenario.left.iter().any(|prefix| name.starts_with(prefix))
        });
        if !left.is_empty() {
            trial.faults.push(format!("{left:?} is left"));
        }
        if let Some(probe) = &scenario.probe {
            let output = self.command(&words(probe)).output().unwrap();
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                trial
                    .faults
                    .push(format!("the next caller is not served: {said}"));
            }
        }
        if !scenario.check.is_empty() {
            let output = self.shell(&scenario.check).output().unwrap();
            if !output.status.success() {
                let out = String::from_utf8_lossy(&output.stdout).into_owned();
                trial
                    .faults
                    .push(format!("`{}` fails: {out}", scenario.check));
            }
        }
    }
}

/// Each number is `#`, columns have two spaces between them, and so on: what differs from trial to trial.
fn without_details(text: &str, root: &Path) -> String {
    let text = text.replace(root.to_str().unwrap(), "DIR");
    let text = text.replace(&*hostname::get().unwrap().to_string_lossy(), "HOST");
    // The program that starts the processes: this one, whose name has a digest.
    let own = std::env::current_exe().unwrap();
    let text = text.replace(&*own.file_name().unwrap().to_string_lossy(), "TESTS");
    let mut out = String::new();
    for character in text.trim().chars() {
        if character.is_ascii_digit() {
            if !out.ends_with('#') {
                out.push('#');
            }
        } else if character != ' ' || !out.ends_with("  ") {
            out.push(character);
        }
    }
    // Minutes after the store was made.
    for age in ["#m #s ago", "#m ago"] {
        out = out.replace(age, "#s ago");
    }
    // A time limit may end tomorrow.
    out = out.replace("#-#-# #:#:#", "#:#:#");
    // Whether it can be seen depends on the moment.
    while let Some((before, rest)) = out.split_once("; runs in ") {
        let end = rest.find([';', '\n']).unwrap_or(rest.len());
        out = format!("{before}{}", &rest[end..]);
    }
    // Whoever runs the tests.
    let of_user = " of user ";
    if let Some((before, rest)) = out.split_once(of_user) {
        let end = rest.find([',', '\n']).unwrap_or(rest.len());
        out = format!("{before}{of_user}USER{}", &rest[end..]);
    }
    out
}

fn empty(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let removed = if entry.file_type().unwrap().is_dir() {
            fs::remove_dir_all(path)
        } else {
            fs::remove_file(path)
        };
        removed.unwrap();
    }
}

fn copy(from: &Path, to: &Path, links: &mut BTreeMap<u64, PathBuf>) {
    let mode = from.metadata().unwrap().permissions().mode() & 0o7777;
    if !to.exists() {
        fs::DirBuilder::new().mode(mode).create(to).unwrap();
    }
    // Whatever the umask.
    fs::set_permissions(to, fs::Permissions::from_mode(mode)).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        let found = entry.metadata().unwrap();
        if found.is_dir() {
            copy(&from, &to, links);
        } else if let Some(other) = links.get(&found.ino()) {
            fs::hard_link(other, &to).unwrap();
        } else {
            fs::copy(&from, &to).unwrap();
            links.insert(found.ino(), to);
        }
    }
}

fn list(directory: &Path, prefix: &str, names: &mut Vec<String>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let mut name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if is_directory {
            name.push('/');
            list(&entry.path(), &name, names);
        }
        names.push(name);
    }
    names.sort();
}
