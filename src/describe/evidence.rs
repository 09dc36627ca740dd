//! The evidence for what is said about a lock.

use std::time::Duration;

use chrono::{TimeDelta, Utc};

use super::time::{ShowTime, short_span, span};
use super::{instance, may_be_of_flock, quoted};
use crate::decision::verdict::{Evidence, Reason, State, Uncertainty};
use crate::status::{Locker, Provenance, Status};
use crate::sys::process::boottime_milliseconds;
use crate::terminal::escape;

/// Where a record comes from that was not written where it is.
pub fn provenance(status: &Status) -> Option<String> {
    let name = status.record.as_ref().map(|record| quoted(&record.name));
    match status.provenance? {
        Provenance::Here => None,
        Provenance::OtherName => Some(format!(
            "its lock file was written for {}, and renamed, linked or copied",
            name.unwrap_or_default()
        )),
        Provenance::OtherStore => Some(
            "its lock file was written in another store, and copied or linked from there"
                .to_owned(),
        ),
    }
}

/// The second line of a description: the evidence. `None`: the first line says it all.
pub fn evidence(status: &Status, time: ShowTime) -> Option<String> {
    let verdict = &status.verdict;
    let text = match verdict.reason {
        Reason::Alive => {
            let how = match verdict.evidence {
                Evidence::KernelLock => &kernel_lock(status),
                Evidence::SameProcess => "PID and start time match",
                Evidence::LeaseKept => "its lease has not ended",
                _ => "a process with this PID is running",
            };
            let note = wrapper_note(status);
            if verdict.state == State::Overdue {
                let age = max_age(status);
                format!("overdue: older than {age}, but alive ({how}){note}")
            } else {
                format!("alive: {how}{note}")
            }
        }
        Reason::Locked => {
            let process = verdict.pid.map(|pid| format!("process {pid}"));
            let process = process.as_deref().unwrap_or("the process");
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
            "held: its work is being ended by force{}{}",
            ending(status, time).unwrap_or_default(),
            caller_exited(status).unwrap_or_default()
        ),
        Reason::Reserved if verdict.evidence == Evidence::LeaseKept => {
            "reserved until its ticket expires: if that process has ended, 5 s after another one wants the lock".to_owned()
        }
        Reason::Reserved => "reserved: that process is alive".to_owned(),
        Reason::Lease => format!("lease: {}", expiry(status, time)),
        Reason::Kept => format!("kept: {}", expiry(status, time)),
        Reason::UnknownVersion(_) => {
            "this version cannot read the record: upgrade, or break the lock".to_owned()
        }
        Reason::Incomplete if may_be_of_flock(status) => {
            "incomplete: changed less than 10 s ago; if flock(1) uses this file, add --format flock"
                .to_owned()
        }
        Reason::Incomplete => "incomplete: changed less than 10 s ago".to_owned(),
        Reason::Unverified(uncertainty) => format!("unverified: {}", uncertainty_text(uncertainty)),
        Reason::TooOld(uncertainty) => format!(
            "zombie: older than its maximum age, and its holder cannot be checked: {}",
            uncertainty_text(uncertainty)
        ),
        Reason::Dead if verdict.evidence == Evidence::LeaseEnded => {
            format!("zombie: its lease has ended{}", takeable_in(status))
        }
        Reason::Dead if verdict.evidence == Evidence::KernelLockGone => {
            "zombie: no process holds its kernel lock".to_owned()
        }
        Reason::Dead => "zombie: no process with this PID".to_owned(),
        Reason::Reused => "zombie: the PID now belongs to another process".to_owned(),
        Reason::Rebooted => "zombie: the machine has been rebooted".to_owned(),
        Reason::InstanceRestarted => {
            format!("zombie: of an earlier incarnation of {}", instance(status))
        }
        Reason::NamespaceGone => {
            "zombie: no process is left in its PID namespace (a container)".to_owned()
        }
        Reason::Expired => format!("zombie: {}{}", expiry(status, time), takeable_in(status)),
        Reason::Corrupt => "zombie: empty or unreadable, unchanged for 10 s".to_owned(),
        Reason::Malformed(_) => "damaged: not a lock file, unchanged for 10 s".to_owned(),
        Reason::Finished => format!("left by {}", left_by(status)),
        Reason::NoFile | Reason::NotALock(_) => return None,
    };
    Some(text)
}

/// What a record of a finished hold was left by.
fn left_by(status: &Status) -> &'static str {
    match &status.record {
        Some(record) if record.live.released => "a release that was killed",
        Some(record) if record.is_kept() => "a finished `run --hold-at-least`",
        _ => "a finished `run --exec`",
    }
}

/// What else is known of the processes of a live holder.
fn wrapper_note(status: &Status) -> String {
    let verdict = &status.verdict;
    match (verdict.wrapper_alive, &status.record) {
        _ if verdict.evidence == Evidence::LeaseKept => String::new(),
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

/// "its maximum age of 1d", if the hold has one of its own.
fn max_age(status: &Status) -> String {
    let own = status.record.as_ref().and_then(|record| record.max_age_ms);
    let own = own.map(|age| format!(" of {}", short_span(Duration::from_millis(age))));
    format!("its maximum age{}", own.unwrap_or_default())
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
        Some(after) => {
            let at = began.checked_add_signed(TimeDelta::from_std(after).ok()?)?;
            format!("KILL at {}", time(at))
        }
        None => "no KILL".to_owned(),
    };
    Some(format!(", TERM at {}, {kill}", time(began)))
}

/// "; its caller, process 4711, has exited", where that can be seen.
fn caller_exited(status: &Status) -> Option<String> {
    let verdict = &status.verdict;
    let caller = status.record.as_ref()?.die_with?;
    let is_here = verdict.pid_alive.is_some() || verdict.wrapper_alive.is_some();
    let has_exited = caller.has_ended();
    (is_here && has_exited).then(|| format!("; its caller, process {}, has exited", caller.pid))
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

fn expiry(status: &Status, time: ShowTime) -> String {
    match status.verdict.expires_at {
        Some(at) => match at.signed_duration_since(Utc::now()).to_std() {
            Ok(left) => format!("expires at {} (in {})", time(at), span(left)),
            Err(_) => format!("expired at {}", time(at)),
        },
        None => "never expires".to_owned(),
    }
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
