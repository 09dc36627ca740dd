//! What the shipped binary costs, in what can be counted exactly, and where its hot functions lie. Made by
//! `.ci/package`:
//!
//! `ONEHOLD_SHIPPED=target/shipped/x86_64-unknown-linux-musl/x86_64-unknown-linux-musl/release/onehold
//! cargo test --test shipped -- --ignored`
//!
//! It is stepped through instruction by instruction. Both processes stay on one processor meanwhile, or it
//! would take minutes.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(missing_docs)]
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used
)]

#[path = "../harness/mod.rs"]
mod harness;

mod budget;
mod growth;
mod hardening;
mod map;
mod order;
mod steps;
#[path = "../tracer/mod.rs"]
mod tracer;

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use harness::TestEnv;

fn shipped() -> PathBuf {
    let shipped = std::env::var("ONEHOLD_SHIPPED").expect("ONEHOLD_SHIPPED: the binary to measure");
    Path::new(env!("CARGO_MANIFEST_DIR")).join(shipped)
}

/// A copy of it, as the kernel has read it from the disk. How a file lies in memory that was just written is
/// another time another way, and moves the page faults by up to nine.
fn installed() -> &'static Path {
    static INSTALLED: OnceLock<PathBuf> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("onehold-installed");
        // Not by this process: what another thread forks would keep the copy open for writing.
        let _ = std::fs::remove_file(&copy);
        let copied = Command::new("cp").arg(shipped()).arg(&copy).status();
        assert!(copied.unwrap().success());
        let file = std::fs::File::open(&copy).unwrap();
        file.sync_all().unwrap();
        // SAFETY: only a hint about pages that are on the disk.
        let evicted =
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        assert_eq!(evicted, 0);
        copy
    })
}

/// The shipped binary with these words.
fn onehold(env: &TestEnv, words: &str) -> Command {
    let mut command = Command::new(installed());
    command.args(words.split(' '));
    in_environment(env, command)
}

/// The length of the environment has an effect on the cost. Nothing keeps the command from being started by
/// posix_spawn(3): a forked child would have the page faults of this process.
fn in_environment(env: &TestEnv, mut command: Command) -> Command {
    command
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", env.path(""))
        .env("ONEHOLD_DIR", env.store())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// A store that has been used. The lock `held` is a lease, `busy` is held by a `run`, `own` for this process, and
/// `left` was held by a `run --exec`, which has left its record.
fn used_store() -> (TestEnv, Held) {
    let env = TestEnv::new();
    let own = format!("acquire own --pid {}", std::process::id());
    for words in [
        "run x -- true",
        "run --exec left -- true",
        "acquire held --ttl 1h",
        &own,
    ] {
        assert!(onehold(&env, words).status().unwrap().success(), "{words}");
    }
    let mut run = onehold(&env, "run busy -- cat");
    let run = run.stdin(Stdio::piped()).spawn().unwrap();
    harness::wait_until("the lock is held", || {
        onehold(&env, "check -q busy").status().unwrap().code() == Some(6)
    });
    (env, Held(run))
}

/// A `run` that ends with its stdin.
struct Held(std::process::Child);

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
