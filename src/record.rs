//! What a lock file says about a hold. Data only: how it is written and read is in `src/format`.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use chrono::{DateTime, Datelike, SubsecRound as _, TimeDelta, Utc};
use serde::{Deserialize, Deserializer, Serialize};

/// Enums whose variants have names.
macro_rules! named {
    ($(#[$meta:meta])* $vis:vis enum $type:ident {
        $($(#[$doc:meta])* $variant:ident $(($data:ty))? = $text:literal,)*
    }) => {
        $(#[$meta])* $vis enum $type { $($(#[$doc])* $variant $(($data))?,)* }

        impl $type {
            /// Its name.
            $vis const fn name(self) -> &'static str {
                match self { $(Self::$variant { .. } => $text,)* }
            }
        }
    };
}
pub(crate) use named;

pub(crate) use crate::identity::{Origin, Pid, ProcessId};
pub(crate) use crate::sys::digest;

/// The version of the native format that this library writes.
pub(crate) const VERSION: u64 = 1;

/// A larger file is not a lock file.
pub(crate) const MAX_RECORD_BYTES: u64 = 64 * 1024;

/// The largest hold number: up to here, a JSON reader that knows only doubles reads it exactly.
pub(crate) const MAX_HOLD: u64 = 1 << 53;

/// Longest message and owner.
pub(crate) const MAX_TEXT_BYTES: usize = 1024;

/// Longest command line in a record, as written.
const MAX_COMMAND_BYTES: usize = 4 * 1024;

named! {
    /// How a lock file is written.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum Format {
        /// onehold's own: one JSON document that begins with `"onehold": 1`.
        #[default]
        Native = "native",
        /// JSON, as `prodigy resume` writes it.
        Prodigy = "prodigy",
        /// YAML, as the sprint mutex `.sprint-running` is written.
        Sprint = "sprint",
        /// JSON, as the memory lock `memory/.lock` is written.
        Memory = "memory",
        /// A bare number.
        Pid = "pid",
        /// None: the kernel lock of flock(1) on the file is the lock, and the file is never written.
        Flock = "flock",
        /// None: the same for a lock of fcntl(2) on the whole file.
        Fcntl = "fcntl",
    }
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 7] = [
        Self::Native,
        Self::Prodigy,
        Self::Sprint,
        Self::Memory,
        Self::Pid,
        Self::Flock,
        Self::Fcntl,
    ];

    /// Whether there is no record: the kernel lock on the file is the lock.
    pub const fn is_kernel_lock(self) -> bool {
        matches!(self, Self::Flock | Self::Fcntl)
    }

    /// Whether its records say for which owner a lock is held.
    pub const fn has_owners(self) -> bool {
        matches!(self, Self::Native | Self::Sprint | Self::Memory)
    }

    /// Whether an owner on record is a label, which shows nobody as the holder: the programs of the memory lock
    /// know their holder by its process.
    pub const fn has_labels(self) -> bool {
        matches!(self, Self::Memory)
    }

    /// How long a new hold must stay in place before it counts. Programs of a foreign format remove
    /// or replace a dead holder's file by its name, whatever has come there since they read it.
    /// Measured beside prodigy: 45 % double holds without the delay, none from 5 ms on.
    pub(crate) const fn settling_time(self) -> Option<Duration> {
        match self {
            Self::Native | Self::Flock | Self::Fcntl => None,
            Self::Prodigy | Self::Sprint | Self::Memory | Self::Pid => {
                Some(Duration::from_millis(50))
            }
        }
    }

    /// How often programs of the format must see that a holder is alive.
    pub(crate) const fn heartbeat_interval(self) -> Option<Duration> {
        match self {
            // They take a lock for stale after 30 s, and recommend 10 s.
            Self::Memory => Some(Duration::from_secs(8)),
            Self::Native | Self::Prodigy | Self::Sprint | Self::Pid | Self::Flock | Self::Fcntl => {
                None
            }
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|format| format.name() == text)
            .ok_or_else(|| {
                let known: Vec<_> = Self::ALL.iter().map(|format| format.name()).collect();
                format!("unknown format; available: {}", known.join(", "))
            })
    }
}

/// What keeps a hold alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A wrapper and its command.
    Run,
    /// A process.
    #[default]
    #[serde(rename = "job")]
    Process,
    /// Time only.
    Lease,
}

/// How a lock is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// By one holder.
    #[default]
    Exclusive,
    /// By several at once, and by no exclusive holder.
    Shared,
    /// By several at once, up to this number of them.
    Slots(NonZeroU32),
}

impl Mode {
    /// Whether several may hold the lock at once.
    pub const fn is_shared(self) -> bool {
        !matches!(self, Self::Exclusive)
    }

