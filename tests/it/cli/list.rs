use std::fs;
#[cfg(unix)]
use std::os::unix::fs::PermissionsExt;

use assert_cmd::prelude::OutputAssertExt;
use predicates::str::{contains, is_empty, is_match};

#[cfg(unix)]
use crate::harness::Signal;
use crate::harness::{Running, TestEnv, wait_until};

#[test]
fn list_of_missing_store_is_empty() {
    let env = TestEnv::new();
    env.onehold(["list", "-q"])
        .env_remove("ONEHOLD_DIR")
        .assert()
        .success()
        .stdout(is_empty())
        .stderr(is_empty());
    let none = format!("onehold: 0 locks in {}\n", env.store().display());
    let list = env.onehold(["list"]).assert().success();
    list.stderr(contains(none));
    assert!(!env.store().exists());
}

#[test]
fn list_shows_all_locks_by_name_with_states() {
    let env = TestEnv::new();
    let holder = Running::sleeper();
    let pid = holder.pid().to_string();
    for name in ["backup", "backend/task-1", ".hidden", "50%"] {
        env.onehold(["acquire", name, "--pid", &pid, "-m", "why"])
            .assert()
            .success();
    }
    env.create_zombie("old");
    env.write("store/notes.lock", "buy milk\n");
    env.write("store/README", "not even a name\n");
    let object = env.json(["list"]);
    let seen: Vec<(String, String)> = object["locks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|lock| {
            let text = |key: &str| lock[key].as_str().unwrap().to_owned();
            (text("name"), text("state"))
        })
        .collect();
    let expected = [
        (".hidden", "held"),
        ("50%", "held"),
        ("backend/task-1", "held"),
        ("backup", "held"),
        ("notes", "not-a-lock"),
        ("old", "zombie"),
    ];
    assert_eq!(
        seen,
        expected.map(|(name, state)| (name.to_owned(), state.to_owned()))
    );
    assert_eq!(object["status"], "listed");
    env.onehold(["list"]).assert().success().stdout(
        is_match(format!(
            "^NAME            STATE       HOLDER +AGE +MESSAGE\n\\.hidden         held        {pid} \\(sleep(\\.exe)?\\) +\\d+s +why\n"
        ))
        .unwrap(),
    );
    env.onehold(["list", "-v"])
        .assert()
        .success()
        .stdout(contains(if cfg!(windows) {
            "sleep.exe\"\n"
        } else {
            "  runs now: sleep 1000\n"
        }));
}

