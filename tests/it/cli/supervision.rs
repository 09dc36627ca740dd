use std::fs;
use std::process::Command;

use assert_cmd::prelude::OutputAssertExt;
use predicates::Predicate;
#[cfg(target_os = "linux")]
use predicates::boolean::PredicateBooleanExt as _;
use predicates::str::{contains, is_match};

use crate::harness::{
    Running, Signal, TestEnv, json_object, last_json_object, number_in, send, wait_until,
};

/// Starts a `run` of `x` whose command reports its PID and then executes `then`. Returns once the
/// wrapper has recorded the start time of the command, which it does after the command was started.
fn running(env: &TestEnv, options: &[&str], then: &str) -> (Running, u32) {
    running_with_trap(env, options, ":", then)
}

/// The trap is set before the command says that it runs: a signal that follows is caught.
fn running_with_trap(env: &TestEnv, options: &[&str], trap: &str, then: &str) -> (Running, u32) {
    let ready = env.path("ready");
    let _ = fs::remove_file(&ready);
    let script = format!("{trap}; echo $$ > {}; {then}", ready.display());
    let mut args = vec!["run"];
    args.extend(options);
    args.extend(["x", "--", "sh", "-c", &script]);
    let running = env.start_with_output(args);
    let pid = number_in(&ready);
    running.wait_until_recorded();
    (running, pid)
}

fn wrapper_is_gone(env: &TestEnv) {
    wait_until("the wrapper counts as dead", || {
        env.lock("x")["wrapper_alive"] == false
    });
}

#[test]
fn command_keeps_lock_of_killed_wrapper() {
    let env = TestEnv::new();
    let (mut wrapper, command) = running(&env, &[], "exec sleep 1000");
    wrapper.kill();
    wrapper_is_gone(&env);
    env.onehold(["run", "x", "--", "true"])
        .assert()
        .code(6)
        .stderr(
            is_match(format!(
                "`x` is held by process {command} \\(sh\\) .*\n  alive: holds the kernel lock; \
             its wrapper \\(process {}\\) has exited; runs in [^ ]+\n",
                wrapper.pid()
            ))
            .unwrap(),
        );
    let mut waiting = env.start_with_output(["run", "-w", "1h", "x", "--", "echo", "mine"]);
    send(command, Signal::KILL);
    let (code, out, _) = waiting.finish_with_output();
    assert_eq!((code, out.as_str()), (0, "mine\n"));
}

#[test]
fn zombie_of_killed_wrapper_and_command_is_taken_over() {
    let env = TestEnv::new();
    let (mut wrapper, command) = running(&env, &[], "exec sleep 1000");
    wrapper.kill();
    send(command, Signal::KILL);
    wait_until("the command has exited", || env.check("x") == 5);
    env.onehold(["run", "x", "--", "true"])
        .assert()
        .success()
        .stderr(contains("took over zombie `x`"));
    assert_eq!(env.left_in_store(), [""; 0]);
}

#[test]
fn command_without_descriptors_keeps_lock_of_killed_wrapper() {
    let env = TestEnv::new();
    let (mut wrapper, command) = running(
        &env,
        &[],
        // As sudo does. dash cannot close descriptors above 9, so bash is used.
        "exec bash -c 'exec 100>&-; echo > closed; while :; do sleep 1; done'",
    );
    let closed = env.path("closed");
    wait_until("the command has closed the descriptor", || closed.exists());
    wrapper.kill();
    wrapper_is_gone(&env);
    assert_eq!(env.check("x"), 6);
    assert_eq!(env.lock("x")["proof"], "same-process");
    env.onehold(["run", "x", "--", "true"]).assert().code(6);
    send(command, Signal::KILL);
    wait_until("the command has exited", || env.check("x") == 5);
}

#[test]
fn daemon_holds_nothing_after_command_exits() {
    let env = TestEnv::new();
    let daemon = env.path("daemon");
    let script = format!(
        "setsid sleep 1000 >/dev/null 2>&1 & echo $! > {}",
        daemon.display()
    );
    env.onehold(["run", "x", "--", "sh", "-c", &script])
        .assert()
        .success();
    let daemon = number_in(&daemon);
    assert_eq!(env.check("x"), 0);
    env.onehold(["run", "x", "--", "true"]).assert().success();
    send(daemon, Signal::KILL);
}

