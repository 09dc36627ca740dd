//! Command lines to paste, with the store and the profile of this invocation.

use onehold::{Lock, LockName, State, Status};

use crate::configuration::Session;
use crate::words;

/// A command line for this lock that works from any directory.
pub(crate) fn command_line(session: &Session, verb: &str, status: &Status) -> String {
    let mut starts = ["/", "./", "../"].iter();
    let is_path = starts.any(|start| status.name.starts_with(start));
    let name = if is_path {
        status.path.to_string_lossy().into_owned()
    } else {
        status.name.clone()
    };
    let mut words = verb_words(session, verb, !is_path);
    if name.starts_with('-') {
        words.push("--".to_owned());
    }
    words.push(words::shell_quoted(&name));
    // What was asked of one hold does not show whether there are others.
    let is_of_one = status.slot.is_some() && matches!(session.verb, "release" | "renew");
    let has_option = matches!(verb, "break" | "release");
    let is_one_of_several = has_option && (is_of_one || !status.others.is_empty());
    if let Some(hold) = status.hold().filter(|_| is_one_of_several) {
        words.extend(["--hold".to_owned(), hold.to_string()]);
    }
    words::escape(&words.join(" "))
}

/// A hint for a lock that is free, and whose name is the file of one that is not.
#[cold]
#[inline(never)]
pub(crate) fn about_file(session: &Session, lock: &Lock) -> Option<String> {
    let file = lock.name().as_str();
    let name = file.strip_suffix(".lock")?.replace(".d/", "/");
    let other = session.lock(LockName::new(name).ok()?).ok()?;
    let status = other.inspect(None).ok()?;
    let is_its = other.path().ends_with(file) && status.verdict.state != State::Free;
    let check = command_line(session, "check", &status);
    let (file, name) = (words::quoted(file), words::quoted(&status.name));
    is_its.then(|| format!("  {file} is the file of {name}: run `{check}`"))
}

/// A command line for the whole store, or for the lock of a profile with a path.
pub(crate) fn store_command(session: &Session, verb: &str) -> String {
    words::escape(&verb_words(session, verb, true).join(" "))
}

fn verb_words(session: &Session, verb: &str, in_store: bool) -> Vec<String> {
    let mut words = vec!["onehold".to_owned()];
    if let Some(profile) = &session.config.profile {
        words.extend(["--profile".to_owned(), words::shell_quoted(profile)]);
    }
    if let Some(format) = session.global.format {
        words.extend(["--format".to_owned(), format.to_string()]);
    }
    if in_store && let Some(directory) = session.directory_to_name() {
        let directory = words::shell_quoted(&directory.to_string_lossy());
        words.extend(["--dir".to_owned(), directory]);
    }
    words.push(verb.to_owned());
    words
}
