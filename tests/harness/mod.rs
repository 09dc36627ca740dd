//! What the test binaries share: one hermetic environment per test, processes that end with the
//! test, contenders that start at once, and waiting for a condition.
//!
//! A test binary takes it in with `mod harness;`, a bench with a `path` attribute.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each binary compiles the whole module and uses a part of it"
)]
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

#[cfg(unix)]
pub mod disk;
pub mod foreign;
pub mod hold;
#[cfg(unix)]
pub mod innocents;
#[cfg(unix)]
pub mod intervals;
#[cfg(target_os = "linux")]
pub mod machine;
#[cfg(target_os = "linux")]
pub mod ring;
pub mod schema;
pub mod seen;
#[cfg(target_os = "linux")]
pub mod waits;
#[cfg(windows)]
mod windows;

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
#[cfg(unix)]
pub use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

/// How long a condition may take that is bound to come true: a loaded machine needs a while.
pub const TIMEOUT: Duration = Duration::from_mins(1);

/// Number of contenders in tests of concurrency, unless a test says otherwise.
pub const CONTENDERS: usize = 8;

/// The program under test, as an absolute path: the one that was built with the tests, or the one that
/// `ONEHOLD_TESTED` names, as the shipped one, which begins and starts commands in another way.
pub fn program() -> PathBuf {
    std::env::var_os("ONEHOLD_TESTED")
        .map_or_else(built, |tested| std::path::absolute(tested).unwrap())
}

fn built() -> PathBuf {
    std::path::absolute(assert_cmd::cargo::cargo_bin!("onehold")).unwrap()
}

/// A program of `tests/examples`, or `programs`, as cargo builds them with the tests.
#[track_caller]
pub fn example(name: &str) -> PathBuf {
    let mut path = built().with_file_name("examples").join(name);
    path.set_extension(std::env::consts::EXE_EXTENSION);
    assert!(path.exists(), "run `cargo build --examples`");
    path
}

/// `cat` and the like, as this process can start them.
pub fn command(name: &str) -> Command {
    #[cfg(windows)]
    let name = windows::programs().join(name);
    Command::new(name)
}

/// A directory of its own for each test, which is HOME, the working directory and the parent of the
/// store. Removed when it is dropped.
pub struct TestEnv {
    pub root: TempDir,
}

impl TestEnv {
    pub fn new() -> Self {
        Self::at(tempfile::tempdir().unwrap())
    }

    /// The same in this directory.
    pub fn at(root: TempDir) -> Self {
        // Where it is ignored, as some parents do, nothing that is started can be waited for.
        #[cfg(unix)]
        // SAFETY: no handler is installed or replaced by any test.
        unsafe {
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        }
        Self { root }
    }

