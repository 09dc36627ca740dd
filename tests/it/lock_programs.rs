//! onehold and the lock programs of other packages on one lock file: each holds and the other asks, a race,
//! a dead holder, a killed wrapper.
//!
//! The programs that onehold replaces altogether are rebuilt in `foreign_programs`.

use std::process::Command;

use crate::harness::{CONTENDERS, INCREMENT, Running, TestEnv, output, run_together, wait_until};
use rustix::process::{Pid, Signal, kill_process};

/// A program, by shell scripts. `F` is the lock file.
struct Program {
    name: &'static str,
    /// The options with which onehold uses the same file.
    onehold: &'static str,
    /// Takes the lock, runs `WORK`, releases.
    hold: &'static str,
    /// Takes the lock at once or fails; then releases.
    ask: &'static str,
    /// Runs `SECTION` under the lock, however long it has to wait.
    section: &'static str,
    /// What the program itself cannot, and why.
    cannot: &'static [(Case, &'static str)],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    /// They hold, we ask.
    Theirs,
    /// We hold, they ask.
    Ours,
    Race,
    /// Theirs is dead, we ask.
    TheirsDead,
    /// Ours is dead, they ask.
    OursDead,
    /// Our wrapper was killed, its command runs, they ask.
    OurWrapperKilled,
}

use Case::{OurWrapperKilled, Ours, OursDead, Race, Theirs, TheirsDead};

const CASES: [Case; 6] = [Theirs, Ours, Race, TheirsDead, OursDead, OurWrapperKilled];

const FCNTL: &str = "it locks by fcntl(2), which does not see locks of flock(2)";
const NO_PID: &str = "its lock file names no process, so its death cannot be detected";

const PROGRAMS: [Program; 8] = [
    Program {
        name: "flock",
        onehold: "--format flock",
        hold: "exec flock F sh WORK",
        ask: "flock -n F true",
        section: "flock F sh SECTION",
        cannot: &[],
    },
    Program {
        name: "setlock",
        onehold: "--format flock",
        hold: "exec setlock F sh WORK",
        ask: "setlock -n F true",
        section: "setlock F sh SECTION",
        cannot: &[],
    },
    Program {
        name: "chpst",
        onehold: "--format flock",
        hold: "exec chpst -l F sh WORK",
        ask: "chpst -L F true",
        section: "chpst -l F sh SECTION",
        cannot: &[],
    },
    Program {
        name: "lckdo",
        onehold: "",
        hold: "exec lckdo F sh WORK",
        ask: "lckdo F true",
        section: "lckdo -w F sh SECTION",
        cannot: &[(Ours, FCNTL), (Race, FCNTL), (OurWrapperKilled, FCNTL)],
    },
    Program {
        name: "with-lock-ex",
        onehold: "",
        hold: "exec with-lock-ex -w F sh WORK",
        ask: "with-lock-ex -f F true",
        section: "with-lock-ex -w F sh SECTION",
        cannot: &[(Ours, FCNTL), (Race, FCNTL), (OurWrapperKilled, FCNTL)],
    },
    Program {
        name: "lockfile",
        onehold: "--format pid",
        hold: "lockfile -r0 F && { sh WORK; rm -f F; }",
        ask: "lockfile -r0 F && rm -f F",
        section: "until lockfile -r0 F 2>/dev/null; do sleep 0.002; done; sh SECTION; rm -f F",
        cannot: &[
            (TheirsDead, NO_PID),
            (OursDead, "it does not look who holds it"),
        ],
    },
    Program {
        name: "dotlockfile",
        onehold: "--format pid",
        hold: "dotlockfile -p -r 0 F && { echo $$ > began; until test -e end; do sleep 0.005; done; dotlockfile -u F; }",
        ask: "dotlockfile -p -r 0 F && dotlockfile -u F",
        section: "until dotlockfile -p -r 0 F; do sleep 0.002; done; . SECTION; dotlockfile -u F",
        cannot: &[(Race, BY_NAME)],
    },
    Program {
        name: "shlock",
        onehold: "--format pid",
        hold: "shlock -f F -p $$ && { echo $$ > began; until test -e end; do sleep 0.005; done; rm -f F; }",
        ask: "shlock -f F -p $$ && rm -f F",
        section: "until shlock -f F -p $$; do sleep 0.002; done; . SECTION; rm -f F",
        cannot: &[],
    },
];

/// liblockfile takes a lock that vanishes while it looks for a stale one, and removes the name. It may lose
/// the CPU in between for longer than onehold waits for such programs (50 ms): 1 of 320 sections here.
const BY_NAME: &str = "it removes by name what it took for stale a moment before";

/// How often each contender takes the lock in a race.
fn rounds() -> usize {
    let rounds = std::env::var("LOCK_PROGRAM_ROUNDS");
    rounds.map_or(5, |text| text.parse().unwrap())
}

