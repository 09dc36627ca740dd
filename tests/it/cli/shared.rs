use assert_cmd::prelude::OutputAssertExt;
use predicates::prelude::*;
use predicates::str::contains;

use crate::harness::TestEnv;
#[cfg(unix)]
use crate::harness::{Running, Signal, wait_until};

/// Acquires a lease; its number, or the exit code.
fn lease(env: &TestEnv, words: &str) -> Result<u64, Option<i32>> {
    let words = words.split(' ').chain(["--ttl", "1h"]);
    let output = env
        .onehold(["acquire"].into_iter().chain(words))
        .output()
        .unwrap();
    let number = String::from_utf8(output.stdout).unwrap();
    number.trim().parse().map_err(|_| output.status.code())
}

/// What is left after a cleanup, which removes the directories of names that are shared again and again.
fn left(env: &TestEnv) -> Vec<String> {
    env.onehold(["cleanup"]).assert().success();
    env.left_in_store()
}

#[cfg(unix)]
#[test]
fn directory_stays_of_a_name_that_is_shared_again_until_the_next_cleanup() {
    let env = TestEnv::new();
    assert_eq!(code(&env, "run -s once -- true"), Some(0));
    assert_eq!(env.left_in_store(), [""; 0]);
    assert_eq!(code(&env, "run -s again -- true"), Some(0));
    assert_eq!(code(&env, "run --slots 2 again -- true"), Some(0));
    assert_eq!(env.left_in_store(), ["again.d"]);
    assert_eq!(code(&env, "run again -- true"), Some(0));
    assert_eq!(left(&env), [""; 0]);
}

fn code(env: &TestEnv, words: &str) -> Option<i32> {
    env.onehold(words.split(' '))
        .output()
        .unwrap()
        .status
        .code()
}

/// Holds a lock until it is released by ending its stdin.
#[cfg(unix)]
fn hold(env: &TestEnv, words: &str) -> Running {
    let words: Vec<&str> = words.split(' ').collect();
    let mut command = env.command(crate::harness::program());
    command.arg("run").args(words).args(["--", "sleep", "1000"]);
    let run = Running::start(command);
    run.wait_until_recorded();
    run
}

#[test]
fn readers_share_a_lock_and_exclude_writers() {
    let env = TestEnv::new();
    let one = lease(&env, "x -s --owner one").unwrap();
    let two = lease(&env, "x --shared --owner two").unwrap();
    assert!(two > one);
    env.onehold(["run", "x", "--", "true"])
        .assert()
        .code(6)
        .stderr(
            contains("onehold: `x` is shared by a lease of one on ")
                .and(contains("; 1 more holder\n"))
                .and(contains("; to remove their holds, run `onehold "))
                .and(contains(" break --all x`\n")),
        );
    assert_eq!(code(&env, "run -s x -- true"), Some(0));
    assert_eq!(code(&env, "check x"), Some(6));
    assert_eq!(code(&env, "check -s x"), Some(0));
    assert_eq!(code(&env, "release x --owner one"), Some(0));
    assert_eq!(code(&env, "run x -- true"), Some(6));
    assert_eq!(code(&env, "release x --owner two"), Some(0));
    assert_eq!(code(&env, "run x -- true"), Some(0));
    let writer = lease(&env, "x --owner writer").unwrap();
    assert!(writer > two);
    assert_eq!(code(&env, "run -s x -- true"), Some(6));
    assert_eq!(code(&env, "check -s x"), Some(6));
    assert_eq!(code(&env, "release x --owner writer"), Some(0));
    assert_eq!(left(&env), [""; 0]);
}

#[test]
fn shared_parent_excludes_exclusive_children_only() {
    let env = TestEnv::new();
    lease(&env, "backend -s").unwrap();
    env.onehold(["acquire", "backend/task-1", "--ttl", "1h"])
        .assert()
        .code(6)
        .stderr(contains(
            "`backend`, the parent of `backend/task-1`, is shared by ",
        ));
    lease(&env, "backend/task-1 -s --owner child").unwrap();
    assert_eq!(lease(&env, "backend/task-1/deep"), Err(Some(6)));
    assert_eq!(code(&env, "break backend --yes"), Some(0));
    // The other way round, and through a name in between.
    env.onehold(["acquire", "backend", "--ttl", "1h"])
        .assert()
        .code(6)
        .stderr(contains(
            "`backend/task-1`, a child of `backend`, is shared by ",
        ));
    lease(&env, "backend -s").unwrap();
}

