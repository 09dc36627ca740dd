//! `history`: holds that have ended.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use serde_json::Value;

use crate::harness::{
    CONTENDERS, Running, Signal, TestEnv, exit_code, json_object, output, run_together,
    sorted_codes, stderr, time, wait_until,
};

/// An environment in which holds have a history.
fn with_history() -> TestEnv {
    let env = TestEnv::new();
    env.write("config.toml", "[defaults]\nhistory = true\n");
    env
}

/// `onehold WORDS` with the configuration of that environment.
fn onehold(env: &TestEnv, words: &[&str]) -> std::process::Command {
    let mut command = env.onehold(words);
    command.env("ONEHOLD_CONFIG", env.path("config.toml"));
    command
}

fn code(env: &TestEnv, words: &[&str]) -> i32 {
    exit_code(onehold(env, words).output().unwrap().status)
}

fn start(env: &TestEnv, words: &[&str]) -> Running {
    Running::start(onehold(env, words))
}

/// The past holds, the oldest first.
fn history(env: &TestEnv, words: &[&str]) -> Vec<Value> {
    let words = [&["history", "--json"][..], words].concat();
    let object = json_object(&env.output(words).stdout);
    object["holds"].as_array().unwrap().clone()
}

fn results(holds: &[Value]) -> Vec<&str> {
    let result = |hold: &'_ Value| hold["result"].as_str().unwrap().to_owned().leak() as &str;
    holds.iter().map(result).collect()
}

/// A command that ends as it wants when it gets TERM.
const TERM_IS_HANDLED: &str = "trap 'exit 0' TERM; while :; do sleep 0.05; done";

/// Runs whose commands are ended by their wrappers, or not started.
fn end_in_other_ways(env: &TestEnv) {
    for (name, command) in [("limit", "exec sleep 60"), ("handled", TERM_IS_HANDLED)] {
        let words = ["run", name, "--time-limit", "0.2", "--", "sh", "-c"];
        assert_eq!(code(env, &[&words[..], &[command]].concat()), 124);
    }
    let mut caller = Running::sleeper();
    let with = caller.pid().to_string();
    let words = ["run", "caller", "--die-with", &with, "--", "sh", "-c"];
    let mut run = start(env, &[&words[..], &[TERM_IS_HANDLED]].concat());
    wait_until("it runs", || env.lock("caller")["pid_alive"] == true);
    caller.kill();
    assert_eq!(run.finish(), 143);
    assert_eq!(code(env, &["run", "missing", "--", "/no/such"]), 127);
    assert_eq!(code(env, &["run", "refused", "--", "/"]), 126);
    let words = ["run", "--exec", "no-exec", "--", "/no/such"];
    assert_eq!(code(env, &words), 127);
}

