use std::fs;

use predicates::prelude::*;
use predicates::str::{contains, is_empty, is_match};

use crate::env::{Env, Running, eventually, number_in, sleeper};

#[test]
fn the_number_goes_to_stdout_and_whom_it_is_for_to_stderr() {
    let env = Env::new();
    let holder = Running::start(sleeper());
    let pid = holder.pid().to_string();
    env.onehold(["acquire", "x", "--pid", &pid])
        .assert()
        .success()
        .stdout(is_match("^\\d{16}\n$").unwrap())
        .stderr(format!("onehold: `x` is held for process {pid} (sleep)\n"));
    env.onehold(["acquire", "x", "--pid", &pid])
        .assert()
        .code(6)
        .stdout(is_empty())
        .stderr(
            contains(format!("`x` is held by process {pid} (sleep)"))
                .and(contains("alive: same process")),
        );
}

#[test]
fn numbers_only_grow_whatever_the_clock_and_the_file_before_say() {
    let env = Env::new();
    let number = |options: &[&str]| -> u64 {
        let mut command = env.onehold(["acquire", "x", "--ttl", "1h"]);
        let output = command.args(options).output().unwrap();
        String::from_utf8(output.stdout)
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    };
    let release = || env.onehold(["break", "x", "--yes"]).assert().success();
    let first = number(&[]);
    release();
    fs::write(
        env.store().join(".onehold/last"),
        (first + 1_000_000_000_000).to_le_bytes(),
    )
    .unwrap();
    let second = number(&[]);
    assert_eq!(second, first + 1_000_000_000_001);
    release();
    fs::remove_file(env.store().join(".onehold/last")).unwrap();
    let third = number(&[]);
    assert!(first < third && third < second, "the clock alone");
    let path = env.store().join("x.lock");
    let text = fs::read_to_string(&path).unwrap();
    let raised = text.replace(&third.to_string(), &second.to_string());
    fs::write(&path, raised).unwrap();
    assert_eq!(
        number(&["--force", "--yes"]),
        second + 1,
        "more than the record replaced"
    );
}

/// Runs a script that acquires `x` in some way of its own, and then looks at who holds it.
#[track_caller]
fn held_by_the_script(acquire: &str) {
    let env = Env::new();
    let (ready, go) = (env.path("ready"), env.path("go"));
    let script = env.write(
        "job.sh",
        format!(
            "{acquire}\necho $$ > {}\nuntil test -e {}; do sleep 0.01; done\n",
            ready.display(),
            go.display()
        ),
    );
    let running = env.start_shell(&format!("sh {}; true", script.display()));
    let script_pid = number_in(&ready);
    let lock = env.lock("x");
    assert_eq!(lock["state"], "held", "{acquire}: {lock}");
    // The script itself, or the shell that waits for it: both last.
    let holder = u32::try_from(lock["pid"].as_u64().unwrap()).unwrap();
    let parent: u32 = fs::read_to_string(format!("/proc/{script_pid}/stat"))
        .unwrap()
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    assert!([script_pid, parent].contains(&holder), "{acquire}: {lock}");
    fs::write(&go, "").unwrap();
    running.exit_code();
    eventually("the hold ends with the script", || env.check("x") == 5);
}

#[test]
fn a_hold_follows_the_script_and_not_what_vanishes_at_once() {
    held_by_the_script("onehold acquire x");
    held_by_the_script("T=$(onehold acquire x; true)");
    held_by_the_script("T=`onehold acquire x`");
    held_by_the_script("(onehold acquire x; true)");
    held_by_the_script("( ( onehold acquire x; true ) ; true )");
    held_by_the_script("onehold acquire x | cat");
    held_by_the_script("sleep 0.2 | onehold acquire x");
    held_by_the_script("sleep 0.2 | (onehold acquire x; true) | cat");
    held_by_the_script("sh -c 'onehold acquire x; true'");
    held_by_the_script("onehold acquire x & wait");
}

