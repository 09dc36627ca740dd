//! The state table, row by row, with clock, boot, namespaces and processes injected.

use std::collections::HashMap;

use super::*;
use crate::record::{NewRecord, SignOfLife};

const NOW: &str = "2026-11-20T12:00:00Z";
const HOUR: u64 = 3_600_000;
const BOOTTIME: u64 = 100 * HOUR;

/// What the observer would find out.
#[derive(Clone, Default)]
struct World {
    kernel_lock: Option<bool>,
    processes: HashMap<u32, Presence>,
}

impl Probe for World {
    fn kernel_lock(&mut self) -> Option<bool> {
        self.kernel_lock
    }

    fn process(&mut self, pid: Pid) -> Presence {
        self.processes
            .get(&pid.get())
            .copied()
            .unwrap_or(Presence::Gone)
    }

    fn milliseconds_of_start(&self, start: u64) -> Option<i64> {
        i64::try_from(start * 10).ok()
    }
}

impl World {
    fn empty() -> Self {
        Self {
            kernel_lock: Some(false),
            processes: HashMap::new(),
        }
    }

    fn locked(mut self) -> Self {
        self.kernel_lock = Some(true);
        self
    }

    fn with(mut self, pid: u32, presence: Presence) -> Self {
        self.processes.insert(pid, presence);
        self
    }

    fn running(self, pid: u32, start: u64) -> Self {
        self.with(pid, Presence::Alive { start: Some(start) })
    }
}

fn now() -> DateTime<Utc> {
    NOW.parse().expect("a time")
}

fn boot(id: &str) -> BootId {
    BootId {
        id: id.to_owned(),
        masked: false,
    }
}

fn masked(id: &str) -> BootId {
    BootId {
        id: id.to_owned(),
        masked: true,
    }
}

fn here() -> Here {
    Here {
        now: now(),
        boottime_ms: BOOTTIME,
        boot: Some(boot("this")),
        pid_namespace: Some(1),
        hostname: Some("db1".to_owned()),
        shares_kernel_locks: true,
        store_device: 7,
        store_inode: 8,
    }
}

/// A record written an hour ago by process 100, which started at tick 5000.
fn record(kind: Kind) -> Record {
    let mut record = Record::new(
        42,
        NewRecord {
            name: "x".to_owned(),
            kind,
            pid: Pid::new(100).expect("a pid"),
            hostname: Some("db1".to_owned()),
            acquired_at: now() - TimeDelta::hours(1),
            origin: Origin {
                start: Some(5000),
                boot: Some(boot("this")),
                pid_namespace: Some(1),
                acquired_boottime_ms: BOOTTIME - HOUR,
                store_device: 7,
                store_inode: 8,
            },
        },
    );
    record.kernel_lock = kind == Kind::Run;
    record
}

fn run() -> Record {
    let mut record = record(Kind::Run);
    record.command_process = process(200, Some(6000));
    record
}

fn job() -> Record {
    let mut record = record(Kind::Job);
    record.job = process(300, Some(7000)).map(Job::Process);
    record
}

fn lease(ttl_ms: u64) -> Record {
    let mut record = record(Kind::Lease);
    record.job = Some(Job::Lease);
    record.ttl_ms = Some(ttl_ms);
    record
}

fn process(pid: u32, start: Option<u64>) -> Option<ProcessId> {
    Some(ProcessId {
        pid: Pid::new(pid)?,
        start,
    })
}

fn changed<T>(mut value: T, change: impl FnOnce(&mut T)) -> T {
    change(&mut value);
    value
}

fn origin(record: &mut Record) -> &mut Origin {
    record.origin.as_mut().expect("an origin")
}

fn aged(hours: u64) -> impl Fn(Record) -> Record {
    move |mut record| {
        let delta = TimeDelta::hours(i64::try_from(hours).expect("few hours"));
        record.acquired_at = now() - delta;
        origin(&mut record).acquired_boottime_ms = BOOTTIME.saturating_sub(hours * HOUR);
        record
    }
}

fn verdict_of(record: Record, here: &Here, world: &World) -> Verdict {
    let content = Content::Record(Box::new(record));
    judge(
        &content,
        here.now,
        here,
        DEFAULT_MAX_AGE,
        &mut world.clone(),
    )
}