    /// How many holders there may be; `None`: one, or any number.
    pub const fn slots(self) -> Option<NonZeroU32> {
        match self {
            Self::Slots(slots) => Some(slots),
            Self::Exclusive | Self::Shared => None,
        }
    }
}

/// The file that a takeover of a foreign record sets aside. If the process that takes over is
/// killed, the next one finishes or reverts the takeover by this.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TakeoverInfo {
    /// Its temporary name, in the directory of the record.
    pub(crate) name: String,
    pub(crate) inode: u64,
    pub(crate) size: u64,
    /// Nanoseconds since 1970.
    pub(crate) modified_ns: u64,
    /// Of its bytes as they were judged. The time of a file does not tell two changes apart that
    /// come within 4 ms (Linux before 6.13).
    pub(crate) digest: u64,
}

/// The end of a command whose lock stays taken for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CommandEnd {
    /// When, by the wall clock.
    pub at: DateTime<Utc>,
    /// Its exit code. `None`: a signal ended it, or the code is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
}

impl CommandEnd {
    /// A command that has ended now.
    #[must_use]
    pub fn now(exit_code: Option<i32>, signal: Option<i32>) -> Self {
        Self {
            at: Utc::now().trunc_subsecs(6),
            exit_code,
            signal,
        }
    }
}

/// How a holder asked for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Asked {
    /// When, by the wall clock.
    pub at: DateTime<Utc>,
    /// How many waited already when it began to wait.
    #[serde(default, skip_serializing_if = "is_default")]
    pub waiting: u32,
}

/// The program that another process holds a lock for, such as `onehold hold`. It is shown, and nothing is decided by
/// it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Program {
    /// Its process.
    pub pid: Pid,
    /// The start of that in ticks since boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<u64>,
    /// Its command line, cut like that of the holder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
}

/// What a record says that changes while the lock is held. It is written in place, as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Live {
    /// The process that keeps the hold alive: of a `run` its command, of a detached hold the
    /// process that it follows. `None` for a lease, and before there is one.
    #[serde(deserialize_with = "pid_or_none", skip_serializing_if = "is_default")]
    pub pid: Option<Pid>,
    /// Its start in ticks since boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<u64>,
    /// The last heartbeat, by the wall clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renewed_at: Option<DateTime<Utc>>,
    /// The time of that by `CLOCK_BOOTTIME` in milliseconds, as outside any time namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renewed_boottime_ms: Option<u64>,
    /// The boot that this clock counts from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renewed_boot_id: Option<String>,
    /// A new time to live, if it was changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// When the time to live ends, by the wall clock of the writer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<DateTime<Utc>>,
    /// The command has closed its descriptor of the lock file, so that a free kernel lock proves
    /// nothing.
    #[serde(skip_serializing_if = "is_default")]
    pub let_go: bool,
    /// Since when all of its work is being ended by force, by `CLOCK_BOOTTIME` in milliseconds. What is
    /// left of it may outlive its command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ending: Option<u64>,
    /// TERM was sent to its work.
    #[serde(skip_serializing_if = "is_default")]
    pub told: bool,
    /// It has been given back; its files are being removed. Of a hold of several locks, so that a
    /// process that is killed meanwhile leaves none of them held.
    #[serde(skip_serializing_if = "is_default")]
    pub released: bool,
    /// Its holder was told to end its work and to give it back: by whom, in a few words. Where it is not
    /// told by a signal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broken_by: Option<String>,
    /// Its command has ended, and nothing but time keeps the hold: see [`Record::hold_at_least_ms`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<CommandEnd>,
    /// It could not be read: it was being written at each attempt.
    #[serde(skip)]
    pub(crate) is_torn: bool,
}

impl Live {
    /// The process that keeps the hold alive.
    pub(crate) fn process(&self) -> Option<ProcessId> {
        self.pid.map(|pid| ProcessId {
            pid,
            start: self.start,
        })
    }

    /// Whether its times are such as are written.
    pub(crate) fn has_valid_times(&self) -> bool {
        let ended = self.ended.map(|end| end.at);
        let times = [self.renewed_at, self.expires_at, ended];
        times.into_iter().flatten().all(has_four_digits)
    }

    pub(crate) fn set_process(&mut self, process: Option<ProcessId>) {
        self.pid = process.map(|process| process.pid);
        self.start = process.and_then(|process| process.start);
    }
}

