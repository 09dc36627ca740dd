use std::process::{Command, Stdio};

use crate::cluster::{Cluster, On, free_port, shared};
use crate::harness::{Running, json_object, wait_until};

/// What doctor says of a store that has this finding.
#[track_caller]
fn assert_unfit(url: String, check: &str, detail: &str, advice: &str) {
    let (code, out, _) = On::at(url).output(&["doctor", "--quick", "--json"]);
    assert_eq!(code, 1, "{out}");
    let object = json_object(out.as_bytes());
    let mut checks = object["checks"].as_array().unwrap().iter();
    let contains = |found: &serde_json::Value, text: &str| {
        found.as_str().is_some_and(|found| found.contains(text))
    };
    let is_it = |found: &&serde_json::Value| {
        found["check"] == check
            && found["result"] == "FAILED"
            && contains(&found["detail"], detail)
            && contains(&found["advice"], advice)
    };
    assert!(checks.find(is_it).is_some(), "{out}");
}

#[test]
fn store_on_members_of_two_clusters_is_not_fit() {
    let other = Cluster::start(1);
    let first = &shared().endpoints()[0];
    let second = &other.endpoints()[0];
    let url = format!("etcd://{first},{second}/x");
    let detail = format!("{second}: of another cluster than {first}");
    assert_unfit(url, "cluster", &detail, "one cluster only");
}

#[test]
fn store_on_a_learner_is_not_fit() {
    let cluster = Cluster::start(1);
    let (client, peer) = (free_port(), free_port());
    let peer_url = format!("http://127.0.0.1:{peer}");
    let added = cluster.ctl(&[
        "member",
        "add",
        "learner",
        "--learner",
        "--peer-urls",
        &peer_url,
    ]);
    let members = added
        .lines()
        .find_map(|line| line.strip_prefix("ETCD_INITIAL_CLUSTER="));
    let data = tempfile::tempdir().unwrap();
    let client_url = format!("http://127.0.0.1:{client}");
    let mut learner = Command::new("etcd");
    learner
        .args(["--name", "learner", "--data-dir"])
        .arg(data.path())
        .args([
            "--listen-client-urls",
            &client_url,
            "--advertise-client-urls",
            &client_url,
        ])
        .args([
            "--listen-peer-urls",
            &peer_url,
            "--initial-advertise-peer-urls",
            &peer_url,
        ])
        .args(["--initial-cluster", members.unwrap().trim_matches('"')])
        .args(["--initial-cluster-state", "existing"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let _learner = Running::spawn(learner);
    let url = format!("etcd://127.0.0.1:{client},{}/x", cluster.endpoints()[0]);
    wait_until("it answers", || {
        let (_, out, _) = On::at(url.clone()).output(&["doctor", "--quick"]);
        out.contains("learner")
    });
    assert_unfit(url, "member", "a learner", "etcdctl member promote");
}

#[test]
fn store_on_a_full_cluster_is_not_fit() {
    let cluster = Cluster::start_with(1, "http", &["--quota-backend-bytes", "4000000"]);
    let value = "x".repeat(100_000);
    let is_full = (0..60).any(|at| !cluster.etcdctl(&["put", &at.to_string(), &value]).0);
    assert!(is_full);
    assert_unfit(
        cluster.url("/x"),
        "alarm",
        "NOSPACE",
        "etcdctl alarm disarm",
    );
}

#[test]
fn store_on_a_cluster_is_fit_and_each_member_is_named() {
    let on = On::new(shared());
    let (code, out, _) = on.output(&["doctor", "--json"]);
    let object = json_object(out.as_bytes());
    let checks = object["checks"].as_array().unwrap();
    let named = |name: &str| checks.iter().filter(|check| check["check"] == name).count();
    assert_eq!(
        (named("member"), named("prefix"), named("contention")),
        (3, 1, 1)
    );
    let failed = checks.iter().filter(|check| check["result"] == "FAILED");
    let failed: Vec<_> = failed.collect();
    // The version of Debian 12.
    let is_old = checks
        .iter()
        .any(|check| check["detail"].as_str().unwrap().contains("etcd 3.4.23,"));
    if is_old {
        assert_eq!((code, failed.len()), (1, 1), "{out}");
        assert_eq!(failed[0]["check"], "version");
        let advice = failed[0]["advice"].as_str().unwrap();
        assert!(advice.contains("3.4.42, 3.5.28 or 3.6.9"), "{advice}");
    } else {
        assert_eq!((code, failed.len()), (0, 0), "{out}");
    }
    assert!(on.done(&["list", "-q"]).is_empty());
}

#[test]
fn store_that_cannot_be_reached_is_not_fit() {
    let on = On::at("etcd://127.0.0.1:1/x".to_owned());
    let (code, out, told) = on.output(&["doctor"]);
    assert_eq!(code, 1);
    assert!(
        out.contains("cluster        FAILED   no member answers"),
        "{out}"
    );
    assert!(
        told.contains("is not fit for locks: 1 check failed"),
        "{told}"
    );
}
