//! `list`: all locks of the store.

use std::collections::HashMap;

use onehold::{Listing, Reason, Status};
use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System, UpdateKind};

use crate::args;
use crate::commands::Carried;
use crate::describe;
use crate::exit::Exit;
use crate::output::{block, chain, table};
use crate::report::Outcome;
use crate::session::Session;

pub(crate) fn list(session: &Session, typed: &args::List) -> Carried {
    let listing = match &session.only {
        Some(name) => {
            let status = session.lock(name.clone())?.check(typed.max_age)?;
            Listing {
                locks: Some(status)
                    .filter(|status| status.verdict.reason != Reason::NoFile)
                    .into_iter()
                    .collect(),
                errors: Vec::new(),
            }
        }
        None => session.store.list(typed.max_age)?,
    };
    let store = session.place();
    let count = listing.locks.len();
    let mut outcome = Outcome::new(
        Exit::Done,
        "listed",
        format!(
            "{count} lock{} in {store}",
            if count == 1 { "" } else { "s" }
        ),
    );
    outcome.warnings = listing.errors.iter().map(chain).collect();
    if !listing.errors.is_empty() {
        outcome = outcome.incomplete("read");
    }
    if session.everywhere.verbose || count == 0 {
        outcome.talk.push(format!("onehold: {}", outcome.message));
    }
    if !session.everywhere.json && count > 0 {
        outcome = outcome.data(if session.everywhere.verbose {
            verbose(session, &listing.locks)
        } else {
            brief(&listing.locks)
        });
    }
    outcome.locks = listing.locks;
    Ok(outcome.into())
}

fn brief(locks: &[Status]) -> String {
    let rows: Vec<_> = locks.iter().map(|lock| (lock, cells(lock))).collect();
    table(
        ["NAME", "STATE", "HOLDER", "AGE", "WAITING", "MESSAGE"],
        &rows,
    )
}

fn verbose(session: &Session, locks: &[Status]) -> String {
    let running = running(locks);
    let mut lines = Vec::new();
    for lock in locks {
        lines.push(describe::sentence(lock));
        lines.extend(block(lock, session.everywhere.verbose));
        lines.extend(runs_now(lock, &running));
    }
    lines.join("\n")
}

/// What the holder runs now, if it lives.
pub(crate) fn runs_now(lock: &Status, running: &HashMap<u32, String>) -> Option<String> {
    let pid = lock
        .verdict
        .pid
        .filter(|_| lock.verdict.pid_alive == Some(true))?;
    let runs = running.get(&pid.get())?;
    Some(format!("  runs now: {runs}"))
}

fn cells(lock: &Status) -> [String; 6] {
    let record = lock.record.as_ref();
    let holder = record.map(|record| {
        let holder = describe::holder(lock, record);
        match &record.hostname {
            Some(host) => format!("{holder} on {}", describe::escape(host)),
            None => holder,
        }
    });
    [
        describe::escape(&lock.name),
        describe::state(lock).to_owned(),
        holder.unwrap_or_default(),
        describe::age(lock).map(describe::span).unwrap_or_default(),
        match lock.waiters.len() {
            0 => String::new(),
            count => count.to_string(),
        },
        record
            .and_then(|record| record.message.as_deref())
            .map(short)
            .unwrap_or_default(),
    ]
}

/// A message may be a kilobyte; a line of a table is not.
fn short(message: &str) -> String {
    const WIDTH: usize = 50;
    let text = describe::escape(message);
    if text.chars().count() <= WIDTH {
        return text;
    }
    text.chars().take(WIDTH - 1).chain(['…']).collect()
}

/// What the living holders are running now, which need not be what they ran when they wrote their
/// records.
pub(crate) fn running(locks: &[Status]) -> HashMap<u32, String> {
    let pids: Vec<_> = locks
        .iter()
        .filter_map(|lock| lock.verdict.pid)
        .map(|pid| sysinfo::Pid::from_u32(pid.get()))
        .collect();
    let mut system = System::new();
    system.refresh_processes_specifics(
        ProcessesToUpdate::Some(&pids),
        false,
        ProcessRefreshKind::nothing().with_cmd(UpdateKind::Always),
    );
    system
        .processes()
        .iter()
        .map(|(pid, process)| {
            let command: Vec<_> = process
                .cmd()
                .iter()
                .map(|argument| describe::escape(&argument.to_string_lossy()))
                .collect();
            let text = if command.is_empty() {
                describe::escape(&process.name().to_string_lossy())
            } else {
                command.join(" ")
            };
            (pid.as_u32(), text)
        })
        .collect()
}
