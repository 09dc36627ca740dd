//! `acquire`: hold a lock for a process or a limited time.

use std::time::Duration;

use chrono::{TimeDelta, Utc};
use onehold::status::Kind;
use onehold::{Attempt, Format, HoldInfo, Holder, Mode, PendingHold, Status};
use serde_json::json;

use crate::arguments::args;
use crate::configuration::Session;
use crate::messages::{
    CommandResult, Exit, Outcome, Printed, describe, describe_holder, displaced, is_held, local,
};
use crate::supervising::cancel;
use crate::taking::{Taking, displaced_text, give_back_untold, wait_for_displaced};
use crate::{output, words};

#[inline(never)]
pub(crate) fn acquire(session: &Session, typed: args::Acquire) -> CommandResult {
    let lock = session.named_locks(typed.names)?;
    let taking = Taking::new(session, &typed.hold, &lock)?;
    let holder = match typed.pid {
        Some(pid) => Holder::process(pid)?,
        None if is_lease(taking) => Holder::Lease,
        None => Holder::of_caller()?,
    };
    let attempt = taking.take(taking.options(), |options, wait| {
        lock.acquire(options, holder, wait)
    })?;
    match attempt {
        Attempt::Held(pending) => Ok(hand_over(taking, pending)),
        Attempt::Mine(status) => Ok(already_held(session, status).into()),
        Attempt::Blocked(blocked) => {
            // It is kept by the process that another one is to be for.
            let process = blocked.status.info().and_then(HoldInfo::process);
            let is_its_own = typed.pid.is_some()
                && blocked.status.verdict.pid_alive == Some(true)
                && process.is_some_and(|process| Some(process) == holder.process_id());
            let hint = is_its_own.then(|| own_hold_hint(taking, &blocked.status));
            let mut outcome = taking.refused(blocked);
            if let (Some(hint), Some(last)) = (hint, outcome.notes.last_mut()) {
                // No wait ends it.
                *last = hint;
            }
            Ok(outcome.into())
        }
    }
}

/// Whether a hold that follows no process is asked for. Records in other formats need one, with or without a TTL.
pub(super) fn is_lease(taking: Taking<'_>) -> bool {
    taking.typed.ttl.is_some() && taking.lock.format() == Format::Native
}

/// The outcome of an attempt to take a lease, before it is reported.
#[cfg(unix)]
pub(super) fn leased(
    taking: Taking<'_>,
    attempt: Attempt<PendingHold>,
) -> onehold::Result<Outcome> {
    let session = taking.session;
    match attempt {
        Attempt::Held(pending) => {
            let outcome = acquired(taking, &pending);
            pending.confirm()?;
            Ok(outcome)
        }
        Attempt::Mine(status) => Ok(already_held(session, status)),
        Attempt::Blocked(blocked) => Ok(taking.refused(blocked)),
    }
}

/// What to do about a hold of the process that was named.
fn own_hold_hint(taking: Taking<'_>, status: &Status) -> String {
    let record = status.info();
    let is_acquired = record.is_some_and(|record| record.kind() == Kind::Process);
    let owner = record.and_then(HoldInfo::owner);
    let asked_for = taking.session.caller.owner.as_deref();
    let is_other = asked_for.is_some() && asked_for != owner;
    match owner {
        _ if !(taking.is_named(status) && is_held(status) && is_acquired && is_other) => format!(
            "  that process holds it itself: release that hold first, with its {}",
            output::proof(status)
        ),
        Some(owner) => format!(
            "  that process holds it for {}; for the same hold, give its --owner",
            words::escape(owner)
        ),
        None => "  that process holds it without an owner; for the same hold, give no --owner"
            .to_owned(),
    }
}

