//! What is said of a hold that has ended against the will of its holder.

use onehold::Hold;

use crate::words;

/// "lock `x` was broken by process 77 on db2 while the command was running"
#[cold]
#[inline(never)]
pub(crate) fn broken_text(hold: &Hold, while_what: &str) -> String {
    let name = words::quoted(hold.info().name());
    let by = behind(" by ", hold.broken_by());
    format!("lock {name} was broken{by} while {while_what}")
}

/// "lost lock `x` while the command was running: its record is gone"
#[cold]
#[inline(never)]
pub(crate) fn loss_text(hold: &Hold, while_what: &str) -> String {
    let name = words::quoted(hold.info().name());
    let why = behind(": ", hold.why_lost());
    format!("lost lock {name} while {while_what}{why}")
}

fn behind(begin: &str, text: Option<String>) -> String {
    text.map_or_else(String::new, |text| {
        format!("{begin}{}", words::escape(&text))
    })
}
