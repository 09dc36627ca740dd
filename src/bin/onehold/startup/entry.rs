//! The beginning of the program on Linux, without Rust's runtime, and with an allocator of its own.

use std::ffi::{c_char, c_int};

use onehold::command_line::{Arena, begin};

#[global_allocator]
static MEMORY: Arena = Arena::new();

// SAFETY: the C library calls the only function of this name, once.
#[unsafe(no_mangle)]
extern "C" fn main(count: c_int, words: *const *const c_char) -> c_int {
    // SAFETY: these are the arguments of `main`.
    let words = unsafe { begin(count, words) };
    // What is printed is flushed where it is printed.
    crate::run(&words).into()
}
