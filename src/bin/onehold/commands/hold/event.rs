//! The lines of `hold`: what happens to its lock.

use anyhow::Context;
use onehold::{Hold, Lock, Status};
use serde::Serialize;
use serde_json::Value;

use super::End;
use crate::configuration::Session;
use crate::messages::displaced;
use crate::output::{escape_json, lock_value};
use crate::{output, words};

/// One line of `--json`. The line `failed` is that of other commands, see `report`.
#[derive(Default, Serialize)]
pub(super) struct Event<'a> {
    /// That of the request, with `--serve`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<u64>,
    pub(super) event: &'static str,
    pub(super) hold: Option<u64>,
    pub(super) slot: Option<u32>,
    pub(super) slots: Vec<u32>,
    pub(super) file: Option<String>,
    pub(super) position: Option<usize>,
    pub(super) holder: Option<Value>,
    pub(super) displaced: Option<Value>,
    pub(super) reason: Option<&'static str>,
    pub(super) message: Option<&'a str>,
    pub(super) errors: Vec<String>,
}

impl<'a> Event<'a> {
    pub(super) fn waiting(session: &Session, status: &Status) -> Self {
        Self {
            event: "waiting",
            position: status.position(),
            holder: Some(lock_value(status, &session.caller)),
            ..Self::default()
        }
    }

    pub(super) fn held(session: &Session, lock: &Lock, hold: &Hold) -> Self {
        let slots = hold.slots();
        let path = || hold.path().to_string_lossy().into_owned();
        let displaced = displaced(hold.displaced());
        Self {
            event: "held",
            hold: Some(hold.number()),
            slot: slots.first().copied(),
            slots,
            file: (!lock.is_remote()).then(path),
            displaced: displaced.map(|was| lock_value(&was, &session.caller)),
            errors: hold.warnings().iter().map(words::error_chain).collect(),
            ..Self::default()
        }
    }

    /// The same for a request.
    #[cfg(unix)]
    pub(super) fn of(self, id: u64) -> Self {
        let id = Some(id);
        Self { id, ..self }
    }

    /// The line, without its end.
    pub(super) fn line(&self) -> String {
        // Serializing strings, numbers and lists cannot fail.
        escape_json(&serde_json::to_string(self).unwrap_or_default())
    }

    pub(super) fn print(&self) -> std::io::Result<()> {
        output::data(&self.line())
    }

    /// The caller already runs inside a hold of the lock.
    pub(super) fn enclosed(session: &Session, lock: &Lock) -> anyhow::Result<Self> {
        let status = lock.inspect(None)?;
        let outer = status.all_holds().find(|hold| session.is_inside(hold));
        let outer = outer.context("the enclosing hold has ended")?;
        Ok(Self {
            event: "held",
            // flock(1) does not number its locks.
            hold: Some(outer.hold().unwrap_or_default()),
            ..Self::default()
        })
    }

    /// The end of a hold. `loss`: the message, if it was lost.
    pub(super) fn ended(
        hold: u64,
        why: &'a End,
        loss: Option<&'a str>,
        error: Option<&onehold::Error>,
    ) -> Self {
        let text = match why {
            End::Caller(text) => Some(*text),
            _ => loss,
        };
        Self {
            event: if loss.is_some() { "lost" } else { "released" },
            hold: Some(hold),
            reason: Some(why.reason()),
            message: text,
            errors: error.map(words::error_chain).into_iter().collect(),
            ..Self::default()
        }
    }
}
