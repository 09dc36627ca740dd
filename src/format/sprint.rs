//! The sprint mutex: five lines of YAML. Any YAML mapping with its keys is accepted.

use std::fmt::Write as _;

use chrono::{DateTime, SecondsFormat, Utc};
use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Value};

use super::{Fields, Written, append_visible, metadata, rfc3339_utc};
use crate::record::{Format, Record};

pub(super) const KEYS: [&str; 5] = [
    "pid",
    "session_id",
    "started_at",
    "epic_spec",
    "lock_version",
];

/// A comment, because the programs of this format may reject a key that they do not know.
const METADATA_LINE: &str = "# onehold: ";

pub(super) fn matches(fields: &Fields) -> bool {
    fields.has("pid") && (fields.has("session_id") || fields.has("lock_version"))
}

/// `None`: it has no process ID.
pub(super) fn read(fields: &Fields, modified: DateTime<Utc>) -> Option<Record> {
    let pid = fields.pid("pid")?.ok();
    let acquired_at = fields.time("started_at").unwrap_or(modified);
    let owner = fields.text("session_id");
    Some(Record {
        owner: owner.filter(|session| !session.is_empty()),
        message: fields.text("epic_spec"),
        time_in_file: fields.time_as_written("started_at"),
        ..Record::new(Format::Sprint, pid, acquired_at)
    })
}

/// The text of what onehold has added.
pub(super) fn metadata(text: &str) -> Option<&str> {
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix(METADATA_LINE))
}

pub(super) fn write(record: &Record) -> Result<Written, serde_json::Error> {
    // A JSON string is a double-quoted YAML string (YAML 1.2, 1.1 "relation to JSON").
    let quoted = |text: Option<&str>| serde_json::to_string(text.unwrap_or_default());
    let session = quoted(record.owner.as_deref())?;
    let epic = quoted(record.message.as_deref())?;
    let started = rfc3339_utc(record.acquired_at, SecondsFormat::Secs);
    let mut text = String::from("pid: ");
    let visible_at = append_visible(&mut text, record.visible_pid());
    let _ = write!(
        text,
        "\nsession_id: {session}\nstarted_at: \"{started}\"\nepic_spec: {epic}\nlock_version: 1\n{METADATA_LINE}"
    );
    metadata::complete(text, record, "\n", visible_at)
}

/// Whether a text is the beginning of what a program of this format writes: whole lines with its
/// keys, a numeric `pid` among them, and then an incomplete line.
pub(super) fn is_truncated(text: &str) -> bool {
    let mut lines: Vec<&str> = text
        .split('\n')
        .skip_while(|line| line.starts_with('#') || line.trim_end() == "---")
        .collect();
    let last = lines.pop().unwrap_or_default();
    let known = |line: &str| KEYS.iter().any(|key| value_of(line, key).is_some());
    let names_a_process = |line: &str| {
        value_of(line, "pid").is_some_and(|value| {
            let digits = value.trim();
            !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    if lines.is_empty() {
        return names_a_process(last);
    }
    let begins = !last.is_empty() && (known(last) || KEYS.iter().any(|key| key.starts_with(last)));
    begins && lines.iter().all(|line| known(line)) && lines.iter().any(|line| names_a_process(line))
}

fn value_of<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.strip_prefix(key)?.trim_start().strip_prefix(':')
}

/// The scalars of a YAML mapping, without what is nested in it. `None`: not a mapping, or not
/// readable.
pub(super) fn fields(text: &str) -> Option<Fields> {
    // Without this key it is not one.
    if !text.contains("pid") {
        return Some(Fields(Map::new()));
    }
    // Aliases are not followed, so that nothing grows.
    let mut events = Parser::new_from_str(text);
    let mut next = || events.next_event()?.ok().map(|(event, _)| event);
    loop {
        match next()? {
            Event::Nothing | Event::StreamStart | Event::DocumentStart(_) => {}
            Event::MappingStart(..) => break,
            _ => return None,
        }
    }
    let mut fields = Map::new();
    let mut key = None;
    let mut depth = 0_usize;
    loop {
        let value = match next()? {
            Event::MappingEnd if depth == 0 => break,
            Event::MappingStart(..) | Event::SequenceStart(..) => {
                depth += 1;
                continue;
            }
            Event::MappingEnd | Event::SequenceEnd => {
                depth = depth.saturating_sub(1);
                None
            }
            Event::Scalar(text, style, ..) => {
                let is_null = style == ScalarStyle::Plain
                    && matches!(&*text, "" | "~" | "null" | "Null" | "NULL");
                (!is_null).then(|| text.into_owned())
            }
            Event::Alias(_) => None,
            _ => continue,
        };
        if depth > 0 {
            continue;
        }
        match key.take() {
            None => key = Some(value),
            Some(Some(key)) => {
                fields.insert(key, value.map_or(Value::Null, Value::String));
            }
            Some(None) => {}
        }
    }
    // Incomplete, or followed by something else: its program did not write that.
    loop {
        match next()? {
            Event::StreamEnd => return Some(Fields(fields)),
            Event::DocumentEnd | Event::Nothing => {}
            _ => return None,
        }
    }
}
