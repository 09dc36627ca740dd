//! What the pages say for the first hour, done as they say it, and each wrong step.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::cluster::{Cluster, free_port};
use crate::harness::{CONTENDERS, TestEnv, exit_code, output, run_together, wait_until};
use crate::postgres::{Postgres, directory, program};

/// The examples below a heading of a page, as they are read.
fn examples(page: &str, heading: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("man").join(page);
    let text = fs::read_to_string(path).unwrap();
    let (_, below) = text.split_once(&format!("\n.SH {heading}\n")).unwrap();
    let below = below.split("\n.SH ").next().unwrap();
    let examples = below.split("\n.EX\n").skip(1);
    examples
        .map(|example| {
            let example = example.split("\n.EE").next().unwrap();
            let read = [("\\-", "-"), ("\\(dq", "\""), ("\\(aq", "'"), ("\\e", "\\")];
            read.iter().fold(example.to_owned(), |text, (from, to)| {
                text.replace(from, to)
            })
        })
        .collect()
}

/// Does what a script says, in a session without a terminal, and answers what it is asked.
#[track_caller]
fn do_all(env: &TestEnv, script: &str, variables: &[(&str, &str)], answers: &str) -> Output {
    let file = env.path("answers");
    fs::write(&file, answers).unwrap();
    let mut command = env.command("setsid");
    command.args(["-w", "sh", "-exc", script]);
    command.envs(variables.iter().copied());
    command.stdin(fs::File::open(&file).unwrap());
    let done = output(&mut command);
    let said = [&*done.stdout, &*done.stderr].concat();
    assert!(
        done.status.success(),
        "{script}\n{}",
        String::from_utf8_lossy(&said)
    );
    done
}

/// A PATH that leads to all of them, and to onehold.
fn path() -> String {
    let of = |program: PathBuf| program.parent().map(|path| path.display().to_string());
    let own = of(crate::harness::program()).unwrap_or_default();
    let rest = std::env::var("PATH").unwrap_or_default();
    let found =
        ["createdb", "createuser", "psql"].map(|name| of(program(name)).unwrap_or_default());
    [&[own], &found[..], &[rest]].concat().join(":")
}

