//! Arbitrary bytes and words: nothing panics, and nonsense is never taken for a free lock or a dead
//! holder's. `PROPTEST_CASES=100000 cargo test --test properties` looks longer.
#![allow(missing_docs)]
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

use std::fs;
use std::path::Path;

use onehold::{Claim, Format, Keeping, LockName, State, Status, Store, Wait};
use proptest::prelude::*;

/// What stands in a lock file, judged.
fn judged(directory: &Path, file: &str, bytes: &[u8]) -> Status {
    let path = directory.join(file);
    fs::write(&path, bytes).unwrap();
    let store = Store::at(directory);
    store
        .lock(LockName::new(&path).unwrap())
        .unwrap()
        .check(None)
        .unwrap()
}

/// A record of ours in each format, as `run` writes it.
fn written(directory: &Path, format: Format) -> Vec<u8> {
    let store = Store::at(directory).format(format);
    let lock = store.lock(LockName::new("x").unwrap()).unwrap();
    let claim = Claim::new().owner("an owner").message("why, in \"words\"");
    let attempt = lock.hold_for_command(&claim, Keeping::default(), Wait::no());
    let onehold::Attempt::Held(hold) = attempt.unwrap() else {
        panic!("it is free");
    };
    let bytes = fs::read(hold.path()).unwrap();
    drop(hold);
    bytes
}

/// Files as the other programs write them.
const FOREIGN: [&str; 4] = [
    "{\n  \"job_id\": \"j\",\n  \"process_id\": 4194304,\n  \"hostname\": \"h\",\n  \"acquired_at\": \"2026-11-20T00:00:00Z\"\n}",
    "pid: 4194304\nsession_id: \"s\"\nstarted_at: \"2026-11-20T00:00:00Z\"\nepic_spec: \"e\"\nlock_version: 1\n",
    "{\n  \"pid\": 4194304,\n  \"session_id\": \"s\",\n  \"token\": \"0123456789abcdef\",\n  \"acquired_at\": \"2026-01-29T15:30:00.123456+00:00\",\n  \"heartbeat_at\": \"2026-01-29T15:30:00.123456+00:00\",\n  \"hostname\": null,\n  \"operation\": \"o\"\n}",
    "4194304\n",
];

/// One change to some bytes.
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

fn changed(mut bytes: Vec<u8>, change: &Change) -> Vec<u8> {
    let place = |at: usize, bytes: &[u8]| at % (bytes.len() + 1);
    match change {
        Change::Cut(at) => bytes.truncate(place(*at, &bytes)),
        Change::Flip(at, bits) => {
            let at = place(*at, &bytes);
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= bits;
            }
        }
        Change::Insert(at, more) => {
            let at = place(*at, &bytes);
            bytes.splice(at..at, more.iter().copied());
        }
        Change::Remove(at, count) => {
            let at = place(*at, &bytes);
            let to = (at + count).min(bytes.len());
            bytes.drain(at..to);
        }
        Change::Repeat(at, count) => {
            let at = place(*at, &bytes);
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
    fn no_bytes_panic_and_nonsense_is_never_free_or_dead(
        bytes in prop::collection::vec(any::<u8>(), 1..512),
        name in prop_oneof![Just("x.lock"), Just("x.pid")],
    ) {
        let directory = tempfile::tempdir().unwrap();
        let status = judged(directory.path(), name, &bytes);
        // It was written a moment ago: not even a broken one is a zombie yet.
        prop_assert!(!status.is_takeable() || is_number(&bytes), "{:?}", status.verdict);
    }

    #[test]
    fn no_text_with_the_marks_of_a_format_panics_or_is_free(
        text in "[\\{\\[\"':,#&*!|>\\-? \n\tpidsesonlck_v0-9a-f\u{85}\u{2028}é]{0,200}",
        before in prop_oneof![
            Just("pid: 1\nsession_id: "), Just("{\"pid\": 1, \"session_id\": "),
            Just("{\"onehold\": 1, "), Just("%YAML 1.2\n---\npid: 4\n"), Just("pid: &a 4\nx: *a\n"),
        ],
    ) {
        let directory = tempfile::tempdir().unwrap();
        let status = judged(directory.path(), "x.lock", format!("{before}{text}").as_bytes());
        prop_assert!(status.verdict.state != State::Free);
    }

    #[test]
    fn a_record_that_was_changed_panics_nowhere_and_is_never_free(
        changes in prop::collection::vec(change(), 1..4),
        format in prop::sample::select(Format::ALL.to_vec()),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let mut bytes = written(directory.path(), format);
        for change in &changes {
            bytes = changed(bytes, change);
        }
        let status = judged(directory.path(), "y.pid", &bytes);
        prop_assert!(status.verdict.state != State::Free, "{:?}", status.verdict);
    }

    #[test]
    fn a_foreign_file_that_was_changed_panics_nowhere_and_is_never_free(
        changes in prop::collection::vec(change(), 1..4),
        file in prop::sample::select(FOREIGN.to_vec()),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let mut bytes = file.as_bytes().to_vec();
        for change in &changes {
            bytes = changed(bytes, change);
        }
        let status = judged(directory.path(), "y.pid", &bytes);
        prop_assert!(status.verdict.state != State::Free, "{:?}", status.verdict);
    }

    #[test]
    fn what_was_written_is_read_as_it_was_meant(
        owner in "[^\u{0}]{1,60}",
        message in ".{1,60}",
        format in prop::sample::select(
            vec![Format::Native, Format::Prodigy, Format::Sprint, Format::Memory]
        ),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path()).format(format);
        let lock = store.lock(LockName::new("x").unwrap()).unwrap();
        let claim = Claim::new().owner(&owner).message(&message);
        let onehold::Attempt::Held(hold) = lock.hold(&claim, Wait::no()).unwrap() else {
            panic!("it is free");
        };
        let status = lock.check(None).unwrap();
        prop_assert_eq!(status.verdict.state, State::Held);
        prop_assert_eq!(status.hold(), Some(hold.number()));
        let record = status.record.unwrap();
        prop_assert_eq!(record.owner.as_deref(), Some(&*owner));
        prop_assert_eq!(record.message.as_deref(), Some(&*message));
    }

    #[test]
    fn every_name_is_refused_or_leads_to_a_file_that_leads_back(name in ".{0,80}") {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path());
        let Ok(parsed) = LockName::new(&name) else {
            return Ok(());
        };
        prop_assume!(!parsed.is_path());
        let lock = store.lock(parsed).unwrap();
        prop_assert!(lock.path().starts_with(directory.path()));
        let onehold::Attempt::Held(hold) = lock.hold(&Claim::new(), Wait::no()).unwrap() else {
            panic!("it is free");
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
