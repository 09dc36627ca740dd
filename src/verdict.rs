//! What can be said about a lock: the state table, once. Pure: facts in, [`Verdict`] out.
//!
//! By PID where death can be proved, by age where it cannot. Doubt is never read as death, and a
//! living holder is never displaced by a clock.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::identity::{BootId, Origin, Pid, ProcessId};
use crate::record::{Content, Job, Kind, Record, has_four_digits};

/// Age from which a hold that cannot be proved alive or dead is a zombie.
pub const DEFAULT_MAX_AGE: Duration = Duration::from_hours(24);

/// How exactly another program's time and a process's start can be compared: some write whole
/// seconds, cut off.
const PRECISION_MS: i64 = 2_000;

/// A broken record may still be in the making for this long.
const CORRUPT_AFTER: TimeDelta = TimeDelta::seconds(10);

/// A time this far ahead comes from a clock that was wrong.
const FUTURE_TOLERANCE: TimeDelta = TimeDelta::minutes(5);

/// How sure one can be of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nobody has it.
    Free,
    /// Somebody has it, or may have it.
    Held,
    /// A living holder has had it for longer than its maximum age.
    Overdue,
    /// It may be taken over without asking.
    Zombie,
    /// What stands there is no lock file; it is left alone.
    NotALock,
}

/// Why a lock is in its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Free: no file.
    NoFile,
    /// Free: what is left of a `run --exec` whose command has ended.
    Finished,
    /// Held or overdue: the holder lives.
    Alive,
    /// Held: free, and promised to the first of those who wait for it.
    Promised,
    /// Held: a lease that has not run out.
    Lease,
    /// Held: written by a later version; held until broken.
    UnknownVersion,
    /// Held: broken, but for less than 10 s.
    InTheMaking,
    /// Held: neither life nor death can be proved.
    Unproven(Doubt),
    /// Zombie: the holder is gone.
    Dead,
    /// Zombie: the holder is gone and its pid belongs to another process.
    Reused,
    /// Zombie: the holder lived before the machine started anew.
    Rebooted,
    /// Zombie: its time to live has run out.
    Expired,
    /// Zombie: neither life nor death can be proved, and it is older than its maximum age.
    Aged(Doubt),
    /// Zombie: broken, and unchanged for 10 s.
    Corrupt,
    /// No lock file; what it is instead.
    NotALock(&'static str),
}

/// What keeps a verdict from being certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The holder is or may be on another host.
    OtherHost,
    /// The holder is in another pid namespace: its numbers mean nothing here.
    OtherPidNamespace,
    /// Another boot id, in a place where that proves nothing.
    UnknownBoot,
    /// The record does not say enough about its process.
    NoIdentity,
    /// The system would not say whether the process is there.
    NoAnswer,
}

/// What a verdict rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Nothing was needed or to be had.
    None,
    /// The holder keeps a kernel lock on the file, checked just now.
    KernelLock,
    /// The recorded process is there, with the recorded start.
    SameProcess,
    /// A process with the recorded pid is there; its start could not be compared.
    SamePid,
    /// No process has the recorded pid.
    PidGone,
    /// The recorded pid belongs to a process with another start.
    OtherStart,
    /// The machine has started anew.
    OtherBoot,
    /// Nobody keeps the kernel lock that the holder kept.
    KernelLockGone,
    /// A clock.
    Clock,
}

/// What can be said about a lock, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The state.
    pub state: State,
    /// Why.
    pub reason: Reason,
    /// By what evidence.
    pub proof: Proof,
    /// The process that keeps the hold alive, or that did.
    pub pid: Option<Pid>,
    /// Whether that process is there; `None` if it cannot be told or there is none.
    pub pid_alive: Option<bool>,
    /// For a `run`: whether its wrapper is there; `None` if it cannot be told or there is none.
    pub wrapper_alive: Option<bool>,
    /// Time since the last sign of life, never negative.
    pub age: Option<Duration>,
    /// When a time to live runs out, by the wall clock.
    pub expires_at: Option<DateTime<Utc>>,
}