#[test]
fn in_a_makefile_the_hold_follows_make() {
    let env = Env::new();
    let seen = env.path("seen");
    env.write(
        "Makefile",
        format!(
            "all:\n\tonehold acquire x; true\n\tonehold check --json x > {0}; true\n\techo $$PPID > {0}.make\n",
            seen.display()
        ),
    );
    env.shell("make -s; true").assert().success();
    let object: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&seen).unwrap()).unwrap();
    assert_eq!(
        object["lock"]["state"], "held",
        "on the next line of the recipe"
    );
    eventually("the hold ends with make", || env.check("x") == 5);
}

#[test]
fn where_nothing_would_be_left_to_hold_it_it_is_refused() {
    let env = Env::new();
    let output = std::process::Command::new("setsid")
        .args([
            "-w",
            crate::env::program().to_str().unwrap(),
            "acquire",
            "x",
        ])
        .env("ONEHOLD_DIR", env.store())
        .output()
        .unwrap();
    // The session leader is the command itself.
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "onehold: nothing would be left to hold the lock\n  pass --pid for a process that should \
         hold it, or --ttl for a time\n"
    );
    assert_eq!(env.left_in_store(), [""; 0]);
}

#[test]
fn a_pid_must_be_that_of_a_process() {
    let env = Env::new();
    for pid in ["0", "-1", "2147483648", "x"] {
        env.onehold(["acquire", "x", &format!("--pid={pid}")])
            .assert()
            .code(2);
    }
    let mut gone = Running::start(sleeper());
    gone.kill();
    env.onehold(["acquire", "x", "--pid", &gone.pid().to_string()])
        .assert()
        .code(1)
        .stderr(format!("onehold: no process has the pid {}\n", gone.pid()));
    // A thread of this test that is not its main one.
    let (send, receive) = std::sync::mpsc::channel();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let link = fs::read_link("/proc/thread-self").unwrap();
        send.send(link.file_name().unwrap().to_str().unwrap().to_owned())
            .unwrap();
        let _ = stopped.recv();
    });
    let tid = receive.recv().unwrap();
    env.onehold(["acquire", "x", "--pid", &tid])
        .assert()
        .code(1)
        .stderr(contains("no process has the pid"));
    drop(stop);
    thread.join().unwrap();
    assert_eq!(env.left_in_store(), [""; 0]);
}

#[test]
fn a_killed_script_leaves_a_zombie_that_the_next_one_takes_at_once() {
    let env = Env::new();
    env.leave_dead("x");
    env.onehold(["acquire", "x", "--ttl", "1m"])
        .assert()
        .success()
        .stderr(
            is_match(
                "^onehold: `x` is held for 1m, until .*\nonehold: took over: `x` was held by process \\d+ \\(sleep\\)",
            )
            .unwrap(),
        );
}

#[test]
fn what_cannot_be_written_is_not_held() {
    let env = Env::new();
    env.shell("onehold acquire x --ttl 1h > /dev/full")
        .assert()
        .code(1)
        .stderr(contains("cannot write the number of the hold to stdout: no space left on device; `x` is not held"));
    // The reader is gone before anything is written.
    env.shell("{ sleep 0.1; onehold acquire x --ttl 1h; echo $? > code; } | true; sleep 0.5; until test -s code; do sleep 0.01; done")
        .assert()
        .success();
    assert_eq!(fs::read_to_string(env.path("code")).unwrap(), "1\n");
    assert_eq!(env.left_in_store(), [""; 0]);
}

#[test]
fn a_closed_stdout_has_nobody_to_tell_the_number() {
    let env = Env::new();
    env.shell("onehold acquire x --ttl 1h >&-")
        .assert()
        .code(1)
        .stderr("onehold: cannot write the number of the hold to stdout: it is closed; `x` is not held\n");
    assert_eq!(env.left_in_store(), [""; 0]);
    env.shell("onehold acquire x --ttl 1h >/dev/null")
        .assert()
        .success();
    assert_eq!(env.check("x"), 6);
}

#[test]
fn the_object_tells_of_the_hold_as_it_will_be_found() {
    let env = Env::new();
    let holder = Running::start(sleeper());
    let pid = holder.pid();
    let told = env.json(["acquire", "x", "--pid", &pid.to_string(), "--owner", "me"]);
    assert_eq!(told["lock"]["pid"], pid);
    assert_eq!(told["lock"]["mine"], true);
    assert_eq!(told["hold"], env.lock("x")["hold"]);
    let told = env.json(["acquire", "y", "--ttl", "1h"]);
    assert_eq!(told["lock"]["reason"], "lease");
    assert_eq!(told["lock"]["pid"], serde_json::Value::Null);
}

