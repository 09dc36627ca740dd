//! What must be true of every decision.

use proptest::prelude::*;

use super::*;
use crate::decision::compatibility::excludes;

/// One family of names, and a stranger.
const NAMES: [&str; 5] = ["a", "a/x", "a/x/1", "a/y", "b"];

fn any_name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(NAMES.to_vec())
}

fn any_owner() -> impl Strategy<Value = Option<&'static str>> {
    prop::sample::select(vec![None, None, Some("p"), Some("q")])
}

fn any_mode() -> impl Strategy<Value = Mode> {
    prop::sample::select(vec![EXCLUSIVE, EXCLUSIVE, SHARED, slots(1), slots(2)])
}

/// A hold of any kind and state; its number comes later.
fn any_hold() -> impl Strategy<Value = (&'static str, Option<u32>, Option<&'static str>, u8)> {
    let index = prop::sample::select(vec![None, None, Some(0), Some(1), Some(2)]);
    (any_name(), index, any_owner(), 0..11_u8)
}

fn build(holds: Vec<(&'static str, Option<u32>, Option<&'static str>, u8)>) -> Vec<Found<u64>> {
    let mut built: Vec<Found<u64>> = Vec::new();
    for (number, (text, index, owner, what)) in (1..).zip(holds) {
        let mut found = match what {
            0 | 1 => run(number, text),
            2 => run(number, text).dead(),
            3 => detached(
                number,
                text,
                process(700 + u32::try_from(number).unwrap_or(0)),
            ),
            4 => lease(number, text),
            5 => lease(number, text).expired(),
            6 => run(number, text).unverified(),
            7 => run(number, text).finished(),
            8 => run(number, text).corrupt(),
            9 => not_a_lock(number, text),
            _ => detached(number, text, process(7)).dead(),
        };
        if let Some(owner) = owner {
            found = found.owned_by(owner);
        }
        found.key.index = index;
        if built.iter().all(|other| other.key != found.key) {
            built.push(found);
        }
    }
    built
}

fn any_holds(most: usize) -> impl Strategy<Value = Vec<Found<u64>>> {
    prop::collection::vec(any_hold(), 0..most).prop_map(build)
}

fn any_request_of(
    modes: impl Strategy<Value = Mode>,
    most_names: usize,
) -> impl Strategy<Value = Request> {
    let names = prop::sample::subsequence(NAMES[..4].to_vec(), 1..=most_names);
    let wants = prop_oneof![4 => names, 1 => Just(vec!["b"])];
    let inside = prop::collection::vec(1..6_u64, 0..2);
    (wants, modes, any_owner(), inside, any::<[bool; 2]>()).prop_map(
        |(names, mode, owner, inside, [takes, is_lease])| {
            let wants = names.into_iter().map(|name| want(name, mode)).collect();
            Request {
                owner: owner.map(str::to_owned),
                inside,
                take_zombies: takes,
                asker: if is_lease {
                    Asker::Lease
                } else {
                    Asker::Caller
                },
                ..request_for(wants)
            }
        },
    )
}

fn any_request() -> impl Strategy<Value = Request> {
    any_request_of(any_mode(), 2)
}

