//! `list --watch --json`: what has happened to the locks, one JSON object on each line.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use onehold::journal::{Action, Fate};
use onehold::status::{Pid, Reason, Waiter};
use onehold::{LockName, Status};
use serde_json::{Value, json};

use crate::arguments::args::ListState;
use crate::configuration::Session;
use crate::messages::{CommandResult, Exit, Printed, list_state};
use crate::output;
use crate::output::{escape_json, lock_value};

/// How long after the end of a hold a break notes it.
const NOTED_WITHIN: Duration = Duration::from_millis(200);

/// A hold by its lock, slot and number, and behind all of them a waiter by its lock, process, and since when.
type Key = (
    bool,
    String,
    Option<u32>,
    Option<u64>,
    Option<(Pid, DateTime<Utc>)>,
);

enum What {
    Hold(Box<Status>),
    Waiter(Waiter),
}

/// What is there at one moment, each with the event of its beginning.
type Seen = BTreeMap<Key, (&'static str, What)>;

fn seen(locks: Vec<Status>) -> Seen {
    let mut seen = Seen::default();
    for mut lock in locks {
        for waiter in std::mem::take(&mut lock.waiters) {
            let process = Some((waiter.pid, waiter.since));
            let key = (true, lock.name.clone(), None, None, process);
            seen.insert(key, ("waiting", What::Waiter(waiter)));
        }
        let state = match list_state(&lock) {
            ListState::Free | ListState::Reserved | ListState::NotALock => continue,
            ListState::Zombie | ListState::Damaged => "zombie",
            ListState::Overdue => "overdue",
            ListState::Held | ListState::Shared | ListState::Unverified | ListState::Kept => "held",
        };
        let key = (false, lock.name.clone(), lock.slot, lock.hold(), None);
        seen.insert(key, (state, What::Hold(Box::new(lock))));
    }
    seen
}

/// Prints the present state, and then what differs from what was printed. So a reader that was slow gets what is there
/// when it reads on.
pub(crate) fn print_events(
    session: &Session,
    listings: impl Iterator<Item = anyhow::Result<Vec<Status>>>,
) -> CommandResult {
    let mut before = Seen::default();
    for listed in listings {
        let now = seen(listed?);
        for line in changes(session, &before, &now) {
            match output::data(&escape_json(&line.to_string())) {
                Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
                    return Ok(Printed::Yes(Exit::DONE));
                }
                printed => printed?,
            }
        }
        before = now;
    }
    Ok(Printed::Yes(Exit::DONE))
}

/// The ends before the beginnings.
fn changes(session: &Session, before: &Seen, now: &Seen) -> Vec<Value> {
    let holders = now
        .keys()
        .map(|(waits, name, slot, ..)| (*waits, name, *slot));
    let holders: BTreeSet<_> = holders.collect();
    let gone = before.iter().filter(|(key, _)| !now.contains_key(key));
    let ended = gone.map(|(key, (state, what))| {
        let is_replaced = holders.contains(&(false, &key.1, key.2));
        let event = match what {
            What::Hold(was) => end_of(session, state, was, is_replaced),
            What::Waiter(_) => "left",
        };
        line(session, event, key, what)
    });
    let begun = now.iter().filter(|(key, (event, _))| {
        let was = before.get(key);
        was.is_none_or(|(was, _)| was != event)
    });
    let begun = begun.map(|(key, (event, what))| line(session, event, key, what));
    ended.chain(begun).collect()
}

/// How a hold has ended, whose record is gone. The journal tells what others did to it.
fn end_of(session: &Session, state: &str, was: &Status, is_replaced: bool) -> &'static str {
    let lock = LockName::new(&was.name).and_then(|name| session.lock(name));
    let held = lock.ok().zip(was.hold());
    let ask = || held.as_ref().map(|(lock, hold)| lock.fate(*hold));
    let mut fate = ask();
    if was.verdict.reason == Reason::Ending && !matches!(fate, Some(Fate::Ended(_))) {
        // Whoever breaks it notes that once its work has ended.
        std::thread::sleep(NOTED_WITHIN);
        fate = ask();
    }
    match fate {
        Some(Fate::Ended(event)) if event.event == Action::Break => "broken",
        Some(Fate::Ended(event)) if event.event == Action::Takeover => "taken-over",
        None | Some(Fate::Unknown) if state == "zombie" && is_replaced => "taken-over",
        _ => "released",
    }
}

fn line(session: &Session, event: &str, (_, name, slot, hold, _): &Key, what: &What) -> Value {
    let (lock, waiter) = match what {
        What::Hold(lock) => (Some(lock_value(lock, &session.caller)), None),
        What::Waiter(waiter) => (None, Some(waiter)),
    };
    json!({
        "event": event,
        "at": Utc::now().to_rfc3339_opts(SecondsFormat::Millis, true),
        "name": name,
        "slot": slot,
        "hold": hold,
        "lock": lock,
        "waiter": waiter,
    })
}
