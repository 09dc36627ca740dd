//! Questions to the person at the terminal.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::sync::mpsc;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);

/// What a question came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Yes,
    No,
    /// There is no terminal to ask on.
    Nobody,
}

/// Asks on the controlling terminal, whatever stdin is. No answer within 30 s is no. Called
/// without any lock or guard: whoever is asked may take his time.
pub(crate) fn ask(question: &str) -> Answer {
    let Ok(mut terminal) = OpenOptions::new().read(true).write(true).open("/dev/tty") else {
        return Answer::Nobody;
    };
    if write!(terminal, "{question} [y/N] ").is_err() {
        return Answer::Nobody;
    }
    let (answered, answer) = mpsc::channel();
    // A thread, because reading a terminal has no timeout; it ends with the program.
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = BufReader::new(&terminal).read_line(&mut line);
        let _ = answered.send(read.map(|_| line).unwrap_or_default());
    });
    match answer.recv_timeout(PATIENCE) {
        Ok(line) if matches!(line.trim().to_lowercase().as_str(), "y" | "yes") => Answer::Yes,
        Ok(_) => Answer::No,
        Err(_) => {
            crate::output::talk("\nonehold: no answer for 30 s, which is no");
            Answer::No
        }
    }
}
