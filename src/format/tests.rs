//! Lock files as the programs write them, and as they are read.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::live::SLOT_BYTES;
use super::*;
use crate::identity::{BootId, Origin, ProcessId};
use crate::record::{Kind, TakeoverInfo, cut_command};

const PRODIGY: &str = r#"{
  "job_id": "mapreduce-1234567890",
  "process_id": 12345,
  "hostname": "my-laptop",
  "acquired_at": "2025-01-11T10:30:00.405967831Z"
}"#;

const SPRINT: &str = r#"pid: 12345
session_id: "sprint-2026-02-07-001"
started_at: "2026-02-07T22:30:00Z"
epic_spec: "epic5"
lock_version: 1
"#;

const MEMORY: &str = r#"{
  "pid": 12345,
  "session_id": "main",
  "acquired_at": "2026-01-29T15:30:00.123456+00:00",
  "hostname": "DESKTOP-O6IL62J",
  "operation": "write:tasks.json"
}"#;

const MEMORY_2: &str = r#"{
  "pid": 12345,
  "session_id": "main",
  "token": "0123456789abcdef",
  "acquired_at": "2026-01-29T15:30:00.123456+00:00",
  "heartbeat_at": "2026-01-29T15:30:10.123456+00:00",
  "hostname": "DESKTOP-O6IL62J",
  "operation": "write:tasks.json"
}"#;

fn time(text: &str) -> DateTime<Utc> {
    text.parse().expect("a time")
}

fn modified() -> DateTime<Utc> {
    time("2026-03-01T00:00:00Z")
}

fn content(text: impl AsRef<[u8]>) -> Content {
    read(text.as_ref(), false, modified())
}

/// What a text says, but for how it writes its time.
#[track_caller]
fn record(text: impl AsRef<[u8]>) -> Record {
    match content(&text) {
        Content::Record(record) => Record {
            time_in_file: None,
            ..*record
        },
        other => panic!("{}: {other:?}", String::from_utf8_lossy(text.as_ref())),
    }
}

#[test]
fn time_in_a_file_is_its_text_and_that_of_a_new_record_is_as_it_will_be_written() {
    let of_text = |text: &str| match content(text) {
        Content::Record(record) => time_in_file(&record),
        other => panic!("{text}: {other:?}"),
    };
    let power_shell = MEMORY.replace("123456+00:00", "1234567Z");
    let spaced = SPRINT.replace("T22", " 22");
    for (text, expected) in [
        (PRODIGY, "2025-01-11T10:30:00.405967831Z"),
        (SPRINT, "2026-02-07T22:30:00Z"),
        (&spaced, "2026-02-07 22:30:00Z"),
        (MEMORY, "2026-01-29T15:30:00.123456+00:00"),
        (MEMORY_2, "2026-01-29T15:30:00.123456+00:00"),
        (&power_shell, "2026-01-29T15:30:00.1234567Z"),
        // No time: that of the file.
        (
            &SPRINT.replace("2026-02-07T22:30:00Z", "today"),
            "2026-03-01T00:00:00Z",
        ),
    ] {
        assert_eq!(of_text(text), expected, "{text}");
    }
    for format in [Format::Prodigy, Format::Sprint, Format::Memory] {
        let new = running(format);
        let written = String::from_utf8(write(&new).unwrap().bytes).unwrap();
        assert_eq!(of_text(&written), time_in_file(&new), "{written}");
    }
}

#[test]
fn each_format_is_recognized_by_its_own_keys() {
    let prodigy = record(PRODIGY);
    assert_eq!(prodigy.format, Format::Prodigy);
    assert_eq!(prodigy.name, "mapreduce-1234567890");
    assert_eq!(prodigy.hostname.as_deref(), Some("my-laptop"));
    assert_eq!(prodigy.acquired_at, time("2025-01-11T10:30:00.405967831Z"));

    let sprint = record(SPRINT);
    assert_eq!(sprint.format, Format::Sprint);
    assert_eq!(sprint.owner.as_deref(), Some("sprint-2026-02-07-001"));
    assert_eq!(sprint.message.as_deref(), Some("epic5"));
    assert_eq!(sprint.acquired_at, time("2026-02-07T22:30:00Z"));
    assert_eq!(sprint.hostname, None);

    let memory = record(MEMORY);
    assert_eq!(memory.format, Format::Memory);
    assert_eq!(memory.owner.as_deref(), Some("main"));
    assert_eq!(memory.message.as_deref(), Some("write:tasks.json"));
    assert_eq!(memory.renewed_at(), time("2026-01-29T15:30:00.123456Z"));
    let second = record(MEMORY_2);
    assert_eq!(second.renewed_at(), time("2026-01-29T15:30:10.123456Z"));

    for record in [prodigy, sprint, memory, second] {
        assert_eq!(record.taken_by, Pid::new(12345));
        assert_eq!((record.hold, record.kind), (0, Kind::Process));
        assert!(record.origin.is_none() && !record.is_ours());
    }
}

