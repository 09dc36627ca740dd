//! Parses the command line into [`Cli`], and prints help, version and usage errors.

use std::ffi::OsString;
use std::fmt::Write as _;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser};

use crate::args::Cli;
use crate::doc_text::{CHAPTERS, ENVIRONMENT, FILES, JSON, LOCK_KEYS, examples};
use crate::exit::{Exit, TABLE};
use crate::{fast_parse, output};

/// Parses the program's arguments. Help, version and usage errors are printed here.
pub(crate) fn parse() -> Result<Cli, Exit> {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some(cli) = fast_parse::parse(&words) {
        return Ok(cli);
    }
    let error = match Cli::try_parse() {
        // clap does not notice this conflict if the command stands between both options.
        Ok(cli) if cli.global.quiet && cli.global.verbose => Cli::command().error(
            ErrorKind::ArgumentConflict,
            "the argument '--quiet' cannot be used with '--verbose'",
        ),
        Ok(cli) => return Ok(cli),
        Err(error) => error,
    };
    match error.kind() {
        // Only the help needs the long texts.
        ErrorKind::DisplayHelp => Err(help()),
        ErrorKind::DisplayVersion => {
            let _ = error.print();
            Err(Exit::Done)
        }
        _ => Err(usage_error(&error)),
    }
}

/// The definition with examples and tables for the long help.
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
    let _ = write!(chapters, "JSON output:\n  {}\n\n", JSON.join("\n\n  "));
    command.after_long_help(format!(
        "{chapters}{}\n\n{}\n\n{}\n\n{}\n\n{}",
        section("Lock object", &LOCK_KEYS),
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
            Err(error) => usage_error(&error),
        },
    }
}

fn usage_error(error: &clap::Error) -> Exit {
    let typed: Vec<OsString> = std::env::args_os()
        .skip(1)
        .take_while(|word| word != "--")
        .collect();
    if !typed.iter().any(|word| word == "--json") {
        let _ = error.print();
        return Exit::Usage;
    }
    let whole = error.render().to_string();
    // The message ends at the blank line before tips and usage.
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

/// The command of a line that does not parse: the first word that is neither an option nor the value
/// of a global option.
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
