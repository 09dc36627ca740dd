//! Windows, from 10 on.
//!
//! | where it differs | what follows |
//! |---|---|
//! | file locks are mandatory | records are locked on a byte that nobody reads, so that `type`, `check` and old programs can read them |
//! | a lock belongs to the process that took it | a command does not keep its wrapper's; it keeps the hold by being on record, with its start, before it runs |
//! | a directory cannot be locked | the guard is a file in it, which cannot be removed while anybody has it open |
//! | no exchange of two names | a dead record is set aside; where other programs make files (paths, foreign formats) a person has to decide |
//! | no signals | nothing is held back; Ctrl-C and Ctrl-Break are the console's, which tells the command itself |
//! | names of files that somebody has open | are taken away, moved and opened again for half a second before that is an error |

pub(crate) mod directory;
#[cfg(feature = "cli")]
pub(crate) mod memory;
pub(crate) mod process;
pub(crate) mod signal;
pub(crate) mod spawn;
pub(crate) mod start;
#[cfg(feature = "cli")]
pub(crate) mod stdio;
pub(crate) mod wait;
