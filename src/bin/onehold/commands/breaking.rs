//! `break`: take a lock away from its holder, on a person's word.

use onehold::{Break, Claim, Lock, State, Status};
use serde_json::json;

use crate::args;
use crate::claiming::{confirm, wait_for_displaced};
use crate::commands::Carried;
use crate::commands::release::not_yours;
use crate::describe;
use crate::exit::Exit;
use crate::output;
use crate::report::Outcome;
use crate::session::Session;

pub(crate) fn break_hold(session: &Session, typed: args::Break) -> Carried {
    let lock = session.named_lock(typed.name)?;
    break_lock(session, &lock, typed.hold, typed.yes)
}

/// Breaks what stands there now, if it is `hold`, and only that.
pub(crate) fn break_lock(session: &Session, lock: &Lock, hold: Option<u64>, yes: bool) -> Carried {
    let status = lock.check(None)?;
    if let onehold::Reason::NotALock(what) = status.verdict.reason {
        return Err(onehold::Error::NotALock {
            path: status.path,
            what,
        }
        .into());
    }
    let Some(shown) = status.shown() else {
        return Ok(nothing(session, lock).into());
    };
    if hold.is_some_and(|hold| status.hold() != Some(hold)) {
        return Ok(another(session, Box::new(status)).into());
    }
    let harmless = matches!(status.verdict.state, State::Free | State::Zombie);
    if !yes && !harmless && !confirm(session, &status, "break it?") {
        let text = format!("not broken: {}", describe::sentence(&status));
        let outcome = Outcome::new(Exit::Locked, "blocked", text)
            .failure("NOT_CONFIRMED", json!({ "hold": status.hold() }))
            .talk(output::store_line(&status))
            .lock(Box::new(status));
        return Ok(outcome.into());
    }
    match lock.break_hold(&shown)? {
        Break::Done { was, warnings } => {
            let text = match was.verdict.state {
                State::Zombie | State::Free => {
                    format!("removed what was left: {}", describe::past(&was))
                }
                _ => format!("broken: {}", describe::past(&was)),
            };
            let mut outcome = Outcome::new(Exit::Done, "broken", text).warnings(&warnings);
            if !session.everywhere.quiet && !session.everywhere.json {
                output::talk(&format!("onehold: {}", outcome.message));
            }
            outcome
                .warnings
                .extend(wait_for_displaced(session, &was, || false));
            Ok(outcome.lock(was).into())
        }
        Break::Nothing => Ok(nothing(session, lock).into()),
        Break::Changed(status) => Ok(another(session, status).into()),
    }
}

fn nothing(session: &Session, lock: &Lock) -> Outcome {
    let text = format!(
        "{} is free: nothing to break",
        describe::quoted(lock.name().as_str())
    );
    let outcome = Outcome::new(Exit::Nothing, "failure", text).failure("NOT_HELD", json!({}));
    // Nobody can have it all the same while another has what it covers, or what covers it.
    match lock.check_relatives(&Claim::new()) {
        Ok(Some(relative)) => outcome
            .talk(format!("  but {}", describe::sentence(&relative)))
            .talk(format!(
                "  take that with `{}`",
                output::command_line(session, "break", &relative)
            )),
        Ok(None) | Err(_) => outcome,
    }
}

fn another(session: &Session, status: Box<Status>) -> Outcome {
    not_yours(session, "that is another hold", status)
}
