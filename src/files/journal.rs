//! The journal of a store: one line for every takeover, break and cleanup, and the history.

use std::ffi::OsStr;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::guard::Guard;
use super::layout::META_DIR;
use super::lock_file::is_named;
use crate::backend::Patience;
use crate::decision::verdict::Reason;
use crate::error::{Context, Operation, Result};
use crate::identity::Pid;
use crate::record::cut_command;
use crate::status::Status;
use crate::sys::directory::{Directory, Found, facts_of_file, try_lock_record};
use crate::sys::{existing, hostname, process};

const JOURNAL: &str = "events.jsonl";
const ROTATED_JOURNAL: &str = "events.jsonl.1";

/// How long others may keep the journal locked: a line takes microseconds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// So much of a filesystem is left free, or a quarter of a small one.
const RESERVED: u64 = 1024 * 1024;

/// The size from which a journal is replaced by a new one.
pub(crate) const ROTATE_AT: u64 = 1024 * 1024;

/// A journal.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    /// The store that it is in.
    pub(crate) store: PathBuf,
    /// Its largest size.
    pub(crate) rotate_at: u64,
}

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

/// The same of a file in a store, which need not exist any more.
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

impl Journal {
    /// Appends a line, outside the guard.
    pub(crate) fn write(&self, line: &impl Serialize) -> Result<()> {
        let path = self.path_of(JOURNAL);
        let line = serde_json::to_vec(line).map_err(io::Error::from);
        let mut line = line.context(Operation::WriteJournal, &path)?;
        line.push(b'\n');
        let limited = self.leaving_room(line.len());
        let limited = limited.context(Operation::WriteJournal, &path)?;
        let mut appended = limited.append(&line);
        let is_missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        if appended.as_ref().is_err_and(is_missing) {
            // The journal of a path lock is in the default store, which may not exist yet.
            drop(Guard::enter_or_create(&self.store, Patience::SHORT, true)?);
            appended = limited.append(&line);
        }
        appended.context(Operation::WriteJournal, &path)
    }

    /// The same journal, no longer than an eighth of its filesystem. Fails if the line would take space that locks
    /// may need: a small filesystem would be full of it one day, and no lock could be taken any more.
    fn leaving_room(&self, line: usize) -> io::Result<Self> {
        let space = Directory::open(&self.store).and_then(|store| store.space());
        let space = space.unwrap_or_default();
        let bytes = space.bytes.filter(|bytes| *bytes > 0).unwrap_or(u64::MAX);
        let room = RESERVED.min(bytes / 4).saturating_add(line as u64);
        if space.free_bytes.is_some_and(|free| free < room) {
            let why = "what is left of the filesystem is for locks";
            return Err(io::Error::new(io::ErrorKind::StorageFull, why));
        }
        Ok(Self {
            rotate_at: self.rotate_at.min(bytes / 8),
            ..self.clone()
        })
    }

    fn path_of(&self, file: &str) -> PathBuf {
        self.store.join(META_DIR).join(file)
    }

