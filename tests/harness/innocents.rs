//! Runs, waiters and holds of other names, beside the locks that a test tries in the same store. Whatever becomes of
//! those, none of these gets a signal, loses its lock or changes its exit code.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{ChildStdin, Stdio};

use super::{Running, TestEnv, exit_code, wait_until};

/// It says where its record is, and ends when its stdin does.
const COMMAND: [&str; 4] = [
    "--",
    "sh",
    "-c",
    "echo \"$ONEHOLD_FILE\"; read -r _; exit 0",
];

/// Sets of them. One or two at a time: a sweep has thousands of stores.
const SETS: [&[&str]; 5] = [
    &["run innocent", "run --wait 1d innocent"],
    &["run -s innocents/shared"],
    &["acquire innocent-pid --pid PID"],
    &["run --slots 2 innocent-slots"],
    &["acquire innocent-lease --ttl 1d"],
];

#[derive(Default)]
pub struct Innocents {
    runs: Vec<Run>,
    /// The arguments of their releases.
    holds: Vec<[String; 2]>,
    /// What some of them are held for.
    holder: Option<Running>,
}

struct Run {
    words: String,
    running: Running,
    /// While it is open, the command runs.
    stdin: Option<ChildStdin>,
    /// Where its record is, and the record. `None`: it waits.
    record: Option<(PathBuf, File)>,
}

impl Innocents {
    /// One of the sets, the same one for the same number.
    pub fn some(env: &TestEnv, number: usize) -> Self {
        let mut innocents = Self::default();
        for words in SETS[number % SETS.len()] {
            innocents.add(env, words);
        }
        innocents
    }

    pub fn all(env: &TestEnv) -> Self {
        let mut innocents = Self::default();
        for words in SETS.concat() {
            innocents.add(env, words);
        }
        innocents
    }

    /// Adds one that has its lock, or waits for it.
    pub fn add(&mut self, env: &TestEnv, words: &str) {
        if words.starts_with("acquire") {
            let holder = self
                .holder
                .get_or_insert_with(|| Running::sleeper_for(100_000));
            let words = words.replace("PID", &holder.pid().to_string());
            let words: Vec<&str> = words.split(' ').collect();
            let hold = env.done(&words);
            self.holds.push([words[1].to_owned(), hold]);
        } else {
            let run = Run::start(env, words);
            self.runs.push(run);
        }
    }

    /// The numbers of the files that are the records of runs, the last one first.
    fn numbers(&self) -> impl Iterator<Item = u64> {
        let records = self.runs.iter().rev().filter_map(|run| run.record.as_ref());
        records.map(|(_, file)| file.metadata().unwrap().ino())
    }

    pub fn number(&self) -> Option<u64> {
        self.numbers().next()
    }

    /// Whether the record of one of them has this number.
    pub fn has_number(&self, number: u64) -> bool {
        self.numbers().any(|other| other == number)
    }

    pub fn count(&self) -> usize {
        self.runs.len() + self.holds.len()
    }

    /// Ends them, and says what has been done to them.
    #[must_use]
    pub fn end(&mut self, env: &TestEnv) -> Vec<String> {
        let mut faults = Vec::new();
        for run in &mut self.runs {
            if run.has_lost_its_lock() {
                faults.push(format!("`{}` has lost its lock", run.words));
            }
            run.stdin = None;
        }
        for mut run in self.runs.drain(..) {
            if has_been_waited_for(&mut run.running) {
                faults.push(format!("`{}` has ended", run.words));
                continue;
            }
            let (code, _, said) = run.running.finish_with_output();
            if code != 0 {
                faults.push(format!("`{}` ends with {code}: {said}", run.words));
            }
        }
        for [name, hold] in self.holds.drain(..) {
            let released = env.output(["release", &name, "--hold", &hold]);
            if !released.status.success() {
                let code = exit_code(released.status);
                faults.push(format!("the release of `{name}` ends with {code}"));
            }
        }
        if let Some(holder) = &mut self.holder
            && (has_been_waited_for(holder) || holder.has_ended())
        {
            faults.push("the process of a hold has ended".to_owned());
        }
        if !faults.is_empty() {
            faults.insert(0, "innocents were harmed".to_owned());
        }
        faults
    }
}

/// A tracer in this thread waits for all children of the thread: one that has ended meanwhile has no exit code.
fn has_been_waited_for(running: &mut Running) -> bool {
    running.child.try_wait().is_err()
}

impl Run {
    fn start(env: &TestEnv, words: &str) -> Self {
        let mut command = env.onehold(words.split(' ').chain(COMMAND));
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut running = Running::spawn(command);
        let stdin = running.child.stdin.take();
        let mut run = Self {
            words: words.to_owned(),
            running,
            stdin,
            record: None,
        };
        if words.contains("--wait") {
            let name = words.rsplit(' ').next().unwrap();
            let queue = env.path(&format!("store/.onehold/waiting/{name}.lock"));
            wait_until("an innocent waits", || {
                std::fs::read_dir(&queue).is_ok_and(|tickets| tickets.count() > 0)
            });
        } else {
            run.record = run.read_path().map(|path| {
                let file = File::open(&path).unwrap();
                (path, file)
            });
        }
        run
    }

    /// Of a run that does not get its lock, nothing: its exit code says so.
    fn read_path(&mut self) -> Option<PathBuf> {
        let stdout = self.running.child.stdout.as_mut().unwrap();
        let (mut line, mut byte) = (Vec::new(), [0]);
        while stdout.read(&mut byte).unwrap() == 1 && byte != *b"\n" {
            line.push(byte[0]);
        }
        let path = PathBuf::from(String::from_utf8(line).unwrap());
        (!path.as_os_str().is_empty()).then_some(path)
    }

    fn has_lost_its_lock(&self) -> bool {
        self.record.as_ref().is_some_and(|(path, file)| {
            let (of_path, of_file) = (path.metadata(), file.metadata().unwrap());
            let is_same =
                |now: std::fs::Metadata| (now.dev(), now.ino()) == (of_file.dev(), of_file.ino());
            !of_path.is_ok_and(is_same)
        })
    }
}
