//! The verbs: what a caller can do with a lock. One loop takes a lock ([`attempt`]); everything else is
//! one update of the backend.

/// Methods of options that set a field each.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident($($value:ident: $from:ty)?) => $field:ident = $to:expr;)*) => {
        $($(#[$doc])* pub fn $name(mut self $(, $value: $from)?) -> Self {
            self.$field = $to;
            self
        })*
    };
}

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
mod journal;
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
mod until_free;
mod wait;

pub use aside::MovedAside;
pub use attempt::{Attempt, Blocked};
pub use breaking::{Break, OnBreak};
pub use cleanup::Cleanup;
pub use ending::{Ending, Remaining};
pub use examining::examine_host;
pub use fate::Fate;
pub use hold::Hold;
pub use holder::Holder;
pub use lock::Lock;
pub use options::{Options, RunOptions};
pub use pending_hold::PendingHold;
pub use releasing::{Release, Renewal};
pub use store::{Listing, Store, StoreWatch};
pub use wait::{Wait, WaitDecision};
