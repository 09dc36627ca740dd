//! The formats of lock files: ours, and those of the programs that onehold replaces. Pure.
//!
//! A foreign format is recognised by its own keys, whoever wrote it, and read as tolerantly as its
//! own program reads it. In what onehold writes there is a [`stamp`] besides, so that its own holds
//! are judged by identity, as native ones are.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::Value;

use crate::identity::Pid;
use crate::record::{
    CommandSlot, Content, Line, Record, SignOfLife, Slot, has_four_digits, native_command_slot,
};

mod memory;
mod pid;
mod prodigy;
mod sprint;
mod stamp;

pub(crate) use memory::{LONGEST_TTL as MEMORY_TTL, NO_LONGER as MEMORY_TTL_ONLY, renewed_times};

/// How a lock file is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Format {
    /// onehold's own: JSON that begins with `"onehold": 1`.
    #[default]
    Native,
    /// JSON, as `prodigy resume` writes it.
    Prodigy,
    /// YAML, as the sprint mutex `.sprint-running` is written.
    Sprint,
    /// JSON, as the memory lock `memory/.lock` is written.
    Memory,
    /// A bare number.
    Pid,
}

impl Format {
    /// All there are.
    pub const ALL: [Self; 5] = [
        Self::Native,
        Self::Prodigy,
        Self::Sprint,
        Self::Memory,
        Self::Pid,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Prodigy => "prodigy",
            Self::Sprint => "sprint",
            Self::Memory => "memory",
            Self::Pid => "pid",
        }
    }

    /// How long a new hold must last before it is believed in: the format's own programs remove a
    /// dead holder's file by its name, or rename theirs over it, whatever has come since they looked
    /// at it. Measured beside prodigy: 45 % double holds without a pause, none from 5 ms on.
    pub(crate) const fn settling_time(self) -> Option<Duration> {
        match self {
            Self::Native => None,
            Self::Prodigy | Self::Sprint | Self::Memory | Self::Pid => {
                Some(Duration::from_millis(50))
            }
        }
    }

    /// How often its programs must be shown that a holder lives.
    pub(crate) const fn heartbeat(self) -> Option<Duration> {
        match self {
            // They give it 30 s, and ask for 10.
            Self::Memory => Some(Duration::from_secs(8)),
            _ => None,
        }
    }

    /// What stands after the stamp, up to the end of the file; `None`: no stamp.
    const fn after_stamp(self) -> Option<&'static [u8]> {
        match self {
            Self::Native | Self::Pid => None,
            Self::Prodigy | Self::Memory => Some(b"\"\n}"),
            Self::Sprint => Some(b"\n"),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|format| format.name() == text)
            .ok_or_else(|| {
                let known: Vec<_> = Self::ALL.iter().map(|format| format.name()).collect();
                format!("no such format; there are {}", known.join(", "))
            })
    }
}

/// The whole file of a record, in its format.
pub(crate) fn write(record: &Record) -> Result<Vec<u8>, serde_json::Error> {
    match record.format {
        Format::Native => record.to_bytes(),
        Format::Prodigy => prodigy::write(record),
        Format::Sprint => sprint::write(record),
        Format::Memory => memory::write(record),
        Format::Pid => Ok(pid::write(record)),
    }
}

/// One line of a record as it stands in its file of `size` bytes; `None`: the format has no room.
pub(crate) fn slot(
    record: &Record,
    line: Line,
    size: u64,
) -> Result<Option<Slot>, serde_json::Error> {
    if record.format == Format::Native {
        return Ok(Some(Slot {
            at: line.offset(size),
            bytes: record.line(line)?,
        }));
    }
    Ok(record.format.after_stamp().map(|after| Slot {
        at: stamp::offset(line, size, after.len()),
        bytes: stamp::slot(record, line),
    }))
}

/// Whether these bytes of a file, a slot and the one before it, are what slots stand in: a whole
/// line of a native record, a part of a stamp elsewhere.
pub(crate) fn is_slot(format: Format, bytes: &[u8]) -> bool {
    let ends = |is_end: fn(&u8) -> bool| -> Vec<usize> {
        let ends = bytes.iter().enumerate().filter(|(_, byte)| is_end(byte));
        ends.map(|(at, _)| at).collect()
    };
    if format == Format::Native {
        return ends(|byte| *byte == b'\n') == [0, bytes.len().saturating_sub(1)];
    }
    ends(|byte| matches!(byte, b'\n' | b'"')).is_empty()
}

/// The slot of a command, to be filled by the command itself.
pub(crate) fn command_slot(format: Format, size: u64) -> Option<CommandSlot> {
    if format == Format::Native {
        return Some(native_command_slot(size));
    }
    format
        .after_stamp()
        .map(|after| stamp::command_slot(size, after.len()))
}

/// Reads a lock file, whatever it is. `pid_file`: a bare number is expected. `modified`: its mtime,
/// for formats without a time. The `bool`: read it again, it may have been caught while a line was
/// filled in.
pub(crate) fn read(bytes: &[u8], pid_file: bool, modified: DateTime<Utc>) -> (Content, bool) {
    // After power loss the end of a file, or all of it, can be NULs.
    let written = bytes.len() - bytes.iter().rev().take_while(|byte| **byte == 0).count();
    let text = bytes.get(..written).unwrap_or_default();
    if text.is_empty() {
        return (Content::Corrupt, false);
    }
    if let Some(native) = Content::native(bytes) {
        return native;
    }
    let text = text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(text);
    let content = match std::str::from_utf8(text) {
        Ok(text) => read_foreign(text, pid_file, modified),
        // Torn within a character.
        Err(error) if error.error_len().is_none() && begins_like_one(text) => Content::Corrupt,
        Err(_) => Content::NotALock(UNKNOWN),
    };
    (content, false)
}

