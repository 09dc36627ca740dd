//! Random numbers, from the source that std uses for its hash tables.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A number below `limit` that cannot be predicted, to keep waiters from moving in step.
pub(crate) fn random_below(limit: u64) -> u64 {
    random_u64().checked_rem(limit).unwrap_or(0)
}

/// 64 random bits.
pub(crate) fn random_u64() -> u64 {
    RandomState::new().build_hasher().finish()
}
