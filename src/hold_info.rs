//! What a lock tells about its hold. Data only.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::format;
use crate::record::{CommandEnd, Format, Kind, Mode, Pid, ProcessId, Program, Record};

macro_rules! told {
    ($($(#[$doc:meta])* $name:ident: $type:ty = |$record:ident| $found:expr;)*) => {
        impl<'a> HoldInfo<'a> {
            $($(#[$doc])* pub fn $name(self) -> $type {
                let $record = self.0;
                $found
            })*
        }
    };
}

/// What the record of a hold says. Untrusted: any user or program may have written it. The
/// [verdict](crate::Status::verdict) says what is known.
///
/// It has no keys of the file: those are in onehold-formats(5), and differ between formats.
#[derive(Clone, Copy, Debug)]
pub struct HoldInfo<'a>(pub(crate) &'a Record);

told! {
    /// When it was acquired, as its file says: text of a program that reads the file itself.
    #[doc(hidden)]
    time_in_file: String = |record| format::time_in_file(record);
    /// The name of the lock, as given; of a hold of several locks the first one.
    name: &'a str = |record| &record.name;
    /// The names of all its locks.
    names: impl Iterator<Item = &'a str> = |record| record.all_names();
    /// What keeps it alive.
    kind: Kind = |record| record.kind;
    /// How the locks are held.
    mode: Mode = |record| record.mode;
    /// How its file is written.
    format: Format = |record| record.format;
    /// The process that took the lock: for a `run` its wrapper. `None`: another program has written a number that is
    /// not a process's.
    taken_by: Option<Pid> = |record| record.taken_by;
    /// The process that keeps it alive: of a `run` its command. `None` for a lease, and before there is one.
    process: Option<ProcessId> = |record| record.live.process();
    /// The process that a `run` ends its work with.
    die_with: Option<ProcessId> = |record| record.die_with;
    /// The host of the holder. Names are shared and change, so that a host name never proves anything.
    hostname: Option<&'a str> = |record| record.hostname.as_deref();
    /// The name of its machine, container or pod, where the user has given it one.
    instance: Option<&'a str> = |record| {
        let incarnation = record.origin.as_ref()?.incarnation.as_ref()?;
        incarnation.instance.as_deref()
    };
    /// The label given by the user: a session or a runner.
    owner: Option<&'a str> = |record| record.owner.as_deref();
    /// Why, in the user's words.
    message: Option<&'a str> = |record| record.message.as_deref();
    /// The program that the holder holds the lock for, if that is another process.
    program: Option<&'a Program> = |record| record.program.as_deref();
    /// The command line of the holder, at most 4 KiB.
    command: &'a [String] = |record| &record.command;
    /// Since when, by the wall clock of the holder.
    acquired_at: DateTime<Utc> = |record| record.acquired_at;
    /// The last heartbeat, by the wall clock of the holder.
    renewed_at: DateTime<Utc> = |record| record.renewed_at();
    /// The time to live in force, from the last heartbeat.
    ttl: Option<Duration> = |record| record.ttl();
    /// The lock stays taken for so long after it was acquired, also when its command has ended before.
    hold_at_least: Option<Duration>
        = |record| record.hold_at_least_ms.map(Duration::from_millis);
    /// Until when that is, by the wall clock of the holder.
    held_until: Option<DateTime<Utc>> = |record| record.held_until();
    /// The end of its command, once nothing but that time keeps the hold.
    ended: Option<CommandEnd> = |record| record.live.ended;
    /// How long its work has between TERM and KILL when it is ended by force. `None`: it gets no KILL.
    kill_after: Option<Duration> = |record| record.kill_after();
    /// Whether a wrapper runs beside the command: not of `run --exec`, where it became the command.
    has_wrapper: bool
        = |record| record.kind == Kind::Run && !record.exec && !record.is_without_command();
    /// Whether it is a lease in force, kept by time only. Until it is confirmed, the process that took it keeps it.
    is_lease: bool = |record| record.is_lease();
    /// Whether its command has ended, and only [`held_until`](Self::held_until) keeps the lock taken.
    is_kept: bool = |record| record.is_kept();
    /// Whether there is no command: `onehold hold` holds the lock for the program that started it.
    is_without_command: bool = |record| record.is_without_command();
    /// Whether its holder is a process that holds many locks for a program.
    is_served: bool = |record| record.is_served();
    /// Whether a process other than the one that took it, or none, keeps the hold.
    is_detached: bool = |record| record.is_detached();
}
