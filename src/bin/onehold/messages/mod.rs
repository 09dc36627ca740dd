//! What a command comes to, and the sentences about locks.

pub(crate) mod describe;
pub(crate) mod exit;
pub(crate) mod outcome;

pub(crate) use exit::Exit;
pub(crate) use outcome::{CommandResult, Outcome, Printed, Refusal, displaced};
