//! What is known of a store as of one revision.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::keys::{Keys, Part};
use super::txn::{KeyValue, Read, ReadAnswer, TxnAnswer, only};
use crate::decision::Key;
use crate::format;
use crate::name::LockName;
use crate::record::{Content, MAX_RECORD_BYTES};

/// How many keys of a range are read with the first request, and with the next one.
const FIRST_PAGE: i64 = 100;
const PAGE: i64 = 500;

/// Where the content of a view comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Source {
    /// Nothing was read yet.
    #[default]
    Unread,
    /// Nothing was read: it is guessed that there is nothing. Good for nothing but a take, which fails if the
    /// guess is wrong.
    Guess,
    /// It was read, and some of it has been deleted since, as far as is known. Good for a take alone.
    News,
    /// It was read.
    Read,
}

/// Keys of a store as of one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct View {
    pub(super) source: Source,
    /// 0: none.
    pub(super) revision: i64,
    keys: BTreeMap<String, KeyValue>,
    /// The ranges of which everything is in `keys`.
    covered: Vec<Range<String>>,
    /// The names whose surroundings were asked for.
    pub(super) asked: Vec<LockName>,
    /// Records that are supposed to have been deleted, since their life keys were: given back, and not dead.
    /// A take says so of each, since one that is dead has not been judged.
    pub(super) supposed_gone: BTreeSet<String>,
    /// Keys that are not text, as they are shown. No key of a store is one of them.
    pub(super) no_text: BTreeSet<String>,
    /// How many keys are read at once.
    pub(super) page: i64,
}

impl View {
    pub(super) fn unread() -> Self {
        Self {
            page: PAGE,
            ..Self::default()
        }
    }

    /// That there is nothing.
    pub(super) fn guess() -> Self {
        Self {
            source: Source::Guess,
            ..Self::unread()
        }
    }

    /// That there is nothing, after a hold of these locks with this number.
    pub(super) fn guess_after<'a>(
        keys: &Keys,
        names: impl Iterator<Item = &'a LockName>,
        number: &[u8],
    ) -> Self {
        let mut view = Self::guess();
        let last = KeyValue {
            value: number.to_owned(),
            ..KeyValue::default()
        };
        view.keys
            .extend(names.map(|name| (keys.last(name), last.clone())));
        view
    }

    /// Whether it may be relied on only for what fails otherwise.
    pub(super) fn is_assumed(&self) -> bool {
        matches!(self.source, Source::Guess | Source::News)
    }

    /// What is read first says of which revision all of it is.
    pub(super) fn begin_at(&mut self, revision: i64) {
        if self.source == Source::Unread {
            self.source = Source::Read;
            self.revision = revision;
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<&KeyValue> {
        self.keys.get(key)
    }

    /// When a key was last written; 0: there is none.
    pub(super) fn modified(&self, key: &str) -> i64 {
        self.get(key).map_or(0, |found| found.mod_revision)
    }

    pub(super) fn range(
        &self,
        range: &Range<String>,
    ) -> impl Iterator<Item = (&String, &KeyValue)> + use<'_> {
        self.keys.range(range.clone())
    }

    /// The holds with a record in the one range or a life key in the other, by name and slot.
    pub(super) fn holds(&self, keys: &Keys, ranges: [Range<String>; 2]) -> Vec<Key> {
        let mut found = BTreeMap::new();
        for (part, range) in Part::BOTH.into_iter().zip(ranges) {
            let holds = self.range(&range).map(|(key, _)| keys.hold_of(part, key));
            for key in holds.flatten() {
                found.insert((key.name.as_str().to_owned(), key.slot()), key);
            }
        }
        found.into_values().collect()
    }

    /// The tickets in a range, each with its number.
    pub(super) fn tickets(
        &self,
        range: &Range<String>,
    ) -> impl Iterator<Item = (u64, &String, &KeyValue)> + use<'_> {
        self.range(range).map(|(key, found)| {
            let number = Keys::number_of_ticket(key, found.create_revision);
            (number, key, found)
        })
    }

    /// Supposes that the record of a hold went with its life key.
    pub(super) fn suppose_gone(&mut self, hold: String) {
        self.remove(&hold);
        self.supposed_gone.insert(hold);
    }

    /// Notes that a key has been deleted since.
    pub(super) fn remove(&mut self, key: &str) {
        if self.keys.remove(key).is_some() && self.source == Source::Read {
            self.source = Source::News;
        }
    }

    /// The first part of a range that is not known. `None`: everything in it is.
    pub(super) fn gap(&self, range: &Range<String>) -> Option<Range<String>> {
        if self.source == Source::Guess {
            return None;
        }
        let mut from = range.start.clone();
        while from < range.end {
            let covering = self.covered.iter().filter(|known| known.contains(&from));
            let Some(end) = covering.map(|known| &known.end).max() else {
                let next = self.covered.iter().map(|known| &known.start);
                let end = next.filter(|start| **start > from).min();
                let end = end.map_or(&range.end, |end| end.min(&range.end));
                return Some(from..end.clone());
            };
            from.clone_from(end);
        }
        None
    }

    /// Takes in what was read of a range. `false`: nothing of it, since all that was read is no text.
    pub(super) fn add(&mut self, read: Read, answer: ReadAnswer) -> bool {
        let mut last = None;
        for found in answer.kvs {
            let Ok(key) = String::from_utf8(found.key.clone()) else {
                let shown = String::from_utf8_lossy(&found.key);
                self.no_text.insert(shown.into_owned());
                continue;
            };
            last = Some(key.clone());
            // What was read with its value stays so.
            if !(read.keys_only && self.keys.contains_key(&key)) {
                self.keys.insert(key, found);
            }
        }
        let end = match last {
            _ if !answer.more => read.range.end,
            Some(last) => format!("{last}\0"),
            None => return false,
        };
        match self.covered.last_mut() {
            // Page after page.
            Some(last) if last.end == read.range.start => last.end = end,
            _ => self.covered.push(read.range.start..end),
        }
        true
    }

    /// Takes in the answer to a transaction whose last operations are the reads for `asked`.
    pub(super) fn add_answer(&mut self, keys: &Keys, asked: &[LockName], answer: TxnAnswer) {
        self.begin_at(answer.revision);
        let reads: Vec<Read> = reads(keys, asked).collect();
        let before = answer.answers.len().saturating_sub(reads.len());
        let answers = answer.answers.into_iter().skip(before);
        for (read, answer) in reads.into_iter().zip(answers) {
            let _ = self.add(read, answer);
        }
        self.asked.extend_from_slice(asked);
    }

    /// The view that such a transaction brought.
    pub(super) fn of_answer(keys: &Keys, asked: &[LockName], answer: TxnAnswer) -> Self {
        let mut view = Self::unread();
        view.add_answer(keys, asked, answer);
        view
    }
}

