//! Sentences about a lock and its holder, as certain as the evidence.

use std::fmt::Write as _;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::decision::verdict::{Evidence, Reason, State, Uncertainty};
use crate::name::LockName;
use crate::record::{Mode, Record, VERSION as RECORD_VERSION};
use crate::status::{Locker, Status, Waiter};
use crate::sys::process::boottime_milliseconds;
use crate::terminal::escape;

/// Shows a time: on a terminal in local time, elsewhere in UTC.
pub type ShowTime = fn(DateTime<Utc>) -> String;

/// "`backup` is held by process 4242 (backup.sh) on db1 since 02:00:07 (3h 12m ago): "nightly""
#[must_use]
pub fn describe_holder(status: &Status, time: ShowTime) -> String {
    describe(status, &quoted(&status.name), time)
}

/// The same of what keeps a caller from taking `wanted`: "`backend`, the parent of `backend/task-1`, is
/// held by …".
#[must_use]
pub fn describe_obstacle(status: &Status, wanted: &LockName, time: ShowTime) -> String {
    let name = quoted(&status.name);
    let is_wanted = status.name == wanted.as_str()
        || LockName::new(&status.name).is_ok_and(|found| found == *wanted);
    if is_wanted {
        return describe(status, &name, time);
    }
    let relation = match relation(status, wanted) {
        "parent" => "the parent",
        "child" => "a child",
        "descendant" => "a descendant",
        _ => "an ancestor",
    };
    let wanted = quoted(wanted.as_str());
    describe(status, &format!("{name}, {relation} of {wanted},"), time)
}

fn describe(status: &Status, name: &str, time: ShowTime) -> String {
    let verdict = &status.verdict;
    match (verdict.state, verdict.reason) {
        (State::Free, _) if status.record.is_none() && !status.others.is_empty() => {
            return format!("{name} can be held by one more");
        }
        (State::Free, _) => return format!("{name} is free"),
        (State::Zombie, Reason::Malformed(what)) => return format!("{name} is damaged: {what}"),
        (State::Zombie, _) => {
            return format!("{name} is a zombie: {}", describe_zombie(status, time));
        }
        (State::NotALock, Reason::NotALock(what)) => {
            return format!("{name} is not a lock: {what}");
        }
        (_, Reason::Reserved) => {
            return match reserved_for(status) {
                Some(waiter) => {
                    let process = process_on_host(waiter);
                    format!("{name} is reserved for {process}, first in the queue")
                }
                None => format!("{name} is reserved for the first waiter"),
            };
        }
        (_, Reason::Locked) => return format!("{name} is held by {}", lockers(status, time)),
        _ => {}
    }
    let Some(record) = &status.record else {
        return match verdict.reason {
            Reason::Alive => format!("{name} is held by {}", lockers(status, time)),
            Reason::Unverified(_) => format!("{name} may be held"),
            Reason::UnknownVersion(version) => {
                format!("{name} was locked by {}", other_version(version))
            }
            Reason::Incomplete => format!("{name} may be held: its lock file is incomplete"),
            _ => format!("{name} is held, but its lock file is damaged"),
        };
    };
    let certainty = match (verdict.reason, record.mode) {
        (Reason::Unverified(_), Mode::Shared) => "may be shared",
        (Reason::Unverified(_), _) => "may be held",
        (_, Mode::Shared) => "is shared",
        _ => "is held",
    };
    let name = match (status.slot, record.mode) {
        // A relation to another lock ends with a comma, too.
        (Some(slot), Mode::Slots(_)) => format!("{}, slot {slot},", name.trim_end_matches(',')),
        _ => name.to_owned(),
    };
    let mut text = format!(
        "{name} {certainty} by {} {}",
        holder_on_host(status, record),
        since(record.acquired_at, time)
    );
    if verdict.reason == Reason::Unverified(Uncertainty::OtherHost) {
        text.push_str(", which cannot be checked from here");
    }
    text + &message(record.message.as_deref())
}