#[test]
fn slots_let_at_most_n_hold_and_each_has_its_number() {
    let env = TestEnv::new();
    for slot in 0..3_u64 {
        let number = lease(&env, "gpu --slots 3").unwrap();
        let lock = env.json(["check", "gpu"])["lock"].take();
        let holds = std::iter::once(&lock).chain(lock["others"].as_array().unwrap());
        let own = holds
            .filter(|hold| hold["hold"] == number)
            .collect::<Vec<_>>();
        assert_eq!(own.len(), 1);
        assert_eq!(own[0]["slot"], slot);
        assert_eq!(own[0]["mode"]["slots"], 3);
    }
    assert_eq!(lease(&env, "gpu --slots 3"), Err(Some(6)));
    // The number that the asker gives counts.
    assert_eq!(lease(&env, "gpu --slots 2"), Err(Some(6)));
    assert_eq!(code(&env, "check gpu --slots 4"), Some(0));
    assert_eq!(code(&env, "check gpu --slots 3"), Some(6));
    env.onehold(["check", "gpu"]).assert().code(6).stdout(
        contains("`gpu`, slot 0, is held by a lease")
            .and(contains("; 2 more holders\n"))
            .and(contains("\n  `gpu`, slot 1, is held by a lease"))
            .and(contains("\n  `gpu`, slot 2, is held by a lease")),
    );
    env.onehold(["list"]).assert().success().stdout(
        contains("held, slot 0 ")
            .and(contains("held, slot 1 "))
            .and(contains("held, slot 2 ")),
    );
    let middle = env.json(["check", "gpu"])["lock"]["others"][0]["hold"].clone();
    assert_eq!(code(&env, &format!("release gpu --hold {middle}")), Some(0));
    env.onehold(["run", "gpu", "--slots", "3", "--", "true"])
        .assert()
        .success();
    let lock = env.json(["check", "gpu"])["lock"].take();
    assert_eq!(
        (&lock["slot"], &lock["others"][0]["slot"]),
        (&0.into(), &2.into())
    );
    env.onehold(["run", "gpu", "--slots", "0", "--", "true"])
        .assert()
        .code(2)
        .stderr(contains("not a number from 1 to 4294967295"));
    env.onehold(["run", "gpu", "-s", "--slots", "1", "--", "true"])
        .assert()
        .code(2);
}

#[cfg(unix)]
#[test]
fn command_finds_its_slot_which_is_given_again_when_its_holder_is_dead() {
    let env = TestEnv::new();
    let slot = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        let output = env
            .onehold(["run"].iter().chain(&words))
            .args(["--", "sh", "-c", "echo $ONEHOLD_SLOT"])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(slot("--slots 3 x"), "0\n");
    let mut first = hold(&env, "--slots 3 x");
    let mut second = hold(&env, "--slots 3 x");
    assert_eq!(slot("--slots 3 x"), "2\n");
    assert_eq!(slot("--slots 3 x y"), "2 0\n");
    let child = env.lock("x")["pid"].as_u64().unwrap();
    first.kill();
    assert_eq!(slot("--slots 2 x"), "", "its command still runs");
    crate::harness::send(u32::try_from(child).unwrap(), Signal::KILL);
    wait_until("the slot is free", || {
        code(&env, "check x --slots 2 --available") == Some(0)
    });
    assert_eq!(slot("--slots 2 x"), "0\n");
    second.signal(Signal::TERM);
    assert_eq!(second.finish(), 143);
    assert_eq!(left(&env), [""; 0]);
}

#[cfg(unix)]
#[test]
fn waiter_for_a_slot_gets_whichever_is_given_back_first() {
    for given_back in 0..3 {
        let env = TestEnv::new();
        let holders: Vec<_> = (0..3).map(|_| hold(&env, "--slots 3 x")).collect();
        let mut waiter = env.start(["run", "--slots", "3", "-w", "20", "x", "--", "true"]);
        env.wait_for_waiter("x");
        holders[given_back].signal(Signal::TERM);
        assert_eq!(waiter.finish(), 0);
        for mut holder in holders {
            holder.signal(Signal::TERM);
            assert_eq!(holder.finish(), 143);
        }
    }
}

