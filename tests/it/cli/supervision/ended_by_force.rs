//! Work that is ended by force or by a time limit.

use std::fs;

use assert_cmd::prelude::OutputAssertExt;
#[cfg(target_os = "linux")]
use predicates::boolean::PredicateBooleanExt as _;
use predicates::str::contains;

use super::running_with_trap;
#[cfg(target_os = "linux")]
use super::{running, wrapper_is_gone};
#[cfg(target_os = "linux")]
use crate::harness::Running;
use crate::harness::{Signal, TestEnv, last_json_object, number_in, send, wait_until};

#[test]
#[cfg(target_os = "linux")]
fn break_of_a_stopped_wrapper_ends_its_work() {
    let env = TestEnv::new();
    let (mut wrapper, command) = running(&env, &[], "exec sleep 1000");
    wrapper.signal(Signal::STOP);
    env.onehold(["break", "x", "--yes"]).assert().success();
    assert!(!std::path::Path::new(&format!("/proc/{command}/fd/0")).exists());
    assert_eq!(wrapper.finish(), 8);
}

#[test]
fn what_the_process_of_the_wrapper_had_started_before_is_not_its_work() {
    let env = TestEnv::new();
    let script = "sleep 1000 >/dev/null 2>&1 & echo $! > older; exec onehold run --time-limit 0.3 x -- sleep 1000";
    env.session(script).assert().code(124);
    let older = number_in(&env.path("older"));
    assert!(std::path::Path::new(&format!("/proc/{older}/fd")).exists());
    send(older, Signal::KILL);
}

/// A job of a shell that then becomes onehold, which starts processes all the time and ends if one of them
/// is killed. It is older than the hold by more than a clock tick.
#[cfg(target_os = "linux")]
const OLDER_JOB: &str = "while sleep 0.05 && test -d $PWD; do :; done >/dev/null 2>&1 & echo $! > older; sleep 0.2; \
    exec onehold run --kill-after 1s";