#[track_caller]
fn expect(what: &str, verdict: &Verdict, state: State, reason: Reason, proof: Proof) {
    assert_eq!(
        (verdict.state, verdict.reason, verdict.proof),
        (state, reason, proof),
        "{what}"
    );
}

#[test]
fn a_run_is_judged_by_its_kernel_lock_and_its_processes() {
    use Proof::{KernelLock, KernelLockGone, OtherStart, PidGone, SamePid, SameProcess};
    use Reason::{Alive, Dead, Reused, Unproven};
    use State::{Held, Zombie};
    let both = || World::empty().running(100, 5000).running(200, 6000);
    let closed = || changed(run(), |record| record.close = true);
    let elsewhere =
        |record: Record| changed(record, |record| origin(record).pid_namespace = Some(2));
    let other_store = |record: Record| changed(record, |record| origin(record).store_inode = 9);
    let unknown = |world: World| {
        world
            .with(100, Presence::Unknown)
            .with(200, Presence::Unknown)
    };
    let not_recorded = || changed(run(), |record| record.command_process = None);
    let pid_only = || changed(run(), |record| record.command_process = process(200, None));
    #[rustfmt::skip]
    let rows: Vec<(&str, Record, World, State, Reason, Proof)> = vec![
        ("both live", run(), both().locked(), Held, Alive, KernelLock),
        ("wrapper killed, command lives", run(), World::empty().running(200, 6000).locked(), Held, Alive, KernelLock),
        ("wrapper killed, command closed its descriptors", run(), World::empty().running(200, 6000), Held, Alive, SameProcess),
        ("wrapper lives, command over, about to be released", run(), World::empty().running(100, 5000).locked(), Held, Alive, KernelLock),
        ("both gone, a daemon keeps the descriptor", run(), World::empty().locked(), Zombie, Dead, PidGone),
        ("both gone", run(), World::empty(), Zombie, Dead, PidGone),
        ("both pids belong to others", run(), World::empty().running(100, 9).running(200, 9), Zombie, Reused, OtherStart),
        ("the command's pid belongs to another", run(), World::empty().running(200, 9), Zombie, Reused, OtherStart),
        ("wrapper killed before the command was on record", not_recorded(), World::empty(), Zombie, Dead, PidGone),
        ("the command's start is not on record yet", pid_only(), World::empty().running(200, 6000), Held, Alive, SamePid),
        ("one tick off: a shifted time namespace", run(), World::empty().running(200, 6001), Held, Alive, SameProcess),
        ("/proc shows no start: hidepid", run(), World::empty().with(200, Presence::Alive { start: None }), Held, Alive, SamePid),
        ("another pid namespace, kernel lock kept", elsewhere(run()), World::empty().locked(), Held, Alive, KernelLock),
        ("another pid namespace, kernel lock gone", elsewhere(run()), World::empty(), Zombie, Dead, KernelLockGone),
        ("another pid namespace, its numbers are ours", elsewhere(run()), both(), Zombie, Dead, KernelLockGone),
        ("another pid namespace, --close, kernel lock gone", elsewhere(closed()), World::empty(), Held, Unproven(Doubt::OtherPidNamespace), Proof::None),
        ("another pid namespace, --close, kernel lock kept", elsewhere(closed()), World::empty().locked(), Held, Alive, KernelLock),
        ("--close, wrapper killed, command lives", closed(), World::empty().running(200, 6000), Held, Alive, SameProcess),
        ("--close, both gone", closed(), World::empty(), Zombie, Dead, PidGone),
        ("another store inode: the kernel lock does not count", elsewhere(other_store(run())), World::empty(), Held, Unproven(Doubt::OtherPidNamespace), Proof::None),
        ("another store inode, both gone", other_store(run()), World::empty().locked(), Zombie, Dead, PidGone),
        ("the system does not answer, kernel lock free", run(), unknown(World::empty()), Held, Unproven(Doubt::NoAnswer), Proof::None),
        ("the system does not answer, kernel lock kept", run(), unknown(World::empty()).locked(), Held, Alive, KernelLock),
    ];
    for (what, record, world, state, reason, proof) in rows {
        expect(
            what,
            &verdict_of(record, &here(), &world),
            state,
            reason,
            proof,
        );
    }
}

