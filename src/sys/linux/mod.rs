//! Linux, from kernel 4.9 on; what newer kernels offer (pidfd: 5.3) is used where it is there.

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