#[cfg(unix)]
#[test]
fn waiting_writer_is_served_before_readers_that_come_later() {
    let env = TestEnv::new();
    let mut reader = hold(&env, "-s x");
    let mut writer = env.start(["run", "-w", "20", "x", "--", "sleep", "1000"]);
    env.wait_for_waiter("x");
    assert_eq!(code(&env, "run -s x -- true"), Some(6), "a new reader");
    env.onehold(["run", "-s", "x", "--", "true"])
        .assert()
        .code(6)
        .stderr(contains("`x` is reserved for process "));
    let mut late = env.start(["run", "-s", "-w", "20", "x", "--", "true"]);
    wait_until("both wait", || {
        env.lock("x")["waiters"].as_array().unwrap().len() == 2
    });
    reader.signal(Signal::TERM);
    assert_eq!(reader.finish(), 143);
    wait_until("the writer has it", || env.lock("x")["mode"] == "exclusive");
    // Before it supervises its command, a signal has its usual effect.
    writer.wait_until_recorded();
    writer.signal(Signal::TERM);
    assert_eq!(writer.finish(), 143);
    assert_eq!(late.finish(), 0);
}

/// `run` inside other holds: of each the words before its command, from outside in.
#[cfg(unix)]
fn nested(env: &TestEnv, holds: &[&str]) -> std::process::Output {
    let runs: Vec<String> = holds.iter().map(|hold| format!("run {hold} --")).collect();
    let line = format!("{} echo inside", runs.join(" onehold "));
    env.onehold(line.split(' ')).output().unwrap()
}

/// What `run` says that is refused inside other holds.
#[cfg(unix)]
fn refusal_inside(env: &TestEnv, outer: &[&str], run: &str) -> String {
    let refused = nested(env, &[outer, &[run]].concat());
    let text = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(6), "{text}");
    text
}

#[cfg(unix)]
#[test]
fn advice_inside_own_holds_is_something_that_works() {
    let env = TestEnv::new();
    let stays = "  this command already runs under `x`, which stays held until it exits\n";
    for run in ["x", "--reentrant x", "-w 9 x"] {
        // What is shared never becomes exclusive for those who share it.
        let text = refusal_inside(&env, &["-s x"], run);
        assert!(text.ends_with(stays), "{text}");
        let text = refusal_inside(&env, &["--slots 2 x", "--slots 2 x"], run);
        assert!(text.ends_with(stays), "{text}");
    }
    for run in ["x y", "--reentrant x y"] {
        let text = refusal_inside(&env, &["x"], run);
        let end = "  this command already runs under `x`: leave that name out\n";
        assert!(text.ends_with(end), "{text}");
    }
    for (outer, run, advised) in [
        (&["x"][..], "x", "--reentrant x"),
        (&["x y"], "x y", "--reentrant x"),
        (&["x"], "-s x", "--reentrant --shared x"),
        (
            &["--slots 2 x", "--slots 2 x"],
            "--slots 2 x",
            "--reentrant --slots 2 x",
        ),
    ] {
        let text = refusal_inside(&env, outer, run);
        assert!(text.ends_with(&format!(" run {advised} -- …`\n")), "{text}");
        let followed = nested(&env, &[outer, &[advised]].concat());
        assert_eq!(followed.stdout, b"inside\n", "{advised}");
    }
}

#[cfg(unix)]
#[test]
fn refusal_of_a_child_by_a_slot_of_its_parent_is_one_sentence() {
    let env = TestEnv::new();
    let text = refusal_inside(&env, &["--slots 2 a"], "a/b");
    assert!(
        text.starts_with("onehold: `a`, the parent of `a/b`, slot 0, is held by process "),
        "{text}"
    );
}

#[test]
fn junk_beside_shared_holds_is_named_by_its_own_path() {
    let env = TestEnv::new();
    env.write("store/x.d/.shared/0.lock", "junk\n");
    let parts = ["x.d", ".shared", "0.lock"];
    let junk = parts.iter().fold(env.store(), |path, part| path.join(part));
    for options in [&["-s"][..], &[], &["-w", "9"]] {
        let words = [&["run"], options, &["x", "--", "true"]].concat();
        env.onehold(words)
            .assert()
            .code(125)
            .stderr(contains(format!("`{}` is not a lock: ", junk.display())));
    }
    env.onehold(["release", "x"])
        .assert()
        .code(1)
        .stderr(contains(format!("`{}` is not a lock: ", junk.display())));
}

