//! The journal of a store: one line for every takeover, break and cleanup, and the history.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::flat::{self, Flat};
use super::guard::{Guard, Root};
use super::layout::META_DIR;
use crate::backend::Patience;
use crate::decision::verdict::Reason;
use crate::error::{Context, Operation, Result};
use crate::identity::Pid;
use crate::record::cut_command;
use crate::status::Status;
use crate::sys::directory::{Directory, Found, facts_of_file};
use crate::sys::{existing, hostname, process};

const JOURNAL: &str = "events.jsonl";
const EVENTS: &str = "events";
const JOURNAL_SUFFIX: &str = ".jsonl";

/// Where a journal cannot be written in place, each line costs a copy of it, so it is moved at this size.
const REPLACED_AT: u64 = 256 * 1024;

/// So much of a filesystem is left free, or a quarter of a small one.
const RESERVED: u64 = 1024 * 1024;

/// The size from which a journal is replaced by a new one.
pub(crate) const ROTATE_AT: u64 = 1024 * 1024;

/// A journal.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    /// The store that it is in.
    pub(crate) store: PathBuf,
    /// Its largest size; 0: nothing is noted.
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

impl Journal {
    /// Appends a line, outside the guard.
    pub(crate) fn write(&self, line: &impl Serialize) -> Result<()> {
        if self.rotate_at == 0 {
            return Ok(());
        }
        let path = self.path_of(JOURNAL);
        let line = serde_json::to_vec(line).map_err(io::Error::from);
        let mut line = line.context(Operation::WriteJournal, &path)?;
        line.push(b'\n');
        if matches!(self.append(&line), Ok(true)) {
            return Ok(());
        }
        // The journal of a path lock is in the default store, which may not exist yet.
        let guard = Guard::enter_or_create(&self.store, Patience::SHORT, true)?;
        let limited = self.leaving_room(&guard.root.directory, line.len());
        let appended = limited.and_then(|limited| limited.append_under_guard(&guard.root, &line));
        appended.context(Operation::WriteJournal, &path)
    }

    /// Limits the journal to an eighth of its filesystem. Fails if the line would take space that locks may need: the
    /// journal would fill a small filesystem one day, and no lock could be taken any more.
    fn leaving_room(&self, directory: &Directory, line: usize) -> io::Result<Self> {
        let space = directory.space().unwrap_or_default();
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

    fn path_of(&self, file: impl AsRef<Path>) -> PathBuf {
        self.store.join(META_DIR).join(file)
    }

    /// Its lines, the oldest first. `only_new`: since it was moved last.
    pub(super) fn lines(&self, only_new: bool) -> Result<Vec<Vec<u8>>> {
        let Some(root) = Root::open(&self.store, true)? else {
            return Ok(Vec::new());
        };
        let files = files_of(&root).context(Operation::Read, &self.path_of(JOURNAL))?;
        let mut lines = Vec::new();
        for (directory, file) in &files {
            let old = (!only_new).then(|| rotated(file));
            for file in old.iter().chain([file]) {
                let text = self.text_of(directory, file);
                let text = text.context(Operation::Read, &self.path_of(file))?;
                lines.extend(split(&text).map(<[u8]>::to_vec));
            }
        }
        if files.len() > 1 {
            sort_by_time(&mut lines);
        }
        Ok(lines)
    }
}

/// Where a journal is: there may be one for each user, or for root beside that of the owner.
fn files_of(root: &Root) -> io::Result<Vec<(Arc<Directory>, OsString)>> {
    let directories: Vec<_> = if let Some(flat) = &root.flat {
        flat.directories().map(Arc::clone).collect()
    } else {
        let own = existing(root.directory.open_below(OsStr::new(META_DIR)))?;
        own.into_iter().map(Arc::new).collect()
    };
    let mut files = Vec::new();
    for directory in directories {
        let mut names = directory.names()?;
        names.retain(|name| name.to_str().is_some_and(is_journal));
        files.extend(names.into_iter().map(|name| (Arc::clone(&directory), name)));
    }
    Ok(files)
}

/// Whether a file is the journal of all, or that of one user.
fn is_journal(file: &str) -> bool {
    let user = |rest: &str| {
        let user = rest.strip_prefix('-')?.strip_suffix(JOURNAL_SUFFIX)?;
        user.parse::<u32>().ok()
    };
    let rest = file.strip_prefix(flat::PREFIX).unwrap_or(file);
    let rest = rest.strip_prefix(EVENTS);
    rest.is_some_and(|rest| rest == JOURNAL_SUFFIX || user(rest).is_some())
}

/// What a line begins with, and no object in it.
const BEGINS: [&[u8]; 2] = [b"{\"at\":", b"{\"event\":"];

/// The lines of a journal. One that was torn, of a process that was killed or had no space left, has no end, so the
/// next one follows it on the same line. In the text of a line, quotation marks are escaped.
fn split(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let begins = |at: &usize| {
            let rest = rest.get(*at..).unwrap_or_default();
            rest.starts_with(b"\n") || BEGINS.iter().any(|begin| rest.starts_with(begin))
        };
        let (line, next) =
            rest.split_at_checked((1..rest.len()).find(begins).unwrap_or(rest.len()))?;
        rest = next;
        (!line.is_empty()).then(|| line.trim_ascii())
    })
}

/// What a full journal is moved to.
fn rotated(file: &OsStr) -> OsString {
    let mut rotated = file.to_owned();
    rotated.push(".1");
    rotated
}

