//! `break`: remove a hold by force.

use onehold::{Break, Lock, Reason, State, Status};
use serde_json::json;

use crate::acquiring::{confirm, wait_for_displaced};
use crate::args;
use crate::cancel;
use crate::describe;
use crate::exit::Exit;
use crate::outcome::CommandResult;
use crate::outcome::Outcome;
use crate::output;
use crate::refusal::another;
use crate::session::Session;
use crate::words;

#[inline(never)]
pub(crate) fn break_hold(session: &Session, typed: args::Break) -> CommandResult {
    let lock = session.named_lock(typed.name)?;
    break_lock(session, &lock, typed.hold, typed.yes)
}

/// Breaks the current hold after confirmation. `hold`: only if it has this number.
pub(crate) fn break_lock(
    session: &Session,
    lock: &Lock,
    hold: Option<u64>,
    yes: bool,
) -> CommandResult {
    let status = lock.inspect(None)?;
    if let Reason::NotALock(what) = status.verdict.reason {
        // Elsewhere the name may be wrong. The path of a profile is meant for this lock alone.
        if session.is_fixed_path(lock)
            && let Some(outcome) = move_aside(session, lock, &status, yes)?
        {
            return Ok(outcome.into());
        }
        return Err(onehold::Error::NotALock {
            path: status.path,
            what,
        }
        .into());
    }
    let Some(revision) = status.revision() else {
        return Ok(not_held(session, lock).into());
    };
    if hold.is_some_and(|hold| status.hold() != Some(hold)) {
        return Ok(another(session, Box::new(status)).into());
    }
    let harmless = matches!(status.verdict.state, State::Free | State::Zombie);
    if !yes && !harmless && !confirm(session, &status, "Break it?") {
        let text = format!("not confirmed: {}", describe::describe_holder(&status));
        let outcome = Outcome::new(Exit::Locked, "blocked", text)
            .failure("NOT_CONFIRMED", json!({ "hold": status.hold() }))
            .note(output::store_line(&status))
            .lock(Box::new(status));
        return Ok(outcome.into());
    }
    // From here on Ctrl-C cannot change nothing.
    cancel::commit(());
    match lock.break_hold(&revision)? {
        Break::Done { was, warnings } => {
            let name = words::quoted(&was.name);
            let text = match was.verdict.state {
                State::Zombie => {
                    format!("removed zombie {name}: {}", describe::describe_zombie(&was))
                }
                State::Free => format!("removed the lock file of {name}, which was free"),
                _ => format!(
                    "broke the hold on {name} of {}",
                    describe::describe_past_holder(&was)
                ),
            };
            let mut outcome = Outcome::new(Exit::Done, "broken", text).warnings(&warnings);
            if !session.global.quiet && !session.global.json {
                output::eprint(&format!("onehold: {}", outcome.message));
            }
            outcome.warnings.extend(wait_for_displaced(
                session,
                &was,
                cancel::interrupted_after_commit,
            ));
            Ok(outcome.lock(was).into())
        }
        Break::Nothing => Ok(not_held(session, lock).into()),
        Break::Changed(status) => Ok(another(session, status).into()),
    }
}

/// Moves a file that is not a lock file aside, after confirmation. `None`: it cannot be moved.
fn move_aside(
    session: &Session,
    lock: &Lock,
    status: &Status,
    yes: bool,
) -> anyhow::Result<Option<Outcome>> {
    if !yes && !confirm(session, status, "Move the file aside?") {
        let text = format!("not confirmed: {}", describe::describe_holder(status));
        let outcome = Outcome::new(Exit::Failed, "failure", text);
        return Ok(Some(outcome.failure("NOT_CONFIRMED", json!({}))));
    }
    let Some(moved) = lock.move_aside()? else {
        return Ok(None);
    };
    let text = format!(
        "moved the file of {}, which was not a lock, to {}",
        words::quoted(&status.name),
        words::path_text(&moved.to)
    );
    let note = format!("onehold: {text}");
    let outcome = Outcome::new(Exit::Done, "broken", text).warnings(&moved.warnings);
    Ok(Some(outcome.note(note).lock(Box::new(status.clone()))))
}

fn not_held(session: &Session, lock: &Lock) -> Outcome {
    let name = words::quoted(lock.name().as_str());
    // A parent or child can still keep the lock from being acquired.
    let relative = lock
        .check(None)
        .ok()
        .filter(|status| status.name != lock.name().as_str());
    let Some(relative) = relative else {
        let text = format!("{name} is free: nothing to break");
        return Outcome::new(Exit::NotHeld, "failure", text).failure("NOT_HELD", json!({}));
    };
    let relation = describe::relation(&relative, lock.name());
    Outcome::new(
        Exit::NotHeld,
        "failure",
        format!("{name} itself is not held"),
    )
    .failure("NOT_HELD", json!({}))
    .note(format!(
        "  its {relation} {}",
        describe::describe_holder(&relative)
    ))
    .note(format!(
        "  to break that: `{}`",
        output::command_line(session, "break", &relative)
    ))
}