// The line is longer than Windows takes.
#[cfg(unix)]
#[test]
fn names_that_make_no_record_are_refused_before_a_wait() {
    let env = TestEnv::new();
    lease(&env, "a").unwrap();
    let long: Vec<String> = (0..200)
        .map(|at| format!("{at:0>200}/{at:0>200}"))
        .collect();
    let words = ["run", "-w", "9", "a"];
    let output = env
        .onehold(words)
        .args(&long)
        .args(["--", "true"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    let begin = "onehold: the record is longer than 65536 bytes\n";
    assert!(text.starts_with(begin), "{text}");
}

#[cfg(unix)]
#[test]
fn command_of_a_hold_without_a_slot_finds_no_slot() {
    let env = TestEnv::new();
    for inner in ["run x", "run --exec x", "run -w 9 x"] {
        let script = format!("onehold {inner} -- sh -c 'echo \"<${{ONEHOLD_SLOT-unset}}>\"'");
        env.onehold(["run", "--slots", "2", "workers", "--", "sh", "-c", &script])
            .assert()
            .success()
            .stdout("<unset>\n");
    }
}

#[cfg(unix)]
#[test]
fn reader_inside_a_shared_hold_passes_a_writer_that_waits() {
    let env = TestEnv::new();
    let script = "until test -e go; do sleep 0.01; done
        onehold run -s x -- echo inner; onehold run --reentrant -s x -- echo again
        onehold run --reentrant -w 20 x -- true; echo $?";
    let mut reader = env.start_with_output(["run", "-s", "x", "--", "sh", "-c", script]);
    wait_until("the reader has it", || env.check("x") == 6);
    let mut writer = env.start(["run", "-w", "20", "x", "--", "true"]);
    env.wait_for_waiter("x");
    env.write("go", "");
    let (code, out, _) = reader.finish_with_output();
    assert_eq!(code, 0);
    // What the reader holds itself can never become exclusive for it.
    assert_eq!(out, "inner\nagain\n6\n");
    assert_eq!(writer.finish(), 0);
}

#[test]
fn several_names_are_taken_together_or_not_at_all() {
    let env = TestEnv::new();
    let cache = lease(&env, "cache --owner other").unwrap();
    env.onehold(["run", "db", "cache", "--", "true"])
        .assert()
        .code(6)
        .stderr(contains("onehold: `cache` is held by a lease of other"));
    assert_eq!(env.check("db"), 0);
    assert_eq!(code(&env, "release cache --owner other"), Some(0));
    let both = lease(&env, "db cache --owner me").unwrap();
    assert!(both > cache);
    for name in ["db", "cache"] {
        let lock = env.json(["check", name])["lock"].take();
        assert_eq!(lock["hold"], both);
        assert_eq!(lock["names"], serde_json::json!(["db", "cache"]));
        assert_eq!(lock["name"], name);
        assert_eq!(code(&env, &format!("run {name} -- true")), Some(6));
    }
    // The same holder asks again.
    assert_eq!(lease(&env, "cache db --owner me"), Ok(both));
    assert_eq!(lease(&env, "cache --owner me"), Err(Some(6)));
    assert_eq!(code(&env, "renew cache --owner me --ttl 2h"), Some(0));
    assert_eq!(env.json(["check", "db"])["lock"]["ttl_seconds"], 7200.0);
    assert_eq!(code(&env, "release cache --owner me"), Some(0));
    assert_eq!(left(&env), [""; 0]);
    // What one of them is broken for, the others are not held for either.
    lease(&env, "db cache a/b --owner me").unwrap();
    assert_eq!(code(&env, "break a/b --yes"), Some(0));
    assert_eq!(left(&env), [""; 0]);
}

#[test]
fn names_that_include_each_other_are_a_usage_error_and_repeated_ones_are_one() {
    let env = TestEnv::new();
    for (words, text) in [
        (
            "a a/b",
            "cannot hold `a` and `a/b` together: the first includes the second\n",
        ),
        (
            "c a/b/c a",
            "cannot hold `a/b/c` and `a` together: the second includes the first\n",
        ),
        (
            "a ./b",
            "cannot hold `a` and `./b` together: a path has no store\n",
        ),
    ] {
        env.onehold(["run"].into_iter().chain(words.split(' ')))
            .args(["--", "true"])
            .assert()
            .code(2)
            .stderr(contains(text));
    }
    lease(&env, "a b a").unwrap();
    assert_eq!(
        env.json(["check", "a"])["lock"]["names"],
        serde_json::json!(["a", "b"])
    );
}

#[cfg(unix)]
#[test]
fn command_under_several_names_ends_when_one_of_them_is_lost() {
    let env = TestEnv::new();
    let mut run = hold(&env, "db cache");
    std::fs::remove_file(env.store().join("cache.lock")).unwrap();
    assert_eq!(run.finish(), 8);
    assert_eq!(left(&env), [""; 0]);
}

#[cfg(unix)]
#[test]
fn names_and_files_of_a_hold_stand_in_as_many_lines() {
    let env = TestEnv::new();
    let script = "echo \"$ONEHOLD_NAME\"; basename -a $ONEHOLD_FILE
        echo $ONEHOLD_HOLDS; onehold run --reentrant cache -- echo inside; onehold run cache -- true";
    let output = env
        .onehold(["run", "db", "cache", "--", "sh", "-c", script])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(6));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..4], ["db", "cache", "db.lock", "cache.lock"]);
    assert!(
        lines[4].contains(":db ") && lines[4].ends_with(":cache"),
        "{text}"
    );
    assert_eq!(lines[5], "inside");
}

