//! `doctor`: what a store and its host can do for locks.

use assert_cmd::prelude::OutputAssertExt;
use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use serde_json::Value;

use crate::harness::{TestEnv, json_object, output, wait_until};

/// The checks of the JSON object, by their names.
fn results(object: &Value) -> Vec<(&str, &str)> {
    let checks = object["checks"].as_array().unwrap();
    let text = |check: &'_ Value, key| check[key].as_str().unwrap().to_owned().leak() as &str;
    checks
        .iter()
        .map(|check| (text(check, "check"), text(check, "result")))
        .collect()
}

#[test]
fn store_on_a_local_filesystem_is_fit_and_nothing_of_the_trial_is_left() {
    let env = TestEnv::new();
    let output = env.output(["doctor", "--json"]);
    assert!(output.status.success());
    let object = json_object(&output.stdout);
    assert_eq!(object["status"], "fit");
    let results = results(&object);
    for check in [
        "store",
        "filesystem",
        "records",
        "write",
        "kernel locks",
        "link",
        "killed holder",
        "order",
    ] {
        assert!(results.contains(&(check, "ok")), "{check}: {object}");
    }
    // What takes time gets a warning on a busy machine.
    for check in ["contention", "wake-up"] {
        let failed = results.contains(&(check, "FAILED"));
        assert!(
            !failed && results.iter().any(|row| row.0 == check),
            "{check}: {object}"
        );
    }
    assert!(object.to_string().contains("none lost"), "{object}");
    assert!(env.left_in_store().is_empty() && env.left_in_queues().is_empty());
}

#[cfg(unix)]
#[test]
fn trial_writes_through_no_link_of_somebody_else() {
    let env = TestEnv::new();
    let victim = env.path("victim");
    std::fs::write(&victim, "precious").unwrap();
    // The process ID is that of doctor, which takes the shell's place.
    let script = "ln -s victim onehold-doctor-$$.count && exec onehold doctor";
    let mut shell = env.shell(script);
    shell.env("TMPDIR", env.path(""));
    output(&mut shell).assert().success();
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
}

#[cfg(unix)]
#[test]
fn trial_needs_no_more_than_the_store() {
    let env = TestEnv::new();
    let config = "[profiles.tasks]\nowner-required = true\n";
    let config = env.write("own.toml", config);
    let mut doctor = env.onehold(["--profile", "tasks", "doctor", "--json"]);
    doctor.env("ONEHOLD_CONFIG", config);
    let object = json_object(&output(&mut doctor).stdout);
    let found = results(&object);
    assert!(found.contains(&("killed wrapper", "ok")), "{object}");
    // Nor a directory for temporary files.
    let mut doctor = env.onehold(["doctor", "--json"]);
    doctor.env("TMPDIR", env.path("missing"));
    let object = json_object(&output(&mut doctor).stdout);
    assert_eq!(object["status"], "fit");
    let found = results(&object);
    assert!(found.contains(&("contention", "warning")), "{object}");
}

#[cfg(unix)]
#[test]
fn journal_that_is_no_file_is_a_warning_and_is_not_waited_for() {
    let env = TestEnv::new();
    env.done(["run", "x", "--", "true"]);
    let journal = env.store().join(".onehold").join("events.jsonl");
    let mut script = env.shell("rm -f \"$0\"; mkfifo \"$0\"");
    output(script.arg(&journal)).assert().success();
    let mut doctor = env.start_with_output(["doctor", "--quick", "--json"]);
    wait_until("it has looked at the journal", || doctor.has_ended());
    let (_, printed, _) = doctor.finish_with_output();
    let object = json_object(printed.as_bytes());
    let found = results(&object);
    assert!(found.contains(&("journal", "warning")), "{object}");
}

#[test]
fn table_has_a_line_for_each_check_and_a_verdict() {
    let env = TestEnv::new();
    let output = env.output(["doctor", "--quick"]);
    let verdict = format!("{} is fit for locks (", env.store().display());
    let said = contains("\nfilesystem     ok       ").and(contains(verdict));
    output.assert().success().stdout(said).stderr("");
}

#[test]
fn quick_look_writes_nothing() {
    let env = TestEnv::new();
    env.onehold(["doctor", "--quick"]).assert().success();
    assert!(!env.store().exists());
}

#[test]
fn store_that_is_named_by_a_relative_path_is_looked_at_where_it_will_be() {
    let env = TestEnv::new();
    let told = contains(format!(
        "{}, made by the first hold",
        env.path("s").display()
    ));
    let words = ["--dir", "s", "doctor", "--quick"];
    env.onehold(words).assert().success().stdout(told);
}

