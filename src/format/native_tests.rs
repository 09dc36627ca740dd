//! Native records as they are on disk.

use chrono::DateTime;
use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::format::{is_native, is_same_native_record};
use crate::identity::{BootId, Origin, Pid, ProcessId};
use crate::record::{Format, Kind, cut_command};

fn pid(number: u32) -> Pid {
    Pid::new(number).expect("a PID")
}

fn record() -> Record {
    let acquired_at = "2026-11-20T12:00:00.123456Z".parse().expect("a time");
    let mut record = Record::new(Format::Native, Some(pid(4242)), acquired_at);
    record.name = "backend/task-1".to_owned();
    record.hold = 1_795_175_591_766_853;
    record.kind = Kind::Run;
    record.hostname = Some("db1".to_owned());
    record.kernel_lock = true;
    record.owner = Some("runner \"7\"\n".to_owned());
    record.message = Some("Übung".to_owned());
    record.command = vec!["sh".to_owned(), "-c".to_owned(), "exit 7".to_owned()];
    record.origin = Some(Origin {
        start: Some(5000),
        boot: Some(BootId {
            id: "b".to_owned(),
            masked: false,
        }),
        machine: Some("m".to_owned()),
        pid_namespace: Some(4_026_531_836),
        incarnation: None,
        acquired_boottime_ms: 99,
        store_device: 7,
        store_inode: 8,
    });
    record
}

fn running() -> Record {
    let mut record = record();
    record.live.set_process(Some(ProcessId {
        pid: pid(4243),
        start: Some(5001),
    }));
    record
}

fn complete() -> Record {
    let mut record = running();
    record.live.renewed_at = Some("2026-11-20T13:00:00.123456Z".parse().expect("a time"));
    record.live.renewed_boottime_ms = Some(u64::MAX);
    record.live.renewed_boot_id = Some("c044abd8-84e6-457f-8b56-b81025dbbd51".to_owned());
    record.live.ttl_ms = Some(u64::MAX);
    record.live.expires_at = Some("9999-12-31T23:59:59.999999Z".parse().expect("a time"));
    record.live.let_go = true;
    record.live.ending = Some(u64::MAX);
    record.live.told = true;
    record
}

fn bytes(record: &Record) -> Vec<u8> {
    write(record).expect("JSON")
}

fn text(record: &Record) -> String {
    String::from_utf8(bytes(record)).expect("UTF-8")
}

fn read(bytes: &[u8]) -> Content {
    crate::format::read(bytes, false, DateTime::UNIX_EPOCH)
}

#[track_caller]
fn parsed(bytes: &[u8]) -> Record {
    match read(bytes) {
        Content::Record(record) => *record,
        other => panic!("{other:?}: {}", String::from_utf8_lossy(bytes)),
    }
}

fn torn(mut record: Record) -> Record {
    record.live = Live {
        is_torn: true,
        ..Live::default()
    };
    record
}

#[test]
fn record_reads_as_it_was_written() {
    for record in [record(), running(), complete()] {
        assert_eq!(parsed(&bytes(&record)), record);
    }
}

#[test]
fn record_is_one_json_document_with_its_slot_in_a_fixed_place() {
    for record in [record(), running(), complete()] {
        let bytes = bytes(&record);
        assert!(bytes.starts_with(b"{\n  \"onehold\": 1,\n  \"live\": {"));
        assert_eq!((SLOT_AT, SLOT_BYTES), (28, 384));
        assert_eq!(slot_at(&bytes), Some(28));
        assert!(bytes[412..].starts_with(b",\n  \"name\": \"backend/task-1\""));
        assert!(bytes.ends_with(b"\n}\n"));
        let document: Value = serde_json::from_slice(&bytes).expect("JSON");
        assert_eq!(document["onehold"], 1);
        assert_eq!(document["hold"], record.hold);
        assert_eq!(document["taken_by"], 4242);
        assert_eq!(document["pid"], Value::Null, "no PID outside the slot");
        assert_eq!(document["expires_at"], Value::Null);
    }
}

#[test]
fn native_record_is_the_same_if_only_its_slot_has_changed() {
    let [before, after] = [record(), complete()].map(|record| bytes(&record));
    assert!(is_same_native_record(&before, &after));
    let mut renamed = record();
    renamed.name = "x".to_owned();
    assert!(!is_same_native_record(&before, &bytes(&renamed)));
    let mut later = record();
    later.hold += 1;
    assert!(!is_same_native_record(&before, &bytes(&later)));
    assert!(is_native(&before) && is_native(b"{\"onehold\": 2}"));
    assert!(!is_native(b"{\"pid\": 2}"));
}

