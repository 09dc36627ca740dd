//! What a lock file cannot have, by its format: what the programs of the format would not understand.

use crate::backend::Limits;
use crate::format::{MEMORY_TTL, MEMORY_TTL_LIMIT};
use crate::name::LockName;
use crate::record::Format;

const FOREIGN: Limits = Limits {
    shared: Some(ONE_HOLDER),
    slots: Some(ONE_HOLDER),
    lease: Some("a lease names no process"),
    keep: Some("--hold-at-least is not supported: a lease names no process"),
    ..Limits::NONE
};
const ONE_HOLDER: &str = "its programs know one holder only";

static PATH: Limits = Limits {
    shared: Some(NEEDS_NAME),
    slots: Some(NEEDS_NAME),
    ..Limits::NONE
};
const NEEDS_NAME: &str = "only a lock with a NAME can be shared, or one of flock(1)";

static PRODIGY: Limits = FOREIGN;
// It looks for exactly this file.
static NO_JOB: Limits = Limits {
    name: Some("not a valid job ID"),
    ..FOREIGN
};

static SPRINT: Limits = Limits {
    no_owner: Some("session_id required for acquire mode: pass --owner"),
    no_message: Some("epic_spec required for acquire mode: pass --message"),
    ..FOREIGN
};

static PID: Limits = Limits {
    // Its kernel lock is all that tells of the command once the wrapper is dead.
    close: Some("--close is not supported"),
    ttl: |asked, is_detached| match asked {
        Some(_) if is_detached => Err("--ttl is not supported"),
        _ => Ok(asked),
    },
    ..FOREIGN
};

static MEMORY: Limits = Limits {
    exec: Some("--exec is not possible, nothing would renew the lock"),
    // Nothing renews it for a process that does not know of it.
    ttl: |asked, is_detached| match asked {
        _ if !is_detached => Ok(asked),
        Some(asked) if asked > MEMORY_TTL => Err(MEMORY_TTL_LIMIT),
        asked => Ok(asked.or(Some(MEMORY_TTL))),
    },
    ..FOREIGN
};

pub(super) fn of(format: Format, name: &LockName) -> &'static Limits {
    match format {
        Format::Native | Format::Flock if name.is_path() => &PATH,
        Format::Native | Format::Flock => &Limits::NONE,
        Format::Prodigy if name.is_plain() => &PRODIGY,
        Format::Prodigy => &NO_JOB,
        Format::Sprint => &SPRINT,
        Format::Pid => &PID,
        Format::Memory => &MEMORY,
    }
}
