//! Profiles and the configuration file.

use std::fs;
#[cfg(unix)]
use std::os::unix::fs::PermissionsExt;

use predicates::prelude::*;
use predicates::str::{contains, is_empty};
use serde_json::Value;

use crate::env::{Env, Running, only_object, sleeper};

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

#[cfg(unix)]
#[test]
fn sprint_profile_asks_about_every_zombie() {
    let env = Env::new();
    dead_sprint(&env);
    env.onehold(SPRINT.split(' '))
        .assert()
        .code(5)
        .stdout(is_empty())
        .stderr(contains(
            "cannot ask for confirmation: no terminal (use --yes)",
        ));
    let (code, seen) = env.on_a_terminal(SPRINT, &["n\n"]);
    assert_eq!(code, Some(5), "{seen}");
    assert!(seen.contains("has exited") && !seen.contains("mine\r\n"));
    assert_eq!(env.on_a_terminal(SPRINT, &["\x03"]).0, Some(130));
    assert!(env.path(".sprint-running").exists());
    let (code, seen) = env.on_a_terminal(SPRINT, &["y\n"]);
    assert_eq!(code, Some(0));
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
    let env = Env::new();
    let holder = Running::start(sleeper());
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
    assert_eq!(code, Some(6), "{seen}");
    assert_eq!(seen.matches("s-0").count(), 4, "{seen}");
    let (code, seen) = env.on_a_terminal(&forced, &["y\n", "y\n"]);
    assert_eq!(code, Some(0), "{seen}");
    assert!(seen.contains("took `./.sprint-running` by force"), "{seen}");
}

#[cfg(unix)]
#[test]
fn sprint_profile_asks_about_overdue_holder() {
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
    let (code, seen) = env.on_a_terminal(SPRINT, &["y\n", "n\n"]);
    assert_eq!(code, Some(6), "{seen}");
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
    assert_eq!(code, Some(0), "{seen}");
    env.onehold(acquire.split(' ')).assert().success();
    std::thread::sleep(std::time::Duration::from_millis(20));
    let forced = SPRINT.replace("run", "run --force --yes");
    env.onehold(forced.split(' ')).assert().success();
}

#[cfg(unix)]
#[test]
fn profile_with_directory_needs_no_home() {
    let env = Env::new();
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
        .stderr(contains("onehold: Project root not accessible: "));
    env.onehold(["--profile", "sprint", "release"])
        .assert()
        .success()
        .stdout(is_empty());
}

#[test]
fn prodigy_profile_lists_resume_locks() {
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
    // The journal is not in the directory of the other program.
    env.onehold(["--profile", "prodigy", "break", "session-1", "--yes"])
        .assert()
        .success();
    assert_eq!(env.journal().len(), 1);
}

#[test]
fn tasks_profile_uses_leases_and_own_messages() {
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
fn memory_profile_reads_owner_from_environment() {
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
    assert_eq!(details["holder"]["session_id"], "main");
    assert_eq!(details["holder"]["pid"], holder.pid());
    assert_eq!(details["stale_reason"], Value::Null);
    assert_eq!(details["we_hold_it"], false);
    memory("release", "other").assert().code(4);
    memory("release", "main").assert().success();
    // Two callers without an owner are different owners.
    let other = Running::start(sleeper());
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
fn options_override_profile_and_profile_overrides_defaults() {
    let env = Env::new();
    env.configure(
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
            env.configuration().display()
        )));
    // A profile with the name of a built-in profile overrides its keys.
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
    let empty = env.write("empty.toml", "");
    env.onehold(["check", "a"])
        .env("ONEHOLD_CONFIG", empty)
        .assert()
        .code(6);
}

