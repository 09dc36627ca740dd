use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// The user of servers that refuse to run as root.
const NOBODY: u32 = 65_534;

/// A server of PostgreSQL on loopback, with a directory of its own. Its superuser `postgres` needs no password.
pub struct Postgres {
    pub port: u16,
    data: TempDir,
    options: Vec<String>,
    variables: Vec<(&'static str, PathBuf)>,
    child: Mutex<Option<Child>>,
}

/// One of its programs: of the directory in `ONEHOLD_TEST_POSTGRES`, or of the newest version that is installed. Debian
/// has most of them where no path leads.
pub fn program(name: &str) -> PathBuf {
    let chosen = std::env::var_os("ONEHOLD_TEST_POSTGRES").map(PathBuf::from);
    let versions = std::fs::read_dir("/usr/lib/postgresql");
    let versions = versions.into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    found.sort();
    found.extend(chosen);
    let mut found = found.iter().rev().map(|directory| directory.join(name));
    found
        .find(|path| path.exists())
        .unwrap_or_else(|| PathBuf::from(name))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A command of an unprivileged user, killed when its starter ends.
pub fn unprivileged(program: PathBuf) -> Command {
    let mut command = Command::new(program);
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(Stdio::null()).process_group(0);
    command.current_dir("/");
    // SAFETY: prctl(2) is a plain system call.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
            Ok(())
        });
    }
    command
}