/// The content of a lock file. Untrusted: any user or program may have written it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The name of the lock, as given; of a hold of several locks the first one.
    pub name: String,
    /// The names of all locks, if the hold has several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// The number of the hold; 0 in the records of programs that do not number their holds.
    pub hold: u64,
    /// What keeps the hold alive.
    pub kind: Kind,
    /// How the locks are held.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mode: Mode,
    /// The process that took the lock: for a `run` its wrapper. `None`: a foreign record has a number
    /// there that is not a process's, such as the `0` of lockfile(1).
    #[serde(default, deserialize_with = "pid_or_none")]
    pub taken_by: Option<Pid>,
    /// Its host. Names are shared and change, so that a host name never proves anything.
    #[serde(
        default,
        deserialize_with = "text_or_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub hostname: Option<String>,
    /// When, by the wall clock.
    pub acquired_at: DateTime<Utc>,
    /// The label given by the user: a session or a runner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Why, in the user's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When and where its holder asked for it, of a hold that leaves a line in the history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<Asked>,
    /// The command line of the holder, at most 4 KiB.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The program that the holder holds the locks for, if that is another process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<Box<Program>>,
    /// Time to live from the last heartbeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// The age from which the hold counts as overdue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age_ms: Option<u64>,
    /// The lock stays taken for so long after it was acquired, also when its command has ended before. From
    /// then on the hold is a lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_at_least_ms: Option<u64>,
    /// The command does not inherit the kernel lock.
    #[serde(default, skip_serializing_if = "is_default")]
    pub close: bool,
    /// The wrapper became the command, so that no process removes the record.
    #[serde(default, skip_serializing_if = "is_default")]
    pub exec: bool,
    /// Its wrapper ends the work when a break of the hold sends it TERM.
    #[serde(default, skip_serializing_if = "is_default")]
    pub supervised: bool,
    /// Time between TERM and KILL for work that is ended by force; `None`: 10 s, 0: no KILL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kill_after_ms: Option<u64>,
    /// Its wrapper ends the work at a time limit.
    #[serde(default, skip_serializing_if = "is_default")]
    pub time_limited: bool,
    /// The process that its wrapper ends the work with: once it has exited, the work is ended by force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub die_with: Option<ProcessId>,
    /// The holder holds a kernel lock on the file.
    #[serde(default, skip_serializing_if = "is_default")]
    pub kernel_lock: bool,
    /// The process that asked for a detached hold, if the process that the hold follows was derived
    /// from it and not named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) caller: Option<ProcessId>,
    /// The PID that a foreign record shows to other programs, as it was written at first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) visible: Option<Pid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) takeover: Option<TakeoverInfo>,
    /// Where and when it was written; `None` in a record by hand or by another program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// When it was acquired, as the file of another program has it.
    #[serde(skip)]
    pub(crate) time_in_file: Option<String>,
    /// What changes while the lock is held.
    #[serde(skip)]
    pub live: Live,
    /// How the file is written.
    #[serde(skip)]
    pub format: Format,
}

/// What the bytes of a lock file are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// A record, whole.
    Record(Box<Record>),
    /// A native record of a version that this library does not know.
    UnknownVersion(u64),
    /// Empty, all NUL, or the beginning of a record that cannot be read.
    Corrupt,
    /// A file that is locked as flock(1) locks it: it has no record.
    KernelLock,
    /// Anything else; what, in a few words.
    NotALock(&'static str),
}

impl Content {
    pub(crate) fn record(&self) -> Option<&Record> {
        match self {
            Self::Record(record) => Some(record),
            Self::UnknownVersion(_) | Self::Corrupt | Self::KernelLock | Self::NotALock(_) => None,
        }
    }
}

/// How long the work of a hold has between TERM and KILL by default.
pub const KILL_AFTER: Duration = Duration::from_secs(10);

impl Record {
    /// How long the work of the hold has between TERM and KILL; `None`: it gets no KILL.
    pub(crate) fn kill_after(&self) -> Option<Duration> {
        let after = self.kill_after_ms.map_or(KILL_AFTER, Duration::from_millis);
        Some(after).filter(|after| !after.is_zero())
    }

    /// A record that says no more than a foreign one does.
    pub(crate) fn new(format: Format, taken_by: Option<Pid>, acquired_at: DateTime<Utc>) -> Self {
        Self {
            taken_by,
            acquired_at,
            format,
            ..Self::default()
        }
    }

    /// The names of all its locks.
    pub(crate) fn all_names(&self) -> impl Iterator<Item = &str> {
        let only = self.names.is_empty().then_some(&self.name);
        self.names.iter().chain(only).map(String::as_str)
    }

    /// The time to live in force.
    pub(crate) fn ttl(&self) -> Option<Duration> {
        let of_lease = self.live.ttl_ms.or(self.ttl_ms);
        let ttl = if self.is_kept() {
            self.hold_at_least_ms
        } else {
            of_lease
        };
        ttl.map(Duration::from_millis)
    }

    /// Until when the lock stays taken at least, by the wall clock of the writer.
    pub(crate) fn held_until(&self) -> Option<DateTime<Utc>> {
        let least = TimeDelta::try_milliseconds(self.hold_at_least_ms?.try_into().ok()?)?;
        let until = self.acquired_at.checked_add_signed(least)?;
        Some(until).filter(|until| has_four_digits(*until))
    }

