//! The only file that prints: data on stdout, talk on stderr, hints for people.

use std::error::Error as _;
use std::io::{self, Write};
use std::path::Path;

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use onehold::{Claimant, Error, Status};
use unicode_width::UnicodeWidthStr;

use crate::args::Color;
use crate::describe;
use crate::exit::Exit;
use crate::report::{Outcome, object};
use crate::session::Session;

/// Decides once for the whole program whether there is colour.
pub(crate) fn set_colour(color: Color) {
    match color {
        Color::Auto => ColorChoice::Auto,
        Color::Always => ColorChoice::Always,
        Color::Never => ColorChoice::Never,
    }
    .write_global();
}

/// Says what a command came to. Fails if its data could not be written: then nobody has it.
pub(crate) fn tell(session: &Session, outcome: &Outcome) -> io::Result<()> {
    let everywhere = &session.everywhere;
    if everywhere.json {
        let line = object(session.verb, outcome, &session.claimant);
        if session.verb == "run" {
            // The command may have left a line unfinished.
            let start = if outcome.command_exit_code.is_some() {
                "\n"
            } else {
                ""
            };
            talk(&format!("{start}{line}"));
            return Ok(());
        }
        return data(&line);
    }
    if let Some(text) = &outcome.data {
        data(text)?;
    }
    let told_by_exit_code = outcome
        .failure
        .as_ref()
        .is_none_or(|failure| failure.is_conflict);
    if !(everywhere.quiet && told_by_exit_code) {
        if outcome.failure.is_some() {
            talk(&format!("onehold: {}", outcome.message));
        }
        if !outcome.talk.is_empty() {
            talk(&outcome.talk.join("\n"));
        }
    }
    for warning in &outcome.warnings {
        talk(&format!("onehold: warning: {warning}"));
    }
    Ok(())
}

/// A line of talk or several, at once. That it cannot be written is nobody's failure.
pub(crate) fn talk(line: &str) {
    let _ = anstream::stderr()
        .lock()
        .write_all(format!("{line}\n").as_bytes());
}

fn data(text: &str) -> io::Result<()> {
    let mut out = AutoStream::auto(io::stdout().lock());
    writeln!(out, "{text}")?;
    out.flush()
}

/// An error and its causes, on one line.
pub(crate) fn chain(error: &Error) -> String {
    let mut text = describe::escape(&error.to_string());
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&describe::escape(&cause_in_words(cause)));
        next = cause.source();
    }
    text
}

/// Without Rust's "(os error 13)".
pub(crate) fn cause_in_words(cause: &(dyn std::error::Error + 'static)) -> String {
    let text = cause.to_string();
    match text.rfind(" (os error ") {
        Some(end) => {
            let text = text.get(..end).unwrap_or(&text);
            let mut chars = text.chars();
            match chars.next() {
                Some(first) => first.to_lowercase().chain(chars).collect(),
                None => String::new(),
            }
        }
        None => text,
    }
}

/// What to do next about an error.
pub(crate) fn hint(error: &Error) -> Option<String> {
    let text = match error {
        Error::NothingToHold => {
            "  pass --pid for a process that should hold it, or --ttl for a time".to_owned()
        }
        Error::NotALock { .. } => {
            "  it was left as it is; choose another name for the lock".to_owned()
        }
        Error::GuardBusy { pid: Some(pid), .. } => {
            format!("  process {pid} may be stopped: look at it with `ps {pid}`")
        }
        Error::CannotExchange { .. } => {
            "  decide yourself, with `onehold break`, or use a store on another filesystem"
                .to_owned()
        }
        _ => return None,
    };
    Some(text)
}

/// The block that says of a lock: who, since when, how sure, where. Without the last line, what to
/// do next.
pub(crate) fn block(status: &Status, verbose: bool) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(evidence) = describe::evidence(status) {
        lines.push(format!("  {}", paint(status, &evidence)));
    }
    match status.waiters.as_slice() {
        [] => {}
        waiters if verbose => lines.extend(
            waiters
                .iter()
                .map(|waiter| format!("  {}. {}", waiter.place, describe::waiting(waiter))),
        ),
        [_] => lines.push("  1 waits for it".to_owned()),
        waiters => lines.push(format!("  {} wait for it", waiters.len())),
    }
    if verbose {
        if let Some(record) = &status.record {
            if !record.command.is_empty() {
                let command = record
                    .command
                    .iter()
                    .map(|argument| shell_quoted(&describe::escape(argument)))
                    .collect::<Vec<_>>()
                    .join(" ");
                lines.push(format!("  command: {command}"));
            }
            lines.push(format!(
                "  hold: {} ({})",
                record.hold,
                describe::kind(record.kind)
            ));
        }
        lines.push(format!("  file: {}", shown(&status.path)));
    }
    lines
}

