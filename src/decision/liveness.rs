//! Judges a record: facts in, [`Verdict`] (state, reason and evidence) out. Pure.
//!
//! A hold is dead if its processes are known to have ended, and too old if that cannot be known.
//! Uncertainty is never taken for death, and a live holder never loses its lock to a clock.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use super::request::{Moment, Observer};
use super::snapshot::{Facts, Life};
use crate::identity::{Origin, Pid, ProcessId};
use crate::record::{Content, Kind, Record, has_four_digits};
use crate::sys::ProcessState;

/// Age from which a hold whose holder cannot be checked is a zombie.
pub const DEFAULT_MAX_AGE: Duration = Duration::from_hours(24);

/// How exactly the time of a foreign record and the start of a process can be compared: some
/// programs write whole seconds, rounded down.
const PRECISION_MS: i64 = 2_000;

/// For this long a damaged record may still be being written.
const CORRUPT_AFTER: TimeDelta = TimeDelta::seconds(10);

/// A time further ahead comes from a clock that was wrong.
const FUTURE_TOLERANCE: TimeDelta = TimeDelta::minutes(5);

/// The state of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has no holder.
    Free,
    /// It has a holder, or may have one.
    Held,
    /// Its holder is alive, and older than its maximum age.
    Overdue,
    /// Its holder is dead or its lease has expired: the next one takes it over unasked.
    Zombie,
    /// Its file is not a lock file, and is left alone.
    NotALock,
}

/// Why a lock is in its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// Free: no file.
    NoFile,
    /// Free: left by a `run --exec` whose command has exited.
    Finished,
    /// Held or overdue: the holder is alive.
    Alive,
    /// Held: its wrapper is dead, and a command of it may be about to start.
    Starting,
    /// Held: all of its work is being ended by force, and may not have ended yet.
    Ending,
    /// Held: free, but reserved for the first waiter that could take it.
    Reserved,
    /// Held: a lease that has not expired.
    Lease,
    /// Held: written by another version of onehold, with this version of the record; held until broken.
    UnknownVersion(u64),
    /// Held: incomplete, and changed less than 10 s ago.
    Incomplete,
    /// Held: the holder can be shown neither alive nor dead.
    Unverified(Uncertainty),
    /// Zombie: the holder has exited.
    Dead,
    /// Zombie: the holder has exited, and its PID belongs to another process.
    Reused,
    /// Zombie: the holder ran before the last reboot.
    Rebooted,
    /// Zombie: its time to live is over.
    Expired,
    /// Zombie: unverified, and older than its maximum age.
    TooOld(Uncertainty),
    /// Zombie: damaged, and unchanged for 10 s.
    Corrupt,
    /// Zombie: not a lock file, unchanged for 10 s, and at a place that is meant for one. It is moved
    /// aside only by [`Lock::move_aside`](crate::Lock::move_aside).
    Malformed(&'static str),
    /// Not a lock file; what it is instead.
    NotALock(&'static str),
}

/// Why a holder cannot be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Uncertainty {
    /// The holder is or may be on another host.
    OtherHost,
    /// The holder is in another PID namespace, where its PID means another process.
    OtherPidNamespace,
    /// The record is of another boot, and nothing shows that this machine was rebooted.
    UnknownBoot,
    /// A process has the PID, and the record does not say enough to tell whether it is the holder.
    PidOnly,
    /// The record names no process.
    NoProcess,
    /// The system does not say whether the process exists.
    ProcessUnreadable,
    /// The recorded processes have exited, and nothing shows whether there is another: a command
    /// that is about to start, or one whose PID was being written.
    CommandUnknown,
    /// The system does not list kernel locks, and those of readers cannot be found in another way.
    LocksNotListed,
}

