//! The built-in profiles, and what the programs of their locks say.

use std::fs;
#[cfg(unix)]
use std::os::unix::fs::PermissionsExt;

use assert_cmd::prelude::OutputAssertExt;
use predicates::prelude::*;
use predicates::str::{contains, is_empty};
use serde_json::Value;

#[cfg(unix)]
use crate::harness::Signal;
use crate::harness::{Running, TestEnv, json_object, last_json_object};

fn dead_sprint(env: &TestEnv) {
    let mut dies = Running::sleeper();
    dies.kill();
    env.write(
        ".sprint-running",
        format!(
            "pid: {}\nsession_id: \"s-0\"\nstarted_at: \"2026-02-07T22:30:00Z\"\nepic_spec: \"e\"\nlock_version: 1\n",
            dies.pid()
        ),
    );
}

const SPRINT: &str = "--profile sprint run --owner s-1 -m e -- echo mine";

#[cfg(unix)]
#[test]
fn sprint_profile_asks_about_every_zombie() {
    let env = TestEnv::new();
    dead_sprint(&env);
    env.onehold(SPRINT.split(' '))
        .assert()
        .code(5)
        .stdout(is_empty())
        .stderr(contains(
            "cannot ask for confirmation: no terminal (use --yes)",
        ));
    let (code, seen) = env.on_a_terminal(SPRINT, &["n\n"]);
    assert_eq!(code, 5, "{seen}");
    assert!(seen.contains("has exited") && !seen.contains("mine\r\n"));
    assert_eq!(env.on_a_terminal(SPRINT, &["\x03"]).0, 130);
    assert!(env.path(".sprint-running").exists());
    let (code, seen) = env.on_a_terminal(SPRINT, &["y\n"]);
    assert_eq!(code, 0);
    assert!(seen.ends_with("mine\r\n"), "{seen}");
    for agreed in ["--yes", "--force", "--on-zombie=take"] {
        dead_sprint(&env);
        env.onehold(SPRINT.replace("run", &format!("run {agreed}")).split(' '))
            .assert()
            .success();
    }
}

#[cfg(unix)]
#[test]
fn sprint_profile_asks_twice_about_live_holder() {
    let env = TestEnv::new();
    let holder = Running::sleeper();
    let pid = holder.pid().to_string();
    let acquire = format!("--profile sprint acquire --owner s-0 -m e --pid {pid}");
    env.onehold(acquire.split(' ')).assert().success();
    env.onehold(SPRINT.split(' ')).assert().code(6).stderr(
        contains(format!(
            "onehold: Sprint already running (PID: {pid}, session: s-0, started: "
        ))
        .and(contains("  alive: PID and start time match\n"))
        .and(contains("`onehold --profile sprint break ")),
    );
    let forced = SPRINT.replace("run", "run --force");
    let (code, seen) = env.on_a_terminal(&forced, &["y\n", "n\n"]);
    assert_eq!(code, 6, "{seen}");
    assert_eq!(seen.matches("s-0").count(), 4, "{seen}");
    let (code, seen) = env.on_a_terminal(&forced, &["y\n", "y\n"]);
    assert_eq!(code, 0, "{seen}");
    assert!(seen.contains("took `./.sprint-running` by force"), "{seen}");
}

#[cfg(unix)]
#[test]
fn sprint_profile_asks_about_overdue_holder() {
    let env = TestEnv::new();
    let holder = Running::sleeper();
    let pid = holder.pid().to_string();
    let acquire = format!("--profile sprint acquire --owner s-0 -m e --max-age 1ms --pid {pid}");
    env.onehold(acquire.split(' ')).assert().success();
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(
        env.json(["--profile", "sprint", "check"])["lock"]["state"],
        "overdue"
    );
    let (code, seen) = env.on_a_terminal(SPRINT, &["y\n", "n\n"]);
    assert_eq!(code, 6, "{seen}");
    let before = fs::read(env.path(".sprint-running")).unwrap();
    // --yes alone is no permission to displace a living holder.
    let yes = SPRINT.replace("run", "run --yes");
    env.onehold(yes.split(' ')).assert().code(6);
    env.onehold(SPRINT.split(' '))
        .assert()
        .code(6)
        .stderr(contains("no terminal (use --force --yes)"));
    assert_eq!(fs::read(env.path(".sprint-running")).unwrap(), before);
    let (code, seen) = env.on_a_terminal(SPRINT, &["y\n", "y\n"]);
    assert_eq!(code, 0, "{seen}");
    env.onehold(acquire.split(' ')).assert().success();
    std::thread::sleep(std::time::Duration::from_millis(20));
    let forced = SPRINT.replace("run", "run --force --yes");
    env.onehold(forced.split(' ')).assert().success();
}

