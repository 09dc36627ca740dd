use std::fmt::Write as _;

use crate::clocks::WallClock;
use crate::cluster::{Cluster, On, shared};
use crate::harness::{CONTENDERS, Running, json_object, wait_until};
use crate::proxy::{Fate, Proxy};
use crate::scene::scenes;

scenes! {
    clients_of_different_locks_seldom_meet,
}

const GRANT: &str = "/v3/lease/grant";
const TXN: &str = "/v3/kv/txn";
const REVOKE: &str = "/v3/lease/revoke";
const KEEPALIVE: &str = "/v3/lease/keepalive";

fn behind_a_proxy() -> (On, Proxy) {
    let on = On::new(shared());
    let proxy = Proxy::to(&shared().endpoints()[0]);
    let on = On::at(format!("etcd://{}{}", proxy.endpoint, on.prefix()));
    on.number(&["x", "y", "a/b/c"]);
    (on, proxy)
}

impl On {
    /// The first take of a group of locks is refused: it has no last number yet.
    pub fn number(&self, names: &[&str]) {
        for name in names {
            self.done(&["run", name, "--", "true"]);
        }
    }
}

/// Of 16 clients on 16 locks, also after another client whose clock is an hour ahead.
fn clients_of_different_locks_seldom_meet() {
    const CLIENTS: usize = 16;
    const RUNS: usize = 12;
    let on = On::of_scene();
    let (proxy, url) = on.behind_one();
    let names: Vec<String> = (0..CLIENTS).map(|at| format!("job-{at}")).collect();
    on.number(&names.iter().map(|name| &**name).collect::<Vec<_>>());
    let clock = WallClock::new(&on, "ahead");
    for is_after_one_ahead in [false, true] {
        if is_after_one_ahead {
            clock.set(60 * 60);
            let mut ahead = on.onehold(&["run", "ahead", "--", "true"]);
            clock.of(&mut ahead);
            assert!(ahead.status().unwrap().success());
        }
        proxy.forget();
        std::thread::scope(|scope| {
            for name in &names {
                let mut command = on.onehold(&["run", name, "--", "true"]);
                command.env("ONEHOLD_DIR", &url);
                scope.spawn(move || {
                    for _ in 0..RUNS {
                        assert!(command.status().unwrap().success());
                    }
                });
            }
        });
        let sent = proxy.paths();
        let is_txn = |path: &&String| [TXN, "then"].contains(&path.as_str());
        let runs = CLIENTS * RUNS;
        let takes = sent.iter().filter(is_txn).count() - runs;
        println!("{takes} transactions for {runs} takes, and one for each release");
        assert!(takes * 10 <= runs * 12, "{takes}: {is_after_one_ahead}");
    }
}

