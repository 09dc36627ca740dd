//! A pid file: a bare decimal number, as init scripts, `lockfile-create -p` and `shlock` write it.

use crate::identity::Pid;
use crate::record::Record;

pub(super) fn is_number(text: &str) -> bool {
    let text = text.trim_ascii();
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// `None`: no process can have it.
pub(super) fn read(text: &str) -> Option<Pid> {
    text.trim_ascii().parse().ok().and_then(Pid::new)
}

pub(super) fn write(record: &Record) -> Vec<u8> {
    format!("{}\n", super::shown_pid(record)).into_bytes()
}
