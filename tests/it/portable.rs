//! Behavior that is the same on every system: no shell, no signals, and no programs but our own.

use std::ffi::OsString;
use std::fs;
use std::process::Command;
#[cfg(windows)]
use std::time::Duration;

use crate::harness::{
    CONTENDERS, Running, TestEnv, example, json_object, output, program, wait_until,
};

/// What a command that does a task with a file is called by: program and words.
fn task(env: &TestEnv, task: &str, file: &str) -> [OsString; 4] {
    let file = env.path(file).into();
    [example("programs").into(), "task".into(), task.into(), file]
}

/// `onehold run WORDS --` a command that does a task with a file.
fn run(env: &TestEnv, words: &[&str], task: &str, file: &str) -> Command {
    let mut command = env.onehold(["run"]);
    command
        .args(words)
        .arg("--")
        .args(self::task(env, task, file));
    command
}

/// Starts a `run` whose command stays, and returns when that has begun.
fn hold(env: &TestEnv, words: &[&str]) -> Running {
    let before = env.lines("in");
    let holder = Running::start(run(env, words, "stay", "in"));
    wait_until("the command of the holder has begun", || {
        env.lines("in") > before
    });
    holder
}

/// A process that does nothing until it is killed.
fn sleeper(env: &TestEnv) -> Running {
    let [program, words @ ..] = task(env, "stay", "sleepers");
    let mut command = env.command(program);
    command.args(words);
    Running::start(command)
}

fn end(env: &TestEnv) {
    fs::write(env.path("end"), "").unwrap();
}

#[test]
fn counter_under_lock_is_exact() {
    let env = TestEnv::new();
    // A start takes a fifth of a second under Wine.
    let rounds = if cfg!(windows) { 20 } else { 50 };
    std::thread::scope(|scope| {
        for _ in 0..CONTENDERS {
            scope.spawn(|| {
                for _ in 0..rounds {
                    let mut run = run(&env, &["-w", "forever", "counter"], "increment", "count");
                    let output = output(&mut run);
                    assert!(output.status.success(), "{output:?}");
                }
            });
        }
    });
    let count = fs::read_to_string(env.path("count")).unwrap();
    assert_eq!(count, (CONTENDERS * rounds).to_string());
}

#[test]
fn one_of_8_contenders_takes_over_zombie() {
    for _ in 0..3 {
        let env = TestEnv::new();
        let mut holder = sleeper(&env);
        env.done(["acquire", "x", "--pid", &holder.pid().to_string()]);
        assert_eq!(env.lock("x")["state"], "held");
        holder.kill();
        assert_eq!(env.lock("x")["state"], "zombie");
        let mut contenders: Vec<Running> = (0..CONTENDERS)
            .map(|_| Running::start(run(&env, &["x"], "stay", "in")))
            .collect();
        wait_until("one is in, and the others are refused", || {
            let ended = contenders.iter_mut().map(Running::has_ended);
            env.lines("in") > 0 && ended.filter(|ended| *ended).count() == CONTENDERS - 1
        });
        assert_eq!(env.lines("in"), 1);
        end(&env);
        let mut codes: Vec<i32> = contenders.iter_mut().map(Running::finish).collect();
        codes.sort_unstable();
        assert_eq!(codes, [0, 6, 6, 6, 6, 6, 6, 6]);
    }
}

#[test]
fn run_returns_exit_code_of_command_and_releases_lock() {
    let env = TestEnv::new();
    let codes: &[&str] = if cfg!(windows) {
        &["0", "3", "100", "3010", "65536"]
    } else {
        &["0", "3", "100"]
    };
    for code in codes.iter().copied() {
        let output = output(&mut run(&env, &["x"], code, "none"));
        assert_eq!(
            output.status.code().map(|code| code.to_string()).as_deref(),
            Some(code),
            "{output:?}"
        );
        assert_eq!(env.code(["check", "-q", "x"]), 0);
    }
    assert_eq!(
        env.code(["run", "x", "--", "no-such-program-anywhere"]),
        127
    );
    assert_eq!(env.code(["check", "-q", "x"]), 0);
}

/// Waits for the file with the PID that a `tree` or `leave` writes.
fn pid_of_child(env: &TestEnv) -> String {
    wait_until("the child has been started", || env.path("child").exists());
    fs::read_to_string(env.path("child")).unwrap()
}

