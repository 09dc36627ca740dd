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