#[test]
fn first_pid_in_the_document_is_the_live_one() {
    let text = text(&running());
    let after = text.split("\"pid\":").nth(1).expect("a PID");
    assert!(after.trim_start().starts_with("4243"));
}

#[test]
fn keys_are_as_documented_and_in_order() {
    let mut record = complete();
    record.ttl_ms = Some(1);
    record.max_age_ms = Some(2);
    record.close = true;
    record.exec = true;
    let text = text(&record);
    let keys = [
        "onehold",
        "live",
        "sum",
        "pid",
        "start",
        "renewed_at",
        "renewed_boottime_ms",
        "renewed_boot_id",
        "ttl_ms",
        "expires_at",
        "let_go",
        "ending",
        "told",
        "name",
        "hold",
        "kind",
        "taken_by",
        "hostname",
        "acquired_at",
        "owner",
        "message",
        "command",
        "ttl_ms",
        "max_age_ms",
        "close",
        "exec",
        "kernel_lock",
        "origin",
        "start",
        "boot",
        "id",
        "masked",
        "machine",
        "pid_namespace",
        "acquired_boottime_ms",
        "store_device",
        "store_inode",
    ];
    let mut rest = text.as_str();
    for key in keys {
        let quoted = format!("\"{key}\":");
        let at = rest
            .find(&quoted)
            .unwrap_or_else(|| panic!("{key}: {rest}"));
        assert!(
            !rest[..at].contains("\":"),
            "another key before {key}: {}",
            &rest[..at]
        );
        rest = &rest[at + quoted.len()..];
    }
    assert!(!rest.contains("\":"), "{rest}");
    for (kind, written) in [
        (Kind::Run, "run"),
        (Kind::Process, "job"),
        (Kind::Lease, "lease"),
    ] {
        record.kind = kind;
        let document: Value = serde_json::from_slice(&bytes(&record)).expect("JSON");
        assert_eq!(document["kind"], written);
    }
}

#[test]
fn every_prefix_is_damaged_or_not_a_lock_but_never_a_record() {
    for whole in [bytes(&record()), bytes(&complete())] {
        // The newline behind the document is not part of it.
        for end in 0..whole.len() - 1 {
            match read(&whole[..end]) {
                Content::Corrupt | Content::NotALock(_) => {}
                other => panic!("{end} bytes: {other:?}"),
            }
        }
    }
}

#[test]
fn prefix_followed_by_nuls_is_damaged_and_whole_record_followed_by_nuls_is_not() {
    let whole = bytes(&complete());
    for end in 0..whole.len() - 1 {
        let mut zeroed = whole.clone();
        zeroed[end..].fill(0);
        match read(&zeroed) {
            Content::Corrupt | Content::NotALock(_) => {}
            other => panic!("{end} bytes: {other:?}"),
        }
    }
    let mut padded = whole.clone();
    padded.resize(4096, 0);
    assert_eq!(parsed(&padded), complete());
}

#[test]
fn every_damaged_byte_of_the_slot_is_noticed() {
    for record in [record(), running(), complete()] {
        let whole = bytes(&record);
        for at in SLOT_AT..SLOT_AT + SLOT_BYTES {
            for byte in [
                0, b' ', b'"', b'0', b'7', b'a', b'{', b'}', b',', b'\n', 0xFF,
            ] {
                let mut damaged = whole.clone();
                damaged[at] = byte;
                match read(&damaged) {
                    Content::Corrupt => {}
                    Content::Record(found) => {
                        let is_noticed = *found == torn(record.clone());
                        assert!(is_noticed || *found == record, "{byte} at {at}: {found:?}");
                    }
                    other => panic!("{byte} at {at}: {other:?}"),
                }
            }
        }
    }
}