#[test]
fn daemon_holds_nothing_after_wrapper_was_killed() {
    let env = TestEnv::new();
    let daemon = env.path("daemon");
    let go = env.path("go");
    let then = format!(
        "setsid sleep 1000 >/dev/null 2>&1 & echo $! > {}; until test -e {}; do sleep 0.01; done",
        daemon.display(),
        go.display()
    );
    let (mut wrapper, _) = running(&env, &[], &then);
    let daemon = number_in(&daemon);
    wrapper.kill();
    wrapper_is_gone(&env);
    assert_eq!(env.check("x"), 6, "the command still runs");
    fs::write(&go, "").unwrap();
    wait_until("the command has exited", || env.check("x") == 5);
    assert_eq!(env.lock("x")["reason"], "dead");
    env.onehold(["run", "x", "--", "true"]).assert().success();
    send(daemon, Signal::KILL);
}

#[test]
fn term_reaches_command_once_and_its_exit_code_is_returned() {
    let env = TestEnv::new();
    let caught = env.path("caught");
    let trap = format!(
        "trap 'echo caught >> {}; kill $!; exit 17' TERM",
        caught.display()
    );
    let (mut wrapper, _) = running_with_trap(&env, &[], &trap, "sleep 1000 & wait");
    wrapper.signal(Signal::TERM);
    assert_eq!(wrapper.finish(), 17);
    assert_eq!(fs::read_to_string(&caught).unwrap(), "caught\n");
    assert_eq!(env.left_in_store(), [""; 0]);
}

#[test]
fn signals_from_processes_are_forwarded() {
    for (name, signal) in [
        ("INT", Signal::INT),
        ("QUIT", Signal::QUIT),
        ("HUP", Signal::HUP),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
    ] {
        let env = TestEnv::new();
        let trap = format!("trap 'kill $!; exit 17' {name}");
        let (mut wrapper, _) = running_with_trap(&env, &[], &trap, "sleep 1000 & wait");
        wrapper.signal(signal);
        assert_eq!(wrapper.finish(), 17, "{name}");
    }
}

#[cfg(target_os = "linux")]
/// A command that notes each signal it gets, in `got`, and ends once there is a file `end`.
const NOTES_SIGNALS: &str = "\
import os, signal, time
def note(number, frame):
    with open('got', 'a') as file: file.write('%d\\n' % number)
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, note)
with open('ready', 'w') as file: file.write('%d\\n' % os.getpid())
while not os.path.exists('end'): time.sleep(0.01)
";

#[test]
#[cfg(target_os = "linux")]
#[ignore = "needs python3: apt install python3"]
fn every_signal_but_those_of_job_control_is_forwarded_and_none_ends_the_wrapper() {
    const STOP_AND_CONTINUE: [i32; 6] = [9, 18, 19, 20, 21, 22];
    // TERM ends the work, and CHLD comes from children.
    const OTHERS: [i32; 2] = [15, 17];
    let env = TestEnv::new();
    let mut running = env.start(["run", "x", "--", "python3", "-c", NOTES_SIGNALS]);
    number_in(&env.path("ready"));
    let got = || -> Vec<i32> {
        let text = fs::read_to_string(env.path("got")).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    };
    // The C library of the command keeps 32 and 33 for itself.
    let forwarded: Vec<i32> = (1..=64)
        .filter(|number| !STOP_AND_CONTINUE.contains(number) && !OTHERS.contains(number))
        .filter(|number| !matches!(number, 32 | 33))
        .collect();
    for (count, number) in forwarded.iter().enumerate() {
        signal_by_number(&running, *number);
        wait_until(&format!("signal {number} is forwarded"), || {
            got().len() > count
        });
    }
    assert_eq!(got(), forwarded);
    running.signal(Signal::CHILD);
    running.signal(Signal::CONT);
    assert_eq!(env.check("x"), 6);
    env.write("end", "");
    assert_eq!(running.finish(), 0);
    assert_eq!(env.left_in_store(), [""; 0]);
}

