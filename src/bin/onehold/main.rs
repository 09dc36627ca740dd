//! The command-line tool `onehold`: parses the arguments, calls the library once, and turns the result
//! into messages and an exit code.

// Tests may panic.
#![cfg_attr(
    test,
    allow(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod acquiring;
mod args;
mod cancel;
mod commands;
mod complete;
mod config;
mod describe;
mod doc_text;
mod exit;
mod fast_parse;
mod malformed;
mod outcome;
mod output;
mod parse;
mod progress;
mod prompt;
mod refusal;
mod report;
mod session;
mod slip;
mod suggested;
mod supervise;
mod table;
mod words;
mod work;

use std::process::ExitCode;

/// With musl's own allocator, `run -- true` takes longer by 0.1 of the time of flock(1).
#[cfg(target_env = "musl")]
#[global_allocator]
static MEMORY: onehold::command_line::Arena = onehold::command_line::Arena::new();

fn main() -> ExitCode {
    // Nothing else in this program uses SIGALRM. Without it, waits poll.
    let _ = onehold::signal::use_sigalrm();
    let exit = match parse::parse() {
        Ok(cli) => commands::run(cli),
        Err(exit) => exit,
    };
    ExitCode::from(exit.code())
}
