//! The JSON object of `--json`.

use std::fmt::Write as _;

use chrono::{DateTime, Utc};
use onehold::terminal::is_unsafe;
use onehold::{Caller, Format, Kind, Mode, Reason, State, Status, Waiter};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::config::Settings;
use crate::describe;
use crate::outcome::Outcome;

#[derive(Serialize)]
struct Object<'a> {
    success: bool,
    command: &'a str,
    status: &'a str,
    lock: Option<LockObject<'a>>,
    locks: Vec<LockObject<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hold: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    displaced: Option<LockObject<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command_exit_code: Option<i32>,
    #[serde(flatten)]
    more: &'a Map<String, Value>,
    message: &'a str,
    errors: Vec<&'a str>,
    error: Option<ErrorObject<'a>>,
}

#[derive(Serialize)]
struct ErrorObject<'a> {
    code: &'a str,
    message: &'a str,
    details: &'a Value,
}

/// The object of `--json`, on one line.
pub(crate) fn object(
    command: &str,
    outcome: &Outcome,
    warnings: &[&str],
    caller: &Caller,
    settings: &Settings,
) -> String {
    let failed = outcome.failure.as_ref();
    // The new hold is the caller's own, so `mine` must be true for it.
    let caller = &Caller {
        hold: caller.hold.or(outcome.hold),
        ..caller.clone()
    };
    let lock = |status| with_details(status, caller, outcome.is_removed, settings);
    let object = Object {
        success: failed.is_none(),
        command,
        status: outcome.status,
        lock: outcome.lock.as_deref().map(lock),
        locks: outcome.locks.iter().map(lock).collect(),
        hold: outcome.hold,
        displaced: outcome.displaced.as_deref().map(lock),
        command_exit_code: outcome.command_exit_code,
        more: &outcome.more,
        message: &outcome.message,
        errors: failed
            .map(|_| outcome.message.as_str())
            .into_iter()
            .chain(warnings.iter().copied())
            .collect(),
        error: failed.map(|failure| ErrorObject {
            code: &failure.code,
            message: &outcome.message,
            details: &failure.details,
        }),
    };
    // Serializing strings, numbers and maps with string keys cannot fail.
    escape_json(&serde_json::to_string(&object).unwrap_or_default())
}

/// Escapes what could control a terminal. serde escapes only what JSON requires.
pub(crate) fn escape_json(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for char in json.chars() {
        if is_unsafe(char) {
            for unit in char.encode_utf16(&mut [0; 2]) {
                let _ = write!(escaped, "\\u{unit:04x}");
            }
        } else {
            escaped.push(char);
        }
    }
    escaped
}

/// One lock. All keys are always present; unknown values are null.
#[derive(Serialize)]
struct LockObject<'a> {
    name: &'a str,
    path: String,
    store: String,
    exists: bool,
    state: &'static str,
    reason: &'static str,
    proof: Option<&'static str>,
    evidence: Option<String>,
    is_zombie: bool,
    takeable: bool,
    takeable_in_ms: Option<u64>,
    kind: Option<&'static str>,
    pid: Option<u32>,
    pid_alive: Option<bool>,
    wrapper_pid: Option<u32>,
    wrapper_alive: Option<bool>,
    format: Option<&'static str>,
    hostname: Option<&'a str>,
    user: Option<String>,
    uid: Option<u32>,
    owner: Option<&'a str>,
    session_id: Option<&'a str>,
    message: Option<&'a str>,
    command: Option<&'a [String]>,
    acquired_at: Option<DateTime<Utc>>,
    renewed_at: Option<DateTime<Utc>>,
    age_hours: Option<f64>,
    age_seconds: Option<f64>,
    ttl_seconds: Option<f64>,
    expires_at: Option<DateTime<Utc>>,
    hold: Option<u64>,
    mode: Option<Mode>,
    slot: Option<u32>,
    names: Option<Vec<&'a str>>,
    mine: bool,
    zombie_reason: Option<String>,
    others: Vec<Self>,
    lockers: Vec<LockerObject<'a>>,
    waiters: Vec<WaiterObject<'a>>,
    reserved_for: Option<WaiterObject<'a>>,
    details: Option<Value>,
}

#[derive(Serialize)]
struct LockerObject<'a> {
    pid: u32,
    command: &'a [String],
    user: Option<&'a str>,
    started_at: Option<DateTime<Utc>>,
}

#[derive(Serialize)]
struct WaiterObject<'a> {
    position: usize,
    pid: u32,
    hostname: Option<&'a str>,
    owner: Option<&'a str>,
    command: &'a [String],
    message: Option<&'a str>,
    since: DateTime<Utc>,
}