/// The observation behind a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Evidence {
    /// None was needed, or there was none.
    None,
    /// A process holds a kernel lock on the file.
    KernelLock,
    /// The recorded process exists, with the recorded start.
    SameProcess,
    /// A process with the recorded PID exists; its start could not be compared.
    SamePid,
    /// No process has the recorded PID.
    PidGone,
    /// The process with the recorded PID has another start.
    StartMismatch,
    /// The machine has been rebooted.
    BootMismatch,
    /// The kernel lock of the holder is free.
    KernelLockGone,
    /// A clock.
    Clock,
    /// The lease of the hold is kept: its key is there.
    LeaseKept,
    /// The key of the hold is gone: its lease has ended.
    LeaseEnded,
}

impl Reason {
    /// Its name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NoFile => "no-file",
            Self::Finished => "finished",
            Self::Alive => "alive",
            Self::Starting => "starting",
            Self::Ending => "ending",
            Self::Reserved => "reserved",
            Self::Lease => "lease",
            Self::UnknownVersion(_) => "unknown-version",
            Self::Incomplete => "incomplete",
            Self::Unverified(_) => "unverified",
            Self::Dead => "dead",
            Self::Reused => "reused",
            Self::Rebooted => "rebooted",
            Self::Expired => "expired",
            Self::TooOld(_) => "too-old",
            Self::Corrupt => "corrupt",
            Self::Malformed(_) => "malformed",
            Self::NotALock(_) => "not-a-lock",
        }
    }
}

impl Evidence {
    /// Its name in JSON. `None`: there is none.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::KernelLock => Some("kernel-lock"),
            Self::SameProcess => Some("same-process"),
            Self::SamePid => Some("same-pid"),
            Self::PidGone => Some("pid-gone"),
            Self::StartMismatch => Some("other-start"),
            Self::BootMismatch => Some("other-boot"),
            Self::KernelLockGone => Some("kernel-lock-gone"),
            Self::Clock => Some("clock"),
            Self::LeaseKept => Some("lease-kept"),
            Self::LeaseEnded => Some("lease-ended"),
        }
    }
}

/// What can be said about a lock, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdict {
    /// The state.
    pub state: State,
    /// Why.
    pub reason: Reason,
    /// The observation behind it.
    pub evidence: Evidence,
    /// The process that keeps the hold alive, or that did.
    pub pid: Option<Pid>,
    /// Whether that process exists; `None` if that is not known or there is none.
    pub pid_alive: Option<bool>,
    /// Of a `run`: whether its wrapper exists; `None` if that is not known or there is none.
    pub wrapper_alive: Option<bool>,
    /// Time since the last heartbeat, never negative.
    pub age: Option<Duration>,
    /// When the time to live ends, by the wall clock.
    pub expires_at: Option<DateTime<Utc>>,
    /// Of a dead hold on several machines: how long the caller must still know that it is dead before it
    /// may take it over. `None`: it need not wait.
    pub takeable_in: Option<Duration>,
}

impl Verdict {
    /// A zombie or overdue: an operator should look at it.
    #[must_use]
    pub fn is_zombie(&self) -> bool {
        matches!(self.state, State::Zombie | State::Overdue)
    }

    pub(crate) fn new(state: State, reason: Reason, evidence: Evidence) -> Self {
        Self {
            state,
            reason,
            evidence,
            pid: None,
            pid_alive: None,
            wrapper_alive: None,
            age: None,
            expires_at: None,
            takeable_in: None,
        }
    }

    /// Whether a live holder was seen, rather than one that cannot be checked.
    pub(crate) fn is_certainly_held(&self) -> bool {
        matches!(self.state, State::Held | State::Overdue)
            && !matches!(self.reason, Reason::Unverified(_) | Reason::Incomplete)
    }
}

/// Which facts a verdict on a record needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needed {
    pub(crate) kernel_lock: bool,
    /// The processes that hold it: there is no record that names them.
    pub(crate) lockers: bool,
    pub(crate) processes: Vec<Pid>,
}

