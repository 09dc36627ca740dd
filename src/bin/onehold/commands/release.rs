//! `release`: release a lock.

use anyhow::bail;
use onehold::{Caller, HoldInfo, Lock, LockName, Release, State, Status};

use crate::arguments::args::{self, UsageError};
use crate::commands::break_lock::break_shown;
use crate::commands::not_yours::not_yours;
use crate::configuration::Session;
use crate::messages::{CommandResult, Exit, Outcome, describe, describe_holder, local};
use crate::output::about_file;
use crate::words;

#[inline(never)]
pub(crate) fn release(session: &Session, typed: args::Release) -> CommandResult {
    if typed.all {
        return release_all(session, typed.name.as_ref());
    }
    let lock = session.named_lock(typed.name)?;
    let outcome = match lock.release(&session.caller)? {
        // Anyone may remove it, so it is said whose it was.
        Release::Done(status) if status.verdict.state == State::Zombie => {
            let text = format!("removed {}", describe::zombie(&status));
            let outcome = Outcome::new(Exit::DONE, "released", text).told_if(true);
            return Ok(outcome.removed(status).into());
        }
        Release::Done(status) => released(status),
        Release::Lost(status) => {
            let warning = format!(
                "{} was lost before: the record of one of its locks was removed or replaced",
                describe::hold_and_locks(&status)
            );
            let mut outcome = released(status);
            outcome.warnings.push(warning);
            outcome
        }
        Release::Free => {
            let text = format!("{} is free", words::quoted(lock.name().as_str()));
            let mut outcome = Outcome::new(Exit::DONE, "released", text);
            let found = session.global.json.then(|| lock.inspect(None));
            outcome.lock = found.transpose()?.map(Box::new);
            tell_fate(session, &lock, &mut outcome);
            outcome.notes(about_file(session, &lock))
        }
        Release::NotYours(_) | Release::HeldByRun(_) if typed.force => {
            let typed = args::Break {
                hold: session.caller.hold,
                yes: typed.yes,
                ..args::Break::default()
            };
            let status = lock.inspect(None)?;
            return Ok(break_shown(session, &lock, status, &typed)?.into());
        }
        Release::NotYours(status) => {
            let is_another = session.caller.hold != status.hold();
            let mut outcome = not_yours(session, "not released", None, status);
            if is_another {
                tell_fate(session, &lock, &mut outcome);
            }
            outcome
        }
        Release::HeldByRun(status) => {
            let is_of_hold = |info: HoldInfo| info.is_served() || info.is_without_command();
            let why = if status.info().is_some_and(is_of_hold) {
                "  a running `onehold hold` holds it until its stdin ends"
            } else {
                "  a running `onehold run` holds it until its command exits"
            };
            not_yours(session, "not released", Some(why), status)
        }
    };
    Ok(outcome.told_if(session.global.verbose).into())
}

/// Releases all holds of the owner. Those of a `run` or `hold` end with their command or stdin.
fn release_all(session: &Session, name: Option<&LockName>) -> CommandResult {
    let Some(owner) = session.caller.owner.as_deref().filter(|_| name.is_none()) else {
        bail!(UsageError("--all needs --owner, and no NAME".to_owned()));
    };
    let listing = session.store.list(None)?;
    let mut outcome = Outcome::new(Exit::DONE, "released", "");
    for status in listing.locks.iter().flat_map(Status::all_holds) {
        if status.info().and_then(HoldInfo::owner) != Some(owner) {
            continue;
        }
        let lock = session.lock(LockName::new(&status.name)?)?;
        let caller = Caller {
            hold: status.hold(),
            ..session.caller.clone()
        };
        match lock.release(&caller)? {
            Release::Done(status) | Release::Lost(status) => outcome.locks.push(*status),
            // It has ended meanwhile, or with another of its names.
            Release::Free | Release::NotYours(_) => {}
            Release::HeldByRun(status) => {
                let holder = describe_holder(&status, local);
                outcome.warnings.push(format!("not released: {holder}"));
            }
        }
    }
    let released = words::counted(outcome.locks.len(), "hold");
    let (owner, store) = (words::quoted(owner), session.store_text());
    outcome.message = format!("released {released} of {owner} in {store}");
    outcome.is_removed = true;
    let outcome = outcome
        .warnings(&listing.warnings)
        .incomplete(listing.errors.iter().map(words::error_chain), "read")
        .told_if(session.global.verbose);
    Ok(outcome.into())
}

/// Says what has become of the hold that the caller named, whose record is gone.
fn tell_fate(session: &Session, lock: &Lock, outcome: &mut Outcome) {
    let Some(hold) = session.caller.hold else {
        return;
    };
    match describe::fate(lock, hold) {
        Some((text, true)) => outcome.warnings.push(text),
        // Of a number that is another one's it would be wrong to say that it was there.
        Some((text, false)) if outcome.failure.is_none() => {
            outcome.notes.push(format!("onehold: {text}"));
        }
        _ => {}
    }
}

fn released(status: Box<Status>) -> Outcome {
    let text = format!("released {}", words::quoted(&status.name));
    Outcome::new(Exit::DONE, "released", text).removed(status)
}
