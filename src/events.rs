//! The journal of a store: one line for every takeover and every break.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::identity::Pid;
use crate::record::cut_command;
use crate::status::{Status, hostname};
use crate::sys::directory::{Directory, facts_of_file};
use crate::sys::process;
use crate::verdict::Reason;

/// The directory of a store that keeps what is not a lock.
pub(crate) const OWN_DIRECTORY: &str = ".onehold";

const JOURNAL: &str = "events.jsonl";
const FORMER_JOURNAL: &str = "events.jsonl.1";
const ROTATE_AT: u64 = 1024 * 1024;

/// What was done to a hold by somebody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Deed {
    /// Taken over by a new hold.
    Takeover,
    /// Taken away from a living holder, or on a person's word.
    Break,
    /// Removed because it was a zombie.
    Cleanup,
}

#[derive(Serialize)]
struct Event<'a> {
    at: DateTime<Utc>,
    event: Deed,
    name: &'a str,
    path: &'a Path,
    reason: &'static str,
    by: By,
    #[serde(skip_serializing_if = "Option::is_none")]
    hold: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<From<'a>>,
}

#[derive(Serialize)]
struct By {
    pid: Pid,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hostname: Option<String>,
    command: Vec<String>,
}

#[derive(Serialize)]
struct From<'a> {
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

/// Adds a line. Called after the guard has been left; `hold` is the new one, if there is one.
pub(crate) fn write(store: &Path, deed: Deed, from: &Status, hold: Option<u64>) -> Result<()> {
    let event = Event {
        at: Utc::now(),
        event: deed,
        name: &from.name,
        path: &from.path,
        reason: reason(from),
        by: By {
            pid: Pid::of_self(),
            uid: process::own_uid(),
            hostname: hostname(),
            command: cut_command(process::command_line(Pid::of_self())),
        },
        hold,
        from: from.record.as_ref().map(|record| From {
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
    store.join(OWN_DIRECTORY).join(JOURNAL)
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
        // A path lock's journal is in the default store, which may not be there yet.
        drop(Guard::enter_or_create(store).map_err(Failure::Store)?);
    }
    let root = Directory::open(store)?;
    root.make_below(OsStr::new(OWN_DIRECTORY), 0o777)?;
    let own = root.open_below(OsStr::new(OWN_DIRECTORY))?;
    let mut file = own.open_own(OsStr::new(JOURNAL), true)?;
    if facts_of_file(&file)?.size >= ROTATE_AT {
        own.rename(OsStr::new(JOURNAL), OsStr::new(FORMER_JOURNAL))?;
        file = own.open_own(OsStr::new(JOURNAL), true)?;
    }
    file.write_all(&line)?;
    Ok(())
}

fn reason(status: &Status) -> &'static str {
    match status.verdict.reason {
        Reason::Alive
        | Reason::Promised
        | Reason::Lease
        | Reason::UnknownVersion
        | Reason::InTheMaking
        | Reason::Unproven(_) => "on a person's word",
        Reason::Dead => "its holder is gone",
        Reason::Reused => "its holder is gone, and its pid is another process's",
        Reason::Rebooted => "the machine has started anew",
        Reason::Expired => "its time to live ran out",
        Reason::Aged(_) => "older than its maximum age",
        Reason::Corrupt => "its record was broken",
        Reason::NoFile | Reason::Finished | Reason::NotALock(_) => "none",
    }
}

/// Fails quietly into a warning: that the journal cannot be written does not undo what was done.
pub(crate) fn warn(warnings: &mut Vec<Error>, written: Result<()>) {
    if let Err(error) = written {
        warnings.push(error);
    }
}