#[test]
fn each_hold_leaves_one_line_that_says_how_it_ended() {
    let env = with_history();
    code(&env, &["run", "exit", "--", "sh", "-c", "exit 3"]);
    code(&env, &["run", "signal", "--", "sh", "-c", "kill -9 $$"]);
    end_in_other_ways(&env);
    code(
        &env,
        &["run", "kept", "--hold-at-least", "1h", "--", "true"],
    );
    code(&env, &["break", "kept", "--yes"]);
    let acquire = onehold(&env, &["acquire", "released", "--ttl", "1h"])
        .output()
        .unwrap();
    let number = String::from_utf8(acquire.stdout).unwrap();
    // Who ends it needs no configuration.
    env.done(["release", "released", "--hold", number.trim()]);
    code(&env, &["acquire", "expired", "--ttl", "0.1"]);
    wait_until("it has expired", || env.check("expired") == 5);
    env.done(["run", "expired", "--", "true"]);
    let mut holder = Running::sleeper();
    code(
        &env,
        &["acquire", "dead", "--pid", &holder.pid().to_string()],
    );
    holder.kill();
    env.done(["cleanup"]);
    for (name, how) in [
        ("broken", &["--yes"][..]),
        ("forced", &["--yes", "--force"]),
    ] {
        let mut run = start(&env, &["run", name, "--", "sleep", "60"]);
        wait_until("it runs", || env.lock(name)["pid_alive"] == true);
        env.done([&["break", name], how].concat());
        assert_eq!(run.finish(), 8);
    }
    let mut run = start(&env, &["run", "lost", "--", "sleep", "60"]);
    wait_until("it runs", || env.lock("lost")["pid_alive"] == true);
    fs::remove_file(env.store().join("lost.lock")).unwrap();
    assert_eq!(run.finish(), 8);
    code(&env, &["run", "--exec", "exec", "--", "true"]);
    env.done(["run", "exec", "--", "true"]);
    code(&env, &["hold", "hold"]);
    code(&env, &["run", "one", "section/two", "--", "true"]);

    let holds = history(&env, &[]);
    let of =
        |name: &str| -> Vec<&Value> { holds.iter().filter(|hold| hold["name"] == name).collect() };
    for (name, result, exit_code, signal) in [
        ("exit", "exited", Some(3), None),
        ("signal", "signal", None, Some(9)),
        ("limit", "time-limit", None, Some(15)),
        ("missing", "not-started", None, None),
        ("refused", "not-started", None, None),
        ("no-exec", "not-started", None, None),
        ("kept", "exited", Some(0), None),
        ("released", "released", None, None),
        ("expired", "expired", None, None),
        ("dead", "taken-over", None, None),
        ("broken", "broken", None, Some(15)),
        ("forced", "broken", None, None),
        ("lost", "lost", None, Some(15)),
        ("exec", "exited", None, None),
        ("hold", "released", None, None),
        ("one", "exited", Some(0), None),
    ] {
        let found = of(name);
        assert_eq!(found.len(), 1, "{name}: {holds:?}");
        let hold = found[0];
        assert_eq!(hold["result"], result, "{name}: {hold}");
        assert_eq!(hold["exit_code"].as_i64(), exit_code, "{name}: {hold}");
        assert_eq!(hold["signal"].as_i64(), signal, "{name}: {hold}");
        let times = ["asked_at", "acquired_at", "ended_at"];
        let times = times.map(|key| time(&hold[key]));
        assert!(times.is_sorted(), "{name}: {hold}");
        assert!(hold["held_seconds"].as_f64().unwrap() >= 0.0);
    }
    assert_eq!(
        of("one")[0]["names"],
        serde_json::json!(["one", "section/two"])
    );
    assert_eq!(history(&env, &["section/two"]).len(), 1);
    // Whether their commands handled TERM already is not known.
    assert_eq!(of("handled")[0]["result"], "time-limit");
    assert_eq!(of("caller")[0]["result"], "caller-exited");
    let failed = history(&env, &["--failed"]);
    let mut failed: Vec<&str> = failed
        .iter()
        .map(|hold| hold["name"].as_str().unwrap())
        .collect();
    failed.sort_unstable();
    assert_eq!(
        failed,
        [
            "broken", "caller", "dead", "exit", "expired", "forced", "handled", "limit", "lost",
            "missing", "no-exec", "refused", "signal"
        ]
    );
}

#[test]
fn table_has_the_words_for_ends() {
    let env = with_history();
    end_in_other_ways(&env);
    let table = env.done(["history", "handled", "caller", "missing"]);
    let lines: Vec<&str> = table.lines().skip(1).collect();
    let ends = [" time-limit", " caller-exited", " not-started"];
    assert_eq!(lines.len(), ends.len());
    assert!(
        lines
            .iter()
            .zip(ends)
            .all(|(line, end)| line.ends_with(end)),
        "{table}"
    );
}

#[test]
fn nothing_is_written_unless_it_is_wanted() {
    let env = TestEnv::new();
    env.done(["run", "x", "--", "true"]);
    assert!(history(&env, &[]).is_empty());
    assert!(!env.store().join(".onehold/events.jsonl").exists());
    let told = String::from_utf8(env.output(["history"]).stderr).unwrap();
    assert!(
        told.contains(
            "`history = true` below `[defaults]` in the configuration, or ONEHOLD_HISTORY=1"
        ),
        "{told}"
    );
    for (value, count) in [("1", 1), ("0", 1), ("true", 2), ("", 2)] {
        let mut run = env.onehold(["run", "x", "--", "true"]);
        run.env("ONEHOLD_HISTORY", value);
        assert!(run.status().unwrap().success());
        assert_eq!(history(&env, &[]).len(), count, "{value}");
    }
    let mut run = env.onehold(["run", "x", "--", "true"]);
    run.env("ONEHOLD_HISTORY", "yes");
    assert_eq!(exit_code(run.output().unwrap().status), 2);
    let on = with_history();
    let mut run = onehold(&on, &["run", "x", "--", "true"]);
    run.env("ONEHOLD_HISTORY", "0");
    assert!(run.status().unwrap().success());
    assert!(history(&on, &[]).is_empty());
}

