//! The result of a command: what to print, and the exit code.

use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::Path;

use onehold::signal::exit_by_signal;
use onehold::{Error, Status};
use serde_json::{Value, json};

use crate::args::UsageError;
use crate::exit::Exit;
use crate::refusal::Refusal;
use crate::session::Session;
use crate::suggested::store_command;
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

    /// `count` files could not be processed. The warnings name them.
    pub(crate) fn incomplete(mut self, count: usize, done: &str) -> Self {
        self.exit = Exit::Failed;
        let _ = write!(self.message, "; {count} could not be {done}");
        self.failure(Refusal::INCOMPLETE)
    }
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

/// The exit code of an error.
pub(crate) fn exit_of(refusal: Refusal, verb: &str) -> Exit {
    match (refusal.exit, verb) {
        (Exit::Failed, "run") => Exit::RunFailed,
        (exit, _) => exit,
    }
}

/// The outcome of an error.
pub(crate) fn failed(session: &Session, error: &anyhow::Error) -> Outcome {
    let known = error.downcast_ref::<Error>();
    let refusal = known.map_or_else(|| refusal_without_store(error), refusal_for);
    let foreign = known.and_then(|known| session.config.settings.foreign_message(known));
    let own = || known.map_or_else(|| format!("{error:#}"), words::error_chain);
    let mut outcome = Outcome::refused(refusal, foreign.unwrap_or_else(own));
    if refusal == Refusal::LOST && session.verb != "run" {
        (outcome.exit, outcome.status) = (Exit::Failed, "failure");
    } else {
        outcome.exit = exit_of(refusal, session.verb);
    }
    outcome.notes.extend(match known {
        Some(known) => hint(session, known),
        None if refusal == Refusal::USAGE => {
            Some(format!("  for help, run `onehold {} --help`", session.verb))
        }
        None => None,
    });
    outcome
}

/// The reason of an error that is none of the library's.
pub(crate) fn refusal_without_store(error: &anyhow::Error) -> Refusal {
    if error.is::<UsageError>() {
        Refusal::USAGE
    } else {
        Refusal::FAILED
    }
}

fn refusal_for(error: &Error) -> Refusal {
    match error {
        Error::InvalidName { .. } => Refusal::INVALID_NAME,
        Error::TooLong { .. } => Refusal::TOO_LONG,
        Error::Unsupported { .. } | Error::NotOnEtcd { .. } => Refusal::UNSUPPORTED,
        Error::NotALock { .. } => Refusal::NOT_A_LOCK,
        Error::NotRenewable { .. } => Refusal::NOT_RENEWABLE,
        Error::StoreBusy { .. } => Refusal::STORE_BUSY,
        Error::NoSuchProcess { .. } => Refusal::NO_SUCH_PROCESS,
        Error::NoHolder => Refusal::NO_HOLDER,
        Error::NoAtomicExchange { .. } => Refusal::NO_ATOMIC_EXCHANGE,
        Error::LostWhileAcquiring { .. } => Refusal::LOST,
        Error::Remote { .. } => Refusal::STORE,
        Error::Spawn { source, .. } => match source.kind() {
            ErrorKind::NotFound => Refusal::COMMAND_NOT_FOUND,
            // fork(2) failed, not execve(2).
            ErrorKind::WouldBlock | ErrorKind::OutOfMemory => Refusal::IO,
            _ => Refusal::COMMAND_NOT_EXECUTABLE,
        },
        _ => Refusal::IO,
    }
}

/// Returns whether a path is that of the profile's lock.
fn is_at_fixed_path(session: &Session, path: &Path) -> bool {
    let only = session.only.clone();
    let lock = only.and_then(|name| session.lock(name).ok());
    session.config.profile.is_some() && lock.is_some_and(|lock| lock.path() == path)
}

/// What removes a file that onehold does not remove.
fn removal(path: &Path) -> String {
    if cfg!(windows) {
        return format!(
            "if no program needs it, remove `{}`",
            words::path_text(path)
        );
    }
    let is_directory = path.symlink_metadata().is_ok_and(|found| found.is_dir());
    let rm = if is_directory { "rm -r" } else { "rm" };
    let path = words::escape(&words::shell_quoted(&path.to_string_lossy()));
    format!("if no program needs it, run `{rm} {path}`")
}

/// What to do about an error.
fn hint(session: &Session, error: &Error) -> Option<String> {
    let text = match error {
        Error::LostWhileAcquiring { .. } if session.verb == "run" => {
            "  the command was not started".to_owned()
        }
        // Another name would be another lock.
        Error::NotALock { path, .. } if is_at_fixed_path(session, path) => match session.verb {
            "break" => {
                "  file left unchanged: it is not a regular file, or changed less than 10 s ago"
                    .to_owned()
            }
            _ => format!(
                "  file left unchanged; to move it aside, run `{}`",
                store_command(session, "break")
            ),
        },
        Error::NotRenewable { .. } => {
            "  file left unchanged; to get a new record, release the lock and acquire it again"
                .to_owned()
        }
        Error::NoHolder => "  use --pid PID, or --ttl D for a lease".to_owned(),
        #[cfg(feature = "etcd")]
        Error::NotALock { path, .. } if session.store.is_remote() => crate::etcd::removal(path)?,
        // Its programs choose the names.
        Error::NotALock { path, .. } if session.config.profile.is_some() => format!(
            "  left unchanged; onehold only removes locks: {}",
            removal(path)
        ),
        Error::NotALock { .. } if session.verb == "break" => {
            "  left unchanged; onehold only removes locks".to_owned()
        }
        Error::NotALock { .. } => "  left unchanged; use another lock name".to_owned(),
        Error::StoreBusy { pid: Some(pid), .. } => {
            format!(
                "  to see it, run `ps -o pid,stat,args -p {pid}`; if it is stopped, run `kill -CONT {pid}`"
            )
        }
        Error::Remote {
            remedy: Some(remedy),
            ..
        } => format!("  {remedy}"),
        Error::NoAtomicExchange { .. } => {
            "  use `onehold break`, or a store on another filesystem".to_owned()
        }
        _ => return None,
    };
    Some(text)
}

/// Prints the message of a success only with --verbose: cron mails all output.
pub(crate) fn with_message_if_verbose(session: &Session, mut outcome: Outcome) -> Outcome {
    if session.global.verbose && outcome.failure.is_none() {
        outcome.notes.push(format!("onehold: {}", outcome.message));
    }
    outcome
}
