//! The two servers: how many requests they have had, and what they do instead of onehold.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::harness::wait_until;
use super::postgres::{Postgres, program};
use super::quiet;

pub(crate) trait Server: Sync {
    /// Its name, and that of what is used on it instead of onehold.
    fn names(&self) -> (&'static str, &'static str);

    fn store(&self) -> String;

    /// What holds a lock for a command without onehold.
    fn other(&self, lock: &str, command: &str) -> Command;

    fn run_at_most(&self) -> f64;

    /// How many it has had.
    fn requests(&self) -> u64;

    /// The time of all its processes on a processor.
    fn cpu(&self) -> Duration;
}

/// An etcd of one member.
pub(crate) struct Etcd {
    child: Child,
    client: String,
    _data: TempDir,
}

impl Etcd {
    pub(crate) fn start() -> Self {
        let data = tempfile::tempdir().unwrap();
        let port = || {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap().port()
        };
        let [client, peer] = [port(), port()].map(|port| format!("127.0.0.1:{port}"));
        let [client_url, peer_url] = [&client, &peer].map(|at| format!("http://{at}"));
        let mut etcd = Command::new("etcd");
        etcd.arg("--data-dir").arg(data.path());
        for (option, value) in [
            ("--listen-client-urls", &client_url),
            ("--advertise-client-urls", &client_url),
            ("--listen-peer-urls", &peer_url),
            ("--initial-advertise-peer-urls", &peer_url),
            ("--initial-cluster", &format!("default={peer_url}")),
        ] {
            etcd.args([option, value]);
        }
        let child = quiet(etcd)
            .spawn()
            .expect("etcd is installed (apt: etcd-server)");
        let etcd = Self {
            child,
            client,
            _data: data,
        };
        wait_until("etcd is healthy", || {
            quiet(etcd.ctl(&["endpoint", "health"]))
                .status()
                .unwrap()
                .success()
        });
        etcd
    }

    fn ctl(&self, args: &[&str]) -> Command {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3");
        command.args(["--endpoints", &self.client]).args(args);
        command
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server for Etcd {
    fn names(&self) -> (&'static str, &'static str) {
        ("etcd", "etcdctl lock")
    }

    fn store(&self) -> String {
        format!("etcd://{}/b", self.client)
    }

    fn other(&self, lock: &str, command: &str) -> Command {
        quiet(self.ctl(&["lock", lock, command]))
    }

    fn run_at_most(&self) -> f64 {
        0.35
    }

    fn requests(&self) -> u64 {
        let mut curl = Command::new("curl");
        let url = format!("http://{}/metrics", self.client);
        let answer = curl
            .args(["-s", &url])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8(answer.stdout).unwrap();
        let lines = text
            .lines()
            .filter(|line| line.starts_with("grpc_server_started_total"));
        let counts = lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap());
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let count = counts.sum::<f64>() as u64;
        count
    }

    fn cpu(&self) -> Duration {
        time_of(self.child.id())
    }
}

/// The time of a process and its ended children (proc_pid_stat(5), in hundredths of a second).
fn time_of(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let times = fields.split_whitespace().skip(11).take(4);
    let ticks: u64 = times.map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

impl Server for Postgres {
    fn names(&self) -> (&'static str, &'static str) {
        ("PostgreSQL", "psql")
    }

    fn store(&self) -> String {
        self.url("/b")
    }

    fn other(&self, lock: &str, command: &str) -> Command {
        let mut psql = Command::new(program("psql"));
        psql.args([
            "-X",
            "-q",
            "-h",
            "127.0.0.1",
            "-U",
            "postgres",
            "-d",
            "postgres",
        ]);
        psql.args(["-p", &self.port.to_string()]);
        for line in [
            format!("select pg_advisory_lock(hashtext('{lock}'))"),
            format!("\\! {command}"),
            format!("select pg_advisory_unlock(hashtext('{lock}'))"),
        ] {
            psql.args(["-c", &line]);
        }
        quiet(psql)
    }

    fn run_at_most(&self) -> f64 {
        1.0
    }

    /// Of those whose connection has ended; of the others within a second or when they are idle.
    fn requests(&self) -> u64 {
        std::thread::sleep(Duration::from_millis(1_200));
        let calls =
            "select coalesce(sum(calls), 0) from pg_stat_user_functions where funcname = 'request'";
        self.sql(calls).parse().unwrap()
    }

    fn cpu(&self) -> Duration {
        let pid = std::fs::read_to_string(self.data().join("postmaster.pid")).unwrap();
        let postmaster: u32 = pid.lines().next().unwrap().parse().unwrap();
        let children = format!("/proc/{postmaster}/task/{postmaster}/children");
        let children = std::fs::read_to_string(children).unwrap_or_default();
        let children = children
            .split_whitespace()
            .map(|pid| time_of(pid.parse().unwrap()));
        time_of(postmaster) + children.sum()
    }
}