/// A job that must not run twice at a time, on each machine.
fn add_job(machine: &TestEnv, shared: &Path) {
    let job = machine.path("backup.sh");
    let place = shared.display();
    let script = format!(
        "#!/bin/sh\nmkdir {place}/running || touch {place}/twice\nsleep 0.02\nrmdir {place}/running\necho >>{place}/ran\n"
    );
    fs::write(&job, script).unwrap();
    fs::set_permissions(&job, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs the job on all machines at once, beside another lock of each.
fn assert_locked(machines: &[TestEnv], set: &str, variables: &[(&str, &str)], shared: &Path) {
    let run = |machine: &TestEnv, words: &str| {
        let mut command = machine.command("sh");
        command.args(["-ec", &format!("{set}\nonehold run -w 60 {words}")]);
        command.envs(variables.iter().copied());
        command
    };
    let before = fs::read_to_string(shared.join("ran")).map_or(0, |text| text.lines().count());
    let each = CONTENDERS.div_ceil(machines.len());
    let runs: Vec<Command> = (0..each)
        .flat_map(|at| {
            let run = &run;
            machines.iter().enumerate().flat_map(move |(of, machine)| {
                let innocent = format!("other-{at}-{of} -- true");
                [
                    run(machine, "backup -- ./backup.sh"),
                    run(machine, &innocent),
                ]
            })
        })
        .collect();
    for done in run_together(runs) {
        let told = String::from_utf8_lossy(&done.stderr);
        assert_eq!(exit_code(done.status), 0, "{told}");
    }
    assert!(!shared.join("twice").exists());
    let ran = fs::read_to_string(shared.join("ran"))
        .unwrap()
        .lines()
        .count();
    assert_eq!(ran - before, each * machines.len());
}

#[test]
fn page_of_postgres_leads_from_an_empty_server_to_a_lock_on_three_machines() {
    let sockets = directory();
    let at = sockets.path().display().to_string();
    let sockets_option = format!("unix_socket_directories={at}");
    let options = [
        "fsync=off",
        "password_encryption=scram-sha-256",
        &sockets_option,
    ];
    let postgres = Postgres::bare(&options);
    let examples = examples("onehold-postgres.7", "FIRST LOCK");
    let [server, access, machine] = &examples[..] else {
        panic!("{examples:?}");
    };
    // As the page has it, for machines that are all this one.
    let rule = access.lines().last().unwrap();
    assert!(rule.starts_with("hostssl jobs ci 10.0.0.0/24 "), "{rule}");
    let rule = rule
        .replace("hostssl", "host")
        .replace("10.0.0.0/24", "127.0.0.1/32");
    let rules =
        format!("local all postgres trust\n{rule}\nhost postgres postgres 127.0.0.1/32 trust\n");
    fs::write(postgres.data().join("pg_hba.conf"), rules).unwrap();
    postgres.sql("select pg_reload_conf()");
    let port = postgres.port.to_string();
    let programs = path();
    let of_server = [
        ("PGHOST", &*at),
        ("PGPORT", &port),
        ("PGUSER", "postgres"),
        ("PATH", &programs),
    ];
    let server = server.replace("--create", "--create --quick");
    do_all(&TestEnv::new(), &server, &of_server, "secret\nsecret\n");
    let machine = machine
        .replace("db1:5432", &format!("127.0.0.1:{port}"))
        .replace("@db1/", &format!("@127.0.0.1:{port}/"))
        .replace("PASSWORD", "secret")
        // Its trial needs an idle machine.
        .replace("onehold doctor", "onehold doctor --quick");
    let shared = tempfile::tempdir().unwrap();
    let machines = [TestEnv::new(), TestEnv::new(), TestEnv::new()];
    for env in &machines {
        add_job(env, shared.path());
        do_all(env, &machine, &[], "");
    }
    let set = machine
        .lines()
        .find(|line| line.starts_with("export ONEHOLD_DIR="))
        .unwrap();
    assert_locked(&machines, set, &[], shared.path());
}

/// A cluster with certificates and users, as the page makes them.
struct Secured {
    cluster: Cluster,
    _files: tempfile::TempDir,
    /// What each machine sets, and how it uses a lock.
    set: String,
    run: String,
}

impl Secured {
    fn start() -> Self {
        let files = tempfile::tempdir().unwrap();
        let at = files.path().display().to_string();
        let examples = examples("onehold-etcd.7", "A CLUSTER OF THREE");
        let [certificates, member, users, machine] = &examples[..] else {
            panic!("{examples:?}");
        };
        let env = TestEnv::new();
        let certificates = format!(
            "cd {at}\n{}",
            certificates.replace("IP:10.0.0.1", "IP:127.0.0.1")
        );
        do_all(&env, &certificates, &[], "");
        let member = member.replace("/etc/etcd", &at);
        let mut words = member.split_whitespace();
        let mut option = |name: &str| {
            words.find(|word| *word == name).unwrap();
            words.next().unwrap().to_owned()
        };
        let (certificate, key) = (option("--cert-file"), option("--key-file"));
        let options = ["--cert-file", &certificate, "--key-file", &key];
        let cluster = Cluster::start_with(3, "https", &options);
        let endpoints: Vec<String> = cluster
            .endpoints()
            .iter()
            .map(|endpoint| format!("https://{endpoint}"))
            .collect();
        let users = users
            .replace("/etc/etcd", &at)
            .replace(
                "https://db1:2379,https://db2:2379,https://db3:2379",
                &endpoints.join(","),
            )
            .replace("user add ci", "user add ci:secret")
            .replace("user add root", "user add root:top");
        let set: Vec<&str> = users
            .lines()
            .filter(|line| line.starts_with("export"))
            .collect();
        let set = set.join("\n");
        wait_until("the members answer", || {
            let mut status = env.command("sh");
            status.args(["-c", &format!("{set}\netcdctl endpoint status")]);
            output(&mut status).status.success()
        });
        do_all(&env, &users, &[], "");
        let (of_user, run): (Vec<_>, Vec<_>) =
            machine.lines().partition(|line| line.starts_with("export"));
        Self {
            cluster,
            _files: files,
            set: format!("{set}\n{}", of_user.join("\n")),
            run: run.join("\n"),
        }
    }

    /// A machine that has the password of the user.
    fn machine() -> TestEnv {
        let machine = TestEnv::new();
        let password = machine.path(".config/onehold/password");
        fs::create_dir_all(password.parent().unwrap()).unwrap();
        fs::write(&password, "secret\n").unwrap();
        fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).unwrap();
        machine
    }
}

#[test]
fn page_of_etcd_leads_from_an_empty_cluster_to_a_lock_on_three_machines() {
    let secured = Secured::start();
    let shared = tempfile::tempdir().unwrap();
    let machines = [Secured::machine(), Secured::machine(), Secured::machine()];
    for env in &machines {
        add_job(env, shared.path());
        do_all(env, &format!("{}\n{}", secured.set, secured.run), &[], "");
    }
    let store = [("ONEHOLD_DIR", "etcds:///locks")];
    assert_locked(&machines, &secured.set, &store, shared.path());
}

/// A server that answers each request in the same way.
fn server(answer: &'static str) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        while let Ok((mut client, _)) = listener.accept() {
            let _ = std::io::Read::read(&mut client, &mut [0; 4096]);
            let _ = std::io::Write::write_all(&mut client, answer.as_bytes());
        }
    });
    at
}