#[test]
fn every_mix_of_two_slots_is_noticed_or_one_of_them() {
    let other = {
        let mut record = record();
        record.live.set_process(Some(ProcessId {
            pid: pid(99),
            start: None,
        }));
        record
    };
    let records = [record(), running(), complete(), other];
    for (from, before) in records.iter().enumerate() {
        for after in &records[from + 1..] {
            let (old, new) = (bytes(before), bytes(after));
            let is_one_of_them = |mixed: &[u8]| {
                let found = parsed(mixed);
                found == *before || found == *after || found == torn(before.clone())
            };
            for cut in SLOT_AT..=SLOT_AT + SLOT_BYTES {
                let mut mixed = old.clone();
                mixed[cut..].copy_from_slice(&new[cut..]);
                assert!(is_one_of_them(&mixed), "new from {cut}");
                let mut mixed = new.clone();
                mixed[cut..].copy_from_slice(&old[cut..]);
                assert!(is_one_of_them(&mixed), "old from {cut}");
            }
        }
    }
}

#[test]
fn torn_slot_leaves_the_rest_of_the_record_readable() {
    let mut bytes = bytes(&running());
    bytes[SLOT_AT + 40..SLOT_AT + 60].fill(b'{');
    assert_eq!(parsed(&bytes), torn(running()));
    assert_eq!(slot_at(&bytes), Some(SLOT_AT), "it can be written again");
}

/// The same document as other programs write it.
fn rewritten(record: &Record) -> Vec<String> {
    let document: Value = serde_json::from_slice(&bytes(record)).expect("JSON");
    let pretty = serde_json::to_string_pretty(&document).expect("JSON");
    // `serde_json::Value` sorts its keys; a person would leave ours in front.
    let reordered = pretty.replacen("  \"onehold\": 1,\n", "", 1);
    let reordered = reordered.replacen('{', "{\n  \"onehold\": 1,", 1);
    let compact = serde_json::to_string(&document).expect("JSON");
    let compact = compact
        .replacen("\"onehold\":1,", "", 1)
        .replacen('{', "{\"onehold\":1,", 1);
    let tabs = reordered.replace("  ", "\t");
    vec![reordered, compact, tabs]
}

/// As `jq .` prints it: our order, two blanks.
fn printed_by_jq(record: &Record) -> String {
    let text = text(record);
    let slot: Value =
        serde_json::from_str(text[SLOT_AT..SLOT_AT + SLOT_BYTES].trim()).expect("JSON");
    let live = serde_json::to_string_pretty(&slot)
        .expect("JSON")
        .replace('\n', "\n  ");
    format!(
        "{}{live}{}",
        &text[..SLOT_AT],
        &text[SLOT_AT + SLOT_BYTES..]
    )
}

#[test]
fn record_edited_by_hand_is_read_and_has_no_slot() {
    for record in [record(), running(), complete()] {
        let mut edited = rewritten(&record);
        edited.push(printed_by_jq(&record));
        for text in edited {
            assert_eq!(parsed(text.as_bytes()), record, "{text}");
            assert_eq!(slot_at(text.as_bytes()), None, "{text}");
        }
    }
    let text = text(&record());
    let slotless = format!("{{\n  \"onehold\": 1{}", &text[SLOT_AT + SLOT_BYTES..]);
    assert_eq!(parsed(slotless.as_bytes()), record());
    assert_eq!(slot_at(slotless.as_bytes()), None);
}

#[test]
fn record_printed_by_jq_never_seems_to_have_a_slot() {
    // Some length puts a comma where one follows the slot.
    for length in 0..500 {
        for mut record in [record(), complete()] {
            record.name = "n".repeat(length);
            let text = printed_by_jq(&record);
            assert_eq!(slot_at(text.as_bytes()), None, "{text}");
            assert_eq!(parsed(text.as_bytes()), record);
        }
    }
}

