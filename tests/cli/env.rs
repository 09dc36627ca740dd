//! Gives each test its own home, store and environment, and starts processes.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use assert_cmd::Command;
use serde_json::Value;
use tempfile::TempDir;

/// What [`sleeper`] is called in messages.
pub const SLEEP: &str = if cfg!(windows) { "sleep.exe" } else { "sleep" };

/// Time limit for other processes on a loaded machine.
const TIMEOUT: Duration = Duration::from_mins(1);

#[cfg(windows)]
#[path = "../harness/windows.rs"]
mod windows;

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

    /// `onehold ARGS` with the home and store of this test.
    pub fn onehold<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Command {
        let mut command = Command::from_std(self.command(program()));
        command.args(args);
        command
    }

    /// Starts `onehold ARGS` in the background.
    pub fn start<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Running {
        let mut command = self.command(program());
        command.args(args);
        Running::start(command)
    }

    /// `sh -c SCRIPT` in a new session, with `onehold` in PATH.
    #[cfg(unix)]
    pub fn shell(&self, script: &str) -> Command {
        let mut command = Command::from_std(self.command("setsid"));
        command.args(["-w", "sh", "-c", script]);
        command
    }

    #[cfg(unix)]
    pub fn start_shell(&self, script: &str) -> Running {
        let mut command = self.command("setsid");
        command.args(["-w", "sh", "-c", script]);
        Running::start(command)
    }

    /// `PROGRAM`, with this test's directory, home and store, and `onehold` in PATH.
    pub fn command(&self, program: impl AsRef<OsStr>) -> std::process::Command {
        let mut command = command(program);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut directories = vec![program_directory()];
        directories.extend(std::env::split_paths(&path));
        #[cfg(windows)]
        directories.insert(1, windows::programs(&self::program()));
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            let others = [
                "XDG_CONFIG_HOME",
                "PRODIGY_HOME",
                "CLAWDBOT_SESSION_ID",
                "NO_COLOR",
                "CLICOLOR",
                "CLICOLOR_FORCE",
                "COLUMNS",
            ];
            if text.starts_with("ONEHOLD_") || others.contains(&&*text) {
                command.env_remove(name);
            }
        }
        command
            .env("ONEHOLD_DIR", self.store())
            .env("HOME", self.root.path())
            .env("TZ", "UTC")
            .env("LC_ALL", "C.UTF-8")
            .env("TERM", "xterm")
            .env("USERPROFILE", self.root.path())
            .env("APPDATA", self.root.path())
            .env("LOCALAPPDATA", self.root.path())
            .env("PATH", std::env::join_paths(directories).unwrap())
            .current_dir(self.root.path());
        command
    }

    /// `onehold ARGS` as a user who cannot read directories with mode 0, even if root runs the tests.
    #[cfg(unix)]
    pub fn unprivileged<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Command {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        if fs::metadata("/proc/self").unwrap().uid() != 0 {
            return self.onehold(args);
        }
        // That user may have no access to the directory of the built program.
        let program = self.path("onehold");
        // Not by this process: what another thread forks would keep the copy open for writing, and until
        // it executes its program, the copy could not be executed (ETXTBSY, execve(2)).
        let mut copy = self.command("cp");
        copy.arg(self::program()).arg(&program);
        assert!(copy.status().unwrap().success());
        fs::set_permissions(self.root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = Command::from_std(self.command("setpriv"));
        command
            .args(["--reuid", "4321", "--regid", "4321", "--clear-groups"])
            .arg(program)
            .args(args);
        command
    }

    /// Runs `onehold WORDS` on a terminal of 80 columns and answers each prompt by the next of
    /// `answers`. Returns the exit code and the output.
    #[cfg(unix)]
    #[track_caller]
    pub fn on_a_terminal(&self, words: &str, answers: &[&str]) -> (Option<i32>, String) {
        self.on_a_terminal_with("", words, answers)
    }

    /// The same with a variable set: `NAME=VALUE`.
    #[cfg(unix)]
    #[track_caller]
    pub fn on_a_terminal_with(
        &self,
        variable: &str,
        words: &str,
        answers: &[&str],
    ) -> (Option<i32>, String) {
        use std::io::{Read, Write};
        let program = program();
        let program = program.display();
        let line = format!("stty cols 80 rows 24; {variable} {program} {words}");
        let mut child = self
            .command("script")
            .args(["-qec", &line, "/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = child.stdout.take().unwrap();
        let mut input = child.stdin.take().unwrap();
        let mut seen = Vec::new();
        for answer in answers {
            let mut byte = [0];
            let from = seen.len();
            while !seen[from..].ends_with(b"[y/N] ") {
                let so_far = String::from_utf8_lossy(&seen).into_owned();
                assert_eq!(out.read(&mut byte).unwrap(), 1, "no question: {so_far}");
                seen.push(byte[0]);
            }
            input.write_all(answer.as_bytes()).unwrap();
        }
        drop(input);
        out.read_to_end(&mut seen).unwrap();
        let code = child.wait().unwrap().code();
        (code, String::from_utf8(seen).unwrap())
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

    /// Waits until there is a waiter in the queue of `name`.
    pub fn wait_for_waiter(&self, name: &str) {
        eventually("there is a waiter", || {
            let waiters = self.lock(name)["waiters"].take();
            waiters.as_array().is_some_and(|all| !all.is_empty())
        });
    }

    /// `lock` of the JSON object of `onehold check NAME`.
    pub fn lock(&self, name: &str) -> Value {
        self.json(["check", name])["lock"].take()
    }

    /// The JSON object that a command prints to stdout.
    #[track_caller]
    pub fn json<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Value {
        let output = self.onehold(args).arg("--json").output().unwrap();
        only_object(&output.stdout)
    }

    /// Lets a process acquire `name`, and kills it.
    pub fn create_zombie(&self, name: &str) {
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

    /// Lets a live process acquire `name`, and then changes the text of its record.
    pub fn write_record_of_live_holder(
        &self,
        name: &str,
        change: impl FnOnce(String) -> String,
    ) -> Running {
        let holder = Running::start(sleeper());
        self.onehold(["acquire", name, "--pid", &holder.pid().to_string()])
            .assert()
            .success();
        let path = self.store().join(format!("{name}.lock"));
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, change(text)).unwrap();
        holder
    }

    /// The text of a lock file.
    pub fn record(&self, name: &str) -> String {
        fs::read_to_string(self.store().join(format!("{name}.lock"))).unwrap_or_default()
    }

    /// The names of all files in the store except `.onehold`.
    pub fn left_in_store(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.store())
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != ".onehold")
            .collect();
        // Windows needs a guard file in each store.
        names.retain(|name| cfg!(unix) || name != ".onehold-guard");
        names.sort();
        names
    }

    /// The configuration of the user.
    pub fn configuration(&self) -> PathBuf {
        self.path(if cfg!(windows) {
            "onehold/config.toml"
        } else {
            ".config/onehold/config.toml"
        })
    }

    pub fn configure(&self, text: &str) {
        let file = self.configuration();
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    pub fn journal(&self) -> Vec<Value> {
        fs::read_to_string(self.store().join(".onehold/events.jsonl"))
            .unwrap_or_default()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

/// The program under test, as an absolute path: the one that was built with the tests, or the shipped one,
/// which begins and starts commands in another way.
pub fn program() -> PathBuf {
    let built = || PathBuf::from(assert_cmd::cargo::cargo_bin!("onehold"));
    let tested = std::env::var_os("ONEHOLD_TESTED").map_or_else(built, PathBuf::from);
    std::path::absolute(tested).unwrap()
}

fn program_directory() -> PathBuf {
    program().parent().unwrap().to_owned()
}

/// A command whose process starts with the default action for every signal and with none blocked,
/// whatever the process that runs the tests ignores or blocks (`nohup` ignores HUP).
#[cfg(unix)]
pub fn command(program: impl AsRef<OsStr>) -> std::process::Command {
    use std::os::unix::process::CommandExt;
    const HIGHEST_SIGNAL: i32 = 64;
    let mut command = std::process::Command::new(program);
    let reset = || {
        for signal in 1..=HIGHEST_SIGNAL {
            // SAFETY: signal(2) with SIG_DFL only sets a disposition. It fails for KILL, STOP and
            // the signals that the C library keeps, which have their default actions.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        // SAFETY: `none` is a signal set on this stack, which sigemptyset(3) fills in.
        unsafe {
            let mut none = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        }
        Ok(())
    };
    // SAFETY: signal(2) and sigprocmask(2) are async-signal-safe; the closure allocates nothing.
    unsafe { command.pre_exec(reset) };
    command
}

#[cfg(windows)]
pub fn command(program: impl AsRef<OsStr>) -> std::process::Command {
    std::process::Command::new(program)
}

/// A process that does nothing until it is killed.
pub fn sleeper() -> std::process::Command {
    #[cfg(windows)]
    let mut command = command(windows::programs(&program()).join("sleep.exe"));
    #[cfg(unix)]
    let mut command = command("sleep");
    command.arg("1000");
    command
}

/// A native record that was edited by hand: `change` is made to its document, which is written
/// without the fixed place and the checksum of its slot.
pub fn edited(record: &str, change: impl FnOnce(&mut Value)) -> String {
    let mut document: Value = serde_json::from_str(record).unwrap();
    change(&mut document);
    let version = document.as_object_mut().unwrap().remove("onehold").unwrap();
    let rest = serde_json::to_string_pretty(&document).unwrap();
    // The first key tells what it is.
    rest.replacen('{', &format!("{{\n  \"onehold\": {version},"), 1) + "\n"
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

    #[cfg(unix)]
    pub fn signal(&self, signal: &str) {
        send(self.pid(), signal);
    }

    /// Waits until this wrapper has recorded the start time of its running command. It sleeps only
    /// after that (`S`); until its child executes the command, it is in state `D`.
    #[cfg(unix)]
    pub fn wait_until_recorded(&self) {
        let stat = format!("/proc/{}/stat", self.pid());
        eventually("the wrapper waits for its command", || {
            let stat = fs::read_to_string(&stat).unwrap();
            stat.rsplit_once(") ").unwrap().1.starts_with('S')
        });
    }

    /// Waits for the next line on stderr.
    #[cfg(unix)]
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

    /// Waits for the exit. Returns the exit code, stdout and stderr.
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

    /// Waits for the exit and returns the exit code. Other processes may keep the pipes open.
    pub fn exit_code(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A wrapper forwards TERM to its command, which would otherwise keep running. On Windows the
        // command ends with the wrapper.
        #[cfg(unix)]
        if matches!(self.child.try_wait(), Ok(None)) {
            for signal in ["TERM", "CONT"] {
                let _ = kill(self.child.id(), signal);
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

/// By the shell, since the program is in a package of its own.
#[cfg(unix)]
fn kill(pid: u32, signal: &str) -> bool {
    command("sh")
        .args(["-c", &format!("kill -{signal} {pid}")])
        .stderr(Stdio::null())
        .status()
        .unwrap()
        .success()
}

#[cfg(unix)]
pub fn send(pid: u32, signal: &str) {
    assert!(kill(pid, signal), "kill -{signal} {pid}");
}

/// Waits until another process has done something.
#[track_caller]
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !done() {
        assert!(Instant::now() < deadline, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for a file with a number and a line break.
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

#[cfg(unix)]
#[test]
fn processes_of_tests_start_with_default_signals() {
    // Harmless for the other tests: their processes start with the default action, too.
    // SAFETY: signal(2) with SIG_IGN only sets a disposition.
    unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
    let env = Env::new();
    let mut status = env.command("cat");
    let output = status.arg("/proc/self/status").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for set in ["SigIgn:\t", "SigBlk:\t"] {
        let line = text.lines().find(|line| line.starts_with(set)).unwrap();
        let signals = u64::from_str_radix(&line[set.len()..], 16).unwrap();
        // The C library keeps 32 and 33 for itself.
        assert_eq!(signals & 0x7FFF_FFFF, 0, "{line}");
    }
}