/// Whether a process exists: one that does not cannot hold a lock.
fn exists(env: &TestEnv, pid: &str) -> bool {
    let code = env.code(["acquire", "probe", "--pid", pid]);
    if code == 0 {
        env.code(["break", "probe", "--yes", "--force"]);
    }
    code == 0
}

#[test]
fn time_limit_ends_a_command_and_what_it_has_started() {
    let env = TestEnv::new();
    let options = ["--time-limit", "2s", "--kill-after", "1s", "x"];
    let mut wrapper = Running::start(run(&env, &options, "tree", "child"));
    let child = pid_of_child(&env);
    assert!(exists(&env, &child));
    assert_eq!(wrapper.finish(), 124);
    assert!(!exists(&env, &child));
    assert_eq!(env.code(["check", "-q", "x"]), 0);
}

#[test]
fn break_ends_a_command_and_what_it_has_started() {
    let env = TestEnv::new();
    let mut wrapper = Running::start(run(&env, &["x"], "tree", "child"));
    let child = pid_of_child(&env);
    assert_eq!(env.code(["break", "x", "--yes"]), 0);
    assert!(!exists(&env, &child));
    assert_eq!(env.code(["check", "-q", "x"]), 0);
    assert_eq!(wrapper.finish(), 8);
}

#[test]
fn process_that_a_command_leaves_behind_lives_on_and_holds_nothing() {
    let env = TestEnv::new();
    assert_eq!(
        Running::start(run(&env, &["x"], "leave", "child")).finish(),
        0
    );
    let child = pid_of_child(&env);
    assert!(exists(&env, &child));
    assert_eq!(env.code(["check", "-q", "x"]), 0);
    end(&env);
}

/// The system closes the job of a process that ends.
#[test]
#[cfg(windows)]
fn work_of_killed_wrapper_ends_with_it() {
    let env = TestEnv::new();
    let mut wrapper = Running::start(run(&env, &["x"], "tree", "child"));
    let child = pid_of_child(&env);
    wrapper.kill();
    wait_until("the work has ended", || !exists(&env, &child));
    let output = output(&mut run(&env, &["-w", "30s", "x"], "0", "none"));
    assert!(output.status.success(), "{output:?}");
}