impl Verdict {
    /// A zombie or overdue: somebody should look.
    #[must_use]
    pub fn is_zombie(&self) -> bool {
        matches!(self.state, State::Zombie | State::Overdue)
    }

    fn new(state: State, reason: Reason, proof: Proof) -> Self {
        Self {
            state,
            reason,
            proof,
            pid: None,
            pid_alive: None,
            wrapper_alive: None,
            age: None,
            expires_at: None,
        }
    }
}

/// The observer: what is true here and now.
#[derive(Clone, Debug)]
pub(crate) struct Here {
    pub(crate) now: DateTime<Utc>,
    pub(crate) boottime_ms: u64,
    pub(crate) boot: Option<BootId>,
    pub(crate) pid_namespace: Option<u64>,
    pub(crate) hostname: Option<String>,
    pub(crate) shares_kernel_locks: bool,
    pub(crate) store_device: u64,
    pub(crate) store_inode: u64,
}

/// What the observer finds out only when a verdict needs it.
pub(crate) trait Probe {
    /// Whether somebody keeps the kernel lock on the judged file; `None`: cannot be told.
    fn kernel_lock(&mut self) -> Option<bool>;
    fn process(&mut self, pid: Pid) -> Presence;
    /// When a process of that start began, on the boot-time clock; `None`: cannot be told.
    fn milliseconds_of_start(&self, start: u64) -> Option<i64>;
}

pub(crate) use crate::sys::Presence;

/// What one recorded process is found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finding {
    Alive(Proof),
    Dead(Proof),
    Unknown(Doubt),
}

/// Whether a hold that processes keep is alive.
struct Life {
    finding: Finding,
    process: Option<ProcessId>,
    /// That process by itself: a kernel lock proves that a hold lives, not which process does.
    of_process: Finding,
    /// The process that wrote the record.
    writer: Option<Finding>,
}

impl Finding {
    fn is_alive(self) -> Option<bool> {
        match self {
            Self::Alive(_) => Some(true),
            Self::Dead(_) => Some(false),
            Self::Unknown(_) => None,
        }
    }
}

/// Judges what stands in a lock file. `modified`: its mtime.
pub(crate) fn judge(
    content: &Content,
    modified: DateTime<Utc>,
    here: &Here,
    max_age: Duration,
    probe: &mut dyn Probe,
) -> Verdict {
    match content {
        Content::NotALock(what) => {
            Verdict::new(State::NotALock, Reason::NotALock(what), Proof::None)
        }
        Content::UnknownVersion(_) => {
            Verdict::new(State::Held, Reason::UnknownVersion, Proof::None)
        }
        Content::Corrupt => judge_corrupt(modified, here, probe),
        Content::Record(record) => judge_record(record, modified, here, max_age, probe),
    }
}

fn judge_corrupt(modified: DateTime<Utc>, here: &Here, probe: &mut dyn Probe) -> Verdict {
    // A living holder whose file was scribbled on is still a living holder.
    if here.shares_kernel_locks && probe.kernel_lock() == Some(true) {
        return Verdict::new(State::Held, Reason::Alive, Proof::KernelLock);
    }
    let unchanged = here.now.signed_duration_since(modified);
    // A write sets mtime to now, so a time far ahead was set before the clock was put back.
    if unchanged >= CORRUPT_AFTER || unchanged < -FUTURE_TOLERANCE {
        return Verdict::new(State::Zombie, Reason::Corrupt, Proof::Clock);
    }
    Verdict::new(State::Held, Reason::InTheMaking, Proof::Clock)
}

