//! Tests that need no privileges and tools of their own, one module for each subject: as many as can run
//! side by side. The few that need root or a tool are ignored, and say so.
#![allow(missing_docs, unreachable_pub)]
#![cfg_attr(
    windows,
    allow(
        dead_code,
        unused_imports,
        reason = "tests with a shell or signals are left out"
    )
)]
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used
)]

#[path = "../harness/mod.rs"]
mod harness;

/// The definition of the command line. The exit codes of the binary, which [`docs`] includes, look for it here.
#[allow(dead_code, unused_imports, reason = "the binary uses the rest")]
#[path = "../../src/bin/onehold/arguments"]
mod arguments {
    pub mod args;
    pub mod doc_text;
    pub mod table;
    mod values;
}

// What is the same on every system.
mod api;
mod cli;
mod docs;
mod layers;
mod portable;
mod properties;

#[cfg(target_os = "linux")]
mod bad_places;
#[cfg(target_os = "linux")]
mod cycles;
#[cfg(target_os = "linux")]
mod ending;
#[cfg(unix)]
mod examples;
#[cfg(target_os = "linux")]
mod fcntl;
#[cfg(target_os = "linux")]
mod flock;
#[cfg(unix)]
mod foreign_programs;
#[cfg(target_os = "linux")]
mod four_systems;
#[cfg(unix)]
mod hand_over;
#[cfg(unix)]
mod history;
#[cfg(unix)]
mod hold_at_least;
#[cfg(unix)]
mod kept_places;
#[cfg(target_os = "linux")]
mod lock_programs;
#[cfg(target_os = "linux")]
mod provenance;
#[cfg(unix)]
mod queue;
#[cfg(unix)]
mod race;
#[cfg(target_os = "linux")]
mod shared_stores;
#[cfg(target_os = "linux")]
mod stores_of_others;
#[cfg(target_os = "linux")]
mod stress;
#[cfg(target_os = "linux")]
mod wait;
