//! `wait`: wait until locks are free, without taking them.

use std::time::Duration;

use anyhow::bail;
use onehold::{Attempt, Lock};

use crate::arguments::args::{self, HoldArgs, UsageError, WaitLimit};
use crate::configuration::Session;
use crate::messages::{CommandResult, Exit, Outcome};
use crate::supervising::cancel;
use crate::taking::Taking;
use crate::words;

#[inline(never)]
pub(crate) fn wait(session: &Session, typed: args::WaitUntilFree) -> CommandResult {
    let names = session.chosen(&typed.names);
    if names.is_empty() {
        bail!(UsageError("missing NAME".to_owned()));
    }
    let locks = names.iter().map(|name| session.lock(name.clone()));
    let locks: Vec<Lock> = locks.collect::<onehold::Result<_>>()?;
    let limit = typed.wait.unwrap_or(WaitLimit::Forever);
    let asked = HoldArgs {
        wait: Some(limit),
        owner: typed.owner,
        max_age: typed.max_age,
        conflict_exit_code: typed.conflict_exit_code,
        ..HoldArgs::default()
    };
    // During the wait for one of them, others may have been taken.
    let mut waits_again = true;
    let mut before = Duration::ZERO;
    while waits_again {
        waits_again = false;
        for lock in &locks {
            cancel::uncommit();
            let left = HoldArgs {
                wait: Some(left_of(limit, before)),
                ..asked.clone()
            };
            let taking = Taking::new(session, &left, lock)?;
            let attempt = taking.take(taking.options(), |options, wait| {
                lock.wait_until_free(options, wait)
            })?;
            match attempt {
                Attempt::Held(Some(waited)) => {
                    waits_again |= locks.len() > 1;
                    before += waited;
                }
                Attempt::Held(None) | Attempt::Mine(_) => {}
                Attempt::Blocked(mut blocked) => {
                    blocked.waited = blocked.waited.map(|waited| before + waited);
                    return Ok(Taking::new(session, &asked, lock)?.refused(blocked).into());
                }
            }
        }
    }
    let names: Vec<String> = locks.iter().map(words::names).collect();
    let are = if names.len() == 1 { "is" } else { "are" };
    let text = format!("{} {are} free", words::listed(&names));
    let mut outcome = Outcome::new(Exit::DONE, "clean", text).told_if(session.tells_success());
    if session.global.json {
        let found = locks.iter().map(|lock| lock.check(None));
        outcome.locks = found.collect::<onehold::Result<_>>()?;
        if let [_] = outcome.locks.as_slice() {
            outcome.lock = outcome.locks.pop().map(Box::new);
        }
    }
    Ok(outcome.into())
}

/// A wait that has begun does not become one that is not wanted.
fn left_of(limit: WaitLimit, waited: Duration) -> WaitLimit {
    match limit {
        WaitLimit::AtMost(limit) if !limit.is_zero() => {
            let left = limit.saturating_sub(waited);
            WaitLimit::AtMost(left.max(Duration::from_millis(1)))
        }
        limit => limit,
    }
}
