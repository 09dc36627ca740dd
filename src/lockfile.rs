//! One lock file under the guard: read it, publish it, exchange it, remove it.
//!
//! Every function here is called with the guard of the store entered, except [`read`].

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::{Context, Error, Result};
use crate::format::{self, Format};
use crate::name::LockName;
use crate::record::{Content, Kind, Line, MAX_RECORD_BYTES, Record, SignOfLife, Swap, digest};
use crate::status::wall_clock;
use crate::sys::directory::{
    Directory, FileExt as _, FileFacts, FileId, Found, Kind as FileKind, facts_of_file,
    move_out_of_the_way, try_lock_record,
};
use crate::sys::wait::random_u64;

/// What stands where a lock file would.
pub(crate) enum Standing {
    Nothing,
    /// Something that is no regular file.
    NoFile(&'static str),
    File(LockFile),
}

/// A lock file as it was read. Kept open: its inode number proves nothing once it is closed.
pub(crate) struct LockFile {
    pub(crate) file: File,
    pub(crate) facts: FileFacts,
    pub(crate) content: Content,
    bytes: Vec<u8>,
}

/// A lock file of our own making that is in place.
pub(crate) struct Published {
    pub(crate) file: File,
    pub(crate) size: u64,
}

/// What a new record needs beyond its text.
#[derive(Clone, Copy)]
pub(crate) struct Making {
    /// Take the kernel lock before the record has its name.
    pub(crate) kernel_lock: bool,
    /// Make it survive power loss.
    pub(crate) durable: bool,
}

/// A place for a lock file: its directory, kept open, and its name there.
pub(crate) struct Place<'a> {
    pub(crate) directory: &'a Directory,
    pub(crate) file: &'a OsStr,
    /// For messages.
    pub(crate) path: &'a Path,
    /// What is expected there.
    pub(crate) format: Format,
}

/// What to do where the filesystem cannot exchange two files.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WithoutExchange {
    /// Set the old one aside and link: nobody else makes files there, or a person has decided.
    SetAside,
    /// Another program's file could be lost: leave it.
    Refuse,
}

/// How a takeover went.
pub(crate) enum Exchanged {
    Done(Published),
    /// What stood there is no longer what was judged: judge again.
    Changed,
}

