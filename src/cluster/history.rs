//! The journal of a store: lines about holds that have ended, each written by the transaction that ends the hold.
//!
//! A line has a key for each lock that it is about, `PREFIX//past/GROUP/NAME//TIME-NONCE`. Each lock keeps its last
//! lines, and so does each group of locks, so that a store with ever new names does not grow. Who adds a line deletes
//! what it is too many with, in the same transaction, as far as it knows the keys: a take that is to leave a line reads
//! them, others read them before. Holds of a group that end without knowing of each other's lines know the same keys.
//! So each deletes a few of the surplus at random, and there are about twice as many more than these as such holds.
//!
//! Whoever may write to the store may have written the keys and the records that lines are made of. No change of a lock
//! fails for them: one that is refused is sent again without its lines.

use std::collections::BTreeSet;
use std::ops::Range;

use chrono::Utc;

use super::keys::{self, Keys, Part};
use super::store::{READ, Session};
use super::txn::{Operation, Read, ReadAnswer, Txn, only};
use super::view::View;
use crate::error::Result;
use crate::journal_line::{Line, PastHold};
use crate::name::LockName;
use crate::sys::random_u64;

/// How many lines a lock keeps, and how many those of a group keep together.
const OF_LOCK: usize = 50;
const OF_GROUP: usize = 100;

/// How many of the surplus of a group go at most for each new line, and how many if the group has more than `MANY`.
const OF_OTHERS: usize = 2;
const OF_OTHERS_OF_MANY: usize = 8;
const MANY: usize = 2 * OF_GROUP;

/// How many keys of a group are read at most.
const MOST: i64 = 1000;

/// In bytes: the longest line, and all lines of a transaction. etcd takes requests of 1.5 MiB.
const LONGEST_LINE: usize = 32 * 1024;
const LONGEST_LINES: usize = 512 * 1024;

/// In bytes. Prefix and name of a lock are shorter.
const LONGEST_KEY: usize = 2 * 1024;

/// By how much a clock may be ahead.
const DAY_US: u64 = 24 * 60 * 60 * 1_000_000;

/// The keys of the journal that are known, of some groups.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownLines(BTreeSet<String>);

/// The group of a lock.
fn group(store: &Keys, name: &str) -> Range<String> {
    let group = keys::group(name);
    let all = store.all(Part::Past).start;
    format!("{all}{group:02x}/")..format!("{all}{group:02x}0")
}

/// The lines of a lock.
fn of_lock(keys: &Keys, name: &str) -> Range<String> {
    let group = group(keys, name).start;
    format!("{group}{name}//")..format!("{group}{name}/0")
}

/// The time in a key. It counts on from the latest one of its group, so that keys are in order of arrival whatever the
/// clocks say. `None`: it is none that the program would write at this time.
fn time_of(key: &str, now_us: u64) -> Option<u64> {
    let time = key.rsplit_once("//").and_then(|(_, last)| last.get(..16));
    let time = u64::from_str_radix(time?, 16).ok()?;
    (time <= now_us.saturating_add(DAY_US)).then_some(time)
}

/// The locks that a line is about. A record may have other names than a lock can have.
fn names_of(line: &Line) -> impl Iterator<Item = &str> {
    let is_name = |name: &&str| LockName::new(name).is_ok_and(|name| !name.is_path());
    line.names().into_iter().filter(is_name)
}

/// Reads the keys of the groups of these locks.
pub(super) fn reads<'a>(keys: &Keys, names: impl Iterator<Item = &'a str>) -> Vec<Read> {
    let mut groups: Vec<Range<String>> = names.map(|name| group(keys, name)).collect();
    groups.sort_by(|one, other| one.start.cmp(&other.start));
    groups.dedup();
    let read = |group| Read {
        limit: MOST,
        keys_only: true,
        ..Read::all(group)
    };
    groups.into_iter().map(read).collect()
}

