//! Kills a verb before each of its system calls that may change something, and lets each call fail. By default a part
//! of the calls is tested; `cargo test --test fault_injection -- --include-ignored` tests all.
//!
//! Calls that allocate memory do not fail here: a failed allocation ends a Rust program.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(missing_docs, unreachable_pub)]
#![allow(
    clippy::case_sensitive_file_extension_comparisons,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::too_many_lines,
    clippy::unwrap_used
)]

use nix::errno::Errno;

mod canceling;
mod ending;
mod faults;
mod foreign_interleaving;
#[path = "../harness/mod.rs"]
mod harness;
mod meanwhile;
mod numbers;
mod sandbox;
#[path = "../tracer/mod.rs"]
mod tracer;

use faults::{Ended, Fault, LOOKS, NEVER_FAILING, Role, Then, trace, trace_and};
use harness::{dead_pid, for_all, foreign};
use sandbox::{CRITICAL_SECTION, DISPLACED_COMMAND, Sandbox};

/// One invocation of a verb, and the store in which it runs.
struct Scenario {
    name: &'static str,
    prepare: fn(&mut Sandbox) -> Vec<String>,
    /// Options that lead to the lock.
    global: &'static [&'static str],
    lock: &'static str,
    /// Locks that are held together with it.
    also: &'static [&'static str],
    /// Whether a trial takes seconds, as a holder has to notice its loss: each call of such a scenario
    /// fails with one of the errors.
    slow: bool,
    /// Whether it is an `acquire`, after which the lock is held exactly if it succeeded.
    acquires: bool,
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

fn run_critical_section(options: &str) -> Vec<String> {
    let mut run = words(&format!("{options} -- sh -c"));
    run.push(CRITICAL_SECTION.to_owned());
    run
}

const SCENARIO: Scenario = Scenario {
    name: "",
    prepare: |_| Vec::new(),
    global: &[],
    lock: "x",
    also: &[],
    slow: false,
    acquires: false,
};

