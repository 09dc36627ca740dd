//! `run --die-with`: the work ends with another process.

use assert_cmd::prelude::OutputAssertExt;
use predicates::str::contains;

use crate::harness::{
    Running, Signal, TestEnv, dead_pid, last_json_object, program, run_together, send,
    sorted_codes, wait_until,
};

/// The words of a `run` that ends with a process.
fn with(process: &Running, words: &[&str]) -> Vec<String> {
    let first = ["run", "--die-with", &process.pid().to_string()].map(str::to_owned);
    let words = words.iter().map(|word| (*word).to_owned());
    first.into_iter().chain(words).collect()
}

/// A command that writes its PID, and leaves another one behind that does the same. Both ignore HUP.
const WORK: &str =
    "sh -c 'echo $$ > grandchild; exec sleep 1000' & echo $$ > child; exec sleep 1000";

/// Whether a process has ended, or is a zombie.
fn has_ended(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}

/// A `run` that ends with the process, whose two commands have begun.
fn at_work(env: &TestEnv, caller: &Running) -> (Running, [u32; 2]) {
    let run = env.start_with_output(with(caller, &["x", "--", "sh", "-c", WORK]));
    wait_until("both have begun", || {
        env.lines("child") + env.lines("grandchild") == 2
    });
    run.wait_until_recorded();
    (run, ["child", "grandchild"].map(|file| env.pid_in(file)))
}

#[test]
fn all_work_ends_with_the_process_and_the_exit_code_is_143() {
    let env = TestEnv::new();
    let mut caller = Running::sleeper();
    let (mut run, work) = at_work(&env, &caller);
    assert_eq!(env.lock("x")["die_with"], caller.pid());
    let line = format!("  ends with: process {}\n", caller.pid());
    env.onehold(["check", "-v", "x"])
        .assert()
        .code(6)
        .stdout(contains(line));
    caller.kill();
    let (code, _, told) = run.finish_with_output();
    assert_eq!(code, 143, "{told}");
    let expected = format!(
        "onehold: its caller, process {} (sleep), has exited; sent TERM, KILL in 10s\n",
        caller.pid()
    );
    assert_eq!(told, expected);
    assert!(work.into_iter().all(has_ended));
    assert_eq!(env.check("x"), 0);
}

#[test]
fn command_that_ignores_term_is_killed_after_its_time_and_json_tells_the_reason() {
    let env = TestEnv::new();
    let mut caller = Running::sleeper();
    let script = "trap '' TERM; echo $$ > began; while :; do sleep 0.05; done";
    let words = ["--json", "--kill-after", "1", "x", "--", "sh", "-c", script];
    let mut run = env.start_with_output(with(&caller, &words));
    wait_until("the command has begun", || env.lines("began") == 1);
    caller.kill();
    let (code, _, told) = run.finish_with_output();
    let object = last_json_object(told.as_bytes());
    assert_eq!(code, 143);
    assert_eq!(object["error"]["code"], "CALLER_EXITED");
    assert_eq!(object["command_exit_code"], 137);
    assert!(has_ended(env.pid_in("began")));
}

#[test]
fn waiters_leave_the_queue_with_their_processes_and_the_others_are_served() {
    let env = TestEnv::new();
    let mut holder = env.hold(&["x"]);
    let mut callers: Vec<Running> = (0..8).map(|_| Running::sleeper()).collect();
    let mut waiters: Vec<Running> = callers
        .iter()
        .enumerate()
        .map(|(number, caller)| {
            let script = format!("echo {number} >> served");
            let waiter =
                env.start_with_output(with(caller, &["-w", "1h", "x", "--", "sh", "-c", &script]));
            wait_until("it waits", || env.number_of_waiters("x") == number + 1);
            waiter
        })
        .collect();
    for number in [0, 3, 4, 7] {
        callers[number].kill();
        let (code, _, told) = waiters[number].finish_with_output();
        // By the signal, for which a shell says 143.
        assert_eq!(code, -15, "{told}");
        assert!(
            told.contains("has exited; the command was not started\n"),
            "{told}"
        );
    }
    assert_eq!(env.number_of_waiters("x"), 4);
    env.end();
    holder.finish();
    for number in [1, 2, 5, 6] {
        assert_eq!(waiters[number].finish(), 0);
    }
    let served = std::fs::read_to_string(env.path("served")).unwrap();
    assert_eq!(served, "1\n2\n5\n6\n");
}

