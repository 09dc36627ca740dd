//! Decides who may take a lock. Pure: no clock, no input or output. The same answers give the same
//! decision.
//!
//! [`decide`] is the one function that says whether a request may take its locks now, for the caller
//! and for every waiter alike. It asks a [`Snapshot`] for what it needs, judges each record it meets
//! ([`judge`]), and applies one matrix ([`excludes`]). What may be released, renewed, broken and
//! cleaned up is in [`ownership`].

mod compatibility;
mod decide;
pub(crate) mod liveness;
pub(crate) mod ownership;
mod request;
mod snapshot;

pub(crate) use decide::{
    Decision, Judged, Obstacle, Until, awaits_confirmation, decide, judge_found, until,
};
pub(crate) use liveness::{Needed, judge, needed};
pub(crate) use request::{Asker, Key, Moment, Observer, Request, Want, slot_of};
#[cfg(feature = "etcd")]
pub(crate) use snapshot::Life;
pub(crate) use snapshot::{Facts, Found, ProcessFact, Snapshot, Ticket};

pub use request::Revision;

#[cfg(test)]
pub(crate) use compatibility::excludes;

#[cfg(test)]
mod tests;
