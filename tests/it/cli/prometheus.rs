//! `list --prometheus`.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::process::Stdio;

use assert_cmd::prelude::OutputAssertExt;
use predicates::str::contains;

use crate::harness::{TestEnv, output, wait_until};

/// What is printed. No series is there twice.
fn metrics(env: &TestEnv, more: &[&str]) -> String {
    let output = env.output(["list", "--prometheus"].iter().chain(more));
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let series: Vec<&str> = samples
        .map(|line| line.rsplit_once(' ').unwrap().0)
        .collect();
    let distinct: BTreeSet<_> = series.iter().collect();
    assert_eq!(distinct.len(), series.len(), "{text}");
    text
}

/// The value of the first sample of a metric for a lock.
fn value(text: &str, metric: &str, name: &str) -> Option<f64> {
    let begin = format!("{metric}{{name=\"{name}\",");
    let line = text.lines().find(|line| line.starts_with(&begin))?;
    line.rsplit_once(' ').unwrap().1.parse().ok()
}

#[test]
fn metrics_tell_holds_waiters_ages_and_expiries() {
    let env = TestEnv::new();
    env.done(["acquire", "lease", "--ttl", "1h"]);
    for owner in ["a", "b", "c"] {
        env.done(["acquire", "-s", "read", "--ttl", "1h", "--owner", owner]);
    }
    let mut waiter = env.start(["run", "-w", "1h", "lease", "--", "true"]);
    wait_until("it waits", || env.number_of_waiters("lease") == 1);
    let text = metrics(&env, &[]);
    let of = |metric: &str, name: &str| value(&text, &format!("onehold_lock_{metric}"), name);
    assert!(
        text.contains("\"} 1\n# HELP onehold_store_errors"),
        "{text}"
    );
    assert_eq!(of("held", "lease"), Some(1.0));
    assert_eq!(of("held", "read"), Some(3.0));
    assert!(text.contains(",state=\"shared\",host=\""), "{text}");
    assert_eq!(of("waiters", "lease"), Some(1.0));
    assert_eq!(of("waiters", "read"), Some(0.0));
    let wait = of("longest_wait_seconds", "lease").unwrap();
    assert!((0.0..60.0).contains(&wait), "{wait}");
    assert_eq!(of("longest_wait_seconds", "read"), None);
    let left = of("expires_seconds", "lease").unwrap();
    assert!((3500.0..=3600.0).contains(&left), "{left}");
    let age = of("age_seconds", "read").unwrap();
    assert!((0.0..60.0).contains(&age), "{age}");
    env.done(["break", "-y", "lease"]);
    assert_eq!(waiter.finish(), 0);
}

