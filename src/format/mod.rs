//! The formats of lock files: onehold's own, and those of the programs that it replaces. Pure.
//!
//! A foreign format is recognized by its own keys, whichever program wrote it, and read as
//! tolerantly as its own program reads it. What onehold writes there also has [`metadata`], so that
//! its own holds are judged by identity, as native ones are.

use std::fmt::Write as _;

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::{Error, Value};

use crate::identity::Pid;
use crate::record::{Content, Format, Record, has_four_digits};

pub(crate) mod live;
mod memory;
mod metadata;
mod native;
mod pid;
mod prodigy;
mod sprint;

pub(crate) use memory::{MAX_TTL as MEMORY_TTL, TTL_LIMIT as MEMORY_TTL_LIMIT, renewed_times};
pub use metadata::escape_json;
#[cfg(feature = "cluster")]
pub(crate) use native::{read as read_native, write_compact};

/// The bytes of a new lock file, and where they change in place later.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) bytes: Vec<u8>,
    /// Where the slot of [`Live`] begins; `None` where the format has no room for it.
    pub(crate) slot_at: Option<usize>,
    /// Where a foreign record shows its PID to other programs.
    pub(crate) visible_at: Option<usize>,
}

/// Bytes of the PID that a foreign record shows: one aligned word, so that no reader sees half of
/// it. On Windows a PID can have more digits.
pub(crate) const VISIBLE_BYTES: usize = if cfg!(windows) { 16 } else { 8 };

/// The whole file of a record, in its format.
pub(crate) fn write(record: &Record) -> Result<Written, Error> {
    match record.format {
        Format::Native => Ok(Written {
            bytes: native::write(record)?,
            slot_at: Some(native::SLOT_AT),
            visible_at: None,
        }),
        Format::Prodigy => prodigy::write(record),
        Format::Sprint => sprint::write(record),
        Format::Memory => memory::write(record),
        Format::Pid => Ok(pid::write(record)),
        Format::Flock | Format::Fcntl => Ok(Written::default()),
    }
}

/// When a lock was acquired, as its file says: text of a program that reads the file itself.
pub(crate) fn time_in_file(record: &Record) -> String {
    record
        .time_in_file
        .clone()
        .unwrap_or_else(|| match record.format {
            Format::Memory => memory::time(record.renewed_at()),
            Format::Sprint => rfc3339_utc(record.acquired_at, SecondsFormat::Secs),
            _ => rfc3339_utc(record.acquired_at, SecondsFormat::AutoSi),
        })
}

/// Whether a file is a native record, of whatever version.
pub(crate) fn is_native(bytes: &[u8]) -> bool {
    native::read(bytes).is_some()
}

/// Whether the bytes of one file are those of one native record, whose slot may have been written in
/// between.
pub(crate) fn is_same_native_record(before: &[u8], after: &[u8]) -> bool {
    native::around_slot(before) == native::around_slot(after)
}

/// Where the slot of [`Live`] begins in a file of ours; `None` if it was edited, or has no room.
pub(crate) fn slot_at(format: Format, bytes: &[u8]) -> Option<usize> {
    match format {
        Format::Native => native::slot_at(bytes),
        Format::Prodigy | Format::Sprint | Format::Memory => metadata::slot_at(bytes),
        Format::Pid | Format::Flock | Format::Fcntl => None,
    }
}

/// Appends the PID that other programs see, aligned, with room for a longer one; returns where.
fn append_visible(text: &mut String, pid: Option<Pid>) -> usize {
    while !text.len().is_multiple_of(VISIBLE_BYTES) {
        text.push(' ');
    }
    let at = text.len();
    let _ = write!(text, "{:<VISIBLE_BYTES$}", number(pid));
    at
}

/// Where the first `text` in the bytes ends.
fn behind(bytes: &[u8], text: &str) -> Option<usize> {
    let mut windows = bytes.windows(text.len());
    let at = windows.position(|window| window == text.as_bytes())?;
    Some(at + text.len())
}

/// Reads a lock file, whatever it is. `pid_file`: a bare number is expected. `modified`: its mtime,
/// for formats without a time.
pub(crate) fn read(bytes: &[u8], pid_file: bool, modified: DateTime<Utc>) -> Content {
    // After power loss the end of a file, or all of it, can be NULs.
    let written = bytes.len() - bytes.iter().rev().take_while(|byte| **byte == 0).count();
    let text = bytes.get(..written).unwrap_or_default();
    if text.is_empty() {
        return Content::Corrupt;
    }
    if let Some(native) = native::read(text) {
        return native;
    }
    let text = text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(text);
    match std::str::from_utf8(text) {
        Ok(text) => read_foreign(text, pid_file, modified),
        // Cut off within a character.
        Err(error) if error.error_len().is_none() => {
            let whole = text.get(..error.valid_up_to()).unwrap_or_default();
            let whole = std::str::from_utf8(whole).unwrap_or_default();
            if is_truncated_record(text) || sprint::is_truncated(whole) {
                return Content::Corrupt;
            }
            match read_foreign(whole, pid_file, modified) {
                // In its comment.
                Content::Record(record) if record.format == Format::Sprint => {
                    Content::Record(record)
                }
                _ => Content::NotALock(UNKNOWN),
            }
        }
        Err(_) => Content::NotALock(UNKNOWN),
    }
}

