//! What exists only so that the program starts fast. An everyday call such as `run -- true` is over in less than
//! a millisecond, so what happens before the first line of its own counts.
//!
//! | part | what it saves | without it |
//! |---|---|---|
//! | `arguments/fast_parse.rs` | the start of clap, about as long as the rest of such a call | clap parses every line, with the same result; it still prints help and errors |
//! | `arguments/fixed_text.rs` | the same for `--version` and `--help` | clap prints them |
//! | `startup/entry.rs`, and `begin` of the library | 17 system calls and three pages of Rust's runtime | `main` as in `main.rs` |
//! | `Arena` of the library | in `run -- true`, 0.1 of the time of flock(1) | musl's allocator, which asks the system for each of its size classes |
//! | a fixed address: `.cargo/config.toml`, `src/build.rs` | 5,850 relocations: in `run -- true` 0.05 of the time of flock(1), in `check` 0.06 | the program starts at a random address, and corrects its own pointers first |
//! | `src/hot-functions.ld` | page faults: of `run -- true` 90 instead of 130, of `check` 26 instead of 70; 0.11 and 0.16 of the time of flock(1) | functions lie in any order |
//! | `static_unwinder` of `src/build.rs` | one of three libraries of the dynamic program | the loader loads it |
//!
//! The half of the library is `src/sys/linux/startup`, because it needs `unsafe` code.

#[cfg(all(target_os = "linux", not(test)))]
mod entry;