#[test]
fn run_ends_with_the_process_that_started_it() {
    let env = TestEnv::new();
    env.write("own.toml", "[defaults]\ndie-with = \"parent\"\n");
    for option in ["--die-with parent", ""] {
        let script = format!(
            "echo $$ > parent; {} run {option} x -- sh -c 'echo $$ > began; exec sleep 1000' & \
             echo $! > wrapper; wait",
            program().display()
        );
        let mut shell = env.shell(&script);
        if option.is_empty() {
            shell.env("ONEHOLD_CONFIG", env.path("own.toml"));
        }
        let mut shell = Running::start(shell);
        wait_until("the command has begun", || env.lines("began") == 1);
        let processes = ["wrapper", "began"].map(|file| env.pid_in(file));
        shell.kill();
        wait_until("its work has ended", || {
            processes.into_iter().all(has_ended)
        });
        assert_eq!(env.check("x"), 0);
        std::fs::remove_file(env.path("began")).unwrap();
    }
}

#[test]
fn default_is_switched_off_by_the_command_line_and_by_a_profile() {
    let env = TestEnv::new();
    env.write(
        "own.toml",
        "[defaults]\ndie-with = \"parent\"\n[profiles.free]\ndie-with = \"none\"\n",
    );
    for (words, ends_with) in [
        (&["run"][..], true),
        (&["run", "--die-with", "none"], false),
        (&["--profile", "free", "run"], false),
    ] {
        let mut command = env.onehold(words);
        command.env("ONEHOLD_CONFIG", env.path("own.toml"));
        command.args(["x", "--", "sleep", "1000"]);
        let mut run = Running::start(command);
        wait_until("it is held", || env.check("x") == 6);
        let with = env.lock("x")["die_with"].clone();
        assert_eq!(with.is_number(), ends_with, "{words:?}: {with}");
        run.signal(Signal::TERM);
        run.finish();
    }
}

#[test]
fn nothing_is_started_for_a_parent_that_has_exited() {
    let env = TestEnv::new();
    let script = format!(
        "(until test -e gone; do sleep 0.01; done; sed -n 's/^PPid:.//p' /proc/$(exec sh -c 'echo $PPID')/status > parent; \
         exec {} run --die-with parent x -- touch ran) > out 2> told &",
        program().display()
    );
    env.session(&script).assert().success();
    std::fs::write(env.path("gone"), "").unwrap();
    wait_until("it has looked for its parent", || env.lines("parent") == 1);
    let parent = std::fs::read_to_string(env.path("parent")).unwrap();
    // A process that adopts orphans is a parent like any other: that cannot be told apart.
    if parent.trim() == "1" {
        wait_until("it says so", || env.lines("told") == 2);
        let told = std::fs::read_to_string(env.path("told")).unwrap();
        let expected =
            "onehold: the process that started onehold has exited\n  the command was not started\n";
        assert_eq!(told, expected);
        assert!(!env.path("ran").exists());
    }
}

#[test]
fn process_must_exist_and_the_run_must_have_a_wrapper() {
    let env = TestEnv::new();
    let dead = dead_pid().to_string();
    env.onehold(["run", "--json", "--die-with", &dead, "x", "--", "true"])
        .assert()
        .code(125)
        .stderr(contains("\"code\":\"NO_SUCH_PROCESS\""));
    // A zombie has exited.
    let mut child = Running::sleeper();
    child.signal(Signal::KILL);
    wait_until("it is a zombie", || has_ended(child.pid()));
    env.onehold(with(&child, &["x", "--", "true"]))
        .assert()
        .code(125);
    child.finish();
    let alive = Running::sleeper();
    env.onehold(with(&alive, &["--exec", "x", "--", "true"]))
        .assert()
        .code(2)
        .stderr(contains("cannot be used with `--exec`"));
    env.onehold(["run", "--die-with", "own", "x", "--", "true"])
        .assert()
        .code(2);
}

