//! Which keys a store has. `//` is in no prefix and in no name, so that stores may lie below each other and
//! no key can be read in two ways.
//!
//! | key | value | lease |
//! |---|---|---|
//! | `PREFIX//hold/NAME` | the record of the exclusive hold | none |
//! | `PREFIX//hold/NAME//SLOT` | the record of a shared one | none |
//! | `PREFIX//life/…` | `run NUMBER` or `lease NUMBER`: the hold is alive | its own |
//! | `PREFIX//wait/NAME//LEASE` | a ticket; once its waiter has the lock, the number of the hold | its own, or one of 5 s when its waiter is asked for; then that of the hold |
//! | `PREFIX//wait/NAME//+NUMBER-LEASE` | the ticket of a waiter whose first one, with this number, has ended | the same |
//! | `PREFIX//wait/NAME//!LEASE` | the ticket of a caller that takes by force, ahead of all waiters | its own |
//! | `PREFIX//keep/NAME//OWNER-WANTS` | a place that is kept, with digests of its owner and of what is wanted | its own, as long as that is kept |
//! | `PREFIX//past/GROUP/NAME//TIME-NONCE` | a line about a hold of the lock that has ended | none |
//! | `PREFIX//last/GROUP` | the last number of a lock of the group, 16 digits | none |
//! | `PREFIX//epoch` | the epoch of the server that wrote it | none |
//! | `PREFIX//epoch/pause` | nothing; no lock is taken until it has ended | its own |

use std::ops::Range;

use crate::decision::{Index, Key};
use crate::name::LockName;
use crate::record::{digest, named};

/// How many groups of names there are, by digest. The lines of the journal for a group of locks are bounded together; a
/// group of trees has its own last number.
pub(super) const GROUPS: u64 = 64;

/// The group of a name.
pub(super) fn group(name: &str) -> u64 {
    digest(name.as_bytes()) % GROUPS
}

/// The group of a lock with all above and below it: numbers of parent and child grow, too.
pub(super) fn group_of_tree(name: &LockName) -> u64 {
    group(top(name).as_str())
}

/// The first ancestor of a lock.
fn top(name: &LockName) -> LockName {
    let ancestors = name.ancestors();
    ancestors.into_iter().next().unwrap_or_else(|| name.clone())
}

/// The keys of one store.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
}

/// When it is the turn of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// After those that were created before it.
    Last,
    /// When it was that of the waiter's first one, which had this number and has ended.
    Again(i64),
    /// Of a caller that takes by force: at once.
    BeforeAll,
}

named! {
    /// What a key is of.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Part {
        Hold = "hold",
        Life = "life",
        /// Tickets.
        Wait = "wait",
        /// Places in the queue that are kept.
        Keep = "keep",
        /// Lines about holds that have ended.
        Past = "past",
    }
}