const SCENARIOS: [Scenario; 29] = [
    Scenario {
        name: "acquire",
        prepare: |sandbox| words(&format!("acquire x --pid {}", sandbox.holder.pid())),
        acquires: true,
        ..SCENARIO
    },
    Scenario {
        name: "acquire a lease of a child",
        prepare: |_| words("acquire section/deep/x --ttl 1h -m why"),
        lock: "section/deep/x",
        acquires: true,
        ..SCENARIO
    },
    Scenario {
        name: "acquire a zombie",
        prepare: |sandbox| {
            sandbox.create_zombie("x");
            words(&format!("acquire x --pid {}", sandbox.holder.pid()))
        },
        acquires: true,
        ..SCENARIO
    },
    Scenario {
        name: "run",
        prepare: |_| run_critical_section("run x"),
        ..SCENARIO
    },
    Scenario {
        name: "run with a zombie",
        prepare: |sandbox| {
            sandbox.create_zombie("x");
            run_critical_section("run x")
        },
        ..SCENARIO
    },
    Scenario {
        name: "run --close",
        prepare: |_| run_critical_section("run --close x"),
        ..SCENARIO
    },
    Scenario {
        name: "run --close of a child",
        prepare: |_| run_critical_section("run --close section/x"),
        lock: "section/x",
        ..SCENARIO
    },
    Scenario {
        name: "run --hold-at-least",
        prepare: |_| run_critical_section("run --hold-at-least 1h x"),
        ..SCENARIO
    },
    Scenario {
        name: "run with a zombie, with a history",
        prepare: |sandbox| {
            sandbox.set_history();
            sandbox.create_zombie("x");
            run_critical_section("run x")
        },
        ..SCENARIO
    },
    Scenario {
        name: "run --exec",
        prepare: |_| run_critical_section("run --exec x"),
        ..SCENARIO
    },
    Scenario {
        name: "run with a zombie of prodigy",
        prepare: |sandbox| {
            let record = foreign::prodigy("x", dead_pid());
            std::fs::create_dir_all(sandbox.path(".prodigy/resume_locks")).unwrap();
            std::fs::write(sandbox.path(".prodigy/resume_locks/x.lock"), record).unwrap();
            run_critical_section("--profile prodigy run x")
        },
        global: &["--profile", "prodigy"],
        ..SCENARIO
    },
    Scenario {
        name: "run with a zombie at a path",
        prepare: |sandbox| {
            sandbox.create_zombie("./x");
            run_critical_section("run ./x")
        },
        lock: "./x",
        ..SCENARIO
    },
    Scenario {
        name: "hold",
        // Its stdin has ended.
        prepare: |_| words("hold x"),
        ..SCENARIO
    },
    Scenario {
        name: "hold with a zombie, of two names",
        prepare: |sandbox| {
            sandbox.create_zombie("x");
            words("hold --json x section/y")
        },
        also: &["section/y"],
        ..SCENARIO
    },
    Scenario {
        name: "release",
        prepare: |sandbox| {
            let pid = sandbox.holder.pid().to_string();
            let number = sandbox.prepare(&["acquire", "x", "--pid", &pid]);
            words(&format!("release x --hold {number}"))
        },
        ..SCENARIO
    },
    Scenario {
        name: "release of a zombie",
        prepare: |sandbox| {
            sandbox.create_zombie("x");
            words(&format!(
                "release x --hold {}",
                sandbox.lock(&["check", "x"])["hold"]
            ))
        },
        ..SCENARIO
    },
    Scenario {
        name: "renew",
        prepare: |sandbox| {
            let number = sandbox.prepare(&["acquire", "x", "--ttl", "1h"]);
            words(&format!("renew x --hold {number} --ttl 2h"))
        },
        ..SCENARIO
    },
    Scenario {
        name: "break",
        prepare: |sandbox| {
            let pid = sandbox.holder.pid().to_string();
            sandbox.prepare(&["acquire", "x", "--pid", &pid]);
            words("break x --yes")
        },
        ..SCENARIO
    },
    Scenario {
        name: "break of a live run",
        prepare: |sandbox| {
            sandbox.start_run(&["run", "x", "--", "sh", "-c", DISPLACED_COMMAND]);
            words("break x --yes")
        },
        slow: true,
        ..SCENARIO
    },
    Scenario {
        name: "run by force from a live run",
        prepare: |sandbox| {
            sandbox.start_run(&["run", "x", "--", "sh", "-c", DISPLACED_COMMAND]);
            run_critical_section("run x --force --yes")
        },
        slow: true,
        ..SCENARIO
    },
    Scenario {
        name: "acquire by force",
        prepare: |sandbox| {
            sandbox.prepare(&["acquire", "x", "--ttl", "1h"]);
            words(&format!(
                "acquire x --pid {} --force --yes",
                sandbox.holder.pid()
            ))
        },
        ..SCENARIO
    },
    Scenario {
        name: "cleanup",
        prepare: |sandbox| {
            sandbox.create_zombie("x");
            sandbox.create_zombie("section/y");
            words("cleanup")
        },
        ..SCENARIO
    },
    Scenario {
        name: "run of two names",
        prepare: |_| run_critical_section("run x section/y"),
        also: &["section/y"],
        ..SCENARIO
    },
    Scenario {
        name: "acquire two names as a lease",
        prepare: |_| words("acquire x section/y --ttl 1h"),
        also: &["section/y"],
        acquires: true,
        ..SCENARIO
    },
    Scenario {
        name: "release of two names",
        prepare: |sandbox| {
            let number = sandbox.prepare(&["acquire", "x", "section/y", "--ttl", "1h"]);
            words(&format!("release section/y --hold {number}"))
        },
        also: &["section/y"],
        ..SCENARIO
    },
    Scenario {
        name: "run with a zombie of two names",
        prepare: |sandbox| {
            sandbox.create_zombie("x section/y");
            run_critical_section("run x")
        },
        ..SCENARIO
    },
    Scenario {
        name: "run in a slot beside a zombie",
        prepare: |sandbox| {
            sandbox.create_zombie("x --slots 2");
            run_critical_section("run --slots 1 x")
        },
        ..SCENARIO
    },
    Scenario {
        name: "acquire a shared lock",
        prepare: |sandbox| words(&format!("acquire -s x --pid {}", sandbox.holder.pid())),
        acquires: true,
        ..SCENARIO
    },
    Scenario {
        name: "check",
        prepare: |sandbox| {
            sandbox.create_zombie("x");
            words("check x")
        },
        ..SCENARIO
    },
];

impl Scenario {
    /// With the same innocents each time, or it would make other calls.
    fn sandbox(&self) -> Sandbox {
        Sandbox::new(self.name.len())
    }

