//! What an error is for the user: exit code, message, and what to do about it.

use std::io::ErrorKind;
use std::path::Path;

use onehold::Error;
use serde_json::json;

use crate::arguments::args::UsageError;
use crate::arguments::slip::as_shell_line;
use crate::configuration::Session;
use crate::messages::{Exit, Outcome, Refusal};
use crate::output::store_command;
use crate::words;

/// The exit code of an error.
fn exit_of(refusal: Refusal, verb: &str) -> Exit {
    match (refusal.exit, verb) {
        (Exit::FAILED, "run" | "hold") => Exit::RUN_FAILED,
        (exit, _) => exit,
    }
}

/// The outcome of an error.
pub(crate) fn failed(session: &Session, error: &anyhow::Error) -> Outcome {
    let known = error.downcast_ref::<Error>();
    let refusal = known.map_or_else(|| refusal_without_store(error), refusal_for);
    let settings = &session.config.settings;
    let text = known.map(|known| settings.error_message(known));
    let text = text.unwrap_or_else(|| format!("{error:#}"));
    let mut outcome = Outcome::refused(refusal, text);
    if refusal == Refusal::LOST && !matches!(session.verb, "run" | "hold") {
        (outcome.exit, outcome.status) = (Exit::FAILED, "failure");
    } else {
        outcome.exit = exit_of(refusal, session.verb);
    }
    if let Some(Error::StoreChanged { left, .. }) = known {
        outcome.more = json!({ "left_seconds": left.as_secs_f64() });
    }
    outcome.notes.extend(match known {
        Some(known) => hint(session, known),
        None => (refusal == Refusal::USAGE)
            .then(|| format!("  for help, run `onehold {} --help`", session.verb)),
    });
    outcome
}

/// The outcome of an error that happened before the store was known.
pub(crate) fn failed_without_store(verb: &str, error: &anyhow::Error) -> Outcome {
    let refusal = refusal_without_store(error);
    let mut outcome = Outcome::refused(refusal, words::escape(&format!("{error:#}")));
    outcome.exit = exit_of(refusal, verb);
    outcome
}

/// The reason of an error that is none of the library's.
fn refusal_without_store(error: &anyhow::Error) -> Refusal {
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
        Error::Unsupported { .. } | Error::NotOnServer { .. } => Refusal::UNSUPPORTED,
        Error::NotALock { .. } => Refusal::NOT_A_LOCK,
        Error::NotRenewable { .. } => Refusal::NOT_RENEWABLE,
        Error::StoreBusy { .. } => Refusal::STORE_BUSY,
        Error::Canceled => Refusal::INTERRUPTED,
        Error::NoSuchProcess { .. } | Error::ParentOutside => Refusal::NO_SUCH_PROCESS,
        Error::NoHolder => Refusal::NO_HOLDER,
        Error::ParentExited => Refusal::CALLER_EXITED,
        Error::NoAtomicExchange { .. } => Refusal::NO_ATOMIC_EXCHANGE,
        Error::LostWhileAcquiring { .. } => Refusal::LOST,
        Error::Remote { .. } => Refusal::STORE,
        Error::StoreChanged { .. } => Refusal::STORE_CHANGED,
        Error::Spawn { source, .. } => match source.kind() {
            ErrorKind::NotFound => Refusal::COMMAND_NOT_FOUND,
            // fork(2) failed, not execve(2).
            ErrorKind::WouldBlock | ErrorKind::OutOfMemory => Refusal::IO,
            _ => Refusal::COMMAND_NOT_EXECUTABLE,
        },
        _ => Refusal::IO,
    }
}

/// What removes a file that onehold does not remove.
fn removal(path: &Path) -> String {
    if cfg!(windows) {
        let path = words::path_text(path);
        return format!("if no program needs it, remove `{path}`");
    }
    let is_directory = path.symlink_metadata().is_ok_and(|found| found.is_dir());
    let rm = if is_directory { "rm -r" } else { "rm" };
    let path = words::escape(&words::shell_quoted(&path.to_string_lossy()));
    format!("if no program needs it, run `{rm} {path}`")
}

/// What to do about a file that is not a lock file, in place of a lock.
pub(crate) fn hint_about_file(session: &Session, path: &Path) -> Option<String> {
    let only_locks = "left unchanged; onehold only removes locks";
    let has_profile = session.config.profile.is_some();
    let only = session.only.clone().filter(|_| has_profile);
    let lock = only.and_then(|name| session.lock(name).ok());
    let is_at_fixed_path = lock.is_some_and(|lock| lock.path() == path);
    let text = match session.verb {
        // Another name would be another lock.
        "break" if is_at_fixed_path => {
            "file left unchanged: it is not a regular file, or changed less than 10 s ago"
                .to_owned()
        }
        _ if is_at_fixed_path => {
            let break_it = store_command(session, "break");
            format!("file left unchanged; to move it aside, run `{break_it}`")
        }
        #[cfg(feature = "etcd")]
        _ if session.store.is_remote() => return crate::configuration::etcd::removal(path),
        // Its programs choose the names.
        _ if has_profile => format!("{only_locks}: {}", removal(path)),
        "break" | "cleanup" => only_locks.to_owned(),
        "check" => return None,
        _ => "left unchanged; use another lock name".to_owned(),
    };
    Some(format!("  {text}"))
}

/// What to do about an error.
fn hint(session: &Session, error: &Error) -> Option<String> {
    let text = match error {
        Error::LostWhileAcquiring { .. } | Error::ParentExited if session.verb == "run" => {
            "the command was not started"
        }
        Error::ParentOutside => "name a process of this container: --die-with PID",
        Error::NotALock { path, .. } => return hint_about_file(session, path),
        Error::NotRenewable { .. } => {
            "file left unchanged; to get a new record, release the lock and acquire it again"
        }
        Error::NoHolder => {
            "use --pid PID, --ttl D for a lease, or `onehold run`; in a systemd unit: ExecStart=onehold run …"
        }
        Error::Spawn { program, source } if source.kind() == ErrorKind::NotFound => {
            return as_shell_line(program).map(|line| format!("  {line}"));
        }
        Error::StoreBusy { pid: Some(pid), .. } => {
            return Some(format!(
                "  to see it, run `ps -o pid,stat,args -p {pid}`; if it is stopped, run `kill -CONT {pid}`"
            ));
        }
        Error::Remote { remedy, .. } => remedy.as_deref()?,
        Error::StoreChanged { .. } => {
            let accept = store_command(session, "doctor");
            return Some(format!(
                "  wait with -w; if no command runs any more that had a lock before, run `{accept} --accept-epoch --yes`"
            ));
        }
        Error::NoAtomicExchange { .. } => "use `onehold break`, or a store on another filesystem",
        _ => return None,
    };
    Some(format!("  {text}"))
}
