//! The state of stdio before Rust's runtime.

use std::os::windows::io::AsRawHandle;

/// Whether the process was started with standard output closed. Output is then lost without an
/// error.
#[must_use]
pub fn stdout_was_closed() -> bool {
    std::io::stdout().as_raw_handle().is_null()
}
