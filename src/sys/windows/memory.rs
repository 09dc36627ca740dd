//! What a process that will sleep for long can do without.

/// Nothing: Windows trims the working set of what sleeps by itself.
pub fn give_back_program() {}
