use std::fs;
#[cfg(unix)]
use std::process::Output;
#[cfg(unix)]
use std::time::{Duration, Instant};

use assert_cmd::prelude::OutputAssertExt;
use predicates::prelude::*;
use predicates::str::{contains, is_empty, is_match};

#[cfg(unix)]
use crate::harness::write_program;
#[cfg(unix)]
use crate::harness::{Running, Signal, exit_code, output, stderr};
use crate::harness::{TestEnv, json_object, number_in, wait_until};

#[test]
fn command_gets_arguments_unchanged_and_onehold_prints_nothing() {
    let env = TestEnv::new();
    let args = [
        "run", "x", "--", "printf", "<%s>", "a b", "$HOME", "*", "", "\n", "--json",
    ];
    env.onehold(args)
        .assert()
        .success()
        .stdout("<a b><$HOME><*><><\n><--json>")
        .stderr(is_empty());
    assert_eq!(env.left_in_store(), [""; 0]);
}

#[cfg(unix)]
#[test]
fn exit_code_of_command_is_returned() {
    let env = TestEnv::new();
    for code in [0, 1, 6, 7, 8, 125, 255] {
        let script = format!("exit {code}");
        env.onehold(["run", "x", "--", "sh", "-c", &script])
            .assert()
            .code(code);
    }
}

#[cfg(unix)]
#[test]
fn command_killed_by_signal_returns_128_plus_number() {
    let env = TestEnv::new();
    for (signal, code) in [("KILL", 137), ("TERM", 143), ("SEGV", 139), ("INT", 130)] {
        let script = format!("kill -{signal} $$");
        env.onehold(["run", "x", "--", "sh", "-c", &script])
            .assert()
            .code(code);
    }
}

#[test]
fn command_that_cannot_run_is_126_or_127_and_holds_nothing() {
    let env = TestEnv::new();
    env.onehold(["run", "x", "--", "no-such-command"])
        .assert()
        .code(127)
        .stderr("onehold: command not found: `no-such-command`\n");
    let file = env.write("data", "no program");
    env.onehold(["run", "x", "--", file.to_str().unwrap()])
        .assert()
        .code(126)
        .stderr(contains(if cfg!(windows) {
            "cannot run"
        } else {
            "permission denied"
        }));
    env.onehold(["run", "--", "no-such-command"])
        .assert()
        .code(127);
    #[cfg(unix)]
    env.onehold(["run", "--exec", "x", "--", "no-such-command"])
        .assert()
        .code(127);
    assert_eq!(env.left_in_store(), [""; 0]);
}

#[cfg(unix)]
#[test]
fn second_run_is_refused_with_holder_and_hint() {
    let env = TestEnv::new();
    let ready = env.path("ready");
    let script = format!("echo $$ > {}; sleep 1000", ready.display());
    let _first = env.start([
        "run",
        "-m",
        "nightly full",
        "backup",
        "--",
        "sh",
        "-c",
        &script,
    ]);
    let pid = number_in(&ready);
    let message = format!(
        "^onehold: `backup` is held by process {pid} \\(sh\\) on [^ ]+ since \\d\\d:\\d\\d:\\d\\d \
         \\(\\d+s ago\\): \"nightly full\"\n  alive: holds the kernel lock; runs in [^ ]+\n  \
         store: {0}\n  to wait, add --wait; to end its command, run `onehold --dir {0} break backup`\n$",
        env.store().display()
    );
    env.onehold(["run", "backup", "--", "echo", "never"])
        .assert()
        .code(6)
        .stdout(is_empty())
        .stderr(is_match(message).unwrap());
    env.onehold(["run", "-E", "0", "-q", "backup", "--", "echo", "never"])
        .assert()
        .code(0)
        .stdout(is_empty())
        .stderr(is_empty());
    env.onehold(["run", "-E", "99", "-w", "50ms", "backup", "--", "true"])
        .assert()
        .code(99);
    env.onehold(["run", "-w", "50ms", "backup", "--", "true"])
        .assert()
        .code(7)
        .stderr(contains("onehold: timed out after "));
}

