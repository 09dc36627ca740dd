//! What the JSON of a call says that it did or found.

use serde_json::Value;

use crate::history::{Id, Outcome, Verb};
#[cfg(test)]
use crate::history::{Mode, Take};

/// The call whose hold it is, by the message that each call gives its hold.
pub fn holder(lock: &Value) -> Option<Id> {
    lock["message"]
        .as_str()?
        .strip_prefix("call ")?
        .parse()
        .ok()
}

fn is_held(lock: &Value) -> bool {
    matches!(lock["state"].as_str(), Some("held" | "overdue"))
}

fn holders<'a>(locks: impl IntoIterator<Item = &'a Value>) -> Vec<Id> {
    locks.into_iter().filter_map(holder).collect()
}

/// A lock, and the other holds of it.
fn all_holds(lock: &Value) -> impl Iterator<Item = &Value> {
    let others = lock["others"].as_array().map_or(&[][..], Vec::as_slice);
    std::iter::once(lock).chain(others)
}

/// Whether it could not be found out if a holder lives, as with too few descriptors.
pub fn is_unsure(result: &Value) -> bool {
    all_holds(&result["lock"]).any(|lock| lock["reason"] == "unverified")
}

/// `result`: null if it was killed or ended without a word.
pub fn outcome(verb: &Verb, code: i32, result: &Value) -> Outcome {
    let lock = &result["lock"];
    let is_done = code == 0 && result["success"] == true;
    match verb {
        // Its number comes out before its hold is in force: whoever is killed in between holds nothing.
        Verb::Lease(..) | Verb::Job(_) if code != 0 && result["hold"].is_u64() => Outcome::Unknown,
        Verb::Run(_) | Verb::Lease(..) | Verb::Job(_) => of_take(result),
        Verb::Renew(..) => match code {
            0 if is_done => Outcome::Renewed,
            3 | 4 => Outcome::Nothing,
            _ => Outcome::Unknown,
        },
        // Free is a success, too.
        Verb::Release(hold) => match code {
            0 if is_done && holder(lock) == Some(*hold) => Outcome::Released,
            0 | 4 => Outcome::Nothing,
            _ => Outcome::Unknown,
        },
        Verb::Break { .. } => match code {
            0 if is_done => {
                let all = result["locks"].as_array().into_iter().flatten();
                let mut broken = holders(all.chain([lock]));
                broken.sort_unstable();
                broken.dedup();
                Outcome::Broke(broken)
            }
            3 => Outcome::Nothing,
            _ => Outcome::Unknown,
        },
        Verb::Check(_) => match lock["state"].as_str() {
            Some("held" | "overdue") if lock["reason"] == "reserved" => Outcome::Nil,
            Some("held" | "overdue") => {
                Outcome::Saw(holders(all_holds(lock).filter(|lock| is_held(lock))))
            }
            Some("free") => Outcome::Nothing,
            _ => Outcome::Nil,
        },
        Verb::Wait(_) => match code {
            0 if is_done => Outcome::Nothing,
            _ => Outcome::Nil,
        },
        Verb::Cleanup => {
            Outcome::Removed(holders(result["locks"].as_array().into_iter().flatten()))
        }
    }
}

fn of_take(result: &Value) -> Outcome {
    if let Some(number) = result["hold"].as_u64() {
        return Outcome::Took(number);
    }
    let lock = &result["lock"];
    match result["error"]["code"].as_str() {
        Some("RESERVED") => Outcome::RefusedForWaiter,
        Some("LOCKED" | "TIMEOUT" | "DEADLOCK") if lock["reason"] == "reserved" => {
            Outcome::RefusedForWaiter
        }
        // What is shown is looked up again: it may be dead, or gone, by then.
        Some("LOCKED" | "TIMEOUT" | "DEADLOCK") if is_held(lock) => Outcome::Refused(holder(lock)),
        Some("LOCKED" | "TIMEOUT" | "ZOMBIE" | "STORE_CHANGED") => Outcome::Nil,
        _ => Outcome::Unknown,
    }
}

#[test]
fn acquire_that_was_killed_after_its_number_is_of_unknown_fate() {
    let took = serde_json::json!({ "success": true, "hold": 7 });
    let take = Take {
        names: vec!["a".to_owned()],
        mode: Mode::Exclusive,
        owner: None,
        by_force: false,
        waits: None,
        is_in_want: false,
    };
    for verb in [Verb::Lease(take.clone(), 300), Verb::Job(take)] {
        assert_eq!(outcome(&verb, 0, &took), Outcome::Took(7));
        assert_eq!(outcome(&verb, -9, &took), Outcome::Unknown);
    }
}
