//! Arbitrary bytes and names: nothing panics, and unrecognized content is never a free lock or a
//! zombie. `PROPTEST_CASES=100000 cargo test --test it properties::` tests more cases.

use std::fs;
use std::path::Path;

use onehold::{Format, LockName, Options, RunOptions, State, Status, Store, Wait};
use proptest::prelude::*;

/// The formats that write a record.
const FORMATS_WITH_RECORDS: [Format; 5] = [
    Format::Native,
    Format::Prodigy,
    Format::Sprint,
    Format::Memory,
    Format::Pid,
];

/// The status of a lock file with this content.
fn status_of(directory: &Path, file: &str, bytes: &[u8]) -> Status {
    let path = directory.join(file);
    fs::write(&path, bytes).unwrap();
    let store = Store::at(directory);
    store
        .lock(LockName::new(&path).unwrap())
        .unwrap()
        .check(None)
        .unwrap()
}

/// A record in the given format, as `run` writes it.
fn record_of_run(directory: &Path, format: Format) -> Vec<u8> {
    let store = Store::at(directory).format(format);
    let lock = store.lock(LockName::new("x").unwrap()).unwrap();
    let claim = Options::new()
        .owner("an owner")
        .message("why, in \"words\"");
    let attempt = lock.hold_for_command(&claim, RunOptions::new(), Wait::no());
    let onehold::Attempt::Held(hold) = attempt.unwrap() else {
        panic!("a new lock is free");
    };
    let bytes = fs::read(hold.path()).unwrap();
    drop(hold);
    bytes
}

/// Lock files as foreign programs write them.
const FOREIGN: [&str; 4] = [
    "{\n  \"job_id\": \"j\",\n  \"process_id\": 4194304,\n  \"hostname\": \"h\",\n  \"acquired_at\": \"2026-11-20T00:00:00Z\"\n}",
    "pid: 4194304\nsession_id: \"s\"\nstarted_at: \"2026-11-20T00:00:00Z\"\nepic_spec: \"e\"\nlock_version: 1\n",
    "{\n  \"pid\": 4194304,\n  \"session_id\": \"s\",\n  \"token\": \"0123456789abcdef\",\n  \"acquired_at\": \"2026-01-29T15:30:00.123456+00:00\",\n  \"heartbeat_at\": \"2026-01-29T15:30:00.123456+00:00\",\n  \"hostname\": null,\n  \"operation\": \"o\"\n}",
    "4194304\n",
];

/// A change of some bytes.
#[derive(Clone, Debug)]
enum Change {
    Cut(usize),
    Flip(usize, u8),
    Insert(usize, Vec<u8>),
    Remove(usize, usize),
    Repeat(usize, usize),
}

fn change() -> impl Strategy<Value = Change> {
    let at = 0..4096_usize;
    prop_oneof![
        at.clone().prop_map(Change::Cut),
        (at.clone(), 1..=255_u8).prop_map(|(at, bits)| Change::Flip(at, bits)),
        (at.clone(), prop::collection::vec(any::<u8>(), 1..8))
            .prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        (at.clone(), 1..64_usize).prop_map(|(at, count)| Change::Remove(at, count)),
        (at, 1..64_usize).prop_map(|(at, count)| Change::Repeat(at, count)),
    ]
}

fn apply(mut bytes: Vec<u8>, change: &Change) -> Vec<u8> {
    let position = |at: usize, bytes: &[u8]| at % (bytes.len() + 1);
    match change {
        Change::Cut(at) => bytes.truncate(position(*at, &bytes)),
        Change::Flip(at, bits) => {
            let at = position(*at, &bytes);
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= bits;
            }
        }
        Change::Insert(at, more) => {
            let at = position(*at, &bytes);
            bytes.splice(at..at, more.iter().copied());
        }
        Change::Remove(at, count) => {
            let at = position(*at, &bytes);
            let to = (at + count).min(bytes.len());
            bytes.drain(at..to);
        }
        Change::Repeat(at, count) => {
            let at = position(*at, &bytes);
            let to = (at + count).min(bytes.len());
            let piece = bytes[at..to].to_vec();
            bytes.splice(at..at, piece);
        }
    }
    bytes
}

