use std::io::Write;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::cluster::On;
use crate::harness::hold::Hold;
use crate::harness::{CONTENDERS, TestEnv, json_object, wait_until};
use crate::scene::{break_takes, scenes};

scenes! {
    programs_are_served_in_order_and_leave_nothing,
    wait_of_a_caller_for_what_it_holds_itself_is_refused_at_once,
    waits_of_a_program_leave_the_queue_when_it_ends,
    break_from_elsewhere_is_told_before_the_lock_is_free,
    hold_that_is_cut_off_is_lost_before_another_can_have_the_lock,
}

fn start(on: &On, args: &[&str]) -> Hold {
    Hold::start(on.onehold(&[&["hold"], args].concat()))
}

fn programs_are_served_in_order_and_leave_nothing() {
    let on = On::of_scene();
    let mut holder = start(&on, &["--json", "x"]);
    assert!(holder.event("held")["file"].is_null());
    assert_eq!(on.lock("x")["kind"], "hold");
    let mut waiters: Vec<Hold> = (0..CONTENDERS)
        .map(|number| {
            let mut waiter = start(&on, &["--json", "-w", "60", "x"]);
            let waiting = waiter.event("waiting");
            wait_until("it waits", || on.waiters("x") == number + 1);
            assert_eq!(waiting["holder"]["kind"], "hold");
            waiter
        })
        .collect();
    // One gives up.
    assert_eq!(waiters[2].end(), 130);
    waiters[2].event("failed");
    assert_eq!(on.waiters("x"), CONTENDERS - 1);
    assert_eq!(holder.end(), 0);
    let mut last = 0;
    for (number, waiter) in waiters.iter_mut().enumerate() {
        if number == 2 {
            continue;
        }
        let hold = waiter.event("held")["hold"].as_u64().unwrap();
        assert!(hold > last);
        last = hold;
        assert_eq!(waiter.end(), 0);
        assert_eq!(waiter.event("released")["reason"], "stdin");
    }
    assert_eq!(on.state("x"), "free");
}

fn wait_of_a_caller_for_what_it_holds_itself_is_refused_at_once() {
    let on = On::of_scene();
    let mut server = start(&on, &["--serve"]);
    let mut ask = |id: u64, command: &str, name: &str, caller: u64, owner: &str| {
        let request = json!({
            "id": id, "command": command, "names": [name], "caller": caller, "owner": owner,
            "wait": "forever", "ttl": "1h",
        });
        writeln!(server.stdin.as_mut().unwrap(), "{request}").unwrap();
        let line = json_object(server.line().as_bytes());
        assert_eq!(line["id"], id, "{line}");
        let message = line["message"].as_str().unwrap_or_default();
        let is_own = message.starts_with("the caller itself holds it: `x`");
        assert_eq!(is_own, line["error"]["code"] == "LOCKED", "{line}");
        (line["event"].as_str().unwrap().to_owned(), is_own)
    };
    let told = |event: &str, is_own| (event.to_owned(), is_own);
    assert_eq!(ask(1, "hold", "x", 7, "o"), told("held", false));
    assert_eq!(ask(2, "hold", "x", 7, "o"), told("failed", true));
    assert_eq!(ask(3, "acquire", "x", 7, "o"), told("result", true));
    assert_eq!(ask(4, "hold", "x/child", 7, "else"), told("failed", true));
    assert_eq!(ask(5, "hold", "x/child", 7, "o"), told("held", false));
    assert_eq!(ask(6, "hold", "y", 7, "o"), told("held", false));
    assert_eq!(ask(7, "hold", "x", 8, "o"), told("waiting", false));
    assert_eq!(server.end(), 0);
}

fn waits_of_a_program_leave_the_queue_when_it_ends() {
    let on = On::of_scene();
    on.done(&["acquire", "x", "--ttl", "60"]);
    let mut server = start(&on, &["--serve"]);
    for id in 0..CONTENDERS {
        let command = ["hold", "acquire"][id % 2];
        let request = json!({ "id": id, "command": command, "names": ["x"], "wait": "50s", "owner": id.to_string(), "ttl": "1h" });
        writeln!(server.stdin.as_mut().unwrap(), "{request}").unwrap();
    }
    wait_until("all wait", || on.waiters("x") == CONTENDERS);
    assert_eq!(server.end(), 0);
    assert_eq!(on.waiters("x"), 0);
}

#[test]
fn end_of_stdin_ends_a_wait_for_an_etcd_that_does_not_answer() {
    // It takes no connection, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let unreachable = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
    for address in [silent.local_addr(), unreachable] {
        let env = TestEnv::new();
        let store = format!("etcd://{}", address.unwrap());
        let words = ["--dir", &store, "hold", "--json", "-w", "5m", "x"];
        let mut hold = Hold::start(env.onehold(words));
        let began = Instant::now();
        assert_eq!(hold.end(), 130);
        assert!(began.elapsed() < Duration::from_secs(5));
        assert_eq!(hold.event("failed")["error"]["code"], "INTERRUPTED");
    }
}

fn break_from_elsewhere_is_told_before_the_lock_is_free() {
    let on = On::of_scene();
    let mut hold = start(&on, &["--json", "x"]);
    hold.event("held");
    let asked = Instant::now();
    assert_eq!(on.code(&["break", "x", "--yes"]), 0);
    assert!(asked.elapsed() < break_takes());
    assert_eq!(hold.event("lost")["reason"], "broken");
    assert_eq!(hold.running.finish(), 8);
    assert_eq!(on.state("x"), "free");
}

fn hold_that_is_cut_off_is_lost_before_another_can_have_the_lock() {
    let on = On::of_scene();
    let (proxies, url) = on.proxies();
    let mut command = on.onehold(&["hold", "--json", "--ttl", "10", "x"]);
    command.env("ONEHOLD_DIR", url);
    let mut hold = Hold::start(command);
    hold.event("held");
    // It is kept for longer than it would last by itself.
    std::thread::sleep(Duration::from_secs(12));
    assert_eq!(on.code(&["check", "x"]), 6);
    for proxy in &proxies {
        proxy.cut();
    }
    let cut = Instant::now();
    let waiter = std::thread::spawn({
        let mut next = on.onehold(&["run", "-w", "60", "x", "--", "true"]);
        move || next.status().map(|_| Instant::now())
    });
    assert_eq!(hold.event("lost")["reason"], "lost");
    let lost = Instant::now();
    assert_eq!(hold.running.finish(), 8);
    assert!(lost.duration_since(cut) < Duration::from_secs(10));
    let next = waiter.join().unwrap().unwrap();
    assert!(lost < next, "the next one had the lock before");
}
