//! The state table, row by row, with clock, boot, namespaces and processes injected.

use proptest::prelude::*;

use super::*;
use crate::decision::snapshot::ProcessFact;
use crate::identity::BootId;
use crate::record::{Format, Live};

const NOW: &str = "2026-11-20T12:00:00Z";
const HOUR: u64 = 3_600_000;
const BOOTTIME: u64 = 100 * HOUR;

/// The processes of the records below: wrapper, command, detached holder.
const PIDS: [u32; 3] = [100, 200, 300];

/// What the observer finds out. Every process that is not mentioned has exited.
#[derive(Clone, Debug)]
struct World {
    kernel_lock: Option<bool>,
    lockers: Vec<Pid>,
    processes: Vec<ProcessFact>,
    same_store: bool,
    shares_kernel_locks: bool,
    modified: DateTime<Utc>,
}

impl World {
    /// No process is alive, and the kernel lock is free.
    fn empty() -> Self {
        let gone = |pid| ProcessFact {
            pid: pid_of(pid),
            state: ProcessState::Gone,
            began_ms: None,
        };
        Self {
            kernel_lock: Some(false),
            lockers: Vec::new(),
            processes: PIDS.into_iter().map(gone).collect(),
            same_store: true,
            shares_kernel_locks: true,
            modified: now(),
        }
    }

    fn locked(self) -> Self {
        self.probed(Some(true))
    }

    fn probed(mut self, kernel_lock: Option<bool>) -> Self {
        self.kernel_lock = kernel_lock;
        self
    }

    fn with(mut self, pid: u32, state: ProcessState) -> Self {
        let began_ms = match state {
            ProcessState::Alive { start: Some(start) } => i64::try_from(start * 10).ok(),
            _ => None,
        };
        self.processes.retain(|fact| fact.pid.get() != pid);
        self.processes.push(ProcessFact {
            pid: pid_of(pid),
            state,
            began_ms,
        });
        self
    }

    fn running(self, pid: u32, start: u64) -> Self {
        self.with(pid, ProcessState::Alive { start: Some(start) })
    }

    /// The record was written in another directory than it is found in.
    fn in_another_store(mut self) -> Self {
        self.same_store = false;
        self
    }

    /// A filesystem that other machines reach.
    fn over_a_network(mut self) -> Self {
        self.shares_kernel_locks = false;
        self
    }

    fn facts(&self) -> Facts {
        Facts {
            modified: self.modified,
            kernel_lock: self.kernel_lock,
            lockers: self.lockers.clone(),
            processes: self.processes.clone(),
            same_store: self.same_store,
            shares_kernel_locks: self.shares_kernel_locks,
        }
    }
}

fn now() -> DateTime<Utc> {
    NOW.parse().expect("a time")
}

fn moment() -> Moment {
    Moment {
        wall: now(),
        boottime_ms: BOOTTIME,
    }
}

