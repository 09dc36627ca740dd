//! The same on servers on loopback, which are killed and hang, and lose their connections.

use std::time::Duration;

use crate::cluster::{Cluster, On};
use crate::driver::{Driver, generator, seed};
use crate::harness::seen::now;
use crate::harness::{Rng, Signal};
use crate::history::Store;
use crate::plan::Pace;
use crate::postgres::Postgres;
use crate::proxy::Proxy;

/// A store on a server, and how to reach it by ways that can be cut, one for each client.
struct Reached {
    proxies: Vec<Vec<Proxy>>,
    dirs: Vec<String>,
}

impl Reached {
    fn new(endpoints: &[String], url_at: impl Fn(&[&str]) -> String) -> Self {
        let to_all = |_| endpoints.iter().map(|to| Proxy::to(to)).collect();
        let proxies: Vec<Vec<Proxy>> = (0..5).map(to_all).collect();
        let url = |proxies: &Vec<Proxy>| {
            let endpoints: Vec<&str> = proxies.iter().map(|proxy| &*proxy.endpoint).collect();
            url_at(&endpoints)
        };
        let dirs = proxies.iter().map(url).collect();
        Self { proxies, dirs }
    }

    /// Cuts one client off for a while: also for longer than it may go without a renewal.
    fn cut_one(&self, rng: &mut Rng) {
        let milliseconds = [300, 2_000, 9_000][rng.below(3)];
        let cut = &self.proxies[rng.below(self.proxies.len())];
        cut.iter().for_each(Proxy::cut);
        std::thread::sleep(Duration::from_millis(milliseconds));
        cut.iter().for_each(Proxy::mend);
    }
}

/// One thing after the other goes wrong, and is noted, until it is over.
fn let_fail(driver: &Driver, mut rng: Rng, fail: impl Fn(&mut Rng)) {
    while !driver.is_over() {
        std::thread::sleep(Duration::from_millis(1_500 + rng.below(3_000) as u64));
        let from = now();
        // Until it is over, it has no end.
        driver.outages.lock().unwrap().push((from, u64::MAX / 2));
        fail(&mut rng);
        driver.outages.lock().unwrap().last_mut().unwrap().1 = now();
    }
}

fn driver(on: On) -> Driver {
    let mut driver = Driver::new(on.env, Store::SERVER, Pace::SERVER);
    driver.run_options = &["--ttl", "10"];
    driver.between_signals = (100, 500);
    driver.dir = Some(on.dir);
    driver
}

#[test]
#[ignore = "needs etcd (apt: etcd-server etcd-client), and lasts 30 s"]
fn history_of_etcd_is_that_of_locks() {
    let cluster = Cluster::start(3);
    let on = On::new(&cluster);
    let (seed, prefix) = (seed(), on.prefix().to_owned());
    let url = |endpoints: &[&str]| format!("etcd://{}{prefix}", endpoints.join(","));
    let reached = Reached::new(&cluster.endpoints(), url);
    let driver = driver(on);
    driver.run(seed, &reached.dirs, |driver| {
        let_fail(driver, generator(seed, 200), |rng| {
            let member = rng.below(3);
            match rng.below(5) {
                0 => {
                    cluster.kill(member);
                    std::thread::sleep(Duration::from_millis(rng.below(3_000) as u64));
                    cluster.restart(member);
                }
                1 => {
                    cluster.signal(member, Signal::STOP);
                    std::thread::sleep(Duration::from_millis(rng.below(3_000) as u64));
                    cluster.signal(member, Signal::CONT);
                }
                2 => {
                    let leader = cluster.leader();
                    cluster.kill(leader);
                    cluster.restart(leader);
                }
                _ => reached.cut_one(rng),
            }
        });
    });
    cluster.wait_until_healthy();
    driver.conclude(|| cluster.left_below(&prefix));
}

#[test]
#[ignore = "needs PostgreSQL (apt: postgresql), and lasts 30 s"]
fn history_of_postgres_is_that_of_locks() {
    let postgres = Postgres::start(&["fsync=off"]);
    let on = On::at(postgres.url("/histories"));
    let seed = seed();
    let url = |endpoints: &[&str]| {
        let [endpoint] = endpoints else {
            panic!("one server")
        };
        format!("postgres://postgres@{endpoint}/postgres/histories")
    };
    let reached = Reached::new(&[format!("127.0.0.1:{}", postgres.port)], url);
    let driver = driver(on);
    driver.run(seed, &reached.dirs, |driver| {
        let_fail(driver, generator(seed, 200), |rng| match rng.below(5) {
            0 => {
                postgres.kill();
                std::thread::sleep(Duration::from_millis(rng.below(3_000) as u64));
                postgres.resume();
            }
            1 | 2 => {
                let others = "select pg_terminate_backend(pid) from pg_stat_activity \
                    where backend_type = 'client backend' and pid <> pg_backend_pid()";
                postgres.sql(others);
            }
            _ => reached.cut_one(rng),
        });
    });
    let sql = "select key from onehold.item where key !~ '//(last/.*|epoch|past/.*)$'";
    driver.conclude(|| postgres.sql(sql).lines().map(str::to_owned).collect());
}
