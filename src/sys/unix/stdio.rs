//! What the process was started with, before Rust's runtime opened /dev/null for closed descriptors and
//! ignored SIGPIPE.

use std::sync::atomic::{AtomicBool, Ordering};

static STDOUT_WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether the process was started with standard output closed. Output is then lost without an
/// error.
#[must_use]
pub fn stdout_was_closed() -> bool {
    STDOUT_WAS_CLOSED.load(Ordering::Relaxed)
}

/// Notes it.
pub(in crate::sys) fn note_stdout(is_closed: bool) {
    STDOUT_WAS_CLOSED.store(is_closed, Ordering::Relaxed);
}

// Runs before the runtime does; only in the command-line tool, no library should do such things. Where
// the tool begins without the runtime, `startup` does it.
// SAFETY: an entry of either section is a function that the loader calls once, with arguments that one
// without any does not see.
#[cfg(not(target_env = "musl"))]
#[used]
#[cfg_attr(target_os = "macos", unsafe(link_section = "__DATA,__mod_init_func"))]
#[cfg_attr(not(target_os = "macos"), unsafe(link_section = ".init_array"))]
static LOOK_FIRST: extern "C" fn() = look;

#[cfg(not(target_env = "musl"))]
extern "C" fn look() {
    // SAFETY: asks for a flag of a descriptor that may not be open; no memory is involved.
    note_stdout(unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) } < 0);
    crate::sys::signal::note_callers_sigpipe();
}
