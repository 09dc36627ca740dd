//! From the words of the command line to [`Cli`], and what is said when they make no sense.

use std::ffi::OsString;
use std::fmt::Write as _;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser};
use serde_json::json;

use crate::args::Cli;
use crate::exit::{Exit, TABLE};
use crate::manual::{ENVIRONMENT, FILES, examples};
use crate::output;

/// Parses the program's arguments; help, version and complaints are printed here.
pub(crate) fn parse() -> Result<Cli, Exit> {
    let error = match Cli::try_parse() {
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
    command.after_long_help(format!(
        "{}\n\n{}\n\n{}\n\n{}",
        section("Examples", examples("")),
        section("Exit status", &TABLE),
        section("Environment", &ENVIRONMENT),
        section("Files", &FILES),
    ))
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
    let message = whole
        .lines()
        .next()
        .unwrap_or_default()
        .trim_start_matches("error: ");
    let verb = Cli::command()
        .get_subcommands()
        .map(|verb| verb.get_name().to_owned())
        .find(|name| typed.iter().any(|word| word == name.as_str()));
    let object = json!({
        "success": false,
        "command": verb,
        "status": "failure",
        "lock": null,
        "locks": [],
        "message": message,
        "errors": [message],
        "error": { "code": "USAGE", "message": message, "details": {} },
    });
    output::usage(verb.as_deref() == Some("run"), &object.to_string());
    Exit::Usage
}
