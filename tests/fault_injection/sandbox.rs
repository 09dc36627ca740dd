//! A store for one trial: what is in it before, what happens in it, and what must be true after.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::innocents::Innocents;
use crate::harness::{Running, TestEnv, exit_code, foreign, json_object};

pub struct Sandbox {
    pub env: TestEnv,
    /// A process that holds what is acquired.
    pub holder: Running,
    /// Who is there beside what is tried.
    innocents: Innocents,
    /// Files that must not change, and their content.
    foreign: Vec<(PathBuf, String)>,
    /// What was started by [`start_run`](Self::start_run).
    running: std::sync::Mutex<Vec<Running>>,
    /// The greatest hold number that was printed.
    greatest_number: u64,
}

/// The critical section of a `run`: two at once leave a mark. Ends with the sandbox at the latest.
pub const CRITICAL_SECTION: &str = "mkdir inside 2>/dev/null || echo >> overlaps; echo $$ >> started; \
    until test -e end -o ! -e store; do sleep 0.002; done; rmdir inside";

/// The command of a `run` that loses its lock, so that it may overlap with the next one.
pub const DISPLACED_COMMAND: &str =
    "echo $$ >> started; until test -e enough -o ! -e store; do sleep 0.002; done";

/// A critical section that ends at once.
const SHORT_SECTION: &str = "mkdir inside 2>/dev/null || echo >> overlaps; rmdir inside";

/// How long survivors and their commands may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(20);

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.end_commands();
        for run in self.running.get_mut().unwrap() {
            // The tracer may have waited for it already.
            let _ = run.child.wait();
        }
    }
}

impl Sandbox {
    /// With innocents: the number says which.
    pub fn new(number: usize) -> Self {
        let mut sandbox = Self::alone();
        sandbox.innocents = Innocents::some(&sandbox.env, number);
        sandbox
    }

    pub fn alone() -> Self {
        let mut sandbox = Self {
            env: TestEnv::on_disk(),
            holder: Running::sleeper(),
            innocents: Innocents::default(),
            foreign: Vec::new(),
            running: std::sync::Mutex::default(),
            greatest_number: 0,
        };
        fs::create_dir_all(sandbox.path("store/section.d")).unwrap();
        let sprint = foreign::sprint(sandbox.holder.pid());
        for (name, text) in [
            ("store/data.lock", "not a lock\n".to_owned()),
            ("store/section.d/notes.txt", "notes\n".to_owned()),
            ("store/sprint.lock", sprint),
        ] {
            fs::write(sandbox.path(name), &text).unwrap();
            sandbox.foreign.push((sandbox.path(name), text));
        }
        sandbox
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.env.path(name)
    }

    /// `onehold WORDS`.
    pub fn command(&self, words: &[&str]) -> Command {
        self.env.onehold(words)
    }

    /// Exit code and stdout of `onehold WORDS`.
    pub fn invoke(&self, words: &[&str]) -> (i32, String) {
        let output = self.env.output(words);
        let stdout = String::from_utf8(output.stdout).unwrap();
        (exit_code(output.status), stdout)
    }

    /// Stdout of `onehold WORDS`, which has to succeed.
    pub fn prepare(&mut self, words: &[&str]) -> String {
        let stdout = self.env.done(words);
        self.record_hold_number(&stdout);
        stdout
    }

    /// Starts a `run` that goes on, and returns when its command has begun.
    pub fn start_run(&mut self, words: &[&str]) {
        let run = self.env.start(words);
        self.keep(run);
        self.env.pid_in("started");
    }

    /// Waits for a process when the sandbox ends.
    pub fn keep(&self, run: Running) {
        self.running.lock().unwrap().push(run);
    }

    /// Keeps the number, if that is what was printed.
    pub fn record_hold_number(&mut self, stdout: &str) {
        if let Ok(number) = stdout.trim().parse() {
            self.greatest_number = self.greatest_number.max(number);
        }
    }

    /// Has all holds leave a line in the journal.
    pub fn set_history(&self) {
        let directory = self.path(".config/onehold");
        fs::create_dir_all(&directory).unwrap();
        fs::write(
            directory.join("config.toml"),
            "[defaults]\nhistory = true\n",
        )
        .unwrap();
    }

    /// Leaves what `words` ask for, a name at least, with a holder that was killed.
    pub fn create_zombie(&mut self, words: &str) {
        let mut holder = Running::sleeper();
        let pid = holder.pid().to_string();
        let mut acquire = vec!["acquire", "--pid", &pid];
        acquire.extend(words.split(' '));
        self.prepare(&acquire);
        holder.kill();
    }

    pub fn is_held(&self, name: &str) -> bool {
        self.invoke(&["check", "-q", name]).0 == 6
    }

    /// `lock` of the JSON object of a command.
    pub fn lock(&self, words: &[&str]) -> Value {
        let (_, stdout) = self.invoke(&[words, &["--json"]].concat());
        json_object(stdout.as_bytes())["lock"].take()
    }

    fn end_commands(&self) {
        for file in ["end", "enough"] {
            fs::write(self.path(file), "").unwrap();
        }
    }

