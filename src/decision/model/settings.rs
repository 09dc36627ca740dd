//! The settings in which the model is checked, and the flaws that it must notice.

use std::num::NonZeroU32;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

use super::flaws::Flaw;
use super::properties::{
    ABLE, ALWAYS, AS_SHOWN, EXCLUSION, LIMIT, NOT_DEAD, NOT_OVERTAKEN, NOT_STUCK, ON_RECORD,
    PROMPT, SERVED, SIDE_BY_SIDE, TAKEOVER, TURN_PASSED, WHOLE,
};
use super::world::{Holder, Plan, Setting};
use crate::record::Mode;

const A: u8 = 0;
const A_T: u8 = 1;
const A_U: u8 = 2;
const B: u8 = 3;

fn exclusive(name: u8) -> Vec<(u8, Mode)> {
    vec![(name, Mode::Exclusive)]
}

fn shared(name: u8) -> Vec<(u8, Mode)> {
    vec![(name, Mode::Shared)]
}

/// At most so many at once.
fn counted(name: u8, most: u32) -> Vec<(u8, Mode)> {
    vec![(name, Mode::Slots(NonZeroU32::new(most).unwrap()))]
}

fn run(wants: Vec<(u8, Mode)>) -> Plan {
    Plan {
        wants,
        owner: None,
        holder: Holder::Run,
        close: false,
        lets_go: false,
        daemon: false,
        dies_with: false,
        waits: false,
        cuts: 0,
        may_stop: false,
        pid_namespace: 0,
        commands: 1,
        attempts: 1,
        renewals: 0,
        inside: None,
    }
}

fn of(holder: Holder, wants: Vec<(u8, Mode)>) -> Plan {
    let commands = u8::from(holder == Holder::Library);
    Plan {
        holder,
        commands,
        ..run(wants)
    }
}

fn lease(wants: Vec<(u8, Mode)>) -> Plan {
    of(Holder::Lease, wants)
}

impl Plan {
    fn waits(self) -> Self {
        Self {
            waits: true,
            ..self
        }
    }

    fn owner(self, owner: &'static str) -> Self {
        Self {
            owner: Some(owner),
            ..self
        }
    }

    fn elsewhere(self) -> Self {
        Self {
            pid_namespace: 1,
            ..self
        }
    }

    fn twice(self) -> Self {
        Self {
            attempts: 2,
            ..self
        }
    }
}

impl Setting {
    fn must_happen(mut self, what: &[&'static str]) -> Self {
        self.must_happen = what.to_vec();
        self
    }

    fn with_cleanup(mut self) -> Self {
        self.cleanup = true;
        self
    }

    fn with_breaks(mut self, breaks: u8) -> Self {
        self.breaks = breaks;
        self
    }

    fn with_too_many_dead(mut self) -> Self {
        self.too_many_dead = true;
        self
    }

    fn flawed(mut self, flaw: Flaw) -> Self {
        self.flaw = flaw;
        self
    }
}

/// Visits all states.
fn holds(what: &str, setting: Setting) {
    let begun = Instant::now();
    let checker = setting.checker().threads(2).spawn_bfs().join();
    println!(
        "{what}: {} states, {:.1} s",
        checker.unique_state_count(),
        begun.elapsed().as_secs_f32()
    );
    for (property, path) in checker.discoveries() {
        assert!(
            !ALWAYS.contains(&property),
            "{what}: not true that {property}, after {:#?}\nin {:#?}",
            path.clone().into_actions(),
            path.last_state(),
        );
    }
    checker.assert_properties();
}

/// Visits states until this property is violated.
fn notices(setting: Setting, property: &'static str) {
    let flaw = setting.flaw;
    let checker = setting
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyOf([property].into()))
        .spawn_bfs()
        .join();
    let Some(path) = checker.discovery(property) else {
        panic!("{flaw:?} is not noticed");
    };
    println!(
        "{flaw:?}: not true that {property}, after {} steps, {} states",
        path.into_actions().len(),
        checker.unique_state_count()
    );
}

fn with_daemon(plan: Plan) -> Plan {
    Plan {
        daemon: true,
        ..plan
    }
}

/// Leaves a daemon, and dies with another process.
fn dying_with(plan: Plan) -> Plan {
    Plan {
        dies_with: true,
        ..with_daemon(plan)
    }
}

fn with_close(plan: Plan) -> Plan {
    Plan {
        close: true,
        ..plan
    }
}

