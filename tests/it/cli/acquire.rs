use std::fs;

#[cfg(unix)]
use chrono::{DateTime, TimeDelta, Utc};

use assert_cmd::prelude::OutputAssertExt;
use predicates::prelude::*;
use predicates::str::{contains, is_empty, is_match};

use super::env::SLEEP;
#[cfg(unix)]
use crate::harness::Signal;
use crate::harness::{Running, TestEnv, number_in, wait_until};

#[test]
fn acquire_prints_number_to_stdout_and_process_to_stderr() {
    let env = TestEnv::new();
    let holder = Running::sleeper();
    let pid = holder.pid().to_string();
    env.onehold(["acquire", "x", "--pid", &pid, "-v"])
        .assert()
        .success()
        .stdout(is_match("^\\d{16}\n$").unwrap())
        .stderr(contains(format!(
            "onehold: acquired `x` for process {pid} ({SLEEP})\n"
        )));
    let other = Running::sleeper();
    env.onehold(["acquire", "x", "--pid", &other.pid().to_string()])
        .assert()
        .code(6)
        .stdout(is_empty())
        .stderr(
            contains(format!("`x` is held by process {pid} ({SLEEP})"))
                .and(contains("alive: PID and start time match")),
        );
}

#[test]
fn hold_numbers_only_grow() {
    let env = TestEnv::new();
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

#[test]
fn repeated_acquire_for_same_process_prints_same_number() {
    let env = TestEnv::new();
    let (holder, other) = (Running::sleeper(), Running::sleeper());
    let acquire = |pid: u32, options: &[&str]| {
        let mut command = env.onehold(["acquire", "-v", "x", "--pid", &pid.to_string()]);
        command.args(options).output().unwrap()
    };
    let first = acquire(holder.pid(), &["--owner", "me"]);
    assert_eq!(first.status.code(), Some(0));
    for options in [&[][..], &["--owner", "me"]] {
        let again = acquire(holder.pid(), options);
        assert_eq!(again.status.code(), Some(0), "{options:?}");
        assert_eq!(again.stdout, first.stdout, "{options:?}");
        let said = String::from_utf8(again.stderr).unwrap();
        assert!(said.starts_with("onehold: already acquired by this holder: `x` is held by"));
    }
    // The label alone does not make it the same holder.
    let blocked = acquire(other.pid(), &["--owner", "me"]);
    assert_eq!(blocked.status.code(), Some(6));
    assert_eq!(env.lock("x")["owner"], "me");
    assert_eq!(env.lock("x")["pid"], holder.pid());
}

#[test]
fn process_that_holds_the_lock_for_one_owner_does_not_hold_it_for_another() {
    let env = TestEnv::new();
    let holder = Running::sleeper();
    let pid = holder.pid().to_string();
    let acquire = |owner: &[&str]| {
        let mut command = env.onehold(["acquire", "x", "--pid", &pid]);
        command.args(owner);
        command
    };
    let release = |owner: &[&str]| {
        let mut command = env.onehold(["release", "x"]);
        command.args(owner).assert().success();
    };
    acquire(&["--owner", "R1"]).assert().success();
    acquire(&["--owner", "R3"])
        .assert()
        .code(6)
        .stdout(is_empty())
        .stderr(contains(
            "  that process holds it for R1; for the same hold, give its --owner\n",
        ));
    acquire(&["--owner", "R1"]).assert().success();
    release(&["--owner", "R1"]);
    let number = acquire(&[]).output().unwrap().stdout;
    acquire(&["--owner", "R3"])
        .assert()
        .code(6)
        .stdout(is_empty())
        .stderr(contains(
            "  that process holds it without an owner; for the same hold, give no --owner\n",
        ));
    release(&["--hold", String::from_utf8(number).unwrap().trim()]);
    acquire(&["--owner", "R3"]).assert().success();
}

#[cfg(unix)]
#[test]
fn hold_follows_xargs_and_ends_with_it() {
    let env = TestEnv::new();
    env.session("echo x | xargs onehold acquire -q >/dev/null; onehold check -q x; echo $?")
        .assert()
        .success()
        .stdout("5\n");
}

#[cfg(unix)]
#[test]
fn sibling_script_neither_has_the_lock_nor_can_release_it() {
    let env = TestEnv::new();
    env.write(
        "one.sh",
        "onehold acquire -q x >/dev/null; echo > ready; until test -e go; do sleep 0.01; done\n",
    );
    env.write(
        "other.sh",
        "until test -e ready; do sleep 0.01; done\n\
         onehold acquire -q x; echo $?; onehold release -q x; echo $?; onehold renew -q x; echo $?\n\
         echo > go\n",
    );
    env.session("sh ./one.sh & sh ./other.sh; wait")
        .assert()
        .success()
        .stdout("6\n4\n4\n");
}

#[cfg(unix)]
#[test]
fn subshell_does_not_release_what_another_running_subshell_holds() {
    let env = TestEnv::new();
    // The second subshell releases the lock, as a hint once told it to.
    let script = "( onehold acquire -q x > number; echo > ready; until test -e go; do sleep 0.01; done\n\
                  onehold release -q x; echo $? > own ) &\n\
                  until test -e ready; do sleep 0.01; done\n\
                  ( onehold acquire x || { onehold release -q x; echo $?; } )\n\
                  onehold check -q x; echo $?; echo > go; wait; cat own\n\
                  ( onehold acquire -q y >/dev/null ); onehold release -q y; echo $?";
    let output = env.session(script).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("\n  to wait, add --wait; "), "{said}");
    // Once that subshell has ended, it is the script's.
    let out = String::from_utf8(output.stdout).unwrap();
    assert_eq!(out, "4\n6\n0\n0\n");
}