impl Place<'_> {
    /// Reads what stands there, without changing anything.
    pub(crate) fn read(&self) -> Result<Standing> {
        self.read_found(self.directory.find(self.file))
    }

    /// The same for what was just listed as being of that kind, with a system call less.
    pub(crate) fn read_listed(&self, kind: FileKind) -> Result<Standing> {
        self.read_found(match kind {
            FileKind::RegularFile => self.directory.find_regular(self.file),
            FileKind::OtherOrUnknown => self.directory.find(self.file),
        })
    }

    /// The same where what may not be read is nothing: in a sticky directory, others may give any name
    /// to what is theirs.
    pub(crate) fn read_if_permitted(&self) -> Result<Standing> {
        match self.read() {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => {
                Ok(Standing::Nothing)
            }
            standing => standing,
        }
    }

    fn read_found(&self, found: io::Result<Found>) -> Result<Standing> {
        match found.context("open", self.path)? {
            Found::Missing => Ok(Standing::Nothing),
            Found::Other(kind) => Ok(Standing::NoFile(kind)),
            Found::File(file, facts) => self.read_file(file, facts).map(Standing::File),
        }
    }

    /// Publishes a record where nothing stands; `None` if something does by now. It appears whole
    /// or not at all, and link(2) never overwrites, so that programs which create their lock files
    /// with `O_EXCL` are excluded too.
    /// `unnamed`: a file for it that was made beforehand, on the same filesystem.
    pub(crate) fn publish(
        &self,
        record: &Record,
        making: Making,
        unnamed: Option<File>,
    ) -> Result<Option<Published>> {
        let bytes = self.encode(record)?;
        let made_beforehand = unnamed.is_some();
        let unnamed = match unnamed {
            Some(file) => Some(file),
            None => self
                .directory
                .create_unnamed()
                .context("create lock file in the directory of", self.path)?,
        };
        if let Some(file) = unnamed {
            let published = self.fill(file, &bytes, making)?;
            match self.directory.link_unnamed(&published.file, self.file) {
                Ok(linked) => return Ok(linked.then_some(published)),
                // A directory of the store may be on another filesystem, or on another one by now.
                Err(error) if error.kind() == io::ErrorKind::CrossesDevices && made_beforehand => {
                    return self.publish(record, making, None);
                }
                // Without /proc an unnamed file cannot get a name; see below.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error).context("create lock file", self.path),
            }
        }
        let temporary = random_temporary_name();
        let published = self.make_temporary(&temporary, &bytes, making)?;
        let linked = self.directory.link(&temporary, self.file);
        // A network filesystem may have linked it and lost its answer.
        let linked = match linked {
            Ok(false) => is_in_place(self.directory, self.file, &published.file),
            linked => linked,
        };
        self.discard(&temporary, &published);
        Ok(linked
            .context("create lock file", self.path)?
            .then_some(published))
    }

    /// Puts a record in the place of `judged`, if that still stands there as it was judged.
    pub(crate) fn take_over(
        &self,
        judged: &LockFile,
        record: &mut Record,
        making: Making,
        without_exchange: WithoutExchange,
    ) -> Result<Exchanged> {
        let temporary = self.free_temporary_name()?;
        record.swap = Some(judged.as_swap(&temporary));
        let bytes = self.encode(record)?;
        let published = self.make_temporary(&temporary, &bytes, making)?;
        let ours = facts_of_file(&published.file);
        let ours = ours
            .inspect_err(|_| self.discard(&temporary, &published))
            .context("inspect", self.path)?;
        match self.directory.exchange(&temporary, self.file) {
            Ok(()) => {}
            Err(error) => {
                let result = match error.kind() {
                    io::ErrorKind::NotFound => Ok(Exchange::Changed),
                    io::ErrorKind::Unsupported => match without_exchange {
                        WithoutExchange::SetAside => self.replace(judged, &published, &temporary),
                        WithoutExchange::Refuse => Err(Error::CannotExchange {
                            path: self.path.to_owned(),
                        }),
                    },
                    _ => Err(error).context("take over", self.path),
                };
                self.discard(&temporary, &published);
                return Ok(match result? {
                    Exchange::Done => Exchanged::Done(published),
                    Exchange::Changed => Exchanged::Changed,
                });
            }
        }
        match self.is_as_judged(&temporary, judged) {
            Ok(true) => {
                // If it stays, it is a dead record without a place, and `cleanup` removes it.
                let _ = self.directory.unlink(&temporary);
                Ok(Exchanged::Done(published))
            }
            came_out => {
                // Somebody else's file came out, or nobody can tell.
                let undone = self.undo(&temporary, ours.id);
                came_out.context("inspect", self.path)?;
                if !undone.context("put back", self.path)? {
                    // Whoever removed the name would have removed that file if we had not come.
                    self.directory
                        .unlink(&temporary)
                        .context("remove", self.path)?;
                }
                Ok(Exchanged::Changed)
            }
        }
    }

    /// Undoes an exchange that put `placed` there: what came out goes back, and is what others find
    /// again. Programs that know the name alone may remove or replace what they find under it
    /// meanwhile. `false` if they removed it; then `temporary` still is what came out.
    fn undo(&self, temporary: &OsStr, placed: FileId) -> io::Result<bool> {
        // An inode number proves nothing once nobody keeps the file open. It may not be ours to read.
        let mut placed = (placed, None);
        loop {
            let going_back = self.directory.facts(temporary)?;
            let kept = self.directory.find(temporary).ok();
            match self.directory.exchange(temporary, self.file) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
                exchanged => exchanged?,
            }
            let came_out = self.directory.facts(temporary)?;
            if came_out.is_none_or(|facts| facts.id == placed.0) {
                self.directory.unlink(temporary)?;
                return Ok(true);
            }
            // Ours had been replaced, and with it what we have just put back: that is over.
            match going_back {
                Some(going_back) => placed = (going_back.id, kept),
                None => return Ok(true),
            }
        }
    }

    fn replace(
        &self,
        judged: &LockFile,
        published: &Published,
        temporary: &OsStr,
    ) -> Result<Exchange> {
        if !self.set_aside(judged)? {
            return Ok(Exchange::Changed);
        }
        let linked = self
            .directory
            .link(temporary, self.file)
            .context("create lock file", self.path)?;
        let done = linked
            || is_in_place(self.directory, self.file, &published.file)
                .context("inspect", self.path)?;
        Ok(if done {
            Exchange::Done
        } else {
            Exchange::Changed
        })
    }

    /// Removes `judged` by another name, under which it is read again: a command that came on
    /// record meanwhile gets its place back, as it does from an exchange. `false` if what stood
    /// there was not what was judged. Needs no space.
    pub(crate) fn set_aside(&self, judged: &LockFile) -> Result<bool> {
        // A name that is found again, should we be killed before the second look.
        let temporary = if self.is_aside()? {
            random_temporary_name()
        } else {
            aside_name(self.file)
        };
        self.remove_by(&temporary, || self.is_as_judged(&temporary, judged))
    }

    /// Removes `ours`, and nothing that a program which knows the name alone has put there since it
    /// was last looked at.
    pub(crate) fn remove_ours(&self, ours: &File) -> Result<bool> {
        let temporary = self.free_temporary_name()?;
        self.remove_by(&temporary, || is_in_place(self.directory, &temporary, ours))
    }

    /// Removes what stands there if, by its temporary name, it is what was meant.
    fn remove_by(
        &self,
        temporary: &OsStr,
        is_meant: impl FnOnce() -> io::Result<bool>,
    ) -> Result<bool> {
        match self.directory.rename(self.file, temporary) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            renamed => renamed.context("remove", self.path)?,
        }
        let is_meant = is_meant();
        if !matches!(is_meant, Ok(true)) {
            // If another has come meanwhile, what we hold cannot go back, and is not ours to lose.
            self.directory
                .move_if_free(temporary, self.file)
                .context("put back", self.path)?;
            return is_meant.context("inspect", self.path);
        }
        self.directory
            .unlink(temporary)
            .context("remove", self.path)?;
        Ok(true)
    }

    /// Whether something was set aside from this place by somebody who may not have lived to look at
    /// it again.
    pub(crate) fn is_aside(&self) -> Result<bool> {
        let found = self.directory.facts(&aside_name(self.file));
        Ok(found.context("inspect", self.path)?.is_some())
    }

    /// Gives an empty place back what was set aside from it; `true` if anything was done, and then
    /// everything must be judged again.
    pub(crate) fn bring_back(&self) -> Result<bool> {
        let aside = aside_name(self.file);
        let Standing::File(found) = self.beside(&aside).read_if_permitted()? else {
            return Ok(false);
        };
        // Nobody sets aside what is no lock.
        if !matches!(found.content, Content::Record(_) | Content::Corrupt) {
            return Ok(false);
        }
        self.give_back(&aside, None)
    }

    /// Gives what was taken out its place back, which is empty or `dead`; `true` if everything must be
    /// judged again.
    pub(crate) fn give_back(&self, temporary: &OsStr, dead: Option<&LockFile>) -> Result<bool> {
        let undone = match dead {
            Some(dead) => self.undo(temporary, dead.facts.id),
            None => Ok(false),
        };
        let given_back = match undone {
            // The place is empty. A lock is not lost by that, whoever it was.
            Ok(false) => self.directory.move_if_free(temporary, self.file),
            undone => undone,
        };
        match given_back {
            // Where nothing can be exchanged nothing was taken out, and whoever may not move what is
            // another's (a sticky directory) has not done so: it is somebody else's, of that name.
            Err(error)
                if [io::ErrorKind::Unsupported, io::ErrorKind::PermissionDenied]
                    .contains(&error.kind()) =>
            {
                Ok(false)
            }
            given_back => given_back.map(|_| true).context("put back", self.path),
        }
    }

    /// What stands beside it under a temporary name, and may be its own by right.
    pub(crate) fn beside<'a>(&'a self, temporary: &'a OsStr) -> Place<'a> {
        Place {
            file: temporary,
            format: if self.is_pid_file() {
                Format::Pid
            } else {
                self.format
            },
            ..*self
        }
    }

    fn is_as_judged(&self, name: &OsStr, judged: &LockFile) -> io::Result<bool> {
        let found = self.directory.facts(name)?;
        Ok(found.is_some_and(|facts| facts.id == judged.facts.id) && judged.is_unchanged()?)
    }

    /// Removes `judged`, comparing first; `false` if it is not what stands there any more. For
    /// holders known to live: nobody else removes theirs, and nobody comes on record in them.
    pub(crate) fn remove_if_unchanged(&self, judged: &LockFile) -> Result<bool> {
        if judged
            .record()
            .is_some_and(|record| record.format != Format::Native)
        {
            let temporary = self.free_temporary_name()?;
            return self.remove_by(&temporary, || self.is_as_judged(&temporary, judged));
        }
        let same = self
            .is_as_judged(self.file, judged)
            .context("inspect", self.path)?;
        Ok(same && self.remove()?)
    }

    /// Removes what is known to be ours.
    pub(crate) fn remove(&self) -> Result<bool> {
        self.directory
            .unlink(self.file)
            .context("remove", self.path)
    }

    /// Finishes or undoes the takeover of a taker who died in between. `dead` is his record, judged
    /// dead; `true` if anything was done, and then everything must be judged again.
    pub(crate) fn recover(&self, dead: &LockFile) -> Result<bool> {
        let Content::Record(record) = &dead.content else {
            return Ok(false);
        };
        let Some(swap) = record.swap.as_ref().filter(|swap| is_temporary(&swap.name)) else {
            return Ok(false);
        };
        let temporary = OsStr::new(&swap.name);
        let aside = self
            .directory
            .facts(temporary)
            .context("inspect", self.path)?
            .filter(|facts| facts.is_regular);
        let Some(aside) = aside else {
            return Ok(false);
        };
        // The record itself, before the exchange or after it was undone: it is in no place yet.
        let same = (aside.id.inode, aside.size, nanoseconds(aside.modified))
            == (swap.inode, swap.size, swap.modified_ns);
        let as_judged = || {
            self.beside(temporary)
                .read()
                .map(|standing| match standing {
                    Standing::File(found) => digest(&found.bytes) == swap.digest,
                    Standing::Nothing | Standing::NoFile(_) => false,
                })
        };
        let finished = aside.id == dead.facts.id || (same && as_judged()?);
        if finished {
            self.directory
                .unlink(temporary)
                .context("remove", self.path)?;
            return Ok(true);
        }
        // What was taken out is not what was judged: it goes back, the dead record comes out.
        self.give_back(temporary, Some(dead))
    }

    fn read_file(&self, file: File, facts: FileFacts) -> Result<LockFile> {
        LockFile::read(file, facts, self.is_pid_file()).context("read", self.path)
    }

    /// Whether a bare number may be a lock there.
    fn is_pid_file(&self) -> bool {
        let name = self.file.as_encoded_bytes();
        let name = name.strip_suffix(b".lock").unwrap_or(name);
        self.format == Format::Pid || name.ends_with(b".pid")
    }

    fn encode(&self, record: &Record) -> Result<Vec<u8>> {
        let encode = |record: &Record| {
            format::write(record)
                .map_err(io::Error::from)
                .context("write lock file", self.path)
        };
        let bytes = encode(record)?;
        if bytes.len() as u64 <= MAX_RECORD_BYTES {
            return Ok(bytes);
        }
        Err(Error::TooLong {
            what: "the record",
            limit: usize::try_from(MAX_RECORD_BYTES).unwrap_or(usize::MAX),
        })
    }

    fn fill(&self, mut file: File, bytes: &[u8], making: Making) -> Result<Published> {
        file.write_all(bytes)
            .context("write lock file", self.path)?;
        if making.durable {
            // Without this, power loss after link(2) leaves a file of 0 bytes on ext4 and xfs.
            file.sync_all().context("write lock file", self.path)?;
        }
        if making.kernel_lock {
            file = move_out_of_the_way(file).context("open", self.path)?;
            if !try_lock_record(&file).context("lock", self.path)? {
                return Err(io::ErrorKind::WouldBlock.into()).context("lock", self.path);
            }
        }
        Ok(Published {
            file,
            size: bytes.len() as u64,
        })
    }

    /// A file that has no place yet; nothing is left of it on failure.
    fn make_temporary(&self, name: &OsStr, bytes: &[u8], making: Making) -> Result<Published> {
        let file = self
            .directory
            .create_named(name)
            .context("create lock file in the directory of", self.path)?;
        let filled = self.fill(file, bytes, making);
        if filled.is_err() {
            let _ = self.directory.unlink(name);
        }
        filled
    }

    /// Removes a temporary name if it still stands for what we made. What stays is a record
    /// without a place, which `cleanup` removes.
    fn discard(&self, temporary: &OsStr, published: &Published) {
        if matches!(
            is_in_place(self.directory, temporary, &published.file),
            Ok(true)
        ) {
            let _ = self.directory.unlink(temporary);
        }
    }

    /// The temporary name of a takeover is the same each time for one lock file, so that what a
    /// killed taker left is found by the next one, also where nobody cleans up. What is not a
    /// record of ours keeps the name, and we take another.
    pub(crate) fn free_temporary_name(&self) -> Result<OsString> {
        let name = own_temporary_name(self.file);
        let found = match self.directory.find(&name) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Ok(random_temporary_name());
            }
            found => found.context("inspect", self.path)?,
        };
        match found {
            Found::Missing => Ok(name),
            Found::Other(_) => Ok(random_temporary_name()),
            Found::File(file, facts) => {
                let left = self.read_file(file, facts)?;
                // The guard is ours: whoever made it is not about to use it any more.
                let ours = match &left.content {
                    Content::Record(record) => record.is_ours(),
                    Content::Corrupt => true,
                    Content::UnknownVersion(_) | Content::NotALock(_) => false,
                };
                let removed = ours
                    && match self.directory.unlink(&name) {
                        // In a sticky directory others may give it that name.
                        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => false,
                        removed => removed.context("remove", self.path)?,
                    };
                Ok(if removed {
                    name
                } else {
                    random_temporary_name()
                })
            }
        }
    }
}

