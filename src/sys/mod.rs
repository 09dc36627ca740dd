//! What the library asks of an operating system, and the only place that differs between systems.
//!
//! | part | contract |
//! |---|---|
//! | `directory` | a directory kept open: exclusive advisory lock on it, files that appear whole, atomic exchange of two names, whether the filesystem can be trusted with all that |
//! | `process` | who a process is (pid, start, boot, pid namespace) and whether it is still there; doubt is never reported as death |
//! | `signal` | stop and termination signals held back for a moment, queued, or used to cut a wait short |
//! | `wait` | sleep until a kernel lock is given up, a process ends or a file changes |
//!
//! All `unsafe` code of the project is below this module.

#[cfg(feature = "cli")]
pub(crate) mod arena;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
pub(crate) use linux::*;

#[cfg(not(target_os = "linux"))]
compile_error!(
    "onehold runs on Linux only so far: another system needs its own module beside `sys/linux`"
);
