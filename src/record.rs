//! What a lock file says: [`Record`], and its native form as text and back. Pure: no clock, no system.
//!
//! A native record is a JSON object, whose first key is `"onehold": 1`, and three lines of fixed width
//! after it, each blank or one small JSON object: the command, the job and the sign of life. They
//! are filled in place, so that the file keeps its inode and with it its kernel lock.

use std::time::Duration;

use chrono::{DateTime, Datelike, Utc};
use serde::{Deserialize, Serialize};

use crate::format::Format;
use crate::identity::{Origin, Pid, ProcessId};

/// The version this library writes.
pub(crate) const VERSION: u64 = 1;

/// A lock file beyond this is none of ours.
pub(crate) const MAX_RECORD_BYTES: u64 = 64 * 1024;

/// The largest hold number: what a JSON reader that knows only doubles can tell from its neighbours.
pub(crate) const MAX_HOLD: u64 = 1 << 53;

/// Longest `--message` and `--owner`.
pub(crate) const MAX_TEXT_BYTES: usize = 1024;

/// What is kept of a command line.
const MAX_COMMAND_BYTES: usize = 4 * 1024;

/// Bytes of one line after the object, its newline included.
pub(crate) const LINE_WIDTH: usize = 256;

/// The three lines, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Command,
    Job,
    SignOfLife,
}

const LINES: usize = 3;

/// What keeps a hold alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A wrapper and its command.
    Run,
    /// A process.
    Job,
    /// Time only.
    Lease,
}

/// The file that a takeover puts aside: whoever finds the record of a taker who died in between
/// knows by it what to finish or undo.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Swap {
    /// Its temporary name, in the directory of the record.
    pub(crate) name: String,
    pub(crate) inode: u64,
    pub(crate) size: u64,
    /// Nanoseconds since 1970.
    pub(crate) modified_ns: u64,
    /// Of its bytes as they were judged. Its time alone would not tell that a command has put itself
    /// on record since: many kernels count it in steps of 4 ms (Linux before 6.13).
    pub(crate) digest: u64,
}

/// FNV-1a, which is the same in every version of this program.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |digest, byte| {
        (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// What the command line of a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct CommandLine {
    command_pid: Pid,
    #[serde(skip_serializing_if = "Option::is_none")]
    command_start: Option<u64>,
}

/// What the job line says: from then on the holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
enum JobLine {
    Process {
        job_pid: Pid,
        #[serde(skip_serializing_if = "Option::is_none")]
        job_start: Option<u64>,
    },
    Lease {
        lease: bool,
    },
}

/// Any of the three lines as it is read: in one go, since `list` reads a hundred thousand.
#[derive(Deserialize)]
struct AnyLine {
    command_pid: Option<Pid>,
    command_start: Option<u64>,
    job_pid: Option<Pid>,
    job_start: Option<u64>,
    lease: Option<bool>,
    renewed_at: Option<DateTime<Utc>>,
    renewed_boottime_ms: Option<u64>,
    renewed_boot_id: Option<String>,
    ttl_ms: Option<u64>,
}

/// The holder's last sign of life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignOfLife {
    /// Wall clock.
    pub renewed_at: DateTime<Utc>,
    /// `CLOCK_BOOTTIME` in milliseconds, as outside any time namespace.
    pub renewed_boottime_ms: u64,
    /// The boot that this clock counts from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renewed_boot_id: Option<String>,
    /// A new time to live, if it was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
}

/// Who the holder is once the record is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// A process other than the one that wrote the record.
    Process(ProcessId),
    /// Nobody: the hold ends with its time.
    Lease,
}

