//! A refusal in words: those of the program whose format was asked for, or our own.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};

use super::attempt::Blocked;
use crate::decision::verdict::Reason;
use crate::describe::describe_holder;
use crate::record::Format;
use crate::status::Status;
use crate::terminal::escape;

/// The sentence of the program whose format the lock has, as it tells its users; else what the command line
/// says: who holds the lock, since when and why. Times are in UTC. Text from the lock file is escaped for
/// terminals.
impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = &*self.status;
        let is_theirs = status.verdict.reason != Reason::Reserved && !status.verdict.is_zombie();
        match status.format {
            Format::Prodigy if is_theirs => prodigy(f, status),
            Format::Sprint if is_theirs && status.record.is_some() => sprint(f, status),
            Format::Memory if is_theirs => memory(f, status, self.waited.unwrap_or_default()),
            _ => f.write_str(&describe_holder(status, utc)),
        }
    }
}

/// The same sentence: it is what a program prints whose `main` returns the error.
impl fmt::Debug for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

impl std::error::Error for Blocked {}

fn prodigy(f: &mut fmt::Formatter<'_>, status: &Status) -> fmt::Result {
    let name = escape(&status.name);
    writeln!(f, "Resume already in progress for job {name}")?;
    match &status.record {
        Some(record) => writeln!(
            f,
            "Lock held by: PID {} on {} (acquired {})",
            pid(status),
            or_unknown(record.hostname.as_deref()),
            record.acquired_at.format("%Y-%m-%d %H:%M:%S UTC")
        )?,
        None => writeln!(f, "Lock held by: unknown process")?,
    }
    f.write_str("Please wait for the other process to complete, or use --force to override.")
}

fn sprint(f: &mut fmt::Formatter<'_>, status: &Status) -> fmt::Result {
    let record = status.record.as_ref();
    write!(
        f,
        "Sprint already running (PID: {}, session: {}, started: {})",
        pid(status),
        or_unknown(record.and_then(|record| record.owner.as_deref())),
        record
            .map(|record| utc(record.acquired_at))
            .unwrap_or_default()
    )
}

fn memory(f: &mut fmt::Formatter<'_>, status: &Status, waited: Duration) -> fmt::Result {
    let record = status.record.as_ref();
    // A wait ends a little after its limit.
    let tenths = if waited.as_secs() > 0 { 1.0 } else { 10.0 };
    write!(
        f,
        "Could not acquire lock within {}s. Held by session '{}' for operation '{}'",
        (waited.as_secs_f64() * tenths).floor() / tenths,
        or_unknown(record.and_then(|record| record.owner.as_deref())),
        or_unknown(record.and_then(|record| record.message.as_deref()))
    )
}

fn pid(status: &Status) -> String {
    let of_record = || status.record.as_ref().and_then(|record| record.taken_by);
    let pid = status.verdict.pid.or_else(of_record);
    pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string())
}

fn or_unknown(text: Option<&str>) -> impl fmt::Display {
    escape(text.unwrap_or("unknown"))
}

fn utc(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}
