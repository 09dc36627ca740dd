//! Cycles of waiters. The caller runs inside of hold 1, and the command of each hold waits for what it has started.

use super::*;
use crate::decision::cycle::{counts, waits_from};

/// A request of a waiter inside of this hold, without a limit.
fn waiter(hold: u64, text: &str) -> Request {
    Request {
        waits_until_ms: Some(u64::MAX),
        ..request(text).inside(hold)
    }
}

impl Request {
    fn until(self, waits_until_ms: u64) -> Self {
        Self {
            waits_until_ms: Some(waits_until_ms),
            ..self
        }
    }

    fn sharing(mut self, mode: Mode) -> Self {
        for want in &mut self.wants {
            want.mode = mode;
        }
        self
    }
}

impl Memory {
    /// The command of each hold waits for those waiters that are inside of it, and that of hold 1 for the caller.
    fn in_foreground(mut self) -> Self {
        self.awaited = vec![(None, 1)];
        for ticket in &self.tickets {
            let holds = ticket.request.inside.iter();
            self.awaited
                .extend(holds.map(|hold| (Some(ticket.number), *hold)));
        }
        self
    }

    fn without(mut self, awaited: (Option<u64>, u64)) -> Self {
        assert!(self.awaited.contains(&awaited));
        self.awaited.retain(|pair| *pair != awaited);
        self
    }
}

/// The numbers of the holds of the cycle that the caller would complete.
fn found(request: &Request, memory: &Memory) -> Option<Vec<u64>> {
    let number = |judged: &Judged<u64>| judged.found.handle;
    match cycle(request, memory).unwrap() {
        Cycle::Found(holds) => Some(holds.iter().map(number).collect()),
        Cycle::None | Cycle::NotFound => None,
    }
}

/// Hold 1 of `a` is the caller's; the command of hold 2 of `b` waits for `a`.
fn two() -> Memory {
    memory([run(1, "a"), run(2, "b")])
        .awaited_by([waiter(2, "a")])
        .in_foreground()
}

#[test]
fn last_comer_of_a_cycle_finds_the_holds_from_the_one_in_its_way_to_its_own() {
    let three = memory([run(1, "a"), run(2, "b"), run(3, "c")])
        .awaited_by([waiter(2, "c"), waiter(3, "a")])
        .in_foreground();
    let shared = memory([run(1, "a"), run(2, "b").shared(0), run(3, "b").shared(1)])
        .awaited_by([waiter(2, "a"), waiter(3, "a")])
        .in_foreground();
    let nested = memory([run(1, "a"), run(2, "b/t")])
        .awaited_by([waiter(2, "a/t")])
        .in_foreground();
    let several = memory([run(1, "a"), run(2, "b")])
        .awaited_by([Request {
            waits_until_ms: Some(u64::MAX),
            ..request_for(vec![want("free", EXCLUSIVE), want("a", EXCLUSIVE)]).inside(2)
        }])
        .in_foreground();
    let mut kept = run(2, "b").unverified();
    kept.facts.life = Some(Life::Kept);
    let elsewhere = memory([run(1, "a"), kept])
        .awaited_by([waiter(2, "a")])
        .in_foreground();
    #[rustfmt::skip]
    let rows = [
        ("of two", waiter(1, "b"), two(), vec![2, 1]),
        ("of three", waiter(1, "b"), three, vec![2, 3, 1]),
        ("all that share a lock", waiter(1, "b"), shared.clone(), vec![2, 1]),
        ("all slots", waiter(1, "b").sharing(slots(2)), shared, vec![2, 1]),
        ("of children", waiter(1, "b"), nested, vec![2, 1]),
        ("of several locks", waiter(1, "b"), several, vec![2, 1]),
        ("of one that gives up before", waiter(1, "b").until(BOOTTIME + 1), two(), vec![2, 1]),
        ("on another machine, alive by its key", waiter(1, "b"), elsewhere, vec![2, 1]),
    ];
    for (row, request, memory, holds) in rows {
        assert_eq!(found(&request, &memory), Some(holds), "{row}");
    }
}

