//! Three machines of one store: one has the lock and is paused, one waits, one has another lock.

use std::time::{Duration, Instant};

use crate::cluster::On;
use crate::harness::machine::{Machine, Plan};
use crate::scene::{engine, scenes};

scenes! {
    #[ignore = "starts three machines, for a minute"]
    machine_paused_for_longer_than_its_lease_ends_its_work_once_it_runs_again,
}

/// Says for each tenth of a second that it is at work.
const BEATS: &str = "while :; do echo beat; sleep 0.1; done";

fn machine(plan: &Plan, name: &str) -> Machine {
    let mut machine = plan.start(name);
    machine.join_host();
    machine.output(&format!("hostname {name}"));
    machine
}

fn machine_paused_for_longer_than_its_lease_ends_its_work_once_it_runs_again() {
    let on = On::of_scene();
    let mut plan = Plan::new();
    plan.add_host();
    let [mut paused, mut waits, mut innocent] =
        ["paused", "waits", "innocent"].map(|name| machine(&plan, name));
    // As the machines see the servers, which listen on loopback.
    let dir = on.dir.replace("127.0.0.1", "10.0.2.2");
    let run = |name: &str| {
        let run = format!("onehold --dir '{dir}' run -w forever --ttl 10s {name}");
        format!("{run} -- sh -c '{BEATS}' 2>/dev/null")
    };
    let begin = |machine: &mut Machine, name: &str| {
        machine.begin(&run(name));
        assert_eq!(machine.next().as_deref(), Ok("beat"));
    };
    begin(&mut innocent, "other");
    begin(&mut paused, "x");
    waits.begin(&run("x"));

    paused.command_qemu("stop");
    let stopped = Instant::now();
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
    println!(
        "{:?}: taken {:.1} s after the pause began, beside its successor for {:.2} s",
        engine(),
        taken_after.as_secs_f64(),
        beside.as_secs_f64()
    );
    assert_ne!(code, 0);
    // The clocks of a paused machine stand still: it learns from its next renewal, after a third of the lease, that the
    // hold is gone. An emulated processor is slow besides.
    assert!(beside < Duration::from_secs(8), "{beside:?}");
    for machine in [&mut waits, &mut innocent] {
        assert_eq!(machine.next().as_deref(), Ok("beat"));
    }
}
