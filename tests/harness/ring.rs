//! Commands that wait for each other's locks.

use std::fs;
use std::process::Command;
use std::time::Duration;

use super::{Running, TestEnv, json_object, wait_until};

pub const FOREVER: &str = "onehold run -w forever NEXT -- true";

/// A `run` of each lock, whose command waits for the lock of the next one once it may go on.
pub struct Ring<'a> {
    env: &'a TestEnv,
    waiters: &'a dyn Fn(&str) -> usize,
    runs: Vec<Running>,
    names: Vec<&'a str>,
}

impl<'a> Ring<'a> {
    /// Returns when all have their locks. `waits`: what the command of each does, in which NEXT is the next lock.
    /// `onehold`: the program with these arguments, for the run with this number. `waiters`: how many wait for a lock.
    pub fn start(
        env: &'a TestEnv,
        names: &[&'a str],
        waits: &[&str],
        onehold: &dyn Fn(usize, &[&str]) -> Command,
        waiters: &'a dyn Fn(&str) -> usize,
    ) -> Self {
        let runs = names.iter().zip(waits).enumerate();
        let runs = runs.map(|(at, (name, wait))| {
            let wait = wait.replace("NEXT", names[(at + 1) % names.len()]);
            let script = format!(
                "touch has-{name}; until test -e go-{name}; do sleep 0.005; done
                date +%s%N > begin-{name}
                {{ {wait}; }} 2> err-{name}; echo $? > code-{name}
                date +%s%N > end-{name}"
            );
            Running::start(onehold(at, &["run", name, "--", "sh", "-c", &script]))
        });
        let runs = runs.collect();
        for name in names {
            wait_until("it has its lock", || {
                env.path(&format!("has-{name}")).exists()
            });
        }
        let names = names.to_vec();
        Self {
            env,
            waiters,
            runs,
            names,
        }
    }

    pub fn go(&self, at: usize) {
        fs::write(self.env.path(&format!("go-{}", self.names[at])), "").unwrap();
    }

    /// Returns when it is in the queue.
    pub fn go_and_wait(&self, at: usize) {
        self.go(at);
        let next = self.names[(at + 1) % self.names.len()];
        wait_until("it is in the queue", || (self.waiters)(next) == 1);
    }

    pub fn finish(&mut self) {
        for run in &mut self.runs {
            assert_eq!(run.finish(), 0);
        }
    }

    /// The exit codes of the waits, once all have ended.
    pub fn codes(&mut self) -> Vec<u32> {
        self.finish();
        let codes = self.names.iter().map(|name| format!("code-{name}"));
        codes.map(|file| self.env.pid_in(&file)).collect()
    }

    pub fn told(&self, at: usize) -> String {
        fs::read_to_string(self.env.path(&format!("err-{}", self.names[at]))).unwrap()
    }

    /// How long a wait has taken, with the start of what waits.
    pub fn took(&self, at: usize) -> Duration {
        let read = |what: &str| -> u64 {
            let file = format!("{what}-{}", self.names[at]);
            let text = fs::read_to_string(self.env.path(&file)).unwrap();
            text.trim().parse().unwrap()
        };
        Duration::from_nanos(read("end") - read("begin"))
    }

    /// All wait, one after the other; the last one, who asks for JSON, is refused, with the whole cycle, and the others
    /// get their locks.
    #[track_caller]
    pub fn assert_last_is_refused(&mut self) {
        let last = self.names.len() - 1;
        for at in 0..last {
            self.go_and_wait(at);
        }
        self.go(last);
        let mut codes = vec![0; last];
        codes.push(6);
        assert_eq!(self.codes(), codes, "{}", self.told(last));

        let object = json_object(self.told(last).as_bytes());
        let error = &object["error"];
        assert_eq!(error["code"], "DEADLOCK");
        let holds = error["details"]["holds"].as_array().unwrap();
        let cycle: Vec<_> = holds.iter().map(|hold| &hold["name"]).collect();
        assert_eq!(cycle, self.names);
        let (first, rest) = self.names.split_first().unwrap();
        let message = error["message"].as_str().unwrap();
        let links = message.split(", whose command waits for ");
        for (link, name) in links.clone().zip(&self.names) {
            assert!(link.contains(&format!("`{name}`")), "{message}");
        }
        assert_eq!(links.clone().count(), rest.len() + 2, "{message}");
        assert_eq!(links.last(), Some(&*format!("`{first}`")), "{message}");
    }
}

/// The median of five rings is refused within 50 ms, with the start of the program that is refused.
#[track_caller]
pub fn assert_refused_within_50_ms(refused_after: &dyn Fn() -> Duration) {
    let mut took: Vec<_> = (0..5).map(|_| refused_after()).collect();
    took.sort_unstable();
    println!("refused after {took:?}");
    assert!(took[2] <= Duration::from_millis(50), "{took:?}");
}

/// What each waits by, if the last one asks for JSON.
pub fn waits_of(names: &[&str]) -> Vec<&'static str> {
    let mut waits = vec![FOREVER; names.len() - 1];
    waits.push("onehold run -w forever --json NEXT -- true");
    waits
}
