//! Servers that come back with less than they had confirmed.

use std::process::Stdio;
use std::time::Instant;

use serde_json::Value;

use crate::at_work::{assert_exclusive, run, sections};
use crate::cluster::{Cluster, On};
use crate::harness::{CONTENDERS, Running, Signal, json_object, wait_until};
use crate::postgres::Postgres;
use crate::scene::{Engine, engine, scenes};

enum Server {
    Etcd(Cluster, std::path::PathBuf),
    Postgres(Postgres),
}

impl Server {
    /// One with a store that has been used.
    fn start() -> (Self, On) {
        Self::of_members(1)
    }

    fn of_members(count: usize) -> (Self, On) {
        match engine() {
            Engine::Etcd => {
                let cluster = Cluster::start(count);
                let on = On::new(&cluster);
                let snapshot = on.env.path("snapshot");
                let server = Self::Etcd(cluster, snapshot);
                server.age(&on);
                (server, on)
            }
            Engine::Postgres => {
                let postgres = Postgres::start(&["fsync=off"]);
                let on = On::at(postgres.url("/x"));
                on.done(&["run", "first", "--", "true"]);
                (Self::Postgres(postgres), on)
            }
        }
    }

    /// As that of any cluster after a while, its term is not the first one.
    fn age(&self, on: &On) {
        if let Self::Etcd(cluster, _) = self {
            for _ in 0..2 {
                cluster.restart(cluster.leader());
                cluster.wait_until_healthy();
            }
        }
        on.done(&["run", "first", "--", "true"]);
    }

    fn back_up(&self) {
        match self {
            Self::Etcd(cluster, to) => {
                // Of one member.
                let mut save = std::process::Command::new("etcdctl");
                save.env("ETCDCTL_API", "3");
                save.args(["--endpoints", &cluster.endpoints()[0], "snapshot", "save"]);
                let saved = save.arg(to).stdout(Stdio::null()).stderr(Stdio::null());
                assert!(saved.status().unwrap().success());
            }
            Self::Postgres(postgres) => postgres.back_up(),
        }
    }

    fn restore(&self) {
        match self {
            Self::Etcd(cluster, from) => cluster.restore(Some(from)),
            Self::Postgres(postgres) => postgres.restore(),
        }
    }

    /// With an empty disk.
    fn create_again(&self) {
        match self {
            Self::Etcd(cluster, _) => cluster.restore(None),
            Self::Postgres(postgres) => postgres.create_again(),
        }
    }
}

fn start(on: &On, args: &[&str], milliseconds: u64) -> Running {
    let mut command = run(on, args, milliseconds);
    command.stderr(Stdio::null());
    Running::spawn(command)
}

/// Nothing is taken; returns for how many seconds.
#[track_caller]
fn refused(on: &On, name: &str) -> f64 {
    let (code, stdout, stderr) = on.output(&["acquire", "--json", "--ttl", "30", name]);
    assert_eq!(code, 6, "{stdout}{stderr}");
    let said = json_object(stdout.as_bytes());
    assert_eq!(said["error"]["code"], "STORE_CHANGED", "{said}");
    said["left_seconds"].as_f64().unwrap()
}

/// Whether the server is fit otherwise does not matter.
#[track_caller]
fn accept(on: &On) {
    let (_, said, _) = on.output(&["doctor", "--quick", "--accept-epoch", "--yes"]);
    assert!(said.contains("accepted: locks are taken again"), "{said}");
}

/// Beside a hold whose record may be lost nothing is taken; later all is.
#[track_caller]
fn assert_nothing_is_taken_beside(on: &On, mut holder: Running, number: &Value) {
    let left = refused(on, "x");
    assert!((8.0..=20.0).contains(&left), "{left}");
    let began = Instant::now();
    let waiters: Vec<Running> = (0..CONTENDERS)
        .map(|_| start(on, &["-w", "60", "x"], 50))
        .collect();
    refused(on, "y");
    on.wait_until_held("x");
    assert_eq!(on.lock("x")["hold"], *number);
    assert_eq!(holder.finish(), 0);
    for mut waiter in waiters {
        assert_eq!(waiter.finish(), 0);
    }
    assert!(began.elapsed().as_secs_f64() >= left - 1.0);
    assert_eq!(assert_exclusive(on).len(), 1 + CONTENDERS);
    on.done(&["run", "y", "--", "true"]);
}

#[test]
fn restored_cluster_of_three_takes_nothing_until_holders_have_written_their_records_again() {
    crate::scene::play(Engine::Etcd, || {
        let (server, on) = Server::of_members(3);
        assert_noticed(&server, &on);
    });
}

#[test]
fn emptied_cluster_of_three_is_noticed_by_its_holder() {
    crate::scene::play(Engine::Etcd, || {
        let (server, on) = Server::of_members(3);
        assert_emptied_is_noticed(&server, &on);
    });
}

/// Another leader has all that was confirmed.
#[test]
fn leader_of_three_that_fails_is_no_other_server() {
    crate::scene::play(Engine::Etcd, || {
        let (server, on) = Server::of_members(3);
        let Server::Etcd(cluster, _) = &server else {
            unreachable!("on etcd");
        };
        let mut holder = start(&on, &["x"], 12_000);
        on.wait_until_held("x");
        for _ in 0..2 {
            let leader = cluster.leader();
            cluster.kill(leader);
            on.done(&["run", "-w", "30", "y", "--", "true"]);
            cluster.restart(leader);
            cluster.wait_until_healthy();
        }
        on.done(&["run", "-w", "30", "z", "--", "true"]);
        let said = on.output(&["doctor", "--quick"]).1;
        assert!(!said.contains("nothing is taken for"), "{said}");
        assert_eq!(holder.finish(), 0);
        assert_exclusive(&on);
    });
}