impl KnownLines {
    pub(super) fn of_answers<'a>(answers: impl Iterator<Item = &'a ReadAnswer>) -> Self {
        let found = answers.flat_map(|answer| &answer.kvs);
        let short = found.filter(|found| found.key.len() <= LONGEST_KEY);
        let keys = short.filter_map(|found| String::from_utf8(found.key.clone()).ok());
        Self(keys.collect())
    }

    /// Adds lines, and deletes what they are too many with. `limit`: of the operations of a transaction; what it has no
    /// room for is left out, because a change of a lock must not fail for it. All lines of a transaction are added at
    /// once: it writes no key twice, nor one that it deletes.
    pub(super) fn add(&mut self, txn: &mut Txn, keys: &Keys, lines: &[Line], limit: usize) {
        let now_us = u64::try_from(Utc::now().timestamp_micros()).unwrap_or(0);
        let mut room = LONGEST_LINES;
        let mut written = Vec::new();
        let mut names = Vec::new();
        for line in lines {
            let text = line.text().unwrap_or_default();
            if !(1..=LONGEST_LINE).contains(&text.len()) {
                continue;
            }
            for name in names_of(line) {
                let key = self.new_key(keys, name, now_us);
                let has_room = txn.success.len() < limit && key.len() <= LONGEST_KEY;
                if let Some(left) = room.checked_sub(text.len()).filter(|_| has_room) {
                    room = left;
                    txn.put(&key, &text, 0);
                    self.0.insert(key.clone());
                    written.push(key);
                    names.push(name);
                }
            }
        }
        for name in names {
            for surplus in self.surplus(keys, name, now_us) {
                let is_written = written.iter().any(|key| surplus.contains(key));
                if txn.success.len() < limit && !is_written {
                    self.forget(&surplus);
                    txn.success.push(Operation::Delete(surplus));
                }
            }
        }
    }

    fn new_key(&self, keys: &Keys, name: &str, now_us: u64) -> String {
        let known = self.0.range(group(keys, name));
        let latest = known.filter_map(|key| time_of(key, now_us)).max();
        let time = latest.map_or(now_us, |latest| now_us.max(latest.saturating_add(1)));
        let nonce = random_u64() & 0xffff_ffff;
        format!("{}{time:016x}-{nonce:08x}", of_lock(keys, name).start)
    }

    /// The oldest lines of a lock, and then some of the oldest ones of its group. Those without a time come first.
    fn surplus(&self, keys: &Keys, name: &str, now_us: u64) -> Vec<Range<String>> {
        let own: Vec<&String> = self.0.range(of_lock(keys, name)).collect();
        let too_many = own.len().saturating_sub(OF_LOCK);
        let mut oldest = own.clone();
        oldest.sort_by_key(|key| time_of(key, now_us));
        let gone: BTreeSet<&String> = oldest.into_iter().take(too_many).collect();
        let runs = own.chunk_by(|one, next| gone.contains(one) == gone.contains(next));
        let ends = runs.filter_map(|run| run.first().zip(run.last()));
        let mut surplus: Vec<Range<String>> = ends
            .filter(|(first, _)| gone.contains(**first))
            .map(|(first, last)| (*first).clone()..only(last).end)
            .take(OF_OTHERS_OF_MANY)
            .collect();
        let is_left = |key: &&String| surplus.iter().all(|gone| !gone.contains(*key));
        let mut group: Vec<&String> = self.0.range(group(keys, name)).filter(is_left).collect();
        let at_once = if group.len() > MANY {
            OF_OTHERS_OF_MANY
        } else {
            OF_OTHERS
        };
        group.sort_by_key(|key| time_of(key, now_us));
        group.truncate(group.len().saturating_sub(OF_GROUP));
        for _ in 0..at_once.min(group.len()) {
            let any = usize::try_from(random_u64() >> 33).unwrap_or(0);
            surplus.push(only(group.swap_remove(any % group.len())));
        }
        surplus
    }

    fn forget(&mut self, gone: &Range<String>) {
        let gone: Vec<String> = self.0.range(gone.clone()).cloned().collect();
        for key in gone {
            self.0.remove(&key);
        }
    }
}

