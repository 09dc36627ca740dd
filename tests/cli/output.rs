use predicates::prelude::*;
use predicates::str::{contains, is_empty, starts_with};

use crate::env::{Env, only_object};

#[test]
fn a_command_line_that_makes_no_sense_is_2_and_touches_nothing() {
    let env = Env::new();
    let lines: &[&[&str]] = &[
        &[],
        &["nonsense"],
        &["run", "x"],
        &["run", "x", "true"],
        &["run", "a", "b", "--", "true"],
        &["run", "-w", "soon", "x", "--", "true"],
        &["run", "-w", "-1", "x", "--", "true"],
        &["run", "-w", "1M", "x", "--", "true"],
        &["run", "-w", "0.5.1", "x", "--", "true"],
        &["run", "-n", "-w", "5", "x", "--", "true"],
        &["run", "-E", "256", "x", "--", "true"],
        &["run", "--on-zombie", "eat", "x", "--", "true"],
        &["acquire"],
        &["acquire", "a//b"],
        &["acquire", "../"],
        &["acquire", "a\nb"],
        &["check", "x", "--hold", "-1"],
        &["check", "-q", "-v", "x"],
        &["list", "x"],
    ];
    for line in lines {
        env.onehold(*line)
            .assert()
            .code(2)
            .stdout(is_empty())
            .stderr(is_empty().not());
    }
    assert!(!env.store().exists());
}

#[test]
fn with_json_it_is_one_object_all_the_same() {
    let env = Env::new();
    let output = env.onehold(["acquire", "a//b", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let object = only_object(&output.stdout);
    assert_eq!(object["error"]["code"], "USAGE");
    assert_eq!(object["command"], "acquire");
    let output = env
        .onehold(["--json", "run", "-w", "soon", "--", "true"])
        .output()
        .unwrap();
    assert!(output.stdout.is_empty());
    assert_eq!(only_object(&output.stderr)["success"], false);
    // An argument of the command is not ours.
    let output = env
        .onehold(["run", "-w", "soon", "--", "x", "--json"])
        .output()
        .unwrap();
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .starts_with("error: ")
    );
}

#[test]
fn every_verb_puts_exactly_one_object_on_stdout_and_says_nothing() {
    let env = Env::new();
    env.leave_dead("dead");
    let lines: &[(&[&str], i32)] = &[
        (&["acquire", "x", "--ttl", "1h", "--owner", "me"], 0),
        (&["acquire", "x", "--ttl", "1h", "--owner", "me"], 0),
        (&["acquire", "x", "--ttl", "1h"], 6),
        (&["acquire", "x", "--ttl", "1h", "-w", "10ms"], 7),
        (
            &["acquire", "dead", "--ttl", "1h", "--on-zombie", "fail"],
            5,
        ),
        (&["acquire", "x", "--pid", "2147483647"], 1),
        (&["renew", "x", "--owner", "me"], 0),
        (&["renew", "x"], 4),
        (&["renew", "free"], 3),
        (&["check", "x"], 6),
        (&["list"], 0),
        (&["release", "x"], 4),
        (&["release", "x", "--owner", "me"], 0),
        (&["break", "dead"], 0),
        (&["break", "dead"], 3),
        (&["cleanup"], 0),
    ];
    for (line, code) in lines {
        let output = env.onehold(*line).arg("--json").output().unwrap();
        assert_eq!(output.status.code(), Some(*code), "{line:?}");
        let object = only_object(&output.stdout);
        assert_eq!(object["command"], line[0]);
        assert_eq!(object["success"], object["error"].is_null(), "{object}");
        assert_eq!(
            object["success"].as_bool().unwrap(),
            *code == 0 || line[0] == "check"
        );
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "{line:?}");
    }
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    let env = Env::new();
    env.onehold(["acquire", "x", "--ttl", "1h"])
        .assert()
        .success();
    env.shell("{ sleep 0.1; onehold list; echo $? > code; } | true; until test -s code; do sleep 0.01; done")
        .assert()
        .success();
    assert_eq!(std::fs::read_to_string(env.path("code")).unwrap(), "0\n");
    env.shell("onehold check x > /dev/full")
        .assert()
        .code(6)
        .stderr(contains("cannot write to stdout"));
    env.shell("onehold list > /dev/full")
        .assert()
        .code(1)
        .stderr("onehold: cannot write to stdout: no space left on device\n");
}