fn judge_record(
    record: &Record,
    modified: DateTime<Utc>,
    here: &Here,
    max_age: Duration,
    probe: &mut dyn Probe,
) -> Verdict {
    let age = age(record, modified, here);
    let time_left = time_left(record, modified, here);
    let max_age = record.max_age_ms.map_or(max_age, Duration::from_millis);
    let mut verdict = if record.is_lease() {
        match time_left {
            Some(left) if left <= 0 => Verdict::new(State::Zombie, Reason::Expired, Proof::Clock),
            _ => Verdict::new(State::Held, Reason::Lease, Proof::Clock),
        }
    } else {
        let life = life(record, modified, here, probe);
        let expired = time_left.is_some_and(|left| left <= 0);
        let mut verdict = match life.finding {
            Finding::Dead(proof) => dead(record, proof),
            // For a job its time is a limit it was given; a living `run` renews it, and while it
            // is known to live it is not displaced by a clock.
            _ if expired && record.job.is_some() => {
                Verdict::new(State::Zombie, Reason::Expired, Proof::Clock)
            }
            Finding::Alive(proof) if age > max_age => {
                Verdict::new(State::Overdue, Reason::Alive, proof)
            }
            Finding::Alive(proof) => Verdict::new(State::Held, Reason::Alive, proof),
            Finding::Unknown(_) if expired => {
                Verdict::new(State::Zombie, Reason::Expired, Proof::Clock)
            }
            Finding::Unknown(doubt) if age > max_age => {
                Verdict::new(State::Zombie, Reason::Aged(doubt), Proof::Clock)
            }
            Finding::Unknown(doubt) => {
                Verdict::new(State::Held, Reason::Unproven(doubt), Proof::None)
            }
        };
        verdict.pid = life.process.map(|process| process.pid);
        verdict.pid_alive = life.of_process.is_alive();
        verdict.wrapper_alive = life
            .writer
            .filter(|_| record.kind == Kind::Run)
            .and_then(Finding::is_alive);
        verdict
    };
    verdict.age = Some(age);
    verdict.expires_at = time_left.and_then(|left| {
        let at = here
            .now
            .checked_add_signed(TimeDelta::try_milliseconds(left)?)?;
        Some(at).filter(|at| has_four_digits(*at))
    });
    verdict
}

fn dead(record: &Record, proof: Proof) -> Verdict {
    if record.exec {
        return Verdict::new(State::Free, Reason::Finished, proof);
    }
    let reason = match proof {
        Proof::OtherStart => Reason::Reused,
        Proof::OtherBoot => Reason::Rebooted,
        _ => Reason::Dead,
    };
    Verdict::new(State::Zombie, reason, proof)
}