#[test]
fn takeover_of_one_name_leaves_none_of_a_dead_hold_behind() {
    let env = TestEnv::new();
    let output = env
        .onehold(["acquire", "db", "cache", "--ttl", "1ms"])
        .output()
        .unwrap();
    assert!(output.status.success());
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(env.check("cache"), 5);
    env.onehold(["run", "db", "--", "true"])
        .assert()
        .success()
        .stderr(contains("took over zombie `db`: "));
    assert_eq!(left(&env), [""; 0]);
}

#[test]
fn several_holders_are_broken_by_number_or_all_at_once() {
    let env = TestEnv::new();
    let numbers: Vec<u64> = ["a", "b", "c"]
        .map(|owner| lease(&env, &format!("x -s --owner {owner}")).unwrap())
        .to_vec();
    env.onehold(["break", "x", "--yes"])
        .assert()
        .code(2)
        .stderr(
            contains("onehold: `x` has 3 holders\n")
                .and(contains("add --hold N; to break all, add --all\n")),
        );
    env.onehold(["break", "x", "--yes", "--hold", &numbers[1].to_string()])
        .assert()
        .success()
        .stderr(contains("broke the hold on `x` of a lease of b"));
    assert_eq!(env.json(["check", "x"])["lock"]["others"][0]["owner"], "c");
    let object = env.json(["break", "x", "--yes", "--all"]);
    assert_eq!(object["message"], "broke 2 of 2 holds on `x`");
    assert_eq!(object["locks"].as_array().unwrap().len(), 2);
    assert_eq!(left(&env), [""; 0]);
    assert_eq!(env.journal().len(), 3);
}

#[cfg(unix)]
#[test]
fn break_asks_for_each_of_several_holders() {
    let env = TestEnv::new();
    for owner in ["a", "b", "c"] {
        lease(&env, &format!("x -s --owner {owner}")).unwrap();
    }
    let (code, shown) = env.on_a_terminal("break x", &["y\n", "n\n", "y\n"]);
    assert_eq!(code, 6, "{shown}");
    assert!(
        shown.contains("broke the hold on `x` of a lease of a"),
        "{shown}"
    );
    assert_eq!(env.lock("x")["owner"], "b");
    assert_eq!(env.lock("x")["others"].as_array().unwrap().len(), 0);
}

#[test]
fn writer_takes_a_lock_by_force_from_all_readers() {
    let env = TestEnv::new();
    for owner in ["a", "b", "c", "d", "e", "f"] {
        lease(&env, &format!("x -s --owner {owner}")).unwrap();
    }
    env.onehold(["run", "x", "--force", "--yes", "--", "true"])
        .assert()
        .success()
        .stderr(
            contains("took `x` by force from a lease of a")
                .and(contains("took `x` by force from a lease of f")),
        );
    assert_eq!(left(&env), [""; 0]);
}