/// Programs of a format with times in it believe in a holder only as long as those are young.
/// Both are rewritten in place, at the same length, on the holder's own descriptor.
pub(crate) fn renew_times(file: &File, record: &Record, life: &SignOfLife) -> io::Result<()> {
    if record.format != Format::Memory {
        return Ok(());
    }
    match format::renewed_times(&read_all(file)?, life.renewed_at) {
        Some((at, times)) => file.write_all_at(&times, at),
        None => Err(io::Error::other("its times are not where they were")),
    }
}

enum Exchange {
    Done,
    Changed,
}

impl LockFile {
    /// A lock file as it will read once `record` is written.
    pub(crate) fn expected(file: File, record: Record) -> io::Result<Self> {
        Ok(Self {
            facts: facts_of_file(&file)?,
            file,
            content: Content::Record(Box::new(record)),
            bytes: Vec::new(),
        })
    }

    /// A file of ours as it reads now.
    pub(crate) fn of_ours(file: &File, place: &Place<'_>) -> io::Result<Self> {
        let file = file.try_clone()?;
        let facts = facts_of_file(&file)?;
        Self::read(file, facts, place.is_pid_file())
    }

    fn read(file: File, facts: FileFacts, pid_file: bool) -> io::Result<Self> {
        if facts.size > MAX_RECORD_BYTES {
            return Ok(Self {
                file,
                facts,
                content: Content::NotALock("too large for a lock file"),
                bytes: Vec::new(),
            });
        }
        let mut bytes = read_all(&file)?;
        let modified = wall_clock(facts.modified);
        let (mut content, torn) = format::read(&bytes, pid_file, modified);
        if torn {
            // Perhaps caught while its holder filled it in.
            bytes = read_all(&file)?;
            content = format::read(&bytes, pid_file, modified).0;
        }
        Ok(Self {
            file,
            facts,
            content,
            bytes,
        })
    }

