//! Critical sections as they were seen, and a checker that looks for two at once.

use std::collections::HashMap;

/// One critical section: which lock was held, by which hold, from when to when.
#[derive(Clone, Debug)]
pub struct Interval {
    pub name: String,
    /// The `--owner` label, if the holder had one.
    pub owner: Option<String>,
    /// The slot of a shared hold, and how many it wanted to be at most.
    pub shared: Option<Slot>,
    pub hold: u64,
    pub from: u64,
    /// If the holder was killed, the last moment at which it certainly still held.
    pub to: u64,
}

/// A slot of a shared hold.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    pub number: u32,
    /// `None`: any number of holders.
    pub at_most: Option<usize>,
}

impl Interval {
    /// Whether the two must not overlap: holds of one name never, unless they share it in two slots, and
    /// those of a parent and a child only if both have the same owner or are shared.
    pub fn excludes(&self, other: &Self) -> bool {
        if self.hold == other.hold {
            return false;
        }
        if let (Some(one), Some(two)) = (self.shared, other.shared) {
            return self.name == other.name && one.number == two.number;
        }
        let same_owner = self.owner.is_some() && self.owner == other.owner;
        self.name == other.name
            || (!same_owner && (covers(&self.name, &other.name) || covers(&other.name, &self.name)))
    }
}

/// Whether `name` is the same lock as `ancestor`, or below it.
pub fn covers(ancestor: &str, name: &str) -> bool {
    name.strip_prefix(ancestor)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// All pairs that overlap for longer than `error`. The intervals have to be sorted by `from`.
pub fn overlapping(
    intervals: &[Interval],
    error: u64,
) -> impl Iterator<Item = (&Interval, &Interval)> {
    intervals.iter().enumerate().flat_map(move |(at, one)| {
        intervals[at + 1..]
            .iter()
            .take_while(move |other| other.from.saturating_add(error) < one.to)
            .map(move |other| (one, other))
    })
}

/// Overlaps of holds that exclude each other, and hold numbers that do not grow.
pub fn violations(intervals: &mut [Interval]) -> Vec<String> {
    violations_by_clock(intervals, 0)
}

/// The same by a clock that was set by at most `error` nanoseconds between the first and the last of them.
pub fn violations_by_clock(intervals: &mut [Interval], error: u64) -> Vec<String> {
    intervals.sort_by_key(|interval| interval.from);
    let mut found: Vec<String> = overlapping(intervals, error)
        .filter(|(one, other)| one.excludes(other))
        .map(|(one, other)| format!("at the same time: {one:?} and {other:?}"))
        .collect();
    let mut last: HashMap<&str, &Interval> = HashMap::new();
    for interval in intervals
        .iter()
        .filter(|interval| interval.shared.is_none())
    {
        if let Some(before) = last.insert(&interval.name, interval)
            && interval.hold <= before.hold
            && interval.from - before.from >= error
        {
            let before = before.hold;
            found.push(format!("hold number {before} was followed by {interval:?}"));
        }
    }
    found.extend(
        intervals
            .iter()
            .filter_map(|interval| too_many(interval, intervals)),
    );
    found
}

/// Whether more shared the lock, when this one began, than it allowed.
fn too_many(interval: &Interval, all: &[Interval]) -> Option<String> {
    let at_most = interval.shared?.at_most?;
    let beside = all.iter().filter(|other| {
        other.name == interval.name
            && other.hold != interval.hold
            && (other.from..other.to).contains(&interval.from)
            // One that began later has counted this one.
            && other.hold < interval.hold
    });
    let beside = beside.count();
    (beside >= at_most).then(|| format!("{beside} others beside {interval:?}"))
}