#[cfg(unix)]
#[test]
fn command_sees_hold_in_environment_and_is_recorded() {
    let env = TestEnv::new();
    let script = "echo $$; echo $ONEHOLD_NAME; echo $ONEHOLD_HOLD; echo $ONEHOLD_HOLDS; \
                  cat \"$ONEHOLD_FILE\"";
    let output = env
        .onehold(["run", "a/b c", "--", "sh", "-c", script])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (head, record) = text.split_at(text.find('{').unwrap());
    let head: Vec<&str> = head.lines().collect();
    assert_eq!(head[1], "a/b c");
    assert_eq!(head[3], format!("{}:a%2Fb%20c", head[2]));
    let object: serde_json::Value = serde_json::from_str(record).unwrap();
    assert_eq!(object["hold"].to_string(), head[2]);
    assert_eq!(object["command"][0], "sh");
    assert_eq!(object["live"]["pid"].to_string(), head[0]);
    assert_ne!(object["taken_by"], object["live"]["pid"], "its wrapper");
}

#[cfg(unix)]
#[test]
fn nested_holds_are_all_in_environment() {
    let env = TestEnv::new();
    env.onehold([
        "run", "outer", "--", "onehold", "run", "inner", "--", "sh", "-c",
    ])
    .arg("echo $ONEHOLD_NAME $ONEHOLD_HOLDS")
    .assert()
    .success()
    .stdout(is_match("^inner \\d+:outer \\d+:inner\n$").unwrap());
}

#[cfg(unix)]
#[test]
fn command_inherits_lock_descriptor_above_100_unless_closed() {
    let env = TestEnv::new();
    let script = "for fd in /proc/self/fd/*; do readlink $fd; done | grep -c /store/; true";
    env.onehold(["run", "x", "--", "sh", "-c", script])
        .assert()
        .stdout("1\n");
    env.onehold(["run", "--close", "x", "--", "sh", "-c", script])
        .assert()
        .stdout("0\n");
    env.onehold(["run", "x", "--", "sh", "-c"])
        .arg("readlink /proc/self/fd/100 | grep -c /store/")
        .assert()
        .stdout("1\n");
}

#[cfg(unix)]
#[test]
fn exec_command_holds_lock_and_leaves_finished_record() {
    let env = TestEnv::new();
    let ready = env.path("ready");
    let go = env.path("go");
    let script = format!(
        "echo $$ > {}; until test -e {}; do sleep 0.01; done",
        ready.display(),
        go.display()
    );
    let mut running = env.start(["run", "--exec", "x", "--", "sh", "-c", &script]);
    assert_eq!(
        number_in(&ready),
        running.pid(),
        "onehold has become the command"
    );
    assert_eq!(env.check("x"), 6);
    assert_eq!(env.lock("x")["pid"], running.pid());
    fs::write(&go, "").unwrap();
    running.finish();
    assert_eq!(env.left_in_store(), ["x.lock"]);
    assert_eq!(env.check("x"), 0);
    assert_eq!(env.lock("x")["reason"], "finished");
    env.onehold(["run", "--exec", "x", "--", "true"])
        .assert()
        .success()
        .stderr(is_empty());
    env.onehold(["cleanup"])
        .assert()
        .success()
        .stdout("removed `x`: left by a finished `run --exec`\n");
    assert_eq!(env.left_in_store(), [""; 0]);
    for option in ["--ttl=1m", "--on-lost=warn", "--close"] {
        env.onehold(["run", "--exec", option, "x", "--", "true"])
            .assert()
            .code(2);
    }
}

