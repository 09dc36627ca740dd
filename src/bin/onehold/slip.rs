//! Hints for command lines that do not parse: a forgotten `--`, and the habits of flock(1).

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// What to type instead. `words`: the arguments without the program's name; `verb`: the command among
/// them.
pub(crate) fn hint(error: &clap::Error, words: &[OsString], verb: Option<&str>) -> Option<String> {
    let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    let wrong = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let argument = wrong(ContextKind::InvalidArg)?;
            let at = words.iter().position(|word| *word == argument)?;
            of_argument(&words, at, verb).or_else(|| similar(error))
        }
        // A file and a command, as flock(1) has them.
        ErrorKind::InvalidSubcommand if suggestion(error).is_none() => {
            let name = wrong(ContextKind::InvalidSubcommand)?;
            let at = words.iter().position(|word| *word == name)?;
            let (before, command) = (words.get(..at)?, words.get(at + 1..)?);
            let command = if command.is_empty() {
                &["CMD"]
            } else {
                command
            };
            let line = [&["onehold"], before, &["run", &name, "--"], command].concat();
            Some(format!("to run a command: `{}`", quoted(&line)))
        }
        ErrorKind::InvalidSubcommand => similar(error),
        ErrorKind::MissingRequiredArgument if verb == Some("run") => {
            let words: Vec<&str> = words.into_iter().filter(|word| *word != "--").collect();
            let line = [&["onehold"], &words[..], &["--", "CMD"]].concat();
            Some(format!("the command comes after --: `{}`", quoted(&line)))
        }
        _ => None,
    }
}

/// An argument that is not expected where it is.
fn of_argument(words: &[&str], at: usize, verb: Option<&str>) -> Option<String> {
    let argument = *words.get(at)?;
    let takes = matches!(verb, Some("run" | "acquire"));
    if !argument.starts_with('-') {
        let (before, command) = words.split_at(at);
        let line = [&["onehold"], before, &["--"], command].concat();
        return (verb == Some("run"))
            .then(|| format!("the command comes after --: `{}`", quoted(&line)));
    }
    let text = match argument {
        "-c" | "--command" if verb == Some("run") => {
            let line = words.get(at + 1).copied().unwrap_or("…");
            let line = quoted(&["onehold", "run", "NAME", "--", "sh", "-c", line]);
            format!("for a line of shell: `{line}`")
        }
        "-x" | "-e" | "--exclusive" | "--ex" if takes => {
            format!("a lock has one holder: leave {argument} out")
        }
        "--nb" | "--nonblock" | "--nonblocking" if takes => {
            format!("it does not wait unless --wait is given: leave {argument} out")
        }
        "--timeout" if takes => "to limit the wait: --wait".to_owned(),
        "-s" | "--shared" if takes => "a lock has one holder: there are no shared locks".to_owned(),
        "-u" | "--unlock" => "to release a lock: `onehold release NAME`".to_owned(),
        "-o" if verb == Some("run") => {
            "to keep the kernel lock from the command: --close".to_owned()
        }
        "-F" | "--no-fork" if verb == Some("run") => {
            "to run the command without a wrapper: --exec".to_owned()
        }
        _ => return None,
    };
    Some(text)
}

/// What clap takes for meant.
fn similar(error: &clap::Error) -> Option<String> {
    suggestion(error).map(|word| format!("did you mean `{word}`?"))
}

fn suggestion(error: &clap::Error) -> Option<String> {
    let kinds = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand];
    let found = kinds.into_iter().find_map(|kind| error.get(kind))?;
    match found {
        ContextValue::String(word) => Some(word.clone()),
        // The last one is the nearest.
        ContextValue::Strings(words) => words.last().cloned(),
        _ => None,
    }
}

fn quoted(words: &[&str]) -> String {
    let quoted = words.iter().map(|word| {
        shlex::try_quote(word).map_or_else(|_| (*word).to_owned(), std::borrow::Cow::into_owned)
    });
    quoted.collect::<Vec<_>>().join(" ")
}