const UNKNOWN: &str = "no lock file that onehold knows";

fn read_foreign(text: &str, pid_file: bool, modified: DateTime<Utc>) -> Content {
    if pid::is_number(text) {
        return match (pid_file, pid::read(text)) {
            (false, _) => Content::NotALock("a bare number, which is a lock only as a pid file"),
            (true, Some(pid)) => {
                Content::Record(Box::new(Record::foreign(Format::Pid, pid, modified)))
            }
            (true, None) => Content::Corrupt,
        };
    }
    let json = serde_json::from_str::<Value>(text);
    let is_cut_off = json.as_ref().is_err_and(serde_json::Error::is_eof);
    let parsed = match json {
        Ok(Value::Object(object)) => Ok(Fields::of_json(object)),
        Ok(_) => return Content::NotALock(UNKNOWN),
        Err(error) if error.is_eof() => Err(()),
        Err(_) => sprint::fields(text),
    };
    let content = match parsed {
        Ok(fields) => recognise(&fields, text, modified),
        Err(()) => Content::NotALock(UNKNOWN),
    };
    match content {
        // Perhaps in the making.
        Content::NotALock(_) if begins_like_one(text.as_bytes()) && is_cut_off => Content::Corrupt,
        Content::NotALock(_) if sprint::is_cut_off(text) => Content::Corrupt,
        content => content,
    }
}

fn recognise(fields: &Fields, text: &str, modified: DateTime<Utc>) -> Content {
    let (visible, format) = if prodigy::is_one(fields) {
        (prodigy::read(fields), Format::Prodigy)
    } else if memory::is_one(fields) {
        (memory::read(fields), Format::Memory)
    } else if sprint::is_one(fields) {
        (sprint::read(fields, text), Format::Sprint)
    } else {
        return Content::NotALock(UNKNOWN);
    };
    let pid = match visible.pid {
        Some(Ok(pid)) => pid,
        // A number that no process can have.
        Some(Err(())) => return Content::Corrupt,
        None => return Content::NotALock("like a lock file, but names no process"),
    };
    let mut record = Record::foreign(format, pid, visible.acquired_at.unwrap_or(modified));
    record.name = visible.name.unwrap_or_default();
    record.hostname = visible.hostname;
    record.owner = visible.owner;
    record.message = visible.message;
    record.sign_of_life = visible.renewed_at.map(|renewed_at| SignOfLife {
        renewed_at,
        renewed_boottime_ms: 0,
        renewed_boot_id: None,
        ttl_ms: None,
    });
    match visible
        .stamp
        .as_deref()
        .map(|text| stamp::read(text, record.clone()))
    {
        Some(stamp::Stamp::Ours(record)) => Content::Record(record),
        Some(stamp::Stamp::UnknownVersion(version)) => Content::UnknownVersion(version),
        Some(stamp::Stamp::None) | None => Content::Record(Box::new(record)),
    }
}

/// The pid that a foreign record is about.
fn shown_pid(record: &Record) -> Pid {
    record.shown_pid.unwrap_or(record.pid)
}

/// RFC 3339 with a `Z`.
fn zulu(time: DateTime<Utc>, precision: SecondsFormat) -> String {
    time.to_rfc3339_opts(precision, true)
}

/// What the keys of a foreign record say. What is `None` is not there, or makes no sense.
struct Visible {
    name: Option<String>,
    pid: Option<Result<Pid, ()>>,
    hostname: Option<String>,
    acquired_at: Option<DateTime<Utc>>,
    renewed_at: Option<DateTime<Utc>>,
    owner: Option<String>,
    message: Option<String>,
    stamp: Option<String>,
}

/// The keys of a mapping and their values; `None` for null and for what is no scalar.
struct Fields(BTreeMap<String, Option<String>>);

impl Fields {
    fn of_json(object: serde_json::Map<String, Value>) -> Self {
        let scalar = |value| match value {
            Value::String(text) => Some(text),
            Value::Number(number) => Some(number.to_string()),
            Value::Bool(bool) => Some(bool.to_string()),
            Value::Null | Value::Array(_) | Value::Object(_) => None,
        };
        Self(
            object
                .into_iter()
                .map(|(key, value)| (key, scalar(value)))
                .collect(),
        )
    }

    fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    fn text(&self, key: &str) -> Option<String> {
        self.0.get(key).cloned().flatten()
    }

    /// `Err`: a whole number, but that of no process.
    fn pid(&self, key: &str) -> Option<Result<Pid, ()>> {
        let text = self.text(key)?;
        let digits = text.strip_prefix('-').unwrap_or(&text);
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse().ok().and_then(Pid::new).ok_or(()))
    }

    fn time(&self, key: &str) -> Option<DateTime<Utc>> {
        let time = DateTime::parse_from_rfc3339(self.text(key)?.trim()).ok()?;
        Some(time.to_utc()).filter(|time| has_four_digits(*time))
    }
}

/// Whether JSON that was cut off may be the beginning of a lock file: its first key, as far as it
/// goes, is that of a format.
fn begins_like_one(text: &[u8]) -> bool {
    let keys = || {
        prodigy::KEYS
            .iter()
            .chain(memory::KEYS.iter())
            .map(|key| key.as_bytes())
    };
    let Some(inside) = text.trim_ascii_start().strip_prefix(b"{") else {
        return false;
    };
    let inside = inside.trim_ascii_start();
    let Some(key) = inside.strip_prefix(b"\"") else {
        return inside.is_empty();
    };
    match key.iter().position(|byte| *byte == b'"') {
        Some(end) => keys().any(|known| Some(known) == key.get(..end)),
        None => keys().any(|known| known.starts_with(key)),
    }
}

#[cfg(test)]
mod tests;
