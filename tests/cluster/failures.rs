use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::at_work::{assert_exclusive, run, sections};
use crate::cluster::{Cluster, On, shared};
use crate::harness::{Running, exit_code, last_json_object, wait_until};
use crate::keeper::{children_of, send};
use crate::proxy::{Fate, Proxy, proxies_of};

fn start(on: &On, args: &[&str], milliseconds: u64) -> Running {
    let mut command = run(on, args, milliseconds);
    command.stderr(Stdio::null());
    Running::spawn(command)
}

fn wait_until_at_work(on: &On, count: usize) {
    wait_until("a section has begun", || sections(on).len() >= count);
}

#[test]
fn hold_outlives_the_leader() {
    let cluster = Cluster::start(3);
    let on = On::new(&cluster);
    // The default time to live: beats each 6.7 s, and no TERM before 12 s without one.
    let mut holder = start(&on, &["x"], 24_000);
    wait_until_at_work(&on, 1);
    let leader = cluster.leader();
    cluster.kill(leader);
    assert_eq!(on.code(&["run", "y", "--", "true"]), 0);
    assert_eq!(on.state("x"), "held");
    cluster.restart(leader);
    std::thread::sleep(Duration::from_secs(3));
    // One that hangs is not known to be gone.
    let leader = cluster.leader();
    cluster.signal(leader, Signal::STOP);
    assert_eq!(on.code(&["run", "y", "--", "true"]), 0);
    std::thread::sleep(Duration::from_secs(4));
    cluster.signal(leader, Signal::CONT);
    assert_eq!(holder.finish(), 0);
    assert_eq!(on.code(&["run", "-w", "30", "x", "--", "true"]), 0);
}

#[test]
fn nothing_is_free_without_a_quorum_and_waiters_go_on_when_it_is_back() {
    let cluster = Cluster::start(3);
    let on = On::new(&cluster);
    let mut holder = start(&on, &["--ttl", "10", "x"], 60_000);
    wait_until_at_work(&on, 1);
    let mut waiter = start(&on, &["--ttl", "10", "-w", "90", "x"], 100);
    wait_until("it waits", || on.waiters("x") == 1);
    cluster.kill(1);
    cluster.kill(2);
    // It gives its work up in time.
    let began = Instant::now();
    assert_eq!(holder.finish(), 8);
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
    let (code, stdout, stderr) = on.output(&["check", "x"]);
    assert_eq!((code, &*stdout), (1, ""), "{stderr}");
    assert!(stderr.contains("cannot read locks in"), "{stderr}");
    assert!(stderr.contains("endpoint status"), "{stderr}");
    assert_eq!(on.code(&["run", "y", "--", "true"]), 125);
    assert_eq!(sections(&on).len(), 1);
    cluster.restart(1);
    cluster.restart(2);
    assert_eq!(waiter.finish(), 0);
    assert_eq!(assert_exclusive(&on).len(), 2);
    assert_eq!(on.code(&["run", "y", "--", "true"]), 0);
}

#[test]
fn hold_whose_lease_was_revoked_is_resumed_and_loses_nothing() {
    let cluster = Cluster::start(1);
    let on = On::new(&cluster);
    let mut holder = start(&on, &["--ttl", "10", "x"], 15_000);
    wait_until_at_work(&on, 1);
    let number = on.lock("x")["hold"].clone();
    let mut waiter = start(&on, &["-w", "60", "x"], 100);
    wait_until("it waits", || on.waiters("x") == 1);
    // It would be resumed before it can be looked at.
    let keeper = children_of(holder.pid())[0];
    send(keeper, Signal::STOP);
    revoke_lives(&cluster, "//life/");
    let lock = on.lock("x");
    send(keeper, Signal::CONT);
    assert_eq!(
        (&lock["state"], &lock["proof"]),
        (&"zombie".into(), &"lease-ended".into())
    );
    assert!(lock["takeable_in_ms"].as_u64().unwrap() > 5_000, "{lock}");
    wait_until("it is resumed", || on.state("x") == "held");
    assert_eq!(on.lock("x")["hold"], number);
    assert_eq!(holder.finish(), 0);
    assert_eq!(waiter.finish(), 0);
    assert_eq!(assert_exclusive(&on).len(), 2);
}

