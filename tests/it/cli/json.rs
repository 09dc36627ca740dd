//! The contract of onehold-json(5): what `--json` prints is as `tests/schema/onehold.json` says. The harness
//! checks each object that it parses; these tests see that this finds faults, and that no key is dead.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::harness::hold::Hold;
use crate::harness::schema::{SCHEMA, check};
use crate::harness::{Running, Signal, TestEnv, json_object, last_json_object, stderr, wait_until};

/// Keys that only a server gives a value, and a machine with a configuration; `tests/cluster` and `tests/environments`
/// see them.
const ELSEWHERE: [&str; 3] = [
    "lock.takeable_in_ms",
    "result_config.machine_file",
    "result_taking.left_seconds",
];

/// Asks for objects, and collects the keys that were not null.
struct Tour {
    env: TestEnv,
    seen: RefCell<BTreeSet<String>>,
}

impl Tour {
    fn see(&self, object: Value) -> Value {
        let found = check(&SCHEMA, &object);
        assert_eq!(found.errors, [""; 0], "{object}");
        self.seen.borrow_mut().extend(found.seen);
        object
    }

    /// `onehold ARGS --json`, with the object on stdout.
    fn json(&self, words: &str) -> Value {
        self.see(self.env.json(words.split(' ')))
    }

    /// `onehold run --json ARGS -- sh -c SCRIPT`.
    fn run(&self, words: &str, script: &str) -> Value {
        let words = words.split(' ');
        let words = ["run", "--json"].into_iter().chain(words);
        let words = words.chain(["--", "sh", "-c", script]);
        self.see(last_json_object(&self.env.output(words).stderr))
    }

    fn hold(&self, words: &str) -> Hold {
        let words = words.split(' ');
        Hold::start(
            self.env
                .onehold(["hold", "--json"].into_iter().chain(words)),
        )
    }

    /// What is there, the waiters last.
    fn see_events_of_list(&self) {
        let _waiter = self.env.start(["run", "-w", "1h", "b", "--", "true"]);
        wait_until("it waits", || self.env.number_of_waiters("b") == 1);
        let mut list = self.env.onehold(["list", "--watch", "--json"]);
        let mut list = list.stdout(Stdio::piped()).spawn().unwrap();
        for line in BufReader::new(list.stdout.take().unwrap()).lines() {
            let event = self.see(json_object(line.unwrap().as_bytes()));
            if event["event"] == "waiting" {
                break;
            }
        }
        list.kill().unwrap();
        list.wait().unwrap();
    }

    /// Two commands wait for each other's locks.
    fn see_deadlock(&self) {
        let env = &self.env;
        let script = "touch began; until test -e second; do sleep 0.01; done
            onehold run -w forever --json first -- true 2> refused; true";
        let mut last = env.start(["run", "last", "--", "sh", "-c", script]);
        wait_until("it has its lock", || env.path("began").exists());
        let script = "onehold run -w forever last -- true; true";
        let mut first = env.start(["run", "first", "--", "sh", "-c", script]);
        wait_until("it waits", || env.number_of_waiters("last") == 1);
        std::fs::write(env.path("second"), "").unwrap();
        assert_eq!((last.finish(), first.finish()), (0, 0));
        self.see(json_object(&std::fs::read(env.path("refused")).unwrap()));
    }