/// The holder of a zombie and how it ended: "process 4262 (sleep) on vm, holder since 20:40:51 (3h
/// 12m ago), has exited".
#[must_use]
pub fn describe_zombie(status: &Status, time: ShowTime) -> String {
    let Some(record) = &status.record else {
        let hint = if is_at_path(status) {
            "; if flock(1) uses that file, add --format flock"
        } else {
            ""
        };
        return format!("its lock file is damaged and has no holder{hint}");
    };
    let end = match status.verdict.reason {
        Reason::Expired => "has expired",
        Reason::Dead if status.verdict.evidence == Evidence::LeaseEnded => "whose lease has ended",
        Reason::Rebooted => "ended before the last reboot",
        Reason::TooOld(_) => "cannot be checked",
        _ => "has exited",
    };
    format!(
        "{}, {end}{}",
        holder_with_time(status, record, time),
        message(record.message.as_deref())
    )
}

/// Why it is a zombie: "process 4262 has exited". `None`: it is not a zombie.
#[must_use]
pub fn zombie_reason(status: &Status) -> Option<String> {
    if status.verdict.state != State::Zombie {
        return None;
    }
    let age = || {
        let age = status.verdict.age.unwrap_or_default();
        span(age)
    };
    let process = || match status.verdict.pid {
        Some(pid) => format!("process {pid}"),
        None => "its process".to_owned(),
    };
    Some(match status.verdict.reason {
        Reason::Reused => format!("{} has exited, and another has its PID", process()),
        Reason::Rebooted => format!("{} ended before the last reboot", process()),
        Reason::Expired => match status.record.as_ref().and_then(Record::ttl) {
            Some(ttl) => format!("lock is {} old (>{})", age(), short_span(ttl)),
            None => format!("lock is {} old", age()),
        },
        Reason::TooOld(_) => format!("lock is {} old, and cannot be checked", age()),
        Reason::Corrupt => "its lock file is damaged".to_owned(),
        Reason::Malformed(what) => format!("its file is not a lock: {what}"),
        Reason::Dead if status.verdict.evidence == Evidence::LeaseEnded => {
            format!("the lease of {} has ended", process())
        }
        _ => format!("{} has exited", process()),
    })
}

/// The holder of a hold that was ended by force: "process 4262 (sleep) on vm, holder since
/// 20:40:51 (3h 12m ago)".
#[must_use]
pub fn describe_past_holder(status: &Status, time: ShowTime) -> String {
    match &status.record {
        Some(_) if status.verdict.reason == Reason::Locked => lockers(status, time),
        Some(record) => format!(
            "{}{}",
            holder_with_time(status, record, time),
            message(record.message.as_deref())
        ),
        None => match status.verdict.reason {
            Reason::UnknownVersion(version) => other_version(version),
            _ => "an unknown holder (damaged lock file)".to_owned(),
        },
    }
}

fn other_version(version: u64) -> String {
    let which = if version > RECORD_VERSION {
        "a later"
    } else {
        "another"
    };
    format!("{which} version of onehold (record version {version})")
}

/// The waiter that the lock is reserved for.
#[must_use]
pub fn reserved_for(status: &Status) -> Option<&Waiter> {
    let first = status
        .waiters
        .iter()
        .find(|waiter| Some(waiter.pid) == status.verdict.pid);
    first.filter(|_| status.verdict.reason == Reason::Reserved)
}

/// "process 4262 (sleep) on vm, holder since 20:40:51 (3h 12m ago)"
fn holder_with_time(status: &Status, record: &Record, time: ShowTime) -> String {
    let since = if record.is_lease() {
        "acquired at"
    } else {
        "holder since"
    };
    format!(
        "{}, {since} {}",
        holder_on_host(status, record),
        with_age(record.acquired_at, time)
    )
}

/// "process 4242 (backup.sh) on db1"
#[must_use]
pub fn holder_on_host(status: &Status, record: &Record) -> String {
    match &record.hostname {
        Some(host) => format!("{} on {}", holder(status, record), escape(host)),
        None => holder(status, record),
    }
}

/// ": "nightly""
#[must_use]
pub fn message(text: Option<&str>) -> String {
    text.map_or_else(String::new, |text| format!(": \"{}\"", escape(text)))
}

