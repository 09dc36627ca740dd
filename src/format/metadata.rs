//! What onehold adds to a foreign record: the document of a native record on one line, with the same
//! slot, so that its own holds are judged by identity there as well.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde::de::IgnoredAny;
use serde_json::{Error, Value};

use super::live::{self, SLOT_BYTES};
use super::{Written, behind, native};
use crate::record::{Content, Record, VERSION};

/// The key of a JSON record that holds the document.
pub(super) const KEY: &str = "onehold";

const HEAD: &str = r#"{"onehold":1,"live":"#;

/// A write is not cut in two within a page.
const PAGE: usize = 4096;

/// Longest command line that is kept, in bytes: programs read these files into small buffers.
const MAX_COMMAND: usize = 512;

/// Completes a foreign record with the document of `record` and the `end` of its text. `visible_at`:
/// where it shows its PID.
pub(super) fn complete(
    mut text: String,
    record: &Record,
    end: &str,
    visible_at: usize,
) -> Result<Written, Error> {
    let mut record = record.clone();
    let mut left = MAX_COMMAND;
    let mut fits = |argument: &String| {
        left = left.saturating_sub(argument.len() + 3);
        left > 0
    };
    if let Some(program) = &mut record.program {
        program.command.retain(&mut fits);
    }
    record.command.retain(fits);
    text.push_str(HEAD);
    if text.len() / PAGE != (text.len() + SLOT_BYTES - 1) / PAGE {
        let blanks = PAGE - text.len() % PAGE;
        text.extend(std::iter::repeat_n(' ', blanks));
    }
    let slot_at = text.len();
    // `write` returns ASCII.
    text.push_str(&String::from_utf8_lossy(&live::write(&record.live)?));
    let body = serde_json::to_string(&record)?;
    let body = body.strip_prefix('{').unwrap_or(&body);
    text.push(',');
    // Some characters would end a YAML comment (YAML 1.2, 5.4).
    text.push_str(&escape_json(body, |char| {
        !char.is_ascii() || char == '\u{7f}'
    }));
    text.push_str(end);
    Ok(Written {
        bytes: text.into_bytes(),
        slot_at: Some(slot_at),
        visible_at: Some(visible_at),
    })
}

/// JSON with escapes in place of some characters.
pub fn escape_json(json: &str, is_escaped: impl Fn(char) -> bool) -> String {
    let mut escaped = String::with_capacity(json.len());
    for char in json.chars() {
        if is_escaped(char) {
            for unit in char.encode_utf16(&mut [0; 2]) {
                let _ = write!(escaped, "\\u{unit:04x}");
            }
        } else {
            escaped.push(char);
        }
    }
    escaped
}

/// Where the slot begins in a file of ours; `None` if it was edited.
pub(super) fn slot_at(bytes: &[u8]) -> Option<usize> {
    let found = behind(bytes, HEAD)?;
    let mut rest = bytes.get(found..)?.iter();
    let at = found + rest.position(|byte| *byte != b' ')?;
    live::is_slot(bytes, at).then_some(at)
}

/// The text of a file for a reader that does not know of the slot: without it, if it is torn.
pub(super) fn around_torn_slot(text: &str) -> Cow<'_, str> {
    let bytes = text.as_bytes();
    let around = slot_at(bytes)
        .filter(|at| live::read(bytes.get(*at..at + SLOT_BYTES).unwrap_or_default()).is_torn)
        .and_then(|at| live::without_slot(bytes, at))
        .and_then(|around| String::from_utf8(around).ok());
    around.map_or(Cow::Borrowed(text), Cow::Owned)
}

/// Completes a foreign record by the document in `text`: all of the file, or a line of it. `value`:
/// the same document as a JSON parser found it in the file. `None`: it belongs to another record, or cannot be read.
pub(super) fn read(text: &str, value: Option<&Value>, foreign: Record) -> Option<Content> {
    let content = match (text.find(HEAD), value) {
        (Some(start), _) => embedded(text.as_bytes().get(start..).unwrap_or_default()),
        // Printed again, or of another version.
        (None, Some(value)) => match value.get(KEY)?.as_u64()? {
            VERSION => native::document(value.to_string().as_bytes(), None),
            other => Content::UnknownVersion(other),
        },
        (None, None) => native::read(text.as_bytes()).unwrap_or(Content::Corrupt),
    };
    let mut record = match content {
        Content::Record(record) => record,
        unknown @ Content::UnknownVersion(_) => return Some(unknown),
        Content::Corrupt | Content::KernelLock | Content::NotALock(_) => return None,
    };
    // Another program that rewrites the file keeps what it does not know, this included. But it does
    // not tear a slot, which may have named the PID that is shown.
    let shown = foreign.taken_by;
    let is_shown = record.visible.or(record.taken_by) == shown
        || (shown.is_some() && record.live.pid == shown)
        || record.live.is_torn;
    if !is_shown {
        return None;
    }
    record.format = foreign.format;
    record.time_in_file = foreign.time_in_file;
    if record.name.is_empty() {
        record.name = foreign.name;
    }
    Some(Content::Record(record))
}

/// Reads the document that `text` begins with. A torn slot is not always JSON, so the end is looked for
/// without it.
fn embedded(text: &[u8]) -> Content {
    let slot_at = slot_at(text);
    let without_slot = slot_at.and_then(|at| live::without_slot(text, at));
    let json = without_slot.as_deref().unwrap_or(text);
    let mut values = serde_json::Deserializer::from_slice(json).into_iter::<IgnoredAny>();
    let document = match values.next() {
        Some(Ok(_)) => text.get(..values.byte_offset() + text.len() - json.len()),
        _ => None,
    };
    document.map_or(Content::Corrupt, |document| {
        native::document(document, slot_at)
    })
}
