//! Sentences about a lock and its holder, as certain as the evidence.

mod evidence;
mod process;
mod time;

use std::fmt::Write as _;
use std::time::Duration;

use self::process::lockers;
use self::time::with_age;
use crate::decision::verdict::{Evidence, Reason, State, Uncertainty};
use crate::hold_info::HoldInfo;
use crate::name::LockName;
use crate::record::{CommandEnd, Format, Mode, Pid, VERSION};
use crate::status::{Status, Waiter};
use crate::terminal::escape;

pub use self::evidence::{evidence, provenance};
pub use self::process::{
    lockers_in_brief, lockers_of, process, process_in_brief, process_on_host, program,
};
pub use self::time::{ShowTime, age, short_span, since, span};

/// "`backup` is held by process 4242 (backup.sh) on db1 since 02:00:07 (3h 12m ago): "nightly""
pub fn describe_holder(status: &Status, time: ShowTime) -> String {
    describe(status, &quoted(&status.name), time)
}

/// Describes the hold that keeps a caller from taking `wanted`: "`backend`, the parent of `backend/task-1`, is
/// held by …".
pub fn describe_obstacle(status: &Status, wanted: &LockName, time: ShowTime) -> String {
    let name = quoted(&status.name);
    let is_wanted = status.name == wanted.as_str()
        || LockName::new(&status.name).is_ok_and(|found| found == *wanted);
    if is_wanted {
        return describe(status, &name, time);
    }
    let (article, relation) = match relation(status, wanted) {
        only @ "parent" => ("the", only),
        one @ "ancestor" => ("an", one),
        one => ("a", one),
    };
    let wanted = quoted(wanted.as_str());
    describe(
        status,
        &format!("{name}, {article} {relation} of {wanted},"),
        time,
    )
}

fn describe(status: &Status, name: &str, time: ShowTime) -> String {
    let verdict = &status.verdict;
    let what = match (verdict.state, verdict.reason, status.info()) {
        (State::Free, _, None) if !status.others.is_empty() => {
            "can be shared by one more".to_owned()
        }
        (State::Free, ..) => "is free".to_owned(),
        (State::Zombie, Reason::Malformed(what), _) => {
            format!("is damaged: {}", at_own_place(what))
        }
        (State::Zombie, ..) => format!("is a zombie: {}", describe_zombie(status, time)),
        (State::NotALock, Reason::NotALock(what), _) => format!("is not a lock: {what}"),
        (_, Reason::Reserved, _) => match reserved_for(status) {
            Some(waiter) => {
                let process = process_on_host(waiter);
                format!("is reserved for {process}, first in the queue")
            }
            None => "is reserved for the first waiter".to_owned(),
        },
        (_, Reason::Locked, _) | (_, Reason::Alive, None) => {
            format!("is held by {}", lockers(status, time))
        }
        (.., Some(record)) => return describe_hold(status, name, record, time),
        (_, Reason::Unverified(_), None) => "may be held".to_owned(),
        (_, Reason::UnknownVersion(version), None) => {
            format!("was locked by {}", other_version(version))
        }
        (_, Reason::Incomplete, None) => "may be held: its lock file is incomplete".to_owned(),
        (.., None) => "is held, but its lock file is damaged".to_owned(),
    };
    format!("{name} {what}")
}

fn describe_hold(status: &Status, name: &str, record: HoldInfo<'_>, time: ShowTime) -> String {
    if let Some(end) = record.ended() {
        return past_run(status, name, record, end, time);
    }
    let reason = status.verdict.reason;
    let certainty = match (reason, record.mode()) {
        (Reason::Unverified(_), Mode::Shared) => "may be shared",
        (Reason::Unverified(_), _) => "may be held",
        (_, Mode::Shared) => "is shared",
        _ => "is held",
    };
    let name = match (status.slot, record.mode()) {
        // A relation to another lock ends with a comma, too.
        (Some(slot), Mode::Slots(_)) => format!("{}, slot {slot},", name.trim_end_matches(',')),
        _ => name.to_owned(),
    };
    let through = if record.program().is_some() { "," } else { "" };
    let mut text = format!(
        "{name} {certainty} by {}{through} {}",
        holder_on_host(status, record),
        since(record.acquired_at(), time)
    );
    if reason == Reason::Unverified(Uncertainty::OtherHost) {
        text.push_str(", which cannot be checked from here");
    }
    text + &message(record.message())
}

/// The cycle that a wait would complete, as in [`Blocked::deadlock`](crate::Blocked::deadlock): "deadlock: `b` is held by
/// process 42 (sh), whose command waits for `a`, held by process 40 (sh), whose command waits for `b`"
#[cold]
pub fn describe_deadlock(holds: &[Status]) -> String {
    let links = holds.iter().enumerate().map(|(at, hold)| {
        let is = if at == 0 { " is" } else { "," };
        let holder = hold.info().map(|record| holder(hold, record));
        let holder = holder.unwrap_or_default();
        format!(
            "{}{is} held by {holder}, whose command waits for ",
            quoted(&hold.name)
        )
    });
    let first = holds.first().map(|first| quoted(&first.name));
    format!(
        "deadlock: {}{}",
        links.collect::<String>(),
        first.unwrap_or_default()
    )
}

