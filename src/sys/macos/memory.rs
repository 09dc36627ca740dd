//! Releasing memory in a process that is about to sleep for long.

/// Does nothing: unlike on Linux, madvise(2) does not guarantee that dropped pages of a program are
/// read from its file again, and the kernel drops such pages itself when memory is short.
pub fn drop_code_pages() {}