#[test]
fn verbs_send_no_more_requests_than_they_need() {
    let (on, proxy) = behind_a_proxy();
    let sent = |args: &[&str], code: i32| {
        proxy.forget();
        let (found, stdout, stderr) = on.output(args);
        assert_eq!(found, code, "{args:?}: {stderr}");
        (proxy.paths(), stdout.trim().to_owned())
    };
    let run = ["run", "x", "--", "true"];
    assert_eq!(sent(&run, 0).0, [GRANT, TXN, TXN]);
    assert_eq!(
        sent(&["run", "a/b/c", "--", "true"], 0).0,
        [GRANT, TXN, TXN]
    );
    assert_eq!(
        sent(&["run", "-s", "x", "--", "true"], 0).0,
        [GRANT, TXN, TXN]
    );
    assert_eq!(
        sent(&["run", "x", "y", "--", "true"], 0).0,
        [GRANT, TXN, TXN]
    );
    assert_eq!(sent(&["check", "x"], 0).0, [TXN]);
    // Its end is written with the release.
    proxy.forget();
    let mut noted = on.onehold(&run);
    assert!(
        noted
            .env("ONEHOLD_HISTORY", "1")
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(proxy.paths(), [GRANT, TXN, TXN]);
    assert_eq!(on.output(&["history", "x"]).1.lines().count(), 2);
    let (paths, number) = sent(&["acquire", "x", "--ttl", "30", "--owner", "me"], 0);
    assert_eq!(paths, [GRANT, TXN]);
    assert_eq!(sent(&["check", "x"], 6).0, [TXN]);
    assert_eq!(sent(&run, 6).0, [GRANT, TXN]);
    assert_eq!(
        sent(&["renew", "x", "--owner", "me"], 0).0,
        [TXN, KEEPALIVE, TXN, TXN]
    );
    assert_eq!(
        sent(&["release", "x", "--owner", "me"], 0).0,
        [TXN, TXN, REVOKE]
    );
    assert_ne!(number, "");
    let (_, number) = sent(&["acquire", "x", "--ttl", "30"], 0);
    assert_eq!(
        sent(&["release", "x", "--hold", &number], 0).0,
        [TXN, TXN, REVOKE]
    );
}

#[test]
fn waiter_sends_little_while_it_waits() {
    let (on, proxy) = behind_a_proxy();
    let direct = On::at(on.dir.clone());
    let number = direct.done(&["acquire", "x", "--ttl", "60"]);
    proxy.forget();
    let waiter = std::thread::spawn({
        let mut command = on.onehold(&["run", "-w", "60", "x", "--", "true"]);
        move || command.output().unwrap()
    });
    wait_until("it waits", || direct.waiters("x") == 1);
    std::thread::sleep(std::time::Duration::from_secs(5));
    proxy.forget();
    std::thread::sleep(std::time::Duration::from_secs(5));
    let idle = proxy.paths();
    // The ticket, and the lease of the hold.
    assert!(idle.len() <= 2, "{idle:?}");
    assert!(idle.iter().all(|path| path == KEEPALIVE), "{idle:?}");
    proxy.forget();
    direct.done(&["release", "x", "--hold", &number]);
    assert!(waiter.join().unwrap().status.success());
    let paths = proxy.paths();
    let own: Vec<&String> = paths.iter().filter(|path| *path == TXN).collect();
    // Of the release three (its reads among them), and the take and the release of the waiter.
    assert!(own.len() <= 5, "{paths:?}");
}

/// It may become the first without being woken. The store does not change meanwhile.
#[test]
fn waiter_with_an_owner_looks_again_each_5_seconds_and_not_more_often() {
    let cluster = Cluster::start(1);
    let proxy = Proxy::to(&cluster.endpoints()[0]);
    let on = On::new(&cluster);
    let behind = On::at(format!("etcd://{}{}", proxy.endpoint, on.prefix()));
    on.done(&["acquire", "x", "--ttl", "60"]);
    let mut command = behind.onehold(&["run", "-w", "60", "--owner", "me", "x", "--", "true"]);
    command.stderr(std::process::Stdio::null());
    let _waiter = Running::spawn(command);
    wait_until("it waits", || on.waiters("x") == 1);
    std::thread::sleep(std::time::Duration::from_secs(1));
    proxy.forget();
    std::thread::sleep(std::time::Duration::from_secs(12));
    let paths = proxy.paths();
    let looks = paths.iter().filter(|path| *path == TXN).count();
    assert!((2..=3).contains(&looks), "{paths:?}");
}

/// Puts so many hundred records of dead holders.
fn put_records(on: &On, hundreds: usize) {
    let record = |name: &str| {
        format!(
            r#"{{"onehold":1,"live":{{"pid":7}},"name":"{name}","hold":7,"kind":"run","taken_by":7,"acquired_at":"2026-11-23T04:29:33Z","ttl_ms":5000}}"#
        )
    };
    for page in 0..hundreds {
        let mut txn = String::from("\n");
        for at in 0..100 {
            let name = format!("l{:05}", page * 100 + at);
            let value = record(&name).replace('"', "\\\"");
            writeln!(txn, "put {}//hold/{name} \"{value}\"", on.prefix()).unwrap();
        }
        txn.push_str("\n\n");
        let mut child = std::process::Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &shared().endpoints()[0], "txn"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), txn.as_bytes()).unwrap();
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn list_is_paged_and_complete() {
    let on = On::new(shared());
    put_records(&on, 12);
    let proxy = Proxy::to(&shared().endpoints()[0]);
    let behind = On::at(format!("etcd://{}{}", proxy.endpoint, on.prefix()));
    let locks = || {
        let (_, stdout, stderr) = behind.output(&["list", "--json"]);
        assert!(!stdout.is_empty(), "{stderr}");
        let object = json_object(stdout.as_bytes());
        let locks = object["locks"].as_array().unwrap().clone();
        assert!(locks.iter().all(|lock| lock["state"] == "zombie"));
        locks.len()
    };
    assert_eq!(locks(), 1200);
    // Three pages of records, life keys, tickets.
    assert_eq!(proxy.paths().len(), 5, "{:?}", proxy.paths());
    // What it reads is compacted between two pages.
    proxy.plan(2, Fate::Delay(1_500));
    std::thread::scope(|scope| {
        let listed = scope.spawn(locks);
        wait_until("it has asked for the second page", || {
            proxy.paths().len() == 3
        });
        shared().ctl(&["put", "/elsewhere", "x"]);
        let newest = shared().ctl(&["get", "/elsewhere", "-w", "json"]);
        let newest: serde_json::Value = serde_json::from_str(&newest).unwrap();
        let newest = newest["header"]["revision"].to_string();
        shared().ctl(&["compact", &newest]);
        assert_eq!(listed.join().unwrap(), 1200);
    });
    assert_eq!(proxy.paths().len(), 8, "{:?}", proxy.paths());
}

/// Two requests for each record would take a minute where a request takes 20 ms.
#[test]
fn cleanup_of_many_is_done_in_batches() {
    let on = On::new(shared());
    put_records(&on, 3);
    let proxy = Proxy::to(&shared().endpoints()[0]);
    let behind = On::at(format!("etcd://{}{}", proxy.endpoint, on.prefix()));
    let (code, stdout, stderr) = behind.output(&["cleanup", "--json"]);
    assert_eq!(code, 0, "{stderr}");
    let object = json_object(stdout.as_bytes());
    assert_eq!(object["locks"].as_array().unwrap().len(), 300);
    assert!(shared().left_below(on.prefix()).is_empty());
    assert!(
        proxy.paths().len() <= 24,
        "{} requests",
        proxy.paths().len()
    );
}

/// Waiters for a lock that is held, in order of arrival, each with a proxy of its own that counts.
fn counted_waiters(on: &On, command: &[&str]) -> Vec<(On, Proxy, Running)> {
    let waiters = (0..CONTENDERS)
        .map(|at| {
            let proxy = Proxy::to(&shared().endpoints()[0]);
            let behind = On::at(format!("etcd://{}{}", proxy.endpoint, on.prefix()));
            let run = ["run", "-w", "60", "x", "--"].iter().chain(command);
            let mut command = behind.onehold(&run.copied().collect::<Vec<_>>());
            command.stderr(std::process::Stdio::null());
            let waiter = Running::spawn(command);
            wait_until("it waits", || on.waiters("x") == at + 1);
            (behind, proxy, waiter)
        })
        .collect();
    // The last one has prepared its sleep.
    std::thread::sleep(std::time::Duration::from_secs(1));
    waiters
}

/// The requests that are not there to stay in the queue.
fn counted(proxy: &Proxy) -> Vec<String> {
    let mut paths = proxy.paths();
    paths.retain(|path| path != KEEPALIVE);
    paths
}

/// One release wakes one waiter. The others sleep on.
#[test]
fn release_wakes_one_waiter_and_no_other() {
    let on = On::new(shared());
    let number = on.done(&["acquire", "x", "--ttl", "60"]);
    let waiters = counted_waiters(&on, &["sleep", "60"]);
    for (_, proxy, _) in &waiters {
        proxy.forget();
    }
    on.done(&["release", "x", "--hold", &number]);
    wait_until("the first one has it", || on.waiters("x") == CONTENDERS - 1);
    std::thread::sleep(std::time::Duration::from_secs(1));
    let asked: Vec<Vec<String>> = waiters.iter().map(|(_, proxy, _)| counted(proxy)).collect();
    // The take of the first one, and its watch and a look while it holds.
    assert!(asked[0].len() <= 5, "{asked:?}");
    assert!(asked[1..].iter().all(Vec::is_empty), "{asked:?}");
}

/// The lock is passed on by a release and a take, without a read or a watch between them. On a machine that takes
/// seconds for it, waiters look what is going on.
#[test]
fn hand_over_costs_two_requests() {
    let quick = std::iter::repeat_with(hand_over).take(3);
    let costs: Vec<_> = quick.take_while(|costs| !costs.is_empty()).collect();
    assert!(costs.len() < 3, "{costs:?}");
}

/// What was sent by those waiters that have sent anything else.
fn hand_over() -> Vec<Vec<String>> {
    let on = On::new(shared());
    let number = on.done(&["acquire", "x", "--ttl", "60"]);
    let mut waiters = counted_waiters(&on, &["true"]);
    for (_, proxy, _) in &waiters {
        proxy.forget();
    }
    on.done(&["release", "x", "--hold", &number]);
    let mut costs = Vec::new();
    for (_, proxy, waiter) in &mut waiters {
        assert_eq!(waiter.finish(), 0);
        costs.push(counted(proxy));
    }
    assert_eq!(shared().left_below(on.prefix()), Vec::<String>::new());
    costs.retain(|sent| *sent != [TXN, TXN]);
    costs
}

/// A ticket stays until its hold ends. It costs those nothing that it does not concern.
#[test]
fn hold_of_a_former_waiter_costs_its_siblings_nothing() {
    let on = On::new(shared());
    on.number(&["a/2"]);
    let number = on.done(&["acquire", "a/1", "--ttl", "60"]);
    let mut command = on.onehold(&["run", "-w", "60", "a/1", "--", "sleep", "60"]);
    command.stderr(std::process::Stdio::null());
    let _holder = Running::spawn(command);
    wait_until("it waits", || on.waiters("a/1") == 1);
    on.done(&["release", "a/1", "--hold", &number]);
    wait_until("it has the lock", || on.waiters("a/1") == 0);
    let proxy = Proxy::to(&shared().endpoints()[0]);
    let behind = On::at(format!("etcd://{}{}", proxy.endpoint, on.prefix()));
    behind.done(&["run", "a/2", "--", "true"]);
    assert_eq!(proxy.paths().len(), 3, "{:?}", proxy.paths());
}
