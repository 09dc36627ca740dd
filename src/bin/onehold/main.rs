//! The command line of onehold: what is typed becomes one call of the library, and what came of it
//! words and an exit code.

// A test that cannot go on says so by panicking.
#![cfg_attr(
    test,
    allow(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod args;
mod ask;
mod cancel;
mod claiming;
mod commands;
mod describe;
mod exit;
mod manual;
mod output;
mod progress;
mod quick;
mod report;
mod session;
mod settings;
mod supervise;
mod typed;

use std::process::ExitCode;

/// With musl's own, `run -- true` costs 0.1 of flock(1) more.
#[cfg(target_env = "musl")]
#[global_allocator]
static MEMORY: onehold::memory::Arena = onehold::memory::Arena::new();

fn main() -> ExitCode {
    // Nothing else in this program uses it. If it cannot be had, waits look again instead.
    let _ = onehold::signal::use_sigalrm();
    let exit = match typed::parse() {
        Ok(cli) => commands::run(cli),
        Err(exit) => exit,
    };
    ExitCode::from(exit.code())
}
