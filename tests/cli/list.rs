use predicates::str::{contains, is_empty, is_match};

use crate::env::{Env, Running, sleeper};

#[test]
fn an_empty_or_missing_store_lists_nothing() {
    let env = Env::new();
    env.onehold(["list", "-q"])
        .assert()
        .success()
        .stdout(is_empty())
        .stderr(is_empty());
    env.onehold(["list"])
        .assert()
        .success()
        .stderr(format!("onehold: 0 locks in {}\n", env.store().display()));
    assert!(!env.store().exists());
}

#[test]
fn all_locks_are_listed_by_name_with_their_verdicts() {
    let env = Env::new();
    let holder = Running::start(sleeper());
    let pid = holder.pid().to_string();
    for name in ["backup", "backend/task-1", ".hidden", "50%"] {
        env.onehold(["acquire", name, "--pid", &pid, "-m", "why"])
            .assert()
            .success();
    }
    env.leave_dead("old");
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
            "^NAME            STATE       HOLDER +AGE  WAITING  MESSAGE\n\\.hidden         held        process {pid} \\(sleep\\) on [^ ]+ +\\d+s            why\n"
        ))
        .unwrap(),
    );
    env.onehold(["list", "-v"])
        .assert()
        .success()
        .stdout(contains("  runs now: sleep 1000\n"));
}

#[test]
fn what_cannot_be_read_is_a_warning_and_the_rest_is_listed() {
    let env = Env::new();
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
