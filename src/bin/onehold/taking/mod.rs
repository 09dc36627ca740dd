//! What `acquire`, `run` and `hold` share: waits, questions and refusals.

mod acquiring;
pub(crate) mod malformed;
mod progress;
mod prompt;

use onehold::{Lock, Status};

use crate::arguments::args::{HoldArgs, UsageError};
use crate::configuration::Session;
pub(crate) use acquiring::{basic_options, displaced_text, give_back_untold, wait_for_displaced};
pub(crate) use malformed::moved_text;
pub(crate) use prompt::{confirm, has_terminal, note_so_far, report_cancel};

/// What `acquire`, `run` or `hold` is to take.
#[derive(Clone, Copy)]
pub(crate) struct Taking<'a> {
    pub(crate) session: &'a Session,
    pub(crate) typed: &'a HoldArgs,
    pub(crate) lock: &'a Lock,
    /// Called as soon as the command has to wait, with what is in the way.
    pub(crate) on_wait: Option<&'a dyn Fn(&Status)>,
}

impl<'a> Taking<'a> {
    /// Refuses `-E 0` where the caller would take that for the lock, and to take by force what cannot be taken away.
    pub(crate) fn new(
        session: &'a Session,
        typed: &'a HoldArgs,
        lock: &'a Lock,
    ) -> Result<Self, UsageError> {
        let verb = session.verb;
        let text = match verb {
            "acquire" | "hold" if typed.conflict_exit_code == Some(0) => {
                let caller = if verb == "hold" { "program" } else { "script" };
                format!("{verb} -E 0: the {caller} would go on without the lock")
            }
            "run" | "hold" if typed.force && lock.format().is_kernel_lock() => {
                let (format, why) = (lock.format(), "a kernel lock cannot be taken away");
                format!("{format} format: --force is not supported: {why}")
            }
            _ => {
                return Ok(Self {
                    session,
                    typed,
                    lock,
                    on_wait: None,
                });
            }
        };
        Err(UsageError(text))
    }
}