#[test]
fn an_owner_from_an_empty_variable_is_a_slip() {
    let env = Env::new();
    env.onehold(["acquire", "x", "--ttl", "1h", "--owner", ""])
        .assert()
        .code(2);
    env.onehold(["release", "x", "--owner="]).assert().code(2);
    env.onehold(["acquire", "x", "--ttl", "0"]).assert().code(2);
}

#[test]
fn one_who_dies_while_he_is_waited_for_gets_nothing() {
    let env = Env::new();
    let first = Running::start(sleeper());
    env.onehold([
        "acquire",
        "x",
        "--pid",
        &first.pid().to_string(),
        "--owner",
        "me",
    ])
    .assert()
    .success();
    let mut second = Running::start(sleeper());
    let waiting = env.start([
        "acquire",
        "x",
        "-w",
        "1h",
        "--pid",
        &second.pid().to_string(),
    ]);
    eventually("it waits for events", || {
        fs::read_dir(format!("/proc/{}/fd", waiting.pid()))
            .into_iter()
            .flatten()
            .flatten()
            .any(|fd| {
                fs::read_link(fd.path())
                    .is_ok_and(|link| link.to_string_lossy().contains("inotify"))
            })
    });
    second.kill();
    env.onehold(["release", "x", "--owner", "me"])
        .assert()
        .success();
    let (code, out, err) = waiting.finish();
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(
        err.ends_with(&format!(
            "onehold: no process has the pid {}\n",
            second.pid()
        )),
        "{err}"
    );
    assert_eq!(env.left_in_store(), [""; 0]);
}

#[test]
fn numbers_that_no_clock_gave_are_not_followed() {
    let env = Env::new();
    env.write("store/.onehold/last", [0xFF; 8]);
    let number = |name: &str| -> u64 {
        let output = env
            .onehold(["acquire", name, "--ttl", "1h"])
            .output()
            .unwrap();
        String::from_utf8(output.stdout)
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    };
    let (first, second) = (number("x"), number("y"));
    assert!(first < second && second < 1 << 53);
    assert_eq!(env.check("x"), 6);
}

#[test]
fn an_acquire_killed_before_its_number_was_out_holds_nothing() {
    let env = Env::new();
    // A pipe that nobody reads and that is full: the number cannot get out.
    let full = "import os, sys; r, w = os.pipe(); os.set_blocking(w, False)\n\
                try:\n\twhile True: os.write(w, b'x' * 4096)\n\
                except BlockingIOError: pass\n\
                os.set_blocking(w, True); os.dup2(w, 1); os.set_inheritable(r, True)\n\
                os.execvp('onehold', ['onehold', 'acquire', 'x', '--ttl', '1h'])";
    let script = env.write("full.py", full);
    let mut acquire = env.start_shell(&format!("echo $$ > pid; exec python3 {}", script.display()));
    let pid = number_in(&env.path("pid"));
    eventually("the record is there", || env.left_in_store() == ["x.lock"]);
    assert_eq!(env.check("x"), 6, "held by the one who acquires");
    crate::env::send(pid, "KILL");
    eventually("its end", || acquire.has_ended());
    assert_eq!(env.check("x"), 5);
    assert_eq!(env.lock("x")["reason"], "dead");
}

#[test]
fn a_lease_ends_with_its_time_and_one_beside_a_pid_with_whichever_ends_first() {
    let env = Env::new();
    env.onehold(["acquire", "x", "--ttl", "300ms", "--owner", "ci-7"])
        .assert()
        .success()
        .stderr(
            is_match("^onehold: `x` is held for 300ms, until \\d\\d:\\d\\d:\\d\\d\n$").unwrap(),
        );
    assert_eq!(env.lock("x")["kind"], "lease");
    eventually("its time", || env.check("x") == 5);
    assert_eq!(env.lock("x")["reason"], "expired");
    let mut holder = Running::start(sleeper());
    let pid = holder.pid().to_string();
    env.onehold(["acquire", "y", "--ttl", "200ms", "--pid", &pid])
        .assert()
        .success();
    eventually("its time", || env.lock("y")["reason"] == "expired");
    env.onehold(["acquire", "z", "--ttl", "1h", "--pid", &pid])
        .assert()
        .success();
    holder.kill();
    assert_eq!(env.lock("z")["reason"], "dead");
}

