//! `renew`: extend a lease.

use onehold::{Reason, Renewal};
use serde_json::json;

use crate::args;
use crate::commands::Carried;
use crate::commands::release::verbosely;
use crate::describe;
use crate::exit::Exit;
use crate::output::block;
use crate::report::Outcome;
use crate::session::Session;

pub(crate) fn renew(session: &Session, typed: args::Renew) -> Carried {
    let lock = session.lock(typed.name)?;
    let (exit, code, text, status) = match lock.renew(&session.claimant, typed.ttl)? {
        Renewal::Done(status) => {
            let text = format!("renewed: {}", describe::sentence(&status));
            let outcome = Outcome::new(Exit::Done, "renewed", text).lock(status);
            return Ok(verbosely(session, outcome).into());
        }
        Renewal::Nothing(status) => {
            let text = match status.verdict.reason {
                Reason::NoFile => {
                    format!(
                        "{} is free: nothing to renew",
                        describe::quoted(&status.name)
                    )
                }
                _ => format!("nothing to renew: {}", describe::sentence(&status)),
            };
            (Exit::Nothing, "NOT_HELD", text, status)
        }
        Renewal::NotYours(status) => {
            let text = format!("not yours: {}", describe::sentence(&status));
            (Exit::NotYours, "NOT_OWNER", text, status)
        }
        Renewal::EndsWithCommand(status) => {
            let text = format!("its wrapper renews it: {}", describe::sentence(&status));
            (Exit::NotYours, "NOT_OWNER", text, status)
        }
    };
    let mut outcome =
        Outcome::new(exit, "failure", text).failure(code, json!({ "hold": status.hold() }));
    outcome.talk = block(&status, session.everywhere.verbose);
    Ok(outcome.lock(status).into())
}
