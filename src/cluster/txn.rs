//! The language between the backend and an engine: transactions, reads and watches, and the answers to them.
//!
//! A store has keys in order of their bytes. Each has a value, perhaps a lease, and the revisions by which it was
//! created and last written. A revision counts the changes of a store. Where a number says none, it is 0.

use std::ops::Range;

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum Relation {
    Equal,
    Greater,
    Less,
}

/// What of a key is compared. A key that is not there has 0 of each number, and no value: that compares with nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum Target {
    Created(i64),
    Modified(i64),
    Value(String),
    Lease(i64),
}

/// One condition of a [`Txn`]. It holds for each key of its range. An empty range is like a key that is not there.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Compare {
    /// Without an end it is one key.
    pub(super) range: Range<String>,
    pub(super) relation: Relation,
    pub(super) target: Target,
}

impl Compare {
    fn all(range: Range<String>, relation: Relation, target: Target) -> Self {
        Self {
            range,
            relation,
            target,
        }
    }

    fn one(key: &str, relation: Relation, target: Target) -> Self {
        Self::all(key.to_owned()..String::new(), relation, target)
    }

    /// There is no such key.
    pub(super) fn is_missing(key: &str) -> Self {
        Self::was_created_at(key, 0)
    }

    pub(super) fn was_created_at(key: &str, revision: i64) -> Self {
        Self::one(key, Relation::Equal, Target::Created(revision))
    }

    /// It was last written at this revision; 0: there is none.
    pub(super) fn was_modified_at(key: &str, revision: i64) -> Self {
        Self::one(key, Relation::Equal, Target::Modified(revision))
    }

    /// Nothing in a range has been written after this revision.
    pub(super) fn is_unwritten_since(range: Range<String>, revision: i64) -> Self {
        let later = Target::Modified(revision.saturating_add(1));
        Self::all(range, Relation::Less, later)
    }

    /// Nothing in a range has been created after this revision; 0: it is empty.
    pub(super) fn has_nothing_newer(range: Range<String>, revision: i64) -> Self {
        let later = Target::Created(revision.saturating_add(1));
        Self::all(range, Relation::Less, later)
    }

    /// There is something in a range, and nothing that was created before this revision.
    pub(super) fn has_nothing_older(range: Range<String>, revision: i64) -> Self {
        let earlier = Target::Created(revision.saturating_sub(1));
        Self::all(range, Relation::Greater, earlier)
    }

    /// It is there, and has this value.
    pub(super) fn has_value(key: &str, value: String) -> Self {
        Self::one(key, Relation::Equal, Target::Value(value))
    }

    /// It is there, and its value comes before this one.
    pub(super) fn is_below(key: &str, value: String) -> Self {
        Self::one(key, Relation::Less, Target::Value(value))
    }

    pub(super) fn has_lease(key: &str, lease: i64) -> Self {
        Self::one(key, Relation::Equal, Target::Lease(lease))
    }
}

/// What is to be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Read {
    pub(super) range: Range<String>,
    /// 0: no limit.
    pub(super) limit: i64,
    /// 0: the latest one.
    pub(super) revision: i64,
    pub(super) keys_only: bool,
}

impl Read {
    /// Everything in a range, as it is now.
    pub(super) fn all(range: Range<String>) -> Self {
        Self {
            range,
            ..Self::default()
        }
    }

    /// One key, as it is now.
    pub(super) fn one(key: &str) -> Self {
        Self::all(only(key))
    }
}

/// The key alone, as a range: no key has a control character.
pub(super) fn only(key: &str) -> Range<String> {
    key.to_owned()..format!("{key}\u{1}")
}

/// One operation of a [`Txn`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum Operation {
    Read(Read),
    /// The whole transaction is refused if there is no such lease.
    Put {
        key: String,
        #[serde(with = "text")]
        value: Vec<u8>,
        /// 0: none.
        lease: i64,
    },
    Delete(Range<String>),
}

/// A value as serde writes it. What is not text is not written.
mod text {
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &[u8], to: S) -> Result<S::Ok, S::Error> {
        let text = std::str::from_utf8(value).map_err(serde::ser::Error::custom)?;
        to.serialize_str(text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        String::deserialize(from).map(String::into_bytes)
    }
}

/// Operations that are done at once, if all conditions hold; else others are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Txn {
    pub(super) compare: Vec<Compare>,
    pub(super) success: Vec<Operation>,
    pub(super) failure: Vec<Operation>,
}

impl Txn {
    /// Only reads.
    pub(super) fn of_reads(reads: impl IntoIterator<Item = Read>) -> Self {
        Self {
            success: reads.into_iter().map(Operation::Read).collect(),
            ..Self::default()
        }
    }

