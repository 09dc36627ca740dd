//! What is said, in which color, and what is asked.

use assert_cmd::prelude::OutputAssertExt;
use predicates::prelude::*;
use predicates::str::{contains, is_empty, is_match, starts_with};
#[cfg(target_os = "linux")]
use serde_json::Value;

use crate::harness::{TestEnv, wait_until};

#[cfg(unix)]
#[test]
fn color_follows_option_variable_and_terminal() {
    let env = TestEnv::new();
    env.create_zombie("x");
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
        let line = format!("{setup} {} check x", crate::harness::program().display());
        let output = env
            .command("script")
            .args(["-qec", &line, "/dev/null"])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(on_terminal("").contains("\u{1b}[31m"));
    assert!(!on_terminal("NO_COLOR=1").contains('\u{1b}'));
}

#[test]
fn unwritable_journal_is_a_warning_of_cleanup() {
    let env = TestEnv::new();
    env.create_zombie("x");
    std::fs::create_dir(env.store().join(".onehold/events.jsonl")).unwrap();
    env.onehold(["cleanup"])
        .assert()
        .success()
        .stderr(starts_with("onehold: warning: ").and(contains("events.jsonl")));
    assert_eq!(env.check("x"), 0);
}

#[test]
fn list_shows_age_since_acquisition_and_acquire_shows_expiry() {
    let env = TestEnv::new();
    let then = (chrono::Utc::now() - chrono::TimeDelta::hours(3)).to_rfc3339();
    let _holder = env.write_record_of_live_holder("x", |text| {
        let (before, rest) = text.split_once("\"acquired_at\": \"").unwrap();
        let (_, after) = rest.split_once('"').unwrap();
        format!("{before}\"acquired_at\": \"{then}\"{after}")
    });
    env.onehold(["list"])
        .assert()
        .success()
        .stdout(contains(" 3h"));
    let pid = std::process::id().to_string();
    env.onehold(["acquire", "-v", "y", "--pid", &pid, "--ttl", "1h"])
        .assert()
        .success()
        .stderr(contains(", at most 1h, until "));
}

#[cfg(unix)]
#[test]
fn waiting_for_lock_of_own_script_suggests_release() {
    let env = TestEnv::new();
    // Immediately, because the wait would never end.
    env.session("onehold acquire -q x >/dev/null; onehold run -w 1h x -- true")
        .assert()
        .code(6)
        .stderr(contains(
            "  your own shell or script holds it: run `onehold ",
        ));
}

/// Each of its threads in turn: that of signals, and that which reads the answer.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "needs strace: apt install strace"]
fn prompt_without_a_thread_is_refused() {
    let env = TestEnv::new();
    env.create_zombie("x");
    let question = |number: u32| {
        let inject = format!("inject=clone,clone3:error=EAGAIN:when={number}");
        let trace = format!("strace -f -qq -o /dev/null -e {inject}");
        let words = "run --on-zombie ask x -- true";
        env.on_a_terminal_with(&trace, words, if number == 2 { &[] } else { &["n\n"] })
    };
    assert_eq!(question(1).0, 5);
    let (code, seen) = question(2);
    assert_eq!(code, 5, "{seen}");
    assert!(seen.contains("cannot ask for confirmation"), "{seen}");
    assert!(seen.contains("--yes"), "{seen}");
    assert_eq!(question(3).0, 5);
}

#[cfg(unix)]
#[test]
fn prompt_is_colored_unless_color_is_disabled() {
    let env = TestEnv::new();
    env.create_zombie("x");
    let prompt = |prefix: &str, option: &str| {
        let words = format!("run --on-zombie ask {option} x -- true");
        let (code, seen) = env.on_a_terminal_with(prefix, &words, &["n\n"]);
        assert_eq!(code, 5);
        assert!(seen.contains("\r\n  Take it over? [y/N] "), "{seen}");
        seen
    };
    assert!(prompt("", "").contains("\u{1b}[31m"));
    assert!(!prompt("NO_COLOR=1", "").contains('\u{1b}'));
    assert!(!prompt("", "--color never").contains('\u{1b}'));
}