    /// Its lines, the oldest first. `only_new`: since it was moved last.
    pub(super) fn lines(&self, only_new: bool) -> Result<Vec<Vec<u8>>> {
        let mut lines = Vec::new();
        let old = (!only_new).then_some(ROTATED_JOURNAL);
        for file in old.into_iter().chain([JOURNAL]) {
            let text = self
                .text_of(file)
                .context(Operation::Read, &self.path_of(file))?;
            let text = text.unwrap_or_default();
            lines.extend(text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec));
        }
        Ok(lines)
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
    pub(super) fn is_of(&self, path: &Path, names: &[String]) -> bool {
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
pub(super) const MAX_NAMES: usize = 100;

/// The last lines of the journal about a lock, the latest one last, at most `limit`. Lines that cannot be read
/// are left out.
pub(crate) fn last(journal: &Journal, lock: &Subject<'_>, limit: usize) -> Result<Vec<Event>> {
    let lines = journal.lines(false)?;
    let parsed = lines.iter().rev();
    let parsed = parsed.filter_map(|line| serde_json::from_slice::<Event>(line).ok());
    let own = parsed.filter(|event| {
        let names = event.from.as_ref().map_or(&[][..], |from| &from.names);
        lock.is_of(&event.path, names)
    });
    let mut events: Vec<Event> = own.take(limit).collect();
    events.reverse();
    Ok(events)
}

/// How long the journal of a store is, if it can be written; `None`: there is none.
pub(crate) fn size(store: &Path) -> io::Result<Option<u64>> {
    let opened = Directory::open(store)
        .and_then(|root| root.open_below(OsStr::new(META_DIR)))
        .and_then(|own| own.open_for_update(OsStr::new(JOURNAL)));
    match existing(opened.and_then(|journal| journal.metadata()))? {
        Some(facts) if facts.is_file() => Ok(Some(facts.len())),
        Some(_) => Err(io::Error::other("not a regular file")),
        None => Ok(None),
    }
}

impl Journal {
    /// The content of a file of the journal, or its end. `None`: there is no such file.
    fn text_of(&self, file: &str) -> io::Result<Option<Vec<u8>>> {
        // One that others own may not be rotated, and grows.
        let most = 2 * self.rotate_at;
        let found = Directory::open(&self.store)
            .and_then(|root| root.open_below(OsStr::new(META_DIR)))
            .and_then(|own| own.find_regular(OsStr::new(file)));
        let Some(Found::File(mut file, facts)) = existing(found)? else {
            return Ok(None);
        };
        file.seek(SeekFrom::Start(facts.size.saturating_sub(most)))?;
        let mut text = Vec::new();
        file.take(most).read_to_end(&mut text)?;
        Ok(Some(text))
    }

    fn append(&self, line: &[u8]) -> io::Result<()> {
        let mut root = Directory::open(&self.store)?;
        let own = root.open_below(OsStr::new(META_DIR));
        // Who has opened it before it is moved writes into what it was moved to: that is read as well.
        if let Ok(own) = &own
            && let Ok((mut journal, size)) = own.open_to_append(OsStr::new(JOURNAL))
            && size < self.rotate_at
        {
            return journal.write_all(line);
        }
        root.share()?;
        root.make_below(OsStr::new(META_DIR))?;
        let own = root.open_below(OsStr::new(META_DIR))?;
        self.append_to_new(&own, line)
    }

    /// Appends a line to a journal that is to be made, or to be moved first.
    #[cold]
    fn append_to_new(&self, own: &Directory, line: &[u8]) -> io::Result<()> {
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            let mut file = match own.open_own(OsStr::new(JOURNAL), true) {
                // In a copy of the store by `cp -al`, for example. The line must not appear there.
                Err(error) if error.kind() == io::ErrorKind::TooManyLinks => {
                    own.rename(OsStr::new(JOURNAL), OsStr::new(ROTATED_JOURNAL))?;
                    // A rename to another name of the same file does nothing (rename(2)).
                    own.open_own(OsStr::new(JOURNAL), true)?
                }
                opened => opened?,
            };
            // Two that move it at once would move a new one over the old one.
            if !try_lock_record(&file)? {
                if Instant::now() >= deadline {
                    return Err(io::Error::new(io::ErrorKind::WouldBlock, "it is locked"));
                }
                std::thread::sleep(Duration::from_millis(2));
                continue;
            }
            if !is_named(own, OsStr::new(JOURNAL), &file)? {
                continue;
            }
            if facts_of_file(&file)?.size >= self.rotate_at {
                match own.rename(OsStr::new(JOURNAL), OsStr::new(ROTATED_JOURNAL)) {
                    // In a sticky directory only its owner may rename it. It grows until then.
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                    renamed => {
                        renamed?;
                        continue;
                    }
                }
            }
            return file.write_all(line);
        }
    }
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
