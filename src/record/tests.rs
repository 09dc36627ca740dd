//! What a record says about the processes and the time that keep a hold.

use super::*;

fn pid(number: u32) -> Option<Pid> {
    Pid::new(number)
}

/// Written by process 1; process 2 keeps it, if it is confirmed or has a command.
fn record(kind: Kind, kernel_lock: bool, live: Option<u32>) -> Record {
    let mut record = Record::new(Format::Native, pid(1), DateTime::UNIX_EPOCH);
    record.kind = kind;
    record.kernel_lock = kernel_lock;
    record.live.pid = live.and_then(Pid::new);
    record
}

fn confirmed_lease() -> Record {
    let mut record = record(Kind::Lease, false, None);
    record.live.renewed_at = Some(DateTime::UNIX_EPOCH);
    record
}

#[test]
fn each_kind_of_hold_says_what_keeps_it_alive() {
    #[rustfmt::skip]
    // Detached, confirmed, with a command; the processes that keep it, and the PID it shows.
    type Row<'a> = (&'a str, Record, [bool; 3], &'a [u32], u32);
    let rows: Vec<Row<'_>> = vec![
        (
            "run before its command",
            record(Kind::Run, true, None),
            [false, false, false],
            &[1],
            1,
        ),
        (
            "run",
            record(Kind::Run, true, Some(2)),
            [false, false, true],
            &[2, 1],
            2,
        ),
        (
            "run --exec",
            record(Kind::Run, true, Some(1)),
            [false, false, false],
            &[1],
            1,
        ),
        (
            "library",
            record(Kind::Process, true, Some(1)),
            [false, false, false],
            &[1],
            1,
        ),
        (
            "library between two commands",
            record(Kind::Process, true, None),
            [false, false, false],
            &[1],
            1,
        ),
        (
            "library with a command",
            record(Kind::Process, true, Some(2)),
            [false, false, true],
            &[2, 1],
            2,
        ),
        (
            "detached, not confirmed",
            record(Kind::Process, false, None),
            [true, false, false],
            &[1],
            1,
        ),
        (
            "detached",
            record(Kind::Process, false, Some(2)),
            [true, true, false],
            &[2],
            2,
        ),
        (
            "detached, of the process that wrote it",
            record(Kind::Process, false, Some(1)),
            [true, true, false],
            &[1],
            1,
        ),
        (
            "lease, not confirmed",
            record(Kind::Lease, false, None),
            [true, false, false],
            &[1],
            1,
        ),
        ("lease", confirmed_lease(), [true, true, false], &[], 1),
    ];
    for (row, record, [detached, confirmed, command], processes, shown) in rows {
        assert_eq!(record.is_detached(), detached, "{row}");
        assert_eq!(record.is_confirmed(), confirmed, "{row}");
        assert_eq!(record.has_command(), command, "{row}");
        assert_eq!(
            record.is_lease(),
            confirmed && record.kind == Kind::Lease,
            "{row}"
        );
        let found: Vec<u32> = record.processes().map(|found| found.pid.get()).collect();
        assert_eq!(found, processes, "{row}");
        assert_eq!(record.visible_pid(), pid(shown), "{row}");
    }
}

#[test]
fn foreign_record_shows_its_first_pid_until_another_keeps_the_hold() {
    let mut record = record(Kind::Process, false, None);
    record.visible = pid(9);
    assert_eq!(record.visible_pid(), pid(9));
    record.live.pid = pid(2);
    assert_eq!(record.visible_pid(), pid(2));
}

#[test]
fn time_to_live_of_the_last_renewal_is_in_force() {
    let mut record = record(Kind::Lease, false, None);
    assert_eq!(record.ttl(), None);
    record.ttl_ms = Some(1);
    assert_eq!(record.ttl(), Some(Duration::from_millis(1)));
    record.live.ttl_ms = Some(2);
    assert_eq!(record.ttl(), Some(Duration::from_millis(2)));
}

#[test]
fn missing_and_empty_owners_are_nobody() {
    assert!(is_same_owner(Some("a"), Some("a")));
    for (one, other) in [
        (None, None),
        (Some(""), Some("")),
        (Some("a"), None),
        (Some("a"), Some("A")),
    ] {
        assert!(!is_same_owner(one, other) && !is_same_owner(other, one));
    }
}