#[test]
fn waiters_tell_how_long_they_waited_and_behind_how_many() {
    let env = with_history();
    let mut holder = env.hold(&["x"]);
    let mut waiters = Vec::new();
    for at in 0..CONTENDERS {
        waiters.push(start(&env, &["run", "-w", "60", "x", "--", "true"]));
        wait_until("it waits", || env.number_of_waiters("x") == at + 1);
    }
    env.end();
    holder.finish();
    for waiter in &mut waiters {
        assert_eq!(waiter.finish(), 0);
    }
    let holds = history(&env, &["x"]);
    let arrived: Vec<u64> = holds
        .iter()
        .map(|hold| hold["waiting_on_arrival"].as_u64().unwrap())
        .collect();
    assert_eq!(arrived, (0..CONTENDERS as u64).collect::<Vec<_>>());
    let waited = holds
        .iter()
        .map(|hold| hold["waited_seconds"].as_f64().unwrap());
    // The first one waited for all the others to come.
    assert!(waited.clone().all(|waited| waited > 0.0));
    let object = json_object(&env.output(["history", "--summary", "--json"]).stdout);
    let summary = &object["summary"][0];
    assert_eq!(
        (&summary["name"], &summary["runs"]),
        (&"x".into(), &CONTENDERS.into())
    );
    let most = waited.fold(0.0, f64::max);
    assert_eq!(summary["waited_seconds"]["max"], most);
    assert_eq!(summary["longest"].as_array().unwrap().len(), 3);
}

#[test]
fn runs_side_by_side_leave_a_line_each() {
    let env = with_history();
    let calls = (0..4 * CONTENDERS).map(|at| {
        let name = format!("lock/{}", at % 5);
        onehold(&env, &["run", "-w", "60", &name, "--", "true"])
    });
    let outputs = run_together(calls.collect());
    assert_eq!(sorted_codes(&outputs), [0; 4 * CONTENDERS]);
    let holds = history(&env, &[]);
    assert_eq!(results(&holds), ["exited"; 4 * CONTENDERS]);
}

#[test]
fn journal_is_moved_aside_at_its_size_and_both_are_read() {
    let env = with_history();
    env.write(
        "config.toml",
        "[defaults]\nhistory = true\njournal-size = \"4K\"\n",
    );
    for _ in 0..15 {
        code(&env, &["run", "x", "--", "true"]);
    }
    let size = |name| {
        fs::metadata(env.store().join(".onehold").join(name))
            .unwrap()
            .len()
    };
    assert!(size("events.jsonl.1") >= 4096 && size("events.jsonl") < 4096 + 1024);
    let count = history(&env, &[]).len();
    assert!((10..=15).contains(&count), "{count}");
    for no_size in ["lots", "4KK", "K", "1K"] {
        let config = format!("[defaults]\njournal-size = \"{no_size}\"\n");
        env.write("config.toml", &config);
        let told = onehold(&env, &["list"]).output().unwrap();
        assert_eq!(exit_code(told.status), 1);
        let told = String::from_utf8(told.stderr).unwrap();
        assert!(told.contains("not a size from 4K to 1024G"), "{told}");
    }
}

#[test]
fn lines_that_are_no_holds_are_left_out() {
    let env = with_history();
    code(&env, &["run", "x", "--", "true"]);
    let file = env.store().join(".onehold/events.jsonl");
    let line = fs::read_to_string(&file).unwrap();
    let year = line.find("\"ended_at\":\"").unwrap() + "\"ended_at\":\"".len();
    let far = format!("{}+200000{}", &line[..year], &line[year + 4..]);
    let control = line
        .replace("\"true\"", "\"\\u001b[2Jtrue\"")
        .replace("\"hold\":1", "\"hold\":2");
    let large = line.replace("\"hold\":", "\"hold\":9");
    fs::write(
        &file,
        format!("{line}{{\"event\":\"end\"\nnothing\n{far}{large}{control}"),
    )
    .unwrap();
    assert_eq!(history(&env, &[]).len(), 2);
    let shown = env.done(["history"]);
    assert!(!shown.contains('\u{1b}'), "{shown:?}");
}