fn life(record: &Record, modified: DateTime<Utc>, here: &Here, probe: &mut dyn Probe) -> Life {
    let Some(origin) = &record.origin else {
        return life_without_identity(record, modified, here, probe);
    };
    let last = record.processes().first().copied();
    let same_boot = match boot(origin, here) {
        Some(true) => true,
        Some(false) => {
            return Life {
                finding: Finding::Dead(Proof::OtherBoot),
                process: last,
                of_process: Finding::Dead(Proof::OtherBoot),
                writer: Some(Finding::Dead(Proof::OtherBoot)),
            };
        }
        None => false,
    };
    let reachable =
        same_boot && origin.pid_namespace.is_some() && origin.pid_namespace == here.pid_namespace;
    let findings: Vec<(ProcessId, Finding)> = record
        .processes()
        .into_iter()
        .map(|process| {
            let finding = if reachable {
                find(process, probe)
            } else {
                Finding::Unknown(unreachable_because(same_boot, record, here))
            };
            (process, finding)
        })
        .collect();
    let alive = findings
        .iter()
        .find(|(_, finding)| matches!(finding, Finding::Alive(_)));
    let all_dead = findings
        .iter()
        .all(|(_, finding)| matches!(finding, Finding::Dead(_)));
    let doubtful = findings
        .iter()
        .find(|(_, finding)| matches!(finding, Finding::Unknown(_)));

    // Whatever the boot: a filesystem that shares its locks belongs to one kernel at a time, and a
    // lock that another one kept went with it.
    let kernel_lock_counts = record.kernel_lock
        && record.job.is_none()
        && here.shares_kernel_locks
        && (origin.store_device, origin.store_inode) == (here.store_device, here.store_inode);
    let kernel_lock = if kernel_lock_counts {
        probe.kernel_lock()
    } else {
        None
    };

    let (process, finding) = match (alive, kernel_lock) {
        (Some((process, _)), Some(true)) => (Some(*process), Finding::Alive(Proof::KernelLock)),
        (Some((process, finding)), _) => (Some(*process), *finding),
        // What they left behind holds only a descriptor.
        (None, _) if all_dead => findings.first().map_or(
            (last, Finding::Dead(Proof::PidGone)),
            |(process, finding)| (Some(*process), *finding),
        ),
        (None, Some(true)) => (last, Finding::Alive(Proof::KernelLock)),
        // A command that does not inherit the lock may live on without it, where we cannot see it.
        // A process that we ought to see, and could not ask for, is not dead either.
        (None, Some(false)) if !reachable && !record.close => {
            (last, Finding::Dead(Proof::KernelLockGone))
        }
        (None, _) => doubtful.map_or((last, Finding::Unknown(Doubt::NoAnswer)), |found| {
            (Some(found.0), found.1)
        }),
    };
    let writer = findings
        .iter()
        .find(|(process, _)| *process == record.writer())
        .map(|(_, finding)| *finding);
    let of_process = findings
        .iter()
        .find(|(found, _)| Some(*found) == process)
        .map_or(finding, |(_, finding)| *finding);
    Life {
        finding,
        process,
        of_process,
        writer,
    }
}

/// `Some(false)`: the machine has certainly started anew since the record was written.
fn boot(origin: &Origin, here: &Here) -> Option<bool> {
    let (then, now) = (origin.boot.as_ref()?, here.boot.as_ref()?);
    if then.id == now.id {
        return Some(true);
    }
    // On a filesystem that others reach too, another boot id may be another machine's.
    (here.shares_kernel_locks && !then.masked && !now.masked).then_some(false)
}

fn unreachable_because(same_boot: bool, record: &Record, here: &Here) -> Doubt {
    if same_boot {
        return Doubt::OtherPidNamespace;
    }
    match (&record.hostname, &here.hostname) {
        (Some(theirs), Some(ours)) if theirs != ours => Doubt::OtherHost,
        _ if !here.shares_kernel_locks => Doubt::OtherHost,
        _ => Doubt::UnknownBoot,
    }
}

fn find(recorded: ProcessId, probe: &mut dyn Probe) -> Finding {
    match (probe.process(recorded.pid), recorded.start) {
        (Presence::Gone, _) => Finding::Dead(Proof::PidGone),
        // One tick of tolerance: a time namespace shifts starts by fractions of a tick.
        (Presence::Alive { start: Some(now) }, Some(then)) if now.abs_diff(then) > 1 => {
            Finding::Dead(Proof::OtherStart)
        }
        (Presence::Alive { start: Some(_) }, Some(_)) => Finding::Alive(Proof::SameProcess),
        (Presence::Alive { .. }, _) => Finding::Alive(Proof::SamePid),
        (Presence::Unknown, _) => Finding::Unknown(Doubt::NoAnswer),
    }
}

