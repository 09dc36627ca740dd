//! What `acquire`, `run` and `hold` share: waits, questions and refusals.

pub(crate) mod acquiring;
pub(crate) mod malformed;
pub(crate) mod progress;
pub(crate) mod prompt;