fn pid_of(number: u32) -> Pid {
    Pid::new(number).expect("a PID")
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

fn observer() -> Observer {
    Observer {
        boot: Some(boot("this")),
        machine: Some("machine-1".to_owned()),
        pid_namespace: Some(1),
        is_in_container: false,
        hostname: Some("db1".to_owned()),
        over: Vec::new(),
    }
}

/// A record written an hour ago by process 100, which started at tick 5000.
fn record(kind: Kind) -> Record {
    let acquired_at = now() - TimeDelta::hours(1);
    let mut record = Record::new(Format::Native, Some(pid_of(100)), acquired_at);
    record.name = "x".to_owned();
    record.hold = 42;
    record.kind = kind;
    record.hostname = Some("db1".to_owned());
    record.kernel_lock = kind == Kind::Run;
    record.origin = Some(Origin {
        start: Some(5000),
        boot: Some(boot("this")),
        machine: Some("machine-1".to_owned()),
        pid_namespace: Some(1),
        acquired_boottime_ms: BOOTTIME - HOUR,
        store_device: 7,
        store_inode: 8,
    });
    record
}

/// A `run` whose command is process 200, which started at tick 6000.
fn run() -> Record {
    let mut record = record(Kind::Run);
    record.live.set_process(process(200, Some(6000)));
    record
}

/// A `run` whose command is not on record yet.
fn run_without_command() -> Record {
    record(Kind::Run)
}

/// A detached hold of process 300, which started at tick 7000.
fn detached() -> Record {
    let mut record = record(Kind::Process);
    record.live.set_process(process(300, Some(7000)));
    record
}

fn lease(ttl_ms: u64) -> Record {
    let mut record = record(Kind::Lease);
    record.ttl_ms = Some(ttl_ms);
    record.live.expires_at = Some(record.acquired_at);
    record
}

fn torn(mut record: Record) -> Record {
    record.live = Live {
        is_torn: true,
        ..Live::default()
    };
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

fn elsewhere(record: Record) -> Record {
    changed(record, |record| origin(record).pid_namespace = Some(2))
}

fn of_boot(id: BootId, record: Record) -> Record {
    changed(record, |record| origin(record).boot = Some(id))
}

fn heartbeat(hours_ago: u64, boot_id: &str) -> Live {
    heartbeat_minutes(hours_ago * 60, boot_id)
}

fn heartbeat_minutes(minutes_ago: u64, boot_id: &str) -> Live {
    let delta = TimeDelta::minutes(i64::try_from(minutes_ago).expect("few minutes"));
    Live {
        renewed_at: Some(now() - delta),
        renewed_boottime_ms: Some(BOOTTIME - minutes_ago * 60_000),
        renewed_boot_id: Some(boot_id.to_owned()),
        ..Live::default()
    }
}

fn aged(hours: u64) -> impl Fn(Record) -> Record {
    move |mut record| {
        let delta = TimeDelta::hours(i64::try_from(hours).expect("few hours"));
        record.acquired_at = now() - delta;
        origin(&mut record).acquired_boottime_ms = BOOTTIME.saturating_sub(hours * HOUR);
        record
    }
}

fn verdict_of(record: Record, by: &Observer, world: &World) -> Verdict {
    let content = Content::Record(Box::new(record));
    judge(&content, &world.facts(), by, DEFAULT_MAX_AGE, &moment())
}

#[track_caller]
fn expect(row: &str, verdict: &Verdict, state: State, reason: Reason, evidence: Evidence) {
    assert_eq!(
        (verdict.state, verdict.reason, verdict.evidence),
        (state, reason, evidence),
        "{row}"
    );
}

#[track_caller]
fn expect_rows(rows: Vec<(&str, Record, World, State, Reason, Evidence)>) {
    for (row, record, world, state, reason, evidence) in rows {
        let verdict = verdict_of(record, &observer(), &world);
        expect(row, &verdict, state, reason, evidence);
    }
}

#[test]
fn run_is_judged_by_its_kernel_lock_and_its_processes() {
    use Evidence::{KernelLock, KernelLockGone, PidGone, SamePid, SameProcess, StartMismatch};
    use Reason::{Alive, Dead, Reused, Unverified};
    use State::{Held, Zombie};
    let both = || World::empty().running(100, 5000).running(200, 6000);
    let close = || changed(run(), |record| record.close = true);
    let unknown = |world: World| {
        world
            .with(100, ProcessState::Unknown)
            .with(200, ProcessState::Unknown)
    };
    let pid_only = || changed(run(), |record| record.live.start = None);
    let hidden = || World::empty().with(200, ProcessState::Alive { start: None });
    let unverified = Unverified(Uncertainty::OtherPidNamespace);
    #[rustfmt::skip]
    expect_rows(vec![
        ("both live", run(), both().locked(), Held, Alive, KernelLock),
        ("wrapper killed, command lives", run(), World::empty().running(200, 6000).locked(), Held, Alive, KernelLock),
        ("wrapper killed, command closed its descriptors", run(), World::empty().running(200, 6000), Held, Alive, SameProcess),
        ("wrapper lives, command has exited, about to be released", run(), World::empty().running(100, 5000).locked(), Held, Alive, KernelLock),
        ("both dead, a daemon keeps the descriptor", run(), World::empty().locked(), Zombie, Dead, PidGone),
        ("both dead", run(), World::empty(), Zombie, Dead, PidGone),
        ("both dead, kernel lock not probed", run(), World::empty().probed(None), Zombie, Dead, PidGone),
        ("both PIDs reused", run(), World::empty().running(100, 9).running(200, 9), Zombie, Reused, StartMismatch),
        ("the command's PID reused", run(), World::empty().running(200, 9), Zombie, Reused, StartMismatch),
        ("the command's start is not on record yet", pid_only(), World::empty().running(200, 6000), Held, Alive, SamePid),
        ("one tick off: a shifted time namespace", run(), World::empty().running(200, 6001), Held, Alive, SameProcess),
        ("two ticks off: another process", run(), World::empty().running(200, 6002), Zombie, Reused, StartMismatch),
        ("/proc shows no start: hidepid", run(), hidden(), Held, Alive, SamePid),
        ("another PID namespace, kernel lock taken", elsewhere(run()), World::empty().locked(), Held, Alive, KernelLock),
        ("another PID namespace, kernel lock free", elsewhere(run()), World::empty(), Zombie, Dead, KernelLockGone),
        ("another PID namespace, its PIDs exist here too", elsewhere(run()), both(), Zombie, Dead, KernelLockGone),
        ("another PID namespace, --close, kernel lock free", elsewhere(close()), World::empty(), Held, unverified, Evidence::None),
        ("another PID namespace, --close, kernel lock taken", elsewhere(close()), World::empty().locked(), Held, Alive, KernelLock),
        ("--close, wrapper killed, command lives", close(), World::empty().running(200, 6000), Held, Alive, SameProcess),
        ("--close, both dead", close(), World::empty(), Zombie, Dead, PidGone),
        ("moved to another store: the kernel lock does not count", elsewhere(run()), World::empty().in_another_store(), Held, unverified, Evidence::None),
        ("moved to another store, both dead", run(), World::empty().locked().in_another_store(), Zombie, Dead, PidGone),
        ("processes not visible, kernel lock free", run(), unknown(World::empty()), Held, Unverified(Uncertainty::ProcessUnreadable), Evidence::None),
        ("processes not visible, kernel lock taken", run(), unknown(World::empty()).locked(), Held, Alive, KernelLock),
    ]);
}

#[test]
fn run_without_command_is_dead_only_if_its_kernel_lock_is_known_to_be_free() {
    use Evidence::{BootMismatch, KernelLock, KernelLockGone, PidGone};
    use Reason::{Alive, Dead, Rebooted, Starting, TooOld, Unverified};
    use State::{Held, Zombie};
    let unverified = Unverified(Uncertainty::CommandUnknown);
    let rebooted = || of_boot(boot("before"), run_without_command());
    let library_hold = || changed(record(Kind::Process), |record| record.kernel_lock = true);
    let blanked = || changed(run(), |record| record.live = heartbeat(0, "this"));
    let other_format = || {
        changed(run_without_command(), |record| {
            record.format = Format::Prodigy;
        })
    };
    #[rustfmt::skip]
    expect_rows(vec![
        ("lock free", run_without_command(), World::empty(), Zombie, Dead, PidGone),
        ("lock taken: a child may be between fork and exec", run_without_command(), World::empty().locked(), Held, Starting, KernelLock),
        ("lock taken, and older than 24 h", aged(25)(run_without_command()), World::empty().locked(), Held, Starting, KernelLock),
        ("lock not probed", run_without_command(), World::empty().probed(None), Held, unverified, Evidence::None),
        ("lock not probed, older than 24 h", aged(25)(run_without_command()), World::empty().probed(None), Zombie, TooOld(Uncertainty::CommandUnknown), Evidence::Clock),
        ("lock free in another store: it does not count", run_without_command(), World::empty().in_another_store(), Held, unverified, Evidence::None),
        ("lock free over a network: it does not count", run_without_command(), World::empty().over_a_network(), Held, unverified, Evidence::None),
        ("wrapper lives", run_without_command(), World::empty().running(100, 5000).locked(), Held, Alive, KernelLock),
        ("another PID namespace, lock free", elsewhere(run_without_command()), World::empty(), Zombie, Dead, KernelLockGone),
        ("another PID namespace, lock taken", elsewhere(run_without_command()), World::empty().locked(), Held, Alive, KernelLock),
        ("rebooted, lock free", rebooted(), World::empty(), Zombie, Rebooted, BootMismatch),
        ("rebooted, lock taken", rebooted(), World::empty().locked(), Held, Alive, KernelLock),
        ("blank before a second command, lock free", blanked(), World::empty(), Zombie, Dead, PidGone),
        ("blank before a second command, lock taken", blanked(), World::empty().locked(), Held, Starting, KernelLock),
        ("hold of a library, lock taken", library_hold(), World::empty().locked(), Held, Starting, KernelLock),
        ("hold of a library, lock free", library_hold(), World::empty(), Zombie, Dead, PidGone),
        ("in a foreign format, lock taken", other_format(), World::empty().locked(), Held, Starting, KernelLock),
        ("in a foreign format, lock free", other_format(), World::empty(), Zombie, Dead, PidGone),
    ]);
}

#[test]
fn hold_whose_work_is_being_ended_is_held_until_nothing_of_it_runs() {
    use Evidence::{BootMismatch, KernelLock, KernelLockGone, None, PidGone, SameProcess};
    use Reason::{Dead, Ending, Rebooted, TooOld, Unverified};
    use State::{Held, Zombie};
    let ending = || changed(run(), |record| record.live.ending = Some(7));
    let far = Uncertainty::OtherPidNamespace;
    let exec = || changed(ending(), |record| record.exec = true);
    let old = || aged(25)(elsewhere(ending()));
    let rebooted = || of_boot(boot("before"), ending());
    #[rustfmt::skip]
    expect_rows(vec![
        ("its command exited before the rest", ending(), World::empty().locked(), Held, Ending, None),
        ("its command is alive", ending(), World::empty().running(200, 6000), Held, Ending, SameProcess),
        ("its command is alive and has the lock", ending(), World::empty().running(200, 6000).locked(), Held, Ending, KernelLock),
        ("no process on record is left, and the rest is not known", ending(), World::empty(), Held, Ending, None),
        ("the same, where the lock does not count", ending(), World::empty().locked().over_a_network(), Held, Ending, None),
        ("without a wrapper", exec(), World::empty(), Held, Ending, None),
        ("another PID namespace, lock free", elsewhere(ending()), World::empty(), Held, Unverified(far), None),
        ("another PID namespace, too old", old(), World::empty(), Zombie, TooOld(far), Evidence::Clock),
        ("another PID namespace, not being ended", elsewhere(run()), World::empty(), Zombie, Dead, KernelLockGone),
        ("rebooted", rebooted(), World::empty(), Zombie, Rebooted, BootMismatch),
        ("not being ended", run(), World::empty(), Zombie, Dead, PidGone),
    ]);
}

#[test]
fn hold_whose_work_is_over_is_judged_like_any_other() {
    let ending = changed(run(), |record| record.live.ending = Some(7));
    let hold = ending.hold;
    let content = Content::Record(Box::new(ending));
    let verdict_for = |over: Vec<u64>| {
        let by = Observer { over, ..observer() };
        judge(
            &content,
            &World::empty().facts(),
            &by,
            DEFAULT_MAX_AGE,
            &moment(),
        )
        .reason
    };
    assert_eq!(verdict_for(vec![]), Reason::Ending);
    assert_eq!(verdict_for(vec![hold + 1]), Reason::Ending);
    assert_eq!(verdict_for(vec![hold]), Reason::Dead);
}

#[test]
fn record_with_torn_slot_is_unverified_unless_its_holder_is_seen() {
    use Evidence::{BootMismatch, Clock, KernelLock, SameProcess};
    use Reason::{Alive, Rebooted, Starting, TooOld, Unverified};
    use State::{Held, Zombie};
    let unverified = Unverified(Uncertainty::CommandUnknown);
    let torn_process = || torn(detached());
    let torn_lease = || torn(lease(HOUR / 2));
    let with_ttl = || changed(torn(detached()), |record| record.ttl_ms = Some(HOUR / 2));
    let library_hold = || {
        changed(torn(record(Kind::Process)), |record| {
            record.kernel_lock = true;
        })
    };
    #[rustfmt::skip]
    expect_rows(vec![
        ("run, lock free", torn(run()), World::empty(), Held, unverified, Evidence::None),
        ("run, lock not probed", torn(run()), World::empty().probed(None), Held, unverified, Evidence::None),
        ("run, lock taken", torn(run()), World::empty().locked(), Held, Starting, KernelLock),
        ("run, wrapper lives", torn(run()), World::empty().running(100, 5000), Held, Alive, SameProcess),
        ("run, older than 24 h", aged(25)(torn(run())), World::empty(), Zombie, TooOld(Uncertainty::CommandUnknown), Clock),
        ("run in another PID namespace, lock free", elsewhere(torn(run())), World::empty(), Held, Unverified(Uncertainty::OtherPidNamespace), Evidence::None),
        ("run, rebooted", of_boot(boot("before"), torn(run())), World::empty(), Zombie, Rebooted, BootMismatch),
        ("hold of a library, lock free", library_hold(), World::empty(), Held, unverified, Evidence::None),
        ("detached: its process cannot be read, its writer has exited", torn_process(), World::empty(), Held, unverified, Evidence::None),
        ("detached with a TTL that may have been extended", with_ttl(), World::empty(), Held, unverified, Evidence::None),
        ("lease that may have been renewed", torn_lease(), World::empty(), Held, unverified, Evidence::None),
        ("lease, older than 24 h", aged(25)(torn_lease()), World::empty(), Zombie, TooOld(Uncertainty::CommandUnknown), Clock),
    ]);
}

type Change = fn(&mut Record);
type Place = fn(Record) -> Record;

#[test]
fn run_out_of_reach_is_dead_by_its_free_kernel_lock_unless_its_command_let_go() {
    use State::{Held, Zombie};
    let kinds: [(&str, Change, bool); 3] = [
        ("ordinary", |_| (), true),
        ("--close", |record| record.close = true, false),
        ("let go", |record| record.live.let_go = true, false),
    ];
    let places: [(&str, Place, Uncertainty); 3] = [
        (
            "another PID namespace",
            elsewhere,
            Uncertainty::OtherPidNamespace,
        ),
        (
            "unknown boot",
            |record| changed(record, |record| origin(record).boot = None),
            Uncertainty::UnknownBoot,
        ),
        (
            "masked boot",
            |record| of_boot(masked("before"), record),
            Uncertainty::UnknownBoot,
        ),
    ];
    for (kind, change, is_dead) in kinds {
        for (place, put, uncertainty) in places {
            let row = format!("{kind}, {place}");
            let record = put(changed(run(), change));
            let free = verdict_of(record.clone(), &observer(), &World::empty());
            if is_dead {
                expect(&row, &free, Zombie, Reason::Dead, Evidence::KernelLockGone);
            } else {
                expect(
                    &row,
                    &free,
                    Held,
                    Reason::Unverified(uncertainty),
                    Evidence::None,
                );
            }
            let taken = verdict_of(record.clone(), &observer(), &World::empty().locked());
            expect(&row, &taken, Held, Reason::Alive, Evidence::KernelLock);
            let unknown = verdict_of(record, &observer(), &World::empty().probed(None));
            expect(
                &row,
                &unknown,
                Held,
                Reason::Unverified(uncertainty),
                Evidence::None,
            );
        }
    }
    let without_proc = changed(observer(), |by| by.pid_namespace = None);
    for (kind, change, is_dead) in kinds {
        let verdict = verdict_of(changed(run(), change), &without_proc, &World::empty());
        assert_eq!(verdict.state == Zombie, is_dead, "{kind}, no /proc");
    }
    let let_go = changed(run(), |record| record.live.let_go = true);
    let verdict = verdict_of(let_go, &observer(), &World::empty());
    assert_eq!(
        verdict.reason,
        Reason::Dead,
        "within reach its processes are seen to be dead"
    );
}

#[test]
fn detached_hold_is_judged_by_its_process_alone() {
    use Evidence::{Clock, PidGone, SameProcess, StartMismatch};
    use State::{Held, Overdue, Zombie};
    let alive = || World::empty().running(300, 7000);
    let elsewhere = || elsewhere(detached());
    let unconfirmed = || changed(detached(), |record| record.live = Live::default());
    let with_ttl = |ttl: u64| changed(detached(), |record| record.ttl_ms = Some(ttl));
    let unconfirmed_lease = || changed(lease(HOUR / 2), |record| record.live = Live::default());
    let unverified = Reason::Unverified(Uncertainty::OtherPidNamespace);
    #[rustfmt::skip]
    expect_rows(vec![
        ("alive; the process that acquired it has exited", detached(), alive(), Held, Reason::Alive, SameProcess),
        ("dead", detached(), World::empty(), Zombie, Reason::Dead, PidGone),
        ("dead, though another process locks the file", detached(), World::empty().locked(), Zombie, Reason::Dead, PidGone),
        ("PID reused", detached(), World::empty().running(300, 8000), Zombie, Reason::Reused, StartMismatch),
        ("another PID namespace", elsewhere(), alive(), Held, unverified, Evidence::None),
        ("not confirmed, writer alive", unconfirmed(), World::empty().running(100, 5000), Held, Reason::Alive, SameProcess),
        ("not confirmed, writer dead", unconfirmed(), alive(), Zombie, Reason::Dead, PidGone),
        ("lease, not confirmed, writer alive after its TTL", unconfirmed_lease(), World::empty().running(100, 5000), Held, Reason::Alive, SameProcess),
        ("lease, not confirmed, writer dead", unconfirmed_lease(), World::empty(), Zombie, Reason::Dead, PidGone),
        ("alive, older than 24 h", aged(25)(detached()), alive(), Overdue, Reason::Alive, SameProcess),
        ("another namespace, older than 24 h", aged(25)(elsewhere()), alive(), Zombie, Reason::TooOld(Uncertainty::OtherPidNamespace), Clock),
        ("another namespace, nearly 24 h", aged(23)(elsewhere()), alive(), Held, unverified, Evidence::None),
        ("--ttl beside --pid, not expired", with_ttl(2 * HOUR), alive(), Held, Reason::Alive, SameProcess),
        ("--ttl beside --pid, expired", with_ttl(HOUR / 2), alive(), Zombie, Reason::Expired, Clock),
        ("--ttl beside --pid, process dead first", with_ttl(2 * HOUR), World::empty(), Zombie, Reason::Dead, PidGone),
        ("--ttl beside --pid, both over", with_ttl(HOUR / 2), World::empty(), Zombie, Reason::Dead, PidGone),
    ]);
}

#[test]
fn other_boot_is_death_only_on_this_machine_and_without_kernel_lock() {
    use Evidence::{BootMismatch, KernelLock};
    use State::{Held, Zombie};
    let from = |id: BootId| of_boot(id, run());
    let process_of = |id: BootId| of_boot(id, detached());
    let unknown = || changed(run(), |record| origin(record).boot = None);
    let unverified = Reason::Unverified;
    let in_container = || changed(observer(), |by| by.boot = Some(masked("this")));
    let blind = || changed(observer(), |by| by.boot = None);
    let machineless = || changed(observer(), |by| by.machine = None);
    let renamed =
        |record: Record| changed(record, |record| record.hostname = Some("db2".to_owned()));
    let nameless = |record: Record| changed(record, |record| record.hostname = None);
    let other_machine = |record: Record| {
        changed(record, |record| {
            origin(record).machine = Some("machine-2".to_owned());
        })
    };
    let without_machine = |record: Record| changed(record, |record| origin(record).machine = None);
    let free = || World::empty().running(100, 5000).running(200, 6000);
    let locked = || free().locked();
    #[rustfmt::skip]
    let rows: Vec<(&str, Record, Observer, World, State, Reason, Evidence)> = vec![
        ("rebooted, the PIDs exist", from(boot("before")), observer(), free(), Zombie, Reason::Rebooted, BootMismatch),
        ("rebooted, lock not probed", from(boot("before")), observer(), free().probed(None), Zombie, Reason::Rebooted, BootMismatch),
        ("another boot, lock taken", from(boot("before")), observer(), locked(), Held, Reason::Alive, KernelLock),
        ("copied machine ID: another host name forbids the conclusion", renamed(process_of(boot("before"))), observer(), free(), Held, unverified(Uncertainty::OtherHost), Evidence::None),
        ("another machine", other_machine(process_of(boot("before"))), observer(), free(), Held, unverified(Uncertainty::UnknownBoot), Evidence::None),
        ("another machine and host name", renamed(other_machine(process_of(boot("before")))), observer(), free(), Held, unverified(Uncertainty::OtherHost), Evidence::None),
        ("machine not on record, same host name", without_machine(from(boot("before"))), observer(), free(), Zombie, Reason::Rebooted, BootMismatch),
        ("machine not on record, another host name", renamed(without_machine(process_of(boot("before")))), observer(), free(), Held, unverified(Uncertainty::OtherHost), Evidence::None),
        ("machine not on record, no host name", nameless(without_machine(process_of(boot("before")))), observer(), free(), Held, unverified(Uncertainty::UnknownBoot), Evidence::None),
        ("own machine unknown, same host name", from(boot("before")), machineless(), free(), Zombie, Reason::Rebooted, BootMismatch),
        ("own machine unknown, another host name", renamed(process_of(boot("before"))), machineless(), free(), Held, unverified(Uncertainty::OtherHost), Evidence::None),
        ("boot on record masked", from(masked("before")), observer(), locked(), Held, Reason::Alive, KernelLock),
        ("own boot masked", from(boot("before")), in_container(), locked(), Held, Reason::Alive, KernelLock),
        ("the same masked ID is the same boot", from(masked("this")), in_container(), locked(), Held, Reason::Alive, KernelLock),
        ("no boot on record", unknown(), observer(), locked(), Held, Reason::Alive, KernelLock),
        ("own boot unknown", run(), blind(), locked(), Held, Reason::Alive, KernelLock),
        ("boot on record masked, detached", process_of(masked("before")), observer(), free(), Held, unverified(Uncertainty::UnknownBoot), Evidence::None),
        ("own boot unknown, detached", detached(), blind(), free(), Held, unverified(Uncertainty::UnknownBoot), Evidence::None),
        ("boot on record masked, detached, long ago", aged(25)(process_of(masked("before"))), observer(), free(), Zombie, Reason::TooOld(Uncertainty::UnknownBoot), Evidence::Clock),
        ("network filesystem, another boot", from(boot("before")), observer(), locked().over_a_network(), Held, unverified(Uncertainty::OtherHost), Evidence::None),
        ("network filesystem, another boot and host", renamed(from(boot("other"))), observer(), locked().over_a_network(), Held, unverified(Uncertainty::OtherHost), Evidence::None),
        ("network filesystem, this boot: PIDs count, kernel locks do not", run(), observer(), locked().over_a_network(), Held, Reason::Alive, Evidence::SameProcess),
    ];
    for (row, record, by, world, state, reason, evidence) in rows {
        expect(
            row,
            &verdict_of(record, &by, &world),
            state,
            reason,
            evidence,
        );
    }
}

#[test]
fn lease_ends_with_its_time_to_live_and_with_nothing_else() {
    use State::{Held, Zombie};
    let rebooted = |record: Record| of_boot(boot("before"), record);
    let foreign = |record: Record| {
        changed(rebooted(record), |record| {
            record.hostname = Some("db2".to_owned());
        })
    };
    let renewed = |minutes_ago: u64, boot_id: &str| {
        changed(lease(HOUR / 2), |record| {
            record.live = heartbeat_minutes(minutes_ago, boot_id);
        })
    };
    let extended = || {
        changed(renewed(40, "this"), |record| {
            record.live.ttl_ms = Some(HOUR);
        })
    };
    let shortened = || {
        changed(renewed(20, "this"), |record| {
            record.live.ttl_ms = Some(HOUR / 4);
        })
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
    let locked = || World::empty().locked();
    #[rustfmt::skip]
    let rows: Vec<(&str, Record, World, State)> = vec![
        ("not expired", lease(HOUR + 1), World::empty(), Held),
        ("expired", lease(HOUR), World::empty(), Zombie),
        ("expired, though another process locks the file", lease(HOUR), locked(), Zombie),
        ("far older than 24 h, not expired", aged(90)(lease(99 * HOUR)), World::empty(), Held),
        ("not expired, across a reboot", rebooted(lease(HOUR + 1)), World::empty(), Held),
        ("expired, across a reboot", rebooted(lease(HOUR)), World::empty(), Zombie),
        ("another host's, just expired: its clock may be wrong", foreign(lease(HOUR)), World::empty(), Held),
        ("another host's, expired by less than a tenth", foreign(lease(HOUR - HOUR / 20)), World::empty(), Held),
        ("another host's, expired by more", foreign(lease(HOUR - HOUR / 9)), World::empty(), Zombie),
        ("renewed in time", renewed(20, "this"), World::empty(), Held),
        ("renewed too long ago", renewed(31, "this"), World::empty(), Zombie),
        ("renewed in another boot, in time by the wall clock", renewed(20, "other"), World::empty(), Held),
        ("renewed with a longer TTL", extended(), World::empty(), Held),
        ("renewed with a shorter TTL", shortened(), World::empty(), Zombie),
        ("the wall clock was put forward", clock_put_forward(), World::empty(), Held),
        ("the wall clock was put back", clock_put_back(), World::empty(), Zombie),
        ("more milliseconds than there are", lease(u64::MAX), World::empty(), Held),
    ];
    for (row, record, world, state) in rows {
        let reason = if state == Held {
            Reason::Lease
        } else {
            Reason::Expired
        };
        let verdict = verdict_of(record, &observer(), &world);
        expect(row, &verdict, state, reason, Evidence::Clock);
        assert_eq!((verdict.pid, verdict.pid_alive), (None, None), "{row}");
    }
}

#[test]
fn run_with_ttl_does_not_expire_while_it_is_alive() {
    use Evidence::{Clock, KernelLock, SameProcess};
    use State::{Held, Zombie};
    let with_ttl = |record: Record| changed(record, |record| record.ttl_ms = Some(HOUR / 2));
    let library_hold = || changed(record(Kind::Process), |record| record.kernel_lock = true);
    let long_ago = || {
        changed(with_ttl(run()), |record| {
            record.live.renewed_at = Some(now() - TimeDelta::minutes(40));
            record.live.renewed_boottime_ms = Some(BOOTTIME - HOUR * 2 / 3);
            record.live.renewed_boot_id = Some("this".to_owned());
        })
    };
    let command = || World::empty().running(200, 6000);
    #[rustfmt::skip]
    expect_rows(vec![
        ("alive, its wrapper stopped renewing", with_ttl(run()), command().locked(), Held, Reason::Alive, KernelLock),
        ("alive, its last heartbeat expired", long_ago(), command().locked(), Held, Reason::Alive, KernelLock),
        ("alive, its command let go of the lock", with_ttl(run()), command(), Held, Reason::Alive, SameProcess),
        ("its command may be about to start", with_ttl(run_without_command()), World::empty().locked(), Held, Reason::Starting, KernelLock),
        ("hold of a library", with_ttl(library_hold()), World::empty().running(100, 5000).locked(), Held, Reason::Alive, KernelLock),
        ("out of sight", with_ttl(of_boot(boot("other"), run())), World::empty().over_a_network(), Zombie, Reason::Expired, Clock),
        ("dead", with_ttl(run()), World::empty(), Zombie, Reason::Dead, Evidence::PidGone),
    ]);
}

#[test]
fn record_left_by_finished_exec_is_free() {
    use Evidence::{BootMismatch, KernelLock, KernelLockGone, PidGone};
    use State::{Free, Held};
    let exec = || changed(record(Kind::Run), |record| record.exec = true);
    let recorded = || {
        changed(exec(), |record| {
            record.live.set_process(process(100, Some(5000)));
        })
    };
    let alive = || World::empty().running(100, 5000).locked();
    #[rustfmt::skip]
    expect_rows(vec![
        ("alive", exec(), alive(), Held, Reason::Alive, KernelLock),
        ("alive, its PID in the slot", recorded(), alive(), Held, Reason::Alive, KernelLock),
        ("dead", exec(), World::empty(), Free, Reason::Finished, PidGone),
        ("dead, its PID in the slot", recorded(), World::empty(), Free, Reason::Finished, PidGone),
        ("dead, a daemon keeps the descriptor", exec(), World::empty().locked(), Free, Reason::Finished, PidGone),
        ("another PID namespace, lock free", elsewhere(exec()), World::empty(), Free, Reason::Finished, KernelLockGone),
        ("rebooted", of_boot(boot("before"), exec()), World::empty(), Free, Reason::Finished, BootMismatch),
    ]);
}

#[test]
fn record_without_identity_is_judged_by_its_pid_host_and_time() {
    use State::{Held, Overdue, Zombie};
    let hand = |hostname: Option<&str>| {
        changed(record(Kind::Process), |record| {
            record.origin = None;
            record.hostname = hostname.map(ToOwned::to_owned);
        })
    };
    let old = |hostname: Option<&str>| {
        changed(hand(hostname), |record| {
            record.acquired_at = now() - TimeDelta::hours(25);
        })
    };
    // As a foreign record is read.
    let foreign =
        |format: Format, pid: Option<Pid>| Record::new(format, pid, now() - TimeDelta::hours(1));
    let no_process = || foreign(Format::Pid, None);
    let no_process_old = || Record::new(Format::Pid, None, now() - TimeDelta::hours(25));
    let pid_file = || foreign(Format::Pid, Pid::new(100));
    // The record was written an hour ago, 99 hours after boot, which is tick 35,640,000.
    let before = || World::empty().running(100, 35_000_000);
    let after = || World::empty().running(100, 35_900_000);
    // Half a second after what may be a time without its fraction.
    let just_after = || World::empty().running(100, 35_640_050);
    // 75 hours after boot.
    let older = || World::empty().running(100, 26_000_000);
    let startless = || World::empty().with(100, ProcessState::Alive { start: None });
    let unknown = || World::empty().with(100, ProcessState::Unknown);
    let locked = || World::empty().locked();
    let other_host = Uncertainty::OtherHost;
    let no_pid = Reason::Unverified(Uncertainty::NoProcess);
    #[rustfmt::skip]
    let rows: Vec<(&str, Record, World, State, Reason)> = vec![
        ("dead, our host", hand(Some("db1")), World::empty(), Zombie, Reason::Dead),
        ("dead, our host in capitals", hand(Some("DB1")), World::empty(), Zombie, Reason::Dead),
        ("dead, no host", hand(None), World::empty(), Zombie, Reason::Dead),
        ("dead, no host, long ago", old(None), World::empty(), Zombie, Reason::Dead),
        ("dead, another host", hand(Some("db2")), World::empty(), Held, Reason::Unverified(other_host)),
        ("dead, another host, long ago", old(Some("db2")), World::empty(), Zombie, Reason::TooOld(other_host)),
        ("exists, started before the record", hand(None), before(), Held, Reason::Alive),
        ("exists, started before the record, long ago", old(None), older(), Overdue, Reason::Alive),
        ("exists, started after the record", hand(None), after(), Held, Reason::Unverified(Uncertainty::PidOnly)),
        ("exists, started after the record, long ago", old(None), before(), Zombie, Reason::TooOld(Uncertainty::PidOnly)),
        ("exists, started in that second", hand(None), just_after(), Held, Reason::Alive),
        ("exists, its start is hidden", hand(None), startless(), Held, Reason::Unverified(Uncertainty::PidOnly)),
        ("not visible", hand(None), unknown(), Held, Reason::Unverified(Uncertainty::ProcessUnreadable)),
        ("dead, and the file is locked", hand(None), locked(), Held, Reason::Alive),
        ("another host, and the file is locked", hand(Some("db2")), locked(), Held, Reason::Alive),
        ("dead, and the file is locked over a network", hand(None), locked().over_a_network(), Zombie, Reason::Dead),
        ("PID file, dead", pid_file(), World::empty(), Zombie, Reason::Dead),
        ("PID file, exists", pid_file(), before(), Held, Reason::Alive),
        ("PID file that names no process", no_process(), World::empty(), Held, no_pid),
        ("PID file that names no process, locked", no_process(), locked(), Held, Reason::Alive),
        ("PID file that names no process, long ago", no_process_old(), World::empty(), Zombie, Reason::TooOld(Uncertainty::NoProcess)),
        ("prodigy's record with PID 0", foreign(Format::Prodigy, None), World::empty(), Held, no_pid),
    ];
    for (row, record, world, state, reason) in rows {
        let verdict = verdict_of(record, &observer(), &world);
        assert_eq!((verdict.state, verdict.reason), (state, reason), "{row}");
    }
    let nameless = changed(observer(), |by| by.hostname = None);
    let verdict = verdict_of(hand(Some("db1")), &nameless, &World::empty());
    assert_eq!(
        verdict.reason,
        Reason::Unverified(other_host),
        "own host name unknown"
    );
}

#[test]
fn age_counts_from_the_last_heartbeat_and_the_holders_maximum_applies() {
    let alive = World::empty().running(200, 6000).locked();
    let old = || aged(25)(run());
    let state = |record: Record| verdict_of(record, &observer(), &alive).state;
    assert_eq!(state(old()), State::Overdue);
    let fresh = changed(old(), |record| {
        record.live = Live {
            pid: record.live.pid,
            start: record.live.start,
            ..heartbeat(1, "this")
        };
    });
    assert_eq!(state(fresh.clone()), State::Held);
    let age = verdict_of(fresh, &observer(), &alive).age;
    assert_eq!(age, Some(Duration::from_hours(1)));
    let patient = changed(old(), |record| record.max_age_ms = Some(48 * HOUR));
    assert_eq!(state(patient), State::Held);
    let impatient = changed(run(), |record| record.max_age_ms = Some(HOUR / 2));
    assert_eq!(state(impatient), State::Overdue);
}

#[test]
fn time_in_the_future_is_not_an_age() {
    let from = |delta: TimeDelta| {
        changed(detached(), |record| {
            record.acquired_at = now() + delta;
            origin(record).boot = None;
        })
    };
    let judged = |record: Record, modified: DateTime<Utc>| {
        let world = changed(World::empty(), |world| world.modified = modified);
        verdict_of(record, &observer(), &world)
    };
    let soon = judged(from(TimeDelta::minutes(4)), now() - TimeDelta::hours(25));
    assert_eq!(
        soon.age,
        Some(Duration::ZERO),
        "a small lead is a clock that differs"
    );
    let old = judged(from(TimeDelta::days(9)), now() - TimeDelta::hours(25));
    assert_eq!(
        old.state,
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
fn damaged_record_is_zombie_after_10_s_without_change() {
    let judged = |seconds_ago: i64, world: World| {
        let modified = now() - TimeDelta::seconds(seconds_ago);
        let world = changed(world, |world| world.modified = modified);
        let (facts, by) = (world.facts(), observer());
        judge(&Content::Corrupt, &facts, &by, DEFAULT_MAX_AGE, &moment())
    };
    let reason = |seconds_ago| judged(seconds_ago, World::empty()).reason;
    assert_eq!(reason(0), Reason::Incomplete);
    assert_eq!(reason(9), Reason::Incomplete);
    assert_eq!(reason(10), Reason::Corrupt);
    assert_eq!(reason(-60), Reason::Incomplete, "a clock that differs");
    assert_eq!(
        reason(-86_400),
        Reason::Corrupt,
        "a clock that was put back"
    );
    let held = judged(60, World::empty().locked());
    assert_eq!(
        (held.state, held.reason),
        (State::Held, Reason::Alive),
        "its holder is alive"
    );
    let remote = judged(60, World::empty().locked().over_a_network());
    assert_eq!(
        remote.reason,
        Reason::Corrupt,
        "the kernel lock does not count there"
    );
}

#[test]
fn unknown_version_is_held_and_unknown_file_is_not_a_lock() {
    let world = changed(World::empty(), |world| {
        world.modified = now() - TimeDelta::days(1000);
    });
    let judged = |content: &Content| {
        judge(
            content,
            &world.facts(),
            &observer(),
            DEFAULT_MAX_AGE,
            &moment(),
        )
    };
    let unknown = judged(&Content::UnknownVersion(2));
    assert_eq!(
        (unknown.state, unknown.reason),
        (State::Held, Reason::UnknownVersion(2))
    );
    let other = judged(&Content::NotALock("x"));
    assert_eq!(other.state, State::NotALock);
}

#[test]
fn verdict_names_the_process_that_keeps_the_hold_alive() {
    let command = World::empty().running(200, 6000).locked();
    let verdict = verdict_of(run(), &observer(), &command);
    assert_eq!(verdict.pid, Pid::new(200));
    assert_eq!(
        (verdict.pid_alive, verdict.wrapper_alive),
        (Some(true), Some(false))
    );
    let verdict = verdict_of(run(), &observer(), &World::empty());
    assert_eq!(
        (verdict.pid, verdict.pid_alive),
        (Pid::new(200), Some(false))
    );
    let starting = verdict_of(run_without_command(), &observer(), &World::empty().locked());
    assert_eq!(
        (starting.pid, starting.pid_alive, starting.wrapper_alive),
        (Pid::new(100), Some(false), Some(false))
    );
    let mut locked_by_another = record(Kind::Process);
    locked_by_another.origin = None;
    let verdict = verdict_of(locked_by_another, &observer(), &World::empty().locked());
    assert_eq!(
        (verdict.evidence, verdict.pid, verdict.pid_alive),
        (Evidence::KernelLock, Pid::new(100), Some(false)),
        "a kernel lock does not show which process keeps it"
    );
    let out_of_reach = verdict_of(elsewhere(run()), &observer(), &command);
    assert_eq!(
        (
            out_of_reach.pid,
            out_of_reach.pid_alive,
            out_of_reach.wrapper_alive
        ),
        (Pid::new(200), None, None)
    );
}

fn any_record() -> impl Strategy<Value = Record> {
    let base = prop_oneof![
        Just(run()),
        Just(run_without_command()),
        Just(detached()),
        Just(changed(detached(), |record| record.live = Live::default())),
        Just(lease(HOUR / 2)),
        Just(lease(2 * HOUR)),
        Just(torn(run())),
        Just(torn(detached())),
        Just(torn(lease(HOUR / 2))),
        Just(changed(record(Kind::Process), |record| record
            .kernel_lock =
            true)),
        Just(changed(record(Kind::Process), |record| record.origin = None)),
    ];
    (base, any::<[bool; 7]>(), 0..30_u64).prop_map(|(record, flags, hours)| {
        let [close, exec, let_go, ending, far, rebooted, other_host] = flags;
        changed(record, |record| {
            record.close = close;
            record.exec = exec && record.kind == Kind::Run;
            record.live.let_go = let_go && record.kind == Kind::Run;
            record.live.ending = Some(1).filter(|_| ending && record.kind == Kind::Run);
            record.acquired_at = now() - TimeDelta::hours(i64::try_from(hours).unwrap_or(0));
            if other_host {
                record.hostname = Some("db2".to_owned());
            }
            if let Some(origin) = &mut record.origin {
                origin.acquired_boottime_ms = BOOTTIME - hours * HOUR;
                if far {
                    origin.pid_namespace = Some(2);
                }
                if rebooted {
                    origin.boot = Some(boot("before"));
                }
            }
        })
    })
}

fn any_world() -> impl Strategy<Value = World> {
    let state = || {
        prop_oneof![
            Just(ProcessState::Gone),
            Just(ProcessState::Unknown),
            Just(ProcessState::Alive { start: None }),
            Just(ProcessState::Alive { start: Some(5000) }),
            Just(ProcessState::Alive { start: Some(6000) }),
            Just(ProcessState::Alive { start: Some(7000) }),
        ]
    };
    let states = [state(), state(), state()];
    let lock = prop_oneof![Just(None), Just(Some(false)), Just(Some(true))];
    (states, lock, any::<bool>(), any::<bool>()).prop_map(|(states, lock, same, shares)| {
        let mut world = World::empty().probed(lock);
        for (pid, state) in PIDS.into_iter().zip(states) {
            world = world.with(pid, state);
        }
        world.same_store = same;
        world.shares_kernel_locks = shares;
        world
    })
}

proptest! {
    #[test]
    fn verdict_depends_on_no_more_facts_than_needed(record in any_record(), world in any_world()) {
        let content = Content::Record(Box::new(record));
        let by = observer();
        let asked = needed(&content, &by);
        let all = world.facts();
        let few = Facts {
            kernel_lock: all.kernel_lock.filter(|_| asked.kernel_lock),
            lockers: Vec::new(),
            processes: all
                .processes
                .iter()
                .filter(|fact| asked.processes.contains(&fact.pid))
                .copied()
                .collect(),
            ..all.clone()
        };
        let judged = |facts: &Facts| judge(&content, facts, &by, DEFAULT_MAX_AGE, &moment());
        prop_assert_eq!(judged(&all), judged(&few));
    }

    #[test]
    fn live_process_or_held_kernel_lock_is_never_taken_for_death(
        record in any_record(),
        world in any_world(),
    ) {
        let verdict = verdict_of(record.clone(), &observer(), &world);
        let is_dead = matches!(
            verdict.reason,
            Reason::Dead | Reason::Reused | Reason::Rebooted | Reason::Finished
        );
        let is_reachable = record.origin.as_ref().is_some_and(|origin| is_reachable(origin, &observer()));
        let lives = is_reachable
            && record
                .processes()
                .into_iter()
                .any(|process| matches!(process_liveness(process, &world.facts()), Liveness::Alive(_)));
        prop_assert!(!(lives && is_dead), "{verdict:?}");
        let starting = record.kernel_lock && !record.exec && !record.has_command();
        let locked = world.kernel_lock == Some(true) && world.shares_kernel_locks;
        prop_assert!(!(starting && locked && record.origin.is_some() && is_dead), "{verdict:?}");
    }

    #[test]
    fn unlocking_a_file_never_makes_its_hold_more_certain_to_live(
        record in any_record(),
        world in any_world(),
    ) {
        let taken = verdict_of(record.clone(), &observer(), &world.clone().locked());
        let free = verdict_of(record, &observer(), &world.probed(Some(false)));
        let is_held = |verdict: &Verdict| matches!(verdict.state, State::Held | State::Overdue);
        prop_assert!(is_held(&taken) || !is_held(&free), "{taken:?} {free:?}");
    }
}

#[test]
fn host_names_are_compared_without_case() {
    let same = |theirs: Option<&str>, ours: Option<&str>| {
        let mut foreign = Record::new(Format::Prodigy, Pid::new(7), Utc::now());
        foreign.hostname = theirs.map(str::to_owned);
        let by = Observer {
            hostname: ours.map(str::to_owned),
            ..observer()
        };
        is_same_host(&foreign, &by)
    };
    assert_eq!(same(Some("Db1"), Some("dB1")), Some(true));
    assert_eq!(same(Some("db1"), Some("db2")), Some(false));
    assert_eq!(same(None, Some("db2")), None);
    // COMPUTERNAME has 15 bytes of a longer name.
    let long = Some("build-server-north-1");
    assert_eq!(same(Some("BUILD-SERVER-NO"), long), Some(cfg!(windows)));
    assert_eq!(same(long, Some("BUILD-SERVER-NO")), Some(false));
    assert_eq!(same(Some("BUILD"), long), Some(false));
}
