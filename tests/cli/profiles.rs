//! Profiles and the configuration file.

use std::fs;

use predicates::prelude::*;
use predicates::str::{contains, is_empty};

use crate::env::{Env, Running, only_object, sleeper};

/// `onehold WORDS` on a terminal; each question is answered by the next of `answers`. The exit
/// code, and all that was seen.
fn on_a_terminal(env: &Env, words: &str, answers: &[&str]) -> (Option<i32>, String) {
    use std::io::{Read, Write};
    let mut child = std::process::Command::new("script")
        .args([
            "-qec",
            &format!("{} {words}", crate::env::program().display()),
            "/dev/null",
        ])
        .env("ONEHOLD_DIR", env.store())
        .env("HOME", env.root.path())
        .env_remove("XDG_CONFIG_HOME")
        .current_dir(env.root.path())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut seen = Vec::new();
    for answer in answers {
        let mut byte = [0];
        let from = seen.len();
        while !seen[from..].ends_with(b"[y/N] ") {
            let so_far = String::from_utf8_lossy(&seen).into_owned();
            assert_eq!(out.read(&mut byte).unwrap(), 1, "no question: {so_far}");
            seen.push(byte[0]);
        }
        input.write_all(answer.as_bytes()).unwrap();
    }
    drop(input);
    out.read_to_end(&mut seen).unwrap();
    let code = child.wait().unwrap().code();
    (code, String::from_utf8(seen).unwrap())
}

