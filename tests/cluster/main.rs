//! Locks of many machines, on real servers of etcd and PostgreSQL that the tests start on loopback and end. Needs
//! `etcd` and `etcdctl` (3.4 or later), PostgreSQL (12 or later), pgbouncer, openssl, curl and a C compiler. Most tests
//! wait: `cargo test --features etcd,postgres --test cluster -- --test-threads 16`.
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

mod cluster;
// Functions that are played on each engine.
mod scene;
// Servers of PostgreSQL.
mod postgres;
// Hosts of their own, for clusters that are not on loopback.
mod network;
// Sections that say to their last breath that they run.
mod at_rest;
mod at_work;
// Between onehold and a member: counts requests, loses answers, is cut.
mod proxy;

// The same steps on files and on etcd.
mod verbs;
mod watch;
// Wrapper, keeper and command, killed and stopped.
mod keeper;
// Members, networks and leases that fail.
mod failures;
// Holders that are dead.
mod dead;
// Why a lock was lost.
mod lost;
// What is kept of holds that have ended.
mod history;
// Servers that come back with less than they had.
mod epochs;
// Networks that fall apart.
mod partitions;
// Whole machines, under qemu.
mod machines;
// Clocks that are set, and machines that are suspended.
mod clocks;
// Holds of programs, and what doctor says.
mod doctor;
mod hold;
mod hold_at_least;
// Waiters that are cut off, and come again.
mod kept_places;
// Requests.
mod costs;
// Waiters.
mod cycles;
mod queue;
// Of PostgreSQL alone.
mod on_postgres;
mod postgres_failures;
// The first hour, by the pages.
mod first_hour;
// Users, roles and certificates.
mod access;
mod sign_in;
// What others have put below the prefix.
mod input;
// A program that embeds onehold.
mod library;
