use super::*;
use crate::identity::BootId;

fn record() -> Record {
    let mut record = Record::new(
        1_795_175_591_766_853,
        NewRecord {
            name: "backend/task-1".to_owned(),
            kind: Kind::Run,
            pid: Pid::new(4242).expect("a pid"),
            hostname: Some("db1".to_owned()),
            acquired_at: "2026-11-20T12:00:00.123456Z".parse().expect("a time"),
            origin: Origin {
                start: Some(5000),
                boot: Some(BootId {
                    id: "b".to_owned(),
                    masked: false,
                }),
                pid_namespace: Some(4_026_531_836),
                acquired_boottime_ms: 99,
                store_device: 7,
                store_inode: 8,
            },
        },
    );
    record.owner = Some("runner \"7\"\n".to_owned());
    record.message = Some("Übung".to_owned());
    record.command = vec!["sh".to_owned(), "-c".to_owned(), "exit 7".to_owned()];
    record
}

fn bytes(record: &Record) -> Vec<u8> {
    record.to_bytes().expect("JSON")
}

fn read(bytes: &[u8]) -> (Content, bool) {
    crate::format::read(bytes, false, DateTime::UNIX_EPOCH)
}

#[track_caller]
fn parsed(bytes: &[u8]) -> Record {
    match read(bytes).0 {
        Content::Record(record) => *record,
        other => panic!("{other:?}"),
    }
}

fn complete() -> Record {
    let mut record = record();
    record.command_process = Some(ProcessId {
        pid: Pid::new(4243).expect("a pid"),
        start: Some(5001),
    });
    record.job = Some(Job::Lease);
    record.sign_of_life = Some(SignOfLife {
        renewed_at: "2026-11-20T13:00:00.123456Z".parse().expect("a time"),
        renewed_boottime_ms: u64::MAX,
        renewed_boot_id: Some("c044abd8-84e6-457f-8b56-b81025dbbd51".to_owned()),
        ttl_ms: Some(u64::MAX),
    });
    record
}

#[test]
fn a_record_says_the_same_after_writing_and_reading() {
    assert_eq!(parsed(&bytes(&record())), record());
    assert_eq!(parsed(&bytes(&complete())), complete());
}

#[test]
fn a_record_begins_with_its_version_and_ends_with_three_lines_of_one_width() {
    let bytes = bytes(&complete());
    assert!(bytes.starts_with(b"{\n  \"onehold\": 1,\n"));
    let size = bytes.len() as u64;
    for line in [Line::Command, Line::Job, Line::SignOfLife] {
        let at = usize::try_from(line.offset(size)).expect("small");
        assert_eq!(bytes[at - 1], b'\n');
        assert_eq!(
            bytes[at..at + LINE_WIDTH],
            complete().line(line).expect("JSON")
        );
        assert_eq!(
            bytes[at..at + LINE_WIDTH]
                .iter()
                .filter(|byte| **byte == b'\n')
                .count(),
            1
        );
    }
    assert_eq!(Line::SignOfLife.offset(size) + LINE_WIDTH as u64, size);
}

#[test]
fn a_line_caught_while_it_is_written_is_reported_and_ignored() {
    let mut bytes = bytes(&record());
    let at = usize::try_from(Line::Command.offset(bytes.len() as u64)).expect("small");
    bytes[at..at + 14].copy_from_slice(br#"{"command_pid""#);
    let (content, torn) = read(&bytes);
    assert!(torn);
    assert_eq!(content, Content::Record(Box::new(record())));
}

#[test]
fn every_prefix_of_a_record_is_broken_or_no_lock_but_never_another_record() {
    let whole = bytes(&record());
    let object_ends = usize::try_from(Line::Command.offset(whole.len() as u64)).expect("small");
    for end in 0..object_ends - 1 {
        match read(&whole[..end]).0 {
            Content::Corrupt | Content::NotALock(_) => {}
            other => panic!("{end} bytes: {other:?}"),
        }
    }
}

#[test]
fn what_the_bytes_of_a_file_are() {
    let deep = format!(r#"{{"onehold": 1, "x": {}"#, "[".repeat(50_000));
    let with = |key: &str, value: &str| {
        let text = String::from_utf8(bytes(&record())).expect("UTF-8");
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with(&format!("\"{key}\"")))
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
        with("pid", "0"),
        with("pid", "-1"),
        with("pid", "2147483648"),
        with("hold", "0"),
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
        assert_eq!(read(&bytes), (Content::Corrupt, false), "{text}");
    }
    for (text, version) in [
        ("{\"onehold\": 2}", 2),
        ("  {\n\t\"onehold\" : 17, this need not be JSON", 17),
        ("{\"onehold\": 0}", 0),
    ] {
        assert_eq!(read(text.as_bytes()).0, Content::UnknownVersion(version));
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
        let content = read(text.as_bytes()).0;
        assert!(
            matches!(content, Content::NotALock(_)),
            "{text}: {content:?}"
        );
    }
}

#[test]
fn keys_that_a_later_writer_adds_are_passed_over() {
    let text = String::from_utf8(bytes(&record())).expect("UTF-8");
    let text = text.replacen("  \"name\"", "  \"novelty\": [1, {}],\n  \"name\"", 1);
    assert_eq!(parsed(text.as_bytes()), record());
}

#[test]
fn a_year_far_away_is_a_time_like_any_other() {
    let text = String::from_utf8(bytes(&record())).expect("UTF-8");
    let text = text.replace("2026-11-20T12:00:00.123456Z", "9999-12-31T23:59:59Z");
    assert_eq!(
        parsed(text.as_bytes()).acquired_at.to_rfc3339(),
        "9999-12-31T23:59:59+00:00"
    );
}

#[test]
fn a_long_command_line_is_cut_between_characters() {
    let cut = cut_command(vec!["x".repeat(4000), "é".repeat(4000), "never".to_owned()]);
    assert_eq!(cut.len(), 2);
    assert!(cut.iter().map(String::len).sum::<usize>() <= MAX_COMMAND_BYTES);
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

#[test]
fn the_line_written_without_allocating_is_the_one_a_reader_expects() {
    for pid in [1, 10, 4_194_304, i32::MAX.unsigned_abs()] {
        let mut line = native_command_slot(1000);
        line.fill(pid, None);
        let text = std::str::from_utf8(&line.slot.bytes).expect("ASCII");
        let value: serde_json::Value = serde_json::from_str(text).expect("JSON");
        assert_eq!(value, serde_json::json!({ "command_pid": pid }));
        assert!(text.ends_with(" \n"));
        for start in [0, 7, u64::MAX] {
            let mut line = native_command_slot(1000);
            line.fill(pid, Some(start));
            let value: serde_json::Value = serde_json::from_slice(&line.slot.bytes).expect("JSON");
            let expected = serde_json::json!({ "command_pid": pid, "command_start": start });
            assert_eq!(value, expected);
        }
    }
}
