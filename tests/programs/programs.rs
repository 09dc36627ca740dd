//! What tests run as commands. The first word says which program it is; a copy that is called `cat` is that
//! one, for systems that have none by that name.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::exit,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used
)]

#[cfg(target_os = "linux")]
mod at_work;
mod common;
#[cfg(target_os = "linux")]
mod ending;
#[cfg(target_os = "linux")]
mod fcntl_lock;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod flawed_filesystem;
#[cfg(target_os = "linux")]
mod linking;
mod portable;
#[path = "../harness/seen.rs"]
mod seen;
#[cfg(target_os = "linux")]
mod stress;
#[cfg(target_os = "linux")]
mod witnessed;

use std::env;

fn main() {
    let own = env::current_exe().unwrap();
    let mut words: Vec<String> = env::args().skip(1).collect();
    if common::do_as(own.file_stem().unwrap().to_str().unwrap(), &words) {
        return;
    }
    let program = words.remove(0);
    match program.as_str() {
        "task" => portable::task(&words),
        #[cfg(target_os = "linux")]
        "critical-section" => stress::critical_section(&words),
        #[cfg(target_os = "linux")]
        "next-holder" => ending::next_holder(&words),
        #[cfg(target_os = "linux")]
        "contender" => ending::contender(),
        #[cfg(target_os = "linux")]
        "fcntl-lock" => fcntl_lock::obey(&words),
        #[cfg(target_os = "linux")]
        "forks" => ending::forks(&words),
        #[cfg(target_os = "linux")]
        "link-again-and-again" => linking::link_again_and_again(&words),
        #[cfg(target_os = "linux")]
        "nest" => linking::nest(&words),
        #[cfg(target_os = "linux")]
        "at-work" => at_work::section(&words),
        #[cfg(target_os = "linux")]
        "witnessed" => witnessed::section(&words),
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        "flawed-filesystem" => flawed_filesystem::serve(&words[0], &words[1]),
        _ => panic!("{program} is not known here"),
    }
}
