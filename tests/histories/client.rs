//! Makes a call, and notes what became of it.

use std::fmt;
use std::fs::{self, File};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use serde_json::Value;

use crate::answer;
use crate::driver::Driver;
use crate::harness::seen::{now, processes_with, state};
use crate::harness::{Running, example, exit_code, program, schema};
use crate::history::{Call, Id, Mode, Outcome, Section, Take, Verb};
use crate::plan::{Plan, Want, seconds};
use crate::signals::Sent;

/// What is known of a call beyond its history.
#[derive(Clone)]
pub struct Told {
    pub call: Call,
    pub plan: Plan,
    pub code: i32,
    pub result: Value,
    /// All that it printed.
    pub said: String,
    pub sent: Vec<Sent>,
}

impl fmt::Debug for Told {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        let said = |key: &str| &self.result[key];
        let (status, message, error) = (said("status"), said("message"), &said("error")["code"]);
        let said = if self.result.is_null() {
            &self.said
        } else {
            message.as_str().unwrap_or_default()
        };
        let Self {
            call,
            plan,
            code,
            sent,
            ..
        } = self;
        write!(
            to,
            "{call:?} of {:?} {:?}: {code}, {status} {error} {said:?}, signals {sent:?}",
            plan.work, plan.want
        )
    }
}

impl Driver {
    /// The words of a call, without the program.
    fn words(&self, id: Id, plan: &Plan) -> Vec<String> {
        let number = |id: &Id| self.numbers.lock().unwrap()[id].to_string();
        let first_name = |id: &Id| self.names.lock().unwrap()[id].clone();
        let mut words: Vec<String> = Vec::new();
        let mut add = |more: &[&str]| words.extend(more.iter().map(ToString::to_string));
        match &plan.verb {
            Verb::Run(_) => add(&["run", "--json"]),
            Verb::Lease(_, ttl) => add(&["acquire", "--json", "--ttl", &seconds(*ttl)]),
            Verb::Job(_) => add(&["acquire", "--json"]),
            Verb::Renew(hold, ttl) => {
                let name = first_name(hold);
                add(&[
                    "renew",
                    "--json",
                    &name,
                    "--hold",
                    &number(hold),
                    "--ttl",
                    &seconds(*ttl),
                ]);
            }
            Verb::Release(hold) => {
                add(&[
                    "release",
                    "--json",
                    &first_name(hold),
                    "--hold",
                    &number(hold),
                ]);
            }
            Verb::Break { name, by_force } => {
                add(&["break", "--json", "--yes", "--all", name]);
                add(if *by_force { &["--force"] } else { &[] });
            }
            Verb::Check(name) => add(&["check", "--json", name]),
            Verb::Wait(name) => add(&["wait", "--json", "-w", "0.2", name]),
            Verb::Cleanup => add(&["cleanup", "--json"]),
        }
        if let Some(take) = plan.take() {
            words.extend(options(id, take));
        }
        if matches!(plan.verb, Verb::Run(_)) {
            words.extend(self.run_options.iter().map(ToString::to_string));
        }
        words
    }

