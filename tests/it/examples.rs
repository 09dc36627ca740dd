//! The examples do what they say, beside the command line.

use std::process::{Command, Output};

use crate::harness::{Running, TestEnv, example, output, wait_until};

fn run(env: &TestEnv, name: &str) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = output(&mut env.command(example(name)));
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

/// `onehold` in the same store.
fn onehold(env: &TestEnv, words: &[&str]) -> Command {
    let mut command = env.onehold(words);
    command.env_remove("ONEHOLD_DIR");
    command
}

#[test]
fn hold_runs_the_function_or_says_who_holds_the_lock() {
    let env = TestEnv::new();
    let (code, said, errors) = run(&env, "hold");
    assert_eq!(
        (code, said.as_str(), errors.as_str()),
        (Some(0), "importing\n", "")
    );
    let acquired = output(&mut onehold(
        &env,
        &["acquire", "import", "--ttl", "1h", "--owner", "o"],
    ));
    assert!(acquired.status.success());
    let (code, said, errors) = run(&env, "hold");
    assert_eq!((code, said.as_str()), (Some(1), ""));
    assert!(
        errors.starts_with("Error: Blocked(\"`import` is held by a lease of o on "),
        "{errors}"
    );
    let released = output(&mut onehold(&env, &["release", "import", "--owner", "o"]));
    assert!(released.status.success());
    assert_eq!(run(&env, "hold").0, Some(0));
}

#[test]
fn async_program_holds_the_lock_and_releases_it() {
    let env = TestEnv::new();
    for _ in 0..2 {
        let (code, said, errors) = run(&env, "async");
        assert_eq!(
            (code, said.as_str(), errors.as_str()),
            (Some(0), "importing\n", "")
        );
    }
    let checked = output(&mut onehold(&env, &["check", "import"]));
    assert_eq!(checked.status.code(), Some(0));
}

#[test]
fn wait_gets_the_lock_once_it_is_released() {
    let env = TestEnv::new();
    let script = "echo $$ > began; until test -e end; do sleep 0.01; done";
    let holder = Running::start(onehold(&env, &["run", "import", "--", "sh", "-c", script]));
    env.pid_in("began");
    let waiter = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| run(&env, "wait"));
        let directory = env.path(".local/state/onehold/.onehold/waiting/import.lock");
        wait_until("it waits", || {
            std::fs::read_dir(&directory).is_ok_and(|found| found.count() > 0)
        });
        env.end();
        waiter.join().unwrap()
    });
    drop(holder);
    let (code, said, errors) = waiter;
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(said.starts_with("waiting: position "), "{said}");
    assert!(said.contains("\nheld under number "), "{said}");
}

#[test]
fn command_runs_under_the_lock_or_not_at_all() {
    let env = TestEnv::new();
    let (code, said, _) = run(&env, "command");
    assert_eq!(code, Some(0));
    assert!(said.starts_with("sort "), "{said}");
    let acquired = output(&mut onehold(&env, &["acquire", "report", "--ttl", "1h"]));
    assert!(acquired.status.success());
    assert_eq!(
        run(&env, "command"),
        (Some(75), String::new(), String::new())
    );
}

#[test]
fn list_shows_what_needs_attention() {
    let env = TestEnv::new();
    for (name, ttl) in [("gone", "1ms"), ("kept", "1h")] {
        let acquired = output(&mut onehold(&env, &["acquire", name, "--ttl", ttl]));
        assert!(acquired.status.success());
    }
    assert_eq!(
        run(&env, "list"),
        (Some(0), "gone: expired\n".to_owned(), String::new())
    );
}
