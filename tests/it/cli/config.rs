//! The configuration file and `config`.

use std::fs;

use assert_cmd::prelude::OutputAssertExt;
use predicates::str::{contains, is_empty, is_match};
use serde_json::Value;

use crate::harness::{Running, TestEnv, json_object};

/// The source of a setting in the JSON object of `config`, and its line.
fn source(object: &Value, key: &str) -> (String, Option<u64>) {
    let settings = object["settings"].as_array().unwrap();
    let setting = settings.iter().find(|setting| setting["key"] == key);
    let setting = setting.unwrap_or_else(|| panic!("{key} in {object}"));
    let source = setting["source"].as_str().unwrap().to_owned();
    (source, setting["line"].as_u64())
}

#[test]
fn config_shows_each_value_with_its_source() {
    let env = TestEnv::new();
    let store = std::path::absolute(env.store()).unwrap();
    let quoted = serde_json::to_string(&store.to_string_lossy()).unwrap();
    env.onehold(["config"])
        .assert()
        .success()
        .stdout(contains(format!(
            "# configuration: none\n[defaults]\ndir = {quoted}  # ONEHOLD_DIR\nformat = \"native\" "
        )));
    env.configure(
        "[defaults]\nwait = \"7s\"\ndir = \"/srv/locks\"\n[profiles.memory]\nttl = 5\n[formats]\n\"~/locks/\" = \"flock\"\n",
    );
    env.onehold(["config"])
        .assert()
        .success()
        .stdout(is_match("(?m)^wait = \"7s\" +# line 2, \\[defaults\\]$").unwrap())
        .stdout(is_match("(?m)^max-age = \"24h\" +# default$").unwrap())
        .stdout(contains(
            "\n[formats]\n\"~/locks/\" = \"flock\"  # line 7, [formats]\n",
        ));
    let of = |words: &[&str], variables: &[(&str, &str)]| {
        let mut command = env.onehold(words);
        command.arg("--json").env_remove("ONEHOLD_DIR");
        command.envs(variables.iter().copied());
        let output = command.output().unwrap();
        json_object(&output.stdout)
    };
    let plain = of(&["config"], &[]);
    assert_eq!(source(&plain, "dir"), ("defaults".to_owned(), Some(3)));
    assert_eq!(plain["formats"][0]["value"], "flock");
    let typed = of(&["config", "--dir", "d", "--format", "pid"], &[]);
    assert_eq!(source(&typed, "dir"), ("--dir".to_owned(), None));
    assert_eq!(source(&typed, "format"), ("--format".to_owned(), None));
    let profile = of(&["config"], &[("ONEHOLD_PROFILE", "memory")]);
    assert_eq!(profile["profile"], "memory");
    assert_eq!(
        source(&profile, "ttl"),
        ("profiles.memory".to_owned(), Some(5))
    );
    for key in ["wait", "path", "format"] {
        assert_eq!(
            source(&profile, key),
            ("built-in".to_owned(), None),
            "{key}"
        );
    }
    let own = of(&["config", "--profile", "tasks"], &[]);
    // No project is here, so its locks are where others without a profile are.
    assert_eq!(source(&own, "dir"), ("defaults".to_owned(), Some(3)));
}

#[test]
fn output_of_config_is_a_configuration_with_the_same_values() {
    let env = TestEnv::new();
    for profile in ["memory", "sprint", "tasks", "prodigy"] {
        let shown = env
            .onehold(["--profile", profile, "config"])
            .output()
            .unwrap();
        let values = |text: &[u8]| -> Vec<String> {
            let text = std::str::from_utf8(text).unwrap();
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            let values = lines.map(|line| line.split("  #").next().unwrap().trim_end());
            values.map(str::to_owned).collect()
        };
        let expected = values(&shown.stdout);
        assert!(expected.len() > 4, "{expected:#?}");
        env.configure(std::str::from_utf8(&shown.stdout).unwrap());
        let again = env
            .onehold(["config"])
            .env_remove("ONEHOLD_DIR")
            .output()
            .unwrap();
        assert_eq!(values(&again.stdout), expected, "{profile}");
    }
}

#[test]
fn mistake_in_the_configuration_names_its_line_and_the_nearest_key() {
    let env = TestEnv::new();
    for (text, said) in [
        (
            "[defaults]\n\nmax_age = 3\n",
            "line 3: `max_age`: unknown key `max_age`; did you mean `max-age`?\n",
        ),
        (
            "[default]\n",
            "line 1: `[default]`: unknown key `default`; did you mean `defaults`?\n",
        ),
        (
            "[profiles.x]\non-zombie = \"taek\"\n",
            "line 2: `on-zombie`: unknown value `taek`; did you mean `take`?\n",
        ),
        (
            "[defaults]\nqqq = 3\n",
            "line 2: `qqq`: unknown key `qqq`; onehold-config(5) has all keys\n",
        ),
    ] {
        env.configure(text);
        for verb in ["config", "list"] {
            env.onehold([verb]).assert().code(1).stderr(contains(said));
        }
    }
}

