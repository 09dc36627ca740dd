//! The command-line tool `onehold`: parses the arguments, calls the library once, and turns the result
//! into messages and an exit code.

// See `startup`.
#![cfg_attr(all(target_env = "musl", not(test)), no_main)]
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
mod die_with;
mod doc_text;
#[cfg(feature = "etcd")]
mod etcd;
mod exit;
mod failure;
#[cfg(all(feature = "etcd", target_os = "linux"))]
mod keeper;
mod malformed;
mod outcome;
mod output;
mod parse;
mod progress;
mod prometheus;
mod prompt;
mod refusal;
mod report;
mod rows;
mod screen;
mod session;
mod slip;
mod startup;
mod suggested;
mod supervise;
mod table;
mod trial;
mod watch;
mod words;
mod work;

use std::ffi::OsString;

#[cfg(any(test, not(target_env = "musl")))]
fn main() -> std::process::ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    std::process::ExitCode::from(run(&words))
}

fn run(words: &[OsString]) -> u8 {
    // Nothing else in this program uses SIGALRM. Without it, waits poll.
    onehold::signal::use_sigalrm();
    let exit = match parse::parse(words) {
        Ok(cli) => commands::run(cli),
        Err(exit) => exit,
    };
    exit.code()
}
