//! The JSON object of `--json`.

use std::time::Duration;

use onehold::status::Reason;
use onehold::terminal::is_unsafe;
use onehold::{Caller, Format, HoldInfo, Status};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::configuration::{CALLER_OWNER, Session, Settings, TIME_IN_FILE, WANTED};
use crate::messages::{Outcome, describe, local};

/// The request of `hold --serve` that an object answers. Without an id: its line could not be read.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) id: Option<u64>,
}

/// What is to be warned of.
pub(crate) fn warnings<'a>(
    session: Option<&'a Session>,
    outcome: &'a Outcome,
) -> impl Iterator<Item = &'a str> {
    let own = session.and_then(|session| session.warning.as_ref());
    outcome.warnings.iter().chain(own).map(String::as_str)
}

/// The object of `--json`, on one line. onehold-json(5) is the contract.
pub(crate) fn object(
    command: &str,
    session: Option<&Session>,
    request: Option<Request>,
    outcome: &Outcome,
) -> serde_json::Result<String> {
    let (caller, settings) = match session {
        Some(session) => (&session.caller, &session.config.settings),
        None => (&Caller::default(), &Settings::default()),
    };
    // The new hold is the caller's own, so `mine` must be true for it.
    let caller = Caller {
        hold: caller.hold.or(outcome.hold),
        ..caller.clone()
    };
    // With its values in the words of the profile's program. They tell of a lock that was removed how it is now.
    let lock = |status| {
        let details = settings.details(|| {
            let now = outcome.is_removed.then(|| Status::removed(status));
            profile_values(now.as_ref().unwrap_or(status), &caller)
        });
        LockObject(status, &caller, details)
    };
    let failure = outcome.failure.as_ref();
    let errors = failure.map(|_| outcome.message.as_str()).into_iter();
    let errors: Vec<&str> = errors.chain(warnings(session, outcome)).collect();
    let mut json = Vec::new();
    let mut serializer = serde_json::Serializer::new(&mut json);
    let mut keys = serializer.serialize_map(None)?;
    if let Some(request) = request {
        keys.serialize_entry("id", &request.id)?;
    }
    // The other lines of it are events of its hold.
    if command != "hold" && request.is_some() {
        keys.serialize_entry("event", "result")?;
    } else if command == "hold" {
        keys.serialize_entry("event", "failed")?;
        keys.serialize_entry("exit_code", &outcome.exit.0)?;
    }
    keys.serialize_entry("success", &failure.is_none())?;
    keys.serialize_entry("command", command)?;
    keys.serialize_entry("status", outcome.status)?;
    keys.serialize_entry("lock", &outcome.lock.as_deref().map(lock))?;
    keys.serialize_entry("locks", &outcome.locks.iter().map(lock).collect::<Vec<_>>())?;
    if let Some(hold) = outcome.hold {
        keys.serialize_entry("hold", &hold)?;
    }
    if let Some(displaced) = &outcome.displaced {
        keys.serialize_entry("displaced", &lock(displaced))?;
    }
    if let Some(code) = outcome.command_exit_code {
        keys.serialize_entry("command_exit_code", &code)?;
    }
    for (key, value) in outcome.more.as_object().into_iter().flatten() {
        keys.serialize_entry(key, value)?;
    }
    keys.serialize_entry("message", &outcome.message)?;
    keys.serialize_entry("errors", &errors)?;
    let error = failure.map(|failure| ErrorObject {
        code: &failure.code,
        message: &outcome.message,
        details: &failure.details,
    });
    keys.serialize_entry("error", &error)?;
    SerializeMap::end(keys)?;
    Ok(escape_json(&String::from_utf8_lossy(&json)))
}

#[derive(Serialize)]
struct ErrorObject<'a> {
    code: &'a str,
    message: &'a str,
    details: &'a Value,
}

/// Escapes what could control a terminal. serde escapes only what JSON requires.
pub(crate) fn escape_json(json: &str) -> String {
    onehold::command_line::escape_json(json, is_unsafe)
}

/// One lock as in the JSON object.
pub(crate) fn lock_value(status: &Status, caller: &Caller) -> Value {
    serde_json::to_value(LockObject(status, caller, None)).unwrap_or_default()
}

/// The same for texts and details of a profile, with what only these have.
pub(crate) fn profile_values(status: &Status, caller: &Caller) -> Value {
    let mut values = lock_value(status, caller);
    if let Some(values) = values.as_object_mut() {
        let time = status.info().map(HoldInfo::time_in_file);
        values.insert(TIME_IN_FILE.to_owned(), time.into());
        values.insert(CALLER_OWNER.to_owned(), caller.owner.clone().into());
        values.insert(WANTED.to_owned(), status.name.as_str().into());
    }
    values
}

/// A lock, who asks about it, and its values under the keys of the profile's program.
struct LockObject<'a>(&'a Status, &'a Caller, Option<Value>);

