//! What the tests of the command line do in their environment, beside what all do.

use std::ffi::OsStr;
use std::fs;
#[cfg(unix)]
use std::io::{Read, Write};
#[cfg(unix)]
use std::path::Path;
use std::path::PathBuf;
#[cfg(unix)]
use std::process::{Command, Stdio};
#[cfg(unix)]
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::harness::{Running, TestEnv, wait_until};
#[cfg(unix)]
use crate::harness::{exit_code, program};

/// What a [sleeper](Running::sleeper) is called in messages.
pub const SLEEP: &str = if cfg!(windows) { "sleep.exe" } else { "sleep" };

impl TestEnv {
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
        let mut command = self.command("setpriv");
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
    pub fn on_a_terminal(&self, words: &str, answers: &[&str]) -> (i32, String) {
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
    ) -> (i32, String) {
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
        let code = exit_code(child.wait().unwrap());
        (code, String::from_utf8(seen).unwrap())
    }

    /// Waits until there is a waiter in the queue of `name`.
    pub fn wait_for_waiter(&self, name: &str) {
        wait_until("there is a waiter", || self.number_of_waiters(name) > 0);
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
        let holder = Running::sleeper();
        self.done(["acquire", name, "--pid", &holder.pid().to_string()]);
        let path = self.store().join(format!("{name}.lock"));
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, change(text)).unwrap();
        holder
    }

    /// The text of a lock file.
    pub fn record(&self, name: &str) -> String {
        fs::read_to_string(self.store().join(format!("{name}.lock"))).unwrap_or_default()
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

#[cfg(unix)]
impl Running {
    /// Waits until this wrapper has recorded the start time of its running command. It sleeps only
    /// after that (`S`); until its child executes the command, it is in state `D`.
    pub fn wait_until_recorded(&self) {
        let stat = format!("/proc/{}/stat", self.pid());
        wait_until("the wrapper waits for its command", || {
            let stat = fs::read_to_string(&stat).unwrap();
            stat.rsplit_once(") ").unwrap().1.starts_with('S')
        });
    }
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

/// Makes a file look as if it had not changed for a minute.
#[cfg(unix)]
pub fn make_older(path: &Path) {
    let file = fs::File::options().write(true).open(path).unwrap();
    let minute_ago = SystemTime::now() - Duration::from_mins(1);
    file.set_modified(minute_ago).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn child_of_a_test_has_all_signals_at_their_defaults() {
    // As under nohup(1), which the test process then hands on.
    // SAFETY: no test sends this signal to the test process.
    unsafe {
        libc::signal(libc::SIGHUP, libc::SIG_IGN);
    }
    let env = TestEnv::new();
    let output = crate::harness::output(env.command("cat").arg("/proc/self/status"));
    let text = String::from_utf8(output.stdout).unwrap();
    for field in ["SigBlk:\t", "SigIgn:\t"] {
        let signals = text.lines().find_map(|line| line.strip_prefix(field));
        let signals = u64::from_str_radix(signals.unwrap(), 16).unwrap();
        // 32 and 33 are reserved by libc, which refuses to change them.
        assert_eq!(signals & !(0b11 << 31), 0, "{text}");
    }
}