fn cases() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn arbitrary_bytes_do_not_panic_and_are_not_available(
        bytes in prop::collection::vec(any::<u8>(), 1..512),
        name in prop_oneof![Just("x.lock"), Just("x.pid")],
    ) {
        let directory = tempfile::tempdir().unwrap();
        let status = status_of(directory.path(), name, &bytes);
        // The file was just written: even a damaged one is not a zombie yet.
        prop_assert!(!status.is_available() || is_number(&bytes), "{:?}", status.verdict);
    }

    #[test]
    fn text_similar_to_a_format_does_not_panic_and_is_not_free(
        text in "[\\{\\[\"':,#&*!|>\\-? \n\tpidsesonlck_v0-9a-f\u{85}\u{2028}é]{0,200}",
        before in prop_oneof![
            Just("pid: 1\nsession_id: "), Just("{\"pid\": 1, \"session_id\": "),
            Just("{\"onehold\": 1, "), Just("%YAML 1.2\n---\npid: 4\n"), Just("pid: &a 4\nx: *a\n"),
        ],
    ) {
        let directory = tempfile::tempdir().unwrap();
        let status = status_of(directory.path(), "x.lock", format!("{before}{text}").as_bytes());
        prop_assert!(status.verdict.state != State::Free);
    }

    #[test]
    fn changed_record_does_not_panic_and_is_not_free(
        changes in prop::collection::vec(change(), 1..4),
        format in prop::sample::select(FORMATS_WITH_RECORDS.to_vec()),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let mut bytes = record_of_run(directory.path(), format);
        for change in &changes {
            bytes = apply(bytes, change);
        }
        let status = status_of(directory.path(), "y.pid", &bytes);
        prop_assert!(status.verdict.state != State::Free, "{:?}", status.verdict);
    }

    #[test]
    fn changed_foreign_file_does_not_panic_and_is_not_free(
        changes in prop::collection::vec(change(), 1..4),
        file in prop::sample::select(FOREIGN.to_vec()),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let mut bytes = file.as_bytes().to_vec();
        for change in &changes {
            bytes = apply(bytes, change);
        }
        let status = status_of(directory.path(), "y.pid", &bytes);
        prop_assert!(status.verdict.state != State::Free, "{:?}", status.verdict);
    }

    #[test]
    fn owner_and_message_are_read_as_they_were_written(
        owner in "[^\u{0}]{1,60}",
        message in ".{1,60}",
        format in prop::sample::select(
            vec![Format::Native, Format::Prodigy, Format::Sprint, Format::Memory]
        ),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path()).format(format);
        let lock = store.lock(LockName::new("x").unwrap()).unwrap();
        let claim = Options::new().owner(&owner).message(&message);
        let onehold::Attempt::Held(hold) = lock.hold(&claim, Wait::no()).unwrap() else {
            panic!("a new lock is free");
        };
        let status = lock.check(None).unwrap();
        prop_assert_eq!(status.verdict.state, State::Held);
        prop_assert_eq!(status.hold(), Some(hold.number()));
        let info = status.info().unwrap();
        prop_assert_eq!(info.owner(), Some(&*owner));
        prop_assert_eq!(info.message(), Some(&*message));
    }

    #[test]
    fn each_name_is_rejected_or_is_listed_as_it_was_given(name in ".{0,80}") {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path());
        let Ok(parsed) = LockName::new(&name) else {
            return Ok(());
        };
        prop_assume!(!parsed.is_path());
        let lock = store.lock(parsed).unwrap();
        prop_assert!(lock.path().starts_with(directory.path()));
        let onehold::Attempt::Held(hold) = lock.hold(&Options::new(), Wait::no()).unwrap() else {
            panic!("a new lock is free");
        };
        let listed = store.list(None).unwrap();
        prop_assert!(listed.errors.is_empty());
        let names: Vec<&str> = listed.locks.iter().map(|lock| lock.name.as_str()).collect();
        prop_assert_eq!(names, [&*name]);
        drop(hold);
    }
}

fn is_number(bytes: &[u8]) -> bool {
    let text = bytes.trim_ascii();
    !text.is_empty() && text.iter().all(u8::is_ascii_digit)
}
