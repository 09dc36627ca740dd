//! `check`: who holds it, and is that true?

use onehold::{Claim, State};

use crate::args;
use crate::commands::Carried;
use crate::commands::list::{running, runs_now};
use crate::describe;
use crate::exit::Exit;
use crate::output::{block, paint, shown};
use crate::report::Outcome;
use crate::session::Session;

pub(crate) fn check(session: &Session, typed: args::Check) -> Carried {
    let lock = session.named_lock(typed.name)?;
    let mut status = lock.check(typed.max_age)?;
    let mut covers = None;
    if status.verdict.state == State::Free {
        // Free is what acquire would take.
        let mut claim = Claim::new();
        if let Some(owner) = &session.claimant.owner {
            claim = claim.owner(owner);
        }
        if let Some(max_age) = typed.max_age {
            claim = claim.max_age(max_age);
        }
        if let Some(relative) = lock.check_relatives(&claim)? {
            covers = describe::covers(&relative, lock.name());
            status = relative;
        }
    }
    let (exit, word) = match status.verdict.state {
        State::Free => (Exit::Done, "clean"),
        State::Held => (Exit::Locked, "blocked"),
        State::Overdue | State::Zombie => (Exit::Zombie, "zombie-detected"),
        State::NotALock => (Exit::Failed, "failure"),
    };
    let sentence = describe::sentence(&status);
    let mut outcome = Outcome::new(exit, word, sentence.clone());
    if status.verdict.state == State::NotALock {
        outcome = outcome.failure("NOT_A_LOCK", serde_json::json!({}));
    } else if !session.everywhere.quiet {
        let mut lines = vec![match status.verdict.state {
            State::Free => paint(&status, &sentence),
            _ => sentence,
        }];
        lines.extend(block(&status, session.everywhere.verbose));
        lines.extend(covers.map(|line| format!("  {line}")));
        if session.everywhere.verbose {
            lines.extend(runs_now(&status, &running(std::slice::from_ref(&status))));
            lines.push(format!("  store: {}", shown(&status.store)));
        }
        outcome = outcome.data(lines.join("\n"));
    }
    Ok(outcome.lock(Box::new(status)).into())
}
