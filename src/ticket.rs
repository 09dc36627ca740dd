//! What a waiter writes into its ticket: in a file of the queue, or in a key on etcd.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::decision::{Request, Ticket};
use crate::identity::Pid;
use crate::open_file::Handle;
use crate::record::{Record, VERSION};
use crate::status::{KeptPlace, Waiter};

/// How many places are kept in the queue of each lock.
pub(crate) const MAX_KEPT: usize = 64;

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

/// The waiter that has a ticket, which is a file.
pub(crate) fn waiter(ticket: &Ticket<Handle>) -> Option<Waiter> {
    let open = ticket.handle.as_ref()?;
    Some(TicketContent::read(&open.bytes)?.into_waiter(1))
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

    /// Whether its place may be given to this request: it has the same owner, and wants the same locks in any order.
    pub(crate) fn is_for(&self, request: &Request) -> bool {
        let (own, wanted) = (&self.request.wants, &request.wants);
        self.request.owner == request.owner
            && own.len() == wanted.len()
            && own.iter().all(|want| wanted.contains(want))
    }

    pub(crate) fn into_kept_place(self, left: Duration) -> KeptPlace {
        KeptPlace {
            owner: self.request.owner.unwrap_or_default(),
            since: self.since,
            left,
        }
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
