//! What locks of many machines cost, on an etcd and on a PostgreSQL of its own, beside what one would use instead:
//! `cargo bench --bench servers --features etcd,postgres -- run requests hand-over crowd takes` measures the named ones,
//! and all of them if none is named. Ratios above what they must not exceed are reported at the end: then the exit code
//! is 1. Absolute times depend on the machine: compare within one run.
//!
//! `ONEHOLD_SHIPPED` is the path of the program (the one that cargo has built), `ONEHOLD_ROUNDS` (200) the number of
//! rounds, `ONEHOLD_WAITERS` (1000) and `ONEHOLD_HOLDERS` (500) the size of the crowds, `ONEHOLD_TAKES` (1000000) how
//! often locks are taken by pgbench to see how the tables grow. The servers have their data in `TMPDIR`, and write them
//! to the disk as they do by default.
#![allow(missing_docs)]
#![allow(
    clippy::cast_precision_loss,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used
)]

#[path = "../../tests/harness/mod.rs"]
mod harness;
#[path = "../../tests/cluster/postgres.rs"]
#[allow(dead_code, unreachable_pub, reason = "tests use the rest")]
mod postgres;
mod servers;

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use servers::{Etcd, Server};

type Section = fn(&Bench) -> Vec<Row>;

const SECTIONS: [(&str, Section); 5] = [
    ("run", run),
    ("requests", requests),
    ("hand-over", hand_over),
    ("crowd", crowd),
    ("takes", takes),
];

/// How many clients have a lock each.
const CLIENTS: usize = 16;

struct Bench {
    onehold: String,
    etcd: Etcd,
    postgres: postgres::Postgres,
}

/// What must not exceed something.
struct Row {
    what: String,
    value: f64,
    at_most: f64,
}

fn number(variable: &str, usual: usize) -> usize {
    std::env::var(variable).map_or(usual, |text| text.parse().unwrap())
}

fn quiet(mut command: Command) -> Command {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(Stdio::null());
    command
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn succeed(mut command: Command) {
    assert!(command.status().unwrap().success(), "{command:?}");
}

impl Bench {
    fn servers(&self) -> [&dyn Server; 2] {
        [&self.etcd, &self.postgres]
    }

    fn onehold(&self, server: &dyn Server, args: &[&str]) -> Command {
        let mut command = Command::new(&self.onehold);
        command.args(args).env("ONEHOLD_DIR", server.store());
        quiet(command)
    }
}

/// Prints a value, and what it must not exceed.
fn row(what: String, value: f64, at_most: f64) -> Row {
    println!("| {what} | {value:.2} | {at_most:.2} |");
    Row {
        what,
        value,
        at_most,
    }
}

/// A free lock for a command that does nothing.
fn run(bench: &Bench) -> Vec<Row> {
    let rounds = number("ONEHOLD_ROUNDS", 200);
    let mut rows = Vec::new();
    for server in bench.servers() {
        let own = || bench.onehold(server, &["run", "x", "--", "true"]);
        let other = || server.other("x", "true");
        let both: [&dyn Fn() -> Command; 2] = [&own, &other];
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            for (make, times) in both.iter().zip(&mut times) {
                let command = make();
                let began = Instant::now();
                succeed(command);
                times.push(began.elapsed().as_secs_f64() * 1e3);
            }
        }
        let [own, other] = times.map(median);
        let (name, other_name) = server.names();
        println!("{name}: run {own:.2} ms, {other_name} {other:.2} ms");
        let what = format!("run on {name}, beside {other_name}");
        rows.push(row(what, own / other, server.run_at_most()));
    }
    rows
}

