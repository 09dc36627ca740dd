//! PostgreSQL as an engine: tables and one function in the schema `onehold`, made by `schema.sql`.
//!
//! [`server`] sends requests in the form of [`messages`] by a [`connection`] to a member of an [`address`], over a
//! [`channel`] that [`tls`] encrypts. [`listen`] reads what the server tells. [`failure`] says what it means if that
//! fails, and [`members`] whether the servers are suitable for locks.

mod address;
mod channel;
mod connection;
mod failure;
mod listen;
mod members;
mod messages;
mod server;
mod tls;

use address::Address;
pub use address::{PostgresAccess, is_postgres_url};
use server::Server;

use super::engine::Engine;
use crate::error::Result;

/// A store by its URL. Nothing is sent.
pub(super) fn at(url: &str, access: &PostgresAccess) -> Result<Box<dyn Engine>> {
    Ok(Box::new(Server::new(Address::parse(url, access)?)))
}
