//! The state of stdio before Rust's runtime.

use std::io::{ErrorKind, Read};
use std::os::windows::io::AsRawHandle;

/// Whether the process was started with standard input closed.
pub fn stdin_was_closed() -> bool {
    std::io::stdin().as_raw_handle().is_null()
}

/// Reads standard input to its end, whatever it is, or until that fails.
pub fn wait_for_end_of_stdin() {
    let mut ignored = [0; 4096];
    loop {
        match std::io::stdin().lock().read(&mut ignored) {
            Ok(1..) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => return,
        }
    }
}

/// Whether the process was started with standard output closed. Output is then lost without an
/// error.
pub fn stdout_was_closed() -> bool {
    std::io::stdout().as_raw_handle().is_null()
}
