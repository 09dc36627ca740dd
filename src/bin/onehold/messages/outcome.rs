//! The result of a command: what to print, and the exit code.

use std::fmt::Write as _;

use onehold::command_line::signal::exit_by_signal;
use onehold::{Error, Status};
use serde_json::{Value, json};

use crate::messages::exit::Exit;
use crate::messages::refusal::Refusal;
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
    /// The code of the profile's program for it.
    pub(crate) foreign_code: Option<Box<str>>,
    pub(crate) details: Value,
}

impl Failure {
    pub(crate) fn code(&self) -> &str {
        let foreign = self.foreign_code.as_deref();
        foreign.unwrap_or(self.refusal.code)
    }
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
            foreign_code: None,
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

    /// Fails if these files could not be processed. The warnings name them.
    pub(crate) fn incomplete(mut self, errors: &[Error], done: &str) -> Self {
        if errors.is_empty() {
            return self;
        }
        let count = errors.len();
        self.exit = Exit::Failed;
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
        Self::Yes(Exit::Signal(signal))
    }
}

impl From<Outcome> for Printed {
    fn from(outcome: Outcome) -> Self {
        Self::No(Box::new(outcome))
    }
}

/// The result of the function of a command.
pub(crate) type CommandResult = anyhow::Result<Printed>;
