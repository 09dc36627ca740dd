//! Table T3: what is decided about a request, and what a waiter sleeps on.

use std::time::Duration;

use super::*;
use crate::decision::turn::earlier_tickets;

#[track_caller]
fn expect_rows(rows: Vec<(&str, Request, Memory, Short)>) {
    for (row, request, memory, expected) in rows {
        assert_eq!(decided(&request, &memory), expected, "{row}");
    }
}

fn put(
    text: &str,
    index: Option<u32>,
    replaced: Option<u64>,
) -> (String, Option<u32>, Option<u64>) {
    (text.to_owned(), index, replaced)
}

#[test]
fn each_row_decides_if_it_applies_alone() {
    let of_process = || request("x").by(Asker::Process(process(7)));
    let ending = || {
        run(1, "x")
            .dead()
            .with(|record| record.live.ending = Some(7))
    };
    #[rustfmt::skip]
    expect_rows(vec![
        ("nothing there", request("x"), memory([]), taken("x")),
        ("1: the file is not a lock", request("x"), memory([not_a_lock(1, "x")]), Short::Refuse(1)),
        ("1: a relative's file is not a lock", request("x"), memory([not_a_lock(1, "x/t")]), taken("x")),
        ("2: held by the same process", of_process(), memory([detached(1, "x", process(7))]), Short::AlreadyHeld(1)),
        ("3: the caller runs inside of it", request("x").inside(1), memory([run(1, "x")]), Short::Blocked(1)),
        ("3: the caller runs inside of its parent", request("x/t").inside(1), memory([run(1, "x")]), Short::Blocked(1)),
        ("3: the caller runs inside of its child", request("x").inside(1), memory([run(1, "x/t")]), Short::Blocked(1)),
        ("3: a zombie not to be taken", request("x").leaving_zombies(), memory([run(1, "x").dead()]), Short::Blocked(1)),
        ("3: a related zombie not to be taken", request("x").leaving_zombies(), memory([run(1, "x/t").dead()]), Short::Blocked(1)),
        ("3: a takeover is not safe", request("x"), memory([run(1, "x").dead()]).over_a_network(), Short::Blocked(1)),
        ("3: a finished --exec where takeover is not safe", request("x"), memory([run(1, "x").finished()]).over_a_network(), Short::Blocked(1)),
        ("4: held by another", request("x"), memory([run(1, "x")]), Short::Wait(1)),
        ("4: its parent is held", request("x/t"), memory([run(1, "x")]), Short::Wait(1)),
        ("4: its grandparent is held", request("x/t/u"), memory([run(1, "x")]), Short::Wait(1)),
        ("4: its child is held", request("x"), memory([run(1, "x/t")]), Short::Wait(1)),
        ("4: dead, and not to be taken over yet", request("x"), memory([run(1, "x").without_key_for(19_999)]), Short::Wait(1)),
        ("3: the same, and not to be taken", request("x").leaving_zombies(), memory([run(1, "x").without_key_for(0)]), Short::Blocked(1)),
        ("4: unverified", request("x"), memory([run(1, "x").unverified()]), Short::Wait(1)),
        ("4: held by one owner, asked for by another", request("x/t").owned_by("b"), memory([run(1, "x").owned_by("a")]), Short::Wait(1)),
        ("4: the same name is held by the same owner", request("x").owned_by("a"), memory([run(1, "x").owned_by("a")]), Short::Wait(1)),
        ("5: an earlier waiter", request("x"), memory([]).awaited_by([request("x")]), Short::WaitBehind(1)),
        ("5: an earlier waiter for the parent", request("x/t"), memory([]).awaited_by([request("x")]), Short::WaitBehind(1)),
        ("5: an earlier waiter for a child", request("x"), memory([]).awaited_by([request("x/t")]), Short::WaitBehind(1)),
        ("4: its child is held, beside a zombie", request("x"), memory([run(1, "x").dead(), run(2, "x/t")]), Short::Wait(2)),
        ("4: its work is being ended", request("x"), memory([ending()]), Short::Wait(1)),
        ("6: its work has ended, as the caller has seen", Request { over: vec![ending().revision], ..request("x") }, memory([ending()]), Short::Take(vec![put("x", None, Some(1))], vec![])),
        ("5: a hold that is over is over for an earlier waiter, too", Request { over: vec![ending().revision], ..request("x") }, memory([ending()]).awaited_by([request("x")]), Short::WaitBehind(1)),
        ("4: the work of another record with its number has ended", Request { over: vec![Revision { file: 2, ..ending().revision }], ..request("x") }, memory([ending()]), Short::Wait(1)),
        ("6: a sibling is held", request("x/t"), memory([run(1, "x/u")]), taken("x/t")),
        ("6: a parent of the same owner is held", request("x/t").owned_by("a"), memory([run(1, "x").owned_by("a")]), taken("x/t")),
        ("6: a hold that can be taken over by now", request("x"), memory([run(1, "x").without_key_for(20_000)]), Short::Take(vec![put("x", None, Some(1))], vec![])),
        ("6: a zombie is replaced", request("x"), memory([run(1, "x").dead()]), Short::Take(vec![put("x", None, Some(1))], vec![])),
        ("6: what a finished --exec left is replaced, also by who leaves zombies", request("x").leaving_zombies(), memory([run(1, "x").finished()]), Short::Take(vec![put("x", None, Some(1))], vec![])),
        ("6: dead relatives are removed", request("x/t"), memory([run(1, "x").dead(), run(2, "x/t/u").dead(), run(3, "x/u").dead()]), Short::Take(vec![put("x/t", None, None)], vec![1, 2])),
        ("6: dead relatives of the same owner may stay", request("x/t").owned_by("a"), memory([run(1, "x").owned_by("a").dead()]), taken("x/t")),
    ]);
}