#[cfg(unix)]
#[test]
fn one_of_eight_subshells_at_once_gets_the_lock() {
    let env = TestEnv::new();
    let script = "for i in 1 2 3 4 5 6 7 8; do\n\
                  ( until test -e go; do :; done; onehold acquire -q x >/dev/null && echo got; true ) &\n\
                  done; echo > go; wait";
    env.session(script).assert().success().stdout("got\n");
}

#[cfg(unix)]
#[test]
fn hold_of_inner_script_ends_with_it_and_is_not_released_by_caller() {
    let env = TestEnv::new();
    let caller = env.write(
        "caller.sh",
        "sh -c 'onehold acquire -q x >&2; echo $$; onehold check -q x; echo $?'\n\
         onehold check -q x; echo $?\n\
         sh -c 'onehold acquire -q y >&2; echo > ready; until test -e go; do sleep 0.01; done' &\n\
         until test -e ready; do sleep 0.01; done\n\
         onehold release y; echo $?\n\
         echo > go; wait\n",
    );
    let output = env
        .session(&format!("sh {}; true", caller.display()))
        .output()
        .unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[1..], ["6", "5", "4"], "{out}");
    assert_eq!(env.lock("x")["pid"].to_string(), lines[0]);
}

#[cfg(unix)]
#[test]
fn repeated_acquire_of_one_script_is_refused_immediately() {
    let env = TestEnv::new();
    env.session("onehold acquire -q x >/dev/null; onehold acquire -w 1h x")
        .assert()
        .code(6)
        .stdout(is_empty())
        .stderr(contains("your own shell or script holds it"));
    // A sibling subshell is another part of the script, which can release it.
    let script = "( onehold acquire -q x >/dev/null; echo > ready; sleep 0.3; onehold release x ) &\n\
                  until test -e ready; do sleep 0.01; done\n\
                  ( onehold acquire -q x >/dev/null; echo $?; onehold acquire -q -w 1h x >/dev/null; echo $? )";
    env.session(script).assert().success().stdout("6\n0\n");
}

