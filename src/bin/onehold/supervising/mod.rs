//! The wrapper of a command, and what ends it or the wait for its lock.

pub(crate) mod cancel;
pub(crate) mod die_with;
mod heartbeat;
#[cfg(all(feature = "cluster", target_os = "linux"))]
pub(crate) mod keeper;
mod loss;
pub(crate) mod supervise;

pub(crate) use cancel::{SIGINT, Then};
pub(crate) use die_with::in_thread;
pub(crate) use heartbeat::Heartbeat;
pub(crate) use loss::{broken_text, loss_text};
pub(crate) use supervise::{CHECK_INTERVAL, SIGHUP, SIGQUIT, SIGTERM};
