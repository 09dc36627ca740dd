//! What a waiter writes into its ticket: in a file of the queue, or in a key on etcd.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::decision::Request;
use crate::identity::Pid;
use crate::record::{Record, VERSION};
use crate::status::Waiter;

/// The content of a ticket: who waits, and for what. Others decide for the waiter by it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TicketContent {
    onehold: u64,
    /// The process of the waiter, in its own PID namespace.
    pub(crate) pid: Pid,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hostname: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    command: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    since: DateTime<Utc>,
    pub(crate) request: Request,
}

impl TicketContent {
    /// Of a waiter that would write this record if it had the lock.
    pub(crate) fn new(record: &Record, request: Request) -> Self {
        Self {
            onehold: VERSION,
            pid: record.taken_by.unwrap_or_else(Pid::of_self),
            hostname: record.hostname.clone(),
            command: record.command.clone(),
            message: record.message.clone(),
            since: record.acquired_at,
            request,
        }
    }

    /// `None`: it is something else.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    pub(crate) fn into_waiter(self, position: usize) -> Waiter {
        Waiter {
            position,
            pid: self.pid,
            hostname: self.hostname,
            owner: self.request.owner,
            command: self.command,
            message: self.message,
            since: self.since,
        }
    }
}
