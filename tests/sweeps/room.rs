//! A store for one trial: what is in it beforehand, what is done in it, what must be true after.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Who holds, as a process.
pub struct Sleeper(Child);

impl Sleeper {
    pub fn start() -> Self {
        let child = Command::new("sleep")
            .arg("1000")
            .stdout(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    pub fn pid(&self) -> String {
        self.number().to_string()
    }

    fn number(&self) -> u32 {
        self.0.id()
    }

    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.kill();
    }
}

pub struct Room {
    pub root: TempDir,
    /// A process that holds what is acquired.
    pub holder: Sleeper,
    /// Files that are not to be touched, and what they say.
    foreign: Vec<(PathBuf, String)>,
    /// What runs besides.
    running: Vec<Child>,
    /// The greatest hold number that anybody has been given.
    greatest: u64,
}

/// What every critical section does: two at once make a mark. It ends with the room at the latest.
pub const SECTION: &str = "mkdir inside 2>/dev/null || echo >> overlaps; echo $$ >> started; \
    until test -e end -o ! -e store; do sleep 0.002; done; rmdir inside";

/// What the command of a `run` does whose lock is taken away: nobody promises that it is alone.
pub const OUSTED: &str =
    "echo $$ >> started; until test -e enough -o ! -e store; do sleep 0.002; done";

/// The same for those who do not stay.
const VISIT: &str = "mkdir inside 2>/dev/null || echo >> overlaps; rmdir inside";

impl Drop for Room {
    fn drop(&mut self) {
        self.let_them_end();
        for child in &mut self.running {
            let _ = child.wait();
        }
    }
}

impl Room {
    pub fn new() -> Self {
        let mut room = Self {
            root: tempfile::tempdir().unwrap(),
            holder: Sleeper::start(),
            foreign: Vec::new(),
            running: Vec::new(),
            greatest: 0,
        };
        fs::create_dir_all(room.path("store/section.d")).unwrap();
        let pid = room.holder.pid();
        let now = chrono::Utc::now().to_rfc3339();
        for (name, text) in [
            ("store/data.lock", "nobody's lock\n".to_owned()),
            ("store/section.d/notes.txt", "notes\n".to_owned()),
            (
                "store/sprint.lock",
                format!("pid: {pid}\nsession_id: \"s\"\nstarted_at: \"{now}\"\nlock_version: 1\n"),
            ),
        ] {
            fs::write(room.path(name), &text).unwrap();
            room.foreign.push((room.path(name), text));
        }
        room
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("onehold"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ONEHOLD_") {
                command.env_remove(name);
            }
        }
        command
            .args(words)
            .current_dir(self.root.path())
            .env("HOME", self.root.path())
            .env("ONEHOLD_DIR", self.path("store"))
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("PRODIGY_HOME")
            .stdin(Stdio::null());
        command
    }

    /// Exit code and stdout.
    pub fn onehold(&self, words: &[&str]) -> (i32, String) {
        let output = self.command(words).output().unwrap();
        let code = output.status.code().unwrap_or(-1);
        (code, String::from_utf8(output.stdout).unwrap())
    }

    fn let_them_end(&self) {
        for file in ["end", "enough"] {
            fs::write(self.path(file), "").unwrap();
        }
    }

    /// What must work before a trial.
    pub fn done(&mut self, words: &[&str]) -> String {
        let (code, out) = self.onehold(words);
        assert_eq!(code, 0, "{words:?}");
        self.heard_of(&out);
        out.trim().to_owned()
    }

