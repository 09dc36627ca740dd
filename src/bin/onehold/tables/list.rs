//! `list`: all locks in the store with their states. Which locks, in which order, and what is said of each.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::path::Path;

use onehold::status::Reason;
use onehold::{HoldInfo, Listing, State, Status};

use crate::arguments::args::{self, ListOrder};
use crate::configuration::Session;
use crate::messages::{CommandResult, Exit, Outcome, describe, describe_holder, local};
use crate::output::{failed, paint, whole_block};
use crate::tables::prometheus::metrics;
use crate::tables::table::{Mark, natural_order, table, terminal_width};
use crate::tables::work::{self, Process};
use crate::words;

#[inline(never)]
pub(crate) fn list(session: &Session, typed: &args::List) -> CommandResult {
    let (listing, message) = match select(session, typed) {
        // An unreadable store is a metric as well.
        Err(error) if typed.prometheus => {
            let outcome = failed(session, &error).data(metrics(session, None).trim_end());
            return Ok(outcome.into());
        }
        selected => selected?,
    };
    let mut outcome = Outcome::new(Exit::DONE, "listed", message)
        .incomplete(listing.errors.iter().map(words::error_chain), "read")
        .warnings(&listing.warnings);
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

/// The locks that were asked for, and how many they are in words: "3 of 33 locks in /srv/locks".
pub(super) fn select(session: &Session, typed: &args::List) -> anyhow::Result<(Listing, String)> {
    let mut listing = read(session, typed)?;
    let all = count(&listing.locks);
    let is_wanted = |lock: &Status| {
        let states = &typed.state;
        let begins = |prefix: &String| lock.name.starts_with(prefix);
        (states.is_empty() || states.contains(&describe::list_state(lock)))
            && (typed.prefix.is_empty() || typed.prefix.iter().any(begins))
    };
    listing.locks.retain(is_wanted);
    sort(&mut listing.locks, typed.sort);
    let is_filtered = !typed.state.is_empty() || !typed.prefix.is_empty();
    let found = match listing.locks.len() {
        _ if !is_filtered || all == 0 => String::new(),
        0 => "no match among ".to_owned(),
        _ => format!("{} of ", count(&listing.locks)),
    };
    let (all, store) = (words::counted(all, "lock"), session.store_text());
    Ok((listing, format!("{found}{all} in {store}")))
}

fn read(session: &Session, typed: &args::List) -> anyhow::Result<Listing> {
    let Some(name) = &session.only else {
        return Ok(session.store.list(typed.max_age)?);
    };
    let status = session.lock(name.clone())?.check(typed.max_age)?;
    let status = session.at_fixed_path(status);
    let mut listing = Listing::default();
    if status.verdict.reason != Reason::NoFile {
        listing.locks.push(status);
    }
    Ok(listing)
}

/// Other files are shown, and are not counted.
fn count(locks: &[Status]) -> usize {
    let is_lock = |lock: &&Status| lock.verdict.state != State::NotALock;
    locks.iter().filter(is_lock).count()
}

/// Their rows, with their marks before their names.
pub(super) fn rows_of<'a>(
    locks: impl Iterator<Item = (&'a Status, Option<Mark>)> + Clone,
) -> Vec<[String; 6]> {
    let users: BTreeSet<u32> = locks.clone().filter_map(|(lock, _)| lock.uid).collect();
    let own_host = hostname::get().ok();
    let own_host = own_host.map(|name| name.to_string_lossy().into_owned());
    let row = |(status, mark): (&Status, Option<Mark>)| {
        let mut cells = cells(status, own_host.as_deref(), users.len() > 1);
        cells[0].insert_str(0, &mark.map_or_else(String::new, Mark::text));
        cells
    };
    locks.map(row).collect()
}

fn sort(locks: &mut [Status], order: ListOrder) {
    locks.sort_by(|one, other| natural_order(&one.name, &other.name));
    match order {
        ListOrder::Name => {}
        ListOrder::Age => locks.sort_by_key(|lock| Reverse(describe::age(lock))),
        ListOrder::State => locks.sort_by_key(describe::list_state),
    }
}

pub(super) fn cells(lock: &Status, own_host: Option<&str>, with_user: bool) -> [String; 6] {
    let record = lock.info();
    let user = with_user.then(|| describe::user(lock)).flatten();
    [
        words::escape(&lock.name),
        paint(lock, &describe::state_in_table(lock)),
        describe::holder_in_table(lock, own_host),
        user.map(|user| words::escape(&user)).unwrap_or_default(),
        describe::age(lock).map(words::span).unwrap_or_default(),
        record
            .and_then(|record| {
                let message = record.message().map(str::to_owned);
                message.or_else(|| command_of_name(record))
            })
            .map(|text| words::escape(&text))
            .unwrap_or_default(),
    ]
}

/// The command of a hold whose name was derived from it, which says more than the name.
fn command_of_name(record: HoldInfo<'_>) -> Option<String> {
    const DIGEST: usize = 16;
    let (base, digest) = record.name().rsplit_once('-')?;
    let is_digest = digest.len() == DIGEST && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
    let program = Path::new(record.command().first()?).file_name()?;
    let is_derived = is_digest && program.to_string_lossy().starts_with(base);
    is_derived.then(|| record.command().join(" "))
}
