//! What a process that will sleep for long can do without.

use std::ffi::{c_int, c_void};

/// Gives back the memory that the program itself takes: its code and constants, which come again
/// from its file as they are needed. The kernel maps a good part of a program around whatever is
/// used once, so that a process which does nothing but wait seems to need all of it (2.2 MB before
/// and 0.5 MB after, as `Rss` in proc_pid_smaps(5)).
pub fn give_back_program() {
    // SAFETY: the callback fits dl_iterate_phdr(3), and is given nothing of ours.
    unsafe { libc::dl_iterate_phdr(Some(give_back), std::ptr::null_mut()) };
}

unsafe extern "C" fn give_back(
    object: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    _data: *mut c_void,
) -> c_int {
    // The program comes first (dl_iterate_phdr(3)), and nothing else is given back: a library with
    // relocations in its text (DT_TEXTREL) would lose them.
    const NO_MORE: c_int = 1;
    // SAFETY: dl_iterate_phdr(3) gives an object that is loaded, with its headers.
    let (base, headers) = unsafe {
        let object = &*object;
        let count = usize::from(object.dlpi_phnum);
        if object.dlpi_phdr.is_null() {
            return NO_MORE;
        }
        let headers = std::slice::from_raw_parts(object.dlpi_phdr, count);
        (object.dlpi_addr, headers)
    };
    let page = rustix::param::page_size() as u64;
    for header in headers {
        let unwritten = header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0;
        let start = (base + header.p_vaddr).next_multiple_of(page);
        let end = (base + header.p_vaddr + header.p_memsz) / page * page;
        if unwritten && start < end {
            // SAFETY: whole pages of a segment that nobody can have written to, so that its file
            // says the same (madvise(2), MADV_DONTNEED on a private mapping of a file).
            unsafe {
                libc::madvise(
                    start as *mut c_void,
                    usize::try_from(end - start).unwrap_or(0),
                    libc::MADV_DONTNEED,
                );
            }
        }
    }
    NO_MORE
}
