//! Takeovers beside a foreign program as a model, all of whose states are visited: `run`s and leases in
//! a foreign format, a program that creates exclusively and removes by name, and a kill at every
//! moment. Variants that leave something out show that the model would notice. What the program does is compared
//! with the model (`conformance`). What native records do is in `src/decision/model/`.
//!
//! It is a binary of its own since it fills memory: a process that starts others meanwhile, by fork(2), would
//! copy the tables of all its pages each time.
#![allow(missing_docs, unreachable_pub)]
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::too_many_lines,
    clippy::unwrap_used
)]

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod conformance;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../harness/mod.rs"]
mod harness;
mod model;
mod state;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../tracer/mod.rs"]
mod tracer;

use model::{Flaw, Protocol};
use state::Kind;
use stateright::{Checker, HasDiscoveries, Model};

const BROKEN: [&str; 3] = ["one holder", "numbers grow", "no dead end"];

fn model(kinds: &[Kind], attempts: u8, foreign: u8) -> Protocol {
    Protocol {
        kinds: kinds.to_vec(),
        attempts,
        foreign,
        kernel_locks: false,
        flaw: Flaw::None,
    }
}

/// Visits all states and counts them.
fn holds(model: Protocol) -> usize {
    let title = format!("{:?}, kernel locks: {}", model.kinds, model.kernel_locks);
    let checker = model.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    println!("{title}: {} states", checker.unique_state_count());
    checker.unique_state_count()
}

/// Whether a variant violates a property, within its first states.
fn breaks(flaw: Flaw, kinds: &[Kind], foreign: u8) -> bool {
    let model = Protocol {
        flaw,
        ..model(kinds, 1, foreign)
    };
    let checker = model.checker().threads(2);
    let checker = checker.finish_when(HasDiscoveries::AnyFailures);
    let found = checker.spawn_dfs().join().discoveries();
    BROKEN.iter().any(|property| found.contains_key(property))
}

use Kind::{Lease, Run};

#[test]
fn two_processes_beside_a_foreign_program_hold_one_at_a_time() {
    let mut states = 0;
    for kinds in [[Run, Run], [Run, Lease], [Lease, Lease]] {
        for kernel_locks in [false, true] {
            states += holds(Protocol {
                kernel_locks,
                ..model(&kinds, 1, 1)
            });
        }
    }
    assert!(states > 10_000, "{states}");
}

#[test]
#[ignore = "takes minutes"]
fn three_processes_beside_a_foreign_program_hold_one_at_a_time() {
    holds(model(&[Run, Run], 2, 2));
    holds(model(&[Run, Lease], 2, 2));
    holds(model(&[Run, Run, Lease], 1, 1));
    holds(model(&[Run, Run, Run], 1, 1));
}

#[test]
fn model_notices_what_is_left_out() {
    let cases: [(Flaw, &[Kind], u8); 8] = [
        (Flaw::UnlinkAndLink, &[Run, Run], 1),
        (Flaw::NoRecovery, &[Run, Run, Run], 0),
        (Flaw::NoDigest, &[Run, Run, Run], 0),
        (Flaw::NoGuard, &[Run, Lease], 1),
        (Flaw::NoPathCheck, &[Run, Run], 0),
        (Flaw::NoVerification, &[Run, Run], 0),
        (Flaw::BlindRelease, &[Run, Lease], 1),
        (Flaw::NoReturn, &[Run, Run], 2),
    ];
    for (flaw, kinds, foreign) in cases {
        assert!(breaks(flaw, kinds, foreign), "{flaw:?} is not noticed");
    }
}
