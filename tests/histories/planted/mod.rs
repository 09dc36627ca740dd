//! Histories that are not those of locks, each of which must be refused, and odd ones that are. Times are in
//! milliseconds; a call has the number of its hold.

use crate::history::{
    Call, History, Id, MILLISECOND, Mode, Outcome, SECOND, Section, Store, Take, Verb,
};
use crate::steps::judge;

mod odd;
mod wrong;

use odd::odd;
use wrong::wrong;

type Times = (u64, u64);

/// `a b -s --slots 2 --owner o --force -w 60`, as on the command line.
fn take(words: &str) -> Take {
    let mut take = Take {
        names: Vec::new(),
        mode: Mode::Exclusive,
        owner: None,
        by_force: false,
        waits: None,
        is_in_want: false,
    };
    let mut words = words.split(' ');
    while let Some(word) = words.next() {
        match word {
            "-s" => take.mode = Mode::Shared,
            "--slots" => take.mode = Mode::Slots(words.next().unwrap().parse().unwrap()),
            "--owner" => take.owner = words.next().map(str::to_owned),
            "--force" => take.by_force = true,
            "--in-want" => take.is_in_want = true,
            "-w" => {
                take.waits = words
                    .next()
                    .map(|time| time.parse::<u64>().unwrap() * SECOND);
            }
            name => take.names.push(name.to_owned()),
        }
    }
    take
}

fn call(id: Id, verb: Verb, (called, returned): Times, outcome: Outcome) -> Call {
    Call {
        id,
        verb,
        called: called * MILLISECOND,
        returned: returned * MILLISECOND,
        gone: returned * MILLISECOND,
        killed: None,
        outcome,
        section: None,
        is_clean: true,
    }
}

/// A run, and when its section ran.
fn run(id: Id, words: &str, times: Times, (from, to): Times) -> Call {
    let mut call = call(id, Verb::Run(take(words)), times, Outcome::Took(id as u64));
    call.section = Some(Section {
        from: from * MILLISECOND,
        to: to * MILLISECOND,
        hold: id as u64,
        is_done: true,
        is_overlapping: false,
    });
    call
}

/// Its wrapper was killed when it returned; the last process of it was there until then.
fn killed(mut call: Call, gone: u64) -> Call {
    call.gone = gone * MILLISECOND;
    call.outcome = Outcome::Unknown;
    call.is_clean = false;
    call
}

/// A run that was killed, and has had no section.
fn vanished(id: Id, words: &str, times: Times) -> Call {
    let mut call = call(id, Verb::Run(take(words)), times, Outcome::Unknown);
    call.is_clean = false;
    call
}

fn refused(id: Id, words: &str, times: Times, by: Id) -> Call {
    call(
        id,
        Verb::Run(take(words)),
        times,
        Outcome::Refused(Some(by)),
    )
}

fn refused_for_waiter(id: Id, words: &str, times: Times) -> Call {
    call(id, Verb::Run(take(words)), times, Outcome::RefusedForWaiter)
}

fn lease(id: Id, words: &str, times: Times, ttl: u64) -> Call {
    let verb = Verb::Lease(take(words), ttl * MILLISECOND);
    call(id, verb, times, Outcome::Took(id as u64))
}

fn renewed(id: Id, hold: Id, times: Times, ttl: u64) -> Call {
    call(
        id,
        Verb::Renew(hold, ttl * MILLISECOND),
        times,
        Outcome::Renewed,
    )
}

fn released(id: Id, hold: Id, times: Times) -> Call {
    call(id, Verb::Release(hold), times, Outcome::Released)
}

fn broke(id: Id, name: &str, times: Times, outcome: Outcome) -> Call {
    let verb = Verb::Break {
        name: name.to_owned(),
        by_force: false,
    };
    call(id, verb, times, outcome)
}

fn checked(id: Id, name: &str, times: Times, outcome: Outcome) -> Call {
    call(id, Verb::Check(name.to_owned()), times, outcome)
}

/// Histories with what is wrong or odd about each.
type Histories = Vec<(&'static str, Store, Vec<Call>)>;

/// In any order of the calls, as threads note them.
fn both_ways(calls: Vec<Call>, store: Store) -> [History; 2] {
    let mut turned = calls.clone();
    turned.reverse();
    [calls, turned].map(|calls| History { store, calls })
}

#[test]
fn history_that_is_not_that_of_a_lock_is_refused() {
    let mut passed = Vec::new();
    for (what, store, calls) in wrong() {
        for history in both_ways(calls, store) {
            if judge(&history).is_ok() {
                passed.push(what);
            }
        }
    }
    assert_eq!(passed, [""; 0]);
}

#[test]
fn odd_history_of_a_lock_is_accepted() {
    for (what, store, calls) in odd() {
        for history in both_ways(calls, store) {
            let verdict = judge(&history);
            assert!(verdict.is_ok(), "{what}: {}", verdict.unwrap_err());
        }
    }
}

#[test]
fn history_that_is_written_and_read_is_the_same() {
    for (_, store, calls) in wrong().into_iter().chain(odd()) {
        let history = History { store, calls };
        assert_eq!(History::from_text(&history.to_text()), history);
    }
}