/// What to do about a lock that was refused.
pub(crate) fn next_step(session: &Session, status: &Status, waited: bool) -> String {
    let break_it = command_line(session, "break", status);
    if status.is_takeable() && matches!(session.verb, "acquire" | "run") {
        return format!("  take it over with --on-zombie take, or remove it with `{break_it}`");
    }
    if status.verdict.is_zombie() && !status.settles {
        return format!("  this filesystem cannot settle who takes it: `{break_it}`");
    }
    if session.is_inside(status) {
        return "  you are inside this hold, which ends after you: name it with run --reentrant, or \
                give both the same --owner"
            .to_owned();
    }
    if status.verdict.reason == onehold::Reason::Promised {
        return "  stand in line for it with --wait, or barge in with --force".to_owned();
    }
    if matches!(session.verb, "acquire" | "run") && is_ancestors(status) {
        return format!(
            "  it is held for a process that you descend from: give it back with `{}` first",
            command_line(session, "release", status)
        );
    }
    match (session.verb, waited) {
        ("acquire" | "run", true) => {
            format!("  wait longer with --wait, or take it with `{break_it}`")
        }
        ("acquire" | "run", false) => {
            format!("  wait for it with --wait, or take it with `{break_it}`")
        }
        _ if status.verdict.state == onehold::State::Zombie => format!(
            "  remove it with `{}` or `{break_it}`",
            store_command(session, "cleanup")
        ),
        // A `run` is not given back by its number.
        ("release" | "renew", _)
            if status.hold().is_some()
                && status
                    .record
                    .as_ref()
                    .is_some_and(|record| record.kind != onehold::Kind::Run) =>
        {
            format!("  give its --hold or --owner, or take it with `{break_it}`")
        }
        _ => format!("  take it with `{break_it}`"),
    }
}

/// Whether it is held for a process that the caller descends from, by `acquire`.
fn is_ancestors(status: &Status) -> bool {
    let is_job = status
        .record
        .as_ref()
        .is_some_and(|record| record.kind == onehold::Kind::Job);
    let in_force = matches!(
        status.verdict.state,
        onehold::State::Held | onehold::State::Overdue
    );
    is_job && in_force && Claimant::default().owns(status)
}

/// A command that works when pasted, wherever that is.
pub(crate) fn command_line(session: &Session, verb: &str, status: &Status) -> String {
    let is_path = status.name.starts_with('/')
        || status.name.starts_with("./")
        || status.name.starts_with("../");
    let name = if is_path {
        status.path.to_string_lossy().into_owned()
    } else {
        status.name.clone()
    };
    let mut words = verb_words(session, verb, !is_path);
    if name.starts_with('-') {
        words.push("--".to_owned());
    }
    words.push(shell_quoted(&name));
    describe::escape(&words.join(" "))
}

/// The same for what is about the whole store.
fn store_command(session: &Session, verb: &str) -> String {
    describe::escape(&verb_words(session, verb, true).join(" "))
}

fn verb_words(session: &Session, verb: &str, in_store: bool) -> Vec<String> {
    let mut words = vec!["onehold".to_owned()];
    if let Some(profile) = &session.in_force.profile {
        words.extend(["--profile".to_owned(), shell_quoted(profile)]);
    }
    if let Some(format) = session.everywhere.format {
        words.extend(["--format".to_owned(), format.to_string()]);
    }
    if in_store && let Some(directory) = session.directory_to_name() {
        words.extend([
            "--dir".to_owned(),
            shell_quoted(&directory.to_string_lossy()),
        ]);
    }
    words.push(verb.to_owned());
    words
}

/// Where a refusal was found.
pub(crate) fn store_line(status: &Status) -> String {
    format!("  store: {}", shown(&status.store))
}

/// A path in a message.
pub(crate) fn shown(path: &Path) -> String {
    describe::escape(&path.to_string_lossy())
}

fn shell_quoted(text: &str) -> String {
    shlex::try_quote(text).map_or_else(|_| text.to_owned(), std::borrow::Cow::into_owned)
}

/// The colour of a state.
pub(crate) fn paint(status: &Status, text: &str) -> String {
    use onehold::State;
    let colour = match status.verdict.state {
        State::Free => AnsiColor::Green,
        State::Held => return text.to_owned(),
        State::Overdue | State::NotALock => AnsiColor::Yellow,
        State::Zombie => AnsiColor::Red,
    };
    let style = Style::new().fg_color(Some(colour.into()));
    format!("{style}{text}{style:#}")
}

/// A table with aligned columns, the last one ragged. Rows are given with a status to colour the
/// second cell by.
pub(crate) fn table<const N: usize>(header: [&str; N], rows: &[(&Status, [String; N])]) -> String {
    let mut widths = header.map(UnicodeWidthStr::width);
    for (_, cells) in rows {
        for (most, cell) in widths.iter_mut().zip(cells) {
            *most = (*most).max(width(cell));
        }
    }
    let mut text = String::new();
    let mut line = |cells: [&str; N], status: Option<&Status>| {
        for (index, (cell, most)) in cells.iter().zip(widths).enumerate() {
            match status {
                Some(status) if index == 1 => text.push_str(&paint(status, cell)),
                _ => text.push_str(cell),
            }
            let padding = most.saturating_sub(width(cell)) + 2;
            text.extend(std::iter::repeat_n(' ', padding));
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    };
    line(header, None);
    for (status, cells) in rows {
        line(cells.each_ref().map(String::as_str), Some(status));
    }
    text.pop();
    text
}

/// In columns of a terminal.
fn width(cell: &str) -> usize {
    if cell.is_ascii() {
        cell.len()
    } else {
        cell.width()
    }
}

/// The object of a failure before there is anything to say of a lock.
pub(crate) fn bare_failure(verb: &str, code: &'static str, message: &str) {
    let outcome =
        Outcome::new(Exit::Failed, "failure", message).failure(code, serde_json::json!({}));
    let line = object(verb, &outcome, &Claimant::default());
    if verb == "run" {
        talk(&line);
    } else {
        let _ = data(&line);
    }
}
