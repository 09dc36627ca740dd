use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::cluster::{On, shared};
use crate::harness::hold::Hold;
use crate::harness::{CONTENDERS, TestEnv, wait_until};
use crate::proxy::proxies_of;

fn start(on: &On, args: &[&str]) -> Hold {
    Hold::start(on.onehold(&[&["hold"], args].concat()))
}

#[test]
fn programs_are_served_in_order_and_leave_nothing() {
    let on = On::new(shared());
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

#[test]
fn break_from_elsewhere_is_told_before_the_lock_is_free() {
    let on = On::new(shared());
    let mut hold = start(&on, &["--json", "x"]);
    hold.event("held");
    let asked = Instant::now();
    assert_eq!(on.code(&["break", "x", "--yes"]), 0);
    assert!(asked.elapsed() < Duration::from_secs(2));
    assert_eq!(hold.event("lost")["reason"], "broken");
    assert_eq!(hold.running.finish(), 8);
    assert_eq!(on.state("x"), "free");
}

#[test]
fn hold_that_is_cut_off_is_lost_before_another_can_have_the_lock() {
    let on = On::new(shared());
    let (proxies, url) = proxies_of(shared(), &on);
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
