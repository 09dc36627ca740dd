//! The command line, from outside: one module per verb, and what concerns them all.
#![cfg(unix)]
#![allow(missing_docs, unreachable_pub)]
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod env;

// What the verbs do, and what they say.
mod acquire;
mod breaking;
mod check;
mod cleanup;
mod list;
mod release;
mod renew;
mod run;
mod sections;
// What the README recommends.
mod recipes;
// The files of other programs, and their profiles.
mod formats;
mod profiles;
// Signals, deaths and daemons under `run`.
mod supervision;
// What must not be believed, followed, replaced or removed.
mod bad_input;
// JSON, usage errors, colour, closed pipes.
mod output;