/// Says which facts to gather before a record is judged, so that none is gathered in vain.
pub(crate) fn needed(content: &Content, by: &Observer) -> Needed {
    let Some(record) = content.record() else {
        // A live holder whose file was damaged still holds its kernel lock.
        let is_needed = matches!(content, Content::Corrupt | Content::UnknownVersion(_));
        return Needed {
            kernel_lock: is_needed,
            lockers: is_needed,
            processes: Vec::new(),
        };
    };
    let processes = || record.processes().into_iter().map(|process| process.pid);
    if record.origin.is_none() {
        return Needed {
            kernel_lock: true,
            lockers: false,
            processes: processes().filter(|_| !is_elsewhere(record, by)).collect(),
        };
    }
    let caller = record.caller.map(|process| process.pid);
    let is_reachable = record
        .origin
        .as_ref()
        .is_some_and(|origin| is_reachable(origin, by));
    Needed {
        kernel_lock: !record.is_detached(),
        lockers: false,
        processes: processes().chain(caller).filter(|_| is_reachable).collect(),
    }
}

/// What one recorded process was found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Liveness {
    Alive(Evidence),
    Dead(Evidence),
    Unknown(Uncertainty),
}

impl Liveness {
    fn is_alive(self) -> Option<bool> {
        match self {
            Self::Alive(_) => Some(true),
            Self::Dead(_) => Some(false),
            Self::Unknown(_) => None,
        }
    }
}

/// Whether a hold that processes keep is alive.
struct HoldLiveness {
    liveness: Liveness,
    process: Option<ProcessId>,
    /// That process alone: a kernel lock shows that a hold is alive, not which process keeps it.
    of_process: Liveness,
    of_writer: Option<Liveness>,
    /// The wrapper is dead, and a child of it may be between fork and exec.
    may_be_starting: bool,
}

impl Verdict {
    /// Whether it keeps others out.
    pub(crate) fn is_live(&self) -> bool {
        matches!(self.state, State::Held | State::Overdue)
    }
}

impl HoldLiveness {
    fn of_one(liveness: Liveness, process: Option<ProcessId>) -> Self {
        Self {
            liveness,
            process,
            of_process: liveness,
            of_writer: Some(liveness),
            may_be_starting: false,
        }
    }
}

/// Judges what a lock file says. A zombie verdict on a native record is final until the file is
/// changed under the guard.
pub(crate) fn judge(
    content: &Content,
    facts: &Facts,
    by: &Observer,
    max_age: Duration,
    now: &Moment,
) -> Verdict {
    match content {
        Content::NotALock(what) => {
            Verdict::new(State::NotALock, Reason::NotALock(what), Evidence::None)
        }
        Content::UnknownVersion(version) => {
            let is_locked = facts.kernel_lock == Some(true);
            let evidence = if is_locked {
                Evidence::KernelLock
            } else {
                Evidence::None
            };
            Verdict::new(State::Held, Reason::UnknownVersion(*version), evidence)
        }
        Content::Corrupt => judge_corrupt(facts, now),
        Content::KernelLock => judge_kernel_lock(facts),
        Content::Record(record) => judge_record(record, facts, by, max_age, now),
    }
}

fn judge_kernel_lock(facts: &Facts) -> Verdict {
    match facts.kernel_lock {
        Some(true) => held_by_lockers(facts),
        Some(false) => Verdict::new(State::Free, Reason::NoFile, Evidence::KernelLockGone),
        None => Verdict::new(
            State::Held,
            Reason::Unverified(Uncertainty::LocksNotListed),
            Evidence::None,
        ),
    }
}

fn held_by_lockers(facts: &Facts) -> Verdict {
    let pid = facts.lockers.first().copied();
    Verdict {
        pid,
        pid_alive: pid.map(|_| true),
        ..Verdict::new(State::Held, Reason::Alive, Evidence::KernelLock)
    }
}

/// Whether a program that is writing a lock file would have finished it by now.
pub(crate) fn is_unchanged(modified: DateTime<Utc>, now: DateTime<Utc>) -> bool {
    let unchanged = now.signed_duration_since(modified);
    // A write sets the file's time to now, so a time far ahead was set before the clock was put back.
    unchanged >= CORRUPT_AFTER || unchanged < -FUTURE_TOLERANCE
}