#[test]
fn earlier_row_decides_if_two_apply() {
    let by_lease = || request("x").by(Asker::Lease).owned_by("a");
    let own_lease = || lease(1, "x").owned_by("a");
    let shared_by_lease = || {
        request_for(vec![want("x", SHARED)])
            .by(Asker::Lease)
            .owned_by("a")
    };
    let inside = || request("x/t").inside(9);
    let waiter = || [request("x")];
    #[rustfmt::skip]
    expect_rows(vec![
        ("1 before 2", shared_by_lease(), memory([not_a_lock(5, "x"), own_lease().shared(0)]), Short::Refuse(5)),
        ("1 before 3", inside(), memory([run(9, "x"), not_a_lock(5, "x/t")]), Short::Refuse(5)),
        ("1 before 4", request("x/t"), memory([run(4, "x"), not_a_lock(5, "x/t")]), Short::Refuse(5)),
        ("1 before 5", request("x"), memory([not_a_lock(5, "x")]).awaited_by(waiter()), Short::Refuse(5)),
        ("2 before 3", by_lease().inside(9), memory([own_lease(), run(9, "x/t")]), Short::AlreadyHeld(1)),
        ("2 before 4", by_lease(), memory([run(4, "x/t"), own_lease()]), Short::AlreadyHeld(1)),
        ("2 before 5", by_lease(), memory([own_lease()]).awaited_by(waiter()), Short::AlreadyHeld(1)),
        ("3 before 4: own name held by another, inside the parent", inside(), memory([run(4, "x/t"), run(9, "x")]), Short::Blocked(9)),
        ("3 before 4: a child held by another, inside the next", request("x").inside(9), memory([run(4, "x/a"), run(9, "x/b")]), Short::Blocked(9)),
        ("3 before 4: the other order", request("x").inside(9), memory([run(9, "x/a"), run(4, "x/b")]), Short::Blocked(9)),
        ("3 before 4: one name held by another, inside the other", request_for(vec![want("a", EXCLUSIVE), want("x", EXCLUSIVE)]).inside(9), memory([run(4, "a"), run(9, "x")]), Short::Blocked(9)),
        ("3 before 4: a parent held by another, own name a zombie not to be taken", request("x/t").leaving_zombies(), memory([run(4, "x"), run(5, "x/t").dead()]), Short::Blocked(5)),
        ("3 before 4: own name held, parent a zombie not to be taken", request("x/t").leaving_zombies(), memory([run(4, "x/t"), run(5, "x").dead()]), Short::Blocked(5)),
        ("3 before 5", request("x").inside(9), memory([run(9, "x")]).awaited_by(waiter()), Short::Blocked(9)),
        ("4 before 5", request("x"), memory([run(4, "x")]).awaited_by(waiter()), Short::Wait(4)),
        ("5 before 6", request("x"), memory([run(4, "x").dead()]).awaited_by(waiter()), Short::WaitBehind(1)),
    ]);
}

#[test]
fn confirmation_is_awaited_where_the_hold_may_be_the_same_or_is_to_be_replaced() {
    let holder = || {
        detached(1, "x", process(7))
            .owned_by("a")
            .unconfirmed(4_999)
    };
    let own_lease = || lease(1, "x").owned_by("a").unconfirmed(4_999);
    let reader = || own_lease().shared(0);
    let named = |owner: &str| {
        let by = Asker::Process(process(7));
        request("x").by(by).owned_by(owner)
    };
    let by_lease = |owner: &str| request("x").by(Asker::Lease).owned_by(owner);
    let to_share = || {
        let wants = request_for(vec![want("x", SHARED)]);
        wants.by(Asker::Lease).owned_by("a")
    };
    let other_name = || request("x/t").by(Asker::Lease).owned_by("b");
    #[rustfmt::skip]
    let rows: Vec<(&str, Request, Found<u64>, bool)> = vec![
        ("leases of one owner", by_lease("a"), own_lease(), true),
        ("leases of two owners", by_lease("b"), own_lease(), false),
        ("a lease and a process", named("a"), own_lease(), false),
        ("a process that is not on record yet", named("a"), holder(), true),
        ("a process, another owner", named("b"), holder(), false),
        ("a run of the same owner", request("x").owned_by("a"), own_lease(), false),
        ("a script of the same owner", request("x").by(Asker::Derived(process(10))).owned_by("a"), holder(), false),
        ("shared leases of one owner", to_share(), reader(), true),
        ("another name", other_name(), own_lease(), false),
        ("a forced take", request("x").replacing(&own_lease()), own_lease(), true),
        ("not confirmed within 5 s", by_lease("a"), own_lease().unconfirmed(5_000), false),
        ("confirmed", by_lease("a"), lease(1, "x").owned_by("a"), false),
        ("its acquirer is dead", by_lease("a"), own_lease().dead(), false),
    ];
    for (row, request, found, is_awaited) in rows {
        assert_eq!(
            awaits_confirmation(&request, &judged(&found)),
            is_awaited,
            "{row}"
        );
        if is_awaited {
            assert_eq!(decided(&request, &memory([found])), Short::Wait(1), "{row}");
        }
    }
    let stuck = own_lease().unconfirmed(5_000);
    let taken = Short::Take(vec![("x".to_owned(), None, Some(1))], vec![]);
    assert_eq!(
        decided(&request("x").replacing(&stuck), &memory([stuck])),
        taken
    );
}

