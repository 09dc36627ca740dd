//! The JSON object, and what a command came to.

use std::borrow::Cow;
use std::fmt::Write as _;

use chrono::{DateTime, Utc};
use onehold::{Claimant, Kind, Reason, State, Status};
use serde::Serialize;
use serde_json::Value;

use crate::describe;
use crate::exit::Exit;
use crate::manual::LOCK_KEYS;

/// What a command came to: everything that is said of it, and the exit code.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) exit: Exit,
    /// One of the words of the JSON object's `status`.
    pub(crate) status: &'static str,
    pub(crate) lock: Option<Box<Status>>,
    pub(crate) locks: Vec<Status>,
    /// One sentence.
    pub(crate) message: String,
    /// Data, for stdout.
    pub(crate) data: Option<String>,
    /// Talk, for stderr.
    pub(crate) talk: Vec<String>,
    /// What went wrong besides; also talk.
    pub(crate) warnings: Vec<String>,
    /// Why it failed.
    pub(crate) failure: Option<Failure>,
    /// The hold that came of it, where `lock` does not tell.
    pub(crate) hold: Option<u64>,
    /// The hold that was taken over, or taken by force.
    pub(crate) displaced: Option<Box<Status>>,
    /// What the command of `run` returned.
    pub(crate) command_exit_code: Option<i32>,
}

/// Why a command failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) code: Cow<'static, str>,
    pub(crate) details: Value,
    /// That somebody else has the lock; the exit code tells as much.
    pub(crate) is_conflict: bool,
}

impl Outcome {
    pub(crate) fn new(exit: Exit, status: &'static str, message: impl Into<String>) -> Self {
        Self {
            exit,
            status,
            lock: None,
            locks: Vec::new(),
            message: message.into(),
            data: None,
            talk: Vec::new(),
            warnings: Vec::new(),
            failure: None,
            hold: None,
            displaced: None,
            command_exit_code: None,
        }
    }

    pub(crate) fn lock(mut self, status: Box<Status>) -> Self {
        self.lock = Some(status);
        self
    }

    pub(crate) fn data(mut self, data: impl Into<String>) -> Self {
        self.data = Some(data.into());
        self
    }

    pub(crate) fn talk(mut self, talk: impl Into<String>) -> Self {
        self.talk.push(talk.into());
        self
    }

    pub(crate) fn warnings(mut self, warnings: &[onehold::Error]) -> Self {
        self.warnings
            .extend(warnings.iter().map(crate::output::chain));
        self
    }

    pub(crate) fn failure(mut self, code: &'static str, details: Value) -> Self {
        self.failure = Some(Failure {
            code: code.into(),
            details,
            is_conflict: false,
        });
        self
    }

    /// Somebody else has the lock.
    pub(crate) fn conflict(mut self, code: impl Into<Cow<'static, str>>, details: Value) -> Self {
        self.failure = Some(Failure {
            code: code.into(),
            details,
            is_conflict: true,
        });
        self
    }
}

impl Outcome {
    /// Something of what was asked for could not be done; what, is in the warnings.
    pub(crate) fn incomplete(mut self, done: &str) -> Self {
        self.exit = Exit::Failed;
        let _ = write!(self.message, ", and not all could be {done}");
        self.failure("INCOMPLETE", serde_json::json!({}))
    }
}

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
pub(crate) fn object(command: &str, outcome: &Outcome, claimant: &Claimant) -> String {
    let failed = outcome.failure.as_ref();
    // What came of it is the caller's, who has only now heard of its number.
    let claimant = &Claimant {
        hold: claimant.hold.or(outcome.hold),
        ..claimant.clone()
    };
    let object = Object {
        success: failed.is_none(),
        command,
        status: outcome.status,
        lock: outcome.lock.as_deref().map(|status| lock(status, claimant)),
        locks: outcome
            .locks
            .iter()
            .map(|status| lock(status, claimant))
            .collect(),
        hold: outcome.hold,
        displaced: outcome
            .displaced
            .as_deref()
            .map(|status| lock(status, claimant)),
        command_exit_code: outcome.command_exit_code,
        message: &outcome.message,
        errors: failed
            .map(|_| outcome.message.as_str())
            .into_iter()
            .chain(outcome.warnings.iter().map(String::as_str))
            .collect(),
        error: failed.map(|failure| ErrorObject {
            code: &failure.code,
            message: &outcome.message,
            details: &failure.details,
        }),
    };
    // Strings, numbers and maps with string keys: there is nothing in it that could fail.
    escape(&serde_json::to_string(&object).unwrap_or_default())
}

/// The same JSON, fit for a terminal: serde escapes only what JSON demands.
fn escape(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for char in json.chars() {
        if describe::is_unfit_for_terminals(char) {
            for unit in char.encode_utf16(&mut [0; 2]) {
                let _ = write!(escaped, "\\u{unit:04x}");
            }
        } else {
            escaped.push(char);
        }
    }
    escaped
}