    pub(crate) fn record(&self) -> Option<&Record> {
        match &self.content {
            Content::Record(record) => Some(record),
            _ => None,
        }
    }

    /// The lock of this section that this was set aside from, if its temporary name says so. Of what
    /// the record says only its last segment is believed: a section may have been moved.
    pub(crate) fn set_aside_from(
        &self,
        section: Option<&str>,
        temporary: &OsStr,
    ) -> Option<LockName> {
        let name = &self.record()?.name;
        let last = name
            .rsplit_once('/')
            .map_or(name.as_str(), |(_, last)| last);
        let name = match section {
            Some(section) => format!("{section}/{last}"),
            None => last.to_owned(),
        };
        let name = LockName::new(name).ok().filter(|name| !name.is_path())?;
        (aside_name(&name.file()) == temporary).then_some(name)
    }

    /// Writes a sign of life into its line, if the file has that line; `false` if it has lost its
    /// place, and what stands there must be judged again.
    pub(crate) fn renew(
        &self,
        place: &Place<'_>,
        mut life: SignOfLife,
        record: Option<&Record>,
    ) -> Result<bool> {
        let Some(mut record) = record.cloned() else {
            return Ok(true);
        };
        let before = record.sign_of_life.as_ref().and_then(|life| life.ttl_ms);
        life.ttl_ms = life.ttl_ms.or(before);
        record.sign_of_life = Some(life);
        let write = || {
            let no_room = || io::Error::other("its record has no line for a sign of life");
            let slot = format::slot(&record, Line::SignOfLife, self.facts.size)?
                .filter(|_| record.is_ours())
                .ok_or_else(no_room)?;
            let file = match place.directory.open_for_update(place.file) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
                opened => opened?,
            };
            if facts_of_file(&file)?.id != self.facts.id {
                return Ok(false);
            }
            let mut old = vec![0; slot.bytes.len() + 1];
            file.read_exact_at(&mut old, slot.at.saturating_sub(1))?;
            if !format::is_slot(record.format, &old) {
                return Err(no_room());
            }
            file.write_all_at(&slot.bytes, slot.at)?;
            if let Some(life) = &record.sign_of_life {
                renew_times(&file, &record, life)?;
            }
            // A lease outlives a crash of the machine, and so must its renewal.
            if record.kind == Kind::Lease {
                file.sync_data()?;
            }
            is_in_place(place.directory, place.file, &file)
        };
        write().context("renew", place.path)
    }

    fn is_unchanged(&self) -> io::Result<bool> {
        Ok(read_all(&self.file)? == self.bytes)
    }

    fn as_swap(&self, temporary: &OsStr) -> Swap {
        Swap {
            name: temporary.to_string_lossy().into_owned(),
            inode: self.facts.id.inode,
            size: self.facts.size,
            modified_ns: nanoseconds(self.facts.modified),
            digest: digest(&self.bytes),
        }
    }
}