#[test]
fn detached_hold_is_confirmed_within_5_s_or_not_at_all() {
    let left = |found: Found<u64>| judged(&found).confirmed_within();
    let job = || detached(1, "x", process(7));
    let young = |found: Found<u64>| {
        found.with(|record| {
            record.acquired_at = now();
            if let Some(origin) = &mut record.origin {
                origin.acquired_boottime_ms = BOOTTIME;
            }
        })
    };
    assert_eq!(left(job().unconfirmed(1_000)), Some(Duration::from_secs(4)));
    assert_eq!(left(job().unconfirmed(5_000)), None, "too late");
    assert_eq!(
        left(job().unconfirmed(0).dead()),
        None,
        "its acquirer has ended"
    );
    assert_eq!(left(young(job())), None, "confirmed");
    assert_eq!(left(young(run(1, "x"))), None, "not detached");
    let foreign = young(job().unconfirmed(0)).with(|record| record.origin = None);
    assert_eq!(left(foreign), None, "other programs confirm nothing");
}

#[test]
fn hold_of_several_names_is_already_held_only_while_it_is_whole() {
    let ask = |mode| {
        let wants = request_for(vec![want("x", mode), want("y", mode)]);
        wants.by(Asker::Lease).owned_by("a")
    };
    let both = || lease(1, "x").owned_by("a").and("y");
    let [first, second] = both();
    let three = || both().map(|found| found.with(|record| record.names.push("z".to_owned())));
    let other_second = || {
        let wants = request_for(vec![want("x", EXCLUSIVE), want("z", EXCLUSIVE)]);
        wants.by(Asker::Lease).owned_by("a")
    };
    let [shared, also_shared] = both().map(|found| found.shared(0));
    #[rustfmt::skip]
    expect_rows(vec![
        ("whole", ask(EXCLUSIVE), memory(both()), Short::AlreadyHeld(1)),
        ("the second is gone", ask(EXCLUSIVE), memory([first.clone()]), Short::Blocked(1)),
        ("the first is gone", ask(EXCLUSIVE), memory([second]), Short::Blocked(1)),
        ("the second is another's", ask(EXCLUSIVE), memory([first, run(2, "y")]), Short::Blocked(1)),
        ("of another second name", other_second(), memory(both()), Short::Wait(1)),
        ("of one more name", ask(EXCLUSIVE), memory(three()), Short::Wait(1)),
        ("shared", ask(SHARED), memory([shared.clone(), also_shared]), Short::AlreadyHeld(1)),
        ("shared, and the second is gone", ask(SHARED), memory([shared]), Short::Blocked(1)),
    ]);
}

#[test]
fn caller_below_whoever_keeps_a_lock_waits_for_itself() {
    let locked_by = |number: u32| {
        let mut found = run(1, "x").dead().with(|record| record.origin = None);
        found.facts.kernel_lock = Some(true);
        found.facts.lockers = vec![process(number).pid];
        found
    };
    let below = |number| ProcessId {
        start: None,
        ..process(number)
    };
    let kept = || {
        lease(1, "x").with(|record| {
            record.hold_at_least_ms = Some(7_200_000);
            record.live.ended = Some(crate::record::CommandEnd::now(Some(0), None));
        })
    };
    let waiting = || Request {
        waits_beside: Some(0),
        ..request("x")
    };
    let on_etcd = |mut found: Found<u64>| {
        found.facts.life = Some(Life::Kept);
        found
    };
    #[rustfmt::skip]
    expect_rows(vec![
        ("an ancestor has locked the file of another process", request("x"), memory([locked_by(7)]).below([below(7)]), Short::Blocked(1)),
        ("another process has done so", request("x"), memory([locked_by(7)]).below([below(8)]), Short::Wait(1)),
        ("the command of a hold has ended", request("x").inside(1), memory([kept()]), Short::Wait(1)),
        ("a run whose wrapper and command are ancestors", waiting(), memory([run(1, "x")]).below([process(11), process(10)]), Short::Blocked(1)),
        ("its wrapper is, which has adopted the caller", waiting(), memory([run(1, "x")]).below([process(10)]), Short::Blocked(1)),
        ("a run above, of the parent", Request { waits_beside: Some(0), ..request("x/t") }, memory([run(1, "x")]).below([process(10)]), Short::Blocked(1)),
        ("a run above, which was looked for before", Request { waits_beside: Some(1), ..request("x") }, memory([run(1, "x")]).below([process(10)]), Short::Wait(1)),
        ("a run above, and no wait", request("x"), memory([run(1, "x")]).below([process(10)]), Short::Wait(1)),
        ("a run above in another PID namespace", waiting(), memory([run(1, "x").unverified()]).below([process(11)]), Short::Wait(1)),
        ("a run of another", waiting(), memory([run(1, "x")]).below([process(12)]), Short::Wait(1)),
        ("on etcd, a run above", waiting(), memory([on_etcd(run(1, "x"))]).below([process(11)]), Short::Blocked(1)),
        ("on etcd, a run whose PIDs mean others here", waiting(), memory([on_etcd(run(1, "x").unverified())]).below([process(11)]), Short::Wait(1)),
    ]);
}