/// All keys are always present; unknown values are null.
impl Serialize for LockObject<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(status, caller, details) = self;
        let verdict = &status.verdict;
        let record = status.info();
        let owner = record.and_then(HoldInfo::owner);
        let format = record.map(HoldInfo::format);
        let format = format.or(Some(status.format).filter(|format| format.is_kernel_lock()));
        let command = record.map(HoldInfo::command);
        let command = command.or(status.lockers.first().map(|locker| &*locker.command));
        let wrapper = record.filter(|record| record.has_wrapper());
        let age = verdict.age.map(|age| age.as_secs_f64());
        let milliseconds = |left: Duration| u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        let others = status.others.iter();
        let others: Vec<_> = others.map(|other| Self(other, caller, None)).collect();
        let mut keys = serializer.serialize_map(None)?;
        keys.serialize_entry("name", &status.name)?;
        keys.serialize_entry("path", &status.path.to_string_lossy())?;
        keys.serialize_entry("store", &status.store.to_string_lossy())?;
        let exists = !matches!(verdict.reason, Reason::NoFile | Reason::Reserved);
        keys.serialize_entry("exists", &exists)?;
        keys.serialize_entry("state", &verdict.state)?;
        keys.serialize_entry("reason", verdict.reason.name())?;
        let proof = Some(verdict.evidence.name()).filter(|name| !name.is_empty());
        keys.serialize_entry("proof", &proof)?;
        keys.serialize_entry("evidence", &describe::evidence(status, local))?;
        keys.serialize_entry("is_zombie", &verdict.is_zombie())?;
        keys.serialize_entry("takeable", &status.is_takeable())?;
        keys.serialize_entry("takeable_in_ms", &verdict.takeable_in.map(milliseconds))?;
        keys.serialize_entry("kind", &record.map(describe::kind))?;
        keys.serialize_entry("program", &record.map(HoldInfo::program))?;
        keys.serialize_entry("pid", &verdict.pid)?;
        keys.serialize_entry("pid_alive", &verdict.pid_alive)?;
        keys.serialize_entry("wrapper_pid", &wrapper.map(HoldInfo::taken_by))?;
        keys.serialize_entry("wrapper_alive", &wrapper.and(verdict.wrapper_alive))?;
        let die_with = record.and_then(HoldInfo::die_with);
        keys.serialize_entry("die_with", &die_with.map(|process| process.pid))?;
        keys.serialize_entry("format", &format.map(Format::name))?;
        keys.serialize_entry("hostname", &record.map(HoldInfo::hostname))?;
        keys.serialize_entry("user", &describe::user(status))?;
        keys.serialize_entry("uid", &status.uid)?;
        keys.serialize_entry("owner", &owner)?;
        keys.serialize_entry("session_id", &owner)?;
        keys.serialize_entry("message", &record.map(HoldInfo::message))?;
        keys.serialize_entry("command", &command)?;
        let directory = describe::directory(status);
        let directory = directory.as_ref().map(|path| path.to_string_lossy());
        keys.serialize_entry("directory", &directory)?;
        keys.serialize_entry("acquired_at", &record.map(HoldInfo::acquired_at))?;
        keys.serialize_entry("renewed_at", &record.map(HoldInfo::renewed_at))?;
        let age_hours = age.map(|age| (age / 36.0).round() / 100.0);
        keys.serialize_entry("age_hours", &age_hours)?;
        keys.serialize_entry("age_seconds", &age)?;
        let ttl = record.and_then(HoldInfo::ttl);
        keys.serialize_entry("ttl_seconds", &ttl.map(|ttl| ttl.as_secs_f64()))?;
        keys.serialize_entry("expires_at", &verdict.expires_at)?;
        let end = record.and_then(HoldInfo::ended);
        keys.serialize_entry("ended_at", &end.map(|end| end.at))?;
        keys.serialize_entry("exit_code", &end.map(|end| end.exit_code))?;
        keys.serialize_entry("signal", &end.map(|end| end.signal))?;
        keys.serialize_entry("hold", &status.hold())?;
        keys.serialize_entry("mode", &record.map(HoldInfo::mode))?;
        keys.serialize_entry("slot", &status.slot)?;
        keys.serialize_entry("names", &record.map(|_| status.names()))?;
        keys.serialize_entry("provenance", &status.provenance)?;
        keys.serialize_entry("mine", &caller.owns(status))?;
        keys.serialize_entry("zombie_reason", &describe::zombie_reason(status))?;
        keys.serialize_entry("others", &others)?;
        keys.serialize_entry("lockers", &status.lockers)?;
        keys.serialize_entry("waiters", &status.waiters)?;
        keys.serialize_entry("reserved_for", &describe::reserved_for(status))?;
        keys.serialize_entry("details", details)?;
        keys.end()
    }
}

/// Holds of which each waits for the next one.
#[cold]
pub(crate) fn links(holds: &[Status]) -> Value {
    let links = holds.iter().map(|hold| {
        json!({
            "name": hold.name,
            "hold": hold.hold(),
            "pid": hold.verdict.pid,
            "command": hold.info().map(HoldInfo::command),
        })
    });
    links.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::doc_text::lock_keys;

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
        let mut known: Vec<&str> = lock_keys().collect();
        found.sort_unstable();
        known.sort_unstable();
        assert_eq!(found, known);
    }
}