/// What a lock file says. Untrusted: anybody may have written it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    #[serde(rename = "onehold")]
    version: u64,
    /// The lock, as it was named.
    pub name: String,
    /// The number of the hold; 0 for those of programs that do not number theirs.
    pub hold: u64,
    /// What keeps it alive.
    pub kind: Kind,
    /// The process that wrote the record: for a `run` its wrapper.
    pub pid: Pid,
    /// Its host. A name can be shared and can change, so it never proves anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// When, by the wall clock.
    pub acquired_at: DateTime<Utc>,
    /// The label the user gave: a session or a runner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Why, in the user's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The command line of the holder, cut at 4 KiB.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Time to live from the last sign of life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// When that is over first, for people who read the file; renewals do not change it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<DateTime<Utc>>,
    /// The age from which the holder wants to be called overdue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age_ms: Option<u64>,
    /// The command does not inherit the lock.
    #[serde(default, skip_serializing_if = "is_false")]
    pub close: bool,
    /// The wrapper became the command; nobody is left to remove the record.
    #[serde(default, skip_serializing_if = "is_false")]
    pub exec: bool,
    /// The holder keeps a kernel lock on the file.
    #[serde(default, skip_serializing_if = "is_false")]
    pub kernel_lock: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) swap: Option<Swap>,
    /// Where and when it was written; `None` in a record by hand or by another program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// The command of a `run`, from just before it is executed.
    #[serde(skip)]
    pub command_process: Option<ProcessId>,
    /// The holder that `acquire` handed the hold to.
    #[serde(skip)]
    pub job: Option<Job>,
    /// The last sign of life after the record was written.
    #[serde(skip)]
    pub sign_of_life: Option<SignOfLife>,
    /// How the file is written.
    #[serde(skip)]
    pub format: Format,
    /// The pid that programs of a foreign format are shown, if it is not that of the writer.
    #[serde(skip)]
    pub(crate) shown_pid: Option<Pid>,
}

/// A part of a lock file that is filled in place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Where it begins.
    pub(crate) at: u64,
    pub(crate) bytes: Vec<u8>,
}

/// The slot of a command, laid out before its pid is known.
#[derive(Debug)]
pub(crate) struct CommandSlot {
    pub(crate) slot: Slot,
    /// Where in it the digits of the pid begin.
    pub(crate) digits_at: usize,
    /// What comes between them and those of the start, if that is known.
    pub(crate) before_start: &'static [u8],
    /// What follows them.
    pub(crate) after: &'static [u8],
}

impl CommandSlot {
    /// Whether what stands there is the slot, blank or filled for an earlier command.
    pub(crate) fn may_replace(&self, stands: &[u8]) -> bool {
        let blank = stands.iter().all(u8::is_ascii_whitespace);
        let begins = self.slot.bytes.get(..self.digits_at);
        blank || begins.is_some_and(|begins| stands.starts_with(begins))
    }

    /// Puts the pid of a command into it, and its start where that is known already. A child does
    /// this before it executes, and so it does not allocate.
    pub(crate) fn fill(&mut self, pid: u32, start: Option<u64>) {
        let (pid, started) = (Digits::of(pid.into()), start.map(Digits::of));
        let (before_start, start) = match &started {
            Some(digits) => (self.before_start, digits.text()),
            None => (&b""[..], &b""[..]),
        };
        let text = pid
            .text()
            .iter()
            .chain(before_start)
            .chain(start)
            .chain(self.after);
        let places = self.slot.bytes.iter_mut().skip(self.digits_at);
        for (place, byte) in places.zip(text) {
            *place = *byte;
        }
    }
}

/// A number as text, without memory of its own.
struct Digits {
    bytes: [u8; 20],
    from: usize,
}

impl Digits {
    fn of(mut number: u64) -> Self {
        let mut digits = Self {
            bytes: [b'0'; 20],
            from: 20,
        };
        for byte in digits.bytes.iter_mut().rev() {
            *byte = b'0' + u8::try_from(number % 10).unwrap_or(0);
            digits.from -= 1;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        digits
    }

    fn text(&self) -> &[u8] {
        self.bytes.get(self.from..).unwrap_or_default()
    }
}

/// What the bytes of a lock file are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A record, whole.
    Record(Box<Record>),
    /// A record of ours, of a version we do not know.
    UnknownVersion(u64),
    /// Empty, NULs, or begins like a record and cannot be read.
    Corrupt,
    /// Anything else; what, in a few words.
    NotALock(&'static str),
}

/// What a new record starts from.
pub(crate) struct NewRecord {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) pid: Pid,
    pub(crate) hostname: Option<String>,
    pub(crate) acquired_at: DateTime<Utc>,
    pub(crate) origin: Origin,
}

impl Record {
    pub(crate) fn new(hold: u64, new: NewRecord) -> Self {
        Self {
            name: new.name,
            hold,
            kind: new.kind,
            hostname: new.hostname,
            origin: Some(new.origin),
            ..Self::foreign(Format::Native, new.pid, new.acquired_at)
        }
    }

    /// The time to live in force.
    #[must_use]
    pub fn ttl(&self) -> Option<Duration> {
        let renewed = self.sign_of_life.as_ref().and_then(|life| life.ttl_ms);
        renewed.or(self.ttl_ms).map(Duration::from_millis)
    }

    /// The last sign of life by the wall clock.
    #[must_use]
    pub fn renewed_at(&self) -> DateTime<Utc> {
        self.sign_of_life
            .as_ref()
            .map_or(self.acquired_at, |life| life.renewed_at)
    }