/// One lock as in the JSON object.
pub(crate) fn lock_value(status: &Status, caller: &Caller) -> Value {
    serde_json::to_value(lock(status, caller)).unwrap_or_default()
}

fn lock<'a>(status: &'a Status, caller: &Caller) -> LockObject<'a> {
    let record = status.record.as_ref();
    let verdict = &status.verdict;
    let age = verdict.age.map(|age| age.as_secs_f64());
    let owner = record.and_then(|record| record.owner.as_deref());
    LockObject {
        name: &status.name,
        path: status.path.to_string_lossy().into_owned(),
        store: status.store.to_string_lossy().into_owned(),
        exists: !matches!(verdict.reason, Reason::NoFile | Reason::Reserved),
        state: state(verdict.state),
        reason: verdict.reason.name(),
        proof: verdict.evidence.name(),
        evidence: describe::evidence(status),
        is_zombie: verdict.is_zombie(),
        takeable: status.is_available(),
        takeable_in_ms: verdict
            .takeable_in
            .map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
        kind: record.map(|record| describe::kind(record.kind)),
        pid: verdict.pid.map(onehold::Pid::get),
        pid_alive: verdict.pid_alive,
        wrapper_pid: record
            .filter(|record| record.kind == Kind::Run && !record.exec)
            .and_then(|record| record.taken_by)
            .map(onehold::Pid::get),
        wrapper_alive: verdict.wrapper_alive,
        format: record
            .map(|record| record.format.name())
            .or_else(|| (status.format == Format::Flock).then(|| status.format.name())),
        hostname: record.and_then(|record| record.hostname.as_deref()),
        user: describe::user(status),
        uid: status.uid,
        owner,
        session_id: owner,
        message: record.and_then(|record| record.message.as_deref()),
        command: record.map(|record| record.command.as_slice()).or_else(|| {
            let first = status.lockers.first()?;
            Some(first.command.as_slice())
        }),
        acquired_at: record.map(|record| record.acquired_at),
        renewed_at: record.map(onehold::Record::renewed_at),
        age_hours: age.map(|age| (age / 36.0).round() / 100.0),
        age_seconds: age,
        ttl_seconds: record
            .and_then(onehold::Record::ttl)
            .map(|ttl| ttl.as_secs_f64()),
        expires_at: verdict.expires_at,
        hold: status.hold(),
        mode: record.map(|record| record.mode),
        slot: status.slot,
        names: record.map(|_| status.names()),
        mine: caller.owns(status),
        zombie_reason: describe::zombie_reason(status),
        others: status
            .others
            .iter()
            .map(|other| lock(other, caller))
            .collect(),
        lockers: status
            .lockers
            .iter()
            .map(|locker| LockerObject {
                pid: locker.pid.get(),
                command: &locker.command,
                user: locker.user.as_deref(),
                started_at: locker.started,
            })
            .collect(),
        waiters: status.waiters.iter().map(waiter).collect(),
        reserved_for: describe::reserved_for(status).map(waiter),
        details: None,
    }
}

fn waiter(waiter: &Waiter) -> WaiterObject<'_> {
    WaiterObject {
        position: waiter.position,
        pid: waiter.pid.get(),
        hostname: waiter.hostname.as_deref(),
        owner: waiter.owner.as_deref(),
        command: &waiter.command,
        message: waiter.message.as_deref(),
        since: waiter.since,
    }
}

/// One lock, with its values in the words of the profile's program. They tell of a lock that was removed how
/// it is now.
fn with_details<'a>(
    status: &'a Status,
    caller: &Caller,
    is_removed: bool,
    settings: &Settings,
) -> LockObject<'a> {
    let mut object = lock(status, caller);
    if settings.has_details() {
        let values = if is_removed {
            lock_value(&status.removed(), caller)
        } else {
            serde_json::to_value(&object).unwrap_or_default()
        };
        object.details = settings.details(&values);
    }
    object
}

fn state(state: State) -> &'static str {
    match state {
        State::Free => "free",
        State::Held => "held",
        State::Overdue => "overdue",
        State::Zombie => "zombie",
        State::NotALock => "not-a-lock",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doc_text::LOCK_KEYS;

    #[test]
    fn documented_keys_match_lock_object() {
        let store = onehold::Store::at("/nonexistent");
        let lock = store.lock(onehold::LockName::new("x").unwrap()).unwrap();
        let object = lock_value(&lock.check(None).unwrap(), &Caller::default());
        let mut found: Vec<&str> = object
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        let mut known = LOCK_KEYS.map(|(key, _)| key).to_vec();
        found.sort_unstable();
        known.sort_unstable();
        assert_eq!(found, known);
    }
}
