//! What a waiter writes into its ticket: in a file of the queue, or in a key on etcd.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::decision::{Observer, Request};
use crate::identity::{BootId, Pid, ProcessId};
use crate::observer;
use crate::open_file::Ticket;
use crate::record::{Program, Record, VERSION};
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
    program: Option<Box<Program>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    since: DateTime<Utc>,
    pub(crate) request: Request,
    /// Noted on etcd and PostgreSQL by a waiter that runs inside of a hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) runs: Option<RunsAt>,
}

/// Where a waiter runs, and below what: others find cycles by it whose machines do not show its processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunsAt {
    boot: Option<BootId>,
    pid_namespace: Option<u64>,
    /// The wrapper of the `run` whose command does nothing but wait for the waiter, as that has seen.
    awaited_by: Option<ProcessId>,
}

#[cfg_attr(
    not(feature = "cluster"),
    allow(dead_code, reason = "only servers have tickets of other machines")
)]
impl RunsAt {
    /// Of a process of this machine.
    #[cold]
    pub(crate) fn now(process: Pid, observer: &Observer) -> Self {
        Self {
            boot: observer.boot.clone(),
            pid_namespace: observer.pid_namespace,
            awaited_by: observer::awaiting_run(process),
        }
    }

    /// Whether its processes and its clock are those of this observer.
    pub(crate) fn is_seen_by(&self, observer: &Observer) -> bool {
        let (boot, namespace) = (&self.boot, self.pid_namespace);
        boot.is_some()
            && namespace.is_some()
            && (boot, namespace) == (&observer.boot, observer.pid_namespace)
    }

    /// Whether the command of the `run` with this record waits for it.
    pub(crate) fn is_awaited_by(&self, record: &Record) -> bool {
        let wrapper = record.origin.as_ref().zip(record.taken_by);
        wrapper.is_some_and(|(origin, pid)| {
            let start = origin.start;
            start.is_some()
                && self.awaited_by == Some(ProcessId { pid, start })
                && (&self.boot, self.pid_namespace) == (&origin.boot, origin.pid_namespace)
        })
    }
}

/// The waiter that has a ticket, which is a file.
pub(crate) fn waiter(ticket: &Ticket) -> Option<Waiter> {
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
            program: record.program.clone(),
            message: record.message.clone(),
            since: record.acquired_at,
            request,
            runs: None,
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
            program: self.program,
            message: self.message,
            since: self.since,
        }
    }
}
