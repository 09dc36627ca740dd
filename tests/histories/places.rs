//! The same on other filesystems, which are full now and then.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::driver::{Driver, generator, seed};
use crate::harness::seen::now;
use crate::harness::{Rng, TestEnv, output};
use crate::history::Store;
use crate::plan::Pace;

const WITHOUT_TAKEOVERS: &str = "without takeovers";

/// Runs the test `small_place` with a filesystem at `place` that a script mounts.
fn try_place(mount: &str, kind: &str) {
    let directory = tempfile::tempdir().unwrap();
    let script = format!(
        "cd \"$1\"; disk() {{ truncate -s \"$1\" disk; shift; \"$@\" disk; mkdir -p place; mount -o loop disk place; }}
        mkdir place; {mount}; shift; exec \"$@\""
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-euc", &script]);
    command.arg("sh").arg(directory.path());
    command.arg(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "--nocapture", "places::small_place"]);
    command.env("ONEHOLD_HISTORY_PLACE", directory.path().join("place"));
    command.env("ONEHOLD_HISTORY_KIND", kind);
    let output = output(&mut command);
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}");
    let is_done = output.status.success() && said.contains("1 passed");
    assert!(is_done, "{said}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "needs root: mounts"]
fn history_of_a_full_ext4_is_that_of_locks() {
    try_place("disk 64M mkfs.ext4 -q -m 0", "");
}

#[test]
#[ignore = "needs root: mounts, mkfs.xfs (apt: xfsprogs)"]
fn history_of_a_full_xfs_is_that_of_locks() {
    try_place("disk 320M mkfs.xfs -q", "");
}

#[test]
#[ignore = "needs root: mounts, mkfs.btrfs (apt: btrfs-progs)"]
fn history_of_a_full_btrfs_is_that_of_locks() {
    try_place("disk 128M mkfs.btrfs -q", "");
}

#[test]
#[ignore = "needs root: mounts"]
fn history_of_a_full_tmpfs_is_that_of_locks() {
    try_place("mount -t tmpfs -o size=64m none place", "");
}

#[test]
#[ignore = "needs root: mounts"]
fn history_of_a_full_overlay_is_that_of_locks() {
    let layers = "mkdir layers; mount -t tmpfs -o size=64m none layers; mkdir layers/lower layers/upper layers/work";
    let overlay = "mount -t overlay -o lowerdir=layers/lower,upperdir=layers/upper,workdir=layers/work none place";
    try_place(&format!("{layers}; {overlay}"), "");
}

#[test]
#[ignore = "needs root: mounts, bindfs (apt: bindfs)"]
fn history_of_a_full_fuse_filesystem_is_that_of_locks() {
    let behind = "mkdir behind; mount -t tmpfs -o size=64m none behind; bindfs behind place";
    try_place(behind, WITHOUT_TAKEOVERS);
}

/// A filesystem that `history_of_…` has mounted.
#[test]
#[ignore = "is run by the others"]
fn small_place() {
    let place =
        std::env::var("ONEHOLD_HISTORY_PLACE").expect("ONEHOLD_HISTORY_PLACE names a directory");
    let place = PathBuf::from(place);
    let takes_over = std::env::var("ONEHOLD_HISTORY_KIND").as_deref() != Ok(WITHOUT_TAKEOVERS);
    let store = if takes_over {
        Store::FILES
    } else {
        Store::NO_TAKEOVER
    };
    let mut driver = Driver::new(TestEnv::new(), store, Pace::FILES);
    let dir = place.join("store");
    driver.dir = Some(dir.to_str().unwrap().to_owned());
    if !takes_over {
        // What dead holders leave stays until it is broken, and so many ways are there to judge it.
        driver.between_signals = (100, 400);
        driver.most_calls = 150;
    }
    let seed = seed();
    driver.run(seed, &[], |driver| {
        let mut rng = Rng(generator(seed, 200).0);
        while !driver.is_over() {
            let pause = 500 + rng.below(1_500) as u64;
            if takes_over {
                std::thread::sleep(Duration::from_millis(pause));
            } else {
                driver.break_all();
            }
            let from = now();
            driver.outages.lock().unwrap().push((from, u64::MAX / 2));
            let full = fill(&place);
            std::thread::sleep(Duration::from_millis(rng.below(1_500) as u64));
            fs::remove_file(full).unwrap();
            driver.outages.lock().unwrap().last_mut().unwrap().1 = now();
        }
    });
    println!("{} times full", driver.outages.lock().unwrap().len());
    driver.conclude(|| {
        if takes_over {
            left(&dir)
        } else {
            left_records(&dir)
        }
    });
}

/// Leaves no room, however small.
fn fill(place: &Path) -> PathBuf {
    let path = place.join("full");
    let mut file = File::create(&path).unwrap();
    for piece in [1 << 20, 1 << 12, 1] {
        let zeroes = vec![0_u8; piece];
        // Less than all of it may be written, until nothing is.
        while file.write(&zeroes).is_ok() {}
    }
    path
}

/// What is left of locks and of queues.
fn left(store: &Path) -> Vec<String> {
    let mut left = names_in(store);
    left.retain(|name| name != ".onehold");
    left.extend(names_in(&store.join(".onehold/waiting")));
    left
}

/// The same where directories stay, since others may be about to use them.
fn left_records(directory: &Path) -> Vec<String> {
    let mut left = Vec::new();
    for name in names_in(directory) {
        let path = directory.join(&name);
        if name.starts_with('.') {
            continue;
        }
        if path.is_dir() {
            left.extend(left_records(&path));
        } else {
            left.push(name);
        }
    }
    left
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}
