use std::fmt::Write as _;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, mpsc};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{self, TestEnv, json_object, wait_until};
use crate::network::Network;
use crate::postgres::Postgres;
use crate::scene::{Engine, engine};

/// Members of etcd, on loopback or on hosts of their own.
pub struct Cluster {
    network: Option<Network>,
    members: Mutex<Vec<Member>>,
    scheme: &'static str,
    options: Vec<String>,
    data: TempDir,
    token: String,
}

struct Member {
    name: String,
    address: String,
    child: Option<Child>,
    client_port: u16,
    peer_port: u16,
}

impl Member {
    fn endpoint(&self) -> String {
        format!("{}:{}", self.address, self.client_port)
    }

    fn peer_url(&self) -> String {
        format!("http://{}:{}", self.address, self.peer_port)
    }
}

/// A port that nothing else is given meanwhile: not one of those that the kernel hands out.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let offset = NEXT.fetch_add(1, Ordering::Relaxed);
        let process = u16::try_from(std::process::id() % 50).unwrap() * 200;
        let port = 20_000 + process + offset;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// A cluster of three that no test disturbs.
pub fn shared() -> &'static Cluster {
    static SHARED: OnceLock<Cluster> = OnceLock::new();
    SHARED.get_or_init(|| {
        let (sender, started) = mpsc::channel();
        // Its members are killed when the thread ends that has started them: with the process.
        std::thread::spawn(move || {
            let cluster = Cluster::start(3);
            remove_at_exit(cluster.data.path());
            sender.send(cluster).unwrap();
            loop {
                std::thread::park();
            }
        });
        started.recv().unwrap()
    })
}

/// A server of PostgreSQL that no test disturbs.
pub fn shared_postgres() -> &'static Postgres {
    static SHARED: OnceLock<Postgres> = OnceLock::new();
    SHARED.get_or_init(|| {
        let (sender, started) = mpsc::channel();
        // As above.
        std::thread::spawn(move || {
            let postgres = Postgres::start(&["fsync=off"]);
            remove_at_exit(&postgres.data());
            sender.send(postgres).unwrap();
            loop {
                std::thread::park();
            }
        });
        started.recv().unwrap()
    })
}

/// Removes a directory once this process has ended: what is static is never dropped.
fn remove_at_exit(directory: &std::path::Path) {
    let mut remover = Command::new("sh");
    remover
        .args(["-c", "cat; sleep 0.2; rm -rf \"$0\""])
        .arg(directory);
    remover
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // The end of the pipe is closed with this process.
    std::mem::forget(remover.spawn().unwrap());
}

/// A test environment whose store is on etcd, below a prefix of its own.
pub fn env_on(cluster: &Cluster) -> (TestEnv, String) {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let prefix = format!("/t{}", COUNT.fetch_add(1, Ordering::Relaxed));
    (TestEnv::new(), cluster.url(&prefix))
}

/// Commands of a test whose store has this name.
pub struct On {
    pub env: TestEnv,
    pub dir: String,
}

impl On {
    pub fn new(cluster: &Cluster) -> Self {
        let (env, dir) = env_on(cluster);
        Self { env, dir }
    }

    /// A store on the engine of the scene.
    pub fn of_scene() -> Self {
        Self::of(engine())
    }

    pub fn of(engine: Engine) -> Self {
        match engine {
            Engine::Etcd => Self::new(shared()),
            Engine::Postgres => {
                static COUNT: AtomicUsize = AtomicUsize::new(0);
                let prefix = format!("/t{}", COUNT.fetch_add(1, Ordering::Relaxed));
                Self::at(shared_postgres().url(&prefix))
            }
        }
    }

    pub fn at(dir: String) -> Self {
        let env = TestEnv::new();
        Self { env, dir }
    }

    fn engine(&self) -> Engine {
        if self.dir.starts_with("postgres://") {
            Engine::Postgres
        } else {
            Engine::Etcd
        }
    }

    /// The addresses of the members of its engine.
    pub fn endpoints(&self) -> Vec<String> {
        match self.engine() {
            Engine::Etcd => shared().endpoints(),
            Engine::Postgres => vec![format!("127.0.0.1:{}", shared_postgres().port)],
        }
    }

    /// The same store by other addresses.
    pub fn url_at(&self, endpoints: &[&str]) -> String {
        let (endpoints, prefix) = (endpoints.join(","), self.prefix());
        match self.engine() {
            Engine::Etcd => format!("etcd://{endpoints}{prefix}"),
            Engine::Postgres => format!("postgres://postgres@{endpoints}/postgres{prefix}"),
        }
    }

