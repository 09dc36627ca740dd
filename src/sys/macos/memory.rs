//! What a process that will sleep for long can do without.

/// Does nothing: unlike Linux's, madvise(2) here does not promise that dropped pages of a program
/// come again from its file, and the kernel drops such pages itself when memory is short.
pub fn give_back_program() {}
