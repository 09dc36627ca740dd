//! Every order of the calls of two processes, up to a number of preemptions: no two hold one lock, nobody waits
//! in vain, nothing is left, and what is said is true.
//!
//! By default 20 orders of each scenario are tried, with one preemption at most. `INTERLEAVING_PREEMPTIONS=2` tries all
//! with two, `INTERLEAVING_TRIALS=N` so many of them, `INTERLEAVING_ONLY=NAME,NAME` some scenarios. Those of three
//! processes have one preemption at most, or `INTERLEAVING_PREEMPTIONS_OF_THREE`. `INTERLEAVING_SEED` chooses the random
//! ones.
//! `INTERLEAVING_DONE=DIRECTORY` keeps what was tried there, and goes on with it when it is started again.
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
// Some of what the tests of servers share.
#[allow(dead_code)]
#[path = "../cluster/cluster.rs"]
mod cluster;
mod exploration;
mod flaws;
#[path = "../harness/mod.rs"]
mod harness;
#[allow(dead_code)]
#[path = "../cluster/network.rs"]
mod network;
mod outcomes;
#[allow(dead_code)]
#[path = "../cluster/postgres.rs"]
mod postgres;
mod scenario;
#[allow(dead_code, unused_macros, unused_imports)]
#[path = "../cluster/scene.rs"]
mod scene;
mod scheduler;
mod start;
mod tracee;
#[path = "../tracer/mod.rs"]
mod tracer;
mod tried;

use std::env;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Mutex;

use calls::IN_SECTION;
use exploration::{Bounds, Explored, explore, sample};
use flaws::{FLAWS, FLAWS_OF_REQUESTS, Flaw};
use outcomes::Expected;
use scenario::{Place, Scenario, Schedule, Step, scenarios};
use tried::{Done, Tried};

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
        None => scenario.processes.len() == processes && scenario.engine.is_none(),
    });
    scenarios
}

fn explore_all(scenarios: &[Scenario], preemptions: usize, trials: usize) {
    judge_all(scenarios, preemptions, |place, scenario, tried| {
        let bounds = Bounds {
            preemptions,
            trials,
            stops_at_fault: false,
        };
        explore(place, scenario, &bounds, None, tried)
    });
}