    /// The keys that are left, without the last number and the journal.
    pub fn left(&self) -> Vec<String> {
        match self.engine() {
            Engine::Etcd => shared().left_below(self.prefix()),
            Engine::Postgres => {
                let prefix = self.prefix();
                let keys = shared_postgres().sql(&format!(
                    "select substr(key, length(prefix) + 3) from onehold.item where prefix = '{prefix}'"
                ));
                let stays = |key: &str| key.starts_with("past/") || key.starts_with("last/");
                let is_left = |key: &&str| *key != "epoch" && !stays(key);
                keys.lines().filter(is_left).map(str::to_owned).collect()
            }
        }
    }

    /// The lines of the journal, each as often as it is kept.
    pub fn journal(&self) -> String {
        let prefix = self.prefix();
        match self.engine() {
            Engine::Etcd => {
                let past = format!("{prefix}//past/");
                shared().ctl(&["get", "--prefix", "--print-value-only", &past])
            }
            Engine::Postgres => shared_postgres().sql(&format!(
                "select value from onehold.item where prefix = '{prefix}' and key like '{prefix}//past/%'"
            )),
        }
    }

    /// Puts records by other means: each with its key and its text.
    pub fn put_records(&self, records: &[(String, String)]) {
        self.put_in("hold", records);
    }

    /// Puts keys of one part, such as those of the journal, by other means.
    pub fn put_in(&self, part: &str, all: &[(String, String)]) {
        let part = format!("{}//{part}", self.prefix());
        for some in all.chunks(100) {
            match self.engine() {
                Engine::Etcd => shared().put(&part, some),
                Engine::Postgres => {
                    let prefix = self.prefix();
                    let operation = |(key, value): &(String, String)| {
                        let key = format!("{part}/{key}");
                        serde_json::json!({ "Put": { "key": key, "value": value, "lease": 0 } })
                    };
                    let all: Vec<Value> = some.iter().map(operation).collect();
                    let request = serde_json::json!({ "if": [], "then": all, "else": [] });
                    shared_postgres().sql(&format!(
                        "select onehold.request(1, '{prefix}', '{request}')"
                    ));
                }
            }
        }
    }

    /// Deletes the record of a lock by other means.
    pub fn delete_record(&self, name: &str) {
        match self.engine() {
            Engine::Etcd => _ = shared().ctl(&["del", &format!("{}//hold/{name}", self.prefix())]),
            Engine::Postgres => {
                let prefix = self.prefix();
                let key = format!("{prefix}//hold/{name}");
                let delete = serde_json::json!({ "Delete": { "start": key, "end": "" } });
                let request = serde_json::json!({ "if": [], "then": [delete] });
                shared_postgres().sql(&format!(
                    "select onehold.request(1, '{prefix}', '{request}')"
                ));
            }
        }
    }

    /// Ends the leases of all keys of one part, such as those of the tickets.
    pub fn end_leases(&self, part: &str) {
        let prefix = self.prefix();
        match self.engine() {
            Engine::Etcd => {
                let keys = [
                    "get",
                    "--prefix",
                    &format!("{prefix}//{part}/"),
                    "-w",
                    "json",
                ];
                let found: Value = serde_json::from_str(&shared().ctl(&keys)).unwrap();
                for key in found["kvs"].as_array().into_iter().flatten() {
                    let lease = format!("{:x}", key["lease"].as_i64().unwrap());
                    shared().ctl(&["lease", "revoke", &lease]);
                }
            }
            Engine::Postgres => {
                // In the order in which the function locks them.
                shared_postgres().sql(&format!(
                    "update onehold.store set ends = clock_timestamp() where prefix = '{prefix}'; \
                     update onehold.lease set expires = clock_timestamp() where id in (select lease \
                     from onehold.item where prefix = '{prefix}' and key like '{prefix}//{part}/%')"
                ));
                // Whoever sends the next request ends them.
                self.done(&["run", "elsewhere", "--", "true"]);
            }
        }
    }

    pub fn prefix(&self) -> &str {
        let at = self.dir.rfind('/').unwrap();
        &self.dir[at..]
    }

    pub fn onehold(&self, args: &[&str]) -> Command {
        let mut command = self.env.onehold(args);
        command.env("ONEHOLD_DIR", &self.dir);
        command
    }