#[test]
fn text_that_the_original_programs_accept_is_accepted() {
    let same_sprint = [
        // Another order, comments, a time that is not quoted, another kind of quotes.
        "# by hand\nlock_version: 1 # one\nepic_spec: epic5\nstarted_at: 2026-02-07T22:30:00Z\n\
         session_id: 'sprint-2026-02-07-001'\npid: 12345",
        "---\npid: \"12345\"\nsession_id: sprint-2026-02-07-001\nstarted_at: 2026-02-07 22:30:00Z\n\
         epic_spec: epic5\nextra: {a: [1, {b: c}]}\nmore:\n  - 1\n",
        r#"{"pid": 12345, "session_id": "sprint-2026-02-07-001", "started_at": "2026-02-07T22:30:00Z", "epic_spec": "epic5", "lock_version": 1}"#,
        "{pid: 12345, session_id: sprint-2026-02-07-001, started_at: '2026-02-07T22:30:00Z', epic_spec: epic5}",
        "pid: 1\npid: 12345\nsession_id: sprint-2026-02-07-001\nstarted_at: 2026-02-07T22:30:00Z\nepic_spec: epic5\n",
    ];
    let crlf = SPRINT.replace('\n', "\r\n");
    let bom = format!("\u{feff}{SPRINT}");
    for text in same_sprint.into_iter().chain([&*crlf, &*bom]) {
        assert_eq!(record(text), record(SPRINT), "{text}");
    }
    let power_shell = "\u{feff}{\r\n    \"operation\":  \"write:tasks.json\",\r\n    \
        \"hostname\":  null,\r\n    \"acquired_at\":  \"2026-01-29T15:30:00.1234567Z\",\r\n    \
        \"session_id\":  \"unknown\",\r\n    \"pid\":  12345\r\n}\r\n";
    let found = record(power_shell);
    assert_eq!((found.hostname, found.owner), (None, None));
    assert_eq!(found.acquired_at, time("2026-01-29T15:30:00.1234567Z"));
    let prodigy = PRODIGY
        .replace("10:30:00.405967831Z", "12:30:00+02:00")
        .replace("{\n", "{\n  \"novelty\": {\"a\": 1},\n");
    assert_eq!(record(prodigy).acquired_at, time("2025-01-11T10:30:00Z"));
}

#[test]
fn null_and_what_stands_elsewhere_in_a_mapping_are_no_text() {
    for (session, owner) in [
        ("null", None),
        ("~", None),
        ("\"null\"", Some("null")),
        ("[a, b]", None),
        ("*version", None),
        ("\"\"", None),
    ] {
        let text =
            format!("lock_version: &version 1\npid: 7\nsession_id: {session}\nepic_spec: e\n");
        let found = record(&text);
        assert_eq!(
            (found.owner.as_deref(), found.message.as_deref()),
            (owner, Some("e")),
            "{text}"
        );
    }
}

#[test]
fn unreadable_time_is_replaced_by_that_of_the_file() {
    for text in [
        PRODIGY.replace("2025-01-11T10:30:00.405967831Z", "2025-01-11T10:30:00"),
        SPRINT.replace("2026-02-07T22:30:00Z", "yesterday"),
        MEMORY.replace(
            "2026-01-29T15:30:00.123456+00:00",
            "+262142-01-01T00:00:00Z",
        ),
        "pid: 7\nsession_id: x\n".to_owned(),
    ] {
        assert_eq!(record(&text).acquired_at, modified(), "{text}");
    }
}

#[test]
fn pid_that_no_process_can_have_is_a_record_without_process() {
    for pid in ["0", "-1", "2147483648", "99999999999"] {
        for text in [PRODIGY, SPRINT, MEMORY, MEMORY_2] {
            let text = text.replace("12345,", &format!("{pid},"));
            let text = text.replace("pid: 12345", &format!("pid: {pid}"));
            assert_eq!(record(&text).taken_by, None, "{text}");
        }
    }
}

