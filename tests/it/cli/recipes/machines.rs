//! What who runs a machine sets up: metrics, units, stores for all users, what is installed.

use std::fs;

use assert_cmd::prelude::OutputAssertExt;
use predicates::str::contains;

use super::{README, RECIPES, example, examples, executable, recipe};
use crate::harness::{Running, TestEnv, wait_until};

#[test]
fn file_of_metrics_is_replaced_whole() {
    let env = TestEnv::new();
    env.done(["acquire", "x", "--ttl", "1h"]);
    let script = example("--prometheus");
    executable(&env, "bin/onehold-metrics", &script);
    fs::create_dir(env.path("collector")).unwrap();
    for _ in 0..2 {
        let script = env.path("bin/onehold-metrics");
        env.command(script).arg("collector").assert().success();
        let written = fs::read_dir(env.path("collector")).unwrap();
        let names: Vec<_> = written.map(|file| file.unwrap().file_name()).collect();
        assert_eq!(names, ["onehold.prom"]);
    }
    let text = fs::read_to_string(env.path("collector/onehold.prom")).unwrap();
    assert!(text.contains("onehold_lock_held{name=\"x\","), "{text}");
    // Each metric of an alert is there.
    for line in example("alert: LockOverdue").lines() {
        for word in line.split(|char: char| !(char.is_alphanumeric() || char == '_')) {
            let is_written = text.contains(&format!("# TYPE {word} gauge\n"));
            assert!(
                is_written || !word.starts_with("onehold_"),
                "{word}: {text}"
            );
        }
    }
}

#[test]
#[ignore = "needs promtool, of the package prometheus"]
fn alerts_are_valid() {
    let env = TestEnv::new();
    env.write("rules.yml", example("alert: LockOverdue"));
    let mut promtool = env.command("promtool");
    let checked = promtool.args(["check", "rules", "rules.yml"]);
    checked.assert().success().stdout(contains("5 rules found"));
}

#[test]
#[ignore = "needs systemd-analyze: apt install systemd"]
fn units_are_valid() {
    let env = TestEnv::new();
    let mut files = Vec::new();
    for unit in examples(RECIPES) {
        let Some(name) = unit
            .strip_prefix("# /etc/systemd/system/")
            .and_then(|rest| rest.lines().next())
        else {
            continue;
        };
        // The programs that it starts are not here.
        let program = crate::harness::program();
        let text = unit
            .replace("/usr/bin/onehold", program.to_str().unwrap())
            .replace("/usr/local/bin/onehold-told", "/bin/true")
            .replace("/usr/local/bin/onehold-metrics", "/bin/true");
        files.push(env.write(name, text));
    }
    assert!(files.len() >= 6, "{files:?}");
    let mut verify = env.command("systemd-analyze");
    verify
        .args(["verify", "--man=no", "--recursive-errors=no"])
        .args(&files);
    verify.assert().success().stderr("");
}

#[test]
fn store_of_the_recipe_for_shared_filesystems_is_examined_used_and_broken() {
    let env = TestEnv::new();
    executable(&env, "report.sh", "#!/bin/sh\necho >> ran\n");
    let lines = example("/mnt/share/locks doctor").replace("/mnt/share", "share");
    fs::create_dir(env.path("share")).unwrap();
    let codes: Vec<_> = lines
        .lines()
        .map(|line| env.session(line).output().unwrap().status.code().unwrap())
        .collect();
    // Nothing is held at the end.
    assert_eq!(codes, [0, 0, 3]);
    assert_eq!(env.lines("ran"), 1);
}

#[test]
fn path_for_all_users_holds_the_lock() {
    let env = TestEnv::new();
    executable(&env, "backup.sh", "#!/bin/sh\necho $ONEHOLD_NAME\n");
    let line = example("/run/lock/backup.lock").replace("/run/lock", "./lock");
    fs::create_dir(env.path("lock")).unwrap();
    env.session(&line)
        .assert()
        .success()
        .stdout("./lock/backup.lock\n");
}

#[test]
#[ignore = "needs jq: apt install jq"]
fn program_is_replaced_while_a_lock_is_held() {
    let env = TestEnv::new();
    fs::create_dir(env.path("bin")).unwrap();
    fs::copy(crate::harness::program(), env.path("bin/onehold")).unwrap();
    fs::copy(crate::harness::program(), env.path("onehold")).unwrap();
    let script = example("install onehold").replace("/usr/local/bin", "./bin");
    let (until, install) = script.split_once('\n').unwrap();
    let until = until.replace("sleep 10", "sleep 0.01");
    let old = "bin/onehold run job -- sh -c 'echo > began; while test -e began && ! test -e end; do sleep 0.01; done'";
    let mut holder = Running::start(env.shell(&format!("exec {old}")));
    wait_until("it holds the lock", || env.lines("began") == 1);
    let mut waiting = Running::start(env.shell(&until));
    // A new file takes the place of the one that is running.
    env.shell(install).assert().success();
    env.shell("bin/onehold check job").assert().code(6);
    assert!(!waiting.has_ended());
    env.end();
    assert_eq!(holder.finish(), 0);
    assert_eq!(waiting.finish(), 0);
    assert_eq!(env.check("job"), 0);
}

#[test]
fn man_pages_and_completions_are_installed_below_a_prefix() {
    let env = TestEnv::new();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/install-docs");
    assert!(README.contains("packaging/install-docs ~/.local"));
    env.command(script).assert().success();
    let share = env.path(".local/share");
    for file in [
        "man/man1/onehold-run.1",
        "man/man5/onehold-json.5",
        "man/man7/onehold-recipes.7",
        "bash-completion/completions/onehold.bash",
        "zsh/site-functions/_onehold",
        "fish/vendor_completions.d/onehold.fish",
    ] {
        assert!(share.join(file).exists(), "{file}");
    }
    env.command(script).arg("other").assert().success();
}

#[test]
fn commands_of_an_operator_run() {
    let env = TestEnv::new();
    let holder = Running::sleeper();
    env.onehold(["acquire", "backup", "--pid", &holder.pid().to_string()])
        .assert()
        .success();
    env.create_zombie("old");
    let block = recipe("onehold cleanup -n");
    let codes: Vec<Option<i32>> = block
        .lines()
        .map(|line| env.session(line).output().unwrap().status.code())
        .collect();
    // Without a terminal nobody can confirm the break.
    assert_eq!(codes, [0, 6, 6, 0, 0, 0].map(Some));
}