    /// Starts what stays, and waits until its command has begun.
    pub fn start(&mut self, words: &[&str]) {
        let mut command = self.command(words);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        self.running.push(command.spawn().unwrap());
        let deadline = Instant::now() + Duration::from_secs(10);
        while !fs::read_to_string(self.path("started")).is_ok_and(|pids| pids.ends_with('\n')) {
            assert!(Instant::now() < deadline, "{words:?} does not start");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A hold number that was printed.
    pub fn heard_of(&mut self, out: &str) {
        if let Ok(number) = out.trim().parse() {
            self.greatest = self.greatest.max(number);
        }
    }

    /// Leaves `name` with a holder that was killed.
    pub fn leave_dead(&mut self, name: &str) {
        let mut dies = Sleeper::start();
        let pid = dies.pid();
        self.done(&["acquire", name, "--pid", &pid]);
        dies.kill();
    }

    /// A pid that no process has.
    pub fn dead_pid() -> String {
        let mut dies = Sleeper::start();
        dies.kill();
        dies.pid()
    }

    pub fn is_held(&self, name: &str) -> bool {
        self.onehold(&["check", "-q", name]).0 == 6
    }

    pub fn lock(&self, words: &[&str]) -> Value {
        let (_, out) = self.onehold(&[words, &["--json"]].concat());
        serde_json::from_str::<Value>(&out).unwrap()["lock"].take()
    }

    /// After whatever happened: no two at once, nobody shut out, nothing lost, nothing left.
    /// `global`: options that lead to the lock.
    pub fn is_in_order(&mut self, global: &[&str], name: &str) -> Result<(), String> {
        let run = [global, &["run", name, "--", "sh", "-c", VISIT]].concat();
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut survivors_ended = false;
        loop {
            let (code, _) = self.onehold(&run);
            match code {
                0 => break,
                6 if !survivors_ended => {
                    survivors_ended = true;
                    self.end_survivor(global, name)?;
                }
                6 if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
                _ => {
                    let lock = self.lock(&[global, &["check", name]].concat());
                    return Err(format!("{code}, {lock}"));
                }
            }
        }
        self.let_them_end();
        self.wait_for_sections()?;
        if self.path("overlaps").exists() {
            return Err("two at once".to_owned());
        }
        for (path, text) in &self.foreign {
            if fs::read_to_string(path).is_ok_and(|now| now == *text) {
                continue;
            }
            return Err(format!("{} is not as it was", path.display()));
        }
        for words in [&["cleanup"][..], &[global, &["cleanup"]].concat()] {
            let (code, _) = self.onehold(words);
            if code != 0 {
                return Err(format!("{words:?}: {code}"));
            }
        }
        self.nothing_is_left(global)?;
        let number = self.done(&["acquire", "after", "--ttl", "1h"]);
        let before = self.greatest;
        if number.parse::<u64>().unwrap() < before {
            return Err(format!("hold {number} after {before}"));
        }
        Ok(())
    }

    /// Whoever holds now must be alive, or a lease; then he ends.
    fn end_survivor(&mut self, global: &[&str], name: &str) -> Result<(), String> {
        let lock = self.lock(&[global, &["check", name]].concat());
        match (lock["kind"].as_str(), lock["pid_alive"].as_bool()) {
            (Some("run"), Some(true)) => {
                self.let_them_end();
                Ok(())
            }
            // Given back between the refusal and the look at it.
            (None, None) if lock["state"] == "free" => Ok(()),
            (Some("job"), Some(true)) if lock["pid"] == self.holder.number() => {
                self.holder.kill();
                Ok(())
            }
            // A lease, or what could not be recorded as it should be.
            (Some("lease"), _) | (Some("job"), None) => {
                let (code, _) = self.onehold(&[global, &["break", name, "--yes"]].concat());
                if code == 0 {
                    Ok(())
                } else {
                    Err(format!("break: {code}"))
                }
            }
            _ => Err(format!("refused, and nobody holds: {lock}")),
        }
    }

    /// Commands that were started and are not waited for by anybody.
    fn wait_for_sections(&self) -> Result<(), String> {
        let started = fs::read_to_string(self.path("started")).unwrap_or_default();
        let deadline = Instant::now() + Duration::from_secs(10);
        for pid in started.split_whitespace() {
            let status = PathBuf::from(format!("/proc/{pid}/status"));
            while fs::read_to_string(&status)
                .is_ok_and(|status| status.starts_with("Name:\tsh\n") && !status.contains("\tZ ("))
            {
                if Instant::now() > deadline {
                    return Err("a command does not end".to_owned());
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        Ok(())
    }

    fn nothing_is_left(&self, global: &[&str]) -> Result<(), String> {
        let mut left = Vec::new();
        let own = self.path("store/.onehold");
        let waiting = own.join("waiting");
        let mut directories = vec![self.path("store"), self.root.path().to_owned()];
        if global.contains(&"prodigy") {
            directories.push(self.path(".prodigy/resume_locks"));
        }
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
                let path = entry.path();
                let name = entry.file_name().into_string().unwrap();
                let known = self.foreign.iter().any(|(foreign, _)| *foreign == path);
                if path.is_dir() && (directory.starts_with(&own) || name.ends_with(".d")) {
                    directories.push(path);
                } else if !known && (name.ends_with(".lock") || name.starts_with(".onehold.")) {
                    left.push(path);
                }
            }
        }
        left.extend(
            fs::read_dir(waiting)
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path()),
        );
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("left: {left:?}"))
        }
    }
}