#[test]
fn line_that_was_torn_takes_no_other_with_it() {
    for mode in [0o700, 0o1777] {
        let env = with_history();
        fs::create_dir(env.store()).unwrap();
        fs::set_permissions(env.store(), fs::Permissions::from_mode(mode)).unwrap();
        code(&env, &["run", "before", "--", "true"]);
        let names = [env.store(), env.store().join(".onehold")];
        let files = names
            .iter()
            .filter_map(|name| fs::read_dir(name).ok())
            .flatten();
        let is_journal =
            |path: &std::path::PathBuf| path.extension().is_some_and(|end| end == "jsonl");
        let journal = files
            .map(|file| file.unwrap().path())
            .find(is_journal)
            .unwrap();
        for torn in ["{\"event\":\"end\",\"na", "{\"at\":\"2026-11-28T", "{"] {
            let whole = fs::read_to_string(&journal).unwrap();
            fs::write(&journal, whole + torn).unwrap();
            code(&env, &["run", "after", "--", "true"]);
            env.done([
                "acquire",
                "dead",
                "--pid",
                &Running::sleeper().pid().to_string(),
            ]);
            env.done(["cleanup"]);
        }
        let holds = history(&env, &["before", "after"]);
        assert_eq!(results(&holds), ["exited"; 4], "{mode:o}");
        let told = env.done(["check", "-v", "dead"]);
        assert_eq!(told.matches(" cleaned up").count(), 3, "{told}");
    }
}

/// As a systemd unit with `PathChanged=` sees it.
#[cfg(target_os = "linux")]
#[test]
fn doctor_leaves_no_trace_in_the_history() {
    use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
    let env = with_history();
    code(&env, &["run", "x", "--", "true"]);
    let journal = env.store().join(".onehold/events.jsonl");
    let before = (
        fs::read(&journal).unwrap(),
        env.done(["list", "--prometheus"]),
    );
    let watch = inotify::init(CreateFlags::NONBLOCK).unwrap();
    let flags = WatchFlags::CLOSE_WRITE
        | WatchFlags::ATTRIB
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF;
    inotify::add_watch(&watch, &journal, flags).unwrap();
    assert_eq!(code(&env, &["doctor"]), 0);
    let after = (
        fs::read(&journal).unwrap(),
        env.done(["list", "--prometheus"]),
    );
    assert_eq!(after, before);
    let woken = rustix::io::read(&watch, &mut [0; 4096]);
    assert_eq!(woken, Err(rustix::io::Errno::AGAIN));
}

#[test]
fn only_holds_of_the_time_asked_for_are_listed() {
    let env = with_history();
    code(&env, &["run", "x", "--", "true"]);
    assert_eq!(history(&env, &["--since", "1h"]).len(), 1);
    wait_until("it is older than that", || {
        history(&env, &["--since", "0.1"]).is_empty()
    });
    let mut run = start(&env, &["run", "./path.lock", "--", "sleep", "60"]);
    wait_until("it runs", || env.lock("./path.lock")["pid_alive"] == true);
    run.signal(Signal::TERM);
    assert_eq!(run.finish(), 143);
    let holds = history(&env, &["./path.lock"]);
    assert_eq!(results(&holds), ["signal"]);
    let table = env.done(["history", "./path.lock"]);
    assert!(table.starts_with("WHEN "), "{table}");
    assert!(table.ends_with(" signal 15"), "{table}");
}

#[test]
fn history_without_a_match_says_among_how_many_holds() {
    let env = with_history();
    for name in ["x", "y"] {
        code(&env, &["run", name, "--", "true"]);
    }
    // Whether holds are recorded from now on does not matter.
    for words in [
        &["history", "nosuch"][..],
        &["history", "--since", "0"],
        &["history", "--failed", "x"],
    ] {
        let told = stderr(&env.output(words));
        assert!(
            told.starts_with("onehold: no match among 2 past holds in /"),
            "{told}"
        );
        assert!(!told.contains("nothing is recorded"), "{told}");
    }
}

#[test]
fn store_has_one_history_whatever_it_is_called() {
    let env = with_history();
    code(&env, &["run", "x", "--", "true"]);
    std::os::unix::fs::symlink(env.store(), env.path("link")).unwrap();
    code(&env, &["--dir", "link", "run", "x", "--", "true"]);
    for dir in ["link", "store"] {
        for name in [&[][..], &["x"]] {
            let words = [&["--dir", dir, "history"][..], name].concat();
            let object = json_object(&env.output([&words[..], &["--json"]].concat()).stdout);
            assert_eq!(object["holds"].as_array().unwrap().len(), 2, "{words:?}");
        }
    }
}

