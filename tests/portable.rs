//! What holds on every system: no shell, no signals, no program but this one, which is its own
//! command when it is told what to do.
#![allow(missing_docs)]
#![allow(
    clippy::exit,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// What the command of a test is told to do, and with which file.
const DO: &str = "PORTABLE_DO";
const FILE: &str = "PORTABLE_FILE";

/// The command: does nothing as a test.
#[test]
fn command() {
    let (Ok(what), Some(file)) = (std::env::var(DO), std::env::var_os(FILE)) else {
        return;
    };
    let file = Path::new(&file);
    match what.as_str() {
        "increment" => {
            let count: u64 = fs::read_to_string(file).map_or(0, |text| text.parse().unwrap());
            fs::write(file, (count + 1).to_string()).unwrap();
        }
        // Says that it is in, and stays until it is told to end or its room is gone.
        "stay" => {
            let mut log = fs::OpenOptions::new()
                .append(true)
                .create(true)
                .open(file)
                .unwrap();
            log.write_all(b"in\n").unwrap();
            drop(log);
            let room = file.parent().unwrap();
            while room.exists() && !room.join("end").exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        "line" => {
            let mut log = fs::OpenOptions::new()
                .append(true)
                .create(true)
                .open(file)
                .unwrap();
            let line = format!("{}\n", std::env::var("PORTABLE_LINE").unwrap());
            log.write_all(line.as_bytes()).unwrap();
        }
        "read" => {
            let record = fs::read_to_string(std::env::var("ONEHOLD_FILE").unwrap()).unwrap();
            fs::write(file, record).unwrap();
        }
        code => std::process::exit(code.parse().unwrap()),
    }
}

struct Room {
    root: TempDir,
    onehold: PathBuf,
}

impl Room {
    fn new() -> Self {
        Self {
            root: tempfile::tempdir().unwrap(),
            onehold: std::path::absolute(assert_cmd::cargo::cargo_bin!("onehold")).unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn onehold(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.onehold);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ONEHOLD_") {
                command.env_remove(name);
            }
        }
        command
            .args(words)
            .current_dir(self.root.path())
            .env("ONEHOLD_DIR", self.path("store"))
            .env("HOME", self.root.path())
            .env("APPDATA", self.root.path())
            .env_remove("XDG_CONFIG_HOME")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// `onehold run WORDS --` this program, told to do `what` with `file`.
    fn run(&self, words: &[&str], what: &str, file: &str) -> Command {
        let mut command = self.onehold(&["run"]);
        command
            .args(words)
            .arg("--")
            .arg(std::env::current_exe().unwrap())
            .args(["command", "--exact"])
            .env(DO, what)
            .env(FILE, self.path(file));
        command
    }

    fn done(&self, words: &[&str]) -> String {
        let output = output(&mut self.onehold(words));
        assert!(output.status.success(), "{words:?}: {output:?}");
        text(&output).trim().to_owned()
    }

    fn code(&self, words: &[&str]) -> Option<i32> {
        output(&mut self.onehold(words)).status.code()
    }

    fn lock(&self, name: &str) -> Value {
        let output = output(&mut self.onehold(&["check", "--json", name]));
        let mut object: Value = serde_json::from_slice(&output.stdout).unwrap();
        object["lock"].take()
    }

    fn lines(&self, file: &str) -> usize {
        fs::read_to_string(self.path(file)).map_or(0, |text| text.lines().count())
    }

    /// A process of ours that does nothing until it is killed.
    fn sleeper(&self) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["command", "--exact"])
            .env(DO, "stay")
            .env(FILE, self.path("sleepers"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }
}

/// Runs it to its end. Under Wine a process can end before it has begun, once in thousands, which is
/// told as an internal error (1359) and has done nothing: then it is started again.
fn output(command: &mut Command) -> Output {
    for _ in 0..10 {
        match command.output() {
            Err(error) if cfg!(windows) && error.raw_os_error() == Some(1359) => {}
            Ok(output)
                if cfg!(windows)
                    && output.status.code() == Some(126)
                    && String::from_utf8_lossy(&output.stderr).contains("nternal error") => {}
            output => return output.unwrap(),
        }
    }
    panic!("no process begins: {command:?}");
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while !is_so() {
        assert!(Instant::now() < deadline, "not so: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn eight_processes_that_count_under_a_lock_lose_nothing() {
    let room = Room::new();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let mut run = room.run(&["-w", "forever", "counter"], "increment", "count");
                    let output = output(&mut run);
                    assert!(output.status.success(), "{output:?}");
                }
            });
        }
    });
    assert_eq!(fs::read_to_string(room.path("count")).unwrap(), "400");
}

