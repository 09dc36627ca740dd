//! What was tried before: an exploration that was ended goes on where it was.
//!
//! While a scenario is explored, a file has each of its trials. The next exploration reads them in place of running
//! them, and comes to the same ones, since it chooses by nothing but what it has seen. Once a scenario is explored
//! without a fault, a line in `done` is all that is kept of it.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::exploration::show;
use crate::harness;
use crate::scenario::{Scenario, Step, Trial};

/// One trial, as a line: its schedule, the steps that no trial before had, all steps in order of the first trial that
/// had them, and the rest.
type Line = (String, Vec<Step>, Vec<usize>, Trial);

/// Each different step of all trials, once: of many trials all steps are kept.
#[derive(Default)]
pub struct Tried {
    steps: Vec<Rc<Step>>,
    numbers: HashMap<Rc<Step>, usize>,
    before: Option<BufReader<File>>,
    file: Option<File>,
    /// How much of the file was read.
    bytes: u64,
    /// How many trials were read.
    pub read: usize,
}

impl Tried {
    /// Goes on with what a file has, unless that is of another program or scenario.
    pub fn in_file(path: &Path, of: &str) -> Self {
        let mut options = OpenOptions::new();
        let mut file = options.create(true).append(true).open(path).unwrap();
        let mut before = BufReader::new(File::open(path).unwrap());
        let own = format!("{of}\n");
        let mut found = String::new();
        before.read_line(&mut found).unwrap();
        if found != own {
            file.set_len(0).unwrap();
            file.write_all(own.as_bytes()).unwrap();
        }
        Self {
            before: (found == own).then_some(before),
            file: Some(file),
            bytes: own.len() as u64,
            ..Self::default()
        }
    }

    /// The trial of a schedule and its steps: as it was, or as it is run now.
    pub fn trial(
        &mut self,
        schedule: &[(usize, String)],
        run: impl FnOnce() -> Trial,
    ) -> (Vec<Rc<Step>>, Trial) {
        if let Some(line) = self.next() {
            let (of, new, numbers, trial) = line;
            assert_eq!(of, show(schedule), "of another exploration");
            self.read += 1;
            for step in new {
                self.number(Rc::new(step));
            }
            return (self.of(&numbers), trial);
        }
        let mut trial = run();
        let known = self.steps.len();
        let steps = std::mem::take(&mut trial.steps).into_iter();
        let numbers: Vec<usize> = steps.map(|step| self.number(Rc::new(step))).collect();
        if let Some(file) = &mut self.file {
            let new: Vec<&Step> = self.steps[known..].iter().map(Rc::as_ref).collect();
            let line = (show(schedule), new, &numbers, &trial);
            let mut text = serde_json::to_vec(&line).unwrap();
            text.push(b'\n');
            file.write_all(&text).unwrap();
        }
        (self.of(&numbers), trial)
    }

    fn of(&self, numbers: &[usize]) -> Vec<Rc<Step>> {
        let steps = numbers.iter();
        steps
            .map(|number| Rc::clone(&self.steps[*number]))
            .collect()
    }

    fn number(&mut self, step: Rc<Step>) -> usize {
        if let Some(number) = self.numbers.get(&step) {
            return *number;
        }
        let number = self.steps.len();
        self.steps.push(Rc::clone(&step));
        self.numbers.insert(step, number);
        number
    }

    fn next(&mut self) -> Option<Line> {
        let mut line = String::new();
        self.before.as_mut()?.read_line(&mut line).unwrap();
        if line.ends_with('\n') {
            self.bytes += line.len() as u64;
            return Some(serde_json::from_str(&line).unwrap());
        }
        // The end, or what was cut off when the exploration was ended.
        self.before = None;
        self.file.as_ref()?.set_len(self.bytes).unwrap();
        None
    }
}

/// The directory with what was done, if there is one.
pub struct Done {
    directory: Option<PathBuf>,
    program: u64,
}

impl Done {
    pub fn in_directory(directory: Option<PathBuf>) -> Self {
        let mut hasher = DefaultHasher::new();
        if let Some(directory) = &directory {
            fs::create_dir_all(directory).unwrap();
            fs::read(harness::program()).unwrap().hash(&mut hasher);
        }
        let program = hasher.finish();
        Self { directory, program }
    }

    /// This program, scenario and bound.
    fn name(&self, scenario: &Scenario, preemptions: usize) -> String {
        let mut hasher = DefaultHasher::new();
        format!("{scenario:?}").hash(&mut hasher);
        let (program, name) = (self.program, &scenario.name);
        let digest = hasher.finish();
        format!("program {program:016x}, scenario {digest:016x}, {preemptions} preemptions, {name}")
    }

    fn list(&self) -> Option<PathBuf> {
        Some(self.directory.as_ref()?.join("done"))
    }

    fn file(&self, scenario: &Scenario, preemptions: usize) -> Option<PathBuf> {
        let name = format!("{}.{preemptions}", scenario.name);
        Some(self.directory.as_ref()?.join(name))
    }

    /// What was said of it when it was explored.
    pub fn explored(&self, scenario: &Scenario, preemptions: usize) -> Option<String> {
        let lines = fs::read_to_string(self.list()?).ok()?;
        let name = format!("{}: ", self.name(scenario, preemptions));
        let mut said = lines.lines().filter_map(|line| line.strip_prefix(&name));
        said.next_back().map(str::to_owned)
    }

    pub fn begin(&self, scenario: &Scenario, preemptions: usize) -> Tried {
        self.file(scenario, preemptions)
            .map_or_else(Tried::default, |path| {
                Tried::in_file(&path, &self.name(scenario, preemptions))
            })
    }

    pub fn end(&self, scenario: &Scenario, preemptions: usize, said: &str) {
        let (Some(list), Some(file)) = (self.list(), self.file(scenario, preemptions)) else {
            return;
        };
        let mut options = OpenOptions::new();
        let mut list = options.create(true).append(true).open(list).unwrap();
        let line = format!("{}: {said}\n", self.name(scenario, preemptions));
        list.write_all(line.as_bytes()).unwrap();
        fs::remove_file(file).unwrap();
    }
}