#[test]
fn truncated_file_is_damaged_and_never_names_another_holder() {
    for whole in [PRODIGY, MEMORY, MEMORY_2] {
        for end in 0..whole.len() {
            let content = content(&whole[..end]);
            assert_eq!(content, Content::Corrupt, "{}", &whole[..end]);
        }
    }
    // Cut between two lines a mapping is whole, as far as YAML goes.
    for end in 0..SPRINT.len() {
        match content(&SPRINT[..end]) {
            Content::Record(record) => assert_eq!(record.taken_by, Pid::new(12345)),
            Content::Corrupt | Content::NotALock(_) => {}
            other @ (Content::UnknownVersion(_) | Content::KernelLock) => panic!("{other:?}"),
        }
    }
    for end in (6..SPRINT.len()).filter(|end| !SPRINT[..*end].ends_with('\n')) {
        let cut = &SPRINT[..end];
        let whole_as_far_as_it_goes = end >= SPRINT.find("session_id:").unwrap() + 11;
        match content(cut) {
            Content::Corrupt => {}
            Content::Record(_) if whole_as_far_as_it_goes => {}
            other => panic!("{cut}: {other:?}"),
        }
        let commented = format!("# by hand\n---\n{cut}");
        assert!(!matches!(content(commented), Content::NotALock(_)), "{cut}");
    }
    let mut zeroed = PRODIGY.as_bytes().to_vec();
    zeroed[60..].fill(0);
    assert_eq!(content(&zeroed), Content::Corrupt);
}

#[test]
fn file_cut_within_a_character_is_a_lock_only_if_its_record_is_whole() {
    let cut = |text: &str| [text.as_bytes(), b"\xC3"].concat();
    assert_eq!(record(cut(&format!("{SPRINT}# caf"))), record(SPRINT));
    assert_eq!(content(cut("pid: 7\nsession_id: \"caf")), Content::Corrupt);
    let prodigy = PRODIGY.replacen('{', "{\"novelty\": 1,", 1);
    assert_eq!(record(&prodigy).format, Format::Prodigy);
    assert_eq!(content(cut(&prodigy)), Content::NotALock(UNKNOWN));
    let not_cut = [SPRINT.as_bytes(), b"# \xC3 caf"].concat();
    assert_eq!(content(not_cut), Content::NotALock(UNKNOWN), "not UTF-8");
}

#[test]
fn unknown_files_are_not_locks() {
    for text in [
        "12345\n",
        "hello",
        "{}",
        "[1, 2]",
        "{\"pid\": 1}",
        "{\"pid\": 1, \"name\": \"x\"}",
        "{\"hostname\": \"x\"}\n{\"hostname\": \"y\"}\n",
        "{\"process_id\": 1, \"hostname\": \"a\", \"acquired_at\": \"2025-01-11T10:30:00Z\"}",
        "{\"name\": \"torn",
        "pid: 12345\n",
        "pid: sshd",
        // It names no process, so it is not a lock file, and its owner would miss it.
        "{\"pid\": null, \"session_id\": \"abc\", \"cart\": [\"shoe\"]}",
        "{\"pid\": 500.0, \"session_id\": \"abc\"}",
        "pid: [4242, 4243]\nsession_id: abc\n",
        "pid: 0x1f4\nsession_id: abc\n",
        "pid: 4242 started: ok\nsession_id: x: y\n",
        "pid: 1\nname: x\n---\npid: 2\n",
        "p",
        "session_id: x\nstarted_at: 2026-02-07T22:30:00Z\n",
        "- pid: 1\n  session_id: x\n",
        "version: 3\nservices: [a, b]\n",
        "pid=1\nsession_id=2\n",
        "pid_file: /run/x\nsession_ids: [}\n",
        "\u{1}\u{2}",
    ] {
        let content = content(text);
        assert!(
            matches!(content, Content::NotALock(_)),
            "{text}: {content:?}"
        );
    }
    assert!(matches!(content(b"\xFF\xFE{\0}\0"), Content::NotALock(_)));
    assert!(matches!(
        content(b"{\"pid\": \"\xFF\"}"),
        Content::NotALock(_)
    ));
}

#[test]
fn nested_and_endless_documents_are_rejected() {
    let mut bomb = "pid: 1\nsession_id: x\na: &a [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for key in b'b'..=b'z' {
        let (key, before) = (char::from(key), char::from(key - 1));
        let many = format!("*{before},").repeat(9);
        let _ = writeln!(bomb, "{key}: &{key} [{many}]");
    }
    assert_eq!(record(bomb).taken_by, Pid::new(1));
    for opening in ["[", "{a: ", "{\"a\":", "- ", "? "] {
        let deep = format!("pid: 1\nsession_id: {}", opening.repeat(10_000));
        assert!(!matches!(content(deep), Content::Record(_)), "{opening}");
    }
}

