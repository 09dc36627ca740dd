//! `release`: release a lock.

use onehold::{Lock, Release, State, Status};

use crate::arguments::args;
use crate::commands::break_lock::break_lock;
use crate::commands::not_yours::not_yours;
use crate::configuration::session::Session;
use crate::messages::describe;
use crate::messages::{CommandResult, Exit, Outcome};
use crate::output::suggested::about_file;
use crate::words;

#[inline(never)]
pub(crate) fn release(session: &Session, typed: args::Release) -> CommandResult {
    let lock = session.named_lock(typed.name)?;
    let outcome = match lock.release(&session.caller)? {
        // Anyone may remove it, so it is said whose it was.
        Release::Done(status) if status.verdict.state == State::Zombie => {
            let text = format!("removed {}", describe::zombie(&status));
            let outcome = Outcome::new(Exit::Done, "released", text).told_if(true);
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
            let mut outcome = Outcome::new(Exit::Done, "released", text);
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
            return Ok(break_lock(session, &lock, &typed)?.into());
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
            let why = "  a running `onehold run` holds it until its command exits";
            not_yours(session, "not released", Some(why), status)
        }
    };
    Ok(outcome.told_if(session.global.verbose).into())
}

/// Says what has become of the hold that the caller named, whose record is gone.
fn tell_fate(session: &Session, lock: &Lock, outcome: &mut Outcome) {
    let Some(hold) = session.caller.hold else {
        return;
    };
    let name = words::quoted(lock.name().as_str());
    match describe::fate(&name, hold, &lock.fate(hold)) {
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
    Outcome::new(Exit::Done, "released", text).removed(status)
}