#[test]
fn detached_hold_is_already_held_only_by_the_same_holder() {
    let named = |number| request("x").by(Asker::Process(process(number)));
    let reused = || {
        request("x").by(Asker::Process(ProcessId {
            start: Some(1),
            ..process(7)
        }))
    };
    let holder = || detached(1, "x", process(7));
    let by_lease = || request("x").by(Asker::Lease);
    let library_hold = || {
        run(1, "x").with(|record| {
            record.kind = Kind::Process;
            record.live.set_process(Some(process(7)));
        })
    };
    #[rustfmt::skip]
    expect_rows(vec![
        ("the same process", named(7), memory([holder()]), Short::AlreadyHeld(1)),
        ("the same process and owner", named(7).owned_by("a"), memory([holder().owned_by("a")]), Short::AlreadyHeld(1)),
        ("the same process, no owner given", named(7), memory([holder().owned_by("a")]), Short::AlreadyHeld(1)),
        ("the same process, another owner", named(7).owned_by("b"), memory([holder().owned_by("a")]), Short::Wait(1)),
        ("the same process, no owner on record", named(7).owned_by("b"), memory([holder()]), Short::Wait(1)),
        ("the same process, in a format without owners", named(7).owned_by("b"), memory([holder().with(|record| record.format = Format::Prodigy)]), Short::AlreadyHeld(1)),
        ("the same PID with another start", reused(), memory([holder()]), Short::Wait(1)),
        ("another process", named(8), memory([holder()]), Short::Wait(1)),
        ("another process of the same owner", named(8).owned_by("a"), memory([holder().owned_by("a")]), Short::Wait(1)),
        ("the same numbers in another PID namespace", named(7), memory([holder().unverified()]), Short::Wait(1)),
        ("the process was derived", request("x").by(Asker::Derived(process(10))), memory([holder()]), Short::Wait(1)),
        ("the caller itself", request("x").by(Asker::Caller), memory([holder()]), Short::Wait(1)),
        ("not confirmed yet", named(7), memory([holder().unconfirmed(0)]), Short::Wait(1)),
        ("dead", named(7), memory([holder().dead()]), Short::Take(vec![put("x", None, Some(1))], vec![])),
        ("held by a run with that command", request("x").by(Asker::Process(process(11))), memory([run(1, "x")]), Short::Wait(1)),
        ("held by a library in that process", named(7), memory([library_hold()]), Short::Wait(1)),
        ("a relative is held by the same process", request("x/t").by(Asker::Process(process(7))), memory([holder()]), Short::Blocked(1)),
        ("leases of one owner", by_lease().owned_by("a"), memory([lease(1, "x").owned_by("a")]), Short::AlreadyHeld(1)),
        ("leases of two owners", by_lease().owned_by("b"), memory([lease(1, "x").owned_by("a")]), Short::Wait(1)),
        ("leases without owner", by_lease(), memory([lease(1, "x")]), Short::Wait(1)),
        ("leases with an empty owner", by_lease().owned_by(""), memory([lease(1, "x").owned_by("")]), Short::Wait(1)),
        ("an expired lease of one owner", by_lease().owned_by("a"), memory([lease(1, "x").owned_by("a").expired()]), Short::Take(vec![put("x", None, Some(1))], vec![])),
        ("a lease, and a process of one owner", named(7).owned_by("a"), memory([lease(1, "x").owned_by("a")]), Short::Wait(1)),
        ("a process, and a lease of one owner", by_lease().owned_by("a"), memory([holder().owned_by("a")]), Short::Wait(1)),
        ("shared, by the same lease", request_for(vec![want("x", SHARED)]).by(Asker::Lease).owned_by("a"), memory([run(5, "x").shared(0), lease(1, "x").owned_by("a").shared(1)]), Short::AlreadyHeld(1)),
        ("shared, and asked for exclusively", by_lease().owned_by("a"), memory([lease(1, "x").owned_by("a").shared(0)]), Short::Wait(1)),
        ("exclusive, and asked for shared", request_for(vec![want("x", SHARED)]).by(Asker::Lease).owned_by("a"), memory([lease(1, "x").owned_by("a")]), Short::Wait(1)),
        ("one of two names", request_for(vec![want("x", EXCLUSIVE), want("y", EXCLUSIVE)]).by(Asker::Lease).owned_by("a"), memory([lease(1, "x").owned_by("a")]), Short::Wait(1)),
    ]);
}

#[test]
fn hold_of_the_callers_own_script_blocks_unless_a_live_part_of_it_can_release() {
    let (script, subshell) = (process(7), process(8));
    let derived = |caller_fact: ProcessFact| {
        let mut found = detached(1, "x", script).with(|record| record.caller = Some(subshell));
        found.facts.processes.push(caller_fact);
        found
    };
    let named = || detached(1, "x", script);
    let ask = || request("x").by(Asker::Derived(process(10)));
    #[rustfmt::skip]
    expect_rows(vec![
        ("the subshell that asked has ended", ask(), memory([derived(gone(subshell))]).below([script]), Short::Blocked(1)),
        ("the subshell that asked is an ancestor", ask(), memory([derived(alive(subshell))]).below([subshell, script]), Short::Blocked(1)),
        ("a live sibling subshell asked", ask(), memory([derived(alive(subshell))]).below([script]), Short::Wait(1)),
        ("whether it has ended is not known", ask(), memory([derived(ProcessFact { state: ProcessState::Unknown, ..alive(subshell) })]).below([script]), Short::Wait(1)),
        ("another script asks", ask(), memory([derived(gone(subshell))]), Short::Wait(1)),
        ("named, and the caller belongs to it", ask(), memory([named()]).below([script]), Short::Blocked(1)),
        ("named, and the caller does not belong to it", ask(), memory([named()]), Short::Wait(1)),
        ("the script's hold of the parent", request("x/t"), memory([named()]).below([script]), Short::Blocked(1)),
        ("the script is dead", ask(), memory([named().dead()]).below([script]), Short::Take(vec![put("x", None, Some(1))], vec![])),
        ("the same numbers in another PID namespace", ask(), memory([named().unverified()]).below([script]), Short::Wait(1)),
        ("a lease", ask(), memory([lease(1, "x")]).below([process(10)]), Short::Wait(1)),
    ]);
}