/// Requests of each verb, and of clients that have different locks.
fn requests(bench: &Bench) -> Vec<Row> {
    let mut rows = Vec::new();
    for server in bench.servers() {
        let (name, _) = server.names();
        let counted = |args: &[&str]| {
            let before = server.requests();
            let mut command = bench.onehold(server, args);
            let code = command.status().unwrap().code();
            let sent = server.requests() - before;
            println!(
                "{name}: {}: {sent} requests, exit code {code:?}",
                args.join(" ")
            );
            sent as f64
        };
        let run = ["run", "x", "--", "true"];
        succeed(bench.onehold(server, &run));
        rows.push(row(
            format!("requests of a run on {name}"),
            counted(&run),
            3.0,
        ));
        rows.push(row(
            format!("requests of check on {name}"),
            counted(&["check", "x"]),
            1.0,
        ));
        counted(&["acquire", "x", "--ttl", "30", "--owner", "me"]);
        counted(&run);
        counted(&["renew", "x", "--owner", "me"]);
        counted(&["list"]);
        counted(&["release", "x", "--owner", "me"]);
        let names: Vec<String> = (0..CLIENTS).map(|at| format!("job-{at}")).collect();
        let each = number("ONEHOLD_ROUNDS", 200).min(50);
        let all = |times: usize| {
            std::thread::scope(|scope| {
                for lock in &names {
                    scope.spawn(move || {
                        for _ in 0..times {
                            succeed(bench.onehold(server, &["run", lock, "--", "true"]));
                        }
                    });
                }
            });
        };
        all(1);
        let (before, began) = (server.requests(), Instant::now());
        all(each);
        let (sent, runs) = (server.requests() - before, CLIENTS * each);
        println!(
            "{name}: {CLIENTS} clients: {:.0} runs a second",
            runs as f64 / began.elapsed().as_secs_f64()
        );
        // One for the lease, one for the release.
        let what = format!("transactions that take, of {CLIENTS} clients on {name}");
        rows.push(row(what, sent as f64 / runs as f64 - 2.0, 1.2));
    }
    rows
}

/// A lock that goes through a queue: the whole time, by the number of waiters.
fn hand_over(bench: &Bench) -> Vec<Row> {
    let mut rows = Vec::new();
    // The holder reads a pipe: etcdctl passes it no input.
    let directory = tempfile::tempdir().unwrap();
    let [pipe, reader] = ["pipe", "reader"].map(|name| directory.path().join(name));
    succeed({
        let mut mkfifo = Command::new("mkfifo");
        mkfifo.arg(&pipe);
        mkfifo
    });
    std::fs::write(&reader, format!("#!/bin/sh\nexec cat {}\n", pipe.display())).unwrap();
    std::fs::set_permissions(&reader, std::fs::Permissions::from_mode(0o755)).unwrap();
    for server in bench.servers() {
        let (name, other_name) = server.names();
        for waiters in [10, 50] {
            let mut times = [Vec::new(), Vec::new()];
            for _ in 0..5 {
                for (at, times) in times.iter_mut().enumerate() {
                    let make = |command: &str| match at {
                        0 => bench.onehold(server, &["run", "-w", "10m", "q", "--", command]),
                        _ => server.other("q", command),
                    };
                    let mut holder = make(reader.to_str().unwrap()).spawn().unwrap();
                    // Opened once it is read.
                    let held = std::fs::OpenOptions::new().write(true).open(&pipe);
                    let all: Vec<Child> = (0..waiters)
                        .map(|_| make("true").spawn().unwrap())
                        .collect();
                    std::thread::sleep(Duration::from_secs(2));
                    let began = Instant::now();
                    drop(held.unwrap());
                    for mut waiter in all {
                        assert!(waiter.wait().unwrap().success());
                    }
                    times.push(began.elapsed().as_secs_f64() * 1e3 / f64::from(waiters));
                    holder.wait().unwrap();
                }
            }
            let [own, other] = times.map(median);
            println!("{name}, {waiters} waiters: run {own:.2} ms, {other_name} {other:.2} ms");
            let what = format!("hand-over of {waiters} on {name}, beside {other_name}");
            let at_most = if name == "etcd" { 1.0 } else { f64::INFINITY };
            rows.push(row(what, own / other, at_most));
        }
    }
    rows
}

