//! Servers of PostgreSQL that fail, or are set otherwise than is good for locks.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::at_work::{assert_exclusive, run};
use crate::clocks::WallClock;
use crate::cluster::{On, free_port};
use crate::harness::{CONTENDERS, Running, wait_until};
use crate::on_postgres::{quiet, with_password};
use crate::postgres::{Postgres, directory, unprivileged};

#[test]
fn clock_of_the_server_may_be_set_forward_and_back() {
    const HOUR: i64 = 60 * 60;
    let files = directory();
    let clock = WallClock::at(files.path().join("clock"));
    for file in ["", "clock"] {
        let all = fs::Permissions::from_mode(0o755);
        fs::set_permissions(files.path().join(file), all).unwrap();
    }
    let postgres = Postgres::start_with(&["fsync=off"], &clock.variables());
    let on = On::at(postgres.url("/x"));
    let set = |seconds: i64| {
        let hour = "select floor(extract(epoch from clock_timestamp()) / 3600)::int";
        let before: i64 = postgres.sql(hour).parse().unwrap();
        clock.set(seconds);
        let after: i64 = postgres.sql(hour).parse().unwrap();
        assert_ne!(before, after, "the server has another clock");
    };
    let mut holder = Running::spawn(quiet(run(&on, &["--ttl", "10", "x"], 30_000)));
    on.wait_until_held("x");
    on.done(&["acquire", "y", "--ttl", "8"]);
    set(-HOUR);
    let said = on.output(&["doctor", "--quick"]).1;
    let differs = |by: i64| said.contains(&format!("its clock differs from this one by -{by} s"));
    // The server is asked a moment later.
    assert!((HOUR - 3..=HOUR).any(differs), "{said}");
    // The lease lasts from now on, and not for an hour.
    let began = Instant::now();
    wait_until("the lease has ended", || on.state("y") != "held");
    let took = began.elapsed();
    assert!(took < Duration::from_secs(14), "{took:?}");
    // An hour forward, and another one: the keeper takes its lock again, and nobody else does meanwhile.
    let mut waiters: Vec<Running> = (0..CONTENDERS)
        .map(|_| Running::spawn(quiet(run(&on, &["--ttl", "10", "-w", "90", "x"], 50))))
        .collect();
    wait_until("all wait", || on.waiters("x") == CONTENDERS);
    for hours in [0, 1] {
        set(hours * HOUR);
        std::thread::sleep(Duration::from_secs(5));
    }
    assert_eq!(holder.finish(), 0);
    for waiter in &mut waiters {
        assert_eq!(waiter.finish(), 0);
    }
    assert_eq!(assert_exclusive(&on).len(), 1 + CONTENDERS);
}

#[test]
fn holders_and_waiters_outlive_a_server_that_is_killed() {
    let postgres = Postgres::start(&[]);
    let on = On::at(postgres.url("/x"));
    let mut command = run(&on, &["x"], 8_000);
    command.stderr(Stdio::null());
    let mut holder = Running::spawn(command);
    on.wait_until_held("x");
    let mut waiters: Vec<Running> = (0..CONTENDERS)
        .map(|_| {
            let mut command = run(&on, &["-w", "60", "x"], 50);
            command.stderr(Stdio::null());
            Running::spawn(command)
        })
        .collect();
    wait_until("all wait", || on.waiters("x") == CONTENDERS);
    postgres.kill();
    std::thread::sleep(Duration::from_secs(2));
    postgres.resume();
    assert_eq!(holder.finish(), 0);
    for waiter in &mut waiters {
        assert_eq!(waiter.finish(), 0);
    }
    assert_eq!(assert_exclusive(&on).len(), CONTENDERS + 1);
}

#[test]
fn connections_that_are_terminated_at_random_let_no_two_in() {
    let postgres = Postgres::start(&["fsync=off"]);
    let on = On::at(postgres.url("/x"));
    let mut contenders: Vec<Running> = (0..CONTENDERS)
        .map(|_| {
            let script = "for i in 1 2 3 4 5; do onehold run -w 60 x -- \"$0\" at-work work 30 || exit; done";
            let mut command = on.env.command("sh");
            command.args(["-c", script]).arg(crate::harness::example("programs"));
            command.env("ONEHOLD_DIR", &on.dir);
            fs::create_dir_all(on.env.path("work")).unwrap();
            command.stdout(Stdio::null()).stderr(Stdio::null());
            Running::spawn(command)
        })
        .collect();
    let mut terminated = 0;
    while contenders
        .iter_mut()
        .any(|contender| !contender.has_ended())
    {
        let one = "select count(pg_terminate_backend(pid)) from (select pid from pg_stat_activity \
                   where application_name = 'onehold' order by random() limit 1) one";
        // Beside a warning, if that one has ended meanwhile.
        let said = postgres.sql(one);
        let mut lines = said.lines();
        terminated += lines.find_map(|line| line.parse::<usize>().ok()).unwrap();
    }
    for mut contender in contenders {
        assert_eq!(contender.finish(), 0);
    }
    assert_eq!(assert_exclusive(&on).len(), 5 * CONTENDERS);
    assert!(terminated > CONTENDERS, "{terminated}");
}