#[test]
fn of_eight_who_find_a_dead_holder_one_takes_over() {
    for _ in 0..3 {
        let room = Room::new();
        let mut dies = room.sleeper();
        room.done(&["acquire", "x", "--pid", &dies.id().to_string()]);
        assert_eq!(room.lock("x")["state"], "held");
        dies.kill().unwrap();
        dies.wait().unwrap();
        assert_eq!(room.lock("x")["state"], "zombie");
        let mut contenders: Vec<Child> = (0..8)
            .map(|_| room.run(&["x"], "stay", "in").spawn().unwrap())
            .collect();
        let has_ended = |one: &mut Child| one.try_wait().unwrap().is_some();
        eventually("one is in, and the others are refused", || {
            room.lines("in") > 0
                && contenders
                    .iter_mut()
                    .map(has_ended)
                    .filter(|is| *is)
                    .count()
                    == 7
        });
        assert_eq!(room.lines("in"), 1);
        fs::write(room.path("end"), "").unwrap();
        let mut codes: Vec<Option<i32>> = contenders
            .iter_mut()
            .map(|one| one.wait().unwrap().code())
            .collect();
        codes.sort_unstable();
        assert_eq!(codes[0], Some(0));
        assert!(codes[1..].iter().all(|code| *code == Some(6)), "{codes:?}");
    }
}

#[test]
fn a_lock_is_free_after_its_command_and_the_commands_code_is_passed_on() {
    let room = Room::new();
    let codes: &[&str] = if cfg!(windows) {
        &["0", "3", "100", "3010", "65536"]
    } else {
        &["0", "3", "100"]
    };
    for code in codes.iter().copied() {
        let output = output(&mut room.run(&["x"], code, "none"));
        assert_eq!(
            output.status.code().map(|code| code.to_string()).as_deref(),
            Some(code),
            "{output:?}"
        );
        assert_eq!(room.code(&["check", "-q", "x"]), Some(0));
    }
    assert_eq!(
        room.code(&["run", "x", "--", "no-such-program-anywhere"]),
        Some(127)
    );
    assert_eq!(room.code(&["check", "-q", "x"]), Some(0));
}

#[test]
fn who_kills_a_wrapper_gets_the_lock_once_its_command_has_ended() {
    let room = Room::new();
    let mut wrapper = room.run(&["x"], "stay", "in").spawn().unwrap();
    eventually("it is in", || room.lines("in") == 1);
    let lock = room.lock("x");
    assert_eq!(
        (&lock["state"], &lock["kind"]),
        (&"held".into(), &"run".into())
    );
    wrapper.kill().unwrap();
    wrapper.wait().unwrap();
    assert_eq!(room.code(&["run", "x", "--", "none"]), Some(6));
    fs::write(room.path("end"), "").unwrap();
    let output = output(&mut room.run(&["-w", "30s", "x"], "0", "none"));
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn what_is_held_is_refused_with_who_holds_and_its_record_can_be_read() {
    let room = Room::new();
    let output = room
        .run(&["x", "-m", "why"], "read", "copy")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let record = fs::read_to_string(room.path("copy")).unwrap();
    assert!(record.contains("\"message\": \"why\""), "{record}");
    assert!(record.contains("\"command_pid\":"), "{record}");
    let mut holder = room.run(&["x"], "stay", "in").spawn().unwrap();
    eventually("it is in", || room.lines("in") == 1);
    let refused = room
        .onehold(&["run", "--json", "x", "--", "none"])
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(6));
    let said = String::from_utf8(refused.stderr).unwrap();
    let object: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(object["lock"]["pid_alive"], true, "{said}");
    fs::write(room.path("end"), "").unwrap();
    assert!(holder.wait().unwrap().success());
}

#[test]
fn an_acquire_holds_for_the_process_that_called_it() {
    let room = Room::new();
    let number = room.done(&["acquire", "x"]);
    assert_eq!(room.lock("x")["hold"].to_string(), number);
    if cfg!(windows) {
        assert_eq!(room.lock("x")["pid"], std::process::id());
    }
    assert_eq!(room.code(&["acquire", "x", "--ttl", "1h"]), Some(6));
    room.done(&["release", "x", "--hold", &number]);
    assert_eq!(room.code(&["check", "-q", "x"]), Some(0));
}

