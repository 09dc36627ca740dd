//! Code for all Unixes.

mod alarm;
pub(crate) mod directory;
pub(in crate::sys) mod file;
pub(in crate::sys) mod process;
mod sharing;
pub(crate) mod signal;
mod signal_queue;
pub(crate) mod spawn;
#[cfg(feature = "cli")]
pub(crate) mod stdio;
pub(in crate::sys) mod wait;
pub(in crate::sys) mod work;
