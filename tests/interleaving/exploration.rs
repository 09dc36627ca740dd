//! All orders of the calls of a few processes with a bounded number of preemptions.
//!
//! After Musuvathi and Qadeer, "Iterative Context Bounding for Systematic Testing of Multithreaded Programs"
//! (2007). To be preempted before a call is the same as to be preempted after it, if nothing that the others do
//! meanwhile conflicts with it. So the moments are tried from the last to the first, and one that is the same as the
//! next one is left out. So is one at which everything has happened that happened in another trial, in the same order
//! wherever that can matter. Of processes that are started in the same way, the first one begins first.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use crate::calls::{Access, Object};
use crate::flaws::Flaw;
use crate::scenario::{Place, Scenario, Schedule, Step, Trial};
use crate::tried::Tried;

/// What was seen in all trials of a scenario.
#[derive(Default)]
pub struct Explored {
    pub trials: usize,
    pub steps: usize,
    /// Moments that were the same as others.
    pub left_out: usize,
    /// Whether more would have been to run.
    pub cut: bool,
    /// Trials that did not repeat what the one that they continue has done.
    pub not_replayed: BTreeSet<String>,
    /// Each kind of fault, how often it was seen, and the first schedule that shows it.
    pub faults: BTreeMap<String, (usize, String)>,
    /// What each process said for each of its exit codes, and the first schedule in which it did.
    pub said: BTreeMap<(usize, i32, String), String>,
    pub outcomes: BTreeMap<Vec<Option<i32>>, usize>,
}

/// A scenario can take hours: `--nocapture` shows how far it is.
const TRIALS_BETWEEN_REPORTS: usize = 5_000;

pub struct Bounds {
    pub preemptions: usize,
    pub trials: usize,
    /// Whether the first fault is enough.
    pub stops_at_fault: bool,
}

/// A trial whose other orders are to be run.
struct Parent {
    schedule: Schedule,
    preemptions: usize,
    steps: Vec<Rc<Step>>,
}

pub fn show(schedule: &[(usize, String)]) -> String {
    let parts: Vec<_> = schedule
        .iter()
        .map(|(number, name)| format!("{number}:{name}"))
        .collect();
    parts.join(",")
}

pub fn parse(text: &str) -> Schedule {
    let part = |part: &str| {
        let (number, name) = part.split_once(':').unwrap();
        (number.parse().unwrap(), name.to_owned())
    };
    text.split(',')
        .filter(|part| !part.is_empty())
        .map(part)
        .collect()
}

/// Where a trial did not repeat what the one that it continues has done.
fn difference(before: &[Rc<Step>], steps: &[Rc<Step>], trial: &Trial) -> Option<String> {
    let mut steps = steps.iter();
    for (at, step) in before.iter().enumerate() {
        let now = steps.next().map(|step| (&step.chosen, &step.text));
        if now != Some((&step.chosen, &step.text)) {
            return Some(format!("{at}: {now:?}, not {} {}", step.chosen, step.text));
        }
    }
    trial.diverged.then(|| "it could not go on".to_owned())
}

/// Where a trial is cut, those that are left out lie at random: the same ones each time.
struct Order(u64);

impl Order {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// What has happened before each step, whatever the order of what does not conflict.
fn histories(steps: &[Rc<Step>]) -> Vec<u64> {
    let mut history = 0_u64;
    let mut of_tasks: BTreeMap<&str, u64> = BTreeMap::new();
    // For each object the last change, and who has looked at it since.
    let mut of_objects: BTreeMap<&Object, (u64, u64)> = BTreeMap::new();
    let mut histories = Vec::with_capacity(steps.len() + 1);
    for step in steps {
        histories.push(history);
        let mut before = of_tasks
            .get(step.chosen.as_str())
            .copied()
            .unwrap_or_default();
        for access in &step.accesses {
            let object = of_objects.entry(&access.object).or_default();
            before = before.wrapping_add(match (&access.object, access.changes) {
                (Object::All, _) => history,
                (_, true) => object.0.wrapping_add(object.1),
                (_, false) => object.0,
            });
        }
        before = before.wrapping_add(of_objects.get(&Object::All).map_or(0, |all| all.0));
        let own = hash((&step.chosen, &step.text, before));
        of_tasks.insert(&step.chosen, own);
        for access in &step.accesses {
            let object = of_objects.entry(&access.object).or_default();
            if access.changes {
                *object = (own, 0);
            } else {
                object.1 = object.1.wrapping_add(hash(own));
            }
        }
        history = history.wrapping_add(own);
    }
    histories.push(history);
    histories
}

/// Who has gone on after what has happened, as one hash, and with how few preemptions.
#[derive(Default)]
struct Known(HashMap<u64, usize>);

impl Known {
    fn note(&mut self, steps: &[Rc<Step>], from: usize, preemptions: usize) {
        for (history, step) in histories(steps).into_iter().zip(steps).skip(from) {
            let known = self.0.entry(hash((history, &step.chosen)));
            let fewest = known.or_insert(preemptions);
            *fewest = preemptions.min(*fewest);
        }
    }

