//! The resume lock of `prodigy resume`: pretty JSON of four keys, without a final newline. Keys
//! that it does not know it passes over.

use chrono::SecondsFormat;
use serde::Serialize;

use super::{Fields, Visible, stamp};
use crate::record::Record;

pub(super) const KEYS: [&str; 4] = ["job_id", "process_id", "hostname", "acquired_at"];

pub(super) fn is_one(fields: &Fields) -> bool {
    KEYS.iter().all(|key| fields.has(key))
}

pub(super) fn read(fields: &Fields) -> Visible {
    Visible {
        name: fields.text("job_id"),
        pid: fields.pid("process_id"),
        hostname: fields.text("hostname"),
        acquired_at: fields.time("acquired_at"),
        renewed_at: None,
        owner: None,
        message: None,
        stamp: fields.text(stamp::KEY),
    }
}

#[derive(Serialize)]
struct Written<'a> {
    job_id: &'a str,
    process_id: u32,
    hostname: &'a str,
    acquired_at: String,
    onehold: String,
}

pub(super) fn write(record: &Record) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec_pretty(&Written {
        job_id: job_id(&record.name),
        process_id: super::shown_pid(record).get(),
        // It does not read what has none.
        hostname: record.hostname.as_deref().unwrap_or("unknown"),
        acquired_at: super::zulu(record.acquired_at, SecondsFormat::AutoSi),
        onehold: stamp::write(record),
    })
}

/// A lock that was named by its path is that of the job its file is called after.
fn job_id(name: &str) -> &str {
    match name.rsplit_once('/') {
        Some((_, file)) => file.strip_suffix(".lock").unwrap_or(file),
        None => name,
    }
}
