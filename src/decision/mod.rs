//! Decides who may take a lock. Pure: no clock, no input or output. The same answers give the same
//! decision.
//!
//! [`decide`] is the one function that says whether a request may take its locks now, for the caller
//! and for every waiter alike. To be read in this order:
//!
//! 1. `request`: what a caller asks for. `snapshot`: what can be asked about the locks.
//! 2. `answer`: what a decision can be, and what a waiter can sleep on. `verdict`: what can be said about
//!    one lock.
//! 3. `decide`: the table of rows, in the order of the table.
//! 4. `scan`: what is in the way among the holds. It judges each record it meets (`liveness`), applies
//!    one matrix (`compatibility`), and recognizes the holder that asks once more (`same_holder`).
//! 5. `turn`: what is in the way among earlier waiters.
//! 6. `sleep_on`: what a waiter sleeps on ([`until`]).
//! 7. `cycle`: whether a wait would never end, because others wait for the caller.
//!
//! What may be released, renewed, broken and cleaned up is in [`ownership`].

mod answer;
mod compatibility;
mod cycle;
mod decide;
pub(crate) mod liveness;
pub(crate) mod ownership;
mod request;
mod same_holder;
mod scan;
mod sleep_on;
mod snapshot;
mod turn;
pub(crate) mod verdict;

pub(crate) use answer::{Decision, Judged, Obstacle, Until};
pub(crate) use compatibility::excludes;
pub(crate) use cycle::{Cycle, counts, cycle, waits_from};
pub(crate) use decide::decide;
pub(crate) use liveness::{judge, needed};
pub(crate) use request::{Asker, Index, Key, MAX_KEEP_MS, Moment, Observer, Request, Want};
pub(crate) use same_holder::awaits_confirmation;
pub(crate) use sleep_on::{RECHECK_INTERVAL, next_in_turn, until};
#[cfg(feature = "cluster")]
pub(crate) use snapshot::Life;
pub(crate) use snapshot::{Facts, Found, ProcessFact, Snapshot, Ticket, Visit};
pub(crate) use turn::waiting_for;

pub use request::Revision;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