    /// Runs it once, with a fault.
    fn play(&self, fault: Fault) -> (Sandbox, Ended) {
        let mut sandbox = self.sandbox();
        let words = (self.prepare)(&mut sandbox);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        if matches!(
            fault,
            Fault::Nothing | Fault::Fail(..) | Fault::FailDirectories(_)
        ) {
            // Its command ends at once.
            std::fs::write(sandbox.path("end"), "").unwrap();
        }
        let ended = trace(sandbox.command(&words), fault);
        sandbox.record_hold_number(&ended.stdout);
        (sandbox, ended)
    }

    /// An invocation some of whose calls have failed has said so, and has taken its lock or has not.
    fn check_failed(&self, sandbox: &mut Sandbox, ended: &Ended) -> Result<(), String> {
        let said = &ended.stderr;
        let code = ended.code.unwrap_or(-1);
        if said.contains("panicked") || ended.signal.is_some() {
            return Err(format!("{:?} {said}", ended.signal));
        }
        if !matches!(code, 0..=8 | 125..=127) {
            return Err(format!("exit code {code}: {said}"));
        }
        if code != 0 && ended.stdout.is_empty() && said.is_empty() {
            return Err(format!("exit code {code} without a message"));
        }
        if self.acquires && (code == 0) != sandbox.is_held(self.lock) {
            return Err(format!("exit code {code}: {said}"));
        }
        self.check_invariants(sandbox)
            .map_err(|why| format!("{why}: {said}"))
    }

    /// Kills the wrapper while its child is stopped before a call. Another process tries to acquire
    /// `wanted` before the child continues. Exactly one of the two must get it.
    fn orphan(&self, at: usize, wanted: &str) -> Result<(), String> {
        let mut sandbox = self.sandbox();
        let words = (self.prepare)(&mut sandbox);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let pid = sandbox.holder.pid().to_string();
        let mut acquired = None;
        let ended = trace_and(sandbox.command(&words), Fault::Orphan(at), || {
            let acquire = [self.global, &["acquire", wanted, "--pid", &pid]].concat();
            acquired = Some(sandbox.invoke(&acquire).0);
            Then::Continue
        });
        match (acquired, ended.executed) {
            (Some(0), false) | (Some(6), true) => self.check_invariants(&mut sandbox),
            _ => Err(format!(
                "acquire {wanted}: {acquired:?}, executed: {}",
                ended.executed
            )),
        }
    }

    /// A child and the parent of its lock, which exclude it.
    fn relatives(&self) -> Vec<String> {
        if !self.global.is_empty() || self.lock.starts_with('.') {
            return Vec::new();
        }
        let parent = self
            .lock
            .rsplit_once('/')
            .map(|(parent, _)| parent.to_owned());
        [format!("{}/child", self.lock)]
            .into_iter()
            .chain(parent)
            .chain(self.also.iter().map(|name| (*name).to_owned()))
            .collect()
    }

    fn check_invariants(&self, sandbox: &mut Sandbox) -> Result<(), String> {
        sandbox.check_invariants(self.global, self.lock, self.also)
    }

    /// The calls that it makes without a fault.
    fn calls(&self) -> Ended {
        let (mut sandbox, ended) = self.play(Fault::Nothing);
        assert!(ended.count(Role::Program) > 5, "{}: {ended:?}", self.name);
        assert!(
            matches!(ended.code, Some(0 | 5)),
            "{}: {ended:?}",
            self.name
        );
        self.check_invariants(&mut sandbox)
            .unwrap_or_else(|why| panic!("{}: {why}", self.name));
        ended
    }
}

/// Scenarios whose commands are killed. Such a command must not create `inside`, which would be left.
const SHORT_COMMANDS: [Scenario; 3] = [
    Scenario {
        name: "run, its command",
        prepare: |_| run_short_command("run x"),
        ..SCENARIO
    },
    Scenario {
        name: "run --close, its command",
        prepare: |_| run_short_command("run --close x"),
        ..SCENARIO
    },
    Scenario {
        name: "run --exec, its command",
        prepare: |_| run_short_command("run --exec x"),
        ..SCENARIO
    },
];

fn run_short_command(options: &str) -> Vec<String> {
    let mut run = words(&format!("{options} -- sh -c"));
    run.push("echo $$ >> started; exit 7".to_owned());
    run
}

/// Whether a `run` reports that its command was killed, or was itself that command.
fn is_killed(ended: &Ended) -> bool {
    ended.code == Some(137) || ended.signal == Some(nix::sys::signal::Signal::SIGKILL)
}

/// Of the calls of a slow scenario this share is tested, or the sweeps would take most of the time that
/// CI has.
const SLOW_STEP: usize = 4;