/// Also those that have no name.
#[cfg(target_os = "linux")]
fn signal_by_number(running: &Running, number: i32) {
    // SAFETY: kill(2) takes two numbers.
    let sent = unsafe { libc::kill(running.pid().cast_signed(), number) };
    assert_eq!(sent, 0, "signal {number}");
}

#[test]
#[cfg(target_os = "linux")]
fn signals_of_the_c_library_are_forwarded_too() {
    for number in [32, 33] {
        let env = TestEnv::new();
        let (mut wrapper, _) = running(&env, &[], "exec sleep 1000");
        let status = fs::read_to_string(format!("/proc/{}/status", wrapper.pid())).unwrap();
        let ignored = status
            .lines()
            .find_map(|line| line.strip_prefix("SigIgn:\t"))
            .unwrap();
        let is_ignored = u64::from_str_radix(ignored, 16).unwrap() & (1 << (number - 1)) != 0;
        signal_by_number(&wrapper, number);
        if is_ignored {
            // Whoever started this test ignores it.
            assert_eq!(env.check("x"), 6);
            wrapper.signal(Signal::TERM);
            assert_eq!(wrapper.finish(), 143);
        } else {
            assert_eq!(wrapper.finish(), 128 + number);
        }
        assert_eq!(env.left_in_store(), [""; 0]);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn stopped_wrapper_changes_neither_its_command_nor_its_hold() {
    let env = TestEnv::new();
    let (mut wrapper, command) = running(&env, &[], "until test -e go; do sleep 0.01; done");
    let state = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
    };
    wrapper.signal(Signal::STOP);
    wait_until("the wrapper is stopped", || state(wrapper.pid()) == 'T');
    assert_ne!(state(command), 'T');
    assert_eq!(env.check("x"), 6);
    env.write("go", "");
    wait_until("the command has exited", || state(command) == 'Z');
    assert_eq!(env.check("x"), 6, "the wrapper gives it back");
    let mut waiting = env.start_with_output(["run", "-w", "1h", "x", "--", "echo", "mine"]);
    wrapper.signal(Signal::CONT);
    assert_eq!(wrapper.finish(), 0);
    let (code, out, _) = waiting.finish_with_output();
    assert_eq!((code, out.as_str()), (0, "mine\n"));
}

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

/// A shell prints the states of its siblings and of itself. ps(1) may be missing.
const STATES_OF_SIBLINGS: &str =
    "grep -h ^State: $(grep -ls \"^PPid:.$PPID\\$\" /proc/[0-9]*/status)";

#[test]
#[cfg(target_os = "linux")]
fn orphans_of_the_command_are_reaped_while_it_runs() {
    let env = TestEnv::new();
    let script = format!("for i in 1 2 3 4 5; do (true & ); done; sleep 0.3; {STATES_OF_SIBLINGS}");
    let out = env
        .onehold(["run", "x", "--", "sh", "-c", &script])
        .output()
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(text.contains("State:\t"), "{text}");
    assert!(!text.contains("State:\tZ"), "{text}");
}

#[test]
fn interrupted_wait_leaves_one_object_and_no_ticket() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let env = TestEnv::new();
        env.onehold(["acquire", "x", "--ttl", "1h"])
            .assert()
            .success();
        // What the caller ignores stays ignored, and the rest is reported all the same.
        for prelude in ["", "trap '' QUIT; "] {
            let script = format!("{prelude}exec onehold run --json -w 1h x -- true");
            let mut command = env.command("env");
            command.args(["--default-signal", "sh", "-c", &script]);
            let mut waiting = Running::start_with_output(command);
            wait_until("it waits and catches signals", || {
                let status = format!("/proc/{}/status", waiting.pid());
                let text = fs::read_to_string(status).unwrap_or_default();
                let caught = text
                    .lines()
                    .find_map(|line| line.strip_prefix("SigCgt:\t"))
                    .and_then(|mask| u64::from_str_radix(mask, 16).ok());
                caught.is_some_and(|mask| mask & (1 << 14) != 0)
                    && env.lock("x")["waiters"].as_array().map(Vec::len) == Some(1)
            });
            waiting.signal(signal);
            let (ended, out, err) = waiting.finish_with_output();
            let died = (-signal.as_raw(), "");
            assert_eq!((ended, out.as_str()), died, "it dies of the signal");
            let object = json_object(err.as_bytes());
            assert_eq!(object["status"], "interrupted", "{err}");
            assert_eq!(object["error"]["code"], "INTERRUPTED");
            assert_eq!(env.lock("x")["waiters"].as_array().map(Vec::len), Some(0));
        }
    }
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

