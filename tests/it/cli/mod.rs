//! Tests of the command line.

mod env;

// One module for each command, and one for parents and children.
mod acquire;
mod break_lock;
#[cfg(target_os = "linux")]
mod callers;
mod check;
mod cleanup;
#[cfg(target_os = "linux")]
mod completions;
mod config;
#[cfg(unix)]
mod doctor;
mod hierarchy;
mod list;
mod prometheus;
mod release;
mod renew;
mod run;
// Locks that several hold, and holds of several locks.
mod shared;
// Recipes of the README.
#[cfg(unix)]
mod recipes;
// Lock files and profiles of other programs.
mod formats;
mod malformed;
mod profiles;
#[cfg(unix)]
mod project;
// What an operator sees before a break.
#[cfg(unix)]
mod operator;
// Signals, killed processes and daemons under `run`.
#[cfg(target_os = "linux")]
mod die_with;
// Locks that are held for programs.
#[cfg(target_os = "linux")]
mod hold;
#[cfg(target_os = "linux")]
mod serve;
#[cfg(unix)]
mod supervision;
// The same on a terminal, and what a command inherits.
#[cfg(unix)]
mod terminal;
// The table that is drawn again and again.
#[cfg(target_os = "linux")]
mod watch;
// Invalid lock files, stores and environments.
mod bad_input;
// JSON, usage errors, color, closed pipes.
#[cfg(target_os = "linux")]
mod json;
mod output;
// Hints for lines that do not parse.
#[cfg(unix)]
mod slips;
