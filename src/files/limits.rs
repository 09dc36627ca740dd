//! What a lock file cannot have, by its format: what the programs of the format would not understand.

use crate::backend::{Limits, Ttl};
use crate::format::{MEMORY_TTL, MEMORY_TTL_LIMIT};
use crate::name::LockName;
use crate::record::Format;

pub(super) fn of(format: Format, name: &LockName) -> Limits {
    const ONE_HOLDER: &str = "its programs know one holder only";
    const NO_LEASE: &str = "a lease names no process";
    let foreign = Limits {
        shared: Some(ONE_HOLDER),
        slots: Some(ONE_HOLDER),
        lease: Some(NO_LEASE),
        ..Limits::default()
    };
    match format {
        Format::Native | Format::Flock => {
            let needs_name = (name.is_path())
                .then_some("only a lock with a NAME can be shared, or one of flock(1)");
            Limits {
                shared: needs_name,
                slots: needs_name,
                ..Limits::default()
            }
        }
        Format::Prodigy => Limits {
            // It looks for exactly this file.
            name: (!name.is_plain()).then_some("not a valid job ID"),
            ..foreign
        },
        Format::Sprint => Limits {
            no_owner: Some("session_id required for acquire mode"),
            no_message: Some("epic_spec required for acquire mode"),
            ..foreign
        },
        Format::Pid => Limits {
            // Its kernel lock is all that tells of the command once the wrapper is dead.
            close: Some("--close is not supported"),
            ttl: |Ttl { asked, is_detached }| match asked {
                Some(_) if is_detached => Err("--ttl is not supported"),
                _ => Ok(asked),
            },
            ..foreign
        },
        Format::Memory => Limits {
            exec: Some("--exec is not possible, nothing would renew the lock"),
            // Nothing renews it for a process that does not know of it.
            ttl: |Ttl { asked, is_detached }| match asked {
                _ if !is_detached => Ok(asked),
                Some(asked) if asked > MEMORY_TTL => Err(MEMORY_TTL_LIMIT),
                asked => Ok(asked.or(Some(MEMORY_TTL))),
            },
            ..foreign
        },
    }
}
