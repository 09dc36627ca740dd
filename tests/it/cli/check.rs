use assert_cmd::prelude::OutputAssertExt;
use predicates::str::{contains, is_empty, is_match};
use serde_json::Value;

#[cfg(unix)]
use crate::harness::Signal;
#[cfg(target_os = "linux")]
use crate::harness::number_in;
use crate::harness::{Running, TestEnv, last_json_object, stderr, wait_until};

#[test]
fn check_of_free_lock_is_0_and_creates_nothing() {
    let env = TestEnv::new();
    // A store that was named is to exist, so that it is said otherwise.
    env.onehold(["check", "x"])
        .env_remove("ONEHOLD_DIR")
        .assert()
        .code(0)
        .stdout("`x` is free\n")
        .stderr(is_empty());
    assert!(!env.path(".local").exists());
    env.onehold(["check", "a/b/c"]).assert().code(0);
    assert!(!env.store().exists());
}

#[test]
fn check_of_held_lock_is_6_and_of_zombie_5() {
    let env = TestEnv::new();
    let holder = Running::sleeper();
    let pid = holder.pid().to_string();
    env.onehold([
        "acquire", "x", "--pid", &pid, "--owner", "ops", "-m", "by hand",
    ])
    .assert()
    .success();
    env.onehold(["check", "x"]).assert().code(6).stderr(is_empty()).stdout(
        is_match(format!(
            "^`x` is held by process {pid} \\(sleep(\\.exe)?\\) of ops on [^ ]+ since \\d\\d:\\d\\d:\\d\\d \\(\\d+s ago\\): \"by hand\"\n  \
             alive: PID and start time match\n$"
        ))
        .unwrap(),
    );
    env.onehold(["check", "-v", "x"])
        .assert()
        .code(6)
        .stdout(contains(if cfg!(windows) {
            "sleep.exe\"\n"
        } else {
            "  command: sleep 1000\n"
        }));
    env.onehold(["check", "-q", "x"])
        .assert()
        .code(6)
        .stdout(is_empty())
        .stderr(is_empty());
    env.create_zombie("z");
    env.onehold(["check", "z"]).assert().code(5).stdout(
        is_match("^`z` is a zombie: process \\d+ \\(sleep(\\.exe)?\\) on [^ ]+, holder since .* \\(\\d+s ago\\), has exited\n  zombie: no process with this PID\n  the next `run` or `acquire` takes it over; to remove it, run `onehold --dir .* cleanup z`\n$").unwrap(),
    );
}

#[test]
fn check_object_has_every_key_in_every_state() {
    let env = TestEnv::new();
    let keys = |name: &str| -> Vec<String> {
        env.lock(name)
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect()
    };
    let free = keys("free");
    let holder = Running::sleeper();
    env.onehold([
        "acquire",
        "x",
        "--pid",
        &holder.pid().to_string(),
        "--owner",
        "me",
    ])
    .assert()
    .success();
    assert_eq!(keys("x"), free);
    env.write("store/broken.lock", "");
    assert_eq!(keys("broken"), free);
    for key in [
        "name",
        "path",
        "exists",
        "state",
        "reason",
        "proof",
        "is_zombie",
        "takeable",
        "pid",
        "pid_alive",
        "hostname",
        "owner",
        "session_id",
        "message",
        "acquired_at",
        "renewed_at",
        "age_hours",
        "expires_at",
        "hold",
        "mine",
    ] {
        assert!(free.iter().any(|known| known == key), "{key}");
    }
    let lock = env.json(["check", "x", "--owner", "me"])["lock"].take();
    assert_eq!(lock["mine"], true);
    assert_eq!(env.lock("x")["mine"], false);
}

