//! The settings in which all that is promised holds.

use super::super::properties::{DEADLOCK, SERVED, SIDE_BY_SIDE, TAKEOVER, TURN_PASSED};
use super::super::world::{Holder, Plan, Setting};
use super::{
    A, A_T, A_U, B, broken, broken_lease, close_elsewhere, counted, counted_slots, crossing,
    cut_off, dying_with, exclusive, giving_up, holds, in_background, inside, kinds_of_waiters,
    lease, lease_of_two_names, let_go_elsewhere, letting_go, of, owner_behind_waiter,
    parent_and_child, renewals, renewing, run, run_that_dies_with_its_caller, shared,
    shared_parent, stopped_waiter, stopping, three_counted_slots, two_commands, two_runs,
    waiter_elsewhere, waiter_that_is_cut_off, with_close, with_commands, with_daemon,
    writer_behind_reader,
};

#[test]
fn model_of_two_runs_holds() {
    holds("two runs", two_runs().must_happen(&[TAKEOVER]));
}

#[test]
fn model_of_daemons_holds() {
    let leaves_daemon = || with_daemon(run(exclusive(A)).twice());
    holds(
        "two runs that leave daemons",
        Setting::new(vec![leaves_daemon(), leaves_daemon()]).must_happen(&[TAKEOVER]),
    );
}

#[test]
fn model_of_a_run_that_dies_with_its_caller_holds() {
    holds(
        "a run that dies with its caller",
        run_that_dies_with_its_caller().must_happen(&[TAKEOVER]),
    );
    holds(
        "a run that dies with its caller, and a waiter",
        Setting::new(vec![
            dying_with(run(exclusive(A))),
            run(exclusive(A)).waits(),
        ])
        .must_happen(&[TAKEOVER, SERVED]),
    );
}

#[test]
fn model_of_waiters_that_are_cut_off_holds() {
    holds(
        "a waiter that is cut off, and comes again",
        waiter_that_is_cut_off().must_happen(&[SERVED]),
    );
}

#[test]
#[ignore = "takes minutes"]
fn model_of_each_kind_of_waiter_that_is_cut_off_and_stopped_holds() {
    for (kind, holder, waiter, last) in kinds_of_waiters() {
        holds(
            &format!("waiter that is cut off or stopped, {kind}"),
            Setting::new(vec![holder, stopping(cut_off(waiter)), last.waits()])
                .must_happen(&[SERVED, TURN_PASSED]),
        );
    }
}

#[test]
fn model_of_close_holds() {
    let closes = || with_close(with_daemon(run(exclusive(A))));
    holds(
        "two runs --close",
        Setting::new(vec![closes(), closes()]).must_happen(&[TAKEOVER]),
    );
}

#[test]
fn model_of_exec_holds() {
    let execs = || of(Holder::Exec, exclusive(A));
    holds(
        "run and two run --exec",
        Setting::new(vec![execs(), execs(), run(exclusive(A)).waits()])
            .must_happen(&[TAKEOVER, SERVED]),
    );
}

#[test]
fn model_of_two_commands_under_one_hold_holds() {
    holds(
        "two commands under one hold",
        two_commands().must_happen(&[TAKEOVER]),
    );
    let library = with_commands(2, with_daemon(of(Holder::Library, exclusive(A))));
    holds(
        "two commands under a library hold",
        Setting::new(vec![library, run(exclusive(A)).twice()]).must_happen(&[TAKEOVER]),
    );
}

#[test]
fn model_of_cleanup_holds() {
    holds(
        "run and lease, cleanup",
        Setting::new(vec![run(exclusive(A)), lease(exclusive(A))])
            .with_cleanup()
            .must_happen(&[TAKEOVER]),
    );
}

#[test]
fn model_of_detached_processes_holds() {
    holds(
        "run and detached process, cleanup",
        Setting::new(vec![
            of(Holder::Process, exclusive(A)),
            run(exclusive(A_T)).waits(),
        ])
        .with_cleanup()
        .must_happen(&[SERVED]),
    );
}