#[cfg(unix)]
#[test]
fn derived_name_depends_on_command_and_not_on_directory() {
    let env = TestEnv::new();
    let other = env.path("elsewhere");
    fs::create_dir(&other).unwrap();
    let name = |cwd: &std::path::Path, args: &[&str]| {
        let mut command = env.onehold(["run", "--", "sh", "-c", "echo $ONEHOLD_NAME"]);
        command.args(args).current_dir(cwd);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let first = name(env.root.path(), &[]);
    assert!(
        is_match("^sh-[0-9a-f]{16}\n$").unwrap().eval(&first),
        "{first}"
    );
    assert_eq!(first, name(&other, &[]));
    assert_ne!(first, name(&other, &["argument"]));
    let ready = env.path("ready");
    let script = format!("echo $$ > {}; sleep 1000", ready.display());
    let args = ["run", "--", "sh", "-c", &script];
    let _first = env.start(args);
    number_in(&ready);
    env.onehold(args)
        .assert()
        .code(6)
        .stderr(contains("to choose one: `onehold run NAME -- sh …`\n"));
}

#[cfg(unix)]
#[test]
fn run_under_own_hold_is_refused_unless_reentrant() {
    let env = TestEnv::new();
    let inner = |options: &str| format!("onehold run {options} x -- echo inside; echo $?");
    env.onehold([
        "run",
        "--owner",
        "me",
        "x",
        "--",
        "sh",
        "-c",
        &inner("--owner me"),
    ])
    .assert()
    .stdout("6\n");
    env.onehold(["run", "x", "--", "sh", "-c", &inner("--reentrant")])
        .assert()
        .stdout("inside\n0\n");
    // Not under this hold: an ordinary run.
    env.onehold([
        "run",
        "--reentrant",
        "x",
        "--",
        "sh",
        "-c",
        "echo $ONEHOLD_NAME",
    ])
    .assert()
    .stdout("x\n");
    env.onehold(["run", "y", "--", "sh", "-c", &inner("--reentrant")])
        .assert()
        .stdout("inside\n0\n");
    let blocked =
        "onehold acquire --pid $PPID z >/dev/null 2>&1; onehold run --reentrant z -- echo inside";
    env.onehold(["run", "y", "--", "sh", "-c", blocked])
        .assert()
        .code(6);
}

#[cfg(unix)]
#[test]
fn run_object_is_last_line_on_stderr() {
    let env = TestEnv::new();
    let output = env
        .onehold(["run", "--json", "x", "--", "sh", "-c", "echo out; exit 3"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(output.stdout, b"out\n");
    assert_eq!(
        output.stderr[0], b'\n',
        "the command may have left a line unfinished"
    );
    let object = json_object(&output.stderr[1..]);
    assert_eq!(object["status"], "released");
    assert_eq!(object["success"], true);
    assert_eq!(object["command_exit_code"], 3);
    let ready = env.path("ready");
    let script = format!("echo $$ > {}; sleep 1000", ready.display());
    let _running = env.start(["run", "x", "--", "sh", "-c", &script]);
    number_in(&ready);
    let output = env
        .onehold(["run", "--json", "x", "--", "true"])
        .output()
        .unwrap();
    assert_eq!(
        (output.status.code(), &output.stdout[..]),
        (Some(6), &b""[..])
    );
    let object = json_object(&output.stderr);
    assert_eq!(object["error"]["code"], "LOCKED");
    assert_eq!(object["error"]["details"]["pid"], number_in(&ready));
    assert_eq!(object["lock"]["state"], "held");
}

#[cfg(unix)]
#[test]
fn waiting_run_acquires_after_first_run_ends() {
    let env = TestEnv::new();
    let (ready, go) = (env.path("ready"), env.path("go"));
    let script = format!(
        "echo $$ > {}; until test -e {}; do sleep 0.01; done",
        ready.display(),
        go.display()
    );
    let mut first = env.start(["run", "x", "--", "sh", "-c", &script]);
    number_in(&ready);
    let mut second = env.start_with_output(["run", "-w", "1h", "x", "--", "echo", "mine"]);
    wait_until("the second waits in the kernel", || {
        fs::read_to_string(format!("/proc/{}/wchan", second.pid()))
            .is_ok_and(|wchan| wchan.contains("lock"))
            || fs::read_to_string(format!("/proc/{}/syscall", second.pid()))
                .is_ok_and(|call| call.starts_with("73 "))
    });
    assert!(!second.has_ended());
    fs::write(&go, "").unwrap();
    assert_eq!(first.finish(), 0);
    let (code, out, _) = second.finish_with_output();
    assert_eq!((code, out.as_str()), (0, "mine\n"));
}

#[test]
fn wait_is_shown_after_half_a_second() {
    let env = TestEnv::new();
    env.onehold(["acquire", "x", "--ttl", "1h"])
        .assert()
        .success();
    env.onehold(["run", "-v", "-w", "700ms", "x", "--", "true"])
        .assert()
        .code(7)
        .stderr(is_match("^onehold: waiting: `x` is held by a lease.*\nonehold: timed out after [0-9.]+s: `x` is held by").unwrap());
    env.onehold(["run", "-v", "-w", "300ms", "x", "--", "true"])
        .assert()
        .code(7)
        .stderr(contains("onehold: waiting: ").not());
}

#[cfg(unix)]
#[test]
fn zombie_is_taken_over_and_reported_unless_forbidden() {
    let env = TestEnv::new();
    env.create_zombie("x");
    env.onehold(["run", "--on-zombie", "fail", "x", "--", "true"])
        .assert()
        .code(5)
        .stderr(contains("has exited").and(contains("--on-zombie take")));
    env.session("onehold run --on-zombie ask x -- true")
        .assert()
        .code(5)
        .stderr(contains(
            "cannot ask for confirmation: no terminal (use --yes)",
        ));
    env.onehold(["run", "--on-zombie", "ask", "--yes", "x", "--", "true"])
        .assert()
        .success();
    env.create_zombie("x");
    env.onehold(["run", "x", "--", "echo", "mine"])
        .assert()
        .success()
        .stdout("mine\n")
        .stderr(
            is_match("^onehold: took over zombie `x`: process \\d+ \\(sleep\\) .*, has exited\n$")
                .unwrap(),
        );
    let journal = env.journal();
    assert_eq!(journal.len(), 2);
    assert_eq!(journal[0]["event"], "takeover");
    assert_eq!(journal[0]["reason"], "its holder has exited");
}

#[test]
fn zombie_during_wait_is_5_and_not_timeout() {
    let env = TestEnv::new();
    let mut holder = crate::harness::Running::sleeper();
    env.onehold(["acquire", "x", "--pid", &holder.pid().to_string()])
        .assert()
        .success();
    let mut waiting = env.start(["run", "-w", "1h", "--on-zombie", "fail", "x", "--", "true"]);
    env.wait_for_waiter("x");
    holder.kill();
    assert_eq!(waiting.finish(), 5);
}

#[cfg(target_os = "linux")]
#[test]
fn advice_after_a_wait_is_to_wait_longer() {
    let env = TestEnv::new();
    let advised = |words: &[&str], option: &str, advice: &str| {
        let words = [words, &["run"], &option.split(' ').collect::<Vec<_>>()].concat();
        env.onehold(words)
            .args(["--", "true"])
            .assert()
            .stderr(contains(format!("  {advice}")));
    };
    let flock = ["--format", "flock"];
    let _holder = env.start(["--format", "flock", "run", "./f", "--", "sleep", "1000"]);
    crate::harness::wait_until("the file is locked", || {
        let check = [&flock[..], &["check", "-q", "./f"]].concat();
        env.onehold(check).output().unwrap().status.code() == Some(6)
    });
    advised(&flock, "-n ./f", "to wait, add --wait; ");
    advised(&flock, "-w 0.2 ./f", "to wait longer, raise --wait; ");
    // Its work does not end by TERM.
    let script = "trap '' TERM; echo >ready; until test -e go; do sleep 0.1; done";
    let mut ending = env.start(["run", "--kill-after", "1m", "x", "--", "sh", "-c", script]);
    crate::harness::wait_until("TERM is ignored", || env.path("ready").exists());
    ending.signal(Signal::TERM);
    crate::harness::wait_until("its work is being ended", || {
        env.lock("x")["reason"] == "ending"
    });
    let free = "the lock is free once that work has ended; ";
    advised(&[], "-n x", &format!("{free}to wait for it, add --wait\n"));
    advised(
        &[],
        "-w 0.2 x",
        &format!("{free}to wait longer, raise --wait\n"),
    );
    env.write("go", "");
    ending.finish();
}

#[cfg(unix)]
#[test]
fn waiting_for_own_enclosing_hold_is_refused_at_once() {
    let env = TestEnv::new();
    env.onehold([
        "run", "x", "--", "onehold", "run", "-w", "forever", "x", "--", "true",
    ])
    .assert()
    .code(6)
    .stderr(
        contains("  this command already runs under `x`: use `onehold --dir ")
            .and(contains(" run --reentrant x -- …`\n"))
            .and(contains("--owner").not()),
    );
    // The same owner helps only between a parent and a child.
    let script = "onehold run backend/task -- true; \
                  onehold run -q --owner ci backend/task -- true; echo $?";
    env.onehold(["run", "--owner", "ci", "backend", "--", "sh", "-c", script])
        .assert()
        .success()
        .stdout("0\n")
        .stderr(contains(
            "  this command already runs under `backend`: give both the same --owner\n",
        ));
}

#[cfg(unix)]
#[test]
fn signal_before_command_start_ends_onehold() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        let env = TestEnv::new();
        fs::create_dir(env.store()).unwrap();
        let (ready, go) = (env.path("ready"), env.path("go"));
        let mut blocker = crate::harness::Running::start({
            let mut command = env.command("flock");
            command.args([env.store().to_str().unwrap(), "sh", "-c"]);
            command.arg(format!(
                "echo $$ > {}; until test -e {}; do sleep 0.01; done",
                ready.display(),
                go.display()
            ));
            command
        });
        number_in(&ready);
        let mut running = env.start(["run", "x", "--", "touch", "ran"]);
        wait_until("it waits for the guard", || {
            fs::read_dir(format!("/proc/{}/fd", running.pid()))
                .into_iter()
                .flatten()
                .flatten()
                .any(|fd| fs::read_link(fd.path()).is_ok_and(|link| link == env.store()))
        });
        running.signal(signal);
        fs::write(&go, "").unwrap();
        assert_eq!(running.finish(), -signal.as_raw());
        assert!(!env.path("ran").exists(), "{signal:?}");
        assert_eq!(env.left_in_store(), [""; 0], "{signal:?}");
        blocker.finish();
    }
}

#[cfg(unix)]
#[test]
fn live_run_older_than_max_age_is_overdue_and_kept() {
    let env = TestEnv::new();
    let ready = env.path("ready");
    let script = format!("echo $$ > {}; sleep 1000", ready.display());
    let _running = env.start(["run", "--max-age", "100ms", "x", "--", "sh", "-c", &script]);
    number_in(&ready);
    wait_until("it is overdue", || env.check("x") == 5);
    assert_eq!(env.lock("x")["state"], "overdue");
    assert_eq!(env.lock("x")["takeable"], false);
    env.onehold(["run", "x", "--", "true"])
        .assert()
        .code(6)
        .stderr(contains(
            "overdue: older than its maximum age of 0.1s, but alive (holds the kernel lock)",
        ));
    env.onehold(["cleanup"])
        .assert()
        .success()
        .stdout(is_empty());
    assert_eq!(env.left_in_store(), ["x.lock"]);
}

#[cfg(unix)]
#[test]
fn command_is_found_as_by_a_shell() {
    let env = TestEnv::new();
    // PATH has a directory of that name, a file that cannot be executed, and then the program. The
    // program is a script without `#!`.
    std::fs::create_dir_all(env.path("one/tool")).unwrap();
    write_program(&env.path("two/tool"), "exit 1\n", 0o644);
    write_program(&env.path("three/tool"), "echo \"$0 $1 $#\"\n", 0o755);
    let path = |directories: &[&str]| {
        let paths: Vec<_> = directories.iter().map(|name| env.path(name)).collect();
        std::env::join_paths(paths).unwrap()
    };
    let mut run = env.onehold(["run", "x", "--", "tool", "an argument", ""]);
    run.env("PATH", path(&["none", "one", "two", "three"]));
    run.assert().success().stdout(format!(
        "{} an argument 2\n",
        env.path("three/tool").display()
    ));
    let mut run = env.onehold(["run", "x", "--", "tool"]);
    run.env("PATH", path(&["none", "one", "two"]));
    run.assert().code(126);
    let mut run = env.onehold(["run", "x", "--", "tool"]);
    run.env("PATH", path(&["none"]));
    run.assert().code(127);
    let mut run = env.onehold(["run", "x", "--", "true"]);
    run.env_remove("PATH");
    run.assert().success();
    let mut run = env.onehold(["run", "x", "--", "true"]);
    run.env("PATH", format!("{}:/usr/bin:/bin", "x".repeat(5000)));
    run.assert().success();
    env.onehold(["run", "x", "--", ""]).assert().code(127);
    assert_eq!(
        env.check("x"),
        0,
        "nothing is left of those that could not be started"
    );
}

#[cfg(unix)]
#[test]
fn command_starts_with_signals_of_caller_and_default_sigpipe() {
    let env = TestEnv::new();
    // Blocked, ignored and caught, in hexadecimal (proc(5) status).
    let script = "grep -E '^Sig(Blk|Ign)' /proc/self/status";
    let plain = env.session(script).output().unwrap().stdout;
    let held = env
        .session(&format!("onehold run x -- {script}"))
        .output()
        .unwrap()
        .stdout;
    let waited = env
        .session(&format!("onehold run -w 1s x -- {script}"))
        .output()
        .unwrap()
        .stdout;
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    assert_eq!(text(&held), text(&plain));
    assert_eq!(text(&waited), text(&plain));
}

#[cfg(unix)]
#[test]
#[ignore = "needs root for a pid namespace"]
fn command_that_closed_its_descriptors_is_held_in_another_pid_namespace() {
    let env = TestEnv::new();
    let script = "import os, time
os.closerange(3, 1024)
with open('began', 'w') as began:
    print(os.getpid(), file=began)
while os.path.exists('began') and not os.path.exists('end'):
    time.sleep(0.005)";
    let mut wrapper = env.start(["run", "x", "--", "python3", "-c", script]);
    env.pid_in("began");
    // The wrapper checks the descriptors of its command once a second.
    let record = || fs::read_to_string(env.path("store/x.lock")).unwrap();
    let started = Instant::now();
    wait_until("the wrapper has noticed, or should have", || {
        record().contains("let_go") || started.elapsed() > Duration::from_secs(5)
    });
    wrapper.kill();
    let mut elsewhere = env.command("unshare");
    elsewhere
        .args(["--pid", "--fork", "--mount-proc"])
        .args(["onehold", "run", "x", "--", "true"]);
    let output = output(&mut elsewhere);
    assert_eq!(exit_code(output.status), 6, "{}", stderr(&output));
    env.end();
}

/// `onehold run OPTIONS -- env -i … onehold CALL`, and what `CALL` has said.
#[cfg(unix)]
fn through_a_cleared_environment(env: &TestEnv, options: &str, call: &str) -> Output {
    let script = format!(
        "timeout -s KILL 30 onehold run {options} -- env -i PATH=\"$PATH\" TZ=UTC \\\n\
         onehold --dir \"$ONEHOLD_DIR\" {call}"
    );
    env.session(&script).output().unwrap()
}

#[cfg(unix)]
#[test]
fn call_below_a_run_that_is_in_its_way_is_refused_at_once_whatever_its_environment_says() {
    let refused = [
        ("b", "run -w 1h b -- true"),
        ("b", "acquire -w 1h b --ttl 1h"),
        ("b", "run -w 1h b/task -- true"),
        ("b/task", "run -w 1h b -- true"),
        ("a b", "run -w 1h b c -- true"),
        ("b --slots 1", "run -w 1h b --slots 1 -- true"),
        ("b -s", "run -w 1h b -- true"),
        ("--exec b", "run -w 1h b -- true"),
        ("--close b", "run -w 1h b -- true"),
    ];
    for (options, call) in refused {
        let env = TestEnv::new();
        let output = through_a_cleared_environment(&env, options, call);
        let said = stderr(&output);
        assert_eq!(exit_code(output.status), 6, "{options}: {call}: {said}");
        assert!(
            said.contains("this command already runs under `b"),
            "{options}: {call}: {said}"
        );
        assert!(
            !said.contains("timed out") && !said.contains("break"),
            "{options}: {call}: {said}"
        );
    }
    // Without a wait it is refused anyway, and must not be told to wait.
    let env = TestEnv::new();
    let said = stderr(&through_a_cleared_environment(&env, "b", "run b -- true"));
    assert!(said.contains("use `onehold --dir "), "{said}");
    assert!(said.contains(" run --reentrant b -- …`"), "{said}");
    let output = through_a_cleared_environment(&env, "b", "run --reentrant b -- echo in");
    assert_eq!(
        (exit_code(output.status), &*output.stdout),
        (0, &b"in\n"[..])
    );
    // An orphan that the wrapper has adopted is below it, too.
    let orphan = "run b -- sh -c 'sh -c \"env -i PATH=$PATH onehold --dir $ONEHOLD_DIR run -w 1h b -- true; \\\n\
                  echo \\$? > part; mv part code\" & exec sh -c \"until test -e code; do sleep 0.01; done\"'";
    env.session(&format!("onehold {orphan}")).status().unwrap();
    assert_eq!(env.count_in("code"), 6);
}

#[cfg(unix)]
#[test]
fn call_below_one_of_two_holders_waits_for_the_other() {
    let env = TestEnv::new();
    let holder = env.hold(&["b", "--slots", "2"]);
    let script = "onehold run b --slots 2 -- env -i PATH=\"$PATH\" onehold --dir \"$ONEHOLD_DIR\" \\\n\
                  run -w 1h b --slots 2 -- echo in";
    let mut waiter = Running::start_with_output(env.session(script));
    env.wait_for_waiter("b");
    env.end();
    let (code, out, said) = waiter.finish_with_output();
    assert_eq!((code, out.as_str()), (0, "in\n"), "{said}");
    drop(holder);
}
