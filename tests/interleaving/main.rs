//! Every order of the calls of two processes, up to a number of preemptions: no two hold one lock, nobody waits
//! in vain, nothing is left, and what is said is true.
//!
//! By default 20 orders of each scenario are tried, with one preemption at most. `INTERLEAVING_PREEMPTIONS=2` tries all
//! with two, `INTERLEAVING_TRIALS=N` so many of them, `INTERLEAVING_ONLY=NAME,NAME` some scenarios.
//! `INTERLEAVING_REPLAY='NAME SCHEDULE'` and the test `replay` run one schedule and print each step of it.
//! What they come to is in `outcomes.txt`, and how that is said in `wording.txt`.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(missing_docs, unreachable_pub)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::too_many_lines,
    clippy::unwrap_used
)]

mod calls;
mod exploration;
mod flaws;
#[path = "../harness/mod.rs"]
mod harness;
mod outcomes;
mod scenario;
mod scheduler;
mod start;
mod tracee;
#[path = "../tracer/mod.rs"]
mod tracer;

use std::env;
use std::fmt::Write;
use std::sync::Mutex;

use calls::IN_SECTION;
use exploration::{Bounds, explore};
use flaws::{FLAWS, Flaw};
use outcomes::Expected;
use scenario::{Place, Scenario, Schedule, Step, scenarios};

/// Calls something for each of these on each processor: trials of one scheduler share one.
fn for_each_on_all_processors<T: Sync>(items: &[T], act: impl Fn(&T, &Place) + Sync) {
    let next = Mutex::new(items.iter());
    let processors = std::thread::available_parallelism().unwrap().get();
    std::thread::scope(|scope| {
        for _ in 0..processors.min(items.len()) {
            let (next, act) = (&next, &act);
            scope.spawn(move || {
                harness::stay_on_one_processor();
                let root = harness::disk::directory();
                let place = Place::new(root.path());
                loop {
                    let item = next.lock().unwrap().next();
                    let Some(item) = item else { break };
                    act(item, &place);
                }
            });
        }
    });
}

fn number(variable: &str) -> Option<usize> {
    env::var(variable).ok().map(|text| text.parse().unwrap())
}

fn chosen(processes: usize) -> Vec<Scenario> {
    let only = env::var("INTERLEAVING_ONLY").ok();
    let mut scenarios = scenarios();
    scenarios.retain(|scenario| match &only {
        Some(only) => only.split(',').any(|name| name == scenario.name),
        None => scenario.processes.len() == processes,
    });
    scenarios
}

fn explore_all(scenarios: &[Scenario], preemptions: usize, trials: usize) {
    let bounds = Bounds {
        preemptions,
        trials,
        stops_at_fault: false,
    };
    let faults = Mutex::new(String::new());
    let expected = Expected::new();
    for_each_on_all_processors(scenarios, |scenario, place| {
        let began = std::time::Instant::now();
        let explored = explore(place, scenario, &bounds, None);
        let outcomes: Vec<_> = explored
            .outcomes
            .iter()
            .map(|(codes, count)| {
                let codes: Vec<String> = codes
                    .iter()
                    .map(|code| code.map_or("-".to_owned(), |code| code.to_string()))
                    .collect();
                format!("{} × {count}", codes.join("/"))
            })
            .collect();
        println!(
            "{:24} {:6} schedules{} of {:3} calls, {} left out, {:4.0} in a second, {} not replayed, {} faulty: {}",
            scenario.name,
            explored.trials,
            if explored.cut { " (cut)" } else { "" },
            explored.steps / explored.trials,
            explored.left_out,
            explored.trials as f64 / began.elapsed().as_secs_f64(),
            explored.not_replayed.len(),
            explored
                .faults
                .values()
                .map(|(count, _)| count)
                .sum::<usize>(),
            outcomes.join(", "),
        );
        let mut text = String::new();
        for (fault, (count, schedule)) in &explored.faults {
            let name = &scenario.name;
            writeln!(
                text,
                "{count} times, INTERLEAVING_REPLAY='{name} {schedule}': {fault}"
            )
            .unwrap();
        }
        for (miss, schedule) in expected.misses(scenario, &explored) {
            let name = &scenario.name;
            writeln!(text, "INTERLEAVING_REPLAY='{name} {schedule}': {miss}").unwrap();
        }
        // A number that a process of the machine got again is not in our hands.
        let tolerated = if scenario.is_closed() {
            explored.trials / 20 + 2
        } else {
            explored.trials
        };
        for difference in explored.not_replayed.iter().skip(tolerated).take(5) {
            let name = &scenario.name;
            writeln!(
                text,
                "not replayed, INTERLEAVING_REPLAY='{name} {difference}'"
            )
            .unwrap();
        }
        faults.lock().unwrap().push_str(&text);
    });
    let faults = faults.into_inner().unwrap();
    assert!(faults.is_empty(), "\n{faults}");
}