#[test]
fn shared_holds_are_granted_up_to_their_limit() {
    let ask = |mode| request_for(vec![want("x", mode)]);
    let (first, second) = (run(1, "x").shared(0), run(2, "x").shared(1));
    let holds = || [first.clone(), second.clone()];
    let at = |index, replaced| Short::Take(vec![put("x", Some(index), replaced)], vec![]);
    let gap = || [run(1, "x").shared(0), run(2, "x").shared(2)];
    #[rustfmt::skip]
    expect_rows(vec![
        ("the first", ask(SHARED), memory([]), at(0, None)),
        ("the third", ask(SHARED), memory(holds()), at(2, None)),
        ("the lowest free index", ask(SHARED), memory(gap()), at(1, None)),
        ("the lowest dead index", ask(SHARED), memory([first.clone().dead(), second.clone()]), at(0, Some(1))),
        ("fewer than the limit", ask(slots(3)), memory(holds()), at(2, None)),
        ("as many as the limit", ask(slots(2)), memory(holds()), Short::Wait(1)),
        ("an earlier reader could take the last slot", ask(slots(2)), memory([first.clone()]).awaited_by([ask(SHARED)]), Short::WaitBehind(1)),
        ("an earlier reader of a child", ask(slots(2)), memory([first.clone()]).awaited_by([request_for(vec![want("x/t", SHARED)])]), at(1, None)),
        ("as many as the limit, one of them dead", ask(slots(2)), memory([first.clone().dead(), second.clone()]), at(0, Some(1))),
        ("a dead one whose file stays gives its slot back", ask(slots(1)), memory([first.clone().dead().staying()]), at(1 << 20, None)),
        ("the slot has a record of the caller's, dead too", ask(slots(1)), memory([first.clone().dead().staying(), run(2, "x").shared(1 << 20).dead()]), at(1 << 20, Some(2))),
        ("the slot has a live holder beside the dead one", ask(slots(2)), memory([first.clone().dead().staying(), run(2, "x").shared(1 << 20)]), at(1, None)),
        ("as many as the limit, one of them dead and not to be taken", ask(slots(2)).leaving_zombies(), memory([first.clone().dead(), second.clone()]), Short::Wait(2)),
        ("all of them dead and not to be taken", ask(slots(1)).leaving_zombies(), memory([first.clone().dead()]), Short::Blocked(1)),
        ("a dead one is not taken where that is not safe", ask(SHARED), memory([first.clone().dead()]).over_a_network(), at(1, None)),
        ("inside one of two: the other may end", ask(slots(2)).inside(1), memory(holds()), Short::Wait(2)),
        ("inside all of them", ask(slots(2)).inside(1).inside(2), memory(holds()), Short::Blocked(1)),
        ("the work of one is being ended", ask(slots(2)), memory([first.clone(), second.clone().with(|record| record.live.ending = Some(7))]), Short::Wait(2)),
        ("a dead one of the second name", request_for(vec![want("x", SHARED), want("y", SHARED)]), memory([run(1, "y").shared(0).dead()]), Short::Take(vec![put("x", Some(0), None), put("y", Some(0), Some(1))], vec![])),
        ("held exclusively", ask(SHARED), memory([run(1, "x")]), Short::Wait(1)),
        ("exclusive beside shared", ask(EXCLUSIVE), memory(holds()), Short::Wait(1)),
        ("exclusive beside dead shared: they are removed", ask(EXCLUSIVE), memory([first.clone().dead()]), Short::Take(vec![put("x", None, None)], vec![1])),
        ("shared beside a dead exclusive one: it is removed", ask(SHARED), memory([run(1, "x").dead()]), Short::Take(vec![put("x", Some(0), None)], vec![1])),
        ("shared below a shared parent", request_for(vec![want("x/t", SHARED)]), memory(holds()), Short::Take(vec![put("x/t", Some(0), None)], vec![])),
        ("exclusive below a shared parent", request("x/t"), memory(holds()), Short::Wait(1)),
        ("shared below an exclusive parent", request_for(vec![want("x/t", SHARED)]), memory([run(1, "x")]), Short::Wait(1)),
        ("two names of two modes", request_for(vec![want("x", SHARED), want("y", EXCLUSIVE)]), memory(holds()), Short::Take(vec![put("x", Some(2), None), put("y", None, None)], vec![])),
        ("two names, the second held", request_for(vec![want("x", SHARED), want("y", EXCLUSIVE)]), memory([run(1, "y")]), Short::Wait(1)),
        ("a live shared hold is replaced in its place", ask(slots(2)).replacing(&first), memory(holds()), at(0, Some(1))),
        ("what is replaced is removed first", ask(EXCLUSIVE).replacing(&second), memory([first.clone().dead(), second.clone()]), Short::Take(vec![put("x", None, None)], vec![2, 1])),
        ("a live shared hold is replaced by an exclusive one", ask(EXCLUSIVE).replacing(&first), memory([first.clone()]), Short::Take(vec![put("x", None, None)], vec![1])),
    ]);
}

#[test]
fn replaced_hold_does_not_count_and_no_other_does_so() {
    let shown = run(1, "x");
    let later = run(2, "x");
    let replacing = || request("x").replacing(&shown);
    #[rustfmt::skip]
    expect_rows(vec![
        ("as shown", replacing(), memory([shown.clone()]), Short::Take(vec![put("x", None, Some(1))], vec![])),
        ("a later one", replacing(), memory([later]), Short::Wait(2)),
        ("free by now", replacing(), memory([]), taken("x")),
        ("as shown, and the parent is held", request("x/t").replacing(&run(1, "x/t")), memory([run(1, "x/t"), run(2, "x")]), Short::Wait(2)),
    ]);
}