    /// Adds a condition, once.
    pub(super) fn only_if(&mut self, compare: Compare) {
        if !self.compare.contains(&compare) {
            self.compare.push(compare);
        }
    }

    /// Writes a key. `lease`: 0 for none.
    pub(super) fn put(&mut self, key: &str, value: &[u8], lease: i64) {
        self.success.push(Operation::Put {
            key: key.to_owned(),
            value: value.to_owned(),
            lease,
        });
    }

    pub(super) fn delete(&mut self, key: &str) {
        self.success.push(Operation::Delete(only(key)));
    }

    /// Deletes a record that has not changed since, and whose life key is gone.
    pub(super) fn delete_dead(&mut self, hold: &str, life: &str, modified: i64) {
        self.only_if(Compare::was_modified_at(hold, modified));
        self.only_if(Compare::is_missing(life));
        self.delete(hold);
    }

    /// Reads a key if the conditions do not hold.
    pub(super) fn else_read(&mut self, key: &str) {
        self.failure.push(Operation::Read(Read::one(key)));
    }
}

/// A key and what it has. PostgreSQL tells it as an array, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
pub(super) struct KeyValue {
    #[serde(with = "text")]
    pub(super) key: Vec<u8>,
    #[serde(with = "text")]
    pub(super) value: Vec<u8>,
    pub(super) create_revision: i64,
    pub(super) mod_revision: i64,
    pub(super) lease: i64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct ReadAnswer {
    /// That of the store, by which it was read.
    pub(super) revision: i64,
    pub(super) kvs: Vec<KeyValue>,
    /// There was more than what was to be read at most.
    pub(super) more: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct TxnAnswer {
    /// That of the store after it: by which its keys were written.
    pub(super) revision: i64,
    pub(super) epoch: Epoch,
    pub(super) succeeded: bool,
    /// One for each operation that was done; an empty one for a write.
    pub(super) answers: Vec<ReadAnswer>,
}

impl TxnAnswer {
    /// The first key that each operation has found.
    pub(super) fn found(&self) -> impl Iterator<Item = Option<&KeyValue>> {
        self.answers.iter().map(|answer| answer.kvs.first())
    }

    /// Whether the first operation has found this.
    pub(super) fn shows_value(&self, value: &[u8]) -> bool {
        let found = self.found().next().flatten();
        found.is_some_and(|found| found.value == value)
    }
}

/// A lease as the server has granted it, or has kept it alive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    pub(super) id: i64,
    /// In seconds; 0 or less: it has ended.
    pub(super) ttl: i64,
    pub(super) epoch: Epoch,
}

/// Who has answered, for which server or cluster, and in which of the times between two changes of the server that
/// decides. What it is made of is the engine's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Epoch {
    member: usize,
    server: i64,
    term: i64,
}

impl Epoch {
    pub(super) fn new(member: usize, server: i64, term: i64) -> Self {
        Self {
            member,
            server,
            term,
        }
    }

    pub(super) fn is_of_server(self, other: Self) -> bool {
        self.server == other.server
    }

    /// Whether none has taken over in between, whichever members have answered.
    pub(super) fn is_of_term(self, other: Self) -> bool {
        self.term == other.term
    }

    pub(super) fn is_of_earlier_term(self, other: Self) -> bool {
        self.term < other.term
    }

    /// As it is kept in a store: without the member.
    pub(super) fn text(self) -> String {
        format!("{:016x} {:016x}", self.server, self.term)
    }

    pub(super) fn read(text: &[u8]) -> Option<Self> {
        let (server, term) = std::str::from_utf8(text).ok()?.split_once(' ')?;
        let number = |text| u64::from_str_radix(text, 16).ok().map(u64::cast_signed);
        Some(Self::new(0, number(server)?, number(term)?))
    }
}

/// What is to be watched, from now on. The caller reads what happened before.
#[derive(Clone, Debug)]
pub(super) enum Watch {
    Changes(Range<String>),
    /// And what was there before them.
    Deletions(Range<String>),
}

#[derive(Clone, Debug)]
pub(super) struct WatchAnswer {
    /// It has begun, and tells what happens after its revision.
    pub(super) has_begun: bool,
    pub(super) revision: i64,
    pub(super) events: Vec<Event>,
}

#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) key: String,
    /// By which it happened.
    pub(super) revision: i64,
    pub(super) is_deletion: bool,
    /// What was there before, if only deletions are watched for. `None`: that is not known any more.
    pub(super) before: Option<Vec<u8>>,
}
