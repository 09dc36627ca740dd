//! `--format flock`: one file, flock(1) and onehold.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;

use crate::harness::{
    CONTENDERS, INCREMENT, Running, TestEnv, is_blocked_in_flock, output, run_together, wait_until,
};
use serde_json::Value;

/// `onehold run --format flock ARGS x.lock -- COMMAND`.
fn run(env: &TestEnv, args: &[&str], command: &[&str]) -> std::process::Command {
    let words = [
        &["run", "--format", "flock"],
        args,
        &["x.lock", "--"],
        command,
    ];
    env.onehold(words.concat())
}

fn check(env: &TestEnv) -> Value {
    env.json(["check", "--format", "flock", "x.lock"])
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What holds the lock until there is a file `end`, by each way that scripts use.
const HOLDERS: [(&str, &str); 5] = [
    ("writer", "exec flock x.lock sh ./work"),
    ("reader", "exec flock -s x.lock sh ./work"),
    ("descriptor", "exec 9>x.lock; flock 9; . ./work"),
    ("subshell", "(flock 9; exec sh ./work) 9>x.lock"),
    (
        "onehold",
        "exec onehold run --format flock x.lock -- sh ./work",
    ),
];

const WORK: &str = "echo $$ > began; while test -e began && ! test -e end; do sleep 0.005; done";

/// Starts a holder, and returns once it has the lock.
fn holder(env: &TestEnv, script: &str) -> Running {
    let _ = fs::remove_file(env.path("began"));
    fs::write(env.path("work"), WORK).unwrap();
    let holder = Running::start(env.shell(script));
    env.pid_in("began");
    holder
}

/// Ends a holder.
fn end(env: &TestEnv, mut holder: Running) {
    env.end();
    holder.finish();
    fs::remove_file(env.path("end")).unwrap();
}

#[test]
fn each_program_is_kept_out_by_the_other() {
    for (name, script) in HOLDERS {
        let env = TestEnv::new();
        let _holder = holder(&env, script);
        let refused = output(&mut run(&env, &[], &["true"]));
        assert_eq!(refused.status.code(), Some(6), "{name}");
        let flock = output(env.command("flock").args(["-n", "x.lock", "true"]));
        assert_eq!(flock.status.code(), Some(1), "{name}");
        let reader = output(env.command("flock").args(["-n", "-s", "x.lock", "true"]));
        assert_eq!(reader.status.success(), name == "reader", "{name}");
        let status = check(&env);
        assert_eq!(status["lock"]["state"], "held", "{name}");
        assert_eq!(status["lock"]["format"], "flock", "{name}");
        assert_eq!(
            env.code(["check", "--format", "flock", "x.lock"]),
            6,
            "{name}"
        );
    }
}

#[test]
fn check_of_a_reader_agrees_with_the_run_of_a_reader() {
    for (name, script) in HOLDERS {
        let env = TestEnv::new();
        let _holder = holder(&env, script);
        let joins = output(&mut run(&env, &["-s"], &["true"])).status.code();
        assert_eq!(joins, Some(if name == "reader" { 0 } else { 6 }), "{name}");
        let check = ["check", "--format", "flock", "-s", "x.lock"];
        assert_eq!(Some(env.code(check)), joins, "{name}");
        let available = [&check[..], &["--available"]].concat();
        assert_eq!(Some(env.code(available)), joins, "{name}");
        // A writer is kept out by each of them.
        let available = ["check", "--format", "flock", "--available", "x.lock"];
        assert_eq!(env.code(available), 6, "{name}");
        assert_eq!(self::check(&env)["lock"]["slot"], Value::Null, "{name}");
    }
    let env = TestEnv::new();
    let reader = holder(&env, HOLDERS[1].1);
    let seen = env.json(["check", "--format", "flock", "-s", "x.lock"]);
    assert_eq!(seen["lock"]["takeable"], true, "{seen}");
    assert_eq!(
        seen["lock"]["others"][0]["lockers"][0]["pid"],
        reader.pid(),
        "{seen}"
    );
}

#[test]
fn free_file_stays_as_it_is() {
    let env = TestEnv::new();
    let free = check(&env)["lock"].take();
    assert_eq!(
        (&free["state"], &free["name"]),
        (&"free".into(), &"./x.lock".into())
    );
    assert!(!env.path("x.lock").exists(), "a look makes no file");
    fs::write(env.path("x.lock"), "written by a script\n").unwrap();
    let before = fs::metadata(env.path("x.lock")).unwrap();
    for options in [&[][..], &["--close"], &["--exec"], &["--wait", "5s"]] {
        assert_eq!(
            output(&mut run(&env, options, &["true"])).status.code(),
            Some(0)
        );
    }
    assert_eq!(check(&env)["lock"]["state"], "free");
    let after = fs::metadata(env.path("x.lock")).unwrap();
    assert_eq!(
        (before.ino(), before.mtime_nsec()),
        (after.ino(), after.mtime_nsec())
    );
    assert_eq!(
        fs::read_to_string(env.path("x.lock")).unwrap(),
        "written by a script\n"
    );
    // What flock(1) finds missing, it makes.
    fs::remove_file(env.path("x.lock")).unwrap();
    assert_eq!(
        output(&mut run(&env, &[], &["true"])).status.code(),
        Some(0)
    );
    assert_eq!(fs::metadata(env.path("x.lock")).unwrap().len(), 0);
}

#[test]
fn refusal_and_check_name_each_holder_with_its_command_and_user() {
    for (name, script) in HOLDERS {
        let env = TestEnv::new();
        let holder = holder(&env, script);
        let lock = check(&env)["lock"].take();
        let lockers = lock["lockers"].as_array().unwrap();
        let pids: Vec<u64> = lockers
            .iter()
            .map(|locker| locker["pid"].as_u64().unwrap())
            .collect();
        // For `flock 9` it is the shell that has the descriptor: flock(1) itself has exited.
        let expected = match name {
            "subshell" => u64::from(env.pid_in("began")),
            _ => u64::from(holder.pid()),
        };
        assert!(
            pids.contains(&expected),
            "{name}: {expected} in {lockers:?}"
        );
        let user = text_of(&output(env.command("id").arg("-un")).stdout);
        // Children of the holder inherit its descriptor, and end at any time.
        for _ in 0..40 {
            let lock = check(&env)["lock"].take();
            for locker in lock["lockers"].as_array().unwrap() {
                assert_eq!(locker["user"].as_str().unwrap(), user.trim(), "{name}");
                assert!(locker["started_at"].is_string(), "{name}: {locker}");
                assert!(
                    !locker["command"].as_array().unwrap().is_empty(),
                    "{name}: {locker}"
                );
            }
        }
        let refused = text_of(&output(&mut run(&env, &[], &["true"])).stderr);
        let named = format!("process {expected} (");
        assert!(
            refused.contains(&named) && refused.contains(" of user "),
            "{name}: {refused}"
        );
        assert!(refused.contains("running since"), "{name}: {refused}");
    }
}

#[test]
fn wait_is_woken_by_the_kernel_at_the_end_of_a_writer_and_of_readers() {
    for script in [HOLDERS[0].1, HOLDERS[1].1, HOLDERS[4].1] {
        let env = TestEnv::new();
        let holder = holder(&env, script);
        let mut waiter = run(&env, &["--wait", "60s"], &["sh", "-c", "date +%s%N > took"]);
        let mut waiter = Running::start({
            waiter.stderr(Stdio::null());
            waiter
        });
        wait_until("the waiter sleeps in flock(2)", || {
            is_blocked_in_flock(waiter.pid())
        });
        end(&env, holder);
        assert_eq!(waiter.finish(), 0);
        // It did not look again by a clock: those intervals are longer than the whole test.
        assert!(env.path("took").exists());
    }
}

#[test]
fn waiter_keeps_the_lock_that_it_was_woken_with() {
    let env = TestEnv::new();
    let holder = holder(&env, HOLDERS[0].1);
    let count = CONTENDERS;
    let script = format!("{INCREMENT}; echo $$ >> order");
    let mut waiters: Vec<Running> = (0..count)
        .map(|index| {
            let waiter = if index % 2 == 0 {
                run(&env, &["--wait", "60s"], &["sh", "-c", &script])
            } else {
                let mut flock = env.command("flock");
                flock.args(["x.lock", "sh", "-c", &script]);
                flock
            };
            let waiter = Running::start(waiter);
            wait_until("it sleeps", || is_blocked_in_flock(waiter.pid()));
            waiter
        })
        .collect();
    end(&env, holder);
    for waiter in &mut waiters {
        assert_eq!(waiter.finish(), 0);
    }
    assert_eq!(env.count_in("number"), count);
}

#[test]
fn eight_of_each_program_never_overlap() {
    let env = TestEnv::new();
    let script = format!("{INCREMENT}; sleep 0.001");
    let rounds = 5;
    for _ in 0..rounds {
        let mut commands = Vec::new();
        for _ in 0..CONTENDERS {
            commands.push(run(&env, &["--wait", "60s"], &["sh", "-c", &script]));
            let mut flock = env.command("flock");
            flock.args(["x.lock", "sh", "-c", &script]);
            commands.push(flock);
        }
        for ended in run_together(commands) {
            assert!(ended.status.success(), "{ended:?}");
        }
    }
    assert_eq!(env.count_in("number"), rounds * 2 * CONTENDERS);
}

#[test]
fn command_keeps_the_lock_of_a_killed_wrapper() {
    let env = TestEnv::new();
    let mut wrapper = holder(&env, HOLDERS[4].1);
    let command = env.pid_in("began");
    wrapper.kill();
    let flock = output(env.command("flock").args(["-n", "x.lock", "true"]));
    assert_eq!(flock.status.code(), Some(1));
    let lock = check(&env)["lock"].take();
    assert_eq!(lock["pid"], command, "{lock}");
    let pid = rustix::process::Pid::from_raw(command.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    wait_until("the lock is free", || {
        check(&env)["lock"]["state"] == "free"
    });
}

#[test]
fn no_other_verb_pretends_to_change_a_kernel_lock() {
    let env = TestEnv::new();
    let holder = holder(&env, HOLDERS[0].1);
    let broken = env.output(["break", "--yes", "--format", "flock", "x.lock"]);
    let said = text_of(&broken.stderr);
    assert_eq!(broken.status.code(), Some(1), "{said}");
    let named = format!("process {} (flock)", holder.pid());
    assert!(said.contains(&named), "{said}");
    // To end flock(1) itself would not end the command that has inherited the lock.
    assert!(
        said.contains("the lock ends with the last process"),
        "{said}"
    );
    for verb in ["acquire", "release", "renew"] {
        let refused = env.output([verb, "--format", "flock", "x.lock"]);
        let said = text_of(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{verb}: {said}");
        assert!(said.contains("a kernel lock"), "{verb}: {said}");
    }
    for option in [
        &["--owner", "me"][..],
        &["--message", "why"],
        &["--ttl", "5m"],
        &["--force"],
    ] {
        let refused = output(&mut run(&env, option, &["true"]));
        assert_eq!(refused.status.code(), Some(2), "{option:?}");
    }
    for verb in ["list", "cleanup"] {
        assert_eq!(env.code([verb, "--format", "flock"]), 2, "{verb}");
    }
    assert_eq!(check(&env)["lock"]["state"], "held");
    end(&env, holder);
    let free = env.output(["break", "--yes", "--format", "flock", "x.lock"]);
    assert_eq!(free.status.code(), Some(3));
}

#[test]
fn wait_for_a_lock_of_an_ancestor_is_refused_at_once() {
    let env = TestEnv::new();
    let inner = "onehold run --wait forever --format flock x.lock -- true";
    for outer in ["onehold run --format flock x.lock --", "flock x.lock"] {
        let ended = output(&mut env.shell(&format!("{outer} {inner}")));
        assert_eq!(ended.status.code(), Some(6), "{outer}");
        let said = text_of(&ended.stderr);
        assert!(said.contains("a wait would never end"), "{said}");
        let inner = inner.replace("run", "run --reentrant");
        let ended = output(&mut env.shell(&format!("{outer} {inner}")));
        assert!(ended.status.success(), "{ended:?}");
        let inner = "onehold hold --reentrant --format flock x.lock";
        let ended = output(&mut env.shell(&format!("{outer} {inner}")));
        assert!(ended.status.success(), "{ended:?}");
    }
}

#[test]
fn configuration_sets_the_format_by_path_and_by_directory() {
    let env = TestEnv::new();
    let directory = env.path("locks");
    fs::create_dir_all(&directory).unwrap();
    fs::create_dir_all(env.path(".config/onehold")).unwrap();
    let config = format!(
        "[formats]\n\"{}/\" = \"flock\"\n\"~/y.lock\" = \"flock\"\n\"{}/p.pid\" = \"pid\"\n",
        directory.display(),
        directory.display()
    );
    fs::write(env.path(".config/onehold/config.toml"), config).unwrap();
    let run = |name: &str| {
        let ended = env.output(["run", name, "--", "cat", name]);
        (ended.status.code(), text_of(&ended.stdout))
    };
    let nothing = (Some(0), String::new());
    assert_eq!(run("./locks/a.lock"), nothing);
    assert_eq!(run("./y.lock"), nothing);
    assert!(env.path("y.lock").exists());
    // The path of a file has precedence over its directory.
    let (code, text) = run("./locks/p.pid");
    assert_eq!(code, Some(0));
    assert!(text.trim().parse::<u32>().is_ok(), "{text}");
    // Each path that leads to the file means it.
    std::os::unix::fs::symlink("locks", env.path("link")).unwrap();
    for name in ["./locks/../locks/c.lock", "./link/c.lock"] {
        assert_eq!(run(name), nothing, "{name}");
        assert!(directory.join("c.lock").exists(), "{name}");
    }
    // Another path keeps onehold's own format, and so does a name in the store.
    let (_, text) = run("./z.lock");
    assert!(text.contains("\"onehold\""), "{text}");
    // The option has precedence.
    let ended = env.output([
        "run",
        "--format",
        "native",
        "./locks/b.lock",
        "--",
        "cat",
        "locks/b.lock",
    ]);
    assert!(text_of(&ended.stdout).contains("\"onehold\""));
}

#[test]
fn native_lock_at_a_path_that_flock_has_locked_says_who_holds_it_and_names_the_format() {
    for (name, script) in &HOLDERS[..4] {
        let env = TestEnv::new();
        let holder = holder(&env, script);
        let lock = env.lock("./x.lock");
        assert_eq!(lock["state"], "held", "{name}");
        let refused = env.output(["run", "./x.lock", "--", "true"]);
        let said = text_of(&refused.stderr);
        assert_eq!(refused.status.code(), Some(6), "{said}");
        let expected = match *name {
            "subshell" => env.pid_in("began"),
            _ => holder.pid(),
        };
        assert!(
            said.contains(&format!("process {expected} (")),
            "{name}: {said}"
        );
        assert!(said.contains("--format flock"), "{name}: {said}");
        assert_eq!(fs::metadata(env.path("x.lock")).unwrap().len(), 0);
    }
}

/// A record as prodigy writes it, at `./p.lock`, of a process that has exited.
fn dead_record(env: &TestEnv) -> u32 {
    let pid = crate::harness::dead_pid();
    let record = serde_json::json!({
        "job_id": "p", "process_id": pid, "hostname": null, "acquired_at": "2026-01-01T00:00:00Z",
    });
    fs::write(env.path("p.lock"), record.to_string()).unwrap();
    pid
}

/// flock(1) on that file; returns once it has the lock.
fn locker(env: &TestEnv) -> Running {
    let script = "exec flock p.lock sh -c 'echo $$ > began; exec sleep 1000'";
    let locker = Running::start(env.shell(script));
    env.pid_in("began");
    locker
}

#[test]
fn file_of_an_exited_process_that_flock_has_locked_is_held_by_flock() {
    let env = TestEnv::new();
    let pid = dead_record(&env);
    let locker = locker(&env);
    let exited = format!("process {pid}, which its record names, has exited");
    let named = format!("is held by process {} (flock) of user ", locker.pid());
    let seen = env.output(["check", "-v", "./p.lock"]);
    let said = text_of(&seen.stdout);
    assert_eq!(seen.status.code(), Some(6), "{said}");
    assert!(said.contains(&named) && said.contains(&exited), "{said}");
    for verb in [
        &["run", "./p.lock", "--", "true"][..],
        &["acquire", "./p.lock"],
    ] {
        let refused = env.output(verb);
        let said = text_of(&refused.stderr);
        assert_eq!(refused.status.code(), Some(6), "{said}");
        assert!(said.contains(&named) && said.contains(&exited), "{said}");
        assert!(
            said.contains("the lock ends with the last process") && !said.contains("break"),
            "{said}"
        );
    }
    let lock = env.lock("./p.lock");
    assert_eq!(lock["reason"], "locked", "{lock}");
    assert_eq!(lock["proof"], "kernel-lock", "{lock}");
    assert_eq!(
        (&lock["pid"], &lock["pid_alive"]),
        (&pid.into(), &false.into())
    );
    assert_eq!(lock["lockers"][0]["pid"], locker.pid(), "{lock}");
    fs::create_dir(env.store()).unwrap();
    fs::hard_link(env.path("p.lock"), env.store().join("p.lock")).unwrap();
    let listed = env.done(["list"]);
    let named = format!("{} (flock)", locker.pid());
    assert!(
        listed.contains(&named) && !listed.contains(&pid.to_string()),
        "{listed}"
    );
}

#[test]
fn file_of_an_exited_process_that_flock_has_locked_is_broken_by_force_alone() {
    let env = TestEnv::new();
    dead_record(&env);
    let locker = locker(&env);
    let named = format!("process {} (flock)", locker.pid());
    for words in [&["break", "--yes"][..], &["release", "--force", "--yes"]] {
        let broken = env.output([words, &["./p.lock"]].concat());
        let said = text_of(&broken.stderr);
        assert_eq!(broken.status.code(), Some(1), "{said}");
        assert!(
            said.contains("not broken") && said.contains(&named),
            "{said}"
        );
        assert!(
            said.contains("break ") && said.contains("--force"),
            "{said}"
        );
    }
    assert!(env.path("p.lock").exists());
    let broken = env.json(["break", "--yes", "./p.lock"]);
    assert_eq!(broken["error"]["code"], "STILL_RUNNING", "{broken}");
    let processes = &broken["error"]["details"]["processes"];
    assert_eq!(processes[0]["pid"], locker.pid(), "{broken}");
    let broken = env.output(["break", "--yes", "--force", "./p.lock"]);
    let said = text_of(&broken.stderr);
    assert_eq!(broken.status.code(), Some(0), "{said}");
    let warning = format!("{named} was not signaled and keeps running");
    assert!(said.contains(&warning), "{said}");
    assert!(!env.path("p.lock").exists());
}

#[test]
fn file_of_an_exited_process_that_flock_has_locked_is_taken_by_force_with_a_warning() {
    let env = TestEnv::new();
    dead_record(&env);
    let locker = locker(&env);
    let taken = env.output(["run", "--force", "--yes", "./p.lock", "--", "true"]);
    let said = text_of(&taken.stderr);
    assert_eq!(taken.status.code(), Some(0), "{said}");
    let named = format!("process {} (flock)", locker.pid());
    assert!(said.contains(&format!("by force from {named}")), "{said}");
    assert!(
        said.contains(&format!("{named} was not signaled and keeps running")),
        "{said}"
    );
}

#[test]
fn file_of_a_reused_pid_that_flock_has_locked_is_held_by_flock() {
    let env = TestEnv::new();
    // It began after the time of the record.
    let other = Running::sleeper();
    let record = serde_json::json!({
        "job_id": "p", "process_id": other.pid(), "hostname": null,
        "acquired_at": "2026-01-01T00:00:00Z",
    });
    fs::write(env.path("p.lock"), record.to_string()).unwrap();
    let locker = locker(&env);
    let said = env.output(["check", "./p.lock"]);
    let said = text_of(&said.stdout);
    let named = format!("is held by process {} (flock) of user ", locker.pid());
    assert!(said.contains(&named), "{said}");
    let reused = format!(
        "process {}, which its record names, began later",
        other.pid()
    );
    assert!(said.contains(&reused), "{said}");
    assert_eq!(env.code(["break", "--yes", "./p.lock"]), 1);
}

#[test]
fn record_of_onehold_is_not_locked_as_a_file_of_flock() {
    let env = TestEnv::new();
    env.done(["acquire", "./x.lock", "--ttl", "1h"]);
    let refused = output(&mut run(&env, &[], &["true"]));
    let said = text_of(&refused.stderr);
    assert_eq!(refused.status.code(), Some(125), "{said}");
    assert!(said.contains("it has a record of onehold"), "{said}");
    assert_eq!(env.lock("./x.lock")["state"], "held");
}

#[test]
fn directories_and_scripts_can_be_locked_and_other_things_are_refused() {
    let env = TestEnv::new();
    fs::create_dir(env.path("directory")).unwrap();
    fs::write(env.path("script"), "#!/bin/sh\n").unwrap();
    output(env.command("mkfifo").arg("fifo"));
    std::os::unix::fs::symlink("script", env.path("link")).unwrap();
    for (file, code) in [
        ("directory", 0),
        ("script", 0),
        ("fifo", 125),
        ("link", 125),
        ("/dev/null", 125),
        ("missing/x", 125),
    ] {
        let ended = env.output(["run", "--format", "flock", file, "--", "true"]);
        assert_eq!(ended.status.code(), Some(code), "{file}: {ended:?}");
    }
    let _held = Running::start({
        let mut flock = env.command("flock");
        flock.args(["directory", "sleep", "1000"]);
        flock
    });
    wait_until("flock has the directory", || {
        env.code(["check", "--format", "flock", "directory"]) == 6
    });
}

#[test]
fn hold_is_lost_when_the_file_is_replaced() {
    let env = TestEnv::new();
    let mut holder = holder(&env, HOLDERS[4].1);
    fs::write(env.path("new"), "").unwrap();
    fs::rename(env.path("new"), env.path("x.lock")).unwrap();
    assert_eq!(holder.finish(), 8);
    assert_eq!(check(&env)["lock"]["state"], "free");
}

#[test]
fn waiter_does_not_take_a_file_that_was_replaced_meanwhile() {
    let env = TestEnv::new();
    let first = holder(&env, HOLDERS[0].1);
    let mut waiter = Running::start(run(&env, &["--wait", "60s"], &["true"]));
    wait_until("the waiter sleeps", || is_blocked_in_flock(waiter.pid()));
    fs::write(env.path("new"), "").unwrap();
    fs::rename(env.path("new"), env.path("x.lock")).unwrap();
    let script =
        "exec flock x.lock sh -c 'echo $$ > began2; until test -e end2; do sleep 0.005; done'";
    let mut second = Running::start(env.shell(script));
    env.pid_in("began2");
    end(&env, first);
    wait_until("the waiter sleeps at the file that is there now", || {
        let place = env.path("x.lock").canonicalize().unwrap();
        is_blocked_in_flock(waiter.pid())
            && fs::read_dir(format!("/proc/{}/fd", waiter.pid())).is_ok_and(|mut fds| {
                fds.any(|fd| {
                    fd.is_ok_and(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == place))
                })
            })
    });
    assert!(!waiter.has_ended());
    fs::write(env.path("end2"), "").unwrap();
    second.finish();
    assert_eq!(waiter.finish(), 0);
}

#[test]
#[ignore = "needs root: PID and mount namespaces"]
fn holder_outside_of_a_container_keeps_it_out_although_it_cannot_be_named() {
    for (name, script) in &HOLDERS[..2] {
        let env = TestEnv::new();
        let holder = holder(&env, script);
        let inside = |words: &str| {
            let mut unshare = env.command("unshare");
            unshare.args(["--pid", "--fork", "--mount-proc", "sh", "-c", words]);
            let ended = output(&mut unshare);
            (ended.status.code(), text_of(&ended.stderr))
        };
        let (code, said) = inside("onehold run --format flock x.lock -- true");
        assert_eq!(code, Some(6), "{name}: {said}");
        assert!(
            said.contains("a process that cannot be seen from here"),
            "{said}"
        );
        let (code, said) = inside("onehold check --format flock x.lock");
        // A reader out there cannot be found.
        let expected = if *name == "reader" { 0 } else { 6 };
        assert_eq!(code, Some(expected), "{name}: {said}");
        end(&env, holder);
        let (code, said) = inside("onehold run --format flock x.lock -- true");
        assert_eq!(code, Some(0), "{name}: {said}");
    }
}

#[test]
#[ignore = "needs root: a PID namespace"]
fn in_a_container_a_shell_that_has_locked_a_descriptor_is_found() {
    for option in ["", "-s"] {
        let env = TestEnv::new();
        let script = format!(
            "exec 9<>x.lock; flock {option} 9; \
             onehold check -q --format flock x.lock; echo $?; \
             onehold run --format flock -w forever x.lock -- true; echo $?"
        );
        let mut unshare = env.command("unshare");
        unshare.args(["--pid", "--fork", "--mount-proc", "sh", "-c", &script]);
        let ended = output(&mut unshare);
        assert_eq!(text_of(&ended.stdout), "6\n6\n", "{option}: {ended:?}");
        let said = text_of(&ended.stderr);
        assert!(said.contains("a wait would never end"), "{option}: {said}");
    }
}

#[test]
#[ignore = "needs root: a mount namespace"]
fn without_a_list_of_locks_a_file_without_a_writer_is_unverified() {
    let env = TestEnv::new();
    fs::write(env.path("x.lock"), "").unwrap();
    let without_proc = |words: &str| {
        let script = format!("umount -l /proc; {words}");
        let ended = output(
            env.command("unshare")
                .args(["--mount", "sh", "-c", &script]),
        );
        (
            ended.status.code(),
            text_of(&ended.stdout) + &text_of(&ended.stderr),
        )
    };
    let (code, said) = without_proc("onehold check --format flock x.lock");
    assert_eq!(code, Some(6), "{said}");
    assert!(
        said.contains("may be held") && said.contains("unverified"),
        "{said}"
    );
    let (code, said) = without_proc("onehold check --available -s --format flock x.lock");
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = without_proc("onehold run --format flock x.lock -- true");
    assert_eq!(code, Some(0), "{said}");
    let holder = holder(&env, HOLDERS[0].1);
    let (code, said) = without_proc("onehold check --format flock x.lock");
    assert_eq!(code, Some(6), "{said}");
    assert!(
        said.contains("is held by a process that cannot be seen"),
        "{said}"
    );
    end(&env, holder);
}