#[test]
fn quiet_prints_data_only_where_a_verb_is_for_its_data() {
    let env = TestEnv::new();
    let quiet = |words: &[&str]| {
        let output = env.onehold(words).arg("-q").output().unwrap();
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "{words:?}");
        !output.stdout.is_empty()
    };
    env.create_zombie("zombie");
    assert!(quiet(&["acquire", "x", "--ttl", "1h"]), "the hold number");
    assert!(quiet(&["list"]), "the table");
    assert!(quiet(&["config"]), "the settings");
    assert!(!quiet(&["list", "--state", "overdue"]));
    for words in [
        &["check", "x"][..],
        &["check", "zombie"],
        &["cleanup", "-n"],
        &["cleanup"],
        &["acquire", "x", "--ttl", "1h"],
        &["break", "x", "--yes"],
        &["release", "x"],
    ] {
        assert!(!quiet(words), "{words:?}");
    }
    let help = env.onehold(["--help"]).output().unwrap().stdout;
    let help = String::from_utf8(help).unwrap();
    assert!(help.contains("the exit status is the answer"), "{help}");
}

#[cfg(unix)]
#[test]
fn what_goes_well_is_said_on_a_terminal_and_not_to_cron() {
    let env = TestEnv::new();
    let acquire = ["acquire", "y", "--slots", "2", "--ttl", "1h"];
    env.onehold(acquire).assert().success().stderr(is_empty());
    env.onehold(acquire)
        .arg("-v")
        .assert()
        .success()
        .stderr(contains("onehold: acquired `y`, slot 1, for 1h, until "));
    let (_, seen) = env.on_a_terminal("acquire z --ttl 1h", &[]);
    assert!(
        seen.contains("onehold: acquired `z` for 1h, until "),
        "{seen}"
    );
    for option in ["-w", "-vw"] {
        let holder = env.start(["run", "x", "--", "sleep", "1.2"]);
        holder.wait_until_recorded();
        let waiter = env.onehold(["run", option, "1h", "x", "--", "true"]);
        let output = { waiter }.output().unwrap();
        assert!(output.status.success());
        let said = String::from_utf8(output.stderr).unwrap();
        let is_said =
            said.contains("waiting: `x` is held by") && said.contains("onehold: waited 1s for `x`");
        assert_eq!(
            said.matches("acquired `x`").count(),
            usize::from(option != "-w"),
            "{said}"
        );
        assert_eq!(
            (is_said, said.is_empty()),
            (option != "-w", option == "-w"),
            "{said}"
        );
    }
}

#[cfg(unix)]
#[test]
fn wait_on_a_terminal_names_the_holder_once_and_in_full() {
    let env = TestEnv::new();
    let message = "a message that makes the line longer than eighty columns are";
    env.onehold([
        "acquire", "x", "--ttl", "1h", "--owner", "ci-88", "-m", message,
    ])
    .assert()
    .success();
    for (line, progress) in [
        (
            "run -w 3 x -- true",
            "waiting 2s of 3s, position 1 of 1 (Ctrl-C cancels)",
        ),
        ("wait -w 3 x", "waiting 2s of 3s (Ctrl-C cancels)"),
    ] {
        let (code, seen) = env.on_a_terminal(line, &[]);
        assert_eq!(code, 7);
        let (before, _) = seen.split_once("onehold: timed out").unwrap();
        assert_eq!(before.matches(message).count(), 1, "{before}");
        assert!(
            before.contains("onehold: waiting for ci-88: `x` is held by a lease"),
            "{before}"
        );
        assert!(before.contains(progress), "{before}");
    }
}

