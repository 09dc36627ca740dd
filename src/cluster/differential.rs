//! Random transactions of the language of [`txn`](super::txn), done by both engines: their answers must agree, with all
//! revisions. Starts an etcd and a PostgreSQL: `cargo test --features etcd,postgres --lib differential -- --ignored`.

use std::ops::Range;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::engine::{Answer, Engine, Kind, TIMEOUT};
use super::store::Cluster;
use super::txn::{Compare, KeyValue, Operation, Read, Relation, Target, Txn, TxnAnswer, only};
use super::{EtcdAccess, PostgresAccess};
use crate::error::Fault;

#[path = "../../tests/cluster/postgres.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "tests of the program use the rest"
)]
mod postgres;

const PREFIX: &str = "/p";

/// Numbers that are the same in each run with the same seed (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % (limit as u64)).unwrap()
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }
}

/// One engine, and its numbers of the leases.
struct Side {
    cluster: Cluster,
    leases: Vec<i64>,
}

impl Side {
    fn engine(&self) -> &dyn Engine {
        &*self.cluster.engine
    }

    /// With this engine's number for each lease, which is given by its place; 0 is none.
    fn txn(&self, txn: &Txn) -> Answer<TxnAnswer> {
        let number = |place: i64| match usize::try_from(place).unwrap() {
            0 => 0,
            // One that never was.
            place => self.leases.get(place - 1).copied().unwrap_or(12_345),
        };
        let mut own = txn.clone();
        for compare in &mut own.compare {
            if let Target::Lease(lease) = &mut compare.target {
                *lease = number(*lease);
            }
        }
        for operation in own.success.iter_mut().chain(&mut own.failure) {
            if let Operation::Put { lease, .. } = operation {
                *lease = number(*lease);
            }
        }
        self.engine().txn(&own, TIMEOUT)
    }

    /// What was found, with the places of the leases.
    fn shown(&self, found: &[KeyValue]) -> Vec<KeyValue> {
        let place = |lease: i64| self.leases.iter().position(|own| *own == lease);
        let shown = found.iter().map(|one| KeyValue {
            lease: place(one.lease).map_or(0, |place| i64::try_from(place).unwrap() + 1),
            ..one.clone()
        });
        shown.collect()
    }
}

fn keys() -> Vec<String> {
    let names = ["a", "a//1", "ab", "a/b", "ä", "z"];
    let parts = ["hold", "life", "wait"];
    let all = parts
        .iter()
        .flat_map(|part| names.map(|name| format!("{PREFIX}//{part}/{name}")));
    all.chain([format!("{PREFIX}//last/2a")]).collect()
}

/// One key, what is below it, or a part of the store.
fn range(random: &mut Random) -> Range<String> {
    let key = random.of(&keys());
    match random.below(4) {
        0 => format!("{key}/")..format!("{key}0"),
        1 => format!("{PREFIX}//hold/")..format!("{PREFIX}//hold0"),
        _ => only(&key),
    }
}

fn compare(random: &mut Random, revision: i64, leases: usize) -> Compare {
    let relation = random.of(&[
        Relation::Equal,
        Relation::Equal,
        Relation::Less,
        Relation::Greater,
    ]);
    let near = revision - i64::try_from(random.below(12)).unwrap();
    let number = random.of(&[0, 0, near, near.max(1), revision + 1]);
    let (range, target) = match random.below(8) {
        0..3 => (range(random), Target::Created(number)),
        3..6 => (range(random), Target::Modified(number)),
        6 => (
            only(&random.of(&keys())),
            Target::Value(random.below(3).to_string()),
        ),
        _ => {
            let place = i64::try_from(random.below(leases + 1)).unwrap();
            (only(&random.of(&keys())), Target::Lease(place))
        }
    };
    let is_one = range == only(&range.start);
    let relation = if matches!(target, Target::Lease(_)) {
        Relation::Equal
    } else {
        relation
    };
    Compare {
        range: if is_one {
            range.start..String::new()
        } else {
            range
        },
        relation,
        target,
    }
}

/// etcd refuses to write a key twice in one transaction.
fn operations(random: &mut Random, leases: usize) -> Vec<Operation> {
    let mut written: Vec<Range<String>> = Vec::new();
    let mut all = Vec::new();
    for _ in 0..random.below(5) {
        let range = range(random);
        let is_new = !written
            .iter()
            .any(|other| other.start < range.end && range.start < other.end);
        all.push(match random.below(5) {
            0 if is_new => Operation::Delete(range.clone()),
            1 | 2 if is_new && range == only(&range.start) => Operation::Put {
                key: range.start.clone(),
                value: random.below(3).to_string().into_bytes(),
                lease: i64::try_from(random.below(leases + 1)).unwrap(),
            },
            _ => {
                let keys_only = random.below(3) == 0;
                all.push(Operation::Read(Read {
                    keys_only,
                    ..Read::all(range)
                }));
                continue;
            }
        });
        written.push(range);
    }
    all
}