#[test]
fn waiter_that_could_not_take_its_lock_is_in_the_way_of_nobody() {
    let of_another_namespace = || {
        let mut request = request("x");
        request
            .observer
            .as_mut()
            .expect("it is known")
            .pid_namespace = Some(3);
        request
    };
    // Without its kernel lock, and unseen from there.
    let dead_here = || {
        let mut found = run(1, "x").dead();
        found.facts.kernel_lock = None;
        found
    };
    let task = || request("sec/t").owned_by("a");
    #[rustfmt::skip]
    expect_rows(vec![
        ("a stranger waits for a task of the section's owner", task(), memory([run(1, "sec").owned_by("a")]).awaited_by([request("sec/t").owned_by("b")]), taken("sec/t")),
        ("a stranger waits for the section, its owner asks for a task", task(), memory([run(1, "sec/s").owned_by("a")]).awaited_by([request("sec").owned_by("b")]), taken("sec/t")),
        ("an upgrade: the owner of a task asks for the section", request("sec").owned_by("a"), memory([run(1, "sec/s").owned_by("a")]).awaited_by([request("sec").owned_by("b")]), taken("sec")),
        ("a waiter that cannot see that the holder is dead", request("x"), memory([dead_here()]).awaited_by([of_another_namespace()]), Short::Take(vec![put("x", None, Some(1))], vec![])),
        ("a waiter that leaves zombies", request("x"), memory([run(1, "x").dead()]).awaited_by([request("x").leaving_zombies()]), Short::Take(vec![put("x", None, Some(1))], vec![])),
        ("a waiter for the section while a task is held", request("sec/t"), memory([run(1, "sec/s")]).awaited_by([request("sec")]), taken("sec/t")),
        ("a waiter for two names, one of them held", request("a"), memory([run(1, "b")]).awaited_by([request_for(vec![want("a", EXCLUSIVE), want("b", EXCLUSIVE)])]), taken("a")),
        ("a waiter for two names, both free", request("a"), memory([]).awaited_by([request_for(vec![want("a", EXCLUSIVE), want("b", EXCLUSIVE)])]), Short::WaitBehind(1)),
        ("a waiter for two names, the second reserved for another", request("a"), memory([]).awaited_by([request("b"), request_for(vec![want("a", EXCLUSIVE), want("b", EXCLUSIVE)])]), taken("a")),
        ("a waiter for a sibling", request("sec/t"), memory([]).awaited_by([request("sec/s")]), taken("sec/t")),
        ("a waiter of the same owner for the section", task(), memory([]).awaited_by([request("sec").owned_by("a")]), taken("sec/t")),
        ("a waiter for a limited lock that is full", request_for(vec![want("x", slots(3))]), memory([run(1, "x").shared(0), run(2, "x").shared(1)]).awaited_by([request_for(vec![want("x", slots(2))])]), Short::Take(vec![put("x", Some(2), None)], vec![])),
    ]);
}

#[test]
fn queue_is_served_in_order() {
    let queue = || memory([]).awaited_by([request("x"), request("x"), request("x")]);
    assert_eq!(queue().of_waiter(1), taken("x"));
    assert_eq!(queue().of_waiter(2), Short::WaitBehind(1));
    assert_eq!(queue().of_waiter(3), Short::WaitBehind(1));
    assert_eq!(decided(&request("x"), &queue()), Short::WaitBehind(1));
    let skipping = request("x").skipping_the_queue();
    assert_eq!(decided(&skipping, &queue()), taken("x"), "on request");
    // The first waiter for the section waits for a task; so the task behind it may go on.
    let mixed = memory([run(1, "sec/a")]).awaited_by([request("sec"), request("sec/b")]);
    assert_eq!(mixed.of_waiter(1), Short::Wait(1));
    assert_eq!(mixed.of_waiter(2), taken("sec/b"));
    // A waiter that is granted first blocks the next one, which then blocks no other.
    let chain = memory([]).awaited_by([request("sec/a"), request("sec"), request("sec/b")]);
    assert_eq!(chain.of_waiter(1), taken("sec/a"));
    assert_eq!(chain.of_waiter(2), Short::WaitBehind(1));
    assert_eq!(chain.of_waiter(3), taken("sec/b"));
}

#[test]
fn reservation_holds_for_5_s() {
    let queue = |ago_ms| {
        memory([])
            .awaited_by([request("x"), request("x")])
            .reserved(1, ago_ms)
    };
    assert_eq!(decided(&request("x"), &queue(0)), Short::WaitBehind(1));
    assert_eq!(decided(&request("x"), &queue(4_999)), Short::WaitBehind(1));
    assert_eq!(decided(&request("x"), &queue(5_000)), Short::WaitBehind(2));
    assert_eq!(queue(5_000).of_waiter(2), taken("x"));
    assert_eq!(
        queue(5_000).of_waiter(1),
        taken("x"),
        "it may still come first"
    );
    let mut of_another_boot = queue(0);
    of_another_boot.tickets[0].reserved_since_ms = Some(BOOTTIME + 1);
    assert_eq!(
        decided(&request("x"), &of_another_boot),
        Short::WaitBehind(2)
    );
}