/// Returns whether the ancestor is the parent.
fn is_parent(ancestor: &str, descendant: &str) -> bool {
    let rest = descendant.get(ancestor.len() + 1..);
    rest.is_some_and(|rest| !rest.contains('/'))
}

/// "child" or the like: what `status` is for `wanted`, a lock that it excludes.
#[must_use]
pub fn relation(status: &Status, wanted: &LockName) -> &'static str {
    let (found, wanted) = (status.name.as_str(), wanted.as_str());
    let is_descendant = found.len() > wanted.len();
    match is_descendant {
        true if is_parent(wanted, found) => "child",
        true => "descendant",
        false if is_parent(found, wanted) => "parent",
        false => "ancestor",
    }
}

/// Whether it is the path of a lock file, which other programs may use as well.
fn is_at_path(status: &Status) -> bool {
    LockName::new(&status.name).is_ok_and(|name| name.is_path())
}

/// The second line of a description: the evidence. `None`: the first line says it all.
#[must_use]
pub fn evidence(status: &Status, time: ShowTime) -> Option<String> {
    let verdict = &status.verdict;
    let text = match verdict.reason {
        Reason::Alive => {
            let how = match verdict.evidence {
                Evidence::KernelLock => &kernel_lock(status),
                Evidence::SameProcess => "PID and start time match",
                Evidence::LeaseKept => "its lease is kept",
                _ => "a process with this PID is running",
            };
            let how = if verdict.state == State::Overdue {
                format!("overdue: older than {}, but alive ({how})", max_age(status))
            } else {
                format!("alive: {how}")
            };
            match verdict.evidence {
                Evidence::LeaseKept => how,
                _ => format!("{how}{}", wrapper_note(status)),
            }
        }
        Reason::Locked => {
            let process = match verdict.pid {
                Some(pid) => format!("process {pid}"),
                None => "the process".to_owned(),
            };
            let end = match verdict.pid_alive {
                Some(false) => "has exited",
                _ => "began later",
            };
            format!("alive: holds the kernel lock; {process}, which its record names, {end}")
        }
        Reason::Starting => {
            "held: its wrapper has exited, and its command may be about to start".to_owned()
        }
        Reason::Ending if verdict.evidence == Evidence::LeaseKept => {
            let by = status.record.as_ref();
            let by = by.and_then(|record| record.live.broken_by.as_deref());
            format!(
                "held: its work is being ended by force, for {}",
                escape(by.unwrap_or("an unknown process"))
            )
        }
        Reason::Ending => format!(
            "held: its work is being ended by force{}",
            ending(status, time).unwrap_or_default()
        ),
        Reason::Reserved if verdict.evidence == Evidence::LeaseKept => {
            "reserved until its ticket expires: within 5 s if that process has ended".to_owned()
        }
        Reason::Reserved => "reserved: that process is alive".to_owned(),
        Reason::Lease => format!("lease: {}", expiry(status, time)),
        Reason::UnknownVersion(_) => {
            "this version cannot read the record: upgrade, or break the lock".to_owned()
        }
        Reason::Incomplete if is_at_path(status) => {
            "incomplete: changed less than 10 s ago; if flock(1) uses this file, add --format flock"
                .to_owned()
        }
        Reason::Incomplete => "incomplete: changed less than 10 s ago".to_owned(),
        Reason::Unverified(uncertainty) => format!("unverified: {}", uncertainty_text(uncertainty)),
        Reason::TooOld(uncertainty) => format!(
            "zombie: older than its maximum age, and its holder cannot be checked ({})",
            uncertainty_in_brief(uncertainty)
        ),
        Reason::Dead if verdict.evidence == Evidence::LeaseEnded => {
            format!("zombie: its lease has ended{}", takeable_in(status))
        }
        Reason::Expired if verdict.evidence == Evidence::LeaseEnded => {
            format!("zombie: {}{}", expiry(status, time), takeable_in(status))
        }
        Reason::Dead if verdict.evidence == Evidence::KernelLockGone => {
            "zombie: no process holds its kernel lock".to_owned()
        }
        Reason::Dead => "zombie: no process with this PID".to_owned(),
        Reason::Reused => "zombie: the PID now belongs to another process".to_owned(),
        Reason::Rebooted => "zombie: the machine has been rebooted".to_owned(),
        Reason::Expired => format!("zombie: {}", expiry(status, time)),
        Reason::Corrupt => "zombie: empty or unreadable, unchanged for 10 s".to_owned(),
        Reason::Malformed(_) => "damaged: not a lock file, unchanged for 10 s".to_owned(),
        Reason::Finished
            if status
                .record
                .as_ref()
                .is_some_and(|record| record.live.released) =>
        {
            "left by a release that was killed".to_owned()
        }
        Reason::Finished => "left by a finished `run --exec`".to_owned(),
        Reason::NoFile | Reason::NotALock(_) => return None,
    };
    Some(text)
}