#[test]
fn zombies_are_a_warning_with_what_to_do() {
    let env = TestEnv::new();
    env.create_zombie("x");
    let told = contains("records        warning  dead holders: 1").and(contains(format!(
        "run `onehold --dir {} cleanup`",
        env.store().display()
    )));
    env.onehold(["doctor", "--quick"])
        .assert()
        .success()
        .stdout(told);
}

#[test]
fn place_that_cannot_be_a_store_fails_with_exit_code_1() {
    let env = TestEnv::new();
    env.write("file", "");
    for words in [
        &["--dir", "file/store", "doctor", "--quick"][..],
        &["--dir", "file", "doctor"],
    ] {
        env.onehold(words)
            .assert()
            .code(1)
            .stdout(contains("store          FAILED"));
    }
    let words = ["--dir", "file/store", "doctor"];
    let output = env.output(words);
    let told = contains("is not fit for locks: ");
    output
        .assert()
        .code(1)
        .stdout(contains("FAILED"))
        .stderr(told);
    let object = env.json(words);
    assert_eq!(
        (&object["success"], &object["error"]["code"]),
        (&false.into(), &"UNFIT".into())
    );
}

#[cfg(target_os = "linux")]
#[test]
fn store_in_a_directory_for_temporary_files_is_a_warning() {
    let env = TestEnv::new();
    let found = |store: &str| {
        let object = json_object(
            &env.output(["--dir", store, "doctor", "--quick", "--json"])
                .stdout,
        );
        let checks = object["checks"].as_array().unwrap().clone();
        checks
            .into_iter()
            .find(|check| check["check"] == "cleaning")
    };
    for directory in ["/tmp", "/var/tmp"] {
        let check = found(&format!("{directory}/store")).unwrap();
        assert_eq!(check["result"], "warning", "{check}");
        assert!(
            check["detail"].as_str().unwrap().contains(directory),
            "{check}"
        );
    }
    assert_eq!(found("/usr/share/onehold/store"), None);
}

#[cfg(unix)]
#[test]
fn modes_are_those_that_a_store_will_have_and_not_those_of_its_parent() {
    use std::os::unix::fs::PermissionsExt;
    let env = TestEnv::new();
    let modes = || {
        let object = json_object(&env.output(["doctor", "--quick", "--json"]).stdout);
        let checks = object["checks"].as_array().unwrap();
        let check = checks
            .iter()
            .find(|check| check["check"] == "modes")
            .unwrap();
        format!(
            "{} {}",
            check["result"].as_str().unwrap(),
            check["detail"].as_str().unwrap()
        )
    };
    let parent = |mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(env.root.path(), permissions).unwrap();
    };
    parent(0o755);
    assert!(modes().starts_with("ok 0700, of user "), "{}", modes());
    assert!(
        modes().ends_with(", made so by the first hold"),
        "{}",
        modes()
    );
    // Whoever may write there may make the store first, or replace it.
    parent(0o777);
    assert!(modes().starts_with("warning "), "{}", modes());
    parent(0o1777);
    assert!(modes().starts_with("ok 0700"), "{}", modes());
    env.done(["run", "x", "--", "true"]);
    assert!(modes().starts_with("ok 0700, of user "), "{}", modes());
    assert!(!modes().contains("first hold"), "{}", modes());
}

#[cfg(unix)]
#[test]
fn doctor_says_who_shares_the_locks_of_a_store() {
    let env = TestEnv::new();
    let user = std::process::Command::new("id")
        .arg("-un")
        .output()
        .unwrap();
    let user = String::from_utf8(user.stdout).unwrap();
    let said = || {
        let object = env.json(["doctor", "--quick"]);
        let checks = object["checks"].as_array().unwrap();
        let users = checks
            .iter()
            .find(|check| check["check"] == "users")
            .unwrap();
        users["detail"].as_str().unwrap().to_owned()
    };
    let alone = format!(
        "{} alone: a name of another user is another lock",
        user.trim()
    );
    assert_eq!(said(), alone);
    env.done(["run", "x", "--", "true"]);
    assert_eq!(said(), alone);
    for (mode, expected) in [
        ("2770", "those of its group share its locks"),
        ("1777", "all share its locks"),
    ] {
        let chmod = std::process::Command::new("chmod")
            .arg(mode)
            .arg(env.store())
            .status();
        assert!(chmod.unwrap().success());
        assert_eq!(said(), expected);
    }
}
