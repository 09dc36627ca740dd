//! Files as the programs write them, and what is made of them.

use std::fmt::Write as _;

use super::*;
use crate::identity::{BootId, Origin, ProcessId};
use crate::record::{Job, Kind, NewRecord, Swap};

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
    read(text.as_ref(), false, modified()).0
}

#[track_caller]
fn record(text: impl AsRef<[u8]>) -> Record {
    match content(&text) {
        Content::Record(record) => *record,
        other => panic!("{}: {other:?}", String::from_utf8_lossy(text.as_ref())),
    }
}

#[test]
fn each_system_is_recognised_by_its_own_keys() {
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
        assert_eq!(record.pid.get(), 12345);
        assert_eq!((record.hold, record.kind), (0, Kind::Job));
        assert!(record.origin.is_none() && !record.is_ours());
    }
}

#[test]
fn what_their_own_readers_accept_is_accepted() {
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
fn a_time_that_cannot_be_read_is_that_of_the_file() {
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
fn a_pid_that_no_process_can_have_makes_a_broken_record() {
    for pid in ["0", "-1", "2147483648", "99999999999"] {
        for text in [PRODIGY, SPRINT, MEMORY, MEMORY_2] {
            let text = text.replace("12345,", &format!("{pid},"));
            let text = text.replace("pid: 12345", &format!("pid: {pid}"));
            assert_eq!(content(&text), Content::Corrupt, "{text}");
        }
    }
}

#[test]
fn half_a_file_is_broken_and_never_another_holder() {
    for whole in [PRODIGY, MEMORY, MEMORY_2] {
        for end in 0..whole.len() {
            let content = content(&whole[..end]);
            assert_eq!(content, Content::Corrupt, "{}", &whole[..end]);
        }
    }
    // Cut between two lines a mapping is whole, as far as YAML goes.
    for end in 0..SPRINT.len() {
        match content(&SPRINT[..end]) {
            Content::Record(record) => assert_eq!(record.pid.get(), 12345),
            Content::Corrupt | Content::NotALock(_) => {}
            other @ Content::UnknownVersion(_) => panic!("{other:?}"),
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
fn files_of_others_are_no_locks() {
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
        // What names no process is no lock, and its owner would miss it.
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
fn documents_that_grow_or_never_end_do_no_harm() {
    let mut bomb = "pid: 1\nsession_id: x\na: &a [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for key in b'b'..=b'z' {
        let (key, before) = (char::from(key), char::from(key - 1));
        let many = format!("*{before},").repeat(9);
        let _ = writeln!(bomb, "{key}: &{key} [{many}]");
    }
    assert_eq!(record(bomb).pid.get(), 1);
    for opening in ["[", "{a: ", "{\"a\":", "- ", "? "] {
        let deep = format!("pid: 1\nsession_id: {}", opening.repeat(10_000));
        assert!(!matches!(content(deep), Content::Record(_)), "{opening}");
    }
}

#[test]
fn a_bare_number_is_a_lock_only_where_one_is_expected() {
    for (text, pid) in [("12345\n", 12345), (" 12345 ", 12345), ("1", 1)] {
        let (content, _) = read(text.as_bytes(), true, modified());
        let Content::Record(record) = content else {
            panic!("{text}: {content:?}");
        };
        assert_eq!((record.pid.get(), record.format), (pid, Format::Pid));
        assert_eq!(record.acquired_at, modified());
        assert!(matches!(
            read(text.as_bytes(), false, modified()).0,
            Content::NotALock(_)
        ));
    }
    for text in ["0\n", "-1\n", "2147483648\n", "99999999999999999999\n", ""] {
        assert_eq!(read(text.as_bytes(), true, modified()).0, Content::Corrupt);
    }
    for text in ["12 34", "12345 sshd", "0x10", "+5"] {
        let content = read(text.as_bytes(), true, modified()).0;
        assert!(
            matches!(content, Content::NotALock(_)),
            "{text}: {content:?}"
        );
    }
}

/// A hold of ours with all that a record can say.
fn ours(format: Format) -> Record {
    let pid = |number| Pid::new(number).expect("a pid");
    let mut record = Record::new(
        1_795_175_591_766_853,
        NewRecord {
            name: "job-1".to_owned(),
            kind: Kind::Run,
            pid: pid(4242),
            hostname: Some("db1".to_owned()),
            acquired_at: time("2026-11-20T12:00:00.123456Z"),
            origin: Origin {
                start: Some(5000),
                boot: Some(BootId {
                    id: "c044abd8-84e6-457f-8b56-b81025dbbd51".to_owned(),
                    masked: true,
                }),
                pid_namespace: Some(4_026_531_836),
                acquired_boottime_ms: 99,
                store_device: 7,
                store_inode: 8,
            },
        },
    );
    record.format = format;
    record.shown_pid = Some(pid(777));
    record.owner = Some("runner \"7\": a=b, c\\d\n\u{202e}".to_owned());
    record.message = Some("Übung, 50 %".to_owned());
    record.command = vec!["sh".to_owned(), "-c".to_owned(), "a, b = \"c\"".to_owned()];
    record.ttl_ms = Some(30_000);
    record.expires_at = Some(time("2026-11-20T12:00:30.123456Z"));
    record.max_age_ms = Some(u64::MAX);
    record.close = true;
    record.exec = true;
    record.kernel_lock = true;
    record.swap = Some(Swap {
        name: ".onehold.0123456789abcdef".to_owned(),
        inode: u64::MAX,
        size: 1,
        modified_ns: 2,
        digest: u64::MAX,
    });
    record
}

fn complete(format: Format) -> Record {
    let mut record = ours(format);
    let process = |number| ProcessId {
        pid: Pid::new(number).expect("a pid"),
        start: Some(u64::MAX),
    };
    record.command_process = Some(process(i32::MAX.unsigned_abs()));
    record.job = Some(Job::Process(process(777)));
    record.sign_of_life = Some(SignOfLife {
        renewed_at: time("9999-12-31T23:59:59.999999Z"),
        renewed_boottime_ms: u64::MAX,
        renewed_boot_id: Some("c044abd8-84e6-457f-8b56-b81025dbbd51".to_owned()),
        ttl_ms: Some(u64::MAX),
    });
    record
}

const STAMPED: [Format; 3] = [Format::Prodigy, Format::Sprint, Format::Memory];

#[test]
fn a_hold_of_ours_says_the_same_in_every_format() {
    for format in STAMPED {
        for written in [ours(format), complete(format)] {
            let bytes = write(&written).expect("bytes");
            let mut expected = written.clone();
            if format == Format::Sprint {
                // It has no key for a host.
                expected.hostname = None;
            }
            assert_eq!(record(&bytes), expected);
        }
    }
}

#[test]
fn slots_are_filled_in_place() {
    for format in [
        Format::Native,
        Format::Prodigy,
        Format::Sprint,
        Format::Memory,
    ] {
        let mut bytes = write(&ours(format)).expect("bytes");
        let size = bytes.len() as u64;
        let filled = complete(format);
        for line in [Line::Command, Line::Job, Line::SignOfLife] {
            let slot = slot(&filled, line, size).expect("JSON").expect("a slot");
            let at = usize::try_from(slot.at).expect("small");
            assert!(is_slot(format, &bytes[at - 1..at + slot.bytes.len()]));
            bytes[at..at + slot.bytes.len()].copy_from_slice(&slot.bytes);
        }
        if format == Format::Memory {
            let life = filled.sign_of_life.as_ref().expect("a sign of life");
            let (at, times) = renewed_times(&bytes, life.renewed_at).expect("times");
            let at = usize::try_from(at).expect("small");
            bytes[at..at + times.len()].copy_from_slice(&times);
        }
        assert_eq!(
            String::from_utf8(bytes).expect("UTF-8"),
            String::from_utf8(write(&filled).expect("bytes")).expect("UTF-8"),
        );
    }
}

#[test]
fn what_is_written_is_what_the_old_programs_write_and_a_stamp() {
    let mut record = ours(Format::Prodigy);
    record.shown_pid = Pid::new(12345);
    record.name = "mapreduce-1234567890".to_owned();
    record.hostname = Some("my-laptop".to_owned());
    record.acquired_at = time("2025-01-11T10:30:00.405967Z");
    let text = |record: &Record| String::from_utf8(write(record).expect("bytes")).expect("UTF-8");
    let expected = PRODIGY.replace("967831Z\"\n}", "967Z\",\n  \"onehold\": \"v=1 ");
    assert!(text(&record).starts_with(&expected), "{}", text(&record));
    assert!(text(&record).ends_with(" \"\n}"));

    record.format = Format::Sprint;
    record.owner = Some("sprint-2026-02-07-001".to_owned());
    record.message = Some("epic5".to_owned());
    record.acquired_at = time("2026-02-07T22:30:00.987654Z");
    let expected = format!("{SPRINT}# onehold: v=1 ");
    assert!(text(&record).starts_with(&expected), "{}", text(&record));
    assert_eq!(text(&record).lines().count(), 6);

    record.format = Format::Memory;
    record.owner = Some("main".to_owned());
    record.message = Some("write:tasks.json".to_owned());
    record.hostname = Some("DESKTOP-O6IL62J".to_owned());
    record.acquired_at = time("2026-01-29T15:30:00.123456Z");
    record.hold = 0x0123_4567_89ab;
    let expected = MEMORY_2
        .replace("0123456789abcdef", "00000123456789ab")
        .replace("15:30:10", "15:30:00")
        .replace("json\"\n}", "json\",\n  \"onehold\": \"v=1 ");
    assert!(text(&record).starts_with(&expected), "{}", text(&record));

    record.format = Format::Pid;
    assert_eq!(text(&record), "12345\n");
}

#[test]
fn a_stamp_counts_only_in_the_record_it_was_made_for() {
    for format in STAMPED {
        let text = String::from_utf8(write(&complete(format)).expect("bytes")).expect("UTF-8");
        let anothers = text.replacen("777", "778", 1);
        let found = record(&anothers);
        assert_eq!((found.pid.get(), found.hold), (778, 0));
        assert!(found.origin.is_none());
        let later = text.replace("v=1 ", "v=2 ");
        assert_eq!(content(later), Content::UnknownVersion(2));
        for garbled in [
            text.replace("store=7:8", "store=7"),
            text.replace("kind=run", "kind=king"),
            text.replace("since=", "since=x"),
        ] {
            assert!(record(garbled).origin.is_none());
        }
    }
}

#[test]
fn formats_are_called_by_their_names() {
    for format in Format::ALL {
        assert_eq!(format.name().parse(), Ok(format));
    }
    assert!("Prodigy".parse::<Format>().is_err());
}
