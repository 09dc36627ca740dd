//! macOS, from 10.12 on.
//!
//! Where the man pages are not precise enough, comments refer to the sources of its kernel (XNU).

pub(crate) mod filesystem;
pub(crate) mod process;
pub(crate) mod signal_queue;
pub(crate) mod start;
pub(in crate::sys) mod timer;
pub(crate) mod wait;
pub(crate) mod work;
