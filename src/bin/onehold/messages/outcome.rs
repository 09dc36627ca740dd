//! The result of a command: what to print, and the exit code. Why it fails or is refused: one table.

use std::borrow::Cow;
use std::fmt::Write as _;

use onehold::Status;
use onehold::command_line::signal::exit_by_signal;
use serde_json::{Value, json};

use crate::messages::Exit;
use crate::words;

/// The result of a command.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) exit: Exit,
    /// `status` of the JSON object.
    pub(crate) status: &'static str,
    pub(crate) lock: Option<Box<Status>>,
    pub(crate) locks: Vec<Status>,
    /// They are as they were before they were removed.
    pub(crate) is_removed: bool,
    /// `message` of the JSON object. Printed to stderr on failure.
    pub(crate) message: String,
    /// Text for stdout.
    pub(crate) data: Option<String>,
    /// Lines for stderr, not printed with --quiet if the exit code says enough.
    pub(crate) notes: Vec<String>,
    /// Problems that do not make the command fail.
    pub(crate) warnings: Vec<String>,
    /// The reason of a failure.
    pub(crate) failure: Option<Failure>,
    /// Number of the new hold.
    pub(crate) hold: Option<u64>,
    /// The hold that was taken over or taken by force. Its others are the rest, if there were several.
    pub(crate) displaced: Option<Box<Status>>,
    /// Exit code of the command of `run`.
    pub(crate) command_exit_code: Option<i32>,
    /// Further keys of the JSON object.
    pub(crate) more: Value,
}

/// A failure, as the JSON object has it.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) refusal: Refusal,
    /// That of the refusal, or of the profile's program for it.
    pub(crate) code: Cow<'static, str>,
    pub(crate) details: Value,
}

impl Outcome {
    pub(crate) fn new(exit: Exit, status: &'static str, message: impl Into<String>) -> Self {
        Self {
            exit,
            status,
            message: message.into(),
            ..Self::default()
        }
    }

    /// The outcome of a failure or refusal.
    pub(crate) fn refused(refusal: Refusal, message: impl Into<String>) -> Self {
        Self::new(refusal.exit, refusal.status, message).failure(refusal)
    }

    fn failure(mut self, refusal: Refusal) -> Self {
        self.failure = Some(Failure {
            refusal,
            code: refusal.code.into(),
            details: json!({}),
        });
        self
    }

    /// `error.details` of the JSON object.
    pub(crate) fn details(mut self, details: Value) -> Self {
        if let Some(failure) = &mut self.failure {
            failure.details = details;
        }
        self
    }

    pub(crate) fn lock(mut self, status: Box<Status>) -> Self {
        self.lock = Some(status);
        self
    }

    /// The lock as it was before it was removed.
    pub(crate) fn removed(mut self, was: Box<Status>) -> Self {
        self.is_removed = true;
        self.lock(was)
    }

    pub(crate) fn data(mut self, data: impl Into<String>) -> Self {
        self.data = Some(data.into());
        self
    }

    pub(crate) fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    pub(crate) fn notes(mut self, notes: impl IntoIterator<Item = String>) -> Self {
        self.notes.extend(notes);
        self
    }

    pub(crate) fn warnings(mut self, warnings: &[onehold::Error]) -> Self {
        self.warnings
            .extend(warnings.iter().map(words::error_chain));
        self
    }

    /// What was found, or nothing and a warning.
    pub(crate) fn found<T: Default>(&mut self, result: onehold::Result<T>) -> T {
        result.unwrap_or_else(|error| {
            self.warnings.push(words::error_chain(&error));
            T::default()
        })
    }

    /// Tells the message of a success, too, if that is wanted: cron mails all output.
    pub(crate) fn told_if(mut self, is_wanted: bool) -> Self {
        if is_wanted && self.failure.is_none() {
            self.notes.push(format!("onehold: {}", self.message));
        }
        self
    }

    /// Fails if files could not be processed, and warns of these errors, which name them.
    pub(crate) fn incomplete(mut self, errors: impl Iterator<Item = String>, done: &str) -> Self {
        let before = self.warnings.len();
        self.warnings.extend(errors);
        let count = self.warnings.len() - before;
        if count == 0 {
            return self;
        }
        self.exit = Exit::FAILED;
        let _ = write!(self.message, "; {count} could not be {done}");
        self.failure(Refusal::INCOMPLETE)
    }
}

/// The holds that were displaced, as one object: the first one, with the others beside it.
pub(crate) fn displaced(displaced: &[Status]) -> Option<Box<Status>> {
    let (first, others) = displaced.split_first()?;
    let mut first = first.clone();
    first.others = others.to_vec();
    Some(Box::new(first))
}

/// An outcome that may have been printed already.
pub(crate) enum Printed {
    Yes(Exit),
    No(Box<Outcome>),
}

impl Printed {
    /// Ends this program as the signal does, at the latest when it exits.
    pub(crate) fn by_signal(signal: i32) -> Self {
        exit_by_signal(signal);
        Self::Yes(Exit::signal(signal))
    }
}

impl From<Outcome> for Printed {
    fn from(outcome: Outcome) -> Self {
        Self::No(Box::new(outcome))
    }
}

/// The result of the function of a command.
pub(crate) type CommandResult = anyhow::Result<Printed>;

/// The reason of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Some commands exit with another code.
    pub(crate) exit: Exit,
    /// `status` of the JSON object.
    pub(crate) status: &'static str,
    /// `error.code` of the JSON object. onehold-json(5) lists them.
    pub(crate) code: &'static str,
}