#[cfg(unix)]
#[test]
fn profile_with_directory_needs_no_home() {
    let env = TestEnv::new();
    let store = env.path("locks");
    let mut list = env.onehold(["--profile", "prodigy", "--dir"]);
    list.arg(&store).arg("list");
    list.env_clear().env("HOME", "not absolute");
    list.assert().success();
    // A NAME given with a profile with a path is a lock in that directory.
    env.onehold(["--profile", "sprint", "--dir"])
        .arg(&store)
        .args([
            "run",
            "x",
            "--owner",
            "o",
            "-m",
            "m",
            "--",
            "sh",
            "-c",
            "echo $ONEHOLD_FILE",
        ])
        .assert()
        .success()
        .stdout(contains("locks/x.lock"));
}

#[test]
fn sprint_profile_uses_messages_of_sprint() {
    let env = TestEnv::new();
    let acquire = |more: &[&str]| {
        let mut command = env.onehold(["--profile", "sprint", "acquire"]);
        command.args(more);
        command
    };
    acquire(&[])
        .assert()
        .code(2)
        .stderr(contains("session_id required for acquire mode"));
    acquire(&["--owner", "s"])
        .assert()
        .code(2)
        .stderr(contains("epic_spec required for acquire mode"));
    acquire(&["--owner", "s", "-m", "e", "--dir", "nowhere"])
        .assert()
        .code(1)
        .stderr(contains("onehold: Project root not accessible: "));
    env.onehold(["--profile", "sprint", "release"])
        .assert()
        .success()
        .stdout(is_empty());
}

#[test]
fn prodigy_profile_lists_resume_locks() {
    let env = TestEnv::new();
    env.onehold(["--profile", "prodigy", "list"])
        .assert()
        .success()
        .stdout(is_empty());
    let holder = Running::sleeper();
    let pid = holder.pid().to_string();
    env.onehold([
        "--profile",
        "prodigy",
        "acquire",
        "session-1",
        "--pid",
        &pid,
    ])
    .assert()
    .success();
    assert!(env.path(".prodigy/resume_locks/session-1.lock").exists());
    env.onehold(["list"])
        .env("ONEHOLD_PROFILE", "prodigy")
        .assert()
        .success()
        .stdout(contains("session-1  held "));
    env.onehold(["--profile", "prodigy", "run", "session-1", "--", "true"])
        .assert()
        .code(6)
        .stderr(
            contains("onehold: Resume already in progress for job session-1\n")
                .and(contains(format!("  Lock held by: PID {pid} on "))),
        );
    env.onehold(["--profile", "prodigy", "list"])
        .env("PRODIGY_HOME", env.path("elsewhere"))
        .assert()
        .success()
        .stdout(is_empty());
    // The journal is not in the directory of the other program.
    env.onehold(["--profile", "prodigy", "break", "session-1", "--yes"])
        .assert()
        .success();
    assert_eq!(env.journal().len(), 1);
}

#[test]
fn tasks_profile_uses_leases_and_own_messages() {
    let env = TestEnv::new();
    let acquire = |name: &str, runner: &str, more: &[&str]| {
        let mut command = env.onehold(["--profile", "tasks", "acquire", name, "--owner", runner]);
        command.args(more);
        command
    };
    acquire("backend", "r1", &[]).assert().success();
    acquire("backend/t1", "r1", &[]).assert().success();
    assert_eq!(env.lock("backend")["ttl_seconds"], 7200.0);
    assert_eq!(env.lock("backend/t1")["ttl_seconds"], 3600.0);
    let again = acquire("backend/t1", "r1", &[]).output().unwrap();
    assert!(again.status.success(), "the same owner may repeat acquire");
    acquire("backend/t1", "r2", &["-n"])
        .assert()
        .code(6)
        .stderr(contains(
            "onehold: Task \"backend/t1\" is locked by runner r1\n  Lock expires at: 20",
        ));
    // A timeout has the same code.
    acquire("backend/t1", "r2", &["-w", "50ms"])
        .assert()
        .code(6);
    let refused = acquire("backend/t1", "r2", &["-n", "--json"])
        .output()
        .unwrap();
    let error = &json_object(&refused.stdout)["error"];
    assert_eq!(error["code"], "TASK_LOCKED");
    assert_eq!(error["details"]["taskId"], "backend/t1");
    assert_eq!(error["details"]["lockedBy"], "r1");
    assert!(error["details"]["expiresAt"].is_string());
    env.onehold([
        "--profile",
        "tasks",
        "release",
        "backend/t1",
        "--owner",
        "r2",
    ])
    .assert()
    .code(4);
    env.onehold([
        "--profile",
        "tasks",
        "release",
        "backend/t1",
        "--force",
        "-y",
    ])
    .assert()
    .success();
}