#[test]
fn new_readers_do_not_pass_a_waiting_writer() {
    let reader = || request_for(vec![want("x", SHARED)]);
    let readers = || memory([run(1, "x").shared(0)]);
    let at = |index| Short::Take(vec![put("x", Some(index), None)], vec![]);
    let awaited = |waiter| readers().awaited_by([waiter]);
    let both = |mode| request_for(vec![want("x", mode), want("y", mode)]);
    let mut patient = request("x");
    patient.max_age_ms *= 1_000;
    let of_subshell = || {
        let mut found = detached(1, "x", process(70)).shared(0);
        found.facts.processes.push(alive(process(8)));
        found.with(|record| record.caller = Some(process(8)))
    };
    #[rustfmt::skip]
    expect_rows(vec![
        ("a writer waits for readers only", reader(), awaited(request("x")), Short::WaitBehind(1)),
        ("a reader inside a shared hold of that name", reader().inside(1), awaited(request("x")), at(1)),
        ("a reader inside another hold", reader().inside(8), awaited(request("x")), Short::WaitBehind(1)),
        ("a reader below the process of such a hold, which its environment does not tell", reader(), memory([detached(1, "x", process(70)).shared(0)]).below([process(70)]).awaited_by([request("x")]), at(1)),
        ("a reader below such a process, for which another part of its script has asked", reader(), memory([of_subshell()]).below([process(70)]).awaited_by([request("x")]), at(1)),
        ("the writer waits for what only it cannot see to be dead", reader(), memory([run(1, "x").shared(0).too_old()]).awaited_by([patient]), Short::Take(vec![put("x", Some(0), Some(1))], vec![])),
        ("another reader waits", reader(), awaited(reader()), at(1)),
        ("the writer waits for another hold too", reader(), memory([run(1, "x").shared(0), run(2, "x/t")]).awaited_by([request("x")]), Short::Wait(2)),
        ("the writer waits for a parent's readers", request_for(vec![want("x/t", SHARED)]), awaited(request("x/t")), Short::Take(vec![put("x/t", Some(0), None)], vec![])),
        ("the writer leaves a zombie, and waits for a reader too", reader(), memory([run(1, "x").shared(0), run(2, "x").shared(1).dead()]).awaited_by([request("x").leaving_zombies()]), Short::Take(vec![put("x", Some(1), Some(2))], vec![])),
        ("the writer waits for readers of another lock", request("y"), awaited(both(EXCLUSIVE)), taken("y")),
        ("the same, and a reader asks for the free one", request_for(vec![want("y", SHARED)]), awaited(both(EXCLUSIVE)), Short::Take(vec![put("y", Some(0), None)], vec![])),
        ("the same, and a reader asks for both", both(SHARED), awaited(both(EXCLUSIVE)), Short::WaitBehind(1)),
        ("the writer has missed its turn", reader(), awaited(request("x")).reserved(1, 5_000), at(1)),
    ]);
}

#[test]
fn waiter_sleeps_on_the_latest_earlier_waiter_like_itself_or_on_the_hold() {
    let slept_on = |request: &Request, memory: &Memory| {
        let Decision::Wait(obstacle) = decide_in(request, memory) else {
            panic!("it need not wait");
        };
        let until = until(request, obstacle, memory).unwrap();
        match until {
            Until::Released(judged) => (Short::Wait(judged.found.handle), None),
            Until::Ripe(judged, after) => (Short::Wait(judged.found.handle), Some(after.as_secs())),
            Until::AnyReleased(holders, after) => {
                let holders = holders.into_iter().map(|judged| judged.found.handle);
                let seconds = after.map(|after| after.as_secs());
                (Short::WaitForAny(holders.collect()), seconds)
            }
            Until::LeftQueue(ticket, interval) => {
                (Short::WaitBehind(ticket.number), Some(interval.as_secs()))
            }
        }
    };
    let held = || memory([run(1, "x")]);
    let full = || memory([run(1, "x").shared(0), run(2, "x").shared(1)]);
    #[rustfmt::skip]
    let rows: Vec<(&str, Request, Memory, Short, Option<u64>)> = vec![
        ("no other waiter", request("x"), held(), Short::Wait(1), None),
        ("one other waiter: it may have been stopped", request("x"), held().awaited_by([request("x")]), Short::WaitBehind(1), Some(5)),
        ("two of them: it looks half as often", request("x"), held().awaited_by([request("x"), request("x")]), Short::WaitBehind(2), Some(10)),
        ("three of them, one of which has missed its turn, which is not read", request("x"), held().awaited_by([request("x"), request("x"), request("x")]).reserved(1, 5_000), Short::WaitBehind(3), Some(15)),
        ("two of them, and one that waits for a child", request("x"), held().awaited_by([request("x/t"), request("x"), request("x")]), Short::WaitBehind(3), Some(10)),
        ("many of them", request("x"), held().awaited_by(std::iter::repeat_n(request("x"), 20)), Short::WaitBehind(20), Some(60)),
        ("another waits for that hold, and for one more", request("x"), held().awaited_by([request_for(vec![want("x", EXCLUSIVE), want("y", EXCLUSIVE)])]), Short::Wait(1), None),
        ("another waits for the parent", request("x/t"), memory([run(1, "x/t")]).awaited_by([request("x")]), Short::Wait(1), None),
        ("another owner waits for a hold of a third", request("x").owned_by("a"), held().awaited_by([request("x").owned_by("b")]), Short::WaitBehind(1), Some(5)),
        ("another owner waits for a hold of ours, which may hold a child", request("x").owned_by("a"), memory([run(1, "x").owned_by("a")]).awaited_by([request("x").owned_by("b")]), Short::Wait(1), None),
        ("another owner waits for a child", request("x").owned_by("a"), memory([run(1, "x/t")]).awaited_by([request("x").owned_by("b")]), Short::Wait(1), None),
        ("one that skips the queue", request("x").skipping_the_queue(), held().awaited_by([request("x")]), Short::Wait(1), None),
        ("another leaves zombies", request("x"), held().awaited_by([request("x").leaving_zombies()]), Short::Wait(1), None),
        ("another takes zombies", request("x").leaving_zombies(), held().awaited_by([request("x")]), Short::WaitBehind(1), Some(5)),
        ("another runs inside of a hold", request("x"), held().awaited_by([request("x").inside(8)]), Short::WaitBehind(1), Some(5)),
        ("free, and two of them", request("x"), memory([]).awaited_by([request("x"), request("x")]), Short::WaitBehind(2), Some(5)),
        ("free, and one asks for another lock, too", request("x"), memory([]).awaited_by([request_for(vec![want("x", EXCLUSIVE), want("y", EXCLUSIVE)])]), Short::WaitBehind(1), Some(1)),
        ("free, and one asks for the parent", request("x/t"), memory([]).awaited_by([request("x")]), Short::WaitBehind(1), Some(1)),
        ("free, and the last one asks for something else", request("x"), memory([]).awaited_by([request("x"), request("x/t")]), Short::WaitBehind(1), Some(5)),
        ("free, and the last one has another owner", request("x"), memory([]).awaited_by([request("x"), request("x").owned_by("a")]), Short::WaitBehind(2), Some(5)),
        ("free, and the last one has missed its turn", request("x"), memory([]).awaited_by([request("x"), request("x")]).reserved(2, 5_000), Short::WaitBehind(1), Some(5)),
        ("free, and a writer is before other readers", request_for(vec![want("x", SHARED)]), memory([]).awaited_by([request("x"), request_for(vec![want("x", SHARED)])]), Short::WaitBehind(1), Some(5)),
        ("the last one asks for something else", request("x"), held().awaited_by([request("x"), request("x/t")]), Short::WaitBehind(1), Some(5)),
        ("the last one has missed its turn", request("x"), held().awaited_by([request("x"), request("x")]).reserved(2, 5_000), Short::WaitBehind(1), Some(5)),
        ("the only one is stopped", request("x"), held().awaited_by([request("x")]).stopped(1), Short::Wait(1), None),
        ("the last one is stopped", request("x"), held().awaited_by([request("x"), request("x")]).stopped(2), Short::WaitBehind(1), Some(5)),
        ("an earlier one is stopped", request("x"), held().awaited_by([request("x"), request("x")]).stopped(1), Short::WaitBehind(2), Some(10)),
        ("another waits for a sibling", request("x/t"), held().awaited_by([request("x/u")]), Short::Wait(1), None),
        ("another waits for an unrelated lock", request("x"), held().awaited_by([request("y")]), Short::Wait(1), None),
        ("another does not wait for that hold", request("x"), memory([run(1, "x/a").owned_by("a")]).awaited_by([request("x/b").owned_by("a")]), Short::Wait(1), None),
        ("a reader behind a reader: both wake", request_for(vec![want("x", SHARED)]), held().awaited_by([request_for(vec![want("x", SHARED)])]), Short::Wait(1), None),
        ("a writer behind readers", request("x"), full(), Short::Wait(1), None),
        ("all slots are taken", request_for(vec![want("x", slots(2))]), full(), Short::WaitForAny(vec![1, 2]), None),
        ("another waits for one, too", request_for(vec![want("x", slots(2))]), full().awaited_by([request_for(vec![want("x", slots(3))])]), Short::WaitBehind(1), Some(5)),
        ("another that fewer slots are enough for", request_for(vec![want("x", slots(2))]), full().awaited_by([request_for(vec![want("x", slots(1))])]), Short::WaitForAny(vec![1, 2]), None),
        ("a dead one that can be taken over later", request("x"), memory([run(1, "x").without_key_for(5_000)]), Short::Wait(1), Some(15)),
        ("all are dead: the first that can be taken over", request_for(vec![want("x", slots(3))]), memory([(1, 5_000), (2, 9_000), (3, 9_000)].map(|(number, ms)| run(number, "x").shared(u32::try_from(number).unwrap()).without_key_for(ms))), Short::Wait(2), Some(11)),
        ("one of them is dead", request_for(vec![want("x", slots(2))]), memory([run(1, "x").shared(0).without_key_for(0), run(2, "x").shared(1)]), Short::WaitForAny(vec![2]), Some(20)),
        ("a writer waits for all of them", request_for(vec![want("x", slots(2))]), full().awaited_by([request("x")]), Short::WaitForAny(vec![1, 2]), None),
    ];
    for (row, request, memory, expected, seconds) in rows {
        assert_eq!(slept_on(&request, &memory), (expected, seconds), "{row}");
    }
    let behind_itself = held().awaited_by([request("x"), request("x"), request("x")]);
    let own = Request {
        ticket: Some(2),
        ..request("x")
    };
    assert_eq!(
        slept_on(&own, &behind_itself),
        (Short::WaitBehind(1), Some(5)),
        "later waiters do not count"
    );
}