/// The outcome of a hold that is about to be handed over.
fn acquired(taking: Taking<'_>, pending: &PendingHold) -> Outcome {
    let Taking {
        session,
        typed,
        lock,
        ..
    } = taking;
    let record = pending.info();
    let name = words::names(lock);
    let holder = pending.holder();
    let process = holder.process_id();
    let process = process.map(|process| describe::process(process.pid.get(), record.command()));
    let follows = match (&process, record.ttl().map(time)) {
        (Some(process), Some(time)) => format!("{process}, at most {time}"),
        (Some(process), None) => process.clone(),
        (None, time) => time.unwrap_or_default(),
    };
    let slots = slots(lock, pending);
    let text = format!("acquired {name}{slots} for {follows}");
    let mut outcome = Outcome::new(Exit::DONE, "acquired", text)
        .data(pending.number().to_string())
        .warnings(pending.warnings());
    let ends_with_call = matches!(
        holder,
        Holder::Caller {
            ends_with_call: true,
            ..
        }
    );
    if let Some(process) = process.filter(|_| ends_with_call) {
        outcome.warnings.push(format!(
            "{process} ends with this command, and the hold of {name} with it: use --pid PID, --ttl D for a lease, or `onehold run`"
        ));
    }
    // A TTL of the profile is that of its program.
    let asks_for_lease = typed.ttl.is_some() && !typed.ttl_is_default;
    if asks_for_lease && matches!(holder, Holder::Caller { .. }) {
        outcome.warnings.push(format!(
            "the {} format has no leases: the hold also ends with its process",
            lock.format()
        ));
    }
    if session.global.verbose {
        let path = words::path_text(pending.path());
        let place = output::place(lock.is_remote());
        outcome.notes.push(format!("  {place}: {path}"));
    }
    for was in pending.displaced() {
        outcome.notes.extend(displaced_text(session, was));
    }
    let warnings = wait_for_displaced(session, pending.displaced(), None);
    outcome.warnings.extend(warnings);
    outcome.hold = Some(pending.number());
    outcome.displaced = displaced(pending.displaced());
    if session.global.json {
        outcome.lock = Some(Box::new(pending.status()));
    }
    outcome
}

/// Prints the hold number and confirms the hold. If the number cannot be printed, nothing is held:
/// without it the caller could not release the hold.
fn hand_over(taking: Taking<'_>, pending: PendingHold) -> Printed {
    let session = taking.session;
    let mut outcome = acquired(taking, &pending);
    if let Some(signal) = cancel::signal_so_far() {
        cancel::give_back(pending);
        return Printed::by_signal(signal);
    }
    let printed = output::ensure_open_stdout();
    if let Err(error) = printed.and_then(|()| output::print_data(session, &outcome)) {
        return give_back_untold(pending, taking.lock, &error);
    }
    let exit = match pending.confirm() {
        Ok(_) => {
            if session.tells_success() {
                let acquired = format!("onehold: {}", outcome.message);
                outcome.notes.insert(0, acquired);
            }
            Exit::DONE
        }
        Err(error) => {
            output::eprint(&format!("onehold: {}", words::error_chain(&error)));
            Exit::FAILED
        }
    };
    output::print_notes(session, &outcome);
    Printed::Yes(exit)
}

/// ", slot 2,": with --slots.
fn slots(lock: &onehold::Lock, pending: &PendingHold) -> String {
    let slots = pending.slots();
    if slots.is_empty() || !matches!(pending.info().mode(), Mode::Slots(_)) {
        return String::new();
    }
    let numbers: Vec<String> = slots.iter().map(u32::to_string).collect();
    let plural = if lock.names().count() == 1 { "" } else { "s" };
    format!(", slot{plural} {},", words::listed(&numbers))
}

/// "30m, until 12:30:00"
fn time(ttl: Duration) -> String {
    let span = TimeDelta::from_std(ttl).ok();
    let Some(end) = span.and_then(|span| Utc::now().checked_add_signed(span)) else {
        return "ever".to_owned();
    };
    let mut shown = words::short_span(ttl);
    // It has the two largest units.
    if humantime::parse_duration(&shown) != Ok(ttl) {
        shown = humantime::format_duration(ttl).to_string();
    }
    format!("{shown}, until {}", local(end))
}

fn already_held(session: &Session, status: Box<Status>) -> Outcome {
    let number = status.hold().unwrap_or_default();
    let holder = describe_holder(&status, local);
    let text = format!("already acquired by this holder: {holder}");
    let mut outcome = Outcome::new(Exit::DONE, "acquired", text)
        .data(number.to_string())
        .lock(status);
    outcome.hold = Some(number);
    outcome.more = json!({ "repeated": true });
    outcome.told_if(session.tells_success())
}
