//! Table T4: who may release, renew, break and clean up.

use super::*;
use crate::decision::liveness::{Reason, State};
use crate::decision::ownership::{
    Caller, MayRelease, MayRenew, may_break, may_clean_up, may_release, may_renew,
};
use crate::record::Live;

fn stranger() -> Caller {
    Caller::default()
}

fn naming(hold: u64) -> Caller {
    Caller {
        hold: Some(hold),
        ..Caller::default()
    }
}

fn owner(owner: &str) -> Caller {
    Caller {
        owner: Some(owner.to_owned()),
        ..Caller::default()
    }
}

fn inside(hold: u64) -> Caller {
    Caller {
        inside: vec![hold],
        ..Caller::default()
    }
}

fn pid_file(found: Found<u64>) -> Found<u64> {
    found.with(|record| {
        record.format = Format::Pid;
        record.kind = Kind::Process;
        record.origin = None;
        record.hold = 0;
    })
}

#[test]
fn release_is_for_the_holder_and_for_whoever_finds_it_dead() {
    use MayRelease::{Free, HeldByRun, NotYours, Remove};
    let job = || detached(1, "x", process(7)).owned_by("a");
    let wrapper_killed = || {
        let mut found = run(1, "x");
        found.facts.processes[0] = gone(process(10));
        found
    };
    let here = || memory([]);
    let below = |pid| memory([]).below([process(pid)]);
    let old_pid_file = || {
        pid_file(run(1, "x")).with(|record| {
            record.taken_by = None;
            record.live.set_process(None);
            record.acquired_at = now() - TimeDelta::hours(25);
        })
    };
    let unlocked = |mut found: Found<u64>| {
        found.facts.kernel_lock = Some(false);
        found
    };
    #[rustfmt::skip]
    let rows: Vec<(&str, Caller, Found<u64>, Memory, MayRelease)> = vec![
        ("a stranger", stranger(), job(), here(), NotYours),
        ("by number", naming(1), job(), here(), Remove),
        ("by another number", naming(2), job(), here(), NotYours),
        ("by another number, though the owner matches", Caller { hold: Some(2), ..owner("a") }, job(), here(), NotYours),
        ("by the right number, though the owner differs", Caller { hold: Some(1), ..owner("b") }, job(), here(), Remove),
        ("by owner", owner("a"), job(), here(), Remove),
        ("by another owner", owner("b"), job(), here(), NotYours),
        ("by an empty owner", owner(""), job().owned_by(""), here(), NotYours),
        ("from inside", inside(1), job(), here(), Remove),
        ("from inside another hold", inside(2), job(), here(), NotYours),
        ("a descendant of its process", stranger(), job(), below(7), Remove),
        ("a descendant of the process that wrote it", stranger(), job(), below(10), NotYours),
        ("a descendant of a process with that number elsewhere", stranger(), job().unverified(), below(7), NotYours),
        ("a lease by owner", owner("a"), lease(1, "x").owned_by("a"), here(), Remove),
        ("an unverified one by owner", owner("a"), job().unverified(), here(), Remove),
        ("a live run by owner", owner("a"), run(1, "x").owned_by("a"), here(), HeldByRun),
        ("a live run by number", naming(1), run(1, "x"), here(), HeldByRun),
        ("a live run from inside", inside(1), run(1, "x"), here(), HeldByRun),
        ("a live run by a stranger", stranger(), run(1, "x"), here(), NotYours),
        ("a run whose wrapper was killed, its command alive", inside(1), wrapper_killed(), here(), HeldByRun),
        ("a PID file under a kernel lock, by number", stranger(), pid_file(run(1, "x")), here(), NotYours),
        ("a dead one by a stranger", stranger(), job().dead(), here(), Remove),
        ("a dead run by a stranger", stranger(), run(1, "x").dead(), here(), Remove),
        ("a dead one by its number", naming(1), job().dead(), here(), Remove),
        ("a dead one by another number", naming(2), job().dead(), here(), NotYours),
        ("an expired lease by a stranger", stranger(), lease(1, "x").expired(), here(), Remove),
        ("a dead PID file by a stranger", stranger(), unlocked(pid_file(run(1, "x").dead())), here(), Remove),
        ("a dead one where takeover is not safe, by a stranger", stranger(), job().dead(), here().over_a_network(), NotYours),
        ("a dead one where takeover is not safe, by its owner", owner("a"), job().dead(), here().over_a_network(), Remove),
        ("one that is too old, by a stranger", stranger(), job().too_old(), here(), NotYours),
        ("one that is too old, by its owner", owner("a"), job().too_old(), here(), Remove),
        ("a PID file that names no process and is too old", stranger(), unlocked(old_pid_file()), here(), NotYours),
        ("a corrupt one", stranger(), job().corrupt(), here(), NotYours),
        ("a corrupt one by owner", owner("a"), job().corrupt(), here(), NotYours),
        ("not a lock", owner("a"), not_a_lock(1, "x"), here(), NotYours),
        ("a finished --exec", stranger(), run(1, "x").finished(), here(), Remove),
        ("a finished --exec where takeover is not safe", stranger(), run(1, "x").finished(), here().over_a_network(), Free),
        ("a finished --exec, another number named", naming(2), run(1, "x").finished(), here(), Free),
    ];
    for (row, caller, found, memory, expected) in rows {
        assert_eq!(
            may_release(&caller, &judged(&found), &memory),
            expected,
            "{row}"
        );
    }
}