#[test]
fn invalid_configuration_error_names_line_and_key() {
    let env = Env::new();
    let path = env.write("own.toml", "[defaults]\nwait = \"5m\"\npol = \"5s\"\n");
    let mut check = env.onehold(["check", "x"]);
    check.env("ONEHOLD_CONFIG", &path);
    check
        .assert()
        .code(1)
        .stdout(is_empty())
        .stderr(contains(format!(
            "onehold: cannot use `{}`: line 3: `pol`: unknown key `pol`; did you mean `poll`?",
            path.display()
        )));
    for (line, why) in [
        ("dir = 5", "`dir`: expected a path, or an array of paths"),
        ("owner-env = \"\"", "`owner-env`: not a variable name"),
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
        .stderr("onehold: unknown profile `nope`; available: memory, prodigy, sprint, tasks\n");
    env.onehold(["check"])
        .assert()
        .code(2)
        .stderr("onehold: missing NAME\n");
}

#[test]
fn own_profile_sets_directory_format_and_details() {
    let env = Env::new();
    env.configure(
        "[profiles.app]\ndir = \"~/app/locks\"\nformat = \"pid\"\nlocked-code = \"BUSY\"\n\
         refusal = \"{name} is busy ({pid})\"\ndetails = { who = \"pid\" }\nconflict-exit-code = 75\n",
    );
    let holder = Running::start(sleeper());
    let pid = holder.pid().to_string();
    env.onehold(["--profile", "app", "acquire", "x", "--pid", &pid])
        .assert()
        .success();
    let text = fs::read_to_string(env.path("app/locks/x.lock")).unwrap();
    let width = if cfg!(windows) { 15 } else { 7 };
    assert_eq!(text, format!("{pid:<width$}\n"));
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

#[cfg(unix)]
#[test]
fn poll_interval_follows_configuration() {
    let env = Env::new();
    env.configure("[profiles.often]\npoll = \"30ms\"\n\n[profiles.seldom]\nbackoff = \"10s\"\n");
    // The release of a lock on another host cannot be observed.
    let now = chrono::Utc::now().to_rfc3339();
    env.write(
        "store/x.lock",
        format!("{{\"job_id\": \"x\", \"process_id\": 1, \"hostname\": \"elsewhere\", \"acquired_at\": \"{now}\"}}"),
    );
    let looks = |profile: &str| {
        let mut strace = env.command("strace");
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
            ]);
        assert_eq!(strace.status().unwrap().code(), Some(7));
        let text = fs::read_to_string(trace).unwrap();
        text.matches("\"x.lock\"").count()
    };
    let (often, seldom) = (looks("often"), looks("seldom"));
    assert!(often > 2 * seldom && often > 15, "{often} and {seldom}");
}

#[cfg(unix)]
#[test]
fn break_moves_aside_only_unchanged_file_at_path_of_profile() {
    let env = Env::new();
    let path = env.write(".sprint-running", "not a lock\n");
    let sprint = |words: &[&str]| {
        let mut command = env.onehold(["--profile", "sprint"]);
        command.args(words);
        command
    };
    let acquire = ["acquire", "--owner", "o", "-m", "m", "--pid", "1"];
    // Its program may still be writing it.
    sprint(&acquire)
        .assert()
        .code(6)
        .stderr(contains("may be held: its lock file is incomplete"));
    sprint(&["break", "--yes"])
        .assert()
        .code(1)
        .stderr(contains("changed less than 10 s ago"));
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(11);
    let make_older = || {
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(long_ago).unwrap();
    };
    make_older();
    let break_it = format!(
        "onehold --profile sprint --dir {} break",
        env.root.path().display()
    );
    sprint(&acquire)
        .assert()
        .code(5)
        .stderr(contains(
            "onehold: Lock file exists but has invalid format\n",
        ))
        .stderr(contains(format!(
            "  file left unchanged; to move it aside, add --yes or run `{break_it}`\n"
        )));
    let refused = sprint(&acquire).arg("--json").output().unwrap();
    let object = only_object(&refused.stdout);
    assert_eq!(
        (&object["status"], &object["error"]["code"]),
        (&"blocked".into(), &"MALFORMED".into())
    );
    sprint(&["check"]).assert().code(5).stdout(contains(
        "Lock file exists but has invalid format\n`./.sprint-running` is damaged: ",
    ));
    sprint(&["check", "--available"]).assert().code(6);
    // A path that was typed may be a mistake.
    env.onehold(["break", "--yes", "./.sprint-running"])
        .assert()
        .code(1)
        .stderr(contains("file left unchanged; use another lock name"));
    let mut unanswered = env.command("setsid");
    unanswered.arg(crate::env::program());
    let mut unanswered = assert_cmd::Command::from_std(unanswered);
    unanswered
        .args(["--profile", "sprint", "break"])
        .assert()
        .code(1)
        .stderr(contains("not confirmed: `./.sprint-running` is not a lock"));
    assert_eq!(fs::read_to_string(&path).unwrap(), "not a lock\n");
    sprint(&["break", "--yes"]).assert().success();
    assert!(!path.exists());
    let event = &env.journal()[0];
    assert_eq!(event["event"], "break");
    assert_eq!(
        event["reason"],
        "it was not a lock file, and was moved aside"
    );
    sprint(&acquire).assert().success();
    // A directory stays.
    sprint(&["break", "--yes"]).assert().success();
    fs::create_dir(&path).unwrap();
    sprint(&["break", "--yes"]).assert().code(1);
    assert!(path.is_dir());
}

