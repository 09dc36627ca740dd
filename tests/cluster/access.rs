use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::cluster::{Cluster, On, free_port};
use crate::harness::{Running, json_object, wait_until};

/// Enables users. One of them, `ci`, may use the store; its password is `secret`.
pub fn enable_users(cluster: &Cluster, on: &On) {
    cluster.ctl(&["user", "add", "root:top"]);
    cluster.ctl(&["role", "add", "locks"]);
    let prefix = format!("{}//", on.prefix());
    cluster.ctl(&[
        "role",
        "grant-permission",
        "locks",
        "--prefix=true",
        "readwrite",
        &prefix,
    ]);
    cluster.ctl(&["user", "add", "ci:secret"]);
    cluster.ctl(&["user", "grant-role", "ci", "locks"]);
    cluster.ctl(&["auth", "enable"]);
}

/// A command of this user.
pub fn of_user(on: &On, args: &[&str]) -> Command {
    let mut command = on.onehold(args);
    command.env("ETCDCTL_USER", "ci:secret");
    command
}

/// A holder until the file `end` is there, and a waiter behind it.
fn start_holder_and_waiter(on: &On) -> [Running; 2] {
    start_both(on, "10", |args| of_user(on, args))
}

/// The same, by commands of whomever.
fn start_both(on: &On, ttl: &str, command: impl Fn(&[&str]) -> Command) -> [Running; 2] {
    let holds = "touch began; until [ -e end ]; do sleep 0.1; done";
    let holder = command(&["run", "--ttl", ttl, "x", "--", "sh", "-c", holds]);
    let holder = Running::spawn(holder);
    wait_until("it has begun", || on.env.path("began").exists());
    let args = ["run", "-w", "2m", "--ttl", ttl, "x", "--", "true"];
    let waiter = Running::spawn(command(&args));
    wait_until("it waits", || {
        let output = command(&["check", "--json", "x"]).output().unwrap();
        let object = json_object(&output.stdout);
        object["lock"]["waiters"][0].is_object()
    });
    [holder, waiter]
}

fn let_end(on: &On, [mut holder, mut waiter]: [Running; 2]) {
    std::fs::write(on.env.path("end"), "").unwrap();
    assert_eq!(holder.finish(), 0);
    assert_eq!(waiter.finish(), 0);
}

#[test]
fn hold_and_waiter_outlive_their_tokens() {
    let keys = tempfile::tempdir().unwrap();
    let key = |name: &str| keys.path().join(name).to_str().unwrap().to_owned();
    let (private, public) = (key("private.pem"), key("public.pem"));
    make_token_keys(keys.path());
    let jwt = format!("jwt,pub-key={public},priv-key={private},sign-method=RS256,ttl=2s");
    for options in [["--auth-token-ttl", "2"], ["--auth-token", &jwt]] {
        let cluster = Cluster::start_with(1, "http", &options);
        let on = On::new(&cluster);
        enable_users(&cluster, &on);
        let both = start_holder_and_waiter(&on);
        // Renewals each 3.3 s: each comes later than the token of the one before has ended.
        std::thread::sleep(Duration::from_secs(10));
        let_end(&on, both);
    }
}

/// Makes the keys with which etcd signs tokens.
fn make_token_keys(directory: &Path) {
    for args in [
        "genrsa -out private.pem 2048",
        "rsa -in private.pem -pubout -out public.pem",
    ] {
        let mut openssl = Command::new("openssl");
        openssl.args(args.split(' ')).current_dir(directory);
        assert!(openssl.output().expect("openssl").status.success());
    }
}

#[test]
fn hold_and_waiter_outlive_a_restart_of_all_members_in_turn() {
    let cluster = Cluster::start(3);
    let on = On::new(&cluster);
    enable_users(&cluster, &on);
    let both = start_holder_and_waiter(&on);
    for (at, endpoint) in cluster.endpoints().iter().enumerate() {
        cluster.restart(at);
        wait_until("the member is healthy", || {
            let args = ["--user", "root:top", "--endpoints", endpoint];
            let mut etcdctl = Command::new("etcdctl");
            etcdctl.env("ETCDCTL_API", "3").args(args);
            let output = etcdctl.args(["endpoint", "health"]).output();
            output.is_ok_and(|output| output.status.success())
        });
        // A renewal each 3.3 s.
        std::thread::sleep(Duration::from_secs(4));
    }
    let_end(&on, both);
}