    #[track_caller]
    pub fn output(&self, args: &[&str]) -> (i32, String, String) {
        let output = harness::output(&mut self.onehold(args));
        (
            harness::exit_code(output.status),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    }

    #[track_caller]
    pub fn code(&self, args: &[&str]) -> i32 {
        self.output(args).0
    }

    #[track_caller]
    pub fn done(&self, args: &[&str]) -> String {
        let (code, stdout, stderr) = self.output(args);
        assert_eq!(code, 0, "{args:?}: {stdout}{stderr}");
        stdout.trim().to_owned()
    }

    #[track_caller]
    pub fn lock(&self, name: &str) -> Value {
        let (_, stdout, stderr) = self.output(&["check", "--json", name]);
        assert!(!stdout.is_empty(), "{stderr}");
        json_object(stdout.as_bytes())["lock"].take()
    }

    #[track_caller]
    pub fn state(&self, name: &str) -> String {
        self.lock(name)["state"]
            .as_str()
            .unwrap_or("none")
            .to_owned()
    }

    #[track_caller]
    pub fn wait_until_held(&self, name: &str) {
        wait_until("the lock is held", || self.state(name) == "held");
    }

    pub fn waiters(&self, name: &str) -> usize {
        self.lock(name)["waiters"].as_array().map_or(0, Vec::len)
    }
}

impl Cluster {
    pub fn start(count: usize) -> Self {
        Self::start_with(count, "http", &[])
    }

    pub fn start_with(count: usize, scheme: &'static str, options: &[&str]) -> Self {
        Self::start_at(None, count, scheme, options)
    }

    /// Three members, on the first hosts of a network.
    pub fn start_in(network: Network) -> Self {
        Self::start_at(Some(network), 3, "http", &[])
    }

    fn start_at(
        network: Option<Network>,
        count: usize,
        scheme: &'static str,
        options: &[&str],
    ) -> Self {
        let loopback = || "127.0.0.1".to_owned();
        let address = |at| network.as_ref().map_or_else(loopback, |of| of.address(at));
        let members = (0..count).map(|at| Member {
            name: format!("m{at}"),
            address: address(at),
            child: None,
            client_port: free_port(),
            peer_port: free_port(),
        });
        let directory = if std::path::Path::new("/dev/shm").is_dir() {
            "/dev/shm"
        } else {
            "/tmp"
        };
        let cluster = Self {
            members: Mutex::new(members.collect()),
            network,
            scheme,
            options: options.iter().map(ToString::to_string).collect(),
            data: tempfile::tempdir_in(directory).unwrap(),
            token: format!("t{}", free_port()),
        };
        for at in 0..count {
            cluster.start_member(at, "new");
        }
        cluster.wait_until_healthy();
        cluster
    }

    fn start_member(&self, at: usize, state: &str) {
        let mut members = self.members.lock().unwrap();
        let initial: Vec<String> = members
            .iter()
            .map(|member| format!("{}={}", member.name, member.peer_url()))
            .collect();
        let member = &mut members[at];
        let (client, peer) = (
            format!("{}://{}", self.scheme, member.endpoint()),
            member.peer_url(),
        );
        let mut command = Command::new("etcd");
        command
            .args(["--name", &member.name, "--data-dir"])
            .arg(self.data.path().join(&member.name))
            .args(["--listen-client-urls", &client])
            .args(["--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer])
            .args(["--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &initial.join(",")])
            .args(["--initial-cluster-state", state])
            .args(["--initial-cluster-token", &self.token])
            .args(["--logger", "zap", "--log-level", "error"])
            .args(&self.options);
        command = self.from(at, command);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::null()).process_group(0);
        // SAFETY: prctl(2) is a plain system call.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
                Ok(())
            });
        }
        member.child = Some(
            command
                .spawn()
                .expect("etcd is installed (apt: etcd-server)"),
        );
    }

    pub fn endpoints(&self) -> Vec<String> {
        let members = self.members.lock().unwrap();
        members.iter().map(Member::endpoint).collect()
    }

    pub fn network(&self) -> &Network {
        self.network.as_ref().expect("a cluster with hosts")
    }

    /// A command on the host of a member.
    fn from(&self, at: usize, command: Command) -> Command {
        match &self.network {
            Some(network) => network.on(at, &command),
            None => command,
        }
    }

    pub fn url(&self, prefix: &str) -> String {
        let scheme = if self.scheme == "https" {
            "etcds"
        } else {
            "etcd"
        };
        format!("{scheme}://{}{prefix}", self.endpoints().join(","))
    }