/// How many preemptions, and how many orders of each scenario.
fn bounds() -> (usize, usize) {
    let preemptions = number("INTERLEAVING_PREEMPTIONS");
    let trials = preemptions.map_or(20, |_| usize::MAX);
    let trials = number("INTERLEAVING_TRIALS").unwrap_or(trials);
    (preemptions.unwrap_or(1), trials)
}

#[test]
fn no_order_of_the_calls_of_two_processes_breaks_a_promise() {
    let (preemptions, trials) = bounds();
    explore_all(&chosen(2), preemptions, trials);
}

#[test]
fn no_order_of_the_calls_of_three_processes_breaks_a_promise() {
    let (_, trials) = bounds();
    explore_all(&chosen(3), 1, trials);
}

/// The steps at which one process is about to make a call, in order, and another one goes on instead.
fn schedule_by_calls(
    place: &Place,
    scenario: &Scenario,
    moments: &[(&str, &str, &str)],
) -> Schedule {
    let mut schedule = Schedule::new();
    for (one, call, other) in moments {
        let from = schedule.last().map_or(0, |(number, _)| number + 1);
        // On a busy machine what was sent a signal may have ended before it is looked at.
        let found = (0..5).find_map(|_| {
            let steps = place.trial(scenario, &schedule, None, false).steps;
            let mut numbered = steps.into_iter().enumerate().skip(from);
            numbered
                .find(|(_, step)| step.chosen == *one && step.text == *call)
                .filter(|(_, step)| step.ready.iter().any(|ready| ready == other))
        });
        let (number, _) = found
            .unwrap_or_else(|| panic!("{one} does not {call}, or {other} cannot go on instead"));
        schedule.push((number, (*other).to_owned()));
    }
    schedule
}

fn with_scenario(name: &str, act: impl Fn(&Scenario, &Place) + Sync) {
    let scenario = scenarios().into_iter().find(|found| found.name == name);
    for_each_on_all_processors(&[scenario.unwrap()], |scenario, place| {
        place.prepare(scenario);
        act(scenario, place);
    });
}

/// B finds no command on record; before it replaces the record, the command starts.
#[test]
fn command_that_starts_while_its_lock_is_taken_by_force_is_waited_for() {
    with_scenario("force-run", |scenario, place| {
        let moments = [
            ("A1", "pwrite(s/##)", "B0"),
            ("B0", "rename(s/a.lock)", "A1"),
            ("A1", IN_SECTION, "B0"),
        ];
        let mut schedule = schedule_by_calls(place, scenario, &moments);
        // Its own command starts as soon as it can.
        let steps = place.trial(scenario, &schedule, None, false).steps;
        let can_start = |step: &Step| step.ready.iter().any(|ready| ready == "B1");
        let number = steps.iter().position(can_start).unwrap();
        schedule.push((number, "B1".to_owned()));
        let trial = place.trial(scenario, &schedule, None, false);
        assert_eq!(trial.faults, [""; 0], "{}", exploration::show(&schedule));
        assert_eq!(trial.codes, [Some(8), Some(0)]);
    });
}

/// B finds a reader without a command on record; before it asks who wrote the record, the reader has ended.
#[test]
fn reader_that_ends_before_its_author_is_asked_for_is_not_said_to_run() {
    with_scenario("break-shared", |scenario, place| {
        let moments = [
            ("A1", "pwrite(s/a.d/.shared/##)", "B0"),
            ("B0", "flock(s, unlock)", "B0"),
            ("B0", "close(s)", "A1"),
            ("A0", "exit()", "B0"),
        ];
        let schedule = schedule_by_calls(place, scenario, &moments);
        let trial = place.trial(scenario, &schedule, None, false);
        assert_eq!(trial.faults, [""; 0], "{}", exploration::show(&schedule));
        assert_eq!(trial.codes, [Some(0), Some(3)]);
    });
}

/// A is refused while B ends the work of C. It finds the command of C, which exits before A asks whether it gets a
/// signal.
#[test]
fn process_that_has_exited_meanwhile_is_not_said_to_get_no_signal() {
    with_scenario("break-run-runw", |scenario, place| {
        let moments = [
            ("A0", "open(s)", "C0"),
            ("A0", "open(s)", "B0"),
            ("A0", "open(s)", "C1"),
            ("C1", IN_SECTION, "C0"),
            // It looks at the lock, then at the lock that it shows, then at the work.
            ("A0", "close(s/a.lock)", "A0"),
            ("A0", "fstat(s/a.lock)", "A0"),
            ("A0", "fstat(s/a.lock)", "A0"),
            ("A0", "pidfd_open()", "A0"),
            ("A0", "pidfd_open()", "A0"),
            ("A0", "poll()", "C1"),
        ];
        let schedule = schedule_by_calls(place, scenario, &moments);
        let trial = place.trial(scenario, &schedule, None, false);
        assert_eq!(trial.faults, [""; 0], "{}", exploration::show(&schedule));
        assert_eq!(trial.codes, [Some(6), Some(0), Some(8)]);
        let said = trial.said.first().unwrap();
        assert!(said.contains("is being ended by force"), "{said}");
        assert!(!said.contains("gets no signal"), "{said}");
    });
}

