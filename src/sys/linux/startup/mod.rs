//! How the static program starts fast: the half that needs `unsafe` code. `src/bin/onehold/startup/mod.rs` lists
//! all of it, with what each part saves.

mod arena;
mod entry;

pub use arena::Arena;
pub use entry::begin;