#[test]
fn refusal_by_a_section_names_the_section_and_the_task_that_was_asked_for() {
    let env = TestEnv::new();
    let tasks = |words: &[&str]| env.onehold([&["--profile", "tasks"], words].concat());
    tasks(&["acquire", "backend", "--owner", "r1"])
        .assert()
        .success();
    let begin = "onehold: Section \"backend\" is locked by runner r1\n  Lock expires at: 20";
    for asked in ["backend/task-2", "backend"] {
        let acquire = ["acquire", "-n", asked, "--owner", "r2"];
        tasks(&acquire).assert().code(6).stderr(contains(begin));
        let refused = tasks(&acquire).arg("--json").output().unwrap();
        let details = &json_object(&refused.stdout)["error"]["details"];
        assert_eq!(details["taskId"], asked);
        assert_eq!(details["lockedBy"], "r1");
    }
    tasks(&["check", "backend"])
        .assert()
        .code(6)
        .stdout(contains("Section \"backend\" is locked by runner r1\n"));
    let lock = env.json(["--profile", "tasks", "check", "backend"])["lock"].take();
    assert_eq!(lock["details"]["taskId"], "backend");
}

#[test]
fn memory_profile_reads_owner_from_environment() {
    let env = TestEnv::new();
    fs::create_dir(env.path("memory")).unwrap();
    let holder = Running::sleeper();
    let pid = holder.pid().to_string();
    let memory = |verb: &str, session: &str| {
        let mut command = env.onehold(["--profile", "memory", verb]);
        command.env("CLAWDBOT_SESSION_ID", session);
        command
    };
    memory("acquire", "main")
        .args(["--pid", &pid])
        .assert()
        .success();
    let lock = || {
        json_object(
            &memory("check", "main")
                .arg("--json")
                .output()
                .unwrap()
                .stdout,
        )
    };
    assert_eq!(lock()["lock"]["session_id"], "main");
    let refused = memory("acquire", "other")
        .args(["-n", "--json"])
        .output()
        .unwrap();
    let details = json_object(&refused.stdout)["error"]["details"].clone();
    assert_eq!(details["locked"], true);
    assert_eq!(details["holder"]["session_id"], "main");
    assert_eq!(details["holder"]["pid"], holder.pid());
    assert_eq!(details["stale_reason"], Value::Null);
    assert_eq!(details["we_hold_it"], false);
    memory("release", "other").assert().code(4);
    memory("break", "main").arg("--yes").assert().success();
    // Two callers without an owner are different owners.
    let other = Running::sleeper();
    let other = other.pid().to_string();
    memory("acquire", "")
        .args(["--pid", &pid])
        .assert()
        .success();
    memory("acquire", "")
        .args(["--pid", &other, "-n"])
        .assert()
        .code(6);
    memory("acquire", "unknown")
        .args(["--pid", &other, "-n"])
        .assert()
        .code(6);
}

#[test]
fn missing_root_of_a_project_is_an_error_of_every_verb() {
    let env = TestEnv::new();
    for words in [
        "check",
        "list",
        "cleanup",
        "release --owner s",
        "renew --owner s",
        "break --yes",
        "acquire --owner s -m e",
        "run --owner s -m e -- true",
    ] {
        let verb = words.split(' ').next().unwrap();
        let code = if verb == "run" { 125 } else { 1 };
        env.onehold(["--profile", "sprint", "--dir", "nowhere"])
            .args(words.split(' '))
            .assert()
            .code(code)
            .stderr(contains(if cfg!(windows) {
                "Project root not accessible: path not found"
            } else {
                "Project root not accessible: no such file or directory"
            }));
    }
    assert!(!env.path("nowhere").exists());
}