/// An etcd on the two ports behind this one.
fn start_etcd(port: u16) -> (Child, String, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let [client, peer] = [port + 1, port + 2].map(|port| format!("127.0.0.1:{port}"));
    let mut etcd = Command::new("etcd");
    let (client_url, peer_url) = (format!("http://{client}"), format!("http://{peer}"));
    etcd.arg("--data-dir")
        .arg(directory.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    etcd.args([
        "--listen-client-urls",
        &client_url,
        "--advertise-client-urls",
        &client_url,
    ]);
    etcd.args([
        "--listen-peer-urls",
        &peer_url,
        "--initial-advertise-peer-urls",
        &peer_url,
    ]);
    etcd.args([
        "--initial-cluster",
        &format!("default={peer_url}"),
        "--unsafe-no-fsync",
    ]);
    let etcd = etcd.spawn().expect("etcd is installed (apt: etcd-server)");
    (etcd, client, directory)
}

#[test]
#[allow(clippy::print_stdout, reason = "it says what was compared")]
#[ignore = "starts an etcd and a PostgreSQL"]
fn random_transactions_have_the_same_answers_on_both_engines() {
    let count = std::env::var("TRANSACTIONS").map_or(2_000, |count| count.parse().unwrap());
    let seed = std::env::var("SEED").map_or(0x2026_1129, |seed| seed.parse().unwrap());
    println!("{count} transactions, SEED={seed}");
    let mut random = Random(seed);
    let postgres = postgres::Postgres::start(&["fsync=off"]);
    let (mut etcd, client, _directory) = start_etcd(postgres.port);
    let of_postgres =
        Cluster::on_postgres(&postgres.url(PREFIX), &PostgresAccess::default()).unwrap();
    let of_etcd =
        Cluster::on_etcd(&format!("etcd://{client}{PREFIX}"), &EtcdAccess::default()).unwrap();
    let mut sides = [of_postgres, of_etcd].map(|cluster| Side {
        cluster,
        leases: Vec::new(),
    });
    let began = Instant::now();
    while sides[1].engine().read(&Read::all(only("x"))).is_err() {
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "etcd does not start"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let (mut succeeded, mut refused, mut found, mut revision) = (0, 0, 0, 1);
    for at in 0..count {
        if at % 20 == 0 {
            for side in &mut sides {
                let lease = side.engine().grant(600).unwrap();
                side.leases.push(lease.id);
            }
        }
        let leases = sides[0].leases.len();
        if random.below(30) == 0 {
            let place = random.below(leases);
            for side in &sides {
                // etcd says that it is gone already.
                let _ = side.engine().revoke(side.leases[place]);
            }
        }
        let unknown = usize::from(random.below(50) == 0);
        let txn = Txn {
            compare: (0..random.below(3))
                .map(|_| compare(&mut random, revision, leases))
                .collect(),
            success: operations(&mut random, leases + unknown),
            failure: operations(&mut random, leases),
        };
        let [ours, theirs] = sides.each_ref().map(|side| side.txn(&txn));
        let (ours, theirs) = match (ours, theirs) {
            (Ok(ours), Ok(theirs)) => (ours, theirs),
            (Err(ours), Err(theirs)) => {
                assert_eq!(
                    ours.kind,
                    Kind::Refused(Fault::NoLease),
                    "{txn:?}: {ours:?}"
                );
                assert_eq!(ours.kind, theirs.kind, "{txn:?}: {theirs:?}");
                refused += 1;
                continue;
            }
            (ours, theirs) => panic!("{txn:?}: PostgreSQL {ours:?}, etcd {theirs:?}"),
        };
        assert_eq!(
            ours.succeeded, theirs.succeeded,
            "{at}: {txn:?}: {ours:?} {theirs:?}"
        );
        assert_eq!(
            ours.revision, theirs.revision,
            "{at}: {txn:?}: {ours:?} {theirs:?}"
        );
        assert_eq!(ours.answers.len(), theirs.answers.len(), "{at}: {txn:?}");
        for (ours, theirs) in ours.answers.iter().zip(&theirs.answers) {
            let shown = [(&sides[0], ours), (&sides[1], theirs)]
                .map(|(side, answer)| side.shown(&answer.kvs));
            assert_eq!(shown[0], shown[1], "{at}: {txn:?}");
            found += shown[0].len();
        }
        revision = ours.revision;
        succeeded += usize::from(ours.succeeded);
    }
    let _ = etcd.kill();
    let _ = etcd.wait();
    println!(
        "{succeeded} succeeded, {refused} refused, {found} keys found, revision {revision}: all alike"
    );
    assert!(
        succeeded > count / 4 && found > count / 4 && refused > 0,
        "too few that say something"
    );
}
