//! The command-line tool `onehold`: parses the arguments, calls the library once, and turns the result
//! into messages and an exit code.

// See `main`.
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
mod doc_text;
#[cfg(feature = "etcd")]
mod etcd;
mod exit;
mod failure;
mod fast_parse;
#[cfg(all(feature = "etcd", target_os = "linux"))]
mod keeper;
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

use std::ffi::OsString;

/// With musl's own allocator, `run -- true` takes longer by 0.1 of the time of flock(1).
#[cfg(target_env = "musl")]
#[global_allocator]
static MEMORY: onehold::command_line::Arena = onehold::command_line::Arena::new();

#[cfg(any(test, not(target_env = "musl")))]
fn main() -> std::process::ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    std::process::ExitCode::from(run(&words))
}

/// The static program begins without Rust's runtime.
// SAFETY: the C library calls the only function of this name, once.
#[cfg(all(target_env = "musl", not(test)))]
#[unsafe(no_mangle)]
extern "C" fn main(
    count: std::ffi::c_int,
    words: *const *const std::ffi::c_char,
) -> std::ffi::c_int {
    // SAFETY: these are the arguments of `main`.
    let words = unsafe { onehold::command_line::begin(count, words) };
    // What is printed is flushed where it is printed.
    run(&words).into()
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