#[test]
fn tickets_behind_the_last_one_for_a_related_name_are_not_read() {
    let read_by = |request: Request, waiters: &[&str]| {
        let queue = memory([]).awaited_by(waiters.iter().map(|text| super::request(text)));
        earlier_tickets(&request, &request.wants, &queue).unwrap()
    };
    assert_eq!(read_by(request("x/t"), &["x/u", "x/v"]), [0; 0]);
    for related in ["x", "x/t", "x/t/u"] {
        let waiters = ["x/u", related, "x/v"];
        assert_eq!(read_by(request("x/t"), &waiters), [1, 2], "{related}");
    }
    let second = Request {
        ticket: Some(2),
        ..request("x")
    };
    assert_eq!(read_by(second, &["x", "x", "x"]), [1]);
}

#[test]
fn each_waiter_for_a_name_is_counted_once() {
    let both = || request_for(vec![want("x", EXCLUSIVE), want("x/t", EXCLUSIVE)]);
    let queue = memory([]).awaited_by([request("x"), both(), request("x/t"), request("x/u")]);
    let waiting = |names: &[&str]| {
        let wants: Vec<Want> = names.iter().map(|text| want(text, EXCLUSIVE)).collect();
        waiting_for(&wants, &queue).unwrap()
    };
    assert_eq!(waiting(&["x"]), 2);
    assert_eq!(waiting(&["x", "x/t"]), 3);
    assert_eq!(waiting(&["x/v"]), 0);
}

#[test]
fn one_decision_removes_at_most_256_dead_relatives() {
    let dead = (1..=300).map(|number| run(number, &format!("x/{number}")).dead());
    let Short::Take(_, removed) = decided(&request("x"), &memory(dead)) else {
        panic!("it is free");
    };
    assert_eq!(removed.len(), 256);
}
