//! The command-line tool `onehold`: parses the arguments, calls the library once, and turns the result
//! into messages and an exit code.

// See `startup`.
#![cfg_attr(all(target_os = "linux", not(test)), no_main)]
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

mod arguments;
mod commands;
mod configuration;
mod messages;
mod output;
mod startup;
mod supervising;
mod tables;
mod taking;
mod words;

use std::ffi::OsString;

#[cfg(any(test, not(target_os = "linux")))]
fn main() -> std::process::ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    std::process::ExitCode::from(run(&words))
}

fn run(words: &[OsString]) -> u8 {
    // Nothing else in this program uses SIGALRM. Without it, waits poll.
    onehold::signal::use_sigalrm();
    let exit = match arguments::parse::parse(words) {
        Ok(cli) => commands::run(cli),
        Err(exit) => exit,
    };
    exit.0
}
