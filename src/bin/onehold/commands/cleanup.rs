//! `cleanup`: remove every zombie, and nothing else.

use onehold::{State, Status};

use crate::args;
use crate::commands::Carried;
use crate::describe;
use crate::exit::Exit;
use crate::output::{chain, command_line};
use crate::report::Outcome;
use crate::session::Session;

pub(crate) fn cleanup(session: &Session, typed: &args::Cleanup) -> Carried {
    let cleanup = match &session.only {
        Some(name) => session
            .lock(name.clone())?
            .cleanup(typed.dry_run, typed.max_age)?,
        None => session.store.cleanup(typed.dry_run, typed.max_age)?,
    };
    let count = cleanup.removed.len();
    let word = match (count, typed.dry_run) {
        (0, _) => "clean",
        (_, true) => "zombie-detected",
        (_, false) => "cleaned",
    };
    let done = if typed.dry_run {
        "would remove"
    } else {
        "removed"
    };
    let store = session.place();
    let plural = if count == 1 { "" } else { "s" };
    let message = format!("{done} {count} lock file{plural} in {store}");
    let mut outcome = Outcome::new(Exit::Done, word, message);
    if !session.everywhere.quiet && count > 0 {
        let lines: Vec<_> = cleanup
            .removed
            .iter()
            .map(|status| format!("{done}: {}", what_it_was(status)))
            .collect();
        outcome = outcome.data(lines.join("\n"));
    }
    if session.everywhere.verbose {
        outcome.talk.push(format!("onehold: {}", outcome.message));
    }
    for status in &cleanup.left {
        outcome.warnings.push(format!(
            "left: {}: this filesystem cannot settle who takes it: `{}`",
            describe::sentence(status),
            command_line(session, "break", status)
        ));
    }
    let settings = &session.in_force.settings;
    let in_words = |error| settings.words_for(error).unwrap_or_else(|| chain(error));
    outcome.warnings.extend(cleanup.errors.iter().map(in_words));
    outcome = outcome.warnings(&cleanup.warnings);
    if !cleanup.errors.is_empty() {
        outcome = outcome.incomplete("removed");
    }
    outcome.locks = cleanup.removed;
    Ok(outcome.into())
}

fn what_it_was(status: &Status) -> String {
    match status.verdict.state {
        State::Free => format!(
            "{}: {}",
            describe::quoted(&status.name),
            describe::evidence(status).unwrap_or_default()
        ),
        _ => describe::sentence(status),
    }
}