#[test]
fn wait_that_could_end_is_in_no_cycle() {
    let with_waiter = |waiter: Request| {
        memory([run(1, "a"), run(2, "b")])
            .awaited_by([waiter])
            .in_foreground()
    };
    let holds_of_two = |second| {
        memory([run(1, "a"), second])
            .awaited_by([waiter(2, "a")])
            .in_foreground()
    };
    let limit = BOOTTIME + 1_000;
    let shared = memory([run(1, "a"), run(2, "b").shared(0), run(3, "b").shared(1)])
        .awaited_by([waiter(2, "a")])
        .in_foreground();
    let waits_for_two = memory([run(1, "a").shared(0), run(2, "b"), run(3, "a").shared(1)])
        .awaited_by([waiter(2, "a")])
        .in_foreground();
    let beside = memory([run(1, "a"), run(2, "b"), run(3, "c")])
        .awaited_by([waiter(2, "c"), waiter(3, "b")])
        .in_foreground();
    let mut forgotten = two();
    forgotten.tickets.clear();
    let mut unknown = waiter(2, "a");
    unknown.waits_until_ms = None;
    #[rustfmt::skip]
    let rows = [
        ("a shared hold outside", waiter(1, "b"), shared.clone()),
        ("a slot outside", waiter(1, "b").sharing(slots(2)), shared.clone()),
        ("a slot that is free", waiter(1, "b").sharing(slots(3)), shared),
        ("a hold outside is in the way of the other waiter", waiter(1, "b"), waits_for_two),
        ("a cycle of others", waiter(1, "b"), beside),
        ("a dead waiter", waiter(1, "b"), forgotten),
        ("a waiter in the background, or of another user", waiter(1, "b"), two().without((Some(1), 2))),
        ("the caller in the background", waiter(1, "b"), two().without((None, 1))),
        ("the other one gives up before", waiter(1, "b"), with_waiter(waiter(2, "a").until(limit))),
        ("a little before", waiter(1, "b").until(limit), with_waiter(waiter(2, "a").until(limit - 1))),
        ("its limit is not known", waiter(1, "b"), with_waiter(unknown)),
        ("it waits for another lock", waiter(1, "b"), with_waiter(waiter(2, "x"))),
        ("the hold has a time limit", waiter(1, "b"), holds_of_two(run(2, "b").with(|record| record.time_limited = true))),
        ("the hold is being ended", waiter(1, "b"), holds_of_two(run(2, "b").with(|record| record.live.ending = Some(BOOTTIME)))),
        ("the hold is dead", waiter(1, "b"), holds_of_two(run(2, "b").dead())),
        ("the hold is elsewhere", waiter(1, "b"), holds_of_two(run(2, "b").unverified())),
        ("no run", waiter(1, "b"), holds_of_two(detached(2, "b", process(21)))),
        ("the caller does not wait", request("b").inside(1), two()),
        ("the caller is inside of nothing", waiter(9, "b"), two()),
        ("the lock is free", waiter(1, "c"), two()),
    ];
    for (row, request, memory) in rows {
        assert_eq!(found(&request, &memory), None, "{row}");
    }
}

#[test]
fn waiter_that_limits_its_wait_as_the_caller_does_is_in_the_cycle() {
    let limit = BOOTTIME + 1_000;
    let both = memory([run(1, "a"), run(2, "b")])
        .awaited_by([waiter(2, "a").until(limit)])
        .in_foreground();
    assert_eq!(found(&waiter(1, "b").until(limit), &both), Some(vec![2, 1]));
}

#[test]
fn long_chain_of_holds_is_followed_to_its_end_or_given_up() {
    let chain = |length: u64| {
        let text = |number: u64| format!("x{number}");
        let holds = (1..=length).map(|number| run(number, &text(number)));
        let waiters = (2..=length).map(|number| waiter(number, &text(number % length + 1)));
        memory(holds).awaited_by(waiters).in_foreground()
    };
    let links = |length| found(&waiter(1, "x2"), &chain(length)).map(|holds| holds.len());
    assert_eq!(links(200), Some(200));
    assert_eq!(links(300), None);
}

/// Two holders of each layer wait for both of the next one, so that 2^30 ways lead through.
#[test]
fn each_waiter_is_looked_at_once_however_many_ways_lead_to_it() {
    const LAYERS: u64 = 30;
    let text = |layer: u64| format!("x{layer}");
    for (last, links) in [("a", Some(31)), ("z", None)] {
        let layers = (1..=LAYERS).flat_map(|layer| {
            let hold = move |at| run(2 * layer + at, &text(layer));
            [hold(0).shared(0), hold(1).shared(1)]
        });
        let waiters = (1..=LAYERS).flat_map(|layer| {
            let next = if layer == LAYERS {
                last.to_owned()
            } else {
                text(layer + 1)
            };
            [0, 1].map(|at| waiter(2 * layer + at, &next))
        });
        let memory = memory(layers.chain([run(1, "a"), run(100, "z")]))
            .awaited_by(waiters)
            .in_foreground();
        let found = found(&waiter(1, "x1"), &memory);
        assert_eq!(found.map(|holds| holds.len()), links);
        // Those of the waiters, and that of the caller.
        assert_eq!(memory.reads.get() as u64, 2 * LAYERS + 1);
    }
}

#[test]
fn holds_that_are_waited_for_are_followed_whether_or_not_the_wait_may_end() {
    let chain = |memory: &Memory, hold: Found<u64>| -> Vec<u64> {
        let judged = request("x").judge(memory, hold);
        let holds = waits_from(&judged, memory).unwrap();
        holds.iter().map(|judged| judged.found.handle).collect()
    };
    // Nobody waits in the foreground, and the second may give up.
    let both = memory([run(1, "a"), run(2, "b")])
        .awaited_by([waiter(2, "a"), waiter(1, "b").until(BOOTTIME)]);
    assert_eq!(chain(&both, run(1, "a")), [2, 1]);
    assert_eq!(chain(&both, run(2, "b")), [1, 2]);
    let line = memory([run(1, "a"), run(2, "b"), lease(3, "c")])
        .awaited_by([waiter(1, "b"), waiter(2, "c")]);
    assert_eq!(chain(&line, run(1, "a")), [2, 3]);
    assert!(chain(&line, lease(3, "c")).is_empty());
    // Those of others lead into a cycle.
    let beside = memory([run(1, "a"), run(2, "b"), run(3, "c")]).awaited_by([
        waiter(1, "b"),
        waiter(2, "c"),
        waiter(3, "b"),
    ]);
    assert_eq!(chain(&beside, run(1, "a")), [2, 3, 2]);
}

#[test]
fn ticket_counts_only_if_its_user_is_that_of_the_hold_or_root_or_the_caller() {
    for (waiter, does) in [(7, true), (0, true), (8, true), (9, false)] {
        assert_eq!(counts(Some(waiter), Some(7), Some(8)), does, "{waiter}");
    }
    assert!(!counts(None, None, None));
}