#[test]
fn options_override_profile_and_profile_overrides_defaults() {
    let env = TestEnv::new();
    env.configure(
        "[defaults]\nttl = \"1h\"\nmax-age = \"5h\"\n\n[profiles.mine]\nttl = \"2h\"\n\n\
         [profiles.sprint]\npath = \".running\"\n",
    );
    let ttl = |name: &str, more: &[&str]| {
        env.onehold(["acquire", name]).args(more).assert().success();
        let lock = env.lock(name);
        (lock["ttl_seconds"].clone(), lock["kind"].clone())
    };
    assert_eq!(ttl("a", &[]), (3600.0.into(), "lease".into()));
    assert_eq!(
        ttl("b", &["--profile", "mine"]),
        (7200.0.into(), "lease".into())
    );
    assert_eq!(
        ttl("c", &["--profile", "mine", "--ttl", "3h"]),
        (10800.0.into(), "lease".into())
    );
    env.onehold(["check", "-v", "a", "--profile", "mine"])
        .assert()
        .code(6)
        .stderr(contains(format!(
            "onehold: configuration: {}; profile: mine\n",
            env.configuration().display()
        )));
    // A profile with the name of a built-in profile overrides its keys.
    let sprint = [
        "--profile",
        "sprint",
        "run",
        "--owner",
        "s",
        "-m",
        "e",
        "--",
        "cat",
        ".running",
    ];
    env.onehold(sprint)
        .assert()
        .success()
        .stdout(contains("epic_spec: \"e\"\n"));
    let empty = env.write("empty.toml", "");
    env.onehold(["check", "a"])
        .env("ONEHOLD_CONFIG", empty)
        .assert()
        .code(6);
}

#[test]
fn invalid_configuration_error_names_line_and_key() {
    let env = TestEnv::new();
    let path = env.write("own.toml", "[defaults]\nwait = \"5m\"\npol = \"5s\"\n");
    let mut check = env.onehold(["check", "x"]);
    check.env("ONEHOLD_CONFIG", &path);
    check
        .assert()
        .code(1)
        .stdout(is_empty())
        .stderr(contains(format!(
            "onehold: cannot use `{}`: line 3: `pol`: unknown key `pol`; did you mean `poll`?",
            path.display()
        )));
    for (line, why) in [
        ("dir = 5", "`dir`: expected a path, or an array of paths"),
        (
            "conflict-exit-code = 300",
            "`conflict-exit-code`: not a number from 0 to 255",
        ),
        (
            "owner-env = \"\"",
            "`owner-env`: expected a variable name, or an array of them",
        ),
    ] {
        let path = env.write("own.toml", format!("[defaults]\n{line}\n"));
        let mut check = env.onehold(["check", "x"]);
        check
            .env("ONEHOLD_CONFIG", path)
            .assert()
            .code(1)
            .stderr(contains(format!("line 2: {why}\n")));
    }
    let mut run = env.onehold(["run", "--json", "x", "--", "true"]);
    run.env("ONEHOLD_CONFIG", env.path("missing"));
    let failed = run.output().unwrap();
    assert_eq!(failed.status.code(), Some(125));
    let failed = json_object(&failed.stderr);
    assert_eq!(failed["success"], false);
    let told = failed["message"].as_str().unwrap();
    let beginning = format!("cannot read `{}`: ", env.path("missing").display());
    let cause = told
        .strip_prefix(&*beginning)
        .unwrap_or_else(|| panic!("{told}"));
    // Elsewhere the system has other words.
    assert!(
        !cfg!(unix) || cause == "no such file or directory",
        "{told}"
    );
    env.onehold(["--profile", "nope", "list"])
        .assert()
        .code(2)
        .stderr("onehold: unknown profile `nope`; available: memory, prodigy, sprint, tasks\n");
    env.onehold(["check"])
        .assert()
        .code(2)
        .stderr("onehold: missing NAME\n  for help, run `onehold check --help`\n");
}

#[test]
fn own_profile_sets_directory_format_and_details() {
    let env = TestEnv::new();
    env.configure(
        "[profiles.app]\ndir = \"~/app/locks\"\nformat = \"pid\"\nlocked-code = \"BUSY\"\n\
         refusal = \"{name} is busy ({pid})\"\ndetails = { who = \"pid\" }\nconflict-exit-code = 75\n",
    );
    let holder = Running::sleeper();
    let pid = holder.pid().to_string();
    env.onehold(["--profile", "app", "acquire", "x", "--pid", &pid])
        .assert()
        .success();
    let text = fs::read_to_string(env.path("app/locks/x.lock")).unwrap();
    let width = if cfg!(windows) { 15 } else { 7 };
    assert_eq!(text, format!("{pid:<width$}\n"));
    let out = env
        .onehold(["--profile", "app", "acquire", "x", "--json"])
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(75));
    let object = json_object(&out.stdout);
    assert_eq!(object["error"]["code"], "BUSY");
    assert_eq!(object["error"]["message"], format!("x is busy ({pid})"));
    assert_eq!(object["error"]["details"]["who"], holder.pid());
    env.onehold(["--profile", "app", "list"])
        .assert()
        .success()
        .stdout(contains(format!("x     held   {pid}")));
}

