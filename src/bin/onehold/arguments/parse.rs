//! Parses the command line into [`Cli`], and prints help, version and usage errors.

use std::ffi::OsString;
use std::fmt::{Display, Write as _};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};

use crate::arguments::args::Cli;
use crate::arguments::doc_text::{ENVIRONMENT, FILES, examples, rows};
use crate::arguments::{complete, fast_parse, fixed_text, slip};
use crate::commands::doctor::trial;
use crate::messages::exit::{Exit, TABLE, table_of};
use crate::messages::{Outcome, Refusal};
use crate::{output, words};

/// Parses the program's arguments. Help, version and usage errors are printed here.
pub(crate) fn parse(words: &[OsString]) -> Result<Cli, Exit> {
    if let Some(cli) = fast_parse::parse(words) {
        return Ok(cli);
    }
    if let Some(text) = fixed_text::answer(words) {
        return Err(output::printed(output::data(&text), Exit::DONE));
    }
    // Not a command of the definition: its words are another command line.
    match words {
        [verb, rest @ ..] if verb == complete::VERB => return Err(complete::complete(rest)),
        [verb, rest @ ..] if verb == trial::VERB => return Err(trial::work(rest)),
        _ => {}
    }
    // Refuses what clap does not notice.
    let without_slips = |cli| match fast_parse::slip(words) {
        Some(text) => Err(Cli::command().error(ErrorKind::ArgumentConflict, text)),
        None => Ok(cli),
    };
    let parsed = Cli::try_parse_from(line(words)).and_then(without_slips);
    parsed.map_err(|error| match error.kind() {
        // Only the help needs the long texts.
        ErrorKind::DisplayHelp => help(words),
        ErrorKind::DisplayVersion => print(&error),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand if words.is_empty() => {
            let help = Cli::command().render_help().ansi().to_string();
            output::eprint(help.trim_end());
            Exit::USAGE
        }
        _ => usage_error(&error, words),
    })
}

/// The definition with examples and tables for the long help.
pub(crate) fn documented() -> clap::Command {
    let mut command = Cli::command().after_long_help(format!(
        "{}\n\n{}\n\n{}\n\n{}\n\n{MORE}",
        section("Examples", &rows(examples(""))),
        section("Exit status", &rows(TABLE)),
        section("Environment", &rows(ENVIRONMENT)),
        section("Files", &rows(FILES)),
    ));
    // Only then the verbs have the global options, which are described once.
    command.build();
    command.mut_subcommands(|verb| {
        let text = format!(
            "{}\n\n{}\n\n{GLOBAL}",
            section("Examples", &rows(examples(verb.get_name()))),
            section("Exit status", &table_of(verb.get_name())),
        );
        verb.mut_args(|arg| {
            let hides = arg.is_global_set();
            arg.hide(hides)
        })
        .after_help(GLOBAL)
        .after_long_help(text)
    })
}

const GLOBAL: &str = "The options of every command (--dir, --project, --profile, --format, --json, -q, -v, --color) and all exit \
                      codes: `onehold --help`.";

const MORE: &str = "See onehold-json(5) for the JSON object, onehold-states(7) for how onehold decides, \
                    onehold-flock(7) for users of flock(1), and onehold-recipes(7).";

fn section(title: &str, rows: &[(&str, impl Display)]) -> String {
    let mut text = format!("{title}:");
    for (what, meaning) in rows {
        let _ = write!(text, "\n  {what}\n          {meaning}");
    }
    text
}

fn help(words: &[OsString]) -> Exit {
    // Always: these words have asked for it.
    let parsed = documented().try_get_matches_from(line(words));
    parsed.err().map_or(Exit::DONE, |error| print(&error))
}

/// Prints help or version.
fn print(text: &clap::Error) -> Exit {
    let printed = output::ensure_open_stdout().and_then(|()| text.print());
    output::printed(printed, Exit::DONE)
}

fn usage_error(error: &clap::Error, words: &[OsString]) -> Exit {
    let before_command = words.split(|word| word == "--").next();
    let typed = before_command.unwrap_or_default();
    let verb = slip::verb_of(words);
    let message = message_of(error).replace('\'', "`");
    if typed.iter().any(|word| word == "--json") {
        let verb = verb.as_deref().unwrap_or_default();
        let outcome = Outcome::refused(Refusal::USAGE, message);
        let _ = output::print_object(verb, None, &outcome);
        return Exit::USAGE;
    }
    let help = match &verb {
        Some(verb) => format!("onehold {verb} --help"),
        None => "onehold --help".to_owned(),
    };
    let hint = slip::hint(words).map_or_else(String::new, |hint| format!("  {hint}\n"));
    let message = words::escape(&message);
    output::eprint(&format!(
        "onehold: {message}\n{hint}  for help, run `{help}`"
    ));
    Exit::USAGE
}

/// The whole line, as clap wants it.
fn line(words: &[OsString]) -> impl Iterator<Item = OsString> {
    std::iter::once(OsString::from("onehold")).chain(words.iter().cloned())
}

/// What is wrong, on one line.
fn message_of(error: &clap::Error) -> String {
    let whole = error.render().to_string();
    // The message ends at the blank line before tips and usage.
    let message = whole.split("\n\n").next().unwrap_or_default();
    let lines = message.trim_start_matches("error: ").lines();
    let message = lines.map(str::trim).collect::<Vec<_>>().join(" ");
    match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::MissingRequiredArgument, Some(ContextValue::Strings(missing))) => {
            // clap writes `<CMD>...`.
            let names = missing.join(" ").replace(['<', '>', '.'], "");
            let place = if names == "CMD" { " after --" } else { "" };
            format!("missing {names}{place}")
        }
        _ => message,
    }
}
