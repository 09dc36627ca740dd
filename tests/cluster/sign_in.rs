use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::access::{enable_users, of_user};
use crate::at_work::{assert_exclusive, run, sections};
use crate::cluster::{Cluster, On};
use crate::harness::{Running, exit_code, run_together, sorted_codes, wait_until};
use crate::proxy::{Proxy, proxies_of};

const AUTHENTICATE: &str = "/v3/auth/authenticate";

/// A cluster with users, and a store behind a proxy for each member.
fn behind_proxies(members: usize) -> (Cluster, On, Vec<Proxy>, On) {
    let cluster = Cluster::start(members);
    let on = On::new(&cluster);
    enable_users(&cluster, &on);
    let (proxies, url) = proxies_of(&cluster, &on);
    (cluster, on, proxies, On::at(url))
}

fn sign_ins(proxies: &[Proxy]) -> usize {
    let paths = proxies.iter().flat_map(Proxy::paths);
    paths.filter(|path| path == AUTHENTICATE).count()
}

/// A crontab line on so many machines.
fn runs_of_one_line(on: &On, count: usize) -> Vec<Command> {
    let args = [
        "run",
        "-n",
        "-E",
        "0",
        "--hold-at-least",
        "2m",
        "nightly",
        "--",
        "sh",
        "-c",
    ];
    let runs = (0..count).map(|_| {
        let mut run = of_user(on, &args);
        run.arg("echo >>ran");
        run
    });
    runs.collect()
}

#[test]
fn slow_sign_in_is_waited_for_at_one_member() {
    let (_cluster, _, proxies, behind) = behind_proxies(2);
    for proxy in &proxies {
        proxy.delay(AUTHENTICATE, 6_000);
    }
    let (code, stderr) = {
        let mut run = of_user(&behind, &["run", "x", "--", "true"]);
        let output = crate::harness::output(&mut run);
        (exit_code(output.status), output.stderr)
    };
    assert_eq!(code, 0, "{}", String::from_utf8_lossy(&stderr));
    assert_eq!(sign_ins(&proxies), 1);
}

#[test]
fn member_that_is_away_is_not_waited_for_to_sign_in() {
    let (_cluster, _, proxies, behind) = behind_proxies(2);
    proxies[0].cut();
    for _ in 0..6 {
        let began = Instant::now();
        let mut check = of_user(&behind, &["check", "x"]);
        assert!(check.output().unwrap().status.success());
        let took = began.elapsed();
        assert!(took < Duration::from_secs(5), "{took:?}");
    }
}

/// Sets the password of the user. That ends its tokens, as a restart of all members does.
pub fn set_password(cluster: &Cluster, password: &str) {
    let members: Vec<String> = cluster.endpoints();
    let mut etcdctl = Command::new("sh");
    let script = "echo $0 | etcdctl --user root:top user passwd ci --interactive=false";
    etcdctl
        .env("ETCDCTL_API", "3")
        .env("ETCDCTL_ENDPOINTS", members.join(","))
        .args(["-c", script, password]);
    let output = etcdctl.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// The members take longer for another token than the hold lasts without a renewal.
#[test]
fn hold_outlives_a_sign_in_that_takes_longer_than_its_time_to_live() {
    let (cluster, on, proxies, behind) = behind_proxies(1);
    let mut command = run(&behind, &["--ttl", "10", "x"], 30_000);
    command
        .env("ETCDCTL_USER", "ci:secret")
        .stderr(Stdio::null());
    let mut holder = Running::spawn(command);
    wait_until("a section has begun", || !sections(&behind).is_empty());
    proxies[0].delay(AUTHENTICATE, 20_000);
    set_password(&cluster, "secret");
    assert_eq!(holder.finish(), 0);
    assert_exclusive(&behind);
    // With a token again: it was released.
    let state = of_user(&on, &["check", "-q", "x"]).status().unwrap();
    assert!(state.success());
}

#[test]
fn runs_of_one_line_at_once_sign_in_and_one_of_them_runs() {
    runs_in_one_second(24);
}

#[test]
#[ignore = "needs two idle processors"]
fn storm_of_200_runs_of_one_line_signs_in_and_one_of_them_runs() {
    runs_in_one_second(200);
}

fn runs_in_one_second(count: usize) {
    let cluster = Cluster::start(3);
    let on = On::new(&cluster);
    enable_users(&cluster, &on);
    let outputs = run_together(runs_of_one_line(&on, count));
    let failed = outputs.iter().find(|output| !output.status.success());
    let failed = failed.map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
    assert_eq!(sorted_codes(&outputs), vec![0; count], "{failed:?}");
    assert_eq!(on.env.lines("ran"), 1);
}

/// Each of them has to sign in again, for which its member needs 0.1 s of a processor.
#[test]
#[ignore = "needs two idle processors"]
fn storm_of_150_holds_with_a_user_outlives_the_restart_of_all_members() {
    let cluster = Cluster::start(3);
    let on = On::new(&cluster);
    enable_users(&cluster, &on);
    let end_with = Running::sleeper();
    let holds = format!(
        "touch began-$0; exec tail -f --pid {} /dev/null",
        end_with.pid()
    );
    let start = |at: usize| {
        let (name, number) = (format!("h{at}"), at.to_string());
        let args = [
            "run", "--ttl", "20", &*name, "--", "sh", "-c", &*holds, &*number,
        ];
        let mut holder = of_user(&on, &args);
        let said = std::fs::File::create(on.env.path(&format!("said-{at}")));
        holder.stderr(said.unwrap());
        let holder = Running::spawn(holder);
        // One sign-in after the other.
        let began = on.env.path(&format!("began-{at}"));
        wait_until("it has begun", || began.exists());
        holder
    };
    let mut holders: Vec<Running> = (0..150).map(start).collect();
    for at in 0..3 {
        cluster.kill(at);
    }
    for at in 0..3 {
        cluster.restart(at);
    }
    // They have been lost by then, or have signed in.
    std::thread::sleep(Duration::from_secs(40));
    let said = |at: usize| std::fs::read_to_string(on.env.path(&format!("said-{at}"))).unwrap();
    let numbered = holders.iter_mut().enumerate();
    let ended = numbered.filter_map(|(at, holder)| holder.has_ended().then(|| said(at)));
    let ended: Vec<String> = ended.collect();
    assert!(ended.is_empty(), "{}: {ended:?}", ended.len());
    drop(end_with);
    for holder in &mut holders {
        assert_eq!(holder.finish(), 0);
    }
}
