//! A store of its own for each test, and a few words to speak of processes with.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use assert_cmd::Command;
use serde_json::Value;
use tempfile::TempDir;

/// How long something that is bound to happen may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Env {
    pub root: TempDir,
}

impl Env {
    pub fn new() -> Self {
        Self {
            root: tempfile::tempdir().unwrap(),
        }
    }

    pub fn store(&self) -> PathBuf {
        self.path("store")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// `onehold ARGS`, with this test's store and nothing of the tester's environment.
    pub fn onehold<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Command {
        let mut command = Command::from_std(self.program(program()));
        command.args(args);
        command
    }

    /// The same, to be started and looked at while it runs.
    pub fn start<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Running {
        let mut command = self.program(program());
        command.args(args);
        Running::start(command)
    }

    /// `sh -c SCRIPT`, in a session of its own, with `onehold` in PATH.
    pub fn shell(&self, script: &str) -> Command {
        let mut command = Command::from_std(self.program("setsid"));
        command.args(["-w", "sh", "-c", script]);
        command
    }

    pub fn start_shell(&self, script: &str) -> Running {
        let mut command = self.program("setsid");
        command.args(["-w", "sh", "-c", script]);
        Running::start(command)
    }

    fn program(&self, program: impl AsRef<OsStr>) -> std::process::Command {
        let mut command = std::process::Command::new(program);
        let bin = self::program();
        let path = format!(
            "{}:{}",
            bin.parent().unwrap().display(),
            std::env::var("PATH").unwrap()
        );
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            let others = ["XDG_CONFIG_HOME", "PRODIGY_HOME", "CLAWDBOT_SESSION_ID"];
            if text.starts_with("ONEHOLD_") || others.contains(&&*text) {
                command.env_remove(name);
            }
        }
        command
            .env("ONEHOLD_DIR", self.store())
            .env("HOME", self.root.path())
            .env("TZ", "UTC")
            .env("PATH", path)
            .current_dir(self.root.path());
        command
    }

    /// The exit code of `onehold check NAME`.
    #[track_caller]
    pub fn check(&self, name: &str) -> i32 {
        self.onehold(["check", "-q", name])
            .output()
            .unwrap()
            .status
            .code()
            .unwrap()
    }

    /// `lock` of the JSON object of `onehold check NAME`.
    pub fn lock(&self, name: &str) -> Value {
        self.json(["check", name])["lock"].take()
    }

    /// The JSON object of a command that puts it on stdout.
    #[track_caller]
    pub fn json<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Value {
        let output = self.onehold(args).arg("--json").output().unwrap();
        only_object(&output.stdout)
    }

    /// Holds `name` by a process that is gone, as if it had been killed.
    pub fn leave_dead(&self, name: &str) {
        let mut dies = Running::start(sleeper());
        self.onehold(["acquire", name, "--pid", &dies.pid().to_string()])
            .assert()
            .success();
        dies.kill();
        assert_eq!(self.check(name), 5, "a dead holder is a zombie");
    }

    /// Writes a file below the test's directory.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// A record as onehold writes it, held by a living process, with `change` made to its text.
    pub fn fabricate(&self, name: &str, change: impl FnOnce(String) -> String) -> Running {
        let holder = Running::start(sleeper());
        self.onehold(["acquire", name, "--pid", &holder.pid().to_string()])
            .assert()
            .success();
        let path = self.store().join(format!("{name}.lock"));
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, change(text)).unwrap();
        holder
    }

    /// Names of the lock files that are there, and of nothing else of onehold's.
    pub fn left_in_store(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.store())
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != ".onehold")
            .collect();
        names.sort();
        names
    }

    pub fn journal(&self) -> Vec<Value> {
        fs::read_to_string(self.store().join(".onehold/events.jsonl"))
            .unwrap_or_default()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

pub fn program() -> PathBuf {
    assert_cmd::cargo::cargo_bin!("onehold").to_path_buf()
}

pub fn sleeper() -> std::process::Command {
    let mut command = std::process::Command::new("sleep");
    command.arg("1000");
    command
}

/// Exactly one JSON object on one line.
#[track_caller]
pub fn only_object(bytes: &[u8]) -> Value {
    let text = std::str::from_utf8(bytes).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(text).unwrap()
}

/// A started process, killed when the test ends.
pub struct Running {
    child: Child,
}

impl Running {
    pub fn start(mut command: std::process::Command) -> Self {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { child }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGKILL and waits for the end.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn signal(&self, signal: &str) {
        send(self.pid(), signal);
    }

    /// The next line on stderr, as soon as it is there.
    pub fn next_line(&mut self) -> String {
        use std::io::Read;
        let stderr = self.child.stderr.as_mut().unwrap();
        let mut line = Vec::new();
        let mut byte = [0];
        while !line.ends_with(b"\n") && stderr.read(&mut byte).unwrap() == 1 {
            line.push(byte[0]);
        }
        String::from_utf8(line).unwrap()
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for the end; the exit code, stdout and stderr.
    pub fn finish(mut self) -> (Option<i32>, String, String) {
        use std::io::Read;
        let (mut out, mut err) = (String::new(), String::new());
        let status = self.child.wait().unwrap();
        self.child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut out)
            .unwrap();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut err)
            .unwrap();
        (status.code(), out, err)
    }

    /// Waits for the end, whoever still has its pipes; the exit code.
    pub fn exit_code(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A wrapper passes it on to its command, which would outlive it otherwise.
        if matches!(self.child.try_wait(), Ok(None)) {
            for signal in ["-TERM", "-CONT"] {
                let _ = std::process::Command::new("kill")
                    .args([signal, &self.child.id().to_string()])
                    .stderr(Stdio::null())
                    .status();
            }
            for _ in 0..100 {
                if !matches!(self.child.try_wait(), Ok(None)) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn send(pid: u32, signal: &str) {
    let status = std::process::Command::new("kill")
        .args([&format!("-{signal}"), &pid.to_string()])
        .status()
        .unwrap();
    assert!(status.success(), "kill -{signal} {pid}");
}

/// Waits for something that another process is about to do.
#[track_caller]
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for a file with a number in it.
#[track_caller]
pub fn number_in(path: &Path) -> u32 {
    let mut number = None;
    eventually("a number in a file", || {
        number = fs::read_to_string(path)
            .ok()
            .filter(|text| text.ends_with('\n'))
            .and_then(|text| text.trim().parse().ok());
        number.is_some()
    });
    number.unwrap()
}