#[test]
#[cfg(unix)]
fn lock_of_killed_wrapper_is_held_until_its_command_ends() {
    let env = TestEnv::new();
    let mut wrapper = hold(&env, &["x"]);
    let lock = env.lock("x");
    assert_eq!(
        (&lock["state"], &lock["kind"]),
        (&"held".into(), &"run".into())
    );
    wrapper.kill();
    assert_eq!(env.code(["run", "x", "--", "none"]), 6);
    end(&env);
    let output = output(&mut run(&env, &["-w", "30s", "x"], "0", "none"));
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn refusal_names_holder_and_record_is_readable() {
    let env = TestEnv::new();
    let output = output(&mut run(&env, &["x", "-m", "why"], "read", "copy"));
    assert!(output.status.success(), "{output:?}");
    let record = fs::read_to_string(env.path("copy")).unwrap();
    assert!(record.contains("\"message\": \"why\""), "{record}");
    assert!(record.contains("\"live\": {\"sum\":"), "{record}");
    let mut holder = hold(&env, &["x"]);
    let refused = env.output(["run", "--json", "x", "--", "none"]);
    assert_eq!(refused.status.code(), Some(6));
    let object = json_object(&refused.stderr);
    assert_eq!(object["lock"]["pid_alive"], true, "{object}");
    end(&env);
    assert_eq!(holder.finish(), 0);
}

#[test]
fn acquire_holds_for_its_caller() {
    let env = TestEnv::new();
    let number = env.done(["acquire", "x"]);
    assert_eq!(env.lock("x")["hold"].to_string(), number);
    if cfg!(windows) {
        assert_eq!(env.lock("x")["pid"], std::process::id());
    }
    assert_eq!(env.code(["acquire", "x", "--ttl", "1h"]), 6);
    env.done(["release", "x", "--hold", &number]);
    assert_eq!(env.code(["check", "-q", "x"]), 0);
}

#[test]
fn lease_is_renewed_expires_and_is_cleaned_up() {
    let env = TestEnv::new();
    let number = env.done(["acquire", "x", "--ttl", "1h"]);
    env.done(["renew", "x", "--hold", &number, "--ttl", "1ms"]);
    wait_until("the lease has expired", || {
        env.lock("x")["state"] == "zombie"
    });
    env.done(["cleanup"]);
    assert!(!env.path("store/x.lock").exists());
    env.done(["acquire", "y", "--ttl", "1h"]);
    env.done(["break", "y", "--yes"]);
    assert_eq!(env.code(["check", "-q", "y"]), 0);
}

#[test]
fn names_that_are_not_file_names_and_children_are_locks() {
    let env = TestEnv::new();
    for name in ["a b", "a:b*?", "aux", "Übung", ".hidden", "back\\slash"] {
        env.done(["acquire", name, "--ttl", "1h"]);
        assert_eq!(env.lock(name)["state"], "held", "{name}");
    }
    env.done(["acquire", "section/task", "--ttl", "1h"]);
    assert_eq!(env.code(["acquire", "section", "--ttl", "1h"]), 6);
    let object = env.json(["list"]);
    assert_eq!(object["locks"].as_array().unwrap().len(), 7);
    env.done(["break", "section/task", "--yes"]);
    assert_eq!(env.code(["check", "-q", "section"]), 0);
    // Wine keeps the file and its directory until the program that removes it has ended.
    if cfg!(unix) {
        assert!(!env.path("store/section.d").exists());
    }
}

#[test]
fn path_is_a_lock_like_a_name() {
    let env = TestEnv::new();
    env.done(["acquire", "./here.lock", "--ttl", "1h"]);
    assert_eq!(env.code(["run", "./here.lock", "--", "none"]), 6);
    assert!(env.path("here.lock").exists());
    env.done(["break", "./here.lock", "--yes"]);
    assert!(!env.path("here.lock").exists());
    fs::write(env.path("data.txt"), "not a lock").unwrap();
    assert_ne!(env.code(["run", "./data.txt", "--", "none"]), 0);
    assert_eq!(
        fs::read_to_string(env.path("data.txt")).unwrap(),
        "not a lock"
    );
}

#[test]
fn waiters_are_served_in_order() {
    let env = TestEnv::new();
    let mut holder = hold(&env, &["x"]);
    let mut waiters: Vec<Running> = (0..CONTENDERS)
        .map(|index| {
            let mut command = run(&env, &["-w", "forever", "x"], "line", "served");
            command.arg(index.to_string());
            let waiter = Running::start(command);
            wait_until("the waiter is in the queue", || {
                env.number_of_waiters("x") == index + 1
            });
            waiter
        })
        .collect();
    end(&env);
    assert_eq!(holder.finish(), 0);
    for waiter in &mut waiters {
        assert_eq!(waiter.finish(), 0);
    }
    let served = fs::read_to_string(env.path("served")).unwrap();
    assert_eq!(served.lines().collect::<Vec<_>>().join(""), "01234567");
}

#[test]
fn default_store_is_in_the_state_directory_of_the_system() {
    let env = TestEnv::new();
    let mut command = env.onehold(["acquire", "x", "--ttl", "1h"]);
    command
        .env_remove("ONEHOLD_DIR")
        .env("LOCALAPPDATA", env.path("local"));
    assert!(output(&mut command).status.success());
    let store = if cfg!(windows) {
        "local/onehold"
    } else {
        ".local/state/onehold"
    };
    assert!(env.path(store).join("x.lock").exists());
}

#[test]
fn lost_hold_ends_a_command_and_what_it_has_started() {
    let env = TestEnv::new();
    let mut wrapper = Running::start(run(&env, &["--kill-after", "1s", "x"], "tree", "child"));
    let child = pid_of_child(&env);
    // Wine keeps a removed file until it is closed.
    fs::rename(env.path("store/x.lock"), env.path("moved")).unwrap();
    assert_eq!(wrapper.finish(), 8);
    assert!(!exists(&env, &child));
    assert_eq!(env.code(["check", "-q", "x"]), 0);
}

/// On Windows: jobs in a job.
#[test]
fn limit_of_an_outer_run_ends_the_work_of_the_inner_one() {
    let env = TestEnv::new();
    for limited in ["outer", "inner"] {
        let _ = fs::remove_file(env.path("child"));
        let limit = |name: &'static str| {
            let limit: &[&str] = if name == limited {
                &["--time-limit", "2s", "--kill-after", "1s"]
            } else {
                &[]
            };
            [&["run"], limit, &[name, "--"]].concat()
        };
        let mut outer = env.onehold(limit("outer"));
        outer.arg(program()).args(limit("inner"));
        outer.args(task(&env, "tree", "child"));
        let mut outer = Running::start(outer);
        let child = pid_of_child(&env);
        assert_eq!(env.lock("outer")["state"], "held");
        assert_eq!(env.lock("inner")["state"], "held");
        assert_eq!(outer.finish(), 124, "{limited}");
        assert!(!exists(&env, &child), "{limited}");
        for name in ["outer", "inner"] {
            // On Windows a process that is ended from outside cannot do anything more.
            let is_dead = cfg!(windows) && limited == "outer" && name == "inner";
            let code = if is_dead { 5 } else { 0 };
            assert_eq!(env.code(["check", "-q", name]), code, "{limited}: {name}");
        }
    }
}