    /// Whether its command has ended, and the lock stays taken until the time of
    /// [`hold_at_least_ms`](Self::hold_at_least_ms).
    pub(crate) fn is_kept(&self) -> bool {
        self.live.ended.is_some()
    }

    /// The last heartbeat by the wall clock.
    pub(crate) fn renewed_at(&self) -> DateTime<Utc> {
        self.live.renewed_at.unwrap_or(self.acquired_at)
    }

    /// The process that wrote the record.
    pub(crate) fn writer(&self) -> Option<ProcessId> {
        Some(ProcessId {
            pid: self.taken_by?,
            start: self.origin.as_ref().and_then(|origin| origin.start),
        })
    }

    /// The processes that keep this hold alive; the one that tells most comes first.
    pub(crate) fn processes(&self) -> impl Iterator<Item = ProcessId> + use<> {
        let process = self.live.process().filter(|_| !self.is_lease());
        let is_alone = self.is_lease() || (process.is_some() && !self.has_command());
        let writer = self.writer().filter(|_| !is_alone);
        process.into_iter().chain(writer)
    }

    /// Whether it is a lease in force, kept by time only. Until it is confirmed, its writer keeps it.
    pub(crate) fn is_lease(&self) -> bool {
        self.kind == Kind::Lease && self.is_confirmed()
    }

    /// Whether a process other than the writer, or none, keeps the hold.
    pub(crate) fn is_detached(&self) -> bool {
        match self.kind {
            Kind::Run => false,
            Kind::Process => !self.kernel_lock,
            Kind::Lease => true,
        }
    }

    /// Whether a detached hold was handed over to its holder.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.is_detached() && !self.live.is_torn && self.live != Live::default()
    }

    /// Whether a command is on record: a process other than the one that wrote the record.
    pub(crate) fn has_command(&self) -> bool {
        !self.is_detached() && self.live.pid.is_some() && self.live.pid != self.taken_by
    }

    /// Whether there is no command: `onehold hold` holds the lock for the program that started it.
    pub(crate) fn is_without_command(&self) -> bool {
        let is_run = self.kind == Kind::Run && !self.exec;
        is_run && self.live.pid.is_some() && self.live.pid == self.taken_by
    }

    /// Whether its holder is a process that holds many locks for a program, and is not ended by a break of one.
    pub(crate) fn is_served(&self) -> bool {
        self.program.is_some() && self.kind == Kind::Process && self.kernel_lock
    }

    /// The PID that a foreign record shows to other programs.
    pub(crate) fn visible_pid(&self) -> Option<Pid> {
        self.live.pid.or(self.visible).or(self.taken_by)
    }

    /// Whether onehold wrote it, or a program that imitates it.
    pub(crate) fn is_ours(&self) -> bool {
        self.format == Format::Native || self.origin.is_some()
    }
}

/// Whether two owner labels are the same. A missing or empty label matches nothing.
pub(crate) fn is_same_owner(one: Option<&str>, other: Option<&str>) -> bool {
    one.is_some_and(|one| !one.is_empty() && Some(one) == other)
}

/// RFC 3339 has no other years, and chrono reads no others back.
pub(crate) fn has_four_digits(time: DateTime<Utc>) -> bool {
    (0..=9999).contains(&time.year())
}

/// A command line as a record keeps it. Counts bytes as they are written, with quotes and escapes.
pub(crate) fn cut_command(command: Vec<String>) -> Vec<String> {
    let written = |char| match char {
        '"' | '\\' => 2,
        char if char.is_control() => 6,
        char => char.len_utf8(),
    };
    // Indentation, quotes, comma and newline.
    let around = 8;
    let mut left = MAX_COMMAND_BYTES;
    let mut kept = Vec::new();
    for argument in command {
        let needs = argument.chars().map(written).sum::<usize>() + around;
        if needs <= left {
            left -= needs;
            kept.push(argument);
            continue;
        }
        let room = left.saturating_sub(around + '…'.len_utf8());
        let mut used = 0;
        let begin = argument.chars().take_while(|char| {
            used += written(*char);
            used <= room
        });
        kept.push(begin.chain(['…']).collect());
        break;
    }
    kept
}

/// A number that is not a process ID names no process, and proves nothing.
fn pid_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Pid>, D::Error> {
    let number = Option::<i64>::deserialize(deserializer)?;
    Ok(number.and_then(|number| u32::try_from(number).ok().and_then(Pid::new)))
}

/// An empty name names nothing.
fn text_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.filter(|text| !text.is_empty()))
}

/// Whether a value is what a reader takes a missing key for.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests;