/// What is wrong, the line that makes it so, the store, and what is said.
type Step<'a> = (&'a str, String, String, &'a [&'a str]);

/// Does each wrong step on a machine.
fn assert_told(machine: &TestEnv, set: &str, steps: &[Step<'_>]) {
    for (step, change, url, words) in steps {
        for (verb, code) in [("check x", 1), ("run -n x -- true", 125)] {
            // A wrong URL is a wrong command line.
            let code = if *step == "URL" { 2 } else { code };
            let mut command = machine.command("sh");
            command.args(["-c", &format!("{set}\n{change}\nonehold {verb}")]);
            command.env("ONEHOLD_DIR", url).stdin(Stdio::null());
            let done = output(&mut command);
            let told = String::from_utf8_lossy(&done.stderr);
            assert_eq!(exit_code(done.status), code, "{step}: {told}");
            for word in *words {
                assert!(told.contains(word), "{step}: no `{word}` in {told}");
            }
            assert!(!told.contains("secret"), "{step}: {told}");
        }
    }
}

#[test]
fn each_wrong_step_on_etcd_has_an_error_that_names_it_and_what_to_do() {
    let secured = Secured::start();
    let machine = Secured::machine();
    let script = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 9 -subj /CN=x \
                  -keyout /dev/null -out other.pem; touch empty.pem";
    do_all(&machine, script, &[], "");
    let first = secured.cluster.endpoints()[0].clone();
    let (plain, good) = (
        format!("etcd://{first}/locks"),
        format!("etcds://{first}/locks"),
    );
    let other = format!("etcds://{first}/other");
    let nothing = format!("etcds://127.0.0.1:{}/locks", free_port());
    // etcd 3.3 has its gateway elsewhere.
    let answer = "HTTP/1.1 404 Not Found\r\nContent-Length: 19\r\nConnection: close\r\n\r\n404 page not found\n";
    let old = format!("etcd://{}/locks", server(answer));
    let same = String::new;
    let set = |name: &str, value: &str| format!("export ETCDCTL_{name}={value}");
    let unset = |name: &str| format!("unset ETCDCTL_{name}");
    let steps: [Step<'_>; 10] = [
        (
            "port",
            same(),
            nothing,
            &["connection refused", "endpoint status"],
        ),
        (
            "scheme",
            same(),
            plain,
            &["use etcds:// instead of etcd://"],
        ),
        (
            "version",
            same(),
            old,
            &["no JSON gateway", "use etcd 3.4 or later"],
        ),
        (
            "no CA",
            unset("CACERT"),
            good.clone(),
            &["check ETCDCTL_CACERT"],
        ),
        (
            "CA",
            set("CACERT", "other.pem"),
            good.clone(),
            &["check ETCDCTL_CACERT"],
        ),
        (
            "lost CA",
            set("CACERT", "lost.pem"),
            good.clone(),
            &["CA certificate `lost.pem`: no such file"],
        ),
        (
            "empty CA",
            set("CACERT", "empty.pem"),
            good.clone(),
            &["`empty.pem`: no certificate in it"],
        ),
        (
            "user",
            unset("USER"),
            good.clone(),
            &["set ETCDCTL_USER and ETCDCTL_PASSWORD"],
        ),
        (
            "password",
            set("PASSWORD", "wrong"),
            good,
            &["authentication failed", "check ETCDCTL_USER"],
        ),
        (
            "rights",
            same(),
            other,
            &[
                "permission denied",
                "role grant-permission ROLE",
                "/other//",
            ],
        ),
    ];
    assert_told(&machine, &secured.set, &steps);
    let secret = "etcds://ci:secret@db1/locks".to_owned();
    let steps: [Step<'_>; 1] = [(
        "URL",
        same(),
        secret,
        &["set ETCDCTL_USER and ETCDCTL_PASSWORD"],
    )];
    assert_told(&machine, &secured.set, &steps);
}
