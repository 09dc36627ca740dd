//! Whole machines, which the tests start under qemu and end: power that is cut, suspended machines, two clients of one
//! NFS server, machines that are paused while others wait, old kernels, aarch64. Needs `qemu-system-x86_64`,
//! `debootstrap`, `mkfs.ext4` and root; for other kernels `cpio`, `curl` and Rust's library for musl, for aarch64
//! `qemu-system-aarch64` and `aarch64-linux-gnu-gcc`. The processor is emulated, so figures of time are no measure of
//! speed:
//! `cargo test --features etcd,postgres --test machines -- --ignored --test-threads 2`.
//!
//! `MACHINES_CUTS` says how often the power of each filesystem is cut (5), `MACHINES_SEED` when. `MACHINES_SHIPPED` is
//! where `.ci/package` builds: the program that is tested on other kernels is then the one that is shipped.
#![cfg(target_os = "linux")]
#![allow(missing_docs, unreachable_pub)]
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used
)]

#[path = "../harness/mod.rs"]
mod harness;

// Kernels of other releases, and another processor.
mod kernels;
// Two clients of one server.
mod nfs;
// What a filesystem keeps when the power is cut.
mod power;
// Machines that are suspended.
mod suspend;

/// The number that an environment variable says, if it is set.
fn number_in(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().expect("a number"))
}
