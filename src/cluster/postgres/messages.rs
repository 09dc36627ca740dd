//! Requests to the function `onehold.request`, and its answers. A transaction is sent as serde writes it.

use std::time::Duration;

use postgres_protocol::escape::escape_literal;
use serde::Deserialize;
use serde_json::{Value, json};

use super::failure::unreadable;
use crate::cluster::engine::Answer;
use crate::cluster::txn::{Epoch, KeyValue, Lease, Operation, ReadAnswer, Txn, TxnAnswer};

/// The version of `schema.sql`.
const SCHEMA: u32 = 1;

/// What calls the function. The isolation may be another one by default, and the function relies on this one.
pub(super) fn call(prefix: &str, request: &Value) -> String {
    let (prefix, request) = (escape_literal(prefix), escape_literal(&request.to_string()));
    format!(
        "set transaction isolation level read committed; \
         select onehold.request({SCHEMA}, {prefix}, {request})"
    )
}

/// Whatever the limit of a read is, all of it is read, but for keys of the journal: later the store may have changed.
pub(super) fn of_txn(txn: &Txn) -> Value {
    let mut operations = txn.success.iter();
    let only_reads = operations.all(|operation| matches!(operation, Operation::Read(_)));
    if txn.compare.is_empty() && only_reads {
        return json!({ "reads": txn.success });
    }
    json!({ "if": txn.compare, "then": txn.success, "else": txn.failure })
}

/// What the function answers.
#[derive(Deserialize)]
pub(super) struct Said {
    pub(super) rev: i64,
    /// System and timeline.
    epoch: String,
    ok: bool,
    #[serde(default)]
    pub(super) answers: Vec<Vec<KeyValue>>,
    /// In seconds.
    kept: Option<i64>,
    left_ms: Option<i64>,
    pub(super) listens: Option<bool>,
    /// Keys that are waited for, each with the time that is left of its lease, in milliseconds.
    #[serde(default)]
    pub(super) ends: Option<Vec<(String, i64)>>,
}

impl Said {
    pub(super) fn read(text: Option<String>) -> Answer<Self> {
        serde_json::from_str(&text.unwrap_or_default()).map_err(|_| unreadable())
    }

    /// That of the server, as this member says.
    pub(super) fn epoch(&self, member: usize) -> Epoch {
        let (system, timeline) = self.epoch.split_once('/').unwrap_or_default();
        let number = |text: &str| text.parse().unwrap_or(0);
        Epoch::new(member, number(system), number(timeline))
    }

    pub(super) fn kept(&self, id: i64, epoch: Epoch) -> Lease {
        let ttl = self.kept.unwrap_or(0);
        Lease { id, ttl, epoch }
    }

    /// Until a lease ends.
    pub(super) fn left(&self) -> Option<Duration> {
        let left = self.left_ms.and_then(|left| u64::try_from(left).ok());
        left.map(Duration::from_millis)
    }

    pub(super) fn into_answer(self, epoch: Epoch) -> TxnAnswer {
        let revision = self.rev;
        let read = |kvs| ReadAnswer {
            revision,
            kvs,
            more: false,
        };
        TxnAnswer {
            revision,
            epoch,
            succeeded: self.ok,
            answers: self.answers.into_iter().map(read).collect(),
        }
    }
}