#[test]
fn renewal_is_for_the_holder_and_expired_hold_must_still_be_free_to_take() {
    use MayRenew::{HeldByRun, NotYours, Nothing, Renew};
    let ours = || lease(1, "sec/t").owned_by("a");
    let expired = || ours().expired();
    let pending = || ours().with(|record| record.live = Live::default());
    let with = |holds: Vec<Found<u64>>| memory(holds.into_iter().chain([expired()]));
    let waiter = |text: &str| request(text).owned_by("b");
    let job = || detached(1, "sec/t", process(7)).owned_by("a");
    let expired_job = || job().with(|record| record.ttl_ms = Some(1));
    let own = |owner_name: &str| owner(owner_name);
    #[rustfmt::skip]
    let rows: Vec<(&str, Caller, Found<u64>, Memory, MayRenew)> = vec![
        ("a lease by its owner", own("a"), ours(), memory([ours()]), Renew),
        ("a lease that is not confirmed yet", own("a"), pending(), memory([pending()]), Nothing),
        ("a lease by number", naming(1), ours(), memory([ours()]), Renew),
        ("a lease by another", own("b"), ours(), memory([ours()]), NotYours),
        ("a lease by another number", naming(2), ours(), memory([ours()]), NotYours),
        ("a lease that others wait for", own("a"), ours(), memory([ours()]).awaited_by([waiter("sec/t")]), Renew),
        ("a lease beside a relative that is held", own("a"), ours(), memory([ours(), run(2, "sec")]), Renew),
        ("a detached hold by its process", stranger(), job(), memory([job()]).below([process(7)]), Renew),
        ("a live run", own("a"), run(1, "sec/t").owned_by("a"), memory([]), HeldByRun),
        ("a dead one", own("a"), job().dead(), memory([]), Nothing),
        ("a dead one by another", own("b"), job().dead(), memory([]), Nothing),
        ("one that is too old", own("a"), job().too_old(), memory([]), Nothing),
        ("a corrupt one", own("a"), job().corrupt(), memory([]), Nothing),
        ("not a lock", own("a"), not_a_lock(1, "sec/t"), memory([]), Nothing),
        ("a finished --exec", own("a"), run(1, "sec/t").finished(), memory([]), Nothing),
        ("an expired lease, still there", own("a"), expired(), with(vec![]), Renew),
        ("an expired hold of a process, still there", own("a"), expired_job(), memory([expired_job()]), Renew),
        ("an expired hold of a process, by that process", stranger(), expired_job(), memory([expired_job()]).below([process(7)]), Renew),
        ("an expired hold of a process, by another process", stranger(), expired_job(), memory([expired_job()]), NotYours),
        ("an expired lease by another", own("b"), expired(), with(vec![]), NotYours),
        ("an expired lease below a parent held by another", own("a"), expired(), with(vec![run(2, "sec")]), Nothing),
        ("an expired lease below a parent of the same owner", own("a"), expired(), with(vec![run(2, "sec").owned_by("a")]), Renew),
        ("an expired lease above a child held by another", own("a"), expired(), with(vec![run(2, "sec/t/u")]), Nothing),
        ("an expired lease beside a dead relative", own("a"), expired(), with(vec![run(2, "sec").dead()]), Renew),
        ("an expired lease that a waiter could take", own("a"), expired(), with(vec![]).awaited_by([waiter("sec/t")]), Nothing),
        ("an expired lease whose parent a waiter could take", own("a"), expired(), with(vec![]).awaited_by([waiter("sec")]), Nothing),
        ("an expired lease that a waiter could not take", own("a"), expired(), with(vec![run(2, "sec").owned_by("a")]).awaited_by([waiter("sec/t")]), Renew),
        ("an expired lease, the waiter leaves zombies", own("a"), expired(), with(vec![]).awaited_by([waiter("sec/t").leaving_zombies()]), Renew),
    ];
    for (row, caller, found, memory, expected) in rows {
        let Ok(may) = may_renew(&caller, &judged(&found), &request("sec/t"), &memory);
        assert_eq!(may, expected, "{row}");
    }
}

