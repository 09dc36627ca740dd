//! The memory lock: JSON, indented by 2, without a final newline. Its programs take a holder for
//! stale 30 s after the times in the record, alive or not, so both times are rewritten in place.

use std::fmt::Write as _;
use std::ops::Range;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Error;

use super::{Fields, UNKNOWN_VALUE, Written, append_visible, behind, metadata};
use crate::record::{Format, Record};

pub(super) const KEYS: [&str; 7] = [
    "pid",
    "session_id",
    "token",
    "acquired_at",
    "heartbeat_at",
    "hostname",
    "operation",
];

/// After this its programs take a holder for stale that does not rewrite its times.
pub(crate) const MAX_TTL: Duration = Duration::from_secs(30);

pub(crate) const TTL_LIMIT: &str = "--ttl is limited to 30s";

pub(super) fn matches(fields: &Fields) -> bool {
    let named = fields.has("operation") || fields.has("session_id");
    fields.has("pid") && fields.has("acquired_at") && named
}

/// `None`: it has no process ID.
pub(super) fn read(fields: &Fields, modified: DateTime<Utc>) -> Option<Record> {
    let pid = fields.pid("pid")?.ok();
    let acquired_at = fields.time("acquired_at").unwrap_or(modified);
    let mut record = Record::new(Format::Memory, pid, acquired_at);
    record.hostname = fields.known("hostname");
    record.owner = fields.known("session_id");
    record.message = fields.text("operation");
    record.live.renewed_at = fields.time("heartbeat_at");
    record.time_in_file = fields.time_as_written("acquired_at");
    Some(record)
}

pub(super) fn write(record: &Record) -> Result<Written, Error> {
    let quoted = |text: &str| serde_json::to_string(text);
    let session = quoted(record.owner.as_deref().unwrap_or(UNKNOWN_VALUE))?;
    let hostname = serde_json::to_string(&record.hostname)?;
    let operation = quoted(record.message.as_deref().unwrap_or_default())?;
    let time = time(record.renewed_at());
    let mut text = String::from("{\n  \"pid\": ");
    let visible_at = append_visible(&mut text, record.visible_pid());
    // Its programs compare the token with their own; a hold number serves.
    let _ = write!(
        text,
        ",\n  \"session_id\": {session},\n  \"token\": \"{:016x}\",\n  \"acquired_at\": \"{time}\",\n  \
         \"heartbeat_at\": \"{time}\",\n  \"hostname\": {hostname},\n  \"operation\": {operation},\n  \
         \"{}\": ",
        record.hold,
        metadata::KEY
    );
    metadata::complete(text, record, "\n}", visible_at)
}

/// Always of the same length, with an offset: its first version fails on `Z`.
pub(super) fn time(time: DateTime<Utc>) -> String {
    time.format("%Y-%m-%dT%H:%M:%S%.6f+00:00").to_string()
}

/// The bytes to write, and where, so that both times in a file of ours are `now`; `None` if it is not as we
/// wrote it.
pub(crate) fn renewed_times(bytes: &[u8], now: DateTime<Utc>) -> Option<(u64, Vec<u8>)> {
    let now = time(now);
    let acquired = value_of(bytes, "acquired_at", now.len())?;
    let heartbeat = value_of(bytes, "heartbeat_at", now.len())?;
    let between = bytes.get(acquired.end..heartbeat.start)?;
    // One write for both, so that a reader never sees only one of them.
    let both = [now.as_bytes(), between, now.as_bytes()].concat();
    Some((acquired.start as u64, both))
}

/// The place of the value of a key of ours, if it has this length.
fn value_of(bytes: &[u8], key: &str, length: usize) -> Option<Range<usize>> {
    let start = behind(bytes, &format!("\n  \"{key}\": \""))?;
    let end = start + length;
    (bytes.get(end) == Some(&b'"')).then_some(start..end)
}