fn is_take(decision: &Short) -> bool {
    matches!(decision, Short::Take(..))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn more_holds_never_lead_to_take(
        request in any_request(),
        holds in any_holds(6),
        is_safe in any::<bool>(),
    ) {
        let all = Memory { is_safe, ..memory(holds) };
        if is_take(&decided(&request, &all)) {
            for without in 0..all.holds.len() {
                let mut fewer = all.clone();
                fewer.holds.remove(without);
                let decision = decided(&request, &fewer);
                prop_assert!(is_take(&decision), "{decision:?} without {without}");
            }
        }
    }

    #[test]
    fn waiter_that_others_wait_behind_can_take_its_locks(
        request in any_request_of(Just(EXCLUSIVE), 2),
        waiters in prop::collection::vec(any_request_of(Just(EXCLUSIVE), 2), 1..5),
        holds in any_holds(5),
        missed in prop::option::of(1..5_u64),
    ) {
        let exclusive = holds.into_iter().filter(|hold| hold.key.index.is_none());
        let mut memory = memory(exclusive).awaited_by(waiters);
        if let Some(number) = missed {
            memory = memory.reserved(number, 5_000);
        }
        if let Short::WaitBehind(number) = decided(&request, &memory) {
            let theirs = memory.of_waiter(number);
            prop_assert!(is_take(&theirs), "waits behind {number}, which gets {theirs:?}");
        }
        // So somebody who waits only for waiters is never the only one: there is no deadlock.
        for ticket in &memory.tickets {
            if let Short::WaitBehind(number) = memory.of_waiter(ticket.number) {
                prop_assert!(number < ticket.number);
                prop_assert!(is_take(&memory.of_waiter(number)));
            }
        }
    }

    #[test]
    fn unrelated_names_never_matter(
        request in any_request(),
        waiters in prop::collection::vec(any_request(), 0..4),
        holds in any_holds(6),
    ) {
        let is_related = |name: &LockName| request.wants.iter().any(|want| {
            want.name == *name || want.name.is_ancestor_of(name) || name.is_ancestor_of(&want.name)
        });
        let first = |name: &LockName| name.segments().first().cloned();
        let is_of_family = |name: &LockName| {
            request.wants.iter().any(|want| first(&want.name) == first(name))
        };
        let all = memory(holds).awaited_by(waiters);
        // A hold of an unrelated name in the same family may stop an earlier waiter; without one it
        // has no effect.
        let mut alone = all.clone();
        alone.tickets.clear();
        let mut few = alone.clone();
        few.holds.retain(|hold| is_related(&hold.key.name));
        prop_assert_eq!(decided(&request, &alone), decided(&request, &few));
        let mut few = all.clone();
        few.holds.retain(|hold| is_of_family(&hold.key.name));
        few.tickets.retain(|ticket| ticket.request.wants.iter().any(|want| is_of_family(&want.name)));
        prop_assert_eq!(decided(&request, &all), decided(&request, &few));
    }

    #[test]
    fn decision_depends_on_nothing_but_its_answers(
        request in any_request(),
        waiters in prop::collection::vec(any_request(), 0..4),
        holds in any_holds(6),
    ) {
        let memory = memory(holds).awaited_by(waiters);
        prop_assert_eq!(decided(&request, &memory), decided(&request, &memory.clone()));
    }

    #[test]
    fn take_leaves_nothing_alive_that_excludes_it(
        request in any_request(),
        holds in any_holds(6),
    ) {
        let memory = memory(holds);
        if let Short::Take(put, removed) = decided(&request, &memory) {
            let replaced: Vec<u64> = put.iter().filter_map(|(_, _, hold)| *hold).collect();
            for hold in &memory.holds {
                let mode = if hold.key.index.is_some() { SHARED } else { EXCLUSIVE };
                let held = Want { name: hold.key.name.clone(), mode };
                let holder = hold.content.record().and_then(|record| record.owner.as_deref());
                let is_in_the_way = request.wants.iter().any(|want| {
                    excludes(&held, holder, want, request.owner.as_deref())
                });
                let is_ended = removed.contains(&hold.handle) || replaced.contains(&hold.handle);
                let is_no_lock = matches!(hold.content, Content::NotALock(_));
                prop_assert!(!is_in_the_way || is_ended || is_no_lock, "{hold:?}");
                // What ends was a zombie or finished.
                prop_assert!(!is_ended || judged(hold).verdict.reason != liveness::Reason::Alive);
            }
            // Each key is written once, and only over what is replaced.
            for (name, index, hold) in &put {
                let there = memory.holds.iter().find(|found| {
                    found.key.name.as_str() == name && found.key.index == *index
                });
                prop_assert_eq!(there.map(|found| found.handle), *hold);
            }
        }
    }
}
