//! etcd as an engine: by the JSON gateway of its members.
//!
//! [`gateway`] sends requests to an [`address`] for a [`user`], by a [`transport`] and in the form of [`messages`].
//! [`failure`] says what it means if that fails, and [`members`] whether they are suitable for locks.

mod address;
mod failure;
mod gateway;
mod members;
mod messages;
mod transport;
mod user;

use address::Address;
pub use address::{EtcdAccess, is_etcd_url};
use gateway::Gateway;

use super::engine::Engine;
use crate::error::Result;

/// A store by its URL. Nothing is sent.
pub(super) fn at(url: &str, access: &EtcdAccess) -> Result<Box<dyn Engine>> {
    let gateway = Gateway::new(Address::parse(url, access)?, access)?;
    Ok(Box::new(gateway))
}