fn dead_sprint(env: &Env) {
    let mut dies = Running::start(sleeper());
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

#[test]
fn under_the_sprint_profile_every_zombie_is_asked_about() {
    let env = Env::new();
    dead_sprint(&env);
    env.onehold(SPRINT.split(' '))
        .assert()
        .code(5)
        .stdout(is_empty())
        .stderr(contains("no terminal to ask on"));
    let (code, seen) = on_a_terminal(&env, SPRINT, &["n\n"]);
    assert_eq!(code, Some(5), "{seen}");
    assert!(seen.contains("which is gone") && !seen.contains("mine\r\n"));
    assert_eq!(on_a_terminal(&env, SPRINT, &["\x03"]).0, Some(130));
    assert!(env.path(".sprint-running").exists());
    let (code, seen) = on_a_terminal(&env, SPRINT, &["y\n"]);
    assert_eq!(code, Some(0));
    assert!(seen.ends_with("mine\r\n"), "{seen}");
    for agreed in ["--yes", "--force", "--on-zombie=take"] {
        dead_sprint(&env);
        env.onehold(SPRINT.replace("run", &format!("run {agreed}")).split(' '))
            .assert()
            .success();
    }
}

#[test]
fn under_the_sprint_profile_a_living_holder_is_warned_about_twice() {
    let env = Env::new();
    let holder = Running::start(sleeper());
    let pid = holder.pid().to_string();
    let acquire = format!("--profile sprint acquire --owner s-0 -m e --pid {pid}");
    env.onehold(acquire.split(' ')).assert().success();
    env.onehold(SPRINT.split(' ')).assert().code(6).stderr(
        contains(format!(
            "onehold: Sprint already running (PID: {pid}, session: s-0, started: "
        ))
        .and(contains("  alive: same process, checked just now\n"))
        .and(contains("`onehold --profile sprint break ")),
    );
    let forced = SPRINT.replace("run", "run --force");
    let (code, seen) = on_a_terminal(&env, &forced, &["y\n", "n\n"]);
    assert_eq!(code, Some(6), "{seen}");
    assert_eq!(seen.matches("s-0").count(), 4, "{seen}");
    let (code, seen) = on_a_terminal(&env, &forced, &["y\n", "y\n"]);
    assert_eq!(code, Some(0), "{seen}");
    assert!(seen.contains("taken by force"), "{seen}");
}

#[test]
fn under_the_sprint_profile_an_overdue_holder_is_asked_about() {
    let env = Env::new();
    let holder = Running::start(sleeper());
    let pid = holder.pid().to_string();
    let acquire = format!("--profile sprint acquire --owner s-0 -m e --max-age 1ms --pid {pid}");
    env.onehold(acquire.split(' ')).assert().success();
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(
        env.json(["--profile", "sprint", "check"])["lock"]["state"],
        "overdue"
    );
    let (code, seen) = on_a_terminal(&env, SPRINT, &["y\n", "n\n"]);
    assert_eq!(code, Some(6), "{seen}");
    let (code, seen) = on_a_terminal(&env, SPRINT, &["y\n", "y\n"]);
    assert_eq!(code, Some(0), "{seen}");
}

#[test]
fn a_profile_needs_no_home_where_its_directory_is_given() {
    let env = Env::new();
    let store = env.path("locks");
    let mut list = env.onehold(["--profile", "prodigy", "--dir"]);
    list.arg(&store).arg("list");
    list.env_clear().env("HOME", "not absolute");
    list.assert().success();
    // A name beside a profile for one path is one of that directory.
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
fn what_the_sprint_needs_is_asked_for_in_its_words() {
    let env = Env::new();
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
        .stderr(contains(
            "onehold: Project root not accessible: no such file",
        ));
    env.onehold(["--profile", "sprint", "release"])
        .assert()
        .success()
        .stdout(is_empty());
}

#[test]
fn the_resume_locks_of_a_user_are_listed_with_no_further_word() {
    let env = Env::new();
    env.onehold(["--profile", "prodigy", "list"])
        .assert()
        .success()
        .stdout(is_empty());
    let holder = Running::start(sleeper());
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
    // Its journal is not kept among another program's files.
    env.onehold(["--profile", "prodigy", "break", "session-1", "--yes"])
        .assert()
        .success();
    assert_eq!(env.journal().len(), 1);
}

#[test]
fn tasks_are_leases_of_a_runner_and_refused_in_their_words() {
    let env = Env::new();
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
    assert!(again.status.success(), "he may ask again");
    acquire("backend/t1", "r2", &["-n"])
        .assert()
        .code(6)
        .stderr(contains(
            "onehold: backend/t1 is locked by runner r1\n  Lock expires at: 20",
        ));
    // A wait that was in vain is no other code.
    acquire("backend/t1", "r2", &["-w", "50ms"])
        .assert()
        .code(6);
    let refused = acquire("backend/t1", "r2", &["-n", "--json"])
        .output()
        .unwrap();
    let error = &only_object(&refused.stdout)["error"];
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
fn the_memory_profile_takes_its_session_from_the_environment() {
    let env = Env::new();
    fs::create_dir(env.path("memory")).unwrap();
    let holder = Running::start(sleeper());
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
    let mine = |session| {
        let out = memory("check", session).arg("--json").output().unwrap();
        only_object(&out.stdout)["lock"]["mine"].clone()
    };
    assert_eq!(mine("main"), true);
    assert_eq!(mine("other"), false);
    let refused = memory("acquire", "other")
        .args(["-n", "--json"])
        .output()
        .unwrap();
    let details = only_object(&refused.stdout)["error"]["details"].clone();
    assert_eq!(details["locked"], true);
    assert_eq!(details["holder"], "main");
    assert_eq!(details["we_hold_it"], false);
    memory("release", "other").assert().code(4);
    memory("release", "main").assert().success();
    // Who gives none is nobody, and never the same.
    memory("acquire", "")
        .args(["--pid", &pid])
        .assert()
        .success();
    memory("acquire", "")
        .args(["--pid", &pid, "-n"])
        .assert()
        .code(6);
    memory("acquire", "unknown")
        .args(["--pid", &pid, "-n"])
        .assert()
        .code(6);
}

#[test]
fn options_beat_a_profile_and_a_profile_beats_the_configuration() {
    let env = Env::new();
    env.write(
        ".config/onehold/config.toml",
        "[defaults]\nttl = \"1h\"\nmax-age = \"5h\"\n\n[profiles.mine]\nttl = \"2h\"\n\n\
         [profiles.sprint]\npath = \".running\"\n",
    );
    let ttl = |name: &str, more: &[&str]| {
        env.onehold(["acquire", name]).args(more).assert().success();
        let lock = env.lock(name);
        (lock["ttl_seconds"].clone(), lock["kind"].clone())
    };
    assert_eq!(ttl("a", &[]), (3600.0.into(), "lease".into()));
    assert_eq!(
        ttl("b", &["--profile", "mine"]),
        (7200.0.into(), "lease".into())
    );
    assert_eq!(
        ttl("c", &["--profile", "mine", "--ttl", "3h"]),
        (10800.0.into(), "lease".into())
    );
    env.onehold(["check", "-v", "a", "--profile", "mine"])
        .assert()
        .code(6)
        .stderr(contains(format!(
            "onehold: configuration: {}; profile: mine\n",
            env.path(".config/onehold/config.toml").display()
        )));
    // One of the same name changes the one that is built in.
    let sprint = [
        "--profile",
        "sprint",
        "run",
        "--owner",
        "s",
        "-m",
        "e",
        "--",
        "cat",
        ".running",
    ];
    env.onehold(sprint)
        .assert()
        .success()
        .stdout(contains("epic_spec: \"e\"\n"));
    env.onehold(["check", "a"])
        .env("ONEHOLD_CONFIG", "/dev/null")
        .assert()
        .code(6);
}

#[test]
fn a_configuration_that_makes_no_sense_is_an_error_that_names_line_and_key() {
    let env = Env::new();
    let path = env.write("own.toml", "[defaults]\nwait = \"5m\"\npol = \"5s\"\n");
    let mut check = env.onehold(["check", "x"]);
    check.env("ONEHOLD_CONFIG", &path);
    check
        .assert()
        .code(1)
        .stdout(is_empty())
        .stderr(contains(format!(
            "onehold: cannot use `{}`: line 3: `pol`: unknown field `pol`, expected one of ",
            path.display()
        )));
    for (line, why) in [
        ("dir = 5", "`dir`: expected a path, or an array of paths"),
        ("owner-env = \"\"", "`owner-env`: no name of a variable"),
    ] {
        let path = env.write("own.toml", format!("[defaults]\n{line}\n"));
        let mut check = env.onehold(["check", "x"]);
        check
            .env("ONEHOLD_CONFIG", path)
            .assert()
            .code(1)
            .stderr(contains(format!("line 2: {why}\n")));
    }
    let mut run = env.onehold(["run", "--json", "x", "--", "true"]);
    run.env("ONEHOLD_CONFIG", env.path("missing"));
    let failed = run.output().unwrap();
    assert_eq!(failed.status.code(), Some(125));
    assert_eq!(only_object(&failed.stderr)["success"], false);
    env.onehold(["--profile", "nope", "list"])
        .assert()
        .code(2)
        .stderr("onehold: no profile `nope`; there are memory, prodigy, sprint, tasks\n");
    env.onehold(["check"])
        .assert()
        .code(2)
        .stderr("onehold: no NAME: which lock?\n");
}

#[test]
fn a_profile_of_ones_own_says_where_and_in_which_terms() {
    let env = Env::new();
    env.write(
        ".config/onehold/config.toml",
        "[profiles.app]\ndir = \"~/app/locks\"\nformat = \"pid\"\nlocked-code = \"BUSY\"\n\
         refusal = \"{name} is busy ({pid})\"\ndetails = { who = \"pid\" }\nconflict-exit-code = 75\n",
    );
    let holder = Running::start(sleeper());
    let pid = holder.pid().to_string();
    env.onehold(["--profile", "app", "acquire", "x", "--pid", &pid])
        .assert()
        .success();
    let text = fs::read_to_string(env.path("app/locks/x.lock")).unwrap();
    assert_eq!(text, format!("{pid}\n"));
    let out = env
        .onehold(["--profile", "app", "acquire", "x", "--json"])
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(75));
    let object = only_object(&out.stdout);
    assert_eq!(object["error"]["code"], "BUSY");
    assert_eq!(object["error"]["message"], format!("x is busy ({pid})"));
    assert_eq!(object["error"]["details"]["who"], holder.pid());
    env.onehold(["--profile", "app", "list"])
        .assert()
        .success()
        .stdout(contains(format!("x     held   process {pid}")));
}

#[test]
fn a_wait_that_must_poll_looks_as_often_as_it_is_told() {
    let env = Env::new();
    env.write(
        ".config/onehold/config.toml",
        "[profiles.often]\npoll = \"30ms\"\n\n[profiles.seldom]\nbackoff = \"10s\"\n",
    );
    // On another host: nothing wakes who waits for it.
    let now = chrono::Utc::now().to_rfc3339();
    env.write(
        "store/x.lock",
        format!("{{\"job_id\": \"x\", \"process_id\": 1, \"hostname\": \"elsewhere\", \"acquired_at\": \"{now}\"}}"),
    );
    let looks = |profile: &str| {
        let mut strace = std::process::Command::new("strace");
        let trace = env.path("trace");
        strace
            .args(["-f", "-e", "trace=openat", "-o"])
            .arg(&trace)
            .arg(crate::env::program())
            .args([
                "--profile",
                profile,
                "run",
                "-q",
                "-w",
                "900ms",
                "x",
                "--",
                "true",
            ])
            .env("HOME", env.root.path())
            .env("ONEHOLD_DIR", env.store())
            .env_remove("XDG_CONFIG_HOME");
        assert_eq!(strace.status().unwrap().code(), Some(7));
        let text = fs::read_to_string(trace).unwrap();
        text.matches("\"x.lock\"").count()
    };
    let (often, seldom) = (looks("often"), looks("seldom"));
    assert!(often > 2 * seldom && often > 15, "{often} and {seldom}");
}