/// Whether `name` is what onehold calls a file that has no place yet.
pub(crate) fn is_temporary(name: &str) -> bool {
    name.strip_prefix(TEMPORARY_PREFIX)
        .is_some_and(|rest| rest.len() == 16 && rest.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Whether `file` is what stands at `name`.
pub(crate) fn is_in_place(directory: &Directory, name: &OsStr, file: &File) -> io::Result<bool> {
    let ours = facts_of_file(file)?;
    Ok(directory
        .facts(name)?
        .is_some_and(|named| named.id == ours.id))
}

const TEMPORARY_PREFIX: &str = ".onehold.";

/// The temporary name that a takeover of `file` uses if it can.
pub(crate) fn own_temporary_name(file: &OsStr) -> OsString {
    temporary_name(digest(file.as_encoded_bytes()))
}

/// The temporary name that what is set aside from `file` gets if it can: of what no file is called.
fn aside_name(file: &OsStr) -> OsString {
    let mut aside = OsString::from("aside/");
    aside.push(file);
    own_temporary_name(&aside)
}

fn temporary_name(number: u64) -> OsString {
    OsString::from(format!("{TEMPORARY_PREFIX}{number:016x}"))
}

fn random_temporary_name() -> OsString {
    temporary_name(random_u64())
}

fn read_all(file: &File) -> io::Result<Vec<u8>> {
    let limit = usize::try_from(MAX_RECORD_BYTES).unwrap_or(usize::MAX);
    let mut bytes = Vec::new();
    // Nearly all fit: one read, and no more memory than there is to keep.
    let mut piece = [0; 4096];
    loop {
        match file.read_at(&mut piece, bytes.len() as u64) {
            Ok(read) => {
                bytes.extend_from_slice(piece.get(..read).unwrap_or_default());
                // A regular file gives less than was asked for only at its end (read(2)).
                if read < piece.len() || bytes.len() > limit {
                    return Ok(bytes);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn nanoseconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .ok()
        .and_then(|since| u64::try_from(since.as_nanos()).ok())
        .unwrap_or(0)
}

/// Where a lock file is, for as long as its hold lasts.
#[derive(Debug)]
pub(crate) struct OwnedPlace {
    pub(crate) directory: Directory,
    pub(crate) file: OsString,
    pub(crate) path: PathBuf,
    pub(crate) format: Format,
}

impl OwnedPlace {
    pub(crate) fn borrow(&self) -> Place<'_> {
        Place {
            directory: &self.directory,
            file: &self.file,
            path: &self.path,
            format: self.format,
        }
    }
}
