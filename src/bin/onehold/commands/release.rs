//! `release`: release a lock.

use onehold::{Release, State};

use crate::args;
use crate::commands::break_lock;
use crate::commands::not_yours::not_yours;
use crate::describe::{self, local};
use crate::exit::Exit;
use crate::outcome::CommandResult;
use crate::outcome::Outcome;
use crate::outcome::with_message_if_verbose;
use crate::session::Session;
use crate::words;

#[inline(never)]
pub(crate) fn release(session: &Session, typed: args::Release) -> CommandResult {
    let lock = session.named_lock(typed.name)?;
    let outcome = match lock.release(&session.caller)? {
        // Anyone may remove it, so it is said whose it was.
        Release::Done(status) if status.verdict.state == State::Zombie => {
            let text = format!(
                "removed zombie {}: {}",
                words::quoted(&status.name),
                describe::describe_zombie(&status, local)
            );
            let note = format!("onehold: {text}");
            let outcome = Outcome::new(Exit::Done, "released", text);
            return Ok(outcome.note(note).removed(status).into());
        }
        Release::Done(status) => {
            let text = format!("released {}", words::quoted(&status.name));
            Outcome::new(Exit::Done, "released", text).removed(status)
        }
        Release::Lost(status) => {
            let text = format!("released {}", words::quoted(&status.name));
            let warning = format!(
                "{} was lost before: the record of one of its locks was removed or replaced",
                describe::hold_and_locks(&status)
            );
            let mut outcome = Outcome::new(Exit::Done, "released", text).removed(status);
            outcome.warnings.push(warning);
            outcome
        }
        Release::Free => {
            let text = format!("{} is free", words::quoted(lock.name().as_str()));
            let outcome = Outcome::new(Exit::Done, "released", text);
            if session.global.json {
                outcome.lock(Box::new(lock.inspect(None)?))
            } else {
                outcome
            }
        }
        Release::NotYours(_) | Release::HeldByRun(_) if typed.force => {
            let hold = session.caller.hold;
            return break_lock::break_lock(session, &lock, hold, typed.yes, false);
        }
        Release::NotYours(status) => not_yours(session, "not released", status),
        Release::HeldByRun(status) => {
            let mut outcome = not_yours(session, "not released", status);
            outcome.notes.insert(
                0,
                "  a running `onehold run` holds it until its command exits".to_owned(),
            );
            outcome
        }
    };
    Ok(with_message_if_verbose(session, outcome).into())
}