#[cfg(unix)]
#[test]
fn list_reports_symlinks_and_shows_the_rest() {
    let env = TestEnv::new();
    env.onehold(["acquire", "x", "--ttl", "1h"])
        .assert()
        .success();
    std::os::unix::fs::symlink("x.lock", env.store().join("link.lock")).unwrap();
    std::os::unix::fs::symlink("/etc", env.store().join("etc.d")).unwrap();
    let object = env.json(["list"]);
    let states: Vec<&str> = object["locks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|lock| lock["state"].as_str().unwrap())
        .collect();
    assert_eq!(states, ["not-a-lock", "held"]);
}

#[cfg(unix)]
#[test]
fn list_of_unreadable_store_reports_each_problem_once() {
    let env = TestEnv::new();
    env.write("store/closed.d/x.lock", "{}");
    fs::set_permissions(env.store(), fs::Permissions::from_mode(0o755)).unwrap();
    let closed = env.store().join("closed.d");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    let store = env.store();
    let store = store.display();
    env.unprivileged(["list"])
        .assert()
        .code(1)
        .stdout(is_empty())
        .stderr(
            is_match(format!(
                "^onehold: 0 locks in {store}; 1 could not be read\n\
                 onehold: warning: cannot .*closed\\.d`: permission denied.*\n$"
            ))
            .unwrap(),
        );
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
}

#[cfg(unix)]
#[test]
fn reserved_lock_is_listed_with_its_waiter() {
    let env = TestEnv::new();
    let go = env.path("go");
    let script = format!("until test -e {}; do sleep 0.01; done", go.display());
    let mut first = env.start(["run", "x", "--", "sh", "-c", &script]);
    wait_until("the lock is held", || env.check("x") == 6);
    let mut waiter = env.start(["run", "-w", "1h", "x", "--", "true"]);
    wait_until("the waiter is in the queue", || {
        env.lock("x")["waiters"][0]["position"] == 1
    });
    // A stopped waiter cannot take the lock, which stays reserved for it for 5 s.
    waiter.signal(Signal::STOP);
    fs::write(&go, "").unwrap();
    assert_eq!(first.finish(), 0);
    let listed = env.onehold(["list"]).output().unwrap().stdout;
    let checked = env.onehold(["check", "x"]).output().unwrap().stdout;
    let refused = env.onehold(["run", "x", "--", "true"]).output().unwrap();
    waiter.signal(Signal::CONT);
    let process = format!("{} (true)", waiter.pid());
    let listed = String::from_utf8(listed).unwrap();
    assert!(
        listed.contains(&format!("\nx     reserved +1  for {process}\n")),
        "{listed}"
    );
    let checked = String::from_utf8(checked).unwrap();
    assert!(
        checked.starts_with(&format!("`x` is reserved for process {process} on ")),
        "{checked}"
    );
    assert!(
        checked.contains(", first in the queue\n  reserved: that process is alive; 1 waiting\n"),
        "{checked}"
    );
    let refused = String::from_utf8(refused.stderr).unwrap();
    assert!(
        refused.ends_with("  to queue, add --wait; to skip the queue, add --force\n"),
        "{refused}"
    );
    assert_eq!(waiter.finish(), 0);
}

#[cfg(unix)]
#[test]
fn list_shows_the_rest_although_a_waiter_waits_where_it_cannot_look() {
    let env = TestEnv::new();
    env.onehold(["acquire", "a", "--ttl", "1h"])
        .assert()
        .success();
    env.onehold(["acquire", "closed/x", "--ttl", "1h"])
        .assert()
        .success();
    let _waiter = env.start(["run", "-w", "1h", "closed/x", "--", "true"]);
    wait_until("the waiter is in the queue", || {
        env.lock("closed/x")["waiters"][0]["position"] == 1
    });
    open_to_all(&env);
    let closed = env.store().join("closed.d");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    env.unprivileged(["list"])
        .assert()
        .code(1)
        .stdout(contains("\na     held "))
        .stderr(
            is_match("^onehold: 1 lock in .*; 1 could not be read\nonehold: warning: .*\n$")
                .unwrap(),
        );
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
}

/// Lets every user read the store.
fn open_to_all(env: &TestEnv) {
    let store = env.store();
    let opened = std::process::Command::new("chmod")
        .args(["-R", "a+rX"])
        .arg(&store)
        .status();
    assert!(opened.unwrap().success());
}

#[test]
fn list_is_sorted_and_filtered_as_asked() {
    let env = TestEnv::new();
    for name in ["a10", "a2", "b/10", "b/9"] {
        env.onehold(["acquire", name, "--ttl", "1h"])
            .assert()
            .success();
    }
    env.create_zombie("a3");
    env.write("store/notes.lock", "not a lock");
    let names = |options: &[&str]| {
        let mut command = env.onehold(["list"]);
        let out = command.args(options).output().unwrap().stdout;
        let text = String::from_utf8(out).unwrap();
        let first = |line: &str| line.split(' ').next().unwrap().to_owned();
        text.lines()
            .skip(1)
            .map(first)
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(names(&[]), "a2 a3 a10 b/9 b/10 notes");
    assert_eq!(names(&["--sort", "age"]), "a10 a2 b/10 b/9 a3 notes");
    assert_eq!(names(&["--sort", "state"]), "a3 a2 a10 b/9 b/10 notes");
    assert_eq!(names(&["--state", "zombie"]), "a3");
    let two = ["--state", "zombie", "--state", "not-a-lock"];
    assert_eq!(names(&two), "a3 notes");
    // Other files are shown, and are not counted.
    let said = env.json(["list"])["message"].as_str().unwrap().to_owned();
    assert!(said.starts_with("5 locks in "), "{said}");
}

#[cfg(unix)]
#[test]
fn list_shows_the_command_of_a_name_that_was_derived_from_it() {
    let env = TestEnv::new();
    let run = ["run", "--", "sh", "-c", "onehold list; exit 0", "two words"];
    let out = env.onehold(run).output().unwrap().stdout;
    let text = String::from_utf8(out).unwrap();
    let row = text.lines().nth(1).unwrap();
    assert!(row.starts_with("sh-"), "{text}");
    assert!(
        row.ends_with("sh -c onehold list; exit 0 two words"),
        "{text}"
    );
}

/// `onehold WORDS` on a terminal of so many columns.
#[cfg(unix)]
fn on_terminal(env: &TestEnv, columns: usize, words: &str) -> String {
    let mut script = env.command("script");
    let line = format!("stty rows 24 cols {columns}; onehold {words}");
    let out = script.args(["-qec", &line, "/dev/null"]).output().unwrap();
    String::from_utf8(out.stdout).unwrap().replace('\r', "")
}

#[cfg(unix)]
#[test]
fn list_fits_the_terminal_and_never_cuts_names_and_holders() {
    let env = TestEnv::new();
    let owner = "an-owner-that-is-named-at-length";
    let long = "backend/a-name-that-is-longer-than-it-needs-to-be-at-all";
    let message = "a message of some words, ".repeat(8);
    let holder = Running::sleeper();
    let pid = holder.pid().to_string();
    for (name, options) in [
        ("backup", ["--ttl", "1h", "--owner", owner]),
        (
            "import/customers-of-europe",
            ["--pid", &pid, "--owner", "ci-88"],
        ),
        (long, ["--pid", &pid, "--max-age", "1h"]),
    ] {
        let mut acquire = env.onehold(["acquire", name, "-m", &message]);
        acquire.args(options).assert().success();
    }
    let host = env.lock("backup")["hostname"].as_str().unwrap().to_owned();
    for columns in [40, 60, 80, 120, 200] {
        let shown = on_terminal(&env, columns, "list");
        let lines = || shown.lines();
        let fitting = lines().filter(|line| *line != long);
        let widest = fitting.map(|line| line.chars().count()).max();
        assert!(widest.unwrap() <= columns, "{columns}: {shown}");
        assert!(shown.starts_with("NAME "), "{columns}: {shown}");
        assert!(!shown.contains(&format!("on {host}")), "{shown}");
        assert!(!shown.contains("process"), "{shown}");
        for name in ["backup ", "import/customers-of-europe", long] {
            assert!(
                lines().any(|line| line.starts_with(name)),
                "{columns}: {shown}"
            );
        }
        if columns >= 80 {
            assert!(shown.contains(owner), "{columns}: {shown}");
            assert!(
                shown.contains(&format!("{pid} (sleep) of ci-88 ")),
                "{shown}"
            );
        }
        // What is left, and no less.
        let is_cut = lines().any(|line| line.ends_with('…') && line.chars().count() == columns);
        assert!(is_cut || columns < 120, "{columns}: {shown}");
    }
    for whole in [
        String::from_utf8(env.onehold(["list"]).output().unwrap().stdout).unwrap(),
        on_terminal(&env, 40, "list --wide"),
    ] {
        assert_eq!(whole.matches(message.trim()).count(), 3, "{whole}");
        assert_eq!(whole.lines().count(), 4, "{whole}");
    }
}

#[cfg(unix)]
#[test]
fn waiters_are_counted_behind_the_state() {
    let env = TestEnv::new();
    env.onehold(["acquire", "x", "--ttl", "1h"])
        .assert()
        .success();
    let _waiters = [1, 2].map(|count| {
        let waiter = env.start(["acquire", "x", "-w", "1h", "--ttl", "1h", "-m", "next"]);
        wait_until("it waits", || {
            env.lock("x")["waiters"].as_array().unwrap().len() == count
        });
        waiter
    });
    env.onehold(["list"]).assert().stdout(
        is_match("^NAME +STATE +HOLDER +AGE +MESSAGE\nx +held \\+2 +lease +\\d+s\n$").unwrap(),
    );
    assert_eq!(env.lock("x")["waiters"][1]["message"], "next");
    env.onehold(["check", "-v", "x"])
        .assert()
        .stdout(is_match("\n    2\\. .*, waiting since .*: \"next\"\n").unwrap());
}

#[test]
fn states_are_the_words_of_the_option() {
    let env = TestEnv::new();
    env.onehold(["acquire", "held", "--ttl", "1h"])
        .assert()
        .success();
    env.onehold(["acquire", "read", "-s", "--ttl", "1h"])
        .assert()
        .success();
    env.create_zombie("old");
    env.write("store/notes.lock", "not a lock");
    let now = chrono::Utc::now().to_rfc3339();
    let elsewhere = format!(
        "{{\"job_id\": \"far\", \"process_id\": 1, \"hostname\": \"elsewhere\", \"acquired_at\": \"{now}\"}}"
    );
    env.write("store/far.lock", elsewhere);
    let words = |options: &[&str]| {
        let out = env.onehold(["list"]).args(options).output().unwrap().stdout;
        let text = String::from_utf8(out).unwrap();
        let second = |line: &str| line.split_whitespace().nth(1).unwrap().to_owned();
        text.lines().skip(1).map(second).collect::<Vec<_>>()
    };
    let shown = words(&[]);
    assert_eq!(
        shown,
        ["unverified", "held", "not-a-lock", "zombie", "shared"]
    );
    for word in shown {
        assert_eq!(words(&["--state", &word]), [&*word]);
    }
    // Each has a meaning in the help, which is the one place for it.
    let help = env.onehold(["list", "--help"]).output().unwrap().stdout;
    let help = String::from_utf8(help).unwrap();
    for word in ["unverified", "shared", "not-a-lock", "reserved", "damaged"] {
        assert!(help.contains(&format!("- {word}: ")), "{help}");
    }
}

#[test]
fn filter_without_a_match_says_how_many_locks_there_are() {
    let env = TestEnv::new();
    for name in ["a1", "a2", "b"] {
        env.onehold(["acquire", name, "--ttl", "1h"])
            .assert()
            .success();
    }
    let store = env.store();
    let store = store.display();
    for filter in [&["--state", "zombie"][..], &["c"]] {
        env.onehold(["list"])
            .args(filter)
            .assert()
            .success()
            .stdout(is_empty())
            .stderr(format!("onehold: no match among 3 locks in {store}\n"));
    }
    env.onehold(["list", "a", "-v"])
        .assert()
        .stderr(contains(format!("onehold: 2 of 3 locks in {store}\n")));
    let named = |words: &[&str]| {
        let object = env.json(words);
        let locks = object["locks"].as_array().unwrap();
        locks
            .iter()
            .map(|lock| lock["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(named(&["list", "a"]), ["a1", "a2"]);
    assert_eq!(named(&["list", "a2", "b"]), ["a2", "b"]);
}

#[cfg(unix)]
#[test]
fn long_name_that_fits_beside_its_holder_has_no_line_of_its_own() {
    let env = TestEnv::new();
    let name = "import/customers-of-europe-and-asia-1";
    let message = "a message of some words";
    env.done(["acquire", name, "--ttl", "1h", "-m", message]);
    let shown = on_terminal(&env, 80, "list");
    let row = format!("\n{name}  held   lease");
    assert!(shown.contains(&row), "{shown}");
    assert!(shown.contains("a message of some"), "{shown}");
}