    /// A file below the directory of the test.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub fn store(&self) -> PathBuf {
        self.path("store")
    }

    /// A program in the environment of this test: nothing of the caller's settings, `onehold` in
    /// PATH, no stdin, and the signals as [`reset_signals_of`] leaves them.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if changes_behavior(&name.to_string_lossy()) {
                command.env_remove(name);
            }
        }
        let binaries = self::program().parent().unwrap().to_owned();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut directories = vec![binaries];
        #[cfg(windows)]
        directories.push(windows::programs());
        directories.extend(std::env::split_paths(&path));
        command
            .env("PATH", std::env::join_paths(directories).unwrap())
            .env("HOME", self.root.path())
            .env("USERPROFILE", self.root.path())
            .env("APPDATA", self.root.path())
            .env("LOCALAPPDATA", self.root.path())
            .env("ONEHOLD_DIR", self.store())
            .env("TZ", "UTC")
            .env("LC_ALL", "C.UTF-8")
            .env("TERM", "xterm")
            .current_dir(self.root.path())
            .stdin(Stdio::null());
        #[cfg(unix)]
        reset_signals_of(&mut command);
        command
    }

    /// `onehold ARGS`.
    pub fn onehold<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Command {
        let mut command = self.command(program());
        command.args(args);
        command
    }

    /// Starts `onehold ARGS` without output.
    pub fn start<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Running {
        Running::start(self.onehold(args))
    }

    /// The same with output that is read from pipes.
    pub fn start_with_output<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Running {
        Running::start_with_output(self.onehold(args))
    }

    /// Runs `onehold ARGS` to its end.
    pub fn output<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Output {
        output(&mut self.onehold(args))
    }

    /// The exit code of `onehold ARGS`.
    #[track_caller]
    pub fn code<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> i32 {
        exit_code(self.output(args).status)
    }

    /// Stdout of `onehold ARGS`, which has to succeed.
    #[track_caller]
    pub fn done<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> String {
        let output = self.output(args);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// The JSON object of a command that prints it on stdout.
    #[track_caller]
    pub fn json<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Value {
        let output = output(self.onehold(args).arg("--json"));
        json_object(&output.stdout)
    }

    /// The exit code of `onehold check NAME`.
    #[track_caller]
    pub fn check(&self, name: &str) -> i32 {
        self.code(["check", "-q", name])
    }

    /// `lock` of the JSON object of `onehold check NAME`.
    #[track_caller]
    pub fn lock(&self, name: &str) -> Value {
        self.json(["check", name])["lock"].take()
    }

    #[track_caller]
    pub fn number_of_waiters(&self, name: &str) -> usize {
        self.lock(name)["waiters"].as_array().map_or(0, Vec::len)
    }

    /// `sh -c SCRIPT`, in the environment of this test.
    #[cfg(unix)]
    pub fn shell(&self, script: &str) -> Command {
        let mut command = self.command("sh");
        command.args(["-c", script]);
        command
    }

    /// The same in a new session, which has no terminal.
    #[cfg(unix)]
    pub fn session(&self, script: &str) -> Command {
        let mut command = self.command("setsid");
        command.args(["-w", "sh", "-c", script]);
        command
    }

    /// Starts `onehold run ARGS -- …` and returns when its command has begun. The command ends when
    /// the file `end` is there, or with the directory of the test.
    #[track_caller]
    pub fn hold(&self, args: &[&str]) -> Running {
        let began = self.path("began");
        let _ = fs::remove_file(&began);
        let script = "echo $$ > began; while test -e began && ! test -e end; do sleep 0.005; done";
        let command: &[&str] = if cfg!(windows) {
            &["--", "hold"]
        } else {
            &["--", "sh", "-c", script]
        };
        let run = [&["run"], args, command].concat();
        let holder = self.start(run);
        wait_until("the command of the holder has begun", || {
            fs::read_to_string(&began).is_ok_and(|text| text.ends_with('\n'))
        });
        holder
    }

    /// Ends the command of [`hold`](Self::hold).
    pub fn end(&self) {
        fs::write(self.path("end"), "").unwrap();
    }

    /// The pid that the command of [`hold`](Self::hold) has, or another script that writes it.
    #[track_caller]
    pub fn pid_in(&self, file: &str) -> u32 {
        number_in(&self.path(file))
    }

    /// Leaves `name` with a holder that was killed.
    #[track_caller]
    pub fn create_zombie(&self, name: &str) {
        let mut holder = Running::sleeper();
        self.done(["acquire", name, "--pid", &holder.pid().to_string()]);
        holder.kill();
    }

    /// Number of lines in a file below the directory of the test; 0 if there is no such file.
    pub fn lines(&self, file: &str) -> usize {
        fs::read_to_string(self.path(file)).map_or(0, |text| text.lines().count())
    }

    /// Names of the files in the store, other than its own directory.
    pub fn left_in_store(&self) -> Vec<String> {
        let mut names = names_in(&self.store());
        // Windows needs a file in each store for the guard.
        names.retain(|name| name != ".onehold" && !(cfg!(windows) && name == ".onehold-guard"));
        names
    }

    /// Names of the queues that are left in the store.
    pub fn left_in_queues(&self) -> Vec<String> {
        names_in(&self.path("store/.onehold/waiting"))
    }

    /// Number of `file` that a shell script counts up, one increment per critical section.
    #[track_caller]
    pub fn count_in(&self, file: &str) -> usize {
        let text = fs::read_to_string(self.path(file)).unwrap();
        text.trim().parse().unwrap()
    }
}

/// A shell script that reads a number from a file and writes it back, one higher. Both steps are far
/// enough apart that two such scripts at once lose an increment.
#[cfg(unix)]
pub const INCREMENT: &str = "n=$(cat number 2>/dev/null || echo 0); echo $((n + 1)) > number";

