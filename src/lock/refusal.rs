//! A refusal in words: those of the program whose format was asked for, or our own.

use std::fmt;

use chrono::{DateTime, SecondsFormat, Utc};

use super::attempt::Blocked;
use crate::decision::verdict::Reason;
use crate::describe::{describe_deadlock, describe_holder};
use crate::record::Format;
use crate::terminal::escape;

/// The sentence of the program whose format the lock has, as it tells its users; else what the command line
/// says: who holds the lock, since when and why. Times are in UTC. Text from the lock file is escaped for
/// terminals.
impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.deadlock.is_empty() {
            return f.write_str(&describe_deadlock(&self.deadlock));
        }
        let status = &*self.status;
        let record = status.record.as_ref();
        let is_theirs = status.verdict.reason != Reason::Reserved && !status.verdict.is_zombie();
        let or_unknown = |text: Option<&str>| escape(text.unwrap_or("unknown"));
        let owner = or_unknown(record.and_then(|record| record.owner.as_deref()));
        let pid = status.verdict.pid;
        let pid = pid.or_else(|| record.and_then(|record| record.taken_by));
        let pid = pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
        match (status.format, record) {
            (Format::Prodigy, record) if is_theirs => {
                let name = escape(&status.name);
                writeln!(f, "Resume already in progress for job {name}")?;
                match record {
                    Some(record) => writeln!(
                        f,
                        "Lock held by: PID {pid} on {} (acquired {})",
                        or_unknown(record.hostname.as_deref()),
                        record.acquired_at.format("%Y-%m-%d %H:%M:%S UTC")
                    )?,
                    None => writeln!(f, "Lock held by: unknown process")?,
                }
                f.write_str(
                    "Please wait for the other process to complete, or use --force to override.",
                )
            }
            (Format::Sprint, Some(record)) if is_theirs => write!(
                f,
                "Sprint already running (PID: {pid}, session: {owner}, started: {})",
                utc(record.acquired_at)
            ),
            (Format::Memory, record) if is_theirs => {
                let waited = self.waited.unwrap_or_default();
                // A wait ends a little after its limit.
                let tenths = if waited.as_secs() > 0 { 1.0 } else { 10.0 };
                let limit = (waited.as_secs_f64() * tenths).floor() / tenths;
                let message = or_unknown(record.and_then(|record| record.message.as_deref()));
                write!(
                    f,
                    "Could not acquire lock within {limit}s. Held by session '{owner}' for operation '{message}'"
                )
            }
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

fn utc(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}
