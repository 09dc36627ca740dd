//! The outcomes of `release`, `renew` and `break` for a hold of another holder.

use onehold::Status;
use serde_json::json;

use crate::describe;
use crate::exit::Exit;
use crate::outcome::Outcome;
use crate::output::{block, next_step, store_line};
use crate::session::Session;

/// `what` was not done, for example "not released".
pub(crate) fn not_yours(session: &Session, what: &str, status: Box<Status>) -> Outcome {
    let text = format!("{what}: {}", describe::describe_holder(&status));
    let mut outcome = Outcome::new(Exit::NotYours, "failure", text)
        .failure("NOT_OWNER", json!({ "hold": status.hold() }));
    outcome.notes = block(&status, session.global.verbose);
    outcome
        .notes
        .extend([store_line(&status), next_step(session, &status, None)]);
    outcome.lock(status)
}

/// `break` found a hold with another number than the one it was asked or confirmed to break.
pub(crate) fn another(session: &Session, status: Box<Status>) -> Outcome {
    not_yours(session, "not broken, the hold has another number", status)
}
