//! What an operator sees: `check -v`, the question of `break`, and refusals that fit a mail.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use assert_cmd::prelude::OutputAssertExt;
use predicates::prelude::*;
use predicates::str::{contains, is_match};
use serde_json::{Value, json};

#[cfg(target_os = "linux")]
use crate::harness::seen::runs;
use crate::harness::{Running, Signal, TestEnv, number_in, wait_until};

/// `run` of a shell with two children, once all of them run.
fn family(env: &TestEnv, name: &str, options: &[&str]) -> (Running, [u32; 3]) {
    let script =
        "sleep 1001 & echo $! > first; sleep 1002 & echo $! > second; echo $$ > ready; wait";
    let words = [&["run"], options, &[name, "--", "sh", "-c", script]].concat();
    let running = env.start(words);
    let pids = ["ready", "first", "second"].map(|file| number_in(&env.path(file)));
    // Until they execute it, they are copies of the shell.
    for pid in &pids[1..] {
        crate::harness::wait_until("sleep runs", || {
            fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"sleep"))
        });
    }
    (running, pids)
}

#[cfg(target_os = "linux")]
#[test]
fn check_v_shows_the_tree_of_processes_that_break_ends() {
    let env = TestEnv::new();
    let (running, [shell, first, second]) = family(&env, "x", &["-m", "why"]);
    let expected = format!(
        "(?m)^  wrapper: process {wrapper}\n(.*\n)*  processes that `break` ends by TERM, and by KILL after 10s:\n \
         +PID  USER +STATE +CPU  COMMAND\n \
         +{shell}  [a-z0-9+-]+ +sleeping +0\\.\\ds  sh -c sleep 1001 .*\n \
         +{first}  [a-z0-9+-]+ +sleeping +0\\.\\ds    sleep 1001\n \
         +{second}  [a-z0-9+-]+ +sleeping +0\\.\\ds    sleep 1002\n",
        wrapper = running.pid(),
    );
    env.onehold(["check", "-v", "x"])
        .assert()
        .code(6)
        .stdout(is_match(expected).unwrap());
    let object = env.json(["check", "-v", "x"]);
    let pids: Vec<u64> = object["processes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|process| process["pid"].as_u64().unwrap())
        .collect();
    assert_eq!(pids, [shell, first, second].map(u64::from));
    assert_eq!(object["processes"][2]["parent"], shell);
    assert_eq!(object["processes"][2]["command"][1], "1002");
    assert_eq!(env.json(["check", "x"])["processes"], Value::Null);
    // All of these, and no others.
    env.onehold(["break", "x", "--yes"]).assert().success();
    for pid in [shell, first, second] {
        // Its wrapper may not have waited for it yet.
        assert!(!runs(pid), "{pid}");
    }
}

#[test]
fn check_v_of_a_detached_hold_says_that_break_leaves_its_process_alone() {
    let env = TestEnv::new();
    let holder = Running::sleeper();
    env.onehold(["acquire", "x", "--pid", &holder.pid().to_string()])
        .assert()
        .success();
    env.onehold(["check", "-v", "x"]).assert().code(6).stdout(
        is_match(format!(
            "  processes that `break` does not end:\n +PID  USER .*\n +{}  .*  sleep 1000\n$",
            holder.pid()
        ))
        .unwrap(),
    );
}

#[test]
fn check_v_shows_the_events_of_shared_holds_and_of_each_name_of_a_hold() {
    let env = TestEnv::new();
    for options in [&["-s"][..], &["--slots", "2"]] {
        env.onehold([&["acquire", "x", "--ttl", "1h"][..], options].concat())
            .assert()
            .success();
        env.onehold(["break", "x", "--yes"]).assert().success();
    }
    let broken = env.onehold(["acquire", "y", "z/1", "--ttl", "1h"]);
    assert_cmd::Command::from_std(broken).assert().success();
    env.onehold(["break", "z/1", "--yes"])
        .assert()
        .success()
        .stderr(contains(
            "onehold: broke the hold on `y` and `z/1` of a lease",
        ));
    for (name, events) in [("x", 2), ("y", 1), ("z/1", 1), ("z", 0)] {
        let shown = env.json(["check", "-v", name]);
        let shown = shown["journal"].as_array().unwrap().len();
        assert_eq!(shown, events, "{name}");
    }
}

#[test]
fn check_v_shows_each_holder_whole() {
    let env = TestEnv::new();
    for owner in ["one", "two"] {
        let acquire = [
            "acquire", "-s", "x", "--ttl", "1h", "--owner", owner, "-m", "why",
        ];
        env.onehold(acquire).assert().success();
    }
    env.onehold(["check", "-v", "x"]).assert().code(6).stdout(
        is_match("(?s)  hold: \\d+ \\(lease\\)\n.*    hold: \\d+ \\(lease\\)\n.*    file: ")
            .unwrap(),
    );
}

#[test]
fn break_of_several_holders_without_a_terminal_asks_once() {
    let env = TestEnv::new();
    for owner in ["one", "two", "three"] {
        let acquire = ["acquire", "-s", "x", "--ttl", "1h", "--owner", owner];
        env.onehold(acquire).assert().success();
    }
    let mut setsid = env.command("setsid");
    setsid.args(["-w", "onehold", "break", "x"]);
    setsid
        .assert()
        .code(6)
        .stderr(is_match("^onehold: not confirmed: `x` has 3 holders\n.*\n  cannot ask for confirmation: no terminal \\(use --hold N --yes, or --all --yes\\)\n$").unwrap());
    // Who releases another's hold of several is told which one a break would end.
    env.onehold(["release", "x", "--owner", "none"])
        .assert()
        .code(4)
        .stderr(is_match("run `onehold .*break x --hold \\d+`\n$").unwrap());
}

#[test]
fn ctrl_c_at_a_question_of_break_ends_it_at_once_and_says_what_was_broken() {
    let env = TestEnv::new();
    let owners = ["one", "two", "three"];
    for owner in owners {
        env.done(["acquire", "-s", "x", "--ttl", "1h", "--owner", owner]);
    }
    let began = Instant::now();
    let canceled = |words, answers: &[&str]| {
        let (code, seen) = env.on_a_terminal(words, answers);
        assert_eq!(code, 130, "{seen}");
        seen
    };
    let seen = canceled("break x", &["\x03"]);
    // The end of its input, which script(1) passes on, may still count as a no.
    assert!(
        seen.contains("onehold: canceled; nothing was broken\r\n"),
        "{seen}"
    );
    let seen = canceled("break x", &["n\n", "y\n", "\x03"]);
    let end = "onehold: canceled; nothing more was broken\r\n  not confirmed: `x` is shared by a lease of one on ";
    assert!(seen.contains(end), "{seen}");
    let seen = canceled("break --json x", &["y\n", "\x03"]);
    let object = seen.lines().find(|line| line.starts_with('{')).unwrap();
    let object: Value = serde_json::from_str(object).unwrap();
    assert_eq!(object["error"]["code"], "INTERRUPTED");
    assert_eq!(object["locks"].as_array().unwrap().len(), 1);
    // Without an answer each ends after 30 s.
    assert!(began.elapsed() < Duration::from_secs(20));
    let lock = env.lock("x");
    assert_eq!(
        (&lock["state"], &lock["others"]),
        (&json!("held"), &json!([]))
    );
}

#[test]
fn break_without_a_terminal_removes_dead_holders_of_several_unasked() {
    let env = TestEnv::new();
    let acquire = |owner, ttl| {
        let words = ["acquire", "-s", "x", "--ttl", ttl, "--owner", owner];
        env.onehold(words).assert().success();
    };
    acquire("one", "1ms");
    acquire("two", "1ms");
    wait_until("both are over", || env.check("x") == 5);
    let breaks = || {
        let mut setsid = env.command("setsid");
        setsid.args(["-w", "onehold", "break", "x"]);
        setsid
    };
    breaks().assert().success();
    assert_eq!(env.check("x"), 0);
    acquire("two", "1h");
    acquire("one", "1ms");
    wait_until("one is over", || {
        env.json(["check", "x"])["lock"]["others"][0]["state"] == "zombie"
    });
    breaks()
        .assert()
        .code(6)
        .stderr(contains("onehold: not confirmed: `x` has 1 holder\n"));
    assert_eq!(env.json(["check", "x"])["lock"]["others"], json!([]));
}

#[test]
fn cleanup_of_a_name_says_on_request_that_there_is_nothing_to_remove() {
    let env = TestEnv::new();
    env.onehold(["run", "x", "--", "true"]).assert().success();
    env.onehold(["cleanup", "x"]).assert().success().stderr("");
    env.onehold(["cleanup", "-v", "x"])
        .assert()
        .success()
        .stderr(contains("onehold: `x`: nothing to remove\n"));
}

#[test]
fn check_v_shows_the_last_three_events_of_that_lock() {
    let env = TestEnv::new();
    env.onehold(["check", "-v", "x"])
        .assert()
        .success()
        .stdout(contains("journal").not());
    for owner in ["a", "b", "c", "d"] {
        env.onehold(["acquire", "x", "--ttl", "1h", "--owner", owner])
            .assert()
            .success();
        env.onehold(["break", "x", "--yes"]).assert().success();
        env.onehold(["acquire", "other", "--ttl", "1h"])
            .assert()
            .success();
        env.onehold(["break", "other", "--yes"]).assert().success();
    }
    let line = |owner| {
        format!(
            "    \\d\\d:\\d\\d:\\d\\d broken, held by a lease of {owner}, by process \\d+( of user \\S+)? \\(.*break x --yes\\): forced by user\n"
        )
    };
    let expected = format!("\n  journal:\n{}{}{}$", line("b"), line("c"), line("d"));
    env.onehold(["check", "-v", "x"])
        .assert()
        .success()
        .stdout(is_match(expected).unwrap());
    let object = env.json(["check", "-v", "x"]);
    let written = env.journal();
    let own: Vec<&Value> = written
        .iter()
        .filter(|event| event["name"] == "x")
        .collect();
    let shown: Vec<&Value> = object["journal"].as_array().unwrap().iter().collect();
    assert_eq!(shown, own[1..]);
}

#[test]
fn events_of_a_path_are_found_by_every_spelling_and_before_a_rotation() {
    let env = TestEnv::new();
    let break_it = || {
        env.onehold(["acquire", "./p.lock", "--ttl", "1h"])
            .assert()
            .success();
        env.onehold(["break", "./p.lock", "--yes"])
            .assert()
            .success();
    };
    break_it();
    let journal = env.store().join(".onehold/events.jsonl");
    fs::rename(&journal, env.store().join(".onehold/events.jsonl.1")).unwrap();
    break_it();
    let mut text = fs::read(&journal).unwrap();
    text.extend_from_slice(b"\xff\n{\"at\":\"soon\"}\n");
    fs::write(&journal, text).unwrap();
    fs::create_dir(env.path("below")).unwrap();
    for name in ["./p.lock", "./below/../p.lock"] {
        let events = env.json(["check", "-v", name])["journal"].take();
        assert_eq!(events.as_array().unwrap().len(), 2, "{name}");
    }
}

#[test]
fn link_in_place_of_the_journal_is_not_followed() {
    let env = TestEnv::new();
    env.onehold(["acquire", "x", "--ttl", "1h"])
        .assert()
        .success();
    env.onehold(["break", "x", "--yes"]).assert().success();
    let journal = env.store().join(".onehold/events.jsonl");
    fs::rename(&journal, env.path("elsewhere")).unwrap();
    symlink(env.path("elsewhere"), &journal).unwrap();
    let object = env.json(["check", "-v", "x"]);
    assert_eq!(object["journal"].as_array().unwrap().len(), 0);
}

#[test]
fn question_of_break_says_what_it_ends_and_who_is_next() {
    let env = TestEnv::new();
    let (_running, [shell, _, second]) = family(&env, "x", &["--kill-after", "3s"]);
    let waiter = env.start(["run", "-w", "1h", "x", "--", "true"]);
    env.wait_for_waiter("x");
    let (code, seen) = env.on_a_terminal("break x", &["n\n"]);
    assert_eq!(code, 6);
    let seen = seen.replace('\r', "");
    let expected = format!(
        "\n  alive: holds the kernel lock; runs in [^ ]+; 1 waiting\n  \
         processes that `break` ends by TERM, and by KILL after 3s:\n +PID  USER .*\n +{shell} (.*\n)+ +{second}  .*    sleep 1002\n  \
         what they are writing may be left incomplete\n  \
         `x` then goes to process {} \\(true\\) on .*\n  \
         End its work and free the lock\\? ",
        waiter.pid()
    );
    assert!(is_match(expected).unwrap().eval(&seen), "{seen}");
    let question = seen.lines().take_while(|line| !line.contains("[y/N]"));
    let widest = question.map(|line| line.chars().count()).max();
    assert_eq!(widest, Some(80), "a long command is cut: {seen}");
    let (_, seen) = env.on_a_terminal("break --force x", &["n\n"]);
    assert!(
        seen.contains(
            "  their wrapper ends these processes afterwards, except with --on-lost warn:"
        ),
        "{seen}"
    );
    assert!(!seen.contains("incomplete"), "{seen}");
    let (_, seen) = env.on_a_terminal("acquire --force --ttl 1h x", &["n\n"]);
    assert!(
        seen.contains(
            "  their wrapper ends these processes afterwards, except with --on-lost warn:"
        ),
        "{seen}"
    );
    assert!(!seen.contains("goes to"), "{seen}");
}

#[test]
fn question_about_a_lease_says_that_its_work_cannot_be_seen() {
    let env = TestEnv::new();
    env.onehold(["acquire", "x", "--ttl", "1h"])
        .assert()
        .success();
    let (code, seen) = env.on_a_terminal("break x", &["y\n"]);
    assert_eq!(code, 0);
    assert!(
        seen.contains("  it cannot be seen from here whether its work is still going on\r\n  `x` will then be free\r\n  Break it? "),
        "{seen}"
    );
}

/// Lines that `onehold WORDS` prints to stderr.
fn lines_of(env: &TestEnv, words: &str) -> Vec<String> {
    let words = shlex::split(words).unwrap();
    let output = env.onehold(words).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn refusals_timeouts_and_takeovers_have_at_most_four_lines() {
    let env = TestEnv::new();
    let _holder = env.start(["run", "-m", "why", "run", "--", "sleep", "1000"]);
    crate::harness::wait_until("the lock is held", || env.check("run") == 6);
    let _waiter = env.start(["run", "-w", "1h", "run", "--", "true"]);
    env.wait_for_waiter("run");
    env.onehold(["acquire", "lease", "--ttl", "1h", "--owner", "a"])
        .assert()
        .success();
    env.create_zombie("zombie");
    env.write("store/empty.lock", "");
    env.write("store/text.lock", "not a lock\n");
    let mut longest = String::new();
    for words in [
        "run run -- true",
        "run run/child -- true",
        "run -w 0.1 run -- true",
        "acquire run --ttl 1m",
        "run lease -- true",
        "run lease/a/b -- true",
        "run --on-zombie fail zombie -- true",
        "run --on-zombie fail zombie/child -- true",
        "run empty -- true",
        "run text -- true",
        "release lease --owner b",
        "renew lease --owner b",
        "break lease --hold 1 --yes",
        "break lease/a --yes",
        "break free --yes",
        "run zombie -- true",
        "release run",
    ] {
        let lines = lines_of(&env, words);
        assert!((1..=4).contains(&lines.len()), "{words}: {lines:#?}");
        assert!(lines[0].starts_with("onehold: "), "{words}: {lines:#?}");
        longest = lines
            .into_iter()
            .chain([longest])
            .max_by_key(String::len)
            .unwrap();
    }
    assert!(longest.len() <= 200, "{longest}");
}

#[test]
fn check_says_when_work_that_is_being_ended_gets_kill() {
    let env = TestEnv::new();
    for (after, expected) in [("1m", "KILL at \\d\\d:\\d\\d:\\d\\d"), ("0", "no KILL")] {
        env.write(
            "stubborn.sh",
            "trap '' TERM; echo $$ > ready; while :; do sleep 0.05; done",
        );
        let mut running = env.start([
            "run",
            "--kill-after",
            after,
            "x",
            "--",
            "sh",
            "./stubborn.sh",
        ]);
        let shell = number_in(&env.path("ready"));
        running.signal(Signal::TERM);
        crate::harness::wait_until("its work is being ended", || {
            env.lock("x")["reason"] == "ending"
        });
        let expected = format!(
            "\n  held: its work is being ended by force, TERM at \\d\\d:\\d\\d:\\d\\d, {expected}; runs in .*\n"
        );
        env.onehold(["check", "x"])
            .assert()
            .code(6)
            .stdout(is_match(expected).unwrap());
        crate::harness::send(shell, Signal::KILL);
        crate::harness::wait_until("the lock is released", || env.check("x") == 0);
        running.finish();
        fs::remove_file(env.path("ready")).unwrap();
    }
}

#[test]
fn question_about_a_zombie_has_its_age() {
    let env = TestEnv::new();
    env.create_zombie("x");
    let (code, seen) = env.on_a_terminal("acquire --on-zombie ask --ttl 1h x", &["n\n"]);
    assert_eq!(code, 5, "{seen}");
    let expected = "is a zombie: .*, holder since \\S+ \\(\\d+s ago\\), has\\s+exited";
    assert!(is_match(expected).unwrap().eval(&seen), "{seen}");
}

#[test]
fn kill_after_counts_for_a_break_of_a_run_without_a_wrapper() {
    let env = TestEnv::new();
    let (_running, _) = family(&env, "x", &["--exec", "--kill-after", "5"]);
    env.onehold(["check", "-v", "x"])
        .assert()
        .code(6)
        .stdout(contains(
            "  processes that `break` ends by TERM, and by KILL after 5s:\n",
        ));
}