#[test]
fn ctrl_c_reaches_command_once_and_ends_calling_script() {
    let env = TestEnv::new();
    let (caught, ready) = (env.path("caught"), env.path("ready"));
    // The command counts the signal and then ends by it, as most commands do.
    let inner = env.write(
        "inner.sh",
        format!(
            "trap 'echo caught >> {}; trap - INT; kill -INT $$' INT\necho $$ > {}\nwhile :; do sleep 0.05; done\n",
            caught.display(),
            ready.display()
        ),
    );
    let outer = env.write(
        "outer.sh",
        format!("onehold run x -- sh {}\necho went on\n", inner.display()),
    );
    let mut command = env.command("script");
    command
        .args(["-qec", &format!("bash {}", outer.display()), "/dev/null"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    number_in(&ready);
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"\x03").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(fs::read_to_string(&caught).unwrap(), "caught\n");
    let seen = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!seen.contains("went on"), "{seen}");
    assert!(
        seen.contains("^C"),
        "the terminal echoes what was typed: {seen}"
    );
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(env.left_in_store(), [""; 0]);
}

#[test]
#[ignore = "needs python3: apt install python3"]
fn ignored_sigchld_does_not_hide_exit_code() {
    let env = TestEnv::new();
    let script = "trap '' CHLD; exec onehold run x -- sh -c 'exit 7'";
    // dash does not pass an ignored CHLD on, python does.
    let python = "import os, signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); \
                  os.execvp('onehold', ['onehold', 'run', 'x', '--', 'sh', '-c', 'exit 7'])";
    env.session(script).assert().code(7);
    env.session(&format!("exec python3 -c \"{python}\""))
        .assert()
        .code(7);
}

/// What the process that runs this ignores, as /proc shows it.
const SHOW_IGNORED: &str = "grep SigIgn /proc/self/status";

#[test]
fn signals_that_the_caller_ignores_stay_ignored_in_the_command_whatever_way_it_is_started() {
    const ALL: &str = "INT HUP TERM PIPE QUIT";
    const OPTIONS: [&str; 6] = [
        "",
        "--exec",
        "--close",
        "--json",
        "--ttl 1h",
        "--time-limit 1h",
    ];
    let (few, each) = (&OPTIONS[..2], &OPTIONS[..]);
    for (signals, options) in [
        (ALL, each),
        ("INT", few),
        ("HUP", few),
        ("TERM", few),
        ("PIPE", few),
    ] {
        let env = TestEnv::new();
        let ignoring = |line: &str| {
            let mut command = env.command("sh");
            command.args(["-c", &format!("trap '' {signals}; exec {line}")]);
            command.stdout(std::process::Stdio::piped());
            command.stderr(std::process::Stdio::piped());
            command
        };
        let direct = ignoring(SHOW_IGNORED).output().unwrap().stdout;
        assert!(direct.starts_with(b"SigIgn:"));
        for options in options {
            let line = format!("onehold run {options} x -- {SHOW_IGNORED}");
            let at_once = ignoring(&line).output().unwrap();
            assert_eq!(at_once.stdout, direct, "{signals}: {line}: {at_once:?}");

            let (mut holder, _) = running(&env, &[], "until test -e go; do sleep 0.01; done");
            let line = format!("onehold run -w 1h {options} x -- {SHOW_IGNORED}");
            let waiter = ignoring(&line).spawn().unwrap();
            let threads = format!("/proc/{}/task", waiter.id());
            // The one that watches for signals, which comes after a while.
            wait_until("the waiter can be interrupted", || {
                fs::read_dir(&threads).is_ok_and(|threads| threads.count() > 1)
            });
            env.write("go", "");
            let ended = waiter.wait_with_output().unwrap();
            assert_eq!(ended.stdout, direct, "{signals}: {line}: {ended:?}");
            assert_eq!(holder.finish(), 0);
            fs::remove_file(env.path("go")).unwrap();
        }
    }
}