fn letting_go(plan: Plan) -> Plan {
    Plan {
        lets_go: true,
        ..plan
    }
}

fn with_commands(commands: u8, plan: Plan) -> Plan {
    Plan { commands, ..plan }
}

fn renewing(plan: Plan) -> Plan {
    Plan {
        renewals: 1,
        ..plan
    }
}

/// Waits, is cut off, and comes again.
fn cut_off(plan: Plan) -> Plan {
    Plan {
        cuts: 1,
        ..plan.waits()
    }
}

fn stopping(plan: Plan) -> Plan {
    Plan {
        may_stop: true,
        ..plan
    }
}

fn inside(parent: usize, plan: Plan) -> Plan {
    Plan {
        inside: Some(parent),
        ..plan
    }
}

fn two_runs() -> Setting {
    Setting::new(vec![run(exclusive(A)), run(exclusive(A))])
}

fn two_commands() -> Setting {
    let first = with_commands(2, with_daemon(run(exclusive(A))));
    Setting::new(vec![first, run(exclusive(A)).twice()])
}

fn parent_and_child() -> Setting {
    Setting::new(vec![run(exclusive(A)), run(exclusive(A_T))])
}

fn renewals() -> Setting {
    Setting::new(vec![
        renewing(lease(exclusive(A))),
        renewing(lease(exclusive(A_T))),
    ])
}

fn shared_parent() -> Setting {
    Setting::new(vec![run(shared(A)), run(exclusive(A_T))])
}

fn counted_slots() -> Setting {
    Setting::new(vec![run(counted(A, 1)), run(counted(A, 1)).waits()])
}

fn three_counted_slots() -> Setting {
    Setting::new(vec![
        run(counted(A, 2)),
        run(counted(A, 2)),
        run(counted(A, 2)),
    ])
}

/// An owner holds a child, another waits for the parent, and the owner wants the parent too.
fn owner_behind_waiter() -> Setting {
    Setting::new(vec![
        lease(exclusive(A_T)).owner("one"),
        run(exclusive(A)).waits(),
        run(exclusive(A)).owner("one").waits(),
    ])
}

fn waiter_elsewhere() -> Setting {
    Setting::new(vec![
        with_close(run(exclusive(A))),
        run(exclusive(A)).elsewhere().waits(),
        run(exclusive(A)).waits(),
    ])
}

fn close_elsewhere() -> Setting {
    Setting::new(vec![
        with_close(run(exclusive(A))),
        run(exclusive(A)).elsewhere(),
    ])
}

fn let_go_elsewhere() -> Setting {
    Setting::new(vec![
        letting_go(run(exclusive(A))),
        run(exclusive(A)).elsewhere(),
    ])
}

fn stopped_waiter() -> Setting {
    Setting::new(vec![
        lease(exclusive(A)),
        stopping(run(exclusive(A)).waits()),
        run(exclusive(A)).waits(),
    ])
}

/// Two waiters that may be stopped are ahead of a third.
fn two_stopped_waiters() -> Setting {
    Setting::new(vec![
        lease(exclusive(A)),
        stopping(run(exclusive(A)).waits()),
        stopping(run(exclusive(A)).waits()),
        run(exclusive(A)).waits(),
    ])
}

/// A waiter that may be stopped is between two others.
fn stopped_waiter_between_waiters() -> Setting {
    Setting::new(vec![
        lease(exclusive(A)),
        run(exclusive(A)).waits(),
        stopping(run(exclusive(A)).waits()),
        run(exclusive(A)).waits(),
    ])
}

/// An owner of a child waits for the parent behind a waiter that has to wait for the child.
fn owner_of_child_behind_waiters() -> Setting {
    Setting::new(vec![
        lease(exclusive(A_T)).owner("one"),
        lease(exclusive(A)).owner("one"),
        lease(exclusive(A)).waits(),
        lease(exclusive(A)).owner("one").waits(),
    ])
}

/// A waiter waits for one name behind a waiter for two, one of which stays held.
fn behind_waiter_for_two() -> Setting {
    Setting::new(vec![
        lease(exclusive(A)),
        lease(exclusive(B)),
        lease([exclusive(A), exclusive(B)].concat()).waits(),
        lease(exclusive(A)).waits(),
    ])
}

/// A lock is reserved for a writer for two, which waits for a reader; an earlier waiter for a child, which waited for
/// the reader, too, is served first. The last one waits for the other lock.
fn behind_writer_that_is_passed() -> Setting {
    Setting::new(vec![
        lease(shared(A)),
        lease(exclusive(A_T)).waits(),
        lease([exclusive(A), exclusive(B)].concat()).waits(),
        lease(exclusive(B)).waits(),
    ])
}

