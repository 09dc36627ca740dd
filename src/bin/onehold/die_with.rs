//! `run --die-with`: the process that a run ends with. A thread waits for its end, and sends TERM to this process.

use std::sync::OnceLock;

#[cfg(not(unix))]
use anyhow::bail;
use onehold::record::ProcessId;

use crate::args::DieWith;
use crate::outcome::Outcome;
use crate::refusal::Refusal;

/// The sentence about the process, once it has exited.
static HAS_EXITED: OnceLock<String> = OnceLock::new();

/// Why this process got TERM, if that was it.
pub(crate) fn has_exited() -> Option<&'static str> {
    HAS_EXITED.get().map(String::as_str)
}

/// A run whose process has exited before its command was started.
pub(crate) fn not_started(why: &str) -> Outcome {
    let text = format!("{why}; the command was not started");
    Outcome::refused(Refusal::CALLER_EXITED, text)
}

#[cfg(unix)]
#[cold]
#[inline(never)]
pub(crate) fn find(wanted: DieWith) -> anyhow::Result<ProcessId> {
    Ok(match wanted {
        DieWith::Pid(pid) => onehold::command_line::process(pid)?,
        DieWith::Parent => onehold::command_line::parent()?,
    })
}

/// Sends TERM to this process once that process has exited.
#[cfg(unix)]
#[cold]
#[inline(never)]
pub(crate) fn watch(process: ProcessId) -> anyhow::Result<()> {
    use onehold::command_line::{command_line_of, signal, until_ended};

    let command = command_line_of(process.pid);
    let name = crate::describe::process(process.pid.get(), &command);
    let wait = move || {
        until_ended(process);
        let _ = HAS_EXITED.set(format!("its caller, {name}, has exited"));
        signal::terminate_self();
    };
    // It must not take the signals that are meant for the main thread.
    let started = signal::without_signals(|| {
        let thread = std::thread::Builder::new().name("die-with".to_owned());
        thread.spawn(wait).map(drop)
    });
    Ok(started??)
}

#[cfg(not(unix))]
pub(crate) fn find(_wanted: DieWith) -> anyhow::Result<ProcessId> {
    bail!(crate::args::UsageError(
        "--die-with is not supported on this system".to_owned()
    ))
}

#[cfg(not(unix))]
#[allow(clippy::unnecessary_wraps, reason = "as where it can be watched")]
pub(crate) fn watch(_: ProcessId) -> anyhow::Result<()> {
    Ok(())
}