#[test]
fn a_detached_hold_is_judged_by_its_process_alone() {
    use Proof::{Clock, OtherStart, PidGone, SameProcess};
    use State::{Held, Overdue, Zombie};
    let alive = || World::empty().running(300, 7000);
    let elsewhere = || changed(job(), |record| origin(record).pid_namespace = Some(2));
    let unconfirmed = || changed(job(), |record| record.job = None);
    let with_ttl = |ttl: u64| changed(job(), |record| record.ttl_ms = Some(ttl));
    #[rustfmt::skip]
    let rows: Vec<(&str, Record, World, State, Reason, Proof)> = vec![
        ("lives", job(), alive(), Held, Reason::Alive, SameProcess),
        ("the one who acquired it is gone, as he must be", job(), alive(), Held, Reason::Alive, SameProcess),
        ("gone", job(), World::empty(), Zombie, Reason::Dead, PidGone),
        ("gone, though somebody locks the file", job(), World::empty().locked(), Zombie, Reason::Dead, PidGone),
        ("pid reused", job(), World::empty().running(300, 8000), Zombie, Reason::Reused, OtherStart),
        ("another pid namespace", elsewhere(), alive(), Held, Reason::Unproven(Doubt::OtherPidNamespace), Proof::None),
        ("not confirmed, acquirer lives", unconfirmed(), World::empty().running(100, 5000), Held, Reason::Alive, SameProcess),
        ("not confirmed, acquirer died", unconfirmed(), alive(), Zombie, Reason::Dead, PidGone),
        ("lives, older than 24 h", aged(25)(job()), alive(), Overdue, Reason::Alive, SameProcess),
        ("another namespace, older than 24 h", aged(25)(elsewhere()), alive(), Zombie, Reason::Aged(Doubt::OtherPidNamespace), Clock),
        ("another namespace, nearly 24 h", aged(23)(elsewhere()), alive(), Held, Reason::Unproven(Doubt::OtherPidNamespace), Proof::None),
        ("--ttl beside --pid, running", with_ttl(2 * HOUR), alive(), Held, Reason::Alive, SameProcess),
        ("--ttl beside --pid, ran out", with_ttl(HOUR / 2), alive(), Zombie, Reason::Expired, Clock),
        ("--ttl beside --pid, process gone first", with_ttl(2 * HOUR), World::empty(), Zombie, Reason::Dead, PidGone),
    ];
    for (what, record, world, state, reason, proof) in rows {
        expect(
            what,
            &verdict_of(record, &here(), &world),
            state,
            reason,
            proof,
        );
    }
}

#[test]
fn another_boot_is_death_only_where_it_cannot_be_anything_else() {
    use Proof::OtherBoot;
    use State::{Held, Zombie};
    let from = |id: BootId| changed(run(), |record| origin(record).boot = Some(id));
    let detached = |id: BootId| changed(job(), |record| origin(record).boot = Some(id));
    let unknown = || changed(run(), |record| origin(record).boot = None);
    let unproven = |doubt| Reason::Unproven(doubt);
    let shared = || changed(here(), |here| here.shares_kernel_locks = false);
    let in_container = || changed(here(), |here| here.boot = Some(masked("this")));
    let blind = || changed(here(), |here| here.boot = None);
    let stranger =
        |record: Record| changed(record, |record| record.hostname = Some("db2".to_owned()));
    let world = || {
        World::empty()
            .running(100, 5000)
            .running(200, 6000)
            .locked()
    };
    #[rustfmt::skip]
    let rows: Vec<(&str, Record, Here, State, Reason, Proof)> = vec![
        ("rebooted, the pids are others'", from(boot("before")), here(), Zombie, Reason::Rebooted, OtherBoot),
        ("rebooted, another host name since", stranger(from(boot("before"))), here(), Zombie, Reason::Rebooted, OtherBoot),
        // A local filesystem is one kernel's, so that its locks tell, whatever the boot is called.
        ("theirs masked", from(masked("before")), here(), Held, Reason::Alive, Proof::KernelLock),
        ("ours masked", from(boot("before")), in_container(), Held, Reason::Alive, Proof::KernelLock),
        ("the same masked id is the same boot", from(masked("this")), in_container(), Held, Reason::Alive, Proof::KernelLock),
        ("theirs unknown", unknown(), here(), Held, Reason::Alive, Proof::KernelLock),
        ("ours unknown", run(), blind(), Held, Reason::Alive, Proof::KernelLock),
        ("theirs masked, a process alone", detached(masked("before")), here(), Held, unproven(Doubt::UnknownBoot), Proof::None),
        ("ours unknown, a process alone", job(), blind(), Held, unproven(Doubt::UnknownBoot), Proof::None),
        ("a filesystem that other machines reach", from(boot("before")), shared(), Held, unproven(Doubt::OtherHost), Proof::None),
        ("another host, on such a filesystem", stranger(from(boot("theirs"))), shared(), Held, unproven(Doubt::OtherHost), Proof::None),
        ("the same boot on such a filesystem: pids count, kernel locks do not", run(), shared(), Held, Reason::Alive, Proof::SameProcess),
        ("theirs masked, and long ago", aged(25)(detached(masked("before"))), here(), Zombie, Reason::Aged(Doubt::UnknownBoot), Proof::Clock),
    ];
    for (what, record, here, state, reason, proof) in rows {
        expect(
            what,
            &verdict_of(record, &here, &world()),
            state,
            reason,
            proof,
        );
    }
    for record in [unknown(), from(masked("before"))] {
        let close = changed(record.clone(), |record| record.close = true);
        let verdict = |record: Record| verdict_of(record, &here(), &World::empty());
        assert_eq!(verdict(record).proof, Proof::KernelLockGone);
        assert_eq!(verdict(close).reason, unproven(Doubt::UnknownBoot));
    }
}