#[test]
fn break_removes_only_the_hold_that_was_shown() {
    let found = run(1, "x");
    let shown = found.revision.clone();
    assert!(may_break(&shown, &judged(&found)));
    assert!(
        may_break(&shown, &judged(&found.clone().dead())),
        "it has died since"
    );
    let changed = |change: fn(&mut Revision)| {
        let mut found = found.clone();
        change(&mut found.revision);
        may_break(&shown, &judged(&found))
    };
    assert!(!changed(|revision| revision.file = 9), "another file");
    assert!(!changed(|revision| revision.hold = 9), "another hold");
    assert!(!changed(|revision| revision.digest = 9), "other content");
    let mut other = not_a_lock(1, "x");
    other.revision = shown.clone();
    assert!(!may_break(&shown, &judged(&other)), "not a lock");
}

#[test]
fn cleanup_removes_zombies_and_what_finished_commands_left() {
    let rows: Vec<(&str, Found<u64>, bool)> = vec![
        ("alive", run(1, "x"), false),
        ("unverified", run(1, "x").unverified(), false),
        ("a lease", lease(1, "x"), false),
        ("dead", run(1, "x").dead(), true),
        ("expired", lease(1, "x").expired(), true),
        (
            "too old",
            run(1, "x").with(|record| record.close = true).too_old(),
            true,
        ),
        ("corrupt", run(1, "x").corrupt(), true),
        ("finished", run(1, "x").finished(), true),
        ("not a lock", not_a_lock(1, "x"), false),
    ];
    for (row, found, expected) in rows {
        let verdict = judged(&found).verdict;
        assert_eq!(may_clean_up(&verdict, true), expected, "{row}");
        assert!(
            !may_clean_up(&verdict, false),
            "{row}, where takeover is not safe"
        );
    }
}

#[test]
fn builders_of_these_tests_are_judged_as_they_say() {
    let verdict = |found: Found<u64>| {
        let verdict = judged(&found).verdict;
        (verdict.state, verdict.reason)
    };
    let job = || detached(1, "x", process(7));
    assert_eq!(verdict(run(1, "x")), (State::Held, Reason::Alive));
    assert_eq!(verdict(job()), (State::Held, Reason::Alive));
    assert_eq!(verdict(lease(1, "x")), (State::Held, Reason::Lease));
    assert_eq!(
        verdict(lease(1, "x").expired()),
        (State::Zombie, Reason::Expired)
    );
    assert_eq!(verdict(run(1, "x").dead()), (State::Zombie, Reason::Dead));
    assert_eq!(
        verdict(run(1, "x").finished()),
        (State::Free, Reason::Finished)
    );
    assert_eq!(
        verdict(run(1, "x").corrupt()),
        (State::Zombie, Reason::Corrupt)
    );
    assert!(matches!(
        verdict(job().unverified()),
        (State::Held, Reason::Unverified(_))
    ));
    assert!(matches!(
        verdict(job().too_old()),
        (State::Zombie, Reason::TooOld(_))
    ));
}