/// "; can be taken over in 12s: its work may not have ended yet".
fn takeable_in(status: &Status) -> String {
    let left = status.verdict.takeable_in.map(|left| {
        let seconds = Duration::from_secs(left.as_millis().div_ceil(1000).try_into().unwrap_or(0));
        format!(
            "; can be taken over in {}: its work may not have ended yet",
            span(seconds)
        )
    });
    left.unwrap_or_default()
}

/// "its maximum age of 1d", if the hold has one of its own.
fn max_age(status: &Status) -> String {
    let own = status.record.as_ref().and_then(|record| record.max_age_ms);
    match own {
        Some(age) => format!(
            "its maximum age of {}",
            short_span(Duration::from_millis(age))
        ),
        None => "its maximum age".to_owned(),
    }
}

/// ", TERM at 02:00:07, KILL at 02:00:17", of work on this machine.
fn ending(status: &Status, time: ShowTime) -> Option<String> {
    let verdict = &status.verdict;
    let record = status.record.as_ref()?;
    // Elsewhere the clock of that machine counts.
    if verdict.pid_alive.is_none() && verdict.wrapper_alive.is_none() {
        return None;
    }
    let ago = boottime_milliseconds().checked_sub(record.live.ending?)?;
    let began =
        Utc::now().checked_sub_signed(TimeDelta::try_milliseconds(ago.try_into().ok()?)?)?;
    let kill = match record.kill_after() {
        Some(after) => format!(
            "KILL at {}",
            time(began.checked_add_signed(TimeDelta::from_std(after).ok()?)?)
        ),
        None => "no KILL".to_owned(),
    };
    Some(format!(", TERM at {}, {kill}", time(began)))
}

/// What else is known of the processes of a live holder.
fn wrapper_note(status: &Status) -> String {
    let verdict = &status.verdict;
    match (verdict.wrapper_alive, &status.record) {
        (Some(false), Some(record)) if !record.exec => match record.taken_by {
            Some(pid) => format!("; its wrapper (process {pid}) has exited"),
            None => String::new(),
        },
        (_, Some(_)) if verdict.pid_alive.is_none() => {
            "; its PID cannot be checked here".to_owned()
        }
        _ => String::new(),
    }
}

/// "process 4242 (backup.sh)", "a lease of runner-7"
#[must_use]
pub fn holder(status: &Status, record: &Record) -> String {
    let holder = holder_in_brief(status, record);
    let article = match holder.bytes().next() {
        Some(first) if first.is_ascii_digit() => "process",
        _ => "a",
    };
    format!("{article} {holder}")
}

/// "4242 (backup.sh)", "lease of runner-7"
#[must_use]
pub fn holder_in_brief(status: &Status, record: &Record) -> String {
    let pid = status.verdict.pid.or(record.taken_by);
    let mut text = match pid {
        _ if record.is_lease() => "lease".to_owned(),
        Some(pid) => process_in_brief(pid.get(), &record.command),
        None => "process without a PID".to_owned(),
    };
    if let Some(owner) = &record.owner {
        let _ = write!(text, " of {}", escape(owner));
    }
    text
}

/// Who has locked a file whose record does not say it.
fn lockers(status: &Status, time: ShowTime) -> String {
    if status.lockers.is_empty() {
        return "a process that cannot be seen from here".to_owned();
    }
    let lockers = status.lockers.iter().map(|one| locker(one, time));
    lockers.collect::<Vec<_>>().join(" and ")
}