fn judge_corrupt(facts: &Facts, now: &Moment) -> Verdict {
    if facts.life == Some(Life::Kept) {
        let reason = Reason::Unverified(Uncertainty::NoProcess);
        return Verdict::new(State::Held, reason, Evidence::LeaseKept);
    }
    if facts.shares_kernel_locks && facts.kernel_lock == Some(true) {
        return held_by_lockers(facts);
    }
    if is_unchanged(facts.modified, now.wall) {
        return Verdict::new(State::Zombie, Reason::Corrupt, Evidence::Clock);
    }
    Verdict::new(State::Held, Reason::Incomplete, Evidence::Clock)
}

fn judge_record(
    record: &Record,
    facts: &Facts,
    by: &Observer,
    max_age: Duration,
    now: &Moment,
) -> Verdict {
    let age = age(record, facts, by, now);
    let max_age = record.max_age_ms.map_or(max_age, Duration::from_millis);
    if let Some(life) = facts.life {
        return Verdict {
            age: Some(age),
            pid: record
                .live
                .pid
                .or(record.taken_by)
                .filter(|_| !record.is_lease()),
            expires_at: record.live.expires_at.filter(|_| record.is_lease()),
            ..judge_life(record, life, age > max_age, now)
        };
    }
    if record.live.released {
        let verdict = Verdict::new(State::Free, Reason::Finished, Evidence::None);
        return Verdict {
            age: Some(age),
            ..verdict
        };
    }
    let time_left = time_left(record, facts, by, now);
    // A torn slot may have said that the time was extended.
    let is_torn = record.live.is_torn;
    let expired = !is_torn && time_left.is_some_and(|left| left <= 0);
    let mut verdict = if record.is_lease() && !is_torn {
        if expired {
            Verdict::new(State::Zombie, Reason::Expired, Evidence::Clock)
        } else {
            Verdict::new(State::Held, Reason::Lease, Evidence::Clock)
        }
    } else {
        let hold = hold_liveness(record, facts, by, now);
        let mut verdict = match hold.liveness {
            // Its command may have ended before the rest of it.
            Liveness::Dead(evidence)
                if evidence != Evidence::BootMismatch && is_being_ended(record, by) =>
            {
                Verdict::new(State::Held, Reason::Ending, Evidence::None)
            }
            Liveness::Alive(evidence) if is_being_ended(record, by) => {
                Verdict::new(State::Held, Reason::Ending, evidence)
            }
            Liveness::Dead(evidence) => dead(record, evidence),
            // A detached hold was given this limit. A live `run` renews its own, and never loses
            // its lock to a clock.
            _ if expired && record.is_confirmed() => {
                Verdict::new(State::Zombie, Reason::Expired, Evidence::Clock)
            }
            Liveness::Alive(evidence) if hold.may_be_starting => {
                Verdict::new(State::Held, Reason::Starting, evidence)
            }
            Liveness::Alive(evidence) if age > max_age => {
                Verdict::new(State::Overdue, Reason::Alive, evidence)
            }
            Liveness::Alive(evidence) => Verdict::new(State::Held, Reason::Alive, evidence),
            Liveness::Unknown(_) if expired => {
                Verdict::new(State::Zombie, Reason::Expired, Evidence::Clock)
            }
            Liveness::Unknown(why) if age > max_age => {
                Verdict::new(State::Zombie, Reason::TooOld(why), Evidence::Clock)
            }
            Liveness::Unknown(why) => {
                Verdict::new(State::Held, Reason::Unverified(why), Evidence::None)
            }
        };
        verdict.pid = hold.process.map(|process| process.pid);
        verdict.pid_alive = hold.of_process.is_alive();
        verdict.wrapper_alive = hold
            .of_writer
            .filter(|_| record.kind == Kind::Run)
            .and_then(Liveness::is_alive);
        verdict
    };
    verdict.age = Some(age);
    verdict.expires_at = time_left.and_then(|left| {
        let at = now
            .wall
            .checked_add_signed(TimeDelta::try_milliseconds(left)?)?;
        let at = written_unless_moved(record, at);
        Some(at).filter(|at| has_four_digits(*at))
    });
    verdict
}

