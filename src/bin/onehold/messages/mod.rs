//! What a command comes to, and the sentences about locks.

pub(crate) mod describe;
pub(crate) mod exit;
pub(crate) mod outcome;

pub(crate) use describe::{
    describe_deadlock, describe_holder, describe_obstacle, describe_past_holder, describe_waits,
    is_held, is_run, list_state, local, local_with_date,
};
pub(crate) use exit::Exit;
pub(crate) use outcome::{CommandResult, Outcome, Printed, Refusal, displaced};
