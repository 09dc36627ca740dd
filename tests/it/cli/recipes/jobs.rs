//! Jobs, services, hooks and builds.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use assert_cmd::prelude::OutputAssertExt;
use predicates::str::contains;

use super::{example, executable, path_of};
use crate::harness::{Running, TestEnv, wait_until};

#[test]
fn downloader_has_three_slots_with_a_port_each() {
    let env = TestEnv::new();
    executable(
        &env,
        "fetch",
        &example("# fetch URL...: at most three downloads"),
    );
    // Logs when a port is taken and given back.
    executable(
        &env,
        "bin/curl",
        "#!/bin/sh\nmkdir port-$3 || echo $3 >>twice; ls -d port-* | wc -l >>together
        sleep 0.05; rmdir port-$3; echo $4 >>done\n",
    );
    let urls: Vec<String> = (0..12).map(|number| format!("u{number}")).collect();
    let path = env.path("bin").display().to_string();
    env.session(&format!("PATH={path}:$PATH ./fetch {}", urls.join(" ")))
        .assert()
        .success();
    assert!(!env.path("twice").exists(), "a port was used twice");
    let read = |name: &str| fs::read_to_string(env.path(name)).unwrap();
    let together = read("together");
    let most = together
        .lines()
        .map(|line| line.trim().parse::<u32>().unwrap());
    assert_eq!(most.max(), Some(3));
    assert_eq!(read("done").lines().count(), 12);
}

#[test]
fn reports_run_side_by_side_and_the_rebuild_alone() {
    let env = TestEnv::new();
    let lines = example("warehouse");
    let command = |kind: &str| {
        let line = lines.lines().find(|line| line.contains(kind)).unwrap();
        let (_, command) = line.split_once("onehold ").unwrap();
        let script = format!(
            "sh -c 'echo begin {kind} >>log; until test -e {kind}.end; do sleep 0.01; done; \
             echo end {kind} >>log'"
        );
        format!(
            "onehold {}",
            command.replace(&format!("/usr/local/bin/{kind}"), &script)
        )
    };
    let count = |text: &str| {
        let log = fs::read_to_string(env.path("log")).unwrap_or_default();
        log.lines().filter(|line| *line == text).count()
    };
    let first = Running::start(env.session(&command("report")));
    let second = Running::start(env.session(&command("report")));
    wait_until("both reports run", || count("begin report") == 2);
    let rebuild = Running::start(env.session(&command("rebuild")));
    env.wait_for_waiter("warehouse");
    let late = Running::start(env.session(&command("report")));
    wait_until("the late report waits", || {
        env.lock("warehouse")["waiters"].as_array().unwrap().len() == 2
    });
    fs::write(env.path("report.end"), "").unwrap();
    wait_until("the rebuild runs", || count("begin rebuild") == 1);
    assert_eq!((count("end report"), count("begin report")), (2, 2));
    fs::write(env.path("rebuild.end"), "").unwrap();
    for mut run in [first, second, rebuild, late] {
        assert_eq!(run.finish(), 0);
    }
    assert_eq!(count("end report"), 3);
}

/// A job that leaves a line in the history.
fn job(env: &TestEnv, words: &str) -> Command {
    let mut command = env.onehold(words.split(' '));
    command.env("ONEHOLD_HISTORY", "1");
    command
}

/// Lets a job end in this way.
fn end_job(env: &TestEnv, end: &str) {
    let run = |words: &str| drop(job(env, words).output().unwrap());
    let start = |words: &str| {
        let run = Running::start(job(env, words));
        wait_until("its command runs", || env.lock("job")["pid_alive"] == true);
        run
    };
    match end {
        "exit 0" => run("run job -- true"),
        "exit 3" => run("run job -- ./exits"),
        "signal 9" => run("run job -- ./killed"),
        "time-limit" => run("run --time-limit 0.2 job -- ./handles-term"),
        "caller-exited" => {
            let mut caller = Running::sleeper();
            let words = format!("run --die-with {} job -- ./handles-term", caller.pid());
            let mut job = start(&words);
            caller.kill();
            job.finish();
        }
        "not-started" => run("run job -- no-such-command"),
        "released" => {
            run("acquire job --ttl 1h --owner o");
            env.done(["release", "job", "--owner", "o"]);
        }
        "kept" => {
            run("run job --hold-at-least 0.2 -- true");
            run("run -w 60 job -- true");
        }
        "broken" => {
            let mut job = start("run job -- ./handles-term");
            env.done(["break", "job", "--yes"]);
            job.finish();
        }
        "lost" => {
            let mut job = start("run job -- ./handles-term");
            fs::remove_file(env.store().join("job.lock")).unwrap();
            job.finish();
        }
        "taken-over" => {
            let mut holder = Running::sleeper();
            run(&format!("acquire job --pid {}", holder.pid()));
            holder.kill();
            run("run job -- true");
        }
        _ => {
            assert_eq!(end, "expired");
            run("acquire job --ttl 0.1");
            wait_until("it has expired", || env.check("job") == 5);
            run("run job -- true");
        }
    }
}