#[test]
fn there_is_colour_only_where_it_is_wanted() {
    let env = Env::new();
    env.leave_dead("x");
    let text = |args: &[&str], no_color: bool| {
        let mut command = env.onehold(args);
        if no_color {
            command.env("NO_COLOR", "1");
        }
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert!(
        !text(&["check", "x"], false).contains('\u{1b}'),
        "not a terminal"
    );
    assert!(text(&["check", "x", "--color", "always"], false).contains("\u{1b}[31m"));
    assert!(!text(&["check", "x", "--color", "never"], false).contains('\u{1b}'));
    let on_terminal = |setup: &str| {
        let line = format!("{setup} {} check x", crate::env::program().display());
        let output = std::process::Command::new("script")
            .args(["-qec", &line, "/dev/null"])
            .env("ONEHOLD_DIR", env.store())
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(on_terminal("").contains("\u{1b}[31m"));
    assert!(!on_terminal("NO_COLOR=1").contains('\u{1b}'));
}

#[test]
fn help_and_version_go_to_stdout() {
    let env = Env::new();
    env.onehold(["--help"]).assert().success().stdout(
        contains("Exit status:")
            .and(contains("ONEHOLD_DIR"))
            .and(contains("events.jsonl")),
    );
    env.onehold(["run", "--help"])
        .assert()
        .success()
        .stdout(contains("Examples:"));
    env.onehold(["-V"])
        .assert()
        .success()
        .stdout(starts_with("onehold "));
}

#[test]
fn without_a_home_the_user_database_tells_where_the_store_is() {
    let env = Env::new();
    let output = env
        .onehold(["list", "-v"])
        .env_remove("ONEHOLD_DIR")
        .env_remove("HOME")
        .env("XDG_STATE_HOME", "/nowhere")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("/.local/state/onehold") && !said.contains("/nowhere"),
        "{said}"
    );
}

#[test]
fn what_was_displaced_is_in_the_object_too_and_what_was_taken_is_mine() {
    let env = Env::new();
    env.leave_dead("x");
    let taken = env.json(["acquire", "x", "--ttl", "1h"]);
    assert_eq!(taken["displaced"]["reason"], "dead");
    assert_eq!(taken["lock"]["mine"], true);
    assert!(env.json(["acquire", "y", "--ttl", "1h"])["displaced"].is_null());
    let out = env
        .onehold(["run", "--json", "--force", "--yes", "x", "--", "true"])
        .output()
        .unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    let object = only_object(said.lines().last().unwrap().as_bytes());
    assert_eq!(object["displaced"]["hold"], taken["hold"]);
    assert_eq!(object["displaced"]["reason"], "lease");
}

#[test]
fn a_journal_that_cannot_be_written_is_a_warning_of_cleanup() {
    let env = Env::new();
    env.leave_dead("x");
    std::fs::create_dir(env.store().join(".onehold/events.jsonl")).unwrap();
    env.onehold(["cleanup"])
        .assert()
        .success()
        .stderr(starts_with("onehold: warning: ").and(contains("events.jsonl")));
    assert_eq!(env.check("x"), 0);
}

#[test]
fn a_hold_is_as_old_as_it_was_taken_and_says_when_it_is_over_at_the_latest() {
    let env = Env::new();
    let then = (chrono::Utc::now() - chrono::TimeDelta::hours(3)).to_rfc3339();
    let _holder = env.fabricate("x", |text| {
        let (before, rest) = text.split_once("\"acquired_at\": \"").unwrap();
        let (_, after) = rest.split_once('"').unwrap();
        format!("{before}\"acquired_at\": \"{then}\"{after}")
    });
    env.onehold(["list"])
        .assert()
        .success()
        .stdout(contains(" 3h"));
    let pid = std::process::id().to_string();
    env.onehold(["acquire", "y", "--pid", &pid, "--ttl", "1h"])
        .assert()
        .success()
        .stderr(contains(", at most for 1h, until "));
}

#[test]
fn who_waits_for_what_his_script_holds_is_told_to_give_it_back() {
    let env = Env::new();
    env.shell("onehold acquire -q x >/dev/null; onehold run -w 0.2 x -- true")
        .assert()
        .code(7)
        .stderr(contains(
            "  it is held for a process that you descend from: give it back with `onehold ",
        ));
}