    /// What a hold displaces, a refusal, and a server and what it is asked.
    fn more_events(&self) {
        self.acquire("l").kill();
        self.see(self.hold("l").event("held"));
        self.see(self.hold("-n b").event("failed"));
        let root = json!({ "$ref": "#/$defs/request", "$defs": SCHEMA["$defs"] });
        let mut server = Hold::start(self.env.onehold(["hold", "--serve"]));
        for (id, event) in [(1, "held"), (2, "waiting")] {
            let request = json!({
                "id": id, "command": "hold", "names": ["m"], "cwd": "/", "caller": id, "wait": "1h",
            });
            let found = check(&root, &request);
            assert_eq!(found.errors, [""; 0], "{request}");
            self.seen.borrow_mut().extend(found.seen);
            writeln!(server.stdin.as_mut().unwrap(), "{request}").unwrap();
            self.see(server.event(event));
        }
        self.json("check m");
        writeln!(server.stdin.as_mut().unwrap(), r#"{{"id":3}}"#).unwrap();
        self.see(server.event("failed"));
    }

    fn acquire(&self, words: &str) -> Running {
        let holder = Running::sleeper();
        let pid = holder.pid();
        self.json(&format!("acquire {words} --pid {pid}"));
        holder
    }
}

#[test]
fn each_key_of_each_object_is_seen_with_a_value() {
    let env = TestEnv::new();
    let seen = RefCell::default();
    let config = "[defaults]\nhistory = true\n[formats]\n\"~/f/\" = \"flock\"\n\
                  [profiles.app]\nformat = \"native\"\ndetails = { who = \"owner\" }\n";
    env.write(".config/onehold/config.toml", config);
    let tour = Tour { env, seen };
    let env = &tour.env;
    // A break that ends after ten seconds, because this work gets no KILL.
    let script = "trap '' TERM; echo > trapped; while test -e trapped; do sleep 0.1; done";
    let words = "run --kill-after 0 stays -- sh -c"
        .split(' ')
        .chain([script]);
    let mut stays = env.start(words);
    wait_until("its command traps TERM", || env.path("trapped").exists());
    let mut breaking = env.start_with_output(["break", "--yes", "--json", "stays"]);

    // Refusals, waiters, kept places.
    for _ in ["new", "repeated"] {
        tour.json("acquire a --ttl 1h --owner o -m why");
    }
    let _job = tour.acquire("b");
    tour.run("-n a", "true");
    tour.run("-n b", "true");
    tour.run("-w 0.05 --owner w --keep-place 10m a", "true");
    let words = "acquire -w 1h --owner v -m soon --ttl 1h a";
    let mut waiter = env.start(words.split(' '));
    wait_until("it waits", || env.number_of_waiters("a") == 1);
    tour.json("check -v a");
    tour.json("release --owner other a");
    waiter.signal(Signal::STOP);
    tour.json("release --owner o a");
    assert_eq!(tour.json("check a")["lock"]["reason"], "reserved");
    waiter.kill();

    // Holds of run, shared ones, those of other programs.
    let with = env.hold(&["--die-with", &std::process::id().to_string(), "c"]);
    tour.json("check -v c");
    env.end();
    drop(with);
    let _readers = ["-s s", "-s s", "--slots 2 t", "--slots 2 t"].map(|words| tour.acquire(words));
    tour.json("list");
    tour.json("break --yes s");
    let mut flock = Command::new("flock");
    flock
        .args(["f", "sleep", "1000"])
        .current_dir(env.root.path());
    let _locker = Running::start(flock);
    wait_until("flock has the file", || {
        !env.lock("./f")["lockers"][0].is_null()
    });
    tour.json("check ./f");
    tour.json("--profile app acquire p --ttl 1h --owner o");

    // Takeovers, breaks, the journal and the history.
    tour.acquire("-m why --owner o d e").kill();
    tour.json("check d");
    tour.json("acquire d e --ttl 1h --owner n -m more");
    tour.json("check -v --mine d");
    tour.json("break --yes d");
    tour.json("check -v d");
    tour.run("--time-limit 0.05 g", "exec sleep 1000");
    tour.run("--owner o --hold-at-least 1h h", "exit 3");
    tour.run("--hold-at-least 1h i", "kill -9 $$");
    tour.json("list");
    tour.json("history");
    tour.json("history --summary");

    // Events.
    let mut first = tour.hold("--slots 1 k");
    tour.see(first.event("held"));
    let mut second = tour.hold("-w 1h --slots 1 k");
    tour.see(second.event("waiting"));
    env.done(["break", "--yes", "k"]);
    tour.see(first.event("lost"));
    tour.see(second.event("held"));
    assert_eq!(second.end(), 0);
    tour.see(second.event("released"));
    tour.more_events();
    tour.see_events_of_list();
    tour.see_deadlock();

    // The others.
    tour.json("cleanup -n");
    tour.json("--profile app config");
    std::fs::write(env.path("file"), "").unwrap();
    tour.json("--dir file doctor");
    let mut said = String::new();
    let stdout = breaking.child.stdout.as_mut().unwrap();
    stdout.read_to_string(&mut said).unwrap();
    assert_eq!(
        tour.see(json_object(said.as_bytes()))["error"]["code"],
        "STILL_RUNNING"
    );
    std::fs::remove_file(env.path("trapped")).unwrap();
    stays.finish();

    let all = SCHEMA["$defs"].as_object().unwrap().iter();
    let keys: BTreeSet<String> = all
        .flat_map(|(name, schema)| {
            let keys = schema["properties"].as_object().into_iter().flatten();
            keys.map(move |(key, _)| format!("{name}.{key}"))
        })
        .collect();
    assert!(keys.len() > 150, "{}", keys.len());
    let seen = tour.seen.borrow();
    assert_eq!(keys.difference(&seen).collect::<Vec<_>>(), ELSEWHERE);
}

/// What the check says of an object with another value at a place, or without it.
fn complaint(object: &Value, place: &str, value: Option<Value>) -> String {
    assert_eq!(check(&SCHEMA, object).errors, [""; 0]);
    let mut changed = object.clone();
    let (parent, key) = place.rsplit_once('/').unwrap();
    match (changed.pointer_mut(parent).unwrap(), value) {
        (Value::Array(items), Some(value)) => items[key.parse::<usize>().unwrap()] = value,
        (Value::Object(keys), Some(value)) => drop(keys.insert(key.to_owned(), value)),
        (Value::Object(keys), None) => drop(keys.remove(key).unwrap()),
        (other, _) => panic!("{place}: {other}"),
    }
    check(&SCHEMA, &changed).errors.join("; ")
}

#[test]
fn object_that_is_not_as_the_schema_says_is_found() {
    let env = TestEnv::new();
    let acquire = ["acquire", "x", "--ttl", "1h"];
    let object = env.json(acquire);
    let of_lock = object["lock"].as_object().unwrap().keys();
    let of_lock = of_lock.map(|key| format!("lock/{key}"));
    let top = "success command status locks message errors hold".split(' ');
    for key in top.map(str::to_owned).chain(of_lock) {
        let said = complaint(&object, &format!("/{key}"), None);
        assert!(said.contains(": required: ["), "{key}: {said}");
    }
    for (place, value, expected) in [
        ("/lock", json!({}), "/lock: required"),
        ("/lock/pid", json!("1"), "/lock/pid: \"1\" type"),
        ("/lock/hold", json!(-1), "/lock/hold: -1 minimum"),
        ("/lock/hold", json!((1u64 << 53) + 2), "maximum"),
        ("/lock/state", json!("gone"), "/lock/state: \"gone\" anyOf"),
        ("/lock/mode", json!({ "slots": 0 }), "/slots: 0 minimum"),
        ("/lock/mode", json!({ "slots": 1, "x": 1 }), "unknown key x"),
        ("/lock/format", json!("yaml"), "/lock/format: \"yaml\" enum"),
        ("/lock/acquired_at", json!("2026-11-22 13:21:16"), "format"),
        (
            "/lock/acquired_at",
            json!("2026-11-22T13:21:16+01:00"),
            "format",
        ),
        ("/lock/names/0", json!(1), "/lock/names/0: 1 type"),
        ("/lock/more", json!(null), "/lock: unknown key more"),
        ("/more", json!(null), ": unknown key more"),
        ("/success", json!(false), "/error: null type"),
        (
            "/error",
            json!({ "code": "IO", "message": "", "details": {} }),
            "type",
        ),
        ("/command", json!("list"), "unknown key hold"),
        ("/status", json!("done"), "/status: \"done\" anyOf"),
    ] {
        let said = complaint(&object, place, Some(value));
        assert!(said.contains(expected), "{place}: {said}");
    }
    let failed = env.json(["renew", "y"]);
    for (place, value, expected) in [
        (
            "/error/code",
            json!("OTHER"),
            "/error/code: \"OTHER\" anyOf",
        ),
        (
            "/error/code",
            json!("IO"),
            "/error/details: unknown key hold",
        ),
        ("/error/details", json!({ "pid": 1 }), "unknown key pid"),
    ] {
        let said = complaint(&failed, place, Some(value));
        assert!(said.contains(expected), "{place}: {said}");
    }
    let said = complaint(&env.json(acquire), "/error/details", Some(json!({})));
    assert!(said.contains("/error/details: required"), "{said}");
}

#[test]
fn event_has_no_value_that_does_not_apply_to_it() {
    let env = TestEnv::new();
    let mut program = Hold::start(env.onehold(["hold", "--json", "x"]));
    let held = program.event("held");
    program.end();
    let released = program.event("released");
    for (event, place, value) in [
        (&held, "/hold", json!(null)),
        (&held, "/reason", json!("stdin")),
        (&held, "/position", json!(1)),
        (&held, "/event", json!("gone")),
        (&released, "/reason", json!("lost")),
        (&released, "/file", json!("/x")),
        (&released, "/more", json!(null)),
    ] {
        assert_ne!(complaint(event, place, Some(value)), "", "{place}");
    }
}

#[test]
#[should_panic(expected = "no check for pattern")]
fn keyword_that_is_not_checked_is_found() {
    check(&json!({ "pattern": "^x$" }), &json!("y"));
}

#[test]
#[ignore = "needs jq and python3: apt install jq python3"]
fn record_is_readable_by_jq_and_python() {
    let env = TestEnv::new();
    let read = |when: &str| {
        let load = "import json; json.load(open('store/x.lock'))";
        for command in [
            env.command("jq").args([".", "store/x.lock"]),
            env.command("python3").args(["-c", load]),
        ] {
            let output = command.output().unwrap();
            assert!(output.status.success(), "{when}: {}", stderr(&output));
        }
    };
    let number = env.done(["acquire", "x", "--ttl", "1h"]);
    read("a lease");
    env.done(["renew", "x", "--hold", &number, "--ttl", "2h"]);
    read("a renewed lease");
    env.done(["release", "x", "--hold", &number]);
    let holder = Running::sleeper();
    env.done(["acquire", "x", "--pid", &holder.pid().to_string()]);
    read("a detached hold");
    env.done(["break", "x", "--yes"]);
    let _run = env.hold(&["x"]);
    read("a run");
    let check = env.output(["check", "--json", "x"]);
    assert_eq!(json_object(&check.stdout)["lock"]["kind"], "run");
}