impl Refusal {
    // Another holder is in the way.
    pub(crate) const LOCKED: Self = Self::row(Exit::LOCKED, "blocked", "LOCKED");
    pub(crate) const TIMEOUT: Self = Self::row(Exit::TIMED_OUT, "timeout", "TIMEOUT");
    pub(crate) const QUEUE_FULL: Self = Self::row(Exit::LOCKED, "blocked", "QUEUE_FULL");
    pub(crate) const DEADLOCK: Self = Self::row(Exit::LOCKED, "blocked", "DEADLOCK");
    pub(crate) const RESERVED: Self = Self::row(Exit::LOCKED, "blocked", "RESERVED");
    pub(crate) const ZOMBIE: Self = Self::row(Exit::ZOMBIE, "zombie-detected", "ZOMBIE");
    pub(crate) const MALFORMED: Self = Self::row(Exit::ZOMBIE, "zombie-detected", "MALFORMED");

    // The hold is not as the command wants it, or not in its power.
    pub(crate) const NOT_OWNER: Self = Self::row(Exit::NOT_YOURS, "failure", "NOT_OWNER");
    pub(crate) const NOT_HELD: Self = Self::row(Exit::NOT_HELD, "failure", "NOT_HELD");
    pub(crate) const NOT_CONFIRMED: Self = Self::row(Exit::LOCKED, "blocked", "NOT_CONFIRMED");
    pub(crate) const SEVERAL_HOLDERS: Self = Self::row(Exit::USAGE, "failure", "SEVERAL_HOLDERS");
    pub(crate) const KERNEL_LOCK: Self = Self::row(Exit::FAILED, "failure", "KERNEL_LOCK");
    pub(crate) const STILL_RUNNING: Self = Self::row(Exit::FAILED, "failure", "STILL_RUNNING");
    pub(crate) const NOT_A_LOCK: Self = Self::row(Exit::FAILED, "failure", "NOT_A_LOCK");
    pub(crate) const NOT_RENEWABLE: Self = Self::row(Exit::FAILED, "failure", "NOT_RENEWABLE");
    pub(crate) const UNFIT: Self = Self::row(Exit::FAILED, "failure", "UNFIT");
    pub(crate) const INCOMPLETE: Self = Self::row(Exit::FAILED, "failure", "INCOMPLETE");

    // It ended before its time.
    pub(crate) const LOST: Self = Self::row(Exit::LOST, "lost", "LOST");
    pub(crate) const TIME_LIMIT: Self = Self::row(Exit::TIME_LIMIT, "failure", "TIME_LIMIT");
    pub(crate) const CALLER_EXITED: Self =
        Self::row(Exit(128 + 15), "interrupted", "CALLER_EXITED");
    pub(crate) const INTERRUPTED: Self = Self::row(Exit::FAILED, "interrupted", "INTERRUPTED");

    // What was asked for makes no sense, or is not possible.
    pub(crate) const USAGE: Self = Self::row(Exit::USAGE, "failure", "USAGE");
    pub(crate) const INVALID_NAME: Self = Self::row(Exit::USAGE, "failure", "INVALID_NAME");
    pub(crate) const TOO_LONG: Self = Self::row(Exit::USAGE, "failure", "TOO_LONG");
    pub(crate) const UNSUPPORTED: Self = Self::row(Exit::USAGE, "failure", "UNSUPPORTED");
    pub(crate) const NO_SUCH_PROCESS: Self = Self::row(Exit::FAILED, "failure", "NO_SUCH_PROCESS");
    pub(crate) const NO_HOLDER: Self = Self::row(Exit::FAILED, "failure", "NO_HOLDER");
    pub(crate) const COMMAND_NOT_FOUND: Self =
        Self::row(Exit::NOT_FOUND, "failure", "COMMAND_NOT_FOUND");
    pub(crate) const COMMAND_NOT_EXECUTABLE: Self =
        Self::row(Exit::NOT_EXECUTABLE, "failure", "COMMAND_NOT_EXECUTABLE");

    // The store or the system fails.
    pub(crate) const STORE_CHANGED: Self = Self::row(Exit::LOCKED, "blocked", "STORE_CHANGED");
    pub(crate) const STORE_BUSY: Self = Self::row(Exit::FAILED, "failure", "STORE_BUSY");
    pub(crate) const STORE: Self = Self::row(Exit::FAILED, "failure", "STORE");
    pub(crate) const NO_ATOMIC_EXCHANGE: Self =
        Self::row(Exit::FAILED, "failure", "NO_ATOMIC_EXCHANGE");
    pub(crate) const IO: Self = Self::row(Exit::FAILED, "failure", "IO");
    pub(crate) const FAILED: Self = Self::row(Exit::FAILED, "failure", "FAILED");

    const fn row(exit: Exit, status: &'static str, code: &'static str) -> Self {
        Self { exit, status, code }
    }

    /// Whether another holder is in the way, which the exit code says, too.
    pub(crate) fn is_conflict(self) -> bool {
        let says_so = matches!(self.exit, Exit::LOCKED | Exit::TIMED_OUT | Exit::ZOMBIE);
        says_so && self != Self::NOT_CONFIRMED
    }

    /// What would let a refused call wait, if that is not --wait. `is_limited`: it waited as long as the configuration
    /// allows.
    pub(crate) fn to_wait(self, is_limited: bool) -> Option<&'static str> {
        Some(match self {
            Self::TIMEOUT if is_limited => {
                "to wait longer, call again, or raise wait-limit in the configuration"
            }
            Self::TIMEOUT => "to wait longer, raise --wait",
            Self::QUEUE_FULL => "to wait, raise --max-waiting",
            Self::DEADLOCK => {
                "to avoid it, take both locks by one call, or everywhere in one order"
            }
            _ => return None,
        })
    }
}