#[test]
#[ignore = "needs promtool, of the package prometheus"]
fn text_of_a_record_cannot_forge_a_line() {
    let env = TestEnv::new();
    env.done(["acquire", "x", "--ttl", "1h"]);
    let file = env.store().join("x.lock");
    let record = fs::read_to_string(&file).unwrap();
    let host = env.lock("x")["hostname"].as_str().unwrap().to_owned();
    let forged = r#"a\"} 7\\\nonehold_store_up{store=\"b"#;
    fs::write(&file, record.replace(&host, forged)).unwrap();
    let text = metrics(&env, &[]);
    let forged = r#",host="a\"} 7\\\nonehold_store_up{store=\"b"} 1"#;
    assert!(text.contains(forged), "{text}");
    let mut promtool = env.command("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped());
    promtool.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = promtool.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(text.as_bytes()).unwrap();
    drop(stdin);
    // It tells what is no good style, too.
    child
        .wait_with_output()
        .unwrap()
        .assert()
        .success()
        .stdout("")
        .stderr("");
}

#[test]
fn who_waits_for_a_child_waits_for_the_hold_of_its_parent() {
    let env = TestEnv::new();
    env.done(["acquire", "a", "--ttl", "1h"]);
    let mut waiter = env.start(["run", "-w", "1h", "a/b", "--", "true"]);
    wait_until("it waits", || {
        value(&metrics(&env, &[]), "onehold_lock_waiters", "a") == Some(1.0)
    });
    env.done(["break", "-y", "a"]);
    assert_eq!(waiter.finish(), 0);
}

#[test]
fn metrics_are_filtered_as_the_table_and_are_no_json() {
    let env = TestEnv::new();
    for name in ["a/one", "a/two", "b"] {
        env.done(["acquire", name, "--ttl", "1h"]);
    }
    let text = metrics(&env, &["a/"]);
    assert_eq!(text.matches("onehold_lock_held{").count(), 2, "{text}");
    let json = ["list", "--prometheus", "--json"];
    env.onehold(json)
        .assert()
        .code(2)
        .stdout(contains("cannot be used with"));
}

#[cfg(unix)]
#[test]
fn newline_and_backslash_are_escaped_once() {
    let env = TestEnv::new();
    let dir = env.path("a\nb\\c\"d\u{1b}");
    let dir = dir.to_str().unwrap();
    env.done(["--dir", dir, "acquire", "y", "--ttl", "1h"]);
    for words in [
        &["--dir", dir][..],
        &["--dir", dir, "--json"],
        &["--dir", dir, "-v"],
    ] {
        let output = env.output(words.iter().chain(&["list", "--prometheus"]));
        let text = String::from_utf8(output.stdout).unwrap();
        if words.len() > 2 {
            assert_eq!(output.status.code(), Some(2), "{text}");
            continue;
        }
        let escaped = r#"/a\nb\\c\"d\\e""#;
        assert_eq!(
            text.matches(escaped).count(),
            text.matches("store=").count(),
            "{text}"
        );
        assert!(!text.contains('\u{1b}'));
    }
}

#[test]
fn what_is_not_held_counts_as_0() {
    let env = TestEnv::new();
    env.done(["acquire", "held", "--ttl", "1h"]);
    env.done(["acquire", "expired", "--ttl", "0.001"]);
    wait_until("it has expired", || env.check("expired") == 5);
    env.done(["acquire", "parent", "--ttl", "1h"]);
    fs::create_dir(env.store().join("no-lock.lock")).unwrap();
    let mut waiter = env.start(["run", "-w", "1h", "held", "parent", "--", "true"]);
    wait_until("it waits", || env.number_of_waiters("parent") == 1);
    env.done(["break", "-y", "parent"]);
    let text = metrics(&env, &[]);
    let held: Vec<_> = ["held", "expired", "parent", "no-lock"]
        .map(|name| value(&text, "onehold_lock_held", name))
        .to_vec();
    assert_eq!(held, [Some(1.0), Some(1.0), Some(0.0), Some(0.0)], "{text}");
    env.done(["break", "-y", "held"]);
    assert_eq!(waiter.finish(), 0);
}

#[cfg(unix)]
#[test]
fn commands_that_succeed_and_fail_are_two_series() {
    let env = TestEnv::new();
    for script in ["exit 0", "exit 3", "exit 4"] {
        let mut run = env.onehold(["run", "x", "--", "sh", "-c", script]);
        output(run.env("ONEHOLD_HISTORY", "1"));
    }
    let mut list = env.onehold(["list", "--prometheus"]);
    let text = String::from_utf8(output(list.env("ONEHOLD_HISTORY", "1")).stdout).unwrap();
    for (result, count) in [("success", 1), ("failure", 2)] {
        let end = format!(",result=\"{result}\"}} {count}\n");
        assert!(text.contains(&end), "{text}");
    }
}

#[test]
fn store_that_cannot_be_read_is_down_and_the_call_fails() {
    let env = TestEnv::new();
    env.write("store", "no directory");
    let output = output(&mut env.onehold(["list", "--prometheus"]));
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(samples.len(), 1, "{text}");
    assert!(samples[0].starts_with("onehold_store_up{store=\""));
    assert!(samples[0].ends_with("\"} 0"), "{text}");
}