impl Session<'_> {
    /// What is known of the groups of the locks that these lines are about. If it cannot be read now, nothing is, and
    /// nothing goes.
    pub(super) fn known_lines(self, lines: &[Line]) -> KnownLines {
        if lines.is_empty() {
            return KnownLines::default();
        }
        let names = lines.iter().flat_map(names_of);
        let read = Txn::of_reads(reads(&self.cluster.keys, names));
        let answer = self.txn(READ, &read);
        let answers = answer.map(|(answer, _)| answer.answers).unwrap_or_default();
        KnownLines::of_answers(answers.iter())
    }

    /// Adds lines to a transaction that ends their holds, which has none yet. `beside`: how many operations are to be added after them.
    pub(super) fn add_lines(
        self,
        txn: &mut Txn,
        known: &mut KnownLines,
        lines: &[Line],
        beside: usize,
    ) {
        let limit = self.engine().limits().operations.saturating_sub(beside);
        known.add(txn, &self.cluster.keys, lines, limit);
    }

    /// A transaction without what it does with the journal. `None`: it does nothing with it, or nothing else.
    pub(super) fn without_lines(self, txn: &Txn) -> Option<Txn> {
        let past = self.cluster.keys.all(Part::Past);
        let is_other = |operation: &Operation| {
            !past.contains(match operation {
                Operation::Read(read) => &read.range.start,
                Operation::Put { key, .. } => key,
                Operation::Delete(range) => &range.start,
            })
        };
        let mut other = txn.clone();
        other.success.retain(is_other);
        let has_lines = other.success.len() < txn.success.len();
        Some(other).filter(|other| has_lines && !other.success.is_empty())
    }

    /// Whether the journal has the end of this hold of a lock. If it cannot be read now, that is not known.
    pub(super) fn has_end(self, name: &LockName, hold: u64) -> bool {
        let lines = self.lines(Some(name)).unwrap_or_default();
        let end = |line: &Vec<u8>| serde_json::from_slice::<PastHold>(line).ok();
        lines.iter().filter_map(end).any(|end| end.hold == hold)
    }

    /// The lines of a lock, or of all, of each lock the oldest first.
    pub(super) fn lines(self, of: Option<&LockName>) -> Result<Vec<Vec<u8>>> {
        let keys = &self.cluster.keys;
        let range = of.map_or_else(|| keys.all(Part::Past), |name| of_lock(keys, name.as_str()));
        let mut view = View::unread();
        while let Some(gap) = view.gap(&range) {
            self.read_page(&mut view, gap)?;
        }
        let found = view.range(&range).map(|(_, found)| found.value.clone());
        Ok(found.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(names: &[&str]) -> Line {
        let end: PastHold = serde_json::from_value(serde_json::json!({
            "event": "end", "store": "etcd://h/p", "path": "p", "name": names[0], "names": names, "hold": 7,
            "command": ["x"], "asked_at": "2026-11-23T04:29:33Z", "acquired_at": "2026-11-23T04:29:33Z",
            "ended_at": "2026-11-23T04:29:33Z", "result": "released",
        }))
        .expect("a past hold");
        Line::End(Box::new(end))
    }

    /// What a store has, and the transactions that have written it.
    #[derive(Default)]
    struct Written(BTreeSet<String>);

    impl Written {
        /// Adds a line by who knows everything. How many operations that took.
        fn add(&mut self, keys: &Keys, name: &str) -> usize {
            let of_group = self.0.range(group(keys, name)).cloned();
            let mut known = KnownLines(of_group.collect());
            self.add_by(&mut known, keys, &[name])
        }

        fn add_by(&mut self, known: &mut KnownLines, keys: &Keys, names: &[&str]) -> usize {
            self.add_lines(known, keys, &[line(names)])
        }

        fn add_lines(&mut self, known: &mut KnownLines, keys: &Keys, lines: &[Line]) -> usize {
            let mut txn = Txn::default();
            known.add(&mut txn, keys, lines, 128);
            let mut put = BTreeSet::new();
            let mut deleted: Vec<Range<String>> = Vec::new();
            for operation in &txn.success {
                match operation {
                    Operation::Put { key, .. } => assert!(put.insert(key.clone())),
                    Operation::Delete(range) => deleted.push(range.clone()),
                    Operation::Read(_) => panic!("it reads nothing"),
                }
            }
            // etcd refuses a transaction that writes a key twice.
            assert!(
                put.iter()
                    .all(|key| deleted.iter().all(|gone| !gone.contains(key)))
            );
            let mut left = KnownLines(std::mem::take(&mut self.0));
            for gone in &deleted {
                left.forget(gone);
            }
            self.0 = left.0;
            self.0.extend(put);
            txn.success.len()
        }

        fn of_group(&self, keys: &Keys, name: &str) -> KnownLines {
            KnownLines(self.0.range(group(keys, name)).cloned().collect())
        }

        fn of(&self, keys: &Keys, name: &str) -> usize {
            self.0.range(of_lock(keys, name)).count()
        }
    }

    #[test]
    fn lock_and_group_keep_their_latest_lines() {
        let keys = Keys::new("/p");
        let mut written = Written::default();
        for _ in 0..3 * OF_LOCK {
            assert!(written.add(&keys, "a") <= 2);
        }
        assert_eq!(written.of(&keys, "a"), OF_LOCK);
        // Names that come once push out the oldest of their group alone.
        let mut names = (0..).map(|at| format!("job-{at}"));
        let is_beside = |name: &String| group(&keys, name) == group(&keys, "a");
        let other = names.find(|name| !is_beside(name)).expect("another group");
        written.add(&keys, &other);
        for name in names.filter(is_beside).take(2 * OF_GROUP) {
            written.add(&keys, &name);
            assert_eq!(written.of(&keys, &name), 1);
        }
        assert_eq!(written.of(&keys, "a"), 0);
        assert_eq!(written.of(&keys, &other), 1);
        let of_group = written.0.range(group(&keys, "a")).count();
        assert_eq!(of_group, OF_GROUP);
    }

    fn now_us() -> u64 {
        u64::try_from(Utc::now().timestamp_micros()).expect("after 1970")
    }

    /// Names of the group of this one.
    fn beside(keys: &Keys, name: &str) -> impl Iterator<Item = String> {
        let group_of_name = group(keys, name);
        let names = (0..).map(|at| format!("job-{at}"));
        names.filter(move |name| group(keys, name) == group_of_name)
    }

    #[test]
    fn clock_that_is_behind_does_not_make_a_line_the_oldest() {
        let keys = Keys::new("/p");
        let start = of_lock(&keys, "a").start;
        let ahead = now_us() + DAY_US / 2;
        let future = |at: u64| format!("{start}{:016x}-00000000", ahead + at);
        let mut written = Written((0..2 * OF_LOCK as u64).map(future).collect());
        written.add(&keys, "a");
        assert_eq!(written.of(&keys, "a"), OF_LOCK);
        let latest = written.0.iter().next_back().expect("a line");
        assert!(*latest > future(2 * OF_LOCK as u64 - 1));
    }

    #[test]
    fn keys_that_no_clock_has_made_go_first_and_stop_no_other() {
        let keys = Keys::new("/p");
        let start = of_lock(&keys, "a").start;
        let last = |at: usize| format!("{start}{:016x}-{:08x}", u64::MAX, at << 20);
        let none = |at: usize| format!("{start}!{at}");
        let planted: Vec<String> = (0..2 * OF_LOCK)
            .flat_map(|at| [last(at), none(at)])
            .collect();
        let mut written = Written(planted.iter().cloned().collect());
        let other = beside(&keys, "a").next().expect("a name");
        let [mut time, mut time_of_other] = [0, 0];
        for _ in 0..2 * OF_LOCK {
            let before = now_us();
            let known = written.of_group(&keys, "a");
            for (name, latest) in [("a", &mut time), (&other, &mut time_of_other)] {
                let key = known.new_key(&keys, name, now_us());
                let this = time_of(&key, now_us()).expect("a time");
                assert!(this > *latest && (before..before + 60_000_000).contains(&this));
                *latest = this;
            }
            written.add(&keys, "a");
        }
        assert_eq!(written.of(&keys, "a"), OF_LOCK);
        assert!(planted.iter().all(|key| !written.0.contains(key)));
    }

    #[test]
    fn lines_of_a_transaction_do_not_delete_each_other() {
        let keys = Keys::new("/p");
        let start = of_lock(&keys, "a").start;
        let key = |time: u64, at: usize| format!("{start}{time:016x}-{at:08x}");
        let (now, late) = (now_us(), now_us() + DAY_US / 2);
        for times in [[0, 1], [now, u64::MAX], [late, u64::MAX], [0, late]] {
            let planted = (0..2 * OF_LOCK).map(|at| key(times[at % 2], at));
            let mut written = Written(planted.collect());
            let before = written.0.clone();
            let mut known = KnownLines(written.0.clone());
            let both = [line(&["a"]), line(&["a", "b"])];
            written.add_lines(&mut known, &keys, &both);
            assert_eq!(written.0.difference(&before).count(), 3, "{times:?}");
        }
    }

    #[test]
    fn names_and_lines_that_no_program_writes_are_left_out() {
        let keys = Keys::new("/p");
        let long = "x".repeat(2_000);
        let names = [
            "a",
            "a\0",
            "",
            "a//b",
            "./a",
            "/a",
            "a/../b",
            long.as_str(),
            "c",
        ];
        let mut written = Written::default();
        written.add_by(&mut KnownLines::default(), &keys, &names);
        assert_eq!(written.0.len(), 2);
        assert_eq!([written.of(&keys, "a"), written.of(&keys, "c")], [1, 1]);
        let reads = reads(&keys, names_of(&line(&names))).len();
        assert_eq!(reads, 2);
        let mut large = line(&["a"]);
        if let Line::End(end) = &mut large {
            end.command = vec!["x".repeat(LONGEST_LINE)];
        }
        let mut known = KnownLines::default();
        assert_eq!(written.add_lines(&mut known, &keys, &[large]), 0);
        let mut half = line(&["a", "b", "c"]);
        if let Line::End(end) = &mut half {
            end.command = vec!["x".repeat(LONGEST_LINE / 2)];
        }
        let many = vec![half; 20];
        let count = written.add_lines(&mut known, &keys, &many);
        assert!((28..=32).contains(&count), "{count}");
        let planted = format!("{}{}", of_lock(&keys, "a").start, "y".repeat(LONGEST_KEY));
        let found = [planted, of_lock(&keys, "a").start].map(|key| crate::cluster::txn::KeyValue {
            key: key.into_bytes(),
            ..Default::default()
        });
        let answer = ReadAnswer {
            kvs: found.into(),
            ..ReadAnswer::default()
        };
        let known = KnownLines::of_answers(std::iter::once(&answer));
        assert_eq!(known.0.len(), 1);
    }

    #[test]
    fn holds_of_ever_new_names_that_overlap_do_not_let_a_store_grow() {
        const TOGETHER: usize = 40;
        let keys = Keys::new("/p");
        let mut names = beside(&keys, "a");
        let mut written = Written::default();
        let mut most = 0;
        for _ in 0..60 {
            // All of them begin before one ends.
            let known = written.of_group(&keys, "a");
            let latest: Vec<String> = names.by_ref().take(TOGETHER).collect();
            for name in &latest {
                written.add_by(&mut known.clone(), &keys, &[name]);
            }
            // None of the latest lines goes.
            assert!(latest.iter().all(|name| written.of(&keys, name) == 1));
            most = most.max(written.0.len());
        }
        assert!(most < OF_GROUP + 4 * TOGETHER, "{most} keys");
        // Alone again, they are soon as many as they should be.
        for name in names.take(2 * TOGETHER) {
            written.add(&keys, &name);
        }
        assert!(written.0.len() <= OF_GROUP + TOGETHER);
    }

    #[test]
    fn holds_that_end_without_knowing_of_each_other_leave_few_more_and_not_for_long() {
        let keys = Keys::new("/p");
        let mut written = Written::default();
        for _ in 0..2 * OF_LOCK {
            written.add(&keys, "a");
        }
        let known = KnownLines(written.0.clone());
        for _ in 0..8 {
            written.add_by(&mut known.clone(), &keys, &["a"]);
        }
        assert_eq!(written.of(&keys, "a"), OF_LOCK + 7);
        written.add(&keys, "a");
        assert_eq!(written.of(&keys, "a"), OF_LOCK);
    }

    #[test]
    fn line_of_many_names_fits_a_transaction() {
        let keys = Keys::new("/p");
        let names: Vec<String> = (0..64).map(|at| format!("name-{at}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut written = Written::default();
        for _ in 0..2 * OF_LOCK {
            let mut known = KnownLines(written.0.clone());
            assert!(written.add_by(&mut known, &keys, &names) <= 128);
        }
        assert!(names.iter().all(|name| written.of(&keys, name) > 0));
    }

    #[test]
    fn lines_of_a_lock_are_in_its_range_alone() {
        let keys = Keys::new("/p");
        let known = KnownLines::default();
        let key = known.new_key(&keys, "a/b", now_us());
        assert!(of_lock(&keys, "a/b").contains(&key) && group(&keys, "a/b").contains(&key));
        for other in ["a", "a/b/c", "a/b0", "a/"] {
            assert!(!of_lock(&keys, other).contains(&key), "{other}");
        }
        let other_store = Keys::new("/p/q");
        assert!(
            !other_store
                .all(Part::Past)
                .contains(&known.new_key(&keys, "q", now_us()))
        );
    }
}
