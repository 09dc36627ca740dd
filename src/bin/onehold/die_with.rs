//! `run --die-with`: the process that a run ends with. A thread waits for its end, and sends TERM to this process.

use std::sync::OnceLock;

use onehold::command_line::{command_line_of, signal, until_ended};
use onehold::record::ProcessId;

use crate::args::DieWith;
use crate::describe;
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

#[cfg(not(unix))]
pub(crate) fn find(_wanted: DieWith) -> anyhow::Result<ProcessId> {
    anyhow::bail!(crate::args::UsageError(
        "--die-with is not supported on this system".to_owned()
    ))
}

/// Sends TERM to this process once that process has exited.
pub(crate) fn terminate_with(process: ProcessId) -> anyhow::Result<()> {
    watch(process, |why| {
        let _ = HAS_EXITED.set(why);
        // Elsewhere none is found.
        #[cfg(unix)]
        signal::terminate_self();
    })
}

/// Calls `then` with the sentence about that process, in a thread, once it has exited.
#[cold]
#[inline(never)]
pub(crate) fn watch(
    process: ProcessId,
    then: impl FnOnce(String) + Send + 'static,
) -> anyhow::Result<()> {
    let command = command_line_of(process.pid);
    let name = describe::process(process.pid.get(), &command);
    in_thread("die-with", move || {
        until_ended(process);
        then(format!("its caller, {name}, has exited"));
    })
}

/// Starts a thread with all signals blocked: they are meant for the main thread.
pub(crate) fn in_thread(name: &str, run: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    let started = signal::without_signals(|| {
        let thread = std::thread::Builder::new().name(name.to_owned());
        thread.spawn(run).map(drop)
    });
    Ok(started??)
}