    fn has(&self, history: u64, task: &str, preemptions: usize) -> bool {
        let fewest = self.0.get(&hash((history, task)));
        fewest.is_some_and(|fewest| *fewest <= preemptions)
    }
}

/// What the others did, from their preemption of a process until it went on.
struct Meanwhile {
    at: usize,
    preemptions: usize,
    accesses: BTreeSet<Access>,
}

impl Explored {
    fn note(
        &mut self,
        schedule: &[(usize, String)],
        before: &[Rc<Step>],
        steps: &[Rc<Step>],
        trial: &Trial,
    ) {
        self.trials += 1;
        self.steps += steps.len();
        if let Some(difference) = difference(before, steps, trial) {
            self.not_replayed
                .insert(format!("{} {difference}", show(schedule)));
        }
        *self.outcomes.entry(trial.codes.clone()).or_default() += 1;
        for (number, (code, said)) in trial.codes.iter().zip(&trial.said).enumerate() {
            if let Some(code) = code {
                self.said
                    .entry((number, *code, said.clone()))
                    .or_insert_with(|| show(schedule));
            }
        }
        for fault in &trial.faults {
            self.faults
                .entry(crate::calls::without_numbers(fault))
                .or_insert_with(|| (0, show(schedule)))
                .0 += 1;
        }
    }
}

pub fn explore(
    place: &Place,
    scenario: &Scenario,
    bounds: &Bounds,
    flaw: Option<Flaw>,
    tried: &mut Tried,
) -> Explored {
    let mut explored = Explored::default();
    let mut order = Order(0x9e37_79b9_7f4a_7c15);
    place.prepare(scenario);
    let (steps, first) = tried.trial(&[], || place.trial(scenario, &[], flaw, false));
    explored.note(&[], &[], &steps, &first);
    // Those with few preemptions first.
    let mut known = Known::default();
    known.note(&steps, 0, 0);
    let mut parents: Vec<Vec<Parent>> = (0..=bounds.preemptions).map(|_| Vec::new()).collect();
    parents[0].push(Parent {
        schedule: Vec::new(),
        preemptions: 0,
        steps,
    });
    while let Some(some) = parents.iter_mut().find(|some| !some.is_empty()) {
        let parent = some.swap_remove(order.below(some.len()));
        let from = parent.schedule.last().map_or(0, |(number, _)| number + 1);
        let histories = histories(&parent.steps);
        // For each process that could have gone on instead.
        let mut next: BTreeMap<&str, Meanwhile> = BTreeMap::new();
        for (at, step) in parent.steps.iter().enumerate().skip(from).rev() {
            let preemptions = parent.preemptions + usize::from(step.goes_on);
            next.retain(|other, _| step.ready.iter().any(|ready| ready == other));
            if preemptions > bounds.preemptions {
                next.clear();
                continue;
            }
            for other in step.ready.iter().filter(|other| **other != step.chosen) {
                if let Some(later) = next.get_mut(other.as_str())
                    && later.at == at + 1
                    && parent.steps[at + 1].chosen == step.chosen
                    && later.preemptions <= preemptions
                    && !conflict(&step.accesses, &later.accesses)
                {
                    later.at = at;
                    explored.left_out += 1;
                    continue;
                }
                if starts_before_its_like(scenario, &parent.steps[..at], other) {
                    explored.left_out += 1;
                    next.remove(other.as_str());
                    continue;
                }
                if known.has(histories[at], other, preemptions) {
                    explored.left_out += 1;
                    next.remove(other.as_str());
                    continue;
                }
                if explored.trials == bounds.trials
                    || (bounds.stops_at_fault && !explored.faults.is_empty())
                {
                    explored.cut = true;
                    return explored;
                }
                let mut schedule = parent.schedule.clone();
                schedule.push((at, other.clone()));
                let run = || place.trial(scenario, &schedule, flaw, false);
                let (steps, trial) = tried.trial(&schedule, run);
                explored.note(&schedule, &parent.steps[..at], &steps, &trial);
                known.note(&steps, at, preemptions);
                let meanwhile = steps.iter().skip(at);
                let meanwhile = meanwhile.take_while(|done| done.chosen != step.chosen);
                let later = Meanwhile {
                    at,
                    preemptions,
                    accesses: meanwhile.flat_map(|step| step.accesses.clone()).collect(),
                };
                next.insert(other, later);
                parents[preemptions].push(Parent {
                    schedule,
                    preemptions,
                    steps,
                });
                if explored.trials.is_multiple_of(TRIALS_BETWEEN_REPORTS) {
                    let open: Vec<usize> = parents.iter().map(Vec::len).collect();
                    println!(
                        "{:24} {:6} schedules so far, to be varied, by preemptions: {open:?}",
                        scenario.name, explored.trials
                    );
                }
            }
        }
    }
    explored
}

/// So many orders, each with another process that goes on at a random moment of one before, up to the bound.
pub fn sample(
    place: &Place,
    scenario: &Scenario,
    bounds: &Bounds,
    flaw: Option<Flaw>,
    seed: u64,
) -> Explored {
    let mut explored = Explored {
        cut: true,
        ..Explored::default()
    };
    let mut order = Order(seed | 1);
    place.prepare(scenario);
    let mut tried = Tried::default();
    let mut parents: Vec<Vec<Parent>> = (0..=bounds.preemptions).map(|_| Vec::new()).collect();
    let (steps, first) = tried.trial(&[], || place.trial(scenario, &[], flaw, false));
    explored.note(&[], &[], &steps, &first);
    let mut known = Known::default();
    known.note(&steps, 0, 0);
    parents[0].push(Parent {
        schedule: Vec::new(),
        preemptions: 0,
        steps,
    });
    // Of a few calls there are not so many orders.
    for _ in 0..bounds.trials * 4 {
        let is_over = explored.trials == bounds.trials;
        if is_over || (bounds.stops_at_fault && !explored.faults.is_empty()) {
            break;
        }
        let some = &parents[order.below(bounds.preemptions + 1)];
        if some.is_empty() {
            continue;
        }
        let parent = &some[order.below(some.len())];
        let from = parent.schedule.last().map_or(0, |(number, _)| number + 1);
        if from >= parent.steps.len() {
            continue;
        }
        let at = from + order.below(parent.steps.len() - from);
        let step = &parent.steps[at];
        let others: Vec<&String> = step.ready.iter().filter(|o| **o != step.chosen).collect();
        let preemptions = parent.preemptions + usize::from(step.goes_on);
        if others.is_empty() || preemptions > bounds.preemptions {
            continue;
        }
        let other = others[order.below(others.len())];
        if starts_before_its_like(scenario, &parent.steps[..at], other)
            || known.has(histories(&parent.steps)[at], other, preemptions)
        {
            explored.left_out += 1;
            continue;
        }
        let mut schedule = parent.schedule.clone();
        schedule.push((at, other.clone()));
        let run = || place.trial(scenario, &schedule, flaw, false);
        let (steps, trial) = tried.trial(&schedule, run);
        explored.note(&schedule, &parent.steps[..at], &steps, &trial);
        known.note(&steps, at, preemptions);
        parents[preemptions].push(Parent {
            schedule,
            preemptions,
            steps,
        });
    }
    explored
}

/// Whether it would make its first call before an earlier process that is started in the same way: with the names of
/// the two exchanged, the order is another one that is tried.
fn starts_before_its_like(scenario: &Scenario, before: &[Rc<Step>], other: &str) -> bool {
    let has_started = |name: &str| before.iter().any(|step| step.chosen == name);
    let of = |number: usize| format!("{}0", char::from(b'A' + number as u8));
    let all = &scenario.processes;
    let own = (0..all.len()).find(|number| of(*number) == other);
    own.is_some_and(|own| {
        !has_started(other) && (0..own).any(|like| all[like] == all[own] && !has_started(&of(like)))
    })
}

fn conflict(own: &[Access], others: &BTreeSet<Access>) -> bool {
    own.iter()
        .any(|own| others.iter().any(|other| own.conflicts_with(other)))
}