impl Part {
    /// What a hold has two of.
    pub(super) const BOTH: [Self; 2] = [Self::Hold, Self::Life];
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
        }
    }

    pub(super) fn of(&self, part: Part, key: &Key) -> String {
        let of_name = self.exclusive(part, &key.name);
        match key.index {
            None => of_name,
            Some(index) => format!("{of_name}//{}", index.number),
        }
    }

    /// The keys of a hold: of its record and of its life.
    pub(super) fn of_hold(&self, key: &Key) -> [String; 2] {
        Part::BOTH.map(|part| self.of(part, key))
    }

    pub(super) fn exclusive(&self, part: Part, name: &LockName) -> String {
        format!("{}//{}/{name}", self.prefix, part.name())
    }

    /// What a name has several of: shared holds, tickets, places that are kept.
    pub(super) fn several(&self, part: Part, name: &LockName) -> Range<String> {
        let of_name = self.exclusive(part, name);
        format!("{of_name}//")..format!("{of_name}/0")
    }

    /// What is of its descendants, and what it has several of itself: `0` follows `/`.
    pub(super) fn below(&self, part: Part, name: &LockName) -> Range<String> {
        let of_name = self.exclusive(part, name);
        format!("{of_name}/")..format!("{of_name}0")
    }

    /// The holds of its descendants alone.
    pub(super) fn descendants(&self, part: Part, name: &LockName) -> [Range<String>; 2] {
        let of_name = self.exclusive(part, name);
        [
            format!("{of_name}/")..format!("{of_name}//"),
            format!("{of_name}/0")..format!("{of_name}0"),
        ]
    }

    /// The key of the other kind of the same hold, or of a place between holds.
    pub(super) fn in_part(part: Part, key: &str) -> String {
        let (prefix, below) = key.split_once("//").unwrap_or_default();
        let (_, hold) = below.split_once('/').unwrap_or_default();
        format!("{prefix}//{}/{hold}", part.name())
    }

    pub(super) fn all(&self, part: Part) -> Range<String> {
        let (prefix, part) = (&self.prefix, part.name());
        format!("{prefix}//{part}/")..format!("{prefix}//{part}0")
    }

    /// All holds and tickets.
    pub(super) fn everything(&self) -> [Range<String>; 3] {
        [Part::Hold, Part::Life, Part::Wait].map(|part| self.all(part))
    }

    /// The tickets of all names with the same first part.
    pub(super) fn tree(&self, name: &LockName) -> Range<String> {
        self.below(Part::Wait, &top(name))
    }

    pub(super) fn ticket(&self, name: &LockName, lease: i64, turn: Turn) -> String {
        let tickets = self.several(Part::Wait, name).start;
        match turn {
            Turn::Last => format!("{tickets}{lease:016x}"),
            Turn::Again(number) => format!("{tickets}+{number:016x}-{lease:016x}"),
            Turn::BeforeAll => format!("{tickets}!{lease:016x}"),
        }
    }

    /// The tickets of a name that count before some which were created earlier: `!` and `+` come before all digits.
    pub(super) fn tickets_out_of_turn(&self, name: &LockName) -> Range<String> {
        let tickets = self.several(Part::Wait, name).start;
        format!("{tickets}!")..format!("{tickets}0")
    }

    /// The number of a ticket: the place in the queue. Who takes by force is ahead of all others.
    pub(super) fn number_of_ticket(key: &str, created: i64) -> u64 {
        const AFTER_FORCED: u64 = 1 << 62;
        let last = key.rsplit_once("//").map_or("", |(_, last)| last);
        if last.starts_with('!') {
            return created.cast_unsigned();
        }
        let place = last.strip_prefix('+').and_then(|last| last.get(..16));
        let place = place.and_then(|place| i64::from_str_radix(place, 16).ok());
        // The store may have been restored from a backup meanwhile.
        let first = place.map_or(created, |place| place.clamp(0, created));
        first.cast_unsigned() | AFTER_FORCED
    }

    /// The lease that a ticket was put with, unless its caller takes by force.
    pub(super) fn lease_of_ticket(key: &str) -> Option<i64> {
        let (_, last) = key.rsplit_once("//")?;
        let last = Some(last).filter(|last| !last.starts_with('!'))?;
        let lease = last.get(last.len().checked_sub(16)?..)?;
        let lease = u64::from_str_radix(lease, 16).ok()?;
        Some(lease.cast_signed())
    }

    /// The places that are kept for an owner.
    pub(super) fn kept_for(&self, name: &LockName, owner: &str) -> Range<String> {
        let all = self.several(Part::Keep, name).start;
        let owner = digest(owner.as_bytes());
        format!("{all}{owner:016x}-")..format!("{all}{owner:016x}.")
    }

    pub(super) fn epoch(&self) -> String {
        format!("{}//epoch", self.prefix)
    }

    pub(super) fn pause(&self) -> String {
        format!("{}/pause", self.epoch())
    }

    /// The two of the epoch.
    pub(super) fn epochs(&self) -> Range<String> {
        self.epoch()..format!("{}0", self.epoch())
    }

    pub(super) fn last(&self, name: &LockName) -> String {
        format!("{}//last/{:02x}", self.prefix, group_of_tree(name))
    }

    /// Which hold a key is of. `None`: it is none of a store's.
    pub(super) fn hold_of(&self, part: Part, key: &str) -> Option<Key> {
        let below = key.strip_prefix(&self.prefix)?.strip_prefix("//")?;
        let below = below.strip_prefix(part.name())?.strip_prefix('/')?;
        let (name, index) = match below.split_once("//") {
            None => (below, None),
            Some((name, index)) => {
                let index: Index = index.parse().ok()?;
                (name, Some(Some(index).filter(|index| index.asker == 0)?))
            }
        };
        let name = LockName::new(name).ok().filter(|name| !name.is_path())?;
        Some(Key { name, index })
    }

    /// Which name a ticket is for.
    pub(super) fn name_of_ticket(&self, key: &str) -> Option<LockName> {
        let below = key.strip_prefix(&self.prefix)?.strip_prefix("//wait/")?;
        let (name, _) = below.rsplit_once("//")?;
        LockName::new(name).ok().filter(|name| !name.is_path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> LockName {
        LockName::new(text).expect("a name")
    }

    #[test]
    fn ranges_contain_what_is_below_and_nothing_else() {
        let keys = Keys::new("/p");
        let below = keys.below(Part::Hold, &name("a/b"));
        let [before, after] = keys.descendants(Part::Hold, &name("a/b"));
        let shared = keys.several(Part::Hold, &name("a/b"));
        let exclusive = |text: &str| keys.exclusive(Part::Hold, &name(text));
        for child in ["a/b/c", "a/b/!", "a/b/c/d", "a/b/é", "a/b/0"] {
            let key = exclusive(child);
            assert!(below.contains(&key), "{child}");
            assert!(before.contains(&key) || after.contains(&key), "{child}");
            assert!(!shared.contains(&key), "{child}");
        }
        for other in ["a/b", "a/b0", "a/b!", "a/c", "a", "b"] {
            assert!(!below.contains(&exclusive(other)), "{other}");
        }
        let of = |text: &str, index: u32| Key {
            name: name(text),
            index: Some(index.into()),
        };
        let slot = keys.of(Part::Hold, &of("a/b", 7));
        assert!(below.contains(&slot) && shared.contains(&slot));
        assert!(!before.contains(&slot) && !after.contains(&slot));
        let slot_of_child = keys.of(Part::Hold, &of("a/b/c", 7));
        assert!(below.contains(&slot_of_child) && after.contains(&slot_of_child));
    }

    #[test]
    fn key_tells_its_hold() {
        let keys = Keys::new("/p");
        for (text, index) in [
            ("a", None),
            ("a/b", None),
            ("a/.shared/1", None),
            ("a/b", Some(3)),
        ] {
            let key = Key {
                name: name(text),
                index: index.map(Index::from),
            };
            let text = keys.of(Part::Life, &key);
            assert_eq!(keys.hold_of(Part::Life, &text), Some(key));
            assert_eq!(keys.hold_of(Part::Hold, &text), None);
        }
        for foreign in [
            "/p//hold/",
            "/p//hold/a/",
            "/p//hold/a//",
            "/p//hold/a//01",
            "/p//hold/a//1-0000000f",
            "/p//hold/a//1//2",
            "/p//hold/./x",
            "/p/hold/a",
            "/q//hold/a",
        ] {
            assert_eq!(keys.hold_of(Part::Hold, foreign), None, "{foreign}");
        }
        for turn in [Turn::Last, Turn::Again(0x2a), Turn::BeforeAll] {
            let ticket = keys.ticket(&name("a/b"), 0x7f, turn);
            assert_eq!(keys.name_of_ticket(&ticket), Some(name("a/b")));
            assert!(keys.tree(&name("a")).contains(&ticket));
            assert!(keys.tree(&name("a/x")).contains(&ticket));
            assert!(!keys.tree(&name("b")).contains(&ticket));
        }
    }

    #[test]
    fn ticket_that_is_drawn_again_keeps_its_number() {
        let keys = Keys::new("/p");
        let number = |key: &str, created| Keys::number_of_ticket(key, created);
        let first = keys.ticket(&name("a"), 0x7f, Turn::Last);
        let again = keys.ticket(&name("a"), i64::MAX, Turn::Again(42));
        let forced = keys.ticket(&name("a"), 0x7f, Turn::BeforeAll);
        assert_eq!(number(&again, 99), number(&first, 42));
        assert_eq!(number(&again, 7), number(&first, 7));
        assert!(number(&forced, 99) < number(&first, 1));
        for (ticket, is_out_of_turn) in [(&first, false), (&again, true), (&forced, true)] {
            let lease =
                (*ticket != forced).then_some(if *ticket == again { i64::MAX } else { 0x7f });
            assert_eq!(Keys::lease_of_ticket(ticket), lease);
            let range = keys.tickets_out_of_turn(&name("a"));
            assert_eq!(range.contains(ticket), is_out_of_turn, "{ticket}");
            assert!(keys.several(Part::Wait, &name("a")).contains(ticket));
        }
        for junk in [
            "+",
            "+x",
            "+-1",
            "+ffffffffffffffff-1",
            "+é2345678901234567",
        ] {
            assert_eq!(
                number(&format!("/p//wait/a//{junk}"), 42),
                number(&first, 42)
            );
        }
    }
}
