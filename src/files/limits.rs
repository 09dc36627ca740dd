//! What a lock file cannot have, by its format: what the programs of the format would not understand.

use std::time::Duration;

use crate::backend::{Asked, Ttl, WhyNot};
use crate::format::{MEMORY_TTL, MEMORY_TTL_LIMIT};
use crate::name::LockName;
use crate::record::Format;

pub(super) fn why_not(format: Format, name: &LockName, asked: Asked) -> WhyNot {
    Some(match (format, asked) {
        (Format::Native | Format::Flock | Format::Fcntl, Asked::Shared | Asked::Slots)
            if name.is_path() =>
        {
            "only a lock with a NAME can be shared, or one of flock(1)"
        }
        (Format::Native | Format::Flock | Format::Fcntl, _) => return None,
        (_, Asked::Shared | Asked::Slots) => "its programs know one holder only",
        (_, Asked::Lease) => "a lease names no process",
        (_, Asked::Keep) => "--hold-at-least is not supported: a lease names no process",
        // It looks for exactly this file.
        (Format::Prodigy, Asked::Hold) if !name.is_plain() => "not a valid job ID",
        (Format::Sprint, Asked::NoOwner) => "session_id required for acquire mode: pass --owner",
        (Format::Sprint, Asked::NoMessage) => "epic_spec required for acquire mode: pass --message",
        // Its kernel lock is all that tells of the command once the wrapper is dead.
        (Format::Pid, Asked::Close) => "--close is not supported",
        (Format::Memory, Asked::Exec) => "--exec is not possible, nothing would renew the lock",
        _ => return None,
    })
}

pub(super) fn ttl(format: Format, asked: Option<Duration>, is_detached: bool) -> Ttl {
    match format {
        Format::Pid if is_detached && asked.is_some() => Err("--ttl is not supported"),
        // Nothing renews it for a process that does not know of it.
        Format::Memory if is_detached => match asked {
            Some(asked) if asked > MEMORY_TTL => Err(MEMORY_TTL_LIMIT),
            asked => Ok(asked.or(Some(MEMORY_TTL))),
        },
        _ => Ok(asked),
    }
}