// They may create a file, or look at one.
const OPEN: u64 = 2;
const OPENAT: u64 = 257;

/// The calls before which a kill matters: before all that may change something, and before every seventh of the
/// others.
fn kill_points(ended: &Ended, role: Role) -> impl Iterator<Item = usize> {
    let calls = ended.calls.get(&role).into_iter().flatten();
    calls.enumerate().filter_map(|(at, call)| {
        let may_change = !LOOKS.contains(call) || [OPEN, OPENAT].contains(call);
        (may_change || at.is_multiple_of(7)).then_some(at)
    })
}

/// Kills each scenario before every `step`-th call that matters.
fn kill_sweep(step: usize) {
    let mut points = Vec::new();
    for scenario in &SCENARIOS {
        let calls = scenario.calls();
        let step = if scenario.slow {
            step * SLOW_STEP
        } else {
            step
        };
        for role in [Role::Program, Role::Child] {
            let at = kill_points(&calls, role).skip(points.len() % step);
            let at: Vec<usize> = at.step_by(step).collect();
            points.extend(at.into_iter().map(|at| (scenario, role, at)));
        }
    }
    for scenario in &SHORT_COMMANDS {
        let (_, ended) = scenario.play(Fault::Follow);
        assert_eq!(ended.code, Some(7), "{}: {ended:?}", scenario.name);
        let calls = ended.count(Role::Command);
        assert!(calls > 10, "{}: {calls} calls", scenario.name);
        for at in (points.len() % step..calls).step_by(step) {
            points.push((scenario, Role::Command, at));
        }
    }
    let failures = for_all(&points, |(scenario, role, at)| {
        let (mut sandbox, ended) = scenario.play(Fault::Kill(*role, *at));
        if *role == Role::Command && !is_killed(&ended) {
            return Err(format!("{}: {ended:?}", scenario.name));
        }
        scenario.check_invariants(&mut sandbox).map_err(|why| {
            let calls = ended.calls.get(role).cloned().unwrap_or_default();
            format!(
                "{}: {role:?} killed before call {at} ({:?}): {why}",
                scenario.name,
                calls.last()
            )
        })
    });
    println!("{} kill points, {} failed", points.len(), failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(points.len() * step > 300, "{} kill points", points.len());
}

#[test]
fn lock_survives_kills_before_a_part_of_the_calls() {
    kill_sweep(17);
}

#[test]
#[ignore = "takes a minute"]
fn lock_survives_kills_before_every_third_call_that_changes_something() {
    kill_sweep(3);
}

#[test]
#[ignore = "takes minutes"]
fn lock_survives_kills_before_each_call_that_changes_something() {
    kill_sweep(1);
}

/// Errors of a call: no space, a broken disk, no permission, too many files, a signal.
const ERRORS: [Errno; 5] = [
    Errno::ENOSPC,
    Errno::EIO,
    Errno::EACCES,
    Errno::EMFILE,
    Errno::EINTR,
];

#[test]
fn orphaned_child_and_next_holder_never_both_get_the_lock() {
    let mut points = Vec::new();
    for scenario in &SCENARIOS {
        let calls = scenario.calls().count(Role::Child);
        for at in 0..calls {
            points.push((scenario, at, scenario.lock.to_owned()));
            for relative in scenario.relatives() {
                points.push((scenario, at, relative));
            }
        }
    }
    let failures = for_all(&points, |(scenario, at, wanted)| {
        scenario
            .orphan(*at, wanted)
            .map_err(|why| format!("{}: orphan before call {at}: {why}", scenario.name))
    });
    println!("{} orphans, {} failed", points.len(), failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(points.len() > 100, "{} orphans", points.len());
}

/// Lets every `step`-th call of each scenario fail, with one error after the other in turn.
fn error_sweep(step: usize) {
    let mut points = Vec::new();
    for scenario in &SCENARIOS {
        let calls = scenario.calls();
        for role in [Role::Program, Role::Child] {
            let made = calls
                .calls
                .get(&role)
                .map(Vec::as_slice)
                .unwrap_or_default();
            for (at, call) in made.iter().enumerate() {
                let is_left_out = scenario.slow && at % SLOW_STEP != 0;
                if NEVER_FAILING.contains(call) || is_left_out || (at + points.len()) % step != 0 {
                    continue;
                }
                let error = ERRORS[at % ERRORS.len()];
                points.push((scenario, role, at, error));
            }
        }
    }
    let failures = for_all(&points, |(scenario, role, at, error)| {
        let (mut sandbox, ended) = scenario.play(Fault::Fail(*role, *at, *error));
        let calls = ended.calls.get(role).cloned().unwrap_or_default();
        let what = format!(
            "{}: {error} at call {at} ({:?}) of {role:?}",
            scenario.name,
            calls.get(*at)
        );
        scenario
            .check_failed(&mut sandbox, &ended)
            .map_err(|why| format!("{what}: {why}"))
    });
    println!(
        "{} errors injected, {} failed",
        points.len(),
        failures.len()
    );
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The iterator of the standard library over a directory panics then.
#[test]
fn lock_is_taken_or_not_when_directories_are_closed_with_an_error() {
    let scenarios: Vec<_> = SCENARIOS.iter().collect();
    let failures = for_all(&scenarios, |scenario| {
        let (mut sandbox, ended) = scenario.play(Fault::FailDirectories(Errno::EIO));
        scenario
            .check_failed(&mut sandbox, &ended)
            .map_err(|why| format!("{}: {why}", scenario.name))
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn lock_is_taken_or_not_when_a_part_of_the_calls_fail() {
    error_sweep(17);
}

#[test]
#[ignore = "takes minutes"]
fn lock_is_taken_or_not_when_any_call_fails() {
    error_sweep(1);
}

/// System calls are most of the cost of common invocations. The limits are slightly above what is
/// needed today, so that an increase is noticed.
#[test]
fn common_invocations_stay_within_their_system_call_limits() {
    let count = |prepare: &[&str], words: &[&str]| {
        let mut sandbox = Sandbox::alone();
        // As onehold makes it. In one that others may read there is a guard to be opened.
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(sandbox.path("store"), private).unwrap();
        if !prepare.is_empty() {
            sandbox.prepare(prepare);
        }
        // The store is in use, and another lock is held.
        sandbox.prepare(&["acquire", "other", "--ttl", "1h"]);
        let mut command = sandbox.command(words);
        // Each directory before that of the command costs a call.
        command.env("PATH", "/usr/bin:/bin");
        let ended = trace(command, Fault::Nothing);
        (ended.count(Role::Program), ended.count(Role::Child))
    };
    for (prepare, words, limits) in [
        (&[][..], &["run", "x", "--", "true"][..], (98, 12)),
        (&[], &["run", "--exec", "x", "--", "true"], (65, 0)),
        (&[], &["acquire", "x", "--ttl", "1h"], (77, 0)),
        (
            &["acquire", "x", "--ttl", "1h"],
            &["release", "x", "--force", "--yes"],
            // With the name of the user, for the journal, and the path of the store without links: one call for
            // each of its parts.
            (148, 0),
        ),
        (&[], &["check", "-q", "x"], (39, 0)),
        (
            &["acquire", "x", "--ttl", "1h"],
            &["check", "-q", "x"],
            (49, 0),
        ),
        (
            &["acquire", "x", "--ttl", "1h"],
            &["run", "x", "--", "true"],
            (74, 0),
        ),
    ] {
        // On a busy machine a trace takes longer than a second, and the wrapper checks its lock.
        let mut counts = (0..5).map(|_| count(prepare, words));
        let is_within =
            |(program, child): &(usize, usize)| *program <= limits.0 && *child <= limits.1;
        let found = counts.find(is_within);
        println!("{words:?}: {found:?} system calls, at most {limits:?}");
        assert!(found.is_some(), "{words:?}: {:?}", count(prepare, words));
    }
}

/// So that n readers take time for n, and not for n².
#[test]
fn lock_is_shared_by_as_many_system_calls_beside_300_readers_as_beside_100() {
    let mut sandbox = Sandbox::alone();
    let counts = [100, 200].map(|more| {
        for _ in 0..more {
            sandbox.prepare(&["acquire", "-s", "x", "--ttl", "1h"]);
        }
        [&[][..], &["--owner", "o"]].map(|owner| {
            let words = [&["acquire", "-s", "x", "--ttl", "1h"], owner].concat();
            let ended = trace(sandbox.command(&words), Fault::Nothing);
            ended.count(Role::Program)
        })
    });
    println!("beside 100 and 300 readers: {counts:?} system calls");
    let [few, many] = counts;
    // To list the directory takes more. Not with an owner: the second one has the lock already.
    assert!(
        many[0] <= few[0] + 10 && many[1] <= few[0] + 10,
        "{counts:?}"
    );
}