#[test]
fn bare_number_is_a_lock_only_where_one_is_expected() {
    for (text, pid) in [("12345\n", 12345), (" 12345 ", 12345), ("1", 1)] {
        let content = read(text.as_bytes(), true, modified());
        let Content::Record(record) = content else {
            panic!("{text}: {content:?}");
        };
        assert_eq!(
            (record.taken_by, record.format),
            (Pid::new(pid), Format::Pid)
        );
        assert_eq!(record.acquired_at, modified());
        assert!(matches!(
            read(text.as_bytes(), false, modified()),
            Content::NotALock(_)
        ));
    }
    for text in ["0\n", "-1\n", "2147483648\n", "99999999999999999999\n"] {
        let content = read(text.as_bytes(), true, modified());
        let expected = Record::new(Format::Pid, None, modified());
        assert_eq!(content, Content::Record(Box::new(expected)), "{text}");
    }
    assert_eq!(read(b"", true, modified()), Content::Corrupt);
    for text in ["12 34", "12345 sshd", "0x10", "+5"] {
        let content = read(text.as_bytes(), true, modified());
        assert!(
            matches!(content, Content::NotALock(_)),
            "{text}: {content:?}"
        );
    }
}

fn pid(number: u32) -> Pid {
    Pid::new(number).expect("a PID")
}

/// A hold of ours with all that a record can say.
fn ours(format: Format) -> Record {
    let mut record = Record::new(format, Some(pid(4242)), time("2026-11-20T12:00:00.123456Z"));
    record.name = "job-1".to_owned();
    record.hold = 1_795_175_591_766_853;
    record.kind = Kind::Run;
    record.hostname = Some("db1".to_owned());
    record.visible = Some(pid(777));
    record.owner = Some("runner \"7\": a=b, c\\d\n\u{202e}".to_owned());
    record.message = Some("Übung, 50 %".to_owned());
    record.command = vec!["sh".to_owned(), "-c".to_owned(), "a, b = \"c\"".to_owned()];
    record.ttl_ms = Some(30_000);
    record.max_age_ms = Some(u64::MAX);
    record.close = true;
    record.exec = true;
    record.kernel_lock = true;
    record.caller = Some(ProcessId {
        pid: pid(7),
        start: None,
    });
    record.takeover = Some(TakeoverInfo {
        name: ".onehold.0123456789abcdef".to_owned(),
        inode: u64::MAX,
        size: 1,
        modified_ns: 2,
        digest: u64::MAX,
    });
    record.origin = Some(Origin {
        start: Some(5000),
        boot: Some(BootId {
            id: "c044abd8-84e6-457f-8b56-b81025dbbd51".to_owned(),
            masked: true,
        }),
        machine: Some("6b5f1f3f4f2a9c10".to_owned()),
        pid_namespace: Some(4_026_531_836),
        incarnation: None,
        acquired_boottime_ms: 99,
        store_device: 7,
        store_inode: 8,
    });
    record
}

fn running(format: Format) -> Record {
    let mut record = ours(format);
    record.live.set_process(Some(ProcessId {
        pid: pid(4_194_303),
        start: Some(u64::MAX),
    }));
    record
}

fn complete(format: Format) -> Record {
    let mut record = running(format);
    record.live.renewed_at = Some(time("9999-12-31T23:59:59.999999Z"));
    record.live.renewed_boottime_ms = Some(u64::MAX);
    record.live.renewed_boot_id = Some("c044abd8-84e6-457f-8b56-b81025dbbd51".to_owned());
    record.live.ttl_ms = Some(u64::MAX);
    record.live.expires_at = Some(time("9999-12-31T23:59:59.999999Z"));
    record.live.let_go = true;
    record.live.ending = Some(u64::MAX);
    record
}

const WITH_METADATA: [Format; 3] = [Format::Prodigy, Format::Sprint, Format::Memory];

fn written(record: &Record) -> Written {
    write(record).expect("bytes")
}

fn text_of(record: &Record) -> String {
    String::from_utf8(written(record).bytes).expect("UTF-8")
}