/// The same in brief, if no record says who holds the lock: "process 4242 (backup.sh)".
#[must_use]
pub fn lockers_in_brief(status: &Status) -> Option<String> {
    let lockers = lockers_of(status).iter();
    let lockers: Vec<String> = lockers
        .map(|one| process(one.pid.get(), &one.command))
        .collect();
    (!lockers.is_empty()).then(|| lockers.join(" and "))
}

/// Who holds a lock of which no record says it.
#[must_use]
pub fn lockers_of(status: &Status) -> &[Locker] {
    let is_unnamed = status.record.is_none() || status.verdict.reason == Reason::Locked;
    if is_unnamed { &status.lockers } else { &[] }
}

/// Whose kernel lock it is: a PID file of ours is locked by the wrapper, and names the command.
fn kernel_lock(status: &Status) -> String {
    let is_holder = |locker: &Locker| Some(locker.pid) == status.verdict.pid;
    match status.lockers.first() {
        Some(locker) if status.record.is_some() && !status.lockers.iter().any(is_holder) => {
            format!("process {} holds the kernel lock", locker.pid)
        }
        _ => "holds the kernel lock".to_owned(),
    }
}

/// "process 4242 (backup.sh) of user root, running since 02:00:07 (3h 12m ago)"
fn locker(locker: &Locker, time: ShowTime) -> String {
    let mut text = process(locker.pid.get(), &locker.command);
    if let Some(user) = &locker.user {
        let _ = write!(text, " of user {}", escape(user));
    }
    if let Some(started) = locker.started {
        let _ = write!(text, ", running {}", since(started, time));
    }
    text
}

/// "process 77 (job.sh) on db1"
#[must_use]
pub fn process_on_host(waiter: &Waiter) -> String {
    let process = process(waiter.pid.get(), &waiter.command);
    match &waiter.hostname {
        Some(host) => format!("{process} on {}", escape(host)),
        None => process,
    }
}

/// "process 4242 (backup.sh)"
#[must_use]
pub fn process(pid: u32, command: &[String]) -> String {
    format!("process {}", process_in_brief(pid, command))
}

/// "4242 (backup.sh)"
#[must_use]
pub fn process_in_brief(pid: u32, command: &[String]) -> String {
    match program(command) {
        Some(program) => format!("{pid} ({})", escape(program)),
        None => pid.to_string(),
    }
}

/// The name of the program. For an interpreter it is the script: the kernel shows a `#!` script as
/// an argument of its interpreter.
fn program(command: &[String]) -> Option<&str> {
    const INTERPRETERS: [&str; 14] = [
        "sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "fish", "python", "python3", "perl",
        "ruby", "node", "env",
    ];
    let first = command.first()?;
    let name = base_name(first).trim_start_matches('-');
    match command.get(1) {
        Some(script) if INTERPRETERS.contains(&name) && !script.starts_with('-') => {
            Some(base_name(script))
        }
        _ => Some(name).filter(|name| !name.is_empty()),
    }
}

/// The last part of a path, which may be one of Windows in a record that is read elsewhere.
fn base_name(path: &str) -> &str {
    let of_windows = path.get(1..3) == Some(":\\");
    let is_separator = |c| c == '/' || (of_windows && c == '\\');
    path.rsplit(is_separator).next().unwrap_or(path)
}

/// "since 02:00:07 (3h 12m ago)"
#[must_use]
pub fn since(at: DateTime<Utc>, time: ShowTime) -> String {
    format!("since {}", with_age(at, time))
}

fn with_age(at: DateTime<Utc>, time: ShowTime) -> String {
    let ago = Utc::now().signed_duration_since(at).to_std();
    match ago {
        Ok(ago) => format!("{} ({} ago)", time(at), span(ago)),
        Err(_) => format!("{} (in the future)", time(at)),
    }
}

/// Time since the lock was acquired, not since the last heartbeat.
#[must_use]
pub fn age(status: &Status) -> Option<Duration> {
    let since = status
        .record
        .as_ref()
        .map(|record| Utc::now().signed_duration_since(record.acquired_at));
    since
        .and_then(|since| since.to_std().ok())
        .or(status.verdict.age)
}

