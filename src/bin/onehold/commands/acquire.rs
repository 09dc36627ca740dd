//! `acquire`: hold on behalf of a process, or for a time.

use std::time::Duration;

use chrono::{TimeDelta, Utc};
use onehold::stdio::stdout_was_closed;
use onehold::{Acquired, Attempt, Detached, Format, Holder, Status};

use crate::args;
use crate::claiming::{displaced, obtain, refused, wait_for_displaced};
use crate::commands::{Carried, Told};
use crate::describe;
use crate::exit::Exit;
use crate::output;
use crate::report::Outcome;
use crate::session::Session;

pub(crate) fn acquire(session: &Session, typed: args::Acquire) -> Carried {
    let holder = match (typed.pid, typed.claim.ttl) {
        (Some(pid), _) => Holder::process(pid)?,
        (None, Some(_)) if session.format == Format::Native => Holder::Lease,
        // Other formats name a process, whatever time they have besides.
        (None, _) => Holder::of_caller()?,
    };
    let lock = session.named_lock(typed.name)?;
    let attempt = obtain(session, &typed.claim, &lock, |claim, wait| {
        lock.acquire(claim, holder, wait)
    })?;
    match attempt {
        Attempt::Held(Acquired::New(detached)) => hand_over(session, &lock, *detached),
        Attempt::Held(Acquired::Again(status)) => Ok(again(status).into()),
        Attempt::Blocked(blocked) => Ok(refused(session, &typed.claim, &lock, blocked).into()),
    }
}

/// Nothing is held until the number is out: whoever asked could neither name nor release it.
fn hand_over(session: &Session, lock: &onehold::Lock, detached: Detached) -> Carried {
    let record = detached.record();
    let name = describe::quoted(lock.name().as_str());
    let follows = match detached.holder() {
        Holder::Process(process) => {
            let process = describe::process(process.pid.get(), &record.command);
            match record.ttl() {
                Some(ttl) => format!("{process}, at most for {}", time(ttl)),
                None => process,
            }
        }
        Holder::Lease => time(record.ttl().unwrap_or_default()),
    };
    let mut outcome = Outcome::new(
        Exit::Done,
        "acquired",
        format!("{name} is held for {follows}"),
    )
    .data(detached.number().to_string())
    .warnings(detached.warnings());
    outcome.talk.push(format!("onehold: {}", outcome.message));
    if session.everywhere.verbose {
        outcome
            .talk
            .push(format!("  file: {}", output::shown(detached.path())));
    }
    if let Some(was) = detached.displaced() {
        outcome.talk.extend(displaced(was));
        outcome
            .warnings
            .extend(wait_for_displaced(session, was, || false));
    }
    outcome.hold = Some(detached.number());
    outcome.displaced = detached.displaced().cloned().map(Box::new);
    if session.everywhere.json {
        outcome.lock = Some(Box::new(detached.status()?));
    }
    // What is written to a closed stdout goes to /dev/null, where nobody finds it.
    let told = if stdout_was_closed() {
        Err(std::io::Error::other("it is closed"))
    } else {
        output::tell(session, &outcome)
    };
    if let Err(error) = told {
        // Dropping `detached` gives the lock back.
        drop(detached);
        output::talk(&format!(
            "onehold: cannot write the number of the hold to stdout: {}; {name} is not held",
            output::cause_in_words(&error)
        ));
        return Ok(Told::Already(Exit::Failed));
    }
    if let Err(error) = detached.confirm() {
        output::talk(&format!("onehold: {}", output::chain(&error)));
        return Ok(Told::Already(Exit::Failed));
    }
    Ok(Told::Already(Exit::Done))
}

/// "30m, until 12:30:00"
fn time(ttl: Duration) -> String {
    match TimeDelta::from_std(ttl)
        .ok()
        .and_then(|ttl| Utc::now().checked_add_signed(ttl))
    {
        Some(end) => format!(
            "{}, until {}",
            humantime::format_duration(ttl),
            describe::local(end)
        ),
        None => "ever".to_owned(),
    }
}

fn again(status: Box<Status>) -> Outcome {
    let number = status.hold().unwrap_or_default();
    let name = describe::quoted(&status.name);
    let mut outcome = Outcome::new(
        Exit::Done,
        "acquired",
        format!(
            "{name} was acquired by the same owner already, and stays as it is: {}",
            describe::sentence(&status)
        ),
    )
    .data(number.to_string())
    .lock(status);
    outcome.hold = Some(number);
    outcome.talk.push(format!("onehold: {}", outcome.message));
    outcome
}