/// A, which lists the waiters, has a shared lock on the ticket of B for a moment.
#[test]
fn waiter_whose_ticket_is_probed_before_it_is_locked_makes_another() {
    with_scenario("break-runw", |scenario, place| {
        let ticket = "s/.onehold/waiting/a.lock/#";
        let moments = [
            ("A0", "open(s)", "B0"),
            ("B0", &format!("pwrite({ticket})"), "A0"),
            ("A0", &format!("flock({ticket}, unlock)"), "B0"),
        ];
        let schedule = schedule_by_calls(place, scenario, &moments);
        let trial = place.trial(scenario, &schedule, None, false);
        assert_eq!(trial.faults, [""; 0], "{}", exploration::show(&schedule));
        let made = trial.steps.iter().filter(|step| {
            step.chosen == "B0" && step.text == format!("flock({ticket}, exclusive)")
        });
        assert_eq!(made.count(), 2);
    });
}

/// A ends the work of a shared hold. Meanwhile that has ended, and B has removed the record. On a filesystem that uses
/// the number of a removed file again, the record of C has that number now.
#[test]
fn innocent_that_begins_while_the_work_of_another_hold_is_ended_gets_no_signal() {
    with_scenario("innocent-orphan-shared", |scenario, place| {
        let look = "open(/proc/#/stat)";
        let moments = [
            // To the work.
            ("A0", "pidfd_send_signal()", "A0"),
            ("A0", look, "B0"),
            ("A0", look, "C0"),
            ("A0", look, "C1"),
            ("C1", IN_SECTION, "A0"),
        ];
        let schedule = schedule_by_calls(place, scenario, &moments);
        let trial = place.trial(scenario, &schedule, None, false);
        assert_eq!(trial.faults, [""; 0], "{}", exploration::show(&schedule));
        assert_eq!(trial.codes[2], Some(0));
    });
}

#[test]
fn each_planted_flaw_is_found() {
    let only = env::var("INTERLEAVING_FLAW").ok();
    let flaws: Vec<Flaw> = FLAWS
        .into_iter()
        .filter(|flaw| only.as_ref().is_none_or(|only| only == flaw.name))
        .collect();
    let bounds = Bounds {
        preemptions: 1,
        // The hardest one needs about 450, and some more or fewer for each user and machine.
        trials: number("INTERLEAVING_TRIALS").unwrap_or(1_000),
        stops_at_fault: true,
    };
    let (expected, missed) = (Expected::new(), Mutex::new(Vec::new()));
    for_each_on_all_processors(&flaws, |flaw, place| {
        let mut trials = 0;
        for name in flaw.scenarios {
            let scenario = scenarios().into_iter().find(|found| found.name == *name);
            let scenario = scenario.unwrap_or_else(|| panic!("{name}"));
            let explored = explore(place, &scenario, &bounds, Some(*flaw));
            trials += explored.trials;
            if let Some((fault, (_, schedule))) = explored.faults.first_key_value() {
                println!(
                    "{}: {trials} schedules, `{name} {schedule}`: {fault}",
                    flaw.name
                );
                return;
            }
            if let Some((miss, schedule)) = expected.misses(&scenario, &explored).first() {
                println!(
                    "{}: {trials} schedules, `{name} {schedule}`: {miss}",
                    flaw.name
                );
                return;
            }
        }
        missed.lock().unwrap().push(flaw.name);
    });
    let missed = missed.into_inner().unwrap();
    assert!(missed.is_empty(), "{missed:?}");
}

#[test]
#[ignore = "runs what INTERLEAVING_REPLAY says"]
fn replay() {
    let Ok(text) = env::var("INTERLEAVING_REPLAY") else {
        return;
    };
    let (name, schedule) = text.split_once(' ').unwrap_or((&text, ""));
    let scenario: Vec<Scenario> = scenarios()
        .into_iter()
        .filter(|scenario| scenario.name == name)
        .collect();
    let flaw = env::var("INTERLEAVING_FLAW").ok();
    let flaw = FLAWS
        .into_iter()
        .find(|found| Some(found.name) == flaw.as_deref());
    for_each_on_all_processors(&scenario, |scenario, place| {
        place.prepare(scenario);
        let trial = place.trial(scenario, &exploration::parse(schedule), flaw, true);
        println!("{}", trial.log.join("\n"));
        println!("exit codes {:?}, faults {:?}", trial.codes, trial.faults);
        for said in &trial.said {
            println!("- {said}");
        }
    });
}