#[test]
fn missing_root_of_a_project_is_an_error_of_every_verb() {
    let env = Env::new();
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
    let env = Env::new();
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
    let env = Env::new();
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
    let env = Env::new();
    let holder = Running::start(sleeper());
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
    let env = Env::new();
    dead_sprint(&env);
    env.onehold(["--profile", "sprint", "release"])
        .assert()
        .success()
        .stderr(contains(
            "onehold: removed zombie `./.sprint-running`: process ",
        ));
    assert!(!env.path(".sprint-running").exists());
}

#[test]
fn malformed_file_is_moved_aside_with_yes_and_never_removed() {
    let env = Env::new();
    for (profile, file, more) in [
        (
            "sprint",
            ".sprint-running",
            &["--owner", "s", "-m", "e"][..],
        ),
        ("memory", "memory/.lock", &[]),
    ] {
        let path = env.write(file, "pid: [x\n");
        let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(11);
        let opened = fs::File::options().write(true).open(&path).unwrap();
        opened.set_modified(long_ago).unwrap();
        drop(opened);
        let run = [
            &["--profile", profile, "run", "--yes"],
            more,
            &["--", "true"],
        ]
        .concat();
        env.onehold(run)
            .assert()
            .success()
            .stderr(contains("which was not a lock, to "));
        assert!(!path.exists());
        let names = fs::read_dir(path.parent().unwrap()).unwrap();
        let aside = names
            .map(|entry| entry.unwrap().path())
            .find(|path| path.to_string_lossy().contains(".aside-"))
            .unwrap();
        assert_eq!(fs::read_to_string(aside).unwrap(), "pid: [x\n");
    }
}

#[cfg(unix)]
#[test]
fn full_disk_is_told_in_the_words_of_the_profile() {
    let env = Env::new();
    env.shell("ulimit -f 0; onehold --profile sprint acquire --pid 1 --owner s -m e")
        .assert()
        .code(1)
        .stderr(contains("onehold: Failed to write lock file: "));
    assert!(!env.path(".sprint-running").exists());
}

#[test]
fn owner_can_be_required() {
    let env = Env::new();
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
            command
                .assert()
                .code(2)
                .stderr(format!("onehold: {text}\n"));
        }
        env.onehold(["--profile", profile, "check", "x"])
            .assert()
            .success();
    }
    assert!(!env.store().exists());
}

