//! The completion scripts, in the shells themselves.

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::prelude::OutputAssertExt;
use predicates::str::contains;

use super::terminal::dialog;
use crate::harness::TestEnv;

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("completions")
        .join(name)
}

/// A store with two held locks and a zombie.
fn env_with_locks() -> TestEnv {
    let env = TestEnv::new();
    for (name, ttl, owner) in [
        ("alpha/x", "1ms", "gone"),
        ("beta10", "1h", "ops"),
        ("beta9", "1h", "ci"),
    ] {
        env.onehold(["acquire", name, "--ttl", ttl, "--owner", owner])
            .assert()
            .success();
    }
    env.write("job.sh", "#!/bin/sh\n");
    env.write("beta-is-no-lock", "");
    fs::create_dir(env.path("folder")).unwrap();
    env
}

/// What the word at the end of `line` can become.
fn candidates(env: &TestEnv, line: &str) -> Vec<String> {
    let words: Vec<&str> = line.split(' ').collect();
    let index = (words.len() - 1).to_string();
    let output = env
        .onehold(["complete", &index])
        .args(words)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty());
    lines
        .map(|line| line.split('\t').next().unwrap().to_owned())
        .collect()
}

#[test]
fn candidates_are_what_the_store_and_the_configuration_have() {
    let env = env_with_locks();
    env.configure("[profiles.nightly]\nwait = 5\n");
    for name in ["past/10", "past/2"] {
        let mut run = env.onehold(["run", name, "--", "true"]);
        run.env("ONEHOLD_HISTORY", "1").assert().success();
    }
    let numbers = [env.lock("beta9")["hold"].to_string()];
    for (line, expected) in [
        ("onehold ch", &["check"][..]),
        // Held ones first, and never a file.
        ("onehold check ", &["beta9", "beta10", "alpha/x"]),
        ("onehold -v break b", &["beta9", "beta10"]),
        ("onehold run x ", &["--", "beta9", "beta10", "alpha/x"]),
        ("onehold run x -- ", &[]),
        ("onehold run ./j", &["./job.sh"]),
        ("onehold run ./f", &["./folder/"]),
        ("onehold --dir f", &["folder/"]),
        ("onehold release beta9 --owner ", &["ci"]),
        ("onehold release beta9 --owner=", &["--owner=ci"]),
        ("onehold run --owner ", &["ops", "ci", "gone"]),
        ("onehold release beta9 --hold ", &[&numbers[0]]),
        (
            "onehold --profile ",
            &["memory", "nightly", "prodigy", "sprint", "tasks"],
        ),
        (
            "onehold --format ",
            &[
                "native", "prodigy", "sprint", "memory", "pid", "flock", "fcntl",
            ],
        ),
        ("onehold run --on-zombie ", &["take", "ask", "fail"]),
        ("onehold list --state h", &["held"]),
        ("onehold check --av", &["--available"]),
        ("onehold check --mi", &["--mine"]),
        // Another store.
        ("onehold --dir folder check ", &[]),
        ("onehold check --dir=folder ", &[]),
        // The only lock of a profile needs no name.
        ("onehold --profile sprint check ", &[]),
        ("onehold check beta9 ", &[]),
        // Values.
        (
            "onehold run x -w ",
            &["10s", "1m", "10m", "1h", "1d", "forever"],
        ),
        (
            "onehold run x -nw ",
            &["10s", "1m", "10m", "1h", "1d", "forever"],
        ),
        ("onehold acquire --ttl ", &["10s", "1m", "10m", "1h", "1d"]),
        ("onehold run x --max-age 10", &["10s", "10m"]),
        (
            "onehold run --time-limit ",
            &["10s", "1m", "10m", "1h", "1d"],
        ),
        (
            "onehold run --kill-after=10",
            &["--kill-after=10s", "--kill-after=10m"],
        ),
        ("onehold run x -m ", &[]),
        ("onehold run -E ", &[]),
        ("onehold run x --slots ", &[]),
        ("onehold acquire x --pid ", &[]),
        // Its value follows `=`.
        ("onehold list --watch ", &["beta9", "beta10", "alpha/x"]),
        ("onehold list --watch=10", &["--watch=10s", "--watch=10m"]),
        ("onehold help ru", &["run"]),
        ("onehold help run ", &[]),
        // It takes no name.
        ("onehold release --owner ci --all ", &[]),
        ("onehold break --all b", &["beta9", "beta10"]),
        ("onehold run x --die-with ", &["parent", "none"]),
        ("onehold history ", &["past/10", "past/2"]),
        ("onehold history past/2 ", &["past/10"]),
    ] {
        let mut expected: Vec<&str> = expected.to_vec();
        let mut found = candidates(&env, line);
        if line.contains("run --owner") {
            found.sort();
            expected.sort_unstable();
        }
        assert_eq!(found, expected, "{line}");
    }
}

#[test]
fn label_that_could_control_the_terminal_is_no_candidate() {
    let env = TestEnv::new();
    for (name, owner) in [("x", "\u{1b}[2J"), ("y", "a\nb"), ("z", "plain")] {
        env.onehold(["acquire", name, "--ttl", "1h", "--owner", owner])
            .assert()
            .success();
    }
    assert_eq!(candidates(&env, "onehold release --owner "), ["plain"]);
}

#[test]
fn nothing_is_said_where_nothing_can_be_read() {
    let env = env_with_locks();
    env.configure("[defaults]\nnonsense = 1\n");
    assert_eq!(candidates(&env, "onehold check "), [""; 0]);
    assert_eq!(candidates(&env, "onehold --profile "), [""; 0]);
    assert_eq!(candidates(&env, "onehold che"), ["check"]);
    for wrong in [
        &["complete"][..],
        &["complete", "x"],
        &["complete", "9", "onehold"],
    ] {
        let output = env.onehold(wrong).output().unwrap();
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "{wrong:?}");
    }
}

