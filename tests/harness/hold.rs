//! `onehold hold` as a program uses it.

use std::io::{BufRead, BufReader, Read};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

use super::{Running, json_object};

/// `onehold hold`, and this test's ends of its pipes.
pub struct Hold {
    pub running: Running,
    pub stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Hold {
    pub fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::piped());
        let mut running = Running::spawn(command);
        let stdin = running.child.stdin.take();
        let stdout = BufReader::new(running.child.stdout.take().unwrap());
        Self {
            running,
            stdin,
            stdout,
        }
    }

    /// The next line on stdout; empty at its end.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The next line, which has to be this event.
    #[track_caller]
    pub fn event(&mut self, name: &str) -> Value {
        let line = self.line();
        let event = json_object(line.as_bytes());
        assert_eq!(event["event"], name, "{line}");
        event
    }

    /// Closes stdin, as the end of its program does. Returns the exit code.
    #[track_caller]
    pub fn end(&mut self) -> i32 {
        self.stdin = None;
        self.running.finish()
    }

    #[track_caller]
    pub fn told(&mut self) -> String {
        let mut text = String::new();
        let stderr = self.running.child.stderr.as_mut().unwrap();
        stderr.read_to_string(&mut text).unwrap();
        text
    }
}