#[test]
fn owner_is_the_first_variable_of_a_list_that_is_set_and_not_empty() {
    let env = TestEnv::new();
    let path = env.write(
        "own.toml",
        "[defaults]\nowner-env = [\"FIRST\", \"SECOND\", \"THIRD\"]\n",
    );
    for (number, (variables, owner, told)) in [
        (vec![("SECOND", "b"), ("THIRD", "c")], "b", "SECOND is set"),
        (vec![("FIRST", ""), ("THIRD", "c")], "c", "THIRD is set"),
        (vec![], "", "none of the variables is set"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("x{number}");
        let mut acquire = env.onehold(["acquire", &name, "--ttl", "1h"]);
        acquire.env("ONEHOLD_CONFIG", &path).envs(variables.clone());
        acquire.assert().success();
        assert_eq!(env.lock(&name)["owner"].as_str().unwrap_or_default(), owner);
        let mut config = env.onehold(["config"]);
        config.env("ONEHOLD_CONFIG", &path).envs(variables);
        config.assert().success().stdout(contains(told));
    }
}

#[cfg(unix)]
#[test]
#[ignore = "needs strace: apt install strace"]
fn poll_interval_follows_configuration() {
    let env = TestEnv::new();
    env.configure("[profiles.often]\npoll = \"30ms\"\n\n[profiles.seldom]\nbackoff = \"10s\"\n");
    // The release of a lock on another host cannot be observed.
    let now = chrono::Utc::now().to_rfc3339();
    env.write(
        "store/x.lock",
        format!("{{\"job_id\": \"x\", \"process_id\": 1, \"hostname\": \"elsewhere\", \"acquired_at\": \"{now}\"}}"),
    );
    let looks = |profile: &str| {
        let mut strace = env.command("strace");
        let trace = env.path("trace");
        strace
            .args(["-f", "-e", "trace=openat", "-o"])
            .arg(&trace)
            .arg(crate::harness::program())
            .args([
                "--profile",
                profile,
                "run",
                "-q",
                "-w",
                "900ms",
                "x",
                "--",
                "true",
            ]);
        assert_eq!(strace.status().unwrap().code(), Some(7));
        let text = fs::read_to_string(trace).unwrap();
        text.matches("\"x.lock\"").count()
    };
    let (often, seldom) = (looks("often"), looks("seldom"));
    assert!(often > 2 * seldom && often > 15, "{often} and {seldom}");
}

#[test]
fn project_directory_is_a_plain_relative_path() {
    let env = TestEnv::new();
    for path in ["/abs", "~/x", "$X/y", "./x", "a/../b", ""] {
        env.configure(&format!("[profiles.mine]\nproject-dir = \"{path}\"\n"));
        env.onehold(["--profile", "mine", "list"])
            .assert()
            .code(1)
            .stderr(contains("line 2: `project-dir`: must be a relative path"));
    }
}

/// cron and systemd pass a `~` and variables as they are written.
#[cfg(unix)]
#[test]
fn store_of_the_environment_is_the_same_in_each_directory() {
    let env = TestEnv::new();
    let home = env.path("home");
    std::fs::create_dir_all(home.join("sub")).unwrap();
    let of = |value: &str| {
        let mut command = env.onehold(["config", "--json"]);
        command.env("HOME", &home).env("ONEHOLD_DIR", value);
        let output = command.current_dir(home.join("sub")).output().unwrap();
        (output.status.code(), json_object(&output.stdout))
    };
    for value in [
        "~/locks",
        "$HOME/locks",
        home.join("locks").to_str().unwrap(),
    ] {
        let (code, object) = of(value);
        assert_eq!(code, Some(0), "{value}");
        let dir = &object["settings"].as_array().unwrap()[0];
        assert_eq!(dir["value"], home.join("locks").to_str().unwrap());
    }
    for value in ["locks", "./locks", "$NO_SUCH_VARIABLE/locks", "~root/locks"] {
        let (code, object) = of(value);
        assert_eq!(code, Some(2), "{value}");
        assert_eq!(object["error"]["code"], "USAGE", "{object}");
    }
    let meant = home.join("sub/locks");
    let said = of("locks").1["message"].as_str().unwrap().to_owned();
    assert!(
        said.ends_with(&format!("; here it is `{}`", meant.display())),
        "{said}"
    );
    assert!(!meant.exists());
}

#[cfg(unix)]
#[test]
fn tilde_that_the_shell_did_not_replace_gets_a_warning() {
    let env = TestEnv::new();
    let mut command = env.onehold(["--dir", "~/locks", "check", "x"]);
    command.current_dir(env.root.path());
    let there = env.path("~/locks");
    command.assert().success().stderr(contains(format!(
        "warning: `--dir ~/locks` is `{}`: ",
        there.display()
    )));
}