/// A directory that the unprivileged user may use.
pub fn directory() -> TempDir {
    let in_memory = std::path::Path::new("/dev/shm");
    let place = if in_memory.is_dir() {
        in_memory
    } else {
        "/tmp".as_ref()
    };
    let directory = tempfile::tempdir_in(place).unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    if is_root() {
        chown(directory.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    directory
}

/// A port that no other server of this process has used. It is below 32768: the kernel may give a port above that to
/// somebody else before the server has bound it.
fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let offset = NEXT.fetch_add(1, Ordering::Relaxed);
        let process = u16::try_from(std::process::id() % 50).unwrap() * 200;
        let port = 10_000 + process + offset;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl Postgres {
    /// A server with these options (`name=value`), with and without the schema.
    pub fn start(options: &[&str]) -> Self {
        Self::start_with(options, &[])
    }

    pub fn bare(options: &[&str]) -> Self {
        Self::bare_with(options, &[])
    }

    /// The same with variables of the environment.
    pub fn start_with(options: &[&str], variables: &[(&'static str, PathBuf)]) -> Self {
        let postgres = Self::bare_with(options, variables);
        postgres.sql(include_str!("../../src/cluster/postgres/schema.sql"));
        postgres
    }

    fn bare_with(options: &[&str], variables: &[(&'static str, PathBuf)]) -> Self {
        let postgres = Self {
            port: port(),
            data: directory(),
            options: options.iter().map(ToString::to_string).collect(),
            variables: variables.to_vec(),
            child: Mutex::new(None),
        };
        postgres.init();
        postgres.resume();
        postgres
    }

    fn init(&self) {
        let mut initdb = unprivileged(program("initdb"));
        initdb.args([
            "-U",
            "postgres",
            "-A",
            "trust",
            "-N",
            "-E",
            "UTF8",
            "--locale=C",
            "-D",
        ]);
        let status = initdb.arg(self.data()).status();
        assert!(
            status
                .expect("PostgreSQL is installed (apt: postgresql)")
                .success()
        );
    }

    pub fn data(&self) -> PathBuf {
        self.data.path().join("data")
    }

    pub fn url(&self, prefix: &str) -> String {
        format!(
            "postgres://postgres@127.0.0.1:{}/postgres{prefix}",
            self.port
        )
    }

    /// Starts it, if it does not run.
    pub fn resume(&self) {
        let mut command = unprivileged(program("postgres"));
        command.envs(self.variables.iter().cloned());
        command.arg("-D").arg(self.data());
        command.args(["-p", &self.port.to_string(), "-k", ""]);
        let defaults = ["max_connections=300", "listen_addresses=127.0.0.1"];
        for option in defaults
            .into_iter()
            .chain(self.options.iter().map(String::as_str))
        {
            command.args(["-c", option]);
        }
        *self.child.lock().unwrap() = Some(command.spawn().unwrap());
        let began = Instant::now();
        while !self.psql("postgres", "select 1").0 {
            assert!(
                began.elapsed() < Duration::from_mins(1),
                "it does not start"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills it, as a crash would.
    pub fn kill(&self) {
        if let Some(mut child) = self.child.lock().unwrap().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Copies its data beside them.
    pub fn back_up(&self) {
        let mut backup = unprivileged(program("pg_basebackup"));
        backup.args(["-h", "127.0.0.1", "-U", "postgres", "-c", "fast"]);
        backup.args(["-p", &self.port.to_string(), "-D"]);
        let status = backup.arg(self.backup()).status();
        assert!(status.unwrap().success());
    }

    fn backup(&self) -> PathBuf {
        self.data.path().join("backup")
    }

    /// Kills it, and starts it again with the data that were copied, as an archive that has no more would.
    pub fn restore(&self) {
        self.kill();
        std::fs::remove_dir_all(self.data()).unwrap();
        std::fs::rename(self.backup(), self.data()).unwrap();
        let mut signal = unprivileged("touch".into());
        let signal = signal.arg(self.data().join("recovery.signal"));
        assert!(signal.status().unwrap().success());
        let file = self.data().join("postgresql.auto.conf");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, format!("{text}restore_command = 'false'\n")).unwrap();
        self.resume();
        self.wait_until_writable();
    }

    pub fn wait_until_writable(&self) {
        let began = Instant::now();
        while self.sql("select pg_is_in_recovery()") != "f" {
            assert!(began.elapsed() < Duration::from_mins(1));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills it, and starts another one in its place that has nothing but the schema.
    pub fn create_again(&self) {
        self.kill();
        std::fs::remove_dir_all(self.data()).unwrap();
        self.init();
        self.resume();
        self.sql(include_str!("../../src/cluster/postgres/schema.sql"));
    }

    /// A server that follows it.
    pub fn standby(&self) -> Self {
        let standby = Self {
            port: port(),
            data: directory(),
            options: self.options.clone(),
            variables: self.variables.clone(),
            child: Mutex::new(None),
        };
        let mut backup = unprivileged(program("pg_basebackup"));
        backup.args(["-h", "127.0.0.1", "-U", "postgres", "-c", "fast", "-R"]);
        backup.args(["-p", &self.port.to_string(), "-D"]);
        let status = backup.arg(standby.data()).status();
        assert!(status.unwrap().success());
        // What a newer pg_basebackup has written may not be known.
        let file = standby.data().join("postgresql.auto.conf");
        let text = std::fs::read_to_string(&file).unwrap();
        let primary = format!("host=127.0.0.1 port={} user=postgres", self.port);
        std::fs::write(&file, format!("{text}primary_conninfo = '{primary}'\n")).unwrap();
        standby.resume();
        standby
    }

    /// Does what a statement says, as a role, and returns what it prints.
    pub fn psql(&self, role: &str, sql: &str) -> (bool, String) {
        let mut command = Command::new(program("psql"));
        command.args([
            "-X",
            "-A",
            "-t",
            "-q",
            "-v",
            "ON_ERROR_STOP=1",
            "-h",
            "127.0.0.1",
        ]);
        command.args([
            "-p",
            &self.port.to_string(),
            "-U",
            role,
            "-d",
            "postgres",
            "-c",
            sql,
        ]);
        let output = command.output().expect("psql is installed");
        let said = [output.stdout, output.stderr].concat();
        (
            output.status.success(),
            String::from_utf8(said).unwrap().trim().to_owned(),
        )
    }

    #[track_caller]
    pub fn sql(&self, sql: &str) -> String {
        let (is_done, said) = self.psql("postgres", sql);
        assert!(is_done, "{said}");
        said
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.kill();
    }
}
