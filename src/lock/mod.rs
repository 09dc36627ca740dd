//! The verbs: what a caller can do with a lock. One loop takes a lock ([`attempt`]); everything else is
//! one update of the backend.

mod acquire;
mod aside;
mod attempt;
mod breaking;
mod cleanup;
mod ending;
mod examining;
mod fate;
mod hold;
mod holder;
#[allow(clippy::module_inception, reason = "the file is named after `Lock`")]
mod lock;
mod looking;
mod options;
mod pending_hold;
mod refusal;
mod releasing;
mod status;
mod store;
mod supervise;
mod surroundings;
mod unfinished;
mod wait;

pub use aside::MovedAside;
pub use attempt::{Attempt, Blocked};
pub use breaking::{Break, OnBreak};
pub use cleanup::Cleanup;
pub use ending::{Ending, Remaining};
pub use examining::examine_host;
pub use fate::Fate;
pub use hold::Hold;
#[cfg(unix)]
pub use holder::parent;
pub use holder::{Holder, process_of, until_ended, user_of};
pub use lock::Lock;
pub use options::{Options, RunOptions};
pub use pending_hold::PendingHold;
pub use releasing::{Release, Renewal};
pub use store::{Listing, Store, StoreWatch};
pub use supervise::tells_to_break;
pub use wait::{Wait, WaitDecision};
