//! What waiters and holders cost a server that have nothing to do.

use std::process::Stdio;
use std::time::Duration;

use crate::cluster::On;
use crate::harness::{Running, wait_until};
use crate::proxy::Proxy;
use crate::scene::{Engine, engine, scenes};

scenes! {
    waiters_at_rest_send_few_requests,
    holds_at_rest_send_few_requests,
}

/// What passes a proxy within a minute, after what begins is over.
fn sent_in_a_minute(proxy: &Proxy) -> Vec<String> {
    std::thread::sleep(Duration::from_secs(8));
    proxy.forget();
    std::thread::sleep(Duration::from_mins(1));
    proxy.paths()
}

fn start(on: &On, url: &str, args: &[&str]) -> Running {
    let mut command = on.onehold(&[&["run"], args, &["--", "sleep", "200"]].concat());
    command.env("ONEHOLD_DIR", url).stderr(Stdio::null());
    Running::spawn(command)
}

/// The first one, which waits for a hold, and one that waits for another waiter.
fn waiters_at_rest_send_few_requests() {
    let on = On::of_scene();
    let _holder = start(&on, &on.dir, &["x"]);
    on.wait_until_held("x");
    let waiters: Vec<_> = (0..2)
        .map(|at| {
            let (proxy, url) = on.behind_one();
            let waiter = start(&on, &url, &["-w", "10m", "x"]);
            wait_until("it waits", || on.waiters("x") == at + 1);
            (proxy, waiter)
        })
        .collect();
    let most = match engine() {
        Engine::Etcd => 15,
        Engine::Postgres => 2,
    };
    std::thread::scope(|scope| {
        for (proxy, _) in &waiters {
            scope.spawn(move || {
                let sent = sent_in_a_minute(proxy);
                println!("a waiter: {}: {sent:?}", sent.len());
                assert!(sent.len() <= most, "{}: {sent:?}", sent.len());
            });
        }
    });
    assert_eq!(on.waiters("x"), 2);
}

fn holds_at_rest_send_few_requests() {
    let on = On::of_scene();
    let (proxy, url) = on.behind_one();
    let _holder = start(&on, &url, &["x"]);
    on.wait_until_held("x");
    let sent = sent_in_a_minute(&proxy);
    println!("a hold: {}: {sent:?}", sent.len());
    let most = match engine() {
        Engine::Etcd => 12,
        Engine::Postgres => 9,
    };
    assert!(sent.len() <= most, "{}: {sent:?}", sent.len());
    assert_eq!(on.state("x"), "held");
}
