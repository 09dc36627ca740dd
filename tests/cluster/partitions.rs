//! Five hosts: three members, that of the holder and that of the others.

use std::process::Stdio;
use std::time::Duration;

use crate::at_work::{assert_exclusive, run, seconds_after, sections};
use crate::cluster::{Cluster, On};
use crate::harness::seen::now;
use crate::harness::{Running, exit_code, json_object, wait_until};
use crate::network::Network;

const HOLDER: usize = 3;
const OTHER: usize = 4;

/// The time to live of holds that are to be lost, in seconds: the least one.
const TTL: f64 = 10.0;

fn start() -> (Cluster, On) {
    let cluster = Cluster::start_in(Network::new(5));
    let on = On::new(&cluster);
    (cluster, on)
}

fn section(cluster: &Cluster, host: usize, on: &On, args: &[&str], milliseconds: u64) -> Running {
    let mut command = cluster.network().on(host, &run(on, args, milliseconds));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Running::spawn(command)
}

fn wait_until_at_work(on: &On, count: usize) {
    wait_until("a section has begun", || sections(on).len() == count);
}

/// How many wait, as the host of the others sees it.
fn waiters(cluster: &Cluster, on: &On) -> usize {
    let command = cluster
        .network()
        .on(OTHER, &on.onehold(&["check", "--json", "x"]));
    let output = { command }.output().unwrap();
    let object = json_object(&output.stdout);
    object["lock"]["waiters"].as_array().map_or(0, Vec::len)
}

#[test]
#[ignore = "needs root: network namespaces"]
fn holder_that_is_set_apart_has_ended_its_work_before_the_next_one_begins() {
    let (cluster, on) = start();
    let mut holder = section(&cluster, HOLDER, &on, &["--ttl", "10", "x"], 60_000);
    wait_until_at_work(&on, 1);
    let mut successor = section(&cluster, OTHER, &on, &["-w", "60", "x"], 100);
    wait_until("it waits", || waiters(&cluster, &on) == 1);
    let moment = now();
    cluster.network().set_apart(&[HOLDER]);
    assert_eq!(holder.finish(), 8);
    assert_eq!(successor.finish(), 0);
    let all = assert_exclusive(&on);
    let ended = seconds_after(&all[0], moment);
    assert!((0.1..0.75 * TTL).contains(&ended), "ended {ended}");
    let began = seconds_after(&all[1], moment);
    assert!((TTL..2.0 * TTL + 3.0).contains(&began), "began {began}");
}

/// A leader without followers keeps answering until its election timeout has passed.
#[test]
#[ignore = "needs root: network namespaces"]
fn holder_that_is_set_apart_together_with_the_leader_ends_its_work_in_time() {
    let (cluster, on) = start();
    let leader = cluster.leader();
    let mut holder = section(&cluster, HOLDER, &on, &["--ttl", "10", "x"], 60_000);
    wait_until_at_work(&on, 1);
    let mut successor = section(&cluster, OTHER, &on, &["-w", "60", "x"], 100);
    wait_until("it waits", || waiters(&cluster, &on) == 1);
    let moment = now();
    cluster.network().set_apart(&[HOLDER, leader]);
    assert_eq!(holder.finish(), 8);
    assert_eq!(successor.finish(), 0);
    let all = assert_exclusive(&on);
    let ended = seconds_after(&all[0], moment);
    assert!((0.1..0.75 * TTL).contains(&ended), "ended {ended}");
    // When it is back, it takes nothing from anybody.
    cluster.network().rejoin();
    let mut third = section(&cluster, HOLDER, &on, &["-w", "60", "x"], 100);
    assert_eq!(third.finish(), 0);
    assert_eq!(assert_exclusive(&on).len(), 3);
}

#[test]
#[ignore = "needs root: network namespaces"]
fn leader_that_is_set_apart_costs_no_hold() {
    let (cluster, on) = start();
    // The default time to live.
    let mut holder = cluster.network().on(HOLDER, &run(&on, &["x"], 30_000));
    let said = on.env.path("said");
    holder.stderr(std::fs::File::create(&said).unwrap());
    let mut holder = Running::spawn(holder);
    wait_until_at_work(&on, 1);
    let mut waiter = section(&cluster, OTHER, &on, &["-w", "60", "x"], 100);
    wait_until("it waits", || waiters(&cluster, &on) == 1);
    for _ in 0..2 {
        cluster.network().set_apart(&[cluster.leader()]);
        std::thread::sleep(Duration::from_secs(6));
        cluster.network().rejoin();
        // The member that comes back may cause an election of some seconds. A beat is due every 7 s: one falls
        // between the two partitions, whose elections together can last longer than a hold without any.
        std::thread::sleep(Duration::from_secs(8));
    }
    let code = holder.finish();
    assert_eq!(code, 0, "{}", std::fs::read_to_string(said).unwrap());
    assert_eq!(waiter.finish(), 0);
    assert_eq!(assert_exclusive(&on).len(), 2);
}

#[test]
#[ignore = "needs root: network namespaces"]
fn first_waiter_that_is_set_apart_holds_up_the_next_one_for_seconds_only() {
    let (cluster, on) = start();
    let hold = ["acquire", "x", "--ttl", "60"];
    let command = cluster.network().on(OTHER, &on.onehold(&hold));
    let output = { command }.output().unwrap();
    assert_eq!(exit_code(output.status), 0);
    let number = String::from_utf8(output.stdout).unwrap();
    let mut first = section(&cluster, HOLDER, &on, &["-w", "90", "x"], 100);
    wait_until("it waits", || waiters(&cluster, &on) == 1);
    let mut second = section(&cluster, OTHER, &on, &["-w", "90", "x"], 100);
    wait_until("it waits", || waiters(&cluster, &on) == 2);
    cluster.network().set_apart(&[HOLDER]);
    let moment = now();
    let release = on.onehold(&["release", "x", "--hold", number.trim()]);
    let status = cluster.network().on(OTHER, &release).status().unwrap();
    assert_eq!(exit_code(status), 0);
    assert_eq!(second.finish(), 0);
    let began = seconds_after(&sections(&on)[0], moment);
    // Its ticket is on a lease of 5 s, and that of a hold that it may have been about to take on one of 10 s.
    assert!(began < 8.0, "began {began}");
    cluster.network().rejoin();
    assert_eq!(first.finish(), 0);
    assert_eq!(assert_exclusive(&on).len(), 2);
}