/// Ends the leases that keep holds of these names.
fn revoke_lives(cluster: &Cluster, key: &str) {
    for lease in cluster.ctl(&["lease", "list"]).lines().skip(1) {
        let text = cluster.ctl(&["lease", "timetolive", lease.trim(), "--keys"]);
        if text.contains(key) {
            cluster.ctl(&["lease", "revoke", lease.trim()]);
        }
    }
}

#[test]
fn waiter_does_not_pass_a_child_or_a_reader_whose_lease_ended_early() {
    let cluster = Cluster::start(1);
    for (holder, waiter, key) in [
        (
            &["--ttl", "10", "c/1"][..],
            &["-w", "60", "c"][..],
            "//life/c/1",
        ),
        (
            &["--ttl", "10", "-s", "x"],
            &["-w", "60", "x"],
            "//life/x//0",
        ),
    ] {
        let on = On::new(&cluster);
        let mut holder = start(&on, holder, 6_000);
        wait_until_at_work(&on, 1);
        let mut waiter = start(&on, waiter, 100);
        let name = key.trim_start_matches("//life/").split('/').next().unwrap();
        wait_until("it waits", || on.waiters(name) == 1);
        std::thread::sleep(Duration::from_millis(300));
        revoke_lives(&cluster, key);
        assert_eq!(holder.finish(), 0);
        assert_eq!(waiter.finish(), 0);
        let all = sections(&on);
        assert_eq!(all.len(), 2, "{all:?}");
        assert!(all[0].to < all[1].from, "{all:#?}");
    }
}

#[test]
fn reader_resumes_its_slot_although_a_lower_one_is_free() {
    let cluster = Cluster::start(1);
    let on = On::new(&cluster);
    let mut first = start(&on, &["-s", "x"], 1_500);
    wait_until_at_work(&on, 1);
    let mut second = start(&on, &["--ttl", "10", "-s", "x"], 8_000);
    wait_until_at_work(&on, 2);
    assert_eq!(first.finish(), 0);
    revoke_lives(&cluster, "//life/x//1");
    assert_eq!(second.finish(), 0);
}