/// A record by hand or by another program: its pid is all there is.
fn life_without_identity(
    record: &Record,
    modified: DateTime<Utc>,
    here: &Here,
    probe: &mut dyn Probe,
) -> Life {
    let process = record.processes().first().copied();
    let pid = process.map_or(record.pid, |process| process.pid);
    let elsewhere = record.hostname.is_some() && record.hostname != here.hostname;
    // Some lock their pid files, and ours have nothing else to tell by.
    let finding = if here.shares_kernel_locks && probe.kernel_lock() == Some(true) {
        Finding::Alive(Proof::KernelLock)
    } else if elsewhere {
        Finding::Unknown(Doubt::OtherHost)
    } else {
        match probe.process(pid) {
            Presence::Gone => Finding::Dead(Proof::PidGone),
            Presence::Alive { start: Some(start) }
                if probe.milliseconds_of_start(start).is_some_and(|began| {
                    began <= acquired_boottime(record, modified, here).saturating_add(PRECISION_MS)
                }) =>
            {
                Finding::Alive(Proof::SamePid)
            }
            Presence::Alive { .. } => Finding::Unknown(Doubt::NoIdentity),
            Presence::Unknown => Finding::Unknown(Doubt::NoAnswer),
        }
    };
    Life {
        finding,
        process,
        of_process: finding,
        writer: Some(finding),
    }
}

/// When a record without a boot-time clock was written, on that clock.
fn acquired_boottime(record: &Record, modified: DateTime<Utc>, here: &Here) -> i64 {
    let acquired = not_in_the_future(record.acquired_at, modified, here);
    let ago = here.now.signed_duration_since(acquired);
    i64::try_from(here.boottime_ms)
        .unwrap_or(i64::MAX)
        .saturating_sub(ago.num_milliseconds())
}

/// Time since the last sign of life: by the boot-time clock within one boot, else by the wall.
fn age(record: &Record, modified: DateTime<Utc>, here: &Here) -> Duration {
    if let Some(renewed) = renewed_boottime_ms(record, here) {
        return Duration::from_millis(here.boottime_ms.saturating_sub(renewed));
    }
    let since = not_in_the_future(record.renewed_at(), modified, here);
    here.now
        .signed_duration_since(since)
        .to_std()
        .unwrap_or_default()
}

/// A time far ahead comes from a clock that was wrong; the file's own time is the next best.
fn not_in_the_future(time: DateTime<Utc>, modified: DateTime<Utc>, here: &Here) -> DateTime<Utc> {
    if time.signed_duration_since(here.now) > FUTURE_TOLERANCE {
        modified
    } else {
        time
    }
}

/// The last sign of life on the boot-time clock, if that was this boot's.
fn renewed_boottime_ms(record: &Record, here: &Here) -> Option<u64> {
    let Some(life) = &record.sign_of_life else {
        let origin = record.origin.as_ref()?;
        return (boot(origin, here) == Some(true)).then_some(origin.acquired_boottime_ms);
    };
    let ours = &here.boot.as_ref()?.id;
    (life.renewed_boot_id.as_ref() == Some(ours)).then_some(life.renewed_boottime_ms)
}

/// Milliseconds until a time to live runs out; `None` if there is none.
fn time_left(record: &Record, modified: DateTime<Utc>, here: &Here) -> Option<i64> {
    let ttl = record.ttl()?;
    let ttl_ms = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
    if let Some(renewed) = renewed_boottime_ms(record, here) {
        let passed = i64::try_from(here.boottime_ms.saturating_sub(renewed)).unwrap_or(i64::MAX);
        return Some(ttl_ms.saturating_sub(passed));
    }
    let renewed = not_in_the_future(record.renewed_at(), modified, here);
    let passed = here
        .now
        .signed_duration_since(renewed)
        .num_milliseconds()
        .max(0);
    // Another host's clock may go wrong by a little.
    let another_host = record.hostname.is_some() && record.hostname != here.hostname;
    let margin = if another_host {
        (ttl_ms / 10).max(5_000)
    } else {
        0
    };
    Some(ttl_ms.saturating_add(margin).saturating_sub(passed))
}

impl Job {
    /// The process, unless it is a lease.
    #[must_use]
    pub fn process(&self) -> Option<ProcessId> {
        match self {
            Self::Process(process) => Some(*process),
            Self::Lease => None,
        }
    }
}

#[cfg(test)]
mod tests;