/// The holds that keep another one waiting, as in [`Lock::waits_for`](crate::Lock::waits_for): "waits for `a`, held by
/// process 40 (sh), which waits for `b`, held by process 42 (sh)"
#[cold]
#[must_use]
pub fn describe_waits(holds: &[Status]) -> String {
    let links = holds.iter().map(|hold| {
        let holder = hold.info().map(|record| holder(hold, record));
        let holder = holder.unwrap_or_default();
        format!("waits for {}, held by {holder}", quoted(&hold.name))
    });
    links.collect::<Vec<_>>().join(", which ")
}

/// "`backup` ran on db1 for 12s (exit 0) and stays locked until 02:00:30 (--hold-at-least 30s): "nightly""
#[cold]
#[inline(never)]
fn past_run(
    status: &Status,
    name: &str,
    record: HoldInfo<'_>,
    end: CommandEnd,
    time: ShowTime,
) -> String {
    let ran_on_host = on_host("ran".to_owned(), record.hostname());
    let ran = end.at.signed_duration_since(record.acquired_at());
    let ran = span(ran.to_std().unwrap_or_default());
    let how = match (end.exit_code, end.signal) {
        (Some(code), _) => format!("exit {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "exit status unknown".to_owned(),
    };
    let until = status.verdict.expires_at;
    let until = until.map_or_else(String::new, |at| format!(" until {}", time(at)));
    let least = short_span(record.ttl().unwrap_or_default());
    let message = message(record.message());
    format!(
        "{name} {ran_on_host} for {ran} ({how}) and stays locked{until} (--hold-at-least {least}){message}"
    )
}

/// The holder of a zombie and how it ended: "process 4262 (sleep) on vm, holder since 20:40:51 (3h
/// 12m ago), has exited".
pub fn describe_zombie(status: &Status, time: ShowTime) -> String {
    let Some(record) = status.info() else {
        let hint = if may_be_of_flock(status) {
            "; if flock(1) uses that file, add --format flock"
        } else {
            ""
        };
        return format!("its lock file is damaged and has no holder{hint}");
    };
    let end = match status.verdict.reason {
        Reason::Expired => "has expired",
        Reason::Dead if status.verdict.evidence == Evidence::LeaseEnded => "whose lease has ended",
        Reason::InstanceRestarted => "ended with an earlier incarnation of its instance",
        Reason::TooOld(_) => "cannot be checked",
        Reason::Dead | Reason::Reused if record.program().is_some() => "which has exited",
        reason => end_of_process(reason),
    };
    past_holder(status, record, &format!(", {end}"), time)
}

/// Why it is a zombie, or overdue: "process 4262 has exited". `None`: it is neither.
pub fn zombie_reason(status: &Status) -> Option<String> {
    if !status.verdict.is_zombie() {
        return None;
    }
    let age = status.verdict.age.unwrap_or_default();
    // Of a short limit the age counts by tenths of a second.
    let older_than = |limit: Duration| {
        let age = match limit.as_secs() {
            0..60 => format!("{:.1}s", age.as_secs_f64()),
            _ => span(age),
        };
        format!("lock is {age} old (>{})", short_span(limit))
    };
    let limit = status.verdict.age_and_limit.map(|(_, limit)| limit);
    if let Some(limit) = limit.filter(|_| status.verdict.is_too_old()) {
        let old = older_than(limit);
        return Some(match status.verdict.state {
            State::Overdue => old,
            _ => format!("{old}, and cannot be checked"),
        });
    }
    let process = match status.verdict.pid {
        Some(pid) => format!("process {pid}"),
        None => "its process".to_owned(),
    };
    Some(match status.verdict.reason {
        Reason::Reused => format!("{process} has exited, and another has its PID"),
        Reason::InstanceRestarted => {
            let instance = instance(status);
            format!("{process} was of an earlier incarnation of {instance}")
        }
        Reason::Expired => match status.info().and_then(HoldInfo::ttl) {
            Some(ttl) => older_than(ttl),
            None => format!("lock is {} old", span(age)),
        },
        Reason::Corrupt => "its lock file is damaged".to_owned(),
        Reason::Malformed(what) => format!("its file is not a lock: {}", at_own_place(what)),
        Reason::Dead if status.verdict.evidence == Evidence::LeaseEnded => {
            format!("the lease of {process} has ended")
        }
        reason => format!("{process} {}", end_of_process(reason)),
    })
}

fn end_of_process(reason: Reason) -> &'static str {
    match reason {
        Reason::Rebooted => "ended before the last reboot",
        Reason::NamespaceGone => "has ended with its container",
        _ => "has exited",
    }
}

