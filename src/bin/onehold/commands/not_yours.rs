//! The outcomes of `release`, `renew` and `break` for a hold of another holder.

use onehold::Status;
use serde_json::json;

use crate::configuration::Session;
use crate::messages::{Outcome, Refusal, describe_holder, local};
use crate::output::{block, next_step, profile_values, store_line};

/// `what` was not done, for example "not released". `why`: a line below that.
pub(crate) fn not_yours(
    session: &Session,
    what: &str,
    why: Option<&str>,
    status: Box<Status>,
) -> Outcome {
    let own = format!("{what}: {}", describe_holder(&status, local));
    // The message of the foreign program comes first: its callers look for it. It knows neither numbers nor runs.
    let is_its_own = why.is_none() && session.caller.hold.is_none() && session.verb != "break";
    let settings = Some(&session.config.settings).filter(|_| is_its_own);
    let values = || profile_values(&status, &session.caller);
    let foreign = settings.and_then(|settings| settings.not_yours(values));
    let (text, own) = match foreign {
        Some(foreign) => (foreign, Some(format!("  {own}"))),
        None => (own, None),
    };
    Outcome::refused(Refusal::NOT_OWNER, text)
        .details(json!({ "hold": status.hold() }))
        .notes(own.into_iter().chain(why.map(str::to_owned)))
        .notes(block(&status, session.global.verbose))
        .notes([
            store_line(session, &status),
            next_step(session, &status, None),
        ])
        .lock(status)
}

/// `break` found a hold with another number than the one it was asked or confirmed to break.
pub(crate) fn another(session: &Session, status: Box<Status>) -> Outcome {
    let what = "not broken, the hold has another number";
    not_yours(session, what, None, status)
}