#[test]
#[cfg(target_os = "linux")]
fn what_a_shell_had_started_before_it_became_onehold_is_no_work_of_the_hold() {
    for (options, is_killed) in [("--exec", false), ("", false), ("", true)] {
        let env = TestEnv::new();
        let command = "x -- sh -c 'sleep 1000 & echo $$ > command; wait'";
        let mut shell = env.command("setsid");
        let script = format!("{OLDER_JOB} {options} {command}");
        shell.args(["sh", "-c", &script]);
        let mut running = Running::start(shell);
        let (older, command) = (
            number_in(&env.path("older")),
            number_in(&env.path("command")),
        );
        running.wait_until_recorded();
        if is_killed {
            running.kill();
            wrapper_is_gone(&env);
        }
        let shown = env.json(["check", "-v", "x"]);
        let shown: Vec<u64> = shown["processes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|process| process["pid"].as_u64().unwrap())
            .collect();
        assert!(shown.contains(&command.into()), "{options}: {shown:?}");
        assert!(!shown.contains(&older.into()), "{options}: {shown:?}");
        assert_eq!(shown.len(), 2, "{options}: {shown:?}");
        env.onehold(["break", "x", "--yes"]).assert().success();
        assert!(!is_running(command), "{options}");
        assert!(is_running(older), "{options}");
        send(older, Signal::KILL);
    }
}

/// Whether a process runs: a zombie does not.
#[cfg(target_os = "linux")]
fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// A command that leaves behind a process of its own session, which ignores TERM and has a lock on a file as
/// long as it runs.
#[cfg(target_os = "linux")]
const LEAVES: &str = "(trap '' TERM; setsid sh -c 'exec 9>witness; flock 9; echo > locked; exec sleep 1000' \
    >/dev/null 2>&1 &); until test -e locked; do sleep 0.01; done; echo > left; sleep 1000; :";

/// What EMFILE is called by glibc, and by musl, which the shipped program is linked to.
#[cfg(target_os = "linux")]
const TOO_MANY_OPEN_FILES: [&str; 2] = ["too many open files", "no file descriptors available"];

#[test]
#[cfg(target_os = "linux")]
fn work_is_ended_by_a_wrapper_without_a_descriptor_to_look_at_it() {
    let env = TestEnv::new();
    let (mut wrapper, _) = running(&env, &["--kill-after", "1s"], LEAVES);
    wait_until("its work is complete", || env.path("left").exists());
    let status = env
        .command("prlimit")
        .args(["--nofile=3:3", "--pid", &wrapper.pid().to_string()])
        .status();
    assert!(status.unwrap().success());
    wrapper.signal(Signal::TERM);
    let line = wrapper.next_line();
    let expected = TOO_MANY_OPEN_FILES.map(|cause| {
        format!(
            "onehold: warning: cannot list what the command has started: {cause}; \
             each process gets its signal once its parent has exited\n"
        )
    });
    assert!(expected.contains(&line), "{line}");
    let look = "flock -n witness echo alone || echo beside others";
    env.onehold(["run", "-q", "-w", "1h", "x", "--", "sh", "-c", look])
        .assert()
        .success()
        .stdout("alone\n");
    assert_eq!(wrapper.finish(), 143);
}

#[test]
#[ignore = "needs strace: apt install strace"]
#[cfg(target_os = "linux")]
fn look_that_fails_does_not_pass_for_one_that_finds_nothing() {
    // With the lock it would be found without a look.
    let closed = "trap '' TERM; exec bash -c 'for fd in /proc/self/fd/*; do n=${fd##*/}; \
        test $n -lt 3 || eval \"exec $n>&-\"; done; echo > closed; while :; do sleep 0.1; done'";
    for (kill_after, verb, code) in [("0", "run", 6), ("200ms", "break", 1)] {
        let env = TestEnv::new();
        let (mut wrapper, command) = running(&env, &["--kill-after", kill_after], closed);
        wait_until("the descriptors are closed", || env.path("closed").exists());
        wait_until("that is on record", || {
            env.record("x").contains("\"let_go\":true")
        });
        wrapper.signal(Signal::TERM);
        wait_until("TERM was sent", || {
            env.record("x").contains("\"told\":true")
        });
        wrapper.kill();
        let mut strace = env.command("strace");
        strace.args(["-f", "-qq", "-o", "/dev/null", "-P", "/proc", "-e"]);
        strace.args(["inject=open,openat:error=EMFILE", "onehold"]);
        strace.args(match verb {
            "run" => ["run", "x", "--", "true"].as_slice(),
            _ => &["break", "x", "--yes"],
        });
        let assert = strace.assert().code(code);
        if verb == "break" {
            let [glibc, musl] = TOO_MANY_OPEN_FILES
                .map(|cause| contains(format!("  its processes cannot be listed: {cause}\n")));
            assert.stderr(glibc.or(musl));
            assert!(!is_running(command), "what is on record is ended");
        } else {
            send(command, Signal::KILL);
        }
    }
}

#[test]
#[ignore = "needs strace: apt install strace"]
#[cfg(target_os = "linux")]
fn work_that_has_ended_is_known_to_have_ended_however_long_a_look_takes() {
    let env = TestEnv::new();
    let (mut wrapper, command) = running(&env, &[], "trap '' TERM; while :; do sleep 0.02; done");
    wrapper.signal(Signal::TERM);
    wait_until("TERM was sent", || {
        env.record("x").contains("\"told\":true")
    });
    wrapper.kill();
    send(command, Signal::KILL);
    wait_until("the command has ended", || !is_running(command));
    // Of those that are listed some have vanished when they are looked at, so that one look is not enough.
    let _vanishing = Running::start(env.session("while :; do sh -c :; done"));
    let mut strace = env.command("strace");
    strace.args(["-f", "-qq", "-o", "/dev/null", "-P", "/proc", "-e"]);
    strace.args(["inject=getdents64:delay_exit=150000", "onehold"]);
    strace.args(["run", "x", "--", "true"]).assert().success();
}

#[test]
fn break_while_term_is_handled_is_said() {
    let env = TestEnv::new();
    let trap = "trap 'echo > handled; sleep 0.3; exit 5' TERM";
    let then = "while :; do sleep 0.02; done";
    let (mut wrapper, _) = running_with_trap(&env, &[], trap, then);
    wrapper.signal(Signal::TERM);
    wait_until("the command handles TERM", || env.path("handled").exists());
    env.onehold(["break", "x", "--yes"]).assert().success();
    let (code, _, err) = wrapper.finish_with_output();
    assert_eq!(code, 8);
    let expected = "onehold: lock `x` was broken while the command was running\n";
    assert!(err.ends_with(expected), "{err}");
}

#[test]
fn work_of_a_killed_wrapper_gets_term_once_whoever_asks_for_the_lock() {
    let env = TestEnv::new();
    let trap = "trap 'echo >> handled' TERM";
    let then = "until test -e end; do sleep 0.02; done";
    let (mut wrapper, _) = running_with_trap(&env, &["--kill-after", "0"], trap, then);
    wrapper.signal(Signal::TERM);
    wait_until("the command handles TERM", || env.path("handled").exists());
    wait_until("that is on record", || {
        env.record("x").contains("\"told\":true")
    });
    wrapper.kill();
    for _ in 0..3 {
        env.onehold(["run", "-w", "300ms", "x", "--", "true"])
            .assert()
            .code(7);
        env.onehold(["run", "x", "--", "true"])
            .assert()
            .code(6)
            .stderr(contains(
                "  the lock is free once that work has ended; to wait for it, add --wait",
            ));
    }
    for verb in ["cleanup", "list"] {
        env.onehold([verb]).assert().success();
    }
    assert_eq!(fs::read_to_string(env.path("handled")).unwrap(), "\n");
    env.write("end", "");
    env.onehold(["run", "-w", "1h", "x", "--", "true"])
        .assert()
        .success();
}

#[test]
fn time_limit_ends_the_command_with_124() {
    let env = TestEnv::new();
    let run = |options: &[&str], script: &str| {
        let mut words = vec!["run"];
        words.extend(options);
        words.extend(["x", "--", "bash", "-c", script]);
        env.onehold(words).assert()
    };
    run(&["--time-limit", "0.2"], "sleep 1000; :")
        .code(124)
        .stderr("onehold: the command exceeded its time limit of 0.2s; sent TERM, KILL in 10s\n");
    let ignores = "trap '' TERM; sleep 1000; :";
    let options = ["--time-limit", "200ms", "--kill-after", "0.1"];
    run(&options, ignores).code(124).stderr(
        "onehold: the command exceeded its time limit of 0.2s; sent TERM, KILL in 0.1s\n\
         onehold: the command did not exit, sent KILL\n",
    );
    // Without KILL it takes the time that it takes.
    let slow = "trap 'sleep 0.3; exit 5' TERM; sleep 1000 & wait";
    run(&["--time-limit", "200ms", "--kill-after", "0"], slow)
        .code(124)
        .stderr("onehold: the command exceeded its time limit of 0.2s; sent TERM\n");
    run(&["--time-limit", "1h"], "exit 3").code(3).stderr("");
    run(&["--time-limit", "0"], "exit 3").code(3).stderr("");
    let assert = run(&["--json", "--time-limit", "0.1"], "sleep 1000");
    let object = last_json_object(&assert.code(124).get_output().stderr);
    assert_eq!(object["error"]["code"], "TIME_LIMIT");
    assert_eq!(object["error"]["details"]["time_limit_seconds"], 0.1);
    assert_eq!(env.left_in_store(), [""; 0]);
}

/// It waits for the work of the hold that it has displaced, so that it does not supervise yet.
#[test]
#[cfg(target_os = "linux")]
fn run_that_is_broken_before_its_command_is_started_has_lost_its_lock() {
    for option in ["--json", "-v"] {
        let env = TestEnv::new();
        env.write(
            ".config/onehold/config.toml",
            "[defaults]\nhistory = true\n",
        );
        let script = "trap '' TERM; echo > trapped; while test -e trapped; do sleep 0.05; done";
        let mut first = env.start(["run", "x", "--", "sh", "-c", script]);
        wait_until("it traps TERM", || env.path("trapped").exists());
        let before = env.lock("x")["hold"].clone();
        let words = [
            "run", option, "--force", "--yes", "-w", "1", "x", "--", "touch", "begun",
        ];
        let mut second = env.start_with_output(words);
        wait_until("it has the lock", || {
            let now = &env.lock("x")["hold"];
            now.is_u64() && *now != before
        });
        let hold = env.lock("x")["hold"].clone();
        env.onehold(["break", "x", "--yes"]).assert().success();
        let (code, _, told) = second.finish_with_output();
        assert_eq!(code, 8, "{told}");
        let text = "lock `x` was broken before its command was started";
        if option == "--json" {
            let object = last_json_object(told.as_bytes());
            assert_eq!(object["error"]["code"], "LOST");
            assert_eq!(object["error"]["message"], text);
            assert_eq!(object["hold"], hold);
        } else {
            assert!(told.contains(&format!("onehold: {text}\n")), "{told}");
        }
        assert!(!env.path("begun").exists());
        let past = env.json(["history", "x"])["holds"].clone();
        let of_second = past
            .as_array()
            .unwrap()
            .iter()
            .filter(|past| past["hold"] == hold);
        let results: Vec<_> = of_second.map(|past| past["result"].clone()).collect();
        assert_eq!(results, ["broken"]);
        fs::remove_file(env.path("trapped")).unwrap();
        assert_eq!(first.finish(), 8);
    }
}
