//! What is said of a lock that was lost: why.

use std::os::unix::fs::PermissionsExt as _;
use std::thread::scope;

use crate::cluster::{Cluster, On, shared};
use crate::harness::{Running, json_object};
use crate::proxy::proxies_of;
use crate::scene::{Engine, engine, scenes};

scenes! {
    record_that_is_gone_is_named,
    #[ignore = "needs root: a limit for a user of its own"] thread_that_cannot_be_started_is_named,
}

/// A holder, whose hold lasts for 10 s after it was renewed last.
const HOLDER: [&str; 7] = ["run", "--ttl", "10", "x", "--", "sleep", "600"];

/// What it says when it has lost its lock.
#[track_caller]
fn loss_of(mut holder: Running) -> String {
    let (code, _, told) = holder.finish_with_output();
    assert_eq!(code, 8, "{told}");
    let loss = "lost lock `x` while the command was running: ";
    let line = told.lines().find(|line| line.contains(loss));
    let line = line.unwrap_or_else(|| panic!("{told}"));
    line.split(loss).nth(1).unwrap().to_owned()
}

fn start(on: &On, url: &str) -> Running {
    let mut command = on.onehold(&HOLDER);
    command.env("ONEHOLD_DIR", url);
    let holder = Running::start_with_output(command);
    on.wait_until_held("x");
    holder
}

#[test]
fn members_that_do_not_answer_are_named_with_what_each_says() {
    scope(|scope| {
        scope.spawn(|| {
            let on = On::new(shared());
            let (proxies, url) = proxies_of(shared(), &on);
            let holder = start(&on, &url);
            for proxy in &proxies {
                proxy.cut();
            }
            let loss = loss_of(holder);
            assert!(loss.starts_with("cannot renew its lease: "), "{loss}");
            // It begins at one of them by chance.
            let is_named =
                |endpoint: &str| loss.contains(&format!("{endpoint}: no answer in time"));
            let named = proxies.iter().filter(|proxy| is_named(&proxy.endpoint));
            assert!(named.count() >= 1, "{loss}");
            assert!(loss.contains("; sent TERM"), "{loss}");
        });
        scope.spawn(|| {
            let cluster = Cluster::start(3);
            let on = On::new(&cluster);
            let holder = start(&on, &on.dir);
            cluster.kill(0);
            cluster.kill(1);
            let loss = loss_of(holder);
            let [gone, _, left] = &cluster.endpoints()[..] else {
                panic!("three");
            };
            assert!(
                loss.contains(&format!("{gone}: connection refused")),
                "{loss}"
            );
            // It has no leader, and says so or nothing.
            assert!(loss.contains(&format!("{left}: ")), "{loss}");
        });
    });
}

#[test]
fn password_that_is_refused_is_named() {
    let cluster = Cluster::start(1);
    let on = On::new(&cluster);
    cluster.ctl(&["user", "add", "root:top"]);
    cluster.ctl(&["auth", "enable"]);
    let mut command = on.onehold(&HOLDER);
    command.env("ETCDCTL_USER", "root:top");
    let holder = Running::start_with_output(command);
    crate::harness::wait_until("it is held", || {
        let mut check = on.onehold(&["check", "--json", "x"]);
        let output = check.env("ETCDCTL_USER", "root:top").output().unwrap();
        json_object(&output.stdout)["lock"]["state"] == "held"
    });
    let mut changed = std::process::Command::new("sh");
    changed.args([
        "-c",
        "echo new | etcdctl user passwd root --interactive=false",
    ]);
    changed
        .env("ETCDCTL_API", "3")
        .env("ETCDCTL_USER", "root:top");
    changed.env("ETCDCTL_ENDPOINTS", &cluster.endpoints()[0]);
    assert!(changed.output().unwrap().status.success());
    let loss = loss_of(holder);
    assert!(loss.contains("authentication failed"), "{loss}");
    assert!(!loss.contains("top"), "{loss}");
}

fn record_that_is_gone_is_named() {
    let on = On::of_scene();
    let holder = start(&on, &on.dir);
    on.delete_record("x");
    let loss = loss_of(holder);
    assert!(loss.starts_with("its record is gone; sent TERM"), "{loss}");
}

fn thread_that_cannot_be_started_is_named() {
    let on = On::of_scene();
    let root = on.env.root.path();
    std::fs::set_permissions(root, std::fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = on.env.command("setpriv");
    // The limit is one of a user: another one for each engine, and each run of the tests.
    let user = 100_000 + 2 * std::process::id() + u32::from(matches!(engine(), Engine::Etcd));
    command.args(["--reuid", &user.to_string(), "--clear-groups", "prlimit"]);
    // Enough for the command, and not for the threads that keep the lease.
    command.args(["--nproc=4:4", "onehold"]).args(HOLDER);
    command.env("ONEHOLD_DIR", &on.dir);
    let holder = Running::start_with_output(command);
    on.wait_until_held("x");
    let loss = loss_of(holder);
    assert!(
        loss.contains("cannot start a thread: resource temporarily"),
        "{loss}"
    );
}