/// What a server sees of many that wait, and of many that hold.
fn crowd(bench: &Bench) -> Vec<Row> {
    const WATCHED: Duration = Duration::from_mins(1);
    let mut rows = Vec::new();
    for server in bench.servers() {
        let (name, _) = server.names();
        let waiting = number("ONEHOLD_WAITERS", 1_000);
        let holding = number("ONEHOLD_HOLDERS", 500);
        for (what, count, at_most) in [
            ("waiters", waiting, 0.3),
            ("holders", holding, f64::INFINITY),
        ] {
            let mut all = Vec::new();
            for at in 0..=count {
                let lock = match what {
                    "waiters" => "crowd".to_owned(),
                    _ => format!("crowd-{at}"),
                };
                let mut command = bench.onehold(server, &["run", "-w", "1h", &lock, "--", "cat"]);
                command.stdin(Stdio::piped());
                all.push(command.spawn().unwrap());
                std::thread::sleep(Duration::from_millis(if at == 0 { 500 } else { 10 }));
            }
            std::thread::sleep(WATCHED);
            let (before, cpu, began) = (server.requests(), server.cpu(), Instant::now());
            std::thread::sleep(WATCHED);
            let seconds = began.elapsed().as_secs_f64();
            let cores = server.cpu().saturating_sub(cpu).as_secs_f64() / seconds;
            let rate = (server.requests() - before) as f64 / seconds;
            println!("{name}, {count} {what}: {rate:.1} requests a second");
            rows.push(row(
                format!("cores of {name} for {count} {what}"),
                cores,
                at_most,
            ));
            // The waiters first, or each would get the lock.
            for child in all.iter().skip(1) {
                let _ = rustix::process::kill_process(
                    rustix::process::Pid::from_child(child),
                    rustix::process::Signal::TERM,
                );
            }
            for mut child in all.into_iter().rev() {
                drop(child.stdin.take());
                let _ = child.wait();
            }
        }
    }
    rows
}

/// The tables of PostgreSQL after many takes of 1,000 locks by 8 clients, as `run` makes them.
fn takes(bench: &Bench) -> Vec<Row> {
    let takes = number("ONEHOLD_TAKES", 1_000_000);
    bench
        .postgres
        .sql("insert into onehold.rights values ('postgres', '') on conflict do nothing");
    let script = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(script.path(), include_str!("takes.sql")).unwrap();
    let mut pgbench = Command::new(postgres::program("pgbench"));
    pgbench.args([
        "-n",
        "-c",
        "8",
        "-j",
        "2",
        "-h",
        "127.0.0.1",
        "-U",
        "postgres",
    ]);
    pgbench.args(["-p", &bench.postgres.port.to_string(), "-f"]);
    pgbench
        .arg(script.path())
        .args(["-t", &(takes / 8).to_string(), "postgres"]);
    succeed(quiet(pgbench));
    println!("{}", bench.postgres.sql(
        "select relname, pg_size_pretty(pg_total_relation_size(relid)), n_live_tup, n_dead_tup, \
         n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where schemaname = 'onehold' order by relname"
    ));
    let bytes = bench.postgres.sql(
        "select sum(pg_total_relation_size(relid)) from pg_stat_user_tables where schemaname = 'onehold'"
    );
    let megabytes = bytes.parse::<f64>().unwrap() / 1e6;
    vec![row(
        format!("MB of the tables after {takes} takes"),
        megabytes,
        10.0,
    )]
}

fn main() -> ExitCode {
    harness::reset_signals();
    let args: Vec<String> = std::env::args().skip(1).collect();
    // cargo passes options of its own.
    let wanted: Vec<&String> = args.iter().filter(|word| !word.starts_with("--")).collect();
    for word in &wanted {
        let known = SECTIONS.iter().any(|(name, _)| name == word);
        assert!(known, "no such section: {word}");
    }
    let built = || harness::program().to_str().unwrap().to_owned();
    let bench = Bench {
        onehold: std::env::var("ONEHOLD_SHIPPED").unwrap_or_else(|_| built()),
        etcd: Etcd::start(),
        postgres: postgres::Postgres::start(&["max_connections=1300", "track_functions=all"]),
    };
    let load = std::fs::read_to_string("/proc/loadavg").unwrap();
    println!("{}, load {}", bench.onehold, load.trim());
    let mut rows = Vec::new();
    for (name, measure) in SECTIONS {
        if wanted.is_empty() || wanted.iter().any(|word| *word == name) {
            println!("\n## {name}\n");
            rows.extend(measure(&bench));
        }
    }
    let excess: Vec<&Row> = rows.iter().filter(|row| row.value > row.at_most).collect();
    if excess.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("\nWhat does not hold:\n");
    for row in excess {
        println!(
            "- {}: {:.2}, at most {:.2}",
            row.what, row.value, row.at_most
        );
    }
    ExitCode::FAILURE
}
