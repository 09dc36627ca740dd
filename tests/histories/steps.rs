//! What the calls of a history mean for the locks, step by step; and the verdict on all of them.

use std::collections::{HashMap, HashSet};

use crate::checker::{self, Effort, Need, Step};
use crate::history::{Call, History, Id, Mode, Outcome, Take, Verb};
use crate::lock::{Act, Takes, are_related};

/// Decides whether it is the history of locks. `Err`: why it is not.
pub fn judge(history: &History) -> Result<Effort, String> {
    let mut meaning = Meaning::of(history);
    for call in &history.calls {
        meaning.add(call)?;
    }
    // Names that have nothing to do with each other are judged apart.
    let mut all = Effort::default();
    for steps in meaning.by_names() {
        let effort = checker::judge(&steps, &meaning.takes)
            .map_err(|fault| explain(history, &steps, &fault))?;
        all.steps += effort.steps;
        all.most_ways = all.most_ways.max(effort.most_ways);
    }
    Ok(all)
}

/// With the calls that the fault names, as they were recorded.
fn explain(history: &History, steps: &[Step], fault: &str) -> String {
    let calls = history.calls.iter().filter(|call| is_named(call.id, fault));
    let calls: Vec<String> = calls.map(|call| format!("{call:?}")).collect();
    format!(
        "among {} steps: {fault}\nThe calls:\n{}",
        steps.len(),
        calls.join("\n")
    )
}

/// Whether a fault is about that call.
pub fn is_named(id: Id, fault: &str) -> bool {
    let words = [
        format!("call: {id},"),
        format!("id: {id},"),
        format!("({id},"),
        format!("({id})"),
    ];
    words.iter().any(|words| fault.contains(words))
}

struct Meaning<'a> {
    history: &'a History,
    calls: HashMap<Id, &'a Call>,
    takes: Takes<'a>,
    /// The calls whose holds others name.
    named: HashSet<Id>,
    /// Somebody was refused, and did not say for whom.
    needs_any: bool,
    steps: Vec<Step>,
}

impl<'a> Meaning<'a> {
    fn of(history: &'a History) -> Self {
        let calls = &history.calls;
        Self {
            history,
            calls: calls.iter().map(|call| (call.id, call)).collect(),
            takes: calls
                .iter()
                .filter_map(|call| Some((call.id, call.take()?)))
                .collect(),
            named: calls.iter().flat_map(Call::named).collect(),
            needs_any: (calls.iter()).any(|call| call.outcome == Outcome::Refused(None)),
            steps: Vec::new(),
        }
    }

    fn step(&mut self, call: Id, need: Need, (earliest, latest): (u64, u64), act: Act) {
        self.steps.push(Step {
            call,
            earliest,
            latest,
            need,
            act,
        });
    }

