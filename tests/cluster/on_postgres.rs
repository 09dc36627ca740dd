//! What is PostgreSQL's own: rights, sign-ins, encryption, poolers, and servers that fail.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::at_work::{run, sections};
use crate::cluster::On;
use crate::harness::{CONTENDERS, Running, Signal, send, wait_until};
use crate::history::command_of;
use crate::keeper::children_of;
use crate::postgres::{Postgres, directory};
use crate::scene::Engine;

fn on() -> On {
    On::of(Engine::Postgres)
}

pub fn quiet(mut command: Command) -> Command {
    command.stderr(Stdio::null());
    command
}

/// A server that asks the role `ci` for a password, and its store.
pub fn with_password(method: &str) -> (Postgres, On) {
    let postgres = Postgres::start(&["fsync=off"]);
    let hba = postgres.data().join("pg_hba.conf");
    let text = format!("host all ci all {method}\nhost all all all trust\n");
    fs::write(hba, text).unwrap();
    let encryption = if method == "md5" {
        "md5"
    } else {
        "scram-sha-256"
    };
    postgres.sql(&format!(
        "set password_encryption = '{encryption}'; create role ci login password 'p:w'"
    ));
    postgres.sql("select onehold.allow('ci', '/x'), pg_reload_conf()");
    let url = format!("postgres://ci@127.0.0.1:{}/postgres/x", postgres.port);
    (postgres, On::at(url))
}