/// The lines of one user are in order already.
fn sort_by_time(lines: &mut [Vec<u8>]) {
    #[derive(Deserialize)]
    struct Timed {
        at: Option<DateTime<Utc>>,
        ended_at: Option<DateTime<Utc>>,
    }
    lines.sort_by_cached_key(|line| {
        let timed = serde_json::from_slice::<Timed>(line).ok();
        timed.and_then(|timed| timed.at.or(timed.ended_at))
    });
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
    let Ok(Some(root)) = Root::open(store, true) else {
        return Ok(None);
    };
    let mut size = None;
    let is_own = root.directory.is_own();
    for (directory, file) in files_of(&root)? {
        let Some(facts) = directory.facts(&file)? else {
            continue;
        };
        if is_own && file != JOURNAL {
            continue;
        }
        if is_own {
            if !facts.is_regular {
                return Err(io::Error::other("not a regular file"));
            }
            // Opened for writing and closed, it would count as written to who watches it.
            directory.ensure_writable(&file)?;
        }
        *size.get_or_insert(0) += facts.size;
    }
    Ok(size)
}

impl Journal {
    /// The content of a file of the journal, or its end; nothing, if there is no such file.
    fn text_of(&self, directory: &Directory, file: &OsStr) -> io::Result<Vec<u8>> {
        // One that others own may not be rotated, and grows.
        let most = 2 * self.rotate_at;
        let mut text = Vec::new();
        if let Some(Found::File(mut file, facts)) = existing(directory.find_regular(file))? {
            file.seek(SeekFrom::Start(facts.size.saturating_sub(most)))?;
            file.take(most).read_to_end(&mut text)?;
        }
        Ok(text)
    }

    /// Appends a line where only the caller and root can write; `false`: not possible, or it is full.
    fn append(&self, line: &[u8]) -> io::Result<bool> {
        let mut own = Directory::open(&self.store)?.open_below(OsStr::new(META_DIR))?;
        own.share()?;
        if !own.is_own() {
            return Ok(false);
        }
        // Who has opened it before it is moved writes into what it was moved to: that is read as well.
        let (mut journal, size) = own.open_to_append(OsStr::new(JOURNAL))?;
        if size >= self.leaving_room(&own, line.len())?.rotate_at {
            return Ok(false);
        }
        journal.write_all(line).map(|()| true)
    }

    /// Appends a line to a journal that is to be made, or to be moved first, or that others could have put there.
    #[cold]
    fn append_under_guard(&self, root: &Root, line: &[u8]) -> io::Result<()> {
        if let Some(flat) = &root.flat {
            let mut file = Flat::own_file(EVENTS);
            file.push(JOURNAL_SUFFIX);
            return self.replace(root, flat.directory(), &file, line);
        }
        let meta = OsStr::new(META_DIR);
        let own = match root.directory.open_below(meta) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                root.directory.make_below(meta)?;
                root.directory.open_below(meta)?
            }
            opened => opened?,
        };
        if root.directory.is_own() {
            return self.append_to(&own, line);
        }
        let file = if root.directory.is_shared() {
            JOURNAL.to_owned()
        } else {
            // Its owner does not enter the guard to write to the other one.
            let user = process::own_uid().unwrap_or_default();
            format!("{EVENTS}-{user}{JOURNAL_SUFFIX}")
        };
        self.replace(root, &own, OsStr::new(&file), line)
    }

    fn append_to(&self, own: &Directory, line: &[u8]) -> io::Result<()> {
        let name = OsStr::new(JOURNAL);
        let mut file = match own.open_own(name, true) {
            // In a copy of the store by `cp -al`, for example. The line must not appear there.
            Err(error) if error.kind() == io::ErrorKind::TooManyLinks => {
                own.rename(name, &rotated(name))?;
                // A rename to another name of the same file does nothing (rename(2)).
                own.open_own(name, true)?
            }
            opened => opened?,
        };
        if facts_of_file(&file)?.size >= self.rotate_at {
            own.rename(name, &rotated(name))?;
            file = own.open_own(name, true)?;
        }
        file.write_all(line)
    }

    /// Puts a copy with one more line in place of a journal. Others may have put any file there: it is read only if
    /// it begins as this one.
    fn replace(&self, root: &Root, own: &Directory, file: &OsStr, line: &[u8]) -> io::Result<()> {
        let (device, inode) = (root.id.device, root.id.inode);
        let shown = file.to_string_lossy();
        let head = format!("{{\"journal\":\"{shown}\",\"store\":[{device},{inode}]}}\n");
        let found = match own.find(file)? {
            Found::File(found, _) => Some(found),
            Found::Other(kind) => return Err(io::Error::other(kind)),
            Found::Missing => None,
        };
        let is_there = found.is_some();
        let most = self.rotate_at.min(REPLACED_AT);
        let before = found.map(|found| text_with_head(found, head.as_bytes(), most));
        let mut text = before.transpose()?.flatten().unwrap_or_else(|| {
            if is_there {
                // What it is does not matter any more if it cannot be moved.
                let _ = own.rename(file, &rotated(file));
            }
            head.into_bytes()
        });
        text.extend(line);
        own.replace(&Flat::new_name(), file, &text)
    }
}

/// The text of a journal that is replaced for each line. `None`: it begins otherwise, or is full.
fn text_with_head(mut file: File, head: &[u8], most: u64) -> io::Result<Option<Vec<u8>>> {
    let mut begin = vec![0; head.len()];
    let is_ours = file.read_exact(&mut begin).is_ok() && begin == head;
    if !is_ours || facts_of_file(&file)?.size >= most {
        return Ok(None);
    }
    file.take(most).read_to_end(&mut begin)?;
    Ok(Some(begin))
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
