//! What clients did, and what they were told: recorded outside of the store, by one monotonic clock in nanoseconds.

use serde::{Deserialize, Serialize};

/// The number of a call. Each call that takes a lock says it in its message, so that others name it.
pub type Id = usize;

pub const MILLISECOND: u64 = 1_000_000;
pub const SECOND: u64 = 1_000 * MILLISECOND;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    Exclusive,
    Shared,
    /// At most so many at once.
    Slots(usize),
}

/// What is asked for by a call that takes locks: all of the names, or none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Take {
    pub names: Vec<String>,
    pub mode: Mode,
    pub owner: Option<String>,
    /// From a live holder, too.
    pub by_force: bool,
    /// As long as it waits, others may be refused for it. In nanoseconds.
    pub waits: Option<u64>,
    /// It has too little of something: it may leave behind what is left of others.
    #[serde(default)]
    pub is_in_want: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verb {
    /// Holds while its section runs.
    Run(Take),
    /// A hold that ends after so many nanoseconds.
    Lease(Take, u64),
    /// A hold that ends with a process.
    Job(Take),
    /// Lets the lease of that call last so long from now on.
    Renew(Id, u64),
    /// Ends the hold of that call.
    Release(Id),
    Break {
        name: String,
        /// Without waiting for the end of the work.
        by_force: bool,
    },
    Check(String),
    /// Until it is free.
    Wait(String),
    Cleanup,
}

/// What a call said that it did or found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It has the locks, by a hold of this number.
    Took(u64),
    /// Somebody is in the way: this hold, or one that is not named.
    Refused(Option<Id>),
    /// A waiter is in the way.
    RefusedForWaiter,
    Renewed,
    Released,
    /// The hold that it is about has ended, or the lock has no holder.
    Nothing,
    /// It has broken these holds.
    Broke(Vec<Id>),
    /// It has removed these holds, which had ended.
    Removed(Vec<Id>),
    /// These are holders of the lock, each at some moment of the call.
    Saw(Vec<Id>),
    /// Killed, canceled, or without an answer of the server: it took effect, or it did not.
    Unknown,
    /// Whatever it said, nothing follows.
    Nil,
}

/// The section of a run, as it was seen by its command itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section {
    pub from: u64,
    /// When it wrote for the last time that it runs.
    pub to: u64,
    pub hold: u64,
    /// It has ended by itself, with the exit code that it was given.
    pub is_done: bool,
    /// Another section had the kernel lock that stands for one of its locks.
    pub is_overlapping: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    pub id: Id,
    pub verb: Verb,
    pub called: u64,
    pub returned: u64,
    /// When none of its processes was left. Of a job: when its process was dead.
    pub gone: u64,
    /// Since when a job's process may be dead.
    pub killed: Option<u64>,
    pub outcome: Outcome,
    pub section: Option<Section>,
    /// Its own end has ended its hold: it was not killed, and said so.
    pub is_clean: bool,
}

impl Call {
    pub fn take(&self) -> Option<&Take> {
        match &self.verb {
            Verb::Run(take) | Verb::Lease(take, _) | Verb::Job(take) => Some(take),
            _ => None,
        }
    }

    /// The names that it is about, as far as it says.
    pub fn names(&self) -> Vec<&str> {
        match &self.verb {
            Verb::Break { name, .. } | Verb::Check(name) | Verb::Wait(name) => vec![name],
            _ => self
                .take()
                .into_iter()
                .flat_map(|take| &take.names)
                .map(String::as_str)
                .collect(),
        }
    }

    /// The calls whose holds it names.
    pub fn named(&self) -> Vec<Id> {
        let mut named = match &self.verb {
            Verb::Renew(id, _) | Verb::Release(id) => vec![*id],
            _ => Vec::new(),
        };
        match &self.outcome {
            Outcome::Refused(by) => named.extend(by),
            Outcome::Broke(ids) | Outcome::Removed(ids) | Outcome::Saw(ids) => named.extend(ids),
            _ => {}
        }
        named
    }
}

/// How long after its end a hold may still be in the way of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Store {
    /// Of a lease that has expired.
    pub after_expiry: u64,
    /// Of a hold whose processes are dead.
    pub after_death: u64,
    /// How long a request of a dead process may be under way.
    pub under_way: u64,
    /// Of a waiter that has ended.
    pub after_waiting: u64,
}

impl Store {
    /// A directory of this machine. What is rounded is rounded to milliseconds; a reservation lasts 5 s.
    pub const FILES: Self = Self {
        after_expiry: 20 * MILLISECOND,
        after_death: 0,
        under_way: 0,
        after_waiting: 5 * SECOND,
    };

    /// A filesystem on which nothing is taken over, and there is no queue.
    pub const NO_TAKEOVER: Self = Self {
        after_expiry: 3_600 * SECOND,
        after_death: 3_600 * SECOND,
        under_way: 0,
        after_waiting: 0,
    };

    /// A server: a dead holder is taken over within 2 T, or 3 T after an outage, and T is at most 10 s here. A client
    /// is cut off for up to 9 s.
    pub const SERVER: Self = Self {
        after_expiry: 60 * SECOND,
        after_death: 60 * SECOND,
        under_way: 15 * SECOND,
        after_waiting: 30 * SECOND,
    };
}

/// All calls to one store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    pub store: Store,
    pub calls: Vec<Call>,
}

impl History {
    /// A line for the store, and one for each call.
    pub fn to_text(&self) -> String {
        let mut lines = vec![serde_json::to_string(&self.store).unwrap()];
        lines.extend(
            self.calls
                .iter()
                .map(|call| serde_json::to_string(call).unwrap()),
        );
        lines.push(String::new());
        lines.join("\n")
    }

    pub fn from_text(text: &str) -> Self {
        let (store, calls) = text.split_once('\n').unwrap();
        let calls = calls.lines();
        Self {
            store: serde_json::from_str(store).unwrap(),
            calls: calls
                .map(|line| serde_json::from_str(line).unwrap())
                .collect(),
        }
    }
}
