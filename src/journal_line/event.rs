//! What has happened to a hold: takeovers, breaks and cleanups.

use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::decision::verdict::Reason;
use crate::identity::Pid;
use crate::record::cut_command;
use crate::status::Status;
use crate::sys::{hostname, process};

/// What was done to a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Action {
    /// Replaced by a new hold, because it was a zombie.
    Takeover,
    /// Removed on a person's order.
    Break,
    /// Removed because it was a zombie.
    Cleanup,
}

/// A line of the journal of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Event {
    /// When it was written.
    pub at: DateTime<Utc>,
    /// What was done.
    pub event: Action,
    /// The name of the lock, as it was given.
    pub name: String,
    /// The path of its file.
    pub path: PathBuf,
    /// Why, in words.
    pub reason: String,
    /// The process that did it.
    pub by: Actor,
    /// The number of the new hold, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<u64>,
    /// The hold that ended. `None`: its record could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<PreviousHold>,
}

/// The process that has written a line of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Actor {
    /// Its PID, on its host.
    pub pid: Pid,
    /// The number of its user, where users have numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The name of its user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Its host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Its command line, cut to the length that records have room for.
    pub command: Vec<String>,
}

/// A hold that has ended, in the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PreviousHold {
    /// Its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<u64>,
    /// All its names, if it had several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// The process that kept it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<Pid>,
    /// The number of the user who held it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The name of that user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The host of that process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Its owner label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Its reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When it was acquired.
    pub acquired_at: DateTime<Utc>,
    /// The command line of its holder.
    pub command: Vec<String>,
}

/// A directory without symbolic links, so that two paths that lead to it are one. Paths in the journal are written
/// so, and not followed by who reads them: anybody may have written them.
pub(crate) fn resolved(directory: &Path) -> PathBuf {
    let found = directory
        .is_absolute()
        .then(|| directory.canonicalize().ok());
    found.flatten().unwrap_or_else(|| directory.to_owned())
}

/// The path of a file in a store, without symbolic links. The file need not exist any more.
pub(crate) fn resolved_below(store: &Path, file: &Path) -> PathBuf {
    match file.strip_prefix(store) {
        Ok(below) => resolved(store).join(below),
        Err(_) => file.to_owned(),
    }
}

/// What has happened to a hold. `hold`: the number of the new hold, if there is one.
pub(crate) fn event(action: Action, from: &Status, hold: Option<u64>) -> Event {
    let own = process::own_uid();
    let user = own.map(process::user_name);
    // Asked once: the user database may be slow.
    let user_of_hold = if from.uid == own {
        user.clone()
    } else {
        from.user()
    };
    Event {
        at: Utc::now(),
        event: action,
        name: from.name.clone(),
        path: resolved_below(&from.store, &from.path),
        reason: reason(from).to_owned(),
        by: Actor {
            pid: Pid::of_self(),
            uid: own,
            user,
            hostname: hostname(),
            command: cut_command(process::command_line(Pid::of_self())),
        },
        hold,
        from: from.record.as_ref().map(|record| PreviousHold {
            hold: from.hold(),
            names: record.names.iter().take(MAX_NAMES).cloned().collect(),
            pid: from.verdict.pid,
            uid: from.uid,
            user: user_of_hold,
            hostname: record.hostname.clone(),
            owner: record.owner.clone(),
            message: record.message.clone(),
            acquired_at: record.acquired_at,
            command: record.command.clone(),
        }),
    }
}

/// A lock, as its events name it, by [`resolved`] paths.
pub(crate) struct Subject<'a> {
    pub(crate) name: &'a str,
    /// Its store.
    pub(crate) store: &'a Path,
    /// Its exclusive record.
    pub(crate) path: &'a Path,
    /// What the paths of its shared records begin with.
    pub(crate) shared: &'a str,
}

impl Subject<'_> {
    /// Whether a record with this path and these names is of the lock.
    pub(crate) fn is_of(&self, path: &Path, names: &[String]) -> bool {
        let text = path.to_string_lossy();
        let index = text
            .strip_prefix(self.shared)
            .filter(|_| !self.shared.is_empty());
        path == self.path
            || index.is_some_and(|index| !index.contains('/'))
            || (text.starts_with(&*self.store.to_string_lossy())
                && names.iter().any(|name| name == self.name))
    }
}

/// How many names of a hold are noted.
pub(crate) const MAX_NAMES: usize = 100;

/// The last of these lines that are events and are wanted, the latest one last, at most `limit`. Lines that cannot be
/// read are left out.
pub(crate) fn last_events(
    lines: &[Vec<u8>],
    is_wanted: impl Fn(&Event) -> bool,
    limit: usize,
) -> Vec<Event> {
    let parsed = lines.iter().rev();
    let parsed = parsed.filter_map(|line| serde_json::from_slice::<Event>(line).ok());
    let mut events: Vec<Event> = parsed.filter(is_wanted).take(limit).collect();
    events.reverse();
    events
}

fn reason(status: &Status) -> &'static str {
    match status.verdict.reason {
        Reason::Alive
        | Reason::Locked
        | Reason::Starting
        | Reason::Ending
        | Reason::Reserved
        | Reason::Lease
        | Reason::Kept
        | Reason::UnknownVersion(_)
        | Reason::Incomplete
        | Reason::Unverified(_) => "forced by user",
        Reason::Dead => "its holder has exited",
        Reason::Reused => "its holder has exited, and its PID belongs to another process",
        Reason::Rebooted => "rebooted",
        Reason::InstanceRestarted => "instance restarted",
        Reason::NamespaceGone => "container ended",
        Reason::Expired => "expired",
        Reason::TooOld(_) => "older than its maximum age",
        Reason::Corrupt => "its lock file was damaged",
        Reason::Malformed(_) | Reason::NotALock(_) => "it was not a lock file, and was moved aside",
        Reason::NoFile | Reason::Finished => "none",
    }
}