#[test]
fn content_of_file_tells_records_from_damaged_and_unknown_files() {
    let deep = format!(r#"{{"onehold": 1, "x": {}"#, "[".repeat(50_000));
    let deep_live = format!(
        r#"{{"onehold": 1, "live": {}{}}}"#,
        r#"{"a":"#.repeat(9_000),
        "}".repeat(9_000)
    );
    let with = |key: &str, value: &str| {
        let text = text(&record());
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("  \"{key}\"")))
            .expect(key);
        text.replace(line, &format!("  \"{key}\": {value},"))
            .into_bytes()
    };
    let corrupt: Vec<Vec<u8>> = vec![
        b"".to_vec(),
        vec![0; 4096],
        b"{\"onehold\"".to_vec(),
        b"{\"onehold\": 1".to_vec(),
        b"{\"onehold\": 1}".to_vec(),
        b"{\"onehold\": \"1\"}".to_vec(),
        b"{\"onehold\": -1}".to_vec(),
        b"{\"onehold\": 1.5}".to_vec(),
        deep.into_bytes(),
        deep_live.into_bytes(),
        with("hold", "0"),
        with("hold", "9007199254740993"),
        with("hold", "18446744073709551615"),
        with("acquired_at", "\"yesterday\""),
        with("acquired_at", "\"+262142-12-31T23:59:59Z\""),
        with("acquired_at", "\"-0001-12-31T23:59:59Z\""),
        with("acquired_at", "\"2026-11-20T12:00:00\""),
        with("name", "7"),
        with("kind", "\"king\""),
        with("hostname", "\"a\", \"hostname\": \"b\""),
    ];
    for bytes in corrupt {
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
        assert_eq!(read(&bytes), Content::Corrupt, "{text}");
    }
    // A number that is not a process ID proves nothing, and damages nothing.
    for number in ["0", "-1", "2147483648", "null"] {
        let content = read(&with("taken_by", number));
        let read = content.record().map(|record| record.taken_by);
        assert_eq!(read, Some(None), "{number}");
    }
    for (text, version) in [
        ("{\"onehold\": 2}", 2),
        ("  {\n\t\"onehold\" : 17, this need not be JSON", 17),
        ("{\"onehold\": 0}", 0),
    ] {
        assert_eq!(read(text.as_bytes()), Content::UnknownVersion(version));
    }
    for text in [
        "4711\n",
        "{}",
        "{\"version\": 3}",
        "[[package]]",
        "a: 1\n",
        " ",
        "\u{feff}{}",
        "{\"onehold",
    ] {
        let content = read(text.as_bytes());
        assert!(
            matches!(content, Content::NotALock(_)),
            "{text}: {content:?}"
        );
    }
}

#[test]
fn later_version_is_unknown_also_in_our_layout() {
    let text = text(&running()).replacen("\"onehold\": 1", "\"onehold\": 2", 1);
    assert_eq!(read(text.as_bytes()), Content::UnknownVersion(2));
}

#[test]
fn unknown_keys_of_a_later_writer_are_ignored() {
    let text = text(&record());
    let text = text.replacen("  \"name\"", "  \"novelty\": [1, {}],\n  \"name\"", 1);
    assert_eq!(parsed(text.as_bytes()), record());
}

#[test]
fn unknown_keys_in_the_slot_are_ignored() {
    let edited = printed_by_jq(&running()).replacen("\"pid\"", "\"novelty\": 1,\n    \"pid\"", 1);
    assert_eq!(parsed(edited.as_bytes()), running());
}

#[test]
fn largest_hold_number_and_last_year_are_read() {
    let text = text(&record());
    let text = text.replace("2026-11-20T12:00:00.123456Z", "9999-12-31T23:59:59Z");
    let text = text.replace("1795175591766853", "9007199254740992");
    let found = parsed(text.as_bytes());
    assert_eq!(found.hold, MAX_HOLD);
    assert_eq!(found.acquired_at.to_rfc3339(), "9999-12-31T23:59:59+00:00");
}

#[test]
fn long_command_line_is_cut_between_characters() {
    let cut = cut_command(vec!["x".repeat(4000), "é".repeat(4000), "never".to_owned()]);
    assert_eq!(cut.len(), 2);
    assert!(cut.iter().map(String::len).sum::<usize>() <= 4 * 1024);
    for endless in ["", "\u{1}", "\\", "x"] {
        let cut = cut_command(vec![endless.to_owned(); 100_000]);
        let mut record = record();
        record.command = cut;
        assert!(bytes(&record).len() < 8 * 1024, "{endless:?}");
    }
    assert!(cut[1].ends_with("é…"));
    let short = vec!["a".to_owned(), String::new()];
    assert_eq!(cut_command(short.clone()), short);
}

proptest! {
    #[test]
    fn texts_of_any_kind_are_read_as_they_were_written(
        owner in ".{0,40}",
        message in ".{0,40}",
        command in proptest::collection::vec(".{0,20}", 0..4),
    ) {
        let mut record = running();
        record.owner = Some(owner);
        record.message = Some(message);
        record.command = command;
        prop_assert_eq!(parsed(&bytes(&record)), record);
    }
}
