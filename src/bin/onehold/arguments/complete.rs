//! Completion for shells: `onehold complete INDEX WORD…` prints what the word at INDEX can become, one
//! candidate on each line, and its description behind a tab. The scripts in `completions/` call it.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;

use clap::{Arg, ArgMatches, Command, CommandFactory, ValueHint};
use clap_complete::CompletionCandidate;
use clap_complete::engine::{self, ArgValueCompleter, PathCompleter, ValueCompleter};
use onehold::journal::PastHold;
use onehold::terminal::is_unsafe;
use onehold::{Caller, LockName, State, Status};

use crate::arguments::args::{Cli, GlobalArgs};
use crate::arguments::slip;
use crate::configuration::project::Project;
use crate::configuration::{EffectiveConfig, Session, profile_names};
use crate::messages::{Exit, describe};
use crate::tables::table::natural_order;
use crate::{output, words};

/// The word that asks for it, in place of a command.
pub(crate) const VERB: &str = "complete";

/// Prints the candidates. Reports no errors, which would appear in the line that is being typed.
pub(crate) fn complete(arguments: &[OsString]) -> Exit {
    let index = arguments
        .first()
        .and_then(|index| index.to_str()?.parse().ok());
    let (Some(index), [_, words @ ..]) = (index, arguments) else {
        return Exit::USAGE;
    };
    let mut text = String::new();
    for candidate in candidates(words, index) {
        let value = candidate.get_value().to_string_lossy();
        // An owner label is untrusted, and would get to the terminal as it is. A line break would also
        // begin another candidate.
        if value.chars().any(is_unsafe) {
            continue;
        }
        let help = candidate.get_help().map(ToString::to_string);
        let help = help.as_deref().and_then(|help| help.lines().next());
        let _ = writeln!(text, "{value}\t{}", words::escape(help.unwrap_or_default()));
    }
    // An empty line would be a candidate.
    if !text.is_empty() {
        let _ = output::data(text.trim_end_matches('\n'));
    }
    Exit::DONE
}

fn candidates(words: &[OsString], index: usize) -> Vec<CompletionCandidate> {
    let (Some(before), Some(word)) = (words.get(..index), words.get(index)) else {
        return Vec::new();
    };
    // What belongs to the command is for the shell.
    if before.iter().any(|word| word == "--") && before.iter().any(|word| word == "run") {
        return Vec::new();
    }
    // `help` takes one command.
    if matches!(before, [_, help, _, ..] if help == "help") {
        return Vec::new();
    }
    let typed = typed(before);
    let mut command = definition(&typed);
    let current = std::env::current_dir().ok();
    // The engine would take the next word for its value, which follows `=`.
    let line = before.iter().filter(|word| *word != "--watch");
    let line: Vec<OsString> = line.chain([word]).cloned().collect();
    let index = line.len() - 1;
    let found = engine::complete(&mut command, line, index, current.as_deref());
    let mut found = found.unwrap_or_default();
    if word.is_empty() {
        // Options come after a hyphen.
        found.retain(|candidate| !candidate.get_value().as_encoded_bytes().starts_with(b"-"));
        let is_run = before.iter().any(|word| word == "run");
        let last = before.last().and_then(|word| word.to_str());
        let is_value = last.is_some_and(slip::needs_value);
        let mut names = typed_names(&typed).into_iter();
        let is_after_name = names.any(|name| Some(name.as_str()) == last);
        let ends = (found.is_empty() && !is_value) || is_after_name;
        if ends && is_run && !before.iter().any(|word| word == "--") {
            let separator = CompletionCandidate::new("--").help(Some("the command follows".into()));
            found.insert(0, separator);
        }
    }
    found
}

fn typed(before: &[OsString]) -> ArgMatches {
    let mut plain = Cli::command().ignore_errors(true);
    let typed = plain.try_get_matches_from_mut(before).unwrap_or_default();
    let of_verb = typed.subcommand().map(|(_, typed)| typed.clone());
    of_verb.unwrap_or(typed)
}

/// The names of locks that were typed for `run` or `acquire`.
fn typed_names(typed: &ArgMatches) -> Vec<LockName> {
    let names = typed.try_get_many::<LockName>("names").ok().flatten();
    names.into_iter().flatten().cloned().collect()
}

/// The definition of the command line, with what is known of locks and profiles.
fn definition(typed: &ArgMatches) -> Command {
    let by = |arg: Arg, candidates: fn(&ArgMatches, &OsStr) -> Vec<CompletionCandidate>| {
        let typed = typed.clone();
        arg.add(ArgValueCompleter::new(move |word: &OsStr| {
            candidates(&typed, word)
        }))
    };
    Cli::command()
        .disable_help_subcommand(true)
        .mut_arg("dir", |arg| arg.value_hint(ValueHint::DirPath))
        .mut_arg("profile", |arg| by(arg, profiles))
        .mut_subcommands(|verb| {
            let is = |name| verb.get_name() == name;
            let (is_history, takes_none) = (is("history"), is("release") && is_given(typed, "all"));
            verb.mut_args(|arg| match arg.get_id().as_str() {
                "name" if takes_none => by(arg, |_, _| Vec::new()),
                "names" if is_history => by(arg, past_names),
                "name" | "names" | "prefix" => by(arg, names),
                "die_with" => by(arg, |_, word| beginning_as(word, plain(["parent", "none"]))),
                "owner" => by(arg, owners),
                "path" => arg.value_hint(ValueHint::AnyPath),
                "wait" => by(arg, |_, word| durations(&["forever"], word)),
                _ if is_duration(&arg) => by(arg, |_, word| durations(&[], word)),
                "hold" => by(arg, holds),
                _ => arg,
            })
        })
}

