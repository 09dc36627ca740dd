//! Which holds may exist side by side: the one matrix.

use super::request::{Mode, Want};
use crate::record::is_same_owner;

/// Whether a hold of `held` keeps `wanted` from being granted.
///
/// | wanted ↓ held → | exclusive, same name | shared, same name | exclusive, related | shared, related |
/// |---|---|---|---|---|
/// | exclusive | excludes | excludes | unless one owner | unless one owner |
/// | shared | excludes | – | unless one owner | – |
///
/// Two names are related if one is an ancestor of the other. How many shared holds there may be is
/// not decided here: the asker counts them.
pub(crate) fn excludes(
    held: &Want,
    holder: Option<&str>,
    wanted: &Want,
    asker: Option<&str>,
) -> bool {
    let both_shared = held.mode.is_shared() && wanted.mode.is_shared();
    if held.name == wanted.name {
        return !both_shared;
    }
    let is_related =
        held.name.is_ancestor_of(&wanted.name) || wanted.name.is_ancestor_of(&held.name);
    is_related && !both_shared && !is_same_owner(asker, holder)
}

impl Mode {
    pub(crate) fn is_shared(self) -> bool {
        matches!(self, Self::Shared { .. })
    }
}