#[test]
fn model_of_parent_and_child_holds() {
    holds(
        "parent and child",
        parent_and_child().must_happen(&[TAKEOVER]),
    );
    holds(
        "parent and child of one owner",
        Setting::new(vec![
            run(exclusive(A)).owner("one"),
            run(exclusive(A_T)).owner("one"),
        ])
        .must_happen(&[SIDE_BY_SIDE]),
    );
}

#[test]
fn model_of_renewals_holds() {
    holds(
        "leases of parent and child, renewals",
        renewals().must_happen(&[TAKEOVER]),
    );
    holds(
        "the same, more dead relatives than are removed",
        renewals().with_too_many_dead(),
    );
    holds(
        "lease of a reader and a writer, renewals",
        Setting::new(vec![renewing(lease(shared(A))), run(exclusive(A))]).must_happen(&[TAKEOVER]),
    );
}

#[test]
fn model_of_shared_holds_holds() {
    holds(
        "shared parent and exclusive child",
        shared_parent().must_happen(&[TAKEOVER]),
    );
    holds(
        "shared parent and shared child",
        Setting::new(vec![run(shared(A)), run(shared(A_T))]).must_happen(&[SIDE_BY_SIDE]),
    );
}

#[test]
fn model_of_slots_holds() {
    holds(
        "one slot, a waiter",
        counted_slots().must_happen(&[SERVED, TAKEOVER]),
    );
}

#[test]
fn model_of_several_names_holds() {
    let both = |first, second| run([exclusive(first), exclusive(second)].concat());
    holds(
        "two names in either order",
        Setting::new(vec![both(A, B), both(B, A)]).must_happen(&[TAKEOVER]),
    );
    holds(
        "a lease of two names, a waiter of each",
        lease_of_two_names().must_happen(&[SERVED, TAKEOVER]),
    );
    holds(
        "a lease of two names, broken and renewed",
        Setting::new(vec![
            Plan {
                renewals: 1,
                ..lease([exclusive(A), exclusive(B)].concat())
            },
            run(exclusive(A)),
        ])
        .with_breaks(1)
        .with_cleanup()
        .must_happen(&[TAKEOVER]),
    );
    holds(
        "two slots of two pools, in either order",
        Setting::new(vec![
            run([counted(A, 1), counted(B, 1)].concat()).waits(),
            run([counted(B, 1), counted(A, 1)].concat()).waits(),
        ])
        .must_happen(&[SERVED, TAKEOVER]),
    );
}

#[test]
fn model_of_waiters_holds() {
    let waits = || run(exclusive(A)).waits();
    holds(
        "two waiters",
        Setting::new(vec![waits(), waits()]).must_happen(&[SERVED, TAKEOVER]),
    );
}

#[test]
fn model_of_breaks_holds() {
    holds("two runs, break", broken());
    holds("two leases, break", broken_lease());
}

#[test]
fn model_of_another_pid_namespace_holds() {
    holds("run --close, run elsewhere", close_elsewhere());
    holds("run that lets go, run elsewhere", let_go_elsewhere());
    holds(
        "run, run elsewhere",
        Setting::new(vec![run(exclusive(A)), run(exclusive(A)).elsewhere()])
            .must_happen(&[TAKEOVER]),
    );
}

#[test]
fn model_of_calls_inside_a_hold_holds() {
    holds(
        "a call that waits inside a parent",
        Setting::new(vec![
            run(exclusive(A)),
            inside(0, run(exclusive(A_T)).waits()),
        ]),
    );
}

#[test]
fn model_of_repeated_leases_holds() {
    let one = || lease(exclusive(A)).owner("one");
    holds(
        "two leases of one owner",
        Setting::new(vec![one().twice(), one()]),
    );
}

