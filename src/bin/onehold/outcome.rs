//! The result of a command: what to print, and the exit code.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::Path;

use onehold::{Error, Status};
use serde_json::{Map, Value, json};

use crate::args::UsageError;
use crate::exit::Exit;
use crate::session::Session;
use crate::suggested::store_command;
use crate::words;

/// The result of a command.
#[derive(Debug)]
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
    pub(crate) more: Map<String, Value>,
}

/// The reason of a failure.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) code: Cow<'static, str>,
    pub(crate) details: Value,
    /// Another holder has the lock, which the exit code says, too.
    pub(crate) is_conflict: bool,
}

impl Outcome {
    pub(crate) fn new(exit: Exit, status: &'static str, message: impl Into<String>) -> Self {
        Self {
            exit,
            status,
            lock: None,
            locks: Vec::new(),
            is_removed: false,
            message: message.into(),
            data: None,
            notes: Vec::new(),
            warnings: Vec::new(),
            failure: None,
            hold: None,
            displaced: None,
            command_exit_code: None,
            more: Map::new(),
        }
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
            .extend(warnings.iter().map(crate::words::error_chain));
        self
    }

    pub(crate) fn failure(mut self, code: &'static str, details: Value) -> Self {
        self.failure = Some(Failure {
            code: code.into(),
            details,
            is_conflict: false,
        });
        self
    }

    /// Another holder has the lock.
    pub(crate) fn conflict(mut self, code: impl Into<Cow<'static, str>>, details: Value) -> Self {
        self.failure = Some(Failure {
            code: code.into(),
            details,
            is_conflict: true,
        });
        self
    }
}

impl Outcome {
    /// `count` files could not be processed. The warnings name them.
    pub(crate) fn incomplete(mut self, count: usize, done: &str) -> Self {
        self.exit = Exit::Failed;
        let _ = write!(self.message, "; {count} could not be {done}");
        self.failure("INCOMPLETE", serde_json::json!({}))
    }
}

/// An outcome that may have been printed already.
pub(crate) enum Printed {
    Yes(Exit),
    No(Box<Outcome>),
}

impl From<Outcome> for Printed {
    fn from(outcome: Outcome) -> Self {
        Self::No(Box::new(outcome))
    }
}

/// The result of the function of a command.
pub(crate) type CommandResult = anyhow::Result<Printed>;

pub(crate) fn failed_as(verb: &str) -> Exit {
    match verb {
        "run" => Exit::RunFailed,
        _ => Exit::Failed,
    }
}

/// The outcome of an error.
pub(crate) fn failed(session: &Session, error: &anyhow::Error) -> Outcome {
    if error.is::<UsageError>() {
        let help = format!("  for help, run `onehold {} --help`", session.verb);
        return failure(session, Exit::Usage, "USAGE", format!("{error:#}")).note(help);
    }
    let Some(error) = error.downcast_ref::<Error>() else {
        return failure(session, Exit::Failed, "FAILED", format!("{error:#}"));
    };
    let (exit, code) = match error {
        Error::InvalidName { .. } => (Exit::Usage, "INVALID_NAME"),
        Error::TooLong { .. } => (Exit::Usage, "TOO_LONG"),
        Error::Unsupported { .. } | Error::NotOnEtcd { .. } => (Exit::Usage, "UNSUPPORTED"),
        Error::NotALock { .. } => (Exit::Failed, "NOT_A_LOCK"),
        Error::NotRenewable { .. } => (Exit::Failed, "NOT_RENEWABLE"),
        Error::StoreBusy { .. } => (Exit::Failed, "STORE_BUSY"),
        Error::NoSuchProcess { .. } => (Exit::Failed, "NO_SUCH_PROCESS"),
        Error::NoHolder => (Exit::Failed, "NO_HOLDER"),
        Error::NoAtomicExchange { .. } => (Exit::Failed, "NO_ATOMIC_EXCHANGE"),
        Error::LostWhileAcquiring { .. } if session.verb == "run" => (Exit::Lost, "LOST"),
        Error::LostWhileAcquiring { .. } => (Exit::Failed, "LOST"),
        Error::Remote { .. } => (Exit::Failed, "STORE"),
        Error::Spawn { source, .. } => match source.kind() {
            ErrorKind::NotFound => (Exit::NotFound, "COMMAND_NOT_FOUND"),
            // fork(2) failed, not execve(2).
            ErrorKind::WouldBlock | ErrorKind::OutOfMemory => (Exit::Failed, "IO"),
            _ => (Exit::NotExecutable, "COMMAND_NOT_EXECUTABLE"),
        },
        _ => (Exit::Failed, "IO"),
    };
    let message = session
        .config
        .settings
        .foreign_message(error)
        .unwrap_or_else(|| words::error_chain(error));
    let mut outcome = failure(session, exit, code, message);
    if exit == Exit::Lost {
        outcome.status = "lost";
    }
    outcome.notes.extend(hint(session, error));
    outcome
}

fn failure(session: &Session, exit: Exit, code: &'static str, message: String) -> Outcome {
    let exit = match exit {
        Exit::Failed => failed_as(session.verb),
        exit => exit,
    };
    Outcome::new(exit, "failure", message).failure(code, json!({}))
}

/// Returns whether a path is that of the profile's lock.
fn is_at_fixed_path(session: &Session, path: &Path) -> bool {
    let lock = session
        .only
        .clone()
        .and_then(|name| session.lock(name).ok());
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
        Error::NotALock { path, .. } if is_at_fixed_path(session, path) => {
            if session.verb == "break" {
                "  file left unchanged: it is not a regular file, or changed less than 10 s ago"
                    .to_owned()
            } else {
                let break_it = store_command(session, "break");
                format!("  file left unchanged; to move it aside, run `{break_it}`")
            }
        }
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
