//! The memory lock: JSON, indented by 2, without a final newline. Its programs take a holder for
//! stale 30 s after the times in it, even one whose process lives; both are rewritten in place.

use std::ops::Range;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::{Fields, Visible, stamp};
use crate::record::Record;

pub(super) const KEYS: [&str; 7] = [
    "pid",
    "session_id",
    "token",
    "acquired_at",
    "heartbeat_at",
    "hostname",
    "operation",
];

/// How long its programs believe in a holder that does not rewrite its times.
pub(crate) const LONGEST_TTL: Duration = Duration::from_secs(30);

pub(crate) const NO_LONGER: &str = "its programs believe in it for 30 s from its last renewal";

/// What its programs write where they know no session; it is nobody's.
const NO_SESSION: &str = "unknown";

pub(super) fn is_one(fields: &Fields) -> bool {
    let named = fields.has("operation") || fields.has("session_id");
    fields.has("pid") && fields.has("acquired_at") && named
}

pub(super) fn read(fields: &Fields) -> Visible {
    Visible {
        name: None,
        pid: fields.pid("pid"),
        hostname: fields.text("hostname"),
        acquired_at: fields.time("acquired_at"),
        renewed_at: fields.time("heartbeat_at"),
        owner: fields
            .text("session_id")
            .filter(|session| session != NO_SESSION),
        message: fields.text("operation"),
        stamp: fields.text(stamp::KEY),
    }
}

#[derive(Serialize)]
struct Written<'a> {
    pid: u32,
    session_id: &'a str,
    token: String,
    acquired_at: String,
    heartbeat_at: String,
    hostname: Option<&'a str>,
    operation: &'a str,
    onehold: String,
}

pub(super) fn write(record: &Record) -> Result<Vec<u8>, serde_json::Error> {
    let time = time(record.renewed_at());
    serde_json::to_vec_pretty(&Written {
        pid: super::shown_pid(record).get(),
        session_id: record.owner.as_deref().unwrap_or(NO_SESSION),
        // Its programs compare it with their own; the number of the hold is as good as any.
        token: format!("{:016x}", record.hold),
        acquired_at: time.clone(),
        heartbeat_at: time,
        hostname: record.hostname.as_deref(),
        operation: record.message.as_deref().unwrap_or_default(),
        onehold: stamp::write(record),
    })
}

/// Always of the same length, with an offset: its first version fails on `Z`.
fn time(time: DateTime<Utc>) -> String {
    time.format("%Y-%m-%dT%H:%M:%S%.6f+00:00").to_string()
}

/// What to write where, so that both times in a file of ours say `now`; `None` if it is not as we
/// wrote it.
pub(crate) fn renewed_times(bytes: &[u8], now: DateTime<Utc>) -> Option<(u64, Vec<u8>)> {
    let now = time(now);
    let acquired = value_of(bytes, "acquired_at", now.len())?;
    let heartbeat = value_of(bytes, "heartbeat_at", now.len())?;
    // One write for both, so that nobody reads one of them.
    let mut both = bytes.get(acquired.start..heartbeat.end)?.to_vec();
    let (first, _) = both.split_at_mut_checked(now.len())?;
    first.copy_from_slice(now.as_bytes());
    let second_at = both.len().checked_sub(now.len())?;
    let (_, second) = both.split_at_mut_checked(second_at)?;
    second.copy_from_slice(now.as_bytes());
    Some((acquired.start as u64, both))
}

/// Where the value of a key of ours stands, if it has this length.
fn value_of(bytes: &[u8], key: &str, length: usize) -> Option<Range<usize>> {
    let before = format!("\n  \"{key}\": \"");
    let found = bytes
        .windows(before.len())
        .position(|window| window == before.as_bytes())?;
    let start = found + before.len();
    let end = start + length;
    (bytes.get(end) == Some(&b'"')).then_some(start..end)
}
