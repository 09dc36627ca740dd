//! The resume lock of `prodigy resume`: pretty JSON of four keys, without a final newline. prodigy
//! ignores keys that it does not know.

use std::fmt::Write as _;

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::Error;

use super::{Fields, UNKNOWN_VALUE, Written, append_visible, metadata, rfc3339_utc};
use crate::record::{Format, Record};

pub(super) const KEYS: [&str; 4] = ["job_id", "process_id", "hostname", "acquired_at"];

pub(super) fn matches(fields: &Fields) -> bool {
    KEYS.iter().all(|key| fields.has(key))
}

/// `None`: it has no process ID.
pub(super) fn read(fields: &Fields, modified: DateTime<Utc>) -> Option<Record> {
    let pid = fields.pid("process_id")?.ok();
    let acquired_at = fields.time("acquired_at").unwrap_or(modified);
    Some(Record {
        name: fields.text("job_id").unwrap_or_default(),
        hostname: fields.known("hostname"),
        time_in_file: fields.time_as_written("acquired_at"),
        ..Record::new(Format::Prodigy, pid, acquired_at)
    })
}

pub(super) fn write(record: &Record) -> Result<Written, Error> {
    let job_id = serde_json::to_string(job_id(&record.name))?;
    // prodigy does not read a record without one.
    let hostname = serde_json::to_string(record.hostname.as_deref().unwrap_or(UNKNOWN_VALUE))?;
    let acquired_at = rfc3339_utc(record.acquired_at, SecondsFormat::AutoSi);
    let mut text = format!("{{\n  \"job_id\": {job_id},\n  \"process_id\": ");
    let visible_at = append_visible(&mut text, record.visible_pid());
    let _ = write!(
        text,
        ",\n  \"hostname\": {hostname},\n  \"acquired_at\": \"{acquired_at}\",\n  \"{}\": ",
        metadata::KEY
    );
    metadata::complete(text, record, "\n}", visible_at)
}

/// A lock that was named by its path is that of the job that its file is named after.
fn job_id(name: &str) -> &str {
    match name.rsplit_once('/') {
        Some((_, file)) => file.strip_suffix(".lock").unwrap_or(file),
        None => name,
    }
}
