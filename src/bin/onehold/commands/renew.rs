//! `renew`: extend a lease.

use onehold::{Reason, Renewal};
use serde_json::json;

use crate::args;
use crate::commands::Carried;
use crate::commands::release::{not_yours, verbosely};
use crate::describe;
use crate::exit::Exit;
use crate::output::store_line;
use crate::report::Outcome;
use crate::session::Session;

pub(crate) fn renew(session: &Session, typed: args::Renew) -> Carried {
    let lock = session.named_lock(typed.name)?;
    let outcome = match lock.renew(&session.claimant, typed.ttl)? {
        Renewal::Done(status) => {
            let text = format!("renewed: {}", describe::sentence(&status));
            Outcome::new(Exit::Done, "renewed", text).lock(status)
        }
        Renewal::Nothing(status) => {
            let name = describe::quoted(&status.name);
            let text = match status.verdict.reason {
                Reason::NoFile => format!("{name} is free: nothing to renew"),
                _ => format!("nothing to renew: {}", describe::sentence(&status)),
            };
            Outcome::new(Exit::Nothing, "failure", text)
                .failure("NOT_HELD", json!({ "hold": status.hold() }))
                .talk(store_line(&status))
                .lock(status)
        }
        Renewal::NotYours(status) => not_yours(session, "not yours", status),
        Renewal::EndsWithCommand(status) => not_yours(session, "its wrapper renews it", status),
    };
    Ok(verbosely(session, outcome).into())
}
