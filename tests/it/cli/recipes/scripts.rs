//! Scripts that lock themselves, cron lines, and the lines of onehold-flock(7).

use std::fs;

use assert_cmd::prelude::OutputAssertExt;

use super::{FLOCK, examples, executable, recipe};
use crate::harness::{Running, Signal, TestEnv, send, wait_until};

/// Lines of flock(1) that wait as long as it takes.
const WAITING: [&str; 3] = ["flock job.lock ./job", "flock job.lock -c", "flock 9\n"];

/// Runs a script of onehold-flock(7): alone, or while an earlier one is at work. Returns the exit code,
/// stdout, and which jobs were done in all.
fn flock_script(script: &str, is_held: bool) -> ((Option<i32>, String, Vec<String>), String) {
    let env = TestEnv::new();
    executable(
        &env,
        "job",
        "#!/bin/sh\nrm first 2>/dev/null && first=yes\necho did $1\necho $1 >> log\n\
         test \"$first\" && until test -e end; do sleep 0.01; done\nexit 3\n",
    );
    executable(&env, "script", &format!("#!/bin/sh\n{script}"));
    let first = is_held.then(|| {
        env.write("first", "");
        let first = Running::start(env.session("./script"));
        wait_until("the first one is at work", || env.path("log").exists());
        first
    });
    let waits = script.contains("forever") || WAITING.iter().any(|line| script.contains(line));
    if waits {
        env.write("end", "");
    }
    let output = env.session("./script").output().unwrap();
    env.write("end", "");
    if let Some(mut first) = first {
        assert_eq!(first.finish(), 3, "{script}");
    }
    let log = fs::read_to_string(env.path("log")).unwrap();
    let mut jobs: Vec<String> = log.lines().map(str::to_owned).collect();
    // After `flock -u` and `release` nothing orders them.
    jobs.sort();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    ((output.status.code(), stdout, jobs), stderr)
}

#[test]
fn each_script_does_what_its_equivalent_with_flock_does() {
    let examples = examples(FLOCK);
    let pairs: Vec<(&String, &String)> = examples
        .chunks_exact(2)
        .map(|pair| (&pair[0], &pair[1]))
        .take_while(|(theirs, _)| theirs.contains("flock"))
        .collect();
    assert_eq!(pairs.len(), 11);
    for (theirs, ours) in pairs {
        assert!(
            ours.contains("onehold") && !theirs.contains("onehold"),
            "{ours}"
        );
        for is_held in [false, true] {
            let (expected, _) = flock_script(theirs, is_held);
            let (found, said) = flock_script(ours, is_held);
            assert_eq!(found, expected, "{is_held}: {theirs}{ours}{said}");
        }
    }
}

/// The work of a script that locks itself, for as long as there is no file `end`. Says so if another one is there.
const ALONE: &str = "#!/bin/sh\nmkdir alone || echo >> twice\necho $$ >> jobs\n\
    while test -e jobs && ! test -e end; do sleep 0.01; done\nrmdir alone\n";

/// The scripts of the flock page and of the README that lock themselves.
fn scripts_that_lock_themselves() -> Vec<String> {
    let scripts = examples(FLOCK).into_iter();
    let mut scripts: Vec<String> = scripts
        .filter(|text| text.contains("check --mine"))
        .collect();
    scripts.push(recipe("onehold check --mine nightly"));
    assert_eq!(scripts.len(), 3);
    let lines = scripts.iter().map(|text| text.replace("./import", "./job"));
    lines.map(|text| format!("#!/bin/sh\n{text}")).collect()
}

#[test]
fn if_only_the_script_is_killed_its_work_has_ended_before_the_next_one_begins() {
    for text in scripts_that_lock_themselves() {
        let env = TestEnv::new();
        executable(&env, "script", &text);
        executable(&env, "job", ALONE);
        let mut first = Running::start(env.session("exec ./script a"));
        wait_until("the first one is at work", || env.lines("jobs") == 1);
        let locks = env.json(["list"])["locks"].take();
        let (name, script) = (&locks[0]["name"], &locks[0]["pid"]);
        let mut waiting =
            env.onehold(["run", "-w", "1h", name.as_str().unwrap(), "--", "sh", "-c"]);
        let job = env.pid_in("jobs");
        waiting.arg(format!("! kill -0 {job} 2>/dev/null"));
        let mut next = Running::start(waiting);
        env.wait_for_waiter(name.as_str().unwrap());
        send(
            u32::try_from(script.as_u64().unwrap()).unwrap(),
            Signal::KILL,
        );
        assert_eq!(next.finish(), 0, "{text}");
        assert_eq!(first.finish(), 137, "{text}");
    }
}