#[test]
fn each_job_that_fails_is_mailed_once() {
    let env = TestEnv::new();
    let script = example("# /usr/local/bin/onehold-told DIRECTORY");
    executable(&env, "onehold-told", &script);
    let mail = "#!/bin/sh\n{ echo \"mail $*\"; cat; } >> sent\n";
    executable(&env, "bin/mail", mail);
    let handles_term = "trap 'exit 0' TERM; while :; do sleep 0.05; done";
    let programs = ["exits", "killed", "handles-term"];
    for (name, text) in programs
        .into_iter()
        .zip(["exit 3", "kill -9 $$", handles_term])
    {
        executable(&env, name, &format!("#!/bin/sh\n{text}\n"));
    }
    fs::create_dir(env.path("told")).unwrap();
    // What it sends when it is called, and called again.
    let mails = || {
        let path = env.path("bin").display().to_string();
        for _ in 0..2 {
            let script = format!("PATH={path}:$PATH ./onehold-told told");
            env.session(&script).assert().success();
        }
        let sent = env.path("told/sent");
        let text = fs::read_to_string(&sent).unwrap_or_default();
        let _ = fs::remove_file(sent);
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    for end in ["exit 0", "released", "kept"] {
        end_job(&env, end);
    }
    assert_eq!(mails(), Vec::<String>::new());
    for end in [
        "exit 3",
        "signal 9",
        "time-limit",
        "caller-exited",
        "not-started",
        "broken",
        "lost",
        "taken-over",
        "expired",
    ] {
        end_job(&env, end);
        let mails = mails();
        assert_eq!(mails.len(), 2, "{end}: {mails:?}");
        assert!(mails[0].starts_with("mail -s locks on "), "{mails:?}");
        let is_it = mails[1].contains(" job ") && mails[1].ends_with(&format!(" {end}"));
        assert!(is_it, "{mails:?}");
    }
}

#[test]
fn build_ends_with_the_tool_whose_shell_has_started_it() {
    let env = TestEnv::new();
    executable(
        &env,
        "bin/make",
        "#!/bin/sh\necho $$ > made\nexec sleep 1000\n",
    );
    executable(
        &env,
        "build",
        &format!("#!/bin/sh\n{}", example("--die-with $PPID")),
    );
    // The tool; its shell is another process, and outlives it.
    let mut tool = env.shell("setsid ./build & wait");
    let path = format!("{}:{}", env.path("bin").display(), path_of(&tool));
    tool.env("PATH", path);
    let mut tool = Running::start(tool);
    wait_until("the build has begun", || env.lines("made") == 1);
    tool.kill();
    wait_until("the lock is free", || env.check("build") == 0);
    let build = format!("/proc/{}/status", env.pid_in("made"));
    let status = fs::read_to_string(build).unwrap_or_default();
    assert!(status.is_empty() || status.contains("(zombie)"), "{status}");
}

/// A repository with the hook, whose index is rebuilt once there is a file `end`. Commits wait for their hook.
fn repository(env: &TestEnv, name: &str) -> std::path::PathBuf {
    let hook = format!("{name}/hook");
    executable(env, &hook, &format!("{}wait\n", example("post-commit")));
    let rebuild = "#!/bin/sh\necho >> began\nwhile test -e began && ! test -e end; do sleep 0.01; done\necho >> rebuilt\n";
    executable(env, &format!("{name}/rebuild-index"), rebuild);
    let mut git = env.command("git");
    git.args(["init", "-q", name]).assert().success();
    // Where the locks of the project are.
    symlink(env.store(), env.path(&format!("{name}/.git/onehold"))).unwrap();
    fs::create_dir_all(env.store()).unwrap();
    env.path(name).canonicalize().unwrap()
}

fn commit(env: &TestEnv, repository: &std::path::Path) -> std::process::Command {
    let mut hook = env.command(repository.join("hook"));
    hook.current_dir(repository);
    hook
}

#[test]
fn index_is_rebuilt_once_after_all_the_commits_that_came_meanwhile() {
    let env = TestEnv::new();
    let repository = repository(&env, "one");
    let name = format!("index{}", repository.display());
    env.write("one/end", "");
    let mut holder = env.hold(&[&name]);
    let mut commits: Vec<Running> = (0..8)
        .map(|_| Running::start(commit(&env, &repository)))
        .collect();
    wait_until("one waits, and the others are over", || {
        let over = commits
            .iter_mut()
            .filter_map(|commit| commit.has_ended().then_some(()));
        env.number_of_waiters(&name) == 1 && over.count() == 7
    });
    assert_eq!(env.lines("one/rebuilt"), 0);
    env.end();
    holder.finish();
    for mut commit in commits {
        assert_eq!(commit.finish(), 0);
    }
    assert_eq!(env.lines("one/rebuilt"), 1);
}

#[test]
fn indexes_of_two_repositories_are_rebuilt_at_once_and_nobody_who_reads_the_output_waits() {
    let env = TestEnv::new();
    let mut both = Vec::new();
    for name in ["one", "two"] {
        let repository = repository(&env, name);
        both.push(Running::start(commit(&env, &repository)));
        wait_until("it is being rebuilt", || {
            env.lines(&format!("{name}/began")) == 1
        });
        // As git starts it: without the `wait` of this test, and with a reader of its output.
        executable(&env, &format!("{name}/hook"), &example("post-commit"));
        let reader = format!("cd {name}; ./hook | cat > read");
        let mut reader = Running::start(env.session(&reader));
        wait_until("the reader is done", || reader.has_ended());
        assert_eq!(env.lines(&format!("{name}/read")), 0);
        assert_eq!(env.lines(&format!("{name}/rebuilt")), 0);
    }
    for name in ["one", "two"] {
        env.write(&format!("{name}/end"), "");
    }
    for mut commit in both {
        assert_eq!(commit.finish(), 0);
    }
    wait_until("the second commits are in", || {
        ["one", "two"]
            .iter()
            .all(|name| env.lines(&format!("{name}/rebuilt")) == 2)
    });
}

#[test]
fn wait_that_is_cut_off_goes_on_where_it_stood() {
    let env = TestEnv::new();
    // A wait of a second instead of minutes.
    let config = example("wait-limit").replace("100s", "300ms");
    let short = env.write("short.toml", &config);
    let long = env.write("long.toml", config.replace("300ms", "1h"));
    executable(&env, "bin/make", "#!/bin/sh\necho $SESSION >> built\n");
    let call = |session: &str, config: &std::path::Path| {
        let mut command = env.shell(&example("--keep-place 10m build"));
        let path = format!("{}:{}", env.path("bin").display(), path_of(&command));
        command.env("PATH", path).env("ONEHOLD_CONFIG", config);
        command.env("SESSION", session);
        command
    };
    let mut holder = env.hold(&["build"]);
    for session in ["s-1", "s-2"] {
        let told = contains("is kept for 10m");
        call(session, &short).assert().code(7).stderr(told);
    }
    // They come again in the other order.
    let second = Running::start(call("s-2", &long));
    wait_until("it waits", || env.number_of_waiters("build") == 1);
    let first = Running::start(call("s-1", &long));
    wait_until("it waits", || env.number_of_waiters("build") == 2);
    env.end();
    holder.finish();
    for mut call in [first, second] {
        assert_eq!(call.finish(), 0);
    }
    let built = fs::read_to_string(env.path("built")).unwrap();
    assert_eq!(built, "s-1\ns-2\n");
}

#[test]
fn service_that_is_restarted_takes_its_lock_under_its_own_name() {
    let env = TestEnv::new();
    let seen = "#!/bin/sh\ncat store/data.lock > seen\n";
    executable(&env, "bin/migrate", seen);
    let mut command = env.shell(&example("ONEHOLD_INSTANCE="));
    let path = format!("{}:{}", env.path("bin").display(), path_of(&command));
    command.env("PATH", path).env("HOSTNAME", "db-0");
    command.assert().success();
    let record = fs::read_to_string(env.path("seen")).unwrap();
    assert!(
        record.contains("\"instance\": \"db-0-migrate\""),
        "{record}"
    );
    assert_eq!(env.check("data"), 0);
}

#[test]
fn deployment_has_both_locks() {
    let env = TestEnv::new();
    executable(
        &env,
        "deploy.sh",
        "#!/bin/sh\nonehold check db; onehold check cache\n",
    );
    let output = env
        .session(&format!("CI_COMMIT=4711; {}", example("./deploy.sh")))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for name in ["db", "cache"] {
        assert!(
            text.contains(&format!("`{name}` is held by process ")),
            "{text}"
        );
    }
    assert!(text.contains("\"deploy 4711\""), "{text}");
}

/// A process that stays, gives its PID in a variable, and runs each line of its stdin in a shell of its own.
const TOOL: &str = "import os, subprocess, sys\n\
    os.environ['TOOL_PID'] = str(os.getpid())\n\
    for line in sys.stdin: subprocess.run(['sh', '-c', line])\n\
    subprocess.run(['onehold', 'check', '-q', 'build'])\n";

#[test]
#[ignore = "needs python3: apt install python3"]
fn tool_with_a_shell_for_each_command_keeps_its_lock() {
    for (marker, holder, times) in [
        ("--pid \"$TOOL_PID\"", "(python3) of s-1", 1),
        ("acquire build --ttl 1h", "a lease of s-1", 2),
    ] {
        let env = TestEnv::new();
        executable(
            &env,
            "bin/make",
            "#!/bin/sh\nonehold check build > said; echo $? >> seen\n",
        );
        let mut tool = assert_cmd::Command::from_std({
            let mut command = env.command("python3");
            let path = format!("{}:{}", env.path("bin").display(), path_of(&command));
            command.args(["-c", TOOL]).env("PATH", path);
            command
        });
        tool.env("SESSION", "s-1")
            .write_stdin(example(marker))
            .assert()
            .success();
        let seen = fs::read_to_string(env.path("seen")).unwrap();
        assert_eq!(seen, "6\n".repeat(times), "{marker}");
        let said = fs::read_to_string(env.path("said")).unwrap();
        assert!(said.contains(holder), "{said}");
        assert_eq!(env.left_in_store(), [""; 0]);
    }
}