    /// Makes a call and waits until nothing of it runs any more, or, if its end was clean, until it has returned.
    pub fn call(&self, id: Id, plan: Plan, dir: Option<&str>) -> Told {
        let mut command = self.with_little(plan.want);
        command.args(self.words(id, &plan));
        let mut job = None;
        if let Verb::Job(_) = plan.verb {
            let sleeper = Running::sleeper_for(100_000);
            command.args(["--pid", &sleeper.pid().to_string()]);
            job = Some(sleeper);
        }
        if let Some(dir) = dir {
            command.env("ONEHOLD_DIR", dir);
        }
        self.add_work(id, &plan, &mut command);
        command.env("HISTORY_CALL", self.mark(id));
        // Files, since a pipe would stay open with what a killed wrapper leaves behind.
        let (out, err) = (
            self.env.path(&format!("{id}.out")),
            self.env.path(&format!("{id}.err")),
        );
        command.stdout(File::create(&out).unwrap());
        command.stderr(File::create(&err).unwrap());
        let called = now();
        let mut child = command.spawn().unwrap();
        self.signals.begin(id, child.id());
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&child)), ended).unwrap();
        let returned = now();
        // From now on its PID may be another's.
        let sent = self.signals.end(id);
        let code = exit_code(child.wait().unwrap());
        let is_run = matches!(plan.verb, Verb::Run(_));
        let text = fs::read(if is_run { &err } else { &out }).unwrap();
        let result = last_object(&text);
        let mut outcome = answer::outcome(&plan.verb, code, &result);
        if plan.want.is_some() && answer::is_unsure(&result) {
            outcome = Outcome::Nil;
        }
        let is_clean = match plan.verb {
            Verb::Run(_) => result["status"] == "released",
            _ => outcome != Outcome::Unknown,
        };
        if !is_clean {
            self.wait_until_gone(id);
        }
        let (section, worker) = plan.work.and_then(|_| self.section(id)).unzip();
        // On its way to its end a process has no environment any more.
        while !is_clean && worker.is_some_and(|worker| !has_ended(worker)) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let gone = if is_clean { returned } else { now() };
        // Of a hold that a signal has ended before its command began.
        if is_run && section.is_none() && result["status"] == "interrupted" {
            outcome = Outcome::Unknown;
        }
        let said = [fs::read(&out).unwrap(), fs::read(&err).unwrap()].concat();
        fs::remove_file(out).unwrap();
        fs::remove_file(err).unwrap();
        let mut call = Call {
            id,
            verb: plan.verb.clone(),
            called,
            returned,
            gone,
            killed: None,
            outcome,
            section,
            is_clean,
        };
        if let Some(job) = job {
            end_job(job, &mut call);
        }
        Told {
            call,
            plan,
            code,
            result,
            said: String::from_utf8_lossy(&said).into_owned(),
            sent,
        }
    }

    /// The program, with less than it may need of something. Its command may have more.
    fn with_little(&self, want: Option<Want>) -> Command {
        let limit = match want {
            None => return self.env.onehold([""; 0]),
            Some(Want::Descriptors(most)) => format!("--nofile={most}:"),
            Some(Want::Memory(more)) => format!("--as={}:", self.least_memory + more),
        };
        let mut command = self.env.command("prlimit");
        command.arg(limit).arg(program());
        command
    }

    /// What a run does.
    fn add_work(&self, id: Id, plan: &Plan, command: &mut Command) {
        let (Some(work), Verb::Run(take)) = (plan.work, &plan.verb) else {
            return;
        };
        command.arg("--").arg(example("programs")).arg("witnessed");
        command.arg(self.work()).arg(id.to_string());
        command
            .arg(work.milliseconds.to_string())
            .arg(work.code.to_string());
        command.args(work.is_deaf.then_some("deaf"));
        command.args(take.owner.as_ref().map(|_| "owned"));
    }

    /// What the processes of a call have in their environment.
    pub fn mark(&self, id: Id) -> String {
        format!("{}-{id}", self.token)
    }

    pub fn processes_of(&self, id: Id) -> Vec<u32> {
        let mark = format!("HISTORY_CALL={}", self.mark(id));
        processes_with(|variables| variables.contains(&mark.as_bytes()))
    }

    fn wait_until_gone(&self, id: Id) {
        while !self.processes_of(id).is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What its section has written, if it had begun, and its process.
    fn section(&self, id: Id) -> Option<(Section, u32)> {
        let file = self.work().join(id.to_string());
        let text = fs::read_to_string(&file).ok()?;
        let mut words = text.split_whitespace();
        let mut number = || words.next()?.parse::<u64>().ok();
        let (from, to, hold) = (number()?, number()?, number()?);
        fs::remove_file(file).unwrap();
        let section = Section {
            from,
            to,
            hold,
            is_done: words.next()? == "true",
            is_overlapping: words.next()? == "true",
        };
        Some((section, words.next()?.parse().ok()?))
    }
}

fn options(id: Id, take: &Take) -> Vec<String> {
    let mut words = take.names.clone();
    let mut add = |more: &[&str]| words.extend(more.iter().map(ToString::to_string));
    add(&["-m", &format!("call {id}")]);
    match take.mode {
        Mode::Exclusive => {}
        Mode::Shared => add(&["-s"]),
        Mode::Slots(slots) => add(&["--slots", &slots.to_string()]),
    }
    if let Some(owner) = &take.owner {
        add(&["--owner", owner]);
    }
    if take.by_force {
        add(&["--force", "--yes"]);
    }
    if let Some(waits) = take.waits {
        add(&["-w", &seconds(waits)]);
    }
    words
}

fn has_ended(pid: u32) -> bool {
    state(pid).is_none_or(|state| matches!(state.as_str(), "Z" | "X"))
}

/// The object on the last line, as onehold-json(5) has it; null if there is none.
fn last_object(text: &[u8]) -> Value {
    let text = String::from_utf8_lossy(text);
    let last = text.lines().last().unwrap_or_default();
    let Ok(object) = serde_json::from_str(last) else {
        return Value::Null;
    };
    schema::assert_valid(&object);
    object
}

/// Kills the process of a hold after a while, and notes when it was dead.
fn end_job(mut job: Running, call: &mut Call) {
    if matches!(call.outcome, Outcome::Took(_)) {
        std::thread::sleep(Duration::from_millis(20));
    }
    call.killed = Some(now());
    job.kill();
    call.gone = now();
}