#[test]
fn check_status_matches_exit_code() {
    let env = TestEnv::new();
    env.create_zombie("dead");
    env.write("store/other.lock", "4711\n");
    env.onehold(["acquire", "held", "--ttl", "1h"])
        .assert()
        .success();
    for (name, status, success) in [
        ("free", "clean", true),
        ("held", "blocked", true),
        ("dead", "zombie-detected", true),
        ("other", "failure", false),
    ] {
        let object = env.json(["check", name]);
        assert_eq!(
            (&object["status"], &object["success"]),
            (&status.into(), &success.into()),
            "{name}"
        );
    }
}

#[test]
fn max_age_of_holder_overrides_max_age_of_observer() {
    let env = TestEnv::new();
    let holder = Running::sleeper();
    let pid = holder.pid().to_string();
    env.onehold(["acquire", "x", "--pid", &pid])
        .assert()
        .success();
    env.onehold(["acquire", "y", "--pid", &pid, "--max-age", "1h"])
        .assert()
        .success();
    env.onehold(["check", "x", "--max-age", "0"])
        .assert()
        .code(5);
    env.onehold(["check", "x", "--max-age", "1d"])
        .assert()
        .code(6);
    env.onehold(["check", "y", "--max-age", "0"])
        .assert()
        .code(6);
}

/// Checks that `check` says what an attempt to take the lock finds then, and returns the lock.
#[track_caller]
fn assert_check_agrees_with_run(env: &TestEnv, what: &str, name: &str, owner: &str) -> Value {
    let object = env.json(["check", name, "--owner", owner]);
    let checked = env
        .onehold(["check", "-q", name, "--owner", owner])
        .output();
    let checked = checked.unwrap().status.code().unwrap();
    let run = ["run", "-n", name, "--owner", owner, "--json", "--", "true"];
    let run = env.onehold(run).output().unwrap();
    let lock = &object["lock"];
    let took = run.status.code() == Some(0);
    assert_eq!(lock["takeable"], took, "{what}: {run:?}: {lock}");
    let is_expected = match checked {
        0 => took,
        1 => run.status.code() == Some(125),
        // A zombie is taken, an overdue holder is not.
        5 => took == (lock["state"] == "zombie"),
        code => run.status.code() == Some(code),
    };
    assert!(is_expected, "{what}: check {checked}, run {run:?}");
    if run.status.code() == Some(6) {
        let refused = last_json_object(&run.stderr);
        for key in ["name", "state", "reason", "hold", "pid"] {
            assert_eq!(refused["lock"][key], lock[key], "{what}: {key}");
        }
    }
    object["lock"].clone()
}

#[test]
fn check_agrees_with_attempt_to_take_the_lock() {
    let acquire = |env: &TestEnv, name: &str, owner: &str| {
        env.onehold(["acquire", name, "--ttl", "1h", "--owner", owner])
            .assert()
            .success();
    };
    // A name of an own zombie, and what is held beside it.
    for (zombie, held, by, expected) in [
        ("x", None, "", "x zombie"),
        ("x", Some("x/child"), "other", "x/child held"),
        ("x", Some("x/child"), "me", "x zombie"),
        ("x/child", Some("x"), "other", "x held"),
        ("x/child", Some("x/sibling"), "other", "x/child zombie"),
    ] {
        let env = TestEnv::new();
        if let Some(held) = held {
            // The zombie comes later, or the hold would remove it.
            acquire(&env, held, by);
            env.create_zombie("dead");
            let record = std::fs::read_to_string(env.store().join("dead.lock")).unwrap();
            let path = zombie.replace('/', ".d/");
            env.write(&format!("store/{path}.lock"), record);
        } else {
            env.create_zombie(zombie);
        }
        let what = format!("{zombie} beside {held:?} of {by}");
        let lock = assert_check_agrees_with_run(&env, &what, zombie, "me");
        let found = [&lock["name"], &lock["state"]].map(|text| text.as_str().unwrap());
        assert_eq!(found.join(" "), expected, "{what}");
    }
    let env = TestEnv::new();
    acquire(&env, "lease", "other");
    acquire(&env, "own", "me");
    let pid = std::process::id().to_string();
    env.onehold(["acquire", "old", "--pid", &pid, "--max-age", "0"])
        .assert()
        .success();
    env.write("store/young.lock", "");
    // It stays young however long this takes.
    let ahead = std::time::SystemTime::now() + std::time::Duration::from_mins(2);
    let young = std::fs::File::options()
        .write(true)
        .open(env.path("store/young.lock"));
    young.unwrap().set_modified(ahead).unwrap();
    env.write("store/other.lock", "something else");
    env.write("store/later.lock", "{\"onehold\": 2}");
    for name in ["free", "lease", "own", "old", "young", "other", "later"] {
        assert_check_agrees_with_run(&env, name, name, "me");
    }
}