fn writer_behind_reader() -> Setting {
    Setting::new(vec![
        lease(shared(A)),
        run(exclusive(A)).waits(),
        lease(shared(A)).waits(),
    ])
}

fn broken() -> Setting {
    Setting::new(vec![run(exclusive(A)), run(exclusive(A))]).with_breaks(1)
}

fn broken_lease() -> Setting {
    Setting::new(vec![lease(exclusive(A)).twice(), lease(exclusive(A))]).with_breaks(1)
}

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

fn run_that_dies_with_its_caller() -> Setting {
    Setting::new(vec![
        dying_with(run(exclusive(A))),
        run(exclusive(A)).twice(),
    ])
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

fn waiter_that_is_cut_off() -> Setting {
    let lease = lease(exclusive(A));
    Setting::new(vec![
        lease,
        cut_off(run(exclusive(A))),
        run(exclusive(A)).waits(),
    ])
}

#[test]
fn model_of_waiters_that_are_cut_off_holds() {
    holds(
        "a waiter that is cut off, and comes again",
        waiter_that_is_cut_off().must_happen(&[SERVED]),
    );
}

/// What is held, and what a waiter that may be stopped, or is cut off, and one behind it ask for.
fn kinds_of_waiters() -> [(&'static str, Plan, Plan, Plan); 6] {
    let both = [exclusive(A), exclusive(B)].concat();
    [
        (
            "a writer",
            lease(shared(A)),
            lease(exclusive(A)),
            lease(shared(A)),
        ),
        (
            "for a slot",
            lease(counted(A, 1)),
            lease(counted(A, 1)),
            lease(counted(A, 1)),
        ),
        (
            "for two names",
            lease(exclusive(A)),
            lease(both),
            lease(exclusive(A)),
        ),
        (
            "for a parent",
            lease(exclusive(A_T)),
            lease(exclusive(A)),
            lease(exclusive(A_T)),
        ),
        (
            "for a child",
            lease(exclusive(A)),
            lease(exclusive(A_T)),
            lease(exclusive(A)),
        ),
        (
            "of another owner",
            lease(exclusive(A_T)).owner("one"),
            lease(exclusive(A)).owner("two"),
            lease(exclusive(A)).owner("one"),
        ),
    ]
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
fn model_notices_that_a_reservation_is_looked_at_every_5_s_only() {
    let setting = behind_writer_that_is_passed();
    notices(setting.flawed(Flaw::RareLooksAtReservations), PROMPT);
}

#[test]
fn model_notices_that_a_kept_place_delays_others() {
    notices(
        waiter_that_is_cut_off().flawed(Flaw::KeptPlaceWaits),
        PROMPT,
    );
    for (_, holder, waiter, last) in kinds_of_waiters() {
        let setting = Setting::new(vec![holder, cut_off(waiter), last.waits()]);
        notices(setting.flawed(Flaw::KeptPlaceWaits), PROMPT);
    }
}

#[test]
fn model_notices_that_a_waiter_that_comes_again_sleeps_as_the_last() {
    let setting = waiter_that_is_cut_off().flawed(Flaw::SleepsAsTheLast);
    notices(setting, PROMPT);
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

fn lease_of_two_names() -> Setting {
    Setting::new(vec![
        lease([exclusive(A), exclusive(B)].concat()),
        run(exclusive(A)).waits(),
        run(exclusive(B)),
    ])
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

#[test]
fn model_notices_takeover_from_dead_wrapper() {
    let setting = two_runs().flawed(Flaw::DeadWrapperIsDead);
    notices(setting, EXCLUSION);
}

#[test]
fn model_notices_that_a_caller_is_ignored() {
    let setting = run_that_dies_with_its_caller().flawed(Flaw::CallerIgnored);
    notices(setting, EXCLUSION);
}

#[test]
fn model_notices_slot_not_cleared() {
    let setting = two_commands().flawed(Flaw::NotCleared);
    notices(setting, EXCLUSION);
}

#[test]
fn model_notices_missing_guard() {
    let setting = parent_and_child().flawed(Flaw::NoGuard);
    notices(setting, EXCLUSION);
}

#[test]
fn model_notices_blind_release() {
    let setting = Setting::new(vec![lease(exclusive(A)), run(exclusive(A))]);
    notices(setting.flawed(Flaw::BlindRelease), ON_RECORD);
}

#[test]
fn model_notices_blind_renewal() {
    let setting = renewals().with_too_many_dead();
    notices(setting.flawed(Flaw::BlindRenewal), EXCLUSION);
}

#[test]
fn model_notices_shared_hold_as_child() {
    notices(shared_parent().flawed(Flaw::SharedAsChild), EXCLUSION);
}

#[test]
fn model_notices_reservation_for_whoever_came_first() {
    let setting = owner_behind_waiter().flawed(Flaw::FirstComeFirst);
    notices(setting, NOT_STUCK);
}

#[test]
fn model_notices_waiter_elsewhere_judged_from_here() {
    let setting = waiter_elsewhere().flawed(Flaw::WaiterJudgedByUs);
    notices(setting, ABLE);
}

#[test]
fn model_notices_break_without_comparison() {
    notices(broken_lease().flawed(Flaw::RevisionIgnored), AS_SHOWN);
    // An inode is used again.
    notices(broken_lease().flawed(Flaw::NumberIgnored), AS_SHOWN);
}

#[test]
fn model_notices_ignored_notes() {
    notices(close_elsewhere().flawed(Flaw::CloseIgnored), NOT_DEAD);
    notices(let_go_elsewhere().flawed(Flaw::NoteIgnored), NOT_DEAD);
    notices(let_go_elsewhere().flawed(Flaw::TornSlotTrusted), NOT_DEAD);
}

#[test]
fn model_notices_endless_reservation() {
    let setting = stopped_waiter().flawed(Flaw::EndlessReservation);
    notices(setting, NOT_STUCK);
    for (_, holder, waiter, last) in kinds_of_waiters() {
        let setting = Setting::new(vec![holder, stopping(waiter.waits()), last.waits()]);
        notices(setting.flawed(Flaw::EndlessReservation), PROMPT);
    }
}

#[test]
fn model_notices_waiters_chained_to_whoever_waits() {
    let flaw = Flaw::ChainedToWhoeverWaits;
    notices(behind_waiter_for_two().flawed(flaw), PROMPT);
    notices(owner_of_child_behind_waiters().flawed(flaw), PROMPT);
}

#[test]
fn model_notices_third_waiter_that_looks_once_a_minute() {
    notices(two_stopped_waiters().flawed(Flaw::RareLooks), PROMPT);
    notices(
        two_stopped_waiters().flawed(Flaw::ChainedToWhoeverWaits),
        PROMPT,
    );
}

#[test]
fn model_notices_waiter_that_does_not_notice_a_stop() {
    let setting = stopped_waiter_between_waiters();
    notices(setting.flawed(Flaw::StopUnnoticed), PROMPT);
}

#[test]
fn model_notices_end_that_wakes_nobody() {
    notices(behind_waiter_for_two().flawed(Flaw::NoEvents), PROMPT);
}

#[test]
fn model_notices_writer_that_does_not_note_its_turn() {
    notices(
        writer_behind_reader().flawed(Flaw::WriterSleepsThrough),
        NOT_OVERTAKEN,
    );
}

#[test]
fn model_notices_reader_counted_twice() {
    let setting = Setting::new(vec![run(counted(A, 2)), run(counted(A, 2)).waits()]);
    notices(setting.flawed(Flaw::SlotCountedTwice), NOT_STUCK);
}

#[test]
fn model_notices_index_taken_twice() {
    let one = || lease(counted(A, 2));
    let setting = Setting::new(vec![one(), one(), one()]);
    notices(setting.flawed(Flaw::IndexTakenTwice), LIMIT);
}

#[test]
fn model_notices_half_of_a_hold_left_by_a_killed_release() {
    notices(lease_of_two_names().flawed(Flaw::NotMarked), WHOLE);
}

#[test]
fn model_notices_path_not_checked() {
    notices(broken().flawed(Flaw::PathNotChecked), EXCLUSION);
}

#[test]
fn model_notices_cleanup_by_list() {
    let setting = two_runs().with_cleanup();
    notices(setting.flawed(Flaw::CleanupByList), ON_RECORD);
}

#[test]
fn model_notices_waiter_that_watches_one_of_several_holders() {
    let setting = Setting::new(vec![
        lease(counted(A, 2)),
        lease(counted(A, 2)),
        run(counted(A, 2)).waits(),
    ]);
    notices(setting.flawed(Flaw::OneHolderWatched), NOT_STUCK);
}