/// The time to live of a record that does not tell it.
const UNKNOWN_TTL: Duration = Duration::from_secs(20);

/// How long a lease must be over by the wall clock of another machine, which may be wrong by a little.
fn clock_margin_ms(ttl_ms: i64) -> i64 {
    (ttl_ms / 10).max(5_000)
}

/// Judges a hold that is alive as long as a key of it is there. etcd has ended leases too early (issue
/// 15247, before 3.4.31 and 3.5.13), so that its holder may not know yet that it is lost: it ends its work
/// within the time to live. Processes and boots of other machines prove nothing.
fn judge_life(record: &Record, life: Life, is_old: bool, now: &Moment) -> Verdict {
    let known_for_ms = match life {
        Life::Kept => {
            let evidence = Evidence::LeaseKept;
            return match record.kind {
                Kind::Lease => Verdict::new(State::Held, Reason::Lease, evidence),
                _ if record.live.broken_by.is_some() => {
                    Verdict::new(State::Held, Reason::Ending, evidence)
                }
                _ if is_old => Verdict::new(State::Overdue, Reason::Alive, evidence),
                _ => Verdict::new(State::Held, Reason::Alive, evidence),
            };
        }
        Life::Gone { known_for_ms } => known_for_ms,
    };
    // A record by hand may have none.
    let ttl = record.ttl().unwrap_or(UNKNOWN_TTL);
    let left = ttl.saturating_sub(Duration::from_millis(known_for_ms));
    let ttl_ms = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
    let is_over_by_the_clock = record.live.expires_at.is_some_and(|at| {
        now.wall.signed_duration_since(at).num_milliseconds() >= clock_margin_ms(ttl_ms)
    });
    let (reason, needs_no_wait) = match record.kind {
        Kind::Lease => (Reason::Expired, is_over_by_the_clock),
        Kind::Run | Kind::Process => (Reason::Dead, false),
    };
    Verdict {
        takeable_in: Some(left).filter(|left| !left.is_zero() && !needs_no_wait),
        ..Verdict::new(State::Zombie, reason, Evidence::LeaseEnded)
    }
}

/// The time in the record if that is still right, so that each call shows the same one. The wall clock
/// may have been set since.
fn written_unless_moved(record: &Record, computed: DateTime<Utc>) -> DateTime<Utc> {
    let tolerance = TimeDelta::seconds(1);
    let is_right = |at: &DateTime<Utc>| (*at - computed).abs() <= tolerance;
    record.live.expires_at.filter(is_right).unwrap_or(computed)
}

/// Whether work of a hold may be left that is being ended by force.
fn is_being_ended(record: &Record, by: &Observer) -> bool {
    record.live.ending.is_some() && !by.over.contains(&record.hold)
}

fn dead(record: &Record, evidence: Evidence) -> Verdict {
    if record.exec {
        return Verdict::new(State::Free, Reason::Finished, evidence);
    }
    let reason = match evidence {
        Evidence::StartMismatch => Reason::Reused,
        Evidence::BootMismatch => Reason::Rebooted,
        _ => Reason::Dead,
    };
    Verdict::new(State::Zombie, reason, evidence)
}

