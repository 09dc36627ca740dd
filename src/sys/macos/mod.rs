//! macOS, from 10.12 on.
//!
//! Where its man pages say less than what is needed here, the sources of its kernel (XNU) do, and
//! the comment names them.

pub(crate) mod alarm;
pub(crate) mod filesystem;
#[cfg(feature = "cli")]
pub(crate) mod memory;
pub(crate) mod process;
pub(crate) mod signal_queue;
pub(crate) mod start;
#[cfg(feature = "cli")]
pub(crate) mod stdio;
mod times;
pub(crate) mod wait;
