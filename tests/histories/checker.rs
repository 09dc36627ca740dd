//! Decides whether the steps of calls can have happened one after the other, each at a moment between its earliest and
//! its latest, as the sequential lock allows it: the search of Wing and Gong (1993) with the memory of Lowe (2017),
//! event by event, so that its cost grows with what is open at once and not with the history.
//!
//! stateright has a tester for linearizability, but it remembers no state that it has seen, gives each thread one
//! operation in flight, knows no moment at which a lease or a dead process must be gone, and recurses once for each call.

use std::collections::HashSet;
use std::fmt::Write;

use crate::history::Id;
use crate::lock::{Act, Locks, Takes};

/// What must be so when the time of a step is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// It has happened.
    Must,
    /// It has happened or never does.
    May,
    /// It has happened, unless that hold does not last, or not as that call said.
    IfItLasts(Id, Id),
}

/// A step, and when it happens.
#[derive(Clone, Debug)]
pub struct Step {
    pub call: Id,
    pub earliest: u64,
    pub latest: u64,
    pub need: Need,
    pub act: Act,
}

/// One way in which all may have happened so far.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Way {
    locks: Locks,
    /// Open steps that have happened, sorted.
    done: Vec<usize>,
}

impl Way {
    fn has_done(&self, step: usize) -> bool {
        self.done.binary_search(&step).is_ok()
    }

    /// It, and then this step, if that is open and possible.
    fn after(&self, step: usize, act: &Act, takes: &Takes) -> Option<Self> {
        if self.has_done(step) {
            return None;
        }
        let locks = self.locks.after(act, takes)?;
        let mut done = self.done.clone();
        done.insert(done.partition_point(|other| *other < step), step);
        Some(Self { locks, done })
    }

    /// It is closed: nobody asks any more whether it has happened.
    fn without(mut self, step: usize) -> Self {
        self.done.retain(|other| *other != step);
        self
    }
}

/// More than that would not be searched in a lifetime.
const MOST_WAYS: usize = 100_000;

/// How large the search was.
#[derive(Clone, Copy, Debug, Default)]
pub struct Effort {
    pub steps: usize,
    pub most_ways: usize,
}

/// `Err`: the step that cannot have happened in time, and what was open then.
pub fn judge(steps: &[Step], takes: &Takes) -> Result<Effort, String> {
    // At one moment, first what begins; then what ends, in the order of the steps.
    let mut events: Vec<(u64, bool, usize)> = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        if step.latest < step.earliest {
            return Err(format!("it would have to end before it begins: {step:?}"));
        }
        events.push((step.earliest, false, at));
        events.push((step.latest, true, at));
    }
    events.sort_unstable();
    let mut open: Vec<usize> = Vec::new();
    let mut ways = HashSet::from([Way {
        locks: Locks::default(),
        done: Vec::new(),
    }]);
    let mut effort = Effort {
        steps: steps.len(),
        most_ways: 1,
    };
    for (_, closes, at) in events {
        if !closes {
            open.push(at);
            continue;
        }
        let after = close(steps, takes, &open, &ways, at);
        if after.is_empty() {
            return Err(describe(steps, &open, &ways, at));
        }
        ways = after;
        open.retain(|other| *other != at);
        effort.most_ways = effort.most_ways.max(ways.len());
        if ways.len() > MOST_WAYS {
            return Err(format!("undecided: {}", describe(steps, &open, &ways, at)));
        }
    }
    Ok(effort)
}

/// The ways that are left once a step is over. What can still happen later need not have happened yet.
fn close(
    steps: &[Step],
    takes: &Takes,
    open: &[usize],
    ways: &HashSet<Way>,
    at: usize,
) -> HashSet<Way> {
    let after = |way: &Way, step: usize| way.after(step, &steps[step].act, takes);
    let mut left = HashSet::new();
    let mut seen: HashSet<Way> = ways.clone();
    let mut todo: Vec<Way> = ways.iter().cloned().collect();
    while let Some(way) = todo.pop() {
        if way.has_done(at) {
            left.insert(way.without(at));
            continue;
        }
        match steps[at].need {
            Need::Must => {}
            // Of the others, what makes it possible stays possible.
            Need::May => {
                if ways.contains(&way) {
                    left.insert(way.clone());
                }
            }
            Need::IfItLasts(hold, term) => {
                if !way.locks.lasts(hold, term) {
                    left.insert(way);
                    continue;
                }
            }
        }
        let closed = after(&way, at);
        let others = open.iter().filter(|other| **other != at);
        for before in others.filter_map(|other| after(&way, *other)) {
            if seen.insert(before.clone()) {
                todo.push(before);
            }
        }
        if let Some(closed) = closed
            && seen.insert(closed.clone())
        {
            todo.push(closed);
        }
    }
    let still_open = open.iter().filter(|other| **other != at);
    let mut reached: HashSet<Way> = HashSet::new();
    for way in &left {
        reached.extend(still_open.clone().filter_map(|other| after(way, *other)));
    }
    left.retain(|way| !reached.contains(way));
    left
}

fn describe(steps: &[Step], open: &[usize], ways: &HashSet<Way>, at: usize) -> String {
    let mut text = format!("it cannot have happened: {:?}", steps[at]);
    for other in open.iter().filter(|other| **other != at) {
        write!(text, "\n  beside {:?}", steps[*other]).unwrap();
    }
    for way in ways.iter().take(4) {
        let done: Vec<usize> = way.done.iter().map(|step| steps[*step].call).collect();
        write!(
            text,
            "\n  one way before: {:?}, steps done of calls {done:?}",
            way.locks
        )
        .unwrap();
    }
    text
}
