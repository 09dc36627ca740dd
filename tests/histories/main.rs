//! Recorded histories of locks, and a verdict on each: five clients call every verb at random, while their processes get
//! signals and servers fail. Each call, its return and what it said is noted outside of the store, and each section
//! notes when it ran. `steps` says what that means, `checker` whether locks can have such a history, `planted` that it
//! refuses those that they cannot have. `agreement` compares exit codes, JSON and `history` with what is known.
//!
//! Thirty seconds for each store, or `ONEHOLD_HISTORY_SECONDS`; the same choices again with `ONEHOLD_HISTORY_SEED`. A
//! history that is refused is written to a file, which `ONEHOLD_HISTORY_FILE` and `-- --ignored judge_a_file` judge
//! again.
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

mod history;
// The sequential object, the search, and what calls mean for it.
mod checker;
mod lock;
mod steps;
// What must be refused and accepted.
mod planted;
// What clients ask for, what is asked of the program, and what it said.
mod answer;
mod client;
mod plan;
// Signals to the processes of calls.
mod signals;
// Exit codes, JSON and `history`.
mod agreement;
mod driver;
// On other filesystems.
mod places;

// The same on servers; some of what the tests of servers share.
#[cfg(all(feature = "etcd", feature = "postgres"))]
#[allow(dead_code)]
#[path = "../cluster/cluster.rs"]
mod cluster;
#[cfg(all(feature = "etcd", feature = "postgres"))]
#[allow(dead_code)]
#[path = "../cluster/network.rs"]
mod network;
#[cfg(all(feature = "etcd", feature = "postgres"))]
#[allow(dead_code)]
#[path = "../cluster/postgres.rs"]
mod postgres;
#[cfg(all(feature = "etcd", feature = "postgres"))]
#[allow(dead_code)]
#[path = "../cluster/proxy.rs"]
mod proxy;
#[cfg(all(feature = "etcd", feature = "postgres"))]
#[allow(dead_code, unused_macros, unused_imports)]
#[path = "../cluster/scene.rs"]
mod scene;
#[cfg(all(feature = "etcd", feature = "postgres"))]
mod servers;
