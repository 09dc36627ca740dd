//! Linux, from kernel 4.9 on. Features of newer kernels (pidfd: 5.3) are used if they are
//! available.

mod children;
pub(crate) mod filesystem;
#[cfg(feature = "cluster")]
pub(crate) mod keeper;
mod kernel_locks;
#[cfg(feature = "cli")]
pub(crate) mod memory;
mod mount;
pub(crate) mod process;
pub(crate) mod signal_queue;
pub(crate) mod start;
#[cfg(feature = "cli")]
pub(crate) mod startup;
pub(in crate::sys) mod timer;
pub(crate) mod wait;
mod walk;
pub(crate) mod work;