#[test]
fn run_under_nohup_survives_hup() {
    let env = TestEnv::new();
    let go = env.path("go");
    let ready = env.path("ready");
    let script = format!(
        "trap '' HUP; exec onehold run x -- sh -c 'echo $$ > {}; until test -e {}; do sleep 0.01; done; exit 7'",
        ready.display(),
        go.display()
    );
    let mut running = Running::start(env.session(&script));
    let command = number_in(&ready);
    let wrapper = env.lock("x")["wrapper_pid"].as_u64().unwrap();
    send(u32::try_from(wrapper).unwrap(), Signal::HUP);
    send(command, Signal::HUP);
    fs::write(&go, "").unwrap();
    assert_eq!(running.finish(), 7);
}

#[test]
fn broken_hold_ends_command_with_8() {
    let env = TestEnv::new();
    let (mut wrapper, _) = running(&env, &[], "exec sleep 1000");
    env.onehold(["break", "x", "--yes"])
        .assert()
        .success()
        .stderr(contains("onehold: broke the hold on `x` of process"));
    let (code, _, err) = wrapper.finish_with_output();
    assert_eq!(code, 8);
    assert!(
        is_match(
            "^onehold: lock `x` was broken while the command was running; sent TERM, KILL in 10s\n$"
        )
        .unwrap()
        .eval(&err),
        "{err}"
    );
}

#[test]
fn broken_hold_is_only_reported_with_on_lost_warn() {
    let env = TestEnv::new();
    let go = env.path("go");
    let then = format!(
        "until test -e {}; do sleep 0.01; done; exit 17",
        go.display()
    );
    let (mut wrapper, command) = running(&env, &["--on-lost", "warn"], &then);
    fs::remove_file(env.store().join("x.lock")).unwrap();
    let number = env
        .onehold(["acquire", "x", "--pid", &command.to_string()])
        .output()
        .unwrap();
    assert!(number.status.success());
    assert_eq!(
        wrapper.next_line(),
        "onehold: lost lock `x` while the command was running; the command keeps running\n"
    );
    let now = wrapper.next_line();
    assert!(
        now.starts_with(&format!("  now: `x` is held by process {command} ")),
        "{now}"
    );
    fs::write(&go, "").unwrap();
    assert_eq!(wrapper.finish(), 17);
    assert_eq!(
        env.left_in_store(),
        ["x.lock"],
        "the successor's record stays"
    );
}

#[test]
fn wrapper_that_lost_its_lock_sleeps_until_its_command_exits() {
    let env = TestEnv::new();
    // In ticks of 10 ms, in user mode and in the kernel.
    let then = "until test -e go; do sleep 0.01; done; sleep 1; cut -d' ' -f14,15 /proc/$PPID/stat > ticks";
    // A renewal is due every 10 ms.
    let options = ["--on-lost", "warn", "--ttl", "30ms"];
    let (mut wrapper, _) = running(&env, &options, then);
    fs::remove_file(env.store().join("x.lock")).unwrap();
    assert!(wrapper.next_line().contains("lost lock `x`"));
    env.write("go", "");
    wrapper.next_line();
    assert_eq!(wrapper.finish(), 0);
    let ticks = fs::read_to_string(env.path("ticks")).unwrap();
    let used: u64 = ticks
        .split_whitespace()
        .map(|n| n.parse::<u64>().unwrap())
        .sum();
    assert!(used < 20, "{used} ticks");
}

#[test]
fn loss_just_before_command_exit_is_reported() {
    let env = TestEnv::new();
    env.onehold(["run", "x", "--", "sh", "-c", "rm $ONEHOLD_FILE"])
        .assert()
        .code(8)
        .stderr("onehold: lost lock `x` while the command was running\n");
}