#[test]
fn authentication_is_turned_on_and_off_under_a_hold_and_a_waiter() {
    let cluster = Cluster::start(1);
    let on = On::new(&cluster);
    let both = start_holder_and_waiter(&on);
    assert_eq!(
        of_user(&on, &["check", "-q", "x"]).status().unwrap().code(),
        Some(6)
    );
    enable_users(&cluster, &on);
    // Renewals each 3.3 s.
    std::thread::sleep(Duration::from_secs(8));
    cluster.ctl(&["--user", "root:top", "auth", "disable"]);
    std::thread::sleep(Duration::from_secs(8));
    let_end(&on, both);
    assert_eq!(cluster.left_below(on.prefix()), Vec::<String>::new());
}

#[test]
fn hold_and_waiter_outlive_a_change_of_the_password() {
    let cluster = Cluster::start(1);
    let on = On::new(&cluster);
    enable_users(&cluster, &on);
    let file = on.env.path("password");
    std::fs::write(&file, "secret\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let config = on.env.path("config.toml");
    let text = format!(
        "[defaults]\netcd-user = \"ci\"\netcd-password-file = \"{}\"\n",
        file.display()
    );
    std::fs::write(&config, text).unwrap();
    let both = start_both(&on, "10", |args| {
        let mut command = on.onehold(args);
        command.env("ONEHOLD_CONFIG", &config);
        command
    });
    std::fs::write(&file, "other\n").unwrap();
    crate::sign_in::set_password(&cluster, "other");
    std::thread::sleep(Duration::from_secs(12));
    let_end(&on, both);
}

#[test]
fn hold_and_waiter_outlive_a_change_of_all_certificates() {
    let room = make_certificates();
    let file = |name: &str| room.path().join(name).display().to_string();
    let (server, key, ca) = (file("server.crt"), file("server.key"), file("ca.crt"));
    let options = [
        "--cert-file",
        &*server,
        "--key-file",
        &*key,
        "--trusted-ca-file",
        &*ca,
        "--client-cert-auth",
    ];
    let cluster = Cluster::start_with(1, "https", &options);
    let on = On::new(&cluster);
    let command = |args: &[&str]| {
        let mut command = on.onehold(args);
        command
            .env("ETCDCTL_CACERT", file("ca.crt"))
            .env("ETCDCTL_CERT", file("client.crt"))
            .env("ETCDCTL_KEY", file("client.key"));
        command
    };
    wait_until("the member is up", || {
        command(&["check", "x"]).output().unwrap().status.success()
    });
    let both = start_both(&on, "30", command);
    let others = make_certificates();
    for entry in std::fs::read_dir(others.path()).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), room.path().join(entry.file_name())).unwrap();
    }
    cluster.restart(0);
    std::thread::sleep(Duration::from_secs(25));
    let_end(&on, both);
}

#[test]
fn user_needs_a_role_on_the_prefix_alone() {
    let cluster = Cluster::start(1);
    let on = On::new(&cluster);
    enable_users(&cluster, &on);
    let call = |user: Option<&str>, password: Option<&str>, args: &[&str]| {
        let mut command = on.onehold(args);
        command
            .env_remove("ETCDCTL_USER")
            .env_remove("ETCDCTL_PASSWORD");
        if let Some(user) = user {
            command.env("ETCDCTL_USER", user);
        }
        if let Some(password) = password {
            command.env("ETCDCTL_PASSWORD", password);
        }
        let output = crate::harness::output(&mut command);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!said.contains("secret"), "{said}");
        (crate::harness::exit_code(output.status), said)
    };
    let run = ["run", "x", "--", "true"];
    assert_eq!(call(Some("ci:secret"), None, &run), (0, String::new()));
    assert_eq!(
        call(Some("ci"), Some("secret"), &["acquire", "x", "--ttl", "30"]).0,
        0
    );
    assert_eq!(
        call(Some("ci"), Some("secret"), &["break", "x", "--yes"]).0,
        0
    );
    for (user, password, code, says) in [
        (None, None, 125, "set ETCDCTL_USER"),
        (Some("ci"), Some("wrong"), 125, "authentication failed"),
        (Some("ci"), None, 2, "no password"),
    ] {
        let (found, said) = call(user, password, &run);
        assert_eq!(found, code, "{said}");
        assert!(said.contains(says), "{said}");
    }
    let elsewhere = [
        "--dir",
        &cluster.url("/elsewhere"),
        "run",
        "x",
        "--",
        "true",
    ];
    let (code, said) = call(Some("ci:secret"), None, &elsewhere);
    assert_eq!(code, 125);
    assert!(said.contains("permission denied"), "{said}");
    assert!(said.contains("role grant-permission"), "{said}");
}

