//! `check`: show the holder of a lock and verify it.

use onehold::status::Reason;
use onehold::{LockName, Mode, State, Status};
use serde_json::json;

use crate::arguments::args;
use crate::configuration::Session;
use crate::messages::{
    CommandResult, Exit, Outcome, Refusal, describe, describe_holder, describe_obstacle,
    describe_waits, local,
};
use crate::output::{
    about_file, hint_about_file, links, next_step, paint, profile_values, store_line, whole_block,
};
use crate::tables::work;
use crate::taking::basic_options;
use crate::words;

#[inline(never)]
pub(crate) fn check(session: &Session, typed: args::Check) -> CommandResult {
    let lock = session.named_lock(typed.name)?;
    let is_mine = typed.mine.then(|| lock.is_run_under(&session.caller));
    let is_mine = is_mine.transpose()?;
    // Whatever would keep `acquire` from taking the lock: its holder, a parent's, a child's, a waiter.
    let mode = args::mode(typed.shared, typed.slots);
    let options = basic_options(session, mode, typed.max_age);
    let mut status = lock.check_for(&options)?;
    if session.is_fixed_path(&lock) {
        status = session.at_fixed_path(status);
    }
    let (exit, word) = match status.verdict.state {
        State::Free => (Exit::DONE, "clean"),
        State::Held => (Exit::LOCKED, "blocked"),
        State::Overdue | State::Zombie => (Exit::ZOMBIE, "zombie-detected"),
        State::NotALock => (Exit::FAILED, "failure"),
    };
    let exit = match is_mine {
        _ if exit == Exit::FAILED => exit,
        Some(true) => Exit::DONE,
        Some(false) => Exit::NOT_YOURS,
        None if !typed.available => exit,
        None if status.is_takeable() || would_be_extended(session, &status, lock.name(), mode) => {
            Exit::DONE
        }
        None => Exit::LOCKED,
    };
    // A script asks that about itself, and its output is not for that.
    let is_quiet = session.global.quiet || (typed.mine && !session.global.verbose);
    let is_silent = is_quiet && !session.global.json;
    let is_told = !is_silent || status.verdict.state == State::NotALock;
    let holder = is_told.then(|| describe_obstacle(&status, lock.name(), local));
    let holder = holder.unwrap_or_default();
    let mut outcome = Outcome::new(exit, word, holder.clone());
    if status.verdict.state == State::NotALock {
        outcome = Outcome::refused(Refusal::NOT_A_LOCK, outcome.message);
        outcome.notes.extend(hint_about_file(session, &status.path));
    } else if !is_quiet {
        // The message of the profile's program comes first: its callers look for it.
        let settings = &session.config.settings;
        let foreign = settings.has_refusal().then(|| {
            let object = profile_values(&status, &session.caller);
            settings.refusal_of(&status, &object, None)
        });
        let mut lines: Vec<String> = foreign.flatten().into_iter().collect();
        lines.push(match status.verdict.state {
            State::Free => paint(&status, &holder),
            _ => holder,
        });
        lines.extend(whole_block(&status, session.global.verbose));
        for other in &status.others {
            let text = paint(other, &describe_holder(other, local));
            let below = session.global.verbose.then(|| whole_block(other, true));
            let all = std::iter::once(text).chain(below.into_iter().flatten());
            lines.extend(all.map(|line| format!("  {line}")));
        }
        if status.verdict.state == State::Zombie {
            lines.push(next_step(session, &status, None));
        }
        if status.verdict.state == State::Free {
            lines.extend(about_file(session, &lock));
        }
        if session.global.verbose {
            lines.push(store_line(session, &status));
            lines.extend(store_facts(&lock, &status, &mut outcome));
            lines.extend(inspected(session, &status, &mut outcome)?);
        }
        outcome = outcome.data(lines.join("\n"));
    }
    if let Some(is_mine) = is_mine {
        let mut fields = outcome.more.as_object().cloned().unwrap_or_default();
        fields.insert("runs_under".to_owned(), is_mine.into());
        outcome.more = fields.into();
    }
    Ok(outcome.lock(Box::new(status)).into())
}

/// Whether it is a lease of the caller's owner that `acquire` would return, and not refuse.
fn would_be_extended(session: &Session, status: &Status, name: &LockName, mode: Mode) -> bool {
    let record = status
        .info()
        .filter(|_| status.verdict.reason == Reason::Lease);
    record.is_some_and(|record| {
        let owner = record.owner();
        owner.is_some()
            && owner == session.caller.owner.as_deref()
            && status.names() == [name.as_str()]
            && record.mode() == mode
    })
}

/// What only the store of several machines tells.
#[cold]
#[inline(never)]
fn store_facts(lock: &onehold::Lock, status: &Status, outcome: &mut Outcome) -> Vec<String> {
    let Some(facts) = outcome.found(lock.store_facts(status)) else {
        return Vec::new();
    };
    let version = facts.version.as_deref().unwrap_or("of unknown version");
    let (member, version) = (words::escape(&facts.member), words::escape(version));
    let revision = facts.revision;
    let member = format!("  member: {member}, {version}, revision {revision}");
    let written = Some(facts.modified).filter(|revision| *revision != 0);
    let written = written.map(|revision| format!("  written at revision: {revision}"));
    let lease = facts.lease_left.map(words::span);
    let lease = lease.map(|left| format!("  its lease lasts {left} without another keepalive"));
    [Some(member), written, lease]
        .into_iter()
        .flatten()
        .collect()
}

/// What an operator asks: the processes of the hold, and what has happened to the lock before.
fn inspected(
    session: &Session,
    status: &Status,
    outcome: &mut Outcome,
) -> anyhow::Result<Vec<String>> {
    /// Of the journal.
    const EVENTS: usize = 3;
    // It may be a parent, or a child.
    let lock = session.lock(LockName::new(&status.name)?)?;
    let mut lines = Vec::new();
    let mut all_processes = Vec::new();
    for hold in status.all_holds() {
        let processes = work::processes(&lock, hold);
        let listed = work::listed(hold, &processes, false, usize::MAX);
        let mut indent = "  ";
        if !listed.is_empty() && !status.others.is_empty() {
            lines.push(format!("  hold {}:", hold.hold().unwrap_or_default()));
            indent = "    ";
        }
        lines.extend(listed.into_iter().map(|line| format!("{indent}{line}")));
        all_processes.extend(processes);
    }
    let waits_for = outcome.found(lock.waits_for());
    if !waits_for.is_empty() {
        lines.push(format!("  {}", describe_waits(&waits_for)));
    }
    let kept = outcome.found(lock.kept_places());
    let described = kept.iter().map(describe::kept_place);
    lines.extend(described.map(|line| format!("  {line}")));
    let events = outcome.found(lock.events(EVENTS));
    if !events.is_empty() {
        lines.push("  journal:".to_owned());
        let described = events
            .iter()
            .map(|event| describe::event(event, lock.is_remote()));
        lines.extend(described.map(|line| format!("    {line}")));
    }
    outcome.more = json!({
        "processes": all_processes,
        "journal": events,
        "kept_places": kept,
        "waits_for": links(&waits_for),
    });
    Ok(lines)
}
