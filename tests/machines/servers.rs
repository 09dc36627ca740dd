//! A server on a machine whose power is cut, while others take and give locks on it.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::harness::machine::{Machine, Plan};
use crate::harness::{Running, TestEnv, exit_code, json_object, output, wait_until};
use crate::number_in;

struct Server {
    /// Its store, up to the port and from there on.
    url: [&'static str; 2],
    port: u16,
    /// What tells that it answers.
    ask: &'static str,
    /// What its machine does once, with the disk on /srv, and each time.
    create: &'static str,
    start: &'static str,
}

static ETCD: Server = Server {
    url: ["etcd://127.0.0.1:", "/locks"],
    port: 2379,
    ask: "list",
    create: "mkdir -m 700 /srv/data",
    start: "etcd --data-dir /srv/data --listen-client-urls http://0.0.0.0:2379 \
            --advertise-client-urls http://10.0.2.15:2379",
};

static POSTGRES: Server = Server {
    url: ["postgres://postgres@127.0.0.1:", "/postgres/locks"],
    port: 5432,
    ask: "doctor --create",
    create: "chown postgres /srv && su postgres -c \
             '/usr/lib/postgresql/*/bin/initdb -A trust -E UTF8 --locale=C -D /srv/data' && \
             echo host all all all trust >>/srv/data/pg_hba.conf",
    start: "su postgres -c '/usr/lib/postgresql/*/bin/postgres -D /srv/data -h 0.0.0.0 -k /tmp'",
};

/// Takes and gives two locks while there is the file, and writes `number:name` of each hold, and the name of each lease.
const WORK: &str = r#"touch at-work
    for name in a b; do
        while [ -e at-work ]; do
            onehold run -q -w 5 $name -- sh -c 'echo "$ONEHOLD_HOLDS" >>confirmed' || sleep 0.5
        done &
    done
    while [ -e at-work ]; do lease=lease-$(cat /proc/sys/kernel/random/uuid)
        onehold acquire -q --ttl 10h --owner me $lease && echo "$lease" >>confirmed; sleep 0.5
    done; wait"#;

/// Holds a lock for longer than a machine needs to start, until the end of the test.
const HOLDER: &str = "onehold run --ttl 3m held -- \
    sh -c 'echo $ONEHOLD_HOLD >number; while [ -e number ] && ! [ -e end ]; do sleep 0.1; done'";

#[test]
#[ignore = "starts a machine several times, for minutes"]
fn etcd_after_power_cuts_has_the_hold_of_a_run_every_lease_and_no_lower_number() {
    survive_cuts(&ETCD);
}

#[test]
#[ignore = "starts a machine several times, for minutes"]
fn postgresql_after_power_cuts_has_the_hold_of_a_run_every_lease_and_no_lower_number() {
    survive_cuts(&POSTGRES);
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// A server, and the environment of those who use it.
struct Site {
    env: TestEnv,
    plan: Plan,
    store: String,
    server: &'static Server,
}

impl Site {
    fn new(server: &'static Server) -> (Self, Machine) {
        let port = free_port();
        let mut plan = Plan::new();
        plan.add_disk("data");
        plan.add_host_with_port(port, server.port);
        let site = Self {
            env: TestEnv::new(),
            plan,
            store: server.url.join(&port.to_string()),
            server,
        };
        let create = format!(
            "mkfs.ext4 -q /dev/vdc && {} && {}",
            Self::MOUNT,
            server.create
        );
        let machine = site.start(&create);
        (site, machine)
    }

    const MOUNT: &str = "modprobe ext4 && mount /dev/vdc /srv";

    /// Returns once the server answers.
    fn start(&self, prepare: &str) -> Machine {
        let mut machine = self.plan.start("server");
        machine.join_host();
        machine.output(prepare);
        machine.output(&format!(
            "{{ {}; }} >/tmp/log 2>&1 & true",
            self.server.start
        ));
        let began = Instant::now();
        while !output(&mut self.onehold(self.server.ask)).status.success() {
            let log = |machine: &mut Machine| machine.output("cat /tmp/log");
            assert!(
                began.elapsed() < Duration::from_mins(2),
                "{}",
                log(&mut machine)
            );
            std::thread::sleep(Duration::from_millis(200));
        }
        machine
    }

    fn with_store(&self, mut command: Command) -> Command {
        command.env("ONEHOLD_DIR", &self.store);
        command
    }

    fn onehold(&self, words: &str) -> Command {
        self.with_store(self.env.onehold(words.split(' ')))
    }

    fn code(&self, words: &str) -> i32 {
        exit_code(output(&mut self.onehold(words)).status)
    }
}

fn survive_cuts(server: &'static Server) {
    let cuts = number_in("MACHINES_CUTS").unwrap_or(3);
    let (site, mut machine) = Site::new(server);
    let mut holder = Running::start(site.with_store(site.env.shell(HOLDER)));
    wait_until("the holder has its lock", || site.env.lines("number") == 1);
    let mut work = Running::start(site.with_store(site.env.shell(WORK)));
    for cut in 1..=cuts {
        let before = site.env.lines("confirmed");
        wait_until("the work goes on", || {
            site.env.lines("confirmed") > before + 10
        });
        machine.cut_power();
        let confirmed = fs::read_to_string(site.env.path("confirmed")).unwrap();
        let began = Instant::now();
        machine = site.start(Site::MOUNT);
        println!(
            "cut {cut}: {} confirmed, answers after {:?}",
            confirmed.lines().count(),
            began.elapsed()
        );
        site.assert_recovered(&confirmed);
        assert!(!holder.has_ended());
    }
    fs::remove_file(site.env.path("at-work")).unwrap();
    assert_eq!(work.finish(), 0);
    site.env.end();
    assert_eq!(holder.finish(), 0);
    assert_eq!(site.code("check -q held"), 0);
}

impl Site {
    fn assert_recovered(&self, confirmed: &str) {
        let number = fs::read_to_string(self.env.path("number")).unwrap();
        let number: u64 = number.trim().parse().unwrap();
        let held = output(&mut self.onehold("check --json held"));
        let held = &json_object(&held.stdout)["lock"];
        assert_eq!(
            (&held["state"], &held["hold"]),
            (&"held".into(), &number.into()),
            "{held}"
        );
        assert_eq!(self.code("run -q held -- true"), 6);
        let listed = json_object(&output(&mut self.onehold("list --json")).stdout);
        let mut highest = BTreeMap::<&str, u64>::new();
        for line in confirmed.lines() {
            if let Some((number, name)) = line.split_once(':') {
                let highest = highest.entry(name).or_default();
                *highest = number.parse::<u64>().unwrap().max(*highest);
            } else {
                let locks = listed["locks"].as_array().unwrap();
                let lock = locks.iter().find(|lock| lock["name"] == line);
                assert_eq!(lock.expect(line)["state"], "held", "{line}");
            }
        }
        assert_eq!(highest.len(), 2, "{confirmed}");
        for (name, before) in highest {
            let run = format!("run -q -w 60 {name} -- printenv ONEHOLD_HOLD");
            let ran = output(&mut self.onehold(&run));
            let number = String::from_utf8_lossy(&ran.stdout);
            let number: u64 = number.trim().parse().unwrap_or_else(|_| panic!("{ran:?}"));
            assert!(number > before, "{name}: {number} after {before}");
        }
    }
}
