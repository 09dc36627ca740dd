//! Lock files of other programs: reading, takeover and writing.

mod holds;
mod shown;
mod states;
mod written;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::SystemTime;

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::Value;

use crate::harness::{Running, TestEnv};

/// Another program: its file, and the options that make onehold use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
    Prodigy,
    Sprint,
    Memory1,
    Memory2,
    PidFile,
}

const ALL: [System; 5] = [
    System::Prodigy,
    System::Sprint,
    System::Memory1,
    System::Memory2,
    System::PidFile,
];

impl System {
    /// Global options and the lock name.
    fn words(self) -> (&'static [&'static str], &'static str) {
        match self {
            Self::Prodigy => (&["--profile", "prodigy"], "job-1"),
            Self::Sprint => (&["--profile", "sprint"], "./.sprint-running"),
            Self::Memory1 | Self::Memory2 => (&["--profile", "memory"], "./memory/.lock"),
            Self::PidFile => (&["--format", "pid"], "./daemon.pid"),
        }
    }

    fn file(self, env: &TestEnv) -> PathBuf {
        env.path(match self {
            Self::Prodigy => ".prodigy/resume_locks/job-1.lock",
            Self::Sprint => ".sprint-running",
            Self::Memory1 | Self::Memory2 => "memory/.lock",
            Self::PidFile => "daemon.pid",
        })
    }

    /// The file as that program writes it.
    fn text(self, pid: u32, host: &str, at: DateTime<Utc>) -> String {
        let python = at.format("%Y-%m-%dT%H:%M:%S%.6f+00:00");
        match self {
            Self::Prodigy => format!(
                "{{\n  \"job_id\": \"job-1\",\n  \"process_id\": {pid},\n  \"hostname\": \"{host}\",\n  \"acquired_at\": \"{}\"\n}}",
                at.to_rfc3339_opts(SecondsFormat::Nanos, true)
            ),
            Self::Sprint => format!(
                "pid: {pid}\nsession_id: \"sprint-1\"\nstarted_at: \"{}\"\nepic_spec: \"epic5\"\nlock_version: 1\n",
                at.to_rfc3339_opts(SecondsFormat::Secs, true)
            ),
            Self::Memory1 => format!(
                "{{\n  \"pid\": {pid},\n  \"session_id\": \"main\",\n  \"acquired_at\": \"{python}\",\n  \"hostname\": \"{host}\",\n  \"operation\": \"write:tasks.json\"\n}}"
            ),
            Self::Memory2 => format!(
                "{{\n  \"pid\": {pid},\n  \"session_id\": \"main\",\n  \"token\": \"0123456789abcdef\",\n  \"acquired_at\": \"{python}\",\n  \"heartbeat_at\": \"{python}\",\n  \"hostname\": \"{host}\",\n  \"operation\": \"write:tasks.json\"\n}}"
            ),
            Self::PidFile => format!("{pid}\n"),
        }
    }

    /// Writes the file and sets its time.
    fn leave(self, env: &TestEnv, text: &str, modified: DateTime<Utc>) {
        let path = self.file(env);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::from(modified)).unwrap();
    }

    fn onehold(self, env: &TestEnv, verb: &str, more: &[&str]) -> Command {
        let (global, lock) = self.words();
        let mut command = env.onehold(global);
        command.arg(verb);
        if !matches!(verb, "list" | "cleanup") {
            command.arg(lock);
        }
        command.args(more);
        command
    }

    fn lock(self, env: &TestEnv) -> Value {
        let output = self.onehold(env, "check", &["--json"]).output().unwrap();
        crate::harness::json_object(&output.stdout)["lock"].take()
    }

    /// Runs `true` under the lock and returns the exit code.
    fn take(self, env: &TestEnv) -> Option<i32> {
        let mut options = vec!["-n", "--owner", "me", "-m", "why", "--on-zombie", "take"];
        options.extend(["--", "true"]);
        let output = self.onehold(env, "run", &options).output().unwrap();
        output.status.code()
    }
}

fn this_host() -> String {
    hostname::get().unwrap().into_string().unwrap()
}

/// A PID without a process.
fn gone() -> u32 {
    let mut process = Running::sleeper();
    process.kill();
    process.pid()
}
