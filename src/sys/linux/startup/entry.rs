//! The beginning of the command-line tool without Rust's runtime, which makes 17 system calls and touches
//! three pages for what this program does not need: a message when the stack overflows, and the name of
//! the first thread.

use std::ffi::{CStr, OsString, c_char, c_int};
use std::os::unix::ffi::OsStringExt;

use crate::sys::signal::replace_disposition;
use crate::sys::stdio::note_closed;

/// Does what the runtime does and the tool relies on: closed standard descriptors are opened to /dev/null,
/// or a lock file could get their number, and SIGPIPE is ignored. Returns the arguments without the
/// program's name.
///
/// # Safety
/// `count` and `words` are those of the C function `main`.
#[must_use]
pub unsafe fn begin(count: c_int, words: *const *const c_char) -> Vec<OsString> {
    open_closed_descriptors();
    let _ = replace_disposition(libc::SIGPIPE, libc::SIG_IGN);
    let count = usize::try_from(count).unwrap_or(0);
    (1..count)
        .map(|index| {
            // SAFETY: there are so many, each a text that ends with NUL, by the caller's contract.
            let word = unsafe { CStr::from_ptr(*words.add(index)) };
            OsString::from_vec(word.to_bytes().to_vec())
        })
        .collect()
}

fn open_closed_descriptors() {
    let mut descriptors =
        [libc::STDIN_FILENO, libc::STDOUT_FILENO, libc::STDERR_FILENO].map(|fd| libc::pollfd {
            fd,
            events: 0,
            revents: 0,
        });
    // SAFETY: the places are ours.
    if unsafe { libc::poll(descriptors.as_mut_ptr(), 3, 0) } < 1 {
        return;
    }
    for descriptor in descriptors {
        if descriptor.revents & libc::POLLNVAL != 0 {
            note_closed(descriptor.fd);
            // SAFETY: a constant text; the lowest free number is this one.
            unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
        }
    }
}