/// One lock. What is unknown is null; the keys are always the same.
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
    kind: Option<&'static str>,
    pid: Option<u32>,
    pid_alive: Option<bool>,
    wrapper_pid: Option<u32>,
    wrapper_alive: Option<bool>,
    format: Option<&'static str>,
    hostname: Option<&'a str>,
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
    mine: bool,
    waiters: Vec<WaiterObject<'a>>,
}

#[derive(Serialize)]
struct WaiterObject<'a> {
    place: usize,
    pid: u32,
    hostname: Option<&'a str>,
    command: &'a [String],
    since: DateTime<Utc>,
}

/// Whether the object of a lock has this key.
pub(crate) fn is_key(key: &str) -> bool {
    LOCK_KEYS.iter().any(|(known, _)| *known == key)
}

/// One lock as the object shows it.
pub(crate) fn lock_value(status: &Status, claimant: &Claimant) -> Value {
    serde_json::to_value(lock(status, claimant)).unwrap_or_default()
}

fn lock<'a>(status: &'a Status, claimant: &Claimant) -> LockObject<'a> {
    let record = status.record.as_ref();
    let verdict = &status.verdict;
    let age = verdict.age.map(|age| age.as_secs_f64());
    let owner = record.and_then(|record| record.owner.as_deref());
    LockObject {
        name: &status.name,
        path: status.path.to_string_lossy().into_owned(),
        store: status.store.to_string_lossy().into_owned(),
        exists: verdict.reason != Reason::NoFile,
        state: state(verdict.state),
        reason: reason(verdict.reason),
        proof: proof(status),
        evidence: describe::evidence(status),
        is_zombie: verdict.is_zombie(),
        takeable: status.is_takeable(),
        kind: record.map(|record| describe::kind(record.kind)),
        pid: verdict.pid.map(onehold::Pid::get),
        pid_alive: verdict.pid_alive,
        wrapper_pid: record
            .filter(|record| record.kind == Kind::Run && !record.exec)
            .map(|record| record.pid.get()),
        wrapper_alive: verdict.wrapper_alive,
        format: record.map(|record| record.format.name()),
        hostname: record.and_then(|record| record.hostname.as_deref()),
        owner,
        session_id: owner,
        message: record.and_then(|record| record.message.as_deref()),
        command: record.map(|record| record.command.as_slice()),
        acquired_at: record.map(|record| record.acquired_at),
        renewed_at: record.map(onehold::Record::renewed_at),
        age_hours: age.map(|age| (age / 36.0).round() / 100.0),
        age_seconds: age,
        ttl_seconds: record
            .and_then(onehold::Record::ttl)
            .map(|ttl| ttl.as_secs_f64()),
        expires_at: verdict.expires_at,
        hold: status.hold(),
        mine: claimant.owns(status),
        waiters: status
            .waiters
            .iter()
            .map(|waiter| WaiterObject {
                place: waiter.place,
                pid: waiter.pid.get(),
                hostname: waiter.hostname.as_deref(),
                command: &waiter.command,
                since: waiter.since,
            })
            .collect(),
    }
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

fn reason(reason: Reason) -> &'static str {
    match reason {
        Reason::NoFile => "no-file",
        Reason::Finished => "finished",
        Reason::Alive => "alive",
        Reason::Promised => "promised",
        Reason::Lease => "lease",
        Reason::UnknownVersion => "unknown-version",
        Reason::InTheMaking => "in-the-making",
        Reason::Unproven(_) => "unproven",
        Reason::Dead => "dead",
        Reason::Reused => "reused",
        Reason::Rebooted => "rebooted",
        Reason::Expired => "expired",
        Reason::Aged(_) => "aged",
        Reason::Corrupt => "corrupt",
        Reason::NotALock(_) => "not-a-lock",
    }
}

fn proof(status: &Status) -> Option<&'static str> {
    use onehold::Proof;
    match status.verdict.proof {
        Proof::None => None,
        Proof::KernelLock => Some("kernel-lock"),
        Proof::SameProcess => Some("same-process"),
        Proof::SamePid => Some("same-pid"),
        Proof::PidGone => Some("pid-gone"),
        Proof::OtherStart => Some("other-start"),
        Proof::OtherBoot => Some("other-boot"),
        Proof::KernelLockGone => Some("kernel-lock-gone"),
        Proof::Clock => Some("clock"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_a_lock_are_those_of_its_object() {
        let store = onehold::Store::at("/nonexistent");
        let lock = store.lock(onehold::LockName::new("x").unwrap()).unwrap();
        let object = lock_value(&lock.check(None).unwrap(), &Claimant::default());
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
