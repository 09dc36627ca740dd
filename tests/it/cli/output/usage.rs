//! Usage errors, help, and which store is meant.

use assert_cmd::prelude::OutputAssertExt;
use predicates::prelude::*;
use predicates::str::{contains, is_empty};

use crate::harness::{TestEnv, json_object};

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
    // As the text has it.
    let clash = ["run", "--json", "-s", "--slots", "2", "x", "--", "true"];
    let object = json_object(&env.onehold(clash).output().unwrap().stderr);
    let message = object["message"].as_str().unwrap();
    let begins = "the argument `--shared` cannot be used with";
    assert!(message.starts_with(begins), "{message}");
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
fn duration_may_begin_with_its_point() {
    let env = TestEnv::new();
    for (duration, code) in [(".6", 0), (".6s", 0), (".5h", 0), (".", 2), (".s", 2)] {
        let line = ["run", "-w", duration, "x", "--", "true"];
        assert_eq!(env.code(line), code, "{duration}");
    }
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
    let features = match (cfg!(feature = "postgres"), cfg!(feature = "etcd")) {
        (true, true) => "postgres, etcd",
        (true, false) => "postgres",
        (false, true) => "etcd",
        (false, false) => "none",
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

#[cfg(unix)]
#[test]
fn store_of_files_of_flock_is_not_missed() {
    let env = TestEnv::new();
    // Where flock(1) would take them, files are in the working directory.
    for verb in ["check", "wait"] {
        let mut command = env.onehold([verb, "--format", "flock", "x"]);
        command
            .env("ONEHOLD_DIR", env.path("typo"))
            .assert()
            .success()
            .stderr("");
    }
    let below = env
        .onehold(["check", "--format", "flock", "--dir", "typo", "x"])
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8(below.stderr)
            .unwrap()
            .matches("does not exist")
            .count(),
        1
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
