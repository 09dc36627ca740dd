//! What a client asks for, by chance.

use crate::harness::Rng;
use crate::history::{Call, Id, MILLISECOND, Mode, Take, Verb};

/// The locks: a parent with children, two that are taken together, one with slots, one that is broken and forced.
pub const NAMES: [&str; 8] = ["a", "a/x", "a/y", "a/y/z", "b", "c", "s", "d"];

/// What the command of a run does.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub milliseconds: u64,
    pub code: i32,
    pub is_deaf: bool,
}

/// What a call has too little of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// It may have so many descriptors open.
    Descriptors(u64),
    /// So many bytes more than the program needs to say its version.
    Memory(u64),
}

/// A call that is about to be made.
#[derive(Clone, Debug)]
pub struct Plan {
    pub verb: Verb,
    pub work: Option<Work>,
    pub want: Option<Want>,
}

impl Plan {
    pub fn of(verb: Verb) -> Self {
        Self {
            verb,
            work: None,
            want: None,
        }
    }

    pub fn take(&self) -> Option<&Take> {
        match &self.verb {
            Verb::Run(take) | Verb::Lease(take, _) | Verb::Job(take) => Some(take),
            _ => None,
        }
    }
}

/// How long things take, which differs between a directory and a server.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Lengths of sections, in milliseconds.
    pub works: [u64; 6],
    /// Of waits.
    pub waits: [u64; 4],
    /// Of leases: a server has them in whole seconds.
    pub ttl: u64,
    /// Whether holds can end with a process.
    pub has_jobs: bool,
    /// Whether calls are in want.
    pub has_wants: bool,
}

#[cfg_attr(
    not(all(feature = "etcd", feature = "postgres")),
    allow(dead_code, reason = "without servers")
)]
impl Pace {
    pub const FILES: Self = Self {
        works: [0, 1, 5, 10, 30, 200],
        waits: [20, 100, 1_000, 5_000],
        ttl: 300,
        has_jobs: true,
        has_wants: false,
    };
    pub const SERVER: Self = Self {
        works: [5, 20, 50, 100, 300, 2_500],
        waits: [200, 1_000, 5_000, 25_000],
        ttl: 5_000,
        has_jobs: false,
        has_wants: false,
    };
}

fn one_of<T: Copy>(rng: &mut Rng, all: &[T]) -> T {
    all[rng.below(all.len())]
}

/// A call by chance. `own`: holds that a client has made and may renew and release.
pub fn next(id: Id, rng: &mut Rng, pace: &Pace, own: &[Call]) -> Plan {
    let mut plan = verb(id, rng, pace, own);
    if pace.has_wants {
        plan.want = match rng.below(4) {
            // Of which three are for input and output.
            0 => Some(Want::Descriptors(4 + rng.below(12) as u64)),
            1 => Some(Want::Memory(4096 * rng.below(400) as u64)),
            _ => None,
        };
    }
    let is_in_want = plan.want.is_some();
    if let Verb::Run(take) | Verb::Lease(take, _) | Verb::Job(take) = &mut plan.verb {
        take.is_in_want = is_in_want;
    }
    plan
}

fn verb(id: Id, rng: &mut Rng, pace: &Pace, own: &[Call]) -> Plan {
    let name = |rng: &mut Rng| one_of(rng, &NAMES).to_owned();
    let verb = match rng.below(100) {
        0..64 => return run(rng, pace),
        64..72 => Verb::Lease(lease(id, rng, pace), pace.ttl * MILLISECOND),
        72..82 if !own.is_empty() => {
            let hold = own[rng.below(own.len())].id;
            match rng.below(2) {
                0 => Verb::Renew(hold, pace.ttl * MILLISECOND),
                _ => Verb::Release(hold),
            }
        }
        82..85 if pace.has_jobs => Verb::Job(lease(id, rng, pace)),
        85..88 => Verb::Break {
            name: one_of(rng, &["a", "a/x", "b", "s", "d", "d"]).to_owned(),
            by_force: false,
        },
        88..90 => Verb::Wait(name(rng)),
        90..92 => Verb::Cleanup,
        _ => Verb::Check(name(rng)),
    };
    Plan::of(verb)
}

fn take(names: &[&str], mode: Mode) -> Take {
    Take {
        names: names.iter().map(ToString::to_string).collect(),
        mode,
        owner: None,
        by_force: false,
        waits: None,
        is_in_want: false,
    }
}

fn run(rng: &mut Rng, pace: &Pace) -> Plan {
    use Mode::{Exclusive, Shared, Slots};
    let mut take = match rng.below(20) {
        0..3 => take(&["a"], Exclusive),
        3..5 => take(&["a/x"], Exclusive),
        5 => take(&["a/y/z"], Exclusive),
        6 => take(&["a"], Shared),
        7 => take(&["a/y"], Shared),
        8..10 => take(&["b", "c"], Exclusive),
        10 => take(&["c", "b"], Exclusive),
        11 => take(&["b"], Exclusive),
        12 => take(&["c"], Shared),
        13 => take(&["s"], Exclusive),
        14 => take(&["s"], Shared),
        15 => take(&["s"], Slots(2)),
        16 => take(&["s"], Slots(3)),
        _ => take(&["d"], Exclusive),
    };
    if take.names[0].starts_with('a') && rng.below(3) == 0 {
        take.owner = Some("o".to_owned());
    }
    take.by_force = take.names == ["d"] && rng.below(12) == 0;
    if rng.below(3) > 0 {
        take.waits = Some(one_of(rng, &pace.waits) * MILLISECOND);
    }
    let work = Work {
        milliseconds: one_of(rng, &pace.works),
        // None that the program itself would have.
        code: one_of(rng, &[0, 0, 3, 40]),
        is_deaf: rng.below(8) == 0,
    };
    Plan {
        work: Some(work),
        ..Plan::of(Verb::Run(take))
    }
}

/// Locks that no run is asked for together with others.
fn lease(id: Id, rng: &mut Rng, pace: &Pace) -> Take {
    let mut take = match rng.below(4) {
        0 => take(&["a/x"], Mode::Exclusive),
        1 => take(&["s"], Mode::Slots(3)),
        2 => take(&["b", "c"], Mode::Exclusive),
        _ => take(&["d"], Mode::Exclusive),
    };
    // A second call of one owner would have the first one's lease.
    take.owner = Some(format!("client of {id}"));
    take.waits = (rng.below(2) == 0).then_some(pace.waits[1] * MILLISECOND);
    take
}

/// A number of milliseconds, as the command line has it.
pub fn seconds(nanoseconds: u64) -> String {
    let milliseconds = nanoseconds / MILLISECOND;
    format!("{}.{:03}", milliseconds / 1_000, milliseconds % 1_000)
}
