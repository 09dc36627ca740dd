//! `cleanup`: remove all zombies.

use onehold::repair::Cleanup;
use onehold::status::Reason;
use onehold::{Error, Lock, State, Status};

use crate::arguments::args;
use crate::configuration::Session;
use crate::messages::{CommandResult, Exit, Outcome, describe, describe_holder, local};
use crate::output::{command_line, only_remover, store_command};
use crate::words;

#[inline(never)]
pub(crate) fn cleanup(session: &Session, typed: &args::Cleanup) -> CommandResult {
    let names = session.chosen(&typed.names);
    let (mut without, mut left_there) = (Vec::new(), Vec::new());
    let mut cleanup = Cleanup::default();
    if names.is_empty() {
        cleanup = session.store.cleanup(typed.dry_run, typed.max_age)?;
    } else if session.store.is_remote() && names.len() > 1 {
        // What is dead is removed once this process has known that for some time, which begins now for all.
        for name in names {
            session.lock(name.clone())?.inspect(typed.max_age)?;
        }
    }
    for name in names {
        let lock = session.lock(name.clone())?;
        let mut one = lock.cleanup(typed.dry_run, typed.max_age)?;
        let is_no_lock = |error: &mut Error| matches!(error, Error::NotALock { .. });
        if let Some(error) = one.errors.pop_if(is_no_lock) {
            match damaged(session, &lock)? {
                Some(text) if text.is_empty() => {}
                Some(text) => left_there.push(text),
                // As the other verbs say it that are given one name.
                None if names.len() == 1 => return Err(error.into()),
                None => one.errors.push(error),
            }
        } else if one.removed.is_empty() && one.left.is_empty() && one.errors.is_empty() {
            let name = words::quoted(name.as_str());
            without.push(format!("onehold: {name}: nothing to remove"));
        }
        cleanup.removed.extend(one.removed);
        cleanup.left.extend(one.left);
        cleanup.errors.extend(one.errors);
        cleanup.warnings.extend(one.warnings);
    }
    let count = cleanup.removed.len();
    let done = if typed.dry_run {
        "would remove"
    } else {
        "removed"
    };
    let word = match count {
        0 if cleanup.errors.is_empty() => "clean",
        0 => "failure",
        _ if typed.dry_run => "zombie-detected",
        _ => "cleaned",
    };
    let is_remote = session.store.is_remote();
    let counted = words::counted(count, if is_remote { "record" } else { "lock file" });
    let message = format!("{done} {counted} in {}", session.store_text());
    let mut outcome = Outcome::new(Exit::DONE, word, message);
    if !session.global.quiet && count > 0 {
        let removed = cleanup.removed.iter();
        let lines: Vec<_> = removed.map(|status| removed_text(done, status)).collect();
        outcome = outcome.data(lines.join("\n"));
    }
    outcome = outcome.told_if(session.global.verbose);
    for status in &cleanup.left {
        let why = match (status.verdict.takeable_in, only_remover(status)) {
            (Some(left), _) => format!("it can be removed in {}", words::span(left)),
            (None, Some(user)) if status.can_take_over => format!("only user {user} can remove it"),
            _ => format!(
                "no cleanup on a shared filesystem; if the holder is dead, run `{}`",
                command_line(session, "break", status)
            ),
        };
        let warning = format!("not removed: {}; {why}", describe_holder(status, local));
        outcome.warnings.push(warning);
    }
    outcome.warnings.extend(left_there);
    if session.tells_success() {
        outcome.notes.extend(without);
    }
    let settings = &session.config.settings;
    let errors = cleanup.errors.iter();
    let errors = errors.map(|error| settings.error_message(error));
    outcome = outcome
        .incomplete(errors, "removed")
        .warnings(&cleanup.warnings);
    outcome.is_removed = !typed.dry_run;
    outcome.locks = cleanup.removed;
    Ok(outcome.into())
}

/// Why a file is left that is not a lock file, at the path of the profile's lock. `None`: it is not there, or it is no
/// regular file. Empty for one that may still be being written.
#[cold]
fn damaged(session: &Session, lock: &Lock) -> onehold::Result<Option<String>> {
    if !session.is_fixed_path(lock) {
        return Ok(None);
    }
    let found = session.at_fixed_path(lock.inspect(None)?);
    Ok(match found.verdict.reason {
        Reason::Malformed(_) => {
            let holder = describe_holder(&found, local);
            let break_it = store_command(session, "break");
            Some(format!(
                "not removed: {holder}; to move its file aside, run `{break_it}`"
            ))
        }
        Reason::Incomplete => Some(String::new()),
        _ => None,
    })
}

/// "removed zombie `x`: process 4262 (sleep) on vm, holder since 20:40:51, has exited"
fn removed_text(done: &str, status: &Status) -> String {
    match status.verdict.state {
        State::Free => {
            let name = words::quoted(&status.name);
            let evidence = describe::evidence(status, local).unwrap_or_default();
            format!("{done} {name}: {evidence}")
        }
        _ => format!("{done} {}", describe::zombie(status)),
    }
}
