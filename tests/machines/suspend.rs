use std::time::Duration;

use serde_json::Value;

use crate::harness::machine::{Machine, Plan};

fn lock(machine: &mut Machine, name: &str) -> Value {
    let checked = machine.run(&format!("onehold check --json {name}"));
    let answer: Value = serde_json::from_str(&checked.output).expect(&checked.output);
    answer["lock"].clone()
}

#[test]
#[ignore = "starts a machine, for a minute"]
fn suspended_machine_keeps_its_runs_and_the_queue_and_loses_the_leases_that_have_ended() {
    let mut machine = Plan::new().start("suspend");
    machine.output("mkdir /tmp/store");
    machine.output("onehold run x -- sh -c 'touch /tmp/began; while ! [ -e /tmp/end ]; do sleep 0.1; done' >/dev/null 2>&1 & while ! [ -e /tmp/began ]; do sleep 0.1; done");
    machine
        .output("onehold run -w forever x -- sh -c 'echo $ONEHOLD_HOLD > /tmp/successor' >/dev/null 2>&1 & true");
    machine.output("onehold acquire --ttl 20s --owner me short");
    machine.output("onehold acquire --ttl 1h --owner me long");
    let before = lock(&mut machine, "x");
    assert_eq!(lock(&mut machine, "short")["state"], "held");

    machine.begin("echo mem > /sys/power/state");
    machine.wait_until_suspended();
    // Longer than the lease.
    std::thread::sleep(Duration::from_secs(25));
    machine.command_qemu("system_wakeup");
    assert_eq!(machine.next(), Err(0));

    let after = lock(&mut machine, "x");
    assert_eq!(after["state"], "held", "{after}");
    assert_eq!(after["hold"], before["hold"], "{after}");
    assert_eq!(after["waiters"].as_array().unwrap().len(), 1, "{after}");
    let short = lock(&mut machine, "short");
    assert_ne!(short["state"], "held", "{short}");
    assert_eq!(lock(&mut machine, "long")["state"], "held");
    assert_eq!(machine.run("onehold run -q x -- true").code, 6);
    machine.output("touch /tmp/end; while ! [ -s /tmp/successor ]; do sleep 0.1; done");
    machine.output("onehold run -w 10 x -- true && onehold run -w 10 short -- true");
}
