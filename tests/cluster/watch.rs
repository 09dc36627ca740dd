use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Stdio};

use crate::cluster::On;
use crate::harness::{Running, Signal, json_object, wait_until};
use crate::scene::scenes;

scenes! {
    table_is_printed_again_when_something_changes,
    events_tell_what_is_there_and_then_what_happens,
}

fn table_is_printed_again_when_something_changes() {
    let on = On::of_scene();
    let mut list = on.onehold(&["list", "--watch=1h"]);
    let mut child = list.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut until = |is_wanted: &dyn Fn(&str) -> bool| {
        let mut line = String::new();
        while !is_wanted(&line) {
            line.clear();
            assert!(lines.read_line(&mut line).unwrap() > 0, "it has ended");
        }
    };
    until(&|line| line.starts_with("0 locks in "));
    assert_eq!(on.output(&["acquire", "x", "--ttl", "5s"]).0, 0);
    until(&|line| line.starts_with("x ") && line.contains(" held "));
    // Its lease ends by itself.
    until(&|line| line.starts_with("x ") && line.contains(" zombie "));
    assert_eq!(on.output(&["break", "x", "--yes"]).0, 0);
    until(&|line| line.starts_with("0 locks in "));
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The next lines of `list --watch --json`, each in brief: "held x".
struct Events {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Events {
    fn start(on: &On) -> Self {
        let mut list = on.onehold(&["list", "--watch", "--json"]);
        let mut child = list.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn next(&mut self) -> String {
        let line = self.lines.next().expect("an event").unwrap();
        let event = json_object(line.as_bytes());
        format!(
            "{} {}",
            event["event"].as_str().unwrap(),
            event["name"].as_str().unwrap()
        )
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn events_tell_what_is_there_and_then_what_happens() {
    let on = On::of_scene();
    let number = on.done(&["acquire", "a", "--ttl", "1h"]);
    let mut waiter = Running::start(on.onehold(&["run", "-w", "forever", "a", "--", "true"]));
    wait_until("it waits", || on.waiters("a") == 1);
    // What was there before the reader comes first.
    let mut events = Events::start(&on);
    assert_eq!([events.next(), events.next()], ["held a", "waiting a"]);
    waiter.signal(Signal::TERM);
    waiter.finish();
    assert_eq!(events.next(), "left a");
    on.done(&["release", "a", "--hold", &number]);
    assert_eq!(events.next(), "released a");
    let run = ["run", "--max-age", "1s", "o", "--", "sleep", "2"];
    let mut run = Running::start(on.onehold(&run));
    assert_eq!([events.next(), events.next()], ["held o", "overdue o"]);
    assert_eq!(run.finish(), 0);
    assert_eq!(events.next(), "released o");
    on.done(&["acquire", "b", "--ttl", "5s"]);
    assert_eq!([events.next(), events.next()], ["held b", "zombie b"]);
    on.done(&["run", "-w", "1m", "b", "--", "sleep", "0.5"]);
    // A dead hold is taken over after a while.
    let mut taken = [0; 4].map(|_| events.next());
    taken.sort();
    assert_eq!(taken, ["held b", "left b", "taken-over b", "waiting b"]);
    assert_eq!(events.next(), "released b");
    on.done(&["acquire", "c", "--ttl", "1h"]);
    assert_eq!(events.next(), "held c");
    on.done(&["break", "c", "--yes"]);
    assert_eq!(events.next(), "broken c");
}