#[test]
fn if_only_the_wrapper_of_a_script_is_killed_the_script_keeps_its_lock() {
    for text in scripts_that_lock_themselves() {
        let env = TestEnv::new();
        executable(&env, "script", &text);
        executable(&env, "job", ALONE);
        let mut first = env.command(env.path("script"));
        first.arg("a");
        // The process that was started is the wrapper.
        let mut first = Running::start(first);
        wait_until("the first one is at work", || env.lines("jobs") == 1);
        first.kill();
        let text = text.replace("--wait 5m ", "");
        executable(&env, "second", &text);
        let name = env.json(["list"])["locks"][0]["name"].take();
        // The script that locks itself is named after itself.
        if name != "script" {
            let code = env.session("./second b").output().unwrap().status.code();
            assert!(matches!(code, Some(1 | 6)), "{code:?} {text}");
        }
        assert_eq!(env.check(name.as_str().unwrap()), 6);
        env.end();
        wait_until("the script has ended", || {
            env.check(name.as_str().unwrap()) != 6
        });
        assert!(!env.path("twice").exists(), "{text}");
    }
}

#[test]
fn line_with_the_format_of_flock_excludes_flock() {
    let env = TestEnv::new();
    let line = examples(FLOCK)
        .into_iter()
        .find(|block| block.contains("--format flock"))
        .unwrap();
    let file = env.path("job.lock");
    let line = line.replace("/run/lock/job.lock", file.to_str().unwrap());
    executable(&env, "job", "#!/bin/sh\necho did\n");
    env.session(&line).assert().success().stdout("did\n");
    env.session(&format!("exec 9>job.lock; flock 9; {line}"))
        .assert()
        .code(1)
        .stdout("");
}

/// The fields of a crontab line in front of the command are left out.
#[test]
fn cron_lines_of_the_readme_run() {
    let env = TestEnv::new();
    for line in recipe("/usr/local/bin/sync-mail").lines() {
        let command: String = line.splitn(6, ' ').last().unwrap().trim().to_owned();
        let command = command
            .replace("/usr/bin/onehold", "onehold")
            .replace("/usr/local/bin/", "./");
        for program in ["sync-mail", "backup.sh"] {
            executable(&env, program, "#!/bin/sh\necho did >&2\n");
        }
        env.session(&command)
            .assert()
            .success()
            .stdout("")
            .stderr("did\n");
        // Another one is at work.
        executable(
            &env,
            "sync-mail",
            "#!/bin/sh\necho $$ > began\nuntil test -e end; do sleep 0.01; done\n",
        );
        if command.contains("-E 0") {
            let _first = Running::start(env.session(&command));
            wait_until("the first one is at work", || env.path("began").exists());
            env.session(&command)
                .assert()
                .success()
                .stdout("")
                .stderr("");
            env.write("end", "");
        }
    }
}

#[test]
fn script_of_the_readme_holds_its_lock_to_its_end() {
    let env = TestEnv::new();
    executable(&env, "nightly", &recipe("onehold check --mine nightly"));
    executable(&env, "import", "#!/bin/sh\nonehold check nightly >> seen\n");
    env.session("./nightly a")
        .assert()
        .success()
        .stdout("")
        .stderr("");
    assert_eq!(env.check("nightly"), 0, "released");
    env.session("./nightly b")
        .assert()
        .success()
        .stdout("")
        .stderr("");
    let seen = fs::read_to_string(env.path("seen")).unwrap();
    assert!(
        seen.contains("\"import a\"") && seen.contains("\"import b\""),
        "{seen}"
    );
    let log = fs::read_to_string(env.path("import.log")).unwrap();
    assert_eq!(log.matches("done, under hold 1").count(), 2);
}