/// The candidates that start with the word, in their order.
fn beginning_as(
    word: &OsStr,
    all: impl IntoIterator<Item = (String, String)>,
) -> Vec<CompletionCandidate> {
    let word = word.to_string_lossy();
    let all = all.into_iter();
    let fitting = all.filter(|(value, _)| value.starts_with(&*word));
    let candidates = fitting.enumerate().map(|(place, (value, help))| {
        CompletionCandidate::new(value)
            .help(Some(help.into()))
            .display_order(Some(place))
    });
    candidates.collect()
}

/// Lock names, those of live holders first, or the paths of lock files.
fn names(typed: &ArgMatches, word: &OsStr) -> Vec<CompletionCandidate> {
    let begins = |with: &str| word.as_encoded_bytes().starts_with(with.as_bytes());
    if ["/", "./", "../"].iter().any(|start| begins(start)) || word == "." || word == ".." {
        return PathCompleter::any().complete(word);
    }
    let described = |status: Status| {
        let state = describe::state(&status);
        let help = match status.info() {
            Some(record) => format!("{state}: {}", describe::holder(&status, record)),
            None => state,
        };
        (status.name, help)
    };
    let known = typed_names(typed);
    let is_new = |status: &Status| known.iter().all(|name| name.as_str() != status.name);
    let others = locks(typed).into_iter().filter(is_new);
    beginning_as(word, others.map(described))
}

/// The names of the holds that have ended.
fn past_names(typed: &ArgMatches, word: &OsStr) -> Vec<CompletionCandidate> {
    let holds = session(typed).and_then(|session| session.store.history().ok());
    let holds = holds.unwrap_or_default();
    let known = typed_names(typed);
    let mut seen: BTreeSet<String> = known.into_iter().map(|name| name.to_string()).collect();
    let names = holds.iter().flat_map(PastHold::all_names);
    let names = names.filter(|name| seen.insert((*name).to_owned()));
    beginning_as(word, plain(names))
}

/// Owner labels of the named lock, or of all.
fn owners(typed: &ArgMatches, word: &OsStr) -> Vec<CompletionCandidate> {
    let mut seen = BTreeSet::new();
    let owners = named_locks(typed).into_iter().filter_map(|status| {
        let owner = status.info()?.owner()?.to_owned();
        let is_new = seen.insert(owner.clone());
        is_new.then(|| (owner, words::quoted(&status.name)))
    });
    beginning_as(word, owners)
}

/// Hold numbers of the named lock, or of all.
fn holds(typed: &ArgMatches, word: &OsStr) -> Vec<CompletionCandidate> {
    let holds = named_locks(typed).into_iter().filter_map(|status| {
        let hold = status.hold()?.to_string();
        Some((hold, words::quoted(&status.name)))
    });
    beginning_as(word, holds)
}

/// Options whose value is a duration call it D.
fn is_duration(arg: &Arg) -> bool {
    let names = arg.get_value_names();
    names.is_some_and(|names| names.iter().any(|name| name == "D"))
}

fn durations(others: &[&str], word: &OsStr) -> Vec<CompletionCandidate> {
    let all = ["10s", "1m", "10m", "1h", "1d"].iter().chain(others);
    beginning_as(word, plain(all.copied()))
}

/// Candidates without a description.
fn plain<'a>(all: impl IntoIterator<Item = &'a str>) -> impl Iterator<Item = (String, String)> {
    let all = all.into_iter();
    all.map(|text| (text.to_owned(), String::new()))
}

fn profiles(_: &ArgMatches, word: &OsStr) -> Vec<CompletionCandidate> {
    let names = profile_names().unwrap_or_default();
    beginning_as(word, names.into_iter().map(|name| (name, String::new())))
}

/// The lock that was typed; all locks if there was none.
fn named_locks(typed: &ArgMatches) -> Vec<Status> {
    let first = || typed_names(typed).into_iter().next();
    let Some(name) = value(typed, "name").or_else(first) else {
        return locks(typed);
    };
    let status = session(typed).and_then(|session| session.lock(name).ok()?.inspect(None).ok());
    let holds = status.iter().flat_map(Status::all_holds);
    holds.cloned().collect()
}

/// The locks of the store, those of live holders first.
fn locks(typed: &ArgMatches) -> Vec<Status> {
    let session = session(typed).filter(|session| session.only.is_none());
    let listing = session.and_then(|session| session.store.list(None).ok());
    let mut locks = listing.unwrap_or_default().locks;
    locks.retain(|lock| lock.verdict.state != State::NotALock);
    locks.sort_by(|one, other| natural_order(&one.name, &other.name));
    locks.sort_by_key(|lock| !matches!(lock.verdict.state, State::Held | State::Overdue));
    locks
}

/// The store and the configuration of the line so far.
fn session(typed: &ArgMatches) -> Option<Session> {
    // What is typed need not be complete, or right.
    let global = GlobalArgs {
        dir: value(typed, "dir"),
        profile: value(typed, "profile"),
        format: value(typed, "format"),
        ..GlobalArgs::default()
    };
    let config = EffectiveConfig::read(&global).ok()?;
    let project =
        is_given(typed, "project").then(|| Project::of_current_directory(&config, &[]).ok());
    let project = project.flatten();
    Session::new(VERB, global, Caller::default(), config, project.as_ref()).ok()
}

fn is_given(typed: &ArgMatches, id: &str) -> bool {
    matches!(typed.try_get_one(id), Ok(Some(true)))
}

fn value<T: Clone + Send + Sync + 'static>(typed: &ArgMatches, id: &str) -> Option<T> {
    typed.try_get_one(id).ok()?.cloned()
}
