//! `release`: give a hold back.

use onehold::Release;
use serde_json::json;

use crate::args;
use crate::commands::{Carried, breaking};
use crate::describe;
use crate::exit::Exit;
use crate::output::{block, command_line};
use crate::report::Outcome;
use crate::session::Session;

pub(crate) fn release(session: &Session, typed: args::Release) -> Carried {
    let lock = session.lock(typed.name)?;
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
        Release::NotYours(status) => {
            let text = format!("not yours: {}", describe::sentence(&status));
            let mut outcome = Outcome::new(Exit::NotYours, "failure", text)
                .failure("NOT_OWNER", json!({ "hold": status.hold() }));
            outcome.talk = block(&status, session.everywhere.verbose);
            outcome.talk.push(format!(
                "  release it with --hold or --owner, or take it with `{}`",
                command_line(session, "break", &status.name)
            ));
            outcome.lock(status)
        }
        Release::EndsWithCommand(status) => {
            let text = format!("it ends with its command: {}", describe::sentence(&status));
            let mut outcome = Outcome::new(Exit::NotYours, "failure", text)
                .failure("NOT_OWNER", json!({ "hold": status.hold() }));
            outcome.talk = block(&status, session.everywhere.verbose);
            outcome.talk.push(format!(
                "  end the command, or take the lock with `{}`",
                command_line(session, "break", &status.name)
            ));
            outcome.lock(status)
        }
    };
    Ok(verbosely(session, outcome).into())
}

/// What went as expected is only told to those who want to hear it: cron mails whatever is said.
pub(crate) fn verbosely(session: &Session, mut outcome: Outcome) -> Outcome {
    if session.everywhere.verbose && outcome.failure.is_none() {
        outcome.talk.push(format!("onehold: {}", outcome.message));
    }
    outcome
}