/// Where fs.protected_hardlinks is off, a user can link a file of another one into a store.
#[test]
fn file_with_another_name_elsewhere_is_replaced_and_not_written() {
    for name in ["events.jsonl", "last", "shared"] {
        let env = with_history();
        let own = env.store().join(".onehold");
        fs::create_dir_all(&own).unwrap();
        let outside = env.write("outside", "1\n");
        fs::hard_link(&outside, own.join(name)).unwrap();
        code(&env, &["run", "--shared", "x", "--", "true"]);
        assert_eq!(fs::read_to_string(&outside).unwrap(), "1\n", "{name}");
        assert_eq!(fs::metadata(own.join(name)).unwrap().nlink(), 1, "{name}");
        assert_eq!(history(&env, &[]).len(), 1, "{name}");
    }
}

/// As `cp -al` leaves it.
#[test]
fn copy_of_a_store_that_shares_its_files_delays_nobody_and_stays_as_it_is() {
    let env = with_history();
    let number_of = |name: &str| {
        let object = json_object(
            &onehold(&env, &["acquire", name, "--ttl", "1h", "--json"])
                .output()
                .unwrap()
                .stdout,
        );
        object["hold"].as_u64().unwrap()
    };
    code(&env, &["run", "ended", "--", "true"]);
    // As after a clock that was set back: it alone does not keep numbers apart.
    let ahead = number_of("before") + 3_600_000_000;
    fs::write(env.store().join(".onehold/last"), ahead.to_le_bytes()).unwrap();
    let mut holder = env.hold(&["x"]);
    let words = [
        "run",
        "--wait",
        "1m",
        "x",
        "--",
        "sh",
        "-c",
        "echo $ONEHOLD_HOLD",
    ];
    let mut waiter = env.start_with_output(words);
    wait_until("one waits", || env.number_of_waiters("x") == 1);

    let mut copy = env.command("cp");
    assert!(
        output(
            copy.args(["-al", "store", "copy"])
                .current_dir(env.path("."))
        )
        .status
        .success()
    );
    let content = |file: &str| fs::read(env.path("copy/.onehold").join(file)).unwrap();
    let before = ["last", "events.jsonl"].map(content);
    let after_copy = number_of("after");
    assert!(after_copy > ahead, "{after_copy} {ahead}");
    env.end();
    assert_eq!(holder.finish(), 0);
    let (_, printed, _) = waiter.finish_with_output();
    let last: u64 = printed.trim().parse().unwrap();
    assert!(last > after_copy, "{last} {after_copy}");
    assert_eq!(["last", "events.jsonl"].map(content), before);
}

#[test]
#[ignore = "needs strace: apt install strace"]
fn rotation_of_the_journal_keeps_the_lines_of_8_takeovers() {
    for round in 0..3 {
        let env = TestEnv::new();
        let names: Vec<String> = (0..CONTENDERS).map(|number| format!("x{number}")).collect();
        for name in &names {
            env.create_zombie(name);
        }
        let journal = env.path("store/.onehold/events.jsonl");
        // The first of them finds it full.
        let padding = format!("{{\"padding\": \"{}\"}}\n", "x".repeat(1024 * 1024));
        fs::write(&journal, padding).unwrap();
        // Each is slow to rename the journal, so that all of them find it full.
        let takeovers = names.iter().map(|name| {
            let mut command = env.command("strace");
            command
                .args(["-f", "-qq", "-o", "/dev/null", "-P", "events.jsonl"])
                .args(["-e", "trace=rename,renameat,renameat2"])
                .args(["-e", "inject=rename,renameat,renameat2:delay_enter=500000"])
                .arg(crate::harness::program())
                .args(["acquire", name, "--ttl", "1h"]);
            command
        });
        let outputs = run_together(takeovers.collect());
        assert_eq!(sorted_codes(&outputs), [0; CONTENDERS], "round {round}");
        let mut logged = HashSet::new();
        for file in ["events.jsonl", "events.jsonl.1"] {
            let text = fs::read_to_string(journal.with_file_name(file)).unwrap_or_default();
            for line in text.lines() {
                let event: Value = serde_json::from_str(line).unwrap();
                logged.insert(event["name"].as_str().unwrap_or("padding").to_owned());
            }
        }
        assert_eq!(logged.len(), CONTENDERS + 1, "round {round}: {logged:?}");
    }
}
