//! Signals that wrapper and command get.

use std::fs;

use assert_cmd::prelude::OutputAssertExt;

use super::{running, running_with_trap};
use crate::harness::{Running, Signal, TestEnv, json_object, number_in, send, wait_until};

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
fn ctrl_c_reaches_command_once_and_ends_calling_script() {
    // The command counts the signal and then ends by it, as most commands do.
    let (seen, code) = typed_ctrl_c("trap - INT; kill -INT $$");
    assert!(!seen.contains("went on"), "{seen}");
    assert_eq!(code, Some(130));
}

#[test]
fn command_that_exits_with_130_after_ctrl_c_was_not_killed_and_its_script_goes_on() {
    // With which code is bash's own affair.
    let (seen, _) = typed_ctrl_c("exit 130");
    assert!(seen.contains("went on"), "{seen}");
}

/// What a terminal shows of a script with a `run` whose command does `then` when Ctrl-C is typed, and its exit code.
fn typed_ctrl_c(then: &str) -> (String, Option<i32>) {
    let env = TestEnv::new();
    let (caught, ready) = (env.path("caught"), env.path("ready"));
    let inner = env.write(
        "inner.sh",
        format!(
            "trap 'echo caught >> {}; {then}' INT\necho $$ > {}\nwhile :; do sleep 0.05; done\n",
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
    assert!(
        seen.contains("^C"),
        "the terminal echoes what was typed: {seen}"
    );
    assert_eq!(env.left_in_store(), [""; 0]);
    (seen, output.status.code())
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
