//! Whose a store is, what others may do there, and how its path leads to it.

use super::STRANGER;

/// Whose a store is, and what others may do there.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    pub(super) mode: u32,
    pub(super) owner: u32,
    /// Of the directories in it, whose mode is the same.
    pub(super) owner_of_directories: u32,
    pub(super) path: Leads,
    pub(super) content: Content,
}

/// How the path of a store leads to it. All but the first lead through a link of the stranger to a directory of root's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leads {
    Straight,
    /// The link is in place of the store.
    ByLink,
    /// In place of its parent.
    ByParent,
    /// Behind a link of root's.
    ByTwoLinks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Every kind of file.
    Full,
    Empty,
    /// It is the default one in a home of the stranger, and does not exist yet.
    Missing,
}

impl Kept {
    /// The stranger may read it, and change nothing there.
    pub const fn is_roots_own(self) -> bool {
        self.owner == 0 && self.mode & 0o022 == 0
    }
}

pub(super) const fn kept(mode: u32, owner: u32) -> Kept {
    Kept {
        mode,
        owner,
        owner_of_directories: STRANGER,
        path: Leads::Straight,
        content: Content::Full,
    }
}

const fn led(path: Leads) -> Kept {
    Kept {
        path,
        ..kept(0o755, STRANGER)
    }
}

const fn first_used_by_root(mode: u32, content: Content) -> Kept {
    Kept {
        content,
        ..kept(mode, STRANGER)
    }
}

pub const STORES: [Kept; 14] = [
    kept(0o1777, 0),
    Kept {
        owner_of_directories: 0,
        ..kept(0o1777, 0)
    },
    kept(0o1777, STRANGER),
    kept(0o777, 0),
    kept(0o2777, STRANGER),
    kept(0o755, STRANGER),
    kept(0o700, STRANGER),
    led(Leads::ByLink),
    led(Leads::ByParent),
    led(Leads::ByTwoLinks),
    first_used_by_root(0o700, Content::Empty),
    first_used_by_root(0o755, Content::Empty),
    first_used_by_root(0o755, Content::Missing),
    Kept {
        owner_of_directories: 0,
        ..kept(0o755, 0)
    },
];
