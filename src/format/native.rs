//! The native format: one JSON document, whose slot for [`Live`] stands at a fixed place in the first
//! page of the file, so that a write of it is never cut in two.

use serde_json::Error;

use super::live::{self, SLOT_BYTES};
use crate::record::{Content, Kind, Live, MAX_HOLD, Record, VERSION, has_four_digits};

/// The beginning of every native record, up to its slot.
const HEAD: &[u8] = b"{\n  \"onehold\": 1,\n  \"live\": ";

/// Where the slot of a native record begins.
pub(super) const SLOT_AT: usize = HEAD.len();

/// The whole file of a record.
pub(super) fn write(record: &Record) -> Result<Vec<u8>, Error> {
    let body = serde_json::to_vec_pretty(record)?;
    let body = body.strip_prefix(b"{").unwrap_or(&body);
    let slot = live::write(&record.live)?;
    Ok([HEAD, &slot, b",", body, b"\n"].concat())
}

/// The document of a record without blanks, and without places in a file.
#[cfg(feature = "cluster")]
pub(crate) fn write_compact(record: &Record) -> Result<Vec<u8>, Error> {
    let body = serde_json::to_vec(record)?;
    let body = body.strip_prefix(b"{").unwrap_or(&body);
    let head = format!("{{\"onehold\":{VERSION},\"live\":");
    let live = serde_json::to_vec(&record.live)?;
    Ok([head.as_bytes(), &live, b",", body].concat())
}

/// Where the slot begins; `None` if the record was edited by hand and has none.
pub(super) fn slot_at(bytes: &[u8]) -> Option<usize> {
    (bytes.starts_with(HEAD) && live::is_slot(bytes, SLOT_AT)).then_some(SLOT_AT)
}

/// The text before and after the slot.
pub(super) fn around_slot(bytes: &[u8]) -> (&[u8], &[u8]) {
    let at = slot_at(bytes).unwrap_or(bytes.len());
    let (before, after) = bytes.split_at_checked(at).unwrap_or((bytes, &[]));
    (before, after.get(SLOT_BYTES..).unwrap_or_default())
}

/// Reads a native lock file; `None` if it is something else. What cannot be read is reported in
/// the content, never as an error.
pub(crate) fn read(bytes: &[u8]) -> Option<Content> {
    let after_key = after_our_key(bytes)?;
    Some(match leading_number(after_key) {
        Some(VERSION) => document(bytes, slot_at(bytes)),
        Some(other) => Content::UnknownVersion(other),
        None => Content::Corrupt,
    })
}

/// Reads a document of ours, in a file of its own or in a foreign record. `slot_at`: where its slot
/// begins; `None` if the text was edited, and `live` is an object like any other.
pub(super) fn document(document: &[u8], slot_at: Option<usize>) -> Content {
    let slot = slot_at.and_then(|at| document.get(at..at + SLOT_BYTES));
    let Some(live) = slot.map_or_else(|| edited_live(document), |slot| Some(live::read(slot)))
    else {
        return Content::Corrupt;
    };
    let around = slot_at.and_then(|at| live::without_slot(document, at));
    let Ok(mut record) = serde_json::from_slice::<Record>(around.as_deref().unwrap_or(document))
    else {
        return Content::Corrupt;
    };
    if !(1..=MAX_HOLD).contains(&record.hold) || !has_four_digits(record.acquired_at) {
        return Content::Corrupt;
    }
    record.live = live;
    if record.is_kept() {
        // Only the slot has been written since it was a `run`.
        record.kind = Kind::Lease;
        record.kernel_lock = false;
    }
    Content::Record(Box::new(record))
}

fn edited_live(document: &[u8]) -> Option<Live> {
    #[derive(serde::Deserialize)]
    struct Edited {
        #[serde(default)]
        live: Live,
    }
    let edited = serde_json::from_slice::<Edited>(document).ok()?;
    edited.live.has_valid_times().then_some(edited.live)
}

/// The text after `{"onehold":`, with any white space between; `None` if it begins otherwise.
fn after_our_key(bytes: &[u8]) -> Option<&[u8]> {
    let inside = bytes.trim_ascii_start().strip_prefix(b"{")?;
    let after_name = inside.trim_ascii_start().strip_prefix(br#""onehold""#)?;
    let colon = after_name.trim_ascii_start();
    Some(colon.strip_prefix(b":").unwrap_or_default())
}

/// Read without a JSON parser, so that a later version need not even be JSON behind its number.
fn leading_number(bytes: &[u8]) -> Option<u64> {
    let bytes = bytes.trim_ascii_start();
    let end = bytes.iter().position(|byte| !byte.is_ascii_digit())?;
    let digits = bytes.get(..end)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
#[path = "native_tests.rs"]
mod tests;
