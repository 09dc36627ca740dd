//! `list`: all locks in the store with their states.

use onehold::Status;

use crate::arguments::args;
use crate::configuration::Session;
use crate::messages::{CommandResult, Exit, Outcome, describe_holder, local};
use crate::output::{failed, whole_block};
use crate::tables::prometheus::metrics;
use crate::tables::rows::{rows_of, select};
use crate::tables::table::{table, terminal_width};
use crate::tables::watch::watch;
use crate::tables::work::{self, Process};
use crate::words;

#[inline(never)]
pub(crate) fn list(session: &Session, typed: &args::List) -> CommandResult {
    if let Some(every) = typed.watch {
        return watch(session, typed, every);
    }
    let (listing, message) = match select(session, typed) {
        // An unreadable store is a metric as well.
        Err(error) if typed.prometheus => {
            let outcome = failed(session, &error).data(metrics(session, None).trim_end());
            return Ok(outcome.into());
        }
        selected => selected?,
    };
    let mut outcome = Outcome::new(Exit::DONE, "listed", message);
    outcome.warnings = listing.errors.iter().map(words::error_chain).collect();
    outcome = outcome
        .warnings(&listing.warnings)
        .incomplete(&listing.errors, "read");
    // A failure prints its message anyway.
    let is_empty = listing.locks.is_empty() && !typed.prometheus;
    outcome = outcome.told_if(session.global.verbose || is_empty);
    if typed.prometheus {
        outcome = outcome.data(metrics(session, Some(&listing)).trim_end());
    } else if !session.global.json && !listing.locks.is_empty() {
        outcome = outcome.data(if session.global.verbose {
            verbose(session, &listing.locks)
        } else {
            let width = terminal_width().filter(|_| !typed.wide);
            let rows = rows_of(listing.locks.iter().map(|lock| (lock, None)));
            table(&rows, width, "")
        });
    }
    outcome.locks = listing.locks;
    Ok(outcome.into())
}

fn verbose(session: &Session, locks: &[Status]) -> String {
    // A process may have changed its command line since it wrote its record.
    let running = work::running(locks.iter().filter_map(|lock| lock.verdict.pid));
    let mut lines = Vec::new();
    for lock in locks {
        lines.push(describe_holder(lock, local));
        lines.extend(whole_block(lock, session.global.verbose));
        lines.extend(runs_now(lock, &running));
    }
    lines.join("\n")
}

/// The current command line of a live holder.
fn runs_now(lock: &Status, running: &[Process]) -> Option<String> {
    let is_alive = lock.verdict.pid_alive == Some(true);
    let pid = lock.verdict.pid.filter(|_| is_alive)?.get();
    let process = running.iter().find(|process| process.pid == pid)?;
    let command = process.command.iter().map(|word| words::escape(word));
    let command = command.collect::<Vec<_>>().join(" ");
    Some(format!("  runs now: {command}"))
}
