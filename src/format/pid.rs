//! A PID file: a bare decimal number, as init scripts, `lockfile-create -p` and `shlock` write it.

use super::{VISIBLE_BYTES, Written, number};
use crate::identity::Pid;
use crate::record::Record;

/// Whether it is a whole number, though not always that of a process.
pub(super) fn is_whole(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// `None`: not the number of a process.
pub(super) fn read(text: &str) -> Option<Pid> {
    text.trim_ascii().parse().ok().and_then(Pid::new)
}

pub(super) fn write(record: &Record) -> Written {
    let width = VISIBLE_BYTES - 1;
    Written {
        bytes: format!("{:<width$}\n", number(record.visible_pid())).into_bytes(),
        slot_at: None,
        visible_at: Some(0),
    }
}
