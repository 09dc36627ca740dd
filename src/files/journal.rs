//! The journal of a store: one line for every takeover, break and cleanup.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::guard::Guard;
use super::layout::META_DIR;
use super::lock_file::{is_named, random_temporary_name};
use crate::backend::Patience;
use crate::decision::liveness::Reason;
use crate::error::{Error, Result};
use crate::identity::Pid;
use crate::record::cut_command;
use crate::status::Status;
use crate::sys::directory::{Directory, facts_of_file, try_lock_record};
use crate::sys::{hostname, process};

const JOURNAL: &str = "events.jsonl";
const ROTATED_JOURNAL: &str = "events.jsonl.1";

/// How long others may keep the journal locked: a line takes microseconds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
const ROTATE_AT: u64 = 1024 * 1024;

/// What happened to a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Action {
    /// Replaced by a new hold, because it was a zombie.
    Takeover,
    /// Removed on a person's order.
    Break,
    /// Removed because it was a zombie.
    Cleanup,
}

#[derive(Serialize)]
struct Event<'a> {
    at: DateTime<Utc>,
    event: Action,
    name: &'a str,
    path: &'a Path,
    reason: &'static str,
    by: Actor,
    #[serde(skip_serializing_if = "Option::is_none")]
    hold: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<PreviousHold<'a>>,
}

#[derive(Serialize)]
struct Actor {
    pid: Pid,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hostname: Option<String>,
    command: Vec<String>,
}

#[derive(Serialize)]
struct PreviousHold<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    hold: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<Pid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hostname: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    acquired_at: DateTime<Utc>,
    command: &'a [String],
}

/// Appends a line, outside the guard. `hold`: the number of the new hold, if there is one.
pub(crate) fn write(store: &Path, action: Action, from: &Status, hold: Option<u64>) -> Result<()> {
    let event = Event {
        at: Utc::now(),
        event: action,
        name: &from.name,
        path: &from.path,
        reason: reason(from),
        by: Actor {
            pid: Pid::of_self(),
            uid: process::own_uid(),
            hostname: hostname(),
            command: cut_command(process::command_line(Pid::of_self())),
        },
        hold,
        from: from.record.as_ref().map(|record| PreviousHold {
            hold: from.hold(),
            pid: from.verdict.pid,
            hostname: record.hostname.as_deref(),
            owner: record.owner.as_deref(),
            message: record.message.as_deref(),
            acquired_at: record.acquired_at,
            command: &record.command,
        }),
    };
    append(store, &event).map_err(|error| match error {
        Failure::Io(source) => Error::Io {
            operation: "write journal",
            path: journal_of(store),
            source,
        },
        Failure::Store(error) => error,
    })
}

/// Where the journal of a store is.
#[must_use]
pub fn journal_of(store: &Path) -> PathBuf {
    store.join(META_DIR).join(JOURNAL)
}

enum Failure {
    Io(io::Error),
    Store(Error),
}

impl std::convert::From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

fn append(store: &Path, event: &Event<'_>) -> Result<(), Failure> {
    let mut line = serde_json::to_vec(event).map_err(io::Error::from)?;
    line.push(b'\n');
    if std::fs::metadata(store).is_err() {
        // The journal of a path lock is in the default store, which may not exist yet.
        drop(Guard::enter_or_create(store, Patience::SHORT, true).map_err(Failure::Store)?);
    }
    let mut root = Directory::open(store)?;
    root.share()?;
    root.make_below(OsStr::new(META_DIR), random_temporary_name)?;
    let own = root.open_below(OsStr::new(META_DIR))?;
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        let mut file = own.open_own(OsStr::new(JOURNAL), true, random_temporary_name)?;
        // The journal has a lock of its own, so that no line gets lost when it is rotated.
        if !try_lock_record(&file)? {
            if Instant::now() >= deadline {
                return Err(io::Error::new(io::ErrorKind::WouldBlock, "it is locked").into());
            }
            std::thread::sleep(Duration::from_millis(2));
            continue;
        }
        if !is_named(&own, OsStr::new(JOURNAL), &file)? {
            continue;
        }
        if facts_of_file(&file)?.size >= ROTATE_AT {
            match own.rename(OsStr::new(JOURNAL), OsStr::new(ROTATED_JOURNAL)) {
                // In a sticky directory only its owner may rename it. It grows until then.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                renamed => {
                    renamed?;
                    continue;
                }
            }
        }
        return Ok(file.write_all(&line)?);
    }
}

fn reason(status: &Status) -> &'static str {
    match status.verdict.reason {
        Reason::Alive
        | Reason::Starting
        | Reason::Ending
        | Reason::Reserved
        | Reason::Lease
        | Reason::UnknownVersion(_)
        | Reason::Incomplete
        | Reason::Unverified(_) => "forced by user",
        Reason::Dead => "its holder has exited",
        Reason::Reused => "its holder has exited, and its PID belongs to another process",
        Reason::Rebooted => "rebooted",
        Reason::Expired => "expired",
        Reason::TooOld(_) => "older than its maximum age",
        Reason::Corrupt => "its lock file was damaged",
        Reason::Malformed(_) | Reason::NotALock(_) => "it was not a lock file, and was moved aside",
        Reason::NoFile | Reason::Finished => "none",
    }
}

/// Turns an error into a warning: a journal that cannot be written does not undo what was done.
pub(crate) fn warn(warnings: &mut Vec<Error>, written: Result<()>) {
    if let Err(error) = written {
        warnings.push(error);
    }
}
