//! From the words of the command line to [`Cli`], and what is said when they make no sense.

use std::ffi::OsString;
use std::fmt::Write as _;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser};

use crate::args::Cli;
use crate::exit::{Exit, TABLE};
use crate::manual::{CHAPTERS, ENVIRONMENT, FILES, JSON, LOCK_KEYS, examples};
use crate::{output, quick};

/// Parses the program's arguments; help, version and complaints are printed here.
pub(crate) fn parse() -> Result<Cli, Exit> {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some(cli) = quick::parse(&words) {
        return Ok(cli);
    }
    let error = match Cli::try_parse() {
        // Given on different sides of the verb they are no conflict to clap.
        Ok(cli) if cli.everywhere.quiet && cli.everywhere.verbose => Cli::command().error(
            ErrorKind::ArgumentConflict,
            "the argument '--quiet' cannot be used with '--verbose'",
        ),
        Ok(cli) => return Ok(cli),
        Err(error) => error,
    };
    match error.kind() {
        // Only help needs the long texts.
        ErrorKind::DisplayHelp => Err(help()),
        ErrorKind::DisplayVersion => {
            let _ = error.print();
            Err(Exit::Done)
        }
        _ => Err(complain(&error)),
    }
}

/// The definition with examples and tables, as help and man pages show it.
pub(crate) fn documented() -> clap::Command {
    let mut command = Cli::command();
    let verbs: Vec<String> = command
        .get_subcommands()
        .map(|verb| verb.get_name().to_owned())
        .collect();
    for name in verbs {
        let text = format!(
            "{}\n\n{}",
            section("Examples", examples(&name)),
            section("Exit status", &TABLE)
        );
        command = command.mut_subcommand(name, |verb| verb.after_long_help(text));
    }
    let mut chapters = String::new();
    for (title, paragraphs) in CHAPTERS {
        let paragraphs = paragraphs.join("\n\n  ");
        let _ = write!(chapters, "{}:\n  {paragraphs}\n\n", sentence_case(title));
    }
    let _ = write!(chapters, "JSON:\n  {}\n\n", JSON.join("\n\n  "));
    command.after_long_help(format!(
        "{chapters}{}\n\n{}\n\n{}\n\n{}\n\n{}",
        section("Keys of a lock in it", &LOCK_KEYS),
        section("Examples", examples("")),
        section("Exit status", &TABLE),
        section("Environment", &ENVIRONMENT),
        section("Files", &FILES),
    ))
}

fn sentence_case(title: &str) -> String {
    let mut chars = title.chars();
    let first = chars.next().map(String::from).unwrap_or_default();
    first + &chars.as_str().to_lowercase()
}

fn section(title: &str, rows: &[(&str, &str)]) -> String {
    let mut text = format!("{title}:");
    for (what, meaning) in rows {
        let _ = write!(text, "\n  {what}\n          {meaning}");
    }
    text
}

fn help() -> Exit {
    match documented().try_get_matches_from(std::env::args_os()) {
        Err(error) => {
            let _ = error.print();
            Exit::Done
        }
        Ok(matches) => match Cli::from_arg_matches(&matches) {
            Ok(_) => Exit::Done,
            Err(error) => complain(&error),
        },
    }
}

fn complain(error: &clap::Error) -> Exit {
    let typed: Vec<OsString> = std::env::args_os()
        .skip(1)
        .take_while(|word| word != "--")
        .collect();
    if !typed.iter().any(|word| word == "--json") {
        let _ = error.print();
        return Exit::Usage;
    }
    let whole = error.render().to_string();
    // Up to the blank line before tips and usage.
    let message = whole
        .split("\n\n")
        .next()
        .unwrap_or_default()
        .trim_start_matches("error: ")
        .lines()
        .map(str::trim)
        .collect::<Vec<_>>()
        .join(" ");
    let verb = verb_of(&typed);
    output::bare_failure(verb.as_deref().unwrap_or_default(), "USAGE", &message);
    Exit::Usage
}

/// The verb among words that do not parse: the first that is no option, nor the value of one that
/// can stand before the verb.
fn verb_of(typed: &[OsString]) -> Option<String> {
    let mut words = typed.iter();
    while let Some(word) = words.next() {
        let word = word.to_str()?;
        if ["--dir", "--color", "--profile", "--format"].contains(&word) {
            words.next();
        } else if !word.starts_with('-') {
            return Cli::command()
                .find_subcommand(word)
                .map(|_| word.to_owned());
        }
    }
    None
}