    /// The process that wrote the record.
    #[must_use]
    pub fn writer(&self) -> ProcessId {
        ProcessId {
            pid: self.pid,
            start: self.origin.as_ref().and_then(|origin| origin.start),
        }
    }

    /// Every process that keeps this hold alive, the most telling one first.
    #[must_use]
    pub fn processes(&self) -> Vec<ProcessId> {
        match self.job {
            Some(Job::Process(job)) => vec![job],
            Some(Job::Lease) => Vec::new(),
            None => self
                .command_process
                .into_iter()
                .chain([self.writer()])
                .collect(),
        }
    }

    /// A lease in force is kept by time only; before its number was out it is its writer's.
    #[must_use]
    pub fn is_lease(&self) -> bool {
        self.kind == Kind::Lease && self.job == Some(Job::Lease)
    }

    /// A record of a program that says less than ours do.
    pub(crate) fn foreign(format: Format, pid: Pid, acquired_at: DateTime<Utc>) -> Self {
        Self {
            version: VERSION,
            name: String::new(),
            hold: 0,
            kind: Kind::Job,
            pid,
            hostname: None,
            acquired_at,
            owner: None,
            message: None,
            command: Vec::new(),
            ttl_ms: None,
            expires_at: None,
            max_age_ms: None,
            close: false,
            exec: false,
            kernel_lock: false,
            swap: None,
            origin: None,
            command_process: None,
            job: None,
            sign_of_life: None,
            format,
            shown_pid: None,
        }
    }

    /// Whether onehold wrote it, or somebody who imitates it.
    pub(crate) fn is_ours(&self) -> bool {
        self.format == Format::Native || self.origin.is_some()
    }

    /// The whole file, in the native format.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut bytes = serde_json::to_vec_pretty(self)?;
        bytes.push(b'\n');
        bytes.extend(self.line(Line::Command)?);
        bytes.extend(self.line(Line::Job)?);
        bytes.extend(self.line(Line::SignOfLife)?);
        Ok(bytes)
    }

    /// One of the lines, as it stands in a native file.
    pub(crate) fn line(&self, line: Line) -> Result<Vec<u8>, serde_json::Error> {
        match line {
            Line::Command => fixed_width(self.command_process.map(|process| CommandLine {
                command_pid: process.pid,
                command_start: process.start,
            })),
            Line::Job => fixed_width(self.job.map(|job| match job {
                Job::Process(process) => JobLine::Process {
                    job_pid: process.pid,
                    job_start: process.start,
                },
                Job::Lease => JobLine::Lease { lease: true },
            })),
            Line::SignOfLife => fixed_width(self.sign_of_life.as_ref()),
        }
    }
}

impl Line {
    /// Where the line stands in a file of `size` bytes.
    pub(crate) fn offset(self, size: u64) -> u64 {
        let index = match self {
            Self::Command => 0,
            Self::Job => 1,
            Self::SignOfLife => 2,
        };
        let width = LINE_WIDTH as u64;
        size.saturating_sub(LINES as u64 * width) + index * width
    }
}

/// The command line of a native file of `size` bytes, to be filled by the command itself.
pub(crate) fn native_command_slot(size: u64) -> CommandSlot {
    const BEFORE: &[u8] = br#"{"command_pid":"#;
    let mut bytes = BEFORE.to_vec();
    bytes.resize(LINE_WIDTH - 1, b' ');
    bytes.push(b'\n');
    CommandSlot {
        slot: Slot {
            at: Line::Command.offset(size),
            bytes,
        },
        digits_at: BEFORE.len(),
        before_start: br#","command_start":"#,
        after: b"}",
    }
}

impl Content {
    /// Reads a native lock file; `None` if it is none. Never fails: what cannot be read has a
    /// name, too. The `bool` is whether a line after the object could not be read: it may have been
    /// caught while it was written.
    pub(crate) fn native(bytes: &[u8]) -> Option<(Self, bool)> {
        let after_key = after_our_key(bytes)?;
        Some(Self::after_key(bytes, after_key))
    }