#[test]
fn tasks_of_two_projects_do_not_exclude_each_other() {
    let env = Env::new();
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
    let env = Env::new();
    let holder = Running::start(sleeper());
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
    let env = Env::new();
    let holder = Running::start(sleeper());
    let pid = holder.pid().to_string();
    let info = |words: &[&str]| {
        let mut command = env.onehold(["--profile", "sprint", "--json"]);
        let output = command.args(words).output().unwrap();
        let line = match words[0] {
            "run" => output.stderr,
            _ => output.stdout,
        };
        let text = String::from_utf8(line).unwrap();
        let object: Value = serde_json::from_str(text.trim()).unwrap();
        object["lock"]["details"]["lock_info"].clone()
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
    assert_eq!(info(&["break", "--yes"])["session_id"], "s");
    assert_eq!(info(&["release"])["exists"], false);
}

#[test]
fn run_says_with_verbose_that_it_released_the_lock() {
    let env = Env::new();
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
    let env = Env::new();
    let tasks = ["--profile", "tasks"];
    let acquire =
        |runner: &'static str| [&tasks[..], &["acquire", "x", "--owner", runner]].concat();
    env.onehold(acquire("a")).assert().success();
    let waiter = env.start(acquire("b"));
    env.wait_for_waiter("x");
    waiter.signal("STOP");
    env.onehold([&tasks[..], &["release", "x", "--owner", "a"]].concat())
        .assert()
        .success();
    let refused = env
        .onehold([&acquire("c")[..], &["-n", "--json"]].concat())
        .output()
        .unwrap();
    waiter.signal("CONT");
    let object = only_object(&refused.stdout);
    assert_eq!(refused.status.code(), Some(6));
    assert_eq!(object["error"]["code"], "RESERVED");
    assert_eq!(object["error"]["details"]["lockedBy"], "b");
    assert!(
        object["message"]
            .as_str()
            .unwrap()
            .starts_with("`x` is reserved for process ")
    );
    assert_eq!(waiter.finish().0, Some(0));
}

/// The file, the object of each call, and another call say the same time.
#[test]
fn time_of_expiry_is_the_same_wherever_it_is_read() {
    let env = Env::new();
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

/// A file at the path of a profile that is not a lock file, and was changed `ago` seconds ago.
fn leave_malformed(env: &Env, file: &str, ago: i64) -> std::path::PathBuf {
    let path = env.write(file, "garbage\n");
    let changed = chrono::Utc::now() - chrono::TimeDelta::seconds(ago);
    let opened = fs::File::options().write(true).open(&path).unwrap();
    opened.set_modified(changed.into()).unwrap();
    path
}

#[test]
fn each_of_8_that_move_one_malformed_file_aside_gets_its_turn() {
    for _ in 0..3 {
        let env = Env::new();
        leave_malformed(&env, "memory/.lock", 11);
        let script = [
            "--profile",
            "memory",
            "run",
            "--yes",
            "-w",
            "60",
            "--",
            "true",
        ];
        let mut all: Vec<Running> = (0..8).map(|_| env.start(script)).collect();
        for run in all.drain(..) {
            let (code, _, err) = run.finish();
            assert_eq!(code, Some(0), "{err}");
        }
        let files = fs::read_dir(env.path("memory")).unwrap();
        let aside = files
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.contains(".aside-"));
        assert_eq!(aside.count(), 1);
    }
}

#[test]
fn wait_lasts_until_a_young_file_is_damaged_or_its_limit() {
    let env = Env::new();
    // Damaged in 2 s.
    leave_malformed(&env, "memory/.lock", 8);
    env.onehold([
        "--profile",
        "memory",
        "run",
        "--yes",
        "-w",
        "60",
        "--",
        "true",
    ])
    .assert()
    .success();
    leave_malformed(&env, "memory/.lock", 0);
    env.onehold([
        "--profile",
        "memory",
        "run",
        "--yes",
        "-w",
        "0.3",
        "--",
        "true",
    ])
    .assert()
    .code(7)
    .stderr(contains("timed out after "));
    env.onehold(["--profile", "memory", "run", "--yes", "-n", "--", "true"])
        .assert()
        .code(6)
        .stderr(contains("to wait for that, add --wait"));
    // The clock was put back since.
    leave_malformed(&env, "memory/.lock", -86_400);
    env.onehold(["--profile", "memory", "check"])
        .assert()
        .code(5);
    env.onehold(["--profile", "memory", "run", "--yes", "-n", "--", "true"])
        .assert()
        .success();
    leave_malformed(&env, "memory/.lock", 11);
    env.onehold([
        "--profile",
        "memory",
        "run",
        "--yes",
        "--on-zombie",
        "fail",
        "--",
        "true",
    ])
    .assert()
    .code(5);
    assert_eq!(
        fs::read_to_string(env.path("memory/.lock")).unwrap(),
        "garbage\n"
    );
}

#[test]
fn project_directory_is_a_plain_relative_path() {
    let env = Env::new();
    for path in ["/abs", "~/x", "$X/y", "./x", "a/../b", ""] {
        env.configure(&format!("[profiles.mine]\nproject-dir = \"{path}\"\n"));
        env.onehold(["--profile", "mine", "list"])
            .assert()
            .code(1)
            .stderr(contains("line 2: `project-dir`: must be a relative path"));
    }
}
