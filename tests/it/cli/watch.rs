//! `list --watch`.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::spawn;
use std::time::{Duration, Instant};

use crate::harness::{Running, Signal, TestEnv, exit_code, json_object, send, wait_until};

/// `list --watch` on a pipe.
struct Watched {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Watched {
    fn start(env: &TestEnv, words: &[&str]) -> Self {
        let words = [&["list"][..], words].concat();
        let mut child = env.onehold(words).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// The rows of the next table that holds true; blocks until there is one.
    fn until(&mut self, is_true: impl Fn(&[String]) -> bool) -> Vec<String> {
        self.tables_until(is_true).0
    }

    /// The same, and how many tables have begun.
    fn tables_until(&mut self, is_true: impl Fn(&[String]) -> bool) -> (Vec<String>, usize) {
        let (mut rows, mut tables) = (Vec::new(), 0);
        loop {
            let mut line = String::new();
            let length = self.lines.read_line(&mut line).unwrap();
            assert!(length > 0, "it has ended: {rows:?}");
            match line.trim_end() {
                // The space between two tables.
                "" => {}
                title if title.starts_with("NAME ") || title.contains(" in /") => {
                    rows.clear();
                    tables += 1;
                }
                row => rows.push(row.to_owned()),
            }
            if is_true(&rows) {
                return (rows, tables);
            }
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn table_is_printed_again_when_something_changes() {
    let env = TestEnv::new();
    env.done(["acquire", "first", "--ttl", "1h"]);
    // Longer than the test may take.
    let mut watched = Watched::start(&env, &["--watch=1h"]);
    watched.until(|rows| rows.len() == 1);
    let mut holder = env.hold(&["section/deep/x"]);
    watched.until(|rows| rows.iter().any(|row| row.starts_with("section/deep/x ")));
    let waiter = env.start(["run", "-w", "1h", "section/deep/x", "--", "true"]);
    watched.until(|rows| rows.iter().any(|row| row.contains(" held +1 ")));
    // Nothing in the store says that it has ended.
    send(waiter.pid(), Signal::KILL);
    env.end();
    holder.finish();
    watched.until(|rows| rows.len() == 1);
    let mut sleeper = Running::sleeper();
    let pid = sleeper.pid().to_string();
    env.done(["acquire", "job", "--pid", &pid]);
    watched.until(|rows| {
        rows.iter()
            .any(|row| row.starts_with("job ") && row.contains(" held "))
    });
    sleeper.kill();
    watched.until(|rows| {
        rows.iter()
            .any(|row| row.starts_with("job ") && row.contains(" zombie "))
    });
}

#[test]
fn one_change_is_one_table() {
    let env = TestEnv::new();
    let mut watched = Watched::start(&env, &["--watch=1h"]);
    watched.until(<[String]>::is_empty);
    let mut tables = 1;
    for number in 1..=5 {
        env.done(["acquire", &format!("x-{number}"), "--ttl", "1h"]);
        tables += watched.tables_until(|rows| rows.len() == number).1;
        // What it is woken by once more has been looked at.
        std::thread::sleep(Duration::from_millis(300));
    }
    assert_eq!(tables, 6);
}

#[cfg(unix)]
#[test]
fn hold_that_becomes_overdue_is_a_change() {
    let env = TestEnv::new();
    let mut watched = Watched::start(&env, &["--watch=1h"]);
    let holder = Running::sleeper();
    let pid = holder.pid().to_string();
    env.done(["acquire", "x", "--pid", &pid, "--max-age", "1s"]);
    watched.until(|rows| rows.iter().any(|row| row.starts_with("x     overdue ")));
}

#[test]
fn table_is_printed_when_a_time_ends() {
    let env = TestEnv::new();
    let mut watched = Watched::start(&env, &["--watch=1h"]);
    env.done(["acquire", "lease", "--ttl", "1s"]);
    env.done(["run", "--hold-at-least", "1s", "kept", "--", "true"]);
    let has = |rows: &[String], words: [&str; 2]| {
        let mut rows = rows.iter();
        rows.any(|row| row.split_whitespace().take(2).eq(words))
    };
    watched.until(|rows| has(rows, ["lease", "zombie"]) && has(rows, ["kept", "free"]));
}

#[test]
fn locks_that_are_left_out_are_counted() {
    let env = TestEnv::new();
    env.done(["acquire", "x", "--ttl", "1h"]);
    let mut watch = env.onehold(["list", "--watch=1h", "--state", "zombie"]);
    let mut child = watch.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert!(line.starts_with("no match among 1 lock in "), "{line}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn table_is_printed_at_least_so_often() {
    let env = TestEnv::new();
    env.done(["acquire", "x", "--ttl", "1h"]);
    let mut watched = Watched::start(&env, &["--watch=0.3"]);
    let began = Instant::now();
    for _ in 0..4 {
        watched.until(|rows| !rows.is_empty());
    }
    assert!(began.elapsed() >= Duration::from_millis(600));
    // The value is only what follows `=`.
    let mut watched = Watched::start(&env, &["--watch", "y"]);
    watched.until(<[String]>::is_empty);
    for clash in ["--prometheus", "-v"] {
        assert_eq!(env.code(["list", "--watch", clash]), 2);
    }
}

#[test]
fn interval_of_nothing_is_refused() {
    let env = TestEnv::new();
    let mut watch = env.command("sh");
    watch.args(["-c", "onehold list --watch=0 2>&1 | head -1"]);
    let printed = String::from_utf8(watch.output().unwrap().stdout).unwrap();
    assert!(printed.ends_with("must be at least 1 ms\n"), "{printed}");
}

#[test]
fn store_that_does_not_exist_is_said_until_it_is_there() {
    let env = TestEnv::new();
    let mut watch = env.onehold(["list", "--watch=1h"]);
    let mut child = watch.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let store = env.store().display().to_string();
    assert_eq!(first, format!("0 locks in {store}, which does not exist"));
    let mut holder = env.hold(&["x"]);
    assert!(lines.any(|line| line.unwrap().starts_with("x ")));
    env.end();
    holder.finish();
    let empty = format!("0 locks in {store}");
    assert!(lines.any(|line| line.unwrap() == empty));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn closed_pipe_and_ctrl_c_end_it_with_0() {
    let env = TestEnv::new();
    env.done(["acquire", "x", "--ttl", "1h"]);
    for (signal, code) in [(Signal::INT, 0), (Signal::TERM, -15)] {
        let mut watched = Watched::start(&env, &["--watch=1h"]);
        watched.until(|rows| rows.len() == 1);
        send(watched.child.id(), signal);
        assert_eq!(exit_code(watched.child.wait().unwrap()), code);
    }
    let mut head = env.command("sh");
    head.args([
        "-c",
        "onehold list --watch=0.1 | head -1; exec 3>&1; { onehold list --watch=0.1; \
        echo $? >&3; } | true",
    ]);
    let printed = String::from_utf8(head.output().unwrap().stdout).unwrap();
    assert!(
        printed.starts_with("NAME ") && printed.ends_with("\n0\n"),
        "{printed}"
    );
}

/// `list --watch` on a terminal, by script(1).
struct Terminal {
    child: Child,
    printed: Receiver<Vec<u8>>,
    text: String,
}

impl Terminal {
    fn start(env: &TestEnv, command: &str) -> Self {
        let mut script = env.command("script");
        script
            .args(["-qec", command, "/dev/null"])
            .env("SHELL", "/bin/sh");
        script.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = script.spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let (sender, printed) = channel();
        spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = stdout.read(&mut bytes) {
                let _ = sender.send(bytes[..length].to_vec());
            }
        });
        let text = String::new();
        Self {
            child,
            printed,
            text,
        }
    }

    fn press(&mut self, keys: &[u8]) {
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(keys).unwrap();
        input.flush().unwrap();
    }

    /// Waits until this has been printed since the last such call.
    fn until(&mut self, part: &str) -> String {
        loop {
            if let Some(at) = self.text.find(part) {
                let rest = self.text.split_off(at + part.len());
                return std::mem::replace(&mut self.text, rest);
            }
            let more = self.printed.recv_timeout(Duration::from_secs(20));
            let more = more.unwrap_or_else(|_| panic!("no {part:?} in {:?}", self.text));
            self.text += &String::from_utf8_lossy(&more);
        }
    }

    fn finish(mut self) -> i32 {
        let code = exit_code(self.child.wait().unwrap());
        drop(self.child.stdin.take());
        code
    }
}

const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

#[test]
fn terminal_is_redrawn_in_place_with_marks_and_is_left_as_it_was() {
    let env = TestEnv::new();
    env.done(["acquire", "first", "--ttl", "1h"]);
    let script = "stty -a > before; onehold --color never list --watch=2s; echo $? > code; \
        stty -a > after";
    for key in [&b"q"[..], b"\x03"] {
        let mut terminal = Terminal::start(&env, script);
        terminal.until(ENTER);
        terminal.until("  first ");
        env.done(["acquire", "second", "--ttl", "1h"]);
        terminal.until("+ second ");
        env.done([
            "renew",
            "second",
            "--ttl",
            "2h",
            "--hold",
            &env.lock("second")["hold"].to_string(),
        ]);
        let mut holder = env.hold(&["third"]);
        terminal.until("+ third ");
        let waiter = env.start(["run", "-w", "1h", "third", "--", "true"]);
        terminal.until("* third ");
        drop(waiter);
        env.end();
        holder.finish();
        terminal.until("- third ");
        // Later it is gone, and nothing is marked.
        let drawn = terminal.until("  second ");
        env.done(["break", "second", "--yes"]);
        let drawn = drawn + &terminal.until("- second ");
        assert!(
            !drawn.contains("\x1b[2J"),
            "the screen is cleared: {drawn:?}"
        );
        assert!(drawn.contains("\x1b[H"), "{drawn:?}");
        terminal.press(key);
        let left = terminal.until(LEAVE);
        assert!(left.contains("\x1b[?25h"), "{left:?}");
        terminal.finish();
        assert_eq!(fs::read_to_string(env.path("code")).unwrap(), "0\n");
        let settings = |name| fs::read_to_string(env.path(name)).unwrap();
        assert_eq!(settings("before"), settings("after"));
        let _ = fs::remove_file(env.path("end"));
    }
}

#[test]
fn terminated_watch_leaves_the_terminal_as_it_was() {
    let env = TestEnv::new();
    env.done(["acquire", "first", "--ttl", "1h"]);
    let script = "stty -a > before; sh -c 'echo $$ > pid; exec onehold list --watch'; \
        echo $? > code; stty -a > after";
    let mut terminal = Terminal::start(&env, script);
    terminal.until("first ");
    send(env.pid_in("pid"), Signal::TERM);
    terminal.until(LEAVE);
    terminal.finish();
    assert_eq!(fs::read_to_string(env.path("code")).unwrap(), "143\n");
    let settings = |name| fs::read_to_string(env.path(name)).unwrap();
    assert_eq!(settings("before"), settings("after"));
}

#[test]
fn resized_terminal_is_redrawn_in_its_width_and_height() {
    let env = TestEnv::new();
    for at in 0..30 {
        env.done([
            "acquire",
            &format!("lock-{at}"),
            "--ttl",
            "1h",
            "-m",
            "why it is held",
        ]);
    }
    let script = "stty rows 24 cols 80; tty > tty; exec onehold --color never list --watch=1h";
    let mut terminal = Terminal::start(&env, script);
    terminal.until("more lines");
    let tty = fs::read_to_string(env.path("tty")).unwrap();
    let resize = format!("stty rows 8 cols 40 < {}", tty.trim());
    wait_until("it is resized", || {
        env.command("sh")
            .args(["-c", &resize])
            .status()
            .unwrap()
            .success()
    });
    let drawn = terminal.until("… 26 more lines");
    let (_, drawn) = drawn.rsplit_once("\x1b[H").unwrap();
    let lines: Vec<&str> = drawn
        .split("\r\n")
        .map(|line| {
            line.trim_start_matches("\x1b[K")
                .trim_start_matches("\x1b[J")
        })
        .collect();
    assert_eq!(lines.len(), 8, "{lines:?}");
    assert!(
        lines.iter().all(|line| line.chars().count() <= 40),
        "{lines:?}"
    );
    terminal.press(b"q");
    terminal.until(LEAVE);
    assert_eq!(terminal.finish(), 0);
}

#[test]
fn last_character_of_a_full_row_is_not_erased() {
    let env = TestEnv::new();
    for name in ["one", "two"] {
        let message = "a message that is longer than the terminal";
        env.done(["acquire", name, "--ttl", "1h", "-m", message]);
    }
    let script = "stty rows 24 cols 60; exec onehold --color never list --watch=1h";
    let mut terminal = Terminal::start(&env, script);
    let drawn = terminal.until(" two ");
    terminal.press(b"q");
    let drawn = drawn + &terminal.until(LEAVE);
    // Each message is cut where the terminal ends.
    assert!(drawn.matches('…').count() >= 2, "{drawn:?}");
    for erase in ["…\x1b[K", "…\x1b[J"] {
        assert!(!drawn.contains(erase), "{drawn:?}");
    }
    assert_eq!(terminal.finish(), 0);
}

#[test]
fn columns_of_a_short_name_are_below_their_titles_and_fit_the_terminal() {
    let env = TestEnv::new();
    env.done(["acquire", "db", "--ttl", "1h", "--owner", "runner-77"]);
    for columns in 44..=50 {
        let script =
            format!("stty rows 24 cols {columns}; exec onehold --color never list --watch=1h");
        let mut terminal = Terminal::start(&env, &script);
        terminal.until("  NAME");
        let title = "  NAME".to_owned() + &terminal.until("\r\n");
        terminal.until("  db");
        let row = "  db".to_owned() + &terminal.until(" lease");
        assert_eq!(title.find("STATE"), row.find("held"), "{title:?} {row:?}");
        assert_eq!(title.find("HOLDER"), row.find("lease"), "{title:?} {row:?}");
        assert!(title.trim_end().chars().count() <= columns, "{title:?}");
        terminal.press(b"q");
        assert_eq!(terminal.finish(), 0);
    }
}

/// `list --watch --json`, line by line.
struct Events {
    child: Child,
    lines: Receiver<String>,
}

impl Events {
    fn start(env: &TestEnv, words: &[&str]) -> Self {
        let words = [&["list", "--watch", "--json"][..], words].concat();
        let mut child = env.onehold(words).stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        spawn(move || {
            for line in stdout.lines() {
                if sender.send(line.unwrap()).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    /// The next event in brief, "held x".
    fn next(&mut self) -> String {
        let line = self.lines.recv_timeout(Duration::from_secs(20)).unwrap();
        let event = json_object(line.as_bytes());
        let text = |key: &str| event[key].as_str().unwrap().to_owned();
        assert_eq!(
            event["waiter"].is_null(),
            !["waiting", "left"].contains(&&*text("event"))
        );
        format!("{} {}", text("event"), text("name"))
    }
}

#[test]
fn events_tell_what_is_there_and_then_what_happens() {
    let env = TestEnv::new();
    env.create_zombie("z");
    env.done(["acquire", "a", "--ttl", "1h", "--owner", "o"]);
    let mut waiter = env.start(["run", "-w", "forever", "a", "--", "true"]);
    wait_until("it waits", || env.number_of_waiters("a") == 1);
    let mut events = Events::start(&env, &[]);
    let first = [events.next(), events.next(), events.next()];
    assert_eq!(first, ["held a", "zombie z", "waiting a"]);
    // Each step is noticed without anything else that would make it look.
    env.done(["run", "z", "--", "sleep", "0.2"]);
    assert_eq!([events.next(), events.next()], ["taken-over z", "held z"]);
    assert_eq!(events.next(), "released z");
    waiter.kill();
    assert_eq!(events.next(), "left a");
    env.done(["break", "a", "--yes"]);
    assert_eq!(events.next(), "broken a");
    let mut holder = Running::sleeper();
    let pid = holder.pid().to_string();
    env.done(["acquire", "b", "--pid", &pid, "--max-age", "600ms"]);
    assert_eq!([events.next(), events.next()], ["held b", "overdue b"]);
    holder.kill();
    assert_eq!(events.next(), "zombie b");
    env.done(["acquire", "s", "--ttl", "300ms", "--slots", "2"]);
    assert_eq!([events.next(), events.next()], ["held s", "zombie s"]);
    env.done(["cleanup"]);
    let mut both = [events.next(), events.next()];
    both.sort();
    assert_eq!(both, ["released b", "released s"]);
}

#[test]
fn events_are_those_of_the_names_that_were_asked_for_until_the_reader_is_gone() {
    let env = TestEnv::new();
    let mut events = Events::start(&env, &["files/"]);
    for name in ["other", "files/a"] {
        env.done(["acquire", name, "--ttl", "1h"]);
    }
    assert_eq!(events.next(), "held files/a");
    // The thread that reads ends with the next line, and so does the program with the one after it.
    events.lines = channel().1;
    wait_until("it has ended", || {
        env.done(["run", "files/d", "--", "sleep", "0.2"]);
        events.child.try_wait().unwrap().is_some()
    });
}

impl Drop for Events {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