#[test]
fn hold_in_moved_store_is_lost_and_removed() {
    let env = TestEnv::new();
    let moved = env.path("moved");
    let (mut wrapper, _) = running(&env, &[], "exec sleep 1000");
    fs::rename(env.store(), &moved).unwrap();
    // Another holder in the new store.
    env.onehold(["run", "x", "--", "true"]).assert().success();
    assert_eq!(wrapper.finish(), 8);
    assert!(!moved.join("x.lock").exists());
    assert!(moved.join(".onehold").exists());
    let script = format!("mv {} {}.2", env.store().display(), moved.display());
    env.onehold(["run", "x", "--", "sh", "-c", &script])
        .assert()
        .code(8);
}

#[test]
fn hold_in_removed_store_is_lost() {
    let env = TestEnv::new();
    let script = format!("rm -r {}", env.store().display());
    env.onehold(["run", "x", "--", "sh", "-c", &script])
        .assert()
        .code(8);
    assert!(!env.store().exists(), "nothing is created again");
}

#[test]
fn run_with_ttl_renews_heartbeat() {
    let env = TestEnv::new();
    let (mut wrapper, _) = running(&env, &["--ttl", "300ms"], "exec sleep 1000");
    let first = env.lock("x")["renewed_at"].clone();
    wait_until("the heartbeat is renewed", || {
        env.lock("x")["renewed_at"] != first
    });
    assert_eq!(env.check("x"), 6);
    wrapper.signal(Signal::TERM);
    assert_eq!(wrapper.finish(), 143);
}

#[test]
fn command_inherits_only_lock_descriptor() {
    let env = TestEnv::new();
    let script = "cd /proc/self/fd && for fd in *; do test -e $fd && echo $fd; done";
    let descriptors = |command: &mut Command| -> Vec<u32> {
        let out = command.output().unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        text.lines().map(|fd| fd.parse().unwrap()).collect()
    };
    let with_onehold = |options: &[&str]| {
        let mut words = vec!["run"];
        words.extend(options);
        words.extend(["x", "--", "sh", "-c", script]);
        descriptors(&mut env.onehold(words))
    };
    let mut plain = env.command("sh");
    let before = descriptors(plain.args(["-c", script]));
    for options in [&[][..], &["--exec"], &["-w", "1s"], &["--on-lost", "warn"]] {
        let mut found = with_onehold(options);
        found.retain(|fd| !before.contains(fd));
        assert!(
            matches!(found.as_slice(), [lock] if *lock >= 100),
            "{options:?}: {found:?} beside {before:?}"
        );
    }
    let mut closed = with_onehold(&["--close"]);
    closed.sort_unstable();
    let mut before = before;
    before.sort_unstable();
    assert_eq!(closed, before);
}

#[test]
fn wrapper_reaps_children_and_has_one_thread() {
    let env = TestEnv::new();
    let script = format!("grep ^Threads /proc/$PPID/status; {STATES_OF_SIBLINGS}");
    let out = env
        .onehold(["run", "x", "--", "sh", "-c", &script])
        .output()
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(text.starts_with("Threads:\t1\n"), "{text}");
    assert!(text.contains("State:\t"), "{text}");
    assert!(!text.contains("State:\tZ"), "{text}");
}

#[test]
fn canceled_wait_restores_terminal() {
    let env = TestEnv::new();
    env.onehold(["acquire", "x", "--ttl", "1h"])
        .assert()
        .success();
    let script = format!(
        "stty -a > before; {0} run -w 200ms x -- true; timeout -s INT 0.2 {0} run -w 1h x -- true; stty -a > after",
        crate::harness::program().display()
    );
    let status = env
        .command("script")
        .args(["-qec", &script, "/dev/null"])
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .output()
        .unwrap();
    let read = |name: &str| std::fs::read_to_string(env.path(name)).unwrap();
    assert_eq!(read("before"), read("after"), "{status:?}");
    let seen = String::from_utf8_lossy(&status.stdout);
    // The cursor is shown as often as it is hidden.
    assert_eq!(
        seen.matches("\x1b[?25l").count(),
        seen.matches("\x1b[?25h").count()
    );
}
