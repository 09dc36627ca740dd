//! Names of files that have not been put in place yet. `cleanup` removes what a killed process has left.

use std::ffi::{OsStr, OsString};

use super::random_u64;

const PREFIX: &str = ".onehold.";

/// Whether `name` is such a one.
pub(crate) fn is_temporary(name: &OsStr) -> bool {
    name.to_str()
        .and_then(|name| name.strip_prefix(PREFIX))
        .is_some_and(|rest| rest.len() == 16 && rest.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

pub(crate) fn temporary_name(number: u64) -> OsString {
    OsString::from(format!("{PREFIX}{number:016x}"))
}

/// One that is not in use.
pub(crate) fn random_temporary_name() -> OsString {
    temporary_name(random_u64())
}
