//! Releasing memory in a process that is about to sleep for long.

/// Does nothing: Windows trims the working set of a sleeping process by itself.
pub fn drop_code_pages() {}