#[cfg(unix)]
#[test]
fn force_waits_for_the_commands_of_readers_and_of_slots() {
    // It takes 3 s from TERM on, which its wrapper sends within about a second.
    let slow = "trap 'sleep 3; touch ended-$0; exit' TERM; touch began-$0; while [ -e began-$0 ]; do sleep 0.05; done";
    for (kind, next) in [
        (&["-s"][..], "test -e ended-1 -a -e ended-2"),
        (&["--slots", "2"], "ls ended-*"),
    ] {
        let env = TestEnv::new();
        let holders = ["1", "2"].map(|number| {
            let command = ["x", "--", "sh", "-c", slow, number];
            let holder = env.start([&["run"], kind, &command].concat());
            wait_until("it holds", || env.path(&format!("began-{number}")).exists());
            holder
        });
        let slots = kind.iter().filter(|word| **word != "-s");
        let mut force = env.onehold(["run", "--force", "--yes"]);
        force.args(slots).args(["x", "--", "sh", "-c", next]);
        force.assert().success();
        drop(holders);
    }
}

#[cfg(unix)]
#[test]
#[ignore = "takes 12 s"]
fn force_waits_for_all_that_do_not_end_at_once_and_not_for_each() {
    let env = TestEnv::new();
    let stubborn = "trap '' TERM; touch began-$0; while [ -e began-$0 ]; do sleep 0.05; done";
    let _holders = ["1", "2"].map(|number| {
        let options = ["run", "-s", "--kill-after", "60", "x", "--"];
        let holder = env.start([&options[..], &["sh", "-c", stubborn, number]].concat());
        wait_until("it holds", || env.path(&format!("began-{number}")).exists());
        holder
    });
    let mut force = env.command("timeout");
    force.args("20 onehold run --force --yes x -- true".split(' '));
    let is_running = contains("is still running").count(2);
    force.assert().success().stderr(is_running);
}

#[cfg(unix)]
#[test]
fn script_releases_its_own_shared_holds_the_latest_one_first() {
    let env = TestEnv::new();
    lease(&env, "x -s --owner other").unwrap();
    let script = "one=$(onehold acquire -s x) two=$(onehold acquire -s x); onehold release x
        onehold check x --json >after; onehold release x; onehold release x; echo $? $one $two";
    let output = env.session(script).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(words[0], "4", "{text}");
    let after = std::fs::read_to_string(env.path("after")).unwrap();
    assert!(
        after.contains(words[1]) && !after.contains(words[2]),
        "{after}"
    );
    assert_eq!(env.lock("x")["owner"], "other");
}

