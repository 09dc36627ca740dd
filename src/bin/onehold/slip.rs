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
        ErrorKind::UnknownArgument if verb.is_none() => of_flock_line(&words),
        ErrorKind::UnknownArgument => {
            let argument = wrong(ContextKind::InvalidArg)?;
            // `--timeout=5`, and `-x` in `-xn`.
            let begins = |word: &&str| {
                word.split('=').next() == Some(&*argument)
                    || (argument.len() == 2
                        && !word.starts_with("--")
                        && word.starts_with(&*argument))
            };
            let at = words.iter().position(begins)?;
            of_argument(&words, at, &argument, verb)
                .or_else(|| without_separator(&words, verb))
                .or_else(|| similar(error))
        }
        ErrorKind::InvalidSubcommand if suggestion(error).is_none() => {
            let name = wrong(ContextKind::InvalidSubcommand)?;
            of_other_verb(&words, &name).or_else(|| of_flock_line(&words))
        }
        ErrorKind::InvalidSubcommand => similar(error),
        ErrorKind::MissingRequiredArgument if verb == Some("run") => {
            if let Some(hint) = without_separator(&words, verb) {
                return Some(hint);
            }
            let words: Vec<&str> = words.into_iter().filter(|word| *word != "--").collect();
            let line = [&["onehold"], &words[..], &["--", "CMD"]].concat();
            Some(format!("the command comes after --: `{}`", quoted(&line)))
        }
        _ => None,
    }
}

/// A command of `run` without `--` before it: it is taken for the name of a second lock.
fn without_separator(words: &[&str], verb: Option<&str>) -> Option<String> {
    if verb != Some("run") || words.contains(&"--") {
        return None;
    }
    let (verb, _) = words.iter().enumerate().find(|(_, word)| **word == "run")?;
    let mut is_value = false;
    let mut positionals = words.iter().enumerate().skip(verb + 1).filter(|(_, word)| {
        let is_positional = !is_value && !word.starts_with('-');
        is_value = WITH_VALUE.contains(word);
        is_positional
    });
    let (command, _) = positionals.nth(1)?;
    let (before, command) = words.split_at(command);
    let line = [&["onehold"], before, &["--"], command].concat();
    Some(format!("the command comes after --: `{}`", quoted(&line)))
}

/// Options of `run` that have a value.
const WITH_VALUE: [&str; 19] = [
    "--dir",
    "--profile",
    "--format",
    "--color",
    "-w",
    "--wait",
    "--slots",
    "--ttl",
    "--owner",
    "-m",
    "--message",
    "--max-age",
    "--on-zombie",
    "-E",
    "--conflict-exit-code",
    "--on-lost",
    "--time-limit",
    "--kill-after",
    "--pid",
];

/// A command of other tools.
fn of_other_verb(words: &[&str], name: &str) -> Option<String> {
    let verb = match name {
        "status" | "ls" | "show" | "info" => "list",
        "lock" | "get" | "take" => "acquire",
        "unlock" | "free" => "release",
        "kill" | "rm" | "remove" | "delete" => "break",
        "exec" => "run",
        _ => return None,
    };
    let words = words
        .iter()
        .map(|word| if *word == name { verb } else { word });
    let line: Vec<&str> = std::iter::once("onehold").chain(words).collect();
    Some(format!("did you mean `{}`?", quoted(&line)))
}

/// A whole line of flock(1): options, a file and a command.
fn of_flock_line(words: &[&str]) -> Option<String> {
    let mut line = vec!["onehold", "run"];
    let mut rest = words.iter().copied();
    let file = loop {
        match rest.next()? {
            word @ ("-n" | "--dir" | "--profile" | "--format" | "--json" | "-q" | "-v") => {
                line.push(word);
                if matches!(word, "--dir" | "--profile" | "--format") {
                    line.push(rest.next()?);
                }
            }
            "--nb" | "--nonblock" => line.push("-n"),
            "-w" | "--wait" | "--timeout" => line.extend(["-w", rest.next()?]),
            word @ ("-E" | "--conflict-exit-code") => line.extend([word, rest.next()?]),
            "-o" | "--close" => line.push("--close"),
            "-F" | "--no-fork" => line.push("--exec"),
            "-x" | "-e" | "--ex" | "--exclusive" | "--verbose" => {}
            "-u" | "--unlock" => return Some(RELEASE.to_owned()),
            "-s" | "--shared" => line.push("-s"),
            word if word.starts_with('-') => return None,
            word => break word,
        }
    };
    if file.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some("a lock has a name, not a descriptor: `onehold acquire NAME`".to_owned());
    }
    line.extend([file, "--"]);
    match rest.next() {
        None => line.push("CMD"),
        Some("-c" | "--command") => line.extend(["sh", "-c", rest.next().unwrap_or("…")]),
        Some(command) => line.push(command),
    }
    line.extend(rest);
    Some(format!("to run a command: `{}`", quoted(&line)))
}

const RELEASE: &str = "to release a lock: `onehold release NAME`";

/// An argument that is not expected where it is.
fn of_argument(words: &[&str], at: usize, argument: &str, verb: Option<&str>) -> Option<String> {
    let takes = matches!(verb, Some("run" | "acquire"));
    if !argument.starts_with('-') {
        return None;
    }
    let text = match argument {
        "-c" | "--command" if verb == Some("run") => {
            let shell = words.get(at + 1).copied().unwrap_or("…");
            let line = [&["onehold"], words.get(..at)?, &["--", "sh", "-c", shell]].concat();
            format!("for a line of shell: `{}`", quoted(&line))
        }
        "-x" | "-e" | "--exclusive" | "--ex" if takes => {
            format!("a lock is exclusive unless --shared is given: leave {argument} out")
        }
        "--nb" | "--nonblock" | "--nonblocking" if takes => {
            format!("it does not wait unless --wait is given: leave {argument} out")
        }
        "--timeout" if takes => "to limit the wait: --wait".to_owned(),
        "-u" | "--unlock" => RELEASE.to_owned(),
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
