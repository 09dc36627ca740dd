//! `renew`: extend a lease, or restart the age of a hold made by `acquire`.

use onehold::status::{Kind, Reason};
use onehold::{Renewal, Status};
use serde_json::json;

use crate::arguments::args;
use crate::commands::not_yours::not_yours;
use crate::configuration::Session;
use crate::messages::{CommandResult, Exit, Outcome, Refusal, describe, describe_holder, local};
use crate::output::{about_file, block, command_line, store_line};
use crate::words;

#[inline(never)]
pub(crate) fn renew(session: &Session, typed: args::Renew) -> CommandResult {
    let lock = session.named_lock(typed.name)?;
    let outcome = match lock.renew(&session.caller, typed.ttl)? {
        Renewal::Done(status) => {
            let end = status.verdict.expires_at;
            let until = end.map(|end| format!(", until {}", local(end)));
            let holder = describe_holder(&status, local);
            let text = format!("renewed{}: {holder}", until.unwrap_or_default());
            Outcome::new(Exit::DONE, "renewed", text).lock(status)
        }
        Renewal::Nothing(status) => {
            let name = words::quoted(&status.name);
            let text = match status.verdict.reason {
                Reason::NoFile => format!("{name} is free: nothing to renew"),
                _ => format!("nothing to renew: {}", describe_holder(&status, local)),
            };
            Outcome::refused(Refusal::NOT_HELD, text)
                .details(json!({ "hold": status.hold() }))
                .notes(block(&status, session.global.verbose))
                .note(store_line(session, &status))
                .notes(about_file(session, &lock))
                .lock(status)
        }
        Renewal::Lost(status) => {
            let text = format!("not renewed: {} is lost", describe::hold_and_locks(&status));
            let release = format!("release --hold {}", status.hold().unwrap_or_default());
            let release = command_line(session, &release, &status);
            Outcome::refused(Refusal::NOT_HELD, text)
                .details(json!({ "hold": status.hold() }))
                .note("  the record of one of its locks was removed or replaced")
                .note(store_line(session, &status))
                .note(format!("  to release what is left of it, run `{release}`"))
                .lock(status)
        }
        Renewal::NotYours(status) => not_yours(session, "not renewed", None, status),
        Renewal::HeldByRun(status) => {
            let why = format!("  {}", keeper(&status));
            not_yours(session, "not renewed", Some(&why), status)
        }
    };
    Ok(outcome.told_if(session.global.verbose).into())
}

/// Who renews a hold that others cannot.
fn keeper(status: &Status) -> &'static str {
    match status.info() {
        Some(info) if info.is_served() || info.is_without_command() => {
            "`hold` keeps its own hold alive: nothing to renew"
        }
        Some(info) if info.kind() == Kind::Run => "a running `onehold run` renews its own hold",
        _ => "its process keeps it alive: nothing to renew",
    }
}
