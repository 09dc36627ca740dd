//! Three machines that are the members of etcd, and use it: one is paused for longer than its lease, one loses its power.

use std::time::{Duration, Instant};

use crate::harness::machine::{Kernel, Machine, Plan};

/// The lease of a hold. An emulated processor is slow, and so are elections.
const TTL: Duration = Duration::from_secs(20);

/// Says for each tenth of a second that it is at work.
const BEATS: &str = "while :; do echo beat; sleep 0.1; done";

const STORE: &str = "etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379/locks";

fn member(port: u16, number: u8) -> Machine {
    let etcd = ("etcd", "/usr/bin/etcd".into());
    let mut plan = Plan::with(Kernel::OfRelease, &[etcd]);
    plan.add_segment(port, number);
    let mut machine = plan.start("member");
    machine.join(&format!("10.0.0.{number}"));
    machine.output(&format!("hostname m{number}"));
    let own = format!("http://10.0.0.{number}");
    let all = (1..=3).map(|number| format!("m{number}=http://10.0.0.{number}:2380"));
    let all = all.collect::<Vec<_>>().join(",");
    machine.output(&format!(
        "etcd --name m{number} --data-dir /tmp/etcd --log-level error --initial-cluster {all} \
            --listen-peer-urls {own}:2380 --initial-advertise-peer-urls {own}:2380 \
            --listen-client-urls {own}:2379 --advertise-client-urls {own}:2379 \
            --heartbeat-interval 500 --election-timeout 5000 </dev/null >/tmp/etcd.log 2>&1 & true"
    ));
    machine
}

fn run(name: &str) -> String {
    let ttl = TTL.as_secs();
    format!(
        "onehold --dir {STORE} run -w forever --ttl {ttl}s {name} -- sh -c '{BEATS}' 2>/dev/null"
    )
}

/// Begins its work, which has the lock at once.
fn begin(machine: &mut Machine, name: &str) {
    machine.begin(&run(name));
    assert_eq!(machine.next().as_deref(), Ok("beat"));
}

#[test]
#[ignore = "starts three machines, for minutes; needs etcd (apt: etcd-server)"]
fn member_of_etcd_that_is_paused_or_loses_its_power_leaves_its_lock_to_one_that_waits() {
    let port = 19_050;
    let [mut paused, mut waits, mut cut] = [1, 2, 3].map(|number| member(port, number));
    waits.output(&format!(
        "until onehold --dir {STORE} run -q ready -- true 2>/dev/null; do sleep 1; done"
    ));
    begin(&mut paused, "x");
    waits.begin(&run("x"));

    paused.command_qemu("stop");
    let stopped = Instant::now();
    // Of two members that are left.
    assert_eq!(waits.next().as_deref(), Ok("beat"));
    let taken_after = stopped.elapsed();
    paused.command_qemu("cont");
    let resumed = Instant::now();
    let mut last = resumed;
    let code = loop {
        match paused.next() {
            Ok(line) if line == "beat" => last = Instant::now(),
            Ok(_) => {}
            Err(code) => break code,
        }
    };
    let beside = last.duration_since(resumed);
    assert_ne!(code, 0);
    // Its clock stood still: it learns from its next renewal, after a third of the lease at most.
    assert!(beside < TTL, "{beside:?}");

    begin(&mut cut, "y");
    cut.cut_power();
    let cut_at = Instant::now();
    begin(&mut paused, "y");
    let taken_over = cut_at.elapsed();
    assert!(taken_over < 3 * TTL, "{taken_over:?}");
    assert_eq!(waits.next().as_deref(), Ok("beat"));
    println!(
        "taken {:.1} s after the pause, beside its successor for {:.1} s; {:.1} s after the power was cut",
        taken_after.as_secs_f64(),
        beside.as_secs_f64(),
        taken_over.as_secs_f64()
    );
}
