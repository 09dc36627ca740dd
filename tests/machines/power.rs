use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::machine::{Machine, Plan};
use crate::number_in;

/// Locks that commands take and give while the power is cut.
const NAMES: [&str; 7] = ["a", "b", "tree", "tree/leaf", "slots", "pair", "held"];

/// Takes and gives every lock without end, and says `number:name` of each hold, and the name of each lease.
const WORK: &str = r#"turn() { onehold -q run -w 60 "$@" -- sh -c 'echo "$ONEHOLD_HOLDS"'; };
    onehold run held -- sleep 1000 &
    for worker in 1 2 3; do
        while :; do turn a; turn b; turn tree; turn tree/leaf; turn --slots 2 slots; turn pair a; done &
    done;
    while :; do lease=lease/$(cat /proc/sys/kernel/random/uuid);
        onehold acquire -q --ttl 10h --owner me $lease && echo "$lease"; sleep 0.2;
    done"#;

/// What was confirmed before the power was cut.
#[derive(Default)]
struct Confirmed {
    /// The highest number of each lock.
    numbers: BTreeMap<String, u64>,
    leases: Vec<String>,
}

impl Confirmed {
    fn note(&mut self, line: &str) {
        if line.starts_with("lease/") {
            self.leases.push(line.to_owned());
        }
        for hold in line.split_whitespace() {
            if let Some((number, name)) = hold.split_once(':') {
                let highest = self.numbers.entry(name.to_owned()).or_default();
                *highest = number.parse().unwrap_or(0).max(*highest);
            }
        }
    }
}

#[test]
#[ignore = "starts machines, for minutes"]
fn ext4_after_a_power_cut_has_no_stuck_lock_no_lower_number_and_every_lease() {
    survive_cuts("mkfs.ext4 -q", "ext4");
}

#[test]
#[ignore = "starts machines, for minutes"]
fn xfs_after_a_power_cut_has_no_stuck_lock_no_lower_number_and_every_lease() {
    survive_cuts("mkfs.xfs -q", "xfs");
}

#[test]
#[ignore = "starts machines, for minutes"]
fn btrfs_after_a_power_cut_has_no_stuck_lock_no_lower_number_and_every_lease() {
    survive_cuts("mkfs.btrfs -q", "btrfs");
}

fn survive_cuts(mkfs: &str, filesystem: &str) {
    let cuts = number_in("MACHINES_CUTS").unwrap_or(5);
    let seed = number_in("MACHINES_SEED").unwrap_or(1);
    let mut plan = Plan::new();
    plan.add_disk("store");
    let mount = format!(
        "mkdir -p /tmp/store && modprobe {filesystem} && mount -t {filesystem} /dev/vdc /tmp/store"
    );
    let mut confirmed = Confirmed::default();
    let mut damaged = 0;
    let mut machine = plan.start("power");
    machine.output(&format!("{mkfs} /dev/vdc && {mount}"));
    for cut in 0..cuts {
        machine.begin(&WORK.replace('\n', " "));
        // The first hold comes before the time is up, or nothing would be cut.
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one((seed, filesystem, cut));
        let time = Duration::from_millis(hash % 15_000);
        let began = Instant::now();
        while confirmed.numbers.len() < 3 || began.elapsed() < time {
            confirmed.note(&machine.next().unwrap());
        }
        machine.cut_power();

        machine = plan.start("power");
        machine.output(&mount);
        damaged += assert_recovered(&mut machine, &confirmed);
    }
    let (numbers, leases) = (confirmed.numbers.len(), confirmed.leases.len());
    println!(
        "{filesystem}: {cuts} cuts, {numbers} locks with numbers, {leases} leases, {damaged} damaged files"
    );
}

/// Returns the number of damaged files.
fn assert_recovered(machine: &mut Machine, confirmed: &Confirmed) -> usize {
    let listed: Value = serde_json::from_str(&machine.output("onehold list --json")).unwrap();
    let locks = listed["locks"].as_array().unwrap();
    let state = |lock: &Value| lock["state"].as_str().unwrap().to_owned();
    for lock in locks {
        let is_lease = lock["name"].as_str().unwrap().starts_with("lease/");
        assert!(
            is_lease || state(lock) != "held",
            "a dead holder holds: {lock}"
        );
    }
    for lease in &confirmed.leases {
        let lock = locks.iter().find(|lock| lock["name"] == lease.as_str());
        let lock = lock.unwrap_or_else(|| panic!("{lease} was confirmed, and is gone: {listed}"));
        assert_eq!(state(lock), "held", "{lock}");
    }
    for name in NAMES {
        let slots = if name == "slots" { "--slots 2" } else { "" };
        // A damaged file is left alone for 10 s.
        let taken = machine.output(&format!(
            "onehold run -w 20 {slots} {name} -- sh -c 'echo $ONEHOLD_HOLD'"
        ));
        let number: u64 = taken.lines().last().unwrap().parse().expect(&taken);
        let before = confirmed.numbers.get(name).copied().unwrap_or(0);
        assert!(number > before, "{name}: {number} after {before}");
    }
    let is_damaged =
        |lock: &&Value| matches!(lock["state"].as_str(), Some("unverified" | "not-a-lock"));
    locks.iter().filter(is_damaged).count()
}
