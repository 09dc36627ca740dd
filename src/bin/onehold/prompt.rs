//! Questions on the terminal.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::sync::mpsc;
use std::time::Duration;

use anstream::AutoStream;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Yes,
    No,
    NoTerminal,
}

/// Asks on the controlling terminal, whatever stdin is. No answer within 30 s counts as no. The
/// caller must not hold a lock or the guard, because the answer can take that long.
pub(crate) fn ask(question: &str) -> Answer {
    let terminal = OpenOptions::new().read(true).write(true).open("/dev/tty");
    let Ok(terminal) = terminal else {
        return Answer::NoTerminal;
    };
    let Ok(output) = terminal.try_clone() else {
        return Answer::NoTerminal;
    };
    // Follows --color, NO_COLOR and TERM, as all other output does.
    if write!(AutoStream::auto(output), "{question} [y/N] ").is_err() {
        return Answer::NoTerminal;
    }
    let (sender, answer) = mpsc::channel();
    // Reading a terminal has no timeout, so a thread reads. It ends with the program.
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = BufReader::new(&terminal).read_line(&mut line);
        let _ = sender.send(read.map(|_| line).unwrap_or_default());
    });
    match answer.recv_timeout(ANSWER_TIMEOUT) {
        Ok(line) if matches!(line.trim().to_lowercase().as_str(), "y" | "yes") => Answer::Yes,
        Ok(_) => Answer::No,
        Err(_) => {
            crate::output::eprint("\nonehold: no answer within 30 s, assuming no");
            Answer::No
        }
    }
}