/// What a reader of the format finds: sprint has no key for a host, but its metadata has.
#[test]
fn record_of_ours_says_the_same_in_every_format() {
    for format in WITH_METADATA {
        for expected in [ours(format), running(format), complete(format)] {
            assert_eq!(record(written(&expected).bytes), expected, "{format}");
        }
    }
}

#[test]
fn slot_and_visible_pid_are_filled_in_place() {
    for format in [
        Format::Native,
        Format::Prodigy,
        Format::Sprint,
        Format::Memory,
        Format::Pid,
    ] {
        let Written {
            mut bytes,
            slot_at: slot,
            visible_at,
        } = written(&ours(format));
        assert_eq!(slot_at(format, &bytes), slot);
        let filled = complete(format);
        if let Some(at) = slot {
            let live = live::write(&filled.live).expect("JSON");
            bytes[at..at + SLOT_BYTES].copy_from_slice(&live);
        }
        if let Some(at) = visible_at {
            assert_eq!(at % VISIBLE_BYTES, 0, "{format}");
            live::fill_visible(&mut bytes[at..at + VISIBLE_BYTES], 4_194_303, None);
        }
        if format == Format::Memory {
            let renewed = filled.live.renewed_at.expect("a heartbeat");
            let (at, times) = renewed_times(&bytes, renewed).expect("times");
            let at = usize::try_from(at).expect("small");
            bytes[at..at + times.len()].copy_from_slice(&times);
        }
        assert_eq!(
            String::from_utf8(bytes).expect("UTF-8"),
            text_of(&filled),
            "{format}"
        );
    }
}

#[test]
fn metadata_is_in_ascii_and_keeps_a_command_of_less_than_512_bytes() {
    let mut expected = ours(Format::Sprint);
    expected.message = Some("\u{7f} \u{85} é 🔒".to_owned());
    expected.command = vec!["x".repeat(508)];
    let text = text_of(&expected);
    let line = text.lines().last().expect("metadata");
    assert!(
        line.bytes().all(|byte| (b' '..=b'~').contains(&byte)),
        "{line}"
    );
    assert_eq!(record(&text), expected);
    expected.command = vec!["x".repeat(509), "y".to_owned()];
    assert_eq!(record(text_of(&expected)).command, [""; 0]);
}

#[test]
fn files_are_those_of_the_original_programs_with_metadata_added() {
    let without_padding = |record: &Record| {
        let text = text_of(record);
        let at = written(record).visible_at.expect("a PID");
        let before = text[..at].trim_end_matches(' ').to_owned();
        let (number, after) = text[at..].split_at(VISIBLE_BYTES);
        format!("{before} {}{after}", number.trim_end_matches(' '))
    };
    let mut record = ours(Format::Prodigy);
    record.visible = Pid::new(12345);
    record.name = "mapreduce-1234567890".to_owned();
    record.hostname = Some("my-laptop".to_owned());
    record.acquired_at = time("2025-01-11T10:30:00.405967Z");
    let expected = PRODIGY.replace("967831Z\"\n}", "967Z\",\n  \"onehold\": {\"onehold\":1,");
    let text = without_padding(&record);
    assert!(text.starts_with(&expected), "{text}");
    assert!(text.ends_with("}\n}"), "{text}");

    record.format = Format::Sprint;
    record.owner = Some("sprint-2026-02-07-001".to_owned());
    record.message = Some("epic5".to_owned());
    record.acquired_at = time("2026-02-07T22:30:00.987654Z");
    let expected = format!("{SPRINT}# onehold: {{\"onehold\":1,");
    let text = without_padding(&record);
    assert!(text.starts_with(&expected), "{text}");
    assert_eq!(text.lines().count(), 6);

    record.format = Format::Memory;
    record.owner = Some("main".to_owned());
    record.message = Some("write:tasks.json".to_owned());
    record.hostname = Some("DESKTOP-O6IL62J".to_owned());
    record.acquired_at = time("2026-01-29T15:30:00.123456Z");
    record.hold = 0x0123_4567_89ab;
    let expected = MEMORY_2
        .replace("0123456789abcdef", "00000123456789ab")
        .replace("15:30:10", "15:30:00")
        .replace("json\"\n}", "json\",\n  \"onehold\": {\"onehold\":1,");
    let text = without_padding(&record);
    assert!(text.starts_with(&expected), "{text}");

    record.format = Format::Pid;
    let width = VISIBLE_BYTES - 1;
    assert_eq!(text_of(&record), format!("{:<width$}\n", 12345));
}

