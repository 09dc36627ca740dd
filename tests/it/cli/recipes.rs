//! Runs the recipes of the README and of onehold-recipes(7).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use assert_cmd::prelude::OutputAssertExt;
use predicates::str::contains;

use crate::harness::{Running, Signal, TestEnv, send, wait_until};

const README: &str = include_str!("../../../README.md");

/// The shell block of the README that contains this line.
fn recipe(line: &str) -> String {
    README
        .split("```sh\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .find(|block| block.contains(line))
        .expect(line)
        .to_owned()
}

const RECIPES: &str = include_str!("../../../man/onehold-recipes.7");
const FLOCK: &str = include_str!("../../../man/onehold-flock.7");

/// The examples of a man page.
fn examples(page: &str) -> Vec<String> {
    let plain = page
        .replace("\\&", "")
        .replace("\\-", "-")
        .replace("\\(dq", "\"")
        .replace("\\(aq", "'")
        .replace("\\e", "\\");
    plain
        .split(".EX\n")
        .skip(1)
        .filter_map(|rest| rest.split(".EE").next().map(str::to_owned))
        .collect()
}

/// The example of onehold-recipes(7) that contains this text.
fn example(text: &str) -> String {
    let mut all = examples(RECIPES).into_iter();
    all.find(|block| block.contains(text)).expect(text)
}

fn executable(env: &TestEnv, name: &str, text: &str) {
    let path = env.write(name, text);
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The script `prodigy-once` of the README, and a fake prodigy that runs until the file `end` exists.
fn wrapped_prodigy() -> TestEnv {
    let env = TestEnv::new();
    executable(&env, "prodigy-once", &recipe("# prodigy-once resume ID"));
    executable(
        &env,
        "bin/prodigy",
        "#!/bin/sh\necho $$ $* >> started\nuntil test -e end; do sleep 0.01; done\n",
    );
    // As prodigy lays its files out: the events of each job below its session.
    for job in [JOB, "mapreduce-20251101_093000"] {
        env.write(
            &format!(".prodigy/events/{SESSION}/{job}/events-1.jsonl"),
            "",
        );
    }
    env.write(
        ".prodigy/events/session-8/mapreduce-20261130_100000/events-1.jsonl",
        "",
    );
    env
}

const SESSION: &str = "session-7";

/// The last job of that session.
const JOB: &str = "mapreduce-20261120_101500";

fn resume(env: &TestEnv, id: &str) -> String {
    prodigy_once(env, &format!("resume {id}"))
}

fn prodigy_once(env: &TestEnv, words: &str) -> String {
    let path = env.path("bin").display().to_string();
    format!("PATH={path}:$PATH ./prodigy-once {words}")
}

#[test]
fn resume_job_is_wrapped_as_resume_is() {
    let env = wrapped_prodigy();
    let job = format!("resume-job {JOB} --force");
    let mut running = Running::start(env.session(&prodigy_once(&env, &job)));
    wait_until("prodigy has started", || env.path("started").exists());
    for words in [resume(&env, SESSION), prodigy_once(&env, &job)] {
        env.session(&words).assert().code(6);
    }
    env.write("end", "");
    assert_eq!(running.finish(), 0);
    let started = fs::read_to_string(env.path("started")).unwrap();
    let started: Vec<&str> = started.lines().collect();
    assert!(
        started.len() == 1 && started[0].ends_with(&job),
        "{started:?}"
    );
}

#[test]
fn resume_is_refused_beside_a_file_that_cannot_be_read() {
    let env = wrapped_prodigy();
    let file = format!(".prodigy/resume_locks/{JOB}.lock");
    let path = env.write(&file, "garbage");
    let path = path.display();
    env.session(&resume(&env, SESSION))
        .assert()
        .code(6)
        .stderr(format!(
            "onehold: `{JOB}` is not a lock: unrecognized file content\n  left unchanged; onehold \
             only removes locks: if no program needs it, run `rm {path}`\n"
        ));
    assert!(!env.path("started").exists());
}

#[test]
fn resumes_by_session_id_and_job_id_exclude_each_other() {
    for (first, second) in [(SESSION, JOB), (JOB, SESSION)] {
        let env = wrapped_prodigy();
        let mut running = Running::start(env.session(&resume(&env, first)));
        wait_until("prodigy has started", || env.path("started").exists());
        env.session(&resume(&env, second))
            .assert()
            .code(6)
            .stderr(contains(format!(
                "onehold: `prodigy/{JOB}` is held by process "
            )));
        fs::write(env.path("end"), "").unwrap();
        assert_eq!(running.finish(), 0);
        env.session(&resume(&env, second)).assert().success();
        let started = fs::read_to_string(env.path("started")).unwrap();
        assert_eq!(started.lines().count(), 2, "{started}");
    }
}

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
fn file_of_metrics_is_replaced_whole() {
    let env = TestEnv::new();
    env.done(["acquire", "x", "--ttl", "1h"]);
    let script = example("--prometheus");
    executable(&env, "bin/onehold-metrics", &script);
    fs::create_dir(env.path("collector")).unwrap();
    for _ in 0..2 {
        let script = env.path("bin/onehold-metrics");
        env.command(script).arg("collector").assert().success();
        let written = fs::read_dir(env.path("collector")).unwrap();
        let names: Vec<_> = written.map(|file| file.unwrap().file_name()).collect();
        assert_eq!(names, ["onehold.prom"]);
    }
    let text = fs::read_to_string(env.path("collector/onehold.prom")).unwrap();
    assert!(text.contains("onehold_lock_held{name=\"x\","), "{text}");
    // Each metric of an alert is there.
    for line in example("alert: LockOverdue").lines() {
        for word in line.split(|char: char| !(char.is_alphanumeric() || char == '_')) {
            let is_written = text.contains(&format!("# TYPE {word} gauge\n"));
            assert!(
                is_written || !word.starts_with("onehold_"),
                "{word}: {text}"
            );
        }
    }
}

#[test]
#[ignore = "needs promtool, of the package prometheus"]
fn alerts_are_valid() {
    let env = TestEnv::new();
    env.write("rules.yml", example("alert: LockOverdue"));
    let mut promtool = env.command("promtool");
    let checked = promtool.args(["check", "rules", "rules.yml"]);
    checked.assert().success().stdout(contains("5 rules found"));
}

#[test]
#[ignore = "needs systemd-analyze: apt install systemd"]
fn units_are_valid() {
    let env = TestEnv::new();
    let mut files = Vec::new();
    for unit in examples(RECIPES) {
        let Some(name) = unit
            .strip_prefix("# /etc/systemd/system/")
            .and_then(|rest| rest.lines().next())
        else {
            continue;
        };
        // The programs that it starts are not here.
        let program = crate::harness::program();
        let text = unit
            .replace("/usr/bin/onehold", program.to_str().unwrap())
            .replace("/usr/local/bin/onehold-told", "/bin/true")
            .replace("/usr/local/bin/onehold-metrics", "/bin/true");
        files.push(env.write(name, text));
    }
    assert!(files.len() >= 7, "{files:?}");
    let mut verify = env.command("systemd-analyze");
    verify
        .args(["verify", "--man=no", "--recursive-errors=no"])
        .args(&files);
    verify.assert().success().stderr("");
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

#[test]
fn concurrent_resumes_start_prodigy_once() {
    let env = wrapped_prodigy();
    let both: Vec<Running> = [SESSION, JOB]
        .map(|id| Running::start(env.session(&resume(&env, id))))
        .into();
    wait_until("prodigy has started", || env.path("started").exists());
    let mut both = both;
    wait_until("one is refused", || both.iter_mut().any(Running::has_ended));
    let started = fs::read_to_string(env.path("started")).unwrap();
    assert_eq!(started.lines().count(), 1, "{started}");
    fs::write(env.path("end"), "").unwrap();
    let mut codes: Vec<_> = both.into_iter().map(|mut run| run.finish()).collect();
    codes.sort_unstable();
    assert_eq!(codes, [0, 6]);
}

#[test]
fn script_finds_resume_started_without_it() {
    let env = wrapped_prodigy();
    let other = Running::sleeper();
    let host = hostname::get().unwrap().into_string().unwrap();
    let lock = |locked: &str, pid: u32, host: &str, age: chrono::TimeDelta| {
        let then = (chrono::Utc::now() - age).to_rfc3339();
        env.write(
            &format!(".prodigy/resume_locks/{locked}.lock"),
            format!(
                "{{\n  \"job_id\": \"{locked}\",\n  \"process_id\": {pid},\n  \"hostname\": \"{host}\",\n  \"acquired_at\": \"{then}\"\n}}",
            ),
        )
    };
    // prodigy locks what it was given, and the job.
    for locked in [JOB, SESSION] {
        let path = lock(locked, other.pid(), &host, chrono::TimeDelta::zero());
        for id in [JOB, SESSION] {
            env.session(&resume(&env, id))
                .assert()
                .code(6)
                .stderr(contains(format!("held by process {}", other.pid())));
        }
        fs::remove_file(path).unwrap();
    }
    assert!(!env.path("started").exists());
    // A container that is gone does not block for good.
    lock(JOB, other.pid(), "gone", chrono::TimeDelta::hours(25));
    let mut resumed = Running::start(env.session(&resume(&env, SESSION)));
    wait_until("prodigy has started", || env.path("started").exists());
    env.write("end", "");
    assert_eq!(resumed.finish(), 0);
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

fn path_of(command: &std::process::Command) -> String {
    let (_, path) = command
        .get_envs()
        .find(|(name, _)| *name == "PATH")
        .unwrap();
    path.unwrap().to_str().unwrap().to_owned()
}

type Program = fn(&TestEnv, &str) -> std::process::Command;

/// Programs in other languages, by a line of their recipe: how they are started, with the recipe and a part that
/// uses it, which is told what to do.
const LANGUAGES: [(&str, Program); 3] = [
    ("class Lost(Exception)", python),
    ("async function withLock", node),
    ("func WithLock(", go),
];

fn python(env: &TestEnv, recipe: &str) -> std::process::Command {
    let main = r#"
import sys, time
def count():
    with lock("count", "-w", "1h"):
        number = int(open("number").read())
        time.sleep(0.001)
        open("number", "w").write(str(number + 1))
def work():
    with lock("x") as number:
        open("held", "w").write(f"{number}\n")
        time.sleep(float(sys.argv[2]))
if sys.argv[1] == "count":
    for _ in range(10): count()
else: work()
"#;
    env.write("program.py", format!("{recipe}{main}"));
    let mut command = env.command("python3");
    command.arg("program.py");
    command
}

fn node(env: &TestEnv, recipe: &str) -> std::process::Command {
    let main = r"
const fs = require('node:fs');
const sleep = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));
async function count() {
  await withLock('count', ['-w', '1h'], async () => {
    const number = Number(fs.readFileSync('number'));
    await sleep(0.001);
    fs.writeFileSync('number', String(number + 1));
  });
}
async function main([what, seconds]) {
  if (what === 'count') { for (let i = 0; i < 10; i++) await count(); return; }
  await withLock('x', [], async (number, lost) => {
    fs.writeFileSync('held', `${number}\n`);
    await Promise.race([sleep(seconds), new Promise((done) => lost.addEventListener('abort', done))]);
  });
}
main(process.argv.slice(2)).then(() => process.exit(0), (error) => { console.error(error.message); process.exit(1); });
";
    env.write("program.js", format!("{recipe}{main}"));
    let mut command = env.command("node");
    command.arg("program.js");
    command
}

fn go(env: &TestEnv, recipe: &str) -> std::process::Command {
    let main = r#"package main
import ("fmt"; "os"; "strconv"; "time"; "onehold")
func count(int64) error {
	text, _ := os.ReadFile("number")
	number, err := strconv.Atoi(string(text))
	time.Sleep(time.Millisecond)
	os.WriteFile("number", []byte(strconv.Itoa(number + 1)), 0600)
	return err
}
func work(hold int64) error {
	os.WriteFile("held", []byte(fmt.Sprintln(hold)), 0600)
	seconds, err := strconv.Atoi(os.Args[2])
	time.Sleep(time.Duration(seconds) * time.Second)
	return err
}
func main() {
	var err error
	if os.Args[1] == "count" {
		for i := 0; i < 10 && err == nil; i++ { err = onehold.WithLock("count", count, "-w", "1h") }
	} else { err = onehold.WithLock("x", work) }
	if err != nil { fmt.Fprintln(os.Stderr, err); os.Exit(1) }
}
"#;
    let program = env.path("program");
    if !program.exists() {
        env.write("go/src/onehold/onehold.go", recipe);
        env.write("go/src/main/main.go", main);
        let mut build = env.command("go");
        build.args(["build", "-o"]).arg(&program).arg("main");
        build
            .env("GO111MODULE", "off")
            .env("GOPATH", env.path("go"));
        // Compiled once for all tests.
        let cache = std::env::temp_dir().join("onehold-test-go-cache");
        build.env("GOCACHE", cache).assert().success();
    }
    env.command(program)
}

#[test]
#[ignore = "needs python3, node and go: apt install python3 nodejs golang-go"]
fn programs_in_other_languages_exclude_each_other() {
    let env = TestEnv::new();
    env.write("number", "0");
    let mut all: Vec<Running> = (0..9)
        .map(|number| {
            let (line, program) = LANGUAGES[number % 3];
            let mut command = program(&env, &example(line));
            command.arg("count");
            Running::start_with_output(command)
        })
        .collect();
    for running in &mut all {
        let (code, _, err) = running.finish_with_output();
        assert_eq!(code, 0, "{err}");
    }
    assert_eq!(fs::read_to_string(env.path("number")).unwrap(), "90");
}

#[test]
#[ignore = "needs python3, node and go: apt install python3 nodejs golang-go"]
fn programs_in_other_languages_are_refused_lose_the_lock_and_free_it_when_they_are_killed() {
    for (line, program) in LANGUAGES {
        let env = TestEnv::new();
        let work = |seconds: &str| {
            let mut command = program(&env, &example(line));
            command.args(["work", seconds]);
            command
        };
        let _ = fs::remove_file(env.path("held"));
        let mut holder = Running::start(work("1000"));
        wait_until("it holds the lock", || env.lines("held") == 1);
        let refused = work("0").output().unwrap();
        assert!(!refused.status.success());
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(told.contains("`x` is held by process "), "{line}: {told}");
        holder.kill();
        wait_until("the lock is free", || env.check("x") == 0);
        fs::remove_file(env.path("held")).unwrap();
        let mut loser = Running::start_with_output(work("1"));
        wait_until("it holds the lock", || env.lines("held") == 1);
        env.done(["break", "x", "--yes"]);
        let (code, _, told) = loser.finish_with_output();
        assert_eq!(code, 1, "{line}");
        assert!(
            told.contains("ost") && told.contains('x') || told.contains("was broken"),
            "{line}: {told}"
        );
    }
}

#[test]
#[ignore = "needs bash"]
fn script_in_bash_holds_a_lock_by_a_coprocess() {
    let env = TestEnv::new();
    executable(
        &env,
        "import",
        "#!/bin/sh\necho \"$@\" > words; onehold check -q import; echo $? > code\n",
    );
    let script = example("coproc LOCK") + "wait; onehold check -q import; echo $?\n";
    let mut bash = env.command("bash");
    bash.args(["-c", &script]).assert().success().stdout("0\n");
    assert!(
        fs::read_to_string(env.path("words"))
            .unwrap()
            .starts_with("--hold 1")
    );
    assert_eq!(fs::read_to_string(env.path("code")).unwrap(), "6\n");
}

#[test]
#[ignore = "needs python3: apt install python3"]
fn memory_lock_in_python_is_a_context_manager_and_a_decorator() {
    let env = TestEnv::new();
    fs::create_dir(env.path("memory")).unwrap();
    let program = example("class LockError")
        + "\n@with_lock('write:tasks.json')\n\
           def write():\n    print(status()['holder']['operation'], status()['we_hold_it'])\n\
           write()\n\
           print(status()['locked'])\n\
           try:\n    with acquire('fails'):\n        raise ValueError\n\
           except ValueError:\n    print(status()['locked'])\n";
    let mut python = env.command("python3");
    python
        .args(["-c", &program])
        .assert()
        .success()
        .stdout("write:tasks.json True\nFalse\nFalse\n");
    let holder = Running::sleeper();
    env.onehold(["--profile", "memory", "acquire", "-m", "busy", "--pid"])
        .arg(holder.pid().to_string())
        .assert()
        .success();
    let refused = example("class LockError") + "\nwith acquire('x', 0.1): pass\n";
    let mut python = env.command("python3");
    python.args(["-c", &refused]).assert().code(1).stderr(contains(
        "LockError: Could not acquire lock within 0.1s. Held by session 'unknown' for operation 'busy'",
    ));
}

#[test]
#[ignore = "needs python3: apt install python3"]
fn python_processes_exclude_each_other() {
    let env = TestEnv::new();
    fs::create_dir(env.path("memory")).unwrap();
    let program = example("class LockError")
        + "\nfor _ in range(10):\n    with acquire('count', 1000):\n        \
             n = int(open('n').read()) if os.path.exists('n') else 0\n        \
             open('n', 'w').write(str(n + 1))\n";
    let mut all: Vec<Running> = (0..8)
        .map(|_| {
            let mut python = env.command("python3");
            python.args(["-c", &program]);
            Running::start_with_output(python)
        })
        .collect();
    for mut python in all.drain(..) {
        let (code, _, err) = python.finish_with_output();
        assert_eq!(code, 0, "{err}");
    }
    assert_eq!(fs::read_to_string(env.path("n")).unwrap(), "80");
}

#[test]
#[ignore = "needs jq: apt install jq"]
fn sprint_functions_acquire_check_and_release() {
    let env = TestEnv::new();
    let script = example("sprint_acquire()")
        + "sprint_acquire . s-1 epic5 || exit 9\n\
           sprint_check . | jq -c '[.exists, .session_id, .epic_spec, .is_zombie]'\n\
           onehold --profile sprint acquire --pid 1 --owner s-2 -m epic6; echo $?\n\
           sprint_release . s-1; echo $?\n\
           sprint_check . | jq .exists\n";
    env.session(&script)
        .assert()
        .success()
        .stdout("[true,\"s-1\",\"epic5\",false]\n6\n0\nfalse\n")
        .stderr(contains("Sprint already running (PID: "));
}

#[test]
fn runner_keeps_its_section_between_two_tasks() {
    let env = TestEnv::new();
    executable(&env, "work", &example("# work RUNNER SECTION TASK..."));
    executable(
        &env,
        "do-task",
        "#!/bin/sh\necho $1 $3 >> log\nuntil test -e \"$1-$3\"; do sleep 0.01; done\n",
    );
    let has_line = |line: &str| {
        let log = fs::read_to_string(env.path("log")).unwrap_or_default();
        log.lines().any(|logged| logged == line)
    };
    let mut a = Running::start(env.session("./work A backend task-1 task-2"));
    wait_until("A works", || has_line("A task-1"));
    let mut b = Running::start(env.session("./work B backend task-2"));
    env.wait_for_waiter("backend");
    env.write("A-task-1", "");
    wait_until("A goes on", || has_line("A task-2"));
    assert!(!has_line("B task-2"));
    env.write("B-task-2", "");
    env.write("A-task-2", "");
    assert_eq!(a.finish(), 0);
    assert_eq!(b.finish(), 0);
    let log = fs::read_to_string(env.path("log")).unwrap();
    assert_eq!(log, "A task-1\nA task-2\nB task-2\n");
}

/// PowerShell itself is not everywhere.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn powershell_recipe_parses() {
    let mut parser = tree_sitter::Parser::new();
    let grammar = tree_sitter_powershell::LANGUAGE.into();
    parser.set_language(&grammar).unwrap();
    let mut is_valid = |text: &str| !parser.parse(text, None).unwrap().root_node().has_error();
    let recipe = example("Invoke-WithLock");
    assert!(is_valid(&recipe));
    assert!(!is_valid(&recipe.replacen('}', "", 1)));
}

/// What takes the place of handling memory/.lock as a file, in a shell that has no ConvertFrom-Json.
#[test]
fn memory_lock_without_a_program_of_its_own_is_checked_acquired_renewed_released_and_broken() {
    let env = TestEnv::new();
    let (_, table) = RECIPES.split_once("as a file, in the workspace").unwrap();
    let (table, _) = table.split_once(".SH").unwrap();
    let lines: Vec<String> = table
        .replace("\\-", "-")
        .lines()
        .filter_map(|line| Some(line.split_once("onehold --profile memory ")?.1.to_owned()))
        .map(|words| words.split(" | ").next().unwrap().replace("$PID", "$$"))
        .collect();
    assert_eq!(lines.len(), 7, "{lines:?}");
    let script: Vec<String> = lines
        .iter()
        .map(|words| {
            format!("onehold --profile memory {words} >>out && test -e memory/.lock; echo $?\n")
        })
        .collect();
    // Free, free, acquired, renewed, released, cleaned up, nothing to break.
    env.shell(&script.concat())
        .assert()
        .success()
        .stdout("1\n1\n0\n0\n1\n1\n3\n");
}

/// The recipes of other programs: each line with a program that does nothing.
#[test]
fn commands_under_the_locks_of_other_programs_run() {
    let env = TestEnv::new();
    fs::create_dir(env.path("memory")).unwrap();
    for program in ["resume-it-myself", "sprint.sh", "write-tasks", "import"] {
        executable(&env, program, "#!/bin/sh\necho \"$ONEHOLD_NAME\" >> ran\n");
    }
    for marker in [
        "--profile prodigy list",
        "--profile sprint run",
        "--profile memory run",
        "--format pid",
    ] {
        env.session(&format!("set -e\nSESSION=s-1\n{}", example(marker)))
            .assert()
            .success();
    }
    let ran = fs::read_to_string(env.path("ran")).unwrap();
    assert_eq!(
        ran,
        "mapreduce-1234567890\n./.sprint-running\n./memory/.lock\n./import.pid\n"
    );
}

/// Lines of flock(1) that wait as long as it takes.
const WAITING: [&str; 3] = ["flock job.lock ./job", "flock job.lock -c", "flock 9\n"];

/// Runs a script of onehold-flock(7): alone, or while an earlier one is at work. Returns the exit code,
/// stdout, and which jobs were done in all.
fn flock_script(script: &str, is_held: bool) -> ((Option<i32>, String, Vec<String>), String) {
    let env = TestEnv::new();
    executable(
        &env,
        "job",
        "#!/bin/sh\nrm first 2>/dev/null && first=yes\necho did $1\necho $1 >> log\n\
         test \"$first\" && until test -e end; do sleep 0.01; done\nexit 3\n",
    );
    executable(&env, "script", &format!("#!/bin/sh\n{script}"));
    let first = is_held.then(|| {
        env.write("first", "");
        let first = Running::start(env.session("./script"));
        wait_until("the first one is at work", || env.path("log").exists());
        first
    });
    let waits = script.contains("forever") || WAITING.iter().any(|line| script.contains(line));
    if waits {
        env.write("end", "");
    }
    let output = env.session("./script").output().unwrap();
    env.write("end", "");
    if let Some(mut first) = first {
        assert_eq!(first.finish(), 3, "{script}");
    }
    let log = fs::read_to_string(env.path("log")).unwrap();
    let mut jobs: Vec<String> = log.lines().map(str::to_owned).collect();
    // After `flock -u` and `release` nothing orders them.
    jobs.sort();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    ((output.status.code(), stdout, jobs), stderr)
}

#[test]
fn each_script_does_what_its_equivalent_with_flock_does() {
    let examples = examples(FLOCK);
    let pairs: Vec<(&String, &String)> = examples
        .chunks_exact(2)
        .map(|pair| (&pair[0], &pair[1]))
        .take_while(|(theirs, _)| theirs.contains("flock"))
        .collect();
    assert_eq!(pairs.len(), 11);
    for (theirs, ours) in pairs {
        assert!(
            ours.contains("onehold") && !theirs.contains("onehold"),
            "{ours}"
        );
        for is_held in [false, true] {
            let (expected, _) = flock_script(theirs, is_held);
            let (found, said) = flock_script(ours, is_held);
            assert_eq!(found, expected, "{is_held}: {theirs}{ours}{said}");
        }
    }
}

/// The work of a script that locks itself, for as long as there is no file `end`. Says so if another one is there.
const ALONE: &str = "#!/bin/sh\nmkdir alone || echo >> twice\necho $$ >> jobs\n\
    while test -e jobs && ! test -e end; do sleep 0.01; done\nrmdir alone\n";

/// The scripts of the flock page and of the README that lock themselves.
fn scripts_that_lock_themselves() -> Vec<String> {
    let scripts = examples(FLOCK).into_iter();
    let mut scripts: Vec<String> = scripts
        .filter(|text| text.contains("check --mine"))
        .collect();
    scripts.push(recipe("onehold check --mine nightly"));
    assert_eq!(scripts.len(), 3);
    let lines = scripts.iter().map(|text| text.replace("./import", "./job"));
    lines.map(|text| format!("#!/bin/sh\n{text}")).collect()
}

#[test]
fn if_only_the_script_is_killed_its_work_has_ended_before_the_next_one_begins() {
    for text in scripts_that_lock_themselves() {
        let env = TestEnv::new();
        executable(&env, "script", &text);
        executable(&env, "job", ALONE);
        let mut first = Running::start(env.session("exec ./script a"));
        wait_until("the first one is at work", || env.lines("jobs") == 1);
        let locks = env.json(["list"])["locks"].take();
        let (name, script) = (&locks[0]["name"], &locks[0]["pid"]);
        let mut waiting =
            env.onehold(["run", "-w", "1h", name.as_str().unwrap(), "--", "sh", "-c"]);
        let job = env.pid_in("jobs");
        waiting.arg(format!("! kill -0 {job} 2>/dev/null"));
        let mut next = Running::start(waiting);
        env.wait_for_waiter(name.as_str().unwrap());
        send(
            u32::try_from(script.as_u64().unwrap()).unwrap(),
            Signal::KILL,
        );
        assert_eq!(next.finish(), 0, "{text}");
        assert_eq!(first.finish(), 137, "{text}");
    }
}

#[test]
fn if_only_the_wrapper_of_a_script_is_killed_the_script_keeps_its_lock() {
    for text in scripts_that_lock_themselves() {
        let env = TestEnv::new();
        executable(&env, "script", &text);
        executable(&env, "job", ALONE);
        let mut first = env.command(env.path("script"));
        first.arg("a");
        // The process that was started is the wrapper.
        let mut first = Running::start(first);
        wait_until("the first one is at work", || env.lines("jobs") == 1);
        first.kill();
        let text = text.replace("--wait 5m ", "");
        executable(&env, "second", &text);
        let name = env.json(["list"])["locks"][0]["name"].take();
        // The script that locks itself is named after itself.
        if name != "script" {
            let code = env.session("./second b").output().unwrap().status.code();
            assert!(matches!(code, Some(1 | 6)), "{code:?} {text}");
        }
        assert_eq!(env.check(name.as_str().unwrap()), 6);
        env.end();
        wait_until("the script has ended", || {
            env.check(name.as_str().unwrap()) != 6
        });
        assert!(!env.path("twice").exists(), "{text}");
    }
}

#[test]
fn line_with_the_format_of_flock_excludes_flock() {
    let env = TestEnv::new();
    let line = examples(FLOCK)
        .into_iter()
        .find(|block| block.contains("--format flock"))
        .unwrap();
    let file = env.path("job.lock");
    let line = line.replace("/run/lock/job.lock", file.to_str().unwrap());
    executable(&env, "job", "#!/bin/sh\necho did\n");
    env.session(&line).assert().success().stdout("did\n");
    env.session(&format!("exec 9>job.lock; flock 9; {line}"))
        .assert()
        .code(1)
        .stdout("");
}

/// The fields of a crontab line in front of the command are left out.
#[test]
fn cron_lines_of_the_readme_run() {
    let env = TestEnv::new();
    for line in recipe("/usr/local/bin/sync-mail").lines() {
        let command: String = line.splitn(6, ' ').last().unwrap().trim().to_owned();
        let command = command
            .replace("/usr/bin/onehold", "onehold")
            .replace("/usr/local/bin/", "./");
        for program in ["sync-mail", "backup.sh"] {
            executable(&env, program, "#!/bin/sh\necho did >&2\n");
        }
        env.session(&command)
            .assert()
            .success()
            .stdout("")
            .stderr("did\n");
        // Another one is at work.
        executable(
            &env,
            "sync-mail",
            "#!/bin/sh\necho $$ > began\nuntil test -e end; do sleep 0.01; done\n",
        );
        if command.contains("-E 0") {
            let _first = Running::start(env.session(&command));
            wait_until("the first one is at work", || env.path("began").exists());
            env.session(&command)
                .assert()
                .success()
                .stdout("")
                .stderr("");
            env.write("end", "");
        }
    }
}

#[test]
fn steps_of_a_pipeline_share_one_lease() {
    let env = TestEnv::new();
    for program in ["deploy.sh", "smoke-test.sh"] {
        executable(
            &env,
            program,
            "#!/bin/sh\nonehold check -q deploy; echo $? >> seen\n",
        );
    }
    let steps = recipe("onehold acquire deploy");
    // Each step is a shell of its own.
    for step in steps.lines() {
        env.session(step).env("CI_JOB_ID", "77").assert().success();
    }
    assert_eq!(fs::read_to_string(env.path("seen")).unwrap(), "6\n6\n");
    assert_eq!(env.check("deploy"), 0);
}

#[test]
fn expired_lease_lets_no_other_job_in_beside_a_step_and_the_next_step_stops() {
    let env = TestEnv::new();
    executable(
        &env,
        "deploy.sh",
        "#!/bin/sh\necho >> began\nwhile test -e began && ! test -e end; do sleep 0.01; done\n",
    );
    executable(&env, "smoke-test.sh", "#!/bin/sh\necho >> tested\n");
    let steps = recipe("onehold acquire deploy").replace("--ttl 30m", "--ttl 300ms");
    let steps: Vec<&str> = steps.lines().collect();
    let step = |job: &str, line: &str| {
        let mut step = env.session(line);
        step.env("CI_JOB_ID", job);
        step
    };
    step("77", steps[0]).assert().success();
    let mut working = Running::start(step("77", steps[1]));
    wait_until("the step is at work", || env.lines("began") == 1);
    wait_until("the lease has expired", || {
        env.json(["list"])["locks"]
            .to_string()
            .contains("\"reason\":\"expired\"")
    });
    let forever = steps[0].replace("--ttl 300ms", "--ttl 1h");
    let mut other = Running::start(step("78", &forever));
    env.wait_for_waiter("deploy");
    assert!(!other.has_ended());
    env.end();
    assert_eq!(working.finish(), 0);
    assert_eq!(other.finish(), 0);
    step("77", steps[2]).assert().code(4);
    assert!(!env.path("tested").exists());
    step("77", steps[3]).assert().code(4);
    step("78", steps[2]).assert().success();
    step("78", steps[3]).assert().success();
    assert_eq!(env.lines("tested"), 1);
    // And if the other job has come and gone.
    step("77", steps[2]).assert().code(3);
}

#[test]
fn step_under_the_lease_of_its_own_job_is_told_what_to_run() {
    let env = TestEnv::new();
    env.done(["acquire", "deploy", "--ttl", "1h", "--owner", "job 77"]);
    let refused = env.output(["run", "deploy", "--owner", "job 77", "--", "true"]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(6), "{said}");
    assert!(!said.contains("--wait"), "{said}");
    let (_, hint) = said
        .split_once("your own lease holds it: use its child, ")
        .unwrap();
    let lines: Vec<&str> = hint.split('`').skip(1).step_by(2).collect();
    env.shell(&lines[0].replace('…', "true")).assert().success();
    env.shell(lines[1]).assert().success();
    assert_eq!(env.check("deploy"), 0);
    // Of another owner.
    env.done(["acquire", "deploy", "--ttl", "1h", "--owner", "78"]);
    env.onehold(["run", "deploy", "--owner", "job 77", "--", "true"])
        .assert()
        .code(6)
        .stderr(contains("to wait, add --wait"));
}

#[test]
fn script_of_the_readme_holds_its_lock_to_its_end() {
    let env = TestEnv::new();
    executable(&env, "nightly", &recipe("onehold check --mine nightly"));
    executable(&env, "import", "#!/bin/sh\nonehold check nightly >> seen\n");
    env.session("./nightly a")
        .assert()
        .success()
        .stdout("")
        .stderr("");
    assert_eq!(env.check("nightly"), 0, "released");
    env.session("./nightly b")
        .assert()
        .success()
        .stdout("")
        .stderr("");
    let seen = fs::read_to_string(env.path("seen")).unwrap();
    assert!(
        seen.contains("\"import a\"") && seen.contains("\"import b\""),
        "{seen}"
    );
    let log = fs::read_to_string(env.path("import.log")).unwrap();
    assert_eq!(log.matches("done, under hold 1").count(), 2);
}

/// The lines of the page that a workflow of GitHub, or a playbook, gives to a shell.
fn lines_after(text: &str, marker: &str) -> Vec<String> {
    let text = example(text);
    let lines = text.lines().filter_map(|line| line.split_once(marker));
    lines.map(|(_, line)| line.to_owned()).collect()
}

#[test]
fn steps_of_a_workflow_share_one_lease() {
    let env = TestEnv::new();
    for program in ["deploy.sh", "smoke-test.sh"] {
        let text = format!("#!/bin/sh\nonehold check -q deploy; echo {program} $? >> seen\n");
        executable(&env, program, &text);
    }
    let steps = lines_after("# .github/workflows/deploy.yml", "run: ");
    assert_eq!(steps.len(), 4);
    for step in &steps {
        env.session(step).env("OWNER", "4711-1").assert().success();
    }
    let seen = fs::read_to_string(env.path("seen")).unwrap();
    assert_eq!(seen, "deploy.sh 6\nsmoke-test.sh 6\n");
    assert_eq!(env.check("deploy"), 0);
    // Another attempt of the run comes in between.
    env.session(&steps[0])
        .env("OWNER", "4711-1")
        .assert()
        .success();
    env.session(&steps[3])
        .env("OWNER", "4711-1")
        .assert()
        .success();
    env.session(&steps[0])
        .env("OWNER", "4711-2")
        .assert()
        .success();
    for (step, code) in [(1, 4), (2, 4), (3, 4)] {
        env.session(&steps[step])
            .env("OWNER", "4711-1")
            .assert()
            .code(code);
    }
    assert_eq!(env.lines("seen"), 2);
}

#[test]
fn playbook_and_migration_run_once_at_a_time() {
    let env = TestEnv::new();
    for program in ["bin/ansible-playbook", "migrate"] {
        executable(&env, program, "#!/bin/sh\necho $0 $ONEHOLD_NAME >> ran\n");
    }
    let play = example("ansible-playbook").replace("/run/lock/", "./");
    let migrate = lines_after("ansible.builtin.command", "command: ").remove(0);
    let migrate = migrate
        .replace("--dir etcds://db1,db2,db3/locks", "")
        .replace("/opt/app/", "./");
    for (line, name) in [(&play, "./site.lock"), (&migrate, "migrate")] {
        let mut command = env.session(line);
        let path = format!("{}:{}", env.path("bin").display(), path_of(&command));
        command
            .env("PATH", path)
            .env("USER", "ops")
            .assert()
            .success();
        let ran = fs::read_to_string(env.path("ran")).unwrap();
        assert!(ran.ends_with(&format!(" {name}\n")), "{ran}");
        let mut holder = env.hold(&[name]);
        let short = line.replace("-w 30m", "-w 0.1").replace("-w 10m", "-w 0.1");
        env.session(&short).env("USER", "ops").assert().code(7);
        env.end();
        holder.finish();
        fs::remove_file(env.path("end")).unwrap();
    }
    assert_eq!(env.lines("ran"), 2);
}

#[test]
#[ignore = "needs make: apt install make"]
fn makefile_links_two_at_once_and_deploys_alone() {
    let env = TestEnv::new();
    executable(
        &env,
        "bin/cc",
        "#!/bin/sh\nmkdir link-$ONEHOLD_SLOT || echo >> twice\nls -d link-* | wc -l >> together\n\
         sleep 0.05\nrmdir link-$ONEHOLD_SLOT\ntouch app\n",
    );
    executable(
        &env,
        "deploy.sh",
        "#!/bin/sh\nmkdir deploying || echo >> twice\nrmdir deploying\necho >> deployed\n",
    );
    for number in 0..6 {
        env.write(&format!("{number}/Makefile"), example("# Makefile"));
        env.write(&format!("{number}/main.o"), "");
        std::os::unix::fs::symlink("../deploy.sh", env.path(&format!("{number}/deploy.sh")))
            .unwrap();
    }
    let make =
        "for n in 0 1 2 3 4 5; do make -s -C $n CC=\"cd ..; $PWD/bin/cc\" deploy & done; wait";
    // The compiler is a command line for a shell here.
    let make = make.replace("cd ..; ", "env -C .. ");
    env.session(&make).assert().success();
    assert!(!env.path("twice").exists());
    let together = fs::read_to_string(env.path("together")).unwrap();
    let most = together
        .lines()
        .map(|line| line.trim().parse::<u32>().unwrap());
    assert!(most.max() <= Some(2), "{together}");
    assert_eq!(together.lines().count(), 6);
}

/// `docker` is a program that does what `docker run` does with this line, but for the container.
#[test]
fn containers_that_share_a_volume_migrate_one_after_the_other() {
    let env = TestEnv::new();
    let docker = "#!/bin/sh\nuntil [ \"$1\" = -e ]; do shift; done\n\
        export \"${2%%=*}=$PWD${2#*=}\"\nshift 3\nexec \"$@\"\n";
    executable(&env, "bin/docker", docker);
    executable(
        &env,
        "migrate",
        "#!/bin/sh\nmkdir alone || exit 9\necho $ONEHOLD_FILE >> ran\nsleep 0.02\nrmdir alone\n",
    );
    let script = format!(
        "set -e\nwait_all=\nfor n in 1 2 3; do {} & wait_all=\"$wait_all $!\"; done\n\
        for pid in $wait_all; do wait $pid; done",
        example("docker run").trim()
    );
    let mut command = env.session(&script);
    let path = format!("{}:{}", env.path("bin").display(), path_of(&command));
    command.env("PATH", path).assert().success();
    let ran = fs::read_to_string(env.path("ran")).unwrap();
    let file = format!("{}/locks/migrate.lock\n", env.root.path().display());
    assert_eq!(ran, file.repeat(3));
}

#[test]
fn store_of_the_recipe_for_shared_filesystems_is_examined_used_and_broken() {
    let env = TestEnv::new();
    executable(&env, "report.sh", "#!/bin/sh\necho >> ran\n");
    let lines = example("/mnt/share/locks doctor").replace("/mnt/share", "share");
    fs::create_dir(env.path("share")).unwrap();
    let codes: Vec<_> = lines
        .lines()
        .map(|line| env.session(line).output().unwrap().status.code().unwrap())
        .collect();
    // Nothing is held at the end.
    assert_eq!(codes, [0, 0, 3]);
    assert_eq!(env.lines("ran"), 1);
}

#[test]
fn path_for_all_users_holds_the_lock() {
    let env = TestEnv::new();
    executable(&env, "backup.sh", "#!/bin/sh\necho $ONEHOLD_NAME\n");
    let line = example("/run/lock/backup.lock").replace("/run/lock", "./lock");
    fs::create_dir(env.path("lock")).unwrap();
    env.session(&line)
        .assert()
        .success()
        .stdout("./lock/backup.lock\n");
}

#[test]
#[ignore = "needs jq: apt install jq"]
fn program_is_replaced_while_a_lock_is_held() {
    let env = TestEnv::new();
    fs::create_dir(env.path("bin")).unwrap();
    fs::copy(crate::harness::program(), env.path("bin/onehold")).unwrap();
    fs::copy(crate::harness::program(), env.path("onehold")).unwrap();
    let script = example("install onehold").replace("/usr/local/bin", "./bin");
    let (until, install) = script.split_once('\n').unwrap();
    let until = until.replace("sleep 10", "sleep 0.01");
    let old = "bin/onehold run job -- sh -c 'echo > began; while test -e began && ! test -e end; do sleep 0.01; done'";
    let mut holder = Running::start(env.shell(&format!("exec {old}")));
    wait_until("it holds the lock", || env.lines("began") == 1);
    let mut waiting = Running::start(env.shell(&until));
    // A new file takes the place of the one that is running.
    env.shell(install).assert().success();
    env.shell("bin/onehold check job").assert().code(6);
    assert!(!waiting.has_ended());
    env.end();
    assert_eq!(holder.finish(), 0);
    assert_eq!(waiting.finish(), 0);
    assert_eq!(env.check("job"), 0);
}

#[test]
fn man_pages_and_completions_are_installed_below_a_prefix() {
    let env = TestEnv::new();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/install-docs");
    assert!(README.contains("packaging/install-docs ~/.local"));
    env.command(script).assert().success();
    let share = env.path(".local/share");
    for file in [
        "man/man1/onehold-run.1",
        "man/man5/onehold-json.5",
        "man/man7/onehold-recipes.7",
        "bash-completion/completions/onehold.bash",
        "zsh/site-functions/_onehold",
        "fish/vendor_completions.d/onehold.fish",
    ] {
        assert!(share.join(file).exists(), "{file}");
    }
    env.command(script).arg("other").assert().success();
}

#[test]
fn commands_of_an_operator_run() {
    let env = TestEnv::new();
    let holder = Running::sleeper();
    env.onehold(["acquire", "backup", "--pid", &holder.pid().to_string()])
        .assert()
        .success();
    env.create_zombie("old");
    let block = recipe("onehold cleanup -n");
    let codes: Vec<Option<i32>> = block
        .lines()
        .map(|line| env.session(line).output().unwrap().status.code())
        .collect();
    // Without a terminal nobody can confirm the break.
    assert_eq!(codes, [0, 6, 6, 0, 0, 0].map(Some));
}