#[cfg(unix)]
#[test]
fn check_shows_reservation_to_all_but_those_whom_the_waiter_does_not_exclude() {
    let env = TestEnv::new();
    let acquired = env.onehold(["acquire", "x/child", "--ttl", "1h"]).output();
    let number = String::from_utf8(acquired.unwrap().stdout).unwrap();
    let mut waiter = env.start(["run", "-w", "1h", "x/child", "--", "true"]);
    wait_until("it waits", || {
        env.lock("x/child")["waiters"]
            .as_array()
            .is_some_and(|waiters| waiters.len() == 1)
    });
    waiter.signal(Signal::STOP);
    env.onehold(["release", "x/child", "--hold", number.trim()])
        .assert()
        .success();
    let lock = assert_check_agrees_with_run(&env, "reserved", "x/child", "me");
    assert_eq!(lock["reason"], "reserved");
    assert_eq!(lock["pid"], waiter.pid());
    let lock = assert_check_agrees_with_run(&env, "its parent", "x", "me");
    assert_eq!(lock["reason"], "reserved");
    let lock = assert_check_agrees_with_run(&env, "its sibling", "x/sibling", "me");
    assert_eq!(lock["state"], "free");
    waiter.signal(Signal::CONT);
    assert_eq!(waiter.finish(), 0);
}

#[cfg(unix)]
#[test]
fn check_and_journal_name_the_user() {
    use std::os::unix::fs::MetadataExt;
    let env = TestEnv::new();
    env.onehold(["acquire", "lease", "--ttl", "1h"])
        .assert()
        .success();
    env.create_zombie("dead");
    let uid = std::fs::metadata(env.store()).unwrap().uid();
    let id = env.command("id").arg("-un").output().unwrap().stdout;
    let user = String::from_utf8(id).unwrap().trim().to_owned();
    for name in ["lease", "dead"] {
        let lock = env.lock(name);
        assert_eq!(lock["uid"], uid, "{lock}");
        assert_eq!(lock["user"], user.as_str(), "{lock}");
        env.onehold(["check", "-v", name])
            .assert()
            .stdout(contains(format!("\n  user: {user}\n")));
    }
    assert_eq!(env.lock("free")["uid"], serde_json::Value::Null);
    env.onehold(["cleanup"]).assert().success();
    let event = &env.journal()[0];
    assert_eq!(event["by"]["user"], user.as_str(), "{event}");
    assert_eq!(event["from"]["user"], user.as_str(), "{event}");
}

