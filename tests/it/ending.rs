//! A hold ends with all of its work: whoever ends it, and whatever that work is, nothing of it runs any
//! more when the next holder starts.

use std::fs;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::harness::seen::marked;
use crate::harness::{
    CONTENDERS, Rng, Running, Signal, TestEnv, example, exit_code, for_all, send, wait_until,
};

/// Put before each script: `sleeper` is a process of the work that does nothing, `note` puts the shell
/// itself on the list. All are listed with their start, so that a reused PID is not taken for them.
const PRELUDE: &str = r"
note() { read -r line < /proc/$BASHPID/stat; line=${line##*) }; set -- $line; echo $BASHPID ${20} >> work; }
export -f note
sleeper() { bash -c 'note; exec sleep 1000'; }
export -f sleeper
note
";

/// The one that is in Python.
const CHAIN: &str = "forks and exits all the time";

/// A kind of work, and how many processes it lists before it is ended.
struct Work {
    name: &'static str,
    options: &'static [&'static str],
    script: &'static str,
    listed: usize,
}

const WORK: [Work; 12] = [
    Work {
        name: "foreground",
        options: &[],
        script: "sleeper; :",
        listed: 2,
    },
    Work {
        name: "background",
        options: &[],
        script: "sleeper & sleeper & wait",
        listed: 3,
    },
    Work {
        name: "double fork",
        options: &[],
        script: "(sleeper & ) ; (sleeper & ) ; sleeper; :",
        listed: 4,
    },
    Work {
        name: "setsid",
        options: &[],
        script: "setsid bash -c 'note; sleeper; :' & sleeper; :",
        listed: 4,
    },
    Work {
        name: "closed descriptors",
        options: &[],
        script: "(setsid bash -c 'for fd in /proc/self/fd/*; do eval \"exec ${fd##*/}>&-\"; done; note; \
                 exec sleep 1000' & ) 2>/dev/null; sleeper; :",
        listed: 3,
    },
    Work {
        name: "cleared environment",
        options: &[],
        script: "env -i bash -c \"$(declare -f note); note; exec sleep 1000\" & sleeper; :",
        listed: 3,
    },
    Work {
        name: "ignores TERM",
        options: &[],
        script: "trap '' TERM; (setsid bash -c 'note; exec sleep 1000' & ); sleeper; :",
        listed: 3,
    },
    Work {
        name: "slow in TERM",
        options: &[],
        script: "trap 'echo >> told; sleep 0.5; exit 0' TERM; sleeper & while :; do sleep 0.02; done",
        listed: 2,
    },
    Work {
        name: "forks while being ended",
        options: &[],
        script: "trap 'for i in $(seq 20); do (setsid sleeper & ); done; exit 0' TERM; \
                 while :; do sleep 0.02 & wait; done",
        listed: 1,
    },
    // No look sees one of them twice.
    Work {
        name: CHAIN,
        options: &[],
        script: "python3 -c 'import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for turn in range(40000):
    if os.fork(): os._exit(0)' & sleeper; :",
        listed: 2,
    },
    Work {
        name: "--exec",
        options: &["--exec"],
        script: "setsid bash -c 'note; sleeper; :' & (sleeper & ) ; sleeper; :",
        listed: 5,
    },
    Work {
        name: "--close",
        options: &["--close"],
        script: "setsid bash -c 'note; sleeper; :' & (sleeper & ) ; sleeper; :",
        listed: 5,
    },
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndedBy {
    Break,
    Lost,
    Term,
    TimeLimit,
    BreakAfterKill,
    /// The command alone, as by killall(1).
    KillOfTheCommand,
}

const ENDERS: [EndedBy; 6] = [
    EndedBy::Break,
    EndedBy::Lost,
    EndedBy::Term,
    EndedBy::TimeLimit,
    EndedBy::BreakAfterKill,
    EndedBy::KillOfTheCommand,
];

/// Long enough for the work to be listed before.
const TIME_LIMIT: Duration = Duration::from_secs(4);

impl EndedBy {
    /// Without a wrapper nobody notices anything.
    fn applies_to(self, work: &Work) -> bool {
        work.name != "--exec" || self == Self::Break
    }
}

/// The next holder, which waits behind a `run`.
fn next(env: &TestEnv, scene: &str, run: &Running) -> Running {
    let mut command = env.onehold(["run", "-w", "1h", "x", "--"]);
    command
        .arg(example("programs"))
        .args(["next-holder", scene])
        .arg(run.pid().to_string());
    Running::start(command)
}

/// When the next holder started, and what ran of the work before.
fn told_by_next(env: &TestEnv) -> (u64, String) {
    let text = fs::read_to_string(env.path("next")).unwrap();
    let (started, running) = text.split_once(' ').unwrap();
    (started.parse().unwrap(), running.to_owned())
}

fn lines(env: &TestEnv, file: &str) -> usize {
    fs::read_to_string(env.path(file)).map_or(0, |text| text.lines().count())
}

fn start_work(env: &TestEnv, work: &Work, options: &[&str], scene: &str) -> Running {
    let mut command = env.onehold(["run", "--kill-after", "1s"]);
    command
        .args(options)
        .args(work.options)
        .args(["x", "--", "bash", "-c"])
        .arg(format!("{PRELUDE}{}", work.script))
        .env("WORK_OF", scene);
    let run = Running::start(command);
    wait_until("the work is listed", || lines(env, "work") >= work.listed);
    wait_until("the command is on record", || {
        env.lock("x")["pid"].is_number()
    });
    run
}

fn play(work: &Work, by: EndedBy) -> Result<(), String> {
    let env = TestEnv::new();
    let scene = format!("{}/{}/{by:?}", env.root.path().display(), work.name);
    let limit = format!("{}ms", TIME_LIMIT.as_millis());
    let options: &[&str] = match by {
        EndedBy::TimeLimit => &["--time-limit", &limit],
        _ => &[],
    };
    let mut run = start_work(&env, work, options, &scene);
    let mut next = next(&env, &scene, &run);
    wait_until("the next holder waits", || env.number_of_waiters("x") == 1);
    let began = Instant::now();
    let mut code = None;
    match by {
        EndedBy::Break => code = Some(env.code(["break", "x", "--yes"])),
        EndedBy::Lost => fs::remove_file(env.store().join("x.lock")).unwrap(),
        EndedBy::Term => run.signal(Signal::TERM),
        EndedBy::TimeLimit => {}
        EndedBy::BreakAfterKill => {
            run.kill();
            code = Some(env.code(["break", "x", "--yes"]));
        }
        EndedBy::KillOfTheCommand => {
            let command = env.lock("x")["pid"].as_u64().unwrap();
            send(u32::try_from(command).unwrap(), Signal::KILL);
        }
    }
    if code.is_some_and(|code| code != 0) {
        return Err(format!("{scene}: break exits with {code:?}"));
    }
    // The wrapper has given the lock back, and may need a moment more to end.
    let wrapper = format!("{} ", run.pid());
    let left = || {
        let mut left = marked(&format!("WORK_OF={scene}"));
        left.retain(|process| !process.starts_with(&wrapper));
        left
    };
    if by == EndedBy::Lost {
        // It may overlap with the next holder, but not for long.
        wait_until("the work has ended", || left().is_empty());
        let took = began.elapsed();
        if took > Duration::from_secs(11) {
            return Err(format!("{scene}: took {took:?}"));
        }
    } else if code.is_some() && !left().is_empty() {
        return Err(format!("{scene}: left after break: {:?}", left()));
    }
    let own_code = run.finish();
    let expected = match by {
        EndedBy::Break if work.name == "--exec" => -15,
        EndedBy::Break | EndedBy::Lost => 8,
        EndedBy::TimeLimit => 124,
        EndedBy::BreakAfterKill => -9,
        EndedBy::KillOfTheCommand => 137,
        EndedBy::Term => match work.name {
            "ignores TERM" => 137,
            "slow in TERM" | "forks while being ended" => 0,
            _ => 143,
        },
    };
    if own_code != expected {
        return Err(format!("{scene}: exit code {own_code}, not {expected}"));
    }
    if next.finish() != 0 {
        return Err(format!("{scene}: the next holder failed"));
    }
    let (_, running) = told_by_next(&env);
    if by != EndedBy::Lost && !running.is_empty() {
        return Err(format!("{scene}: ran beside the next holder: {running}"));
    }
    if !env.left_in_store().is_empty() {
        return Err(format!("{scene}: left: {:?}", env.left_in_store()));
    }
    let is_told = work.name == "slow in TERM" && by != EndedBy::KillOfTheCommand;
    if is_told && lines(&env, "told") != 1 {
        return Err(format!("{scene}: {} times TERM", lines(&env, "told")));
    }
    println!("{scene}: {:?}", began.elapsed());
    Ok(())
}

/// Plays the scenes of this work, or of all other work.
fn play_scenes_of(is_chain: bool) -> usize {
    let scenes: Vec<(&Work, EndedBy)> = WORK
        .iter()
        .filter(|work| (work.name == CHAIN) == is_chain)
        .flat_map(|work| ENDERS.map(|by| (work, by)))
        .filter(|(work, by)| by.applies_to(work))
        .collect();
    let failures = for_all(&scenes, |(work, by)| play(work, *by));
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    scenes.len()
}

#[test]
fn nothing_of_the_work_runs_when_the_next_holder_starts() {
    assert_eq!(play_scenes_of(false), 61);
}

#[test]
#[ignore = "needs python3: apt install python3"]
fn nothing_of_a_chain_of_forks_runs_when_the_next_holder_starts() {
    let python = Command::new("python3").arg("--version").status();
    assert!(
        python.is_ok_and(|status| status.success()),
        "python3 is missing"
    );
    assert_eq!(play_scenes_of(true), 6);
}

/// Eight contenders, each of which runs a tree of processes in each round, and a ninth that breaks what
/// it finds. An overlap of two intervals of work would be seen at the start of the later one.
///
/// One at a time: all of them look at all processes, and two such tests at once have kept a kernel in its
/// cache of /proc (`shrink_dcache_parent`) for longer than a break waits.
fn contenders_and_a_breaker(rounds: usize) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock();
    let env = TestEnv::new();
    let log = env.path("log");
    let script = format!(
        "'{}' contender; \
         (setsid sleep 1000 & echo $! > orphan.$$); sleep 1000 & child=$!; sleep 0.0$(($$ % 5)); \
         kill $child $(cat orphan.$$); wait; \
         while kill -0 $(cat orphan.$$) 2>/dev/null; do sleep 0.001; done; rm -f orphan.$$",
        example("programs").display()
    );
    let is_over = AtomicBool::new(false);
    let (ended, broken) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let stuck = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = Rng(0x9E37_79B9_7F4A_7C15);
            while !is_over.load(Ordering::Relaxed) {
                let output = env.output(["break", "x", "--yes"]);
                let code = exit_code(output.status);
                // A process that has got KILL may stay in the kernel's cache of /proc for longer than a break
                // waits (`shrink_dcache_parent`). Then the hold stays, and the break says so.
                let said = String::from_utf8_lossy(&output.stderr);
                let is_stuck = code == 1 && said.contains("still running: process");
                assert!(matches!(code, 0 | 3 | 4) || is_stuck, "{output:?}");
                stuck.fetch_add(usize::from(is_stuck), Ordering::Relaxed);
                broken.fetch_add(usize::from(code == 0), Ordering::Relaxed);
                let pause = u64::try_from(rng.below(120)).unwrap();
                std::thread::sleep(Duration::from_millis(pause));
            }
        });
        let contenders: Vec<_> = (0..CONTENDERS)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        let mut command: Command =
                            env.onehold(["run", "-q", "-w", "1h", "x", "--", "bash", "-c"]);
                        command.arg(&script).env("CONTENDER_LOG", &log);
                        let code = Running::start(command).finish();
                        // -15: TERM of the breaker came before its command had begun.
                        let is_expected = matches!(code, 0 | 8 | -15);
                        // Or the breaker would go on for ever.
                        is_over.fetch_or(!is_expected, Ordering::Relaxed);
                        assert!(is_expected, "exit code {code}");
                        ended.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for contender in contenders {
            contender.join().unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let overlaps = fs::read_to_string(&log).unwrap_or_default();
    assert!(overlaps.is_empty(), "{overlaps}");
    let turns = fs::read_to_string(env.path("log.turns")).unwrap();
    let broken = broken.into_inner();
    println!(
        "{} rounds, {} at work, {broken} broken",
        ended.into_inner(),
        turns.lines().count()
    );
    assert!(broken > rounds, "{broken} broken");
    let stuck = stuck.into_inner();
    assert!(stuck <= 1 + rounds / 10, "{stuck} not ended in time");
    assert!(env.left_in_store().is_empty());
}

#[test]
fn chain_of_processes_that_fork_without_a_pause_does_not_outrun_the_end_of_its_hold() {
    let env = TestEnv::new();
    let witness = env.path("witness");
    let script = format!(
        "'{}' forks '{}' & sleep 1000",
        example("programs").display(),
        witness.display()
    );
    let mut run = env.start(["run", "--kill-after", "1s", "x", "--", "sh", "-c", &script]);
    let ready = env.path("witness.ready");
    wait_until("the chain has begun", || ready.exists());
    run.signal(Signal::TERM);
    assert_eq!(run.finish(), 143);
    let file = fs::File::open(&witness).unwrap();
    assert!(file.try_lock().is_ok(), "it runs on");
}

#[test]
fn no_two_intervals_of_work_overlap_while_holds_are_broken() {
    contenders_and_a_breaker(8);
}

#[test]
#[ignore = "takes minutes"]
fn no_two_intervals_of_work_overlap_in_800_rounds_while_holds_are_broken() {
    contenders_and_a_breaker(100);
}