#[test]
fn original_programs_read_the_pid_that_keeps_the_hold_alive() {
    for (expected, live) in [(777, false), (4_194_303, true)] {
        let record = |format| if live { running(format) } else { ours(format) };
        for (format, key) in [(Format::Prodigy, "process_id"), (Format::Memory, "pid")] {
            let text = text_of(&record(format));
            let document: Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(document[key], expected, "{text}");
            assert_eq!(document["onehold"]["onehold"], 1);
            let live = document["onehold"]["live"]["pid"].as_u64();
            assert_eq!(live, (expected != 777).then_some(u64::from(expected)));
        }
        let sprint = text_of(&record(Format::Sprint));
        let number: u32 = sprint
            .lines()
            .find_map(|line| line.strip_prefix("pid:"))
            .and_then(|value| value.trim().parse().ok())
            .expect("a PID");
        assert_eq!(number, expected);
        let fields = sprint::fields(&sprint).expect("YAML");
        assert_eq!(fields.text("pid"), Some(expected.to_string()));
        let number: u32 = text_of(&record(Format::Pid)).trim().parse().expect("a PID");
        assert_eq!(number, expected);
    }
}

#[test]
fn metadata_counts_only_in_the_record_that_it_was_written_for() {
    for format in WITH_METADATA {
        let shown = |text: &str, pid: &str| {
            let at = written(&running(format)).visible_at.expect("a PID");
            format!("{}{pid:<8}{}", &text[..at], &text[at + 8..])
        };
        let text = text_of(&running(format));
        assert_eq!(record(&text), running(format));
        let first = record(shown(&text, "777"));
        assert_eq!(first, running(format), "the PID shown at first");
        let other = record(shown(&text, "778"));
        assert_eq!((other.taken_by, other.hold), (Pid::new(778), 0));
        assert!(other.origin.is_none() && !other.is_ours());
        let none = record(shown(&text, "0"));
        assert_eq!((none.taken_by, none.hold), (None, 0));
        let later = text.replace("{\"onehold\":1", "{\"onehold\":2");
        assert_eq!(content(later), Content::UnknownVersion(2));
        for garbled in [
            text.replace("\"store_inode\":8", "\"store_inode\":-8"),
            text.replace("\"kind\":\"run\"", "\"kind\":\"king\""),
            text.replace("\"hold\":1795175591766853", "\"hold\":0"),
        ] {
            assert_ne!(garbled, text);
            assert!(record(garbled).origin.is_none());
        }
    }
}

#[test]
fn torn_slot_in_a_foreign_record_is_noticed() {
    for format in WITH_METADATA {
        for written_record in [ours(format), running(format)] {
            let Written {
                mut bytes,
                slot_at: slot,
                ..
            } = written(&written_record);
            let at = slot.expect("a slot");
            bytes[at + 9] ^= 1;
            bytes[at + 30..at + 60].copy_from_slice(b"0123456789, 0123456789, 012345");
            let found = record(&bytes);
            assert!(found.live.is_torn, "{format}: {found:?}");
            assert_eq!(
                (found.hold, found.taken_by),
                (written_record.hold, Some(pid(4242)))
            );
            assert_eq!(slot_at(format, &bytes), slot);
        }
    }
}

#[test]
fn every_mix_of_two_slots_in_a_foreign_record_is_noticed_or_one_of_them() {
    for format in WITH_METADATA {
        let (before, after) = (ours(format), running(format));
        let Written {
            bytes,
            slot_at: slot,
            ..
        } = written(&before);
        let at = slot.expect("a slot");
        let new = live::write(&after.live).expect("JSON");
        for cut in 0..=SLOT_BYTES {
            let mut mixed = bytes.clone();
            mixed[at..at + cut].copy_from_slice(&new[..cut]);
            let found = record(&mixed);
            let is_one = found.live == before.live || found.live == after.live;
            assert!(found.live.is_torn || is_one, "{format}: {cut}");
            assert_eq!(found.hold, before.hold, "{format}: {cut}");
        }
    }
}