fn hold_liveness(record: &Record, facts: &Facts, by: &Observer, now: &Moment) -> HoldLiveness {
    let Some(origin) = &record.origin else {
        return liveness_without_identity(record, facts, by, now);
    };
    let last = record.processes().first().copied();
    let kernel_lock = facts
        .kernel_lock
        .filter(|_| record.kernel_lock && facts.shares_kernel_locks);
    let boot = boot(origin, record, facts, by);
    if boot == Boot::Earlier && kernel_lock != Some(true) {
        return HoldLiveness::of_one(Liveness::Dead(Evidence::BootMismatch), last);
    }
    let is_reachable = boot == Boot::This && is_reachable(origin, by);
    let unreachable = uncertainty(boot == Boot::This, record, facts, by);
    let processes: Vec<(ProcessId, Liveness)> = record
        .processes()
        .into_iter()
        .map(|process| {
            let liveness = if is_reachable {
                process_liveness(process, facts)
            } else {
                Liveness::Unknown(unreachable)
            };
            (process, liveness)
        })
        .collect();
    let alive = processes
        .iter()
        .find(|(_, liveness)| matches!(liveness, Liveness::Alive(_)));
    let all_dead = !processes.is_empty()
        && processes
            .iter()
            .all(|(_, liveness)| matches!(liveness, Liveness::Dead(_)));
    let unknown = processes
        .iter()
        .find(|(_, liveness)| matches!(liveness, Liveness::Unknown(_)));
    // A free lock proves something only where the holder took it: in this directory.
    let lock_is_free = kernel_lock == Some(false) && facts.same_store;
    // As long as no command is on record, a child of a dead wrapper may be about to become it. Such a
    // child holds the kernel lock by its own copy of the descriptor, until it executes or exits.
    // And a torn slot may have named any process.
    let is_certain = !record.live.is_torn;
    let may_start = !record.exec && (!is_certain || (record.kernel_lock && !record.has_command()));

    let mut may_be_starting = false;
    let (process, liveness) = match (alive, kernel_lock) {
        (Some((process, _)), Some(true)) => (Some(*process), Liveness::Alive(Evidence::KernelLock)),
        (Some((process, liveness)), _) => (Some(*process), *liveness),
        (None, Some(true)) if all_dead && may_start => {
            may_be_starting = true;
            (last, Liveness::Alive(Evidence::KernelLock))
        }
        (None, _) if all_dead && may_start && !(lock_is_free && is_certain) => {
            (last, Liveness::Unknown(Uncertainty::CommandUnknown))
        }
        // Processes that a command left behind hold only a descriptor.
        (None, _) if all_dead => processes.first().map_or(
            (last, Liveness::Dead(Evidence::PidGone)),
            |(process, liveness)| (Some(*process), *liveness),
        ),
        (None, Some(true)) => (last, Liveness::Alive(Evidence::KernelLock)),
        // A command that does not hold the kernel lock may run on where it cannot be seen from here.
        (None, Some(false))
            if lock_is_free
                && is_certain
                && !is_reachable
                && !record.close
                && !record.live.let_go
                && !is_being_ended(record, by) =>
        {
            (last, Liveness::Dead(Evidence::KernelLockGone))
        }
        (None, _) => unknown.map_or((last, Liveness::Unknown(Uncertainty::NoProcess)), |found| {
            (Some(found.0), found.1)
        }),
    };
    let of_writer = processes
        .iter()
        .find(|(process, _)| Some(*process) == record.writer())
        .map(|(_, liveness)| *liveness);
    let of_process = processes
        .iter()
        .find(|(found, _)| Some(*found) == process)
        .map_or(liveness, |(_, liveness)| *liveness);
    HoldLiveness {
        liveness,
        process,
        of_process,
        of_writer,
        may_be_starting,
    }
}

/// The boot that a record was written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Boot {
    This,
    /// An earlier boot of this machine.
    Earlier,
    Unknown,
}

fn boot(origin: &Origin, record: &Record, facts: &Facts, by: &Observer) -> Boot {
    let (Some(then), Some(now)) = (&origin.boot, &by.boot) else {
        return Boot::Unknown;
    };
    if then.id == now.id {
        return Boot::This;
    }
    // Copied images share their machine ID, so that another host name still forbids the conclusion.
    let same_host = is_same_host(record, by);
    let same_machine = match (&origin.machine, &by.machine) {
        (Some(then), Some(now)) => then == now && same_host != Some(false),
        _ => same_host == Some(true),
    };
    // On a filesystem that others reach too, another boot ID may be another machine's.
    if facts.shares_kernel_locks && !then.masked && !now.masked && same_machine {
        Boot::Earlier
    } else {
        Boot::Unknown
    }
}

