//! Linux, from kernel 4.9 on; what newer kernels offer (pidfd: 5.3) is used where it is there.

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
