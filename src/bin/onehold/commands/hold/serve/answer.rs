//! Answers to requests that hold nothing, and to those that fail.

use onehold::Status;

use crate::arguments::args::{UsageError, Verb};
use crate::commands::{check, release, renew};
use crate::configuration::Session;
use crate::messages::{Outcome, Printed, Refusal};
use crate::output::{failed, report};

/// What was done, for the program.
#[derive(Default)]
pub(super) struct Answer {
    /// The line. Empty: all has been told.
    pub(super) line: String,
    /// The holds that it has released by their names, as they were.
    pub(super) released: Vec<Status>,
}

/// Does what a command that holds nothing is asked for.
pub(super) fn answer(session: &Session, id: u64, verb: Verb) -> Answer {
    let outcome = outcome(session, verb);
    let line = line(session, id, &outcome);
    let changed = outcome.lock.map(|lock| *lock).into_iter();
    let released = changed.chain(outcome.locks);
    Answer {
        line,
        released: released.filter(|_| outcome.is_removed).collect(),
    }
}

/// The outcome of a command that holds nothing.
fn outcome(session: &Session, verb: Verb) -> Outcome {
    let ready = session.ensure_directory(false).map_err(anyhow::Error::from);
    let done = ready.and_then(|()| match verb {
        Verb::Check(typed) => check::check(session, typed),
        Verb::Renew(typed) => renew::renew(session, typed),
        Verb::Release(typed) => release::release(session, typed),
        verb => Err(UsageError(format!("unknown command `{}`", verb.word())).into()),
    });
    match done {
        Ok(Printed::No(outcome)) => *outcome,
        Ok(Printed::Yes(exit)) => Outcome::new(exit, "", ""),
        Err(error) => failed(session, &error),
    }
}

/// The outcome of a wait that was canceled.
pub(super) fn canceled() -> Outcome {
    Outcome::refused(Refusal::INTERRUPTED, "canceled")
}

/// The line that answers a request by an outcome.
pub(super) fn line(session: &Session, id: u64, outcome: &Outcome) -> String {
    let request = Some(report::Request { id: Some(id) });
    let line = report::object(session.verb, Some(session), request, outcome);
    line.unwrap_or_default()
}