#[test]
fn directory_of_the_memory_lock_is_made_in_a_workspace_that_exists() {
    let env = TestEnv::new();
    fs::create_dir(env.path("workspace")).unwrap();
    let words = ["--profile", "memory", "--dir", "workspace"];
    env.onehold(words).arg("check").assert().success();
    assert!(
        !env.path("workspace/memory").exists(),
        "a look makes nothing"
    );
    env.onehold(words)
        .args(["run", "-m", "dream", "--", "true"])
        .assert()
        .success();
    assert!(env.path("workspace/memory").is_dir());
    env.onehold([
        "--profile",
        "memory",
        "--dir",
        "nowhere",
        "run",
        "-m",
        "dream",
        "--",
        "true",
    ])
    .assert()
    .code(125);
    assert!(!env.path("nowhere").exists());
}

#[cfg(unix)]
#[test]
fn directory_of_prodigy_is_made_as_prodigy_makes_it() {
    let env = TestEnv::new();
    let mut run = env.command("sh");
    run.args([
        "-c",
        "umask 022; onehold --profile prodigy run session-7 -- true",
    ]);
    assert!(run.status().unwrap().success());
    let made = fs::metadata(env.path(".prodigy/resume_locks")).unwrap();
    assert_eq!(made.permissions().mode() & 0o777, 0o755);
    // Onehold's own directory is private.
    env.onehold(["run", "x", "--", "true"]).assert().success();
    let own = fs::metadata(env.store()).unwrap();
    assert_eq!(own.permissions().mode() & 0o777, 0o700);
}

#[test]
fn refusal_of_a_live_foreign_holder_takes_less_than_the_settling_time() {
    let env = TestEnv::new();
    let holder = Running::sleeper();
    env.write(
        ".prodigy/resume_locks/session-7.lock",
        format!(
            "{{\"job_id\": \"session-7\", \"process_id\": {}, \"hostname\": \"{}\", \"acquired_at\": \"{}\"}}",
            holder.pid(),
            hostname::get().unwrap().to_str().unwrap(),
            chrono::Utc::now().to_rfc3339(),
        ),
    );
    let took = (0..20).map(|_| {
        let began = std::time::Instant::now();
        env.onehold(["--profile", "prodigy", "run", "session-7", "--", "true"])
            .assert()
            .code(6);
        began.elapsed()
    });
    let least = took.min().unwrap();
    // To start a program takes longer than that under Wine.
    assert!(
        cfg!(windows) || least < std::time::Duration::from_millis(50),
        "{least:?}"
    );
}

// Windows cannot exchange two files: there it is `break` that removes it.
#[cfg(unix)]
#[test]
fn zombie_of_the_sprint_mutex_is_released_without_its_session() {
    let env = TestEnv::new();
    dead_sprint(&env);
    env.onehold(["--profile", "sprint", "release"])
        .assert()
        .success()
        .stderr(contains(
            "onehold: removed zombie `./.sprint-running`: process ",
        ));
    assert!(!env.path(".sprint-running").exists());
}

#[cfg(unix)]
#[test]
fn full_disk_is_told_in_the_words_of_the_profile() {
    let env = TestEnv::new();
    env.session("ulimit -f 0; onehold --profile sprint acquire --pid 1 --owner s -m e")
        .assert()
        .code(1)
        .stderr(contains("onehold: Failed to write lock file: "));
    assert!(!env.path(".sprint-running").exists());
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "needs strace: apt install strace"]
fn root_that_cannot_be_locked_is_told_in_the_words_of_the_profile() {
    let env = TestEnv::new();
    let script = "strace -qq -o /dev/null -e trace=flock -e inject=flock:error=EIO \
        onehold --profile sprint acquire --owner o -m m --pid $$";
    env.session(script).assert().code(1).stderr(contains(
        "onehold: Project root not accessible: input/output error (cannot lock store `",
    ));
}

