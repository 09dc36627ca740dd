//! What the process was started with, before Rust's runtime opened /dev/null for closed descriptors and
//! ignored SIGPIPE.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::termios::tcgetpgrp;

/// Bit `n`: descriptor `n` was closed.
static WERE_CLOSED: AtomicU8 = AtomicU8::new(0);

fn was_closed(descriptor: i32) -> bool {
    WERE_CLOSED.load(Ordering::Relaxed) & (1 << descriptor) != 0
}

/// Whether the process was started with standard input closed.
pub fn stdin_was_closed() -> bool {
    was_closed(libc::STDIN_FILENO)
}

/// Whether the process was started with standard output closed. Output is then lost without an
/// error.
pub fn stdout_was_closed() -> bool {
    was_closed(libc::STDOUT_FILENO)
}

/// Notes that a standard descriptor was closed.
pub(in crate::sys) fn note_closed(descriptor: i32) {
    WERE_CLOSED.fetch_or(1 << descriptor, Ordering::Relaxed);
}

/// How often a background job tries again to read its terminal.
const BACKGROUND_INTERVAL: Duration = Duration::from_secs(1);

/// Reads standard input to its end, whatever it is, or until that fails.
pub fn wait_for_end_of_stdin() {
    let stdin = std::io::stdin();
    let mut ignored = [0; 4096];
    loop {
        match rustix::io::read(&stdin, &mut ignored) {
            Ok(1..) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
                let _ = poll(&mut fds, None);
            }
            // EIO: a background job must not read its terminal. This thread blocks SIGTTIN, so it is not stopped. A
            // terminal that has hung up has no foreground group.
            Err(Errno::IO)
                if tcgetpgrp(&stdin).is_ok_and(|group| group != rustix::process::getpgrp()) =>
            {
                std::thread::sleep(BACKGROUND_INTERVAL);
            }
            Ok(0) | Err(_) => return,
        }
    }
}

// Runs before the runtime does; only in the command-line tool, no library should do such things. On Linux the tool
// begins without the runtime, and `startup` does it.
// SAFETY: an entry of either section is a function that the loader calls once, with arguments that one
// without any does not see.
#[cfg(not(target_os = "linux"))]
#[used]
#[cfg_attr(target_os = "macos", unsafe(link_section = "__DATA,__mod_init_func"))]
#[cfg_attr(not(target_os = "macos"), unsafe(link_section = ".init_array"))]
static LOOK_FIRST: extern "C" fn() = look;

#[cfg(not(target_os = "linux"))]
extern "C" fn look() {
    for descriptor in [libc::STDIN_FILENO, libc::STDOUT_FILENO] {
        // SAFETY: asks for a flag of a descriptor that may not be open; no memory is involved.
        if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } < 0 {
            note_closed(descriptor);
        }
    }
    crate::sys::signal::note_callers_sigpipe();
}
