//! The settings in which the model is checked, and the flaws that it must notice.

mod flawed;
mod promises;

use std::num::NonZeroU32;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

use super::flaws::Flaw;
use super::properties::ALWAYS;
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
        background: false,
        gives_up: false,
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

/// The command of each run starts what waits for the lock of the other one: for `last` in the second.
fn crossing(first: fn(Plan) -> Plan, last: Vec<(u8, Mode)>) -> Setting {
    Setting::new(vec![
        run(exclusive(A)),
        run(last.clone()),
        inside(0, first(lease(last).waits())),
        inside(1, lease(exclusive(A)).waits()),
    ])
}

fn in_background(plan: Plan) -> Plan {
    Plan {
        background: true,
        ..plan
    }
}

fn giving_up(plan: Plan) -> Plan {
    Plan {
        gives_up: true,
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

fn run_that_dies_with_its_caller() -> Setting {
    Setting::new(vec![
        dying_with(run(exclusive(A))),
        run(exclusive(A)).twice(),
    ])
}

fn waiter_that_is_cut_off() -> Setting {
    let lease = lease(exclusive(A));
    Setting::new(vec![
        lease,
        cut_off(run(exclusive(A))),
        run(exclusive(A)).waits(),
    ])
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

fn lease_of_two_names() -> Setting {
    Setting::new(vec![
        lease([exclusive(A), exclusive(B)].concat()),
        run(exclusive(A)).waits(),
        run(exclusive(B)),
    ])
}