/// "instance `db-0`"
pub(super) fn instance(status: &Status) -> String {
    let name = status.info().and_then(HoldInfo::instance);
    format!("instance {}", quoted(name.unwrap_or_default()))
}

/// The holder of a hold that was ended by force: "process 4262 (sleep) on vm, holder since
/// 20:40:51 (3h 12m ago)".
pub fn describe_past_holder(status: &Status, time: ShowTime) -> String {
    match status.info() {
        Some(_) if status.verdict.reason == Reason::Locked => lockers(status, time),
        Some(record) => past_holder(status, record, "", time),
        None => match status.verdict.reason {
            Reason::UnknownVersion(version) => other_version(version),
            _ => "an unknown holder (damaged lock file)".to_owned(),
        },
    }
}

fn other_version(version: u64) -> String {
    let which = if version > VERSION {
        "a later"
    } else {
        "another"
    };
    format!("{which} version of onehold (record version {version})")
}

/// The waiter that the lock is reserved for.
pub fn reserved_for(status: &Status) -> Option<&Waiter> {
    let mut waiters = status.waiters.iter();
    let first = waiters.find(|waiter| Some(waiter.pid) == status.verdict.pid);
    first.filter(|_| status.verdict.reason == Reason::Reserved)
}

/// "process 4262 (sleep) on vm, holder since 20:40:51 (3h 12m ago)", and how it ended.
fn past_holder(status: &Status, record: HoldInfo<'_>, end: &str, time: ShowTime) -> String {
    let holder = holder_on_host(status, record);
    let what = if record.is_lease() {
        "acquired at"
    } else {
        "holder since"
    };
    let since = with_age(record.acquired_at(), time);
    let message = message(record.message());
    format!("{holder}, {what} {since}{end}{message}")
}

/// "process 4242 (backup.sh) on db1", "process 4242 (worker.py) on db1, through onehold 7634"
pub fn holder_on_host(status: &Status, record: HoldInfo<'_>) -> String {
    let mut text = on_host(holder(status, record), record.hostname());
    if let Some(keeper) = record.program().and_then(|_| keeper(status, record)) {
        let _ = write!(text, ", through onehold {keeper}");
    }
    text
}

/// The process that keeps a hold, or kept it.
fn keeper(status: &Status, record: HoldInfo<'_>) -> Option<Pid> {
    status.verdict.pid.or(record.taken_by())
}

/// "process 4242 (backup.sh) on db1", if the host is known.
fn on_host(what: String, host: Option<&str>) -> String {
    match host {
        Some(host) => format!("{what} on {}", escape(host)),
        None => what,
    }
}

/// ": "nightly""
pub fn message(text: Option<&str>) -> String {
    text.map_or_else(String::new, |text| format!(": \"{}\"", escape(text)))
}

/// "child" or the like: what `status` is for `wanted`, a lock that it excludes.
pub fn relation(status: &Status, wanted: &LockName) -> &'static str {
    let depth = |name: &str| name.split('/').count();
    let (found, wanted) = (depth(&status.name), depth(wanted.as_str()));
    match (found > wanted, found.abs_diff(wanted)) {
        (true, 1) => "child",
        (true, _) => "descendant",
        (false, 1) => "parent",
        (false, _) => "ancestor",
    }
}

/// What a file is, without the format that it could have elsewhere: the place is meant for another.
fn at_own_place(what: &str) -> &str {
    what.split_once(" (").map_or(what, |(what, _)| what)
}

/// Whether a file without a record may be one of flock(1): at a path, and not where another format is expected.
fn may_be_of_flock(status: &Status) -> bool {
    let is_path = || LockName::new(&status.name).is_ok_and(|name| name.is_path());
    status.format == Format::Native && is_path()
}

/// "process 4242 (backup.sh)", "a lease of runner-7"
pub fn holder(status: &Status, record: HoldInfo<'_>) -> String {
    let holder = holder_in_brief(status, record);
    let article = match holder.bytes().next() {
        Some(first) if first.is_ascii_digit() => "process",
        _ => "a",
    };
    format!("{article} {holder}")
}

/// "4242 (backup.sh)", "lease of runner-7"
pub fn holder_in_brief(status: &Status, record: HoldInfo<'_>) -> String {
    let mut text = match keeper(status, record) {
        _ if record.is_kept() => {
            let program = process::program(record.command());
            let program = program.map(|program| format!(" ({})", escape(program)));
            format!("finished run{}", program.unwrap_or_default())
        }
        _ if record.is_lease() => "lease".to_owned(),
        pid => match (record.program(), pid) {
            (Some(program), _) => process_in_brief(program.pid.get(), &program.command),
            (None, Some(pid)) => process_in_brief(pid.get(), record.command()),
            (None, None) => "process without a PID".to_owned(),
        },
    };
    if let Some(owner) = record.owner() {
        let _ = write!(text, " of {}", escape(owner));
    }
    text
}

/// A lock name in backquotes, as in all messages.
pub fn quoted(name: &str) -> String {
    format!("`{}`", escape(name))
}