const UNKNOWN: &str = "unrecognized file content";

fn read_foreign(text: &str, pid_file: bool, modified: DateTime<Utc>) -> Content {
    if pid::is_whole(text.trim_ascii()) {
        return match (pid_file, pid::read(text)) {
            (false, _) => Content::NotALock("a bare number (for a PID file use --format pid)"),
            (true, pid) => Content::Record(Box::new(Record::new(Format::Pid, pid, modified))),
        };
    }
    let around = metadata::around_torn_slot(text);
    let json = serde_json::from_str::<Value>(&around);
    let is_cut_off = json.as_ref().is_err_and(serde_json::Error::is_eof);
    let fields = match json {
        Ok(Value::Object(object)) => Some(Fields(object)),
        Ok(_) => return Content::NotALock(UNKNOWN),
        Err(_) if is_cut_off => None,
        Err(_) => sprint::fields(text),
    };
    let content = fields.map(|fields| recognize(&fields, text, modified));
    match content.unwrap_or(Content::NotALock(UNKNOWN)) {
        // It may still be being written.
        Content::NotALock(_) if is_truncated_record(text.as_bytes()) && is_cut_off => {
            Content::Corrupt
        }
        Content::NotALock(_) if sprint::is_truncated(text) => Content::Corrupt,
        content => content,
    }
}

fn recognize(fields: &Fields, text: &str, modified: DateTime<Utc>) -> Content {
    let in_json = fields.has(metadata::KEY).then_some(text);
    let (record, metadata) = if prodigy::matches(fields) {
        (prodigy::read(fields, modified), in_json)
    } else if memory::matches(fields) {
        (memory::read(fields, modified), in_json)
    } else if sprint::matches(fields) {
        (sprint::read(fields, modified), sprint::metadata(text))
    } else {
        return Content::NotALock(UNKNOWN);
    };
    let Some(record) = record else {
        return Content::NotALock("like a lock file, but without a process ID");
    };
    let value = fields.0.get(metadata::KEY);
    metadata
        .and_then(|text| metadata::read(text, value, record.clone()))
        .unwrap_or_else(|| Content::Record(Box::new(record)))
}

fn number(pid: Option<Pid>) -> u32 {
    pid.map_or(0, Pid::get)
}

/// RFC 3339 with a `Z`.
fn rfc3339_utc(time: DateTime<Utc>, precision: SecondsFormat) -> String {
    time.to_rfc3339_opts(precision, true)
}

const UNKNOWN_VALUE: &str = "unknown";

/// The keys of a JSON object or a YAML mapping, and their values.
struct Fields(serde_json::Map<String, Value>);

impl Fields {
    fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// A host or a session. "unknown", or nothing, is what the programs write where they know none.
    fn known(&self, key: &str) -> Option<String> {
        let is_known = |text: &String| !text.is_empty() && text != UNKNOWN_VALUE;
        self.text(key).filter(is_known)
    }

    /// `None` also for null, and for what is not a scalar.
    fn text(&self, key: &str) -> Option<String> {
        match self.0.get(key)? {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            Value::Bool(bool) => Some(bool.to_string()),
            Value::Null | Value::Array(_) | Value::Object(_) => None,
        }
    }

    /// `Err`: a whole number, but not that of a process.
    fn pid(&self, key: &str) -> Option<Result<Pid, ()>> {
        let text = self.text(key)?;
        pid::is_whole(&text).then(|| text.parse().ok().and_then(Pid::new).ok_or(()))
    }

    /// The text of a time.
    fn time_as_written(&self, key: &str) -> Option<String> {
        self.text(key).filter(|_| self.time(key).is_some())
    }

    fn time(&self, key: &str) -> Option<DateTime<Utc>> {
        let time = DateTime::parse_from_rfc3339(self.text(key)?.trim()).ok()?;
        Some(time.to_utc()).filter(|time| has_four_digits(*time))
    }
}

/// Whether truncated JSON may be the beginning of a lock file: its first key, as far as it goes, is
/// that of a format.
fn is_truncated_record(text: &[u8]) -> bool {
    let keys = prodigy::KEYS.into_iter().chain(memory::KEYS);
    let mut keys = keys.map(str::as_bytes);
    let Some(inside) = text.trim_ascii_start().strip_prefix(b"{") else {
        return false;
    };
    let inside = inside.trim_ascii_start();
    let Some(key) = inside.strip_prefix(b"\"") else {
        return inside.is_empty();
    };
    match key.iter().position(|byte| *byte == b'"') {
        Some(end) => keys.any(|known| Some(known) == key.get(..end)),
        None => keys.any(|known| known.starts_with(key)),
    }
}

#[cfg(test)]
mod tests;