#[test]
fn break_is_done_when_the_next_waiter_has_the_lock() {
    let on = On::new(shared());
    let mut holder = start(&on, &["x"], 60_000);
    wait_until_at_work(&on, 1);
    let mut waiter = start(&on, &["-w", "60", "x"], 3_000);
    wait_until("it waits", || on.waiters("x") == 1);
    let began = Instant::now();
    let (code, _, stderr) = on.output(&["break", "x", "--yes"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(holder.finish(), 8);
    assert_eq!(waiter.finish(), 0);
    assert_eq!(assert_exclusive(&on).len(), 2);
}

/// Its member was restarted. The next renewal is due 20 s later.
#[test]
fn break_is_noticed_although_the_watch_for_it_has_ended() {
    let on = On::new(shared());
    let (proxies, url) = proxies_of(shared(), &on);
    let mut command = run(&on, &["--ttl", "60", "x"], 60_000);
    command.env("ONEHOLD_DIR", url).stderr(Stdio::null());
    let mut holder = Running::spawn(command);
    wait_until_at_work(&on, 1);
    let watches = || {
        let paths = proxies.iter().flat_map(Proxy::paths);
        paths.filter(|path| path == "/v3/watch").count()
    };
    wait_until("it watches", || watches() > 0);
    std::thread::sleep(Duration::from_secs(1));
    proxies.iter().for_each(Proxy::mend);
    let began = Instant::now();
    let (code, _, stderr) = on.output(&["break", "x", "--yes"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(
        began.elapsed() < Duration::from_secs(11),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(holder.finish(), 8);
}

#[test]
fn waiter_for_dead_slots_does_not_ask_all_the_time() {
    let cluster = Cluster::start(1);
    let on = On::new(&cluster);
    on.done(&["run", "first", "--", "true"]);
    on.done(&["acquire", "--slots", "1", "x", "--ttl", "8"]);
    revoke_lives(&cluster, "//life/x//0");
    let proxy = Proxy::to(&cluster.endpoints()[0]);
    let behind = On::at(format!("etcd://{}{}", proxy.endpoint, on.prefix()));
    assert_eq!(
        behind.code(&["run", "-w", "30", "--slots", "1", "x", "--", "true"]),
        0
    );
    assert!(proxy.paths().len() < 40, "{} requests", proxy.paths().len());
}

#[test]
fn dead_lock_is_taken_without_wait_after_the_finder_has_seen_it_dead_for_a_time_to_live() {
    let cluster = Cluster::start(1);
    let on = On::new(&cluster);
    on.done(&["acquire", "x", "--ttl", "6", "--owner", "me", "-m", "why"]);
    for lease in cluster.ctl(&["lease", "list"]).lines().skip(1) {
        cluster.ctl(&["lease", "revoke", lease.trim()]);
    }
    let (code, stdout, _) = on.output(&["check", "x"]);
    assert_eq!(code, 5);
    assert!(
        stdout.contains("a lease of me") && stdout.contains("\"why\""),
        "{stdout}"
    );
    assert!(stdout.contains("can be taken over in 6s"), "{stdout}");
    assert_eq!(
        on.code(&["run", "--on-zombie", "fail", "x", "--", "true"]),
        5
    );
    let began = Instant::now();
    let (code, _, stderr) = on.output(&["run", "x", "--", "true"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(
        began.elapsed() > Duration::from_secs(6),
        "{:?}",
        began.elapsed()
    );
    assert!(
        began.elapsed() < Duration::from_secs(9),
        "{:?}",
        began.elapsed()
    );
    assert!(
        stderr.contains("took over zombie `x`: a lease of me"),
        "{stderr}"
    );
    assert_eq!(on.state("x"), "free");
}

#[test]
fn cleanup_removes_what_it_has_seen_dead_for_its_time_to_live() {
    let cluster = Cluster::start(1);
    let on = On::new(&cluster);
    on.done(&["acquire", "x", "y", "--ttl", "5"]);
    on.done(&["acquire", "z", "--ttl", "100"]);
    for lease in cluster.ctl(&["lease", "list"]).lines().skip(1) {
        let text = cluster.ctl(&["lease", "timetolive", lease.trim(), "--keys"]);
        if text.contains("//life/x") {
            cluster.ctl(&["lease", "revoke", lease.trim()]);
        }
    }
    let (_, stdout, stderr) = on.output(&["cleanup", "--dry-run"]);
    assert!(
        format!("{stdout}{stderr}").contains('x'),
        "{stdout}{stderr}"
    );
    on.done(&["cleanup"]);
    assert_eq!(on.state("x"), "free");
    assert_eq!(on.state("z"), "held");
    assert_eq!(cluster.left_below(on.prefix()).len(), 2);
}

#[test]
fn first_waiter_that_is_cut_off_holds_up_the_next_one_for_seconds_only() {
    let on = On::new(shared());
    let number = on.done(&["acquire", "x", "--ttl", "60"]);
    let (proxies, url) = proxies_of(shared(), &on);
    let mut command = run(&on, &["-w", "60", "x"], 100);
    command.env("ONEHOLD_DIR", url).stderr(Stdio::null());
    let mut first = Running::spawn(command);
    wait_until("it waits", || on.waiters("x") == 1);
    let mut second = start(&on, &["-w", "60", "x"], 100);
    wait_until("it waits, too", || on.waiters("x") == 2);
    for proxy in &proxies {
        proxy.cut();
    }
    on.done(&["release", "x", "--hold", &number]);
    let began = Instant::now();
    assert_eq!(second.finish(), 0);
    assert!(
        began.elapsed() < Duration::from_secs(8),
        "{:?}",
        began.elapsed()
    );
    for proxy in &proxies {
        proxy.mend();
    }
    assert_eq!(first.finish(), 0);
    assert_eq!(assert_exclusive(&on).len(), 2);
}

#[test]
fn waiter_is_woken_although_the_history_was_compacted() {
    let cluster = Cluster::start(1);
    let on = On::new(&cluster);
    let number = on.done(&["acquire", "x", "--ttl", "60"]);
    let mut waiter = start(&on, &["-w", "60", "x"], 100);
    wait_until("it waits", || on.waiters("x") == 1);
    for at in 0..20 {
        cluster.ctl(&["put", "/elsewhere", &at.to_string()]);
    }
    let status = cluster.ctl(&["get", "/elsewhere", "-w", "json"]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    cluster.ctl(&["compact", &status["header"]["revision"].to_string()]);
    on.done(&["release", "x", "--hold", &number]);
    let began = Instant::now();
    assert_eq!(waiter.finish(), 0);
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
}

#[test]
fn full_database_refuses_new_holds_keeps_and_releases_others_and_ends_no_wait() {
    let cluster = Cluster::start_with(1, "http", &["--quota-backend-bytes", "4000000"]);
    let on = On::new(&cluster);
    let number = on.done(&["acquire", "lease", "--ttl", "60"]);
    // Beats meanwhile.
    let mut holder = start(&on, &["--ttl", "10", "x"], 14_000);
    wait_until_at_work(&on, 1);
    let mut kept = on.onehold(&["run", "--hold-at-least", "1h", "kept", "--", "sh", "-c"]);
    kept.arg("until [ -e end ]; do sleep 0.01; done")
        .stderr(Stdio::null());
    let mut kept = Running::spawn(kept);
    on.wait_until_held("kept");
    let mut waiter = start(&on, &["-w", "10m", "lease"], 0);
    wait_until("it waits", || on.waiters("lease") == 1);
    let value = "x".repeat(100_000);
    let is_full = (0..60).any(|at| {
        let key = format!("/elsewhere/{at}");
        !cluster.etcdctl(&["put", &key, &value]).0
    });
    assert!(is_full);
    let (code, _, stderr) = on.output(&["run", "y", "--", "true"]);
    assert_eq!(code, 125, "{stderr}");
    assert!(stderr.contains("database space exceeded"), "{stderr}");
    assert!(stderr.contains("etcdctl alarm disarm"), "{stderr}");
    assert_eq!(on.state("x"), "held");
    on.done(&["release", "lease", "--hold", &number]);
    let mut later = start(&on, &["-w", "10m", "z"], 0);
    let (code, _, stderr) = on.output(&["run", "-w", "2", "z", "--", "true"]);
    assert_eq!(code, 125, "{stderr}");
    assert!(stderr.contains("etcdctl alarm disarm"), "{stderr}");
    std::fs::write(on.env.path("end"), "").unwrap();
    assert_eq!(holder.finish(), 0);
    assert_eq!(on.state("x"), "free");
    // Who waits goes on waiting, and what is to be kept is kept alive.
    for process in [&mut waiter, &mut later, &mut kept] {
        assert!(!process.has_ended());
    }
    assert_eq!(on.lock("kept")["reason"], "alive");
    // The waiters have their places.
    let mut left = cluster.left_below(on.prefix());
    left.retain(|key| !key.contains("//wait/"));
    assert!(left.iter().all(|key| key.ends_with("/kept")), "{left:?}");
    cluster.ctl(&["del", "--prefix", "/elsewhere/"]);
    let newest = cluster.ctl(&["get", "/elsewhere/", "-w", "json"]);
    let newest: serde_json::Value = serde_json::from_str(&newest).unwrap();
    cluster.ctl(&["compact", &newest["header"]["revision"].to_string()]);
    cluster.ctl(&["defrag"]);
    cluster.ctl(&["alarm", "disarm"]);
    assert_eq!(on.code(&["run", "y", "--", "true"]), 0);
    for process in [&mut waiter, &mut later, &mut kept] {
        assert_eq!(process.finish(), 0);
    }
    assert_eq!(on.lock("kept")["reason"], "kept");
}

#[test]
fn lost_requests_and_answers_change_nothing() {
    let cluster = Cluster::start(1);
    let on = On::new(&cluster);
    let proxy = Proxy::to(&cluster.endpoints()[0]);
    let behind = On::at(format!("etcd://{}{}", proxy.endpoint, on.prefix()));
    on.done(&["run", "first", "--", "true"]);
    let log = on.env.path("ran");
    let append = format!("echo >> {}", log.display());
    let mut ran = 0;
    for fate in [Fate::SwallowAnswer, Fate::Drop, Fate::Delay(3_000)] {
        let verbs: [(&str, usize, &dyn Fn() -> i32); 5] = [
            ("run", 3, &|| {
                behind.code(&["run", "x", "--", "sh", "-c", &append])
            }),
            ("acquire", 2, &|| {
                let code = behind.code(&["acquire", "x", "--ttl", "60", "--owner", "me"]);
                assert_eq!(on.state("x"), "held");
                on.done(&["release", "x", "--owner", "me"]);
                code
            }),
            ("release", 3, &|| {
                proxy.unplan_for(|| on.done(&["acquire", "x", "--ttl", "60", "--owner", "me"]));
                let code = behind.code(&["release", "x", "--owner", "me"]);
                assert_eq!(on.state("x"), "free");
                code
            }),
            ("renew", 4, &|| {
                proxy.unplan_for(|| on.done(&["acquire", "x", "--ttl", "60", "--owner", "me"]));
                let code = behind.code(&["renew", "x", "--owner", "me", "--ttl", "90"]);
                assert_eq!(on.lock("x")["ttl_seconds"], 90.0);
                on.done(&["release", "x", "--owner", "me"]);
                code
            }),
            ("check", 1, &|| behind.code(&["check", "x"])),
        ];
        for (verb, requests, act) in verbs {
            for number in 0..requests {
                proxy.plan(number, fate);
                let code = act();
                proxy.unplan();
                assert_eq!(code, 0, "{verb}, request {number}, {fate:?}");
                if verb == "run" {
                    ran += 1;
                    let lines = std::fs::read_to_string(&log).unwrap().lines().count();
                    assert_eq!(lines, ran, "{verb}, request {number}, {fate:?}");
                }
                // What comes late must not take a lock.
                if fate == Fate::Delay(3_000) {
                    std::thread::sleep(Duration::from_millis(1_200));
                }
                assert_eq!(on.state("x"), "free", "{verb}, request {number}, {fate:?}");
                let left = cluster.left_below(on.prefix());
                assert!(
                    left.is_empty(),
                    "{verb}, request {number}, {fate:?}: {left:?}"
                );
            }
        }
    }
}

#[test]
fn waiter_whose_answers_are_lost_gets_the_lock_once() {
    let cluster = Cluster::start(1);
    let on = On::new(&cluster);
    let proxy = Proxy::to(&cluster.endpoints()[0]);
    let behind = On::at(format!("etcd://{}{}", proxy.endpoint, on.prefix()));
    on.done(&["run", "first", "--", "true"]);
    let log = on.env.path("ran");
    let append = format!("echo >> {}", log.display());
    for (at, number) in (0..9).enumerate() {
        let hold = on.done(&["acquire", "x", "--ttl", "60"]);
        proxy.plan(number, Fate::SwallowAnswer);
        let mut command = behind.onehold(&["run", "-w", "60", "x", "--", "sh", "-c", &append]);
        command.stderr(Stdio::null());
        let mut waiter = Running::spawn(command);
        wait_until("it waits", || on.waiters("x") >= 1);
        on.done(&["release", "x", "--hold", &hold]);
        assert_eq!(waiter.finish(), 0, "request {number}");
        let lines = std::fs::read_to_string(&log).unwrap().lines().count();
        assert_eq!(lines, at + 1, "request {number}");
        wait_until("nothing is left", || {
            cluster.left_below(on.prefix()).is_empty()
        });
    }
}

#[test]
fn numbers_grow_after_the_cluster_was_restored_and_the_old_holder_keeps_its_own() {
    let cluster = Cluster::start(1);
    let on = On::new(&cluster);
    on.done(&["run", "x", "--", "true"]);
    let snapshot = on.env.path("snapshot");
    cluster.ctl(&["snapshot", "save", snapshot.to_str().unwrap()]);
    let before: u64 = on
        .done(&["run", "x", "--", "sh", "-c", "echo $ONEHOLD_HOLD"])
        .parse()
        .unwrap();
    for data in [Some(&*snapshot), None] {
        let mut holder = start(&on, &["--ttl", "10", "x"], 60_000);
        on.wait_until_held("x");
        let held = on.lock("x")["hold"].as_u64().unwrap();
        assert!(held > before);
        cluster.restore(data);
        // Its record is not there any more: it writes that again.
        on.wait_until_held("x");
        assert_eq!(on.lock("x")["hold"], held);
        assert_eq!(on.code(&["run", "y", "--", "true"]), 6);
        holder.signal(Signal::TERM);
        holder.finish();
        on.code(&["doctor", "--quick", "--accept-epoch", "--yes"]);
        let number = on.done(&["run", "x", "--", "sh", "-c", "echo $ONEHOLD_HOLD"]);
        assert!(number.parse::<u64>().unwrap() > held);
    }
}

/// In the data of before, the next hold is written at the same revision as the first one was.
#[test]
fn holder_from_before_a_restore_leaves_the_next_hold_alone_when_it_ends() {
    let cluster = Cluster::start(1);
    let on = On::new(&cluster);
    on.done(&["run", "x", "--", "true"]);
    let until = |file: &str| format!("until [ -e {file} ]; do sleep 0.01; done");
    for (what, more, event) in [
        ("released", &[][..], "end"),
        ("kept", &["--hold-at-least", "1h"], "end"),
        ("killed", &[], "kill"),
    ] {
        for data in ["backup", "nothing"] {
            let what = format!("{what}-{data}");
            let snapshot = on.env.path(&format!("snapshot-{what}"));
            let snapshot = (data == "backup").then_some(&*snapshot);
            match snapshot {
                Some(path) => drop(cluster.ctl(&["snapshot", "save", path.to_str().unwrap()])),
                None => cluster.restore(None),
            }
            let (first, second) = (format!("first-{what}"), format!("second-{what}"));
            // Its next beat is due after 20 s.
            let args = [&["run", "--ttl", "60"], more, &["x", "--", "sh", "-c"]].concat();
            let mut command = on.onehold(&args);
            command.arg(until(&first)).stderr(Stdio::null());
            let mut before = Running::spawn(command);
            on.wait_until_held("x");
            cluster.restore(snapshot);
            let mut command = on.onehold(&["run", "x", "--", "sh", "-c", &until(&second)]);
            command.stderr(Stdio::null());
            let mut next = Running::spawn(command);
            on.wait_until_held("x");
            let number = on.lock("x")["hold"].clone();
            match event {
                "end" => std::fs::write(on.env.path(&first), "").unwrap(),
                _ => send(children_of(before.pid())[0], Signal::KILL),
            }
            assert_eq!(before.finish(), 8, "{what}");
            let lock = on.lock("x");
            assert_eq!(
                (&lock["state"], &lock["hold"]),
                (&"held".into(), &number),
                "{what}: {lock}"
            );
            std::fs::write(on.env.path(&second), "").unwrap();
            assert_eq!(next.finish(), 0, "{what}");
        }
    }
}

#[test]
fn member_that_does_not_answer_is_passed_by() {
    let on = On::new(shared());
    let dead = crate::cluster::free_port();
    let silent = Proxy::to(&shared().endpoints()[0]);
    silent.cut();
    let url = |first: String| format!("etcd://{first},{}{}", shared().endpoints()[1], on.prefix());
    let refusing = On::at(url(format!("127.0.0.1:{dead}")));
    assert_eq!(refusing.code(&["run", "x", "--", "true"]), 0);
    let began = Instant::now();
    let hanging = On::at(url(silent.endpoint.clone()));
    assert_eq!(hanging.code(&["run", "x", "--", "true"]), 0);
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    let nobody = On::at(format!("etcd://127.0.0.1:{dead}/x"));
    let (code, _, stderr) = nobody.output(&["check", "x"]);
    assert_eq!(code, 1);
    assert!(stderr.contains("connection refused"), "{stderr}");
    let (code, stdout, stderr) = nobody.output(&["run", "--json", "x", "--", "true"]);
    assert_eq!((code, &*stdout), (125, ""));
    let object = last_json_object(stderr.as_bytes());
    assert_eq!(object["error"]["code"], "STORE");
}

/// A port that takes no connection, and refuses none: of a host that is switched off.
fn silent_port() -> (std::net::TcpListener, Vec<std::net::TcpStream>, u16) {
    use std::os::fd::AsRawFd;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    // SAFETY: a descriptor of ours. A backlog of 0 has room for one connection.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    let address = listener.local_addr().unwrap();
    let connect = || std::net::TcpStream::connect_timeout(&address, Duration::from_millis(300));
    let mut room = Vec::new();
    while let Ok(connection) = connect() {
        room.push(connection);
    }
    (listener, room, address.port())
}

#[test]
fn hosts_that_are_switched_off_cost_a_quarter_of_a_second() {
    let on = On::new(shared());
    let silent = [silent_port(), silent_port()];
    let [one, other] = [0, 1].map(|at: usize| silent[at].2);
    let member = &shared().endpoints()[0];
    let url = format!(
        "etcd://127.0.0.1:{one},127.0.0.1:{other},{member}{}",
        on.prefix()
    );
    let on = On::at(url);
    for _ in 0..8 {
        let began = Instant::now();
        assert_eq!(on.code(&["run", "x", "--", "true"]), 0);
        assert!(
            began.elapsed() < Duration::from_millis(1_500),
            "{:?}",
            began.elapsed()
        );
    }
    // Each is named if none does it.
    let hung = Proxy::to(member);
    hung.cut();
    let last = &hung.endpoint;
    let nobody = On::at(format!("etcd://127.0.0.1:{one},127.0.0.1:{other},{last}/x"));
    let began = Instant::now();
    let (code, _, stderr) = nobody.output(&["check", "x"]);
    assert_eq!(code, 1);
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
    let is_named = |port: u16| stderr.contains(&format!("127.0.0.1:{port}: no answer in time"));
    assert!(
        is_named(one) && is_named(other) && stderr.contains(last),
        "{stderr}"
    );
}

#[test]
fn each_process_starts_at_one_of_the_members_by_chance() {
    let on = On::new(shared());
    let (proxies, url) = proxies_of(shared(), &on);
    let behind = On::at(url);
    for _ in 0..40 {
        behind.done(&["check", "x"]);
    }
    let asked: Vec<usize> = proxies.iter().map(|proxy| proxy.paths().len()).collect();
    assert_eq!(asked.iter().sum::<usize>(), 40, "{asked:?}");
    assert!(asked.iter().all(|count| *count > 0), "{asked:?}");
}

/// From 0.6 times to live after the last one that was kept, its command is ended.
#[test]
fn keeper_asks_a_third_member_long_before_its_hold_is_lost_when_two_say_nothing() {
    let cluster = shared();
    let proxies: Vec<Proxy> = cluster
        .endpoints()
        .iter()
        .map(|member| Proxy::to(member))
        .collect();
    let endpoints: Vec<&str> = proxies.iter().map(|proxy| &*proxy.endpoint).collect();
    let on = On::at(format!("etcd://{}/two-say-nothing", endpoints.join(",")));
    let mut holder = start(&on, &["--ttl", "20", "x"], 14_000);
    wait_until_at_work(&on, 1);
    let began = Instant::now();
    let first = proxies.iter().position(|proxy| !proxy.paths().is_empty());
    let [first, second, third] = [0, 1, 2].map(|after| &proxies[(first.unwrap() + after) % 3]);
    first.cut();
    second.cut();
    wait_until("the third one is asked", || !third.paths().is_empty());
    let took = began.elapsed().as_secs_f64();
    // The first request is due after a third of the time to live.
    assert!((4.0..10.0).contains(&took), "{took}");
    assert_eq!(holder.finish(), 0);
}

#[test]
fn endpoints_of_two_clusters_are_refused() {
    let other = Cluster::start(1);
    let on = On::new(shared());
    let proxies = [shared(), &other].map(|cluster| Proxy::to(&cluster.endpoints()[0]));
    // The second request is lost, so that the other cluster is asked.
    for proxy in &proxies {
        proxy.plan(1, Fate::Drop);
    }
    let [first, second] = &proxies;
    let both = On::at(format!(
        "etcd://{},{}{}",
        first.endpoint,
        second.endpoint,
        on.prefix()
    ));
    let (code, _, stderr) = both.output(&["run", "x", "--", "true"]);
    assert_eq!(code, 125, "{stderr}");
    assert!(stderr.contains("member of another cluster"), "{stderr}");
}

#[test]
fn faults_at_random_never_let_two_in() {
    let seconds = std::env::var("STRESS_SECONDS").map_or(30, |text| text.parse().unwrap());
    let cluster = Cluster::start(3);
    let on = On::new(&cluster);
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let mut rng = crate::harness::Rng(0x2545_F491_4F6C_DD1D);
    let mut clients: Vec<(Running, Vec<Proxy>)> = Vec::new();
    let (mut done, mut lost, mut faults) = (0, 0, 0);
    let mut stopped: Option<(usize, Instant)> = None;
    let mut paused = Vec::new();
    while Instant::now() < deadline {
        while clients.len() < 12 {
            let (proxies, url) = proxies_of(&cluster, &on);
            let lasts = [5, 5, 50, 50, 500, 12_000][rng.below(6)];
            let name = ["a", "a/b", "c"][rng.below(3)];
            let mut command = run(&on, &["--ttl", "10", "-w", "120", name], lasts);
            command.env("ONEHOLD_DIR", url).stderr(Stdio::null());
            clients.push((Running::spawn(command), proxies));
        }
        std::thread::sleep(Duration::from_millis(20));
        if rng.below(40) == 0 {
            faults += 1;
            let at = rng.below(clients.len());
            let (client, proxies) = &mut clients[at];
            let keeper =
                std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", client.pid()));
            let keeper: Option<i32> = keeper.ok().and_then(|text| text.trim().parse().ok());
            let keeper = keeper.and_then(rustix::process::Pid::from_raw);
            let send = |signal| {
                if let Some(keeper) = keeper {
                    let _ = rustix::process::kill_process(keeper, signal);
                }
            };
            match rng.below(7) {
                0 => send(Signal::KILL),
                1 => client.signal(Signal::KILL),
                2 => {
                    client.signal(Signal::KILL);
                    send(Signal::KILL);
                }
                3 => {
                    send(Signal::STOP);
                    paused.extend(keeper);
                }
                4 => send(Signal::CONT),
                5 => proxies.iter().for_each(Proxy::cut),
                _ if stopped.is_none() => {
                    let member = rng.below(3);
                    cluster.signal(member, Signal::STOP);
                    stopped = Some((member, Instant::now() + Duration::from_secs(2)));
                }
                _ => {}
            }
        }
        if let Some((member, _)) = stopped.filter(|(_, until)| Instant::now() >= *until) {
            cluster.signal(member, Signal::CONT);
            stopped = None;
        }
        clients.retain_mut(|(client, _)| {
            let ended = client.child.try_wait().unwrap();
            if let Some(status) = ended {
                match exit_code(status) {
                    0 => done += 1,
                    _ => lost += 1,
                }
            }
            ended.is_none()
        });
    }
    for member in 0..3 {
        cluster.signal(member, Signal::CONT);
    }
    // Without it, those whose wrapper was killed would stay for ever.
    for keeper in paused {
        let _ = rustix::process::kill_process(keeper, Signal::CONT);
    }
    drop(clients);
    let all = assert_exclusive(&on);
    // Nothing is stuck: what is dead can be taken.
    for name in ["a", "a/b", "c"] {
        let (code, _, stderr) = on.output(&["run", "-w", "60", name, "--", "true"]);
        assert_eq!(code, 0, "{name}: {stderr}");
    }
    // A dead holder keeps its lock for 10 to 20 s. An hour has had 1446 sections.
    let least = usize::try_from(seconds / 10).unwrap();
    assert!(all.len() >= least, "{} sections", all.len());
    println!(
        "{} sections, {done} done, {lost} lost or killed, {faults} faults",
        all.len()
    );
}