fn uncertainty_text(uncertainty: Uncertainty) -> &'static str {
    match uncertainty {
        Uncertainty::OtherHost => "its process is on another host",
        Uncertainty::OtherPidNamespace => "its process is in another PID namespace (a container)",
        Uncertainty::UnknownBoot => "a reboot since then cannot be ruled out from here",
        Uncertainty::PidOnly => "the process with this PID started after the lock was taken",
        Uncertainty::ProcessUnreadable => "the system does not show whether its process is running",
        Uncertainty::NoProcess => "its record names no process",
        Uncertainty::LocksNotListed => {
            "this system does not list kernel locks, and a reader would not show otherwise"
        }
        Uncertainty::CommandUnknown => {
            "its recorded process has exited, and it may have started another"
        }
    }
}

fn uncertainty_in_brief(uncertainty: Uncertainty) -> &'static str {
    match uncertainty {
        Uncertainty::OtherHost => "other host",
        Uncertainty::OtherPidNamespace => "other PID namespace",
        Uncertainty::UnknownBoot => "possible reboot",
        Uncertainty::PidOnly => "the process with this PID started later",
        Uncertainty::ProcessUnreadable => "process not visible",
        Uncertainty::NoProcess => "no process in its record",
        Uncertainty::CommandUnknown => "another process may hold it",
        Uncertainty::LocksNotListed => "kernel locks not listed",
    }
}

fn expiry(status: &Status, time: ShowTime) -> String {
    match status.verdict.expires_at {
        Some(at) => match at.signed_duration_since(Utc::now()).to_std() {
            Ok(left) => format!("expires at {} (in {})", time(at), span(left)),
            Err(_) => format!("expired at {}", time(at)),
        },
        None => "never expires".to_owned(),
    }
}

/// A lock name in backquotes, as in all messages.
#[must_use]
pub fn quoted(name: &str) -> String {
    format!("`{}`", escape(name))
}

/// "10s", or "0.5s".
#[must_use]
pub fn short_span(duration: Duration) -> String {
    if duration.subsec_nanos() == 0 {
        return span(duration);
    }
    format!("{}s", duration.as_secs_f64())
}

/// A duration by its two largest units: "3h 12m".
#[must_use]
pub fn span(duration: Duration) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let seconds = duration.as_secs();
    let Some(first) = UNITS.iter().position(|(size, _)| seconds >= *size) else {
        return "0s".to_owned();
    };
    let mut rest = seconds;
    let mut parts = Vec::new();
    for (size, unit) in UNITS.iter().skip(first).take(2) {
        let count = rest / size;
        rest %= size;
        if count > 0 {
            parts.push(format!("{count}{unit}"));
        }
    }
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_is_named_instead_of_its_interpreter() {
        let named = |command: &[&str]| {
            let command: Vec<String> = command.iter().map(ToString::to_string).collect();
            program(&command).map(ToOwned::to_owned)
        };
        assert_eq!(
            named(&["/bin/bash", "./deploy.sh"]).as_deref(),
            Some("deploy.sh")
        );
        assert_eq!(named(&["-bash"]).as_deref(), Some("bash"));
        assert_eq!(named(&["bash", "-c", "x"]).as_deref(), Some("bash"));
        assert_eq!(named(&["/usr/bin/sleep", "9"]).as_deref(), Some("sleep"));
        assert_eq!(
            named(&["C:\\Program Files\\backup.exe"]).as_deref(),
            Some("backup.exe")
        );
        assert_eq!(named(&["/a/C:\\b"]).as_deref(), Some("C:\\b"));
        assert_eq!(named(&[]), None);
    }

    #[test]
    fn duration_is_shown_in_its_two_largest_units() {
        let cases = [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (3_661, "1h 1m"),
            (11_520, "3h 12m"),
            (90_000, "1d 1h"),
            (86_401, "1d"),
        ];
        for (seconds, text) in cases {
            assert_eq!(span(Duration::from_secs(seconds)), text);
        }
    }
}