#[test]
fn a_lease_ends_with_its_time_and_with_nothing_else() {
    use State::{Held, Zombie};
    let rebooted =
        |record: Record| changed(record, |record| origin(record).boot = Some(boot("before")));
    let foreign = |record: Record| {
        changed(rebooted(record), |record| {
            record.hostname = Some("db2".to_owned());
        })
    };
    let renewed = |minutes_ago: u64, boot_id: &str| {
        let mut record = lease(HOUR / 2);
        record.sign_of_life = Some(SignOfLife {
            renewed_at: now() - TimeDelta::minutes(i64::try_from(minutes_ago).expect("minutes")),
            renewed_boottime_ms: BOOTTIME - minutes_ago * 60_000,
            renewed_boot_id: Some(boot_id.to_owned()),
            ttl_ms: None,
        });
        record
    };
    let prolonged = || {
        let mut record = renewed(40, "this");
        if let Some(life) = &mut record.sign_of_life {
            life.ttl_ms = Some(HOUR);
        }
        record
    };
    let clock_put_forward = || {
        changed(lease(2 * HOUR), |record| {
            record.acquired_at = now() - TimeDelta::days(400);
        })
    };
    let clock_put_back = || {
        changed(lease(HOUR / 2), |record| {
            record.acquired_at = now() + TimeDelta::days(400);
        })
    };
    #[rustfmt::skip]
    let rows: Vec<(&str, Record, State)> = vec![
        ("running", lease(HOUR + 1), Held),
        ("over", lease(HOUR), Zombie),
        ("far older than 24 h, and running", aged(90)(lease(99 * HOUR)), Held),
        ("running across a reboot", rebooted(lease(HOUR + 1)), Held),
        ("over across a reboot", rebooted(lease(HOUR)), Zombie),
        ("another host's, just over: its clock may be wrong", foreign(lease(HOUR)), Held),
        ("another host's, over by less than a tenth", foreign(lease(HOUR - HOUR / 20)), Held),
        ("another host's, well over", foreign(lease(HOUR - HOUR / 9)), Zombie),
        ("renewed in time", renewed(20, "this"), Held),
        ("renewed too long ago", renewed(31, "this"), Zombie),
        ("renewed in another boot, in time by the wall clock", renewed(20, "other"), Held),
        ("renewed with more time", prolonged(), Held),
        ("the wall clock was put forward", clock_put_forward(), Held),
        ("the wall clock was put back", clock_put_back(), Zombie),
        ("more milliseconds than there are", lease(u64::MAX), Held),
    ];
    for (what, record, state) in rows {
        let reason = if state == Held {
            Reason::Lease
        } else {
            Reason::Expired
        };
        let verdict = verdict_of(record, &here(), &World::empty());
        expect(what, &verdict, state, reason, Proof::Clock);
    }
}