    /// Checks what must be true whatever has happened: no two critical sections overlapped, the lock
    /// can be taken, together with those in `also`, foreign files are as they were, nothing is left, and
    /// numbers grow. `global`: options that lead to the lock.
    pub fn check_invariants(
        &mut self,
        global: &[&str],
        name: &str,
        also: &[&str],
    ) -> Result<(), String> {
        let command = ["--", "sh", "-c", SHORT_SECTION];
        let run = [global, &["run", name], also, &command].concat();
        let started = Instant::now();
        let mut survivor_has_ended = false;
        loop {
            let (code, _) = self.invoke(&run);
            match code {
                0 => break,
                6 if !survivor_has_ended => {
                    survivor_has_ended = true;
                    self.end_survivor(global, name)?;
                }
                6 if started.elapsed() < END_TIMEOUT => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                _ => {
                    let lock = self.lock(&[global, &["check", name]].concat());
                    return Err(format!("run exits with {code}, {lock}"));
                }
            }
        }
        self.end_commands();
        self.wait_for_commands()?;
        if self.path("overlaps").exists() {
            return Err("two critical sections overlapped".to_owned());
        }
        for (path, text) in &self.foreign {
            if fs::read_to_string(path).is_ok_and(|now| now == *text) {
                continue;
            }
            return Err(format!("{} has changed", path.display()));
        }
        for words in [&["cleanup"][..], &[global, &["cleanup"]].concat()] {
            let (code, _) = self.invoke(words);
            if code != 0 {
                return Err(format!("{words:?} exits with {code}"));
            }
        }
        let journal = fs::read_to_string(self.path("store/.onehold/events.jsonl"));
        let journal = journal.unwrap_or_default();
        let is_whole = |line: &str| serde_json::from_str::<Value>(line).is_ok();
        if !journal.lines().all(is_whole) || !(journal.is_empty() || journal.ends_with('\n')) {
            return Err(format!("a line of the journal is not whole: {journal}"));
        }
        self.check_innocents()?;
        self.check_nothing_is_left(global)?;
        let number = self.prepare(&["acquire", "after", "--ttl", "1h"]);
        let before = self.greatest_number;
        if number.parse::<u64>().unwrap() < before {
            return Err(format!("hold number {number} after {before}"));
        }
        Ok(())
    }

    /// Ends the innocents. Nothing has happened to them.
    pub fn check_innocents(&mut self) -> Result<(), String> {
        let harmed = self.innocents.end(&self.env);
        if harmed.is_empty() {
            Ok(())
        } else {
            Err(harmed.join(", "))
        }
    }

    /// Checks that the present holder is alive, or a lease, and ends it.
    fn end_survivor(&mut self, global: &[&str], name: &str) -> Result<(), String> {
        let lock = self.lock(&[global, &["check", name]].concat());
        match (lock["kind"].as_str(), lock["pid_alive"].as_bool()) {
            (Some("run"), Some(true)) => {
                self.end_commands();
                Ok(())
            }
            // Released between the refusal and this check.
            (None, None) if lock["state"] == "free" => Ok(()),
            (Some("job"), Some(true)) if lock["pid"] == self.holder.pid() => {
                self.holder.kill();
                Ok(())
            }
            // A lease, or a hold whose record is incomplete.
            (Some("lease"), _) | (Some("job"), None) => {
                let (code, _) = self.invoke(&[global, &["break", name, "--yes"]].concat());
                if code == 0 {
                    Ok(())
                } else {
                    Err(format!("break exits with {code}"))
                }
            }
            _ => Err(format!("refused, but there is no live holder: {lock}")),
        }
    }

    /// Waits for commands whose wrappers were killed.
    fn wait_for_commands(&self) -> Result<(), String> {
        let pids = fs::read_to_string(self.path("started")).unwrap_or_default();
        let started = Instant::now();
        for pid in pids.split_whitespace() {
            let status = PathBuf::from(format!("/proc/{pid}/status"));
            while fs::read_to_string(&status)
                .is_ok_and(|status| status.starts_with("Name:\tsh\n") && !status.contains("\tZ ("))
            {
                if started.elapsed() > END_TIMEOUT {
                    return Err("a command does not end".to_owned());
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        Ok(())
    }

    fn check_nothing_is_left(&self, global: &[&str]) -> Result<(), String> {
        let mut left = Vec::new();
        let own = self.path("store/.onehold");
        let mut directories = vec![self.path("store"), self.path("")];
        if global.contains(&"prodigy") {
            directories.push(self.path(".prodigy/resume_locks"));
        }
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
                let path = entry.path();
                let name = entry.file_name().into_string().unwrap();
                let known = self.foreign.iter().any(|(file, _)| *file == path);
                if path.is_dir() && (directory.starts_with(&own) || name.ends_with(".d")) {
                    directories.push(path);
                } else if !known && (name.ends_with(".lock") || name.starts_with(".onehold.")) {
                    left.push(path);
                }
            }
        }
        let queues = self.env.left_in_queues();
        if left.is_empty() && queues.is_empty() {
            Ok(())
        } else {
            Err(format!("left: {left:?}, queues: {queues:?}"))
        }
    }
}
