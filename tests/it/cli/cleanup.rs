use std::fs;
#[cfg(unix)]
use std::os::unix::fs::PermissionsExt;

use assert_cmd::prelude::OutputAssertExt;
use predicates::str::{is_empty, is_match};

use crate::harness::{Running, TestEnv};

#[test]
fn cleanup_removes_all_zombies_and_nothing_else() {
    let env = TestEnv::new();
    let holder = Running::sleeper();
    let pid = holder.pid().to_string();
    env.onehold(["acquire", "alive", "--pid", &pid, "--max-age", "0"])
        .assert()
        .success();
    env.onehold(["acquire", "lease", "--ttl", "1h"])
        .assert()
        .success();
    env.create_zombie("dead");
    env.create_zombie("below/dead");
    env.write("store/young.lock", "");
    env.onehold(["cleanup", "--dry-run"])
        .assert()
        .success()
        .stdout(
            is_match("^would remove zombie `below/dead`: .*\nwould remove zombie `dead`: .*\n$")
                .unwrap(),
        );
    assert!(env.store().join("dead.lock").exists());
    let object = env.json(["cleanup"]);
    assert_eq!(object["status"], "cleaned");
    assert_eq!(object["locks"].as_array().unwrap().len(), 2);
    assert_eq!(
        env.left_in_store(),
        ["alive.lock", "lease.lock", "young.lock"]
    );
    assert_eq!(env.json(["cleanup"])["status"], "clean");
    env.onehold(["cleanup"])
        .assert()
        .success()
        .stdout(is_empty())
        .stderr(is_empty());
    let journal = env.journal();
    assert_eq!(journal.len(), 2);
    assert_eq!(journal[0]["event"], "cleanup");
}

#[test]
fn unknown_files_are_not_locks() {
    let env = TestEnv::new();
    let files = [
        ("Cargo.lock", "version = 4\n\n[[package]]\nname = \"x\"\n"),
        ("yarn.lock", "# yarn lockfile v1\n"),
        ("flake.lock", "{\n  \"nodes\": {}\n}\n"),
        ("settings.lock", "pid_file: x\nretries: 3\n"),
        ("number.lock", "4711"),
        ("conf.d/10.lock", "setting = 1\n"),
        (".onehold.data", "mine"),
        (".onehold.0123456789abcdef", "somebody's"),
    ];
    for (name, content) in files {
        env.write(&format!("folder/{name}"), content);
    }
    let folder = env.path("folder");
    env.onehold(["--dir", ".", "cleanup"])
        .current_dir(&folder)
        .assert()
        .success()
        .stdout(is_empty());
    for (name, content) in files {
        let path = folder.join(name);
        assert_eq!(fs::read_to_string(&path).unwrap(), content, "{name}");
        if name.starts_with(".onehold.") {
            continue;
        }
        let lock = format!("./{name}");
        for args in [
            vec!["run", &lock, "--", "true"],
            vec!["run", "--force", "--yes", &lock, "--", "true"],
            vec!["acquire", &lock, "--ttl", "1h", "--force", "--yes"],
            vec!["release", &lock, "--force", "--yes"],
            vec!["renew", &lock],
            vec!["break", &lock, "--yes"],
        ] {
            let code = if args[0] == "run" { 125 } else { 1 };
            env.onehold(&args)
                .current_dir(&folder)
                .assert()
                .code(code)
                .stdout(is_empty())
                .stderr(is_match(format!(
                    "^onehold: `.*[/\\\\]folder[/\\\\](\\.[/\\\\])?{}` is not a lock: (unrecognized file content|a bare number \\(for a PID file use --format pid\\))\n  left unchanged; (use another lock name|onehold only removes locks)\n$",
                    name.replace('.', "\\.").replace('/', "[/\\\\]")
                )).unwrap());
            assert_eq!(
                fs::read_to_string(&path).unwrap(),
                content,
                "{name} after {args:?}"
            );
        }
    }
}

#[test]
fn cleanup_removes_temporary_files_of_killed_processes() {
    let env = TestEnv::new();
    env.create_zombie("x");
    // A complete record that was never published.
    fs::copy(
        env.store().join("x.lock"),
        env.store().join(".onehold.00000000000000aa"),
    )
    .unwrap();
    // An empty temporary file.
    env.write("store/.onehold.00000000000000bb", "");
    env.onehold(["cleanup"]).assert().success();
    assert_eq!(env.left_in_store(), [""; 0]);
}

#[cfg(unix)]
#[test]
fn cleanup_says_once_what_it_could_not_read() {
    let env = TestEnv::new();
    env.write("store/closed.d/x.lock", "{}");
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(env.store(), open.clone()).unwrap();
    let closed = env.store().join("closed.d");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    let said = env.unprivileged(["cleanup"]).output().unwrap().stderr;
    let said = String::from_utf8(said).unwrap();
    assert_eq!(said.matches("closed.d").count(), 1, "{said}");
    fs::set_permissions(&closed, open).unwrap();
}

#[test]
fn cleanup_of_names_leaves_other_zombies() {
    let env = TestEnv::new();
    for name in ["a", "b", "c"] {
        env.create_zombie(name);
    }
    env.onehold(["acquire", "held", "--ttl", "1h"])
        .assert()
        .success();
    let tried = env.json(["cleanup", "-n", "a"]);
    assert_eq!(tried["locks"][0]["name"], "a");
    assert_eq!(tried["locks"].as_array().unwrap().len(), 1);
    env.onehold(["cleanup", "a", "held", "b"])
        .assert()
        .success();
    assert_eq!(env.left_in_store(), ["c.lock", "held.lock"]);
}
