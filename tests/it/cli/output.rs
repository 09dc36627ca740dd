use assert_cmd::prelude::OutputAssertExt;
use predicates::prelude::*;
use predicates::str::{contains, is_empty, is_match, starts_with};
use serde_json::Value;

#[cfg(unix)]
use crate::harness::Signal;
use crate::harness::{TestEnv, json_object, last_json_object, wait_until};

#[test]
fn usage_error_is_2_and_changes_nothing() {
    let env = TestEnv::new();
    let lines: &[&[&str]] = &[
        &[],
        &["nonsense"],
        &["run", "x"],
        &["run", "x", "true"],
        &["run", "a", "a/b", "--", "true"],
        &["run", "-s", "--slots", "2", "x", "--", "true"],
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
        &["list", "--state", "held?"],
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
fn usage_error_with_json_prints_one_object() {
    let env = TestEnv::new();
    let output = env.onehold(["acquire", "a//b", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let object = json_object(&output.stdout);
    assert_eq!(object["error"]["code"], "USAGE");
    assert_eq!(object["command"], "acquire");
    let output = env
        .onehold(["--json", "run", "-w", "soon", "--", "true"])
        .output()
        .unwrap();
    assert!(output.stdout.is_empty());
    assert_eq!(json_object(&output.stderr)["success"], false);
    // `--json` after `--` is an argument of the command.
    let output = env
        .onehold(["run", "-w", "soon", "--", "x", "--json"])
        .output()
        .unwrap();
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .starts_with("onehold: invalid value `soon` for ")
    );
}

#[test]
fn every_command_with_json_prints_one_object() {
    let env = TestEnv::new();
    env.create_zombie("dead");
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
        (&["config"], 0),
        (&["release", "x"], 4),
        (&["release", "x", "--owner", "me"], 0),
        (&["break", "dead"], 0),
        (&["break", "dead"], 3),
        (&["cleanup"], 0),
    ];
    for (line, code) in lines {
        let output = env.onehold(*line).arg("--json").output().unwrap();
        assert_eq!(output.status.code(), Some(*code), "{line:?}");
        let object = json_object(&output.stdout);
        assert_eq!(object["command"], line[0]);
        assert_eq!(object["success"], object["error"].is_null(), "{object}");
        assert_eq!(
            object["success"].as_bool().unwrap(),
            *code == 0 || line[0] == "check"
        );
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "{line:?}");
    }
}

#[cfg(unix)]
#[test]
fn closed_pipe_is_no_failure() {
    let env = TestEnv::new();
    env.onehold(["acquire", "x", "--ttl", "1h"])
        .assert()
        .success();
    env.session("{ sleep 0.1; onehold list; echo $? > code; } | true; until test -s code; do sleep 0.01; done")
        .assert()
        .success();
    assert_eq!(std::fs::read_to_string(env.path("code")).unwrap(), "0\n");
    env.session("onehold check x > /dev/full")
        .assert()
        .code(6)
        .stderr(contains("cannot write to stdout"));
    env.session("onehold list > /dev/full")
        .assert()
        .code(1)
        .stderr("onehold: cannot write to stdout: no space left on device\n");
}

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
fn number_that_is_none_is_refused_in_plain_words() {
    let env = TestEnv::new();
    for (words, why) in [
        (
            &["run", "-E", "300", "x", "--", "true"][..],
            "not a number from 0 to 255",
        ),
        (
            &["run", "-E", "no", "x", "--", "true"],
            "not a number from 0 to 255",
        ),
        (
            &["acquire", "x", "--pid", "0"],
            "not a number from 1 to 2147483647",
        ),
        (&["release", "x", "--hold", "one"], "not a hold number"),
        (
            &["run", "--slots", "0", "x", "--", "true"],
            "not a number from 1 to 4294967295",
        ),
    ] {
        let said = env
            .onehold(words)
            .assert()
            .code(2)
            .get_output()
            .stderr
            .clone();
        let said = String::from_utf8(said).unwrap();
        assert!(
            said.lines().next().unwrap().ends_with(&format!(": {why}")),
            "{said}"
        );
    }
}

#[test]
fn help_and_version_go_to_stdout() {
    let env = TestEnv::new();
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
        .stdout(format!("onehold {}\n", env!("CARGO_PKG_VERSION")));
    let features = if cfg!(feature = "etcd") {
        "etcd"
    } else {
        "none"
    };
    env.onehold(["--version"])
        .assert()
        .success()
        .stdout(format!(
            "onehold {}\nfeatures: {features}\n",
            env!("CARGO_PKG_VERSION")
        ));
}

#[cfg(unix)]
#[test]
fn default_store_without_home_is_found_in_user_database() {
    let env = TestEnv::new();
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
fn object_has_displaced_hold_and_new_hold_is_mine() {
    let env = TestEnv::new();
    env.create_zombie("x");
    let taken = env.json(["acquire", "x", "--ttl", "1h"]);
    assert_eq!(taken["displaced"]["reason"], "dead");
    assert_eq!(taken["lock"]["mine"], true);
    assert!(env.json(["acquire", "y", "--ttl", "1h"])["displaced"].is_null());
    let out = env
        .onehold(["run", "--json", "--force", "--yes", "x", "--", "true"])
        .output()
        .unwrap();
    let object = last_json_object(&out.stderr);
    assert_eq!(object["displaced"]["hold"], taken["hold"]);
    assert_eq!(object["displaced"]["reason"], "lease");
}

#[test]
fn object_names_every_displaced_hold() {
    let env = TestEnv::new();
    let acquire = |words: &[&str]| env.json([&["acquire", "--ttl", "1h"], words].concat());
    let hold = |object: &Value| object["hold"].as_u64().unwrap();
    let displaced = |object: &Value| -> Vec<u64> {
        let first = &object["displaced"];
        let others = first["others"].as_array().unwrap();
        std::iter::once(first).chain(others).map(hold).collect()
    };
    let readers: Vec<u64> = (0..3).map(|_| hold(&acquire(&["-s", "x"]))).collect();
    let taken = acquire(&["--force", "--yes", "x"]);
    let mut named = displaced(&taken);
    named.sort_unstable();
    assert_eq!(named, readers);
    // Of several locks.
    let other = hold(&acquire(&["y"]));
    let out = env
        .onehold(["run", "--json", "--force", "--yes", "x", "y", "--", "true"])
        .output()
        .unwrap();
    let object = last_json_object(&out.stderr);
    assert_eq!(displaced(&object), [hold(&taken), other]);
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

#[cfg(unix)]
#[test]
fn interrupted_wait_prints_object_with_status_interrupted() {
    let env = TestEnv::new();
    env.onehold(["acquire", "x", "--ttl", "1h"])
        .assert()
        .success();
    let mut waiting = env.start_with_output(["acquire", "--json", "-w", "1h", "x", "--ttl", "1h"]);
    let status = format!("/proc/{}/status", waiting.pid());
    wait_until("Ctrl-C is caught", || {
        let text = std::fs::read_to_string(&status).unwrap();
        let caught = text.lines().find(|line| line.starts_with("SigCgt:"));
        let caught = caught.unwrap().trim_start_matches("SigCgt:").trim();
        u64::from_str_radix(caught, 16).unwrap() & 0b10 != 0
    });
    waiting.signal(Signal::INT);
    let (code, out, _) = waiting.finish_with_output();
    assert_eq!(code, -Signal::INT.as_raw(), "it ends the process");
    let object = json_object(out.as_bytes());
    assert_eq!(object["status"], "interrupted");
    assert_eq!(object["error"]["code"], "INTERRUPTED");
    assert_eq!(object["success"], false);
}

#[test]
#[cfg(not(feature = "etcd"))]
fn store_with_a_scheme_is_a_usage_error() {
    let env = TestEnv::new();
    let message = "onehold: cannot use `etcd://h:1/x` as the store: this build has no etcd: \
                   install a released one, or build it with `--features etcd`\n";
    let url = "etcd://h:1/x";
    for words in [
        &["check", "x"][..],
        &["run", "x", "--", "true"],
        &["acquire", "x", "--ttl", "1h"],
        &["list"],
        &["--profile", "sprint", "check"],
    ] {
        let mut by_option = env.onehold(["--dir", url]);
        by_option.args(words).assert().code(2).stderr(message);
        let mut by_variable = env.onehold(words);
        by_variable
            .env("ONEHOLD_DIR", url)
            .assert()
            .code(2)
            .stderr(message);
    }
    let config = env.write("config.toml", format!("[defaults]\ndir = \"{url}\"\n"));
    let mut by_config = env.onehold(["check", "x"]);
    by_config
        .env("ONEHOLD_CONFIG", config)
        .env_remove("ONEHOLD_DIR")
        .assert()
        .code(2)
        .stderr(message);
    let profile = env.write("config.toml", format!("[profiles.p]\ndir = \"{url}\"\n"));
    let mut by_profile = env.onehold(["--profile", "p", "check", "x"]);
    by_profile
        .env("ONEHOLD_CONFIG", profile)
        .assert()
        .code(2)
        .stderr(message);
    let object = env.json(["--dir", url, "list"]);
    assert_eq!(object["error"]["code"], "USAGE");
    assert!(!env.path("etcd:").exists());
    // A colon alone is part of a name.
    env.onehold(["--dir", "a:b/c", "check", "x"])
        .assert()
        .success();
}

#[test]
fn acquire_does_not_succeed_without_the_lock() {
    let env = TestEnv::new();
    env.onehold(["acquire", "x", "--ttl", "1h", "-E", "0"])
        .assert()
        .code(2)
        .stderr(starts_with(
            "onehold: acquire -E 0: the script would go on without the lock\n",
        ));
    env.onehold(["run", "x", "-E", "0", "--", "true"])
        .assert()
        .success();
}

#[test]
fn missing_store_that_was_named_is_a_warning() {
    let env = TestEnv::new();
    let warning = |directory: &std::path::Path| {
        format!(
            "onehold: warning: store `{}` does not exist",
            directory.display()
        )
    };
    let typo = env.path("typo");
    for (words, code) in [
        ("list", 0),
        ("config", 0),
        ("cleanup", 0),
        ("check x", 0),
        ("release x", 0),
        ("renew x", 3),
        ("break x --yes", 3),
    ] {
        let named = env
            .onehold(words.split(' '))
            .arg("--dir")
            .arg(&typo)
            .output()
            .unwrap();
        assert_eq!(named.status.code(), Some(code), "{words}");
        let said = String::from_utf8(named.stderr).unwrap();
        assert_eq!(said.matches(&warning(&typo)).count(), 1, "{words}: {said}");
        let object = env
            .onehold(words.split(' '))
            .arg("--json")
            .output()
            .unwrap();
        let errors = json_object(&object.stdout)["errors"].take();
        let last = errors.as_array().unwrap().last().unwrap().clone();
        assert!(
            last.as_str().unwrap().contains("does not exist"),
            "{words}: {errors}"
        );
    }
    // The default store is made by its first lock, and a path needs none.
    env.onehold(["check", "x"])
        .env_remove("ONEHOLD_DIR")
        .assert()
        .success()
        .stderr(is_empty());
    env.onehold(["check", "./x"])
        .assert()
        .success()
        .stderr(is_empty());
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
            said.contains("waiting: `x` is held by") && said.contains("acquired `x` after 1s");
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
    let (code, seen) = env.on_a_terminal("run -w 3 x -- true", &[]);
    assert_eq!(code, 7);
    let (before, _) = seen.split_once("onehold: timed out").unwrap();
    assert_eq!(before.matches(message).count(), 1, "{before}");
    assert!(
        before.contains("onehold: waiting for ci-88: `x` is held by a lease"),
        "{before}"
    );
    assert!(
        before.contains("onehold: waiting 2s of 3s, position 1 of 1 (Ctrl-C cancels)"),
        "{before}"
    );
}

#[test]
fn help_of_a_verb_has_its_own_codes_and_refers_to_the_rest() {
    let env = TestEnv::new();
    let help = |verb: &str| {
        let out = env.onehold([verb, "--help"]).output().unwrap().stdout;
        String::from_utf8(out).unwrap()
    };
    let codes = |verb: &str| {
        let help = help(verb);
        let (_, codes) = help.split_once("\nExit status:\n").unwrap();
        let code = |line: &&str| line.starts_with("  ") && !line.starts_with("   ");
        let codes = codes
            .lines()
            .filter(code)
            .map(|line| line.trim().to_owned());
        codes.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(codes("config"), "0 1 2");
    assert_eq!(codes("list"), "0 1 2");
    assert_eq!(codes("check"), "0 1 2 4 5 6");
    assert_eq!(codes("renew"), "0 1 2 3 4");
    assert_eq!(codes("acquire"), "0 1 2 5 6 7 128+n");
    assert_eq!(codes("run"), "0 2 5 6 7 8 124 125 126, 127 128+n");
    assert!(help("config").lines().count() < 40);
    for verb in ["run", "config"] {
        assert!(!help(verb).contains("Global options"), "{verb}");
        assert!(
            help(verb).trim_end().ends_with("codes: `onehold --help`."),
            "{verb}"
        );
    }
    let all = env.onehold(["--help"]).output().unwrap().stdout;
    let all = String::from_utf8(all).unwrap();
    assert!(all.contains("Global options") && all.contains("126, 127"));
}

#[test]
fn program_without_words_prints_the_short_help() {
    let env = TestEnv::new();
    let words: [&str; 0] = [];
    env.onehold(words)
        .assert()
        .code(2)
        .stdout(is_empty())
        .stderr(
            contains("Usage: onehold [OPTIONS] <COMMAND>")
                .and(contains("  cleanup "))
                .and(contains("--quiet")),
        );
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
        unanswered.starts_with(waits) || cfg!(not(feature = "etcd")),
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