#[test]
fn a_run_with_a_ttl_is_not_displaced_by_it_while_it_lives() {
    let record = || changed(run(), |record| record.ttl_ms = Some(HOUR / 2));
    let alive = World::empty().running(200, 6000).locked();
    expect(
        "alive, its wrapper stopped renewing",
        &verdict_of(record(), &here(), &alive),
        State::Held,
        Reason::Alive,
        Proof::KernelLock,
    );
    let shared = changed(here(), |here| {
        here.shares_kernel_locks = false;
        here.boot = Some(boot("other"));
    });
    expect(
        "out of sight",
        &verdict_of(record(), &shared, &World::empty()),
        State::Zombie,
        Reason::Expired,
        Proof::Clock,
    );
}

#[test]
fn what_a_finished_exec_leaves_is_free() {
    let record = || changed(record(Kind::Run), |record| record.exec = true);
    let alive = World::empty().running(100, 5000).locked();
    expect(
        "runs",
        &verdict_of(record(), &here(), &alive),
        State::Held,
        Reason::Alive,
        Proof::KernelLock,
    );
    expect(
        "ended",
        &verdict_of(record(), &here(), &World::empty()),
        State::Free,
        Reason::Finished,
        Proof::PidGone,
    );
    let rebooted = changed(record(), |record| {
        origin(record).boot = Some(boot("before"));
    });
    expect(
        "rebooted",
        &verdict_of(rebooted, &here(), &World::empty()),
        State::Free,
        Reason::Finished,
        Proof::OtherBoot,
    );
}

#[test]
fn a_record_written_by_hand_is_judged_by_its_pid_its_host_and_its_time() {
    use State::{Held, Zombie};
    let hand = |hostname: Option<&str>| {
        changed(record(Kind::Job), |record| {
            record.origin = None;
            record.hostname = hostname.map(ToOwned::to_owned);
        })
    };
    // The record was written an hour ago, 99 hours after boot, which is tick 35,640,000.
    let before = World::empty().running(100, 35_000_000);
    let after = World::empty().running(100, 35_900_000);
    // Half a second after what may be a time without its fraction.
    let just_after = World::empty().running(100, 35_640_050);
    let locked = World::empty().locked();
    let nobody = World::empty();
    #[rustfmt::skip]
    let rows: Vec<(&str, Record, &World, State, Reason)> = vec![
        ("gone, our host", hand(Some("db1")), &nobody, Zombie, Reason::Dead),
        ("gone, no host", hand(None), &nobody, Zombie, Reason::Dead),
        ("gone, another host", hand(Some("db2")), &nobody, Held, Reason::Unproven(Doubt::OtherHost)),
        ("there, started before the record", hand(None), &before, Held, Reason::Alive),
        ("there, started after it", hand(None), &after, Held, Reason::Unproven(Doubt::NoIdentity)),
        ("there, started in that second", hand(None), &just_after, Held, Reason::Alive),
        ("gone, and the file is locked", hand(None), &locked, Held, Reason::Alive),
        ("another host, and the file is locked", hand(Some("db2")), &locked, Held, Reason::Alive),
    ];
    for (what, record, world, state, reason) in rows {
        let verdict = verdict_of(record, &here(), world);
        assert_eq!((verdict.state, verdict.reason), (state, reason), "{what}");
    }
    let old = |world: &World| {
        let record = changed(hand(None), |record| {
            record.acquired_at = now() - TimeDelta::hours(25);
        });
        verdict_of(record, &here(), world)
    };
    // 75 hours after boot.
    let older = World::empty().running(100, 26_000_000);
    assert_eq!(old(&older).state, State::Overdue);
    assert_eq!(old(&before).reason, Reason::Aged(Doubt::NoIdentity));
    assert_eq!(old(&nobody).reason, Reason::Dead);
    let old = changed(hand(Some("db2")), |record| {
        record.acquired_at = now() - TimeDelta::hours(25);
    });
    let verdict = verdict_of(old, &here(), &World::empty());
    assert_eq!(verdict.reason, Reason::Aged(Doubt::OtherHost));
}