#[test]
fn the_same_owner_may_repeat_his_acquire_and_gets_the_same_number() {
    let env = Env::new();
    let acquire = |owner: &str| {
        let mut command = env.onehold(["acquire", "x", "--ttl", "1h"]);
        if !owner.is_empty() {
            command.args(["--owner", owner]);
        }
        let output = command.output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
        )
    };
    let first = acquire("runner-7");
    assert_eq!(first.0, Some(0));
    assert_eq!(acquire("runner-7"), first);
    assert_eq!(acquire("runner-8").0, Some(6));
    assert_eq!(acquire("").0, Some(6));
    env.onehold(["run", "--owner", "runner-7", "x", "--", "true"])
        .assert()
        .code(6);
}

#[test]
fn a_waiter_behind_a_detached_hold_is_served_at_its_release_and_at_its_holders_death() {
    let env = Env::new();
    let mut holder = Running::start(sleeper());
    let pid = holder.pid().to_string();
    let waiting = || {
        let waiter = env.start(["run", "-w", "1h", "x", "--", "echo", "mine"]);
        let fds = format!("/proc/{}/fd", waiter.pid());
        eventually("it waits for events", || {
            fs::read_dir(&fds)
                .into_iter()
                .flatten()
                .flatten()
                .any(|fd| {
                    fs::read_link(fd.path())
                        .is_ok_and(|link| link.to_string_lossy().contains("inotify"))
                })
        });
        waiter
    };
    env.onehold(["acquire", "x", "--pid", &pid, "--owner", "me"])
        .assert()
        .success();
    let waiter = waiting();
    env.onehold(["release", "x", "--owner", "me"])
        .assert()
        .success();
    assert_eq!(waiter.finish().1, "mine\n");
    env.onehold(["acquire", "x", "--pid", &pid])
        .assert()
        .success();
    let waiter = waiting();
    holder.kill();
    assert_eq!(waiter.finish().1, "mine\n");
}

#[test]
fn a_living_holder_is_displaced_only_on_a_persons_word() {
    let env = Env::new();
    let holder = Running::start(sleeper());
    let pid = holder.pid().to_string();
    env.onehold(["acquire", "x", "--pid", &pid])
        .assert()
        .success();
    env.shell("onehold acquire x --ttl 1h --force")
        .assert()
        .code(6)
        .stderr(contains(
            "no terminal to ask on: --yes does it without asking",
        ));
    assert_eq!(env.lock("x")["pid"].to_string(), pid);
    env.onehold(["acquire", "x", "--ttl", "1h", "--force", "--yes"])
        .assert()
        .success()
        .stderr(contains(format!(
            "taken by force: `x` was held by process {pid}"
        )));
    assert_eq!(env.lock("x")["kind"], "lease");
    assert_eq!(env.journal()[0]["event"], "break");
}

#[test]
fn a_message_or_owner_beyond_1_kib_is_refused() {
    let env = Env::new();
    let long = "x".repeat(1025);
    for option in ["--message", "--owner"] {
        env.onehold(["acquire", "x", "--ttl", "1h", option, &long])
            .assert()
            .code(2)
            .stderr(contains("is longer than 1024 bytes"));
    }
    env.onehold(["acquire", "x", "--ttl", "1h", "--message", &long[1..]])
        .assert()
        .success();
}

#[test]
fn the_store_is_made_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let env = Env::new();
    env.onehold(["acquire", "a/b", "--ttl", "1h"])
        .env_remove("ONEHOLD_DIR")
        .assert()
        .success();
    let store = env.path(".local/state/onehold");
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&store), 0o700);
    assert_eq!(mode(&store.join("a.d/b.lock")), 0o644);
}
