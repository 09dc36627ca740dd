//! The wrapper of a command, and what ends it or the wait for its lock.

pub(crate) mod cancel;
pub(crate) mod die_with;
pub(crate) mod heartbeat;
#[cfg(all(feature = "cluster", target_os = "linux"))]
pub(crate) mod keeper;
pub(crate) mod loss;
pub(crate) mod supervise;