#[test]
fn owner_can_be_required() {
    let env = TestEnv::new();
    env.configure("[profiles.mine]\nowner-required = true\n");
    for (profile, text) in [
        ("tasks", "runner id required: --owner"),
        ("mine", "owner required: --owner"),
    ] {
        for verb in ["acquire", "run"] {
            let mut command = env.onehold(["--profile", profile, verb, "x"]);
            if verb == "run" {
                command.args(["--", "true"]);
            }
            command.assert().code(2).stderr(format!(
                "onehold: {text}\n  for help, run `onehold {verb} --help`\n"
            ));
        }
        env.onehold(["--profile", profile, "check", "x"])
            .assert()
            .success();
    }
    assert!(!env.store().exists());
}

#[test]
fn tasks_of_two_projects_do_not_exclude_each_other() {
    let env = TestEnv::new();
    let acquire = |directory: &str, runner: &str| {
        let mut command = env.onehold(["--profile", "tasks", "acquire", "-n", "backend"]);
        command
            .args(["--owner", runner])
            .current_dir(env.path(directory));
        command.output().unwrap().status.code()
    };
    fs::create_dir_all(env.path("one/.steroids")).unwrap();
    fs::create_dir_all(env.path("one/src/deep")).unwrap();
    fs::create_dir_all(env.path("two/.steroids")).unwrap();
    assert_eq!(acquire("one/src/deep", "a"), Some(0));
    assert_eq!(acquire("two", "b"), Some(0));
    assert_eq!(acquire("one", "b"), Some(6));
    assert!(env.path("one/.steroids/locks/backend.lock").exists());
    // Outside of a project, in the store of everything else.
    assert_eq!(acquire(".", "b"), Some(0));
    assert!(env.store().join("backend.lock").exists());
}

