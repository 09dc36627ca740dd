//! The wrapper of a `run` whose lock is kept by a lease: it passes signals on, takes over the exit code, and ends
//! the work if the keeper does not.

use std::time::{Duration, Instant};

use onehold::Lock;
use onehold::command_line::signal;
use onehold::keeper::{Keeper, fork, let_run_on};

use anyhow::Context;

use crate::arguments::args::OnLost;
use crate::configuration::Session;
use crate::messages::{Outcome, Printed, Refusal};
use crate::supervising::cancel::SAME_EVENT;
use crate::supervising::{SIGHUP, SIGINT, SIGTERM, supervise};
use crate::{output, words};

/// How long after its deadline the work is ended by the wrapper. The keeper does so at the deadline.
const LATE: Duration = Duration::from_millis(100);

/// How often to look at the keeper, whose deadlines move on.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Returns in the keeper, with `None`, and once it has ended, with what to return.
#[cold]
#[inline(never)]
pub(crate) fn wrap(
    session: &Session,
    lock: &Lock,
    on_lost: OnLost,
) -> anyhow::Result<Option<Printed>> {
    let Some(keeper) = fork().context("cannot start a keeper")? else {
        if on_lost == OnLost::Warn {
            let_run_on();
        }
        return Ok(None);
    };
    watch(session, lock, &keeper).map(Some)
}

fn watch(session: &Session, lock: &Lock, keeper: &Keeper) -> anyhow::Result<Printed> {
    let queue = supervise::queue()?;
    let mut is_late = false;
    let mut canceled_by = None;
    while !keeper.has_ended() {
        let left = keeper.time_left();
        if left.is_some_and(|left| left.is_zero()) {
            // Once more, a little later: the keeper does the same at this moment.
            let _ = queue.next(Some(LATE));
            if !keeper.has_ended() && keeper.time_left().is_some_and(|left| left.is_zero()) {
                is_late = true;
                keeper.kill();
                break;
            }
            continue;
        }
        let pause = left.map_or(LOOK_INTERVAL, |left| (left + LATE).min(LOOK_INTERVAL));
        let Ok(Some(received)) = queue.next(Some(pause)) else {
            continue;
        };
        if received.is_of_a_child() || queue.is_ignored(received.signal) {
            continue;
        }
        if received.is_stop() {
            // The command gets it from the terminal. The keeper goes on.
            let _ = signal::stop(None);
            continue;
        }
        // A signal a second later or more ends the keeper at once, even a stopped one. What it requested expires with
        // its lease.
        if !keeper.has_kept() && [SIGINT, SIGTERM, SIGHUP].contains(&received.signal) {
            let (_, since) = *canceled_by.get_or_insert((received.signal, Instant::now()));
            if since.elapsed() >= SAME_EVENT {
                canceled_by = Some((received.signal, since));
                keeper.kill();
                break;
            }
        }
        keeper.pass_on(received);
    }
    let status = keeper.wait().context("cannot wait for the keeper")?;
    let Some(signal) = signal::terminating_signal(status) else {
        return Ok(Printed::Yes(supervise::exit_of(Some(status))));
    };
    let is_canceled = !keeper.has_kept() || signal == SIGINT;
    if is_canceled && !is_late {
        // What has a handler says so itself.
        if canceled_by.is_none() && ![SIGINT, SIGTERM, SIGHUP].contains(&signal) {
            let text = format!(
                "the keeper was killed by signal {signal}, by another process or the kernel; \
                 the command was not started"
            );
            let outcome = Outcome::refused(Refusal::FAILED, text);
            let _ = output::print_outcome(session, &outcome);
        }
        let canceled_by = canceled_by.filter(|_| !keeper.has_kept());
        signal::exit_by_signal(canceled_by.map_or(signal, |(signal, _)| signal));
        return Ok(Printed::Yes(supervise::exit_of(Some(status))));
    }
    // It was killed, and its command with it.
    let is_over = keeper.end_rest();
    let name = words::names(lock);
    let why = if is_late {
        "did not answer"
    } else {
        "was killed"
    };
    let text = format!("lost lock {name} while the command was running: its keeper {why}");
    output::say(session, &text);
    // With a process that could not be killed the lock is left to its lease.
    let request = keeper.request().filter(|_| is_over);
    let given_back = request.map(|request| lock.release_for_keeper(&request, session.history));
    let mut outcome = Outcome::refused(Refusal::LOST, text);
    if !session.global.json {
        outcome.failure = None;
    }
    if !is_over {
        let left =
            "a process of the command cannot be ended; the lock is free once its lease has ended";
        outcome.warnings.push(left.to_owned());
    }
    if let Some(Err(error)) = given_back {
        outcome.warnings.push(words::error_chain(&error));
    }
    Ok(outcome.into())
}