    fn add(&mut self, call: &Call) -> Result<(), String> {
        if let Some(named) = call
            .named()
            .into_iter()
            .find(|id| !self.takes.contains_key(id))
        {
            return Err(format!("call {named} took no lock: {call:?}"));
        }
        let whole = (call.called, call.returned);
        match (&call.verb, &call.outcome) {
            (_, Outcome::Nil) if call.section.is_none() => {}
            (Verb::Run(_) | Verb::Lease(..) | Verb::Job(_), outcome) => match outcome {
                Outcome::Refused(_) | Outcome::RefusedForWaiter if call.section.is_some() => {
                    return Err(format!("refused, and its section has run: {call:?}"));
                }
                Outcome::Refused(by) => {
                    self.step(call.id, Need::Must, whole, Act::Refuse(call.id, *by));
                }
                Outcome::RefusedForWaiter => self.find_waiter(call)?,
                _ => self.add_hold(call),
            },
            (Verb::Renew(hold, ttl), outcome) => self.add_renewal(call, *hold, *ttl, outcome),
            (Verb::Release(hold), Outcome::Released) => {
                self.step(call.id, Need::Must, whole, Act::Remove(*hold));
            }
            (Verb::Release(hold), Outcome::Nothing) => {
                self.step(call.id, Need::Must, whole, Act::Miss(*hold));
            }
            (Verb::Release(hold), Outcome::Unknown) => {
                let until = call.gone + self.history.store.under_way;
                self.step(call.id, Need::May, (call.called, until), Act::Remove(*hold));
            }
            (Verb::Break { name, by_force }, outcome) => {
                self.add_break(call, name, *by_force, outcome);
            }
            (Verb::Check(name) | Verb::Wait(name), Outcome::Nothing) => {
                self.step(call.id, Need::Must, whole, Act::SeeFree(name.clone()));
            }
            (_, Outcome::Saw(holds)) => {
                for hold in holds {
                    self.step(call.id, Need::Must, whole, Act::See(*hold));
                }
            }
            (_, Outcome::Removed(holds)) => {
                for hold in holds {
                    self.step(call.id, Need::Must, whole, Act::Sweep(*hold));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A call that has taken its locks, or may have.
    fn add_hold(&mut self, call: &Call) {
        let store = self.history.store;
        let mut number = match call.outcome {
            Outcome::Took(number) => Some(number),
            _ => None,
        };
        let dead = call.gone + store.after_death;
        let (need, taken) = match &call.section {
            Some(section) => {
                number = Some(section.hold);
                (Need::Must, section.from)
            }
            None if number.is_some() => (Need::Must, call.returned),
            None => (Need::May, call.gone + store.under_way),
        };
        if need == Need::May && !self.explains(call) {
            return;
        }
        let take = Act::Take(call.id, number);
        self.step(call.id, need, (call.called, taken), take);
        let ends = match (&call.verb, need) {
            (Verb::Lease(_, ttl), Need::Must) => {
                (call.called + ttl, taken + ttl + store.after_expiry)
            }
            // Killed before it could say its number: then it holds nothing.
            (Verb::Lease(_, ttl), _) => (call.called, taken + ttl + store.after_expiry),
            (Verb::Job(_), _) => (call.killed.unwrap_or(call.called), dead),
            _ => {
                let at_work = call
                    .section
                    .as_ref()
                    .map_or(call.called, |section| section.to);
                (at_work, if call.is_clean { call.returned } else { dead })
            }
        };
        let act = if call.is_clean && matches!(call.verb, Verb::Run(_)) {
            Act::Remove(call.id)
        } else {
            Act::End(call.id, call.id)
        };
        self.step(call.id, Need::IfItLasts(call.id, call.id), ends, act);
    }

    /// Whether a hold that nobody is sure of is needed for anything: else it would only be in the way. A full lock may
    /// be full because of it, of which only one holder is named; and by force, it has ended others.
    fn explains(&self, call: &Call) -> bool {
        let own = self.takes[&call.id];
        let may_fill = own.mode != Mode::Exclusive
            && self.history.calls.iter().any(|other| {
                let take = other
                    .take()
                    .filter(|_| matches!(other.outcome, Outcome::Refused(_)));
                take.is_some_and(|take| matches!(take.mode, Mode::Slots(_)) && meet(take, own))
            });
        self.needs_any || may_fill || own.by_force || self.named.contains(&call.id)
    }

    fn add_renewal(&mut self, call: &Call, hold: Id, ttl: u64, outcome: &Outcome) {
        let store = self.history.store;
        let (need, until) = match outcome {
            Outcome::Renewed => (Need::Must, call.returned),
            Outcome::Unknown => (Need::May, call.gone + store.under_way),
            Outcome::Nothing => {
                let whole = (call.called, call.returned);
                return self.step(call.id, Need::Must, whole, Act::Miss(hold));
            }
            _ => return,
        };
        self.step(
            call.id,
            need,
            (call.called, until),
            Act::Renew(hold, call.id),
        );
        let ends = (call.called + ttl, until + ttl + store.after_expiry);
        let need = Need::IfItLasts(hold, call.id);
        self.step(call.id, need, ends, Act::End(hold, call.id));
    }

    fn add_break(&mut self, call: &Call, name: &str, by_force: bool, outcome: &Outcome) {
        let (need, holds, until) = match outcome {
            Outcome::Nothing => {
                let whole = (call.called, call.returned);
                return self.step(call.id, Need::Must, whole, Act::SeeFree(name.to_owned()));
            }
            Outcome::Broke(holds) => (Need::Must, holds.clone(), call.returned),
            // Any hold that it can have found.
            Outcome::Unknown => {
                let until = call.gone + self.history.store.under_way;
                let takes = self.takes.iter();
                let of_name =
                    takes.filter(|(_, take)| take.names.iter().any(|other| other == name));
                let found = of_name.map(|(id, _)| *id).filter(|id| {
                    let other = self.calls[id];
                    let lasts = matches!(other.verb, Verb::Lease(..) | Verb::Job(_));
                    let may_be_there = lasts || other.gone >= call.called;
                    !matches!(
                        other.outcome,
                        Outcome::Refused(_) | Outcome::RefusedForWaiter
                    ) && other.called <= call.gone
                        && may_be_there
                });
                (Need::May, found.collect(), until)
            }
            _ => return,
        };
        for hold in holds {
            // Only once its work has ended.
            let other = self.calls[&hold];
            let at_work = other.section.as_ref().map_or(0, |section| section.to);
            let from = call.called.max(if by_force { 0 } else { at_work });
            // Two who wait for the end of the same work have both broken it.
            let is_shared = need == Need::Must && matches!(other.verb, Verb::Run(_));
            let removes = if is_shared { Need::May } else { need };
            if is_shared {
                let whole = (call.called, until);
                self.step(call.id, need, whole, Act::Find(hold));
            }
            if need == Need::Must || from <= until {
                self.step(call.id, removes, (from, until), Act::Remove(hold));
            }
            if is_shared {
                self.step(call.id, need, (from, until), Act::Miss(hold));
            }
        }
    }

    /// Who is refused for a waiter must have had one ahead, or one that has just gone.
    fn find_waiter(&self, call: &Call) -> Result<(), String> {
        let refused = self.takes[&call.id];
        let is_ahead = |other: &&Call| {
            let Some(take) = other.take().filter(|_| other.id != call.id) else {
                return false;
            };
            let waited_until = other
                .section
                .as_ref()
                .map_or(other.gone, |section| section.from);
            take.waits.is_some()
                && meet(take, refused)
                && other.called <= call.returned
                && waited_until + self.history.store.after_waiting >= call.called
        };
        match self.history.calls.iter().find(is_ahead) {
            Some(_) => Ok(()),
            None => Err(format!("refused for a waiter, and nobody waits: {call:?}")),
        }
    }

    /// The steps of names that are related, or were taken together.
    fn by_names(&self) -> Vec<Vec<Step>> {
        let mut groups: Vec<Vec<&str>> = Vec::new();
        for call in self.calls.values() {
            let mut merged = call.names();
            groups.retain_mut(|group| {
                let meets = group
                    .iter()
                    .any(|one| merged.iter().any(|other| are_related(one, other)));
                if meets {
                    merged.append(group);
                }
                !meets
            });
            merged.sort_unstable();
            merged.dedup();
            if !merged.is_empty() {
                groups.push(merged);
            }
        }
        let name_of = |step: &'_ Step| match &step.act {
            Act::SeeFree(name) => name.clone(),
            Act::Take(id, _)
            | Act::Refuse(id, _)
            | Act::End(id, _)
            | Act::Renew(id, _)
            | Act::Remove(id)
            | Act::Sweep(id)
            | Act::Find(id)
            | Act::See(id)
            | Act::Miss(id) => self.takes[id].names[0].clone(),
        };
        let of_group = |group: &Vec<&str>| {
            let steps = self.steps.iter();
            let own = steps.filter(|step| group.contains(&&*name_of(step)));
            own.cloned().collect()
        };
        groups.iter().map(of_group).collect()
    }
}

/// Whether two calls ask for locks that have to do with each other.
fn meet(one: &Take, other: &Take) -> bool {
    (one.names.iter()).any(|one| other.names.iter().any(|other| are_related(one, other)))
}
