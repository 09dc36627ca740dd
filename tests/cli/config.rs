use predicates::str::{contains, is_match};
use serde_json::Value;

use crate::env::Env;

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
    let env = Env::new();
    let store = std::path::absolute(env.store()).unwrap();
    let quoted = serde_json::to_string(&store.to_string_lossy()).unwrap();
    env.onehold(["config"])
        .assert()
        .success()
        .stdout(contains(format!(
            "# configuration: none\n[defaults]\ndir = {quoted}  # ONEHOLD_DIR\nformat = \"native\" "
        )));
    env.configure(
        "[defaults]\nwait = \"7s\"\ndir = \"/srv/locks\"\n[profiles.memory]\nttl = 5\n[formats]\n\"/var/lock/\" = \"flock\"\n",
    );
    env.onehold(["config"])
        .assert()
        .success()
        .stdout(is_match("(?m)^wait = \"7s\" +# line 2, \\[defaults\\]$").unwrap())
        .stdout(is_match("(?m)^max-age = \"24h\" +# default$").unwrap())
        .stdout(contains(
            "\n[formats]\n\"/var/lock/\" = \"flock\"  # line 7, [formats]\n",
        ));
    let of = |words: &[&str], variables: &[(&str, &str)]| {
        let mut command = env.onehold(words);
        command.arg("--json").env_remove("ONEHOLD_DIR");
        command.envs(variables.iter().copied());
        let output = command.output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
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
    let env = Env::new();
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
    let env = Env::new();
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