#[test]
fn names_that_differ_in_case_are_one_lock_where_they_are_one_file() {
    let env = TestEnv::new();
    let mut holder = hold(&env, &["Backup/Db"]);
    let is_one = cfg!(any(windows, target_os = "macos"));
    let (held, code) = if is_one { ("held", 6) } else { ("free", 0) };
    assert_eq!(env.lock("backup/db")["state"], held);
    assert_eq!(
        env.code(["acquire", "backup/db", "--ttl", "1h", "--owner", "o"]),
        code
    );
    // A parent, however it is written.
    assert_eq!(env.code(["acquire", "Backup", "--ttl", "1h"]), 6);
    if is_one {
        let waiting = ["BACKUP/db", "backup/DB"].map(|name| {
            let before = env.number_of_waiters("Backup/Db");
            let mut command = run(&env, &["-w", "forever", name], "line", "served");
            command.arg(name);
            let waiter = Running::start(command);
            wait_until("the waiter is in the queue", || {
                env.number_of_waiters("Backup/Db") == before + 1
            });
            waiter
        });
        end(&env);
        for mut waiter in waiting {
            assert_eq!(waiter.finish(), 0);
        }
        let served = fs::read_to_string(env.path("served")).unwrap();
        assert_eq!(served, "BACKUP/db\nbackup/DB\n");
    }
    end(&env);
    assert_eq!(holder.finish(), 0);
}

/// A batch file, and a line of an interactive `cmd`.
#[cfg(windows)]
#[test]
fn acquire_holds_for_the_cmd_that_called_it() {
    let env = TestEnv::new();
    let script = "@onehold acquire x\r\n@onehold check -q x\r\n@if errorlevel 6 echo held>seen\r\n\
                  @onehold release x\r\n@if errorlevel 1 exit 1\r\n@onehold acquire y\r\n";
    fs::write(env.path("job.cmd"), script).unwrap();
    let mut cmd = env.command("cmd");
    let output = output(cmd.args(["/c", "job.cmd"]));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::read_to_string(env.path("seen")).unwrap().trim(), "held");
    // `cmd` has ended.
    assert_eq!(env.lock("x")["state"], "free");
    assert_eq!(env.lock("y")["state"], "zombie");
}

/// Git Bash starts a program of Windows from a copy of itself, which ends with the program.
#[cfg(windows)]
#[test]
fn acquire_holds_for_the_shell_and_not_for_its_copy() {
    let env = TestEnv::new();
    for (runtime, state) in [("msys-2.0.dll", "held"), ("other.dll", "zombie")] {
        let directory = env.path(runtime).with_extension("dir");
        fs::create_dir(&directory).unwrap();
        let shell = directory.join("bash.exe");
        let file = format!("{runtime}.acquired");
        let [program, words @ ..] = task(&env, "shell", &file);
        fs::copy(program, &shell).unwrap();
        fs::write(directory.join(runtime), "").unwrap();
        let mut command = env.command(&shell);
        command.args(words);
        let _shell = Running::start(command);
        wait_until("the program has ended", || env.path(&file).exists());
        assert_eq!(env.lock(&file)["state"], state, "{runtime}");
    }
}

/// Such as a virus scanner has it open.
#[cfg(windows)]
#[test]
fn lock_file_that_is_open_elsewhere_is_removed_when_it_is_closed() {
    use std::os::windows::fs::OpenOptionsExt;
    const FILE_SHARE_READ: u32 = 1;
    let env = TestEnv::new();
    let number = env.done(["acquire", "x", "--ttl", "1h"]);
    let opened = fs::OpenOptions::new()
        .read(true)
        .share_mode(FILE_SHARE_READ)
        .open(env.path("store/x.lock"))
        .unwrap();
    let mut release = env.start(["release", "x", "--hold", &number]);
    // Long enough for a first attempt to fail; a later one succeeds in any case.
    std::thread::sleep(Duration::from_millis(150));
    drop(opened);
    assert_eq!(release.finish(), 0);
    assert_eq!(env.code(["check", "-q", "x"]), 0);
}
