//! What is said of a hold that has ended against the will of its holder.

use onehold::Hold;

use crate::words;

/// "lock `x` was broken by process 77 on db2 while the command was running"
#[cold]
#[inline(never)]
pub(crate) fn broken_text(hold: &Hold, while_what: &str) -> String {
    let name = words::quoted(hold.info().name());
    let by = hold
        .broken_by()
        .map(|by| format!(" by {}", words::escape(&by)));
    let by = by.unwrap_or_default();
    format!("lock {name} was broken{by} while {while_what}")
}

/// "lost lock `x` while the command was running: its record is gone"
#[cold]
#[inline(never)]
pub(crate) fn loss_text(hold: &Hold, while_what: &str) -> String {
    let name = words::quoted(hold.info().name());
    let why = hold
        .why_lost()
        .map(|why| format!(": {}", words::escape(&why)));
    let why = why.unwrap_or_default();
    format!("lost lock {name} while {while_what}{why}")
}
