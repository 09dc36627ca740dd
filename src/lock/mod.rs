//! The verbs: what a caller can do with a lock. One loop takes a lock ([`take`]); everything else is one
//! update of the backend.

mod breaking;
mod cleanup;
mod ending;
mod hold;
mod holder;
#[allow(clippy::module_inception, reason = "the file is named after `Lock`")]
mod lock;
mod options;
mod refusal;
mod store;
mod take;
mod unfinished;
mod wait;

pub use breaking::{Break, OnBreak};
pub use cleanup::Cleanup;
pub use ending::{Ending, Remaining};
pub use hold::{Hold, PendingHold};
pub use holder::{Holder, command_line_of, may_signal, user_of};
pub use lock::{Acquired, Attempt, Blocked, Lock, MovedAside, Release, Renewal};
pub use options::{Options, RunOptions};
pub use store::{Listing, Store};
pub use wait::Wait;