#[test]
fn age_counts_from_the_last_sign_of_life_and_by_the_holders_word() {
    let alive = World::empty().running(200, 6000).locked();
    let old = || aged(25)(run());
    assert_eq!(verdict_of(old(), &here(), &alive).state, State::Overdue);
    let fresh = changed(old(), |record| {
        record.sign_of_life = Some(SignOfLife {
            renewed_at: now() - TimeDelta::hours(1),
            renewed_boottime_ms: BOOTTIME - HOUR,
            renewed_boot_id: Some("this".to_owned()),
            ttl_ms: None,
        });
    });
    assert_eq!(verdict_of(fresh, &here(), &alive).state, State::Held);
    let patient = changed(old(), |record| record.max_age_ms = Some(48 * HOUR));
    assert_eq!(verdict_of(patient, &here(), &alive).state, State::Held);
    let impatient = changed(run(), |record| record.max_age_ms = Some(HOUR / 2));
    assert_eq!(verdict_of(impatient, &here(), &alive).state, State::Overdue);
}

#[test]
fn a_time_in_the_future_is_not_an_age() {
    let from = |delta: TimeDelta| {
        changed(job(), |record| {
            record.acquired_at = now() + delta;
            origin(record).boot = None;
        })
    };
    let judged = |record: Record, modified: DateTime<Utc>| {
        let content = Content::Record(Box::new(record));
        judge(
            &content,
            modified,
            &here(),
            DEFAULT_MAX_AGE,
            &mut World::empty(),
        )
    };
    let soon = judged(from(TimeDelta::minutes(4)), now() - TimeDelta::hours(25));
    assert_eq!(
        soon.age,
        Some(Duration::ZERO),
        "a small lead is a clock that differs"
    );
    let mtime = judged(from(TimeDelta::days(9)), now() - TimeDelta::hours(25));
    assert_eq!(
        mtime.state,
        State::Zombie,
        "a large one is replaced by the file's mtime"
    );
    let young = judged(from(TimeDelta::days(9)), now() - TimeDelta::hours(23));
    assert_eq!(young.state, State::Held);
    let nonsense = judged(from(TimeDelta::days(2_900_000)), now());
    assert_eq!(
        (nonsense.state, nonsense.age),
        (State::Held, Some(Duration::ZERO))
    );
}

#[test]
fn a_broken_record_is_a_zombie_once_it_stays_broken() {
    let judged = |seconds_ago: i64, world: World, here: &Here| {
        let modified = now() - TimeDelta::seconds(seconds_ago);
        judge(
            &Content::Corrupt,
            modified,
            here,
            DEFAULT_MAX_AGE,
            &mut world.clone(),
        )
    };
    let reason = |seconds_ago| judged(seconds_ago, World::empty(), &here()).reason;
    assert_eq!(reason(0), Reason::InTheMaking);
    assert_eq!(reason(9), Reason::InTheMaking);
    assert_eq!(reason(10), Reason::Corrupt);
    assert_eq!(reason(-60), Reason::InTheMaking, "a clock that differs");
    assert_eq!(
        reason(-86_400),
        Reason::Corrupt,
        "a clock that was put back"
    );
    let held = judged(60, World::empty().locked(), &here());
    assert_eq!(
        (held.state, held.reason),
        (State::Held, Reason::Alive),
        "its holder lives"
    );
}

#[test]
fn what_is_unknown_is_held_and_what_is_no_lock_is_left() {
    let old = now() - TimeDelta::days(1000);
    let mut world = World::empty();
    let unknown = judge(
        &Content::UnknownVersion(2),
        old,
        &here(),
        DEFAULT_MAX_AGE,
        &mut world,
    );
    assert_eq!(
        (unknown.state, unknown.reason),
        (State::Held, Reason::UnknownVersion)
    );
    let other = judge(
        &Content::NotALock("x"),
        old,
        &here(),
        DEFAULT_MAX_AGE,
        &mut world,
    );
    assert_eq!(other.state, State::NotALock);
}

#[test]
fn a_verdict_names_the_process_that_matters() {
    let verdict = verdict_of(run(), &here(), &World::empty().running(200, 6000).locked());
    assert_eq!(verdict.pid, Pid::new(200));
    assert_eq!(
        (verdict.pid_alive, verdict.wrapper_alive),
        (Some(true), Some(false))
    );
    let verdict = verdict_of(run(), &here(), &World::empty());
    assert_eq!(
        (verdict.pid, verdict.pid_alive),
        (Pid::new(200), Some(false))
    );
}