#[test]
fn password_file_that_others_can_read_draws_a_warning() {
    let cluster = Cluster::start(1);
    let on = On::new(&cluster);
    enable_users(&cluster, &on);
    let file = on.env.path("password");
    std::fs::write(&file, "secret\n").unwrap();
    let config = on.env.path("config.toml");
    let text = format!(
        "[defaults]\netcd-user = \"ci\"\netcd-password-file = \"{}\"\ndir = \"{}\"\n",
        file.display(),
        on.dir
    );
    std::fs::write(&config, text).unwrap();
    let call = |args: &[&str]| {
        let mut command = on.onehold(args);
        command
            .env_remove("ONEHOLD_DIR")
            .env("ONEHOLD_CONFIG", &config);
        crate::harness::output(&mut command)
    };
    let is_of_root = std::fs::metadata(&file).unwrap().uid() == 0;
    for (mode, is_exposed) in [
        (0o600, false),
        (0o400, false),
        (0o640, !is_of_root),
        (0o660, true),
        (0o644, true),
    ] {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&file, permissions).unwrap();
        let output = call(&["run", "x", "--", "true"]);
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        let expected = format!(
            "onehold: warning: other users can read the password file `{0}`: run `chmod 600 {0}`\n",
            file.display()
        );
        assert_eq!(said, if is_exposed { &*expected } else { "" }, "{mode:o}");
        let output = call(&["check", "--json", "x"]);
        assert!(output.status.success(), "{output:?}");
        let object = json_object(&output.stdout);
        let errors = object["errors"].as_array().unwrap();
        assert_eq!(errors.len(), usize::from(is_exposed), "{mode:o}: {object}");
    }
    let said = call(&["acquire", "y", "--ttl", "9"]).stderr;
    assert!(String::from_utf8_lossy(&said).contains("password file"));
    // It is not used.
    let mut command = of_user(&on, &["run", "x", "--", "true"]);
    command.env("ONEHOLD_CONFIG", &config);
    assert_eq!(crate::harness::output(&mut command).stderr, b"");
    let shown = String::from_utf8_lossy(&call(&["config"]).stdout).into_owned();
    assert!(shown.contains(&format!("dir = \"{}\"", on.dir)), "{shown}");
}

/// Makes certificates: of an authority, a server, clients, one that has expired, and another authority.
fn make_certificates() -> tempfile::TempDir {
    let room = tempfile::tempdir().unwrap();
    let script = r#"
        set -e
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -keyout ca.key -out ca.crt \
            -subj /CN=test-ca -addext basicConstraints=critical,CA:TRUE
        make() {
            openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout $1.key -out $1.csr -subj "$2"
            printf 'subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n' >$1.ext
            openssl x509 -req -in $1.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days ${3:-30} -extfile $1.ext -out $1.crt
        }
        make server /O=server
        make client /O=client
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout expired.key -out expired.csr -subj /O=client
        touch index.txt
        printf '[ca]\ndefault_ca=own\n[own]\nnew_certs_dir=.\ndatabase=index.txt\ndefault_md=sha256\nrand_serial=yes\npolicy=any\n[any]\norganizationName=optional\n' >ca.conf
        openssl ca -config ca.conf -batch -notext -cert ca.crt -keyfile ca.key -in expired.csr -out expired.crt \
            -startdate 20200101000000Z -enddate 20200201000000Z -extfile client.ext
        cp ca.crt other.crt
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -keyout other.key -out other.crt \
            -subj /CN=other-ca
    "#;
    let made = Command::new("sh")
        .args(["-c", script])
        .current_dir(room.path())
        .output();
    let made = made.expect("sh");
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    room
}

