use crate::cluster::{Cluster, On, shared};
use crate::harness::{CONTENDERS, Running, wait_until};
use crate::proxy::Proxy;

#[test]
fn what_others_have_put_below_the_prefix_is_said_and_left_alone() {
    let cluster = Cluster::start_with(1, "http", &["--max-request-bytes", "4000000"]);
    let on = On::new(&cluster);
    let key = |rest: &str| format!("{}//{rest}", on.prefix());
    let large = "x".repeat(100_000);
    let record = |more: &str| {
        format!(
            r#"{{"onehold":1,"live":{{}},"name":"n","hold":7,"kind":"run","taken_by":7,"acquired_at":"2026-11-23T04:29:33Z"{more}}}"#
        )
    };
    let puts = [
        ("hold/text", "hello".to_owned()),
        ("hold/json", "{\"a\":1}".to_owned()),
        ("hold/torn", "{\"onehold\":1,\"live\":{".to_owned()),
        ("hold/later", "{\"onehold\":2,\"x\":1}".to_owned()),
        ("hold/zero", record("").replace(":7", ":0")),
        ("hold/large", large),
        ("hold/dead", record(",\"ttl_ms\":1000")),
        ("hold/no-ttl", record("")),
        (
            "hold/escape",
            record(",\"message\":\"\\u001b[31mred\\u001b[0m\",\"ttl_ms\":0"),
        ),
        ("hold//", "x".to_owned()),
        ("hold/a//01", "x".to_owned()),
        ("elsewhere", "x".to_owned()),
        ("wait/text//zz", "no ticket".to_owned()),
        ("wait/free//0000000000000001", "{}".to_owned()),
        ("life/alone", "run 7".to_owned()),
    ];
    for (rest, value) in &puts {
        let mut child = std::process::Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &cluster.endpoints()[0], "put", &key(rest)])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), value.as_bytes()).unwrap();
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success(), "{rest}");
    }
    for (name, code) in [
        ("text", 1),
        ("json", 1),
        ("torn", 1),
        ("zero", 1),
        ("large", 1),
        ("later", 6),
        ("alone", 6),
        ("dead", 5),
        ("no-ttl", 5),
        ("escape", 5),
        ("free", 0),
    ] {
        let (found, stdout, stderr) = on.output(&["check", name]);
        assert_eq!(found, code, "{name}: {stdout}{stderr}");
        assert!(!stdout.contains('\u{1b}'), "{stdout}");
    }
    for name in ["text", "json", "torn", "zero", "large"] {
        let (code, _, stderr) = on.output(&["run", "--force", "--yes", name, "--", "true"]);
        assert_eq!(code, 125, "{name}: {stderr}");
        assert!(stderr.contains("is not a lock"), "{name}: {stderr}");
    }
    assert_eq!(on.code(&["run", "later", "--", "true"]), 6);
    assert_eq!(on.code(&["run", "free", "--", "true"]), 0);
    assert_eq!(on.code(&["run", "-w", "1", "free", "--", "true"]), 0);
    // A life key without a lease would last for ever: it is broken by a person.
    assert_eq!(on.code(&["break", "alone", "--yes"]), 0);
    assert_eq!(on.state("alone"), "free");
    let (code, stdout, stderr) = on.output(&["list"]);
    assert_eq!(code, 1, "{stdout}{stderr}");
    assert!(
        stdout.contains("dead") && stdout.contains("later"),
        "{stdout}"
    );
    assert!(stderr.contains("is not the name of a lock"), "{stderr}");
    let _ = on.output(&["cleanup"]);
    let left = cluster.left_below(on.prefix());
    for (rest, _) in &puts {
        let is_dead = ["dead", "no-ttl", "escape", "alone"]
            .iter()
            .any(|name| rest.ends_with(name));
        assert_eq!(left.contains(&key(rest)), !is_dead, "{rest}: {left:?}");
    }
}

#[test]
fn what_is_no_record_is_removed_as_the_message_says() {
    let on = On::new(shared());
    for (args, key, value) in [
        (&["run", "x", "--", "true"][..], "x", "{\"onehold\":1}"),
        (&["run", "it's", "--", "true"], "it's", "hello"),
        (&["run", "first", "x", "--", "true"], "x", "hello"),
        (&["run", "-s", "x", "--", "true"], "x//0", "hello"),
        (&["acquire", "x", "--ttl", "9"], "x", "hello"),
        (&["check", "x"], "x", "hello"),
        (&["break", "x", "--yes"], "x", "hello"),
    ] {
        let key = format!("{}//hold/{key}", on.prefix());
        shared().ctl(&["put", &key, value]);
        let (code, _, said) = on.output(args);
        let expected = if args[0] == "run" { 125 } else { 1 };
        assert_eq!(code, expected, "{args:?}: {said}");
        let advice = said.split('`').rev().nth(1).unwrap();
        assert!(advice.starts_with("etcdctl "), "{args:?}: {said}");
        let mut shell = on.env.shell(advice);
        let done = shell.env("ETCDCTL_API", "3").output().unwrap();
        assert_eq!(String::from_utf8_lossy(&done.stdout), "1\n", "{advice}");
        assert_eq!(on.code(&["run", "x", "it's", "--", "true"]), 0, "{args:?}");
    }
}