#[test]
fn foreign_record_printed_again_is_read_and_has_no_slot() {
    for format in [Format::Prodigy, Format::Memory] {
        for length in 0..500 {
            let mut expected = running(format);
            expected.name = "n".repeat(length);
            let text = text_of(&expected);
            let document: Value = serde_json::from_str(&text).expect("JSON");
            let live = document["onehold"]["live"].to_string();
            let at = written(&expected).slot_at.expect("a slot");
            let compact = format!("{}{live}{}", &text[..at], &text[at + SLOT_BYTES..]);
            assert_eq!(slot_at(format, compact.as_bytes()), None, "{compact}");
            assert_eq!(record(&compact), expected);
            let pretty = serde_json::to_string_pretty(&document).expect("JSON");
            assert_eq!(slot_at(format, pretty.as_bytes()), None, "{pretty}");
            assert_eq!(record(&pretty), expected);
            let later = pretty.replace("\"onehold\": 1", "\"onehold\": 2");
            assert_eq!(content(&later), Content::UnknownVersion(2), "{later}");
        }
    }
}

#[test]
fn every_prefix_of_a_foreign_record_is_damaged_or_names_the_same_process() {
    let first_line = "pid: ".len().next_multiple_of(VISIBLE_BYTES) + VISIBLE_BYTES + 1;
    for format in WITH_METADATA {
        let bytes = written(&running(format)).bytes;
        for end in 0..bytes.len() - 1 {
            match content(&bytes[..end]) {
                Content::Corrupt => {}
                // Between two lines, a YAML mapping is whole.
                Content::Record(found) if format == Format::Sprint => {
                    let is_ours = found.hold == running(format).hold;
                    let shown = if is_ours { 4242 } else { 4_194_303 };
                    assert_eq!(found.taken_by, Some(pid(shown)), "{end} bytes");
                }
                Content::NotALock(_) if format == Format::Sprint && end <= first_line => {}
                other => panic!("{format}, {end} bytes: {other:?}"),
            }
        }
    }
}

#[test]
fn format_is_parsed_from_its_name() {
    for format in Format::ALL {
        assert_eq!(format.name().parse(), Ok(format));
    }
    assert!("Prodigy".parse::<Format>().is_err());
}

/// Reads, and fails if that takes longer than reading anything of this size should.
fn read_in_time(bytes: &[u8]) -> Content {
    let begin = Instant::now();
    let content = read(bytes, false, modified());
    let _ = read(bytes, true, modified());
    let took = begin.elapsed();
    // Generous: an unoptimized build on a busy machine.
    assert!(
        took < Duration::from_secs(20),
        "{took:?}: {}",
        String::from_utf8_lossy(&bytes[..bytes.len().min(60)])
    );
    content
}

#[test]
fn adversarial_files_are_read_in_bounded_time() {
    const SIZE: usize = 64 * 1024;
    let parts = [
        r#"{"onehold":1,"live":"#,
        r#"{"onehold":1,"live":{"#,
        r#"{"onehold":1,"live":{},"#,
        r#"{"onehold":1,"#,
        r#"{"onehold":"#,
        r#"{"pid":1,"session_id":"x","acquired_at":"y","onehold":"#,
        "# onehold: {\"onehold\":1,\"live\":\n",
        "{",
        "[",
        "\"",
        "\\",
        "{\"",
        "[{",
        ",",
        " ",
        "\n",
        "0",
        "-",
        "- ",
        "? ",
        ": ",
        "a: ",
        "a: [",
        "{a: ",
        "pid: 1\n",
        "pid: 1\nsession_id: x\n",
        "&a ",
        "*a ",
        "!a ",
        "%a ",
        "---\n",
        "...\n",
        "|\n ",
        "> ",
        "'",
        "\u{feff}",
        "\u{e9}",
        "a",
        "\t",
        "#",
        "# ",
    ];
    for before in [
        "",
        "pid: 1\nsession_id: x\n",
        "{\"onehold\":1,\"live\":",
        "pid: 1\nsession_id: x\n# onehold: ",
    ] {
        for part in parts {
            let count = (SIZE - before.len()) / part.len();
            let text = format!("{before}{}", part.repeat(count));
            read_in_time(text.as_bytes());
        }
    }
}