/// What matters to a request for a name: its own keys and tickets, and those of its relatives.
pub(super) fn area(keys: &Keys, name: &LockName, revision: i64) -> Vec<Read> {
    let read = |range, limit, keys_only| Read {
        limit,
        revision,
        keys_only,
        ..Read::all(range)
    };
    let mut reads = vec![
        read(only(&keys.exclusive(Part::Hold, name)), 0, false),
        read(only(&keys.exclusive(Part::Life, name)), 0, true),
        read(only(&keys.last(name)), 0, false),
        read(keys.tree(name), FIRST_PAGE, false),
        read(keys.below(Part::Hold, name), FIRST_PAGE, false),
        read(keys.below(Part::Life, name), FIRST_PAGE, true),
    ];
    for ancestor in name.ancestors() {
        reads.push(read(only(&keys.exclusive(Part::Hold, &ancestor)), 0, false));
        reads.push(read(only(&keys.exclusive(Part::Life, &ancestor)), 0, true));
        reads.push(read(keys.several(Part::Hold, &ancestor), FIRST_PAGE, false));
        reads.push(read(keys.several(Part::Life, &ancestor), FIRST_PAGE, true));
    }
    reads
}

/// The ranges of holds in it of which only the beginning is read.
pub(super) fn holds_beside(keys: &Keys, name: &LockName) -> impl Iterator<Item = Range<String>> {
    let tickets = keys.tree(name);
    let reads = area(keys, name, 0).into_iter();
    reads
        .filter(move |read| read.limit != 0 && read.range != tickets)
        .map(|read| read.range)
}

/// The reads for some names.
pub(super) fn reads(keys: &Keys, names: &[LockName]) -> impl Iterator<Item = Read> {
    names.iter().flat_map(|name| area(keys, name, 0))
}

/// What a value is.
pub(super) fn content(value: &[u8], is_alive: bool) -> Content {
    if value.len() as u64 > MAX_RECORD_BYTES {
        return Content::NotALock("its value is longer than any record");
    }
    match format::read_native(value) {
        Some(Content::Corrupt) | None if is_alive => Content::Corrupt,
        Some(Content::Corrupt) => Content::NotALock("its record cannot be read"),
        None => Content::NotALock("its value is no record of onehold"),
        Some(content) => content,
    }
}

/// Whether what a transaction has read has a record of this hold. `None`: one that cannot be read.
pub(super) fn shows_hold(answer: &TxnAnswer, number: Option<u64>) -> bool {
    answer
        .found()
        .flatten()
        .any(|found| hold_number(found) == number)
}

/// The number of the hold whose record this is. `None`: it cannot be read.
pub(super) fn hold_number(found: &KeyValue) -> Option<u64> {
    let content = content(&found.value, true);
    content.record().map(|record| record.hold)
}