fn judge_all(
    scenarios: &[Scenario],
    preemptions: usize,
    explore: impl Fn(&Place, &Scenario, &mut Tried) -> Explored + Sync,
) {
    let faults = Mutex::new(String::new());
    let expected = Expected::new();
    let done = Done::in_directory(env::var_os("INTERLEAVING_DONE").map(PathBuf::from));
    for_each_on_all_processors(scenarios, |scenario, place| {
        if let Some(said) = done.explored(scenario, preemptions) {
            println!("done before: {said}");
            return;
        }
        let began = std::time::Instant::now();
        let mut tried = done.begin(scenario, preemptions);
        let explored = explore(place, scenario, &mut tried);
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
        let said = format!(
            "{:24} {:6} schedules{} of {:3} calls, {} left out, {:4.0} in a second, {} not replayed, {} faulty: {}",
            scenario.name,
            explored.trials,
            if explored.cut { " (cut)" } else { "" },
            explored.steps / explored.trials,
            explored.left_out,
            (explored.trials - tried.read) as f64 / began.elapsed().as_secs_f64(),
            explored.not_replayed.len(),
            explored
                .faults
                .values()
                .map(|(count, _)| count)
                .sum::<usize>(),
            outcomes.join(", "),
        );
        println!("{said}");
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
        if text.is_empty() && !explored.cut {
            done.end(scenario, preemptions, &said);
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
    let preemptions = number("INTERLEAVING_PREEMPTIONS_OF_THREE").unwrap_or(1);
    explore_all(&chosen(3), preemptions, trials);
}

/// Those with two preemptions are too many to try all of them each time.
#[test]
#[ignore = "runs for a minute"]
fn no_random_order_with_two_preemptions_breaks_a_promise() {
    let seed = number("INTERLEAVING_SEED").unwrap_or(1);
    let bounds = Bounds {
        preemptions: 2,
        trials: number("INTERLEAVING_TRIALS").unwrap_or(25),
        stops_at_fault: false,
    };
    let scenarios = [chosen(2), chosen(3)].concat();
    judge_all(&scenarios, 2, |place, scenario, _| {
        sample(place, scenario, &bounds, None, seed as u64)
    });
}

#[test]
#[ignore = "needs etcd and PostgreSQL (apt: etcd-server etcd-client postgresql), and runs for a minute"]
fn no_order_of_the_requests_of_two_processes_to_a_server_breaks_a_promise() {
    let (preemptions, trials) = bounds();
    let mut scenarios = chosen(2);
    if env::var_os("INTERLEAVING_ONLY").is_none() {
        scenarios = scenario::scenarios();
    }
    scenarios.retain(|scenario| scenario.engine.is_some());
    // Started here: a thread of the scheduler has one processor.
    let _servers = (cluster::shared(), cluster::shared_postgres());
    explore_all(&scenarios, preemptions, trials);
}

/// The second exploration runs only what the first one had not, and comes to the same as one that is not ended.
#[test]
fn exploration_that_was_ended_goes_on_where_it_was() {
    with_scenario("run-run", |scenario, place| {
        let room = tempfile::tempdir().unwrap();
        let file = room.path().join("tried");
        let up_to = |trials: usize, of: &str| {
            let bounds = Bounds {
                preemptions: 2,
                trials,
                stops_at_fault: false,
            };
            let mut tried = Tried::in_file(&file, of);
            let explored = explore(place, scenario, &bounds, None, &mut tried);
            (tried.read, explored)
        };
        assert_eq!(up_to(15, "this program").0, 0);
        // It was killed while it wrote.
        let mut text = std::fs::read(&file).unwrap();
        text.truncate(text.len() - 10);
        std::fs::write(&file, &text).unwrap();
        let (read, explored) = up_to(40, "this program");
        assert_eq!((read, explored.trials), (14, 40));
        let (read, again) = up_to(40, "this program");
        assert_eq!(read, 40);
        assert_eq!(again.outcomes, explored.outcomes);
        assert_eq!(again.said, explored.said);
        assert_eq!(again.left_out, explored.left_out);
        assert_eq!(up_to(5, "another program").0, 0);
    });
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
    let bounds = Bounds {
        preemptions: 1,
        // The hardest one needs about 450, and some more or fewer for each user and machine.
        trials: number("INTERLEAVING_TRIALS").unwrap_or(1_000),
        stops_at_fault: true,
    };
    find_each(&FLAWS, |place, scenario, flaw| {
        explore(place, scenario, &bounds, Some(flaw), &mut Tried::default())
    });
}

#[test]
#[ignore = "runs for minutes"]
fn each_planted_flaw_is_found_by_random_orders_with_two_preemptions() {
    let bounds = Bounds {
        preemptions: 2,
        trials: number("INTERLEAVING_TRIALS").unwrap_or(3_000),
        stops_at_fault: true,
    };
    let seed = number("INTERLEAVING_SEED").unwrap_or(1);
    find_each(&FLAWS, |place, scenario, flaw| {
        sample(place, scenario, &bounds, Some(flaw), seed as u64)
    });
}

#[test]
#[ignore = "needs etcd and PostgreSQL (apt: etcd-server etcd-client postgresql)"]
fn each_planted_flaw_of_requests_is_found() {
    let bounds = Bounds {
        preemptions: 2,
        trials: 200,
        stops_at_fault: true,
    };
    let _servers = (cluster::shared(), cluster::shared_postgres());
    find_each(&FLAWS_OF_REQUESTS, |place, scenario, flaw| {
        explore(place, scenario, &bounds, Some(flaw), &mut Tried::default())
    });
}

fn find_each(flaws: &[Flaw], explore: impl Fn(&Place, &Scenario, Flaw) -> Explored + Sync) {
    let only = env::var("INTERLEAVING_FLAW").ok();
    let mut flaws = flaws.to_vec();
    flaws.retain(|flaw| only.as_ref().is_none_or(|only| only == flaw.name));
    let (expected, missed) = (Expected::new(), Mutex::new(Vec::new()));
    for_each_on_all_processors(&flaws, |flaw, place| {
        let mut trials = 0;
        for name in flaw.scenarios {
            let scenario = scenarios().into_iter().find(|found| found.name == *name);
            let scenario = scenario.unwrap_or_else(|| panic!("{name}"));
            let explored = explore(place, &scenario, *flaw);
            trials += explored.trials;
            let fault = explored.faults.first_key_value();
            let fault = fault.map(|(fault, (_, schedule))| (fault.clone(), schedule.clone()));
            let miss = || expected.misses(&scenario, &explored).into_iter().next();
            if let Some((fault, schedule)) = fault.or_else(miss) {
                println!(
                    "{}: {trials} schedules, `{name} {schedule}`: {fault}",
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
        .chain(FLAWS_OF_REQUESTS)
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