/// It was taken after the backup.
fn nothing_is_taken_after_a_restore_until_holders_have_written_their_records_again() {
    let (server, on) = Server::start();
    assert_noticed(&server, &on);
}

fn assert_noticed(server: &Server, on: &On) {
    server.back_up();
    let holder = start(on, &["x"], 15_000);
    on.wait_until_held("x");
    let number = on.lock("x")["hold"].clone();
    server.restore();
    assert_nothing_is_taken_beside(on, holder, &number);
}

/// A primary, its standby, and a store that is on both.
fn with_a_standby() -> (Postgres, Postgres, On) {
    let primary = Postgres::start(&["fsync=off", "wal_level=replica"]);
    let standby = primary.standby();
    let ports = (primary.port, standby.port);
    let on = On::at(format!(
        "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres/x",
        ports.0, ports.1
    ));
    on.done(&["run", "first", "--", "true"]);
    wait_until_there(&standby, "epoch");
    (primary, standby, on)
}

fn wait_until_there(standby: &Postgres, key: &str) {
    let sql = format!("select count(*) from onehold.item where key = '/x//{key}'");
    wait_until("it is replicated", || standby.sql(&sql) == "1");
}

fn fail_over(primary: &Postgres, standby: &Postgres) {
    primary.kill();
    standby.sql("select pg_promote()");
    standby.wait_until_writable();
}

#[test]
fn nothing_is_taken_after_a_failover_that_lost_a_hold() {
    let (primary, standby, on) = with_a_standby();
    standby.sql("alter system set primary_conninfo = ''");
    standby.sql("select pg_reload_conf()");
    wait_until("it does not follow any more", || {
        standby.sql("select count(*) from pg_stat_wal_receiver") == "0"
    });
    let holder = start(&on, &["x"], 15_000);
    on.wait_until_held("x");
    let number = on.lock("x")["hold"].clone();
    fail_over(&primary, &standby);
    assert_eq!(on.state("x"), "free");
    assert_nothing_is_taken_beside(&on, holder, &number);
}

/// That it lost nothing cannot be known.
#[test]
fn holds_go_on_over_a_failover_that_lost_nothing() {
    let (primary, standby, on) = with_a_standby();
    let holder = start(&on, &["x"], 15_000);
    on.wait_until_held("x");
    wait_until_there(&standby, "life/x");
    assert_holds_go_on(&primary, &standby, &on, holder);
}

/// What was confirmed is there, however soon the primary fails.
#[test]
fn holds_go_on_over_a_failover_to_a_synchronous_standby() {
    let (primary, standby, on) = with_a_standby();
    primary.sql("alter system set synchronous_standby_names = '*'");
    primary.sql("select pg_reload_conf()");
    wait_until("it is synchronous", || {
        primary.sql("select count(*) from pg_stat_replication where sync_state = 'sync'") == "1"
    });
    let said = on.output(&["doctor", "--quick"]).1;
    assert!(!said.contains("replicas "), "{said}");
    let holder = start(&on, &["x"], 15_000);
    wait_until("a section has begun", || !sections(&on).is_empty());
    assert_holds_go_on(&primary, &standby, &on, holder);
}

fn assert_holds_go_on(primary: &Postgres, standby: &Postgres, on: &On, holder: Running) {
    let number = on.lock("x")["hold"].clone();
    fail_over(primary, standby);
    assert_eq!(on.state("x"), "held");
    // A refusal by the hold itself comes first.
    assert_eq!(on.code(&["run", "x", "--", "true"]), 6);
    let waiter = start(on, &["-w", "60", "x"], 50);
    refused(on, "y");
    let mut both = [holder, waiter];
    assert_eq!(on.lock("x")["hold"], number);
    assert_eq!(both.each_mut().map(|one| one.finish()), [0, 0]);
    assert_eq!(assert_exclusive(on).len(), 2);
}

fn a_person_can_end_that() {
    let (server, on) = Server::start();
    server.back_up();
    server.restore();
    refused(&on, "x");
    let (_, said, _) = on.output(&["doctor", "--quick"]);
    assert!(said.contains("nothing is taken for"), "{said}");
    assert_eq!(on.code(&["doctor", "--quick", "--accept-epoch"]), 2);
    refused(&on, "x");
    accept(&on);
    on.done(&["run", "x", "--", "true"]);
    // It need not have been noticed before.
    server.age(&on);
    server.back_up();
    server.restore();
    accept(&on);
    on.done(&["run", "x", "--", "true"]);
}

/// Nobody can know that there was something, but a holder.
fn holder_writes_its_record_to_an_emptied_server_and_nothing_else_is_taken_there() {
    let (server, on) = Server::start();
    assert_emptied_is_noticed(&server, &on);
}

fn assert_emptied_is_noticed(server: &Server, on: &On) {
    let mut holder = start(on, &["--ttl", "12", "x"], 60_000);
    on.wait_until_held("x");
    let number = on.lock("x")["hold"].clone();
    wait_until("a section has begun", || !sections(on).is_empty());
    server.create_again();
    on.wait_until_held("x");
    assert_eq!(on.lock("x")["hold"], number);
    refused(on, "y");
    holder.signal(Signal::TERM);
    holder.finish();
    accept(on);
    let next = on.done(&["run", "x", "--", "sh", "-c", "echo $ONEHOLD_HOLD"]);
    assert!(next.parse::<u64>().unwrap() > number.as_u64().unwrap());
}

scenes! {
    nothing_is_taken_after_a_restore_until_holders_have_written_their_records_again,
    a_person_can_end_that,
    holder_writes_its_record_to_an_emptied_server_and_nothing_else_is_taken_there,
}
