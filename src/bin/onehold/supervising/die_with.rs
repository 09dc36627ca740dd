//! `--die-with`: the process that a `run` or a `hold` ends with. A thread waits for its end, and sends TERM to this process.

use std::sync::OnceLock;

use onehold::command_line::signal;
use onehold::status::ProcessId;

use crate::arguments::args::DieWith;
use crate::messages::{Outcome, Refusal, describe};

/// The sentence about the process, once it has exited.
static HAS_EXITED: OnceLock<String> = OnceLock::new();

/// Why this process got TERM, or gives up its wait, if that is it.
pub(crate) fn has_exited() -> Option<&'static str> {
    HAS_EXITED.get().map(String::as_str)
}

/// The outcome if the process has exited before the lock was in use.
pub(crate) fn not_started(verb: &str, why: &str) -> Outcome {
    let result = match verb {
        "run" => "; the command was not started",
        _ => "",
    };
    Outcome::refused(Refusal::CALLER_EXITED, format!("{why}{result}"))
}

pub(crate) fn find(wanted: Option<DieWith>) -> anyhow::Result<Option<ProcessId>> {
    match wanted {
        None | Some(DieWith::None) => Ok(None),
        #[cfg(unix)]
        Some(DieWith::Pid(pid)) => Ok(Some(ProcessId::running(pid)?)),
        #[cfg(unix)]
        Some(DieWith::Parent) => Ok(Some(ProcessId::parent()?)),
        #[cfg(not(unix))]
        Some(_) => {
            let text = "--die-with is not supported on this system";
            anyhow::bail!(crate::arguments::args::UsageError(text.to_owned()))
        }
    }
}

/// Sends TERM to this process once that process has exited.
pub(crate) fn terminate_with(process: ProcessId) -> anyhow::Result<()> {
    watch(process, |_| {
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
    then: impl FnOnce(&'static str) + Send + 'static,
) -> anyhow::Result<()> {
    let command = process.pid.command_line();
    let name = describe::process(process.pid.get(), &command);
    in_thread("die-with", move || {
        process.wait();
        then(HAS_EXITED.get_or_init(|| format!("its caller, {name}, has exited")));
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