#[test]
fn certificates_are_checked_both_ways() {
    let room = make_certificates();
    let file = |name: &str| room.path().join(name).display().to_string();
    let (server, key, ca) = (file("server.crt"), file("server.key"), file("ca.crt"));
    let options = [
        "--cert-file",
        &*server,
        "--key-file",
        &*key,
        "--trusted-ca-file",
        &*ca,
        "--client-cert-auth",
    ];
    let cluster = Cluster::start_with(1, "https", &options);
    let on = On::new(&cluster);
    let call = |variables: &[(&str, String)]| {
        let mut command = on.onehold(&["run", "x", "--", "true"]);
        command.envs(variables.iter().map(|(name, value)| (*name, value)));
        let output = crate::harness::output(&mut command);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (crate::harness::exit_code(output.status), said)
    };
    let (ca, cert, key) = (
        ("ETCDCTL_CACERT", ca.clone()),
        ("ETCDCTL_CERT", file("client.crt")),
        ("ETCDCTL_KEY", file("client.key")),
    );
    let good = [ca.clone(), cert.clone(), key.clone()];
    crate::harness::wait_until("the member is up", || call(&good).0 == 0);
    assert_eq!(call(&good), (0, String::new()));
    let began = std::time::Instant::now();
    let (code, said) = call(&[
        ("ETCDCTL_CACERT", file("other.crt")),
        cert.clone(),
        key.clone(),
    ]);
    assert_eq!(code, 125);
    // To try again would change nothing.
    assert!(began.elapsed() < std::time::Duration::from_secs(3));
    assert!(said.to_lowercase().contains("certificate"), "{said}");
    let (code, said) = call(std::slice::from_ref(&ca));
    assert_eq!(code, 125, "{said}");
    let (code, said) = call(&[ca.clone(), cert.clone()]);
    assert_eq!(code, 125);
    assert!(said.contains("needed together"), "{said}");
    let (code, said) = call(&[
        ("ETCDCTL_CACERT", file("missing.crt")),
        cert.clone(),
        key.clone(),
    ]);
    assert_eq!(code, 125);
    assert!(said.contains("missing.crt"), "{said}");
    let (code, said) = call(&[
        ca.clone(),
        ("ETCDCTL_CERT", file("expired.crt")),
        ("ETCDCTL_KEY", file("expired.key")),
    ]);
    assert_eq!(code, 125);
    assert!(said.contains("ETCDCTL_CERT and ETCDCTL_KEY"), "{said}");
    for (certificate, key, what) in [
        ("client.crt", "expired.key", "the key does not belong to it"),
        ("client.key", "client.key", "no certificate in it"),
        ("client.crt", "client.crt", "no private key in it"),
    ] {
        let (code, said) = call(&[
            ca.clone(),
            ("ETCDCTL_CERT", file(certificate)),
            ("ETCDCTL_KEY", file(key)),
        ]);
        assert_eq!(code, 125, "{said}");
        assert!(said.contains(what), "{said}");
    }
    let skipping = ("ETCDCTL_INSECURE_SKIP_TLS_VERIFY", "true".to_owned());
    assert_eq!(call(&[skipping, cert, key]).0, 0);
    // A server whose certificate has expired.
    let (expired, key) = (file("expired.crt"), file("expired.key"));
    let options = ["--cert-file", &*expired, "--key-file", &*key];
    let outdated = Cluster::start_with(1, "https", &options);
    let outdated = On::new(&outdated);
    let mut command = outdated.onehold(&["run", "x", "--", "true"]);
    command.env("ETCDCTL_CACERT", file("ca.crt"));
    let output = crate::harness::output(&mut command);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("expired"), "{said}");
    // Never in clear.
    let plain = On::at(on.dir.replace("etcds://", "etcd://"));
    let (code, _, said) = plain.output(&["check", "x"]);
    assert_eq!(code, 1);
    assert!(said.contains("use etcds:// instead"), "{said}");
    let of_others = crate::cluster::shared().url(on.prefix());
    let encrypted = On::at(of_others.replace("etcd://", "etcds://"));
    let (code, _, said) = encrypted.output(&["check", "x"]);
    assert_eq!(code, 1);
    assert!(said.contains("use etcd:// instead"), "{said}");
}

#[test]
fn server_without_a_gateway_is_named_and_the_others_are_asked() {
    let cluster = Cluster::start_with(1, "http", &["--enable-grpc-gateway=false"]);
    let on = On::new(&cluster);
    let endpoint = &cluster.endpoints()[0];
    let began = Instant::now();
    let (code, _, said) = on.output(&["run", "x", "--", "true"]);
    assert_eq!(code, 125);
    assert!(
        said.contains(&format!("{endpoint}: no JSON gateway")),
        "{said}"
    );
    assert!(said.contains("--enable-grpc-gateway"), "{said}");
    assert_eq!(on.code(&["check", "x"]), 1);
    assert!(
        began.elapsed() < Duration::from_secs(8),
        "it does not change by itself"
    );
    // Beside one that has a gateway.
    let of_others = On::new(crate::cluster::shared());
    let url = of_others
        .dir
        .replace("etcd://", &format!("etcd://{endpoint},"));
    let both = On::at(url);
    let hold = both.done(&["acquire", "x", "--ttl", "60"]);
    let waiter = both.onehold(&["run", "-w", "60", "x", "--", "true"]);
    let mut waiter = Running::spawn(waiter);
    wait_until("it waits", || both.waiters("x") == 1);
    both.done(&["release", "x", "--hold", &hold]);
    assert_eq!(waiter.finish(), 0);
    // One is away, and the other one has none.
    let url = format!("etcd://{endpoint},127.0.0.1:{}/x", free_port());
    let (code, _, said) = On::at(url).output(&["check", "x"]);
    assert_eq!(code, 1);
    let named = said.contains("no JSON gateway") && said.contains("connection refused");
    assert!(named, "{said}");
}