    fn after_key(bytes: &[u8], after_key: &[u8]) -> (Self, bool) {
        match leading_number(after_key) {
            Some(VERSION) => {}
            Some(other) => return (Self::UnknownVersion(other), false),
            None => return (Self::Corrupt, false),
        }
        let mut objects = serde_json::Deserializer::from_slice(bytes).into_iter::<Record>();
        let Some(Ok(mut record)) = objects.next() else {
            return (Self::Corrupt, false);
        };
        let possible = record.version == VERSION
            && (1..=MAX_HOLD).contains(&record.hold)
            && has_four_digits(record.acquired_at);
        if !possible {
            return (Self::Corrupt, false);
        }
        // Mostly blank: looked at once.
        let mut rest = bytes.get(objects.byte_offset()..).unwrap_or_default();
        let mut torn = false;
        loop {
            rest = rest.trim_ascii_start();
            let ends = rest.iter().position(|byte| *byte == b'\n');
            let (line, after) = rest.split_at(ends.unwrap_or(rest.len()));
            torn |= !record.read_line(line);
            if after.is_empty() {
                break;
            }
            rest = after;
        }
        (Self::Record(Box::new(record)), torn)
    }
}

impl Record {
    /// `false` for a line that is neither blank nor one of ours.
    fn read_line(&mut self, line: &[u8]) -> bool {
        let line = line.trim_ascii();
        if line.is_empty() {
            return true;
        }
        let Ok(said) = serde_json::from_slice::<AnyLine>(line) else {
            return false;
        };
        if let Some(pid) = said.command_pid {
            self.command_process = Some(ProcessId {
                pid,
                start: said.command_start,
            });
        } else if let Some(pid) = said.job_pid {
            self.job = Some(Job::Process(ProcessId {
                pid,
                start: said.job_start,
            }));
        } else if let Some(lease) = said.lease {
            self.job = lease.then_some(Job::Lease);
        } else if let (Some(renewed_at), Some(renewed_boottime_ms)) =
            (said.renewed_at, said.renewed_boottime_ms)
            && has_four_digits(renewed_at)
        {
            self.sign_of_life = Some(SignOfLife {
                renewed_at,
                renewed_boottime_ms,
                renewed_boot_id: said.renewed_boot_id,
                ttl_ms: said.ttl_ms,
            });
        } else {
            return false;
        }
        true
    }
}

/// RFC 3339 knows no other years; the library that reads it does, and its arithmetic ends near
/// theirs.
pub(crate) fn has_four_digits(time: DateTime<Utc>) -> bool {
    (0..=9999).contains(&time.year())
}

/// A command line as a record keeps it. Counted as it is written, with quotes and escapes.
pub(crate) fn cut_command(command: Vec<String>) -> Vec<String> {
    let written = |text: &str| {
        let escaped = text.chars().map(|char| match char {
            '"' | '\\' => 2,
            char if char.is_control() => 6,
            char => char.len_utf8(),
        });
        escaped.sum::<usize>()
    };
    // Indentation, quotes, comma and newline.
    let around = 8;
    let mut left = MAX_COMMAND_BYTES;
    let mut kept = Vec::new();
    for argument in command {
        let needs = written(&argument) + around;
        if needs <= left {
            left -= needs;
            kept.push(argument);
            continue;
        }
        let mut cut = String::new();
        let mut room = left.saturating_sub(around + '…'.len_utf8());
        for char in argument.chars() {
            let needs = written(char.encode_utf8(&mut [0; 4]));
            if needs > room {
                break;
            }
            room -= needs;
            cut.push(char);
        }
        cut.push('…');
        kept.push(cut);
        break;
    }
    kept
}

/// What follows `{"onehold":`, with any white space between; `None` if the text begins otherwise.
fn after_our_key(bytes: &[u8]) -> Option<&[u8]> {
    let inside = bytes.trim_ascii_start().strip_prefix(b"{")?;
    let after_name = inside.trim_ascii_start().strip_prefix(br#""onehold""#)?;
    Some(
        after_name
            .trim_ascii_start()
            .strip_prefix(b":")
            .unwrap_or_default(),
    )
}

/// Read without a JSON parser, so that a later version need not even be JSON behind its number.
fn leading_number(bytes: &[u8]) -> Option<u64> {
    let bytes = bytes.trim_ascii_start();
    let end = bytes.iter().position(|byte| !byte.is_ascii_digit())?;
    let digits = bytes.get(..end)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn fixed_width(value: Option<impl Serialize>) -> Result<Vec<u8>, serde_json::Error> {
    let mut line = match value {
        Some(value) => serde_json::to_vec(&value)?,
        None => Vec::new(),
    };
    line.resize(LINE_WIDTH - 1, b' ');
    line.push(b'\n');
    Ok(line)
}

// Serde asks for a reference.
#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it with a reference"
)]
fn is_false(value: &bool) -> bool {
    !*value
}

#[cfg(test)]
mod tests;