#[test]
fn overdue_holder_is_said_also_with_q() {
    let env = TestEnv::new();
    let holder = crate::harness::Running::sleeper();
    let pid = holder.pid().to_string();
    env.done(["acquire", "x/y", "--pid", &pid, "-m", "nightly"]);
    let quiet = ["run", "-q", "-E", "0", "x/y", "--", "true"];
    env.onehold(quiet).assert().success().stderr(is_empty());
    env.done(["break", "x/y", "--yes"]);
    env.done(["acquire", "x/y", "--pid", &pid, "--max-age", "50ms"]);
    wait_until("it is overdue", || env.check("x/y") == 5);
    let lines: [(&[&str], i32); 5] = [
        (&quiet, 0),
        (&["run", "-q", "-w", "0.05", "x/y", "--", "true"], 7),
        (&["acquire", "-q", "x/y"], 6),
        (&["acquire", "-q", "--slots", "2", "x/y"], 6),
        (&["acquire", "-q", "x"], 6),
    ];
    for (words, code) in lines {
        let whole = format!(
            "^onehold: warning: overdue since .* \\([0-9]+s ago\\): `x/y`.* is held by process {pid} .*\n$"
        );
        let said = is_match(whole).unwrap();
        env.onehold(words).assert().code(code).stderr(said);
    }
    let object = env.json(["acquire", "x/y"]);
    let warning = object["errors"][1].as_str().unwrap();
    assert!(warning.starts_with("overdue since "), "{object}");
    // The text of the refusal says it already.
    env.onehold(["acquire", "x/y"])
        .assert()
        .code(6)
        .stderr(contains("warning").not());
}

#[cfg(unix)]
#[test]
#[ignore = "needs more than a minute"]
fn wait_of_more_than_a_minute_says_once_whom_it_waits_for() {
    let env = TestEnv::new();
    let mut holder = env.hold(&["x"]);
    let run = |more: &[&str], store: Option<&str>| {
        let mut run = env.onehold(["run"]);
        run.args(more).args(["x", "--", "true"]);
        run.envs(store.map(|store| ("ONEHOLD_DIR", store)));
        String::from_utf8(run.output().unwrap().stderr).unwrap()
    };
    let unanswered = cfg!(feature = "etcd").then_some("etcd://127.0.0.1:1/x");
    let cases = [
        (&["-w", "75"][..], None),
        (&["-w", "60"], None),
        (&["-q", "-w", "75"], None),
        (&["-w", "75"], unanswered),
    ];
    let said = std::thread::scope(|scope| {
        let run = &run;
        let runs = cases.map(|(more, store)| scope.spawn(move || run(more, store)));
        runs.map(|run| run.join().unwrap())
    });
    let [long, short, quiet, unanswered] = &said;
    let held = "onehold: waiting: `x` is held by process ";
    let timed_out = "onehold: timed out after 1m";
    assert!(
        long.starts_with(held) && long.contains(&format!("\n{timed_out} 15s: ")),
        "{long}"
    );
    assert!(short.starts_with(timed_out), "{short}");
    assert_eq!(quiet, "");
    let waits = "onehold: waiting for `x`: cannot read locks in `etcd://127.0.0.1:1/x`: ";
    assert!(
        unanswered.matches(waits).count() == 1 || cfg!(not(feature = "etcd")),
        "{unanswered}"
    );
    env.end();
    holder.finish();
}

#[cfg(target_os = "linux")]
#[test]
fn working_directory_of_a_run_is_shown() {
    let env = TestEnv::new();
    let directory = env.path("second tree");
    std::fs::create_dir(&directory).unwrap();
    let mut run = env.onehold(["run", "x", "--", "sleep", "1000"]);
    run.current_dir(&directory);
    let running = crate::harness::Running::start(run);
    running.wait_until_recorded();
    wait_until("the command runs", || {
        env.lock("x")["directory"] == directory.to_str().unwrap()
    });
    let whole = directory.display();
    for (words, line) in [
        (&["check", "x"][..], format!("; runs in {whole}\n")),
        (&["check", "-v", "x"], format!("\n  directory: {whole}\n")),
        (&["list", "-v"], format!("\n  directory: {whole}\n")),
        (&["acquire", "x"], "; runs in second tree\n".to_owned()),
    ] {
        let output = env.output(words);
        let told = [output.stdout, output.stderr].concat();
        let told = String::from_utf8(told).unwrap();
        assert!(told.contains(&line), "{words:?}: {told}");
    }
    // That of a script is no matter of the lock.
    env.done(["acquire", "y", "--pid", &running.pid().to_string()]);
    assert_eq!(env.lock("y")["directory"], Value::Null);
}