/// Whether an environment variable of the caller would change what the program does.
fn changes_behavior(name: &str) -> bool {
    name.starts_with("ONEHOLD_")
        || [
            "CLAWDBOT_SESSION_ID",
            "CLICOLOR",
            "CLICOLOR_FORCE",
            "COLUMNS",
            "NO_COLOR",
            "PRODIGY_HOME",
            "XDG_CONFIG_HOME",
            "XDG_RUNTIME_DIR",
            "XDG_STATE_HOME",
        ]
        .contains(&name)
}

fn names_in(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Gives a child all signals at their default disposition and an empty mask, whatever this process
/// was started with: under nohup(1) SIGHUP is ignored, and a wrapper hands that on.
#[cfg(unix)]
pub fn reset_signals_of(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    // SAFETY: only async-signal-safe calls, on memory of the child.
    unsafe {
        command.pre_exec(|| {
            reset_signals();
            Ok(())
        });
    }
}

/// Gives this process all signals at their default disposition, and an empty mask.
#[cfg(unix)]
pub fn reset_signals() {
    // SAFETY: both calls are async-signal-safe, and the set is ours. A signal that does not exist
    // or cannot be changed is refused, which is of no concern.
    unsafe {
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// Runs a command to its end. Under Wine a process can end before it has begun, once in thousands,
/// which is reported as an internal error (1359); such a process has done nothing and is started
/// again.
#[track_caller]
pub fn output(command: &mut Command) -> Output {
    for _ in 0..10 {
        match command.output() {
            Err(error) if is_internal_error_of_wine(&error) => {}
            Ok(output)
                if cfg!(windows)
                    && output.status.code() == Some(126)
                    && String::from_utf8_lossy(&output.stderr).contains("nternal error") => {}
            output => return output.unwrap(),
        }
    }
    panic!("no process begins: {command:?}");
}

fn is_internal_error_of_wine(error: &std::io::Error) -> bool {
    cfg!(windows) && error.raw_os_error() == Some(1359)
}

/// The exit code; of a process that was ended by a signal the negative number of the signal.
pub fn exit_code(status: ExitStatus) -> i32 {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return -signal;
    }
    status.code().unwrap()
}

/// What a command has said on stderr.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What `--json` has printed: exactly one object, on one line, as onehold-json(5) says.
#[track_caller]
pub fn json_object(bytes: &[u8]) -> Value {
    let text = std::str::from_utf8(bytes).unwrap();
    assert_eq!(text.lines().count(), 1, "not one line: {text:?}");
    let object = serde_json::from_str(text).unwrap();
    schema::assert_valid(&object);
    object
}

/// The same behind the output of a command.
#[track_caller]
pub fn last_json_object(bytes: &[u8]) -> Value {
    let text = std::str::from_utf8(bytes).unwrap();
    json_object(text.lines().last().unwrap_or_default().as_bytes())
}

/// A time in such an object. Texts do not compare as times: they have 0, 3, 6 or 9 decimals.
#[track_caller]
pub fn time(value: &Value) -> DateTime<Utc> {
    let time = DateTime::parse_from_rfc3339(value.as_str().unwrap());
    time.unwrap().to_utc()
}

/// Waits until a condition is true that is bound to become true; `condition` is a clause.
#[track_caller]
pub fn wait_until(condition: &str, mut is_true: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_true() {
        assert!(
            started.elapsed() < TIMEOUT,
            "timed out after {TIMEOUT:?}; still not true: {condition}"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The number that another process writes into a file, with a line break after it.
#[track_caller]
pub fn number_in(file: &Path) -> u32 {
    let mut number = None;
    wait_until("a file has a number", || {
        number = fs::read_to_string(file)
            .ok()
            .filter(|text| text.ends_with('\n'))
            .and_then(|text| text.trim().parse().ok());
        number.is_some()
    });
    number.unwrap()
}

#[cfg(unix)]
#[track_caller]
pub fn send(pid: u32, signal: Signal) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// A started process, ended when it is dropped.
pub struct Running {
    pub child: Child,
}

impl Running {
    /// Starts a command without output.
    pub fn start(mut command: Command) -> Self {
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Self::spawn(command)
    }

    /// Starts a command whose output is read from pipes.
    pub fn start_with_output(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self::spawn(command)
    }

    /// Starts a command with the output that is set in it.
    pub fn spawn(mut command: Command) -> Self {
        for _ in 0..10 {
            match command.spawn() {
                Err(error) if is_internal_error_of_wine(&error) => {}
                // A child of another test has a script open to write, until it executes.
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                child => {
                    return Self {
                        child: child.unwrap(),
                    };
                }
            }
        }
        panic!("no process begins: {command:?}");
    }

    /// A process that does nothing.
    pub fn sleeper() -> Self {
        Self::sleeper_for(1000)
    }

    pub fn sleeper_for(seconds: u32) -> Self {
        let mut command = command("sleep");
        command.arg(seconds.to_string()).stdin(Stdio::null());
        #[cfg(unix)]
        reset_signals_of(&mut command);
        Self::start(command)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    #[cfg(unix)]
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Kills it and waits for its end.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for its end, within [`TIMEOUT`]; the exit code as [`exit_code`] returns it.
    #[track_caller]
    pub fn finish(&mut self) -> i32 {
        let mut status = None;
        wait_until("a started process has ended", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        exit_code(status.unwrap())
    }

    /// The same, with what it has written to stderr, which has to be a pipe.
    #[track_caller]
    pub fn finish_with_stderr(&mut self) -> (i32, String) {
        let mut text = String::new();
        let stderr = self.child.stderr.as_mut().unwrap();
        stderr.read_to_string(&mut text).unwrap();
        (self.finish(), text)
    }

    /// The same, with stdout and stderr of one that was [started with output](Self::start_with_output).
    #[track_caller]
    pub fn finish_with_output(&mut self) -> (i32, String, String) {
        let code = self.finish();
        let (mut out, mut err) = (String::new(), String::new());
        let (stdout, stderr) = (&mut self.child.stdout, &mut self.child.stderr);
        let (stdout, stderr) = (stdout.as_mut().unwrap(), stderr.as_mut().unwrap());
        stdout.read_to_string(&mut out).unwrap();
        stderr.read_to_string(&mut err).unwrap();
        (code, out, err)
    }

    /// Waits for the next line on stderr, which has to be a pipe.
    #[track_caller]
    pub fn next_line(&mut self) -> String {
        let stderr = self.child.stderr.as_mut().unwrap();
        let mut line = Vec::new();
        let mut byte = [0];
        while !line.ends_with(b"\n") && stderr.read(&mut byte).unwrap() == 1 {
            line.push(byte[0]);
        }
        String::from_utf8(line).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A wrapper forwards TERM to its command, which would otherwise outlive it.
        #[cfg(unix)]
        if matches!(self.child.try_wait(), Ok(None)) {
            let pid = rustix::process::Pid::from_child(&self.child);
            for signal in [Signal::TERM, Signal::CONT] {
                let _ = rustix::process::kill_process(pid, signal);
            }
            let started = Instant::now();
            while started.elapsed() < Duration::from_secs(1) {
                if !matches!(self.child.try_wait(), Ok(None)) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes a program by another process: what a thread starts meanwhile would have the file open for writing until it
/// executes something, and a program that is open for writing is not executed.
#[cfg(unix)]
#[allow(dead_code, reason = "not each test binary has programs of its own")]
#[track_caller]
pub fn write_program(path: &Path, text: &str, mode: u32) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut writer = Command::new("sh");
    writer.args(["-c", r#"cat >"$1" && chmod "$2" "$1""#, "sh"]);
    writer.arg(path).arg(format!("{mode:o}"));
    let mut writer = writer.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = writer.stdin.take().unwrap();
    io::Write::write_all(&mut stdin, text.as_bytes()).unwrap();
    drop(stdin);
    assert!(writer.wait().unwrap().success());
}

/// Starts commands that wait for each other before they begin, and runs them to their ends.
/// They must not read their stdin.
#[cfg(unix)]
#[track_caller]
pub fn run_together(commands: Vec<Command>) -> Vec<Output> {
    let (gate, opens) = std::io::pipe().unwrap();
    let mut children: Vec<Child> = commands
        .into_iter()
        .map(|command| {
            let mut waiting = behind_gate(&command);
            waiting.stdin(gate.try_clone().unwrap());
            waiting.stdout(Stdio::piped()).stderr(Stdio::piped());
            waiting.spawn().unwrap()
        })
        .collect();
    for child in &mut children {
        // Each says that it is there before it waits.
        let stdout = child.stdout.as_mut().unwrap();
        stdout.read_exact(&mut [0]).unwrap();
    }
    drop(opens);
    children
        .into_iter()
        .map(|child| child.wait_with_output().unwrap())
        .collect()
}

/// The same command, which writes a line and waits for the end of its stdin before it begins.
#[cfg(unix)]
fn behind_gate(command: &Command) -> Command {
    let mut waiting = Command::new("sh");
    waiting
        .args(["-c", "echo; read -r _; exec \"$0\" \"$@\" </dev/null"])
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => waiting.env(name, value),
            None => waiting.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        waiting.current_dir(directory);
    }
    reset_signals_of(&mut waiting);
    waiting
}

/// The exit codes of what [`run_together`] returns, sorted.
#[cfg(unix)]
pub fn sorted_codes(outputs: &[Output]) -> Vec<i32> {
    let mut codes: Vec<i32> = outputs
        .iter()
        .map(|output| exit_code(output.status))
        .collect();
    codes.sort_unstable();
    codes
}

/// Whether a process is blocked in flock(2).
#[cfg(target_os = "linux")]
pub fn is_blocked_in_flock(pid: u32) -> bool {
    // A program of 32 bits has another number, and may run beside programs of 64 bits.
    let numbers: &[i64] = if cfg!(any(target_arch = "x86", target_arch = "x86_64")) {
        &[73, 143]
    } else {
        &[32]
    };
    fs::read_to_string(format!("/proc/{pid}/syscall")).is_ok_and(|call| {
        let mut numbers = numbers.iter();
        numbers.any(|number| call.starts_with(&format!("{number} ")))
    })
}

/// Whether a process watches a lock file until something happens to it.
#[cfg(target_os = "linux")]
pub fn watches_a_file(pid: u32) -> bool {
    let files = fs::read_dir(format!("/proc/{pid}/fd"));
    files.into_iter().flatten().flatten().any(|file| {
        fs::read_link(file.path()).is_ok_and(|to| to.as_os_str() == "anon_inode:inotify")
    })
}

/// The pid of a process that has existed and has ended.
pub fn dead_pid() -> u32 {
    let mut ended = Running::sleeper();
    ended.kill();
    ended.pid()
}

/// A generator of pseudorandom numbers (xorshift), the same sequence for each seed.
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }
}

/// Keeps this thread, and what it starts from now on, on one processor; threads take turns. A process that is
/// traced and its tracer wake each other at every stop, which takes a fifth of the time there.
#[cfg(target_os = "linux")]
pub fn stay_on_one_processor() {
    use std::cell::Cell;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    // Of the first thread that asks: those that it starts would have its one.
    static USABLE: OnceLock<Vec<usize>> = OnceLock::new();
    thread_local!(static STAYS: Cell<bool> = const { Cell::new(false) });
    if STAYS.replace(true) {
        return;
    }
    // SAFETY: all-zero is a valid set of processors, and the calls use it only while they last.
    unsafe {
        let none: libc::cpu_set_t = std::mem::zeroed();
        let size = size_of_val(&none);
        let usable = USABLE.get_or_init(|| {
            let mut allowed = none;
            assert_eq!(libc::sched_getaffinity(0, size, &raw mut allowed), 0);
            let all = 0..usize::try_from(libc::CPU_SETSIZE).unwrap();
            all.filter(|processor| libc::CPU_ISSET(*processor, &allowed))
                .collect()
        });
        let mut one = none;
        let turn = NEXT.fetch_add(1, Ordering::Relaxed) % usable.len();
        libc::CPU_SET(usable[turn], &mut one);
        assert_eq!(libc::sched_setaffinity(0, size, &raw const one), 0);
    }
}

/// Does work on four threads; the failures.
pub fn for_all<T: Sync>(
    work: &[T],
    check: impl Fn(&T) -> Result<(), String> + Sync,
) -> Vec<String> {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let failures = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while let Some(one) =
                    work.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
                {
                    if let Err(failure) = check(one) {
                        failures.lock().unwrap().push(failure);
                    }
                }
            });
        }
    });
    failures.into_inner().unwrap()
}
