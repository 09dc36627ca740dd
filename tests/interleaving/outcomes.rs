//! What the processes of a scenario may come to (`outcomes.txt`), and how the program says it (`wording.txt`).
//!
//! A sentence that is not known has no state, so that it can be in no outcome: a new wording does not hide what is new
//! in what happens.

use std::collections::{BTreeMap, BTreeSet};

use crate::exploration::Explored;
use crate::scenario::Scenario;

/// The lines that are no comments, as `KEY = VALUE`.
fn entries(text: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("# "));
    lines.map(|line| {
        let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("{line}"));
        (key.trim(), value.trim())
    })
}

pub struct Expected {
    /// The state of each sentence.
    states: BTreeMap<&'static str, &'static str>,
    /// `SCENARIO PROCESS VERB`, and `CODE STATE`.
    outcomes: BTreeSet<(&'static str, &'static str)>,
}

impl Expected {
    pub fn new() -> Self {
        let wording = entries(include_str!("wording.txt"));
        let outcomes = entries(include_str!("outcomes.txt"));
        Self {
            states: wording.map(|(state, sentence)| (sentence, state)).collect(),
            outcomes: outcomes
                .flat_map(|(invocation, all)| all.split(" | ").map(move |one| (invocation, one)))
                .collect(),
        }
    }

    /// The states of all sentences, or the first sentence that has none.
    fn state(&self, said: &str) -> Result<String, String> {
        let state = |sentence: String| match self.states.get(sentence.as_str()) {
            Some(state) => Ok(*state),
            None => Err(sentence),
        };
        let states: Result<Vec<&str>, String> = sentences(said).into_iter().map(state).collect();
        Ok(states?.join(" + "))
    }

    /// What was said that has no state, and what happened that is no outcome, each with a schedule.
    pub fn misses(&self, scenario: &Scenario, explored: &Explored) -> Vec<(String, String)> {
        let miss = |((number, code, said), schedule): (&(usize, i32, String), &String)| {
            let invocation = scenario.invocation(*number);
            let outcome = self.state(said).map(|state| format!("{code} {state}"));
            let miss = match outcome {
                Err(sentence) => format!("not in wording.txt, {invocation} = {code}: {sentence}"),
                Ok(one) if self.outcomes.contains(&(&*invocation, &*one)) => return None,
                Ok(one) => format!("not in outcomes.txt: {invocation} = {one}"),
            };
            Some((miss, schedule.clone()))
        };
        explored.said.iter().filter_map(miss).collect()
    }
}

/// Each with the lines that are indented below it.
fn sentences(said: &str) -> Vec<String> {
    let mut sentences: Vec<String> = Vec::new();
    for line in said.split('\n') {
        match sentences.last_mut() {
            Some(sentence) if line.starts_with("  ") => {
                sentence.push_str("\\n");
                sentence.push_str(line);
            }
            _ => sentences.push(line.to_owned()),
        }
    }
    sentences
}

#[test]
fn state_has_one_sentence_and_a_sentence_one_state() {
    let wording: Vec<_> = entries(include_str!("wording.txt")).collect();
    let states: BTreeSet<_> = wording.iter().map(|(state, _)| state).collect();
    let sentences: BTreeSet<_> = wording.iter().map(|(_, sentence)| sentence).collect();
    assert_eq!([states.len(), sentences.len()], [wording.len(); 2]);
}

#[test]
fn outcomes_are_those_of_scenarios_with_their_exit_codes_and_states() {
    let expected = Expected::new();
    let scenarios = crate::scenario::scenarios();
    let possible: BTreeSet<(String, i32)> = scenarios.iter().flat_map(Scenario::ends).collect();
    let known: BTreeSet<&str> = expected.states.values().copied().collect();
    let mut used = BTreeSet::new();
    for (invocation, outcome) in &expected.outcomes {
        let (code, states) = outcome.split_once(' ').unwrap();
        let end = ((*invocation).to_owned(), code.parse().unwrap());
        assert!(possible.contains(&end), "{invocation} = {outcome}");
        for state in states.split(" + ") {
            assert!(known.contains(state), "{invocation} = {outcome}");
            used.insert(state);
        }
    }
    assert_eq!(used, known, "in wording.txt");
}

#[test]
fn sentence_without_a_state_is_missed_whatever_the_outcome() {
    let expected = Expected::new();
    let scenario = &crate::scenario::scenarios()[0];
    let missed = |code, said: &str| {
        let mut explored = Explored::default();
        let said = said.to_owned();
        explored.said.insert((0, code, said), "3:B0".to_owned());
        let misses = expected.misses(scenario, &explored).into_iter();
        misses.map(|(miss, _)| miss).collect::<Vec<_>>()
    };
    assert_eq!(missed(0, ""), [""; 0]);
    assert_eq!(
        missed(0, "onehold: all is well\n  as it was"),
        ["not in wording.txt, run-run A run = 0: onehold: all is well\\n  as it was"]
    );
    let free = "onehold: `a` is free: nothing to break";
    assert_eq!(
        missed(0, free),
        ["not in outcomes.txt: run-run A run = 0 free, nothing to break"]
    );
    assert_eq!(
        missed(6, ""),
        ["not in outcomes.txt: run-run A run = 6 nothing"]
    );
}