/// Nothing is offered, and nothing is inserted, where a word has no candidates or the value of an option
/// is open.
const NOTHING_TO_ADD: [(&str, &str); 8] = [
    ("check beta9 \\t\\t", "check,beta9,end"),
    ("acquire --pid \\t\\t", "acquire,--pid,end"),
    (
        "release beta9 --owner c\\t\\t",
        "release,beta9,--owner,ci,end",
    ),
    ("run x -m \\t\\t", "run,x,-m,end"),
    ("run x -E \\t\\t", "run,x,-E,end"),
    ("run x --slots \\t\\t", "run,x,--slots,end"),
    ("run x -w 10m\\t\\t", "run,x,-w,10m,end"),
    ("run x --kill-after f\\t\\t", "run,x,--kill-after,f,end"),
];

/// Types lines with tabs into a shell that has the script, and expects what they become.
fn type_with_tabs(env: &TestEnv, shell: &str, options: &str, load: &str) {
    let load = format!("READY> |{load}; echo lo''aded\\n");
    let mut steps = vec![
        load.as_str(),
        "loaded|",
        // A name is unique, and the line works.
        "READY> |onehold check beta9\\t\\n",
        "`beta9` is held by a lease of ci|",
        "READY> |onehold check al\\t\\n",
        "`alpha/x` is a zombie|",
        "READY> |onehold release beta9 --owner=\\t --hold=0\\n",
        "not released: `beta9` is held by a lease of ci|",
        "READY> |onehold list --sta\\thel\\t\\n",
        "beta10  held|",
        // Behind `--` it is the completion of that command, with files.
        "READY> |onehold run own -- ech\\t one ./jo\\t >out; tr a-z A-Z <out\\n",
        "ONE ./JOB.SH|",
        // What is completed is printed from now on.
        "READY> |onehold() if [ $1 = complete ]; then command onehold \"$@\"; else (IFS=,; echo \"{$*}\"); fi\\n",
    ];
    let lines: Vec<String> = NOTHING_TO_ADD
        .iter()
        .flat_map(|(typed, words)| {
            [
                format!("READY> |onehold {typed} end\\n"),
                format!("{{{words}}}|"),
            ]
        })
        .collect();
    steps.extend(lines.iter().map(String::as_str));
    steps.push("READY> |exit\\n");
    dialog(env, shell, options, &steps);
}

#[test]
#[ignore = "needs bash-completion: apt install bash-completion"]
fn bash_completes_with_and_without_its_library() {
    for library in ["true", ". /usr/share/bash-completion/bash_completion"] {
        let env = env_with_locks();
        let load = format!("{library}; . {}", script("onehold.bash").display());
        type_with_tabs(&env, "bash", "--norc --noprofile", &load);
    }
}

#[test]
#[ignore = "needs zsh: apt install zsh"]
fn zsh_completes() {
    let env = env_with_locks();
    let directory = script("");
    let load = format!(
        "fpath=({} $fpath); autoload -U compinit; compinit -u -d {}",
        directory.display(),
        env.path("dump").display()
    );
    type_with_tabs(&env, "zsh", "-f", &load);
}

#[test]
#[ignore = "needs fish: apt install fish"]
fn fish_completes() {
    let env = env_with_locks();
    let source = format!("source {}", script("onehold.fish").display());
    for (line, expected) in [
        ("onehold check ", &["beta9", "beta10", "alpha/x"][..]),
        ("onehold check al", &["alpha/x"]),
        ("onehold release beta9 --owner=", &["--owner=ci"]),
        ("onehold run x ", &["--", "beta9", "beta10", "alpha/x"]),
        ("onehold run x -- onehold check al", &["alpha/x"]),
        ("onehold run x -- cat ./jo", &["./job.sh"]),
        ("onehold run ./jo", &["./job.sh"]),
        ("onehold check beta9 ", &[]),
        ("onehold acquire --pid ", &[]),
        ("onehold release beta9 --owner ci ", &[]),
        ("onehold run x -m ", &[]),
        ("onehold run x -E ", &[]),
        ("onehold run x --slots ", &[]),
        ("onehold run x --ttl 10", &["10s", "10m"]),
        ("onehold run x -w f", &["forever"]),
    ] {
        let script = format!("{source}; complete -C '{line}'");
        let output = env.command("fish").args(["-c", &script]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let values: Vec<&str> = text
            .lines()
            .map(|line| line.split('\t').next().unwrap())
            .collect();
        assert_eq!(values, expected, "{line}: {output:?}");
    }
}

#[test]
fn names_are_completed_after_what_is_no_complete_line() {
    let env = TestEnv::new();
    env.onehold(["acquire", "backup", "--ttl", "1h"])
        .assert()
        .success();
    for words in [
        &["3", "onehold", "run", "-h", ""][..],
        &["4", "onehold", "--color", "bogus", "check", ""],
        &["4", "onehold", "check", "-V", "", ""],
    ] {
        let complete = [&["complete"], words].concat();
        let assert = env.onehold(complete).assert().success().stderr("");
        let said = String::from_utf8(assert.get_output().stdout.clone()).unwrap();
        assert!(!said.contains("panicked"), "{said}");
    }
    let bogus = ["complete", "4", "onehold", "--color", "bogus", "check", ""];
    env.onehold(bogus).assert().stdout(contains("backup"));
}