/// Shares `x` by more leases than a process may have files open.
#[cfg(unix)]
const MORE_READERS_THAN_DESCRIPTORS: &str = "ulimit -n 64
    for i in $(seq 80); do onehold acquire -q -s x --ttl 1h --owner o$i >numbers || exit 99; done
    try() { \"$@\" >>said 2>&1; echo $?; }
    ";

#[cfg(unix)]
#[test]
fn more_readers_than_descriptors_are_read_waited_for_and_broken() {
    let env = TestEnv::new();
    let script = "
        try onehold check x; try onehold check -s x; try onehold list
        try onehold run -s x -- true; try onehold run x -- true; try onehold run x/y -- true
        try onehold run --slots 80 x -- true; try onehold run --slots 81 x -- true
        try onehold run -w 0.2 x -- true; try onehold run -w 0.2 --slots 5 x -- true
        try onehold renew x --owner o70 --ttl 2h; try onehold release x --owner o80
        try onehold break --yes --all x; try onehold run x -- true";
    let script = format!("{MORE_READERS_THAN_DESCRIPTORS}{script}");
    let output = env.session(&script).output().unwrap();
    let codes = String::from_utf8(output.stdout).unwrap();
    let said = std::fs::read_to_string(env.path("said")).unwrap_or_default();
    let codes: Vec<&str> = codes.lines().collect();
    let expected = [
        "6", "0", "0", "0", "6", "6", "6", "0", "7", "7", "0", "0", "0", "0",
    ];
    assert_eq!(codes, expected, "{:?} {said}", output.status);
    assert_eq!(left(&env), [""; 0]);
}

#[cfg(unix)]
#[test]
fn more_dead_readers_than_descriptors_are_replaced_and_removed() {
    let env = TestEnv::new();
    let script = "
        for i in $(seq 80); do onehold renew -q x --owner o$i --ttl 1ms || exit 98; done
        sleep 0.02
        try onehold check x; try onehold run -s x -- true; try onehold run --slots 1 x -- true
        try onehold cleanup --dry-run; try onehold run x -- true; try onehold check x";
    let script = format!("{MORE_READERS_THAN_DESCRIPTORS}{script}");
    let output = env.session(&script).output().unwrap();
    let codes = String::from_utf8(output.stdout).unwrap();
    let said = std::fs::read_to_string(env.path("said")).unwrap_or_default();
    let codes: Vec<&str> = codes.lines().collect();
    let expected = ["5", "0", "0", "0", "0", "0"];
    assert_eq!(codes, expected, "{:?} {said}", output.status);
    assert_eq!(left(&env), [""; 0]);
}

/// Not all of so many are read.
#[cfg(unix)]
#[test]
fn who_shares_a_lock_already_is_recognized_among_many_readers() {
    let env = TestEnv::new();
    let script = "
        all() { for i in $(seq 80); do onehold acquire -q -s x --ttl 1h --owner o$i || exit 99; done; }
        all >first; all >again; cmp first again";
    env.session(script).assert().success();
    let shared = env.store().join("x.d/.shared");
    let count = || shared.read_dir().unwrap().count();
    assert_eq!(count(), 80);
    // Also if the process was derived before, and is named now.
    let script = "
        for i in $(seq 220); do onehold acquire -q -s x --ttl 1h >numbers || exit 99; done
        onehold acquire -q -s x >first; onehold acquire -q -s --pid $$ x >again; cmp first again";
    env.session(script).assert().success();
    assert_eq!(count(), 301);
}

#[cfg(unix)]
#[test]
fn records_of_dead_readers_are_used_again_by_others_however_many_there_are() {
    let env = TestEnv::new();
    let script = "
        for i in $(seq 80); do onehold acquire -q -s x --ttl 1h --owner o$i || exit 99; done
        for i in $(seq 80); do onehold renew -q x --owner o$i --ttl 1ms || exit 98; done
        sleep 0.02
        for i in $(seq 20); do onehold acquire -q -s x --ttl 1h --owner p$i || exit 97; done";
    env.session(script).assert().success();
    assert_eq!(
        env.store().join("x.d/.shared").read_dir().unwrap().count(),
        80
    );
}

/// A writer sleeps on the kernel lock of a reader, whose file it opens again for that.
#[cfg(unix)]
#[test]
fn writer_behind_two_readers_takes_the_lock_when_both_have_ended() {
    let env = TestEnv::new();
    let readers = [hold(&env, "-s x"), hold(&env, "-s x")];
    let mut writer = env.start(["run", "-w", "1m", "x", "--", "true"]);
    env.wait_for_waiter("x");
    for mut reader in readers {
        reader.signal(Signal::TERM);
        assert_eq!(reader.finish(), 143);
    }
    assert_eq!(writer.finish(), 0);
}

#[cfg(unix)]
#[test]
fn exclusive_hold_for_a_process_that_shares_the_lock_itself_is_refused_at_once() {
    let env = TestEnv::new();
    let holder = Running::sleeper();
    let pid = holder.pid().to_string();
    let shared = ["acquire", "-s", "x", "--owner", "r", "--pid", &pid];
    env.onehold(shared).assert().success();
    for words in [&["x"][..], &["x/y"], &["--owner", "r", "x"]] {
        env.onehold(["acquire", "-w", "20", "--pid", &pid])
            .args(words)
            .assert()
            .code(6)
            .stderr(contains(
                "\n  that process holds it itself: release that hold first, with its --owner or --hold\n",
            ));
    }
    // Another process may outlive that one.
    let other = Running::sleeper();
    let other = other.pid().to_string();
    env.onehold(["acquire", "-w", "0.1", "--pid", &other, "x"])
        .assert()
        .code(7);
}

#[test]
fn cleanup_removes_the_dead_among_those_that_share_a_lock() {
    let env = TestEnv::new();
    lease(&env, "x --slots 3 --owner a").unwrap();
    let middle = lease(&env, "x --slots 3 --owner dies").unwrap();
    lease(&env, "x --slots 3 --owner b").unwrap();
    let middle = ["renew", "x", "--ttl", "1ms", "--hold", &middle.to_string()];
    env.onehold(middle).assert().success();
    std::thread::sleep(std::time::Duration::from_millis(20));
    let object = env.json(["cleanup"]);
    assert_eq!(object["locks"].as_array().unwrap().len(), 1);
    assert_eq!(object["locks"][0]["slot"], 1);
    assert_eq!(env.json(["list"])["locks"].as_array().unwrap().len(), 2);
}

#[test]
fn other_formats_have_one_holder_and_one_name() {
    let env = TestEnv::new();
    env.onehold(["--format", "prodigy", "run", "-s", "x", "--", "true"])
        .assert()
        .code(2)
        .stderr(contains(
            "prodigy format: its programs know one holder only",
        ));
    env.onehold(["--format", "pid", "run", "x", "y", "--", "true"])
        .assert()
        .code(2)
        .stderr(contains("pid format: one lock at a time"));
    env.onehold(["run", "-s", "./x.lock", "--", "true"])
        .assert()
        .code(2)
        .stderr(contains("only a lock with a NAME can be shared"));
    env.onehold([
        "--format", "flock", "run", "--slots", "2", "./x", "--", "true",
    ])
    .assert()
    .failure();
}

#[cfg(target_os = "linux")]
#[test]
fn shared_lock_of_flock_excludes_its_writers_and_not_its_readers() {
    let env = TestEnv::new();
    let mut reader = hold(&env, "--format flock -s ./f");
    let flock = |words: &str| {
        let mut command = env.command("flock");
        let status = command.args(words.split(' ')).status();
        status.unwrap().code()
    };
    assert_eq!(flock("-n -s f true"), Some(0));
    assert_eq!(flock("-n f true"), Some(1));
    assert_eq!(code(&env, "--format flock run -s ./f -- true"), Some(0));
    assert_eq!(code(&env, "--format flock run ./f -- true"), Some(6));
    let mut writer = env.start([
        "--format", "flock", "run", "-w", "20", "./f", "--", "sleep", "1000",
    ]);
    // It sleeps in flock(2).
    wait_until("the writer waits", || {
        std::fs::read_to_string("/proc/locks")
            .unwrap()
            .lines()
            .any(|line| line.contains("->") && line.contains(&format!(" {} ", writer.pid())))
    });
    reader.signal(Signal::TERM);
    assert_eq!(reader.finish(), 143);
    wait_until("the writer has it", || flock("-n -s f true") == Some(1));
    let mut late = env.start([
        "--format", "flock", "run", "-s", "-w", "20", "./f", "--", "true",
    ]);
    writer.signal(Signal::TERM);
    assert_eq!(writer.finish(), 143);
    assert_eq!(late.finish(), 0);
}

#[test]
fn takeover_of_two_names_of_one_dead_hold_is_told_once() {
    let env = TestEnv::new();
    let both = ["acquire", "db", "cache", "--ttl", "1ms"];
    env.onehold(both).assert().success();
    std::thread::sleep(std::time::Duration::from_millis(20));
    let output = env
        .onehold(["run", "cache", "db", "--", "true"])
        .output()
        .unwrap();
    assert!(output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.matches("took over zombie").count(), 1, "{said}");
    assert_eq!(env.journal().len(), 1);
}

#[test]
fn break_of_a_reader_that_has_ended_breaks_no_other() {
    let env = TestEnv::new();
    let gone = lease(&env, "x -s --owner a").unwrap();
    lease(&env, "x -s --owner b").unwrap();
    assert_eq!(code(&env, "release x --owner a"), Some(0));
    env.onehold(["break", "x", "--yes", "--hold", &gone.to_string()])
        .assert()
        .code(3)
        .stderr(contains(format!("onehold: `x`: hold {gone} has ended\n")));
    assert_eq!(code(&env, "check x"), Some(6));
}

#[test]
fn slot_of_a_shared_lock_is_no_lock_of_its_own() {
    let env = TestEnv::new();
    lease(&env, "x -s").unwrap();
    env.onehold(["acquire", "./store/x.d/.shared/7.lock", "--ttl", "1h"])
        .assert()
        .failure()
        .stderr(contains("use the name of the lock"));
}
