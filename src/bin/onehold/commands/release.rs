//! `release`: give a hold back.

use onehold::{Release, Status};
use serde_json::json;

use crate::args;
use crate::commands::{Carried, breaking};
use crate::describe;
use crate::exit::Exit;
use crate::output::{block, next_step, store_line};
use crate::report::Outcome;
use crate::session::Session;

pub(crate) fn release(session: &Session, typed: args::Release) -> Carried {
    let lock = session.named_lock(typed.name)?;
    let outcome = match lock.release(&session.claimant)? {
        Release::Done(status) => {
            let text = format!("released {}", describe::quoted(&status.name));
            Outcome::new(Exit::Done, "released", text).lock(status)
        }
        Release::Free => {
            let text = format!("{} is free", describe::quoted(lock.name().as_str()));
            Outcome::new(Exit::Done, "released", text)
        }
        Release::NotYours(_) | Release::EndsWithCommand(_) if typed.force => {
            let hold = session.claimant.hold;
            return breaking::break_lock(session, &lock, hold, typed.yes);
        }
        Release::NotYours(status) => not_yours(session, "not yours", status),
        Release::EndsWithCommand(status) => not_yours(session, "it ends with its command", status),
    };
    Ok(verbosely(session, outcome).into())
}

/// The outcome of asking for what is another's.
pub(crate) fn not_yours(session: &Session, why: &str, status: Box<Status>) -> Outcome {
    let text = format!("{why}: {}", describe::sentence(&status));
    let mut outcome = Outcome::new(Exit::NotYours, "failure", text)
        .failure("NOT_OWNER", json!({ "hold": status.hold() }));
    outcome.talk = block(&status, session.everywhere.verbose);
    outcome
        .talk
        .extend([store_line(&status), next_step(session, &status, false)]);
    outcome.lock(status)
}

/// What went as expected is only told to those who want to hear it: cron mails whatever is said.
pub(crate) fn verbosely(session: &Session, mut outcome: Outcome) -> Outcome {
    if session.everywhere.verbose && outcome.failure.is_none() {
        outcome.talk.push(format!("onehold: {}", outcome.message));
    }
    outcome
}
