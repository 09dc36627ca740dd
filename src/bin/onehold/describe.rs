//! Describes a lock and its holder on a terminal: the sentences of the library, in local time.

use std::fmt::Write as _;

use chrono::{DateTime, Local, Utc};
use onehold::describe as sentences;
pub(crate) use onehold::describe::{
    age, holder, holder_on_host, lockers_in_brief, process, process_on_host, relation,
    reserved_for, zombie_reason,
};
use onehold::{Action, Event, Kind, LockName, Mode, Reason, State, Status, Waiter};

use crate::args::ListState;
use crate::words;

pub(crate) fn describe_holder(status: &Status) -> String {
    sentences::describe_holder(status, local)
}

pub(crate) fn describe_obstacle(status: &Status, wanted: &LockName) -> String {
    sentences::describe_obstacle(status, wanted, local)
}

pub(crate) fn describe_zombie(status: &Status) -> String {
    sentences::describe_zombie(status, local)
}

pub(crate) fn describe_past_holder(status: &Status) -> String {
    sentences::describe_past_holder(status, local)
}

pub(crate) fn evidence(status: &Status) -> Option<String> {
    sentences::evidence(status, local)
}

/// "process 4260", of a `run` that supervises its command.
pub(crate) fn wrapper(status: &Status) -> Option<String> {
    let record = status.record.as_ref()?;
    let is_run = record.kind == Kind::Run && !record.exec;
    let pid = record.taken_by.filter(|_| is_run && !status.is_remote())?;
    Some(match status.verdict.wrapper_alive {
        Some(true) => format!("process {pid}"),
        Some(false) => format!("process {pid}, which has exited"),
        None => format!("process {pid}, which cannot be checked here"),
    })
}

/// The state, as `list` tells it.
pub(crate) fn list_state(status: &Status) -> ListState {
    match (status.verdict.state, status.verdict.reason) {
        (State::Free, _) => ListState::Free,
        (State::Held, Reason::Reserved) => ListState::Reserved,
        (State::Held, Reason::Unverified(_) | Reason::Incomplete) => ListState::Unverified,
        (State::Held, _) => ListState::Held,
        (State::Overdue, _) => ListState::Overdue,
        (State::Zombie, Reason::Malformed(_)) => ListState::Damaged,
        (State::Zombie, _) => ListState::Zombie,
        (State::NotALock, _) => ListState::NotALock,
    }
}

/// The state as one word, for a table.
pub(crate) fn state(status: &Status) -> &'static str {
    match list_state(status) {
        ListState::Free => "free",
        ListState::Held => "held",
        ListState::Reserved => "reserved",
        ListState::Unverified => "held?",
        ListState::Overdue => "overdue",
        ListState::Damaged => "damaged",
        ListState::Zombie => "zombie",
        ListState::NotALock => "not a lock",
    }
}

/// The same of a hold: "shared", "held, slot 2".
pub(crate) fn state_and_slot(status: &Status) -> String {
    let mode = status.record.as_ref().map(|record| record.mode);
    match (list_state(status), status.slot, mode) {
        (ListState::Held, Some(_), Some(Mode::Shared)) => "shared".to_owned(),
        (ListState::Held, Some(slot), Some(Mode::Slots(_))) => format!("held, slot {slot}"),
        _ => state(status).to_owned(),
    }
}

/// "process 77 (job.sh) on db1, waiting since 02:00:07 (3m 1s ago)"
pub(crate) fn waiting(waiter: &Waiter) -> String {
    format!(
        "{}, waiting {}",
        process_on_host(waiter),
        sentences::since(waiter.since, local)
    )
}

/// "02:00:07 taken over from process 3127 (backup.sh) by process 4261 of uid 0 (onehold run backup -- x):
/// its holder has exited"
pub(crate) fn event(event: &Event) -> String {
    let what = match event.event {
        Action::Takeover => "taken over",
        Action::Break => "broken",
        Action::Cleanup => "cleaned up",
        _ => "changed",
    };
    let mut text = format!("{} {what}", local(event.at));
    if let Some(from) = &event.from {
        let holder = match (from.pid, &from.owner) {
            (Some(pid), _) => process(pid.get(), &from.command),
            (None, Some(owner)) => format!("a lease of {}", words::escape(owner)),
            (None, None) => "an unknown holder".to_owned(),
        };
        let _ = write!(text, " from {holder}");
    }
    let _ = write!(text, " by process {}", event.by.pid);
    if let Some(uid) = event.by.uid {
        let _ = write!(text, " of uid {uid}");
    }
    let command = words::escape(&event.by.command.join(" "));
    let _ = write!(text, " ({command}): {}", words::escape(&event.reason));
    text
}

/// Local time of day, with the date if it is not today.
pub(crate) fn local(at: DateTime<Utc>) -> String {
    let at = at.with_timezone(&Local);
    let format = if at.date_naive() == Local::now().date_naive() {
        "%H:%M:%S"
    } else {
        "%Y-%m-%d %H:%M:%S"
    };
    at.format(format).to_string()
}

/// "hold 7 of `db` and `cache`"
pub(crate) fn hold_and_locks(status: &Status) -> String {
    let names: Vec<String> = status
        .names()
        .iter()
        .map(|name| words::quoted(name))
        .collect();
    let number = status.hold().unwrap_or_default();
    format!("hold {number} of {}", words::listed(&names))
}

/// The kind of a hold, as in JSON.
pub(crate) fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Run => "run",
        Kind::Process => "job",
        Kind::Lease => "lease",
    }
}