#[cfg(unix)]
#[test]
#[ignore = "needs make: apt install make"]
fn hold_follows_make_or_the_shell_of_its_recipe_line() {
    let env = TestEnv::new();
    // make executes the first line itself, and the second one by a shell that ends with it.
    env.write(
        "Makefile",
        "all:\n\tonehold acquire x\n\tonehold acquire y; true\n\
         \t-onehold check -q x; echo $$? > x\n\t-onehold check -q y; echo $$? > y\n",
    );
    env.session("make -s; true").assert().success();
    let code = |name: &str| fs::read_to_string(env.path(name)).unwrap();
    assert_eq!((&*code("x"), &*code("y")), ("6\n", "5\n"));
    wait_until("the hold ends with make", || env.check("x") == 5);
}

#[cfg(unix)]
#[test]
#[ignore = "needs root, or user namespaces"]
fn acquire_without_remaining_process_is_refused() {
    let env = TestEnv::new();
    // The first process of a PID namespace has no ancestors there.
    let output = env
        .command("unshare")
        .args(["--user", "--map-root-user", "--pid", "--fork"])
        .args(["--mount-proc", crate::harness::program().to_str().unwrap()])
        .args(["acquire", "x"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "onehold: no process to hold the lock for: the caller has exited, or ends with this command\n  \
         use --pid PID, --ttl D for a lease, or `onehold run`; in a systemd unit: ExecStart=onehold run …\n"
    );
    assert_eq!(env.left_in_store(), [""; 0]);
}

#[cfg(unix)]
#[test]
fn pid_of_no_process_is_rejected() {
    let env = TestEnv::new();
    for pid in ["0", "-1", "2147483648", "x"] {
        env.onehold(["acquire", "x", &format!("--pid={pid}")])
            .assert()
            .code(2);
    }
    let mut gone = Running::sleeper();
    gone.kill();
    env.onehold(["acquire", "x", "--pid", &gone.pid().to_string()])
        .assert()
        .code(1)
        .stderr(format!("onehold: no process with PID {}\n", gone.pid()));
    // A thread of this test other than the main thread.
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
        .stderr(format!("onehold: no process with PID {tid}\n"));
    drop(stop);
    thread.join().unwrap();
    assert_eq!(env.left_in_store(), [""; 0]);
}

#[test]
fn zombie_of_killed_script_is_taken_over_at_once() {
    let env = TestEnv::new();
    env.create_zombie("x");
    env.onehold(["acquire", "x", "--ttl", "1m"])
        .assert()
        .success()
        .stderr(
            is_match(
                "^onehold: took over zombie `x`: process \\d+ \\(sleep(\\.exe)?\\) on [^ ]+, holder since .* \\(\\d+s ago\\), has exited\n$",
            )
            .unwrap(),
        );
}

#[cfg(unix)]
#[test]
fn acquire_releases_lock_if_stdout_fails() {
    let env = TestEnv::new();
    env.session("onehold acquire x --ttl 1h > /dev/full")
        .assert()
        .code(1)
        .stderr(contains(
            "cannot print the hold number: no space left on device; released `x`",
        ));
    // The reader exits before anything is written.
    env.session("{ sleep 0.1; onehold acquire x --ttl 1h; echo $? > code; } | true; sleep 0.5; until test -s code; do sleep 0.01; done")
        .assert()
        .success();
    assert_eq!(fs::read_to_string(env.path("code")).unwrap(), "1\n");
    assert_eq!(env.left_in_store(), [""; 0]);
}

#[cfg(unix)]
#[test]
fn acquire_with_closed_stdout_fails() {
    let env = TestEnv::new();
    env.session("onehold acquire x --ttl 1h >&-")
        .assert()
        .code(1)
        .stderr("onehold: cannot print the hold number: stdout is closed; released `x`\n");
    assert_eq!(env.left_in_store(), [""; 0]);
    env.session("onehold acquire x --ttl 1h >/dev/null")
        .assert()
        .success();
    assert_eq!(env.check("x"), 6);
}

#[test]
fn acquire_object_matches_later_check() {
    let env = TestEnv::new();
    let holder = Running::sleeper();
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
fn empty_owner_is_rejected() {
    let env = TestEnv::new();
    env.onehold(["acquire", "x", "--ttl", "1h", "--owner", ""])
        .assert()
        .code(2);
    env.onehold(["release", "x", "--owner="]).assert().code(2);
    env.onehold(["acquire", "x", "--ttl", "0"]).assert().code(2);
}

#[test]
fn acquire_fails_if_target_pid_exits_while_waiting() {
    let env = TestEnv::new();
    let first = Running::sleeper();
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
    let mut second = Running::sleeper();
    let mut waiting = env.start_with_output([
        "acquire",
        "x",
        "-w",
        "1h",
        "--pid",
        &second.pid().to_string(),
    ]);
    env.wait_for_waiter("x");
    second.kill();
    env.onehold(["release", "x", "--owner", "me"])
        .assert()
        .success();
    let (code, out, err) = waiting.finish_with_output();
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(
        err.ends_with(&format!("onehold: no process with PID {}\n", second.pid())),
        "{err}"
    );
    assert_eq!(env.left_in_store(), [""; 0]);
}

#[test]
fn implausible_last_number_is_ignored() {
    let env = TestEnv::new();
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

#[cfg(unix)]
#[test]
#[ignore = "needs python3: apt install python3"]
fn acquire_killed_before_printing_number_holds_nothing() {
    let env = TestEnv::new();
    // A full pipe without a reader blocks the output of the number.
    let full = "import os, sys; r, w = os.pipe(); os.set_blocking(w, False)\n\
                try:\n\twhile True: os.write(w, b'x' * 4096)\n\
                except BlockingIOError: pass\n\
                os.set_blocking(w, True); os.dup2(w, 1); os.set_inheritable(r, True)\n\
                os.execvp('onehold', ['onehold', 'acquire', 'x', '--ttl', '1h'])";
    let script = env.write("full.py", full);
    let mut acquire =
        Running::start(env.session(&format!("echo $$ > pid; exec python3 {}", script.display())));
    let pid = number_in(&env.path("pid"));
    wait_until("the record exists", || env.left_in_store() == ["x.lock"]);
    assert_eq!(env.check("x"), 6, "held by the acquire process");
    crate::harness::send(pid, Signal::KILL);
    wait_until("acquire has exited", || acquire.has_ended());
    assert_eq!(env.check("x"), 5);
    assert_eq!(env.lock("x")["reason"], "dead");
}

#[test]
fn lease_ends_at_expiry_and_with_pid_at_first_of_both() {
    let env = TestEnv::new();
    env.onehold(["acquire", "-v", "x", "--ttl", "300ms", "--owner", "ci-7"])
        .assert()
        .success()
        .stderr(
            is_match("^onehold: acquired `x` for (0.3s|300ms), until \\d\\d:\\d\\d:\\d\\d\n")
                .unwrap(),
        );
    assert_eq!(env.lock("x")["kind"], "lease");
    wait_until("the hold expires", || env.check("x") == 5);
    assert_eq!(env.lock("x")["reason"], "expired");
    let mut holder = Running::sleeper();
    let pid = holder.pid().to_string();
    env.onehold(["acquire", "y", "--ttl", "200ms", "--pid", &pid])
        .assert()
        .success();
    wait_until("the hold expires", || env.lock("y")["reason"] == "expired");
    env.onehold(["acquire", "z", "--ttl", "1h", "--pid", &pid])
        .assert()
        .success();
    holder.kill();
    assert_eq!(env.lock("z")["reason"], "dead");
}

#[test]
fn repeated_acquire_of_same_owner_prints_same_number() {
    let env = TestEnv::new();
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
fn waiter_is_served_after_release_and_after_holder_death() {
    let env = TestEnv::new();
    let mut holder = Running::sleeper();
    let pid = holder.pid().to_string();
    let waiting = || {
        let waiter = env.start_with_output(["run", "-w", "1h", "x", "--", "echo", "mine"]);
        env.wait_for_waiter("x");
        waiter
    };
    env.onehold(["acquire", "x", "--pid", &pid, "--owner", "me"])
        .assert()
        .success();
    let mut waiter = waiting();
    env.onehold(["release", "x", "--owner", "me"])
        .assert()
        .success();
    assert_eq!(waiter.finish_with_output().1, "mine\n");
    env.onehold(["acquire", "x", "--pid", &pid])
        .assert()
        .success();
    let mut waiter = waiting();
    holder.kill();
    assert_eq!(waiter.finish_with_output().1, "mine\n");
}

#[cfg(unix)]
#[test]
fn force_on_live_holder_needs_confirmation() {
    let env = TestEnv::new();
    let holder = Running::sleeper();
    let pid = holder.pid().to_string();
    env.onehold(["acquire", "x", "--pid", &pid])
        .assert()
        .success();
    env.session("onehold acquire x --ttl 1h --force")
        .assert()
        .code(6)
        .stderr(contains(
            "cannot ask for confirmation: no terminal (use --yes)",
        ));
    assert_eq!(env.lock("x")["pid"].to_string(), pid);
    env.onehold(["acquire", "x", "--ttl", "1h", "--force", "--yes"])
        .assert()
        .success()
        .stderr(contains(format!(
            "took `x` by force from process {pid} ({SLEEP}) on "
        )));
    assert_eq!(env.lock("x")["kind"], "lease");
    assert_eq!(env.journal()[0]["event"], "break");
}

#[test]
fn message_or_owner_over_1_kib_is_rejected() {
    let env = TestEnv::new();
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

#[cfg(unix)]
#[test]
fn default_store_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let env = TestEnv::new();
    env.onehold(["acquire", "a/b", "--ttl", "1h"])
        .env_remove("ONEHOLD_DIR")
        .assert()
        .success();
    let store = env.path(".local/state/onehold");
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&store), 0o700);
    // The sticky bit keeps systemd-tmpfiles(8) away.
    let unless_cleaned = if cfg!(target_os = "linux") { 0o1000 } else { 0 };
    assert_eq!(mode(&store.join("a.d/b.lock")), 0o644 | unless_cleaned);
}

#[cfg(unix)]
#[test]
fn lease_acquired_again_with_longer_ttl_lasts_as_long_as_asked() {
    let env = TestEnv::new();
    let number = env.done(["acquire", "x", "--owner", "me", "--ttl", "10m"]);
    let asked = Utc::now() + TimeDelta::hours(2);
    let repeated = env.done(["acquire", "x", "--owner", "me", "--ttl", "2h"]);
    assert_eq!(repeated, number);
    let lock = env.lock("x");
    let expires = DateTime::parse_from_rfc3339(lock["expires_at"].as_str().unwrap()).unwrap();
    assert!(expires >= asked, "{expires} is before {asked}");
}

#[cfg(unix)]
#[test]
fn hold_number_of_path_into_store_grows_when_the_clock_goes_back() {
    let env = TestEnv::new();
    env.done(["run", "x", "--", "true"]);
    // As if the clock had been an hour ahead.
    let ahead = Utc::now() + TimeDelta::hours(1);
    let last = ahead.timestamp_micros().cast_unsigned();
    fs::write(env.path("store/.onehold/last"), last.to_le_bytes()).unwrap();
    let number = |name: &str| -> u64 {
        let number = env.done(["acquire", name, "--ttl", "1h"]);
        env.done(["release", name, "--hold", &number]);
        number.parse().unwrap()
    };
    let first = number("x");
    assert!(first > last, "by name: {first} after {last}");
    let second = number("./store/x.lock");
    assert!(second > first, "by path: {second} after {first}");
}