#[test]
fn contenders_end_the_work_of_a_killed_wrapper_once_its_process_has_exited() {
    let env = TestEnv::new();
    let mut caller = Running::sleeper();
    let (mut run, work) = at_work(&env, &caller);
    run.kill();
    wait_until("the wrapper counts as dead", || {
        env.lock("x")["wrapper_alive"] == false
    });
    // As long as the process lives, the command keeps the lock.
    assert_eq!(env.code(["run", "x", "--", "true"]), 6);
    caller.kill();
    let told = format!("; its caller, process {}, has exited", caller.pid());
    env.onehold(["check", "x"])
        .assert()
        .code(6)
        .stdout(contains(told));
    let script = format!(
        "{}; grep -q '^State:.[SR]' /proc/{}/status 2>/dev/null && echo alive >> alive; :",
        crate::harness::INCREMENT,
        work[0]
    );
    let line = ["run", "-w", "1m", "x", "--", "sh", "-c", &script];
    let outputs = run_together((0..8).map(|_| env.onehold(line)).collect());
    assert_eq!(sorted_codes(&outputs), [0; 8]);
    assert_eq!(env.count_in("number"), 8);
    assert_eq!(env.lines("alive"), 0);
    assert!(work.into_iter().all(has_ended));
}

#[test]
fn break_ends_the_work_of_a_killed_wrapper_once_its_process_has_exited_and_cleanup_leaves_it() {
    let env = TestEnv::new();
    let mut caller = Running::sleeper();
    let (mut run, work) = at_work(&env, &caller);
    run.kill();
    caller.kill();
    // It ends nothing, as it does nowhere.
    env.onehold(["cleanup", "x"]).assert().success();
    assert!(!work.into_iter().any(has_ended));
    assert_eq!(env.check("x"), 6);
    env.onehold(["break", "--yes", "x"]).assert().success();
    wait_until("the work has ended", || work.into_iter().all(has_ended));
    assert_eq!(env.check("x"), 0);
}

#[test]
fn process_with_the_same_pid_and_another_start_is_another_one() {
    let env = TestEnv::new();
    let caller = Running::sleeper();
    let (mut run, work) = at_work(&env, &caller);
    let before = std::fs::read_to_string(env.path("store/x.lock")).unwrap();
    assert!(
        before.contains(&format!("\"pid\": {}", caller.pid())),
        "{before}"
    );
    run.kill();
    // Its record names an earlier start.
    let start: serde_json::Value = serde_json::from_str(&before).unwrap();
    let start = start["die_with"]["start"].to_string();
    let earlier = "1".repeat(start.len());
    let forged = before.replacen(
        &format!("\"start\": {start}"),
        &format!("\"start\": {earlier}"),
        1,
    );
    assert_ne!(forged, before);
    std::fs::write(env.path("store/x.lock"), forged).unwrap();
    env.onehold(["check", "x"])
        .assert()
        .stdout(contains("has exited"));
    for pid in work {
        send(pid, Signal::KILL);
    }
}

#[test]
fn command_that_ends_before_the_process_keeps_its_exit_code() {
    let env = TestEnv::new();
    // The process reads a pipe to its end, which comes with that of the command.
    let script = "mkfifo f$1; cat f$1 & onehold run --die-with $! x$1 -- sh -c \"exec 5>f$1; sleep 0.1; exit 3\"";
    let rounds = (0..40).map(|round| {
        let mut shell = env.command("sh");
        shell.args(["-c", script, "sh", &round.to_string()]);
        shell
    });
    for output in run_together(rounds.collect()) {
        assert_eq!(output.status.code(), Some(3), "{output:?}");
    }
}
