//! The journal of a store, as a file in it: one line for every takeover, break and cleanup, and the history.

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
use crate::error::{Context, Result};
use crate::sys::directory::{Directory, Found, facts_of_file};
use crate::sys::{existing, process};

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

impl Journal {
    /// Appends a line, outside the guard.
    pub(crate) fn write(&self, line: &impl Serialize) -> Result<()> {
        if self.rotate_at == 0 {
            return Ok(());
        }
        let path = self.path_of(JOURNAL);
        let line = serde_json::to_vec(line).map_err(io::Error::from);
        let mut line = line.context("write journal", &path)?;
        line.push(b'\n');
        if matches!(self.append(&line), Ok(true)) {
            return Ok(());
        }
        // The journal of a path lock is in the default store, which may not exist yet.
        let guard = Guard::enter_or_create(&self.store, Patience::SHORT, true)?;
        let limited = self.leaving_room(&guard.root.directory, line.len());
        let appended = limited.and_then(|limited| limited.append_under_guard(&guard.root, &line));
        appended.context("write journal", &path)
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
    pub(crate) fn lines(&self, only_new: bool) -> Result<Vec<Vec<u8>>> {
        let Some(root) = Root::open(&self.store, true)? else {
            return Ok(Vec::new());
        };
        let files = files_of(&root).context("read", &self.path_of(JOURNAL))?;
        let mut lines = Vec::new();
        for (directory, file) in &files {
            let old = (!only_new).then(|| rotated(file));
            for file in old.iter().chain([file]) {
                let text = self.text_of(directory, file);
                let text = text.context("read", &self.path_of(file))?;
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
