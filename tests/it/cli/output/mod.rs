//! JSON, usage errors, color, closed pipes.

mod messages;
mod objects;
mod usage;
