//! `check`: show the holder of a lock and verify it.

use onehold::{Lock, Options, State};

use crate::args;

use crate::commands::list::{running, runs_now};
use crate::describe;
use crate::exit::Exit;
use crate::output::{block, paint};

use crate::outcome::{CommandResult, Outcome};
use crate::report::lock_value;
use crate::session::Session;
use crate::words::path_text;

#[inline(never)]
pub(crate) fn check(session: &Session, typed: args::Check) -> CommandResult {
    let lock = session.named_lock(typed.name)?;
    // Whatever would keep `acquire` from taking the lock: its holder, a parent's, a child's, a waiter.
    let mut options = Options::new();
    if let Some(owner) = &session.caller.owner {
        options = options.owner(owner);
    }
    if let Some(max_age) = typed.max_age {
        options = options.max_age(max_age);
    }
    let mut status = lock.check_for(&options)?;
    if session.is_fixed_path(&lock) {
        status = Lock::at_own_place(status);
    }
    let relation = describe::describe_relation(&status, lock.name());
    let (exit, word) = match status.verdict.state {
        State::Free => (Exit::Done, "clean"),
        State::Held => (Exit::Locked, "blocked"),
        State::Overdue | State::Zombie => (Exit::Zombie, "zombie-detected"),
        State::NotALock => (Exit::Failed, "failure"),
    };
    let exit = match (typed.available, exit) {
        (false, exit) | (true, exit @ Exit::Failed) => exit,
        (true, _) if status.is_available() => Exit::Done,
        (true, _) => Exit::Locked,
    };
    let holder = describe::describe_holder(&status);
    let mut outcome = Outcome::new(exit, word, holder.clone());
    if status.verdict.state == State::NotALock {
        outcome = outcome.failure("NOT_A_LOCK", serde_json::json!({}));
    } else if !session.global.quiet {
        // The message of the profile's program comes first: its callers look for it.
        let settings = &session.config.settings;
        let foreign = settings.has_refusal().then(|| {
            let object = lock_value(&status, &session.caller);
            settings.refusal_of(&status, &object, None)
        });
        let mut lines: Vec<String> = foreign.flatten().into_iter().collect();
        lines.push(match status.verdict.state {
            State::Free => paint(&status, &holder),
            _ => holder,
        });
        lines.extend(block(&status, session.global.verbose));
        lines.extend(relation.map(|line| format!("  {line}")));
        if session.global.verbose {
            lines.extend(runs_now(&status, &running(std::slice::from_ref(&status))));
            lines.push(format!("  store: {}", path_text(&status.store)));
        }
        outcome = outcome.data(lines.join("\n"));
    }
    Ok(outcome.lock(Box::new(status)).into())
}
