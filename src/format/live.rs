//! The part of a record that changes while the lock is held: a slot of fixed width, so that it is
//! written in place by one write. A checksum shows whether a reader met a write halfway.

use serde_json::Error;

use crate::record::{Live, digest};

/// Bytes of the slot. The longest content is about 350 bytes.
pub(crate) const SLOT_BYTES: usize = 384;

const SUM_AT: usize = br#"{"sum":""#.len();
/// Start of the bytes that the sum covers: everything after it.
const SUMMED_FROM: usize = SUM_AT + 16;

const PID: &[u8] = br#"","pid":"#;
const PID_AT: usize = SUMMED_FROM + PID.len();
const START: &str = r#","start":"#;
/// Room for a PID, and for a start behind it.
const PROCESS_BYTES: usize = 10 + START.len() + 20;

/// The slot for `live`.
pub(crate) fn write(live: &Live) -> Result<Vec<u8>, Error> {
    let mut slot = serde_json::to_vec(live)?;
    if slot != b"{}" {
        slot.splice(..1, *br#"{"sum":"0000000000000000","#);
    }
    slot.resize(SLOT_BYTES, b' ');
    put_sum(&mut slot);
    Ok(slot)
}

/// A slot for `live` with room for the PID of a process that does not exist yet, to be filled by
/// [`fill`].
pub(crate) fn draft(live: &Live) -> Result<Vec<u8>, Error> {
    let rest = Live {
        pid: None,
        start: None,
        ..live.clone()
    };
    let object = serde_json::to_vec(&rest)?;
    let mut slot = [br#"{"sum":"0000000000000000"#.as_slice(), PID].concat();
    slot.resize(PID_AT + PROCESS_BYTES, b' ');
    match object.strip_prefix(b"{") {
        Some(b"}") | None => slot.push(b'}'),
        Some(keys) => {
            slot.push(b',');
            slot.extend_from_slice(keys);
        }
    }
    slot.resize(SLOT_BYTES, b' ');
    Ok(slot)
}

/// Puts a PID, and its start if it is known, into a [`draft`]. A child calls this before it
/// executes its command, so it does not allocate.
pub(crate) fn fill(slot: &mut [u8], pid: u32, start: Option<u64>) {
    let (mut pid_digits, mut start_digits) = (itoa::Buffer::new(), itoa::Buffer::new());
    let pid = pid_digits.format(pid);
    let (key, start) = start.map_or(("", ""), |start| (START, start_digits.format(start)));
    if let Some(room) = slot.get_mut(PID_AT..PID_AT + PROCESS_BYTES) {
        put(room, pid.bytes().chain(key.bytes()).chain(start.bytes()));
    }
    put_sum(slot);
}

/// Puts a PID where a foreign record shows it: a word of 8 bytes, blanks behind the digits.
pub(crate) fn fill_visible(word: &mut [u8], pid: u32, _start: Option<u64>) {
    let ends_line = word.last() == Some(&b'\n');
    put(word, itoa::Buffer::new().format(pid).bytes());
    if let Some(last) = word.last_mut().filter(|_| ends_line) {
        *last = b'\n';
    }
}

/// Puts a text into its place, and blanks behind it.
fn put(room: &mut [u8], text: impl Iterator<Item = u8>) {
    room.fill(b' ');
    for (place, byte) in room.iter_mut().zip(text) {
        *place = byte;
    }
}

/// Returns whether a slot begins at `at`, complete or partly written. Reformatted JSON has no blank
/// before the comma.
pub(super) fn is_slot(bytes: &[u8], at: usize) -> bool {
    let end = at + SLOT_BYTES;
    bytes.get(at) == Some(&b'{')
        && bytes.get(end - 1) == Some(&b' ')
        && bytes.get(end) == Some(&b',')
}

/// The text with `{}` in place of a slot: a torn slot is not always JSON, and its blanks take longer to
/// parse than all the rest.
pub(super) fn without_slot(text: &[u8], at: usize) -> Option<Vec<u8>> {
    let (before, rest) = text.split_at_checked(at)?;
    Some([before, b"{}", rest.get(SLOT_BYTES..)?].concat())
}

/// The content of a slot. It is torn if it was read while it was written, or is damaged.
pub(super) fn read(slot: &[u8]) -> Live {
    let torn = || Live {
        is_torn: true,
        ..Live::default()
    };
    let text = slot.trim_ascii_end();
    if text == b"{}" {
        return Live::default();
    }
    if slot.get(SUM_AT..SUMMED_FROM) != Some(&sum(slot)) {
        return torn();
    }
    match serde_json::from_slice::<Live>(text) {
        Ok(live) if live.has_valid_times() => live,
        _ => torn(),
    }
}

fn put_sum(slot: &mut [u8]) {
    // An empty slot has none.
    if !slot.starts_with(br#"{"sum":""#) {
        return;
    }
    let sum = sum(slot);
    if let Some(place) = slot.get_mut(SUM_AT..SUMMED_FROM) {
        place.copy_from_slice(&sum);
    }
}

fn sum(slot: &[u8]) -> [u8; 16] {
    let digest = digest(slot.get(SUMMED_FROM..).unwrap_or_default());
    let digits = digest.to_be_bytes().map(|byte| [byte >> 4, byte & 0xF]);
    let mut text = [b'0'; 16];
    for (place, digit) in text.iter_mut().zip(digits.as_flattened()) {
        *place = if *digit < 10 { b'0' } else { b'a' - 10 } + digit;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Pid;

    fn full() -> Live {
        Live {
            pid: Pid::new(i32::MAX.cast_unsigned()),
            start: Some(u64::MAX),
            renewed_at: Some("2026-11-21T20:40:13.123456Z".parse().unwrap()),
            renewed_boottime_ms: Some(u64::MAX),
            renewed_boot_id: Some("c044abd8-84e6-457f-8b56-b81025dbbd51".to_owned()),
            ttl_ms: Some(u64::MAX),
            expires_at: Some("9999-12-31T23:59:59.999999Z".parse().unwrap()),
            let_go: true,
            ending: Some(u64::MAX),
            told: true,
            released: true,
            // Only where there is no slot.
            broken_by: None,
            // With an end, the slot has room for nothing else but `expires_at`: see `kept`.
            ended: None,
            is_torn: false,
        }
    }

    /// Of a hold whose command has ended.
    fn kept() -> Live {
        let mut end = crate::record::CommandEnd::now(Some(i32::MIN), Some(i32::MIN));
        end.at = full().expires_at.unwrap();
        Live {
            ended: Some(end),
            expires_at: Some(end.at),
            released: true,
            ..Live::default()
        }
    }

    #[test]
    fn slot_has_room_for_the_longest_content() {
        for live in [full(), kept()] {
            let slot = write(&live).unwrap();
            assert_eq!(slot.len(), SLOT_BYTES);
            let used = slot.trim_ascii_end().len();
            assert!(used < SLOT_BYTES - 16, "{used} bytes");
            assert_eq!(read(&slot), live);
        }
    }

    #[test]
    fn sum_of_a_slot_is_the_same_in_every_version() {
        let live = Live {
            pid: Pid::new(7),
            ..Live::default()
        };
        let slot = write(&live).unwrap();
        let expected = br#"{"sum":"afbb056acf791890","pid":7}"#;
        assert_eq!(slot.trim_ascii_end(), expected);
    }

    #[test]
    fn slot_with_a_year_of_five_digits_is_torn() {
        let live = Live {
            expires_at: Some(chrono::DateTime::<chrono::Utc>::MAX_UTC),
            ..Live::default()
        };
        assert!(read(&write(&live).unwrap()).is_torn);
    }

    #[test]
    fn slot_without_content_is_an_empty_object() {
        let slot = write(&Live::default()).unwrap();
        assert_eq!(slot.trim_ascii_end(), b"{}");
        assert_eq!(slot.len(), SLOT_BYTES);
        assert_eq!(read(&slot), Live::default());
    }

    #[test]
    fn filled_draft_reads_like_a_written_slot() {
        for (pid, start) in [
            (1, None),
            (4_194_304, Some(161_973)),
            (u32::MAX / 2, Some(u64::MAX)),
        ] {
            let mut slot = draft(&full()).unwrap();
            assert_eq!(slot.len(), SLOT_BYTES);
            fill(&mut slot, pid, start);
            let expected = Live {
                pid: Pid::new(pid),
                start,
                ..full()
            };
            assert_eq!(read(&slot), expected);
            // A second process in the same draft leaves nothing of the first one.
            fill(&mut slot, 7, None);
            assert_eq!(read(&slot).pid, Pid::new(7));
            assert_eq!(read(&slot).start, None);
        }
    }

    #[test]
    fn every_mix_of_two_slots_is_torn_or_one_of_them() {
        let other = Live {
            pid: Pid::new(17_511),
            start: Some(161_973),
            ..Live::default()
        };
        let slots = [
            write(&full()).unwrap(),
            write(&other).unwrap(),
            write(&kept()).unwrap(),
            write(&Live::default()).unwrap(),
        ];
        for before in &slots {
            for after in &slots {
                for cut in 0..=SLOT_BYTES {
                    let mut mixed = after.clone();
                    mixed[cut..].copy_from_slice(&before[cut..]);
                    let found = read(&mixed);
                    assert!(
                        found.is_torn || found == read(before) || found == read(after),
                        "cut at {cut}"
                    );
                }
            }
        }
    }

    #[test]
    fn visible_pid_fills_its_word_and_keeps_the_line_end() {
        let mut word = *b"99     \n";
        fill_visible(&mut word, 4_194_304, None);
        assert_eq!(&word, b"4194304\n");
        let mut word = *b"4194304 ";
        fill_visible(&mut word, 17, None);
        assert_eq!(&word, b"17      ");
    }
}