/// A shell script in the environment of the test, where `F`, `WORK` and `SECTION` are files.
fn script(env: &TestEnv, script: &str) -> Command {
    for (file, text) in [
        (
            "work",
            "echo $$ > began; until test -e end; do sleep 0.005; done",
        ),
        ("section", INCREMENT),
    ] {
        if !env.path(file).exists() {
            std::fs::write(env.path(file), text).unwrap();
        }
    }
    let script = script
        .replace("WORK", "./work")
        .replace("SECTION", "./section")
        .replace(" F", " ./lock");
    env.shell(&script)
}

/// Starts a holder, and returns once it has the lock.
fn start(env: &TestEnv, words: &str) -> Running {
    let holder = Running::start(script(env, words));
    env.pid_in("began");
    holder
}

impl Program {
    fn cannot(&self, case: Case) -> Option<&'static str> {
        let (_, why) = self.cannot.iter().find(|(other, _)| *other == case)?;
        Some(why)
    }

    fn onehold(&self, options: &str, command: &str) -> String {
        format!("onehold run {} {options} F -- {command}", self.onehold)
    }

    fn asks(&self, env: &TestEnv) -> bool {
        output(&mut script(env, self.ask)).status.success()
    }

    fn we_ask(&self, env: &TestEnv) -> Option<i32> {
        let ask = self.onehold("", "true");
        output(&mut script(env, &ask)).status.code()
    }

    /// What is wrong in a case. `None`: nothing.
    fn fault(&self, case: Case) -> Option<String> {
        let env = TestEnv::new();
        let ours = self.onehold("", "sh WORK");
        let is_refused = |code: Option<i32>| (code != Some(6)).then(|| format!("{code:?}"));
        match case {
            Theirs => {
                let mut holder = start(&env, self.hold);
                let fault = is_refused(self.we_ask(&env));
                env.end();
                holder.finish();
                // Some leave an empty file, which counts as incomplete for 10 s.
                let wait = self.onehold("-q -w 30s", "true");
                let code = output(&mut script(&env, &wait)).status.code();
                fault.or((code != Some(0)).then(|| format!("afterwards {code:?}")))
            }
            Ours => {
                let mut holder = start(&env, &ours);
                let got_in = self.asks(&env);
                env.end();
                holder.finish();
                let is_stuck = !self.asks(&env);
                got_in
                    .then(|| "got in".to_owned())
                    .or(is_stuck.then(|| "refused afterwards".to_owned()))
            }
            Race => self.race(&env),
            TheirsDead => {
                let mut holder = start(&env, self.hold);
                kill(env.pid_in("began"));
                holder.kill();
                wait_until("its processes have ended", || self.we_ask(&env) != Some(6));
                let code = self.we_ask(&env);
                (code != Some(0)).then(|| format!("{code:?}"))
            }
            OursDead => {
                let mut holder = start(&env, &ours);
                holder.kill();
                kill(env.pid_in("began"));
                let mut tries = 0;
                let got_in = loop {
                    tries += 1;
                    if self.asks(&env) {
                        break true;
                    }
                    if tries == 20 {
                        break false;
                    }
                };
                (!got_in).then(|| "refused".to_owned())
            }
            OurWrapperKilled => {
                let mut holder = start(&env, &ours);
                holder.kill();
                let got_in = self.asks(&env);
                let fault = got_in.then(|| "got in".to_owned());
                let fault = fault.or(is_refused(self.we_ask(&env)));
                kill(env.pid_in("began"));
                fault
            }
        }
    }

    fn race(&self, env: &TestEnv) -> Option<String> {
        let repeated = |section: &str| {
            let rounds = rounds();
            format!("n=0; while test $n -lt {rounds}; do n=$((n + 1)); {section} || exit; done")
        };
        let section = repeated(&format!("{{ {}; }}", self.section));
        let ours = repeated(&self.onehold("-q -w 100s", "sh SECTION"));
        let mut commands = Vec::new();
        for _ in 0..CONTENDERS {
            commands.push(script(
                env,
                &section
                    .replace("n=", "i=")
                    .replace("$n", "$i")
                    .replace("$((n", "$((i"),
            ));
            commands.push(script(env, &ours));
        }
        for ended in run_together(commands) {
            if !ended.status.success() {
                return Some(format!("{ended:?}"));
            }
        }
        let (counted, expected) = (env.count_in("number"), rounds() * 2 * CONTENDERS);
        (counted != expected).then(|| format!("{counted} of {expected}"))
    }
}

fn kill(pid: u32) {
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    let _ = kill_process(pid, Signal::KILL);
}

#[test]
#[ignore = "needs lock programs of other packages"]
fn each_program_and_onehold_exclude_each_other_as_far_as_the_program_can() {
    let mut faults = Vec::new();
    for program in &PROGRAMS {
        let tool = output(Command::new("sh").args(["-c", &format!("command -v {}", program.name)]));
        assert!(tool.status.success(), "{} is missing", program.name);
        for case in CASES {
            match program.cannot(case) {
                Some(why) => println!("{:13} {case:?}: cannot: {why}", program.name),
                None => match program.fault(case) {
                    Some(fault) => faults.push(format!("{} {case:?}: {fault}", program.name)),
                    None => println!("{:13} {case:?}: excluded", program.name),
                },
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