    /// etcdctl on the members that run.
    pub fn etcdctl(&self, args: &[&str]) -> (bool, String) {
        let endpoints: Vec<String> = self
            .endpoints()
            .iter()
            .map(|endpoint| format!("{}://{endpoint}", self.scheme))
            .collect();
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3");
        command.env("ETCDCTL_ENDPOINTS", endpoints.join(","));
        command.args(args);
        let output = self.from(0, command).output();
        let output = output.expect("etcdctl is installed (apt: etcd-client)");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (
            output.status.success(),
            if text.is_empty() { said } else { text },
        )
    }

    /// Puts records below a prefix.
    fn put(&self, part: &str, all: &[(String, String)]) {
        let mut txn = String::from("\n");
        for (key, value) in all {
            writeln!(txn, "put {part}/{key} {value:?}").unwrap();
        }
        txn.push_str("\n\n");
        let mut child = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.endpoints()[0], "txn"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(txn.as_bytes()).unwrap();
        drop(input);
        assert!(child.wait().unwrap().success(), "{txn}");
    }

    #[track_caller]
    pub fn ctl(&self, args: &[&str]) -> String {
        let (is_done, text) = self.etcdctl(args);
        assert!(is_done, "etcdctl {args:?}: {text}");
        text
    }

    /// The keys below a prefix, without the last numbers.
    pub fn left_below(&self, prefix: &str) -> Vec<String> {
        let text = self.ctl(&["get", "--prefix", &format!("{prefix}//"), "--keys-only"]);
        text.lines()
            .filter(|line| !line.is_empty() && !line.contains("//last/"))
            .filter(|line| !line.ends_with("//epoch") && !line.contains("//past/"))
            .map(str::to_owned)
            .collect()
    }

    pub fn wait_until_healthy(&self) {
        if self.scheme == "https" {
            // Only with certificates.
            return;
        }
        for endpoint in self.endpoints() {
            wait_until("a member is healthy", || {
                let mut command = Command::new("etcdctl");
                command.env("ETCDCTL_API", "3");
                command.args(["--endpoints", &endpoint, "endpoint", "health"]);
                let output = self.from(0, command).output();
                output.is_ok_and(|output| output.status.success())
            });
        }
    }

    /// Which member leads.
    pub fn leader(&self) -> usize {
        let endpoints = self.endpoints();
        let mut leader = None;
        wait_until("there is a leader", || {
            leader = (0..endpoints.len()).find(|at| {
                let mut command = Command::new("etcdctl");
                let endpoint = &endpoints[*at];
                command.env("ETCDCTL_API", "3");
                command.args(["--endpoints", endpoint, "endpoint", "status", "-w", "json"]);
                let output = self.from(*at, command).output().unwrap();
                let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
                let status = &status[0]["Status"];
                status["leader"].is_u64() && status["leader"] == status["header"]["member_id"]
            });
            leader.is_some()
        });
        leader.unwrap()
    }

    pub fn signal(&self, at: usize, signal: Signal) {
        let members = self.members.lock().unwrap();
        let child = members[at].child.as_ref().unwrap();
        kill_process(Pid::from_child(child), signal).unwrap();
    }

    pub fn kill(&self, at: usize) {
        let mut members = self.members.lock().unwrap();
        if let Some(mut child) = members[at].child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub fn restart(&self, at: usize) {
        self.kill(at);
        self.start_member(at, "existing");
    }

    /// Ends all members, puts other data in place of theirs, and starts them again. `None`: no data.
    pub fn restore(&self, snapshot: Option<&std::path::Path>) {
        let count = self.members.lock().unwrap().len();
        for at in 0..count {
            self.kill(at);
        }
        for at in 0..count {
            let (name, peers, own) = {
                let members = self.members.lock().unwrap();
                let peers: Vec<String> = members
                    .iter()
                    .map(|member| format!("{}={}", member.name, member.peer_url()))
                    .collect();
                let own = members[at].peer_url();
                (members[at].name.clone(), peers.join(","), own)
            };
            let directory = self.data.path().join(&name);
            std::fs::remove_dir_all(&directory).unwrap();
            if let Some(snapshot) = snapshot {
                self.ctl(&[
                    "snapshot",
                    "restore",
                    snapshot.to_str().unwrap(),
                    "--name",
                    &name,
                    "--initial-cluster",
                    &peers,
                    "--initial-cluster-token",
                    &self.token,
                    "--initial-advertise-peer-urls",
                    &own,
                    "--data-dir",
                    directory.to_str().unwrap(),
                ]);
            }
        }
        for at in 0..count {
            self.start_member(at, "new");
        }
        self.wait_until_healthy();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let mut members = self.members.lock().unwrap();
        for child in members
            .iter_mut()
            .filter_map(|member| member.child.as_mut())
        {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