#[test]
fn verbs_send_no_more_requests_than_they_need() {
    let on = on();
    let (proxy, url) = on.behind_one();
    let behind = On::at(url);
    on.number(&["x", "y", "a/b"]);
    let sent = |args: &[&str]| {
        proxy.forget();
        behind.done(args);
        proxy.paths()
    };
    assert_eq!(sent(&["run", "x", "--", "true"]), ["grant", "then", "then"]);
    assert_eq!(
        sent(&["run", "a/b", "y", "--", "true"]),
        ["grant", "then", "then"]
    );
    assert_eq!(sent(&["check", "x"]), ["reads"]);
    // Its end is written with the release.
    proxy.forget();
    let mut noted = behind.onehold(&["run", "x", "--", "true"]);
    assert!(
        noted
            .env("ONEHOLD_HISTORY", "1")
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(proxy.paths(), ["grant", "then", "then"]);
    assert_eq!(on.output(&["history", "x"]).1.lines().count(), 2);
    assert_eq!(
        sent(&["acquire", "x", "--ttl", "30", "--owner", "me"]),
        ["grant", "then"]
    );
    // Three for each time to live of the hold.
    let mut hold =
        Running::spawn(behind.onehold(&["run", "--ttl", "12", "y", "--", "sleep", "30"]));
    on.wait_until_held("y");
    let command = command_of(&hold);
    wait_until("its command is on record", || {
        on.lock("y")["pid"] == command
    });
    proxy.forget();
    std::thread::sleep(Duration::from_secs(12));
    assert!(
        (2..=3).contains(&proxy.paths().len()),
        "{:?}",
        proxy.paths()
    );
    assert!(proxy.paths().iter().all(|path| path == "keep"));
    hold.signal(crate::harness::Signal::TERM);
    hold.finish();
}

#[test]
fn each_wrong_step_has_an_error_that_names_it_and_what_to_do() {
    let bare = Postgres::bare(&["fsync=off"]);
    let port = bare.port;
    let url = |role: &str, rest: &str| format!("postgres://{role}@127.0.0.1:{port}/{rest}");
    let says = |url: &str, args: &[&str], words: &[&str]| {
        let on = On::at(url.to_owned());
        let (code, _, told) = on.output(args);
        assert_eq!(code, 1, "{url}: {told}");
        for word in words {
            assert!(told.contains(word), "{url}: no `{word}` in {told}");
        }
        assert!(!told.contains("secret"), "{told}");
    };
    let check = ["check", "x"];
    let store = url("postgres", "postgres/x");
    says(
        &store,
        &check,
        &[
            "no schema `onehold`",
            &format!("doctor --dir {store} --create"),
        ],
    );
    says(
        &url("nobody", "postgres/x"),
        &check,
        &["role \"nobody\" does not exist"],
    );
    says(
        &url("postgres", "none/x"),
        &check,
        &["database \"none\" does not exist"],
    );
    says(
        &url("postgres", "postgres/x?sslmode=require"),
        &check,
        &["does not use TLS", "ssl"],
    );
    says(
        "postgres://me@127.0.0.1:9/db/x",
        &check,
        &[
            "no answer yet, trying for 10",
            "connection refused",
            "pg_isready",
        ],
    );
    says(
        "postgres://me@nowhere.invalid/db/x",
        &check,
        &["no such host"],
    );
    bare.sql("create role ci login; create role reader login; alter role reader set default_transaction_read_only = on");
    says(
        &url("ci", "postgres/x"),
        &["doctor", "--create", "--quick"],
        &["not fit for locks"],
    );
    let on = On::at(store);
    on.done(&["doctor", "--create", "--quick"]);
    on.done(&["run", "x", "--", "true"]);
    on.done(&["doctor", "--create", "--quick"]);
    on.done(&["check", "x"]);
    says(
        &url("ci", "postgres/x"),
        &check,
        &["`ci` has no right", "onehold.allow('ci', '/x')"],
    );
    bare.sql("select onehold.allow('ci', '/x'), onehold.allow('reader', '/x')");
    On::at(url("ci", "postgres/x")).done(&["check", "x"]);
    On::at(url("ci", "postgres/x/y")).done(&["run", "x", "--", "true"]);
    says(
        &url("ci", "postgres/xy"),
        &check,
        &["`ci` has no right to `/xy`", "onehold.allow('ci', '/xy')"],
    );
    let (_, told) = bare.psql("ci", "select * from onehold.item");
    assert!(told.contains("permission denied"), "{told}");
    let acquire = ["acquire", "x", "--ttl", "9"];
    says(
        &url("reader", "postgres/x"),
        &acquire,
        &["read-only", "name the server that writes"],
    );
    bare.sql("update onehold.version set number = 2");
    let (_, told, more) = on.output(&["doctor", "--create", "--quick"]);
    assert!(
        told.contains("newer version") || more.contains("newer version"),
        "{told}{more}"
    );
}

/// A server process for each hold would be one for days.
#[test]
fn holds_keep_no_connection_between_their_renewals() {
    let postgres = Postgres::start(&["fsync=off"]);
    let on = On::at(postgres.url("/x"));
    let mut holds: Vec<Running> = (0..CONTENDERS)
        .map(|at| {
            let name = format!("x{at}");
            Running::spawn(quiet(run(&on, &["--ttl", "15", &name], 40_000)))
        })
        .collect();
    for at in 0..CONTENDERS {
        on.wait_until_held(&format!("x{at}"));
    }
    // What was opened to take them is closed with the first renewal.
    std::thread::sleep(Duration::from_secs(7));
    let count = "select count(*) from pg_stat_activity where application_name = 'onehold'";
    let mut open = 0;
    for _ in 0..40 {
        open += postgres.sql(count).parse::<usize>().unwrap();
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(open < 40 * CONTENDERS / 4, "{open} of {}", 40 * CONTENDERS);
    for hold in &mut holds {
        hold.signal(crate::harness::Signal::TERM);
        hold.finish();
    }
}

/// It has another owner, so it looks every 5 s: a hold that was left may be of its own.
#[test]
fn waiter_has_one_connection_that_listens_however_often_it_looks() {
    let postgres = Postgres::start(&["fsync=off"]);
    let on = On::at(postgres.url("/x"));
    let _holder = Running::spawn(quiet(run(&on, &["x"], 60_000)));
    on.wait_until_held("x");
    let words = ["acquire", "--owner", "me", "--ttl", "30", "-w", "60", "x"];
    let _waiter = Running::spawn(quiet(on.onehold(&words)));
    wait_until("it waits", || on.waiters("x") == 1);
    let count = "select count(*) from pg_stat_activity where application_name = 'onehold' \
        and query like '%\"wait\"%'";
    wait_until("it listens", || postgres.sql(count) == "1");
    for _ in 0..50 {
        assert_eq!(postgres.sql(count), "1");
        std::thread::sleep(Duration::from_millis(400));
    }
    assert_eq!(on.waiters("x"), 1);
}

/// Each role that may connect can notify.
#[test]
fn waiters_believe_nothing_that_another_role_notifies() {
    let postgres = Postgres::start(&["fsync=off"]);
    let on = On::at(postgres.url("/x"));
    postgres.sql("create role other login");
    let mut holder = Running::spawn(quiet(run(&on, &["x"], 60_000)));
    on.wait_until_held("x");
    let mut waiters: Vec<Running> = (0..CONTENDERS)
        .map(|at| {
            let waiter = Running::spawn(quiet(run(&on, &["-w", "60", "x"], 10)));
            wait_until("it waits", || on.waiters("x") == at + 1);
            waiter
        })
        .collect();
    let of_items =
        "select onehold.channel(key) || ' ' || key from onehold.item where lease is not null";
    let items = postgres.sql(of_items);
    let tell = |what: &dyn Fn(&str) -> String| {
        for line in items.lines() {
            let (channel, key) = line.split_once(' ').unwrap();
            let sql = format!("select pg_notify('{channel}', '{}')", what(key));
            assert!(postgres.psql("other", &sql).0);
        }
    };
    let last = "9223372036854775807";
    let in_50_years = format!(
        "{}",
        chrono::Utc::now().timestamp_micros() + 50 * 365 * 86_400 * 1_000_000
    );
    tell(&|key| format!(r#"["{key}", 18446744073709551615]"#));
    tell(&|key| format!(r#"["{key}", 86400]"#));
    tell(&|_| format!(r#"["no key", {last}]"#));
    tell(&|_| format!(r#"["no key", {last}, null]"#));
    tell(&|key| format!(r#"["{key}", {last}, null]"#));
    tell(&|key| format!(r#"["{key}", 0, "no number"]"#));
    tell(&|_| "x".repeat(7_999));
    tell(&|_| String::new());
    tell(&|_| "[[[".to_owned());
    // It hears of it once the lock is free.
    let first = children_of(waiters[0].pid())[0];
    send(first, Signal::STOP);
    tell(&|key| format!(r#"["{key}", {last}, "{in_50_years}"]"#));
    holder.signal(Signal::TERM);
    holder.finish();
    send(first, Signal::CONT);
    for waiter in &mut waiters {
        assert_eq!(waiter.finish(), 0);
    }
    let holds: Vec<u64> = sections(&on).iter().map(|section| section.hold).collect();
    assert_eq!(holds.len(), CONTENDERS + 1);
    let now = chrono::Utc::now().timestamp_micros().unsigned_abs();
    assert!(holds.iter().all(|hold| *hold < now), "{holds:?}");
}

#[test]
fn role_that_is_not_let_in_is_told_why() {
    let postgres = Postgres::start(&["fsync=off"]);
    let on = On::at(format!(
        "postgres://ci@127.0.0.1:{}/postgres/x",
        postgres.port
    ));
    let told = || {
        let (code, _, told) = on.output(&["run", "-n", "x", "--", "true"]);
        assert_eq!(code, 125, "{told}");
        told
    };
    postgres.sql("create role ci login connection limit 0; select onehold.allow('ci', '/x')");
    let said = told();
    let names_it = said.contains("it takes no further connection");
    assert!(
        names_it && said.contains("raise `max_connections`"),
        "{said}"
    );
    postgres.sql("alter role ci connection limit -1");
    on.done(&["run", "x", "--", "true"]);
    let hba = postgres.data().join("pg_hba.conf");
    fs::write(hba, "host all postgres all trust\n").unwrap();
    postgres.sql("select pg_reload_conf()");
    wait_until("it is not let in", || on.code(&["check", "x"]) == 1);
    let said = told();
    let names_it = said.contains("no pg_hba.conf entry");
    assert!(
        names_it && said.contains("let the role and this machine in"),
        "{said}"
    );
    let plain = On::at(format!("{}?sslmode=disable", on.dir));
    let (_, _, said) = plain.output(&["check", "x"]);
    assert!(said.contains("the server may want TLS"), "{said}");
}

#[test]
fn server_of_another_protocol_is_told_apart_with_and_without_tls() {
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = other.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((mut client, _)) = other.accept() {
            let _ = std::io::Write::write_all(&mut client, b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    for mode in ["prefer", "disable"] {
        let on = On::at(format!("postgres://me@{at}/db/x?sslmode={mode}"));
        let (code, _, told) = on.output(&["check", "x"]);
        assert_eq!(code, 1, "{mode}: {told}");
        assert!(
            told.contains("no PostgreSQL at this address"),
            "{mode}: {told}"
        );
    }
}

#[test]
fn what_another_role_made_is_not_used_as_the_schema() {
    let bare = Postgres::bare(&["fsync=off"]);
    let on = On::at(bare.url("/x"));
    let refused = |belongs: &str| {
        let (code, said, told) = on.output(&["doctor", "--create", "--quick"]);
        assert_eq!(code, 1, "{said}{told}");
        assert!(said.contains(belongs), "no `{belongs}` in {said}{told}");
        let there = "select to_regprocedure('onehold.request(int, text, jsonb)') is null";
        assert_eq!(bare.sql(there), "t");
    };
    bare.sql("create role other login; create schema onehold authorization other");
    refused("`schema onehold` belongs to role `other`, not to `postgres`");
    bare.sql("alter schema onehold owner to postgres; create table onehold.item (key text)");
    bare.sql("alter table onehold.item owner to other");
    refused("belongs to role `other`");
    bare.sql("drop table onehold.item");
    bare.sql("create function onehold.epoch() returns text language sql as $$ select '' $$");
    bare.sql("alter function onehold.epoch() owner to other");
    refused("`epoch` belongs to role `other`");
    bare.sql("drop function onehold.epoch()");
    on.done(&["doctor", "--create", "--quick"]);
    on.done(&["run", "x", "--", "true"]);
}

#[test]
fn passwords_are_those_of_libpq_and_are_not_shown() {
    for method in ["scram-sha-256", "md5", "password"] {
        let (postgres, on) = with_password(method);
        let (code, _, told) = on.output(&["check", "x"]);
        assert_eq!(code, 1, "{told}");
        assert!(
            told.contains("wants a password") && told.contains("~/.pgpass"),
            "{told}"
        );
        let run = |password: &str| {
            let mut command = on.onehold(&["run", "-q", "x", "--", "true"]);
            command.env("PGPASSWORD", password).stdin(Stdio::null());
            let output = command.output().unwrap();
            (
                output.status.code().unwrap(),
                String::from_utf8(output.stderr).unwrap(),
            )
        };
        assert_eq!(run("p:w").0, 0, "{method}");
        let (code, told) = run("wrong secret");
        assert_eq!(code, 125, "{told}");
        assert!(
            told.contains("password authentication failed") && !told.contains("secret"),
            "{told}"
        );
        let file = on.env.path(".pgpass");
        fs::write(&file, format!("127.0.0.1:{}:*:ci:p\\:w\n", postgres.port)).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        let (_, _, told) = on.output(&["check", "x"]);
        assert!(told.contains("chmod 600"), "{told}");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        on.done(&["run", "x", "--", "true"]);
    }
}

fn openssl(directory: &Path, line: &str) {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("openssl {line}")])
        .current_dir(directory);
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{line}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn certificates_are_verified_as_sslmode_says() {
    let files = directory();
    let at = files.path();
    let new = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    for ca in ["ca", "other"] {
        openssl(
            at,
            &format!("req -x509 {new} -days 9 -subj /CN={ca} -keyout {ca}.key -out {ca}.pem"),
        );
    }
    fs::write(at.join("names"), "subjectAltName=DNS:localhost\n").unwrap();
    openssl(
        at,
        &format!("req {new} -subj /O=server -keyout server.key -out server.csr"),
    );
    openssl(
        at,
        "x509 -req -days 9 -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile names -out server.pem",
    );
    let owner = fs::metadata(at).unwrap();
    let owner = std::os::unix::fs::MetadataExt::uid(&owner);
    for file in ["server.key", "server.pem"] {
        chown(at.join(file), Some(owner), Some(owner)).unwrap();
        fs::set_permissions(at.join(file), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let option = |name: &str, file: &str| format!("{name}={}", at.join(file).display());
    let (certificate, key) = (
        option("ssl_cert_file", "server.pem"),
        option("ssl_key_file", "server.key"),
    );
    let postgres = Postgres::start(&["fsync=off", "ssl=on", &certificate, &key]);
    let run = |host: &str, mode: &str, ca: &str| {
        let root = at.join(ca);
        let (port, root) = (postgres.port, root.display());
        let url = format!(
            "postgres://postgres@{host}:{port}/postgres/x?sslmode={mode}&sslrootcert={root}"
        );
        let (code, _, told) = On::at(url).output(&["run", "x", "--", "true"]);
        (code, told)
    };
    for (host, mode, ca, is_good) in [
        ("127.0.0.1", "disable", "none.pem", true),
        ("127.0.0.1", "prefer", "none.pem", true),
        ("127.0.0.1", "require", "none.pem", true),
        ("127.0.0.1", "require", "other.pem", false),
        ("127.0.0.1", "verify-ca", "ca.pem", true),
        ("127.0.0.1", "verify-ca", "other.pem", false),
        ("127.0.0.1", "verify-full", "ca.pem", false),
        ("localhost", "verify-full", "ca.pem", true),
        ("localhost", "verify-full", "other.pem", false),
        ("localhost", "verify-full", "none.pem", false),
    ] {
        let (code, told) = run(host, mode, ca);
        assert_eq!(
            code,
            if is_good { 0 } else { 125 },
            "{host} {mode} {ca}: {told}"
        );
        assert!(
            is_good || told.contains("sslrootcert"),
            "{host} {mode} {ca}: {told}"
        );
    }
}

#[test]
fn replica_is_not_asked_and_the_next_host_is() {
    let postgres = Postgres::start(&["fsync=off", "wal_level=replica"]);
    let standby = postgres.standby();
    let port = standby.port;
    let replica = On::at(format!("postgres://postgres@127.0.0.1:{port}/postgres/x"));
    wait_until("the replica says what it is", || {
        replica.output(&["check", "x"]).2.contains("a replica")
    });
    assert_eq!(replica.code(&["run", "x", "--", "true"]), 125);
    let primary = postgres.port;
    let both = On::at(format!(
        "postgres://postgres@127.0.0.1:{port},127.0.0.1:{primary}/postgres/x"
    ));
    both.done(&["run", "x", "--", "true"]);
    both.done(&["check", "x"]);
    wait_until("it follows", || {
        postgres.sql("select count(*) from pg_stat_replication") == "1"
    });
    let said = both.output(&["doctor", "--quick"]).1;
    assert!(
        said.contains("a replica: it is asked for nothing"),
        "{said}"
    );
    assert!(
        said.contains("none of its replicas is synchronous"),
        "{said}"
    );
}