#[test]
fn model_of_calls_inside_holds_that_wait_for_others_holds() {
    holds(
        "a call inside one child that waits for the parent",
        Setting::new(vec![
            run(exclusive(A_T)),
            run(exclusive(A_U)),
            inside(0, run(exclusive(A)).waits()),
        ]),
    );
    holds(
        "a call inside the other child that waits for the parent",
        Setting::new(vec![
            run(exclusive(A_T)),
            run(exclusive(A_U)),
            inside(1, run(exclusive(A)).waits()),
        ]),
    );
    holds(
        "a call inside one of two slots that waits for another",
        Setting::new(vec![
            run(counted(A, 2)),
            run(counted(A, 2)),
            inside(0, run(counted(A, 2)).waits()),
        ])
        .must_happen(&[SERVED, SIDE_BY_SIDE]),
    );
    holds(
        "a call of the same owner inside a parent, a waiter",
        Setting::new(vec![
            run(exclusive(A)).owner("one"),
            run(exclusive(A_T)).owner("two").waits(),
            inside(0, run(exclusive(A_T)).owner("one").waits()),
        ])
        .must_happen(&[SIDE_BY_SIDE, SERVED]),
    );
}

#[test]
fn model_of_runs_that_wait_for_each_other_holds() {
    holds(
        "calls inside two runs that wait for each other",
        crossing(|plan| plan, exclusive(B)).must_happen(&[DEADLOCK, SERVED]),
    );
}

#[test]
#[ignore = "takes minutes"]
fn model_of_runs_that_might_wait_for_each_other_holds() {
    holds(
        "the same, one in the background",
        crossing(in_background, exclusive(B)).must_happen(&[SERVED]),
    );
    holds(
        "the same, one for a while",
        crossing(giving_up, exclusive(B)).must_happen(&[SERVED]),
    );
    holds(
        "the same, for one of two slots",
        crossing(|plan| plan, counted(B, 2)).must_happen(&[SERVED]),
    );
    holds(
        "the same, for the only slot",
        crossing(|plan| plan, counted(B, 1)).must_happen(&[DEADLOCK, SERVED]),
    );
}

#[test]
#[ignore = "takes minutes"]
fn model_of_detached_holds_with_waiters_holds() {
    holds(
        "lease, renewals, break, cleanup, a waiter",
        Setting::new(vec![
            renewing(lease(exclusive(A))),
            run(exclusive(A)).waits(),
        ])
        .with_breaks(1)
        .with_cleanup()
        .must_happen(&[SERVED]),
    );
    holds(
        "detached process, two waiters",
        Setting::new(vec![
            of(Holder::Process, exclusive(A)),
            run(exclusive(A)).waits(),
            lease(exclusive(A_T)).waits(),
        ])
        .must_happen(&[SERVED, TAKEOVER]),
    );
    holds(
        "lease of a parent, renewals, a waiter of the parent, a waiter of a child",
        Setting::new(vec![
            renewing(lease(exclusive(A))),
            lease(exclusive(A)).waits(),
            lease(exclusive(A_T)).waits(),
        ])
        .must_happen(&[SERVED, TAKEOVER]),
    );
}

#[test]
#[ignore = "takes minutes"]
fn model_of_commands_that_let_go_holds() {
    let first = with_commands(2, letting_go(with_daemon(run(exclusive(A)))));
    holds(
        "two commands that let go, a waiter elsewhere",
        Setting::new(vec![
            first,
            run(exclusive(A)).elsewhere().waits(),
            run(exclusive(A)),
        ])
        .must_happen(&[SERVED, TAKEOVER]),
    );
    holds(
        "library hold with two commands, a waiter, cleanup",
        Setting::new(vec![
            with_commands(2, with_daemon(of(Holder::Library, exclusive(A)))),
            with_commands(2, of(Holder::Library, exclusive(A))).waits(),
        ])
        .with_cleanup()
        .must_happen(&[SERVED, TAKEOVER]),
    );
}