/// It becomes a replica, or an operator stops all changes.
#[test]
fn server_that_becomes_read_only_costs_no_hold_and_says_so() {
    let postgres = Postgres::start(&["fsync=off"]);
    let on = On::at(postgres.url("/x"));
    let mut holder = Running::spawn(quiet(run(&on, &["--ttl", "20", "x"], 14_000)));
    on.wait_until_held("x");
    let set = |value: &str| {
        postgres.sql(&format!(
            "alter system set default_transaction_read_only = {value}"
        ));
        postgres.sql("select pg_reload_conf()");
    };
    set("on");
    wait_until("it is read-only", || {
        postgres.sql("show default_transaction_read_only") == "on"
    });
    assert_eq!(on.state("x"), "held");
    let (code, _, told) = on.output(&["run", "y", "--", "true"]);
    assert_eq!(code, 125, "{told}");
    assert!(told.contains("it is read-only"), "{told}");
    assert!(told.contains("name the server that writes"), "{told}");
    // Beside one renewal, each 6.7 s.
    std::thread::sleep(Duration::from_secs(7));
    set("off");
    let mut waiters: Vec<Running> = (0..CONTENDERS)
        .map(|_| Running::spawn(quiet(run(&on, &["-w", "60", "x"], 50))))
        .collect();
    assert_eq!(holder.finish(), 0);
    for waiter in &mut waiters {
        assert_eq!(waiter.finish(), 0);
    }
    assert_eq!(assert_exclusive(&on).len(), 1 + CONTENDERS);
}

#[test]
fn defaults_of_a_role_change_nothing() {
    let (postgres, on) = with_password("trust");
    for setting in [
        "default_transaction_isolation = 'repeatable read'",
        "default_transaction_isolation = 'serializable'",
        "standard_conforming_strings = off",
        "statement_timeout = 500",
        "idle_session_timeout = 300",
        "lock_timeout = 1",
        "search_path = nothing",
    ] {
        let known = "select count(*) from pg_settings where name = ";
        let (name, _) = setting.split_once(" = ").unwrap();
        // Some came after version 12.
        if postgres.sql(&format!("{known}'{name}'")) == "1" {
            postgres.sql(&format!("alter role ci set {setting}"));
        }
    }
    let contenders: Vec<Running> = (0..CONTENDERS)
        .map(|_| Running::start_with_output(run(&on, &["-w", "60", "-m", "it's \\ me", "x"], 50)))
        .collect();
    for mut contender in contenders {
        let (code, _, told) = contender.finish_with_output();
        assert_eq!(code, 0, "{told}");
    }
    assert_eq!(assert_exclusive(&on).len(), CONTENDERS);
}

#[test]
fn locks_work_behind_a_pooler_in_both_modes() {
    let postgres = Postgres::start(&["fsync=off"]);
    for mode in ["session", "transaction"] {
        let files = directory();
        let port = free_port();
        let text = format!(
            "[databases]\npostgres = host=127.0.0.1 port={} user=postgres\n[pgbouncer]\nlisten_addr=127.0.0.1\n\
             listen_port={port}\nauth_type=any\npool_mode={mode}\ndefault_pool_size=40\nunix_socket_dir=\n",
            postgres.port
        );
        let file = files.path().join("pgbouncer.ini");
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        let program = if Path::new("/usr/sbin/pgbouncer").exists() {
            "/usr/sbin/pgbouncer"
        } else {
            "pgbouncer"
        };
        let mut pooler = unprivileged(program.into());
        pooler.arg(&file);
        let _pooler = Running::spawn(pooler);
        let on = On::at(format!(
            "postgres://postgres@127.0.0.1:{port}/postgres/{mode}"
        ));
        wait_until("the pooler answers", || on.code(&["check", "x"]) == 0);
        let said = on.output(&["doctor", "--quick"]).1;
        assert!(said.contains("a pooler is between"), "{said}");
        let mut contenders: Vec<Running> = (0..CONTENDERS)
            .map(|_| {
                let mut command = run(&on, &["-w", "60", "x"], 50);
                command.stderr(Stdio::null());
                Running::spawn(command)
            })
            .collect();
        for contender in &mut contenders {
            assert_eq!(contender.finish(), 0, "{mode}");
        }
        assert_eq!(assert_exclusive(&on).len(), CONTENDERS);
    }
}