/// Whether the PIDs of a record mean the same processes here.
fn is_reachable(origin: &Origin, by: &Observer) -> bool {
    let same_boot = match (&origin.boot, &by.boot) {
        (Some(then), Some(now)) => then.id == now.id,
        _ => false,
    };
    same_boot && origin.pid_namespace.is_some() && origin.pid_namespace == by.pid_namespace
}

fn uncertainty(same_boot: bool, record: &Record, facts: &Facts, by: &Observer) -> Uncertainty {
    if same_boot {
        return Uncertainty::OtherPidNamespace;
    }
    let other_host = is_same_host(record, by) == Some(false);
    if other_host || !facts.shares_kernel_locks {
        Uncertainty::OtherHost
    } else {
        Uncertainty::UnknownBoot
    }
}

/// `None`: one of them is not known. Host names do not tell upper from lower case (RFC 4343). On
/// Windows other programs may write the NetBIOS name, the first 15 bytes (COMPUTERNAME).
fn is_same_host(record: &Record, by: &Observer) -> Option<bool> {
    const NETBIOS_BYTES: usize = 15;
    let (theirs, ours) = (record.hostname.as_deref()?, by.hostname.as_deref()?);
    let short = ours.get(..NETBIOS_BYTES).unwrap_or(ours);
    let by_netbios = cfg!(windows) && !record.is_ours() && theirs.eq_ignore_ascii_case(short);
    Some(theirs.eq_ignore_ascii_case(ours) || by_netbios)
}

fn is_elsewhere(record: &Record, by: &Observer) -> bool {
    record.hostname.is_some() && is_same_host(record, by) != Some(true)
}

/// Whether a process of the caller's own PID namespace and boot is known to have ended.
pub(super) fn has_ended(process: ProcessId, facts: &Facts) -> bool {
    matches!(process_liveness(process, facts), Liveness::Dead(_))
}

/// Whether the caller belongs to the part of a script that acquired a hold. While a subshell that did so
/// runs, the others of its script cannot release the hold: they would end what it relies on.
pub(super) fn belongs_to_acquirer(
    record: &Record,
    descends_from: impl Fn(ProcessId) -> bool,
    has_ended: impl Fn(ProcessId) -> bool,
) -> bool {
    let caller = record.caller;
    caller.is_none_or(|caller| has_ended(caller) || descends_from(caller))
}

fn process_liveness(recorded: ProcessId, facts: &Facts) -> Liveness {
    let state = facts
        .processes
        .iter()
        .find(|fact| fact.pid == recorded.pid)
        .map_or(ProcessState::Unknown, |fact| fact.state);
    match (state, recorded.start) {
        (ProcessState::Gone, _) => Liveness::Dead(Evidence::PidGone),
        (ProcessState::Alive { start }, _) if recorded.started_at_another_time(start) => {
            Liveness::Dead(Evidence::StartMismatch)
        }
        (ProcessState::Alive { start: Some(_) }, Some(_)) => Liveness::Alive(Evidence::SameProcess),
        (ProcessState::Alive { .. }, _) => Liveness::Alive(Evidence::SamePid),
        (ProcessState::Unknown, _) => Liveness::Unknown(Uncertainty::ProcessUnreadable),
    }
}