#[test]
fn ttl_without_pid_is_no_lease_in_a_foreign_format() {
    let env = TestEnv::new();
    let holder = Running::sleeper();
    let pid = holder.pid().to_string();
    let acquire = |options: &[&str]| {
        let mut command = env.onehold(["--profile", "memory", "acquire"]);
        let output = command.args(options).output().unwrap();
        env.onehold(["--profile", "memory", "break", "--yes", "--force"])
            .output()
            .unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    let warning = "onehold: warning: the memory format has no leases";
    assert_eq!(acquire(&["--ttl", "20s"]).matches(warning).count(), 1);
    assert!(!acquire(&["--ttl", "20s", "--pid", &pid]).contains(warning));
    assert!(!acquire(&[]).contains(warning));
}

#[test]
fn every_answer_has_the_details_of_the_profile() {
    let env = TestEnv::new();
    let holder = Running::sleeper();
    let pid = holder.pid().to_string();
    let info = |words: &[&str]| {
        let mut command = env.onehold(["--profile", "sprint", "--json"]);
        let output = command.args(words).output().unwrap();
        let line = match words[0] {
            "run" => output.stderr,
            _ => output.stdout,
        };
        last_json_object(&line)["lock"]["details"]["lock_info"].take()
    };
    assert_eq!(info(&["check"])["exists"], false);
    let run = ["run", "--owner", "s", "-m", "e", "--", "true"];
    assert_eq!(info(&run)["session_id"], "s");
    let acquired = info(&["acquire", "--pid", &pid, "--owner", "s", "-m", "e"]);
    assert_eq!(acquired["pid"], holder.pid());
    assert_eq!(
        (&acquired["epic_spec"], &acquired["pid_alive"]),
        (&"e".into(), &true.into())
    );
    assert_eq!(info(&["check"])["session_id"], "s");
    // The state after.
    for remove in [&["break", "--yes"][..], &["release", "--owner", "s"]] {
        let after = info(remove);
        assert_eq!(after["exists"], false, "{after}");
        assert_eq!(after, info(&["check"]), "{remove:?}");
        info(&["acquire", "--pid", &pid, "--owner", "s", "-m", "e"]);
    }
    drop(holder);
    // Windows cannot swap two files, which a takeover from another program needs.
    if cfg!(unix) {
        let cleaned = env.json(["--profile", "sprint", "cleanup"])["locks"].take();
        assert_eq!(cleaned[0]["reason"], "dead", "{cleaned}");
        assert_eq!(cleaned[0]["details"]["lock_info"], info(&["check"]));
        assert_eq!(info(&["release"])["exists"], false);
    }
}

#[test]
fn run_says_with_verbose_that_it_released_the_lock() {
    let env = TestEnv::new();
    env.onehold(["run", "-v", "x", "--", "true"])
        .assert()
        .success()
        .stderr(contains("onehold: released `x`\n"));
    env.onehold(["run", "x", "--", "true"])
        .assert()
        .success()
        .stderr(is_empty());
}

#[cfg(unix)]
#[test]
fn reserved_lock_names_whom_it_is_reserved_for() {
    let env = TestEnv::new();
    let tasks = ["--profile", "tasks"];
    let acquire =
        |runner: &'static str| [&tasks[..], &["acquire", "x", "--owner", runner]].concat();
    env.onehold(acquire("a")).assert().success();
    let mut waiter = env.start(acquire("b"));
    env.wait_for_waiter("x");
    waiter.signal(Signal::STOP);
    env.onehold([&tasks[..], &["release", "x", "--owner", "a"]].concat())
        .assert()
        .success();
    let refused = env
        .onehold([&acquire("c")[..], &["-n", "--json"]].concat())
        .output()
        .unwrap();
    waiter.signal(Signal::CONT);
    let object = json_object(&refused.stdout);
    assert_eq!(refused.status.code(), Some(6));
    assert_eq!(object["error"]["code"], "RESERVED");
    // A reservation has no holder.
    assert_eq!(object["error"]["details"]["lockedBy"], Value::Null);
    assert_eq!(object["lock"]["owner"], Value::Null);
    let first = &object["lock"]["reserved_for"];
    assert_eq!(*first, object["lock"]["waiters"][0]);
    assert_eq!(
        (&first["owner"], &first["pid"]),
        (&"b".into(), &waiter.pid().into())
    );
    assert!(
        object["message"]
            .as_str()
            .unwrap()
            .starts_with("`x` is reserved for process ")
    );
    assert_eq!(waiter.finish(), 0);
}

/// The file, the object of each call, and another call say the same time.
#[test]
fn time_of_expiry_is_the_same_wherever_it_is_read() {
    let env = TestEnv::new();
    let in_file = || {
        let record: Value = serde_json::from_str(&env.record("x")).unwrap();
        record["live"]["expires_at"].clone()
    };
    env.onehold(["acquire", "x", "--ttl", "1h", "--owner", "o"])
        .assert()
        .success();
    for _ in 0..2 {
        let written = in_file();
        assert!(written.is_string());
        for _ in 0..5 {
            assert_eq!(env.lock("x")["expires_at"], written);
            assert_eq!(env.json(["list"])["locks"][0]["expires_at"], written);
        }
        env.onehold(["renew", "x", "--owner", "o", "--ttl", "2h"])
            .assert()
            .success();
    }
}

#[cfg(unix)]
#[test]
fn release_of_another_session_names_both_sessions_of_the_sprint_mutex() {
    let env = TestEnv::new();
    let holder = Running::sleeper();
    let pid = holder.pid().to_string();
    let acquire = [
        "--profile",
        "sprint",
        "acquire",
        "--owner",
        "s-1",
        "-m",
        "e",
        "--pid",
        &pid,
    ];
    env.onehold(acquire).assert().success();
    for (words, expected) in [
        (&["release", "--owner", "s-2"][..], "s-2"),
        (&["renew", "--owner", "s-2"], "s-2"),
        (&["release"], "none"),
    ] {
        let text = format!("Lock session mismatch (expected: {expected}, actual: s-1)");
        let words = [&["--profile", "sprint"], words].concat();
        env.onehold(&words).assert().code(4).stderr(
            contains(format!("onehold: {text}\n  not re")).and(contains("held by process ")),
        );
        assert_eq!(env.json(words)["message"], text);
    }
    // It has no words about numbers.
    env.onehold(["--profile", "sprint", "release", "--hold", "1"])
        .assert()
        .code(4)
        .stderr(contains("onehold: not released: "));
}

#[cfg(unix)]
#[test]
fn file_that_is_no_resume_lock_gets_the_same_hint_from_each_verb() {
    let env = TestEnv::new();
    let path = env.write(".prodigy/resume_locks/mapreduce-1.lock", "garbage");
    let path = path.display();
    for words in [
        "run mapreduce-1 -- true",
        "check mapreduce-1",
        "check --available mapreduce-1",
        "cleanup mapreduce-1",
        "cleanup -n mapreduce-1",
        "break --yes mapreduce-1",
    ] {
        let code = if words.starts_with("run") { 125 } else { 1 };
        let hint = if cfg!(windows) {
            format!("remove `{path}`")
        } else {
            format!("run `rm {path}`")
        };
        let said = env
            .onehold(["--profile", "prodigy"])
            .args(words.split(' '))
            .assert();
        said.code(code)
            .stderr(
                contains(" is not a lock: unrecognized file content\n").and(contains(format!(
                    "  left unchanged; onehold only removes locks: if no program needs it, {hint}\n"
                ))),
            );
    }
    // Beside it the others are removed.
    env.create_zombie("x");
    env.write("store/y.lock", "garbage");
    let said = env.onehold(["cleanup", "x", "y"]).assert().code(1);
    said.stdout(contains("removed zombie `x`"))
        .stderr(contains("y.lock` is not a lock: unrecognized file content"));
    // Without a name it cleans up what are locks.
    env.onehold(["--profile", "prodigy", "cleanup"])
        .assert()
        .success()
        .stderr(is_empty());
}

#[cfg(unix)]
#[test]
fn cleanup_says_what_moves_a_damaged_file_aside() {
    let env = TestEnv::new();
    let path = env.write(".sprint-running", "garbage");
    let cleanup = || {
        env.onehold(["--profile", "sprint", "cleanup"])
            .assert()
            .success()
    };
    cleanup().stderr(is_empty());
    let then = std::time::SystemTime::now() - std::time::Duration::from_mins(1);
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(then).unwrap();
    cleanup().stderr(
        contains("warning: not removed: `./.sprint-running` is damaged: ").and(contains(
            "; to move its file aside, run `onehold --profile sprint ",
        )),
    );
    assert!(path.exists());
}

#[test]
fn bare_uuid_is_a_task() {
    let env = TestEnv::new();
    let task = "0f8fad5b-d9cb-469f-a165-70867728950e";
    let section = "0f8fad5b-d9cb-469f-a165-section";
    let acquire = |name: &str, runner: &str| {
        let words = [
            "--profile",
            "tasks",
            "acquire",
            "-n",
            name,
            "--owner",
            runner,
        ];
        env.onehold(words)
    };
    for (name, kind, ttl) in [(task, "Task", 3600.0), (section, "Section", 7200.0)] {
        acquire(name, "r1").assert().success();
        assert_eq!(env.lock(name)["ttl_seconds"], ttl);
        let said =
            format!("onehold: {kind} \"{name}\" is locked by runner r1\n  Lock expires at: 20");
        acquire(name, "r2").assert().code(6).stderr(contains(said));
    }
}

#[cfg(unix)]
#[test]
#[ignore = "needs git: apt install git"]
fn gitignore_of_the_page_covers_what_is_left_beside_the_locks() {
    let env = TestEnv::new();
    let page = include_str!("../../../man/onehold-formats.5");
    let (_, lines) = page.split_once(".SH FILES BESIDE THE LOCKS").unwrap();
    let (lines, _) = lines
        .split_once(".EX\n")
        .unwrap()
        .1
        .split_once(".EE")
        .unwrap();
    env.write(".gitignore", lines.replace("\\&", "").replace("\\-", "-"));
    let then = std::time::SystemTime::now() - std::time::Duration::from_mins(1);
    for file in [".sprint-running", "memory/.lock"] {
        let file = fs::File::open(env.write(file, "garbage")).unwrap();
        file.set_modified(then).unwrap();
    }
    env.done(["--profile", "sprint", "break", "--yes"]);
    env.done(["--profile", "memory", "run", "-m", "m", "--", "true"]);
    fs::create_dir(env.path(".steroids")).unwrap();
    env.done(["--profile", "tasks", "acquire", "x", "--owner", "r"]);
    let holder = Running::sleeper();
    let pid = holder.pid().to_string();
    env.done([
        "--profile",
        "sprint",
        "acquire",
        "--owner",
        "s",
        "-m",
        "e",
        "--pid",
        &pid,
    ]);
    for temporary in [
        "memory/.lock.tmp",
        "memory/.lock.lock.tmp",
        ".sprint-running.tmp",
    ] {
        env.write(temporary, "");
    }
    let git = |words: &str| {
        let output = crate::harness::output(env.command("git").args(words.split(' ')));
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    git("init -q .");
    let seen = git("status --porcelain --untracked-files=all");
    let seen: Vec<&str> = seen
        .lines()
        .filter(|line| !line.contains("store/"))
        .collect();
    assert_eq!(seen, ["?? .gitignore"]);
}