#[test]
#[ignore = "takes minutes"]
fn model_of_shared_and_exclusive_holds_of_one_name_holds() {
    holds(
        "slots of one name elsewhere, a writer",
        Setting::new(vec![
            with_close(run(counted(A, 1))),
            run(exclusive(A)),
            run(counted(A, 1)).elsewhere().waits(),
        ])
        .must_happen(&[SERVED, TAKEOVER]),
    );
    holds(
        "slots with two limits",
        Setting::new(vec![
            lease(counted(A, 1)),
            run(counted(A, 1)).waits(),
            run(counted(A, 2)).waits(),
        ])
        .must_happen(&[SERVED, SIDE_BY_SIDE]),
    );
    let both = [counted(A, 1), exclusive(B)].concat();
    holds(
        "a slot and a name, waiters of either",
        Setting::new(vec![
            run(both).waits(),
            run(counted(A, 1)).waits(),
            run(exclusive(B)).waits(),
        ])
        .must_happen(&[SERVED, SIDE_BY_SIDE]),
    );
}

#[test]
fn model_of_readers_and_writers_holds() {
    holds(
        "reader inside a reader, writer waits",
        Setting::new(vec![
            run(shared(A)),
            run(exclusive(A)).waits(),
            inside(0, run(shared(A)).waits()),
        ])
        .must_happen(&[SERVED, SIDE_BY_SIDE]),
    );
}

#[test]
#[ignore = "takes minutes"]
fn model_of_writer_between_readers_holds() {
    holds(
        "writer between readers",
        Setting::new(vec![
            lease(shared(A)),
            run(exclusive(A)).waits(),
            run(shared(A)).waits(),
        ])
        .must_happen(&[SERVED, SIDE_BY_SIDE]),
    );
    holds(
        "writer behind a reader that lasts, a reader",
        writer_behind_reader(),
    );
}

#[test]
#[ignore = "takes minutes"]
fn model_of_three_slots_holds() {
    holds(
        "two slots, three runs",
        three_counted_slots().must_happen(&[SIDE_BY_SIDE, TAKEOVER]),
    );
    holds(
        "two slots, a waiter",
        Setting::new(vec![
            lease(counted(A, 2)),
            lease(counted(A, 2)),
            run(counted(A, 2)).waits(),
        ])
        .must_happen(&[SIDE_BY_SIDE, SERVED]),
    );
}

#[test]
#[ignore = "takes minutes"]
fn model_of_three_with_waiters_holds() {
    holds(
        "owner behind the waiter of a parent",
        owner_behind_waiter().must_happen(&[SERVED, SIDE_BY_SIDE]),
    );
    holds(
        "waiter elsewhere",
        waiter_elsewhere().must_happen(&[SERVED, TAKEOVER]),
    );
    holds(
        "stopped waiter",
        stopped_waiter().must_happen(&[SERVED, TURN_PASSED]),
    );
    holds(
        "waiters of a parent and two children",
        Setting::new(vec![
            run(exclusive(A_T)).waits(),
            run(exclusive(A)).waits(),
            run(exclusive(A_U)).waits(),
        ])
        .must_happen(&[SERVED, SIDE_BY_SIDE]),
    );
    let both = [exclusive(A), exclusive(B)].concat();
    holds(
        "waiter of two names",
        Setting::new(vec![
            run(exclusive(A)).waits(),
            run(both).waits(),
            run(exclusive(B)).waits(),
        ])
        .must_happen(&[SERVED, SIDE_BY_SIDE]),
    );
}

#[test]
#[ignore = "takes minutes"]
fn model_of_three_runs_holds() {
    holds(
        "three runs, two attempts",
        Setting::new(vec![
            run(exclusive(A)).twice(),
            run(exclusive(A)).twice(),
            with_daemon(run(exclusive(A))),
        ])
        .must_happen(&[TAKEOVER]),
    );
}
