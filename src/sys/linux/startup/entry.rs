//! The beginning of the command-line tool without Rust's runtime, which makes 17 system calls and touches
//! three pages for what this program does not need: a message when the stack overflows, and the name of
//! the first thread.

use std::ffi::{CStr, OsString, c_char, c_int, c_void};
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;

use crate::sys::signal::replace_disposition;
use crate::sys::stdio::note_closed;

/// Does what the runtime does and the tool relies on: closed standard descriptors are opened to /dev/null,
/// or a lock file could get their number, and SIGPIPE is ignored. What is written only before this is read-only from
/// here on. Returns the arguments without the program's name.
///
/// # Safety
/// `count` and `words` are those of the C function `main`.
#[must_use]
pub unsafe fn begin(count: c_int, words: *const *const c_char) -> Vec<OsString> {
    protect_relocated();
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

/// Makes read-only what the linker has set apart for that (`PT_GNU_RELRO`). musl does it for shared libraries alone.
fn protect_relocated() {
    unsafe extern "C" fn protect(
        found: *mut libc::dl_phdr_info,
        _size: usize,
        _data: *mut c_void,
    ) -> c_int {
        // SAFETY: the C library lends it to this call.
        if let Some(pages) = set_apart(unsafe { &*found }) {
            let begin = std::ptr::without_provenance_mut(pages.start);
            // SAFETY: nothing on these pages is written from here on: that is what the linker has set apart. If it
            // fails, the program runs on as it would without this.
            unsafe { libc::mprotect(begin, pages.len(), libc::PROT_READ) };
        }
        // The program itself is all that there is.
        1
    }
    // SAFETY: the callback has the signature that is asked for, and does not unwind.
    unsafe { libc::dl_iterate_phdr(Some(protect), std::ptr::null_mut()) };
}

/// The pages that the linker has set apart, and nothing else.
fn set_apart(found: &libc::dl_phdr_info) -> Option<Range<usize>> {
    let count = usize::from(found.dlpi_phnum);
    // SAFETY: there are so many, in memory that the program keeps.
    let mut segments = unsafe { std::slice::from_raw_parts(found.dlpi_phdr, count) }.iter();
    let apart = segments.find(|segment| segment.p_type == libc::PT_GNU_RELRO)?;
    let moved_by = usize::try_from(found.dlpi_addr).ok()?;
    let begin = moved_by.checked_add(usize::try_from(apart.p_vaddr).ok()?)?;
    let end = begin.checked_add(usize::try_from(apart.p_memsz).ok()?)?;
    // rustix asks the kernel for the size of a page, which is a system call more.
    // SAFETY: reads what the kernel has put beside the arguments.
    let page = unsafe { libc::getauxval(libc::AT_PAGESZ) };
    whole_pages(begin..end, usize::try_from(page).ok()?)
}

/// As glibc does for programs that it loads: what is set apart comes first in what is written, so its first page has
/// nothing else to write on it. On its last one are variables, if the pages are larger than the linker took them for.
fn whole_pages(bytes: Range<usize>, page: usize) -> Option<Range<usize>> {
    let begin = bytes.start - bytes.start.checked_rem(page)?;
    let end = bytes.end - bytes.end.checked_rem(page)?;
    (begin < end).then_some(begin..end)
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

#[cfg(test)]
mod tests {
    use super::whole_pages;

    #[test]
    fn variables_beside_what_is_set_apart_stay_writable_whatever_the_size_of_a_page() {
        const SMALL: usize = 0x1000;
        const LARGE: usize = 0x10000;
        let apart = 0x70_f8a8..0x71_2000;
        assert_eq!(
            whole_pages(apart.clone(), SMALL),
            Some(0x70_f000..0x71_2000)
        );
        assert_eq!(
            whole_pages(apart.clone(), LARGE),
            Some(0x70_0000..0x71_0000)
        );
        assert_eq!(whole_pages(0x71_18a8..0x71_2000, LARGE), None);
        // A machine that does not say it.
        assert_eq!(whole_pages(apart, 0), None);
    }
}
