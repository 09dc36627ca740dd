//! Questions on the terminal.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::sync::{LazyLock, Mutex, PoisonError, mpsc};
use std::time::Duration;

use anstream::AutoStream;
use onehold::Status;

use crate::configuration::Session;
use crate::messages::{Exit, Outcome, Refusal, describe_holder, local};
use crate::output::{self, block};
use crate::supervising::{Then, cancel, die_with, in_thread};
use crate::words;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// What came of the questions before one that is canceled.
#[derive(Clone, Default)]
pub(crate) struct SoFar {
    pub(crate) broken: Vec<Status>,
    /// With `--json`. Otherwise they are printed at once.
    pub(crate) warnings: Vec<String>,
    /// Messages about holds that were not broken.
    pub(crate) not_broken: Vec<String>,
}

static SO_FAR: LazyLock<Mutex<SoFar>> = LazyLock::new(Mutex::default);

/// The report of a later signal tells this, too.
pub(crate) fn note_so_far<T>(note: impl FnOnce(&mut SoFar) -> T) -> T {
    note(&mut SO_FAR.lock().unwrap_or_else(PoisonError::into_inner))
}

/// From now on a signal that ends the program is reported.
pub(crate) fn report_cancel(session: &Session, then: Then) {
    let session = session.clone();
    let report = move |signal, why: Option<&'static str>| {
        let so_far = note_so_far(std::mem::take);
        let mut outcome = if let Some(why) = die_with::has_exited() {
            die_with::not_started(session.verb, why)
        } else {
            let because = why.map_or_else(String::new, |why| format!(": {why}"));
            let result = match session.verb {
                "run" => "; the command was not started",
                "break" if so_far.broken.is_empty() => "; nothing was broken",
                "break" => "; nothing more was broken",
                _ => "",
            };
            let text = format!("canceled{because}{result}");
            Outcome::refused(Refusal::INTERRUPTED, text)
        };
        outcome.exit = Exit::signal(signal);
        outcome.locks = so_far.broken;
        outcome.warnings = so_far.warnings;
        let not_broken = so_far.not_broken.iter();
        outcome = outcome.notes(not_broken.map(|text| format!("  {text}")));
        let _ = output::print_outcome(&session, &outcome);
    };
    cancel::on_interrupt(then, report);
}

/// Shows a lock and asks a question. Without a terminal, the answer is no. `effects`: what the answer yes
/// does; `instead`: the options that give it.
pub(crate) fn confirm(
    session: &Session,
    status: &Status,
    effects: &[String],
    question: &str,
    instead: &str,
) -> bool {
    report_cancel(session, Then::Ends);
    let mut lines = vec![format!("onehold: {}", describe_holder(status, local))];
    lines.extend(block(status, session.global.verbose));
    lines.extend(effects.iter().map(|line| format!("  {line}")));
    lines.push(format!("  {question}"));
    ask(&lines.join("\n")).unwrap_or_else(|reason| {
        output::eprint(&format!(
            "onehold: cannot ask for confirmation: {reason} (use {instead})"
        ));
        false
    })
}

/// Whether there is a terminal to ask on.
pub(crate) fn has_terminal() -> bool {
    terminal().is_ok()
}

fn terminal() -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).open("/dev/tty")
}

/// Asks on the controlling terminal, whatever stdin is; whether the answer is yes, or why it cannot ask. No
/// answer within 30 s counts as no. The caller must not hold a lock or the guard, because the answer can take that long.
fn ask(question: &str) -> Result<bool, String> {
    let no_terminal = |_| "no terminal".to_owned();
    let terminal = terminal().map_err(no_terminal)?;
    let output = terminal.try_clone().map_err(no_terminal)?;
    let (sender, answer) = mpsc::channel();
    // Reading a terminal has no timeout, so a thread reads. It ends with the program.
    let reader = in_thread("answer", move || {
        let mut line = String::new();
        let read = BufReader::new(&terminal).read_line(&mut line);
        let _ = sender.send(read.map(|_| line).unwrap_or_default());
    });
    reader.map_err(|error| words::cause_text(error.as_ref()))?;
    // Follows --color, NO_COLOR and TERM, as all other output does.
    write!(AutoStream::auto(output), "{question} [y/N] ").map_err(no_terminal)?;
    let answer = answer.recv_timeout(ANSWER_TIMEOUT).unwrap_or_else(|_| {
        output::eprint("\nonehold: no answer within 30 s, assuming no");
        String::new()
    });
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