/// A record by hand or by another program says no more than a PID.
fn liveness_without_identity(
    record: &Record,
    facts: &Facts,
    by: &Observer,
    now: &Moment,
) -> HoldLiveness {
    let process = record.processes().first().copied();
    let fact = process
        .and_then(|process| facts.processes.iter().find(|fact| fact.pid == process.pid))
        .copied();
    let of_process = if process.is_none() {
        Liveness::Unknown(Uncertainty::NoProcess)
    } else if is_elsewhere(record, by) {
        Liveness::Unknown(Uncertainty::OtherHost)
    } else {
        // Each container has a process 1, and the record does not say of which it is.
        let is_first = process.is_some_and(|process| process.pid.get() == 1);
        match fact.map_or(ProcessState::Unknown, |fact| fact.state) {
            ProcessState::Gone => Liveness::Dead(Evidence::PidGone),
            ProcessState::Alive { .. } if is_first && by.is_in_container => {
                Liveness::Unknown(Uncertainty::OtherPidNamespace)
            }
            ProcessState::Alive { .. }
                if fact.and_then(|fact| fact.began_ms).is_some_and(|began| {
                    began <= acquired_boottime(record, facts, now).saturating_add(PRECISION_MS)
                }) =>
            {
                Liveness::Alive(Evidence::SamePid)
            }
            ProcessState::Alive { .. } => Liveness::Unknown(Uncertainty::PidOnly),
            ProcessState::Unknown => Liveness::Unknown(Uncertainty::ProcessUnreadable),
        }
    };
    // Some programs lock their PID files, and our own have nothing else to tell by.
    let liveness = if facts.shares_kernel_locks && facts.kernel_lock == Some(true) {
        Liveness::Alive(Evidence::KernelLock)
    } else {
        of_process
    };
    HoldLiveness {
        of_process,
        ..HoldLiveness::of_one(liveness, process)
    }
}

/// When a record without a boot-time clock was written, on that clock.
fn acquired_boottime(record: &Record, facts: &Facts, now: &Moment) -> i64 {
    let acquired = clamp_future(record.acquired_at, facts, now);
    let ago = now.wall.signed_duration_since(acquired);
    i64::try_from(now.boottime_ms)
        .unwrap_or(i64::MAX)
        .saturating_sub(ago.num_milliseconds())
}

/// Time since the last heartbeat: by the boot-time clock within one boot, else by the wall clock.
fn age(record: &Record, facts: &Facts, by: &Observer, now: &Moment) -> Duration {
    if let Some(renewed) = renewed_boottime_ms(record, by) {
        return Duration::from_millis(now.boottime_ms.saturating_sub(renewed));
    }
    let since = clamp_future(record.renewed_at(), facts, now);
    now.wall
        .signed_duration_since(since)
        .to_std()
        .unwrap_or_default()
}

/// A time far ahead comes from a clock that was wrong; the file's own time is the next best.
fn clamp_future(time: DateTime<Utc>, facts: &Facts, now: &Moment) -> DateTime<Utc> {
    if time.signed_duration_since(now.wall) > FUTURE_TOLERANCE {
        facts.modified
    } else {
        time
    }
}

/// The last heartbeat on the boot-time clock, if it was in this boot.
fn renewed_boottime_ms(record: &Record, by: &Observer) -> Option<u64> {
    let ours = &by.boot.as_ref()?.id;
    if record.live.renewed_at.is_some() {
        return record
            .live
            .renewed_boottime_ms
            .filter(|_| record.live.renewed_boot_id.as_ref() == Some(ours));
    }
    let origin = record.origin.as_ref()?;
    (&origin.boot.as_ref()?.id == ours).then_some(origin.acquired_boottime_ms)
}

/// Milliseconds until a time to live ends; `None` if there is none.
fn time_left(record: &Record, facts: &Facts, by: &Observer, now: &Moment) -> Option<i64> {
    let ttl_ms = i64::try_from(record.ttl()?.as_millis()).unwrap_or(i64::MAX);
    if let Some(renewed) = renewed_boottime_ms(record, by) {
        let passed = i64::try_from(now.boottime_ms.saturating_sub(renewed)).unwrap_or(i64::MAX);
        return Some(ttl_ms.saturating_sub(passed));
    }
    let renewed = clamp_future(record.renewed_at(), facts, now);
    let passed = now
        .wall
        .signed_duration_since(renewed)
        .num_milliseconds()
        .max(0);
    // The clock of another host may be wrong by a little.
    let margin = if is_elsewhere(record, by) {
        clock_margin_ms(ttl_ms)
    } else {
        0
    };
    Some(ttl_ms.saturating_add(margin).saturating_sub(passed))
}

#[cfg(test)]
mod tests;