#[test]
fn a_lease_is_renewed_runs_out_and_is_cleaned_up() {
    let room = Room::new();
    let number = room.done(&["acquire", "x", "--ttl", "1h"]);
    room.done(&["renew", "x", "--hold", &number, "--ttl", "1ms"]);
    eventually("it has run out", || room.lock("x")["state"] == "zombie");
    room.done(&["cleanup"]);
    assert!(!room.path("store/x.lock").exists());
    room.done(&["acquire", "y", "--ttl", "1h"]);
    room.done(&["break", "y", "--yes"]);
    assert_eq!(room.code(&["check", "-q", "y"]), Some(0));
}

#[test]
fn names_that_no_file_could_have_and_sections_are_locks_like_others() {
    let room = Room::new();
    for name in ["a b", "a:b*?", "aux", "Übung", ".hidden", "back\\slash"] {
        room.done(&["acquire", name, "--ttl", "1h"]);
        assert_eq!(room.lock(name)["state"], "held", "{name}");
    }
    room.done(&["acquire", "section/task", "--ttl", "1h"]);
    assert_eq!(room.code(&["acquire", "section", "--ttl", "1h"]), Some(6));
    let output = output(&mut room.onehold(&["list", "--json"]));
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(object["locks"].as_array().unwrap().len(), 7);
    room.done(&["break", "section/task", "--yes"]);
    assert_eq!(room.code(&["check", "-q", "section"]), Some(0));
    // Wine keeps the file, and with it the directory, until the program that removes it has ended.
    if cfg!(unix) {
        assert!(!room.path("store/section.d").exists());
    }
}

#[test]
fn a_path_is_held_like_a_name() {
    let room = Room::new();
    room.done(&["acquire", "./here.lock", "--ttl", "1h"]);
    assert_eq!(room.code(&["run", "./here.lock", "--", "none"]), Some(6));
    assert!(room.path("here.lock").exists());
    room.done(&["break", "./here.lock", "--yes"]);
    assert!(!room.path("here.lock").exists());
    fs::write(room.path("data.txt"), "nobody's lock").unwrap();
    assert_ne!(room.code(&["run", "./data.txt", "--", "none"]), Some(0));
    assert_eq!(
        fs::read_to_string(room.path("data.txt")).unwrap(),
        "nobody's lock"
    );
}

#[test]
fn eight_who_wait_are_served_in_order() {
    let room = Room::new();
    let mut holder = room.run(&["x"], "stay", "in").spawn().unwrap();
    eventually("it is in", || room.lines("in") == 1);
    let waiters: Vec<Child> = (0..8)
        .map(|index: usize| {
            let waiter = room
                .run(&["-w", "forever", "x"], "line", "served")
                .env("PORTABLE_LINE", index.to_string())
                .spawn()
                .unwrap();
            eventually("it stands in line", || {
                room.lock("x")["waiters"].as_array().map_or(0, Vec::len) == index + 1
            });
            waiter
        })
        .collect();
    fs::write(room.path("end"), "").unwrap();
    assert!(holder.wait().unwrap().success());
    for waiter in waiters {
        let output = waiter.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    let served = fs::read_to_string(room.path("served")).unwrap();
    assert_eq!(served.lines().collect::<Vec<_>>().join(""), "01234567");
}

#[test]
fn the_default_store_is_where_the_system_keeps_the_state_of_programs() {
    let room = Room::new();
    let mut command = room.onehold(&["acquire", "x", "--ttl", "1h"]);
    command
        .env_remove("ONEHOLD_DIR")
        .env("LOCALAPPDATA", room.path("local"));
    assert!(command.status().unwrap().success());
    let store = if cfg!(windows) {
        "local/onehold"
    } else {
        ".local/state/onehold"
    };
    assert!(room.path(store).join("x.lock").exists());
}

/// A virus scanner, say.
#[cfg(windows)]
#[test]
fn what_somebody_has_open_is_removed_as_soon_as_he_closes_it() {
    use std::os::windows::fs::OpenOptionsExt;
    const FILE_SHARE_READ: u32 = 1;
    let room = Room::new();
    let number = room.done(&["acquire", "x", "--ttl", "1h"]);
    let opened = fs::OpenOptions::new()
        .read(true)
        .share_mode(FILE_SHARE_READ)
        .open(room.path("store/x.lock"))
        .unwrap();
    let release = room
        .onehold(&["release", "x", "--hold", &number])
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(150));
    drop(opened);
    let output = release.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(room.code(&["check", "-q", "x"]), Some(0));
}