/// What `check --mine` says in a shell script: its exit code and, always empty, its output.
#[cfg(target_os = "linux")]
#[track_caller]
fn mine(env: &TestEnv, script: &str) -> i32 {
    let output = env.shell(script).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{script}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{script}");
    output.status.code().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn lock_is_mine_below_the_processes_of_its_hold_and_nowhere_else() {
    let env = TestEnv::new();
    let bare = "env -i PATH=\"$PATH\" ONEHOLD_DIR=\"$ONEHOLD_DIR\"";
    for (script, code) in [
        ("onehold check --mine job", 4),
        ("onehold run job -- onehold check --mine job", 0),
        (
            "onehold run job -- onehold run other -- onehold check --mine job",
            0,
        ),
        (
            &format!("onehold run job -- {bare} onehold check --mine job"),
            0,
        ),
        ("onehold run job -- setsid -w onehold check --mine job", 0),
        ("onehold run --close job -- onehold check --mine job", 0),
        (
            "onehold run --exec job -- sh -c 'onehold check --mine job; exit $?'",
            0,
        ),
        ("onehold run -s job -- onehold check --mine job", 0),
        ("onehold run --slots 2 job -- onehold check --mine job", 0),
        ("onehold run job two -- onehold check --mine two", 0),
        ("onehold run ./p.lock -- onehold check --mine ./p.lock", 0),
        (
            "onehold run --format pid ./p.pid -- sh -c 'onehold check --mine ./p.pid; exit $?'",
            0,
        ),
        ("flock f onehold check --mine --format flock ./f", 0),
        ("flock f true; onehold check --mine --format flock ./f", 4),
        ("onehold run other -- onehold check --mine job", 4),
        ("onehold run job/child -- onehold check --mine job", 4),
        ("onehold run job -- onehold check --mine job/child", 4),
        (
            "onehold run job -- onehold --dir elsewhere check --mine job",
            4,
        ),
        // What another lock's record tells, it does not tell of this one.
        (
            "onehold run job -- sh -c 'cp store/job.lock store/copy.lock; onehold check --mine copy; \
          code=$?; rm store/copy.lock; exit $code'",
            4,
        ),
        // The script that holds it, and a part of it.
        (
            "onehold acquire job >/dev/null; onehold check --mine job && (onehold check --mine job)",
            0,
        ),
    ] {
        assert_eq!(mine(&env, script), code, "{script}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn lock_of_another_process_is_not_mine_whatever_is_in_the_environment() {
    let env = TestEnv::new();
    let _holder = env.hold(&["job", "--owner", "me"]);
    let hold = env.lock("job")["hold"].to_string();
    for script in [
        "onehold check --mine job".to_owned(),
        "onehold check --mine --owner me job".to_owned(),
        format!("onehold check --mine --hold {hold} job"),
        format!(
            "ONEHOLD_NAME=job ONEHOLD_HOLD={hold} ONEHOLD_HOLDS={hold}:job onehold check --mine job"
        ),
    ] {
        assert_eq!(mine(&env, &script), 4, "{script}");
    }
    // A lease has no process.
    env.done(["acquire", "lease", "--ttl", "1h", "--owner", "me"]);
    for (options, code) in [("", 4), ("--owner me", 0), ("--owner you", 4)] {
        let script = format!("onehold check --mine {options} lease");
        assert_eq!(mine(&env, &script), code, "{script}");
    }
    assert_eq!(
        mine(
            &env,
            "onehold acquire expired --ttl 1ms --owner me >/dev/null; sleep 0.01; \
        onehold check --mine --owner me expired"
        ),
        4
    );
}

#[cfg(target_os = "linux")]
#[test]
fn daemon_that_was_started_under_a_lock_is_not_under_it_once_the_hold_has_ended() {
    let env = TestEnv::new();
    // As the server of a terminal multiplexer.
    let daemon = "setsid sh -c 'onehold check --mine job; echo $? > first; \
        while test -e first && ! test -e go; do sleep 0.01; done; \
        onehold check --mine job; echo $? $ONEHOLD_NAME > second' > /dev/null 2>&1 & \
        until test -s first; do sleep 0.01; done";
    env.done(["run", "job", "--", "sh", "-c", daemon]);
    assert_eq!(std::fs::read_to_string(env.path("first")).unwrap(), "0\n");
    let _next = env.hold(&["job"]);
    env.write("go", "");
    wait_until("the daemon has asked", || env.lines("second") == 1);
    assert_eq!(
        std::fs::read_to_string(env.path("second")).unwrap(),
        "4 job\n"
    );
}

#[cfg(target_os = "linux")]
/// What `acquire` would do says whether a lease of the caller's own is in its way.
#[test]
fn lease_of_the_callers_owner_is_available_to_it_as_acquire_finds_it() {
    let env = TestEnv::new();
    env.done(["acquire", "x", "--ttl", "1h", "--owner", "me"]);
    env.done(["acquire", "a", "b", "--ttl", "1h", "--owner", "me"]);
    env.done(["acquire", "-s", "y", "--ttl", "1h", "--owner", "me"]);
    let mut run = env.hold(&["z", "--owner", "me"]);
    for (lock, owner, code) in [
        ("x", "me", 0),
        ("x", "you", 6),
        ("-s x", "me", 6),
        ("a", "me", 6),
        ("-s y", "me", 0),
        ("y", "me", 6),
        ("z", "me", 6),
    ] {
        let check = format!("check --available --owner {owner} {lock}");
        let acquire = format!("acquire --ttl 1h --owner {owner} {lock}");
        let found = env.code(check.split(' '));
        assert_eq!(found, code, "{check}");
        // One that can be shared is taken beside.
        if lock != "-s y" {
            assert_eq!(env.code(acquire.split(' ')), code, "{acquire}");
        }
    }
    assert_eq!(env.code(["check", "--available", "x"]), 6);
    env.end();
    run.finish();
}

/// Another acquire of one of them would take nothing more, and a release would give both back.
#[cfg(unix)]
#[test]
fn owner_of_several_locks_is_told_to_renew_them() {
    let env = TestEnv::new();
    env.done(["acquire", "a", "b", "--ttl", "1h", "--owner", "me"]);
    let output = env.output(["acquire", "a", "--ttl", "2h", "--owner", "me"]);
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(6), "{told}");
    let (_, line) = told.split_once("with others: to extend it, run `").unwrap();
    let (line, rest) = line.split_once('`').unwrap();
    assert!(line.ends_with("renew a --owner me"), "{line}");
    assert!(rest.contains("release a --owner me` first"), "{rest}");
    assert!(
        env.shell(&format!("{line} --ttl 2h"))
            .status()
            .unwrap()
            .success()
    );
    let left = |name: &str| env.lock(name)["expires_at"].clone();
    assert_eq!(left("a"), left("b"));
}

#[cfg(unix)]
#[test]
fn details_and_json_of_mine_name_the_holder() {
    let env = TestEnv::new();
    for (script, code, answer) in [
        (
            "onehold run job -- onehold check --mine --json job",
            0,
            true,
        ),
        ("onehold check --mine --json job", 4, false),
    ] {
        let output = env.shell(script).output().unwrap();
        assert_eq!(output.status.code(), Some(code));
        let object = last_json_object(&output.stdout);
        assert_eq!(object["runs_under"], answer, "{object}");
        assert_eq!(object["success"], true, "{object}");
    }
    env.shell("onehold run job -- onehold check --mine -v job")
        .assert()
        .success()
        .stdout(contains("`job` is held by process "));
    env.onehold(["check", "--mine", "--available", "job"])
        .assert()
        .code(2);
}

#[cfg(target_os = "linux")]
#[test]
fn jobs_of_a_shell_that_becomes_a_run_do_not_run_under_it() {
    for options in ["", "--exec", "-s"] {
        let env = TestEnv::new();
        let job = "until test -e held; do sleep 0.02; done; \
                   onehold check --mine x; echo $? > mine; onehold run -w 20 y x -- true; echo $? > run";
        let work = "touch held; until test -e mine; do sleep 0.02; done; onehold check --mine x";
        // Without a wrapper its start is compared in ticks.
        let pause = if options == "--exec" {
            "sleep 0.1;"
        } else {
            ""
        };
        let script = format!("({job}) & {pause} exec onehold run {options} x -- sh -c '{work}'");
        let told = env.shell(&script).output().unwrap();
        assert_eq!(told.status.code(), Some(0), "{options}: {told:?}");
        wait_until("the job has run", || env.path("run").exists());
        assert_eq!(number_in(&env.path("mine")), 4, "{options}");
        assert_eq!(number_in(&env.path("run")), 0, "{options}");
    }
}