fn any_foreign() -> impl Strategy<Value = Record> {
    let format = prop_oneof![
        Just(Format::Prodigy),
        Just(Format::Sprint),
        Just(Format::Memory)
    ];
    let text = |most| prop_oneof![3 => 0..most, 1 => Just(0)];
    let lengths = (text(1024_usize), text(1024), text(200), text(4200), 0..3_u8);
    (format, lengths).prop_map(|(format, (owner, message, name, command, letter))| {
        let letter = ["x", "\u{1}", "é"][usize::from(letter)];
        let some = |length: usize| (length > 0).then(|| letter.repeat(length / letter.len()));
        let mut record = complete(format);
        record.owner = some(owner);
        record.message = some(message);
        record.name = format!("n{}", "n".repeat(name));
        record.command = cut_command(vec![letter.repeat(command / letter.len()); 2]);
        record
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn slot_of_a_foreign_record_lies_within_a_page(record in any_foreign()) {
        let Written { bytes, slot_at: slot, visible_at } = written(&record);
        let (slot, visible) = (slot.expect("a slot"), visible_at.expect("a PID"));
        prop_assert_eq!(slot / 4096, (slot + SLOT_BYTES - 1) / 4096);
        prop_assert_eq!(slot_at(record.format, &bytes), Some(slot));
        prop_assert_eq!(visible % 8, 0);
        let word = format!("{:<VISIBLE_BYTES$}", 4_194_303);
        prop_assert_eq!(&bytes[visible..visible + VISIBLE_BYTES], word.as_bytes());
        prop_assert!(bytes.len() < 64 * 1024);
        let found = read(&bytes, false, modified());
        let found = found.record().expect("a record");
        prop_assert_eq!(&found.live, &record.live);
        prop_assert_eq!(found.hold, record.hold);
        prop_assert_eq!(&found.owner, &record.owner);
        prop_assert_eq!(&found.message, &record.message);
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
        read_in_time(&bytes);
    }

    #[test]
    fn any_text_of_structure_is_read_without_panic(
        parts in proptest::collection::vec(prop_oneof![
            Just("{"), Just("}"), Just("["), Just("]"), Just("\""), Just("\\"), Just(","), Just(":"),
            Just("\"onehold\":1"), Just("\"live\":"), Just("{\"onehold\":1,\"live\":"),
            Just("{}"), Just("\"pid\":1"), Just("pid: 1\n"), Just("session_id: x\n"), Just("# onehold: "),
            Just("\"process_id\":1"), Just("\n"), Just(" "), Just("é"), Just("\0"), Just("- "),
        ], 0..60),
    ) {
        read_in_time(parts.concat().as_bytes());
    }

    #[test]
    fn damaged_record_is_read_without_panic(
        format in prop_oneof![Just(Format::Native), Just(Format::Prodigy), Just(Format::Sprint), Just(Format::Memory)],
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        end in any::<prop::sample::Index>(),
        cuts in any::<bool>(),
    ) {
        let mut bytes = written(&complete(format)).bytes;
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if cuts {
            bytes.truncate(end.index(bytes.len()));
        }
        read_in_time(&bytes);
    }
}

#[test]
fn host_and_session_that_are_unknown_count_as_none() {
    let time = "2026-11-20T02:00:07Z";
    let prodigy = format!(
        "{{\"job_id\": \"x\", \"process_id\": 7, \"hostname\": \"unknown\", \"acquired_at\": \"{time}\"}}"
    );
    let memory = format!(
        "{{\"pid\": 7, \"session_id\": \"unknown\", \"hostname\": \"unknown\", \"acquired_at\": \"{time}\"}}"
    );
    for text in [prodigy, memory] {
        let content = read(text.as_bytes(), false, Utc::now());
        let record = content.record().expect(&text).clone();
        assert_eq!((record.hostname, record.owner), (None, None), "{text}");
    }
}

/// A slot in one page is written and read at once.
#[test]
fn slot_of_a_foreign_record_lies_in_one_page_and_moves_no_further_than_that() {
    const PAGE: usize = 4096;
    let mut moved = 0;
    for length in (PAGE - 1000..PAGE + 100).chain(2 * PAGE - 1000..2 * PAGE + 100) {
        let before = "x".repeat(length);
        let record = ours(Format::Memory);
        let written = metadata::complete(before, &record, "}", 0).expect("JSON");
        let at = written.slot_at.expect("a slot");
        let text = String::from_utf8(written.bytes).expect("UTF-8");
        let natural = text.find("\"live\":").expect("its key") + "\"live\":".len();
        assert_eq!(at / PAGE, (at + SLOT_BYTES - 1) / PAGE, "{length}");
        let fits = natural / PAGE == (natural + SLOT_BYTES - 1) / PAGE;
        let expected = if fits {
            natural
        } else {
            natural.next_multiple_of(PAGE)
        };
        assert_eq!(at, expected, "{length}");
        moved += usize::from(!fits);
    }
    assert_eq!(moved, 2 * (SLOT_BYTES - 1));
}

#[test]
fn text_around_a_slot_that_is_whole_is_all_of_it() {
    for format in WITH_METADATA {
        let text = text_of(&ours(format));
        assert_eq!(metadata::around_torn_slot(&text), text);
    }
}