#[test]
fn value_of_megabytes_hides_no_other_lock() {
    let cluster = Cluster::start_with(1, "http", &["--max-request-bytes", "4000000"]);
    let on = On::new(&cluster);
    on.done(&["acquire", "b", "--ttl", "60"]);
    for at in 0..3 {
        let mut child = std::process::Command::new("curl")
            .args(["-sf", "-o", "/dev/null", "--data-binary", "@-"])
            .arg(format!("http://{}/v3/kv/put", cluster.endpoints()[0]))
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("curl is installed");
        let key = base64(format!("{}//hold/big{at}", on.prefix()).as_bytes());
        let value = base64(&vec![b'x'; 2_000_000]);
        let body = format!("{{\"key\":\"{key}\",\"value\":\"{value}\"}}");
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), body.as_bytes()).unwrap();
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(on.state("b"), "held");
    let (_, stdout, stderr) = on.output(&["list"]);
    assert!(
        stdout.contains("b ") && stdout.contains("held"),
        "{stdout}{stderr}"
    );
    assert_eq!(on.code(&["check", "big1"]), 1);
}

/// Puts keys that need not be text.
fn put(cluster: &Cluster, keys: impl Iterator<Item = Vec<u8>>) {
    for key in keys {
        let body = format!("{{\"key\":\"{}\",\"value\":\"eA==\"}}", base64(&key));
        let output = std::process::Command::new("curl")
            .args(["-sf", "-o", "/dev/null", "-d", &body])
            .arg(format!("http://{}/v3/kv/put", cluster.endpoints()[0]))
            .status();
        assert!(output.unwrap().success());
    }
}

#[test]
fn keys_that_are_no_text_hide_no_lock_however_many_they_are() {
    let cluster = Cluster::start(1);
    let on = On::new(&cluster);
    let hold = on.done(&["acquire", "a/z", "--ttl", "60"]);
    on.done(&["acquire", "b", "--ttl", "60"]);
    // More than a page, before and behind what is a lock.
    let below = format!("{}//hold/a/", on.prefix()).into_bytes();
    let odd = |at: u16, first: u8| [&below[..], &[first], &at.to_be_bytes()].concat();
    put(&cluster, (0..600).map(|at| odd(at, 0xC3)));
    put(
        &cluster,
        (0..600_u16).map(|at| [&below[..], b"!", &[0xFF], &at.to_be_bytes()].concat()),
    );
    put(&cluster, (0..3).map(|at| odd(at, 0xFF)));
    for (name, state) in [("a/z", "held"), ("b", "held"), ("a/y", "free")] {
        assert_eq!(on.state(name), state, "{name}");
    }
    assert_eq!(on.code(&["run", "a", "--", "true"]), 6);
    assert_eq!(on.code(&["run", "a/y", "--", "true"]), 0);
    on.done(&["release", "a/z", "--hold", &hold]);
    assert_eq!(on.code(&["run", "a", "--", "true"]), 0);
    let (code, stdout, stderr) = on.output(&["list"]);
    assert_eq!(code, 1, "{stdout}{stderr}");
    assert!(stdout.contains("b ") && stdout.contains("held"), "{stdout}");
    assert!(stderr.contains("is not the name of a lock"), "{stderr}");
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

#[test]
fn tickets_of_others_are_in_nobodys_way() {
    let on = On::new(shared());
    for (ticket, value) in [
        ("!x", "no ticket"),
        ("zz", "no ticket"),
        ("0000000000000001", "1234567890123456"),
    ] {
        let key = format!("{}//wait/x//{ticket}", on.prefix());
        shared().ctl(&["put", &key, value]);
    }
    on.done(&["run", "x", "--", "true"]);
    let number = on.done(&["acquire", "x", "--ttl", "60"]);
    let waiters: Vec<_> = (0..CONTENDERS)
        .map(|_| {
            let proxy = Proxy::to(&shared().endpoints()[0]);
            let behind = On::at(format!("etcd://{}{}", proxy.endpoint, on.prefix()));
            let mut command = behind.onehold(&["run", "-w", "60", "x", "--", "true"]);
            command.stderr(std::process::Stdio::null());
            (Running::spawn(command), proxy, behind)
        })
        .collect();
    wait_until("all wait", || on.waiters("x") == CONTENDERS);
    for (_, proxy, _) in &waiters {
        proxy.forget();
    }
    on.done(&["release", "x", "--hold", &number]);
    for (mut waiter, proxy, _behind) in waiters {
        assert_eq!(waiter.finish(), 0);
        let asked = proxy.paths();
        assert!(asked.len() < 15, "{asked:?}");
    }
}
